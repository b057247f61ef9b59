//! No call of a cluster's client ends the process for want of memory. Every request for memory that a call makes on the caller's thread is
//! refused once: the call gives a status, what it has said is true, and it works when it is repeated. Master and node have threads of their own, which
//! are not refused anything.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "calls the C functions")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each calls a C function with live memory of the size it is told"
)]

#[path = "common/cluster.rs"]
mod common;
#[path = "common/failing.rs"]
mod failing;
#[path = "common/ffi.rs"]
mod ffi;

use common::Directory;
use failing::{alone, descriptors, fail_from, fail_nth, last_error};
use ffi::{fresh, key, slice, zeroed};
use nanomc::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_EXISTS, NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
    NMC_OK,
};
use nanomc::ffi::basic::nmc_slice_t;
use nanomc::ffi::client::{self as c, nmc_client_t};
use nanomc::ffi::client_drain::nmc_client_drain;
use nanomc::ffi::client_metadata::nmc_client_get_metadata;
use nanomc::ffi::client_remove as removes;
use nanomc::ffi::client_submit as submit;
use nanomc::ffi::client_types::{nmc_client_completion_t, nmc_client_config_t, nmc_replica_t, nmc_segment_t};
use nanomc::ffi::store_types::{NMC_STORE_CHECKSUMS, nmc_buffer_t, nmc_store_config_t};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Items of a batch: more than are under way together, and more than 4 KiB of anything.
const N: usize = 600;
/// Requests that are refused, one after the other: more than any of these calls makes.
const REFUSALS: u64 = 60;

fn value(i: usize) -> Vec<u8> {
    (0..100 + i % 50 * 97).map(|at| u8::try_from((at * 7 + i * 13) % 256).expect("a byte")).collect()
}

struct Client(*mut nmc_client_t);

impl Client {
    fn config(directory: &Directory) -> nmc_client_config_t {
        let mut config: nmc_client_config_t = fresh();
        config.master_server = slice(directory.address.as_bytes());
        config.cache_keys = -1;
        config
    }

    fn open(directory: &Directory) -> Self {
        Self::open_for(directory, 10_000)
    }

    fn open_for(directory: &Directory, timeout_ms: i64) -> Self {
        let (config, mut client) = (nmc_client_config_t { timeout_ms, ..Self::config(directory) }, null_mut());
        assert_eq!(unsafe { c::nmc_client_open(&raw const config, &raw mut client) }, NMC_OK, "{}", last_error());
        Self(client)
    }

    fn mount(&self, name: &str) -> i32 {
        let mut config: nmc_store_config_t = fresh();
        (config.heap_bytes, config.device, config.page_bytes) = (64 << 20, -1, 4096);
        config.heap_kind = nanomc::ffi::world_types::NMC_HEAP_HOST;
        config.eviction = nanomc::ffi::common::NMC_EVICT_FIFO;
        (config.high_permille, config.low_permille, config.watchdog_ms) = (1000, 1000, -1);
        (config.attach_timeout_ms, config.call_timeout_ms) = (-1, -1);
        config.flags = NMC_STORE_CHECKSUMS;
        unsafe { c::nmc_client_mount(self.0, slice(name.as_bytes()), &raw const config) }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> i32 {
        let bytes = slice(value);
        unsafe { c::nmc_client_put(self.0, slice(key), &raw const bytes, 1, null()) }
    }

    fn get(&self, key: &[u8], room: &mut [u8]) -> i32 {
        let to = nmc_buffer_t { ptr: room.as_mut_ptr().cast(), len: room.len() };
        unsafe { c::nmc_client_get(self.0, slice(key), &raw const to, 1, null_mut()) }
    }

    fn remove(&self, key: &[u8]) -> i32 {
        unsafe { removes::nmc_client_remove(self.0, slice(key), 0) }
    }

    /// The completion of the only call that is submitted.
    fn completion(&self) -> i32 {
        let (mut done, mut n): (nmc_client_completion_t, usize) = (zeroed(), 0);
        let taken = unsafe { submit::nmc_client_completions(self.0, &raw mut done, 1, -1, &raw mut n) };
        assert_eq!((taken, n), (NMC_OK, 1));
        done.status
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        assert_eq!(c::nmc_client_close(self.0), NMC_OK);
    }
}

/// A master, a node, and a client that has neither.
fn cluster() -> (Directory, Client, Client) {
    let directory = Directory::new();
    let (node, client) = (Client::open(&directory), Client::open(&directory));
    assert_eq!(node.mount("node"), NMC_OK, "{}", last_error());
    (directory, node, client)
}

/// What a call may say that was refused memory: a message that could not be made or read has not arrived.
fn is_excuse(status: i32) -> bool {
    [NMC_ERR_NO_MEMORY, NMC_ERR_UNAVAILABLE, NMC_ERR_TIMEOUT].contains(&status)
}

/// Makes a call with each of its requests refused, alone and with all that follow; after each it works.
fn refuse(what: &str, mut call: impl FnMut() -> i32, mut again: impl FnMut(i32)) -> u64 {
    let mut most = 0;
    for n in 0..REFUSALS {
        let (status, seen) = fail_nth(n, &mut call);
        most = most.max(seen);
        assert!(status >= 0 || is_excuse(status), "{what}, request {n}: {status}: {}", last_error());
        again(status);
        if seen <= n {
            assert!(status >= 0, "{what}: {status}: {}", last_error());
            return most;
        }
    }
    panic!("{what} makes more than {REFUSALS} requests for memory");
}

#[test]
fn opening_a_client_fails_with_a_status_and_leaves_nothing() {
    let _alone = alone();
    let directory = Directory::new();
    drop(Client::open(&directory));
    let before = descriptors();
    let (config, mut client) = (nmc_client_config_t { timeout_ms: -1, ..Client::config(&directory) }, null_mut());
    for n in 0..REFUSALS {
        let (status, seen) = fail_nth(n, || unsafe { c::nmc_client_open(&raw const config, &raw mut client) });
        if status == NMC_OK {
            drop(Client(client));
            assert_eq!(descriptors(), before);
            if seen <= n {
                return;
            }
        } else {
            assert_eq!((status, descriptors()), (NMC_ERR_NO_MEMORY, before), "{}", last_error());
        }
    }
    panic!("nmc_client_open makes more than {REFUSALS} requests for memory");
}

#[test]
fn mounting_fails_with_a_status_and_leaves_no_node() {
    let _alone = alone();
    let directory = Directory::new();
    let client = Client::open(&directory);
    let mut number = 0;
    let mount = || {
        number += 1;
        client.mount(&format!("node {number}"))
    };
    let other = Client::open(&directory);
    let refused = refuse("nmc_client_mount", mount, |_| {
        let mut n = 0usize;
        assert_eq!(unsafe { c::nmc_client_segments(other.0, Some(count_segment), (&raw mut n).cast()) }, NMC_OK);
    });
    assert!(refused > 5, "only {refused} requests");
    assert_eq!(other.put(b"k", b"v"), NMC_OK);
}

#[test]
fn a_put_in_parts_gives_a_status_and_works_again() {
    let _alone = alone();
    let (directory, _node, other) = cluster();
    let (config, mut client) =
        (nmc_client_config_t { stripe_bytes: 64 << 10, timeout_ms: 2000, ..Client::config(&directory) }, null_mut());
    assert_eq!(unsafe { c::nmc_client_open(&raw const config, &raw mut client) }, NMC_OK, "{}", last_error());
    let client = Client(client);
    let (bytes, mut room) = (vec![7u8; 8 << 20], vec![0u8; 8 << 20]);
    let refused = refuse(
        "nmc_client_put in parts",
        || client.put(b"k", &bytes),
        |status| {
            if status == NMC_OK {
                room.fill(0);
                assert_eq!(other.get(b"k", &mut room), NMC_OK, "{}", last_error());
                assert!(room == bytes);
            }
            let removed = other.remove(b"k");
            assert!([NMC_OK, NMC_ERR_NOT_FOUND].contains(&removed), "{removed}: {}", last_error());
        },
    );
    assert!(refused >= 2, "only {refused} requests");
}

unsafe extern "C" fn count_segment(user: *mut c_void, _: *const nmc_segment_t) -> i32 {
    unsafe { *user.cast::<usize>() += 1 };
    1
}

unsafe extern "C" fn count_replica(user: *mut c_void, _: *const nmc_replica_t) -> i32 {
    unsafe { *user.cast::<usize>() += 1 };
    1
}

unsafe extern "C" fn count_key(user: *mut c_void, _: nmc_slice_t) -> i32 {
    unsafe { *user.cast::<usize>() += 1 };
    1
}

#[test]
fn single_calls_give_a_status_and_work_again() {
    let _alone = alone();
    let (_directory, _node, client) = cluster();
    let large = value(7).repeat(40);
    let small = value(8);
    // Connections, buffers and tables are made by the first calls: refuse them from the beginning.
    refuse(
        "nmc_client_put",
        || client.put(b"k", &large),
        |status| {
            if status == NMC_OK {
                assert_eq!(client.remove(b"k"), NMC_OK);
            } else {
                // It may have been put.
                let removed = client.remove(b"k");
                assert!([NMC_OK, NMC_ERR_NOT_FOUND].contains(&removed), "{removed}");
            }
        },
    );
    assert_eq!((client.put(b"k", &large), client.put(b"s", &small)), (NMC_OK, NMC_OK));
    for (key, value) in [(b"k", &large), (b"s", &small)] {
        let mut room = vec![0; value.len()];
        refuse("nmc_client_get", || client.get(key, &mut room), |_| ());
        assert_eq!(&room, value);
    }
    let mut pieces: Vec<nmc_buffer_t> = Vec::new();
    let mut room = vec![0u8; large.len()];
    for part in room.chunks_mut(4) {
        pieces.push(nmc_buffer_t { ptr: part.as_mut_ptr().cast(), len: part.len() });
    }
    let get = || unsafe { c::nmc_client_get(client.0, slice(b"k"), pieces.as_ptr(), pieces.len(), null_mut()) };
    assert!(refuse("nmc_client_get of pieces", get, |_| ()) > 0);
    assert_eq!(room, large);
    let mut n = 0usize;
    let user = (&raw mut n).cast();
    let (mut said, mut size) = ([0u8; 256], 0usize);
    let about = || unsafe {
        nmc_client_get_metadata(client.0, slice(b"k"), said.as_mut_ptr().cast(), said.len(), &raw mut size)
    };
    refuse("nmc_client_get_metadata", about, |_| ());
    refuse("nmc_client_exists", || unsafe { c::nmc_client_exists(client.0, slice(b"k")) }, |_| ());
    refuse(
        "nmc_client_query",
        || unsafe { c::nmc_client_query(client.0, slice(b"k"), Some(count_replica), user) },
        |_| (),
    );
    refuse("nmc_client_segments", || unsafe { c::nmc_client_segments(client.0, Some(count_segment), user) }, |_| ());
    let mut cursor = 0;
    let keys = || unsafe { c::nmc_client_keys(client.0, slice(b""), &raw mut cursor, Some(count_key), user) };
    refuse("nmc_client_keys", keys, |_| ());
    refuse(
        "nmc_client_remove",
        || client.remove(b"s"),
        |status| {
            if status == NMC_OK {
                assert_eq!(client.put(b"s", &small), NMC_OK);
            }
        },
    );
    refuse("nmc_client_drain", || unsafe { nmc_client_drain(client.0, slice(b"node"), 0, null_mut()) }, |_| ());
    refuse("nmc_client_sync", || c::nmc_client_sync(client.0), |_| ());
    refuse("nmc_client_remove_all", || removes::nmc_client_remove_all(client.0, 0), |_| ());
}

/// Keys, values and places of a batch.
struct Batch {
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    rooms: Vec<Vec<u8>>,
    statuses: Vec<i32>,
}

impl Batch {
    fn new() -> Self {
        let values: Vec<Vec<u8>> = (0..N).map(value).collect();
        let rooms = values.iter().map(|value| vec![0; value.len()]).collect();
        Self { keys: (0..N).map(key).collect(), values, rooms, statuses: vec![77; N] }
    }

    fn slices(list: &[Vec<u8>]) -> Vec<nmc_slice_t> {
        list.iter().map(|one| slice(one)).collect()
    }

    fn buffers(&mut self) -> Vec<nmc_buffer_t> {
        self.rooms.iter_mut().for_each(|room| room.fill(0));
        self.rooms.iter_mut().map(|r| nmc_buffer_t { ptr: r.as_mut_ptr().cast(), len: r.len() }).collect()
    }

    /// What was said of each is true: what is OK is there, byte for byte.
    fn check_put(&self, client: &Client, what: &str) {
        for i in 0..N {
            let status = self.statuses[i];
            assert!(status == NMC_OK || status == NMC_ERR_EXISTS || is_excuse(status), "{what}: item {i}: {status}");
            if status == NMC_OK && i % 37 == 0 {
                let mut room = vec![0; self.values[i].len()];
                assert_eq!(
                    (client.get(&self.keys[i], &mut room), &room),
                    (NMC_OK, &self.values[i]),
                    "{what}: item {i}"
                );
            }
        }
    }

    fn check_get(&self, what: &str) {
        for i in 0..N {
            let status = self.statuses[i];
            assert!(status == NMC_OK || is_excuse(status), "{what}: item {i}: {status}");
            assert!(status != NMC_OK || self.rooms[i] == self.values[i], "{what}: item {i}");
        }
    }
}

#[test]
fn batches_tell_of_every_item_and_work_again() {
    let _alone = alone();
    let (directory, _node, client) = cluster();
    let mut all = Batch::new();
    let (keys, values) = (Batch::slices(&all.keys), Batch::slices(&all.values));
    let mut refused = 0;
    for n in 0..REFUSALS {
        let statuses = all.statuses.as_mut_ptr();
        let put = || unsafe {
            c::nmc_client_put_batch(client.0, keys.as_ptr(), values.as_ptr(), null(), N, null(), statuses)
        };
        let (_, seen) = fail_nth(n, put);
        all.check_put(&client, &format!("put, request {n}"));
        assert!([NMC_OK].contains(&removes::nmc_client_remove_all(client.0, 0)), "{}", last_error());
        refused = seen;
        if seen <= n {
            break;
        }
    }
    assert!(refused >= 6, "only {refused} requests");
    let put =
        unsafe { c::nmc_client_put_batch(client.0, keys.as_ptr(), values.as_ptr(), null(), N, null(), null_mut()) };
    assert_eq!(put, NMC_OK, "{}", last_error());
    for n in 0..REFUSALS {
        let (buffers, statuses) = (all.buffers(), all.statuses.as_mut_ptr());
        let get = || unsafe {
            c::nmc_client_get_batch(client.0, keys.as_ptr(), buffers.as_ptr(), null(), N, null_mut(), statuses)
        };
        let (_, seen) = fail_nth(n, get);
        all.check_get(&format!("get, request {n}"));
        let exists = || unsafe { c::nmc_client_exists_batch(client.0, keys.as_ptr(), N, statuses) };
        let (status, _) = fail_nth(n, exists);
        assert!(status == NMC_OK || is_excuse(status), "{status}");
        if seen <= n {
            break;
        }
    }
    // What is said to be removed is, and what is not may be.
    for n in 0..REFUSALS {
        let statuses = all.statuses.as_mut_ptr();
        let remove = || unsafe { removes::nmc_client_remove_batch(client.0, keys.as_ptr(), N, 0, statuses) };
        let (_, seen) = fail_nth(n, remove);
        for (i, (key, status)) in keys.iter().zip(&all.statuses).enumerate() {
            assert!(*status == NMC_OK || is_excuse(*status), "remove, request {n}: item {i}: {status}");
            if i % 37 == 0 && *status == NMC_OK {
                assert_eq!(unsafe { c::nmc_client_exists(client.0, *key) }, NMC_ERR_NOT_FOUND, "item {i}");
            }
        }
        assert_eq!(removes::nmc_client_remove_all(client.0, 0), NMC_OK, "{}", last_error());
        let put =
            unsafe { c::nmc_client_put_batch(client.0, keys.as_ptr(), values.as_ptr(), null(), N, null(), null_mut()) };
        assert_eq!(put, NMC_OK, "{}", last_error());
        if seen <= n {
            break;
        }
    }
    // All that follow are refused too: until the deadline nothing goes on.
    let hasty = Client::open_for(&directory, 200);
    for n in 0..6 {
        let (buffers, statuses) = (all.buffers(), all.statuses.as_mut_ptr());
        let get = || unsafe {
            c::nmc_client_get_batch(hasty.0, keys.as_ptr(), buffers.as_ptr(), null(), N, null_mut(), statuses)
        };
        fail_from(n, get);
        all.check_get(&format!("get, from request {n} on"));
    }
    let mut room = vec![0; all.values[5].len()];
    assert_eq!((client.get(&all.keys[5], &mut room), &room), (NMC_OK, &all.values[5]));
}

#[test]
fn what_is_submitted_is_refused_or_ends_and_tells_of_every_item() {
    let _alone = alone();
    let (_directory, _node, client) = cluster();
    let mut all = Batch::new();
    let (keys, values) = (Batch::slices(&all.keys), Batch::slices(&all.values));
    let mut refused = 0;
    for n in 0..REFUSALS {
        all.statuses.fill(NMC_ERR_NO_MEMORY);
        let statuses = all.statuses.as_mut_ptr();
        let ((), seen) = fail_nth(n, || unsafe {
            let submitted = submit::nmc_client_submit_put_batch(
                client.0,
                keys.as_ptr(),
                values.as_ptr(),
                null(),
                N,
                null(),
                n,
                statuses,
            );
            if submitted == NMC_OK {
                client.completion();
            } else {
                assert_eq!(submitted, NMC_ERR_NO_MEMORY);
            }
        });
        all.check_put(&client, &format!("put, request {n}"));
        assert_eq!(removes::nmc_client_remove_all(client.0, 0), NMC_OK, "{}", last_error());
        refused = seen;
        if seen <= n {
            break;
        }
    }
    assert!(refused >= 6, "only {refused} requests");
    let put =
        unsafe { c::nmc_client_put_batch(client.0, keys.as_ptr(), values.as_ptr(), null(), N, null(), null_mut()) };
    assert_eq!(put, NMC_OK, "{}", last_error());
    for n in 0..REFUSALS {
        all.statuses.fill(NMC_ERR_NO_MEMORY);
        let (buffers, statuses) = (all.buffers(), all.statuses.as_mut_ptr());
        let ((), seen) = fail_nth(n, || unsafe {
            let (keys, buffers) = (keys.as_ptr(), buffers.as_ptr());
            let submitted =
                submit::nmc_client_submit_get_batch(client.0, keys, buffers, null(), N, n, null_mut(), statuses);
            if submitted == NMC_OK {
                client.completion();
            } else {
                assert_eq!(submitted, NMC_ERR_NO_MEMORY);
            }
        });
        all.check_get(&format!("get, request {n}"));
        if seen <= n {
            return;
        }
    }
    panic!("more than {REFUSALS} requests for memory");
}

#[test]
fn many_calls_that_were_submitted_end_with_their_client_or_are_cancelled_without_memory() {
    let _alone = alone();
    let (mut directory, _node, client) = cluster();
    // Nobody answers: all of them stay under way.
    directory.stop();
    let mut rooms = vec![value(7); N];
    let begin = |client: &Client, rooms: &mut [Vec<u8>]| {
        for room in rooms {
            let to = nmc_buffer_t { ptr: room.as_mut_ptr().cast(), len: room.len() };
            let begun = unsafe { submit::nmc_client_submit_get(client.0, slice(b"k"), &raw const to, 1, 5) };
            assert_eq!(begun, NMC_OK, "{}", last_error());
        }
    };
    begin(&client, &mut rooms);
    let (cancelled, _) = fail_nth(0, || submit::nmc_client_cancel(client.0, 5));
    assert!(cancelled == NMC_OK || cancelled == NMC_ERR_NO_MEMORY, "{cancelled}");
    assert_eq!(submit::nmc_client_cancel(client.0, 5), if cancelled == NMC_OK { NMC_ERR_NOT_FOUND } else { NMC_OK });
    for _ in 0..N {
        assert_eq!(client.completion(), NMC_ERR_CANCELLED);
    }
    for n in 0..3 {
        let client = Client::open(&directory);
        begin(&client, &mut rooms);
        let closed = fail_from(n, || c::nmc_client_close(client.0));
        std::mem::forget(client);
        assert_eq!(closed.0, NMC_OK, "from request {n} on");
    }
}
