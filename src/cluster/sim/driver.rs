//! What happens in a run: calls of clients, evictions, faults, and at the end rest.

use super::check::{Promise, What, content};
use super::{Addr, Control, Event, Sim, node_name};
use crate::base::queue::Queue;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_CORRUPT, NMC_ERR_EXISTS, NMC_ERR_NOT_FOUND, NMC_IN_PROGRESS, NMC_OK, nmc_status_t,
};
use crate::cluster::client::{self, GetCall, Outcome, PutCall};
use crate::cluster::node;
use crate::cluster::node::model::{State, sum_of};
use crate::cluster::types::{Millis, Name, NodeId, ObjectKey, PutId};
use crate::cluster::wire::{Extent, Frame, Message, Metadata, Replicate, Space};

/// Keys that are used.
const KEYS: usize = 6;
/// Pages of the largest value.
const PAGES: usize = 4;

/// A call of a client.
#[derive(Debug, Clone)]
pub struct Call {
    kind: Kind,
    began: Millis,
    pub buffer: Vec<u64>,
}

#[derive(Debug, Clone)]
enum Kind {
    Put(u64, usize),
    Get(ObjectKey),
    Remove(usize, bool),
}

impl Call {
    /// Number and pages of the value that it puts.
    pub fn value(&self) -> Option<(u64, usize)> {
        match self.kind {
            Kind::Put(value, pages) => Some((value, pages)),
            _ => None,
        }
    }
}

/// Something that goes wrong for a while.
#[derive(Debug, Clone)]
pub enum Fault {
    Cut(Addr, Addr),
    Down(Addr),
    /// A node's store cannot keep positions.
    Forgetful(usize),
}

fn a_put(key: ObjectKey, copies: u32, media: Vec<u32>, pages: usize, stripe: u64) -> PutCall {
    PutCall {
        key,
        length: pages as u64,
        slices: vec![pages as u64],
        config: Replicate { copies, media, fixed: vec![], near: String::new() },
        retain: 0,
        metadata: Metadata::default(),
        crc: None,
        stripe,
    }
}

impl Sim {
    pub(super) fn some_op(&mut self) {
        if self.calm {
            return;
        }
        let pause = 1 + self.chance.below(2 * usize::try_from(self.setup.op_ms).unwrap()) as Millis;
        self.after(pause, Event::Op);
        let at = self.chance.below(self.clients.len());
        let key = Self::key(self.chance.below(KEYS));
        let patience = 200 + self.chance.below(3000) as Millis;
        let process = self.clients[at].process;
        if !process.up || process.paused_until > self.now {
            return;
        }
        let next = self.clients[at].next_call;
        match self.chance.below(100) {
            0..25 => self.call_put(at, key, patience),
            25..65 => self.call_get(at, key, patience),
            65..77 => {
                let wait = self.chance.below(4) > 0;
                self.call_remove(at, key, wait, patience);
            }
            77 => {
                let wait = self.chance.below(4) > 0;
                self.call_remove_all(at, wait, patience);
            }
            78..88 => self.put_here(at, &key),
            88 if self.chance.below(4) == 0 && !self.setup.tiers => self.begin_anew(),
            88 => self.ask_for_a_drain(at),
            _ => self.evict(),
        }
        if self.clients[at].next_call > next && self.hits(200) {
            let (most, life) = (if self.hits(500) { 40 } else { 2000 }, process.life);
            let later = self.chance.below(most) as Millis;
            self.after(later, Event::Cancel(at, life, next));
        }
    }

    /// Ends a call that has not ended.
    pub(super) fn cancel(&mut self, at: usize, number: u64) {
        if !self.clients[at].calls.contains_key(&number) {
            return;
        }
        self.say(|| format!("c{at} cancels {number}"));
        self.checker.count("cancelled");
        if self.setup.control == Some(Control::CancelForgets) {
            return self.done(at, number, &Outcome::of(NMC_ERR_CANCELLED));
        }
        let life = self.clients[at].process.life;
        self.after(super::LATE_MS + 200, Event::Late(at, life, number));
        self.client(at, client::Event::End(number));
    }

    fn call(&mut self, at: usize, kind: Kind, patience: Millis, what: client::Call) {
        let (number, life) = (self.clients[at].next_call, self.clients[at].process.life);
        self.clients[at].next_call += 1;
        self.note(3, at as u64, number);
        self.say(|| format!("c{at} calls {number}: {what:?}"));
        let buffer = vec![0; PAGES];
        self.clients[at].calls.insert(number, Call { kind, began: self.now, buffer });
        self.after(patience + super::LATE_MS + 200, Event::Late(at, life, number));
        self.client(at, client::Event::Call(number, patience, what));
    }

    pub(super) fn call_put(&mut self, at: usize, key: ObjectKey, patience: Millis) {
        let pages = 1 + self.chance.below(PAGES);
        let value = self.new_value(&key, pages);
        let copies = 1 + u32::try_from(self.chance.below(2)).unwrap();
        self.call_put_copies(at, key, copies, (value, pages), patience);
    }

    /// The same with so many copies.
    pub(super) fn call_put_copies(
        &mut self,
        at: usize,
        key: ObjectKey,
        copies: u32,
        (value, pages): (u64, usize),
        patience: Millis,
    ) {
        let mut crc = None;
        if self.setup.op_ms > 0 && !self.setup.pushed && self.hits(250) {
            let wrong = self.hits(300);
            let sum = sum_of((0..pages).map(|page| content(value, page)));
            crc = Some(if wrong { !sum } else { sum });
            self.checker.values.entry(value).and_modify(|value| value.wrong = wrong);
            self.checker.count("put with a checksum");
        }
        let on_disk = self.setup.tiers && self.hits(300);
        let media = if on_disk { vec![0, 0, 1] } else { vec![] };
        let stripe = if self.setup.striped && self.hits(700) { 1 + self.chance.below(2) as u64 } else { 0 };
        // Parts take longer.
        let patience = if stripe > 0 { patience + 3000 } else { patience };
        self.call_put_of(at, PutCall { crc, ..a_put(key, copies, media, pages, stripe) }, value, patience);
    }

    /// Puts a value in parts of so many pages.
    pub(super) fn call_put_parts(&mut self, at: usize, key: ObjectKey, copies: u32, pages: usize, stripe: u64) -> u64 {
        let value = self.new_value(&key, pages);
        self.call_put_of(at, a_put(key, copies, vec![], pages, stripe), value, 3000);
        value
    }

    fn call_put_of(&mut self, at: usize, put: PutCall, value: u64, patience: Millis) {
        let pages = usize::try_from(put.length).unwrap();
        self.call(at, Kind::Put(value, pages), patience, client::Call::Put(put));
    }

    pub(super) fn call_get(&mut self, at: usize, key: ObjectKey, patience: Millis) {
        let expire_ms = if self.setup.op_ms > 0 && self.hits(150) { 200 + self.chance.below(1300) } else { 0 };
        self.call_get_expiring(at, key, u32::try_from(expire_ms).unwrap(), patience);
    }

    /// The same for a value that goes so long after it was read.
    pub(super) fn call_get_expiring(&mut self, at: usize, key: ObjectKey, expire_ms: u32, patience: Millis) {
        if self.get_here(at, &key, expire_ms) {
            return;
        }
        let region = u32::try_from(self.clients[at].next_call).unwrap();
        let into = match self.setup.pushed {
            true => (0..PAGES as u64).map(|offset| Extent { region, offset, length: 1 }).collect(),
            false => Vec::new(),
        };
        let keep = self.chance.below(2) == 0;
        let get = GetCall { keep, expire_ms, into, ..GetCall::new(key.clone(), u64::MAX) };
        self.call(at, Kind::Get(key), patience, client::Call::Get(get));
    }

    /// What the own node has is read without a message.
    fn get_here(&mut self, at: usize, key: &ObjectKey, expire_ms: u32) -> bool {
        let now = self.now;
        // What a tier that was not there has may have been removed.
        let Some(agent) = self.agent_of(at).filter(|agent| agent.storage().apart.is_none()) else { return false };
        let stub = || match self.setup.control {
            Some(Control::StubsAreValues) => agent.storage().look(&key.stub()),
            _ => None,
        };
        let Some((put, pages, _)) = agent.storage().look(key).or_else(stub) else { return false };
        // A node that is cut off, or comes back, has not heard of removes.
        let began = if agent.serves(now) && agent.is_in() { now } else { 0 };
        self.checker.got(key, put, &pages, began, now, true);
        if expire_ms > 0 {
            self.agent(at, node::Event::Expire(key.clone(), put, expire_ms));
        }
        true
    }

    pub(super) fn call_remove(&mut self, at: usize, key: ObjectKey, wait: bool, patience: Millis) {
        let now = self.now;
        let removal = self.checker.removing(What::Key(key.clone()), now);
        self.call(at, Kind::Remove(removal, wait), patience, client::Call::Remove(key, wait));
    }

    fn call_remove_all(&mut self, at: usize, wait: bool, patience: Millis) {
        let now = self.now;
        let space = (self.chance.below(2) == 0).then(|| Space(b"s".to_vec()));
        let removal = self.checker.removing(What::Space(space.clone()), now);
        self.call(at, Kind::Remove(removal, wait), patience, client::Call::RemoveAll(space, wait));
    }

    /// A put of a node on itself; sometimes with a wait until others find it.
    fn put_here(&mut self, at: usize, key: &ObjectKey) {
        if self.agent_of(at).is_none() {
            return;
        }
        let pages = 1 + self.chance.below(PAGES);
        let value = self.new_value(key, pages);
        let put = PutId::local(self.chance.word());
        let contents: Vec<u64> = (0..pages).map(|page| content(value, page)).collect();
        let Some(agent) = &mut self.nodes[at].agent else { return };
        if agent.storage_mut().put(key, put, &contents).is_err() {
            return;
        }
        let apart = !agent.serves(self.now) || !agent.is_in();
        self.put_begins(put, value);
        if apart {
            self.checker.put_apart(put);
        }
        self.say(|| format!("n{at} puts value {value} here: {key:?}"));
        let patience = self.chance.below(2000) as Millis;
        self.agent(at, node::Event::Sync(put.0, patience));
    }

    pub(super) fn synced(&mut self, _: usize, _: u64, ticket: u64, status: nmc_status_t) {
        if status == NMC_OK {
            let now = self.now;
            self.checker.put_ended(PutId(ticket), now);
        }
    }

    /// Some segment is to be emptied, and a little later takes puts again since its node comes anew.
    fn ask_for_a_drain(&mut self, at: usize) {
        let node = self.chance.below(self.nodes.len());
        let master = self.chance.below(self.masters.len());
        let (segment, cancel) = (format!("{}/ram", node_name(node)), self.chance.below(2) == 0);
        let message: Message = crate::cluster::wire::Drain { segment, cancel }.into();
        self.send(Addr::Client(at), Addr::Master(master), Frame::telling(message), None);
    }

    /// The store of some node has another tier.
    fn begin_anew(&mut self) {
        let (at, now) = (self.chance.below(self.nodes.len()), self.now);
        if self.agent_of(at).is_none() || self.nodes[at].process.paused_until > now {
            return;
        }
        self.nodes[at].store_id = self.chance.word() | 1;
        self.has_another_offer(at);
    }

    /// A node says that it ends, and joins in another life with what its store has now.
    pub(super) fn has_another_offer(&mut self, at: usize) {
        let (now, id, incarnation) = (self.now, self.nodes[at].store_id, self.chance.word() | 1);
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let offer = agent.storage_mut().offer(&node_name(at), id);
        self.nodes[at].good_since = None;
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let mut actions = Queue::new();
        agent.begin_anew(incarnation, offer, now, &mut actions);
        self.say(|| format!("n{at} begins anew"));
        self.agent_acts(at, actions);
    }

    /// A node evicts what it has under a key.
    pub(super) fn evict_key(&mut self, at: usize, key: &ObjectKey) {
        let found = self.agent_of(at).and_then(|agent| agent.storage().find(key));
        if let Some(plan) = found {
            self.evict_index(at, plan.index as usize);
        }
    }

    fn evict(&mut self) {
        let at = self.chance.below(self.nodes.len());
        let Some(agent) = self.agent_of(at) else { return };
        let headers = agent.storage().headers.len();
        let index = self.chance.below(headers);
        self.evict_index(at, index);
    }

    fn evict_index(&mut self, at: usize, index: usize) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let store = agent.storage_mut();
        let put = store.headers[index].put;
        // What is being written to disk stays until it is.
        if store.is_held(index) {
            return;
        }
        let on_disk = store.clean(index).is_some() && !store.has_changed();
        store.retire(index);
        if !on_disk {
            self.checker.lost(put);
        }
        self.note(4, at as u64, index as u64);
    }

    /// A call has ended.
    pub(super) fn done(&mut self, at: usize, number: u64, outcome: &Outcome) {
        let Some(call) = self.clients[at].calls.remove(&number) else { return };
        let now = self.now;
        self.note(5, number, u64::from(outcome.status.cast_unsigned()));
        self.say(|| format!("c{at} call {number} ends: {outcome:?}"));
        match call.kind {
            Kind::Put(..) if outcome.status == NMC_OK => {
                if outcome.put.is_striped() {
                    self.checker.count("put in parts");
                }
                self.check_disk(outcome.put, outcome.count);
                self.checker.put_ended(outcome.put, now);
            }
            Kind::Put(..) if outcome.status == NMC_ERR_CORRUPT => self.checker.count("put corrupt"),
            Kind::Put(..) => {
                self.checker.count(if outcome.status == NMC_ERR_EXISTS { "put exists" } else { "put failed" })
            }
            Kind::Get(key) => match outcome.status {
                NMC_OK => {
                    if outcome.put.is_striped() {
                        self.checker.count("got in parts");
                    }
                    let pages = &call.buffer[..usize::try_from(outcome.count).unwrap().min(call.buffer.len())];
                    self.checker.got(&key, outcome.put, pages, call.began, now, false);
                }
                NMC_ERR_NOT_FOUND => self.not_found(&key, call.began),
                _ => self.checker.count("get failed"),
            },
            Kind::Remove(removal, wait) => match outcome.status {
                NMC_OK => self.checker.removed(removal, wait, now),
                NMC_IN_PROGRESS | NMC_ERR_NOT_FOUND => self.checker.removed(removal, false, now),
                NMC_ERR_CANCELLED => self.checker.cancelled(removal, now),
                _ => self.checker.count("remove failed"),
            },
        }
    }

    /// What was put to a disk is there when its put has ended, with this many owners. An owner that was away when the others compared
    /// their checksums is not one of them: it is to drop what it has, and is not listed.
    fn check_disk(&mut self, put: PutId, count: u64) {
        let all = self.checker.owners_of(put) as u64 <= count;
        let leaders = self.masters.iter().filter(|m| m.master.leads().is_some());
        let listed: Vec<_> = leaders.flat_map(|m| m.master.listed_all()).collect();
        for at in 0..self.nodes.len() {
            let owner = self.nodes[at].id;
            let counted = all || listed.iter().any(|(_, listed, name)| *listed == put && name.node == owner);
            let has_ended = counted && self.checker.has_ended_with(put, owner);
            let Some(agent) = self.agent_of(at).filter(|_| has_ended) else { continue };
            let (waits, written) = (agent.storage().waits_for_disk(put), agent.storage().written.contains(&put));
            if written {
                self.checker.count("put to disk");
            }
            if waits {
                self.violated(Promise::OnDisk, format!("{put:?} has ended, and n{at} has not written it"));
            }
        }
    }

    /// A get has found nothing: was there something?
    fn not_found(&mut self, key: &ObjectKey, began: Millis) {
        self.checker.count("not found");
        if let Some(put) = self.checker.missing(key, began, self.now) {
            self.violated(Promise::Found, format!("{key:?}: {put:?} is nowhere, and a get from {began} found nothing"));
        }
        for at in 0..self.nodes.len() {
            let good = self.nodes[at].good_since.is_some_and(|since| since < began);
            let Some(agent) = self.agent_of(at).filter(|_| good) else { continue };
            // What a tier has of which others have not heard yet need not be found, nor what came into memory from there.
            let heard_of = |key: &ObjectKey| {
                let store = agent.storage();
                !store.has_changed() || store.find(key).is_some() && store.slot_of(key).is_none()
            };
            let Some((put, _, original)) = agent.storage().look(key).filter(|_| heard_of(key)) else { continue };
            let owner = self.nodes[at].id;
            if original && self.checker.has_ended_with(put, owner) && self.checker.must_be_found(put, began, self.now) {
                self.violated(
                    Promise::Found,
                    format!("{key:?}: {put:?} is on n{at} and a get from {began} found nothing"),
                );
            }
        }
    }

    pub(super) fn late(&mut self, at: usize, life: u64, number: u64) {
        let client = &self.clients[at];
        let Some(call) = client.calls.get(&number).filter(|_| client.process.life == life) else { return };
        if client.process.paused_until <= call.began {
            let text = format!("c{at}: call {number} from {} has not ended: {:?}", call.began, call.kind);
            self.violated(Promise::Bounded, text);
        }
    }

    fn someone(&mut self) -> Addr {
        let (masters, nodes) = (self.masters.len(), self.nodes.len());
        let at = self.chance.below(masters + nodes + self.clients.len());
        match at {
            at if at < masters => Addr::Master(at),
            at if at < masters + nodes => Addr::Node(at - masters),
            at => Addr::Client(at - masters - nodes),
        }
    }

    fn a_while(&mut self) -> Millis {
        let most = [100, 500, 3000, 3000, 16_000][self.chance.below(5)];
        20 + self.chance.below(most) as Millis
    }

    pub(super) fn some_fault(&mut self) {
        if self.calm {
            return;
        }
        let pause = 1 + self.chance.below(2 * usize::try_from(self.setup.fault_ms).unwrap()) as Millis;
        self.after(pause, Event::Fault);
        let who = self.someone();
        let length = self.a_while();
        self.note(6, length, 0);
        match self.chance.below(10) {
            0..3 => {
                let other = self.someone();
                self.cut(who, other, length);
            }
            3..5 => {
                // From everybody, or a master from what elects it.
                self.say(|| format!("{who:?} is alone for {length}"));
                if self.chance.below(2) == 0 {
                    self.cut(who, Addr::Etcd, length);
                } else {
                    for other in self.everybody() {
                        self.cut(who, other, length);
                    }
                }
            }
            5..8 => {
                self.say(|| format!("{who:?} pauses for {length}"));
                let until = self.now + length.min(5000);
                let shared = match who {
                    Addr::Node(at) => Some(Addr::Client(at)),
                    Addr::Client(at) => Some(Addr::Node(at)),
                    _ => None,
                };
                for who in [Some(who), shared].into_iter().flatten() {
                    if let Some(process) = self.process(who) {
                        process.paused_until = process.paused_until.max(until);
                    }
                }
            }
            _ => {
                let who = match who {
                    Addr::Client(at) if at < self.nodes.len() => Addr::Node(at),
                    who => who,
                };
                self.say(|| format!("{who:?} dies for {length}"));
                if let Addr::Node(at) = who
                    && self.hits(300)
                {
                    // It ends, and says so.
                    self.agent(at, node::Event::Leave);
                }
                self.kill(who);
                self.after(length, Event::Heal(Fault::Down(who)));
            }
        }
    }

    pub(super) fn everybody(&self) -> Vec<Addr> {
        let masters = (0..self.masters.len()).map(Addr::Master);
        let nodes = (0..self.nodes.len()).map(Addr::Node);
        masters.chain(nodes).chain((0..self.clients.len()).map(Addr::Client)).collect()
    }

    pub(super) fn cut(&mut self, a: Addr, b: Addr, length: Millis) {
        if a == b {
            return;
        }
        *self.cut.entry((a.min(b), a.max(b))).or_default() += 1;
        self.after(length, Event::Heal(Fault::Cut(a.min(b), a.max(b))));
    }

    pub(super) fn heal(&mut self, fault: &Fault) {
        match fault {
            Fault::Cut(a, b) => {
                if let Some(n) = self.cut.get_mut(&(*a, *b)) {
                    *n = n.saturating_sub(1);
                }
            }
            Fault::Forgetful(at) => {
                if let Some(agent) = &mut self.nodes[*at].agent {
                    agent.storage_mut().fails = false;
                }
            }
            Fault::Down(who) => {
                self.start(*who);
                if let Addr::Node(at) = who
                    && *at < self.clients.len()
                {
                    self.start(Addr::Client(*at));
                }
            }
        }
    }

    /// A drain to where there is no room for it goes on for ever.
    fn give_up_drains(&mut self) {
        let masters = self.masters.len();
        for (node, master) in (0..self.nodes.len()).flat_map(|node| (0..masters).map(move |master| (node, master))) {
            let segment = format!("{}/ram", node_name(node));
            let message: Message = crate::cluster::wire::Drain { segment, cancel: true }.into();
            self.send(Addr::Client(0), Addr::Master(master), Frame::telling(message), None);
        }
    }

    /// No more calls and faults: everything heals, and after a while is compared.
    pub(super) fn come_to_rest(&mut self) {
        self.calm = true;
        self.cut.clear();
        let now = self.now;
        for at in 0..self.nodes.len() {
            self.heal(&Fault::Forgetful(at));
        }
        for who in self.everybody() {
            self.start(who);
            if let Some(process) = self.process(who) {
                process.paused_until = process.paused_until.min(now);
            }
        }
        // A name may be held for as long as its former holder may serve.
        for pause in [if self.setup.sees_ends { 20_000 } else { 10_000 }, 4_000] {
            // Once more, for one that comes late.
            self.give_up_drains();
            let end = self.now + pause;
            while self.now < end && self.checker.violations.is_empty() && self.step() {}
        }
        let end = self.now;
        // A late double of a message may have begun a put that nobody knows of. Those are given up after half a minute.
        let end = end + 32_000;
        let puts = |sim: &Self| sim.masters.iter().any(|m| m.master.leads().is_some() && m.master.under_way()[0] > 0);
        while puts(self) && self.now < end && self.checker.violations.is_empty() && self.step() {}
        // What is lost with a former store is asked for some times more.
        let end = self.now + 150_000;
        let retiring = |sim: &Self| sim.masters.iter().any(|m| m.master.is_retiring());
        while retiring(self) && self.now < end && self.checker.violations.is_empty() && self.step() {}
        // What has just been given up is dropped.
        let end = self.now + 3_000;
        while self.now < end && self.checker.violations.is_empty() && self.step() {}
        if self.checker.violations.is_empty() {
            self.compare();
        }
    }

    /// What is listed is what there is, and nothing is left over.
    fn compare(&mut self) {
        let leader =
            self.masters.iter().filter_map(|m| Some((m.master.leads()?, &m.master))).max_by_key(|(term, _)| *term);
        let Some((_, leader)) = leader else {
            return self.violated(Promise::Truth, "nobody leads".into());
        };
        let mut listed: Vec<(ObjectKey, PutId, Name)> = leader.listed_all();
        let mut there = Vec::new();
        let mut problems = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(agent) = &node.agent else { continue };
            let (id, incarnation) = agent.identity();
            if node.good_since.is_none() || !agent.serves(self.now) {
                problems.push(format!("n{at} is not back: {:?}", leader.standing(NodeId::of(&node_name(at)))));
            }
            for (plan, key, put) in agent.storage().all() {
                let name = Name { node: id, incarnation, index: plan.index, epoch: plan.epoch };
                match key.outer(put).unwrap() {
                    Some(key) => there.push((key, put, name)),
                    None => problems.push(format!("n{at} has {key:?} of {put:?}")),
                }
            }
            let store = agent.storage();
            if !store.counts() || store.headers.iter().any(|h| !matches!(h.state, State::Free | State::Live)) {
                problems.push(format!("n{at} has pages left over: {:?}", store.headers));
            }
        }
        listed.sort();
        there.sort();
        if listed != there {
            problems.push(format!("listed are {listed:?}; there are {there:?}"));
        }
        problems.extend(self.checker.apart(&listed));
        let stubs: std::collections::BTreeSet<PutId> =
            listed.iter().map(|(_, put, _)| *put).filter(|put| put.is_striped()).collect();
        if leader.striped() != (stubs.len(), 0) && self.setup.control.is_none() {
            problems.push(format!("{} values are in parts, and known are {:?}", stubs.len(), leader.striped()));
        }
        if leader.under_way() != [0; 5] {
            problems.push(format!("puts, calls, drops and copies are under way: {:?}", leader.under_way()));
        }
        for problem in problems {
            self.violated(Promise::Truth, problem);
        }
    }
}
