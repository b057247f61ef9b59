//! What waits for the program: keys that it watches, what became of them, and a descriptor that is readable while there is something.

use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::nmc_status_t;
use crate::rpc::Event;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Weak;
use std::thread::JoinHandle;

/// Most completions that wait for the program: a megabyte.
pub const MAX_COMPLETIONS: usize = 1 << 16;

/// What became of a key that was watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What the program called it.
    pub token: u64,
    /// `NMC_OK` if the object is readable.
    pub status: nmc_status_t,
    /// Completions before this one that nobody took in time, and which are gone.
    pub lost: u32,
}

/// Completions that wait to be taken, `MOST` of them at the most: the oldest make room for new ones.
#[derive(Default)]
pub(super) struct Queue<const MOST: usize> {
    pub(super) waiting: VecDeque<(u64, nmc_status_t)>,
    /// How many are gone that came just before the first one that waits.
    pub(super) lost: u32,
}

impl<const MOST: usize> Queue<MOST> {
    /// Makes room for `more`, as far as they can wait.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let room = MOST.saturating_sub(self.waiting.len());
        memory::reserve_queue(&mut self.waiting, more.min(room))
    }

    pub(super) fn push(&mut self, token: u64, status: nmc_status_t) {
        if self.waiting.len() >= MOST && self.waiting.pop_front().is_some() {
            self.lost = self.lost.saturating_add(1);
        }
        self.waiting.push_back((token, status));
    }

    /// The oldest one, which tells of those before it that are gone.
    pub(super) fn pop(&mut self) -> Option<Completion> {
        let (token, status) = self.waiting.pop_front()?;
        Some(Completion { token, status, lost: std::mem::take(&mut self.lost) })
    }
}

pub(super) struct Watched {
    pub(super) key: Vec<u8>,
    pub(super) namespace: u32,
    pub(super) token: u64,
    pub(super) appear: bool,
    pub(super) seen: Option<(u32, u64)>,
    /// How often the client had been cancelled when it began: only later cancels end it.
    pub(super) born: u64,
}

#[derive(Default)]
pub(super) struct State {
    /// Handles of the program. With the last of them all watches end.
    pub(super) handles: u64,
    /// Which thread looks: one that was stopped must not go on for whoever comes next.
    pub(super) turn: u64,
    /// How often the keys were looked at.
    pub(super) looks: u32,
    pub(super) watched: Vec<Watched>,
    pub(super) done: Queue<MAX_COMPLETIONS>,
    /// Something else waits for the program, of which the descriptor tells, too.
    pub(super) beside: bool,
    pub(super) running: bool,
    pub(super) thread: Option<JoinHandle<()>>,
}

/// The keys that a client watches.
pub struct Watches {
    pub(super) state: Mutex<State>,
    pub(super) event: Event,
}

impl Watches {
    /// Nothing is watched.
    pub fn new() -> Result<Self> {
        Ok(Self { state: Mutex::default(), event: Event::new()? })
    }

    /// The program has one more handle.
    pub(super) fn enter(&self) {
        self.state.lock().handles += 1;
    }

    /// The program has one handle less. With the last one all watches end, and the thread, which may hold the client for a
    /// moment: afterwards it does not.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.handles = state.handles.saturating_sub(1);
        if state.handles > 0 {
            return;
        }
        state.turn += 1;
        state.running = false;
        state.watched.clear();
        let thread = state.thread.take();
        drop(state);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Makes the descriptor of a store's completions readable for something else.
#[derive(Clone, Default)]
pub struct Announcer(pub(super) Weak<Watches>);

impl Announcer {
    /// For a process in which no program waits.
    #[must_use]
    pub fn to_nobody() -> Self {
        Self(Weak::new())
    }

    /// Something waits for the program, or nothing does any more.
    pub fn announce(&self, waits: bool) {
        let Some(watches) = self.0.upgrade() else { return };
        let mut state = watches.state.lock();
        state.beside = waits;
        if waits {
            watches.event.signal();
        } else if state.done.waiting.is_empty() {
            watches.event.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::status::NMC_OK;

    fn tokens<const MOST: usize>(queue: &mut Queue<MOST>) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| queue.pop()).map(|done| (done.token, done.lost)).collect()
    }

    #[test]
    fn the_newest_completions_are_kept_and_each_gap_is_told_once() {
        let mut queue = Queue::<4>::default();
        (0..4).for_each(|token| queue.push(token, NMC_OK));
        assert_eq!(tokens(&mut queue), [(0, 0), (1, 0), (2, 0), (3, 0)], "nothing is lost before the queue is full");
        (4..11).for_each(|token| queue.push(token, NMC_OK));
        assert_eq!(queue.pop(), Some(Completion { token: 7, status: NMC_OK, lost: 3 }));
        // Another gap, before what waits now.
        (11..13).for_each(|token| queue.push(token, NMC_OK));
        assert_eq!(tokens(&mut queue), [(9, 1), (10, 0), (11, 0), (12, 0)]);
        queue.push(13, NMC_OK);
        assert_eq!(tokens(&mut queue), [(13, 0)]);
        assert!(queue.waiting.capacity() <= 8, "the queue does not grow");
    }

    /// The control: without an end, nothing is lost and all of it waits.
    #[test]
    fn a_queue_without_a_limit_grows() {
        let mut queue = Queue::<{ usize::MAX }>::default();
        (0..11).for_each(|token| queue.push(token, NMC_OK));
        assert_eq!((queue.waiting.len(), queue.lost), (11, 0));
    }
}
