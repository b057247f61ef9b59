//! A caller's `nmc_kv_config_t`, checked.

use super::arg::array;
use super::blocks::{NMC_BLOCKS_BEST, NMC_BLOCKS_BUDDY, NMC_BLOCKS_SIZE_CLASS};
use super::common::*;
use super::config;
use super::kv::bytes;
use super::kv_types::*;
use super::kv_virtual::{self, Wanted};
use super::world::nmc_world_t;
use crate::alloc::blocks::Strategy;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::kv::NONE;
use crate::kv::evict::Kind as Evict;
use crate::kv::geometry::{Dtype, Geometry, Kind, Order, Shape, Sides};
use crate::kv::hash::{Algo, Chain, Key};
use crate::kv::types::{Config, SideConfig, SideKind, WhenFull};

/// What a group is in a cache, if it has blocks of its own.
fn parse_side(group: &nmc_kv_group_t) -> Result<Option<SideConfig>> {
    let recurrent = group.kind == NMC_KV_KIND_RECURRENT;
    if !recurrent && (group.state_bytes != 0 || group.state_every != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "state_bytes and state_every are for NMC_KV_KIND_RECURRENT");
    }
    let kind = match (recurrent, group.window) {
        (true, 0) => SideKind::State { every: group.state_every },
        (true, window) => crate::bail!(NMC_ERR_INVALID_ARG, "window {window}: a recurrent state has none"),
        (false, 0) if group.blocks == 0 => return Ok(None),
        (false, 0) => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "blocks {} is for groups with a window or a recurrent state; others have the blocks of the cache",
            group.blocks
        ),
        (false, window) => SideKind::Window(window),
    };
    if group.blocks == 0 || group.blocks > i32::MAX.unsigned_abs() {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "blocks {} is not in 1..=2147483647; a group with a window or a recurrent state has blocks of its own",
            group.blocks
        );
    }
    Ok(Some(SideConfig { blocks: group.blocks, kind }))
}

fn parse_group(group: &nmc_kv_group_t, tokens_per_block: u32, blocks: u32) -> Result<Geometry> {
    let kind = match group.kind {
        NMC_KV_KIND_ATTENTION => Kind::Full,
        NMC_KV_KIND_MLA => Kind::Mla,
        NMC_KV_KIND_RECURRENT => Kind::Recurrent { state_bytes: group.state_bytes },
        other => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "kind {other} is none of NMC_KV_KIND_ATTENTION, NMC_KV_KIND_MLA, NMC_KV_KIND_RECURRENT"
        ),
    };
    let dtype = match group.dtype {
        NMC_DTYPE_FP32 => Dtype::Fp32,
        NMC_DTYPE_BF16 => Dtype::Bf16,
        NMC_DTYPE_FP16 => Dtype::Fp16,
        NMC_DTYPE_FP8 => Dtype::Fp8,
        NMC_DTYPE_INT8 => Dtype::Int8,
        NMC_DTYPE_RAW => Dtype::Raw(group.element_bytes),
        other => crate::bail!(NMC_ERR_INVALID_ARG, "dtype {other} is none of NMC_DTYPE_FP32, ..., NMC_DTYPE_RAW"),
    };
    if group.dtype != NMC_DTYPE_RAW && group.element_bytes != 0 {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "element_bytes {} is set, but dtype is not NMC_DTYPE_RAW",
            group.element_bytes
        );
    }
    let order = match group.order {
        NMC_KV_LAYER_MAJOR => Order::LayerMajor,
        NMC_KV_HEAD_MAJOR => Order::HeadMajor,
        NMC_KV_LAYER_MAJOR_NHD => Order::LayerMajorNhd,
        NMC_KV_BLOCK_MAJOR => Order::BlockMajor,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "order {other} is none of NMC_KV_LAYER_MAJOR, ..."),
    };
    let sides = match group.sides {
        NMC_KV_SIDES_SEPARATE => Sides::Separate,
        NMC_KV_SIDES_PER_LAYER => Sides::PerLayer,
        NMC_KV_SIDES_PER_BLOCK => Sides::PerBlock,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "sides {other} is none of NMC_KV_SIDES_*"),
    };
    if group.reserved != [0; 2] || group.reserved0 != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field of nmc_kv_group_t is not zero");
    }
    let (layers, kv_heads, head_dim, total_blocks) = (group.layers, group.kv_heads, group.head_dim, u64::from(blocks));
    Geometry::new(Shape { kind, dtype, layers, kv_heads, head_dim, tokens_per_block, total_blocks, order, sides })
}

/// A group of a config, checked.
pub(super) struct Given {
    pub geometry: Geometry,
    pub group: nmc_kv_group_t,
    /// The side of the cache that it is, or [`NONE`].
    pub side: u32,
}

/// The caller's config, checked, with the geometry of each group.
pub(super) struct Parsed {
    pub config: Config,
    pub capacity: u32,
    pub groups: Vec<Given>,
    pub wanted: Option<Wanted>,
    pub heap: Option<Heap>,
}

/// Where the groups lie in the heap of a rank.
pub(super) struct Heap {
    pub world: *mut nmc_world_t,
    pub offset: u64,
    pub bytes: u64,
    /// Of each group.
    pub offsets: Vec<u64>,
}

/// What groups in a heap begin at a multiple of.
const HEAP_ALIGN: u64 = 4096;

fn heap_of(c: &nmc_kv_config_t, groups: &[Given]) -> Result<Option<Heap>> {
    if c.world.is_null() {
        if c.heap_offset != 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "heap_offset {} is set, but there is no world", c.heap_offset);
        }
        return Ok(None);
    }
    if c.flags & NMC_KV_VIRTUAL != 0 {
        crate::bail!(NMC_ERR_UNSUPPORTED, "with NMC_KV_VIRTUAL the library maps memory of its own, not a world's heap");
    }
    if !c.heap_offset.is_multiple_of(HEAP_ALIGN) || groups.is_empty() {
        let offset = c.heap_offset;
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "heap_offset {offset} is not a multiple of {HEAP_ALIGN}, or there are no groups"
        );
    }
    let (mut end, mut offsets) = (Some(c.heap_offset), memory::with_capacity(groups.len())?);
    for (number, Given { geometry, group, .. }) in groups.iter().enumerate() {
        if !group.memory.is_null() || group.memory_bytes != 0 {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "group {number} has memory, and a world is given: it can lie in one of them"
            );
        }
        let start = end.and_then(|end| end.checked_next_multiple_of(HEAP_ALIGN));
        offsets.extend(start);
        end = start.and_then(|start| start.checked_add(geometry.bytes()));
    }
    let Some(end) = end else {
        crate::bail!(NMC_ERR_INVALID_ARG, "heap_offset {} and the groups pass 2^64 bytes", c.heap_offset);
    };
    Ok(Some(Heap { world: c.world, offset: c.heap_offset, bytes: end - c.heap_offset, offsets }))
}

/// What the groups of a config take in a heap, also if its world is not known yet.
///
/// # Safety
/// The C contract of `nmc_kv_config_t`.
pub(super) unsafe fn heap_bytes(config: *const nmc_kv_config_t) -> Result<u64> {
    // SAFETY: the C contract of `config`.
    let mut c: nmc_kv_config_t = unsafe { config::read(config) }?;
    if c.world.is_null() {
        // Any that is not NULL: it is only looked at by those who use it.
        c.world = std::ptr::dangling_mut();
    }
    // SAFETY: as the caller promises; `c` is a copy of it.
    let heap = unsafe { parse(&raw const c) }?.heap;
    Ok(heap.map_or(0, |heap| heap.bytes))
}

/// # Safety
/// The C contract of `nmc_kv_config_t`.
pub(super) unsafe fn parse(config: *const nmc_kv_config_t) -> Result<Parsed> {
    // SAFETY: the C contract of `config`.
    let c = unsafe { config::read(config) }?;
    if c.reserved1 != 0 || c.flags & !(NMC_KV_NO_PREFIX | NMC_KV_VIRTUAL) != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field or an unknown flag of nmc_kv_config_t is not zero");
    }
    if c.tokens_per_block == 0 || c.tokens_per_block > 1 << 20 {
        crate::bail!(NMC_ERR_INVALID_ARG, "tokens_per_block {} is not in 1..=1048576", c.tokens_per_block);
    }
    let wanted = match (c.total_blocks, c.max_total_tokens) {
        (0, 0) => crate::bail!(NMC_ERR_INVALID_ARG, "total_blocks or max_total_tokens must be set"),
        (0, tokens) => tokens.div_ceil(u64::from(c.tokens_per_block)),
        (blocks, 0) => u64::from(blocks),
        _ => crate::bail!(NMC_ERR_INVALID_ARG, "total_blocks and max_total_tokens cannot both be set"),
    };
    let Some(total_blocks) = u32::try_from(wanted).ok().filter(|blocks| *blocks <= i32::MAX.unsigned_abs()) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "{wanted} blocks are more than 2147483647");
    };
    let capacity = if c.capacity_blocks == 0 { total_blocks } else { c.capacity_blocks };
    if capacity < total_blocks || capacity > i32::MAX.unsigned_abs() {
        crate::bail!(NMC_ERR_INVALID_ARG, "capacity_blocks {capacity} is not in {total_blocks}..=2147483647");
    }
    let wanted = kv_virtual::wanted(&c, total_blocks, capacity)?;
    if c.n_groups > 1024 {
        crate::bail!(NMC_ERR_INVALID_ARG, "n_groups {} is more than 1024", c.n_groups);
    }
    // SAFETY: the C contract of `groups`.
    let given = unsafe { array(c.groups, c.n_groups as usize, "groups") }?;
    let (mut groups, mut sides) = (memory::with_capacity(given.len())?, memory::with_capacity(given.len())?);
    for (number, group) in given.iter().enumerate() {
        let context = |error: Error| error.context(format!("group {number}"));
        let own = parse_side(group).map_err(context)?;
        if own.is_some() && wanted.is_some() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "group {number} has blocks of its own, and NMC_KV_VIRTUAL maps all alike"
            );
        }
        let shared = wanted.as_ref().map_or(capacity, Wanted::places);
        let blocks = own.map_or(shared, |own| own.blocks);
        let geometry = parse_group(group, c.tokens_per_block, blocks).map_err(context)?;
        let side = if own.is_some() { u32::try_from(sides.len()).unwrap_or(NONE) } else { NONE };
        sides.extend(own);
        groups.push(Given { geometry, group: *group, side });
    }
    let heap = heap_of(&c, &groups)?;
    let strategy = match c.strategy {
        NMC_BLOCKS_BEST => Strategy::DEFAULT,
        NMC_BLOCKS_SIZE_CLASS => Strategy::SizeClass,
        NMC_BLOCKS_BUDDY => Strategy::Buddy,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "strategy {other} is none of NMC_BLOCKS_*"),
    };
    let eviction = match c.eviction {
        NMC_EVICT_LRU => Evict::Lru,
        NMC_EVICT_LFU => Evict::Lfu,
        NMC_EVICT_FIFO => Evict::Fifo,
        NMC_EVICT_S3FIFO => Evict::S3Fifo,
        NMC_EVICT_PRIORITY => Evict::Priority,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "eviction {other} is none of NMC_EVICT_*"),
    };
    let when_full = match c.when_full {
        NMC_KV_WHEN_FULL_REJECT => WhenFull::Reject,
        NMC_KV_WHEN_FULL_SHORTEN => WhenFull::Shorten,
        NMC_KV_WHEN_FULL_EVICT_SEQUENCE => WhenFull::EvictSequence,
        NMC_KV_WHEN_FULL_MOVE_SEQUENCE => WhenFull::MoveSequence,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "when_full {other} is none of NMC_KV_WHEN_FULL_*"),
    };
    let algo = match c.hash {
        NMC_KV_HASH_BLAKE3 => Algo::Blake3,
        NMC_KV_HASH_SHA256 => Algo::Sha256,
        NMC_KV_HASH_XXH3 => Algo::Xxh3,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "hash {other} is none of NMC_KV_HASH_*"),
    };
    // SAFETY: the C contract of `hash_secret`.
    let secret = unsafe { bytes(c.hash_secret, 4096, "hash_secret") }?;
    let config = Config {
        total_blocks,
        tokens_per_block: c.tokens_per_block,
        max_sequences: if c.max_sequences == 0 { (total_blocks / 8).clamp(1024, 65_536) } else { c.max_sequences },
        strategy,
        eviction,
        when_full,
        prefix: c.flags & NMC_KV_NO_PREFIX == 0,
        chain: Chain::new(algo, &Key::from_secret(secret)),
        window: c.window,
        events: c.event_capacity,
        sides,
    };
    Ok(Parsed { config, capacity, groups, wanted, heap })
}
