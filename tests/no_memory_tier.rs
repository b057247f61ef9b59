//! No call of a tier ends the process for want of memory, whichever of its threads wants it: each gives `NMC_ERR_NO_MEMORY`, loses
//! nothing, and works when it is repeated. Every request for memory in the process is refused once.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "calls the C functions")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each calls a C function with live memory of the size it is told"
)]

#[path = "common/failing.rs"]
mod failing;

use failing::{MANY, alone, descriptors, fail_nth_anywhere, fail_nth_elsewhere, last_error};
use nanomc::base::log;
use nanomc::base::status::{NMC_ERR_EXISTS, NMC_ERR_NO_MEMORY, NMC_OK};
use nanomc::ffi::basic::{NMC_ABI_VERSION, nmc_slice_t};
use nanomc::ffi::common::NMC_EVICT_FIFO;
use nanomc::ffi::store::{self as c, nmc_store_t};
use nanomc::ffi::store_service::nmc_store_evict_until_below;
use nanomc::ffi::store_types::{NMC_OBJECT_ON_DISK, nmc_store_config_t};
use nanomc::ffi::tier::{self as t, nmc_tier_t};
use nanomc::ffi::tier_types::{
    NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET, NMC_TIER_EVENTS, NMC_TIER_PAUSED,
    NMC_TIER_WRITE_THROUGH, nmc_tier_config_t, nmc_tier_entry_t, nmc_tier_event_t, nmc_tier_stats_t,
    nmc_tier_verified_t,
};
use std::ffi::{OsStr, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Values: what is kept for each of them takes more than 4 KiB in all.
const N: usize = 300;
/// Namespaces, for the same reason.
const SPACES: usize = 40;

fn slice(bytes: &[u8]) -> nmc_slice_t {
    nmc_slice_t { ptr: bytes.as_ptr().cast(), len: bytes.len() }
}

fn key(i: usize) -> Vec<u8> {
    format!("key {i:05}").into_bytes()
}

fn value(i: usize) -> Vec<u8> {
    (0..100 + i % 50).map(|at| u8::try_from((at * 7 + i * 13) % 256).expect("a byte")).collect()
}

/// A store of this process; ended when it is dropped.
struct Store(*mut nmc_store_t);

impl Drop for Store {
    fn drop(&mut self) {
        assert_eq!(c::nmc_store_destroy(self.0), NMC_OK);
    }
}

impl Store {
    fn new() -> Self {
        Self::that_evicts_down_to(1000)
    }

    /// What lies above that much of the heap, and a little more, is written ahead.
    fn that_evicts_down_to(low_permille: i32) -> Self {
        // SAFETY: integers.
        let mut config: nmc_store_config_t = unsafe { std::mem::zeroed() };
        config.struct_size = u32::try_from(size_of_val(&config)).expect("a small struct");
        config.abi_version = NMC_ABI_VERSION;
        (config.heap_bytes, config.device, config.page_bytes) = (2048 * 4096, -1, 4096);
        (config.max_objects, config.pin_slots) = (4096, 2048);
        config.heap_kind = nanomc::ffi::world_types::NMC_HEAP_HOST;
        config.eviction = NMC_EVICT_FIFO;
        (config.high_permille, config.low_permille, config.watchdog_ms) = (1000, low_permille, -1);
        (config.attach_timeout_ms, config.call_timeout_ms) = (-1, -1);
        let mut store = null_mut();
        // SAFETY: the C contract, also for all calls below.
        assert_eq!(unsafe { c::nmc_store_create(null_mut(), &config, &raw mut store) }, NMC_OK, "{}", last_error());
        Self(store)
    }

    fn namespace(&self, name: &[u8]) -> Self {
        let mut other = null_mut();
        let made = unsafe { c::nmc_store_namespace(self.0, slice(name), 0, &raw mut other) };
        assert_eq!(made, NMC_OK, "{}", last_error());
        Self(other)
    }

    fn put(&self, i: usize) -> i32 {
        let (key, value) = (key(i), value(i));
        unsafe { c::nmc_store_put(self.0, slice(&key), value.as_ptr().cast(), value.len(), null()) }
    }

    fn get(&self, i: usize) -> Vec<u8> {
        let (key, mut bytes, mut size) = (key(i), vec![0u8; 256], 0);
        let got = unsafe { c::nmc_store_get(self.0, slice(&key), bytes.as_mut_ptr().cast(), 256, &raw mut size) };
        assert_eq!(got, NMC_OK, "{i}: {}", last_error());
        bytes.truncate(size);
        bytes
    }

    fn evict(&self) {
        assert_eq!(nmc_store_evict_until_below(self.0, 0, 0), NMC_OK, "{}", last_error());
    }

    /// Nothing is lost, wherever it is.
    fn has_all(&self, n: usize) {
        (0..n).for_each(|i| assert_eq!(self.get(i), value(i), "{i}"));
    }
}

fn config(dir: &[u8], backend: u32, flags: u32) -> nmc_tier_config_t {
    // SAFETY: integers and NULL.
    let mut config: nmc_tier_config_t = unsafe { std::mem::zeroed() };
    config.struct_size = u32::try_from(size_of_val(&config)).expect("a small struct");
    config.abi_version = NMC_ABI_VERSION;
    (config.directory, config.backend, config.flags) = (slice(dir), backend, flags);
    (config.max_objects, config.capacity_bytes, config.heartbeat_ms) = (4096, 256 << 20, 3_600_000);
    config
}

/// A tier; closed when it is dropped.
struct Tier(*mut nmc_tier_t);

impl Drop for Tier {
    fn drop(&mut self) {
        assert_eq!(t::nmc_tier_close(self.0), NMC_OK);
    }
}

fn open(store: &Store, config: &nmc_tier_config_t) -> Tier {
    let mut tier = null_mut();
    assert_eq!(unsafe { t::nmc_tier_open(store.0, config, &raw mut tier) }, NMC_OK, "{}", last_error());
    Tier(tier)
}

/// Makes a call again and again, each time with another request for memory refused, of whatever thread; gives how many there were.
fn refuse_anywhere(what: &str, mut call: impl FnMut() -> i32, mut unchanged: impl FnMut()) -> u64 {
    for n in 0..MANY {
        let (status, seen) = fail_nth_anywhere(n, &mut call);
        if seen <= n {
            assert_eq!(status, NMC_OK, "{what}: {}", last_error());
            return n;
        }
        // What is refused to a thread that does not need it now is no failure of the call.
        assert!([NMC_OK, NMC_ERR_NO_MEMORY].contains(&status), "{what}: {status}: {}", last_error());
        unchanged();
    }
    panic!("{what} makes more than {MANY} requests for memory");
}

fn folder(dir: &Path) -> Vec<u8> {
    dir.join("tier").into_os_string().into_encoded_bytes()
}

unsafe extern "C" fn take_event(user: *mut c_void, event: *const nmc_tier_event_t) -> i32 {
    // SAFETY: a count of the caller's, and what the library lends for the call.
    unsafe { *user.cast::<usize>() += (*event).n }
    1
}

unsafe extern "C" fn take_entry(user: *mut c_void, _: *const nmc_tier_entry_t) -> i32 {
    // SAFETY: a count of the caller's.
    unsafe { *user.cast::<usize>() += 1 }
    1
}

#[test]
fn every_call_of_a_tier_may_be_refused_memory() {
    let _alone = alone();
    for backend in [NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET] {
        let dir = tempfile::tempdir().expect("a directory");
        let at = folder(dir.path());
        let store = Store::new();
        // What the first use of a namespace and of a thread sets up stays.
        let spaces: Vec<Store> =
            (0..SPACES).map(|i| store.namespace(format!("namespace {i:03} {}", "x".repeat(40)).as_bytes())).collect();
        let config = config(&at, backend, NMC_TIER_PAUSED | NMC_TIER_EVENTS);
        let mut tier = open(&store, &config);
        (0..N).for_each(|i| assert_eq!(store.put(i), NMC_OK));
        spaces.iter().for_each(|space| assert_eq!(space.put(1), NMC_OK));
        let all = || store.has_all(N);

        let offload = || unsafe { t::nmc_tier_offload(tier.0, null(), 0, null_mut()) };
        assert!(refuse_anywhere("offload", offload, all) > 0);
        let mut events = 0usize;
        let user = (&raw mut events).cast();
        refuse_anywhere("events", || unsafe { t::nmc_tier_events(tier.0, Some(take_event), user) }, || ());
        store.evict();
        all();
        spaces.iter().for_each(|space| assert_eq!(space.get(1), value(1)));

        let names: Vec<Vec<u8>> = (0..N).map(key).collect();
        let keys: Vec<nmc_slice_t> = names.iter().map(|name| slice(name)).collect();
        let mut statuses = vec![0; N];
        let to = statuses.as_mut_ptr();
        let prefetch = || unsafe { t::nmc_tier_prefetch(tier.0, keys.as_ptr(), N, to) };
        assert!(refuse_anywhere("prefetch", prefetch, all) > 0);
        store.evict();
        let (mut loan, mut values) = (0, vec![nmc_slice_t { ptr: null(), len: 0 }; N]);
        let stage = || {
            let (loan, values) = (&raw mut loan, values.as_mut_ptr());
            // SAFETY: lists of as many entries.
            let staged = unsafe { t::nmc_tier_stage(tier.0, keys.as_ptr(), N, 60_000, loan, values, to) };
            // SAFETY: it was written.
            assert_eq!(t::nmc_tier_release(tier.0, unsafe { *loan }), NMC_OK);
            staged
        };
        assert!(refuse_anywhere("stage", stage, all) > 0);

        let mut entries = 0usize;
        let user = (&raw mut entries).cast();
        assert!(refuse_anywhere("scan", || unsafe { t::nmc_tier_scan(tier.0, Some(take_entry), user) }, || ()) > 0);
        assert!(entries >= N + SPACES);
        let mut verified: nmc_tier_verified_t = unsafe { std::mem::zeroed() };
        verified.struct_size = u32::try_from(size_of_val(&verified)).expect("a small struct");
        let looked = std::cell::Cell::new((0, 0));
        let verify = || {
            (verified.objects, verified.unreadable) = (0, 0);
            let status = unsafe { t::nmc_tier_verify(tier.0, None, null_mut(), &raw mut verified) };
            assert_eq!(verified.corrupt, 0);
            // If it says that all is well it has read everything; if it has a result, everything is in that.
            let found = verified.objects + verified.unreadable;
            assert!(found == (N + SPACES) as u64 || found == 0 && status != NMC_OK, "{status}: {found}");
            assert!(verified.unreadable == 0 || status != NMC_OK);
            let (whole, refused) = looked.get();
            looked.set((whole + u64::from(status == NMC_OK), refused + u64::from(status != NMC_OK)));
            status
        };
        assert!(refuse_anywhere("verify", verify, all) > 0);
        println!("of the verifications that were refused memory {:?} were whole and failed", looked.get());
        refuse_anywhere("sync", || t::nmc_tier_sync(tier.0), all);

        // Opened anew, with everything to be found; a refused opening leaves the store without a tier.
        drop(tier);
        let mut again: *mut nmc_tier_t = null_mut();
        let reopen = || {
            // What was refused may have been nothing that it needs.
            if !again.is_null() {
                assert_eq!(t::nmc_tier_close(again), NMC_OK);
            }
            unsafe { t::nmc_tier_open(store.0, &raw const config, &raw mut again) }
        };
        assert!(refuse_anywhere("open", reopen, || ()) > 0);
        tier = Tier(again);
        store.has_all(N);
        spaces.iter().for_each(|space| assert_eq!(space.get(1), value(1)));

        // What leaves the disk is in memory by then.
        assert_eq!(unsafe { t::nmc_tier_prefetch(tier.0, keys.as_ptr(), N, to) }, NMC_OK, "{}", last_error());
        let evict = || unsafe { t::nmc_tier_evict(tier.0, 0, null_mut()) };
        refuse_anywhere("evict", evict, || store.has_all(N));
        let offload = || unsafe { t::nmc_tier_offload(tier.0, null(), 0, null_mut()) };
        refuse_anywhere("offload again", offload, || store.has_all(N));
        store.evict();
        store.has_all(N);
        drop(tier);
        drop(spaces);
    }
}

/// Whether all values are on disk and nothing of them is in memory.
fn all_left_for_the_disk(store: &Store) -> bool {
    store.evict();
    (0..N).all(|i| {
        let (key, mut state) = (key(i), 0);
        assert_eq!(unsafe { c::nmc_store_exists(store.0, slice(&key), &raw mut state) }, NMC_OK, "{}", last_error());
        state == NMC_OBJECT_ON_DISK
    })
}

fn stats(tier: &Tier) -> nmc_tier_stats_t {
    let mut stats: nmc_tier_stats_t = unsafe { std::mem::zeroed() };
    stats.struct_size = u32::try_from(size_of_val(&stats)).expect("a small struct");
    assert_eq!(unsafe { t::nmc_tier_stats(tier.0, &raw mut stats) }, NMC_OK, "{}", last_error());
    stats
}

fn eventually(mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Each request for memory that the owner's thread makes is refused once, while it writes by itself and what it was asked for: it goes
/// on, says of what it was asked for that there was no memory, and nothing is lost, held or left behind.
#[test]
fn the_owners_thread_may_be_refused_memory_at_any_time() {
    let _alone = alone();
    let warned = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&warned);
    let tell = move |_: i32, text: &str| _ = counts.fetch_add(text.starts_with("tier: ").into(), SeqCst);
    log::set_sink(Some(Box::new(tell)), log::WARN);
    for backend in [NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET] {
        let (mut rounds, mut said) = (0, 0);
        loop {
            assert!(rounds < MANY, "more than {MANY} requests for memory");
            let dir = tempfile::tempdir().expect("a directory");
            let at = folder(dir.path());
            let before = descriptors();
            // All of it.
            let store = Store::that_evicts_down_to(100);
            let config = nmc_tier_config_t { heartbeat_ms: 1, ..config(&at, backend, NMC_TIER_EVENTS) };
            let tier = open(&store, &config);
            let (asked, seen) = fail_nth_elsewhere(rounds, || {
                (0..N).for_each(|i| assert_eq!(store.put(i), NMC_OK, "{}", last_error()));
                // By itself, whatever is refused to it.
                assert!(eventually(|| stats(&tier).objects > 0), "round {rounds}: the thread has stopped");
                unsafe { t::nmc_tier_offload(tier.0, null(), 0, null_mut()) }
            });
            assert!([NMC_OK, NMC_ERR_NO_MEMORY].contains(&asked), "round {rounds}: {asked}: {}", last_error());
            said += u64::from(asked == NMC_ERR_NO_MEMORY);
            let again = unsafe { t::nmc_tier_offload(tier.0, null(), 0, null_mut()) };
            assert_eq!(again, NMC_OK, "round {rounds}: {}", last_error());
            let now = stats(&tier);
            assert_eq!((now.degraded, now.evicted_dirty), (0, 0), "round {rounds}");
            assert!(all_left_for_the_disk(&store), "round {rounds}: something is held, or was lost");
            store.has_all(N);
            drop(tier);
            let half = |name: &OsStr| name.as_encoded_bytes().ends_with(b".tmp");
            let files = std::fs::read_dir(dir.path().join("tier")).expect("a directory");
            assert!(!files.flatten().any(|file| half(&file.file_name())), "round {rounds}: something is half written");
            // What was written is what is found.
            let tier = open(&store, &config);
            assert_eq!(stats(&tier).objects, N as u64, "round {rounds}");
            store.has_all(N);
            drop(tier);
            drop(store);
            assert_eq!(descriptors(), before, "round {rounds}");
            if seen <= rounds {
                break;
            }
            rounds += 1;
        }
        assert!(rounds > 3, "control: the thread asks for memory, but {rounds} times only");
        println!("{rounds} requests of the owner's thread, {said} of which failed a call");
    }
    log::set_sink(None, log::WARN);
    assert!(warned.load(SeqCst) > 0, "what failed without a call is in the log");
}

/// The control of the look above: what the thread does not write is missed.
#[test]
fn what_an_owner_does_not_write_is_missed() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let (at, store) = (folder(dir.path()), Store::new());
    let tier = open(&store, &config(&at, NMC_TIER_BACKEND_BUCKET, NMC_TIER_PAUSED));
    (0..N).for_each(|i| assert_eq!(store.put(i), NMC_OK));
    assert!(!all_left_for_the_disk(&store));
    assert_eq!(stats(&tier).evicted_dirty, N as u64);
    drop(tier);
}

/// So many that what came of them, which nobody takes, is more than 4 KiB.
#[test]
fn puts_that_wait_for_the_disk_may_be_refused_memory() {
    let _alone = alone();
    for n in 0..6 {
        let dir = tempfile::tempdir().expect("a directory");
        let (at, store) = (folder(dir.path()), Store::new());
        let tier = open(&store, &config(&at, NMC_TIER_BACKEND_BUCKET, NMC_TIER_WRITE_THROUGH));
        for i in 0..140 {
            let stored = match fail_nth_anywhere(n, || store.put(i)).0 {
                NMC_ERR_NO_MEMORY => [NMC_OK, NMC_ERR_EXISTS].contains(&store.put(i)),
                status => status == NMC_OK,
            };
            assert!(stored, "{i}: {}", last_error());
        }
        store.has_all(140);
        drop(tier);
    }
}
