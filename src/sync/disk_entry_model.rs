//! Models of the entries of values on disk, on the functions of `disk_entry` themselves. Runs with `cargo test -p nanomc-loom`; each control
//! is a broken variant that the model must catch.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model reports by failing")]

use super::disk_entry::{self, ENDED, LIVE, Move, Words, first};
use super::object_model::{Count, complaint, explore, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// An entry whose every word holds its epoch.
fn of(epoch: u64) -> [u64; 4] {
    [first(LIVE, epoch), epoch, epoch, epoch]
}

fn entry(words: [u64; 4]) -> Words {
    words.map(AtomicU64::new)
}

const MIXED: &str = "words of two entries";
const NOTHING: &str = "a key was nowhere while it moved";

/// A place on disk that is given to the next value when the entry that leads there has ended.
struct Disk {
    entry: Words,
    /// The bytes there: the epoch of their value.
    bytes: AtomicU64,
}

#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    /// Fields are changed while the entry lives.
    InPlace,
    /// No second look at the first word, after its fields were read.
    OneLook,
    /// None after the disk was read.
    NoLookAfterReading,
}

#[derive(Default, Clone)]
struct Seen {
    old: Count,
    new: Count,
    ended: Count,
}

fn read_while_reused(broken: Broken) -> Seen {
    explore(move |seen: &Seen| {
        let disk = Arc::new(Disk { entry: entry(of(1)), bytes: AtomicU64::new(1) });
        let reader = spawn(&disk, move |disk| {
            let found = match broken {
                Broken::OneLook => {
                    let now = disk.entry[0].load(Ordering::Acquire);
                    let rest = [1, 2, 3].map(|i: usize| disk.entry[i].load(Ordering::Relaxed));
                    disk_entry::is_live(now).then_some([now, rest[0], rest[1], rest[2]])
                }
                _ => disk_entry::read(&disk.entry),
            };
            let Some(words) = found else { return 0 };
            let epoch = disk_entry::epoch(words[0]);
            assert!(words[1..].iter().all(|word| *word == epoch), "{MIXED}");
            if broken == Broken::InPlace {
                return epoch;
            }
            let bytes = disk.bytes.load(Ordering::Acquire);
            if broken != Broken::NoLookAfterReading && !disk_entry::is_still(&disk.entry, words[0]) {
                return 0;
            }
            assert_eq!(bytes, epoch, "bytes of another value");
            epoch
        });
        if broken == Broken::InPlace {
            for (word, value) in disk.entry.iter().zip(of(2)).skip(1) {
                word.store(value, Ordering::Relaxed);
            }
            disk.entry[0].store(of(2)[0], Ordering::Release);
        } else {
            disk_entry::end(&disk.entry);
            // What lies on disk belongs to nobody from here on. A store there is seen by whoever reads it, in whatever order.
            fence(Ordering::Release);
            disk.bytes.store(2, Ordering::Release);
            disk_entry::fill(&disk.entry, of(2));
        }
        match reader.join().unwrap() {
            0 => seen.ended.up(),
            1 => seen.old.up(),
            _ => seen.new.up(),
        }
    })
}

#[test]
fn what_is_read_of_an_entry_and_of_the_disk_belongs_together() {
    let seen = read_while_reused(Broken::Nothing);
    seen.old.assert_some("read the first value");
    seen.new.assert_some("read the second");
    seen.ended.assert_some("saw an entry end");
}

#[test]
fn control_fields_changed_in_place_are_mixed() {
    assert!(complaint(|| _ = read_while_reused(Broken::InPlace)).contains(MIXED));
}

#[test]
fn control_one_look_mixes_entries() {
    assert!(complaint(|| _ = read_while_reused(Broken::OneLook)).contains(MIXED));
}

#[test]
fn control_without_a_look_after_reading_bytes_are_of_another_value() {
    assert!(complaint(|| _ = read_while_reused(Broken::NoLookAfterReading)).contains("bytes of another value"));
}

/// A key on disk that is replaced in memory; and evicted from there later, when the disk has it again.
struct Key {
    memory: AtomicU64,
    entry: Words,
    again: Words,
    moved: AtomicU64,
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Right,
    /// The count grows after the entry has ended.
    CountAfterEnd,
    /// The reader looks at the count after memory.
    CountAfterMemory,
    /// An entry that changed while it was read counts as ended at once.
    GiveUp,
}

fn moving(order: Order, how: Move, evicted: bool) {
    explore(move |_: &Seen| {
        let ended_entry = || entry([first(ENDED, 0), 0, 0, 0]);
        let key =
            Key { memory: AtomicU64::new(0), entry: entry(of(1)), again: ended_entry(), moved: AtomicU64::new(0) };
        let key = Arc::new(key);
        let reader = spawn(&key, move |key| {
            for _ in 0..4 {
                let in_memory = || key.memory.load(Ordering::Acquire) == 1;
                let early = order != Order::CountAfterMemory;
                let mut count = if early { key.moved.load(Ordering::Acquire) } else { 0 };
                if in_memory() {
                    return;
                }
                if !early {
                    count = key.moved.load(Ordering::Acquire);
                }
                let read = |entry: &Words| match order {
                    Order::GiveUp => {
                        let now = entry[0].load(Ordering::Acquire);
                        disk_entry::is_live(now) && disk_entry::is_still(entry, now)
                    }
                    _ => disk_entry::read(entry).is_some(),
                };
                if read(&key.entry) || read(&key.again) {
                    return;
                }
                assert_ne!(key.moved.load(Ordering::Relaxed), count, "{NOTHING}");
            }
        });
        key.memory.store(1, Ordering::Release);
        if order == Order::CountAfterEnd {
            key.entry[0].store(first(ENDED, 1), Ordering::Release);
            key.moved.store(how.step(), Ordering::Release);
        } else {
            disk_entry::count_move(&key.moved, how);
            disk_entry::end(&key.entry);
        }
        if evicted {
            disk_entry::fill(&key.again, of(2));
            key.memory.store(0, Ordering::Release);
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_key_that_moves_between_memory_and_disk_is_never_nowhere() {
    for how in [Move::Replaced, Move::Same] {
        moving(Order::Right, how, false);
        moving(Order::Right, how, true);
    }
}

#[test]
fn control_a_count_after_the_end_hides_a_move() {
    assert!(complaint(|| moving(Order::CountAfterEnd, Move::Replaced, false)).contains(NOTHING));
}

#[test]
fn control_giving_up_an_entry_that_changed_hides_a_move() {
    assert!(complaint(|| moving(Order::GiveUp, Move::Replaced, false)).contains(NOTHING));
}

#[test]
fn control_a_count_that_is_looked_at_late_hides_a_move() {
    assert!(complaint(|| moving(Order::CountAfterMemory, Move::Replaced, false)).contains(NOTHING));
}
