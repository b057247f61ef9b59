//! An allocator of runs of units: the pages of a heap, or the 32-byte units of a key slab. It never hands out a unit
//! twice, free neighbours are always one run, and a run that is not wholly in use is refused rather than freed.
//! It is a segregated fit: the search takes a bounded number of steps however fragmented the units are, and only the
//! used-bits of a run (64 to a word) cost time in its length. One owner at a time; recovery rebuilds it.
//!
//! The books lie beside the units, never in them: one bit a unit for "in use", and for every class of lengths a set of the
//! places where a run of it begins, a bit for 64 units. Where in these it begins, and how long it is, the used-bits tell;
//! only of a run of 64 units or more the length is written down, where it begins and where it ends, which at most one run
//! does in the same 64 units. So the books take less than a byte a unit, and those of a million fit the second-level cache.

mod books;
mod classes;
mod places;
#[cfg(test)]
mod tests;

use super::bits::{all_clear, words};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INTERNAL;
use books::Books;
use classes::{CLASSES, LONG, class_of};
use std::ops::Range;

/// How many runs of a request's own class are looked at: there some fit and some do not.
const SEARCH_STEPS: usize = 8;

/// Units that follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub first: u32,
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
    pub free_units: u32,
    pub free_runs: u32,
    /// The largest count that [`Runs::allocate`] would give. A free run that is longer, by less than 1/8, may hide
    /// behind others of its class.
    pub largest_run: u32,
}

/// The state of all units.
pub struct Runs {
    books: Books,
}

/// The error of a free that would free what is free.
#[cold]
fn not_in_use(run: Run, units: u32) -> Error {
    let Run { first, count } = run;
    let why = "is not wholly in use among";
    Error::new(NMC_ERR_INTERNAL, format!("a run of {count} units at {first} {why} {units} units; was it freed before?"))
}

impl Runs {
    /// All units free. The books are zero pages until they are used.
    pub fn new(units: u32) -> Result<Self> {
        let mut books = Books::without_free_runs(units)?;
        books.link(Run { first: 0, count: units });
        Ok(Self { books })
    }

    /// The state in which exactly the runs of `used` are in use; sorts them. Runs that are empty, reach past the end or
    /// overlap are `NMC_ERR_CORRUPT`.
    pub fn with_used(units: u32, used: &mut [Run]) -> Result<Self> {
        used.sort_unstable();
        let mut books = Books::without_free_runs(units)?;
        let mut end = 0;
        for run in used {
            let Run { first, count } = *run;
            if count == 0 || run.range().end > units as usize {
                crate::bail!(NMC_ERR_CORRUPT, "a run of {count} units at {first} cannot be among {units} units");
            }
            if first < end {
                crate::bail!(NMC_ERR_CORRUPT, "a run of {count} units at {first} overlaps one that ends at {end}");
            }
            books.link(Run { first: end, count: first - end });
            books.mark(*run, true);
            end = first + count;
        }
        books.link(Run { first: end, count: units - end });
        Ok(Self { books })
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
        while let Some(free) = self.find(missing).or_else(|| self.books.largest_first().next()) {
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
        if !self.books.is_used(run) {
            return Err(not_in_use(run, self.books.units));
        }
        self.release(run);
        Ok(())
    }

    /// Gives back a run, or a part of one, that is in use.
    #[inline]
    pub(super) fn release(&mut self, run: Run) {
        let Run { first, count } = run;
        let (before, after) = (self.books.free_before(first), self.books.free_from(first + count));
        let merged = Run { first: first - before, count: before + count + after };
        self.books.mark(run, false);
        if before > 0 {
            self.books.unlink(Run { first: first - before, count: before }, merged.first);
        }
        if after > 0 {
            self.books.unlink(Run { first: first + count, count: after }, merged.first);
        }
        self.books.link(merged);
    }

    /// One of the shortest free runs, or at most `most` units of it: what tears the least apart. `None` if nothing is
    /// free, or `most` is 0.
    pub fn allocate_smallest(&mut self, most: u32) -> Option<Run> {
        let class = self.books.filled.at_least(0).filter(|_| most > 0)?;
        let free = self.books.list(class).next()?;
        Some(self.take(free, free.count.min(most)))
    }

    /// Makes a run in use longer by the `more` units behind it, if those are free.
    pub fn extend(&mut self, run: Run, more: u32) -> bool {
        let end = run.range().end;
        if more == 0 || end + more as usize > self.books.units as usize {
            return false;
        }
        // The unit before is in use, so if one is free here, its run begins here.
        let first = run.first + run.count;
        let free = Run { first, count: self.books.free_from(first) };
        if free.count < more {
            return false;
        }
        self.take(free, more);
        true
    }

    /// Adds free units at the end; fewer than there are is no change.
    pub fn grow(&mut self, units: u32) -> Result<()> {
        if units > self.books.units {
            self.books = self.books.resized(units)?;
        }
        Ok(())
    }

    /// Takes the units from `units` on away, if all of them are free; false, and no change, if one is in use.
    pub fn shrink(&mut self, units: u32) -> Result<bool> {
        if units >= self.books.units {
            return Ok(units == self.books.units);
        }
        let can = all_clear(&self.books.used_bits, units as usize..self.books.units as usize);
        if can {
            self.books = self.books.resized(units)?;
        }
        Ok(can)
    }

    pub const fn units(&self) -> u32 {
        self.books.units
    }

    pub const fn used(&self) -> u32 {
        self.books.used
    }

    pub const fn free_units(&self) -> u32 {
        self.books.units - self.books.used
    }

    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + self.books.bytes()
    }

    /// Puts the first `count` units of a free run to use and keeps the rest free.
    fn take(&mut self, free: Run, count: u32) -> Run {
        let run = Run { first: free.first, count };
        self.books.unlink(free, free.first);
        self.books.mark(run, true);
        if free.count > count {
            self.books.link(Run { first: free.first + count, count: free.count - count });
        }
        run
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
        self.books.first_of(self.books.filled.at_least(count as usize)?)
    }

    fn find_long(&self, count: u32) -> Option<Run> {
        let class = class_of(count);
        let own = self.books.list(class).take(SEARCH_STEPS).find(|run| run.count >= count);
        own.or_else(|| self.books.filled.at_least(class + 1).and_then(|class| self.books.first_of(class)))
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
        for run in self.books.largest_first().take(max_runs) {
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
        let top = self.books.filled.at_most(CLASSES - 1).unwrap_or(0);
        Fragmentation {
            free_units: self.free_units(),
            free_runs: self.books.free_runs,
            largest_run: self.books.list(top).take(SEARCH_STEPS).map(|run| run.count).max().unwrap_or(0),
        }
    }

    /// A picture of the units for people, in `width` characters or one a unit if there are fewer: `#` in use, `.` free,
    /// `+` some of both.
    #[must_use]
    pub fn map(&self, width: usize) -> String {
        let units = self.books.units as usize;
        let width = width.min(units);
        let cell = |at: usize| {
            let range = at * units / width..(at + 1) * units / width;
            let all = range.len();
            let used: usize =
                words(range).map(|(word, mask)| (self.books.used_bits[word] & mask).count_ones() as usize).sum();
            match used {
                0 => '.',
                _ if used == all => '#',
                _ => '+',
            }
        };
        (0..width).map(cell).collect()
    }
}
