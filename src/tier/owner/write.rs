//! What is written, when, and how much of it at a time.

use super::*;
use crate::mem::limits;
use crate::store::disk::Happened;

/// Values of which the master is told something small at a time: puts wait meanwhile.
const TOLD_TOGETHER: usize = 16;

/// What whoever waits is told.
pub(super) fn closing() -> Error {
    Error::new(NMC_ERR_CANCELLED, "the tier is being closed")
}

impl Owner {
    /// Writes what callers wait for: all that have asked by now, one bucket for all of a namespace.
    pub(super) fn write_through(&self, memory: &dyn HeldMemory, ticket: u64, namespace: u32, mut keys: Vec<Vec<u8>>) {
        let mut inbox = self.inbox.lock();
        // This one and those that join it: there may be a long job which they interrupt.
        let first = inbox.at.iter().rposition(|other| *other == ticket).unwrap_or(inbox.at.len());
        let mut at = 0;
        while at < inbox.jobs.len() && inbox.at.len() - first < MOST_TOGETHER {
            let joins = match &inbox.jobs[at].1 {
                // Without memory to join it, it comes next.
                Job::Through(other, more) => *other == namespace && memory::reserve(&mut keys, more.len()).is_ok(),
                _ => false,
            };
            if !joins {
                at += 1;
            } else if let Some((_, Job::Through(_, mut more))) = inbox.take(at) {
                keys.append(&mut more);
            }
        }
        drop(inbox);
        let result = self.write_keys(memory, namespace, &keys);
        let mut inbox = self.inbox.lock();
        while let Some(ticket) = inbox.at.get(first).copied() {
            inbox.finish(ticket, result.clone());
        }
    }

    /// Writes the values of keys, a bucket at a time: what is written cannot be evicted meanwhile.
    pub(super) fn write_keys(&self, memory: &dyn HeldMemory, namespace: u32, keys: &[Vec<u8>]) -> Result<u64> {
        let host = self.host()?;
        let most = (self.bucket_keys(), self.bucket_bytes());
        let (mut rest, mut written, mut refused) = (keys, 0, None);
        let first = self.directory.next_bucket();
        *self.unread.lock() = None;
        while !rest.is_empty() && !self.is_stopping() {
            self.make_room_in_index(most.0 as u64)?;
            let mut items = Vec::new();
            let looked = host.with(|master| master.find_to_write(namespace, rest, most, &mut items));
            let looked = looked.inspect_err(|_| self.release_holds(&items))?;
            rest = rest.get(looked.max(1)..).unwrap_or_default();
            if !items.is_empty() {
                match self.write_bucket(memory, &items) {
                    Ok(more) => written += more,
                    // Smaller ones may have room, or be short enough for a file.
                    Err(error) if [NMC_ERR_NO_SPACE, NMC_ERR_LIMIT].contains(&error.status) => refused = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if self.newest_evicted.load(Relaxed) >= first {
                crate::bail!(
                    NMC_ERR_NO_SPACE,
                    "the disk holds less than was asked for: {written} values were written, and some left again"
                );
            }
        }
        if !rest.is_empty() {
            return Err(closing());
        }
        match refused {
            Some(error) => Err(error),
            None => self.all_was_read(written),
        }
    }

    /// How many values were written, if all that were to be could be read.
    fn all_was_read(&self, written: u64) -> Result<u64> {
        let unread = self.unread.lock().take();
        unread.map_or(Ok(written), |error| Err(error.context("some values could not be read, and were not written")))
    }

    /// Values in a bucket: no more than can be held until they are written.
    fn bucket_keys(&self) -> usize {
        (self.config.bucket_keys as usize).clamp(1, MOST_HELD)
    }

    /// Bytes of values in a bucket: no more than a small part of a heap, since they cannot be evicted before it is safe.
    pub(super) fn bucket_bytes(&self) -> u64 {
        let heap = self.host().and_then(|host| host.with(|master| Ok(master.map().params().heap_bytes))).unwrap_or(0);
        let share = match self.config.capacity_bytes {
            0 => u64::MAX,
            // So that what leaves to make room for it is a small part of what there is.
            capacity => (capacity / 4).max(1 << 16),
        };
        // No longer than a file may be, with its lists and what values do not fill.
        let file = limits::longest_file().map_or(u64::MAX, |longest| longest - (longest / 2).min(8 << 20));
        // Never nothing: what has no room at all is to be refused, not looked for without end.
        self.config.bucket_bytes.min((heap / 40).max(1 << 20)).min(share).min(file).max(1)
    }

    /// The next objects that are to be written, up to a bucket full. Gives whether there may be more.
    pub(super) fn gather(&self, scope: Scope, items: &mut Vec<ToWrite>) -> Result<bool> {
        let host = self.host()?;
        let (limit, keys) = (self.bucket_bytes(), self.bucket_keys());
        self.make_room_in_index(keys as u64)?;
        // Every object is looked at several times over, whatever comes and goes.
        let mut looks = host.with(|master| {
            master.look_around();
            Ok(4 * master.map().params().max_objects as usize + 1024)
        })?;
        while looks > 0 {
            let bytes: u64 = items.iter().map(|item| item.bytes.max(1)).sum();
            let Some(left) = limit.checked_sub(bytes).filter(|left| *left > 0) else { return Ok(true) };
            if items.len() >= keys {
                return Ok(true);
            }
            let room = keys - items.len();
            match host.step(|master, wanted| master.next_to_write(scope, (room, left), wanted, items)) {
                Ok((true, looked)) => looks = looks.saturating_sub(looked.max(1)),
                Ok((false, _)) => return Ok(false),
                // Those that have room come first.
                Err(error) if error.status == NMC_ERR_NO_SPACE && !items.is_empty() => return Ok(true),
                Err(error) => {
                    self.release_holds(items);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    /// Writes a bucket of what may be evicted soon, if there is something. Gives whether there may be more.
    pub(super) fn write_ahead(&self, memory: &dyn HeldMemory) -> Result<bool> {
        let mut items = Vec::new();
        let more = self.gather(Scope::Ahead, &mut items)?;
        if items.is_empty() {
            return Ok(false);
        }
        let written = self.write_bucket(memory, &items)?;
        self.throttle.lock().spend(items.iter().map(|item| item.bytes).sum());
        Ok(written > 0 && more)
    }

    /// Writes everything, a bucket at a time; gives how many values.
    pub(super) fn write_all(&self, memory: &dyn HeldMemory) -> Result<u64> {
        let host = self.host()?;
        host.with(|master| {
            master.begin_walk();
            Ok(())
        })?;
        let (mut written, mut in_pass, mut refused) = (0, 0, None);
        *self.unread.lock() = None;
        let first = self.directory.next_bucket();
        loop {
            let mut items = Vec::new();
            let more = self.gather(Scope::All, &mut items)?;
            if self.is_stopping() {
                self.release_holds(&items);
                return Err(closing());
            }
            if !items.is_empty() {
                match self.write_bucket(memory, &items) {
                    Ok(now) => (written, in_pass) = (written + now, in_pass + now),
                    // One that is too long for a file keeps no others from it.
                    Err(error) if error.status == NMC_ERR_LIMIT => refused = Some(error),
                    Err(error) => return Err(error),
                }
                self.do_short_jobs(memory);
            }
            // What was written leaves again to make room: the disk holds no more.
            let over = self.newest_evicted.load(Relaxed) >= first;
            // A pass in which nothing was found is the last: what came or was passed over meanwhile was looked at.
            if over || !more && std::mem::take(&mut in_pass) == 0 {
                return refused.map_or_else(|| self.all_was_read(written), Err);
            }
        }
    }

    pub(super) fn release_holds(&self, items: &[ToWrite]) {
        if let (false, Ok(host)) = (items.is_empty(), self.host()) {
            for items in items.chunks(TOLD_TOGETHER) {
                let _ = host.step(|master, _| {
                    master.release_holds(items);
                    Ok(())
                });
            }
        }
    }

    /// Writes held objects into one bucket, and tells the master. The holds are over in any case.
    pub(super) fn write_bucket(&self, memory: &dyn HeldMemory, items: &[ToWrite]) -> Result<u64> {
        let host = self.host()?;
        let mut assign = |places: &[(u32, Spot)]| {
            let mut wanted = Vec::new();
            for places in places.chunks(TOLD_TOGETHER) {
                host.step(|master, _| master.assign(places, &mut wanted))?;
            }
            Ok(wanted)
        };
        let store_id = host.store_id();
        let source = FromStore { memory, refused: Mutex::default(), unread: Mutex::default() };
        let written = self.write_somehow(items, store_id, &source, &mut assign);
        if let Some(error) = source.unread.into_inner() {
            self.unread.lock().get_or_insert(error);
        }
        let refused = source.refused.into_inner();
        if !refused.is_empty() {
            host.with(|master| {
                master.refuse(&refused);
                Ok(())
            })?;
        }
        let stored = match written {
            Ok(stored) => stored,
            Err(error) => {
                self.release_holds(items);
                if error.status != NMC_ERR_NO_SPACE {
                    log::emit(log::WARN, || format!("tier: {} values were not written: {error}", items.len()));
                }
                return Err(error);
            }
        };
        let mut entered = 0;
        let mut is_in = HashSet::new();
        let mut enter = |rest: &[Stored]| {
            host.step(|master, wanted| {
                master.stored(rest, wanted, |number| {
                    entered += 1;
                    if self.config.events && is_in.try_reserve(1).is_ok() {
                        is_in.insert(rest[number].index);
                    }
                    self.directory.entered(rest[number].entry.spot.bucket);
                })
            })
        };
        let (mut rest, mut told) = (&stored[..], Ok(()));
        while let (false, Ok(())) = (rest.is_empty(), &told) {
            told = enter(rest).map(|done| rest = &rest[done..]);
        }
        self.release_holds(items);
        if let Some(stored) = stored.first() {
            self.map.heat().warm(stored.entry.spot.bucket, heat_now());
        }
        self.happened(Happened::Stored, items.iter().filter(|item| is_in.contains(&item.index)));
        told.map(|()| entered)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::tier::test_store::{config, put, store, value};
    use std::sync::atomic::AtomicBool;

    /// The owner of a tier of this store.
    fn own(store: &Store, config: &Config) -> Running {
        let (memory, host) = (Box::new(store.share()), store.host().unwrap());
        Running::open(memory, store.announcer(), host, config, &mut |_, _| ()).unwrap()
    }

    #[test]
    fn keys_that_are_not_written_since_the_tier_closes_are_not_called_safe() {
        let dir = tempfile::tempdir().unwrap();
        let store = store();
        let running = own(&store, &config(&dir));
        put(&store, "k", &value(1, 1000));
        let owner = running.owner();
        let memory: Box<dyn HeldMemory> = Box::new(store.share());
        owner.inbox.lock().stop = true;
        let said = owner.write_keys(&*memory, 0, &[b"k".to_vec()]);
        assert_eq!(said.unwrap_err().status, NMC_ERR_CANCELLED);
    }

    /// Memory that tells when something is read from it: the key, and the owner who reads.
    struct Watched<F> {
        memory: Store,
        owner: Arc<Mutex<Weak<Owner>>>,
        read: F,
    }

    impl<F: Fn(&Owner, &[u8]) -> Result<()> + Send + Sync> HeldMemory for Watched<F> {
        fn store_id(&self) -> u64 {
            self.memory.store_id()
        }

        fn read_held(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()> {
            let owner = self.owner.lock().upgrade().unwrap();
            (self.read)(&owner, &item.key)?;
            self.memory.read_held(item, offset, to)
        }

        fn promote(&self, namespace: u32, key: &[u8], rank: u32) -> bool {
            HeldMemory::promote(&self.memory, namespace, key, rank)
        }
    }

    fn watch(
        store: &Store,
        config: &Config,
        read: impl Fn(&Owner, &[u8]) -> Result<()> + Send + Sync + 'static,
    ) -> Running {
        let owner = Arc::default();
        let memory = Watched { memory: store.share(), owner: Arc::clone(&owner), read };
        let host = store.host().unwrap();
        let running = Running::open(Box::new(memory), Announcer::to_nobody(), host, config, &mut |_, _| ()).unwrap();
        *owner.lock() = Arc::downgrade(running.owner());
        running
    }

    /// While everything is written somebody asks for a sync.
    #[test]
    fn a_sync_does_not_wait_until_everything_is_written() {
        let (dir, store) = (tempfile::tempdir().unwrap(), store());
        let (ticket, synced) = (Mutex::new(None), Arc::new(AtomicU64::new(0)));
        let seen = Arc::clone(&synced);
        let running = watch(&store, &Config { bucket_keys: 1, ..config(&dir) }, move |owner, _| {
            let ticket = *ticket.lock().get_or_insert_with(|| owner.begin(Job::Sync).unwrap());
            seen.fetch_add(owner.result(ticket).is_some_and(|result| result.is_ok()).into(), Relaxed);
            Ok(())
        });
        for i in 0..4 {
            put(&store, &format!("k{i}"), &value(i, 1000));
        }
        assert_eq!(running.owner().offload(0, None).unwrap(), 4);
        assert!(synced.load(Relaxed) > 0, "the sync came after all values");
    }

    /// Before each job is done there is the next one, until something else is written.
    #[test]
    fn what_memory_evicts_next_is_written_ahead_beside_jobs_without_end() {
        let (dir, store) = (tempfile::tempdir().unwrap(), store());
        let job = || Job::Offload(Some((0, vec![b"job".to_vec()])));
        // Whether something else was written; the first job waits until all is there.
        let (ahead, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
        let (wrote, entered) = (Arc::clone(&ahead), Arc::clone(&gate));
        let paused = Config { heartbeat_ms: 3_600_000, ..config(&dir) };
        let running = watch(&store, &paused, move |owner, key| {
            drop(entered.lock());
            if key != b"job" {
                wrote.store(true, Relaxed);
                return Ok(());
            }
            if !wrote.load(Relaxed) {
                owner.begin(job()).unwrap();
            }
            Err(Error::new(NMC_ERR_UNAVAILABLE, "so that the next one has as much to do"))
        });
        for i in 0..57 {
            put(&store, &format!("k{i}"), &value(i, 32 << 10));
        }
        put(&store, "job", &value(0, 1000));
        let closed = gate.lock();
        running.owner().begin(job()).unwrap();
        running.owner().pause(false);
        drop(closed);
        let late = Instant::now() + Duration::from_secs(60);
        while !ahead.load(Relaxed) {
            assert!(Instant::now() < late, "nothing was written ahead");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Results of others take the place of one before it is looked at.
    #[test]
    fn who_waits_for_a_result_that_is_forgotten_is_told_so() {
        let (dir, store) = (tempfile::tempdir().unwrap(), store());
        let running = own(&store, &config(&dir));
        assert_eq!(running.owner().wait(7).unwrap_err().status, NMC_ERR_CANCELLED);
    }
}
