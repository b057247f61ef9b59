//! The core of safe handle use: a reader announces the value it is about to use in a cell that only it writes;
//! whoever retires the value waits until no cell holds it. Model-checked in `hazard_model.rs` on these very functions.

use super::atomic::{AtomicU64, Ordering};
use super::membarrier;

/// Announces `value` in `cell` and checks that `word` still holds it. On success the object behind it stays
/// alive until [`leave`]; on failure the cell is empty again.
#[inline(always)]
pub fn enter(cell: &AtomicU64, word: &AtomicU64, value: u64) -> bool {
    // Release: who finds another value here knows that the use of the one before is over.
    cell.store(value, Ordering::Release);
    membarrier::light();
    if word.load(Ordering::Acquire) == value {
        true
    } else {
        cell.store(0, Ordering::Release);
        false
    }
}

/// Ends the use announced by [`enter`].
#[inline(always)]
pub fn leave(cell: &AtomicU64) {
    cell.store(0, Ordering::Release);
}

/// Takes `value` out of `word`; true for exactly one caller. After it, and a [`held`] that says no for every
/// cell, nobody uses the object and nobody can begin to.
pub fn retire(word: &AtomicU64, value: u64) -> bool {
    let won = word.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    membarrier::heavy();
    won
}

/// Whether `cell` announces `value`.
pub fn held(cell: &AtomicU64, value: u64) -> bool {
    cell.load(Ordering::Acquire) == value
}
