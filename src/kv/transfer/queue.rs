//! Jobs in order, and the threads that do them: a job after the other, its parts side by side. A job holds its blocks from
//! when it is asked for until it is over, however that comes about.

use super::exchange::Exchange;
use super::hand::Hand;
use super::job::{Come, Job, Progress, Ticket, Work, cancelled};
use super::steps::Step;
use super::{After, Wait};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_NOT_FOUND};
use crate::kv::block::NONE;
use crate::kv::cache::Item;
use crate::sync::panics;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Jobs that can wait or be unasked-for at once.
const MOST_TICKETS: usize = 65_536;

/// The jobs of a link, and their tickets.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    rings: Condvar,
    tickets: Mutex<HashMap<u64, Arc<Ticket>>>,
    last: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Arc<Job>>,
    /// No more are taken.
    closed: bool,
}

impl Queue {
    /// Cancels all jobs; no more are taken. Whoever waits for one is told soon.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.tickets.lock().values().for_each(|ticket| ticket.cancel());
        self.rings.notify_all();
    }

    /// A number for a job, apart from those of pins.
    pub fn number(&self) -> Result<u64> {
        if self.tickets.lock().len() >= MOST_TICKETS {
            crate::bail!(NMC_ERR_LIMIT, "{MOST_TICKETS} transfers were never asked for again; poll them");
        }
        Ok(1 << 63 | (self.last.fetch_add(1, Ordering::Relaxed) + 1))
    }

    pub fn ticket(&self, number: u64) -> Result<Arc<Ticket>> {
        let found = self.tickets.lock().get(&number).cloned();
        found.ok_or_else(|| {
            Error::new(NMC_ERR_NOT_FOUND, format!("there is no transfer {number}; was its end told before?"))
        })
    }

    /// The first job that has parts left, on which the caller works now; `None` when it is time to end.
    fn next_job(&self) -> Option<Arc<Job>> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs.front().cloned() {
                let mut state = job.state.lock();
                state.active += 1;
                // A job without parts is taken as well, so that it ends.
                if state.failed.is_some() || state.next + 1 >= state.done.len() {
                    // Nothing, or the last part, is left: others look for the next job.
                    waiting.jobs.pop_front();
                }
                drop(state);
                return Some(job);
            }
            if waiting.closed {
                return None;
            }
            self.rings.wait(&mut waiting);
        }
    }
}

impl Exchange {
    /// Queues a job for blocks that are held under its number. If it cannot be, they are released.
    pub fn enqueue(&self, number: u64, items: Vec<Item>, wait: Wait, work: Work) -> Result<u64> {
        let waits = work.waits();
        let queued = self.put(number, items, wait, work);
        if queued.is_err() {
            if let Some((id, uid)) = waits {
                self.cache.land(id, uid, number, 0)?;
                self.cache.acknowledge(id, uid, number);
            }
            self.cache.release_hold(number)?;
        }
        queued
    }

    /// The same, and nothing else. After the end a job is over at once: no thread may be left for it, and somebody may wait for
    /// it.
    fn put(&self, number: u64, items: Vec<Item>, wait: Wait, work: Work) -> Result<u64> {
        self.steps.reach(number, Step::Held);
        let blocks = items.iter().filter(|item| item.own_group == NONE).count();
        let ticket = Arc::new(Ticket::new(work.waits(), u32::try_from(blocks).unwrap_or(u32::MAX)));
        let (ready, state) = (OnceLock::new(), Mutex::default());
        let by_layer = matches!(work, Work::In { by_layer: true, .. });
        let come = memory::collect(items.iter().filter(|_| by_layer).map(|_| Mutex::new(Come::Nothing)))?;
        let job = Job { ticket: Arc::clone(&ticket), number, items, wait, work, ready, state, come };
        job.state.lock().done = memory::vec_of(job.parts(self.codec.layers()), false)?;
        let mut waiting = self.queue.waiting.lock();
        memory::reserve_queue(&mut waiting.jobs, 1)?;
        {
            let mut tickets = self.queue.tickets.lock();
            memory::reserve_map(&mut tickets, 1)?;
            tickets.insert(number, ticket);
        }
        if waiting.closed {
            drop(waiting);
            job.state.lock().failed = Some((0, cancelled()));
            self.finish(&job);
        } else {
            waiting.jobs.push_back(Arc::new(job));
            drop(waiting);
            self.queue.rings.notify_all();
        }
        self.steps.reach(number, Step::Queued);
        Ok(number)
    }

    /// Sends the published blocks of the first `tokens` tokens of a sequence to the store; those that it has are left out.
    pub fn offload(&self, id: u64, tokens: u32, after: After) -> Result<u64> {
        let wait = self.wait_of(after)?;
        let number = self.queue.number()?;
        let items = self.cache.hold_published(id, tokens, number)?;
        self.enqueue(number, items, wait, Work::Out)
    }

    /// Sends the published blocks of a sequence to the store, and waits until they are there.
    pub fn send_away(&self, id: u64) -> Result<()> {
        let number = {
            let after = self.before_moves.lock();
            self.offload(id, u32::MAX, *after)?
        };
        // As long as it takes: every part ends, and closing cancels them.
        loop {
            if let (_, Some(over)) = self.wait_for(number, Deadline::after(Duration::from_secs(60)))? {
                return over;
            }
        }
    }

    pub fn poll(&self, number: u64) -> Result<(Progress, Option<Result<()>>)> {
        let ticket = self.queue.ticket(number)?;
        let over = ticket.outcome();
        if over.is_some() {
            self.queue.tickets.lock().remove(&number);
            if let Some((id, uid)) = ticket.waits {
                self.cache.acknowledge(id, uid, number);
            }
        }
        Ok((ticket.progress(), over))
    }

    pub fn wait_for(&self, number: u64, deadline: Deadline) -> Result<(Progress, Option<Result<()>>)> {
        self.queue.ticket(number)?.wait(deadline);
        self.poll(number)
    }

    /// Ends a job, however it went.
    fn finish(&self, job: &Job) {
        self.steps.reach(job.number, Step::Ending);
        let failed = job.state.lock().failed.take();
        let mut done = failed.map_or(Ok(()), |(_, error)| Err(error));
        if let Work::In { id, uid, .. } = job.work {
            // Without all that groups with blocks of their own need, a sequence cannot begin anywhere.
            let useless = done.is_err() && job.of_own_groups() > 0;
            let good = if useless { 0 } else { job.ticket.blocks_done.load(Ordering::Acquire) };
            job.ticket.blocks_done.store(good, Ordering::Release);
            let landed = self.cache.land(id, uid, job.number, good);
            done = done.and(landed);
        }
        self.steps.reach(job.number, Step::Landed);
        done = done.and(self.cache.release_hold(job.number));
        self.steps.reach(job.number, Step::Released);
        job.ticket.finish(done);
    }

    pub fn work(&self) {
        let (mut slices, mut hand) = (Vec::new(), Hand::default());
        while let Some(job) = self.queue.next_job() {
            let parts = job.parts(self.codec.layers());
            while let Some(part) = job.take(parts) {
                // What is left of a panic are parts that nothing came of.
                let _caught = panics::catch(|| self.parts(&job, part, &mut hand, &mut slices));
                for (part, done) in hand.empty() {
                    let done = done.unwrap_or_else(|| {
                        Err(Error::new(NMC_ERR_INTERNAL, "a bug in a transfer was caught, please report it"))
                    });
                    job.put(part, done, self.codec.layers());
                    self.steps.reach(job.number, Step::Counted(part));
                }
            }
            let mut waiting = self.queue.waiting.lock();
            waiting.jobs.retain(|other| !Arc::ptr_eq(other, &job));
            let mut state = job.state.lock();
            state.active -= 1;
            let last = state.active == 0;
            drop((state, waiting));
            if last {
                let caught = panics::catch(|| self.finish(&job));
                if caught.is_err() {
                    // Whatever it was, nobody is to wait for it, and nothing stays held.
                    if let Work::In { id, uid, .. } = job.work {
                        let _landed = self.cache.land(id, uid, job.number, 0);
                    }
                    let _released = self.cache.release_hold(job.number);
                    let bug =
                        Error::new(NMC_ERR_INTERNAL, "a bug at the end of a transfer was caught, please report it");
                    job.ticket.finish(Err(bug));
                }
            }
        }
    }
}
