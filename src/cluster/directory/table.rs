//! What a node has at each index: the highest epoch that was heard of, whether that lives, and where its object is. Per index
//! only a higher epoch lives and the dead stay dead, so that facts may come twice and in any order.

use super::objects::At;
use crate::base::error::Result;
use crate::base::memory;

/// Bit of an index that means a slot of the tier.
pub const TIER: u32 = 1 << 31;

/// Bit of a word that says that the epoch lives.
const LIVE: u64 = 1 << 63;

/// Indexes of one kind.
#[derive(Debug, Default)]
struct Half {
    words: Vec<u64>,
    places: Vec<u32>,
    /// How many there may be.
    limit: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    headers: Half,
    slots: Half,
}

impl Table {
    /// Of a store with so many headers, and a tier with so many slots.
    #[must_use]
    pub fn new(headers: u32, slots: u32) -> Self {
        let half = |limit| Half { limit, ..Half::default() };
        Self { headers: half(headers), slots: half(slots) }
    }

    fn half(&self, index: u32) -> (&Half, usize) {
        match index & TIER {
            0 => (&self.headers, index as usize),
            _ => (&self.slots, (index & !TIER) as usize),
        }
    }

    fn half_mut(&mut self, index: u32) -> (&mut Half, usize) {
        match index & TIER {
            0 => (&mut self.headers, index as usize),
            _ => (&mut self.slots, (index & !TIER) as usize),
        }
    }

    /// The highest epoch of an index; 0 if there was none.
    #[must_use]
    pub fn epoch(&self, index: u32) -> u64 {
        let (half, at) = self.half(index);
        half.words.get(at).map_or(0, |word| word & !LIVE)
    }

    /// The object that lives at an index.
    #[must_use]
    pub fn live(&self, index: u32) -> Option<At> {
        let (half, at) = self.half(index);
        let lives = half.words.get(at).is_some_and(|word| word & LIVE != 0);
        half.places.get(at).filter(|_| lives).map(|place| At(*place))
    }

    /// The object that lives at an index with this epoch.
    #[cfg(test)]
    pub fn lives(&self, index: u32, epoch: u64) -> Option<At> {
        self.live(index).filter(|_| self.epoch(index) == epoch)
    }

    /// Makes room for an index; fails if the node never said that it has so many.
    pub fn room(&mut self, index: u32) -> Result<()> {
        let (half, at) = self.half_mut(index);
        if at >= half.limit as usize {
            crate::bail!(NMC_ERR_PROTOCOL, "a node speaks of index {at} and has {}", half.limit);
        }
        if at >= half.words.len() {
            // By an eighth, and never beyond what there can be.
            let n = (at + 1).max(half.words.len() + half.words.len() / 8).min(half.limit as usize);
            half.words.try_reserve_exact(n - half.words.len()).map_err(|_| memory::refused::<u64>(n))?;
            half.places.try_reserve_exact(n - half.places.len()).map_err(|_| memory::refused::<u32>(n))?;
            half.words.resize(n, 0);
            half.places.resize(n, 0);
        }
        Ok(())
    }

    /// An epoch lives; there is room for the index.
    pub fn set_live(&mut self, index: u32, epoch: u64, place: At) {
        let (half, at) = self.half_mut(index);
        if let (Some(word), Some(to)) = (half.words.get_mut(at), half.places.get_mut(at)) {
            (*word, *to) = (epoch | LIVE, place.0);
        }
    }

    /// An epoch is over, and every one before it.
    pub fn set_dead(&mut self, index: u32, epoch: u64) {
        let (half, at) = self.half_mut(index);
        if let Some(word) = half.words.get_mut(at) {
            *word = epoch & !LIVE;
        }
    }

    /// The `n`-th index that there may be something at; `None` behind the last.
    #[must_use]
    pub fn nth(&self, n: usize) -> Option<u32> {
        let headers = self.headers.words.len();
        if n < headers {
            return u32::try_from(n).ok();
        }
        let slot = n - headers;
        (slot < self.slots.words.len()).then(|| u32::try_from(slot).unwrap_or(0) | TIER)
    }

    /// Indexes in a range that something lives at, the range being of one kind.
    pub fn live_in(&self, from: u32, to: u32) -> impl Iterator<Item = u32> + '_ {
        let (half, first) = self.half(from);
        let last = half.words.len().min((to & !TIER) as usize);
        let words = half.words.get(first..last).unwrap_or_default();
        (from..).zip(words).filter(|(_, word)| *word & LIVE != 0).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_slots_are_apart_and_bounded() {
        let mut table = Table::new(10, 5);
        assert!(table.room(10).is_err() && table.room(TIER | 5).is_err());
        table.room(9).unwrap();
        table.room(TIER | 4).unwrap();
        table.set_live(4, 7, At(1));
        table.set_live(TIER | 4, 8, At(2));
        assert_eq!((table.lives(4, 7), table.lives(4, 8)), (Some(At(1)), None));
        assert_eq!(table.live_in(0, 10).collect::<Vec<_>>(), [4]);
        assert_eq!(table.live_in(5, 10).count(), 0);
        assert_eq!(table.live_in(TIER, TIER | 5).collect::<Vec<_>>(), [TIER | 4]);
        table.set_dead(4, 7);
        assert_eq!((table.live(4), table.epoch(4)), (None, 7));
        let all: Vec<u32> = (0..).map_while(|n| table.nth(n)).collect();
        assert_eq!((all.len(), all[0], all[14]), (15, 0, TIER | 4));
    }
}
