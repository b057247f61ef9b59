//! Blocks go to an object store, where other caches find them, and come back.

use super::{Kv, NO_ADDRESS};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::kv::transfer::{After, Link, Progress};
use crate::store::Store;
use std::sync::Arc;

impl Kv {
    /// Ties the cache to a store, once. All groups must have memory. `store` is asked for only if it is needed.
    pub fn attach_store(&self, store: impl FnOnce() -> Result<Store>) -> Result<()> {
        let arena = self.memory.paged("nmc_kv_attach_store", NO_ADDRESS)?;
        if !self.config().prefix {
            crate::bail!(NMC_ERR_UNSUPPORTED, "a cache with NMC_KV_NO_PREFIX has no names for its blocks");
        }
        if self.config().chain.needs_comparison() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "NMC_KV_HASH_XXH3 can be made to collide, and a store compares no tokens; use another hash"
            );
        }
        let mut is_first = false;
        // One at a time: moves that make room belong to the first link that is made.
        self.link.get_or_try_init(|| {
            is_first = true;
            Link::new(Arc::clone(&self.cache), arena.copy()?, store()?)
        })?;
        if !is_first {
            crate::bail!(NMC_ERR_EXISTS, "the cache has a store already");
        }
        Ok(())
    }

    /// The link to the store.
    pub fn link(&self) -> Result<&Link> {
        match self.link.get() {
            Some(link) => Ok(link),
            None => crate::bail!(NMC_ERR_INVALID_ARG, "the cache has no store; call nmc_kv_attach_store first"),
        }
    }

    /// Sends the published blocks of the first `tokens` tokens of a sequence to the store; returns a ticket.
    pub fn offload(&self, id: u64, tokens: u32, after: After) -> Result<u64> {
        self.link()?.offload(id, tokens, after)
    }

    /// Fetches the blocks that follow what a sequence has computed, as far as the store has them; see [`Link::onboard`].
    pub fn onboard(&self, id: u64, after: After, all: bool, by_layer: bool) -> Result<(u64, u32)> {
        self.link()?.onboard(id, after, all, by_layer)
    }

    /// What moves that make room come after. They come again and again, and an event only once.
    pub fn move_after(&self, after: After) -> Result<()> {
        if matches!(after, After::Event(_)) {
            crate::bail!(NMC_ERR_INVALID_ARG, "moves come again and again, and an event only once: give a stream");
        }
        self.link()?.move_after(after)
    }

    /// How far a transfer is, and its outcome if it is over; that is told once.
    pub fn poll(&self, ticket: u64) -> Result<(Progress, Option<Result<()>>)> {
        self.link()?.poll(ticket)
    }

    /// The same, after waiting for the end.
    pub fn wait(&self, ticket: u64, deadline: Deadline) -> Result<(Progress, Option<Result<()>>)> {
        self.link()?.wait(ticket, deadline)
    }

    /// Asks a transfer to end soon; what it becomes is told as ever.
    pub fn cancel_transfer(&self, ticket: u64) -> Result<()> {
        self.link()?.cancel(ticket)
    }

    /// How many leading tokens of a sequence the store has; 0 without one. Looks each block up there.
    pub fn stored_tokens(&self, id: u64) -> Result<u32> {
        self.link.get().map_or(Ok(0), |link| link.stored(id))
    }
}
