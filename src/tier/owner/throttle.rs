//! At most so many bytes a second are written ahead: what a second did not use is kept for the next one, no more.

use std::time::{Duration, Instant};

const SECOND: u128 = 1_000_000_000;
/// How long is waited at a time.
const SHORTEST: Duration = Duration::from_millis(1);
/// See `SHORTEST`.
const LONGEST: Duration = Duration::from_secs(3600);

/// See the module.
pub struct Throttle {
    /// Bytes a second; 0 for no limit.
    rate: u64,
    /// Bytes that were written too early: they are paid for with time.
    owed: u64,
    since: Instant,
}

impl Throttle {
    /// Nothing was written yet.
    pub fn new(rate: u64, now: Instant) -> Self {
        Self { rate, owed: 0, since: now }
    }

    /// So much was written.
    pub fn spend(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_add(bytes);
    }

    /// Until when nothing is to be written; `None` if something may be now.
    pub fn held_back(&mut self, now: Instant) -> Option<Instant> {
        if self.rate == 0 {
            self.owed = 0;
            return None;
        }
        let passed = now.saturating_duration_since(self.since);
        let paid = passed.as_nanos().saturating_mul(self.rate.into()) / SECOND;
        // Time counts only when it has paid for something: fractions of a byte are not lost.
        if paid > 0 {
            (self.owed, self.since) = (self.owed.saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX)), now);
        }
        let early = u128::from(self.owed) * SECOND / u128::from(self.rate);
        let early = Duration::from_nanos(u64::try_from(early).unwrap_or(u64::MAX)).clamp(SHORTEST, LONGEST);
        (self.owed > 0).then(|| now + early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_waited_for_and_idle_time_is_not_saved_up() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut throttle = Throttle::new(1000, start);
        assert_eq!(throttle.held_back(at(5000)), None);
        throttle.spend(2000);
        assert_eq!(throttle.held_back(at(5000)), Some(at(7000)), "the five idle seconds do not count");
        assert_eq!(throttle.held_back(at(6000)), Some(at(7000)));
        assert_eq!(throttle.held_back(at(7000)), None);
        throttle.spend(u64::MAX);
        assert_eq!(throttle.held_back(at(7000)), Some(at(7000) + LONGEST));
        let mut free = Throttle::new(0, start);
        free.spend(u64::MAX);
        assert_eq!(free.held_back(start), None);
    }
}
