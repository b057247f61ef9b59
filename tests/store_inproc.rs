//! The store in one process: what a program sees, without any other process involved.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "a test that damages memory")]

#[path = "../src/base/random.rs"]
mod random;
#[path = "common/store.rs"]
mod values;

use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::mem::{HeapKind, Import};
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Keep, Look, PutOptions, Retain};
use nanomc::store::{Config, Policy, Store};
use nanomc::world::Hosting;
use random::Random;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;
use values::{get_if as get, put, put_as, slice, slice_mut};

const PAGE: u32 = 4096;

fn world(pages: u64, ranks: u32) -> nanomc::world::Config {
    nanomc::world::Config {
        name: "local".into(),
        dir: None,
        rank: None,
        world_size: ranks,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes: pages * u64::from(PAGE),
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 0,
        hosting: Hosting::Rank0,
        deadline: Deadline::after(Duration::from_secs(30)),
        drain_ms: 0,
        service_cpu: None,
        give_up: std::sync::Arc::default(),
    }
}

fn store_with(pages: u64, ranks: u32, config: Config) -> Store {
    Store::embedded(&world(pages, ranks), &Config { page_bytes: PAGE, ..config }).unwrap()
}

fn store(pages: u64) -> Store {
    store_with(pages, 1, Config::default())
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap().wrapping_add(seed)).collect()
}

#[test]
fn what_was_put_is_read_back_at_every_size() {
    let store = store(64);
    for len in [0usize, 1, 4095, 4096, 4097, 3 * 4096, 40_000] {
        let (key, value) = (format!("k{len}"), bytes(len, 7));
        put(&store, key.as_bytes(), &value).unwrap();
        assert_eq!(get(&store, key.as_bytes()).unwrap(), value, "{len}");
        assert_eq!(put(&store, key.as_bytes(), b"other").unwrap_err().status, NMC_ERR_EXISTS);
        assert_eq!(get(&store, key.as_bytes()).unwrap(), value);
    }
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 4096 * (1 + 1 + 1 + 2 + 3 + 10));
    assert_eq!(get(&store, b"nothing"), None);
}

#[test]
fn a_full_heap_evicts_the_oldest_and_pinned_objects_stay() {
    let store = store(10);
    let Look::Missing = store.pin(b"0").unwrap() else { panic!() };
    put(&store, b"pinned", &bytes(4096, 1)).unwrap();
    let Look::Ready((pin, _)) = store.pin(b"pinned").unwrap() else { panic!() };
    for i in 0..100u8 {
        put(&store, &[i], &bytes(4096, i)).unwrap();
        assert_eq!(get(&store, &[i]).unwrap(), bytes(4096, i));
    }
    assert_eq!(get(&store, b"pinned").unwrap(), bytes(4096, 1));
    assert_eq!(get(&store, &[0]), None);
    assert!(store.stats().unwrap().ranks[0].evict_in_use_retry > 0);
    store.unpin(pin).unwrap();
    assert_eq!(store.unpin(pin).unwrap_err().status, NMC_ERR_NOT_FOUND);
}

#[test]
fn a_heap_of_pinned_objects_is_busy_not_corrupt() {
    let store = store(4);
    let mut pins = Vec::new();
    for i in 0..4u8 {
        put(&store, &[i], &bytes(4096, i)).unwrap();
        let Look::Ready((pin, _)) = store.pin(&[i]).unwrap() else { panic!() };
        pins.push(pin);
    }
    assert_eq!(put(&store, b"more", b"x").unwrap_err().status, NMC_ERR_BUSY);
    assert_eq!(put(&store, b"huge", &bytes(5 * 4096, 0)).unwrap_err().status, NMC_ERR_NO_SPACE);
    for (i, pin) in pins.iter().enumerate() {
        assert_eq!(get(&store, &[u8::try_from(i).unwrap()]).unwrap(), bytes(4096, u8::try_from(i).unwrap()));
        store.unpin(*pin).unwrap();
    }
    put(&store, b"more", b"x").unwrap();
    assert!(store.stats().unwrap().ranks[0].oom_count >= 2);
}

#[test]
fn a_removed_object_stays_for_who_has_pinned_it() {
    let store = store(4);
    put(&store, b"a", &bytes(4096, 3)).unwrap();
    let Look::Ready((pin, place)) = store.pin(b"a").unwrap() else { panic!() };
    store.remove(b"a").unwrap();
    assert_eq!(store.remove(b"a").unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert_eq!(get(&store, b"a"), None);
    put(&store, b"a", &bytes(4096, 4)).unwrap();
    for i in 0..20u8 {
        put(&store, &[b'x', i], &bytes(4096, i)).unwrap();
    }
    let address = store.base(0).unwrap() + place.offset;
    // SAFETY: the value, which is pinned.
    assert_eq!(unsafe { std::slice::from_raw_parts(address as *const u8, 4096) }, bytes(4096, 3));
    assert_eq!(store.stats().unwrap().ranks[0].limbo_bytes, 4096);
    store.unpin(pin).unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].limbo_bytes, 0);
    assert_eq!(place.bytes_total, 4096);
}

#[test]
fn plans_are_committed_once_aborted_for_good_and_never_mixed_up() {
    let store = store(8);
    let (plan, place) = store.open_for_write(b"k", 5000, &PutOptions::DEFAULT).unwrap();
    assert_eq!((place.n_pages, place.last_page_bytes), (2, 904));
    assert!(matches!(store.state(b"k").unwrap(), Look::Writing(..)));
    assert_eq!(put(&store, b"k", b"x").unwrap_err().status, NMC_ERR_EXISTS);
    let foreign = nanomc::store::types::Opened { plan_id: plan.plan_id ^ 1, ..plan };
    assert_eq!(store.commit(&foreign).unwrap_err().status, NMC_ERR_NOT_FOUND);
    let other = nanomc::store::types::Opened { index: plan.index + 1, ..plan };
    assert_eq!(store.commit(&other).unwrap_err().status, NMC_ERR_NOT_FOUND);
    store.commit(&plan).unwrap();
    store.commit(&plan).unwrap();
    assert_eq!(store.abort(&plan).unwrap_err().status, NMC_ERR_INVALID_ARG);
    let (plan, _) = store.open_for_write(b"gone", 5000, &PutOptions::DEFAULT).unwrap();
    store.abort(&plan).unwrap();
    assert_eq!(store.abort(&plan).unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert_eq!(store.commit(&plan).unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert!(!store.exists(b"gone").unwrap());
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 8192);
}

#[test]
fn a_late_writer_is_given_up_and_its_memory_kept_until_it_stops() {
    let store = store_with(4, 1, Config { watchdog_ms: 20, ..Config::default() });
    let (plan, _) = store.open_for_write(b"slow", 4096, &PutOptions::DEFAULT).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    let stats = store.stats().unwrap().ranks[0];
    assert_eq!((stats.stuck_put_reclaimed, stats.quarantined_bytes, stats.bytes_used), (1, 4096, 4096));
    assert!(matches!(store.state(b"slow").unwrap(), Look::Missing));
    put(&store, b"slow", b"another").unwrap();
    assert_eq!(store.commit(&plan).unwrap_err().status, NMC_ERR_STALE);
    let stats = store.stats().unwrap().ranks[0];
    assert_eq!((stats.quarantined_bytes, stats.bytes_used), (0, 4096));
    assert_eq!(get(&store, b"slow").unwrap(), b"another");
}

#[test]
fn replacing_shows_the_old_value_until_the_new_one_is_complete() {
    let store = store(8);
    let replace = PutOptions { replace: true, ..PutOptions::DEFAULT };
    put(&store, b"k", &bytes(5000, 1)).unwrap();
    let (plan, _) = store.open_for_write(b"k", 10, &replace).unwrap();
    assert_eq!(get(&store, b"k").unwrap(), bytes(5000, 1));
    store.commit(&plan).unwrap();
    assert_eq!(get(&store, b"k").unwrap().len(), 10);
    put_as(&store, b"k", b"third", &replace).unwrap();
    put_as(&store, b"new", b"fresh", &replace).unwrap();
    assert_eq!((get(&store, b"k").unwrap(), get(&store, b"new").unwrap()), (b"third".to_vec(), b"fresh".to_vec()));
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 8192);
}

#[test]
fn a_value_spans_extents_when_no_run_is_long_enough() {
    let store = store_with(64, 1, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
    for i in 0..64u8 {
        put(&store, &[i], &bytes(4096, i)).unwrap();
    }
    for i in (0..64u8).step_by(2) {
        store.remove(&[i]).unwrap();
    }
    let value = bytes(20 * 4096 - 5, 9);
    let contiguous = PutOptions { contiguous: true, ..PutOptions::DEFAULT };
    put(&store, b"spread", &value).unwrap();
    let Look::Ready(place) = store.location(b"spread").unwrap() else { panic!() };
    assert_eq!(place.n_extents, 20);
    assert_eq!(get(&store, b"spread").unwrap(), value);
    let mut part = vec![0u8; 9000];
    let slices = [slice_mut(&mut part)];
    store.read(b"spread", 8000, &Pieces::Slices(&slices), |_| Ok(true)).unwrap();
    assert_eq!(part, &value[8000..17000]);
    put_as(&store, b"one run", &bytes(3 * 4096, 2), &contiguous).unwrap();
    let Look::Ready(place) = store.location(b"one run").unwrap() else { panic!() };
    assert_eq!(place.n_extents, 1);
    assert_eq!(get(&store, b"spread"), Some(value));
}

#[test]
fn namespaces_have_their_own_keys_quota_and_end() {
    let store = store(32);
    let ns = store.namespace(b"model-7", Some(3 * 4096)).unwrap();
    put(&store, b"k", b"default").unwrap();
    for i in 0..5u8 {
        put(&ns, &[b'k', i], &bytes(4096, i)).unwrap();
    }
    assert_eq!((0..5u8).filter(|i| ns.exists(&[b'k', *i]).unwrap()).count(), 3);
    assert!(!ns.exists(b"k").unwrap());
    assert_eq!(put(&ns, b"big", &bytes(4 * 4096, 0)).unwrap_err().status, NMC_ERR_NO_SPACE);
    put(&ns, b"k", b"own").unwrap();
    assert_eq!((get(&store, b"k").unwrap(), get(&ns, b"k").unwrap()), (b"default".to_vec(), b"own".to_vec()));
    ns.remove_all().unwrap();
    assert!(!ns.exists(b"k").unwrap());
    put(&ns, b"k", b"again").unwrap();
    assert_eq!(get(&ns, b"k").unwrap(), b"again");
    std::thread::sleep(Duration::from_millis(5));
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(2));
        store.stats().unwrap();
    }
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 2 * 4096);
    assert_eq!(get(&store, b"k").unwrap(), b"default");
}

/// Keys and sizes of all objects.
fn listed(store: &Store) -> Vec<(Vec<u8>, u64)> {
    let mut cursor = 0;
    let next = || {
        let found = store.next(cursor).unwrap()?;
        cursor = found.cursor;
        Some((found.key, found.bytes))
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn what_stays_is_listed_once_whatever_comes_and_goes() {
    let store = store(64);
    for i in 0..20u8 {
        put(&store, &[i], b"1").unwrap();
    }
    let (mut cursor, mut seen) = (0, Vec::new());
    while let Some(found) = store.next(cursor).unwrap() {
        cursor = found.cursor;
        seen.push(found.key.clone());
        // Odd ones go, also such as were listed already, and others come.
        let _ = store.remove(&[u8::try_from(seen.len() % 100).unwrap() * 2 + 1]);
        let _ = put(&store, &[100 + u8::try_from(seen.len() % 100).unwrap()], b"2");
    }
    for even in (0..20u8).step_by(2) {
        assert_eq!(seen.iter().filter(|key| **key == [even]).count(), 1, "{even}");
    }
    assert_eq!(store.next(cursor).unwrap(), None, "the end stays the end");
    assert_eq!(store.next(u64::MAX).unwrap(), None);
}

#[test]
fn objects_are_removed_by_the_beginning_of_their_keys_and_listed() {
    let store = store(64);
    for i in 0..10u8 {
        put(&store, format!("a/{i}").as_bytes(), b"1").unwrap();
        put(&store, format!("b/{i}").as_bytes(), b"22").unwrap();
    }
    assert_eq!(store.remove_by_prefix(b"a/").unwrap(), 10);
    let keys = listed(&store);
    assert_eq!(keys.len(), 10);
    assert!(keys.iter().all(|(key, bytes)| key.starts_with(b"b/") && *bytes == 2));
    let asked: Vec<Vec<u8>> = (0..12).map(|i| format!("b/{i}").into_bytes()).collect();
    assert_eq!(store.match_prefix(asked.iter().map(|key| Ok(key.as_slice()))).unwrap(), 10);
}

#[test]
fn a_damaged_page_is_reported_and_not_returned() {
    let store = store_with(16, 1, Config { checksums: true, ..Config::default() });
    let value = bytes(10_000, 5);
    put(&store, b"k", &value).unwrap();
    assert_eq!(get(&store, b"k").unwrap(), value);
    let Look::Ready((pin, place)) = store.pin(b"k").unwrap() else { panic!() };
    let address = store.base(0).unwrap() + place.offset + 9_999;
    // SAFETY: inside the value, which is pinned.
    unsafe { (address as *mut u8).write(0xee) };
    let mut buffer = vec![0u8; 10_000];
    let slices = [slice_mut(&mut buffer)];
    let read = store.read(b"k", 0, &Pieces::Slices(&slices), |_| Ok(true));
    assert_eq!(read.unwrap_err().status, NMC_ERR_CORRUPT);
    let slices = [slice_mut(&mut buffer[..100])];
    store.read(b"k", 0, &Pieces::Slices(&slices), |_| Ok(true)).unwrap();
    store.unpin(pin).unwrap();
}

#[test]
fn readers_may_begin_with_the_first_pages() {
    let store = store(8);
    let (plan, _) = store.open_for_write(b"k", 3 * 4096, &PutOptions::DEFAULT).unwrap();
    assert!(matches!(store.pin_partial(b"k", 1).unwrap(), Look::Writing(..)));
    store.publish_pages(&plan, 2).unwrap();
    assert_eq!(store.publish_pages(&plan, 1).unwrap_err().status, NMC_ERR_INVALID_ARG);
    let Look::Ready((pin, _, ready)) = store.pin_partial(b"k", 2).unwrap() else { panic!() };
    assert_eq!(ready, 2);
    assert!(matches!(store.pin_partial(b"k", 3).unwrap(), Look::Writing(..)));
    assert!(matches!(store.pin(b"k").unwrap(), Look::Writing(..)));
    store.abort(&plan).unwrap();
    assert_eq!(store.progress(pin.index, pin.epoch).unwrap_err().status, NMC_ERR_STALE);
    assert_eq!(store.stats().unwrap().ranks[0].limbo_bytes, 3 * 4096);
    store.unpin(pin).unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 0);
}

#[test]
fn retained_objects_outlive_the_others() {
    let store = store(16);
    let keep = |retain, ttl_ms| PutOptions { keep: Keep { retain, priority: 0, ttl_ms }, ..PutOptions::DEFAULT };
    put_as(&store, b"hard", &bytes(4096, 1), &keep(Retain::Hard, 0)).unwrap();
    put_as(&store, b"soft", &bytes(4096, 2), &keep(Retain::Soft, 0)).unwrap();
    put_as(&store, b"brief", &bytes(4096, 3), &keep(Retain::Soft, 1)).unwrap();
    put(&store, b"plain", &bytes(4096, 3)).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    for i in 0..100u8 {
        put(&store, &[i], &bytes(4096, i)).unwrap();
    }
    let there: Vec<bool> =
        [&b"hard"[..], b"soft", b"brief", b"plain"].iter().map(|k| store.exists(k).unwrap()).collect();
    assert_eq!(there, [true, true, false, false]);
    store.retain(b"hard", Keep::DEFAULT).unwrap();
    store.evict_until_below(0, 0).unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 0);
}

#[test]
fn waiting_ends_with_the_publication_the_deadline_or_the_end_of_the_writer() {
    let store = store(8);
    let soon = Deadline::after(Duration::from_millis(5));
    let later = || Deadline::after(Duration::from_secs(30));
    assert_eq!(store.wait_ready(b"k", None, false, &later()).unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert_eq!(store.wait_ready(b"k", None, true, &soon).unwrap_err().status, NMC_ERR_TIMEOUT);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| store.wait_ready(b"k", None, true, &later()));
        std::thread::sleep(Duration::from_millis(10));
        put(&store, b"k", b"x").unwrap();
        waiter.join().unwrap().unwrap();
        let (plan, _) = store.open_for_write(b"w", 10, &PutOptions::DEFAULT).unwrap();
        let waiter = scope.spawn(|| store.wait_ready(b"w", None, false, &later()));
        std::thread::sleep(Duration::from_millis(10));
        store.abort(&plan).unwrap();
        assert!([NMC_ERR_STALE, NMC_ERR_NOT_FOUND].contains(&waiter.join().unwrap().unwrap_err().status));
        let waiter = scope.spawn(|| store.wait_ready(b"never", None, true, &later()));
        // Who begins to wait after a cancel is not cancelled by it.
        while !waiter.is_finished() {
            store.cancel();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waiter.join().unwrap().unwrap_err().status, NMC_ERR_CANCELLED);
    });
}

#[test]
fn ranks_of_a_local_world_share_a_store_and_routes_are_kept() {
    let worlds = nanomc::world::World::local(&world(16, 3)).unwrap();
    let config = Config { page_bytes: PAGE, ..Config::default() };
    let stores: Vec<Store> = worlds.iter().map(|w| Store::attach(w, &config).unwrap()).collect();
    for rank in 0..3u32 {
        let options = PutOptions { rank: Some(rank), ..PutOptions::DEFAULT };
        put_as(&stores[0], &[u8::try_from(rank).unwrap()], &bytes(5000, 1), &options).unwrap();
    }
    for (store, rank) in stores.iter().zip(0u32..) {
        let Look::Ready(place) = store.location(&[u8::try_from(rank).unwrap()]).unwrap() else { panic!() };
        assert_eq!(place.owner_rank, rank);
        assert_eq!(get(store, &[0]).unwrap(), bytes(5000, 1));
    }
    let other = Config { page_bytes: 8192, ..config.clone() };
    assert_eq!(Store::attach(&worlds[0], &other).err().unwrap().status, NMC_ERR_MISMATCH);
    let Look::Ready((_, _)) = stores[2].pin(&[0]).unwrap() else { panic!() };
    drop(stores);
    let again = Store::attach(&worlds[1], &config).unwrap();
    assert_eq!(get(&again, &[0]), None);
}

#[test]
fn every_policy_keeps_the_books() {
    for policy in [Policy::Fifo, Policy::Lru, Policy::S3Fifo] {
        let store = store_with(32, 1, Config { policy, max_objects: Some(24), ..Config::default() });
        let mut random = Random(1);
        for i in 0..5_000u64 {
            let key: u64 = random.below(100);
            let value = bytes(random.below(9000), u8::try_from(key).unwrap());
            match put(&store, &key.to_le_bytes(), &value) {
                Ok(()) => assert_eq!(get(&store, &key.to_le_bytes()).unwrap(), value),
                Err(error) => assert_eq!(error.status, NMC_ERR_EXISTS, "{i}: {error}"),
            }
        }
        let pages: u64 = listed(&store).iter().map(|(_, bytes)| bytes.div_ceil(PAGE.into())).sum();
        let stats = store.stats().unwrap().ranks[0];
        assert_eq!(stats.bytes_used, pages * u64::from(PAGE), "{policy:?}");
        assert!(stats.evict_count > 100);
        store.evict_until_below(0, 0).unwrap();
        assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 0);
    }
}

fn said(store: &Store, key: &[u8]) -> Vec<u8> {
    match store.metadata(key).unwrap() {
        Look::Ready(metadata) => metadata.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Of every length, with keys that fit the header and such that do not, and values in one run and in several.
#[test]
fn metadata_comes_back_as_it_was_given() {
    for checksums in [false, true] {
        let (key_bytes, max_objects) = (Some(1 << 20), Some(4096));
        let (high_permille, low_permille) = (1000, 1000);
        let config = Config { checksums, key_bytes, max_objects, high_permille, low_permille, ..Config::default() };
        let store = store_with(1024, 1, config);
        let key = |n: usize, i: usize| format!("{i:04}{}", "k".repeat(n)).into_bytes();
        for len in (0..=256).filter(|len| len % 37 < 3 || *len > 250) {
            for (i, n) in [1, 28, 29, 40, 1000].into_iter().enumerate() {
                let (key, metadata) = (key(n, i), bytes(len, 3));
                let options = PutOptions { metadata: &metadata, ..PutOptions::DEFAULT };
                put_as(&store, &key, &bytes(n * 9, 4), &options).unwrap();
                assert_eq!(said(&store, &key), metadata);
                assert_eq!(get(&store, &key).unwrap(), bytes(n * 9, 4));
                store.retain(&key, Keep { retain: Retain::Soft, priority: 3, ttl_ms: 9 }).unwrap();
                assert_eq!(said(&store, &key), metadata, "what is kept otherwise says the same");
                store.remove(&key).unwrap();
            }
        }
        // In many runs: the metadata is behind the last of them.
        for i in 0..1024u32 {
            put(&store, &i.to_le_bytes(), &[1]).unwrap();
        }
        (0..1024u32).step_by(2).for_each(|i| store.remove(&i.to_le_bytes()).unwrap());
        let options = PutOptions { metadata: b"behind all extents", ..PutOptions::DEFAULT };
        put_as(&store, b"spread", &bytes(100 * 4096, 5), &options).unwrap();
        let Look::Ready((pin, place)) = store.pin(b"spread").unwrap() else { panic!() };
        assert!(place.n_extents > 50);
        assert_eq!(store.view_metadata(pin).unwrap(), store.metadata(b"spread").unwrap());
        assert_eq!(said(&store, b"spread"), b"behind all extents");
        assert_eq!(get(&store, b"spread").unwrap(), bytes(100 * 4096, 5));
        store.unpin(pin).unwrap();
        let long = [0; 257];
        let options = PutOptions { metadata: &long, ..PutOptions::DEFAULT };
        assert_eq!(put_as(&store, b"long", b"v", &options).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(store.metadata(b"none").unwrap(), Look::Missing);
    }
}

#[test]
fn metadata_is_replaced_with_the_value_and_nobody_sees_one_with_the_other() {
    let store = store_with(64, 1, Config { checksums: true, ..Config::default() });
    let options = |metadata| PutOptions { metadata, replace: true, ..PutOptions::DEFAULT };
    put_as(&store, b"k", b"one", &options(b"first")).unwrap();
    let Look::Ready((pin, _)) = store.pin(b"k").unwrap() else { panic!() };
    put_as(&store, b"k", b"two", &options(b"")).unwrap();
    assert_eq!((said(&store, b"k"), get(&store, b"k").unwrap()), (Vec::new(), b"two".to_vec()));
    let Look::Ready(old) = store.view_metadata(pin).unwrap() else { panic!() };
    assert_eq!(&*old, b"first", "whoever has pinned the old value keeps what was said of it");
    store.unpin(pin).unwrap();
    assert_eq!(store.view_metadata(pin).unwrap_err().status, NMC_ERR_NOT_FOUND);
}

#[test]
fn a_batch_has_metadata_for_all_or_for_each() {
    let store = store(64);
    let slices = [slice(b"v")];
    let items: Vec<(&[u8], Pieces<'_>)> =
        [&b"a"[..], b"b", b"c"].iter().map(|key| (*key, Pieces::Slices(&slices))).collect();
    let all = PutOptions { metadata: b"all", ..PutOptions::DEFAULT };
    assert!(store.put_many(&items, &all).unwrap().iter().all(Result::is_ok));
    assert!([b"a", b"b", b"c"].iter().all(|key| said(&store, *key) == b"all"));
    let each = PutOptions { metadata_each: &[b"1", b"", b"333"], replace: true, ..all };
    assert!(store.put_many(&items, &each).unwrap().iter().all(Result::is_ok));
    assert_eq!([said(&store, b"a"), said(&store, b"b"), said(&store, b"c")], [&b"1"[..], b"", b"333"]);
    let opened = store.open_many(&[(b"d", 1), (b"", 1), (b"e", 1)], &each).unwrap();
    for (plan, _) in opened.into_iter().flatten() {
        store.commit(&plan).unwrap();
    }
    assert_eq!([said(&store, b"d"), said(&store, b"e")], [&b"1"[..], b"333"], "those of refused items are left out");
}

#[test]
fn a_view_is_verified_and_damage_is_named_by_its_page() {
    let plain = store(8);
    put(&plain, b"k", b"v").unwrap();
    let Look::Ready((pin, _)) = plain.pin(b"k").unwrap() else { panic!() };
    assert_eq!(plain.verify(pin).unwrap_err().status, NMC_ERR_UNSUPPORTED);
    let store = store_with(16, 1, Config { checksums: true, ..Config::default() });
    put(&store, b"k", &bytes(5 * 4096 + 9, 1)).unwrap();
    let Look::Ready((pin, place)) = store.pin(b"k").unwrap() else { panic!() };
    assert_eq!(store.verify(pin).unwrap(), Look::Ready(()));
    let byte = (store.base(0).unwrap() + place.offset + 3 * 4096 + 1) as *mut u8;
    // SAFETY: inside the value, which is pinned.
    let was = unsafe { byte.replace(0xee) };
    let error = store.verify(pin).unwrap_err();
    assert!(error.status == NMC_ERR_CORRUPT && error.message.contains("page 3 "), "{error}");
    // SAFETY: as above.
    unsafe { byte.write(was) };
    assert_eq!(store.verify(pin).unwrap(), Look::Ready(()), "the control: nothing else was wrong");
    store.unpin(pin).unwrap();
    assert_eq!(store.verify(pin).unwrap_err().status, NMC_ERR_NOT_FOUND);
    // Published by the program: the checksums come with the commit.
    let (plan, _) = store.open_for_write(b"own", 5000, &PutOptions::DEFAULT).unwrap();
    // SAFETY: the publish word of a plan of ours.
    unsafe { &*(store.publish_word(plan.index).0 as *const AtomicU64) }.store(plan.epoch, Release);
    let Look::Ready((pin, _)) = store.pin(b"own").unwrap() else { panic!() };
    assert!(matches!(store.verify(pin).unwrap(), Look::Writing(..)));
    assert!(matches!(store.view_metadata(pin).unwrap(), Look::Writing(..)));
    assert!(matches!(store.consume(b"own").unwrap(), Look::Writing(..)), "nobody takes what cannot be verified");
    store.commit(&plan).unwrap();
    assert_eq!(store.verify(pin).unwrap(), Look::Ready(()));
}

#[test]
fn what_is_consumed_is_the_consumers_until_it_unpins() {
    let store = store(8);
    put(&store, b"k", &bytes(5000, 1)).unwrap();
    let Look::Ready((reader, _)) = store.pin(b"k").unwrap() else { panic!() };
    let Look::Ready((pin, _)) = store.consume(b"k").unwrap() else { panic!() };
    assert_eq!(store.consume(b"k").unwrap(), Look::Missing);
    assert!(!store.exists(b"k").unwrap());
    put(&store, b"k", b"another").unwrap();
    store.unpin(reader).unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].limbo_bytes, 2 * 4096);
    store.unpin(pin).unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].limbo_bytes, 0);
    let Look::Ready((pin, place)) = store.consume(b"k").unwrap() else { panic!() };
    assert_eq!(place.bytes_total, 7);
    store.unpin(pin).unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 0);
    let (plan, _) = store.open_for_write(b"w", 5, &PutOptions::DEFAULT).unwrap();
    assert!(matches!(store.consume(b"w").unwrap(), Look::Writing(..)));
    store.commit(&plan).unwrap();
    store.remove_all().unwrap();
    assert_eq!(store.consume(b"w").unwrap(), Look::Missing);
}

/// A store of one process may lie in memory of its program.
#[test]
fn a_store_lies_in_memory_that_the_program_lends() {
    let mut memory = vec![0u64; 16 * 4096 / 8];
    let (base, bytes) = (memory.as_mut_ptr() as u64, 16 * 4096);
    let config = Config { page_bytes: PAGE, checksums: true, ..Config::default() };
    // SAFETY: the memory stays, and is not looked at, until the store is gone.
    let lent = || unsafe { Import::host_ptr(base, bytes) };
    let store = Store::embedded_on(&world(16, 1), lent(), &config).unwrap();
    assert_eq!(store.base(0).unwrap(), base);
    put(&store, b"k", &[7; 5000]).unwrap();
    assert_eq!(get(&store, b"k").unwrap(), [7; 5000]);
    assert_eq!(store.heap_usage(0), (2 * 4096, bytes));
    drop(store);
    assert!(memory.contains(&0x0707_0707_0707_0707), "that is where it was");
    let two = Store::embedded_on(&world(16, 2), lent(), &config);
    assert_eq!(two.err().map(|error| error.status), Some(NMC_ERR_INVALID_ARG));
    let larger = Store::embedded_on(&world(17, 1), lent(), &config);
    assert_eq!(larger.err().map(|error| error.status), Some(NMC_ERR_INVALID_ARG), "more than was lent");
}
