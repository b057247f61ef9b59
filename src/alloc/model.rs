//! What the allocators are compared with in tests: a flag a unit, numbers of units, and promises that are told when broken.
#![allow(clippy::unwrap_used, reason = "a test may")]

use super::runs::Run;
use crate::base::random::Random;

/// How many to ask for: mostly few, often of a size class with two lengths, now and then anything up to `limit`.
pub fn any_count(random: &mut Random, limit: u32) -> u32 {
    let most = match random.below(8) {
        0 => limit,
        1 | 2 => limit.min(70),
        3 => return limit.min(16 + random.below(2)),
        4 => return limit.min(64 + random.below(2)),
        _ => limit.min(12),
    };
    random.below(most + 1)
}

/// What the allocator should be: a flag a unit, set while it is in use.
pub struct Model(pub Vec<bool>);

impl Model {
    pub fn set(&mut self, run: Run, used: bool) {
        self.0[run.range()].fill(used);
    }

    /// Whether there are such units and all are in this state.
    pub fn all(&self, run: Run, used: bool) -> bool {
        run.count > 0 && self.0.get(run.range()).is_some_and(|units| units.iter().all(|unit| *unit == used))
    }

    pub fn used(&self) -> u32 {
        u32::try_from(self.0.iter().filter(|used| **used).count()).unwrap()
    }

    pub fn free_runs(&self) -> Vec<Run> {
        let (mut found, mut first) = (Vec::new(), 0);
        for stretch in self.0.chunk_by(|a, b| a == b) {
            let count = u32::try_from(stretch.len()).unwrap();
            if !stretch[0] {
                found.push(Run { first, count });
            }
            first += count;
        }
        found
    }
}

/// Ends a check with a text if a promise is not kept.
macro_rules! promise {
    ($kept:expr, $($arg:tt)*) => {
        if !$kept {
            return Err(format!($($arg)*));
        }
    };
}
pub(super) use promise;
