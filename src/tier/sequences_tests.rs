//! Sequences of events that once broke a promise: each was found by reading or attacking, and has its test here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::config::{Backend, Config, Evict};
use super::directory::{Directory, Source};
use super::format::{self, Head};
use super::io::Disk as _;
use super::io::sim::{Fault, Random, SimDisk};
use super::test_store::{config, evict, get, put, store, try_put, value, where_is};
use super::tests::open;
use super::{io, journal, recovery};
use crate::base::error::Result;
use crate::base::over::Over;
use crate::base::status::{NMC_ERR_IO, NMC_ERR_NO_SPACE, NMC_ERR_STALE};
use crate::layout::disk::Space;
use crate::store::disk::{Mark, SpaceName, Stored, ToWrite};
use crate::store::types::{Presence, PutOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const BYTES: usize = 32 << 10;
const ALL: [Backend; 3] = [Backend::Bucket, Backend::File, Backend::Offset];

#[test]
fn a_promoted_value_stays_on_disk_when_the_tier_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = store();
        let tier = open(&store, &config(&dir));
        put(&store, "a", &value(1, 5000));
        put(&store, "b", &value(2, 5000));
        tier.offload(None).unwrap();
        evict(&store);
        tier.prefetch(&[b"a"], |_, came| assert!(came.unwrap()));
        for _ in 0..2 {
            let before = tier.stats().unwrap().objects;
            assert_eq!(before, 2);
        }
        drop(tier);
        let tier = open(&store, &config(&dir));
        assert_eq!((tier.stats().unwrap().objects, where_is(&store, "a")), (2, Presence::Ready));
        assert_eq!(tier.offload(None).unwrap(), 0, "it is the same value, and need not be written");
        // Another directory has nothing to do with where it came from.
        drop(tier);
        let elsewhere = tempfile::tempdir().unwrap();
        let tier = open(&store, &config(&elsewhere));
        assert_eq!(tier.offload(None).unwrap(), 1);
    }
    let store = store();
    let _tier = open(&store, &config(&dir));
    assert!(get(&store, "a").unwrap() == value(1, 5000));
    assert!(get(&store, "b").unwrap() == value(2, 5000));
}

#[test]
fn an_open_plan_does_not_end_what_the_disk_has_of_its_key() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = store();
        let tier = open(&store, &config(&dir));
        put(&store, "a", &value(1, 5000));
        tier.offload(None).unwrap();
    }
    let store = store();
    let (plan, _) = store.open_for_write(b"a", 10, &PutOptions::DEFAULT).unwrap();
    let _tier = open(&store, &config(&dir));
    assert!(get(&store, "a").unwrap() == value(1, 5000));
    assert_eq!(store.commit(&plan).unwrap_err().status, NMC_ERR_STALE, "its writer comes too late");
    assert!(get(&store, "a").unwrap() == value(1, 5000));
}

#[test]
fn a_full_index_makes_room_for_those_who_wait_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let config = Config { max_objects: 64, bucket_keys: 16, evict: Evict::Fifo, write_through: true, ..config(&dir) };
    let tier = open(&store, &config);
    (0..200).for_each(|i| try_put(&store, &format!("k{i}"), &value(i, 100), false).unwrap());
    let stats = tier.stats().unwrap();
    assert!(stats.objects <= 64 && stats.evicted >= 136, "{stats:?}");
}

/// What was written left the disk again before its writer looked, which was told that the disk had failed; or the answer was lost among
/// those to others.
#[test]
fn puts_that_are_written_through_succeed_beside_evictions() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { write_through: true, ..config(&dir) });
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(SeqCst) {
                tier.evict(0).unwrap();
            }
        });
        let put = |i: u64| try_put(&store, &format!("k{}", i % 50), &value(i, 5000), true);
        let failed: Vec<_> = (0..400).filter_map(|i| put(i).err()).collect();
        assert!(failed.is_empty(), "{} of 400: {}", failed.len(), failed[0]);
    });
}

#[test]
fn a_commit_that_is_repeated_waits_for_the_disk_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { max_objects: 2, write_through: true, ..config(&dir) });
    put(&store, "a", b"1");
    put(&store, "b", b"1");
    let (plan, _) = store.open_for_write(b"c", 10, &PutOptions::DEFAULT).unwrap();
    for _ in 0..3 {
        assert!([NMC_ERR_NO_SPACE, NMC_ERR_IO].contains(&store.commit(&plan).unwrap_err().status));
    }
    store.remove(b"a").unwrap();
    store.commit(&plan).unwrap();
    assert_eq!(tier.stats().unwrap().objects, 2);
}

/// Whether a descriptor, which counts events, is readable.
fn is_readable(fd: i32) -> bool {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap().trim().to_owned();
    u64::from_str_radix(&count, 16).unwrap() > 0
}

#[test]
fn the_descriptor_of_events_is_readable_only_while_there_are_some() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let config = Config { events: true, ..config(&dir) };
    let tier = open(&store, &config);
    assert!(!is_readable(store.event_fd()));
    put(&store, "a", b"1");
    tier.offload(None).unwrap();
    assert!(is_readable(store.event_fd()));
    store.completions(10, |_| ());
    assert!(is_readable(store.event_fd()), "they are not taken");
    drop(tier);
    assert!(!is_readable(store.event_fd()), "nobody can take them any more");
    let tier = open(&store, &config);
    assert!(tier.next_event().unwrap().is_none() && !is_readable(store.event_fd()));
    for key in ["b", "c"] {
        put(&store, key, b"1");
        tier.offload(None).unwrap();
    }
    assert!(is_readable(store.event_fd()) && tier.next_event().unwrap().is_some());
    assert!(is_readable(store.event_fd()), "there is another one");
    assert!(tier.next_event().unwrap().is_some() && !is_readable(store.event_fd()));
}

#[test]
fn what_is_dead_goes_before_anything_that_lives() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let config = Config {
        capacity_bytes: 1 << 20,
        evict: Evict::Fifo,
        write_through: true,
        heartbeat_ms: 3_600_000,
        ..config(&dir)
    };
    let tier = open(&store, &config);
    put(&store, "old", &value(1, 1000));
    evict(&store);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = store.share();
            scope.spawn(move || {
                (0..150).for_each(|n| try_put(&store, &format!("w{thread}"), &value(n, 4000), true).unwrap());
            });
        }
    });
    let stats = tier.stats().unwrap();
    assert_eq!((stats.evicted, stats.objects), (0, 5), "{stats:?}");
    assert!(get(&store, "old").unwrap() == value(1, 1000));
}

#[test]
fn a_small_value_makes_no_more_go_than_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { capacity_bytes: 1 << 20, bucket_keys: 2, evict: Evict::Fifo, ..config(&dir) });
    (0..24).for_each(|i| put(&store, &format!("k{i}"), &value(i, BYTES)));
    tier.offload(None).unwrap();
    evict(&store);
    let before = tier.stats().unwrap();
    put(&store, "small", b"x");
    assert_eq!(tier.offload(Some(&[b"small".as_slice()])).unwrap(), 1);
    assert!(tier.stats().unwrap().evicted - before.evicted <= 2);
}

#[test]
fn whoever_names_more_than_the_disk_holds_hears_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { capacity_bytes: 300 << 10, bucket_keys: 2, evict: Evict::Fifo, ..config(&dir) });
    let keys: Vec<String> = (0..24).map(|i| format!("k{i}")).collect();
    keys.iter().zip(0..).for_each(|(key, i)| put(&store, key, &value(i, BYTES)));
    let names: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    assert_eq!(tier.offload(Some(&names)).unwrap_err().status, NMC_ERR_NO_SPACE);
    assert_eq!(tier.offload(Some(&names[20..22])).unwrap(), 2, "what fits");
}

#[test]
fn a_damaged_list_ends_its_values_and_no_others() {
    for backend in ALL {
        let dir = tempfile::tempdir().unwrap();
        let store = store();
        let config = Config { bucket_keys: 2, backend, capacity_bytes: 64 << 20, ..config(&dir) };
        let tier = open(&store, &config);
        (0..6).for_each(|i| put(&store, &format!("k{i}"), &value(i, 3000)));
        tier.offload(None).unwrap();
        evict(&store);
        let (file, at) = match backend {
            Backend::File => (config.directory.join("01/0000000000000001.keys/list"), 20),
            Backend::Offset => (config.directory.join("kv_cache.data"), 2 * 4096 + 60),
            _ => (config.directory.join(format::bucket_name(1)), 2 * 4096 + 20),
        };
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[at] ^= 0xff;
        use std::os::unix::fs::FileExt as _;
        std::fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(&bytes[at..=at], at as u64).unwrap();
        let (found, why) = tier.verify(&mut |_, _| true).unwrap();
        assert_eq!((found.objects, found.corrupt, found.unreadable), (4, 2, 0), "{backend:?} {why:?}");
    }
}

#[test]
fn a_batch_over_many_files_takes_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { backend: Backend::File, ..config(&dir) });
    let keys: Vec<String> = (0..300).map(|i| format!("k{i}")).collect();
    keys.iter().zip(0..).for_each(|(key, i)| put(&store, key, &value(i, 100)));
    tier.offload(None).unwrap();
    evict(&store);
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    let mut buffers = vec![[0u8; 100]; keys.len()];
    let slices: Vec<_> = buffers.iter_mut().map(|buffer| [crate::store::copy::Slice::of_test_mut(buffer)]).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let over = Over(&done);
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(SeqCst) {
                most = most.max(open_files());
            }
            most
        });
        let item = |i: usize| Ok((keys[i].as_bytes(), crate::store::copy::Pieces::Slices(&slices[i][..])));
        for _ in 0..5 {
            store.get_many_into(keys.len(), item, |i, got| assert!(got.is_ok(), "{i}"));
        }
        drop(over);
        watch.join().unwrap()
    });
    assert!(most < before + 220, "{most} after {before}; other tests have files open, too");
    assert!(buffers.iter().zip(0..).all(|(buffer, i)| buffer[..] == value(i, 100)));
}

#[test]
fn a_put_that_waits_for_the_disk_is_not_evicted_before_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { write_through: true, ..config(&dir) });
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stored = std::thread::scope(|scope| {
        let over = Over(&stop);
        let evictor = scope.spawn(|| {
            while !stop.load(SeqCst) {
                store.evict_until_below(0, 0).unwrap();
            }
        });
        let threads: Vec<_> = (0..6u64)
            .map(|thread| {
                let store = store.share();
                scope.spawn(move || {
                    let put =
                        |i: &u64| try_put(&store, &format!("{thread}/{i}"), &value(thread * 100 + i, 100_000), false);
                    (0..12).filter(|i| put(i).is_ok()).map(|i| (thread, i)).collect::<Vec<_>>()
                })
            })
            .collect();
        let stored: Vec<(u64, u64)> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        drop(over);
        evictor.join().unwrap();
        stored
    });
    assert!(!stored.is_empty());
    for (thread, i) in stored {
        let found = get(&store, &format!("{thread}/{i}"));
        assert!(found.is_some_and(|found| found == value(thread * 100 + i, 100_000)), "{thread}/{i}");
    }
    assert_eq!(tier.stats().unwrap().corrupt, 0);
}

#[test]
fn what_is_not_admitted_goes_first_and_hides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let admission = crate::store::disk::Admission { priority: 1, ..crate::store::disk::Admission::default() };
    let tier = open(&store, &Config { paused: false, heartbeat_ms: 2, admission, ..config(&dir) });
    let bytes = value(0, BYTES);
    for i in 0..160u32 {
        let keep = crate::store::types::Keep { priority: i % 2, ..crate::store::types::Keep::DEFAULT };
        let options = PutOptions { keep, ..PutOptions::DEFAULT };
        crate::store::test_store::put(&store, format!("{}/{i}", i % 2).as_bytes(), &bytes, &options).unwrap();
        // Time for the disk, as far as it needs some.
        std::thread::sleep(Duration::from_millis(10));
    }
    let there =
        |class: u32| (0..160).filter(|i| i % 2 == class && get(&store, &format!("{class}/{i}")).is_some()).count();
    // The disk may be slow; but it is those that it has.
    assert!(there(1) > there(0), "{} of 80 that are worth it, {} of the others", there(1), there(0));
    let mut keys = Vec::new();
    tier.scan(&mut |found| {
        keys.push(found.key[0]);
        true
    })
    .unwrap();
    assert!(!keys.is_empty() && keys.iter().all(|class| *class == b'1'));
}

#[test]
fn what_has_room_in_the_index_is_written_before_it_is_told_that_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { max_objects: 20, ..config(&dir) });
    (0..30).for_each(|i| put(&store, &format!("k{i}"), b"v"));
    assert_eq!(tier.offload(None).unwrap_err().status, NMC_ERR_NO_SPACE);
    assert_eq!(tier.stats().unwrap().objects, 20);
}

#[test]
fn a_store_of_another_namespace_has_a_handle_in_the_owners_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &config(&dir));
    let space = store.namespace(b"other", None).unwrap();
    put(&space, "k", b"v");
    tier.offload(None).unwrap();
    evict(&store);
    let handle = open(&space, &Config::default());
    assert!(!handle.is_owner());
    handle.prefetch(&[b"k"], |_, came| assert!(came.unwrap()));
    assert_eq!(where_is(&space, "k"), Presence::Ready);
    assert_eq!(handle.offload(Some(&[b"k".as_slice()])).unwrap(), 0);
    drop(handle);
    assert_eq!(tier.stats().unwrap().objects, 1, "the tier stays");
}

// ---- on a simulated disk ---------------------------------------------------------------------------------------------

struct Sevens;

impl Source for Sevens {
    fn read(&self, _: &ToWrite, _: u64, to: &mut [u8]) -> Result<()> {
        to.fill(7);
        Ok(())
    }
}

const SPACE: Space = Space { number: 0, generation: 0 };

fn item(i: u32) -> ToWrite {
    let class = (crate::store::types::Retain::None, 0);
    let (key, metadata) = (format!("key{i}").into_bytes(), Vec::new());
    let epoch = u64::from(i) + 1;
    ToWrite { index: i, epoch, namespace: 0, space: SPACE, key, metadata, bytes: 100, rank: 0, class, put: epoch }
}

fn directory(sim: &SimDisk, backend: Backend) -> (Directory, recovery::Recovered) {
    let config = Config { backend, capacity_bytes: 1 << 20, durable_remove: true, ..Config::default() };
    let head = || Ok(Head { tier_id: 5, secret: [7; 32], backend: 0, created: 1 });
    Directory::open(Arc::new(sim.clone()), &config, head, &mut |_, _| ()).unwrap()
}

/// A directory with these values.
fn filled(sim: &SimDisk, backend: Backend, count: u32) -> (Directory, Vec<Stored>) {
    let (directory, _) = directory(sim, backend);
    directory.note(&[Mark::Namespace(SpaceName::new(b"").unwrap(), SPACE)]);
    directory.settle(true).unwrap();
    let items: Vec<_> = (0..count).map(item).collect();
    let stored = directory.write(&items, 9, &Sevens, &mut |places| Ok(vec![true; places.len()])).unwrap();
    stored.iter().for_each(|stored| directory.entered(stored.entry.spot.bucket));
    (directory, stored)
}

#[test]
fn of_two_removals_that_are_written_together_none_succeeds_if_that_fails() {
    let sim = SimDisk::new();
    let (directory, stored) = filled(&sim, Backend::Bucket, 2);
    let dead = |n: usize| Mark::Dead { spot: stored[n].entry.spot, entered: true };
    let all = 500;
    (0..all).for_each(|n| sim.fail_at(n, Fault::Enospc));
    directory.note(&[dead(0)]);
    directory.note(&[dead(1)]);
    assert!(directory.settle(true).is_err() && directory.settle(true).is_err());
    assert!(directory.trouble().is_none(), "a full disk is not one that refuses");
    // When there is room again, they are written by whoever comes next.
    (0..600).for_each(|_| _ = directory.settle(true));
    directory.settle(true).unwrap();
    assert_eq!(self::directory(&sim.kill(), Backend::Bucket).1.found.len(), 0);
}

#[test]
fn a_full_disk_is_not_degraded_by_tidying_or_evicting() {
    for evicts in [false, true] {
        let sim = SimDisk::new();
        let (directory, stored) = filled(&sim, Backend::Bucket, 1);
        let spot = stored[0].entry.spot;
        if !evicts {
            directory.note(&[Mark::Dead { spot, entered: true }]);
            directory.settle(true).unwrap();
        }
        (0..500).for_each(|n| sim.fail_at(n, if evicts { Fault::Full } else { Fault::Enospc }));
        let done = if evicts { directory.condemn(spot.bucket) } else { directory.tidy().map(|_| ()) };
        assert!(directory.trouble().is_none(), "{evicts} {done:?}");
    }
}

#[test]
fn what_the_next_owner_finds_lasts() {
    for backend in [Backend::Bucket, Backend::File] {
        let sim = SimDisk::new();
        filled(&sim, backend, 1);
        // Killed when the bucket had its name, and that was not synced.
        let place: Arc<dyn io::Disk> = match backend {
            Backend::File => sim.folder("01").unwrap(),
            _ => Arc::new(sim.clone()),
        };
        let is_bucket = |name: &str| name.ends_with(".keys") || name.ends_with(".bucket");
        let name = place.list().unwrap().into_iter().map(|file| file.name).find(|name| is_bucket(name)).unwrap();
        place.rename(&name, &format!("{name}.tmp")).unwrap();
        place.sync().unwrap();
        place.rename(&format!("{name}.tmp"), &name).unwrap();
        let killed = sim.kill();
        let (next, recovered) = directory(&killed, backend);
        next.sync().unwrap();
        assert_eq!(recovered.found.len(), 1, "{backend:?}");
        let lost =
            (1..200).filter(|seed| directory(&killed.crash(&mut Random(*seed)), backend).1.found.is_empty()).count();
        assert_eq!(lost, 0, "{backend:?}");
    }
}

#[test]
fn what_is_removed_while_its_bucket_is_evicted_does_not_come_back() {
    for backend in ALL {
        let sim = SimDisk::new();
        let (directory, stored) = filled(&sim, backend, 1);
        let spot = stored[0].entry.spot;
        directory.condemn(spot.bucket).unwrap();
        directory.note(&[Mark::Over { spot }]);
        // A remove of the copy in memory finds no entry, and notes nothing.
        directory.settle(true).unwrap();
        let back = (1..200).filter(|seed| !self::directory(&sim.crash(&mut Random(*seed)), backend).1.found.is_empty());
        assert_eq!(back.count(), 0, "{backend:?}");
    }
}

/// What was to be said and could not be written was said by the next journal, though everybody had been told that it failed; and a
/// bucket that could not be entered there had to be called gone, for which there was no room either.
#[test]
fn a_full_disk_makes_nothing_go_and_degrades_nothing() {
    for backend in ALL {
        let mut refused = (0, 0);
        for marks in 0..12 {
            let sim = SimDisk::new();
            let (directory, stored) = filled(&sim, backend, 2);
            let spot = stored[0].entry.spot;
            directory.note(&[Mark::Dead { spot, entered: true }]);
            // A journal has room for eight records more.
            for number in 0..marks {
                directory.note(&[Mark::Position { term: 1, number }]);
                directory.settle(true).unwrap();
            }
            (0..600).for_each(|n| sim.fail_at(n, Fault::Full));
            let written = directory.write(&[item(5)], 9, &Sevens, &mut |places| Ok(vec![true; places.len()]));
            let condemned = directory.condemn(spot.bucket);
            for error in [written.as_ref().err(), condemned.as_ref().err()].into_iter().flatten() {
                assert_eq!(error.status, NMC_ERR_NO_SPACE, "{error}");
            }
            assert!(directory.trouble().is_none(), "{backend:?} after {marks} marks: {:?}", directory.trouble());
            refused = (refused.0 + u32::from(written.is_err()), refused.1 + u32::from(condemned.is_err()));
            // There is room again, and the journal is written anew.
            sim.mend();
            directory.sync().unwrap();
            let found = self::directory(&sim.kill(), backend).1.found.len();
            let expected = usize::from(condemned.is_err()) + usize::from(written.is_ok());
            assert_eq!(found, expected, "{backend:?} after {marks} marks: {written:?}, {condemned:?}");
        }
        assert!(refused.0 > 0 && refused.1 > 0, "{backend:?}: {refused:?}");
    }
}

/// Where a mark may be on disk though it was refused, nobody can tell whether the values are safe: then the tier is degraded.
#[test]
fn a_bucket_that_may_be_given_up_or_not_degrades() {
    for (backend, fault) in ALL.into_iter().flat_map(|backend| [(backend, Fault::Enospc), (backend, Fault::FailedSync)])
    {
        let sim = SimDisk::new();
        let (directory, stored) = filled(&sim, backend, 2);
        (0..50).for_each(|n| sim.fail_at(n, if n == 1 { fault } else { Fault::Enospc }));
        if fault == Fault::FailedSync {
            // The record is written; its sync fails, and there is no room for another journal.
            sim.mend();
            sim.fail_at(1, fault);
            (2..50).for_each(|n| sim.fail_at(n, Fault::Full));
        }
        directory.condemn(stored[0].entry.spot.bucket).unwrap_err();
        assert!(directory.trouble().is_some(), "{backend:?}, {fault:?}");
    }
}

/// A position of the drop log lasted where the marks of what was dropped before it did not, and was believed.
#[test]
fn a_position_lasts_only_with_what_led_to_it() {
    let mut alone = 0;
    for seed in 0..400 {
        let sim = SimDisk::new();
        let disk: Arc<dyn super::io::Disk> = Arc::new(sim.clone());
        let mut journal = journal::Journal::create(&disk, 5).unwrap();
        let mut dead: Vec<_> = (1..6).map(|block| format::Entry::Dead { bucket: 1, block }).collect();
        journal.append(&mut dead).unwrap();
        journal.append(&mut [format::Entry::Position { term: 1, number: 9 }]).unwrap();
        let sim = sim.crash(&mut Random(seed));
        let file = sim.open_buffered(&format::journal_name(0), false).unwrap();
        let replay = journal::replay(&*file, 5).unwrap();
        let lasted = replay.entries.iter().any(|(_, entry)| matches!(entry, format::Entry::Position { .. }));
        let whole = replay.entries.iter().filter(|(_, entry)| matches!(entry, format::Entry::Dead { .. })).count() == 5;
        alone += u32::from(lasted && !whole);
        let state = journal::read(&sim, 5, 0).unwrap();
        assert_eq!(state.position.is_some(), lasted && whole, "{replay:?}");
    }
    assert!(alone > 0, "it never lasted alone, so that nothing was shown");
}

/// Journals that got their names when the directory could not be synced were taken away; after a power loss they were there again, and
/// had higher numbers than that of the next owner.
#[test]
fn a_journal_that_was_refused_does_not_count_when_it_comes_back() {
    let mut came_back = 0;
    for seed in 0..200 {
        let sim = SimDisk::new();
        let (directory, stored) = filled(&sim, Backend::Bucket, 2);
        let dead = |n: usize| Mark::Dead { spot: stored[n].entry.spot, entered: true };
        (0..400).for_each(|n| sim.fail_at(n, Fault::FailedSync));
        (0..3).for_each(|_| _ = (directory.note(&[dead(0)]), directory.settle(true)));
        assert!(directory.trouble().is_some());
        drop(directory);
        sim.mend();
        let (directory, _) = self::directory(&sim, Backend::Bucket);
        directory.note(&[dead(0), dead(1)]);
        directory.settle(true).unwrap();
        drop(directory);
        let sim = sim.crash(&mut Random(seed));
        let journals = sim.list().unwrap().iter().filter(|file| format::journal_number(&file.name).is_some()).count();
        came_back += u32::from(journals > 1);
        assert_eq!(self::directory(&sim, Backend::Bucket).1.found.len(), 0, "seed {seed}: what was removed is back");
    }
    assert!(came_back > 0, "none came back, so that nothing was shown");
}

/// Blocks of dead records whose marks could not be synced were forgotten.
#[test]
fn what_could_not_be_punched_is_tried_again() {
    let sim = SimDisk::new();
    let (directory, stored) = filled(&sim, Backend::Bucket, 2);
    let before = directory.file_bytes();
    directory.note(&[Mark::Dead { spot: stored[0].entry.spot, entered: true }]);
    (0..50).for_each(|n| sim.fail_at(n, Fault::Enospc));
    directory.tidy().unwrap_err();
    sim.mend();
    while directory.tidy().unwrap() {}
    assert!(directory.file_bytes() < before, "{} of {before} bytes", directory.file_bytes());
}
