//! Who writes a tier: a thread in the process of the store's master. It asks the master what will be evicted soon, writes that
//! into buckets, and tells the master when it is safe. The master never waits for it, except to have marks in the journal
//! before a call is answered.

mod check;
mod events;
mod inbox;
mod make_room;
mod throttle;
mod write;

use self::check::Looked;
use self::inbox::{Inbox, Job, RESULTS, Turns};
use super::config::{Backend, Config, Evict, Stats};
use super::directory::{Directory, Source};
use super::format::Head;
use super::io::{DirLock, RealDisk};
use super::recovery::Recovered;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::id;
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_CORRUPT, NMC_ERR_INTERNAL, NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE,
    NMC_ERR_UNAVAILABLE,
};
use crate::layout::disk::{Entry, Spot};
use crate::layout::store::MAX_NAMESPACES;
use crate::store::completions::Announcer;
use crate::store::disk::{
    Admission, DiskContent, DiskCounts, DiskGrant, DiskMap, DiskOwner, DiskReader, HeldMemory, Mark, Scope, SpaceName,
    Stored, ToWrite, Told, heat_now,
};
use crate::store::master::MOST_HELD;
use crate::store::{MasterSlot, Policy};
use crate::sync::{disk_entry, service_thread};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Values that an index has room for if nobody says: at least.
const OBJECTS: u64 = 1 << 20;
/// Calls of handles in other processes; 0 is the store's own, see `store::client`.
pub const CALL_SUSPECT: u32 = crate::store::CALL_SUSPECT;
/// See `CALL_SUSPECT`.
pub const CALL_THROUGH: u32 = crate::store::CALL_THROUGH;
/// Three numbers of the stats.
pub const CALL_STATS: u32 = 1;
/// Pauses or resumes.
pub const CALL_PAUSE: u32 = 2;
/// Begins a sync; gives a ticket.
pub const CALL_SYNC: u32 = 3;
/// Begins to offload everything, or these keys of a namespace if the second number is 1; gives a ticket.
pub const CALL_OFFLOAD: u32 = 4;
/// Asks whether a ticket is done: 1 and what it gave.
pub const CALL_DONE: u32 = crate::store::CALL_DONE;
/// Makes room until the files take this many bytes at most; gives a ticket.
pub const CALL_EVICT: u32 = 7;
/// The same as `CALL_SUSPECT`, for one who waits: a ticket, which gives 1 if the value has ended.
pub const CALL_LOOK: u32 = 9;
/// How often values are looked for that were read often.
const LOOK_FOR_DUE: Duration = Duration::from_millis(100);
/// Callers that wait for the same bucket.
const MOST_TOGETHER: usize = 128;
/// Values that are brought back into memory in a row.
const PROMOTED_TOGETHER: usize = 16;
/// Buckets that are tidied in a row.
const TIDY: usize = 16;

/// See the module.
pub struct Owner {
    directory: Directory,
    real: Arc<RealDisk>,
    host: Weak<MasterSlot>,
    map: Arc<DiskMap>,
    reader: Arc<dyn DiskReader>,
    flags: u64,
    config: Config,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    corrupt: AtomicU64,
    /// Values that came back into memory.
    promoted: AtomicU64,
    events: Mutex<events::Queue>,
    announcer: Announcer,
    /// The highest number of a bucket that left to make room.
    newest_evicted: AtomicU64,
    throttle: Mutex<throttle::Throttle>,
    /// Why some of what was to be written could not be read from memory, since somebody asked.
    unread: Mutex<Option<Error>>,
    /// Values, buckets and dead records that were found, and how long that took.
    recovered: [u64; 3],
    recovery_ns: AtomicU64,
    left_out: AtomicU64,
    /// Until it is closed, whoever still has it in his hands.
    lock: Mutex<Option<DirLock>>,
}

/// An owner and its thread. Dropping it ends both, and the store has no tier any more.
pub struct Running {
    owner: Arc<Owner>,
    host: Arc<MasterSlot>,
    thread: Option<JoinHandle<()>>,
    /// The store's former disk, until this one is open.
    former: Option<u64>,
}

/// The head of a directory that is made now.
fn new_head() -> Result<Head> {
    let mut secret = [0; 32];
    for bytes in secret.as_chunks_mut::<8>().0 {
        *bytes = id::random_u64()?.to_le_bytes();
    }
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Head { tier_id: id::random_u64()?, secret, backend: Backend::Bucket.number(), created })
}

/// The keys of a call that outlives it.
fn copied(keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
    memory::try_collect(keys.iter().map(|key| memory::copy(key)))
}

struct FromStore<'a> {
    memory: &'a dyn HeldMemory,
    /// Objects that are damaged, with their epochs.
    refused: Mutex<Vec<(u32, u64)>>,
    /// Why others could not be read now.
    unread: Mutex<Option<Error>>,
}

impl Source for FromStore<'_> {
    fn read(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()> {
        self.memory.read_held(item, offset, to).inspect_err(|error| {
            if error.status == NMC_ERR_CORRUPT {
                let _ = memory::push(&mut self.refused.lock(), (item.index, item.epoch));
            } else {
                // It may be there the next time.
                self.unread.lock().get_or_insert_with(|| error.clone());
            }
        })
    }
}

impl Running {
    /// Opens the directory of a config below the store whose master is `host`.
    pub fn open(
        memory: Box<dyn HeldMemory>,
        announcer: Announcer,
        host: Arc<MasterSlot>,
        config: &Config,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        if host.disk_owner().is_some() {
            crate::bail!(NMC_ERR_EXISTS, "the store has a tier already");
        }
        let counts_reads = host.with(|master| Ok(master.map().params().policy != Policy::Fifo.code()))?;
        if config.admission.reads > 0 && !counts_reads {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "values are to be written after {} reads, but the store counts reads only if it evicts by LRU or S3-FIFO",
                config.admission.reads
            );
        }
        // The one that it is opened for: another one may be there before it is open.
        let store_id = memory.store_id();
        let began = Instant::now();
        let options = super::io::Options { direct: config.direct, uring: config.uring, depth: config.depth };
        let real = Arc::new(RealDisk::open(&config.directory, true, options)?);
        let lock = real.lock()?;
        let disk = Arc::clone(&real) as Arc<dyn super::io::Disk>;
        let (directory, recovered) = Directory::open(disk, config, new_head, progress)?;
        if !config.other_directory {
            host.with(|master| master.check_tier(directory.head().tier_id))?;
        }
        let Recovered { found, spaces, last_epoch, position, buckets, dead, .. } = recovered;
        let entries = match config.max_objects {
            0 => OBJECTS.max(2 * found.len() as u64),
            given => given,
        };
        let deadline = Deadline::after(Duration::from_secs(600));
        let map = Arc::new(DiskMap::create(
            id::random_u64()?,
            directory.head().tier_id,
            entries,
            &directory.head().secret,
            &deadline,
        )?);
        map.view().header().promote_after.store(config.promote_after.into(), Relaxed);
        map.view().header().write_through.store(config.write_through.into(), Relaxed);
        map.view().header().bytes_total.store(directory.bytes_total(), Relaxed);
        let flags = super::reader::flags(options, config.backend);
        let reader = super::reader::make(real.shareable()?, flags)?;
        let mut results = VecDeque::new();
        memory::reserve_queue(&mut results, RESULTS)?;
        let names = spaces.iter().filter_map(|(space, name)| Some((SpaceName::new(name)?, *space)));
        let names = memory::collect(names)?;
        let owner = Arc::new(Owner {
            directory,
            real,
            host: Arc::downgrade(&host),
            map: Arc::clone(&map),
            reader,
            flags,
            config: config.clone(),
            inbox: Mutex::new(Inbox {
                at: memory::with_capacity(2 * MOST_TOGETHER)?,
                results,
                paused: config.paused,
                wake: true,
                next: id::random_u64()? >> 8,
                ..Inbox::default()
            }),
            changed: Condvar::new(),
            corrupt: AtomicU64::new(0),
            promoted: AtomicU64::new(0),
            events: Mutex::default(),
            announcer,
            newest_evicted: AtomicU64::new(0),
            throttle: Mutex::new(throttle::Throttle::new(config.write_bytes_per_s, Instant::now())),
            unread: Mutex::new(None),
            recovered: [found.len() as u64, buckets, dead],
            recovery_ns: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            lock: Mutex::new(Some(lock)),
        });
        let former = host.disk_name();
        let disk = Arc::clone(&owner) as Arc<dyn DiskOwner>;
        let content = DiskContent { names: &names, found: &found, last_epoch, position };
        let left_out = host.attach_disk(disk, map, &content, store_id)?;
        reach("tier.attached");
        // If it fails from here on, the store has what it had before.
        let mut running = Self { owner, host, thread: None, former: Some(former) };
        running.host.with(|master| {
            let admission = match config.evict {
                Evict::Never => config.admission,
                // Half of what the disk holds: what leaves it to make room is not what was just written.
                _ => {
                    let ranks = u64::from(master.map().params().world_size.max(1));
                    let bytes = if config.capacity_bytes == 0 { u64::MAX } else { config.capacity_bytes / 2 / ranks };
                    let page = u64::from(master.map().params().page_bytes);
                    Admission { objects: (entries / 2 / ranks).max(1), bytes: bytes.max(page), ..config.admission }
                }
            };
            master.set_admission(admission);
            Ok(())
        })?;
        // Before anything is removed or written: which of two records of a key counts must not change any more.
        running.owner.directory.sync()?;
        let took = began.elapsed();
        running.owner.left_out.store(left_out, Relaxed);
        running.owner.recovery_ns.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        log::emit(log::INFO, || {
            format!(
                "tier: {}: {} values in {buckets} buckets, {dead} dead, in {} ms",
                config.directory.display(),
                found.len(),
                took.as_millis()
            )
        });
        if left_out > 0 {
            log::emit(log::WARN, || {
                format!(
                    "tier: the index has room for {entries} values; {left_out} older ones were given up (max_objects)"
                )
            });
        }
        let working = Arc::clone(&running.owner);
        running.thread = Some(service_thread::spawn(c"nmc-tier", None, move || {
            let mut again = false;
            service_thread::persist("the tier's owner", || {
                if std::mem::replace(&mut again, true) {
                    working.recover_from_bug();
                }
                working.work(&*memory);
            });
        })?);
        running.former = None;
        Ok(running)
    }

    /// When it ends, the store goes on as if its owner had been killed: others read what is on disk.
    pub fn leave_readable(&mut self) {
        self.former = Some(self.owner.map.id());
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.owner.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.host.detach_disk(self.former);
        self.owner.tidy_all();
        self.owner.announcer.announce(false);
        // What was noted while the thread ended.
        if let Err(error) = self.owner.directory.sync() {
            log::emit(log::WARN, || format!("tier: closing: {error}"));
        }
        // Everything that was noted is written, and nothing is noted any more: somebody else may have it.
        drop(self.owner.lock.lock().take());
    }
}

impl DiskOwner for Owner {
    fn note(&self, marks: &[Mark]) {
        if self.directory.note(marks) {
            // Its space can be given back.
            self.wake();
        }
    }

    fn settle(&self, mine: bool) -> Result<()> {
        self.directory.settle(mine)
    }

    fn trouble(&self) -> Option<Error> {
        self.directory.trouble()
    }

    fn wake(&self) {
        // Who has not seen the last call yet needs no other.
        if !std::mem::replace(&mut self.inbox.lock().wake, true) {
            self.changed.notify_all();
        }
    }

    fn grant(&self) -> Result<DiskGrant> {
        Ok(DiskGrant { map: Arc::clone(&self.map), directory: self.real.shareable()?, flags: self.flags })
    }

    fn reader(&self) -> (Arc<DiskMap>, Arc<dyn DiskReader>) {
        (Arc::clone(&self.map), Arc::clone(&self.reader))
    }

    fn call(&self, what: u32, [first, second]: [u64; 2], keys: &[&[u8]]) -> Result<[u64; 3]> {
        match what {
            CALL_SUSPECT => {
                self.suspect(u32::try_from(first).unwrap_or(u32::MAX), second);
                Ok([0; 3])
            }
            CALL_LOOK => {
                let index = u32::try_from(first).unwrap_or(u32::MAX);
                Ok([self.begin(Job::Look { index, word: second })?, 0, 0])
            }
            CALL_STATS => {
                let words = self.stats()?.words();
                let at = usize::try_from(first).unwrap_or(usize::MAX).saturating_mul(3);
                Ok(std::array::from_fn(|i| words.get(at.saturating_add(i)).copied().unwrap_or(0)))
            }
            CALL_PAUSE => {
                self.pause(first != 0);
                Ok([0; 3])
            }
            CALL_SYNC => Ok([self.begin(Job::Sync)?, 0, 0]),
            CALL_OFFLOAD => {
                let namespace = u32::try_from(first).unwrap_or(u32::MAX);
                let keys = (second != 0).then(|| copied(keys)).transpose()?;
                Ok([self.begin(Job::Offload(keys.map(|keys| (namespace, keys))))?, 0, 0])
            }
            CALL_THROUGH => {
                let namespace = u32::try_from(first).unwrap_or(u32::MAX);
                Ok([self.begin(Job::Through(namespace, copied(keys)?))?, 0, 0])
            }
            CALL_EVICT => Ok([self.begin(Job::Evict(first))?, 0, 0]),
            CALL_DONE => match self.result(first) {
                Some(result) => result.map(|gave| [1, gave, 0]),
                None => Ok([0; 3]),
            },
            _ => Err(Error::new(NMC_ERR_INVALID_ARG, format!("a tier has no call {what}"))),
        }
    }

    fn told(&self, disk: u64, since: u64, room: usize) -> Result<Told> {
        self.told_since(disk, since, room)
    }
}

impl Owner {
    fn host(&self) -> Result<Arc<MasterSlot>> {
        self.host.upgrade().ok_or_else(|| Error::new(NMC_ERR_UNAVAILABLE, "the store of the tier is gone"))
    }

    fn counts(&self) -> DiskCounts {
        let counts = self.host().and_then(|host| host.with(|master| Ok(master.disk_counts())));
        counts.ok().flatten().unwrap_or_default()
    }

    /// Numbers.
    pub fn stats(&self) -> Result<Stats> {
        let DiskCounts { objects, bytes, capacity, evicted_clean, evicted_dirty, full, evicted, .. } = self.counts();
        let counts = &self.directory.counts;
        let [recovered_objects, recovered_buckets, recovered_dead] = self.recovered;
        Ok(Stats {
            objects,
            bytes,
            max_objects: capacity,
            file_bytes: self.directory.file_bytes(),
            buckets: self.directory.bucket_count(),
            // With what only the master knows of each entry.
            index_bytes: self.map.bytes() + 4 * self.map.entries(),
            written_objects: counts.objects.load(Relaxed),
            written_bytes: counts.bytes.load(Relaxed),
            written_buckets: counts.buckets.load(Relaxed),
            evicted_clean,
            evicted_dirty,
            full: full + counts.full.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
            errors: counts.errors.load(Relaxed),
            paused: self.inbox.lock().paused.into(),
            degraded: self.directory.trouble().is_some().into(),
            recovered_objects,
            recovered_buckets,
            recovery_ns: self.recovery_ns.load(Relaxed),
            recovered_dead: recovered_dead + self.left_out.load(Relaxed),
            torn: counts.torn.load(Relaxed),
            dead_bytes: self.directory.dead_bytes(),
            read_objects: 0,
            read_bytes: 0,
            evicted,
            promoted: self.promoted.load(Relaxed),
        })
    }

    /// Ends or begins offloading.
    pub fn pause(&self, paused: bool) {
        let mut inbox = self.inbox.lock();
        // There may be something to write since it was paused.
        (inbox.paused, inbox.wake) = (paused, true);
        drop(inbox);
        self.changed.notify_all();
    }

    // ---- jobs --------------------------------------------------------------------------------------------------------

    fn begin(&self, job: Job) -> Result<u64> {
        let mut inbox = self.inbox.lock();
        if inbox.stop {
            return Err(write::closing());
        }
        inbox.jobs.try_reserve(1).map_err(|_| memory::refused::<Job>(1))?;
        let ticket = inbox.next;
        inbox.next += 1;
        inbox.jobs.push_back((ticket, job));
        self.changed.notify_all();
        Ok(ticket)
    }

    /// What came of a job, if it is done.
    fn result(&self, ticket: u64) -> Option<Result<u64>> {
        let inbox = self.inbox.lock();
        let found = inbox.results.iter().find(|(done, _)| *done == ticket).map(|(_, result)| result.clone());
        found.or_else(|| inbox.is_forgotten(ticket))
    }

    fn wait(&self, ticket: u64) -> Result<u64> {
        let mut inbox = self.inbox.lock();
        loop {
            // Nobody else asks for it, and there is room for few.
            if let Some(at) = inbox.results.iter().position(|(done, _)| *done == ticket)
                && let Some((_, result)) = inbox.results.remove(at)
            {
                return result;
            }
            if inbox.stop {
                return Err(write::closing());
            }
            if let Some(forgotten) = inbox.is_forgotten(ticket) {
                return forgotten;
            }
            self.changed.wait_for(&mut inbox, Duration::from_millis(100));
        }
    }

    /// Somebody could not read what an entry leads to: the owner looks itself.
    pub fn suspect(&self, index: u32, word: u64) {
        let known = |inbox: &Inbox| {
            inbox.jobs.iter().any(|(_, job)| matches!(job, Job::Suspect { index: other, .. } if *other == index))
        };
        if !known(&self.inbox.lock()) {
            let _ = self.begin(Job::Suspect { index, word });
        }
    }

    /// Marks that were made, and buckets, are safe from a power loss.
    pub fn sync(&self) -> Result<()> {
        let ticket = self.begin(Job::Sync)?;
        self.wait(ticket).map(|_| ())
    }

    /// Writes the values of these keys, or all.
    pub fn offload(&self, namespace: u32, keys: Option<&[&[u8]]>) -> Result<u64> {
        let keys = keys.map(copied).transpose()?;
        let ticket = self.begin(Job::Offload(keys.map(|keys| (namespace, keys))))?;
        self.wait(ticket)
    }

    /// Makes room until the files take this many bytes at most; gives how many values went.
    pub fn evict(&self, keep: u64) -> Result<u64> {
        let ticket = self.begin(Job::Evict(keep))?;
        self.wait(ticket)
    }

    /// Whoever waits gives up, and no job is begun any more.
    pub fn stop(&self) {
        self.inbox.lock().stop = true;
        self.changed.notify_all();
    }

    // ---- the thread --------------------------------------------------------------------------------------------------

    fn work(&self, memory: &dyn HeldMemory) {
        let beat = Duration::from_millis(u64::from(self.config.heartbeat_ms).max(1));
        let mut next_beat = Instant::now() + beat;
        let mut full = false;
        // Until when nothing is written ahead, since enough was.
        let mut held_back = None;
        let mut turns = Turns::new();
        loop {
            let (job, paused) = {
                let mut inbox = self.inbox.lock();
                let idle = !inbox.stop && !inbox.wake && inbox.jobs.is_empty();
                let mut until = held_back.map_or(next_beat, |then: Instant| then.min(next_beat));
                if self.config.promote_after > 0 {
                    until = until.min(Instant::now() + LOOK_FOR_DUE);
                }
                if idle && Instant::now() < until {
                    self.changed.wait_until(&mut inbox, until);
                }
                if inbox.stop {
                    return;
                }
                let now = Instant::now();
                let is_due = self.config.promote_after > 0 && now >= turns.rest_ended + LOOK_FOR_DUE;
                let rest_waits = inbox.wake || is_due || now >= next_beat || held_back.is_some_and(|then| now >= then);
                let job = if rest_waits && turns.is_of_the_rest(now) { None } else { inbox.take(0) };
                inbox.wake &= job.is_some();
                (job, inbox.paused)
            };
            if let Some((ticket, job)) = job {
                self.do_job(memory, ticket, job);
                // Who asks again and again does not keep space from coming back.
                self.tidy();
                continue;
            }
            turns.begin_rest();
            let beat_is_over = Instant::now() >= next_beat;
            // Without room it waits for the next beat, or for what comes back.
            let mut more = self.promote_some(memory);
            held_back = self.throttle.lock().held_back(Instant::now());
            if held_back.is_none() && !paused && self.directory.trouble().is_none() && (!full || beat_is_over) {
                let wrote = self.write_ahead(memory);
                full = wrote.as_ref().is_err_and(|error| [NMC_ERR_NO_SPACE, NMC_ERR_LIMIT].contains(&error.status));
                more |= wrote.unwrap_or(false);
            }
            if beat_is_over {
                self.directory.try_again();
            }
            let tidied = self.tidy();
            full &= !tidied;
            if let Ok(host) = self.host() {
                more |= host.with(|master| master.sweep_disk()).unwrap_or(false);
            }
            self.directory.report();
            if more || tidied {
                self.inbox.lock().wake = true;
            }
            if beat_is_over {
                next_beat = Instant::now() + beat;
            }
            turns.end_rest();
        }
    }

    /// The thread begins anew after a bug: nobody waits for what it was at, and nothing is held for it.
    fn recover_from_bug(&self) {
        let mut inbox = self.inbox.lock();
        while let Some(ticket) = inbox.at.last().copied() {
            inbox.finish(
                ticket,
                Err(Error::new(NMC_ERR_INTERNAL, "the tier's owner met a bug in nanomc; please report it")),
            );
        }
        drop(inbox);
        self.changed.notify_all();
        if let Ok(host) = self.host() {
            let _ = host.with(|master| {
                master.let_all_go();
                Ok(())
            });
        }
    }

    /// Gives all space back that nobody needs.
    fn tidy_all(&self) {
        while self.tidy() {}
    }

    /// Gives space back, a few buckets at a time; gives whether there was some.
    fn tidy(&self) -> bool {
        // One whose entries could not be ended when it was given up, for want of memory.
        if let Some(bucket) = self.directory.condemned()
            && let Err(error) = self.end_all(bucket).map(|_| self.directory.emptied(bucket))
        {
            log::emit(log::WARN, || format!("tier: bucket {bucket} is half given up: {error}"));
        }
        for step in 0..TIDY {
            match self.directory.tidy() {
                Ok(true) => {}
                Ok(false) => return step > 0,
                Err(error) => {
                    log::emit(log::WARN, || format!("tier: giving space back: {error}"));
                    return false;
                }
            }
        }
        true
    }

    /// Does a job that was taken, and says what came of it.
    fn do_job(&self, memory: &dyn HeldMemory, ticket: u64, job: Job) {
        if let Job::Through(namespace, keys) = job {
            self.write_through(memory, ticket, namespace, keys);
        } else {
            let asked = !matches!(job, Job::Suspect { .. });
            let result = self.run(memory, job);
            let mut inbox = self.inbox.lock();
            inbox.at.retain(|other| *other != ticket);
            if asked {
                inbox.finish(ticket, result);
            }
        }
        self.changed.notify_all();
    }

    /// In the middle of a long job: does those that somebody waits for and that take little, of those that are there now.
    fn do_short_jobs(&self, memory: &dyn HeldMemory) {
        let is_short = |job: &Job| !matches!(job, Job::Offload(_) | Job::Evict(_));
        let waiting = self.inbox.lock().jobs.len();
        // What the long one could not read it still has to tell.
        let unread = self.unread.lock().take();
        for _ in 0..waiting {
            let mut inbox = self.inbox.lock();
            let short = inbox.jobs.iter().position(|(_, job)| is_short(job));
            let Some((ticket, job)) = short.filter(|_| !inbox.stop).and_then(|at| inbox.take(at)) else { break };
            drop(inbox);
            self.do_job(memory, ticket, job);
        }
        *self.unread.lock() = unread;
    }

    fn run(&self, memory: &dyn HeldMemory, job: Job) -> Result<u64> {
        match job {
            Job::Suspect { index, word } | Job::Look { index, word } => {
                self.look_at(index, word).map(|looked| matches!(looked, Looked::Ended).into())
            }
            Job::Sync => {
                self.tidy_all();
                self.directory.sync().map(|()| 0)
            }
            Job::Offload(None) => self.write_all(memory),
            Job::Offload(Some((namespace, keys))) => self.write_keys(memory, namespace, &keys),
            // See `do_job`.
            Job::Through(namespace, keys) => self.write_keys(memory, namespace, &keys),
            Job::Evict(keep) => self.evict_down_to(keep),
        }
    }

    /// Brings a few values back into memory, of those that were read often. Gives whether there may be more.
    fn promote_some(&self, memory: &dyn HeldMemory) -> bool {
        let after = u64::from(self.config.promote_after);
        if after == 0 {
            return false;
        }
        let (view, mut found) = (self.map.view(), 0);
        for (index, rank) in self.map.heat().take_due(after, PROMOTED_TOGETHER) {
            found += 1;
            let Some(words) = view.entry(index).and_then(disk_entry::read) else { continue };
            let entry = Entry::from_words(words);
            let of = |namespace: &u32| view.space(*namespace).is_some_and(|space| space.number == entry.space);
            let Some(namespace) = (0..u32::try_from(MAX_NAMESPACES).unwrap_or(0)).find(of) else { continue };
            // What does not come back is read from disk again.
            let Ok(key) = self.directory.key_of(entry.spot) else { continue };
            self.promoted.fetch_add(memory.promote(namespace, &key, rank).into(), Relaxed);
        }
        found == PROMOTED_TOGETHER
    }

    fn is_stopping(&self) -> bool {
        self.inbox.lock().stop
    }
}
