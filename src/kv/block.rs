//! What the pool knows about each block, and the intrusive lists that the eviction policies keep over it.
//! 40 bytes a block, with the hash and the chain of the index side by side. Pure; the pool's lock guards it.

use super::hash::BlockHash;

/// No block: the end of a list or chain, the parent of a first block, or a hole in a sequence.
pub const NONE: u32 = u32::MAX;
/// Lists that a policy can use.
pub const LISTS: usize = 16;

/// Bits of [`Info::flags`].
const PUBLISHED: u8 = 0x80;
const LISTED: u8 = 0x40;
const LIST: u8 = 0x0f;

/// One block that more than one sequence may use, now or later. A block that is private to a sequence has none of this.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Info {
    /// Name of the block, while it is published or the double of one that is, and after that as long as it is held.
    pub hash: BlockHash,
    /// The next published block of the same bucket of the index.
    pub chain: u32,
    /// Sequences and pins that hold the block.
    pub refs: u32,
    /// The block before it in its list.
    prev: u32,
    /// The block after it in its list.
    next: u32,
    /// The published block whose tokens come before these, or [`NONE`].
    pub parent: u32,
    /// Published blocks whose parent this is; a block with children is never evicted.
    pub children: u16,
    /// What the policy remembers: uses, or the priority.
    pub heat: u8,
    flags: u8,
}

impl Info {
    pub const NEW: Self = Self {
        hash: BlockHash([0; 16]),
        chain: NONE,
        refs: 0,
        prev: NONE,
        next: NONE,
        parent: NONE,
        children: 0,
        heat: 0,
        flags: 0,
    };

    /// A block that one has.
    pub const fn held_once() -> Self {
        Self { refs: 1, ..Self::NEW }
    }

    /// Whether the index knows the block.
    pub const fn is_published(&self) -> bool {
        self.flags & PUBLISHED != 0
    }

    pub fn set_published(&mut self, published: bool) {
        self.flags = self.flags & !PUBLISHED | if published { PUBLISHED } else { 0 };
    }

    /// The list that the block is in.
    pub fn list(&self) -> Option<usize> {
        (self.flags & LISTED != 0).then_some((self.flags & LIST) as usize)
    }

    /// The block after it in its list, or [`NONE`].
    pub const fn next(&self) -> u32 {
        self.next
    }

    /// Whether it can go: nobody holds it and nothing published builds on it.
    pub const fn is_evictable(&self) -> bool {
        self.refs == 0 && self.children == 0
    }
}

/// Double-ended lists of blocks; a block is in one of them or in none.
pub struct Lists {
    heads: [u32; LISTS],
    tails: [u32; LISTS],
    lengths: [u32; LISTS],
}

impl Lists {
    pub const fn new() -> Self {
        Self { heads: [NONE; LISTS], tails: [NONE; LISTS], lengths: [0; LISTS] }
    }

    pub const fn len(&self, list: usize) -> u32 {
        self.lengths[list]
    }

    pub fn front(&self, list: usize) -> Option<u32> {
        (self.heads[list] != NONE).then_some(self.heads[list])
    }

    /// Puts a block that is in no list at the end of one.
    #[inline]
    pub fn push(&mut self, info: &mut [Info], list: usize, block: u32) {
        debug_assert!(info[block as usize].list().is_none());
        let last = self.tails[list];
        match info.get_mut(last as usize) {
            Some(last) => last.next = block,
            None => self.heads[list] = block,
        }
        self.tails[list] = block;
        self.lengths[list] += 1;
        let entry = &mut info[block as usize];
        (entry.prev, entry.next) = (last, NONE);
        #[allow(clippy::cast_possible_truncation, reason = "lists are fewer than 16")]
        let number = list as u8 & LIST;
        entry.flags = entry.flags & !LIST | LISTED | number;
    }

    /// Takes a block out of its list, if it is in one.
    #[inline]
    pub fn remove(&mut self, info: &mut [Info], block: u32) {
        let entry = info[block as usize];
        let Some(list) = entry.list() else { return };
        match info.get_mut(entry.prev as usize) {
            Some(prev) => prev.next = entry.next,
            None => self.heads[list] = entry.next,
        }
        match info.get_mut(entry.next as usize) {
            Some(next) => next.prev = entry.prev,
            None => self.tails[list] = entry.prev,
        }
        self.lengths[list] -= 1;
        info[block as usize].flags &= !LISTED;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "a test may")]
    use super::*;
    use std::collections::VecDeque;

    impl Lists {
        /// The blocks of a list, the next victim first.
        pub fn iter<'a>(&self, info: &'a [Info], list: usize) -> impl Iterator<Item = u32> + 'a {
            std::iter::successors(self.front(list), |block| {
                let next = info[*block as usize].next;
                (next != NONE).then_some(next)
            })
        }
    }

    #[test]
    fn lists_behave_like_deques() {
        let mut info = vec![Info::NEW; 64];
        let mut lists = Lists::new();
        let mut naive: Vec<VecDeque<u32>> = vec![VecDeque::new(); LISTS];
        let mut random = 12345u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let block = (random >> 33) as u32 % 64;
            let list = (random >> 50) as usize % LISTS;
            if let Some(at) = info[block as usize].list() {
                lists.remove(&mut info, block);
                naive[at].retain(|other| *other != block);
            } else {
                lists.push(&mut info, list, block);
                naive[list].push_back(block);
            }
            for (list, naive) in naive.iter().enumerate() {
                assert_eq!(lists.len(list) as usize, naive.len());
                assert_eq!(lists.front(list), naive.front().copied());
                assert!(lists.iter(&info, list).eq(naive.iter().copied()));
            }
        }
    }
}
