//! What a KV cache says of itself.

use super::Kv;
use crate::base::error::Result;
use crate::base::memory::Text;
use crate::kv::block::NONE;
use crate::kv::cache::Stats;
use crate::kv::groups::GroupStats;
use crate::kv::pool::Snapshot;
use crate::kv::pool::events::Event;
use crate::kv::seq::SeqInfo;
use std::fmt::Write as _;

/// Numbers about a cache and its memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvStats {
    /// Blocks, sequences and hits, all of one moment.
    pub cache: Stats,
    /// Bytes of all blocks in all groups.
    pub arena_bytes: u64,
    /// 0 if the free blocks are one run, towards 1 the more they are scattered.
    pub fragmentation: f32,
}

/// Numbers about one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupReport {
    /// Whether it has blocks of its own; if not, the counts are those of the cache.
    pub has_own_blocks: bool,
    /// Its blocks.
    pub blocks: GroupStats,
    /// Bytes of one of them.
    pub block_bytes: u64,
    /// Where it begins in a heap, if it lies in one.
    pub heap_offset: Option<u64>,
}

impl Kv {
    /// Numbers that add up, taken at one moment.
    pub fn stats(&self) -> KvStats {
        let (arena_bytes, _) = self.memory.bytes();
        KvStats { cache: self.cache.stats(), arena_bytes, fragmentation: self.memory.fragmentation(&self.cache) }
    }

    /// Numbers about one group of a paged cache.
    pub fn group_report(&self, group: u32) -> Result<GroupReport> {
        let arena = self.memory.paged("nmc_kv_group_stats", "all its groups have the blocks of nmc_kv_stats")?;
        let own_group = arena.own_group(group)?;
        let blocks = if own_group == NONE {
            let Stats { total, free, idle, used, evicted_blocks: evicted, .. } = self.cache.stats();
            GroupStats { total, free, idle, used, evicted }
        } else {
            self.cache.group_stats(own_group)
        };
        Ok(GroupReport {
            has_own_blocks: own_group != NONE,
            blocks,
            block_bytes: arena.group(group).map_or(0, |group| group.geometry().block_bytes()),
            heap_offset: self.heap_offsets.get(group as usize).copied(),
        })
    }

    /// What a sequence is.
    pub fn info(&self, id: u64) -> Result<SeqInfo> {
        self.cache.info(id)
    }

    /// The ids of up to `count` open sequences that hold blocks, the one used longest ago first.
    pub fn oldest(&self, count: usize) -> Result<Vec<u64>> {
        self.cache.oldest(count, None)
    }

    /// Up to `most` events from number `from` on, the number to go on with, and how many before the first are gone.
    pub fn events(&self, from: u64, most: usize) -> Result<(Vec<Event>, u64, u64)> {
        self.cache.events(from, most)
    }

    /// Every block in the index with the one that it continues, which comes before it, and the number of the next event.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.cache.snapshot()
    }

    /// A page about the cache, and a picture of its blocks with `width` of them in a line; 0 for none.
    pub fn dump(&self, width: usize) -> Result<String> {
        let (_, block_bytes) = self.memory.bytes();
        let mut page = self.cache.dump(block_bytes)?;
        if let Some(pages) = self.memory.mapped_pages()? {
            let mut text = Text::default();
            let written = write!(text, "{page}Virtual memory:\n  Mapped: {pages} pages\n");
            page = text.finish(written)?;
        }
        if width == 0 {
            return Ok(page);
        }
        let picture = self.cache.map(width)?;
        let mut text = Text::default();
        let written = text.write_str(&page).and_then(|()| text.write_str(&picture));
        text.finish(written)
    }

    /// Pages that are mapped now, those that are free or mapped twice as well; 0 for a paged cache.
    pub fn mapped_pages(&self) -> Result<u64> {
        Ok(self.memory.mapped_pages()?.unwrap_or(0))
    }

    /// Whether every block is exactly where it should be.
    pub fn audit(&self) -> Result<()> {
        self.cache.audit()?;
        self.memory.audit(&self.cache)
    }
}
