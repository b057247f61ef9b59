//! [`Kv`]: the KV cache as a whole. It owns the cache, its memory, the link to a store and the ids of named sequences, and
//! chooses once, when it is made, whether sequences are paged or virtual. The C functions call it and nothing below; so do
//! tests and other Rust code.
//!
//! `spec` is what it is made from, `copy` and `store` are what it does with the bytes of blocks, `report` what it says of
//! itself.

mod copy;
mod report;
mod spec;
mod store;

pub use copy::{Copies, GROUPS_ALL, GroupCopy, SeqCopy};
pub use report::{GroupReport, KvStats};
pub use spec::{GroupSpec, MappedSpec, Spec};

use super::cache::Cache;
use super::config::Config;
use super::error::Attempt;
use super::hash::BlockHash;
use super::place::Memory;
use super::place::arena::SeqView;
use super::place::geometry::Side;
use super::place::tables::{self, Format, Row};
use super::seq::{Open, Opened};
use super::transfer::{Link, Locations};
use crate::base::error::Result;
use crate::base::status::NMC_ERR_EXISTS;
use crate::world::World;
use once_cell::sync::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first id of those that the cache chooses.
const FIRST_CHOSEN_ID: u64 = 1 << 63;
/// Why there are no tables of virtual sequences.
const NO_TABLE: &str = "kernels need no table there, nmc_kv_view is all of a sequence";
/// Why blocks of virtual sequences cannot be copied.
const NO_ADDRESS: &str = "blocks have no addresses there, only sequences do";

/// A KV cache.
pub struct Kv {
    /// The store that it exchanges blocks with. First, so that its threads end before the memory goes.
    link: OnceCell<Link>,
    cache: Arc<Cache>,
    memory: Memory,
    /// Where the groups lie, as far as blocks are copied.
    locations: OnceCell<Locations>,
    /// Where each group begins in a heap, if they lie in one.
    heap_offsets: Vec<u64>,
    capacity_blocks: u32,
    /// The id of the next sequence for which the cache chooses it.
    next_id: AtomicU64,
}

impl Kv {
    /// A cache with all blocks free, in memory that the spec names, or of the library's own.
    pub fn new(spec: &Spec) -> Result<Self> {
        let groups = spec.lay_out()?;
        let cache = spec.cache()?;
        let memory = match spec.mapped {
            None => Memory::Paged(spec.arena(&groups)?),
            Some(mapped) => Memory::Virtual(Box::new(spec.map(mapped, &groups, &cache)?)),
        };
        Ok(Self::made(spec, cache, memory, Vec::new()))
    }

    /// The same in the caller's heap of a world, from `offset` on.
    pub fn in_heap(spec: &Spec, world: &World, offset: u64) -> Result<Self> {
        let groups = spec.lay_out()?;
        let heap = spec.heap_layout(&groups, offset)?;
        let cache = spec.cache()?;
        let arena = Spec::arena_in_heap(&groups, &heap, world, offset)?;
        Ok(Self::made(spec, cache, Memory::Paged(arena), heap.offsets))
    }

    fn made(spec: &Spec, cache: Cache, memory: Memory, heap_offsets: Vec<u64>) -> Self {
        Self {
            link: OnceCell::new(),
            cache: Arc::new(cache),
            memory,
            locations: OnceCell::new(),
            heap_offsets,
            capacity_blocks: spec.capacity_blocks,
            next_id: AtomicU64::new(FIRST_CHOSEN_ID),
        }
    }

    /// Ends what goes on beside calls, so that none of them waits for long. For one who is about to destroy it.
    pub fn cancel(&self) {
        if let Some(link) = self.link.get() {
            link.close();
        }
    }

    /// How the cache was made.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.cache.config()
    }

    /// The group with this number among those with blocks of their own, as [`BlockCopy`] and [`super::Room`] name it;
    /// [`super::NONE`] for the blocks of the cache.
    #[must_use]
    pub fn group_of(&self, own_group: u32) -> u32 {
        self.memory.group_of(own_group)
    }

    /// Opens a sequence: takes what the cache has of its tokens and gets blocks for the rest, all or nothing.
    pub fn open(&self, id: u64, open: &Open<'_>) -> Result<Attempt<Opened>> {
        self.memory.open(&self.cache, id, open)
    }

    /// The same with an id that the cache chooses: one that no open sequence has, and that it has not chosen before.
    pub fn open_auto(&self, open: &Open<'_>) -> Result<(u64, Attempt<Opened>)> {
        loop {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            if self.cache.has(id) {
                continue;
            }
            match self.open(id, open) {
                // The program took the id for itself meanwhile; if it is free, it was the name that is taken.
                Err(error) if error.status == NMC_ERR_EXISTS && self.cache.has(id) => {}
                opened => return Ok((id, opened?)),
            }
        }
    }

    /// The id of a named sequence.
    pub fn find(&self, name: &[u8]) -> Result<u64> {
        self.cache.find(name)
    }

    /// Adds `count` tokens; what the sequence had before counts as computed now.
    #[inline]
    pub fn append(&self, id: u64, count: u32, tokens: Option<&[u32]>, importance: Option<f32>) -> Result<Attempt<()>> {
        self.memory.append(&self.cache, id, count, tokens, importance)
    }

    /// Adds one token to each of many sequences, and tells `each` what became of it.
    #[inline]
    pub fn append_batch(&self, ids: &[u64], tokens: Option<&[u32]>, each: impl FnMut(usize, Result<Attempt<()>>)) {
        self.memory.append_batch(&self.cache, ids, tokens, each);
    }

    /// Says that the first `tokens` tokens of a sequence are computed, so that full blocks of them can be matched.
    #[inline]
    pub fn commit(&self, id: u64, tokens: u32) -> Result<()> {
        self.cache.commit(id, tokens)
    }

    /// Keeps the state that a sequence has now for others that begin with the same tokens.
    pub fn keep_state(&self, id: u64) -> Result<()> {
        self.cache.keep_state(id)
    }

    /// Gets blocks for `tokens` tokens in all, so that growing to there cannot fail.
    pub fn reserve(&self, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.memory.reserve(&self.cache, id, tokens)
    }

    /// Cuts a sequence to its first `tokens` tokens.
    pub fn truncate(&self, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.memory.truncate(&self.cache, id, tokens)
    }

    /// Opens `child` with the tokens of `parent`.
    pub fn fork(&self, parent: u64, child: u64) -> Result<Attempt<()>> {
        self.memory.fork(&self.cache, parent, child)
    }

    /// Closes a sequence. Full blocks of what it computed stay in the cache, unless it is to be `discard`ed.
    pub fn close(&self, id: u64, discard: bool) -> Result<()> {
        let landed = self.link.get().map_or(Ok(()), |link| link.land_early(id));
        self.memory.close(&self.cache, id, discard).and(landed)
    }

    /// Drops up to `count` whole blocks from the middle of a sequence, the least important first; returns how many.
    pub fn drop_least(&self, id: u64, count: u32, keep_first: u32, keep_recent: u32) -> Result<u32> {
        self.memory.paged("nmc_kv_drop_least", "no table would tell which blocks are gone")?;
        self.cache.drop_least(id, count, keep_first, keep_recent)
    }

    /// How many leading tokens of a prompt the cache has; holds nothing.
    pub fn matching(&self, tokens: Option<&[u32]>, hashes: Option<&[BlockHash]>, salt: &[u8]) -> Result<u32> {
        self.cache.matching(tokens, hashes, salt)
    }

    /// The hashes of the full blocks of a prompt with this salt.
    pub fn hashes_of(&self, tokens: &[u32], salt: &[u8]) -> Result<Vec<BlockHash>> {
        self.cache.hashes_of(tokens, salt)
    }

    /// Holds the leading published blocks of a sequence, up to `tokens` tokens, beyond its life. Returns the pin and the
    /// tokens that it covers.
    pub fn pin(&self, id: u64, tokens: u32) -> Result<(u64, u32)> {
        self.cache.pin(id, tokens)
    }

    /// Ends a pin.
    pub fn unpin(&self, pin: u64) -> Result<()> {
        self.cache.unpin(pin)
    }

    /// Evicts every cached block that nobody holds; returns how many.
    pub fn clear(&self) -> Result<u32> {
        self.cache.clear()
    }

    /// Changes the number of blocks, up to the capacity.
    pub fn resize(&self, total: u32) -> Result<()> {
        self.memory.paged("nmc_kv_resize", "its pages were made with it")?;
        if total > self.capacity_blocks {
            let capacity = self.capacity_blocks;
            crate::bail!(NMC_ERR_INVALID_ARG, "{total} blocks are more than capacity_blocks ({capacity})");
        }
        self.cache.resize(total)
    }

    /// K or V of a sequence in one layer.
    pub fn view(&self, id: u64, group: u32, layer: u32, side: Side) -> Result<SeqView> {
        self.memory.view(&self.cache, id, group, layer, side)
    }

    /// The address of one token's vector, in a layer, of K or V, of a head.
    pub fn token_address(&self, id: u64, token: u32, group: u32, at: (u32, Side, u32)) -> Result<u64> {
        self.memory.address(&self.cache, id, token, group, at)
    }

    /// Writes rows of a block table; see [`tables::write_dense`].
    #[allow(clippy::too_many_arguments, reason = "a table has as many properties")]
    pub fn write_table(
        &self,
        ids: &[u64],
        group: u32,
        format: Format,
        width: usize,
        pad: i32,
        rows: &mut [Row],
        out: &mut [i32],
    ) -> Result<u64> {
        let own_group = self.memory.paged("nmc_kv_table", NO_TABLE)?.own_group(group)?;
        tables::write_dense(&self.cache, ids, own_group, format, width, pad, rows, out)
    }

    /// Writes a block table in compressed form; see [`tables::write_csr`].
    pub fn write_csr(
        &self,
        ids: &[u64],
        group: u32,
        indptr: &mut [i32],
        indices: &mut [i32],
        last_len: &mut [i32],
    ) -> Result<usize> {
        let own_group = self.memory.paged("nmc_kv_table_csr", NO_TABLE)?.own_group(group)?;
        tables::write_csr(&self.cache, ids, own_group, indptr, indices, last_len)
    }

    /// Writes where the last tokens of sequences go; see [`tables::write_slot_mapping`].
    pub fn write_slot_mapping(
        &self,
        ids: &[u64],
        group: u32,
        counts: Option<&[u32]>,
        out: &mut [i64],
    ) -> Result<usize> {
        let own_group = self.memory.paged("nmc_kv_slot_mapping", NO_TABLE)?.own_group(group)?;
        tables::write_slot_mapping(&self.cache, ids, own_group, counts, out)
    }

    /// Tells `each`, by number, the slot that holds the state of a sequence before its last tokens, and the one that gets the
    /// state after them.
    pub fn state_slots(&self, ids: &[u64], group: u32, mut each: impl FnMut(usize, (u32, u32))) -> Result<()> {
        let own_group = self.memory.own_group(group)?;
        for (at, id) in ids.iter().enumerate() {
            each(at, self.cache.state_slots(*id, own_group)?);
        }
        Ok(())
    }
}
