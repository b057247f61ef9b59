//! What the tests of the KV cache share: a config.
#![allow(dead_code, reason = "each test program uses a part of it")]

use nanomc::kv::evict::Kind;
use nanomc::kv::hash::{Algo, Chain, Key};
use nanomc::kv::{Config, WhenFull};

/// A cache of so many blocks of so many tokens, which publishes full blocks and refuses what does not fit.
pub fn config(total_blocks: u32, tokens_per_block: u32, algo: Algo) -> Config {
    Config {
        total_blocks,
        tokens_per_block,
        max_sequences: 2000,
        eviction: Kind::Lru,
        when_full: WhenFull::Reject,
        prefix: true,
        chain: Chain::new(algo, &Key::default()),
        window: 0,
        events: 0,
        own_groups: Vec::new(),
    }
}
