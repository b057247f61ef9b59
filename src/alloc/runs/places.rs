//! Sets of places, one for every class of runs: a bit a place, and above these for 64 of each level a bit that says
//! whether one of them is set, up to a single word. Pure; a look for the first one is a load a level.

use crate::base::error::Result;
use crate::base::memory;

/// Levels for as many places as 2^32 units have.
const LEVELS: usize = 5;

/// Sets of numbers below the same limit.
pub struct Places {
    /// The words of each set, the highest level first, so that those that every look needs lie together.
    words: Vec<u64>,
    /// Words of a set.
    stride: usize,
    /// Where a level begins in a set; the lowest is the first.
    at: [usize; LEVELS],
    depth: usize,
}

impl Places {
    /// Empty sets of numbers below `limit`.
    pub fn new(limit: usize, sets: usize) -> Result<Self> {
        let mut sizes = Vec::new();
        let mut size = limit.max(1);
        while sizes.last() != Some(&1) {
            size = size.div_ceil(64);
            sizes.push(size);
        }
        let mut at = [0; LEVELS];
        let mut stride = 0;
        for (level, size) in sizes.iter().enumerate().rev() {
            at[level] = stride;
            stride += size;
        }
        Ok(Self { words: memory::zeroed(stride * sets)?, stride, at, depth: sizes.len() })
    }

    /// Bytes of memory that they take.
    pub const fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }

    #[inline]
    pub fn insert(&mut self, set: usize, number: usize) {
        let (base, mut number) = (set * self.stride, number);
        for at in &self.at[..self.depth] {
            self.words[base + at + number / 64] |= 1 << (number % 64);
            number /= 64;
        }
    }

    /// Takes a number out; true if the set is empty now.
    #[inline]
    pub fn remove(&mut self, set: usize, number: usize) -> bool {
        let (base, mut number, mut empty) = (set * self.stride, number, true);
        for at in &self.at[..self.depth] {
            let word = &mut self.words[base + at + number / 64];
            *word &= !(u64::from(empty) << (number % 64));
            empty = *word == 0;
            number /= 64;
        }
        empty
    }

    /// The lowest number of a set that is not empty.
    #[inline]
    pub fn first(&self, set: usize) -> usize {
        self.lowest(set, self.depth, 0)
    }

    /// The lowest number in word `number` of a level and what is below it, which must not be empty.
    #[inline]
    fn lowest(&self, set: usize, level: usize, number: usize) -> usize {
        let (base, mut number) = (set * self.stride, number);
        for at in self.at[..level].iter().rev() {
            number = number * 64 + self.words[base + at + number].trailing_zeros() as usize;
        }
        number
    }

    /// The lowest number of a set above `number`.
    pub fn next(&self, set: usize, number: usize) -> Option<usize> {
        let (base, mut number) = (set * self.stride, number);
        for level in 0..self.depth {
            let word = self.words[base + self.at[level] + number / 64];
            let above = word & !(!0 >> (63 - number % 64));
            if above != 0 {
                return Some(self.lowest(set, level, number / 64 * 64 + above.trailing_zeros() as usize));
            }
            number /= 64;
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use std::collections::BTreeSet;

    #[test]
    fn sets_behave_like_ordered_sets() {
        for limit in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut sets = Places::new(limit, 3).expect("memory");
            let mut naive = vec![BTreeSet::new(); 3];
            let mut random = Random(limit as u64);
            for step in 0..3_000 {
                let set = random.below(3) as usize;
                let number = random.below(u32::try_from(limit).unwrap()) as usize;
                if step / 500 % 2 == 0 || random.below(3) == 0 {
                    sets.insert(set, number);
                    naive[set].insert(number);
                } else {
                    let number = naive[set].range(number..).next().copied().unwrap_or(number);
                    naive[set].remove(&number);
                    assert_eq!(sets.remove(set, number), naive[set].is_empty());
                }
                let after = naive[set].range(number + 1..).next().copied();
                assert_eq!(sets.next(set, number), after, "of {limit}, after {number}");
                assert!(naive[set].first().is_none_or(|first| sets.first(set) == *first));
            }
        }
    }
}
