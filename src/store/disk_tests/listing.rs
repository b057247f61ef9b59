//! Listings, while objects move between memory and disk.

use super::*;
use std::collections::BTreeSet;

fn promote(store: &Store, key: &[u8]) {
    store.promote(&[key], 0, |_, came| assert!(came.unwrap()));
}

/// Brings everything to disk that is in memory, and takes it away there.
fn leave_memory(bed: &Bed, bucket: u64) {
    let items = bed.next(Scope::All);
    assert_eq!(bed.write(&items, bucket), items.len() as u64);
    bed.evict_all();
}

/// All keys from a cursor on.
fn rest(store: &Store, mut cursor: u64) -> Vec<Vec<u8>> {
    let next = || {
        let found = store.next(cursor).unwrap()?;
        cursor = found.cursor;
        Some(found.key)
    };
    std::iter::from_fn(next).collect()
}

/// The mistake: memory first, then what is on disk and not in memory. `halfway` happens after so many objects of memory.
fn memory_first(bed: &Bed, halfway: impl FnOnce()) -> BTreeSet<Vec<u8>> {
    let (store, mut keys, mut index, mut at) = (&bed.store, BTreeSet::new(), 0, 0);
    let (view, disk) = (store.client.view(), store.disk().unwrap());
    while let Some((key, _, next)) = store.next_in_memory(view, disk.as_ref(), 0, index).unwrap() {
        (keys, index) = (keys.into_iter().chain([key]).collect(), next);
    }
    halfway();
    let mut wanted =
        |record: &DiskRecord<'_>| Ok(record.resident && matches!(store.look(view, record.key)?, Look::Missing));
    while let (Some((key, _)), next) = store.next_on_disk(disk.as_ref(), at, &mut wanted).unwrap() {
        at = next;
        keys.insert(key);
    }
    keys
}

/// The other mistake: disk first, then what is in memory and not on disk.
fn disk_first(bed: &Bed, halfway: impl FnOnce()) -> BTreeSet<Vec<u8>> {
    let (store, mut keys, mut index, mut at) = (&bed.store, BTreeSet::new(), 0, 0);
    let (view, disk) = (store.client.view(), store.disk().unwrap());
    while let (Some((key, _)), next) =
        store.next_on_disk(disk.as_ref(), at, &mut |record: &DiskRecord<'_>| Ok(record.resident)).unwrap()
    {
        at = next;
        keys.insert(key);
    }
    halfway();
    while let Some((key, _, next)) = store.next_in_memory(view, disk.as_ref(), u64::MAX, index).unwrap() {
        index = next;
        keys.insert(key);
    }
    keys
}

#[test]
fn what_stays_is_listed_once_wherever_it_is() {
    let bed = Bed::new();
    put(&bed.store, b"both", b"1");
    assert_eq!(bed.write(&bed.next(Scope::All), 2), 1);
    put(&bed.store, b"memory", b"1");
    promote(&bed.store, b"disk");
    let (plan, _) = bed.store.open_for_write(b"open", 1, &PutOptions::DEFAULT).unwrap();
    assert_eq!(rest(&bed.store, 0), [b"disk".as_slice(), b"both", b"memory"]);
    bed.store.abandon(&plan).unwrap();
    // Not what is over.
    bed.store.remove(b"disk").unwrap();
    assert_eq!(rest(&bed.store, 0), [b"both".as_slice(), b"memory"]);
}

#[test]
fn what_comes_into_memory_meanwhile_is_not_missed() {
    for listed in 0..3 {
        let bed = Bed::new();
        put(&bed.store, b"memory", b"1");
        let (mut keys, mut cursor) = (BTreeSet::new(), 0);
        for _ in 0..listed {
            let Some(found) = bed.store.next(cursor).unwrap() else { break };
            cursor = found.cursor;
            keys.insert(found.key);
        }
        promote(&bed.store, b"disk");
        keys.extend(rest(&bed.store, cursor));
        assert_eq!(keys, BTreeSet::from([b"disk".to_vec(), b"memory".to_vec()]), "after {listed}");
    }
    let bed = Bed::new();
    put(&bed.store, b"memory", b"1");
    let keys = memory_first(&bed, || promote(&bed.store, b"disk"));
    assert_eq!(keys, BTreeSet::from([b"memory".to_vec()]), "the mistake is one");
}

#[test]
fn what_leaves_memory_meanwhile_is_not_missed() {
    for listed in 0..3 {
        let bed = Bed::new();
        put(&bed.store, b"one", b"1");
        put(&bed.store, b"two", b"2");
        let (mut keys, mut cursor) = (BTreeSet::new(), 0);
        for _ in 0..listed {
            let found = bed.store.next(cursor).unwrap().unwrap();
            cursor = found.cursor;
            keys.insert(found.key);
        }
        leave_memory(&bed, 2);
        keys.extend(rest(&bed.store, cursor));
        assert_eq!(keys.len(), 3, "after {listed}: {keys:?}");
    }
    let bed = Bed::new();
    put(&bed.store, b"one", b"1");
    let keys = disk_first(&bed, || leave_memory(&bed, 2));
    assert_eq!(keys, BTreeSet::from([b"disk".to_vec()]), "the mistake is one");
}

#[test]
fn what_leaves_memory_and_comes_back_behind_the_cursor_is_not_missed() {
    let bed = Bed::new();
    let (store, all) = (&bed.store, [b"one".as_slice(), b"two", b"six"]);
    all.iter().for_each(|key| put(store, key, b"1"));
    let (mut cursor, mut seen) = (0, BTreeSet::new());
    for _ in 0..3 {
        let found = store.next(cursor).unwrap().unwrap();
        cursor = found.cursor;
        seen.insert(found.key);
    }
    leave_memory(&bed, 2);
    let left = all.into_iter().find(|key| !seen.contains(*key)).unwrap();
    // Headers are given in turn: it comes to where the others were before long.
    let behind = (0..1000).any(|_| {
        promote(store, left);
        let Look::Ready((index, _)) = store.look(store.client.view(), left).unwrap() else { panic!("it is there") };
        let behind = u64::from(index) < cursor & u64::from(u32::MAX);
        if !behind {
            bed.evict_all();
        }
        behind
    });
    assert!(behind);
    assert!(rest(store, cursor).iter().any(|key| key == left));
}

#[test]
fn what_is_being_entered_is_listed() {
    let bed = Bed::new();
    put(&bed.store, b"new", b"1");
    put(&bed.store, b"newer", b"1");
    let (items, mut cursor, mut keys) = (bed.next(Scope::All), 0, Vec::new());
    let entered = bed.write_and(&items, 2, || {
        for _ in 0..2 {
            let found = bed.store.next(cursor).unwrap().unwrap();
            cursor = found.cursor;
            keys.push(found.key);
        }
        // The mistake would pass them by, and take them for listed afterwards.
        let there = &mut |record: &DiskRecord<'_>| Ok(record.resident);
        let disk = bed.store.disk().unwrap();
        assert_eq!(bed.store.next_on_disk(disk.as_ref(), 2 << PLACE_SHIFT, there).unwrap(), (None, 3 << PLACE_SHIFT));
    });
    assert_eq!(entered, 2);
    let disk = bed.store.disk().unwrap();
    assert_eq!(bed.store.next_in_memory(bed.store.client.view(), disk.as_ref(), 3, 0).unwrap(), None);
    keys.extend(rest(&bed.store, cursor));
    keys.sort();
    assert_eq!(keys, [b"disk".as_slice(), b"new", b"newer"]);
}
