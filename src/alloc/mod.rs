//! Allocators on offsets only: pure, no pointers. They hand out numbers; what lies there is the caller's business.

mod bits;
pub(crate) mod blocks;
#[cfg(test)]
pub(crate) mod model;
pub mod pages;
pub(crate) mod policy;
pub(crate) mod runs;
pub(crate) mod tickets;
