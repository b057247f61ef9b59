//! A caller's `nmc_kv_config_t`, checked.

use super::common::*;
use super::config::InStructs;
use super::kv::bytes;
use super::kv_types::*;
use super::world_types::{NMC_HEAP_CUDA, NMC_HEAP_HOST};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::kv::evict::Kind as Evict;
use crate::kv::hash::{Algo, Chain, Key};
use crate::kv::place::Region;
use crate::kv::place::geometry::{Dtype, Kind, Order, Shape, Sides};
use crate::kv::{Config, GroupSpec, MAX_TOKENS, MappedSpec, OwnGroup, OwnKind, Spec, WhenFull};

/// A sliding window in tokens.
fn parse_window(window: u64) -> Result<u32> {
    match u32::try_from(window) {
        Ok(window) if window <= MAX_TOKENS => Ok(window),
        _ => {
            crate::bail!(NMC_ERR_INVALID_ARG, "window {window} is more than a sequence can have ({MAX_TOKENS} tokens)")
        }
    }
}

/// The blocks of a group that has its own.
fn parse_own(group: &nmc_kv_group_t) -> Result<Option<OwnGroup>> {
    let recurrent = group.kind == NMC_KV_KIND_RECURRENT;
    if !recurrent && (group.state_bytes != 0 || group.state_every != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "state_bytes and state_every are for NMC_KV_KIND_RECURRENT");
    }
    let kind = match (recurrent, group.window) {
        (true, 0) => OwnKind::State { every: group.state_every },
        (true, window) => crate::bail!(NMC_ERR_INVALID_ARG, "window {window}: a recurrent state has none"),
        (false, 0) if group.blocks == 0 => return Ok(None),
        (false, 0) => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "blocks {} is for groups with a window or a recurrent state; others have the blocks of the cache",
            group.blocks
        ),
        (false, window) => OwnKind::Window(parse_window(window)?),
    };
    if group.blocks == 0 || group.blocks > i32::MAX.unsigned_abs() {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "blocks {} is not in 1..=2147483647; a group with a window or a recurrent state has blocks of its own",
            group.blocks
        );
    }
    Ok(Some(OwnGroup { blocks: group.blocks, kind }))
}

/// The layout of a group. The numbers of tokens and blocks are those of the cache.
fn parse_shape(group: &nmc_kv_group_t) -> Result<Shape> {
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
    if group.reserved0 != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field of nmc_kv_group_t is not zero");
    }
    let nmc_kv_group_t { layers, kv_heads, head_dim, .. } = *group;
    Ok(Shape { kind, dtype, layers, kv_heads, head_dim, tokens_per_block: 0, total_blocks: 0, order, sides })
}

/// The fields that are about virtual placement.
fn parse_mapped(c: &nmc_kv_config_t) -> Result<Option<MappedSpec>> {
    if c.flags & NMC_KV_VIRTUAL == 0 {
        if c.max_sequence_tokens != 0 || c.heap_kind == NMC_HEAP_CUDA {
            crate::bail!(NMC_ERR_INVALID_ARG, "max_sequence_tokens and heap_kind are for NMC_KV_VIRTUAL");
        }
        return Ok(None);
    }
    let device = match c.heap_kind {
        NMC_HEAP_HOST if c.device == -1 => None,
        NMC_HEAP_HOST => crate::bail!(NMC_ERR_INVALID_ARG, "device {} is set, but heap_kind is not CUDA", c.device),
        NMC_HEAP_CUDA => Some(c.device),
        other => crate::bail!(NMC_ERR_INVALID_ARG, "heap_kind {other} is neither host (1) nor cuda (2)"),
    };
    Ok(Some(MappedSpec { max_sequence_tokens: c.max_sequence_tokens, device }))
}

/// The spec of a cache, whose groups lie in a heap if `in_heap`.
///
/// # Safety
/// The C contract of `nmc_kv_config_t`, as long as the cache is used that is made from it.
pub(super) unsafe fn parse(c: &nmc_kv_config_t, in_heap: bool) -> Result<Spec> {
    if c.reserved0 != 0 || c.flags & !(NMC_KV_NO_PREFIX | NMC_KV_VIRTUAL) != 0 {
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
    let capacity_blocks = if c.capacity_blocks == 0 { total_blocks } else { c.capacity_blocks };
    let mapped = parse_mapped(c)?;
    if c.n_groups > 1024 {
        crate::bail!(NMC_ERR_INVALID_ARG, "n_groups {} is more than 1024", c.n_groups);
    }
    if !in_heap && c.heap_offset != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "heap_offset {} is set, but there is no world", c.heap_offset);
    }
    // SAFETY: the C contract of `groups`.
    let given = unsafe { InStructs::new(c.groups, c.n_groups, "groups") }?;
    let mut groups = memory::with_capacity(c.n_groups)?;
    for (number, group) in given.iter().enumerate() {
        let context = |error: Error| error.context(format!("group {number}"));
        let group = group?;
        let own = parse_own(&group).map_err(context)?;
        let shape = parse_shape(&group).map_err(context)?;
        // Where there can be none, a size alone is refused as well.
        let has_memory = !group.memory.is_null() || group.memory_bytes != 0 && (in_heap || mapped.is_some());
        // SAFETY: the C contract of `memory`: the program keeps it until the cache is destroyed.
        let memory = has_memory.then(|| unsafe { Region::new(group.memory as u64, group.memory_bytes) });
        groups.push(GroupSpec { shape, own, memory });
    }
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
        eviction,
        when_full,
        prefix: c.flags & NMC_KV_NO_PREFIX == 0,
        chain: Chain::new(algo, &Key::from_secret(secret)),
        window: parse_window(c.window)?,
        events: c.event_capacity,
        own_groups: Vec::new(),
    };
    Ok(Spec { config, capacity_blocks, groups, mapped })
}
