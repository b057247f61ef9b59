//! The end of an object: dead, unlinked, then free when no reader and no writer is left.

use super::*;

impl Master {
    pub(super) fn find(&self, view: &View<'_>, hash: u64, key: &[u8], namespace: u32) -> Option<u32> {
        let there = |index| {
            self.is_current(index) && view.object(index).is_some_and(|header| view.key_is(header, key, namespace))
        };
        match view.find(hash, there) {
            Found::At(index) => Some(index),
            Found::Nothing | Found::Busy => None,
        }
    }

    /// Kills an object that is being written, and says why to whoever waits for it. `stopped` as below.
    pub(super) fn end_writing(&mut self, view: &View<'_>, index: u32, fate: Fate, stopped: bool) {
        if self.lists.list_of(index) == Some(WRITING) {
            self.tell_fate(view, index, fate);
        }
        self.drop_object(view, index, stopped);
    }

    /// Says how an object will have ended, before it does: who finds it dead finds this.
    pub(super) fn tell_fate(&self, view: &View<'_>, index: u32, fate: Fate) {
        let epoch = self.book(index).epoch;
        if let Some(word) = view.fate(epoch) {
            word.store(fate.word(epoch), Relaxed);
        }
    }

    /// Kills an object that is being written or readable. `stopped`: its writer will not store any more.
    pub(super) fn drop_object(&mut self, view: &View<'_>, index: u32, stopped: bool) {
        self.drop_objects(view, &[index], stopped);
    }

    /// Kills objects together, with one look at the pins.
    pub(super) fn drop_objects(&mut self, view: &View<'_>, batch: &[u32], stopped: bool) {
        // What is dead already dies no second time, whatever its header says.
        if !batch.iter().any(|index| self.is_current(*index)) {
            return;
        }
        for index in batch {
            let Some(header) = view.object(*index).filter(|_| self.is_current(*index)) else { continue };
            let Book { epoch, hash, .. } = *self.book(*index);
            self.end_hold(*index);
            object::kill(&header.control, epoch);
            reach("master.killed");
            self.index.remove(view.index(), hash, *index);
            // What nobody was told of does not end for them.
            if self.lists.list_of(*index) != Some(WRITING) {
                self.tell_fact(view, Fact::Retired { index: *index, epoch });
            }
        }
        object::settle();
        reach("master.unlinked");
        self.read_pins(view);
        for index in batch.iter().copied() {
            let Some(words) = view.publish(index).filter(|_| self.is_current(index)) else { continue };
            let (&Book { epoch, owner, .. }, paged) = (self.book(index), self.paged_bytes(index));
            let was_writing = self.lists.list_of(index) == Some(WRITING);
            let done = stopped || !was_writing || object::finished(&words.published, epoch);
            if let Some(rank) = self.ranks.get_mut(owner as usize) {
                *(if was_writing { &mut rank.writing } else { &mut rank.ready }) -= 1;
                rank.quarantined += if done { 0 } else { paged };
            }
            if done {
                self.free_unless_pinned(view, index);
            } else {
                self.lists.move_to(index, QUARANTINE);
            }
        }
    }

    /// Kills those of these headers' objects together for which `over` says so; gives how many. There are no more headers
    /// than `batch` has room for.
    pub(super) fn drop_those(
        &mut self,
        view: &View<'_>,
        headers: std::ops::Range<u32>,
        over: impl Fn(&Self, u32) -> bool,
    ) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend(headers.filter(|index| self.is_current(*index) && over(self, *index)));
        self.drop_objects(view, &batch, false);
        let n = batch.len();
        self.batch = batch;
        n
    }

    /// A dead object whose writer is done is freed, or waits for its readers. `settle` was called after the kill.
    pub(super) fn free_or_wait(&mut self, view: &View<'_>, index: u32) {
        self.read_pins(view);
        self.free_unless_pinned(view, index);
    }

    /// Like [`Master::free_or_wait`], after a look at the pins.
    fn free_unless_pinned(&mut self, view: &View<'_>, index: u32) {
        if self.is_pinned(index) {
            let (owner, paged) = (self.book(index).owner, self.paged_bytes(index));
            if let Some(rank) = self.ranks.get_mut(owner as usize) {
                rank.limbo += paged;
            }
            self.lists.move_to(index, LIMBO);
        } else {
            self.release(view, index);
        }
    }

    /// Late writers that have published since have stored their last byte: what they left is free.
    pub(super) fn sweep_quarantine(&mut self, view: &View<'_>, most: usize) {
        for _ in 0..(self.lists.len(QUARANTINE) as usize).min(most) {
            let Some(index) = self.lists.head(QUARANTINE) else { break };
            let Some(words) = view.publish(index) else { break };
            if object::finished(&words.published, self.book(index).epoch) {
                self.leave_waiting(index);
                self.free_or_wait(view, index);
                self.count_of(index);
            } else {
                self.lists.move_to(index, QUARANTINE);
            }
        }
    }

    /// Takes an object out of the accounts of those that wait.
    pub(super) fn leave_waiting(&mut self, index: u32) {
        let (owner, bytes) = (self.book(index).owner, self.paged_bytes(index));
        let Some(rank) = self.ranks.get_mut(owner as usize) else { return };
        match self.lists.list_of(index) {
            Some(LIMBO) => rank.limbo = rank.limbo.saturating_sub(bytes),
            Some(QUARANTINE) => rank.quarantined = rank.quarantined.saturating_sub(bytes),
            _ => {}
        }
    }

    /// Gives back everything of a dead object that nobody uses.
    pub(super) fn release(&mut self, view: &View<'_>, index: u32) {
        let (Some(header), Some(book)) = (view.object(index), self.books.get_mut(index as usize)) else { return };
        let Book { epoch, owner, namespace, .. } = *book;
        let (paged, key) =
            (u64::from(book.pages) * u64::from(self.map.params().page_bytes), std::mem::take(&mut book.key));
        let mut failed = None;
        if let Some(rank) = self.ranks.get_mut(owner as usize) {
            for run in book.runs() {
                failed = rank.pages.free(run).err().or(failed);
            }
        }
        (book.first, book.more, book.pages) = (Run::default(), None, 0);
        if key.count > 0 {
            failed = self.keys.free(key).err().or(failed);
        }
        if let Some(error) = failed {
            self.tell(log::ERROR, || format!("store: giving back object {index}: {error}"));
        }
        self.charge(view, namespace, |account| {
            account.used = account.used.saturating_sub(paged);
            account.objects = account.objects.saturating_sub(1);
        });
        reach("master.releasing");
        object::reserve(&header.control, epoch);
        self.lists.move_to(index, FREE);
        self.freed = true;
    }

    /// Which headers readers have pinned, sorted: a look for [`Master::is_pinned`].
    pub(super) fn read_pins(&mut self, view: &View<'_>) {
        self.pinned.clear();
        for (client, number) in self.clients.iter().zip(0u32..) {
            if *client == Client::Free {
                continue;
            }
            let Some((high_water, slots)) = view.pins(number) else { continue };
            let announced = high_water.load(Acquire).min(slots.len() as u64);
            let Some(place) = self.places.get_mut(number as usize) else { continue };
            place.high_water = place.high_water.max(announced);
            let used = usize::try_from(place.high_water).unwrap_or(usize::MAX).min(slots.len());
            self.pinned.extend(slots[..used].iter().filter_map(|slot| object::pinned_index(object::scan(slot))));
        }
        self.pinned.sort_unstable();
    }

    /// Whether somebody reads an object, or did at the last look, or it is being written to disk.
    pub(super) fn is_pinned(&self, index: u32) -> bool {
        self.pinned.binary_search(&index).is_ok() || self.disk.as_ref().is_some_and(|disk| disk.is_held(index))
    }
}
