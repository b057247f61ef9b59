//! The evictor scans only the slots that a client ever used.

use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    RaisedAfterFence,
    MarkReadBeforeSettling,
}

struct Shared {
    object: Object,
    slots: [AtomicU64; 2],
    high_water: AtomicU64,
    seen: Seen,
}

impl Shared {
    fn new(seen: &Seen) -> Arc<Self> {
        Arc::new(Self {
            object: Object::new(object::READY),
            slots: words(),
            high_water: AtomicU64::new(0),
            seen: seen.clone(),
        })
    }

    fn raise(&self, used: u64) {
        if self.high_water.load(Ordering::Relaxed) < used {
            self.high_water.store(used, Ordering::Relaxed);
        }
    }

    fn pin(&self, slot: usize, broken: Break) -> bool {
        let used = slot as u64 + 1;
        let slot = &self.slots[slot];
        if broken == Break::RaisedAfterFence {
            slot.store(object::pin_word(INDEX, 1), Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.raise(used);
            return object::readable(&self.object.word, &self.object.published) == Some(1);
        }
        self.raise(used);
        self.object.pin(slot, 1)
    }

    fn used(&self) -> usize {
        usize::try_from(self.high_water.load(Ordering::Acquire)).unwrap()
    }

    fn evict(&self, broken: Break) {
        let used_before = if broken == Break::MarkReadBeforeSettling { Some(self.used()) } else { None };
        object::kill(&self.object.word, 1);
        object::settle();
        let pinned = || is_pinned(&self.slots[..used_before.unwrap_or_else(|| self.used())]);
        if is_free_in_two_looks(pinned, &self.seen) {
            self.object.reuse();
            self.seen.reused.up();
        }
    }
}

fn assert_all(seen: &Seen) {
    seen.old_read.assert_some("read the object");
    seen.pinned.assert_some("found the object pinned");
    seen.reused.assert_some("reused the header");
}

/// The client takes its second slot while it uses the first, and goes on with the second alone.
fn run(broken: Break) {
    assert_all(&explore(move |seen: &Seen| {
        let s = Shared::new(seen);
        let client = spawn(&s, move |s| {
            let first = s.pin(0, broken);
            let second = s.pin(1, broken);
            if first {
                s.object.read(1);
            }
            object::unpin(&s.slots[0]);
            if second {
                s.object.read(1);
                s.seen.read(1);
            }
            object::unpin(&s.slots[1]);
        });
        s.evict(broken);
        client.join().unwrap();
    }));
}

/// The first thread of a client raised the mark; the second sees that and does not store it again.
fn run_two_threads() {
    assert_all(&explore(move |seen: &Seen| {
        let s = Shared::new(seen);
        let first = spawn(&s, |s| s.raise(2));
        let second = spawn(&s, |s| {
            if s.high_water.load(Ordering::Relaxed) == 2 && s.pin(1, Break::Nothing) {
                s.object.read(1);
                s.seen.read(1);
                object::unpin(&s.slots[1]);
            }
        });
        s.evict(Break::Nothing);
        first.join().unwrap();
        second.join().unwrap();
    }));
}

#[test]
fn slots_above_the_mark_need_no_look() {
    run(Break::Nothing);
}

#[test]
fn a_mark_that_another_thread_raised_is_as_good() {
    run_two_threads();
}

#[test]
fn control_a_mark_raised_after_the_fence_hides_a_pin() {
    assert!(complaint(|| run(Break::RaisedAfterFence)).contains(RACE));
}

#[test]
fn control_a_mark_read_before_settling_hides_a_pin() {
    assert!(complaint(|| run(Break::MarkReadBeforeSettling)).contains(RACE));
}
