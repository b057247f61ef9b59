//! The cluster: masters, nodes, and what passes between them, in simulated time.

use crate::counted::{Cost, USED, cpu_ns};
use crate::shelf::Shelf;
use nanomc::base::queue::Queue;
use nanomc::cluster::directory::{Action, Change, Config, Elected, Event, Figures, Master, Member, State};
use nanomc::cluster::facade::{MASTER_MS, PING_MS, RESEND_MS};
use nanomc::cluster::node::{self, Agent};
use nanomc::cluster::types::{Media, Millis, NodeId, Peer, Position, incarnation_of};
use nanomc::cluster::wire::{Frame, HEAD, Head, Message, Metadata, SegmentInfo};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// Peers above this are clients.
pub const CLIENT: u64 = 1 << 32;
/// Default of `nanomc-master --etcd_lease`, in ms.
pub const LEASE_MS: Millis = 5_000;
/// When the simulated time begins.
pub const START_MS: Millis = 1_000;
/// Simulated time that a cluster may take for anything.
pub const LIMIT_US: u64 = 600_000_000;

pub struct Node {
    pub agent: Agent<Shelf>,
    pub secret: u64,
    /// Frames of masters that have not been heard yet.
    pub mail: Vec<(usize, Vec<u8>)>,
    pub due: Millis,
}

/// A master, or none where one has died, and what has arrived there.
pub struct Place {
    pub master: Option<Master>,
    pub mail: Vec<(Peer, Vec<u8>)>,
    pub due: Millis,
}

pub struct Sim {
    pub now_us: u64,
    pub places: Vec<Place>,
    pub nodes: Vec<Node>,
    pub by_id: HashMap<NodeId, usize>,
    /// Answers to clients that nobody has taken yet.
    pub answers: Vec<Message>,
    pub cost: Cost,
    /// What the clock itself takes, of each time that it is looked at.
    pub clock_ns: u64,
    /// Bytes that masters have taken, less what they have given back.
    pub memory: i64,
    pub members: Vec<Member>,
    pub actions: Vec<Action>,
    pub bytes: Vec<u8>,
    pub scratch: Vec<u8>,
}

pub fn name(node: usize) -> String {
    format!("node-{node:04}")
}

pub fn segment(node: usize) -> String {
    format!("{}/ram", name(node))
}

pub fn agent(node: usize, objects: u32, now: Millis) -> Node {
    let secret = 0x5eed + node as u64;
    let info = SegmentInfo { number: 0, name: segment(node), media: Media::Ram, capacity: 1 << 44, used: 0, near: -1 };
    let config = node::Config {
        name: name(node),
        incarnation: incarnation_of(secret),
        store: 1 + node as u64,
        endpoint: format!("10.{}.{}.1:12300", node / 250, node % 250),
        host: format!("10.{}.{}.1", node / 250, node % 250),
        headers: objects + (1 << 20),
        slots: 0,
        volatile: false,
        segments: vec![info],
        masters: vec!["master-0".into(), "master-1".into()],
        ping_ms: PING_MS,
        resend_ms: RESEND_MS,
        master_ms: MASTER_MS,
        copy_ms: 5_000,
        remember_ms: 60_000,
        doubt_bytes: 0,
        doubt_ms: 10_000,
        stuck_ms: 5_000,
        rest_ms: (15_000, 600_000),
    };
    let shelf = Shelf::new(u32::try_from(node).unwrap(), objects);
    // Not all in the same moment.
    Node { agent: Agent::new(config, shelf, now), secret, mail: Vec::new(), due: now + node as u64 % PING_MS }
}

pub fn framed(message: impl Into<Message>, request: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame { request, time_left_ms: 5_000, message: message.into() }.encode(&mut bytes).unwrap();
    bytes.shrink_to_fit();
    bytes
}

pub fn parsed(bytes: &[u8]) -> Frame {
    let head = Head::decode(bytes.first_chunk::<HEAD>().unwrap()).unwrap();
    Frame::decode(&head, &bytes[HEAD..]).unwrap()
}

impl Sim {
    /// As many nodes with as many objects between them, of which the first master has heard nothing yet.
    pub fn new(nodes: usize, objects: usize) -> Self {
        let share = |node: usize| (objects / nodes + usize::from(node < objects % nodes)) as u32;
        let master = || Master::new(Config { sees_ends: true, durable: true, secret: [7; 32], ..Config::default() });
        let place = |_| Place { master: Some(master()), mail: Vec::new(), due: 0 };
        let mut sim = Self {
            now_us: START_MS * 1000,
            places: (0..2).map(place).collect(),
            nodes: (0..nodes).map(|node| agent(node, share(node), START_MS)).collect(),
            by_id: (0..nodes).map(|node| (NodeId::of(&name(node)), node)).collect(),
            answers: Vec::new(),
            cost: Cost::default(),
            clock_ns: 0,
            memory: 0,
            members: Vec::new(),
            actions: Vec::new(),
            bytes: Vec::new(),
            scratch: Vec::with_capacity(1 << 17),
        };
        let (start, looks) = (cpu_ns(), 10_000);
        (0..looks).for_each(|_| _ = std::hint::black_box(cpu_ns()));
        sim.clock_ns = (cpu_ns() - start) / looks;
        sim
    }

    pub fn now(&self) -> Millis {
        self.now_us / 1000
    }

    pub fn elect(&mut self, at: usize, term: u64) {
        let members = self.members.clone();
        let elected = Elected { term, until: u64::MAX, members, log: Vec::new(), floor: Position::default() };
        self.work(at, Event::Elected(elected));
    }

    /// Has a master do something, and counts what that takes: reading messages, what they cause, and writing what is said.
    pub fn work(&mut self, at: usize, event: Event) {
        self.timed(at, |master, now, actions, _| master.on(event, now, actions));
    }

    pub fn timed(
        &mut self,
        at: usize,
        body: impl FnOnce(&mut Master, Millis, &mut Vec<Action>, &mut dyn FnMut(&mut Vec<Action>)),
    ) {
        let now = self.now();
        let Self { places, actions, bytes, scratch, cost, .. } = self;
        let Some(master) = &mut places[at].master else { return };
        bytes.clear();
        let mut ends: Vec<(Peer, usize)> = Vec::with_capacity(1 << 12);
        let mut records: Vec<(u64, Vec<Change>)> = Vec::new();
        let (memory, start) = (USED.load(Relaxed), cpu_ns());
        let mut send = |actions: &mut Vec<Action>| {
            for action in actions.drain(..) {
                match action {
                    Action::Send(to, frame) => {
                        frame.encode(scratch).unwrap();
                        bytes.extend_from_slice(scratch);
                        ends.push((to, bytes.len()));
                    }
                    Action::Record(number, changes) => records.push((number, changes)),
                }
            }
        };
        body(master, now, actions, &mut send);
        send(actions);
        cost.cpu_ns += (cpu_ns() - start).saturating_sub(self.clock_ns);
        self.memory += USED.load(Relaxed) as i64 - memory as i64;
        let mut from = 0;
        let said = std::mem::take(&mut self.bytes);
        for (to, end) in ends {
            let frame = said[from..end].to_vec();
            self.cost.said += 1;
            self.cost.said_bytes += frame.len() as u64;
            from = end;
            if to.0 >= CLIENT {
                self.answers.push(parsed(&frame).message);
            } else if let Some(node) = self.nodes.get_mut(to.0 as usize) {
                node.mail.push((at, frame));
            }
        }
        self.bytes = said;
        for (number, changes) in records {
            for change in changes {
                if let Change::Member(member) = change {
                    self.members.push(member);
                }
            }
            self.work(at, Event::Recorded(number, true));
        }
    }

    /// Has a master hear everything that has arrived.
    pub fn hear(&mut self, at: usize) {
        let mail = std::mem::take(&mut self.places[at].mail);
        self.cost.heard += mail.len() as u64;
        self.cost.heard_bytes += mail.iter().map(|(_, frame)| frame.len() as u64).sum::<u64>();
        for part in mail.chunks(1024) {
            self.timed(at, |master, now, actions, send| {
                for (peer, bytes) in part {
                    let mut frame = parsed(bytes);
                    // As the loop around a real master does.
                    if let Some(incarnation) = frame.message.own_incarnation() {
                        *incarnation = incarnation_of(*incarnation);
                    }
                    master.on(Event::Message(*peer, frame), now, actions);
                    send(actions);
                }
            });
        }
    }

    /// Has a node hear what has arrived, and do what is due.
    pub fn run(&mut self, number: usize) {
        let now = self.now();
        let node = &mut self.nodes[number];
        let mut told = Queue::new();
        for (from, bytes) in std::mem::take(&mut node.mail) {
            node.agent.hear(node::Event::Master(from, parsed(&bytes)), now, &mut told);
        }
        node.agent.on(node::Event::Tick, now, &mut told);
        node.due = node.agent.wake(now);
        while let Some(action) = told.pop() {
            match action {
                node::Action::Master(to, mut frame) => {
                    if let Some(incarnation) = frame.message.own_incarnation() {
                        *incarnation = node.secret;
                    }
                    let place = &mut self.places[to];
                    if place.master.is_some() {
                        place.mail.push((Peer(number as u64), framed(frame.message, frame.request)));
                    }
                    continue;
                }
                node::Action::Describe(key, from) => {
                    node.agent.on(node::Event::Described(key, from, Metadata::default(), 0), now, &mut told);
                }
                node::Action::Fill { ticket, .. } => node.agent.on(node::Event::Filled(ticket, true), now, &mut told),
                _ => {}
            }
        }
    }

    /// A moment: what has arrived is heard, and what is due is done. A millisecond passes, or as long as the masters have worked.
    pub fn step(&mut self) {
        let now = self.now();
        for number in 0..self.nodes.len() {
            if self.nodes[number].due <= now || !self.nodes[number].mail.is_empty() {
                self.run(number);
            }
        }
        let before = self.cost.cpu_ns;
        for at in 0..self.places.len() {
            self.hear(at);
            if self.places[at].due <= now {
                self.places[at].due = self.places[at].master.as_ref().map_or(u64::MAX, |master| master.wake(now));
                self.work(at, Event::Tick);
            }
        }
        self.now_us += 1000.max((self.cost.cpu_ns - before) / 1000);
    }

    pub fn figures(&self, at: usize) -> Option<Figures> {
        self.places[at].master.as_ref()?.figures(self.now())
    }

    pub fn active(&self, at: usize) -> usize {
        let members = self.places[at].master.as_ref().map(|master| master.members(self.now()).unwrap());
        members.map_or(0, |members| members.iter().filter(|member| member.state == State::Active).count())
    }

    /// Steps until a master knows everything.
    pub fn settle(&mut self, at: usize) {
        let start = self.now_us;
        while !self.figures(at).is_some_and(|figures| figures.settled) || self.active(at) < self.nodes.len() {
            self.step();
            assert!(self.now_us - start < LIMIT_US, "{:?}, {} active", self.figures(at), self.active(at));
        }
    }

    pub fn pass(&mut self, ms: Millis) {
        let end = self.now_us + ms * 1000;
        while self.now_us < end {
            self.step();
        }
    }

    /// Clients ask a master, all at once, and nothing else happens.
    pub fn ask(&mut self, at: usize, messages: Vec<Message>) -> Vec<Message> {
        let asked = messages.len();
        self.places[at].mail = (1..).zip(messages).map(|(n, message)| (Peer(CLIENT + n), framed(message, n))).collect();
        self.hear(at);
        assert!(self.answers.len() <= asked, "more answers than questions");
        std::mem::take(&mut self.answers)
    }

    /// Nodes say what they have to say, masters hear it, and the other way round, until nobody says anything. No time passes.
    pub fn rest(&mut self, at: usize, numbers: &[usize]) {
        let mut first = true;
        while first || numbers.iter().any(|number| !self.nodes[*number].mail.is_empty()) {
            first = false;
            numbers.iter().for_each(|number| self.run(*number));
            self.hear(at);
        }
    }
}
