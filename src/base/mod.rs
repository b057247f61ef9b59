//! What every layer may use: errors and status codes, logging, deadlines, random ids.

pub mod deadline;
pub mod error;
pub mod id;
pub mod log;
pub mod packet;
pub mod point;
pub mod status;
#[cfg(feature = "crash-points")]
mod sys;

pub use deadline::Deadline;
pub use error::{Error, Result};
