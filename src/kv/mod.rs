//! The block KV cache.

pub mod geometry;
pub mod hash;
