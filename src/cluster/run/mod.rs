//! The loops around the state machines: each has a thread, connections and a clock, tells its machine what happened, and does what that
//! wants done.

mod acks;
mod carrier;
pub mod client;
mod mailbox;
pub mod master;
mod masters;
mod meetings;
pub mod node;
pub mod times;

pub use crate::cluster::net::{Address, Limits, Listener};

/// Events after which what came of them is sent, so that others work on it meanwhile; and between two looks at the clock.
const TURN: usize = 32;
