//! Objects that are being written to disk. Each is found by its header at once: the master asks for every object that it evicts.

use super::MOST_HELD;
use crate::base::error::Result;
use crate::base::memory;
use crate::layout::disk::Spot;
use crate::layout::region::prefetch;

/// An object that is being written: its pages stay, and it is not evicted.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    /// Its header. No other hold has the same one.
    pub index: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Where its record is, or will be.
    pub spot: Option<Spot>,
    /// It is no longer what its key stands for.
    pub gone: bool,
}

/// No more than [`MOST_HELD`] of them.
pub struct Holds {
    all: Vec<Hold>,
    /// By header, the place in `all`, plus one; 0 for none.
    places: Vec<u16>,
}

const _: () = assert!(MOST_HELD < u16::MAX as usize);

impl Holds {
    /// None, of a store with so many headers.
    pub fn new(headers: u32) -> Result<Self> {
        Ok(Self { all: memory::with_capacity(MOST_HELD)?, places: memory::vec_of(headers as usize, 0)? })
    }

    /// The same in memory of its own.
    pub fn copy(&self) -> Result<Self> {
        let mut all = memory::with_capacity(MOST_HELD)?;
        all.extend_from_slice(&self.all);
        Ok(Self { all, places: memory::copy(&self.places)? })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    fn place(&self, index: u32) -> Option<usize> {
        let place = usize::from(*self.places.get(index as usize)?);
        place.checked_sub(1)
    }

    /// Whether an object is held will be looked at soon.
    pub fn prefetch(&self, index: u32) {
        self.places.get(index as usize).into_iter().for_each(prefetch);
    }

    /// Whether an object is held.
    pub fn has(&self, index: u32) -> bool {
        self.places.get(index as usize).is_some_and(|place| *place > 0)
    }

    /// The hold of an object.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Hold> {
        let place = self.place(index)?;
        self.all.get_mut(place)
    }

    /// Holds an object that is not held. Whoever calls knows that there is room.
    pub fn add(&mut self, index: u32, epoch: u64) {
        let (next, room) = (u16::try_from(self.all.len() + 1), self.all.len() < MOST_HELD);
        if let (Some(place), Ok(next), true) = (self.places.get_mut(index as usize), next, room) {
            self.all.push(Hold { index, epoch, spot: None, gone: false });
            *place = next;
        }
    }

    /// Ends the hold of an object, if it is of this epoch; gives what it was.
    pub fn remove(&mut self, index: u32, epoch: u64) -> Option<Hold> {
        let place = self.place(index).filter(|place| self.all.get(*place).is_some_and(|hold| hold.epoch == epoch))?;
        let hold = self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place) {
            self.places[moved.index as usize] = u16::try_from(place + 1).unwrap_or(0);
        }
        self.places[index as usize] = 0;
        Some(hold)
    }

    /// One of them.
    pub fn any(&self) -> Option<Hold> {
        self.all.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use std::collections::BTreeMap;

    #[test]
    fn holds_are_found_by_their_headers_whatever_came_and_went() {
        let mut holds = Holds::new(64).unwrap();
        let mut model = BTreeMap::new();
        let mut random = Random(1);
        for step in 0..20_000 {
            let index = random.below(64);
            match random.below(4) {
                0 | 1 if !holds.has(index) => {
                    holds.add(index, step);
                    model.insert(index, step);
                }
                2 => {
                    let epoch = model.get(&index).copied().unwrap_or(step);
                    assert!(holds.remove(index, epoch + 1).is_none());
                    assert_eq!(holds.remove(index, epoch).map(|hold| hold.epoch), model.remove(&index));
                }
                _ => {
                    let found = holds.get_mut(index).map(|hold| (hold.index, hold.epoch));
                    assert_eq!(found, model.get_key_value(&index).map(|(index, epoch)| (*index, *epoch)));
                }
            }
            assert_eq!((holds.len(), holds.has(index)), (model.len(), model.contains_key(&index)));
        }
        let copy = holds.copy().unwrap();
        assert!(model.keys().all(|index| copy.has(*index)) && copy.len() == model.len());
    }

    #[test]
    fn a_header_that_does_not_exist_is_not_held() {
        let mut holds = Holds::new(4).unwrap();
        holds.add(4, 1);
        assert!(!holds.has(4) && holds.len() == 0 && holds.get_mut(9).is_none() && holds.any().is_none());
    }
}
