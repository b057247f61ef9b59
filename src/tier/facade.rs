//! A tier as the program has it: what is asked for is done by the owner, here or in its process, or by the reader.

use super::config::{Config, Scanned, Stats, Verified};
use super::elsewhere::{self, no_tier};
use super::owner::{CALL_DONE, CALL_EVICT, CALL_LOOK, CALL_OFFLOAD, CALL_PAUSE, CALL_STATS, CALL_SYNC, Running};
use super::reader::{Reader, install};
use super::staging::{Lent, Staging};
use super::sys;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_INVALID_ARG, NMC_ERR_UNSUPPORTED};
use crate::store::Store;
use crate::store::disk::{DiskEntry, Event};
use crate::store::types::Look;
use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How often a handle in another process asks whether the owner is done.
const ASK: Duration = Duration::from_millis(5);

/// Keys of one call of the owner in another process.
const KEYS: usize = 64;

/// The tier of a store: its owner in the process of the store's master, elsewhere a handle to it.
pub struct Tier {
    running: Option<Running>,
    store: Store,
    staging: Staging,
    stopped: AtomicBool,
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.store.listen(false);
        // Ends before the store does.
        if self.running.take().is_some() {
            self.store.forget_disk();
        }
    }
}

impl Tier {
    /// In the process of the store's master: opens the directory, recovers what is there, and writes to it from then on.
    /// Elsewhere: a handle to the tier that the store has; `config` is not looked at.
    pub fn open(store: &Store, config: &Config, progress: &mut dyn FnMut(u64, u64)) -> Result<Self> {
        install();
        let Some(host) = store.host() else {
            if !store.has_disk() {
                return Err(no_tier());
            }
            return Ok(Self::with(None, store));
        };
        if config.directory.as_os_str().is_empty() && host.disk_owner().is_some() {
            // In the owner's process too a store of another namespace has a handle of its own.
            return Ok(Self::with(None, store));
        }
        if config.directory.as_os_str().is_empty() {
            crate::bail!(NMC_ERR_INVALID_ARG, "a tier needs a directory");
        }
        let running = Running::open(Box::new(store.share()), store.announcer(), host, config, progress)?;
        Ok(Self::with(Some(running), store))
    }

    fn with(running: Option<Running>, store: &Store) -> Self {
        store.listen(true);
        Self { running, store: store.share(), staging: Staging::default(), stopped: AtomicBool::new(false) }
    }

    /// Whether this process owns it.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.running.is_some()
    }

    /// Calls that wait give up: it is about to be closed.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        // The handle's own: what waits for an owner that does not answer gives up, other handles of the store go on.
        self.store.close();
        if let Some(running) = &self.running {
            running.owner().stop();
        }
    }

    /// Waits for a job of the owner in another process.
    fn wait(&self, what: u32, arguments: [u64; 2], keys: &[&[u8]]) -> Result<u64> {
        let over = || match self.stopped.load(SeqCst) {
            true => Err(Error::new(NMC_ERR_CANCELLED, "the tier is being closed")),
            false => Ok(()),
        };
        over()?;
        let [ticket, ..] = self.store.call_disk(what, arguments, keys)?;
        loop {
            over()?;
            let [done, gave, _] = self.store.call_disk(CALL_DONE, [ticket, 0], &[])?;
            if done != 0 {
                return Ok(gave);
            }
            std::thread::sleep(ASK);
        }
    }

    /// Everything that was removed or written so far is safe from a power loss when this returns.
    pub fn sync(&self) -> Result<()> {
        match &self.running {
            Some(running) => running.owner().sync(),
            None => self.wait(CALL_SYNC, [0; 2], &[]).map(|_| ()),
        }
    }

    /// Writes values to disk now: those of these keys, or all that are in memory. Gives how many were written; those that are on
    /// disk already, or are not there, are not counted.
    pub fn offload(&self, keys: Option<&[&[u8]]>) -> Result<u64> {
        match (&self.running, keys) {
            (Some(running), keys) => running.owner().offload(self.store.namespace_id(), keys),
            (None, None) => self.wait(CALL_OFFLOAD, [0; 2], &[]),
            (None, Some(keys)) => keys.chunks(KEYS).try_fold(0, |written, part| {
                Ok(written + self.wait(CALL_OFFLOAD, [self.store.namespace_id().into(), 1], part)?)
            }),
        }
    }

    /// Brings the values of keys back into memory, into the heap of this process's rank; `result` hears by number whether it is
    /// there, or is being written.
    pub fn prefetch(&self, keys: &[&[u8]], mut result: impl FnMut(usize, Result<bool>)) {
        for (at, part) in keys.chunks(KEYS).enumerate() {
            if self.stopped.load(SeqCst) {
                let closing = || Err(Error::new(NMC_ERR_CANCELLED, "the tier is being closed"));
                (0..part.len()).for_each(|number| result(at * KEYS + number, closing()));
                continue;
            }
            self.store.promote(part, self.store.rank(), |number, came| result(at * KEYS + number, came));
        }
    }

    /// Reads values into staging memory, where they stay until the loan is given back, its time is over, or the handle is closed. Gives the
    /// loan's name, 0 if there was nothing to read; `result` hears by number where each value is, or why it is nowhere.
    pub fn stage(
        &self,
        keys: &[&[u8]],
        time: Duration,
        mut result: impl FnMut(usize, Result<Look<Lent>>),
    ) -> Result<u64> {
        let (mut found, mut sizes) = (memory::with_capacity(keys.len())?, memory::with_capacity(keys.len())?);
        for (number, key) in keys.iter().enumerate() {
            match self.store.read_whole(key, |_| Ok(None)) {
                Ok(Look::Ready(bytes)) => {
                    found.push(number);
                    sizes.push(bytes);
                }
                Ok(Look::Writing(index, epoch)) => result(number, Ok(Look::Writing(index, epoch))),
                Ok(Look::Missing) => result(number, Ok(Look::Missing)),
                Err(error) => result(number, Err(error)),
            }
        }
        if found.is_empty() {
            return Ok(0);
        }
        let (name, lent) = self.staging.lend(&sizes, Instant::now())?;
        let Some(memory) = self.staging.memory() else {
            crate::bail!(NMC_ERR_INTERNAL, "memory was lent that is not there");
        };
        if let Ok(Some(reader)) = self.store.disk_reader()
            && let Some(reader) = (&*reader as &dyn Any).downcast_ref::<Reader>()
        {
            reader.fix(&memory);
        }
        let mut some = false;
        let read = sys::read_to(
            &self.store,
            (&memory, &lent),
            |at| keys[found[at]],
            |at, look| {
                some |= matches!(look, Ok(Look::Ready(_)));
                let look = look.map(|look| match look {
                    Look::Ready(_) => Look::Ready(lent[at]),
                    Look::Writing(index, epoch) => Look::Writing(index, epoch),
                    Look::Missing => Look::Missing,
                });
                // Another value has the key by now.
                let moved = |error: Error| match error.status {
                    NMC_ERR_INVALID_ARG => Error::new(NMC_ERR_BUSY, "the value was replaced while it was read"),
                    _ => error,
                };
                result(found[at], look.map_err(moved));
            },
        );
        read.inspect_err(|_| _ = self.staging.give_back(name, Instant::now()))?;
        if !some {
            self.staging.give_back(name, Instant::now())?;
            return Ok(0);
        }
        self.staging.start(name, time, Instant::now());
        Ok(name)
    }

    /// Gives a loan back; `NMC_ERR_STALE` if it had ended.
    pub fn release(&self, loan: u64) -> Result<()> {
        self.staging.give_back(loan, Instant::now())
    }

    /// Takes values from the disk, as the config says which, until its files take `keep` bytes at most; gives how many went.
    /// What is in memory as well stays there.
    pub fn evict(&self, keep: u64) -> Result<u64> {
        match &self.running {
            Some(running) => running.owner().evict(keep),
            None => self.wait(CALL_EVICT, [keep, 0], &[]),
        }
    }

    /// The oldest of what happened to values on disk that this process has not taken, if the owner was asked to keep that: UNSUPPORTED
    /// elsewhere if it was not.
    pub fn next_event(&self) -> Result<Option<Event>> {
        if self.running.as_ref().is_some_and(|running| !running.owner().keeps_events()) {
            return Ok(None);
        }
        match self.store.next_event() {
            // Another handle of the owner's process is told the same.
            Err(error) if error.status == NMC_ERR_UNSUPPORTED && self.store.host().is_some() => Ok(None),
            next => next,
        }
    }

    /// Ends or begins offloading. What is being written is written.
    pub fn pause(&self, paused: bool) -> Result<()> {
        match &self.running {
            Some(running) => running.owner().pause(paused),
            None => _ = self.store.call_disk(CALL_PAUSE, [paused.into(), 0], &[])?,
        }
        Ok(())
    }

    /// Numbers.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = match &self.running {
            Some(running) => running.owner().stats()?,
            None => {
                let mut words = Stats::default().words();
                for (at, three) in (0u64..).zip(words.chunks_mut(3)) {
                    let found = self.store.call_disk(CALL_STATS, [at, 0], &[])?;
                    three.copy_from_slice(&found[..three.len()]);
                }
                Stats::from_words(words)
            }
        };
        (stats.read_objects, stats.read_bytes) = self.store.disk_reads();
        Ok(stats)
    }

    /// Reads every value on disk and compares its checksums; those that are wrong end. `progress` is told how many of how many
    /// were read, and ends it by false. If some could not be read it tells why, too. This process reads them, whoever owns the tier.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<(Verified, Option<Error>)> {
        match &self.running {
            Some(running) => running.owner().verify(progress),
            None => {
                let look = |entry: &DiskEntry| {
                    self.wait(CALL_LOOK, [entry.index.into(), entry.word], &[]).map(|ended| ended != 0)
                };
                elsewhere::verify(&self.store, self.stats()?.objects, &look, progress)
            }
        }
    }

    /// Every value on disk, of all namespaces, in no order that means anything; `each` ends it by false. What comes and goes
    /// meanwhile may be in it or not.
    pub fn scan(&self, each: &mut dyn FnMut(&Scanned<'_>) -> bool) -> Result<()> {
        match &self.running {
            Some(running) => running.owner().scan(each),
            None => elsewhere::scan(&self.store, each),
        }
    }
}
