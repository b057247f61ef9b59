//! The slots of an owner that leaves: what it may still store or read decides when they are free.

use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Clear {
    WhenGone,
    AtOnce,
}

struct Shared {
    object: Object,
    slots: [AtomicU64; 1],
    gone: AtomicU64,
    given_away: AtomicU64,
    seen: Seen,
}

impl Shared {
    fn new(slot: u64, seen: &Seen) -> Arc<Self> {
        Arc::new(Self {
            object: Object::new(object::READY),
            slots: [AtomicU64::new(slot)],
            gone: AtomicU64::new(0),
            given_away: AtomicU64::new(0),
            seen: seen.clone(),
        })
    }

    fn read_once(&self) {
        if self.object.pin(&self.slots[0], 1) {
            self.object.read(1);
            self.seen.read(1);
        }
    }

    /// Master: empties the slot of the owner that left; whether it could.
    fn clear(&self, clear: Clear) -> bool {
        let free = clear == Clear::AtOnce || self.gone.load(Ordering::Acquire) == 1;
        if free {
            object::unpin(&self.slots[0]);
        }
        free
    }
}

/// An unpin of the old owner, queued in a stream for example, arrives when the slot may belong to a new one.
fn late_unpin(clear: Clear) {
    let seen = explore(move |seen: &Seen| {
        let s = Shared::new(object::pin_word(INDEX, 1), seen);
        let old = spawn(&s, move |s| {
            object::unpin(&s.slots[0]);
            s.gone.store(1, Ordering::Release);
        });
        let new = spawn(&s, move |s| {
            if s.given_away.load(Ordering::Acquire) == 1 {
                s.read_once();
                object::unpin(&s.slots[0]);
            }
        });
        if s.clear(clear) {
            s.given_away.store(1, Ordering::Release);
        }
        s.object.evict(&s.slots, &s.seen);
        old.join().unwrap();
        new.join().unwrap();
    });
    seen.old_read.assert_some("read in a slot that was given away");
    seen.reused.assert_some("reused the header");
}

/// A reader that dies with its pin set. An early sign of that comes while it, or what it started, still reads.
fn death(clear: Clear) {
    let (seen, cleared) = explore(move |(seen, cleared): &(Seen, Count)| {
        let s = Shared::new(0, seen);
        let reader = spawn(&s, move |s| {
            s.read_once();
            s.gone.store(1, Ordering::Release);
        });
        if s.clear(clear) {
            cleared.up();
        }
        s.object.evict(&s.slots, &s.seen);
        reader.join().unwrap();
    });
    cleared.assert_some("cleared the slot");
    seen.old_read.assert_some("read the object");
    seen.reused.assert_some("reused the header");
}

#[test]
fn a_slot_is_given_away_when_its_owner_is_gone() {
    late_unpin(Clear::WhenGone);
}

#[test]
fn a_dead_readers_pins_are_cleared_when_it_is_gone() {
    death(Clear::WhenGone);
}

#[test]
fn control_a_late_unpin_frees_what_the_next_owner_reads() {
    assert!(complaint(|| late_unpin(Clear::AtOnce)).contains(RACE));
}

#[test]
fn control_pins_cleared_on_an_early_sign_free_what_is_still_read() {
    assert!(complaint(|| death(Clear::AtOnce)).contains(RACE));
}
