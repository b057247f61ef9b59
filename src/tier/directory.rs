//! The files of a tier, as their owner sees them: what is there when it begins, buckets that are written, marks, and space that
//! is given back. Nothing here knows of memory or of the master; everything works on a simulated disk as on a real one.

mod write;

pub use write::{Assign, Source};

use super::backend::{self, Storage};
use super::config::{Config, OnDamage};
use super::format::{BLOCK, Entry as Note, Head, Item, Shape, Space};
use super::io::{Buffer, Disk, File};
use super::journal::Journal;
use super::recovery::{self, FoundBucket, Opened, Recovered};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{
    NMC_ERR_CORRUPT, NMC_ERR_EXISTS, NMC_ERR_IO, NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND,
    NMC_ERR_OS, NMC_ERR_PERMISSION, NMC_ERR_UNAVAILABLE,
};
use crate::layout::disk::Spot;
use crate::store::disk::Mark;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// Marks that wait to be written, at most: after that the disk counts as refusing.
const MOST_NOTES: usize = 1 << 20;
/// Files that were taken away and are not cut yet, at most: each is an open descriptor.
const UNCUT: usize = 16;
/// How long nobody tries to write down what others had to say, when that was refused: each try writes everything. Tests on a simulated
/// disk do not depend on time.
const REFUSED_FOR: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(100) };

/// A bucket.
#[derive(Debug, Clone)]
struct Bucket {
    id: u64,
    /// Of everything that it is made of.
    blocks: u64,
    /// Records that entries lead to.
    live: i64,
    /// It counts.
    sealed: bool,
    /// It is being given up: a mark says so, and its entries end.
    condemned: bool,
    /// It could not be taken away: whoever opens the directory next tries again.
    stuck: bool,
    /// Records that died, whose blocks were not given back yet.
    dying: Vec<u64>,
    /// Blocks that were given back.
    punched: u64,
    /// Blocks of records that died, and come back with the whole bucket only.
    waste: u64,
}

impl Bucket {
    fn new(id: u64) -> Self {
        Self {
            id,
            blocks: 0,
            live: 0,
            sealed: false,
            condemned: false,
            stuck: false,
            dying: Vec::new(),
            punched: 0,
            waste: 0,
        }
    }
}

#[derive(Default)]
struct Queue {
    notes: Vec<Note>,
    /// They must survive a power loss.
    sync: bool,
    /// Some could not be kept for want of memory.
    lost: bool,
}

/// What was counted.
#[derive(Default)]
pub struct Counts {
    /// Records, bytes and buckets written.
    pub objects: AtomicU64,
    /// See `objects`.
    pub bytes: AtomicU64,
    /// See `objects`.
    pub buckets: AtomicU64,
    /// Times that there was no space.
    pub full: AtomicU64,
    /// Failures of the disk.
    pub errors: AtomicU64,
    /// Buckets without a list that can be read, when the directory was opened.
    pub torn: AtomicU64,
}

/// See the module.
pub struct Directory {
    disk: Arc<dyn Disk>,
    storage: Box<dyn Storage>,
    head: Head,
    config: Config,
    journal: Mutex<Journal>,
    queue: Mutex<Queue>,
    /// Marks that were noted, and those that were written.
    noted: AtomicU64,
    written: AtomicU64,
    /// When the last ones were refused, if they were.
    refused: Mutex<Option<Instant>>,
    buckets: Mutex<Vec<Bucket>>,
    /// Of buckets that do not count, and are still there.
    aside_blocks: u64,
    next_bucket: AtomicU64,
    /// The journal says durably that numbers up to this one may be used.
    reserved: AtomicU64,
    /// Unlinked files: names that may come back until the directory is synced, and files that are cut when that is safe.
    leaving: Mutex<Leaving>,
    degraded: AtomicBool,
    /// Nobody has heard of it yet.
    untold: AtomicBool,
    why_degraded: Mutex<Option<Error>>,
    /// Kept for the next bucket.
    stages: Mutex<Vec<Buffer>>,
    /// What was counted.
    pub counts: Counts,
    /// A mistake that a test makes: space is used again before GONE lasts.
    #[cfg(test)]
    pub hasty: AtomicBool,
}

#[derive(Default)]
struct Leaving {
    unsynced: Vec<u64>,
    files: Vec<Box<dyn File>>,
}

impl Directory {
    /// Opens a directory, or makes it. Whoever calls has its lock. `progress` hears how many buckets of how many were looked at.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: &Config,
        made: impl Fn() -> Result<Head>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Recovered)> {
        backend::check(config)?;
        let opened = match recovery::open(&disk, config, &made, progress) {
            Err(error) if error.status == NMC_ERR_CORRUPT && config.on_damage == OnDamage::Reset => {
                log::emit(log::WARN, || format!("tier: {}: begins empty, since {error}", config.directory.display()));
                recovery::reset(&disk, config.backend)?;
                recovery::open(&disk, config, &made, progress)
            }
            opened => opened,
        };
        let Opened { head, journal, mut storage, buckets, last_bucket, recovered, made } = opened?;
        let begun = storage.begin(config, journal.state());
        begun.inspect_err(|_| {
            if made {
                recovery::unmake(&*disk)
            }
        })?;
        let unsynced = storage.take_away_again(&journal.state().gone)?;
        let reserved = journal.state().high;
        let buckets = memory::collect(buckets.into_iter().map(|FoundBucket { id, blocks, live, dead }| Bucket {
            blocks,
            live: i64::try_from(live).unwrap_or(i64::MAX),
            sealed: true,
            dying: dead,
            ..Bucket::new(id)
        }))?;
        let directory = Self {
            disk,
            storage,
            head,
            config: config.clone(),
            journal: Mutex::new(journal),
            queue: Mutex::default(),
            noted: AtomicU64::new(0),
            written: AtomicU64::new(0),
            refused: Mutex::new(None),
            buckets: Mutex::new(buckets),
            aside_blocks: recovered.aside_blocks,
            next_bucket: AtomicU64::new(last_bucket.max(reserved) + 1),
            reserved: AtomicU64::new(reserved),
            leaving: Mutex::new(Leaving { unsynced, files: Vec::new() }),
            degraded: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            why_degraded: Mutex::new(None),
            stages: Mutex::default(),
            counts: Counts { torn: AtomicU64::new(recovered.torn), ..Counts::default() },
            #[cfg(test)]
            hasty: AtomicBool::new(false),
        };
        Ok((directory, recovered))
    }

    /// What stands at its head.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    // ---- marks -------------------------------------------------------------------------------------------------------

    /// Takes marks; [`Directory::settle`] writes them. Never waits for the disk. Gives whether a bucket is over by this.
    pub fn note(&self, marks: &[Mark]) -> bool {
        let mut queue = self.queue.lock();
        for mark in marks {
            let note = match mark {
                Mark::Dead { spot, .. } => Note::Dead { bucket: spot.bucket, block: spot.block },
                Mark::Generation(space) => Note::Generation(*space),
                Mark::Namespace(name, space) => Note::Namespace { name: name.to_vec(), space: *space },
                Mark::Position { term, number } => Note::Position { term: *term, number: *number },
                Mark::Over { .. } => continue,
            };
            queue.sync |= !matches!(mark, Mark::Dead { .. }) || self.config.durable_remove;
            queue.lost |= memory::push(&mut queue.notes, note).is_err();
            self.noted.fetch_add(1, Release);
        }
        drop(queue);
        let mut over = false;
        let mut buckets = self.buckets.lock();
        for mark in marks {
            let (spot, entered) = match mark {
                Mark::Dead { spot, entered } => (spot, *entered),
                Mark::Over { spot } => (spot, true),
                Mark::Generation(_) | Mark::Namespace(..) | Mark::Position { .. } => continue,
            };
            if let Ok(at) = buckets.binary_search_by_key(&spot.bucket, |bucket| bucket.id) {
                let bucket = &mut buckets[at];
                bucket.live -= i64::from(entered);
                // Without memory its blocks come back with the whole bucket.
                let _ = memory::push(&mut bucket.dying, spot.block);
                over |= bucket.sealed && bucket.live <= 0;
            }
        }
        over
    }

    /// Writes what was noted. `mine` tells that some of it was the caller's: then it fails if that is lost.
    pub fn settle(&self, mine: bool) -> Result<()> {
        let target = self.noted.load(Acquire);
        if self.written.load(Acquire) >= target && !(mine && self.degraded.load(Relaxed)) {
            return Ok(());
        }
        // What was refused is tried again by whoever has something to say, and by others now and then.
        if !mine && self.refused.lock().is_some_and(|then| then.elapsed() < REFUSED_FOR) {
            return Ok(());
        }
        let written = self.write_notes();
        if let (Err(error), true) = (&written, mine && self.trouble().is_none()) {
            return Err(not_safe(error));
        }
        match self.trouble() {
            Some(error) if mine => Err(not_safe(&error)),
            _ => Ok(()),
        }
    }

    /// Writes what was noted before this; fails if that cannot be done now.
    fn settle_all(&self) -> Result<()> {
        let target = self.noted.load(Acquire);
        if self.written.load(Acquire) >= target {
            return Ok(());
        }
        self.write_notes()
    }

    /// Writes all notes that there are; those that have no room now stay.
    fn write_notes(&self) -> Result<()> {
        let mut journal = self.journal.lock();
        let noted = self.noted.load(Acquire);
        let Queue { mut notes, sync, lost } = std::mem::take(&mut *self.queue.lock());
        let appended = journal.append(&mut notes).map(|()| notes.clear());
        let written = appended.and_then(|()| if sync { journal.sync() } else { Ok(()) });
        // Before anybody whose marks were among these finds them written.
        match &written {
            _ if lost => self.degrade(&memory::refused::<Note>(1)),
            Err(error) if is_the_disks(error) || !self.put_back(notes, sync) => self.degrade(error),
            _ => {}
        }
        // What could not be written for want of room or memory is tried again by whoever comes next; until then nobody's is.
        if written.is_ok() || self.degraded.load(Acquire) {
            self.written.fetch_max(noted, Release);
        }
        *self.refused.lock() = written.is_err().then(Instant::now);
        drop(journal);
        self.report();
        written
    }

    /// Notes that could not be written come first the next time; false if they cannot be kept.
    fn put_back(&self, mut notes: Vec<Note>, sync: bool) -> bool {
        let mut queue = self.queue.lock();
        if notes.len() + queue.notes.len() > MOST_NOTES || memory::reserve(&mut notes, queue.notes.len()).is_err() {
            return false;
        }
        notes.append(&mut queue.notes);
        queue.notes = notes;
        queue.sync |= sync;
        true
    }

    /// Everything that was noted so far survives a power loss when this returns.
    pub fn sync(&self) -> Result<()> {
        self.settle(false)?;
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        self.sync_journal()?;
        if self.written.load(Acquire) < self.noted.load(Acquire) {
            // They come with the next ones, or there was no room for them.
            self.settle(true)?;
            self.sync_journal()?;
        }
        Ok(())
    }

    fn sync_journal(&self) -> Result<()> {
        let synced = self.journal.lock().sync();
        synced.map_err(|error| {
            self.blame(&error);
            self.trouble().unwrap_or(error)
        })
    }

    /// Something could not be written: if the disk refuses, it is only read from now on. If there is no room, memory or
    /// descriptor, that may pass.
    fn blame(&self, error: &Error) {
        if is_the_disks(error) {
            self.degrade(error);
        }
    }

    /// The disk refuses to be written: from now on it is only read.
    fn degrade(&self, error: &Error) {
        self.counts.errors.fetch_add(1, Relaxed);
        let mut why = self.why_degraded.lock();
        if why.is_none() {
            // What is not there any more, is in the way or may not be opened is the disk's fault, not the caller's.
            let status = match error.status {
                NMC_ERR_NOT_FOUND | NMC_ERR_EXISTS | NMC_ERR_PERMISSION => NMC_ERR_IO,
                status => status,
            };
            *why = Some(Error::new(status, error.message.clone()));
            self.untold.store(true, Release);
            self.degraded.store(true, Release);
        }
    }

    /// Tells the log that the disk refuses, once. Not where a lock is held: the program's callback may call us.
    pub fn report(&self) {
        if self.untold.load(Relaxed)
            && self.untold.swap(false, Acquire)
            && let Some(error) = self.trouble()
        {
            log::emit(log::ERROR, || {
                format!("tier: {}: is only read from now on: {error}", self.config.directory.display())
            });
        }
    }

    /// Why it is only read, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        self.degraded.load(Acquire).then(|| self.why_degraded.lock().clone()).flatten()
    }

    /// The number that the next bucket will have, or a lower one.
    #[must_use]
    pub fn next_bucket(&self) -> u64 {
        self.next_bucket.load(Relaxed)
    }

    // ---- numbers -----------------------------------------------------------------------------------------------------

    /// Bytes that files may take: what was asked for, or all that the file system has.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        match self.config.capacity_bytes {
            0 => self.disk.space().map_or(0, |(_, all)| all),
            given => given,
        }
    }

    /// Bytes that files take.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let buckets = self.buckets.lock();
        let blocks: u64 = buckets.iter().map(|bucket| bucket.blocks - bucket.punched).sum();
        blocks * BLOCK as u64 + self.aside_bytes()
    }

    /// Those of them that do not come back, whatever goes: of buckets that were found damaged, and are still there.
    #[must_use]
    pub fn aside_bytes(&self) -> u64 {
        self.aside_blocks * BLOCK as u64
    }

    /// Bytes of dead records that come back with their buckets only.
    #[must_use]
    pub fn dead_bytes(&self) -> u64 {
        self.buckets.lock().iter().map(|bucket| bucket.waste * BLOCK as u64).sum()
    }

    /// Buckets.
    #[must_use]
    pub fn bucket_count(&self) -> u64 {
        self.buckets.lock().len() as u64
    }

    // ---- space -------------------------------------------------------------------------------------------------------

    /// An entry leads to a record of this bucket from now on.
    pub fn entered(&self, bucket: u64) {
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            buckets[at].live += 1;
        }
    }

    /// Gives back what nobody needs: whole buckets, and blocks of records that died. Bounded work; gives whether there was some.
    pub fn tidy(&self) -> Result<bool> {
        if self.leaving.lock().files.len() >= UNCUT || self.trouble().is_some() {
            self.cut_files();
        }
        if self.trouble().is_some() {
            return Ok(false);
        }
        let (over, holed) = {
            let buckets = self.buckets.lock();
            let over = |bucket: &&Bucket| bucket.sealed && !bucket.stuck && bucket.live <= 0;
            let over = buckets.iter().find(over).map(|bucket| bucket.id);
            let worth =
                |bucket: &&Bucket| bucket.sealed && !bucket.condemned && bucket.live > 0 && !bucket.dying.is_empty();
            (over, buckets.iter().find(worth).map(|bucket| bucket.id))
        };
        match (over, holed) {
            (Some(bucket), _) => self.drop_bucket(bucket).map(|()| true),
            (None, Some(bucket)) => self.punch(bucket).map(|()| true),
            (None, None) => {
                self.cut_files();
                Ok(false)
            }
        }
    }

    /// Numbers of the buckets that can be given up, the oldest first; or one that is half given up, alone.
    pub fn sealed(&self) -> Result<Vec<u64>> {
        let buckets = self.buckets.lock();
        let there = |bucket: &&Bucket| bucket.sealed && !bucket.stuck && bucket.live > 0;
        if let Some(half) = buckets.iter().filter(there).find(|bucket| bucket.condemned) {
            return memory::collect(std::iter::once(half.id));
        }
        memory::collect(buckets.iter().filter(there).map(|bucket| bucket.id))
    }

    /// Whether a bucket is there, of which nothing may be left.
    #[must_use]
    pub fn has(&self, bucket: u64) -> bool {
        self.buckets.lock().binary_search_by_key(&bucket, |bucket| bucket.id).is_ok()
    }

    /// Buckets that could not be taken away are tried again.
    pub fn try_again(&self) {
        self.buckets.lock().iter_mut().for_each(|bucket| bucket.stuck = false);
    }

    /// A bucket is given up: from now on nothing of it comes back, whatever happens. Its entries have to end next.
    pub fn condemn(&self, bucket: u64) -> Result<()> {
        {
            // Durably: what is removed in memory from now on finds no entry, and has nothing to write down.
            let mut journal = self.journal.lock();
            let appended = journal.append(&mut [Note::Gone { bucket }]);
            let said = appended.is_ok();
            appended.and_then(|()| journal.sync()).inspect_err(|error| {
                // Nobody knows whether its values are safe.
                if said || journal.in_doubt() {
                    self.degrade(error);
                } else {
                    self.blame(error);
                }
            })?;
        }
        reach("tier.condemned");
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            buckets[at].condemned = true;
        }
        Ok(())
    }

    /// A bucket that is being given up, and has entries.
    #[must_use]
    pub fn condemned(&self) -> Option<u64> {
        let half = |bucket: &&Bucket| bucket.condemned && bucket.live > 0;
        self.buckets.lock().iter().find(half).map(|bucket| bucket.id)
    }

    /// All entries of a bucket have ended.
    pub fn emptied(&self, bucket: u64) {
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            buckets[at].live = 0;
        }
    }

    fn gone_must_last(&self) -> bool {
        #[cfg(test)]
        if self.hasty.load(Relaxed) {
            return false;
        }
        self.storage.gone_must_last()
    }

    /// A bucket of which nothing is left.
    fn drop_bucket(&self, bucket: u64) -> Result<()> {
        // Before it is taken away: if it comes back, nothing of it counts.
        {
            let mut journal = self.journal.lock();
            let marked = journal.append(&mut [Note::Gone { bucket }]);
            let marked = marked.and_then(|()| if self.gone_must_last() { journal.sync() } else { Ok(()) });
            marked.inspect_err(|error| self.blame(error))?;
        }
        reach("tier.gone");
        let (file, was_there) = match self.storage.take_away(bucket) {
            Ok(file) => (file, true),
            // Somebody else has taken it away. As long as it may come back its mark stays.
            Err(error) if error.status == NMC_ERR_NOT_FOUND => (None, false),
            Err(error) => {
                // Its mark stays, and its bytes count.
                let mut buckets = self.buckets.lock();
                if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
                    buckets[at].stuck = true;
                }
                self.counts.errors.fetch_add(1, Relaxed);
                return Err(error.context("a bucket that is over stays"));
            }
        };
        let mut leaving = self.leaving.lock();
        if was_there {
            let _ = memory::push(&mut leaving.unsynced, bucket);
        }
        if let Some(file) = file {
            let _ = memory::push(&mut leaving.files, file);
        }
        drop(leaving);
        self.buckets.lock().retain(|other| other.id != bucket);
        Ok(())
    }

    /// A bucket was sealed: what was taken away before does not come back.
    fn forget_gone(&self) {
        let mut unsynced = std::mem::take(&mut self.leaving.lock().unsynced);
        if unsynced.is_empty() {
            return;
        }
        let forgotten = self.storage.forget(&unsynced);
        let mut journal = self.journal.lock();
        match forgotten {
            Ok(()) => journal.forget(&mut unsynced),
            // Their marks stay.
            Err(_) => journal.doubt_names(),
        }
    }

    /// Takes the space of unlinked files, though somebody may have them open: whoever reads one finds out that its entry has ended.
    fn cut_files(&self) {
        let files = std::mem::take(&mut self.leaving.lock().files);
        if files.is_empty() {
            return;
        }
        // A file that comes back after a power loss must be known to be gone, or it is one that is damaged.
        let known = match self.journal.lock().sync() {
            Ok(()) => true,
            Err(error) if is_the_disks(&error) || files.len() > UNCUT => {
                self.blame(&error);
                false
            }
            // It may be possible later.
            Err(_) => {
                let mut leaving = self.leaving.lock();
                let newer = std::mem::replace(&mut leaving.files, files);
                newer.into_iter().for_each(|file| _ = memory::push(&mut leaving.files, file));
                return;
            }
        };
        for file in files {
            // If it is not cut, the space comes back when the last one closes it.
            let _ = if known { file.truncate(0) } else { Ok(()) };
        }
    }

    /// Gives back the blocks of a bucket's records that died.
    fn punch(&self, bucket: u64) -> Result<()> {
        let mut dying = {
            let mut buckets = self.buckets.lock();
            let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) else { return Ok(()) };
            std::mem::take(&mut buckets[at].dying)
        };
        dying.sort_unstable();
        // Their marks first: a record that is found must not be a hole.
        if let Err(error) = self.sync() {
            self.dying_again(bucket, dying);
            return Err(error);
        }
        let mut wasted = 0;
        let given_back = (|| -> Result<u64> {
            let (tail, list) = self.storage.list(bucket)?;
            let mut over = memory::with_capacity(dying.len())?;
            for item in tail.items(&list)? {
                let item = item?;
                if dying.binary_search(&item.block).is_ok() {
                    over.push((item.block, Shape::of(item.key.len(), item.value_bytes).blocks));
                }
            }
            wasted = over.iter().map(|(_, blocks)| blocks).sum();
            self.storage.give_back(bucket, &over)
        })();
        if let Err(error) = &given_back
            && !is_the_disks(error)
        {
            // What was given back is so once more.
            self.dying_again(bucket, dying);
            return given_back.map(drop);
        }
        // What was not given back counts, and comes with the whole bucket.
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            let punched = given_back.as_ref().copied().unwrap_or(0);
            buckets[at].punched += punched;
            buckets[at].waste += wasted - punched.min(wasted);
        }
        given_back.map(drop)
    }

    /// Blocks that could not be given back now are tried again later.
    fn dying_again(&self, bucket: u64, mut dying: Vec<u64>) {
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id)
            && memory::reserve(&mut dying, buckets[at].dying.len()).is_ok()
        {
            dying.append(&mut buckets[at].dying);
            buckets[at].dying = dying;
        }
    }

    /// Every record of every bucket, dead or alive, as the lists have it; `each` ends it by false. `failed` hears of buckets whose
    /// lists cannot be read.
    pub fn list(
        &self,
        each: &mut dyn FnMut(u64, &Item<'_>) -> Result<bool>,
        failed: &mut dyn FnMut(u64, Error) -> Result<()>,
    ) -> Result<()> {
        let ids: Vec<u64> = {
            let buckets = self.buckets.lock();
            memory::collect(buckets.iter().filter(|bucket| bucket.sealed).map(|bucket| bucket.id))?
        };
        for bucket in ids {
            let (tail, list) = match self.storage.list(bucket) {
                Ok(found) => found,
                Err(error) => {
                    // It may be going at this moment.
                    let is_there = |other: &Bucket| other.id == bucket && !other.condemned && other.live > 0;
                    if self.buckets.lock().iter().any(is_there) {
                        failed(bucket, backend::missed(error))?;
                    }
                    continue;
                }
            };
            let items = match tail.items(&list) {
                Ok(items) => items,
                Err(error) => {
                    failed(bucket, error)?;
                    continue;
                }
            };
            for item in items {
                match item {
                    Ok(item) if each(bucket, &item)? => {}
                    Ok(_) => return Ok(()),
                    Err(error) => {
                        failed(bucket, error)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Every record of a bucket, dead or alive.
    pub fn list_one(&self, bucket: u64, each: &mut dyn FnMut(&Item<'_>) -> Result<()>) -> Result<()> {
        let (tail, list) = self.storage.list(bucket)?;
        tail.items(&list)?.try_for_each(|item| each(&item?))
    }

    /// Opens the file of a record; gives the block at which it begins there.
    pub fn open_record(&self, spot: Spot) -> Result<(Box<dyn File>, u64)> {
        let (file, block) = self.storage.locate(spot);
        self.storage.place(file).open(&*self.disk).map(|file| (file, block))
    }

    /// The key of a record, from the list of its bucket; `NMC_ERR_CORRUPT` if there is none.
    pub fn key_of(&self, spot: Spot) -> Result<Vec<u8>> {
        let (tail, list) = self.storage.list(spot.bucket)?;
        for item in tail.items(&list)? {
            let item = item?;
            if item.block == spot.block {
                return memory::copy(item.key);
            }
        }
        crate::bail!(NMC_ERR_CORRUPT, "bucket {} has no record at block {}", spot.bucket, spot.block)
    }

    /// Names of namespaces, by number.
    pub fn names(&self) -> Result<Vec<(Space, Vec<u8>)>> {
        self.journal.lock().state().names()
    }
}

/// What a call hears that took something away which may come back.
#[cold]
fn not_safe(error: &Error) -> Error {
    let text = format!("done in memory, but it may come back from disk after a restart: {}", error.message);
    Error::new(NMC_ERR_IO, text)
}

/// Whether an error says that the disk refuses, not that there is no room, memory, descriptor or master.
fn is_the_disks(error: &Error) -> bool {
    !matches!(error.status, NMC_ERR_NO_SPACE | NMC_ERR_NO_MEMORY | NMC_ERR_LIMIT | NMC_ERR_UNAVAILABLE | NMC_ERR_OS)
}
