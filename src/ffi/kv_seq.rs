//! `nmc_kv_*`: the sequences of a cache.

use super::arg::{array, array_out};
use super::basic::nmc_slice_t;
use super::config::{self, OutStruct};
use super::kv::{bytes, nmc_kv_t, with};
use super::kv_types::*;
use super::{guard, guard_status, optional_out, out, remember};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_NO_SPACE, NMC_OK, nmc_status_t};
use crate::kv::hash::BlockHash;
use crate::kv::{Attempt, Kv, MAX_TOKENS, Open, Room};

/// Where the caller wants to know how much room there was.
type RoomOut = Option<OutStruct<nmc_kv_room_t>>;

/// Checks a caller's `out_room`.
///
/// # Safety
/// NULL, or a struct that says its size.
#[inline(always)]
unsafe fn room_out(out_room: *mut nmc_kv_room_t) -> Result<RoomOut> {
    // SAFETY: forwarded from the caller.
    unsafe { OutStruct::optional(out_room, "out_room") }
}

/// Gives the status of a call that needs room.
#[inline(always)]
fn finish(kv: &Kv, attempt: Attempt<()>, room: &RoomOut) -> nmc_status_t {
    match attempt {
        Ok(()) => NMC_OK,
        Err(short) => too_short(kv, short, room),
    }
}

/// Stores how much room there was, and gives the status that says there was too little.
#[cold]
fn too_short(kv: &Kv, short: Room, room: &RoomOut) -> nmc_status_t {
    if let Some(slot) = room {
        let Room { own_group, needed, free, evictable } = short;
        slot.put(nmc_kv_room_t { struct_size: 0, group: kv.group_of(own_group), needed, free, evictable });
    }
    remember(&short.error())
}

/// Opens sequence `id` with `n_tokens` tokens: takes the blocks that the cache has of its prefix, and gets others for
/// the rest, all or nothing. The program chooses the id, or the cache does with `NMC_KV_ID_AUTO`: one of 2^63 or above
/// that no open sequence has, and that it never chooses again; `out_opened->id` says which, or `nmc_kv_find` for a
/// sequence with a name. `tokens` may be NULL: then nothing is matched or published. `options`, `out_opened` and
/// `out_room` may be NULL; `*out_room` is stored with `NMC_ERR_NO_SPACE`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS` (the id or
/// the name), `NMC_ERR_LIMIT` (`max_sequences`, or more than 2^31 tokens), `NMC_ERR_INVALID_ARG` (also:
/// `NMC_KV_ID_AUTO` with neither `out_opened` nor a name, so that the sequence could not be found), `NMC_ERR_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_open(
    kv: *mut nmc_kv_t,
    id: u64,
    tokens: *const u32,
    n_tokens: u64,
    options: *const nmc_kv_open_t,
    out_opened: *mut nmc_kv_opened_t,
    out_room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of the out structs.
        let (slot, room) = unsafe { (OutStruct::optional(out_opened, "out_opened")?, room_out(out_room)?) };
        with(kv, |kv| {
            // SAFETY: the C contract of the arguments.
            let open = unsafe { parse_open(tokens, n_tokens, options) }?;
            let (id, attempt) = if id != NMC_KV_ID_AUTO {
                (id, kv.open(id, &open)?)
            } else if slot.is_some() || open.name.is_some() {
                kv.open_auto(&open)?
            } else {
                crate::bail!(NMC_ERR_INVALID_ARG, "NMC_KV_ID_AUTO needs out_opened or a name, to say which id it is");
            };
            if let (Ok(got), Some(slot)) = (attempt, slot) {
                let (hit_tokens, tokens) = (u64::from(got.hit_tokens), u64::from(got.tokens));
                slot.put(nmc_kv_opened_t { struct_size: 0, reserved0: 0, id, hit_tokens, tokens });
            }
            Ok(finish(kv, attempt.map(|_| ()), &room))
        })
    })
}

/// # Safety
/// The C contract of `nmc_kv_open`, as long as the result is used.
unsafe fn parse_open<'a>(tokens: *const u32, n_tokens: u64, options: *const nmc_kv_open_t) -> Result<Open<'a>> {
    let known_flags = NMC_KV_OPEN_CONTIGUOUS | NMC_KV_OPEN_PRIVATE | NMC_KV_OPEN_MATCH_ALL;
    // SAFETY: the C contract of `options`.
    let o = if options.is_null() { config::Config::defaults() } else { unsafe { config::read(options) }? };
    if o.flags & !known_flags != 0 || o.reserved != [0; 2] {
        crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field or an unknown flag of nmc_kv_open_t is not zero");
    }
    let Some(n_tokens) = u32::try_from(n_tokens).ok().filter(|n| *n <= MAX_TOKENS) else {
        crate::bail!(NMC_ERR_LIMIT, "{n_tokens} tokens are more than a sequence can have ({MAX_TOKENS})");
    };
    // SAFETY: the C contract: each points to as many as is said.
    let (tokens, hashes, salt, name) = unsafe {
        (
            // No tokens are all known: those that are appended can be published.
            if tokens.is_null() && n_tokens > 0 { None } else { Some(array(tokens, n_tokens as usize, "tokens")?) },
            hashes_of(o.hashes, o.n_hashes)?,
            bytes(o.salt, 1 << 20, "salt")?,
            bytes(o.name, 1024, "name")?,
        )
    };
    let all = o.flags & NMC_KV_OPEN_MATCH_ALL != 0;
    Ok(Open {
        n_tokens,
        tokens,
        hashes,
        salt,
        max_hit: if all { n_tokens } else { n_tokens.saturating_sub(1) },
        contiguous: o.flags & NMC_KV_OPEN_CONTIGUOUS != 0,
        priority: u8::try_from(o.priority).unwrap_or(u8::MAX),
        // 49 days are as good as more.
        ttl_ms: u32::try_from(o.ttl_ms).unwrap_or(u32::MAX),
        name: (!name.is_empty()).then_some(name),
        no_publish: o.flags & NMC_KV_OPEN_PRIVATE != 0,
        ..Open::default()
    })
}

/// # Safety
/// `hashes` is NULL or points to `n` hashes.
unsafe fn hashes_of<'a>(hashes: *const nmc_kv_hash_t, n: usize) -> Result<Option<&'a [BlockHash]>> {
    if hashes.is_null() {
        return Ok(None);
    }
    // SAFETY: both are 16 bytes without alignment; the caller promises `n` of them.
    unsafe { array(hashes.cast::<BlockHash>(), n, "hashes") }.map(Some)
}

/// Stores the id of the open sequence with this name in `*out_id`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_find(kv: *mut nmc_kv_t, name: nmc_slice_t, out_id: *mut u64) -> nmc_status_t {
    guard(|| {
        let slot = out(out_id, "out_id")?;
        // SAFETY: the C contract of `name`.
        let name = unsafe { bytes(name, 1024, "name") }?;
        with(kv, |kv| {
            slot.write(kv.find(name)?);
            Ok(())
        })
    })
}

/// Adds `n_tokens` tokens to a sequence, and blocks as they are needed, all or nothing. `tokens` may be NULL if they are
/// not known; then no further blocks of the sequence are published. What it had before counts as computed (see
/// `nmc_kv_t`). A contiguous sequence that cannot grow where it is moves: see `nmc_kv_take_copies`. `options` and `out_room` may be
/// NULL; `*out_room` is stored with `NMC_ERR_NO_SPACE`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_LIMIT` (more tokens than
/// the sequence may have), `NMC_ERR_INVALID_ARG` (the options), `NMC_ERR_VERSION`, `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_append(
    kv: *mut nmc_kv_t,
    id: u64,
    tokens: *const u32,
    n_tokens: u64,
    options: *const nmc_kv_append_t,
    out_room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `options`.
        let importance = if options.is_null() { None } else { unsafe { importance_of(options) }? };
        // SAFETY: the C contract of `out_room`.
        let room = unsafe { room_out(out_room) }?;
        let Some(count) = u32::try_from(n_tokens).ok().filter(|n| *n <= MAX_TOKENS) else {
            crate::bail!(NMC_ERR_LIMIT, "{n_tokens} tokens are more than a sequence can have ({MAX_TOKENS})");
        };
        // SAFETY: NULL, or as many tokens as is said.
        let tokens = if tokens.is_null() { None } else { Some(unsafe { array(tokens, count as usize, "tokens") }?) };
        with(kv, |kv| Ok(finish(kv, kv.append(id, count, tokens, importance)?, &room)))
    })
}

/// The importance that options ask for; none if it is that of tokens without one.
///
/// # Safety
/// The C contract of `options`.
#[inline(never)]
unsafe fn importance_of(options: *const nmc_kv_append_t) -> Result<Option<f32>> {
    // SAFETY: forwarded from the caller.
    let nmc_kv_append_t { importance, flags, .. } = unsafe { config::read(options) }?;
    if flags != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {flags:#x} of nmc_kv_append_t are unknown");
    }
    if !importance.is_finite() {
        crate::bail!(NMC_ERR_INVALID_ARG, "importance {importance} is not a finite number");
    }
    Ok((importance != 0.0).then_some(importance))
}

/// Stores what became of one sequence of many. The message is of the first that failed, as the status is.
#[inline(always)]
fn note(at: usize, done: Result<Attempt<()>>, worst: &mut nmc_status_t, statuses: &mut Option<&mut [nmc_status_t]>) {
    let status = match done {
        Ok(Ok(())) => NMC_OK,
        Ok(Err(_)) if *worst != NMC_OK => NMC_ERR_NO_SPACE,
        Err(error) if *worst != NMC_OK => error.status,
        Ok(Err(room)) => remember(&room.error()),
        Err(error) => remember(&error),
    };
    *worst = if *worst == NMC_OK { status } else { *worst };
    if let Some(slot) = statuses.as_mut().and_then(|statuses| statuses.get_mut(at)) {
        *slot = status;
    }
}

/// Adds one token to each of `n` sequences, as a decode step does. `tokens` has one for each, or is NULL. Every sequence
/// gets a status of its own, in `out_statuses` if that is not NULL; those that fail are as they were. Returns `NMC_OK`, or the
/// status of the first that failed.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_append_batch(
    kv: *mut nmc_kv_t,
    ids: *const u64,
    tokens: *const u32,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract: each is NULL or an array of `n`.
        let (ids, tokens, mut statuses) = unsafe {
            (
                array(ids, n, "ids")?,
                if tokens.is_null() { None } else { Some(array(tokens, n, "tokens")?) },
                if out_statuses.is_null() { None } else { Some(array_out(out_statuses, n, "out_statuses")?) },
            )
        };
        let mut worst = NMC_OK;
        with(kv, |kv| {
            let statuses = &mut statuses;
            kv.append_batch(ids, tokens, |at, done| note(at, done, &mut worst, statuses));
            Ok(())
        })?;
        Ok(worst)
    })
}

/// Says that the first `n_tokens` tokens of a sequence are computed, so that their full blocks can be matched at once.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (more than it has), `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_commit(kv: *mut nmc_kv_t, id: u64, n_tokens: u64) -> nmc_status_t {
    guard(|| with(kv, |kv| counted(n_tokens, |n| kv.commit(id, n))))
}

/// Keeps the state that a sequence has now, in all groups of kind `NMC_KV_KIND_RECURRENT`, for later sequences that
/// begin with the same tokens: they can begin here. The sequence must be at the end of a block. All its tokens count as
/// computed. Its next tokens are written to another slot (see `nmc_kv_state_slots`).
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not at the end of a block, or its tokens
/// are not known, so that the state could not be found), `NMC_ERR_UNSUPPORTED` (no such group), `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_keep_state(kv: *mut nmc_kv_t, id: u64) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.keep_state(id)))
}

/// Runs `body` with a number of tokens. One that has no room in 32 bits is refused as the largest is that has, and its error
/// names what the caller gave.
pub(super) fn counted<R>(n_tokens: u64, body: impl FnOnce(u32) -> Result<R>) -> Result<R> {
    match u32::try_from(n_tokens) {
        Ok(n_tokens) => body(n_tokens),
        Err(_) => body(u32::MAX).map_err(|error| {
            Error::new(error.status, error.message.replace(&u32::MAX.to_string(), &n_tokens.to_string()))
        }),
    }
}

/// Gets blocks for `n_tokens` tokens in all, so that growing to there cannot fail. A contiguous sequence may move. Slots of
/// states are not among them: a sequence whose state is kept, or was forked, still needs one when it grows. `out_room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_LIMIT`,
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_reserve(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    out_room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `out_room`.
        let room = unsafe { room_out(out_room) }?;
        with(kv, |kv| Ok(finish(kv, counted(n_tokens, |n| kv.reserve(id, n))?, &room)))
    })
}

/// Cuts a sequence to its first `n_tokens` tokens, as after rejected speculation; what it had reserved is free again. What
/// is cut off was not computed, unless it was committed. If the last block stays in part and others may read it, the
/// sequence gets a copy: see `nmc_kv_take_copies`. `out_room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (for the copy; nothing changed),
/// `NMC_ERR_INVALID_ARG` (more than it has, or into a block that was dropped), `NMC_ERR_UNSUPPORTED` (what the next token needs
/// is gone: blocks that left a window, or the state there), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_truncate(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    out_room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `out_room`.
        let room = unsafe { room_out(out_room) }?;
        with(kv, |kv| Ok(finish(kv, counted(n_tokens, |n| kv.truncate(id, n))?, &room)))
    })
}

/// Opens sequence `child` with the tokens of `parent`. Full blocks are shared; a last block that is not full is copied, and
/// `nmc_kv_take_copies` of the child has the copy. A child's blocks lie anywhere. `child` is the program's: not `NMC_KV_ID_AUTO`.
/// `out_room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS`, `NMC_ERR_INVALID_ARG`
/// (the id), `NMC_ERR_LIMIT`, `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_fork(
    kv: *mut nmc_kv_t,
    parent: u64,
    child: u64,
    out_room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `out_room`.
        let room = unsafe { room_out(out_room) }?;
        if child == NMC_KV_ID_AUTO {
            crate::bail!(NMC_ERR_INVALID_ARG, "the id of a fork is the program's; NMC_KV_ID_AUTO is for nmc_kv_open");
        }
        with(kv, |kv| Ok(finish(kv, kv.fork(parent, child)?, &room)))
    })
}

/// Closes a sequence. Full blocks that it computed stay in the cache for others; all else is free. With
/// `NMC_KV_CLOSE_ABORT`, only what was committed or counts as computed already (see `nmc_kv_t`) stays.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (it was closed before, or never opened),
/// `NMC_ERR_INVALID_ARG` (unknown flags).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_close(kv: *mut nmc_kv_t, id: u64, flags: u32) -> nmc_status_t {
    guard(|| {
        if flags & !NMC_KV_CLOSE_ABORT != 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "flags {flags:#x} are unknown");
        }
        let discard = flags & NMC_KV_CLOSE_ABORT != 0;
        with(kv, |kv| kv.close(id, discard))
    })
}

/// Drops up to `count` full blocks from the middle of a sequence, the least important first (`nmc_kv_append_t`; among
/// equals the earliest). The first `keep_first` and the last `keep_recent` full blocks stay. Other tokens keep their
/// positions; tables have -1 for a dropped block. `out_dropped`, if not NULL, receives how many went.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_UNSUPPORTED` (with
/// `NMC_KV_VIRTUAL`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_drop_least(
    kv: *mut nmc_kv_t,
    id: u64,
    count: u32,
    keep_first: u32,
    keep_recent: u32,
    out_dropped: *mut u32,
) -> nmc_status_t {
    guard(|| {
        let slot = optional_out(out_dropped, "out_dropped")?;
        with(kv, |kv| {
            let count = kv.drop_least(id, count, keep_first, keep_recent)?;
            if let Some(slot) = slot {
                slot.write(count);
            }
            Ok(())
        })
    })
}

/// Stores in `*out_hit_tokens` how many leading tokens the cache has, as cache-aware routers ask. Holds nothing: they may be
/// gone when a sequence is opened. `tokens` or `hashes` may be NULL, not both; `n_tokens` tokens have
/// `n_tokens` / `tokens_per_block` hashes.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_match(
    kv: *mut nmc_kv_t,
    tokens: *const u32,
    n_tokens: u64,
    hashes: *const nmc_kv_hash_t,
    salt: nmc_slice_t,
    out_hit_tokens: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_hit_tokens, "out_hit_tokens")?;
        let count = usize::try_from(n_tokens).unwrap_or(usize::MAX);
        with(kv, |kv| {
            let full = count / kv.config().tokens_per_block as usize;
            // SAFETY: the C contract: each is NULL or as many as is said.
            let (tokens, hashes, salt) = unsafe {
                (
                    if tokens.is_null() { None } else { Some(array(tokens, count, "tokens")?) },
                    hashes_of(hashes, full)?,
                    bytes(salt, 1 << 20, "salt")?,
                )
            };
            if tokens.is_none() && (hashes.is_none() || kv.config().chain.needs_comparison()) && count > 0 {
                crate::bail!(NMC_ERR_INVALID_ARG, "tokens are needed: there are no hashes, or tokens are compared");
            }
            slot.write(u64::from(kv.matching(tokens, hashes, salt)?));
            Ok(())
        })
    })
}

/// Stores the hashes of the full blocks of `tokens` in `out_hashes`, which has room for `n_tokens` / `tokens_per_block`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_hash(
    kv: *mut nmc_kv_t,
    tokens: *const u32,
    n_tokens: u64,
    salt: nmc_slice_t,
    out_hashes: *mut nmc_kv_hash_t,
) -> nmc_status_t {
    guard(|| {
        let count = usize::try_from(n_tokens).unwrap_or(usize::MAX);
        with(kv, |kv| {
            let full = count / kv.config().tokens_per_block as usize;
            // SAFETY: the C contract of the arguments.
            let (tokens, salt, to) = unsafe {
                (
                    array(tokens, count, "tokens")?,
                    bytes(salt, 1 << 20, "salt")?,
                    array_out(out_hashes, full, "out_hashes")?,
                )
            };
            for (to, hash) in to.iter_mut().zip(kv.hashes_of(tokens, salt)?) {
                *to = nmc_kv_hash_t { bytes: hash.0 };
            }
            Ok(())
        })
    })
}

/// Keeps the published blocks of the first `n_tokens` tokens of a sequence in the cache until `nmc_kv_unpin`, also after
/// the sequence is closed. `*out_pin` receives the pin; `out_pinned_tokens`, if not NULL, how many tokens it covers.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_pin(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    out_pin: *mut u64,
    out_pinned_tokens: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let (pin, covered) = (out(out_pin, "out_pin")?, optional_out(out_pinned_tokens, "out_pinned_tokens")?);
        with(kv, |kv| {
            let (number, tokens) = counted(n_tokens, |n| kv.pin(id, n))?;
            pin.write(number);
            if let Some(covered) = covered {
                covered.write(u64::from(tokens));
            }
            Ok(())
        })
    })
}

/// Ends a pin.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (it ended before).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_unpin(kv: *mut nmc_kv_t, pin: u64) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.unpin(pin)))
}
