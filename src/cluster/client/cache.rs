//! Where keys were found lately. It is bounded, and nothing depends on it: an owner that does not have what is asked for by
//! name says so, and the master is asked.

use crate::base::memory;
use crate::cluster::types::{Name, ObjectKey};
use crate::cluster::wire::Replica;
use std::collections::{HashMap, VecDeque};

/// See the module.
#[derive(Debug)]
pub struct Cache {
    limit: usize,
    places: HashMap<ObjectKey, (u64, Vec<Replica>)>,
    /// Keys in the order in which they came, each with the number of its entry.
    order: VecDeque<(u64, ObjectKey)>,
    next: u64,
}

impl Cache {
    /// Of so many keys at most.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, places: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    /// Where a key was found.
    #[must_use]
    pub fn find(&self, key: &ObjectKey) -> Option<&[Replica]> {
        self.places.get(key).map(|(_, replicas)| replicas.as_slice())
    }

    /// A key was found. If there is no memory for that it is forgotten.
    pub fn enter(&mut self, key: &ObjectKey, replicas: &[Replica]) {
        let room = memory::reserve_queue(&mut self.order, 1).and(memory::reserve_map(&mut self.places, 1));
        if self.limit == 0 || room.is_err() {
            return;
        }
        let (Ok(first), Ok(second), Ok(replicas)) = (key.copy(), key.copy(), memory::copy(replicas)) else { return };
        self.places.insert(first, (self.next, replicas));
        self.order.push_back((self.next, second));
        self.next += 1;
        while self.places.len() > self.limit || self.order.len() > 2 * self.limit {
            let Some((number, key)) = self.order.pop_front() else { break };
            if self.places.get(&key).is_some_and(|(entered, _)| *entered == number) {
                self.places.remove(&key);
            }
        }
    }

    /// A replica is not where it was.
    pub fn miss(&mut self, key: &ObjectKey, name: &Name) {
        if let Some((_, replicas)) = self.places.get_mut(key) {
            replicas.retain(|replica| replica.name != *name);
            if replicas.is_empty() {
                self.places.remove(key);
            }
        }
    }

    /// A key is to be looked for again.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.places.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::types::{Media, NodeId, PutId};

    fn replica(index: u32) -> Replica {
        let name = Name { node: NodeId(1), incarnation: 1, index, epoch: 1 };
        Replica { name, put: PutId(1), length: 1, media: Media::Ram, endpoint: String::new() }
    }

    #[test]
    fn it_never_holds_more_than_its_limit_and_forgets_what_was_missed() {
        let mut cache = Cache::new(8);
        let keys: Vec<ObjectKey> = (0u8..32).map(|n| ObjectKey::new(b"", &[n]).unwrap()).collect();
        for round in 0..4 {
            for key in &keys {
                cache.enter(key, &[replica(round), replica(round + 1)]);
                assert!(cache.places.len() <= 8 && cache.order.len() <= 16);
            }
        }
        let last = &keys[31];
        assert_eq!(cache.find(last).unwrap().len(), 2);
        cache.miss(last, &replica(3).name);
        assert_eq!(cache.find(last).unwrap(), [replica(4)]);
        cache.miss(last, &replica(4).name);
        assert!(cache.find(last).is_none() && cache.find(&keys[0]).is_none());
        for _ in 0..100 {
            cache.enter(last, &[replica(1)]);
        }
        assert!(cache.order.len() <= 16);
        cache.forget(last);
        assert!(cache.find(last).is_none());
    }
}
