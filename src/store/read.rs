//! Reading: find, pin, look, unpin. Nothing here asks the master. What is read of an object is read only while a pin
//! slot holds it, or confirmed afterwards.

use super::Store;
use super::client::Client;
use super::copy::{Cursor, Pieces};
use super::counters::Op;
use super::hash::route_of;
use super::master::{check_key, namespace_word, show};
use super::sys;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use crate::layout::store::{FLAG_CHECKSUM, FLAG_HIDDEN, ObjectHeader, View, is_verifiable};
use crate::sync::index::Found;
use crate::sync::object;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Keys whose looks wait for memory together.
const GROUP: usize = 16;

/// Which pages a read verifies, where there are checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// Those that it touches.
    Touched,
    /// Those that begin in it: reads of all parts of a value verify every page once. None of them counts alone.
    Begun,
}

/// What a look for a key gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look<T> {
    /// It is there and readable.
    Ready(T),
    /// It is being written.
    Writing(u32, u64),
    /// It is not there.
    Missing,
}

/// A hold on an object. It must be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// Header.
    pub index: u32,
    /// Slot of this client.
    pub slot: u32,
    /// Epoch of the object.
    pub epoch: u64,
    /// Which use of the slot it is.
    pub turn: u64,
}

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Header.
    pub index: u32,
    /// Rank whose heap holds the value.
    pub owner_rank: u32,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of the value.
    pub n_pages: u32,
    /// Bytes used of the last page.
    pub last_page_bytes: u32,
    /// Runs of pages.
    pub n_extents: u32,
    /// Epoch.
    pub epoch: u64,
    /// Offset of the first page in the owner's heap.
    pub offset: u64,
    /// `FLAG_*`.
    pub flags: u32,
}

/// The runs of pages of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    /// Rank whose heap holds them.
    pub owner_rank: u32,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Offset in the owner's heap and bytes of each run.
    pub runs: Vec<(u64, u64)>,
}

#[cold]
fn busy(key: &[u8]) -> Error {
    Error::new(NMC_ERR_BUSY, format!("the index was rebuilt again and again while {} was looked for", show(key)))
}

#[cold]
fn not_pinned() -> Error {
    Error::new(NMC_ERR_NOT_FOUND, "the view is not pinned; was it unpinned before?")
}

impl Client {
    /// See [`Store::look`].
    #[inline]
    pub(super) fn look(&self, view: &View<'_>, namespace: u32, key: &[u8]) -> Result<Look<(u32, u64)>> {
        check_key(key)?;
        self.check_counted()?;
        self.look_hashed(view, namespace, key, self.map.hash_of(key, namespace))
    }

    #[inline]
    fn look_hashed(&self, view: &View<'_>, namespace: u32, key: &[u8], hash: u64) -> Result<Look<(u32, u64)>> {
        let word = namespace_word(view, namespace);
        let mut writing = None;
        let mut epoch = 0;
        let found = view.find(hash, |index| {
            let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return false };
            let now = header.control.load(Acquire);
            let of = object::epoch(now);
            if !object::is_live(now) {
                return false;
            }
            // What the master has seen published is, and all of it happened before.
            let published = object::state(now) == object::READY || words.published.load(Acquire) == of;
            if !view.key_is(header, key, word) || !object::still(&header.control, of) {
                return false;
            }
            if published {
                epoch = of;
            } else {
                writing = Some((index, of));
            }
            published
        });
        match (found, writing) {
            (Found::At(index), _) => Ok(Look::Ready((index, epoch))),
            (Found::Busy, _) => Err(busy(key)),
            (Found::Nothing, Some((index, epoch))) => Ok(Look::Writing(index, epoch)),
            (Found::Nothing, None) => Ok(Look::Missing),
        }
    }
}

impl Store {
    /// Looks for a key and pins what is found. The slot that was taken is given back unless the look is ready.
    #[inline(always)]
    pub(super) fn look_and_pin(&self, view: &View<'_>, key: &[u8]) -> Result<Look<Pin>> {
        check_key(key)?;
        let slot = self.client.take_slot(view)?;
        let look = self.pin_in(view, key, slot);
        if !matches!(look, Ok(Look::Ready(_))) {
            self.client.slots.give_back(slot);
        }
        look
    }

    /// Looks for a key and pins what is found in a slot that is ours and empty.
    #[inline(always)]
    pub(super) fn pin_in(&self, view: &View<'_>, key: &[u8], slot: u32) -> Result<Look<Pin>> {
        self.client.check_counted()?;
        let Some(word) = self.slot_word(view, slot) else { return Ok(Look::Missing) };
        let namespace = namespace_word(view, self.namespace);
        let mut writing = None;
        let mut epoch = 0;
        let found = view.find(self.client.map.hash_of(key, self.namespace), |index| {
            let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return false };
            let now = header.control.load(Acquire);
            let (live, of) = (object::is_live(now), object::epoch(now));
            if !live || words.published.load(Acquire) != of {
                if live && view.key_is(header, key, namespace) && object::still(&header.control, of) {
                    writing = Some((index, of));
                }
                return false;
            }
            // Its other line is read after the fence, which would wait for it.
            view.hint_value(header);
            if !object::pin(word, object::pin_word(index, of), &header.control, &words.published, of) {
                return false;
            }
            epoch = of;
            let right = view.key_is(header, key, namespace);
            if !right {
                object::unpin(word);
            }
            right
        });
        if let Found::At(index) = found {
            reach("reader.pinned");
            return Ok(Look::Ready(Pin { index, slot, epoch, turn: self.client.slots.turn(slot) }));
        }
        match (found, writing) {
            (Found::Busy, _) => Err(busy(key)),
            (_, Some((index, epoch))) => Ok(Look::Writing(index, epoch)),
            _ => Ok(Look::Missing),
        }
    }

    /// Looks for a key without pinning: the answer was true at some moment during the call.
    #[inline]
    pub(super) fn look(&self, view: &View<'_>, key: &[u8]) -> Result<Look<(u32, u64)>> {
        self.client.look(view, self.namespace, key)
    }

    /// Ends a hold.
    #[inline]
    pub(super) fn let_go(&self, view: &View<'_>, slot: u32) {
        reach("reader.before_unpin");
        if let Some(word) = self.slot_word(view, slot) {
            object::unpin(word);
        }
        self.client.slots.give_back(slot);
    }

    /// Whether an object is readable. Neither pins nor stamps.
    #[inline]
    pub fn exists(&self, key: &[u8]) -> Result<bool> {
        Ok(matches!(self.look(self.client.view(), key)?, Look::Ready(_)))
    }

    /// Looks for many keys, as long as `go_on` says so. In a large store a look waits for memory twice, one after
    /// the other; here those of a group of keys wait together.
    pub fn look_many<'k>(
        &self,
        mut keys: impl Iterator<Item = Result<&'k [u8]>>,
        mut go_on: impl FnMut(Look<(u32, u64)>) -> bool,
    ) -> Result<()> {
        let view = self.client.view();
        self.client.check_counted()?;
        let mut group: [(&[u8], u64, Option<u32>); GROUP] = [(&[], 0, None); GROUP];
        loop {
            let (mut n, mut end) = (0, None);
            while n < GROUP && end.is_none() {
                match keys.next() {
                    Some(Ok(key)) => {
                        let hash = self.client.map.hash_of(key, self.namespace);
                        view.hint_bucket(hash);
                        group[n] = (key, hash, None);
                        n += 1;
                    }
                    Some(Err(error)) => end = Some(Err(error)),
                    None => end = Some(Ok(())),
                }
            }
            let group = &mut group[..n];
            group.iter_mut().for_each(|(_, hash, index)| *index = view.hint_object(*hash));
            group.iter().filter_map(|(_, _, index)| *index).for_each(|index| view.hint_rest(index));
            for (key, hash, _) in group {
                check_key(key)?;
                if !go_on(self.client.look_hashed(view, self.namespace, key, *hash)?) {
                    return Ok(());
                }
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// How many of these keys, from the first on, are readable.
    pub fn match_prefix<'k>(&self, keys: impl Iterator<Item = Result<&'k [u8]>>) -> Result<usize> {
        let mut n = 0;
        self.look_many(keys, |look| {
            let ready = matches!(look, Look::Ready(_));
            n += usize::from(ready);
            ready
        })?;
        Ok(n)
    }

    /// Pins an object, or tells that it is being written or missing.
    #[inline(always)]
    pub fn pin(&self, key: &[u8]) -> Result<Look<(Pin, Location)>> {
        let view = self.client.view();
        match self.look_and_pin(view, key)? {
            Look::Ready(pin) => {
                let Some(header) = view.object(pin.index) else { return Ok(Look::Missing) };
                let location = location(view, pin.index, header, pin.epoch);
                self.stamp(view, pin.index);
                self.client.counters.hit(location.bytes_total);
                Ok(Look::Ready((pin, location)))
            }
            Look::Writing(index, epoch) => {
                self.client.counters.miss();
                Ok(Look::Writing(index, epoch))
            }
            Look::Missing => {
                self.client.counters.miss();
                Ok(Look::Missing)
            }
        }
    }

    /// Ends a pin of the program.
    #[inline(always)]
    pub fn unpin(&self, pin: Pin) -> Result<()> {
        let (view, slots) = (self.client.view(), &self.client.slots);
        if !slots.is_held(pin.slot) || !self.is_in_slot(view, pin) || !slots.begin_end(pin.slot) {
            return Err(not_pinned());
        }
        if !self.is_in_slot(view, pin) {
            // Another thread unpinned the same view meanwhile; what is in the slot now is not ours.
            slots.undo_end(pin.slot);
            return Err(not_pinned());
        }
        self.let_go(view, pin.slot);
        Ok(())
    }

    /// A pin slot of this client.
    #[inline(always)]
    pub(super) fn slot_word<'v>(&self, view: &View<'v>, slot: u32) -> Option<&'v AtomicU64> {
        view.pins(self.client.number).and_then(|(_, words)| words.get(slot as usize))
    }

    /// Whether the slot holds this very pin.
    #[inline(always)]
    fn is_in_slot(&self, view: &View<'_>, pin: Pin) -> bool {
        let word = self.slot_word(view, pin.slot);
        // Acquire: whoever took the slot anew counted its turn before it stored the word.
        word.is_some_and(|word| word.load(Acquire) == object::pin_word(pin.index, pin.epoch))
            && self.client.slots.turn(pin.slot) == pin.turn
    }

    /// Refuses a pin that the program does not hold.
    pub fn check_view(&self, pin: Pin) -> Result<()> {
        if !self.client.slots.is_held(pin.slot) || !self.is_in_slot(self.client.view(), pin) {
            return Err(not_pinned());
        }
        Ok(())
    }

    /// Reads from an object that the program has pinned.
    pub fn read_view(&self, index: u32, offset: u64, pieces: &Pieces<'_>) -> Result<()> {
        let view = self.client.view();
        let pin = Pin { index, slot: 0, epoch: 0, turn: 0 };
        self.read_pinned(view, pin, offset, pieces, Sums::Touched, |_| Ok(true)).map(|_| ())
    }

    /// Hash of a key by which its rank is chosen; the same in every store.
    #[must_use]
    pub fn route_of(&self, key: &[u8]) -> u64 {
        route_of(key, self.namespace)
    }

    /// Where an object is, whether it is pinned or not: by the time the caller looks it may be gone.
    pub fn location(&self, key: &[u8]) -> Result<Look<Location>> {
        let view = self.client.view();
        Ok(match self.look_and_pin(view, key)? {
            Look::Ready(pin) => {
                let found = view.object(pin.index).map(|header| location(view, pin.index, header, pin.epoch));
                self.let_go(view, pin.slot);
                found.map_or(Look::Missing, Look::Ready)
            }
            Look::Writing(index, epoch) => Look::Writing(index, epoch),
            Look::Missing => Look::Missing,
        })
    }

    /// The runs of pages of an object that is pinned or planned.
    pub fn extents(&self, index: u32) -> Result<Extents> {
        let view = self.client.view();
        let Some(header) = view.object(index) else { return Ok(Extents::default()) };
        let (owner_rank, bytes_total) = (header.owner_rank.load(Relaxed), header.bytes_total.load(Relaxed));
        let p = self.client.params();
        let page = u64::from(p.page_bytes);
        let runs = (0..header.n_extents.load(Relaxed) as usize).filter_map(|i| view.extent(header, i));
        let runs = runs.map(|(first, count)| (p.heap_offset + u64::from(first) * page, u64::from(count) * page));
        Ok(Extents { owner_rank, bytes_total, runs: memory::collect(runs)? })
    }

    /// Notes that an object was used, for policies that care. Gives whether there is one.
    pub fn touch(&self, key: &[u8]) -> Result<bool> {
        let view = self.client.view();
        match self.look(view, key)? {
            Look::Ready((index, _)) | Look::Writing(index, _) => {
                self.stamp(view, index);
                Ok(true)
            }
            Look::Missing => Ok(false),
        }
    }

    #[inline]
    pub(super) fn stamp(&self, view: &View<'_>, index: u32) {
        if self.client.params().policy == 0 {
            return;
        }
        let now = sys::coarse_ms();
        if let Some(access) = view.access(index)
            && access.load(Relaxed) != now
        {
            access.store(now, Relaxed);
        }
    }

    /// Reads `pieces` of a value from `offset` on. Gives the bytes of the whole value. Nothing is read if the pieces do
    /// not fit what is there: `fits` is asked with the size of the value first.
    pub fn read(
        &self,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        fits: impl FnOnce(u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        self.read_with(key, offset, pieces, Sums::Touched, fits)
    }

    /// The same, with a choice of what is verified.
    pub fn read_with(
        &self,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        sums: Sums,
        fits: impl FnOnce(u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        let client = &*self.client;
        let view = client.view();
        let started = client.counters.is_sample(Op::Get).then(sys::now_ns);
        let pin = match self.look_and_pin(view, key)? {
            Look::Ready(pin) => pin,
            Look::Writing(index, epoch) => {
                client.counters.miss();
                return Ok(Look::Writing(index, epoch));
            }
            Look::Missing => {
                client.counters.miss();
                return Ok(Look::Missing);
            }
        };
        if self.awaits_sums(pin.index) {
            self.let_go(view, pin.slot);
            client.counters.miss();
            return Ok(Look::Writing(pin.index, pin.epoch));
        }
        let read = self.read_pinned(view, pin, offset, pieces, sums, fits);
        self.let_go(view, pin.slot);
        let (total, moved) = read?;
        client.counters.hit(moved);
        if let Some(started) = started {
            client.counters.timed_get(sys::now_ns() - started, moved);
        }
        Ok(Look::Ready(total))
    }

    fn read_pinned(
        &self,
        view: &View<'_>,
        pin: Pin,
        offset: u64,
        pieces: &Pieces<'_>,
        sums: Sums,
        fits: impl FnOnce(u64) -> Result<bool>,
    ) -> Result<(u64, u64)> {
        let Some(header) = view.object(pin.index) else { return Ok((0, 0)) };
        let total = header.bytes_total.load(Relaxed);
        if !fits(total)? {
            return Ok((total, 0));
        }
        self.stamp(view, pin.index);
        let bytes = pieces.bytes()?;
        let checked = header.flags.load(Relaxed) & FLAG_CHECKSUM != 0;
        let check = || if checked { self.check_sums(view, pin.index, header, offset, bytes, sums) } else { Ok(()) };
        let mut cursor = Cursor::new(self, view, header, offset)?;
        self.client.move_bytes(&mut cursor, pieces, bytes, false, check)?;
        Ok((total, bytes))
    }

    /// Whether a pinned object was published by its program before `commit` has stored the checksums: nothing can be
    /// verified yet.
    #[must_use]
    pub fn awaits_sums(&self, index: u32) -> bool {
        let view = self.client.view();
        if view.layout.params.checksums == 0 {
            return false;
        }
        match (view.object(index), view.publish(index)) {
            (Some(header), Some(words)) => !is_verifiable(header, words),
            _ => false,
        }
    }

    /// Compares the checksums of pages.
    fn check_sums(
        &self,
        view: &View<'_>,
        index: u32,
        header: &ObjectHeader,
        offset: u64,
        bytes: u64,
        sums: Sums,
    ) -> Result<()> {
        let page = u64::from(header.page_bytes.load(Relaxed));
        let total = header.bytes_total.load(Relaxed);
        let owner = header.owner_rank.load(Relaxed);
        let base = self.client.heap(owner)?.base + self.client.params().heap_offset;
        let mut at = if sums == Sums::Begun { offset.div_ceil(page) } else { offset / page };
        let end = (offset + bytes).div_ceil(page);
        let mut skip = 0;
        for i in 0..header.n_extents.load(Relaxed) as usize {
            let Some((first, count)) = view.extent(header, i) else { break };
            while at >= skip && at < skip + u64::from(count) && at < end {
                let heap_page = u64::from(first) + (at - skip);
                let in_page = page.min(total - at * page);
                let wanted = u32::try_from(heap_page).ok().and_then(|page| view.sum(owner, page));
                let found = sys::checksum(0, base + heap_page * page, in_page);
                if let Some(wanted) = wanted.map(|sum| sum.load(Acquire))
                    && wanted != found
                {
                    return Err(Error::new(
                        NMC_ERR_CORRUPT,
                        format!("page {at} of object {index} has checksum {found:08x}, not {wanted:08x}"),
                    ));
                }
                at += 1;
            }
            skip += u64::from(count);
        }
        Ok(())
    }

    /// The objects from header `cursor` on: their keys and sizes, until `take` says no. Gives where to go on, or `None`
    /// at the end.
    pub fn iterate(&self, cursor: u32, mut take: impl FnMut(&[u8], u64) -> bool) -> Result<Option<u32>> {
        let view = self.client.view();
        let namespace = namespace_word(view, self.namespace);
        for index in cursor..self.client.params().max_objects {
            let (Some(header), Some(epoch)) = (view.object(index), view.readable(index)) else { continue };
            let hidden = header.flags.load(Relaxed) & FLAG_HIDDEN != 0;
            if header.namespace.load(Relaxed) != namespace || hidden {
                continue;
            }
            let (key, bytes) = (view.key_of(header), header.bytes_total.load(Relaxed));
            if object::still(&header.control, epoch) && !take(&key, bytes) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Pages of an object that is being written which are ready, and how many it has.
    pub fn progress(&self, index: u32, epoch: u64) -> Result<(u64, u64)> {
        let view = self.client.view();
        let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return Ok((0, 0)) };
        let pages = u64::from(header.n_pages.load(Relaxed));
        if words.published.load(Acquire) == epoch {
            return Ok((pages, pages));
        }
        let ready = words.progress.load(Acquire).min(pages);
        if !object::still(&header.control, epoch) {
            return Err(Error::new(NMC_ERR_STALE, "the object was given up or removed"));
        }
        Ok((ready, pages))
    }

    /// Pins an object of which at least the first `pages` pages are ready.
    pub fn pin_partial(&self, key: &[u8], pages: u64) -> Result<Look<(Pin, Location, u64)>> {
        let view = self.client.view();
        let (index, epoch) = match self.look(view, key)? {
            Look::Ready(found) => found,
            Look::Writing(index, epoch) => (index, epoch),
            Look::Missing => return Ok(Look::Missing),
        };
        let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return Ok(Look::Missing) };
        let slot = self.client.take_slot(view)?;
        let held = self
            .slot_word(view, slot)
            .is_some_and(|w| object::hold(w, object::pin_word(index, epoch), &header.control, epoch));
        let all = u64::from(header.n_pages.load(Relaxed));
        let ready = if words.published.load(Acquire) == epoch { all } else { words.progress.load(Acquire).min(all) };
        if held && ready >= pages.min(all) && (ready > 0 || words.published.load(Acquire) == epoch) {
            let place = location(view, index, header, epoch);
            let pin = Pin { index, slot, epoch, turn: self.client.slots.turn(slot) };
            return Ok(Look::Ready((pin, place, ready)));
        }
        self.let_go(view, slot);
        Ok(if held { Look::Writing(index, epoch) } else { Look::Missing })
    }
}

/// The fields of an object that is held, or whose epoch is confirmed afterwards.
#[inline(always)]
pub(super) fn location(view: &View<'_>, index: u32, header: &ObjectHeader, epoch: u64) -> Location {
    let p = view.layout.params;
    let first = view.extent(header, 0).map_or(0, |(first, _)| first);
    Location {
        index,
        owner_rank: header.owner_rank.load(Relaxed),
        bytes_total: header.bytes_total.load(Relaxed),
        page_bytes: header.page_bytes.load(Relaxed),
        n_pages: header.n_pages.load(Relaxed),
        last_page_bytes: header.last_page_bytes.load(Relaxed),
        n_extents: header.n_extents.load(Relaxed),
        epoch,
        offset: p.heap_offset + u64::from(first) * u64::from(p.page_bytes),
        flags: header.flags.load(Relaxed),
    }
}
