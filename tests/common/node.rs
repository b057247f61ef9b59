//! What the tests of a node's store share: a config, names, values that go where a plan says, and a list that is kept by the facts.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may")]

use nanomc::cluster::node::storage::Tail;
use nanomc::cluster::node::{Memory, NodeStore, Plan, Storage};
use nanomc::cluster::types::{ObjectKey, PutId};
use nanomc::cluster::wire::{Fact, Published};
use nanomc::store::Config;
use std::collections::BTreeMap;

/// Objects that a store with [`config`] can have.
pub const HEADERS: u32 = 64;

/// A store of small pages, with checksums.
pub fn config() -> Config {
    Config { page_bytes: 4096, max_objects: Some(HEADERS), checksums: true, ..Config::default() }
}

pub fn key(space: &str, key: &str) -> ObjectKey {
    ObjectKey::new(space.as_bytes(), key.as_bytes()).unwrap()
}

pub fn put_id(n: u64) -> PutId {
    PutId::clustered(3, n)
}

/// Stores a value where the plan says.
pub fn fill(node: &NodeStore, plan: Plan, value: &[u8]) {
    let mut rest = value;
    for span in node.plan_spans(plan).unwrap() {
        let (now, later) = rest.split_at(span.len().min(rest.len()));
        span.store(now);
        rest = later;
    }
    assert!(rest.is_empty());
}

/// All that is there, in memory and on disk.
pub fn all(node: &mut NodeStore) -> BTreeMap<u32, Published> {
    let (mut live, mut from) = (BTreeMap::new(), Some(0));
    while let Some(index) = from {
        let part = node.part(index, 7).unwrap();
        assert!(part.live.iter().all(|found| (part.from..part.to).contains(&found.index)));
        live.extend(part.live.into_iter().map(|published| (published.index, published)));
        from = part.next;
    }
    live
}

/// A list that is kept by what the agent is told.
#[derive(Default)]
pub struct Directory {
    /// Facts that it has read.
    pub at: u64,
    pub live: BTreeMap<u32, Published>,
    epochs: BTreeMap<u32, u64>,
    /// How often something was missing, and everything was looked at.
    pub snapshots: u32,
}

impl Directory {
    pub fn follow(&mut self, node: &mut NodeStore) {
        loop {
            match node.facts(self.at, 5).unwrap() {
                Tail::Facts(facts) if facts.is_empty() => return,
                Tail::Facts(facts) => {
                    self.at += facts.len() as u64;
                    facts.into_iter().for_each(|fact| self.hear(fact));
                }
                Tail::Overwritten => {
                    self.snapshots += 1;
                    self.at = node.newest();
                    self.live = all(node);
                    self.epochs.extend(self.live.iter().map(|(index, found)| (*index, found.epoch)));
                }
            }
        }
    }

    fn hear(&mut self, fact: Fact) {
        let (index, epoch) = match &fact {
            Fact::Published(published) => (published.index, published.epoch),
            Fact::Retired(retired) => (retired.index, retired.epoch),
        };
        let known = self.epochs.entry(index).or_default();
        match fact {
            Fact::Published(published) if epoch > *known => _ = self.live.insert(index, published),
            Fact::Retired(_) if epoch >= *known => _ = self.live.remove(&index),
            _ => return,
        }
        *known = epoch;
    }
}
