//! Upkeep: publications are noticed, late writers given up, waiting memory taken back.

use super::*;

/// What comes over a network has more time: as long as it moves at this pace at least, its node waits for it, and gives it up else.
const SLOWEST_BYTES_PER_MS: u64 = 16;

impl Master {
    /// The bit of upkeep that every call does.
    pub(super) fn glance(&mut self, view: &View<'_>, now: u64) {
        let (books, lists) = (&self.books, &self.lists);
        self.index.tend(view.index(), |index| {
            let book = books.get(index as usize).filter(|book| book::is_current(lists, index) && !book.is_hidden());
            book.map(|book| book.hash)
        });
        for _ in 0..GLANCE {
            let Some(index) = self.lists.head(WRITING) else { break };
            self.look_at_writing(view, index, now);
        }
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_NS;
            self.sweep_limbo(view, SWEEP);
            self.sweep_quarantine(view, SWEEP);
            self.continue_flush(view);
            self.look_at_leaving(view);
            self.show_heaps(view);
            self.let_held_go(view);
            self.tend_disk();
            // A master that takes over, and clients that come, compare it.
            self.map.restore_header();
        }
    }

    /// If the writer of an object that replaces no other is done, says so in the control word.
    pub(super) fn promote(&self, view: &View<'_>, index: u32) -> bool {
        let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return false };
        let (book, summed) = (self.book(index), self.is_summed(words));
        !book.is_hidden() && summed && object::promote(&header.control, &words.published, book.epoch)
    }

    /// Whether the checksums of a value are there, if there are to be any.
    fn is_summed(&self, words: &PublishWords) -> bool {
        self.map.params().checksums == 0 || Seal::is_word(words.progress.load(Acquire))
    }

    /// Upkeep when nobody calls. Gives whether something is waiting that only time can settle.
    pub fn tend(&mut self) -> Result<bool> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let now = now_ns();
        self.glance(view, now);
        self.look_at_all_writing(view, now, 4 * BUDGET);
        self.sweep_quarantine(view, 4 * BUDGET);
        self.sweep_limbo(view, 4 * BUDGET);
        self.hurry_flush(view, FLUSH_STEPS);
        self.count_all();
        let waiting = [WRITING, LIMBO, QUARANTINE].iter().any(|list| self.lists.len(*list) > 0);
        self.tend_disk();
        Ok(waiting || self.disk_is_busy() || self.flush_left > 0 || self.clients.contains(&Client::Leaving))
    }

    pub(super) fn look_at_all_writing(&mut self, view: &View<'_>, now: u64, most: usize) {
        for _ in 0..(self.lists.len(WRITING) as usize).min(most) {
            let Some(index) = self.lists.head(WRITING) else { break };
            self.look_at_writing(view, index, now);
        }
    }

    /// Takes note of a publication, or of a writer that is late; else the object goes to the end of the line.
    pub(super) fn look_at_writing(&mut self, view: &View<'_>, index: u32, now: u64) {
        let Book { since, owner, plan_id, .. } = *self.book(index);
        let slowly = if plan_id & CLUSTERED == 0 { 0 } else { self.paged_bytes(index) / SLOWEST_BYTES_PER_MS };
        let most_ms = u64::from(self.map.params().watchdog_ms) + slowly;
        if self.promote(view, index) {
            self.admit(view, index, now);
        } else if now.saturating_sub(since) > most_ms.saturating_mul(1_000_000) {
            self.end_writing(view, index, Fate::Late, false);
            if let Some(counters) = view.rank(owner).filter(|_| self.lists.list_of(index) == Some(QUARANTINE)) {
                counters.stuck_put_reclaimed.fetch_add(1, Relaxed);
                self.tell(log::WARN, || format!("store: the writer of object {index} on rank {owner} is late"));
            }
            self.count(owner);
        } else {
            self.lists.move_to(index, WRITING);
        }
    }

    /// Takes note of what its writer has published: of one object, or of all. Gives the number of the newest fact.
    pub fn notice(&mut self, index: Option<u32>) -> u64 {
        let map = Arc::clone(&self.map);
        let (view, now) = (map.view(), now_ns());
        match index {
            Some(index) if self.lists.list_of(index) == Some(WRITING) => self.look_at_writing(view, index, now),
            Some(_) => {}
            None => self.look_at_all_writing(view, now, 4 * BUDGET),
        }
        self.tell_of_disk();
        self.newest_fact
    }

    /// An object has become readable as far as the master is concerned.
    pub(super) fn admit(&mut self, view: &View<'_>, index: u32, now: u64) {
        let (Some(header), Some(book)) = (view.object(index), self.books.get_mut(index as usize)) else { return };
        header.control.store(object::control(object::READY, book.epoch), Release);
        header.state_ts.store(now, Relaxed);
        book.since = now;
        let (owner, epoch) = (book.owner, book.epoch);
        if let Some(rank) = self.ranks.get_mut(owner as usize) {
            rank.writing -= 1;
            rank.ready += 1;
        }
        self.enqueue(view, index, now);
        self.tell_fact(view, Fact::Published { index, epoch });
        self.count(owner);
    }

    pub(super) fn enqueue(&mut self, view: &View<'_>, index: u32, now: u64) {
        let book = self.book(index);
        let (class, facts, owner) = (book.class().0, book.facts(view, index, now), book.owner);
        if let Some(rank) = self.ranks.get_mut(owner as usize) {
            rank.queues.admit(&mut self.lists, index, class, &facts);
        }
        self.note_for_quota(index);
    }

    pub(super) fn sweep_limbo(&mut self, view: &View<'_>, most: usize) {
        let waiting = (self.lists.len(LIMBO) as usize).min(most);
        if waiting == 0 {
            return;
        }
        self.read_pins(view);
        for _ in 0..waiting {
            let Some(index) = self.lists.head(LIMBO) else { break };
            if self.is_pinned(index) {
                self.lists.move_to(index, LIMBO);
            } else {
                self.leave_waiting(index);
                self.release(view, index);
                self.count_of(index);
            }
        }
    }
}
