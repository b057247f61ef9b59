//! How bytes move in the simulator: page by page, with time between. On a stream nothing arrives after it was closed. Where
//! somebody else moves them, what was begun goes on arriving until it ends by itself or the mover at the end where it arrives is renewed.
//! If the mover at the other end is renewed, or its process is dead, some of it still arrives.

use super::check::{Promise, content};
use super::{Addr, Control, Event, Sim};
use crate::base::status::{NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_OK};
use crate::cluster::client;
use crate::cluster::node::model::State;
use crate::cluster::node::{self, Plan};
use crate::cluster::types::{ObjectKey, Peer, PutId};
use crate::cluster::wire::{Frame, Message, Metadata};
use crate::layout::store::ON_DISK;
use std::collections::BTreeMap;

/// What comes next of something that moves.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    Receive(u64),
    Read(u64),
    Fill(u64),
    Page(u64, usize),
}

/// The value of a put on its stream.
struct Receiving {
    node: usize,
    life: u64,
    put: PutId,
    plan: Plan,
    from: Peer,
    request: u64,
    pages: Vec<u64>,
    at: usize,
}

/// A value on its stream to whoever asked.
struct Reading {
    node: usize,
    life: u64,
    pin: u64,
    to: Peer,
    frame: Frame,
    pages: Vec<u64>,
    length: usize,
}

/// A copy that is being filled.
struct Filling {
    node: usize,
    life: u64,
    ticket: u64,
    plan: Plan,
    pages: Vec<u64>,
    at: usize,
}

/// A place that somebody else writes to.
enum Target {
    /// Pages of a plan.
    Node(Plan, Vec<u32>, Vec<u64>),
    /// The buffer of a call from a page on, from a value that is held, and what that was when it began.
    Client((u64, usize), u64, Vec<u64>),
}

/// Something that somebody else moves: which client and node, in which life and with which of their movers.
struct Dma {
    client: (usize, u64, u64),
    node: (usize, u64, u64),
    target: Target,
    left: usize,
    request: u64,
    cancelled: bool,
}

/// Something wrong: a writer that has ended is said to have nothing on its way.
pub(super) fn trust_writer(message: &mut Message, from: Addr) {
    match message {
        Message::Stopped(stopped) => stopped.begun = false,
        Message::Fetched(fetched) if fetched.status == NMC_ERR_TIMEOUT => fetched.status = NMC_ERR_UNAVAILABLE,
        Message::Answer(answer) if answer.status == NMC_ERR_TIMEOUT && matches!(from, Addr::Node(_)) => {
            answer.status = NMC_OK;
        }
        _ => {}
    }
}

/// Everything that is under way.
#[derive(Default)]
pub struct Mover {
    incoming: BTreeMap<(Peer, u64), Vec<u64>>,
    pub answers: BTreeMap<(usize, u64), Vec<u64>>,
    receiving: BTreeMap<u64, Receiving>,
    reading: BTreeMap<u64, Reading>,
    filling: BTreeMap<u64, Filling>,
    dmas: BTreeMap<u64, Dma>,
    next: u64,
}

impl Mover {
    /// A value follows a put.
    pub fn arrives(&mut self, from: Peer, frame: &Frame, value: Option<Vec<u64>>) {
        if let (Message::Put(_), Some(value)) = (&frame.message, value) {
            self.incoming.insert((from, frame.request), value);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Sim {
    fn soon(&mut self, step: Step) {
        let delay = self.delay();
        self.after(delay, Event::Move(step));
    }

    /// A page that somebody else moves arrives some time.
    fn some_time(&mut self, step: Step) {
        let late = !self.calm && self.hits(40);
        let delay = if late { self.chance.below(4000) as u64 } else { self.delay() };
        self.after(delay, Event::Move(step));
    }

    fn tell_agent(&mut self, at: usize, life: u64, event: node::Event) {
        let delay = 1 + self.chance.below(27) as u64;
        self.after(delay, Event::Agent(at, life, event));
    }

    fn tell_client(&mut self, at: usize, life: u64, event: client::Event) {
        let delay = 1 + self.chance.below(27) as u64;
        self.after(delay, Event::Client(at, life, event));
    }

    /// A page of the value of a request has come to where it belongs.
    fn tell_how_far(&mut self, client: Addr, life: u64, request: u64, whole: bool) {
        if let Addr::Client(at) = client {
            self.after(1, Event::Client(at, life, client::Event::Moved(request, 1 << 20, whole)));
        }
    }

    pub(super) fn agent_moves(&mut self, at: usize, life: u64, action: node::Action) {
        let number = self.mover.number();
        match action {
            node::Action::Receive { from, request, put, plan, .. } => {
                let pages = self.mover.incoming.remove(&(from, request)).unwrap_or_default();
                let receiving = Receiving { node: at, life, put, plan, from, request, pages, at: 0 };
                self.mover.receiving.insert(number, receiving);
                self.soon(Step::Receive(number));
            }
            node::Action::Stop(put) => {
                self.mover.receiving.retain(|_, r| r.node != at || r.put != put);
                self.tell_agent(at, life, node::Event::Received(put, false));
            }
            node::Action::SendValue { to, frame, pin, .. } => {
                let length = usize::try_from(frame.message.value()).unwrap();
                let reading = Reading { node: at, life, pin, to, frame, pages: Vec::new(), length };
                self.mover.reading.insert(number, reading);
                self.soon(Step::Read(number));
            }
            node::Action::Close(peer) => {
                let closed = self.mover.reading.extract_if(.., |_, r| r.node == at && r.to == peer);
                let pins: Vec<u64> = closed.map(|(_, reading)| reading.pin).collect();
                pins.into_iter().for_each(|pin| self.tell_agent(at, life, node::Event::Sent(pin, false)));
            }
            node::Action::Push { to, pin, length, into, mover, .. } => {
                let (Addr::Client(client), client_life) = Self::addr(to) else { return };
                let call = (u64::from(into[0].region), usize::try_from(into[0].offset).unwrap());
                let length = usize::try_from(length).unwrap();
                if into.len() < length || self.hits(20) {
                    return self.tell_agent(at, life, node::Event::Unsent(pin));
                }
                let pages = self.agent_of(at).map(|a| (0..length).map(|page| a.storage().read(pin, page)).collect());
                let dma = Dma {
                    client: (client, client_life, mover),
                    node: (at, life, self.nodes[at].mover),
                    target: Target::Client(call, pin, pages.unwrap_or_default()),
                    left: length,
                    request: pin,
                    cancelled: false,
                };
                self.mover.dmas.insert(number, dma);
                (0..length).for_each(|page| self.some_time(Step::Page(number, page)));
            }
            node::Action::CancelPush(pin) => {
                let ends = self.hits(500);
                let found = self.mover.dmas.values_mut().find(|d| {
                    matches!(d.target, Target::Client(_, p, _) if p == pin) && d.node.0 == at && d.node.1 == life
                });
                if let Some(dma) = found.filter(|_| ends) {
                    dma.cancelled = true;
                    self.tell_agent(at, life, node::Event::Sent(pin, false));
                }
            }
            node::Action::Describe(key, from) => {
                self.tell_agent(at, life, node::Event::Described(key, from, Metadata::default(), 0));
            }
            node::Action::Fill { ticket, plan, key, from } => {
                if let Some(agent) = &mut self.nodes[at].agent {
                    agent.storage_mut().headers[plan.index as usize].original = false;
                }
                let source = self.node_at(from.name.node);
                let pages = source.and_then(|source| self.read_directly(source, at, &key, &from));
                match pages {
                    Some(pages) => {
                        let filling = Filling { node: at, life, ticket, plan, pages, at: 0 };
                        self.mover.filling.insert(number, filling);
                        self.soon(Step::Fill(number));
                    }
                    None => self.tell_agent(at, life, node::Event::Filled(ticket, false)),
                }
            }
            node::Action::Renew(renewal) => {
                self.nodes[at].mover = renewal;
                self.tell_agent(at, life, node::Event::Renewed(renewal));
                self.others_notice();
            }
            node::Action::Master(..) | node::Action::Send(..) | node::Action::Synced(..) => {}
        }
    }

    /// What the leader asked a node to copy, as that node would read it.
    fn read_directly(
        &mut self,
        source: usize,
        to: usize,
        key: &ObjectKey,
        from: &crate::cluster::wire::Replica,
    ) -> Option<Vec<u64>> {
        if self.is_cut(Addr::Node(source), Addr::Node(to)) || !self.agent_of(source)?.serves(self.now) {
            return None;
        }
        if self.agent_of(source)?.identity() != (from.name.node, from.name.incarnation) {
            return None;
        }
        let store = self.agent_of(source)?.storage();
        if from.name.index & ON_DISK == 0
            && let Some(header) = store.header(Plan { index: from.name.index, epoch: from.name.epoch })
            && header.state == State::Live
        {
            let pages = header.pages.iter().map(|page| store.pages[*page as usize]).collect();
            return (header.put == from.put).then_some(pages);
        }
        // It is on disk, or may be by now.
        let record = store.record(store.slot_of(key)?)?;
        (record.put == from.put).then(|| record.pages.clone())
    }

    /// What is written to or from a mover that was renewed ends; whoever waits for it may notice.
    fn others_notice(&mut self) {
        let mut ended = Vec::new();
        for dma in self.mover.dmas.values_mut().filter(|dma| !dma.cancelled) {
            let (client, node) = (dma.client, dma.node);
            let by_client = self.clients[client.0].process.life == client.1 && self.clients[client.0].mover != client.2;
            let by_node = self.nodes[node.0].process.life != node.1 || self.nodes[node.0].mover != node.2;
            if by_client || by_node {
                dma.cancelled = true;
                ended.push((matches!(dma.target, Target::Node(..)), client, node, dma.request));
            }
        }
        for (to_node, client, node, request) in ended {
            if self.hits(700) {
                match to_node {
                    true => self.tell_client(client.0, client.1, client::Event::Wrote(request, false)),
                    false => self.tell_agent(node.0, node.1, node::Event::Sent(request, false)),
                }
            }
        }
    }

    pub(super) fn client_moves(&mut self, at: usize, action: client::Action) {
        let life = self.clients[at].process.life;
        let peer = self.peer(Addr::Client(at));
        match action {
            client::Action::Node(id, _, frame, from) => {
                let Some(node) = self.node_at(id) else { return };
                let value = self.clients[at].calls.get(&from.call).and_then(super::Call::value);
                let put = match &frame.message {
                    Message::Put(put) => Some(put),
                    Message::Reserve(reserve) => Some(&reserve.put),
                    _ => None,
                };
                if let (Some(put), Some((value, _))) = (put, value) {
                    match put.key.as_part() {
                        Some((whole, _)) => {
                            // It may be lost before its stub is put.
                            self.checker.part_begins(put.put, whole);
                            self.put_begins(whole, value);
                        }
                        None => self.put_begins(put.put, value),
                    }
                    if put.put.is_striped() {
                        self.checker.cuts.insert(put.put, put.length);
                    }
                }
                let pages = match (&frame.message, value) {
                    (Message::Put(put), Some((value, _))) => {
                        let first = usize::try_from(from.offset).unwrap();
                        let behind = first + usize::try_from(put.length).unwrap();
                        Some((first..behind).map(|page| content(value, page)).collect())
                    }
                    _ => None,
                };
                self.send(Addr::Client(at), Addr::Node(node), frame, pages);
            }
            client::Action::Take { request, into, .. } => {
                let pages = self.mover.answers.remove(&(at, request));
                let whole = pages.is_some() && (self.calm || !self.hits(self.setup.loss));
                if let (Some(pages), Some(call)) = (pages, self.clients[at].calls.get_mut(&into.call)) {
                    let first = usize::try_from(into.offset).unwrap();
                    call.buffer.iter_mut().skip(first).zip(pages).for_each(|(to, page)| *to = page);
                }
                self.tell_client(at, life, client::Event::Took(request, whole));
            }
            client::Action::Close(request) => {
                self.mover.answers.remove(&(at, request));
                let closed: Vec<u64> = self
                    .mover
                    .receiving
                    .iter()
                    .filter(|(_, r)| (r.from, r.request) == (peer, request))
                    .map(|(n, _)| *n)
                    .collect();
                closed.into_iter().for_each(|number| self.break_off(number));
            }
            client::Action::Write { request, from, length, node, mover, extents } => {
                let Some(node) = self.node_at(node) else { return };
                let Some((value, _)) = self.clients[at].calls.get(&from.call).and_then(super::Call::value) else {
                    return;
                };
                if self.hits(20) {
                    return self.tell_client(at, life, client::Event::Unwritten(request));
                }
                let Some(plan) = self.plan_with(node, &extents) else {
                    // The node is another one by now: nothing arrives.
                    return self.tell_client(at, life, client::Event::Wrote(request, false));
                };
                let pages: Vec<u32> = extents.iter().map(|extent| u32::try_from(extent.offset).unwrap()).collect();
                let (first, n) = (usize::try_from(from.offset).unwrap(), usize::try_from(length).unwrap());
                let values = (first..first + n).map(|page| content(value, page)).collect();
                let dma = Dma {
                    client: (at, life, self.clients[at].mover),
                    node: (node, self.nodes[node].process.life, mover),
                    left: pages.len(),
                    target: Target::Node(plan, pages, values),
                    request,
                    cancelled: false,
                };
                let number = self.mover.number();
                self.mover.dmas.insert(number, dma);
                (0..n).for_each(|page| self.some_time(Step::Page(number, page)));
            }
            client::Action::CancelWrite(request) => {
                let ends = self.hits(500);
                let found = self.mover.dmas.values_mut().find(|d| {
                    matches!(d.target, Target::Node(..))
                        && d.request == request
                        && (d.client.0, d.client.1) == (at, life)
                });
                if let Some(dma) = found.filter(|_| ends) {
                    dma.cancelled = true;
                    self.tell_client(at, life, client::Event::Wrote(request, false));
                }
            }
            client::Action::Renew(renewal) => {
                self.clients[at].mover = renewal;
                self.tell_client(at, life, client::Event::Renewed(renewal));
                self.others_notice();
            }
            client::Action::Keep(call, key, replica) => {
                let length = usize::try_from(replica.length).unwrap();
                let pages = self.clients[at].calls.get(&call).and_then(|call| call.buffer.get(..length));
                let Some(pages) = pages.map(<[u64]>::to_vec) else { return };
                if at >= self.nodes.len() || self.nodes[at].agent.is_none() {
                    return;
                }
                self.checker.count("kept");
                let life = self.nodes[at].process.life;
                if self.setup.control == Some(Control::CopyFirst) {
                    let agent = self.nodes[at].agent.as_mut().unwrap();
                    let _ = agent.storage_mut().put(&key, replica.put, &pages);
                    return;
                }
                self.tell_agent(at, life, node::Event::Keep(key, replica));
            }
            client::Action::Master(..) | client::Action::Done(..) | client::Action::Landed { .. } => {}
        }
    }

    /// The plan whose pages these are.
    fn plan_with(&self, node: usize, extents: &[crate::cluster::wire::Extent]) -> Option<Plan> {
        let store = self.agent_of(node)?.storage();
        let is = |pages: &[u32]| pages.iter().map(|page| u64::from(*page)).eq(extents.iter().map(|e| e.offset));
        let found = store.headers.iter().position(|h| h.state == State::Writing && is(&h.pages))?;
        Some(Plan { index: u32::try_from(found).unwrap(), epoch: store.headers[found].epoch })
    }

    /// The stream of a put ends early: no byte of it comes after this.
    fn break_off(&mut self, number: u64) {
        if let Some(receiving) = self.mover.receiving.remove(&number) {
            self.tell_agent(receiving.node, receiving.life, node::Event::Received(receiving.put, false));
        }
    }

    pub(super) fn move_on(&mut self, step: Step) {
        match step {
            Step::Receive(number) => self.receive_on(number),
            Step::Read(number) => self.read_on(number),
            Step::Fill(number) => self.fill_on(number),
            Step::Page(number, page) => self.page(number, page),
        }
    }

    fn receive_on(&mut self, number: u64) {
        let Some(receiving) = self.mover.receiving.get(&number) else { return };
        let (node, life, from, put) = (receiving.node, receiving.life, receiving.from, receiving.put);
        let (client, client_life) = Self::addr(from);
        let gone = self.process(client).is_none_or(|process| !process.up || process.life != client_life);
        if self.nodes[node].process.life != life || !self.nodes[node].process.up {
            self.mover.receiving.remove(&number);
            return;
        }
        if gone || self.is_cut(client, Addr::Node(node)) {
            return self.break_off(number);
        }
        let (Some(receiving), Some(agent)) = (self.mover.receiving.get_mut(&number), &mut self.nodes[node].agent)
        else {
            return;
        };
        if let Some(page) = receiving.pages.get(receiving.at) {
            let landed = agent.storage_mut().write(receiving.plan, receiving.at, *page);
            receiving.at += 1;
            let (request, whole) = (receiving.request, receiving.at == receiving.pages.len());
            if !landed {
                self.violated(Promise::NoLateWrite, format!("n{node}: {put:?} is received into another's pages"));
            }
            self.tell_how_far(client, client_life, request, whole);
            return self.soon(Step::Receive(number));
        }
        self.mover.receiving.remove(&number);
        self.tell_agent(node, life, node::Event::Received(put, true));
    }

    fn read_on(&mut self, number: u64) {
        let Some(reading) = self.mover.reading.get_mut(&number) else { return };
        let node = &self.nodes[reading.node];
        let Some(agent) = node.agent.as_ref().filter(|_| node.process.life == reading.life) else {
            self.mover.reading.remove(&number);
            return;
        };
        if reading.pages.len() < reading.length {
            let page = agent.storage().read(reading.pin, reading.pages.len());
            reading.pages.push(page);
            let (request, (client, client_life)) = (reading.frame.request, Self::addr(reading.to));
            self.tell_how_far(client, client_life, request, false);
            return self.soon(Step::Read(number));
        }
        let Some(reading) = self.mover.reading.remove(&number) else { return };
        self.send_peer(Addr::Node(reading.node), reading.to, reading.frame, Some(reading.pages));
        self.tell_agent(reading.node, reading.life, node::Event::Sent(reading.pin, true));
    }

    fn fill_on(&mut self, number: u64) {
        let Some(filling) = self.mover.filling.get_mut(&number) else { return };
        let node = &mut self.nodes[filling.node];
        let Some(agent) = node.agent.as_mut().filter(|_| node.process.life == filling.life) else {
            self.mover.filling.remove(&number);
            return;
        };
        if let Some(page) = filling.pages.get(filling.at) {
            agent.storage_mut().write(filling.plan, filling.at, *page);
            filling.at += 1;
            return self.soon(Step::Fill(number));
        }
        let Some(filling) = self.mover.filling.remove(&number) else { return };
        self.tell_agent(filling.node, filling.life, node::Event::Filled(filling.ticket, true));
    }

    /// A page arrives that somebody else moves.
    fn page(&mut self, number: u64, page: usize) {
        let Some(dma) = self.mover.dmas.get(&number) else { return };
        let (client, node) = (dma.client, dma.node);
        let (to_node, request) = (matches!(dma.target, Target::Node(..)), dma.request);
        let (at_client, at_node) = (&self.clients[client.0], &self.nodes[node.0]);
        let same_client = at_client.process.life == client.1;
        let same_node = at_node.process.life == node.1 && at_node.process.up;
        let client_ended = !same_client || !at_client.process.up || at_client.mover != client.2;
        let node_ended = !same_node || at_node.mover != node.2;
        // Of a writer that has ended some is on its way: it arrives unless whoever is written to has ended it.
        let (arrives, renewed) = match to_node {
            true => (!node_ended, same_client && at_client.mover != client.2),
            false => (!client_ended, node_ended),
        };
        let lingers = dma.cancelled || renewed;
        if !arrives || lingers && !self.hits(300) {
            return;
        }
        let Some(dma) = self.mover.dmas.get(&number) else { return };
        match &dma.target {
            Target::Node(plan, pages, values) => {
                let (plan, place, value) = (*plan, pages[page], values[page]);
                let Some(agent) = &mut self.nodes[node.0].agent else { return };
                let store = agent.storage_mut();
                let own = store.header(plan).is_some_and(|header| header.pages.get(page) == Some(&place));
                store.pages[place as usize] = value;
                if !own {
                    let text = format!("n{}: a late write hit page {place}, which is not of {plan:?} any more", node.0);
                    self.violated(Promise::NoLateWrite, text);
                }
            }
            Target::Client(call, pin, pages) => {
                let ((call, first), pin) = (*call, *pin);
                let value = match &self.nodes[node.0].agent {
                    Some(agent) if !lingers => agent.storage().read(pin, page),
                    _ => pages[page],
                };
                match self.clients[client.0].calls.get_mut(&call) {
                    Some(call) if call.buffer.len() > first + page => call.buffer[first + page] = value,
                    Some(_) => {}
                    None => {
                        let text = format!("c{}: a late write hit the buffer of call {call}, which is over", client.0);
                        self.violated(Promise::NoLateWrite, text);
                    }
                }
            }
        }
        let Some(dma) = self.mover.dmas.get_mut(&number) else { return };
        dma.left -= 1;
        if dma.left == 0 {
            self.mover.dmas.remove(&number);
            if lingers {
                return;
            }
            match to_node {
                true => self.tell_client(client.0, client.1, client::Event::Wrote(request, true)),
                false => self.tell_agent(node.0, node.1, node::Event::Sent(request, true)),
            }
        }
    }
}
