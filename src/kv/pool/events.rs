//! What enters and leaves the prefix index, numbered, for routers that send requests to where their prefix is cached. A
//! ring of fixed size: who reads too late is told how many events are gone, and takes a snapshot. The pool's lock guards it.

use crate::base::error::Result;
use crate::base::memory;
use crate::kv::hash::BlockHash;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A block can be matched now.
    Stored,
    /// A block is no longer there.
    Removed,
    /// No block is there any more.
    Cleared,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Counts up by one.
    pub number: u64,
    /// What happened.
    pub what: What,
    /// The block's name; of no meaning for [`What::Cleared`].
    pub hash: BlockHash,
    /// Name of the block that it continues, for [`What::Stored`]; all zero if it continues none.
    pub parent: BlockHash,
}

/// The last events.
#[derive(Default)]
pub struct Events {
    ring: Vec<Event>,
    capacity: usize,
    next: u64,
    muted: bool,
}

impl Events {
    /// Keeps the last `capacity` events; none if it is 0.
    pub fn new(capacity: u32) -> Result<Self> {
        let capacity = capacity as usize;
        Ok(Self { ring: memory::with_capacity(capacity)?, capacity, next: 0, muted: false })
    }

    /// Bytes of memory that so many events take.
    pub const fn book_bytes(capacity: u32) -> u64 {
        capacity as u64 * size_of::<Event>() as u64
    }

    /// Bytes of memory that it takes.
    pub const fn bytes(&self) -> usize {
        self.ring.capacity() * size_of::<Event>()
    }

    /// The number of the next event.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// One more event.
    #[inline]
    pub fn push(&mut self, what: What, hash: BlockHash, parent: BlockHash) {
        if self.capacity == 0 || self.muted {
            return;
        }
        let event = Event { number: self.next, what, hash, parent };
        if self.ring.len() < self.capacity {
            self.ring.push(event);
        } else {
            #[allow(clippy::cast_possible_truncation, reason = "below the capacity")]
            let at = (self.next % self.capacity as u64) as usize;
            self.ring[at] = event;
        }
        self.next += 1;
    }

    /// Events that follow are left out, until it is called with `false`.
    pub fn mute(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Up to `most` events from number `from` on, the number to go on with, and how many before the first one are gone.
    pub fn read(&self, from: u64, most: usize) -> Result<(Vec<Event>, u64, u64)> {
        let oldest = self.next - self.ring.len() as u64;
        let first = from.clamp(oldest, self.next);
        let end = self.next.min(first.saturating_add(most as u64));
        #[allow(clippy::cast_possible_truncation, reason = "below the capacity")]
        let event = |number: u64| self.ring[(number % self.capacity as u64) as usize];
        Ok((memory::collect((first..end).map(event))?, end, first.saturating_sub(from)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;

    fn numbered(events: &Events, from: u64, most: usize) -> (Vec<u64>, u64, u64) {
        let (out, next, lost) = events.read(from, most).unwrap();
        (out.iter().map(|event| event.number).collect(), next, lost)
    }

    #[test]
    fn a_reader_sees_every_event_once_or_is_told_how_many_are_gone() {
        let mut events = Events::new(4).unwrap();
        let hash = BlockHash::default();
        assert_eq!(numbered(&events, 0, 10), (vec![], 0, 0));
        for _ in 0..3 {
            events.push(What::Stored, hash, hash);
        }
        assert_eq!(numbered(&events, 0, 2), (vec![0, 1], 2, 0));
        assert_eq!(numbered(&events, 2, 10), (vec![2], 3, 0));
        for _ in 0..7 {
            events.push(What::Removed, hash, hash);
        }
        assert_eq!(numbered(&events, 3, 10), (vec![6, 7, 8, 9], 10, 3));
        assert_eq!(numbered(&events, 10, 10), (vec![], 10, 0));
        assert_eq!(numbered(&events, 99, 10), (vec![], 10, 0), "a number from elsewhere");
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut events = Events::new(0).unwrap();
        events.push(What::Stored, BlockHash::default(), BlockHash::default());
        assert_eq!(numbered(&events, 0, 10), (vec![], 0, 0));
    }
}
