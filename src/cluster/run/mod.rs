//! The loops around the state machines: each has a thread, connections and a clock, tells its machine what happened, and does what that
//! wants done.

pub mod master;

pub use crate::cluster::net::{Address, Listener};
