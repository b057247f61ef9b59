//! What is pinned stays as it is; what is not pinned is reused under the readers' eyes.

use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    NoReaderFence,
    NoEvictorFence,
    RelaxedChecks,
    RelaxedScan,
    RelaxedUnpin,
    FieldsFirst,
    CheckThenCount,
}

struct Shared {
    object: Object,
    slots: [AtomicU64; 2],
    /// Only for `CheckThenCount`.
    readers: AtomicU64,
    seen: Seen,
}

fn pin(s: &Shared, slot: &AtomicU64, wanted: u64, broken: Break) -> bool {
    let Object { word, published, .. } = &s.object;
    let value = object::pin_word(INDEX, wanted);
    match broken {
        Break::NoReaderFence => {
            slot.store(value, Ordering::Relaxed);
            object::readable(word, published) == Some(wanted)
        }
        Break::RelaxedChecks => {
            slot.store(value, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let now = word.load(Ordering::Relaxed);
            object::is_live(now) && object::epoch(now) == wanted && published.load(Ordering::Relaxed) == wanted
        }
        Break::CheckThenCount => {
            let ready = object::readable(word, published) == Some(wanted);
            s.readers.fetch_add(1, Ordering::AcqRel);
            ready
        }
        _ => s.object.pin(slot, wanted),
    }
}

fn unpin(s: &Shared, slot: &AtomicU64, broken: Break) {
    match broken {
        Break::RelaxedUnpin => slot.store(0, Ordering::Relaxed),
        Break::CheckThenCount => drop(s.readers.fetch_sub(1, Ordering::AcqRel)),
        _ => object::unpin(slot),
    }
}

fn read_once(s: &Shared, slot: &AtomicU64, wanted: u64, broken: Break) {
    if broken == Break::FieldsFirst {
        // SAFETY: not safe, which the model must notice.
        s.object.fields.with(|p| unsafe { *p });
    }
    if pin(s, slot, wanted, broken) {
        s.object.read(wanted);
        s.seen.read(wanted);
    }
    unpin(s, slot, broken);
}

fn evict(s: &Shared, broken: Break) {
    if object::state(s.object.word.load(Ordering::Relaxed)) == object::WRITING {
        assert!(object::promote(&s.object.word, &s.object.published, 1));
    }
    let pinned = || match broken {
        Break::RelaxedScan => {
            s.slots.iter().any(|slot| object::pinned_index(slot.load(Ordering::Relaxed)) == Some(INDEX))
        }
        Break::CheckThenCount => s.readers.load(Ordering::Acquire) != 0,
        _ => is_pinned(&s.slots),
    };
    object::kill(&s.object.word, 1);
    if broken != Break::NoEvictorFence {
        object::settle();
    }
    assert!(object::finished(&s.object.published, 1));
    if is_free_in_two_looks(pinned, &s.seen) {
        s.object.reuse();
        s.seen.reused.up();
    }
}

/// The first reader tries twice: for the epoch that it was told, then for the one that it sees. A second tries once.
fn run(readers: usize, state: u64, broken: Break) -> Seen {
    explore(move |seen: &Seen| {
        let s = Arc::new(Shared {
            object: Object::new(state),
            slots: words(),
            readers: AtomicU64::new(0),
            seen: seen.clone(),
        });
        let first = spawn(&s, move |s| {
            read_once(s, &s.slots[0], 1, broken);
            read_once(s, &s.slots[0], s.object.hint(), broken);
        });
        let second = (readers == 2).then(|| spawn(&s, move |s| read_once(s, &s.slots[1], 1, broken)));
        evict(&s, broken);
        first.join().unwrap();
        if let Some(second) = second {
            second.join().unwrap();
        }
    })
}

fn caught(broken: Break) -> String {
    complaint(move || drop(run(1, object::READY, broken)))
}

#[test]
fn a_pinned_object_stays_as_it_is() {
    run(1, object::READY, Break::Nothing).assert_all();
}

#[test]
fn an_object_is_readable_from_its_publication_on() {
    run(1, object::WRITING, Break::Nothing).assert_all();
}

#[test]
fn two_readers_are_both_seen() {
    run(2, object::READY, Break::Nothing).assert_all();
}

#[test]
fn two_readers_are_both_seen_while_the_master_notices_the_publication() {
    run(2, object::WRITING, Break::Nothing).assert_all();
}

#[test]
fn control_without_the_readers_fence_it_is_reused_while_read() {
    assert!(caught(Break::NoReaderFence).contains(RACE));
}

#[test]
fn control_without_the_evictors_fence_it_is_reused_while_read() {
    assert!(caught(Break::NoEvictorFence).contains(RACE));
}

#[test]
fn control_checks_that_acquire_nothing_let_it_be_read_too_early() {
    assert!(caught(Break::RelaxedChecks).contains(RACE));
}

#[test]
fn control_a_scan_that_acquires_nothing_lets_it_be_reused_too_early() {
    assert!(caught(Break::RelaxedScan).contains(RACE));
}

#[test]
fn control_an_unpin_that_releases_nothing_lets_it_be_reused_too_early() {
    assert!(caught(Break::RelaxedUnpin).contains(RACE));
}

#[test]
fn control_fields_read_before_the_pin_is_valid_are_not_protected() {
    assert!(caught(Break::FieldsFirst).contains(RACE));
}

#[test]
fn control_checking_before_counting_oneself_in_is_reused_while_read() {
    assert!(caught(Break::CheckThenCount).contains(RACE));
}
