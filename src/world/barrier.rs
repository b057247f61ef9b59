//! A barrier on the host, for start-up, tests and tools. Each rank counts its arrivals in a word of its own;
//! everyone waits until all counts are there. Nothing is lost when a rank dies in the middle: the same barrier can
//! be called again, also together with a process that took the dead rank's place.

use super::World;
use super::shared::Shared;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_PEER_LOST, NMC_ERR_TIMEOUT};
use crate::layout::world::RankLines;
use crate::sync::futex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A death, or a ring that got lost with the process that was about to ring, is noticed after this time.
const NAP: Duration = Duration::from_millis(20);

impl Shared {
    pub fn lines(&self, rank: u32) -> Result<&RankLines> {
        self.words().lines(rank).ok_or_else(|| Error::new(NMC_ERR_INTERNAL, format!("no lines of rank {rank}")))
    }

    /// How many barriers this rank has passed, as its predecessors left it. One at which the predecessor had arrived but
    /// that is still open is taken back, so that this process meets the others there.
    pub fn resume_barriers(&self) -> Result<u64> {
        let arrived = |rank| -> Result<u64> { Ok(self.lines(rank)?.arrived.value.load(Ordering::SeqCst)) };
        let own = arrived(self.rank)?;
        let open = || -> Result<bool> {
            let others = (0..self.params.world_size).filter(|rank| *rank != self.rank);
            others.map(|rank| Ok(arrived(rank)? < own)).try_fold(false, |open, this: Result<bool>| Ok(open || this?))
        };
        if !open()? {
            return Ok(own);
        }
        let word = &self.lines(self.rank)?.arrived.value;
        word.store(own - 1, Ordering::SeqCst);
        if open()? {
            return Ok(own - 1);
        }
        // The last one arrived just now, and may have passed already.
        word.store(own, Ordering::SeqCst);
        Ok(own)
    }

    /// Wakes everyone who waits at a barrier.
    pub fn ring(&self) {
        if let Ok(lines) = self.lines(0) {
            lines.bell_futex().fetch_add(1, Ordering::SeqCst);
            futex::wake_all(lines.bell_futex());
        }
    }
}

impl World {
    /// Waits until every rank has called it as often as this one. After an error the same barrier is still open:
    /// the next call continues to wait for it.
    pub fn barrier(&self, deadline: &Deadline) -> Result<()> {
        let size = self.params().world_size;
        let shared = &self.shared;
        let bell = shared.lines(0)?.bell_futex();
        let Some(mut passed) = self.passed.try_lock() else {
            crate::bail!(NMC_ERR_BUSY, "another thread waits at a barrier through this handle");
        };
        // Another process may hold the rank by now, and arrives for itself.
        shared.check_present()?;
        let target = *passed + 1;
        shared.lines(self.rank())?.arrived.value.store(target, Ordering::SeqCst);
        shared.ring();
        loop {
            let heard = bell.load(Ordering::SeqCst);
            let mut waiting = None;
            for rank in 0..size {
                // A rank that has gone on to the next barrier is one ahead. One that was taken by a process we have not
                // heard of yet counts as not there: after a barrier everyone knows everyone.
                let arrived = shared.lines(rank)?.arrived.value.load(Ordering::SeqCst) >= target;
                if arrived && !shared.changing(rank) {
                    continue;
                }
                waiting = waiting.or(Some(rank));
                if let Some(state) = shared.lost(rank) {
                    return Err(Error::new(NMC_ERR_PEER_LOST, format!("barrier: rank {rank} is {state:?}")));
                }
            }
            let Some(rank) = waiting else {
                *passed = target;
                return Ok(());
            };
            shared.check_present()?;
            if deadline.passed() {
                return Err(Error::new(NMC_ERR_TIMEOUT, format!("barrier: rank {rank} did not arrive in time")));
            }
            futex::wait(bell, heard, NAP.min(deadline.left()));
        }
    }
}
