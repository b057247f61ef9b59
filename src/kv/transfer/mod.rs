//! Moving published blocks to an object store, where other caches find them, and back; and copies of blocks where they lie. A few
//! threads of a [`Link`] do the former, a job after the other, its parts side by side; a job holds its blocks, so that
//! whatever happens to the sequence meanwhile, nothing is reused under the copy and nothing is lost after it. Blocks that come
//! back can be matched, and count as computed, only when every byte of them is there and was checked; a job that fails
//! or is cancelled leaves the rest as if never asked for.
//!
//! `codec` is the form of a block in the store, `job` one transfer, `queue` the order and the threads, `exchange` what these
//! do, `hand` what one of them does at a time, `steps` the places at which tests hold them. `pack` is for the other copies, with
//! `located` and `gpu` below it.

mod after;
mod codec;
mod exchange;
mod gpu;
mod hand;
mod job;
mod located;
mod pack;
mod queue;
pub mod steps;

pub use after::After;
pub use job::Progress;
pub(super) use located::{Located, Locations};
pub(super) use pack::Way;

use super::cache::Cache;
use super::place::arena::Arena;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_CANCELLED;
use crate::store::Store;
use crate::sync::service_thread;
use after::Wait;
use codec::Codec;
use exchange::Exchange;
use job::Work;
use parking_lot::Mutex;
use queue::Queue;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use steps::{Steps, Watcher};

/// Threads, as many as there are cores in between. What a copy costs beside the copy itself (asking the store, launching,
/// waiting, checksums) is hidden behind those of others.
const MOVERS: std::ops::RangeInclusive<usize> = 6..=12;

/// A cache and the store that it exchanges blocks with.
pub struct Link {
    exchange: Arc<Exchange>,
    workers: Vec<JoinHandle<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
        for worker in self.workers.drain(..) {
            // It can only end by a panic that was a bug; its jobs are over either way.
            let _ended = worker.join();
        }
    }
}

impl Link {
    /// Ties a cache to a store. All groups must have memory.
    pub fn new(cache: Arc<Cache>, arena: Arena, store: Store) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let exchange = Arc::new(Exchange {
            codec: Codec::new(arena, cache.config().own_groups.len())?,
            cache,
            store,
            queue: Queue::default(),
            threads: cores.clamp(*MOVERS.start(), *MOVERS.end()),
            before_moves: Mutex::new(After::Nothing),
            steps: Steps::default(),
        });
        let mut link = Self { exchange, workers: Vec::new() };
        let weak = Arc::downgrade(&link.exchange);
        let mover = move |id| match weak.upgrade() {
            Some(exchange) => exchange.send_away(id),
            None => Err(Error::new(NMC_ERR_CANCELLED, "the cache is being destroyed")),
        };
        for _ in 0..link.exchange.threads {
            let exchange = Arc::clone(&link.exchange);
            link.workers.push(service_thread::spawn(c"nmc-kv-move", None, move || exchange.work())?);
        }
        // Now that nothing can fail: it is set once. A second link for the same cache is refused before it is made.
        let _set = link.exchange.cache.move_with(Box::new(mover));
        Ok(link)
    }

    /// Cancels all jobs; no more are taken. Whoever waits for one is told soon.
    pub fn close(&self) {
        self.exchange.queue.close();
        self.exchange.store.close();
    }

    /// Tells `watcher` of every step of every transfer from now on; false if another is told already. For tests.
    #[doc(hidden)]
    pub fn watch(&self, watcher: Watcher) -> bool {
        self.exchange.steps.watch(watcher)
    }

    /// Sends the published blocks of the first `tokens` tokens of a sequence to the store; those that it has are left out.
    pub fn offload(&self, id: u64, tokens: u32, after: After) -> Result<u64> {
        self.exchange.offload(id, tokens, after)
    }

    /// What moves that make room come after: `after` is asked for in each of them.
    pub fn move_after(&self, after: After) -> Result<()> {
        // It must be something that can be waited for.
        self.exchange.wait_of(after)?;
        *self.exchange.before_moves.lock() = after;
        Ok(())
    }

    /// Fetches the blocks that follow what a sequence has computed, as far as the store has them. Returns the ticket and
    /// how many tokens that are; 0 and 0 if there are none. Until its end was told the sequence can only be read or closed.
    pub fn onboard(&self, id: u64, after: After, all: bool, by_layer: bool) -> Result<(u64, u32)> {
        let exchange = &self.exchange;
        let wait = exchange.wait_of(after)?;
        if by_layer && exchange.codec.own_groups() > 0 {
            crate::bail!(NMC_ERR_UNSUPPORTED, "groups with blocks of their own do not come layer by layer");
        }
        let (uid, first, mut hashes) = exchange.cache.wanted(id, all)?;
        let stored = exchange.leading(&hashes)?;
        hashes.truncate(exchange.usable(&hashes, first, stored)?);
        if hashes.is_empty() {
            return Ok((0, 0));
        }
        let number = exchange.queue.number()?;
        let items = exchange.cache.hold_wanted(id, uid, &hashes, number)?;
        let tokens = self.tokens_of(hashes.len());
        Ok((exchange.enqueue(number, items, wait, Work::In { id, uid, by_layer })?, tokens))
    }

    /// What has come by now for a sequence that is about to be closed stays in the cache.
    pub fn land_early(&self, id: u64) -> Result<()> {
        let come = |number| self.exchange.queue.ticket(number).map_or(0, |t| t.blocks_done.load(Ordering::Acquire));
        self.exchange.cache.land_early(id, come)
    }

    fn tokens_of(&self, blocks: usize) -> u32 {
        u32::try_from(blocks).unwrap_or(0) * self.exchange.cache.config().tokens_per_block
    }

    /// How many leading tokens of a sequence the store has, so that another could begin with them.
    pub fn stored(&self, id: u64) -> Result<u32> {
        let hashes = self.exchange.cache.names(id)?;
        let stored = self.exchange.leading(&hashes)?;
        Ok(self.tokens_of(self.exchange.usable(&hashes, 0, stored)?))
    }

    /// How far a job is, and its outcome if it is over; that is told once.
    pub fn poll(&self, number: u64) -> Result<(Progress, Option<Result<()>>)> {
        self.exchange.poll(number)
    }

    /// The same, after waiting for the end.
    pub fn wait(&self, number: u64, deadline: Deadline) -> Result<(Progress, Option<Result<()>>)> {
        self.exchange.wait_for(number, deadline)
    }

    /// Asks a job to end soon; what it becomes is told as ever.
    pub fn cancel(&self, number: u64) -> Result<()> {
        self.exchange.queue.ticket(number)?.cancel();
        Ok(())
    }
}
