//! The client by itself, told by hand what happened.

mod damage;
mod pace;

use super::ReadOrder;
use super::{Action, Call, Client, Config, Event, GetCall, Outcome, PutCall};
use crate::base::queue::Queue;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_EXISTS, NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND, NMC_ERR_STALE,
    NMC_ERR_TIMEOUT, NMC_ERR_TOO_SMALL, NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED, NMC_NOT_READY, NMC_OK,
};
use crate::cluster::types::{Media, Millis, Name, NodeId, ObjectKey, Position, PutId, terms_of};
use crate::cluster::wire::*;

fn key() -> ObjectKey {
    ObjectKey::new(b"", b"k").unwrap()
}

struct Rig {
    client: Client,
    now: Millis,
    actions: Vec<Action>,
}

fn replica(node: u64, put: u64) -> Replica {
    let name = Name { node: NodeId(node), incarnation: 1, index: 1, epoch: 1 };
    Replica { name, put: PutId(put), length: 3, media: Media::Ram, endpoint: format!("h{node}:1") }
}

fn fetched(status: i32, put: u64, follows: u64) -> Fetched {
    Fetched { status, put: PutId(put), length: 3, follows, sum: None, retain: 0, metadata: Metadata::default() }
}

impl Rig {
    fn new(pushed: bool) -> Self {
        Self::with_order(pushed, ReadOrder::Near)
    }

    fn with_order(pushed: bool, read_order: ReadOrder) -> Self {
        let masters = vec!["m0".into(), "m1".into()];
        let config = Config {
            masters,
            host: "h1".into(),
            master_ms: 400,
            owner_ms: 500,
            cache: 8,
            read_order,
            pushed,
            pushed_from: 0,
            seed: 1,
        };
        Self { client: Client::new(config), now: 1000, actions: Vec::new() }
    }

    fn on(&mut self, event: Event) {
        let mut actions = Queue::new();
        self.client.on(event, self.now, &mut actions);
        self.actions = actions.into_iter().collect();
    }

    /// The request that was sent to a master or a node, if one was.
    fn sent(&self) -> Vec<(u64, Message)> {
        let sent = self.actions.iter().filter_map(|action| match action {
            Action::Master(_, frame) | Action::Node(_, _, frame, _) => Some((frame.request, frame.message.clone())),
            _ => None,
        });
        sent.collect()
    }

    fn done(&self) -> Option<&Outcome> {
        self.actions.iter().find_map(|action| match action {
            Action::Done(_, outcome) => Some(outcome),
            _ => None,
        })
    }

    fn master_says(&mut self, message: impl Into<Message>) {
        let (request, _) = self.sent().last().unwrap().clone();
        self.on(Event::Master(0, Frame::answering(request, message)));
    }

    fn node_says(&mut self, request: u64, message: impl Into<Message>) {
        self.on(Event::Node(NodeId(1), Frame::answering(request, message)));
    }

    fn get(&mut self, into: usize) {
        let extent = |offset| Extent { region: 1, offset, length: 1 };
        let into = (0..into as u64).map(extent).collect();
        self.on(Event::Call(1, 2000, Call::Get(GetCall { into, ..GetCall::new(key(), u64::MAX) })));
    }

    fn put(&mut self, copies: u32) {
        self.put_at(copies, vec![]);
    }

    fn put_at(&mut self, copies: u32, fixed: Vec<Location>) {
        let config = Replicate { copies, media: vec![], fixed, near: String::new() };
        let (retain, metadata) = (0, Metadata::default());
        let put = PutCall { key: key(), length: 3, slices: vec![3], config, retain, metadata, crc: None, stripe: 0 };
        self.on(Event::Call(1, 2000, Call::Put(put)));
    }

    /// Ends the call and lets time pass: what is sent afterwards.
    fn end(&mut self) -> Vec<Message> {
        self.on(Event::End(1));
        assert_eq!(self.done().map(|outcome| outcome.status), Some(NMC_ERR_CANCELLED));
        let mut later = self.sent();
        for _ in 0..50 {
            self.now += 50;
            self.on(Event::Tick);
            assert_eq!(self.done(), None, "it ends once");
            later.extend(self.sent());
        }
        assert!(self.client.calls.is_empty() && self.client.shared.requests.due().is_none());
        later.into_iter().map(|(_, message)| message).collect()
    }

    fn found(&mut self, replicas: Vec<Replica>) {
        let status = if replicas.is_empty() { NMC_ERR_NOT_FOUND } else { NMC_OK };
        self.master_says(Found { term: 1, keys: vec![Listed { status, replicas }] });
    }

    fn places(&mut self, nodes: &[u64], copies: u32) {
        let place = |node: &u64| Place {
            node: NodeId(*node),
            incarnation: 1,
            segment: 0,
            media: Media::Ram,
            endpoint: format!("h{node}:1"),
            after: Position { term: 1, number: *node },
            exact: false,
        };
        let (status, term, put) = (NMC_OK, 1, PutId::clustered(1, 9));
        let places = nodes.iter().map(place).collect();
        self.master_says(PutPlaces { status, term, put, copies, places });
    }
}

fn done(node: u64) -> PutDone {
    let name = Name { node: NodeId(node), incarnation: 1, index: 1, epoch: 1 };
    PutDone { status: NMC_OK, done: Some(Done { name, fact: 1 }) }
}

fn no(status: i32) -> PutDone {
    PutDone { status, done: None }
}

#[test]
fn a_get_takes_one_replica_from_its_first_byte_and_the_next_if_that_fails() {
    let mut rig = Rig::new(false);
    rig.get(0);
    rig.found(vec![replica(2, 7), replica(1, 7)]);
    let (request, Message::Fetch(fetch)) = rig.sent()[0].clone() else { panic!() };
    assert_eq!((fetch.name.node, fetch.offset), (NodeId(1), 0), "the one on this host first");
    rig.node_says(request, fetched(NMC_OK, 7, 3));
    assert!(matches!(rig.actions[..], [Action::Take { length: 3, .. }]));
    rig.on(Event::Took(request, false));
    let (request, Message::Fetch(fetch)) = rig.sent()[0].clone() else { panic!() };
    assert_eq!((fetch.name.node, fetch.offset), (NodeId(2), 0));
    rig.node_says(request, fetched(NMC_OK, 7, 3));
    rig.on(Event::Took(request, true));
    assert_eq!(rig.done().map(|outcome| (outcome.status, outcome.count)), Some((NMC_OK, 3)));
    // Next time the place is known.
    rig.get(0);
    assert!(matches!(rig.sent()[0].1, Message::Fetch(_)));
}

#[test]
fn a_remembered_size_is_that_of_a_value_which_its_owner_has() {
    let mut rig = Rig::new(false);
    let small = |rig: &mut Rig| {
        let get = GetCall::new(key(), 1);
        rig.on(Event::Call(1, 2000, Call::Get(get)));
    };
    let too_small = Some((NMC_ERR_TOO_SMALL, 3));
    let told = |rig: &Rig| rig.done().map(|outcome| (outcome.status, outcome.count));
    // What the master says counts at once.
    small(&mut rig);
    rig.found(vec![replica(1, 7)]);
    assert_eq!(told(&rig), too_small);
    rig.get(0);
    rig.found(vec![replica(1, 7)]);
    let (request, _) = rig.sent()[0].clone();
    rig.node_says(request, fetched(NMC_OK, 7, 3));
    rig.on(Event::Took(request, true));
    // From then on its owner is asked, and no byte of it.
    small(&mut rig);
    let (request, Message::Fetch(fetch)) = rig.sent()[0].clone() else { panic!("{:?}", rig.actions) };
    assert_eq!(fetch.length, 0);
    rig.node_says(request, fetched(NMC_OK, 7, 0));
    assert_eq!(told(&rig), too_small);
    // It is gone: the master knows what there is instead.
    small(&mut rig);
    let request = rig.sent()[0].0;
    rig.node_says(request, fetched(NMC_ERR_NOT_FOUND, 0, 0));
    rig.found(vec![Replica { length: 1, ..replica(2, 8) }]);
    let (_, Message::Fetch(fetch)) = rig.sent()[0].clone() else { panic!("{:?}", rig.actions) };
    assert_eq!((fetch.name.node, fetch.length), (NodeId(2), 1));
}

#[test]
fn not_found_is_said_by_the_master_who_is_told_what_was_missed() {
    let mut rig = Rig::new(false);
    rig.get(0);
    rig.found(vec![replica(1, 7)]);
    let (request, _) = rig.sent()[0].clone();
    rig.node_says(request, fetched(NMC_ERR_NOT_FOUND, 0, 0));
    let Message::Find(find) = rig.sent()[0].1.clone() else { panic!() };
    assert_eq!(find.missed, [replica(1, 7).name]);
    rig.found(vec![]);
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_NOT_FOUND));
}

#[test]
fn an_owner_that_does_not_answer_is_not_missed_and_the_call_ends_by_its_deadline() {
    let mut rig = Rig::new(false);
    rig.get(0);
    rig.found(vec![replica(1, 7)]);
    while rig.done().is_none() {
        rig.now += 50;
        rig.on(Event::Tick);
        if let Some((request, Message::Find(find))) = rig.sent().last().cloned() {
            assert!(find.missed.is_empty());
            let keys = vec![Listed { status: NMC_OK, replicas: vec![replica(1, 7)] }];
            rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys })));
        }
        assert!(rig.now <= 3000);
    }
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_TIMEOUT));
}

#[test]
fn an_owner_that_gives_another_put_is_not_believed() {
    let mut rig = Rig::new(false);
    rig.get(0);
    rig.found(vec![replica(1, 7)]);
    let (request, _) = rig.sent()[0].clone();
    rig.node_says(request, fetched(NMC_OK, 8, 3));
    assert!(rig.actions.contains(&Action::Close(request)) && matches!(rig.sent()[0].1, Message::Find(_)));
}

#[test]
fn where_time_is_short_every_master_is_asked() {
    let mut rig = Rig::new(false);
    let get = Call::Get(GetCall::new(key(), u64::MAX));
    let asked = |rig: &Rig| {
        let to = |action: &Action| matches!(action, Action::Master(..)).then(|| action.clone());
        rig.actions.iter().find_map(to).map(|action| match action {
            Action::Master(at, frame) => (at, frame.request),
            _ => unreachable!(),
        })
    };
    // The first is stopped: as long as it was waited for before, there was no time left for the other.
    rig.on(Event::Call(1, 400, get.clone()));
    assert_eq!(asked(&rig).map(|(at, _)| at), Some(0));
    let second = loop {
        rig.now += 10;
        rig.on(Event::Tick);
        assert_eq!(rig.done(), None, "it is over before the second was asked");
        if let Some(second) = asked(&rig) {
            break second;
        }
    };
    assert_eq!(second.0, 1);
    rig.now += 50;
    let found = Found { term: 1, keys: vec![Listed { status: NMC_ERR_NOT_FOUND, replicas: vec![] }] };
    rig.on(Event::Master(1, Frame::answering(second.1, found)));
    assert_eq!(rig.done().map(|done| done.status), Some(NMC_ERR_NOT_FOUND));
    // It leads: it has all the time that there is.
    rig.on(Event::Call(2, 400, get));
    assert_eq!(asked(&rig).map(|(at, _)| at), Some(1));
    for _ in 0..39 {
        rig.now += 10;
        rig.on(Event::Tick);
        assert_eq!((asked(&rig), rig.done()), (None, None));
    }
}

#[test]
fn a_leader_of_the_past_is_not_believed() {
    let mut rig = Rig::new(false);
    rig.get(0);
    let (request, _) = rig.sent()[0].clone();
    rig.client.shared.leaders.heard(1, 2);
    let keys = vec![Listed { status: NMC_ERR_NOT_FOUND, replicas: vec![] }];
    rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys })));
    assert_eq!(rig.done(), None);
}

#[test]
fn a_put_goes_to_its_owners_side_by_side_and_to_spare_ones_if_some_cannot() {
    let mut rig = Rig::new(false);
    rig.put(2);
    rig.places(&[1, 2, 3, 4], 2);
    let sent = rig.sent();
    let asked: Vec<u64> = sent.iter().map(|(request, _)| *request).collect();
    assert_eq!(asked.len(), 2);
    let after = |(_, message): &(u64, Message)| match message {
        Message::Put(put) => put.after.number,
        other => panic!("{other:?}"),
    };
    let afters: Vec<u64> = sent.iter().map(after).collect();
    assert_eq!(afters, [1, 2], "each owner what it has to apply itself");
    rig.node_says(asked[0], no(NMC_ERR_BUSY));
    let third = rig.sent()[0].0;
    rig.node_says(asked[1], done(2));
    assert!(rig.sent().is_empty(), "one has not answered");
    rig.node_says(third, done(3));
    let Message::PutEnd(end) = rig.sent()[0].1.clone() else { panic!() };
    let nodes: Vec<NodeId> = end.done.iter().map(|done| done.name.node).collect();
    assert_eq!((nodes, end.tried), (vec![NodeId(2), NodeId(3)], vec![NodeId(1)]));
    rig.master_says(Answer { count: 2, ..Answer::new(1, NMC_OK, "") });
    assert_eq!(rig.done().map(|outcome| (outcome.status, outcome.count)), Some((NMC_OK, 2)));
}

#[test]
fn a_put_begins_again_if_another_leader_came() {
    let mut rig = Rig::new(false);
    rig.put(1);
    rig.places(&[1], 1);
    let request = rig.sent()[0].0;
    rig.node_says(request, no(NMC_ERR_STALE));
    assert!(matches!(rig.sent()[0].1, Message::PutRevoke(_)));
    rig.now += 100;
    rig.on(Event::Tick);
    assert!(matches!(rig.sent()[0].1, Message::PutStart(_)));
}

#[test]
fn a_put_begins_again_while_an_owner_has_room_in_a_moment_and_there_is_time() {
    for status in [NMC_NOT_READY, NMC_ERR_BUSY] {
        let mut rig = Rig::new(false);
        rig.put(1);
        let mut starts = 0;
        while rig.done().is_none() {
            starts += 1;
            rig.places(&[1], 1);
            let request = rig.sent()[0].0;
            rig.node_says(request, no(status));
            assert!(matches!(rig.sent()[0].1, Message::PutRevoke(_)), "nothing is left of it");
            while rig.done().is_none() && !rig.sent().iter().any(|(_, said)| matches!(said, Message::PutStart(_))) {
                rig.now += 10;
                rig.on(Event::Tick);
            }
        }
        let ended = rig.done().map(|outcome| outcome.status);
        assert!(ended == Some(NMC_ERR_BUSY) || ended == Some(NMC_ERR_TIMEOUT), "{ended:?}");
        assert_eq!(starts > 3, status == NMC_NOT_READY, "{starts} times");
    }
}

/// Who has taken it already would say that it is there, until it hears that it is not to be.
#[test]
fn a_put_that_somebody_has_taken_does_not_begin_again() {
    for first in [done(1), no(NMC_ERR_TIMEOUT)] {
        let mut rig = Rig::new(false);
        rig.put_at(2, vec![Location { segment: "n2".into(), media: None }]);
        rig.places(&[2, 1], 2);
        let requests: Vec<u64> = rig.sent().iter().map(|(request, _)| *request).collect();
        rig.node_says(requests[1], first);
        rig.node_says(requests[0], no(NMC_NOT_READY));
        assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_BUSY));
    }
}

/// A node whose tier was opened or closed has begun another life: what it had taken is not to be, but is there until it hears so.
#[test]
fn a_put_that_begins_again_waits_until_what_it_left_is_gone() {
    let exists = |rig: &mut Rig| {
        rig.places(&[1], 1);
        let request = rig.sent()[0].0;
        rig.node_says(request, no(NMC_ERR_EXISTS));
        assert!(matches!(rig.sent()[0].1, Message::PutRevoke(_)), "nothing is left of it");
    };
    let begins_again = |rig: &mut Rig| {
        while rig.done().is_none() && !rig.sent().iter().any(|(_, said)| matches!(said, Message::PutStart(_))) {
            rig.now += 10;
            rig.on(Event::Tick);
        }
    };
    let status = |rig: &Rig| rig.done().map(|outcome| outcome.status);
    let lost = || {
        let mut rig = Rig::new(false);
        rig.put(1);
        rig.places(&[1], 1);
        let request = rig.sent()[0].0;
        rig.node_says(request, done(1));
        rig.master_says(Answer::new(1, NMC_ERR_STALE, ""));
        begins_again(&mut rig);
        exists(&mut rig);
        begins_again(&mut rig);
        assert_eq!(status(&rig), None);
        rig
    };
    let mut rig = lost();
    rig.places(&[1], 1);
    let request = rig.sent()[0].0;
    rig.node_says(request, done(1));
    rig.master_says(Answer { count: 1, ..Answer::new(1, NMC_OK, "") });
    assert_eq!(status(&rig), Some(NMC_OK));
    // Another put was faster: the master knows of that.
    let mut rig = lost();
    rig.master_says(Answer::new(1, NMC_ERR_EXISTS, ""));
    assert_eq!(status(&rig), Some(NMC_ERR_EXISTS));
    // It does not go.
    let mut rig = lost();
    while rig.done().is_none() {
        exists(&mut rig);
        begins_again(&mut rig);
    }
    assert_eq!(status(&rig), Some(NMC_ERR_TIMEOUT));
    // Control: what begins for the first time has left nothing.
    let mut rig = Rig::new(false);
    rig.put(1);
    exists(&mut rig);
    assert_eq!(status(&rig), Some(NMC_ERR_EXISTS));
}

#[test]
fn an_end_that_is_not_answered_is_asked_for_again() {
    let mut rig = Rig::new(false);
    rig.put(1);
    rig.places(&[1], 1);
    let request = rig.sent()[0].0;
    rig.node_says(request, done(1));
    rig.master_says(Answer::new(1, NMC_ERR_UNAVAILABLE, ""));
    rig.now += 100;
    rig.on(Event::Tick);
    assert!(matches!(rig.sent()[0].1, Message::PutEnd(_)));
}

#[test]
fn a_get_whose_bytes_somebody_else_moves_returns_when_nothing_can_arrive_any_more() {
    let mut rig = Rig::new(true);
    rig.get(3);
    rig.found(vec![replica(1, 7)]);
    rig.now += 500;
    rig.on(Event::Tick);
    assert!(matches!(rig.sent()[0].1, Message::CancelFetch(_)) && rig.done().is_none());
    rig.now += 1000;
    rig.on(Event::Tick);
    assert!(rig.actions.contains(&Action::Renew(1)) && rig.done().is_none());
    rig.now += 600;
    rig.on(Event::Tick);
    assert_eq!(rig.done(), None, "the deadline has passed, but its memory is not safe yet");
    rig.on(Event::Renewed(1));
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_TIMEOUT));
}

#[test]
fn an_owner_that_has_tried_to_write_is_not_believed_to_have_ended() {
    let mut rig = Rig::new(true);
    rig.get(3);
    rig.found(vec![replica(1, 7), replica(2, 7)]);
    let request = rig.sent()[0].0;
    rig.node_says(request, fetched(NMC_ERR_TIMEOUT, 0, 0));
    assert!(rig.actions.contains(&Action::Renew(1)));
    assert!(rig.sent().is_empty(), "the next owner writes to the same memory");
    rig.on(Event::Renewed(1));
    assert!(matches!(&rig.sent()[0].1, Message::Fetch(fetch) if fetch.mover == 1));
}

#[test]
fn many_gets_that_lose_their_owner_together_wait_for_one_renewal() {
    const CALLS: u64 = 256;
    let mut rig = Rig::new(true);
    let into = vec![Extent { region: 1, offset: 0, length: 3 }];
    let mut fetches = Vec::new();
    for call in 1..=CALLS {
        let get = GetCall { into: into.clone(), ..GetCall::new(key(), u64::MAX) };
        rig.on(Event::Call(call, 2000, Call::Get(get)));
        rig.found(vec![replica(1, 7)]);
        let Some((request, Message::Fetch(_))) = rig.sent().last().cloned() else { panic!("{:?}", rig.actions) };
        fetches.push(request);
    }
    let renewals = |rig: &Rig| rig.actions.iter().filter(|action| matches!(action, Action::Renew(_))).count();
    let mut renewed = 0;
    // Its connection has ended: first what was asked on it, then, for most of them, what was to cancel that.
    for (at, request) in fetches.into_iter().enumerate() {
        rig.on(Event::Lost(request));
        let Some((cancel, Message::CancelFetch(_))) = rig.sent().last().cloned() else { panic!("{:?}", rig.actions) };
        if at % 4 != 0 {
            rig.on(Event::Lost(cancel));
            renewed += renewals(&rig);
        }
        assert!(rig.done().is_none());
    }
    assert_eq!(renewed, 1);
    // Their time passes; those of which nobody knows whether they were cancelled end with the others.
    rig.now += 900;
    rig.on(Event::Tick);
    assert_eq!(renewals(&rig), 0);
    rig.on(Event::Renewed(1));
    assert!(rig.client.calls.values().all(|op| matches!(&op.op, super::Op::Get(op) if op.wake() < Millis::MAX)));
    assert!(rig.client.shared.requests.due().is_none(), "no answer to what was cancelled is waited for");
    let mut done = 0;
    while rig.now < 3000 {
        rig.now += 50;
        rig.on(Event::Tick);
        done += rig.actions.iter().filter(|action| matches!(action, Action::Done(..))).count();
        assert_eq!(renewals(&rig), 0);
    }
    assert_eq!(done as u64, CALLS, "all have ended by their deadline");
}

#[test]
fn what_was_begun_after_a_renewal_is_ended_by_another() {
    let mut rig = Rig::new(true);
    rig.get(3);
    rig.found(vec![replica(1, 7), replica(2, 7)]);
    for number in 1..=2 {
        let request = rig.sent()[0].0;
        rig.node_says(request, fetched(NMC_ERR_TIMEOUT, 0, 0));
        assert!(rig.actions.contains(&Action::Renew(number)));
        // What is said of a former one ends nothing.
        rig.on(Event::Renewed(number - 1));
        assert!(
            rig.sent().is_empty()
                && rig.client.calls.values().all(|op| matches!(&op.op, super::Op::Get(op) if op.wake() == Millis::MAX))
        );
        rig.on(Event::Renewed(number));
    }
}

#[test]
fn an_owner_that_cannot_move_bytes_itself_sends_them_and_takes_them_on_a_stream() {
    let mut rig = Rig::new(true);
    rig.get(3);
    rig.found(vec![replica(1, 7)]);
    let request = rig.sent()[0].0;
    rig.node_says(request, fetched(NMC_ERR_UNSUPPORTED, 0, 0));
    let (request, message) = rig.sent()[0].clone();
    assert!(matches!(message, Message::Fetch(fetch) if fetch.into.is_empty()));
    rig.node_says(request, fetched(NMC_OK, 7, 3));
    rig.on(Event::Took(request, true));
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_OK));
    // Not asked again at once, and not when it is late: a stream is closed.
    rig.get(3);
    assert!(matches!(&rig.sent()[0].1, Message::Fetch(fetch) if fetch.into.is_empty()));
    let mut rig = Rig::new(true);
    rig.put(1);
    rig.places(&[1], 1);
    let (request, message) = rig.sent()[0].clone();
    assert!(matches!(message, Message::Reserve(_)));
    rig.node_says(request, Reserved { status: NMC_ERR_UNSUPPORTED, name: None, extents: vec![], mover: 0 });
    assert!(matches!(rig.sent()[0].1, Message::Put(_)));
}

#[test]
fn a_put_whose_bytes_were_on_their_way_says_so_to_its_owner() {
    for (event, begun) in [(Event::Wrote(0, false), true), (Event::Unwritten(0), false)] {
        let mut rig = Rig::new(true);
        rig.put(1);
        rig.places(&[1, 2], 1);
        let request = rig.sent()[0].0;
        let name = Name { node: NodeId(1), incarnation: 1, index: 1, epoch: 1 };
        rig.node_says(request, Reserved { status: NMC_OK, name: Some(name), extents: vec![], mover: 0 });
        let written = rig.actions.iter().find_map(|action| match action {
            Action::Write { request, .. } => Some(*request),
            _ => None,
        });
        let number = written.unwrap();
        rig.on(match event {
            Event::Unwritten(_) => Event::Unwritten(number),
            _ => Event::Wrote(number, false),
        });
        let sent = rig.sent();
        assert!(matches!(&sent[0].1, Message::Stopped(stopped) if stopped.begun == begun));
        assert!(matches!(sent[1].1, Message::Reserve(_)), "the next owner is tried");
    }
}

#[test]
fn an_answer_that_comes_after_its_time_has_not_come() {
    let mut rig = Rig::new(true);
    rig.put(1);
    rig.places(&[1], 1);
    let request = rig.sent()[0].0;
    // The process slept: the owner may have given the pages to somebody else by now.
    rig.now += 600;
    let name = Name { node: NodeId(1), incarnation: 1, index: 1, epoch: 1 };
    rig.node_says(request, Reserved { status: NMC_OK, name: Some(name), extents: vec![], mover: 0 });
    assert!(!rig.actions.iter().any(|action| matches!(action, Action::Write { .. })));
}

#[test]
fn an_owner_has_more_time_where_much_is_on_its_way() {
    for (others, waits) in [(false, false), (true, true)] {
        let mut rig = Rig::new(false);
        if others {
            let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
            let (key, metadata) = (ObjectKey::new(b"", b"other").unwrap(), Metadata::default());
            let put = PutCall {
                key,
                length: 64 << 20,
                slices: vec![64 << 20],
                config,
                retain: 0,
                metadata,
                crc: None,
                stripe: 0,
            };
            rig.on(Event::Call(2, 10_000, Call::Put(put)));
        }
        rig.put(1);
        rig.places(&[1, 2], 1);
        // Longer than an owner has alone: then the next one is tried.
        rig.now += 700;
        rig.on(Event::Tick);
        let tried = rig.sent().iter().filter(|(_, message)| matches!(message, Message::Put(_))).count();
        assert_eq!(tried, usize::from(!waits));
        // But not for ever.
        rig.now += 1000;
        rig.on(Event::Tick);
        assert!(!waits || rig.sent().iter().any(|(_, message)| matches!(message, Message::Put(_))));
    }
}

#[test]
fn the_only_owner_that_there_is_has_almost_all_the_time_of_a_put() {
    let mut rig = Rig::new(false);
    rig.put(1);
    rig.places(&[1], 1);
    let request = rig.sent()[0].0;
    // It is late; nobody else could have it.
    rig.now += 1_400;
    rig.on(Event::Tick);
    assert!(rig.done().is_none());
    rig.node_says(request, done(1));
    assert!(matches!(rig.sent()[0].1, Message::PutEnd(_)));
    // One of two is not waited for like that.
    let mut rig = Rig::new(false);
    rig.put(2);
    rig.places(&[1, 2], 2);
    let request = rig.sent()[0].0;
    rig.node_says(request, done(1));
    rig.now += 700;
    rig.on(Event::Tick);
    assert!(matches!(rig.sent()[0].1, Message::PutEnd(_)));
}

#[test]
fn a_remove_that_was_ended_is_not_asked_for_again() {
    let mut rig = Rig::new(false);
    rig.on(Event::Call(1, 5000, Call::Remove(key(), true)));
    let request = rig.sent()[0].0;
    // No master is there: it would be asked again after a moment.
    rig.on(Event::Lost(request));
    assert_eq!(rig.end(), []);
    // Or one has it, and has not answered.
    rig.on(Event::Call(1, 5000, Call::Remove(key(), true)));
    let request = rig.sent()[0].0;
    rig.on(Event::End(1));
    assert!(rig.actions.contains(&Action::Close(request)));
    rig.on(Event::Master(0, Frame::answering(request, Answer::new(1, NMC_ERR_UNAVAILABLE, ""))));
    assert_eq!(rig.sent(), []);
}

#[test]
fn a_remove_whose_leader_was_lost_may_have_been_done_by_it() {
    let (own, other) = (terms_of(4), terms_of(9));
    for (lost, term, status) in
        [(false, own + 1, NMC_ERR_NOT_FOUND), (true, own + 2, NMC_OK), (true, other + 1, NMC_ERR_NOT_FOUND)]
    {
        let mut rig = Rig::new(false);
        rig.on(Event::Call(1, 5000, Call::Remove(key(), true)));
        rig.master_says(Answer::new(own + 1, NMC_OK, ""));
        rig.on(Event::Call(1, 5000, Call::Remove(key(), true)));
        if lost {
            let request = rig.sent()[0].0;
            rig.on(Event::Lost(request));
            rig.now += 700;
            rig.on(Event::Tick);
        }
        rig.master_says(Answer::new(term, NMC_ERR_NOT_FOUND, ""));
        assert_eq!(rig.done().map(|outcome| outcome.status), Some(status), "{lost} {term}");
    }
}

#[test]
fn a_put_that_was_ended_is_revoked_as_far_as_it_has_begun() {
    let revoke = || Message::from(PutRevoke { put: PutId::clustered(1, 9), key: key() });
    // Nobody has let it begin.
    let mut rig = Rig::new(false);
    rig.put(1);
    assert_eq!(rig.end(), []);
    // Its value is on the way.
    rig.put(1);
    rig.places(&[1, 2], 1);
    let request = rig.sent()[0].0;
    rig.on(Event::End(1));
    assert!(rig.actions.contains(&Action::Close(request)));
    assert_eq!(rig.sent(), [(0, revoke())]);
    rig.node_says(request, done(1));
    assert_eq!(rig.sent(), []);
    // Its owner has it, and its end was not answered.
    rig.put(1);
    rig.places(&[1], 1);
    let request = rig.sent()[0].0;
    rig.node_says(request, done(1));
    rig.master_says(Answer::new(1, NMC_ERR_UNAVAILABLE, ""));
    assert_eq!(rig.end(), [revoke()]);
}

#[test]
fn a_get_that_was_ended_asks_nobody_and_takes_nothing() {
    let mut rig = Rig::new(false);
    rig.get(0);
    assert_eq!(rig.end(), []);
    rig.get(0);
    rig.found(vec![replica(1, 7)]);
    let request = rig.sent()[0].0;
    rig.node_says(request, fetched(NMC_OK, 7, 3));
    rig.on(Event::End(1));
    assert!(rig.actions.contains(&Action::Close(request)));
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_CANCELLED));
    // Where somebody else moves the bytes it has ended when none can arrive any more.
    let mut rig = Rig::new(true);
    rig.get(3);
    rig.found(vec![replica(1, 7)]);
    rig.on(Event::End(1));
    assert!(matches!(rig.sent()[0].1, Message::CancelFetch(_)) && rig.done().is_none());
    let request = rig.sent()[0].0;
    rig.node_says(request, Answer::new(1, NMC_OK, ""));
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_CANCELLED));
}

/// Reads what is found, from the first that is asked; gives who that is, and when it is told that the value goes.
fn read_from(rig: &mut Rig, call: u64, replicas: Vec<Replica>, expire_ms: u32) -> (NodeId, u32) {
    let get = GetCall { expire_ms, ..GetCall::new(key(), u64::MAX) };
    rig.on(Event::Call(call, 2000, Call::Get(get)));
    if matches!(rig.sent().last(), Some((_, Message::Find(_)))) {
        rig.found(replicas);
    }
    let Some((request, Message::Fetch(fetch))) = rig.sent().last().cloned() else { panic!("{:?}", rig.actions) };
    let node = fetch.name.node;
    rig.node_says(request, fetched(NMC_OK, 9, 3));
    rig.on(Event::Took(request, true));
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_OK));
    (node, fetch.expire_ms)
}

#[test]
fn an_owner_is_told_that_what_is_read_goes_unless_nothing_of_it_is_read() {
    let mut rig = Rig::new(false);
    assert_eq!(read_from(&mut rig, 1, vec![replica(1, 9)], 1000).1, 1000);
    assert_eq!(read_from(&mut rig, 2, vec![replica(1, 9)], 0).1, 0);
    // There is no room for it: its owner is only asked whether it is there.
    let get = GetCall { expire_ms: 1000, ..GetCall::new(key(), 1) };
    rig.on(Event::Call(3, 2000, Call::Get(get)));
    let Some((_, Message::Fetch(fetch))) = rig.sent().last().cloned() else { panic!("{:?}", rig.actions) };
    assert_eq!((fetch.length, fetch.expire_ms), (0, 0));
}

#[test]
fn what_is_said_about_a_value_is_asked_for_without_a_byte_of_it() {
    let about = || GetCall { about: true, ..GetCall::new(key(), 0) };
    let said = |put| Fetched { metadata: Metadata(b"said".to_vec()), ..fetched(NMC_OK, put, 0) };
    let mut rig = Rig::new(false);
    rig.on(Event::Call(1, 2000, Call::Get(about())));
    rig.found(vec![replica(1, 7)]);
    // Also where its place is remembered: it may be gone.
    for call in 2..4 {
        let (request, Message::Fetch(fetch)) = rig.sent().pop().unwrap() else { panic!("{:?}", rig.actions) };
        assert_eq!((fetch.length, fetch.offset, fetch.stub), (0, 0, false));
        rig.node_says(request, said(7));
        let done = rig.done().unwrap();
        assert_eq!((done.status, done.count, done.metadata.0.as_slice()), (NMC_OK, 3, &b"said"[..]));
        rig.on(Event::Call(call, 2000, Call::Get(about())));
    }
    let (request, _) = rig.sent().pop().unwrap();
    rig.node_says(request, said(8));
    assert!(matches!(rig.sent().pop(), Some((_, Message::Find(find))) if find.missed.len() == 1), "of another put");
    // Of a striped value its stub is asked, and no part.
    let whole = PutId::striped(1, 5);
    let mut rig = Rig::new(false);
    rig.on(Event::Call(1, 2000, Call::Get(about())));
    rig.found(vec![Replica { length: 10, put: whole, ..replica(1, 0) }]);
    let (request, Message::Fetch(fetch)) = rig.sent().pop().unwrap() else { panic!("{:?}", rig.actions) };
    assert_eq!((fetch.length, fetch.stub), (0, true));
    rig.node_says(request, Fetched { metadata: Metadata(b"said".to_vec()), ..stub(whole, 3) });
    let done = rig.done().unwrap();
    assert_eq!((done.status, done.count, done.metadata.0.as_slice()), (NMC_OK, 10, &b"said"[..]));
}

#[test]
fn the_order_of_replicas_is_what_was_chosen() {
    let on = |node, media| Replica { media, ..replica(node, 9) };
    // On this machine it is on disk only.
    let list = || vec![on(1, Media::Ssd), on(2, Media::Ram), on(3, Media::Ram)];
    let first = |order| read_from(&mut Rig::with_order(false, order), 1, list(), 0).0;
    assert_eq!(first(ReadOrder::Near), NodeId(1));
    assert_ne!(first(ReadOrder::Memory), NodeId(1));
    // In memory everywhere.
    let list = || vec![on(1, Media::Ram), on(2, Media::Ram), on(3, Media::Ram)];
    let asked = |order| {
        let mut rig = Rig::with_order(false, order);
        let mut asked = Vec::new();
        // All of them are under way at the same time.
        for call in 1..=6 {
            let get = GetCall::new(key(), u64::MAX);
            rig.on(Event::Call(call, 2000, Call::Get(get)));
            rig.found(list());
            let Some((_, Message::Fetch(fetch))) = rig.sent().last().cloned() else { panic!("{:?}", rig.actions) };
            asked.push(fetch.name.node);
        }
        asked.sort_unstable();
        asked
    };
    assert_eq!(asked(ReadOrder::Near), [NodeId(1); 6]);
    assert_eq!(asked(ReadOrder::Memory), [NodeId(1); 6]);
    assert_eq!(asked(ReadOrder::Spread), [1, 1, 2, 2, 3, 3].map(NodeId), "the one that has least to do");
}

/// A stub of so many parts of a value of 10 bytes, as its owner gives it.
fn stub(whole: PutId, parts: u64) -> Fetched {
    Fetched { put: whole, length: parts, ..fetched(NMC_OK, 0, 0) }
}

/// A get that was told of a striped value of 10 bytes, and has asked for its stub.
fn asks_for_a_stub(room: u64) -> (Rig, PutId, u64) {
    let (mut rig, whole) = (Rig::new(false), PutId::striped(1, 5));
    let get = GetCall { keep: true, ..GetCall::new(key(), room) };
    rig.on(Event::Call(7, 5000, Call::Get(get)));
    let listed = Listed { status: NMC_OK, replicas: vec![Replica { length: 10, put: whole, ..replica(1, 0) }] };
    rig.master_says(Found { term: 1, keys: vec![listed] });
    let (request, sent) = rig.sent().pop().unwrap();
    assert!(matches!(&sent, Message::Fetch(Fetch { length: 0, stub: true, key: asked, .. }) if *asked == key()));
    (rig, whole, request)
}

#[test]
fn a_stub_with_an_impossible_number_of_parts_is_not_believed() {
    for parts in [0, 1, 6, 11, 4097, u64::MAX] {
        let (mut rig, whole, request) = asks_for_a_stub(100);
        rig.node_says(request, stub(whole, parts));
        let asked = rig.sent();
        assert!(matches!(&asked[..], [(_, Message::Find(find))] if find.missed.len() == 1), "{parts}: {asked:?}");
    }
}

#[test]
fn parts_are_read_to_where_they_belong_and_one_that_is_missing_ends_the_others() {
    let (mut rig, whole, request) = asks_for_a_stub(100);
    rig.node_says(request, stub(whole, 3));
    let (request, asked) = rig.sent().pop().unwrap();
    let Message::Find(find) = asked else { panic!("{asked:?}") };
    let parts: Vec<_> = find.keys.iter().map(|key| key.as_part().unwrap()).collect();
    assert_eq!(parts, [(whole, 0), (whole, 1), (whole, 2)], "all at once");
    let part =
        |number: u64, length| Listed { status: NMC_OK, replicas: vec![Replica { length, ..replica(1, 70 + number) }] };
    let keys = vec![part(0, 4), part(1, 4), part(2, 2)];
    rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys })));
    let fetches = rig.sent();
    assert_eq!(fetches.len(), 3);
    let give = |rig: &mut Rig, at: usize, length: u64| {
        let fetched = Fetched { length, ..fetched(NMC_OK, 70 + at as u64, length) };
        rig.on(Event::Node(NodeId(1), Frame::answering(fetches[at].0, fetched)));
        let taken = rig.actions.iter().find_map(|action| match action {
            Action::Take { into, length, .. } => Some((into.call, into.offset, *length)),
            _ => None,
        });
        rig.on(Event::Took(fetches[at].0, true));
        taken
    };
    assert_eq!(give(&mut rig, 2, 2), Some((7, 8, 2)));
    assert_eq!(give(&mut rig, 0, 4), Some((7, 0, 4)));
    assert_eq!(give(&mut rig, 1, 4), Some((7, 4, 4)));
    let done = rig.done().unwrap();
    assert_eq!((done.status, done.put, done.count), (NMC_OK, whole, 10));
    assert!(!rig.actions.iter().any(|action| matches!(action, Action::Keep(..))), "no copy of a stub is kept");

    // Once more; its place is known by now. The second part is nowhere.
    rig.on(Event::Call(8, 5000, Call::Get(GetCall::new(key(), 100))));
    let request = rig.sent()[0].0;
    rig.node_says(request, stub(whole, 3));
    let fetches = rig.sent();
    assert_eq!(fetches.len(), 3);
    rig.node_says(fetches[1].0, fetched(NMC_ERR_NOT_FOUND, 0, 0));
    let (request, find) = rig.sent().pop().unwrap();
    assert!(matches!(&find, Message::Find(find) if find.keys[0].as_part() == Some((whole, 1))));
    let none = Listed { status: NMC_ERR_NOT_FOUND, replicas: vec![] };
    rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys: vec![none.clone()] })));
    let closed = |number| rig.actions.contains(&Action::Close(number));
    assert!(closed(fetches[0].0) && closed(fetches[2].0) && rig.done().is_none());
    // The master is asked for what else there is, and has the last word.
    assert!(matches!(&rig.sent()[0].1, Message::Find(find) if find.keys == [key()] && find.missed.len() == 1));
    rig.master_says(Found { term: 1, keys: vec![none] });
    assert_eq!(rig.done().unwrap().status, NMC_ERR_NOT_FOUND);
}

#[test]
fn a_value_of_which_a_part_is_missing_does_not_hide_another_one_under_its_key() {
    let (mut rig, whole) = (Rig::new(false), PutId::striped(1, 5));
    let get = GetCall::new(key(), 100);
    rig.on(Event::Call(7, 5000, Call::Get(get)));
    // The near one is tried first.
    let in_parts = |node| Replica { length: 10, put: whole, ..replica(node, 0) };
    let replicas = vec![in_parts(1), in_parts(2), replica(3, 9)];
    rig.master_says(Found { term: 1, keys: vec![Listed { status: NMC_OK, replicas }] });
    let (request, asked) = rig.sent().pop().unwrap();
    assert!(matches!(asked, Message::Fetch(fetch) if fetch.stub && fetch.name.node == NodeId(1)));
    rig.node_says(request, stub(whole, 3));
    let nowhere = Listed { status: NMC_ERR_NOT_FOUND, replicas: vec![] };
    rig.master_says(Found { term: 1, keys: vec![nowhere.clone(); 3] });
    let (request, asked) = rig.sent().remove(0);
    assert!(matches!(&asked, Message::Find(find) if find.keys[0].as_part().is_some()), "{asked:?}");
    rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys: vec![nowhere] })));
    // Not the other stub: it is one of the same parts.
    let (_, asked) = rig.sent().pop().unwrap();
    assert!(matches!(&asked, Message::Fetch(fetch) if !fetch.stub && fetch.name.node == NodeId(3)), "{asked:?}");
}

#[test]
fn what_could_not_be_sent_for_want_of_memory_says_so_and_is_no_lack_of_answers() {
    let mut rig = Rig::new(false);
    let failed = |rig: &mut Rig| {
        let (request, _) = rig.sent().pop().unwrap();
        rig.on(Event::Failed(request, NMC_ERR_NO_MEMORY));
        rig.done().map(|outcome| outcome.status)
    };
    rig.get(0);
    assert_eq!(failed(&mut rig), Some(NMC_ERR_NO_MEMORY), "asking for its place");
    rig.get(0);
    rig.master_says(Found { term: 1, keys: vec![Listed { status: NMC_OK, replicas: vec![replica(1, 7)] }] });
    assert_eq!(failed(&mut rig), Some(NMC_ERR_NO_MEMORY), "asking its owner");
    rig.put(1);
    assert_eq!(failed(&mut rig), Some(NMC_ERR_NO_MEMORY), "beginning a put");
}

#[test]
fn a_stub_says_that_a_value_does_not_fit_if_it_is_still_there() {
    let (mut rig, whole) = (Rig::new(false), PutId::striped(1, 5));
    let get = |room| Call::Get(GetCall::new(key(), room));
    rig.on(Event::Call(7, 5000, get(9)));
    let listed = Listed { status: NMC_OK, replicas: vec![Replica { length: 10, put: whole, ..replica(1, 0) }] };
    rig.master_says(Found { term: 1, keys: vec![listed] });
    assert_eq!((rig.done().unwrap().status, rig.done().unwrap().count), (NMC_ERR_TOO_SMALL, 10));
}

#[test]
fn a_put_in_parts_puts_them_under_its_id_and_then_the_stub() {
    let mut rig = Rig::new(false);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let metadata = Metadata(b"said".to_vec());
    let put = PutCall { key: key(), length: 10, slices: vec![10], config, retain: 1, metadata, crc: None, stripe: 4 };
    rig.on(Event::Call(7, 5000, Call::Put(put)));
    let (request, start) = rig.sent().pop().unwrap();
    assert!(matches!(&start, Message::PutStart(PutStart { striped: true, length: 3, .. })), "{start:?}");
    let whole = PutId::striped(1, 9);
    let place = |node: u64| Place {
        node: NodeId(node),
        incarnation: 1,
        segment: 0,
        media: Media::Ram,
        endpoint: format!("h{node}:1"),
        after: Position::default(),
        exact: false,
    };
    let places = |put| PutPlaces { status: NMC_OK, term: 1, put, copies: 1, places: vec![place(1)] };
    rig.on(Event::Master(0, Frame::answering(request, places(whole))));
    let starts = rig.sent();
    let named = starts.iter().filter_map(|(_, start)| match start {
        Message::PutStart(start) => Some((start.key.as_part()?, start.length, start.striped)),
        _ => None,
    });
    let named: Vec<_> = named.collect();
    assert_eq!(named, [((whole, 0), 4, false), ((whole, 1), 4, false), ((whole, 2), 2, false)]);
    let done = |request: u64, node: u64| {
        let name = Name { node: NodeId(node), incarnation: 1, index: 1, epoch: request };
        PutDone { status: NMC_OK, done: Some(Done { name, fact: 1 }) }
    };
    let mut stub = None;
    for (at, (request, _)) in starts.iter().enumerate() {
        rig.on(Event::Master(0, Frame::answering(*request, places(PutId::clustered(1, 20 + at as u64)))));
        let from = rig.actions.iter().find_map(|action| match action {
            Action::Node(_, _, Frame { message: Message::Put(_), .. }, from) => Some(*from),
            _ => None,
        });
        assert_eq!(from.map(|from| (from.call, from.offset)), Some((7, 4 * at as u64)));
        let (asked, _) = rig.sent().pop().unwrap();
        rig.node_says(asked, done(asked, 1));
        assert!(stub.is_none(), "not before all parts have ended");
        let (end, _) = rig.sent().pop().unwrap();
        rig.on(Event::Master(0, Frame::answering(end, Answer { count: 1, ..Answer::new(1, NMC_OK, "") })));
        stub = rig.sent().pop();
    }
    let Some((request, Message::Put(put))) = stub else { panic!("{stub:?}") };
    assert_eq!((put.put, &put.key, put.length, put.metadata.0.as_slice()), (whole, &key(), 3, &b"said"[..]));
    rig.node_says(request, done(request, 1));
    let (end, _) = rig.sent().pop().unwrap();
    rig.on(Event::Master(0, Frame::answering(end, Answer { count: 1, ..Answer::new(1, NMC_OK, "") })));
    assert_eq!((rig.done().unwrap().status, rig.done().unwrap().put), (NMC_OK, whole));
}

/// The parts of a value of 10 bytes that were asked for, which somebody else moves: their requests, and the key's whole.
fn parts_on_their_way() -> (Rig, PutId, Vec<(u64, Message)>) {
    let (mut rig, whole) = (Rig::new(true), PutId::striped(1, 5));
    let into = vec![Extent { region: 1, offset: 100, length: 6 }, Extent { region: 2, offset: 0, length: 50 }];
    rig.on(Event::Call(7, 5000, Call::Get(GetCall { into, ..GetCall::new(key(), 56) })));
    let listed = Listed { status: NMC_OK, replicas: vec![Replica { length: 10, put: whole, ..replica(1, 0) }] };
    rig.master_says(Found { term: 1, keys: vec![listed] });
    let (request, sent) = rig.sent().pop().unwrap();
    assert!(matches!(&sent, Message::Fetch(fetch) if fetch.stub && fetch.into.is_empty()), "{sent:?}");
    rig.node_says(request, stub(whole, 3));
    let (request, _) = rig.sent().pop().unwrap();
    let part =
        |number: u64, length| Listed { status: NMC_OK, replicas: vec![Replica { length, ..replica(1, 70 + number) }] };
    let keys = vec![part(0, 4), part(1, 4), part(2, 2)];
    rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys })));
    let fetches = rig.sent();
    assert_eq!(fetches.len(), 3);
    (rig, whole, fetches)
}

#[test]
fn parts_that_somebody_else_moves_come_to_where_they_belong() {
    let (mut rig, whole, fetches) = parts_on_their_way();
    let into = fetches.iter().filter_map(|(_, message)| match message {
        Message::Fetch(fetch) => {
            Some(fetch.into.iter().map(|at| (at.region, at.offset, at.length)).collect::<Vec<_>>())
        }
        _ => None,
    });
    let into: Vec<_> = into.collect();
    assert_eq!(into, [vec![(1, 100, 4)], vec![(1, 104, 2), (2, 0, 2)], vec![(2, 2, 2)]]);
    for (at, length) in [(1, 4), (2, 2), (0, 4)] {
        let fetched = Fetched { length, ..fetched(NMC_OK, 70 + at as u64, 0) };
        rig.on(Event::Node(NodeId(1), Frame::answering(fetches[at].0, fetched)));
        let landed = rig.actions.iter().find_map(|action| match action {
            Action::Landed { into, length, .. } => Some((into.call, into.offset, *length)),
            _ => None,
        });
        assert_eq!(landed, Some((7, 4 * at as u64, length)));
    }
    assert_eq!(rig.done().map(|done| (done.status, done.put, done.count)), Some((NMC_OK, whole, 10)));
}

#[test]
fn nothing_goes_on_while_parts_that_somebody_else_moves_may_still_arrive() {
    for cancelled in [false, true] {
        let (mut rig, _, fetches) = parts_on_their_way();
        if cancelled {
            rig.on(Event::End(7));
        } else {
            rig.node_says(fetches[1].0, fetched(NMC_ERR_NOT_FOUND, 0, 0));
            let (request, _) = rig.sent().pop().unwrap();
            let none = Listed { status: NMC_ERR_NOT_FOUND, replicas: vec![] };
            rig.on(Event::Master(0, Frame::answering(request, Found { term: 1, keys: vec![none] })));
        }
        let mut cancels = rig.sent();
        let left = if cancelled { 3 } else { 2 };
        assert_eq!(cancels.len(), left, "{cancels:?}");
        assert!(cancels.iter().all(|(_, message)| matches!(message, Message::CancelFetch(_))) && rig.done().is_none());
        // Of one it is said that nothing is under way; of the last nobody knows.
        let (last, _) = cancels.pop().unwrap();
        for (request, _) in cancels {
            rig.node_says(request, Answer::new(1, NMC_OK, ""));
            assert!(rig.sent().is_empty() && rig.done().is_none());
        }
        rig.node_says(last, Answer::new(1, NMC_ERR_TIMEOUT, ""));
        assert!(rig.actions.contains(&Action::Renew(1)) && rig.done().is_none());
        rig.on(Event::Renewed(1));
        if cancelled {
            assert_eq!(rig.done().map(|done| done.status), Some(NMC_ERR_CANCELLED));
            assert!(rig.client.calls.is_empty());
        } else {
            assert!(matches!(&rig.sent()[0].1, Message::Find(find) if find.keys == [key()]), "{:?}", rig.actions);
        }
    }
}

#[test]
fn a_part_whose_memory_nobody_else_reaches_ends_the_call_at_once() {
    let (mut rig, _, fetches) = parts_on_their_way();
    rig.on(Event::Failed(fetches[0].0, NMC_ERR_UNSUPPORTED));
    let cancels = rig.sent();
    assert!(cancels.len() == 2 && rig.done().is_none());
    cancels.iter().for_each(|(request, _)| rig.node_says(*request, Answer::new(1, NMC_OK, "")));
    assert_eq!(rig.done().map(|done| done.status), Some(NMC_ERR_UNSUPPORTED));
}

#[test]
fn a_put_in_parts_that_is_ended_waits_for_those_that_somebody_else_writes() {
    let mut rig = Rig::new(true);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let metadata = Metadata::default();
    let put = PutCall { key: key(), length: 10, slices: vec![10], config, retain: 1, metadata, crc: None, stripe: 5 };
    rig.on(Event::Call(7, 5000, Call::Put(put)));
    let request = rig.sent().pop().unwrap().0;
    let place = |node: u64| Place {
        node: NodeId(node),
        incarnation: 1,
        segment: 0,
        media: Media::Ram,
        endpoint: format!("h{node}:1"),
        after: Position::default(),
        exact: false,
    };
    let places = |put| PutPlaces { status: NMC_OK, term: 1, put, copies: 1, places: vec![place(1)] };
    rig.on(Event::Master(0, Frame::answering(request, places(PutId::striped(1, 9)))));
    let starts = rig.sent();
    let mut writes = Vec::new();
    for (at, (request, _)) in starts.iter().enumerate() {
        rig.on(Event::Master(0, Frame::answering(*request, places(PutId::clustered(1, 20 + at as u64)))));
        let (asked, reserve) = rig.sent().pop().unwrap();
        assert!(matches!(&reserve, Message::Reserve(reserve) if reserve.put.length == 5), "{reserve:?}");
        let name = Name { node: NodeId(1), incarnation: 1, index: 1, epoch: 1 };
        rig.node_says(asked, Reserved { status: NMC_OK, name: Some(name), extents: vec![], mover: 0 });
        writes.extend(rig.actions.iter().filter_map(|action| match action {
            Action::Write { request, from, length, .. } => Some((*request, from.call, from.offset, *length)),
            _ => None,
        }));
    }
    assert_eq!(writes.iter().map(|write| (write.1, write.2, write.3)).collect::<Vec<_>>(), [(7, 0, 5), (7, 5, 5)]);
    rig.on(Event::End(7));
    assert!(writes.iter().all(|write| rig.actions.contains(&Action::CancelWrite(write.0))) && rig.done().is_none());
    rig.on(Event::Wrote(writes[0].0, false));
    assert_eq!(rig.done(), None, "the other part is still read");
    rig.on(Event::Wrote(writes[1].0, false));
    assert_eq!(rig.done().map(|done| done.status), Some(NMC_ERR_CANCELLED));
    assert!(rig.client.calls.is_empty());
}
