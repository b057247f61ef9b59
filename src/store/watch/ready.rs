//! Waiting for an object to become readable. Whoever publishes rings a bell in shared memory; for writers on a GPU, and whoever missed
//! the bell, a waiter looks again every so often. Waits are the client's: the master never waits.

use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_PEER_LOST, NMC_ERR_STALE, NMC_ERR_TIMEOUT, nmc_status_t};
use crate::layout::store::{Fate, View};
use crate::store::client::{Client, Store};
use crate::store::types::{Look, Presence, not_found, on_disk, show};
use crate::sync::object;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// How often an object is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
impl Store {
    /// Waits until the object is readable, or at least its first `pages` pages are. A key that nobody writes is an
    /// error, unless `appear` asks to wait for it too.
    pub fn wait_ready(&self, key: &[u8], pages: Option<u64>, appear: bool, deadline: &Deadline) -> Result<()> {
        let client = &*self.client;
        let view = client.view();
        let interrupt = self.interrupt();
        let bell = &view.bells().published;
        let mut seen = None;
        loop {
            let heard = bell.listen();
            let look = self.look(view, key)?;
            if let Look::Ready(found) = look {
                if let Some(outcome) = client.reaches(view, found) {
                    return outcome;
                }
            } else if let Some(end) = Client::end_of(view, &look, &mut seen) {
                return Err(end.error(key));
            }
            match look {
                Look::Writing(index, epoch) => {
                    match pages.map(|pages| (pages, self.progress(index, epoch))) {
                        Some((pages, Ok((ready, _)))) if ready >= pages => {
                            if let Some(outcome) = client.reaches(view, (index, epoch)) {
                                return outcome;
                            }
                        }
                        // One that has ended since is found so by the next look.
                        Some((_, Err(error))) if error.status != NMC_ERR_STALE => return Err(error),
                        _ => {}
                    }
                    if client.is_orphan(view, self.namespace, key, (index, epoch)) {
                        return Err(End::Of(Fate::WriterGone).error(key));
                    }
                }
                Look::Missing => match self.presence_below(key, self.disk_until(&interrupt, deadline)?)? {
                    Presence::OnDisk => return Err(on_disk(key)),
                    Presence::Absent if !appear => return Err(not_found(key)),
                    // It came meanwhile: the next look finds it.
                    _ => {}
                },
                Look::Ready(_) => {}
            }
            interrupt.check()?;
            if deadline.passed() {
                return Err(Error::new(NMC_ERR_TIMEOUT, format!("{} was not ready in time", show(key))));
            }
            client.tend();
            bell.wait(heard, LOOK_AGAIN.min(deadline.left()));
        }
    }
}

/// Why an object that was being written will not become readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum End {
    /// It was there, and was removed, replaced or evicted.
    Removed,
    /// See [`Fate`].
    Of(Fate),
}

impl End {
    /// The status of a wait for it.
    pub fn status(self) -> nmc_status_t {
        match self {
            End::Removed | End::Of(Fate::Taken) => NMC_ERR_NOT_FOUND,
            End::Of(Fate::GivenUp | Fate::Late) => NMC_ERR_STALE,
            End::Of(Fate::WriterGone | Fate::HeapGone) => NMC_ERR_PEER_LOST,
        }
    }

    #[cold]
    fn error(self, key: &[u8]) -> Error {
        let what = match self {
            End::Removed => "was there when the wait began, and has been removed, replaced or evicted since",
            End::Of(Fate::Taken) => "was published and consumed",
            End::Of(Fate::GivenUp) => "was given up by its writer",
            End::Of(Fate::Late) => "was taken from its writer, which took longer than the watchdog allows",
            End::Of(Fate::WriterGone) => "was being written by a rank that is gone",
            End::Of(Fate::HeapGone) => "was being written to a rank that has other memory now",
        };
        Error::new(self.status(), format!("{} {what}", show(key)))
    }
}

impl Client {
    /// Whether what was being written at the last look (`seen`) has ended, as another look at its key shows.
    pub(super) fn end_of<T>(view: &View<'_>, look: &Look<T>, seen: &mut Option<(u32, u64)>) -> Option<End> {
        let now = if let Look::Writing(index, epoch) = *look { Some((index, epoch)) } else { None };
        match *seen {
            Some((_, epoch)) if *seen != now => {
                let told = view.fate(epoch).and_then(|word| Fate::of(word.load(Acquire), epoch));
                Some(told.map_or(End::Removed, End::Of))
            }
            _ => {
                *seen = now;
                None
            }
        }
    }

    /// Whether this client can reach the value of an object: not if its rank has other memory than it had when the client came.
    /// `None` if the object is not there any more, or a holder of the rank is not known here yet.
    pub(in crate::store) fn reaches(&self, view: &View<'_>, (index, epoch): (u32, u64)) -> Option<Result<()>> {
        let header = view.object(index)?;
        let (rank, bytes) = (header.owner_rank.load(Relaxed), header.bytes_total.load(Relaxed));
        if !object::still(&header.control, epoch) {
            return None;
        }
        if bytes == 0 || rank >= self.params().world_size {
            return Some(Ok(()));
        }
        match self.heap_now(rank) {
            Err(_) if self.member.changing(rank) => None,
            found => Some(found.map(|_| ())),
        }
    }

    /// Whether nothing is left of the writer of an object that is being written, so that nobody will publish it. The master
    /// finds it out as well, unless it died with the writer.
    pub(super) fn is_orphan(&self, view: &View<'_>, namespace: u32, key: &[u8], (index, epoch): (u32, u64)) -> bool {
        let Some(header) = view.object(index) else { return false };
        let Some(entry) = view.client(header.writer.load(Relaxed)) else { return false };
        let taken = entry.generation.load(Acquire) & 1 == 1;
        let (rank, generation) = (entry.rank.load(Relaxed), entry.rank_generation.load(Relaxed));
        // A place stays its client's for as long as something is there that it writes.
        let theirs = taken && rank < self.params().world_size && object::still(&header.control, epoch);
        theirs
            && self.member.state(rank, generation).free()
            // Its last store came before its end: who looks now sees it.
            && self.look(view, namespace, key) == Ok(Look::Writing(index, epoch))
    }
}
