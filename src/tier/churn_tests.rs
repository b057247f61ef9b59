//! Values come and go, many times what the disk may hold, and die scattered over all buckets: what the files take in the end, by
//! what the file system says of them, is little more than what lives.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::config::{Backend, Config, Evict};
use super::facade::Tier;
use super::format::{BLOCK, Shape, footer_bytes};
use super::io::sim::Random;
use super::io::{self, Disk as _};
use super::test_store::{config, evict, get, store, try_put, value};
use super::tests::open;
use crate::store::Store;
use crate::store::test_store::eventually;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const BYTES: usize = 32 << 10;
/// Values that live, and those that a bucket has.
const KEYS: u32 = 64;
const IN_A_BUCKET: u32 = 16;
const CAPACITY: u64 = 4 << 20;

/// Bytes on disk of all files with values or lists.
fn taken(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        let of_all = ["SUPER", "LOCK"].contains(&&*name) || name.starts_with("journal.");
        // One that goes meanwhile takes nothing.
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += taken(&entry.path()),
            Ok(found) if !of_all => bytes += found.blocks() * 512,
            _ => {}
        }
    }
    bytes
}

/// What a record takes: its header block and its value, in blocks.
fn stored(key: &str) -> u64 {
    Shape::of(key.len(), BYTES as u64).blocks * BLOCK as u64
}

/// Replaces and removes values, a few of each bucket at a time, until `times` the capacity was written. Gives what lives.
fn churn(store: &Store, tier: &Tier, times: u64) -> BTreeMap<String, u64> {
    let (mut live, mut rng, mut round) = (BTreeMap::new(), Random(5), 0);
    while tier.stats().unwrap().written_bytes < times * CAPACITY {
        for i in 0..u64::from(IN_A_BUCKET) {
            let (key, version) = (format!("key{}", rng.below(KEYS)), round * 100 + i);
            if rng.below(8) == 0 && live.remove(&key).is_some() {
                let removed = store.remove(key.as_bytes());
                assert!(removed.is_ok() || tier.stats().unwrap().evicted > 0, "{removed:?}");
            } else {
                try_put(store, &key, &value(version, BYTES), true).unwrap();
                live.insert(key, version);
            }
        }
        tier.offload(None).unwrap();
        // Only the disk has them.
        evict(store);
        round += 1;
    }
    assert!(live.len() > 30, "{}", live.len());
    live
}

fn can_punch(directory: &Path) -> bool {
    let disk = io::RealDisk::open(directory, false, io::Options::default()).unwrap();
    let file = disk.create("probe", 2 * BLOCK as u64).unwrap();
    let can = file.punch(0, BLOCK as u64).unwrap();
    disk.unlink("probe").unwrap();
    can
}

#[test]
fn after_a_churn_of_ten_times_the_capacity_files_take_little_more_than_what_lives() {
    for (backend, meta) in [(Backend::Bucket, false), (Backend::Bucket, true), (Backend::File, false)] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            backend,
            meta,
            capacity_bytes: CAPACITY,
            bucket_keys: IN_A_BUCKET,
            heartbeat_ms: 2,
            ..config(&dir)
        };
        let (store, name) = (store(), backend.name());
        let tier = open(&store, &config);
        if backend == Backend::Bucket && !can_punch(&config.directory) {
            eprintln!("skipped: the file system makes no holes");
            continue;
        }
        let live = churn(&store, &tier, 10);
        let bytes: u64 = live.keys().map(|key| stored(key)).sum();
        let list = footer_bytes((0..IN_A_BUCKET).map(|_| 5)) * (1 + u64::from(meta));
        let limit = bytes * 11 / 10 + u64::from(IN_A_BUCKET) * stored("key10") + list;
        let mut least = u64::MAX;
        let settled = eventually(|| {
            least = least.min(taken(&config.directory));
            least <= limit
        });
        let stats = tier.stats().unwrap();
        println!("{name}, meta: {meta}: {least} bytes for {bytes} that live, {limit} at most; counted {stats:?}");
        assert!(settled, "{name}, meta: {meta}: {least} bytes for {bytes} that live, {limit} at most; {stats:?}");
        assert_eq!((stats.objects, stats.evicted, stats.full), (live.len() as u64, 0, 0), "{name}");
        live.iter().for_each(|(key, version)| assert_eq!(get(&store, key).unwrap(), value(*version, BYTES), "{name}"));
    }
}

/// One file for all has its size from the beginning: there the oldest make way, however scattered what lives is.
#[test]
fn one_file_takes_its_capacity_and_no_more_however_much_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        backend: Backend::Offset,
        evict: Evict::Fifo,
        capacity_bytes: CAPACITY,
        bucket_keys: IN_A_BUCKET,
        heartbeat_ms: 2,
        ..config(&dir)
    };
    let store = store();
    let tier = open(&store, &config);
    let live = churn(&store, &tier, 10);
    let there: Vec<_> = live.iter().filter_map(|(key, version)| Some((get(&store, key)?, *version))).collect();
    assert!(there.len() as u64 >= CAPACITY / stored("key10") / 3, "{} of {}", there.len(), live.len());
    assert!(there.iter().all(|(found, version)| *found == value(*version, BYTES)));
    // The file system may need a block more to know where it lies.
    let (taken, stats) = (taken(&config.directory), tier.stats().unwrap());
    assert!(taken <= CAPACITY + BLOCK as u64 && stats.file_bytes <= CAPACITY, "{taken} {stats:?}");
}
