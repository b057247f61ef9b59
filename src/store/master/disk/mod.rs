//! The master's side of the disk: the index of what lies there, what is being written, and what must not come back. A key has
//! one value: while it has a copy in memory and an entry here, both are the same bytes. The master never waits for the disk.

mod attach;
mod holds;
mod promote;
mod write;

use super::*;
use crate::layout::disk::{Entry, Fingerprint, MAX_SPACE, MAX_VALUE, Space, Spot};
use crate::store::disk::{Admission, DiskContent, DiskCounts, DiskMap, Mark, Scope, SpaceName, Stored, ToWrite};
use crate::sync::disk_entry::{self, Move};
use holds::{Hold, Holds};
use std::collections::VecDeque;

/// Objects that are being written to disk at a time, at most.
pub const MOST_HELD: usize = 4096;
/// Objects that could not be read, of which so many are remembered.
const MOST_REFUSED: usize = 64;
/// Objects that one call of [`Master::next_to_write`] gives: everybody waits meanwhile who is not seen to wait.
const MOST_NEXT: usize = 16;
/// Objects that it looks at.
const MOST_LOOKED_AT: usize = 256;
/// Headers without an object that are passed between two of them.
const MOST_PASSED: u32 = 4096;
/// Objects that one call of [`Master::find_to_write`] gives: they become a bucket.
const MOST_FOUND: usize = 64;
/// Entries that one step of a sweep looks at.
const SWEEP_ENTRIES: u32 = 1024;
/// Facts about entries that one call tells: of more, that something is missing.
const MOST_FACTS: usize = 1 << 16;
/// How much of a heap is written ahead of its eviction, in 1/1000.
const WINDOW_PERMILLE: u64 = 100;
/// As many times of what is to be on disk is looked at, if all of that is.
const FURTHER: u64 = 8;
/// Pages of a namespace with a quota that are, at least.
const QUOTA_PAGES: u64 = 16;

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
#[derive(Debug, Clone, Copy)]
struct Walk {
    rank: u32,
    queue: u16,
    next: Option<u32>,
    /// Pages and objects of that rank that were passed.
    pages: u64,
    /// See `pages`.
    objects: u64,
    /// What began later is not looked for.
    before: u64,
    front: Front,
    /// Pages of the queue that it is in, and whether something was passed that is not on disk.
    in_queue: u64,
    /// See `in_queue`.
    dirty: bool,
}

/// How much of a rank, from the front of its queues on, was found on disk: as long as that is not used up nobody has to look again.
#[derive(Debug, Clone, Copy)]
struct Front {
    /// Pages.
    known: u64,
    /// Pages of the shortest of its queues: what comes into that goes when they are gone.
    shortest: u64,
    /// Queues that had something.
    in_use: u16,
}

impl Default for Front {
    fn default() -> Self {
        Self { known: 0, shortest: u64::MAX, in_use: 0 }
    }
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            rank: 0,
            queue: 0,
            next: None,
            pages: 0,
            objects: 0,
            before: u64::MAX,
            front: Front::default(),
            in_queue: 0,
            dirty: false,
        }
    }
}

/// See the module.
pub(super) struct Disk {
    map: Arc<DiskMap>,
    index: IndexWriter,
    /// The entry that ended last, plus one; the others follow. 0 for none.
    free: u32,
    /// By entry, the header of the object in memory that has it, plus one; 0 for none. It may be another object's by now, which
    /// then says so in its book.
    in_memory: Vec<u32>,
    /// Entries from here on were never used.
    fresh: u32,
    holds: Holds,
    /// Objects that could not be read, with their epochs.
    refused: VecDeque<(u32, u64)>,
    /// By number.
    spaces: Vec<Option<Known>>,
    /// What must be written down, until it is; has room for all holds.
    marks: Vec<Mark>,
    sweep_at: u32,
    sweep_left: u32,
    /// Where the round begins anew.
    sweep_end: u32,
    walk: Walk,
    /// Pages that were asked for since the owner was last woken.
    opened: u64,
    /// Bytes that were asked for in namespaces with a quota since then, and those that the walk has passed.
    opened_in: [u64; MAX_NAMESPACES],
    passed_in: [u64; MAX_NAMESPACES],
    /// The last look at what should be on disk found something that was not.
    found_some: bool,
    /// By rank.
    fronts: Vec<Front>,
    /// What is written ahead.
    admission: Admission,
    /// The owner has something to do.
    wake: bool,
    /// This call has taken something away.
    took: bool,
    /// What happened to entries, to be told when the call ends; and whether some of it is missing.
    facts: Vec<Fact>,
    facts_missing: bool,
    counts: DiskCounts,
}

impl Disk {
    fn new(map: Arc<DiskMap>, headers: u32, ranks: u32) -> Result<Self> {
        let capacity = map.view().capacity().into();
        Ok(Self {
            index: IndexWriter::new(),
            free: 0,
            in_memory: memory::vec_of(map.view().capacity() as usize, 0)?,
            fresh: 0,
            holds: Holds::new(headers)?,
            refused: VecDeque::with_capacity(MOST_REFUSED),
            spaces: memory::vec_of(MAX_SPACE as usize, None)?,
            marks: memory::with_capacity(MOST_HELD)?,
            sweep_at: 0,
            sweep_left: 0,
            sweep_end: 0,
            walk: Walk::default(),
            opened: 0,
            opened_in: [0; MAX_NAMESPACES],
            passed_in: [0; MAX_NAMESPACES],
            found_some: true,
            fronts: memory::vec_of(ranks as usize, Front::default())?,
            admission: Admission::default(),
            wake: false,
            took: false,
            facts: Vec::new(),
            facts_missing: false,
            counts: DiskCounts { capacity, ..DiskCounts::default() },
            map,
        })
    }

    /// The put that the value of an entry came from.
    pub fn put_of(&self, entry: u32) -> u64 {
        self.map.view().put(entry)
    }

    /// What was on disk need not be any more.
    fn forget_fronts(&mut self) {
        self.fronts.fill(Front::default());
    }

    fn find(&self, wanted: Fingerprint) -> Option<(u32, Entry)> {
        self.map.view().find(wanted).ok().flatten().map(|(index, _, entry)| (index, entry))
    }

    /// How many objects more can be held and find an entry.
    fn room(&self) -> usize {
        let entries = self.counts.capacity.saturating_sub(self.counts.objects);
        usize::try_from(entries).unwrap_or(usize::MAX).min(MOST_HELD).saturating_sub(self.holds.len())
    }

    /// Namespaces of which something is here.
    pub fn names(&self) -> impl Iterator<Item = SpaceName> {
        self.spaces.iter().flatten().filter(|known| known.objects > 0).map(|known| known.name)
    }

    /// A hold ends, and its object got no entry: if its record is somewhere, it must not be found.
    fn end_hold(&mut self, index: u32, epoch: u64) {
        let Some(Hold { spot, gone, .. }) = self.holds.remove(index, epoch) else { return };
        if let Some(spot) = spot.filter(|_| !gone) {
            self.marks.push(Mark::Dead { spot, entered: false });
        }
    }

    /// Whether an object is being written.
    pub(super) fn is_held(&self, index: u32) -> bool {
        self.holds.has(index)
    }

    /// Whether an object is being written will be looked at soon.
    pub(super) fn prefetch_hold(&self, index: u32) {
        self.holds.prefetch(index);
    }

    /// The entry of an object in memory, if it has one.
    fn clean(&self, index: u32, book: &Book) -> Option<u32> {
        let entry = book.disk.checked_sub(1)?;
        (self.in_memory.get(entry as usize) == Some(&(index + 1))).then_some(entry)
    }

    /// An object in memory has an entry from now on, from which it may have come.
    fn marry(&mut self, index: u32, book: &mut Book, entry: u32, returned: bool) {
        if let Some(place) = self.in_memory.get_mut(entry as usize) {
            (*place, book.disk) = (index + 1, entry + 1);
            book.flags = book.flags & !book::RETURNED | if returned { book::RETURNED } else { 0 };
        }
    }

    /// What is in memory because this entry brought it, though the disk has not dropped yet what was removed without it, before this epoch.
    fn brought(&self, books: &[Book], entry: u32, since: u64) -> Option<u32> {
        self.map.view().live(entry).filter(|(_, found, _)| found.epoch < since)?;
        let index = self.in_memory.get(entry as usize)?.checked_sub(1)?;
        let book = books.get(index as usize).filter(|book| book.epoch >= since)?;
        self.clean(index, book).map(|_| index)
    }

    fn tend(&mut self) {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.index.tend(view.index(), |index| {
            let words = view.entry(index).and_then(disk_entry::read)?;
            Some(words[1])
        });
    }

    /// Something happened to an entry, of which others are told when the call ends.
    fn tell(&mut self, fact: Fact) {
        let room = self.facts.len() < MOST_FACTS && self.facts.try_reserve(1).is_ok();
        if room && !self.facts_missing {
            self.facts.push(fact);
        } else {
            self.facts.clear();
            self.facts_missing = true;
        }
    }

    /// Enters a value of this put, with an epoch that is higher than those of all entries before; `None` if there is no room.
    fn insert(&mut self, entry: &Entry, put: u64) -> Option<u32> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.tend();
        let (index, fresh) = match self.free.checked_sub(1) {
            Some(index) => (index, false),
            None => (self.fresh, true),
        };
        let words = view.entry(index)?;
        let link = if fresh { 0 } else { u32::try_from(disk_entry::link(words)).unwrap_or(0) };
        map.heat().forget(index);
        view.fill(index, entry, put);
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
        view.header().bytes_used.store(self.counts.bytes, Relaxed);
        if let Some(known) = self.spaces.get_mut(entry.space as usize).and_then(Option::as_mut) {
            known.objects += 1;
        }
        self.tell(Fact::Published { index: index | ON_DISK, epoch: entry.epoch });
        Some(index)
    }

    /// Whether the value of an entry came from there into memory, and is there. What was in memory before it was written nobody misses.
    fn is_back(&self, lists: &Lists, books: &[Book], entry: u32) -> bool {
        let index = self.in_memory.get(entry as usize).and_then(|place| place.checked_sub(1));
        let book = index.and_then(|index| Some((index, books.get(index as usize)?)));
        book.is_some_and(|(index, book)| {
            book.flags & book::RETURNED != 0 && self.clean(index, book).is_some() && book::is_current(lists, index)
        })
    }

    /// Entries end, and the values of some of them stay in memory.
    fn count_same(&self) {
        disk_entry::count_move(&self.map.view().header().moved, Move::Same);
    }

    /// Ends an entry that lives; gives what it said.
    fn end(&mut self, index: u32) -> Option<Entry> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let words = view.entry(index)?;
        let entry = Entry::from_words(disk_entry::read(words)?);
        disk_entry::end(words);
        self.tell(Fact::Retired { index: index | ON_DISK, epoch: entry.epoch });
        if let Some(place) = self.in_memory.get_mut(index as usize) {
            *place = 0;
        }
        reach("master.disk_ended");
        self.index.remove(view.index(), entry.fingerprint.low, index);
        disk_entry::set_link(words, self.free.into());
        self.free = index + 1;
        self.counts.objects -= 1;
        self.counts.bytes = self.counts.bytes.saturating_sub(entry.bytes);
        view.header().bytes_used.store(self.counts.bytes, Relaxed);
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
        let view = map.view();
        if self.sweep_left == 0 {
            return Ok(());
        }
        memory::reserve(&mut self.marks, SWEEP_ENTRIES as usize + MOST_HELD)?;
        for _ in 0..SWEEP_ENTRIES.min(self.sweep_left) {
            let index = if self.sweep_at < self.sweep_end { self.sweep_at } else { 0 };
            (self.sweep_at, self.sweep_left) = (index + 1, self.sweep_left - 1);
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
        let ranks = u32::try_from(self.fronts.len()).unwrap_or(0);
        let mut disk = Self { holds: self.holds.copy()?, ..Self::new(Arc::clone(&self.map), 0, ranks)? };
        let view = self.map.view();
        disk.marks = memory::copy(&self.marks)?;
        disk.spaces.copy_from_slice(&self.spaces);
        disk.spaces.iter_mut().flatten().for_each(|known| known.objects = 0);
        disk.admission = self.admission;
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
        (disk.sweep_left, disk.sweep_end) = (disk.fresh, disk.fresh);
        Ok(disk)
    }
}

/// Whether an object is written ahead.
pub(super) fn is_admitted(disk: Option<&Disk>, view: &View<'_>, index: u32, book: Option<&Book>) -> bool {
    let Some(Admission { reads, priority, .. }) = disk.map(|disk| disk.admission) else { return false };
    let was_read = || view.access(index).map_or(0, |word| reads_of(word.load(Relaxed)));
    (reads == 0 || was_read() >= reads) && book.is_some_and(|book| book.class().1 >= priority)
}

/// Whether the disk has what an object in memory is.
pub(super) fn is_clean(disk: Option<&Disk>, index: u32, book: Option<&Book>) -> bool {
    matches!((disk, book), (Some(disk), Some(book)) if disk.clean(index, book).is_some())
}

impl Master {
    /// What the disk has of a key.
    pub(super) fn on_disk(&self, namespace: u32, key: &[u8]) -> Option<u32> {
        self.found_on_disk(self.soon_on_disk(namespace, key))
    }

    /// What the disk has of a key will be looked at soon, by what this gives: the place is far away, and comes nearer meanwhile.
    pub(super) fn soon_on_disk(&self, namespace: u32, key: &[u8]) -> Option<Fingerprint> {
        let disk = self.disk.as_ref()?;
        let wanted = disk.map.fingerprint(namespace, key)?;
        disk.map.view().prefetch(wanted);
        Some(wanted)
    }

    /// See [`Master::soon_on_disk`].
    pub(super) fn found_on_disk(&self, wanted: Option<Fingerprint>) -> Option<u32> {
        self.disk.as_ref()?.find(wanted?).map(|(index, _)| index)
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
            disk_entry::count_move(&disk.map.view().header().moved, Move::Replaced);
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
        let entry = self.disk.as_ref().and_then(|disk| disk.clean(index, self.book(index)));
        self.end_on_disk(entry);
    }

    /// An object in memory dies. If it is being written to disk, it must not come back from there.
    pub(super) fn end_hold(&mut self, index: u32) {
        let Some(disk) = &mut self.disk else { return };
        let Some(hold) = disk.holds.get_mut(index).filter(|hold| !hold.gone) else { return };
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
        // Once round from where it is: who flushes again and again must not keep it at the beginning.
        (disk.sweep_left, disk.sweep_end) = (disk.fresh, disk.fresh);
    }

    /// Upkeep of the disk's index.
    pub(super) fn tend_disk(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.tend();
            // Without memory it goes on later.
            let _ = disk.sweep();
        }
    }

    /// Tells what happened to entries in this call.
    pub(super) fn tell_of_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        self.facts_missing |= std::mem::take(&mut disk.facts_missing);
        if disk.facts.is_empty() && !self.facts_missing {
            return;
        }
        let (facts, map) = (std::mem::take(&mut disk.facts), Arc::clone(&self.map));
        if std::mem::take(&mut self.facts_missing) {
            return self.skip_facts(map.view(), self.newest_fact);
        }
        facts.into_iter().for_each(|fact| self.tell_fact(map.view(), fact));
    }

    /// Ends an entry that has this epoch, and what memory has of the same value.
    pub(super) fn drop_entry(&mut self, entry: u32, epoch: u64) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.check_disk()?;
        self.glance(view, now_ns());
        self.room_for_marks(1)?;
        let there = |disk: &&Disk| disk.map.view().live(entry).is_some_and(|(_, there, _)| there.epoch == epoch);
        let Some(disk) = self.disk.as_ref().filter(there) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "the value was removed, replaced or evicted meanwhile");
        };
        let index = disk.in_memory.get(entry as usize).and_then(|place| place.checked_sub(1));
        let same = |index: &u32| self.is_current(*index) && disk.clean(*index, self.book(*index)) == Some(entry);
        let index = index.filter(same);
        self.takes_away();
        self.end_on_disk(Some(entry));
        if let Some(index) = index {
            self.drop_object(view, index, false);
            self.count_of(index);
        }
        Ok(())
    }

    /// Fails if the store has another disk than whoever asks counts with: that one was not told what to drop.
    pub(super) fn check_same_disk(&self, changes: u64) -> Result<()> {
        if self.map.view().header().disk_changes() != changes {
            crate::bail!(NMC_ERR_STALE, "the tier of the store was opened or closed meanwhile");
        }
        Ok(())
    }

    /// The node has applied the drop log of its cluster this far, to memory and to this disk: to be written down where values outlive the store.
    pub fn note_position(&mut self, (term, number): (u64, u64), changes: u64) -> Result<()> {
        self.check_disk()?;
        self.check_same_disk(changes)?;
        self.room_for_marks(1)?;
        if let Some(disk) = &mut self.disk {
            disk.marks.push(Mark::Position { term, number });
            disk.took = true;
        }
        Ok(())
    }

    /// Whether something of the disk's index is left to do.
    pub(super) fn disk_is_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.sweep_left > 0)
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

    /// Looks for entries of former generations; gives whether some may be left.
    pub fn sweep_disk(&mut self) -> Result<bool> {
        match &mut self.disk {
            Some(disk) => disk.sweep().map(|()| disk.sweep_left > 0),
            None => Ok(false),
        }
    }

    /// An entry leads to nothing that can be read: it ends, if it is still this one.
    pub fn end_entry(&mut self, index: u32, word: u64) -> Result<bool> {
        self.room_for_marks(1)?;
        let Some(disk) = &mut self.disk else { return Ok(false) };
        let words = disk.map.view().entry(index);
        let same = words.is_some_and(|words| words[0].load(Relaxed) == word && disk_entry::is_live(word));
        if same {
            let since = self.map.view().header().since_apart();
            let brought = since.and_then(|since| disk.brought(&self.books, index, since));
            if disk.is_back(&self.lists, &self.books, index) {
                disk.count_same();
            }
            disk.kill(index);
            self.drop_brought(brought.as_slice());
        }
        Ok(same)
    }

    /// What was counted; `None` without a disk.
    #[must_use]
    pub fn disk_counts(&self) -> Option<DiskCounts> {
        self.disk.as_ref().map(|disk| DiskCounts { held: disk.holds.len() as u64, ..disk.counts })
    }
}
