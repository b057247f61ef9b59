//! What goes into the calls for a sequence and comes out of them.

use crate::kv::hash::BlockHash;

/// Tokens that a sequence can have.
pub const MAX_TOKENS: u32 = 1 << 31;

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
    pub address_space: u64,
}

/// What a sequence began with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// Leading tokens that came from the cache.
    pub hit_tokens: u32,
    /// As asked for, or fewer under [`WhenFull::Shorten`](crate::kv::WhenFull::Shorten).
    pub tokens: u32,
}

/// The contents of one block are to be copied to another, before the next call for the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub from: u32,
    /// The block to write.
    pub to: u32,
    /// Whose blocks these are: the number of a group with blocks of its own, or
    /// [`NONE`](crate::kv::NONE) for those of the cache.
    pub own_group: u32,
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
