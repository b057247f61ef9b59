//! Waiting for an object to become readable. Writers on a CPU ring a bell in shared memory; for those on a GPU, and
//! for whoever missed the bell, a waiter looks again every millisecond.

use super::Store;
use super::master::{not_found, show};
use super::read::Look;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_STALE, NMC_ERR_TIMEOUT};
use crate::sync::futex;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Store {
    /// Waits until the object is readable, or at least its first `pages` pages are. A key that nobody writes is an
    /// error, unless `appear` asks to wait for it too.
    pub fn wait_ready(&self, key: &[u8], pages: Option<u64>, appear: bool, deadline: &Deadline) -> Result<()> {
        let client = &*self.client;
        let view = client.view();
        let cancelled = client.cancelled.load(SeqCst);
        let bell = view.bell();
        let mut was_there = None;
        loop {
            let heard = bell.ring.load(SeqCst);
            bell.waiting.store(1, SeqCst);
            match self.look(view, key)? {
                Look::Ready(_) => return Ok(()),
                Look::Writing(index, epoch) => {
                    if was_there.is_some_and(|seen| seen != (index, epoch)) {
                        return Err(gone(key));
                    }
                    was_there = Some((index, epoch));
                    if let Some(pages) = pages
                        && self.progress(index, epoch)?.0 >= pages
                    {
                        return Ok(());
                    }
                }
                Look::Missing if was_there.is_some() => return Err(gone(key)),
                Look::Missing if !appear => return Err(not_found(key)),
                Look::Missing => {}
            }
            if client.cancelled.load(SeqCst) != cancelled || self.closing.load(SeqCst) {
                return Err(Error::new(NMC_ERR_CANCELLED, "the wait was cancelled"));
            }
            client.check_departed()?;
            if deadline.passed() {
                return Err(Error::new(NMC_ERR_TIMEOUT, format!("{} was not ready in time", show(key))));
            }
            client.tend();
            futex::wait(&bell.ring, heard, LOOK_AGAIN.min(deadline.left()));
        }
    }
}

#[cold]
fn gone(key: &[u8]) -> Error {
    Error::new(NMC_ERR_STALE, format!("{} was given up by its writer, removed or replaced during the wait", show(key)))
}
