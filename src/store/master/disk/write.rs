//! What is to be written, ahead of eviction or because somebody asked, and how it gets its entry. What is being written is held:
//! its pages stay, and it is not evicted.

use super::*;

impl Master {
    /// So many pages of a rank were asked for: the owner hears of it when it has something to do.
    pub(in crate::store::master) fn press(&mut self, owner: u32, namespace: u32, pages: u32) {
        let goal = self.ahead(owner);
        let (window_in, goal_in) = (self.window_in(namespace), self.ahead_in(namespace));
        let bytes = u64::from(pages) * u64::from(self.map.params().page_bytes);
        let window = u64::from(self.map.params().pages()) * WINDOW_PERMILLE / 1000;
        let Some(disk) = &mut self.disk else { return };
        disk.opened += u64::from(pages);
        // Where the last look found all of the window on disk, much of it must go before there is anything else at its end.
        let least = if disk.found_some { window / 8 } else { window / 2 };
        if goal > 0 && disk.opened >= least.max(1) {
            let front = disk.fronts.get(owner as usize).copied().unwrap_or_default();
            // What comes into a queue beside others may be in front of all of them.
            let most = if front.in_use.is_power_of_two() { u64::MAX } else { front.shortest / 2 };
            let more = (front.known + window / 2).saturating_sub(goal).min(most);
            let same = || self.ranks.get(owner as usize).is_some_and(|r| r.queues.in_use(&self.lists) == front.in_use);
            if disk.opened >= more || !same() {
                (disk.opened, disk.wake) = (0, true);
                disk.forget_fronts();
            }
        }
        if goal_in > 0
            && let Some(opened) = disk.opened_in.get_mut(namespace as usize)
        {
            *opened += bytes;
            if *opened >= window_in / 8 {
                (*opened, disk.wake) = (0, true);
            }
        }
    }

    /// Bytes of a namespace with a quota that are written ahead; 0 without one. Such a namespace evicts its own, and often few of them.
    fn window_in(&self, namespace: u32) -> u64 {
        let quota = self.accounts.get(namespace as usize).map_or(0, |account| account.quota);
        (quota / 4).max(quota.min(QUOTA_PAGES * u64::from(self.map.params().page_bytes)))
    }

    /// Bytes of a namespace, from the front of the queues on, that should be on disk since its quota is almost used.
    fn ahead_in(&self, namespace: u32) -> u64 {
        let Some(account) = self.accounts.get(namespace as usize).filter(|account| account.quota > 0) else { return 0 };
        account.used.saturating_sub(account.quota.saturating_sub(self.window_in(namespace)))
    }

    /// Pages of a rank, from the front of its queues on, that should be on disk: it evicts down to the low watermark, and what
    /// is a window below that is next.
    fn ahead(&self, rank: u32) -> u64 {
        let p = self.map.params();
        let (all, used) = (u64::from(p.pages()), self.ranks.get(rank as usize).map_or(0, |r| r.pages.used().into()));
        let from = (all * u64::from(p.low_permille) / 1000).saturating_sub(all * WINDOW_PERMILLE / 1000);
        u64::saturating_sub(used, from)
    }

    /// Whether the owner of the disk has something to do that it may not know of. Asked once.
    pub fn take_wake(&mut self) -> bool {
        self.disk.as_mut().is_some_and(|disk| std::mem::take(&mut disk.wake))
    }

    /// Takes note of what has been published, and of what is read, before [`Master::next_to_write`].
    pub fn look_around(&mut self) {
        let map = Arc::clone(&self.map);
        let (view, now) = (map.view(), now_ns());
        self.glance(view, now);
        self.look_at_all_writing(view, now, BUDGET);
        self.read_pins(view);
        if let Some(disk) = &mut self.disk {
            disk.found_some = false;
        }
    }

    /// The next objects that are to be written, until there are so many, or so many bytes, or the master is wanted; they are held from
    /// then on, and stay until [`Master::stored`] or [`Master::release_holds`]. Gives whether there may be more, and how many objects
    /// were looked at.
    pub fn next_to_write(
        &mut self,
        scope: Scope,
        most: (usize, u64),
        wanted: &dyn Fn() -> bool,
        out: &mut Vec<ToWrite>,
    ) -> Result<(bool, usize)> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let Some(disk) = &mut self.disk else { return Ok((false, 0)) };
        let room = disk.room();
        if room == 0 {
            // Nothing is written that nobody could find.
            disk.counts.full += 1;
            disk.found_some = true;
            if scope == Scope::Ahead {
                return Ok((false, 0));
            }
        }
        // Without room one is looked for, to say that there is none for it.
        let (most, mut bytes) = (most.0.min(MOST_NEXT).min(room.max(1)), most.1);
        memory::reserve(out, most)?;
        let (admission, map_capacity) = (disk.admission, disk.counts.capacity);
        let (mut walk, mut passed_in, mut looked, from) = (disk.walk, disk.passed_in, 0, out.len());
        let goals_in: [u64; MAX_NAMESPACES] = std::array::from_fn(|id| match scope {
            Scope::Ahead => self.ahead_in(u32::try_from(id).unwrap_or(0)).min(admission.bytes),
            Scope::All => 0,
        });
        let (ranks, has_goals) = (map.params().world_size, goals_in.iter().any(|goal| *goal > 0));
        while out.len() - from < most && bytes > 0 && looked < MOST_LOOKED_AT && (looked == 0 || !wanted()) {
            let mut is_next = true;
            let index = match scope {
                // By their numbers, which they keep: in the queues, what has been passed may come again, and what has not may be passed.
                Scope::All => {
                    let (first, all) = (walk.next.unwrap_or(0), map.params().max_objects);
                    let end = all.min(first.saturating_add(MOST_PASSED));
                    let found = (first..end).find(|index| evict::is_queued(&self.lists, *index));
                    walk.next = Some(found.map_or(end, |index| index + 1));
                    match found {
                        Some(index) => index,
                        None if end < all => {
                            looked += 1;
                            continue;
                        }
                        None => {
                            walk.rank = ranks;
                            break;
                        }
                    }
                }
                Scope::Ahead => {
                    let Some(rank) = self.ranks.get(walk.rank as usize).filter(|_| walk.rank < ranks) else { break };
                    let most = admission.bytes / u64::from(map.params().page_bytes);
                    let (goal, objects) = (self.ahead(walk.rank).min(most), admission.objects);
                    let list = rank.queues.nth(walk.queue);
                    is_next = walk.pages < goal && walk.objects < objects;
                    let in_some = has_goals && goals_in.iter().zip(&passed_in).any(|(goal, passed)| passed < goal);
                    // In other orders what is read goes to the end, and what is behind it comes to the front unseen.
                    let further = goal > 0
                        && walk.front.known < FURTHER * goal
                        && !walk.dirty
                        && rank.queues.is_fifo()
                        && admission == Admission::default();
                    let Some(list) = list.filter(|_| is_next || in_some || further) else {
                        // Of each rank as much: a quota takes those first that came first, wherever they are.
                        passed_in = [0; MAX_NAMESPACES];
                        walk = self.end_of_rank(&walk);
                        continue;
                    };
                    let here = walk.next.filter(|index| self.lists.list_of(*index) == Some(list));
                    // What it stood at may have gone: then this queue is looked at from its head again.
                    walk.dirty |= here.is_none() && walk.next.is_some();
                    let Some(index) = here.or_else(|| self.lists.head(list)) else {
                        (walk.queue, walk.next) = (walk.queue + 1, None);
                        continue;
                    };
                    let pages = u64::from(self.book(index).pages);
                    if is_clean(self.disk.as_ref(), index, self.books.get(index as usize)) {
                        walk.front.known += if self.is_pinned(index) { 0 } else { pages };
                    } else if is_next || in_some {
                        walk.dirty = true;
                    } else {
                        // It is not to be written yet.
                        looked += 1;
                        passed_in = [0; MAX_NAMESPACES];
                        walk = self.end_of_rank(&walk);
                        continue;
                    }
                    walk.in_queue += pages;
                    walk.next = self.lists.after(index);
                    if walk.next.is_none() {
                        walk.queue += 1;
                        walk.front.shortest = walk.front.shortest.min(std::mem::take(&mut walk.in_queue));
                    }
                    index
                }
            };
            looked += 1;
            let admitted =
                scope == Scope::All || is_admitted(self.disk.as_ref(), view, index, self.books.get(index as usize));
            let space = (self.book(index).namespace & 0xff) as usize % MAX_NAMESPACES;
            let is_next_in = passed_in[space] < goals_in[space];
            if !is_next && !is_next_in {
                continue;
            }
            // What is in use is not evicted: others are, in its place. What is not written goes before what is.
            if admitted && !self.is_pinned(index) {
                if is_next {
                    walk.pages += u64::from(self.book(index).pages);
                    walk.objects += 1;
                }
                passed_in[space] += self.paged_bytes(index);
            }
            if scope == Scope::All && self.book(index).epoch >= walk.before {
                // It came after whoever wants all of them had asked.
                continue;
            }
            // Most are, where there is much to put: it is seen without a look at the object itself.
            if !admitted || is_clean(self.disk.as_ref(), index, self.books.get(index as usize)) {
                continue;
            }
            if let Some(next) = self.to_write(view, index)? {
                if room == 0 {
                    crate::bail!(
                        NMC_ERR_NO_SPACE,
                        "the index of the tier has room for {} values, and all of it is used (max_objects)",
                        map_capacity
                    );
                }
                bytes = bytes.saturating_sub(next.bytes.max(1));
                out.push(next);
            }
        }
        let over = walk.rank >= ranks;
        if let Some(disk) = &mut self.disk {
            disk.walk = if over { Walk { before: walk.before, ..Walk::default() } } else { walk };
            disk.passed_in = if over { [0; MAX_NAMESPACES] } else { passed_in };
            disk.found_some |= out.len() > from;
            for next in &out[from..] {
                let ToWrite { index, epoch, .. } = *next;
                disk.holds.add(index, epoch);
            }
        }
        Ok((!over, looked))
    }

    /// A rank was looked at as far as is of use: what is known of it is noted, and the next one begins.
    fn end_of_rank(&mut self, walk: &Walk) -> Walk {
        let in_use = self.ranks.get(walk.rank as usize).map_or(0, |rank| rank.queues.in_use(&self.lists));
        if let Some(front) = self.disk.as_mut().and_then(|disk| disk.fronts.get_mut(walk.rank as usize)) {
            *front = if walk.dirty { Front::default() } else { Front { in_use, ..walk.front } };
        }
        Walk { rank: walk.rank + 1, before: walk.before, ..Walk::default() }
    }

    /// Says what is written ahead from now on.
    pub fn set_admission(&mut self, admission: Admission) {
        if let Some(disk) = &mut self.disk {
            disk.admission = admission;
        }
    }

    /// What the owner must know of a readable object, if the disk does not have it.
    fn to_write(&self, view: &View<'_>, index: u32) -> Result<Option<ToWrite>> {
        let (book, Some(disk), Some(header)) = (self.book(index), &self.disk, view.object(index)) else {
            return Ok(None);
        };
        let (namespace, current) = (book.namespace & 0xff, namespace_word(view, book.namespace & 0xff));
        let known = book.namespace == current && !book.is_hidden();
        let held = disk.holds.has(index);
        let (Some(space), Some(shape)) = (disk.map.view().space(namespace), view.shape(header)) else {
            return Ok(None);
        };
        let refused = disk.refused.contains(&(index, book.epoch));
        if !known || held || refused || disk.clean(index, book).is_some() || shape.bytes_total >= MAX_VALUE {
            return Ok(None);
        }
        let metadata = view.metadata(header).map_or(Ok(Vec::new()), |metadata| memory::copy(&metadata))?;
        Ok(Some(ToWrite {
            index,
            epoch: book.epoch,
            namespace,
            space,
            key: view.key_of(header),
            metadata,
            bytes: shape.bytes_total,
            rank: book.owner,
            class: book.class(),
            put: book.plan_id,
        }))
    }

    /// The objects with these keys, if they are in memory and not on disk, as [`Master::next_to_write`] gives them, until there are so
    /// many, or so many bytes. Gives how many keys were looked at; fails if the index has no room.
    pub fn find_to_write(
        &mut self,
        namespace: u32,
        keys: &[Vec<u8>],
        most: (usize, u64),
        out: &mut Vec<ToWrite>,
    ) -> Result<usize> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.look_at_all_writing(view, now_ns(), usize::MAX);
        let word = namespace_word(view, namespace);
        let (mut bytes, mut looked) = (0, 0);
        for key in keys {
            if out.len() >= most.0.min(MOST_FOUND) || bytes >= most.1 {
                break;
            }
            looked += 1;
            let Some(index) = self.find(view, map.hash_of(key, namespace), key, word) else { continue };
            if self.lists.list_of(index) == Some(WRITING) {
                continue;
            }
            let Some(next) = self.to_write(view, index)? else { continue };
            let Some(disk) = &mut self.disk else { break };
            if disk.room() == 0 {
                if !out.is_empty() {
                    // Those that have room come first.
                    looked -= 1;
                    break;
                }
                disk.counts.full += 1;
                crate::bail!(
                    NMC_ERR_NO_SPACE,
                    "the index of the tier has room for {} values, and all of it is used (max_objects)",
                    disk.counts.capacity
                );
            }
            bytes += next.bytes.max(1);
            let epoch = next.epoch;
            memory::push(out, next)?;
            disk.holds.add(index, epoch);
        }
        Ok(looked)
    }

    /// Where the records of held objects will be, before the first byte of them is written. Adds for each whether the object is
    /// still wanted; if not, its hold is over.
    pub fn assign(&mut self, places: &[(u32, Spot)], wanted: &mut Vec<bool>) -> Result<()> {
        memory::reserve(wanted, places.len())?;
        let Some(disk) = &mut self.disk else { return Ok(()) };
        memory::reserve(&mut disk.marks, MOST_HELD)?;
        for (index, spot) in places {
            let Some(hold) = disk.holds.get_mut(*index) else {
                wanted.push(false);
                continue;
            };
            wanted.push(!hold.gone);
            if hold.gone {
                let epoch = hold.epoch;
                disk.holds.remove(*index, epoch);
            } else {
                hold.spot = Some(*spot);
            }
        }
        Ok(())
    }

    /// The records of these objects are on disk for good: whatever is still current has an entry from now on. Calls `entered`
    /// with the number of each that has. Gives with how many of them it was done before the master was wanted: their holds are over.
    pub fn stored(
        &mut self,
        items: &[Stored],
        wanted: &dyn Fn() -> bool,
        mut entered: impl FnMut(usize),
    ) -> Result<usize> {
        let Some(disk) = &mut self.disk else { return Ok(items.len()) };
        let mut done = 0;
        memory::reserve(&mut disk.marks, items.len() + MOST_HELD)?;
        for (number, item) in items.iter().enumerate() {
            if number > 0 && wanted() {
                break;
            }
            done += 1;
            let Stored { index, generation, entry, put } = *item;
            let Some(hold) = disk.holds.remove(index, entry.epoch) else {
                disk.marks.push(Mark::Dead { spot: entry.spot, entered: false });
                continue;
            };
            if hold.gone {
                // Its mark was written before anybody was told that it is gone.
                continue;
            }
            let known = disk.spaces.get(entry.space as usize).copied().flatten();
            let current = known.is_some_and(|known| known.generation == generation);
            let there = self.books.get_mut(index as usize).filter(|book| book.epoch == entry.epoch);
            let place = match there {
                Some(book) if current && book::is_current(&self.lists, index) => {
                    let place = disk.insert(&Entry { epoch: self.next_epoch, ..entry }, put);
                    self.next_epoch += 1;
                    if let Some(place) = place {
                        disk.marry(index, book, place, false);
                    }
                    disk.counts.full += u64::from(place.is_none());
                    place
                }
                _ => None,
            };
            match place {
                Some(_) => entered(number),
                None => disk.marks.push(Mark::Dead { spot: entry.spot, entered: false }),
            }
        }
        self.map.view().header().next_epoch.store(self.next_epoch, Release);
        reach("master.disk_stored");
        Ok(done)
    }

    /// Nothing was written of these objects after all, or it counts for nothing: the holds are over.
    pub fn release_holds(&mut self, items: &[ToWrite]) {
        let Some(disk) = &mut self.disk else { return };
        for item in items {
            disk.end_hold(item.index, item.epoch);
        }
    }

    /// These cannot be read, and are not asked for again while they are what they are.
    pub fn refuse(&mut self, items: &[(u32, u64)]) {
        if let Some(disk) = &mut self.disk {
            for item in items {
                if disk.refused.len() == MOST_REFUSED {
                    disk.refused.pop_front();
                }
                disk.refused.push_back(*item);
            }
        }
    }

    /// The next objects come from the beginning, and with [`Scope::All`] they are those that are there now.
    pub fn begin_walk(&mut self) {
        let before = self.next_epoch;
        if let Some(disk) = &mut self.disk {
            (disk.walk, disk.passed_in) = (Walk { before, ..Walk::default() }, [0; MAX_NAMESPACES]);
        }
    }

    /// Whoever wrote begins anew, and knows of no hold.
    pub fn let_all_go(&mut self) {
        if let Some(disk) = &mut self.disk {
            while let Some(Hold { index, epoch, .. }) = disk.holds.any() {
                disk.end_hold(index, epoch);
            }
        }
    }

    /// An object is evicted: counts whether the disk has it.
    pub(in crate::store::master) fn count_evicted(&mut self, index: u32) {
        let Some(disk) = &mut self.disk else { return };
        match self.books.get(index as usize).and_then(|book| disk.clean(index, book)) {
            Some(_) => disk.counts.evicted_clean += 1,
            None => {
                disk.counts.evicted_dirty += 1;
                disk.wake = true;
            }
        }
    }
}
