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
        let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return };
        let word = header.control.load(Relaxed);
        let (epoch, owner) = (object::epoch(word), header.owner_rank.load(Relaxed));
        let was_writing = self.lists.list_of(index) == Some(WRITING);
        object::kill(&header.control, epoch);
        reach("master.killed");
        self.index.remove(view, header.key_hash.load(Relaxed), index);
        object::settle();
        reach("master.unlinked");
        let done = stopped || !was_writing || object::finished(&words.published, epoch);
        if let Some(rank) = self.ranks.get_mut(owner as usize) {
            *(if was_writing { &mut rank.writing } else { &mut rank.ready }) -= 1;
        }
        if done {
            self.free_or_wait(view, index);
        } else {
            if let Some(rank) = self.ranks.get_mut(owner as usize) {
                rank.quarantined += paged_bytes(header);
            }
            self.lists.move_to(index, QUARANTINE);
        }
    }

    /// A dead object whose writer is done is freed, or waits for its readers. `settle` was called after the kill.
    pub(super) fn free_or_wait(&mut self, view: &View<'_>, index: u32) {
        self.read_pins(view);
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
        let key = Run {
            first: header.key_unit.load(Relaxed),
            count: key_units(header.key_len.load(Relaxed) as usize, n_extents),
        };
        failed = self.keys.free(key).err().or(failed);
        if let Some(error) = failed {
            self.news.push((log::ERROR, format!("store: giving back object {index}: {error}")));
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
            let Some((head, slots)) = view.pins(number) else { continue };
            let used = usize::try_from(head.high_water.load(Acquire)).unwrap_or(usize::MAX).min(slots.len());
            self.pinned.extend(slots[..used].iter().filter_map(|slot| object::pinned_index(object::scan(slot))));
        }
        self.pinned.sort_unstable();
    }
}
