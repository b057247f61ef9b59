//! A client of the cluster and its connections. It has no thread of its own, unless one is asked for: whoever waits for a call drives
//! the connections until its own calls have ended, and leaves that to the next who waits. Calls that nobody waits for are driven
//! by whoever looks what became of them, by whoever waits for another, or by the thread.
//!
//! Memory that a call reads or writes is its caller's again when the call has ended: nothing is sent from it or stored to it after that.

mod calls;
mod pushed;
mod requests;

use super::carrier::{Borrowed, Carrier};
use super::masters::Masters;
use super::node;
use crate::base::error::Result;
use crate::base::log;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_PERMISSION, NMC_ERR_VERSION, nmc_status_t};
use crate::cluster::client::{Action, Call, Client, Config, Event, Memory, Outcome};
use crate::cluster::net::{Address, ByNumber, Limits, Net, Poller, Ready, Span, WAKE, now_ms};
use crate::cluster::nixl::Settings;
use crate::cluster::nixl::sys::Medium;
use crate::cluster::types::{Millis, NodeId, ObjectKey, Peer};
use crate::cluster::wire::Frame;
use crate::rpc;
use crate::sync::service_thread;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::os::fd::AsFd as _;
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
/// How long masters may take to read what was said last.
const PARTING: Duration = Duration::from_millis(250);
/// After so long a node that had no mover is asked again.
const GREET_MS: Millis = 5_000;

/// A call, the memory that it reads or writes, and how long it may take.
pub struct Task {
    /// What is called.
    pub call: Call,
    /// Where the bytes of a put are, or those of a get go.
    pub spans: Vec<Span>,
    /// The CPU does not reach that: somebody else moves them, or nobody.
    pub far: bool,
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
    far: bool,
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

/// A request that waits for a connection, and since when.
struct Waiting {
    frame: Frame,
    from: Memory,
    since: Millis,
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
    waiting: Queue<Waiting>,
    /// Bytes that have moved on those connections since it was looked last,
    moved: u64,
    /// and those of them that moved for requests that have left the connection since.
    unheard: u64,
    /// What it was told of the own mover: which, and which edition; and when.
    told: (u64, u64),
    told_at: Millis,
    /// Its mover, if it has one that knows the own.
    mover: u64,
    /// Whether the own one knows that.
    met: bool,
}

/// A connection for large values.
struct Large {
    /// Whose it is.
    node: NodeId,
    /// Bytes that had moved on it when it was looked last.
    seen: u64,
    /// How many had moved since then, and whether those that were to leave have.
    moved: (u64, bool),
}

struct State {
    core: Client,
    net: Net,
    masters: Masters,
    nodes: HashMap<NodeId, Node>,
    /// Connections for large values.
    large: ByNumber<Peer, Large>,
    calls: ByNumber<u64, Running>,
    groups: ByNumber<u64, Group>,
    requests: ByNumber<u64, Sent>,
    /// Whose a value is that is on its way: the call, and the request if its end is to be told.
    tickets: ByNumber<u64, (u64, Option<u64>)>,
    next: u64,
    events: Queue<Event>,
    actions: Queue<Action>,
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
    /// Wakes whoever drives: something was posted.
    bell: rpc::Event,
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
            events: Queue::new(),
            actions: Queue::new(),
            agent: None,
            driven: false,
            looked_at: 0,
            asleep: 0,
            unattended: 0,
            over: Vec::new(),
            closing: false,
            cancelled: false,
        };
        let bell = rpc::Event::new()?;
        poller.add(&bell.as_fd(), WAKE, false)?;
        let shared = Shared { state: Mutex::new(state), poller, bell, background: Condvar::new() };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// From now on what is to be kept on this node goes to this agent, or nowhere.
    pub fn keep_with(&self, agent: Option<node::Handle>) {
        self.shared.state.lock().agent = agent;
    }

    /// Memory that somebody else moves bytes from and to without a copy.
    pub fn register(&self, memory: Span, medium: Medium) -> Result<()> {
        let (mover, number) = match &mut self.shared.state.lock().carrier {
            Some(carrier) => (Arc::clone(&carrier.mover), carrier.number()),
            None => return Ok(()),
        };
        // This may take a while.
        mover.register(number, memory, medium)?;
        match &mut self.shared.state.lock().carrier {
            Some(carrier) => carrier.add(number, memory),
            None => Ok(()),
        }
    }

    /// Whether somebody else may move a value from or to this memory without a copy.
    #[must_use]
    pub fn reaches(&self, spans: &[Span]) -> bool {
        let state = self.shared.state.lock();
        let bytes: u64 = spans.iter().map(|span| span.len() as u64).sum();
        bytes >= state.pushed_from && state.carrier.as_ref().is_some_and(|carrier| carrier.has(spans))
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

    /// Has whichever thread drives call this, which may begin more. For threads that are not to do what others wait for: nothing is sent, and nobody is
    /// told anything, by whoever calls this. Nothing is called if this fails.
    pub fn post(&self, tag: u64, then: Ended) -> Result<()> {
        self.shared.state.lock().post(tag, then)?;
        self.shared.bell.signal();
        self.shared.background.notify_all();
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
            self.shared.turn(&mut state, &ready);
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
        // That puts are not to be is read there.
        let mut state = self.shared.state.lock();
        let masters = state.masters.links();
        state.net.part(&masters, PARTING);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether all calls of a client end like this, whatever they are.
pub fn is_refusal(status: nmc_status_t) -> bool {
    matches!(status, NMC_ERR_PERMISSION | NMC_ERR_VERSION)
}

fn tell(done: Queue<(Ended, Vec<Outcome>)>) {
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
            self.turn(&mut state, &ready);
        }
        state.driven = false;
        state
    }

    fn turn(&self, state: &mut State, ready: &[Ready]) {
        if ready.iter().any(|ready| ready.number == WAKE) {
            self.bell.drain();
        }
        state.turn(ready);
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
