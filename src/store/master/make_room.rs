//! Room for a value: watermarks, eviction, and what to say when nothing can go.

use super::*;

/// When to stop evicting: after so many objects, or pages, whichever comes first.
#[derive(Clone, Copy)]
pub(super) struct Goal {
    objects: usize,
    pages: u32,
    /// Whether softly retained objects may go too.
    soft: bool,
    /// Whether what only memory has stays, though the disk is to have it.
    spares: bool,
}

/// What a value needs.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub pages: u32,
    pub key_len: usize,
    pub metadata_len: usize,
    /// Whether its pages must be one run.
    pub contiguous: bool,
    /// Whether nothing goes for it that only memory has, though the disk is to have it.
    pub spares: bool,
}

/// Objects that the disk does not have which are passed over, in one choice, for one that it has.
pub(super) const SPARED: usize = 32;

impl Need {
    /// Whether these pages of a rank have room for it.
    fn fits(self, pages: &Runs) -> bool {
        self.pages == 0
            || (if self.contiguous { pages.fits(self.pages) } else { pages.fits_spread(self.pages, MAX_EXTENTS) })
    }
}

impl Master {
    /// Room for a value on `owner`, or on any rank of `among`, if that is not empty. Then nothing is evicted as long as
    /// one of them has room: `owner`, else the one with most of it. Without, `owner` evicts, and if that is in vain the
    /// others do, the one with most free pages first. Gives the rank, the header and the room for the key.
    pub(super) fn find_room(
        &mut self,
        view: &View<'_>,
        owner: u32,
        among: u64,
        need: Need,
        runs: &mut Vec<Run>,
        now: u64,
    ) -> Result<(u32, u32, Option<Run>)> {
        let of = |rank: u32| move |(index, key)| (rank, index, key);
        if among == 0 {
            return self.make_room(view, owner, need, runs, now, BUDGET).map(of(owner));
        }
        let mut left = among;
        let is_left = |left: u64, rank: u32| left >> (rank as usize % MAX_RANKS) & 1 == 1;
        let mut next = Some(owner).filter(|owner| is_left(left, *owner) && self.has_room(*owner, need));
        next = next.or_else(|| self.roomiest(|rank| is_left(left, rank) && self.has_room(rank, need)));
        next = next.or(Some(owner).filter(|owner| is_left(left, *owner)));
        let mut why = None;
        while let Some(rank) = next.or_else(|| self.roomiest(|rank| is_left(left, rank))) {
            next = None;
            left &= !(1 << (rank as usize % MAX_RANKS));
            // The first may take what a call takes. The others get less, since they may be many.
            let budget = if why.is_none() { BUDGET } else { BUDGET / 16 };
            match self.make_room(view, rank, need, runs, now, budget) {
                Err(error) if error.status == NMC_ERR_BUSY => why = why.or(Some(error)),
                made => return made.map(of(rank)),
            }
        }
        let why = why.unwrap_or_else(|| self.nothing_to_evict(view, owner, need));
        Err(Error::new(why.status, format!("none of the ranks that may hold the value has room; {}", why.message)))
    }

    /// Whether a value fits a rank, and it would not begin to evict, or go on with it: [`Master::approach_low`].
    fn has_room(&self, rank: u32, need: Need) -> bool {
        let p = self.map.params();
        let Some(rank) = self.ranks.get(rank as usize) else { return false };
        let used = u64::from(rank.pages.used()) + u64::from(need.pages);
        let most = if rank.draining { p.low_permille } else { p.high_permille };
        used * 1000 <= u64::from(p.pages()) * u64::from(most) && need.fits(&rank.pages)
    }

    /// The rank with most free pages of those that are `wanted`.
    fn roomiest(&self, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let ranks = self.ranks.iter().zip(0u32..).filter(|(_, rank)| wanted(*rank));
        ranks.min_by_key(|(rank, _)| rank.pages.used()).map(|(_, rank)| rank)
    }

    /// Room on one rank, with eviction if need be.
    fn make_room(
        &mut self,
        view: &View<'_>,
        owner: u32,
        need: Need,
        runs: &mut Vec<Run>,
        now: u64,
        mut budget: usize,
    ) -> Result<(u32, Option<Run>)> {
        let Need { pages, key_len, metadata_len, contiguous, spares } = need;
        // What cannot come makes nothing go.
        let mut possible = self.may_fit(view, owner, need, budget);
        if possible {
            self.approach_low(view, owner, need, now, &mut budget);
        }
        let mut last_resort = true;
        loop {
            let header = self.lists.head(FREE);
            let rank = &mut self.ranks[owner as usize];
            let most = if contiguous { 1 } else { MAX_EXTENTS };
            if let Some(index) = header
                && (pages == 0 || rank.pages.allocate_spread(pages, most, runs))
            {
                match key_units(key_len, runs.len(), metadata_len) {
                    0 => return Ok((index, None)),
                    units => {
                        if let Some(run) = self.keys.allocate(units) {
                            return Ok((index, Some(run)));
                        }
                    }
                }
                for run in runs.drain(..) {
                    self.ranks[owner as usize].pages.free(run)?;
                }
            }
            let short_of_pages = header.is_some() && !need.fits(&self.ranks[owner as usize].pages);
            let goal = Goal { objects: BATCH, pages: pages.max(1), soft: true, spares };
            let mut evicted = if possible { self.evict_some(view, owner, goal, now, &mut budget) } else { 0 };
            // Headers and keys are everybody's: any rank can give them back.
            let others = if short_of_pages || !possible { 0..0 } else { 0..view.layout.params.world_size };
            for rank in others {
                if evicted == 0 && rank != owner {
                    evicted = self.evict_some(view, rank, goal, now, &mut budget);
                }
            }
            if budget == 0 || evicted == 0 {
                if !std::mem::take(&mut last_resort) {
                    return Err(self.nothing_to_evict(view, owner, need));
                }
                self.look_at_all_writing(view, now, BUDGET);
                self.sweep_quarantine(view, SWEEP);
                self.sweep_limbo(view, BUDGET);
                self.hurry_flush(view, HURRIED_STEPS);
                possible = possible || self.may_fit(view, owner, need, budget);
            }
        }
    }

    /// Whether a value of more than a page might fit a rank if everything went that can. Where that takes long to see, it might.
    fn may_fit(&mut self, view: &View<'_>, owner: u32, need: Need, budget: usize) -> bool {
        let pages = &self.ranks[owner as usize].pages;
        let mut short = need.pages.saturating_sub(pages.units() - pages.used());
        if need.pages <= 1 || short == 0 {
            return true;
        }
        self.read_pins(view);
        let budget = if need.spares { budget / 16 } else { budget };
        let mut looked = 0;
        for level in 0.. {
            let Some(list) = self.ranks[owner as usize].queues.nth(level) else { return false };
            let mut next = self.lists.head(list);
            while let Some(index) = next {
                next = self.lists.after(index);
                looked += 1;
                let book = self.books.get(index as usize);
                let stays = self.is_pinned(index)
                    || need.spares
                        && disk::is_admitted(self.disk.as_ref(), view, index, book)
                        && !disk::is_clean(self.disk.as_ref(), index, book);
                short = short.saturating_sub(if stays { 0 } else { self.book(index).pages });
                if short == 0 || looked > budget {
                    return true;
                }
            }
        }
        false
    }

    /// Whether it might fit `owner`, or a rank of `among`, if that is not empty.
    pub(super) fn may_fit_one(&mut self, view: &View<'_>, owner: u32, among: u64, need: Need) -> bool {
        if among == 0 {
            return self.may_fit(view, owner, need, BUDGET);
        }
        let ranks = (0..MAX_RANKS.min(self.ranks.len())).zip(0u32..);
        ranks.filter(|(rank, _)| among >> rank & 1 == 1).any(|(_, rank)| self.may_fit(view, rank, need, BUDGET))
    }

    pub(super) fn fullest(&self) -> u32 {
        let most = self.ranks.iter().zip(0u32..).max_by_key(|(rank, _)| rank.queues.len(&self.lists));
        most.map_or(0, |(_, rank)| rank)
    }

    /// From the high watermark down to the low one, a few objects a call.
    fn approach_low(
        &mut self,
        view: &View<'_>,
        owner: u32,
        Need { pages, spares, .. }: Need,
        now: u64,
        budget: &mut usize,
    ) {
        let p = *self.map.params();
        let rank = &mut self.ranks[owner as usize];
        let (used, total) = (u64::from(rank.pages.used()) + u64::from(pages), u64::from(p.pages()));
        let low = total * u64::from(p.low_permille) / 1000;
        if used * 1000 > total * u64::from(p.high_permille) {
            rank.draining = true;
        } else if used <= low {
            rank.draining = false;
        }
        if rank.draining {
            if rank.limbo + rank.quarantined > 0 {
                // Their readers and writers may be done by now: that comes before anything that can still be read.
                self.sweep_quarantine(view, SWEEP);
                self.sweep_limbo(view, SWEEP);
            }
            let used = u64::from(self.ranks[owner as usize].pages.used()) + u64::from(pages);
            if let Some(over) = used.checked_sub(low).filter(|over| *over > 0) {
                let pages = u32::try_from(over).unwrap_or(u32::MAX);
                self.evict_some(view, owner, Goal { objects: SPARE, pages, soft: false, spares }, now, budget);
            }
        }
        // Headers have a high watermark too, without a low one: they are all alike.
        let free = u64::from(self.lists.len(FREE)) * 1000;
        if free < u64::from(p.max_objects) * u64::from(1000 - p.high_permille) {
            let from = self.fullest();
            self.evict_some(view, from, Goal { objects: 2, pages: u32::MAX, soft: false, spares }, now, budget);
        }
    }

    /// Evicts objects of a rank until the goal is reached; gives how many made room.
    pub(super) fn evict_some(
        &mut self,
        view: &View<'_>,
        owner: u32,
        goal: Goal,
        now: u64,
        budget: &mut usize,
    ) -> usize {
        let mut batch = [0; BATCH];
        let mut chosen = 0;
        self.read_pins(view);
        let mut candidates = self.ranks[owner as usize].queues.len(&self.lists);
        let mut pages = 0;
        let (mut dirty, mut spared) = ([(0, LIMBO); SPARED], 0);
        while chosen < goal.objects.min(BATCH) && pages < goal.pages && candidates > 0 {
            let books = &self.books;
            let facts = |i: u32| books.get(i as usize).map_or(Facts::NONE, |book| book.facts(view, i, now));
            let queues = &mut self.ranks[owner as usize].queues;
            let victim = queues.victim(&mut self.lists, facts, goal.soft, budget);
            let Some(index) = victim else { break };
            candidates -= 1;
            if let Some(next) = self.lists.after(index) {
                self.prefetch_victim(view, next);
            }
            if self.is_pinned(index) {
                // In use: it stays readable. Out of its queue until the others were looked at, or it would be chosen
                // again and again while those of the next priority could go.
                if let Some(list) = self.lists.list_of(index) {
                    self.aside.push((index, list));
                    self.lists.move_to(index, LIMBO);
                }
                continue;
            }
            let book = self.books.get(index as usize);
            if (goal.spares || spared < SPARED)
                && disk::is_admitted(self.disk.as_ref(), view, index, book)
                && !disk::is_clean(self.disk.as_ref(), index, book)
            {
                if goal.spares {
                    // What is behind it has time until this is written.
                    break;
                }
                // The disk does not have it yet: others go first.
                if let Some(list) = self.lists.list_of(index) {
                    dirty[spared] = (index, list);
                    spared += 1;
                    self.lists.move_to(index, LIMBO);
                }
                continue;
            }
            pages += self.books.get(index as usize).map_or(0, |book| book.pages);
            // Out of the queue, so that it is not chosen twice.
            self.lists.move_to(index, LIMBO);
            batch[chosen] = index;
            chosen += 1;
        }
        if let Some(counters) = view.rank(owner).filter(|_| !self.aside.is_empty()) {
            counters.evict_in_use_retry.fetch_add(self.aside.len() as u64, Relaxed);
        }
        for (index, list) in self.aside.drain(..) {
            self.lists.move_to(index, list);
        }
        let only_dirty = chosen == 0;
        for (index, list) in &dirty[..spared] {
            if only_dirty && chosen < goal.objects.min(BATCH) && pages < goal.pages {
                pages += self.book(*index).pages;
                batch[chosen] = *index;
                chosen += 1;
            } else {
                self.lists.move_to(*index, *list);
            }
        }
        self.evict(view, &batch[..chosen])
    }

    /// This object will be looked at soon, by this eviction or the next: what is known of it is far away.
    fn prefetch_victim(&self, view: &View<'_>, index: u32) {
        if let (Some(book), Some(header)) = (self.books.get(index as usize), view.object(index)) {
            prefetch(&book.hash);
            prefetch(&book.disk);
            prefetch(&header.control);
        }
        if let Some(disk) = &self.disk {
            disk.prefetch_hold(index);
        }
    }

    /// Evicts these readable objects together; gives how many made room at once.
    pub(super) fn evict(&mut self, view: &View<'_>, batch: &[u32]) -> usize {
        for index in batch {
            if let Some(header) = view.object(*index) {
                let Book { epoch, hash, .. } = *self.book(*index);
                self.count_evicted(*index);
                object::kill(&header.control, epoch);
                self.index.remove(view.index(), hash, *index);
                self.tell_fact(view, Fact::Retired { index: *index, epoch });
            }
        }
        if batch.is_empty() {
            return 0;
        }
        reach("evictor.killed");
        object::settle();
        self.read_pins(view);
        let mut freed = 0;
        for index in batch {
            let (owner, paged, pinned) = (self.book(*index).owner, self.paged_bytes(*index), self.is_pinned(*index));
            let rank = &mut self.ranks[owner as usize];
            rank.ready -= 1;
            if let Some(counters) = view.rank(owner) {
                counters.evict_count.fetch_add(1, Relaxed);
            }
            if pinned {
                rank.limbo += paged;
                self.lists.move_to(*index, LIMBO);
            } else {
                self.release(view, *index);
                reach("evictor.released");
                freed += 1;
            }
        }
        if let Some(first) = batch.first() {
            self.count_of(*first);
        }
        freed
    }

    #[cold]
    pub(super) fn nothing_to_evict(&self, view: &View<'_>, owner: u32, need: Need) -> Error {
        let pages = need.pages;
        let rank = &self.ranks[owner as usize];
        let frag = rank.pages.fragmentation();
        if self.lists.len(FREE) == 0 {
            return Error::new(
                NMC_ERR_LIMIT,
                format!(
                    "all {} headers are in use (max_objects), and none can be evicted",
                    view.layout.params.max_objects
                ),
            );
        }
        if need.fits(&rank.pages) {
            return Error::new(
                NMC_ERR_LIMIT,
                format!("the key slab of {} bytes is full, and nothing can be evicted", view.layout.params.key_bytes),
            );
        }
        Error::new(
            NMC_ERR_BUSY,
            format!(
                "rank {owner} has {} of {} pages free (largest run {}), {pages} are needed, and too little of the rest \
                 is not pinned, retained or being written; try again later",
                frag.free_units,
                rank.pages.units(),
                frag.largest_run
            ),
        )
    }

    pub(super) fn refused(&self, view: &View<'_>, owner: u32) {
        if let Some(counters) = view.rank(owner) {
            counters.oom_count.fetch_add(1, Relaxed);
        }
    }

    /// Evicts from a rank until its usage is at most `permille`, a bounded number of objects a call. Gives whether it is
    /// done: there, or nothing is left to evict.
    pub fn evict_until_below(&mut self, owner: u32, permille: u32) -> Result<bool> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        if owner >= map.params().world_size || permille > 1000 {
            crate::bail!(NMC_ERR_INVALID_ARG, "rank {owner} or ratio {permille}/1000 is out of range");
        }
        let now = now_ns();
        let (mut budget, total) = (BUDGET, u64::from(map.params().pages()));
        self.glance(view, now);
        let writing = self.lists.len(WRITING);
        self.look_at_all_writing(view, now, BUDGET);
        let noticed = self.lists.len(WRITING) < writing;
        self.sweep_quarantine(view, BUDGET);
        self.sweep_limbo(view, BUDGET);
        while u64::from(self.ranks[owner as usize].pages.used()) * 1000 > total * u64::from(permille) {
            if budget == 0 {
                return Ok(false);
            }
            let over = u64::from(self.ranks[owner as usize].pages.used()) - total * u64::from(permille) / 1000;
            let pages = u32::try_from(over).unwrap_or(u32::MAX);
            let goal = Goal { objects: BATCH, pages, soft: true, spares: false };
            if self.evict_some(view, owner, goal, now, &mut budget) == 0 {
                if noticed {
                    // There may be more that became readable.
                    return Ok(false);
                }
                break;
            }
        }
        self.count(owner);
        Ok(true)
    }
}
