//! The ring of facts: whoever follows it knows which objects can be read, as if it had looked at all of them.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "common/mod.rs"]
mod common;
#[path = "../src/base/random.rs"]
mod random;
#[path = "common/store.rs"]
mod values;

use nanomc::layout::store::Fact;
use nanomc::store::types::PutOptions;
use nanomc::store::watch::Tail;
use nanomc::store::{Config, Store};
use random::Random;
use std::collections::BTreeMap;
use values::{put, put_as};

fn config() -> Config {
    Config {
        page_bytes: 4096,
        max_objects: Some(256),
        deadline: nanomc::base::Deadline::after(common::PATIENCE),
        ..Config::default()
    }
}

/// A list of objects that is kept by what the ring says.
#[derive(Default)]
struct Follower {
    at: u64,
    live: BTreeMap<u32, u64>,
    /// The broken variant: believes that nothing was overwritten.
    trusting: bool,
    renewed: u32,
}

impl Follower {
    /// Reads what is new; looks at everything if something is missing.
    fn follow(&mut self, store: &Store, most: usize) {
        loop {
            match store.facts(self.at, most).unwrap() {
                Tail::Facts(facts) if facts.is_empty() => return,
                Tail::Facts(facts) => {
                    self.at += facts.len() as u64;
                    facts.into_iter().for_each(|fact| self.hear(fact));
                }
                Tail::Overwritten if self.trusting => {
                    self.at = store.newest_fact();
                    return;
                }
                Tail::Overwritten => {
                    self.renewed += 1;
                    // First the place, then the objects: what happens meanwhile is heard again.
                    self.at = store.newest_fact();
                    self.live.clear();
                    for index in 0..256 {
                        self.live.extend(store.described(index).map(|found| (index, found.epoch)));
                    }
                }
            }
        }
    }

    fn hear(&mut self, fact: Fact) {
        match fact {
            Fact::Published { index, epoch } => {
                let known = self.live.entry(index).or_default();
                *known = epoch.max(*known);
            }
            Fact::Retired { index, epoch } => {
                if self.live.get(&index).is_some_and(|known| *known <= epoch) {
                    self.live.remove(&index);
                }
            }
            Fact::Flushed { .. } => {}
        }
    }
}

/// Does things with keys; gives what can be read in the end, by looking.
fn churn(store: &Store, steps: u64, seed: u64) {
    let mut chance = Random(seed);
    let mut random = |limit: u64| chance.below(limit);
    for _ in 0..steps {
        let key = format!("k{}", random(60)).into_bytes();
        let value = vec![7; usize::try_from(random(20_000)).unwrap()];
        match random(8) {
            0 => _ = store.remove(&key),
            1 => _ = store.evict_until_below(0, 900),
            2 => _ = put_as(store, &key, &value, &PutOptions { replace: true, ..PutOptions::DEFAULT }),
            _ => _ = put(store, &key, &value),
        }
    }
}

fn readable(store: &Store) -> BTreeMap<u32, u64> {
    (0..256).filter_map(|index| store.described(index).map(|found| (index, found.epoch))).collect()
}

const TRIES: u32 = 20_000;

/// Whether the list is right, when the master has noticed what was published last.
fn agrees(follower: &mut Follower, store: &Store, tries: u32) -> bool {
    (0..tries).any(|_| {
        // A call, so that there is some upkeep.
        let _ = store.remove(b"none");
        follower.follow(store, 7);
        std::thread::sleep(std::time::Duration::from_millis(1));
        follower.live == readable(store)
    })
}

#[test]
fn whoever_follows_the_facts_knows_what_can_be_read() {
    for seed in 1..20 {
        let store = Store::embedded(&embedded(), &config()).unwrap();
        let mut follower = Follower::default();
        for round in 0..20 {
            churn(&store, 100, seed * 1000 + round);
            follower.follow(&store, 5);
        }
        assert!(agrees(&mut follower, &store, TRIES), "seed {seed}: {:?} {:?}", follower.live, readable(&store));
        assert_eq!(follower.renewed, 0, "it was never late");
    }
}

#[test]
fn who_comes_late_is_told_so_and_control_who_does_not_mind_is_wrong() {
    let run = |trusting| {
        let store = Store::embedded(&embedded(), &config()).unwrap();
        let mut follower = Follower { trusting, ..Follower::default() };
        churn(&store, 100, 1);
        follower.follow(&store, 100);
        churn(&store, 20_000, 2);
        follower.follow(&store, 100);
        (agrees(&mut follower, &store, if trusting { 50 } else { TRIES }), follower.renewed)
    };
    assert_eq!(run(false), (true, 1));
    assert!(!run(true).0, "the ring has 1,024 records, and more happened");
}

fn embedded() -> nanomc::world::Config {
    nanomc::world::Config { heap_bytes: 128 * 4096, ..common::config(std::path::Path::new(""), None, 1) }
}
