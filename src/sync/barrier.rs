//! The barrier of a world as words: each rank counts its arrivals in a word of its own, and one word, the *verdict*, says
//! which barrier is over. A process that takes over a rank takes back an arrival of its predecessor at a barrier that is
//! still open, to meet the others there; the verdict makes sure that all agree whether it is.
//!
//! Whoever finds that all have arrived says that it is looking, looks again, and ends the barrier if nobody has said
//! anything since. Whoever takes an arrival back undoes what was said. So a look that ended a barrier was either before
//! the arrival was taken back, and the taker sees that it is over; or it was after it, and saw it.

use super::atomic::{AtomicU64, Ordering::SeqCst, full_fence};

/// The verdict is the number of the last barrier that is over, how often somebody began to look (so that a later look is
/// not taken for an earlier one), and whether somebody is looking.
const NUMBER_SHIFT: u32 = 24;
const LOOK: u64 = 2;
const LOOKS: u64 = (1 << NUMBER_SHIFT) - LOOK;
const LOOKING: u64 = 1;

/// The last barrier that is over.
#[must_use]
pub fn over(verdict: &AtomicU64) -> u64 {
    verdict.load(SeqCst) >> NUMBER_SHIFT
}

/// Tries to end barrier `number`, after all before it: true when it is over. `all_arrived` looks at the words of all ranks.
pub fn decide(verdict: &AtomicU64, number: u64, mut all_arrived: impl FnMut() -> bool) -> bool {
    let seen = verdict.load(SeqCst);
    if seen >> NUMBER_SHIFT >= number {
        return true;
    }
    if !all_arrived() {
        return false;
    }
    // Also in the place of somebody else who is looking, and may have died.
    let looking = seen >> NUMBER_SHIFT << NUMBER_SHIFT | (seen.wrapping_add(LOOK) & LOOKS) | LOOKING;
    let mut look_again = || {
        full_fence();
        all_arrived()
    };
    let mine = verdict.compare_exchange(seen, looking, SeqCst, SeqCst).is_ok()
        && look_again()
        && verdict.compare_exchange(looking, number << NUMBER_SHIFT, SeqCst, SeqCst).is_ok();
    mine || over(verdict) >= number
}

/// A process takes a rank whose word is `arrived`. Gives how many barriers it has passed: an arrival of its predecessor at one
/// that is still open is taken back, and a look that has begun, which may count the rank as absent, is undone.
pub fn resume(verdict: &AtomicU64, arrived: &AtomicU64) -> u64 {
    let own = arrived.load(SeqCst);
    loop {
        let last = over(verdict);
        // Not before the last one that is over: the predecessor had passed it, died while it took an arrival back that had
        // counted already, or there was none and the others met without this rank.
        let passed = last.max(own.saturating_sub(1));
        arrived.store(passed, SeqCst);
        full_fence();
        let seen = verdict.load(SeqCst);
        let still_open = seen >> NUMBER_SHIFT <= passed;
        let undone = || seen & LOOKING == 0 || verdict.compare_exchange(seen, seen & !LOOKING, SeqCst, SeqCst).is_ok();
        if still_open && undone() {
            return passed;
        }
    }
}

/// Two ranks whose processes are replaced while a third one arrives last: the schedules that loom finds.
#[cfg(all(feature = "loom", test))]
mod model {
    use super::*;
    use loom::sync::Arc;

    struct World {
        verdict: AtomicU64,
        arrived: [AtomicU64; 3],
    }

    /// A process that takes a rank over without a verdict, as it once was: two looks at the others' words.
    fn resume_by_looking(w: &World, rank: usize) -> u64 {
        let own = w.arrived[rank].load(SeqCst);
        let open = || w.arrived.iter().enumerate().any(|(at, word)| at != rank && word.load(SeqCst) < own);
        if !open() {
            return own;
        }
        w.arrived[rank].store(own - 1, SeqCst);
        if open() {
            return own - 1;
        }
        w.arrived[rank].store(own, SeqCst);
        own
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Break {
        Nothing,
        ByLooking,
        /// The barrier is ended after one look.
        OneLook,
        /// Whoever takes an arrival back does not undo a look that has begun.
        LookStays,
    }

    /// Ranks 1 and 2 arrived at barrier 1 and died; their successors and the last arrival race. If the last one passed, the
    /// successors are behind the barrier, too; if one of them is before it, so are all.
    fn race(broken: Break, both: bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let w = Arc::new(World { verdict: AtomicU64::new(0), arrived: [0, 1, 1].map(AtomicU64::new) });
            let successor = |rank: usize| {
                let w = Arc::clone(&w);
                move || match broken {
                    Break::ByLooking => resume_by_looking(&w, rank),
                    Break::LookStays => {
                        let own = w.arrived[rank].load(SeqCst);
                        if over(&w.verdict) >= own {
                            return own;
                        }
                        w.arrived[rank].store(own - 1, SeqCst);
                        full_fence();
                        if over(&w.verdict) >= own { own } else { own - 1 }
                    }
                    _ => resume(&w.verdict, &w.arrived[rank]),
                }
            };
            let first = loom::thread::spawn(successor(1));
            let second = both.then(|| loom::thread::spawn(successor(2)));
            w.arrived[0].store(1, SeqCst);
            let all = || w.arrived.iter().all(|word| word.load(SeqCst) >= 1);
            let passed = match broken {
                Break::ByLooking => all(),
                Break::OneLook => all() && w.verdict.compare_exchange(0, 1 << NUMBER_SHIFT, SeqCst, SeqCst).is_ok(),
                _ => decide(&w.verdict, 1, all),
            };
            let mut counts = vec![first.join().unwrap()];
            counts.extend(second.map(|thread| thread.join().unwrap()));
            for count in counts {
                assert_eq!(count == 1, passed, "one passed the barrier, and another is before it");
            }
        });
    }

    /// Rank 1 is taken for the first time while rank 0 arrives: either the barrier was over before, and rank 1 is behind it,
    /// or both meet there.
    fn race_with_the_first_holder(undoes: bool) {
        loom::model(move || {
            let verdict = Arc::new(AtomicU64::new(0));
            let arrived = Arc::new([0, 0].map(AtomicU64::new));
            let taken = Arc::new(AtomicU64::new(0));
            let holder = {
                let (verdict, arrived, taken) = (Arc::clone(&verdict), Arc::clone(&arrived), Arc::clone(&taken));
                move || {
                    taken.store(1, SeqCst);
                    if undoes {
                        return resume(&verdict, &arrived[1]);
                    }
                    let last = over(&verdict);
                    arrived[1].store(last, SeqCst);
                    last
                }
            };
            let holder = loom::thread::spawn(holder);
            arrived[0].store(1, SeqCst);
            let there = |rank: usize| arrived[rank].load(SeqCst) >= 1 || (rank == 1 && taken.load(SeqCst) == 0);
            let passed = decide(&verdict, 1, || there(0) && there(1));
            let count = holder.join().unwrap();
            assert_eq!(count == 1, passed, "one passed the barrier, and another is before it");
        });
    }

    #[test]
    fn the_first_holder_of_a_rank_meets_the_others_or_comes_after() {
        race_with_the_first_holder(true);
    }

    #[test]
    fn control_a_first_holder_that_undoes_nothing_disagrees() {
        assert!(std::panic::catch_unwind(|| race_with_the_first_holder(false)).is_err());
    }

    fn broken(how: Break, both: bool) -> bool {
        std::panic::catch_unwind(|| race(how, both)).is_err()
    }

    #[test]
    fn successors_agree_with_the_last_arrival() {
        race(Break::Nothing, false);
        race(Break::Nothing, true);
    }

    #[test]
    fn control_looking_at_the_others_words_disagrees() {
        assert!(broken(Break::ByLooking, true));
    }

    #[test]
    fn control_one_look_disagrees() {
        assert!(broken(Break::OneLook, false));
    }

    #[test]
    fn control_a_look_that_is_not_undone_disagrees() {
        assert!(broken(Break::LookStays, false));
    }
}
