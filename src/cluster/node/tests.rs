//! The agent by itself, told by hand what happened, over the model of a store.

use super::model::{Directory, Store};
use super::storage::{Offer, Storage, Wanted};
use super::stream::Stream;
use super::{Action, Agent, Config, Event, Plan};
use crate::base::queue::Queue;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_TIMEOUT,
    NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED, NMC_NOT_READY, NMC_OK,
};
use crate::cluster::types::{Media, Millis, NO_INDEX, Name, NodeId, ObjectKey, Peer, Position, PutId};
use crate::cluster::wire::*;
use crate::layout::store::ON_DISK;

const CLIENT: Peer = Peer(7);

fn key() -> ObjectKey {
    ObjectKey::new(b"", b"k").unwrap()
}

fn position(number: u64) -> Position {
    Position { term: 5, number }
}

struct Rig {
    agent: Agent<Store>,
    now: Millis,
    actions: Vec<Action>,
}

impl Rig {
    fn new(ring: usize) -> Self {
        let config = Config {
            name: "n".into(),
            incarnation: 9,
            store: 1,
            endpoint: "h:1".into(),
            host: "h".into(),
            headers: 8,
            slots: 0,
            volatile: false,
            segments: vec![SegmentInfo {
                number: 0,
                name: "n/ram".into(),
                media: Media::Ram,
                capacity: 100,
                used: 0,
                near: -1,
            }],
            masters: vec!["m".into()],
            ping_ms: 1000,
            resend_ms: 500,
            master_ms: 3000,
            copy_ms: 5000,
            remember_ms: 60_000,
            doubt_bytes: 100,
            doubt_ms: 10_000,
            stuck_ms: 5_000,
            rest_ms: (15_000, 600_000),
        };
        let mut rig = Self { agent: Agent::new(config, Store::new(8, 16, ring), 0), now: 10_000, actions: Vec::new() };
        rig.on(Event::Tick);
        rig
    }

    /// A node that is in, in term 5, with a stream from this number on.
    fn joined(ring: usize) -> Self {
        let mut rig = Self::new(ring);
        rig.welcome(5, 1 << STREAM_SHIFT, position(0), false);
        rig.drops(Position::default(), position(0), vec![]);
        rig.acknowledge_all();
        rig
    }

    fn acts(&mut self, tell: impl FnOnce(&mut Agent<Store>, Millis, &mut Queue<Action>)) {
        let mut actions = Queue::new();
        tell(&mut self.agent, self.now, &mut actions);
        self.actions.extend(actions);
    }

    fn on(&mut self, event: Event) {
        self.acts(|agent, now, actions| agent.on(event, now, actions));
    }

    fn master(&mut self, message: impl Into<Message>) {
        self.on(Event::Master(0, Frame::telling(message)));
    }

    fn welcome(&mut self, term: u64, next: u64, head: Position, fresh: bool) {
        let (fence_ms, sent_at) = (9000, self.now);
        self.master(Welcome { term, incarnation: 9, next, fresh, apart: false, head, fence_ms, sent_at });
    }

    fn drops(&mut self, after: Position, through: Position, entries: Vec<Dropped>) {
        let entries = entries.into_iter().map(|what| DropEntry { position: through, what }).collect();
        self.master(Drops { term: through.term, after, through, entries });
    }

    /// Reports since the last time that somebody looked.
    fn reports(&mut self) -> Vec<(u64, News)> {
        let actions = std::mem::take(&mut self.actions);
        let reports = actions.into_iter().filter_map(|action| match action {
            Action::Master(_, Frame { message: Message::Report(report), .. }) => Some((report.number, report.news)),
            _ => None,
        });
        reports.collect()
    }

    /// The leader takes everything. Gives what it took.
    fn acknowledge_all(&mut self) -> Vec<News> {
        let mut taken = Vec::new();
        loop {
            let reports = self.reports();
            let Some((last, _)) = reports.last() else { return taken };
            let next = last + 1;
            taken.extend(reports.into_iter().map(|(_, news)| news));
            self.master(Ack {
                term: 5,
                incarnation: 9,
                next,
                facts: u64::MAX,
                sent_at: self.now,
                closed: vec![],
                changed: 0,
            });
        }
    }

    fn ask(&mut self, request: u64, message: impl Into<Message>) -> Option<Message> {
        self.actions.clear();
        self.on(Event::Message(CLIENT, Frame { request, time_left_ms: 1000, message: message.into() }));
        self.actions.iter().find_map(|action| match action {
            Action::Send(CLIENT, frame) if frame.request == request => Some(frame.message.clone()),
            _ => None,
        })
    }

    fn put_status(&mut self, request: u64, put: Put) -> Option<i32> {
        match self.ask(request, put)? {
            Message::PutDone(done) => Some(done.status),
            other => panic!("{other:?}"),
        }
    }

    fn local(&mut self, put: u64) -> Plan {
        let store = self.agent.storage_mut();
        store.put(&key(), PutId::local(put), &[1]).unwrap();
        store.find(&key()).unwrap()
    }

    fn fetch(&self, plan: Plan, into: usize) -> Fetch {
        let name = Name { node: NodeId::of("n"), incarnation: 9, index: plan.index, epoch: plan.epoch };
        let extent = |offset| Extent { region: 1, offset, length: 1 };
        Fetch {
            name,
            key: key(),
            put: PutId(0),
            offset: 0,
            length: 9,
            into: (0..into as u64).map(extent).collect(),
            mover: 0,
            expire_ms: 0,
            stub: false,
            verify: false,
        }
    }
}

fn put(term: u64, after: Position) -> Put {
    Put {
        put: PutId::clustered(term, 3),
        term,
        incarnation: 9,
        after,
        segment: 0,
        key: key(),
        length: 1,
        retain: 0,
        metadata: Metadata::default(),
        hold: false,
        exact: false,
    }
}

#[test]
fn the_drop_log_is_applied_before_anything_is_reported() {
    let mut rig = Rig::new(16);
    let plan = rig.local(1);
    rig.agent.storage_mut().set_position(position(0)).unwrap();
    rig.welcome(5, 1 << STREAM_SHIFT, position(2), false);
    assert!(rig.reports().is_empty());
    rig.drops(position(0), position(1), vec![]);
    assert!(matches!(&rig.reports()[..], [(_, News::Applied(applied))] if applied.position == position(1)));
    rig.drops(position(1), position(2), vec![DropKey { key: key() }.into()]);
    let told = rig.acknowledge_all();
    assert!(matches!(&told[0], News::Applied(applied) if applied.position == position(2)), "{told:?}");
    let lists = |news: &News| matches!(news, News::Range(range) if !range.live.is_empty());
    assert!(!told.iter().any(lists) && told.iter().any(|news| matches!(news, News::SnapshotEnd(_))), "{told:?}");
    assert!(rig.agent.storage_mut().pin(plan, &key(), PutId(0)).is_err());
}

#[test]
fn what_the_ring_has_overwritten_is_told_by_a_snapshot() {
    let mut rig = Rig::joined(2);
    for n in 0..4u8 {
        let key = ObjectKey::new(b"", &[n]).unwrap();
        rig.agent.storage_mut().put(&key, PutId::local(n.into()), &[1]).unwrap();
    }
    rig.on(Event::Tick);
    let told = rig.acknowledge_all();
    let listed: usize = told.iter().map(|news| if let News::Range(range) = news { range.live.len() } else { 0 }).sum();
    assert_eq!(listed, 4, "{told:?}");
    assert!(matches!(told.last(), Some(News::SnapshotEnd(end)) if end.facts == 4));
}

#[test]
fn a_snapshot_ends_behind_the_facts_that_came_meanwhile() {
    let (mut store, mut stream, mut told) = (Store::new(40, 16, 16), Stream::new(1), Vec::new());
    let mut more = |stream: &mut Stream, store: &mut Store| {
        stream.next(store, true, 0, 500, |number, news: &News| told.push((number, news.clone()))).unwrap();
        let next = told.last().map_or(1, |(number, _)| number + 1);
        (stream.acknowledged(next), told.clone())
    };
    let is_end = |(_, news): &(u64, News)| matches!(news, News::SnapshotEnd(_));
    let (_, first) = more(&mut stream, &mut store);
    assert!(!first.iter().any(is_end), "it takes more reports than may be under way: {first:?}");
    // What moves now may leave a place that was not told of yet for one that was.
    store.put(&key(), PutId::local(1), &[1]).unwrap();
    let all = loop {
        if let (false, all) = more(&mut stream, &mut store) {
            break all;
        }
    };
    let facts = all.iter().position(|(_, news)| matches!(news, News::Facts(_))).unwrap();
    assert!(all.iter().position(is_end).is_some_and(|end| end > facts), "{all:?}");
}

#[test]
fn a_snapshot_ends_while_the_ring_is_overwritten_again_and_again() {
    let (mut store, mut stream, mut ended, mut next) = (Store::new(400, 16, 4), Stream::new(1), false, 1);
    for _ in 0..200 {
        // As many facts with each step as the ring holds half of; in all steps together, many times more than it holds.
        store.put(&key(), PutId::local(1), &[1]).unwrap();
        store.drop_key(&key());
        let send = |number, news: &News| (next, ended) = (number + 1, ended || matches!(news, News::SnapshotEnd(_)));
        stream.next(&mut store, true, 0, 500, send).unwrap();
        stream.acknowledged(next);
    }
    assert!(ended);
}

#[test]
fn what_was_applied_is_told_behind_the_facts_that_came_of_it() {
    let mut rig = Rig::joined(16);
    rig.local(1);
    rig.drops(position(0), position(1), vec![DropKey { key: key() }.into()]);
    let told = rig.acknowledge_all();
    let fact = told.iter().position(|n| matches!(n, News::Facts(facts) if facts.facts.len() == 2)).unwrap();
    let applied = told.iter().position(|n| matches!(n, News::Applied(_))).unwrap();
    assert!(fact < applied, "{told:?}");
}

#[test]
fn entries_are_applied_in_order_and_once() {
    let mut rig = Rig::joined(16);
    rig.drops(position(1), position(2), vec![DropKey { key: key() }.into()]);
    assert_eq!(rig.agent.storage().position(), Some(position(0)), "one is missing");
    rig.drops(position(0), position(2), vec![]);
    rig.local(1);
    rig.drops(position(0), position(2), vec![DropKey { key: key() }.into()]);
    assert!(rig.agent.storage().find(&key()).is_some(), "it was put after that entry was applied");
}

#[test]
fn a_put_is_taken_in_the_term_in_which_it_began_and_after_what_was_removed_before() {
    let mut rig = Rig::joined(16);
    assert_eq!(rig.put_status(1, put(4, position(0))), Some(NMC_ERR_STALE));
    assert_eq!(rig.put_status(2, put(5, position(3))), Some(NMC_NOT_READY), "it comes again by itself");
    assert_eq!(rig.put_status(3, put(5, position(0))), None);
    assert!(matches!(rig.actions[..], [Action::Receive { request: 3, .. }, ..]));
    // Another leader comes before its bytes have.
    rig.welcome(6, 1 << STREAM_SHIFT, position(0), false);
    assert!(rig.actions.contains(&Action::Stop(PutId::clustered(5, 3))));
    rig.on(Event::Received(PutId::clustered(5, 3), true));
    assert!(rig.agent.storage().find(&key()).is_none());
}

/// One that was stopped for a while, or had no processor, goes on as the member that it is.
#[test]
fn a_node_that_was_asleep_does_not_take_that_for_silence_of_its_leader() {
    let mut rig = Rig::joined(16);
    let is_out = |rig: &mut Rig| {
        let actions = std::mem::take(&mut rig.actions);
        let joins = |action| matches!(action, Action::Master(_, Frame { message: Message::Join(_), .. }));
        actions.into_iter().any(joins)
    };
    rig.now += 8000;
    rig.on(Event::Tick);
    assert!(!is_out(&mut rig));
    assert_eq!(rig.put_status(1, put(5, position(0))), None, "it is taken");
    rig.on(Event::Received(PutId::clustered(5, 3), true));
    // Control: awake, and nobody answers.
    for _ in 0..16 {
        rig.now += 250;
        rig.on(Event::Tick);
    }
    assert!(is_out(&mut rig));
    let next = Put { put: PutId::clustered(5, 4), ..put(5, position(0)) };
    assert_eq!(rig.put_status(2, next), Some(NMC_NOT_READY), "until it is a member again");
}

#[test]
fn a_put_that_comes_again_finds_what_came_of_it() {
    let mut rig = Rig::joined(16);
    assert_eq!(rig.put_status(1, put(5, position(0))), None);
    assert_eq!(rig.put_status(2, put(5, position(0))), Some(NMC_ERR_BUSY), "it is under way");
    rig.on(Event::Received(PutId::clustered(5, 3), true));
    assert_eq!(rig.put_status(3, put(5, position(0))), Some(NMC_OK));
    assert_eq!(rig.agent.storage().live().count(), 1);
}

#[test]
fn a_put_that_ended_without_this_node_is_refused_however_late_it_comes() {
    let mut rig = Rig::joined(16);
    assert_eq!(rig.put_status(1, put(5, position(0))), None);
    let (incarnation, index, epoch) = (9, crate::cluster::types::NO_INDEX, 0);
    let ruled_out = DropReplica { incarnation, index, epoch, key: key(), put: PutId::clustered(5, 3) };
    rig.drops(position(0), position(1), vec![ruled_out.into()]);
    rig.on(Event::Received(PutId::clustered(5, 3), true));
    assert!(rig.agent.storage().find(&key()).is_none());
    assert_eq!(rig.put_status(2, put(5, position(0))), Some(NMC_ERR_STALE));
}

#[test]
fn an_owner_drops_by_name_and_keeps_what_was_put_since() {
    let mut rig = Rig::joined(16);
    let old = rig.local(1);
    rig.agent.storage_mut().retire(old.index as usize);
    rig.local(2);
    let replica = DropReplica { incarnation: 9, index: old.index, epoch: old.epoch, key: key(), put: PutId::local(1) };
    rig.drops(position(0), position(1), vec![replica.clone().into()]);
    assert!(rig.agent.storage().find(&key()).is_some());
    // A name of a former life says nothing: the put does.
    let former = DropReplica { incarnation: 8, put: PutId::local(2), ..replica };
    rig.drops(position(1), position(2), vec![former.into()]);
    assert!(rig.agent.storage().find(&key()).is_none());
}

#[test]
fn a_node_that_may_count_as_away_serves_nobody_until_it_is_back() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(1);
    let fetch = rig.fetch(plan, 0);
    assert_eq!(rig.ask(1, fetch.clone()), None);
    assert!(rig.actions.iter().any(|action| matches!(action, Action::SendValue { .. })));
    rig.now += 9_000;
    assert!(matches!(rig.ask(2, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_UNAVAILABLE));
    let other = Fetch { key: ObjectKey::new(b"", b"other").unwrap(), ..fetch };
    rig.master(Ack { term: 5, incarnation: 9, next: 0, facts: 0, sent_at: rig.now, closed: vec![], changed: 0 });
    rig.welcome(5, 1 << STREAM_SHIFT, position(0), false);
    assert!(matches!(rig.ask(3, other), Some(Message::Fetched(f)) if f.status == NMC_ERR_NOT_FOUND), "name and key");
}

#[test]
fn a_value_of_another_put_is_not_given_instead() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(2);
    let fetch = Fetch { put: PutId::local(1), expire_ms: 50, ..rig.fetch(plan, 0) };
    assert!(matches!(rig.ask(1, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_NOT_FOUND));
    assert_eq!(rig.ask(2, Fetch { put: PutId::local(2), ..fetch }), None);
    assert!(rig.actions.iter().any(|action| matches!(action, Action::SendValue { .. })));
}

/// What cannot be brought to where it is sent from is asked for again, and nobody holds it meanwhile. Movers take it where it is.
#[test]
fn a_value_that_is_not_ready_is_refused_and_let_go() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(2);
    let pins = |rig: &Rig| rig.agent.storage().headers[plan.index as usize].pins;
    rig.agent.storage_mut().unready = true;
    assert!(matches!(rig.ask(1, rig.fetch(plan, 0)), Some(Message::Fetched(f)) if f.status == NMC_ERR_BUSY));
    assert_eq!(pins(&rig), 0);
    assert_eq!(rig.ask(2, rig.fetch(plan, 1)), None);
    assert_eq!(pins(&rig), 1, "this one is moved");
    rig.agent.storage_mut().unready = false;
    assert_eq!(rig.ask(3, rig.fetch(plan, 0)), None);
    assert_eq!(pins(&rig), 2, "control: this one is on its way");
}

/// How often a node said that it is there, and that it wants to join, in so many seconds; the leader answers each ping.
fn said_in(rig: &mut Rig, seconds: u64) -> (usize, usize) {
    let (mut pings, mut joins) = (0, 0);
    for _ in 0..seconds * 4 {
        rig.now += 250;
        rig.actions.clear();
        rig.on(Event::Tick);
        let said: Vec<Message> = rig
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Master(_, frame) => Some(frame.message.clone()),
                _ => None,
            })
            .collect();
        for message in said {
            match message {
                Message::Ping(ping) => {
                    pings += 1;
                    let (incarnation, next, sent_at) = (9, 0, ping.sent_at);
                    rig.master(Ack { term: 5, incarnation, next, facts: 0, sent_at, closed: vec![], changed: 0 });
                }
                Message::Join(_) => joins += 1,
                _ => {}
            }
        }
    }
    (pings, joins)
}

#[test]
fn a_node_whose_store_cannot_follow_is_away_until_it_can() {
    let mut rig = Rig::joined(16);
    rig.agent.storage_mut().ill = true;
    rig.drops(position(0), position(1), vec![DropKey { key: key() }.into()]);
    let (pings, joins) = said_in(&mut rig, 4);
    assert!(pings >= 3 && joins == 0, "for a moment nobody notices");
    said_in(&mut rig, 4);
    let (pings, joins) = said_in(&mut rig, 10);
    assert_eq!((pings, joins), (0, 0), "long enough that it counts as away");
    assert!(said_in(&mut rig, 6).1 > 0, "it tries again");
    rig.welcome(5, 2 << STREAM_SHIFT, position(1), false);
    rig.drops(position(0), position(1), vec![DropKey { key: key() }.into()]);
    said_in(&mut rig, 8);
    assert_eq!(said_in(&mut rig, 20), (0, 0), "the next time it stays away longer");
    assert!(said_in(&mut rig, 12).1 > 0);
    rig.agent.storage_mut().ill = false;
    rig.welcome(5, 3 << STREAM_SHIFT, position(1), false);
    rig.drops(position(0), position(1), vec![DropKey { key: key() }.into()]);
    assert!(said_in(&mut rig, 20).0 >= 19, "and stays when it can");
}

#[test]
fn a_late_welcome_does_not_begin_the_stream_again() {
    let mut rig = Rig::joined(16);
    rig.master(Rejoin { term: 5 });
    rig.welcome(5, 3 << STREAM_SHIFT, position(0), false);
    let first = rig.acknowledge_all();
    assert!(first.iter().any(|news| matches!(news, News::SnapshotEnd(_))), "the leader knew nothing of it");
    rig.master(Rejoin { term: 5 });
    rig.welcome(5, 1 << STREAM_SHIFT, position(0), false);
    rig.local(1);
    rig.on(Event::Tick);
    assert!(rig.reports().is_empty(), "it is not in");
    rig.welcome(5, 3 << STREAM_SHIFT, position(0), false);
    assert!(rig.reports().iter().all(|(number, _)| number >> STREAM_SHIFT == 3));
}

#[test]
fn a_welcome_of_a_former_moment_drops_nothing() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(1);
    rig.now += 5_000;
    rig.master(Rejoin { term: 5 });
    let (head, next, sent_at) = (position(0), 1 << STREAM_SHIFT, rig.now - 1_000);
    let late = Welcome { term: 5, incarnation: 9, next, fresh: true, apart: false, head, fence_ms: 9000, sent_at };
    rig.master(late.clone());
    assert!(rig.agent.storage_mut().find(&key()) == Some(plan) && !rig.agent.is_in());
    rig.master(Welcome { sent_at: rig.now, ..late });
    assert!(rig.agent.storage_mut().find(&key()).is_none(), "one that answers it does");
}

#[test]
fn a_copy_is_published_after_the_leaders_word_and_not_after_a_drop() {
    let mut rig = Rig::joined(16);
    let name = Name { node: NodeId(1), incarnation: 1, index: 1, epoch: 1 };
    let (put, length, media) = (PutId::local(4), 1, Media::Ram);
    let from = Replica { name, put, length, media, endpoint: String::new() };
    for (round, drop_first) in [(1, false), (2, true)] {
        rig.actions.clear();
        rig.on(Event::Keep(key(), from.clone()));
        assert!(rig.actions.contains(&Action::Describe(key(), from.clone())));
        rig.on(Event::Described(key(), from.clone(), Metadata(vec![1]), 0));
        rig.on(Event::Filled(round, true));
        assert!(rig.agent.storage().find(&key()).is_none());
        let told = rig.acknowledge_all();
        assert!(told.iter().any(|n| matches!(n, News::Announce(a) if a.ticket == round)), "{told:?}");
        if drop_first {
            rig.drops(position(round - 1), position(round), vec![DropKey { key: key() }.into()]);
        }
        rig.master(Announced { term: 5, incarnation: 9, ticket: round, status: NMC_OK });
        assert_eq!(rig.agent.storage().find(&key()).is_some(), !drop_first);
        rig.drops(position(round - 1), position(round), vec![DropKey { key: key() }.into()]);
    }
}

/// Whether there is a page that nobody may write to.
fn room(rig: &mut Rig) -> bool {
    let wanted = ObjectKey::new(b"", b"other").unwrap();
    let metadata = Metadata::default();
    let (put, segment, retain) = (PutId::local(5), 0, 0);
    let wanted =
        Wanted { put, key: &wanted, length: 1, segment, exact: true, retain, metadata: &metadata, is_copy: false };
    let plan = rig.agent.storage_mut().open(&wanted);
    plan.is_ok_and(|plan| {
        rig.agent.storage_mut().abandon(plan);
        true
    })
}

#[test]
fn pages_of_a_late_writer_stay_out_of_use_until_it_has_stopped_or_the_mover_was_renewed() {
    let mut rig = Rig::joined(16);
    let reserve = Reserve { put: Put { length: 16, ..put(5, position(0)) }, writer: "w".into() };
    assert!(matches!(rig.ask(1, reserve), Some(Message::Reserved(r)) if r.status == NMC_OK && r.extents.len() == 16));
    rig.now += 1_000;
    rig.on(Event::Tick);
    assert!(!room(&mut rig));
    let late = rig.ask(2, Commit { put: PutId::clustered(5, 3) });
    assert!(matches!(late, Some(Message::PutDone(done)) if done.status == NMC_ERR_STALE));
    rig.now += 10_000;
    rig.actions.clear();
    rig.on(Event::Tick);
    assert!(rig.actions.contains(&Action::Renew(1)) && !room(&mut rig));
    rig.on(Event::Renewed(1));
    assert!(room(&mut rig));
}

/// What was reserved was removed before it was committed. A repeat of both comes late: nobody has written to those pages.
#[test]
fn a_reservation_that_came_to_nothing_is_not_made_again() {
    let mut rig = Rig::joined(16);
    let reserve = || Reserve { put: put(5, position(0)), writer: "w".into() };
    let commit = || Commit { put: PutId::clustered(5, 3) };
    assert!(matches!(rig.ask(1, reserve()), Some(Message::Reserved(r)) if r.status == NMC_OK));
    rig.agent.storage_mut().drop_key(&key());
    assert!(matches!(rig.ask(2, commit()), Some(Message::PutDone(done)) if done.status == NMC_ERR_STALE));
    assert!(matches!(rig.ask(3, reserve()), Some(Message::Reserved(r)) if r.status == NMC_ERR_STALE));
    assert!(matches!(rig.ask(4, commit()), Some(Message::PutDone(done)) if done.status == NMC_ERR_STALE));
    assert!(rig.agent.storage().find(&key()).is_none());

    // Nor one whose writer has stopped, also if that comes before it.
    for comes_first in [true, false] {
        let mut rig = Rig::joined(16);
        if comes_first {
            assert!(matches!(rig.ask(1, reserve()), Some(Message::Reserved(r)) if r.status == NMC_OK));
        }
        rig.ask(2, Stopped { put: PutId::clustered(5, 3), begun: false });
        assert!(matches!(rig.ask(3, reserve()), Some(Message::Reserved(r)) if r.status == NMC_ERR_STALE));
        assert!(matches!(rig.ask(4, commit()), Some(Message::PutDone(done)) if done.status == NMC_ERR_STALE));
        assert!(rig.agent.storage().find(&key()).is_none());
    }
}

#[test]
fn pages_of_a_writer_that_has_stopped_are_free_only_if_it_had_not_begun() {
    // Each of them under an id of its own.
    let id = |n| PutId::clustered(5, n);
    let put = |n| Reserve { put: Put { put: id(n), length: 16, ..put(5, position(0)) }, writer: "w".into() };
    let stopped = |n, begun| Stopped { put: id(n), begun };
    let mut rig = Rig::joined(16);
    assert!(matches!(rig.ask(1, put(3)), Some(Message::Reserved(r)) if r.status == NMC_OK));
    assert!(matches!(rig.ask(2, stopped(3, false)), Some(Message::Answer(_))) && room(&mut rig));
    assert!(matches!(rig.ask(3, put(4)), Some(Message::Reserved(r)) if r.status == NMC_OK));
    assert!(matches!(rig.ask(4, stopped(4, true)), Some(Message::Answer(_))) && !room(&mut rig));
    rig.acts(|agent, _, actions| agent.renew_now(actions));
    rig.on(Event::Renewed(1));
    assert!(room(&mut rig));
    // What was reserved before a renewal, and is given up after it, is not in doubt at all.
    assert!(matches!(rig.ask(5, put(5)), Some(Message::Reserved(r)) if (r.status, r.mover) == (NMC_OK, 1)));
    rig.acts(|agent, _, actions| agent.renew_now(actions));
    rig.on(Event::Renewed(2));
    assert!(!room(&mut rig), "it may be committed");
    assert!(matches!(rig.ask(6, stopped(5, true)), Some(Message::Answer(_))) && room(&mut rig));
}

#[test]
fn who_asked_for_a_value_is_told_whether_bytes_of_it_may_still_arrive() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(1);
    let fetch = rig.fetch(plan, 1);
    let told = |rig: &mut Rig, event| {
        rig.actions.clear();
        rig.on(event);
        rig.actions.iter().find_map(|action| match action {
            Action::Send(_, frame) => match &frame.message {
                Message::Fetched(fetched) => Some(fetched.status),
                _ => None,
            },
            _ => None,
        })
    };
    let cases = [
        (Event::Sent(1, true), NMC_OK),
        (Event::Sent(2, false), NMC_ERR_TIMEOUT),
        (Event::Unsent(3), NMC_ERR_UNSUPPORTED),
    ];
    for (request, (event, status)) in (10..).zip(cases) {
        assert_eq!(rig.ask(request, fetch.clone()), None);
        assert_eq!(told(&mut rig, event), Some(status));
    }
    // Cancelled when all is over, and nobody knows how it went.
    let cancelled = rig.ask(900, CancelFetch { request: 11, incarnation: 9 });
    assert!(matches!(cancelled, Some(Message::Answer(answer)) if answer.status == NMC_ERR_TIMEOUT));
    let former = rig.ask(900, CancelFetch { request: 899, incarnation: 8 });
    assert!(matches!(former, Some(Message::Answer(answer)) if answer.status == NMC_ERR_TIMEOUT), "nobody here knows");
    let never = rig.ask(902, CancelFetch { request: 901, incarnation: 9 });
    assert!(matches!(never, Some(Message::Answer(answer)) if answer.status == NMC_OK));
}

#[test]
fn a_request_to_write_that_comes_late_or_again_writes_nothing() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(1);
    let fetch = rig.fetch(plan, 1);
    let pushes = |rig: &Rig| rig.actions.iter().filter(|action| matches!(action, Action::Push { .. })).count();
    assert_eq!((rig.ask(5, fetch.clone()), pushes(&rig)), (None, 1));
    rig.on(Event::Sent(1, true));
    assert!(matches!(rig.ask(5, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_TIMEOUT));
    assert_eq!(pushes(&rig), 0);
    // Cancelled before it has come.
    assert!(matches!(rig.ask(7, CancelFetch { request: 6, incarnation: 9 }), Some(Message::Answer(_))));
    assert!(matches!(rig.ask(6, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_TIMEOUT));
    assert_eq!(pushes(&rig), 0);
    // Refused while the node served nobody, and come again when it does.
    rig.now += 9_000;
    assert!(matches!(rig.ask(8, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_UNAVAILABLE));
    rig.welcome(5, 1 << STREAM_SHIFT, position(0), false);
    assert!(matches!(rig.ask(8, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_TIMEOUT));
    assert_eq!((rig.ask(9, fetch), pushes(&rig)), (None, 1));
}

#[test]
fn a_renewal_ends_what_began_before_it_and_nothing_else() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(1);
    let fetch = rig.fetch(plan, 1);
    rig.ask(1, fetch.clone());
    rig.now += 10_000;
    rig.master(Ack { term: 5, incarnation: 9, next: 0, facts: 0, sent_at: rig.now, closed: vec![], changed: 0 });
    rig.welcome(5, 1 << STREAM_SHIFT, position(0), false);
    assert!(rig.actions.contains(&Action::Renew(1)), "the push has taken too long");
    rig.ask(2, fetch);
    rig.actions.clear();
    rig.on(Event::Renewed(1));
    let told: Vec<u64> = rig
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Send(CLIENT, frame) => Some(frame.request),
            _ => None,
        })
        .collect();
    assert_eq!(told, [1]);
}

#[test]
fn sync_waits_until_the_leader_knows_or_time_is_up() {
    let mut rig = Rig::joined(16);
    rig.local(1);
    rig.on(Event::Sync(1, 500));
    rig.on(Event::Sync(2, 5000));
    rig.now += 600;
    rig.on(Event::Tick);
    rig.master(Ack { term: 5, incarnation: 9, next: 0, facts: 1, sent_at: rig.now, closed: vec![], changed: 0 });
    let synced: Vec<(u64, i32)> = rig
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Synced(ticket, status) => Some((*ticket, *status)),
            _ => None,
        })
        .collect();
    assert_eq!(synced, [(1, NMC_ERR_TIMEOUT), (2, NMC_OK)]);
}

#[test]
fn a_node_that_must_drop_all_is_in_only_after_it_has() {
    let mut rig = Rig::new(16);
    rig.agent.storage_mut().put(&key(), PutId::local(1), &[7]).unwrap();
    rig.agent.storage_mut().fails = true;
    rig.on(Event::Sync(1, 5000));
    rig.welcome(5, 1 << STREAM_SHIFT, position(3), true);
    rig.on(Event::Sync(2, 5000));
    for ticket in [1, 2] {
        assert!(rig.actions.contains(&Action::Synced(ticket, NMC_ERR_STALE)), "what was put is not to be found");
    }
    // Entries that follow do not make up for it, nor does time.
    rig.agent.storage_mut().put(&key(), PutId::local(2), &[8]).unwrap();
    rig.drops(Position::default(), position(3), vec![]);
    rig.on(Event::Tick);
    assert!(rig.reports().is_empty() && !rig.agent.serves(rig.now));
    rig.agent.storage_mut().fails = false;
    rig.on(Event::Tick);
    assert!(rig.agent.storage().find(&key()).is_none() && rig.agent.serves(rig.now));
}

#[test]
fn a_node_that_is_where_the_log_ends_is_in_as_soon_as_that_can_be_kept() {
    let mut rig = Rig::joined(16);
    rig.agent.storage_mut().fails = true;
    rig.welcome(6, 2 << STREAM_SHIFT, position(0), false);
    rig.on(Event::Tick);
    assert!(!rig.reports().iter().any(|(_, news)| matches!(news, News::SnapshotEnd(_))));
    rig.agent.storage_mut().fails = false;
    rig.on(Event::Tick);
    assert!(rig.reports().iter().any(|(_, news)| matches!(news, News::SnapshotEnd(_))));
}

#[test]
fn a_node_that_has_dropped_all_goes_on_with_the_log_though_its_tier_was_apart() {
    let mut rig = Rig::new(16);
    rig.agent.storage_mut().set_position(position(1)).unwrap();
    let (fence_ms, sent_at, next) = (9000, rig.now, 1 << STREAM_SHIFT);
    let (fresh, apart, head) = (true, true, position(3));
    rig.master(Welcome { term: 5, incarnation: 9, next, fresh, apart, head, fence_ms, sent_at });
    rig.drops(position(3), position(4), vec![]);
    assert_eq!(rig.agent.storage().position(), Some(position(4)));
}

#[test]
fn what_the_leader_wants_closed_is_closed_and_open_again_at_the_end() {
    let mut rig = Rig::new(16);
    rig.agent.storage_mut().closed = true;
    rig.welcome(5, 1 << STREAM_SHIFT, position(0), false);
    rig.drops(Position::default(), position(0), vec![]);
    rig.acknowledge_all();
    assert!(!rig.agent.storage().closed, "a former agent has closed it, and this leader knows nothing of that");
    let tell = |rig: &mut Rig, changed: u64, closed: Vec<u32>| {
        let next = 1 << STREAM_SHIFT;
        rig.master(Ack { term: 5, incarnation: 9, next, facts: 0, sent_at: rig.now, closed, changed });
        rig.agent.storage().closed
    };
    assert!(tell(&mut rig, 1, vec![0]) && tell(&mut rig, 1, vec![0]));
    assert!(!tell(&mut rig, 2, vec![]) && tell(&mut rig, 3, vec![0]));
    assert!(tell(&mut rig, 2, vec![]), "that has come late");
    rig.now += 1000;
    rig.actions.clear();
    rig.on(Event::Tick);
    let says = |action: &Action| matches!(action, Action::Master(_, Frame { message: Message::Ping(ping), .. }) if (&ping.closed[..], ping.changed) == (&[0], 3));
    assert!(rig.actions.iter().any(says), "{:?}", rig.actions);
    rig.on(Event::Leave);
    assert!(!rig.agent.storage().closed, "the store is its programs' own again");
}

#[test]
fn a_store_that_leaves_with_nothing_is_as_one_that_never_was_in_a_cluster() {
    // What has no bytes is something too.
    for (value, empty) in [(None, true), (Some(&[1][..]), false), (Some(&[][..]), false)] {
        let mut rig = Rig::joined(16);
        if let Some(pages) = value {
            rig.agent.storage_mut().put(&key(), PutId::local(1), pages).unwrap();
        }
        assert_eq!(rig.agent.storage().position(), Some(position(0)));
        rig.on(Event::Leave);
        let said = rig.actions.iter().find_map(|action| match action {
            Action::Master(_, Frame { message: Message::Leave(leave), .. }) => Some(leave.empty),
            _ => None,
        });
        assert_eq!((said, rig.agent.storage().position().is_none()), (Some(empty), empty), "{value:?}");
    }
    // Nobody is to forget a store whose position is still there.
    let mut rig = Rig::joined(16);
    rig.agent.storage_mut().fails = true;
    rig.on(Event::Leave);
    let told =
        |action: &Action| matches!(action, Action::Master(_, Frame { message: Message::Leave(l), .. }) if !l.empty);
    assert!(rig.actions.iter().any(told) && rig.agent.storage().position().is_some());
}

#[test]
fn a_new_store_is_in_a_cluster_only_when_the_leader_has_heard_of_it() {
    let mut rig = Rig::new(16);
    rig.local(1);
    rig.welcome(5, 1 << STREAM_SHIFT, position(2), false);
    rig.drops(Position::default(), position(2), vec![]);
    let tells_what_there_is = |news: &News| matches!(news, News::Range(_) | News::SnapshotEnd(_) | News::Facts(_));
    let reports = rig.reports();
    assert!(matches!(&reports[0].1, News::Applied(applied) if applied.position == position(2)), "{reports:?}");
    assert!(!reports.iter().any(|(_, news)| tells_what_there_is(news)), "{reports:?}");
    assert_eq!(rig.agent.storage().position(), None, "the leader may still forget it, and then it has to be new");
    let ack = |next| Ack { term: 5, incarnation: 9, next, facts: 0, sent_at: 10_000, closed: vec![], changed: 0 };
    // An answer to a ping, before the report has come; and while nothing can be kept.
    rig.master(ack(1 << STREAM_SHIFT));
    assert_eq!(rig.agent.storage().position(), None);
    rig.agent.storage_mut().fails = true;
    rig.master(ack(reports.last().unwrap().0 + 1));
    assert!(!rig.reports().iter().any(|(_, news)| tells_what_there_is(news)));
    rig.agent.storage_mut().fails = false;
    rig.master(ack(reports.last().unwrap().0 + 1));
    assert_eq!(rig.agent.storage().position(), Some(position(2)));
    assert!(rig.reports().iter().any(|(_, news)| tells_what_there_is(news)));
}

#[test]
fn a_node_whose_store_has_another_tier_begins_anew() {
    let mut rig = Rig::joined(16);
    let plan = rig.local(1);
    let fetch = rig.fetch(plan, 0);
    assert!(rig.agent.serves(rig.now));
    let other = ObjectKey::new(b"", b"other").unwrap();
    rig.ask(3, Put { key: other, ..put(5, position(0)) });
    rig.actions.clear();
    let offer = Offer { store: 2, slots: 4, segments: vec![] };
    rig.acts(|agent, now, actions| agent.begin_anew(10, offer, now, actions));
    let left = |action: &Action| {
        let Action::Master(_, Frame { message: Message::Leave(leave), .. }) = action else { return false };
        (leave.incarnation, leave.empty) == (9, false)
    };
    assert!(rig.actions.iter().any(left), "the former life ends");
    assert!(rig.actions.iter().any(|action| matches!(action, Action::Stop(_))), "and what it was given");
    rig.on(Event::Tick);
    let joined = rig.actions.iter().find_map(|action| match action {
        Action::Master(_, Frame { message: Message::Join(join), .. }) => Some(join.clone()),
        _ => None,
    });
    let join = joined.unwrap();
    assert_eq!((join.incarnation, join.store, join.slots, join.since), (10, 2, 4, Some(position(0))));
    assert!(!rig.agent.serves(rig.now));
    assert!(matches!(rig.ask(4, fetch), Some(Message::Fetched(fetched)) if fetched.status == NMC_ERR_NOT_FOUND));
    assert_eq!(rig.put_status(5, Put { put: PutId::clustered(5, 8), ..put(5, position(0)) }), Some(NMC_ERR_STALE));
    // All is told again.
    let (next, sent_at) = (2 << STREAM_SHIFT, rig.now);
    rig.master(Welcome {
        term: 5,
        incarnation: 10,
        next,
        fresh: false,
        apart: false,
        head: position(0),
        fence_ms: 9000,
        sent_at,
    });
    let lists = |(_, news): &(u64, News)| matches!(news, News::Range(range) if !range.live.is_empty());
    assert!(rig.reports().iter().any(lists) && rig.agent.serves(rig.now));
}

#[test]
fn what_is_held_back_is_published_when_its_checksum_is_right_and_never_else() {
    let said = |rig: &Rig| {
        rig.actions.iter().find_map(|action| match action {
            Action::Master(_, Frame { message: Message::Verified(verified), .. }) => {
                Some((verified.status, verified.done.is_some()))
            }
            _ => None,
        })
    };
    for right in [true, false] {
        let mut rig = Rig::joined(64);
        let held = Put { hold: true, ..put(5, position(0)) };
        rig.ask(1, held.clone());
        rig.on(Event::Received(held.put, true));
        let answer = rig.actions.iter().find_map(|action| match action {
            Action::Send(CLIENT, Frame { message: Message::PutDone(done), .. }) => Some(done.clone()),
            _ => None,
        });
        let Some(PutDone { status: NMC_OK, done: Some(done) }) = answer else { panic!("{answer:?}") };
        assert_eq!(done.fact, 0);
        assert!(rig.agent.storage().find(&held.key).is_none(), "nobody has compared it");
        let plan = Plan { index: done.name.index, epoch: done.name.epoch };
        let sum = rig.agent.storage().checksum(plan).unwrap();
        let crc = if right { sum } else { !sum };
        let verify = Verify { term: 5, incarnation: 9, put: held.put, crc };
        // It may be asked again, also for another checksum.
        for _ in 0..2 {
            rig.actions.clear();
            rig.master(verify.clone());
            let Some((status, published)) = said(&rig) else { panic!("{:?}", rig.actions) };
            assert_eq!((status == NMC_OK, published), (right, right));
            assert_eq!(rig.agent.storage().find(&held.key).is_some(), right);
        }
        rig.actions.clear();
        rig.master(Verify { crc: !crc, ..verify });
        assert!(said(&rig).is_some_and(|(status, published)| status != NMC_OK && !published));
    }
    // What is given up meanwhile is gone at once: its key can be put again.
    let mut rig = Rig::joined(64);
    let held = Put { hold: true, ..put(5, position(0)) };
    rig.ask(1, held.clone());
    rig.on(Event::Received(held.put, true));
    let again = Put { put: PutId::clustered(5, 77), ..held.clone() };
    assert_eq!(rig.put_status(2, again.clone()), Some(NMC_ERR_EXISTS), "the key is taken as long as that is held back");
    let replica = DropReplica { incarnation: 9, index: NO_INDEX, epoch: 0, key: key(), put: held.put };
    rig.drops(position(0), position(1), vec![replica.into()]);
    assert_eq!(rig.put_status(3, again), None);
    rig.actions.clear();
    rig.master(Verify { term: 5, incarnation: 9, put: held.put, crc: 0 });
    assert!(said(&rig).is_some_and(|(status, published)| status != NMC_OK && !published));
    // What was not held back cannot be compared.
    let mut rig = Rig::joined(64);
    let plain = put(5, position(0));
    rig.ask(1, plain.clone());
    rig.on(Event::Received(plain.put, true));
    rig.actions.clear();
    rig.master(Verify { term: 5, incarnation: 9, put: plain.put, crc: 0 });
    assert_eq!(said(&rig), Some((NMC_ERR_INVALID_ARG, false)));
}

#[test]
fn a_stub_is_apart_from_the_values_of_its_namespace_and_others_do_not_see_that() {
    let mut rig = Rig::joined(16);
    let whole = PutId::striped(5, 3);
    let stub = Put { put: whole, length: 2, ..put(5, Position::default()) };
    assert_eq!(rig.put_status(1, stub), None);
    rig.on(Event::Received(whole, true));
    let plan = rig.agent.storage().find(&key().stub()).unwrap();
    assert!(rig.agent.storage().look(&key()).is_none(), "programs of the node that look for the key find nothing");
    let told = rig.acknowledge_all();
    let is_it = |fact: &Fact| matches!(fact, Fact::Published(p) if p.key == key() && p.put == whole && p.length == 2);
    assert!(told.iter().any(|news| matches!(news, News::Facts(facts) if facts.facts.iter().any(is_it))), "{told:?}");
    // A value of its own is beside it.
    let own = rig.local(1);
    assert_ne!(own, plan);
    let fetch = Fetch { length: 0, ..rig.fetch(plan, 0) };
    assert!(matches!(rig.ask(2, fetch.clone()), Some(Message::Fetched(f)) if f.status == NMC_ERR_NOT_FOUND));
    assert_eq!(rig.ask(3, Fetch { stub: true, ..fetch }), None);
    let sent = rig.actions.iter().find_map(|action| match action {
        Action::SendValue { frame: Frame { message: Message::Fetched(fetched), .. }, .. } => Some(fetched.clone()),
        _ => None,
    });
    assert_eq!(sent.map(|fetched| (fetched.put, fetched.length, fetched.follows)), Some((whole, 2, 0)));
    // It is dropped by name, and alone.
    let replica = DropReplica { incarnation: 9, index: plan.index, epoch: plan.epoch, key: key(), put: whole };
    rig.drops(position(0), position(1), vec![replica.into()]);
    let has =
        |rig: &Rig| (rig.agent.storage().find(&key()).is_some(), rig.agent.storage().find(&key().stub()).is_some());
    assert_eq!(has(&rig), (true, false));
    // With its key, and with its namespace.
    for (number, what) in
        [DropKey { key: key() }.into(), DropSpace { space: Some(Space(vec![])) }.into()].into_iter().enumerate()
    {
        let store = rig.agent.storage_mut();
        let _ = store.put(&key(), PutId::local(4), &[1]);
        store.put(&key().stub(), PutId::striped(5, 9), &[1, 2]).unwrap();
        assert_eq!(has(&rig), (true, true));
        let number = number as u64;
        rig.drops(position(1 + number), position(2 + number), vec![what]);
        assert_eq!(has(&rig), (false, false));
    }
}

#[test]
fn who_takes_a_value_for_longer_than_it_said_does_not_keep_it_from_being_evicted() {
    // For as long as it says it waits, and 10 s; for longer than a minute if it has said nothing, or more.
    for (time_left_ms, most) in [(1_000, 11_000), (0, 70_000), (u32::MAX, 70_000)] {
        let mut rig = Rig::joined(64);
        let plan = rig.local(1);
        let pins = |rig: &Rig| rig.agent.storage().header(plan).unwrap().pins;
        for request in 1..3 {
            let message = rig.fetch(plan, 0).into();
            rig.on(Event::Message(CLIENT, Frame { request, time_left_ms, message }));
        }
        assert_eq!(pins(&rig), 2);
        rig.actions.clear();
        let closed = |rig: &Rig| rig.actions.iter().filter(|action| **action == Action::Close(CLIENT)).count();
        rig.now += most - 1;
        rig.on(Event::Tick);
        assert_eq!(closed(&rig), 0);
        rig.now += 1;
        rig.on(Event::Tick);
        assert!(closed(&rig) > 0);
        rig.actions.clear();
        rig.now += most;
        rig.on(Event::Tick);
        assert_eq!(closed(&rig), 0, "it is said once");
        (1..40).for_each(|pin| rig.on(Event::Sent(pin, false)));
        assert_eq!(pins(&rig), 0);
    }
}

#[test]
fn what_comes_from_the_disk_keeps_nobody_waiting_and_is_given_to_who_still_wants_it() {
    let mut rig = Rig::joined(64);
    let other = ObjectKey::new(b"", b"other").unwrap();
    let plan = rig.local(1);
    let store = rig.agent.storage_mut();
    store.open_tier(Directory::new(3), 3);
    store.offer("n", 1);
    let slot = store.enter(plan).unwrap();
    let epoch = store.record(slot).unwrap().epoch;
    store.retire(plan.index as usize);
    store.put(&other, PutId::local(2), &[8]).unwrap();
    let in_memory = store.find(&other).unwrap();
    let fetch = rig.fetch(Plan { index: ON_DISK | u32::try_from(slot).unwrap(), epoch }, 0);
    let near = Fetch { key: other, ..rig.fetch(in_memory, 0) };
    let serve = |rig: &mut Rig| {
        let served = |action: &Action| match action {
            Action::SendValue { frame, .. } => Some((frame.request, NMC_OK)),
            Action::Send(_, Frame { request, message: Message::Fetched(fetched), .. }) => {
                Some((*request, fetched.status))
            }
            _ => None,
        };
        let list: Vec<_> = rig.actions.iter().filter_map(served).collect();
        rig.actions.clear();
        list
    };
    let wait = |rig: &mut Rig| {
        rig.actions.clear();
        (0..12).for_each(|_| rig.on(Event::Tick));
    };
    // One that is behind it is served first; asking twice does not make two of it.
    assert_eq!(rig.ask(1, fetch.clone()), None);
    assert_eq!(serve(&mut rig), []);
    assert_eq!(rig.ask(1, fetch.clone()), None);
    assert_eq!(rig.ask(2, near.clone()), None);
    assert_eq!(serve(&mut rig), [(2, NMC_OK)]);
    wait(&mut rig);
    assert_eq!(serve(&mut rig), [(1, NMC_OK)]);
    // It is on the disk alone again.
    let to_disk = |rig: &mut Rig| {
        let pins: Vec<u64> = (1..40).collect();
        pins.into_iter().for_each(|pin| rig.on(Event::Sent(pin, true)));
        let store = rig.agent.storage_mut();
        let found = store.find(&key()).unwrap();
        store.retire(found.index as usize);
        rig.actions.clear();
    };
    to_disk(&mut rig);
    // Cancelled, or its connection has ended: nothing of it is given.
    rig.ask(3, fetch.clone());
    let cancelled = rig.ask(4, CancelFetch { request: 3, incarnation: 9 });
    assert!(matches!(cancelled, Some(Message::Answer(answer)) if answer.status == NMC_OK));
    rig.ask(5, fetch.clone());
    rig.on(Event::Closed(CLIENT));
    wait(&mut rig);
    assert_eq!(serve(&mut rig), []);
    assert!(rig.agent.storage().find(&key()).is_none(), "nor read");
    // Whoever asked does not wait so long.
    rig.ask(6, fetch.clone());
    rig.now += 1000;
    rig.on(Event::Tick);
    assert_eq!(serve(&mut rig), [(6, NMC_ERR_UNAVAILABLE)]);
    // The node may count as away when it has come.
    rig.now = 10_000 + 8_700;
    rig.ask(7, fetch.clone());
    assert!(rig.agent.serves(rig.now));
    rig.now += 500;
    wait(&mut rig);
    assert!(!rig.agent.serves(rig.now));
    assert_eq!(serve(&mut rig), [(7, NMC_ERR_UNAVAILABLE)]);
    assert_eq!(rig.agent.storage().find(&key()).and_then(|at| rig.agent.storage().header(at)).unwrap().pins, 0);
    rig.now += 4000;
    rig.on(Event::Tick);
    rig.acknowledge_all();
    rig.welcome(5, 2 << STREAM_SHIFT, position(0), false);
    rig.acknowledge_all();
    // It is removed meanwhile.
    to_disk(&mut rig);
    rig.ask(8, fetch);
    rig.agent.storage_mut().drop_slot(slot);
    wait(&mut rig);
    assert_eq!(serve(&mut rig), [(8, NMC_ERR_NOT_FOUND)]);
}

/// The master of the copier's store is away for six seconds when the leader has heard of the copy.
#[test]
fn a_copy_that_could_not_be_published_is_withdrawn() {
    for fails in [false, true] {
        let mut rig = Rig::joined(16);
        let name = Name { node: NodeId(1), incarnation: 1, index: 1, epoch: 1 };
        let (put, length, media) = (PutId::local(4), 1, Media::Ram);
        let from = Replica { name, put, length, media, endpoint: String::new() };
        rig.on(Event::Keep(key(), from.clone()));
        rig.on(Event::Described(key(), from.clone(), Metadata(vec![1]), 0));
        rig.on(Event::Filled(1, true));
        let mut told = rig.acknowledge_all();
        assert!(told.iter().any(|n| matches!(n, News::Announce(_))));
        rig.agent.storage_mut().away = fails;
        rig.master(Announced { term: 5, incarnation: 9, ticket: 1, status: NMC_OK });
        for tick in 0..72 {
            rig.agent.storage_mut().away = fails && tick < 12;
            rig.now += 500;
            rig.on(Event::Tick);
            told.extend(rig.acknowledge_all());
            let (closed, next) = (vec![], 0);
            rig.master(Ack { term: 5, incarnation: 9, next, facts: 0, sent_at: rig.now, closed, changed: 0 });
        }
        let withdrawn = told.iter().any(|n| matches!(n, News::Withdraw(_)));
        assert!(withdrawn, "fails: {fails}: nobody hears that it does not come: {told:?}");
    }
}
