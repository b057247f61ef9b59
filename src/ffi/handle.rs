//! Opaque handles. A handle is an index, a generation and a kind packed into a pointer value that no allocator
//! returns; looking one up never dereferences what the caller passed. Index and generation are hidden under 52 random
//! bits of this copy of the library: a process may have loaded two, and a handle of the other one must not name an object
//! here. While a call uses the object, its thread announces the handle in a hazard cell, and `destroy` waits for those
//! cells (see `sync::hazard`). The lookup is three loads and a store.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BAD_HANDLE, NMC_ERR_BUSY, NMC_ERR_FORKED, NMC_ERR_LIMIT};
use crate::sync::{fork, hazard, membarrier, thread_slot};
use parking_lot::Mutex;
use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Top byte of every handle: not canonical on any 64-bit platform, so no pointer has it.
const MARK: u64 = 0x4e << 56;
const KIND_BITS: u32 = 4;
const INDEX_BITS: u32 = 20;
const GENERATION_SHIFT: u32 = KIND_BITS + INDEX_BITS;
/// Where index and generation are: all that is between kind and mark.
const HIDDEN: u64 = (1 << 56) - (1 << KIND_BITS);
const CHUNK: usize = 1024;
const CHUNKS: usize = (1 << INDEX_BITS) / CHUNK;
/// Library calls that one thread can have open at once (a call made inside a log callback nests).
const NESTING: usize = 4;

/// An object that a handle can stand for.
pub(crate) trait Object: Send + Sync + 'static {
    /// Distinguishes handle types; 1 to 15.
    const KIND: u64;
    /// Name for messages.
    const NAME: &'static str;
    /// Makes calls that wait on this object return soon; `destroy` calls it before it waits for them.
    fn cancel(&self);
}

struct Slot {
    /// The live handle, or 0.
    word: AtomicU64,
    object: AtomicPtr<()>,
}

type Chunk = [Slot; CHUNK];

struct Free {
    /// Slots that can be used again, with the generation they get next.
    reusable: Vec<(u32, u32)>,
    /// First slot that was never used.
    fresh: u32,
}

impl Free {
    /// Makes sure that there is a slot for the next handle, unless all are in use, and that it can be given back.
    fn make_room(&mut self) -> Result<()> {
        let Some(chunk) = TABLE.get(self.fresh as usize / CHUNK).filter(|_| self.reusable.is_empty()) else {
            return Ok(());
        };
        memory::reserve(&mut self.reusable, self.fresh as usize + 1)?;
        if chunk.load(Ordering::Relaxed).is_null() {
            let slot = |_| Slot { word: AtomicU64::new(0), object: AtomicPtr::new(std::ptr::null_mut()) };
            let slots = memory::vec_with(CHUNK, slot)?;
            let empty: Box<Chunk> = slots.try_into().map_err(|_| memory::refused::<Slot>(CHUNK))?;
            chunk.store(Box::into_raw(empty), Ordering::Release);
        }
        Ok(())
    }
}

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];
/// What index and generation of every handle of this copy are xored with; 0 until the first is made. Two copies take the same
/// value for a handle only if 52 random bits say so: one in 2^52 for each pair of handles.
static KEY: AtomicU64 = AtomicU64::new(0);
static FREE: Mutex<Free> = Mutex::new(Free { reusable: Vec::new(), fresh: 0 });

/// One thread's announcements. Records are never freed, only handed to another thread.
#[repr(align(64))]
struct Record {
    cells: [AtomicU64; NESTING],
    /// Calls that the thread has open; only it uses the number.
    depth: AtomicUsize,
    taken: AtomicBool,
    next: AtomicPtr<Record>,
}

static RECORDS: AtomicPtr<Record> = AtomicPtr::new(std::ptr::null_mut());

struct Lease(&'static Record);

impl Drop for Lease {
    fn drop(&mut self) {
        thread_slot::set(std::ptr::null_mut());
        self.0.taken.store(false, Ordering::Release);
    }
}

thread_local! {
    static LEASE: Cell<Option<Lease>> = const { Cell::new(None) };
}

/// The record of the calling thread, if it has one.
#[inline(always)]
fn record() -> Option<&'static Record> {
    // SAFETY: the slot is null or holds what `lease` stored: a record, which is never freed.
    unsafe { thread_slot::get().cast::<Record>().as_ref() }
}

#[cold]
#[inline(never)]
fn claim_record() -> &'static Record {
    let mut at = RECORDS.load(Ordering::Acquire);
    // SAFETY: records are leaked boxes, linked before they are published, and never freed.
    while let Some(record) = unsafe { at.as_ref() } {
        if !record.taken.load(Ordering::Relaxed) && !record.taken.swap(true, Ordering::AcqRel) {
            return lease(record);
        }
        at = record.next.load(Ordering::Acquire);
    }
    let record: &'static Record = Box::leak(Box::new(Record {
        cells: [const { AtomicU64::new(0) }; NESTING],
        depth: AtomicUsize::new(0),
        taken: AtomicBool::new(true),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let mut head = RECORDS.load(Ordering::Acquire);
    loop {
        record.next.store(head, Ordering::Relaxed);
        let new = std::ptr::from_ref(record).cast_mut();
        // SeqCst, so that a destroyer that scans after its heavy fence sees this record or the thread sees the
        // retired word.
        match RECORDS.compare_exchange(head, new, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => return lease(record),
            Err(now) => head = now,
        }
    }
}

fn lease(record: &'static Record) -> &'static Record {
    thread_slot::set(std::ptr::from_ref(record).cast_mut().cast());
    // In a thread whose locals are already torn down the record stays taken: one record per such thread.
    let _ = LEASE.try_with(|lease| lease.set(Some(Lease(record))));
    record
}

/// Takes the key off a handle's index and generation, or puts it on.
#[inline(always)]
fn unhide(handle: u64) -> u64 {
    // Relaxed: who has a handle knows of the key, which was there before the first of them.
    handle ^ KEY.load(Ordering::Relaxed)
}

/// Where the handle would be. Whether it is there, the slot's word says, which holds all of it.
fn slot(handle: u64) -> Option<&'static Slot> {
    let index = (unhide(handle) >> KIND_BITS) as usize & ((1 << INDEX_BITS) - 1);
    let chunk = TABLE[index / CHUNK].load(Ordering::Acquire);
    // SAFETY: chunks are leaked boxes that are published fully initialised and never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % CHUNK])
}

#[cold]
#[inline(never)]
fn bad<T: Object + HasC>(handle: *const T::C) -> Error {
    let value = handle as u64;
    let kind = value & ((1 << KIND_BITS) - 1);
    let why = if value == 0 {
        "is NULL"
    } else if value >> 56 != MARK >> 56 {
        "is not a nanomc handle"
    } else if kind != T::KIND {
        "is a handle of another kind"
    } else {
        "was destroyed, never created, or is of another copy of the library in this process"
    };
    Error::new(NMC_ERR_BAD_HANDLE, format!("the {} handle {handle:p} {why}", T::NAME))
}

/// Ties an object to its opaque C type.
pub(crate) trait HasC {
    /// The opaque C type.
    type C;
}

/// Makes a handle for `object`.
pub(crate) fn create<T: Object + HasC>(object: T) -> Result<*mut T::C> {
    const { assert!(size_of::<T>() < 4096, "the box below is of those that are never refused") };
    prepare()?;
    membarrier::init();
    let mut free = FREE.lock();
    if KEY.load(Ordering::Relaxed) == 0 {
        // The standard library's random keys come from the kernel, and cannot fail for want of a descriptor.
        let random = RandomState::new().hash_one(0) & HIDDEN;
        KEY.store(random.max(1 << KIND_BITS), Ordering::Relaxed);
    }
    let (index, generation) = match free.reusable.pop() {
        Some(entry) => entry,
        None if (free.fresh as usize) < CHUNK * CHUNKS => {
            let index = free.fresh;
            free.make_room()?;
            free.fresh += 1;
            (index, 1)
        }
        None => crate::bail!(NMC_ERR_LIMIT, "all {} handles are in use", CHUNK * CHUNKS),
    };
    drop(free);
    let handle = unhide(MARK | u64::from(generation) << GENERATION_SHIFT | u64::from(index) << KIND_BITS | T::KIND);
    if let Some(slot) = slot(handle) {
        slot.object.store(Box::into_raw(Box::new(object)).cast(), Ordering::Relaxed);
        slot.word.store(handle, Ordering::Release);
    }
    Ok(handle as *mut T::C)
}

/// Refuses to work in a forked child, and marks this process so that its children will be refused. First thing in every
/// call that makes something.
pub(crate) fn prepare() -> Result<()> {
    enter()?;
    // What is made has a handle: nothing that others saw begin ends for want of one.
    FREE.lock().make_room()
}

/// Like [`prepare`], for a call that makes nothing.
pub(crate) fn enter() -> Result<()> {
    if fork::is_child() { Err(forked()) } else { fork::init() }
}

#[cold]
#[inline(never)]
fn too_deep() -> Error {
    Error::new(NMC_ERR_LIMIT, format!("{NESTING} calls of nanomc are already open on this thread"))
}

#[cold]
#[inline(never)]
fn forked() -> Error {
    Error::new(
        NMC_ERR_FORKED,
        "this process was forked from one that uses nanomc; exec first, or fork before the first nmc call",
    )
}

/// Runs `body` with the object behind `handle`, which cannot go away meanwhile.
#[inline]
pub(crate) fn with<T: Object + HasC, R>(handle: *const T::C, body: impl FnOnce(&T) -> Result<R>) -> Result<R> {
    let value = handle as u64;
    let kind = value & ((1 << KIND_BITS) - 1);
    let Some(slot) = (kind == T::KIND && value >> 56 == MARK >> 56).then(|| slot(value)).flatten() else {
        return Err(bad::<T>(handle));
    };
    if fork::is_child() {
        return Err(forked());
    }
    let record = record().unwrap_or_else(claim_record);
    let depth = record.depth.load(Ordering::Relaxed);
    let Some(cell) = record.cells.get(depth) else { return Err(too_deep()) };
    if !hazard::enter(cell, &slot.word, value) {
        return Err(bad::<T>(handle));
    }
    struct Leave<'a>(&'a Record, &'a AtomicU64, usize);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            hazard::leave(self.1);
            self.0.depth.store(self.2, Ordering::Relaxed);
        }
    }
    record.depth.store(depth + 1, Ordering::Relaxed);
    let _leave = Leave(record, cell, depth);
    // SAFETY: the hazard cell announces the handle and the word still held it afterwards, so the object is alive
    // until `_leave` drops; its type follows from the kind in the handle.
    let object = unsafe { &*slot.object.load(Ordering::Acquire).cast::<T>() };
    body(object)
}

/// Ends the life of a handle and returns its object once no call uses it. NULL, and any handle in a forked
/// child, give `None`. A handle that is in use by an outer call of the same thread gives `NMC_ERR_BUSY`.
pub(crate) fn take<T: Object + HasC>(handle: *mut T::C) -> Result<Option<Box<T>>> {
    let value = handle as u64;
    if value == 0 || fork::is_child() {
        return Ok(None);
    }
    // Destroying waits for the object's threads and for calls that use it: any of them may be waiting for this callback,
    // or be in a callback that destroys what this one is called from.
    if crate::base::log::inside() {
        return Err(Error::new(NMC_ERR_BUSY, format!("a {} cannot be destroyed inside a log callback", T::NAME)));
    }
    if let Some(record) = record()
        && record.cells.iter().any(|cell| hazard::held(cell, value))
    {
        return Err(Error::new(
            NMC_ERR_BUSY,
            format!("the {} is in use by an outer call of this thread; destroy it after that returned", T::NAME),
        ));
    }
    let kind = value & ((1 << KIND_BITS) - 1);
    let Some(slot) = (kind == T::KIND && value >> 56 == MARK >> 56).then(|| slot(value)).flatten() else {
        return Err(bad::<T>(handle));
    };
    if !hazard::retire(&slot.word, value) {
        return Err(bad::<T>(handle));
    }
    let raw = slot.object.load(Ordering::Acquire).cast::<T>();
    // SAFETY: we retired the word, so we alone may free the object, and have not yet.
    unsafe { &*raw }.cancel();
    let mut spins = 0u32;
    while anyone_holds(value) {
        spins += 1;
        if spins < 64 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
    slot.object.store(std::ptr::null_mut(), Ordering::Relaxed);
    let plain = unhide(value);
    let index = (plain >> KIND_BITS) & ((1 << INDEX_BITS) - 1);
    let generation = (plain >> GENERATION_SHIFT) & u64::from(u32::MAX);
    // A slot whose generations are used up is never used again.
    if let (Ok(index), Ok(next)) = (u32::try_from(index), u32::try_from(generation + 1)) {
        FREE.lock().reusable.push((index, next));
    }
    // SAFETY: created by `Box::into_raw` in `create` for this type; nobody else holds or can obtain it.
    Ok(Some(unsafe { Box::from_raw(raw) }))
}

fn anyone_holds(value: u64) -> bool {
    let mut at = RECORDS.load(Ordering::SeqCst);
    // SAFETY: records are never freed.
    while let Some(record) = unsafe { at.as_ref() } {
        if record.cells.iter().any(|cell| hazard::held(cell, value)) {
            return true;
        }
        at = record.next.load(Ordering::Acquire);
    }
    false
}
