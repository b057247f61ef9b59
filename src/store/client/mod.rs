//! A rank's client of a store, and the handles that a program has of it: pin slots, open plans, counters, the way to the master and to
//! the disk, copies to and from values. What programs do with them is in `read`, `write`, `watch` and `stream`.

mod calls;
#[allow(clippy::module_inception, reason = "the noun, in a file that is named after it")]
mod client;
mod copy;
mod counters;
mod disk;
mod handle;
mod plans;
mod remote;
mod seat;
mod slots;
mod wait;

pub use client::Client;
pub(super) use client::Way;
pub(super) use counters::{BUCKETS, Op, Totals};
pub use disk::CALL_SUSPECT;
pub(super) use disk::GRANT;
pub use handle::Store;
pub(super) use plans::Terms;
pub(super) use wait::Interrupt;
