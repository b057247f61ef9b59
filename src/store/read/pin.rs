//! Reading in place: find, pin, look, unpin; `get` has the reads that copy, `seal` what is verified. Nothing here asks the master,
//! except to consume. What is read of an object is read only while a pin slot holds it, or confirmed afterwards.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use crate::layout::store::{Shape, View, access_word};
use crate::store::client::{Client, Store};
use crate::store::disk::DiskAccess;
use crate::store::hash::route_of;
use crate::store::sys;
use crate::store::types::{
    Extents, Location, Look, Pin, Presence, check_key, corrupt, located, namespace_word, shaped, show,
};
use crate::store::wire::Request;
use crate::sync::index::Found;
use crate::sync::object;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Keys whose looks wait for memory together.
const GROUP: usize = 16;
/// How often a key that moves away under a call is looked for again.
pub(in crate::store) const LOOKS: usize = 16;

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
    pub(in crate::store) fn look(&self, view: &View<'_>, namespace: u32, key: &[u8]) -> Result<Look<(u32, u64)>> {
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
    pub(in crate::store) fn pin_in(&self, view: &View<'_>, key: &[u8], slot: u32) -> Result<Look<Pin>> {
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
            view.prefetch_value(header);
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
    pub(in crate::store) fn look(&self, view: &View<'_>, key: &[u8]) -> Result<Look<(u32, u64)>> {
        self.client.look(view, self.namespace, key)
    }

    /// What became of a key: for callers that need to know whether it is being written.
    pub fn state(&self, key: &[u8]) -> Result<Look<(u32, u64)>> {
        self.look(self.client.view(), key)
    }

    /// Ends a hold.
    #[inline]
    pub(in crate::store) fn release_pin(&self, view: &View<'_>, slot: u32) {
        reach("reader.before_unpin");
        if let Some(word) = self.slot_word(view, slot) {
            object::unpin(word);
        }
        self.client.slots.give_back(slot);
    }

    /// Whether an object is readable. Neither pins nor stamps.
    #[inline]
    pub fn exists(&self, key: &[u8]) -> Result<bool> {
        self.presence(key).map(Presence::is_readable)
    }

    /// What is known of a key. Neither pins nor stamps.
    #[inline]
    pub fn presence(&self, key: &[u8]) -> Result<Presence> {
        let look = self.look(self.client.view(), key)?;
        self.presence_of(key, &look)
    }

    #[inline(always)]
    fn presence_of(&self, key: &[u8], look: &Look<(u32, u64)>) -> Result<Presence> {
        match look {
            Look::Ready(_) => Ok(Presence::Ready),
            Look::Writing(..) => Ok(Presence::Writing),
            Look::Missing => self.presence_on_disk(key),
        }
    }

    #[inline]
    fn presence_on_disk(&self, key: &[u8]) -> Result<Presence> {
        self.presence_below(key, self.disk()?)
    }

    /// What is known of a key that memory did not have, with this disk below it.
    pub(in crate::store) fn presence_below(&self, key: &[u8], disk: Option<DiskAccess>) -> Result<Presence> {
        let Some(disk) = disk else { return Ok(Presence::Absent) };
        let look = self.look_on_disk(disk, key, |found| match found {
            Some(_) => Ok(Some(Look::Ready(Presence::OnDisk))),
            None => Ok(Some(match self.look(self.client.view(), key)? {
                Look::Ready(_) => Look::Ready(Presence::Ready),
                Look::Writing(..) => Look::Ready(Presence::Writing),
                Look::Missing => Look::Missing,
            })),
        })?;
        Ok(if let Look::Ready(presence) = look { presence } else { Presence::Absent })
    }

    /// Looks for many keys, as long as `go_on` says so. In a large store a look waits for memory twice, one after
    /// the other; here those of a group of keys wait together.
    pub fn look_many<'k>(
        &self,
        mut keys: impl Iterator<Item = Result<&'k [u8]>>,
        mut go_on: impl FnMut(Presence) -> bool,
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
                        view.prefetch_bucket(hash);
                        group[n] = (key, hash, None);
                        n += 1;
                    }
                    Some(Err(error)) => end = Some(Err(error)),
                    None => end = Some(Ok(())),
                }
            }
            let group = &mut group[..n];
            group.iter_mut().for_each(|(_, hash, index)| *index = view.prefetch_object(*hash));
            group.iter().filter_map(|(_, _, index)| *index).for_each(|index| view.prefetch_rest(index));
            for (key, hash, _) in group {
                check_key(key)?;
                let look = self.client.look_hashed(view, self.namespace, key, *hash)?;
                if !go_on(self.presence_of(key, &look)?) {
                    return Ok(());
                }
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// How many of these keys, from the first on, are readable, here or elsewhere.
    pub fn match_prefix<'k>(&self, keys: impl Iterator<Item = Result<&'k [u8]>>) -> Result<usize> {
        let mut n = 0;
        self.look_many_anywhere(keys, |presence| {
            n += usize::from(presence.is_readable());
            presence.is_readable()
        })?;
        Ok(n)
    }

    /// Pins an object, or tells that it is being written or missing.
    #[inline(always)]
    pub fn pin(&self, key: &[u8]) -> Result<Look<(Pin, Location)>> {
        let view = self.client.view();
        match self.look_and_pin(view, key)? {
            Look::Ready(pin) => {
                let location = self.located(view, pin)?;
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

    /// Pins an object and takes it away, so that nobody else finds it: of several who ask, in whatever process, one gets it.
    /// It is the caller's from then on, also if the caller dies before it unpins.
    pub fn consume(&self, key: &[u8]) -> Result<Look<(Pin, Location)>> {
        let view = self.client.view();
        let interrupt = self.interrupt();
        for _ in 0..LOOKS {
            let pin = match self.pin_to_read(view, key)? {
                Look::Ready(pin) => pin,
                Look::Writing(index, epoch) => return Ok(Look::Writing(index, epoch)),
                Look::Missing => return Ok(Look::Missing),
            };
            let location = self.located(view, pin)?;
            // Before it is taken away: a client that cannot read it leaves it to one that can.
            self.payload(&location).inspect_err(|_| self.release_pin(view, pin.slot))?;
            reach("consumer.pinned");
            match self.call_until(&Request::Take(pin.index, pin.epoch), &interrupt) {
                Ok(_) => {
                    reach("consumer.took");
                    self.client.counters.hit(location.bytes_total);
                    return Ok(Look::Ready((pin, location)));
                }
                Err(error) => {
                    self.release_pin(view, pin.slot);
                    if error.status != NMC_ERR_NOT_FOUND {
                        return Err(error);
                    }
                }
            }
            // Somebody else was faster. If it was replaced, there is another one.
        }
        Err(Error::new(NMC_ERR_BUSY, format!("{} was replaced again and again while it was taken", show(key))))
    }

    /// Where a pinned object is. If that makes no sense, the pin is over.
    #[inline(always)]
    pub(in crate::store) fn located(&self, view: &View<'_>, pin: Pin) -> Result<Location> {
        let found = located(view, pin.index, pin.epoch);
        if found.is_err() {
            self.release_pin(view, pin.slot);
        }
        found
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
        self.release_pin(view, pin.slot);
        Ok(())
    }

    /// A pin slot of this client.
    #[inline(always)]
    pub(in crate::store) fn slot_word<'v>(&self, view: &View<'v>, slot: u32) -> Option<&'v AtomicU64> {
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
                let found = self.located(view, pin)?;
                self.release_pin(view, pin.slot);
                Look::Ready(found)
            }
            Look::Writing(index, epoch) => Look::Writing(index, epoch),
            Look::Missing => Look::Missing,
        })
    }

    /// The runs of pages of an object that the program has pinned.
    pub fn view_extents(&self, pin: Pin) -> Result<Extents> {
        self.check_view(pin)?;
        self.traced_extents(pin.index).map(|(extents, _)| extents)
    }

    /// Where these runs are in this process and on the GPU (0 without a device), and how many bytes of the value each has.
    pub fn addresses(&self, extents: Extents) -> Result<impl Iterator<Item = (u64, u64, u64)>> {
        let Extents { owner_rank, bytes_total: mut left, runs } = extents;
        let (base, device) = (self.base(owner_rank)?, self.device_base(owner_rank));
        Ok(runs.into_iter().map(move |(offset, bytes)| {
            let bytes = bytes.min(left);
            left -= bytes;
            (base + offset, if device == 0 { 0 } else { device + offset }, bytes)
        }))
    }

    /// First byte of a value in this process and on the GPU (0 without a device); both are 0 if it is empty.
    #[inline(always)]
    pub fn payload(&self, l: &Location) -> Result<(u64, u64)> {
        if l.bytes_total == 0 {
            return Ok((0, 0));
        }
        let device = self.device_base(l.owner_rank);
        Ok((self.base(l.owner_rank)? + l.offset, if device == 0 { 0 } else { device + l.offset }))
    }

    /// The same, with their trace.
    pub(in crate::store) fn traced_extents(&self, index: u32) -> Result<(Extents, u64)> {
        let view = self.client.view();
        let (header, shape) = shaped(view, index)?;
        let p = self.client.params();
        let page = u64::from(p.page_bytes);
        let place = |(first, count)| (p.heap_offset + u64::from(first) * page, u64::from(count) * page);
        let mut runs = memory::with_capacity(shape.n_extents as usize)?;
        let mut trace = shape.trace();
        for run in view.runs(header, &shape) {
            let run = run.ok_or_else(|| corrupt(index))?;
            trace = Shape::traced(trace, run);
            runs.push(place(run));
        }
        let Shape { owner_rank, bytes_total, .. } = shape;
        Ok((Extents { owner_rank, bytes_total, runs }, trace))
    }

    /// Whether a key that is not in memory is on disk.
    #[inline]
    pub fn is_on_disk(&self, key: &[u8]) -> Result<bool> {
        Ok(self.presence_on_disk(key)? == Presence::OnDisk)
    }

    /// Notes that an object was used, for policies that care. Gives whether there is one.
    pub fn touch(&self, key: &[u8]) -> Result<bool> {
        let view = self.client.view();
        match self.look(view, key)? {
            Look::Ready((index, _)) | Look::Writing(index, _) => {
                self.stamp(view, index);
                Ok(true)
            }
            Look::Missing => self.touch_on_disk(key),
        }
    }

    #[cold]
    fn touch_on_disk(&self, key: &[u8]) -> Result<bool> {
        let presence = self.presence(key)?;
        if presence == Presence::OnDisk
            && let Some(disk) = self.disk()?
            && let Some(found) = disk.map.probe(self.namespace, key)?
        {
            disk.map.touch(&found);
        }
        Ok(presence != Presence::Absent)
    }

    #[inline]
    pub(in crate::store) fn stamp(&self, view: &View<'_>, index: u32) {
        if self.client.params().policy == 0 {
            return;
        }
        let now = sys::coarse_ms();
        if let Some(access) = view.access(index)
            && let Some(word) = access_word(access.load(Relaxed), now)
        {
            access.store(word, Relaxed);
        }
    }

    /// How many pages of an object that the program has pinned are ready.
    pub fn ready_pages(&self, pin: Pin) -> Result<u64> {
        self.check_view(pin)?;
        self.progress(pin.index, pin.epoch).map(|(ready, _)| ready)
    }

    /// Pages of an object that is being written which are ready, and how many it has.
    pub fn progress(&self, index: u32, epoch: u64) -> Result<(u64, u64)> {
        let view = self.client.view();
        let Some(words) = view.publish(index) else { return Ok((0, 0)) };
        let (header, shape) = shaped(view, index)?;
        let pages = u64::from(shape.n_pages);
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
        let place = match (held, located(view, index, epoch)) {
            (true, Ok(place)) => place,
            (held, found) => {
                self.release_pin(view, slot);
                return if held { found.map(|_| Look::Missing) } else { Ok(Look::Missing) };
            }
        };
        let all = u64::from(place.n_pages);
        let ready = if words.published.load(Acquire) == epoch { all } else { words.progress.load(Acquire).min(all) };
        if ready >= pages.min(all) && (ready > 0 || words.published.load(Acquire) == epoch) {
            let pin = Pin { index, slot, epoch, turn: self.client.slots.turn(slot) };
            return Ok(Look::Ready((pin, place, ready)));
        }
        self.release_pin(view, slot);
        Ok(Look::Writing(index, epoch))
    }
}
