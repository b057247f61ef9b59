//! What goes into the cache's calls and comes out of them.

use super::evict::Kind;
use super::hash::{BlockHash, Chain};
use super::lists::NONE;
use crate::base::error::Error;
use crate::base::status::NMC_ERR_NO_SPACE;

/// Tokens that a sequence can have.
pub const MAX_TOKENS: u32 = 1 << 31;

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
    /// Layers whose blocks have numbers of their own.
    pub sides: Vec<SideConfig>,
}

/// Layers that do not keep every token, and so have blocks of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideConfig {
    /// How many.
    pub blocks: u32,
    /// What they hold.
    pub kind: SideKind,
}

/// What the blocks of a side hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideKind {
    /// Keys and values of the last so many tokens.
    Window(u32),
    /// The state of a sequence after all its tokens; a block is a slot.
    State {
        /// The state after every so many blocks is kept for later sequences; 0 for none but those that are asked for.
        every: u32,
    },
}

/// Where a sequence's blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Anywhere.
    Paged,
    /// One after the other.
    Run,
    /// Anywhere, and mapped one after the other.
    Virtual,
}

/// What a sequence can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Closed,
    /// Anything.
    Open,
    /// Its blocks were taken to make room; it can only be closed.
    Evicted,
}

/// How much room there was when there was not enough. Counts of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Whose blocks there were too few of: a side's, or [`NONE`] for those of the cache.
    pub side: u32,
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
        let Self { side, needed, free, evictable } = self;
        let whose = if side == NONE { "" } else { " of a group with blocks of its own" };
        let text = format!(
            "{needed} blocks{whose} are needed, {free} are free and {evictable} hold cached prefixes that could go; close \
             or preempt a sequence"
        );
        Error::new(NMC_ERR_NO_SPACE, text)
    }
}

/// Done, or not for want of room; then nothing changed.
pub type Attempt<T> = std::result::Result<T, Room>;

/// What a sequence is opened with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Open<'a> {
    /// How many tokens it begins with.
    pub n_tokens: u32,
    /// The tokens, if they are known; as many as `n_tokens`.
    pub tokens: Option<&'a [u32]>,
    /// The hashes of its full blocks, if the caller computed them.
    pub hashes: Option<&'a [BlockHash]>,
    /// What else must be equal for blocks to be: tenant, LoRA adapter, images.
    pub salt: &'a [u8],
    /// At most so many tokens are taken from the cache.
    pub max_hit: u32,
    /// Its blocks are to follow each other.
    pub contiguous: bool,
    /// Its blocks stay longer than those of lower priority.
    pub priority: u8,
    /// How long the priority lasts; 0 is for ever.
    pub ttl_ms: u32,
    /// A name to find it by.
    pub name: Option<&'a [u8]>,
    /// Keep the blocks out of the index.
    pub no_publish: bool,
    /// Tokens that it may ever have; 0 for as many as any.
    pub limit: u32,
    /// The addresses that map its blocks; 0 for none.
    pub keeper: u64,
}

/// What a sequence began with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// Leading tokens that came from the cache.
    pub hit_tokens: u32,
    /// As asked for, or fewer under [`WhenFull::Shorten`].
    pub tokens: u32,
}

/// The contents of one block are to be copied to another, before the next call for the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub from: u32,
    /// The block to write.
    pub to: u32,
    /// Whose blocks these are: a side's, or [`NONE`] for those of the cache.
    pub side: u32,
}

/// What a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqInfo {
    /// Its id.
    pub id: u64,
    /// Its tokens.
    pub tokens: u32,
    /// Its blocks, with those that were dropped.
    pub blocks: u32,
    /// Blocks that were dropped.
    pub holes: u32,
    /// Leading blocks that others may hold as well.
    pub shared: u32,
    /// Leading blocks in the prefix index.
    pub published: u32,
    /// Tokens that it may have.
    pub limit: u32,
    /// What it can be asked to do.
    pub state: State,
    /// Where its blocks lie.
    pub placement: Placement,
    /// Copies that it waits for.
    pub copies: u32,
    /// Leading tokens that are computed.
    pub computed: u32,
}

/// Numbers about a cache. Blocks: `total = free + idle + used`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks.
    pub total: u64,
    /// Blocks that nobody has.
    pub free: u64,
    /// Cached blocks that nobody holds.
    pub idle: u64,
    /// Blocks that sequences or pins hold.
    pub used: u64,
    /// Blocks in the prefix index.
    pub published: u64,
    /// Sequences that are open.
    pub sequences: u64,
    /// Tokens that came from the cache.
    pub hit_tokens: u64,
    /// Tokens that sequences were opened with.
    pub asked_tokens: u64,
    /// Cached blocks that were evicted to make room.
    pub evicted_blocks: u64,
    /// Sequences that were evicted to make room.
    pub evicted_sequences: u64,
    /// Those of them whose blocks went to the store first.
    pub moved_sequences: u64,
    /// Blocks that were computed twice, of which one was kept.
    pub deduplicated: u64,
    /// Memory of the books.
    pub bytes: u64,
}

/// Numbers about a side. Blocks: `total = free + idle + used`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SideStats {
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
