//! Immutable objects in the heaps of a world. One process writes pages, others find, pin and read them in place; only
//! writers ask the master. `layout::store` is what lies where, `sync::object` and `sync::index` are the rules by which
//! it is read and written, `master` decides, and [`Store`] is what a program holds.
//!
//! ```text
//! agent        what the agent of a cluster's node needs beside what programs do
//! stream       copies, publications and unpins on CUDA streams
//! stats        numbers about a store
//! watch        readiness of keys, now or as an event; what happened to objects, and to values on disk
//! write        puts, plans, removals, values that come back from the disk
//! read         pins, copies, listings; from memory, the disk and peers
//! client       a rank's client and its handles: pin slots, open plans, the way to the master and to the disk
//! serve        where a master runs, for callers of its process and through a socket
//! master       the only one who writes headers, keys and the index: plans, eviction, reclaim, takeover, its side of the disk
//! disk         where a tier below memory meets the store
//! completions  what waits for the program, and the descriptor that says so
//! peers        where a cluster meets the store
//! copy         values and the program's memory, walked side by side; checksums
//! wire         what clients in other processes ask of a master
//! map, hash    the two slabs of a store, mapped; hashes of keys
//! config, types, sys   what a store is to be; words that all have in common; clocks and raw copies
//! ```
//! Each uses those below it, and none above; `tests/layers.rs` has the table.

pub mod agent;
pub mod client;
pub mod completions;
pub mod config;
pub mod copy;
pub mod disk;
#[cfg(test)]
mod disk_tests;
mod hash;
#[cfg(test)]
mod hash_tests;
mod map;
pub mod master;
pub mod peers;
pub mod read;
mod serve;
mod stats;
#[cfg(test)]
mod stray_tests;
pub mod stream;
pub(crate) mod sys;
#[cfg(test)]
pub(crate) mod test_store;
pub mod types;
pub mod watch;
mod wire;
mod write;

pub use client::{CALL_SUSPECT, Client, Store};
pub use config::{Config, Policy};
pub use disk::PLACE_SHIFT;
pub use serve::{MasterMemory, MasterSlot, Masters};
pub use stats::{RankStats, RetryHint, Stats, percentile};
pub use write::{CALL_DONE, CALL_THROUGH};
