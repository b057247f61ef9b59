//! A look without a pin, at bytes that may be reused for another object at any time.

use super::*;

const FOREIGN: &str = "accepted the key of another object";

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    NoRecheck,
    RecheckWithoutFence,
}

/// Who gets the key record of the object that was killed.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    SameHeader,
    OtherHeader,
}

#[derive(Default)]
struct Header {
    word: AtomicU64,
    published: AtomicU64,
}

struct Shared {
    headers: [Header; 2],
    key: [AtomicU64; 2],
    seen: Seen,
}

fn still(s: &Shared, wanted: u64, broken: Break) -> bool {
    let word = &s.headers[0].word;
    match broken {
        Break::NoRecheck => true,
        Break::RecheckWithoutFence => {
            let now = word.load(Ordering::Relaxed);
            object::is_live(now) && object::epoch(now) == wanted
        }
        Break::Nothing => object::still(word, wanted),
    }
}

fn look(s: &Shared, broken: Break) {
    let header = &s.headers[0];
    let Some(epoch) = object::readable(&header.word, &header.published) else { return };
    let key = [s.key[0].load(Ordering::Relaxed), s.key[1].load(Ordering::Relaxed)];
    if still(s, epoch, broken) {
        assert_eq!(key, [epoch; 2], "{FOREIGN}");
        s.seen.read(epoch);
    }
}

/// Master: fills the key record for the object of `epoch` in `header`.
fn fill(s: &Shared, header: &Header, epoch: u64) {
    for byte in &s.key {
        byte.store(epoch, Ordering::Relaxed);
    }
    object::open(&header.word, epoch);
    object::publish(&header.published, epoch);
    assert!(object::promote(&header.word, &header.published, epoch));
}

fn reuse(s: &Shared, next: Next) {
    let old = &s.headers[0];
    object::kill(&old.word, 1);
    object::settle();
    object::reserve(&old.word, 2);
    fill(s, if next == Next::SameHeader { old } else { &s.headers[1] }, 2);
    s.seen.reused.up();
}

fn run(next: Next, broken: Break) {
    let seen = explore(move |seen: &Seen| {
        let s = Arc::new(Shared { headers: Default::default(), key: words(), seen: seen.clone() });
        fill(&s, &s.headers[0], 1);
        let reader = spawn(&s, move |s| {
            look(s, broken);
            look(s, broken);
        });
        reuse(&s, next);
        reader.join().unwrap();
    });
    seen.old_read.assert_some("accepted the first key");
    seen.reused.assert_some("reused the key record");
    if next == Next::SameHeader {
        seen.new_read.assert_some("accepted the second key");
    }
}

#[test]
fn a_look_never_takes_the_key_of_the_next_object_for_its_own() {
    run(Next::SameHeader, Break::Nothing);
}

#[test]
fn a_look_never_takes_the_key_of_an_object_elsewhere_for_its_own() {
    run(Next::OtherHeader, Break::Nothing);
}

#[test]
fn control_without_looking_again_it_takes_a_foreign_key() {
    for next in [Next::SameHeader, Next::OtherHeader] {
        assert!(complaint(move || run(next, Break::NoRecheck)).contains(FOREIGN));
    }
}

#[test]
fn control_without_the_fence_before_looking_again_it_takes_a_foreign_key() {
    for next in [Next::SameHeader, Next::OtherHeader] {
        assert!(complaint(move || run(next, Break::RecheckWithoutFence)).contains(FOREIGN));
    }
}
