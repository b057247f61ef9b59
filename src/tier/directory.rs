//! The files of a tier, as their owner sees them: what is there when it begins, buckets that are written, marks, and space that
//! is given back. Nothing here knows of memory or of the master; everything works on a simulated disk as on a real one.

use super::config::{Config, OnDamage, Torn};
use super::format::{
    self, BLOCK, Entry as Note, Head, Item, MAX_BLOCK, MAX_BUCKET, Record, SUPER_NAME, Shape, Space, Tail, bucket_id,
    bucket_name, bucket_temporary_id, bucket_temporary_name, encode_footer, journal_number, journal_temporary_number,
};
use super::io::{Buffer, Disk, File};
use super::journal::Journal;
use super::stages::{STAGE, STAGES, Stages};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{
    NMC_ERR_CORRUPT, NMC_ERR_IO, NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_OS,
    NMC_ERR_UNAVAILABLE,
};
use crate::layout::disk::{Entry, Spot};
use crate::store::backing::Mark;
use crate::store::master::{OnDisk, Stored, ToWrite};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Numbers of buckets that are reserved at a time.
const RESERVED: u64 = if cfg!(test) { 3 } else { 1024 };
/// How long a reader may have an unlinked file open before its space is taken.
const LINGER: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 10 });
/// Bytes of the end of a bucket that are read at first; most lists fit.
const TAIL_GUESS: u64 = 64 << 10;
/// Threads that read the ends of buckets.
const SCANNERS: usize = 8;
/// Backend number of buckets in the head.
pub const BACKEND: u32 = 1;
const DAMAGED: &str = ".damaged";

/// Where the bytes of values come from that are to be written.
pub trait Source: Sync {
    /// Copies bytes of a value from `offset` on. What fails is not written.
    fn read(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()>;
}

/// Tells where records of held objects will be, and which of them are still wanted.
pub type Assign<'a> = dyn FnMut(&[(u32, Spot)]) -> Result<Vec<bool>> + 'a;

/// A bucket.
#[derive(Debug, Clone)]
struct Bucket {
    id: u64,
    /// Of the whole file.
    blocks: u64,
    /// Records that entries lead to.
    live: i64,
    /// It has its name.
    sealed: bool,
    /// It is being given up: a mark says so, and its entries end.
    condemned: bool,
    /// Its file could not be taken away: whoever opens the directory next tries again.
    stuck: bool,
    /// Records that died, whose blocks were not given back yet.
    dying: Vec<u64>,
    /// Blocks that were given back.
    punched: u64,
}

/// What the first look at a directory gave.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Records that may live, newest bucket first.
    pub found: Vec<OnDisk>,
    /// Names and spaces.
    pub spaces: Vec<(Space, Vec<u8>)>,
    /// The highest epoch of all records, dead or alive.
    pub last_epoch: u64,
    /// Buckets.
    pub buckets: u64,
    /// Records that are dead.
    pub dead: u64,
    /// Buckets whose ends are damaged.
    pub torn: u64,
    /// Files that are not the tier's.
    pub foreign: u64,
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
}

/// See the module.
pub struct Directory {
    disk: Arc<dyn Disk>,
    head: Head,
    config: Config,
    journal: Mutex<Journal>,
    queue: Mutex<Queue>,
    /// Marks that were noted, and those that were written.
    noted: AtomicU64,
    written: AtomicU64,
    buckets: Mutex<Vec<Bucket>>,
    next_bucket: AtomicU64,
    /// The journal says durably that numbers up to this one may be used.
    reserved: AtomicU64,
    /// Unlinked files: names that may come back until the directory is synced, and space that readers may still use.
    leaving: Mutex<Leaving>,
    degraded: AtomicBool,
    /// Nobody has heard of it yet.
    untold: AtomicBool,
    why_degraded: Mutex<Option<Error>>,
    /// Kept for the next bucket.
    stages: Mutex<Vec<Buffer>>,
    /// What was counted.
    pub counts: Counts,
}

#[derive(Default)]
struct Leaving {
    unsynced: Vec<u64>,
    files: Vec<(Instant, Box<dyn File>)>,
}

fn names_of(disk: &dyn Disk) -> Result<Vec<String>> {
    Ok(disk.list()?.into_iter().filter(|file| file.regular).map(|file| file.name).collect())
}

/// Reads the end of a bucket: what its last block says, and its list.
pub fn read_end(file: &dyn File) -> Result<(Tail, Vec<u8>)> {
    let size = file.bytes()?;
    if size < BLOCK as u64 {
        crate::bail!(NMC_ERR_CORRUPT, "a bucket has {size} bytes");
    }
    let guess = TAIL_GUESS.min(size / BLOCK as u64 * BLOCK as u64);
    let mut end = Buffer::new(usize::try_from(guess).unwrap_or(BLOCK))?;
    file.read(&mut end, size - guess)?;
    let tail = Tail::decode(&end[end.len() - BLOCK..], size)?;
    let mut list = memory::zeroed::<u8>(usize::try_from(tail.list_bytes).unwrap_or(usize::MAX))?;
    let from = (end.len() - BLOCK).checked_sub(list.len());
    match from {
        Some(from) => list.copy_from_slice(&end[from..end.len() - BLOCK]),
        None => file.read(&mut list, tail.list_at)?,
    }
    Ok((tail, list))
}

impl Directory {
    /// Opens a directory, or makes it. Whoever calls has its lock. `progress` hears how many buckets of how many were looked at.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: &Config,
        made: impl Fn() -> Result<Head>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Recovered)> {
        match Self::try_open(Arc::clone(&disk), config, &made, progress) {
            Err(error) if error.status == NMC_ERR_CORRUPT && config.on_damage == OnDamage::Reset => {
                log::emit(log::WARN, || format!("tier: {}: begins empty, since {error}", config.directory.display()));
                reset(&*disk)?;
                Self::try_open(disk, config, &made, progress)
            }
            opened => opened,
        }
    }

    fn try_open(
        disk: Arc<dyn Disk>,
        config: &Config,
        made: &impl Fn() -> Result<Head>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Recovered)> {
        let names = names_of(&*disk)?;
        let (head, journal) = if names.iter().any(|name| name == SUPER_NAME) {
            let head = read_head(&*disk)?;
            if head.backend != BACKEND {
                crate::bail!(NMC_ERR_MISMATCH, "the directory is of backend {}, not of buckets", head.backend);
            }
            if !names.iter().filter_map(journal_number).any(|number| number > 0) {
                // Whoever made the directory may have failed to make the name of its head last.
                write_head(&*disk, &head)?;
            }
            let journal = Journal::open(&disk, head.tier_id, &names)?;
            (head, journal)
        } else {
            if names.iter().any(|name| bucket_id(name).is_some()) {
                crate::bail!(NMC_ERR_CORRUPT, "the directory has buckets, but no {SUPER_NAME}");
            }
            // Whatever journal is there is of one that was being made.
            for name in names.iter().filter(|name| journal_number(name).is_some()) {
                disk.unlink(name)?;
            }
            let head = made()?;
            let journal = Journal::create(&disk, head.tier_id)?;
            write_head(&*disk, &head)?;
            (head, journal)
        };
        let (buckets, recovered) = scan(&*disk, &head, &journal, config, &names, progress)?;
        let unsynced = unlink_again(&*disk, &journal.state().gone)?;
        let reserved = journal.state().high;
        let high = buckets.last().map_or(0, |bucket| bucket.id + 1).max(reserved + 1);
        let directory = Self {
            disk,
            head,
            config: config.clone(),
            journal: Mutex::new(journal),
            queue: Mutex::default(),
            noted: AtomicU64::new(0),
            written: AtomicU64::new(0),
            buckets: Mutex::new(buckets),
            next_bucket: AtomicU64::new(high),
            reserved: AtomicU64::new(reserved),
            leaving: Mutex::new(Leaving { unsynced, files: Vec::new() }),
            degraded: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            why_degraded: Mutex::new(None),
            stages: Mutex::default(),
            counts: Counts::default(),
        };
        Ok((directory, recovered))
    }

    /// What stands at its head.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    // ---- marks -------------------------------------------------------------------------------------------------------

    /// Takes marks; [`Directory::settle`] writes them. Never waits for the disk.
    pub fn note(&self, marks: &[Mark]) {
        let mut queue = self.queue.lock();
        for mark in marks {
            let note = match mark {
                Mark::Dead { spot, .. } => Note::Dead { bucket: spot.bucket, block: spot.block },
                Mark::Generation(space) => Note::Generation(*space),
                Mark::Namespace(name, space) => Note::Namespace { name: name.to_vec(), space: *space },
                Mark::Over { .. } => continue,
            };
            queue.sync |= !matches!(mark, Mark::Dead { .. }) || self.config.durable_remove;
            queue.lost |= memory::push(&mut queue.notes, note).is_err();
            self.noted.fetch_add(1, Release);
        }
        drop(queue);
        let mut buckets = self.buckets.lock();
        for mark in marks {
            let (spot, entered) = match mark {
                Mark::Dead { spot, entered } => (spot, *entered),
                Mark::Over { spot } => (spot, true),
                Mark::Generation(_) | Mark::Namespace(..) => continue,
            };
            if let Ok(at) = buckets.binary_search_by_key(&spot.bucket, |bucket| bucket.id) {
                let bucket = &mut buckets[at];
                bucket.live -= i64::from(entered);
                // Without memory its blocks come back with the whole bucket.
                let _ = memory::push(&mut bucket.dying, spot.block);
            }
        }
    }

    /// Writes what was noted. `mine` tells that some of it was the caller's: then it fails if that is lost.
    pub fn settle(&self, mine: bool) -> Result<()> {
        let target = self.noted.load(Acquire);
        if self.written.load(Acquire) >= target && !(mine && self.degraded.load(Relaxed)) {
            return Ok(());
        }
        let mut journal = self.journal.lock();
        let noted = self.noted.load(Acquire);
        let Queue { notes, sync, lost } = std::mem::take(&mut *self.queue.lock());
        let written = if lost {
            Err(memory::refused::<Note>(1))
        } else if notes.is_empty() {
            Ok(())
        } else {
            journal.append(&notes).and_then(|()| if sync { journal.sync() } else { Ok(()) })
        };
        // Before anybody whose marks were among these finds them written. What is wanting is not the disk's fault: the next
        // journal says it all.
        if let Err(error) = &written
            && is_the_disks(error)
        {
            self.degrade(error);
        }
        self.written.fetch_max(noted, Release);
        drop(journal);
        self.report();
        if let (Err(error), true) = (&written, mine && self.trouble().is_none()) {
            return Err(not_safe(error));
        }
        match self.trouble() {
            Some(error) if mine => Err(not_safe(&error)),
            _ => Ok(()),
        }
    }

    /// Everything that was noted so far survives a power loss when this returns.
    pub fn sync(&self) -> Result<()> {
        self.settle(false)?;
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        self.journal.lock().sync().inspect_err(|error| self.degrade(error))
    }

    /// The disk refuses to be written: from now on it is only read.
    fn degrade(&self, error: &Error) {
        self.counts.errors.fetch_add(1, Relaxed);
        let mut why = self.why_degraded.lock();
        if why.is_none() {
            *why = Some(error.clone());
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

    // ---- writing -----------------------------------------------------------------------------------------------------

    /// The number of a new bucket.
    fn reserve(&self) -> Result<u64> {
        let id = self.next_bucket.load(Relaxed);
        if id >= MAX_BUCKET {
            crate::bail!(NMC_ERR_LIMIT, "all {MAX_BUCKET} numbers of buckets were used");
        }
        if id > self.reserved.load(Relaxed) {
            // Before the first file has the number: it is never given twice.
            let high = (id + RESERVED - 1).min(MAX_BUCKET - 1);
            let mut journal = self.journal.lock();
            journal.append(&[Note::High { bucket: high }]).and_then(|()| journal.sync())?;
            self.reserved.store(high, Relaxed);
        }
        self.next_bucket.store(id + 1, Relaxed);
        Ok(id)
    }

    /// The number that the next bucket will have, or a lower one.
    #[must_use]
    pub fn next_bucket(&self) -> u64 {
        self.next_bucket.load(Relaxed)
    }

    /// Bytes that files take.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.buckets.lock().iter().map(|bucket| (bucket.blocks - bucket.punched) * BLOCK as u64).sum()
    }

    /// Buckets.
    #[must_use]
    pub fn bucket_count(&self) -> u64 {
        self.buckets.lock().len() as u64
    }

    /// Writes these objects into a bucket that is safe from everything when this returns. Gives those whose records are there. If
    /// it fails, nothing of it comes back, unless the disk refuses everything.
    pub fn write(
        &self,
        items: &[ToWrite],
        store_id: u64,
        source: &dyn Source,
        assign: &mut Assign<'_>,
    ) -> Result<Vec<Stored>> {
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        let mut first = None;
        for _ in 0..2 {
            let error = match self.write_once(items, store_id, source, assign) {
                Ok(stored) => return Ok(stored),
                Err(error) => error,
            };
            self.counts.full.fetch_add(u64::from(error.status == NMC_ERR_NO_SPACE), Relaxed);
            if self.degraded.load(Acquire) || !is_the_disks(&error) {
                return Err(error);
            }
            // What may not have become safe is written anew, elsewhere.
            self.counts.errors.fetch_add(1, Relaxed);
            first.get_or_insert(error);
        }
        let error = first.unwrap_or_else(|| Error::new(NMC_ERR_IO, "a bucket could not be written"));
        self.degrade(&error);
        Err(error)
    }

    fn write_once(
        &self,
        items: &[ToWrite],
        store_id: u64,
        source: &dyn Source,
        assign: &mut Assign<'_>,
    ) -> Result<Vec<Stored>> {
        let blocks: u64 = items.iter().map(|item| Shape::of(item.key.len(), item.bytes).blocks).sum();
        let footer_room: u64 = items.iter().map(|item| item.key.len() as u64 + 64).sum::<u64>() + 2 * BLOCK as u64;
        let size = blocks * BLOCK as u64 + footer_room;
        if blocks > MAX_BLOCK {
            crate::bail!(NMC_ERR_LIMIT, "a bucket of {blocks} blocks; {MAX_BLOCK} are possible");
        }
        // Before a number is used up.
        if self.config.capacity_bytes != 0 && self.file_bytes() + size > self.config.capacity_bytes {
            crate::bail!(NMC_ERR_NO_SPACE, "the tier's {} bytes are used up", self.config.capacity_bytes);
        }
        let bucket = self.reserve().inspect_err(|error| {
            if is_the_disks(error) {
                self.degrade(error);
            }
        })?;
        let mut places = memory::with_capacity(items.len())?;
        let mut block = 0;
        for item in items {
            places.push((item.index, Spot { bucket, block }));
            block += Shape::of(item.key.len(), item.bytes).blocks;
        }
        // Known before the first mark for it can come.
        {
            let mut buckets = self.buckets.lock();
            let fresh = Bucket {
                id: bucket,
                blocks: 0,
                live: 0,
                sealed: false,
                condemned: false,
                stuck: false,
                dying: Vec::new(),
                punched: 0,
            };
            memory::push(&mut buckets, fresh)?;
        }
        let temporary = bucket_temporary_name(bucket);
        let written = (|| -> Result<(Vec<Stored>, u64)> {
            let file = self.disk.create(&temporary, blocks * BLOCK as u64)?;
            reach("tier.created");
            let wanted = assign(&places)?;
            let stored = self.write_records(&*file, items, &places, &wanted, store_id, source)?;
            let list: Vec<Item<'_>> = memory::collect(stored.iter().map(|(number, stored)| Item {
                block: stored.entry.spot.block,
                space: items[*number].space,
                fingerprint: stored.entry.fingerprint,
                epoch: stored.entry.epoch,
                store_id,
                value_bytes: stored.entry.bytes,
                key: &items[*number].key,
            }))?;
            let footer = encode_footer(self.head.tier_id, bucket, blocks, &list)?;
            let total = blocks * BLOCK as u64 + footer.len() as u64;
            file.truncate(total)?;
            file.write(&footer, blocks * BLOCK as u64)?;
            reach("tier.written");
            file.datasync()?;
            reach("tier.synced");
            let stored = memory::collect(stored.into_iter().map(|(_, stored)| stored))?;
            Ok((stored, total / BLOCK as u64))
        })();
        let complete = written.is_ok();
        let sealed = written.and_then(|written| {
            // What these values replaced must not come back in their place after a power loss, though its epoch may be higher.
            self.journal.lock().sync()?;
            self.disk.rename(&temporary, &bucket_name(bucket))?;
            reach("tier.renamed");
            self.disk.sync().inspect_err(|_| self.journal.lock().doubt_names())?;
            Ok(written)
        });
        match sealed {
            Ok((stored, total)) => {
                reach("tier.sealed");
                self.forget_gone();
                let mut buckets = self.buckets.lock();
                if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
                    (buckets[at].blocks, buckets[at].sealed) = (total, true);
                }
                self.counts.objects.fetch_add(stored.len() as u64, Relaxed);
                self.counts.bytes.fetch_add(stored.iter().map(|stored| stored.entry.bytes).sum(), Relaxed);
                self.counts.buckets.fetch_add(1, Relaxed);
                Ok(stored)
            }
            Err(error) => {
                self.give_up(bucket, complete)?;
                Err(error)
            }
        }
    }

    /// Nothing of a bucket may come back. `named`: it may have its name by now, and that may last.
    fn give_up(&self, bucket: u64, named: bool) -> Result<()> {
        self.buckets.lock().retain(|other| other.id != bucket);
        let _ = self.disk.unlink(&bucket_temporary_name(bucket));
        if !named {
            return Ok(());
        }
        let _ = self.disk.unlink(&bucket_name(bucket));
        let mut journal = self.journal.lock();
        let marked = journal.append(&[Note::Gone { bucket }]).and_then(|()| journal.sync());
        marked.inspect_err(|error| self.degrade(error))
    }

    /// Writes the records of the objects that are wanted; gives those that could be read, with their numbers.
    fn write_records(
        &self,
        file: &dyn File,
        items: &[ToWrite],
        places: &[(u32, Spot)],
        wanted: &[bool],
        store_id: u64,
        source: &dyn Source,
    ) -> Result<Vec<(usize, Stored)>> {
        let mut stored = memory::with_capacity(items.len())?;
        let (full, to_write) = mpsc::sync_channel::<(Buffer, u64, usize)>(1);
        let (empty, free) = mpsc::channel::<Buffer>();
        let mut stages = std::mem::take(&mut *self.stages.lock());
        memory::reserve(&mut stages, STAGES)?;
        while stages.len() < STAGES {
            stages.push(Buffer::new(STAGE)?);
        }
        stages.into_iter().for_each(|stage| _ = empty.send(stage));
        std::thread::scope(|scope| {
            // The next stage is filled while one is written.
            let writer = std::thread::Builder::new().name("nmc-tier-write".into()).spawn_scoped(scope, move || {
                while let Ok((stage, offset, bytes)) = to_write.recv() {
                    file.write_aligned(&stage[..bytes], offset)?;
                    let _ = empty.send(stage);
                }
                Ok::<(), Error>(())
            });
            let writer = writer.map_err(|cause| Error::os("clone", &cause))?;
            let mut stages = Stages::new(full, free);
            let filled = (|| -> Result<()> {
                for (number, (item, (_, spot))) in items.iter().zip(places).enumerate() {
                    if wanted.get(number) != Some(&true) {
                        continue;
                    }
                    let record = Record {
                        space: item.space,
                        key: &item.key,
                        metadata: &item.metadata,
                        value_bytes: item.bytes,
                        epoch: item.epoch,
                        store_id,
                        rank: item.rank,
                        retain: u8::try_from(item.class.0.code()).unwrap_or(0),
                        priority: u8::try_from(item.class.1).unwrap_or(0),
                    };
                    if !stages.record(&record, spot.block * BLOCK as u64, |offset, to| source.read(item, offset, to))? {
                        continue;
                    }
                    let fingerprint = self.head.fingerprint(item.space, &item.key);
                    let space = item.space.number;
                    let entry = Entry { epoch: item.epoch, fingerprint, bytes: item.bytes, spot: *spot, space };
                    let generation = item.space.generation;
                    stored.push((number, Stored { index: item.index, generation, entry }));
                }
                stages.flush()
            })();
            let (free, rest) = stages.finish();
            let written = writer.join().unwrap_or_else(|_| Err(Error::new(NMC_ERR_IO, "the writing thread panicked")));
            // Memory that was never touched costs more than to write it.
            *self.stages.lock() = memory::collect(free.try_iter().chain(rest)).unwrap_or_default();
            // If writing failed, filling failed because of that.
            written.and(filled)
        })?;
        Ok(stored)
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
        self.cut_files();
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
            (None, None) => Ok(false),
        }
    }

    /// Numbers of the buckets that can be given up, the oldest first.
    pub fn sealed(&self) -> Result<Vec<u64>> {
        let buckets = self.buckets.lock();
        let there = |bucket: &&Bucket| bucket.sealed && !bucket.condemned && !bucket.stuck && bucket.live > 0;
        memory::collect(buckets.iter().filter(there).map(|bucket| bucket.id))
    }

    /// A bucket is given up: from now on nothing of it comes back, whatever happens. Its entries have to end next.
    pub fn condemn(&self, bucket: u64) -> Result<()> {
        self.journal.lock().append(&[Note::Gone { bucket }]).inspect_err(|error| self.degrade(error))?;
        reach("tier.condemned");
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            buckets[at].condemned = true;
        }
        Ok(())
    }

    /// All entries of a bucket have ended.
    pub fn emptied(&self, bucket: u64) {
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            buckets[at].live = 0;
        }
    }

    /// The space of files that were taken away is needed now: whoever reads them finds that out.
    pub fn cut_now(&self) {
        self.leaving.lock().files.iter_mut().for_each(|(when, _)| *when = Instant::now());
        self.cut_files();
    }

    /// A bucket of which nothing is left.
    fn drop_bucket(&self, bucket: u64) -> Result<()> {
        let name = bucket_name(bucket);
        let file = self.disk.open(&name, true).ok();
        // Before the file: if it comes back, nothing of it counts.
        self.journal.lock().append(&[Note::Gone { bucket }]).inspect_err(|error| self.degrade(error))?;
        reach("tier.gone");
        if let Err(error) = take_away(&*self.disk, &name) {
            // Its mark stays, and its bytes count.
            let mut buckets = self.buckets.lock();
            if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
                buckets[at].stuck = true;
            }
            self.counts.errors.fetch_add(1, Relaxed);
            return Err(error.context("a bucket that is over stays"));
        }
        let mut leaving = self.leaving.lock();
        let _ = memory::push(&mut leaving.unsynced, bucket);
        if let Some(file) = file {
            let _ = memory::push(&mut leaving.files, (Instant::now() + LINGER, file));
        }
        drop(leaving);
        self.buckets.lock().retain(|other| other.id != bucket);
        Ok(())
    }

    /// The directory was synced: names that were taken away before do not come back.
    fn forget_gone(&self) {
        let unsynced = std::mem::take(&mut self.leaving.lock().unsynced);
        if !unsynced.is_empty() {
            self.journal.lock().forget(&unsynced);
        }
    }

    /// Takes the space of unlinked files that nobody reads any more, though somebody may have them open.
    fn cut_files(&self) {
        let mut leaving = self.leaving.lock();
        let now = Instant::now();
        if !leaving.files.iter().any(|(when, _)| *when <= now) {
            return;
        }
        // A file that comes back after a power loss must be known to be gone, or it is one that is damaged.
        let known = self.journal.lock().sync().inspect_err(|error| self.degrade(error)).is_ok();
        for (_, file) in leaving.files.extract_if(.., |(when, _)| *when <= now) {
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
        self.sync()?;
        let mut punched = 0;
        let given_back = (|| -> Result<()> {
            let file = self.disk.open(&bucket_name(bucket), true)?;
            let (tail, list) = read_end(&*file)?;
            for item in tail.items(&list)? {
                let item = item?;
                if dying.binary_search(&item.block).is_err() {
                    continue;
                }
                let blocks = Shape::of(item.key.len(), item.value_bytes).blocks;
                if !file.punch(item.block * BLOCK as u64, blocks * BLOCK as u64)? {
                    break;
                }
                punched += blocks;
            }
            Ok(())
        })();
        // What was not given back counts, and comes with the whole bucket.
        let mut buckets = self.buckets.lock();
        if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
            buckets[at].punched += punched;
        }
        given_back
    }

    /// Every record of every bucket, dead or alive, as the lists have it; `each` ends it by false.
    pub fn list(&self, each: &mut dyn FnMut(u64, &Item<'_>) -> Result<bool>) -> Result<()> {
        let ids: Vec<u64> = {
            let buckets = self.buckets.lock();
            memory::collect(buckets.iter().filter(|bucket| bucket.sealed).map(|bucket| bucket.id))?
        };
        for bucket in ids {
            // It may be gone by now.
            let Ok(file) = self.disk.open(&bucket_name(bucket), false) else { continue };
            let Ok((tail, list)) = read_end(&*file) else { continue };
            for item in tail.items(&list)? {
                if !each(bucket, &item?)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Every record of a bucket, dead or alive.
    pub fn list_one(&self, bucket: u64, each: &mut dyn FnMut(&Item<'_>) -> Result<()>) -> Result<()> {
        let file = self.disk.open(&bucket_name(bucket), false)?;
        let (tail, list) = read_end(&*file)?;
        tail.items(&list)?.try_for_each(|item| each(&item?))
    }

    /// Names of namespaces, by number.
    #[must_use]
    pub fn names(&self) -> Vec<(Space, Vec<u8>)> {
        self.journal.lock().state().spaces.clone()
    }
}

/// Reads the head of a directory.
pub fn read_head(disk: &dyn Disk) -> Result<Head> {
    let file = disk.open_buffered(SUPER_NAME, false)?;
    let mut block = [0; BLOCK];
    if file.bytes()? != BLOCK as u64 {
        crate::bail!(NMC_ERR_CORRUPT, "{SUPER_NAME} has {} bytes instead of {BLOCK}", file.bytes()?);
    }
    file.read(&mut block, 0)?;
    Head::decode(&block)
}

fn write_head(disk: &dyn Disk, head: &Head) -> Result<()> {
    let temporary = format!("{SUPER_NAME}.tmp");
    let _ = disk.unlink(&temporary);
    let file = disk.create_buffered(&temporary, BLOCK as u64)?;
    file.write(&head.encode(), 0)?;
    file.datasync()?;
    disk.rename(&temporary, SUPER_NAME)?;
    disk.sync()
}

/// Takes a name away, if it is there.
fn take_away(disk: &dyn Disk, name: &str) -> Result<()> {
    match disk.unlink(name) {
        Err(error) if error.status == NMC_ERR_NOT_FOUND => Ok(()),
        taken => taken,
    }
}

/// Takes the names of buckets that are gone away once more, though they are not there: if the sync failed that was to make
/// that last, no later one does. Gives those that are away for good after the next.
fn unlink_again(disk: &dyn Disk, gone: &[u64]) -> Result<Vec<u64>> {
    let mut unlinked = memory::with_capacity(gone.len())?;
    for bucket in gone {
        let name = bucket_name(*bucket);
        if disk.create(&name, 0).and_then(|_| disk.unlink(&name)).is_ok() {
            unlinked.push(*bucket);
        }
    }
    Ok(unlinked)
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

/// Whether a name is one that the tier gives.
fn is_ours(name: &str) -> bool {
    name == SUPER_NAME
        || name == format::LOCK_NAME
        || bucket_id(name).is_some()
        || journal_number(name).is_some()
        || name.strip_suffix(DAMAGED).is_some_and(|name| bucket_id(name).is_some())
        || is_temporary(name)
}

fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp") == Some(SUPER_NAME)
        || bucket_temporary_id(name).is_some()
        || journal_temporary_number(name).is_some()
}

/// Deletes everything that is the tier's, its head last.
fn reset(disk: &dyn Disk) -> Result<()> {
    for name in names_of(disk)? {
        if is_ours(&name) && name != SUPER_NAME && name != format::LOCK_NAME {
            disk.unlink(&name)?;
        }
    }
    disk.sync()?;
    take_away(disk, SUPER_NAME)?;
    disk.sync()
}

/// What the scan of one bucket gave.
enum Scan {
    Good(Vec<(OnDisk, Space)>, u64),
    Torn(Error),
}

fn scan_bucket(disk: &dyn Disk, head: &Head, id: u64) -> Result<Scan> {
    let file = disk.open(&bucket_name(id), false)?;
    let read = || -> Result<(Vec<(OnDisk, Space)>, u64)> {
        let (tail, list) = read_end(&*file)?;
        if tail.tier_id != head.tier_id || tail.bucket != id {
            crate::bail!(NMC_ERR_CORRUPT, "bucket {id} says that it is bucket {} of another tier", tail.bucket);
        }
        let mut found = memory::with_capacity(tail.count as usize)?;
        for item in tail.items(&list)? {
            let Item { block, space, fingerprint, epoch, store_id, value_bytes, .. } = item?;
            let spot = Spot { bucket: id, block };
            let entry = Entry { epoch, fingerprint, bytes: value_bytes, spot, space: space.number };
            found.push((OnDisk { entry, store_id }, space));
        }
        Ok((found, file.bytes()? / BLOCK as u64))
    };
    match read() {
        Ok((found, blocks)) => Ok(Scan::Good(found, blocks)),
        Err(error) if error.status == NMC_ERR_CORRUPT => Ok(Scan::Torn(error)),
        Err(error) => Err(error),
    }
}

/// Looks at all files of a directory.
fn scan(
    disk: &dyn Disk,
    head: &Head,
    journal: &Journal,
    config: &Config,
    names: &[String],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Vec<Bucket>, Recovered)> {
    let state = journal.state();
    let mut recovered = Recovered { spaces: state.spaces.clone(), ..Recovered::default() };
    let mut ids = Vec::new();
    for name in names {
        match bucket_id(name) {
            Some(id) if state.gone.binary_search(&id).is_ok() => take_away(disk, name)?,
            Some(id) => memory::push(&mut ids, id)?,
            // It may have been in the way of a journal or a head.
            None if is_temporary(name) => take_away(disk, name)?,
            None if is_ours(name) => {}
            None => {
                recovered.foreign += 1;
                log::emit(log::WARN, || {
                    format!("tier: {}: {name} is not the tier's and stays as it is", config.directory.display())
                });
            }
        }
    }
    ids.sort_unstable();
    let current: HashMap<u32, u32> = state.spaces.iter().map(|(space, _)| (space.number, space.generation)).collect();
    let mut buckets = memory::with_capacity(ids.len())?;
    let mut all = memory::with_capacity(ids.len())?;
    let total = ids.len() as u64;
    for part in ids.chunks(SCANNERS * 4) {
        // A few buckets a thread at a time: each waits for the disk twice.
        let scans: Vec<Result<Scan>> = std::thread::scope(|scope| {
            let threads: Vec<_> = part
                .chunks(part.len().div_ceil(SCANNERS))
                .map(|ids| {
                    let run = move || ids.iter().map(|id| scan_bucket(disk, head, *id)).collect::<Vec<_>>();
                    (ids.len(), std::thread::Builder::new().spawn_scoped(scope, run))
                })
                .collect();
            let mut scans = Vec::new();
            for (n, thread) in threads {
                let lost = || Error::new(NMC_ERR_IO, "a thread that reads buckets ended early");
                match thread.map_err(|cause| Error::os("clone", &cause)).map(|thread| thread.join()) {
                    Ok(Ok(found)) => scans.extend(found),
                    Ok(Err(_)) => scans.extend((0..n).map(|_| Err(lost()))),
                    Err(error) => scans.extend((0..n).map(|_| Err(error.clone()))),
                }
            }
            scans
        });
        for (id, scan) in part.iter().zip(scans) {
            match scan? {
                Scan::Good(found, blocks) => {
                    let mut live = memory::with_capacity(found.len())?;
                    let mut dying = Vec::new();
                    for (record, space) in found {
                        recovered.last_epoch = recovered.last_epoch.max(record.entry.epoch);
                        let block = record.entry.spot.block;
                        if state.is_dead(*id, block) || current.get(&space.number) != Some(&space.generation) {
                            recovered.dead += 1;
                            memory::push(&mut dying, block)?;
                        } else {
                            live.push(record);
                        }
                    }
                    let count = i64::try_from(live.len()).unwrap_or(i64::MAX);
                    buckets.push(Bucket {
                        id: *id,
                        blocks,
                        live: count,
                        sealed: true,
                        condemned: false,
                        stuck: false,
                        dying,
                        punched: 0,
                    });
                    all.push(live);
                }
                Scan::Torn(error) => {
                    recovered.torn += 1;
                    set_aside(disk, config, *id, &error)?;
                }
            }
        }
        progress(buckets.len() as u64 + recovered.torn, total);
    }
    recovered.buckets = buckets.len() as u64;
    recovered.found = memory::with_capacity(all.iter().map(Vec::len).sum())?;
    // The newest first: if there is no room for all, these stay.
    all.into_iter().rev().for_each(|found| recovered.found.extend(found));
    Ok((buckets, recovered))
}

/// A bucket whose end is damaged.
fn set_aside(disk: &dyn Disk, config: &Config, id: u64, error: &Error) -> Result<()> {
    let name = bucket_name(id);
    log::emit(log::WARN, || format!("tier: {}: {name} is damaged: {error}", config.directory.display()));
    match config.torn {
        Torn::MoveAside => disk.rename(&name, &format!("{name}{DAMAGED}")),
        Torn::Delete => disk.unlink(&name),
    }
}
