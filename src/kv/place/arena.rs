//! The memory of the blocks: one or more groups of layers, each with its own layout and address. A block has the same
//! number in every group, except those that have blocks of their own. Addresses are numbers here; nothing is read or written.

use super::geometry::{Geometry, Side, View};
use super::region::Region;
use super::tables::used_blocks;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::cache::Cache;
use crate::kv::seq::Placement;

/// Layers with one layout.
#[derive(Debug, Clone)]
pub struct Group {
    geometry: Geometry,
    memory: Option<Region>,
    own_group: u32,
}

impl Group {
    /// A group in `memory`, if the cache is told where that is. `own_group` is its number among those with blocks of their own,
    /// or [`NONE`].
    pub fn new(geometry: Geometry, memory: Option<Region>, own_group: u32) -> Result<Self> {
        if let Some(has) = memory.as_ref().map(Region::bytes).filter(|has| *has < geometry.bytes()) {
            crate::bail!(NMC_ERR_INVALID_ARG, "it has {has} bytes of memory and needs {}", geometry.bytes());
        }
        // What lies behind it is none of its own.
        let memory = memory.map(|memory| memory.first(geometry.bytes()));
        Ok(Self { geometry, memory, own_group })
    }

    /// Where things lie in it.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Where it lies, if the cache was told.
    #[must_use]
    pub const fn memory(&self) -> Option<&Region> {
        self.memory.as_ref()
    }

    /// Its number among those with blocks of their own, or [`NONE`].
    #[must_use]
    pub const fn own_group(&self) -> u32 {
        self.own_group
    }

    /// The address of bytes at an offset of the arena.
    #[inline]
    pub(in crate::kv) fn address(&self, offset: u64, bytes: u64) -> Result<u64> {
        match &self.memory {
            Some(memory) => memory.address(offset, bytes),
            None => crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know the memory of a group: set it"),
        }
    }

    /// These bytes, for a store.
    #[inline]
    pub(in crate::kv) fn slice(&self, offset: u64, bytes: u64) -> Result<crate::store::copy::Slice> {
        match &self.memory {
            Some(memory) => memory.slice(offset, bytes),
            None => crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know the memory of a group: set it"),
        }
    }

    /// The first address; 0 if the cache was not told, so that addresses are offsets.
    fn base(&self) -> u64 {
        self.memory.as_ref().map_or(0, Region::base)
    }
}

/// Part of a tensor of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqView {
    /// Address and shape; the address is the offset in the arena if the cache was not told where that is.
    pub view: View,
    /// Whether `view` is the sequence's own blocks, in order; if not it is all blocks of the layer, and the block table
    /// tells which are the sequence's.
    pub contiguous: bool,
}

/// The groups of a cache.
#[derive(Debug, Clone, Default)]
pub struct Arena {
    groups: Vec<Group>,
}

impl Arena {
    /// The groups; those without blocks of their own have equally many.
    #[must_use]
    pub const fn new(groups: Vec<Group>) -> Self {
        Self { groups }
    }

    /// The same groups again.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self { groups: memory::collect(self.groups.iter().cloned())? })
    }

    /// Bytes of all groups.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.geometry.bytes()).sum()
    }

    /// Bytes that a block takes in all groups that share block numbers.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.of(NONE).map(|group| group.geometry.block_bytes()).sum()
    }

    /// The groups that have the blocks of `own_group`, or with [`NONE`] those of the cache.
    pub(in crate::kv) fn of(&self, own_group: u32) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| group.own_group == own_group)
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// One group.
    pub fn group(&self, number: u32) -> Result<&Group> {
        let Some(group) = self.groups.get(number as usize) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "group {number} does not exist; there are {}", self.groups.len());
        };
        Ok(group)
    }

    /// K or V of a sequence in one layer.
    pub fn view(&self, cache: &Cache, id: u64, group: u32, layer: u32, side: Side) -> Result<SeqView> {
        let group = self.group(group)?;
        cache.read(id, |seq| {
            let count = u32::try_from(seq.blocks.len()).unwrap_or(u32::MAX);
            let run = if seq.placement == Placement::Run { seq.run() } else { None };
            let mut view = match run {
                Some(first) => group.geometry.run_view(layer, side, first, count)?,
                None => group.geometry.layer_view(layer, side)?,
            };
            view.offset += group.base();
            Ok(SeqView { view, contiguous: run.is_some() })
        })
    }

    /// The number of a group among those with blocks of their own, or [`NONE`]. A cache without groups has the blocks of group 0.
    pub fn own_group(&self, group: u32) -> Result<u32> {
        if group == 0 && self.groups.is_empty() {
            return Ok(NONE);
        }
        Ok(self.group(group)?.own_group)
    }

    /// The group with this number among those with blocks of their own.
    #[must_use]
    pub fn group_of(&self, own_group: u32) -> u32 {
        let found = self.groups.iter().position(|group| group.own_group == own_group && own_group != NONE);
        found.and_then(|at| u32::try_from(at).ok()).unwrap_or(NONE)
    }

    /// The address of one token's vector.
    pub fn address(&self, cache: &Cache, id: u64, token: u32, group: u32, at: (u32, Side, u32)) -> Result<u64> {
        let group = self.group(group)?;
        let (layer, side, head) = at;
        cache.read(id, |seq| {
            if token >= seq.tokens {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "sequence {id} has {} tokens, there is no number {token}",
                    seq.tokens
                );
            }
            let (number, place) = group.geometry.locate(u64::from(token));
            let blocks = used_blocks(cache, seq, group.own_group)?.0;
            let block = usize::try_from(number).ok().and_then(|number| blocks.get(number)).copied();
            let Some(block) = block.filter(|block| *block != NONE) else {
                crate::bail!(NMC_ERR_STALE, "token {token} of sequence {id} is in a block that was dropped");
            };
            group.geometry.check(layer, side, block, 1)?;
            let heads = group.geometry.layer_view(layer, side)?.shape[1];
            if u64::from(head) >= heads {
                crate::bail!(NMC_ERR_INVALID_ARG, "head {head} does not exist; there are {heads}");
            }
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            Ok(group.base() + group.geometry.offset(layer, side, block, head, place, 0))
        })
    }
}
