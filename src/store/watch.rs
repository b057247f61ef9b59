//! Readiness as an event: keys that the program watches are looked at by a thread that runs only while there are any;
//! what became of them is queued, and a descriptor becomes readable.

use super::Store;
use super::client::Client;
use super::read::Look;
use super::wait::End;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_OK, nmc_status_t};
use crate::layout::store::{Fate, View};
use crate::rpc::Event;
use crate::sync::{panics, service_thread};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Looks at a key between two looks at its writer, which cost as much.
const LOOKS_A_WRITER: u32 = 16;
/// Most keys that one client can watch at a time.
const MAX_WATCHED: usize = 1 << 16;
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
struct Queue<const MOST: usize> {
    waiting: VecDeque<(u64, nmc_status_t)>,
    /// How many are gone that came just before the first one that waits.
    lost: u32,
}

impl<const MOST: usize> Queue<MOST> {
    /// Makes room for `more`, as far as they can wait.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let room = MOST.saturating_sub(self.waiting.len());
        memory::reserve_queue(&mut self.waiting, more.min(room))
    }

    fn push(&mut self, token: u64, status: nmc_status_t) {
        if self.waiting.len() >= MOST && self.waiting.pop_front().is_some() {
            self.lost = self.lost.saturating_add(1);
        }
        self.waiting.push_back((token, status));
    }

    /// The oldest one, which tells of those before it that are gone.
    fn pop(&mut self) -> Option<Completion> {
        let (token, status) = self.waiting.pop_front()?;
        Some(Completion { token, status, lost: std::mem::take(&mut self.lost) })
    }
}

struct Watched {
    key: Vec<u8>,
    namespace: u32,
    token: u64,
    appear: bool,
    seen: Option<(u32, u64)>,
    /// How often the client had been cancelled when it began: only later cancels end it.
    born: u64,
}

#[derive(Default)]
struct State {
    /// Handles of the program. With the last of them all watches end.
    handles: u64,
    /// Which thread looks: one that was stopped must not go on for whoever comes next.
    turn: u64,
    /// How often the keys were looked at.
    looks: u32,
    watched: Vec<Watched>,
    done: Queue<MAX_COMPLETIONS>,
    /// Something else waits for the program, of which the descriptor tells, too.
    beside: bool,
    running: bool,
    thread: Option<JoinHandle<()>>,
}

/// The keys that a client watches.
pub struct Watches {
    state: Mutex<State>,
    event: Event,
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

impl Store {
    /// Watches a key: when it is readable, or will not become so, a completion with `token` is queued.
    pub fn watch(&self, key: &[u8], token: u64, appear: bool) -> Result<()> {
        super::master::check_key(key)?;
        let watches = &self.client.watches;
        let mut state = watches.state.lock();
        if state.watched.len() >= MAX_WATCHED {
            crate::bail!(NMC_ERR_LIMIT, "{MAX_WATCHED} keys are watched already");
        }
        let born = self.client.cancelled.load(SeqCst);
        // Each of them will be queued once: the thread that does it needs no memory.
        let all = state.watched.len() + 1;
        memory::reserve(&mut state.watched, 1)?;
        state.done.reserve(all)?;
        state.watched.push(Watched { key: key.to_vec(), namespace: self.namespace, token, appear, seen: None, born });
        if !state.running {
            let (client, turn) = (Arc::downgrade(&self.client), state.turn);
            let cpu = self.client.member.service_cpu();
            let started = service_thread::spawn(c"nmc-store-watch", cpu, move || {
                // What it was is in the log.
                let _ = panics::catch(|| while look(&client, turn) {});
            });
            match started {
                Ok(thread) => {
                    // The former one is on its way out, and needs the lock no more.
                    if let Some(former) = state.thread.replace(thread) {
                        let _ = former.join();
                    }
                }
                Err(error) => {
                    state.watched.pop();
                    return Err(error);
                }
            }
            state.running = true;
        }
        drop(state);
        self.client.ring();
        Ok(())
    }

    /// Takes completions that are queued, the oldest first, at most `most`; gives how many.
    pub fn completions(&self, most: usize, mut take: impl FnMut(Completion)) -> usize {
        let watches = &self.client.watches;
        let mut state = watches.state.lock();
        let taken = (0..most).map_while(|_| state.done.pop()).map(&mut take).count();
        if state.done.waiting.is_empty() && !state.beside {
            watches.event.drain();
        }
        taken
    }

    /// For who has something else for the program than completions.
    #[must_use]
    pub fn announcer(&self) -> Announcer {
        Announcer(Arc::downgrade(&self.client.watches))
    }

    /// Descriptor that is readable while completions are queued. It belongs to the store.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        self.client.watches.event.as_fd().as_raw_fd()
    }
}

/// Makes the descriptor of a store's completions readable for something else.
#[derive(Clone, Default)]
pub struct Announcer(Weak<Watches>);

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

/// Looks at all watched keys once and sleeps a little; false when there is nothing left to do.
fn look(client: &Weak<Client>, turn: u64) -> bool {
    let Some(client) = client.upgrade() else { return false };
    let (view, bell) = (client.view(), &client.view().bells().published);
    let heard = bell.listen();
    let mut state = client.watches.state.lock();
    if state.turn != turn {
        return false;
    }
    let cancelled = client.cancelled.load(SeqCst);
    let left = client.member.has_departed();
    state.looks = state.looks.wrapping_add(1);
    let State { watched, done, looks, .. } = &mut *state;
    let (all, writers) = (watched.len(), *looks % LOOKS_A_WRITER == 0);
    watched.retain_mut(|watched| {
        let over = left || watched.born != cancelled;
        let status = if over { Some(NMC_ERR_CANCELLED) } else { verdict(&client, view, watched, writers) };
        if let Some(status) = status {
            done.push(watched.token, status);
        }
        status.is_none()
    });
    if watched.len() < all {
        client.watches.event.signal();
    }
    state.running = !state.watched.is_empty();
    let go_on = state.running;
    drop(state);
    if go_on {
        bell.wait(heard, LOOK_AGAIN);
    }
    go_on
}

/// What became of a key, if that is known. `writers`: also look whether its writer is still there.
fn verdict(client: &Client, view: &View<'_>, watched: &mut Watched, writers: bool) -> Option<nmc_status_t> {
    let Watched { key, namespace, appear, seen, .. } = watched;
    let look = match client.look(view, *namespace, key) {
        Ok(Look::Ready(found)) => {
            return client.reaches(view, found).map(|outcome| outcome.map_or_else(|error| error.status, |()| NMC_OK));
        }
        Ok(look) => look,
        Err(error) if error.status == NMC_ERR_BUSY => return None,
        Err(error) => return Some(error.status),
    };
    let end = Client::end_of(view, &look, seen).or_else(|| match look {
        Look::Writing(index, epoch) => {
            let orphan = writers && client.is_orphan(view, *namespace, key, (index, epoch));
            orphan.then_some(End::Of(Fate::WriterGone))
        }
        _ => (!*appear).then_some(End::Removed),
    });
    end.map(End::status)
}

#[cfg(test)]
mod tests {
    use super::*;

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
