//! What a program hears of without doing anything: that a key is readable, at once or as an event; what happened to objects, and to
//! values on disk.

mod facts;
mod keys;
mod ready;
mod told;

pub use facts::{Described, Tail};
