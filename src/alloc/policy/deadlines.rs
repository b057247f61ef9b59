//! When the time of each entry is over, the soonest first: a tree over the numbers of the entries, in which every node has
//! the soonest time of the 16 below it. A node lies where its entries say, so there is nothing to look up or to move, and a
//! change goes up as far as it matters. About 4 1/4 bytes an entry, all of them reserved before entries come.

use crate::base::error::Result;
use crate::base::memory;

/// Nodes below a node: a cache line of them.
const FAN: usize = 16;
/// Enough for 2^32 entries.
const LEVELS: usize = 9;
const NEVER: u32 = u32::MAX;

#[derive(Default)]
pub struct Deadlines {
    /// First the entries themselves, then the nodes of each level, up to a single one at `top`.
    levels: [Vec<u32>; LEVELS],
    top: usize,
}

/// How many nodes each level has, up to the one that has a single one.
fn sizes(entries: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(entries), |size| (*size > 1).then(|| size.div_ceil(FAN)))
}

/// What lies below a node.
fn group(nodes: &[u32], number: usize) -> &[u32] {
    &nodes[number * FAN..nodes.len().min((number + 1) * FAN)]
}

fn soonest(nodes: &[u32]) -> u32 {
    nodes.iter().copied().min().unwrap_or(NEVER)
}

impl Deadlines {
    /// Gets memory for so many entries.
    pub fn reserve(&mut self, entries: usize) -> Result<()> {
        self.levels.iter_mut().zip(sizes(entries)).try_for_each(|(level, size)| memory::reserve_to(level, size))
    }

    /// There are now so many entries, for which there is memory; new ones have no deadline.
    pub fn fit(&mut self, entries: usize) {
        self.levels[0].resize(entries, NEVER);
        self.top = 0;
        for (number, size) in sizes(entries).enumerate().skip(1) {
            let (below, above) = self.levels.split_at_mut(number);
            above[0].clear();
            above[0].extend((0..size).map(|node| soonest(group(&below[number - 1], node))));
            self.top = number;
        }
    }

    pub fn bytes(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * size_of::<u32>()).sum()
    }

    /// When the time of an entry is over; 0 is never.
    pub fn get(&self, id: u32) -> u32 {
        self.levels[0].get(id as usize).copied().filter(|when| *when != NEVER).unwrap_or(0)
    }

    /// Sets it.
    pub fn set(&mut self, id: u32, when: u32) {
        let mut at = id as usize;
        let Some(entry) = self.levels[0].get_mut(at) else { return };
        let mut new = if when == 0 { NEVER } else { when };
        let mut old = std::mem::replace(entry, new);
        for level in 1..=self.top {
            at /= FAN;
            let node = self.levels[level][at];
            if new > node {
                // It matters only if it was the soonest.
                if old > node {
                    return;
                }
                new = soonest(group(&self.levels[level - 1], at));
            }
            if new == node {
                return;
            }
            old = std::mem::replace(&mut self.levels[level][at], new);
        }
    }

    /// An entry whose time was over at `now` or before, the longest first; it has none then.
    pub fn pop(&mut self, now: u32) -> Option<u32> {
        let when = self.levels[self.top].first().copied().filter(|when| *when <= now && *when != NEVER)?;
        let mut at = 0;
        for level in self.levels[..self.top].iter().rev() {
            at = at * FAN + group(level, at).iter().position(|soonest| *soonest == when)?;
        }
        let id = u32::try_from(at).ok()?;
        self.set(id, 0);
        Some(id)
    }
}
