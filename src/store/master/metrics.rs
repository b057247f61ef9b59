//! Counters for everybody to read, and a picture for people.

use super::*;

impl Master {
    /// Something of a rank changed that its counters show.
    pub(super) fn count(&mut self, owner: u32) {
        self.uncounted |= 1 << (owner as usize % MAX_RANKS);
    }

    pub(super) fn count_of(&mut self, index: u32) {
        self.count(self.book(index).owner);
    }

    pub(super) fn count_all(&mut self) {
        self.uncounted = u64::MAX;
    }

    /// Tells what happened on disk, brings the counters in shared memory up to date, and wakes those who wait for room that there is now: at the end of
    /// each call, however much it did.
    pub fn publish_counters(&mut self) {
        self.tell_of_disk();
        if std::mem::take(&mut self.freed) {
            self.map.view().bells().room.ring();
        }
        let changed = std::mem::take(&mut self.uncounted);
        for rank in (0..self.map.params().world_size).filter(|rank| changed >> (*rank as usize % MAX_RANKS) & 1 == 1) {
            self.publish_rank(rank);
        }
    }

    fn publish_rank(&self, owner: u32) {
        let view = self.map.view();
        let (Some(rank), Some(counters)) = (self.ranks.get(owner as usize), view.rank(owner)) else { return };
        let page = u64::from(self.map.params().page_bytes);
        let frag = rank.pages.fragmentation();
        counters.bytes_used.store(u64::from(rank.pages.used()) * page, Relaxed);
        counters.bytes_total.store(u64::from(rank.pages.units()) * page, Relaxed);
        counters.ready_count.store(rank.ready, Relaxed);
        counters.writing_count.store(rank.writing, Relaxed);
        counters.quarantined_bytes.store(rank.quarantined, Relaxed);
        counters.limbo_bytes.store(rank.limbo, Relaxed);
        counters.free_runs.store(frag.free_runs.into(), Relaxed);
        counters.largest_free_bytes.store(u64::from(frag.largest_run) * page, Relaxed);
    }

    /// How many headers are in a list.
    #[cfg(test)]
    pub fn waiting(&self, list: ListId) -> u32 {
        self.lists.len(list)
    }

    /// A picture of the heaps, for people.
    pub fn dump(&self, width: usize) -> Result<String> {
        let mut text = memory::Text::default();
        let written = self.draw(width, &mut text);
        text.finish(written)
    }

    fn draw(&self, width: usize, text: &mut memory::Text) -> std::fmt::Result {
        use std::fmt::Write as _;
        let p = self.map.params();
        let (entries, tombstones) = self.index.load();
        let waiting = |list| self.lists.len(list);
        writeln!(
            text,
            "store {:016x}: {} ranks, pages of {} bytes, {} of {} headers used, {entries} keys ({tombstones} tombstones), \
             {} being written, {} wait for readers, {} wait for writers",
            self.map.store_id(),
            p.world_size,
            p.page_bytes,
            p.max_objects - self.lists.len(FREE),
            p.max_objects,
            waiting(WRITING),
            waiting(LIMBO),
            waiting(QUARANTINE),
        )?;
        for (rank, number) in self.ranks.iter().zip(0u32..) {
            let frag = rank.pages.fragmentation();
            writeln!(
                text,
                "  rank {number}: {} of {} pages used, {} free runs, largest {} pages\n    [{}]",
                rank.pages.used(),
                rank.pages.units(),
                frag.free_runs,
                frag.largest_run,
                rank.pages.map(width)
            )?;
        }
        Ok(())
    }

    /// Bytes of this process that the master takes, as far as they grow with the store.
    #[must_use]
    pub fn private_bytes(&self) -> u64 {
        let ranks: usize = self.ranks.iter().map(|r| r.pages.bytes() + r.queues.bytes()).sum();
        let books = self.books.capacity() * size_of::<Book>();
        (ranks + books + self.keys.bytes() + self.lists.bytes()) as u64
    }
}
