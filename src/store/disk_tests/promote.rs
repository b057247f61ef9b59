//! Values that come back from the disk into memory, and those that leave it.

use super::*;
use crate::store::disk::Admission;

fn promote(store: &Store, keys: &[&[u8]]) -> Vec<std::result::Result<bool, i32>> {
    let mut results = vec![Err(0); keys.len()];
    store.promote(keys, 0, |number, came| results[number] = came.map_err(|error| error.status));
    results
}

#[test]
fn a_promoted_value_is_in_both_places_and_leaves_memory_without_being_written() {
    let bed = Bed::new();
    let store = &bed.store;
    put(store, b"memory", b"m");
    let (plan, _) = store.open_for_write(b"open", 1, &PutOptions::DEFAULT).unwrap();
    assert_eq!(
        promote(store, &[b"disk", b"memory", b"none", b"open", b""]),
        [Ok(true), Ok(true), Err(NMC_ERR_NOT_FOUND), Ok(false), Err(crate::base::status::NMC_ERR_INVALID_ARG)]
    );
    store.abandon(&plan).unwrap();
    assert_eq!(store.presence(b"disk").unwrap(), Presence::Ready);
    let reads = bed.disk.reads.load(SeqCst);
    assert_eq!(get(store, b"disk").unwrap(), VALUE);
    assert_eq!(bed.disk.reads.load(SeqCst), reads, "from memory");
    let Look::Ready(metadata) = store.metadata(b"disk").unwrap() else { panic!("it is there") };
    assert_eq!(&*metadata, b"meta");
    assert_eq!(promote(store, &[b"disk"]), [Ok(true)]);
    // It is not written again, and leaves without a mark.
    assert_eq!(bed.next(Scope::All).iter().map(|item| item.key.clone()).collect::<Vec<_>>(), [b"memory"]);
    bed.with(|master| {
        master.let_all_go();
        Ok(())
    });
    bed.evict_all();
    assert_eq!(store.presence(b"disk").unwrap(), Presence::OnDisk);
    let counts = bed.with(|master| Ok(master.disk_counts().unwrap()));
    assert_eq!((counts.evicted_clean, counts.evicted_dirty, counts.objects), (1, 1, 1));
    assert_eq!(bed.marks(), []);
}

#[test]
fn what_is_removed_or_replaced_while_it_comes_back_does_not() {
    for how in 0..5 {
        let bed = Bed::new();
        let store = bed.store.share();
        *bed.disk.then.lock() = Some(Box::new(move || match how {
            0 => store.remove(b"disk").unwrap(),
            1 => replace(&store, b"disk", b"new"),
            2 => store.remove_all().unwrap(),
            // Gone, and there again with another value, on disk alone.
            3 => {
                store.remove(b"disk").unwrap();
                put(&store, b"disk", b"another value....");
            }
            _ => assert_eq!(promote(&store, &[b"disk"]), [Ok(true)]),
        }));
        let came = promote(&bed.store, &[b"disk"]);
        let (want, value): (_, Option<&[u8]>) = match how {
            0 | 2 => (Err(NMC_ERR_NOT_FOUND), None),
            1 => (Ok(true), Some(b"new")),
            3 => (Ok(true), Some(b"another value....")),
            _ => (Ok(true), Some(VALUE)),
        };
        assert_eq!(came, [want], "{how}");
        assert_eq!(get(&bed.store, b"disk").as_deref(), value, "{how}");
        // Nothing of the plan is left.
        assert_eq!(bed.store.client.plans.len(), 0, "{how}");
        // What was flushed ends on disk by and by.
        let left = bed.with(|master| Ok(master.disk_counts().unwrap())).objects;
        assert!(how == 2 || left == u64::from(how == 4), "{how}: {left}");
    }
}

/// The control: an ordinary put of what was read brings a removed key back.
#[test]
fn a_put_of_what_was_read_brings_a_removed_key_back() {
    let bed = Bed::new();
    let store = bed.store.share();
    *bed.disk.then.lock() = Some(Box::new(move || store.remove(b"disk").unwrap()));
    let read = get(&bed.store, b"disk").unwrap();
    assert_eq!(get(&bed.store, b"disk"), None);
    put(&bed.store, b"disk", &read);
    assert_eq!(get(&bed.store, b"disk").unwrap(), VALUE);
}

#[test]
fn an_entry_that_ends_makes_its_object_in_memory_one_to_be_written() {
    let bed = Bed::new();
    promote(&bed.store, &[b"disk"]);
    let fingerprint = fingerprint(&SECRET, DEFAULT, b"disk");
    assert_eq!(bed.with(|master| master.end_bucket(7, &[fingerprint])), 0, "another bucket");
    assert_eq!(bed.with(|master| master.end_bucket(1, &[fingerprint])), 1);
    assert_eq!(bed.marks(), [Mark::Over { spot: Spot { bucket: 1, block: 0 } }]);
    assert_eq!(get(&bed.store, b"disk").unwrap(), VALUE, "memory has it");
    // Another value takes the entry: that does not make this one clean.
    put(&bed.store, b"other", b"o");
    let items = bed.next(Scope::All);
    assert_eq!(items.len(), 2);
    let other: Vec<_> = items.into_iter().filter(|item| item.key == b"other").collect();
    assert_eq!(bed.write(&other, 2), 1);
    bed.with(|master| {
        master.let_all_go();
        Ok(())
    });
    assert_eq!(bed.next(Scope::All).iter().map(|item| item.key.clone()).collect::<Vec<_>>(), [b"disk"]);
}

#[test]
fn a_value_that_is_read_often_is_found_once_in_so_many_reads() {
    let bed = Bed::new();
    let map = bed.disk.map.lock().clone().unwrap();
    map.view().header().promote_after.store(3, SeqCst);
    let due = || map.heat().take_due(3, 16).collect::<Vec<_>>();
    for _ in 0..2 {
        get(&bed.store, b"disk").unwrap();
        get(&bed.store, b"disk").unwrap();
        assert_eq!(due(), []);
        get(&bed.store, b"disk").unwrap();
        assert_eq!(map.heat().take_due(3, 0).collect::<Vec<_>>(), [], "no more than wanted");
        assert_eq!(due(), [(0, 0)]);
    }
    map.view().header().promote_after.store(0, SeqCst);
    (0..9).for_each(|_| _ = get(&bed.store, b"disk").unwrap());
    assert_eq!(due(), []);
}

#[test]
fn only_what_is_admitted_is_written_ahead_and_all_of_it_when_asked() {
    let bed = Bed::of(&Config { policy: crate::store::config::Policy::Lru, ..config() }).with_disk();
    let keep = |priority| Keep { priority, ..Keep::DEFAULT };
    for number in 0..11 {
        let options = PutOptions { keep: keep(number % 4), rank: Some(0), ..PutOptions::DEFAULT };
        put_with(&bed.store, format!("p{number}").as_bytes(), b"value", &options).unwrap();
    }
    let admit = |admission| {
        bed.with(|master| {
            master.set_admission(admission);
            master.begin_walk();
            Ok(())
        })
    };
    let ahead = |scope| {
        let found = bed.next(scope).len();
        bed.with(|master| {
            master.let_all_go();
            master.begin_walk();
            Ok(())
        });
        found
    };
    assert!(ahead(Scope::Ahead) > 0, "the heap is nearly full");
    admit(Admission { reads: 1, ..Admission::default() });
    assert_eq!(ahead(Scope::Ahead), 0, "nobody has read anything");
    admit(Admission { priority: 4, ..Admission::default() });
    assert_eq!(ahead(Scope::Ahead), 0);
    assert_eq!(ahead(Scope::All), 11, "whoever asks for all gets all");
    admit(Admission { priority: 3, ..Admission::default() });
    let high = ahead(Scope::Ahead);
    admit(Admission { reads: 2, ..Admission::default() });
    for number in 0..11 {
        for _ in 0..2 {
            // Reads in the same millisecond count once.
            std::thread::sleep(Duration::from_millis(12));
            get(&bed.store, format!("p{number}").as_bytes()).unwrap();
        }
    }
    let read = ahead(Scope::Ahead);
    admit(Admission { objects: 1, ..Admission::default() });
    assert_eq!(ahead(Scope::Ahead), 1);
    admit(Admission { bytes: 2 * 4096, ..Admission::default() });
    assert_eq!(ahead(Scope::Ahead), 2);
    admit(Admission::default());
    assert!(high > 0 && read == ahead(Scope::Ahead), "{high} {read}");
}

/// Two objects more than a rank has to have on disk, the first four of them there and in use.
fn pinned_in_front() -> (Bed, Vec<crate::store::types::Pin>) {
    let bed = Bed::new();
    let options = PutOptions { rank: Some(0), ..PutOptions::DEFAULT };
    for number in 0..4 {
        put_with(&bed.store, format!("p{number}").as_bytes(), b"value", &options).unwrap();
    }
    let items = bed.next(Scope::All);
    assert_eq!(bed.write(&items, 5), 4);
    for number in 4..11 {
        put_with(&bed.store, format!("p{number}").as_bytes(), b"value", &options).unwrap();
    }
    let pins = (0..4).map(|number| match bed.store.pin(format!("p{number}").as_bytes()).unwrap() {
        Look::Ready((pin, _)) => pin,
        other => panic!("{other:?}"),
    });
    let pins = pins.collect();
    bed.with(|master| {
        master.begin_walk();
        Ok(())
    });
    (bed, pins)
}

#[test]
fn what_is_in_use_does_not_take_the_place_of_what_is_evicted_instead() {
    let (bed, pins) = pinned_in_front();
    assert!(!bed.next(Scope::Ahead).is_empty());
    pins.into_iter().for_each(|pin| bed.store.unpin(pin).unwrap());
    bed.with(|master| {
        master.let_all_go();
        master.begin_walk();
        Ok(())
    });
    assert!(bed.next(Scope::Ahead).is_empty(), "control: those in front are on disk");
}

#[test]
fn whoever_wants_all_gets_what_was_there_when_he_asked() {
    let bed = Bed::new();
    put(&bed.store, b"before", b"v");
    bed.with(|master| {
        master.begin_walk();
        Ok(())
    });
    put(&bed.store, b"after", b"v");
    let keys = |items: Vec<ToWrite>| items.into_iter().map(|item| item.key).collect::<Vec<_>>();
    assert_eq!(keys(bed.next(Scope::All)), [b"before".to_vec()]);
    assert_eq!(keys(bed.next(Scope::All)), [b""; 0], "nor in the next pass");
}

#[test]
fn nothing_is_taken_if_that_cannot_be_written_down() {
    let bed = Bed::new();
    put(&bed.store, b"memory", b"m");
    bed.disk.fails.store(1, SeqCst);
    assert_eq!(bed.store.consume(b"memory").unwrap_err().status, NMC_ERR_IO);
    assert_eq!(get(&bed.store, b"memory").unwrap(), b"m");
    bed.disk.fails.store(0, SeqCst);
    assert!(matches!(bed.store.consume(b"memory").unwrap(), Look::Ready(_)));
}

#[test]
fn a_store_that_waits_for_its_tier_neither_stores_nor_says_that_something_is_missing() {
    let bed = Bed::of(&Config { wait_for_tier: true, ..config() });
    let refused = |result: Result<()>| assert_eq!(result.unwrap_err().status, NMC_ERR_UNAVAILABLE);
    let away = || {
        refused(put_with(&bed.store, b"k", b"v", &PutOptions::DEFAULT));
        refused(bed.store.get(b"k", slice(&mut [0; 4])).map(|_| ()));
        refused(bed.store.exists(b"k").map(|_| ()));
        refused(bed.store.remove(b"k"));
        refused(bed.store.remove_all());
        assert!(!bed.store.has_disk());
    };
    away();
    bed.attach(&[(b"", DEFAULT)], &[record(b"disk", DEFAULT, 40, (1, 0), VALUE.len() as u64, 9)]);
    bed.disk.values.lock().insert(Spot { bucket: 1, block: 0 }, VALUE.to_vec());
    assert_eq!(get(&bed.store, b"disk").unwrap(), VALUE);
    put(&bed.store, b"k", b"v");
    assert_eq!(get(&bed.store, b"none"), None);
    bed.host.detach_disk(None);
    assert_eq!(get(&bed.store, b"k").unwrap(), b"v", "memory has it");
    bed.store.forget_disk();
    refused(bed.store.get(b"none", slice(&mut [0; 4])).map(|_| ()));
    refused(bed.store.remove(b"k"));
}

#[test]
fn what_is_removed_by_its_prefix_counts_once_while_it_comes_back_or_is_replaced() {
    let bed = Bed::new();
    let (store, removed) = (bed.store.share(), Arc::new(AtomicU64::new(0)));
    let said = Arc::clone(&removed);
    *bed.disk.then.lock() = Some(Box::new(move || said.store(store.remove_by_prefix(b"di").unwrap(), SeqCst)));
    assert_eq!(promote(&bed.store, &[b"disk"]), [Err(NMC_ERR_NOT_FOUND)]);
    assert_eq!(removed.load(SeqCst), 1);
    let store = &bed.store;
    put(store, b"memory", b"1");
    let replaces = PutOptions { replace: true, ..PutOptions::DEFAULT };
    let (plan, _) = store.open_for_write(b"memory", 1, &replaces).unwrap();
    assert_eq!(store.remove_by_prefix(b"mem").unwrap(), 1);
    assert_eq!(store.commit(&plan).unwrap_err().status, NMC_ERR_STALE);
    assert_eq!(store.presence(b"memory").unwrap(), Presence::Absent);
}

/// Two tiers one after the other: what was read from the first does not come into memory as what the second has.
#[test]
fn what_was_read_from_a_former_tier_is_not_shown_as_what_the_next_one_has() {
    let bed = Bed::new();
    let (disk, host) = (Arc::clone(&bed.disk), Arc::clone(&bed.host));
    *bed.disk.then.lock() = Some(Box::new(move || {
        host.detach_disk(None);
        let next = map(100);
        *disk.map.lock() = Some(Arc::clone(&next));
        // Another store has written it, which counts its epochs from 1 as well: another put, elsewhere.
        let mut found = record(b"disk", DEFAULT, 40, (7, 0), VALUE.len() as u64, 10);
        found.put = 4711;
        let names = [(SpaceName::new(b"").unwrap(), DEFAULT)];
        let found = [found];
        disk.values.lock().insert(Spot { bucket: 7, block: 0 }, b"of another tier..".to_vec());
        let content = DiskContent { names: &names, found: &found, last_epoch: 40, position: None };
        host.attach_disk(Arc::clone(&disk) as Arc<dyn DiskOwner>, next, &content, host.store_id()).unwrap();
    }));
    let came = promote(&bed.store, &[b"disk"]);
    assert!(came.iter().all(|came| came.is_ok()), "{came:?}");
    assert_eq!(get(&bed.store, b"disk").as_deref().map(String::from_utf8_lossy).as_deref(), Some("of another tier.."));
}

/// Its bucket goes, or its entry ends, between the look at memory and the one at the disk.
#[test]
fn a_value_that_leaves_the_disk_when_memory_has_it_is_found() {
    for bucket_goes in [true, false] {
        let bed = Bed::new();
        let store = &bed.store;
        let disk = store.disk_access().unwrap().unwrap();
        let entry = disk.map.probe(0, b"disk").unwrap().unwrap();
        let mut moved = false;
        let look = store.look_on_disk(disk, b"disk", |found| {
            let look = store.state(b"disk")?;
            if !std::mem::replace(&mut moved, true) {
                assert!(found.is_none() && look == Look::Missing);
                assert_eq!(promote(store, &[b"disk"]), [Ok(true)]);
                bed.with(|master| match bucket_goes {
                    true => master.end_bucket(1, &[entry.entry.fingerprint]).map(|ended| assert_eq!(ended, 1)),
                    false => master.end_entry(entry.index, entry.word).map(|ended| assert!(ended)),
                });
            }
            Ok(Some(look))
        });
        assert!(matches!(look.unwrap(), Look::Ready(_)), "{bucket_goes}");
        assert_eq!(get(store, b"disk").unwrap(), VALUE);
    }
}

/// It comes into memory behind the search through memory, and leaves the disk before the search there.
#[test]
fn a_removal_by_prefix_leaves_nothing_that_moves_into_memory_meanwhile() {
    let bed = Bed::new();
    put(&bed.store, b"dismissed", b"d");
    let (store, host) = (bed.store.share(), Arc::clone(&bed.host));
    let entry = bed.store.disk_access().unwrap().unwrap().map.probe(0, b"disk").unwrap().unwrap().entry;
    *bed.disk.then.lock() = Some(Box::new(move || {
        assert_eq!(promote(&store, &[b"disk"]), [Ok(true)]);
        assert_eq!(host.with(|master| master.end_bucket(1, &[entry.fingerprint])).unwrap(), 1);
    }));
    assert_eq!(bed.store.remove_by_prefix(b"dis").unwrap(), 2);
    assert_eq!(bed.store.presence(b"disk").unwrap(), Presence::Absent);
    assert_eq!(bed.store.remove_by_prefix(b"dis").unwrap(), 0);
}

/// Others cost those who look nothing: what was written while it was in memory, and what has left memory again.
#[test]
fn only_what_came_back_from_a_bucket_is_counted_when_that_goes() {
    let bed = Bed::new();
    let (store, map) = (&bed.store, Arc::clone(&bed.store.disk_access().unwrap().unwrap().map));
    let goes = |key: &[u8]| {
        let found = map.probe(0, key).unwrap().unwrap().entry;
        assert_eq!(bed.with(|master| master.end_bucket(found.spot.bucket, &[found.fingerprint])), 1);
        crate::sync::disk_entry::moves_of_same(map.view().header().moved.load(SeqCst))
    };
    put(store, b"ahead", b"a");
    bed.write(&bed.next(Scope::All), 2);
    assert_eq!(goes(b"ahead"), 0);
    put(store, b"left", b"l");
    bed.write(&bed.next(Scope::All), 3);
    bed.evict_all();
    assert_eq!(store.presence(b"left").unwrap(), Presence::OnDisk);
    assert_eq!(promote(store, &[b"left"]), [Ok(true)]);
    bed.evict_all();
    assert_eq!(goes(b"left"), 0);
    assert_eq!(promote(store, &[b"disk"]), [Ok(true)]);
    store.retain(b"disk", Keep { retain: Retain::Hard, priority: 1, ttl_ms: 0 }).unwrap();
    assert_eq!(goes(b"disk"), 1);
}

/// Control: with a count of that kind it tries again, but not for ever.
#[test]
fn a_removal_by_prefix_gives_up_when_values_move_all_the_time() {
    let bed = Bed::new();
    let map = Arc::clone(&bed.store.disk_access().unwrap().unwrap().map);
    let again: Again = Arc::default();
    *again.lock() = Some(Box::new({
        let (again, disk) = (Arc::clone(&again), Arc::clone(&bed.disk));
        move || {
            crate::sync::disk_entry::count_move(&map.view().header().moved, crate::sync::disk_entry::Move::Same);
            let again = Arc::clone(&again);
            *disk.then.lock() = Some(Box::new(move || again.lock().as_ref().unwrap()()));
        }
    }));
    again.lock().as_ref().unwrap()();
    assert_eq!(bed.store.remove_by_prefix(b"none").unwrap_err().status, NMC_ERR_BUSY);
    *again.lock() = None;
}

type Again = Arc<Mutex<Option<Box<dyn Fn() + Send>>>>;

/// Memory is full of values that are nowhere else.
#[test]
fn what_comes_back_by_itself_costs_nothing_that_only_memory_has() {
    for quota in [None, Some(64 * 4096)] {
        let full = Config { max_objects: Some(4096), high_permille: 1000, low_permille: 1000, ..config() };
        // More than are passed over for one that is on disk.
        let world = crate::world::Config { heap_bytes: 100 * 4096, ..world() };
        let (bed, small) = (Bed::in_world(&world, &full), Space { number: 1, generation: 0 });
        let there = record(b"disk", small, 40, (1, 0), VALUE.len() as u64, 9);
        bed.attach(&[(b"", DEFAULT), (b"small", small)], &[there]);
        bed.disk.values.lock().insert(Spot { bucket: 1, block: 0 }, VALUE.to_vec());
        let store = bed.store.namespace(b"small", quota).unwrap();
        let lost = || bed.with(|master| Ok(master.disk_counts().unwrap())).evicted_dirty;
        for i in 0..2000u32 {
            put_with(&store, &i.to_le_bytes(), &[7; 4096], &PutOptions { rank: Some(0), ..PutOptions::DEFAULT })
                .unwrap();
        }
        let before = lost();
        assert!(before > 0);
        store.promote_gently(&[b"disk"], 0, |_, came| assert!(!matches!(came, Ok(true))));
        assert_eq!((lost(), store.presence(b"disk").unwrap()), (before, Presence::OnDisk));
        // When some of it is on disk, that makes room. Control: who asks for it gets it in any case.
        assert_eq!(promote(&store, &[b"disk"]), [Ok(true)]);
        assert!(lost() > before);
    }
}
