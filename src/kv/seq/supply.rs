//! What the sequences of a cache share: the pool, the free blocks that are still mapped, and the numbers that say how blocks
//! are cut. Each of the two has its lock; `cache` has the order of all locks.

use crate::base::error::Result;
use crate::kv::block::NONE;
use crate::kv::config::Config;
use crate::kv::error::Room;
use crate::kv::groups::{OwnKind, seen_from};
use crate::kv::pool::evict::Kind;
use crate::kv::pool::{MappedFree, Pool};
use crate::sync::lock::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// One tick of the clock for priorities, in milliseconds.
const TICK_MS: u128 = 16;

/// Alone in its cache lines, so that who writes it does not disturb who reads its neighbours.
#[repr(align(128))]
pub struct Aligned<T>(pub T);

impl<T> std::ops::Deref for Aligned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Where sequences get their blocks.
pub struct Supply {
    pub config: Config,
    pub pool: Aligned<Mutex<Pool>>,
    /// Free blocks that are still mapped.
    pub mapped_free: Mutex<MappedFree>,
    /// Free blocks that a lane keeps at most.
    pub spare_max: usize,
    /// Blocks that were computed twice, of which one was kept.
    pub deduplicated: AtomicU64,
    born: Instant,
}

impl Supply {
    /// All blocks free. Lanes keep up to `spare_max` of them to themselves.
    pub fn new(config: Config, spare_max: usize) -> Result<Self> {
        let pool = Pool::new(
            config.total_blocks,
            config.eviction,
            config.tokens_per_block,
            config.compares_tokens(),
            config.events,
            &config.own_groups,
        )?;
        Ok(Self {
            pool: Aligned(Mutex::new(pool)),
            mapped_free: Mutex::default(),
            spare_max,
            deduplicated: AtomicU64::new(0),
            born: Instant::now(),
            config,
        })
    }

    pub const fn per_block(&self) -> u32 {
        self.config.tokens_per_block
    }

    pub fn blocks_for(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.per_block()) as usize
    }

    /// The clock of priorities, in so many milliseconds.
    pub fn ticks_after(&self, ms: u32) -> u32 {
        u32::try_from((self.born.elapsed().as_millis() + u128::from(ms)) / TICK_MS + 1).unwrap_or(u32::MAX)
    }

    /// The time, if anything depends on it.
    pub fn now(&self) -> u32 {
        if self.config.eviction == Kind::Priority { self.ticks_after(0) } else { 0 }
    }

    /// How much room there is.
    pub fn room(&self, needed: usize) -> Room {
        let levels = self.pool.lock().levels();
        let mapped = self.mapped_free.lock().count() as u64;
        let (free, evictable) = (u64::from(levels.free) + mapped, u64::from(levels.idle));
        Room { own_group: NONE, needed: needed as u64, free, evictable }
    }

    /// The places of what a group with blocks of its own must have for a sequence that begins with `end` full blocks and has
    /// what belongs to the first `first`.
    pub fn needed_from(&self, own_group: usize, first: usize, end: usize) -> std::ops::Range<usize> {
        let from = match self.config.own_groups[own_group].kind {
            OwnKind::Window(window) => seen_from(end, window, self.per_block()),
            OwnKind::State { .. } => end.saturating_sub(1),
        };
        from.max(first)..end
    }
}
