//! `nmc_kv_*`: the sequences of a cache.

use super::arg::{array, array_out};
use super::basic::nmc_slice_t;
use super::config;
use super::kv::{bytes, nmc_kv_t, with};
use super::kv_types::*;
use super::{guard, guard_status, optional_out, out, remember};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_NO_SPACE, NMC_OK, nmc_status_t};
use crate::kv::hash::BlockHash;
use crate::kv::{Attempt, Kv, MAX_TOKENS, Open, Room};

/// Stores how much room there was, and gives the status that says there was too little.
fn finish(kv: &Kv, attempt: Attempt<()>, room: *mut nmc_kv_room_t) -> Result<nmc_status_t> {
    let Err(short) = attempt else { return Ok(NMC_OK) };
    if let Some(slot) = optional_out(room, "room")? {
        let Room { own_group, needed, free, evictable } = short;
        slot.write(nmc_kv_room_t { needed, free, evictable, group: kv.group_of(own_group), reserved: 0 });
    }
    Ok(remember(&short.error()))
}

/// Opens sequence `id`, which the program chooses, with `n_tokens` tokens: takes the blocks that the cache has of its
/// prefix, and gets others for the rest, all or nothing. `tokens` may be NULL: then nothing is matched or published.
/// `options`, `opened` and `room` may be NULL; `*room` is stored with `NMC_ERR_NO_SPACE`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS` (the id or the
/// name), `NMC_ERR_LIMIT` (`max_sequences`, or more than 2^31 tokens), `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_open(
    kv: *mut nmc_kv_t,
    id: u64,
    tokens: *const u32,
    n_tokens: u64,
    options: *const nmc_kv_open_t,
    opened: *mut nmc_kv_opened_t,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of the arguments.
        with(kv, |kv| unsafe { open(kv, Some(id), tokens, n_tokens, options, opened, room) }.map(|(s, _)| s))
    })
}

/// Like `nmc_kv_open`, for programs that know sequences by the name in `options`: stores the id, which the cache chooses
/// (2^63 or above), in `*id`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_open`; `NMC_ERR_INVALID_ARG` also without a name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_open_named(
    kv: *mut nmc_kv_t,
    tokens: *const u32,
    n_tokens: u64,
    options: *const nmc_kv_open_t,
    id: *mut u64,
    opened: *mut nmc_kv_opened_t,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        let slot = out(id, "id")?;
        with(kv, |kv| {
            // SAFETY: the C contract of the arguments.
            let (status, id) = unsafe { open(kv, None, tokens, n_tokens, options, opened, room) }?;
            slot.write(id);
            Ok(status)
        })
    })
}

/// # Safety
/// The C contract of `nmc_kv_open`.
unsafe fn open(
    kv: &Kv,
    id: Option<u64>,
    tokens: *const u32,
    n_tokens: u64,
    options: *const nmc_kv_open_t,
    opened: *mut nmc_kv_opened_t,
    room: *mut nmc_kv_room_t,
) -> Result<(nmc_status_t, u64)> {
    let known_flags = NMC_KV_OPEN_CONTIGUOUS | NMC_KV_OPEN_PRIVATE | NMC_KV_OPEN_MATCH_ALL;
    // SAFETY: the C contract of `options`.
    let o = if options.is_null() { config::Config::defaults() } else { unsafe { config::read(options) }? };
    if o.flags & !known_flags != 0 || o.reserved0 != 0 || o.reserved != [0; 2] {
        crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field or an unknown flag of nmc_kv_open_t is not zero");
    }
    let Some(n_tokens) = u32::try_from(n_tokens).ok().filter(|n| *n <= MAX_TOKENS) else {
        crate::bail!(NMC_ERR_LIMIT, "{n_tokens} tokens are more than a sequence can have ({MAX_TOKENS})");
    };
    let priority = u8::try_from(o.priority).unwrap_or(u8::MAX);
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
    let open = Open {
        n_tokens,
        tokens,
        hashes,
        salt,
        max_hit: if all { n_tokens } else { n_tokens.saturating_sub(1) },
        contiguous: o.flags & NMC_KV_OPEN_CONTIGUOUS != 0,
        priority,
        ttl_ms: o.ttl_ms,
        name: (!name.is_empty()).then_some(name),
        no_publish: o.flags & NMC_KV_OPEN_PRIVATE != 0,
        ..Open::default()
    };
    let slot = optional_out(opened, "opened")?;
    let (id, attempt) = match id {
        Some(id) => (id, kv.open(id, &open)?),
        None => kv.open_named(&open)?,
    };
    if let (Ok(got), Some(slot)) = (attempt, slot) {
        slot.write(nmc_kv_opened_t { hit_tokens: got.hit_tokens, tokens: got.tokens });
    }
    Ok((finish(kv, attempt.map(|_| ()), room)?, id))
}

/// # Safety
/// `hashes` is NULL or points to `n` hashes.
unsafe fn hashes_of<'a>(hashes: *const nmc_kv_hash_t, n: u64) -> Result<Option<&'a [BlockHash]>> {
    if hashes.is_null() {
        return Ok(None);
    }
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    // SAFETY: both are 16 bytes without alignment; the caller promises `n` of them.
    unsafe { array(hashes.cast::<BlockHash>(), n, "hashes") }.map(Some)
}

/// Stores the id of the open sequence with this name in `*id`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_find(kv: *mut nmc_kv_t, name: nmc_slice_t, id: *mut u64) -> nmc_status_t {
    guard(|| {
        let slot = out(id, "id")?;
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
/// `nmc_kv_t`). A contiguous sequence that cannot grow where it is moves: see `nmc_kv_copies`. `room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_LIMIT` (more tokens than
/// the sequence may have), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_append(
    kv: *mut nmc_kv_t,
    id: u64,
    tokens: *const u32,
    n_tokens: u64,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    // SAFETY: the C contract of the arguments.
    guard_status(|| with(kv, |kv| unsafe { append(kv, id, tokens, n_tokens, None, room) }))
}

/// Like `nmc_kv_append`, for tokens of this importance, which `nmc_kv_drop_least` goes by. A block is as important as its
/// most important token; tokens without an importance have 0.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_append`; `NMC_ERR_INVALID_ARG` also if the importance
/// is not a finite number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_append_scored(
    kv: *mut nmc_kv_t,
    id: u64,
    tokens: *const u32,
    n_tokens: u64,
    importance: f32,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| {
        if !importance.is_finite() {
            crate::bail!(NMC_ERR_INVALID_ARG, "importance {importance} is not a finite number");
        }
        // SAFETY: the C contract of the arguments.
        with(kv, |kv| unsafe { append(kv, id, tokens, n_tokens, Some(importance), room) })
    })
}

/// # Safety
/// The C contract of `nmc_kv_append`.
#[inline(always)]
unsafe fn append(
    kv: &Kv,
    id: u64,
    tokens: *const u32,
    n_tokens: u64,
    importance: Option<f32>,
    room: *mut nmc_kv_room_t,
) -> Result<nmc_status_t> {
    let Some(count) = u32::try_from(n_tokens).ok().filter(|n| *n <= MAX_TOKENS) else {
        crate::bail!(NMC_ERR_LIMIT, "{n_tokens} tokens are more than a sequence can have ({MAX_TOKENS})");
    };
    // SAFETY: NULL, or as many tokens as is said.
    let tokens = if tokens.is_null() { None } else { Some(unsafe { array(tokens, count as usize, "tokens") }?) };
    finish(kv, kv.append(id, count, tokens, importance)?, room)
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
/// gets a status of its own, in `statuses` if that is not NULL; those that fail are as they were. Returns `NMC_OK`, or the
/// status of the first that failed.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_append_batch(
    kv: *mut nmc_kv_t,
    ids: *const u64,
    tokens: *const u32,
    n: usize,
    statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract: each is NULL or an array of `n`.
        let (ids, tokens, mut statuses) = unsafe {
            (
                array(ids, n, "ids")?,
                if tokens.is_null() { None } else { Some(array(tokens, n, "tokens")?) },
                if statuses.is_null() { None } else { Some(array_out(statuses, n, "statuses")?) },
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

/// Keeps the state that a sequence has now, in all groups of kind `NMC_KV_KIND_RECURRENT`, for later sequences that begin with the
/// same tokens: they can begin here. The sequence must be at the end of a block. All its tokens count as computed. Its next
/// tokens are written to another slot (see `nmc_kv_states`).
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not at the end of a block, or its tokens are not
/// known, so that nobody could find it), `NMC_ERR_UNSUPPORTED` (no such group), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
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
/// states are not among them: a sequence whose state is kept, or was forked, still needs one when it grows. `room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_LIMIT`,
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_reserve(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| with(kv, |kv| finish(kv, counted(n_tokens, |n| kv.reserve(id, n))?, room)))
}

/// Cuts a sequence to its first `n_tokens` tokens, as after rejected speculation; what it had reserved is free again. What
/// is cut off was not computed, unless it was committed. If the last block stays in part and others may read it, the
/// sequence gets a copy: see `nmc_kv_copies`. `room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (for the copy; nothing changed),
/// `NMC_ERR_INVALID_ARG` (more than it has, or into a block that was dropped), `NMC_ERR_UNSUPPORTED` (what the next token needs
/// is gone: blocks that left a window, or the state there), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_truncate(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| with(kv, |kv| finish(kv, counted(n_tokens, |n| kv.truncate(id, n))?, room)))
}

/// Opens sequence `child` with the tokens of `parent`. Full blocks are shared; a last block that is not full is copied, and
/// the copy is told by `nmc_kv_copies` of the child. A child's blocks lie anywhere. `room` may be NULL.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS`, `NMC_ERR_LIMIT`,
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_fork(
    kv: *mut nmc_kv_t,
    parent: u64,
    child: u64,
    room: *mut nmc_kv_room_t,
) -> nmc_status_t {
    guard_status(|| with(kv, |kv| finish(kv, kv.fork(parent, child)?, room)))
}

/// Stores the block copies that a sequence waits for, and forgets them. They must be enqueued, in this order, before the
/// next call that changes the sequence; the blocks that they read stay until then, whatever becomes of a parent. Paged
/// sequences have at most one, and one more for each group with a window, from `nmc_kv_fork` or `nmc_kv_truncate`; contiguous
/// ones one a block when they move. `nmc_kv_copy_blocks` makes them. `*n` receives how many there are; if `capacity` is less,
/// that is all that happens.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*n` was stored), `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_STALE`, `NMC_ERR_UNSUPPORTED` (with `NMC_KV_VIRTUAL`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_copies(
    kv: *mut nmc_kv_t,
    id: u64,
    copies: *mut nmc_kv_copy_t,
    capacity: usize,
    n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let slot = out(n, "n")?;
        // SAFETY: the C contract of `copies`.
        let to = unsafe { array_out(copies, capacity, "copies") }?;
        with(kv, |kv| {
            let plan = match kv.take_copies(id, capacity)? {
                Ok(plan) => plan,
                Err(count) => {
                    slot.write(count);
                    crate::bail!(
                        NMC_ERR_TOO_SMALL,
                        "sequence {id} waits for {count} copies, there is room for {capacity}"
                    );
                }
            };
            slot.write(plan.len());
            for (to, copy) in to.iter_mut().zip(&plan) {
                let (from, group) = (copy.from.cast_signed(), kv.group_of(copy.own_group));
                *to = nmc_kv_copy_t { from, to: copy.to.cast_signed(), group };
            }
            Ok(())
        })
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

/// Drops up to `count` full blocks from the middle of a sequence, the least important first (`nmc_kv_append_scored`; among
/// equals the earliest). The first `keep_first` and the last `keep_recent` full blocks stay. Other tokens keep their
/// positions; tables have -1 for a dropped block. `dropped`, if not NULL, receives how many went.
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
    dropped: *mut u32,
) -> nmc_status_t {
    guard(|| {
        let slot = optional_out(dropped, "dropped")?;
        with(kv, |kv| {
            let count = kv.drop_least(id, count, keep_first, keep_recent)?;
            if let Some(slot) = slot {
                slot.write(count);
            }
            Ok(())
        })
    })
}

/// Stores in `*hit_tokens` how many leading tokens the cache has, as cache-aware routers ask. Holds nothing: they may be
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
    hit_tokens: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let slot = out(hit_tokens, "hit_tokens")?;
        let count = usize::try_from(n_tokens).unwrap_or(usize::MAX);
        with(kv, |kv| {
            let full = n_tokens / u64::from(kv.config().tokens_per_block);
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

/// Stores the hashes of the full blocks of `tokens` in `hashes`, which has room for `n_tokens` / `tokens_per_block`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_hash(
    kv: *mut nmc_kv_t,
    tokens: *const u32,
    n_tokens: u64,
    salt: nmc_slice_t,
    hashes: *mut nmc_kv_hash_t,
) -> nmc_status_t {
    guard(|| {
        let count = usize::try_from(n_tokens).unwrap_or(usize::MAX);
        with(kv, |kv| {
            let full = count / kv.config().tokens_per_block as usize;
            // SAFETY: the C contract of the arguments.
            let (tokens, salt, to) = unsafe {
                (array(tokens, count, "tokens")?, bytes(salt, 1 << 20, "salt")?, array_out(hashes, full, "hashes")?)
            };
            for (to, hash) in to.iter_mut().zip(kv.hashes_of(tokens, salt)?) {
                *to = nmc_kv_hash_t { bytes: hash.0 };
            }
            Ok(())
        })
    })
}

/// Keeps the published blocks of the first `n_tokens` tokens of a sequence in the cache until `nmc_kv_unpin`, also after
/// the sequence is closed. `*pin` receives the pin; `pinned_tokens`, if not NULL, how many tokens it covers.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_pin(
    kv: *mut nmc_kv_t,
    id: u64,
    n_tokens: u64,
    pin: *mut u64,
    pinned_tokens: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let (pin, covered) = (out(pin, "pin")?, optional_out(pinned_tokens, "pinned_tokens")?);
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
