//! `nmc_world_*`: ranks of one node and the heaps they share.

use super::handle::{self, HasC, Object};
use super::text::{check_buffer, copy_out};
use super::world_types::{
    NMC_HEAP_HUGE_PAGES, NMC_HEAP_POPULATE, nmc_rank_info_t, nmc_world_config_t, nmc_world_info_t, parse,
};
use super::{guard, optional_out, out, put_struct};
use crate::base::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::cuda::GivenStream;
use crate::world::World;
use std::ffi::{c_char, c_void};

/// One rank of a world: the heaps of all ranks, control words, and who is alive. All functions that take it may be
/// called from any thread at the same time, also while another thread destroys it.
pub struct nmc_world_t {
    _opaque: [u8; 0],
}

impl Object for World {
    const KIND: u64 = 1;
    const NAME: &'static str = "world";
    fn cancel(&self) {
        World::cancel(self);
    }
}

impl HasC for World {
    type C = nmc_world_t;
}

/// Default of the `timeout_ms` arguments.
const DEFAULT_MS: i64 = 30_000;

fn with<R>(world: *const nmc_world_t, body: impl FnOnce(&World) -> Result<R>) -> Result<R> {
    handle::with::<World, R>(world, body)
}

fn rank_u32(rank: i32) -> Result<u32> {
    match u32::try_from(rank) {
        Ok(rank) => Ok(rank),
        Err(_) => crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is negative"),
    }
}

/// Joins a world as one rank and stores a handle in `*out_world`. Destroy it with `nmc_world_destroy`. Returns when all
/// ranks have joined, or as many as `min_ranks` says. If the world exists already and the rank is free, the process
/// takes that rank: one whose former holder is gone (it then finds the heap as it was left, unless one of the two lends
/// its memory), or one that was never taken. Processes may start in any order.
///
/// Blocks up to `join_timeout_ms`. Thread-safe: several threads of one process may join as different ranks. Not
/// graph-safe. Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`, `NMC_ERR_TIMEOUT` (the message names the ranks that
/// are missing), `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_EXISTS` (rank or device rank is taken),
/// `NMC_ERR_PERMISSION`, `NMC_ERR_PROTOCOL`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED`, `NMC_ERR_OS`,
/// `NMC_ERR_CUDA`, `NMC_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_join(
    config: *const nmc_world_config_t,
    out_world: *mut *mut nmc_world_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_world, "out_world")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let config = unsafe { parse(config) }?;
        slot.write(handle::create(World::join(config)?)?);
        Ok(())
    })
}

/// Joins a world as `n_ranks` ranks of this process and stores their handles in `out_worlds[0..n_ranks]`. `config`
/// is used for all of them, with its `rank` and `device_rank` replaced by `ranks[i]`; `heap_import` must be none.
/// Otherwise like `nmc_world_join`. On error no rank has joined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_join_ranks(
    config: *const nmc_world_config_t,
    ranks: *const i32,
    n_ranks: usize,
    out_worlds: *mut *mut nmc_world_t,
) -> nmc_status_t {
    guard(|| {
        let slots = worlds_out(out_worlds, n_ranks)?;
        if ranks.is_null() || !ranks.is_aligned() {
            crate::bail!(NMC_ERR_INVALID_ARG, "ranks must point to {n_ranks} numbers");
        }
        handle::prepare()?;
        // SAFETY: the caller promises `n_ranks` numbers.
        let ranks = unsafe { std::slice::from_raw_parts(ranks, n_ranks) };
        for (i, rank) in ranks.iter().enumerate() {
            if ranks[..i].contains(rank) {
                crate::bail!(NMC_ERR_INVALID_ARG, "ranks names rank {rank} twice");
            }
        }
        let configs = memory::try_collect(ranks.iter().map(|rank| {
            // SAFETY: the C contract of `config`.
            let mut config = unsafe { parse(config) }?;
            if config.import.is_some() {
                crate::bail!(NMC_ERR_INVALID_ARG, "heap_import cannot be used for several ranks at once");
            }
            config.rank = Some(rank_u32(*rank)?);
            config.device_rank = None;
            config.check()?;
            Ok(config)
        }))?;
        give_out(World::join_many(configs)?, slots)
    })
}

/// Creates a world of `config->world_size` ranks inside this process, without socket, files or threads, and stores all
/// handles in `out_worlds`. `name`, `dir`, `rank`, `device_rank`, `min_ranks`, `master` and the timeouts are ignored.
/// If `config` cannot be read, `out_worlds` stays as it is, because its length is unknown.
///
/// Takes as long as reserving the memory does. Thread-safe. Not graph-safe. Statuses as for `nmc_world_join`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_create_local(
    config: *const nmc_world_config_t,
    out_worlds: *mut *mut nmc_world_t,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of `config`; a name is optional here.
        let mut named = unsafe { super::config::read(config) }?;
        named.struct_size = super::world_types::WORLD_CONFIG_BYTES;
        // Nobody meets anybody: what is about meeting is not looked at.
        named.name = super::basic::nmc_slice_t { ptr: c"local".as_ptr().cast(), len: 5 };
        named.dir = super::basic::nmc_slice_t { ptr: std::ptr::null(), len: 0 };
        (named.rank, named.device_rank, named.min_ranks) = (-1, -1, 0);
        named.master = super::world_types::NMC_MASTER_RANK0;
        named.join_timeout_ms = crate::base::deadline::MAX_TIMEOUT_MS;
        let slots = worlds_out(out_worlds, named.world_size as usize);
        handle::prepare()?;
        // SAFETY: `named` is a full, valid config.
        let config = unsafe { parse(&raw const named) }?;
        give_out(World::local(&config)?, slots?)
    })
}

fn worlds_out<'a>(worlds: *mut *mut nmc_world_t, n: usize) -> Result<&'a mut [*mut nmc_world_t]> {
    if n == 0 || n > crate::layout::MAX_RANKS {
        crate::bail!(NMC_ERR_INVALID_ARG, "{n} ranks are not between 1 and {}", crate::layout::MAX_RANKS);
    }
    out(worlds, "out_worlds")?;
    // SAFETY: non-null and aligned; the caller promises room for n pointers, and raw pointers have no invalid bytes.
    let slots = unsafe { std::slice::from_raw_parts_mut(worlds, n) };
    slots.fill(std::ptr::null_mut());
    Ok(slots)
}

fn give_out(worlds: Vec<World>, slots: &mut [*mut nmc_world_t]) -> Result<()> {
    for (i, world) in worlds.into_iter().enumerate() {
        match handle::create(world) {
            Ok(handle) => slots[i] = handle,
            Err(error) => {
                for slot in slots.iter_mut() {
                    let _ = handle::take::<World>(std::mem::replace(slot, std::ptr::null_mut()));
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Leaves the world in order: waits until this process's GPU work is done, then tells the other ranks, which see
/// `NMC_RANK_LEFT`. Handle and pointers stay valid until `nmc_world_destroy`, but from now on another process may take
/// the rank and its heap: do not store there any more. May be called again; later calls, and calls after `nmc_world_abort`, do
/// nothing.
///
/// What was made from the rank (stores, KV caches in its heap, expert-parallel groups) is destroyed first: while any of it
/// exists the rank stays, and this returns `NMC_ERR_BUSY`.
///
/// Blocks for the GPU if the world has a device. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_BUSY` (the message names what is still there), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_world_finalize(world: *mut nmc_world_t) -> nmc_status_t {
    guard(|| with(world, World::finalize))
}

/// Breaks off: calls that wait return `NMC_ERR_CANCELLED` soon, and the other ranks see `NMC_RANK_DYING`. The handle
/// must still be destroyed, and so must all that was made from it; after that and the drain grace they see `NMC_RANK_GONE`.
///
/// Never blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_world_abort(world: *mut nmc_world_t) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            world.abort();
            Ok(())
        })
    })
}

/// Leaves the world if that has not happened yet, ends calls that wait in other threads (they return
/// `NMC_ERR_CANCELLED`), and frees everything: all pointers from this handle become invalid. If the master runs in
/// this handle it ends too; the others go on without one. NULL is fine. In a forked child it does nothing.
///
/// If something that was made from the rank still exists (a store, a KV cache in its heap, an expert-parallel group), only
/// the handle ends now: the rank leaves, and its master ends, when the last of them is destroyed.
///
/// Blocks for the GPU if the world has a device (not after `nmc_world_abort`: then make sure that no kernel of this
/// process uses the heaps), and until other threads are out of their calls. Thread-safe: of several callers one
/// succeeds. Not graph-safe.
/// Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_world_destroy(world: *mut nmc_world_t) -> nmc_status_t {
    guard(|| {
        drop(handle::take::<World>(world)?);
        Ok(())
    })
}

/// Stores facts about the world. Thread-safe, does not block, graph-safe.
/// Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_info(world: *const nmc_world_t, out_info: *mut nmc_world_info_t) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let p = world.params();
            let info = nmc_world_info_t {
                struct_size: 0,
                rank: world.rank(),
                world_size: p.world_size,
                heap_kind: p.heap_kind,
                heap_bytes: p.heap_bytes,
                world_id: world.world_id(),
                heap_flags: heap_flags(world),
                words_per_rank: p.words_per_rank,
                master_up: u32::from(world.master_up()),
                min_ranks: p.min_ranks,
            };
            // SAFETY: the C contract of `out_info`.
            unsafe { put_struct(out_info, info) }
        })
    })
}

fn heap_flags(world: &World) -> u32 {
    let huge = if world.huge_pages() { NMC_HEAP_HUGE_PAGES } else { 0 };
    let populated = if world.populated() { NMC_HEAP_POPULATE } else { 0 };
    huge | populated
}

/// Stores facts about a rank. Thread-safe, does not block, graph-safe.
/// Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_rank_info(
    world: *const nmc_world_t,
    rank: i32,
    out_info: *mut nmc_rank_info_t,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let peer = world.peer(rank_u32(rank)?)?;
            let info = nmc_rank_info_t {
                struct_size: 0,
                state: peer.state.code(),
                generation: peer.generation,
                pid: peer.pid,
                device: peer.device,
                heap_base: peer.heap_base as *mut c_void,
                device_rank: peer.device_rank,
                reserved: 0,
            };
            // SAFETY: the C contract of `out_info`.
            unsafe { put_struct(out_info, info) }
        })
    })
}

/// Stores the state of a rank, one of `NMC_RANK_*`. A death is reported within a second, usually within a
/// millisecond. Thread-safe, does not block, graph-safe.
/// Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_alive(world: *const nmc_world_t, rank: i32, out_state: *mut u32) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let state = world.state(rank_u32(rank)?)?.code();
            out(out_state, "out_state")?.write(state);
            Ok(())
        })
    })
}

/// Stores an eventfd that becomes readable when the state of a rank changes, a rank is taken by another process, the
/// master goes away or returns, or `nmc_world_async_error` has news. Read 8 bytes from it to rearm it. It belongs to
/// the handle: do not close it. A world made by `nmc_world_create_local` never signals.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_event_fd(world: *const nmc_world_t, out_fd: *mut i32) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            out(out_fd, "out_fd")?.write(world.event_fd());
            Ok(())
        })
    })
}

/// Stores the address, in this process, of `bytes` bytes at `offset` in the heap of `rank`: a host pointer for host
/// heaps, a device pointer for CUDA heaps. It stays valid until the handle is destroyed, also when the rank dies.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`
/// (past the end of the heap), `NMC_ERR_PEER_LOST` (the rank has no heap at the moment).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_ptr(
    world: *const nmc_world_t,
    rank: i32,
    offset: u64,
    bytes: u64,
    out_ptr: *mut *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let address = world.ptr(rank_u32(rank)?, offset, bytes)?;
            out(out_ptr, "out_ptr")?.write(address as *mut c_void);
            Ok(())
        })
    })
}

/// The reverse of `nmc_world_ptr`: stores the rank and the offset of an address in one of the heaps.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
/// `NMC_ERR_NOT_FOUND` (the address is in no heap).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_locate(
    world: *const nmc_world_t,
    ptr: *const c_void,
    out_rank: *mut i32,
    out_offset: *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let (to_rank, to_offset) = (out(out_rank, "out_rank")?, out(out_offset, "out_offset")?);
            let (rank, offset) = world.locate(ptr as u64)?;
            to_rank.write(rank.cast_signed());
            to_offset.write(offset);
            Ok(())
        })
    })
}

/// Stores the tables of heap base addresses, for code that computes addresses itself. `*out_host`, indexed by rank,
/// is in host memory; `*out_device`, indexed by **device rank**, is in device memory, for `nmc_dev_peer_ptr`, and is
/// NULL without a device. `*out_n` is the number of entries. An entry is 0 while a rank has no heap. Each out
/// pointer may be NULL. The tables live until the handle is destroyed.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_base_table(
    world: *const nmc_world_t,
    out_host: *mut *const u64,
    out_device: *mut *const u64,
    out_n: *mut u32,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let (host, device) = world.base_tables();
            let to_host = optional_out(out_host, "out_host")?;
            let to_device = optional_out(out_device, "out_device")?;
            let to_n = optional_out(out_n, "out_n")?;
            to_host.map(|to| to.write(host));
            to_device.map(|to| to.write(device as *const u64));
            to_n.map(|to| to.write(world.params().world_size));
            Ok(())
        })
    })
}

/// Stores the rank that device code knows as `device_rank`.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
/// `NMC_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_rank_of_device_rank(
    world: *const nmc_world_t,
    device_rank: i32,
    out_rank: *mut i32,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let rank = world.rank_of_device_rank(rank_u32(device_rank)?)?;
            out(out_rank, "out_rank")?.write(rank.cast_signed());
            Ok(())
        })
    })
}

/// Stores the address of control word `index` of `rank`: 64 bits in host memory that all ranks share, alone on a
/// cache line, zero at first, kept when a rank is taken by another process. `*out_device` is its address for
/// kernels and `cuStreamWriteValue64`, NULL without a device; each out pointer may be NULL. Give every word one
/// writer; publish with a release store and read with an acquire load (system scope on the GPU); a GPU must not do
/// read-modify-write on it. The program defines what the words mean; `nmc_world_selftest` uses the first of them.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_word(
    world: *const nmc_world_t,
    rank: i32,
    index: u32,
    out_host: *mut *mut u64,
    out_device: *mut *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let (word, device) = world.word(rank_u32(rank)?, index)?;
            let (to_host, to_device) = (optional_out(out_host, "out_host")?, optional_out(out_device, "out_device")?);
            to_host.map(|to| to.write(word.as_ptr()));
            to_device.map(|to| to.write(device as *mut u64));
            Ok(())
        })
    })
}

/// Stores `value` in control word `index` of `rank` when the work before it in `stream` (a `cudaStream_t` or
/// `CUstream`) is done and visible to the whole system. No kernel is launched.
///
/// Thread-safe, does not block. Graph-safe: it can be captured; the value is then the same in every replay.
/// Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_UNSUPPORTED` (no device, or
/// one that cannot), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_write_word_async(
    world: *const nmc_world_t,
    rank: i32,
    index: u32,
    value: u64,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| with(world, |world| world.write_word_async(rank_u32(rank)?, index, value, stream)))
}

/// Waits until all ranks have called it. For start-up, tests and tools, not for hot paths. After an error the same
/// barrier is still open, and the next call continues to wait for it: also together with a process that has taken the
/// place of a dead rank. After a barrier all ranks know the same holders of all ranks.
///
/// A rank that was never taken is not waited for. A rank that joins while a barrier is open takes part in it, or finds
/// it passed: its own count begins where that of the others is.
///
/// Blocks up to `timeout_ms` (-1 for 30 s). One thread per handle at a time. Not graph-safe. Statuses:
/// `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST` (names the
/// rank), `NMC_ERR_CANCELLED` (the rank has left, aborted or is being destroyed), `NMC_ERR_BUSY` (another thread is in
/// it).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_world_barrier(world: *const nmc_world_t, timeout_ms: i64) -> nmc_status_t {
    guard(|| with(world, |world| world.barrier(&Deadline::from_ms(timeout_ms, DEFAULT_MS)?)))
}

/// Proves the paths between all ranks: each writes a pattern into every heap, publishes it with a system-scope
/// release, and compares every byte that the others wrote for it; on CUDA heaps with kernels. All ranks must call it
/// with the same `seed`. **Overwrites** up to `world_size` MiB at the start of every heap and the first `world_size`
/// control words of every rank. While a rank is `NMC_RANK_ABSENT` it fails with `NMC_ERR_PEER_LOST`.
///
/// Blocks up to about `timeout_ms` (-1 for 30 s). Not graph-safe. Statuses: those of `nmc_world_barrier`, and
/// `NMC_ERR_CORRUPT` (names the ranks and the offset), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_world_selftest(world: *const nmc_world_t, seed: u64, timeout_ms: i64) -> nmc_status_t {
    guard(|| with(world, |world| world.selftest(seed, &Deadline::from_ms(timeout_ms, DEFAULT_MS)?)))
}

/// What went wrong in the background of this world, where no call could return it. Stores the status (`NMC_OK` if
/// nothing did) in `*out_status`, also if the text is too long, and the message in `buffer`, as `nmc_world_dump` does; a
/// NULL buffer of capacity 0 leaves the text out.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
/// `NMC_ERR_TOO_SMALL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_async_error(
    world: *const nmc_world_t,
    out_status: *mut nmc_status_t,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(world, |world| {
            let failure = world.failure();
            let status = failure.as_ref().map_or(NMC_OK, |e| e.status);
            let to_status = out(out_status, "out_status")?;
            check_buffer(buffer, capacity)?;
            optional_out(out_needed, "out_needed")?;
            // Also when the text is too long for the buffer.
            to_status.write(status);
            if capacity == 0 && out_needed.is_null() {
                return Ok(());
            }
            copy_out(failure.as_ref().map_or("", |e| &e.message), buffer, capacity, out_needed)
        })
    })
}

/// Writes the world as text for people into `buffer`, NUL-terminated. `*out_needed` (may be NULL) receives the size that
/// the whole text needs; with capacity 0 nothing else happens.
///
/// Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
/// `NMC_ERR_TOO_SMALL` (as much as fits was written), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_world_dump(
    world: *const nmc_world_t,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> nmc_status_t {
    guard(|| with(world, |world| copy_out(&world.dump()?, buffer, capacity, out_needed)))
}
