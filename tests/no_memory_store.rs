//! No call of the store ends the process for want of memory: each gives `NMC_ERR_NO_MEMORY` with the bytes that it wanted,
//! changes nothing, and works when it is repeated. Every request for memory that a call makes is refused once.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "calls the C functions")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each calls a C function with live memory of the size it is told"
)]

mod common;
#[path = "common/failing.rs"]
mod failing;
#[path = "common/ffi.rs"]
mod ffi;

use failing::{
    MANY, alone, check_message, count, descriptors, fail_from, fail_nth, fail_nth_anywhere, last_error, refuse_each,
};
use ffi::{fresh, key, slice, value, zeroed};
use nanomc::base::status::{NMC_ERR_BUSY, NMC_ERR_EXISTS, NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND, NMC_OK};
use nanomc::ffi::basic::nmc_slice_t;
use nanomc::ffi::common::{NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO};
use nanomc::ffi::store::{self as c, nmc_store_t};
use nanomc::ffi::store_types::{
    nmc_buffer_t, nmc_completion_t, nmc_put_options_t, nmc_store_config_t, nmc_store_stats_t,
};
use nanomc::ffi::{store_access as access, store_batch as batch, store_service as service};
use std::collections::BTreeMap;
use std::ptr::{null, null_mut};

/// Items of a batch: more than the master is asked for at once, and more than 4 KiB of anything.
const N: usize = 600;
const PAGES: u64 = 2048;

fn config() -> nmc_store_config_t {
    let mut config: nmc_store_config_t = fresh();
    (config.heap_bytes, config.device, config.page_bytes) = (PAGES * 4096, -1, 4096);
    (config.max_objects, config.pin_slots) = (4096, 2048);
    config.heap_kind = nanomc::ffi::world_types::NMC_HEAP_HOST;
    config.eviction = NMC_EVICT_FIFO;
    (config.high_permille, config.low_permille, config.watchdog_ms) = (1000, 1000, -1);
    (config.attach_timeout_ms, config.call_timeout_ms) = (-1, -1);
    config
}

/// A store of this process; ended when it is dropped.
struct Store(*mut nmc_store_t);

impl Drop for Store {
    fn drop(&mut self) {
        assert_eq!(c::nmc_store_destroy(self.0), NMC_OK);
    }
}

impl Store {
    fn new(config: &nmc_store_config_t) -> Self {
        let mut store = null_mut();
        // SAFETY: the C contract, also for all calls below.
        assert_eq!(unsafe { c::nmc_store_create(null_mut(), config, &raw mut store) }, NMC_OK, "{}", last_error());
        Self(store)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> i32 {
        unsafe { c::nmc_store_put(self.0, slice(key), value.as_ptr().cast(), value.len(), null()) }
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (mut bytes, mut size) = (vec![0u8; 1 << 17], 0);
        match unsafe { c::nmc_store_get(self.0, slice(key), bytes.as_mut_ptr().cast(), bytes.len(), &raw mut size) } {
            NMC_OK => bytes.truncate(size),
            NMC_ERR_NOT_FOUND => return None,
            status => panic!("get: {status}: {}", last_error()),
        }
        Some(bytes)
    }

    fn stats(&self) -> [u64; 7] {
        let mut stats: nmc_store_stats_t = zeroed();
        stats.struct_size = u32::try_from(size_of_val(&stats)).expect("a small struct");
        assert_eq!(unsafe { service::nmc_store_stats(self.0, null_mut(), 0, &raw mut stats) }, NMC_OK);
        let t = stats;
        [t.bytes_used, t.ready_count, t.writing_count, t.evict_count, t.quarantined_bytes, t.limbo_bytes, t.free_runs]
    }

    /// Every object with its bytes.
    fn contents(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let (mut all, mut cursor, mut room) = (BTreeMap::new(), 0u64, [0u8; 1024]);
        loop {
            let (mut len, at) = (0, &raw mut cursor);
            let found = unsafe {
                service::nmc_store_next(self.0, at, room.as_mut_ptr().cast(), 1024, &raw mut len, null_mut())
            };
            if found != NMC_OK {
                assert_eq!(found, NMC_ERR_NOT_FOUND);
                return all;
            }
            let value = self.get(&room[..len]).expect("what was listed is there");
            all.insert(room[..len].to_vec(), value);
        }
    }

    fn picture(&self) -> ([u64; 7], BTreeMap<Vec<u8>, Vec<u8>>) {
        (self.stats(), self.contents())
    }
}

/// Like [`refuse_each`], for a call that changes nothing of a store.
fn refuse_reads(store: &Store, what: &str, mut call: impl FnMut() -> i32) -> u64 {
    let before = store.picture();
    let refused = refuse_each(what, &mut call, || ());
    assert_eq!(store.picture(), before, "{what}");
    refused
}

/// Control: the allocator refuses what it is told to, and nothing else.
#[test]
fn control_the_allocator_refuses_what_it_is_told_to() {
    let _alone = alone();
    let reserve = |bytes: usize| {
        let mut list = Vec::<u8>::new();
        list.try_reserve_exact(bytes).is_ok()
    };
    assert_eq!(fail_nth(0, || reserve(4096)), (false, 1));
    assert_eq!(fail_nth(0, || reserve(4095)), (true, 0));
    assert_eq!(fail_nth(1, || (reserve(9999), reserve(9999), reserve(9999))), ((true, false, true), 3));
    assert_eq!(count(|| reserve(9999)), (true, 1));
    assert!(!fail_nth_anywhere(0, || std::thread::spawn(move || reserve(1 << 20)).join().expect("thread")).0);
    assert!(fail_nth(0, || std::thread::spawn(move || reserve(1 << 20)).join().expect("thread")).0);
    assert!(reserve(4096));
}

#[test]
fn creating_a_store_fails_with_a_status_and_leaves_nothing() {
    let _alone = alone();
    // What the first call of a process sets up stays.
    drop(Store::new(&config()));
    for policy in [NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO] {
        for world_size in [1, 4] {
            let config = nmc_store_config_t { eviction: policy, world_size, ..config() };
            let (mut store, before) = (null_mut(), descriptors());
            let create = || unsafe { c::nmc_store_create(null_mut(), &raw const config, &raw mut store) };
            let refused = refuse_each("nmc_store_create", create, || assert_eq!(descriptors(), before));
            assert!(refused > 5, "only {refused} requests");
            let store = Store(store);
            assert_eq!(store.put(b"k", b"v"), NMC_OK);
            assert_eq!(store.get(b"k").as_deref(), Some(&b"v"[..]));
            drop(store);
            assert_eq!(descriptors(), before);
        }
    }
}

/// The keys and values of a batch, and the arrays for it.
struct Batch {
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
}

impl Batch {
    fn new() -> Self {
        Self { keys: (0..N).map(key).collect(), values: (0..N).map(value).collect() }
    }

    fn keys(&self) -> Vec<nmc_slice_t> {
        self.keys.iter().map(|key| slice(key)).collect()
    }

    fn values(&self) -> Vec<nmc_slice_t> {
        self.values.iter().map(|value| slice(value)).collect()
    }

    fn put(&self, store: &Store) {
        let (keys, values) = (self.keys(), self.values());
        let put = unsafe { batch::nmc_store_put_batch(store.0, keys.as_ptr(), values.as_ptr(), N, null(), null_mut()) };
        assert_eq!(put, NMC_OK, "{}", last_error());
    }

    /// Everything is there, byte for byte.
    fn check(&self, store: &Store) {
        for (key, value) in self.keys.iter().zip(&self.values) {
            assert_eq!(store.get(key).as_ref(), Some(value));
        }
    }
}

#[test]
fn a_batch_of_puts_says_of_every_item_whether_it_is_stored() {
    let _alone = alone();
    let all = Batch::new();
    let (keys, values) = (all.keys(), all.values());
    let mut refused = 0;
    for n in 0..MANY {
        let store = Store::new(&config());
        let before = store.stats();
        let mut statuses = vec![77; N];
        let put = || unsafe {
            let statuses = statuses.as_mut_ptr();
            batch::nmc_store_put_batch(store.0, keys.as_ptr(), values.as_ptr(), N, null(), statuses)
        };
        let (status, seen) = fail_nth(n, put);
        if seen <= n {
            assert_eq!((status, statuses), (NMC_OK, vec![NMC_OK; N]));
            all.check(&store);
            refused = n;
            break;
        }
        check_message(status);
        let stored = statuses.iter().filter(|status| **status == NMC_OK).count();
        for (i, status) in statuses.iter().enumerate() {
            let there = store.get(&all.keys[i]);
            match *status {
                NMC_OK => assert_eq!(there.as_ref(), Some(&all.values[i])),
                status => assert_eq!((status, there), (NMC_ERR_NO_MEMORY, None)),
            }
        }
        let now = store.stats();
        assert_eq!(now[..3], [before[0] + stored as u64 * 4096, stored as u64, 0], "request {n}");
        // Repeated for those that failed, it works.
        let left: Vec<usize> = (0..N).filter(|i| statuses[*i] != NMC_OK).collect();
        let (keys, values): (Vec<_>, Vec<_>) = left.iter().map(|i| (keys[*i], values[*i])).unzip();
        let (keys, values) = (keys.as_ptr(), values.as_ptr());
        let again = unsafe { batch::nmc_store_put_batch(store.0, keys, values, left.len(), null(), null_mut()) };
        assert_eq!(again, NMC_OK);
        all.check(&store);
        assert_eq!(store.stats()[..3], [before[0] + N as u64 * 4096, N as u64, 0]);
    }
    assert!(refused >= 6, "only {refused} requests");
}

/// A batch that is larger than the heap waits for the room that its own first items leave. One that has no memory to wait
/// says that there is no room.
#[test]
fn a_batch_that_waits_for_room_leaves_nothing_open() {
    let _alone = alone();
    let all = Batch::new();
    let (keys, values) = (all.keys(), all.values());
    let mut options: nmc_put_options_t = fresh();
    (options.preferred_segment, options.wait_ms) = (-1, 60_000);
    let mut refused = 0;
    for n in 0..MANY {
        let store = Store::new(&nmc_store_config_t { heap_bytes: 40 * 4096, ..config() });
        let mut statuses = vec![77; N];
        let put = || unsafe {
            let (options, statuses) = (&raw const options, statuses.as_mut_ptr());
            batch::nmc_store_put_batch(store.0, keys.as_ptr(), values.as_ptr(), N, options, statuses)
        };
        let (status, seen) = fail_nth(n, put);
        if seen <= n {
            assert_eq!((status, statuses), (NMC_OK, vec![NMC_OK; N]));
            refused = n;
            break;
        }
        assert!(statuses.iter().all(|s| [NMC_OK, NMC_ERR_NO_MEMORY, NMC_ERR_BUSY].contains(s)), "request {n}");
        assert!(status != NMC_OK || !statuses.contains(&NMC_ERR_NO_MEMORY), "request {n}");
        for (key, value) in store.contents() {
            let i = all.keys.iter().position(|other| *other == key).expect("a key of the batch");
            assert_eq!((statuses[i], &value), (NMC_OK, &all.values[i]), "request {n}");
        }
        assert_eq!(store.stats()[2], 0, "request {n}: something is still being written");
    }
    assert!(refused >= 10, "only {refused} requests");
}

#[test]
fn plans_that_cannot_be_noted_are_not_open() {
    let _alone = alone();
    let all = Batch::new();
    let (keys, sizes) = (all.keys(), vec![100u64; N]);
    let store = Store::new(&config());
    let before = store.picture();
    let mut plans: Vec<nanomc::ffi::store_types::nmc_write_plan_t> = (0..N).map(|_| zeroed()).collect();
    let mut statuses = vec![77; N];
    let open = || unsafe {
        let (plans, statuses) = (plans.as_mut_ptr(), statuses.as_mut_ptr());
        batch::nmc_store_open_batch(store.0, keys.as_ptr(), sizes.as_ptr(), N, null(), plans, statuses)
    };
    let refused = refuse_each("nmc_store_open_batch", open, || assert_eq!(store.picture(), before));
    assert!(refused >= 5, "only {refused} requests");
    assert_eq!(statuses, vec![NMC_OK; N]);
    // Committing needs none.
    let (result, requests) =
        count(|| unsafe { batch::nmc_store_commit_batch(store.0, plans.as_ptr(), N / 2, statuses.as_mut_ptr()) });
    assert_eq!((result, requests), (NMC_OK, 0));
    let (result, requests) =
        count(|| plans[N / 2..].iter().map(|plan| unsafe { access::nmc_store_abort(store.0, plan) }).sum::<i32>());
    assert_eq!((result, requests), (NMC_OK, 0));
    assert_eq!(store.stats()[..3], [N as u64 / 2 * 4096, N as u64 / 2, 0]);
    // One after the other: the list of plans grows now and then.
    drop(store);
    let store = Store::new(&config());
    let mut refused = 0;
    let mut open = Vec::new();
    for i in 0..2 * N {
        let key = format!("single {i}").into_bytes();
        let mut plan = zeroed();
        let before = store.stats();
        refused += refuse_each(
            "nmc_store_open_for_write",
            || unsafe { access::nmc_store_open_for_write(store.0, slice(&key), 64, null(), &raw mut plan) },
            || assert_eq!(store.stats(), before),
        );
        open.push(plan);
    }
    assert!(refused >= 3, "only {refused} requests");
    for plan in &open {
        assert_eq!(unsafe { access::nmc_store_abort(store.0, plan) }, NMC_OK);
    }
    assert_eq!(store.stats()[..3], [0, 0, 0]);
}

#[test]
fn many_slices_are_read_and_written_or_refused() {
    let _alone = alone();
    let store = Store::new(&config());
    let data: Vec<u8> = (0..64_000u32).map(|i| u8::try_from(i % 251).expect("a byte")).collect();
    let parts: Vec<nmc_slice_t> = data.chunks(100).map(slice).collect();
    let before = store.picture();
    let put = || unsafe { c::nmc_store_put_slices(store.0, slice(b"slices"), parts.as_ptr(), parts.len(), null()) };
    let unchanged = || assert_eq!(store.picture(), before);
    assert_eq!(refuse_each("nmc_store_put_slices", put, unchanged), 0);
    assert_eq!(store.get(b"slices").as_ref(), Some(&data));
    let mut back = vec![0u8; data.len()];
    let room: Vec<nmc_buffer_t> =
        back.chunks_mut(100).map(|part| nmc_buffer_t { ptr: part.as_mut_ptr().cast(), len: part.len() }).collect();
    let get =
        || unsafe { c::nmc_store_get_slices(store.0, slice(b"slices"), 0, room.as_ptr(), room.len(), null_mut()) };
    assert_eq!(refuse_reads(&store, "nmc_store_get_slices", get), 0);
    assert_eq!(back, data);
    // Rows need none.
    let (rows, requests) = count(|| unsafe {
        let put = c::nmc_store_put_strided(store.0, slice(b"rows"), data.as_ptr().cast(), 640, 50, 100, null());
        put + c::nmc_store_get_strided(store.0, slice(b"rows"), 0, back.as_mut_ptr().cast(), 640, 50, 100)
    });
    assert_eq!((rows, requests), (NMC_OK, 0));
    assert!(back.chunks(100).zip(data.chunks(100)).all(|(a, b)| a[..50] == b[..50]));
}

#[test]
fn reading_pinning_and_asking_go_on_without_memory() {
    let _alone = alone();
    let store = Store::new(&config());
    let all = Batch::new();
    all.put(&store);
    let keys = all.keys();
    let mut back: Vec<Vec<u8>> = all.values.iter().map(|value| vec![0; value.len()]).collect();
    let room: Vec<nmc_buffer_t> =
        back.iter_mut().map(|part| nmc_buffer_t { ptr: part.as_mut_ptr().cast(), len: part.len() }).collect();
    let mut statuses = vec![77; N];
    let get =
        || unsafe { batch::nmc_store_get_into_batch(store.0, keys.as_ptr(), room.as_ptr(), N, statuses.as_mut_ptr()) };
    assert_eq!(refuse_reads(&store, "nmc_store_get_into_batch", get), 0);
    assert_eq!(back, all.values);
    let (mut states, mut matched) = (vec![77u32; N], 0usize);
    let ask = || unsafe {
        batch::nmc_store_exists_batch(store.0, keys.as_ptr(), N, states.as_mut_ptr())
            + batch::nmc_store_match_prefix(store.0, keys.as_ptr(), N, &raw mut matched)
    };
    assert_eq!(refuse_reads(&store, "looking", ask), 0);
    assert_eq!((states, matched), (vec![nanomc::ffi::store_types::NMC_OBJECT_READY; N], N));
    let mut views: Vec<nanomc::ffi::store_types::nmc_view_t> = (0..N).map(|_| zeroed()).collect();
    let pin = || unsafe {
        let (views, statuses) = (views.as_mut_ptr(), statuses.as_mut_ptr());
        batch::nmc_store_pin_batch(store.0, keys.as_ptr(), N, views, null_mut(), statuses)
    };
    assert_eq!(refuse_reads(&store, "nmc_store_pin_batch", pin), 0);
    assert_eq!(statuses, vec![NMC_OK; N]);
    // All pins are looked at when something is removed, and what is pinned waits: none of it needs memory.
    let (removed, requests) = count(|| unsafe { c::nmc_store_remove(store.0, keys[0]) });
    assert_eq!((removed, requests), (NMC_OK, 0));
    assert_eq!(store.stats()[5], 4096);
    let seen = unsafe { std::slice::from_raw_parts(views[0].data.cast::<u8>(), all.values[0].len()) };
    assert_eq!(seen, all.values[0]);
    let (unpinned, requests) =
        count(|| unsafe { batch::nmc_store_unpin_batch(store.0, views.as_ptr(), N, statuses.as_mut_ptr()) });
    assert_eq!((unpinned, requests), (NMC_OK, 0));
    assert_eq!(store.stats()[..6], [(N as u64 - 1) * 4096, N as u64 - 1, 0, 0, 0, 0]);
}

#[test]
fn eviction_needs_no_memory() {
    let _alone = alone();
    for policy in [NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO] {
        let store =
            Store::new(&nmc_store_config_t { eviction: policy, high_permille: 900, low_permille: 800, ..config() });
        let all = Batch::new();
        // Pins are in the way of eviction, and are set aside.
        all.put(&store);
        let keys = all.keys();
        let mut views: Vec<nanomc::ffi::store_types::nmc_view_t> = (0..N).map(|_| zeroed()).collect();
        let views_at = views.as_mut_ptr();
        let pin = unsafe { batch::nmc_store_pin_batch(store.0, keys.as_ptr(), N, views_at, null_mut(), null_mut()) };
        assert_eq!(pin, NMC_OK);
        let (stored, requests) = count(|| (0..2 * PAGES).map(|i| store.put(&i.to_le_bytes(), &[7; 3000])).sum::<i32>());
        assert_eq!((stored, requests), (NMC_OK, 0));
        assert!(store.stats()[3] > PAGES / 2, "nothing was evicted");
        all.check(&store);
        let (evicted, requests) = count(|| service::nmc_store_evict_until_below(store.0, 0, 400));
        assert_eq!((evicted, requests), (NMC_OK, 0));
        all.check(&store);
        assert_eq!(unsafe { batch::nmc_store_unpin_batch(store.0, views.as_ptr(), N, null_mut()) }, NMC_OK);
    }
}

#[test]
fn removing_says_of_every_item_whether_it_is_gone() {
    let _alone = alone();
    let all = Batch::new();
    let keys = all.keys();
    let mut refused = 0;
    for n in 0..MANY {
        let store = Store::new(&config());
        all.put(&store);
        let mut statuses = vec![77; N];
        let (status, seen) =
            fail_nth(n, || unsafe { batch::nmc_store_remove_batch(store.0, keys.as_ptr(), N, statuses.as_mut_ptr()) });
        let gone = statuses.iter().filter(|status| **status == NMC_OK).count() as u64;
        assert_eq!(store.stats()[..3], [(N as u64 - gone) * 4096, N as u64 - gone, 0]);
        if seen <= n {
            assert_eq!((status, gone), (NMC_OK, N as u64));
            refused = n;
            break;
        }
        check_message(status);
        for (i, status) in statuses.iter().enumerate() {
            match *status {
                NMC_OK => assert_eq!(store.get(&all.keys[i]), None),
                status => {
                    assert_eq!((status, store.get(&all.keys[i])), (NMC_ERR_NO_MEMORY, Some(all.values[i].clone())))
                }
            }
        }
    }
    assert!(refused >= 6, "only {refused} requests");
    // By prefix and all at once without any.
    let store = Store::new(&config());
    all.put(&store);
    let mut removed = 0;
    let (status, requests) =
        count(|| unsafe { c::nmc_store_remove_by_prefix(store.0, slice(b"key 000"), &raw mut removed) });
    assert_eq!((status, requests, removed), (NMC_OK, 0, 100));
    assert_eq!(count(|| c::nmc_store_remove_all(store.0)), (NMC_OK, 0));
    assert_eq!(store.contents(), BTreeMap::new());
    assert!(common::eventually(|| store.stats()[..3] == [0, 0, 0]));
}

#[test]
fn namespaces_quotas_texts_and_extents_are_given_or_refused() {
    let _alone = alone();
    let store = Store::new(&nmc_store_config_t { world_size: 16, ..config() });
    let all = Batch::new();
    all.put(&store);
    let mut namespace = null_mut();
    let open = || unsafe { c::nmc_store_namespace(store.0, slice(b"tenant"), 64 * 4096, &raw mut namespace) };
    refuse_reads(&store, "nmc_store_namespace", open);
    let tenant = Store(namespace);
    // A quota that is used up evicts the namespace's own.
    let (stored, requests) = count(|| (0..300u32).map(|i| tenant.put(&i.to_le_bytes(), &[1; 4096])).sum::<i32>());
    assert_eq!((stored, requests), (NMC_OK, 0));
    assert_eq!(tenant.contents().len(), 64);
    all.check(&store);
    let mut text = vec![0u8; 1 << 17];
    let at = text.as_mut_ptr().cast();
    let mut needed = 0;
    let numbers = || unsafe { service::nmc_store_prometheus(store.0, at, 1 << 17, &raw mut needed) };
    assert!(refuse_reads(&store, "nmc_store_prometheus", numbers) >= 1);
    assert!(needed > 4096);
    let dump = || unsafe { service::nmc_store_dump(store.0, 500, at, 1 << 17, &raw mut needed) };
    assert!(refuse_reads(&store, "nmc_store_dump", dump) >= 1);
    assert!(needed > 4096);
    // Keys and sizes, one after the other.
    let (contents, requests) = count(|| {
        let (mut n, mut cursor, mut room, mut len) = (0, 0u64, [0u8; 64], 0);
        let next = |cursor: &mut u64, room: &mut [u8; 64], len: &mut usize| unsafe {
            service::nmc_store_next(store.0, cursor, room.as_mut_ptr().cast(), 64, len, null_mut())
        };
        while next(&mut cursor, &mut room, &mut len) == NMC_OK {
            n += 1;
        }
        n
    });
    assert_eq!((contents, requests), (N, 0));
}

#[test]
fn a_value_in_many_pieces_has_its_extents_listed_or_refused() {
    let _alone = alone();
    let store = Store::new(&nmc_store_config_t { key_slab_bytes: 1 << 20, ..config() });
    // Every second page is free: a large value lies in many runs.
    for i in 0..PAGES {
        assert_eq!(store.put(&i.to_le_bytes(), b"x"), NMC_OK);
    }
    for i in (0..PAGES).step_by(2) {
        assert_eq!(unsafe { c::nmc_store_remove(store.0, slice(&i.to_le_bytes())) }, NMC_OK);
    }
    let large: Vec<u8> = (0..256 * 4096u32).map(|i| u8::try_from(i % 253).expect("a byte")).collect();
    assert_eq!(store.put(b"large", &large), NMC_OK, "{}", last_error());
    let mut view = zeroed();
    assert_eq!(unsafe { access::nmc_store_pin(store.0, slice(b"large"), &raw mut view) }, NMC_OK);
    assert_eq!(view.n_extents, 256);
    let mut extents: Vec<nanomc::ffi::store_types::nmc_extent_t> = (0..256).map(|_| zeroed()).collect();
    let (at, mut n) = (extents.as_mut_ptr(), 0);
    let list = || unsafe { access::nmc_store_view_extents(store.0, &raw const view, at, 256, &raw mut n) };
    assert_eq!(refuse_each("nmc_store_view_extents", list, || ()), 1);
    assert_eq!(n, 256);
    for (extent, part) in extents.iter().zip(large.chunks(4096)) {
        assert_eq!(unsafe { std::slice::from_raw_parts(extent.ptr.cast::<u8>(), 4096) }, part);
    }
    assert_eq!(unsafe { access::nmc_store_unpin(store.0, &raw const view) }, NMC_OK);
}

/// The thread that looks at watched keys needs no memory either.
#[test]
fn a_key_that_is_watched_is_reported() {
    let _alone = alone();
    let store = Store::new(&config());
    let appear = nanomc::ffi::store_types::NMC_WAIT_APPEAR;
    let mut refused = 0;
    for token in 0..N {
        let key = key(token);
        refused += refuse_each(
            "nmc_store_watch",
            || unsafe { service::nmc_store_watch(store.0, slice(&key), appear, token as u64) },
            || (),
        );
    }
    assert!(refused >= 4, "only {refused} requests");
    let all = Batch::new();
    let mut tokens = Vec::with_capacity(N);
    let (ready, _) = fail_nth_anywhere(1000, || {
        (0..N).for_each(|i| assert_eq!(store.put(&all.keys[i], &all.values[i]), NMC_OK));
        let mut done: [nmc_completion_t; 32] = zeroed();
        common::eventually(|| {
            let mut n = 0;
            assert_eq!(unsafe { service::nmc_store_completions(store.0, done.as_mut_ptr(), 32, &raw mut n) }, NMC_OK);
            assert!(done[..n].iter().all(|one| one.status == NMC_OK));
            tokens.extend(done[..n].iter().map(|one| one.token));
            tokens.len() == N
        })
    });
    assert!(ready);
    tokens.sort_unstable();
    assert_eq!(tokens, (0..N as u64).collect::<Vec<_>>());
}

/// Not one refusal, but all from some moment on: what a status says is still true, and later everything works again.
#[test]
fn a_shortage_that_lasts_is_survived() {
    let _alone = alone();
    let all = Batch::new();
    let (keys, values) = (all.keys(), all.values());
    for n in 0..12 {
        let store = Store::new(&config());
        let mut there = [false; N];
        let mut statuses = vec![77; N];
        let mut text = vec![0u8; 1 << 16];
        for round in 0..4 {
            let (k, v, s) = (keys.as_ptr(), values.as_ptr(), statuses.as_mut_ptr());
            let ((changed, asked), _) = fail_from(n, || unsafe {
                let changed = match round % 2 {
                    0 => batch::nmc_store_put_batch(store.0, k, v, N, null(), s),
                    _ => batch::nmc_store_remove_batch(store.0, k, N, s),
                };
                let (mut other, mut handle) = (null_mut(), null_mut());
                let asked = [
                    service::nmc_store_dump(store.0, 500, text.as_mut_ptr().cast(), text.len(), null_mut()),
                    service::nmc_store_prometheus(store.0, text.as_mut_ptr().cast(), text.len(), null_mut()),
                    c::nmc_store_namespace(store.0, slice(b"n"), u64::MAX, &raw mut other),
                    c::nmc_store_destroy(other),
                    c::nmc_store_create(null_mut(), &config(), &raw mut handle),
                    c::nmc_store_destroy(handle),
                ];
                (changed, asked)
            });
            assert!(asked.iter().all(|status| [NMC_OK, NMC_ERR_NO_MEMORY].contains(status)), "{asked:?}");
            let possible =
                |i: usize| if there[i] == (round % 2 == 0) { [NMC_ERR_EXISTS, NMC_ERR_NOT_FOUND] } else { [NMC_OK; 2] };
            for (i, status) in statuses.iter().enumerate() {
                assert!(*status == NMC_ERR_NO_MEMORY || possible(i).contains(status), "{i}: {status} of {changed}");
            }
            for (i, status) in statuses.iter().enumerate().filter(|(_, status)| **status == NMC_OK) {
                there[i] = round % 2 == 0 && *status == NMC_OK;
            }
            let expected: BTreeMap<_, _> =
                (0..N).filter(|i| there[*i]).map(|i| (all.keys[i].clone(), all.values[i].clone())).collect();
            assert_eq!(store.contents(), expected);
            assert_eq!(store.stats()[..3], [expected.len() as u64 * 4096, expected.len() as u64, 0]);
        }
        let left: Vec<usize> = (0..N).filter(|i| !there[*i]).collect();
        left.iter().for_each(|i| assert_eq!(store.put(&all.keys[*i], &all.values[*i]), NMC_OK));
        all.check(&store);
    }
}
