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

use crate::base::error::Error;
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY};

/// Whether no connection was made because this process has no descriptors or no memory for it, whoever it was to lead to.
fn is_of_process(error: &Error) -> bool {
    matches!(error.status, NMC_ERR_LIMIT | NMC_ERR_NO_MEMORY)
}

/// Events after which what came of them is sent, so that others work on it meanwhile; and between two looks at the clock.
const TURN: usize = 32;
