//! The two slabs of a world. *Control* is written by the master and read by everyone: the parameters of the world
//! and who holds which rank. *Words* is written by ranks: one line each for the farewell, the barrier and its
//! bell, then the program's own words, a cache line apart.

use super::CACHE_LINE;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First word of a control slab.
pub const MAGIC: u64 = 0x6e61_6e6f_6d63_5744;

/// Start of the control slab. Written once, before anyone else sees it.
#[repr(C, align(128))]
pub struct WorldHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// `layout::VERSION` of the creator.
    pub layout_version: AtomicU32,
    /// Number of ranks.
    pub world_size: AtomicU32,
    /// Random name of this world; a new one when all ranks left and others formed a world of the same name.
    pub world_id: AtomicU64,
    /// Bytes of every rank's heap.
    pub heap_bytes: AtomicU64,
    /// Kind of every rank's heap.
    pub heap_kind: AtomicU32,
    /// Program words per rank.
    pub words_per_rank: AtomicU32,
    reserved: [AtomicU64; 11],
}

/// Who holds a rank. Written by the master; a reader takes it as a hint, since fields change one by one.
#[repr(C, align(128))]
pub struct RankEntry {
    /// Grows by one each time a process takes the rank; 0 while nobody ever did.
    pub generation: AtomicU64,
    /// Process id in the master's pid namespace as the rank stated it.
    pub pid: AtomicU32,
    /// CUDA device ordinal + 1, or 0.
    pub device_plus_1: AtomicU32,
    /// Start time of the process, from /proc.
    pub start_time: AtomicU64,
    /// Number of the rank in device code.
    pub device_rank: AtomicU32,
    /// 1 if the rank uses CUDA.
    pub cuda: AtomicU32,
    reserved: [AtomicU64; 12],
}

/// A 64-bit word alone on its cache line.
#[repr(C, align(64))]
pub struct WordLine {
    /// The word.
    pub value: AtomicU64,
    reserved: [AtomicU64; 7],
}

/// Lines of a rank in the words slab that belong to the library.
#[repr(C)]
pub struct RankLines {
    /// Written by the rank when it leaves: `generation << 2 | code`, see [`Farewell`].
    pub farewell: WordLine,
    /// Barriers that the rank has arrived at. Written by the rank.
    pub arrived: WordLine,
    /// Futex that arriving ranks ring. Only rank 0's is used.
    pub bell: WordLine,
    reserved: WordLine,
}

const _: () = {
    assert!(size_of::<WorldHeader>() == 128 && size_of::<RankEntry>() == 128);
    assert!(size_of::<WordLine>() == CACHE_LINE && size_of::<RankLines>() == 4 * CACHE_LINE);
    assert!(offset_of!(WorldHeader, world_id) == 16 && offset_of!(WorldHeader, heap_kind) == 32);
    assert!(offset_of!(RankEntry, start_time) == 16 && offset_of!(RankEntry, cuda) == 28);
    assert!(offset_of!(RankLines, bell) == 128);
};

/// What a rank said when it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Nothing: it is there, or died without a word.
    None,
    /// It left in order: its work is done.
    Left,
    /// It aborted: its kernels may still be running.
    Aborted,
}

impl Farewell {
    /// The word that generation `generation` stores.
    #[must_use]
    pub fn encode(self, generation: u64) -> u64 {
        generation << 2
            | match self {
                Farewell::None => 0,
                Farewell::Left => 1,
                Farewell::Aborted => 2,
            }
    }

    /// What `word` says about `generation`; a word of an earlier generation says nothing.
    #[must_use]
    pub fn decode(word: u64, generation: u64) -> Self {
        match (word >> 2 == generation, word & 3) {
            (true, 1) => Farewell::Left,
            (true, 2) => Farewell::Aborted,
            _ => Farewell::None,
        }
    }
}

/// Bytes of a control slab.
#[must_use]
pub fn control_bytes(world_size: u32) -> u64 {
    let bytes = size_of::<WorldHeader>() + world_size as usize * size_of::<RankEntry>();
    bytes.next_multiple_of(4096) as u64
}

/// Bytes of a words slab.
#[must_use]
pub fn words_bytes(world_size: u32, words_per_rank: u32) -> u64 {
    rank_block_bytes(words_per_rank).saturating_mul(u64::from(world_size))
}

/// Bytes of one rank's part of the words slab: whole pages, so that a part can be handed out by itself.
#[must_use]
pub fn rank_block_bytes(words_per_rank: u32) -> u64 {
    (size_of::<RankLines>() as u64 + u64::from(words_per_rank) * CACHE_LINE as u64).next_multiple_of(4096)
}

/// A control slab, seen through a mapping of at least [`control_bytes`] bytes.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    base: &'a [u8],
}

impl<'a> Control<'a> {
    /// A view of `base`; `None` if it is too short or misaligned for `world_size` ranks.
    #[must_use]
    pub fn new(base: &'a [u8], world_size: u32) -> Option<Self> {
        let fits = base.len() as u64 >= control_bytes(world_size) && base.as_ptr().addr().is_multiple_of(128);
        fits.then_some(Self { base })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &'a WorldHeader {
        // SAFETY: `new` checked size and alignment; the struct is all atomics, valid for any bytes.
        unsafe { &*self.base.as_ptr().cast() }
    }

    /// The entry of `rank`, which must be below the `world_size` given to [`Control::new`].
    #[must_use]
    pub fn rank(&self, rank: u32) -> Option<&'a RankEntry> {
        let at = size_of::<WorldHeader>() + rank as usize * size_of::<RankEntry>();
        let bytes = self.base.get(at..at + size_of::<RankEntry>())?;
        // SAFETY: in bounds, 128-byte aligned since base is and both structs are 128 bytes; all atomics.
        Some(unsafe { &*bytes.as_ptr().cast() })
    }
}

impl WorldHeader {
    /// Fills a fresh header.
    pub fn fill(&self, world_id: u64, world_size: u32, heap_kind: u32, heap_bytes: u64, words_per_rank: u32) {
        self.layout_version.store(super::VERSION, Ordering::Relaxed);
        self.world_size.store(world_size, Ordering::Relaxed);
        self.world_id.store(world_id, Ordering::Relaxed);
        self.heap_kind.store(heap_kind, Ordering::Relaxed);
        self.heap_bytes.store(heap_bytes, Ordering::Relaxed);
        self.words_per_rank.store(words_per_rank, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }
}

/// A words slab, seen through a mapping of at least [`words_bytes`] bytes.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    base: &'a [u8],
    words_per_rank: u32,
}

impl<'a> Words<'a> {
    /// A view of `base`; `None` if it is too short or misaligned.
    #[must_use]
    pub fn new(base: &'a [u8], world_size: u32, words_per_rank: u32) -> Option<Self> {
        let fits =
            base.len() as u64 >= words_bytes(world_size, words_per_rank) && base.as_ptr().addr().is_multiple_of(64);
        fits.then_some(Self { base, words_per_rank })
    }

    /// The library's lines of `rank`.
    #[must_use]
    pub fn lines(&self, rank: u32) -> Option<&'a RankLines> {
        let at = usize::try_from(rank_block_bytes(self.words_per_rank) * u64::from(rank)).ok()?;
        let bytes = self.base.get(at..at + size_of::<RankLines>())?;
        // SAFETY: in bounds, page-aligned blocks in an aligned mapping; all atomics.
        Some(unsafe { &*bytes.as_ptr().cast() })
    }

    /// Byte offset of program word `index` of `rank`; `None` if there is no such word.
    #[must_use]
    pub fn offset(&self, rank: u32, index: u32) -> Option<usize> {
        let at = rank_block_bytes(self.words_per_rank) * u64::from(rank)
            + size_of::<RankLines>() as u64
            + u64::from(index) * CACHE_LINE as u64;
        let at = usize::try_from(at).ok()?;
        (index < self.words_per_rank && at + CACHE_LINE <= self.base.len()).then_some(at)
    }

    /// Program word `index` of `rank`.
    #[must_use]
    pub fn word(&self, rank: u32, index: u32) -> Option<&'a AtomicU64> {
        let at = self.offset(rank, index)?;
        // SAFETY: in bounds and 64-byte aligned by `offset` and `new`.
        Some(unsafe { &(*self.base.as_ptr().add(at).cast::<WordLine>()).value })
    }
}

impl RankLines {
    /// The bell as the 32-bit futex that it is (the low half on little-endian machines).
    #[must_use]
    pub fn bell_futex(&self) -> &AtomicU32 {
        // SAFETY: the first four bytes of an AtomicU64 are aligned and atomic-sized; nobody uses the word as 64 bits.
        unsafe { &*std::ptr::from_ref(&self.bell.value).cast::<AtomicU32>() }
    }
}
