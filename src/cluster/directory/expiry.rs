//! What was read goes after a while, if whoever reads it wants that: the put that was read, on all its owners, and not what has its key by
//! then. Nobody waits for it, and a leader that comes forgets it: what is still there is asked for again by the next who reads it.

use super::Leader;
use super::objects::Gate;
use crate::base::error::Result;
use crate::cluster::types::{Millis, ObjectKey, PutId};
use crate::cluster::wire::Expire;
use std::collections::{BTreeMap, BTreeSet};

/// Puts that wait to go, at most: what would be more stays.
const MAX_EXPIRING: usize = 1 << 18;
/// Puts that go in one tick.
const AT_ONCE: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Expiring {
    keys: BTreeMap<PutId, ObjectKey>,
    due: BTreeSet<(Millis, PutId)>,
}

impl Expiring {
    /// How many wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// A put was read. The first time counts.
    fn enter(&mut self, expire: Expire, now: Millis) {
        if self.keys.len() < MAX_EXPIRING && !self.keys.contains_key(&expire.put) {
            self.due.insert((now + Millis::from(expire.after_ms), expire.put));
            self.keys.insert(expire.put, expire.key);
        }
    }

    /// One whose time is over.
    fn over(&self, now: Millis) -> Option<(Millis, PutId, &ObjectKey)> {
        let (due, put) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.keys.get(&put).map(|key| (due, put, key))
    }

    fn forget(&mut self, due: Millis, put: PutId) {
        self.due.remove(&(due, put));
        self.keys.remove(&put);
    }
}

impl Leader {
    pub(super) fn expire(&mut self, expire: Expire, now: Millis) {
        self.expiring.enter(expire, now);
    }

    /// Drops puts whose time is over, like a remove does that nobody waits for.
    pub(super) fn expire_some(&mut self, now: Millis) -> Result<()> {
        for _ in 0..AT_ONCE {
            let Some((due, put, key)) = self.expiring.over(now) else { break };
            let key = key.copy()?;
            // Whoever may still put it is not asked: that has not been read.
            self.take_replicas(&key, |held| held.put == put && !matches!(held.gate, Gate::Closed | Gate::Dropped), 0)?;
            self.expiring.forget(due, put);
        }
        Ok(())
    }
}
