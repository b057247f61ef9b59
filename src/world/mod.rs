//! Ranks of one node and the heaps they share. [`World`] is one rank's view: base addresses of all heaps, control
//! words, who is alive. Ranks meet through a master (`master`), after which the master is needed only when somebody
//! joins; liveness and data never go through it.

mod barrier;
pub mod config;
pub mod dir;
mod gpu;
mod join;
pub mod liveness;
pub mod master;
mod membership;
mod presence;
mod rank_locks;
mod roster;
mod selftest;
mod service;
mod shared;
pub mod sys;
pub mod watch;
pub mod wire;
#[allow(clippy::module_inception, reason = "the facade of the noun, in a file that is named after it")]
mod world;

pub use config::{Config, Hosting};
pub use liveness::RankState;
pub use master::Master;
pub use membership::{MappedHeap, Membership};
pub use world::{PeerInfo, World};
