//! The two slabs of a store. *Control* is written by the master alone and read by everyone: parameters, statistics,
//! clients, namespaces, object headers, the index and the keys. *Words* is written by clients: publish words, access
//! stamps, pin slots and checksums. What different parties write is on different cache lines, except the dense words
//! per object, whose neighbours only slow each other down.

use super::CACHE_LINE;
use super::region::{InShared, Region, hint};
use crate::base::crc;
use crate::sync::{facts, futex, index, object};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First word of a control slab.
pub const MAGIC: u64 = 0x6e61_6e6f_6d63_5354;
/// Longest key.
pub const MAX_KEY: usize = 1024;
/// Bytes of a key that its header holds.
pub const INLINE_KEY: usize = 32;
/// Most bytes that a program can say about an object beside its value.
pub const MAX_METADATA: usize = 256;
/// What a header has no room for, the rest of its key, then all extents but the first, then the object's metadata, is in
/// units of this many bytes.
pub const KEY_UNIT: usize = 32;
/// Most extents of a value.
pub const MAX_EXTENTS: usize = 256;
/// Bytes of a client's pin block before the first slot: a line with the high-water mark and the client's last word.
const PIN_HEAD: usize = CACHE_LINE;
/// Most namespaces, the default one counted.
pub const MAX_NAMESPACES: usize = 64;
/// Longest name of a namespace.
pub const MAX_NAMESPACE_NAME: usize = 64;

/// The value is checksummed page by page.
pub const FLAG_CHECKSUM: u32 = 1;
/// The object replaces another when its writer says so; until then the index does not lead to it.
pub const FLAG_HIDDEN: u32 = 2;
/// The value lies in one run of pages.
pub const FLAG_CONTIGUOUS: u32 = 4;
/// In a request: the value comes back into memory from the disk below the store. No header has it.
pub const FLAG_RETURNS: u32 = 8;
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

/// What all clients of a store must agree on. Every field has a place in [`StoreHeader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Ranks, each of which lends a part of its heap.
    pub world_size: u32,
    /// First byte of that part.
    pub heap_offset: u64,
    /// Bytes of that part.
    pub heap_bytes: u64,
    /// Headers.
    pub max_objects: u32,
    /// Bytes for keys.
    pub key_bytes: u64,
    /// Pin slots of a client.
    pub pin_slots: u32,
    /// Clients at a time.
    pub max_clients: u32,
    /// Number of the eviction policy.
    pub policy: u32,
    /// 1 if values are checksummed.
    pub checksums: u32,
    /// Usage in 1/1000 of the heap above which the master evicts.
    pub high_permille: u32,
    /// Usage in 1/1000 of the heap down to which it evicts.
    pub low_permille: u32,
    /// Time after which an unpublished object is given up, in ms.
    pub watchdog_ms: u32,
}

impl Params {
    /// Pages that each rank lends.
    #[must_use]
    pub fn pages(&self) -> u32 {
        u32::try_from(self.heap_bytes / u64::from(self.page_bytes.max(1))).unwrap_or(u32::MAX)
    }

    /// Facts that can be read before they are overwritten.
    #[must_use]
    pub fn facts(&self) -> usize {
        (self.max_objects as usize / 4).next_power_of_two().clamp(1 << 10, 1 << 16)
    }

    /// Buckets of one table of the index.
    #[must_use]
    pub fn buckets(&self) -> usize {
        (self.max_objects as usize * 2).next_power_of_two()
    }

    /// Units of the key slab.
    #[must_use]
    pub fn key_units(&self) -> u32 {
        u32::try_from(self.key_bytes / KEY_UNIT as u64).unwrap_or(u32::MAX)
    }

    /// All fields as words, in the order of the header.
    #[must_use]
    pub fn words(&self) -> [u64; PARAM_WORDS] {
        [
            self.page_bytes.into(),
            self.world_size.into(),
            self.heap_offset,
            self.heap_bytes,
            self.max_objects.into(),
            self.key_bytes,
            self.pin_slots.into(),
            self.max_clients.into(),
            self.policy.into(),
            self.checksums.into(),
            self.high_permille.into(),
            self.low_permille.into(),
            self.watchdog_ms.into(),
        ]
    }

    /// The inverse of [`Params::words`]; `None` if a field is out of its range.
    #[must_use]
    pub fn from_words(words: &[u64; PARAM_WORDS]) -> Option<Self> {
        let narrow = |at: usize| u32::try_from(words[at]).ok();
        Some(Self {
            page_bytes: narrow(0)?,
            world_size: narrow(1)?,
            heap_offset: words[2],
            heap_bytes: words[3],
            max_objects: narrow(4)?,
            key_bytes: words[5],
            pin_slots: narrow(6)?,
            max_clients: narrow(7)?,
            policy: narrow(8)?,
            checksums: narrow(9)?,
            high_permille: narrow(10)?,
            low_permille: narrow(11)?,
            watchdog_ms: narrow(12)?,
        })
    }

    /// Names of the fields, in the same order, for messages.
    pub const NAMES: [&'static str; PARAM_WORDS] = [
        "page_bytes",
        "world_size",
        "heap_offset",
        "heap_bytes",
        "max_objects",
        "key_slab_bytes",
        "pin_slots",
        "max_clients",
        "eviction",
        "checksums",
        "high watermark",
        "low watermark",
        "watchdog_ms",
    ];
}

/// Number of parameters.
pub const PARAM_WORDS: usize = 13;

/// In the place of the name of a slab that leads to values on disk: the tier is to be opened before anything is stored.
pub const DISK_EXPECTED: u64 = u64::MAX;

/// Start of the control slab.
#[repr(C, align(64))]
pub struct StoreHeader {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// `layout::VERSION` of the creator.
    pub layout_version: AtomicU64,
    /// Random name of the store.
    pub store_id: AtomicU64,
    /// The next epoch to be given out.
    pub next_epoch: AtomicU64,
    params: [AtomicU64; PARAM_WORDS],
    /// How far the node has applied what its cluster wants dropped, see [`StoreHeader::position`].
    position: [AtomicU64; 2],
    /// Ranks on which nothing new is stored, a bit each.
    pub closed_ranks: AtomicU64,
    reserved: AtomicU64,
    /// Number of the newest fact; see [`Fact`].
    pub facts: AtomicU64,
    /// Name of the directory that the store's tier has, or had last.
    pub tier: AtomicU64,
    /// Name of the slab that leads to values on disk; 0 if the store has no tier below memory. It stays when the master dies.
    pub disk: AtomicU64,
    /// Counts switches of the index.
    pub root: AtomicU64,
    /// What the hash of the index is made from: random, the same as long as the store lives.
    seed: [AtomicU64; 2],
    /// See [`StoreHeader::apart`]; and the first epoch after the disk came.
    apart: [AtomicU64; 3],
    after_seed: [AtomicU64; 2],
}

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
    key: [AtomicU64; INLINE_KEY / 8],
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
    extent: AtomicU64,
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

/// A client of the store.
#[repr(C, align(64))]
pub struct ClientEntry {
    /// Grows each time the entry is taken; odd while it is in use.
    pub generation: AtomicU64,
    /// Start time of the process.
    pub start_time: AtomicU64,
    /// Process id.
    pub pid: AtomicU32,
    /// Rank in the world.
    pub rank: AtomicU32,
    /// Generation of that rank.
    pub rank_generation: AtomicU64,
    /// Which of the clients of that rank's holder it is.
    pub role: AtomicU64,
    reserved: [AtomicU64; 3],
}

/// Counters of a rank's heap. One writer; readers may see a state between two stores.
#[repr(C, align(128))]
pub struct RankCounters {
    /// Bytes in pages that are not free.
    pub bytes_used: AtomicU64,
    /// Bytes in pages.
    pub bytes_total: AtomicU64,
    /// Objects that the master knows to be readable.
    pub ready_count: AtomicU64,
    /// Objects that are being written, as far as the master knows.
    pub writing_count: AtomicU64,
    /// Objects evicted so far.
    pub evict_count: AtomicU64,
    /// Requests that found no room.
    pub oom_count: AtomicU64,
    /// Evictions that found the object pinned.
    pub evict_in_use_retry: AtomicU64,
    /// Objects that the watchdog took from a writer that was late.
    pub stuck_put_reclaimed: AtomicU64,
    /// Bytes that wait for a writer to stop.
    pub quarantined_bytes: AtomicU64,
    /// Bytes that wait for a reader to unpin.
    pub limbo_bytes: AtomicU64,
    /// Free runs of pages.
    pub free_runs: AtomicU64,
    /// Largest free run, in bytes.
    pub largest_free_bytes: AtomicU64,
    reserved: [AtomicU64; 4],
}

/// A namespace.
#[repr(C, align(64))]
pub struct Namespace {
    /// Grows with every flush: objects of an earlier generation are not found.
    pub generation: AtomicU32,
    /// Length of the name.
    pub name_len: AtomicU32,
    /// Most bytes of pages it may use; 0 for no limit.
    pub quota_bytes: AtomicU64,
    /// Bytes of pages it uses.
    pub bytes_used: AtomicU64,
    /// Objects in it.
    pub objects: AtomicU64,
    /// The name, padded with zeros.
    pub name: [AtomicU64; MAX_NAMESPACE_NAME / 8],
    reserved: [AtomicU64; 4],
}

/// The heap that a rank's objects lie in: all live ones, always. Written by the master.
#[repr(C, align(16))]
pub struct RankHeap {
    /// Random name of the memory; 0 while nothing can be stored there.
    pub id: AtomicU64,
    /// How many processes had held the rank when it brought this heap, and [`RankHeap::REPLACED`].
    pub generation: AtomicU64,
}

impl RankHeap {
    /// The objects of the rank lay in other memory before.
    pub const REPLACED: u64 = 1 << 63;
}

/// A futex that is rung only if somebody listens.
#[repr(C, align(8))]
pub struct Bell {
    /// The futex.
    pub ring: AtomicU32,
    /// Not 0 if somebody may wait since the last ring.
    pub waiting: AtomicU32,
}

impl Bell {
    /// Wakes those who wait, in all processes. They say that they do anew before each look: a waiter that died costs one
    /// wake.
    #[inline]
    pub fn ring(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            // Before the ring: whoever says it after hears the next one.
            self.waiting.store(0, Ordering::SeqCst);
            self.ring.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.ring);
        }
    }

    /// Says that somebody waits. To be called before each look; [`Bell::wait`] with what it gave sleeps unless the bell
    /// has rung since.
    #[must_use]
    pub fn listen(&self) -> u32 {
        let heard = self.ring.load(Ordering::SeqCst);
        self.waiting.store(1, Ordering::SeqCst);
        heard
    }

    /// Sleeps until the bell rings, at most for `limit`.
    pub fn wait(&self, heard: u32, limit: std::time::Duration) {
        futex::wait(&self.ring, heard, limit);
    }
}

/// What wakes those who wait.
#[repr(C, align(64))]
pub struct Bells {
    /// For a publication: rung by writers that commit.
    pub published: Bell,
    /// For room: rung by the master when it has freed something, and by writers, whose objects can be evicted from then on.
    pub room: Bell,
    reserved: [AtomicU64; 6],
}

/// How an object ended that was never published, or was consumed. Others were removed, replaced or evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its writer gave it up.
    GivenUp,
    /// Its writer took longer than the watchdog allows.
    Late,
    /// Nothing is left of its writer.
    WriterGone,
    /// The rank that held its pages has other memory now.
    HeapGone,
    /// It was published, and a consumer has it.
    Taken,
}

impl Fate {
    const ALL: [Fate; 5] = [Fate::GivenUp, Fate::Late, Fate::WriterGone, Fate::HeapGone, Fate::Taken];

    /// A word that tells that the object with this epoch ended so.
    #[must_use]
    pub fn word(self, epoch: u64) -> u64 {
        epoch << 8 | (self as u64 + 1)
    }

    /// The inverse; `None` if the word tells of another object.
    #[must_use]
    pub fn of(word: u64, epoch: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.word(epoch) == word)
    }
}

/// How many of them are remembered: that of epoch `e` until one of `e + FATES` ends so, or one of a multiple.
const FATES: usize = 4096;

const _: () = {
    assert!(size_of::<StoreHeader>() == 256 && size_of::<ObjectHeader>() == 128);
    assert!(size_of::<ClientEntry>() == 64 && size_of::<RankCounters>() == 128 && size_of::<Namespace>() == 128);
    assert!(size_of::<Bells>() == CACHE_LINE && size_of::<PublishWords>() == 16 && size_of::<RankHeap>() == 16);
    assert!(std::mem::offset_of!(ObjectHeader, bytes_total) == 64 && std::mem::offset_of!(StoreHeader, root) == 192);
};

macro_rules! in_shared {
    ($($t:ty),*) => {$(
        // SAFETY: repr(C) and all fields are atomics.
        unsafe impl InShared for $t {}
    )*};
}
in_shared!(StoreHeader, ObjectHeader, PublishWords, ClientEntry, RankCounters, Namespace, RankHeap, Bells, FactRecord);

/// Where everything is. The same for everybody who has the same parameters.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The parameters.
    pub params: Params,
    /// Buckets of one table of the index.
    buckets: usize,
    ranks: usize,
    heaps: usize,
    clients: usize,
    namespaces: usize,
    fates: usize,
    objects: usize,
    tables: usize,
    keys: usize,
    facts: usize,
    /// Bytes of the control slab.
    pub control_bytes: usize,
    publish: usize,
    access: usize,
    pins: usize,
    pin_stride: usize,
    sums: usize,
    sum_count: usize,
    /// Bytes of the words slab.
    pub words_bytes: usize,
}

impl Layout {
    /// The layout for `params`, which were checked: sizes do not overflow.
    #[must_use]
    pub fn new(params: Params) -> Self {
        let objects = params.max_objects as usize;
        let mut at = 0;
        let mut place = |bytes: usize, align: usize| {
            let start = usize::next_multiple_of(at, align);
            at = start + bytes;
            start
        };
        place(size_of::<StoreHeader>(), 128);
        let ranks = place(params.world_size as usize * size_of::<RankCounters>(), 128);
        let heaps = place(params.world_size as usize * size_of::<RankHeap>(), 64);
        let clients = place(params.max_clients as usize * size_of::<ClientEntry>(), 64);
        let namespaces = place(MAX_NAMESPACES * size_of::<Namespace>(), 64);
        let fates = place(FATES * 8, 64);
        let headers = place(objects * size_of::<ObjectHeader>(), 4096);
        let tables = place(2 * params.buckets() * 8, 4096);
        let keys = place(params.key_units() as usize * KEY_UNIT, 4096);
        let facts = place(params.facts() * size_of::<FactRecord>(), 4096);
        let control_bytes = place(0, 4096);
        at = 0;
        let mut place = |bytes: usize, align: usize| {
            let start = usize::next_multiple_of(at, align);
            at = start + bytes;
            start
        };
        place(size_of::<Bells>(), 64);
        let publish = place(objects * size_of::<PublishWords>(), 4096);
        let access = place(objects * 8, 4096);
        let pin_stride = (PIN_HEAD + params.pin_slots as usize * 8).next_multiple_of(4096);
        let pins = place(params.max_clients as usize * pin_stride, 4096);
        let sum_count = if params.checksums == 0 { 0 } else { params.pages() as usize * params.world_size as usize };
        let sums = place(sum_count * 4, 4096);
        let words_bytes = place(0, 4096);
        Self {
            params,
            buckets: params.buckets(),
            ranks,
            heaps,
            clients,
            namespaces,
            fates,
            objects: headers,
            tables,
            keys,
            facts,
            control_bytes,
            publish,
            access,
            pins,
            pin_stride,
            sums,
            sum_count,
            words_bytes,
        }
    }

    /// Byte offset of the publish word of an object in the words slab.
    #[must_use]
    pub fn published_offset(&self, index: u32) -> usize {
        self.publish + index as usize * size_of::<PublishWords>()
    }

    /// Byte offset of a pin slot in the words slab.
    #[must_use]
    pub fn slot_offset(&self, client: u32, slot: u32) -> usize {
        self.pins + client as usize * self.pin_stride + PIN_HEAD + slot as usize * 8
    }

    /// Byte offset of an object's header in the control slab.
    #[must_use]
    pub fn header_offset(&self, index: u32) -> usize {
        self.objects + index as usize * size_of::<ObjectHeader>()
    }
}

/// A record of the ring of facts.
#[repr(C, align(32))]
pub struct FactRecord(facts::Record);

/// Bit of the index in a fact that is not a header's but that of an entry of the disk below the store. The epoch is the entry's then,
/// see [`super::disk::Entry`].
pub const ON_DISK: u32 = 1 << 31;
/// In the term of the store's position: it is that of memory, and the disk has come back with an earlier one. See [`StoreHeader::apart`].
pub const APART: u64 = 1 << 63;
/// In the same place: a disk that the store had is not there any more, and its cluster has not heard of that.
pub const LEFT: u64 = 1 << 62;

/// Something that happened to an object, as the master noticed it, in the order in which it did. What was not read in time is
/// overwritten: then all objects have to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// It can be read.
    Published {
        /// Header.
        index: u32,
        /// Epoch.
        epoch: u64,
    },
    /// It was evicted, removed, replaced, taken or lost.
    Retired {
        /// Header.
        index: u32,
        /// Epoch.
        epoch: u64,
    },
    /// All objects of a namespace of before this generation are over.
    Flushed {
        /// Namespace id.
        namespace: u32,
        /// Generation that begins.
        generation: u32,
    },
}

impl Fact {
    /// As a record has it.
    #[must_use]
    pub fn words(self) -> [u64; 3] {
        match self {
            Self::Published { index, epoch } => [1, index.into(), epoch],
            Self::Retired { index, epoch } => [2, index.into(), epoch],
            Self::Flushed { namespace, generation } => [3, namespace.into(), generation.into()],
        }
    }

    /// The inverse; `None` for what is no fact.
    #[must_use]
    pub fn from_words([kind, first, second]: [u64; 3]) -> Option<Self> {
        let index = u32::try_from(first).ok()?;
        match kind {
            1 => Some(Self::Published { index, epoch: second }),
            2 => Some(Self::Retired { index, epoch: second }),
            3 => Some(Self::Flushed { namespace: index, generation: u32::try_from(second).ok()? }),
            _ => None,
        }
    }
}

/// What is in the mapped slabs of a store. Every part is looked up once, when the slabs are mapped.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Where everything is.
    pub layout: Layout,
    header: &'a StoreHeader,
    ranks: &'a [RankCounters],
    heaps: &'a [RankHeap],
    clients: &'a [ClientEntry],
    namespaces: &'a [Namespace],
    fates: &'a [AtomicU64],
    objects: &'a [ObjectHeader],
    tables: [&'a [AtomicU64]; 2],
    keys: &'a [AtomicU64],
    facts: &'a [FactRecord],
    bells: &'a Bells,
    publish: &'a [PublishWords],
    access: &'a [AtomicU64],
    /// The pin blocks of all clients, heads and slots.
    pins: &'a [AtomicU64],
    sums: &'a [AtomicU32],
    /// Pages that each rank lends: dividing takes longer than looking.
    pages: u32,
}

impl<'a> View<'a> {
    /// A view of mapped slabs, which must be as large as `layout` says; `None` if they are not.
    #[must_use]
    pub fn new(layout: Layout, control: Region<'a>, words: Region<'a>) -> Option<Self> {
        let p = &layout.params;
        let objects = p.max_objects as usize;
        let table = |n: usize| control.slice(layout.tables + n * layout.buckets * 8, layout.buckets);
        Some(Self {
            header: control.at(0)?,
            ranks: control.slice(layout.ranks, p.world_size as usize)?,
            heaps: control.slice(layout.heaps, p.world_size as usize)?,
            clients: control.slice(layout.clients, p.max_clients as usize)?,
            namespaces: control.slice(layout.namespaces, MAX_NAMESPACES)?,
            fates: control.slice(layout.fates, FATES)?,
            objects: control.slice(layout.objects, objects)?,
            tables: [table(0)?, table(1)?],
            keys: control.slice(layout.keys, p.key_units() as usize * (KEY_UNIT / 8))?,
            facts: control.slice(layout.facts, p.facts())?,
            bells: words.at(0)?,
            publish: words.slice(layout.publish, objects)?,
            access: words.slice(layout.access, objects)?,
            pins: words.slice(layout.pins, p.max_clients as usize * layout.pin_stride / 8)?,
            sums: words.slice(layout.sums, layout.sum_count)?,
            pages: p.pages(),
            layout,
        })
    }

    /// The start of the control slab.
    #[inline(always)]
    #[must_use]
    pub fn header(&self) -> &'a StoreHeader {
        self.header
    }

    /// An object's header.
    #[inline(always)]
    #[must_use]
    pub fn object(&self, index: u32) -> Option<&'a ObjectHeader> {
        self.objects.get(index as usize)
    }

    /// An object's publish words.
    #[inline(always)]
    #[must_use]
    pub fn publish(&self, index: u32) -> Option<&'a PublishWords> {
        self.publish.get(index as usize)
    }

    /// An object's access stamp.
    #[inline(always)]
    #[must_use]
    pub fn access(&self, index: u32) -> Option<&'a AtomicU64> {
        self.access.get(index as usize)
    }

    /// The index.
    #[inline(always)]
    #[must_use]
    pub fn index(&self) -> index::Tables<'a> {
        index::Tables { root: &self.header.root, tables: self.tables }
    }

    /// Searches the index.
    #[inline(always)]
    pub fn find(&self, hash: u64, confirm: impl FnMut(u32) -> bool) -> index::Found {
        index::find(&self.header.root, &self.tables, hash, confirm)
    }

    fn table_in_use(&self) -> &'a [AtomicU64] {
        self.tables[(self.header.root.load(Ordering::Relaxed) & 1) as usize]
    }

    /// The bucket of `hash` will be looked at soon.
    #[inline(always)]
    pub fn hint_bucket(&self, hash: u64) {
        let table = self.table_in_use();
        index::path(table.len(), hash).next().and_then(|at| table.get(at)).into_iter().for_each(hint);
    }

    /// The object that `hash` leads to will be looked at soon. Gives which one that probably is.
    #[inline(always)]
    pub fn hint_object(&self, hash: u64) -> Option<u32> {
        let index = index::guess(self.table_in_use(), hash)?;
        hint(self.object(index)?);
        Some(index)
    }

    /// What is left to look at of this object will be looked at soon.
    #[inline(always)]
    pub fn hint_rest(&self, index: u32) {
        if let (Some(object), Some(words)) = (self.object(index), self.publish(index)) {
            if object.key_len.load(Ordering::Relaxed) as usize > INLINE_KEY {
                self.key_words(object.key_unit.load(Ordering::Relaxed), 1).unwrap_or_default().iter().for_each(hint);
            }
            if object::state(object.control.load(Ordering::Relaxed)) != object::READY {
                hint(words);
            }
        }
    }

    /// What an object's header says about its value will be looked at soon.
    #[inline(always)]
    pub fn hint_value(&self, object: &ObjectHeader) {
        hint(&object.bytes_total);
    }

    /// `count` words of the key slab from `unit` on.
    #[inline(always)]
    #[must_use]
    pub fn key_words(&self, unit: u32, count: usize) -> Option<&'a [AtomicU64]> {
        let start = unit as usize * (KEY_UNIT / 8);
        self.keys.get(start..start + count)
    }

    /// Counters of a rank.
    #[must_use]
    pub fn rank(&self, rank: u32) -> Option<&'a RankCounters> {
        self.ranks.get(rank as usize)
    }

    /// The heap that a rank's objects lie in.
    #[inline(always)]
    #[must_use]
    pub fn heap(&self, rank: u32) -> Option<&'a RankHeap> {
        self.heaps.get(rank as usize)
    }

    /// Entry of a client.
    #[must_use]
    pub fn client(&self, client: u32) -> Option<&'a ClientEntry> {
        self.clients.get(client as usize)
    }

    /// A namespace.
    #[inline(always)]
    #[must_use]
    pub fn namespace(&self, id: u32) -> Option<&'a Namespace> {
        self.namespaces.get(id as usize)
    }

    /// The bells.
    #[inline(always)]
    #[must_use]
    pub fn bells(&self) -> &'a Bells {
        self.bells
    }

    /// The record in which the fact with this number is, or was.
    #[must_use]
    pub fn fact(&self, number: u64) -> Option<&'a facts::Record> {
        let record = self.facts.get(usize::try_from(number % self.facts.len().max(1) as u64).ok()?)?;
        Some(&record.0)
    }

    /// Where it is told how the object with this epoch ended; see [`Fate`].
    #[must_use]
    pub fn fate(&self, epoch: u64) -> Option<&'a AtomicU64> {
        self.fates.get(usize::try_from(epoch).unwrap_or(0) % FATES)
    }

    /// A client's pin block: the high-water mark, below which all slots are that were ever used, and the slots.
    #[inline(always)]
    #[must_use]
    pub fn pins(&self, client: u32) -> Option<(&'a AtomicU64, &'a [AtomicU64])> {
        let stride = self.layout.pin_stride / 8;
        let (head, slots) = self.pins.get(client as usize * stride..)?.split_at_checked(PIN_HEAD / 8)?;
        Some((head.first()?, slots.get(..self.layout.params.pin_slots as usize)?))
    }

    /// A client's last word: the generation of its place when it has closed, and uses its pin block no more but for what
    /// its streams still have to unpin. Written by the client; a master that was away reads it later.
    #[must_use]
    pub fn last_word(&self, client: u32) -> Option<&'a AtomicU64> {
        self.pins.get(client as usize * (self.layout.pin_stride / 8) + 1)
    }

    /// Checksum of a page of a rank's heap; `None` if the store keeps none.
    #[must_use]
    pub fn sum(&self, rank: u32, page: u32) -> Option<&'a AtomicU32> {
        if rank >= self.layout.params.world_size || page >= self.pages {
            return None;
        }
        self.sums.get(rank as usize * self.pages as usize + page as usize)
    }

    /// Whether the key of an object is `key`, in `namespace`. Atomic reads only: it may be called for an object that is
    /// changing, if the answer is confirmed afterwards.
    #[inline(always)]
    #[must_use]
    pub fn key_is(&self, object: &ObjectHeader, key: &[u8], namespace: u32) -> bool {
        if object.key_len.load(Ordering::Relaxed) as usize != key.len()
            || object.namespace.load(Ordering::Relaxed) != namespace
        {
            return false;
        }
        let Some((head, tail)) = key.split_first_chunk::<INLINE_KEY>() else { return short_is(object, key) };
        same(&object.key, head) && (tail.is_empty() || self.tail_is(object, tail))
    }

    /// Not inline, like [`short_is`]: what they need would be made ready before every search.
    #[inline(never)]
    fn tail_is(&self, object: &ObjectHeader, tail: &[u8]) -> bool {
        let words = self.key_words(object.key_unit.load(Ordering::Relaxed), tail.len().div_ceil(8));
        words.is_some_and(|stored| same(stored, tail))
    }

    /// Copies the key of an object. Confirm afterwards, as for [`View::key_is`].
    #[must_use]
    pub fn key_of(&self, object: &ObjectHeader) -> Vec<u8> {
        let len = (object.key_len.load(Ordering::Relaxed) as usize).min(MAX_KEY);
        let tail = self.key_words(object.key_unit.load(Ordering::Relaxed), tail_words(len)).unwrap_or_default();
        let mut key: Vec<u8> =
            object.key.iter().chain(tail).flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        key.truncate(len);
        key
    }

    /// Stores the key of an object that nobody looks at, of which `key_unit` is stored already.
    pub fn store_key(&self, object: &ObjectHeader, key: &[u8]) {
        object.key_len.store(u32::try_from(key.len()).unwrap_or(0), Ordering::Relaxed);
        let tail = self.key_words(object.key_unit.load(Ordering::Relaxed), tail_words(key.len())).unwrap_or_default();
        let mut chunks = key.chunks(8);
        for word in object.key.iter().chain(tail) {
            word.store(chunks.next().map_or(0, padded), Ordering::Relaxed);
        }
    }

    /// The word that holds run `i` of an object's pages.
    #[inline(always)]
    fn extent_word<'h>(&self, object: &'h ObjectHeader, i: usize) -> Option<&'h AtomicU64>
    where
        'a: 'h,
    {
        let Some(more) = i.checked_sub(1) else { return Some(&object.extent) };
        let skip = tail_words(object.key_len.load(Ordering::Relaxed) as usize) + more;
        self.key_words(object.key_unit.load(Ordering::Relaxed), skip + 1)?.last()
    }

    /// Run `i` of an object's pages, first page and count, of which at most `most` can be; `None` if it is not in the heap.
    #[inline(always)]
    #[must_use]
    pub fn extent(&self, object: &ObjectHeader, i: usize, most: u32) -> Option<(u32, u32)> {
        let word = self.extent_word(object, i)?.load(Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, reason = "two halves of a word")]
        let (first, count) = ((word >> 32) as u32, word as u32);
        let end = u64::from(first) + u64::from(count);
        (count != 0 && count <= most && end <= u64::from(self.pages)).then_some((first, count))
    }

    /// Where the value of an object that is pinned or planned lies; `None` if that makes no sense. The further runs are
    /// looked at one by one, see [`View::runs`].
    #[inline(always)]
    #[must_use]
    pub fn shape(&self, object: &ObjectHeader) -> Option<Shape> {
        let p = &self.layout.params;
        let bytes_total = object.bytes_total.load(Ordering::Relaxed);
        let n_pages = object.n_pages.load(Ordering::Relaxed);
        let owner_rank = object.owner_rank.load(Ordering::Relaxed);
        let n_extents = object.n_extents.load(Ordering::Relaxed);
        // Products of two halves: no overflow. The bytes end in the last page.
        let (end, page) = (u64::from(n_pages) * u64::from(p.page_bytes), u64::from(p.page_bytes));
        if owner_rank >= p.world_size || n_pages > self.pages || bytes_total > end || end - bytes_total >= page {
            return None;
        }
        if n_pages == 0 {
            return (n_extents == 0).then_some(Shape { bytes_total, n_pages, owner_rank, n_extents, first: (0, 0) });
        }
        let first = self.extent(object, 0, n_pages)?;
        let alone = first.1 == n_pages;
        if alone != (n_extents == 1) || n_extents as usize > MAX_EXTENTS {
            return None;
        }
        Some(Shape { bytes_total, n_pages, owner_rank, n_extents, first })
    }

    /// All runs of an object's pages, in order; `None` at the end of a list that makes no sense.
    pub fn runs<'s>(
        &'s self,
        object: &'s ObjectHeader,
        shape: &Shape,
    ) -> impl Iterator<Item = Option<(u32, u32)>> + use<'s, 'a> {
        let (n, mut i, mut left) = (shape.n_extents as usize, 0, shape.n_pages);
        let mut next = Some(shape.first);
        std::iter::from_fn(move || {
            if i == n {
                // What is missing is as wrong as what is too much.
                return (std::mem::take(&mut left) > 0).then_some(None);
            }
            let run = next.take().or_else(|| self.extent(object, i, left));
            (i, left) = match run {
                Some((_, count)) => (i + 1, left - count),
                None => (n, 0),
            };
            Some(run)
        })
    }

    /// Stores run `i` of an object's pages. The key's units must have room for it.
    pub fn store_extent(&self, object: &ObjectHeader, i: usize, first: u32, count: u32) {
        if let Some(place) = self.extent_word(object, i) {
            place.store(u64::from(first) << 32 | u64::from(count), Ordering::Relaxed);
        }
    }

    /// Where the metadata of an object lies, behind its extents: its length and the words. `None` if that makes no sense.
    fn metadata_words(&self, object: &ObjectHeader) -> Option<(usize, &'a [AtomicU64])> {
        let len = metadata_len(object.flags.load(Ordering::Relaxed));
        let more = (object.n_extents.load(Ordering::Relaxed) as usize).saturating_sub(1);
        let skip = tail_words(object.key_len.load(Ordering::Relaxed) as usize) + more;
        let words = self.key_words(object.key_unit.load(Ordering::Relaxed), skip + len.div_ceil(8))?.get(skip..)?;
        (len <= MAX_METADATA).then_some((len, words))
    }

    /// Copies the metadata of an object that is pinned or planned; `None` if it makes no sense.
    #[must_use]
    pub fn metadata(&self, object: &ObjectHeader) -> Option<Metadata> {
        let mut found = Metadata { bytes: [0; MAX_METADATA], len: 0 };
        if object.flags.load(Ordering::Relaxed) & METADATA_FLAGS == 0 {
            return Some(found);
        }
        let (len, words) = self.metadata_words(object)?;
        for (place, word) in found.bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.load(Ordering::Relaxed).to_le_bytes();
        }
        found.len = len;
        Some(found)
    }

    /// Stores the metadata of an object that nobody looks at, whose key and number of extents are stored already. Its units
    /// must have room for it, and its flags must say how long it is.
    pub fn store_metadata(&self, object: &ObjectHeader, metadata: &[u8]) {
        let Some((_, words)) = self.metadata_words(object) else { return };
        for (word, chunk) in words.iter().zip(metadata.chunks(8)) {
            word.store(padded(chunk), Ordering::Relaxed);
        }
    }

    /// The epoch in which an object is readable now.
    #[inline(always)]
    #[must_use]
    pub fn readable(&self, index: u32) -> Option<u64> {
        object::readable(&self.object(index)?.control, &self.publish(index)?.published)
    }
}

/// What the writer of an object said about it, beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    bytes: [u8; MAX_METADATA],
    len: usize,
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

/// Up to 8 bytes as a word, padded with zeros.
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

fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Whether `stored` begins with `bytes`, the last word padded with zeros.
#[inline(always)]
fn same(stored: &[AtomicU64], bytes: &[u8]) -> bool {
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
fn short_is(object: &ObjectHeader, key: &[u8]) -> bool {
    same(&object.key, key)
}

/// Words of a key that its header has no room for.
#[inline(always)]
const fn tail_words(key_len: usize) -> usize {
    key_len.saturating_sub(INLINE_KEY).div_ceil(8)
}

/// Units that an object takes in the key slab: none for most.
#[must_use]
pub fn key_units(key_len: usize, extents: usize, metadata_len: usize) -> u32 {
    let words = tail_words(key_len) + extents.saturating_sub(1) + metadata_len.div_ceil(8);
    u32::try_from((words * 8).div_ceil(KEY_UNIT)).unwrap_or(u32::MAX)
}

impl StoreHeader {
    /// Fills a fresh header.
    pub fn fill(&self, store_id: u64, seed: [u64; 2], params: &Params) {
        self.next_epoch.store(1, Ordering::Relaxed);
        self.restore(store_id, seed, params);
    }

    /// Stores again what never changes, in case somebody has overwritten it.
    pub fn restore(&self, store_id: u64, seed: [u64; 2], params: &Params) {
        self.layout_version.store(super::VERSION.into(), Ordering::Relaxed);
        self.store_id.store(store_id, Ordering::Relaxed);
        for (place, value) in self.seed.iter().zip(seed) {
            place.store(value, Ordering::Relaxed);
        }
        for (place, value) in self.params.iter().zip(params.words()) {
            place.store(value, Ordering::Relaxed);
        }
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// How far the node has applied the drop log of its cluster: term and number of an entry; `None` if it never was in one.
    #[must_use]
    pub fn position(&self) -> Option<(u64, u64)> {
        let [before, term, after] = [1, 0, 1].map(|at: usize| self.position[at].load(Ordering::Acquire));
        let term = term & !(APART | LEFT);
        (term != 0).then_some((term, if before == after { after } else { 0 }))
    }

    /// How far it has applied it to what is on disk, if the disk was not there when it was applied to what is in memory: what was dropped without the
    /// disk is still there.
    #[must_use]
    pub fn apart(&self) -> Option<(u64, u64)> {
        let [term, number] = [0, 1].map(|at: usize| self.apart[at].load(Ordering::Acquire));
        (self.position[0].load(Ordering::Acquire) & APART != 0).then_some((term, number))
    }

    /// The first epoch that was given out after that disk had come: entries and objects with earlier ones were there.
    #[must_use]
    pub fn apart_since(&self) -> u64 {
        self.apart[2].load(Ordering::Acquire)
    }

    /// Whether a disk that the store had is not there any more, and the cluster has not heard of that.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.position[0].load(Ordering::Acquire) & LEFT != 0
    }

    /// Master: keeps it, of memory and disk. Whoever reads it before this is done, or after the master has died on the way, finds an earlier place.
    pub fn set_position(&self, (term, number): (u64, u64)) {
        self.position[1].store(0, Ordering::Release);
        self.position[0].store(term, Ordering::Release);
        self.position[1].store(number, Ordering::Release);
    }

    /// Master: a disk has come that is at this earlier place; this is the next epoch.
    pub fn is_apart_from(&self, (term, number): (u64, u64), next_epoch: u64) {
        for (place, word) in self.apart.iter().zip([term, number, next_epoch]) {
            place.store(word, Ordering::Release);
        }
        // Whoever reads the position meanwhile finds it.
        self.position[0].fetch_or(APART, Ordering::AcqRel);
    }

    /// Master: a disk has not come that was there before.
    pub fn left(&self) {
        self.position[0].fetch_or(LEFT, Ordering::AcqRel);
    }

    /// Master: the disk is not there any more.
    pub fn leave_disk(&self) {
        if self.position().is_some() {
            self.left();
            self.position[0].fetch_and(!APART, Ordering::AcqRel);
        }
    }

    /// What the hash of the index is made from.
    #[must_use]
    pub fn seed(&self) -> [u64; 2] {
        std::array::from_fn(|at| self.seed[at].load(Ordering::Relaxed))
    }

    /// Whether this is the header of a store with these parameters in our layout, though stray stores may have hit
    /// some of it.
    #[must_use]
    pub fn resembles(&self, params: &Params) -> bool {
        let same =
            self.params.iter().zip(params.words()).filter(|(found, wanted)| found.load(Ordering::Relaxed) == *wanted);
        let same = same.count()
            + usize::from(self.magic.load(Ordering::Acquire) == MAGIC)
            + usize::from(self.layout_version.load(Ordering::Relaxed) == super::VERSION.into());
        same > (PARAM_WORDS + 2) / 2
    }

    /// The parameters, if this is the header of a store in a layout that we know.
    #[must_use]
    pub fn params(&self) -> Option<Params> {
        if self.magic.load(Ordering::Acquire) != MAGIC
            || self.layout_version.load(Ordering::Relaxed) != u64::from(super::VERSION)
        {
            return None;
        }
        Params::from_words(&std::array::from_fn(|at| self.params[at].load(Ordering::Relaxed)))
    }
}

impl Namespace {
    /// The name.
    #[must_use]
    pub fn name(&self) -> Vec<u8> {
        // Acquire: whoever finds a length finds the whole name.
        let len = self.name_len.load(Ordering::Acquire) as usize;
        let mut name: Vec<u8> = self.name.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        name.truncate(len);
        name
    }

    /// Whether this is its name.
    #[must_use]
    pub fn is_named(&self, name: &[u8]) -> bool {
        self.name_len.load(Ordering::Acquire) as usize == name.len() && same(&self.name, name)
    }

    /// Stores the name.
    pub fn set_name(&self, name: &[u8]) {
        for (place, chunk) in self.name.iter().zip(name.chunks(8)) {
            place.store(padded(chunk), Ordering::Relaxed);
        }
        self.name_len.store(u32::try_from(name.len()).unwrap_or(0), Ordering::Release);
    }
}
