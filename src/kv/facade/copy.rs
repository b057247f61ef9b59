//! Blocks are copied where they lie, into contiguous memory and back, on the host or on a stream; and what sequences wait for
//! to be copied.

use super::{Kv, NO_ADDRESS};
use crate::base::error::Result;
use crate::base::memory;
use crate::cuda::GivenStream;
use crate::kv::block::NONE;
use crate::kv::place::arena::Group;
use crate::kv::place::mapped::Mapped;
use crate::kv::place::{Memory, Move, Region};
use crate::kv::seq::BlockCopy;
use crate::kv::transfer::{Located, Locations, Way};
use std::collections::BTreeMap;
use std::sync::Arc;

/// In place of a group: all that share the blocks of the cache.
pub const GROUPS_ALL: u32 = u32::MAX;

/// One block is copied to another of the same group, or of all with [`GROUPS_ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCopy {
    /// The group.
    pub group: u32,
    /// The block to read.
    pub from: i32,
    /// The block to write.
    pub to: i32,
}

/// The copies that a sequence waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copies {
    /// Of blocks, in a paged cache.
    Blocks(Vec<BlockCopy>),
    /// Of bytes, in a virtual one.
    Bytes(Vec<Move>),
}

/// One copy to make.
#[derive(Debug, Clone)]
pub enum SeqCopy {
    /// Of a block, in a paged cache.
    Block(GroupCopy),
    /// Of the bytes of one region to those of another, in a virtual cache.
    Bytes {
        /// Where they are.
        from: Region,
        /// Where they go.
        to: Region,
    },
}

impl Kv {
    /// The copies that a sequence waits for, each of which is told once. More than `most` stay: then it is their number.
    pub fn take_copies(&self, id: u64, most: usize) -> Result<std::result::Result<Copies, usize>> {
        Ok(match &self.memory {
            Memory::Paged(_) => self.cache.take_plan(id, most)?.map(Copies::Blocks),
            Memory::Virtual(mapped) => mapped.take_moves(&self.cache, id, most)?.map(Copies::Bytes),
        })
    }

    /// The groups that a call is for, and where they lie.
    fn groups_at(&self, group: u32, call: &str) -> Result<(Vec<&Group>, &Located)> {
        let arena = self.memory.paged(call, NO_ADDRESS)?;
        let all = arena.groups();
        let one = if group == GROUPS_ALL { None } else { Some(arena.group(group)?) };
        let chosen = || {
            let number = |at: u32| one.map_or(at, |_| group);
            let some = one.map_or(all, std::slice::from_ref);
            (0..).map(number).zip(some).filter(move |(_, group)| one.is_some() || group.own_group() == NONE)
        };
        let locations = self.locations.get_or_try_init(|| Locations::find(all))?;
        let located = locations.common(chosen().map(|(number, _)| number))?;
        Ok((memory::collect(chosen().map(|(_, group)| group))?, located))
    }

    /// Copies blocks of a group, or of all with [`GROUPS_ALL`], one after the other into contiguous memory, in the form in which a
    /// store keeps them.
    pub fn gather(&self, group: u32, blocks: &[i32], to: &Region, stream: GivenStream) -> Result<()> {
        let (groups, located) = self.groups_at(group, "nmc_kv_gather")?;
        located.pack(Way::Gather, &groups, blocks, to, stream)
    }

    /// The reverse.
    pub fn scatter(&self, group: u32, blocks: &[i32], from: &Region, stream: GivenStream) -> Result<()> {
        let (groups, located) = self.groups_at(group, "nmc_kv_scatter")?;
        located.pack(Way::Scatter, &groups, blocks, from, stream)
    }

    /// Makes copies. In a paged cache they are made in no order: a block that is written must not be read or written by another
    /// of them. In a virtual one they are made one after the other.
    pub fn copy_blocks(&self, copies: impl Iterator<Item = SeqCopy>, stream: GivenStream) -> Result<()> {
        if let Memory::Virtual(mapped) = &self.memory {
            return copy_bytes(mapped, copies, stream);
        }
        let mut by_group: BTreeMap<u32, Vec<[i32; 2]>> = BTreeMap::new();
        for copy in copies {
            let SeqCopy::Block(GroupCopy { group, from, to }) = copy else {
                crate::bail!(NMC_ERR_UNSUPPORTED, "a copy of bytes is for NMC_KV_VIRTUAL; a paged cache copies blocks");
            };
            memory::push(by_group.entry(group).or_default(), [from, to])?;
        }
        let call = "nmc_kv_copy_blocks";
        if by_group.is_empty() {
            // Only what a first call does, for every group.
            let arena = self.memory.paged(call, NO_ADDRESS)?;
            by_group.extend((0..).zip(arena.groups()).map(|(number, _)| (number, Vec::new())));
        }
        if by_group.is_empty() {
            by_group.insert(GROUPS_ALL, Vec::new());
        }
        for (group, pairs) in &by_group {
            let (groups, located) = self.groups_at(*group, call)?;
            // A group that has the blocks of the cache is also one of all.
            let is_one_of_all = *group != GROUPS_ALL && groups.iter().all(|group| group.own_group() == NONE);
            let all = by_group.get(&GROUPS_ALL).filter(|_| is_one_of_all).into_iter().flatten();
            let together = memory::collect(pairs.iter().chain(all).copied())?;
            located.check_copies(&groups, &together, stream)?;
        }
        for (group, pairs) in &by_group {
            let (groups, located) = self.groups_at(*group, call)?;
            located.copy_blocks(&groups, pairs, stream)?;
        }
        Ok(())
    }
}

fn copy_bytes(mapped: &Mapped, copies: impl Iterator<Item = SeqCopy>, stream: GivenStream) -> Result<()> {
    let located = mapped.device().map_or(Located::Host, |device| Located::Device(Arc::clone(device)));
    located.check_stream(stream)?;
    for copy in copies {
        let SeqCopy::Bytes { from, to } = copy else {
            crate::bail!(NMC_ERR_UNSUPPORTED, "a copy of blocks is not for NMC_KV_VIRTUAL: {NO_ADDRESS}");
        };
        located.copy_region(&from, &to, stream)?;
    }
    Ok(())
}
