//! Write plans: what a writer asks for, and what the master gives it.

use super::keep::Keep;
use crate::base::error::Error;
use crate::base::status::NMC_ERR_NOT_FOUND;

/// What a writer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRequest<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Namespace id.
    pub namespace: u32,
    /// Bytes of the value.
    pub bytes: u64,
    /// Rank whose heap is to hold it; by hash if not given.
    pub rank: Option<u32>,
    /// Ranks of which any may hold it, a bit each, if that one has no room; 0 if no other may.
    pub among: u64,
    /// `FLAG_HIDDEN`, `FLAG_CONTIGUOUS`, `FLAG_CHECKSUM`, `FLAG_RETURNS`, `FLAG_SPARES`.
    pub flags: u32,
    /// How it is kept.
    pub keep: Keep,
    /// What its writer says about it.
    pub metadata: &'a [u8],
    /// Name of the put, if a cluster has given it one; 0 else, and the master finds one.
    pub put: u64,
}

/// A write plan. Everything else is in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Header.
    pub index: u32,
    /// Epoch to publish.
    pub epoch: u64,
    /// Name of the plan, for giving it up.
    pub plan_id: u64,
}

/// An entry that a value was read from, of one opening of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadFrom {
    /// Name of the disk's index.
    pub disk: u64,
    /// Which entry it was.
    pub entry: u32,
    /// Its first word.
    pub word: u64,
}

/// The error for a plan that is not open, or not this client's.
#[cold]
#[must_use]
pub fn no_plan(plan_id: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("there is no open write plan {plan_id:x} of this client"))
}
