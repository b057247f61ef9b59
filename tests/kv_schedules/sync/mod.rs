//! In place of src/sync, as far as the KV cache uses it: with shuttle's locks, and its atomics in the table of ids.

/// Shuttle's atomics.
pub mod atomic {
    pub use shuttle::sync::atomic::{AtomicU64, Ordering};
}
#[path = "../../../src/sync/ids.rs"]
pub mod ids;
pub mod lock;
