//! What changes a store through the master: puts and plans, removals, values that come back from the disk, and waiting until one is
//! there.

mod held;
mod plan;
mod promote;
mod publish;
mod put;
mod remove;
#[cfg(test)]
mod tests;
mod through;

pub(super) use promote::keep_of;
pub use through::{CALL_DONE, CALL_THROUGH};
