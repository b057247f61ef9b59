//! Where blocks lie: the layout of a group of layers (`geometry`), the memory that groups are in (`arena`), or pages of the library's
//! own that are mapped for each sequence (`mapped`, with `address_space`), and what kernels are told of it (`tables`). Nothing
//! here reads or writes a block.
//!
//! [`Memory`] is what tells paged and virtual caches apart, and the only place that does: the rest calls it.

mod address_space;
pub mod arena;
pub mod geometry;
pub(super) mod mapped;
mod region;
pub mod tables;

pub use mapped::{Move, page_tokens};
pub use region::Region;

use super::block::NONE;
use super::cache::Cache;
use super::error::Attempt;
use super::seq::{Open, Opened};
use crate::base::error::Result;
use arena::{Arena, SeqView};
use geometry::Side;
use mapped::Mapped;

/// The memory of a cache, chosen once when that is made.
pub(super) enum Memory {
    /// Sequences have blocks anywhere, of which tables tell kernels.
    Paged(Arena),
    /// Sequences have addresses of their own, at which their blocks are mapped.
    Virtual(Box<Mapped>),
}

impl Memory {
    pub fn open(&self, cache: &Cache, id: u64, open: &Open<'_>) -> Result<Attempt<Opened>> {
        match self {
            Self::Paged(_) => cache.open(id, open),
            Self::Virtual(mapped) => mapped.open(cache, id, open),
        }
    }

    #[inline]
    pub fn append(
        &self,
        cache: &Cache,
        id: u64,
        count: u32,
        tokens: Option<&[u32]>,
        importance: Option<f32>,
    ) -> Result<Attempt<()>> {
        match self {
            Self::Paged(_) => cache.append(id, count, tokens, importance),
            Self::Virtual(mapped) => mapped.append(cache, id, count, tokens, importance),
        }
    }

    #[inline]
    pub fn append_batch(
        &self,
        cache: &Cache,
        ids: &[u64],
        tokens: Option<&[u32]>,
        mut each: impl FnMut(usize, Result<Attempt<()>>),
    ) {
        match self {
            Self::Paged(_) => cache.append_batch(ids, tokens, each),
            Self::Virtual(mapped) => mapped.append_batch(cache, ids, tokens, &mut each),
        }
    }

    pub fn reserve(&self, cache: &Cache, id: u64, tokens: u32) -> Result<Attempt<()>> {
        match self {
            Self::Paged(_) => cache.reserve(id, tokens),
            Self::Virtual(mapped) => mapped.reserve(cache, id, tokens),
        }
    }

    pub fn truncate(&self, cache: &Cache, id: u64, tokens: u32) -> Result<Attempt<()>> {
        match self {
            Self::Paged(_) => cache.truncate(id, tokens),
            Self::Virtual(mapped) => mapped.truncate(cache, id, tokens),
        }
    }

    pub fn fork(&self, cache: &Cache, parent: u64, child: u64) -> Result<Attempt<()>> {
        match self {
            Self::Paged(_) => cache.fork(parent, child),
            Self::Virtual(mapped) => mapped.fork(cache, parent, child),
        }
    }

    pub fn close(&self, cache: &Cache, id: u64, discard: bool) -> Result<()> {
        match self {
            Self::Paged(_) => cache.close(id, discard),
            Self::Virtual(mapped) => mapped.close(cache, id, discard),
        }
    }

    pub fn view(&self, cache: &Cache, id: u64, group: u32, layer: u32, side: Side) -> Result<SeqView> {
        match self {
            Self::Paged(arena) => arena.view(cache, id, group, layer, side),
            Self::Virtual(mapped) => mapped.view(cache, id, group, layer, side),
        }
    }

    /// The address of one token's vector.
    pub fn address(&self, cache: &Cache, id: u64, token: u32, group: u32, at: (u32, Side, u32)) -> Result<u64> {
        match self {
            Self::Paged(arena) => arena.address(cache, id, token, group, at),
            Self::Virtual(mapped) => mapped.address(cache, id, token, group, at),
        }
    }

    /// The number of a group among those with blocks of their own, or [`NONE`].
    pub fn own_group(&self, group: u32) -> Result<u32> {
        match self {
            Self::Paged(arena) => arena.own_group(group),
            Self::Virtual(mapped) => mapped.group(group).map(|_| NONE),
        }
    }

    /// The group with this number among those with blocks of their own, or [`NONE`].
    pub fn group_of(&self, own_group: u32) -> u32 {
        match self {
            Self::Paged(arena) => arena.group_of(own_group),
            Self::Virtual(_) => NONE,
        }
    }

    /// Bytes of all blocks, and of one.
    pub fn bytes(&self) -> (u64, u64) {
        match self {
            Self::Paged(arena) => (arena.bytes(), arena.block_bytes()),
            Self::Virtual(mapped) => (mapped.bytes(), mapped.block_bytes()),
        }
    }

    /// How scattered the free blocks are. Pages are mapped one by one: any will do.
    pub fn fragmentation(&self, cache: &Cache) -> f32 {
        match self {
            Self::Paged(_) => cache.fragmentation(),
            Self::Virtual(_) => 0.0,
        }
    }

    /// Pages that are mapped, if any ever are.
    pub fn mapped_pages(&self) -> Result<Option<u64>> {
        match self {
            Self::Paged(_) => Ok(None),
            Self::Virtual(mapped) => mapped.mapped_pages().map(Some),
        }
    }

    /// Whether every address shows what it should.
    pub fn audit(&self, cache: &Cache) -> Result<()> {
        match self {
            Self::Paged(_) => Ok(()),
            Self::Virtual(mapped) => mapped.audit(cache),
        }
    }

    /// The groups of a paged cache; for a virtual one the reason why `call` is not for it.
    pub fn paged(&self, call: &str, why: &str) -> Result<&Arena> {
        match self {
            Self::Paged(arena) => Ok(arena),
            Self::Virtual(_) => {
                crate::bail!(NMC_ERR_UNSUPPORTED, "{call} is not for a cache with NMC_KV_VIRTUAL: {why}")
            }
        }
    }
}
