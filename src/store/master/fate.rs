//! The end of an object: dead, unlinked, then free when no reader and no writer is left.

use super::*;

impl Master {
    pub(super) fn find(&self, view: &View<'_>, hash: u64, key: &[u8], namespace: u32) -> Option<u32> {
        let there = |index| {
            view.object(index).is_some_and(|header| {
                object::is_live(header.control.load(Relaxed)) && view.key_is(header, key, namespace)
            })
        };
        match view.find(hash, there) {
            Found::At(index) => Some(index),
            Found::Nothing | Found::Busy => None,
        }
    }

    /// Kills an object that is being written or readable. `stopped`: its writer will not store any more.
    pub(super) fn drop_object(&mut self, view: &View<'_>, index: u32, stopped: bool) {
        self.drop_objects(view, &[index], stopped);
    }

    /// Kills objects together, with one look at the pins.
    pub(super) fn drop_objects(&mut self, view: &View<'_>, batch: &[u32], stopped: bool) {
        if batch.is_empty() {
            return;
        }
        for index in batch {
            let Some(header) = view.object(*index) else { continue };
            object::kill(&header.control, object::epoch(header.control.load(Relaxed)));
            reach("master.killed");
            self.index.remove(view, header.key_hash.load(Relaxed), *index);
        }
        object::settle();
        reach("master.unlinked");
        self.read_pins(view);
        for index in batch.iter().copied() {
            let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { continue };
            let epoch = object::epoch(header.control.load(Relaxed));
            let was_writing = self.lists.list_of(index) == Some(WRITING);
            let done = stopped || !was_writing || object::finished(&words.published, epoch);
            if let Some(rank) = self.ranks.get_mut(header.owner_rank.load(Relaxed) as usize) {
                *(if was_writing { &mut rank.writing } else { &mut rank.ready }) -= 1;
                rank.quarantined += if done { 0 } else { paged_bytes(header) };
            }
            if done {
                self.free_unless_pinned(view, index);
            } else {
                self.lists.move_to(index, QUARANTINE);
            }
        }
    }

    /// Kills these objects together, no more than `batch` has room for; gives how many.
    pub(super) fn drop_all(&mut self, view: &View<'_>, objects: impl Iterator<Item = u32>) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend(objects);
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
        if self.pinned.binary_search(&index).is_ok() {
            if let Some(header) = view.object(index)
                && let Some(rank) = self.ranks.get_mut(header.owner_rank.load(Relaxed) as usize)
            {
                rank.limbo += paged_bytes(header);
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
            let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { break };
            if object::finished(&words.published, object::epoch(header.control.load(Relaxed))) {
                self.leave_waiting(view, index);
                self.free_or_wait(view, index);
                self.count_of(view, index);
            } else {
                self.lists.move_to(index, QUARANTINE);
            }
        }
    }

    /// Takes an object out of the accounts of those that wait.
    pub(super) fn leave_waiting(&mut self, view: &View<'_>, index: u32) {
        let Some(header) = view.object(index) else { return };
        let bytes = paged_bytes(header);
        let Some(rank) = self.ranks.get_mut(header.owner_rank.load(Relaxed) as usize) else { return };
        match self.lists.list_of(index) {
            Some(LIMBO) => rank.limbo = rank.limbo.saturating_sub(bytes),
            Some(QUARANTINE) => rank.quarantined = rank.quarantined.saturating_sub(bytes),
            _ => {}
        }
    }

    /// Gives back everything of a dead object that nobody uses.
    pub(super) fn release(&mut self, view: &View<'_>, index: u32) {
        let Some(header) = view.object(index) else { return };
        let n_extents = header.n_extents.load(Relaxed) as usize;
        let owner = header.owner_rank.load(Relaxed);
        let mut failed = None;
        for i in 0..n_extents {
            if let (Some((first, count)), Some(rank)) = (view.extent(header, i), self.ranks.get_mut(owner as usize)) {
                failed = rank.pages.free(Run { first, count }).err().or(failed);
            }
        }
        if let Some(run) = key_run(header) {
            failed = self.keys.free(run).err().or(failed);
        }
        if let Some(error) = failed {
            self.tell(log::ERROR, || format!("store: giving back object {index}: {error}"));
        }
        if let Some(ns) = view.namespace(header.namespace.load(Relaxed) & 0xff) {
            ns.bytes_used.fetch_sub(paged_bytes(header), Relaxed);
            ns.objects.fetch_sub(1, Relaxed);
        }
        reach("master.releasing");
        object::reserve(&header.control, object::epoch(header.control.load(Relaxed)));
        self.lists.move_to(index, FREE);
    }

    /// Which headers are pinned, sorted.
    pub(super) fn read_pins(&mut self, view: &View<'_>) {
        self.pinned.clear();
        for (client, number) in self.clients.iter().zip(0u32..) {
            if *client == Client::Free {
                continue;
            }
            let Some((high_water, slots)) = view.pins(number) else { continue };
            let used = usize::try_from(high_water.load(Acquire)).unwrap_or(usize::MAX).min(slots.len());
            self.pinned.extend(slots[..used].iter().filter_map(|slot| object::pinned_index(object::scan(slot))));
        }
        self.pinned.sort_unstable();
    }
}
