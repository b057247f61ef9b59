//! Pages that may be read before all of them are there.

use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    NoHold,
    ResetAfterOpen,
}

struct Shared {
    word: AtomicU64,
    published: AtomicU64,
    /// How many pages are there.
    progress: AtomicU64,
    pages: [UnsafeCell<u64>; 2],
    slots: [AtomicU64; 1],
    first_only: Count,
    seen: Seen,
}

fn write(s: &Shared, epoch: u64) {
    // SAFETY: what the model checks: loom reports a race with any read.
    s.pages[0].with_mut(|p| unsafe { *p = epoch });
    s.progress.store(1, Ordering::Release);
    // SAFETY: as above.
    s.pages[1].with_mut(|p| unsafe { *p = epoch });
    object::publish(&s.published, epoch);
}

fn hold(s: &Shared, wanted: u64, broken: Break) -> bool {
    if broken == Break::NoHold {
        let now = s.word.load(Ordering::Acquire);
        return object::is_live(now) && object::epoch(now) == wanted;
    }
    object::hold(&s.slots[0], object::pin_word(INDEX, wanted), &s.word, wanted)
}

fn read_what_is_there(s: &Shared, wanted: u64, broken: Break) {
    if hold(s, wanted, broken) {
        let complete = s.published.load(Ordering::Acquire) == wanted;
        let ready = if complete { 2 } else { s.progress.load(Ordering::Acquire) };
        for page in s.pages.iter().take(usize::try_from(ready).unwrap()) {
            // SAFETY: what the model checks: loom reports a race with a writer.
            page.with(|p| assert_eq!(unsafe { *p }, wanted, "page of another object"));
            s.seen.read(wanted);
        }
        if ready == 1 {
            s.first_only.up();
        }
    }
    object::unpin(&s.slots[0]);
}

fn reuse(s: &Shared, broken: Break) {
    object::kill(&s.word, 1);
    object::settle();
    if !object::finished(&s.published, 1) || is_pinned(&s.slots) {
        return;
    }
    object::reserve(&s.word, 2);
    if broken == Break::ResetAfterOpen {
        object::open(&s.word, 2);
        s.progress.store(0, Ordering::Relaxed);
    } else {
        s.progress.store(0, Ordering::Relaxed);
        object::open(&s.word, 2);
    }
    write(s, 2);
    assert!(object::promote(&s.word, &s.published, 2));
    s.seen.reused.up();
}

fn run(broken: Break) {
    let (seen, first_only) = explore(move |(seen, first_only): &(Seen, Count)| {
        let s = Arc::new(Shared {
            word: AtomicU64::new(object::control(object::WRITING, 1)),
            published: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            pages: [UnsafeCell::new(0), UnsafeCell::new(0)],
            slots: words(),
            first_only: first_only.clone(),
            seen: seen.clone(),
        });
        let writer = spawn(&s, move |s| write(s, 1));
        let reader = spawn(&s, move |s| {
            read_what_is_there(s, 1, broken);
            let hint = object::epoch(s.word.load(Ordering::Relaxed));
            read_what_is_there(s, hint, broken);
        });
        reuse(&s, broken);
        writer.join().unwrap();
        reader.join().unwrap();
    });
    first_only.assert_some("read the first page alone");
    seen.old_read.assert_some("read the first object");
    seen.new_read.assert_some("read the object that took its place");
    seen.reused.assert_some("reused the pages");
}

#[test]
fn the_pages_that_are_there_can_be_read_before_the_rest() {
    run(Break::Nothing);
}

#[test]
fn control_without_holding_the_object_its_pages_are_reused_while_read() {
    assert!(complaint(|| run(Break::NoHold)).contains(RACE));
}

#[test]
fn control_progress_reset_after_the_object_is_open_promises_pages_of_the_last() {
    let caught = complaint(|| run(Break::ResetAfterOpen));
    assert!(caught.contains(RACE) || caught.contains("page of another object"));
}
