//! Models of how an object is published, pinned, killed and reused, on the functions of `object` themselves.
//! Runs with `cargo test -p nanomc-loom`. Each part checks one promise; each control replaces one step by a broken form, and the model
//! must complain about that.
//!
//! An object here holds its epoch in every field and page, so that a read tells whose bytes it saw; where nobody may
//! store during a read they are loom cells, and a read that races with a store is a complaint too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model reports by failing")]

mod commit;
mod eviction;
mod high_water;
mod look;
mod partial;
mod quarantine;
mod slot_owner;
mod slot_reuse;

use super::object;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// The header that the readers of a model pin.
const INDEX: u32 = 5;
/// What loom says of two accesses of which nothing orders one before the other.
pub(super) const RACE: &str = "Causality violation";

/// Runs `model` in every order of its threads with at most three switches away from one that could go on. Gives what it
/// counted over all of them.
pub(super) fn explore<C>(model: impl Fn(&C) + Send + Sync + 'static) -> C
where
    C: Default + Clone + Send + Sync + 'static,
{
    let counts = C::default();
    let counts_of_model = counts.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(&counts_of_model));
    counts
}

pub(super) fn spawn<S: 'static, T: 'static>(
    shared: &Arc<S>,
    body: impl FnOnce(&S) -> T + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || body(&shared))
}

/// What a broken variant is caught with; empty if it is not caught.
pub(super) fn complaint(run: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let Err(reason) = std::panic::catch_unwind(run) else { return String::new() };
    match (reason.downcast_ref::<String>(), reason.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "unknown".to_owned(),
    }
}

/// A count over all orders of a model, to show that it got to what it is about.
#[derive(Default, Clone)]
pub(super) struct Count(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Count {
    pub(super) fn up(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    pub(super) fn assert_some(&self, what: &str) {
        assert_ne!(self.0.load(std::sync::atomic::Ordering::Relaxed), 0, "the model never {what}");
    }
}

/// What happened in a model of readers and an evictor.
#[derive(Default, Clone)]
struct Seen {
    old_read: Count,
    new_read: Count,
    reused: Count,
    pinned: Count,
}

impl Seen {
    fn read(&self, epoch: u64) {
        if epoch == 1 { self.old_read.up() } else { self.new_read.up() }
    }

    fn assert_all(&self) {
        self.old_read.assert_some("read the first object");
        self.new_read.assert_some("read the object that took its place");
        self.reused.assert_some("reused the header");
        self.pinned.assert_some("found the object pinned");
    }
}

/// A header with its words and pages.
struct Object {
    word: AtomicU64,
    published: AtomicU64,
    fields: UnsafeCell<u64>,
    pages: UnsafeCell<u64>,
}

impl Object {
    /// In epoch 1 and published.
    fn new(state: u64) -> Self {
        Self {
            word: AtomicU64::new(object::control(state, 1)),
            published: AtomicU64::new(1),
            fields: UnsafeCell::new(1),
            pages: UnsafeCell::new(1),
        }
    }

    /// A guess at the epoch, from a load that orders nothing.
    fn hint(&self) -> u64 {
        object::epoch(self.word.load(Ordering::Relaxed))
    }

    fn pin(&self, slot: &AtomicU64, wanted: u64) -> bool {
        object::pin(slot, object::pin_word(INDEX, wanted), &self.word, &self.published, wanted)
    }

    /// What a reader does with a pinned object.
    fn read(&self, epoch: u64) {
        // SAFETY: what the model checks: loom reports a race with a store of `reuse`.
        self.fields.with(|p| assert_eq!(unsafe { *p }, epoch, "fields of another object"));
        // SAFETY: as above.
        self.pages.with(|p| assert_eq!(unsafe { *p }, epoch, "pages of another object"));
    }

    /// Master, then writer: another object in the same header and pages.
    fn reuse(&self) {
        object::reserve(&self.word, 2);
        // SAFETY: what the model checks: loom reports a race with any read.
        self.fields.with_mut(|p| unsafe { *p = 2 });
        object::open(&self.word, 2);
        // SAFETY: as above.
        self.pages.with_mut(|p| unsafe { *p = 2 });
        object::publish(&self.published, 2);
        assert!(object::promote(&self.word, &self.published, 2));
    }

    /// Master: kills, and reuses what nobody has pinned; it looks twice.
    fn evict(&self, slots: &[AtomicU64], seen: &Seen) {
        object::kill(&self.word, 1);
        object::settle();
        if is_free_in_two_looks(|| is_pinned(slots), seen) {
            self.reuse();
            seen.reused.up();
        }
    }
}

/// Master: rescans once, as it would later for what was pinned.
fn is_free_in_two_looks(pinned: impl Fn() -> bool, seen: &Seen) -> bool {
    if !pinned() {
        return true;
    }
    seen.pinned.up();
    thread::yield_now();
    !pinned()
}

fn is_pinned(slots: &[AtomicU64]) -> bool {
    slots.iter().any(|slot| object::pinned_index(object::scan(slot)) == Some(INDEX))
}

fn words<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}
