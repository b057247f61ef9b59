//! A buddy allocator of units: free units form blocks of a power of two, aligned to their size, each as large as it can
//! be. A run of n units takes exactly n: it is cut from the smallest block that holds it, and the rest stays free. Every
//! call takes a number of steps that is bounded by the logarithm of the units; the number of units may be anything. It
//! never hands out a unit twice, and a run that is not wholly in use is refused rather than freed.
//!
//! What is free follows from the used-bits alone; beside those there is a bitset for every order (power of two) in which
//! a block that is free has its bit, with summaries of 64 bits to one above it, so that the first one is found in a few
//! steps. That is less than half a byte a unit. A request takes an aligned block of the next power of two; if there is none,
//! the first of the largest blocks and what is free behind it. So all units can be had as one run when all are free, but
//! in between there can be a free run that is long enough, lies across the alignment, and is not found.

use super::bits::{all_clear, all_set, flip, next, zero_runs};
use super::runs::{Fragmentation, Run, not_in_use};
use crate::base::error::Result;
use crate::base::memory;

/// Orders of blocks: up to 2^31 units.
const ORDERS: usize = 32;
/// Levels of a bitset of 2^32 bits.
const LEVELS: usize = 6;

/// The bitset of one order: where its levels begin in the words of all; level 0 has a bit a block.
#[derive(Clone, Copy)]
struct Order {
    /// Whole blocks of this size.
    blocks: u32,
    depth: u32,
    at: [u32; LEVELS],
}

/// The state of all units.
pub struct Buddy {
    units: u32,
    used: u32,
    free_runs: u32,
    /// One bit an order: it has a free block.
    filled: u32,
    orders: [Order; ORDERS],
    /// The levels of all orders.
    sets: Vec<u64>,
    /// One bit a unit: it is in use.
    used_bits: Vec<u64>,
}

/// The order of the smallest block that holds `count` units.
const fn order_for(count: u32) -> u32 {
    u32::BITS - (count - 1).leading_zeros()
}

/// Where the levels of each order lie, and how many words that are.
fn orders_of(units: u32) -> ([Order; ORDERS], usize) {
    let mut orders = [Order { blocks: 0, depth: 0, at: [0; LEVELS] }; ORDERS];
    let mut words = 0u32;
    for (order, set) in orders.iter_mut().enumerate() {
        set.blocks = units >> order;
        let mut bits = set.blocks;
        while bits > 0 {
            set.at[set.depth as usize] = words;
            set.depth += 1;
            words += bits.div_ceil(64);
            bits = if bits > 64 { bits.div_ceil(64) } else { 0 };
        }
    }
    (orders, words as usize)
}

impl Buddy {
    /// All units free.
    pub fn new(units: u32) -> Result<Self> {
        let (orders, words) = orders_of(units);
        let (sets, used_bits) = (memory::zeroed(words)?, memory::zeroed(units.div_ceil(64) as usize)?);
        let mut buddy = Self { units, used: 0, free_runs: 0, filled: 0, orders, sets, used_bits };
        buddy.fill();
        Ok(buddy)
    }

    /// Finds the free blocks of all orders, in bitsets that are zero, from the used-bits.
    fn fill(&mut self) {
        (self.filled, self.free_runs) = (0, 0);
        let used_bits = std::mem::take(&mut self.used_bits);
        for run in zero_runs(&used_bits, self.units) {
            self.free_runs += 1;
            for (order, index) in pieces(run.first, run.first + run.count) {
                self.set(order, index);
            }
        }
        self.used_bits = used_bits;
    }

    /// One run of exactly `count` units; `None` if `count` is 0 or there is neither a free block of the next power of two
    /// nor enough free units from the first of the largest blocks on.
    #[inline]
    pub fn allocate(&mut self, count: u32) -> Option<Run> {
        if count == 0 || count > self.units {
            return None;
        }
        let least = order_for(count);
        // A count above 2^31 has no order.
        match self.filled.checked_shr(least).unwrap_or(0) {
            0 => self.allocate_across(count),
            fits => Some(self.cut(least + fits.trailing_zeros(), count)),
        }
    }

    /// A run that begins with the first of the largest blocks, which is too small alone.
    #[cold]
    fn allocate_across(&mut self, count: u32) -> Option<Run> {
        let order = self.filled.checked_ilog2()?;
        let index = self.first(order);
        let run = Run { first: index << order, count };
        if run.range().end > self.units as usize || !all_clear(&self.used_bits, run.range()) {
            return None;
        }
        self.clear(order, index);
        let block = Run { first: run.first, count: 1 << order };
        self.mark(block, true);
        self.extend(block, count - block.count).then_some(run)
    }

    /// One of the smallest free blocks, or at most `most` units of it: what tears the least apart. `None` if nothing is
    /// free, or `most` is 0.
    pub fn allocate_smallest(&mut self, most: u32) -> Option<Run> {
        if self.filled == 0 || most == 0 {
            return None;
        }
        let order = self.filled.trailing_zeros();
        Some(self.cut(order, most.min(1 << order)))
    }

    /// Puts the first `count` units of the first free block of an order to use.
    fn cut(&mut self, order: u32, count: u32) -> Run {
        let index = self.first(order);
        self.clear(order, index);
        let run = Run { first: index << order, count };
        self.keep_rest(run.first + count, run.first + (1 << order));
        self.mark(run, true);
        run
    }

    /// Makes a run in use longer by the `more` units behind it, if those are free.
    pub fn extend(&mut self, run: Run, more: u32) -> bool {
        let Run { first, count } = run;
        let end = run.range().end;
        let wanted = end..end + more as usize;
        if more == 0 || wanted.end > self.units as usize || !all_clear(&self.used_bits, wanted) {
            return false;
        }
        let end = first + count + more;
        let mut at = first + count;
        while at < end {
            // What lies before is in use or was just taken, so a free block begins here.
            let Some(order) = (0..=at.trailing_zeros().min(31)).find(|order| self.is_set(*order, at >> order)) else {
                debug_assert!(false, "a free unit is in no block");
                return false;
            };
            self.clear(order, at >> order);
            let block_end = at + (1 << order);
            if block_end > end {
                self.keep_rest(end, block_end);
            }
            at = block_end;
        }
        self.mark(Run { first: first + count, count: more }, true);
        true
    }

    /// Gives back a run, or a part of one; its blocks become one with their free buddies. If one of the units is not in
    /// use, or there are none, it is `NMC_ERR_INTERNAL` and nothing changed. A run that was freed and handed out again
    /// looks like any in use: that mistake only the caller can see.
    #[inline]
    pub fn free(&mut self, run: Run) -> Result<()> {
        if run.count == 0 || run.range().end > self.units as usize || !all_set(&self.used_bits, run.range()) {
            return Err(not_in_use(run, self.units));
        }
        self.release(run);
        Ok(())
    }

    /// Gives back a run, or a part of one, that is in use.
    #[inline]
    pub(super) fn release(&mut self, run: Run) {
        let Run { first, count } = run;
        self.mark(run, false);
        for (mut order, mut index) in pieces(first, first + count) {
            while self.is_set(order, index ^ 1) {
                self.clear(order, index ^ 1);
                order += 1;
                index >>= 1;
            }
            self.set(order, index);
        }
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

    /// The same units in use, but so many in all. If there is no memory for it, nothing changed.
    fn rebuild(&mut self, units: u32) -> Result<()> {
        let (orders, words) = orders_of(units);
        let sets = memory::zeroed(words)?;
        memory::resize(&mut self.used_bits, units.div_ceil(64) as usize, 0)?;
        (self.units, self.orders, self.sets) = (units, orders, sets);
        self.fill();
        Ok(())
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

    /// How scattered the free units are; the largest run is what [`Buddy::allocate`] would give at most. Takes time in its
    /// length, 64 units at a step.
    #[must_use]
    pub fn fragmentation(&self) -> Fragmentation {
        let largest_run = self.filled.checked_ilog2().map_or(0, |order| {
            let first = self.first(order) << order;
            next(&self.used_bits, first, self.units, true) - first
        });
        Fragmentation { free_units: self.free_units(), free_runs: self.free_runs, largest_run }
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + (self.used_bits.capacity() + self.sets.capacity()) * 8
    }

    /// The units from `from` to `end`, the end of a block that was in one piece, are free blocks of their own.
    fn keep_rest(&mut self, mut from: u32, end: u32) {
        while from < end {
            let order = from.trailing_zeros();
            self.set(order, from >> order);
            from += 1 << order;
        }
    }

    /// Turns the bits of a run, all of which have the other value.
    #[inline]
    fn mark(&mut self, run: Run, used: bool) {
        let free_sides =
            u32::from(run.first > 0 && self.is_free(run.first - 1)) + u32::from(self.is_free(run.first + run.count));
        flip(&mut self.used_bits, run.range());
        if used {
            self.used += run.count;
            self.free_runs = self.free_runs + free_sides - 1;
        } else {
            self.used -= run.count;
            self.free_runs = self.free_runs + 1 - free_sides;
        }
    }

    /// Whether there is such a unit, and it is free.
    fn is_free(&self, unit: u32) -> bool {
        unit < self.units && self.used_bits[unit as usize / 64] >> (unit % 64) & 1 == 0
    }

    /// Whether there is such a block, and it is free and in no larger one.
    #[inline]
    fn is_set(&self, order: u32, index: u32) -> bool {
        let set = &self.orders[order as usize];
        index < set.blocks && self.sets[set.at[0] as usize + index as usize / 64] >> (index % 64) & 1 == 1
    }

    #[inline]
    fn set(&mut self, order: u32, index: u32) {
        let set = self.orders[order as usize];
        let mut at = index as usize;
        for level in &set.at[..set.depth as usize] {
            let word = &mut self.sets[*level as usize + at / 64];
            let before = *word;
            *word |= 1 << (at % 64);
            if before != 0 {
                return;
            }
            at /= 64;
        }
        self.filled |= 1 << order;
    }

    #[inline]
    fn clear(&mut self, order: u32, index: u32) {
        let set = self.orders[order as usize];
        let mut at = index as usize;
        for level in &set.at[..set.depth as usize] {
            let word = &mut self.sets[*level as usize + at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
        self.filled &= !(1 << order);
    }

    /// The first free block of an order that has one.
    #[inline]
    fn first(&self, order: u32) -> u32 {
        let set = &self.orders[order as usize];
        let mut at = 0;
        for level in set.at[..set.depth as usize].iter().rev() {
            at = at * 64 + self.sets[(level + at) as usize].trailing_zeros();
        }
        at
    }
}

/// The aligned blocks of powers of two, as order and index, of which the units from `at` to `end` consist.
#[inline]
fn pieces(mut at: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        let order = at.trailing_zeros().min((end - at).checked_ilog2()?);
        let piece = (order, at >> order);
        at += 1 << order;
        Some(piece)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::super::model::{Model, Random, promise};
    use super::*;

    /// Ways to break the allocator, for the controls.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fault {
        None,
        TheRestIsLost,
        BuddiesStayApart,
        RunsOverlap,
        AnyFreeIsAccepted,
    }

    /// The blocks that must be free: the largest aligned ones, found by trying all.
    fn blocks(model: &Model) -> Vec<(u32, u32)> {
        let whole = |order: u32, index: u32| {
            let size = 1u64 << order;
            let from = usize::try_from(u64::from(index) * size).unwrap();
            model.0.get(from..from + usize::try_from(size).unwrap()).is_some_and(|units| units.iter().all(|used| !used))
        };
        let mut found = Vec::new();
        for order in 0..12 {
            for index in 0..u32::try_from(model.0.len()).unwrap() >> order {
                if whole(order, index) && !whole(order + 1, index / 2) {
                    found.push((order, index));
                }
            }
        }
        found
    }

    /// The longest run that must be given: what is free from the first of the largest blocks on.
    fn longest(model: &Model) -> u32 {
        let blocks = blocks(model);
        let largest = blocks.last().map_or(0, |(order, _)| *order);
        blocks.iter().find(|(order, _)| *order == largest).map_or(0, |(order, index)| {
            let behind = model.0.iter().skip((index << order) as usize).take_while(|used| !**used).count();
            u32::try_from(behind).unwrap()
        })
    }

    fn check_state(buddy: &Buddy, model: &Model) -> std::result::Result<(), String> {
        let used = model.used();
        promise!(buddy.used() == used, "{} units in use, not {used}", buddy.used());
        promise!(buddy.used() + buddy.free_units() == buddy.units(), "used and free units are not all units");
        promise!((0..).zip(&model.0).all(|(unit, used)| buddy.is_free(unit) != *used), "units in use differ");
        let free = blocks(model);
        let mut listed = Vec::new();
        for (order, set) in (0..).zip(&buddy.orders) {
            listed.extend((0..set.blocks).filter(|index| buddy.is_set(order, *index)).map(|index| (order, index)));
            let some = listed.last().is_some_and(|(last, _)| *last == order);
            promise!((buddy.filled >> order & 1 == 1) == some, "order {order} is marked wrongly");
            let at = set.at.map(|at| at as usize);
            for level in 1..set.depth as usize {
                let below = &buddy.sets[at[level - 1]..at[level]];
                let wrong = below
                    .iter()
                    .enumerate()
                    .any(|(word, bits)| (buddy.sets[at[level] + word / 64] >> (word % 64) & 1 == 1) != (*bits != 0));
                promise!(!wrong, "level {level} of order {order} is wrong");
            }
        }
        promise!(listed == free, "free blocks {listed:?}, not {free:?}");
        let largest = longest(model);
        let runs = u32::try_from(model.free_runs().len()).unwrap();
        let expected = Fragmentation { free_units: buddy.units() - used, free_runs: runs, largest_run: largest };
        promise!(buddy.fragmentation() == expected, "{:?}, not {expected:?}", buddy.fragmentation());
        Ok(())
    }

    fn allocate(buddy: &mut Buddy, count: u32, fault: Fault) -> Option<Run> {
        let run = buddy.allocate(count)?;
        match fault {
            Fault::RunsOverlap => Some(Run { first: run.first + 1, count })
                .filter(|run| run.range().end <= buddy.units as usize)
                .or(Some(run)),
            Fault::TheRestIsLost => {
                let end = run.first + (1 << order_for(count));
                for (order, index) in pieces(run.first + count, end) {
                    if buddy.is_set(order, index) {
                        buddy.clear(order, index);
                    }
                }
                Some(run)
            }
            _ => Some(run),
        }
    }

    fn free(buddy: &mut Buddy, run: Run, fault: Fault) -> Result<()> {
        match fault {
            Fault::AnyFreeIsAccepted => buddy.free(run).or(Ok(())),
            Fault::BuddiesStayApart if run.count > 0 && all_set(&buddy.used_bits, run.range()) => {
                buddy.mark(run, false);
                for (order, index) in pieces(run.first, run.first + run.count) {
                    buddy.set(order, index);
                }
                Ok(())
            }
            _ => buddy.free(run),
        }
    }

    fn run_against_the_model(units: u32, seed: u64, calls: u32, fault: Fault) -> std::result::Result<(), String> {
        let (mut units, most_units) = (units, units);
        let mut buddy = Buddy::new(units).unwrap();
        let mut model = Model(vec![false; units as usize]);
        let mut live: Vec<Run> = Vec::new();
        let mut random = Random(seed);
        for call in 0..calls {
            let growing = call / 200 % 2 == 0;
            match random.below(if growing { 11 } else { 15 }) {
                0..=3 => {
                    let count = random.count(units);
                    let must = count > 0 && count <= longest(&model);
                    let got = allocate(&mut buddy, count, fault);
                    promise!(got.is_some() == must, "{count} units: {got:?}, though there are: {must}");
                    if let Some(run) = got {
                        promise!(run.count == count, "{run:?} for {count}");
                        promise!(model.all(run, false), "units in use differ: {run:?}");
                        model.set(run, true);
                        live.push(run);
                    }
                }
                4 => {
                    let most = random.count(units);
                    let got = buddy.allocate_smallest(most);
                    let smallest = blocks(&model).first().map_or(0, |(order, _)| 1 << order);
                    promise!(got.map_or(0, |run| run.count) == smallest.min(most), "{got:?} of at most {most}");
                    if let Some(run) = got {
                        promise!(model.all(run, false), "{run:?} is not free");
                        model.set(run, true);
                        live.push(run);
                    }
                }
                5 if !live.is_empty() => {
                    let at = random.below(u32::try_from(live.len()).unwrap()) as usize;
                    let (run, more) = (live[at], random.count(20));
                    let behind = Run { first: run.first + run.count, count: more };
                    let must = model.all(behind, false);
                    promise!(buddy.extend(run, more) == must, "{run:?} longer by {more} is not {must}");
                    if must {
                        model.set(behind, true);
                        live[at].count += more;
                    }
                }
                6 => {
                    let run = Run { first: random.below(units + 2), count: random.count(units) };
                    if !model.all(run, true) {
                        promise!(free(&mut buddy, run, fault).is_err(), "{run:?} is not in use but was freed");
                    }
                }
                7 if random.below(8) == 0 => {
                    let wanted = 1 + random.below(2 * most_units);
                    let can = model.0.iter().skip(wanted as usize).all(|used| !used);
                    if wanted > units {
                        buddy.grow(wanted).unwrap();
                    } else {
                        promise!(buddy.shrink(wanted) == Ok(can), "shrinking to {wanted}, though not {can}");
                    }
                    if wanted > units || can {
                        model.0.resize(wanted as usize, false);
                        units = wanted;
                    }
                }
                _ if live.is_empty() => {}
                part => {
                    let at = random.below(u32::try_from(live.len()).unwrap()) as usize;
                    let mut run = live.swap_remove(at);
                    if part == 8 && run.count > 1 {
                        let count = 1 + random.below(run.count - 1);
                        live.push(Run { first: run.first + count, count: run.count - count });
                        run.count = count;
                    }
                    promise!(free(&mut buddy, run, fault).is_ok(), "{run:?} was in use but not freed");
                    model.set(run, false);
                }
            }
            check_state(&buddy, &model).map_err(|what| format!("call {call}: {what}"))?;
        }
        for run in &live {
            promise!(free(&mut buddy, *run, fault).is_ok(), "{run:?} was in use but not freed");
        }
        check_state(&buddy, &Model(vec![false; units as usize])).map_err(|what| format!("at the end: {what}"))
    }

    #[test]
    fn every_call_does_what_the_model_does() {
        for (seed, units) in [1, 2, 15, 63, 64, 65, 130, 300].into_iter().enumerate() {
            let kept = run_against_the_model(units, seed as u64, 6_000, Fault::None);
            assert_eq!(kept, Ok(()), "seed {seed}, {units} units");
        }
    }

    #[test]
    fn control_the_model_catches_a_broken_allocator() {
        for (fault, complaint) in [
            (Fault::TheRestIsLost, "free blocks"),
            (Fault::BuddiesStayApart, "free blocks"),
            (Fault::RunsOverlap, "units in use differ"),
            (Fault::AnyFreeIsAccepted, "is not in use but was freed"),
        ] {
            for seed in 0..4 {
                let caught = run_against_the_model(300, seed, 6_000, fault).unwrap_err();
                assert!(caught.contains(complaint), "{fault:?}: {caught}");
            }
        }
    }

    #[test]
    fn a_request_takes_no_more_than_it_asks_for() {
        let mut buddy = Buddy::new(1000).unwrap();
        let run = buddy.allocate(33).unwrap();
        assert_eq!((run.count, buddy.used(), buddy.free_units()), (33, 33, 967));
        assert_eq!(buddy.fragmentation(), Fragmentation { free_units: 967, free_runs: 2, largest_run: 896 });
        assert_eq!(buddy.allocate(897), None, "it was cut from the block of 64 at 896");
        buddy.free(run).unwrap();
        assert_eq!(buddy.fragmentation(), Fragmentation { free_units: 1000, free_runs: 1, largest_run: 1000 });
        assert_eq!(buddy.allocate(1000), Some(Run { first: 0, count: 1000 }), "whatever the power of two");
    }

    #[test]
    fn the_orders_of_counts_are_the_next_power_of_two() {
        let orders = [1, 2, 3, 4, 5, 64, 65, 1 << 31, (1 << 31) + 1, u32::MAX].map(order_for);
        assert_eq!(orders, [0, 1, 2, 2, 3, 6, 7, 31, 32, 32]);
        let mut buddy = Buddy::new(0).unwrap();
        assert_eq!((buddy.allocate(1), buddy.allocate(u32::MAX), buddy.allocate_smallest(1)), (None, None, None));
    }

    #[test]
    fn the_numbers_of_the_most_units_do_not_overflow() {
        // The books of 2^32 units take 1.6 GB, of which little is touched without the used-bits; a quarter is enough to
        // see five levels.
        let units = (1 << 28) + 77;
        let mut buddy = Buddy::new(units).unwrap();
        let run = buddy.allocate(1 << 28).unwrap();
        assert_eq!(buddy.allocate(78), None);
        assert!(buddy.extend(run, 77) && buddy.free_units() == 0);
        buddy.free(Run { first: run.first, count: units }).unwrap();
        assert_eq!(buddy.fragmentation().free_runs, 1);
    }
}
