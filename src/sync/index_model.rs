//! Models of the index, on the functions of `index` themselves: a key that is in the index throughout is never missed,
//! whatever the master does to the rest. Runs with `cargo test -p nanomc-loom`; each control is a broken variant that the model must
//! catch.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model reports by failing")]

use super::index::{self, Found};
use super::object;
use super::object_model::{Count, complaint, explore, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

const BUCKETS: usize = 4;
const MISSED: &str = "missed a key that is there";

/// The key that every reader looks for.
const KEY: Entry = Entry::new(7, 70);
/// Others on the same path. It begins at the last bucket, so that it goes on at the first.
const BEFORE: Entry = Entry::new(5, 50);
const AFTER: Entry = Entry::new(8, 80);
const LATER: Entry = Entry::new(9, 90);

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    index: u32,
}

impl Entry {
    const fn new(tag: u64, index: u32) -> Self {
        Self { hash: tag << 34 | (BUCKETS as u64 - 1), index }
    }

    fn insert(self, table: &[AtomicU64]) {
        index::insert(table, self.hash, self.index).unwrap();
    }

    fn bucket(self, table: &[AtomicU64]) -> usize {
        index::bucket_of(table, self.hash, self.index).unwrap()
    }

    fn delete(self, table: &[AtomicU64]) -> isize {
        index::delete(table, self.bucket(table), BUCKETS)
    }
}

struct Shared {
    root: AtomicU64,
    tables: [[AtomicU64; BUCKETS]; 2],
}

impl Shared {
    /// The first table holds `entries` and is in use.
    fn new(entries: &[Entry]) -> Arc<Self> {
        let empty = || std::array::from_fn(|_| AtomicU64::new(index::EMPTY));
        let s = Self { root: AtomicU64::new(0), tables: [empty(), empty()] };
        for entry in entries {
            entry.insert(&s.tables[0]);
        }
        Arc::new(s)
    }

    fn find(&self, confirm: impl FnMut(u32) -> bool) -> Found {
        index::find(&self.root, &[&self.tables[0], &self.tables[1]], KEY.hash, confirm)
    }

    fn find_key(&self) -> Found {
        self.find(|index| index == KEY.index)
    }
}

/// A search that is not `index::find`.
#[derive(Clone, Copy, PartialEq)]
enum Search {
    /// Loads of buckets that acquire nothing: right for a miss, thanks to the fence, but not for a hit.
    Relaxed,
    /// The same without the fence.
    RelaxedWithoutFence,
    NoRecheck,
    NoSecondLookAtTheBucket,
}

impl Search {
    fn find(self, s: &Shared, mut confirm: impl FnMut(u32) -> bool) -> Found {
        let relaxed = matches!(self, Self::Relaxed | Self::RelaxedWithoutFence);
        let order = if relaxed { Ordering::Relaxed } else { Ordering::Acquire };
        'search: for _ in 0..4 {
            let seen = s.root.load(Ordering::Acquire);
            let table = &s.tables[usize::from(seen & 1 == 1)];
            for at in index::path(BUCKETS, KEY.hash) {
                let word = table[at].load(order);
                if word == index::EMPTY {
                    break;
                }
                let Some(index) = index::index_of(word) else { continue };
                if word == index::entry(KEY.hash, index) {
                    if confirm(index) {
                        return Found::At(index);
                    }
                    if self != Self::NoSecondLookAtTheBucket && table[at].load(Ordering::Relaxed) != word {
                        continue 'search;
                    }
                }
            }
            if self != Self::RelaxedWithoutFence {
                fence(Ordering::Acquire);
            }
            if self == Self::NoRecheck || s.root.load(Ordering::Relaxed) == seen {
                return Found::Nothing;
            }
        }
        Found::Busy
    }
}

/// Two readers look for [`KEY`] while the master works on the table.
fn with_two_readers(entries: &'static [Entry], master: fn(&[AtomicU64])) {
    explore(move |(): &()| {
        let s = Shared::new(entries);
        let readers = [0, 1].map(|_| spawn(&s, |s| assert_eq!(s.find_key(), Found::At(KEY.index), "{MISSED}")));
        master(&s.tables[0]);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// The words of an object that an entry leads to; all are in epoch 1.
#[derive(Default)]
struct Object {
    word: AtomicU64,
    published: AtomicU64,
}

/// Who finds an entry finds the object behind it.
mod insertion {
    use super::*;

    const UNBORN: &str = "found an object that is not there yet";

    struct Store {
        index: Arc<Shared>,
        object: Object,
    }

    fn find(store: &Store, search: Option<Search>) -> Found {
        let confirm = |_| {
            assert!(object::readable(&store.object.word, &store.object.published).is_some(), "{UNBORN}");
            true
        };
        match search {
            Some(search) => search.find(&store.index, confirm),
            None => store.index.find(confirm),
        }
    }

    /// A writer publishes; the master notices and puts the object into the index.
    fn run(search: Option<Search>) {
        let (found, missed) = explore(move |(found, missed): &(Count, Count)| {
            let store = Arc::new(Store { index: Shared::new(&[BEFORE]), object: Object::default() });
            object::open(&store.object.word, 1);
            let writer = spawn(&store, |store| object::publish(&store.object.published, 1));
            let reader = spawn(&store, move |store| find(store, search));
            if object::promote(&store.object.word, &store.object.published, 1) {
                KEY.insert(&store.index.tables[0]);
            }
            writer.join().unwrap();
            if reader.join().unwrap() == Found::Nothing { missed.up() } else { found.up() }
        });
        found.assert_some("found the new object");
        missed.assert_some("looked before it was there");
    }

    #[test]
    fn an_entry_leads_to_an_object_that_can_be_read() {
        run(None);
    }

    #[test]
    fn control_a_hit_that_acquires_nothing_may_come_before_its_object() {
        assert!(complaint(|| run(Some(Search::Relaxed))).contains(UNBORN));
    }
}

/// Deletion of entries next to the key.
mod deletion {
    use super::*;

    /// Closes the gap, as tables of one thread do.
    fn delete_with_shift(table: &[AtomicU64]) {
        let (gap, next) = (BEFORE.bucket(table), KEY.bucket(table));
        table[gap].store(index::entry(KEY.hash, KEY.index), Ordering::Release);
        table[next].store(index::EMPTY, Ordering::Release);
    }

    /// Forgets that a path may go on behind the entry.
    fn delete_to_empty(table: &[AtomicU64]) {
        table[BEFORE.bucket(table)].store(index::EMPTY, Ordering::Release);
    }

    #[test]
    fn a_deleted_entry_leaves_the_path_to_the_next_open() {
        with_two_readers(&[BEFORE, KEY], |table| {
            let bucket = BEFORE.bucket(table);
            assert_eq!(BEFORE.delete(table), 1);
            LATER.insert(table);
            assert_eq!(LATER.bucket(table), bucket);
            assert_eq!(LATER.delete(table), 1);
        });
    }

    #[test]
    fn tombstones_become_empty_only_behind_the_last_entry() {
        with_two_readers(&[BEFORE, KEY, AFTER], |table| {
            let bucket = BEFORE.bucket(table);
            assert_eq!(BEFORE.delete(table), 1);
            assert_eq!(AFTER.delete(table), 0);
            LATER.insert(table);
            assert_eq!(LATER.bucket(table), bucket);
        });
    }

    #[test]
    fn tombstones_that_become_empty_together_stop_at_the_key() {
        with_two_readers(&[BEFORE, KEY, AFTER, LATER], |table| {
            assert_eq!(BEFORE.delete(table), 1);
            assert_eq!(AFTER.delete(table), 1);
            let bucket = LATER.bucket(table);
            // The bucket behind it is a tombstone, but on the way to the key.
            assert_eq!(LATER.delete(table), 1);
            AFTER.insert(table);
            assert_ne!(AFTER.bucket(table), bucket);
        });
    }

    #[test]
    fn control_closing_the_gap_hides_the_next_entry() {
        assert!(complaint(|| with_two_readers(&[BEFORE, KEY], delete_with_shift)).contains(MISSED));
    }

    #[test]
    fn control_emptying_a_bucket_inside_a_path_hides_the_next_entry() {
        assert!(complaint(|| with_two_readers(&[BEFORE, KEY], delete_to_empty)).contains(MISSED));
    }
}

/// Two rebuilds, so that the table in which a slow reader looks is cleared under it.
mod rebuild {
    use super::*;

    #[derive(Clone, Copy, PartialEq)]
    enum Break {
        Nothing,
        ClearWithoutFence,
    }

    fn rebuild(s: &Shared, table: &[AtomicU64], broken: Break) {
        if broken == Break::ClearWithoutFence {
            table.iter().for_each(|bucket| bucket.store(index::EMPTY, Ordering::Relaxed));
        } else {
            index::clear(table);
        }
        KEY.insert(table);
        index::switch(&s.root, s.root.load(Ordering::Relaxed) + 1);
    }

    fn run(find: impl Fn(&Shared) -> Found + Copy + Sync + Send + 'static, broken: Break) {
        explore(move |(): &()| {
            let s = Shared::new(&[BEFORE, KEY]);
            let reader = spawn(&s, move |s| assert_eq!(find(s), Found::At(KEY.index), "{MISSED}"));
            rebuild(&s, &s.tables[1], broken);
            rebuild(&s, &s.tables[0], broken);
            reader.join().unwrap();
        });
    }

    fn run_search(search: Search) {
        run(move |s| search.find(s, |index| index == KEY.index), Break::Nothing);
    }

    #[test]
    fn a_table_that_is_cleared_under_a_reader_does_not_hide_a_key() {
        run(Shared::find_key, Break::Nothing);
    }

    /// So the control without the fence fails for want of it.
    #[test]
    fn a_miss_needs_no_more_than_the_fence() {
        run_search(Search::Relaxed);
    }

    #[test]
    fn control_a_miss_that_is_not_checked_again_hides_a_key() {
        assert!(complaint(|| run_search(Search::NoRecheck)).contains(MISSED));
    }

    #[test]
    fn control_a_miss_checked_again_without_a_fence_hides_a_key() {
        assert!(complaint(|| run_search(Search::RelaxedWithoutFence)).contains(MISSED));
    }

    #[test]
    fn control_clearing_that_does_not_begin_with_a_fence_hides_a_key() {
        assert!(complaint(|| run(Shared::find_key, Break::ClearWithoutFence)).contains(MISSED));
    }
}

/// An object that takes the place of another with the same key.
mod exchange {
    use super::*;

    /// Indices of the two objects.
    const OLD: u32 = 0;
    const NEW: u32 = 1;
    const OLD_ENTRY: Entry = Entry { index: OLD, ..KEY };

    #[derive(Clone, Copy, PartialEq)]
    enum Break {
        Nothing,
        DeleteThenInsert,
        KillFirst,
        RelaxedKill,
        Search(Search),
    }

    /// How a reader makes sure of a hit.
    #[derive(Clone, Copy, PartialEq)]
    enum Confirm {
        Pin,
        /// An existence check, which has no fence of its own.
        Readable,
    }

    /// What the readers of all orders found.
    #[derive(Default, Clone)]
    struct Finds([Count; 2]);

    impl Finds {
        fn note(&self, found: Found) {
            let Found::At(index) = found else { panic!("{MISSED}") };
            self.0[index as usize].up();
        }

        fn assert_both(&self) {
            self.0[0].assert_some("found the old one");
            self.0[1].assert_some("found the new one");
        }
    }

    fn replace_entry(table: &[AtomicU64], broken: Break) {
        let bucket = OLD_ENTRY.bucket(table);
        if broken == Break::DeleteThenInsert {
            index::delete(table, bucket, 0);
            index::insert(table, KEY.hash, NEW).unwrap();
        } else {
            index::exchange(table, bucket, KEY.hash, NEW);
        }
    }

    /// The index alone: whatever is in the bucket will do.
    fn run_entries(broken: Break) {
        let finds = explore(move |finds: &Finds| {
            let s = Shared::new(&[BEFORE, OLD_ENTRY]);
            let readers = [0, 1].map(|_| spawn(&s, |s| s.find(|_| true)));
            replace_entry(&s.tables[0], broken);
            for reader in readers {
                finds.note(reader.join().unwrap());
            }
        });
        finds.assert_both();
    }

    struct Store {
        index: Arc<Shared>,
        objects: [Object; 2],
    }

    impl Store {
        fn new() -> Self {
            let old = Object::default();
            object::open(&old.word, 1);
            object::publish(&old.published, 1);
            Self { index: Shared::new(&[BEFORE, OLD_ENTRY]), objects: [old, Object::default()] }
        }

        fn find(&self, slot: &AtomicU64, confirm: Confirm, broken: Break) -> Found {
            let confirm = |index| {
                let Object { word, published } = &self.objects[index as usize];
                match confirm {
                    Confirm::Pin => object::pin(slot, object::pin_word(index, 1), word, published, 1),
                    Confirm::Readable => object::readable(word, published).is_some(),
                }
            };
            match broken {
                Break::Search(search) => search.find(&self.index, confirm),
                _ => self.index.find(confirm),
            }
        }

        /// Master: once it is complete, the new object takes the place of the old one in `table`, and the old one goes.
        fn replace(&self, table: &[AtomicU64], broken: Break) {
            let [old, new] = &self.objects;
            if !object::promote(&new.word, &new.published, 1) {
                return;
            }
            if broken == Break::KillFirst {
                object::kill(&old.word, 1);
            }
            replace_entry(table, broken);
            if broken == Break::RelaxedKill {
                old.word.store(object::control(object::DEAD, 1), Ordering::Relaxed);
            } else {
                object::kill(&old.word, 1);
            }
            object::settle();
            object::reserve(&old.word, 2);
        }
    }

    /// `rebuilt`: the table is switched before the exchange, which then happens in the other one.
    fn run(rebuilt: bool, confirm: Confirm, broken: Break) {
        let finds = explore(move |finds: &Finds| {
            let store = Arc::new(Store::new());
            object::open(&store.objects[NEW as usize].word, 1);
            let writer = spawn(&store, |store| object::publish(&store.objects[NEW as usize].published, 1));
            let reader = spawn(&store, move |store| {
                let slot = AtomicU64::new(0);
                let found = store.find(&slot, confirm, broken);
                object::unpin(&slot);
                found
            });
            let index = &store.index;
            if rebuilt {
                index::clear(&index.tables[1]);
                OLD_ENTRY.insert(&index.tables[1]);
                index::switch(&index.root, 1);
            }
            store.replace(&index.tables[usize::from(rebuilt)], broken);
            writer.join().unwrap();
            finds.note(reader.join().unwrap());
        });
        finds.assert_both();
    }

    #[test]
    fn an_exchanged_entry_is_the_old_or_the_new() {
        run_entries(Break::Nothing);
    }

    #[test]
    fn a_key_whose_object_is_replaced_is_never_missed() {
        for confirm in [Confirm::Pin, Confirm::Readable] {
            run(false, confirm, Break::Nothing);
        }
    }

    #[test]
    fn a_key_whose_object_is_replaced_in_the_next_table_is_never_missed() {
        for confirm in [Confirm::Pin, Confirm::Readable] {
            run(true, confirm, Break::Nothing);
        }
    }

    #[test]
    fn control_deleting_before_inserting_hides_the_key() {
        assert!(complaint(|| run_entries(Break::DeleteThenInsert)).contains(MISSED));
    }

    #[test]
    fn control_killing_the_old_object_first_hides_the_key() {
        assert!(complaint(|| run(false, Confirm::Pin, Break::KillFirst)).contains(MISSED));
    }

    #[test]
    fn control_a_kill_that_releases_nothing_hides_the_exchange_before_it() {
        // A pin has a fence, and its second look comes after that of the first.
        assert!(complaint(|| run(false, Confirm::Readable, Break::RelaxedKill)).contains(MISSED));
    }

    #[test]
    fn control_going_on_after_a_dead_hit_passes_by_the_new_object() {
        let broken = Break::Search(Search::NoSecondLookAtTheBucket);
        assert!(complaint(move || run(false, Confirm::Pin, broken)).contains(MISSED));
    }

    #[test]
    fn control_a_hit_that_acquires_nothing_may_not_see_the_new_object() {
        assert!(complaint(|| run(false, Confirm::Readable, Break::Search(Search::Relaxed))).contains(MISSED));
    }
}
