//! Allocators on offsets only: pure, no pointers. They hand out numbers; what lies there is the caller's business.

pub mod pages;
pub mod runs;
