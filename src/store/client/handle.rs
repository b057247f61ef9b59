//! What a program holds of a store: a namespace of it, through a client that handles share.

use super::client::Client;
use crate::base::error::Result;
use crate::mem::Import;
use crate::store::config::Config;
use crate::store::peers::Peers;
use crate::store::wire::Request;
use crate::world::World;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A client's view of one namespace of a store.
pub struct Store {
    pub(crate) client: Arc<Client>,
    pub(in crate::store) namespace: u32,
    /// Whoever waits through this handle gives up: it is being destroyed.
    pub(super) closing: AtomicBool,
    /// Who is asked for what is not here.
    pub(in crate::store) peers: Option<Arc<dyn Peers>>,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.client.leave_handle();
    }
}

impl Store {
    pub(in crate::store) fn of(client: Arc<Client>, namespace: u32) -> Self {
        client.enter_handle();
        Self { client, namespace, closing: AtomicBool::new(false), peers: None }
    }

    /// Another handle of the same client and namespace, which asks nobody else.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::of(Arc::clone(&self.client), self.namespace)
    }

    /// Another handle of the same client, for this namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: u32) -> Self {
        Self::of(Arc::clone(&self.client), namespace)
    }

    /// The rank of this process in the store's world.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.client.member.rank()
    }

    /// Makes whoever waits through this handle give up, now and later. Other handles of the client are not affected.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.client.ring();
    }

    /// The store of a world, for one of its ranks.
    pub fn attach(world: &World, config: &Config) -> Result<Self> {
        Ok(Self::of(Client::attach(world, config)?, 0))
    }

    /// A store of this process alone, with heaps of its own.
    pub fn embedded(world: &crate::world::Config, config: &Config) -> Result<Self> {
        Ok(Self::of(Client::embedded(world, None, config)?, 0))
    }

    /// The same on memory that the program lends, which is its until all handles are destroyed.
    pub fn embedded_on(world: &crate::world::Config, lent: Import, config: &Config) -> Result<Self> {
        Ok(Self::of(Client::embedded(world, Some(lent), config)?, 0))
    }

    /// The same store, with keys of their own: a namespace, made if need be. A quota that is given replaces the former.
    pub fn namespace(&self, name: &[u8], quota_bytes: Option<u64>) -> Result<Self> {
        self.namespace_within(name, quota_bytes, Duration::MAX)
    }

    /// The same, if the master answers in this time.
    pub fn namespace_within(&self, name: &[u8], quota_bytes: Option<u64>, limit: Duration) -> Result<Self> {
        if name.is_empty() || name.len() > crate::layout::store::MAX_NAMESPACE_NAME {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a namespace's name has {} bytes; 1 to {} are possible",
                name.len(),
                crate::layout::store::MAX_NAMESPACE_NAME
            );
        }
        let [id, _, _] = self.call_soon(&Request::Namespace(name, quota_bytes), limit)?;
        let mut made = Self::of(Arc::clone(&self.client), u32::try_from(id).unwrap_or(0));
        made.peers.clone_from(&self.peers);
        Ok(made)
    }

    /// Number of its namespace.
    #[must_use]
    pub fn namespace_id(&self) -> u32 {
        self.namespace
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Makes whoever waits on this client give up.
    pub fn cancel(&self) {
        self.client.cancel();
    }

    /// First byte of a rank's heap in this process.
    #[inline(always)]
    pub fn base(&self, rank: u32) -> Result<u64> {
        Ok(self.client.heap(rank)?.base())
    }

    /// The same as the GPU sees it; 0 without a device.
    #[inline(always)]
    #[must_use]
    pub fn device_base(&self, rank: u32) -> u64 {
        self.client.heap(rank).map_or(0, |heap| heap.device_base())
    }

    /// Address of an object's header in this process; read-only.
    #[must_use]
    pub fn header_address(&self, index: u32) -> u64 {
        self.client.map.control().base() as u64 + self.client.map.layout().header_offset(index) as u64
    }

    /// Address of an object's publish word here and on the GPU (0 without a device).
    #[must_use]
    pub fn publish_word(&self, index: u32) -> (u64, u64) {
        let at = self.client.map.layout().published_offset(index) as u64;
        (self.client.map.words().base() as u64 + at, self.client.map.device_words().map_or(0, |base| base + at))
    }
}
