//! Somebody takes files of a tier away while it is open, or puts something else in their place, and brings them back later. What was
//! removed meanwhile stays removed, or the call says that it could not be; a listing is whole, or says that it is not. And what stands
//! there when the tier is opened is left alone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::config::{Backend, Config, Evict, OnDamage, Torn};
use super::facade::Tier;
use super::format::bucket_name;
use super::test_store::{config, evict, get, put, store, try_put, value, where_is};
use super::tests::open;
use crate::base::error::Result;
use crate::base::over::Over;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_PERMISSION, NMC_ERR_STALE, nmc_status_t};
use crate::store::Store;
use crate::store::types::Presence;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const KEYS: usize = 4;

/// What is there instead of a bucket.
#[derive(Debug, Clone, Copy)]
enum Instead {
    Nothing,
    Folder,
    File,
    Link,
}

fn key(i: usize) -> String {
    format!("k{i}")
}

/// The name of a bucket in its directory.
fn name_of(config: &Config, bucket: u64) -> PathBuf {
    match config.backend {
        Backend::File => format!("{:02x}/{bucket:016x}.keys", bucket & 0xff).into(),
        _ => bucket_name(bucket).into(),
    }
}

/// Buckets that were taken away.
struct Away<'a> {
    config: &'a Config,
    to: tempfile::TempDir,
    buckets: Vec<u64>,
}

impl<'a> Away<'a> {
    fn take(config: &'a Config, buckets: Vec<u64>, instead: Instead) -> Self {
        let away = Self { config, to: tempfile::tempdir().unwrap(), buckets };
        for (here, there) in away.paths() {
            std::fs::rename(&here, &there).unwrap();
            match instead {
                Instead::Nothing => {}
                Instead::Folder => std::fs::create_dir(&here).unwrap(),
                Instead::File => std::fs::write(&here, "something else").unwrap(),
                Instead::Link => std::os::unix::fs::symlink(&there, &here).unwrap(),
            }
        }
        away
    }

    fn paths(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> {
        self.buckets.iter().map(|bucket| {
            (self.config.directory.join(name_of(self.config, *bucket)), self.to.path().join(bucket.to_string()))
        })
    }

    fn bring_back(self) {
        for (here, there) in self.paths() {
            let _ = std::fs::remove_file(&here).or_else(|_| std::fs::remove_dir(&here));
            std::fs::rename(there, here).unwrap();
        }
    }
}

/// A store whose values are all on disk, one in a bucket, in a directory that was opened anew: no list of it is known.
fn stored(config: &Config) -> (Store, Tier) {
    let store = store();
    let tier = open(&store, config);
    for i in 0..KEYS {
        put(&store, &key(i), &value(i as u64, 10_000));
        assert_eq!(tier.offload(None).unwrap(), 1);
    }
    drop(tier);
    let tier = open(&store, config);
    evict(&store);
    (store, tier)
}

fn buckets(tier: &Tier) -> Vec<u64> {
    let mut buckets = Vec::new();
    tier.scan(&mut |found| {
        buckets.push(found.spot.0);
        true
    })
    .unwrap();
    assert_eq!(buckets.len(), KEYS);
    buckets
}

fn list(store: &Store) -> Result<usize> {
    let (mut n, mut cursor) = (0, 0);
    while let Some(found) = store.next(cursor)? {
        (n, cursor) = (n + 1, found.cursor);
    }
    Ok(n)
}

fn scan(tier: &Tier) -> (usize, Result<()>) {
    let mut n = 0;
    let scanned = tier.scan(&mut |_| {
        n += 1;
        true
    });
    (n, scanned)
}

fn on_disk(store: &Store) -> usize {
    (0..KEYS).filter(|i| where_is(store, &key(*i)) == Presence::OnDisk).count()
}

/// All cases: where values lie, what is there instead, and how many buckets are away.
fn each_case(dir: &tempfile::TempDir, mut case: impl FnMut(&Config, Instead, usize)) {
    let mut number = 0;
    for backend in [Backend::Bucket, Backend::File] {
        for instead in [Instead::Nothing, Instead::Folder, Instead::File, Instead::Link] {
            for n in [1, KEYS] {
                number += 1;
                let directory = dir.path().join(number.to_string());
                println!("{} {instead:?} {n}", backend.name());
                case(&Config { backend, directory, ..config(dir) }, instead, n);
            }
        }
    }
}

/// A file under the name of a bucket is one that is damaged. What is no file was not written by a tier.
fn expected(config: &Config, instead: Instead) -> nmc_status_t {
    match (config.backend, instead) {
        (_, Instead::Nothing) | (Backend::Bucket, Instead::File) | (Backend::File, Instead::Folder) => NMC_ERR_CORRUPT,
        _ => NMC_ERR_PERMISSION,
    }
}

#[test]
fn what_is_removed_by_prefix_while_its_file_is_away_does_not_come_back_unless_the_call_fails() {
    let dir = tempfile::tempdir().unwrap();
    each_case(&dir, |config, instead, n| {
        let (store, tier) = stored(config);
        let away = Away::take(config, buckets(&tier).split_off(KEYS - n), instead);
        // In the owner's process and as any other does.
        let other = Tier::open(&store, &Config::default(), &mut |_, _| ()).unwrap();
        assert!(!other.is_owner());
        let status = expected(config, instead);
        assert_eq!(list(&store).unwrap_err().status, status);
        for handle in [&tier, &other] {
            let (seen, scanned) = scan(handle);
            assert_eq!((seen, scanned.unwrap_err().status), (KEYS - n, status));
        }
        assert_eq!(store.remove_by_prefix(b"k").unwrap_err().status, status);
        away.bring_back();
        let left = on_disk(&store);
        assert!(left >= n);
        assert_eq!((list(&store).unwrap(), scan(&other).0), (left, left));
        assert_eq!(store.remove_by_prefix(b"k").unwrap(), left as u64);
        assert_eq!((on_disk(&store), list(&store).unwrap()), (0, 0));
        drop((tier, other));
        let tier = open(&store, config);
        assert_eq!((on_disk(&store), tier.stats().unwrap().objects), (0, 0));
    });
}

/// Who removes them by their names needs no list.
#[test]
fn what_is_removed_by_key_while_its_file_is_away_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    each_case(&dir, |config, instead, n| {
        let (store, tier) = stored(config);
        let away = Away::take(config, buckets(&tier).split_off(KEYS - n), instead);
        (0..KEYS).for_each(|i| store.remove(key(i).as_bytes()).unwrap());
        // By this the owner gives the buckets up, and after a new one nobody has to remember those that are gone.
        put(&store, "new", b"v");
        for _ in 0..3 {
            tier.sync().unwrap();
            assert_eq!(tier.offload(Some(&[b"new"])).unwrap(), 1);
            store.remove(b"new").unwrap();
            put(&store, "new", b"v");
        }
        // What has the name of a bucket goes as if it were one, and with it what is known of that.
        let is_one = match config.backend {
            Backend::File => !matches!(instead, Instead::Nothing),
            _ => matches!(instead, Instead::File | Instead::Link),
        };
        if !is_one {
            away.bring_back();
        }
        drop(tier);
        let _tier = open(&store, config);
        assert_eq!(on_disk(&store), 0);
    });
}

#[test]
fn a_look_at_everything_counts_what_is_away() {
    let dir = tempfile::tempdir().unwrap();
    each_case(&dir, |config, instead, n| {
        let (store, tier) = stored(config);
        let away = Away::take(config, buckets(&tier).split_off(KEYS - n), instead);
        let other = Tier::open(&store, &Config::default(), &mut |_, _| ()).unwrap();
        let damaged = expected(config, instead) == NMC_ERR_CORRUPT;
        let (found, why) = other.verify(&mut |_, _| true).unwrap();
        let bad = if damaged { (n as u64, 0) } else { (0, n as u64) };
        assert_eq!((found.objects, (found.corrupt, found.unreadable)), ((KEYS - n) as u64, bad));
        assert_eq!(why.map(|error| error.status), (!damaged).then_some(NMC_ERR_PERMISSION));
        let (found, why) = tier.verify(&mut |_, _| true).unwrap();
        let left = if damaged { (0, 0) } else { bad };
        assert_eq!((found.objects, (found.corrupt, found.unreadable)), ((KEYS - n) as u64, left));
        assert_eq!(why.map(|error| error.status), (!damaged).then_some(NMC_ERR_PERMISSION));
        // What was given up is no reason to fail any more.
        assert_eq!(list(&store).is_ok(), damaged);
        away.bring_back();
        assert_eq!(on_disk(&store), if damaged { KEYS - n } else { KEYS });
    });
}

/// Its entries end before its file goes: who goes through all others does not stumble over it.
#[test]
fn a_bucket_that_was_evicted_keeps_no_listing_from_its_end() {
    let dir = tempfile::tempdir().unwrap();
    for backend in [Backend::Bucket, Backend::File, Backend::Offset] {
        let config = Config {
            directory: dir.path().join(backend.name()),
            backend,
            capacity_bytes: 600 << 10,
            bucket_keys: 2,
            evict: Evict::Fifo,
            heartbeat_ms: 1,
            ..config(&dir)
        };
        let store = store();
        let tier = open(&store, &config);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = Over(&over);
            let threads: Vec<_> = (0..2)
                .map(|thread| {
                    let (store, tier, over) = (&store, &tier, &over);
                    scope.spawn(move || {
                        let mut rounds = 0;
                        while !over.load(SeqCst) || rounds < 3 {
                            list(store)?;
                            scan(tier).1?;
                            if thread == 0 {
                                store.remove_by_prefix(b"v1")?;
                            }
                            rounds += 1;
                        }
                        Result::Ok(())
                    })
                })
                .collect();
            for i in 0..150u64 {
                let key = format!("v{i}");
                if let Err(error) = try_put(&store, &key, &value(i, 20_000), false) {
                    let removed = error.status == NMC_ERR_STALE && key.starts_with("v1");
                    assert!(removed, "{key}: {}: it may be removed while it is written", error.message);
                }
                tier.offload(None).unwrap();
                evict(&store);
            }
            let evicted = tier.stats().unwrap().evicted;
            drop(end);
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            assert!(evicted > 20, "{}: {evicted}", backend.name());
        });
    }
}

/// Everything below a directory, with its size.
fn all_below(directory: &Path) -> BTreeSet<(PathBuf, u64)> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            all.extend(all_below(&entry.path()));
        }
        // Who has the directory says so in its lock.
        let bytes = if found.is_file() && entry.file_name() != "LOCK" { found.len() } else { 0 };
        all.insert((entry.path(), bytes));
    }
    all
}

/// A directory whose tier is closed, and its buckets.
fn closed(config: &Config) -> Vec<u64> {
    let (_store, tier) = stored(config);
    buckets(&tier)
}

/// Puts a folder where a file was, with something in it.
fn put_folder(at: &Path) -> PathBuf {
    let _ = std::fs::remove_file(at);
    std::fs::create_dir(at).unwrap();
    let mine = at.join("mine");
    std::fs::write(&mine, "not the tier's").unwrap();
    mine
}

#[test]
fn a_bucket_with_something_else_for_a_list_is_damaged_and_no_others_are() {
    for torn in [Torn::MoveAside, Torn::Delete] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { backend: Backend::File, torn, ..config(&dir) };
        let bucket = config.directory.join(name_of(&config, closed(&config)[0]));
        put_folder(&bucket.join("list"));
        for _ in 0..2 {
            let store = store();
            let tier = open(&store, &config);
            assert_eq!(tier.stats().unwrap().objects, KEYS as u64 - 1);
            let kept = if torn == Torn::Delete { bucket.clone() } else { bucket.with_extension("keys.damaged") };
            assert!(kept.join("list/mine").exists());
        }
    }
}

#[test]
fn a_tier_that_begins_anew_leaves_alone_what_is_not_its_own_and_never_meets_it() {
    let dir = tempfile::tempdir().unwrap();
    for backend in [Backend::Bucket, Backend::File, Backend::Offset] {
        let capacity_bytes = 16 << 20;
        let made = Config { directory: dir.path().join(backend.name()), backend, capacity_bytes, ..config(&dir) };
        let foreign = match backend {
            Backend::Bucket => {
                closed(&made).iter().map(|id| put_folder(&made.directory.join(bucket_name(*id)))).collect()
            }
            Backend::File => {
                let lists = closed(&made).into_iter().map(|id| made.directory.join(name_of(&made, id)).join("list"));
                lists.map(|list| put_folder(&list)).collect()
            }
            _ => {
                closed(&made);
                vec![put_folder(&made.directory.join(bucket_name(1)))]
            }
        };
        std::fs::write(made.directory.join("SUPER"), "damaged").unwrap();
        assert_eq!(Tier::open(&store(), &made, &mut |_, _| ()).err().unwrap().status, NMC_ERR_CORRUPT);
        let reset = Config { on_damage: OnDamage::Reset, ..made.clone() };
        for round in 0..2 {
            let store = store();
            let tier = open(&store, &reset);
            assert_eq!(tier.stats().unwrap().objects, round);
            // As many buckets as there were before.
            for i in 0..KEYS as u64 + 2 {
                put(&store, "new", &value(i, 10_000));
                assert_eq!(tier.offload(None).unwrap(), 1);
                evict(&store);
                assert_eq!(get(&store, "new").unwrap(), value(i, 10_000));
                store.remove(b"new").unwrap();
            }
            put(&store, &key(usize::try_from(round).unwrap()), b"v");
            assert_eq!((tier.offload(None).unwrap(), tier.stats().unwrap().degraded), (1, 0));
        }
        for mine in foreign {
            // A folder with it may have been set aside.
            let there = all_below(&made.directory).into_iter().any(|(path, _)| path.ends_with("mine"));
            assert!(mine.exists() || there && backend == Backend::File, "{}", mine.display());
        }
    }
}

#[test]
fn a_tier_that_cannot_begin_anew_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        (Backend::Bucket, "SUPER"),
        (Backend::Bucket, "journal.9"),
        (Backend::File, "SUPER.tmp"),
        (Backend::Offset, "kv_cache.data"),
    ];
    for (number, (backend, name)) in cases.into_iter().enumerate() {
        let directory = dir.path().join(number.to_string());
        let made = Config { directory, backend, capacity_bytes: 16 << 20, ..config(&dir) };
        closed(&made);
        if name != "kv_cache.data" {
            std::fs::remove_file(made.directory.join("SUPER")).unwrap();
        }
        put_folder(&made.directory.join(name));
        let before = all_below(&made.directory);
        let reset = Config { on_damage: OnDamage::Reset, ..made.clone() };
        let error = Tier::open(&store(), &reset, &mut |_, _| ()).err().unwrap();
        assert_eq!(error.status, NMC_ERR_PERMISSION, "{error}");
        assert!(error.message.contains(name), "{error}");
        assert_eq!(all_below(&made.directory), before);
        // It begins when that is away.
        std::fs::remove_dir_all(made.directory.join(name)).unwrap();
        assert_eq!(open(&store(), &reset).stats().unwrap().objects, 0);
    }
}
