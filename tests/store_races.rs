//! Mistakes that the store once made, each as a test that failed then.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "a program that publishes by itself, and the C functions")]

mod common;
#[path = "common/ffi.rs"]
mod ffi;
#[path = "common/store.rs"]
mod values;

use common::{PATIENCE, config as world_config, eventually};
use ffi::{fresh, slice};
use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::ffi::store as c;
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Look, PutOptions};
use nanomc::store::{Config, Policy, Store};
use nanomc::world::World;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use values::{get_if as get, put, put_as, slice_mut};

const PAGE: u32 = 4096;

fn store_with(pages: u64, config: Config) -> Store {
    let mut world = world_config(std::path::Path::new("/"), None, 1);
    (world.dir, world.heap_bytes) = (None, pages * u64::from(PAGE));
    Store::embedded(&world, &Config { page_bytes: PAGE, ..config }).unwrap()
}

/// What a kernel does at its end: the program stores the epoch itself.
fn publish_by_hand(store: &Store, index: u32, epoch: u64) {
    let (word, _) = store.publish_word(index);
    // SAFETY: the publish word of an open plan of this store.
    unsafe { AtomicU64::from_ptr(word as *mut u64) }.store(epoch, Ordering::Release);
}

/// `nmc_store_commit`: "If the program has stored `epoch` into the publish word itself, it only looks what became of the
/// plan." It stored the old epoch again, over that of whoever has the header now.
#[test]
fn asking_what_became_of_a_plan_does_not_unpublish_the_next_object_in_its_header() {
    for checksums in [false, true] {
        let store = store_with(8, Config { max_objects: Some(1), checksums, ..Config::default() });
        let (plan, _) = store.open_for_write(b"mine", 100, &PutOptions::DEFAULT).unwrap();
        publish_by_hand(&store, plan.index, plan.epoch);
        store.remove(b"mine").unwrap();
        put(&store, b"other", b"somebody else's").unwrap();
        assert_eq!(get(&store, b"other").unwrap(), b"somebody else's");
        let asked = store.commit(&plan).unwrap_err().status;
        assert!(asked == NMC_ERR_STALE || asked == NMC_ERR_NOT_FOUND);
        assert_eq!(get(&store, b"other").as_deref(), Some(&b"somebody else's"[..]), "checksums {checksums}");
        // The same for a plan that begins again: progress is the next writer's.
        store.remove(b"other").unwrap();
        let (first, _) = store.open_for_write(b"first", 2 * 4096, &PutOptions::DEFAULT).unwrap();
        publish_by_hand(&store, first.index, first.epoch);
        store.remove(b"first").unwrap();
        let (_second, _) = store.open_for_write(b"second", 2 * 4096, &PutOptions::DEFAULT).unwrap();
        let _ = store.publish_pages(&first, 2);
        assert!(!matches!(store.pin_partial(b"second", 1).unwrap(), Look::Ready(_)), "nothing of it is stored");
    }
}

/// A view that was unpinned ended the next pin of the same object by the same thread, which had got the same slot.
#[test]
fn a_view_that_was_unpinned_does_not_end_a_later_pin_of_the_object() {
    let store = store_with(8, Config::default());
    put(&store, b"k", b"value").unwrap();
    let Look::Ready((stale, _)) = store.pin(b"k").unwrap() else { panic!() };
    store.unpin(stale).unwrap();
    let Look::Ready((pin, _)) = store.pin(b"k").unwrap() else { panic!() };
    assert_eq!((pin.slot, pin.index, pin.epoch), (stale.slot, stale.index, stale.epoch), "the case that matters");
    assert_eq!(store.unpin(stale).unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert_eq!(store.check_view(stale).unwrap_err().status, NMC_ERR_NOT_FOUND);
    store.check_view(pin).unwrap();
    store.remove(b"k").unwrap();
    assert_eq!(store.stats().unwrap().ranks[0].limbo_bytes, 4096, "it is still pinned");
    store.unpin(pin).unwrap();
}

/// A waiter that is killed says for ever that it waits; every commit woke it.
#[test]
fn a_waiter_that_died_costs_one_wake() {
    let store = store_with(8, Config::default());
    let layout = nanomc::layout::store::Layout::new(*store.client().params());
    let words = store.publish_word(0).0 - layout.published_offset(0) as u64;
    // SAFETY: the words begin with the bell: the ring, and whether somebody waits.
    let bell = |at: u64| unsafe { AtomicU32::from_ptr((words + at) as *mut u32) };
    let (ring, waiting) = (bell(0), bell(4));
    waiting.store(1, Ordering::SeqCst);
    let before = ring.load(Ordering::SeqCst);
    for key in [b"a", b"b", b"c"] {
        put(&store, key, b"x").unwrap();
    }
    assert_eq!((ring.load(Ordering::SeqCst) - before, waiting.load(Ordering::SeqCst)), (1, 0));
    // Who waits is still woken.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| store.wait_ready(b"d", None, true, &Deadline::after(PATIENCE)));
        assert!(eventually(|| waiting.load(Ordering::SeqCst) != 0));
        put(&store, b"d", b"x").unwrap();
        waits.join().unwrap().unwrap();
    });
    assert!(ring.load(Ordering::SeqCst) - before >= 2);
}

/// An object that its program published had no checksums until `commit`, and reads said that it was damaged.
#[test]
fn what_is_published_before_its_checksums_are_stored_is_not_ready() {
    let store = store_with(8, Config { checksums: true, ..Config::default() });
    let (plan, place) = store.open_for_write(b"k", 5000, &PutOptions::DEFAULT).unwrap();
    let address = store.base(place.owner_rank).unwrap() + place.offset;
    // SAFETY: the pages of an open plan.
    unsafe { (address as *mut u8).write_bytes(7, 5000) };
    publish_by_hand(&store, plan.index, plan.epoch);
    let mut buffer = vec![0u8; 5000];
    let slices = [slice_mut(&mut buffer)];
    let read = || store.read(b"k", 0, &Pieces::Slices(&slices), |_| Ok(true));
    assert!(matches!(read().unwrap(), Look::Writing(..)));
    store.stats().unwrap(); // the master looks; it does not count the object as ready
    assert!(matches!(read().unwrap(), Look::Writing(..)));
    store.commit(&plan).unwrap();
    assert_eq!(read().unwrap(), Look::Ready(5000));
    assert!(buffer.iter().all(|byte| *byte == 7));
}

/// A kernel that publishes late has stored its last byte: its pages are free, though nobody calls commit.
#[test]
fn a_late_writer_that_publishes_by_itself_has_stopped() {
    let store = store_with(4, Config { watchdog_ms: 20, ..Config::default() });
    let (plan, _) = store.open_for_write(b"slow", 4096, &PutOptions::DEFAULT).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(store.stats().unwrap().ranks[0].quarantined_bytes, 4096);
    publish_by_hand(&store, plan.index, plan.epoch);
    assert!(eventually_soon(|| store.stats().unwrap().ranks[0].quarantined_bytes == 0));
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 0);
    assert_eq!(get(&store, b"slow"), None);
}

fn eventually_soon(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// A full quota evicts the namespace's own oldest objects, wherever they are in the line, and never a pinned one.
#[test]
fn a_quota_evicts_what_is_its_own_and_not_pinned() {
    let store = store_with(64, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
    let ns = store.namespace(b"n", Some(3 * 4096)).unwrap();
    let mut pins = Vec::new();
    for key in [b"a", b"b", b"c"] {
        put(&ns, key, b"x").unwrap();
        let Look::Ready((pin, _)) = ns.pin(key).unwrap() else { panic!() };
        pins.push(pin);
    }
    assert!(put(&ns, b"d", b"x").is_err());
    let left = [b"a", b"b", b"c"].iter().filter(|key| ns.exists(key.as_slice()).unwrap()).count();
    assert_eq!(left, 3, "pinned objects stay readable");
    ns.unpin(pins[1]).unwrap();
    put(&ns, b"d", b"x").unwrap();
    assert!(!ns.exists(b"b").unwrap() && ns.exists(b"a").unwrap());

    let store = store_with(6000, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
    let ns = store.namespace(b"n", Some(2 * 4096)).unwrap();
    for i in 0..5000u32 {
        put(&store, &i.to_le_bytes(), b"x").unwrap();
    }
    for i in 0..20u32 {
        let mut tries = 0;
        while let Err(error) = put(&ns, &i.to_le_bytes(), b"x") {
            tries += 1;
            assert!(error.status == NMC_ERR_BUSY && tries < 10, "{i}: {error}");
        }
    }
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 5002 * 4096, "others paid for it");
}

/// What a quota can make no room for makes nothing go: neither what does not fit the quota beside what is pinned, nor what has no room in the heap.
#[test]
fn what_cannot_come_into_a_quota_makes_nothing_of_it_go() {
    let store = store_with(12, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
    let ns = store.namespace(b"n", Some(6 * 4096)).unwrap();
    let keys = [b"a", b"b", b"c", b"d", b"e", b"f"];
    keys.iter().for_each(|key| put(&ns, key.as_slice(), b"x").unwrap());
    let pin = |store: &Store, key: &[u8]| {
        let Look::Ready((pin, _)) = store.pin(key).unwrap() else { panic!() };
        pin
    };
    let pins = [pin(&ns, b"a"), pin(&ns, b"c"), pin(&ns, b"f")];
    let left = || keys.iter().filter(|key| ns.exists(key.as_slice()).unwrap()).count();
    let large = vec![1; 4 * 4096];
    for _ in 0..2 {
        assert_eq!(put(&ns, b"large", &large).unwrap_err().status, NMC_ERR_NO_SPACE);
        assert_eq!(left(), 6, "three could go, and four pages are wanted");
    }
    // Others hold the rest of the heap.
    for n in 0..6u32 {
        put(&store, &n.to_le_bytes(), b"x").unwrap();
    }
    let others: Vec<_> = (0..6u32).map(|n| pin(&store, &n.to_le_bytes())).collect();
    pins.into_iter().take(2).for_each(|pin| ns.unpin(pin).unwrap());
    let larger = vec![1; 6 * 4096];
    assert_eq!(put(&ns, b"larger", &larger).unwrap_err().status, NMC_ERR_BUSY);
    assert_eq!(left(), 6, "five pages can be had");
    // What can come makes as much go as it needs.
    put(&ns, b"large", &large).unwrap();
    assert_eq!(left(), 2);
    others.into_iter().for_each(|pin| store.unpin(pin).unwrap());
}

/// One call of the master looks at a bounded number of objects, whatever the policy.
#[test]
fn an_lru_store_does_not_evict_everything_in_one_call() {
    let config = Config { high_permille: 1000, low_permille: 1000, policy: Policy::Lru, ..Config::default() };
    let store = store_with(20_000, config);
    let mut pins = Vec::new();
    for i in 0..20_000u32 {
        put(&store, &i.to_le_bytes(), b"x").unwrap();
        if i % 64 == 0 {
            let Look::Ready((pin, _)) = store.pin(&i.to_le_bytes()).unwrap() else { panic!() };
            pins.push(pin);
        }
    }
    let contiguous = PutOptions { contiguous: true, ..PutOptions::DEFAULT };
    let refused = put_as(&store, b"long", &vec![1u8; 65 * 4096], &contiguous).unwrap_err();
    assert_eq!(refused.status, NMC_ERR_BUSY);
    let evicted = store.stats().unwrap().ranks[0].evict_count;
    assert!(evicted <= 4096, "{evicted} objects were evicted by one call");
}

/// The pins are looked at once for many objects, not once for each.
#[test]
fn removing_many_objects_does_not_take_a_scan_of_all_pins_each() {
    let store = store_with(8192, Config { pin_slots: 20_000, ..Config::default() });
    for i in 0..6000u32 {
        put(&store, &i.to_le_bytes(), b"x").unwrap();
    }
    put(&store, b"held", b"x").unwrap();
    for _ in 0..20_000 {
        assert!(matches!(store.pin(b"held").unwrap(), Look::Ready(_)));
    }
    let start = Instant::now();
    store.remove_by_prefix(b"").unwrap();
    let took = start.elapsed();
    eprintln!("remove_by_prefix of 6001 objects with 20000 pins took {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// A batch that is larger than the heap makes room as single puts do.
#[test]
fn a_batch_larger_than_the_heap_evicts_as_it_goes() {
    let store = store_with(1024, Config::default());
    let keys: Vec<[u8; 4]> = (0..4000u32).map(u32::to_le_bytes).collect();
    let value = [values::slice(b"x")];
    let items: Vec<(&[u8], Pieces<'_>)> = keys.iter().map(|key| (&key[..], Pieces::Slices(&value))).collect();
    let results = store.put_many(&items, &PutOptions::DEFAULT).expect("memory");
    let failed = results.iter().filter(|r| r.is_err()).count();
    assert_eq!(failed, 0, "{:?}", results.iter().find(|r| r.is_err()));
}

/// Destroying one handle cancels what waits on it, not what waits on others.
#[test]
fn destroying_a_namespace_does_not_cancel_waits_on_other_handles() {
    struct Handle(*mut c::nmc_store_t);
    // SAFETY: handles may be used from any thread.
    unsafe impl Sync for Handle {}
    // SAFETY: the C contract.
    unsafe {
        let mut config: nanomc::ffi::store_types::nmc_store_config_t = fresh();
        (config.heap_bytes, config.device) = (1 << 20, -1);
        config.heap_kind = nanomc::ffi::world_types::NMC_HEAP_HOST;
        config.eviction = nanomc::ffi::common::NMC_EVICT_FIFO;
        (config.high_permille, config.low_permille, config.watchdog_ms) = (-1, -1, -1);
        (config.attach_timeout_ms, config.call_timeout_ms) = (-1, -1);
        let (mut store, mut ns) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(c::nmc_store_create(std::ptr::null_mut(), &raw const config, &raw mut store), 0);
        assert_eq!(c::nmc_store_namespace(store, slice(b"n"), u64::MAX, &raw mut ns), 0);
        let all = Handle(store);
        let all = &all;
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                let appear = nanomc::ffi::store_types::NMC_WAIT_APPEAR;
                nanomc::ffi::store_service::nmc_store_wait_ready(all.0, slice(b"later"), appear, 1000)
            });
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(c::nmc_store_destroy(ns), 0);
            assert_eq!(waiter.join().unwrap(), NMC_ERR_TIMEOUT);
        });
        assert_eq!(c::nmc_store_destroy(store), 0);
    }
}

/// As long as a rank has a client it says so: a new master must not begin with an empty store beside it.
#[test]
fn a_rank_names_its_store_while_any_of_its_clients_lives() {
    let mut config = world_config(std::path::Path::new("/"), None, 1);
    config.dir = None;
    for _ in 0..200 {
        let worlds = World::local(&config).unwrap();
        let barrier = std::sync::Barrier::new(2);
        let make = || {
            barrier.wait();
            Store::attach(&worlds[0], &Config { page_bytes: PAGE, ..Config::default() }).unwrap()
        };
        let (a, b) = std::thread::scope(|s| {
            let other = s.spawn(make);
            (make(), other.join().unwrap())
        });
        drop(a);
        assert_ne!(worlds[0].membership("test").unwrap().store_of(0), 0);
        drop(b);
        assert_eq!(worlds[0].membership("test").unwrap().store_of(0), 0);
    }
}

/// Two ranks of one process call one master. It must hold the lock for as long as either does.
#[test]
fn the_master_keeps_its_lock_while_any_rank_of_its_process_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let worlds = World::join_many((0..2).map(|r| world_config(dir.path(), Some(r), 2)).collect()).unwrap();
    let config = || Config { page_bytes: PAGE, ..Config::default() };
    let first = Store::attach(&worlds[0], &config()).unwrap();
    let second = Store::attach(&worlds[1], &config()).unwrap();
    put(&first, b"k", b"v").unwrap();
    drop(first);
    put(&second, b"l", b"v").unwrap();
    let place = worlds[1].membership("test").unwrap().place("store");
    assert!(place.try_lock().unwrap().is_none(), "another process could become the master of the same memory");
    let again = Store::attach(&worlds[0], &config()).unwrap();
    assert_eq!(get(&again, b"l").unwrap(), b"v");
}

/// Not a test: rank 0 of the one below.
#[test]
fn child_master() {
    let Ok(dir) = std::env::var("NMC_TEST_DIR") else { return };
    let world = World::join(world_config(dir.as_ref(), Some(0), 2)).unwrap();
    let _store = Store::attach(&world, &Config { page_bytes: PAGE, ..Config::default() }).unwrap();
    println!("ready");
    std::thread::sleep(PATIENCE);
}

/// "Calls that need it return NMC_ERR_UNAVAILABLE then, and can be repeated." A repeated commit said yes though nothing was
/// replaced.
#[test]
fn a_replacement_that_the_master_did_not_hear_of_is_not_committed() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_master", "--nocapture"])
        .env("NMC_TEST_DIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let world = World::join(world_config(dir.path(), Some(1), 2)).unwrap();
    let config = Config { page_bytes: PAGE, call_ms: 500, ..Config::default() };
    let store = Store::attach(&world, &config).unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(out.any(|line| line.unwrap().contains("ready")));
    put(&store, b"k", b"old").unwrap();
    let replace = PutOptions { replace: true, ..PutOptions::DEFAULT };
    let (plan, _) = store.open_for_write(b"k", 3, &replace).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..3 {
        let status = store.commit(&plan).map_err(|e| e.status);
        let now = get(&store, b"k").unwrap();
        assert!(status.is_err(), "commit says yes, and the value is {:?}", String::from_utf8_lossy(&now));
    }
    // It comes back, and the commit can be repeated.
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_master", "--nocapture"])
        .env("NMC_TEST_DIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert!(eventually(|| store.commit(&plan).is_ok()));
    assert_eq!(get(&store, b"k").unwrap(), [0, 0, 0]);
    drop(store);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn elsewhere(dir: &std::path::Path, rank: Option<u32>) -> nanomc::world::Config {
    nanomc::world::Config { hosting: nanomc::world::Hosting::Elsewhere, ..world_config(dir, rank, 2) }
}

/// Not a test: the external master, and a writer with a child, of the one below.
#[test]
fn child_external() {
    let Ok(dir) = std::env::var("NMC_REVIEW_EXTERNAL") else { return };
    if std::env::var("NMC_REVIEW_ROLE").as_deref() == Ok("master") {
        let _masters = nanomc::store::Masters::open(&elsewhere(dir.as_ref(), None)).unwrap();
        std::thread::sleep(PATIENCE);
        return;
    }
    let world = World::join(elsewhere(dir.as_ref(), Some(0))).unwrap();
    let store = Store::attach(&world, &Config { page_bytes: PAGE, ..Config::default() }).unwrap();
    let _plan = store.open_for_write(b"half", 4096, &PutOptions::DEFAULT).unwrap();
    // SAFETY: the child only sleeps, as one that keeps a GPU context or a mapping does.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::thread::sleep(Duration::from_secs(20));
        std::process::exit(0);
    }
    println!("child {child} ");
    std::thread::sleep(PATIENCE);
}

fn external(dir: &std::path::Path, role: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_external", "--nocapture"])
        .env("NMC_REVIEW_EXTERNAL", dir)
        .env("NMC_REVIEW_ROLE", role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A writer is killed while the external master is away, and a child of it lives on. A dead pid is not enough for the new
/// master to hand out its pages.
#[test]
fn a_new_external_master_waits_until_a_writer_is_gone_not_only_dead() {
    let dir = tempfile::tempdir().unwrap();
    let mut master = external(dir.path(), "master");
    let mut writer = external(dir.path(), "writer");
    let world = World::join(elsewhere(dir.path(), Some(1))).unwrap();
    let store = Store::attach(&world, &Config { page_bytes: PAGE, ..Config::default() }).unwrap();
    let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
    let child: i32 =
        lines.filter_map(|line| line.split("child ").nth(1)?.split(' ').next()?.parse().ok()).next().unwrap();
    let used = || store.stats().unwrap().ranks.iter().map(|r| r.bytes_used).sum::<u64>();
    assert_eq!(used(), 4096);
    master.kill().unwrap();
    master.wait().unwrap();
    writer.kill().unwrap();
    writer.wait().unwrap();
    let mut master = external(dir.path(), "master");
    assert!(eventually(|| put(&store, b"mine", b"x").is_ok()));
    std::thread::sleep(Duration::from_secs(4));
    let then = used();
    // SAFETY: the child of our child, whose number it told us.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let freed = eventually(|| used() == 4096);
    master.kill().unwrap();
    master.wait().unwrap();
    assert_eq!(then, 2 * 4096, "its pages were handed out while its child lived");
    assert!(freed, "when the child is gone they are free");
}

/// Not a test: a client that leaves while a stream still has to empty a slot, and dies.
#[test]
fn child_leaver() {
    let Ok(dir) = std::env::var("NMC_REVIEW_LEAVER") else { return };
    let world = World::join(world_config(dir.as_ref(), Some(1), 2)).unwrap();
    let store = Store::attach(&world, &Config { page_bytes: PAGE, ..Config::default() }).unwrap();
    assert!(eventually(|| matches!(store.state(b"k").unwrap(), Look::Ready(_))));
    let Look::Ready((pin, _)) = store.pin(b"k").unwrap() else { panic!() };
    store.unpin(pin).unwrap();
    let layout = nanomc::layout::store::Layout::new(*store.client().params());
    let words = store.publish_word(0).0 - layout.published_offset(0) as u64;
    // What `nmc_store_unpin_async` leaves behind until its stream gets there; number 1 is ours, 0 is rank 0's.
    let slot = words + layout.slot_offset(1, pin.slot) as u64;
    // SAFETY: a pin slot of this client.
    let slot = unsafe { AtomicU64::from_ptr(slot as *mut u64) };
    slot.store(nanomc::sync::object::pin_word(pin.index, pin.epoch), Ordering::SeqCst);
    drop(store);
    println!("left ");
    std::process::exit(0);
}

/// A client that left in order and then died holds nothing, whatever its streams had not done yet.
#[test]
fn a_client_that_left_and_died_holds_no_pins() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_leaver", "--nocapture"])
        .env("NMC_REVIEW_LEAVER", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let world = World::join(world_config(dir.path(), Some(0), 2)).unwrap();
    let store = Store::attach(&world, &Config { page_bytes: PAGE, ..Config::default() }).unwrap();
    put(&store, b"k", b"x").unwrap();
    assert!(child.wait().unwrap().success());
    store.remove(b"k").unwrap();
    let used = || store.stats().unwrap().ranks.iter().map(|r| r.bytes_used).sum::<u64>();
    assert!(eventually_soon(|| used() == 0), "{} bytes are never free again", used());
}

#[test]
fn a_quota_evicts_soft_ones_last() {
    use nanomc::store::types::{Keep, Retain};
    let keep = |retain, priority| PutOptions { keep: Keep { retain, priority, ttl_ms: 0 }, ..PutOptions::DEFAULT };
    let mut wrong = Vec::new();
    for (name, high) in [("soft", keep(Retain::Soft, 0)), ("priority 2", keep(Retain::None, 2))] {
        let store = store_with(64, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
        let ns = store.namespace(b"n", Some(4 * 4096)).unwrap();
        for key in [b"h1", b"h2", b"h3", b"h4"] {
            put_as(&ns, key, b"x", &high).unwrap();
        }
        // Nothing else is left: one of those goes.
        put(&ns, b"n1", b"x").unwrap();
        let there = |key: &[u8]| ns.exists(key).unwrap();
        assert!(!there(b"h1") && there(b"h2") && there(b"n1"));
        // Now there is something else.
        for i in 2..6u8 {
            put(&ns, &[b'n', b'0' + i], b"x").unwrap();
        }
        if !(there(b"h2") && there(b"h3") && there(b"h4")) {
            wrong.push(name);
        }
        // The control: without a quota, the heap's own eviction.
        let store = store_with(4, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
        for key in [b"h1", b"h2", b"h3", b"h4"] {
            put_as(&store, key, b"x", &high).unwrap();
        }
        for i in 1..6u8 {
            put(&store, &[b'n', b'0' + i], b"x").unwrap();
        }
        assert!([b"h2", b"h3", b"h4"].iter().all(|key| store.exists(&key[..]).unwrap()), "control");
    }
    assert_eq!(wrong, Vec::<&str>::new());
}

#[test]
fn a_quota_takes_what_was_soft_and_is_over_for_an_ordinary_object() {
    use nanomc::store::types::{Keep, Retain};
    let soft = PutOptions { keep: Keep { retain: Retain::Soft, priority: 0, ttl_ms: 1 }, ..PutOptions::DEFAULT };
    let run = |quota: bool| {
        let pages = if quota { 64 } else { 4 };
        let store = store_with(pages, Config { high_permille: 1000, low_permille: 1000, ..Config::default() });
        let ns = store.namespace(b"n", Some(if quota { 4 * 4096 } else { 0 })).unwrap();
        put_as(&ns, b"s1", b"x", &soft).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        for key in [b"n1", b"n2", b"n3", b"n4", b"n5", b"n6"] {
            put(&ns, key, b"x").unwrap();
        }
        [b"s1", b"n1", b"n2", b"n3", b"n4", b"n5", b"n6"]
            .iter()
            .filter(|key| ns.exists(&key[..]).unwrap())
            .map(|key| String::from_utf8_lossy(&key[..]).into_owned())
            .collect::<Vec<_>>()
    };
    assert!(!run(true).contains(&"s1".to_owned()));
}

#[test]
fn a_quota_of_an_lru_store_spares_what_is_read() {
    let run = |quota: bool| {
        let pages = if quota { 64 } else { 4 };
        let store = store_with(
            pages,
            Config { high_permille: 1000, low_permille: 1000, policy: Policy::Lru, ..Config::default() },
        );
        let ns = store.namespace(b"n", Some(if quota { 4 * 4096 } else { 0 })).unwrap();
        put(&ns, b"hot", b"x").unwrap();
        for i in 0..20u8 {
            std::thread::sleep(Duration::from_millis(5));
            if get(&ns, b"hot").is_none() {
                return Some(i);
            }
            put(&ns, &[b'n', i], b"x").unwrap();
        }
        None
    };
    assert_eq!((run(false), run(true)), (None, None));
}
