//! The block KV cache: sequences over fixed-size blocks, with prefix reuse, forks, growth and the tables that attention
//! kernels take. [`Kv`] is the way in. The bytes of the blocks are the engine's; only `transfer` touches them, when it is asked
//! to copy blocks or to exchange them with a store.
//!
//! ```text
//! facade     Kv: owns all of it, paged or virtual; made from a Spec
//! transfer   blocks go to a store and back (jobs), or are copied where they lie
//! place      where blocks lie: layouts, the program's memory, mapped addresses, tables for kernels
//! cache      sequences in lanes, with their ids, names and pins; what happens when there is no room
//! seq        one sequence, and the editor that changes it
//! config     how a cache is made
//! pool       the blocks that sequences share: prefix index, eviction, runs
//! groups     groups of layers with blocks of their own: windows and recurrent states
//! block, hash, error   what is known of a block, what it is called, why a call fails
//! ```
//! Each uses those below it, and none above; `tests/layers.rs` has the table.

mod block;
mod cache;
mod config;
mod error;
mod facade;
mod groups;
pub mod hash;
pub mod place;
mod pool;
mod seq;
pub mod transfer;

pub use block::NONE;
pub use cache::{Cache, Stats};
pub use config::{Config, WhenFull};
pub use error::{Attempt, Room};
pub use facade::{Copies, GROUPS_ALL, GroupCopy, GroupReport, GroupSpec, Kv, KvStats, MappedSpec, SeqCopy, Spec};
pub use groups::{GroupStats, OwnGroup, OwnKind};
pub use pool::{events, evict};
pub use seq::{BlockCopy, MAX_TOKENS, Open, Opened, Placement, SeqInfo, State};
