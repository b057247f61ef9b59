//! Free blocks that the addresses of a virtual sequence still map. Each waits at the place where it is mapped: whoever has
//! those addresses next takes it back without mapping anything, and whoever finds no other free block takes it from there.
//! They are free in every count. The lock is taken after a lane's and before the pool's.

use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use std::collections::BTreeMap;

/// Blocks by whose addresses map them, and where.
#[derive(Debug, Default)]
pub struct MappedFree {
    places: BTreeMap<u64, Vec<u32>>,
    count: usize,
}

impl MappedFree {
    /// How many blocks there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// All blocks.
    pub fn blocks(&self) -> Result<Vec<u32>> {
        memory::collect(self.places.values().flatten().copied().filter(|block| *block != NONE))
    }

    /// Keeps a block at a place; gives the one that was there before, or this one if there is no memory for the place.
    pub fn put(&mut self, address_space: u64, place: usize, block: u32) -> Option<u32> {
        let places = self.places.entry(address_space).or_default();
        if places.len() <= place && memory::resize(places, place + 1, NONE).is_err() {
            return Some(block);
        }
        let before = std::mem::replace(&mut places[place], block);
        self.count += usize::from(before == NONE);
        (before != NONE).then_some(before)
    }

    /// Takes the block at a place, or [`NONE`].
    pub fn take(&mut self, address_space: u64, place: usize) -> u32 {
        let Some(places) = self.places.get_mut(&address_space) else { return NONE };
        let block = places.get_mut(place).map_or(NONE, |slot| std::mem::replace(slot, NONE));
        self.count -= usize::from(block != NONE);
        block
    }

    /// Takes a block from wherever one is, of each address space the last first.
    pub fn reclaim(&mut self) -> Option<u32> {
        while let Some(mut entry) = self.places.first_entry() {
            while let Some(block) = entry.get_mut().pop() {
                if block != NONE {
                    self.count -= 1;
                    return Some(block);
                }
            }
            entry.remove();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_taken_back_from_its_place_or_by_anyone() {
        let mut kept = MappedFree::default();
        for (place, block) in [(0, 10), (3, 13), (1, 11)] {
            assert_eq!(kept.put(7, place, block), None);
        }
        assert_eq!(kept.put(7, 3, 23), Some(13), "a place has one");
        assert_eq!(kept.put(8, 0, 30), None);
        assert_eq!((kept.count(), kept.blocks()), (4, Ok(vec![10, 11, 23, 30])));
        assert_eq!((kept.take(7, 1), kept.take(7, 1), kept.take(7, 9), kept.take(9, 0)), (11, NONE, NONE, NONE));
        assert_eq!([kept.reclaim(), kept.reclaim()], [Some(23), Some(10)], "the last of an address space first");
        assert_eq!((kept.reclaim(), kept.reclaim(), kept.count()), (Some(30), None, 0));
    }
}
