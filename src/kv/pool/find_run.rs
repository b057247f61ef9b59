//! Runs of blocks where none is free: a stretch of blocks that are free, or cached and held by nobody, becomes one. What has
//! to go is known before anything goes: if no stretch is long enough, the cache keeps all that it has. Looks at all blocks,
//! so it is for the case that the allocator has no run.

use super::Pool;
use crate::alloc::runs::Run;
use crate::base::error::Result;
use crate::base::memory;
use std::ops::Range;

/// What the loss of one block counts, at least; a block that would be evicted last counts almost twice as much.
const LOSS: i64 = 1024;

/// What it costs to have each block in a run: 0 if it is free, else what it and all that builds on it count; `None` if it
/// cannot be had.
type Costs = Vec<Option<i64>>;

impl Pool {
    /// A run of private blocks: a free one, or else the stretch of free and idle blocks that costs the cache least, whose
    /// blocks leave the index, with what builds on them. Nothing leaves if there is no such stretch.
    pub fn take_run(&mut self, count: u32, now: u32) -> Result<Option<Run>> {
        if let Some(run) = self.blocks.take_run(count) {
            return Ok(Some(run));
        }
        if count == 0 || count > self.blocks.free() + self.idle {
            return Ok(None);
        }
        let mut costs = self.costs(true, now)?;
        if self.cheapest(&costs, count)?.is_none() {
            // Idle blocks on which held ones build can go as well, if the held ones leave the index.
            let most = self.costs(false, now)?;
            if self.cheapest(&most, count)?.is_none() {
                return Ok(None);
            }
            self.uncover()?;
            costs = self.costs(true, now)?;
        }
        match self.cheapest(&costs, count)? {
            Some(first) => self.make_run(Run { first, count }),
            None => Ok(None),
        }
    }

    /// The longest run that [`Pool::take_run`] would give.
    pub fn longest_run(&self) -> u32 {
        let (mut longest, mut length) = (0, 0);
        for block in 0..self.blocks.total() {
            let entry = self.info(block);
            let can = !self.is_used(block) || entry.is_published() && entry.refs == 0;
            length = if can { length + 1 } else { 0 };
            longest = longest.max(length);
        }
        longest
    }

    /// The cost of every block. With `gently`, blocks on which held ones build cannot be had.
    fn costs(&mut self, gently: bool, now: u32) -> Result<Costs> {
        let all = i64::from(self.blocks.total());
        let mut weights = memory::vec_of(self.info.len(), 0)?;
        for (rank, block) in (0..).zip(self.policy.in_order(&mut self.info, now)) {
            weights[block as usize] = LOSS + LOSS * rank / (all + 1);
        }
        // From the leaves up: a block is done when all that build on it are.
        let mut builders = memory::collect(self.info.iter().map(|entry| entry.children))?;
        let mut done: Vec<u32> = memory::with_capacity(self.levels().published as usize)?;
        done.extend(self.all_published().filter(|block| self.info(*block).children == 0));
        let mut held = memory::vec_of(self.info.len(), false)?;
        while let Some(block) = done.pop() {
            let (at, entry) = (block as usize, self.info(block));
            held[at] |= entry.refs > 0;
            if let Some(left) = builders.get_mut(entry.parent as usize) {
                let parent = entry.parent as usize;
                weights[parent] += weights[at];
                held[parent] |= held[at];
                *left -= 1;
                if *left == 0 {
                    done.push(entry.parent);
                }
            }
        }
        let cost = |block: u32| {
            let entry = self.info(block);
            match self.is_used(block) {
                false => Some(0),
                true if !entry.is_published() || entry.refs > 0 => None,
                true => (!gently || !held[block as usize]).then_some(weights[block as usize]),
            }
        };
        memory::collect((0..self.blocks.total()).map(cost))
    }

    /// Where the stretch of `count` blocks begins that costs least; of equals the first. What builds on a block is counted
    /// with it, so a block whose parent is in the stretch adds nothing.
    fn cheapest(&self, costs: &Costs, count: u32) -> Result<Option<u32>> {
        let length = count as usize;
        // How much the cost of the stretch from a block on differs from that of the one before.
        let mut changes = memory::vec_of(costs.len() + 1, 0i64)?;
        let mut add = |first: usize, last: usize, cost: i64| {
            changes[(last + 1).saturating_sub(length)] += cost;
            changes[first + 1] -= cost;
        };
        for (block, cost) in costs.iter().enumerate() {
            let Some(cost) = cost.filter(|cost| *cost > 0) else { continue };
            add(block, block, cost);
            let parent = self.info[block].parent as usize;
            let (first, last) = (block.min(parent), block.max(parent));
            if last < costs.len() && last - first < length && costs[parent].is_some_and(|cost| cost > 0) {
                add(first, last, -cost);
            }
        }
        let (mut sum, mut best) = (0, None);
        let mut can = costs.iter().take(length - 1).rev().take_while(|cost| cost.is_some()).count();
        for (first, cost) in costs.iter().skip(length - 1).enumerate() {
            sum += changes[first];
            can = if cost.is_some() { can + 1 } else { 0 };
            if can >= length && best.is_none_or(|(least, _)| sum < least) {
                best = Some((sum, first));
            }
        }
        Ok(best.and_then(|(_, first)| u32::try_from(first).ok()))
    }

    /// Makes a stretch of free and idle blocks private; one that costs no more, if free blocks lie before it.
    fn make_run(&mut self, run: Run) -> Result<Option<Run>> {
        let before = (0..run.first).rev().take_while(|block| !self.is_used(*block)).count();
        let first = run.first - u32::try_from(before).unwrap_or(0);
        let end = first + run.count;
        let going = self.within_and_beyond(first..end)?;
        let mut others = memory::with_capacity(going.len())?;
        for block in going {
            self.remove(block);
            self.evicted += 1;
            if !(first..end).contains(&block) {
                others.push(block);
            }
        }
        // What was idle counts as in use and is had by now; what is free lies between that, and is taken.
        let mut at = first;
        while at < end {
            let free = (at..end).take_while(|block| !self.is_used(*block)).count();
            let free = Run { first: at, count: u32::try_from(free).unwrap_or(0) };
            if free.count > 0 && !self.blocks.take_behind(at, free.count) {
                crate::bail!(NMC_ERR_INTERNAL, "{free:?} is free but cannot be taken, please report it");
            }
            at += free.count + 1;
        }
        self.blocks.give(&others)?;
        Ok(Some(Run { first, count: run.count }))
    }

    /// The published blocks of a range and all that build on them, these first.
    fn within_and_beyond(&self, range: Range<u32>) -> Result<Vec<u32>> {
        let mut known = memory::vec_of(self.info.len(), None)?;
        let most = self.levels().published as usize;
        let (mut path, mut all) = (memory::with_capacity(most)?, memory::with_capacity(most)?);
        for block in self.all_published() {
            // Up to a block that is known, or to the root; then down again.
            let mut at = block;
            let mut goes = loop {
                let Some(entry) = self.info.get(at as usize) else { break false };
                if let Some(known) = known[at as usize] {
                    break known;
                }
                path.push(at);
                at = entry.parent;
            };
            while let Some(down) = path.pop() {
                goes |= range.contains(&down);
                known[down as usize] = Some(goes);
                all.extend(goes.then_some(down));
            }
        }
        all.reverse();
        Ok(all)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may")]
mod tests {
    use super::super::evict::Kind;
    use super::super::{Keep, Named, Published};
    use super::*;
    use crate::base::random::Random;
    use crate::kv::block::NONE;
    use crate::kv::hash::BlockHash;

    /// Blocks as a text tells: `.` free, `#` private, `i` idle, `h` published and held. `parents` names what a block
    /// continues, if anything; those come first.
    fn pool(text: &str, parents: &[(u32, u32)]) -> Pool {
        let total = u32::try_from(text.len()).unwrap();
        let mut pool = Pool::new(total, Kind::Lru, 1, false, 0, &[]).unwrap();
        let mut all = Vec::new();
        assert!(pool.take(text.len(), &mut all, 0).unwrap());
        let parent_of = |block: u32| parents.iter().find(|(child, _)| *child == block).map_or(NONE, |(_, up)| *up);
        let depth = |block: u32| std::iter::successors(Some(block), |at| Some(parent_of(*at)).filter(|up| *up != NONE));
        let named = |what: &str| {
            let mut found: Vec<u32> = (0..total).filter(|at| what.contains(&text[*at as usize..][..1])).collect();
            found.sort_by_key(|block| depth(*block).count());
            found
        };
        for block in named("ih") {
            pool.share(block);
            let mut hash = [7; 16];
            hash[..4].copy_from_slice(&block.to_le_bytes());
            let root = BlockHash::default();
            let named = Named { root, parent: parent_of(block), hash: BlockHash(hash), tokens: &[] };
            assert_eq!(pool.publish(block, named, Keep::default(), false).unwrap(), Published::Ours);
        }
        pool.release(&named("i")).unwrap();
        pool.give(&named(".")).unwrap();
        assert_eq!(picture(&pool), text);
        pool
    }

    fn picture(pool: &Pool) -> String {
        let sign = |block| match (pool.is_used(block), pool.info(block).is_published(), pool.info(block).refs) {
            (false, ..) => '.',
            (true, false, _) => '#',
            (true, true, 0) => 'i',
            (true, true, _) => 'h',
        };
        (0..pool.blocks().total()).map(sign).collect()
    }

    /// What was done before: the coldest block goes until there is a run, or nothing is left.
    fn evict_and_hope(pool: &mut Pool, count: u32) -> Option<Run> {
        loop {
            if let Some(run) = pool.blocks.take_run(count) {
                return Some(run);
            }
            let mut some = Vec::new();
            if !pool.take(pool.levels().free as usize + 1, &mut some, 0).unwrap() {
                return None;
            }
            pool.give(&some).unwrap();
        }
    }

    #[test]
    fn where_no_stretch_is_long_enough_the_cache_keeps_all_it_has() {
        let text = "ii#.i#ihi#ii#i.#";
        let mut pool = pool(text, &[]);
        assert_eq!((pool.take_run(3, 0).unwrap(), pool.longest_run()), (None, 2));
        assert_eq!((picture(&pool), pool.levels().evicted), (text.into(), 0));
        assert_eq!(pool.take_run(2, 0).unwrap().map(|run| run.count), Some(2));
        pool.check().unwrap();
    }

    #[test]
    fn control_evicting_until_there_is_a_run_empties_the_cache_in_vain() {
        let mut pool = pool("ii#.i#ihi#ii#i.#", &[]);
        assert_eq!(evict_and_hope(&mut pool, 3), None);
        assert_eq!(picture(&pool), "..#..#.h.#..#..#");
    }

    #[test]
    fn only_what_lies_in_the_cheapest_stretch_goes() {
        for (text, count, after) in [
            ("iii#.i.#iii", 3, "iii####"),
            ("i#i#i#ii..ii", 3, "i#i#i#ii###i"),
            ("i#i#i#iiii", 4, "i#i#i#####"),
            ("#..ii..#ii", 6, "#######"),
            ("iiiiiiiii", 9, "#########"),
        ] {
            let mut pool = pool(text, &[]);
            let run = pool.take_run(count, 0).unwrap().unwrap();
            assert_eq!(run.count, count);
            let all = format!("{after}{}", &text[after.len()..]);
            assert_eq!(picture(&pool), all, "{count} of {text}");
            pool.check().unwrap();
        }
    }

    #[test]
    fn control_evicting_until_there_is_a_run_takes_what_need_not_go() {
        let mut pool = pool("iii#.i.#iii", &[]);
        evict_and_hope(&mut pool, 3).unwrap();
        assert!(picture(&pool).matches('i').count() < 6);
    }

    #[test]
    fn of_equal_stretches_the_colder_goes() {
        let mut pool = pool("ii#ii#ii", &[]);
        // The order in which they became idle, the last of a call first.
        for block in [0, 1, 6, 7] {
            pool.acquire(block);
        }
        pool.release(&[0, 1, 6, 7]).unwrap();
        assert_eq!(pool.take_run(2, 0).unwrap(), Some(Run { first: 3, count: 2 }));
    }

    #[test]
    fn what_builds_on_a_block_goes_with_it_and_counts() {
        // The last two blocks continue the first; a stretch of three others costs as many.
        let chain = [(9, 0), (10, 9)];
        let mut dear = pool("i.#ii#.i.iii", &chain);
        assert_eq!(dear.take_run(2, 0).unwrap().map(|run| run.first), Some(6), "one block, and none behind it");
        let mut only = pool("i.#i#ih#iiih", &[(8, 0), (9, 8)]);
        assert_eq!(only.take_run(2, 0).unwrap().map(|run| run.first), Some(8), "two, not the first with two behind it");
        let mut first = pool("i.#i#ih#ihih", &[(8, 0)]);
        assert_eq!(first.take_run(2, 0).unwrap(), Some(Run { first: 0, count: 2 }));
        assert_eq!(picture(&first), "###i#ih#.hih", "what built on it is free");
        first.check().unwrap();
    }

    #[test]
    fn idle_blocks_below_held_ones_go_last_and_the_held_ones_leave_the_index() {
        // A sequence dropped its first block and holds the second.
        let mut pool = pool("i.#h#i.", &[(3, 0)]);
        assert_eq!(pool.take_run(2, 0).unwrap(), Some(Run { first: 5, count: 2 }));
        assert_eq!(pool.longest_run(), 2);
        assert_eq!(pool.take_run(3, 0).unwrap(), None);
        assert_eq!(picture(&pool), "i.#h###");
        assert_eq!(pool.take_run(2, 0).unwrap(), Some(Run { first: 0, count: 2 }));
        assert_eq!(picture(&pool), "#######", "nobody could match the held one without the first");
        pool.check().unwrap();
    }

    #[test]
    fn a_run_is_given_exactly_where_a_stretch_is_long_enough() {
        let mut random = Random(99);
        let mut below = |limit: u64| random.below(limit);
        let (mut given, mut refused) = (0, 0);
        for _ in 0..3_000 {
            let total = 1 + below(200);
            let signs = ["..ii#h", "iiiii#", "..i#", "ih", "i"][below(5) as usize].as_bytes();
            let text: String = (0..total).map(|_| signs[below(signs.len() as u64) as usize] as char).collect();
            let published: Vec<u32> =
                (0..).zip(text.bytes()).filter(|(_, sign)| b"ih".contains(sign)).map(|x| x.0).collect();
            let mut parents = Vec::new();
            for (at, block) in published.iter().enumerate().skip(1) {
                if below(3) > 0 {
                    parents.push((*block, published[if below(2) == 0 { at - 1 } else { below(at as u64) as usize }]));
                }
            }
            let mut pool = pool(&text, &parents);
            let can = |sign: char| sign == '.' || sign == 'i';
            let longest = text.split(|sign| !can(sign)).map(str::len).max().unwrap();
            assert_eq!(pool.longest_run() as usize, longest);
            let count = u32::try_from(1 + below(total)).unwrap();
            let run = pool.take_run(count, 0).unwrap();
            assert_eq!(run.is_some(), count as usize <= longest, "{count} of {text}");
            pool.check().unwrap();
            let after = picture(&pool);
            match run {
                None => {
                    refused += 1;
                    assert_eq!(after, text, "nothing changed");
                }
                Some(run) => {
                    given += 1;
                    let range = run.range();
                    assert!(text[range.clone()].chars().all(can) && after[range].bytes().all(|sign| sign == b'#'));
                    pool.give(&(run.first..run.first + count).collect::<Vec<_>>()).unwrap();
                    let free = picture(&pool).bytes().filter(|sign| *sign == b'.').count();
                    assert_eq!(free, pool.levels().free as usize);
                }
            }
        }
        assert!(given > 500 && refused > 500, "{given} {refused}");
    }
}
