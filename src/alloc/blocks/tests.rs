#![allow(clippy::unwrap_used, reason = "a test may")]
use super::super::model::{Model, any_count, promise};
use super::*;
use crate::base::random::Random;

/// Ways to break the allocator, for the controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    ABlockIsTakenTwice,
    ABlockIsLost,
    TheStackHidesRuns,
    ABadBatchIsHalfGiven,
}

fn check_state(blocks: &Blocks, model: &Model) -> std::result::Result<(), String> {
    let used = model.used();
    promise!(blocks.used() == used, "{} in use, not {used}", blocks.used());
    promise!(blocks.used() + blocks.free() == blocks.total(), "used and free are not all");
    promise!(blocks.total() as usize == model.0.len(), "{} blocks, not {}", blocks.total(), model.0.len());
    let same = model.0.iter().enumerate().all(|(at, used)| (blocks.map()[at / 64] >> (at % 64) & 1 == 1) == *used);
    promise!(same, "the map differs");
    let below = (blocks.runs.units(), blocks.runs.used());
    let held = used + u32::try_from(blocks.singles.len()).unwrap();
    promise!(below == (blocks.total(), held), "{below:?} below, {held} are held");
    let most = most_singles(blocks.total());
    promise!(blocks.singles.len() <= most, "{} on the stack, at most {most}", blocks.singles.len());
    Ok(())
}

/// The largest run that must be found, and the largest that can be.
fn bounds(model: &Model) -> (u32, u32) {
    let longest = model.free_runs().iter().map(|run| run.count).max().unwrap_or(0);
    (longest - longest / 9, longest)
}

fn run_against_the_model(total: u32, seed: u64, calls: u32, fault: Fault) -> std::result::Result<(), String> {
    let mut blocks = Blocks::new(total).unwrap();
    let mut model = Model(vec![false; total as usize]);
    // Blocks that were taken alone, and runs.
    let (mut single, mut runs): (Vec<u32>, Vec<Run>) = (Vec::new(), Vec::new());
    let mut random = Random(seed);
    for call in 0..calls {
        let growing = call / 300 % 2 == 0;
        match random.below(if growing { 12 } else { 18 }) {
            0..=2 => {
                let mut out = vec![u32::MAX; any_count(&mut random, total) as usize];
                let must = out.len() <= blocks.free() as usize;
                promise!(blocks.take(&mut out) == must, "{} blocks: not {must}", out.len());
                if must {
                    if fault == Fault::ABlockIsTakenTwice && out.len() > 5 {
                        out[1] = out[0];
                    }
                    for block in &out {
                        let run = Run { first: *block, count: 1 };
                        promise!(model.all(run, false), "block {block} is not free");
                        model.set(run, true);
                    }
                    single.extend(out);
                }
            }
            3..=5 => {
                let count = any_count(&mut random, total);
                let (must, can) = bounds(&model);
                let got = match fault {
                    Fault::TheStackHidesRuns => {
                        let got = blocks.runs.allocate(count);
                        if let Some(run) = got {
                            flip(&mut blocks.used_bits, run.range());
                            blocks.used += count;
                        }
                        got
                    }
                    _ => blocks.take_run(count),
                };
                promise!(got.is_some() || count == 0 || count > must, "a run of {count} was refused, of {must}");
                promise!(got.is_none() || (count > 0 && count <= can), "{got:?} for {count}, of {can}");
                if let Some(run) = got {
                    promise!(run.count == count && model.all(run, false), "{run:?} for {count} is not free");
                    model.set(run, true);
                    runs.push(run);
                }
            }
            6 if !runs.is_empty() => {
                let at = random.below(u32::try_from(runs.len()).unwrap()) as usize;
                let (run, more) = (runs[at], any_count(&mut random, 20));
                let behind = Run { first: run.first + run.count, count: more };
                let must = model.all(behind, false);
                promise!(blocks.extend_run(run, more) == Ok(must), "{run:?} longer by {more} is not {must}");
                if must {
                    model.set(behind, true);
                    runs[at].count += more;
                }
            }
            7 => {
                // Something is wrong with these: the whole batch must stay.
                let mut batch: Vec<u32> = single.iter().rev().take(random.below(5) as usize).copied().collect();
                let bad = match random.below(3) {
                    0 => blocks.total() + random.below(200),
                    1 => batch.first().copied().unwrap_or(u32::MAX),
                    _ => model.free_runs().first().map_or(u32::MAX, |run| run.first),
                };
                let at = random.below(u32::try_from(batch.len()).unwrap() + 1) as usize;
                batch.insert(at, bad);
                let refused = blocks.give(&batch).err().map(|error| error.status);
                promise!(refused == Some(NMC_ERR_INVALID_ARG), "{batch:?} was given");
                if fault == Fault::ABadBatchIsHalfGiven && at > 0 {
                    promise!(blocks.give(&batch[..1]).is_ok(), "{} was in use", batch[0]);
                }
                let run = Run { first: random.below(total + 2), count: any_count(&mut random, total) };
                if !model.all(run, true) {
                    promise!(blocks.give_run(run).is_err(), "{run:?} is not in use but was freed");
                    promise!(blocks.extend_run(run, 1).is_err(), "{run:?} is not in use but was extended");
                }
            }
            8 => {
                let (must, can) = bounds(&model);
                let Fragmentation { free_units, free_runs, largest_run } = blocks.scatter();
                promise!((must..=can).contains(&largest_run), "largest {largest_run}, not {must} to {can}");
                let (free, told) = (model.free_runs().len(), blocks.fragmentation());
                promise!(free_runs as usize == free, "{free_runs} free runs, not {free}");
                promise!(free_units == blocks.free(), "{free_units} free below, {} here", blocks.free());
                let whole = free_units == largest_run;
                promise!((0.0..1.0).contains(&told) && (told == 0.0) == whole, "fragmentation {told}");
            }
            9 if random.below(8) == 0 => {
                let wanted = 1 + random.below(2 * total);
                let can = model.0.iter().skip(wanted as usize).all(|used| !used);
                if wanted >= blocks.total() {
                    promise!(blocks.grow(wanted).is_ok(), "growing to {wanted}");
                } else {
                    promise!(blocks.shrink(wanted) == Ok(can), "shrinking to {wanted} is not {can}");
                }
                if can {
                    model.0.resize(wanted as usize, false);
                }
            }
            10..=13 => {
                let mut batch = Vec::new();
                for _ in 0..any_count(&mut random, total).min(u32::try_from(single.len()).unwrap()) {
                    let at = random.below(u32::try_from(single.len()).unwrap()) as usize;
                    batch.push(single.swap_remove(at));
                }
                promise!(blocks.give(&batch).is_ok(), "{batch:?} was in use but not given");
                if fault == Fault::ABlockIsLost && !batch.is_empty() {
                    blocks.singles.pop();
                }
                for block in &batch {
                    model.set(Run { first: *block, count: 1 }, false);
                }
            }
            _ if runs.is_empty() => {}
            part => {
                let at = random.below(u32::try_from(runs.len()).unwrap()) as usize;
                let mut run = runs.swap_remove(at);
                if part % 2 == 0 && run.count > 1 {
                    let kept = 1 + random.below(run.count - 1);
                    runs.push(Run { first: run.first, count: kept });
                    run = Run { first: run.first + kept, count: run.count - kept };
                }
                promise!(blocks.give_run(run).is_ok(), "{run:?} was in use but not freed");
                model.set(run, false);
            }
        }
        check_state(&blocks, &model).map_err(|what| format!("call {call}: {what}"))?;
    }
    promise!(blocks.give(&single).is_ok(), "blocks were in use but not given");
    for run in runs {
        promise!(blocks.give_run(run).is_ok(), "{run:?} was in use but not freed");
    }
    let all = blocks.scatter();
    promise!(all.free_units == blocks.total() && all.free_runs == 1, "at the end: {all:?}");
    Ok(())
}

#[test]
fn every_call_does_what_the_model_does() {
    for (seed, total) in [1, 2, 15, 64, 65, 300, 700, 3000].into_iter().enumerate() {
        let kept = run_against_the_model(total, seed as u64, 6_000, Fault::None);
        assert_eq!(kept, Ok(()), "seed {seed}, {total} blocks");
    }
}

#[test]
fn control_the_model_catches_a_broken_allocator() {
    for (fault, complaint) in [
        (Fault::ABlockIsTakenTwice, "is not free"),
        (Fault::ABlockIsLost, "are held"),
        (Fault::TheStackHidesRuns, "was refused"),
        (Fault::ABadBatchIsHalfGiven, "in use, not"),
    ] {
        for seed in 0..3 {
            let caught = run_against_the_model(300, seed, 6_000, fault).unwrap_err();
            assert!(caught.contains(complaint), "{fault:?}: {caught}");
        }
    }
}

#[test]
fn the_books_take_little_more_than_a_byte_a_block() {
    for total in [1, 100, 2048, 131_072, 1 << 20] {
        let mut blocks = Blocks::new(total).unwrap();
        let mut all = vec![0; total as usize];
        assert!(blocks.take(&mut all));
        blocks.give(&all).unwrap();
        let most = total as usize / 4 * 5 + 4096;
        assert!(blocks.bytes() <= most, "{} bytes for {total} blocks", blocks.bytes());
    }
}

#[test]
fn single_blocks_leave_long_runs_alone() {
    let mut blocks = Blocks::new(1024).unwrap();
    let all = blocks.take_run(1024).unwrap();
    for first in (0..512).step_by(2) {
        blocks.give_run(Run { first, count: 1 }).unwrap();
    }
    blocks.give_run(Run { first: 512, count: 512 }).unwrap();
    assert!(blocks.take(&mut [0; 256]));
    assert_eq!(blocks.take_run(512), Some(Run { first: 512, count: 512 }), "{all:?}");
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for total in [0, MAX_BLOCKS + 1, u32::MAX] {
        let status = Blocks::new(total).err().map(|error| error.status);
        assert_eq!(status, Some(NMC_ERR_INVALID_ARG), "{total}");
    }
    let mut blocks = Blocks::new(10).unwrap();
    assert!(blocks.grow(9).is_err() && blocks.grow(MAX_BLOCKS + 1).is_err() && blocks.shrink(11) == Ok(false));
    assert_eq!((blocks.take_run(0), blocks.take_run(11), blocks.take_run(u32::MAX)), (None, None, None));
    assert!(blocks.take(&mut []) && !blocks.take(&mut [0; 11]) && blocks.give(&[]).is_ok());
    assert_eq!((blocks.used(), blocks.fragmentation()), (0, 0.0));
}

#[test]
fn a_refusal_says_which_block_and_why() {
    let mut blocks = Blocks::new(100).unwrap();
    let mut out = [0; 3];
    assert!(blocks.take(&mut out));
    for (bad, why) in [(100, "there are 100 blocks"), (50, "not in use"), (out[0], "given twice")] {
        let message = blocks.give(&[out[0], out[1], bad]).unwrap_err().message;
        assert!(message.contains(&format!("block {bad} ")) && message.contains(why), "{message}");
        assert_eq!(blocks.used(), 3);
    }
    blocks.give(&out).unwrap();
}
