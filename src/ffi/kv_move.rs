//! `nmc_kv_*`: blocks go to an object store, where other caches find them, and come back.

use super::arg::array;
use super::config::OutStruct;
use super::kv::{nmc_kv_t, with};
use super::kv_seq::counted;
use super::kv_types::*;
use super::store::{self, nmc_store_t};
use super::{guard, guard_status, optional_out, out, remember};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::status::{NMC_IN_PROGRESS, NMC_OK, nmc_status_t};
use crate::cuda::{GivenEvent, GivenStream};
use crate::kv::Kv;
use crate::kv::transfer::{After, Progress};

/// Attaches a store to a cache. Through it the cache exchanges blocks with caches of other processes: those with the
/// same kinds, types and sizes of heads and blocks, and the same hash and secret. All groups must have memory that the
/// store can reach (device memory needs a store that was joined with that device). A cache can be attached only once.
/// It keeps the store open until the cache is destroyed, even after `nmc_store_destroy`. Starts 6 to 12 threads,
/// `nmc-kv-move`, one for each core in between.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_EXISTS` (it has a store), `NMC_ERR_INVALID_ARG` (a group
/// without memory), `NMC_ERR_UNSUPPORTED` (a cache without a prefix index, with `NMC_KV_VIRTUAL`, or with
/// `NMC_KV_HASH_XXH3`, which needs tokens to compare), `NMC_ERR_OS` (no thread).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_attach_store(kv: *mut nmc_kv_t, store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.attach_store(|| store::with(store, |store| Ok(store.share())))))
}

/// # Safety
/// `after` is NULL or points to a struct.
unsafe fn after_of(after: *const nmc_kv_after_t) -> Result<After> {
    if after.is_null() {
        return Ok(After::Nothing);
    }
    // SAFETY: the C contract of `after`.
    let after = unsafe { &array(after, 1, "after")?[0] };
    if after.reserved != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "the reserved field of nmc_kv_after_t is {:#x} and not zero", after.reserved);
    }
    Ok(match after.kind {
        NMC_KV_AFTER_NOTHING => After::Nothing,
        // SAFETY: the C contract of the struct.
        NMC_KV_AFTER_STREAM => After::Stream(unsafe { GivenStream::new(after.handle) }),
        // SAFETY: as above.
        NMC_KV_AFTER_EVENT => match unsafe { GivenEvent::new(after.handle) } {
            Some(event) => After::Event(event),
            None => crate::bail!(NMC_ERR_INVALID_ARG, "the event is NULL"),
        },
        other => crate::bail!(NMC_ERR_INVALID_ARG, "kind {other} is none of NMC_KV_AFTER_*"),
    })
}

/// Sets the stream on which the program computes: moves that make room (`NMC_KV_WHEN_FULL_MOVE_SEQUENCE`) wait for what
/// is on it when they begin. Needed if the cache lies in device memory; `after` is of kind `NMC_KV_AFTER_STREAM`, or
/// `NMC_KV_AFTER_NOTHING` for host memory. The stream must stay until the cache is destroyed.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no store, an event, device memory and
/// nothing to wait for), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_move_after(kv: *mut nmc_kv_t, after: *const nmc_kv_after_t) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of `after`.
        let after = unsafe { after_of(after) }?;
        with(kv, |kv| kv.move_after(after))
    })
}

/// Begins to copy the published blocks of the first `n_tokens` tokens of a sequence to the store, which keeps them until it
/// evicts them; blocks that it has are left out. The blocks are held until it is over, whatever becomes of the sequence.
/// `after`: what the copy waits for, such as the stream that computes the blocks; needed if the cache lies in device
/// memory, else NULL for nothing. `*out_ticket` receives what `nmc_kv_transfer_poll` takes.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no store; device memory and nothing to wait
/// for), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_BUSY` (being fetched), `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED`,
/// `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_offload(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    after: *const nmc_kv_after_t,
    out_ticket: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_ticket, "out_ticket")?;
        // SAFETY: the C contract of `after`.
        let after = unsafe { after_of(after) }?;
        with(kv, |kv| {
            slot.write(counted(n_tokens, |n| kv.offload(id, n, after))?);
            Ok(())
        })
    })
}

/// Starts to fetch from the store, for a sequence that was just opened, the full blocks that follow those found in the
/// cache, as far as the store has them. `*out_tokens` receives how many tokens that is, and `*out_ticket` the ticket;
/// both are 0 if there are none. `after` is what must be over before the blocks are written; needed if the cache lies
/// in device memory. `flags`: `NMC_KV_ONBOARD_ALL`, `NMC_KV_ONBOARD_BY_LAYER` or 0. Fetch before you fork.
///
/// Until `nmc_kv_transfer_poll` or `nmc_kv_transfer_wait` has reported the end of the transfer, the sequence can be
/// read and closed; everything else is `NMC_ERR_BUSY`. Then the blocks that came count as computed and can be matched,
/// and the engine computes the rest. If the sequence is closed before that, the blocks that had come stay, and nothing
/// else counts as computed. A fetch that fails or is cancelled in the middle leaves the blocks that were complete, in
/// order, and nothing of the others (see `computed_tokens` of `nmc_kv_seq_info_t`); with groups that have blocks of
/// their own it leaves nothing.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: those of `nmc_kv_offload`; `NMC_ERR_UNSUPPORTED` also for
/// `NMC_KV_ONBOARD_BY_LAYER` with groups that have blocks of their own, and for a sequence that shares with a fork what
/// would be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_onboard(
    kv: *mut nmc_kv_t,
    id: u64,
    flags: u32,
    after: *const nmc_kv_after_t,
    out_ticket: *mut u64,
    out_tokens: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let (slot, count) = (out(out_ticket, "out_ticket")?, optional_out(out_tokens, "out_tokens")?);
        if flags & !(NMC_KV_ONBOARD_ALL | NMC_KV_ONBOARD_BY_LAYER) != 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "flags {flags:#x} are unknown");
        }
        // SAFETY: the C contract of `after`.
        let after = unsafe { after_of(after) }?;
        with(kv, |kv| {
            let (all, by_layer) = (flags & NMC_KV_ONBOARD_ALL != 0, flags & NMC_KV_ONBOARD_BY_LAYER != 0);
            let (number, tokens) = kv.onboard(id, after, all, by_layer)?;
            slot.write(number);
            if let Some(count) = count {
                count.write(u64::from(tokens));
            }
            Ok(())
        })
    })
}

/// Stores how far a transfer is, and gives the status that it has.
fn told(
    kv: &Kv,
    (now, over): (Progress, Option<Result<()>>),
    progress: Option<&OutStruct<nmc_kv_progress_t>>,
) -> nmc_status_t {
    if let Some(slot) = progress {
        let size = u64::from(kv.config().tokens_per_block);
        slot.put(nmc_kv_progress_t {
            struct_size: 0,
            layers_done: now.layers_done,
            tokens: u64::from(now.blocks) * size,
            tokens_done: u64::from(now.blocks_done) * size,
        });
    }
    match over {
        None => NMC_IN_PROGRESS,
        Some(Ok(())) => NMC_OK,
        Some(Err(error)) => remember(&error),
    }
}

/// Returns how a transfer is: `NMC_IN_PROGRESS`, or its outcome, and then the ticket is no longer valid. `out_progress`
/// may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_OK` (done), `NMC_IN_PROGRESS`, `NMC_ERR_CANCELLED`,
/// `NMC_ERR_STALE` (a block left the store during the transfer), `NMC_ERR_CORRUPT` (a checksum or size was wrong),
/// `NMC_ERR_NO_SPACE` (the store is full), `NMC_ERR_NOT_FOUND` (no such ticket), and what the store and CUDA return.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_transfer_poll(
    kv: *mut nmc_kv_t,
    ticket: u64,
    out_progress: *mut nmc_kv_progress_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `out_progress`.
        let progress = unsafe { OutStruct::optional(out_progress, "out_progress") }?;
        with(kv, |kv| Ok(told(kv, kv.poll(ticket)?, progress.as_ref())))
    })
}

/// Waits until a transfer is over, at most `timeout_ms` (-1: 30 s); then like `nmc_kv_transfer_poll`.
///
/// Blocks. Thread-safe. Not graph-safe. Statuses: those of `nmc_kv_transfer_poll`; `NMC_IN_PROGRESS` if the time is over first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_transfer_wait(
    kv: *mut nmc_kv_t,
    ticket: u64,
    timeout_ms: i64,
    out_progress: *mut nmc_kv_progress_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `out_progress`.
        let progress = unsafe { OutStruct::optional(out_progress, "out_progress") }?;
        let deadline = Deadline::from_ms(timeout_ms, 30_000)?;
        with(kv, |kv| Ok(told(kv, kv.wait(ticket, deadline)?, progress.as_ref())))
    })
}

/// Asks a transfer to end soon, after the blocks that are under way. `nmc_kv_transfer_poll` then returns its outcome:
/// cancelled, or done if it was quicker.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such ticket, or its outcome was already
/// returned).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_transfer_cancel(kv: *mut nmc_kv_t, ticket: u64) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.cancel_transfer(ticket)))
}
