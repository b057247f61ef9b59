//! What a node has at each index: the highest epoch that was heard of, whether that lives, and where its object is. Per index
//! only a higher epoch lives and the dead stay dead, so that facts may come twice and in any order.

use super::objects::At;
use crate::base::error::Result;
use crate::base::memory;
use crate::layout::store::ON_DISK;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Bit of a word that says that the epoch lives.
const LIVE: u64 = 1 << 63;

/// Indexes that take memory together, as a power of two: a node that speaks of few takes little, whatever it says that it has.
const PAGE_BITS: u32 = 8;
const PAGE: usize = 1 << PAGE_BITS;

/// Some indexes that follow each other.
#[derive(Debug)]
struct Page {
    words: Vec<u64>,
    places: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    /// By the higher bits of their indexes.
    pages: BTreeMap<u32, Page>,
    /// How many headers and slots there may be.
    headers: u32,
    slots: u32,
}

fn place(index: u32) -> (u32, usize) {
    (index >> PAGE_BITS, index as usize % PAGE)
}

impl Table {
    /// Of a store with so many headers, and a tier with so many slots.
    #[must_use]
    pub fn new(headers: u32, slots: u32) -> Self {
        Self { pages: BTreeMap::new(), headers, slots }
    }

    fn word(&self, index: u32) -> u64 {
        let (page, at) = place(index);
        self.pages.get(&page).map_or(0, |page| page.words[at])
    }

    /// The highest epoch of an index; 0 if there was none.
    #[must_use]
    pub fn epoch(&self, index: u32) -> u64 {
        self.word(index) & !LIVE
    }

    /// The object that lives at an index.
    #[must_use]
    pub fn live(&self, index: u32) -> Option<At> {
        let (page, at) = place(index);
        let page = self.pages.get(&page)?;
        (page.words[at] & LIVE != 0).then(|| At(page.places[at]))
    }

    /// The object that lives at an index with this epoch.
    #[cfg(test)]
    pub fn lives(&self, index: u32, epoch: u64) -> Option<At> {
        self.live(index).filter(|_| self.epoch(index) == epoch)
    }

    /// Makes room for an index; fails if the node never said that it has so many.
    pub fn room(&mut self, index: u32) -> Result<()> {
        let (limit, number) = (if index & ON_DISK == 0 { self.headers } else { self.slots }, index & !ON_DISK);
        if number >= limit {
            crate::bail!(NMC_ERR_PROTOCOL, "a node speaks of index {number} and has {limit}");
        }
        if let Entry::Vacant(entry) = self.pages.entry(place(index).0) {
            entry.insert(Page { words: memory::zeroed(PAGE)?, places: memory::zeroed(PAGE)? });
        }
        Ok(())
    }

    /// An epoch lives; there is room for the index.
    pub fn set_live(&mut self, index: u32, epoch: u64, object: At) {
        let (page, at) = place(index);
        if let Some(page) = self.pages.get_mut(&page) {
            (page.words[at], page.places[at]) = (epoch | LIVE, object.0);
        }
    }

    /// An epoch is over, and every one before it.
    pub fn set_dead(&mut self, index: u32, epoch: u64) {
        let (page, at) = place(index);
        if let Some(page) = self.pages.get_mut(&page) {
            page.words[at] = epoch & !LIVE;
        }
    }

    /// The first index from here on that there may be something at; `None` behind the last.
    #[must_use]
    pub fn next(&self, from: u64) -> Option<u32> {
        let from = u32::try_from(from).ok()?;
        let (page, _) = self.pages.range(place(from).0..).next()?;
        Some((page << PAGE_BITS).max(from))
    }

    /// Indexes in a range that something lives at, the range being of one kind.
    pub fn live_in(&self, from: u32, to: u32) -> impl Iterator<Item = u32> + '_ {
        let (first, last) = (place(from).0, place(to.saturating_sub(1)).0);
        let words = self
            .pages
            .range(first..=last.max(first))
            .flat_map(|(page, of)| (0..).map(move |n: u32| page << PAGE_BITS | n).zip(&of.words));
        words.filter(move |(index, word)| (from..to).contains(index) && *word & LIVE != 0).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_slots_are_apart_and_bounded() {
        let mut table = Table::new(10, 5);
        assert!(table.room(10).is_err() && table.room(ON_DISK | 5).is_err());
        table.room(9).unwrap();
        table.room(ON_DISK | 4).unwrap();
        table.set_live(4, 7, At(1));
        table.set_live(ON_DISK | 4, 8, At(2));
        assert_eq!((table.lives(4, 7), table.lives(4, 8)), (Some(At(1)), None));
        assert_eq!(table.live_in(0, 10).collect::<Vec<_>>(), [4]);
        assert_eq!(table.live_in(5, 10).count(), 0);
        assert_eq!(table.live_in(ON_DISK, ON_DISK | 5).collect::<Vec<_>>(), [ON_DISK | 4]);
        table.set_dead(4, 7);
        assert_eq!((table.live(4), table.epoch(4)), (None, 7));
        let next = |from| table.next(from);
        assert_eq!(
            (next(0), next(255), next(256), next(u64::from(ON_DISK) + 7)),
            (Some(0), Some(255), Some(ON_DISK), Some(ON_DISK | 7))
        );
        assert_eq!((next(u64::from(ON_DISK) + 256), next(1 << 32)), (None, None));
    }

    #[test]
    fn what_a_node_claims_and_does_not_use_takes_no_memory() {
        let mut table = Table::new(u32::MAX >> 1, u32::MAX >> 1);
        table.room(u32::MAX >> 2).unwrap();
        table.set_live(u32::MAX >> 2, 3, At(9));
        assert_eq!((table.pages.len(), table.live_in(0, u32::MAX >> 1).count()), (1, 1));
        assert_eq!(table.live_in(u32::MAX >> 2, u32::MAX >> 2).count(), 0);
    }
}
