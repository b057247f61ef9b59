//! What the KV cache uses of src/layout.

#[path = "../../src/layout/region.rs"]
pub mod region;
