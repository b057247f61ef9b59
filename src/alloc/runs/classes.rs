//! Classes of runs by their length, and which of them have runs. A look for the next one that has some is a few words.

/// Units of a place; as many as a word has bits.
pub const PLACE: u32 = 64;
/// The length from which on it is written down, and a class has several lengths.
pub const LONG: u32 = PLACE;
/// Classes of one power of two from [`LONG`] on, as a power of two: their runs differ in length by less than 1/8.
const SPLIT_LOG2: u32 = 3;
/// The class of the longest run, plus one.
pub const CLASSES: usize = class_of(u32::MAX) + 1;

/// The class of a run by its length; longer runs are in the same or a later class. Short of [`LONG`] a class is one
/// length, after that there are eight in every power of two. Class 0 stays empty.
pub const fn class_of(count: u32) -> usize {
    if count < LONG {
        return count as usize;
    }
    let level = count.ilog2() - SPLIT_LOG2;
    let above = level - (LONG.ilog2() - SPLIT_LOG2);
    (LONG - (1 << SPLIT_LOG2) + (above << SPLIT_LOG2) + (count >> level)) as usize
}

/// One bit a class: it has runs.
#[derive(Default)]
pub struct Filled([u64; CLASSES.div_ceil(64)]);

impl Filled {
    #[inline]
    pub fn has(&self, class: usize) -> bool {
        self.0[class / 64] >> (class % 64) & 1 == 1
    }

    #[inline]
    pub fn insert(&mut self, class: usize) {
        self.0[class / 64] |= 1 << (class % 64);
    }

    /// Takes a class out if `none` of its runs is left; without a branch to guess.
    #[inline]
    pub fn remove_if(&mut self, class: usize, none: bool) {
        self.0[class / 64] &= !(u64::from(none) << (class % 64));
    }

    /// The first class from `class` on that has a run.
    #[inline]
    pub fn at_least(&self, class: usize) -> Option<usize> {
        let mut mask = !0 << (class % 64);
        for (word, bits) in self.0.iter().enumerate().skip(class / 64) {
            if bits & mask != 0 {
                return Some(word * 64 + (bits & mask).trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }

    /// The last class up to `class` that has a run.
    pub fn at_most(&self, class: usize) -> Option<usize> {
        let mut mask = !0 >> (63 - class % 64);
        for (word, bits) in self.0.iter().enumerate().take(class / 64 + 1).rev() {
            if bits & mask != 0 {
                return Some(word * 64 + (bits & mask).ilog2() as usize);
            }
            mask = !0;
        }
        None
    }
}
