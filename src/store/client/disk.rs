//! The disk below a store, for a handle: what it takes to read it comes from the master once for each opening of the tier; the client's
//! thread gets it, and a read that comes before it waits a moment.

use super::client::{Client, Way};
use super::handle::Store;
use super::remote::{Remote, no_disk_yet, silent_for};
use super::wait::Interrupt;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_UNAVAILABLE;
use crate::layout::store::DISK_EXPECTED;
use crate::store::copy::Pieces;
use crate::store::disk::{DiskAccess, DiskReader};
use crate::store::serve::MasterSlot;
use crate::store::wire::Request;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// The call by which the owner of the disk hears of an entry that cannot be read.
pub const CALL_SUSPECT: u32 = 0;

/// How long a read waits for a disk that the master has not handed to its client yet. When one has waited in vain, no read waits
/// for that disk any more: they fail at once until the client's thread has got it.
pub(in crate::store) const GRANT: Duration = Duration::from_millis(500);
/// How often who waits for it looks whether to give up.
const LOOK: Duration = Duration::from_millis(20);

/// The disk below a store, as a client has it.
enum Below<'a> {
    /// There is none.
    Nothing,
    Here(DiskAccess),
    /// The master has not handed out yet the one with this name.
    Awaited(&'a Remote, u64),
}

impl Client {
    #[inline]
    fn below(&self) -> Result<Below<'_>> {
        match self.view().header().disk.load(Acquire) {
            0 => {
                // Nothing of a tier that was closed is kept open.
                if self.disk.is_taken() {
                    self.disk.clear();
                }
                Ok(Below::Nothing)
            }
            DISK_EXPECTED => {
                Err(Error::new(NMC_ERR_UNAVAILABLE, "the store waits for its tier, which is not open yet"))
            }
            id => self.disk_named(id),
        }
    }

    #[cold]
    fn disk_named(&self, id: u64) -> Result<Below<'_>> {
        if let Some(access) = self.disk.get(id) {
            return Ok(Below::Here(access));
        }
        match &self.way {
            Way::Direct { host, .. } => {
                let Some(access) = host.disk_access() else {
                    crate::bail!(NMC_ERR_UNAVAILABLE, "the tier of the store is being opened or closed");
                };
                self.disk.set(access.clone());
                Ok(Below::Here(access))
            }
            Way::Remote(remote) => Ok(Below::Awaited(remote, id)),
        }
    }

    /// Whether the disk may be read straight into pieces. The kernel may end what a killed process began to read after the process
    /// itself: a heap of the world can be another's by then. Such memory, and that of a device, gets a copy.
    pub(in crate::store) fn reads_into(&self, pieces: &Pieces<'_>) -> Result<bool> {
        let mut own = self.is_host(pieces)?;
        pieces.each(|address, bytes| {
            own = own && !self.member.shares(address, bytes);
            Ok(())
        })?;
        Ok(own)
    }
}

impl Store {
    /// The disk below the store, if there is one, for a read: it does not wait long for a master that does not answer.
    #[inline]
    pub(in crate::store) fn disk(&self) -> Result<Option<DiskAccess>> {
        match self.client.below()? {
            Below::Nothing => Ok(None),
            Below::Here(disk) => Ok(Some(disk)),
            Below::Awaited(..) => self.await_disk(&self.interrupt(), GRANT, true),
        }
    }

    /// The same as a part of a wait.
    pub(in crate::store) fn disk_until(
        &self,
        interrupt: &Interrupt<'_>,
        deadline: &Deadline,
    ) -> Result<Option<DiskAccess>> {
        self.await_disk(interrupt, GRANT.min(deadline.left()), true)
    }

    /// The same for a call that needs the master anyway: it waits as long as for an answer.
    pub(in crate::store) fn disk_for_call(&self) -> Result<Option<DiskAccess>> {
        self.disk_for_call_until(&self.interrupt())
    }

    /// The same as one of several calls, of which the first made `interrupt`.
    pub(in crate::store) fn disk_for_call_until(&self, interrupt: &Interrupt<'_>) -> Result<Option<DiskAccess>> {
        self.disk_within(self.client.call_limit, interrupt)
    }

    /// The same, for `limit` at most.
    pub(in crate::store) fn disk_within(
        &self,
        limit: Duration,
        interrupt: &Interrupt<'_>,
    ) -> Result<Option<DiskAccess>> {
        interrupt.check_answers()?;
        interrupt.note(self.await_disk(interrupt, limit.min(self.client.call_limit), false))
    }

    #[cold]
    fn await_disk(&self, interrupt: &Interrupt<'_>, limit: Duration, reads: bool) -> Result<Option<DiskAccess>> {
        let (seat, deadline) = (&self.client.disk, Deadline::after(limit));
        let mut asked = false;
        loop {
            // Looked at again each time: it may be opened anew, or closed.
            let (remote, id) = match self.client.below()? {
                Below::Nothing => return Ok(None),
                Below::Here(disk) => return Ok(Some(disk)),
                Below::Awaited(remote, id) => (remote, id),
            };
            match seat.refusal(id) {
                Some(why) if reads || why.status != NMC_ERR_UNAVAILABLE => return Err(why),
                _ => remote.check_up()?,
            }
            interrupt.check()?;
            if deadline.passed() {
                let why = if reads { no_disk_yet(limit) } else { silent_for(limit) };
                // A wait that had less time says nothing about the master.
                if reads && limit == GRANT {
                    seat.refuse(id, why.clone());
                }
                return Err(why);
            }
            if !std::mem::replace(&mut asked, true) {
                remote.ask_for_disk();
            }
            seat.wait(id, LOOK.min(deadline.left()));
        }
    }

    /// The master of the store, if it is in this process.
    #[must_use]
    pub fn host(&self) -> Option<Arc<MasterSlot>> {
        match &self.client.way {
            Way::Direct { host, .. } => Some(Arc::clone(host)),
            Way::Remote(_) => None,
        }
    }

    /// Calls the owner of the disk below the store.
    pub fn call_disk(&self, what: u32, arguments: [u64; 2], keys: &[&[u8]]) -> Result<[u64; 3]> {
        self.call_disk_until(what, arguments, keys, &self.interrupt())
    }

    /// The same as one of several calls, of which the first made `interrupt`.
    pub(in crate::store) fn call_disk_until(
        &self,
        what: u32,
        arguments: [u64; 2],
        keys: &[&[u8]],
        interrupt: &Interrupt<'_>,
    ) -> Result<[u64; 3]> {
        self.call_until(&Request::Disk(what, arguments, memory::copy(keys)?), interrupt)
    }

    /// Whether there is a disk below the store.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        ![0, DISK_EXPECTED].contains(&self.client.view().header().disk.load(Acquire))
    }

    /// The disk below the store as this client has it, if there is one.
    pub fn disk_access(&self) -> Result<Option<DiskAccess>> {
        self.disk()
    }

    /// How this client reads the disk below the store, if there is one.
    pub fn disk_reader(&self) -> Result<Option<Arc<dyn DiskReader>>> {
        Ok(self.disk()?.map(|disk| disk.reader))
    }

    /// Nothing of a disk that is gone is kept open.
    pub fn forget_disk(&self) {
        self.client.disk.clear();
    }

    /// Values that this client has read from disk, and their bytes.
    #[must_use]
    pub fn disk_reads(&self) -> (u64, u64) {
        let totals = self.client.counters.totals();
        (totals.disk_hits, totals.disk_rx)
    }
}
