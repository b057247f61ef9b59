//! src/kv without what copies bytes, and threads that use it.

#[path = "../../src/kv/block.rs"]
mod block;
#[path = "../../src/kv/cache/mod.rs"]
mod cache;
#[path = "../../src/kv/config.rs"]
mod config;
#[path = "../../src/kv/error.rs"]
mod error;
#[path = "../../src/kv/groups/mod.rs"]
mod groups;
#[path = "../../src/kv/hash.rs"]
pub mod hash;
#[path = "../../src/kv/pool/mod.rs"]
mod pool;
#[path = "schedules.rs"]
pub mod schedules;
#[path = "../../src/kv/seq/mod.rs"]
mod seq;

pub use block::NONE;
pub use cache::{Cache, Stats};
pub use config::{Config, WhenFull};
pub use error::{Attempt, Room};
pub use groups::{GroupStats, OwnGroup, OwnKind};
pub use pool::{events, evict};
pub use seq::{BlockCopy, MAX_TOKENS, Open, Opened, Placement, SeqInfo, State};
