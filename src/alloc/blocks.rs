//! The blocks of a KV cache, as numbers: any free blocks, or runs of blocks that follow each other. It knows nothing of
//! what lies in them. No block is ever handed out twice or lost, and what is not in use is refused rather than freed.
//!
//! Runs come from an allocator below ([`Runs`] or [`Buddy`]). Single blocks come from a short stack of free ones, which
//! is refilled with a piece of a run and given back when it is full, or when a run is wanted that does not fit without
//! it. So a block is free here and not in use below, or free here and on the stack, or in use in both.

use super::bits::{all_clear, all_set, flip};
use super::buddy::Buddy;
use super::runs::{Fragmentation, Run, Runs};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_INVALID_ARG;

/// Most blocks: their numbers are positive in 32 bits.
pub const MAX_BLOCKS: u32 = i32::MAX.unsigned_abs();
/// Longest stack of single blocks.
const MOST_SINGLES: u32 = 16 * 1024;
/// How many blocks more than needed are taken when the stack is empty.
const REFILL: u32 = 256;

/// Which allocator the runs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Free runs by size class, found by bitmaps: [`Runs`].
    SizeClass,
    /// Powers of two: [`Buddy`].
    Buddy,
}

impl Strategy {
    /// The better one, by the figures in `docs/decisions/020-block-allocator.md`.
    pub const DEFAULT: Self = Self::SizeClass;
}

#[allow(clippy::large_enum_variant, reason = "there are few, and a box would be a load for every operation")]
enum Level {
    SizeClass(Runs),
    Buddy(Buddy),
}

/// The same call of whichever allocator it is.
macro_rules! below {
    ($level:expr, $runs:ident => $call:expr) => {
        match $level {
            Level::SizeClass($runs) => $call,
            Level::Buddy($runs) => $call,
        }
    };
}

/// The state of all blocks.
pub struct Blocks {
    total: u32,
    used: u32,
    /// One bit a block: it is in use.
    used_bits: Vec<u64>,
    /// Free blocks that are in use below; the last one is handed out first.
    singles: Vec<u32>,
    level: Level,
}

impl Blocks {
    /// All blocks free. A number that is 0 or above [`MAX_BLOCKS`] is `NMC_ERR_INVALID_ARG`.
    pub fn new(total: u32, strategy: Strategy) -> Result<Self> {
        check_total(total)?;
        let level = match strategy {
            Strategy::SizeClass => Level::SizeClass(Runs::new(total)?),
            Strategy::Buddy => Level::Buddy(Buddy::new(total)?),
        };
        let singles = memory::with_capacity(most_singles(total))?;
        Ok(Self { total, used: 0, used_bits: memory::zeroed(total.div_ceil(64) as usize)?, singles, level })
    }

    /// Fills `out` with any free blocks: all or, if there are not enough, none.
    #[inline]
    pub fn take(&mut self, out: &mut [u32]) -> bool {
        if out.len() > self.free() as usize {
            return false;
        }
        let (quick, rest) = out.split_at_mut(out.len().min(self.singles.len()));
        let left = self.singles.len() - quick.len();
        quick.copy_from_slice(&self.singles[left..]);
        self.singles.truncate(left);
        // Neighbours are often together: a word is stored when the next one is another.
        let (mut at, mut word) = (0, self.used_bits[0]);
        for block in &*quick {
            if *block as usize / 64 != at {
                self.used_bits[at] = word;
                at = *block as usize / 64;
                word = self.used_bits[at];
            }
            word |= 1 << (block % 64);
        }
        self.used_bits[at] = word;
        // `free` counts them, so they are not more than a u32 holds.
        #[allow(clippy::cast_possible_truncation, reason = "at most `free` blocks")]
        {
            self.used += quick.len() as u32;
        }
        if !rest.is_empty() {
            self.take_fresh(rest);
        }
        true
    }

    /// Fills `out` from the shortest free runs. The stack is empty, and enough blocks are free.
    #[cold]
    fn take_fresh(&mut self, out: &mut [u32]) {
        let extra = REFILL.min(most_singles_u32(self.total));
        let mut rest = out;
        while !rest.is_empty() {
            let most = u32::try_from(rest.len()).unwrap_or(u32::MAX).saturating_add(extra);
            let Some(run) = below!(&mut self.level, runs => runs.allocate_smallest(most)) else {
                debug_assert!(false, "free blocks are nowhere");
                return;
            };
            let (now, later) = rest.split_at_mut(rest.len().min(run.count as usize));
            let mut next = run.first;
            for slot in &mut *now {
                *slot = next;
                next += 1;
            }
            let taken = Run { first: run.first, count: next - run.first };
            flip(&mut self.used_bits, taken.range());
            self.used += taken.count;
            // The lowest one comes first next time.
            self.singles.extend((next..run.first + run.count).rev());
            rest = later;
        }
    }

    /// Gives blocks back. If one is not in use, no block of this allocator, or given twice, it is
    /// `NMC_ERR_INVALID_ARG` and none is given back.
    #[inline]
    pub fn give(&mut self, blocks: &[u32]) -> Result<()> {
        let (mut at, mut word) = (0, self.used_bits[0]);
        for (number, block) in blocks.iter().enumerate() {
            if *block as usize / 64 != at {
                self.used_bits[at] = word;
                at = *block as usize / 64;
                // Past the end nothing is in use.
                word = self.used_bits.get(at).copied().unwrap_or(0);
            }
            let bit = 1 << (block % 64);
            if word & bit == 0 {
                if let Some(place) = self.used_bits.get_mut(at) {
                    *place = word;
                }
                return Err(self.refuse(blocks, number));
            }
            word ^= bit;
        }
        self.used_bits[at] = word;
        #[allow(clippy::cast_possible_truncation, reason = "as many bits were set")]
        {
            self.used -= blocks.len() as u32;
        }
        let most = most_singles(self.total);
        if self.singles.len() + blocks.len() <= most {
            self.singles.extend_from_slice(blocks);
        } else {
            self.give_many(blocks, most);
        }
        Ok(())
    }

    /// Puts blocks on the stack, of which the older half goes back to runs whenever it is full.
    #[cold]
    fn give_many(&mut self, mut blocks: &[u32], most: usize) {
        while !blocks.is_empty() {
            if self.singles.len() == most {
                self.spill(most / 2);
            }
            let (now, later) = blocks.split_at(blocks.len().min(most - self.singles.len()));
            self.singles.extend_from_slice(now);
            blocks = later;
        }
    }

    /// Undoes what was done before the bad block `at`, and says what is wrong with it.
    #[cold]
    fn refuse(&mut self, blocks: &[u32], at: usize) -> Error {
        for block in &blocks[..at] {
            self.used_bits[*block as usize / 64] |= 1 << (block % 64);
        }
        let (block, total) = (blocks[at], self.total);
        let why = if block >= total {
            format!("there are {total} blocks")
        } else if blocks[..at].contains(&block) {
            "it is given twice in this call".into()
        } else {
            "it is not in use; was it freed before?".into()
        };
        // Numbers are positive in 32 bits; others are what a C program sees as negative.
        let (block, of) = (block.cast_signed(), blocks.len());
        let text = format!("block {block} (number {at} of {of}) cannot be freed: {why}; nothing was freed");
        Error::new(NMC_ERR_INVALID_ARG, text)
    }

    /// One run of `count` blocks; `None` if `count` is 0 or nothing fits.
    #[inline]
    pub fn take_run(&mut self, count: u32) -> Option<Run> {
        let run = match below!(&mut self.level, runs => runs.allocate(count)) {
            Some(run) => run,
            None if count == 0 || count > self.free() || self.singles.is_empty() => return None,
            None => {
                self.settle();
                below!(&mut self.level, runs => runs.allocate(count))?
            }
        };
        flip(&mut self.used_bits, run.range());
        self.used += run.count;
        Some(run)
    }

    /// Makes a run in use longer by the `more` blocks behind it; false if those are not all free, or there are none. A
    /// run that is not wholly in use is `NMC_ERR_INVALID_ARG`.
    pub fn extend_run(&mut self, run: Run, more: u32) -> Result<bool> {
        self.check_used(run)?;
        Ok(self.take_behind(run.first + run.count, more))
    }

    /// Takes the `more` blocks from `first` on, before which no block is free; false if those are not all free, or there
    /// are none.
    pub fn take_behind(&mut self, first: u32, more: u32) -> bool {
        let none = Run { first, count: 0 };
        let wanted = first as usize..first as usize + more as usize;
        if more == 0 || wanted.end > self.total as usize || !all_clear(&self.used_bits, wanted.clone()) {
            return false;
        }
        if !below!(&mut self.level, runs => runs.extend(none, more)) {
            // Some of them are on the stack.
            self.settle();
            if !below!(&mut self.level, runs => runs.extend(none, more)) {
                return false;
            }
        }
        flip(&mut self.used_bits, wanted);
        self.used += more;
        true
    }

    /// Gives back a run, or a part of one such as its tail. If it is not wholly in use it is `NMC_ERR_INVALID_ARG` and
    /// nothing changed.
    #[inline]
    pub fn give_run(&mut self, run: Run) -> Result<()> {
        self.check_used(run)?;
        below!(&mut self.level, runs => runs.release(run));
        flip(&mut self.used_bits, run.range());
        self.used -= run.count;
        Ok(())
    }

    #[inline]
    fn check_used(&self, run: Run) -> Result<()> {
        if run.count == 0 || run.range().end > self.total as usize || !all_set(&self.used_bits, run.range()) {
            return Err(self.not_in_use(run));
        }
        Ok(())
    }

    #[cold]
    fn not_in_use(&self, run: Run) -> Error {
        let (Run { first, count }, total) = (run, self.total);
        let why = if count == 0 {
            "has no blocks".into()
        } else if run.range().end > total as usize {
            format!("reaches past the {total} blocks")
        } else {
            "is not wholly in use; was it freed before?".into()
        };
        Error::new(NMC_ERR_INVALID_ARG, format!("the run of {count} blocks at {first} {why}"))
    }

    /// All single blocks go back to runs: after that, what is free is as much in one piece as it can be.
    pub fn settle(&mut self) {
        self.spill(self.singles.len());
    }

    /// The oldest `count` of the stack go back to runs, neighbours together.
    fn spill(&mut self, count: usize) {
        let old = &mut self.singles[..count];
        old.sort_unstable();
        for run in old.chunk_by(|a, b| a + 1 == *b) {
            let run = Run { first: run[0], count: u32::try_from(run.len()).unwrap_or(0) };
            below!(&mut self.level, runs => runs.release(run));
        }
        self.singles.drain(..count);
    }

    /// Adds free blocks at the end. A number that is lower, or above [`MAX_BLOCKS`], is `NMC_ERR_INVALID_ARG`. If it fails,
    /// nothing changed.
    pub fn grow(&mut self, total: u32) -> Result<()> {
        if total < self.total {
            crate::bail!(NMC_ERR_INVALID_ARG, "{total} blocks are fewer than the {} that there are", self.total);
        }
        check_total(total)?;
        let words = total.div_ceil(64) as usize;
        memory::reserve_to(&mut self.used_bits, words)?;
        memory::reserve_to(&mut self.singles, most_singles(total))?;
        below!(&mut self.level, runs => runs.grow(total))?;
        self.used_bits.resize(words, 0);
        self.total = total;
        Ok(())
    }

    /// Takes the blocks from `total` on away, if all of them are free; false, and no change, if one is in use.
    pub fn shrink(&mut self, total: u32) -> Result<bool> {
        if total >= self.total {
            return Ok(total == self.total);
        }
        if !all_clear(&self.used_bits, total as usize..self.total as usize) {
            return Ok(false);
        }
        self.settle();
        if !below!(&mut self.level, runs => runs.shrink(total))? {
            return Ok(false);
        }
        self.used_bits.truncate(total.div_ceil(64) as usize);
        self.total = total;
        Ok(true)
    }

    /// All blocks.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Blocks in use.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// Blocks not in use.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.total - self.used
    }

    /// Where the runs come from.
    #[must_use]
    pub const fn strategy(&self) -> Strategy {
        match self.level {
            Level::SizeClass(_) => Strategy::SizeClass,
            Level::Buddy(_) => Strategy::Buddy,
        }
    }

    /// How scattered the free blocks are; [settles](Self::settle) them first.
    pub fn scatter(&mut self) -> Fragmentation {
        self.settle();
        below!(&self.level, runs => runs.fragmentation())
    }

    /// The largest count that [`Self::take_run`] gives now.
    pub fn largest_run(&mut self) -> u32 {
        self.scatter().largest_run
    }

    /// 1 - largest run / free blocks: 0 if all that is free can be had as one run, near 1 if it lies in many pieces. 0 if
    /// nothing is free.
    pub fn fragmentation(&mut self) -> f32 {
        fragmentation(self.scatter())
    }

    /// One bit a block, the lowest of the first word being block 0: it is in use. Bits past the end are 0.
    #[must_use]
    pub fn map(&self) -> &[u64] {
        &self.used_bits
    }

    /// Bytes of memory that it takes: at most 5/4 a block, and 4 KiB.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let own = size_of::<Self>() + self.used_bits.capacity() * 8 + self.singles.capacity() * 4;
        own + below!(&self.level, runs => runs.bytes())
    }
}

/// 1 - largest run / free blocks, or 0 if nothing is free.
#[must_use]
pub fn fragmentation(scatter: Fragmentation) -> f32 {
    let Fragmentation { free_units, largest_run, .. } = scatter;
    #[allow(clippy::cast_possible_truncation, reason = "between 0 and 1")]
    if free_units == 0 { 0.0 } else { (1.0 - f64::from(largest_run) / f64::from(free_units)) as f32 }
}

/// Length of the stack, so that it takes at most a quarter of a byte for every block.
fn most_singles_u32(total: u32) -> u32 {
    (total / 16).clamp(16, MOST_SINGLES)
}

fn most_singles(total: u32) -> usize {
    most_singles_u32(total) as usize
}

/// Refuses numbers that cannot be.
fn check_total(total: u32) -> Result<()> {
    if total == 0 || total > MAX_BLOCKS {
        crate::bail!(NMC_ERR_INVALID_ARG, "{total} blocks: there must be 1 to {MAX_BLOCKS}");
    }
    Ok(())
}

/// Bytes that the books of so many blocks take, about.
#[must_use]
pub const fn book_bytes(total: u32) -> u64 {
    total as u64 / 4 * 5
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::super::model::{Model, Random, promise};
    use super::*;

    const STRATEGIES: [Strategy; 2] = [Strategy::SizeClass, Strategy::Buddy];

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
        let below = below!(&blocks.level, runs => (runs.units(), runs.used()));
        let held = used + u32::try_from(blocks.singles.len()).unwrap();
        promise!(below == (blocks.total(), held), "{below:?} below, {held} are held");
        let most = most_singles(blocks.total());
        promise!(blocks.singles.len() <= most, "{} on the stack, at most {most}", blocks.singles.len());
        Ok(())
    }

    /// The largest run that must be found, and the largest that can be.
    fn bounds(model: &Model, strategy: Strategy) -> (u32, u32) {
        let free = model.free_runs();
        let longest = free.iter().map(|run| run.count).max().unwrap_or(0);
        match strategy {
            Strategy::SizeClass => (longest - longest / 9, longest),
            Strategy::Buddy => {
                // The order of the largest aligned block in a run, and what lies behind its beginning. Of several as large
                // it is the first.
                let block = |run: &Run| {
                    let end = run.first + run.count;
                    let order = (0..20).rev().find(|n| run.first.next_multiple_of(1 << n) + (1 << n) <= end)?;
                    Some((order, end - run.first.next_multiple_of(1 << order)))
                };
                let blocks: Vec<(u32, u32)> = free.iter().filter_map(block).collect();
                let order = blocks.iter().map(|(order, _)| *order).max();
                let largest = blocks.iter().find(|(n, _)| Some(*n) == order).map_or(0, |(_, behind)| *behind);
                // Before single blocks are put back, others are the largest.
                (largest, longest)
            }
        }
    }

    fn run_against_the_model(
        total: u32,
        strategy: Strategy,
        seed: u64,
        calls: u32,
        fault: Fault,
    ) -> std::result::Result<(), String> {
        let mut blocks = Blocks::new(total, strategy).unwrap();
        let mut model = Model(vec![false; total as usize]);
        // Blocks that were taken alone, and runs.
        let (mut single, mut runs): (Vec<u32>, Vec<Run>) = (Vec::new(), Vec::new());
        let mut random = Random(seed);
        for call in 0..calls {
            let growing = call / 300 % 2 == 0;
            match random.below(if growing { 12 } else { 18 }) {
                0..=2 => {
                    let mut out = vec![u32::MAX; random.count(total) as usize];
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
                    let count = random.count(total);
                    let (must, can) = bounds(&model, strategy);
                    let got = match fault {
                        Fault::TheStackHidesRuns => {
                            let got = below!(&mut blocks.level, runs => runs.allocate(count));
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
                    let (run, more) = (runs[at], random.count(20));
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
                    let run = Run { first: random.below(total + 2), count: random.count(total) };
                    if !model.all(run, true) {
                        promise!(blocks.give_run(run).is_err(), "{run:?} is not in use but was freed");
                        promise!(blocks.extend_run(run, 1).is_err(), "{run:?} is not in use but was extended");
                    }
                }
                8 => {
                    let (must, can) = bounds(&model, strategy);
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
                    for _ in 0..random.count(total).min(u32::try_from(single.len()).unwrap()) {
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
        for strategy in STRATEGIES {
            for (seed, total) in [1, 2, 15, 64, 65, 300, 700, 3000].into_iter().enumerate() {
                let kept = run_against_the_model(total, strategy, seed as u64, 6_000, Fault::None);
                assert_eq!(kept, Ok(()), "{strategy:?}, seed {seed}, {total} blocks");
            }
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
            for strategy in STRATEGIES {
                for seed in 0..3 {
                    let caught = run_against_the_model(300, strategy, seed, 6_000, fault).unwrap_err();
                    assert!(caught.contains(complaint), "{fault:?}: {caught}");
                }
            }
        }
    }

    #[test]
    fn the_books_take_little_more_than_a_byte_a_block() {
        for strategy in STRATEGIES {
            for total in [1, 100, 2048, 131_072, 1 << 20] {
                let mut blocks = Blocks::new(total, strategy).unwrap();
                let mut all = vec![0; total as usize];
                assert!(blocks.take(&mut all));
                blocks.give(&all).unwrap();
                let most = total as usize / 4 * 5 + 4096;
                assert!(blocks.bytes() <= most, "{strategy:?}: {} bytes for {total} blocks", blocks.bytes());
            }
        }
    }

    #[test]
    fn single_blocks_leave_long_runs_alone() {
        for strategy in STRATEGIES {
            let mut blocks = Blocks::new(1024, strategy).unwrap();
            let all = blocks.take_run(1024).unwrap();
            for first in (0..512).step_by(2) {
                blocks.give_run(Run { first, count: 1 }).unwrap();
            }
            blocks.give_run(Run { first: 512, count: 512 }).unwrap();
            assert!(blocks.take(&mut [0; 256]));
            assert_eq!(blocks.take_run(512), Some(Run { first: 512, count: 512 }), "{strategy:?}: {all:?}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for strategy in STRATEGIES {
            for total in [0, MAX_BLOCKS + 1, u32::MAX] {
                let status = Blocks::new(total, strategy).err().map(|error| error.status);
                assert_eq!(status, Some(NMC_ERR_INVALID_ARG), "{total}");
            }
            let mut blocks = Blocks::new(10, strategy).unwrap();
            assert!(blocks.grow(9).is_err() && blocks.grow(MAX_BLOCKS + 1).is_err() && blocks.shrink(11) == Ok(false));
            assert_eq!((blocks.take_run(0), blocks.take_run(11), blocks.take_run(u32::MAX)), (None, None, None));
            assert!(blocks.take(&mut []) && !blocks.take(&mut [0; 11]) && blocks.give(&[]).is_ok());
            assert_eq!((blocks.used(), blocks.fragmentation()), (0, 0.0));
        }
    }

    #[test]
    fn a_refusal_says_which_block_and_why() {
        let mut blocks = Blocks::new(100, Strategy::DEFAULT).unwrap();
        let mut out = [0; 3];
        assert!(blocks.take(&mut out));
        for (bad, why) in [(100, "there are 100 blocks"), (50, "not in use"), (out[0], "given twice")] {
            let message = blocks.give(&[out[0], out[1], bad]).unwrap_err().message;
            assert!(message.contains(&format!("block {bad} ")) && message.contains(why), "{message}");
            assert_eq!(blocks.used(), 3);
        }
        blocks.give(&out).unwrap();
    }
}
