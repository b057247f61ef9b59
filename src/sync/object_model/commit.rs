//! A writer that is told that its object was wanted can rely on the master knowing it too.

use super::*;

const UNKNOWN: &str = "committed, but the master takes the writer for a zombie";
const BACK: &str = "a killed object came back";

#[derive(Clone, Copy, PartialEq)]
enum Break {
    Nothing,
    NoWriterFence,
    ExchangeReady,
}

#[derive(Default, Clone)]
struct Outcomes {
    in_time: Count,
    evicted: Count,
    stale: Count,
}

struct Shared {
    word: AtomicU64,
    published: AtomicU64,
}

fn commit(s: &Shared, broken: Break) -> bool {
    match broken {
        Break::NoWriterFence => {
            object::publish(&s.published, 1);
            let now = s.word.load(Ordering::Acquire);
            object::is_live(now) && object::epoch(now) == 1
        }
        Break::ExchangeReady => {
            object::publish(&s.published, 1);
            s.word.swap(object::control(object::READY, 1), Ordering::AcqRel);
            true
        }
        Break::Nothing => object::commit(&s.word, &s.published, 1),
    }
}

/// A writer that commits and a watchdog that loses patience; a header whose writer is known to be done is reused.
fn run(broken: Break, reuse: bool) -> Outcomes {
    explore(move |outcomes: &Outcomes| {
        let s = Arc::new(Shared {
            word: AtomicU64::new(object::control(object::WRITING, 1)),
            published: AtomicU64::new(0),
        });
        let writer = spawn(&s, move |s| commit(s, broken));
        if object::promote(&s.word, &s.published, 1) {
            outcomes.in_time.up();
            assert!(writer.join().unwrap(), "published in time, but told that it is stale");
            return;
        }
        object::kill(&s.word, 1);
        object::settle();
        let finished = object::finished(&s.published, 1);
        let reused = reuse && finished;
        if reused {
            object::reserve(&s.word, 2);
            object::open(&s.word, 2);
        }
        let committed = writer.join().unwrap();
        let now = s.word.load(Ordering::Relaxed);
        assert!(!(object::is_live(now) && object::epoch(now) == 1), "{BACK}");
        assert!(!reused || now == object::control(object::WRITING, 2), "{BACK}");
        match (committed, finished) {
            (true, true) => outcomes.evicted.up(),
            (true, false) => panic!("{UNKNOWN}"),
            (false, _) => outcomes.stale.up(),
        }
    })
}

fn assert_all(outcomes: &Outcomes) {
    outcomes.in_time.assert_some("published in time");
    outcomes.evicted.assert_some("killed an object that was committed");
    outcomes.stale.assert_some("killed an object before its commit");
}

#[test]
fn a_committed_object_is_known_to_be_finished() {
    assert_all(&run(Break::Nothing, false));
}

#[test]
fn a_late_commit_does_not_touch_the_next_object() {
    assert_all(&run(Break::Nothing, true));
}

#[test]
fn control_without_the_writers_fence_the_master_does_not_know() {
    assert!(complaint(|| drop(run(Break::NoWriterFence, false))).contains(UNKNOWN));
}

#[test]
fn control_exchanging_ready_without_looking_brings_a_dead_object_back() {
    for reuse in [false, true] {
        assert!(complaint(move || drop(run(Break::ExchangeReady, reuse))).contains(BACK));
    }
}
