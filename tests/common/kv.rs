//! What the tests of the KV cache share: a config, and random numbers that a seed gives again.
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

/// Xorshift.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
