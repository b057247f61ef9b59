//! An allocator of runs of units: the pages of a heap, or the 32-byte units of a key slab. It never hands out a unit
//! twice, free neighbours are always one run, and a run that is not wholly in use is refused rather than freed.
//! It is a segregated fit: the search takes a bounded number of steps however fragmented the units are, and only the
//! used-bits of a run (64 to a word) cost time in its length. One owner at a time; recovery rebuilds it.
//!
//! The books lie beside the units, never in them: one bit a unit for "in use", and for every class of lengths a set of the
//! places where a run of it begins, a bit for 64 units. Where in these it begins, and how long it is, the used-bits tell;
//! only of a run of 64 units or more the length is written down, where it begins and where it ends, which at most one run
//! does in the same 64 units. So the books take less than a byte a unit, and those of a million fit the second-level cache.

use super::bits::{all_clear, all_set, flip, next, words};
use super::places::Places;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_INTERNAL;
use std::iter::successors;
use std::ops::Range;

/// Units of a place; as many as a word has bits.
const PLACE: u32 = 64;
/// The length from which on it is written down, and a class has several lengths.
const LONG: u32 = PLACE;
/// Classes of one power of two from [`LONG`] on, as a power of two: their runs differ in length by less than 1/8.
const SPLIT_LOG2: u32 = 3;
/// The class of the longest run, plus one.
const CLASSES: usize = class_of(u32::MAX) + 1;
/// How many runs of a request's own class are looked at: there some fit and some do not.
const SEARCH_STEPS: usize = 8;

/// Units that follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Number of the first unit.
    pub first: u32,
    /// How many units.
    pub count: u32,
}

impl Run {
    /// The unit numbers; wide enough that no run overflows.
    pub(crate) const fn range(self) -> Range<usize> {
        let first = self.first as usize;
        first..first + self.count as usize
    }
}

/// How scattered the free units are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragmentation {
    /// Units that are free.
    pub free_units: u32,
    /// Runs that they form.
    pub free_runs: u32,
    /// The largest count that [`Runs::allocate`] would give. A free run that is longer, by less than 1/8, may hide
    /// behind others of its class.
    pub largest_run: u32,
}

/// The state of all units.
pub struct Runs {
    units: u32,
    used: u32,
    free_runs: u32,
    /// One bit a class: it has runs.
    filled: [u64; CLASSES.div_ceil(64)],
    /// Where runs of each class begin.
    places: Places,
    /// One bit a unit: it is in use. So are those past the last unit.
    used_bits: Vec<u64>,
    /// For every place the lengths of the long runs that begin and end in it.
    lengths: Vec<Lengths>,
}

/// The lengths of the long free runs that begin and end in a place; they mean nothing where none does.
#[derive(Clone, Copy, Default)]
struct Lengths {
    from: u32,
    to: u32,
}

/// The class of a run by its length; longer runs are in the same or a later class. Short of [`LONG`] a class is one
/// length, after that there are eight in every power of two. Class 0 stays empty.
const fn class_of(count: u32) -> usize {
    if count < LONG {
        return count as usize;
    }
    let level = count.ilog2() - SPLIT_LOG2;
    let above = level - (LONG.ilog2() - SPLIT_LOG2);
    (LONG - (1 << SPLIT_LOG2) + (above << SPLIT_LOG2) + (count >> level)) as usize
}

/// The error of a free that would free what is free.
#[cold]
pub(super) fn not_in_use(run: Run, units: u32) -> Error {
    let Run { first, count } = run;
    let why = "is not wholly in use among";
    Error::new(NMC_ERR_INTERNAL, format!("a run of {count} units at {first} {why} {units} units; was it freed before?"))
}

/// Turns the bits past the last unit, in its word.
fn turn_end(used_bits: &mut [u64], units: u32) {
    let end = units as usize;
    flip(used_bits, end..end.next_multiple_of(64));
}

impl Runs {
    /// All units free. The books are zero pages until they are used.
    pub fn new(units: u32) -> Result<Self> {
        let mut runs = Self::without_free_runs(units)?;
        runs.link(Run { first: 0, count: units });
        Ok(runs)
    }

    /// The state in which exactly the runs of `used` are in use; sorts them. Runs that are empty, reach past the end or
    /// overlap are `NMC_ERR_CORRUPT`.
    pub fn with_used(units: u32, used: &mut [Run]) -> Result<Self> {
        used.sort_unstable();
        let mut runs = Self::without_free_runs(units)?;
        let mut end = 0;
        for run in used {
            let Run { first, count } = *run;
            if count == 0 || run.range().end > units as usize {
                crate::bail!(NMC_ERR_CORRUPT, "a run of {count} units at {first} cannot be among {units} units");
            }
            if first < end {
                crate::bail!(NMC_ERR_CORRUPT, "a run of {count} units at {first} overlaps one that ends at {end}");
            }
            runs.link(Run { first: end, count: first - end });
            runs.mark(*run, true);
            end = first + count;
        }
        runs.link(Run { first: end, count: units - end });
        Ok(runs)
    }

    fn without_free_runs(units: u32) -> Result<Self> {
        Self::with_bits(units, 0, memory::zeroed(units.div_ceil(PLACE) as usize)?)
    }

    /// Knows no free runs yet; `used` of the bits are set.
    fn with_bits(units: u32, used: u32, used_bits: Vec<u64>) -> Result<Self> {
        let places = used_bits.len();
        let mut runs = Self {
            units,
            used,
            free_runs: 0,
            filled: [0; CLASSES.div_ceil(64)],
            places: Places::new(places, class_of(units) + 1)?,
            used_bits,
            lengths: memory::vec_of(places, Lengths::default())?,
        };
        turn_end(&mut runs.used_bits, units);
        Ok(runs)
    }

    /// The same units in use, but so many in all; those that come are free, those that go must be. If there is no memory
    /// for it, nothing changed.
    fn rebuild(&mut self, units: u32) -> Result<()> {
        let words = units.div_ceil(PLACE) as usize;
        let mut used_bits = memory::with_capacity(words.max(self.used_bits.len()))?;
        used_bits.extend_from_slice(&self.used_bits);
        turn_end(&mut used_bits, self.units);
        used_bits.resize(words, 0);
        let mut new = Self::with_bits(units, self.used, used_bits)?;
        let mut end = 0;
        while end < units {
            let first = next(&new.used_bits, end, units, false);
            end = next(&new.used_bits, first, units, true);
            new.link(Run { first, count: end - first });
        }
        *self = new;
        Ok(())
    }

    /// One run of exactly `count` units; `None` if `count` is 0 or nothing fits. It finds a run whenever there is one
    /// of a class that holds only fitting runs, that is if one is longer than `count` by 1/8; of the request's own
    /// class it looks at a few.
    pub fn allocate(&mut self, count: u32) -> Option<Run> {
        let free = self.find(count)?;
        Some(self.take(free, count))
    }

    /// Adds at most `max_runs` runs of together `count` units to `out`: one if that fits, else the largest free runs
    /// and a fitting one for the rest. All or nothing: where [`Runs::fits_spread`] says no, it is false and nothing
    /// changed.
    pub fn allocate_spread(&mut self, count: u32, max_runs: usize, out: &mut Vec<Run>) -> bool {
        if !self.fits_spread(count, max_runs) {
            return false;
        }
        // The largest runs come off their lists in the order in which they were counted; a fit for the rest only ends
        // it sooner. So there are no more than `max_runs`.
        let mut missing = count;
        while let Some(free) = self.find(missing).or_else(|| self.largest_first().next()) {
            let run = self.take(free, free.count.min(missing));
            out.push(run);
            missing -= run.count;
            if missing == 0 {
                break;
            }
        }
        true
    }

    /// Gives back a run, or a part of one; it becomes one with its free neighbours. If one of the units is not in use,
    /// or there are none, it is `NMC_ERR_INTERNAL` and nothing changed. A run that was freed and handed out again looks
    /// like any in use: that mistake only the caller can see.
    pub fn free(&mut self, run: Run) -> Result<()> {
        if !self.is_used(run) {
            return Err(not_in_use(run, self.units));
        }
        self.release(run);
        Ok(())
    }

    /// Gives back a run, or a part of one, that is in use.
    #[inline]
    pub(super) fn release(&mut self, run: Run) {
        let Run { first, count } = run;
        let (before, after) = (self.free_before(first), self.free_from(first + count));
        let merged = Run { first: first - before, count: before + count + after };
        self.mark(run, false);
        if before > 0 {
            self.unlink(Run { first: first - before, count: before }, merged.first);
        }
        if after > 0 {
            self.unlink(Run { first: first + count, count: after }, merged.first);
        }
        self.link(merged);
    }

    /// One of the shortest free runs, or at most `most` units of it: what tears the least apart. `None` if nothing is
    /// free, or `most` is 0.
    pub fn allocate_smallest(&mut self, most: u32) -> Option<Run> {
        let class = self.class_at_least(0).filter(|_| most > 0)?;
        let free = self.list(class).next()?;
        Some(self.take(free, free.count.min(most)))
    }

    /// Makes a run in use longer by the `more` units behind it, if those are free.
    pub fn extend(&mut self, run: Run, more: u32) -> bool {
        let end = run.range().end;
        if more == 0 || end + more as usize > self.units as usize {
            return false;
        }
        // The unit before is in use, so if one is free here, its run begins here.
        let first = run.first + run.count;
        let free = Run { first, count: self.free_from(first) };
        if free.count < more {
            return false;
        }
        self.take(free, more);
        true
    }

    /// Adds free units at the end; fewer than there are is no change.
    pub fn grow(&mut self, units: u32) -> Result<()> {
        if units > self.units { self.rebuild(units) } else { Ok(()) }
    }

    /// Takes the units from `units` on away, if all of them are free; false, and no change, if one is in use.
    pub fn shrink(&mut self, units: u32) -> Result<bool> {
        if units >= self.units {
            return Ok(units == self.units);
        }
        let can = all_clear(&self.used_bits, units as usize..self.units as usize);
        if can {
            self.rebuild(units)?;
        }
        Ok(can)
    }

    /// All units.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Units in use.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// Units not in use.
    #[must_use]
    pub const fn free_units(&self) -> u32 {
        self.units - self.used
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let lengths = self.lengths.capacity() * size_of::<Lengths>();
        size_of::<Self>() + self.used_bits.capacity() * 8 + lengths + self.places.bytes()
    }

    /// Whether [`Runs::allocate`] would succeed.
    #[must_use]
    pub fn fits(&self, count: u32) -> bool {
        self.find(count).is_some()
    }

    /// Whether [`Runs::allocate_spread`] would succeed; takes a step for each of `max_runs`. The runs of a class are
    /// not sorted, so it may say no although the very largest runs would just do, but never if `count` is at most 8/9
    /// of what those hold, and never if there are no more than `max_runs` free runs.
    #[must_use]
    pub fn fits_spread(&self, count: u32, max_runs: usize) -> bool {
        if count == 0 || max_runs == 0 || count > self.free_units() {
            return false;
        }
        if self.fits(count) {
            return true;
        }
        let mut missing = count;
        for run in self.largest_first().take(max_runs) {
            if run.count >= missing {
                return true;
            }
            missing -= run.count;
        }
        false
    }

    /// How scattered the free units are; as cheap as an allocation.
    #[must_use]
    pub fn fragmentation(&self) -> Fragmentation {
        let top = self.class_at_most(CLASSES - 1).unwrap_or(0);
        Fragmentation {
            free_units: self.free_units(),
            free_runs: self.free_runs,
            largest_run: self.list(top).take(SEARCH_STEPS).map(|run| run.count).max().unwrap_or(0),
        }
    }

    /// A picture of the units for people, in `width` characters or one a unit if there are fewer: `#` in use, `.` free,
    /// `+` some of both.
    #[must_use]
    pub fn map(&self, width: usize) -> String {
        let units = self.units as usize;
        let width = width.min(units);
        let cell = |at: usize| {
            let range = at * units / width..(at + 1) * units / width;
            let all = range.len();
            let used: usize =
                words(range).map(|(word, mask)| (self.used_bits[word] & mask).count_ones() as usize).sum();
            match used {
                0 => '.',
                _ if used == all => '#',
                _ => '+',
            }
        };
        (0..width).map(cell).collect()
    }

    /// A free run that holds `count` units. A longer class holds only fitting runs; so does one of a single length.
    #[inline]
    fn find(&self, count: u32) -> Option<Run> {
        if count == 0 {
            return None;
        }
        if count >= LONG {
            return self.find_long(count);
        }
        self.first_of(self.class_at_least(count as usize)?)
    }

    fn find_long(&self, count: u32) -> Option<Run> {
        let class = class_of(count);
        let own = self.list(class).take(SEARCH_STEPS).find(|run| run.count >= count);
        own.or_else(|| self.class_at_least(class + 1).and_then(|class| self.first_of(class)))
    }

    /// Puts the first `count` units of a free run to use and keeps the rest free.
    fn take(&mut self, free: Run, count: u32) -> Run {
        let run = Run { first: free.first, count };
        self.unlink(free, free.first);
        self.mark(run, true);
        if free.count > count {
            self.link(Run { first: free.first + count, count: free.count - count });
        }
        run
    }

    /// The free runs of a class, in order.
    fn list(&self, class: usize) -> impl Iterator<Item = Run> {
        self.places_of(class)
            .flat_map(move |place| self.runs_from(place, !0))
            .filter(move |run| class_of(run.count) == class)
    }

    /// The places in which runs of a class begin.
    fn places_of(&self, class: usize) -> impl Iterator<Item = usize> {
        let some = self.filled[class / 64] >> (class % 64) & 1 == 1;
        let first = some.then(|| self.places.first(class));
        successors(first, move |at| self.places.next(class, *at))
    }

    /// The first free run of a class that has some.
    #[inline]
    fn first_of(&self, class: usize) -> Option<Run> {
        let place = self.places.first(class);
        self.runs_from(place, !0).find(|run| class_of(run.count) == class)
    }

    /// The free runs that begin in a place, at one of these units of it.
    #[inline]
    fn runs_from(&self, place: usize, among: u64) -> impl Iterator<Item = Run> {
        let used = self.used_bits[place];
        let mut starts = !used & (used << 1 | self.word(place.wrapping_sub(1)) >> 63) & among;
        #[allow(clippy::cast_possible_truncation, reason = "below the number of units")]
        let base = place as u32 * PLACE;
        std::iter::from_fn(move || {
            if starts == 0 {
                return None;
            }
            let first = base + starts.trailing_zeros();
            starts &= starts - 1;
            Some(Run { first, count: self.free_from(first) })
        })
    }

    /// The free runs, longer classes first.
    fn largest_first(&self) -> impl Iterator<Item = Run> {
        successors(self.class_at_most(CLASSES - 1), |class| self.class_at_most(class - 1)).flat_map(|c| self.list(c))
    }

    /// The first class from `class` on that has a run.
    fn class_at_least(&self, class: usize) -> Option<usize> {
        let mut mask = !0 << (class % 64);
        for (word, bits) in self.filled.iter().enumerate().skip(class / 64) {
            if bits & mask != 0 {
                return Some(word * 64 + (bits & mask).trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }

    /// The last class up to `class` that has a run.
    fn class_at_most(&self, class: usize) -> Option<usize> {
        let mut mask = !0 >> (63 - class % 64);
        for (word, bits) in self.filled.iter().enumerate().take(class / 64 + 1).rev() {
            if bits & mask != 0 {
                return Some(word * 64 + (bits & mask).ilog2() as usize);
            }
            mask = !0;
        }
        None
    }

    /// The word of used-bits with this number; there is nothing free outside.
    #[inline]
    fn word(&self, number: usize) -> u64 {
        self.used_bits.get(number).copied().unwrap_or(!0)
    }

    /// How many units are free from `first` on; the one before it must be in use.
    #[inline]
    fn free_from(&self, first: u32) -> u32 {
        let (word, shift) = (first as usize / 64, first % 64);
        let bits = self.word(word) >> shift | self.word(word + 1) << 1 << (63 - shift);
        let count = bits.trailing_zeros();
        if count < LONG { count } else { self.lengths[word].from }
    }

    /// How many units are free before `end`; the one at `end` must be in use.
    #[inline]
    fn free_before(&self, end: u32) -> u32 {
        let (word, shift) = (end as usize / 64, end % 64);
        let bits = self.word(word.wrapping_sub(1)) >> shift | self.word(word) << 1 << (63 - shift);
        let count = bits.leading_zeros();
        if count < LONG { count } else { self.lengths[(end as usize - 1) / 64].to }
    }

    /// Whether a run has units, and all of them are in use.
    fn is_used(&self, run: Run) -> bool {
        run.count > 0 && run.range().end <= self.units as usize && all_set(&self.used_bits, run.range())
    }

    /// Turns the bits of a run, all of which have the other value.
    fn mark(&mut self, run: Run, used: bool) {
        flip(&mut self.used_bits, run.range());
        if used { self.used += run.count } else { self.used -= run.count }
    }

    /// Makes a free run known, if it is not empty.
    #[inline]
    fn link(&mut self, run: Run) {
        let Run { first, count } = run;
        if count == 0 {
            return;
        }
        let (class, place) = (class_of(count), first as usize / 64);
        self.places.insert(class, place);
        self.filled[class / 64] |= 1 << (class % 64);
        self.free_runs += 1;
        if count >= LONG {
            self.lengths[place].from = count;
            self.lengths[(run.range().end - 1) / 64].to = count;
        }
    }

    /// Makes a free run unknown. Its place stays in the set if another run of the class begins there; that is not the one
    /// which the bits show at `changing`.
    #[inline]
    fn unlink(&mut self, run: Run, changing: u32) {
        let (class, place) = (class_of(run.count), run.first as usize / 64);
        self.free_runs -= 1;
        let among = if changing as usize / 64 == place { !(1 << (changing % 64)) } else { !0 };
        if self.runs_from(place, among).any(|other| class_of(other.count) == class) {
            return;
        }
        let none = self.places.remove(class, place);
        self.filled[class / 64] &= !(u64::from(none) << (class % 64));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::super::model::{Model, Random, promise};
    use super::*;
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
                Fault::FreeDoesNotCoalesce if self.runs.is_used(run) => {
                    self.runs.mark(run, false);
                    self.runs.link(run);
                    Ok(())
                }
                Fault::APlaceIsForgottenWithOneOfItsRuns if self.runs.is_used(run) => {
                    let (before, behind) = (self.runs.free_before(run.first), run.first + run.count);
                    let after = self.runs.free_from(behind);
                    for (first, count) in [(run.first - before, before), (behind, after)] {
                        if count > 0 && self.runs.places.remove(class_of(count), first as usize / 64) {
                            self.runs.filled[class_of(count) / 64] &= !(1 << (class_of(count) % 64));
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
        let same = (0..).zip(&model.0).all(|(unit, used)| all_clear(&runs.used_bits, unit..unit + 1) != *used);
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
            for run in runs.list(class) {
                promise!(runs.free_before(run.first + run.count) == run.count, "the ends of {run:?} do not agree");
                promise!(listed.len() < free.len(), "more runs are listed than there are");
                listed.push(run);
            }
            let filled = runs.filled[class / 64] >> (class % 64) & 1 == 1;
            promise!(filled == (listed.len() > before), "class {class} is marked {filled}");
            let places = listed[before..].iter().map(|run| run.first as usize / 64);
            let same = runs.places_of(class).collect::<BTreeSet<_>>() == places.collect();
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
                    let most = random.count(units);
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
                    let (run, more) = (live[at], random.count(20));
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
                    let count = random.count(units);
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
                    let (count, max_runs) = (random.count(units), random.below(7) as usize);
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
                    let count = if random.below(4) == 0 { u32::MAX - random.below(3) } else { random.count(units) };
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
            let kept = run_against_the_model(units, seed as u64, 25_000, Fault::None);
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
        assert!(
            runs.fits(units - 3) && !runs.fits(units - 2) && !runs.fits(u32::MAX) && !runs.fits_spread(u32::MAX, 9)
        );
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
}
