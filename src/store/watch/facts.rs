//! What happened to objects, for who keeps a list of them elsewhere: the master appends to a ring in shared memory, any client reads
//! behind the newest and asks nobody. What was overwritten before it was read is gone: then the list is made anew by looking at everything.

use crate::base::error::Result;
use crate::base::memory;
use crate::layout::store::Fact;
use crate::store::client::Store;
use crate::store::types::namespace_word;
use crate::sync::{facts, object};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// What a ring has behind a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// These, the first of them with the next number.
    Facts(Vec<Fact>),
    /// Some were overwritten, or a master that died may not have told of some.
    Overwritten,
}

/// An object as its header has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Epoch.
    pub epoch: u64,
    /// Number of its namespace.
    pub namespace: u32,
    /// Its key.
    pub key: Vec<u8>,
    /// The put that it came from.
    pub put: u64,
    /// Bytes of its value.
    pub bytes: u64,
    /// Rank whose heap holds it; the number of ranks if it lies on disk.
    pub owner_rank: u32,
}

impl Store {
    /// Number of the newest fact; 0 if nothing has happened yet.
    #[must_use]
    pub fn newest_fact(&self) -> u64 {
        self.client.view().header().facts.load(Acquire)
    }

    /// What a header says about the object that it has, if that can be read and the master has told of it: for who looks at all of
    /// them. What is published and not told of yet is not shown, since nobody would be told that it ends.
    #[must_use]
    pub fn described(&self, index: u32) -> Option<Described> {
        let view = self.client.view();
        let header = view.object(index)?;
        let now = header.control.load(Acquire);
        let (epoch, word) = (object::epoch(now), header.namespace.load(Relaxed));
        if object::state(now) != object::READY || namespace_word(view, word & 0xff) != word {
            return None;
        }
        let found = Described {
            epoch,
            namespace: word & 0xff,
            key: view.key_of(header),
            put: header.plan_id.load(Relaxed),
            bytes: header.bytes_total.load(Relaxed),
            owner_rank: header.owner_rank.load(Relaxed),
        };
        object::still(&header.control, epoch).then_some(found)
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
    use crate::store::master::Master;
    use crate::store::test_store::{self, config, world};
    use crate::store::types::PutOptions;
    use std::sync::Arc;

    #[test]
    fn a_master_that_takes_over_goes_on_behind_a_gap() {
        let store = Store::embedded(&world(), &config(false)).unwrap();
        let put = |key: &[u8]| test_store::put(&store, key, key, &PutOptions::DEFAULT).unwrap();
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
