//! The block KV cache.

pub mod geometry;
