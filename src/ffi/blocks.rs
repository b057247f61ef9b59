//! `nmc_blocks_*`: the numbers of the blocks of a KV cache, free and in use.

use super::arg::{array, array_out};
use super::basic::NMC_ABI_VERSION;
use super::config::{self, Config as Versioned};
use super::handle::{self, HasC, Object};
use super::{guard, guard_status, out, put_struct, remember_untold, text};
use crate::alloc::blocks::{Blocks, MAX_BLOCKS, book_bytes, fragmentation};
use crate::alloc::runs::{Fragmentation, Run};
use crate::alloc::tickets::Tickets;
use crate::base::error::{Error, Result};
use crate::base::memory::{self, Text};
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_NO_SPACE, NMC_IN_PROGRESS, NMC_OK, nmc_status_t};
use crate::mem::limits::check_available;
use parking_lot::Mutex;
use std::ffi::c_char;
use std::fmt::Write as _;

/// How an allocator of blocks is made. Start from `NMC_BLOCKS_CONFIG_INIT`; `total_blocks` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_blocks_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Number of blocks, 1 to 2^31 - 1.
    pub total_blocks: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

// SAFETY: repr(C), integers only, no padding.
unsafe impl Versioned for nmc_blocks_config_t {
    const NAME: &'static str = "nmc_blocks_config_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            total_blocks: 0,
            reserved0: 0,
            reserved: [0; 4],
        }
    }
}

/// Blocks that follow each other: `first`, `first + 1`, ... A plain value, which may be copied, cut in parts and kept by
/// the program; the allocator knows blocks, not runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_block_run_t {
    /// Number of the first block.
    pub first: i32,
    /// How many blocks.
    pub count: i32,
}

/// The state of an allocator of blocks at one moment. Start from `NMC_BLOCKS_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_blocks_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved0: u32,
    /// All blocks.
    pub total: u32,
    /// Blocks in use.
    pub used: u32,
    /// Blocks that are free; `used` and `free` are together `total`.
    pub free: u32,
    /// The longest run that `nmc_blocks_allocate` would give now.
    pub largest_run: u32,
    /// Stretches of free blocks.
    pub free_runs: u32,
    /// 1 - `largest_run` / `free`: 0 if all that is free is one run, near 1 if it lies in many pieces; 0 if nothing is free.
    pub fragmentation: f32,
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that were served, and not fetched yet with `nmc_blocks_poll`.
    pub ready: u32,
    /// Bytes of memory that the allocator takes.
    pub bytes: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// An allocator of blocks: it knows their numbers, 0 to `total_blocks` - 1, and nothing of what lies in them. Blocks
/// are taken as runs that follow each other, or scattered. Both kinds are blocks like any others: either function can
/// free them, in any parts, and they share the same free blocks. A block that is not in use is never freed: freeing
/// something twice is an error, unless it was handed out again in between.
///
/// All functions may be called from any thread at the same time, even while another thread destroys it; none of them
/// waits for blocks, and a mutex is held for the time of one operation. Statuses that every function can return:
/// `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG` (pointers that are NULL or not aligned).
pub struct nmc_blocks_t {
    _opaque: [u8; 0],
}

/// Books of fewer bytes are not compared with the memory that there is.
const LARGE_BOOKS: u64 = 64 << 20;

/// The object behind the handle.
struct Pool(Mutex<State>);

struct State {
    blocks: Blocks,
    tickets: Tickets,
}

impl Object for Pool {
    const KIND: u64 = 5;
    const NAME: &'static str = "blocks";
    fn cancel(&self) {} // nothing waits
}

impl HasC for Pool {
    type C = nmc_blocks_t;
}

#[inline]
fn with<R>(blocks: *const nmc_blocks_t, body: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
    handle::with::<Pool, R>(blocks, |pool| body(&mut pool.0.lock()))
}

/// A run as C sees it; the numbers of blocks are below 2^31.
#[inline]
fn to_c(run: Run) -> nmc_block_run_t {
    nmc_block_run_t { first: run.first.cast_signed(), count: run.count.cast_signed() }
}

/// A run of the caller, which may be anything but negative.
#[inline]
fn from_c(run: nmc_block_run_t) -> Result<Run> {
    match (u32::try_from(run.first), u32::try_from(run.count)) {
        (Ok(first), Ok(count)) => Ok(Run { first, count }),
        _ => Err(negative(run)),
    }
}

#[cold]
fn negative(run: nmc_block_run_t) -> Error {
    let nmc_block_run_t { first, count } = run;
    Error::new(NMC_ERR_INVALID_ARG, format!("the run of {count} blocks at {first} cannot be: a number is negative"))
}

/// The status of a run that does not fit. A scheduler meets it often, so its text is made when it is asked for.
fn no_run(state: &mut State, count: u32) -> nmc_status_t {
    // Too many for what is free needs no look at how it lies.
    let free = state.blocks.free();
    let largest = if count > free { free } else { state.blocks.largest_run() };
    let tell = |[count, free, largest]: [u64; 3]| match count {
        _ if count > free => format!("{count} blocks are wanted, but only {free} are free"),
        _ => format!("a run of {count} blocks does not fit: {free} are free, but at most {largest} in one run"),
    };
    remember_untold(NMC_ERR_NO_SPACE, tell, [count, free, largest].map(u64::from))
}

fn too_many(count: usize, state: &State) -> nmc_status_t {
    let tell = |[count, free, _]: [u64; 3]| format!("{count} blocks are wanted, but only {free} are free");
    remember_untold(NMC_ERR_NO_SPACE, tell, [count as u64, state.blocks.free().into(), 0])
}

/// Fails if the machine can be seen not to have memory for the books.
fn check_books(total: u32) -> Result<()> {
    let bytes = book_bytes(total);
    if bytes < LARGE_BOOKS {
        return Ok(());
    }
    check_available(bytes).map_err(|error| error.context(format_args!("the books of {total} blocks")))
}

/// Makes an allocator with all blocks free and puts a handle into `*out_blocks`.
///
/// Does not block. Thread-safe. Graph-safe. Destroyed with `nmc_blocks_destroy`. Statuses: `NMC_ERR_INVALID_ARG` (the
/// number of blocks or a reserved field), `NMC_ERR_VERSION`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_create(
    config: *const nmc_blocks_config_t,
    out_blocks: *mut *mut nmc_blocks_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_blocks, "out_blocks")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let config = unsafe { config::read(config) }?;
        if config.reserved0 != 0 || config.reserved != [0; 4] {
            crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field of nmc_blocks_config_t is not zero");
        }
        check_books(config.total_blocks)?;
        let blocks = Blocks::new(config.total_blocks).map_err(|error| error.context("total_blocks"))?;
        slot.write(handle::create(Pool(Mutex::new(State { blocks, tickets: Tickets::default() })))?);
        Ok(())
    })
}

/// Destroys an allocator, whatever is in use. NULL is fine; in a forked child it does nothing.
///
/// Blocks until calls of other threads have returned, which is soon. Graph-safe. Thread-safe: of several callers one
/// succeeds. Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_blocks_destroy(blocks: *mut nmc_blocks_t) -> nmc_status_t {
    guard(|| {
        drop(handle::take::<Pool>(blocks)?);
        Ok(())
    })
}

/// Takes a run of exactly `count` blocks and stores it in `*out_run`. It takes what is free now, past requests that wait: those
/// are served whenever blocks become free, before the call that frees them returns.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (no such run is free; the message says how many
/// blocks are free and how long the longest run is), `NMC_ERR_INVALID_ARG` (`count` is 0).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_allocate(
    blocks: *mut nmc_blocks_t,
    count: u32,
    out_run: *mut nmc_block_run_t,
) -> nmc_status_t {
    guard_status(|| {
        let slot = out(out_run, "out_run")?;
        with(blocks, |state| match state.blocks.take_run(count) {
            Some(run) => {
                slot.write(to_c(run));
                Ok(NMC_OK)
            }
            None if count == 0 => crate::bail!(NMC_ERR_INVALID_ARG, "a run of no blocks"),
            None => Ok(no_run(state, count)),
        })
    })
}

/// Gives back the blocks of a run, which may be a part of one (such as its tail), several that lie side by side, or blocks
/// that were taken scattered. Requests that wait are served with them.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (the run has no blocks, reaches past the end, or one of its
/// blocks is not in use; nothing was freed).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_blocks_free(blocks: *mut nmc_blocks_t, run: nmc_block_run_t) -> nmc_status_t {
    guard(|| {
        let run = from_c(run)?;
        with(blocks, |state| {
            state.blocks.give_run(run)?;
            state.tickets.serve(&mut state.blocks);
            Ok(())
        })
    })
}

/// Makes a run longer by the `more` blocks behind it, in place, and adds them to `run->count`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (not all of those are free, or the blocks end
/// there; `*run` stays what it was), `NMC_ERR_INVALID_ARG` (`more` is 0, or `*run` is not wholly in use).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_extend(
    blocks: *mut nmc_blocks_t,
    run: *mut nmc_block_run_t,
    more: u32,
) -> nmc_status_t {
    guard_status(|| {
        let slot = out(run, "run")?;
        // SAFETY: by the C contract the caller has stored a run here.
        let old = from_c(unsafe { slot.assume_init_read() })?;
        if more == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "longer by no blocks");
        }
        with(blocks, |state| {
            if !state.blocks.extend_run(old, more)? {
                let tell = |[more, end, free]: [u64; 3]| {
                    format!("the {more} blocks from {end} on are not all free, of which there are {free}")
                };
                let numbers = [more, old.first + old.count, state.blocks.free()].map(u64::from);
                return Ok(remember_untold(NMC_ERR_NO_SPACE, tell, numbers));
            }
            slot.write(to_c(Run { first: old.first, count: old.count + more }));
            Ok(NMC_OK)
        })
    })
}

/// Takes any `count` free blocks and stores their numbers in `out_numbers`: all, or none. With `count` 0 it does nothing. It leaves
/// long runs alone as far as it can, and takes what is free now, past requests that wait.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (fewer are free; the message says how many).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_allocate_scattered(
    blocks: *mut nmc_blocks_t,
    count: usize,
    out_numbers: *mut i32,
) -> nmc_status_t {
    guard_status(|| {
        with(blocks, |state| {
            if count > state.blocks.free() as usize {
                return Ok(too_many(count, state));
            }
            // SAFETY: the C contract of `out_numbers`. Numbers of blocks are below 2^31, so they are the same in both types.
            let numbers = unsafe { array_out(out_numbers.cast::<u32>(), count, "out_numbers") }?;
            Ok(if state.blocks.take(numbers) { NMC_OK } else { too_many(count, state) })
        })
    })
}

/// Gives back `count` blocks, in any order, however they were taken. Requests that wait are served with them.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (a number that is no block, a block that is not in use or that is
/// given twice: the message says which one, and nothing was freed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_free_scattered(
    blocks: *mut nmc_blocks_t,
    numbers: *const i32,
    count: usize,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of `numbers`. Negative ones are above all blocks in the other type.
        let numbers = unsafe { array(numbers.cast::<u32>(), count, "numbers") }?;
        with(blocks, |state| {
            state.blocks.give(numbers)?;
            state.tickets.serve(&mut state.blocks);
            Ok(())
        })
    })
}

/// Asks for a run of `count` blocks when there is room, and stores a ticket in `*out_ticket`, with which `nmc_blocks_poll`
/// fetches it. Tickets are never 0 and never used again.
///
/// Requests are served strictly in the order in which they came, whenever blocks become free: a small one behind a large
/// one waits, though it would fit, so that the large one is not passed over for ever. `nmc_blocks_allocate` and
/// `nmc_blocks_allocate_scattered` do not stand in line: a program that wants the line to hold uses requests only.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (`count` is more than all blocks),
/// `NMC_ERR_INVALID_ARG` (`count` is 0), `NMC_ERR_LIMIT` (65,536 tickets are open), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_request(
    blocks: *mut nmc_blocks_t,
    count: u32,
    out_ticket: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_ticket, "out_ticket")?;
        with(blocks, |state| {
            slot.write(state.tickets.request(&mut state.blocks, count)?);
            Ok(())
        })
    })
}

/// Fetches the run of a request into `*out_run`; with that its ticket ends.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_IN_PROGRESS` (it waits), `NMC_ERR_NOT_FOUND` (no such ticket is
/// open), `NMC_ERR_NO_SPACE` (since `nmc_blocks_resize` there are fewer blocks than it asked for; the ticket ends).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_poll(
    blocks: *mut nmc_blocks_t,
    ticket: u64,
    out_run: *mut nmc_block_run_t,
) -> nmc_status_t {
    guard_status(|| {
        let slot = out(out_run, "out_run")?;
        with(blocks, |state| {
            Ok(match state.tickets.poll(ticket)? {
                Some(run) => {
                    slot.write(to_c(run));
                    NMC_OK
                }
                None => NMC_IN_PROGRESS,
            })
        })
    })
}

/// Gives up a request. If it was served with a run that has not been fetched, the run is free again; requests behind it
/// move up.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such ticket is open: if its run was
/// fetched, the run belongs to the program that fetched it).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_blocks_cancel(blocks: *mut nmc_blocks_t, ticket: u64) -> nmc_status_t {
    guard(|| with(blocks, |state| state.tickets.cancel(&mut state.blocks, ticket)))
}

/// Stores the state of the allocator in `*out_stats`.
///
/// Does not block; puts single free blocks back to their neighbours first, which takes at most about a millisecond.
/// Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_stats(
    blocks: *mut nmc_blocks_t,
    out_stats: *mut nmc_blocks_stats_t,
) -> nmc_status_t {
    guard(|| {
        let stats_now = with(blocks, |state| {
            let scatter = state.blocks.scatter();
            Ok(nmc_blocks_stats_t {
                struct_size: 0,
                reserved0: 0,
                total: state.blocks.total(),
                used: state.blocks.used(),
                free: state.blocks.free(),
                largest_run: scatter.largest_run,
                free_runs: scatter.free_runs,
                fragmentation: fragmentation(scatter),
                waiting: u32::try_from(state.tickets.waiting()).unwrap_or(u32::MAX),
                ready: u32::try_from(state.tickets.ready()).unwrap_or(u32::MAX),
                bytes: state.blocks.bytes() as u64,
                reserved: [0; 2],
            })
        })?;
        // SAFETY: the C contract of `out_stats`.
        unsafe { put_struct(out_stats, stats_now) }
    })
}

/// Writes the state as text for people: counts that add up, and a map with one character per block, 64 in a line: `.`
/// is free, `X` in use. As for all text, `out_needed` receives the size with the NUL, and may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (cut, `*out_needed` was stored),
/// `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_blocks_dump(
    blocks: *mut nmc_blocks_t,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let (used, total, words, scatter) = with(blocks, |state| {
            let scatter = state.blocks.scatter();
            Ok((state.blocks.used(), state.blocks.total(), memory::copy(state.blocks.map())?, scatter))
        })?;
        let mut text = Text::default();
        let written = picture(&mut text, used, total, &words, scatter);
        text::copy_out(&text.finish(written)?, buffer, capacity, out_needed)
    })
}

fn picture(text: &mut Text, used: u32, total: u32, words: &[u64], scatter: Fragmentation) -> std::fmt::Result {
    let Fragmentation { free_units, free_runs, largest_run } = scatter;
    let fragmentation = fragmentation(scatter);
    writeln!(text, "Blocks: {total}, used {used}, free {free_units}")?;
    writeln!(text, "Free runs: {free_runs}, largest {largest_run}, fragmentation {fragmentation:.2}")?;
    writeln!(text, "Map (. free, X used):")?;
    for (word, first) in words.iter().zip((0..total).step_by(64)) {
        for bit in 0..64.min(total - first) {
            text.write_char(if word >> bit & 1 == 1 { 'X' } else { '.' })?;
        }
        text.write_char('\n')?;
    }
    Ok(())
}

/// Changes the number of blocks to `total_blocks`, 1 to 2^31 - 1. New blocks are free and have the next numbers; blocks that go away are
/// those with the highest numbers, and must be free. What lies in blocks is the program's business, before and after.
///
/// Does not block; takes time in the number of blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (one that should go is
/// in use; the message says which), `NMC_ERR_INVALID_ARG` (the number), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_blocks_resize(blocks: *mut nmc_blocks_t, total_blocks: u32) -> nmc_status_t {
    guard(|| {
        if total_blocks == 0 || total_blocks > MAX_BLOCKS {
            crate::bail!(NMC_ERR_INVALID_ARG, "{total_blocks} blocks: there must be 1 to {MAX_BLOCKS}");
        }
        with(blocks, |state| {
            if total_blocks >= state.blocks.total() {
                check_books(total_blocks - state.blocks.total())?;
                state.blocks.grow(total_blocks)?;
            } else if !state.blocks.shrink(total_blocks)? {
                let words = state.blocks.map().iter().enumerate();
                let last =
                    words.rev().find_map(|(at, word)| Some(at * 64 + word.checked_ilog2()? as usize)).unwrap_or(0);
                crate::bail!(NMC_ERR_BUSY, "block {last} is in use: there cannot be only {total_blocks} blocks");
            }
            state.tickets.serve(&mut state.blocks);
            Ok(())
        })
    })
}
