//! Upkeep: publications are noticed, late writers given up, waiting memory taken back.

use super::*;

impl Master {
    /// The bit of upkeep that every call does.
    pub(super) fn glance(&mut self, view: &View<'_>, now: u64) {
        self.index.tend(view);
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
        }
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
        Ok(waiting || self.flush_left > 0 || self.clients.contains(&Client::Leaving))
    }

    pub(super) fn look_at_all_writing(&mut self, view: &View<'_>, now: u64, most: usize) {
        for _ in 0..(self.lists.len(WRITING) as usize).min(most) {
            let Some(index) = self.lists.head(WRITING) else { break };
            self.look_at_writing(view, index, now);
        }
    }

    /// Takes note of a publication, or of a writer that is late; else the object goes to the end of the line.
    pub(super) fn look_at_writing(&mut self, view: &View<'_>, index: u32, now: u64) {
        let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return };
        let hidden = header.flags.load(Relaxed) & FLAG_HIDDEN != 0;
        let epoch = object::epoch(header.control.load(Relaxed));
        if !hidden && is_verifiable(header, words) && object::promote(&header.control, &words.published, epoch) {
            self.admit(view, index, now);
        } else if now.saturating_sub(header.state_ts.load(Relaxed))
            > u64::from(self.map.params().watchdog_ms) * 1_000_000
        {
            let owner = header.owner_rank.load(Relaxed);
            self.drop_object(view, index, false);
            if let Some(counters) = view.rank(owner).filter(|_| self.lists.list_of(index) == Some(QUARANTINE)) {
                counters.stuck_put_reclaimed.fetch_add(1, Relaxed);
                self.tell(log::WARN, || format!("store: the writer of object {index} on rank {owner} is late"));
            }
            self.count(owner);
        } else {
            self.lists.move_to(index, WRITING);
        }
    }

    /// An object has become readable as far as the master is concerned.
    pub(super) fn admit(&mut self, view: &View<'_>, index: u32, now: u64) {
        let Some(header) = view.object(index) else { return };
        let word = header.control.load(Relaxed);
        if object::state(word) == object::WRITING {
            header.control.store(object::control(object::READY, object::epoch(word)), Release);
        }
        header.state_ts.store(now, Relaxed);
        let owner = header.owner_rank.load(Relaxed);
        if let Some(rank) = self.ranks.get_mut(owner as usize) {
            rank.writing -= 1;
            rank.ready += 1;
        }
        self.enqueue(view, index, now);
        self.count(owner);
    }

    pub(super) fn enqueue(&mut self, view: &View<'_>, index: u32, now: u64) {
        let Some(header) = view.object(index) else { return };
        let class = flags_of(header).0;
        if let Some(rank) = self.ranks.get_mut(header.owner_rank.load(Relaxed) as usize) {
            rank.queues.admit(&mut self.lists, index, class, &facts(view, index, now));
        }
    }

    pub(super) fn sweep_limbo(&mut self, view: &View<'_>, most: usize) {
        let waiting = (self.lists.len(LIMBO) as usize).min(most);
        if waiting == 0 {
            return;
        }
        self.read_pins(view);
        for _ in 0..waiting {
            let Some(index) = self.lists.head(LIMBO) else { break };
            if self.pinned.binary_search(&index).is_ok() {
                self.lists.move_to(index, LIMBO);
            } else {
                self.leave_waiting(view, index);
                self.release(view, index);
                self.count_of(view, index);
            }
        }
    }
}
