//! `nmc_kv_*`: the block KV cache: making one, and its sequences.

use super::basic::nmc_slice_t;
use super::config;
use super::handle::{self, HasC, Object};
use super::kv_config::{Given, Heap, Parsed, heap_bytes, parse};
use super::kv_types::*;
use super::store::{array, array_out};
use super::{guard, guard_status, optional_out, out, remember};
use crate::base::error::Result;
use crate::base::status::{NMC_ERR_NO_SPACE, NMC_OK, nmc_status_t};
use crate::kv::arena::{Arena, Group};
use crate::kv::hash::BlockHash;
use crate::kv::mapped::Mapped;
use crate::kv::pack::Places;
use crate::kv::transfer::Link;
use crate::kv::types::{Attempt, MAX_TOKENS, Open, Room};
use crate::kv::{Cache, NONE};
use crate::world::{Membership, World};
use once_cell::sync::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A block KV cache: it maps the tokens of sequences to numbered blocks of equal size. Full blocks of equal tokens are
/// found again by later sequences (prefix reuse), forks share blocks, and tables for attention kernels are written
/// straight into the program's memory. The cache touches the blocks themselves only when it is asked to copy them
/// (`nmc_kv_gather`, `nmc_kv_copy_blocks`, `nmc_kv_offload`, ...). With `NMC_KV_VIRTUAL`, which see, it maps them besides,
/// and some of what follows is different.
///
/// **When blocks count as computed.** `nmc_kv_open` and `nmc_kv_append` give room for tokens that the engine computes
/// afterwards. With the next `nmc_kv_append` or `nmc_kv_close` of the same sequence, what it had before counts as computed,
/// and its full blocks can be matched by others; `nmc_kv_commit` says so earlier. The engine must have enqueued that work
/// by then, and order later work after it: on the same stream, or with an event.
///
/// **When blocks are free.** A block that is let go may be handed out at once. Work that still reads it must be ordered
/// before work that writes the new owner's tokens, as on one stream it is.
///
/// All functions may be called from any thread at the same time, also while another thread destroys the cache; calls for
/// one sequence exclude each other. Threads that work on sequences of their own do not wait for each other, except where
/// blocks are shared. Where nothing else is said, nothing blocks, nothing calls CUDA, and all is graph-safe. Statuses that every function can return:
/// `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`; those that take a sequence also `NMC_ERR_NOT_FOUND`
/// (no such sequence is open) and `NMC_ERR_STALE` (its blocks were taken to make room: close it).
pub struct nmc_kv_t {
    _opaque: [u8; 0],
}

/// The object behind the handle.
pub(super) struct Kv {
    pub cache: Arc<Cache>,
    /// The store that it exchanges blocks with.
    pub link: OnceCell<Link>,
    pub arena: Arena,
    /// Where the groups lie, as far as blocks are copied.
    pub places: OnceCell<Places>,
    /// The memory, if sequences are virtual; the arena is empty then.
    pub mapped: Option<Box<Mapped>>,
    /// Keeps the heap that the groups lie in.
    _member: Option<Membership>,
    /// Where each group begins in that heap.
    pub offsets: Vec<u64>,
    pub capacity: u32,
    /// Ids for sequences that are opened by name alone.
    next_id: AtomicU64,
}

impl Kv {
    /// Fails if the sequences are virtual, with the reason why the call is not for them.
    pub fn paged(&self, call: &str, why: &str) -> Result<()> {
        if self.mapped.is_some() {
            crate::bail!(NMC_ERR_UNSUPPORTED, "{call} is not for a cache with NMC_KV_VIRTUAL: {why}");
        }
        Ok(())
    }
}

impl Object for Kv {
    const KIND: u64 = 6;
    const NAME: &'static str = "KV cache";
    fn cancel(&self) {
        if let Some(link) = self.link.get() {
            link.close();
        }
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

/// Stores how much room there was, and gives the status that says there was too little.
fn finish(kv: &Kv, attempt: Attempt<()>, room: *mut nmc_kv_room_t) -> Result<nmc_status_t> {
    let Err(short) = attempt else { return Ok(NMC_OK) };
    if let Some(slot) = optional_out(room, "room")? {
        let Room { side, needed, free, evictable } = short;
        slot.write(nmc_kv_room_t { needed, free, evictable, group: kv.arena.of_side(side), reserved: 0 });
    }
    Ok(remember(&short.error()))
}

/// Stores how much memory the group with this number of a config needs in `*bytes_needed`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (what `nmc_kv_create` would refuse),
/// `NMC_ERR_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_group_bytes(
    config: *const nmc_kv_config_t,
    group: u32,
    bytes_needed: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let slot = out(bytes_needed, "bytes_needed")?;
        // SAFETY: the C contract of `config`.
        let parsed = unsafe { parse(config) }?;
        let Some(Given { geometry, group, side }) = parsed.groups.get(group as usize) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "group {group} does not exist; there are {}", parsed.groups.len());
        };
        let blocks = if *side == NONE { parsed.capacity } else { group.blocks };
        slot.write(geometry.block_bytes() * u64::from(blocks));
        Ok(())
    })
}

/// Makes a cache with all blocks free and puts a handle into `*out_kv`.
///
/// Does not block, except to get memory for `NMC_KV_VIRTUAL`. Thread-safe. Graph-safe without it. Destroyed with
/// `nmc_kv_destroy`. Statuses: `NMC_ERR_INVALID_ARG` (a number in the config, memory that is too small), `NMC_ERR_VERSION`,
/// `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED` (what `NMC_KV_VIRTUAL` does not have, or no CUDA),
/// `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_create(config: *const nmc_kv_config_t, out_kv: *mut *mut nmc_kv_t) -> nmc_status_t {
    guard(|| {
        let slot = out(out_kv, "out_kv")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let Parsed { config, capacity, groups, wanted, heap } = unsafe { parse(config) }?;
        let cache = Arc::new(Cache::new(config)?);
        let mapped = wanted.map(|wanted| wanted.make(&cache, &groups)).transpose()?.map(Box::new);
        let (member, arena) = match mapped {
            Some(_) => (None, Arena::default()),
            None => place(groups, heap.as_ref())?,
        };
        let (link, places, next_id) = (OnceCell::new(), OnceCell::new(), AtomicU64::new(1 << 63));
        let offsets = heap.map(|heap| heap.offsets).unwrap_or_default();
        let kv = Kv { cache, link, arena, places, mapped, _member: member, offsets, capacity, next_id };
        slot.write(handle::create(kv)?);
        Ok(())
    })
}

/// Finds where groups lie: in memory of the program's, or in the heap of a rank, which the membership then keeps.
fn place(groups: Vec<Given>, heap: Option<&Heap>) -> Result<(Option<Membership>, Arena)> {
    for (number, Given { geometry, group, .. }) in groups.iter().enumerate() {
        if !group.memory.is_null() && group.memory_bytes < geometry.bytes() {
            let (has, needs) = (group.memory_bytes, geometry.bytes());
            crate::bail!(NMC_ERR_INVALID_ARG, "group {number} has {has} bytes of memory and needs {needs}");
        }
    }
    let mut bases: Vec<u64> = groups.iter().map(|given| given.group.memory as u64).collect();
    let mut member = None;
    if let Some(Heap { world, offset, bytes, offsets }) = heap {
        handle::with::<World, _>(*world, |world| {
            let start = world.ptr(world.rank(), *offset, *bytes)?;
            bases = offsets.iter().map(|at| start + (at - offset)).collect();
            member = Some(world.membership());
            Ok(())
        })?;
    }
    let group = |(Given { geometry, side, .. }, base): (Given, u64)| Group { geometry, base, side };
    Ok((member, Arena::new(groups.into_iter().zip(bases).map(group).collect())))
}

/// Stores how many bytes the groups of a config with a `world` need from `heap_offset` on, of which the world may be NULL yet,
/// in `*bytes_needed`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (what `nmc_kv_create` would refuse),
/// `NMC_ERR_UNSUPPORTED` (`NMC_KV_VIRTUAL`), `NMC_ERR_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_heap_bytes(config: *const nmc_kv_config_t, bytes_needed: *mut u64) -> nmc_status_t {
    guard(|| {
        let slot = out(bytes_needed, "bytes_needed")?;
        // SAFETY: the C contract of `config`.
        slot.write(unsafe { heap_bytes(config) }?);
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
    let id = match id {
        Some(id) => id,
        None if name.is_empty() => crate::bail!(NMC_ERR_INVALID_ARG, "options with a name are needed"),
        None => kv.next_id.fetch_add(1, Ordering::Relaxed),
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
    let attempt = match &kv.mapped {
        None => kv.cache.open(id, &open)?,
        Some(mapped) => mapped.open(&kv.cache, id, &open)?,
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
            slot.write(kv.cache.find(name)?);
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
    let attempt = match &kv.mapped {
        None => kv.cache.append(id, count, tokens, importance)?,
        Some(mapped) => mapped.append(&kv.cache, id, count, tokens, importance)?,
    };
    finish(kv, attempt, room)
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
            match &kv.mapped {
                None => kv.cache.append_batch(ids, tokens, |at, done| note(at, done, &mut worst, statuses)),
                Some(mapped) => {
                    mapped.append_batch(&kv.cache, ids, tokens, &mut |at, done| note(at, done, &mut worst, statuses));
                }
            }
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
    guard(|| with(kv, |kv| kv.cache.commit(id, clamp(n_tokens))))
}

/// Keeps the state that a sequence has now, in all groups of kind `NMC_KV_RECURRENT`, for later sequences that begin with the
/// same tokens: they can begin here. The sequence must be at the end of a block. All its tokens count as computed. Its next
/// tokens are written to another slot (see `nmc_kv_states`).
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not at the end of a block, or its tokens are not
/// known, so that nobody could find it), `NMC_ERR_UNSUPPORTED` (no such group), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_kv_keep_state(kv: *mut nmc_kv_t, id: u64) -> nmc_status_t {
    guard(|| with(kv, |kv| kv.cache.keep_state(id)))
}

/// A count of tokens, of which any that is too large is refused as well.
fn clamp(n_tokens: u64) -> u32 {
    u32::try_from(n_tokens).unwrap_or(u32::MAX)
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
    guard_status(|| {
        with(kv, |kv| match &kv.mapped {
            None => finish(kv, kv.cache.reserve(id, clamp(n_tokens))?, room),
            Some(mapped) => finish(kv, mapped.reserve(&kv.cache, id, clamp(n_tokens))?, room),
        })
    })
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
    guard_status(|| {
        with(kv, |kv| match &kv.mapped {
            None => finish(kv, kv.cache.truncate(id, clamp(n_tokens))?, room),
            Some(mapped) => finish(kv, mapped.truncate(&kv.cache, id, clamp(n_tokens))?, room),
        })
    })
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
    guard_status(|| {
        with(kv, |kv| match &kv.mapped {
            None => finish(kv, kv.cache.fork(parent, child)?, room),
            Some(mapped) => finish(kv, mapped.fork(&kv.cache, parent, child)?, room),
        })
    })
}

/// Stores the block copies that a sequence waits for, and forgets them. They must be enqueued, in this order, before the
/// next call that changes the sequence, or its parent if it was forked; the blocks that they read stay until then. Paged
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
            kv.paged("nmc_kv_copies", "nmc_kv_moves has the addresses")?;
            let plan = match kv.cache.take_plan(id, capacity)? {
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
                let (from, group) = (copy.from.cast_signed(), kv.arena.of_side(copy.side));
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
        with(kv, |kv| match &kv.mapped {
            None => kv.cache.close(id, discard),
            Some(mapped) => mapped.close(&kv.cache, id, discard),
        })
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
            kv.paged("nmc_kv_drop_least", "no table would tell which blocks are gone")?;
            let count = kv.cache.drop_least(id, count, keep_first, keep_recent)?;
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
            let full = n_tokens / u64::from(kv.cache.config().tokens_per_block);
            // SAFETY: the C contract: each is NULL or as many as is said.
            let (tokens, hashes, salt) = unsafe {
                (
                    if tokens.is_null() { None } else { Some(array(tokens, count, "tokens")?) },
                    hashes_of(hashes, full)?,
                    bytes(salt, 1 << 20, "salt")?,
                )
            };
            if tokens.is_none() && (hashes.is_none() || kv.cache.config().chain.needs_comparison()) && count > 0 {
                crate::bail!(NMC_ERR_INVALID_ARG, "tokens are needed: there are no hashes, or tokens are compared");
            }
            slot.write(u64::from(kv.cache.matching(tokens, hashes, salt)));
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
            let full = count / kv.cache.config().tokens_per_block as usize;
            // SAFETY: the C contract of the arguments.
            let (tokens, salt, to) = unsafe {
                (array(tokens, count, "tokens")?, bytes(salt, 1 << 20, "salt")?, array_out(hashes, full, "hashes")?)
            };
            for (to, hash) in to.iter_mut().zip(kv.cache.hashes_of(tokens, salt)) {
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
            let (number, tokens) = kv.cache.pin(id, clamp(n_tokens))?;
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
    guard(|| with(kv, |kv| kv.cache.unpin(pin)))
}
