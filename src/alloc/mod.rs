//! Allocators on offsets only: pure, no pointers. They hand out numbers; what lies there is the caller's business.

mod bits;
pub mod blocks;
pub mod buddy;
#[cfg(test)]
mod model;
pub mod pages;
mod places;
pub mod runs;
pub mod tickets;
