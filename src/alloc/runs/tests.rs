#![allow(clippy::unwrap_used, reason = "a test may")]
use super::super::model::{Model, any_count, promise};
use super::*;
use crate::base::random::Random;
use crate::base::status::NMC_ERR_CORRUPT;
use std::collections::BTreeSet;

/// Ways to break the allocator, for the controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    FreeDoesNotCoalesce,
    APlaceIsForgottenWithOneOfItsRuns,
    RunsOverlap,
    OnlyTheOwnClassIsSearched,
    AFailedSpreadKeepsARun,
    ASpreadHasARunTooMany,
    AnyFreeIsAccepted,
}

/// The allocator under test, with a fault or without.
struct Subject {
    runs: Runs,
    fault: Fault,
}

impl Subject {
    fn allocate(&mut self, count: u32) -> Option<Run> {
        match self.fault {
            Fault::OnlyTheOwnClassIsSearched if self.runs.find(count)?.count > 2 * count => None,
            Fault::RunsOverlap => {
                let run = self.runs.allocate(count)?;
                Some(Run { first: run.first.saturating_sub(1), count })
            }
            _ => self.runs.allocate(count),
        }
    }

    fn spread(&mut self, count: u32, max_runs: usize, out: &mut Vec<Run>) -> bool {
        let allowed = max_runs + usize::from(self.fault == Fault::ASpreadHasARunTooMany);
        let done = self.runs.allocate_spread(count, allowed, out);
        if !done && self.fault == Fault::AFailedSpreadKeepsARun {
            self.runs.allocate(1);
        }
        done
    }

    fn free(&mut self, run: Run) -> Result<()> {
        match self.fault {
            Fault::FreeDoesNotCoalesce if self.runs.books.is_used(run) => {
                self.runs.books.mark(run, false);
                self.runs.books.link(run);
                Ok(())
            }
            Fault::APlaceIsForgottenWithOneOfItsRuns if self.runs.books.is_used(run) => {
                let (before, behind) = (self.runs.books.free_before(run.first), run.first + run.count);
                let after = self.runs.books.free_from(behind);
                for (first, count) in [(run.first - before, before), (behind, after)] {
                    if count > 0 && self.runs.books.places.remove(class_of(count), first as usize / 64) {
                        self.runs.books.filled.remove_if(class_of(count), true);
                    }
                }
                self.runs.free(run)
            }
            Fault::AnyFreeIsAccepted => self.runs.free(run).or(Ok(())),
            _ => self.runs.free(run),
        }
    }
}

/// The length from which every run of a class holds `count`, worked out apart from [`class_of`].
fn rounded_up(count: u32) -> u32 {
    if count < 64 { count } else { count.next_multiple_of(1 << (count.ilog2() - 3)) }
}

/// The books agree with the model, with each other, and with what the allocator tells.
fn check_state(runs: &Runs, model: &Model) -> std::result::Result<(), String> {
    let free = model.free_runs();
    let free_units: u32 = free.iter().map(|run| run.count).sum();
    let same = (0..).zip(&model.0).all(|(unit, used)| all_clear(&runs.books.used_bits, unit..unit + 1) != *used);
    promise!(same, "units in use differ");
    promise!(runs.free_units() == free_units, "{} free units, not {free_units}", runs.free_units());
    promise!(runs.used() + free_units == runs.units(), "used and free units are not all units");
    let told = runs.fragmentation();
    promise!(told.free_runs as usize == free.len(), "{} free runs, not {}", told.free_runs, free.len());
    promise!(told.free_units == free_units, "fragmentation: {} free units, not {free_units}", told.free_units);
    let longest = free.iter().map(|run| run.count).max().unwrap_or(0);
    let good = told.largest_run <= longest && told.largest_run >= longest - longest / 9;
    promise!(good, "largest run {}, not {longest}", told.largest_run);
    promise!(told.largest_run == 0 || runs.fits(told.largest_run), "the largest run does not fit");
    promise!(!runs.fits(told.largest_run + 1), "more than the largest run fits");

    let mut listed = Vec::new();
    for class in 0..CLASSES {
        let before = listed.len();
        for run in runs.books.list(class) {
            promise!(runs.books.free_before(run.first + run.count) == run.count, "the ends of {run:?} do not agree");
            promise!(listed.len() < free.len(), "more runs are listed than there are");
            listed.push(run);
        }
        let filled = runs.books.filled.has(class);
        promise!(filled == (listed.len() > before), "class {class} is marked {filled}");
        let places = listed[before..].iter().map(|run| run.first as usize / 64);
        let same = runs.books.places_of(class).collect::<BTreeSet<_>>() == places.collect();
        promise!(same, "places of class {class} without a run");
    }
    listed.sort_unstable();
    promise!(listed == free, "free runs {listed:?}, not {free:?}");
    Ok(())
}

/// Random calls, each compared with the model: the first promise that is not kept.
fn run_against_the_model(units: u32, seed: u64, calls: u32, fault: Fault) -> std::result::Result<(), String> {
    let (mut units, most_units) = (units, units);
    let mut subject = Subject { runs: Runs::new(units).unwrap(), fault };
    let mut model = Model(vec![false; units as usize]);
    let mut live: Vec<Run> = Vec::new();
    let mut random = Random(seed);
    for call in 0..calls {
        // The load swings, so that both nearly full and nearly empty states are seen.
        let growing = call / 200 % 2 == 0;
        match random.below(if growing { 13 } else { 17 }) {
            10 => {
                let most = any_count(&mut random, units);
                let shortest = model.free_runs().iter().map(|run| run.count).min().unwrap_or(0);
                let got = subject.runs.allocate_smallest(most);
                promise!(got.is_some() == (most > 0 && shortest > 0), "allocate_smallest({most}) gave {got:?}");
                if let Some(run) = got {
                    promise!(run.count <= most && model.all(run, false), "{run:?} for at most {most} is not free");
                    let exact = shortest >= 64 || run.count == shortest.min(most);
                    promise!(exact, "{run:?} of at most {most} when a run of {shortest} is free");
                    model.set(run, true);
                    live.push(run);
                }
            }
            11 if !live.is_empty() => {
                let at = random.below(u32::try_from(live.len()).unwrap()) as usize;
                let (run, more) = (live[at], any_count(&mut random, 20));
                let behind = Run { first: run.first + run.count, count: more };
                let must = model.all(behind, false);
                let got = subject.runs.extend(run, more);
                promise!(got == must, "{run:?} longer by {more}: {got}, not {must}");
                if got {
                    model.set(behind, true);
                    live[at].count += more;
                }
            }
            12 if random.below(4) == 0 => {
                let wanted = 1 + random.below(2 * most_units);
                let free = model.0.iter().skip(wanted as usize).all(|used| !used);
                if wanted > units {
                    subject.runs.grow(wanted).unwrap();
                } else {
                    promise!(subject.runs.shrink(wanted) == Ok(free), "shrinking to {wanted}, though not {free}");
                }
                if wanted > units || free {
                    model.0.resize(wanted as usize, false);
                    units = wanted;
                }
            }
            11 | 12 => {}
            0..=3 => {
                let count = any_count(&mut random, units);
                let free = model.free_runs();
                let own = free.iter().filter(|run| class_of(run.count) == class_of(count)).count();
                let most = if own <= SEARCH_STEPS { count } else { rounded_up(count) };
                let must = count > 0 && free.iter().any(|run| run.count >= most);
                let fits = subject.runs.fits(count);
                let got = subject.allocate(count);
                promise!(got.is_some() || !must, "{count} units were refused");
                promise!(got.is_some() == fits, "fits({count}) said {fits}");
                if let Some(run) = got {
                    promise!(run.count == count && model.all(run, false), "{run:?} for {count} is not free");
                    model.set(run, true);
                    live.push(run);
                }
            }
            4 | 5 => {
                let (count, max_runs) = (any_count(&mut random, units), random.below(7) as usize);
                let mut free: Vec<u32> = model.free_runs().iter().map(|run| run.count).collect();
                free.sort_unstable_by(|a, b| b.cmp(a));
                let most: u32 = free.iter().take(max_runs).sum();
                let must = count <= most - most.div_ceil(9) || (free.len() <= max_runs && count <= most);
                let fits = subject.runs.fits_spread(count, max_runs);
                let before = live.len();
                let got = subject.spread(count, max_runs, &mut live);
                promise!(got == fits, "fits_spread({count}, {max_runs}) said {fits}");
                promise!(got || !must || count == 0, "{count} units in {max_runs} runs were refused, of {most}");
                let new = live.get(before..).ok_or("runs of others are gone")?;
                promise!(got || new.is_empty(), "a failed spread gave {new:?}");
                promise!(new.len() <= max_runs, "{} runs, not {max_runs}", new.len());
                for run in new {
                    promise!(model.all(*run, false), "{run:?} of a spread is not free");
                    model.set(*run, true);
                }
                let together: u32 = new.iter().map(|run| run.count).sum();
                promise!(!got || together == count, "a spread of {together} units, not {count}");
            }
            6 => {
                let count =
                    if random.below(4) == 0 { u32::MAX - random.below(3) } else { any_count(&mut random, units) };
                let run = Run { first: random.below(units + 2), count };
                if !model.all(run, true) {
                    let refused = subject.free(run).err().map(|error| error.status);
                    promise!(refused == Some(NMC_ERR_INTERNAL), "{run:?} is not in use but was freed");
                }
            }
            _ if live.is_empty() => {}
            part => {
                let at = random.below(u32::try_from(live.len()).unwrap()) as usize;
                let mut run = live.swap_remove(at);
                if part == 7 && run.count > 1 {
                    let count = 1 + random.below(run.count - 1);
                    live.push(Run { first: run.first + count, count: run.count - count });
                    run.count = count;
                }
                promise!(subject.free(run).is_ok(), "{run:?} was in use but not freed");
                model.set(run, false);
            }
        }
        check_state(&subject.runs, &model).map_err(|what| format!("call {call}: {what}"))?;
    }

    let again = Runs::with_used(units, &mut live).map_err(|error| error.message)?;
    check_state(&again, &model).map_err(|what| format!("after recovery: {what}"))?;
    for run in &live {
        promise!(subject.free(*run).is_ok(), "{run:?} was in use but not freed");
    }
    check_state(&subject.runs, &Model(vec![false; units as usize])).map_err(|what| format!("at the end: {what}"))
}

#[test]
fn every_call_does_what_the_model_does_and_recovery_gives_the_same_state() {
    for (seed, units) in [1, 2, 15, 63, 64, 65, 130, 300, 700].into_iter().enumerate() {
        let kept = run_against_the_model(units, seed as u64, 8_000, Fault::None);
        assert_eq!(kept, Ok(()), "seed {seed}, {units} units");
    }
}

#[test]
fn control_the_model_catches_a_broken_allocator() {
    for (fault, complaint) in [
        (Fault::FreeDoesNotCoalesce, "free runs"),
        (Fault::APlaceIsForgottenWithOneOfItsRuns, "free runs"),
        (Fault::RunsOverlap, "is not free"),
        (Fault::OnlyTheOwnClassIsSearched, "were refused"),
        (Fault::AFailedSpreadKeepsARun, "units in use differ"),
        (Fault::ASpreadHasARunTooMany, "said"),
        (Fault::AnyFreeIsAccepted, "is not in use but was freed"),
    ] {
        for seed in 0..4 {
            let caught = run_against_the_model(300, seed, 25_000, fault).unwrap_err();
            assert!(caught.contains(complaint), "{fault:?}: {caught}");
        }
    }
}

#[test]
fn classes_are_in_order_and_narrow_up_to_the_longest_run() {
    let mut counts: Vec<u32> = (1..100_000).collect();
    counts.extend((0..32).flat_map(|bit| (0..16).map(move |n| (1u32 << bit).saturating_add((1 << bit) / 16 * n))));
    counts.extend([u32::MAX - 1, u32::MAX]);
    counts.sort_unstable();
    for pair in counts.windows(2) {
        let (shorter, longer) = (pair[0], pair[1]);
        assert!(class_of(shorter) <= class_of(longer) && class_of(longer) < CLASSES, "{shorter} {longer}");
        let same = class_of(shorter) == class_of(longer);
        assert!(!same || longer - shorter <= shorter / 8, "{shorter} and {longer} are in one class");
    }
    for exact in 1..64 {
        assert_eq!(class_of(exact), exact as usize);
    }
    assert_eq!(class_of(u32::MAX), CLASSES - 1);
}

#[test]
fn recovery_refuses_runs_that_cannot_be() {
    let run = |first, count| Run { first, count };
    for bad in [
        [run(0, 4), run(3, 1)],
        [run(5, 1), run(5, 1)],
        [run(0, 1), run(9, 2)],
        [run(0, 1), run(u32::MAX, u32::MAX)],
        [run(2, u32::MAX - 1), run(1, 1)],
        [run(4, 0), run(1, 1)],
    ] {
        let status = Runs::with_used(10, &mut bad.clone()).err().map(|error| error.status);
        assert_eq!(status, Some(NMC_ERR_CORRUPT), "{bad:?}");
    }
    let good = Runs::with_used(10, &mut [run(7, 3), run(0, 2), run(2, 1)]).unwrap();
    assert_eq!(good.map(10), "###....###");
}

#[test]
fn a_spread_is_one_run_if_that_fits_and_else_begins_with_the_largest() {
    let mut used = [2, 6, 13, 16].map(|first| Run { first, count: 1 });
    let mut runs = Runs::with_used(20, &mut used).unwrap();
    assert_eq!(runs.map(20), "..#...#......#..#...");
    let mut out = Vec::new();
    assert!(runs.allocate_spread(3, 4, &mut out));
    assert_eq!(out.drain(..).map(|run| run.count).collect::<Vec<_>>(), [3]);
    assert!(!runs.allocate_spread(9, 1, &mut out) && !runs.allocate_spread(14, 9, &mut out) && out.is_empty());
    assert!(runs.allocate_spread(8, 2, &mut out));
    assert_eq!(out, [Run { first: 7, count: 6 }, out[1]]);
    assert_eq!(out[1].count, 2, "the rest is a good fit, not a piece of a longer run");
    assert_eq!(runs.fragmentation(), Fragmentation { free_units: 5, free_runs: 2, largest_run: 3 });
}

#[test]
fn a_fit_behind_eight_shorter_runs_of_its_class_is_missed_and_not_told_of() {
    // Gaps of 64, 64, .., 65.
    let mut used: Vec<Run> = (0..=8).map(|n| Run { first: 64 + 65 * n, count: 1 }).collect();
    used[8].first += 1;
    let mut runs = Runs::with_used(used[8].first + 1, &mut used).unwrap();
    assert_eq!(runs.fragmentation(), Fragmentation { free_units: 577, free_runs: 9, largest_run: 64 });
    assert!(!runs.fits(65) && !runs.fits_spread(65, 1) && runs.fits_spread(65, 2) && runs.fits_spread(577, 9));
    runs.allocate(64).unwrap();
    assert_eq!(runs.allocate(65), Some(Run { first: 520, count: 65 }));
}

#[test]
fn what_is_resized_knows_the_same_runs() {
    let mut runs = Runs::new(200).unwrap();
    let kept = [runs.allocate(30), runs.allocate(3), runs.allocate(100)].map(|run| run.unwrap());
    runs.free(kept[1]).unwrap();
    runs.grow(5000).unwrap();
    assert_eq!(runs.fragmentation(), Fragmentation { free_units: 4870, free_runs: 2, largest_run: 4867 });
    assert_eq!(runs.allocate(3), Some(kept[1]));
    assert_eq!((runs.shrink(132), runs.shrink(133), runs.free_units()), (Ok(false), Ok(true), 0));
    assert!(runs.allocate(1).is_none() && runs.free(kept[2]).is_ok() && runs.allocate(100) == Some(kept[2]));
}

#[test]
fn the_map_has_the_width_asked_for_or_a_character_a_unit() {
    let mut runs = Runs::new(1000).unwrap();
    runs.allocate(350).unwrap();
    assert_eq!(runs.map(10), "###+......");
    assert_eq!(runs.map(1), "+");
    assert_eq!((runs.map(0).len(), runs.map(999).len(), runs.map(5000).len()), (0, 999, 1000));
    assert_eq!(Runs::new(0).unwrap().map(5), "");
}

#[test]
fn no_units_at_all_is_a_full_allocator() {
    let mut runs = Runs::new(0).unwrap();
    assert_eq!((runs.allocate(1), runs.fits_spread(1, 9), runs.free_units()), (None, false, 0));
    assert!(runs.free(Run { first: 0, count: 1 }).is_err());
    assert_eq!(runs.fragmentation(), Fragmentation { free_units: 0, free_runs: 0, largest_run: 0 });
}

#[test]
#[ignore = "reserves 4 GB of memory, of which it touches little"]
fn the_numbers_of_the_most_units_do_not_overflow() {
    let units = u32::MAX - 1;
    let tail = Run { first: units - 3, count: 3 };
    let mut runs = Runs::with_used(units, &mut [tail]).unwrap();
    assert!(runs.fits(units - 3) && !runs.fits(units - 2) && !runs.fits(u32::MAX) && !runs.fits_spread(u32::MAX, 9));
    runs.free(Run { first: units - 1, count: 1 }).unwrap();
    assert!(runs.free(Run { first: units - 1, count: 1 }).is_err());
    assert!(runs.free(Run { first: units - 1, count: u32::MAX }).is_err());
    assert!(runs.fits_spread(units - 2, 2) && !runs.fits_spread(units - 1, 2));
    runs.free(Run { first: units - 3, count: 2 }).unwrap();
    assert_eq!(runs.fragmentation(), Fragmentation { free_units: units, free_runs: 1, largest_run: units });
    let run = runs.allocate(units).unwrap();
    assert_eq!((run, runs.used(), runs.map(3).as_str()), (Run { first: 0, count: units }, units, "###"));
    runs.free(run).unwrap();
    assert!(runs.fits(units) && runs.map(3) == "...");
}
