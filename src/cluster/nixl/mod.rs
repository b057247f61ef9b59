//! The mover that uses NIXL: an agent of the library, and the one thread that calls it. It writes memory of this process to memory that others have
//! named by region and offset, and lets others do so here. What the rest of the cluster relies on:
//!
//! - What is **whole** has arrived. Of what was **broken** off the memory here is not read any more, but bytes may still arrive there, at any
//!   time later: they wait in buffers of the system, also when their writer is dead. Of what is **unsent** no byte has left.
//! - When the mover was **renewed**, nothing of what was begun before reads or writes memory of this process any more. Nothing else says that.
//!
//! So whoever is written to uses the memory for something else only when it was told that all has arrived, or after a renewal of its own.

pub mod pieces;
pub mod room;
pub mod sys;
#[cfg(test)]
mod tests;

use super::net::Span;
use super::wire::{self, Card, Extent, Region};
use crate::base::error::{Error, Result};
use crate::base::id::random_u64;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE};
use crate::base::{log, memory};
use crate::cuda;
use crate::sync::service_thread;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::{Agent, Library, Medium, Progress, Registered, Request};

/// Others that it knows at a time.
const MOST_KNOWN: usize = 4096;
/// How long it is waited before an agent that could not be made is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long somebody waits for memory to be registered.
const REGISTER: Duration = Duration::from_secs(30);
/// Looks at what moves before the thread sleeps between two of them.
const AWAKE: u32 = 200;
/// Shortest and longest of these sleeps.
const SLEEP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// What a mover is set up with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nothing leaves this machine.
    pub loopback: bool,
    /// Names of network devices, with commas between; empty for all.
    pub devices: String,
    /// How long a renewal waits for what is being sent.
    pub drain: Duration,
    /// For a test of the tests: a renewal is said to have happened, and ends nothing.
    pub unfenced: bool,
}

impl Settings {
    /// What UCX is told. Ways by which one process writes into the memory of another, whatever the state of that, are never used: a writer that
    /// is stopped in the middle of it could not be fenced. `cuda_ipc` is one for memory of a GPU.
    fn of_ucx(&self) -> Result<Vec<(&'static str, String)>> {
        check_environment(self.loopback, |name| std::env::var(name).ok())?;
        let mut config = "TLS=^sm,cuda_ipc".to_string();
        let mut settings = Vec::new();
        if self.loopback {
            config.push_str(",NET_DEVICES=lo");
        } else if !self.devices.is_empty() {
            settings.push(("device_list", self.devices.clone()));
        }
        settings.push(("engine_config", config));
        Ok(settings)
    }
}

/// What the environment says to UCX counts more than what is said here, so it must not say anything else.
fn check_environment(loopback: bool, get: impl Fn(&str) -> Option<String>) -> Result<()> {
    if let Some(tls) = get("UCX_TLS") {
        let words = |text: &str| text.split(',').any(|word| matches!(word, "sm" | "shm"));
        let good = match tls.strip_prefix('^') {
            Some(without) => words(without),
            None => !words(&tls) && !tls.split(',').any(|word| matches!(word, "all" | "cma" | "xpmem" | "knem")),
        };
        if !good {
            crate::bail!(NMC_ERR_UNSUPPORTED, "UCX_TLS={tls} lets a process that is stopped write to others: add ^sm");
        }
    }
    match get("UCX_NET_DEVICES") {
        Some(devices) if loopback && devices != "lo" => {
            crate::bail!(NMC_ERR_PERMISSION, "without a token everything stays on lo, but UCX_NET_DEVICES={devices}");
        }
        _ => Ok(()),
    }
}

/// The same, for memory of a GPU.
fn check_environment_for_gpus(get: impl Fn(&str) -> Option<String>) -> Result<()> {
    let Some(tls) = get("UCX_TLS") else { return Ok(()) };
    let words = |text: &str| text.split(',').any(|word| matches!(word, "cuda_ipc" | "cuda"));
    if !tls.strip_prefix('^').map_or(!words(&tls), words) {
        crate::bail!(
            NMC_ERR_UNSUPPORTED,
            "UCX_TLS={tls} lets a process that is stopped write to a GPU's memory of others: add ^sm,cuda_ipc"
        );
    }
    Ok(())
}

/// Why memory of a GPU may not be registered.
const UNSEEN: &str = "; UCX takes memory of a GPU that it has not seen being allocated for the host's, unless UCX_MEMTYPE_CACHE=n is set when the program starts";

/// How something went that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It has arrived.
    Whole,
    /// Nothing was sent.
    Unsent,
    /// Nothing more is sent.
    Broken,
}

/// What a mover tells, from its thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It is reached in another way, or its memory has changed: see [`Mover::current`].
    Card,
    /// It knows another, or cannot.
    Met(u64, bool),
    /// What became of a ticket. Nothing is told of one that was ended by a renewal.
    Moved(u64, How),
    /// Nothing of what was begun before this renewal reads or writes memory of this process.
    Renewed(u64),
}

/// Something to be written.
#[derive(Debug)]
pub struct Write {
    /// By which it is told of.
    pub ticket: u64,
    /// The bytes: vouched for until they are whole, unsent or broken, or the mover is renewed.
    pub from: Vec<Span>,
    /// If they are not in registered memory, where they are copied first.
    pub stage: Option<Span>,
    /// Whose memory they go to.
    pub to: u64,
    /// Where to.
    pub into: Vec<Extent>,
}

enum Command {
    Register(u32, Span, Medium, SyncSender<Result<()>>),
    Unregister(u32, SyncSender<Result<()>>),
    Meet(wire::Mover),
    Part(u64),
    Write(Write),
    Renew(u64),
}

/// How a mover is reached, and by which of its renewals.
#[derive(Debug)]
pub struct Current {
    /// The renewal.
    pub number: u64,
    /// What others are told.
    pub said: wire::Mover,
}

/// What the thread is still to do.
#[derive(Default)]
struct Commands {
    /// First, whatever waits: calls end when they were done, while memory that is registered may take longer than a call may.
    renewals: Queue<u64>,
    others: Queue<Command>,
    stop: bool,
}

impl Commands {
    fn is_empty(&self) -> bool {
        self.renewals.is_empty() && self.others.is_empty()
    }

    fn next(&mut self) -> Option<Command> {
        self.renewals.pop().map(Command::Renew).or_else(|| self.others.pop())
    }

    /// What was to be written before is not begun by the next agent, which whoever asked for it knows nothing of.
    fn renew(&mut self, number: u64) {
        self.others.retain(|command| !matches!(command, Command::Write(_)));
        self.renewals.push(number);
    }

    /// Takes such a command out. Gives whether there was one.
    fn take_out(&mut self, is: impl Fn(&Command) -> bool) -> bool {
        let before = self.others.len();
        self.others.retain(|command| !is(command));
        self.others.len() < before
    }
}

struct Shared {
    queue: Mutex<Commands>,
    wake: Condvar,
    current: Mutex<Option<Arc<Current>>>,
    moved: AtomicU64,
    tell: Box<dyn Fn(News) + Send + Sync>,
}

/// See the module.
pub struct Mover {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Makes an agent and starts its thread. Fails if NIXL is not there, or cannot be used as it has to be.
    pub fn start(settings: Settings, tell: impl Fn(News) + Send + Sync + 'static) -> Result<Self> {
        let (queue, wake, current) = (Mutex::default(), Condvar::new(), Mutex::new(None));
        let shared = Arc::new(Shared { queue, wake, current, moved: AtomicU64::new(0), tell: Box::new(tell) });
        Library::get()?;
        let own = Arc::clone(&shared);
        let (to, from) = sync_channel(1);
        let body = move || {
            let mut running = Running::new(own, settings);
            let made = running.make();
            let good = made.is_ok();
            let _ = to.send(made);
            if good {
                service_thread::persist("the mover", || running.run());
            }
        };
        let thread = Some(service_thread::spawn(c"nmc-mover", None, body)?);
        let made = from.recv().unwrap_or_else(|_| Err(Error::new(NMC_ERR_UNAVAILABLE, "the mover has ended")));
        let mover = Self { shared, thread };
        made.map(|()| mover)
    }

    fn say(&self, command: Command) {
        self.shared.queue.lock().others.push(command);
        self.shared.wake.notify_one();
    }

    fn ask(&self, command: impl FnOnce(SyncSender<Result<()>>) -> Command) -> Result<()> {
        let (to, from) = sync_channel(1);
        self.say(command(to));
        from.recv_timeout(REGISTER).unwrap_or_else(|_| Err(Error::new(NMC_ERR_TIMEOUT, "the mover does not answer")))
    }

    /// How it is reached now; nothing while it is being renewed.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Current>> {
        self.shared.current.lock().clone()
    }

    /// How much it has written that has arrived.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.shared.moved.load(Relaxed)
    }

    /// Bytes can be moved from and to this memory from now on, under this number.
    pub fn register(&self, number: u32, memory: Span, medium: Medium) -> Result<()> {
        let asked = self.ask(|reply| Command::Register(number, memory, medium, reply));
        if asked.as_ref().is_err_and(|error| error.status == NMC_ERR_TIMEOUT) {
            self.take_back(number);
        }
        asked
    }

    /// Nobody waits any more for memory to be registered: it is not to be, or not to stay so.
    fn take_back(&self, number: u32) {
        let mut queue = self.shared.queue.lock();
        let is = |command: &Command| matches!(command, Command::Register(of, ..) if *of == number);
        if !queue.take_out(is) {
            queue.others.push(Command::Unregister(number, sync_channel(1).0));
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Not any more.
    pub fn unregister(&self, number: u32) -> Result<()> {
        self.ask(|reply| Command::Unregister(number, reply))
    }

    /// Gets to know another: told as `Met`.
    pub fn meet(&self, other: wire::Mover) {
        self.say(Command::Meet(other));
    }

    /// Another is not there any more.
    pub fn part(&self, other: u64) {
        self.say(Command::Part(other));
    }

    /// Writes something: told as `Moved`.
    pub fn write(&self, write: Write) {
        self.say(Command::Write(write));
    }

    /// Does not begin to write something, if it has not yet: told as `Moved` then.
    pub fn cancel(&self, ticket: u64) {
        let is = |one: &Command| matches!(one, Command::Write(write) if write.ticket == ticket);
        let unsent = self.shared.queue.lock().take_out(is);
        if unsent {
            (self.shared.tell)(News::Moved(ticket, How::Unsent));
        }
    }

    /// Ends all that is under way, and what waits to be written: told as `Renewed`. It waits for nothing but what the thread is doing just now.
    pub fn renew(&self, number: u64) {
        let mut queue = self.shared.queue.lock();
        *self.shared.current.lock() = None;
        queue.renew(number);
        drop(queue);
        self.shared.wake.notify_one();
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Memory {
    span: Span,
    medium: Medium,
    registered: Option<Registered>,
}

struct Known {
    name: CString,
    said: wire::Mover,
}

struct Active {
    ticket: u64,
    bytes: u64,
    to: u64,
    request: Request,
}

/// The thread.
struct Running {
    shared: Arc<Shared>,
    settings: Settings,
    agent: Option<Agent>,
    number: u64,
    id: u64,
    edition: u64,
    memory: BTreeMap<u32, Memory>,
    known: HashMap<u64, Known>,
    /// In the order in which they came to be known.
    order: VecDeque<u64>,
    /// Those that are not there any more, and to whom something is still under way.
    parted: Vec<u64>,
    active: Vec<Active>,
    retry: Option<Instant>,
    idle: u32,
    /// A GPU whose memory was registered.
    device: Option<Arc<cuda::Device>>,
}

impl Running {
    fn new(shared: Arc<Shared>, settings: Settings) -> Self {
        Self {
            shared,
            settings,
            agent: None,
            number: 0,
            id: 0,
            edition: 0,
            memory: BTreeMap::new(),
            known: HashMap::new(),
            order: VecDeque::new(),
            parted: Vec::new(),
            active: Vec::new(),
            retry: None,
            idle: 0,
            device: None,
        }
    }

    /// Makes an agent, with the memory and the others that the last one knew.
    fn make(&mut self) -> Result<()> {
        let id = random_u64()?.max(1);
        let agent = Agent::new(&format!("nmc-{id:016x}"), &self.settings.of_ucx()?)?;
        for memory in self.memory.values_mut() {
            memory.registered = Some(agent.register(memory.span, memory.medium)?);
        }
        self.known.retain(|_, known| match agent.meet(&known.said.card.0) {
            Ok(name) => {
                known.name = name;
                true
            }
            Err(_) => false,
        });
        (self.agent, self.id, self.retry) = (Some(agent), id, None);
        let published = self.publish();
        if published.is_err() {
            // Nobody could be told how it is reached.
            self.end_agent();
        }
        published
    }

    /// Says how it is reached.
    fn publish(&mut self) -> Result<()> {
        let Some(agent) = &self.agent else { return Ok(()) };
        self.edition += 1;
        let card = agent.card()?;
        if card.len() > Card::MAX {
            crate::bail!(NMC_ERR_LIMIT, "NIXL says {} bytes about itself; {} are possible", card.len(), Card::MAX);
        }
        let regions = memory::collect(self.memory.iter().map(|(number, memory)| Region {
            number: *number,
            base: memory.span.first() as u64,
            length: memory.span.len() as u64,
            device: memory.medium.device(),
        }))?;
        let said = wire::Mover { id: self.id, edition: self.edition, card: Card(card), regions };
        // A renewal that was asked for meanwhile comes first: until then it is as good as there is none.
        let queue = self.shared.queue.lock();
        if queue.renewals.is_empty() {
            *self.shared.current.lock() = Some(Arc::new(Current { number: self.number, said }));
        }
        drop(queue);
        (self.shared.tell)(News::Card);
        Ok(())
    }

    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let command = {
                let mut queue = shared.queue.lock();
                if queue.stop {
                    break;
                }
                if queue.is_empty() {
                    let limit = self.pause();
                    if !limit.is_zero() {
                        shared.wake.wait_for(&mut queue, limit);
                    }
                }
                queue.next()
            };
            self.on_device(|running| {
                if let Some(command) = command {
                    running.obey(command);
                }
                running.look();
                if running.retry.is_some_and(|at| at <= Instant::now()) {
                    running.make_or_retry();
                }
            });
        }
        self.on_device(Self::end_agent);
        let moved = self.shared.moved.load(Relaxed);
        log::emit(log::INFO, || format!("cluster: NIXL has moved {moved} bytes from here"));
    }

    /// With the context of a GPU, if some memory is a GPU's: without one NIXL takes that for the host's.
    fn on_device(&mut self, body: impl FnOnce(&mut Self)) {
        let Some(device) = self.device.clone() else { return body(self) };
        let mut body = Some(body);
        let _ = device.with_current(|| {
            if let Some(body) = body.take() {
                body(self);
            }
            Ok(())
        });
        if let Some(body) = body {
            body(self);
        }
    }

    /// How long it may sleep now.
    fn pause(&mut self) -> Duration {
        if self.active.is_empty() {
            self.idle = 0;
            return Duration::from_millis(200);
        }
        self.idle += 1;
        match self.idle.checked_sub(AWAKE) {
            None => Duration::ZERO,
            Some(more) => (SLEEP.0 * (more / 16 + 1)).min(SLEEP.1),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Register(number, span, medium, reply) => {
                let _ = reply.send(self.register(number, span, medium));
            }
            Command::Unregister(number, reply) => {
                let _ = reply.send(self.unregister(number));
            }
            Command::Meet(other) => {
                let id = other.id;
                let met = self.meet(other);
                if let Err(error) = &met {
                    log::emit(log::WARN, || format!("cluster: another mover is not reached: {}", error.message));
                }
                (self.shared.tell)(News::Met(id, met.is_ok()));
            }
            Command::Part(id) => {
                self.parted.push(id);
                self.part();
            }
            Command::Write(write) => self.write(write),
            Command::Renew(number) => self.renew(number),
        }
    }

    fn register(&mut self, number: u32, span: Span, medium: Medium) -> Result<()> {
        if let Some(number) = medium.device() {
            check_environment_for_gpus(|name| std::env::var(name).ok())?;
            self.device = Some(cuda::Device::open(i32::try_from(number).unwrap_or(-1))?);
        }
        if self.agent.is_none() {
            // Whether there is room for it is known by an agent alone.
            self.make()?;
        }
        let register = || self.agent.as_ref().map(|agent| agent.register(span, medium)).transpose();
        let registered = match &self.device {
            Some(device) => device.with_current(register),
            None => register(),
        };
        let registered = registered.map_err(|error| match medium {
            Medium::Host => error,
            Medium::Device(_) => Error::new(error.status, format!("{}{UNSEEN}", error.message)),
        })?;
        self.memory.insert(number, Memory { span, medium, registered });
        let published = self.publish();
        if published.is_err() {
            // Else it would be in the way of every agent to come. Others hear of what there was before.
            let _ = self.unregister(number);
        }
        published
    }

    fn unregister(&mut self, number: u32) -> Result<()> {
        if let (Some(Memory { registered: Some(registered), .. }), Some(agent)) =
            (self.memory.remove(&number), &self.agent)
        {
            agent.unregister(registered);
        }
        self.publish()
    }

    fn meet(&mut self, other: wire::Mover) -> Result<()> {
        let Some(agent) = &self.agent else {
            crate::bail!(NMC_ERR_UNAVAILABLE, "the mover is being renewed");
        };
        if other.id == 0 || other.id == self.id {
            crate::bail!(NMC_ERR_PROTOCOL, "a mover has the id {}", other.id);
        }
        let name = agent.meet(&other.card.0)?;
        if name.as_c_str() != agent.name()
            && self.known.values().any(|known| known.name == name && known.said.id != other.id)
        {
            crate::bail!(NMC_ERR_PROTOCOL, "two movers have one name");
        }
        let id = other.id;
        if self.known.insert(id, Known { name, said: other }).is_none() {
            self.order.push_back(id);
        }
        while self.known.len() > MOST_KNOWN {
            let Some(oldest) = self.order.pop_front() else { break };
            self.parted.push(oldest);
            self.part();
        }
        Ok(())
    }

    /// Forgets those who are not there any more, and to whom nothing is under way.
    fn part(&mut self) {
        let Self { parted, active, known, order, agent, .. } = self;
        parted.retain(|id| {
            if active.iter().any(|one| one.to == *id) {
                return true;
            }
            if let (Some(known), Some(agent)) = (known.remove(id), &agent) {
                agent.part(&known.name);
            }
            order.retain(|other| other != id);
            false
        });
    }

    fn write(&mut self, write: Write) {
        let ticket = write.ticket;
        let begun = self.begin(write);
        let how = match begun {
            Ok(Progress::Moving) => return,
            Ok(Progress::Whole) => How::Whole,
            Ok(Progress::Failed) => How::Broken,
            Err(error) => {
                log::emit(log::DEBUG, || format!("cluster: nothing is moved by NIXL: {}", error.message));
                How::Unsent
            }
        };
        (self.shared.tell)(News::Moved(ticket, how));
    }

    /// Begins to write. After an error nothing was sent.
    fn begin(&mut self, write: Write) -> Result<Progress> {
        let Some(agent) = &self.agent else {
            crate::bail!(NMC_ERR_UNAVAILABLE, "the mover is being renewed");
        };
        let Some(known) = self.known.get(&write.to) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "nobody is known as {:x}", write.to);
        };
        let from = match write.stage {
            Some(stage) => vec![pieces::gather(&write.from, stage)?],
            None => write.from,
        };
        let here = pieces::medium(&from, self.memory.values().map(|memory| (memory.span, memory.medium)))?;
        let (pieces, there) = pieces::pair(&from, &write.into, &known.said.regions)?;
        let bytes = pieces.iter().map(|(span, _)| span.len() as u64).sum();
        let request = agent.write(&pieces, here, (&known.name, there))?;
        let progress = agent.post(&request);
        match progress {
            Progress::Moving => {
                self.idle = 0;
                self.active.push(Active { ticket: write.ticket, bytes, to: write.to, request });
            }
            Progress::Whole | Progress::Failed => {
                agent.release(request);
                if progress == Progress::Whole {
                    self.shared.moved.fetch_add(bytes, Relaxed);
                }
            }
        }
        Ok(progress)
    }

    /// Looks how things go.
    fn look(&mut self) {
        let Some(agent) = &self.agent else { return };
        let mut at = 0;
        let mut ended = false;
        while let Some(active) = self.active.get(at) {
            let how = match agent.look(&active.request) {
                Progress::Moving => {
                    at += 1;
                    continue;
                }
                Progress::Whole => How::Whole,
                Progress::Failed => How::Broken,
            };
            let Active { ticket, bytes, request, .. } = self.active.swap_remove(at);
            agent.release(request);
            if how == How::Whole {
                self.shared.moved.fetch_add(bytes, Relaxed);
            }
            (self.shared.tell)(News::Moved(ticket, how));
            ended = true;
        }
        if ended {
            self.idle = 0;
            if !self.parted.is_empty() {
                self.part();
            }
        }
    }

    fn renew(&mut self, number: u64) {
        let begun = Instant::now();
        if self.settings.unfenced {
            self.number = number;
            (self.shared.tell)(News::Renewed(number));
            let _ = self.publish();
            return;
        }
        // What would end by itself in a moment is spared those at the other end.
        while !self.active.is_empty() && begun.elapsed() < self.settings.drain {
            self.look();
            std::thread::sleep(SLEEP.0);
        }
        self.end_agent();
        self.number = number;
        (self.shared.tell)(News::Renewed(number));
        self.make_or_retry();
        log::emit(log::INFO, || {
            format!("cluster: the NIXL agent was renewed for the {number}. time, in {} ms", begun.elapsed().as_millis())
        });
    }

    /// Nothing of what was begun goes on after this.
    fn end_agent(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        // The agent would not wait for them.
        self.active.drain(..).for_each(|active| agent.release(active.request));
        drop(agent);
        if let Ok(library) = Library::get() {
            let lists = self.memory.values_mut().filter_map(|memory| memory.registered.take());
            lists.for_each(|list| Agent::forget(library, list));
        }
    }

    fn make_or_retry(&mut self) {
        if let Err(error) = self.make() {
            log::emit(log::WARN, || format!("cluster: there is no NIXL agent at the moment: {}", error.message));
            self.retry = Some(Instant::now() + RETRY);
        }
    }
}
