//! A new master takes over: everything it needs is in the slabs. One header that makes no sense costs its object, not
//! the store.

use super::*;

/// Largest epoch that is believed. At a million objects a second it lasts a thousand years; what a stray store leaves is
/// as likely larger as not.
pub(super) const SANE_EPOCH: u64 = object::MAX_EPOCH >> 1;

/// What is held back since nobody knows whether an object has it whose header made no sense: somebody may still read or
/// write it. With the last of those objects it is free.
#[derive(Default)]
pub(super) struct Held {
    /// Headers.
    objects: Vec<u32>,
    /// Clients that have not said yet what they are writing. Any of them may be the writer of an object whose header
    /// does not tell.
    silent: Vec<u32>,
    /// What the others are writing: client and epoch.
    writing: Vec<(u32, u64)>,
    /// Rank and run.
    pages: Vec<(u32, Run)>,
    keys: Vec<Run>,
}

/// The writer of an object whose header does not tell.
const ANYBODY: u32 = u32::MAX;

/// Notes whose run is not below `units`, or is claimed twice: both go, since nobody knows which is right.
fn drop_conflicts(units: u32, used: &mut [(Run, u32)], refused: &mut Vec<u32>) -> Result<()> {
    used.sort_unstable();
    let mut last: Option<(usize, u32)> = None;
    for (run, index) in used.iter() {
        let range = run.range();
        match last {
            _ if run.count == 0 || range.end > units as usize => memory::push(refused, *index)?,
            Some((end, other)) if range.start < end => {
                memory::push(refused, *index)?;
                memory::push(refused, other)?;
                last = Some((end.max(range.end), if range.end > end { *index } else { other }));
            }
            _ => last = Some((range.end, *index)),
        }
    }
    Ok(())
}

impl Master {
    /// Takes over a store whose master died: everything is in the slabs. Clients that are entered there count as
    /// attached until they are known to be gone.
    pub fn take_over(map: Arc<Map>) -> Result<Self> {
        let mut master = Self::empty(Arc::clone(&map))?;
        master.read_clients();
        master.read_heaps();
        master.skip_facts(map.view(), map.view().header().facts.load(Relaxed));
        master.read_objects()?;
        master.heed_last_words()?;
        master.count_all();
        master.publish_counters();
        Ok(master)
    }

    /// Takes over from itself, after a bug has left its state half changed. Whose places those of the clients are is
    /// known.
    pub fn renew(&self) -> Result<Self> {
        let mut master = Self::empty(Arc::clone(&self.map))?;
        master.clients.copy_from_slice(&self.clients);
        master.places.copy_from_slice(&self.places);
        master.heaps.copy_from_slice(&self.heaps);
        master.closed = self.closed;
        master.next_epoch = self.next_epoch;
        master.skip_facts(self.map.view(), self.newest_fact);
        master.renew_disk(self.disk.as_ref())?;
        master.read_objects()?;
        master.look_at_disk();
        Ok(master)
    }

    fn read_clients(&mut self) {
        let map = Arc::clone(&self.map);
        let (view, world_size) = (map.view(), map.params().world_size);
        for ((client, place), number) in self.clients.iter_mut().zip(&mut self.places).zip(0u32..) {
            let (Some(entry), Some((high_water, slots))) = (view.client(number), view.pins(number)) else { continue };
            place.generation = entry.generation.load(Acquire);
            let info = ClientInfo {
                pid: entry.pid.load(Relaxed),
                start_time: entry.start_time.load(Relaxed),
                rank: entry.rank.load(Relaxed),
                rank_generation: entry.rank_generation.load(Relaxed),
                // What no client has is a stray store: the client comes back and is refused.
                role: u32::try_from(entry.role.load(Relaxed)).ok().and_then(Role::from_code).unwrap_or(Role::Program),
            };
            // What is pinned stays pinned, whatever the entry says.
            let pins = high_water.load(Acquire) != 0 || slots.iter().any(|slot| object::scan(slot) != 0);
            let entered = place.generation & 1 == 1 && info.rank < world_size;
            if entered || pins {
                *client = Client::Attached;
                (place.generation, place.info) = (place.generation | 1, info);
                // The mark may have been overwritten.
                place.high_water = slots.len() as u64;
            }
        }
    }

    fn read_objects(&mut self) -> Result<()> {
        let map = Arc::clone(&self.map);
        let (view, p) = (map.view(), *map.params());
        self.room_for_pins(0)?;
        self.read_pins(view);
        let suspects = self.read_books(view)?;
        for id in 0..u32::try_from(MAX_NAMESPACES).unwrap_or(0) {
            let quota = view.namespace(id).map_or(0, |ns| ns.quota_bytes.load(Relaxed));
            self.charge(view, id, |account| account.quota = quota);
        }
        let mut linked: Vec<(u64, u32)> = Vec::new();
        let mut last_epoch = 0;
        for index in 0..p.max_objects {
            let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { continue };
            let word = header.control.load(Acquire);
            let Book { epoch, owner, namespace, hash, writer, .. } = *self.book(index);
            last_epoch = last_epoch.max(epoch);
            let suspect = suspects.binary_search(&index).is_ok();
            if object::state(word) == object::RESERVED && !suspect {
                continue;
            }
            let paged = self.paged_bytes(index);
            self.charge(view, namespace, |account| {
                account.used += paged;
                account.objects += 1;
            });
            let published = epoch != 0 && words.published.load(Acquire) == epoch;
            // Of a writer that left or is gone nothing stores any more: the former master waited for a reader.
            let writer = self.clients.get(writer as usize);
            let stopped = published || writer.map_or(!suspect, |client| *client == Client::Free);
            let list = match (object::is_live(word) && !suspect, stopped) {
                (true, _) => WRITING,
                (false, true) => LIMBO,
                (false, false) => QUARANTINE,
            };
            let rank = &mut self.ranks[owner as usize];
            match list {
                WRITING => rank.writing += 1,
                LIMBO => rank.limbo += paged,
                _ => rank.quarantined += paged,
            }
            self.lists.move_to(index, list);
            if suspect {
                object::kill(&header.control, epoch);
            } else if list == WRITING && !self.book(index).is_hidden() {
                memory::push(&mut linked, (hash, index))?;
            }
        }
        self.count_units(&suspects)?;
        let shown = view.header().next_epoch.load(Relaxed);
        let shown = if shown <= SANE_EPOCH { shown } else { 1 };
        self.next_epoch = self.next_epoch.max(shown).max(last_epoch + 1);
        // Oldest first, so that eviction goes on in the same order.
        let mut order: Vec<u32> = memory::collect(self.lists.iter(WRITING))?;
        // In place: a stable sort needs memory. Of equal epochs, which nobody makes, either may come first.
        order.sort_unstable_by_key(|index| self.book(*index).epoch);
        for index in order {
            self.lists.move_to(index, WRITING);
        }
        reach("takeover.counted");
        self.index.rebuild(view.index(), linked.iter().copied());
        reach("takeover.indexed");
        self.drop_replaced(view, &mut linked);
        self.begin_flush();
        self.look_at_all_writing(view, now_ns(), usize::MAX);
        // The former master may have died between a kill and its fence.
        object::settle();
        self.sweep_limbo(view, usize::MAX);
        self.let_held_go(view);
        reach("takeover.swept");
        self.count_all();
        self.publish_counters();
        Ok(())
    }

    /// Reads all headers into the books; gives those that make no sense, sorted. Of these nothing is known but the epoch,
    /// and that only if it can be one.
    fn read_books(&mut self, view: &View<'_>) -> Result<Vec<u32>> {
        let map = Arc::clone(&self.map);
        let mut suspects = Vec::new();
        for index in 0..self.map.params().max_objects {
            let Some(header) = view.object(index) else { continue };
            let word = header.control.load(Acquire);
            let (state, epoch) = (object::state(word), object::epoch(word));
            let whole = object::control(state, epoch) == word && state <= object::DEAD && epoch <= SANE_EPOCH;
            let book = match state {
                // One that is pinned was more than free, unless a reader is just finding out that it is not.
                object::RESERVED if whole && !self.is_pinned(index) => Some(Book { epoch, ..Book::default() }),
                object::RESERVED => None,
                _ if whole && epoch > 0 => Book::read(&map, view, header, epoch)?,
                _ => None,
            };
            if book.is_none() {
                memory::push(&mut suspects, index)?;
            }
            let unknown = Book { epoch: if whole { epoch } else { 0 }, writer: ANYBODY, ..Book::default() };
            if let Some(place) = self.books.get_mut(index as usize) {
                *place = book.unwrap_or(unknown);
            }
        }
        let p = *self.map.params();
        let books = || self.books.iter().zip(0u32..);
        for rank in 0..p.world_size {
            let of_rank = books().filter(|(book, _)| book.owner == rank);
            let runs = of_rank.flat_map(|(book, index)| book.runs().map(move |run| (run, index)));
            let mut pages: Vec<(Run, u32)> = memory::collect(runs)?;
            drop_conflicts(p.pages(), &mut pages, &mut suspects)?;
        }
        let keys = books().filter(|(book, _)| book.key.count > 0).map(|(book, index)| (book.key, index));
        let mut keys: Vec<(Run, u32)> = memory::collect(keys)?;
        drop_conflicts(p.key_units(), &mut keys, &mut suspects)?;
        suspects.sort_unstable();
        suspects.dedup();
        for index in &suspects {
            if let Some(book) = self.books.get_mut(*index as usize) {
                *book = Book { epoch: book.epoch, writer: ANYBODY, ..Book::default() };
            }
        }
        Ok(suspects)
    }

    /// What the books say is in use. If some object's are unknown, it may have any of the rest, which is held until the
    /// object is released: nobody reads or writes it then.
    fn count_units(&mut self, suspects: &[u32]) -> Result<()> {
        let p = *self.map.params();
        for (rank, number) in self.ranks.iter_mut().zip(0u32..) {
            let of_rank = self.books.iter().filter(|book| book.owner == number);
            let mut used: Vec<Run> = memory::collect(of_rank.flat_map(Book::runs))?;
            rank.pages = Runs::with_used(p.pages(), &mut used)?;
        }
        let mut keys: Vec<Run> = memory::collect(self.books.iter().map(|book| book.key).filter(|run| run.count > 0))?;
        self.keys = Runs::with_used(p.key_units(), &mut keys)?;
        if suspects.is_empty() {
            return Ok(());
        }
        let n = suspects.len();
        let first = suspects[0];
        self.tell(log::ERROR, || {
            format!("store: {n} headers made no sense; their objects are lost (the first is {first})")
        });
        self.held.objects = memory::copy(suspects)?;
        let attached = self.entered().into_iter().filter(|client| self.is_attached(*client));
        self.held.silent = memory::collect(attached.map(|client| client.number))?;
        for (rank, number) in self.ranks.iter_mut().zip(0u32..) {
            while let Some(run) = rank.pages.allocate_smallest(u32::MAX) {
                memory::push(&mut self.held.pages, (number, run))?;
            }
        }
        while let Some(run) = self.keys.allocate_smallest(u32::MAX) {
            memory::push(&mut self.held.keys, run)?;
        }
        Ok(())
    }

    /// A client says what it is writing, all of it.
    pub(super) fn hear_of_plans(&mut self, client: u32, epochs: &[u64]) -> Result<()> {
        let Held { objects, silent, writing, .. } = &mut self.held;
        if !objects.is_empty() {
            silent.retain(|other| *other != client);
            writing.retain(|(other, _)| *other != client);
            memory::reserve(writing, epochs.len())?;
            writing.extend(epochs.iter().map(|epoch| (client, *epoch)));
        }
        Ok(())
    }

    /// A client says that it does not write this any more.
    pub(super) fn hear_of_end(&mut self, client: u32, epoch: u64) {
        self.held.writing.retain(|known| *known != (client, epoch));
    }

    /// What is held back is free when none of the objects is left that may have it.
    pub(super) fn let_held_go(&mut self, view: &View<'_>) {
        if self.held.objects.is_empty() {
            return;
        }
        if self.held.silent.is_empty() {
            // Of an object without an epoch anybody may be the writer who writes something that nobody knows.
            let known = |epoch: u64| self.books.iter().zip(0u32..).any(|(b, i)| b.epoch == epoch && self.is_current(i));
            let strange = self.held.writing.iter().any(|(_, epoch)| !known(*epoch));
            for at in 0..self.held.objects.len() {
                let index = self.held.objects[at];
                let Book { epoch, writer, .. } = *self.book(index);
                let written = if epoch == 0 { strange } else { self.held.writing.iter().any(|(_, e)| *e == epoch) };
                if self.lists.list_of(index) == Some(QUARANTINE) && writer == ANYBODY && !written {
                    self.leave_waiting(index);
                    self.free_or_wait(view, index);
                }
            }
        }
        let lists = &self.lists;
        self.held.objects.retain(|index| matches!(lists.list_of(*index), Some(LIMBO | QUARANTINE)));
        if !self.held.objects.is_empty() {
            return;
        }
        self.freed = true;
        let Held { pages, keys, .. } = std::mem::take(&mut self.held);
        let mut failed = None;
        for (owner, run) in pages {
            if let Some(rank) = self.ranks.get_mut(owner as usize) {
                failed = rank.pages.free(run).err().or(failed);
            }
        }
        for run in keys {
            failed = self.keys.free(run).err().or(failed);
        }
        if let Some(error) = failed {
            self.tell(log::ERROR, || format!("store: giving back what was held: {error}"));
        }
        self.count_all();
    }

    /// A master that died between the two steps of a replacement left two objects with one key: the one that came last
    /// stays. Readers may have seen it already.
    pub(super) fn drop_replaced(&mut self, view: &View<'_>, linked: &mut [(u64, u32)]) {
        linked.sort_unstable();
        let key = |index: u32| view.object(index).map(|h| (view.key_of(h), h.namespace.load(Relaxed)));
        for at in 1..linked.len() {
            let (hash, index) = linked[at];
            for (other_hash, other) in linked[..at].iter().rev() {
                if *other_hash != hash {
                    break;
                }
                let both_live = [index, *other].iter().all(|i| self.lists.list_of(*i) == Some(WRITING));
                if both_live && key(index) == key(*other) {
                    let older = if self.book(index).since < self.book(*other).since { index } else { *other };
                    self.drop_object(view, older, false);
                }
            }
        }
    }
}
