//! The two slabs of a store. *Control* is written by the master alone and read by everyone: parameters, statistics,
//! clients, namespaces, object headers, the index and the keys. *Words* is written by clients: publish words, access
//! stamps, pin slots and checksums. What different parties write is on different cache lines, except the dense words
//! per object, whose neighbours only slow each other down.

mod bells;
mod facts;
mod header;
mod members;
mod object;
mod view;

pub use bells::{Bell, Bells};
pub use facts::{Fact, FactRecord, Fate, ON_DISK};
pub use header::{APART, COUNTED_BITS, DISK_EXPECTED, LEFT, StoreHeader, cluster_of};
pub use members::{ClientEntry, Namespace, RankCounters, RankHeap};
pub use object::{
    CLUSTERED, FLAG_CHECKSUM, FLAG_CONTIGUOUS, FLAG_HIDDEN, FLAG_RETURNS, FLAG_SPARES, METADATA_FLAGS, Metadata,
    ObjectHeader, PRIORITY_SHIFT, PublishWords, RETAIN_SHIFT, Seal, Shape, access_word, key_units, metadata_flags,
    metadata_len, reads_of,
};
pub use view::View;

use super::CACHE_LINE;
use super::region::InShared;

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

/// How many of them are remembered: that of epoch `e` until one of `e + FATES` ends so, or one of a multiple.
const FATES: usize = 4096;

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
