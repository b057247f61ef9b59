//! How firmly an object is kept.

use crate::layout::store::{PRIORITY_SHIFT, RETAIN_SHIFT};

/// Priorities, 0 goes first.
pub const PRIORITIES: u16 = 4;

/// How long an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retain {
    /// As the policy says.
    None,
    /// Until everything else is gone, or until its time is over.
    Soft,
    /// Until it is removed.
    Hard,
}

impl Retain {
    /// Number in the C header.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Retain::None => 0,
            Retain::Soft => 1,
            Retain::Hard => 2,
        }
    }

    /// The class with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Retain::None, Retain::Soft, Retain::Hard].into_iter().find(|r| r.code() == code)
    }
}

/// How an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Class.
    pub retain: Retain,
    /// Priority, 0 goes first.
    pub priority: u32,
    /// Time of a soft retention in ms, 0 for no end.
    pub ttl_ms: u64,
}

impl Keep {
    /// Nothing special.
    pub const DEFAULT: Keep = Keep { retain: Retain::None, priority: 0, ttl_ms: 0 };

    pub(in crate::store) fn flags(self) -> u32 {
        self.retain.code() << RETAIN_SHIFT | self.priority.min(u32::from(PRIORITIES) - 1) << PRIORITY_SHIFT
    }

    pub(in crate::store) fn until(self, now: u64) -> u64 {
        match (self.retain, self.ttl_ms) {
            (Retain::Soft, 1..) => now.saturating_add(self.ttl_ms.saturating_mul(1_000_000)),
            _ => u64::MAX,
        }
    }
}
