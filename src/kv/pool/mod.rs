//! The blocks that sequences share: who is free, how many hold each, which ones the prefix index knows, and which goes
//! next when room is needed. Guarantees: a block is free, private to one sequence, or held by exactly `refs` holders. One
//! lock guards all of it, with the blocks of groups that have their own.
//!
//! `index` finds equal prefixes (`roots` and `scatter` are its parts), `evict` says which cached block goes next, `find_run` makes
//! runs of neighbours, `events` tells routers what comes and goes, `mapped_free` has the free blocks of virtual sequences.

pub mod events;
pub mod evict;
mod find_run;
mod index;
mod mapped_free;
mod roots;
mod scatter;

pub(super) use index::{Named, Prefix, Published, Snapshot};
pub(super) use mapped_free::MappedFree;

use super::block::{Info, NONE};
use super::groups::{GroupPool, OwnGroup};
use super::hash::BlockHash;
use crate::alloc::blocks::{self, Blocks};
use crate::alloc::runs::Run;
use crate::base::error::Result;
use crate::base::memory;
use crate::layout::region::prefetch;
use events::{Event, Events, What};
use evict::{Evictor, Kind};
use roots::Roots;
use scatter::Scatter;

/// How a published block is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// For the priority policy; a block and what it continues have at least this.
    pub priority: u8,
    /// When the priority lapses, in ticks; 0 is never.
    pub expiry: u32,
}

/// The pool.
pub struct Pool {
    blocks: Blocks,
    info: Vec<Info>,
    /// First block of every bucket of the index.
    buckets: Vec<u32>,
    scatter: Scatter,
    policy: Evictor,
    /// What first blocks have as their parent; empty where tokens are not compared.
    roots: Roots,
    /// The tokens of every published block, if they are compared.
    tokens: Vec<u32>,
    tokens_per_block: usize,
    compare: bool,
    published: u32,
    idle: u32,
    /// Blocks that were evicted to make room.
    evicted: u64,
    events: Events,
    /// The blocks of groups that have their own.
    pub groups: Vec<GroupPool>,
}

/// Numbers about a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levels {
    pub total: u32,
    pub free: u32,
    pub published: u32,
    /// Published blocks that nobody holds.
    pub idle: u32,
    /// Blocks that were evicted, ever.
    pub evicted: u64,
}

fn buckets_for(total: u32) -> usize {
    (total as usize / 4 * 3).next_power_of_two().max(1)
}

impl Pool {
    /// Bytes of memory that the books of so many blocks take, about, with `groups` groups.
    pub fn book_bytes(total: u32, kind: Kind, tokens_per_block: u32, compare: bool, groups: usize) -> u64 {
        let tokens = if compare { 4 * u64::from(tokens_per_block) } else { 0 };
        let block = size_of::<Info>() as u64 + Evictor::bytes_per_block(kind) + tokens + 4 * groups as u64;
        blocks::book_bytes(total) + buckets_for(total) as u64 * 4 + u64::from(total) * block
    }

    /// All blocks free. With `compare`, tokens are kept and compared on every match.
    pub fn new(
        total: u32,
        kind: Kind,
        tokens_per_block: u32,
        compare: bool,
        events: u32,
        groups: &[OwnGroup],
    ) -> Result<Self> {
        let mut pool = Self {
            blocks: Blocks::new(total)?,
            info: Vec::new(),
            buckets: memory::vec_of(buckets_for(total), NONE)?,
            scatter: Scatter::new(),
            policy: Evictor::new(kind, total)?,
            roots: Roots::default(),
            tokens: Vec::new(),
            tokens_per_block: tokens_per_block as usize,
            compare,
            published: 0,
            idle: 0,
            evicted: 0,
            events: Events::new(events)?,
            groups: memory::try_collect(groups.iter().map(|group| GroupPool::new(*group, tokens_per_block)))?,
        };
        pool.reserve(total)?;
        pool.fit(total);
        Ok(pool)
    }

    /// Gets memory for the books of `total` blocks, except those of who is free.
    fn reserve(&mut self, total: u32) -> Result<()> {
        let total = total as usize;
        memory::reserve_to(&mut self.info, total)?;
        self.policy.reserve(total)?;
        if self.compare {
            memory::reserve_to(&mut self.tokens, total * self.tokens_per_block)?;
        }
        self.groups.iter_mut().try_for_each(|group| group.reserve(total))
    }

    /// Sizes the books for `total` blocks, for which there is memory.
    fn fit(&mut self, total: u32) {
        let total = total as usize;
        self.info.resize(total, Info::NEW);
        self.policy.fit(total);
        if self.compare {
            self.tokens.resize(total * self.tokens_per_block, 0);
        }
        for group in &mut self.groups {
            group.fit(total);
        }
    }

    pub fn levels(&self) -> Levels {
        Levels {
            total: self.blocks.total(),
            free: self.blocks.free(),
            published: self.published,
            idle: self.idle,
            evicted: self.evicted,
        }
    }

    /// Bytes of memory that it takes, without the tokens that are kept for comparison.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.blocks.bytes()
            + self.info.capacity() * size_of::<Info>()
            + self.buckets.capacity() * 4
            + self.policy.bytes()
            + self.events.bytes()
            + self.groups.iter().map(GroupPool::bytes).sum::<usize>()
    }

    /// How the free blocks are scattered.
    pub fn fragmentation(&mut self) -> f32 {
        self.blocks.fragmentation()
    }

    /// The published block that this one continues, or [`NONE`].
    pub fn parent(&self, block: u32) -> u32 {
        self.info.get(block as usize).map_or(NONE, |entry| entry.parent)
    }

    /// Whether a block is not free.
    pub fn is_used(&self, block: u32) -> bool {
        self.blocks.map()[block as usize / 64] >> (block % 64) & 1 == 1
    }

    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub fn info(&self, block: u32) -> &Info {
        &self.info[block as usize]
    }

    pub fn hash(&self, block: u32) -> BlockHash {
        self.info[block as usize].hash
    }

    /// One more holder of a block that is held or published.
    #[inline]
    pub fn acquire(&mut self, block: u32) {
        let entry = &mut self.info[block as usize];
        entry.refs += 1;
        let was_idle = entry.refs == 1;
        if entry.is_published() {
            self.idle -= u32::from(was_idle);
            self.policy.used(&mut self.info, block);
        }
    }

    /// Makes a private block one that can have several holders; the caller is the first.
    pub fn share(&mut self, block: u32) {
        self.info[block as usize] = Info::held_once();
    }

    /// Whether the caller alone holds a block, and the index does not know it.
    pub fn is_ours_alone(&self, block: u32) -> bool {
        let entry = &self.info[block as usize];
        entry.refs == 1 && !entry.is_published()
    }

    /// Releases held blocks, given in the order of the sequence; the last goes first, so that it is also evicted first.
    pub fn release(&mut self, held: &[u32]) -> Result<()> {
        for block in held.iter().rev() {
            self.release_one(*block)?;
        }
        Ok(())
    }

    /// Releases one held block.
    #[inline]
    pub fn release_one(&mut self, block: u32) -> Result<()> {
        let entry = &mut self.info[block as usize];
        debug_assert!(entry.refs > 0);
        entry.refs -= 1;
        if entry.refs > 0 {
            return Ok(());
        }
        if entry.is_published() {
            self.idle += 1;
            self.policy.idle(&mut self.info, block);
            return Ok(());
        }
        self.blocks.give(&[block])
    }

    /// Evicts one idle block and hands it to the caller, private.
    fn evict(&mut self, now: u32) -> Result<Option<u32>> {
        let mut victim = self.policy.victim(&mut self.info, now);
        if victim.is_none() && self.idle > 0 {
            self.uncover()?;
            victim = self.policy.victim(&mut self.info, now);
        }
        let Some(block) = victim else { return Ok(None) };
        // The next victim is most often the one behind it.
        if let Some(next) = self.info.get(self.info[block as usize].next() as usize) {
            prefetch(&self.buckets[self.bucket(next.hash)]);
            if let Some(after) = self.info.get(next.next() as usize) {
                prefetch(after);
            }
        }
        self.unpublish(block);
        self.evicted += 1;
        Ok(Some(block))
    }

    /// Adds `count` private blocks to `out`: free ones first, then idle cached ones, which leave the index. All or
    /// nothing: if it is false, `out` is as before (blocks that were evicted on the way are free now).
    pub fn take(&mut self, count: usize, out: &mut Vec<u32>, now: u32) -> Result<bool> {
        let free = self.blocks.free() as usize;
        if count > free + self.idle as usize {
            return Ok(false);
        }
        memory::reserve(out, count)?;
        let before = out.len();
        out.resize(before + count.min(free), 0);
        if !self.blocks.take(&mut out[before..]) {
            out.truncate(before);
            return Ok(false);
        }
        while out.len() < before + count {
            let at = out.len();
            out.push(0);
            let evicted = self.evict(now);
            if let Ok(Some(block)) = evicted {
                out[at] = block;
            } else if evicted.is_err() || !self.blocks.take(&mut out[at..]) {
                self.blocks.give(&out[before..at])?;
                out.truncate(before);
                return evicted.map(|_| false);
            }
        }
        Ok(true)
    }

    /// Lets a run of private blocks grow in place.
    pub fn extend_run(&mut self, run: Run, more: u32) -> Result<bool> {
        self.blocks.extend_run(run, more)
    }

    /// Private blocks become free.
    pub fn give(&mut self, blocks: &[u32]) -> Result<()> {
        self.blocks.give(blocks)
    }

    /// Evicts every idle block; returns how many.
    pub fn clear(&mut self, now: u32) -> Result<u32> {
        // If all of them go, one event says so.
        let all = self.idle == self.published && self.idle > 0;
        self.events.mute(all);
        let (before, evicted) = (self.idle, self.evicted);
        let cleared = self.clear_idle(now);
        self.events.mute(false);
        self.evicted = evicted;
        cleared?;
        if all {
            self.events.push(What::Cleared, BlockHash::default(), BlockHash::default());
        }
        Ok(before - self.idle)
    }

    fn clear_idle(&mut self, now: u32) -> Result<()> {
        while let Some(block) = self.evict(now)? {
            self.blocks.give(&[block])?;
        }
        Ok(())
    }

    /// Events from number `from` on, see [`Events::read`].
    pub fn read_events(&self, from: u64, most: usize) -> Result<(Vec<Event>, u64, u64)> {
        self.events.read(from, most)
    }

    /// Changes the number of blocks. It shrinks only if all blocks above are free; idle ones there are evicted first.
    pub fn resize(&mut self, total: u32) -> Result<bool> {
        let old = self.blocks.total();
        let buckets = buckets_for(total);
        let buckets = if buckets == self.buckets.len() { Vec::new() } else { memory::vec_of(buckets, NONE)? };
        if total >= old {
            self.reserve(total)?;
            self.blocks.grow(total)?;
            self.fit(total);
        } else {
            self.uncover()?;
            // Leaves above the new end go first, as often as that frees what they continue.
            loop {
                let before = self.published;
                for block in total..old {
                    let entry = &self.info[block as usize];
                    if entry.is_published() && entry.is_evictable() {
                        self.unpublish(block);
                        self.blocks.give(&[block])?;
                    }
                }
                if self.published == before {
                    break;
                }
            }
            if !self.blocks.shrink(total)? {
                return Ok(false);
            }
            self.info.truncate(total as usize);
            self.policy.fit(total as usize);
            self.groups.iter_mut().for_each(|group| group.fit(total as usize));
            self.tokens.truncate(total as usize * self.tokens_per_block * usize::from(self.compare));
        }
        if !buckets.is_empty() {
            self.rehash(buckets);
        }
        Ok(true)
    }
}
