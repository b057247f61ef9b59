//! The tier as a whole, in one process: a real store over a real directory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::config::{Backend, Config, Verified};
use super::facade::Tier;
use super::test_store::{PAGE, PAGES, config, evict, get, put, store, try_put, value, where_is};
use super::{backend, format, io, journal, recovery};
use crate::base::error::Result;
use crate::base::random::Random;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_LIMIT, NMC_ERR_NOT_FOUND};
use crate::store::Store;
use crate::store::copy::Slice;
use crate::store::test_store::eventually;
use crate::store::types::{Look, Presence};
use std::time::Duration;

/// The same with every backend that keeps something.
fn configs(dir: &tempfile::TempDir) -> impl Iterator<Item = Config> {
    let (paths, config) = (dir.path().to_owned(), config(dir));
    [Backend::Bucket, Backend::File, Backend::Offset].into_iter().map(move |backend| {
        let (directory, capacity_bytes) = (paths.join(backend.name()), 64 << 20);
        Config { directory, backend, capacity_bytes, ..config.clone() }
    })
}

/// The file that a value is in, and its first byte there.
fn file_of(config: &Config, spot: (u64, u64)) -> (std::path::PathBuf, usize) {
    let options = io::Options { direct: config.direct, uring: config.uring, depth: config.depth };
    let disk: std::sync::Arc<dyn io::Disk> =
        std::sync::Arc::new(io::RealDisk::open(&config.directory, false, options).unwrap());
    let storage = backend::storage(config.backend, &disk);
    let (file, block) = storage.locate(crate::layout::disk::Spot { bucket: spot.0, block: spot.1 });
    (config.directory.join(storage.place(file).to_string()), usize::try_from(block).unwrap() * format::BLOCK)
}

pub(super) fn open(store: &Store, config: &Config) -> Tier {
    Tier::open(store, config, &mut |_, _| ()).unwrap()
}

fn flip(file: &std::path::Path, at: usize) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at as u64).unwrap();
}

const SIZES: [usize; 12] = [0, 1, 40, 3000, 3700, 4095, 4096, 4097, 65_535, 65_537, 300_000, 1_048_576];

#[test]
fn values_of_every_size_come_back_from_disk_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    configs(&dir).for_each(|config| values_come_back(&config));
}

fn values_come_back(config: &Config) {
    {
        let store = store();
        let tier = open(&store, config);
        for (i, bytes) in SIZES.iter().enumerate() {
            put(&store, &format!("k{i}"), &value(i as u64, *bytes));
        }
        assert_eq!(tier.offload(None).unwrap(), SIZES.len() as u64);
        assert_eq!(tier.offload(None).unwrap(), 0, "all of it is there");
        evict(&store);
        for (i, bytes) in SIZES.iter().enumerate() {
            let key = format!("k{i}");
            assert_eq!(where_is(&store, &key), Presence::OnDisk);
            assert_eq!(get(&store, &key).unwrap(), value(i as u64, *bytes), "{bytes} bytes");
            assert_eq!(store.disk_metadata(key.as_bytes()).unwrap(), Look::Ready(key.into_bytes()));
        }
        let stats = tier.stats().unwrap();
        assert_eq!((stats.objects, stats.read_objects, stats.evicted_dirty), (12, 12, 0));
        store.remove(b"k3").unwrap();
        assert!(try_put(&store, "k4", b"x", false).is_err_and(|error| error.status == NMC_ERR_EXISTS));
        try_put(&store, "k4", b"replaced", true).unwrap();
        assert_eq!(
            tier.verify(&mut |_, _| true).unwrap(),
            (Verified { objects: 10, bytes: stats.bytes - 3000 - 3700, corrupt: 0, unreadable: 0 }, None)
        );
    }
    let store = store();
    put(&store, "k5", b"came before the tier");
    let tier = open(&store, config);
    assert_eq!(tier.stats().unwrap().objects, 9);
    for (i, bytes) in SIZES.iter().enumerate() {
        let want = match i {
            // In memory only when everything ended, or removed.
            3 | 4 => None,
            5 => Some(b"came before the tier".to_vec()),
            _ => Some(value(i as u64, *bytes)),
        };
        assert_eq!(get(&store, &format!("k{i}")), want, "{bytes} bytes");
    }
    let mut keys = Vec::new();
    tier.scan(&mut |found| {
        keys.push(String::from_utf8(found.key.to_vec()).unwrap());
        true
    })
    .unwrap();
    keys.sort();
    assert_eq!(keys.len(), 9);
    assert!(!keys.contains(&"k3".to_owned()) && !keys.contains(&"k5".to_owned()));
}

#[test]
fn what_is_evicted_under_pressure_was_written_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &Config { paused: false, heartbeat_ms: 2, ..config(&dir) });
    // Three times what memory holds, with time for the disk in between.
    let bytes = 32 << 10;
    let count = 3 * PAGES * u64::from(PAGE) / bytes as u64;
    for i in 0..count {
        put(&store, &format!("p{i}"), &value(i, bytes));
        if (i + 1) * bytes as u64 == PAGES * u64::from(PAGE) {
            // Memory is full: what goes next is on disk when the disk has had the time.
            assert!(eventually(|| tier.stats().unwrap().written_objects > 0));
        } else if i % 8 == 7 {
            for _ in 0..400 {
                let stats = tier.stats().unwrap();
                if stats.written_objects + 80 > i {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    let stats = tier.stats().unwrap();
    assert!(stats.evicted_clean > 0);
    let found =
        (0..count).filter(|i| get(&store, &format!("p{i}")).is_some_and(|found| found == value(*i, bytes))).count();
    assert_eq!(found as u64 + stats.evicted_dirty, count, "{stats:?}");
}

#[test]
fn namespaces_and_flushes_survive_a_restart_in_another_order() {
    let dir = tempfile::tempdir().unwrap();
    configs(&dir).for_each(|config| namespaces_survive(&config));
}

fn namespaces_survive(config: &Config) {
    {
        let store = store();
        let tier = open(&store, config);
        for name in ["a", "b", "c"] {
            let space = store.namespace(name.as_bytes(), None).unwrap();
            put(&space, "key", name.as_bytes());
        }
        put(&store, "key", b"default");
        tier.offload(None).unwrap();
        store.namespace(b"b", None).unwrap().remove_all().unwrap();
    }
    let store = store();
    let early = store.namespace(b"c", None).unwrap();
    let tier = open(&store, config);
    assert_eq!(get(&early, "key").unwrap(), b"c");
    assert_eq!(get(&store.namespace(b"b", None).unwrap(), "key"), None);
    assert_eq!(get(&store.namespace(b"a", None).unwrap(), "key").unwrap(), b"a");
    assert_eq!(get(&store, "key").unwrap(), b"default");
    assert_eq!(tier.stats().unwrap().objects, 3);
}

#[test]
fn a_damaged_value_ends_and_is_never_given() {
    let dir = tempfile::tempdir().unwrap();
    configs(&dir).for_each(|config| a_damaged_value_ends(&config));
}

fn a_damaged_value_ends(config: &Config) {
    let store = store();
    let tier = open(&store, config);
    put(&store, "good", &value(1, 100_000));
    put(&store, "bad", &value(2, 100_000));
    tier.offload(None).unwrap();
    evict(&store);
    let mut spot = (0, 0);
    tier.scan(&mut |found| {
        if found.key == b"bad" {
            spot = found.spot;
        }
        true
    })
    .unwrap();
    let (file, at) = file_of(config, spot);
    flip(&file, at + 50_000);
    let mut buffer = vec![0; 100_000];
    let slice = Slice::of_test_mut(&mut buffer);
    let read = store.get(b"bad", slice);
    assert_eq!(read.unwrap_err().status, crate::base::status::NMC_ERR_CORRUPT);
    assert!(eventually(|| where_is(&store, "bad") == Presence::Absent), "its owner has looked itself");
    // It counts what has ended.
    assert!(eventually(|| tier.stats().unwrap().corrupt > 0));
    assert_eq!(tier.stats().unwrap().corrupt, 1);
    assert_eq!(get(&store, "good").unwrap(), value(1, 100_000));
    put(&store, "bad", b"anew");
    assert_eq!(get(&store, "bad").unwrap(), b"anew");
}

#[test]
fn a_directory_has_one_owner_and_a_store_one_tier() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (store(), store());
    let tier = open(&one, &config(&dir));
    let second = Tier::open(&other, &config(&dir), &mut |_, _| ()).err().unwrap();
    assert_eq!(second.status, NMC_ERR_EXISTS);
    assert!(second.message.contains(&std::process::id().to_string()), "{second}");
    let elsewhere = tempfile::tempdir().unwrap();
    let again = Tier::open(&one, &config(&elsewhere), &mut |_, _| ()).err().unwrap();
    assert_eq!(again.status, NMC_ERR_EXISTS);
    drop(tier);
    let _tier = open(&other, &config(&dir));
}

#[test]
fn listings_and_removals_by_prefix_reach_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    configs(&dir).for_each(|config| listings_reach_the_disk(&config));
}

fn listings_reach_the_disk(config: &Config) {
    let store = store();
    let tier = open(&store, config);
    for i in 0..40 {
        put(&store, &format!("x/{i}"), b"v");
        put(&store, &format!("y/{i}"), b"v");
    }
    tier.offload(None).unwrap();
    evict(&store);
    put(&store, "x/memory", b"v");
    let listed = || {
        let (mut keys, mut cursor) = (Vec::new(), 0);
        while let Some(found) = store.next(cursor).unwrap() {
            keys.push(String::from_utf8(found.key).unwrap());
            cursor = found.cursor;
        }
        keys.sort();
        keys
    };
    assert_eq!(listed().len(), 81);
    assert_eq!(store.remove_by_prefix(b"x/").unwrap(), 41);
    assert_eq!(
        listed(),
        (0..40).map(|i| format!("y/{i}")).collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    );
    assert_eq!(store.remove(b"x/3").unwrap_err().status, NMC_ERR_NOT_FOUND);
}

/// A directory that has used all numbers up to this one.
fn used_up_to(config: &Config, bucket: u64) {
    drop(open(&store(), config));
    let names = std::fs::read_dir(&config.directory).unwrap().map(|entry| entry.unwrap().file_name());
    let name = names.filter_map(|name| name.into_string().ok()).find(|name| name.starts_with("journal")).unwrap();
    let disk = io::RealDisk::open(&config.directory, false, io::Options::default()).unwrap();
    let tier_id = recovery::read_head(&disk).unwrap().tier_id;
    let replay = journal::replay(&*io::Disk::open_buffered(&disk, &name, false).unwrap(), tier_id).unwrap();
    let mark = format::encode_entry(replay.next, replay.next, tier_id, &format::Entry::High { bucket });
    let file = std::fs::OpenOptions::new().write(true).open(config.directory.join(&name)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &mark, replay.next * format::JOURNAL_RECORD as u64).unwrap();
}

#[test]
fn buckets_have_numbers_for_years() {
    let dir = tempfile::tempdir().unwrap();
    for (config, last) in configs(&dir).zip([(1 << 28) - 2, (1 << 35) + 5, format::MAX_BUCKET - 400]) {
        used_up_to(&config, last);
        values_come_back(&config);
        let config = Config { directory: config.directory.with_extension("listed"), ..config };
        used_up_to(&config, last);
        listings_reach_the_disk(&config);
        let config = Config { directory: config.directory.with_extension("moved"), ..config };
        std::fs::create_dir(&config.directory).unwrap();
        for seed in [1, 2] {
            used_up_to(&Config { directory: config.directory.join(seed.to_string()), ..config.clone() }, last);
            a_listing_misses_nothing(&config, seed);
        }
    }
    let config = config(&dir);
    used_up_to(&config, format::MAX_BUCKET - 3);
    let store = store();
    let tier = open(&store, &config);
    put(&store, "last", b"v");
    assert_eq!(tier.offload(None).unwrap(), 1);
    put(&store, "one more", b"v");
    assert_eq!(tier.offload(None).unwrap_err().status, NMC_ERR_LIMIT);
    assert_eq!(get(&store, "one more").unwrap(), b"v");
    let (mut keys, mut cursor) = (Vec::new(), 0);
    while let Some(found) = store.next(cursor).unwrap() {
        (cursor, _) = (found.cursor, keys.push(found.key));
    }
    assert_eq!(keys, [&b"last"[..], b"one more"]);
}

#[test]
fn listings_miss_nothing_that_moves() {
    let dir = tempfile::tempdir().unwrap();
    configs(&dir).for_each(|config| (1..=16).for_each(|seed| a_listing_misses_nothing(&config, seed)));
}

/// Between two keys of a listing values come into memory, are written, and leave memory or, with an odd seed, the disk.
fn a_listing_misses_nothing(config: &Config, seed: u64) {
    let directory = config.directory.join(seed.to_string());
    std::fs::create_dir_all(&config.directory).unwrap();
    let config = Config { directory, bucket_keys: 5, ..config.clone() };
    let store = store();
    let tier = open(&store, &config);
    let keys: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let mut chance = Random(seed);
    let mut random = |limit: u64| chance.below(limit);
    for key in &keys {
        put(&store, key, b"v");
        if random(12) == 0 {
            tier.offload(None).unwrap();
            evict(&store);
        }
    }
    let (mut seen, mut cursor) = (std::collections::BTreeMap::<Vec<u8>, u32>::new(), 0);
    while let Some(found) = store.next(cursor).unwrap() {
        *seen.entry(found.key).or_default() += 1;
        cursor = found.cursor;
        match random(6) {
            0 | 1 => tier.prefetch(&[names[usize::try_from(random(40)).unwrap()]], |_, came| assert!(came.unwrap())),
            2 => _ = tier.offload(None).unwrap(),
            3 if random(4) > 0 => {}
            3 if seed.is_multiple_of(2) => {
                tier.offload(None).unwrap();
                evict(&store);
            }
            3 => {
                tier.prefetch(&names, |_, came| assert!(came.unwrap()));
                tier.evict(0).unwrap();
            }
            _ => {}
        }
    }
    let missed: Vec<_> = names.iter().filter(|name| !seen.contains_key(**name)).collect();
    assert!(missed.is_empty(), "{} {seed}: {missed:?}", config.backend.name());
    // At rest each is listed once, in both places or in one.
    tier.prefetch(&names[..20], |_, came| assert!(came.unwrap()));
    let (mut n, mut cursor) = (0, 0);
    while let Some(found) = store.next(cursor).unwrap() {
        (n, cursor) = (n + 1, found.cursor);
    }
    assert_eq!(n, 40);
}

#[test]
fn a_closed_tier_takes_its_values_along_and_brings_them_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = store();
    let tier = open(&store, &config(&dir));
    put(&store, "k", b"v");
    tier.offload(None).unwrap();
    evict(&store);
    drop(tier);
    assert_eq!(where_is(&store, "k"), Presence::Absent);
    let tier = open(&store, &config(&dir));
    assert_eq!(get(&store, "k").unwrap(), b"v");
    tier.sync().unwrap();
}

#[test]
fn a_full_disk_pauses_offloading_and_loses_nothing_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let small = |config| Config { capacity_bytes: 600 << 10, bucket_keys: 4, ..config };
    configs(&dir).map(small).for_each(|config| a_full_disk_pauses_offloading(&config));
}

fn a_full_disk_pauses_offloading(config: &Config) {
    let store = store();
    let tier = open(&store, config);
    for i in 0..40u64 {
        put(&store, &format!("f{i}"), &value(i, 32 << 10));
    }
    assert_eq!(tier.offload(None).unwrap_err().status, crate::base::status::NMC_ERR_NO_SPACE);
    let stats = tier.stats().unwrap();
    assert!(stats.full > 0 && stats.objects > 0 && stats.file_bytes <= 600 << 10, "{stats:?}");
    assert_eq!((stats.degraded, stats.errors), (0, 0));
    for i in 0..40u64 {
        assert_eq!(get(&store, &format!("f{i}")).unwrap(), value(i, 32 << 10));
    }
}

#[test]
fn a_directory_keeps_its_backend() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<Config> = configs(&dir).collect();
    for made in &all {
        drop(open(&store(), made));
        for asked in all.iter().filter(|asked| asked.backend != made.backend) {
            let config = Config { directory: made.directory.clone(), ..asked.clone() };
            let error = Tier::open(&store(), &config, &mut |_, _| ()).err().unwrap();
            assert_eq!(error.status, crate::base::status::NMC_ERR_MISMATCH);
            let (is, wanted) = (made.backend.name(), asked.backend.name());
            assert!(error.message.contains(is) && error.message.contains(wanted), "{error}");
        }
        drop(open(&store(), made));
    }
}

#[test]
fn what_a_backend_does_not_have_is_refused_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let plain = config(&dir);
    for config in [
        Config { backend: Backend::Offset, ..plain.clone() },
        Config { backend: Backend::Offset, capacity_bytes: 4095, ..plain.clone() },
        Config { backend: Backend::Offset, capacity_bytes: (1 << 40) + 1, ..plain.clone() },
        Config { backend: Backend::File, meta: true, ..plain.clone() },
    ] {
        let error = Tier::open(&store(), &config, &mut |_, _| ()).err().unwrap();
        assert_eq!(error.status, crate::base::status::NMC_ERR_INVALID_ARG, "{error}");
    }
    drop(open(&store(), &plain));
}

#[test]
fn noop_takes_everything_and_keeps_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { backend: Backend::Noop, ..config(&dir) };
    let store = store();
    let tier = open(&store, &config);
    for i in 0..20 {
        put(&store, &format!("n{i}"), &value(i, 30_000));
    }
    assert_eq!(tier.offload(None).unwrap(), 0);
    let stats = tier.stats().unwrap();
    assert_eq!((stats.objects, stats.buckets, stats.file_bytes), (0, 0, 0));
    assert!(stats.written_objects >= 20 && stats.written_bytes >= 600_000, "{stats:?}");
    for i in 0..20 {
        assert_eq!(get(&store, &format!("n{i}")).unwrap(), value(i, 30_000));
        assert_eq!(where_is(&store, &format!("n{i}")), Presence::Ready);
    }
    store.remove(b"n3").unwrap();
    tier.sync().unwrap();
    drop(tier);
    let mut names: Vec<String> = std::fs::read_dir(&config.directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["LOCK", "SUPER", "journal.0"]);
    evict(&store);
    let tier = open(&store, &config);
    assert_eq!(tier.stats().unwrap().objects, 0);
}

#[test]
fn a_second_copy_of_the_list_stands_in_for_the_first() {
    let dir = tempfile::tempdir().unwrap();
    for (meta, found) in [(true, 3), (false, 0)] {
        let directory = dir.path().join(meta.to_string());
        let config = Config { directory, meta, heartbeat_ms: 2, ..config(&dir) };
        let store = store();
        let tier = open(&store, &config);
        for i in 0..3 {
            put(&store, &format!("m{i}"), &value(i, 5000));
        }
        tier.offload(None).unwrap();
        let bucket = config.directory.join(format::bucket_name(1));
        assert_eq!(config.directory.join(backend::meta_name(1)).exists(), meta);
        drop(tier);
        flip(&bucket, usize::try_from(std::fs::metadata(&bucket).unwrap().len()).unwrap() - 100);
        evict(&store);
        let tier = open(&store, &config);
        let stats = tier.stats().unwrap();
        assert_eq!((stats.objects, stats.torn), (found, u64::from(!meta)));
        for i in 0..3 {
            assert_eq!(get(&store, &format!("m{i}")), meta.then(|| value(i, 5000)));
        }
        assert_eq!(tier.verify(&mut |_, _| true).unwrap().0.objects, found);
        if !meta {
            continue;
        }
        // It goes with its bucket.
        (0..3).for_each(|i| store.remove(format!("m{i}").as_bytes()).unwrap());
        assert!(eventually(|| !bucket.exists() && !config.directory.join(backend::meta_name(1)).exists()));
    }
}

/// A file that is read a little at a time.
struct Long<'a>(&'a dyn io::File, std::sync::atomic::AtomicUsize);

impl io::File for Long<'_> {
    fn bytes(&self) -> Result<u64> {
        self.0.bytes()
    }

    fn read(&self, to: &mut [u8], offset: u64) -> Result<()> {
        self.1.fetch_max(to.len(), std::sync::atomic::Ordering::Relaxed);
        self.0.read(to, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        self.0.write(from, offset)
    }

    fn datasync(&self) -> Result<()> {
        self.0.datasync()
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.0.punch(offset, bytes)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.0.truncate(bytes)
    }
}

#[test]
fn a_journal_that_was_made_longer_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    {
        let store = store();
        let tier = open(&store, &config);
        put(&store, "k", b"v");
        tier.offload(None).unwrap();
    }
    let name = std::fs::read_dir(&config.directory).unwrap().map(|entry| entry.unwrap().file_name());
    let name = name.filter_map(|name| name.into_string().ok()).find(|name| name.starts_with("journal")).unwrap();
    let grow = |bytes: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(config.directory.join(&name)).unwrap();
        file.set_len(bytes).unwrap();
    };
    grow(300 << 20);
    let disk = io::RealDisk::open(&config.directory, false, io::Options::default()).unwrap();
    let file = io::Disk::open_buffered(&disk, &name, false).unwrap();
    let head = recovery::read_head(&disk).unwrap();
    let long = Long(&*file, std::sync::atomic::AtomicUsize::new(0));
    assert!(journal::replay(&long, head.tier_id).unwrap().next > 2);
    assert!(long.1.into_inner() <= 1 << 20);
    // What none can be is told at once.
    grow(1 << 40);
    let error = Tier::open(&store(), &config, &mut |_, _| ()).err().unwrap();
    assert_eq!(error.status, crate::base::status::NMC_ERR_CORRUPT, "{error}");
    assert!(error.message.contains("more than a journal can have"), "{error}");
    grow(300 << 20);
    let store = store();
    let _tier = open(&store, &config);
    assert_eq!(get(&store, "k").unwrap(), b"v");
}
