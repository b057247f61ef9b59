//! Waiting: for an object to become readable, and for room. Whoever can end a wait rings a bell in shared memory; for
//! writers on a GPU, readers that unpin, and whoever missed the bell, a waiter looks again every so often. Waits are the
//! client's: the master never waits.

use super::Store;
use super::client::Client;
use super::master::{not_found, show};
use super::read::{Look, Presence};
use super::sys;
use super::write::Wait;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_NOT_FOUND, NMC_ERR_PEER_LOST, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_NOT_READY,
    nmc_status_t,
};
use crate::layout::store::{Fate, View};
use crate::sync::object;
use std::cell::RefCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// How often an object is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How often room is asked for when nobody has rung: readers that unpin tell nobody.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// How long whoever asked for room in vain does not ask again, bell or not: twice as long each time. Many that wait for
/// the same room leave the master time for others.
const FIRST_REST: Duration = Duration::from_micros(100);
const LONGEST_REST: Duration = Duration::from_millis(8);

/// How a client ends: in order while its master answers, for a moment, and without it from the first call on that was not answered.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// When it began, in ns; 0 if it has not.
    begun: AtomicU64,
    in_silence: AtomicBool,
}

impl Ending {
    /// How long it takes at most if the master does not answer.
    const MOMENT_NS: u64 = 800_000_000;

    pub fn begin(&self) {
        let _ = self.begun.compare_exchange(0, sys::now_ns().max(1), SeqCst, SeqCst);
    }

    fn is_late(&self) -> bool {
        let begun = self.begun.load(SeqCst);
        begun != 0 && sys::now_ns() > begun.saturating_add(Self::MOMENT_NS)
    }

    fn note_silence(&self) {
        if self.begun.load(SeqCst) != 0 {
            self.in_silence.store(true, SeqCst);
        }
    }
}

/// What ends a wait through a handle before its time: `nmc_store_cancel`, the end of the handle, or of the rank.
/// Several calls of the master for one of the program share one: if the first of them has waited in vain, the others do not wait.
pub(super) struct Interrupt<'a> {
    client: &'a Client,
    closing: &'a AtomicBool,
    /// How often the client had been cancelled when the wait began.
    cancelled: u64,
    /// Why a call has got no answer.
    vain: RefCell<Option<Error>>,
}

impl Interrupt<'_> {
    /// Fails if the wait is over.
    pub fn check(&self) -> Result<()> {
        let closing = self.closing.load(SeqCst) || self.client.ending.is_late();
        if self.client.cancelled.load(SeqCst) != self.cancelled || closing {
            return Err(Error::new(NMC_ERR_CANCELLED, "the wait was cancelled"));
        }
        self.client.check_departed()
    }

    /// Fails if a call before this one has got no answer.
    pub fn check_answers(&self) -> Result<()> {
        if self.client.ending.in_silence.load(SeqCst) {
            return Err(Error::new(NMC_ERR_CANCELLED, "the client is ending, and the store's master does not answer"));
        }
        self.vain.borrow().clone().map_or(Ok(()), Err)
    }

    /// Notes how a call of the master has ended: whether it has waited in vain. One that found no connection has not waited, and the next one may find it.
    pub fn note<T>(&self, called: Result<T>) -> Result<T> {
        if let Err(error) = &called
            && [NMC_ERR_TIMEOUT, NMC_ERR_CANCELLED].contains(&error.status)
        {
            self.client.ending.note_silence();
            *self.vain.borrow_mut() = Some(error.clone());
        }
        called
    }
}

/// How long a call waits for room, if at all, and what ends the call before. Made when the call begins: whoever cancels from
/// then on means it.
pub(super) struct Patience<'a> {
    pub deadline: Option<Deadline>,
    pub interrupt: Interrupt<'a>,
}

impl Store {
    /// For a call that begins now.
    pub(super) fn patience(&self, wait: Wait) -> Patience<'_> {
        let deadline = match wait {
            Wait::No => None,
            Wait::CallTimeout => Some(Deadline::after(self.client.call_limit)),
            Wait::For(time) => Some(Deadline::after(time)),
        };
        Patience { deadline, interrupt: self.interrupt() }
    }

    /// For a wait that begins now.
    pub(super) fn interrupt(&self) -> Interrupt<'_> {
        let cancelled = self.client.cancelled.load(SeqCst);
        Interrupt { client: &self.client, closing: &self.closing, cancelled, vain: RefCell::new(None) }
    }

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

    /// Asks again and again until there is room, or `deadline`. `ask` tells how many are still without. Fails if
    /// the wait is interrupted.
    pub(super) fn wait_for_room(
        &self,
        deadline: &Deadline,
        interrupt: &Interrupt<'_>,
        mut ask: impl FnMut() -> Result<usize>,
    ) -> Result<()> {
        let bell = &self.client.view().bells().room;
        let (mut short, mut rest) = (0, FIRST_REST);
        loop {
            let heard = bell.listen();
            let still = ask()?;
            if still == 0 {
                return Ok(());
            }
            interrupt.check()?;
            if deadline.passed() {
                return Ok(());
            }
            if std::mem::replace(&mut short, still) > still {
                // What has been placed may be written by now, and make room for the rest.
                rest = FIRST_REST;
                continue;
            }
            std::thread::sleep(rest.min(deadline.left()));
            rest = (rest * 2).min(LONGEST_REST);
            bell.wait(heard, ASK_AGAIN.min(deadline.left()));
        }
    }
}

/// Why an object that was being written will not become readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
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
    pub(super) fn reaches(&self, view: &View<'_>, (index, epoch): (u32, u64)) -> Option<Result<()>> {
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
/// What a wait says of a value that is on disk only: it can be read, but does not come into memory by itself.
#[cold]
pub(super) fn on_disk(key: &[u8]) -> Error {
    Error::new(NMC_NOT_READY, format!("{} is on disk, not in memory", show(key)))
}
