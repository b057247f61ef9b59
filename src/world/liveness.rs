//! When is a rank dead, and when is it *gone*? Dead is what users are told at once; gone is what allows its memory
//! to be handed to someone else. A pidfd alone does not prove that a process is gone: a forked child can keep its
//! GPU context alive, and kernels go on storing. So every rank holds the writing end of a pipe whose reading end
//! all others have: its end of file proves that no copy of the process's descriptors is left. This file is the
//! rule, without clocks or system calls of its own.

use crate::layout::world::Farewell;
use std::time::Duration;

/// State of a rank as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankState {
    /// Nobody has taken the rank yet.
    Absent,
    /// A process holds the rank.
    Alive,
    /// The process died or broke off, but something of it may still write. Its memory is not reused.
    Dying,
    /// Provably nothing of it is left. The rank can be taken again.
    Gone,
    /// It left in order. The rank can be taken again.
    Left,
}

impl RankState {
    /// The number in the C header.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            RankState::Absent => 0,
            RankState::Alive => 1,
            RankState::Dying => 2,
            RankState::Gone => 3,
            RankState::Left => 4,
        }
    }

    /// The state with this number; numbers outside the table mean [`RankState::Absent`].
    #[must_use]
    pub fn from_code(code: u32) -> Self {
        match code {
            1 => RankState::Alive,
            2 => RankState::Dying,
            3 => RankState::Gone,
            4 => RankState::Left,
            _ => RankState::Absent,
        }
    }

    /// Whether another process may take the rank.
    #[must_use]
    pub fn free(self) -> bool {
        matches!(self, RankState::Absent | RankState::Gone | RankState::Left)
    }
}

/// What can be observed about a process that holds a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Its pidfd is readable.
    pub pid_dead: bool,
    /// Its life pipe is at end of file.
    pub life_ended: bool,
    /// What it said when it went.
    pub farewell: Farewell,
    /// Time since the last of the facts above became true that [`judge`] needs for "gone"; zero before.
    pub settled: Duration,
    /// How long its GPU may go on after that; zero if it used none.
    pub drain: Duration,
}

/// Whether only the drain grace is missing.
#[must_use]
pub fn ended(e: &Evidence) -> bool {
    e.life_ended && (e.pid_dead || e.farewell == Farewell::Aborted)
}

/// The rule.
#[must_use]
pub fn judge(e: &Evidence) -> RankState {
    if e.farewell == Farewell::Left {
        RankState::Left
    } else if ended(e) && e.settled >= e.drain {
        RankState::Gone
    } else if e.pid_dead || e.life_ended || e.farewell == Farewell::Aborted {
        RankState::Dying
    } else {
        RankState::Alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Evidence> {
        let flags = [false, true];
        let words = [Farewell::None, Farewell::Left, Farewell::Aborted];
        let times = [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(1)];
        flags.into_iter().flat_map(move |pid_dead| {
            flags.into_iter().flat_map(move |life_ended| {
                words.into_iter().flat_map(move |farewell| {
                    times.into_iter().flat_map(move |settled| {
                        [Duration::ZERO, Duration::from_secs(1)].into_iter().map(move |drain| Evidence {
                            pid_dead,
                            life_ended,
                            farewell,
                            settled,
                            drain,
                        })
                    })
                })
            })
        })
    }

    /// Something of the process may still store: a copy of its descriptors exists, or its GPU was not given the
    /// time to drain, or it lives and did not say it was done.
    fn may_still_write(e: &Evidence) -> bool {
        e.farewell != Farewell::Left
            && (!e.life_ended || e.settled < e.drain || (!e.pid_dead && e.farewell == Farewell::None))
    }

    fn violations(rule: fn(&Evidence) -> RankState) -> usize {
        all().filter(|e| rule(e).free() && may_still_write(e)).count()
    }

    #[test]
    fn a_rank_is_never_free_while_something_of_it_may_write() {
        assert_eq!(violations(judge), 0);
    }

    #[test]
    fn control_the_pidfd_alone_frees_too_early() {
        let on_pidfd = |e: &Evidence| if e.pid_dead { RankState::Gone } else { RankState::Alive };
        assert!(violations(on_pidfd) > 0);
    }

    #[test]
    fn control_end_of_file_alone_frees_too_early() {
        let on_eof = |e: &Evidence| if e.life_ended { RankState::Gone } else { RankState::Alive };
        assert!(violations(on_eof) > 0);
    }

    #[test]
    fn death_is_reported_at_once_and_gone_follows() {
        for e in all().filter(|e| e.pid_dead) {
            assert_ne!(judge(&e), RankState::Alive, "{e:?}");
        }
        for e in all().filter(|e| e.pid_dead && e.life_ended && e.settled >= e.drain) {
            assert!(judge(&e).free(), "{e:?}");
        }
    }
}
