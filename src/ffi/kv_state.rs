//! `nmc_kv_*`: the cache as a whole: what it holds, its size, its events, and what it says of itself.

use super::arg::array_out;
use super::kv::{nmc_kv_t, with};
use super::kv_types::*;
use super::{guard, optional_out, out, put_struct, text};
use crate::base::status::nmc_status_t;
use crate::kv::events::What;
use crate::kv::hash::BlockHash;
use crate::kv::{GroupReport, GroupStats, KvStats, Placement, State};
use std::ffi::c_char;

/// Evicts every cached block that no sequence or pin holds. `out_evicted`, if not NULL, receives how many.
///
/// Does not block; takes time in the number of cached blocks. Thread-safe. Graph-safe. Statuses: none of its own beside
/// `NMC_ERR_BAD_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_clear(kv: *mut nmc_kv_t, out_evicted: *mut u64) -> nmc_status_t {
    guard(|| {
        let slot = optional_out(out_evicted, "out_evicted")?;
        with(kv, |kv| {
            let count = kv.clear()?;
            if let Some(slot) = slot {
                slot.write(u64::from(count));
            }
            Ok(())
        })
    })
}

/// Stores events from number `*cursor` on in `out_events`, up to `capacity` of them, how many in `*out_n`, and the number to
/// go on with in `*cursor`, which begins at 0. `out_lost`, if not NULL, receives how many were overwritten before they could be read:
/// if it is not 0, what the reader knows has a gap, and `nmc_kv_snapshot` fills it.
///
/// Does not block. Thread-safe; every reader has its own cursor. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_events(
    kv: *mut nmc_kv_t,
    cursor: *mut u64,
    out_events: *mut nmc_kv_event_t,
    capacity: usize,
    out_n: *mut usize,
    out_lost: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let (count, lost) = (out(out_n, "out_n")?, optional_out(out_lost, "out_lost")?);
        // SAFETY: the C contract: one number, and `capacity` events.
        let (cursor, to) =
            unsafe { (&mut array_out(cursor, 1, "cursor")?[0], array_out(out_events, capacity, "out_events")?) };
        with(kv, |kv| {
            let (found, next, gone) = kv.events(*cursor, capacity)?;
            for (to, event) in to.iter_mut().zip(&found) {
                let kind = match event.what {
                    What::Stored => NMC_KV_EVENT_STORED,
                    What::Removed => NMC_KV_EVENT_REMOVED,
                    What::Cleared => NMC_KV_EVENT_CLEARED,
                };
                *to = event_of(event.number, kind, event.hash, event.parent);
            }
            *cursor = next;
            count.write(found.len());
            if let Some(lost) = lost {
                lost.write(gone);
            }
            Ok(())
        })
    })
}

fn event_of(number: u64, kind: u32, hash: BlockHash, parent: BlockHash) -> nmc_kv_event_t {
    let (hash, parent) = (nmc_kv_hash_t { bytes: hash.0 }, nmc_kv_hash_t { bytes: parent.0 });
    nmc_kv_event_t { number, kind, reserved: 0, hash, parent }
}

/// Stores every block of the prefix index as an event `NMC_KV_EVENT_STORED`, each after the one that it continues, how
/// many in `*out_n`, and in `*out_cursor` the number with which `nmc_kv_events` goes on from there.
///
/// Does not block; takes time in the number of blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (more than
/// `capacity`; `*out_n` was stored).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_snapshot(
    kv: *mut nmc_kv_t,
    out_cursor: *mut u64,
    out_events: *mut nmc_kv_event_t,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let (cursor, count) = (out(out_cursor, "out_cursor")?, out(out_n, "out_n")?);
        // SAFETY: the C contract of `out_events`.
        let to = unsafe { array_out(out_events, capacity, "out_events") }?;
        with(kv, |kv| {
            let (all, next) = kv.snapshot()?;
            count.write(all.len());
            if all.len() > capacity {
                crate::bail!(NMC_ERR_TOO_SMALL, "{} blocks are cached, there is room for {capacity}", all.len());
            }
            for (to, (hash, parent)) in to.iter_mut().zip(all) {
                *to = event_of(next, NMC_KV_EVENT_STORED, hash, parent);
            }
            cursor.write(next);
            Ok(())
        })
    })
}

/// Changes the number of blocks, up to `capacity_blocks` of the config. Sequences stay as they are: the blocks that go are
/// the ones with the highest numbers, cached ones are evicted, and if a sequence holds one nothing goes.
///
/// Does not block; takes time in the number of blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (a block that should
/// go is held), `NMC_ERR_INVALID_ARG` (0, or more than the capacity), `NMC_ERR_UNSUPPORTED` (with `NMC_KV_VIRTUAL`).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_resize(kv: *mut nmc_kv_t, total_blocks: u32) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.resize(total_blocks)))
}

/// Stores what a sequence is in `*out_info`. Also for one whose blocks were taken to make room. With `NMC_KV_SEQ_STORED` in
/// `flags` also how many of its tokens the store has, for which every block is looked up there; else that costs nothing.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_INVALID_ARG` (also unknown flags); with
/// `NMC_KV_SEQ_STORED` also `NMC_ERR_NO_MEMORY`, and `NMC_ERR_STALE` for a sequence whose blocks were taken: it has no names for
/// them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_seq_info(
    kv: *mut nmc_kv_t,
    id: u64,
    flags: u32,
    out_info: *mut nmc_kv_seq_info_t,
) -> nmc_status_t {
    guard(|| {
        if flags & !NMC_KV_SEQ_STORED != 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "flags {flags:#x} are unknown");
        }
        let now = with(kv, |kv| {
            let seq = kv.info(id)?;
            let stored = if flags & NMC_KV_SEQ_STORED == 0 { 0 } else { kv.stored_tokens(id)? };
            Ok(nmc_kv_seq_info_t {
                struct_size: 0,
                state: if seq.state == State::Evicted { NMC_KV_SEQ_EVICTED } else { NMC_KV_SEQ_OPEN },
                tokens: seq.tokens.into(),
                max_tokens: seq.limit.into(),
                computed_tokens: seq.computed.into(),
                stored_tokens: stored.into(),
                next_offset_in_block: seq.tokens % kv.config().tokens_per_block,
                blocks: seq.blocks,
                dropped: seq.holes,
                shared: seq.shared,
                published: seq.published,
                contiguous: u32::from(seq.placement != Placement::Paged),
                copies: seq.copies,
                reserved0: 0,
            })
        })?;
        // SAFETY: the C contract of `out_info`.
        unsafe { put_struct(out_info, now) }
    })
}

/// Stores the ids of the sequences that were used longest ago, for a scheduler that preempts by itself: up to `capacity`
/// of them into `out_ids`, the oldest first, and how many into `*out_n`. Takes time in the number of sequences.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_victims(
    kv: *mut nmc_kv_t,
    out_ids: *mut u64,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_n, "out_n")?;
        // SAFETY: the C contract of `out_ids`.
        let to = unsafe { array_out(out_ids, capacity, "out_ids") }?;
        with(kv, |kv| {
            let oldest = kv.oldest(capacity)?;
            slot.write(oldest.len());
            to[..oldest.len()].copy_from_slice(&oldest);
            Ok(())
        })
    })
}

/// Stores the state of the cache in `*out_stats`, all numbers of one moment.
///
/// Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_stats(kv: *mut nmc_kv_t, out_stats: *mut nmc_kv_stats_t) -> nmc_status_t {
    guard(|| {
        let now = with(kv, |kv| {
            let KvStats { cache: stats, arena_bytes, fragmentation } = kv.stats();
            Ok(nmc_kv_stats_t {
                struct_size: 0,
                is_full: u32::from(stats.free + stats.idle == 0),
                total: stats.total,
                used: stats.used,
                idle: stats.idle,
                free: stats.free,
                published: stats.published,
                sequences: stats.sequences,
                asked_tokens: stats.asked_tokens,
                hit_tokens: stats.hit_tokens,
                evicted_blocks: stats.evicted_blocks,
                evicted_sequences: stats.evicted_sequences,
                deduplicated: stats.deduplicated,
                arena_bytes,
                metadata_bytes: stats.bytes,
                fragmentation,
                reserved0: 0,
                moved_sequences: stats.moved_sequences,
                reserved: 0,
            })
        })?;
        // SAFETY: the C contract of `out_stats`.
        unsafe { put_struct(out_stats, now) }
    })
}

/// Stores the blocks of one group in `*out_stats`. For a group without blocks of its own these are those of the cache.
///
/// Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no such group),
/// `NMC_ERR_UNSUPPORTED` (`NMC_KV_VIRTUAL`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_group_stats(
    kv: *mut nmc_kv_t,
    group: u32,
    out_stats: *mut nmc_kv_group_stats_t,
) -> nmc_status_t {
    guard(|| {
        let now = with(kv, |kv| {
            let GroupReport { has_own_blocks, blocks, block_bytes, heap_offset } = kv.group_report(group)?;
            let GroupStats { total, free, idle, used, evicted } = blocks;
            Ok(nmc_kv_group_stats_t {
                struct_size: 0,
                own_blocks: u32::from(has_own_blocks),
                total,
                used,
                idle,
                free,
                evicted,
                block_bytes,
                heap_offset: heap_offset.unwrap_or(u64::MAX),
            })
        })?;
        // SAFETY: the C contract of `out_stats`.
        unsafe { put_struct(out_stats, now) }
    })
}

/// The state as text for people: configuration, numbers that add up, and the sequences; and a picture of the blocks with `width` of
/// them in a line, `.` free, `X` held, `c` cached and idle. 0 for no picture.
///
/// Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (cut, `*out_needed` was stored).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_dump(
    kv: *mut nmc_kv_t,
    width: u32,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> nmc_status_t {
    guard(|| text::copy_out(&with(kv, |kv| kv.dump(width as usize))?, buffer, capacity, out_needed))
}

/// Counts every block afresh, from all sequences, pins and free lists, and compares: proof that nothing is lost or owned
/// twice. For tests and for programs in doubt; takes time in the number of blocks and of what sequences hold.
///
/// Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INTERNAL` (the message says what is wrong).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_audit(kv: *mut nmc_kv_t) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.audit()))
}
