//! How a cache is made.

use super::groups::{OwnGroup, OwnKind};
use super::hash::Chain;
use super::pool::evict::Kind;
use crate::base::error::Result;

/// What to do when there is not enough room. Idle cached blocks are evicted first in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Say no.
    Reject,
    /// Give a new sequence fewer tokens than it asked for.
    Shorten,
    /// Take the blocks of the sequence that was used longest ago.
    EvictSequence,
    /// The same, after they went to the store. Without one it is [`WhenFull::Reject`].
    MoveSequence,
}

/// How a cache is made.
#[derive(Debug, Clone)]
pub struct Config {
    /// Blocks.
    pub total_blocks: u32,
    /// Tokens in a block.
    pub tokens_per_block: u32,
    /// Sequences that can be open at once.
    pub max_sequences: u32,
    /// Which cached block goes first.
    pub eviction: Kind,
    /// What happens when there is no room.
    pub when_full: WhenFull,
    /// Publish full blocks and match prefixes.
    pub prefix: bool,
    /// Names blocks by their tokens.
    pub chain: Chain,
    /// Sliding window in tokens; 0 for full attention.
    pub window: u32,
    /// Events that are kept for readers; 0 for none.
    pub events: u32,
    /// Groups of layers with blocks of their own.
    pub own_groups: Vec<OwnGroup>,
}

impl Config {
    /// Fails for numbers that no cache can have.
    pub(super) fn check(&self) -> Result<()> {
        if self.tokens_per_block == 0 || self.tokens_per_block > 1 << 20 {
            crate::bail!(NMC_ERR_INVALID_ARG, "tokens_per_block {} is not in 1..=1048576", self.tokens_per_block);
        }
        if self.total_blocks == 0 || self.total_blocks > i32::MAX.unsigned_abs() {
            crate::bail!(NMC_ERR_INVALID_ARG, "total_blocks {} is not in 1..=2147483647", self.total_blocks);
        }
        for (number, group) in self.own_groups.iter().enumerate() {
            if group.blocks == 0 || group.blocks > i32::MAX.unsigned_abs() || group.kind == OwnKind::Window(0) {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "group {number} with blocks of its own has none, too many, or an empty window: {group:?}"
                );
            }
        }
        if self.max_sequences == 0 || self.max_sequences > 1 << 24 {
            crate::bail!(NMC_ERR_INVALID_ARG, "max_sequences {} is not in 1..=16777216", self.max_sequences);
        }
        Ok(())
    }

    /// Whether a match compares tokens, since names could be made to collide.
    pub(super) fn compares_tokens(&self) -> bool {
        self.prefix && self.chain.needs_comparison()
    }
}
