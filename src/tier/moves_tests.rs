//! What comes back into memory, and what leaves the disk, in one process: a real store over a real directory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::config::{Backend, Config, Evict};
use super::facade::Tier;
use super::format;
use super::test_store::{PAGE, config, evict, get, put, store, try_put, value, where_is};
use super::tests::open;
use crate::base::status::{NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND};
use crate::store::Store;
use crate::store::disk::{Admission, Happened};
use crate::store::test_store::eventually;
use crate::store::types::Presence;
use std::time::Duration;

const BYTES: usize = 32 << 10;

fn prefetch(tier: &Tier, keys: &[&str]) -> Vec<std::result::Result<bool, i32>> {
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let mut results = vec![Err(0); keys.len()];
    tier.prefetch(&keys, |number, came| results[number] = came.map_err(|error| error.status));
    results
}

fn fill(store: &Store, tier: &Tier, count: u64) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|i| format!("k{i}")).collect();
    for (key, i) in keys.iter().zip(0..) {
        put(store, key, &value(i, BYTES));
    }
    tier.offload(None).unwrap();
    keys
}

#[test]
fn prefetched_values_are_in_memory_whatever_their_size_and_removed_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &config(&dir));
    let sizes = [0, 1, 3000, 4096, 4097, 65_537, 300_000];
    for (size, i) in sizes.iter().zip(0..) {
        put(&store, &format!("s{i}"), &value(i, *size));
    }
    tier.offload(None).unwrap();
    evict(&store);
    store.remove(b"s2").unwrap();
    let keys: Vec<String> = (0..sizes.len()).map(|i| format!("s{i}")).chain(["none".into()]).collect();
    let results = prefetch(&tier, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let read = tier.stats().unwrap().read_objects;
    for (i, size) in sizes.iter().enumerate().filter(|(i, _)| *i != 2) {
        assert_eq!(results[i], Ok(true), "{size}");
        assert_eq!(where_is(&store, &keys[i]), Presence::Ready, "{size}");
        assert_eq!(get(&store, &keys[i]).unwrap(), value(i as u64, *size), "{size}");
    }
    assert_eq!((results[2], results[7]), (Err(NMC_ERR_NOT_FOUND), Err(NMC_ERR_NOT_FOUND)));
    assert_eq!(tier.stats().unwrap().read_objects, read, "all of it from memory");
    assert_eq!(tier.offload(None).unwrap(), 0, "what came from disk is not written again");
    evict(&store);
    assert_eq!(tier.stats().unwrap().evicted_dirty, 0);
    assert_eq!(get(&store, "s5").unwrap(), value(5, 65_537));
}

#[test]
fn values_that_are_read_often_come_back_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { promote_after: 2, ..config(&dir) });
    fill(&store, &tier, 4);
    evict(&store);
    get(&store, "k0").unwrap();
    get(&store, "k1").unwrap();
    get(&store, "k1").unwrap();
    assert!(eventually(|| where_is(&store, "k1") == Presence::Ready));
    assert_eq!(where_is(&store, "k0"), Presence::OnDisk, "it was read once");
    assert!(eventually(|| tier.stats().unwrap().promoted == 1));
    assert_eq!(get(&store, "k1").unwrap(), value(1, BYTES));
}

#[test]
fn a_full_disk_lets_the_oldest_buckets_go_and_what_is_left_is_right() {
    let all = [Backend::Bucket, Backend::File, Backend::Offset];
    for (backend, by) in all.into_iter().flat_map(|backend| [(backend, Evict::Fifo), (backend, Evict::Lru)]) {
        let dir = tempfile::tempdir().unwrap();
        let store = store();
        let limit = 700 << 10;
        let config = Config { capacity_bytes: limit, bucket_keys: 4, evict: by, events: true, backend, ..config(&dir) };
        let tier = open(&store, &config);
        for round in 0..4u64 {
            for i in 0..8 {
                put(&store, &format!("{round}/{i}"), &value(round * 8 + i, BYTES));
            }
            assert_eq!(tier.offload(None).unwrap(), 8, "{backend:?} {by:?}");
            evict(&store);
            if by == Evict::Lru {
                // Stamps are 64 ms apart.
                std::thread::sleep(Duration::from_millis(200));
                // To be touched is as good as to be read.
                match backend {
                    Backend::File => assert!(store.touch(b"0/0").unwrap()),
                    _ => assert_eq!(get(&store, "0/0").unwrap(), value(0, BYTES)),
                }
            }
        }
        evict(&store);
        let stats = tier.stats().unwrap();
        assert!(stats.file_bytes <= limit && stats.evicted > 0 && stats.errors == 0, "{backend:?} {by:?} {stats:?}");
        assert_eq!(stats.objects + stats.evicted, 32, "{backend:?} {by:?}");
        let there = |round: u64, i: u64| get(&store, &format!("{round}/{i}"));
        for (round, i) in (0..4).flat_map(|round| (0..8).map(move |i| (round, i))) {
            assert!(there(round, i).is_none_or(|found| found == value(round * 8 + i, BYTES)), "{backend:?} {by:?}");
        }
        assert!(there(3, 0).is_some(), "{backend:?} {by:?}: the newest stays");
        assert_eq!(there(0, 0).is_some(), by == Evict::Lru, "the oldest goes, unless it is read");
        // Everything that happened is told, in order.
        let (mut stored, mut evicted) = (Vec::new(), Vec::new());
        while let Some(event) = tier.next_event().unwrap() {
            assert_eq!(event.lost, 0);
            let list = if event.happened == Happened::Stored { &mut stored } else { &mut evicted };
            list.extend(event.values.into_iter().map(|(_, key, bytes)| (key, bytes)));
        }
        assert_eq!((stored.len() as u64, evicted.len() as u64), (32, stats.evicted), "{backend:?} {by:?}");
        assert!(evicted.iter().all(|(key, bytes)| *bytes == BYTES as u64 && !there_now(&store, key)));
        // It is as if they had never been there, also after a restart.
        put(&store, std::str::from_utf8(&evicted[0].0).unwrap(), b"anew");
        let left = tier.evict(0).unwrap();
        assert_eq!(left, stats.objects, "{backend:?} {by:?}");
        let stats = tier.stats().unwrap();
        assert_eq!((stats.objects, stats.buckets, stats.file_bytes), (0, 0, 0), "{backend:?} {by:?}");
        drop(tier);
        let tier = open(&store, &config);
        assert_eq!(tier.stats().unwrap().recovered_objects, 0, "{backend:?} {by:?}");
    }
}

fn there_now(store: &Store, key: &[u8]) -> bool {
    store.exists(key).unwrap()
}

#[test]
fn a_disk_that_holds_less_than_memory_is_not_written_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let config = Config { capacity_bytes: 300 << 10, bucket_keys: 4, evict: Evict::Fifo, ..config(&dir) };
    let tier = open(&store, &Config { paused: false, heartbeat_ms: 2, ..config });
    for i in 0..60 {
        put(&store, &format!("k{i}"), &value(i, BYTES));
    }
    let written = tier.offload(None).unwrap();
    assert!((4..120).contains(&written), "{written}");
    // When everything has calmed down, nothing is written any more.
    let mut before = 0;
    let calm = eventually(|| {
        std::thread::sleep(Duration::from_millis(50));
        let now = tier.stats().unwrap().written_objects;
        std::mem::replace(&mut before, now) == now
    });
    assert!(calm);
    (0..60).for_each(|i| assert_eq!(get(&store, &format!("k{i}")).unwrap(), value(i, BYTES)));
}

#[test]
fn an_index_that_is_full_lets_the_oldest_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { max_objects: 64, bucket_keys: 16, evict: Evict::Fifo, ..config(&dir) });
    for round in 0..4u64 {
        for i in 0..32 {
            put(&store, &format!("{round}/{i}"), &value(round, 100));
        }
        assert_eq!(tier.offload(None).unwrap(), 32);
        evict(&store);
    }
    let stats = tier.stats().unwrap();
    assert!(stats.objects <= 64 && stats.evicted >= 64 && stats.evicted_dirty == 0, "{stats:?}");
    assert_eq!(get(&store, "3/31").unwrap(), value(3, 100));
    assert_eq!(get(&store, "0/0"), None);
}

#[test]
fn what_is_evicted_from_disk_but_in_memory_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &config(&dir));
    let keys = fill(&store, &tier, 4);
    assert_eq!(tier.evict(0).unwrap(), 4, "by order, whatever the config says");
    assert_eq!(tier.stats().unwrap().objects, 0);
    assert_eq!(get(&store, &keys[0]).unwrap(), value(0, BYTES), "memory has it");
    assert_eq!(tier.offload(None).unwrap(), 4);
    evict(&store);
    assert_eq!(get(&store, &keys[3]).unwrap(), value(3, BYTES));
}

#[test]
fn writing_ahead_is_held_back_by_class_and_rate_and_goes_on_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let admission = Admission { priority: 1, ..Admission::default() };
    let tier = open(&store, &Config { paused: false, heartbeat_ms: 2, admission, ..config(&dir) });
    for i in 0..60 {
        put(&store, &format!("k{i}"), &value(i, BYTES));
    }
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(tier.stats().unwrap().written_objects, 0, "none has that priority");
    }
    drop(tier);
    let slow = Config { paused: false, heartbeat_ms: 2, write_bytes_per_s: 64 << 20, ..config(&dir) };
    let tier = open(&store, &slow);
    // More comes when the time for what was written has passed.
    let first = tier.stats().unwrap().written_objects;
    assert!(eventually(|| tier.stats().unwrap().written_objects > first.max(1)));
    tier.evict(0).unwrap();
}

/// The heap is far from full: only the namespace is.
#[test]
fn what_a_quota_is_about_to_evict_is_written_ahead_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { paused: false, heartbeat_ms: 2, ..config(&dir) });
    put(&store, "else", &value(99, 5000));
    let small = store.namespace(b"small", Some(20 * u64::from(PAGE))).unwrap();
    for i in 0..40 {
        put(&small, &format!("k{i}"), &value(i, 3000));
        assert!(eventually(|| tier.stats().unwrap().written_objects + 6 > i), "{i}: {:?}", tier.stats());
    }
    assert_eq!(tier.stats().unwrap().evicted_dirty, 0);
    for i in 0..40 {
        assert_eq!(get(&small, &format!("k{i}")).unwrap(), value(i, 3000), "{i}");
    }
    assert_eq!(where_is(&small, "k0"), Presence::OnDisk);
    assert_eq!(where_is(&small, "k39"), Presence::Ready);
}

#[test]
fn a_put_that_writes_through_is_on_disk_when_it_returns_and_many_share_a_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { write_through: true, ..config(&dir) });
    put(&store, "one", &value(1, BYTES));
    assert_eq!(tier.stats().unwrap().objects, 1);
    try_put(&store, "one", &value(2, 100), true).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let store = store.share();
            scope.spawn(move || {
                for i in 0..8 {
                    put(&store, &format!("{thread}/{i}"), &value(thread * 8 + i, 1000));
                    // What it waited for is there, whatever others do.
                    assert_eq!(get(&store, &format!("{thread}/{i}")).unwrap(), value(thread * 8 + i, 1000));
                }
            });
        }
    });
    let stats = tier.stats().unwrap();
    assert_eq!((stats.objects, stats.written_objects), (65, 66));
    assert!(stats.written_buckets < 66, "{stats:?}");
    evict(&store);
    assert_eq!(tier.stats().unwrap().evicted_dirty, 0);
    assert_eq!(get(&store, "one").unwrap(), value(2, 100));
    // Everything is there after the process has died: the tier is not closed in order.
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&config(&dir).directory).unwrap() {
        let file = file.unwrap();
        std::fs::create_dir_all(copy.path().join("tier")).unwrap();
        std::fs::copy(file.path(), copy.path().join("tier").join(file.file_name())).unwrap();
    }
    let other = super::test_store::store();
    let _tier = open(&other, &config(&copy));
    assert_eq!(get(&other, "7/7").unwrap(), value(63, 1000));
    assert_eq!(get(&other, "one").unwrap(), value(2, 100));
}

/// The control: without it a put does not wait.
#[test]
fn a_put_that_does_not_write_through_is_in_memory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &config(&dir));
    put(&store, "one", b"v");
    assert_eq!(tier.stats().unwrap().objects, 0);
}

#[test]
fn an_index_that_is_full_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { max_objects: 4, ..config(&dir) });
    (0..4).for_each(|i| put(&store, &format!("k{i}"), b"v"));
    assert_eq!(tier.offload(None).unwrap(), 4);
    assert_eq!(tier.offload(None).unwrap(), 0, "all of it is there");
    put(&store, "one more", b"v");
    for keys in [None, Some(&[b"one more".as_slice()][..])] {
        assert_eq!(tier.offload(keys).unwrap_err().status, NMC_ERR_NO_SPACE);
    }
}

#[test]
fn a_closed_tier_lets_its_directory_go_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &config(&dir));
    fill(&store, &tier, 2);
    evict(&store);
    get(&store, "k0").unwrap();
    // Somebody is still in a call.
    let held = store.host().unwrap().disk_owner();
    drop(tier);
    let path = config(&dir).directory;
    let ours = |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&path));
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(ours).count();
    assert!(open_files() > 0, "control: whoever holds it has it open");
    let again = open(&store, &config(&dir));
    drop((held, again));
    assert_eq!(open_files(), 0);
    assert_eq!(get(&store, "k0"), None);
}

/// Files of a directory that are deleted and open.
fn deleted_and_open(config: &Config) -> usize {
    let ours = |fd: std::fs::DirEntry| {
        let to = std::fs::read_link(fd.path()).map(|to| to.to_string_lossy().into_owned()).unwrap_or_default();
        to.starts_with(&*config.directory.to_string_lossy()) && to.ends_with("(deleted)")
    };
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(ours).filter(|is| *is).count()
}

#[test]
fn space_comes_back_soon_at_sync_when_it_is_needed_and_when_it_is_closed() {
    for backend in [Backend::Bucket, Backend::File, Backend::Offset] {
        let dir = tempfile::tempdir().unwrap();
        let store = store();
        // The next beat is far away.
        let config =
            Config { backend, capacity_bytes: 1 << 20, bucket_keys: 4, heartbeat_ms: 3_600_000, ..config(&dir) };
        let tier = open(&store, &config);
        let remove = |keys: &[String]| keys.iter().for_each(|key| store.remove(key.as_bytes()).unwrap());
        remove(&fill(&store, &tier, 16));
        assert!(eventually(|| tier.stats().unwrap().file_bytes == 0), "{backend:?}: by itself");
        assert!(eventually(|| deleted_and_open(&config) == 0), "{backend:?}");
        for _ in 0..6 {
            // More than fits, if what is dead stayed; a part of every bucket lives.
            let keys = fill(&store, &tier, 16);
            remove(&keys[1..]);
            store.remove(keys[0].as_bytes()).unwrap();
        }
        let keys = fill(&store, &tier, 8);
        remove(&keys[..2]);
        tier.sync().unwrap();
        let stats = tier.stats().unwrap();
        assert!(stats.file_bytes <= 9 * (BYTES as u64 + 8192), "{backend:?} {stats:?}");
        remove(&keys[2..]);
        drop(tier);
        let tier = open(&store, &config);
        assert_eq!((tier.stats().unwrap().buckets, tier.stats().unwrap().recovered_dead), (0, 0), "{backend:?}");
    }
}

#[test]
fn a_verification_tells_of_what_it_could_not_read_and_looks_at_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let config = Config { bucket_keys: 4, ..config(&dir) };
    let tier = open(&store, &config);
    fill(&store, &tier, 12);
    evict(&store);
    let mut spots = Vec::new();
    tier.scan(&mut |found| {
        spots.push(found.spot.0);
        true
    })
    .unwrap();
    let path = |bucket: u64| config.directory.join(format::bucket_name(bucket));
    std::fs::remove_file(path(spots[0])).unwrap();
    std::fs::create_dir(path(spots[0])).unwrap();
    let (found, why) = tier.verify(&mut |_, _| true).unwrap();
    assert_eq!((found.objects, found.corrupt, found.unreadable), (8, 0, 4), "{why:?}");
    assert!(why.is_some());
    assert!(tier.scan(&mut |_| true).is_err());
    // What is not there at all is given up.
    std::fs::remove_dir(path(spots[0])).unwrap();
    let (found, why) = tier.verify(&mut |_, _| true).unwrap();
    assert_eq!((found.objects, found.corrupt, found.unreadable), (8, 4, 0), "{why:?}");
    assert_eq!(tier.stats().unwrap().objects, 8);
}

/// What is damaged and still there takes a part of the capacity that no eviction gives back.
#[test]
fn room_is_made_beside_what_is_damaged_and_nothing_goes_where_that_leaves_too_little() {
    for (room, fits) in [(100 << 10, true), (60 << 10, false)] {
        let dir = tempfile::tempdir().unwrap();
        let store = store();
        let plain = Config { bucket_keys: 4, ..config(&dir) };
        let tier = open(&store, &plain);
        fill(&store, &tier, 8);
        drop(tier);
        let bucket = plain.directory.join(format::bucket_name(1));
        let bytes = std::fs::metadata(&bucket).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&bucket).unwrap().set_len(bytes - 4096).unwrap();
        evict(&store);
        let capacity_bytes = bytes - 4096 + room;
        let tier = open(&store, &Config { capacity_bytes, evict: Evict::Fifo, ..plain });
        let before = tier.stats().unwrap();
        assert_eq!((before.torn, before.objects, before.file_bytes), (1, 4, 2 * bytes - 4096));
        // Two values, which are 80 KiB.
        put(&store, "a", &value(1, BYTES));
        put(&store, "b", &value(2, BYTES));
        let written = tier.offload(None);
        let stats = tier.stats().unwrap();
        match fits {
            true => assert!(written == Ok(2) && stats.evicted == 4 && stats.file_bytes <= capacity_bytes, "{stats:?}"),
            false => assert!(written.unwrap_err().status == NMC_ERR_NO_SPACE && stats.objects == 4, "{stats:?}"),
        }
    }
}
