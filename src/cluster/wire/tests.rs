//! Every message comes back as it was sent, and what was cut, changed or made up is refused or is another message; never a
//! panic, and never memory for what is only claimed.

use super::*;
use crate::base::status::{NMC_ERR_NO_SPACE, NMC_ERR_PROTOCOL, NMC_ERR_VERSION, NMC_OK};
use crate::cluster::types::{Chance, Media, NO_INDEX, Name, NodeId, ObjectKey, Position, PutId};

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(b"space", text.as_bytes()).unwrap()
}

fn name() -> Name {
    Name { node: NodeId::of("a"), incarnation: 0x1234_5678_9abc, index: 77, epoch: 1 << 50 }
}

fn position(number: u64) -> Position {
    Position { term: 9, number }
}

fn replica() -> Replica {
    Replica { name: name(), put: PutId(5), length: 1 << 33, media: Media::Ssd, endpoint: "10.0.0.1:12345".into() }
}

fn segment() -> SegmentInfo {
    SegmentInfo { number: 3, name: "s".into(), media: Media::Vram, capacity: 1 << 40, used: 12, near: -1 }
}

fn put() -> Put {
    Put {
        put: PutId::clustered(9, 1),
        term: 9,
        incarnation: 4,
        after: position(2),
        segment: 1,
        key: key("p"),
        length: 4096,
        retain: 1,
        metadata: Metadata(vec![1, 2, 3]),
        hold: false,
        exact: false,
    }
}

fn report(news: impl Into<News>) -> Message {
    let news = news.into();
    Report { term: 9, node: NodeId(1), incarnation: 2, number: 3, sent_at: 4, news }.into()
}

fn published(index: u32) -> Published {
    Published { index, epoch: 6, key: key("f"), put: PutId::local(7), length: 0, segment: 0 }
}

/// One of each kind, and of each kind within them.
fn samples() -> Vec<Message> {
    let (endpoint, after) = ("e".into(), position(1));
    let place = Place { node: NodeId(1), incarnation: 2, segment: 3, media: Media::Ram, endpoint, after, exact: false };
    let dropped = DropReplica { incarnation: 1, index: NO_INDEX, epoch: 0, key: key("d"), put: PutId(1) };
    let entry = |number, what| DropEntry { position: position(number), what };
    let extent = Extent { region: 1, offset: 4096, length: 100 };
    let done = Done { name: name(), fact: 8 };
    let fixed = vec![Location { segment: "x".into(), media: Some(Media::Ssd) }];
    let config = Replicate { copies: 2, media: vec![0, 2, 1], fixed, near: "host".into() };
    vec![
        Leave { node: NodeId(1), incarnation: 2, empty: true }.into(),
        AddReplica { node: NodeId(1), incarnation: 2, key: key("k"), put: PutId(3) }.into(),
        EvictDisk { node: NodeId(1), incarnation: 2, keys: vec![key("a"), key("b")] }.into(),
        Hello { token: "secret".into() }.into(),
        PutStart { key: key("a"), length: 10, slices: vec![4, 6], config, striped: true }.into(),
        PutPlaces { status: 0, term: 9, put: PutId(1), copies: 2, places: vec![place] }.into(),
        PutEnd {
            put: PutId(1),
            key: key("a"),
            done: vec![done.clone(), done.clone()],
            tried: vec![NodeId(3)],
            crc: Some(7),
        }
        .into(),
        Verify { term: 9, incarnation: 2, put: PutId(1), crc: 7 }.into(),
        Verified { term: 9, node: NodeId(1), incarnation: 2, put: PutId(1), status: 0, done: Some(done.clone()) }
            .into(),
        PutRevoke { put: PutId(1), key: key("a") }.into(),
        Find { keys: vec![key("a"), key("b")], missed: vec![name()] }.into(),
        Found { term: 9, keys: vec![Listed { status: NMC_OK, replicas: vec![replica(), replica()] }] }.into(),
        Remove { key: key("a"), wait: true, call: 7 }.into(),
        RemoveAll { space: Some(Space(b"space".to_vec())), wait: false, call: 8 }.into(),
        RemoveAll { space: None, wait: true, call: 9 }.into(),
        ListSegments { cursor: 4 }.into(),
        Segments {
            term: 9,
            list: vec![Segment { node: NodeId(1), host: "h".into(), info: segment(), state: 1 }],
            next: 0,
        }
        .into(),
        Expire { key: key("a"), put: PutId(1), after_ms: 1000 }.into(),
        ListKeys { cursor: 4, space: Space(b"space".to_vec()), prefix: Prefix(b"a".to_vec()) }.into(),
        Keys { term: 9, list: vec![key("a"), key("ab")], next: 5 }.into(),
        Answer::new(9, NMC_ERR_NO_SPACE, "no").into(),
        Redirect { term: 9, leader: "m:50051".into() }.into(),
        Drain { segment: "s".into(), cancel: true }.into(),
        Join {
            name: "n".into(),
            incarnation: 1,
            store: 2,
            since: Some(position(3)),
            tier: 0,
            apart: Some(position(2)),
            left: true,
            endpoint: "e".into(),
            host: "h".into(),
            headers: 10,
            slots: 0,
            sent_at: 6,
            segments: vec![segment()],
        }
        .into(),
        Welcome {
            term: 9,
            incarnation: 1,
            next: 1,
            fresh: true,
            apart: false,
            head: position(4),
            fence_ms: 9000,
            sent_at: 1,
        }
        .into(),
        report(Facts {
            first: 1,
            facts: vec![published(1).into(), Retired { index: 1, epoch: 6 }.into(), published(2).into()],
        }),
        report(Range { from: 0, to: 256, live: vec![published(3)] }),
        report(SnapshotEnd { facts: 12 }),
        report(Applied { position: position(5) }),
        report(Announce { key: key("c"), put: PutId(1), ticket: 2 }),
        report(Withdraw { key: key("c"), put: PutId(1) }),
        Ping {
            term: 9,
            node: NodeId(1),
            incarnation: 1,
            sent_at: 2,
            position: position(3),
            used: vec![1, 2],
            closed: vec![1],
            newest: 4,
            changed: 2,
        }
        .into(),
        Ack { term: 9, incarnation: 1, next: 2, facts: 3, sent_at: 4, closed: vec![0, 7], changed: 5 }.into(),
        Rejoin { term: 9 }.into(),
        Drops {
            term: 9,
            after: position(1),
            through: position(4),
            entries: vec![
                entry(2, dropped.into()),
                entry(3, DropKey { key: key("k") }.into()),
                entry(4, DropSpace { space: None }.into()),
            ],
        }
        .into(),
        Announced { term: 9, incarnation: 1, ticket: 2, status: 0 }.into(),
        Mount { node: NodeId(1), incarnation: 1, segment: segment(), unmount: true }.into(),
        CopyThis { term: 9, incarnation: 1, key: key("c"), from: replica() }.into(),
        put().into(),
        PutDone { status: 0, done: Some(done) }.into(),
        Fetch {
            name: name(),
            key: key("g"),
            put: PutId(6),
            offset: 0,
            length: 10,
            into: vec![extent.clone()],
            mover: 4,
            expire_ms: 5,
            stub: true,
            verify: true,
        }
        .into(),
        Fetched {
            status: 0,
            put: PutId(1),
            length: 10,
            follows: 10,
            sum: Some(8),
            retain: 5,
            metadata: Metadata::default(),
        }
        .into(),
        Reserve { put: put(), writer: "w".into() }.into(),
        Reserved { status: 0, name: Some(name()), extents: vec![extent], mover: 5 }.into(),
        Commit { put: PutId(1) }.into(),
        Stopped { put: PutId(1), begun: true }.into(),
        CancelFetch { request: 3, incarnation: 4 }.into(),
        Mover {
            id: 7,
            edition: 2,
            card: Card(vec![1, 2]),
            regions: vec![Region { number: 1, base: 4096, length: 9, device: Some(3) }],
        }
        .into(),
    ]
}

fn encoded(message: Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame { request: 1 << 40, time_left_ms: 250, message }.encode(&mut bytes).unwrap();
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Frame> {
    let (head, message) = bytes.split_first_chunk::<HEAD>().unwrap();
    Frame::decode(&Head::decode(head)?, message)
}

#[test]
fn every_message_comes_back_as_it_was_sent() {
    let mut kinds = std::collections::BTreeSet::new();
    for message in samples() {
        kinds.insert(message.number());
        let frame = decoded(&encoded(message.clone())).unwrap();
        assert_eq!(frame, Frame { request: 1 << 40, time_left_ms: 250, message });
    }
    // As many as there are numbers that decode to something other than "there is no message".
    let known = (0..100).filter(|kind| {
        let error = Message::get_body(*kind, &mut Cursor::new(&[])).err();
        !error.is_some_and(|error| error.message.contains("there is no message"))
    });
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), known.collect::<Vec<_>>());
}

#[test]
fn a_message_that_is_cut_or_has_more_is_refused() {
    for message in samples() {
        let bytes = encoded(message.clone());
        for end in HEAD..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            cut[8..12].copy_from_slice(&u32::try_from(end - HEAD).unwrap().to_le_bytes());
            let error = decoded(&cut).unwrap_err();
            assert_eq!(error.status, NMC_ERR_PROTOCOL, "{} cut at {end}: {error}", message.name());
        }
        let mut more = bytes.clone();
        more.push(0);
        assert!(decoded(&more).is_err(), "the head says less");
        more[8..12].copy_from_slice(&u32::try_from(bytes.len() + 1 - HEAD).unwrap().to_le_bytes());
        assert_eq!(decoded(&more).unwrap_err().status, NMC_ERR_PROTOCOL, "{}", message.name());
    }
}

#[test]
fn changed_messages_are_refused_or_are_messages() {
    let mut chance = Chance::new(15);
    for message in samples() {
        let bytes = encoded(message);
        for _ in 0..300 {
            let mut changed = bytes.clone();
            for _ in 0..=chance.below(3) {
                let at = chance.below(changed.len());
                changed[at] = match chance.below(3) {
                    0 => 0xff,
                    1 => 0,
                    _ => chance.word().to_le_bytes()[0],
                };
            }
            if let Ok(frame) = decoded(&changed) {
                assert_eq!(decoded(&encoded(frame.message.clone())).unwrap().message, frame.message);
            }
        }
    }
}

#[test]
fn a_head_is_judged_before_anything_is_made_for_it() {
    let good = Head { kind: 40, len: 100, request: 1, time_left_ms: 2, value: 1 << 30 };
    assert_eq!(Head::decode(&good.encode()).unwrap(), good);
    let status = |head: &Head| Head::decode(&head.encode()).unwrap_err().status;
    assert_eq!(status(&Head { len: u32::MAX, ..good }), NMC_ERR_PROTOCOL);
    assert_eq!(status(&Head { value: MAX_VALUE + 1, ..good }), NMC_ERR_PROTOCOL);
    assert_eq!(status(&Head { kind: 5, ..good }), NMC_ERR_PROTOCOL, "nothing follows a question");
    let mut other = good.encode();
    other[3] ^= 3;
    assert_eq!(Head::decode(&other).unwrap_err().status, NMC_ERR_VERSION);
    other[0] = b'G';
    assert_eq!(Head::decode(&other).unwrap_err().status, NMC_ERR_PROTOCOL);
}

#[test]
fn claims_of_huge_lists_and_keys_are_refused() {
    for (kind, claim) in [(5u32, u32::MAX), (5, 9000), (7, 2000), (22, u32::MAX)] {
        let mut body = claim.to_le_bytes().to_vec();
        body.resize(64, 0xff);
        assert_eq!(Message::get_body(kind, &mut Cursor::new(&body)).unwrap_err().status, NMC_ERR_PROTOCOL);
    }
}

#[test]
fn a_text_that_is_none_is_refused() {
    let bytes = encoded(Drain { segment: "0123456789".into(), cancel: false }.into());
    assert!(decoded(&bytes).is_ok());
    for (at, byte) in [(HEAD + 4, 0xff), (HEAD + 4, 0x80), (HEAD + 13, 0xc3)] {
        let mut changed = bytes.clone();
        changed[at] = byte;
        assert_eq!(decoded(&changed).unwrap_err().status, NMC_ERR_PROTOCOL, "{byte:#x} at {at}");
    }
}

#[test]
fn bytes_by_chance_are_no_messages() {
    let mut chance = Chance::new(1);
    for _ in 0..20_000 {
        let mut bytes = vec![0; HEAD + chance.below(200)];
        bytes.fill_with(|| chance.word().to_le_bytes()[0]);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&u32::try_from(chance.below(50)).unwrap().to_le_bytes());
        let len = u32::try_from(bytes.len() - HEAD).unwrap();
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[24..32].fill(0);
        let _ = decoded(&bytes);
    }
}
