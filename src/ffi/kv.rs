//! `nmc_kv_*`: the block KV cache: making one, and its sequences.

use super::arg::array;
use super::basic::nmc_slice_t;
use super::config;
use super::handle::{self, HasC, Object};
use super::kv_config::parse;
use super::kv_types::*;
use super::world::nmc_world_t;
use super::{guard, out};
use crate::base::error::Result;
use crate::base::status::nmc_status_t;
use crate::kv::Kv;
use crate::world::World;

/// A block KV cache: it maps the tokens of sequences to numbered blocks of equal size. Full blocks of equal tokens are
/// found again by later sequences (prefix reuse), forks share blocks, and tables for attention kernels are written
/// straight into the program's memory. The cache touches the blocks themselves only when it is asked to copy them
/// (`nmc_kv_gather`, `nmc_kv_copy_blocks`, `nmc_kv_offload`, ...). With `NMC_KV_VIRTUAL` it also maps them, and some of
/// what follows is different; see there.
///
/// **When blocks count as computed.** `nmc_kv_open` and `nmc_kv_append` give room for tokens that the engine computes
/// afterwards. With the next `nmc_kv_append` or `nmc_kv_close` of the same sequence, what it had before counts as
/// computed, and its full blocks can be matched by others; `nmc_kv_commit` says so earlier. The engine must have
/// enqueued that work by then, and order later work after it: on the same stream, or with an event.
///
/// **When blocks are free.** A block that is freed or evicted may be handed out again at once. Work that still reads it
/// must be ordered before work that writes the tokens of the block's next sequence, as it is on one stream.
///
/// All functions may be called from any thread at the same time, even while another thread destroys the cache; calls
/// for one sequence exclude each other. Threads that work on different sequences do not wait for each other, except
/// where blocks are shared. Unless a function's comment says otherwise, it does not block, does not call CUDA, and is
/// graph-safe. Statuses that every function can return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
/// `NMC_ERR_NO_MEMORY` (for the cache's own records; the message says how much, and nothing changed); those that take a
/// sequence also `NMC_ERR_NOT_FOUND` (no such sequence is open) and `NMC_ERR_STALE` (its blocks were taken to make
/// room: close it).
pub struct nmc_kv_t {
    _opaque: [u8; 0],
}

impl Object for Kv {
    const KIND: u64 = 6;
    const NAME: &'static str = "KV cache";
    fn cancel(&self) {
        Self::cancel(self);
    }
}

impl HasC for Kv {
    type C = nmc_kv_t;
}

#[inline]
pub(super) fn with<R>(kv: *const nmc_kv_t, body: impl FnOnce(&Kv) -> Result<R>) -> Result<R> {
    handle::with::<Kv, R>(kv, body)
}

/// The bytes of a slice that may be empty.
///
/// # Safety
/// `slice.ptr` points to `slice.len` readable bytes.
pub(super) unsafe fn bytes<'a>(slice: nmc_slice_t, most: usize, name: &str) -> Result<&'a [u8]> {
    if slice.len > most {
        crate::bail!(NMC_ERR_INVALID_ARG, "{name} has {} bytes, the limit is {most}", slice.len);
    }
    // SAFETY: as the caller promises.
    unsafe { array(slice.ptr.cast::<u8>(), slice.len, name) }
}

/// Creates a cache with all blocks free and stores a handle in `*out_kv`. Destroy it with `nmc_kv_destroy`.
///
/// With a `world`, the groups lie in the heap that this rank has there, one after the other from `heap_offset` of the
/// config on, each at the next multiple of 4,096 bytes; `nmc_kv_heap_bytes` returns how much that is. Their `memory`
/// must be NULL. Peers can then reach the blocks, with `nmc_world_ptr` and the offset of a group
/// (`nmc_kv_group_stats`). Nothing else may use that part of the heap, and the world must not be destroyed before the
/// cache. With `world` NULL, the memory is the program's, or the library's with `NMC_KV_VIRTUAL`.
///
/// Does not block, except to get memory for `NMC_KV_VIRTUAL`. Thread-safe. Graph-safe without it. Statuses:
/// `NMC_ERR_INVALID_ARG` (a number in the config, memory that is too small), `NMC_ERR_VERSION`, `NMC_ERR_NO_MEMORY`,
/// `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED` (what `NMC_KV_VIRTUAL` does not have, or no CUDA), `NMC_ERR_CANCELLED` (the
/// rank has left or aborted), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_create(
    world: *mut nmc_world_t,
    config: *const nmc_kv_config_t,
    out_kv: *mut *mut nmc_kv_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_kv, "out_kv")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let c = unsafe { config::read(config) }?;
        // SAFETY: the same of what it points to.
        let spec = unsafe { parse(&c, !world.is_null()) }?;
        let kv = if world.is_null() {
            Kv::new(&spec)?
        } else {
            handle::with::<World, _>(world, |world| Kv::in_heap(&spec, world, c.heap_offset))?
        };
        slot.write(handle::create(kv)?);
        Ok(())
    })
}

/// Stores in `*out_bytes` how much memory the group with this number needs, or with `NMC_KV_GROUPS_ALL` how much of a world's heap
/// all groups of a config take from `heap_offset` on, with what lies between them.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (what `nmc_kv_create` would refuse, or no such
/// group), `NMC_ERR_UNSUPPORTED` (all groups with `NMC_KV_VIRTUAL`), `NMC_ERR_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_heap_bytes(
    config: *const nmc_kv_config_t,
    group: u32,
    out_bytes: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_bytes, "out_bytes")?;
        // SAFETY: the C contract of `config`.
        let c = unsafe { config::read(config) }?;
        // SAFETY: the same of what it points to.
        let spec = unsafe { parse(&c, true) }?;
        slot.write(match group {
            NMC_KV_GROUPS_ALL => spec.heap_bytes(c.heap_offset)?,
            group => spec.group_bytes(group)?,
        });
        Ok(())
    })
}

/// Stores in `*out_tokens` the smallest `tokens_per_block` with which the pages of a config with `NMC_KV_VIRTUAL` are whole pages
/// of the system or of the device; its multiples are as good. What the config says about it does not matter.
///
/// Does not block. Thread-safe. Not graph-safe with `NMC_HEAP_CUDA`. Statuses: `NMC_ERR_INVALID_ARG` (another number in the
/// config, or no `NMC_KV_VIRTUAL`), `NMC_ERR_VERSION`, `NMC_ERR_UNSUPPORTED` (no CUDA), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_page_tokens(config: *const nmc_kv_config_t, out_tokens: *mut u32) -> nmc_status_t {
    guard(|| {
        let slot = out(out_tokens, "out_tokens")?;
        // SAFETY: the C contract of `config`.
        let c = unsafe { config::read(config) }?;
        // SAFETY: the same of what it points to.
        let spec = unsafe { parse(&c, false) }?;
        // At most the granularity.
        slot.write(u32::try_from(spec.page_tokens()?).unwrap_or(u32::MAX));
        Ok(())
    })
}

/// Destroys a cache; what its sequences held is gone with it. NULL does nothing.
///
/// Waits for calls in other threads. Thread-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_BUSY` (inside a log callback).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_destroy(kv: *mut nmc_kv_t) -> nmc_status_t {
    guard(|| handle::take::<Kv>(kv).map(drop))
}
