//! The master by itself, told by hand what happened. Each test is a rule of the protocol, or a run of the simulator that broke a
//! promise before there was the rule.

use super::control::Flaw;
use super::spaces::MAX_SPACES;
use super::{Action, Change, Config, Elected, Event, Master, Member};
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND,
    NMC_ERR_STALE, NMC_ERR_UNAVAILABLE, NMC_IN_PROGRESS, NMC_OK,
};
use crate::cluster::types::{Media, Millis, NO_INDEX, Name, NodeId, ObjectKey, Peer, Position, PutId};
use crate::cluster::wire::*;

/// A client, among the peers.
const CLIENT: u64 = 100;

fn key() -> ObjectKey {
    ObjectKey::new(b"", b"k").unwrap()
}

struct Rig {
    master: Master,
    now: Millis,
    request: u64,
    /// What was said to whom.
    said: Vec<(u64, Frame)>,
    /// The report that the master waits for, by node.
    next: Vec<u64>,
    facts: Vec<u64>,
    /// In which life a node joined last.
    lives: Vec<u64>,
    /// The tier of whoever joins, and whether it was not there before.
    tier: u64,
    apart: Option<Position>,
    left: bool,
    /// Headers of whoever joins, and what it has room for.
    headers: u32,
    capacity: u64,
    /// Bytes in use at each node.
    used: Vec<u64>,
    /// Nodes are on so many machines.
    machines: u64,
    /// What is being written down, where that takes a while.
    writing: Option<Vec<u64>>,
    /// Members as they were written down last.
    members: Vec<Member>,
}

/// A replica as a fact tells it.
fn published(index: u32, epoch: u64, put: PutId) -> Fact {
    Published { index, epoch, key: key(), put, length: 1, segment: 0 }.into()
}

/// A value of its own at each index.
fn of_its_own(index: u32) -> Fact {
    let key = ObjectKey::new(b"", &index.to_le_bytes()).unwrap();
    Published { index, epoch: 1, key, put: PutId::local(index.into()), length: 1, segment: 0 }.into()
}

fn retired(index: u32, epoch: u64) -> Fact {
    Retired { index, epoch }.into()
}

impl Rig {
    /// A leader with members that have not been heard of.
    fn new(nodes: u64, durable: bool) -> Self {
        Self::set_up(nodes, Config { durable, ..Config::default() })
    }

    fn set_up(nodes: u64, config: Config) -> Self {
        let mut rig = Self {
            master: Master::new(config),
            now: 1000,
            request: 0,
            said: Vec::new(),
            next: vec![0; 8],
            facts: vec![0; 8],
            lives: (1..=8).collect(),
            tier: 0,
            apart: None,
            left: false,
            headers: 16,
            capacity: 100,
            used: vec![1; 8],
            machines: 8,
            writing: None,
            members: Vec::new(),
        };
        let members = (0..nodes).map(|n| Member { name: format!("n{n}"), since: Position::default() }).collect();
        let elected = Elected { term: 5, until: Millis::MAX, members, log: Vec::new(), floor: Position::default() };
        rig.on(Event::Elected(elected));
        rig
    }

    /// The same, with members that have reported that they have nothing.
    fn with_nodes(nodes: u64, durable: bool) -> Self {
        let mut rig = Self::new(nodes, durable);
        (0..nodes).for_each(|n| rig.come(n));
        rig.now += 1;
        rig.on(Event::Tick);
        rig
    }

    fn on(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.master.on(event, self.now, &mut actions);
        for action in actions {
            match action {
                Action::Send(peer, frame) => self.said.push((peer.0, frame)),
                Action::Record(number, changes) => {
                    self.members.extend(changes.into_iter().filter_map(|change| match change {
                        Change::Member(member) => Some(member),
                        _ => None,
                    }));
                    match &mut self.writing {
                        Some(list) => list.push(number),
                        None => self.on(Event::Recorded(number, true)),
                    }
                }
            }
        }
    }

    /// What was to be written down is, or cannot be.
    fn written(&mut self, done: bool) {
        for number in self.writing.take().unwrap_or_default() {
            self.on(Event::Recorded(number, done));
        }
    }

    fn tell(&mut self, from: u64, message: impl Into<Message>) {
        self.on(Event::Message(Peer(from), Frame::telling(message)));
    }

    /// Asks something as a client; the answer comes at once or later.
    fn ask(&mut self, message: impl Into<Message>) -> u64 {
        self.request += 1;
        let frame = Frame { request: self.request, time_left_ms: 1000, message: message.into() };
        self.on(Event::Message(Peer(CLIENT), frame));
        self.request
    }

    fn answer(&self, request: u64) -> Option<&Message> {
        let frame = self.said.iter().rev().find(|(to, frame)| *to == CLIENT && frame.request == request);
        frame.map(|(_, frame)| &frame.message)
    }

    fn status(&self, request: u64) -> Option<i32> {
        match self.answer(request)? {
            Message::Answer(answer) => Some(answer.status),
            other => panic!("{other:?}"),
        }
    }

    fn life(&self, n: u64) -> u64 {
        self.lives[usize::try_from(n).unwrap()]
    }

    fn join(&mut self, n: u64, incarnation: u64, store: u64, since: Option<Position>) {
        self.lives[usize::try_from(n).unwrap()] = incarnation;
        let segment = SegmentInfo {
            number: 0,
            name: format!("n{n}/ram"),
            media: Media::Ram,
            capacity: self.capacity,
            used: 0,
            near: -1,
        };
        let join = Join {
            name: format!("n{n}"),
            incarnation,
            store,
            since,
            tier: self.tier,
            apart: self.apart,
            left: self.left,
            endpoint: format!("h{n}:1"),
            host: format!("h{}", n % self.machines),
            headers: self.headers,
            slots: 0,
            sent_at: self.now,
            segments: vec![segment],
        };
        self.tell(n, join);
        if let Some(welcome) = self.welcome(n) {
            self.next[usize::try_from(n).unwrap()] = welcome.next;
        }
    }

    fn welcome(&self, n: u64) -> Option<Welcome> {
        self.said.iter().rev().filter(|(to, _)| *to == n).find_map(|(_, frame)| match &frame.message {
            Message::Welcome(welcome) => Some(welcome.clone()),
            _ => None,
        })
    }

    /// What a node was last told to drop.
    fn drops(&self, n: u64) -> Drops {
        let found = self.said.iter().rev().filter(|(to, _)| *to == n).find_map(|(_, frame)| match &frame.message {
            Message::Drops(drops) => Some(drops.clone()),
            _ => None,
        });
        found.unwrap()
    }

    /// What a node was told to drop since it came in this life.
    fn drops_since(&self, n: u64, life: u64) -> Vec<Dropped> {
        let to_it = self.said.iter().filter(|(to, _)| *to == n).map(|(_, frame)| &frame.message);
        let is_welcome =
            |message: &&Message| matches!(message, Message::Welcome(welcome) if welcome.incarnation == life);
        let drops = to_it.skip_while(|message| !is_welcome(message)).filter_map(|message| match message {
            Message::Drops(drops) => Some(drops.entries.iter().map(|entry| entry.what.clone())),
            _ => None,
        });
        drops.flatten().collect()
    }

    fn report(&mut self, n: u64, news: impl Into<News>) {
        let at = usize::try_from(n).unwrap();
        let (number, node) = (self.next[at], NodeId::of(&format!("n{n}")));
        self.next[at] += 1;
        let report = Report { term: 5, node, incarnation: self.life(n), number, sent_at: self.now, news: news.into() };
        self.tell(n, report);
    }

    fn facts(&mut self, n: u64, facts: Vec<Fact>) {
        let at = usize::try_from(n).unwrap();
        let first = self.facts[at] + 1;
        self.facts[at] += facts.len() as u64;
        self.report(n, Facts { first, facts });
    }

    /// Where a node is that has done what it was told.
    fn at(&self, n: u64) -> Position {
        let found = self.said.iter().rev().filter(|(to, _)| *to == n).find_map(|(_, frame)| match &frame.message {
            Message::Drops(drops) => Some(drops.through),
            Message::Welcome(welcome) => Some(welcome.head),
            _ => None,
        });
        found.unwrap()
    }

    /// A node says that it has dropped what it was told to.
    fn apply(&mut self, n: u64) {
        let position = self.at(n);
        self.report(n, Applied { position });
    }

    /// A node joins and reports that it has nothing.
    fn come(&mut self, n: u64) {
        self.join(n, n + 1, n + 1, None);
        self.apply(n);
        self.report(n, SnapshotEnd { facts: 0 });
    }

    fn pings(&mut self, n: u64) {
        self.pings_closed(n, vec![], 0);
    }

    fn pings_closed(&mut self, n: u64, closed: Vec<u32>, newest: u64) {
        self.pings_changed(n, closed, newest, self.changed(n));
    }

    fn pings_changed(&mut self, n: u64, closed: Vec<u32>, newest: u64, changed: u64) {
        let position = self.at(n);
        let (node, used) = (NodeId::of(&format!("n{n}")), vec![self.used[usize::try_from(n).unwrap()]]);
        let (term, incarnation, sent_at) = (5, n + 1, self.now);
        self.tell(n, Ping { term, node, incarnation, sent_at, position, used, closed, newest, changed });
    }

    fn last_ack(&self, n: u64) -> Option<&Ack> {
        self.said.iter().rev().filter(|(to, _)| *to == n).find_map(|(_, frame)| match &frame.message {
            Message::Ack(ack) => Some(ack),
            _ => None,
        })
    }

    /// What a node was last told to close, and with which number.
    fn closed(&self, n: u64) -> Vec<u32> {
        self.last_ack(n).unwrap().closed.clone()
    }

    fn changed(&self, n: u64) -> u64 {
        self.last_ack(n).map_or(0, |ack| ack.changed)
    }

    fn drain(&mut self, segment: &str, cancel: bool) -> Option<i32> {
        let request = self.ask(Drain { segment: segment.into(), cancel });
        self.status(request)
    }

    /// Time passes in which only these nodes are heard of.
    fn passes(&mut self, ms: Millis, alive: &[u64]) {
        let end = self.now + ms;
        while self.now < end {
            self.now = end.min(self.now + 1000);
            alive.iter().for_each(|n| self.pings(*n));
            self.on(Event::Tick);
        }
    }

    fn start(&mut self, copies: u32) -> PutPlaces {
        let config = Replicate { copies, media: vec![], fixed: vec![], near: String::new() };
        let request = self.ask(PutStart { key: key(), length: 1, slices: vec![1], config, striped: false });
        match self.answer(request) {
            Some(Message::PutPlaces(places)) => places.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn done(&self, n: u64, index: u32, epoch: u64) -> Done {
        let name = Name { node: NodeId::of(&format!("n{n}")), incarnation: self.life(n), index, epoch };
        Done { name, fact: self.facts[usize::try_from(n).unwrap()] }
    }

    fn end(&mut self, put: PutId, done: Vec<Done>, tried: &[u64]) -> u64 {
        let tried = tried.iter().map(|n| NodeId::of(&format!("n{n}"))).collect();
        self.ask(PutEnd { put, key: key(), done, tried, crc: None })
    }

    fn remove(&mut self, call: u64) -> u64 {
        self.ask(Remove { key: key(), wait: true, call })
    }

    fn found(&mut self) -> Listed {
        let request = self.ask(Find { keys: vec![key()], missed: vec![] });
        match self.answer(request) {
            Some(Message::Found(found)) => found.keys[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Who was asked to copy, and from whom.
    fn copies_asked(&self) -> Vec<(u64, NodeId)> {
        let copy = |(to, frame): &(u64, Frame)| match &frame.message {
            Message::CopyThis(copy) => Some((*to, copy.from.name.node)),
            _ => None,
        };
        self.said.iter().filter_map(copy).collect()
    }

    fn local(&mut self, n: u64, index: u32, epoch: u64, put: u64) {
        self.facts(n, vec![published(index, epoch, PutId::local(put))]);
    }
}

#[test]
fn only_a_fact_adds_a_replica_and_only_the_end_opens_the_gate() {
    let mut rig = Rig::with_nodes(1, false);
    let put = rig.start(1).put;
    let early = rig.end(put, vec![Done { fact: 1, ..rig.done(0, 3, 7) }], &[]);
    assert_eq!((rig.status(early), rig.found().status), (None, NMC_ERR_NOT_FOUND), "nothing is known yet");
    rig.facts(0, vec![published(3, 7, put)]);
    assert_eq!(rig.status(early), Some(NMC_OK));
    let listed = rig.found();
    assert_eq!((listed.status, listed.replicas[0].put, listed.replicas[0].name.index), (NMC_OK, put, 3));
    let again = rig.end(put, vec![rig.done(0, 3, 7)], &[]);
    assert_eq!(rig.status(again), Some(NMC_OK), "an end that comes again is the same end");
}

#[test]
fn a_put_of_a_key_that_somebody_else_is_putting_is_to_wait() {
    let mut rig = Rig::with_nodes(1, false);
    let put = rig.start(1).put;
    rig.facts(0, vec![published(3, 7, put)]);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let other = PutStart { key: key(), length: 1, slices: vec![1], config, striped: false };
    let request = rig.ask(other.clone());
    assert_eq!(rig.status(request), Some(NMC_ERR_BUSY), "there is room, but for the other put");
    rig.end(put, vec![rig.done(0, 3, 7)], &[]);
    let request = rig.ask(other);
    assert_eq!(rig.status(request), Some(NMC_ERR_EXISTS));
}

#[test]
fn a_put_that_has_not_ended_is_not_seen_and_goes_after_its_time() {
    let mut rig = Rig::with_nodes(1, false);
    let put = rig.start(1).put;
    rig.facts(0, vec![published(3, 7, put)]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    rig.passes(31_000, &[0]);
    assert!(matches!(&rig.drops(0).entries[0].what, Dropped::Replica(r) if (r.index, r.epoch, r.put) == (3, 7, put)));
    let late = rig.end(put, vec![rig.done(0, 3, 7)], &[]);
    assert_eq!(rig.status(late), Some(NMC_ERR_STALE));
}

#[test]
fn a_put_that_was_given_up_is_dropped_and_one_that_nobody_knows_any_more_is_open() {
    let mut rig = Rig::with_nodes(1, false);
    let put = rig.start(1).put;
    rig.passes(31_000, &[0]);
    rig.facts(0, vec![published(1, 1, put)]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    rig.passes(1000, &[0]);
    assert_eq!(rig.drops(0).entries.len(), 1);
    for term in [4, 5] {
        rig.facts(0, vec![published(term, term.into(), PutId::clustered(term.into(), 77))]);
        assert_eq!(rig.found().status, NMC_OK);
        rig.facts(0, vec![retired(term, term.into())]);
    }
}

#[test]
fn what_a_closed_tier_had_is_open_when_it_is_back_unless_something_was_removed_meanwhile() {
    for (before, meanwhile) in [(false, false), (true, false), (false, true)] {
        let mut rig = Rig::with_nodes(2, false);
        let at = rig.welcome(0).unwrap().head;
        let come = |rig: &mut Rig, life: u64, tier: u64| {
            let memory = rig.welcome(0).unwrap().head;
            rig.tier = tier;
            rig.join(0, life, life, Some(memory));
            rig.report(0, Applied { position: rig.welcome(0).unwrap().head });
            rig.report(0, SnapshotEnd { facts: 0 });
        };
        // Of another object, at another node: the first is not told of that.
        let remove = |rig: &mut Rig| {
            rig.local(1, 1, 1, 7);
            let request = rig.remove(1);
            rig.apply(1);
            assert_eq!(rig.status(request), Some(NMC_OK));
            rig.facts(1, vec![retired(1, 1)]);
        };
        if before {
            remove(&mut rig);
        }
        come(&mut rig, 12, 9);
        let put = rig.start(1).put;
        rig.facts(0, vec![published(3, 7, put)]);
        rig.end(put, vec![rig.done(0, 3, 7)], &[]);
        assert_eq!(rig.found().status, NMC_OK);
        // Another life without the tier, that has nothing of it.
        come(&mut rig, 13, 0);
        rig.passes(1000, &[0, 1]);
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
        if meanwhile {
            remove(&mut rig);
        }
        rig.apart = Some(at);
        come(&mut rig, 14, 9);
        let welcome = rig.welcome(0).unwrap();
        assert_eq!((welcome.fresh, welcome.apart), (false, meanwhile));
        if !meanwhile {
            rig.facts(0, vec![published(3, 7, put)]);
            assert_eq!(rig.found().status, NMC_OK);
        }
        // Nobody knows anything of another tier.
        come(&mut rig, 15, 8);
        assert_eq!(rig.welcome(0).unwrap().apart, before || meanwhile);
    }
}

#[test]
fn a_tier_that_was_left_behind_is_not_believed_whoever_opens_it_and_under_whatever_leader() {
    let mut rig = Rig::with_nodes(2, true);
    let on_disk = rig.welcome(0).unwrap().head;
    rig.left = true;
    rig.join(0, 13, 13, Some(on_disk));
    let member = rig.members.last().unwrap().clone();
    assert!(member.name == "n0" && member.since > on_disk, "{member:?}");
    let welcome = rig.welcome(0).unwrap();
    assert!(!welcome.fresh && welcome.head >= member.since, "what says so keeps what it has");
    // It has not come there yet when it has another tier.
    rig.join(0, 14, 14, Some(on_disk));
    assert!(!rig.welcome(0).unwrap().fresh);
    // Said once more in the same life it is not written down again.
    let written = rig.members.len();
    rig.passes(1, &[1]);
    rig.join(0, 14, 14, Some(on_disk));
    assert_eq!(rig.members.len(), written);
    // Another store with the tier, under this leader and under the next one.
    rig.left = false;
    rig.join(0, 15, 15, Some(on_disk));
    assert!(rig.welcome(0).unwrap().fresh);
    let members = vec![rig.members.last().unwrap().clone()];
    let (log, floor) = (Vec::new(), Position::default());
    rig.on(Event::Elected(Elected { term: 6, until: Millis::MAX, members, log, floor }));
    rig.join(0, 16, 16, Some(on_disk));
    assert!(rig.welcome(0).unwrap().fresh);
}

/// Its tier may have been told to drop something beside another store, which only the former leader knew.
#[test]
fn a_store_that_has_left_its_tier_is_believed_by_who_knows_the_node_alone() {
    let mut rig = Rig::with_nodes(1, true);
    let at = rig.welcome(0).unwrap().head;
    let members = vec![Member { name: "n0".into(), since: Position::default() }];
    let (log, floor) = (Vec::new(), Position::default());
    rig.on(Event::Elected(Elected { term: 6, until: Millis::MAX, members, log, floor }));
    rig.left = true;
    for _ in 0..2 {
        // The first answer may be lost.
        rig.join(0, 13, 13, Some(at));
        assert!(rig.welcome(0).unwrap().fresh);
    }
    // It has dropped all, and is where the next one begins who says so.
    let head = rig.welcome(0).unwrap().head;
    rig.report(0, Applied { position: head });
    rig.join(0, 14, 14, Some(head));
    assert!(!rig.welcome(0).unwrap().fresh);
}

#[test]
fn control_a_store_that_has_left_nothing_behind_is_believed_under_the_next_leader() {
    let mut rig = Rig::with_nodes(1, true);
    let (at, written) = (rig.welcome(0).unwrap().head, rig.members.len());
    rig.join(0, 13, 13, Some(at));
    assert!(rig.members.len() == written && !rig.welcome(0).unwrap().fresh);
    let members = vec![Member { name: "n0".into(), since: Position::default() }];
    let (log, floor) = (Vec::new(), Position::default());
    rig.on(Event::Elected(Elected { term: 6, until: Millis::MAX, members, log, floor }));
    rig.join(0, 14, 14, Some(at));
    assert!(!rig.welcome(0).unwrap().fresh);
}

#[test]
fn a_store_that_is_behind_what_another_one_confirmed_for_its_node_drops_all() {
    for confirmed in [false, true] {
        let mut rig = Rig::with_nodes(1, false);
        let at = rig.welcome(0).unwrap().head;
        // The first goes; another one, which was in the cluster too, takes its place.
        rig.join(0, 12, 12, Some(at));
        rig.report(0, Applied { position: at });
        rig.report(0, SnapshotEnd { facts: 0 });
        if confirmed {
            rig.local(0, 1, 1, 7);
            rig.remove(1);
            rig.apply(0);
        }
        rig.join(0, 13, 1, Some(at));
        assert_eq!(rig.welcome(0).unwrap().fresh, confirmed);
    }
}

/// Puts that were under way when a tier was closed come to nothing, before or while it is closed: that takes nothing from what the tier has, and
/// the tier is told of them.
#[test]
fn puts_that_are_given_up_beside_a_closed_tier_take_nothing_from_it() {
    for (while_closed, removed) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::with_nodes(2, false);
        let at = rig.welcome(0).unwrap().head;
        let come = |rig: &mut Rig, life: u64, tier: u64, memory: Position| {
            rig.tier = tier;
            rig.join(0, life, life, Some(memory));
            let drops = rig.drops_since(0, life);
            rig.report(0, Applied { position: rig.at(0) });
            rig.report(0, SnapshotEnd { facts: 0 });
            drops
        };
        come(&mut rig, 12, 9, at);
        let put = rig.start(1).put;
        rig.facts(0, vec![published(3, 7, put)]);
        rig.end(put, vec![rig.done(0, 3, 7)], &[]);
        assert_eq!(rig.found().status, NMC_OK);
        let other = ObjectKey::new(b"", b"other").unwrap();
        let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
        let start = PutStart { key: other.copy().unwrap(), length: 1, slices: vec![1], config, striped: false };
        let request = rig.ask(start);
        let Some(Message::PutPlaces(places)) = rig.answer(request) else { panic!("{:?}", rig.answer(request)) };
        let given_up = places.put;
        rig.facts(
            0,
            vec![
                Published { index: 4, epoch: 1, key: other.copy().unwrap(), put: given_up, length: 1, segment: 0 }
                    .into(),
            ],
        );
        if while_closed {
            come(&mut rig, 13, 0, at);
        }
        rig.ask(PutRevoke { put: given_up, key: other.copy().unwrap() });
        if !while_closed {
            // It has not heard of that by then.
            come(&mut rig, 13, 0, at);
        }
        if removed {
            rig.local(1, 1, 1, 7);
            rig.remove(1);
            rig.apply(1);
        }
        rig.apart = Some(at);
        let memory = rig.at(0);
        let drops = come(&mut rig, 14, 9, memory);
        let is_told = drops
            .iter()
            .any(|what| matches!(what, Dropped::Replica(replica) if replica.put == given_up && replica.key == other));
        assert_eq!(
            (rig.welcome(0).unwrap().apart, is_told),
            (removed, !removed),
            "{while_closed} {removed}: {drops:?}"
        );
        if !removed {
            rig.facts(0, vec![published(3, 7, put)]);
            assert_eq!(rig.found().status, NMC_OK);
        }
    }
}

#[test]
fn a_tier_of_which_the_log_was_cut_is_not_as_it_was_when_it_is_closed() {
    for cut in [false, true] {
        let max_log = if cut { 1 } else { 100 };
        let mut rig = Rig::set_up(2, Config { max_log, ..Config::default() });
        (0..2).for_each(|n| rig.come(n));
        rig.tier = 9;
        let on_disk = rig.welcome(0).unwrap().head;
        rig.join(0, 12, 12, Some(on_disk));
        rig.report(0, Applied { position: on_disk });
        rig.report(0, SnapshotEnd { facts: 0 });
        if cut {
            // Of two that it is told it hears of none.
            rig.local(0, 1, 1, 7);
            rig.local(0, 2, 2, 8);
            rig.remove(1);
            rig.on(Event::Tick);
        }
        (rig.tier, rig.left) = (0, true);
        rig.join(0, 13, 13, Some(on_disk));
        rig.report(0, Applied { position: rig.welcome(0).unwrap().head });
        rig.report(0, SnapshotEnd { facts: 0 });
        (rig.tier, rig.left, rig.apart) = (9, false, Some(on_disk));
        let memory = rig.welcome(0).unwrap().head;
        rig.join(0, 14, 14, Some(memory));
        let welcome = rig.welcome(0).unwrap();
        assert_eq!((welcome.fresh, welcome.apart), (false, cut));
    }
}

#[test]
fn another_place_of_what_is_being_removed_goes_too() {
    for put in [PutId::local(7), PutId::clustered(4, 7)] {
        let mut rig = Rig::with_nodes(1, false);
        rig.facts(0, vec![published(1, 1, put)]);
        let request = rig.remove(1);
        // It was offloaded and evicted before the node heard of that.
        rig.facts(0, vec![published(9, 2, put), retired(1, 1)]);
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
        rig.apply(0);
        assert_eq!(rig.status(request), Some(NMC_OK));
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    }
}

#[test]
fn a_put_to_a_node_that_is_just_coming_is_to_be_asked_for_again() {
    let mut rig = Rig::with_nodes(2, false);
    rig.join(0, 9, 9, Some(rig.welcome(0).unwrap().head));
    for (segment, status) in [("n0/ram", NMC_ERR_UNAVAILABLE), ("n0", NMC_ERR_UNAVAILABLE), ("n7", NMC_ERR_NO_SPACE)] {
        let fixed = vec![Location { segment: segment.into(), media: None }];
        let config = Replicate { copies: 1, media: vec![], fixed, near: String::new() };
        let request = rig.ask(PutStart { key: key(), length: 1, slices: vec![1], config, striped: false });
        assert_eq!(rig.status(request), Some(status), "{segment}");
    }
}

#[test]
fn a_store_that_another_one_took_the_place_of_drops_all_that_it_has() {
    for again in [false, true] {
        let mut rig = Rig::with_nodes(2, false);
        rig.local(0, 1, 1, 7);
        let left_at = rig.welcome(0).unwrap().head;
        rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty: false });
        let request = rig.remove(1);
        assert_eq!(rig.status(request), Some(NMC_IN_PROGRESS));
        // A new one has nothing to drop, and says so for the node.
        rig.join(0, 2, 2, None);
        let head = rig.welcome(0).unwrap().head;
        rig.report(0, Applied { position: head });
        rig.report(0, SnapshotEnd { facts: 0 });
        if again {
            rig.local(1, 1, 1, 8);
            rig.remove(1);
            rig.apply(1);
        }
        rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 2, empty: false });
        rig.join(0, 3, 1, Some(left_at));
        assert!(rig.welcome(0).unwrap().fresh, "what it missed was confirmed by another");
    }
}

#[test]
fn a_member_that_a_new_leader_never_heard_of_may_come_late() {
    let mut rig = Rig::new(2, false);
    rig.passes(20_000, &[]);
    rig.join(1, 9, 9, Some(Position { term: 4, number: 3 }));
    assert!(rig.welcome(1).is_some_and(|welcome| !welcome.fresh));
}

#[test]
fn per_index_only_a_higher_epoch_lives_and_the_dead_stay_dead() {
    let mut rig = Rig::with_nodes(1, false);
    rig.local(0, 1, 5, 1);
    rig.facts(0, vec![retired(1, 5), published(1, 5, PutId::local(1)), published(1, 4, PutId::local(2))]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    rig.facts(0, vec![published(1, 9, PutId::local(3)), retired(1, 5)]);
    assert_eq!(rig.found().replicas[0].put, PutId::local(3));
}

#[test]
fn slices_that_do_not_add_up_are_refused() {
    let mut rig = Rig::with_nodes(1, false);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    for slices in [vec![1, 1], vec![], vec![u64::MAX, 5]] {
        let request = rig.ask(PutStart { key: key(), length: 3, slices, config: config.clone(), striped: false });
        assert_eq!(rig.status(request), Some(NMC_ERR_INVALID_ARG));
    }
}

#[test]
fn what_is_not_known_is_unavailable_until_members_have_reported_or_were_silent() {
    let mut rig = Rig::new(2, false);
    rig.come(0);
    rig.on(Event::Tick);
    assert_eq!(rig.found().status, NMC_ERR_UNAVAILABLE);
    rig.passes(2000, &[0]);
    assert_eq!(rig.found().status, NMC_ERR_UNAVAILABLE);
    rig.passes(1000, &[0]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND, "the other was silent for 3 s");
}

#[test]
fn where_there_is_no_node_at_all_a_put_says_so() {
    let said = |rig: &mut Rig| {
        let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
        let request = rig.ask(PutStart { key: key(), length: 1000, slices: vec![1000], config, striped: false });
        match rig.answer(request) {
            Some(Message::Answer(answer)) => (answer.status, answer.text.clone()),
            other => panic!("{other:?}"),
        }
    };
    let (status, text) = said(&mut Rig::with_nodes(0, false));
    assert!(status == NMC_ERR_NO_SPACE && text.contains("has no nodes"), "{text}");
    let (status, text) = said(&mut Rig::with_nodes(1, false));
    assert!(status == NMC_ERR_NO_SPACE && text.contains("no segment"), "{text}");
    let mut rig = Rig::with_nodes(1, false);
    rig.passes(12_000, &[]);
    let (status, text) = said(&mut rig);
    assert!(status == NMC_ERR_NO_SPACE && text.contains("not away"), "{text}");
}

#[test]
fn segments_are_listed_and_drained_when_every_member_has_come_or_was_silent() {
    for silent in [false, true] {
        let mut rig = Rig::new(2, false);
        let listed = |rig: &mut Rig| {
            let request = rig.ask(ListSegments { cursor: 0 });
            match rig.answer(request) {
                Some(Message::Segments(segments)) => Ok(segments.list.len()),
                Some(Message::Answer(answer)) => Err(answer.status),
                other => panic!("{other:?}"),
            }
        };
        rig.come(0);
        rig.on(Event::Tick);
        assert_eq!(listed(&mut rig), Err(NMC_ERR_UNAVAILABLE));
        assert_eq!(rig.drain("n1/ram", false), Some(NMC_ERR_UNAVAILABLE));
        assert_eq!(rig.drain("n1/ram", true), Some(NMC_ERR_UNAVAILABLE));
        assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS), "it has come");
        if silent {
            rig.passes(3000, &[0]);
            assert_eq!((listed(&mut rig), rig.drain("n1/ram", false)), (Ok(1), Some(NMC_ERR_NOT_FOUND)));
            continue;
        }
        // What it has need not be known yet.
        rig.join(1, 2, 2, None);
        assert_eq!((listed(&mut rig), rig.drain("n1/ram", false)), (Ok(2), Some(NMC_IN_PROGRESS)));
        assert_eq!(rig.drain("n2/ram", false), Some(NMC_ERR_NOT_FOUND));
    }
}

#[test]
fn a_key_that_a_member_may_have_is_not_put_until_it_has_reported_or_was_silent() {
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let start = PutStart { key: key(), length: 1, slices: vec![1], config, striped: false };
    for silent in [false, true] {
        let mut rig = Rig::new(2, false);
        rig.come(0);
        rig.on(Event::Tick);
        let request = rig.ask(start.clone());
        assert_eq!(rig.status(request), Some(NMC_ERR_UNAVAILABLE));
        if silent {
            rig.passes(3000, &[0]);
            assert_ne!(rig.start(1).put, PutId(0));
            continue;
        }
        rig.join(1, 2, 2, None);
        rig.apply(1);
        rig.local(1, 1, 1, 7);
        rig.report(1, SnapshotEnd { facts: 1 });
        rig.now += 1;
        rig.on(Event::Tick);
        let request = rig.ask(start.clone());
        assert_eq!(rig.status(request), Some(NMC_ERR_EXISTS), "it names a value that was there all the time");
    }
}

#[test]
fn nothing_is_answered_after_the_lease_and_what_was_recorded_meanwhile_is_not_forgotten() {
    let mut master = Master::new(Config::default());
    let elected = Elected { term: 1, until: 500, members: vec![], log: vec![], floor: Position::default() };
    master.on(Event::Elected(elected), 0, &mut Vec::new());
    let mut rig = Rig::new(0, false);
    rig.master = master;
    rig.now = 400;
    let mut actions = Vec::new();
    let segments = vec![];
    let (name, endpoint, host) = ("n0".to_string(), String::new(), String::new());
    let join = Join {
        name,
        incarnation: 1,
        store: 1,
        since: None,
        tier: 0,
        apart: None,
        left: false,
        endpoint,
        host,
        headers: 1,
        slots: 0,
        sent_at: 0,
        segments,
    };
    rig.master.on(Event::Message(Peer(0), Frame::telling(join)), 400, &mut actions);
    let [Action::Record(number, changes)] = &actions[..] else { panic!("{actions:?}") };
    assert!(matches!(&changes[0], Change::Member(member) if member.name == "n0"));
    rig.now = 600;
    rig.on(Event::Recorded(*number, true));
    assert!(rig.said.is_empty(), "the lease is over");
    let request = rig.ask(Find { keys: vec![key()], missed: vec![] });
    assert_eq!(rig.status(request), Some(NMC_ERR_UNAVAILABLE));
    rig.on(Event::Lease(2000));
    rig.on(Event::Tick);
    assert!(rig.welcome(0).is_some());
}

#[test]
fn a_remove_is_answered_when_every_owner_has_dropped_it() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.local(1, 1, 1, 8);
    let request = rig.remove(1);
    assert_eq!((rig.status(request), rig.found().status), (None, NMC_ERR_NOT_FOUND));
    rig.apply(0);
    assert_eq!(rig.answer(request), None);
    rig.apply(1);
    assert_eq!(rig.status(request), Some(NMC_OK));
    let nothing = rig.remove(2);
    assert_eq!(rig.status(nothing), None, "the owners have not told that it is gone");
    rig.facts(0, vec![retired(1, 1)]);
    rig.facts(1, vec![retired(1, 1)]);
    let nothing = rig.remove(3);
    assert_eq!(rig.status(nothing), Some(NMC_ERR_NOT_FOUND));
}

#[test]
fn a_remove_that_comes_again_is_not_done_again() {
    let mut rig = Rig::with_nodes(1, false);
    rig.local(0, 1, 1, 7);
    let request = rig.remove(1);
    rig.apply(0);
    assert_eq!(rig.status(request), Some(NMC_OK));
    rig.facts(0, vec![retired(1, 1), published(2, 2, PutId::local(8))]);
    let again = rig.remove(1);
    assert_eq!((rig.status(again), rig.found().status), (Some(NMC_OK), NMC_OK), "what was put since stays");
}

#[test]
fn a_second_remove_waits_for_the_owners_that_the_first_waits_for() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.remove(1);
    rig.local(1, 1, 1, 8);
    let second = rig.remove(2);
    rig.apply(1);
    assert_eq!(rig.answer(second), None, "n0 has what was visible before");
    rig.apply(0);
    assert_eq!(rig.status(second), Some(NMC_OK));
}

#[test]
fn a_remove_counts_with_owners_of_an_ended_put_that_have_not_told() {
    let mut rig = Rig::with_nodes(2, false);
    let put = rig.start(2).put;
    rig.facts(0, vec![published(1, 1, put)]);
    // The client gave up on n1, which may have it all the same.
    let end = rig.end(put, vec![rig.done(0, 1, 1)], &[1]);
    assert_eq!(rig.status(end), Some(NMC_OK));
    let request = rig.remove(1);
    rig.apply(0);
    assert_eq!(rig.answer(request), None);
    assert!(matches!(&rig.drops(1).entries[0].what, Dropped::Replica(r) if (r.index, r.put) == (NO_INDEX, put)));
    rig.apply(1);
    assert_eq!(rig.status(request), Some(NMC_OK));
}

#[test]
fn a_remove_with_an_owner_that_is_away_is_in_progress_or_durable() {
    for (durable, expected) in [(false, NMC_IN_PROGRESS), (true, NMC_OK)] {
        let mut rig = Rig::with_nodes(2, durable);
        rig.local(0, 1, 1, 7);
        rig.passes(9_000, &[1]);
        let request = rig.remove(1);
        assert_eq!(rig.answer(request), None, "n0 may still give it to others");
        rig.passes(2_000, &[1]);
        assert_eq!(rig.status(request), Some(expected));
        let again = rig.remove(2);
        assert_eq!(rig.status(again), Some(expected));
        // It returns, and hears of it before anything that it has is listed.
        rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
        assert!(!rig.welcome(0).unwrap().fresh && !rig.drops(0).entries.is_empty());
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    }
}

#[test]
fn a_member_that_has_not_reported_is_told_the_key() {
    let mut rig = Rig::new(2, false);
    rig.come(0);
    rig.join(1, 2, 2, Some(Position { term: 4, number: 9 }));
    let request = rig.remove(1);
    assert!(matches!(&rig.drops(1).entries[0].what, Dropped::Key(_)));
    assert_eq!(rig.answer(request), None);
    rig.apply(1);
    assert_eq!(rig.status(request), Some(NMC_OK));
}

#[test]
fn a_put_waits_for_what_its_owner_has_to_apply_and_for_nothing_else() {
    let mut rig = Rig::with_nodes(1, false);
    rig.ask(RemoveAll { space: None, wait: true, call: 1 });
    let after = |rig: &mut Rig| rig.start(1).places.iter().map(|place| (place.node, place.after)).collect::<Vec<_>>();
    let n0 = NodeId::of("n0");
    let first = Position { term: 5, number: 1 };
    assert_eq!(after(&mut rig), [(n0, first)], "the owner must not take it for what is removed");
    rig.apply(0);
    assert_eq!(after(&mut rig), [(n0, Position::default())]);

    // Two may take a put, and one of them has something to drop that the other one is not told of.
    let mut rig = Rig::with_nodes(2, false);
    rig.ask(RemoveAll { space: None, wait: true, call: 1 });
    rig.apply(1);
    let mut both = after(&mut rig);
    both.sort_by_key(|(node, _)| *node != n0);
    assert_eq!(both, [(n0, first), (NodeId::of("n1"), Position::default())]);

    // A member that nobody hears of must drop a key unseen. The others are not told of that, and would wait for ever.
    let mut rig = Rig::new(2, false);
    rig.come(0);
    rig.passes(20_000, &[0]);
    let request = rig.remove(1);
    assert_eq!(rig.status(request), Some(NMC_IN_PROGRESS));
    assert_eq!(after(&mut rig), [(n0, Position::default())]);
}

#[test]
fn a_member_that_has_much_to_drop_is_told_the_next_part_as_soon_as_it_has_dropped_one() {
    let mut rig = Rig::with_nodes(2, false);
    rig.passes(20_000, &[1]);
    for call in 1..=100 {
        rig.ask(RemoveAll { space: None, wait: false, call });
    }
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    let mut parts = 0;
    while rig.drops(0).through < (Position { term: 5, number: 100 }) {
        rig.apply(0);
        parts += 1;
        assert!(parts < 100, "no time passes between the parts");
    }
    assert!(parts > 1);
}

#[test]
fn a_member_that_tells_once_more_what_it_has_is_told_the_key_and_keeps_what_it_has_not_told_of() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    // It has moved, for which there was no room in the ring of facts: where it is now comes in a later range.
    rig.report(0, Range { from: 0, to: 16, live: vec![] });
    assert_eq!(rig.found().status, NMC_OK, "nobody knows yet that it is gone");
    let request = rig.remove(1);
    assert!(rig.drops(0).entries.iter().any(|entry| matches!(entry.what, Dropped::Key(_))));
    assert_eq!(rig.answer(request), None);
    rig.apply(0);
    assert_eq!(rig.status(request), Some(NMC_OK));

    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.report(0, Range { from: 0, to: 16, live: vec![] });
    rig.report(0, SnapshotEnd { facts: 1 });
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
}

#[test]
fn what_moves_while_its_owner_tells_what_it_has_is_found_all_the_time() {
    let other = |index, epoch| Published {
        index,
        epoch,
        key: ObjectKey::new(b"s", b"other").unwrap(),
        put: PutId(9),
        length: 1,
        segment: 0,
    };
    // The fact of its new place was overwritten, and that place comes in a later range. Of the old one it is told that it is over, or that something else is there.
    let over: [Fact; 2] = [retired(1, 1), other(1, 2).into()];
    for fact in over {
        let begun = |fact: &Fact| {
            let mut rig = Rig::with_nodes(2, false);
            rig.local(0, 1, 1, 7);
            rig.report(0, Range { from: 8, to: 16, live: vec![] });
            rig.facts(0, vec![fact.clone()]);
            assert_eq!((rig.found().status, rig.found().replicas.len()), (NMC_OK, 1), "{fact:?}");
            rig
        };
        let mut rig = begun(&fact);
        let moved = Published { index: 3, epoch: 4, key: key(), put: PutId(7), length: 1, segment: 0 };
        rig.report(0, Range { from: 2, to: 8, live: vec![moved] });
        rig.report(0, SnapshotEnd { facts: 2 });
        let found = rig.found();
        assert_eq!((found.replicas.len(), found.replicas[0].name.index, found.replicas[0].name.epoch), (1, 3, 4));
        // It has the same header once more, and with its end nothing is left.
        rig.report(0, Range { from: 8, to: 16, live: vec![] });
        rig.facts(0, vec![published(1, 5, PutId(7)), retired(3, 4), retired(1, 5), published(1, 6, PutId(7))]);
        rig.report(0, SnapshotEnd { facts: 6 });
        let found = rig.found();
        assert_eq!((found.replicas.len(), found.replicas[0].name.index, found.replicas[0].name.epoch), (1, 1, 6));
        rig.facts(0, vec![retired(1, 6)]);
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);

        // It has not moved: with the end of the telling that is known.
        let mut rig = begun(&fact);
        rig.report(0, SnapshotEnd { facts: 2 });
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND, "{fact:?}");

        // What is removed meanwhile is not found where it turns up.
        let mut rig = begun(&fact);
        rig.remove(1);
        rig.facts(0, vec![published(3, 4, PutId(7))]);
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND, "{fact:?}");

        // Nor is anything left of a node that ends in the middle of it, or comes back with another store.
        let mut rig = begun(&fact);
        rig.passes(11_000, &[1]);
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND, "{fact:?}");
        let mut rig = begun(&fact);
        rig.join(0, 20, 22, None);
        rig.apply(0);
        rig.report(0, SnapshotEnd { facts: 0 });
        rig.passes(1000, &[0, 1]);
        assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND, "{fact:?}");
    }
}

#[test]
fn a_store_that_never_was_in_the_cluster_has_nothing_to_drop() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.passes(9_000, &[1]);
    let request = rig.remove(1);
    assert_eq!(rig.answer(request), None, "it may still give it to others");
    rig.passes(1_500, &[1]);
    // Its machine has started again: another life, with a store that is empty.
    let before = rig.said.len();
    rig.join(0, 11, 12, None);
    assert!(!rig.welcome(0).unwrap().fresh);
    assert!(!rig.said[before..].iter().any(|(_, frame)| matches!(frame.message, Message::Drops(_))));
    let again = rig.remove(2);
    let unseen = rig.drops(0).entries.iter().any(|entry| matches!(entry.what, Dropped::Key(_)));
    assert!(unseen, "it has not said yet what it has");
    assert_eq!(rig.answer(again), None);
}

#[test]
fn a_join_alone_confirms_nothing() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    let request = rig.remove(1);
    // Of a life that has ended before this one began, though nobody knows that: it was new, and has come late.
    rig.join(0, 50, 50, None);
    assert_eq!(rig.answer(request), None, "n0 has it");
    // The one that lives goes on from where it is.
    rig.passes(11_000, &[1]);
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    assert_eq!(rig.drops(0).entries.len(), 1);
}

#[test]
fn nobody_waits_for_a_member_that_was_killed_while_it_joined() {
    let mut rig = Rig::with_nodes(2, false);
    rig.join(2, 3, 3, None);
    let waits = rig.remove(1);
    assert_eq!(rig.answer(waits), None, "it may have the key");
    rig.on(Event::Closed(Peer(2)));
    rig.on(Event::Tick);
    assert_eq!(rig.status(waits), Some(NMC_IN_PROGRESS));
    rig.passes(12_000, &[0, 1]);
    let later = rig.remove(2);
    assert_eq!(rig.status(later), Some(NMC_ERR_NOT_FOUND), "it is forgotten");

    // One that has told something may have been read from.
    let mut rig = Rig::with_nodes(2, false);
    rig.join(2, 3, 3, None);
    rig.apply(2);
    rig.local(2, 1, 1, 7);
    rig.on(Event::Closed(Peer(2)));
    rig.on(Event::Tick);
    let waits = rig.remove(1);
    assert_eq!(rig.answer(waits), None);
}

#[test]
fn nobody_waits_for_a_member_that_has_left_with_nothing() {
    for (empty, expected) in [(true, NMC_ERR_NOT_FOUND), (false, NMC_IN_PROGRESS)] {
        let mut rig = Rig::with_nodes(2, false);
        rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty });
        let all = rig.ask(RemoveAll { space: None, wait: true, call: 1 });
        rig.apply(1);
        assert_eq!(rig.status(all), Some(if empty { NMC_OK } else { NMC_IN_PROGRESS }));
        let request = rig.remove(2);
        assert_eq!(rig.status(request), Some(expected));
        // Whatever it has when it comes back is dropped if nobody kept the log for it. If it knows that it had nothing, it is new.
        rig.join(0, 2, 1, Some(Position { term: 5, number: 0 }));
        assert_eq!(rig.welcome(0).unwrap().fresh, empty);
        rig.join(0, 3, 1, None);
        assert!(!rig.welcome(0).unwrap().fresh);
    }
}

#[test]
fn a_node_that_is_where_the_log_never_was_comes_again() {
    let mut rig = Rig::with_nodes(2, false);
    rig.join(2, 3, 3, None);
    // A tier of another cluster was opened since it asked, and closed before anybody noticed.
    let astray = Position { term: 900, number: 44 };
    let before = rig.said.len();
    rig.report(2, Applied { position: astray });
    let ping = Ping {
        term: 5,
        node: NodeId::of("n2"),
        incarnation: 3,
        sent_at: rig.now,
        position: astray,
        used: vec![0],
        closed: vec![],
        newest: 0,
        changed: 0,
    };
    rig.tell(2, ping);
    let sent_out = |(to, frame): &&(u64, Frame)| *to == 2 && matches!(frame.message, Message::Rejoin(_));
    assert_eq!(rig.said[before..].iter().filter(sent_out).count(), 2);
    rig.join(2, 3, 3, Some(astray));
    assert!(rig.welcome(2).unwrap().fresh);
}

#[test]
fn nobody_waits_for_a_node_that_has_given_up_before_it_was_let_in() {
    let leave = |empty| Leave { node: NodeId::of("n2"), incarnation: 3, empty };
    for (leaves, closes) in [(Some(true), false), (None, true), (Some(true), true), (Some(false), true)] {
        let mut rig = Rig::with_nodes(2, false);
        rig.writing = Some(vec![]);
        rig.join(2, 3, 3, None);
        leaves.into_iter().for_each(|empty| rig.tell(2, leave(empty)));
        if closes {
            rig.on(Event::Closed(Peer(2)));
        }
        rig.written(true);
        rig.on(Event::Tick);
        let at_once = rig.remove(1);
        let is_gone = leaves == Some(true);
        assert_eq!(rig.status(at_once), Some(if is_gone { NMC_ERR_NOT_FOUND } else { NMC_IN_PROGRESS }), "{leaves:?}");
        rig.passes(12_000, &[0, 1]);
        let later = rig.remove(2);
        assert_eq!(rig.status(later), Some(NMC_ERR_NOT_FOUND), "it is forgotten");
    }

    // What it had said before comes on another connection, later.
    let mut rig = Rig::with_nodes(2, false);
    rig.tell(2, leave(false));
    rig.join(2, 3, 3, None);
    assert!(rig.welcome(2).is_none());
    let request = rig.remove(1);
    assert_eq!(rig.status(request), Some(NMC_ERR_NOT_FOUND));
    rig.join(2, 4, 3, None);
    assert!(rig.welcome(2).is_some(), "another life of it");
}

#[test]
fn a_store_that_the_leader_has_heard_of_is_not_forgotten_as_one_that_never_came() {
    let mut rig = Rig::with_nodes(2, false);
    rig.join(2, 3, 3, None);
    rig.apply(2);
    // It may have kept its position by now, though nothing of what it has was told.
    let position = rig.at(2);
    rig.on(Event::Closed(Peer(2)));
    rig.passes(30_000, &[0, 1]);
    let waits = rig.remove(1);
    assert_eq!(rig.status(waits), Some(NMC_IN_PROGRESS));
    rig.join(2, 4, 3, Some(position));
    assert!(!rig.welcome(2).unwrap().fresh);

    // Nor if it asked twice.
    let mut rig = Rig::with_nodes(2, false);
    rig.join(2, 3, 3, None);
    rig.apply(2);
    rig.join(2, 3, 3, None);
    rig.apply(2);
    rig.on(Event::Closed(Peer(2)));
    rig.passes(30_000, &[0, 1]);
    rig.remove(1);
    rig.join(2, 4, 3, Some(rig.at(2)));
    assert!(!rig.welcome(2).unwrap().fresh);
}

#[test]
fn a_join_that_comes_after_what_was_said_later_changes_nothing() {
    let mut rig = Rig::with_nodes(2, false);
    let asked = rig.now;
    rig.now += 10;
    rig.join(2, 3, 3, None);
    rig.apply(2);
    rig.local(2, 1, 1, 7);
    let request = rig.remove(1);
    // It was new when it asked, and has something to drop by now.
    let (now, said, next) = (std::mem::replace(&mut rig.now, asked), rig.said.len(), rig.next[2]);
    rig.join(2, 3, 3, None);
    (rig.now, rig.next[2]) = (now, next);
    assert_eq!((rig.answer(request), rig.said.len()), (None, said));
    rig.apply(2);
    assert_eq!(rig.status(request), Some(NMC_OK));
}

#[test]
fn a_position_that_this_log_never_gave_is_of_another_one() {
    // The state of the master was lost, or the store was in another cluster.
    let mut rig = Rig::with_nodes(1, false);
    for (n, ahead) in [(0, Position { term: 7, number: 3 }), (2, Position { term: 5, number: 2 })] {
        rig.join(n, n + 10, n + 10, Some(ahead));
        let welcome = rig.welcome(n).unwrap();
        assert!(welcome.fresh && welcome.head < ahead, "{ahead:?}");
    }
    // At the end of the log nothing is missing.
    let head = rig.welcome(0).unwrap().head;
    rig.join(0, 20, 10, Some(head));
    assert!(!rig.welcome(0).unwrap().fresh);
}

#[test]
fn a_node_that_comes_back_while_it_is_written_down_that_it_is_gone_waits_for_that() {
    for done in [true, false] {
        let mut rig = Rig::with_nodes(2, false);
        rig.writing = Some(vec![]);
        rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty: true });
        let before = rig.said.len();
        rig.join(0, 11, 11, None);
        rig.join(0, 11, 11, None);
        assert!(!rig.said[before..].iter().any(|(to, _)| *to == 0), "it is no member and cannot become one yet");
        let gone = rig.writing.replace(vec![]).unwrap();
        gone.into_iter().for_each(|number| rig.on(Event::Recorded(number, done)));
        // Also if that failed: who can not write something down does not know what is written.
        assert!(!rig.said[before..].iter().any(|(to, _)| *to == 0), "nor is it before that is written down");
        rig.written(false);
        assert!(!rig.said[before..].iter().any(|(to, _)| *to == 0));
        rig.writing = Some(vec![]);
        rig.join(0, 11, 11, None);
        rig.written(true);
        let welcome = rig.welcome(0).unwrap();
        assert!(!welcome.fresh && welcome.incarnation == 11);
        // It stays one: what is put there is found.
        let facts = Facts { first: 1, facts: vec![published(1, 1, PutId::local(7))] };
        for (number, news) in (welcome.next..).zip([Applied { position: welcome.head }.into(), facts.into()]) {
            let (node, sent_at) = (NodeId::of("n0"), rig.now);
            rig.tell(0, Report { term: 5, node, incarnation: 11, number, sent_at, news });
            rig.on(Event::Tick);
        }
        assert_eq!(rig.found().status, NMC_OK);
    }
}

#[test]
fn what_somebody_is_about_to_drop_unseen_is_not_copied() {
    let mut rig = Rig::with_nodes(3, false);
    rig.local(0, 1, 1, 7);
    rig.ask(RemoveAll { space: None, wait: true, call: 1 });
    rig.apply(1);
    rig.apply(2);
    // n0 has not applied it, and its next snapshot lists the object once more.
    rig.facts(0, vec![published(1, 2, PutId::local(7))]);
    assert_eq!(rig.found().status, NMC_OK);
    rig.report(1, Announce { key: key(), put: PutId::local(7), ticket: 3 });
    let answer = rig.said.iter().rev().find_map(|(_, frame)| match &frame.message {
        Message::Announced(announced) => Some(announced.status),
        _ => None,
    });
    assert_eq!(answer, Some(NMC_ERR_BUSY));
}

#[test]
fn who_needs_entries_that_are_gone_is_not_told_the_later_ones() {
    let mut rig = Rig::set_up(1, Config { max_log: 2, ..Config::default() });
    rig.come(0);
    let before = rig.said.len();
    for call in 1..6 {
        rig.ask(RemoveAll { space: None, wait: false, call });
        // It does none of that, and does not fall silent.
        rig.now += 1000;
        rig.on(Event::Tick);
    }
    let told = rig.said[before..].iter().filter_map(|(to, frame)| match &frame.message {
        Message::Drops(drops) if *to == 0 => Some(drops),
        _ => None,
    });
    let told: Vec<&Drops> = told.collect();
    assert!(!told.is_empty());
    for drops in told {
        assert_eq!(drops.entries.len() as u64, drops.through.number - drops.after.number, "{drops:?}");
    }
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    assert!(rig.welcome(0).unwrap().fresh);
}

#[test]
fn the_name_of_a_call_that_was_used_for_something_else_is_another_call() {
    let mut rig = Rig::with_nodes(1, false);
    rig.local(0, 1, 1, 7);
    let other = ObjectKey::new(b"", b"other").unwrap();
    let first = rig.ask(Remove { key: other, wait: true, call: 9 });
    assert_eq!(rig.status(first), Some(NMC_ERR_NOT_FOUND));
    let second = rig.remove(9);
    assert_eq!(rig.answer(second), None, "it is there");
    rig.apply(0);
    assert_eq!(rig.status(second), Some(NMC_OK));
    // The same once more removes nothing.
    rig.local(0, 2, 2, 8);
    let again = rig.remove(9);
    assert_eq!(rig.status(again), Some(NMC_OK));
    assert_eq!(rig.found().status, NMC_OK);
}

#[test]
fn what_was_put_after_a_remove_is_copied_though_somebody_who_is_away_has_not_heard_of_that() {
    let mut rig = Rig::with_nodes(3, false);
    rig.local(0, 1, 1, 7);
    rig.passes(12_000, &[1, 2]);
    let all = rig.ask(RemoveAll { space: None, wait: true, call: 1 });
    [1, 2].into_iter().for_each(|n| rig.apply(n));
    assert_eq!(rig.status(all), Some(NMC_IN_PROGRESS));
    rig.local(1, 1, 1, 8);
    // The one that was removed is with nobody who is there.
    for (put, status) in [(8, NMC_OK), (7, NMC_ERR_BUSY)] {
        rig.report(2, Announce { key: key(), put: PutId::local(put), ticket: put });
        let answer = rig.said.iter().rev().find_map(|(_, frame)| match &frame.message {
            Message::Announced(announced) if announced.ticket == put => Some(announced.status),
            _ => None,
        });
        assert_eq!(answer, Some(status), "{put}");
    }
}

#[test]
fn a_copy_is_announced_first_and_a_remove_waits_for_it() {
    let mut rig = Rig::with_nodes(2, false);
    rig.report(1, Announce { key: key(), put: PutId::local(7), ticket: 3 });
    rig.local(0, 1, 1, 7);
    rig.report(1, Announce { key: key(), put: PutId::local(7), ticket: 4 });
    let answers = rig.said.iter().filter_map(|(_, frame)| match &frame.message {
        Message::Announced(announced) => Some((announced.ticket, announced.status)),
        _ => None,
    });
    assert_eq!(answers.collect::<Vec<_>>(), [(3, NMC_ERR_NOT_FOUND), (4, NMC_OK)]);
    assert_eq!(rig.found().replicas.len(), 1, "it is not published");
    let request = rig.remove(1);
    rig.apply(0);
    assert_eq!(rig.answer(request), None);
    rig.apply(1);
    assert_eq!(rig.status(request), Some(NMC_OK));
    rig.report(1, Withdraw { key: key(), put: PutId::local(7) });
    rig.facts(0, vec![retired(1, 1)]);
    assert_eq!(rig.master.under_way()[3], 0);
}

/// What an owner had in a former life is listed until it has told what it has in this one. It may have dropped it, and not said so: nobody copies it.
#[test]
fn nothing_is_copied_of_an_owner_that_has_not_told_what_it_has() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.join(0, 2, 1, Some(Position { term: 5, number: 0 }));
    rig.report(1, Announce { key: key(), put: PutId::local(7), ticket: 3 });
    let answer = rig.said.iter().find_map(|(_, frame)| match &frame.message {
        Message::Announced(announced) => Some(announced.status),
        _ => None,
    });
    assert_eq!(answer, Some(NMC_ERR_NOT_FOUND));
}

#[test]
fn a_member_that_was_gone_drops_all_that_it_had() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.passes(3_700_000, &[1]);
    let nothing = rig.remove(1);
    assert_eq!(rig.status(nothing), Some(NMC_ERR_NOT_FOUND));
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    assert!(rig.welcome(0).unwrap().fresh);
    // Also if that message was lost and it asks again.
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    assert!(rig.welcome(0).unwrap().fresh);
}

#[test]
fn a_member_whose_entries_are_no_longer_there_drops_all_and_is_waited_for_until_then() {
    let mut rig = Rig::set_up(1, Config { durable: true, max_log: 1, ..Config::default() });
    rig.come(0);
    rig.now += 1;
    rig.on(Event::Tick);
    let puts = [0; 3].map(|_| rig.start(1).put);
    rig.passes(31_000, &[0]);
    rig.local(0, 9, 9, 7);
    let given_up = |n: u32| published(n, n.into(), puts[n as usize - 1]);
    rig.facts(0, vec![given_up(1), given_up(2), given_up(3)]);
    rig.now += 1;
    rig.on(Event::Tick);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND, "it is to drop that");
    let request = rig.remove(1);
    rig.on(Event::Tick);
    assert_eq!(rig.answer(request), None, "it was not silent, and may give others what it has");
    rig.pings(0);
    assert!(matches!(rig.said.last().unwrap().1.message, Message::Rejoin(_)));
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    let welcome = rig.welcome(0).unwrap();
    assert!(welcome.fresh);
    rig.report(0, Applied { position: welcome.head });
    assert_eq!((rig.status(request), rig.master.under_way()[2]), (Some(NMC_OK), 1));
    rig.on(Event::Tick);
    assert_eq!(rig.master.under_way()[2], 0);
}

#[test]
fn a_former_agent_is_refused_while_the_later_one_is_heard_of_and_not_for_ever() {
    let mut rig = Rig::with_nodes(1, false);
    rig.join(0, 50, 1, None);
    let welcomed = rig.said.len();
    rig.join(0, 1, 1, None);
    let refusal =
        rig.said[welcomed..].iter().any(|(_, f)| matches!(&f.message, Message::Answer(a) if a.status == NMC_ERR_STALE));
    assert!(refusal);
    rig.passes(11_000, &[]);
    let before = rig.said.len();
    rig.join(0, 1, 1, None);
    assert!(rig.said[before..].iter().any(|(_, frame)| matches!(&frame.message, Message::Welcome(_))));
}

#[test]
fn a_name_or_a_segment_has_one_holder() {
    let mut rig = Rig::with_nodes(2, false);
    let before = rig.said.len();
    let segment = SegmentInfo { number: 0, name: "n1/ram".into(), media: Media::Ram, capacity: 1, used: 0, near: -1 };
    rig.tell(0, Mount { node: NodeId::of("n0"), incarnation: 1, segment, unmount: false });
    assert!(matches!(&rig.said[before].1.message, Message::Answer(a) if a.status == NMC_ERR_EXISTS));
    // Another machine comes with the name of a node that is alive.
    let (name, endpoint, host) = ("n1".to_string(), "h9:1".to_string(), "h9".to_string());
    let (incarnation, store, since, headers, slots, sent_at) = (99, 99, None, 1, 0, 0);
    let segments = vec![];
    rig.tell(
        9,
        Join {
            name,
            incarnation,
            store,
            since,
            tier: 0,
            apart: None,
            left: false,
            endpoint,
            host,
            headers,
            slots,
            sent_at,
            segments,
        },
    );
    assert!(matches!(&rig.said.last().unwrap().1.message, Message::Answer(a) if a.status == NMC_ERR_EXISTS));
}

#[test]
fn draining_names_the_replica_of_the_segment_that_is_drained() {
    let mut rig = Rig::with_nodes(3, false);
    // The same index and epoch on two nodes, of different puts.
    rig.local(0, 1, 1, 7);
    rig.local(1, 1, 1, 8);
    assert_eq!(rig.drain("n1/ram", false), Some(NMC_IN_PROGRESS));
    rig.now += 100;
    rig.on(Event::Tick);
    let copy = rig.said.iter().find_map(|(to, frame)| match &frame.message {
        Message::CopyThis(copy) => Some((*to, copy.from.put, copy.from.name.node)),
        _ => None,
    });
    assert_eq!(copy, Some((2, PutId::local(8), NodeId::of("n1"))));
    rig.facts(2, vec![published(4, 4, PutId::local(8))]);
    rig.pings(1);
    rig.pings_closed(1, vec![0], 1);
    for _ in 0..3 {
        rig.now += 100;
        rig.on(Event::Tick);
    }
    assert_eq!(rig.drain("n1/ram", false), Some(NMC_OK), "nothing is only there");
}

/// What it had may have been evicted while nobody heard of it.
#[test]
fn a_drain_does_not_count_on_who_is_back_and_has_not_told_what_it_has() {
    let drained = |rig: &mut Rig| {
        for _ in 0..3 {
            rig.now += 100;
            rig.on(Event::Tick);
            rig.pings_closed(0, vec![0], 1);
        }
        rig.drain("n0/ram", false)
    };
    for (same_life, told) in [(false, false), (true, false), (true, true)] {
        let mut rig = Rig::with_nodes(2, false);
        rig.local(0, 1, 1, 7);
        rig.facts(1, vec![published(4, 4, PutId::local(7))]);
        let at = rig.at(1);
        rig.join(1, if same_life { 2 } else { 12 }, 2, Some(at));
        if told {
            rig.report(1, Applied { position: at });
        }
        // It is where it should be, which says nothing of what it has.
        let (node, incarnation, sent_at) = (NodeId::of("n1"), rig.life(1), rig.now);
        let (used, closed, position) = (vec![0], vec![], rig.at(1));
        rig.tell(
            1,
            Ping { term: 5, node, incarnation, sent_at, position, used, closed, newest: 0, changed: rig.changed(1) },
        );
        assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS));
        assert_eq!(drained(&mut rig), Some(if told { NMC_OK } else { NMC_IN_PROGRESS }), "{same_life} {told}");
    }
}

/// A store that comes while another one is written down must not begin where that one does.
#[test]
fn two_stores_do_not_arrive_under_one_name_at_once() {
    let mut rig = Rig::new(1, true);
    rig.writing = Some(Vec::new());
    rig.join(0, 3, 3, None);
    rig.join(0, 4, 4, None);
    let refused = |(_, frame): &(u64, Frame)| matches!(&frame.message, Message::Answer(a) if a.status == NMC_ERR_BUSY);
    assert!(rig.said.last().is_some_and(refused) && rig.welcome(0).is_none());
    rig.written(true);
    assert_eq!(rig.welcome(0).unwrap().incarnation, 3);
}

#[test]
fn a_drain_names_the_first_of_what_is_left() {
    let mut rig = Rig::with_nodes(1, false);
    let told = |rig: &mut Rig| {
        for _ in 0..3 {
            rig.now += 100;
            rig.on(Event::Tick);
        }
        let request = rig.ask(Drain { segment: "n0/ram".into(), cancel: false });
        match rig.answer(request) {
            Some(Message::Answer(answer)) => (answer.status, answer.count, answer.text.clone()),
            other => panic!("{other:?}"),
        }
    };
    let long = vec![b'l'; 1024];
    let keys = [(&b""[..], &b"k0"[..]), (b"space", b"\xffk1"), (b"", &long), (b"", b"k3"), (b"", b"k4"), (b"", b"k5")];
    for (index, (space, key)) in (1..).zip(keys) {
        let (key, put) = (ObjectKey::new(space, key).unwrap(), PutId::local(index.into()));
        rig.facts(0, vec![Published { index, epoch: 1, key, put, length: 1, segment: 0 }.into()]);
    }
    assert_eq!(told(&mut rig), (NMC_IN_PROGRESS, 0, String::new()), "nothing was looked at yet");
    let (status, left, text) = told(&mut rig);
    assert_eq!((status, left), (NMC_IN_PROGRESS, 6));
    let shown = format!("\"{}...\"", "l".repeat(48));
    assert_eq!(text, format!("\"k0\", \"\\xffk1\" of namespace \"space\", {shown}, \"k3\" and 2 more"));
    assert!(text.len() < 1000, "it fits into a message");
}

#[test]
fn a_copy_that_a_dead_node_may_have_does_not_keep_a_drain_waiting() {
    let mut rig = Rig::with_nodes(3, false);
    let put = rig.start(2).put;
    rig.facts(0, vec![published(1, 1, put)]);
    // The client tried n2, which does not answer and may have it; nobody knows until it is back.
    let end = rig.end(put, vec![rig.done(0, 1, 1)], &[2]);
    assert_eq!(rig.status(end), Some(NMC_OK));
    let copies = |rig: &Rig| rig.copies_asked().len();
    assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS));
    rig.passes(1_000, &[0, 1]);
    assert_eq!(copies(&rig), 0, "it may come");
    rig.passes(11_000, &[0, 1]);
    let asked = rig.copies_asked();
    assert!(!asked.is_empty() && asked.iter().all(|(to, from)| (*to, *from) == (1, NodeId::of("n0"))), "{asked:?}");
}

/// A value with a copy on the first two of so many nodes; what is lost of it is made again.
fn two_copies(nodes: u64) -> (Rig, PutId) {
    let mut rig = Rig::set_up(nodes, Config { re_replicate: 50, ..Config::default() });
    (0..nodes).for_each(|n| rig.come(n));
    rig.now += 1;
    rig.on(Event::Tick);
    let put = rig.start(2).put;
    rig.facts(0, vec![published(1, 1, put)]);
    rig.facts(1, vec![published(1, 1, put)]);
    let end = rig.end(put, vec![rig.done(0, 1, 1), rig.done(1, 1, 1)], &[]);
    assert_eq!(rig.status(end), Some(NMC_OK));
    (rig, put)
}

#[test]
fn what_is_evicted_of_more_copies_than_are_wanted_is_no_less_wanted() {
    let (mut rig, put) = two_copies(4);
    // n1 is away, and a copy takes the place of what it had.
    rig.passes(12_000, &[0, 2, 3]);
    assert!(!rig.copies_asked().is_empty());
    rig.facts(2, vec![published(3, 3, put)]);
    // It is back and evicts what is one too many; then what is one of two is lost.
    rig.join(1, 2, 2, Some(rig.at(1)));
    rig.apply(1);
    assert_eq!(rig.found().replicas.len(), 3);
    rig.facts(1, vec![retired(1, 1)]);
    let before = rig.copies_asked().len();
    rig.passes(12_000, &[1, 2, 3]);
    assert!(rig.copies_asked().len() > before, "there should be two");
    // What an owner gives up of as many as are wanted is not made again.
    rig.facts(3, vec![published(4, 4, put)]);
    rig.facts(3, vec![retired(4, 4)]);
    let before = rig.copies_asked().len();
    rig.passes(12_000, &[1, 2, 3]);
    assert_eq!(rig.copies_asked().len(), before);
}

#[test]
fn nothing_is_left_only_when_the_node_stores_nothing_more() {
    let mut rig = Rig::with_nodes(2, false);
    let ticks = |rig: &mut Rig| {
        for _ in 0..3 {
            rig.now += 100;
            rig.on(Event::Tick);
        }
        rig.drain("n1/ram", false)
    };
    assert_eq!(ticks(&mut rig), Some(NMC_IN_PROGRESS));
    rig.pings(1);
    assert_eq!((rig.closed(0), rig.closed(1)), (vec![], vec![0]));
    assert_eq!(ticks(&mut rig), Some(NMC_IN_PROGRESS), "its programs may still put");
    // Something was put before it was closed, and its fact comes after that was said.
    rig.pings_closed(1, vec![0], 1);
    assert_eq!(ticks(&mut rig), Some(NMC_IN_PROGRESS), "a fact is missing");
    rig.local(1, 1, 1, 7);
    assert_eq!(ticks(&mut rig), Some(NMC_IN_PROGRESS), "it is only there");
    rig.facts(0, vec![published(4, 4, PutId::local(7))]);
    assert_eq!(ticks(&mut rig), Some(NMC_OK));
    // It is opened again, and drained once more from the beginning.
    assert_eq!(rig.drain("n1/ram", true), Some(NMC_OK));
    rig.pings(1);
    assert_eq!(rig.closed(1), vec![]);
    assert_eq!(rig.drain("n1/ram", false), Some(NMC_IN_PROGRESS));
    assert_eq!(ticks(&mut rig), Some(NMC_IN_PROGRESS));
    assert_eq!(rig.drain("none", true), Some(NMC_ERR_NOT_FOUND));
    // It has closed and is opened again; what it said before it heard of that comes late, in the next drain.
    rig.pings(1);
    rig.pings_closed(1, vec![0], 1);
    assert_eq!(ticks(&mut rig), Some(NMC_OK));
    let before = rig.changed(1);
    rig.drain("n1/ram", true);
    rig.pings(1);
    assert_eq!(rig.drain("n1/ram", false), Some(NMC_IN_PROGRESS));
    rig.pings_changed(1, vec![0], 1, before);
    assert_eq!(ticks(&mut rig), Some(NMC_IN_PROGRESS), "something may have been put in between");
    rig.pings_closed(1, vec![0], 1);
    assert_eq!(ticks(&mut rig), Some(NMC_OK));
}

#[test]
fn a_node_that_is_away_is_out_of_lookups_in_one_step() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.passes(9_900, &[1]);
    assert_eq!(rig.found().status, NMC_OK);
    rig.passes(200, &[1]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    // It comes back with what it had: nothing has to be told again.
    rig.join(0, 1, 1, Some(rig.at(0)));
    rig.apply(0);
    assert_eq!(rig.found().status, NMC_OK);
}

#[test]
fn one_namespace_too_many_is_dropped_and_what_comes_behind_it_is_heard() {
    let most = u32::try_from(MAX_SPACES).unwrap();
    let mut rig = Rig::new(1, false);
    rig.headers = most + 8;
    rig.come(0);
    let of = |space: u32| ObjectKey::new(format!("{space}").as_bytes(), b"k").unwrap();
    let fact = |index: u32, epoch| {
        let put = PutId::local(u64::from(index) + 1);
        Fact::from(Published { index, epoch, key: of(index), put, length: 1, segment: 0 })
    };
    let status = |rig: &mut Rig, space| {
        let request = rig.ask(Find { keys: vec![of(space)], missed: vec![] });
        match rig.answer(request) {
            Some(Message::Found(found)) => found.keys[0].status,
            other => panic!("{other:?}"),
        }
    };
    rig.facts(0, (0..most).map(|space| fact(space, 1)).collect());
    // One more, one in a namespace without a name, and one goes.
    rig.facts(0, vec![fact(most, 1), published(most + 1, 1, PutId::local(9)), retired(0, 1)]);
    assert_eq!(rig.last_ack(0).map(|ack| ack.next), Some(rig.next[0]), "the stream goes on");
    rig.now += 1;
    rig.on(Event::Tick);
    let dropped: Vec<Dropped> = rig.drops(0).entries.into_iter().map(|entry| entry.what).collect();
    let is = |what: &Dropped, index| matches!(what, Dropped::Replica(replica) if replica.index == index);
    assert!(dropped.len() == 2 && is(&dropped[0], most) && is(&dropped[1], most + 1), "{dropped:?}");
    assert_eq!((status(&mut rig, most), status(&mut rig, 1)), (NMC_ERR_NOT_FOUND, NMC_OK));
    rig.facts(0, vec![retired(most, 1), retired(most + 1, 1)]);
    // Namespace 0 has nothing any more: there is room for another.
    rig.facts(0, vec![fact(most, 2)]);
    assert_eq!((status(&mut rig, most), status(&mut rig, 0)), (NMC_OK, NMC_ERR_NOT_FOUND));
    rig.facts(0, vec![fact(0, 2)]);
    assert_eq!((status(&mut rig, most), status(&mut rig, 0)), (NMC_OK, NMC_ERR_NOT_FOUND), "and for none besides");
    // Who puts is told so before a byte is sent.
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let request = rig.ask(PutStart { key: of(0), length: 1, slices: vec![1], config: config.clone(), striped: false });
    assert_eq!(rig.status(request), Some(NMC_ERR_LIMIT));
    let key = ObjectKey::new(b"1", b"another").unwrap();
    let request = rig.ask(PutStart { key, length: 1, slices: vec![1], config, striped: false });
    assert!(matches!(rig.answer(request), Some(Message::PutPlaces(_))));
}

/// What a node has that is of a striped value: its stub, or one of its parts.
fn of_stripes(index: u32, key: ObjectKey, put: PutId, length: u64) -> Fact {
    Published { index, epoch: 1, key, put, length, segment: 0 }.into()
}

/// A leader of two nodes with a value of two parts of 4 and 3 bytes that was put before it came: the stub and the first part are on the first node. The other
/// one has not reported yet.
fn two_parts() -> (Rig, PutId) {
    two_parts_with(None)
}

/// The same, of a leader that does something wrong.
fn two_parts_with(flaw: Option<Flaw>) -> (Rig, PutId) {
    let (mut rig, whole) = (Rig::set_up(2, Config { flaw, ..Config::default() }), PutId::striped(4, 7));
    let part = |number| ObjectKey::part(whole, number).unwrap();
    for (n, facts) in [
        (0, vec![of_stripes(1, key(), whole, 2), of_stripes(2, part(0), PutId::clustered(4, 8), 4)]),
        (1, vec![of_stripes(1, part(1), PutId::clustered(4, 9), 3)]),
    ] {
        rig.join(n, n + 1, n + 1, None);
        rig.apply(n);
        rig.facts(n, facts);
        if n == 0 {
            rig.report(n, SnapshotEnd { facts: 2 });
        }
    }
    (rig, whole)
}

/// Keys of what a node is to drop.
fn dropped(rig: &Rig, n: u64) -> Vec<ObjectKey> {
    let told = rig.said.iter().filter(|(to, _)| *to == n);
    let entries = told.filter_map(|(_, frame)| match &frame.message {
        Message::Drops(drops) => Some(drops.entries.clone()),
        _ => None,
    });
    let keys = entries.flatten().filter_map(|entry| match entry.what {
        Dropped::Replica(replica) => Some(replica.key),
        _ => None,
    });
    let mut keys: Vec<ObjectKey> = keys.collect();
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn a_striped_value_is_as_long_as_its_parts_and_is_found_while_all_of_them_are() {
    let (mut rig, whole) = two_parts();
    let listed = rig.found();
    assert_eq!((listed.status, listed.replicas[0].put, listed.replicas[0].length), (NMC_OK, whole, 7));
    rig.report(1, SnapshotEnd { facts: 1 });
    rig.passes(1000, &[0, 1]);
    assert_eq!(rig.found().replicas.len(), 1);
    // The second node evicts its part.
    rig.facts(1, vec![retired(1, 1)]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    rig.passes(1000, &[0, 1]);
    assert_eq!(dropped(&rig, 0), [key(), ObjectKey::part(whole, 0).unwrap()]);
    assert!(dropped(&rig, 1).is_empty());
}

/// Looking for each part of each value would take a leader long, where many are asked for that have many.
#[test]
fn parts_of_a_value_are_looked_for_once_until_one_of_them_may_have_gone() {
    // How a part goes: it is evicted, its owner is away, or all of its namespace is removed.
    let goes: [fn(&mut Rig); 3] = [
        |rig| rig.facts(1, vec![retired(1, 1)]),
        |rig| rig.passes(11_000, &[0]),
        |rig| {
            rig.ask(RemoveAll { space: None, wait: false, call: 8 });
        },
    ];
    for (flaw, go) in [None, Some(Flaw::CountsOnce)].into_iter().flat_map(|flaw| goes.map(|go| (flaw, go))) {
        let (mut rig, _) = two_parts_with(flaw);
        rig.report(1, SnapshotEnd { facts: 1 });
        rig.passes(1000, &[0, 1]);
        assert_eq!(rig.found().replicas[0].length, 7);
        let looked = rig.master.parts_looked_for();
        for _ in 0..10 {
            assert_eq!(rig.found().replicas[0].length, 7);
        }
        assert_eq!(rig.master.parts_looked_for(), looked);
        go(&mut rig);
        let status = rig.found().status;
        // With its namespace the stub is gone too.
        let is_seen = flaw.is_none() || std::ptr::fn_addr_eq(go, goes[2]);
        assert_eq!(status, if is_seen { NMC_ERR_NOT_FOUND } else { NMC_OK });
    }
}

#[test]
fn nothing_of_a_striped_value_goes_while_a_node_is_telling_what_it_has() {
    let (mut rig, _) = two_parts();
    rig.facts(1, vec![retired(1, 1)]);
    rig.passes(2000, &[0, 1]);
    assert!(dropped(&rig, 0).is_empty(), "the part may be elsewhere on the node that is still reporting");
    assert_eq!(rig.found().status, NMC_ERR_UNAVAILABLE);
    rig.report(1, SnapshotEnd { facts: 2 });
    rig.passes(1000, &[0, 1]);
    assert_eq!(dropped(&rig, 0).len(), 2);

    // A snapshot in the middle of its life: what is on disk by now comes in a later range.
    let (mut rig, whole) = two_parts();
    rig.report(1, SnapshotEnd { facts: 1 });
    rig.passes(1000, &[0, 1]);
    rig.report(1, Range { from: 0, to: 16, live: vec![] });
    rig.passes(1000, &[0, 1]);
    assert_eq!(
        (dropped(&rig, 0).len(), rig.found().status),
        (0, NMC_OK),
        "it is where it was, as far as anybody knows"
    );
    let part = ObjectKey::part(whole, 1).unwrap();
    let live = vec![Published { index: 3, epoch: 2, key: part, put: PutId::clustered(4, 9), length: 3, segment: 0 }];
    rig.report(1, Range { from: 0, to: 16, live });
    rig.report(1, SnapshotEnd { facts: 1 });
    rig.passes(1000, &[0, 1]);
    assert_eq!((dropped(&rig, 0).len(), rig.found().status), (0, NMC_OK));

    // A node that is coming back has what it had, as far as anybody knows.
    let since = rig.at(1);
    rig.join(1, 20, 2, Some(since));
    assert_eq!(rig.found().status, NMC_ERR_UNAVAILABLE);
    rig.passes(1000, &[0]);
    assert!(dropped(&rig, 0).is_empty());
    // One that is away has lost it for whoever puts it anew.
    rig.passes(11_000, &[0]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    rig.passes(1000, &[0]);
    assert!(dropped(&rig, 0).is_empty(), "nobody has put it");
    rig.start(1);
    rig.passes(1000, &[0]);
    assert_eq!(dropped(&rig, 0).len(), 2);
}

#[test]
fn a_value_whose_stub_is_with_a_dead_owner_goes_when_somebody_puts_it_anew() {
    let (mut rig, whole) = two_parts();
    rig.report(1, SnapshotEnd { facts: 1 });
    rig.passes(1000, &[0, 1]);
    rig.passes(11_000, &[1]);
    assert!(dropped(&rig, 1).is_empty(), "nobody has put it");
    rig.start(1);
    rig.passes(1000, &[1]);
    assert_eq!(dropped(&rig, 1), [ObjectKey::part(whole, 1).unwrap()]);
}

/// How an owner that was away comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Back {
    /// It was only cut off.
    AsBefore,
    /// In another life, with what it had.
    WithAll,
    /// In another life, with nothing.
    WithNothing,
}

#[test]
fn a_striped_value_that_is_asked_for_while_an_owner_is_away_is_there_when_it_is_back_with_it() {
    for (away, back) in
        [0, 1].into_iter().flat_map(|n| [Back::AsBefore, Back::WithAll, Back::WithNothing].map(|b| (n, b)))
    {
        let (mut rig, whole) = two_parts();
        let (stays, part) = (1 - away, |number| ObjectKey::part(whole, number).unwrap());
        rig.report(1, SnapshotEnd { facts: 1 });
        rig.passes(1000, &[0, 1]);
        let stub = rig.found().replicas[0].name;
        let since = rig.at(away);
        rig.passes(11_000, &[stays]);
        let looked = rig.master.parts_looked_for();
        for missed in [vec![], vec![stub]] {
            let request = rig.ask(Find { keys: vec![key(), part(0), part(1)], missed });
            let Some(Message::Found(found)) = rig.answer(request) else { panic!("{:?}", rig.answer(request)) };
            assert_eq!(found.keys[0].status, NMC_ERR_NOT_FOUND, "{away} {back:?}");
            rig.passes(1000, &[stays]);
        }
        assert!(rig.master.parts_looked_for() - looked <= 3, "what was missing is looked for first");
        assert_eq!((dropped(&rig, 0), dropped(&rig, 1)), (vec![], vec![]), "{away} {back:?}");

        let life = if back == Back::AsBefore { away + 1 } else { 20 };
        rig.join(away, life, life, Some(since));
        rig.apply(away);
        if back == Back::WithAll {
            rig.facts[usize::try_from(away).unwrap()] = 0;
            let had = match away {
                0 => vec![of_stripes(1, key(), whole, 2), of_stripes(2, part(0), PutId::clustered(4, 8), 4)],
                _ => vec![of_stripes(1, part(1), PutId::clustered(4, 9), 3)],
            };
            rig.facts(away, had);
        }
        let facts = if back == Back::WithNothing { 0 } else { 2 - away };
        rig.report(away, SnapshotEnd { facts });
        rig.passes(3000, &[stays]);
        let status = if back == Back::WithNothing { NMC_ERR_NOT_FOUND } else { NMC_OK };
        assert_eq!(rig.found().status, status, "{away} {back:?}");
        let left = if stays == 0 { vec![key(), part(0)] } else { vec![part(1)] };
        let expected = if back == Back::WithNothing { left } else { vec![] };
        assert_eq!((dropped(&rig, stays), dropped(&rig, away)), (expected, vec![]), "{away} {back:?}");
    }
}

#[test]
fn parts_are_put_only_while_their_value_is_and_go_with_it() {
    let mut rig = Rig::with_nodes(2, false);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let start =
        |key: ObjectKey, striped: bool| PutStart { key, length: 2, slices: vec![2], config: config.clone(), striped };
    let request = rig.ask(start(key(), true));
    let Some(Message::PutPlaces(places)) = rig.answer(request) else { panic!("{:?}", rig.answer(request)) };
    let whole = places.put;
    assert!(whole.is_striped());
    let mut owners = Vec::new();
    for number in 0..2 {
        let part = ObjectKey::part(whole, number).unwrap();
        let request = rig.ask(start(part.clone(), false));
        let Some(Message::PutPlaces(places)) = rig.answer(request).cloned() else { panic!() };
        let owner = (0..2).find(|n| NodeId::of(&format!("n{n}")) == places.places[0].node).unwrap();
        owners.push(owner);
        rig.facts(owner, vec![of_stripes(1, part.clone(), places.put, 2)]);
        let done = vec![rig.done(owner, 1, 1)];
        let request = rig.ask(PutEnd { put: places.put, key: part, done, tried: vec![], crc: None });
        assert_eq!(rig.status(request), Some(NMC_OK));
    }
    assert_ne!(owners[0], owners[1], "parts take turns");
    for other in [ObjectKey::part(PutId(whole.0 ^ 1), 0).unwrap(), ObjectKey::part(whole, 4096).unwrap()] {
        let request = rig.ask(start(other, false));
        assert_eq!(rig.status(request), Some(NMC_ERR_STALE), "of nothing that is being put");
    }
    let reserved = ObjectKey::new(b"\xffw", b"k").unwrap();
    let request = rig.ask(start(reserved, false));
    assert_eq!(rig.status(request), Some(NMC_ERR_INVALID_ARG));
    let request = rig.ask(Remove { key: ObjectKey::part(whole, 0).unwrap(), wait: false, call: 3 });
    assert_eq!(rig.status(request), Some(NMC_ERR_INVALID_ARG));
    let request = rig.ask(RemoveAll { space: Some(Space(b"\xffp".to_vec())), wait: false, call: 4 });
    assert_eq!(rig.status(request), Some(NMC_ERR_INVALID_ARG));
    // Its time begins anew with each part: it began 29 s ago, and the last part now.
    rig.passes(29_000, &[0, 1]);
    rig.ask(start(ObjectKey::part(whole, 1).unwrap(), false));
    rig.passes(20_000, &[0, 1]);
    assert!(dropped(&rig, owners[0]).is_empty() && dropped(&rig, owners[1]).is_empty());
    rig.passes(40_000, &[0, 1]);
    for (number, owner) in (0..).zip(owners) {
        assert_eq!(dropped(&rig, owner), [ObjectKey::part(whole, number).unwrap()]);
    }
    let keys = rig.ask(ListKeys { cursor: 0, space: Space(b"\xffp".to_vec()), prefix: Prefix(vec![]) });
    assert!(matches!(rig.answer(keys), Some(Message::Keys(keys)) if keys.list.is_empty()), "parts are no keys");
}

/// Everything that there was went for a value that could not be there in any case.
#[test]
fn parts_that_could_never_be_there_together_are_refused_with_the_first() {
    let at = |segment: &str, media| Location { segment: segment.into(), media };
    // Two nodes of 100 bytes each: bytes of a part, how many, copies, where.
    for (bytes, count, copies, fixed, fits) in [
        (66, 3, 1, vec![], true),
        (67, 4, 1, vec![], false),
        (33, 3, 2, vec![], true),
        (50, 4, 2, vec![], false),
        (50, 2, 1, vec![at("n0", None)], true),
        (50, 3, 1, vec![at("n0", None)], false),
        (50, 3, 1, vec![at("n1/ram", Some(Media::Ram))], false),
        (50, 3, 8, vec![], false),
    ] {
        let what = format!("{count} of {bytes} bytes, {copies} copies, {fixed:?}");
        let config = Replicate { copies, media: vec![], fixed, near: String::new() };
        let start =
            |key, length, striped| PutStart { key, length, slices: vec![length], config: config.clone(), striped };
        let mut rig = Rig::with_nodes(2, false);
        let request = rig.ask(start(key(), count, true));
        let Some(Message::PutPlaces(places)) = rig.answer(request) else { panic!("{:?}", rig.answer(request)) };
        let whole = places.put;
        for number in 0..2 {
            let request = rig.ask(start(ObjectKey::part(whole, number).unwrap(), bytes, false));
            match rig.answer(request) {
                Some(Message::PutPlaces(_)) => assert!(fits, "{what}"),
                Some(Message::Answer(answer)) => assert_eq!((answer.status, fits), (NMC_ERR_NO_SPACE, false), "{what}"),
                other => panic!("{other:?}"),
            }
        }
        // A node that is about to come may take some.
        rig.join(2, 3, 3, None);
        let request = rig.ask(start(ObjectKey::part(whole, 0).unwrap(), bytes, false));
        let refused = matches!(rig.answer(request), Some(Message::Answer(answer)) if answer.status == NMC_ERR_NO_SPACE);
        assert!(!refused, "{what}");
    }
}

/// The disk of a node that is emptied goes with it; what was there counted as elsewhere, or was not looked at.
#[test]
fn a_drain_of_all_memory_copies_what_the_disk_has() {
    for (in_memory, on_disk) in [(true, false), (true, true), (false, true)] {
        let mut rig = Rig::with_nodes(2, false);
        let node = NodeId::of("n1");
        let disk = SegmentInfo { number: 1, name: "n1/ssd".into(), media: Media::Ssd, capacity: 9, used: 0, near: -1 };
        rig.tell(1, Mount { node, incarnation: 2, segment: disk, unmount: false });
        let put = PutId::local(7);
        if in_memory {
            rig.facts(1, vec![published(1, 1, put)]);
        }
        if on_disk {
            rig.facts(1, vec![Published { index: 9, epoch: 2, key: key(), put, length: 1, segment: 1 }.into()]);
        }
        let drained = |rig: &mut Rig| {
            for _ in 0..20 {
                rig.now += 100;
                rig.on(Event::Tick);
                rig.drain("n1/ram", false);
                let newest = rig.facts[1];
                rig.pings_closed(1, vec![0], newest);
            }
            rig.drain("n1/ram", false)
        };
        assert_eq!(drained(&mut rig), Some(NMC_IN_PROGRESS), "{in_memory}, {on_disk}");
        let asked = rig.copies_asked();
        assert!(!asked.is_empty() && asked.iter().all(|(to, from)| (*to, *from) == (0, node)), "{asked:?}");
        rig.facts(0, vec![published(3, 3, put)]);
        assert_eq!(drained(&mut rig), Some(NMC_OK), "{in_memory}, {on_disk}");
    }
}

/// Of two stores that take turns under one name the second had a position of somewhere else, and nothing was written down when it was
/// told to drop all: with another leader the first came back with what had been removed.
#[test]
fn a_store_that_comes_back_after_one_that_was_emptied_is_emptied_too() {
    for elsewhere in [Position { term: 1 << 50, number: 3 }, Position { term: 1, number: 1 }] {
        let mut rig = Rig::with_nodes(2, true);
        let first = rig.welcome(0).unwrap().head;
        rig.local(0, 1, 1, 7);
        rig.local(1, 1, 1, 8);
        rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty: false });
        rig.join(0, 12, 12, Some(elsewhere));
        assert!(rig.welcome(0).unwrap().fresh);
        let members = rig.members.clone();
        let (log, floor) = (Vec::new(), Position::default());
        rig.on(Event::Elected(Elected { term: 6, until: Millis::MAX, members, log, floor }));
        rig.join(0, 14, 1, Some(first));
        assert!(rig.welcome(0).unwrap().fresh, "{elsewhere:?}");
    }
}

/// n0 counts as away (stopped, cut off), goes on, and its program unmounts it before it has joined again: the master hears of that.
#[test]
fn a_leave_of_a_node_that_is_away_is_heard() {
    let mut rig = Rig::with_nodes(2, false);
    rig.passes(12_000, &[1]);
    rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty: true });
    rig.passes(2_000, &[1]);
    let all = rig.ask(RemoveAll { space: None, wait: true, call: 1 });
    rig.apply(1);
    assert_eq!(rig.status(all), Some(NMC_OK), "it is forgotten at once, if a master hears of it");
}

/// A program unmounts its node; a remove of what that had is IN_PROGRESS while the master writes down that the node is gone.
#[test]
fn a_node_that_has_left_with_nothing_is_in_nobodys_way_while_that_is_written_down() {
    for empty in [true, false] {
        let mut rig = Rig::with_nodes(2, false);
        rig.local(0, 1, 1, 7);
        rig.writing = Some(Vec::new());
        let first = rig.remove(1);
        assert_eq!(rig.answer(first), None, "its owner has not heard of it");
        let ends = rig.ask(Leave { node: NodeId::of("n0"), incarnation: 1, empty });
        assert_eq!(rig.status(ends), Some(NMC_OK));
        let second = rig.remove(2);
        let expected = if empty { NMC_OK } else { NMC_IN_PROGRESS };
        assert_eq!([first, second].map(|request| rig.status(request)), [Some(expected); 2]);
        // It comes again with something of its own: that is waited for like anybody's.
        rig.written(true);
        rig.join(0, 2, 2, None);
        rig.apply(0);
        rig.report(0, SnapshotEnd { facts: 0 });
        rig.local(0, 1, 1, 8);
        let third = rig.remove(3);
        assert_eq!(rig.answer(third), None);
        rig.passes(12_000, &[1]);
        assert_eq!(rig.status(third), Some(NMC_IN_PROGRESS));
    }
}

/// A drain says that nothing is left, though a put that ended with OK meanwhile is only there.
#[test]
fn a_drain_waits_for_puts_that_have_begun() {
    let mut rig = Rig::with_nodes(2, false);
    let config = Replicate {
        copies: 1,
        media: vec![],
        fixed: vec![Location { segment: "n1/ram".into(), media: None }],
        near: String::new(),
    };
    let request = rig.ask(PutStart { key: key(), length: 1, slices: vec![1], config, striped: false });
    let Some(Message::PutPlaces(places)) = rig.answer(request).cloned() else { panic!() };
    let put = places.put;
    assert_eq!(rig.drain("n1/ram", false), Some(NMC_IN_PROGRESS));
    // It took the put before it heard of the drain, has published it and told of it; then it is closed and quiet.
    rig.facts(1, vec![published(1, 1, put)]);
    rig.pings(1);
    rig.pings_closed(1, vec![0], 1);
    for _ in 0..3 {
        rig.now += 100;
        rig.on(Event::Tick);
    }
    let end = rig.end(put, vec![rig.done(1, 1, 1)], &[]);
    assert_eq!(rig.status(end), Some(NMC_OK));
    assert_eq!(rig.copies_asked().len(), 0);
    assert_eq!(rig.drain("n1/ram", false), Some(NMC_IN_PROGRESS), "what was just put is only there");
}

/// Its process has died, or only its connection: nobody knows for some seconds.
#[test]
fn a_put_goes_last_to_a_node_whose_connection_has_ended() {
    let mut rig = Rig::set_up(3, Config { sees_ends: true, ..Config::default() });
    (0..3).for_each(|n| rig.come(n));
    rig.now += 1;
    rig.on(Event::Tick);
    rig.on(Event::Closed(Peer(0)));
    for _ in 0..50 {
        let nodes: Vec<NodeId> = rig.start(1).places.iter().map(|place| place.node).collect();
        assert_ne!(nodes[0], NodeId::of("n0"), "{nodes:?}");
    }
    let all = rig.start(3).places;
    assert_eq!((all.len(), all[2].node), (3, NodeId::of("n0")), "it may be back in a moment");
}

/// Disk trouble: the node rests and counts as away; its tier is closed, and it begins anew, on the same connection.
#[test]
fn a_node_that_is_away_begins_anew_with_another_tier() {
    let mut rig = Rig::set_up(2, Config { sees_ends: true, ..Config::default() });
    (0..2).for_each(|n| rig.come(n));
    rig.now += 1;
    rig.on(Event::Tick);
    rig.passes(12_000, &[1]);
    rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty: false });
    rig.join(0, 9, 9, Some(Position { term: 5, number: 0 }));
    for _ in 0..300 {
        rig.passes(2_000, &[1]);
        rig.join(0, 9, 9, Some(Position { term: 5, number: 0 }));
    }
    let welcome = rig.welcome(0).unwrap();
    assert_eq!(welcome.incarnation, 9, "it has said that the former life has ended");
}

/// Another host mounts under the name of a node that has ended, in order, while it counted as away.
#[test]
fn a_name_is_free_when_its_holder_has_said_that_it_ends() {
    for away in [false, true] {
        let mut rig = Rig::set_up(2, Config { sees_ends: true, ..Config::default() });
        (0..2).for_each(|n| rig.come(n));
        rig.now += 1;
        rig.on(Event::Tick);
        if away {
            rig.passes(12_000, &[1]);
        }
        rig.tell(0, Leave { node: NodeId::of("n0"), incarnation: 1, empty: true });
        rig.on(Event::Closed(Peer(0)));
        let segment =
            SegmentInfo { number: 0, name: "n0/ram".into(), media: Media::Ram, capacity: 100, used: 0, near: -1 };
        let join = Join {
            name: "n0".into(),
            incarnation: 77,
            store: 77,
            since: None,
            tier: 0,
            apart: None,
            left: false,
            endpoint: "other:1".into(),
            host: "other".into(),
            headers: 16,
            slots: 0,
            sent_at: rig.now,
            segments: vec![segment],
        };
        rig.tell(6, join);
        assert!(rig.welcome(6).is_some(), "away: {away}: {:?}", rig.said.last());
    }
}

/// The master alone is stopped for longer than `gone_ms`, and goes on. Nodes are heard of a second later.
#[test]
fn a_master_that_was_stopped_for_long_forgets_nobody() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    rig.now += 3_700_000;
    rig.on(Event::Tick);
    for _ in 0..6 {
        rig.now += 166;
        rig.on(Event::Tick);
    }
    rig.join(0, 1, 1, Some(Position { term: 5, number: 0 }));
    assert!(!rig.welcome(0).unwrap().fresh, "it is told to drop all that it has");
}

/// One value is to be copied, which takes two seconds: how often is that asked for, and of whom?
#[test]
fn a_drain_asks_one_node_for_a_copy() {
    let mut rig = Rig::with_nodes(6, false);
    rig.local(0, 1, 1, 7);
    assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS));
    for _ in 0..12 {
        rig.now += 166;
        rig.on(Event::Tick);
    }
    let asked = rig.copies_asked();
    let nodes: std::collections::BTreeSet<u64> = asked.iter().map(|(to, _)| *to).collect();
    assert_eq!((asked.len(), nodes.len()), (1, 1), "{asked:?}");
}

/// A copy is made where nothing has to go for it, as long as that is anywhere; where everything is full the drain goes on.
#[test]
fn a_drain_copies_to_where_there_is_room() {
    for full in [vec![], vec![2], vec![1, 3], vec![1, 2, 3]] {
        let mut rig = Rig::with_nodes(4, false);
        full.iter().for_each(|n: &usize| rig.used[*n] = 95);
        (0..4).for_each(|n| rig.pings(n));
        (1..9).for_each(|index| rig.facts(0, vec![of_its_own(index)]));
        assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS));
        rig.on(Event::Tick);
        let asked: Vec<_> = rig.copies_asked().into_iter().map(|(to, _)| usize::try_from(to).unwrap()).collect();
        let into_full = asked.iter().filter(|to| full.contains(to)).count();
        assert_eq!((asked.len(), into_full), (8, if full.len() == 3 { 8 } else { 0 }), "{full:?}: {asked:?}");
    }
}

/// What was asked for counts until it is there: no node is asked to take more than it has room for while another has some.
#[test]
fn copies_that_are_on_their_way_take_room() {
    let mut rig = Rig::set_up(3, Config::default());
    (0..3).for_each(|n| rig.come(n));
    rig.now += 1;
    rig.on(Event::Tick);
    // Room for two and for six.
    (rig.used[1], rig.used[2]) = (88, 84);
    (0..3).for_each(|n| rig.pings(n));
    (1..9).for_each(|index| rig.facts(0, vec![of_its_own(index)]));
    assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS));
    rig.on(Event::Tick);
    let asked = rig.copies_asked();
    let of = |node| asked.iter().filter(|(to, _)| *to == node).count();
    assert_eq!((of(1), of(2)), (2, 6), "{asked:?}");
}

/// A copy in the place of a lost one is made on another machine than the one that is left, if there is one.
#[test]
fn what_is_copied_again_is_on_another_machine() {
    for crowded in [false, true] {
        let mut rig = Rig::set_up(6, Config { re_replicate: 50, ..Config::default() });
        // n0, n2 and n4 are on one, the others on the other machine.
        rig.machines = 2;
        (0..6).for_each(|n| rig.come(n));
        rig.now += 1;
        rig.on(Event::Tick);
        if crowded {
            (rig.used[3], rig.used[5]) = (95, 95);
        }
        (0..6).for_each(|n| rig.pings(n));
        let put = rig.start(2).put;
        rig.facts(0, vec![published(1, 1, put)]);
        rig.facts(1, vec![published(1, 1, put)]);
        let end = rig.end(put, vec![rig.done(0, 1, 1), rig.done(1, 1, 1)], &[]);
        assert_eq!(rig.status(end), Some(NMC_OK));
        // n1 is lost; the copy of n0 is left.
        rig.passes(17_000, &[0, 2, 3, 4, 5]);
        let asked = rig.copies_asked();
        let apart = asked.iter().all(|(to, _)| to % 2 == 1);
        assert!(!asked.is_empty() && apart != crowded, "crowded: {crowded}: {asked:?}");
    }
}

/// Copies that have come make room for others at once, not when the whole segment was looked at.
#[test]
fn a_drain_goes_on_as_copies_come() {
    let mut rig = Rig::set_up(2, Config::default());
    rig.headers = 4096;
    (0..2).for_each(|n| rig.come(n));
    rig.now += 1;
    rig.on(Event::Tick);
    let all = 4000;
    (0..all).for_each(|index| rig.facts(0, vec![of_its_own(index)]));
    assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS));
    let (mut looks, mut come) = (0, 0);
    while come < 640 {
        rig.now += 100;
        rig.on(Event::Tick);
        looks += 1;
        assert!(looks < 40, "{come} copies after {looks} looks");
        for (_, frame) in std::mem::take(&mut rig.said) {
            if let Message::CopyThis(copy) = &frame.message {
                let index = copy.from.name.index;
                rig.facts(
                    1,
                    vec![
                        Published {
                            index,
                            epoch: 1,
                            key: copy.key.copy().unwrap(),
                            put: copy.from.put,
                            length: 1,
                            segment: 0,
                        }
                        .into(),
                    ],
                );
                come += 1;
            }
        }
    }
}

/// A segment that was drained and comes back with something under the same name is not taken for one that has nothing left.
#[test]
fn a_segment_that_is_mounted_anew_is_drained_anew() {
    let mut rig = Rig::with_nodes(2, false);
    rig.drain("n0/ram", false);
    rig.pings(0);
    rig.pings_closed(0, vec![0], 0);
    for _ in 0..3 {
        rig.now += 10;
        rig.on(Event::Tick);
    }
    assert_eq!(rig.drain("n0/ram", false), Some(NMC_OK));
    rig.join(0, 12, 12, None);
    rig.apply(0);
    rig.report(0, SnapshotEnd { facts: 0 });
    rig.local(0, 1, 1, 7);
    assert_eq!(rig.drain("n0/ram", false), Some(NMC_IN_PROGRESS), "it has something");
}

/// A value that is to be dropped moves to disk and back into memory before its owner hears of that.
#[test]
fn what_is_to_be_dropped_is_not_listed_in_its_third_place_either() {
    let mut rig = Rig::with_nodes(2, false);
    rig.local(0, 1, 1, 7);
    let remove = rig.remove(1);
    assert_eq!(rig.answer(remove), None);
    let there = |index| published(index, 1, PutId::local(7));
    rig.facts(0, vec![there(2), retired(1, 1)]);
    rig.facts(0, vec![there(3), retired(2, 1)]);
    assert_eq!(rig.found().status, NMC_ERR_NOT_FOUND);
    // A copy of it would stay.
    rig.report(1, Announce { key: key(), put: PutId::local(7), ticket: 1 });
    let answers = rig.said.iter().filter_map(|(_, frame)| match &frame.message {
        Message::Announced(announced) => Some(announced.status),
        _ => None,
    });
    assert!(answers.clone().count() == 1 && answers.clone().all(|status| status != NMC_OK));
    rig.apply(0);
    rig.facts(0, vec![retired(3, 1)]);
    assert_eq!(rig.status(remove), Some(NMC_OK));
}

/// Ends of a put that come while owners compare its checksum.
#[test]
fn everybody_who_ends_a_put_is_answered() {
    let mut rig = Rig::with_nodes(1, false);
    let put = rig.start(1).put;
    let done = vec![Done { fact: 0, ..rig.done(0, 3, 7) }];
    let end = |rig: &mut Rig, crc| rig.ask(PutEnd { put, key: key(), done: done.clone(), tried: vec![], crc });
    let ends = [end(&mut rig, Some(7)), end(&mut rig, Some(8)), end(&mut rig, None)];
    assert!(ends.iter().all(|request| rig.answer(*request).is_none()));
    let revoke = rig.ask(PutRevoke { put, key: key() });
    for request in ends {
        assert_eq!(rig.status(request), Some(NMC_ERR_STALE));
    }
    // The owner holds it back, and has told nothing of it.
    assert_eq!(rig.answer(revoke), None);
    rig.apply(0);
    assert_eq!(rig.status(revoke), Some(NMC_OK));
    assert_eq!(rig.start(1).places.len(), 1);
}

/// A node is back with an empty store, and whoever is asked for a copy of what it had makes none.
#[test]
fn a_copy_that_did_not_come_is_asked_for_again_after_a_restart() {
    let (mut rig, _) = two_copies(2);
    // It is killed and started again within two seconds, with another store.
    rig.now += 2_000;
    rig.facts[1] = 0;
    rig.join(1, 12, 12, None);
    rig.apply(1);
    rig.report(1, SnapshotEnd { facts: 0 });
    for _ in 0..600 {
        rig.now += 500;
        rig.pings(0);
        rig.lives[1] = 12;
        let position = rig.at(1);
        let (term, incarnation, sent_at) = (5, 12, rig.now);
        let (closed, newest, changed) = (vec![], 0, 0);
        let node = NodeId::of("n1");
        rig.tell(1, Ping { term, node, incarnation, sent_at, position, used: vec![0], closed, newest, changed });
        rig.on(Event::Tick);
    }
    assert_eq!(rig.found().replicas.len(), 1);
    assert!(rig.copies_asked().len() > 1, "asked {} times in five minutes", rig.copies_asked().len());
}

#[test]
fn a_put_that_takes_long_is_not_forgotten_while_its_client_may_wait() {
    // As long as its client said it waits, or at 16 MiB a second if that is longer; but not for ever, whatever it says.
    let gib = 1u64 << 30;
    for (length, time_left_ms, known, gone) in [
        (1, 1_000, 29_000, 62_000),
        (4 * gib, 120_000, 149_000, 320_000),
        (4 * gib, 600_000, 629_000, 662_000),
        (4 * gib, 0, 285_000, 320_000),
        (16 << 20, u32::MAX, 1_600_000, 1_800_000),
        // Many small ones wait for each other.
        (128 << 10, 600_000, 600_000, 662_000),
    ] {
        for after in [known, gone] {
            let mut rig = Rig::new(1, false);
            rig.capacity = 8 * gib;
            rig.come(0);
            rig.now += 1;
            rig.on(Event::Tick);
            let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
            let start = PutStart { key: key(), length, slices: vec![length], config, striped: false };
            rig.request += 1;
            let request = rig.request;
            let frame = Frame { request, time_left_ms, message: start.into() };
            rig.on(Event::Message(Peer(CLIENT), frame));
            let Some(Message::PutPlaces(places)) = rig.answer(request).cloned() else { panic!("{:?}", rig.said) };
            for _ in 0..after / 1_000 {
                rig.now += 1_000;
                rig.pings(0);
                rig.on(Event::Tick);
            }
            let revoke = rig.ask(PutRevoke { put: places.put, key: key() });
            let stale = rig.status(revoke) == Some(NMC_ERR_STALE);
            assert_eq!(stale, after == gone, "{length} bytes, {time_left_ms} ms, after {after} ms");
        }
    }
}
