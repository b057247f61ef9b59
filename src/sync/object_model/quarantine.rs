//! A writer that was given up on, but may still store: its pages and its header wait for it.

use super::*;

const FOREIGN: &str = "bytes of another object";
const LOST: &str = "a published object is lost";

/// When the master gives away the header and the pages of an object that was killed.
#[derive(Clone, Copy, PartialEq)]
enum Quarantine {
    UntilAcknowledged,
    UntilFinished,
    Nothing,
    HeaderOnly,
    PagesOnly,
}

impl Quarantine {
    fn is_broken(self) -> bool {
        matches!(self, Self::Nothing | Self::HeaderOnly | Self::PagesOnly)
    }
}

/// Pages that a zombie may store into at any time, so that the controls show what a reader would get.
struct Pages {
    bytes: AtomicU64,
    race: UnsafeCell<()>,
}

impl Pages {
    fn new() -> Self {
        Self { bytes: AtomicU64::new(0), race: UnsafeCell::new(()) }
    }

    fn store(&self, epoch: u64, how: Quarantine) {
        if !how.is_broken() {
            self.race.with_mut(|_| ());
        }
        self.bytes.store(epoch, Ordering::Relaxed);
    }

    fn check(&self, epoch: u64, how: Quarantine) {
        if !how.is_broken() {
            self.race.with(|_| ());
        }
        assert_eq!(self.bytes.load(Ordering::Relaxed), epoch, "{FOREIGN}");
    }
}

struct Header {
    word: AtomicU64,
    published: AtomicU64,
    /// Which pages the object has: a field like any other.
    pages: UnsafeCell<usize>,
}

impl Header {
    fn new(word: u64) -> Self {
        Self { word: AtomicU64::new(word), published: AtomicU64::new(0), pages: UnsafeCell::new(0) }
    }
}

struct Shared {
    /// The object of the zombie, and a spare header.
    headers: [Header; 2],
    /// Its pages, and spare ones.
    pages: [Pages; 2],
    slot: AtomicU64,
    stopped: AtomicU64,
    seen: Seen,
}

fn write_late(s: &Shared, how: Quarantine) {
    s.pages[0].store(1, how);
    object::commit(&s.headers[0].word, &s.headers[0].published, 1);
    s.stopped.store(1, Ordering::Release);
}

fn read_once(s: &Shared, header: &Header, how: Quarantine) {
    let wanted = object::epoch(header.word.load(Ordering::Relaxed));
    let value = object::pin_word(INDEX, wanted);
    if object::pin(&s.slot, value, &header.word, &header.published, wanted) {
        // SAFETY: what the model checks: loom reports a race with the master's store.
        let pages = header.pages.with(|p| unsafe { *p });
        s.pages[pages].check(wanted, how);
        s.seen.read(wanted);
        object::unpin(&s.slot);
    }
}

/// Which header and which pages the next object gets; `None` if it has to wait.
fn give_away(s: &Shared, how: Quarantine) -> Option<(usize, usize)> {
    let first_of_both = |free: bool| free.then_some((0, 0));
    match how {
        Quarantine::UntilAcknowledged => first_of_both(s.stopped.load(Ordering::Acquire) == 1),
        Quarantine::UntilFinished => first_of_both(object::finished(&s.headers[0].published, 1)),
        Quarantine::Nothing => Some((0, 0)),
        Quarantine::HeaderOnly => Some((1, 0)),
        Quarantine::PagesOnly => Some((0, 1)),
    }
}

/// The watchdog; gives the header of the next object.
fn time_out(s: &Shared, how: Quarantine) -> Option<usize> {
    let old = &s.headers[0];
    if object::promote(&old.word, &old.published, 1) {
        return None;
    }
    object::kill(&old.word, 1);
    object::settle();
    if is_pinned(std::slice::from_ref(&s.slot)) {
        s.seen.pinned.up();
        return None;
    }
    let (header, pages) = give_away(s, how)?;
    let new = &s.headers[header];
    object::reserve(&new.word, 2);
    // SAFETY: what the model checks: loom reports a race with any read.
    new.pages.with_mut(|p| unsafe { *p = pages });
    object::open(&new.word, 2);
    s.pages[pages].store(2, how);
    object::publish(&new.published, 2);
    s.seen.reused.up();
    Some(header)
}

fn run(how: Quarantine) -> Seen {
    explore(move |seen: &Seen| {
        let s = Arc::new(Shared {
            headers: [Header::new(object::control(object::WRITING, 1)), Header::new(object::RESERVED)],
            pages: [Pages::new(), Pages::new()],
            slot: AtomicU64::new(0),
            stopped: AtomicU64::new(0),
            seen: seen.clone(),
        });
        let writer = spawn(&s, move |s| write_late(s, how));
        let reader = spawn(&s, move |s| {
            read_once(s, &s.headers[0], how);
            read_once(s, &s.headers[usize::from(how == Quarantine::HeaderOnly)], how);
        });
        let new = time_out(&s, how);
        writer.join().unwrap();
        reader.join().unwrap();
        if let Some(header) = new {
            assert_eq!(s.headers[header].published.load(Ordering::Relaxed), 2, "{LOST}");
        }
    })
}

fn assert_all(seen: &Seen) {
    seen.old_read.assert_some("read the object of the late writer");
    seen.new_read.assert_some("read the object that took its place");
    seen.reused.assert_some("reused the header");
}

#[test]
fn what_a_late_writer_may_touch_waits_for_its_word() {
    assert_all(&run(Quarantine::UntilAcknowledged));
}

#[test]
fn a_publication_seen_after_the_kill_is_its_word() {
    assert_all(&run(Quarantine::UntilFinished));
}

#[test]
fn control_reuse_on_timeout_mixes_two_objects() {
    let caught = complaint(|| drop(run(Quarantine::Nothing)));
    assert!(caught.contains(FOREIGN) || caught.contains(LOST));
}

#[test]
fn control_pages_reused_on_timeout_get_foreign_bytes() {
    assert!(complaint(|| drop(run(Quarantine::HeaderOnly))).contains(FOREIGN));
}

#[test]
fn control_a_header_reused_on_timeout_loses_its_object() {
    assert!(complaint(|| drop(run(Quarantine::PagesOnly))).contains(LOST));
}
