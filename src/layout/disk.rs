//! The slab that leads to values on disk: written by the master alone, read by everyone. An entry has four words, see
//! `sync::disk_entry`; two tables lead to entries, see `sync::index`. A key is known by a fingerprint of 80 bits here; whoever
//! reads the disk finds the whole key there.

use super::region::{InShared, Region, prefetch};
use super::store::MAX_NAMESPACES;
use crate::sync::disk_entry::{self, LIVE, Words};
use crate::sync::index::{self, Found, Tables};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// First word of the slab.
pub const MAGIC: u64 = 0x6e61_6e6f_6d63_4453;
/// Most entries.
pub const MAX_ENTRIES: u64 = 1 << 31;
/// Limits, exclusive, of what an entry can hold: bytes of a value, buckets, blocks of a bucket, namespaces.
pub const MAX_VALUE: u64 = 1 << 40;
/// See [`MAX_VALUE`].
pub const MAX_BUCKET: u64 = 1 << (28 + BUCKET_HIGH);
/// See [`MAX_VALUE`].
pub const MAX_BLOCK: u64 = 1 << 28;
/// See [`MAX_VALUE`].
pub const MAX_SPACE: u32 = 256;

/// Bits of a bucket's number that do not lie beside its block.
const BUCKET_HIGH: u32 = 8;
/// Those of it that do.
const LOW: u64 = (1 << 28) - 1;

/// A namespace as the disk knows it, and how often it was flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Space {
    /// Its number, which stays the same as long as anything of it is on disk.
    pub number: u32,
    /// Grows with every flush.
    pub generation: u32,
}

/// 80 bits that stand for a key in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Low bits; they choose the place in the index.
    pub low: u64,
    /// The other 16.
    pub high: u16,
}

/// Keys up to this length are hashed in one go, without the state of a longer hash: a quarter less time, which every miss of a
/// store with a tier pays.
const SHORT_KEY: usize = 120;

/// The fingerprint of a key in a tier with this secret: keyed BLAKE3. Whoever does not know the secret cannot make two keys that
/// have the same. Number and generation have a fixed width in front of the key, so that nothing of one can be read as part of
/// another.
#[must_use]
pub fn fingerprint(secret: &[u8; 32], space: Space, key: &[u8]) -> Fingerprint {
    let mut text = [0; 8 + SHORT_KEY];
    text[..4].copy_from_slice(&space.number.to_le_bytes());
    text[4..8].copy_from_slice(&space.generation.to_le_bytes());
    let hash = match text.get_mut(8..8 + key.len()) {
        Some(room) => {
            room.copy_from_slice(key);
            blake3::keyed_hash(secret, &text[..8 + key.len()])
        }
        None => blake3::Hasher::new_keyed(secret).update(&text[..8]).update(key).finalize(),
    };
    let [a, b, c, d, e, f, g, h, i, j, ..] = *hash.as_bytes();
    Fingerprint { low: u64::from_le_bytes([a, b, c, d, e, f, g, h]), high: u16::from_le_bytes([i, j]) }
}

/// Where a record begins: bucket and block of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spot {
    /// Number of the bucket.
    pub bucket: u64,
    /// Block in it.
    pub block: u64,
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its own epoch, which grows whenever its place is used again: that of the value, if it was there when the tier was opened; a
    /// later one if it came since. Of a record that is being written or was just found: that of the value.
    pub epoch: u64,
    /// What stands for its key.
    pub fingerprint: Fingerprint,
    /// Bytes of the value.
    pub bytes: u64,
    /// Where it lies.
    pub spot: Spot,
    /// Number of its namespace.
    pub space: u32,
}

impl Entry {
    /// Whether the words have room for it.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.bytes < MAX_VALUE
            && self.spot.bucket < MAX_BUCKET
            && self.spot.block < MAX_BLOCK
            && self.space < MAX_SPACE
            && self.epoch < 1 << 56
    }

    /// The words of an entry that lives.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        let Self { epoch, fingerprint, bytes, spot, space } = *self;
        [
            disk_entry::first(LIVE, epoch),
            fingerprint.low,
            u64::from(fingerprint.high) << 48 | spot.bucket >> 28 << 40 | bytes,
            u64::from(space) << 56 | (spot.bucket & LOW) << 28 | spot.block,
        ]
    }

    /// The inverse of [`Entry::words`].
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "16 and 8 bits")]
    pub fn from_words(words: [u64; 4]) -> Self {
        let high = words[2] >> 40 & ((1 << BUCKET_HIGH) - 1);
        Self {
            epoch: disk_entry::epoch(words[0]),
            fingerprint: Fingerprint { low: words[1], high: (words[2] >> 48) as u16 },
            bytes: words[2] & (MAX_VALUE - 1),
            spot: Spot { bucket: high << 28 | words[3] >> 28 & LOW, block: words[3] & (MAX_BLOCK - 1) },
            space: (words[3] >> 56) as u32,
        }
    }
}

/// Start of the slab.
#[repr(C, align(64))]
pub struct DiskHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// `layout::VERSION` of the creator.
    pub layout_version: AtomicU64,
    /// Name of the slab, as the store's header has it.
    pub id: AtomicU64,
    /// Entries.
    pub entries: AtomicU64,
    secret: [AtomicU64; 4],
    /// Counts switches of the index.
    pub root: AtomicU64,
    /// Counts entries that end while memory has what takes their place: another value, or in the upper half the same one.
    pub moved: AtomicU64,
    /// Reads after which a value comes back into memory; 0 for never.
    pub promote_after: AtomicU64,
    /// 1 if puts wait until their values are on disk.
    pub write_through: AtomicU64,
    /// Bytes of all values.
    pub bytes_used: AtomicU64,
    /// Bytes that there may be.
    pub bytes_total: AtomicU64,
    /// Values of which the owner has told programs that they were stored or evicted.
    pub told: AtomicU64,
    reserved: [AtomicU64; 1],
    /// By the number of a namespace in this store, what it is to the disk; see [`View::space`].
    spaces: [AtomicU64; MAX_NAMESPACES],
}

/// An entry.
#[repr(C, align(32))]
pub struct EntryWords(pub Words);

const _: () = assert!(size_of::<EntryWords>() == 32 && std::mem::offset_of!(DiskHeader, root) == 64);

// SAFETY: repr(C) and all fields are atomics.
unsafe impl InShared for DiskHeader {}
// SAFETY: as above.
unsafe impl InShared for EntryWords {}

/// No namespace on disk.
const NO_SPACE: u64 = u64::MAX;

/// Where everything is.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    entries: usize,
    buckets: usize,
    entries_at: usize,
    tables_at: usize,
    puts_at: usize,
    /// Bytes of the slab.
    pub bytes: usize,
}

impl Layout {
    /// The layout for this many entries; `None` if they are too many.
    #[must_use]
    pub fn new(entries: u64) -> Option<Self> {
        let entries = usize::try_from(entries).ok().filter(|n| (1..=MAX_ENTRIES).contains(&(*n as u64)))?;
        // At most five of eight are in use, and one of eight is a tombstone.
        let buckets = (entries + entries / 5 * 3 + 3).next_power_of_two();
        let entries_at = size_of::<DiskHeader>().next_multiple_of(4096);
        let tables_at = (entries_at + entries * size_of::<EntryWords>()).next_multiple_of(4096);
        let puts_at = tables_at + 2 * buckets * 8;
        let bytes = (puts_at + entries * 8).next_multiple_of(4096);
        Some(Self { entries, buckets, entries_at, tables_at, puts_at, bytes })
    }
}

/// What is in the mapped slab.
#[derive(Clone, Copy)]
pub struct View<'a> {
    header: &'a DiskHeader,
    entries: &'a [EntryWords],
    /// By entry, the put that its value came from. Apart from the words, which every search looks at.
    puts: &'a [AtomicU64],
    tables: [&'a [AtomicU64]; 2],
}

impl<'a> View<'a> {
    /// A view of a mapped slab, which must be as large as `layout` says; `None` if it is not.
    #[must_use]
    pub fn new(layout: &Layout, slab: Region<'a>) -> Option<Self> {
        let table = |n: usize| slab.slice(layout.tables_at + n * layout.buckets * 8, layout.buckets);
        let entries = slab.slice(layout.entries_at, layout.entries)?;
        let puts = slab.slice(layout.puts_at, layout.entries)?;
        Some(Self { header: slab.at(0)?, entries, puts, tables: [table(0)?, table(1)?] })
    }

    /// The start of the slab.
    #[must_use]
    pub fn header(&self) -> &'a DiskHeader {
        self.header
    }

    /// How many entries there are room for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// The words of an entry.
    #[inline]
    #[must_use]
    pub fn entry(&self, index: u32) -> Option<&'a Words> {
        self.entries.get(index as usize).map(|entry| &entry.0)
    }

    /// The put that the value of an entry came from: of the one that lives if its first word is the same before and after.
    #[inline]
    #[must_use]
    pub fn put(&self, index: u32) -> u64 {
        self.puts.get(index as usize).map_or(0, |put| put.load(Ordering::Relaxed))
    }

    /// An entry that lives: its first word, what it says, and the put that its value came from.
    #[must_use]
    pub fn live(&self, index: u32) -> Option<(u64, Entry, u64)> {
        let words = self.entry(index)?;
        let found = disk_entry::read(words)?;
        let put = self.put(index);
        disk_entry::is_still(words, found[0]).then(|| (found[0], Entry::from_words(found), put))
    }

    /// Master: fills an entry that does not live. Its epoch is higher than all that its place has had.
    pub fn fill(&self, index: u32, entry: &Entry, put: u64) {
        let (Some(words), Some(place)) = (self.entry(index), self.puts.get(index as usize)) else { return };
        // Who sees this of the new entry sees that the former one has ended.
        fence(Ordering::Release);
        place.store(put, Ordering::Relaxed);
        disk_entry::fill(words, entry.words());
    }

    /// The bucket that a search begins with will be looked at soon.
    #[inline]
    pub fn prefetch(&self, wanted: Fingerprint) {
        let table = self.tables[(self.header.root.load(Ordering::Relaxed) & 1) as usize];
        index::path(table.len(), wanted.low).next().and_then(|at| table.get(at)).into_iter().for_each(prefetch);
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> Tables<'a> {
        Tables { root: &self.header.root, tables: self.tables }
    }

    /// What a namespace of the store is to the disk; `None` if nothing of it was ever there.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "two halves of a word")]
    pub fn space(&self, namespace: u32) -> Option<Space> {
        let word = self.header.spaces.get(namespace as usize)?.load(Ordering::Acquire);
        (word != NO_SPACE).then_some(Space { number: (word >> 32) as u32, generation: word as u32 })
    }

    /// Master: says what a namespace is to the disk.
    pub fn set_space(&self, namespace: u32, space: Option<Space>) {
        if let Some(place) = self.header.spaces.get(namespace as usize) {
            let word = space.map_or(NO_SPACE, |s| u64::from(s.number) << 32 | u64::from(s.generation));
            place.store(word, Ordering::Release);
        }
    }

    /// The entry of a key that lives, with its first word; fails with [`Found::Busy`] in the place of the entry.
    #[inline]
    pub fn find(&self, wanted: Fingerprint) -> Result<Option<(u32, u64, Entry)>, Busy> {
        let mut hit = None;
        let found = index::find(&self.header.root, &self.tables, wanted.low, |index| {
            let Some(words) = self.entry(index).and_then(disk_entry::read) else { return false };
            let entry = Entry::from_words(words);
            let same = entry.fingerprint == wanted;
            if same {
                hit = Some((index, words[0], entry));
            }
            same
        });
        match found {
            Found::At(_) => Ok(hit),
            Found::Nothing => Ok(None),
            Found::Busy => Err(Busy),
        }
    }
}

/// How often values on disk are read, and when buckets were read last. Whoever reads writes it, without the care that counting
/// exactly would cost; it decides what is kept, never what is right.
#[derive(Clone, Copy)]
pub struct Heat<'a> {
    /// Some value was read as often as it takes to come back into memory.
    due: &'a AtomicU32,
    stamps: &'a [AtomicU32],
    hits: &'a [AtomicU8],
    /// The ranks that read last.
    readers: &'a [AtomicU8],
}

impl<'a> Heat<'a> {
    /// Where the stamps begin.
    const STAMPS_AT: usize = 64;
    /// Stamps of buckets: those whose numbers are so far apart share one.
    const STAMPS: usize = 1 << 16;

    /// Bytes that it takes for so many entries.
    #[must_use]
    pub fn bytes(entries: u64) -> u64 {
        (Self::STAMPS_AT as u64 + Self::STAMPS as u64 * 4 + 2 * entries).next_multiple_of(4096)
    }

    /// A view of mapped memory; `None` if it is too small.
    #[must_use]
    pub fn new(entries: u64, slab: Region<'a>) -> Option<Self> {
        let (at, entries) = (Self::STAMPS_AT + Self::STAMPS * 4, usize::try_from(entries).ok()?);
        let stamps = slab.slice(Self::STAMPS_AT, Self::STAMPS)?;
        Some(Self {
            due: slab.at(0)?,
            stamps,
            hits: slab.slice(at, entries)?,
            readers: slab.slice(at + entries, entries)?,
        })
    }

    fn stamp(&self, bucket: u64) -> &'a AtomicU32 {
        &self.stamps[usize::try_from(bucket).unwrap_or(0) % Self::STAMPS]
    }

    /// A bucket is read, or made, at this time.
    pub fn warm(&self, bucket: u64, now: u32) {
        let stamp = self.stamp(bucket);
        if stamp.load(Ordering::Relaxed) != now {
            stamp.store(now, Ordering::Relaxed);
        }
    }

    /// When a bucket was read or made last.
    #[must_use]
    pub fn last(&self, bucket: u64) -> u32 {
        self.stamp(bucket).load(Ordering::Relaxed)
    }

    /// The value of an entry is read once more, by this rank; it is to come back into memory after so many reads.
    pub fn hit(&self, index: u32, rank: u32, after: u64) {
        let (Some(hits), Some(reader)) = (self.hits.get(index as usize), self.readers.get(index as usize)) else {
            return;
        };
        let now = hits.load(Ordering::Relaxed).saturating_add(1);
        reader.store(u8::try_from(rank).unwrap_or(0), Ordering::Relaxed);
        hits.store(now, Ordering::Relaxed);
        if u64::from(now) >= after {
            self.due.store(1, Ordering::Release);
        }
    }

    /// Owner: the entries of values that were read so often, with the ranks that read them last; their reads count from the
    /// beginning. At most `most`; the others are found the next time.
    pub fn take_due(&self, after: u64, most: usize) -> impl Iterator<Item = (u32, u32)> {
        let some = self.due.swap(0, Ordering::Acquire) != 0;
        let (due, hits, readers) = (self.due, self.hits, self.readers);
        let all = if some { 0..hits.len() } else { 0..0 };
        let mut found = 0;
        all.filter_map(move |index| {
            if u64::from(hits[index].load(Ordering::Relaxed)) < after {
                return None;
            }
            if found == most {
                due.store(1, Ordering::Release);
                return None;
            }
            found += 1;
            hits[index].store(0, Ordering::Relaxed);
            Some((u32::try_from(index).ok()?, readers[index].load(Ordering::Relaxed).into()))
        })
    }

    /// The entry is another value's from now on, or its reads count from the beginning.
    pub fn forget(&self, index: u32) {
        if let Some(hits) = self.hits.get(index as usize) {
            hits.store(0, Ordering::Relaxed);
        }
    }
}

/// The index was switched again and again during a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

impl DiskHeader {
    /// Fills a fresh header.
    pub fn fill(&self, id: u64, entries: u64, secret: &[u8; 32]) {
        self.layout_version.store(super::VERSION.into(), Ordering::Relaxed);
        self.id.store(id, Ordering::Relaxed);
        self.entries.store(entries, Ordering::Relaxed);
        for (place, bytes) in self.secret.iter().zip(secret.as_chunks::<8>().0) {
            place.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.spaces.iter().for_each(|space| space.store(NO_SPACE, Ordering::Relaxed));
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether this is the head of slab `id` in our layout.
    #[must_use]
    pub fn is(&self, id: u64, entries: u64) -> bool {
        self.magic.load(Ordering::Acquire) == MAGIC
            && self.layout_version.load(Ordering::Relaxed) == super::VERSION.into()
            && self.id.load(Ordering::Relaxed) == id
            && self.entries.load(Ordering::Relaxed) == entries
    }

    /// What fingerprints are made with.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        let mut secret = [0; 32];
        for (bytes, word) in secret.as_chunks_mut::<8>().0.iter_mut().zip(&self.secret) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_what_was_put_into_them() {
        let top = Entry {
            epoch: (1 << 56) - 1,
            fingerprint: Fingerprint { low: u64::MAX, high: u16::MAX },
            bytes: MAX_VALUE - 1,
            spot: Spot { bucket: MAX_BUCKET - 1, block: MAX_BLOCK - 1 },
            space: MAX_SPACE - 1,
        };
        let none = Entry { epoch: 0, bytes: 0, spot: Spot { bucket: 0, block: 0 }, space: 0, ..top };
        let mixed = Entry { epoch: 7, bytes: 1 << 39, spot: Spot { bucket: 1, block: 1 << 27 }, space: 3, ..top };
        let late = Entry { spot: Spot { bucket: 1 << 35 | 1 << 28 | 1 << 27, block: 5 }, ..mixed };
        for entry in [top, none, mixed, late, Entry { fingerprint: Fingerprint { low: 1, high: 2 }, ..mixed }] {
            assert!(entry.fits());
            assert_eq!(Entry::from_words(entry.words()), entry);
        }
        assert!(!Entry { bytes: MAX_VALUE, ..top }.fits() && !Entry { space: MAX_SPACE, ..top }.fits());
    }

    #[test]
    fn an_entry_takes_at_most_100_bytes() {
        for entries in [1 << 10, (1 << 10) + 1, 3 << 18, (3 << 18) + 1, (1 << 20) - 1, 1 << 24, 99_999, 1_000_000] {
            let bytes = Layout::new(entries).map_or(usize::MAX, |layout| layout.bytes) - 2 * 4096 - 4096;
            assert!(bytes as u64 <= 100 * entries, "{entries} entries take {bytes} bytes");
        }
        assert!(Layout::new(0).is_none() && Layout::new(MAX_ENTRIES + 1).is_none());
    }

    #[test]
    fn number_generation_and_key_are_told_apart() {
        let secret = [7; 32];
        let of = |number, generation, key: &[u8]| fingerprint(&secret, Space { number, generation }, key);
        let all = [of(0, 0, b"a"), of(1, 0, b"a"), of(0, 1, b"a"), of(0, 0, b"a\0"), of(0, 0, b"b")];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one));
        }
        assert_ne!(of(0, 0, b"a"), fingerprint(&[8; 32], Space { number: 0, generation: 0 }, b"a"));
    }
}
