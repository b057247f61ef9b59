//! The two slabs of a world. *Control* is written by the master and read by everyone: the parameters of the world
//! and who holds which rank. *Words* is written by ranks: one line each for the farewell, the barrier and its
//! bell, then the program's own words, a cache line apart.

use super::CACHE_LINE;
use super::region::{InShared, Region};
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
    /// Written by the rank when it leaves, see [`Farewell::encode`].
    pub farewell: WordLine,
    /// Barriers that the rank has arrived at. Written by the rank.
    pub arrived: WordLine,
    /// Futex that arriving ranks ring. Only rank 0's is used.
    pub bell: WordLine,
    /// Which barrier is over, see `sync::barrier`. Only rank 0's is used.
    pub verdict: WordLine,
    /// The store that the rank is a client of, or 0. Written by the rank.
    pub store: WordLine,
    /// Where ranks that make an expert-parallel group meet.
    pub ep: EpMeeting,
}

/// What a rank shows to the others, and what they answer, while an expert-parallel group is made.
#[repr(C)]
pub struct EpMeeting {
    /// A number that this rank has never shown before; 0 if it never made a group. Written by the rank.
    pub nonce: WordLine,
    /// What it wants the group to be like. Written by the rank before the nonce.
    pub fields: [AtomicU64; 16],
    /// The nonce that each other rank has seen. Written by those ranks.
    pub seen: [AtomicU64; super::MAX_RANKS],
}

const _: () = {
    assert!(size_of::<WorldHeader>() == 128 && size_of::<RankEntry>() == 128);
    assert!(size_of::<WordLine>() == CACHE_LINE && size_of::<RankLines>() == 16 * CACHE_LINE);
    assert!(offset_of!(WorldHeader, world_id) == 16 && offset_of!(WorldHeader, heap_kind) == 32);
    assert!(offset_of!(RankEntry, start_time) == 16 && offset_of!(RankEntry, cuda) == 28);
    assert!(offset_of!(RankLines, bell) == 128);
};

// SAFETY: repr(C) and all fields are atomics.
unsafe impl InShared for WorldHeader {}
// SAFETY: as above.
unsafe impl InShared for RankEntry {}
// SAFETY: as above.
unsafe impl InShared for WordLine {}
// SAFETY: as above.
unsafe impl InShared for RankLines {}

/// What a rank said when it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Nothing: it is there, or died without a word.
    None,
    /// It left in order: its work is done.
    Left,
    /// It aborted: its kernels may still be running.
    Aborted,
    /// It aborted and has been destroyed. Said only in worlds in which nobody is watched.
    Ended,
}

impl Farewell {
    /// The word that generation `generation` stores: a mark that hardly anything else has, the generation, and what it
    /// says. A later generation's is larger.
    #[must_use]
    pub fn encode(self, generation: u64) -> u64 {
        FAREWELL_MARK
            | generation << 2 & FAREWELL_GENERATION
            | match self {
                Farewell::None => 0,
                Farewell::Left => 1,
                Farewell::Aborted => 2,
                Farewell::Ended => 3,
            }
    }

    /// What `word` says about `generation`: nothing, unless it is that generation's own. To take a stray store for a
    /// goodbye would be to give away the memory of a rank that lives.
    #[must_use]
    pub fn decode(word: u64, generation: u64) -> Self {
        let said = [Farewell::Left, Farewell::Aborted, Farewell::Ended];
        said.into_iter().find(|what| what.encode(generation) == word).unwrap_or(Farewell::None)
    }

    fn say(self, generation: u64, place: &AtomicU64) {
        let word = self.encode(generation);
        // A late word of an earlier holder must not hide that of a later one; one that is none hides nothing.
        let is_later = |now: u64| now >> 32 == FAREWELL_MARK >> 32 && now > word;
        let _ = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (!is_later(now)).then_some(word));
    }
}

/// The upper bits of a farewell.
const FAREWELL_MARK: u64 = 0x4e4d_4657 << 32;
/// The bits of its generation.
const FAREWELL_GENERATION: u64 = 0xffff_fffc;

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

/// A control slab.
#[derive(Clone, Copy)]
pub struct Control<'a>(Region<'a>);

impl<'a> Control<'a> {
    /// A view of a mapped control slab.
    #[must_use]
    pub fn new(region: Region<'a>) -> Self {
        Self(region)
    }

    /// The header; `None` if the slab is too small for one.
    #[must_use]
    pub fn header(&self) -> Option<&'a WorldHeader> {
        self.0.at(0)
    }

    /// The entry of `rank`; `None` if the slab has no such rank.
    #[must_use]
    pub fn rank(&self, rank: u32) -> Option<&'a RankEntry> {
        self.0.at(size_of::<WorldHeader>() + rank as usize * size_of::<RankEntry>())
    }

    /// Whether this is the control slab of `world_id` in a layout that we know.
    #[must_use]
    pub fn is_of(&self, world_id: u64) -> bool {
        self.header().is_some_and(|header| {
            header.magic.load(Ordering::Acquire) == MAGIC
                && header.layout_version.load(Ordering::Relaxed) == super::VERSION
                && header.world_id.load(Ordering::Relaxed) == world_id
        })
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

/// A words slab.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    region: Region<'a>,
    words_per_rank: u32,
}

impl<'a> Words<'a> {
    /// A view of a mapped words slab.
    #[must_use]
    pub fn new(region: Region<'a>, words_per_rank: u32) -> Self {
        Self { region, words_per_rank }
    }

    fn block(&self, rank: u32) -> Option<usize> {
        usize::try_from(rank_block_bytes(self.words_per_rank) * u64::from(rank)).ok()
    }

    /// The library's lines of `rank`; `None` if there is no such rank.
    #[must_use]
    pub fn lines(&self, rank: u32) -> Option<&'a RankLines> {
        self.region.at(self.block(rank)?)
    }

    /// What the holder of `rank` in `generation` said when it went.
    #[must_use]
    pub fn farewell(&self, rank: u32, generation: u64) -> Farewell {
        Farewell::decode(self.lines(rank).map_or(0, |l| l.farewell.value.load(Ordering::Acquire)), generation)
    }

    /// Stores the last word of the holder of `rank` in `generation`.
    pub fn say_farewell(&self, rank: u32, generation: u64, what: Farewell) {
        if let Some(lines) = self.lines(rank) {
            what.say(generation, &lines.farewell.value);
        }
    }

    /// Byte offset of program word `index` of `rank`; `None` if there is no such word.
    #[must_use]
    pub fn offset(&self, rank: u32, index: u32) -> Option<usize> {
        let at = self.block(rank)? + size_of::<RankLines>() + index as usize * CACHE_LINE;
        (index < self.words_per_rank && at + CACHE_LINE <= self.region.bytes()).then_some(at)
    }

    /// Program word `index` of `rank`.
    #[must_use]
    pub fn word(&self, rank: u32, index: u32) -> Option<&'a AtomicU64> {
        self.region.at::<WordLine>(self.offset(rank, index)?).map(|line| &line.value)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_word_of_a_generation_is_its_farewell() {
        let all = [Farewell::Left, Farewell::Aborted, Farewell::Ended];
        for generation in [1u64, 2, 3, 1000] {
            for what in all {
                assert_eq!(Farewell::decode(what.encode(generation), generation), what);
                assert_eq!(Farewell::decode(what.encode(generation + 1), generation), Farewell::None);
                assert_eq!(Farewell::decode(what.encode(generation), generation + 1), Farewell::None);
            }
            let strays = (0..0x1_0000).chain([u64::MAX, u64::MAX >> 1, 1 << 63, FAREWELL_MARK]);
            for word in strays.chain((0..64).map(|bit| 1 << bit)) {
                assert_eq!(Farewell::decode(word, generation), Farewell::None, "{word:#x}");
            }
        }
    }

    /// Control: what any later generation counts for is what strays count for.
    #[test]
    fn control_a_later_generation_counts_as_gone() {
        let decode = |word: u64, generation: u64| word >> 2 > generation;
        assert!(decode(0xffff, 1) && decode(u64::MAX, 1));
    }

    #[test]
    fn a_stray_word_hides_no_farewell_and_a_late_one_neither() {
        let word = AtomicU64::new(0);
        for stray in [u64::MAX, 0xffff, 1] {
            word.store(stray, Ordering::Relaxed);
            Farewell::Left.say(3, &word);
            assert_eq!(Farewell::decode(word.load(Ordering::Relaxed), 3), Farewell::Left);
            Farewell::Aborted.say(2, &word);
            assert_eq!(Farewell::decode(word.load(Ordering::Relaxed), 3), Farewell::Left);
        }
    }
}
