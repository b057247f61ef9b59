//! A point in time by which a call must return, on CLOCK_MONOTONIC.

use super::error::Result;
use std::time::{Duration, Instant};

/// When a blocking call gives up.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

/// Longest wait that a caller can ask for; also what keeps the arithmetic from overflowing.
pub const MAX_TIMEOUT_MS: i64 = 7 * 24 * 3600 * 1000;

impl Deadline {
    /// A deadline `timeout` from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// A deadline from the C convention: milliseconds, 0 for "do not wait", -1 for the default.
    pub fn from_ms(timeout_ms: i64, default_ms: i64) -> Result<Self> {
        let ms = if timeout_ms == -1 { default_ms } else { timeout_ms };
        match u64::try_from(ms) {
            Ok(ms) if ms <= MAX_TIMEOUT_MS.unsigned_abs() => Ok(Self::after(Duration::from_millis(ms))),
            _ => {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "timeout of {timeout_ms} ms is not -1 (default) or between 0 and {MAX_TIMEOUT_MS}"
                )
            }
        }
    }

    /// Time left; zero when the deadline has passed.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        Instant::now() >= self.0
    }
}
