//! Which cached block goes next. A policy sees blocks come (published), be used, become idle and leave, and names a
//! victim: always one that nobody holds and on which no cached block builds, so tails go before what they continue.
//! Pure; the pool's lock guards it.

use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::{Info, LISTS, Lists, NONE};
use crate::kv::hash::BlockHash;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The one that was idle longest.
    Lru,
    /// The one used least, in powers of two; among equals the one idle longest.
    Lfu,
    /// The one published first.
    Fifo,
    /// Published blocks pass a small queue first, and stay if they are used meanwhile or return soon after they left.
    S3Fifo,
    /// The lowest priority; among equals the one idle longest. A priority lapses after its time to live.
    Priority,
}

/// Priorities are below this.
pub const PRIORITIES: u8 = 16;
const _: () = assert!(PRIORITIES as usize == LISTS);

const SMALL: usize = 0;
const MAIN: usize = 1;
/// S3-FIFO gives the small queue one block of this many.
const SMALL_SHARE: u32 = 10;
/// S3-FIFO counts uses up to this.
const WARM: u8 = 3;

/// A policy with its state.
pub(super) struct Policy {
    kind: Kind,
    lists: Lists,
    /// Fingerprints of blocks that left the small queue unused (S3-FIFO), by a hash of them; 0 is none.
    ghosts: Vec<u32>,
    /// When the priority of each block lapses, in ticks; 0 is never. Only with [`Kind::Priority`].
    expiry: Vec<u32>,
    /// When which block lapses, the soonest first. An entry counts if it is what `expiry` says.
    lapses: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A fingerprint that is never 0, and the place where it belongs.
fn ghost(hash: BlockHash, places: usize) -> (usize, u32) {
    let word = hash.word();
    #[allow(clippy::cast_possible_truncation, reason = "both are a part of the hash")]
    let (place, print) = ((word >> 32) as usize, word as u32 | 1);
    (place % places.max(1), print)
}

impl Policy {
    pub fn new(kind: Kind, blocks: u32) -> Result<Self> {
        let ghosts = if kind == Kind::S3Fifo { blocks as usize / 2 + 1 } else { 0 };
        let (ghosts, expiry, lapses) = (memory::zeroed(ghosts)?, Vec::new(), BinaryHeap::new());
        let mut policy = Self { kind, lists: Lists::new(), ghosts, expiry, lapses };
        policy.reserve(blocks as usize)?;
        policy.fit(blocks as usize);
        Ok(policy)
    }

    /// Gets memory for the books of so many blocks.
    pub fn reserve(&mut self, blocks: usize) -> Result<()> {
        if self.kind == Kind::Priority {
            memory::reserve_to(&mut self.expiry, blocks)?;
            let notes = (2 * blocks + 1).saturating_sub(self.lapses.len());
            self.lapses.try_reserve(notes).map_err(|_| memory::refused::<(u32, u32)>(notes))?;
        }
        Ok(())
    }

    /// There are now so many blocks, for which there is memory.
    pub fn fit(&mut self, blocks: usize) {
        if self.kind == Kind::Priority {
            self.expiry.resize(blocks, 0);
        }
    }

    /// Bytes of memory that it takes, beside what stands in [`Info`].
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + (self.ghosts.capacity() + self.expiry.capacity()) * 4 + self.lapses.capacity() * 8
    }

    /// Notes when a block lapses. Entries that no longer count are thrown out when they are the most.
    fn note_lapse(&mut self, block: u32, expiry: u32) {
        if expiry == 0 {
            return;
        }
        if self.lapses.len() >= 2 * self.expiry.len() {
            let expiry = &self.expiry;
            self.lapses.retain(|Reverse((when, block))| expiry.get(*block as usize) == Some(when));
        }
        // There is room, unless notes count twice that count; without one a priority lasts.
        if self.lapses.try_reserve(1).is_ok() {
            self.lapses.push(Reverse((expiry, block)));
        }
    }

    /// Whether all published blocks are listed, or only those that are idle.
    const fn lists_active(&self) -> bool {
        matches!(self.kind, Kind::Fifo | Kind::S3Fifo)
    }

    fn list_of(&self, heat: u8) -> usize {
        match self.kind {
            Kind::Lfu => (u32::from(heat) + 1).ilog2() as usize,
            Kind::Priority => usize::from(heat.min(PRIORITIES - 1)),
            _ => SMALL,
        }
    }

    /// A block was published; somebody holds it. `priority` and `expiry` count for [`Kind::Priority`] alone.
    pub fn published(&mut self, info: &mut [Info], block: u32, priority: u8, expiry: u32) {
        let entry = &mut info[block as usize];
        entry.heat = if self.kind == Kind::Priority { priority } else { 0 };
        let hash = entry.hash;
        if let Some(slot) = self.expiry.get_mut(block as usize) {
            *slot = expiry;
            self.note_lapse(block, expiry);
        }
        if self.lists_active() {
            let (place, print) = ghost(hash, self.ghosts.len());
            let returns = self.kind == Kind::S3Fifo && self.ghosts[place] == print;
            self.lists.push(info, if returns { MAIN } else { SMALL }, block);
        }
    }

    /// A holder was added to a published block, which was idle before if `was_idle`.
    #[inline]
    pub fn used(&mut self, info: &mut [Info], block: u32, was_idle: bool) {
        match self.kind {
            Kind::Fifo => return,
            Kind::S3Fifo => {
                let heat = &mut info[block as usize].heat;
                *heat = (*heat + 1).min(WARM);
                return;
            }
            Kind::Lfu => {
                let heat = &mut info[block as usize].heat;
                *heat = heat.saturating_add(1);
            }
            Kind::Lru | Kind::Priority => {}
        }
        if was_idle {
            self.lists.remove(info, block);
        }
    }

    /// The last holder of a published block let go. A tail must become idle before what it continues.
    #[inline]
    pub fn idle(&mut self, info: &mut [Info], block: u32) {
        if !self.lists_active() {
            let list = self.list_of(info[block as usize].heat);
            self.lists.push(info, list, block);
        }
    }

    /// A block leaves the index.
    pub fn removed(&mut self, info: &mut [Info], block: u32) {
        self.lists.remove(info, block);
        if let Some(until) = self.expiry.get_mut(block as usize) {
            *until = 0;
        }
    }

    /// A published block gets at least this priority, for at least this long; what it continues must get the same. False
    /// if it has it already, or priorities do not count.
    pub fn raise(&mut self, info: &mut [Info], block: u32, priority: u8, expiry: u32) -> bool {
        let Some(until) = self.expiry.get_mut(block as usize) else { return false };
        let entry = &mut info[block as usize];
        let longer = lasting(*until, expiry);
        if entry.heat > priority || (entry.heat == priority && (priority == 0 || *until == longer)) {
            return false;
        }
        let now = if entry.heat == priority { longer } else { expiry };
        *until = now;
        entry.heat = priority;
        self.note_lapse(block, now);
        let entry = info[block as usize];
        if entry.list().is_some() {
            self.lists.remove(info, block);
            self.lists.push(info, self.list_of(priority), block);
        }
        true
    }

    /// The block that goes next; it stays listed until [`Policy::removed`]. `None` if nothing can go.
    pub fn victim(&mut self, info: &mut [Info], now: u32) -> Option<u32> {
        match self.kind {
            Kind::Lru | Kind::Fifo => self.first_evictable(info, SMALL),
            Kind::Lfu => (0..LISTS).find_map(|list| self.first_evictable(info, list)),
            Kind::Priority => {
                self.lapse(info, now);
                (0..LISTS).find_map(|list| self.first_evictable(info, list))
            }
            Kind::S3Fifo => self.s3_victim(info),
        }
    }

    /// All listed blocks, roughly in the order in which they would go.
    pub fn in_order<'a>(&mut self, info: &'a mut [Info], now: u32) -> impl Iterator<Item = u32> + use<'a> {
        if self.kind == Kind::Priority {
            self.lapse(info, now);
        }
        let fronts: Vec<u32> = (0..LISTS).filter_map(|list| self.lists.front(list)).collect();
        let info: &'a [Info] = info;
        let next = |block: &u32| Some(info[*block as usize].next()).filter(|next| *next != NONE);
        fronts.into_iter().flat_map(move |front| std::iter::successors(Some(front), next))
    }

    /// The first of a list that can go. Those before it move to the end, behind the children that keep them, so that
    /// no later search meets them again before these.
    fn first_evictable(&mut self, info: &mut [Info], list: usize) -> Option<u32> {
        for _ in 0..self.lists.len(list) {
            let block = self.lists.front(list)?;
            if info[block as usize].is_evictable() {
                return Some(block);
            }
            self.lists.remove(info, block);
            self.lists.push(info, list, block);
        }
        None
    }

    /// Blocks whose time to live is over fall to the lowest priority.
    fn lapse(&mut self, info: &mut [Info], now: u32) {
        while let Some(Reverse((when, block))) = self.lapses.peek().copied().filter(|Reverse((when, _))| *when <= now) {
            self.lapses.pop();
            // It may have left, come back, or been raised since.
            let Some(until) = self.expiry.get_mut(block as usize).filter(|until| **until == when) else { continue };
            *until = 0;
            info[block as usize].heat = 0;
            if info[block as usize].list().is_some() {
                self.lists.remove(info, block);
                self.lists.push(info, SMALL, block);
            }
        }
    }

    fn s3_victim(&mut self, info: &mut [Info]) -> Option<u32> {
        let all = self.lists.len(SMALL) + self.lists.len(MAIN);
        // Every round evicts, moves a block to the main queue, or cools one there; a block is cooled three times.
        let rounds = u64::from(all) * u64::from(WARM + 2);
        for _ in 0..rounds {
            let small = self.lists.len(SMALL);
            let from = if small > all / SMALL_SHARE || self.lists.len(MAIN) == 0 { SMALL } else { MAIN };
            let block = self.lists.front(from)?;
            let entry = info[block as usize];
            if entry.is_evictable() && entry.heat == 0 {
                if from == SMALL {
                    let (place, print) = ghost(entry.hash, self.ghosts.len());
                    self.ghosts[place] = print;
                }
                return Some(block);
            }
            self.lists.remove(info, block);
            // What is held, or is built on, stays as if it were used.
            info[block as usize].heat = if from == SMALL { 0 } else { entry.heat.saturating_sub(1) };
            self.lists.push(info, MAIN, block);
        }
        (SMALL..=MAIN).find_map(|list| self.first_evictable(info, list))
    }
}

/// The later of two expiries, of which 0 is never.
fn lasting(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 { 0 } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;

    #[test]
    fn a_priority_lapses_also_behind_one_that_lasts() {
        let mut info = vec![Info::held_once(); 4];
        let mut policy = Policy::new(Kind::Priority, 4).unwrap();
        // Block 0 lasts, block 1 lapses at 5, block 2 has the lowest priority but one and lasts, block 3 is raised in time.
        for (block, priority, expiry) in [(0, 9, 0), (1, 9, 5), (2, 1, 0), (3, 9, 5)] {
            info[block as usize].set_published(true);
            policy.published(&mut info, block, priority, expiry);
        }
        assert!(policy.raise(&mut info, 3, 9, 50));
        for block in 0..4 {
            info[block as usize].refs = 0;
            policy.idle(&mut info, block);
        }
        let mut next = |now| {
            let block = policy.victim(&mut info, now).unwrap();
            policy.removed(&mut info, block);
            info[block as usize].set_published(false);
            block
        };
        assert_eq!(next(4), 2);
        assert_eq!(next(5), 1, "its time is over, though it stood behind one whose is not");
        assert_eq!(next(49), 0, "the one that is idle longest");
        assert_eq!(next(50), 3);
    }
}
