//! The agent of a node and its connections, on a thread of their own. Bytes go straight between sockets and the pages of the store, or the
//! memory that stands in for them; whatever ends early is told, and nothing is stored after that.
#![allow(unsafe_code, reason = "heaps of the store, by address")]

use super::TURN;
use super::mailbox::Mailbox;
use super::masters::Masters;
use super::meetings::{Meetings, Step};
use crate::base::error::Result;
use crate::base::id::random_u64;
use crate::base::log;
use crate::base::memory;
use crate::base::queue::Queue;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED, NMC_OK, nmc_status_t,
};
use crate::cluster::net::{Address, ByNumber, Heard, Limits, Listener, Net, Poller, Ready, Span, Spans, now_ms};
use crate::cluster::nixl::sys::Medium;
use crate::cluster::nixl::{How, Mover, News, Settings, Write};
use crate::cluster::node::storage::Wake;
use crate::cluster::node::{Action, Agent, Config, Event, Memory, PARTING, Plan};
use crate::cluster::types::{Millis, ObjectKey, Peer, PutId, SMALL, incarnation_of, slow_ms};
use crate::cluster::wire::{self, Card, Fetch, Fetched, Frame, Message, Metadata, Region, Replica, Reserved};
use crate::sync::service_thread;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long news of the store may wait to be seen.
const LOOK_MS: Millis = 5;

/// How long a node that ends waits until the leader has heard of it.
const PART_MS: Millis = 500;

/// Bytes that are copied for a peer that has not taken them yet.
const MOST_COPIED: usize = 1 << 20;
/// How long a store may wait for its tier before it is asked for that again.
const TIER_MS: Millis = 1_000;
/// Values of other nodes that are asked for at a time, and those that wait for that.
const MOST_FILLS: usize = 64;
const MOST_WAITING: usize = 4096;
/// How long an owner may take to answer. Then its bytes come, or the connection is ended as one that has stalled.
const FILL_MS: Millis = 5_000;
/// How long a value may be on its way for a copy at least.
const COPY_MS: Millis = 60_000;

enum Mail {
    Keep(ObjectKey, Box<Replica>),
    Expire(ObjectKey, PutId, u32),
    Sync(Millis, Waiter),
    Mover(News),
    /// A value has come from the disk.
    Look,
    Stop,
}

/// Is told once how something went; that nobody is there any more to know it, if the agent has ended before.
struct Waiter(Option<Box<dyn FnOnce(nmc_status_t) + Send>>);

impl Waiter {
    fn tell(&mut self, status: nmc_status_t) {
        if let Some(tell) = self.0.take() {
            tell(status);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.tell(NMC_ERR_UNAVAILABLE);
    }
}

/// Speaks to the agent of this process.
#[derive(Clone)]
pub struct Handle(Arc<Mailbox<Mail>>, Arc<Mutex<String>>);

impl Handle {
    fn post(&self, mail: Mail) {
        self.0.post(mail);
    }

    /// What a master has said last why it refuses this node; empty if it does not.
    #[must_use]
    pub fn refused(&self) -> String {
        self.1.lock().clone()
    }

    /// What was read is to be kept on this node too. It is no loss if nothing comes of it.
    pub fn keep(&self, key: ObjectKey, from: Replica) {
        self.post(Mail::Keep(key, Box::new(from)));
    }

    /// A put was read here that is to go so long after that.
    pub fn expire(&self, key: ObjectKey, put: PutId, after_ms: u32) {
        self.post(Mail::Expire(key, put, after_ms));
    }

    /// Tells, from the agent's thread, when the leader knows all that is in the store by now, or why it does not. It is told if nobody ends the agent
    /// before this is called.
    pub fn sync_then(&self, patience: Duration, tell: impl FnOnce(nmc_status_t) + Send + 'static) {
        let patience = Millis::try_from(patience.as_millis()).unwrap_or(Millis::MAX);
        self.post(Mail::Sync(patience, Waiter(Some(Box::new(tell)))));
    }

    /// Waits until the leader knows all that is in the store by now.
    #[must_use]
    pub fn sync(&self, patience: Duration, cancelled: &AtomicBool) -> nmc_status_t {
        let (to, from) = sync_channel(1);
        self.sync_then(patience, move |status| {
            let _ = to.send(status);
        });
        // The loop answers in time; a little more, should it be late itself.
        let late = Instant::now() + patience + Duration::from_secs(1);
        loop {
            match from.recv_timeout(Duration::from_millis(20)) {
                Ok(status) => return status,
                Err(RecvTimeoutError::Disconnected) => return NMC_ERR_UNAVAILABLE,
                Err(RecvTimeoutError::Timeout) if cancelled.load(Ordering::SeqCst) => return NMC_ERR_CANCELLED,
                Err(RecvTimeoutError::Timeout) if Instant::now() >= late => return NMC_ERR_TIMEOUT,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// An agent that runs.
pub struct Service {
    handle: Handle,
    /// Only looked at from here: it ends with the thread.
    mover: Weak<Mover>,
    /// Ends what the thread waits for.
    end: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Begins to serve, in a life of its own: joins the masters, takes puts and gives what the store has to whoever connects.
    pub fn start<S: Memory + Send + 'static>(
        mut config: Config,
        masters: &[Address],
        mut storage: S,
        listener: Listener,
        limits: Limits,
        mover: Option<Settings>,
    ) -> Result<Self> {
        let secret = random_u64()?;
        config.incarnation = incarnation_of(secret);
        let mut net = Net::new(limits)?;
        net.listen(listener)?;
        let mailbox = Arc::new(Mailbox::new(&net)?);
        let refused = Arc::new(Mutex::new(String::new()));
        let handle = Handle(Arc::clone(&mailbox), Arc::clone(&refused));
        let (woken, end) = (handle.clone(), storage.ends_with());
        storage.wake_with(Arc::new(move || woken.post(Mail::Look)));
        let mover = mover.and_then(|settings| moved_by(settings, &mailbox, &mut storage, &config.name));
        let looked_at = mover.as_ref().map_or_else(Weak::new, Arc::downgrade);
        let running = Running {
            mover,
            meetings: Meetings::default(),
            name: config.name.clone(),
            renew_at: 0,
            agent: Agent::new(config, storage, now_ms()),
            secret,
            net,
            mailbox,
            masters: Masters::new(masters)?,
            parting: None,
            refused,
            receiving: HashMap::new(),
            tickets: ByNumber::default(),
            next: 1,
            fills: HashMap::new(),
            waiting: VecDeque::new(),
            syncs: HashMap::new(),
            events: Queue::new(),
            actions: Queue::new(),
        };
        let thread = service_thread::spawn(c"nmc-agent", None, move || running.run())?;
        Ok(Self { handle, mover: looked_at, end, thread: Some(thread) })
    }

    /// Bytes that somebody else has moved from here.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.mover.upgrade().map_or(0, |mover| mover.moved())
    }

    /// Speaks to it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.handle.post(Mail::Stop);
        (self.end)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a ticket of the connections stands for.
enum Ticket {
    /// The value of a put comes.
    Receive(PutId),
    /// A value that is held leaves.
    Send(u64),
    /// The value of a copy comes, on a connection of its own.
    Fill(Peer),
}

/// A value of another node that was asked for.
struct Filling {
    key: ObjectKey,
    from: Replica,
    /// Which copy it is for, and where its bytes go; none if it is only asked what is said about it.
    into: Option<(u64, Plan)>,
    /// How long an answer is waited for.
    until: Millis,
    /// What has come before was not what the owner has: it looks itself before it sends once more.
    doubted: bool,
}

impl Filling {
    fn new(key: ObjectKey, from: Replica, into: Option<(u64, Plan)>, now: Millis) -> Self {
        Self { key, from, into, until: now + FILL_MS, doubted: false }
    }
}

/// Somebody else moves the bytes of a node, if NIXL is there.
fn moved_by<S: Memory>(
    settings: Settings,
    mailbox: &Arc<Mailbox<Mail>>,
    storage: &mut S,
    name: &str,
) -> Option<Arc<Mover>> {
    let own = Arc::clone(mailbox);
    let start = || {
        let regions = storage.regions()?;
        if regions.is_empty() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "nobody has taken a rank of the store yet, or no NIC may write to its GPU"
            );
        }
        let mover = Mover::start(settings, move |news| own.post(Mail::Mover(news)))?;
        for Region { number, base, length, device } in regions {
            let size = |n: u64| usize::try_from(n).unwrap_or(0);
            let medium = device.map_or(Medium::Host, Medium::Device);
            // SAFETY: a heap of the store, before which the mover ends. Others write where a plan says, and read what a pin holds.
            mover.register(number, unsafe { Span::new(size(base), size(length)) }, medium)?;
        }
        Ok(mover)
    };
    let started: Result<Mover> = start();
    if let Err(error) = &started {
        log::emit(log::WARN, || {
            format!("cluster: bytes of \"{name}\" go by tcp, although rdma is wanted: {}", error.message)
        });
    }
    started.ok().map(Arc::new)
}

struct Running<S: Memory> {
    /// Moves bytes, if somebody else is to do that. It ends before the store does.
    mover: Option<Arc<Mover>>,
    /// The movers of those who have told of them.
    meetings: Meetings,
    name: String,
    /// When it is looked next whether the store has another tier.
    renew_at: Millis,
    agent: Agent<S>,
    /// Of this life of the node.
    secret: u64,
    net: Net,
    mailbox: Arc<Mailbox<Mail>>,
    masters: Masters,
    /// The leader that was told that the node ends, and has not answered.
    parting: Option<Peer>,
    refused: Arc<Mutex<String>>,
    receiving: HashMap<PutId, (Peer, u64)>,
    tickets: ByNumber<u64, Ticket>,
    next: u64,
    fills: HashMap<Peer, Filling>,
    waiting: VecDeque<Filling>,
    syncs: HashMap<u64, Waiter>,
    /// What the agent is to be told next.
    events: Queue<Event>,
    actions: Queue<Action>,
}

impl<S: Memory> Running<S> {
    fn run(mut self) {
        let poller = self.net.poller();
        let (mut ready, mut due): (_, Millis) = (Vec::new(), 0);
        loop {
            let limit = if self.net.is_busy() { 0 } else { due.saturating_sub(now_ms()) };
            ready.clear();
            poller.wait(Duration::from_millis(limit), &mut ready);
            self.net.ready(&ready);
            if !self.read_mail(&ready) {
                return self.part(&poller);
            }
            for _ in 0..TURN {
                let Some(heard) = self.net.hear() else { break };
                // The time of each: the process may sleep between two, and may not serve any more then.
                self.heard(heard, now_ms());
            }
            let now = now_ms();
            self.end_late_fills(now);
            if now >= self.renew_at
                && self.agent.storage().has_changed()
                && let Err(error) = self.begin_anew(now)
            {
                self.renew_at = now + TIER_MS;
                log::emit(log::WARN, || {
                    format!("cluster: the tier of \"{}\" is not there: {}", self.name, error.message)
                });
            }
            // With what is due after all of it: what the store did is told in one report.
            self.tell(Event::Tick, now);
            self.net.end_stalled();
            due = self.agent.wake(now).min(now + LOOK_MS);
            self.net.flush();
        }
    }

    /// The node ends: the leader is told, which says that it has heard of it, unless it is not there. Whoever has ended a node may count on
    /// that nobody counts with it.
    fn part(&mut self, poller: &Poller) {
        self.tell(Event::Leave, now_ms());
        self.mover = None;
        let (until, mut ready) = (now_ms() + PART_MS, Vec::new());
        while let Some(leader) = self.parting {
            self.net.flush();
            let now = now_ms();
            if now >= until {
                break;
            }
            ready.clear();
            poller.wait(Duration::from_millis(if self.net.is_busy() { 0 } else { until - now }), &mut ready);
            self.net.ready(&ready);
            // Nobody is told anything any more.
            drop(self.mailbox.take(&ready));
            while let Some(heard) = self.net.hear() {
                let is_over = match heard {
                    Heard::Frame(peer, frame) => peer == leader && frame.request == PARTING,
                    Heard::Closed(peer) => peer == leader,
                    _ => false,
                };
                self.parting.take_if(|_| is_over);
            }
        }
        self.net.flush();
    }

    /// The store has another tier: others hear of it in another life of the node.
    fn begin_anew(&mut self, now: Millis) -> Result<()> {
        let secret = random_u64()?;
        let offer = self.agent.storage_mut().offer(&self.name)?;
        let mut actions = Queue::new();
        self.agent.begin_anew(incarnation_of(secret), offer, now, &mut actions);
        // Still by the secret of the former life.
        actions.into_iter().for_each(|action| self.act(action, now));
        self.secret = secret;
        Ok(())
    }

    fn read_mail(&mut self, ready: &[Ready]) -> bool {
        let now = now_ms();
        for mail in self.mailbox.take(ready) {
            match mail {
                Mail::Keep(key, from) => self.tell(Event::Keep(key, *from), now),
                Mail::Expire(key, put, after_ms) => self.tell(Event::Expire(key, put, after_ms), now),
                Mail::Sync(patience, mut waiter) => match memory::reserve_map(&mut self.syncs, 1) {
                    Ok(()) => {
                        let ticket = self.ticket();
                        self.syncs.insert(ticket, waiter);
                        self.tell(Event::Sync(ticket, patience), now);
                    }
                    Err(error) => waiter.tell(error.status),
                },
                Mail::Mover(news) => {
                    self.moved(news);
                    self.tell_all(now);
                }
                // With what is due.
                Mail::Look => {}
                Mail::Stop => return false,
            }
        }
        true
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn heard(&mut self, heard: Heard, now: Millis) {
        match heard {
            Heard::Frame(peer, frame) => {
                if let Some(master) = self.masters.which(peer) {
                    match &frame.message {
                        Message::Answer(answer) if answer.status < 0 => {
                            log::emit(log::WARN, || format!("cluster: a master refuses this node: {}", answer.text));
                            *self.refused.lock() = memory::text(&answer.text).unwrap_or_default();
                        }
                        Message::Welcome(_) => self.refused.lock().clear(),
                        _ => {}
                    }
                    self.tell(Event::Master(master, frame), now);
                } else if self.fills.contains_key(&peer) {
                    self.fetched(peer, frame);
                } else if let Some(frame) = self.for_agent(peer, frame) {
                    self.tell(Event::Message(peer, frame), now);
                }
            }
            Heard::Taken(ticket) | Heard::Sent(ticket) => self.ended(ticket, true),
            Heard::Torn(ticket) => self.torn(ticket),
            Heard::Lost(ticket) => self.ended(ticket, false),
            Heard::Closed(peer) => {
                self.masters.closed(peer);
                self.filled(peer, false);
                self.about_movers(|meetings, to| meetings.closed(peer, to));
                self.events.push(Event::Closed(peer));
            }
        }
        self.tell_all(now);
    }

    /// A value has moved, or will not.
    fn ended(&mut self, ticket: u64, whole: bool) {
        match self.tickets.remove(&ticket) {
            Some(Ticket::Receive(put)) => {
                self.receiving.remove(&put);
                self.events.push(Event::Received(put, whole));
            }
            Some(Ticket::Send(pin)) => self.events.push(Event::Sent(pin, whole)),
            Some(Ticket::Fill(peer)) => self.filled(peer, whole),
            None => {}
        }
    }

    fn tell(&mut self, event: Event, now: Millis) {
        self.events.push(event);
        self.tell_all(now);
    }

    fn tell_all(&mut self, now: Millis) {
        while let Some(event) = self.events.pop() {
            let mut actions = std::mem::take(&mut self.actions);
            match event {
                Event::Tick => self.agent.on(event, now, &mut actions),
                _ => self.agent.hear(event, now, &mut actions),
            }
            while let Some(action) = actions.pop() {
                self.act(action, now);
            }
            self.actions = actions;
        }
    }

    fn act(&mut self, action: Action, now: Millis) {
        match action {
            Action::Master(at, mut frame) => {
                if let Some(incarnation) = frame.message.own_incarnation() {
                    *incarnation = self.secret;
                }
                if let Ok(Some(peer)) = self.masters.link(at, &mut self.net, now) {
                    let _ = self.net.send(peer, &frame);
                    self.parting = Some(peer).filter(|_| frame.request == PARTING);
                }
            }
            Action::Send(peer, mut frame) => {
                if let Message::Reserved(reserved) = &mut frame.message {
                    // As others know it; as nobody does if it is being renewed.
                    let current = self.mover.as_ref().and_then(|mover| mover.current());
                    let is = current.filter(|current| current.number == reserved.mover);
                    reserved.mover = is.map_or(0, |current| current.said.id);
                }
                let _ = self.net.send(peer, &frame);
            }
            Action::Receive { from, put, plan, length, .. } => self.receive(from, put, plan, length),
            Action::Stop(put) => {
                if let Some((peer, ticket)) = self.receiving.remove(&put) {
                    self.net.abandon(peer, ticket);
                    self.tickets.remove(&ticket);
                }
                self.events.push(Event::Received(put, false));
            }
            Action::SendValue { to, frame, pin, offset } => self.send_value(to, &frame, pin, offset),
            Action::Close(peer) => self.net.close(peer),
            Action::Push { pin, offset, length, into, mover, .. } => {
                let from = self.agent.storage().far_spans(pin, offset, length).and_then(Spans::list);
                match (&self.mover, from) {
                    (Some(own), Ok(from)) => own.write(Write { ticket: pin, from, stage: None, to: mover, into }),
                    _ => self.events.push(Event::Unsent(pin)),
                }
            }
            Action::CancelPush(pin) => {
                if let Some(mover) = &self.mover {
                    mover.cancel(pin);
                }
            }
            Action::Describe(key, from) => self.want(Filling::new(key, from, None, now), now),
            Action::Fill { ticket, plan, key, from } => {
                self.want(Filling::new(key, from, Some((ticket, plan)), now), now)
            }
            Action::Renew(number) => match &self.mover {
                Some(mover) => mover.renew(number),
                None => self.events.push(Event::Renewed(number)),
            },
            Action::Synced(ticket, status) => {
                if let Some(mut waiter) = self.syncs.remove(&ticket) {
                    waiter.tell(status);
                }
            }
        }
    }

    /// What a mover is about is not the agent's business, and neither is what only a mover could do, if there is none.
    fn for_agent(&mut self, peer: Peer, frame: Frame) -> Option<Frame> {
        let (request, there) = (frame.request, self.mover.as_ref().is_some_and(|mover| mover.current().is_some()));
        let refusal: Message = match frame.message {
            Message::Mover(other) => {
                self.greet(peer, request, other);
                return None;
            }
            Message::Reserve(_) if !there => {
                Reserved { status: NMC_ERR_UNSUPPORTED, name: None, extents: Vec::new(), mover: 0 }.into()
            }
            Message::Fetch(fetch) if !there && !fetch.into.is_empty() => {
                let (status, put, metadata) = (NMC_ERR_UNSUPPORTED, PutId(0), Metadata::default());
                Fetched { status, put, length: 0, follows: 0, sum: None, retain: 0, metadata }.into()
            }
            message => return Some(Frame { message, ..frame }),
        };
        let _ = self.net.send(peer, &Frame::answering(request, refusal));
        None
    }

    /// Somebody says how its mover is reached.
    fn greet(&mut self, peer: Peer, request: u64, other: wire::Mover) {
        if self.mover.is_none() {
            return self.introduce(peer, request, false);
        }
        self.about_movers(|meetings, to| meetings.greeted(peer, request, other, to));
    }

    /// Something has happened to those who have movers: what is to be done then.
    fn about_movers(&mut self, happened: impl FnOnce(&mut Meetings, &mut Vec<Step>)) {
        let mut steps = Vec::new();
        happened(&mut self.meetings, &mut steps);
        for step in steps {
            match (step, &self.mover) {
                (Step::Meet(other), Some(mover)) => mover.meet(other),
                (Step::Part(id), Some(mover)) => mover.part(id),
                (Step::Answer(peer, request, good), _) => self.introduce(peer, request, good),
                (Step::Meet(_) | Step::Part(_), None) => {}
            }
        }
    }

    /// Says how the own mover is reached, if it is.
    fn introduce(&mut self, peer: Peer, request: u64, good: bool) {
        let current = self.mover.as_ref().and_then(|mover| mover.current()).filter(|_| good);
        let none = || wire::Mover { id: 0, edition: 0, card: Card::default(), regions: Vec::new() };
        let said = current.map_or_else(none, |current| current.said.clone());
        let _ = self.net.send(peer, &Frame::answering(request, said));
    }

    /// The mover tells something.
    fn moved(&mut self, news: News) {
        match news {
            News::Moved(pin, How::Unsent) => self.events.push(Event::Unsent(pin)),
            News::Moved(pin, how) => self.events.push(Event::Sent(pin, how == How::Whole)),
            News::Renewed(number) => self.events.push(Event::Renewed(number)),
            News::Met(id, good) => self.about_movers(|meetings, to| meetings.met(id, good, to)),
            News::Card => {
                let mut peers = Queue::new();
                peers.extend(self.meetings.peers());
                peers.into_iter().for_each(|peer| self.introduce(peer, 0, true));
            }
        }
    }

    fn receive(&mut self, from: Peer, put: PutId, plan: Plan, length: u64) {
        if length == 0 {
            return self.events.push(Event::Received(put, true));
        }
        let ticket = self.ticket();
        let room = memory::reserve_map(&mut self.receiving, 1).and(memory::reserve_map(&mut self.tickets, 1));
        let spans = room.and_then(|()| self.agent.storage().plan_spans(plan));
        if spans.is_ok_and(|spans| self.net.take(from, Spans::new(spans).up_to(length), ticket)) {
            self.receiving.insert(put, (from, ticket));
            self.tickets.insert(ticket, Ticket::Receive(put));
        } else {
            self.events.push(Event::Received(put, false));
        }
    }

    fn send_value(&mut self, to: Peer, frame: &Frame, pin: u64, offset: u64) {
        let bytes = frame.message.value();
        let room = memory::reserve_map(&mut self.tickets, 1);
        let Ok(spans) = room.and_then(|()| self.agent.storage().pin_spans(pin, offset, bytes)) else {
            // Whoever asked hears of an end, since the answer was to come with the bytes.
            self.net.close(to);
            return self.events.push(Event::Sent(pin, false));
        };
        // What waits in buffers is bounded; the rest waits where it is.
        if bytes <= SMALL && self.net.queued(to) < MOST_COPIED {
            let _ = self.net.send_value(to, frame, spans, None);
            self.events.push(Event::Sent(pin, true));
        } else {
            let ticket = self.ticket();
            self.tickets.insert(ticket, Ticket::Send(pin));
            let _ = self.net.send_value(to, frame, spans, Some(ticket));
        }
    }

    /// Something of another node is wanted: now, or when others are over. What has a place comes before what has none yet.
    fn want(&mut self, filling: Filling, now: Millis) {
        if self.waiting.len() >= MOST_WAITING || memory::reserve_queue(&mut self.waiting, 1).is_err() {
            self.events.extend(filling.into.map(|(ticket, _)| Event::Filled(ticket, false)));
        } else if filling.into.is_some() {
            self.waiting.push_front(filling);
        } else {
            self.waiting.push_back(filling);
        }
        self.fetch_waiting(now);
    }

    fn fetch_waiting(&mut self, now: Millis) {
        while self.fills.len() < MOST_FILLS
            && let Some(filling) = self.waiting.pop_front()
        {
            self.fetch(Filling { until: now + FILL_MS, ..filling });
        }
    }

    /// Asks the owner of a value for it, or only what it says about it, on a connection for this alone.
    fn fetch(&mut self, filling: Filling) {
        let Filling { key, from, into, .. } = &filling;
        let length = if into.is_some() { from.length } else { 0 };
        let (name, put, key, stub) = (from.name, from.put, key.clone(), from.put.is_striped());
        let (offset, mover, expire_ms, verify) = (0, 0, 0, filling.doubted);
        let fetch = Fetch { name, key, put, offset, length, into: Vec::new(), mover, expire_ms, stub, verify };
        let room = memory::reserve_map(&mut self.fills, 1).and_then(|()| Address::literal(&from.endpoint));
        let peer = room.and_then(|address| self.net.connect(&address)).ok();
        let Some(peer) = peer else {
            self.events.extend(into.map(|(ticket, _)| Event::Filled(ticket, false)));
            return;
        };
        // Longer than the copy has.
        let time_left_ms = u32::try_from(COPY_MS + slow_ms(length)).unwrap_or(u32::MAX);
        let _ = self.net.send(peer, &Frame { request: 1, time_left_ms, message: fetch.into() });
        self.fills.insert(peer, filling);
    }

    /// The owner of a value that is to be copied has answered.
    fn fetched(&mut self, peer: Peer, frame: Frame) {
        let Some(Filling { from, into, .. }) = self.fills.get(&peer) else { return };
        let (length, into) = (from.length, *into);
        let same = match frame.message {
            Message::Fetched(fetched)
                if fetched.status == NMC_OK && fetched.put == from.put && fetched.length == length =>
            {
                Some(fetched)
            }
            _ => None,
        };
        match (same, into) {
            (Some(fetched), None) => {
                if let Some(Filling { key, from, .. }) = self.fills.remove(&peer) {
                    self.events.push(Event::Described(key, from, fetched.metadata, fetched.retain));
                    self.net.close(peer);
                }
            }
            (Some(fetched), Some((_, plan))) if fetched.follows == length && length > 0 => {
                let ticket = self.ticket();
                let room = memory::reserve_map(&mut self.tickets, 1);
                let spans = room.and_then(|()| self.agent.storage().plan_spans(plan));
                if spans.is_ok_and(|spans| {
                    self.net.take(peer, Spans::new(spans).up_to(length).wanting(fetched.sum), ticket)
                }) {
                    self.tickets.insert(ticket, Ticket::Fill(peer));
                    if let Some(filling) = self.fills.get_mut(&peer) {
                        filling.until = Millis::MAX;
                    }
                } else {
                    self.filled(peer, false);
                }
            }
            (same, _) => self.filled(peer, same.is_some() && length == 0),
        }
    }

    /// What has come for a copy is not what its owner has. It is asked once more: damage does not spread.
    fn torn(&mut self, ticket: u64) {
        let Some(Ticket::Fill(peer)) = self.tickets.get(&ticket) else { return self.ended(ticket, false) };
        let peer = *peer;
        if self.fills.get(&peer).is_none_or(|filling| filling.doubted) {
            return self.ended(ticket, false);
        }
        self.tickets.remove(&ticket);
        self.net.close(peer);
        let filling = self.fills.remove(&peer);
        filling.into_iter().for_each(|filling| self.want(Filling { doubted: true, ..filling }, now_ms()));
    }

    /// Owners that have not given what was asked for.
    fn end_late_fills(&mut self, now: Millis) {
        let late = self.fills.iter().filter(|(_, f)| f.until <= now).map(|(peer, _)| *peer);
        // Without memory for that, the next time.
        memory::collect(late).unwrap_or_default().into_iter().for_each(|peer| self.filled(peer, false));
        self.fetch_waiting(now);
    }

    /// A copy has its value, or none will come.
    fn filled(&mut self, peer: Peer, whole: bool) {
        if let Some(filling) = self.fills.remove(&peer) {
            self.net.close(peer);
            self.events.extend(filling.into.map(|(ticket, _)| Event::Filled(ticket, whole)));
        }
    }
}
