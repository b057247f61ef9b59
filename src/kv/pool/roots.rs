//! Numbers for the roots of hash chains, where tokens are compared. A root is the cryptographic hash of a salt; its number
//! stands as the parent of first blocks, so that comparing parents also compares salts. Only roots in use have one.

use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::hash::BlockHash;
use std::collections::HashMap;

/// Numbers of roots begin here; no block has one of them.
pub const FIRST_ROOT: u32 = 1 << 31;

/// The roots in use.
#[derive(Default)]
pub struct Roots {
    numbers: HashMap<BlockHash, u32>,
    /// By number: the root, and how many blocks have it as their parent.
    entries: Vec<(BlockHash, u32)>,
    vacant: Vec<u32>,
}

impl Roots {
    /// The number of a root, or [`NONE`], which no block has as its parent.
    pub fn find(&self, root: BlockHash) -> u32 {
        self.numbers.get(&root).copied().unwrap_or(NONE)
    }

    /// Makes room for `more` roots, so that entering them, again and again, gets no memory.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        // A map that is at most half full makes room where it is for what comes after others have left.
        let want = (self.numbers.len() + more) * 2;
        if self.numbers.capacity() < want {
            let more = want - self.numbers.len();
            memory::reserve_map(&mut self.numbers, more)?;
        }
        memory::reserve(&mut self.entries, more)?;
        memory::reserve_to(&mut self.vacant, self.entries.len() + more)
    }

    /// One more block has this root; `None` if there is no memory for it.
    pub fn enter(&mut self, root: BlockHash) -> Option<u32> {
        let number = match self.numbers.get(&root) {
            Some(number) => *number,
            None => {
                self.reserve(1).ok()?;
                let number = self.vacant.pop().unwrap_or_else(|| {
                    self.entries.push((root, 0));
                    // There are no more roots than blocks, so fewer than 2^31.
                    FIRST_ROOT - 1 + u32::try_from(self.entries.len()).unwrap_or(FIRST_ROOT)
                });
                self.numbers.insert(root, number);
                number
            }
        };
        let entry = &mut self.entries[(number - FIRST_ROOT) as usize];
        *entry = (root, entry.1 + 1);
        Some(number)
    }

    /// One block fewer has this root.
    pub fn leave(&mut self, number: u32) {
        let Some(entry) = number.checked_sub(FIRST_ROOT).and_then(|at| self.entries.get_mut(at as usize)) else {
            return;
        };
        entry.1 -= 1;
        if entry.1 == 0 {
            self.numbers.remove(&entry.0);
            self.vacant.push(number);
        }
    }
}
