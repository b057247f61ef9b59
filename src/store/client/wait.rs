//! How long calls wait, for the master or for room, and what ends a wait. Who makes room rings a bell in shared memory; for readers
//! that unpin, and whoever missed the bell, a waiter asks again every so often. Waits are the client's: the master never waits.

use super::client::Client;
use super::handle::Store;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_TIMEOUT};
use crate::store::sys;
use crate::store::types::Wait;
use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

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
pub(in crate::store) struct Interrupt<'a> {
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
pub(in crate::store) struct Patience<'a> {
    pub deadline: Option<Deadline>,
    pub interrupt: Interrupt<'a>,
}

impl Store {
    /// For a call that begins now.
    pub(in crate::store) fn patience(&self, wait: Wait) -> Patience<'_> {
        let deadline = match wait {
            Wait::No => None,
            Wait::CallTimeout => Some(Deadline::after(self.client.call_limit)),
            Wait::For(time) => Some(Deadline::after(time)),
        };
        Patience { deadline, interrupt: self.interrupt() }
    }

    /// For a wait that begins now.
    pub(in crate::store) fn interrupt(&self) -> Interrupt<'_> {
        let cancelled = self.client.cancelled.load(SeqCst);
        Interrupt { client: &self.client, closing: &self.closing, cancelled, vain: RefCell::new(None) }
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
