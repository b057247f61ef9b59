//! What every layer may use: errors and status codes, logging, deadlines, random ids, memory that may be refused.

pub mod crc;
pub mod deadline;
pub mod error;
pub mod id;
#[cfg(test)]
pub mod largest;
pub mod log;
pub mod memory;
#[cfg(test)]
pub mod over;
pub mod point;
pub mod queue;
#[cfg(test)]
pub mod random;
pub mod status;
mod sys;

pub use deadline::Deadline;
pub use error::{Error, Result};
