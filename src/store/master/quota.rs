//! Room within the quota of a namespace, which evicts its own: in the order of the heap, those of all ranks together. Objects of others may be many
//! and stand in between: where the search stopped it goes on with the next call.

use super::evict::LEVELS;
use super::make_room::{Need, SPARED};
use super::*;

/// Where the search for objects of a namespace goes on in a rank: nothing that can go is in the queues before this one, nor in front of it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    level: u16,
    /// `None` behind the last.
    at: Option<u32>,
}

impl Master {
    /// Evicts what a namespace has too much for a value that is to lie on `owner`, or on any rank of `among`, if that is not empty.
    pub(super) fn respect_quota(
        &mut self,
        view: &View<'_>,
        (namespace, quota): (u32, u64),
        (owner, among): (u32, u64),
        value: Need,
    ) -> Result<()> {
        let need = u64::from(value.pages) * u64::from(self.map.params().page_bytes);
        let used = |master: &Self| master.accounts.get(namespace as usize).map_or(0, |account| account.used);
        let over = |master: &Self| used(master).saturating_add(need).saturating_sub(quota);
        if over(self) == 0 {
            return Ok(());
        }
        if need > quota {
            crate::bail!(NMC_ERR_NO_SPACE, "a value of {need} bytes in pages does not fit the quota of {quota} bytes");
        }
        // What was published, unpinned or given up since the last look can go as well.
        self.look_at_all_writing(view, now_ns(), BUDGET);
        self.sweep_quarantine(view, SWEEP);
        self.sweep_limbo(view, BUDGET);
        self.hurry_flush(view, HURRIED_STEPS);
        if !self.may_fit_one(view, owner, among, value) {
            return Err(self.nothing_to_evict(view, owner, value));
        }
        self.read_pins(view);
        let (mut budget, mut victims) = (BUDGET, std::mem::take(&mut self.batch));
        // Once from where the last one stopped, and once from the beginning.
        for _ in 0..2 {
            let wanted = over(self);
            if wanted == 0 || budget == 0 {
                break;
            }
            victims.clear();
            self.choose_own(view, namespace, (wanted, value.spares), &mut budget, &mut victims);
            let gained = victims.iter().fold(0, |gained, index| self.paged_bytes(*index).saturating_add(gained));
            // What cannot come makes nothing go. Where it takes long to see that, what was found goes.
            if gained >= wanted || budget == 0 {
                victims.chunks(BATCH).for_each(|batch| _ = self.evict(view, batch));
            } else {
                // What was chosen is still there.
                (0..self.ranks.len()).for_each(|rank| self.set_place(namespace, rank, None));
            }
        }
        self.batch = victims;
        self.count_all();
        if over(self) == 0 {
            return Ok(());
        }
        if budget == 0 {
            crate::bail!(NMC_ERR_BUSY, "room within the namespace's {quota} bytes is being looked for; try again");
        }
        crate::bail!(
            NMC_ERR_NO_SPACE,
            "the namespace uses {} of its {quota} bytes, and {need} more are wanted",
            used(self)
        )
    }

    /// Chooses objects of a namespace that go next, until they make room for so much or the budget is used up.
    fn choose_own(
        &mut self,
        view: &View<'_>,
        namespace: u32,
        (goal, spares): (u64, bool),
        budget: &mut usize,
        victims: &mut Vec<u32>,
    ) {
        let (ranks, now, mut gained) = (self.ranks.len().min(MAX_RANKS), now_ns(), 0);
        let (mut spared, mut first, mut count) = ([0; SPARED], 0, 0);
        for level in 0..LEVELS {
            // What the disk does not have stays for what it has, whatever the priority; but what is retained goes last.
            while level == LEVELS - 1 && first < count && gained < goal {
                gained += self.paged_bytes(spared[first]);
                victims.push(spared[first]);
                first += 1;
            }
            let mut at: [Option<u32>; MAX_RANKS] = [None; MAX_RANKS];
            (0..ranks).for_each(|rank| at[rank] = self.search_from(namespace, rank, level));
            while gained < goal
                && let Some(rank) = self.oldest_own(namespace, &mut at[..ranks], budget)
            {
                let Some(index) = at[rank].filter(|_| *budget > 0) else { break };
                *budget -= 1;
                let book = self.books.get(index as usize);
                let dirty = disk::is_admitted(self.disk.as_ref(), view, index, book)
                    && !disk::is_clean(self.disk.as_ref(), index, book);
                if dirty && spares {
                    // What is behind it has time until this is written.
                    return self.go_on_from(namespace, level, &at[..ranks], &spared[first..count]);
                }
                at[rank] = self.lists.after(index);
                let facts = self.book(index).facts(view, index, now);
                if self.ranks[rank].queues.spares(&mut self.lists, index, &facts) {
                    continue;
                }
                if dirty && count < SPARED && level < LEVELS - 1 {
                    spared[count] = index;
                    count += 1;
                    continue;
                }
                gained += self.paged_bytes(index);
                victims.push(index);
            }
            if gained >= goal || *budget == 0 {
                return self.go_on_from(namespace, level, &at[..ranks], &spared[first..count]);
            }
        }
        // All were looked at.
        (0..ranks).for_each(|rank| self.set_place(namespace, rank, None));
    }

    /// The rank whose next object of the namespace, which can go, is the oldest. Passes what is in front of them, as long as the budget lasts.
    fn oldest_own(&self, namespace: u32, at: &mut [Option<u32>], budget: &mut usize) -> Option<usize> {
        let mut oldest: Option<(u64, usize)> = None;
        for (rank, at) in at.iter_mut().enumerate() {
            while let Some(index) = *at {
                let book = self.book(index);
                if book.namespace & 0xff == namespace && book.class().0 != Retain::Hard && !self.is_pinned(index) {
                    if oldest.is_none_or(|(epoch, _)| book.epoch < epoch) {
                        oldest = Some((book.epoch, rank));
                    }
                    break;
                }
                if *budget == 0 {
                    return None;
                }
                *budget -= 1;
                *at = self.lists.after(index);
            }
        }
        oldest.map(|(_, rank)| rank)
    }

    fn place(&self, namespace: u32, rank: usize) -> Option<Place> {
        let place = self.quota_places.get(namespace as usize * self.ranks.len() + rank).copied().flatten()?;
        let list = self.ranks.get(rank)?.queues.nth(place.level);
        // What it stood at may have gone.
        place.at.is_none_or(|index| self.lists.list_of(index) == list).then_some(place)
    }

    fn set_place(&mut self, namespace: u32, rank: usize, place: Option<Place>) {
        if let Some(noted) = self.quota_places.get_mut(namespace as usize * self.ranks.len() + rank) {
            *noted = place;
        }
    }

    /// Where the search begins in a queue.
    fn search_from(&self, namespace: u32, rank: usize, level: u16) -> Option<u32> {
        match self.place(namespace, rank) {
            Some(place) if place.level > level => None,
            Some(place) if place.level == level => place.at,
            _ => self.lists.head(self.ranks.get(rank)?.queues.nth(level)?),
        }
    }

    /// The search stops here, and has passed these over.
    fn go_on_from(&mut self, namespace: u32, level: u16, at: &[Option<u32>], kept: &[u32]) {
        for (rank, at) in at.iter().enumerate() {
            if self.place(namespace, rank).is_some_and(|place| place.level > level) {
                continue;
            }
            let first = kept.iter().copied().find(|index| self.book(*index).owner as usize == rank);
            let before = first.and_then(|index| {
                let level = self.ranks.get(rank)?.queues.level_of(self.lists.list_of(index)?)?;
                Some(Place { level, at: Some(index) })
            });
            self.set_place(namespace, rank, before.or(Some(Place { level, at: *at })));
        }
    }

    /// An object has come into a queue: the search must not have passed it.
    pub(super) fn note_for_quota(&mut self, index: u32) {
        let book = self.book(index);
        let (namespace, rank) = (book.namespace & 0xff, book.owner as usize);
        if self.accounts.get(namespace as usize).is_none_or(|account| account.quota == 0) {
            return;
        }
        let Some(place) = self.place(namespace, rank) else { return };
        let list = self.lists.list_of(index);
        let level = self.ranks.get(rank).zip(list).and_then(|(rank, list)| rank.queues.level_of(list));
        if level.is_some_and(|level| level < place.level || level == place.level && place.at.is_none()) {
            self.set_place(namespace, rank, level.map(|level| Place { level, at: Some(index) }));
        }
    }
}
