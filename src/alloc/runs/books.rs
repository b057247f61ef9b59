//! What is known of all units: which are in use, where the free runs of each class begin, and how long the long ones are.
//! Marking units and making the free runs beside them known are steps of their own, which `Runs` takes together.

use super::Run;
use super::classes::{CLASSES, Filled, LONG, PLACE, class_of};
use super::places::Places;
use crate::alloc::bits::{all_set, flip, next};
use crate::base::error::Result;
use crate::base::memory;
use std::iter::successors;

pub struct Books {
    pub units: u32,
    pub used: u32,
    pub free_runs: u32,
    pub filled: Filled,
    /// Where runs of each class begin.
    pub places: Places,
    /// One bit a unit: it is in use. So are those past the last unit.
    pub used_bits: Vec<u64>,
    /// For every place the lengths of the long runs that begin and end in it.
    lengths: Vec<Lengths>,
}

/// The lengths of the long free runs that begin and end in a place; they mean nothing where none does.
#[derive(Clone, Copy, Default)]
struct Lengths {
    from: u32,
    to: u32,
}

/// Turns the bits past the last unit, in its word.
fn turn_end(used_bits: &mut [u64], units: u32) {
    let end = units as usize;
    flip(used_bits, end..end.next_multiple_of(64));
}

impl Books {
    /// Knows no free runs yet; all units are free.
    pub fn without_free_runs(units: u32) -> Result<Self> {
        Self::with_bits(units, 0, memory::zeroed(units.div_ceil(PLACE) as usize)?)
    }

    /// Knows no free runs yet; `used` of the bits are set.
    fn with_bits(units: u32, used: u32, used_bits: Vec<u64>) -> Result<Self> {
        let places = used_bits.len();
        let mut books = Self {
            units,
            used,
            free_runs: 0,
            filled: Filled::default(),
            places: Places::new(places, class_of(units) + 1)?,
            used_bits,
            lengths: memory::vec_of(places, Lengths::default())?,
        };
        turn_end(&mut books.used_bits, units);
        Ok(books)
    }

    /// The same units in use, but so many in all; those that come are free, those that go must be.
    pub fn resized(&self, units: u32) -> Result<Self> {
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
        Ok(new)
    }

    pub const fn bytes(&self) -> usize {
        let lengths = self.lengths.capacity() * size_of::<Lengths>();
        self.used_bits.capacity() * 8 + lengths + self.places.bytes()
    }

    /// The free runs of a class, in order.
    pub fn list(&self, class: usize) -> impl Iterator<Item = Run> {
        self.places_of(class)
            .flat_map(move |place| self.runs_from(place, !0))
            .filter(move |run| class_of(run.count) == class)
    }

    /// The places in which runs of a class begin.
    pub fn places_of(&self, class: usize) -> impl Iterator<Item = usize> {
        let first = self.filled.has(class).then(|| self.places.first(class));
        successors(first, move |at| self.places.next(class, *at))
    }

    /// The first free run of a class that has some.
    #[inline]
    pub fn first_of(&self, class: usize) -> Option<Run> {
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
    pub fn largest_first(&self) -> impl Iterator<Item = Run> {
        successors(self.filled.at_most(CLASSES - 1), |class| self.filled.at_most(class - 1)).flat_map(|c| self.list(c))
    }

    /// The word of used-bits with this number; there is nothing free outside.
    #[inline]
    fn word(&self, number: usize) -> u64 {
        self.used_bits.get(number).copied().unwrap_or(!0)
    }

    /// How many units are free from `first` on; the one before it must be in use.
    #[inline]
    pub fn free_from(&self, first: u32) -> u32 {
        let (word, shift) = (first as usize / 64, first % 64);
        let bits = self.word(word) >> shift | self.word(word + 1) << 1 << (63 - shift);
        let count = bits.trailing_zeros();
        if count < LONG { count } else { self.lengths[word].from }
    }

    /// How many units are free before `end`; the one at `end` must be in use.
    #[inline]
    pub fn free_before(&self, end: u32) -> u32 {
        let (word, shift) = (end as usize / 64, end % 64);
        let bits = self.word(word.wrapping_sub(1)) >> shift | self.word(word) << 1 << (63 - shift);
        let count = bits.leading_zeros();
        if count < LONG { count } else { self.lengths[(end as usize - 1) / 64].to }
    }

    /// Whether a run has units, and all of them are in use.
    pub fn is_used(&self, run: Run) -> bool {
        run.count > 0 && run.range().end <= self.units as usize && all_set(&self.used_bits, run.range())
    }

    /// Turns the bits of a run, all of which have the other value.
    pub fn mark(&mut self, run: Run, used: bool) {
        flip(&mut self.used_bits, run.range());
        if used { self.used += run.count } else { self.used -= run.count }
    }

    /// Makes a free run known, if it is not empty.
    #[inline]
    pub fn link(&mut self, run: Run) {
        let Run { first, count } = run;
        if count == 0 {
            return;
        }
        let (class, place) = (class_of(count), first as usize / 64);
        self.places.insert(class, place);
        self.filled.insert(class);
        self.free_runs += 1;
        if count >= LONG {
            self.lengths[place].from = count;
            self.lengths[(run.range().end - 1) / 64].to = count;
        }
    }

    /// Makes a free run unknown. Its place stays in the set if another run of the class begins there; that is not the one
    /// which the bits show at `changing`.
    #[inline]
    pub fn unlink(&mut self, run: Run, changing: u32) {
        let (class, place) = (class_of(run.count), run.first as usize / 64);
        self.free_runs -= 1;
        let among = if changing as usize / 64 == place { !(1 << (changing % 64)) } else { !0 };
        if self.runs_from(place, among).any(|other| class_of(other.count) == class) {
            return;
        }
        let none = self.places.remove(class, place);
        self.filled.remove_if(class, none);
    }
}
