//! What happened to objects, for who keeps a list of them elsewhere: the master appends to a ring in shared memory, any client reads
//! behind the newest and asks nobody. What was overwritten before it was read is gone: then the list is made anew by looking at everything.

use super::Store;
use super::master::namespace_word;
use crate::base::error::Result;
use crate::base::memory;
use crate::layout::store::Fact;
use crate::sync::facts;
use std::sync::atomic::Ordering::Acquire;

/// What a ring has behind a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// These, the first of them with the next number.
    Facts(Vec<Fact>),
    /// Some were overwritten, or a master that died may not have told of some.
    Overwritten,
}

impl Store {
    /// Number of the newest fact; 0 if nothing has happened yet.
    #[must_use]
    pub fn newest_fact(&self) -> u64 {
        self.client.view().header().facts.load(Acquire)
    }

    /// The epoch of the object that a header has, if it can be read: for who looks at all of them.
    #[must_use]
    pub fn live(&self, index: u32) -> Option<u64> {
        let view = self.client.view();
        let word = view.object(index)?.namespace.load(Acquire);
        view.readable(index).filter(|_| namespace_word(view, word & 0xff) == word)
    }

    /// The facts behind a number, so many at most. A master that takes over goes on behind a gap: whoever was at the newest one
    /// hears that something is missing.
    pub fn facts(&self, behind: u64, most: usize) -> Result<Tail> {
        let (view, newest) = (self.client.view(), self.newest_fact());
        let there = newest.saturating_sub(behind);
        if there > view.layout.params.facts() as u64 || behind > newest {
            return Ok(Tail::Overwritten);
        }
        let count = usize::try_from(there).unwrap_or(usize::MAX).min(most);
        let mut found = memory::with_capacity(count)?;
        for number in (behind + 1..).take(count) {
            let record = view.fact(number).and_then(|record| facts::read(record, number));
            match record.and_then(Fact::from_words) {
                Some(fact) => found.push(fact),
                None => return Ok(Tail::Overwritten),
            }
        }
        Ok(Tail::Facts(found))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::store::copy::{Pieces, Slice};
    use crate::store::master::Master;
    use crate::store::strays::{config, world};
    use crate::store::write::PutOptions;
    use std::sync::Arc;

    #[test]
    fn a_master_that_takes_over_goes_on_behind_a_gap() {
        let store = Store::embedded(&world(), &config(false)).unwrap();
        let put = |key: &[u8]| {
            let slices = [Slice { address: key.as_ptr() as u64, bytes: key.len() as u64 }];
            store.put(key, &Pieces::Slices(&slices), &PutOptions::DEFAULT).unwrap();
        };
        put(b"a");
        put(b"b");
        assert!(store.remove(b"b").is_ok());
        let before = store.newest_fact();
        assert!(
            matches!(store.facts(0, 100).unwrap(), Tail::Facts(facts) if facts.len() as u64 == before && before > 0)
        );
        assert_eq!(store.facts(before, 100).unwrap(), Tail::Facts(Vec::new()));
        assert_eq!(store.facts(before + 1, 100).unwrap(), Tail::Overwritten, "of the future nothing is known");
        drop(Master::take_over(Arc::clone(&store.client.map)).unwrap());
        assert_eq!(store.facts(before, 100).unwrap(), Tail::Overwritten);
        // What shared memory says is not believed if it cannot be.
        store.client.view().header().facts.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        drop(Master::take_over(Arc::clone(&store.client.map)).unwrap());
        assert!(store.newest_fact() < 1 << 56);
    }
}
