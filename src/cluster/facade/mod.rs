//! What a program holds: a client of the cluster, and the nodes that it has made of stores of its own. What those have is read without a
//! message; everything else goes by way of the directory, to and from the owners.

mod about;
mod batch;
mod config;
mod device;
mod drain;
mod gets;
mod item;
mod lists;
mod nixl;
mod nodes;
mod peers;
mod placement;
mod puts;
mod removes;
mod submits;
mod words;

pub use about::What;
pub use config::{Config, MASTER_PORT, RDMA_FROM};
pub use drain::Drained;
pub use item::{Got, Item};
pub use nodes::{MASTER_MS, PING_MS, RESEND_MS};
pub use peers::Scope;
pub use placement::{Placement, Placing};
pub use puts::PutOptions;

use super::client::{self, Call, Outcome};
use super::net::secure::Identity;
use super::net::{Address, Limits, Span};
use super::run::client::{Service, Task};
use super::submit::Calls;
use super::told::Told;
use super::types::{ObjectKey, is_reserved};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::id::random_u64;
use crate::base::memory;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_IN_PROGRESS, NMC_OK};
use device::Copiers;
use nixl::CLIENT_DRAIN;
use nodes::Local;
use parking_lot::{Mutex, RwLock};
use placement::Placements;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use words::{failed, words};

/// See the module.
pub struct Cluster {
    config: Config,
    masters: Vec<Address>,
    /// The address of this machine, by which others reach it.
    host: SocketAddr,
    /// Where sockets of nodes are, instead.
    folder: Option<PathBuf>,
    /// The same without a port: how nodes say where they are.
    near: String,
    tls: Option<Arc<Identity>>,
    calls: Arc<Calls>,
    nodes: RwLock<Vec<Local>>,
    placements: Placements,
    copiers: Arc<Copiers>,
    /// What was read here and is to go.
    told: Mutex<Told>,
    /// Memory that was registered: first byte and how many.
    registered: Mutex<Vec<(usize, usize)>>,
    cancelled: AtomicBool,
}

impl Cluster {
    /// Takes part. Nobody is spoken to yet.
    pub fn open(config: Config) -> Result<Self> {
        if config.masters.is_empty() {
            crate::bail!(NMC_ERR_INVALID_ARG, "no address of a master is given");
        }
        let masters = memory::try_collect(config.masters.iter().map(|m| Address::resolve(m, Some(MASTER_PORT))))?;
        let (host, folder) = match Address::resolve(&config.host, Some(0))? {
            Address::Tcp(host) => (host, None),
            Address::Unix(folder) if folder.is_relative() => crate::bail!(
                NMC_ERR_INVALID_ARG,
                "\"{}\" is not a whole path: others would look for it elsewhere",
                config.host
            ),
            Address::Unix(folder) => (SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), Some(folder)),
        };
        if folder.is_some() && masters.iter().any(|m| !m.is_local()) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a master is not on this machine, so its clients may not reach sockets in \"{}\"",
                config.host
            );
        }
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
        let registered = Mutex::new(Vec::new());
        Ok(Self {
            config,
            masters,
            host,
            folder,
            near,
            tls,
            calls,
            nodes,
            placements,
            copiers,
            told,
            registered,
            cancelled,
        })
    }

    fn limits(config: &Config, tls: Option<&Arc<Identity>>) -> Limits {
        Limits { token: config.token.clone(), tls: tls.cloned(), ..Limits::default() }
    }

    /// Ends what is called, now and later, with CANCELLED.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.calls.cancel_all();
        self.calls.service.cancel();
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

    /// Why a call does not go on, if it does not.
    fn over(&self, deadline: &Deadline) -> Option<Error> {
        let cancelled = self.cancelled.load(Ordering::Relaxed).then_some(NMC_ERR_CANCELLED);
        let status = cancelled.or_else(|| deadline.passed().then_some(NMC_ERR_TIMEOUT))?;
        Some(Error::new(status, words(status)))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.cancel();
        // Here, and not with the last call that still knows of it: that may end on the thread itself.
        self.calls.service.close();
    }
}
