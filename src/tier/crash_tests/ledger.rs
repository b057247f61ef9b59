//! What was promised so far, and the moments at which the machine may stop: each is the disk as it was and the promises that
//! held then.

use super::Violation;
use crate::tier::io::sim::{Random, SimDisk};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Id of the tier in all tests.
pub const TIER: u64 = 0x7e57;

/// A key: its namespace and a number.
pub type Name = (u8, u8);

/// A value of a key: the store that it was put into and its epoch there. Later stores have higher numbers.
pub type Version = (u64, u64);

/// The bytes of a value, which no other one has.
pub fn value_of(name: Name, version: Version) -> Vec<u8> {
    let seed = (u64::from(name.0) << 56 | u64::from(name.1) << 48 | version.0 << 24) ^ version.1;
    let seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bytes = match Random(seed).below(16) {
        0 => 0,
        1 => 70_000,
        2..6 => 5000,
        _ => 100,
    };
    let mut value = vec![0; bytes];
    for (number, eight) in (1u64..).zip(value.chunks_mut(8)) {
        eight.copy_from_slice(&seed.wrapping_mul(2 * number + 1).to_le_bytes()[..eight.len()]);
    }
    value
}

/// The promises.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Is found after everything.
    pub there: BTreeMap<Name, Version>,
    /// This value and all before it are not found again, if the process is killed.
    pub over: BTreeMap<Name, Version>,
    /// The same for a power loss.
    pub over_for_good: BTreeMap<Name, Version>,
    /// Buckets that were given up: nothing is found in them, whatever happens.
    pub gone: BTreeSet<u64>,
    /// Numbers that buckets had.
    pub numbers: BTreeSet<u64>,
    /// Stores that there were.
    pub store_ids: u64,
}

impl Ledger {
    /// What is over for a killed process is so for good.
    pub fn synced(&mut self, over: BTreeMap<Name, Version>) {
        for (name, version) in over {
            let known = self.over_for_good.entry(name).or_default();
            *known = version.max(*known);
        }
    }

    /// Values of a key up to this one are over.
    pub fn ended(&mut self, name: Name, version: Version, for_good: bool) {
        let known = self.over.entry(name).or_default();
        *known = version.max(*known);
        if for_good {
            self.synced(BTreeMap::from([(name, version)]));
        }
    }
}

/// A disk at a moment, and what was promised by then.
pub struct Moment {
    pub disk: SimDisk,
    pub ledger: Ledger,
}

/// Which moments are kept.
enum Keep {
    None,
    All,
    /// One of so many, by chance.
    OneOf(u32, Random),
    /// The same, from the first failure of the disk on.
    SinceFailure(u32, Random),
}

/// See the module.
pub struct Moments {
    pub ledger: Mutex<Ledger>,
    keep: Mutex<Keep>,
    kept: Mutex<Vec<Moment>>,
    /// What was found wrong in passing.
    wrong: Mutex<Option<Violation>>,
}

impl Moments {
    /// With these promises. Keeps none at first.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            keep: Mutex::new(Keep::None),
            kept: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// From now on all are kept, or none.
    pub fn keep(&self, all: bool) {
        *self.keep.lock() = if all { Keep::All } else { Keep::None };
    }

    /// From now on one of so many is kept.
    pub fn keep_one_of(&self, many: u32, seed: u64) {
        *self.keep.lock() = Keep::OneOf(many, Random(seed));
    }

    /// From the first failure of the disk on, one of so many is kept.
    pub fn keep_since_failure(&self, many: u32, seed: u64) {
        *self.keep.lock() = Keep::SinceFailure(many, Random(seed));
    }

    /// A moment.
    pub fn come(&self, disk: &SimDisk) {
        let kept = match &mut *self.keep.lock() {
            Keep::None => false,
            Keep::All => true,
            Keep::OneOf(many, rng) => rng.below(*many) == 0,
            Keep::SinceFailure(many, rng) => disk.failures() > 0 && rng.below(*many) == 0,
        };
        if kept {
            self.kept.lock().push(Moment { disk: disk.kill(), ledger: self.ledger.lock().clone() });
        }
    }

    /// Something is found wrong in passing.
    pub fn is_wrong(&self, violation: Violation) {
        self.wrong.lock().get_or_insert(violation);
    }

    /// What was found wrong first, if anything was.
    pub fn wrong(&self) -> Option<Violation> {
        self.wrong.lock().clone()
    }

    /// Those that were kept.
    pub fn take(&self) -> Vec<Moment> {
        std::mem::take(&mut *self.kept.lock())
    }
}
