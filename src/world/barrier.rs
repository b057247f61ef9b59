//! A barrier on the host, for start-up, tests and tools. Each rank counts its arrivals in a word of its own;
//! everyone waits until all counts are there. Nothing is lost when a rank dies in the middle: the same barrier can
//! be called again, also together with a process that took the dead rank's place.

use super::liveness::RankState;
use super::shared::Shared;
use super::world::World;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_PEER_LOST, NMC_ERR_TIMEOUT};
use crate::layout::world::RankLines;
use crate::sync::{barrier, futex};
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
        let verdict = &self.lines(0)?.verdict.value;
        Ok(barrier::resume(verdict, &self.lines(self.rank)?.arrived.value))
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
    /// Waits until every rank that is there has called it as often as this one; a rank that nobody has taken yet is not
    /// there. After an error the same barrier is still open: the next call continues to wait for it.
    pub fn barrier(&self, deadline: &Deadline) -> Result<()> {
        let size = self.params().world_size;
        let shared = self.shared();
        let bell = shared.lines(0)?.bell_futex();
        let Some(mut passed) = self.presence.passed.try_lock() else {
            crate::bail!(NMC_ERR_BUSY, "another thread waits at a barrier through this handle");
        };
        // Another process may hold the rank by now, and arrives for itself.
        shared.check_present()?;
        let target = *passed + 1;
        shared.lines(self.rank())?.arrived.value.store(target, Ordering::SeqCst);
        shared.ring();
        let verdict = &shared.lines(0)?.verdict.value;
        let arrived = |rank| shared.lines(rank).is_ok_and(|lines| lines.arrived.value.load(Ordering::SeqCst) >= target);
        let absent = |rank| shared.lost(rank) == Some(RankState::Absent);
        loop {
            let heard = bell.load(Ordering::SeqCst);
            let over = barrier::over(verdict) >= target;
            let mut waiting = None;
            for rank in 0..size {
                // A rank that has gone on to the next barrier is one ahead. One that was taken by a process we have not
                // heard of yet counts as not there: after a barrier everyone knows everyone.
                if (over || arrived(rank)) && !shared.changing(rank) {
                    continue;
                }
                let lost = shared.lost(rank);
                if lost == Some(RankState::Absent) {
                    continue;
                }
                waiting = waiting.or(Some(rank));
                if let Some(state) = lost {
                    return Err(Error::new(NMC_ERR_PEER_LOST, format!("barrier: rank {rank} is {state:?}")));
                }
            }
            if waiting.is_none()
                && barrier::decide(verdict, target, || (0..size).all(|rank| arrived(rank) || absent(rank)))
            {
                *passed = target;
                shared.ring();
                return Ok(());
            }
            shared.check_present()?;
            if deadline.passed() {
                let who = waiting.map_or("not all ranks".into(), |rank| format!("rank {rank}"));
                return Err(Error::new(NMC_ERR_TIMEOUT, format!("barrier: {who} did not arrive in time")));
            }
            futex::wait(bell, heard, NAP.min(deadline.left()));
        }
    }
}
