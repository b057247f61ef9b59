//! Whose turn it is: in each buffer set a step is a dispatch and then a combine, whole or in halves. A call out of turn would
//! sum rows of the last step, or overwrite rows that peers still read.
//!
//! The host knows the turn only as long as it makes all calls itself. A captured call runs when its graph does, and as often;
//! kernels of the engine may do a part of a step. From then on nothing is known, and nothing refused.

use super::{BOTH, RECV, SEND};
use crate::base::error::Result;
use crate::cuda::EpKernel;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// What a set is waiting for.
const NAMES: [&str; 4] = ["nmc_ep_dispatch", "nmc_ep_dispatch_recv", "nmc_ep_combine", "nmc_ep_combine_recv"];

/// The turns of all sets of a rank. Calls of a handle come from one thread at a time.
#[derive(Debug)]
pub struct Turns {
    of: Vec<AtomicU8>,
    unknown: AtomicBool,
}

/// The turn at which a call comes, and the one after it; `None` for calls that may come at any time.
fn turn(kernel: EpKernel, halves: u32) -> Option<(u8, u8)> {
    match (kernel, halves) {
        (EpKernel::Dispatch, BOTH) => Some((0, 2)),
        (EpKernel::Dispatch, SEND) => Some((0, 1)),
        (EpKernel::Dispatch, RECV) => Some((1, 2)),
        (EpKernel::Combine, BOTH) => Some((2, 0)),
        (EpKernel::Combine, SEND) => Some((2, 3)),
        (EpKernel::Combine, RECV) => Some((3, 0)),
        _ => None,
    }
}

fn name(kernel: EpKernel, halves: u32) -> &'static str {
    match (kernel, halves) {
        (EpKernel::Dispatch, SEND) => "nmc_ep_dispatch_send",
        (EpKernel::Combine, SEND) => "nmc_ep_combine_send",
        (EpKernel::Dispatch, RECV) => NAMES[1],
        (EpKernel::Combine, RECV) => NAMES[3],
        (EpKernel::Dispatch, _) => NAMES[0],
        _ => NAMES[2],
    }
}

impl Turns {
    /// Of `sets` sets, all of which begin with a dispatch.
    #[must_use]
    pub fn new(sets: u32) -> Self {
        Self { of: (0..sets.max(1)).map(|_| AtomicU8::new(0)).collect(), unknown: AtomicBool::new(false) }
    }

    /// Whether the turn is known, and so whether calls are checked.
    #[must_use]
    pub fn known(&self) -> bool {
        !self.unknown.load(Relaxed)
    }

    /// Somebody else takes steps, too, from now on.
    pub fn forget(&self) {
        self.unknown.store(true, Relaxed);
    }

    fn set(&self, layer: u32) -> usize {
        layer as usize % self.of.len()
    }

    /// Fails if it is not the turn of this call.
    pub fn check(&self, kernel: EpKernel, halves: u32, layer: u32) -> Result<()> {
        let Some((wants, _)) = turn(kernel, halves) else { return Ok(()) };
        let set = self.set(layer);
        let now = self.of[set].load(Relaxed);
        if now != wants && self.known() {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{} of layer {layer} is out of turn: the next step of buffer set {set} is {}; nothing was done",
                name(kernel, halves),
                NAMES[usize::from(now) % NAMES.len()]
            );
        }
        Ok(())
    }

    /// The call has gone out.
    pub fn done(&self, kernel: EpKernel, halves: u32, layer: u32) {
        if let Some((_, next)) = turn(kernel, halves) {
            self.of[self.set(layer)].store(next, Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use EpKernel::{Combine, Dispatch, Pack};

    fn go(turns: &Turns, kernel: EpKernel, halves: u32, layer: u32) -> Result<()> {
        turns.check(kernel, halves, layer)?;
        turns.done(kernel, halves, layer);
        Ok(())
    }

    #[test]
    fn a_step_is_a_dispatch_and_then_a_combine_in_every_set() {
        let turns = Turns::new(2);
        for layer in [0, 1, 2, 3, 65_535] {
            assert!(go(&turns, Combine, BOTH, layer).is_err() && go(&turns, Dispatch, RECV, layer).is_err());
            go(&turns, Dispatch, BOTH, layer).unwrap();
            assert!(go(&turns, Dispatch, BOTH, layer).is_err() && go(&turns, Dispatch, SEND, layer).is_err());
            go(&turns, Pack, 0, layer).unwrap();
            go(&turns, Combine, BOTH, layer).unwrap();
        }
        for (kernel, halves) in [(Dispatch, SEND), (Dispatch, RECV), (Combine, SEND), (Combine, RECV)] {
            for other in [(Dispatch, SEND), (Dispatch, RECV), (Combine, SEND), (Combine, RECV)] {
                assert_eq!(turns.check(other.0, other.1, 1).is_ok(), other == (kernel, halves));
            }
            go(&turns, kernel, halves, 1).unwrap();
        }
    }

    #[test]
    fn once_somebody_else_takes_steps_nothing_is_refused() {
        let turns = Turns::new(1);
        assert!(go(&turns, Combine, BOTH, 0).is_err());
        turns.forget();
        go(&turns, Combine, BOTH, 0).unwrap();
        go(&turns, Dispatch, BOTH, 0).unwrap();
        go(&turns, Dispatch, BOTH, 0).unwrap();
    }
}
