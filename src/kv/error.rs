//! What calls of the cache answer when they cannot do what they were asked: too little room, which is an outcome of its own
//! that engines act upon, and the errors that more than one file tells.

use super::block::NONE;
use crate::base::error::Error;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_INTERNAL, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_STALE,
};

/// How much room there was when there was not enough. Counts of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Whose blocks there were too few of: the number of a group with blocks of its own, or [`NONE`] for those of the cache.
    pub own_group: u32,
    /// Blocks that were wanted.
    pub needed: u64,
    /// Blocks that nobody has.
    pub free: u64,
    /// Cached blocks that nobody holds.
    pub evictable: u64,
}

impl Room {
    /// The error that it becomes at the boundary.
    #[cold]
    #[must_use]
    pub fn error(self) -> Error {
        let Self { own_group, needed, free, evictable } = self;
        let whose = if own_group == NONE { "" } else { " of a group with blocks of its own" };
        let text = format!(
            "{needed} blocks{whose} are needed, {free} are free and {evictable} hold cached prefixes that could go; close \
             or preempt a sequence"
        );
        Error::new(NMC_ERR_NO_SPACE, text)
    }
}

/// Done, or not for want of room; then nothing changed.
pub type Attempt<T> = std::result::Result<T, Room>;

#[cold]
pub(super) fn unknown(id: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("no sequence {id} is open; was it closed, or never opened?"))
}

#[cold]
pub(super) fn evicted(id: u64) -> Error {
    Error::new(
        NMC_ERR_STALE,
        format!("the blocks of sequence {id} were taken to make room; close it and open it again"),
    )
}

/// For a sequence that is being fetched.
#[cold]
pub(super) fn busy(id: u64) -> Error {
    Error::new(
        NMC_ERR_BUSY,
        format!(
            "blocks of sequence {id} are being fetched, or it was not asked how that ended; wait for it, cancel it, or close it"
        ),
    )
}

#[cold]
pub(super) fn too_long(id: u64, tokens: u64, limit: u32) -> Error {
    Error::new(NMC_ERR_LIMIT, format!("sequence {id} would have {tokens} tokens, its limit is {limit}"))
}

/// For counts and lists that are not as they should be.
#[cold]
pub(super) fn audit_found(what: String) -> Error {
    Error::new(NMC_ERR_INTERNAL, format!("the audit found: {what}"))
}
