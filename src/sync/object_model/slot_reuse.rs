//! A slot that goes from one object to another still tells that the first is no longer read.

use super::*;

const OTHER_INDEX: u32 = 6;

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    RelaxedAnnouncement,
}

struct Shared {
    object: Object,
    other: Object,
    slots: [AtomicU64; 1],
    seen: Seen,
}

fn pin_other(s: &Shared, broken: Break) -> bool {
    let (slot, Object { word, published, .. }) = (&s.slots[0], &s.other);
    let value = object::pin_word(OTHER_INDEX, 1);
    if broken == Break::RelaxedAnnouncement {
        slot.store(value, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        return object::readable(word, published) == Some(1);
    }
    object::pin(slot, value, word, published, 1)
}

fn read_both(s: &Shared, broken: Break) {
    let slot = &s.slots[0];
    if s.object.pin(slot, 1) {
        s.object.read(1);
        s.seen.read(1);
        object::unpin(slot);
    }
    assert!(pin_other(s, broken));
    s.other.read(1);
    object::unpin(slot);
}

fn run(broken: Break) {
    let seen = explore(move |seen: &Seen| {
        let s = Arc::new(Shared {
            object: Object::new(object::READY),
            other: Object::new(object::READY),
            slots: words(),
            seen: seen.clone(),
        });
        let reader = spawn(&s, move |s| read_both(s, broken));
        s.object.evict(&s.slots, &s.seen);
        reader.join().unwrap();
    });
    seen.old_read.assert_some("read the first object");
    seen.reused.assert_some("reused the header");
}

#[test]
fn a_slot_that_moved_to_another_object_tells_that_the_first_is_free() {
    run(Break::Nothing);
}

#[test]
fn control_an_announcement_that_releases_nothing_hides_the_unpin_before_it() {
    assert!(complaint(|| run(Break::RelaxedAnnouncement)).contains(RACE));
}
