//! What happened to values on disk, for programs that want to know: taken from the owner, or from the master in its place.

use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_UNAVAILABLE;
use crate::store::client::{Store, Way};
use crate::store::disk::{DiskMap, Event, Told};
use crate::store::wire::Request;
use std::sync::atomic::Ordering::Acquire;

impl Store {
    /// The program has one more handle to the disk, or one less: while it has one, the descriptor of the store is readable while there
    /// is something that it can take.
    pub fn listen(&self, more: bool) {
        self.client.disk.listen(more, self.announcer());
    }

    /// The oldest of what happened on disk that this process has not taken yet and that the owner still has.
    pub fn next_event(&self) -> Result<Option<Event>> {
        let (seat, announcer) = (&self.client.disk, self.announcer());
        loop {
            let disk = self.disk_id();
            let since = seat.heard(disk);
            let Told { event, next } = match self.told(disk, since) {
                // It was opened anew meanwhile.
                Err(error) if error.status == NMC_ERR_UNAVAILABLE && self.disk_id() != disk => continue,
                told => told?,
            };
            if !seat.hear(disk, since, next) {
                // Another thread was faster.
                continue;
            }
            announcer.announce(false);
            // In this order: what came since the answer is not overlooked.
            let access = match &self.client.way {
                Way::Direct { host, .. } => host.disk_access(),
                Way::Remote(_) => seat.get(disk),
            };
            let is_more = |map: &DiskMap| map.id() == disk && map.view().header().told.load(Acquire) > next;
            if access.is_some_and(|access| is_more(&access.map)) {
                announcer.announce(true);
            }
            return Ok(Some(event).filter(|event| !event.values.is_empty() || event.lost > 0));
        }
    }

    fn told(&self, disk: u64, since: u64) -> Result<Told> {
        match &self.client.way {
            Way::Direct { host, .. } => match host.disk_owner() {
                Some(owner) => owner.told(disk, since, usize::MAX),
                None => Err(Error::new(NMC_ERR_UNAVAILABLE, "the store has no tier, or its owner is gone")),
            },
            Way::Remote(_) => Told::of(self.ask(&Request::Told(disk, since), &self.interrupt())?),
        }
    }
}
