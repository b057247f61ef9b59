//! `nmc_kv_*` for virtual placement (`NMC_KV_VIRTUAL`): what its config means, and the calls that it alone has.

use super::arg::array_out;
use super::kv::{nmc_kv_t, with};
use super::kv_config::{Given, parse};
use super::kv_types::*;
use super::world_types::{NMC_HEAP_CUDA, NMC_HEAP_HOST};
use super::{guard, out};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::nmc_status_t;
use crate::cuda::Device;
use crate::kv::Cache;
use crate::kv::geometry::Geometry;
use crate::kv::mapped::{self, Mapped};
use crate::kv::types::MAX_TOKENS;
use crate::mem::PagePool;
use std::ffi::c_void;
use std::sync::Arc;

/// What a config says about virtual placement.
pub(super) struct Wanted {
    /// Tokens of a sequence at most.
    limit: u32,
    tokens_per_block: u32,
    /// The ordinal, for device memory.
    device: Option<i32>,
}

impl Wanted {
    /// Blocks of the addresses of one sequence.
    pub fn places(&self) -> u32 {
        self.limit.div_ceil(self.tokens_per_block) + 1
    }

    fn device(&self) -> Result<Option<Arc<Device>>> {
        self.device.map(Device::open).transpose()
    }

    pub fn make(&self, cache: &Cache, groups: &[Given]) -> Result<Mapped> {
        mapped::check(cache.config())?;
        if groups.is_empty() {
            crate::bail!(NMC_ERR_INVALID_ARG, "with NMC_KV_VIRTUAL there must be at least one group");
        }
        if let Some(number) =
            groups.iter().position(|Given { group, .. }| !group.memory.is_null() || group.memory_bytes != 0)
        {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "group {number} has memory, which cannot be mapped anew; with NMC_KV_VIRTUAL the library owns it"
            );
        }
        let geometries: Vec<Geometry> = memory::collect(groups.iter().map(|given| given.geometry))?;
        Mapped::new(cache, &geometries, self.limit, self.device()?.as_ref())
    }
}

/// Checks the fields of a config that are about virtual placement, after those that it is made of.
pub(super) fn wanted(c: &nmc_kv_config_t, total_blocks: u32, capacity: u32) -> Result<Option<Wanted>> {
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
    if capacity != total_blocks {
        crate::bail!(NMC_ERR_UNSUPPORTED, "capacity_blocks {capacity}: a virtual cache is not resized");
    }
    let all = u64::from(total_blocks) * u64::from(c.tokens_per_block);
    let limit = if c.max_sequence_tokens == 0 { all } else { u64::from(c.max_sequence_tokens) };
    let limit = u32::try_from(limit.min(u64::from(MAX_TOKENS))).unwrap_or(MAX_TOKENS);
    Ok(Some(Wanted { limit, tokens_per_block: c.tokens_per_block, device }))
}

/// Stores in `*tokens_per_block` the smallest with which the pages of a config with `NMC_KV_VIRTUAL` are whole pages of the
/// system or of the device; its multiples are as good. What the config says about it does not matter.
///
/// Does not block. Thread-safe. Not graph-safe with `NMC_HEAP_CUDA`. Statuses: `NMC_ERR_INVALID_ARG` (another number in the
/// config, or no `NMC_KV_VIRTUAL`), `NMC_ERR_VERSION`, `NMC_ERR_UNSUPPORTED` (no CUDA), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_page_tokens(
    config: *const nmc_kv_config_t,
    tokens_per_block: *mut u32,
) -> nmc_status_t {
    guard(|| {
        let slot = out(tokens_per_block, "tokens_per_block")?;
        // SAFETY: the C contract of `config`.
        let parsed = unsafe { parse(config) }?;
        let Some(wanted) = parsed.wanted else {
            crate::bail!(NMC_ERR_INVALID_ARG, "pages are for NMC_KV_VIRTUAL, which is not among the flags");
        };
        let granularity = PagePool::granularity(wanted.device()?.as_ref())?;
        let geometries: Vec<Geometry> = memory::collect(parsed.groups.iter().map(|given| given.geometry))?;
        // At most the granularity.
        slot.write(u32::try_from(mapped::page_tokens(&geometries, granularity)).unwrap_or(u32::MAX));
        Ok(())
    })
}

/// Stores the copies that a sequence of a cache with `NMC_KV_VIRTUAL` waits for, and forgets them: after `nmc_kv_fork` the
/// last block of the child if it is not full, after `nmc_kv_truncate` the last block if others share it; one piece for each
/// page, all of the same block. They must be enqueued before the next call that changes the sequence, or its parent if it was
/// forked, and be done before either is cut or closed. `*n` receives how many there are; if `capacity` is less, that is
/// all that happens. The library copies nothing itself: memcpy will do in host memory, cudaMemcpyBatchAsync or a kernel on a
/// device.
///
/// May map pages and call CUDA. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*n` was stored),
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_UNSUPPORTED` (a paged cache: see `nmc_kv_copies`), `NMC_ERR_LIMIT`,
/// `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_moves(
    kv: *mut nmc_kv_t,
    id: u64,
    moves: *mut nmc_kv_move_t,
    capacity: usize,
    n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let slot = out(n, "n")?;
        // SAFETY: the C contract of `moves`.
        let to = unsafe { array_out(moves, capacity, "moves") }?;
        with(kv, |kv| {
            let Some(mapped) = &kv.mapped else {
                crate::bail!(
                    NMC_ERR_UNSUPPORTED,
                    "nmc_kv_moves is for NMC_KV_VIRTUAL; here nmc_kv_copies has the blocks"
                );
            };
            let list = match mapped.take_moves(&kv.cache, id, capacity)? {
                Ok(list) => list,
                Err(count) => {
                    slot.write(count);
                    crate::bail!(
                        NMC_ERR_TOO_SMALL,
                        "sequence {id} waits for {count} copies, there is room for {capacity}"
                    );
                }
            };
            slot.write(list.len());
            for (to, one) in to.iter_mut().zip(&list) {
                *to = nmc_kv_move_t { from: one.from as *const c_void, to: one.to as *mut c_void, bytes: one.bytes };
            }
            Ok(())
        })
    })
}
