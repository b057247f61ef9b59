//! Puts of which the master was told that they were read, and until when that need not be told again: by then they are gone, or the
//! master has not heard of it, or is another one.

use super::types::{Millis, PutId};
use crate::base::memory;
use std::collections::{HashMap, VecDeque};

/// Puts that are remembered; of others it is told once more.
const MOST: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Told {
    until: HashMap<PutId, Millis>,
    order: VecDeque<PutId>,
}

impl Told {
    /// Whether it is to be told that a put was read; then it is not to be for so long.
    pub fn is_new(&mut self, put: PutId, now: Millis, for_ms: Millis) -> bool {
        if let Some(until) = self.until.get_mut(&put) {
            let over = *until <= now;
            if over {
                *until = now + for_ms;
            }
            return over;
        }
        if memory::reserve_map(&mut self.until, 1).and(memory::reserve_queue(&mut self.order, 1)).is_ok() {
            self.until.insert(put, now + for_ms);
            self.order.push_back(put);
            if self.order.len() > MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.until.remove(&oldest);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_told_of_once_in_its_time_and_few_are_remembered() {
        let mut told = Told::default();
        assert!(told.is_new(PutId(1), 10, 100) && !told.is_new(PutId(1), 109, 100));
        assert!(told.is_new(PutId(1), 110, 100), "it should be gone: the master may not know of it");
        assert!(!told.is_new(PutId(1), 209, 100));
        (2..2 + MOST as u64).for_each(|put| assert!(told.is_new(PutId(put), 300, 100)));
        assert!(told.until.len() == MOST && told.order.len() == MOST);
        assert!(told.is_new(PutId(1), 300, 100));
    }
}
