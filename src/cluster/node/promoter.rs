//! Brings values from the disk into memory for others, on a thread of its own: while one comes, the agent serves what is in memory. What has
//! come is held until the agent asks for it. Those that are asked for together are read together. While memory takes nothing they come to a
//! bounded room beside it.

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

impl Job {
    /// Brings its value into memory, or beside it.
    fn read(&self, room: &Arc<Room>) -> Came {
        // Nothing goes for it that only memory has: nobody of the store has asked for it.
        let held = match self.store.pin_key(&self.key, true) {
            Err(error) if NO_ROOM.contains(&error.status) => match staged::read(&self.store, &self.key, room) {
                // But for what never fits beside memory.
                Err(never) if never.status == NMC_ERR_TOO_SMALL => {
                    self.store.pin_key(&self.key, false).map_err(|error| {
                        let full = NO_ROOM.contains(&error.status);
                        if full { Error { status: NMC_ERR_BUSY, ..never } } else { error }
                    })
                }
                read => return read,
            },
            held => held,
        };
        Ok(held?.map(|(pin, location)| Value::Held(pin, location)))
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Those that are being read, and whether they are wanted.
    reading: Vec<(u64, bool)>,
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
}

/// See the module.
#[derive(Default)]
pub struct Promoter {
    shared: Arc<Shared>,
    /// From the first value on.
    thread: Option<JoinHandle<()>>,
}

impl Promoter {
    /// One that has so many bytes beside memory.
    #[must_use]
    pub fn with(room: Room) -> Self {
        Self { shared: Arc::new(Shared { room: Arc::new(room), ..Shared::default() }), thread: None }
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
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let (mut jobs, mut read) = (memory::with_capacity(TOGETHER)?, memory::with_capacity(TOGETHER)?);
            memory::reserve_to(&mut self.shared.state.lock().reading, TOGETHER)?;
            self.thread = Some(service_thread::spawn(c"nmc-promote", None, move || {
                let body = || shared.run(&mut jobs, &mut read);
                service_thread::persist("the thread that reads from disk for others", body);
            })?);
        }
        let mut state = self.shared.state.lock();
        memory::reserve_queue(&mut state.jobs, 1)?;
        // Whatever comes has room when it comes.
        let all = state.jobs.len() + state.reading.len() + 1;
        memory::reserve_map(&mut state.came, all)?;
        state.next += 1;
        let number = state.next;
        state.jobs.push_back(Job { number, store, key });
        self.shared.work.notify_one();
        Ok(number)
    }

    /// What came under a number; `None` if it is on its way.
    pub fn came(&mut self, number: u64) -> Option<Came> {
        self.shared.state.lock().came.remove(&number)
    }

    /// Nobody wants it any more. Gives it if it has come.
    pub fn forget(&mut self, number: u64) -> Option<Came> {
        let mut state = self.shared.state.lock();
        state.jobs.retain(|job| job.number != number);
        if let Some((_, wanted)) = state.reading.iter_mut().find(|(of, _)| *of == number) {
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
        }
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, jobs: &mut Vec<Job>, read: &mut Vec<Came>) {
        let mut state = self.state.lock();
        self.end(&mut state, jobs, read);
        while !state.closing {
            state.take(jobs);
            if jobs.is_empty() {
                self.work.wait(&mut state);
                continue;
            }
            MutexGuard::unlocked(&mut state, || {
                let mut keys: [&[u8]; TOGETHER] = [&[]; TOGETHER];
                keys.iter_mut().zip(jobs.iter()).for_each(|(key, job)| *key = &job.key);
                if let [first, _, ..] = &jobs[..] {
                    // How that went is seen below.
                    first.store.promote_gently(&keys[..jobs.len()], first.store.rank(), |_, _| {});
                }
                read.extend(jobs.iter().map(|job| job.read(&self.room)));
            });
            self.end(&mut state, jobs, read);
        }
    }

    /// What was read has come. Those that a bug has left unread have failed.
    fn end(&self, state: &mut MutexGuard<'_, State>, jobs: &mut Vec<Job>, read: &mut Vec<Came>) {
        let mut read = read.drain(..);
        for job in jobs.drain(..) {
            let failed = || Err(Error::new(NMC_ERR_UNAVAILABLE, "the value was not read: a bug in nanomc"));
            let came = read.next().unwrap_or_else(failed);
            let unwanted =
                state.closing || state.reading.iter().any(|(number, wanted)| *number == job.number && !wanted);
            match came {
                Ok(Some(Value::Held(pin, _))) if unwanted => _ = job.store.unpin(pin),
                _ if unwanted => {}
                came => _ = state.came.insert(job.number, came),
            }
        }
        if state.reading.is_empty() {
            return;
        }
        state.reading.clear();
        if let Some(wake) = state.wake.clone() {
            MutexGuard::unlocked(state, || wake());
        }
    }
}

impl State {
    /// Takes those that are read next: of one namespace, in the order in which they were asked for.
    fn take(&mut self, jobs: &mut Vec<Job>) {
        let Some(space) = self.jobs.front().map(|job| job.store.namespace_id()) else { return };
        let next = |job: &&Job| job.store.namespace_id() == space;
        let count = self.jobs.iter().take(TOGETHER).take_while(next).count();
        for job in self.jobs.drain(..count) {
            self.reading.push((job.number, true));
            jobs.push(job);
        }
    }
}
