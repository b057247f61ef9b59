//! Write plans: how an object begins, is replaced, removed or kept.

use super::make_room::Need;
use super::*;
use std::cell::Cell;

impl Master {
    /// Makes room for an object and opens it for writing.
    pub fn open(&mut self, client: u32, request: &OpenRequest<'_>) -> Result<Opened> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let p = map.params();
        let now = now_ns();
        self.check_disk()?;
        let OpenRequest { key, namespace, bytes, flags, keep, metadata, .. } = *request;
        check_key(key)?;
        // Both indices are far away: what has to be done anyway is done while they come nearer.
        let hash = map.hash_of(key, namespace);
        view.prefetch_bucket(hash);
        let wanted = if flags & FLAG_HIDDEN == 0 { self.soon_on_disk(namespace, key) } else { None };
        self.glance(view, now);
        if metadata.len() > MAX_METADATA {
            crate::bail!(NMC_ERR_INVALID_ARG, "the metadata has {} bytes; {MAX_METADATA} are possible", metadata.len());
        }
        if view.namespace(namespace).is_none_or(|ns| namespace != 0 && ns.name_len.load(Relaxed) == 0) {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no namespace {namespace}");
        }
        let word = namespace_word(view, namespace);
        if flags & FLAG_HIDDEN == 0
            && let Some(there) = self.find(view, hash, key, word)
        {
            let writing = self.lists.list_of(there) == Some(WRITING);
            return Err(exists(key, if writing { "is being written" } else { "exists" }));
        }
        if self.found_on_disk(wanted).is_some() {
            return Err(exists(key, "is on disk"));
        }
        let owner = match request.rank {
            Some(rank) if rank < p.world_size => rank,
            Some(rank) => crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is not below the world size {}", p.world_size),
            None if p.world_size == 1 => 0,
            None => self.home_of(route_of(key, namespace)),
        };
        let among = request.among & self.usable();
        if among == 0 {
            self.check_heap(owner, flags & FLAG_RETURNS != 0)?;
        }
        let pages = bytes.div_ceil(p.page_bytes.into());
        let Some(pages) = u32::try_from(pages).ok().filter(|n| *n <= p.pages()) else {
            self.refused(view, owner);
            let heap = p.heap_bytes;
            crate::bail!(NMC_ERR_NO_SPACE, "a value of {bytes} bytes does not fit the store's {heap} bytes of a heap");
        };
        let (key_len, metadata_len) = (key.len(), metadata.len());
        let (contiguous, spares) = (flags & FLAG_CONTIGUOUS != 0, flags & FLAG_SPARES != 0);
        let need = Need { pages, key_len, metadata_len, contiguous, spares };
        let quota = self.accounts.get(namespace as usize).map_or(0, |account| account.quota);
        let paged = u64::from(pages) * u64::from(p.page_bytes);
        if quota != 0 {
            self.respect_quota(view, (namespace, quota), (owner, among), need)?;
        }
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        let (owner, index, key_run) = match self.find_room(view, owner, among, need, &mut runs, now) {
            Ok(room) => room,
            Err(error) => {
                self.runs = runs;
                self.refused(view, owner);
                return Err(error);
            }
        };
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let own = || (self.names.hash_one((index, epoch)) & !CLUSTERED).max(1);
        let plan_id = if request.put == 0 { own() } else { request.put };
        let sums = if p.checksums != 0 { FLAG_CHECKSUM } else { 0 };
        let book = Book {
            hash,
            epoch,
            plan_id,
            since: now,
            until: keep.until(now),
            first: runs.first().copied().unwrap_or_default(),
            more: book::further(&runs),
            key: key_run.unwrap_or_default(),
            pages,
            owner,
            namespace: word,
            writer: client,
            flags: keep.flags() | flags & (FLAG_HIDDEN | FLAG_CONTIGUOUS) | sums | metadata_flags(metadata.len()),
            disk: 0,
        };
        if let (Some(header), Some(words)) = (view.object(index), view.publish(index)) {
            view.header().next_epoch.store(self.next_epoch, Release);
            object::reserve(&header.control, epoch);
            header.key_hash.store(hash, Relaxed);
            header.key_unit.store(book.key.first, Relaxed);
            view.store_key(header, key);
            header.bytes_total.store(bytes, Relaxed);
            header.page_bytes.store(p.page_bytes, Relaxed);
            header.n_pages.store(pages, Relaxed);
            header.last_page_bytes.store(last_page_bytes(bytes, p.page_bytes), Relaxed);
            header.owner_rank.store(owner, Relaxed);
            header.flags.store(book.flags, Relaxed);
            header.n_extents.store(u32::try_from(runs.len()).unwrap_or(0), Relaxed);
            header.state_ts.store(now, Relaxed);
            header.plan_id.store(plan_id, Relaxed);
            header.writer.store(client, Relaxed);
            header.namespace.store(word, Relaxed);
            header.retain_until.store(book.until, Relaxed);
            for (i, run) in runs.iter().enumerate() {
                view.store_extent(header, i, run.first, run.count);
            }
            if !metadata.is_empty() {
                view.store_metadata(header, metadata);
            }
            words.progress.store(0, Relaxed);
            if let Some(access) = view.access(index) {
                access.store(0, Relaxed);
            }
            reach("master.filled");
            object::open(&header.control, epoch);
            reach("master.writing");
        }
        self.runs = runs;
        if let Some(place) = self.books.get_mut(index as usize) {
            *place = book;
        }
        self.charge(view, namespace, |account| {
            account.used += paged;
            account.objects += 1;
        });
        self.lists.move_to(index, WRITING);
        self.ranks[owner as usize].writing += 1;
        self.press(owner, namespace, pages);
        if flags & FLAG_HIDDEN == 0 && !self.link(view, hash, index) {
            self.drop_object(view, index, true);
            return Err(Error::new(NMC_ERR_INTERNAL, "the index is full, though it has two buckets for every object"));
        }
        self.count(owner);
        Ok(Opened { index, epoch, plan_id })
    }

    /// A writer gives up, or says that it stopped after the master gave it up: nothing of it will store any more. Gives whether
    /// a consumer has taken the object, of which its writer only knows that it is gone.
    pub fn abandon(&mut self, client: u32, plan: &Opened) -> Result<bool> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        if let Err(error) = self.check_plan(client, plan) {
            // Its header may have been overwritten, and what may be its pages be held back for it.
            self.hear_of_end(client, plan.epoch);
            return Err(error);
        }
        match self.lists.list_of(plan.index) {
            Some(WRITING) => self.end_writing(view, plan.index, Fate::GivenUp, true),
            Some(QUARANTINE) => {
                self.leave_waiting(plan.index);
                self.free_or_wait(view, plan.index);
            }
            // It is readable, evicted, or waits for a reader: nothing is left to give up.
            _ => return Ok(self.book(plan.index).flags & book::TAKEN != 0),
        }
        self.count_of(plan.index);
        Ok(false)
    }

    /// Gives a plan up to which somebody may still write whom its client cannot stop: its pages stay out of use until it is
    /// abandoned, or its client is gone. Gives how many bytes they are.
    pub fn doubt(&mut self, client: u32, plan: &Opened) -> Result<u64> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.check_plan(client, plan)?;
        let published = view.publish(plan.index).is_some_and(|words| object::finished(&words.published, plan.epoch));
        if self.lists.list_of(plan.index) == Some(WRITING) && !published {
            self.end_writing(view, plan.index, Fate::GivenUp, false);
        }
        self.count_of(plan.index);
        let waits = self.lists.list_of(plan.index) == Some(QUARANTINE);
        Ok(if waits { self.paged_bytes(plan.index) } else { 0 })
    }

    /// Leads to an object in the index.
    fn link(&mut self, view: &View<'_>, hash: u64, index: u32) -> bool {
        if self.index.insert(view.index(), hash, index) {
            return true;
        }
        // It has two buckets for every object: only stray stores fill it.
        self.tell(log::ERROR, || "store: the index was full of nonsense; it is built anew".into());
        let linked = |i: &u32| *i != index && self.is_current(*i) && !self.book(*i).is_hidden();
        let entries = (0..self.map.params().max_objects).filter(linked).map(|i| (self.book(i).hash, i));
        let Ok(entries) = memory::collect::<(u64, u32)>(entries) else { return false };
        self.index.rebuild(view.index(), entries.into_iter());
        self.index.insert(view.index(), hash, index)
    }

    pub(super) fn check_plan(&self, client: u32, plan: &Opened) -> Result<()> {
        let book = self.book(plan.index);
        let known = book.plan_id == plan.plan_id && book.writer == client && book.epoch == plan.epoch;
        if !known || plan.plan_id == 0 {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no write plan {:x} of this client", plan.plan_id);
        }
        Ok(())
    }

    /// A hidden object that is published takes the place of the one with its key, if there is one; or, if it was read from an
    /// entry of the disk, which is named by number and first word, it comes into memory beside that one, if that still lives and
    /// memory has nothing else by now.
    pub fn reveal(&mut self, client: u32, plan: &Opened, read_from: Option<ReadFrom>) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.check_plan(client, plan)?;
        let (Some(header), Some(words)) = (view.object(plan.index), view.publish(plan.index)) else { return Ok(()) };
        let Book { flags, hash, namespace: word, .. } = *self.book(plan.index);
        if flags & FLAG_HIDDEN == 0 {
            return Ok(());
        }
        if self.lists.list_of(plan.index) != Some(WRITING) || !object::finished(&words.published, plan.epoch) {
            crate::bail!(NMC_ERR_STALE, "the plan was given up: its writer was late");
        }
        self.check_disk()?;
        self.room_for_marks(1)?;
        let key = view.key_of(header);
        let former = self.find(view, hash, &key, word).filter(|former| *former != plan.index);
        // Of a generation that is over nothing is on disk; what is there now is another's.
        let on_disk = (namespace_word(view, word & 0xff) == word).then(|| self.on_disk(word & 0xff, &key)).flatten();
        if let Some(read_from) = read_from {
            self.check_promotion(&key, former, on_disk, read_from, header.bytes_total.load(Relaxed))?;
            // Whoever reads it knows by this that it is the value that was on disk.
            let put = self.disk.as_ref().map_or(0, |disk| disk.put_of(read_from.entry));
            header.plan_id.store(put, Relaxed);
        }
        // For a master that finds both: this one came last, whichever was opened first.
        header.state_ts.store(now_ns(), Relaxed);
        header.flags.store(flags & !FLAG_HIDDEN, Release);
        if let Some(book) = self.books.get_mut(plan.index as usize) {
            book.flags = flags & !FLAG_HIDDEN;
        }
        reach("master.shown");
        match former {
            Some(former) => {
                if !self.index.exchange(view.index(), hash, former, plan.index) {
                    self.link(view, hash, plan.index);
                }
                reach("master.exchanged");
                self.drop_object(view, former, false);
                self.count_of(former);
            }
            None => {
                self.link(view, hash, plan.index);
            }
        }
        match read_from {
            Some(ReadFrom { entry, .. }) => self.marry_to_disk(header, plan.index, entry),
            None => {
                if former.is_some() || on_disk.is_some() {
                    self.takes_away();
                }
                // When the key leads to the new value: it is never without one.
                self.move_from_disk(on_disk);
            }
        }
        self.admit(view, plan.index, now_ns());
        self.count_of(plan.index);
        Ok(())
    }

    /// Takes an object away. Readers that have pinned it keep it; nobody finds it any more.
    pub fn remove(&mut self, namespace: u32, key: &[u8]) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        check_key(key)?;
        self.check_disk()?;
        self.glance(view, now_ns());
        let word = namespace_word(view, namespace);
        let there = self.find(view, map.hash_of(key, namespace), key, word);
        let on_disk = self.on_disk(namespace, key);
        if there.is_none() && on_disk.is_none() {
            return Err(not_found(key));
        }
        self.room_for_marks(1)?;
        self.takes_away();
        self.end_on_disk(on_disk);
        if let Some(index) = there {
            self.drop_object(view, index, false);
            self.count_of(index);
        }
        Ok(())
    }

    /// Takes this very object away, of which the caller holds a pin. Of several who ask for it, one succeeds.
    pub fn take(&mut self, index: u32, epoch: u64) -> Result<()> {
        self.take_away(index, epoch, true)
    }

    /// The same for nobody.
    pub fn drop_named(&mut self, index: u32, epoch: u64) -> Result<()> {
        self.take_away(index, epoch, false)
    }

    /// `index` may be that of an entry of the disk: of a value that is there and in memory nothing is left.
    fn take_away(&mut self, index: u32, epoch: u64, taken: bool) -> Result<()> {
        if index & ON_DISK != 0 {
            return self.drop_entry(index & !ON_DISK, epoch);
        }
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.check_disk()?;
        self.glance(view, now_ns());
        let book = self.book(index);
        // What was flushed is forgotten, though it may not be dead yet.
        let known = book.epoch == epoch && namespace_word(view, book.namespace & 0xff) == book.namespace;
        if !known || book.is_hidden() || !self.is_current(index) {
            crate::bail!(NMC_ERR_NOT_FOUND, "the object was taken, removed or replaced meanwhile");
        }
        self.room_for_marks(1)?;
        self.takes_away();
        self.end_clean(index);
        if let Some(book) = self.books.get_mut(index as usize).filter(|_| taken) {
            book.flags |= book::TAKEN;
            // Its writer may not have looked yet whether it was still wanted, and finds this also when another object has its header.
            self.tell_fate(view, index, Fate::Taken);
        }
        self.drop_object(view, index, false);
        self.count_of(index);
        Ok(())
    }

    /// Removes objects of a namespace whose keys begin with `prefix`, looking at headers from `cursor` on. Gives how many
    /// objects went and where to go on; `None` when all were looked at.
    pub fn remove_matching(&mut self, namespace: u32, prefix: &[u8], cursor: u32) -> Result<(u32, Option<u32>)> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.check_disk()?;
        let word = namespace_word(view, namespace);
        let (from, all) = (cursor, map.params().max_objects);
        self.glance(view, now_ns());
        let to = from.saturating_add(4 * FLUSH).min(all);
        let matches = |master: &Self, index: u32| {
            master.book(index).namespace == word
                && view.object(index).is_some_and(|header| view.key_of(header).starts_with(prefix))
        };
        self.room_for_marks(4 * FLUSH as usize)?;
        // One that replaces another, or comes back from disk, goes as well, but it is not an object yet: the other one counts.
        let begun = Cell::new(0);
        let removed = self.drop_those(view, from..to, |master, index| {
            let matches = matches(master, index);
            begun.set(begun.get() + usize::from(matches && master.book(index).is_hidden()));
            matches
        });
        if removed > 0 {
            self.takes_away();
        }
        for at in 0..removed {
            self.end_clean(self.batch[at]);
        }
        self.count_all();
        Ok((u32::try_from(removed - begun.get()).unwrap_or(u32::MAX), Some(to).filter(|to| *to < all)))
    }

    /// Changes how an object is kept.
    pub fn retain(&mut self, namespace: u32, key: &[u8], keep: Keep) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        check_key(key)?;
        let word = namespace_word(view, namespace);
        let (now, hash) = (now_ns(), map.hash_of(key, namespace));
        self.glance(view, now);
        let Some(index) = self.find(view, hash, key, word) else {
            return Err(not_found(key));
        };
        if let (Some(header), Some(book)) = (view.object(index), self.books.get_mut(index as usize)) {
            let others = book.flags & (FLAG_HIDDEN | FLAG_CONTIGUOUS | FLAG_CHECKSUM | METADATA_FLAGS | book::RETURNED);
            (book.flags, book.until) = (others | keep.flags(), keep.until(now));
            header.flags.store(book.flags & !book::RETURNED, Relaxed);
            header.retain_until.store(book.until, Relaxed);
            if self.lists.list_of(index) != Some(WRITING) {
                self.enqueue(view, index, now);
            }
        }
        Ok(())
    }
}
