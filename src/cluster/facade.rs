//! What a program holds: a client of the cluster, and the nodes that it has made of stores of its own. What those have is read without a
//! message; everything else goes by way of the directory, to and from the owners.
#![allow(unsafe_code, reason = "memory of the program, by address")]

mod about;
mod device;
mod drain;
mod peers;
mod placement;
mod removes;

pub use about::What;
pub use drain::Drained;
pub use peers::Scope;
pub use placement::{Placement, Placing};

use super::client::{self, Call, GetCall, Outcome, PutCall};
use super::net::secure::{Files, Identity};
use super::net::{Address, Limits, Listener, Span, now_ms};
use super::nixl::Settings;
use super::nixl::sys::Medium;
use super::node::{self, Memory, NodeStore, Offer};
use super::run::client::{Service, Task, is_refusal};
use super::run::node as agent;
use super::submit::{Calls, Completion, Numbered, Sum, TOGETHER, TOGETHER_BYTES};
use super::told::Told;
use super::types::{Media, Millis, ObjectKey, PutId, is_reserved};
use super::wire::{ListKeys, ListSegments, Listed, MAX_COPIES, Message, Metadata, Prefix, Replicate, Segment, Space};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::id::random_u64;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_CORRUPT, NMC_ERR_CUDA, NMC_ERR_EXISTS, NMC_ERR_IO, NMC_ERR_LIMIT,
    NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_PEER_LOST, NMC_ERR_PERMISSION, NMC_ERR_STALE,
    NMC_ERR_TIMEOUT, NMC_ERR_TOO_SMALL, NMC_ERR_UNAVAILABLE, NMC_ERR_VERSION, NMC_IN_PROGRESS, NMC_OK, name,
    nmc_status_t,
};
use crate::base::{log, memory};
use crate::cuda::Ordinary;
use crate::store::Store;
use crate::store::copy::{Pieces, Slice};
use crate::store::read::Look;
use device::Copiers;
use parking_lot::{Mutex, RwLock};
use placement::Placements;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The port of a master, if none is said.
pub const MASTER_PORT: u16 = 50051;
/// How often a value that is replaced meanwhile is read anew from a node of this client.
const READS_HERE: usize = 16;
/// Where nodes listen that have no port of their own: one of these that is free.
const NODE_PORTS: std::ops::Range<u16> = 12300..14300;
/// How long a NIXL agent that is to be renewed waits for what it sends: a call of a client waits for that.
const CLIENT_DRAIN: Duration = Duration::from_millis(200);
/// See [`CLIENT_DRAIN`].
const NODE_DRAIN: Duration = Duration::from_millis(1_000);
/// How often a leader hears of a node; after how long without an answer a node says something again, and tries another master.
pub const PING_MS: Millis = 1_000;
/// See [`PING_MS`].
pub const RESEND_MS: Millis = 300;
/// See [`PING_MS`].
pub const MASTER_MS: Millis = 3_000;

/// Values of so many bytes are large.
pub const RDMA_FROM: u64 = 256 << 10;

/// How a program takes part.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this machine, or its address; with a port, where its first node listens.
    pub host: String,
    /// Addresses of the masters.
    pub masters: Vec<String>,
    /// What whoever connects must know; empty for nothing. Without it and without certificates everything stays on this machine.
    pub token: String,
    /// With which certificate it speaks TLS; none for not at all.
    pub tls: Option<Files>,
    /// Namespace of the keys.
    pub space: Vec<u8>,
    /// How long a call may take.
    pub patience: Duration,
    /// Keys whose places are remembered.
    pub cache: usize,
    /// What is read from elsewhere is kept on this node too.
    pub keep: bool,
    /// Which of several copies is read.
    pub read_order: client::ReadOrder,
    /// How long after it was first read a value goes, in ms; 0 if it stays.
    pub expire_ms: u32,
    /// Values of more bytes are put in parts of about as many, on different segments; 0 for never.
    pub stripe: u64,
    /// A thread drives what is submitted; else whoever asks what became of it.
    pub thread: bool,
    /// NIXL moves the bytes of large values, where both sides have it.
    pub rdma: bool,
    /// What is a large value.
    pub rdma_from: u64,
    /// Names of network devices that it uses, with commas between; empty for all.
    pub devices: String,
    /// See [`Settings::unfenced`].
    pub unfenced: bool,
    /// See [`NodeStore::by_way_of_host`]; for none, only nodes with heaps on a GPU do that. Memory of the program counts as a device's then, too.
    pub bounce: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            masters: Vec::new(),
            token: String::new(),
            tls: None,
            space: Vec::new(),
            patience: Duration::from_secs(5),
            cache: 1 << 16,
            keep: false,
            read_order: client::ReadOrder::Near,
            expire_ms: 0,
            stripe: 0,
            thread: false,
            rdma: false,
            rdma_from: RDMA_FROM,
            devices: String::new(),
            unfenced: false,
            bounce: None,
        }
    }
}

impl Config {
    /// Whether anybody may come who can connect.
    fn is_open(&self) -> bool {
        self.token.is_empty() && self.tls.is_none()
    }
}

/// How a value is to be put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// How many copies, and where.
    pub replicate: Replicate,
    /// Code of the retain class and priority.
    pub retain: u32,
    /// What is said about it.
    pub metadata: Vec<u8>,
}

impl Default for PutOptions {
    fn default() -> Self {
        let replicate = Replicate { copies: 1, media: Vec::new(), fixed: Vec::new(), near: String::new() };
        Self { replicate, retain: 0, metadata: Vec::new() }
    }
}

/// A key and the memory that its value is in, or goes to.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Pieces of memory, one after the other; of the host, or, where a call says so, of a device.
    pub slices: &'a [Slice],
    /// The CPU does not reach them, and they are registered: NIXL moves them, or nobody.
    pub far: bool,
}

impl<'a> Item<'a> {
    /// In memory that the CPU reaches, or that somebody looks at first.
    #[must_use]
    pub fn new(key: &'a [u8], slices: &'a [Slice]) -> Self {
        Self { key, slices, far: false }
    }

    fn spans(&self) -> Result<Vec<Span>> {
        let size = |n: u64| usize::try_from(n).unwrap_or(0);
        // SAFETY: whoever calls vouches for its slices, as for a store (see `Pieces`), until the call has ended.
        memory::collect(self.slices.iter().map(|slice| unsafe { Span::new(size(slice.address), size(slice.bytes)) }))
    }

    fn bytes(&self) -> Result<u64> {
        Pieces::Slices(self.slices).bytes()
    }
}

/// What came of reading a value.
#[derive(Debug)]
pub struct Got {
    /// Bytes of the value, as far as that is known: also of one that did not fit. Not where only its metadata was read.
    pub bytes: u64,
    /// What its writer said about it, where that was wanted.
    pub metadata: Vec<u8>,
    /// How it went.
    pub result: Result<()>,
}

impl Got {
    fn of(result: Result<()>) -> Self {
        Self { bytes: 0, metadata: Vec::new(), result }
    }

    fn whole(bytes: u64) -> Self {
        Self { bytes, metadata: Vec::new(), result: Ok(()) }
    }

    fn too_large(bytes: u64, room: u64) -> Self {
        let text = format!("the value has {bytes} bytes, and there is room for {room}");
        Self { bytes, metadata: Vec::new(), result: Err(Error::new(NMC_ERR_TOO_SMALL, text)) }
    }
}

/// A store of this process that is a node of the cluster.
struct Local {
    name: String,
    /// Ends before the store does.
    agent: agent::Service,
    /// The program's own way into it, in the client's namespace.
    store: Store,
}

/// How an item that is submitted begins.
#[allow(clippy::large_enum_variant, reason = "made one at a time, and taken apart at once")]
enum Begun {
    /// With a call.
    Call(Task),
    /// It has ended: its bytes, and how it went.
    Over(u64, nmc_status_t),
}

/// See the module.
pub struct Cluster {
    config: Config,
    masters: Vec<Address>,
    /// The address of this machine, by which others reach it.
    host: SocketAddr,
    /// The same without a port: how nodes say where they are.
    near: String,
    tls: Option<Arc<Identity>>,
    calls: Arc<Calls>,
    nodes: RwLock<Vec<Local>>,
    placements: Placements,
    copiers: Arc<Copiers>,
    /// What was read here and is to go.
    told: Mutex<Told>,
    cancelled: AtomicBool,
}

impl Cluster {
    /// Takes part. Nobody is spoken to yet.
    pub fn open(config: Config) -> Result<Self> {
        if config.masters.is_empty() {
            crate::bail!(NMC_ERR_INVALID_ARG, "no address of a master is given");
        }
        let masters = memory::try_collect(config.masters.iter().map(|m| Address::resolve(m, Some(MASTER_PORT))))?;
        let Address::Tcp(host) = Address::resolve(&config.host, Some(0))? else {
            crate::bail!(NMC_ERR_INVALID_ARG, "\"{}\" is no name or address of a machine", config.host);
        };
        if config.is_open() && (!host.ip().is_loopback() || masters.iter().any(|m| !m.is_local())) {
            crate::bail!(
                NMC_ERR_PERMISSION,
                "without a token or certificates a cluster stays on one machine: {} or a master is not on the loopback device",
                host.ip()
            );
        }
        // Checked now, so that no call fails for it.
        ObjectKey::new(&config.space, b"k")?;
        if is_reserved(&config.space) {
            crate::bail!(NMC_ERR_INVALID_ARG, "names of namespaces that begin with the byte 0xff are the library's");
        }
        let core = client::Config {
            masters: masters.iter().map(ToString::to_string).collect(),
            host: format!("{}:", host.ip()),
            master_ms: 1_000,
            owner_ms: 1_000,
            cache: config.cache,
            read_order: config.read_order,
            pushed: config.rdma,
            pushed_from: config.rdma_from,
            seed: random_u64()?,
        };
        let mover = Self::mover(&config, &host, CLIENT_DRAIN);
        let tls = config.tls.as_ref().map(Identity::load).transpose()?;
        let service = Service::moving(core, &masters, Self::limits(&config, tls.as_ref()), mover)?;
        let calls = Calls::new(service, config.thread);
        let (nodes, told) = (RwLock::new(Vec::new()), Mutex::new(Told::default()));
        let (placements, copiers) = (Placements::default(), Arc::new(Copiers::default()));
        let cancelled = AtomicBool::new(false);
        let near = host.ip().to_string();
        Ok(Self { config, masters, host, near, tls, calls, nodes, placements, copiers, told, cancelled })
    }

    /// How NIXL is set up, if it is wanted: where anybody may come nothing leaves this machine.
    fn mover(config: &Config, host: &SocketAddr, drain: Duration) -> Option<Settings> {
        let loopback = config.is_open() || host.ip().is_loopback();
        config.rdma.then(|| Settings { loopback, devices: config.devices.clone(), drain, unfenced: config.unfenced })
    }

    /// Values are put from this memory, or read into it: NIXL needs no copy of them then.
    ///
    /// # Safety
    /// The memory stays where it is until it is taken back, or the client is gone.
    pub unsafe fn register(&self, first: usize, bytes: usize) -> Result<()> {
        let medium = if self.config.rdma { device::medium(first, bytes)? } else { Medium::Host };
        // SAFETY: by contract; whether its bytes may be read or written, whoever puts or gets says.
        self.calls.service.register(unsafe { Span::new(first, bytes) }, medium)
    }

    /// Bytes that NIXL has moved from this client, and from its nodes.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        (self.calls.service.moved(), self.nodes.read().iter().map(|node| node.agent.moved()).sum())
    }

    /// Takes that back.
    pub fn unregister(&self, first: usize) -> Result<()> {
        self.calls.service.unregister(first)
    }

    fn limits(config: &Config, tls: Option<&Arc<Identity>>) -> Limits {
        Limits { token: config.token.clone(), tls: tls.cloned(), ..Limits::default() }
    }

    /// Makes a node of a store: others put to it and read from it, what it has is announced. Gives its name, which is that of its
    /// segment too. Waits until it is a member.
    ///
    /// With `volatile` the store ends with the node: nobody waits for what it might bring back.
    pub fn mount(&self, store: &Store, name: Option<&str>, volatile: bool) -> Result<String> {
        let deadline = Deadline::after(self.config.patience);
        self.check_welcome()?;
        let listener = self.listen()?;
        let endpoint = listener.address()?;
        let name = name.map_or_else(|| format!("{}:{}", host_name(&self.config.host), port_of(&endpoint)), Into::into);
        if self.nodes.read().iter().any(|node| node.name == name) {
            crate::bail!(NMC_ERR_EXISTS, "this client has a node \"{name}\" already");
        }
        let space = match self.config.space.is_empty() {
            true => store.in_namespace(0),
            false => store.namespace_within(&self.config.space, None, deadline.left())?,
        };
        let mut storage = NodeStore::within(store, deadline.left())?;
        if let Some(most) = self.config.bounce {
            storage = storage.by_way_of_host(most);
        }
        let Offer { store, slots, segments } = storage.offer(&name)?;
        let memory = segments.iter().filter(|segment| segment.media != Media::Ssd);
        let capacity: u64 = memory.map(|segment| segment.capacity).sum();
        let config = node::Config {
            name: name.clone(),
            incarnation: 0,
            store,
            endpoint: endpoint.to_string(),
            host: self.near.clone(),
            headers: storage.headers(),
            slots,
            volatile,
            segments,
            masters: self.masters.iter().map(ToString::to_string).collect(),
            ping_ms: PING_MS,
            resend_ms: RESEND_MS,
            master_ms: MASTER_MS,
            copy_ms: 5_000,
            remember_ms: 60_000,
            doubt_bytes: capacity / 20,
            doubt_ms: 10_000,
            stuck_ms: 5_000,
            rest_ms: (15_000, 600_000),
        };
        let (limits, mover) =
            (Self::limits(&self.config, self.tls.as_ref()), Self::mover(&self.config, &self.host, NODE_DRAIN));
        let agent = agent::Service::start(config, &self.masters, storage, listener, limits, mover)?;
        let mut joined = agent.handle().sync(deadline.left(), &self.cancelled);
        // It is emptied as it comes: then what it waits for is that it is in.
        while joined == NMC_ERR_STALE && !deadline.left().is_zero() {
            std::thread::sleep(Duration::from_millis(1));
            joined = agent.handle().sync(deadline.left(), &self.cancelled);
        }
        if joined != NMC_OK {
            crate::bail!(NMC_ERR_UNAVAILABLE, "no master has taken \"{name}\" as a member in time");
        }
        let mut nodes = self.nodes.write();
        if nodes.is_empty() {
            self.calls.service.keep_with(self.config.keep.then(|| agent.handle()));
        }
        nodes.push(Local { name: name.clone(), store: space, agent });
        Ok(name)
    }

    /// Whether the masters talk to this client; that none is there is not known yet.
    fn check_welcome(&self) -> Result<()> {
        let soon = Deadline::after(self.config.patience.min(Duration::from_secs(1)));
        match self.ask_within(Call::Ask(Box::new(ListSegments { cursor: 0 }.into())), self.scope(&soon)) {
            Err(error) if is_refusal(error.status) => Err(error),
            _ => Ok(()),
        }
    }

    /// The first node may have a port of its own.
    fn listen(&self) -> Result<Listener> {
        let at = |port| Listener::bind(&Address::Tcp(SocketAddr::new(self.host.ip(), port)));
        if self.host.port() != 0 && self.nodes.read().is_empty() {
            return at(self.host.port());
        }
        // Not all begin at the same one.
        let (first, ports) = (u16::try_from(random_u64()? % 2000).unwrap_or(0), NODE_PORTS.len());
        let ports = (0..u16::try_from(ports).unwrap_or(0)).map(|n| NODE_PORTS.start + (first + n) % 2000);
        let mut failed = Error::new(NMC_ERR_LIMIT, "no port is free");
        for port in ports {
            match at(port) {
                Ok(listener) => return Ok(listener),
                Err(error) => failed = error,
            }
        }
        Err(failed.context(format!("ports {NODE_PORTS:?}")))
    }

    /// Ends a node: nobody finds what it has any more. The store stays.
    pub fn unmount(&self, name: &str) -> Result<()> {
        let node = {
            let mut nodes = self.nodes.write();
            let Some(at) = nodes.iter().position(|node| node.name == name) else {
                crate::bail!(NMC_ERR_NOT_FOUND, "this client has no node \"{name}\"");
            };
            let node = nodes.remove(at);
            let keeping = nodes.first().filter(|_| self.config.keep).map(|node| node.agent.handle());
            self.calls.service.keep_with(keeping);
            node
        };
        drop(node.agent);
        Ok(())
    }

    /// Ends what is called, now and later, with CANCELLED.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.calls.cancel_all();
        self.calls.service.cancel();
    }

    /// The nodes of this client, whose stores are in its namespace.
    fn local<R>(&self, mut look: impl FnMut(&Local) -> Result<Option<R>>) -> Result<Option<R>> {
        // What a tier that was closed had may have been removed: first the node has to hear of that.
        for node in self.nodes.read().iter().filter(|node| node.store.apart().is_none()) {
            match look(node) {
                Ok(None) => {}
                // What this store cannot give, others may have.
                Err(error) if is_of_store(error.status) => {
                    log::emit(log::DEBUG, || format!("client: the own node has no answer: {}", error.message));
                }
                found => return found,
            }
        }
        Ok(None)
    }

    fn key(&self, key: &[u8]) -> Result<ObjectKey> {
        ObjectKey::new(&self.config.space, key)
    }

    fn task(&self, call: Call, spans: Vec<Span>) -> Task {
        Task { call, spans, far: false, patience: self.config.patience }
    }

    /// One call that is answered by the leader.
    fn ask(&self, call: Call) -> Result<Outcome> {
        self.ask_within(call, self.scope(&Deadline::after(self.config.patience)))
    }

    /// Calls in the client's namespace, until then.
    fn scope<'a>(&'a self, deadline: &'a Deadline) -> Scope<'a> {
        Scope { space: &self.config.space, deadline, stop: &|| false, expire_ms: self.config.expire_ms }
    }

    fn ask_within(&self, call: Call, scope: Scope<'_>) -> Result<Outcome> {
        let task = Task { patience: scope.deadline.left(), ..self.task(call, Vec::new()) };
        let outcome = self.calls.service.call_unless(vec![task], scope.stop)?.pop();
        let outcome = outcome.ok_or_else(|| Error::new(NMC_ERR_UNAVAILABLE, "the client is being closed"))?;
        match outcome.status {
            NMC_OK | NMC_IN_PROGRESS => Ok(outcome),
            _ => Err(failed(&outcome, "the cluster")),
        }
    }

    /// Puts values; says of each what became of it. What is put twice under a key is refused with EXISTS by owners that have it.
    pub fn put(&self, items: &[Item<'_>], options: &PutOptions) -> Result<Vec<Result<()>>> {
        check_copies(options)?;
        let deadline = Deadline::after(self.config.patience);
        let call = |items: &[Item<'_>]| self.put_within(items, options, &deadline);
        device::put(&device::Calls { cluster: self, deadline: &deadline }, items, call)
    }

    /// Why a call does not go on, if it does not.
    fn over(&self, deadline: &Deadline) -> Option<Error> {
        let cancelled = self.cancelled.load(Ordering::Relaxed).then_some(NMC_ERR_CANCELLED);
        let status = cancelled.or_else(|| deadline.passed().then_some(NMC_ERR_TIMEOUT))?;
        Some(Error::new(status, words(status)))
    }

    fn put_within(&self, items: &[Item<'_>], options: &PutOptions, deadline: &Deadline) -> Result<Vec<Result<()>>> {
        let mut tasks = memory::with_capacity(items.len())?;
        for item in items {
            tasks.push(self.put_task(item, options, deadline));
        }
        let size = |task: &Task| match &task.call {
            Call::Put(put) => put.length,
            _ => 0,
        };
        self.batch(items, tasks, Vec::new(), self.scope(deadline), size, |item, outcome| match outcome.status {
            NMC_OK => Ok(()),
            _ => Err(failed(outcome, item.key.escape_ascii())),
        })
    }

    fn put_task(&self, item: &Item<'_>, options: &PutOptions, deadline: &Deadline) -> Result<Task> {
        let (key, length) = (self.key(item.key)?, item.bytes()?);
        let mut config = self.placed(item.key, length, options.replicate.clone(), deadline)?;
        if config.near.is_empty() {
            config.near = memory::text(&self.near)?;
        }
        let put = PutCall {
            key,
            length,
            // They were added up here.
            slices: vec![length],
            config,
            retain: options.retain,
            metadata: Metadata(memory::copy(&options.metadata)?),
            crc: None,
            stripe: self.config.stripe,
        };
        Ok(Task { far: item.far, ..self.task(Call::Put(put), item.spans()?) })
    }

    /// Makes calls, some together; `tell` says what came of each. Others are made with the first of them, and nobody hears of those.
    fn batch<R>(
        &self,
        items: &[Item<'_>],
        tasks: Vec<Result<Task>>,
        mut others: Vec<Task>,
        scope: Scope<'_>,
        size: impl Fn(&Task) -> u64,
        tell: impl Fn(&Item<'_>, &Outcome) -> Result<R>,
    ) -> Result<Vec<Result<R>>> {
        let mut results = memory::with_capacity(tasks.len())?;
        let (mut together, mut numbers, mut bytes) = (Vec::new(), Vec::new(), 0u64);
        let asks = !others.is_empty();
        let mut flush = |together: &mut Vec<Task>, numbers: &mut Vec<usize>, results: &mut Vec<Result<R>>| {
            let room = memory::reserve(together, others.len());
            together.extend(others.drain(..).filter(|_| room.is_ok()));
            together.iter_mut().for_each(|task: &mut Task| task.patience = scope.deadline.left());
            let outcomes = self.calls.service.call_unless(std::mem::take(together), scope.stop);
            for (number, at) in numbers.drain(..).enumerate() {
                if let (Some(item), Some(place)) = (items.get(at), results.get_mut(at)) {
                    *place = match &outcomes {
                        Ok(outcomes) => outcomes.get(number).map_or_else(nothing, |outcome| tell(item, outcome)),
                        Err(error) => Err(Error::new(error.status, error.message.clone())),
                    };
                }
            }
        };
        for (at, task) in tasks.into_iter().enumerate() {
            match task {
                Err(error) => results.push(Err(error)),
                Ok(task) => {
                    let more = size(&task);
                    if together.len() >= TOGETHER || bytes > 0 && bytes + more > TOGETHER_BYTES {
                        flush(&mut together, &mut numbers, &mut results);
                        bytes = 0;
                    }
                    bytes += more;
                    // Without memory for one, the others go on.
                    let room = memory::reserve(&mut together, 1).and_then(|()| memory::push(&mut numbers, at));
                    results.push(room.and_then(|()| {
                        together.push(task);
                        nothing()
                    }));
                }
            }
        }
        if asks || !together.is_empty() {
            flush(&mut together, &mut numbers, &mut results);
        }
        Ok(results)
    }

    /// Reads values into memory that holds them; says of each what came of it.
    pub fn get(&self, items: &[Item<'_>]) -> Result<Vec<Got>> {
        self.get_what(items, What::Value)
    }

    /// The same, of this.
    pub fn get_what(&self, items: &[Item<'_>], what: What) -> Result<Vec<Got>> {
        let deadline = Deadline::after(self.config.patience);
        let call = |items: &[Item<'_>]| self.get_within(items, what, &deadline);
        device::get(&device::Calls { cluster: self, deadline: &deadline }, items, call)
    }

    fn get_within(&self, items: &[Item<'_>], what: What, deadline: &Deadline) -> Result<Vec<Got>> {
        let mut results = memory::with_capacity(items.len())?;
        let (mut far, mut numbers) = (Vec::new(), Vec::new());
        for (at, item) in items.iter().enumerate() {
            let found = self.get_here(item, what);
            if matches!(found, Ok(None)) {
                memory::push(&mut far, *item)?;
                memory::push(&mut numbers, at)?;
            }
            results.push(match found {
                Ok(found) => found.unwrap_or(Got::whole(0)),
                Err(error) => Got::of(Err(error)),
            });
        }
        if far.is_empty() {
            return Ok(results);
        }
        let read = self.fetch_what(self.scope(deadline), &far, what)?;
        for (at, got) in numbers.into_iter().zip(read) {
            results[at] = got;
        }
        Ok(results)
    }

    fn get_task(&self, space: &[u8], item: &Item<'_>, what: What, expire_ms: u32) -> Result<Task> {
        let (key, room, about) = (ObjectKey::new(space, item.key)?, item.bytes()?, what == What::Metadata);
        // Who asks for what is said about a value has not read it.
        let (keep, expire_ms) = if about { (false, 0) } else { (self.config.keep, expire_ms) };
        let get = GetCall { keep, expire_ms, about, ..GetCall::new(key, room) };
        Ok(Task { far: item.far, ..self.task(Call::Get(get), item.spans()?) })
    }

    /// From a store of this process.
    fn get_here(&self, item: &Item<'_>, what: What) -> Result<Option<Got>> {
        if what == What::Metadata {
            return self.about_here(item.key);
        }
        let room = item.bytes()?;
        let mut bytes = room;
        let (expires, both) = (self.config.expire_ms > 0, what == What::Both);
        self.local(|node| {
            let store = &node.store;
            let mut put = if expires || both { store.put_under(item.key).ok().flatten() } else { None };
            // The store reads into memory of the value's size: if that is another, once more; it may be replaced meanwhile.
            for _ in 0..READS_HERE {
                let slices = first_bytes(item.slices, bytes)?;
                let mut size = bytes;
                let read = store.read(item.key, 0, &Pieces::Slices(&slices), |total| {
                    size = total;
                    Ok(total == bytes)
                })?;
                match read {
                    Look::Ready(_) if size == bytes => {
                        let mut got = Got::whole(bytes);
                        if both {
                            let Some(said) = about::said_here(store, item.key)? else { return Ok(None) };
                            let now = store.put_under(item.key)?;
                            if now.is_none() || std::mem::replace(&mut put, now) != now {
                                // It was said about another one than was read.
                                continue;
                            }
                            got.metadata = said;
                        }
                        self.read_here(node, item.key, put);
                        return Ok(Some(got));
                    }
                    Look::Ready(_) if size > room => return Ok(Some(Got::too_large(size, room))),
                    Look::Ready(_) => bytes = size,
                    Look::Writing(..) | Look::Missing => return Ok(None),
                }
            }
            // Whoever has it is asked, in the time of the call.
            Ok(None)
        })
    }

    /// What was read on a node of this client, if it is what it was before that, goes after a while.
    fn read_here(&self, node: &Local, key: &[u8], put: Option<u64>) {
        let after_ms = self.config.expire_ms;
        if let Some(put) = put.filter(|_| after_ms > 0)
            && matches!(node.store.put_under(key), Ok(Some(after)) if after == put)
            && let Ok(object) = self.key(key)
            && self.told.lock().is_new(PutId(put), now_ms(), after_ms.into())
        {
            node.agent.handle().expire(object, PutId(put), after_ms);
        }
    }

    /// Where keys are, as the leader lists them.
    pub fn query(&self, keys: &[&[u8]]) -> Result<Vec<Listed>> {
        self.locate(self.scope(&Deadline::after(self.config.patience)), keys)
    }

    /// Whether keys can be read: here, or by what the leader lists.
    pub fn exists(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let here =
            |key: &&[u8]| self.local(|node| Ok(node.store.exists(key)?.then_some(()))).map(|found| found.is_some());
        let mut found = memory::try_collect(keys.iter().map(here))?;
        let away = memory::collect(keys.iter().zip(&found).filter(|(_, here)| !**here).map(|(key, _)| *key))?;
        let mut listed = self.query(&away)?.into_iter();
        for place in found.iter_mut().filter(|here| !**here) {
            let listed = listed.next().map_or(NMC_ERR_NOT_FOUND, |listed| listed.status);
            if listed == NMC_ERR_UNAVAILABLE {
                crate::bail!(NMC_ERR_UNAVAILABLE, "the master is still being told what there is");
            }
            *place = listed == NMC_OK;
        }
        Ok(found)
    }

    /// Puts values without waiting: item `i` is told to `sum` as number `numbers[i]`. One completion is queued for all.
    pub fn submit_put(
        &self,
        token: u64,
        items: &[Item<'_>],
        numbers: &[usize],
        options: &PutOptions,
        sum: Sum,
    ) -> Result<()> {
        check_copies(options)?;
        self.submit(token, items, numbers, sum, Ordinary::Destination, |item, deadline| {
            self.put_task(item, options, deadline).map(Begun::Call)
        })
    }

    /// Reads values without waiting, except those that a node of this client has: they are there when it returns.
    pub fn submit_get(&self, token: u64, items: &[Item<'_>], numbers: &[usize], sum: Sum) -> Result<()> {
        self.submit(token, items, numbers, sum, Ordinary::Source, |item, _| {
            Ok(match device::get_here(self, item)? {
                Some(got) => Begun::Over(got.bytes, got.result.map_or_else(|error| error.status, |()| NMC_OK)),
                None => Begun::Call(self.get_task(&self.config.space, item, What::Value, self.config.expire_ms)?),
            })
        })
    }

    fn submit(
        &self,
        token: u64,
        items: &[Item<'_>],
        numbers: &[usize],
        mut sum: Sum,
        way: Ordinary,
        begin: impl Fn(&Item<'_>, &Deadline) -> Result<Begun>,
    ) -> Result<()> {
        self.calls.check(items.len())?;
        // A placement may wait for the list of segments.
        let deadline = Deadline::after(self.config.patience);
        let mut tasks = memory::with_capacity(items.len())?;
        let mut over = memory::with_capacity(items.len())?;
        for (item, number) in items.iter().zip(numbers) {
            let begun = begin(item, &deadline).and_then(|begun| match begun {
                Begun::Call(task) => {
                    let bounce = device::bounce(self, item, way)?;
                    tasks.push(Numbered { bounce, ..Numbered::new(*number, task) });
                    Ok(None)
                }
                Begun::Over(bytes, status) => Ok(Some((bytes, status))),
            });
            match begun {
                Ok(None) => {}
                Ok(Some((bytes, status))) => over.push((*number, bytes, status)),
                Err(error) => over.push((*number, 0, error.status)),
            }
        }
        over.into_iter().for_each(|(number, bytes, status)| sum.add(number, bytes, status));
        self.calls.submit(token, tasks, sum, deadline.left())
    }

    /// What became of what was submitted; see [`Calls::completions`].
    pub fn completions(&self, most: usize, limit: Duration, take: impl FnMut(Completion)) -> usize {
        self.calls.completions(most, limit, take)
    }

    /// Ends what was submitted with this token; gives how much.
    pub fn cancel_submitted(&self, token: u64) -> Result<usize> {
        self.calls.cancel(token)
    }

    /// A descriptor that is readable while there is a completion to take, or something to do for what was submitted.
    pub fn event_fd(&self) -> Result<RawFd> {
        self.calls.event_fd()
    }

    /// The segments of the cluster.
    pub fn segments(&self) -> Result<Vec<Segment>> {
        self.list_segments(&Deadline::after(self.config.patience))
    }

    /// Whether a segment is on this machine.
    #[must_use]
    pub fn is_here(&self, segment: &Segment) -> bool {
        segment.host == self.near
    }

    fn list_segments(&self, deadline: &Deadline) -> Result<Vec<Segment>> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        loop {
            let outcome = self.ask_within(Call::Ask(Box::new(ListSegments { cursor }.into())), self.scope(deadline))?;
            let Some(Message::Segments(segments)) = outcome.reply.map(|reply| *reply) else {
                crate::bail!(NMC_ERR_UNAVAILABLE, "no master has answered");
            };
            memory::reserve(&mut all, segments.list.len())?;
            all.extend(segments.list);
            if segments.next == 0 {
                return Ok(all);
            }
            cursor = segments.next;
        }
    }

    /// A page of the keys that begin like this, in no particular order, and the place of the next page: 0 is the beginning, and the end.
    pub fn keys(&self, prefix: &[u8], cursor: u32) -> Result<(Vec<ObjectKey>, u32)> {
        let (space, prefix) = (Space(memory::copy(&self.config.space)?), Prefix(memory::copy(prefix)?));
        let outcome = self.ask(Call::Ask(Box::new(ListKeys { cursor, space, prefix }.into())))?;
        match outcome.reply.map(|reply| *reply) {
            Some(Message::Keys(keys)) => Ok((keys.list, keys.next)),
            _ => crate::bail!(NMC_ERR_UNAVAILABLE, "no master has answered"),
        }
    }

    /// Waits until others find everything that was stored in this client's nodes before.
    pub fn sync(&self) -> Result<()> {
        let handles = self.nodes.read().iter().map(|node| node.agent.handle()).collect();
        self.sync_all(handles, &Deadline::after(self.config.patience))
    }

    fn sync_all(&self, handles: Vec<agent::Handle>, deadline: &Deadline) -> Result<()> {
        for handle in handles {
            let status = handle.sync(deadline.left(), &self.cancelled);
            if status != NMC_OK {
                return Err(Error::new(status, "no master has heard in time of what this node has"));
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.cancel();
        // Here, and not with the last call that still knows of it: that may end on the thread itself.
        self.calls.service.close();
    }
}

fn check_copies(options: &PutOptions) -> Result<()> {
    match options.replicate.copies {
        1..=MAX_COPIES => Ok(()),
        copies => crate::bail!(NMC_ERR_INVALID_ARG, "{copies} copies are wanted; 1 to {MAX_COPIES} are possible"),
    }
}

/// Whether a call failed because of a store, and not because of how it was made.
fn is_of_store(status: nmc_status_t) -> bool {
    matches!(
        status,
        NMC_ERR_IO
            | NMC_ERR_CUDA
            | NMC_ERR_CORRUPT
            | NMC_ERR_BUSY
            | NMC_ERR_STALE
            | NMC_ERR_PEER_LOST
            | NMC_ERR_UNAVAILABLE
            | NMC_ERR_TIMEOUT
    )
}

/// The first so many bytes of memory in pieces.
fn first_bytes(slices: &[Slice], mut bytes: u64) -> Result<Vec<Slice>> {
    memory::collect(slices.iter().map(|slice| {
        let taken = slice.bytes.min(bytes);
        bytes -= taken;
        Slice { bytes: taken, ..*slice }
    }))
}

/// What a call has come to of which nobody says anything.
fn nothing<R>() -> Result<R> {
    Err(Error::new(NMC_ERR_TIMEOUT, "nothing came of the call"))
}

/// Why a call failed, in the words of who refused it, if anybody said more than a status.
fn failed(outcome: &Outcome, what: impl std::fmt::Display) -> Error {
    let said = match outcome.reply.as_deref() {
        Some(Message::Answer(answer)) => answer.text.as_str(),
        _ => "",
    };
    let said = if said.is_empty() { words(outcome.status) } else { said };
    Error::new(outcome.status, format!("{what}: {said}"))
}

/// What a status means here, where nobody has said more.
fn words(status: nmc_status_t) -> &'static str {
    match status {
        NMC_ERR_NOT_FOUND => "no node has it",
        NMC_ERR_EXISTS => "there is a value already",
        NMC_ERR_BUSY => {
            "a node has no room at the moment, another put of it is under way, or a node that may have a copy cannot be reached: try again"
        }
        NMC_ERR_NO_SPACE => "too few nodes have room for it",
        NMC_ERR_LIMIT => {
            "a node that is to have it has values of as many namespaces already, or had them, as a store can have"
        }
        NMC_ERR_TIMEOUT => "no answer in time from a master, or from a node that has it or is to have it",
        NMC_ERR_UNAVAILABLE => "no master leads, or no node takes it",
        NMC_ERR_PERMISSION => {
            "a node that has it or is to have it refuses this client, or shows no certificate that this client believes; the log says which"
        }
        NMC_ERR_VERSION => "a node that has it or is to have it speaks another version",
        NMC_ERR_CANCELLED => "cancelled before it had ended",
        NMC_ERR_CORRUPT => "every copy that was read had a wrong checksum",
        NMC_ERR_NO_MEMORY => "no memory for it",
        _ => name(status).to_str().unwrap_or("an unknown status"),
    }
}

/// Without the port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    }
}

fn port_of(address: &Address) -> u16 {
    match address {
        Address::Tcp(address) => address.port(),
        Address::Unix(_) => 0,
    }
}
