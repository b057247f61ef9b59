//! The slabs of a store as they are mapped: everything in them by number, checked.

use super::object::{padded, same, short_is, tail_words};
use super::{
    Bells, ClientEntry, FATES, FactRecord, INLINE_KEY, KEY_UNIT, Layout, MAX_EXTENTS, MAX_KEY, MAX_METADATA,
    MAX_NAMESPACES, METADATA_FLAGS, Metadata, Namespace, ObjectHeader, PIN_HEAD, PublishWords, RankCounters, RankHeap,
    Shape, StoreHeader, metadata_len,
};
use crate::layout::region::{Region, prefetch};
use crate::sync::{facts, index, object};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    pub fn prefetch_bucket(&self, hash: u64) {
        let table = self.table_in_use();
        index::path(table.len(), hash).next().and_then(|at| table.get(at)).into_iter().for_each(prefetch);
    }

    /// The object that `hash` leads to will be looked at soon. Gives which one that probably is.
    #[inline(always)]
    pub fn prefetch_object(&self, hash: u64) -> Option<u32> {
        let index = index::guess(self.table_in_use(), hash)?;
        prefetch(self.object(index)?);
        Some(index)
    }

    /// What is left to look at of this object will be looked at soon.
    #[inline(always)]
    pub fn prefetch_rest(&self, index: u32) {
        if let (Some(object), Some(words)) = (self.object(index), self.publish(index)) {
            if object.key_len.load(Ordering::Relaxed) as usize > INLINE_KEY {
                self.key_words(object.key_unit.load(Ordering::Relaxed), 1)
                    .unwrap_or_default()
                    .iter()
                    .for_each(prefetch);
            }
            if object::state(object.control.load(Ordering::Relaxed)) != object::READY {
                prefetch(words);
            }
        }
    }

    /// What an object's header says about its value will be looked at soon.
    #[inline(always)]
    pub fn prefetch_value(&self, object: &ObjectHeader) {
        prefetch(&object.bytes_total);
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
