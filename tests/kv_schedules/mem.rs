//! What the KV cache uses of src/mem.

#[path = "../../src/mem/limits.rs"]
pub mod limits;
