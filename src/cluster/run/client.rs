//! A client of the cluster and its connections. It has no thread of its own, unless one is asked for: whoever waits for a call drives
//! the connections until its own calls have ended, and leaves that to the next who waits. Calls that nobody waits for are driven
//! by whoever looks what became of them, by whoever waits for another, or by the thread.
//!
//! Memory that a call reads or writes is its caller's again when the call has ended: nothing is sent from it or stored to it after that.

use super::carrier::{Borrowed, Carrier};
use super::masters::Masters;
use super::node;
use super::{SMALL, TURN};
use crate::base::error::Result;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_PERMISSION, NMC_ERR_TOO_SMALL, NMC_ERR_UNSUPPORTED, NMC_ERR_VERSION, NMC_OK,
    nmc_status_t,
};
use crate::base::{log, memory};
use crate::cluster::client::{Action, Call, Client, Config, Event, Memory, Outcome};
use crate::cluster::net::{Address, ByNumber, Heard, Limits, Net, Poller, Ready, Span, Spans, now_ms};
use crate::cluster::nixl::sys::Medium;
use crate::cluster::nixl::{How, News, Settings, Write, pieces};
use crate::cluster::types::{Millis, NodeId, ObjectKey, Peer, PutId};
use crate::cluster::wire::{Answer, Extent, Fetched, Frame, Message, Metadata, Mover, Reserved};
use crate::sync::service_thread;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long whoever drives the connections waits at most before it looks at the clock.
const LOOK_MS: Millis = 20;
/// How long whoever waits to read something looks for it before it sleeps: a thread takes about as long to wake up. Not where
/// something is put or removed: then a master and an owner work at the same time, and one of them may need the processor.
const AWAKE: Duration = Duration::from_micros(25);
/// Looks at the connections at once, before something else has its turn.
const LOOKS: usize = 8;
/// After a look that found nothing so many waits are spent asleep: whoever is to answer may wait for this very processor.
const ASLEEP: u32 = 64;
/// Connections for large values to one node.
const MOST_LARGE: usize = 8;
/// How long calls that are to end may take until nobody else moves their bytes: longer than that takes.
const ENDING: Duration = Duration::from_secs(10);
/// After so long a node that had no mover is asked again.
const GREET_MS: Millis = 5_000;

/// A call, the memory that it reads or writes, and how long it may take.
pub struct Task {
    /// What is called.
    pub call: Call,
    /// Where the bytes of a put are, or those of a get go.
    pub spans: Vec<Span>,
    /// How long it may take.
    pub patience: Duration,
}

/// What is called when calls have ended that nobody waits for: how each of them went.
pub type Ended = Box<dyn FnOnce(Vec<Outcome>) + Send>;

/// Calls that end together.
struct Group {
    outcomes: Vec<Outcome>,
    left: usize,
    /// By which they can be ended before; 0 for calls that somebody waits for.
    tag: u64,
    /// Who waits for them, or what is told.
    waiter: Arc<Condvar>,
    ended: Option<Ended>,
}

/// A call under way.
struct Running {
    group: u64,
    at: usize,
    spans: Vec<Span>,
    /// Tickets of values that are on their way into the caller's memory, or out of it: then the connection is for that alone.
    incoming: Vec<(u64, Peer)>,
    outgoing: Vec<(u64, Peer)>,
    /// The value had so many bytes, and there was no room for it.
    too_large: Option<u64>,
    /// Where its value is while somebody else moves it, if the caller's memory is not registered.
    borrowed: Option<Borrowed>,
    /// It is to end, like this, when nobody else moves its bytes any more.
    ending: Option<Outcome>,
}

/// A request that has no answer.
struct Sent {
    peer: Peer,
    call: u64,
    /// Its connection is for it alone, and whose it is.
    large: Option<NodeId>,
}

/// Connections to a node.
#[derive(Default)]
struct Node {
    endpoint: String,
    shared: Option<Peer>,
    /// Those for large values that nobody uses.
    free: Vec<Peer>,
    /// How many there are for large values.
    large: usize,
    /// Requests that wait for one.
    waiting: VecDeque<(Frame, Memory)>,
    /// What it was told of the own mover: which, and which edition; and when.
    told: (u64, u64),
    told_at: Millis,
    /// Its mover, if it has one that knows the own.
    mover: u64,
    /// Whether the own one knows that.
    met: bool,
}

struct State {
    core: Client,
    net: Net,
    masters: Masters,
    nodes: HashMap<NodeId, Node>,
    /// Connections for large values, and whose they are.
    large: ByNumber<Peer, NodeId>,
    calls: ByNumber<u64, Running>,
    groups: ByNumber<u64, Group>,
    requests: ByNumber<u64, Sent>,
    /// Whose a value is that is on its way: the call, and the request if its end is to be told.
    tickets: ByNumber<u64, (u64, Option<u64>)>,
    next: u64,
    events: VecDeque<Event>,
    actions: Vec<Action>,
    agent: Option<node::Handle>,
    /// Moves bytes, if somebody else is to do that.
    carrier: Option<Carrier>,
    /// From how many bytes on.
    pushed_from: u64,
    /// Somebody drives the connections.
    driven: bool,
    /// When it was looked last what has happened.
    looked_at: Millis,
    /// Waits that are spent asleep.
    asleep: u32,
    /// Groups that nobody waits for.
    unattended: usize,
    /// Those of them that have ended, and whom nobody has told.
    over: Vec<u64>,
    closing: bool,
    cancelled: bool,
}

struct Shared {
    state: Mutex<State>,
    poller: Arc<Poller>,
    /// Wakes those who drive for calls that nobody waits for: the thread, and who wants to hear of them.
    background: Condvar,
}

/// See the module.
pub struct Service {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    /// A client that has called nobody.
    pub fn new(config: Config, masters: &[Address], limits: Limits) -> Result<Self> {
        Self::moving(config, masters, limits, None)
    }

    /// The same; somebody else moves the bytes, if that is wanted and possible.
    pub fn moving(mut config: Config, masters: &[Address], limits: Limits, mover: Option<Settings>) -> Result<Self> {
        let net = Net::new(Limits { queued: usize::MAX, held: usize::MAX, ..limits })?;
        let carrier = mover.and_then(|settings| match Carrier::new(settings, &net) {
            Ok(carrier) => Some(carrier),
            Err(error) => {
                log::emit(log::WARN, || format!("client: bytes go by tcp, although rdma is wanted: {}", error.message));
                None
            }
        });
        config.pushed = carrier.is_some();
        let poller = net.poller();
        let state = State {
            pushed_from: config.pushed_from,
            carrier,
            core: Client::new(config),
            net,
            masters: Masters::new(masters)?,
            nodes: HashMap::new(),
            large: ByNumber::default(),
            calls: ByNumber::default(),
            groups: ByNumber::default(),
            requests: ByNumber::default(),
            tickets: ByNumber::default(),
            next: 1,
            events: VecDeque::new(),
            actions: Vec::new(),
            agent: None,
            driven: false,
            looked_at: 0,
            asleep: 0,
            unattended: 0,
            over: Vec::new(),
            closing: false,
            cancelled: false,
        };
        let shared = Shared { state: Mutex::new(state), poller, background: Condvar::new() };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// From now on what is to be kept on this node goes to this agent, or nowhere.
    pub fn keep_with(&self, agent: Option<node::Handle>) {
        self.shared.state.lock().agent = agent;
    }

    /// Memory that somebody else moves bytes from and to without a copy.
    pub fn register(&self, memory: Span) -> Result<()> {
        let (mover, number) = match &mut self.shared.state.lock().carrier {
            Some(carrier) => (Arc::clone(&carrier.mover), carrier.number()),
            None => return Ok(()),
        };
        // This may take a while.
        mover.register(number, memory, Medium::Host)?;
        match &mut self.shared.state.lock().carrier {
            Some(carrier) => carrier.add(number, memory),
            None => Ok(()),
        }
    }

    /// Bytes that somebody else has moved from here.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.shared.state.lock().carrier.as_ref().map_or(0, |carrier| carrier.mover.moved())
    }

    /// Not any more: memory that begins there.
    pub fn unregister(&self, first: usize) -> Result<()> {
        let found = match &mut self.shared.state.lock().carrier {
            Some(carrier) => carrier.remove(first).map(|number| (Arc::clone(&carrier.mover), number)),
            None => None,
        };
        found.map_or(Ok(()), |(mover, number)| mover.unregister(number))
    }

    /// Looks at keys, and is told whether it is remembered where one is.
    pub fn look_at<R>(&self, look: impl FnOnce(&dyn Fn(&ObjectKey) -> bool) -> R) -> R {
        let state = self.shared.state.lock();
        look(&|key| state.core.knows(key))
    }

    /// Makes calls and waits until all have ended; each does by its time and two seconds.
    pub fn call(&self, tasks: Vec<Task>) -> Result<Vec<Outcome>> {
        self.call_unless(tasks, &|| false)
    }

    /// The same; those that have not ended when `stop` says so end with CANCELLED.
    pub fn call_unless(&self, tasks: Vec<Task>, stop: &dyn Fn() -> bool) -> Result<Vec<Outcome>> {
        let mut state = self.shared.state.lock();
        let waiter = Arc::new(Condvar::new());
        let number = state.begin(tasks, Arc::clone(&waiter), 0, None)?;
        let mut stopped = false;
        while !state.is_over(number) {
            if !stopped && stop() {
                // Where somebody else moves their bytes they are not over with that.
                stopped = true;
                state.end_calls(|group, _| group == number, None);
            } else if state.driven {
                waiter.wait_for(&mut state, Duration::from_millis(LOOK_MS));
            } else {
                state = self.shared.drive(state, Millis::MAX, |state| state.is_over(number) || !stopped && stop());
            }
        }
        let outcomes = state.groups.remove(&number).map(|group| group.outcomes).unwrap_or_default();
        self.shared.pass_on(&mut state);
        Ok(outcomes)
    }

    /// Ends all calls, those that are under way and those that come, with CANCELLED.
    pub fn cancel(&self) {
        let mut state = self.shared.state.lock();
        state.cancelled = true;
        state.end_calls(|_, _| true, None);
        // Where somebody else moves their bytes, that has to end first.
        let until = now_ms().saturating_add(Millis::try_from(ENDING.as_millis()).unwrap_or(0));
        while state.is_ending() && now_ms() < until {
            if state.driven {
                self.shared.background.wait_for(&mut state, Duration::from_millis(2));
            } else {
                state = self.shared.drive(state, until, |state| !state.is_ending());
            }
        }
        let done = state.take_unattended();
        drop(state);
        tell(done);
    }

    /// Makes calls and tells, from whichever thread drives, when all have ended.
    pub fn spawn(&self, tasks: Vec<Task>, tag: u64, ended: Ended) -> Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(tasks, Arc::new(Condvar::new()), tag, Some(ended))?;
        let done = state.take_unattended();
        self.shared.pass_on(&mut state);
        drop(state);
        tell(done);
        Ok(())
    }

    /// Ends spawned calls with this tag, with CANCELLED.
    pub fn end(&self, tag: u64) {
        let mut state = self.shared.state.lock();
        state.end_calls(|_, group| group.tag == tag, None);
        let done = state.take_unattended();
        drop(state);
        tell(done);
    }

    /// From now on a thread drives the connections while calls are under way that nobody waits for.
    pub fn start_thread(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = Some(service_thread::spawn(c"nmc-client", None, move || shared.background())?);
        }
        Ok(())
    }

    /// Looks at the connections once, and does not wait; if somebody else drives them there is nothing to look at. Gives whether there is
    /// more to do at once.
    pub fn look(&self) -> bool {
        let mut state = self.shared.state.lock();
        if state.driven {
            return false;
        }
        let mut ready = Vec::new();
        for _ in 0..LOOKS {
            ready.clear();
            self.shared.poller.wait(Duration::ZERO, &mut ready);
            state.turn(&ready);
            if !state.net.is_busy() {
                break;
            }
        }
        let (busy, done) = (state.net.is_busy(), state.take_unattended());
        drop(state);
        tell(done);
        busy
    }

    /// Drives the connections, or waits for whoever does, until it is enough, but not longer than this.
    pub fn drive(&self, limit: Duration, enough: impl Fn() -> bool) {
        let until = now_ms().saturating_add(Millis::try_from(limit.as_millis()).unwrap_or(Millis::MAX));
        let mut state = self.shared.state.lock();
        while !enough() {
            let left = until.saturating_sub(now_ms());
            if left == 0 {
                break;
            }
            if state.driven {
                self.shared.background.wait_for(&mut state, Duration::from_millis(left.min(LOOK_MS)));
            } else {
                state = self.shared.drive(state, until, |_| enough());
            }
        }
        self.shared.pass_on(&mut state);
    }

    /// What the connections are waited for with.
    #[must_use]
    pub fn poller(&self) -> Arc<Poller> {
        Arc::clone(&self.shared.poller)
    }
}

impl Service {
    /// Ends the thread, when no call is under way any more.
    pub fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.background.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
    }
}

/// What somebody says who does not talk to this client, for want of the token or of a common version.
fn refusal(frame: &Frame) -> Option<&Answer> {
    match &frame.message {
        Message::Answer(answer) if frame.request == 0 && is_refusal(answer.status) => Some(answer),
        _ => None,
    }
}

/// Whether all calls of a client end like this, whatever they are.
pub fn is_refusal(status: nmc_status_t) -> bool {
    matches!(status, NMC_ERR_PERMISSION | NMC_ERR_VERSION)
}

fn tell(done: Vec<(Ended, Vec<Outcome>)>) {
    done.into_iter().for_each(|(ended, outcomes)| ended(outcomes));
}

impl Shared {
    /// Drives the connections until it is enough, or until then.
    fn drive<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Millis,
        enough: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        state.driven = true;
        let mut ready = Vec::new();
        loop {
            let done = state.take_unattended();
            if !done.is_empty() {
                MutexGuard::unlocked(&mut state, || tell(done));
                self.background.notify_all();
            }
            let now = now_ms();
            if now >= until || enough(&state) {
                break;
            }
            let wake = state.core.wake(now).min(until).saturating_sub(now);
            let limit = if state.net.is_busy() { 0 } else { wake.min(LOOK_MS) };
            ready.clear();
            let limit = Duration::from_millis(limit);
            if limit.is_zero() || state.asleep > 0 || !state.core.is_reading() {
                state.asleep = state.asleep.saturating_sub(1);
                MutexGuard::unlocked(&mut state, || self.poller.wait(limit, &mut ready));
            } else if !MutexGuard::unlocked(&mut state, || self.poller.wait_awake(AWAKE, limit, &mut ready)) {
                state.asleep = ASLEEP;
            }
            state.turn(&ready);
        }
        state.driven = false;
        state
    }

    /// If nobody drives the connections any more, the next who waits does.
    fn pass_on(&self, state: &mut State) {
        if state.driven {
            return;
        }
        match state.groups.values().find(|group| group.ended.is_none() && group.left > 0) {
            Some(group) => {
                group.waiter.notify_one();
            }
            None if state.unattended > 0 => {
                self.background.notify_one();
            }
            None => {}
        }
    }

    fn background(&self) {
        let mut state = self.state.lock();
        loop {
            if state.closing && state.unattended == 0 {
                return;
            }
            if state.unattended > 0 && !state.driven {
                state = self.drive(state, Millis::MAX, |state| state.unattended == 0);
                self.pass_on(&mut state);
            } else {
                self.background.wait_for(&mut state, Duration::from_millis(200));
            }
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_over(&self, group: u64) -> bool {
        self.groups.get(&group).is_none_or(|group| group.left == 0)
    }

    /// Groups that nobody waits for and that have ended.
    fn take_unattended(&mut self) -> Vec<(Ended, Vec<Outcome>)> {
        // It keeps its room: whoever began a call was given that.
        let over = self.over.drain(..).filter_map(|number| self.groups.remove(&number));
        let done: Vec<_> = over.filter_map(|group| Some((group.ended?, group.outcomes))).collect();
        self.unattended -= done.len();
        done
    }

    fn begin(&mut self, tasks: Vec<Task>, waiter: Arc<Condvar>, tag: u64, ended: Option<Ended>) -> Result<u64> {
        if !self.driven && self.looked_at != now_ms() {
            // What has ended while nobody looked is not spoken to.
            let mut ready = Vec::new();
            self.net.poller().wait(Duration::ZERO, &mut ready);
            self.turn(&ready);
        }
        let outcomes = self.room(&tasks)?;
        let number = self.number();
        self.unattended += usize::from(ended.is_some());
        if tasks.is_empty() && ended.is_some() {
            self.over.push(number);
        }
        self.groups.insert(number, Group { outcomes, left: tasks.len(), tag, waiter, ended });
        let now = now_ms();
        for (at, task) in tasks.into_iter().enumerate() {
            let call = self.number();
            let running = Running {
                group: number,
                at,
                spans: task.spans,
                incoming: Vec::new(),
                outgoing: Vec::new(),
                too_large: None,
                borrowed: None,
                ending: None,
            };
            self.calls.insert(call, running);
            let task = Task { call: self.named(call, task.call), spans: Vec::new(), ..task };
            let patience = Millis::try_from(task.patience.as_millis()).unwrap_or(Millis::MAX);
            self.events.push_back(Event::Call(call, patience, task.call));
            self.tell_all(now);
            if at % TURN == TURN - 1 {
                self.net.flush();
            }
        }
        self.net.flush();
        if self.cancelled {
            self.end_calls(|_, _| true, None);
        }
        Ok(number)
    }

    /// Makes room for what calls need to be noted while they are under way, and gives that of their outcomes.
    fn room(&mut self, tasks: &[Task]) -> Result<Vec<Outcome>> {
        let (calls, all) = (tasks.len(), self.calls.len() + tasks.len());
        self.core.reserve(tasks.iter().map(|task| &task.call))?;
        memory::reserve_map(&mut self.groups, 1)?;
        memory::reserve_map(&mut self.calls, calls)?;
        memory::reserve_map(&mut self.requests, calls)?;
        memory::reserve_map(&mut self.tickets, calls)?;
        memory::reserve(&mut self.over, self.unattended + 1)?;
        // All of them may be late, or lose their connection, at once.
        memory::reserve_queue(&mut self.events, 2 * all)?;
        memory::reserve_to(&mut self.actions, 2 * all)?;
        memory::vec_with(calls, |_| Outcome::of(NMC_ERR_CANCELLED))
    }

    /// Calls of such groups end, in these words if there are any. Nothing is sent for them after this, but that what they began is not
    /// to be.
    fn end_calls(&mut self, which: impl Fn(u64, &Group) -> bool, why: Option<&Answer>) {
        let ends = |groups: &ByNumber<u64, Group>, running: &Running| {
            groups.get(&running.group).is_some_and(|group| which(running.group, group))
        };
        let next = |state: &Self| {
            let mut calls = state.calls.iter();
            calls.find(|(_, running)| running.ending.is_none() && ends(&state.groups, running)).map(|(call, _)| *call)
        };
        while let Some(call) = next(self) {
            let outcome = match why {
                Some(why) => Outcome { reply: Some(Box::new(why.clone().into())), ..Outcome::of(why.status) },
                None => Outcome::of(NMC_ERR_CANCELLED),
            };
            match self.carrier {
                // It says itself when nobody else moves its bytes any more.
                Some(_) => {
                    if let Some(running) = self.calls.get_mut(&call) {
                        running.ending = Some(outcome);
                    }
                }
                None => self.done(call, outcome),
            }
            self.events.push_back(Event::End(call));
            self.tell_all(now_ms());
        }
        self.net.flush();
    }

    /// Something may have happened.
    fn turn(&mut self, ready: &[Ready]) {
        self.net.ready(ready);
        let now = now_ms();
        self.looked_at = now;
        if let Some(carrier) = &self.carrier {
            let news = carrier.take(ready);
            news.into_iter().for_each(|news| self.carried(news));
            self.tell_all(now);
        }
        for _ in 0..TURN {
            let Some(heard) = self.net.hear() else { break };
            self.heard(heard, now);
        }
        self.events.push_back(Event::Tick);
        self.tell_all(now);
        self.net.end_stalled();
        self.net.flush();
    }

    fn heard(&mut self, heard: Heard, now: Millis) {
        match heard {
            Heard::Frame(peer, frame) => self.frame(peer, frame),
            Heard::Taken(ticket) => self.moved(ticket, true),
            Heard::Sent(ticket) => {
                self.forget(ticket);
            }
            Heard::Lost(ticket) => self.moved(ticket, false),
            Heard::Closed(peer) => self.closed(peer),
        }
        self.tell_all(now);
    }

    fn frame(&mut self, peer: Peer, frame: Frame) {
        if let Some(at) = self.masters.which(peer) {
            let refusal = refusal(&frame);
            if self.masters.refuses(at, refusal.is_some())
                && let Some(answer) = refusal
            {
                self.end_calls(|_, _| true, Some(answer));
            }
            self.requests.remove(&frame.request);
            return self.events.push_back(Event::Master(at, frame));
        }
        if let Message::Mover(other) = frame.message {
            return self.greeted(peer, other);
        }
        let number = frame.request;
        // An answer that comes by another way than its question did is none.
        let Some(sent) = self.requests.get(&number).filter(|sent| sent.peer == peer) else { return };
        let node = sent.large;
        if frame.message.value() == 0 {
            self.release(number);
        }
        self.events.push_back(Event::Node(node.unwrap_or(NodeId(0)), frame));
    }

    /// A value has come whole, or has been lost on its way.
    fn moved(&mut self, ticket: u64, whole: bool) {
        let Some((_, request)) = self.forget(ticket) else { return };
        if let Some(request) = request {
            self.release(request);
            self.events.push_back(Event::Took(request, whole));
        }
    }

    /// The caller's memory is not used any more by this.
    fn forget(&mut self, ticket: u64) -> Option<(u64, Option<u64>)> {
        let (call, request) = self.tickets.remove(&ticket)?;
        if let Some(running) = self.calls.get_mut(&call) {
            running.incoming.retain(|(of, _)| *of != ticket);
            running.outgoing.retain(|(of, _)| *of != ticket);
        }
        Some((call, request))
    }

    /// A request is over: its connection is free for another, unless part of its value is still to be sent.
    fn release(&mut self, number: u64) {
        let Some(sent) = self.requests.remove(&number) else { return };
        let Some(id) = sent.large else { return };
        let sending = self.calls.get(&sent.call).is_some_and(|call| call.outgoing.iter().any(|(_, p)| *p == sent.peer));
        if sending {
            return self.net.close(sent.peer);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.free.push(sent.peer);
        }
        self.send_waiting(id);
    }

    fn closed(&mut self, peer: Peer) {
        self.masters.closed(peer);
        for node in self.nodes.values_mut().filter(|node| node.shared == Some(peer)) {
            (node.shared, node.told, node.met) = (None, (0, 0), false);
        }
        let lost = self.requests.extract_if(|_, sent| sent.peer == peer);
        self.events.extend(lost.map(|(number, _)| Event::Lost(number)));
        if let Some(id) = self.large.remove(&peer) {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.free.retain(|free| *free != peer);
                node.large -= 1;
            }
            self.send_waiting(id);
        }
    }

    fn tell_all(&mut self, now: Millis) {
        while let Some(event) = self.events.pop_front() {
            let mut actions = std::mem::take(&mut self.actions);
            self.core.on(event, now, &mut actions);
            actions.drain(..).for_each(|action| self.act(action, now));
            self.actions = actions;
        }
    }

    fn act(&mut self, action: Action, now: Millis) {
        match action {
            Action::Master(at, frame) => match self.masters.link(at, &mut self.net, now) {
                Some(peer) => {
                    let noted = self.note(frame.request, Sent { peer, call: 0, large: None });
                    if noted {
                        self.say(peer, &frame);
                    }
                }
                None if frame.request != 0 => self.events.push_back(Event::Lost(frame.request)),
                None => {}
            },
            Action::Node(id, endpoint, frame, from) => self.ask_node(id, endpoint, frame, from),
            Action::Take { request, into, length } => self.take(request, into, length),
            Action::Close(request) => self.close(request),
            Action::Keep(_, key, replica) => {
                if let Some(agent) = &self.agent {
                    agent.keep(key, replica);
                }
            }
            Action::Done(call, outcome) => self.done(call, outcome),
            Action::Write { request, call, node, mover, extents } => self.write(request, call, node, mover, extents),
            Action::CancelWrite(request) => {
                if let Some(carrier) = &self.carrier {
                    carrier.mover.cancel(request);
                }
            }
            Action::Landed(call, length) => {
                if let Some(Running { borrowed: Some(borrowed), spans, .. }) = self.calls.get(&call) {
                    pieces::scatter(borrowed.span.up_to(usize::try_from(length).unwrap_or(0)), spans);
                }
            }
            Action::Renew(number) => match &self.carrier {
                Some(carrier) => carrier.mover.renew(number),
                None => self.events.push_back(Event::Renewed(number)),
            },
        }
    }

    /// A call as it is made: if somebody else may move what it reads, it says where to.
    fn named(&mut self, number: u64, mut call: Call) -> Call {
        let (Some(carrier), Call::Get(get)) = (&mut self.carrier, &mut call) else { return call };
        let Some(running) = self.calls.get_mut(&number).filter(|_| get.room >= self.pushed_from) else { return call };
        if let Some(extents) = carrier.extents(&running.spans) {
            get.into = extents;
        } else if let (Ok(mut into), Some((borrowed, extent))) = (memory::with_capacity(1), carrier.borrow(get.room)) {
            into.push(extent);
            (get.into, running.borrowed) = (into, Some(borrowed));
        }
        call
    }

    /// Whether somebody else can move the value of a put; makes room for it if need be.
    fn can_write(&mut self, call: u64, length: u64) -> bool {
        let (Some(carrier), Some(running)) = (&mut self.carrier, self.calls.get_mut(&call)) else { return false };
        if running.borrowed.is_none() && !carrier.has(&running.spans) {
            running.borrowed = carrier.borrow(length).map(|(borrowed, _)| borrowed);
            return running.borrowed.is_some();
        }
        true
    }

    fn write(&mut self, request: u64, call: u64, node: NodeId, to: u64, into: Vec<Extent>) {
        let known = self.nodes.get(&node).is_some_and(|node| node.met && node.mover == to);
        let from = self.calls.get(&call).filter(|_| known).and_then(|running| memory::copy(&running.spans).ok());
        let (Some(carrier), Some(from)) = (&self.carrier, from) else {
            return self.events.push_back(Event::Unwritten(request));
        };
        let stage = self.calls.get(&call).and_then(|running| running.borrowed.as_ref()).map(|borrowed| borrowed.span);
        carrier.mover.write(Write { ticket: request, from, stage, to, into });
    }

    fn is_ending(&self) -> bool {
        self.calls.values().any(|running| running.ending.is_some())
    }

    /// The mover tells something.
    fn carried(&mut self, news: News) {
        match news {
            News::Moved(request, How::Unsent) => self.events.push_back(Event::Unwritten(request)),
            News::Moved(request, how) => self.events.push_back(Event::Wrote(request, how == How::Whole)),
            News::Renewed(number) => self.events.push_back(Event::Renewed(number)),
            News::Met(id, good) => {
                for node in self.nodes.values_mut().filter(|node| node.mover == id) {
                    node.met = good;
                    log::emit(log::DEBUG, || format!("client: NIXL reaches {}: {good}", node.endpoint));
                }
            }
            News::Card => {
                // Those who knew it are told at once, so that the next call finds them ready.
                let told = |(id, node): (&NodeId, &Node)| (node.told != (0, 0)).then_some(*id);
                let nodes: Vec<NodeId> = self.nodes.iter().filter_map(told).collect();
                nodes.into_iter().for_each(|id| self.greet(id));
            }
        }
    }

    /// Tells a node how the own mover is reached, if it does not know. It answers with its own.
    fn greet(&mut self, id: NodeId) {
        let Some(current) = self.carrier.as_ref().and_then(Carrier::current) else { return };
        let (said, now) = ((current.said.id, current.said.edition), now_ms());
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.told == said && (node.mover != 0 || now < node.told_at + GREET_MS) {
            return;
        }
        let peer = match node.shared {
            Some(peer) => Ok(peer),
            None => Address::literal(&node.endpoint).and_then(|address| self.net.connect(&address)),
        };
        let Ok(peer) = peer else { return };
        (node.shared, node.told, node.told_at, node.met) = (Some(peer), said, now, false);
        let _ = self.net.send(peer, &Frame::telling(current.said.clone()));
    }

    /// A node says how its mover is reached.
    fn greeted(&mut self, peer: Peer, other: Mover) {
        let found = self.nodes.values_mut().find(|node| node.shared == Some(peer));
        let (Some(node), Some(carrier)) = (found, &self.carrier) else { return };
        if node.mover != other.id && node.mover != 0 {
            carrier.mover.part(node.mover);
        }
        (node.mover, node.met) = (other.id, node.met && node.mover == other.id);
        if other.id != 0 {
            carrier.mover.meet(other);
        }
    }

    /// Whether a node can write to memory of this client, and this client to its memory; by the renewal of the own mover that is meant.
    fn reaches(&mut self, id: NodeId) -> Option<(u64, u64)> {
        self.greet(id);
        let current = self.carrier.as_ref().and_then(Carrier::current)?;
        let said = &current.said;
        let node = self.nodes.get(&id)?;
        (node.met && node.told == (said.id, said.edition)).then_some((current.number, said.id))
    }

    /// What only a mover can do is not asked of a node that has none: what it would answer then.
    fn refused(&mut self, id: NodeId, frame: &mut Frame, call: u64) -> Option<Message> {
        match &mut frame.message {
            Message::Fetch(fetch) if !fetch.into.is_empty() => match self.reaches(id) {
                Some((number, said)) if number == fetch.mover => {
                    fetch.mover = said;
                    None
                }
                _ => {
                    let (status, put, metadata) = (NMC_ERR_UNSUPPORTED, PutId(0), Metadata::default());
                    Some(Fetched { status, put, length: 0, follows: 0, retain: 0, metadata }.into())
                }
            },
            Message::Reserve(reserve) => {
                let length = reserve.put.length;
                if self.reaches(id).is_some() && self.can_write(call, length) {
                    return None;
                }
                Some(Reserved { status: NMC_ERR_UNSUPPORTED, name: None, extents: Vec::new(), mover: 0 }.into())
            }
            _ => None,
        }
    }

    fn ask_node(&mut self, id: NodeId, endpoint: String, mut frame: Frame, from: Memory) {
        let node = self.nodes.entry(id).or_default();
        if node.endpoint != endpoint {
            // The node is another one by now. What is under way with the former ends by itself.
            node.endpoint = endpoint;
            node.shared.take().iter().chain(&node.free).for_each(|peer| self.net.close(*peer));
            node.free.clear();
            (node.told, node.met) = ((0, 0), false);
        }
        if self.carrier.is_some()
            && let Some(refusal) = self.refused(id, &mut frame, from.call)
        {
            return self.events.push_back(Event::Node(id, Frame::answering(frame.request, refusal)));
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Message::CancelFetch(cancel) = &frame.message {
            // On the connection of what it cancels: on another one nobody knows of that.
            let same = self.requests.get(&cancel.request).is_some_and(|sent| Some(sent.peer) == node.shared);
            if !same {
                return self.events.push_back(Event::Lost(frame.request));
            }
        }
        let bytes = match &frame.message {
            Message::Put(put) => put.length,
            Message::Fetch(fetch) if fetch.into.is_empty() => fetch.length,
            _ => 0,
        };
        if bytes <= SMALL {
            let peer = match node.shared {
                Some(peer) => Ok(peer),
                None => Address::literal(&node.endpoint).and_then(|address| self.net.connect(&address)),
            };
            match peer {
                Ok(peer) => {
                    node.shared = Some(peer);
                    self.send(peer, None, frame, from);
                }
                Err(_) if frame.request != 0 => self.events.push_back(Event::Lost(frame.request)),
                Err(_) => {}
            }
            return;
        }
        node.waiting.push_back((frame, from));
        self.send_waiting(id);
    }

    /// Requests with large values go out on connections that are free, or are made.
    fn send_waiting(&mut self, id: NodeId) {
        while let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.waiting.is_empty()) {
            let peer = match node.free.pop() {
                Some(peer) => peer,
                None if node.large < MOST_LARGE => {
                    match Address::literal(&node.endpoint).and_then(|address| self.net.connect(&address)) {
                        Ok(peer) => {
                            node.large += 1;
                            self.large.insert(peer, id);
                            peer
                        }
                        Err(_) => {
                            let lost = std::mem::take(&mut node.waiting);
                            self.events.extend(lost.into_iter().map(|(frame, _)| Event::Lost(frame.request)));
                            return;
                        }
                    }
                }
                None => return,
            };
            let Some((frame, from)) = node.waiting.pop_front() else { return };
            self.send(peer, Some(id), frame, from);
        }
    }

    fn send(&mut self, peer: Peer, large: Option<NodeId>, frame: Frame, from: Memory) {
        let call = from.call;
        if !self.note(frame.request, Sent { peer, call, large }) {
            return;
        }
        let length = frame.message.value();
        if length == 0 {
            return self.say(peer, &frame);
        }
        let Some(running) = self.calls.get(&call) else { return self.unsaid(frame.request) };
        let room = memory::reserve_map(&mut self.tickets, 1).and_then(|()| Spans::of(&running.spans));
        let Ok(spans) = room else { return self.unsaid(frame.request) };
        let spans = spans.behind(from.offset).up_to(length);
        if large.is_none() {
            let _ = self.net.send_value(peer, &frame, spans, None);
            return;
        }
        let ticket = self.number();
        self.tickets.insert(ticket, (call, None));
        if let Some(running) = self.calls.get_mut(&call) {
            running.outgoing.push((ticket, peer));
        }
        let _ = self.net.send_value(peer, &frame, spans, Some(ticket));
    }

    /// Notes a request, if it is one. Without memory for that it has no answer, and is not to be sent.
    fn note(&mut self, request: u64, sent: Sent) -> bool {
        if request == 0 {
            return true;
        }
        if memory::reserve_map(&mut self.requests, 1).is_err() {
            if sent.large.is_some() {
                self.net.close(sent.peer);
            }
            self.events.push_back(Event::Lost(request));
            return false;
        }
        self.requests.insert(request, sent);
        true
    }

    /// What cannot be said in one message has no answer.
    fn say(&mut self, peer: Peer, frame: &Frame) {
        if self.net.send(peer, frame).is_err() && frame.request != 0 {
            self.unsaid(frame.request);
        }
    }

    fn unsaid(&mut self, request: u64) {
        self.drop_request(request);
        self.events.push_back(Event::Lost(request));
    }

    fn take(&mut self, request: u64, into: Memory, length: u64) {
        let call = into.call;
        let ticket = self.number();
        let (Some(sent), Some(running)) = (self.requests.get(&request), self.calls.get_mut(&call)) else {
            return self.events.push_back(Event::Took(request, false));
        };
        let peer = sent.peer;
        let room = memory::reserve_map(&mut self.tickets, 1).and_then(|()| Spans::of(&running.spans));
        let Ok(spans) = room else { return self.events.push_back(Event::Took(request, false)) };
        let spans = spans.behind(into.offset);
        if spans.left() < length {
            // The value is there, and the caller is told how large it is; its bytes are passed over.
            running.too_large = Some(length);
            self.drop_request(request);
            return self.events.push_back(Event::Took(request, true));
        }
        if self.net.take(peer, spans.up_to(length), ticket) {
            running.incoming.push((ticket, peer));
            self.tickets.insert(ticket, (call, Some(request)));
        } else {
            self.events.push_back(Event::Took(request, false));
        }
    }

    /// Nothing of a request is wanted any more.
    fn close(&mut self, request: u64) {
        for node in self.nodes.values_mut() {
            node.waiting.retain(|(frame, _)| frame.request != request);
        }
        let tickets: Vec<u64> =
            self.tickets.iter().filter(|(_, (_, of))| *of == Some(request)).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            if let Some(sent) = self.requests.get(&request) {
                self.net.let_go(sent.peer, ticket);
            }
            self.forget(ticket);
        }
        // What has not left yet would be done later, when nobody reckons with it. Others on that connection ask again.
        let unsent = self.requests.get(&request).map(|sent| sent.peer).filter(|peer| self.net.queued(*peer) > 0);
        if let Some(peer) = unsent {
            self.net.close(peer);
            self.masters.given_up(peer);
        }
        self.drop_request(request);
    }

    /// The answer of a request is not waited for: a connection that was for it alone ends.
    fn drop_request(&mut self, request: u64) {
        let Some(sent) = self.requests.remove(&request) else { return };
        if sent.large.is_some() {
            self.net.close(sent.peer);
        }
    }

    fn done(&mut self, call: u64, mut outcome: Outcome) {
        let Some(mut running) = self.calls.remove(&call) else { return };
        if let (Some(carrier), Some(borrowed)) = (&mut self.carrier, running.borrowed.take()) {
            carrier.give_back(&borrowed);
        }
        outcome = running.ending.take().unwrap_or(outcome);
        // Whatever still refers to the caller's memory ends now.
        for (ticket, peer) in running.incoming {
            self.tickets.remove(&ticket);
            self.net.let_go(peer, ticket);
        }
        for (ticket, peer) in running.outgoing {
            self.tickets.remove(&ticket);
            self.net.close(peer);
        }
        if let Some(bytes) = running.too_large.filter(|_| outcome.status == NMC_OK) {
            outcome.status = NMC_ERR_TOO_SMALL;
            outcome.count = bytes;
        }
        if let Some(group) = self.groups.get_mut(&running.group) {
            if let Some(place) = group.outcomes.get_mut(running.at) {
                *place = outcome;
            }
            group.left -= 1;
            if group.left == 0 {
                group.waiter.notify_one();
                self.over.extend(group.ended.is_some().then_some(running.group));
            }
        }
    }
}
