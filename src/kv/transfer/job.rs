//! A transfer: work in parts that several threads do side by side ([`Job`]), and what the program can ask about it
//! ([`Ticket`]). A part is an item, or a layer of a block; layer after layer.

use super::after::Wait;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_CANCELLED;
use crate::kv::cache::Item;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Blocks of the job.
    pub blocks: u32,
    /// Leading blocks that are done.
    pub blocks_done: u32,
    /// Leading layers that are done in all blocks.
    pub layers_done: u32,
}

/// Which way blocks go.
pub enum Work {
    Out,
    In { id: u64, uid: u64, by_layer: bool },
}

impl Work {
    /// The sequence that waits for it, with its id, if one does.
    pub const fn waits(&self) -> Option<(u64, u64)> {
        match self {
            Self::Out => None,
            Self::In { id, uid, .. } => Some((*id, *uid)),
        }
    }
}

pub struct Job {
    pub ticket: Arc<Ticket>,
    pub number: u64,
    /// Those of groups with blocks of their own first, then the blocks in order.
    pub items: Vec<Item>,
    pub wait: Wait,
    pub work: Work,
    /// What it waits for is over, or failed.
    pub ready: OnceLock<Result<()>>,
    pub state: Mutex<State>,
    /// What has come of each item, if they come layer by layer.
    pub come: Vec<Mutex<Come>>,
}

/// What has come of a block that comes layer by layer: all layers must be of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Come {
    Nothing,
    /// Layers of the value that came from this put.
    Of(u64),
    /// All of them at once.
    Whole,
}

/// Which parts of a job are taken and done.
#[derive(Default)]
pub struct State {
    /// The first part that nobody has taken.
    pub next: usize,
    /// Threads that work on it.
    pub active: usize,
    /// Parts that are done.
    pub done: Vec<bool>,
    /// Leading parts that are done.
    leading: usize,
    /// The failure of the earliest part that failed.
    pub failed: Option<(usize, Error)>,
}

impl Job {
    fn by_layer(&self) -> bool {
        matches!(self.work, Work::In { by_layer: true, .. })
    }

    pub fn parts(&self, layers: u32) -> usize {
        self.items.len() * if self.by_layer() { layers as usize } else { 1 }
    }

    /// How many of the items are of groups with blocks of their own.
    pub fn of_own_groups(&self) -> usize {
        self.items.len() - self.ticket.blocks as usize
    }

    /// A part to do; none are left after a failure.
    pub fn take(&self, parts: usize) -> Option<usize> {
        let mut state = self.state.lock();
        if state.failed.is_some() || state.next >= parts {
            return None;
        }
        state.next += 1;
        Some(state.next - 1)
    }

    /// The part that would be taken next, if it is the first of its item.
    pub fn next_item(&self) -> Option<usize> {
        let state = self.state.lock();
        (state.failed.is_none() && state.next < self.items.len()).then_some(state.next)
    }

    /// Takes this part, if it is the next one still.
    pub fn take_if_next(&self, part: usize) -> bool {
        let mut state = self.state.lock();
        let is_next = state.failed.is_none() && state.next == part;
        state.next += usize::from(is_next);
        is_next
    }

    /// A part is done, or failed.
    pub fn put(&self, part: usize, done: Result<()>, layers: u32) {
        let mut state = self.state.lock();
        match done {
            Ok(()) => {
                state.done[part] = true;
                while state.done.get(state.leading) == Some(&true) {
                    state.leading += 1;
                }
            }
            Err(error) if state.failed.as_ref().is_none_or(|(earlier, _)| part < *earlier) => {
                state.failed = Some((part, error));
            }
            Err(_) => {}
        }
        let (whole, count) = (state.leading == state.done.len(), self.items.len() - self.of_own_groups());
        let count_of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (blocks, layers) = match self.by_layer() {
            true => (if whole { count } else { 0 }, count_of(state.leading / count.max(1))),
            false => (state.leading.saturating_sub(self.of_own_groups()), if whole { layers } else { 0 }),
        };
        self.ticket.blocks_done.store(count_of(blocks), Ordering::Release);
        self.ticket.layers_done.store(layers, Ordering::Release);
    }
}

pub struct Ticket {
    /// The sequence that waits for it, with its id, if one does.
    pub waits: Option<(u64, u64)>,
    blocks: u32,
    pub blocks_done: AtomicU32,
    layers_done: AtomicU32,
    cancelled: AtomicBool,
    over: Mutex<Option<Result<()>>>,
    rings: Condvar,
}

impl Ticket {
    pub const fn new(waits: Option<(u64, u64)>, blocks: u32) -> Self {
        Self {
            waits,
            blocks,
            blocks_done: AtomicU32::new(0),
            layers_done: AtomicU32::new(0),
            cancelled: AtomicBool::new(false),
            over: Mutex::new(None),
            rings: Condvar::new(),
        }
    }

    pub fn progress(&self) -> Progress {
        Progress {
            blocks: self.blocks,
            blocks_done: self.blocks_done.load(Ordering::Acquire),
            layers_done: self.layers_done.load(Ordering::Acquire),
        }
    }

    /// Asks the job to end soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Fails if it was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Acquire) {
            return Err(cancelled());
        }
        Ok(())
    }

    /// The outcome, if it is over.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.over.lock().clone()
    }

    /// It is over; whoever waits is told.
    pub fn finish(&self, outcome: Result<()>) {
        *self.over.lock() = Some(outcome);
        self.rings.notify_all();
    }

    /// Waits until it is over, or the deadline.
    pub fn wait(&self, deadline: Deadline) {
        let mut over = self.over.lock();
        while over.is_none() && !deadline.left().is_zero() {
            self.rings.wait_for(&mut over, deadline.left());
        }
    }
}

#[cold]
pub fn cancelled() -> Error {
    Error::new(NMC_ERR_CANCELLED, "the transfer was cancelled")
}
