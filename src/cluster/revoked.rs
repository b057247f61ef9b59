//! Puts of this term that are not to be: the latest of them, for as long as a message of one may still be on its way.

use super::types::PutId;
use crate::base::error::Result;
use crate::base::memory;
use std::collections::{BTreeSet, VecDeque};

/// What is remembered of one term.
const MOST: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Revoked {
    puts: BTreeSet<PutId>,
    /// The oldest is first. Ids are random, so their own order says nothing.
    order: VecDeque<PutId>,
}

impl Revoked {
    /// One more; the oldest is forgotten for it if need be.
    pub fn enter(&mut self, put: PutId) -> Result<()> {
        memory::reserve_queue(&mut self.order, 1)?;
        if self.puts.insert(put) {
            self.order.push_back(put);
        }
        while self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.puts.remove(&oldest);
        }
        Ok(())
    }

    /// Whether it is remembered.
    #[must_use]
    pub fn contains(&self, put: PutId) -> bool {
        self.puts.contains(&put)
    }

    /// Another term begins.
    pub fn clear(&mut self) {
        self.puts.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first_whatever_its_number() {
        let mut revoked = Revoked::default();
        // From high to low: by their numbers the newest would go first.
        let put = |n: usize| PutId(u64::MAX - n as u64);
        for n in 0..MOST + 10 {
            revoked.enter(put(n)).unwrap();
            assert!(revoked.contains(put(n)), "{n} was forgotten at once");
        }
        assert!(!revoked.contains(put(9)) && revoked.contains(put(10)));
        assert_eq!((revoked.puts.len(), revoked.order.len()), (MOST, MOST));
    }
}
