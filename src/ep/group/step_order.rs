//! The order of calls: in each buffer set a dispatch and then a combine, whole or in halves. A call out of turn would sum rows of
//! the last step, or overwrite rows that peers still read.
//!
//! The host knows what is next only as long as it makes all calls itself. A captured call runs when its graph does, and as often;
//! kernels of the engine may do a part of a step. From then on nothing is known, and nothing refused.

use crate::base::error::Result;
use crate::ep::calls::{BOTH, Call, CallKind, RECV, SEND};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// What can be next in a set.
const NAMES: [&str; 4] = ["nmc_ep_dispatch", "nmc_ep_dispatch_recv", "nmc_ep_combine", "nmc_ep_combine_recv"];

/// What is next in each set of a rank. Calls of a handle come from one thread at a time.
#[derive(Debug)]
pub(super) struct StepOrder {
    next: Vec<AtomicU8>,
    unknown: AtomicBool,
}

/// What must be next for a call, and what is next after it, as indices of [`NAMES`]; `None` for calls that may come at any time.
fn place(kind: CallKind, halves: u32) -> Option<(u8, u8)> {
    match (kind, halves) {
        (CallKind::Dispatch, BOTH) => Some((0, 2)),
        (CallKind::Dispatch, SEND) => Some((0, 1)),
        (CallKind::Dispatch, RECV) => Some((1, 2)),
        (CallKind::Combine, BOTH) => Some((2, 0)),
        (CallKind::Combine, SEND) => Some((2, 3)),
        (CallKind::Combine, RECV) => Some((3, 0)),
        _ => None,
    }
}

fn name(kind: CallKind, halves: u32) -> &'static str {
    match (kind, halves) {
        (CallKind::Dispatch, SEND) => "nmc_ep_dispatch_send",
        (CallKind::Combine, SEND) => "nmc_ep_combine_send",
        (CallKind::Dispatch, RECV) => NAMES[1],
        (CallKind::Combine, RECV) => NAMES[3],
        (CallKind::Dispatch, _) => NAMES[0],
        _ => NAMES[2],
    }
}

impl StepOrder {
    /// Of `sets` sets, all of which begin with a dispatch.
    pub(super) fn new(sets: u32) -> Self {
        Self { next: (0..sets.max(1)).map(|_| AtomicU8::new(0)).collect(), unknown: AtomicBool::new(false) }
    }

    /// Whether it is known what is next, and so whether calls are checked.
    pub(super) fn known(&self) -> bool {
        !self.unknown.load(Relaxed)
    }

    /// Somebody else takes steps, too, from now on.
    pub(super) fn forget(&self) {
        self.unknown.store(true, Relaxed);
    }

    fn set(&self, layer: u32) -> usize {
        layer as usize % self.next.len()
    }

    /// Fails if the call is not what is next.
    pub(super) fn check(&self, call: &Call) -> Result<()> {
        let (kind, halves, layer) = (call.kind, call.args.halves, call.layer);
        let Some((wants, _)) = place(kind, halves) else { return Ok(()) };
        let set = self.set(layer);
        let next = self.next[set].load(Relaxed);
        if next != wants && self.known() {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{} of layer {layer} is out of turn: the next step of buffer set {set} is {}; nothing was done",
                name(kind, halves),
                NAMES[usize::from(next) % NAMES.len()]
            );
        }
        Ok(())
    }

    /// The call has gone out.
    pub(super) fn done(&self, call: &Call) {
        if let Some((_, next)) = place(call.kind, call.args.halves) {
            self.next[self.set(call.layer)].store(next, Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::ep::calls::CallArgs;
    use CallKind::{Combine, Dispatch, Pack};

    fn call(kind: CallKind, halves: u32, layer: u32) -> Call {
        Call { kind, layer, args: CallArgs { halves, ..CallArgs::default() } }
    }

    fn go(order: &StepOrder, kind: CallKind, halves: u32, layer: u32) -> Result<()> {
        order.check(&call(kind, halves, layer))?;
        order.done(&call(kind, halves, layer));
        Ok(())
    }

    #[test]
    fn a_step_is_a_dispatch_and_then_a_combine_in_every_set() {
        let order = StepOrder::new(2);
        for layer in [0, 1, 2, 3, 65_535] {
            assert!(go(&order, Combine, BOTH, layer).is_err() && go(&order, Dispatch, RECV, layer).is_err());
            go(&order, Dispatch, BOTH, layer).unwrap();
            assert!(go(&order, Dispatch, BOTH, layer).is_err() && go(&order, Dispatch, SEND, layer).is_err());
            go(&order, Pack, 0, layer).unwrap();
            go(&order, Combine, BOTH, layer).unwrap();
        }
        for (kind, halves) in [(Dispatch, SEND), (Dispatch, RECV), (Combine, SEND), (Combine, RECV)] {
            for other in [(Dispatch, SEND), (Dispatch, RECV), (Combine, SEND), (Combine, RECV)] {
                assert_eq!(order.check(&call(other.0, other.1, 1)).is_ok(), other == (kind, halves));
            }
            go(&order, kind, halves, 1).unwrap();
        }
    }

    #[test]
    fn once_somebody_else_takes_steps_nothing_is_refused() {
        let order = StepOrder::new(1);
        assert!(go(&order, Combine, BOTH, 0).is_err());
        order.forget();
        go(&order, Combine, BOTH, 0).unwrap();
        go(&order, Dispatch, BOTH, 0).unwrap();
        go(&order, Dispatch, BOTH, 0).unwrap();
    }
}
