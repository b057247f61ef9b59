//! Watches one process that holds a rank: keeps its pidfd and life pipe and applies the rule of `liveness`.

use super::liveness::{self, Evidence, RankState};
use crate::layout::world::Farewell;
use crate::rpc::ready;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A holder of a rank under observation.
#[derive(Debug)]
pub struct Watch {
    /// Readable when the process is dead.
    pub pidfd: OwnedFd,
    /// At end of file when no copy of the process's descriptors is left.
    pub life: OwnedFd,
    drain: Duration,
    ended: Option<Instant>,
    /// Once free, always free: a later holder's word must not bring it back.
    free: Option<RankState>,
}

impl Watch {
    /// Begins to watch a process whose GPU gets `drain` to end after its death.
    #[must_use]
    pub fn new(pidfd: OwnedFd, life: OwnedFd, drain: Duration) -> Self {
        Self { pidfd, life, drain, ended: None, free: None }
    }

    /// Looks at the process now. `farewell` is what its word in shared memory says.
    pub fn observe(&mut self, farewell: Farewell) -> RankState {
        if let Some(state) = self.free {
            return state;
        }
        let mut evidence = Evidence {
            pid_dead: ready(self.pidfd.as_fd()),
            life_ended: ready(self.life.as_fd()),
            farewell,
            settled: Duration::ZERO,
            drain: self.drain,
        };
        if liveness::ended(&evidence) {
            evidence.settled = self.ended.get_or_insert_with(Instant::now).elapsed();
        }
        let state = liveness::judge(&evidence);
        self.free = Some(state).filter(|state| state.free());
        state
    }

    /// Whether the process itself is dead.
    #[must_use]
    pub fn process_died(&self) -> bool {
        ready(self.pidfd.as_fd())
    }

    /// Descriptors whose readiness is news in `state`, so that a waiting thread wakes up for it and does not spin
    /// on what it knows already.
    pub fn pending(&self, state: RankState) -> impl Iterator<Item = BorrowedFd<'_>> {
        let open = matches!(state, RankState::Alive | RankState::Dying);
        [self.pidfd.as_fd(), self.life.as_fd()].into_iter().filter(move |fd| open && !ready(*fd))
    }

    /// How long until the drain grace is over, if it is running.
    #[must_use]
    pub fn grace_left(&self) -> Option<Duration> {
        self.ended.map(|since| self.drain.saturating_sub(since.elapsed())).filter(|left| !left.is_zero())
    }
}
