//! The agent of a node, and whoever speaks to it: masters, clients, other nodes.

use super::counted;
use super::script::{self, Step};
use super::shelf::{CAPACITY, HEADERS, SUM, Shelf};
use nanomc::base::queue::Queue;
use nanomc::cluster::node::{Action, Agent, Config, Event, Offer};
use nanomc::cluster::types::{Media, Millis, Name, NodeId, ObjectKey, Peer, Position, PutId};
use nanomc::cluster::wire::*;
use std::collections::VecDeque;

/// What steps are.
pub const COMMANDED: u8 = 0;
pub const SAID: u8 = 2;
pub const PASSES: u8 = 4;
pub const CLOSED: u8 = 5;
pub const CAME: u8 = 6;
pub const WITHIN: u8 = 7;

const TERM: u64 = 5;
const LIFE: u64 = 9;
const PEERS: u8 = 8;
const MASTERS: u8 = 2;

/// An agent, or what is tried in its place.
pub trait Machine {
    fn on(&mut self, event: Event, now: Millis, to: &mut Queue<Action>);
    fn begin_anew(&mut self, life: u64, now: Millis, to: &mut Queue<Action>);
}

impl Machine for Agent<Shelf> {
    fn on(&mut self, event: Event, now: Millis, to: &mut Queue<Action>) {
        Agent::on(self, event, now, to);
    }

    fn begin_anew(&mut self, life: u64, now: Millis, to: &mut Queue<Action>) {
        Agent::begin_anew(self, life, Offer { store: life, slots: 0, segments: vec![segment()] }, now, to);
    }
}

fn segment() -> SegmentInfo {
    SegmentInfo { number: 0, name: "n/ram".into(), media: Media::Ram, capacity: CAPACITY, used: 0, near: -1 }
}

fn config() -> Config {
    Config {
        name: "n".into(),
        incarnation: LIFE,
        store: 1,
        endpoint: "h:1".into(),
        host: "h".into(),
        headers: HEADERS,
        slots: 0,
        volatile: false,
        segments: vec![segment()],
        masters: vec!["m0".into(), "m1".into()],
        ping_ms: 1_000,
        resend_ms: 500,
        master_ms: 3_000,
        copy_ms: 5_000,
        remember_ms: 60_000,
        doubt_bytes: CAPACITY / 2,
        doubt_ms: 10_000,
        stuck_ms: 5_000,
        rest_ms: (15_000, 600_000),
    }
}

/// The agent that is tried.
pub fn agent(config: Config) -> Agent<Shelf> {
    Agent::new(config, Shelf::default(), 0)
}

/// What happens to an agent that is a member: no panic, what it says can be sent, and its memory follows what it was told.
pub fn body(data: &[u8]) {
    run(data, agent, |_| ());
}

/// The same with another machine; `said` gets all that was said, by anybody.
pub fn run<M: Machine>(data: &[u8], make: impl FnOnce(Config) -> M, said: impl FnMut(&Message)) {
    let before = counted::used();
    let mut rig =
        Rig { agent: make(config()), said, now: 10_000, life: LIFE, request: 0, next: 0, begun: VecDeque::new() };
    script::read(&prologue()).for_each(|step| rig.step(step));
    let (base, mut sent) = (counted::used() - before, 0);
    assert!(base < 1 << 20, "{base} bytes are taken by an agent to which nothing was said");
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
    agent: M,
    said: S,
    now: Millis,
    life: u64,
    request: u64,
    /// The report that is sent next.
    next: u64,
    /// What was begun, and has not ended.
    begun: VecDeque<Action>,
}

impl<M: Machine, S: FnMut(&Message)> Rig<M, S> {
    fn frame(&mut self, mut message: Message) -> Frame {
        // Small numbers stand for what somebody knows who was told everything.
        match &mut message {
            Message::Ack(ack) if ack.next == 0 => ack.next = self.next,
            Message::Fetch(Fetch { name, .. }) if name.node == NodeId(0) => {
                (name.node, name.incarnation) = (NodeId::of("n"), self.life);
            }
            _ => {}
        }
        (self.said)(&message);
        self.request += 1;
        Frame { request: self.request, time_left_ms: 1_000, message }
    }

    fn step(&mut self, step: Step) {
        let peer = Peer(step.who(PEERS));
        let (master, passes_ms) = (usize::from(step.about % MASTERS), step.passes_ms());
        match (step.what % 8, step.message) {
            (COMMANDED..SAID, Some(message)) => {
                let frame = self.frame(message);
                self.on(Event::Master(master, frame));
            }
            (SAID..PASSES, Some(message)) => {
                let frame = self.frame(message);
                self.on(Event::Message(peer, frame));
            }
            (PASSES, _) => {
                self.now += passes_ms;
                self.on(Event::Tick);
            }
            (CLOSED, _) => self.on(Event::Closed(peer)),
            (CAME, _) => self.ends(step.about.is_multiple_of(2)),
            (WITHIN, message) => match (step.about % 8, message) {
                (0, _) => self.on(Event::Sync(1, 2_000)),
                (1, Some(Message::CopyThis(copy))) => self.on(Event::Keep(copy.key, copy.from)),
                (2, Some(Message::Expire(expire))) => self.on(Event::Expire(expire.key, expire.put, expire.after_ms)),
                (3, _) => {
                    self.life += 1;
                    let mut actions = Queue::new();
                    self.agent.begin_anew(self.life, self.now, &mut actions);
                    self.heard(actions);
                }
                (4, _) => self.on(Event::Leave),
                _ => {}
            },
            _ => {}
        }
    }

    /// The oldest thing that was begun ends, well or not.
    fn ends(&mut self, whole: bool) {
        let event = match self.begun.pop_front() {
            Some(Action::Receive { put, .. }) => Event::Received(put, whole),
            Some(Action::SendValue { pin, .. }) => Event::Sent(pin, whole),
            Some(Action::Push { pin, .. }) if whole => Event::Sent(pin, whole),
            Some(Action::Push { pin, .. }) => Event::Unsent(pin),
            Some(Action::Describe(key, from)) => Event::Described(key, from, Metadata(vec![1]), 0),
            Some(Action::Fill { ticket, .. }) => Event::Filled(ticket, whole),
            Some(Action::Renew(number)) => Event::Renewed(number),
            _ => return,
        };
        self.on(event);
    }

    fn on(&mut self, event: Event) {
        let mut actions = Queue::new();
        self.agent.on(event, self.now, &mut actions);
        self.heard(actions);
    }

    fn heard(&mut self, actions: Queue<Action>) {
        let mut bytes = Vec::new();
        for action in actions {
            if let Action::Master(_, frame) | Action::Send(_, frame) | Action::SendValue { frame, .. } = &action {
                frame.encode(&mut bytes).expect("what an agent says can be sent");
                let again = super::frame::decode(&bytes).and_then(Result::ok).expect("and understood");
                (self.said)(&again.message);
                if let Message::Report(report) = again.message {
                    self.next = report.number + 1;
                }
            }
            if !matches!(action, Action::Master(..) | Action::Send(..) | Action::Synced(..)) {
                self.begun.push_back(action);
            }
        }
    }
}

fn object(text: &str) -> ObjectKey {
    ObjectKey::new(b"kv", text.as_bytes()).expect("a key")
}

fn position(number: u64) -> Position {
    Position { term: TERM, number }
}

fn welcome(term: u64, fresh: bool) -> Message {
    let (next, head, fence_ms, sent_at) = (term << STREAM_SHIFT, position(0), 60_000, 10_000);
    Welcome { term, incarnation: LIFE, next, fresh, apart: false, head, fence_ms, sent_at }.into()
}

fn ack(closed: Vec<u32>) -> Message {
    Ack { term: TERM, incarnation: LIFE, next: 0, facts: 1, sent_at: 10_000, closed, changed: 1 }.into()
}

fn put_of(random: u64, key: &str) -> Put {
    Put {
        put: PutId::clustered(TERM, random),
        term: TERM,
        incarnation: LIFE,
        after: position(0),
        segment: 0,
        key: object(key),
        length: 100,
        retain: 0,
        metadata: Metadata(vec![1, 2]),
        hold: false,
        exact: false,
    }
}

fn fetch(index: u32, epoch: u64, key: &str, into: Vec<Extent>) -> Message {
    let name = Name { node: NodeId(0), incarnation: 0, index, epoch };
    let (key, put) = (object(key), PutId(0));
    Fetch { name, key, put, offset: 10, length: 50, into, mover: 1, expire_ms: 100, stub: false, verify: false }.into()
}

/// The agent joins, and tells a leader what it has.
fn prologue() -> Vec<u8> {
    let mut steps = Vec::new();
    script::write(&mut steps, PASSES, 0, None);
    script::write(&mut steps, COMMANDED, 0, Some(&welcome(TERM, false)));
    (0..3).for_each(|_| script::write(&mut steps, COMMANDED, 0, Some(&ack(vec![]))));
    steps
}

/// What goes on at a node of a cluster in which nobody lies, as scripts.
pub fn examples() -> Vec<Vec<u8>> {
    let commands = |message: Message| (COMMANDED, 0, Some(message));
    let says = |message: Message| (SAID, 1, Some(message));
    let (passes, came, fails) = (|about| (PASSES, about, None), (CAME, 0, None), (CAME, 1, None));
    let put = |random, key: &str| [says(put_of(random, key).into()), came.clone(), commands(ack(vec![]))];
    let drops = |number, what: Dropped| {
        let entries = vec![DropEntry { position: position(number), what }];
        let (after, through) = (position(number - 1), position(number));
        commands(Drops { term: TERM, after, through, entries }.into())
    };
    let replica = Replica {
        name: Name { node: NodeId(3), incarnation: 4, index: 5, epoch: 6 },
        put: PutId::local(8),
        length: 200,
        media: Media::Ram,
        endpoint: "h2:1".into(),
    };
    let copy = CopyThis { term: TERM, incarnation: LIFE, key: object("c"), from: replica };
    let announced = Announced { term: TERM, incarnation: LIFE, ticket: 1, status: 0 };
    let extent = Extent { region: 1, offset: 0, length: 50 };
    let reserve = |random, key: &str| says(Reserve { put: put_of(random, key), writer: "w".into() }.into());
    let verify = Verify { term: TERM, incarnation: LIFE, put: PutId::clustered(TERM, 4), crc: SUM };
    let named = DropReplica { incarnation: LIFE, index: 0, epoch: 1, key: object("a"), put: PutId::clustered(TERM, 1) };
    let stub = Put { put: PutId::striped(TERM, 5), ..put_of(5, "s") };
    let scripts = vec![
        [
            put(1, "a").to_vec(),
            vec![says(fetch(0, 1, "a", vec![])), came.clone(), says(fetch(0, 1, "a", vec![extent.clone()]))],
            vec![says(CancelFetch { request: 7, incarnation: LIFE }.into()), fails.clone(), passes(5)],
            vec![drops(1, named.into()), commands(ack(vec![])), (WITHIN, 0, None), commands(ack(vec![0]))],
        ]
        .concat(),
        [
            put(1, "a").to_vec(),
            put(2, "b").to_vec(),
            put(3, "c").to_vec(),
            vec![says(fetch(1, 2, "b", vec![])), passes(1), passes(1), passes(1), passes(1), came.clone()],
            vec![says(fetch(1, 2, "b", vec![])), (CLOSED, 1, None), passes(2), passes(2), commands(ack(vec![]))],
            vec![drops(1, DropKey { key: object("b") }.into()), passes(3)],
            vec![drops(2, DropSpace { space: Some(Space(b"kv".to_vec())) }.into()), passes(3)],
            vec![drops(3, DropSpace { space: None }.into())],
        ]
        .concat(),
        vec![
            reserve(1, "a"),
            says(Commit { put: PutId::clustered(TERM, 1) }.into()),
            reserve(2, "b"),
            says(Stopped { put: PutId::clustered(TERM, 2), begun: true }.into()),
            reserve(3, "c"),
            passes(4),
            passes(6),
            came.clone(),
            passes(1),
        ],
        vec![
            commands(copy.clone().into()),
            came.clone(),
            came.clone(),
            passes(1),
            commands(announced.into()),
            commands(ack(vec![])),
            (WITHIN, 1, Some(copy.into())),
            came.clone(),
            fails.clone(),
        ],
        vec![
            says(Put { hold: true, ..put_of(4, "h") }.into()),
            came.clone(),
            commands(verify.into()),
            says(stub.into()),
            fails.clone(),
            says(put_of(6, "late").into()),
            passes(4),
            passes(6),
            fails,
            (WITHIN, 2, Some(Expire { key: object("h"), put: PutId(4), after_ms: 10 }.into())),
        ],
        [
            put(1, "a").to_vec(),
            vec![
                commands(Rejoin { term: TERM }.into()),
                passes(2),
                commands(welcome(TERM, true)),
                commands(Redirect { term: TERM + 1, leader: "m1".into() }.into()),
                passes(3),
                commands(welcome(TERM + 1, false)),
                passes(3),
                (WITHIN, 3, None),
                passes(6),
                (WITHIN, 4, None),
            ],
        ]
        .concat(),
    ];
    let one = |steps: Vec<(u8, u8, Option<Message>)>| {
        let mut bytes = Vec::new();
        steps.iter().for_each(|(what, about, message)| script::write(&mut bytes, *what, *about, message.as_ref()));
        bytes
    };
    scripts.into_iter().map(one).collect()
}
