//! Groups of layers with blocks of their own: those that do not keep every token, but a sliding window of them or one
//! recurrent state. [`GroupPool`] has the blocks of such a group, [`SeqGroup`] is what one sequence has of them.
//! Elsewhere such a group is known by its number among its like, `own_group`; [`NONE`] there stands for the blocks of the cache,
//! which all other groups share.
//!
//! [`NONE`]: super::block::NONE

mod pool;
mod seq_group;

pub(super) use pool::{GroupPool, first_seen, seen_from};
pub(super) use seq_group::{NoCut, Ready, SeqGroup};

/// Layers that do not keep every token, and so have blocks of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnGroup {
    /// How many.
    pub blocks: u32,
    /// What they hold.
    pub kind: OwnKind,
}

/// What the blocks of such a group hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnKind {
    /// Keys and values of the last so many tokens.
    Window(u32),
    /// The state of a sequence after all its tokens; a block is a slot.
    State {
        /// The state after every so many blocks is kept for later sequences; 0 for none but those that are asked for.
        every: u32,
    },
}

/// Numbers about a group with blocks of its own: `total = free + idle + used`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Blocks.
    pub total: u64,
    /// Blocks that nobody has.
    pub free: u64,
    /// Blocks that a later sequence could use, and that nobody holds.
    pub idle: u64,
    /// Blocks that sequences or pins hold.
    pub used: u64,
    /// Blocks that were evicted to make room.
    pub evicted: u64,
}
