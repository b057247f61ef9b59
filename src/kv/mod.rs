//! The block KV cache: sequences over fixed-size blocks, with prefix reuse, forks, growth and the tables that attention
//! kernels take. The bytes of the blocks are the engine's, and `geometry` says where they are; only `pack`, when it is asked
//! to copy blocks, and `transfer` touch them.
//! `mapped` places sequences by mapping pages, in memory of the library's own.
//!
//! `cache` is the way in: sequences in lanes (`lane`, `seq`, and `hands` that work on one), `room` for when there is none, the shared `pool` below with its
//! index (`lists`, `evict` for what goes next, `window` for runs, `hash` for what is equal, `scatter` for where it is), `tables` for kernels,
//! `report` and `audit` for people and for proof, `holds` for what is neither a sequence's nor free. Layers that do not
//! keep every token have blocks of their own in a `side`, of which a sequence has `parts`; `hybrid` moves them along.

pub mod arena;
mod audit;
pub mod cache;
pub mod events;
pub mod evict;
pub mod geometry;
mod hands;
pub mod hash;
mod holds;
mod hybrid;
mod kept;
mod lane;
mod lists;
pub mod mapped;
pub mod pack;
mod parts;
mod pool;
mod report;
mod room;
mod roots;
mod scatter;
#[cfg(all(shuttle, test))]
mod schedules;
mod seq;
mod side;
mod space;
pub mod steps;
pub mod tables;
pub mod transfer;
pub mod types;
mod window;

pub use cache::Cache;
pub use lists::NONE;
