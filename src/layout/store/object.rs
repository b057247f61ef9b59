//! An object: its header, the words that its writer and its readers store, and what its checksums are bound to.

use super::{INLINE_KEY, KEY_UNIT, MAX_METADATA};
use crate::base::crc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The value is checksummed page by page.
pub const FLAG_CHECKSUM: u32 = 1;
/// The object replaces another when its writer says so; until then the index does not lead to it.
pub const FLAG_HIDDEN: u32 = 2;
/// The value lies in one run of pages.
pub const FLAG_CONTIGUOUS: u32 = 4;
/// In a request: the value comes back into memory from the disk below the store. No header has it.
pub const FLAG_RETURNS: u32 = 8;
/// In a request: nothing goes for the value that only memory has, though the disk below the store is to have it. No header has it.
pub const FLAG_SPARES: u32 = 16;
/// Bit of a plan's name that was given by a cluster.
pub const CLUSTERED: u64 = 1 << 63;
/// Shift of the retain class (2 bits) in the flags.
pub const RETAIN_SHIFT: u32 = 8;
/// Shift of the priority (2 bits) in the flags.
pub const PRIORITY_SHIFT: u32 = 10;
/// Shift of the length of the metadata (9 bits) in the flags.
const METADATA_SHIFT: u32 = 16;
/// Where it is in the flags: these bits stay as they are as long as the object lives.
pub const METADATA_FLAGS: u32 = 0x1ff << METADATA_SHIFT;
const _: () = assert!(MAX_METADATA <= (METADATA_FLAGS >> METADATA_SHIFT) as usize);

/// An object. A look for a key of up to [`INLINE_KEY`] bytes needs the first half only, which is a cache line.
#[repr(C, align(64))]
pub struct ObjectHeader {
    /// See `sync::object`.
    pub control: AtomicU64,
    /// Hash of the key and its namespace for the index, which depends on the store's seed.
    pub key_hash: AtomicU64,
    /// First unit in the key slab, if the object has any there.
    pub key_unit: AtomicU32,
    /// Length of the key.
    pub key_len: AtomicU32,
    /// Namespace and its generation.
    pub namespace: AtomicU32,
    /// `FLAG_*`, retain class, priority, length of the metadata.
    pub flags: AtomicU32,
    /// The first bytes of the key, padded with zeros.
    pub(super) key: [AtomicU64; INLINE_KEY / 8],
    /// Bytes of the value.
    pub bytes_total: AtomicU64,
    /// Bytes of a page.
    pub page_bytes: AtomicU32,
    /// Pages of the value.
    pub n_pages: AtomicU32,
    /// Bytes used of the last page; 0 for an empty value.
    pub last_page_bytes: AtomicU32,
    /// Rank whose heap holds the value.
    pub owner_rank: AtomicU32,
    /// Runs of pages that hold the value.
    pub n_extents: AtomicU32,
    /// Client that writes or wrote it.
    pub writer: AtomicU32,
    /// The first run: `first page << 32 | pages`.
    pub(super) extent: AtomicU64,
    /// When the state was entered, CLOCK_MONOTONIC ns.
    pub state_ts: AtomicU64,
    /// Name of the put that the value came from, and of its write plan: unguessable. One that a cluster has given has
    /// [`CLUSTERED`] set, and all replicas of that put have it; one of this store's own has not.
    pub plan_id: AtomicU64,
    /// When a soft retention ends, CLOCK_MONOTONIC ns.
    pub retain_until: AtomicU64,
}

/// What a header says about where its value is, read once and in range: whatever is in the header by now, these pages
/// are pages of the store. A stray store may still have made them those of another object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Pages of the value.
    pub n_pages: u32,
    /// Rank whose heap holds it.
    pub owner_rank: u32,
    /// Runs of pages.
    pub n_extents: u32,
    /// First page and pages of the first run.
    pub first: (u32, u32),
}

impl Shape {
    /// Begins a number that tells where the pages of a value are: those that its writer was given are those that are summed.
    #[must_use]
    pub fn trace(&self) -> u64 {
        u64::from(self.owner_rank) + 1
    }

    /// Goes on with a run.
    #[must_use]
    pub fn traced(trace: u64, (first, count): (u32, u32)) -> u64 {
        let mixed = (trace ^ (u64::from(first) << 32 | u64::from(count))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.rotate_left(29)
    }
}

/// Words of an object that its writer stores.
#[repr(C, align(16))]
pub struct PublishWords {
    /// Epoch in which the object is complete.
    pub published: AtomicU64,
    /// Pages that are complete already, or [`Seal::word`]. Reset by the master before the object is opened.
    pub progress: AtomicU64,
}

/// What the checksums of a value are bound to, besides its bytes: a page that a stray store leads to, or one that was
/// given to two objects, is intact, but not this object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// Hash of the key: the reader's own, not what the header says.
    pub key_hash: u64,
    /// Epoch of the object.
    pub epoch: u64,
    /// [`Seal::sum`] of its metadata.
    pub metadata: u64,
}

const SEALED: u64 = 1 << 63;

impl Seal {
    fn mix(self, value: u64) -> u64 {
        let mut x = self.key_hash ^ self.epoch.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for word in [value, self.epoch] {
            x = (x ^ word).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
            x ^= x >> 32;
        }
        x
    }

    /// What stands for metadata in a seal; 0 if there is none.
    #[must_use]
    pub fn sum(metadata: &[u8]) -> u64 {
        if metadata.is_empty() { 0 } else { (metadata.len() as u64) << 32 | u64::from(crc::crc32c(metadata)) }
    }

    /// What `progress` holds when a value of `bytes` bytes is complete, and so are its checksums.
    #[must_use]
    pub fn word(self, bytes: u64) -> u64 {
        let metadata = if self.metadata == 0 { 0 } else { self.mix(self.metadata) };
        self.mix(!bytes ^ metadata) | SEALED
    }

    /// Whether `progress` is such a word, of whatever object.
    #[must_use]
    pub fn is_word(progress: u64) -> bool {
        progress & SEALED != 0
    }

    /// What the checksum of page `page` of the value starts with.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "half of a mixed word")]
    pub fn page_seed(self, page: u64) -> u32 {
        self.mix(page) as u32
    }
}

/// What the writer of an object said about it, beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    pub(super) bytes: [u8; MAX_METADATA],
    pub(super) len: usize,
}

impl std::ops::Deref for Metadata {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The flags of an object with so much metadata.
#[must_use]
pub fn metadata_flags(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(0) << METADATA_SHIFT & METADATA_FLAGS
}

/// The length of an object's metadata, from its flags.
#[must_use]
pub fn metadata_len(flags: u32) -> usize {
    ((flags & METADATA_FLAGS) >> METADATA_SHIFT) as usize
}

/// Bits of an access word that are the time.
const ACCESS_TIME: u32 = 40;

/// The access word of an object that is read at this time, in ms; `None` if it says so already. Besides the time it counts the
/// milliseconds in which the object was read.
#[inline(always)]
#[must_use]
pub fn access_word(before: u64, now: u64) -> Option<u64> {
    let time = now & ((1 << ACCESS_TIME) - 1);
    let same = before & ((1 << ACCESS_TIME) - 1) == time;
    (!same).then(|| u64::from(reads_of(before)).saturating_add(1).min((1 << 24) - 1) << ACCESS_TIME | time)
}

/// In how many milliseconds an object was read, by its access word.
#[inline(always)]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "24 bits")]
pub fn reads_of(word: u64) -> u32 {
    (word >> ACCESS_TIME) as u32
}

/// Up to 8 bytes as a word, padded with zeros.
pub(super) fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Whether `stored` begins with `bytes`, the last word padded with zeros.
#[inline(always)]
pub(super) fn same(stored: &[AtomicU64], bytes: &[u8]) -> bool {
    let (whole, rest) = bytes.as_chunks::<8>();
    // Without a branch a word: keys that come this far are nearly always equal.
    let differs = stored
        .iter()
        .zip(whole)
        .fold(0, |differs, (word, bytes)| differs | (word.load(Ordering::Relaxed) ^ u64::from_le_bytes(*bytes)));
    differs == 0
        && (rest.is_empty() || stored.get(whole.len()).is_some_and(|w| w.load(Ordering::Relaxed) == padded(rest)))
}

#[inline(never)]
pub(super) fn short_is(object: &ObjectHeader, key: &[u8]) -> bool {
    same(&object.key, key)
}

/// Words of a key that its header has no room for.
#[inline(always)]
pub(super) const fn tail_words(key_len: usize) -> usize {
    key_len.saturating_sub(INLINE_KEY).div_ceil(8)
}

/// Units that an object takes in the key slab: none for most.
#[must_use]
pub fn key_units(key_len: usize, extents: usize, metadata_len: usize) -> u32 {
    let words = tail_words(key_len) + extents.saturating_sub(1) + metadata_len.div_ceil(8);
    u32::try_from((words * 8).div_ceil(KEY_UNIT)).unwrap_or(u32::MAX)
}
