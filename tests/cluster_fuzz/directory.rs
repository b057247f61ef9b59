//! A master that leads, and whoever speaks to it: clients, nodes, and those that know what they should not.

use super::counted;
use super::script::{self, Step};
use nanomc::cluster::directory::{Action, Config, Elected, Event, Master, Member, Strategy};
use nanomc::cluster::types::{Media, Millis, Name, NodeId, ObjectKey, Peer, Position, PutId};
use nanomc::cluster::wire::*;
use std::collections::{BTreeMap, VecDeque};

/// What steps are.
pub const SAID: u8 = 0;
pub const PASSES: u8 = 4;
pub const CLOSED: u8 = 5;
pub const WRITTEN: u8 = 6;
pub const LEADS: u8 = 7;

/// The term in which it leads first.
pub const TERM: u64 = 5;
/// Whoever speaks, and nodes among them.
const PEERS: u8 = 8;
const NODES: u64 = 4;

/// A master, or what is tried in its place.
pub trait Machine {
    fn on(&mut self, event: Event, now: Millis, to: &mut Vec<Action>);
}

impl Machine for Master {
    fn on(&mut self, event: Event, now: Millis, to: &mut Vec<Action>) {
        Master::on(self, event, now, to);
    }
}

fn name(n: u64) -> String {
    format!("n{n}")
}

/// Everything about it is one byte's choice.
fn config(choice: u8) -> Config {
    let strategies = [Strategy::Random, Strategy::LeastLoaded, Strategy::Topology];
    Config {
        durable: choice & 1 != 0,
        sees_ends: choice & 2 != 0,
        re_replicate: u32::from(choice & 4),
        strategy: strategies[usize::from(choice >> 3) % strategies.len()],
        max_puts: 64,
        max_log: 128,
        ..Config::default()
    }
}

/// The first byte sets a master up, the rest is what happens to it: no panic, what it says can be sent, and its memory follows what it was told.
pub fn body(data: &[u8]) {
    run(data, Master::new, |_| ());
}

/// The same with another machine; `said` gets all that was said, by anybody.
pub fn run<M: Machine>(data: &[u8], make: impl FnOnce(Config) -> M, said: impl FnMut(&Message)) {
    let (choice, data) = data.split_first().unwrap_or((&0, &[]));
    let before = counted::used();
    let mut rig = Rig {
        master: make(config(*choice)),
        said,
        now: 1_000,
        term: TERM,
        request: 0,
        puts: Vec::new(),
        next: BTreeMap::new(),
        told: BTreeMap::new(),
        writing: VecDeque::new(),
        at_once: true,
    };
    rig.elect(2);
    script::read(&prologue()).for_each(|step| rig.step(step));
    // What it has by now, and what was told of it is longer in memory than in a message.
    let (base, mut sent) = (counted::used() - before, 0);
    assert!(base < 1 << 20, "{base} bytes are taken by a master to which nothing was said");
    for step in script::read(data) {
        sent += step.bytes;
        let output = counted::most(|| rig.step(step));
        assert!(output < 4 << 20, "{output} bytes are taken for one event");
        let taken = counted::used() - before - base;
        let limit = (64 << 10) + 64 * sent;
        assert!(taken < limit.cast_signed(), "{taken} bytes are kept after {sent} were sent");
    }
}

struct Rig<M, S> {
    master: M,
    said: S,
    now: Millis,
    term: u64,
    request: u64,
    /// Puts that have begun.
    puts: Vec<PutId>,
    /// The report that is waited for, by the life of its node.
    next: BTreeMap<u64, u64>,
    /// How far a peer was told to drop.
    told: BTreeMap<Peer, Position>,
    /// What is to be written down, and whether that is done at once.
    writing: VecDeque<u64>,
    at_once: bool,
}

impl<M: Machine, S: FnMut(&Message)> Rig<M, S> {
    fn elect(&mut self, members: u64) {
        let members = (0..members).map(|n| Member { name: name(n), since: Position::default() }).collect();
        let (until, floor) = (self.now + 10_000_000, Position::default());
        self.on(Event::Elected(Elected { term: self.term, until, members, log: Vec::new(), floor }));
    }

    fn step(&mut self, step: Step) {
        let (peer, passes_ms) = (Peer(step.who(PEERS)), step.passes_ms());
        match (step.what % 8, step.message) {
            (SAID..PASSES, Some(mut message)) => {
                self.inform(peer, &mut message);
                (self.said)(&message);
                self.request += 1;
                let frame = Frame { request: self.request, time_left_ms: 1_000, message };
                self.on(Event::Message(peer, frame));
            }
            (PASSES, _) => {
                self.now += passes_ms;
                self.on(Event::Tick);
            }
            (CLOSED, _) => self.on(Event::Closed(peer)),
            (WRITTEN, _) => match self.writing.pop_front() {
                Some(number) => self.on(Event::Recorded(number, step.about.is_multiple_of(2))),
                None => self.at_once = step.about.is_multiple_of(2),
            },
            (LEADS, _) => match step.about % 4 {
                0 => self.on(Event::Lease(self.now + 10_000_000)),
                1 => self.on(Event::Deposed(self.term + 1, "m:1".into())),
                _ => {
                    self.term += 1;
                    self.elect(peer.0 % NODES);
                }
            },
            _ => {}
        }
    }

    fn on(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.master.on(event, self.now, &mut actions);
        let mut bytes = Vec::new();
        for action in actions {
            match action {
                Action::Send(peer, frame) => {
                    frame.encode(&mut bytes).expect("what a master says can be sent");
                    let again = super::frame::decode(&bytes).and_then(Result::ok).expect("and understood");
                    (self.said)(&again.message);
                    self.learn(peer, again.message);
                }
                Action::Record(number, _) => self.writing.push_back(number),
            }
        }
        while self.at_once
            && let Some(number) = self.writing.pop_front()
        {
            self.on(Event::Recorded(number, true));
        }
    }

    /// What was said is known to all.
    fn learn(&mut self, peer: Peer, message: Message) {
        match message {
            Message::PutPlaces(places) => self.puts.push(places.put),
            Message::Ack(ack) => drop(self.next.insert(ack.incarnation, ack.next)),
            Message::Drops(drops) => drop(self.told.insert(peer, drops.through)),
            Message::Welcome(welcome) => {
                self.next.insert(welcome.incarnation, welcome.next);
                self.told.insert(peer, welcome.head);
            }
            _ => {}
        }
    }

    /// Small numbers in a message stand for what somebody knows who was told everything: chance would not find it.
    fn inform(&self, peer: Peer, message: &mut Message) {
        let node = |id: &mut NodeId| {
            if id.0 < NODES {
                *id = NodeId::of(&name(id.0));
            }
        };
        let put = |put: &mut PutId| {
            let known = usize::try_from(put.0).ok().and_then(|n| self.puts.get(n));
            *put = known.copied().unwrap_or(*put);
        };
        let key = |key: &mut ObjectKey| {
            if let Some((mut whole, number)) = key.as_part() {
                put(&mut whole);
                *key = ObjectKey::part(whole, number).expect("it was one");
            }
        };
        let published = |published: &mut Published| {
            put(&mut published.put);
            key(&mut published.key);
        };
        let position = |at: &mut Position| {
            if at.term == 0 {
                *at = self.told.get(&peer).copied().unwrap_or(*at);
            }
        };
        match message {
            Message::PutStart(start) => key(&mut start.key),
            Message::PutEnd(end) => {
                put(&mut end.put);
                key(&mut end.key);
                end.done.iter_mut().for_each(|done| node(&mut done.name.node));
                end.tried.iter_mut().for_each(node);
            }
            Message::PutRevoke(revoke) => put(&mut revoke.put),
            Message::Expire(expire) => put(&mut expire.put),
            Message::Find(find) => find.missed.iter_mut().for_each(|name| node(&mut name.node)),
            Message::Report(report) => {
                node(&mut report.node);
                if report.number == 0 {
                    report.number = self.next.get(&report.incarnation).copied().unwrap_or(0);
                }
                match &mut report.news {
                    News::Facts(facts) => facts.facts.iter_mut().for_each(|fact| {
                        if let Fact::Published(fact) = fact {
                            published(fact);
                        }
                    }),
                    News::Range(range) => range.live.iter_mut().for_each(published),
                    News::Applied(applied) => position(&mut applied.position),
                    News::Announce(announce) => put(&mut announce.put),
                    News::Withdraw(withdraw) => put(&mut withdraw.put),
                    News::SnapshotEnd(_) => {}
                }
            }
            Message::Ping(ping) => {
                node(&mut ping.node);
                position(&mut ping.position);
            }
            Message::Leave(leave) => node(&mut leave.node),
            Message::Mount(mount) => node(&mut mount.node),
            Message::AddReplica(add) => {
                node(&mut add.node);
                put(&mut add.put);
            }
            Message::EvictDisk(evict) => node(&mut evict.node),
            Message::Verified(verified) => {
                node(&mut verified.node);
                put(&mut verified.put);
                verified.done.iter_mut().for_each(|done| node(&mut done.name.node));
            }
            _ => {}
        }
    }
}

fn object(text: &str) -> ObjectKey {
    ObjectKey::new(b"kv", text.as_bytes()).expect("a key")
}

fn segment(n: u64, number: u32, media: Media) -> SegmentInfo {
    SegmentInfo { number, name: format!("n{n}/{number}"), media, capacity: 1 << 20, used: 0, near: -1 }
}

fn join(n: u64, life: u64, since: Option<Position>) -> Message {
    Join {
        name: name(n),
        incarnation: life,
        store: life,
        since,
        tier: 7,
        apart: None,
        left: false,
        endpoint: format!("h{n}:1"),
        host: format!("h{n}"),
        headers: 64,
        slots: 16,
        sent_at: 1,
        segments: vec![segment(n, 0, Media::Ram), segment(n, 1, Media::Ssd)],
    }
    .into()
}

fn report(n: u64, news: impl Into<News>) -> Message {
    Report { term: TERM, node: NodeId(n), incarnation: n + 1, number: 0, sent_at: 2, news: news.into() }.into()
}

fn published(index: u32, epoch: u64, key: &str, put: u64) -> Published {
    Published { index, epoch, key: object(key), put: PutId(put), length: 100, segment: 0 }
}

fn facts(n: u64, first: u64, list: Vec<Fact>) -> Message {
    report(n, Facts { first, facts: list })
}

fn applied(n: u64) -> Message {
    report(n, Applied { position: Position::default() })
}

fn comes(n: u64) -> [Message; 3] {
    [join(n, n + 1, None), applied(n), report(n, SnapshotEnd { facts: 0 })]
}

fn start(key: &str, copies: u32, striped: bool) -> Message {
    let fixed = vec![Location { segment: "n0/0".into(), media: Some(Media::Ram) }];
    let config = Replicate { copies, media: vec![0, copies], fixed, near: "h1".into() };
    let length = if striped { 2 } else { 100 };
    PutStart { key: object(key), length, slices: vec![length], config, striped }.into()
}

fn done(n: u64, index: u32, fact: u64) -> Done {
    Done { name: Name { node: NodeId(n), incarnation: n + 1, index, epoch: 1 }, fact }
}

fn end(put: u64, key: &str, done: Vec<Done>, crc: Option<u32>) -> Message {
    PutEnd { put: PutId(put), key: object(key), done, tried: vec![NodeId(1)], crc }.into()
}

fn ping(n: u64, closed: Vec<u32>) -> Message {
    let (node, position) = (NodeId(n), Position::default());
    let (term, incarnation, sent_at, used, newest, changed) = (TERM, n + 1, 3, vec![1, 2], 9, 1);
    Ping { term, node, incarnation, sent_at, position, used, closed, newest, changed }.into()
}

fn find(keys: &[&str]) -> Message {
    let missed = vec![Name { node: NodeId(1), incarnation: 2, index: 1, epoch: 1 }];
    Find { keys: keys.iter().map(|key| object(key)).collect(), missed }.into()
}

/// Two nodes join, and say that they have nothing.
fn prologue() -> Vec<u8> {
    let mut steps = Vec::new();
    for n in 0..2 {
        comes(n).iter().for_each(|message| script::write(&mut steps, SAID, n.try_into().expect("few"), Some(message)));
    }
    script::write(&mut steps, PASSES, 2, None);
    steps
}

/// What goes on in a cluster in which nobody lies, as scripts.
pub fn examples() -> Vec<Vec<u8>> {
    let (client, space) = (6, || Space(b"kv".to_vec()));
    let passes = |about| (PASSES, about, None);
    let says = |who: u8, message: Message| (SAID, who, Some(message));
    let asks = |message: Message| (SAID, client, Some(message));
    let put = |key: &str| {
        vec![
            asks(start(key, 2, false)),
            says(0, facts(0, 1, vec![published(1, 1, key, 0).into()])),
            says(1, facts(1, 1, vec![published(1, 1, key, 0).into()])),
            asks(end(0, key, vec![done(0, 1, 1), done(1, 1, 1)], None)),
            asks(find(&[key, "other"])),
        ]
    };
    let remove = |key: &str, wait| asks(Remove { key: object(key), wait, call: 70 }.into());
    let drain = |cancel| asks(Drain { segment: "n0/0".into(), cancel }.into());
    let list_keys = ListKeys { cursor: 0, space: space(), prefix: Prefix(b"a".to_vec()) };
    let mount = |number, unmount| {
        let (node, incarnation) = (NodeId(1), 2);
        says(1, Mount { node, incarnation, segment: segment(1, number, Media::Vram), unmount }.into())
    };
    let part = |n| {
        let put = asks(
            PutStart {
                key: ObjectKey::part(PutId(0), n).expect("a part"),
                length: 10,
                slices: vec![4, 6],
                config: Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() },
                striped: false,
            }
            .into(),
        );
        let key = ObjectKey::part(PutId(0), n).expect("a part");
        let index = 10 + u32::try_from(n).expect("few");
        let fact = Published { key, ..published(index, 1, "-", n + 1) };
        [put, says(0, facts(0, 5 + n, vec![fact.into()]))]
    };
    let verified =
        Verified { term: TERM, node: NodeId(0), incarnation: 1, put: PutId(0), status: 0, done: Some(done(0, 1, 1)) };
    let on_disk = Published { segment: 1, ..published(1 << 31 | 3, 4, "a", 0) };
    let scripts = vec![
        [put("a"), vec![remove("a", true), says(0, applied(0)), says(1, applied(1)), passes(3), remove("a", false)]]
            .concat(),
        [
            put("a"),
            vec![
                asks(RemoveAll { space: Some(space()), wait: true, call: 71 }.into()),
                says(0, applied(0)),
                passes(4),
                asks(RemoveAll { space: None, wait: false, call: 72 }.into()),
                says(1, applied(1)),
            ],
        ]
        .concat(),
        [
            put("a"),
            vec![
                drain(false),
                says(0, ping(0, vec![])),
                says(0, ping(0, vec![0])),
                passes(3),
                says(1, report(1, Announce { key: object("a"), put: PutId(0), ticket: 3 })),
                says(1, report(1, Withdraw { key: object("a"), put: PutId(0) })),
                drain(true),
            ],
        ]
        .concat(),
        [
            comes(2).into_iter().map(|message| says(2, message)).collect(),
            put("a"),
            vec![
                says(2, report(2, Announce { key: object("a"), put: PutId(0), ticket: 4 })),
                says(2, facts(2, 1, vec![published(5, 2, "a", 0).into(), Retired { index: 5, epoch: 2 }.into()])),
                says(0, AddReplica { node: NodeId(2), incarnation: 3, key: object("a"), put: PutId(0) }.into()),
                says(0, Leave { node: NodeId(0), incarnation: 1, empty: true }.into()),
                (CLOSED, 0, None),
                passes(6),
                passes(7),
                says(0, join(0, 9, Some(Position { term: TERM, number: 1 }))),
                remove("a", true),
            ],
        ]
        .concat(),
        vec![
            asks(start("a", 1, false)),
            says(0, facts(0, 1, vec![published(1, 1, "a", 0).into()])),
            asks(end(0, "a", vec![done(0, 1, 0)], Some(7))),
            says(0, verified.into()),
            passes(2),
            asks(start("b", 1, false)),
            asks(PutRevoke { put: PutId(1), key: object("b") }.into()),
            passes(6),
        ],
        [
            put("a"),
            vec![
                says(0, facts(0, 2, vec![on_disk.into(), Retired { index: 1, epoch: 1 }.into()])),
                says(0, EvictDisk { node: NodeId(0), incarnation: 1, keys: vec![object("a")] }.into()),
                says(0, Expire { key: object("a"), put: PutId(0), after_ms: 100 }.into()),
                passes(3),
                says(0, applied(0)),
            ],
        ]
        .concat(),
        [
            vec![asks(start("w", 1, true))],
            part(0).into(),
            part(1).into(),
            vec![
                says(0, facts(0, 8, vec![Published { length: 2, ..published(1, 1, "w", 0) }.into()])),
                asks(end(0, "w", vec![done(0, 1, 8)], None)),
                asks(find(&["w"])),
                says(0, facts(0, 9, vec![Retired { index: 10, epoch: 1 }.into()])),
                remove("w", true),
                passes(4),
            ],
        ]
        .concat(),
        [
            put("a"),
            vec![
                mount(2, false),
                asks(ListSegments { cursor: 0 }.into()),
                asks(list_keys.into()),
                mount(2, true),
                (LEADS, 2, None),
                says(0, join(0, 1, Some(Position { term: TERM, number: 0 }))),
                says(0, report(0, Range { from: 0, to: 64, live: vec![published(1, 1, "a", 0)] })),
                (WRITTEN, 1, None),
                says(3, join(3, 4, None)),
                (WRITTEN, 0, None),
                passes(6),
                (LEADS, 1, None),
                asks(find(&["a"])),
            ],
        ]
        .concat(),
    ];
    let one = |(choice, steps): (usize, Vec<(u8, u8, Option<Message>)>)| {
        let mut bytes = vec![u8::try_from(choice * 3).expect("few")];
        steps.iter().for_each(|(what, about, message)| script::write(&mut bytes, *what, *about, message.as_ref()));
        bytes
    };
    scripts.into_iter().enumerate().map(one).collect()
}
