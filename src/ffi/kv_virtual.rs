//! `nmc_kv_*` that virtual placement (`NMC_KV_VIRTUAL`) alone has.

use super::arg::array_out;
use super::kv::{nmc_kv_t, with};
use super::kv_config::parse;
use super::kv_types::*;
use super::{config, guard, out};
use crate::base::status::nmc_status_t;
use std::ffi::c_void;

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
        let c = unsafe { config::read(config) }?;
        // SAFETY: the same of what it points to.
        let spec = unsafe { parse(&c, !c.world.is_null()) }?;
        // At most the granularity.
        slot.write(u32::try_from(spec.page_tokens()?).unwrap_or(u32::MAX));
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
            let list = match kv.take_moves(id, capacity)? {
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
