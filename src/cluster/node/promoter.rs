//! Brings values from the disk into memory for others, on threads of its own: while one comes, the agent serves what is in memory. What has
//! come is held until the agent asks for it. Those that are asked for together are read together. While memory takes nothing they come to a
//! bounded room beside it, as many at the same time as there are threads.

use super::staged::{self, Room, Value};
use super::storage::Wake;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE, NMC_ERR_PEER_LOST, NMC_ERR_TOO_SMALL, NMC_ERR_UNAVAILABLE,
    nmc_status_t,
};
use crate::cluster::net::ByNumber;
use crate::store::Store;
use crate::sync::service_thread;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Values that are read together.
const TOGETHER: usize = 16;
/// Threads: one of them at a time brings values into memory, while the others read beside it.
const THREADS: usize = 4;

/// What memory says that takes nothing: all is held or retained, the value is too large for it or for the quota of its namespace, there is no
/// header or no room for the key, or it has no heap.
const NO_ROOM: [nmc_status_t; 4] = [NMC_ERR_BUSY, NMC_ERR_NO_SPACE, NMC_ERR_LIMIT, NMC_ERR_PEER_LOST];

/// A value, or none if it is not there any more.
pub type Came = Result<Option<Value>>;

/// A value that is to come.
struct Job {
    number: u64,
    /// A handle of its namespace.
    store: Store,
    key: Vec<u8>,
}

/// How values come. A test has another way.
#[derive(Clone, Copy)]
struct Ways {
    /// Into memory.
    hold: fn(&Job) -> Came,
    /// Beside it, if that takes nothing.
    beside: fn(&Job, &Arc<Room>) -> Came,
}

impl Default for Ways {
    fn default() -> Self {
        Self { hold: Job::hold, beside: Job::beside }
    }
}

impl Job {
    /// Brings its value into memory.
    fn hold(&self) -> Came {
        // Nothing goes for it that only memory has: nobody of the store has asked for it.
        Ok(self.store.pin_key(&self.key, true)?.map(|(pin, location)| Value::Held(pin, location)))
    }

    /// Reads its value into memory beside the store's.
    fn beside(&self, room: &Arc<Room>) -> Came {
        let never = match staged::read(&self.store, &self.key, room) {
            Err(never) if never.status == NMC_ERR_TOO_SMALL => never,
            read => return read,
        };
        // What never fits beside memory takes its room there like a put.
        let held = self.store.pin_key(&self.key, false).map_err(|error| {
            let full = NO_ROOM.contains(&error.status);
            if full { Error { status: NMC_ERR_BUSY, ..never } } else { error }
        });
        Ok(held?.map(|(pin, location)| Value::Held(pin, location)))
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Those of them that memory takes nothing of, and that nobody reads yet.
    beside: VecDeque<Job>,
    /// Those that were taken from the first list and have not come, and whether they are wanted.
    reading: Vec<(u64, bool)>,
    /// Somebody brings values into memory.
    bringing: bool,
    came: ByNumber<u64, Came>,
    next: u64,
    wake: Option<Wake>,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    room: Arc<Room>,
    ways: Ways,
}

/// What a thread does.
struct Work {
    jobs: Vec<Job>,
    /// What came of them; nothing of those that memory takes nothing of.
    read: Vec<Option<Came>>,
    /// They are brought into memory.
    bringing: bool,
    /// Those before were: next is one that memory takes nothing of, if there is one.
    has_brought: bool,
}

impl Work {
    fn new() -> Result<Self> {
        let (jobs, read) = (memory::with_capacity(TOGETHER)?, memory::with_capacity(TOGETHER)?);
        Ok(Self { jobs, read, bringing: false, has_brought: false })
    }
}

/// See the module.
#[derive(Default)]
pub struct Promoter {
    shared: Arc<Shared>,
    /// From the first value on.
    threads: Vec<JoinHandle<()>>,
}

impl Promoter {
    /// One that has so many bytes beside memory.
    #[must_use]
    pub fn with(room: Room) -> Self {
        Self { shared: Arc::new(Shared { room: Arc::new(room), ..Shared::default() }), threads: Vec::new() }
    }

    /// Bytes that are in use beside memory.
    #[must_use]
    pub fn staged(&self) -> u64 {
        self.shared.room.used()
    }

    /// What is called from now on when a value has come.
    pub fn wake_with(&mut self, wake: Wake) {
        self.shared.state.lock().wake = Some(wake);
    }

    /// Begins to bring the value of a key; gives its number.
    pub fn bring(&mut self, store: Store, key: &[u8]) -> Result<u64> {
        let key = memory::copy(key)?;
        self.start(THREADS)?;
        let mut state = self.shared.state.lock();
        memory::reserve_queue(&mut state.jobs, 1)?;
        // Whatever comes has room when it comes, and on its way.
        let more = state.jobs.len() + 1;
        let all = more + state.reading.len();
        memory::reserve(&mut state.reading, more)?;
        memory::reserve_queue(&mut state.beside, all)?;
        memory::reserve_map(&mut state.came, all)?;
        state.next += 1;
        let number = state.next;
        state.jobs.push_back(Job { number, store, key });
        self.shared.work.notify_one();
        Ok(number)
    }

    /// Begins as many threads; it is no error if there is but one.
    fn start(&mut self, threads: usize) -> Result<()> {
        if !self.threads.is_empty() {
            return Ok(());
        }
        memory::reserve(&mut self.threads, threads)?;
        for _ in 0..threads {
            let (shared, work) = (Arc::clone(&self.shared), Work::new());
            let started = work.and_then(|mut work| {
                service_thread::spawn(c"nmc-promote", None, move || {
                    let body = || shared.run(&mut work);
                    service_thread::persist("a thread that reads from disk for others", body);
                })
            });
            match started {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// What came under a number; `None` if it is on its way.
    pub fn came(&mut self, number: u64) -> Option<Came> {
        self.shared.state.lock().came.remove(&number)
    }

    /// Nobody wants it any more. Gives it if it has come.
    pub fn forget(&mut self, number: u64) -> Option<Came> {
        let mut state = self.shared.state.lock();
        state.jobs.retain(|job| job.number != number);
        let waiting = state.beside.len();
        state.beside.retain(|job| job.number != number);
        if state.beside.len() < waiting {
            state.has_come(number);
        } else if let Some((_, wanted)) = state.reading.iter_mut().find(|(of, _)| *of == number) {
            *wanted = false;
        }
        state.came.remove(&number)
    }
}

impl Drop for Promoter {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.closing = true;
            state.jobs.clear();
            state.beside.clear();
        }
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, work: &mut Work) {
        let mut state = self.state.lock();
        self.end(&mut state, work);
        while !state.closing {
            state.take(work);
            if work.jobs.is_empty() {
                self.work.wait(&mut state);
                continue;
            }
            MutexGuard::unlocked(&mut state, || self.read(work));
            self.end(&mut state, work);
        }
    }

    fn read(&self, work: &mut Work) {
        let Work { jobs, read, bringing, .. } = work;
        if !*bringing {
            read.extend(jobs.iter().map(|job| Some((self.ways.beside)(job, &self.room))));
            return;
        }
        let mut keys: [&[u8]; TOGETHER] = [&[]; TOGETHER];
        keys.iter_mut().zip(jobs.iter()).for_each(|(key, job)| *key = &job.key);
        if let [first, _, ..] = &jobs[..] {
            // How that went is seen below.
            first.store.promote_gently(&keys[..jobs.len()], first.store.rank(), |_, _| {});
        }
        read.extend(jobs.iter().map(|job| match (self.ways.hold)(job) {
            Err(error) if NO_ROOM.contains(&error.status) => None,
            came => Some(came),
        }));
    }

    /// What was read has come, or is to be read in another way. Those that a bug has left unread have failed.
    fn end(&self, state: &mut MutexGuard<'_, State>, work: &mut Work) {
        if std::mem::take(&mut work.bringing) {
            state.bringing = false;
        }
        let (mut read, mut any) = (work.read.drain(..), false);
        for job in work.jobs.drain(..) {
            let failed = || Some(Err(Error::new(NMC_ERR_UNAVAILABLE, "the value was not read: a bug in nanomc")));
            let came = read.next().unwrap_or_else(failed);
            let wanted = state.is_wanted(job.number);
            let came = match came {
                None if wanted => {
                    state.beside.push_back(job);
                    continue;
                }
                None => Ok(None),
                Some(came) => came,
            };
            state.has_come(job.number);
            any = true;
            match came {
                Ok(Some(Value::Held(pin, _))) if !wanted => _ = job.store.unpin(pin),
                came if wanted => _ = state.came.insert(job.number, came),
                _ => {}
            }
        }
        if !state.beside.is_empty() || !state.jobs.is_empty() {
            self.work.notify_all();
        }
        if any && let Some(wake) = state.wake.clone() {
            MutexGuard::unlocked(state, || wake());
        }
    }
}

impl State {
    /// Takes what is read next: those of one namespace, in the order in which they were asked for, unless somebody brings others into memory; or one
    /// that memory takes nothing of. Neither waits for all of the other kind.
    fn take(&mut self, work: &mut Work) {
        let had_turn = std::mem::take(&mut work.has_brought) && !self.beside.is_empty();
        let first = self.jobs.front().filter(|_| !self.bringing && !had_turn);
        let Some(space) = first.map(|job| job.store.namespace_id()) else {
            work.jobs.extend(self.beside.pop_front());
            return;
        };
        (self.bringing, work.bringing, work.has_brought) = (true, true, true);
        let next = |job: &&Job| job.store.namespace_id() == space;
        let count = self.jobs.iter().take(TOGETHER).take_while(next).count();
        for job in self.jobs.drain(..count) {
            self.reading.push((job.number, true));
            work.jobs.push(job);
        }
    }

    fn is_wanted(&self, number: u64) -> bool {
        !self.closing && self.reading.iter().all(|(of, wanted)| *of != number || *wanted)
    }

    fn has_come(&mut self, number: u64) {
        self.reading.retain(|(of, _)| *of != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_store::{config, world};
    use std::time::Duration;

    /// Those that are beside memory now, and the most there were.
    static INSIDE: Mutex<(usize, usize)> = Mutex::new((0, 0));
    static CHANGED: Condvar = Condvar::new();

    fn full(_: &Job) -> Came {
        Err(Error::new(NMC_ERR_BUSY, "all is held"))
    }

    /// Waits for another one, for as long as that may take, or for a moment if there can be none.
    fn meet<const MS: u64>(job: &Job, _: &Arc<Room>) -> Came {
        let mut inside = INSIDE.lock();
        inside.0 += 1;
        inside.1 = inside.1.max(inside.0);
        CHANGED.notify_all();
        CHANGED.wait_while_for(&mut inside, |inside| inside.1 < 2, Duration::from_millis(MS));
        inside.0 -= 1;
        Err(Error::new(NMC_ERR_BUSY, String::from_utf8_lossy(&job.key)))
    }

    /// The most that were read at the same time.
    fn most(threads: usize, beside: fn(&Job, &Arc<Room>) -> Came) -> usize {
        *INSIDE.lock() = (0, 0);
        let store = Store::embedded(&world(), &config(false)).unwrap();
        let ways = Ways { hold: full, beside };
        let mut promoter = Promoter { shared: Arc::new(Shared { ways, ..Shared::default() }), threads: Vec::new() };
        promoter.start(threads).unwrap();
        let keys: Vec<String> = (0..TOGETHER + 3).map(|n| format!("k{n}")).collect();
        let bring = |key: &String| promoter.bring(store.in_namespace(0), key.as_bytes()).unwrap();
        let mut numbers: Vec<u64> = keys.iter().map(bring).collect();
        // Whoever does not wait for one gets nothing of it.
        let forgotten = numbers.pop().unwrap();
        assert!(promoter.forget(forgotten).is_none_or(|came| came.is_err()));
        for (number, key) in numbers.into_iter().zip(&keys) {
            let came = loop {
                match promoter.came(number) {
                    Some(came) => break came,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            assert_eq!(came.err().map(|error| error.message).as_ref(), Some(key));
        }
        let state = Arc::clone(&promoter.shared);
        drop(promoter);
        let state = state.state.lock();
        assert!(state.came.is_empty() && state.beside.is_empty() && state.jobs.is_empty() && !state.bringing);
        INSIDE.lock().1
    }

    #[test]
    fn what_memory_takes_nothing_of_is_read_at_the_same_time() {
        assert!(most(THREADS, meet::<60_000>) > 1);
        assert_eq!(most(1, meet::<1>), 1, "control: a thread alone");
    }
}
