//! The master's side of the disk: the index of what lies there, what is being written, and what must not come back. A key has
//! one value: while it has a copy in memory and an entry here, both are the same bytes. The master never waits for the disk.

use super::*;
use crate::layout::disk::{Entry, Fingerprint, MAX_SPACE, MAX_VALUE, Space, Spot};
use crate::store::backing::SpaceName;
use crate::store::disk::DiskMap;
use crate::sync::disk_entry;
use std::collections::VecDeque;

/// Objects that are being written to disk at a time, at most.
pub const MOST_HELD: usize = 4096;
/// Objects that could not be read, of which so many are remembered.
const MOST_REFUSED: usize = 64;
/// Objects that one call of [`Master::next_to_write`] gives.
pub const MOST_NEXT: usize = 64;
/// Entries that one step of a sweep looks at.
const SWEEP_ENTRIES: u32 = 1024;
/// How much of a heap is written ahead of its eviction, in 1/1000.
const WINDOW_PERMILLE: u64 = 100;

/// An object that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToWrite {
    /// Header.
    pub index: u32,
    /// Epoch.
    pub epoch: u64,
    /// Its namespace in the store.
    pub namespace: u32,
    /// The same on disk.
    pub space: Space,
    /// Its key.
    pub key: Vec<u8>,
    /// What its writer said about it.
    pub metadata: Vec<u8>,
    /// Bytes of its value.
    pub bytes: u64,
    /// Rank whose heap holds it.
    pub rank: u32,
    /// Retain class and priority.
    pub class: (Retain, u16),
}

/// Which objects are to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that may be evicted soon.
    Ahead,
    /// All.
    All,
}

/// A record that was found on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDisk {
    /// Its entry.
    pub entry: Entry,
    /// Store in which it was written.
    pub store_id: u64,
}

/// An object whose record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Header.
    pub index: u32,
    /// Its namespace on disk, when it was chosen.
    pub generation: u32,
    /// Its entry.
    pub entry: Entry,
}

/// What the master has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Entries that live.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Room for so many entries.
    pub capacity: u64,
    /// Objects whose records are being written.
    pub held: u64,
    /// Evicted objects that the disk had.
    pub evicted_clean: u64,
    /// Evicted objects that it had not: they are lost.
    pub evicted_dirty: u64,
    /// Objects that were written and had no room in the index.
    pub full: u64,
}

/// An object that is being written: its pages stay, and it is not evicted.
#[derive(Debug, Clone, Copy)]
struct Hold {
    index: u32,
    epoch: u64,
    /// Where its record is, or will be.
    spot: Option<Spot>,
    /// It is no longer what its key stands for.
    gone: bool,
}

/// A namespace that the disk knows.
#[derive(Debug, Clone, Copy)]
struct Known {
    name: SpaceName,
    generation: u32,
    /// Entries.
    objects: u32,
    /// Entries with an epoch below this are of former generations.
    since: u64,
}

/// Where the search for something to write goes on.
#[derive(Debug, Clone, Copy, Default)]
struct Walk {
    rank: u32,
    queue: usize,
    next: Option<u32>,
    /// Pages of that rank that were passed.
    pages: u64,
}

/// See the module.
pub(super) struct Disk {
    map: Arc<DiskMap>,
    index: IndexWriter,
    /// The entry that ended last, plus one; the others follow. 0 for none.
    free: u32,
    /// Entries from here on were never used.
    fresh: u32,
    holds: Vec<Hold>,
    /// Objects that could not be read, with their epochs.
    refused: VecDeque<(u32, u64)>,
    /// By number.
    spaces: Vec<Option<Known>>,
    /// What must be written down, until it is; has room for all holds.
    marks: Vec<Mark>,
    sweep_at: u32,
    sweep_left: u32,
    walk: Walk,
    /// Pages that were asked for since the owner was last woken.
    opened: u64,
    /// The owner has something to do.
    wake: bool,
    /// This call has taken something away.
    took: bool,
    counts: DiskCounts,
}

impl Disk {
    fn new(map: Arc<DiskMap>) -> Result<Self> {
        let capacity = map.view().capacity().into();
        Ok(Self {
            index: IndexWriter::new(),
            free: 0,
            fresh: 0,
            holds: memory::with_capacity(MOST_HELD)?,
            refused: VecDeque::with_capacity(MOST_REFUSED),
            spaces: memory::vec_of(MAX_SPACE as usize, None)?,
            marks: memory::with_capacity(MOST_HELD)?,
            sweep_at: 0,
            sweep_left: 0,
            walk: Walk::default(),
            opened: 0,
            wake: false,
            took: false,
            counts: DiskCounts { capacity, ..DiskCounts::default() },
            map,
        })
    }

    fn find(&self, wanted: Fingerprint) -> Option<(u32, Entry)> {
        self.map.view().find(wanted).ok().flatten().map(|(index, _, entry)| (index, entry))
    }

    /// How many objects more can be held and find an entry.
    fn room(&self) -> usize {
        let entries = self.counts.capacity.saturating_sub(self.counts.objects);
        usize::try_from(entries).unwrap_or(usize::MAX).min(MOST_HELD).saturating_sub(self.holds.len())
    }

    /// A hold ends, and its object got no entry: if its record is somewhere, it must not be found.
    fn end_hold(&mut self, at: usize) {
        let Hold { spot, gone, .. } = self.holds.swap_remove(at);
        if let Some(spot) = spot.filter(|_| !gone) {
            self.marks.push(Mark::Dead { spot, entered: false });
        }
    }

    /// The entry of an object in memory, if it has one.
    fn clean(&self, book: &Book) -> Option<u32> {
        let index = book.disk.checked_sub(1)?;
        let words = self.map.view().entry(index)?;
        (words[0].load(Relaxed) == disk_entry::first(disk_entry::LIVE, book.epoch)).then_some(index)
    }

    fn tend(&mut self) {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.index.tend(view.index(), |index| {
            let words = view.entry(index).and_then(disk_entry::read)?;
            Some(words[1])
        });
    }

    /// Enters a value; false if there is no room.
    fn insert(&mut self, entry: &Entry) -> Option<u32> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.tend();
        let (index, fresh) = match self.free.checked_sub(1) {
            Some(index) => (index, false),
            None => (self.fresh, true),
        };
        let words = view.entry(index)?;
        let link = if fresh { 0 } else { u32::try_from(disk_entry::link(words)).unwrap_or(0) };
        disk_entry::fill(words, entry.words());
        reach("master.disk_filled");
        if !self.index.insert(view.index(), entry.fingerprint.low, index) {
            // Only while tombstones are purged.
            disk_entry::end(words);
            disk_entry::set_link(words, link.into());
            return None;
        }
        if fresh {
            self.fresh += 1;
        } else {
            self.free = link;
        }
        self.counts.objects += 1;
        self.counts.bytes += entry.bytes;
        if let Some(known) = self.spaces.get_mut(entry.space as usize).and_then(Option::as_mut) {
            known.objects += 1;
        }
        Some(index)
    }

    /// Ends an entry that lives; gives what it said.
    fn end(&mut self, index: u32) -> Option<Entry> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let words = view.entry(index)?;
        let entry = Entry::from_words(disk_entry::read(words)?);
        disk_entry::end(words);
        reach("master.disk_ended");
        self.index.remove(view.index(), entry.fingerprint.low, index);
        disk_entry::set_link(words, self.free.into());
        self.free = index + 1;
        self.counts.objects -= 1;
        self.counts.bytes = self.counts.bytes.saturating_sub(entry.bytes);
        if let Some(known) = self.spaces.get_mut(entry.space as usize).and_then(Option::as_mut) {
            known.objects = known.objects.saturating_sub(1);
        }
        self.tend();
        Some(entry)
    }

    /// Ends an entry for good: its record must not come back.
    fn kill(&mut self, index: u32) {
        if let Some(Entry { spot, .. }) = self.end(index) {
            self.marks.push(Mark::Dead { spot, entered: true });
        }
    }

    /// Number and generation of a namespace, by name; made if need be. `None` if the disk knows too many already.
    fn space_of(&mut self, name: &[u8], in_use: impl Fn(u32) -> bool) -> Option<Space> {
        let known = |known: &Option<Known>| known.as_ref().is_some_and(|known| *known.name == *name);
        if let Some(number) = self.spaces.iter().position(known) {
            let generation = self.spaces[number].map_or(0, |known| known.generation);
            return Some(Space { number: u32::try_from(number).ok()?, generation });
        }
        let free = self.spaces.iter().position(Option::is_none);
        // The number of a namespace that nobody uses and of which nothing is left.
        let left = || {
            let over = |(number, known): (usize, &Option<Known>)| {
                let number = u32::try_from(number).ok().filter(|n| !in_use(*n))?;
                known.is_some_and(|known| known.objects == 0).then_some(number as usize)
            };
            self.spaces.iter().enumerate().find_map(over)
        };
        let number = free.or_else(left)?;
        let generation = self.spaces[number].map_or(0, |known| known.generation.wrapping_add(1));
        let name = SpaceName::new(name)?;
        self.spaces[number] = Some(Known { name, generation, objects: 0, since: 0 });
        let space = Space { number: u32::try_from(number).ok()?, generation };
        self.marks.push(Mark::Namespace(name, space));
        Some(space)
    }

    /// A bounded step of the search for entries of former generations.
    fn sweep(&mut self) -> Result<()> {
        let map = Arc::clone(&self.map);
        let (view, all) = (map.view(), self.fresh.max(1));
        if self.sweep_left == 0 {
            return Ok(());
        }
        memory::reserve(&mut self.marks, SWEEP_ENTRIES as usize + MOST_HELD)?;
        for _ in 0..SWEEP_ENTRIES.min(self.sweep_left) {
            let index = self.sweep_at % all;
            self.sweep_at = (index + 1) % all;
            self.sweep_left -= 1;
            let Some(words) = view.entry(index).and_then(disk_entry::read) else { continue };
            let Entry { epoch, space, .. } = Entry::from_words(words);
            let since = self.spaces.get(space as usize).copied().flatten().map_or(0, |known| known.since);
            if epoch < since
                && let Some(Entry { spot, .. }) = self.end(index)
            {
                self.marks.push(Mark::Over { spot });
            }
        }
        Ok(())
    }

    /// The same after a bug: everything that is not in the slab is made anew.
    fn renew(&self) -> Result<Self> {
        let mut disk = Self::new(Arc::clone(&self.map))?;
        let view = self.map.view();
        disk.holds.extend_from_slice(&self.holds);
        disk.marks = memory::copy(&self.marks)?;
        disk.spaces.copy_from_slice(&self.spaces);
        disk.spaces.iter_mut().flatten().for_each(|known| known.objects = 0);
        disk.counts = DiskCounts { objects: 0, bytes: 0, ..self.counts };
        disk.fresh = view.capacity();
        let mut live: Vec<(u64, u32)> = Vec::new();
        for index in (0..view.capacity()).rev() {
            let Some(words) = view.entry(index) else { continue };
            let Some(read) = disk_entry::read(words) else {
                disk_entry::set_link(words, disk.free.into());
                disk.free = index + 1;
                continue;
            };
            let entry = Entry::from_words(read);
            memory::push(&mut live, (entry.fingerprint.low, index))?;
            disk.counts.objects += 1;
            disk.counts.bytes += entry.bytes;
            if let Some(known) = disk.spaces.get_mut(entry.space as usize).and_then(Option::as_mut) {
                known.objects += 1;
            }
        }
        disk.index.rebuild(view.index(), live.into_iter());
        disk.sweep_left = disk.fresh;
        Ok(disk)
    }
}

/// Whether the disk has what an object in memory is.
pub(super) fn is_clean(disk: Option<&Disk>, book: Option<&Book>) -> bool {
    matches!((disk, book), (Some(disk), Some(book)) if disk.clean(book).is_some())
}

impl Master {
    /// Fails while the disk below the store is not there that was there under the former master: what is on it must be known
    /// before anything is stored, removed or replaced.
    pub(super) fn check_disk(&self) -> Result<()> {
        if self.disk.is_none() && self.map.view().header().disk.load(Relaxed) != 0 {
            crate::bail!(
                NMC_ERR_UNAVAILABLE,
                "the store has a tier on disk whose owner is gone: reads go on; open the tier again in the process of the \
                 store's master (nmc_tier_open)"
            );
        }
        Ok(())
    }

    /// From now on there is a disk, with these namespaces and records. What memory has counts: records of the same keys that are
    /// not the same values end. Gives how many records found no room, the oldest, which end too.
    pub fn attach_disk(
        &mut self,
        map: Arc<DiskMap>,
        names: &[(SpaceName, Space)],
        found: &[OnDisk],
        last_epoch: u64,
    ) -> Result<u64> {
        let mut disk = Disk::new(map)?;
        for (name, space) in names {
            let Some(place) = disk.spaces.get_mut(space.number as usize) else { continue };
            *place = Some(Known { name: *name, generation: space.generation, objects: 0, since: 0 });
        }
        let mut left_out = 0;
        for record in found {
            memory::reserve(&mut disk.marks, 1)?;
            let Entry { fingerprint, epoch, spot, .. } = record.entry;
            match disk.find(fingerprint) {
                Some((_, there)) if there.epoch >= epoch => disk.marks.push(Mark::Dead { spot, entered: true }),
                there => {
                    if let Some((index, _)) = there {
                        disk.kill(index);
                    }
                    if disk.insert(&record.entry).is_none() {
                        left_out += 1;
                        disk.marks.push(Mark::Dead { spot, entered: true });
                    }
                }
            }
        }
        self.next_epoch = self.next_epoch.max(last_epoch.saturating_add(1));
        let former = self.disk.replace(disk);
        let shadowed = self.meet_memory(found);
        if let Err(error) = shadowed {
            self.disk = former;
            return Err(error);
        }
        let map = Arc::clone(&self.map);
        map.view().header().next_epoch.store(self.next_epoch, Release);
        if let Some(disk) = &self.disk {
            map.view().header().disk.store(disk.map.id(), Release);
        }
        Ok(left_out)
    }

    /// Compares what is in memory with the records of a disk that has just come.
    fn meet_memory(&mut self, found: &[OnDisk]) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        for namespace in 0..u32::try_from(MAX_NAMESPACES).unwrap_or(0) {
            let named = |id: u32| view.namespace(id).is_some_and(|ns| id == 0 || ns.name_len.load(Relaxed) > 0);
            if named(namespace) {
                let name = view.namespace(namespace).map(crate::layout::store::Namespace::name).unwrap_or_default();
                self.give_space(namespace, &name)?;
            }
        }
        // Only values that this store has written are known to be the same by their epochs.
        let ours: std::collections::HashSet<(Spot, u64)> = {
            let own = found.iter().filter(|record| record.store_id == map.store_id());
            let mut set = std::collections::HashSet::new();
            set.try_reserve(own.clone().count()).map_err(|_| memory::refused::<(Spot, u64)>(found.len()))?;
            set.extend(own.map(|record| (record.entry.spot, record.entry.epoch)));
            set
        };
        for index in 0..map.params().max_objects {
            let Some(book) = self.books.get_mut(index as usize) else { continue };
            book.disk = 0;
            let (namespace, epoch, hidden) = (book.namespace & 0xff, book.epoch, book.is_hidden());
            if hidden || !book::is_current(&self.lists, index) {
                continue;
            }
            let (Some(header), Some(disk)) = (view.object(index), &mut self.disk) else { continue };
            let Some(wanted) = disk.map.fingerprint(namespace, &view.key_of(header)) else { continue };
            let Some((entry, there)) = disk.find(wanted) else { continue };
            if there.epoch == epoch && ours.contains(&(there.spot, epoch)) {
                book.disk = entry + 1;
            } else {
                memory::reserve(&mut disk.marks, 1)?;
                disk.kill(entry);
            }
        }
        Ok(())
    }

    /// The disk goes: what is only there cannot be read any more.
    pub fn detach_disk(&mut self) {
        if self.disk.take().is_some() {
            self.map.view().header().disk.store(0, Release);
        }
    }

    /// The disk for a master that begins anew after a bug.
    pub(super) fn renew_disk(&mut self, former: Option<&Disk>) -> Result<()> {
        let Some(former) = former else { return Ok(()) };
        self.disk = Some(former.renew()?);
        Ok(())
    }

    /// After the objects were read: which of them the disk has.
    pub(super) fn look_at_disk(&mut self) {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let Some(disk) = &mut self.disk else { return };
        for (book, index) in self.books.iter_mut().zip(0u32..) {
            book.disk = 0;
            if book.is_hidden() || !book::is_current(&self.lists, index) {
                continue;
            }
            let Some(header) = view.object(index) else { continue };
            let wanted = disk.map.fingerprint(book.namespace & 0xff, &view.key_of(header));
            match wanted.and_then(|wanted| disk.find(wanted)) {
                Some((entry, there)) if there.epoch == book.epoch => book.disk = entry + 1,
                // The bug was between a replacement and the end of what it replaced.
                Some((entry, _)) => disk.kill(entry),
                None => {}
            }
        }
    }

    /// What the disk has of a key.
    pub(super) fn on_disk(&self, namespace: u32, key: &[u8]) -> Option<u32> {
        let disk = self.disk.as_ref()?;
        disk.find(disk.map.fingerprint(namespace, key)?).map(|(index, _)| index)
    }

    /// Before something is taken away: noting it must not fail afterwards.
    pub(super) fn room_for_marks(&mut self, more: usize) -> Result<()> {
        match &mut self.disk {
            Some(disk) => memory::reserve(&mut disk.marks, more + MOST_HELD),
            None => Ok(()),
        }
    }

    /// A value on disk is no longer what its key stands for: the one that is in memory by now is.
    pub(super) fn move_from_disk(&mut self, entry: Option<u32>) {
        if let (Some(_), Some(disk)) = (entry, &self.disk) {
            disk_entry::count_move(&disk.map.view().header().moved);
        }
        self.end_on_disk(entry);
    }

    /// A value on disk is no longer what its key stands for.
    pub(super) fn end_on_disk(&mut self, entry: Option<u32>) {
        if let (Some(entry), Some(disk)) = (entry, &mut self.disk) {
            disk.kill(entry);
        }
    }

    /// The same for the value that an object in memory has there.
    pub(super) fn end_clean(&mut self, index: u32) {
        let entry = self.disk.as_ref().and_then(|disk| disk.clean(self.book(index)));
        self.end_on_disk(entry);
    }

    /// An object in memory dies. If it is being written to disk, it must not come back from there.
    pub(super) fn end_hold(&mut self, index: u32) {
        let Some(disk) = &mut self.disk else { return };
        let Some(hold) = disk.holds.iter_mut().find(|hold| hold.index == index && !hold.gone) else { return };
        hold.gone = true;
        if let Some(spot) = hold.spot {
            disk.marks.push(Mark::Dead { spot, entered: false });
        }
    }

    /// Says what a namespace is to the disk.
    pub(super) fn give_space(&mut self, namespace: u32, name: &[u8]) -> Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        memory::reserve(&mut disk.marks, 1 + MOST_HELD)?;
        let map = Arc::clone(&disk.map);
        let view = map.view();
        let ids = 0..u32::try_from(MAX_NAMESPACES).unwrap_or(0);
        let used = |number| ids.clone().any(|id| view.space(id).is_some_and(|s| s.number == number));
        let space = disk.space_of(name, used);
        view.set_space(namespace, space);
        if space.is_none() {
            let text = || format!("store: {MAX_SPACE} namespaces are on disk; {} is not written there", show(name));
            self.tell(log::WARN, text);
        }
        Ok(())
    }

    /// A namespace is flushed: nothing of it is found on disk any more.
    pub(super) fn flush_disk(&mut self, namespace: u32) {
        let next_epoch = self.next_epoch;
        let Some(disk) = &mut self.disk else { return };
        let map = Arc::clone(&disk.map);
        let Some(space) = map.view().space(namespace) else { return };
        let next = Space { generation: space.generation.wrapping_add(1), ..space };
        map.view().set_space(namespace, Some(next));
        if let Some(known) = disk.spaces.get_mut(space.number as usize).and_then(Option::as_mut) {
            (known.generation, known.since) = (next.generation, next_epoch);
        }
        disk.marks.push(Mark::Generation(next));
        disk.sweep_left = disk.fresh;
    }

    /// Upkeep of the disk's index.
    pub(super) fn tend_disk(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.tend();
            // Without memory it goes on later.
            let _ = disk.sweep();
        }
    }

    /// Whether something of the disk's index is left to do.
    pub(super) fn disk_is_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.sweep_left > 0)
    }

    /// Headers whose pages the owner of the disk reads.
    pub(super) fn held_headers(disk: Option<&Disk>) -> impl Iterator<Item = u32> {
        disk.into_iter().flat_map(|disk| disk.holds.iter().map(|hold| hold.index))
    }

    /// So many pages of a rank were asked for: the owner hears of it when it has something to do.
    pub(super) fn press(&mut self, owner: u32, pages: u32) {
        let goal = self.ahead(owner);
        let window = u64::from(self.map.params().pages()) * WINDOW_PERMILLE / 1000;
        let Some(disk) = &mut self.disk else { return };
        disk.opened += u64::from(pages);
        if goal > 0 && disk.opened >= (window / 8).max(1) {
            (disk.opened, disk.wake) = (0, true);
        }
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

    /// What must be written down since the last call, for `note`. Gives whether the call has taken something away, so that it fails
    /// if that cannot be written down, or what was to be written down before.
    pub fn give_marks(&mut self, note: impl FnOnce(&[Mark])) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        if !disk.marks.is_empty() {
            note(&disk.marks);
            disk.marks.clear();
        }
        std::mem::take(&mut disk.took)
    }

    /// This call takes something away.
    pub(super) fn takes_away(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.took = true;
        }
    }

    /// The next objects that are to be written, until there are so many, or so many bytes; they are held from then on, and stay
    /// until [`Master::stored`] or [`Master::let_go`]. Gives whether there may be more.
    pub fn next_to_write(&mut self, scope: Scope, most: (usize, u64), out: &mut Vec<ToWrite>) -> Result<bool> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let now = now_ns();
        self.glance(view, now);
        self.look_at_all_writing(view, now, BUDGET);
        let Some(disk) = &mut self.disk else { return Ok(false) };
        let room = disk.room();
        if room == 0 {
            // Nothing is written that nobody could find.
            disk.counts.full += 1;
            return Ok(false);
        }
        let (most, mut bytes) = (most.0.min(MOST_NEXT).min(room), most.1);
        memory::reserve(out, most)?;
        let (mut walk, mut budget, from) = (disk.walk, BUDGET, out.len());
        let ranks = map.params().world_size;
        while out.len() - from < most && bytes > 0 && budget > 0 {
            let Some(rank) = self.ranks.get(walk.rank as usize).filter(|_| walk.rank < ranks) else { break };
            let queues = rank.queues.in_order(scope == Scope::All);
            let goal = if scope == Scope::All { u64::MAX } else { self.ahead(walk.rank) };
            let list = queues.get(walk.queue).copied().filter(|_| walk.pages < goal);
            let Some(list) = list else {
                walk = Walk { rank: walk.rank + 1, ..Walk::default() };
                continue;
            };
            let here = walk.next.filter(|index| self.lists.list_of(*index) == Some(list));
            // What it stood at may have gone: then this queue is looked at from its head again.
            let Some(index) = here.or_else(|| self.lists.head(list)) else {
                (walk.queue, walk.next) = (walk.queue + 1, None);
                continue;
            };
            budget -= 1;
            walk.next = self.lists.after(index);
            if walk.next.is_none() {
                walk.queue += 1;
            }
            walk.pages += u64::from(self.book(index).pages);
            if let Some(next) = self.to_write(view, index)? {
                bytes = bytes.saturating_sub(next.bytes.max(1));
                out.push(next);
            }
        }
        let over = walk.rank >= ranks;
        if let Some(disk) = &mut self.disk {
            disk.walk = if over { Walk::default() } else { walk };
            for next in &out[from..] {
                let ToWrite { index, epoch, .. } = *next;
                disk.holds.push(Hold { index, epoch, spot: None, gone: false });
            }
        }
        Ok(!over)
    }

    /// What the owner must know of a readable object, if the disk does not have it.
    fn to_write(&self, view: &View<'_>, index: u32) -> Result<Option<ToWrite>> {
        let (book, Some(disk), Some(header)) = (self.book(index), &self.disk, view.object(index)) else {
            return Ok(None);
        };
        let (namespace, current) = (book.namespace & 0xff, namespace_word(view, book.namespace & 0xff));
        let known = book.namespace == current && !book.is_hidden();
        let held = disk.holds.iter().any(|hold| hold.index == index);
        let (Some(space), Some(shape)) = (disk.map.view().space(namespace), view.shape(header)) else {
            return Ok(None);
        };
        let refused = disk.refused.contains(&(index, book.epoch));
        if !known || held || refused || disk.clean(book).is_some() || shape.bytes_total >= MAX_VALUE {
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
            if out.len() >= most.0.min(MOST_NEXT) || bytes >= most.1 {
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
                disk.counts.full += 1;
                crate::bail!(NMC_ERR_LIMIT, "the index of the tier has room for {} values", disk.counts.capacity);
            }
            bytes += next.bytes.max(1);
            disk.holds.push(Hold { index, epoch: next.epoch, spot: None, gone: false });
            memory::push(out, next)?;
        }
        Ok(looked)
    }

    /// Where the records of held objects will be, before the first byte of them is written. Gives for each whether the object is
    /// still wanted; if not, its hold is over.
    pub fn assign(&mut self, places: &[(u32, Spot)], wanted: &mut Vec<bool>) -> Result<()> {
        wanted.clear();
        memory::reserve(wanted, places.len())?;
        let Some(disk) = &mut self.disk else { return Ok(()) };
        memory::reserve(&mut disk.marks, MOST_HELD)?;
        for (index, spot) in places {
            let Some(at) = disk.holds.iter().position(|hold| hold.index == *index) else {
                wanted.push(false);
                continue;
            };
            let hold = &mut disk.holds[at];
            wanted.push(!hold.gone);
            if hold.gone {
                disk.holds.swap_remove(at);
            } else {
                hold.spot = Some(*spot);
            }
        }
        Ok(())
    }

    /// The records of these objects are on disk for good: whatever is still current has an entry from now on. Calls `entered`
    /// with the number of each that has. The holds are over.
    pub fn stored(&mut self, items: &[Stored], mut entered: impl FnMut(usize)) -> Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        memory::reserve(&mut disk.marks, items.len() + MOST_HELD)?;
        for (number, item) in items.iter().enumerate() {
            let Stored { index, generation, entry } = *item;
            let Some(at) = disk.holds.iter().position(|hold| hold.index == index && hold.epoch == entry.epoch) else {
                disk.marks.push(Mark::Dead { spot: entry.spot, entered: false });
                continue;
            };
            let hold = disk.holds.swap_remove(at);
            if hold.gone {
                // Its mark was written before anybody was told that it is gone.
                continue;
            }
            let known = disk.spaces.get(entry.space as usize).copied().flatten();
            let current = known.is_some_and(|known| known.generation == generation);
            let there = self.books.get_mut(index as usize).filter(|book| book.epoch == entry.epoch);
            let place = match there {
                Some(book) if current && book::is_current(&self.lists, index) => {
                    let place = disk.insert(&entry);
                    book.disk = place.map_or(0, |place| place + 1);
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
        reach("master.disk_stored");
        Ok(())
    }

    /// Nothing was written of these objects after all, or it counts for nothing: the holds are over.
    pub fn let_go(&mut self, items: &[ToWrite]) {
        let Some(disk) = &mut self.disk else { return };
        for item in items {
            let is = |hold: &Hold| hold.index == item.index && hold.epoch == item.epoch;
            if let Some(at) = disk.holds.iter().position(is) {
                disk.end_hold(at);
            }
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

    /// The next objects come from the beginning.
    pub fn begin_walk(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.walk = Walk::default();
        }
    }

    /// Looks for entries of former generations; gives whether some may be left.
    pub fn sweep_disk(&mut self) -> Result<bool> {
        match &mut self.disk {
            Some(disk) => disk.sweep().map(|()| disk.sweep_left > 0),
            None => Ok(false),
        }
    }

    /// Whoever wrote begins anew, and knows of no hold.
    pub fn let_all_go(&mut self) {
        if let Some(disk) = &mut self.disk {
            while !disk.holds.is_empty() {
                disk.end_hold(0);
            }
        }
    }

    /// An entry leads to nothing that can be read: it ends, if it is still this one.
    pub fn end_entry(&mut self, index: u32, word: u64) -> Result<bool> {
        self.room_for_marks(1)?;
        let Some(disk) = &mut self.disk else { return Ok(false) };
        let words = disk.map.view().entry(index);
        let same = words.is_some_and(|words| words[0].load(Relaxed) == word && disk_entry::is_live(word));
        if same {
            disk.kill(index);
        }
        Ok(same)
    }

    /// An object is evicted: counts whether the disk has it.
    pub(super) fn count_evicted(&mut self, index: u32) {
        let Some(disk) = &mut self.disk else { return };
        match self.books.get(index as usize).and_then(|book| disk.clean(book)) {
            Some(_) => disk.counts.evicted_clean += 1,
            None => {
                disk.counts.evicted_dirty += 1;
                disk.wake = true;
            }
        }
    }

    /// What was counted; `None` without a disk.
    #[must_use]
    pub fn disk_counts(&self) -> Option<DiskCounts> {
        self.disk.as_ref().map(|disk| DiskCounts { held: disk.holds.len() as u64, ..disk.counts })
    }
}
