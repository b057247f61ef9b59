//! The memory of the blocks: one or more groups of layers, each with its own layout and address. A block has the same
//! number in every group, except those that are a side of the cache and number their own. Addresses are numbers here;
//! nothing is read or written.

use super::cache::Cache;
use super::geometry::{Geometry, Side, View};
use super::lists::NONE;
use super::types::Placement;
use crate::base::error::Result;
use crate::base::memory;

/// Layers with one layout.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Where things lie in it.
    pub geometry: Geometry,
    /// Address of its first byte; 0 if the cache was not told.
    pub base: u64,
    /// The side of the cache whose blocks it has, or [`NONE`].
    pub side: u32,
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
    /// The groups; those that are no side have equally many blocks.
    #[must_use]
    pub const fn new(groups: Vec<Group>) -> Self {
        Self { groups }
    }

    /// The same groups again.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self { groups: memory::copy(&self.groups)? })
    }

    /// Bytes that a block takes in all groups that share block numbers.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.of(NONE).map(|group| group.geometry.block_bytes()).sum()
    }

    /// The groups that have the blocks of a side, or with [`NONE`] those of the cache.
    pub fn of(&self, side: u32) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| group.side == side)
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
            view.offset += group.base;
            Ok(SeqView { view, contiguous: run.is_some() })
        })
    }

    /// The side of the cache that a group is, or [`NONE`]. A cache without groups has the blocks of group 0.
    pub fn side(&self, group: u32) -> Result<u32> {
        if group == 0 && self.groups.is_empty() {
            return Ok(NONE);
        }
        Ok(self.group(group)?.side)
    }

    /// The group that is this side of the cache.
    #[must_use]
    pub fn of_side(&self, side: u32) -> u32 {
        let found = self.groups.iter().position(|group| group.side == side && side != NONE);
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
            let blocks = cache.used_blocks(seq, group.side)?.0;
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
            Ok(group.base + group.geometry.offset(layer, side, block, head, place, 0))
        })
    }
}
