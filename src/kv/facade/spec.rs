//! What a KV cache is made from, checked: the config of the cache, its groups of layers, and where they lie.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::cuda::Device;
use crate::kv::block::NONE;
use crate::kv::cache::Cache;
use crate::kv::config::Config;
use crate::kv::groups::OwnGroup;
use crate::kv::place::Region;
use crate::kv::place::arena::{Arena, Group};
use crate::kv::place::geometry::{Geometry, Shape};
use crate::kv::place::mapped::{Mapped, page_tokens};
use crate::kv::seq::MAX_TOKENS;
use crate::mem::PagePool;
use crate::world::World;
use std::sync::Arc;

/// What groups in a heap begin at a multiple of.
const HEAP_ALIGN: u64 = 4096;

/// What a KV cache is made from.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The cache. Its `own_groups` are taken from `groups`.
    pub config: Config,
    /// Blocks that it can be resized to: `config.total_blocks` or more.
    pub capacity_blocks: u32,
    /// The layers; none for a cache that only counts.
    pub groups: Vec<GroupSpec>,
    /// For virtual sequences, in memory of the library's own.
    pub mapped: Option<MappedSpec>,
}

/// Layers with one layout.
#[derive(Debug, Clone)]
pub struct GroupSpec {
    /// Its layout. `tokens_per_block` and `total_blocks` are those of the cache, or of `own`.
    pub shape: Shape,
    /// If it has blocks of its own.
    pub own: Option<OwnGroup>,
    /// Where it lies, if the cache is to know.
    pub memory: Option<Region>,
}

/// How virtual sequences are placed.
#[derive(Debug, Clone, Copy)]
pub struct MappedSpec {
    /// Tokens of a sequence at most; 0 for as many as there are.
    pub max_sequence_tokens: u64,
    /// The ordinal, for device memory.
    pub device: Option<i32>,
}

/// A group of a [`Spec`], laid out.
pub(super) struct LaidOut {
    pub geometry: Geometry,
    /// Its number among those with blocks of their own, or [`NONE`].
    pub own_group: u32,
}

/// Where groups lie in a heap.
pub(super) struct HeapLayout {
    pub bytes: u64,
    /// Of each group, in the heap.
    pub offsets: Vec<u64>,
}

impl Spec {
    /// Tokens of a virtual sequence at most.
    pub(super) fn sequence_limit(&self, mapped: MappedSpec) -> u32 {
        let all = u64::from(self.config.total_blocks) * u64::from(self.config.tokens_per_block);
        let limit = if mapped.max_sequence_tokens == 0 { all } else { mapped.max_sequence_tokens };
        u32::try_from(limit.min(u64::from(MAX_TOKENS))).unwrap_or(MAX_TOKENS)
    }

    /// Blocks of a group without its own: of the arena, or of the addresses of one sequence, which have one more for copies.
    fn shared_blocks(&self) -> u32 {
        match self.mapped {
            None => self.capacity_blocks,
            Some(mapped) => self.sequence_limit(mapped).div_ceil(self.config.tokens_per_block) + 1,
        }
    }

    /// Checks the numbers and lays the groups out.
    pub(super) fn lay_out(&self) -> Result<Vec<LaidOut>> {
        let Config { total_blocks, tokens_per_block, .. } = self.config;
        self.config.check()?;
        let capacity = self.capacity_blocks;
        if capacity < total_blocks || capacity > i32::MAX.unsigned_abs() {
            crate::bail!(NMC_ERR_INVALID_ARG, "capacity_blocks {capacity} is not in {total_blocks}..=2147483647");
        }
        if self.mapped.is_some() && capacity != total_blocks {
            crate::bail!(NMC_ERR_UNSUPPORTED, "capacity_blocks {capacity}: a virtual cache is not resized");
        }
        let (mut groups, mut own_groups) = (memory::with_capacity(self.groups.len())?, 0);
        for (number, group) in self.groups.iter().enumerate() {
            if group.own.is_some() && self.mapped.is_some() {
                crate::bail!(
                    NMC_ERR_UNSUPPORTED,
                    "group {number} has blocks of its own, and NMC_KV_VIRTUAL maps all alike"
                );
            }
            let blocks = group.own.map_or_else(|| self.shared_blocks(), |own| own.blocks);
            let shape = Shape { tokens_per_block, total_blocks: u64::from(blocks), ..group.shape };
            let geometry = Geometry::new(shape).map_err(|error| error.context(format!("group {number}")))?;
            let own_group = if group.own.is_some() { own_groups } else { NONE };
            own_groups += u32::from(group.own.is_some());
            groups.push(LaidOut { geometry, own_group });
        }
        Ok(groups)
    }

    /// Bytes of memory that a group needs.
    pub fn group_bytes(&self, group: u32) -> Result<u64> {
        let laid_out = self.lay_out()?;
        let Some(LaidOut { geometry, own_group }) = laid_out.get(group as usize) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "group {group} does not exist; there are {}", laid_out.len());
        };
        let blocks = if *own_group == NONE { u64::from(self.capacity_blocks) } else { geometry.shape().total_blocks };
        let bytes = geometry.block_bytes().checked_mul(blocks);
        bytes.ok_or_else(|| {
            Error::new(NMC_ERR_INVALID_ARG, format!("{blocks} blocks of {} bytes are too many", geometry.block_bytes()))
        })
    }

    /// Bytes that the groups take in a heap from `offset` on.
    pub fn heap_bytes(&self, offset: u64) -> Result<u64> {
        Ok(self.heap_layout(&self.lay_out()?, offset)?.bytes)
    }

    pub(super) fn heap_layout(&self, groups: &[LaidOut], offset: u64) -> Result<HeapLayout> {
        if self.mapped.is_some() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "with NMC_KV_VIRTUAL the library maps memory of its own, not a world's heap"
            );
        }
        if !offset.is_multiple_of(HEAP_ALIGN) || groups.is_empty() {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "heap_offset {offset} is not a multiple of {HEAP_ALIGN}, or there are no groups"
            );
        }
        if let Some(number) = self.groups.iter().position(|group| group.memory.is_some()) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "group {number} has memory, and a world is given: it can lie in one of them"
            );
        }
        let (mut end, mut offsets) = (Some(offset), memory::with_capacity(groups.len())?);
        for LaidOut { geometry, .. } in groups {
            let start = end.and_then(|end| end.checked_next_multiple_of(HEAP_ALIGN));
            offsets.extend(start);
            end = start.and_then(|start| start.checked_add(geometry.bytes()));
        }
        let Some(end) = end else {
            crate::bail!(NMC_ERR_INVALID_ARG, "heap_offset {offset} and the groups pass 2^64 bytes");
        };
        Ok(HeapLayout { bytes: end - offset, offsets })
    }

    /// The smallest number of tokens in a block with which the pages of virtual sequences are whole pages; its multiples are as
    /// good. What the config says about it does not matter.
    pub fn page_tokens(&self) -> Result<u64> {
        let Some(mapped) = self.mapped else {
            crate::bail!(NMC_ERR_INVALID_ARG, "pages are for NMC_KV_VIRTUAL, which is not among the flags");
        };
        let geometries: Vec<Geometry> = memory::collect(self.lay_out()?.iter().map(|group| group.geometry))?;
        Ok(page_tokens(&geometries, PagePool::granularity(mapped.open_device()?.as_ref())?))
    }

    /// A cache with all blocks free.
    pub(super) fn cache(&self) -> Result<Cache> {
        let own_groups = memory::collect(self.groups.iter().filter_map(|group| group.own))?;
        Cache::new(Config { own_groups, ..self.config.clone() })
    }

    /// Gets memory for the pages of virtual sequences.
    pub(super) fn map(&self, spec: MappedSpec, groups: &[LaidOut], cache: &Cache) -> Result<Mapped> {
        if self.config.window > 0 {
            crate::bail!(NMC_ERR_UNSUPPORTED, "a virtual cache has no sliding window; use a paged one");
        }
        if groups.is_empty() {
            crate::bail!(NMC_ERR_INVALID_ARG, "with NMC_KV_VIRTUAL there must be at least one group");
        }
        if let Some(number) = self.groups.iter().position(|group| group.memory.is_some()) {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "group {number} has memory, which cannot be mapped anew; with NMC_KV_VIRTUAL the library owns it"
            );
        }
        let geometries: Vec<Geometry> = memory::collect(groups.iter().map(|group| group.geometry))?;
        Mapped::new(cache, &geometries, self.sequence_limit(spec), spec.open_device()?.as_ref())
    }

    /// The groups in memory of the program's.
    pub(super) fn arena(&self, groups: &[LaidOut]) -> Result<Arena> {
        for (number, (LaidOut { geometry, .. }, group)) in groups.iter().zip(&self.groups).enumerate() {
            if let Some(has) = group.memory.as_ref().map(Region::bytes).filter(|has| *has < geometry.bytes()) {
                let needs = geometry.bytes();
                crate::bail!(NMC_ERR_INVALID_ARG, "group {number} has {has} bytes of memory and needs {needs}");
            }
        }
        let group = |(laid_out, spec): (&LaidOut, &GroupSpec)| {
            Group::new(laid_out.geometry, spec.memory.clone(), laid_out.own_group)
        };
        Ok(Arena::new(memory::try_collect(groups.iter().zip(&self.groups).map(group))?))
    }

    /// The groups in the caller's heap of a world, from `offset` on.
    pub(super) fn arena_in_heap(groups: &[LaidOut], heap: &HeapLayout, world: &World, offset: u64) -> Result<Arena> {
        // All of it at once, for the message.
        world.ptr(world.rank(), offset, heap.bytes)?;
        let member = Arc::new(world.membership("KV cache")?);
        let group = |(laid_out, offset): (&LaidOut, &u64)| {
            let region = Region::of_heap(world, &member, *offset, laid_out.geometry.bytes())?;
            Group::new(laid_out.geometry, Some(region), laid_out.own_group)
        };
        Ok(Arena::new(memory::try_collect(groups.iter().zip(&heap.offsets).map(group))?))
    }
}

impl MappedSpec {
    pub(super) fn open_device(self) -> Result<Option<Arc<Device>>> {
        self.device.map(Device::open).transpose()
    }
}
