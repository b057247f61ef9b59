//! Expert-parallel transport: tokens go to the ranks that have their experts (dispatch), are grouped by expert (pack),
//! summed per token (scatter) and come back to their owners (combine). Two flags a step and rank order everything; the
//! sums have one order, so results are the same bits in every arrangement. docs/ep.md explains it.
//!
//! ```text
//! forward     a whole MoE layer
//! group       one rank's part of a group: made, called, launched, watched
//! rendezvous  how ranks come together to make one
//! gpu         launches of the kernels
//! cpu         the same steps on the CPU
//! layer       a layer's buffers, and what is done between a dispatch and its combine
//! status      the page on which the host looks
//! calls       what the program asks for, and what one rank of a launch is given
//! config      what a group is to be
//! dtype, sys  element types; memory of the group and of the program
//! ```
//! Each uses those below it, and none above; `tests/layers.rs` has the table.

pub(crate) mod calls;
pub(crate) mod config;
mod cpu;
mod dtype;
pub(crate) mod forward;
mod gpu;
mod group;
pub(crate) mod layer;
mod rendezvous;
mod status;
pub(crate) mod sys;

pub(crate) use group::{Ep, call_group};
