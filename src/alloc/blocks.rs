//! The blocks of a KV cache, as numbers: any free blocks, or runs of blocks that follow each other. It knows nothing of
//! what lies in them. No block is ever handed out twice or lost, and what is not in use is refused rather than freed.
//!
//! Runs come from the allocator below ([`Runs`]). Single blocks come from a short stack of free ones, which is refilled
//! with a piece of a run and given back when it is full, or when a run is wanted that does not fit without it. So a block
//! is free here and not in use below, or free here and on the stack, or in use in both.

use super::bits::{all_clear, all_set, flip};
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

/// The state of all blocks.
pub struct Blocks {
    total: u32,
    used: u32,
    /// One bit a block: it is in use.
    used_bits: Vec<u64>,
    /// Free blocks that are in use below; the last one is handed out first.
    singles: Vec<u32>,
    runs: Runs,
}

impl Blocks {
    /// All blocks free. A number that is 0 or above [`MAX_BLOCKS`] is `NMC_ERR_INVALID_ARG`.
    pub fn new(total: u32) -> Result<Self> {
        check_total(total)?;
        Ok(Self {
            total,
            used: 0,
            used_bits: memory::zeroed(total.div_ceil(64) as usize)?,
            singles: memory::with_capacity(most_singles(total))?,
            runs: Runs::new(total)?,
        })
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
            let Some(run) = self.runs.allocate_smallest(most) else {
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
        let run = match self.runs.allocate(count) {
            Some(run) => run,
            None if count == 0 || count > self.free() || self.singles.is_empty() => return None,
            None => {
                self.settle();
                self.runs.allocate(count)?
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
        if !self.runs.extend(none, more) {
            // Some of them are on the stack.
            self.settle();
            if !self.runs.extend(none, more) {
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
        self.runs.release(run);
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
            self.runs.release(run);
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
        self.runs.grow(total)?;
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
        if !self.runs.shrink(total)? {
            return Ok(false);
        }
        self.used_bits.truncate(total.div_ceil(64) as usize);
        self.total = total;
        Ok(true)
    }

    pub const fn total(&self) -> u32 {
        self.total
    }

    pub const fn used(&self) -> u32 {
        self.used
    }

    pub const fn free(&self) -> u32 {
        self.total - self.used
    }

    /// How scattered the free blocks are; [settles](Self::settle) them first.
    pub fn scatter(&mut self) -> Fragmentation {
        self.settle();
        self.runs.fragmentation()
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
        own + self.runs.bytes()
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
mod tests;
