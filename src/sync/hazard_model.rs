//! Model of handle use against destruction, on the functions of `hazard` themselves.
//! Runs with `cargo test -p nanomc-loom`; each control is a broken variant that the model must catch.
#![allow(clippy::unwrap_used, reason = "a model reports by failing")]

use super::hazard;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

const HANDLE: u64 = 7;

struct Shared {
    word: AtomicU64,
    cells: [AtomicU64; 2],
    /// 1 while the object lives; freeing writes 0 and is a race with any use.
    object: UnsafeCell<u64>,
    freed: AtomicU64,
}

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    NoReaderFence,
    NoRetireFence,
    CheckBeforeAnnounce,
    NoScan,
}

fn enter(s: &Shared, i: usize, broken: Break) -> bool {
    let (cell, word) = (&s.cells[i], &s.word);
    match broken {
        Break::NoReaderFence => {
            cell.store(HANDLE, Ordering::Relaxed);
            word.load(Ordering::Acquire) == HANDLE
        }
        Break::CheckBeforeAnnounce => {
            let alive = word.load(Ordering::Acquire) == HANDLE;
            cell.store(HANDLE, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            alive
        }
        _ => hazard::enter(cell, word, HANDLE),
    }
}

fn use_once(s: &Shared, i: usize, broken: Break) {
    if enter(s, i, broken) {
        // SAFETY: what the model checks: loom reports a race with `destroy`'s write.
        s.object.with(|p| assert_eq!(unsafe { *p }, 1, "used after it was freed"));
    }
    hazard::leave(&s.cells[i]);
}

fn destroy(s: &Shared, broken: Break) {
    let won = if broken == Break::NoRetireFence {
        s.word.compare_exchange(HANDLE, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    } else {
        hazard::retire(&s.word, HANDLE)
    };
    if !won {
        return;
    }
    while broken != Break::NoScan && s.cells.iter().any(|cell| hazard::held(cell, HANDLE)) {
        loom::thread::yield_now();
    }
    assert_eq!(s.freed.fetch_add(1, Ordering::Relaxed), 0, "freed twice");
    // SAFETY: what the model checks.
    s.object.with_mut(|p| unsafe { *p = 0 });
}

fn run(broken: Break) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let s = Arc::new(Shared {
            word: AtomicU64::new(HANDLE),
            cells: [AtomicU64::new(0), AtomicU64::new(0)],
            object: UnsafeCell::new(1),
            freed: AtomicU64::new(0),
        });
        let reader = {
            let s = Arc::clone(&s);
            loom::thread::spawn(move || use_once(&s, 0, broken))
        };
        let rival = {
            let s = Arc::clone(&s);
            loom::thread::spawn(move || destroy(&s, broken))
        };
        destroy(&s, broken);
        reader.join().unwrap();
        rival.join().unwrap();
    });
}

fn fails(broken: Break) -> bool {
    std::panic::catch_unwind(|| run(broken)).is_err()
}

#[test]
fn an_object_is_never_freed_while_used_and_only_once() {
    run(Break::Nothing);
}

/// A thread uses one object, then another with the same cell; the first is freed as soon as the cell holds the second.
fn run_moved_on(relaxed: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let s =
            Arc::new((AtomicU64::new(HANDLE), AtomicU64::new(HANDLE + 1), AtomicU64::new(0), UnsafeCell::new(1u64)));
        let reader = {
            let s = Arc::clone(&s);
            loom::thread::spawn(move || {
                let (first, second, cell, object) = &*s;
                if hazard::enter(cell, first, HANDLE) {
                    // SAFETY: what the model checks.
                    object.with(|p| assert_eq!(unsafe { *p }, 1, "used after it was freed"));
                }
                hazard::leave(cell);
                if relaxed {
                    cell.store(HANDLE + 1, Ordering::Relaxed);
                } else {
                    hazard::enter(cell, second, HANDLE + 1);
                }
            })
        };
        let (first, _, cell, object) = &*s;
        if hazard::retire(first, HANDLE) && !hazard::held(cell, HANDLE) {
            // SAFETY: what the model checks.
            object.with_mut(|p| unsafe { *p = 0 });
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_cell_that_moved_on_tells_that_the_first_use_is_over() {
    run_moved_on(false);
}

#[test]
fn control_a_relaxed_announcement_hides_that_the_first_use_was_before() {
    assert!(std::panic::catch_unwind(|| run_moved_on(true)).is_err());
}

#[test]
fn control_without_the_readers_fence_it_is_used_after_free() {
    assert!(fails(Break::NoReaderFence));
}

#[test]
fn control_without_the_destroyers_fence_it_is_used_after_free() {
    assert!(fails(Break::NoRetireFence));
}

#[test]
fn control_checking_before_announcing_is_used_after_free() {
    assert!(fails(Break::CheckBeforeAnnounce));
}

#[test]
fn control_freeing_without_looking_is_used_after_free() {
    assert!(fails(Break::NoScan));
}
