//! What a client and its nodes have of NIXL: how it is set up, memory of the program that it knows, and what it has moved.
#![allow(unsafe_code, reason = "memory of the program, by address")]

use super::{Cluster, Config, device};
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::net::Span;
use crate::cluster::nixl::Settings;
use crate::cluster::nixl::sys::Medium;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a NIXL agent that is to be renewed waits for what it sends: a call of a client waits for that.
pub(super) const CLIENT_DRAIN: Duration = Duration::from_millis(200);
/// See [`CLIENT_DRAIN`].
pub(super) const NODE_DRAIN: Duration = Duration::from_millis(1_000);

impl Cluster {
    /// How NIXL is set up, if it is wanted: where anybody may come nothing leaves this machine.
    pub(super) fn mover(config: &Config, host: &SocketAddr, drain: Duration) -> Option<Settings> {
        let loopback = config.is_open() || host.ip().is_loopback();
        config.rdma.then(|| Settings { loopback, devices: config.devices.clone(), drain, unfenced: config.unfenced })
    }

    /// Values are put from this memory, or read into it: NIXL needs no copy of them then.
    ///
    /// # Safety
    /// The memory stays where it is until it is taken back, or the client is gone.
    pub unsafe fn register(&self, first: usize, bytes: usize) -> Result<()> {
        if first == 0 || bytes == 0 || first.checked_add(bytes).is_none() {
            crate::bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes at {first:#x} are no memory");
        }
        let mut list = self.registered.lock();
        if let Some((other, n)) = list.iter().find(|(other, n)| first < other + n && *other < first + bytes) {
            crate::bail!(NMC_ERR_EXISTS, "{bytes} bytes at {first:#x} overlap {n} at {other:#x} that are registered");
        }
        memory::reserve(&mut list, 1)?;
        let medium = if self.config.rdma { device::medium(first, bytes)? } else { Medium::Host };
        // SAFETY: by contract; whether its bytes may be read or written, whoever puts or gets says.
        self.calls.service.register(unsafe { Span::new(first, bytes) }, medium)?;
        list.push((first, bytes));
        Ok(())
    }

    /// Takes that back.
    pub fn unregister(&self, first: usize) -> Result<()> {
        let mut list = self.registered.lock();
        let Some(at) = list.iter().position(|(other, _)| *other == first) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "nothing is registered at {first:#x}");
        };
        list.swap_remove(at);
        self.calls.service.unregister(first)
    }

    /// Bytes that NIXL has moved from this client, and from its nodes.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        (self.calls.service.moved(), self.nodes.read().iter().map(|node| node.agent.moved()).sum())
    }
}
