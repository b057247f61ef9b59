//! Readiness as an event: keys that the program watches are looked at by a thread that runs only while there are any.

use super::ready::End;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_OK, nmc_status_t};
use crate::layout::store::{Fate, View};
use crate::store::client::{Client, Store};
use crate::store::completions::{Announcer, Completion, State, Watched};
use crate::store::types::{Look, check_key};
use crate::sync::{panics, service_thread};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;

const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Looks at a key between two looks at its writer, which cost as much.
const LOOKS_A_WRITER: u32 = 16;
/// Most keys that one client can watch at a time.
const MAX_WATCHED: usize = 1 << 16;

impl Store {
    /// Watches a key: when it is readable, or will not become so, a completion with `token` is queued.
    pub fn watch(&self, key: &[u8], token: u64, appear: bool) -> Result<()> {
        check_key(key)?;
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
