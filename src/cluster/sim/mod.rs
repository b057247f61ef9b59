//! A simulator of a whole cluster in one thread: masters, what elects them, nodes, clients, and a network between them that
//! delays, loses, doubles and reorders; processes that pause, die and come back; stores that evict at any moment; movers whose
//! writes arrive late. All of it follows from one number: the same seed gives the same trace.
//!
//! `NMC_CLUSTER_SEEDS=10000 cargo test --release --lib cluster::sim` runs so many seeds.

mod check;
mod driver;
mod etcd;
mod mover;
mod processes;
mod setup;
mod tests;
mod tiers;

use super::client::{self, Client};
use super::directory::{self, Master};
use super::node::model::{Directory, Store, sum_of};
use super::node::{self, Agent};
use super::types::{Chance, Millis, NodeId, ObjectKey, Peer, PutId};
use super::wire::{Frame, Message, Remove};
use crate::base::queue::Queue;
use check::{Checker, Promise, What};
use driver::{Call, Fault};
use etcd::Etcd;
use mover::Mover;
use setup::{Control, Setup};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

// Everything is faster than in life, in proportion.
const LEASE_MS: Millis = 600;
const MARGIN_MS: Millis = 100;
const AWAY_MS: Millis = 2_000;
const GONE_MS: Millis = 12_000;
const SETTLE_MS: Millis = 800;
const PUT_MS: Millis = 4_000;
const PING_MS: Millis = 250;
/// How long a client's call may be late.
const LATE_MS: Millis = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Addr {
    Master(usize),
    Node(usize),
    Client(usize),
    Etcd,
}

/// A process, as far as it can fail.
#[derive(Debug, Clone, Copy, Default)]
struct Process {
    up: bool,
    /// Which start of it this is.
    life: u64,
    paused_until: Millis,
}

enum Event {
    /// A message arrives; for clients only if it is the same start of it.
    Deliver {
        from: Addr,
        peer: Peer,
        to: Addr,
        life: u64,
        frame: Frame,
        value: Option<Vec<u64>>,
    },
    Wake(Addr, u64),
    EtcdAsk {
        from: usize,
        life: u64,
        request: etcd::Request,
        sent_at: Millis,
    },
    EtcdReply {
        to: usize,
        life: u64,
        reply: etcd::Reply,
        sent_at: Millis,
    },
    /// Bytes move.
    Move(mover::Step),
    /// Something comes to an agent or a client from its own process.
    Agent(usize, u64, node::Event),
    Client(usize, u64, client::Event),
    Op,
    Fault,
    Heal(Fault),
    /// A call should have ended by now.
    Late(usize, u64, u64),
    /// Nobody wants anything of a call any more.
    Cancel(usize, u64, u64),
    /// Something happens to the tier of a node.
    Tier,
    /// A node's tier with this name has written a value for good.
    Stored(usize, u64, u64, node::Plan),
    /// A node notices that its tier is another one.
    Notice(usize, u64),
    /// A master, in this start of it, sees that a connection has ended.
    Closed(usize, u64, Peer),
}

struct SimNode {
    process: Process,
    agent: Option<Agent<Store>>,
    /// What is left of the store while the process is down.
    store: Option<Store>,
    store_id: u64,
    /// Tiers that are not open.
    shelf: Vec<Directory>,
    /// A former store, which may come back.
    aside: Option<(Store, u64)>,
    /// Since when its replicas are listed by the leader without a break.
    good_since: Option<Millis>,
    /// How often its mover was renewed.
    mover: u64,
    id: NodeId,
}

struct SimClient {
    process: Process,
    client: Client,
    next_call: u64,
    calls: BTreeMap<u64, Call>,
    mover: u64,
}

struct SimMaster {
    process: Process,
    master: Master,
    term: u64,
    asked: Millis,
    /// Connections that have ended.
    ended: Vec<Peer>,
    /// How often it was elected: what was sent to it before is not read.
    elected: u64,
}

/// See the module.
struct Sim {
    setup: Setup,
    now: Millis,
    chance: Chance,
    queue: BinaryHeap<Reverse<(Millis, u64, usize)>>,
    /// Events by their places; places are used again.
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    next: u64,
    /// How many events were handled, without ticks.
    handled: u64,
    trace: u64,
    masters: Vec<SimMaster>,
    etcd: Etcd,
    nodes: Vec<SimNode>,
    clients: Vec<SimClient>,
    cut: BTreeMap<(Addr, Addr), u32>,
    mover: Mover,
    checker: Checker,
    /// The end has come: no more calls, no more faults.
    calm: bool,
    next_value: u64,
    /// Lines about what happened, if somebody wants to read them.
    log: Option<Vec<String>>,
}

fn master_names(n: usize) -> Vec<String> {
    (0..n).map(|at| format!("m{at}")).collect()
}

fn node_name(at: usize) -> String {
    format!("n{at}")
}

impl Sim {
    fn new(setup: Setup) -> Self {
        let lease = if setup.durable { LEASE_MS } else { Millis::MAX };
        let chance = Chance::new(setup.seed);
        let (masters, nodes, clients) = (setup.masters, setup.nodes, setup.clients);
        let mut sim = Self {
            now: 1000,
            chance,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            next: 0,
            handled: 0,
            trace: 0,
            masters: Vec::new(),
            etcd: Etcd::new(lease, setup.seed),
            nodes: Vec::new(),
            clients: Vec::new(),
            cut: BTreeMap::new(),
            mover: Mover::default(),
            checker: Checker::default(),
            calm: false,
            next_value: 1,
            log: None,
            setup,
        };
        for at in 0..masters {
            let process = Process::default();
            let master = Master::new(sim.master_config(at));
            sim.masters.push(SimMaster { process, master, term: 0, asked: 0, ended: Vec::new(), elected: 0 });
            sim.start(Addr::Master(at));
        }
        for at in 0..nodes {
            let process = Process::default();
            let id = NodeId::of(&node_name(at));
            let shelf = Vec::new();
            let aside = None;
            let node = SimNode {
                process,
                agent: None,
                store: None,
                store_id: 0,
                shelf,
                aside,
                good_since: None,
                mover: 0,
                id,
            };
            sim.nodes.push(node);
            sim.start(Addr::Node(at));
        }
        for at in 0..clients {
            let process = Process::default();
            let config = sim.client_config(at);
            let client = sim.a_client(config);
            sim.clients.push(SimClient { process, client, next_call: 1, calls: BTreeMap::new(), mover: 0 });
            sim.start(Addr::Client(at));
        }
        if sim.setup.op_ms > 0 {
            sim.after(50, Event::Op);
            sim.after(300, Event::Fault);
            sim.after(100, Event::Tier);
        }
        sim
    }

    fn at(&mut self, time: Millis, event: Event) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.queue.push(Reverse((time.max(self.now), self.next, place)));
        self.next += 1;
    }

    fn after(&mut self, ms: Millis, event: Event) {
        self.at(self.now + ms, event);
    }

    /// How long something takes on its way.
    fn delay(&mut self) -> Millis {
        let usual = 1 + self.chance.below(8) as Millis;
        if self.setup.slow > 0 && self.hits(self.setup.slow) {
            let most = if self.hits(100) { 6000 } else { 400 };
            return usual + self.chance.below(most) as Millis;
        }
        usual
    }

    /// True so often in a thousand.
    fn hits(&mut self, permille: u64) -> bool {
        (self.chance.below(1000) as u64) < permille
    }

    fn is_cut(&self, a: Addr, b: Addr) -> bool {
        self.cut.get(&(a.min(b), a.max(b))).is_some_and(|n| *n > 0)
    }

    /// Sends a message, or loses it.
    fn send(&mut self, from: Addr, to: Addr, frame: Frame, value: Option<Vec<u64>>) {
        let life = match to {
            Addr::Master(at) => self.masters[at].elected,
            _ => self.life(to),
        };
        self.send_to(from, to, life, frame, value);
    }

    fn send_to(&mut self, from: Addr, to: Addr, life: u64, mut frame: Frame, value: Option<Vec<u64>>) {
        if self.setup.control == Some(Control::TrustWriter) {
            mover::trust_writer(&mut frame.message, from);
        }
        let peer = self.peer(from);
        if self.is_cut(from, to) || !self.calm && self.hits(self.setup.loss) {
            return;
        }
        if !self.calm && self.hits(self.setup.double) {
            let (delay, frame, value) = (self.delay() + 10, frame.clone(), value.clone());
            self.after(delay, Event::Deliver { from, peer, to, life, frame, value });
        }
        let delay = self.delay();
        self.after(delay, Event::Deliver { from, peer, to, life, frame, value });
    }

    /// Runs until enough has happened, then lets everything come to rest, and looks.
    fn run(&mut self) {
        let limit = self.setup.events;
        while self.handled < limit && self.checker.violations.is_empty() && self.step() {}
        if self.checker.violations.is_empty() {
            self.come_to_rest();
        }
    }

    fn run_for(&mut self, ms: Millis) {
        let end = self.now + ms;
        while self.queue.peek().is_some_and(|Reverse((time, ..))| *time <= end) && self.step() {}
        self.now = end;
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((time, _, place))) = self.queue.pop() else { return false };
        let Some(event) = self.events[place].take() else { return true };
        self.free.push(place);
        self.now = time;
        self.handle(event);
        true
    }

    fn note(&mut self, kind: u64, a: u64, b: u64) {
        for word in [self.now, kind, a, b] {
            self.trace = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>6} {}", self.now, text()));
        }
    }

    /// Whether a process may act now; if it is paused the event waits with it.
    fn ready(&mut self, addr: Addr, event: Event) -> Option<Event> {
        let now = self.now;
        let process = self.process(addr)?;
        if !process.up {
            return None;
        }
        if process.paused_until > now {
            let until = process.paused_until;
            let later = self.chance.below(5) as Millis;
            self.at(until + later, event);
            return None;
        }
        Some(event)
    }

    fn handle(&mut self, event: Event) {
        let addr = match &event {
            Event::Deliver { to, .. } => Some(*to),
            Event::Wake(addr, _) => Some(*addr),
            Event::EtcdReply { to, .. } => Some(Addr::Master(*to)),
            Event::Closed(at, ..) => Some(Addr::Master(*at)),
            Event::Agent(at, ..) | Event::Stored(at, ..) | Event::Notice(at, ..) => Some(Addr::Node(*at)),
            Event::Client(at, ..) | Event::Cancel(at, ..) => Some(Addr::Client(*at)),
            _ => None,
        };
        let event = match addr {
            Some(addr) => match self.ready(addr, event) {
                Some(event) => event,
                None => return,
            },
            None => event,
        };
        if !matches!(event, Event::Wake(..)) {
            self.handled += 1;
        }
        match event {
            Event::Deliver { from, peer, to, life, frame, value } => self.deliver((from, peer), to, life, frame, value),
            Event::Wake(addr, life) => self.wake(addr, life),
            Event::EtcdAsk { from, life, request, sent_at } => {
                let reply = self.etcd.on(from, request, sent_at, self.now);
                let delay = self.delay();
                if !self.is_cut(Addr::Master(from), Addr::Etcd) {
                    self.after(delay, Event::EtcdReply { to: from, life, reply, sent_at });
                } else if let etcd::Reply::Recorded(term, number, _) = reply {
                    // It may be written down, but nobody says so.
                    let reply = etcd::Reply::Recorded(term, number, false);
                    self.after(300, Event::EtcdReply { to: from, life, reply, sent_at });
                }
            }
            Event::EtcdReply { to, life, reply, sent_at } => self.etcd_reply(to, life, reply, sent_at),
            Event::Move(step) => self.move_on(step),
            Event::Agent(at, life, event) => {
                if self.nodes[at].process.life == life {
                    self.agent(at, event);
                }
            }
            Event::Client(at, life, event) => {
                if self.clients[at].process.life == life {
                    self.client(at, event);
                }
            }
            Event::Op => self.some_op(),
            Event::Fault => self.some_fault(),
            Event::Heal(fault) => self.heal(&fault),
            Event::Tier => self.some_tier(),
            Event::Stored(at, life, id, plan) => self.stored(at, life, id, plan),
            Event::Notice(at, life) => self.notice(at, life),
            Event::Closed(at, life, peer) => {
                if self.masters[at].process.life == life {
                    // Nothing comes on it after that.
                    self.masters[at].ended.push(peer);
                    self.master(at, directory::Event::Closed(peer));
                }
            }
            Event::Late(at, life, call) => self.late(at, life, call),
            Event::Cancel(at, life, call) => {
                if self.clients[at].process.life == life {
                    self.cancel(at, call);
                }
            }
        }
    }

    fn deliver(&mut self, (from, peer): (Addr, Peer), to: Addr, life: u64, frame: Frame, value: Option<Vec<u64>>) {
        self.note(1, u64::from(frame.message.number()), frame.request);
        self.say(|| format!("{from:?} -> {to:?}: {:?}", frame.message));
        match to {
            Addr::Master(at) => {
                let old = life != self.masters[at].elected;
                if old || self.masters[at].ended.contains(&peer) {
                    return;
                }
                if self.setup.control == Some(Control::PutEndAdds)
                    && let Message::PutEnd(end) = &frame.message
                {
                    self.masters[at].master.believe(end);
                }
                let mut frame = frame;
                match &mut frame.message {
                    Message::PutEnd(end) => {
                        end.done.iter().for_each(|done| self.checker.ends_with(end.put, done.name.node));
                    }
                    Message::Expire(expire) => {
                        self.checker.expires(expire.put, self.now + Millis::from(expire.after_ms));
                        match self.setup.control {
                            Some(Control::ExpireAtOnce) => expire.after_ms = 0,
                            Some(Control::ExpireByKey) => {
                                let remove = Remove { key: expire.key.clone(), wait: false, call: self.chance.word() };
                                let (after, frame) = (expire.after_ms.into(), Frame::telling(remove));
                                return self.after(after, Event::Deliver { from, peer, to, life, frame, value });
                            }
                            _ => {}
                        }
                    }
                    Message::Remove(remove) => {
                        self.checker.arrives(|what| matches!(what, What::Key(key) if *key == remove.key), self.now);
                    }
                    Message::RemoveAll(remove) => {
                        self.checker.arrives(|what| matches!(what, What::Space(s) if *s == remove.space), self.now);
                    }
                    _ => {}
                }
                self.master(at, directory::Event::Message(peer, frame));
            }
            Addr::Node(at) => {
                let mut frame = frame;
                if self.setup.control == Some(Control::BelieveAnySum)
                    && let Message::Verify(verify) = &mut frame.message
                    && let Some(put) = self.checker.puts.get(&verify.put)
                {
                    let pages = self.checker.values[&put.value].pages;
                    verify.crc = sum_of((0..pages).map(|page| check::content(put.value, page)));
                }
                let event = match from {
                    Addr::Master(master) => node::Event::Master(master, self.spoil(at, frame)),
                    _ => {
                        self.mover.arrives(peer, &frame, value);
                        node::Event::Message(peer, frame)
                    }
                };
                self.agent(at, event);
            }
            Addr::Client(at) => {
                if self.clients[at].process.life != life {
                    return;
                }
                if let Some(value) = value {
                    self.mover.answers.insert((at, frame.request), value);
                }
                let event = match from {
                    Addr::Master(master) => client::Event::Master(master, frame),
                    Addr::Node(node) => client::Event::Node(self.nodes[node].id, frame),
                    _ => return,
                };
                self.client(at, event);
            }
            Addr::Etcd => {}
        }
    }

    /// For a control: what a wrong owner makes of what it is told.
    fn spoil(&self, _: usize, mut frame: Frame) -> Frame {
        if self.setup.control == Some(Control::RemoveByKey)
            && let Message::Drops(drops) = &mut frame.message
        {
            for entry in &mut drops.entries {
                if let super::wire::Dropped::Replica(replica) = &entry.what {
                    entry.what = super::wire::DropKey { key: replica.key.clone() }.into();
                }
            }
        }
        frame
    }

    fn peer(&mut self, addr: Addr) -> Peer {
        let life = self.life(addr);
        match addr {
            Addr::Master(at) => Peer(at as u64),
            Addr::Node(at) => Peer(1000 + (life % 900) * 1000 + at as u64),
            Addr::Client(at) => Peer(1_000_000 + life * 1000 + at as u64),
            Addr::Etcd => Peer(999),
        }
    }

    fn addr(peer: Peer) -> (Addr, u64) {
        let at = usize::try_from(peer.0 % 1000).unwrap();
        match peer.0 {
            0..1000 => (Addr::Master(at), 0),
            1000..1_000_000 => (Addr::Node(at), 0),
            _ => (Addr::Client(at), (peer.0 - 1_000_000) / 1000),
        }
    }

    fn send_peer(&mut self, from: Addr, peer: Peer, frame: Frame, value: Option<Vec<u64>>) {
        let (to, life) = Self::addr(peer);
        self.send_to(from, to, life, frame, value);
    }

    fn wake(&mut self, addr: Addr, life: u64) {
        if self.life(addr) != life {
            return;
        }
        let now = self.now;
        let next = match addr {
            Addr::Master(at) => {
                self.master(at, directory::Event::Tick);
                self.speak_to_etcd(at);
                now + 60
            }
            Addr::Node(at) => {
                self.agent(at, node::Event::Tick);
                now + 60
            }
            Addr::Client(at) => {
                self.client(at, client::Event::Tick);
                let wake = self.clients[at].client.wake(now);
                wake.clamp(now + 5, now + 60)
            }
            Addr::Etcd => return,
        };
        self.at(next, Event::Wake(addr, life));
    }

    fn master(&mut self, at: usize, event: directory::Event) {
        let mut actions = Vec::new();
        self.masters[at].master.on(event, self.now, &mut actions);
        for action in actions {
            match action {
                directory::Action::Send(peer, frame) => self.send_peer(Addr::Master(at), peer, frame, None),
                directory::Action::Record(number, changes) => {
                    let term = self.masters[at].term;
                    self.ask_etcd(at, etcd::Request::Record(term, number, changes));
                }
            }
        }
        self.watch_standing();
    }

    /// Since when the leader lists what each node has.
    fn watch_standing(&mut self) {
        let leader = self.masters.iter().filter(|master| master.process.up);
        let leader = leader.filter_map(|m| Some((m.master.leads()?, m))).max_by_key(|(term, _)| *term);
        let standings: Vec<_> =
            self.nodes.iter().map(|node| leader.and_then(|(_, m)| m.master.standing(node.id))).collect();
        for (at, standing) in standings.into_iter().enumerate() {
            let life = self.nodes[at].agent.as_ref().map(|agent| agent.identity().1);
            let good = standing.is_some_and(|(known, listed, complete)| listed && complete && Some(known) == life);
            let since = self.nodes[at].good_since;
            self.nodes[at].good_since = if good { since.or(Some(self.now)) } else { None };
            if !good {
                self.loses_all(at);
            }
        }
    }

    /// Whatever a node has need not be found any more.
    fn loses_all(&mut self, at: usize) {
        let Some(agent) = &self.nodes[at].agent else { return };
        let puts: Vec<PutId> = agent.storage().all().into_iter().map(|(_, _, put)| put).collect();
        puts.into_iter().for_each(|put| self.checker.lost(put));
    }

    fn ask_etcd(&mut self, from: usize, request: etcd::Request) {
        let (life, sent_at) = (self.masters[from].process.life, self.now);
        if !self.is_cut(Addr::Master(from), Addr::Etcd) && (self.calm || !self.hits(self.setup.loss)) {
            let delay = self.delay();
            self.after(delay, Event::EtcdAsk { from, life, request, sent_at });
        } else if let etcd::Request::Record(term, number, _) = request {
            let reply = etcd::Reply::Recorded(term, number, false);
            self.after(300, Event::EtcdReply { to: from, life, reply, sent_at });
        }
    }

    fn speak_to_etcd(&mut self, at: usize) {
        let master = &mut self.masters[at];
        if self.now < master.asked + LEASE_MS / 5 {
            return;
        }
        master.asked = self.now;
        let request = match master.master.leads() {
            Some(term) => etcd::Request::KeepAlive(term),
            None => etcd::Request::Campaign,
        };
        self.ask_etcd(at, request);
    }

    fn etcd_reply(&mut self, at: usize, life: u64, reply: etcd::Reply, sent_at: Millis) {
        if self.masters[at].process.life != life {
            return;
        }
        let stale = self.setup.control == Some(Control::StaleLeader);
        let until = match self.setup.durable && !stale {
            true => sent_at + LEASE_MS - MARGIN_MS,
            false => Millis::MAX,
        };
        let leads = self.masters[at].master.leads();
        let event = match reply {
            etcd::Reply::Elected(mut elected) => {
                if leads.is_some_and(|term| term >= elected.term) || self.masters[at].term >= elected.term {
                    return;
                }
                self.say(|| format!("m{at} leads in term {}", elected.term));
                self.masters[at].term = elected.term;
                self.masters[at].elected += 1;
                elected.until = until;
                directory::Event::Elected(*elected)
            }
            etcd::Reply::KeptAlive(term) if leads == Some(term) => directory::Event::Lease(until),
            etcd::Reply::Leader(term, _) if stale && leads.is_some() && self.hits(980) => {
                let _ = term;
                return;
            }
            etcd::Reply::Leader(term, leader) => directory::Event::Deposed(term, format!("m{leader}")),
            etcd::Reply::Recorded(term, number, done) if leads == Some(term) => {
                directory::Event::Recorded(number, done)
            }
            _ => return,
        };
        self.note(2, at as u64, sent_at);
        self.master(at, event);
    }

    pub(super) fn agent(&mut self, at: usize, event: node::Event) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let mut actions = Queue::new();
        agent.on(event, self.now, &mut actions);
        self.agent_acts(at, actions);
    }

    fn agent_acts(&mut self, at: usize, actions: Queue<node::Action>) {
        let life = self.nodes[at].process.life;
        for action in actions {
            match action {
                node::Action::Master(master, frame) => self.send(Addr::Node(at), Addr::Master(master), frame, None),
                node::Action::Send(peer, frame) => self.send_peer(Addr::Node(at), peer, frame, None),
                node::Action::Synced(ticket, status) => self.synced(at, life, ticket, status),
                other => self.agent_moves(at, life, other),
            }
        }
    }

    fn client(&mut self, at: usize, event: client::Event) {
        let mut actions = Queue::new();
        self.clients[at].client.on(event, self.now, &mut actions);
        for action in actions {
            self.check_wanted(at, &action);
            match action {
                client::Action::Master(master, frame) => {
                    self.send(Addr::Client(at), Addr::Master(master), frame, None);
                }
                client::Action::Done(call, outcome) => self.done(at, call, &outcome),
                other => self.client_moves(at, other),
            }
        }
    }

    fn check_wanted(&mut self, at: usize, action: &client::Action) {
        let (client::Action::Master(_, frame) | client::Action::Node(_, _, frame, _)) = action else { return };
        let SimClient { client, calls, .. } = &self.clients[at];
        if let Some(call) = client.call_of(frame.request).filter(|call| !calls.contains_key(call)) {
            let text = format!("c{at}: call {call} is over, and sends {:?}", frame.message);
            self.violated(Promise::Over, text);
        }
    }

    /// The agent of a node that is up.
    fn agent_of(&self, at: usize) -> Option<&Agent<Store>> {
        self.nodes.get(at)?.agent.as_ref()
    }

    fn node_at(&self, id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    fn violated(&mut self, promise: Promise, text: String) {
        let now = self.now;
        self.checker.violated(promise, now, text);
    }

    fn key(number: usize) -> ObjectKey {
        let space: &[u8] = if number.is_multiple_of(3) { b"s" } else { b"" };
        ObjectKey::new(space, format!("k{number}").as_bytes()).unwrap()
    }

    fn new_value(&mut self, key: &ObjectKey, pages: usize) -> u64 {
        let number = self.next_value;
        self.next_value += 1;
        self.checker.values.insert(number, check::Value { key: key.clone(), pages, began: self.now, wrong: false });
        number
    }

    fn put_begins(&mut self, put: PutId, value: u64) {
        self.checker.put_begins(put, value);
    }
}
