//! The nodes of a client: stores of this process that others put to and read from.

use super::Cluster;
use super::nixl::NODE_DRAIN;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::id::random_u64;
use crate::base::log;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_CUDA, NMC_ERR_EXISTS, NMC_ERR_IO, NMC_ERR_LIMIT, NMC_ERR_PEER_LOST,
    NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_OK, nmc_status_t,
};
use crate::cluster::client::Call;
use crate::cluster::net::{Address, Listener, UNIX, sweep};
use crate::cluster::node::{self, Memory, NodeStore, Offer};
use crate::cluster::run::client::is_refusal;
use crate::cluster::run::node as agent;
use crate::cluster::types::{Media, Millis};
use crate::cluster::wire::Find;
use crate::store::Store;
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Where nodes listen that have no port of their own: one of these that is free.
const NODE_PORTS: std::ops::Range<u16> = 12300..14300;
/// What the names of sockets in a folder end with.
const SOCKET: &str = ".sock";
/// How many sockets are tried.
const MOST_TRIED: u32 = 8;
/// How often a leader hears of a node; after how long without an answer a node says something again, and tries another master.
pub const PING_MS: Millis = 1_000;
/// See [`PING_MS`].
pub const RESEND_MS: Millis = 300;
/// See [`PING_MS`].
pub const MASTER_MS: Millis = 3_000;

/// A store of this process that is a node of the cluster.
pub(super) struct Local {
    pub(super) name: String,
    /// Ends before the store does.
    pub(super) agent: agent::Service,
    /// The program's own way into it, in the client's namespace.
    pub(super) store: Store,
}

impl Cluster {
    /// Makes a node of a store: others put to it and read from it, what it has is announced. Gives its name, which is that of its
    /// segment too. Waits until it is a member.
    ///
    /// With `volatile` the store ends with the node: nobody waits for what it might bring back.
    pub fn mount(&self, store: &Store, name: Option<&str>, volatile: bool) -> Result<String> {
        let deadline = Deadline::after(self.config.patience);
        self.check_welcome()?;
        let listener = match &self.folder {
            None => self.listen()?,
            Some(folder) => listen_in(folder, name)?,
        };
        let endpoint = listener.address()?;
        let name = name.map_or_else(|| self.own_name(&endpoint), Into::into);
        if self.nodes.read().iter().any(|node| node.name == name) {
            crate::bail!(NMC_ERR_EXISTS, "this client has a node \"{name}\" already");
        }
        let space = match self.config.space.is_empty() {
            true => store.in_namespace(0),
            false => store.namespace_within(&self.config.space, None, deadline.left())?,
        };
        let mut storage = NodeStore::within(store, deadline.left()).map_err(|error| match error.status {
            NMC_ERR_EXISTS => Error::new(
                NMC_ERR_EXISTS,
                "this store is a node already: a client has attached it, and has to unmount it first",
            ),
            _ => error,
        })?;
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
            let why = agent.handle().refused();
            let why = if why.is_empty() { why } else { format!(": {why}") };
            crate::bail!(NMC_ERR_UNAVAILABLE, "no master has taken \"{name}\" as a member in time{why}");
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
        // Of nothing everything is known, also to a master that has just begun to lead.
        let nothing = Find { keys: Vec::new(), missed: Vec::new() };
        match self.ask_within(Call::Ask(Box::new(nothing.into())), self.scope(&soon)) {
            Err(error) if is_refusal(error.status) => Err(error),
            _ => Ok(()),
        }
    }

    /// The name of a node that was given none.
    fn own_name(&self, endpoint: &Address) -> String {
        match endpoint {
            Address::Tcp(at) => format!("{}:{}", host_name(&self.config.host), at.port()),
            Address::Unix(path) => path.display().to_string(),
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

    /// Waits until others find everything that was stored in this client's nodes before.
    pub fn sync(&self) -> Result<()> {
        let handles = self.nodes.read().iter().map(|node| node.agent.handle()).collect();
        self.sync_all(handles, &Deadline::after(self.config.patience))
    }

    pub(super) fn sync_all(&self, handles: Vec<agent::Handle>, deadline: &Deadline) -> Result<()> {
        for handle in handles {
            let status = handle.sync(deadline.left(), &self.cancelled);
            if status != NMC_OK {
                return Err(Error::new(status, "no master has heard in time of what this node has"));
            }
        }
        Ok(())
    }

    /// The nodes of this client, whose stores are in its namespace.
    pub(super) fn local<R>(&self, mut look: impl FnMut(&Local) -> Result<Option<R>>) -> Result<Option<R>> {
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

/// Without the port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    }
}

/// A socket in a folder, which is made for this user alone if it is not there. That of a node with a name has the same path each time. What is left
/// there of nodes that were killed goes.
fn listen_in(folder: &Path, name: Option<&str>) -> Result<Listener> {
    let made = DirBuilder::new().mode(0o700).create(folder);
    if let Err(error) = made.or_else(|e| if folder.is_dir() { Ok(()) } else { Err(e) }) {
        return Err(Error::os("mkdir", &error).context(folder.display()));
    }
    sweep(folder, |file| file.strip_suffix(SOCKET).is_some_and(|number| u64::from_str_radix(number, 16).is_ok()));
    let at = |number: u64| {
        let path = folder.join(format!("{number:016x}{SOCKET}"));
        Listener::bind(&Address::literal(&format!("{UNIX}{}", path.display()))?)
    };
    // Whether the name is another's the master says.
    if let Some(Ok(listener)) = name.map(|name| at(xxh3_64(name.as_bytes()))) {
        return Ok(listener);
    }
    // Another process that sweeps may have just looked at what was beginning.
    let mut listener = at(random_u64()?);
    for _ in 1..MOST_TRIED {
        if listener.is_err() {
            listener = at(random_u64()?);
        }
    }
    listener
}
