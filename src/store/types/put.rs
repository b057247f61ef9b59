//! How a value is to be stored.

use super::keep::Keep;
use std::time::Duration;

/// How long a call that finds no room waits for some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// As long as calls wait for the master.
    CallTimeout,
    /// So long.
    For(Duration),
}

/// How a value is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct PutOptions<'a> {
    /// Rank whose heap is to hold it; by hash if not given.
    pub rank: Option<u32>,
    /// If that one has no room, any other may hold it.
    pub any_rank: bool,
    /// What to do when there is no room.
    pub wait: Wait,
    /// In one run of pages.
    pub contiguous: bool,
    /// In the place of an object with the same key, if there is one.
    pub replace: bool,
    /// How it is kept.
    pub keep: Keep,
    /// What is said about it, up to `MAX_METADATA` bytes.
    pub metadata: &'a [u8],
    /// The same for each object of a batch; `metadata` for those behind its end.
    pub metadata_each: &'a [&'a [u8]],
}

impl PutOptions<'static> {
    /// Nothing special.
    pub const DEFAULT: PutOptions<'static> = PutOptions {
        rank: None,
        any_rank: false,
        wait: Wait::No,
        contiguous: false,
        replace: false,
        keep: Keep::DEFAULT,
        metadata: &[],
        metadata_each: &[],
    };
}

impl<'a> PutOptions<'a> {
    /// The metadata of object `at` of a batch.
    pub(in crate::store) fn metadata_of(&self, at: usize) -> &'a [u8] {
        self.metadata_each.get(at).copied().unwrap_or(self.metadata)
    }
}
