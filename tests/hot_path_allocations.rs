//! Nothing on a hot path allocates. Every call that a serving loop makes, through the C functions, with an allocator that
//! counts what the calling thread asks for. Calls that still allocate are listed with their number, so that it does not grow.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "an allocator that counts, and the C functions")]

#[path = "common/ffi.rs"]
mod ffi;

use ffi::{fresh, slice, zeroed};
use nanomc::base::status::*;
use nanomc::ffi::common::*;
use nanomc::ffi::config::Config as _;
use nanomc::ffi::kv::{nmc_kv_create, nmc_kv_destroy};
use nanomc::ffi::kv_seq::*;
use nanomc::ffi::kv_tables::*;
use nanomc::ffi::kv_types::*;
use nanomc::ffi::store::*;
use nanomc::ffi::store_access::*;
use nanomc::ffi::store_batch::*;
use nanomc::ffi::store_types::*;
use nanomc::ffi::world::*;
use nanomc::ffi::world_types::{NMC_HEAP_HOST, nmc_world_config_t};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{null, null_mut};

struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls that are counted, after as many that are not.
const ROUNDS: u64 = 500;

#[derive(Default)]
struct Book {
    wrong: Vec<String>,
}

impl Book {
    /// Notes a call that allocates more than `known` times. The status is what the call is to return.
    fn expect(&mut self, name: &str, known: u64, status: nmc_status_t, mut call: impl FnMut(u64) -> nmc_status_t) {
        for round in 0..ROUNDS {
            assert_eq!(call(round), status, "{name}");
        }
        let before = ASKED.get();
        for round in ROUNDS..2 * ROUNDS {
            assert_eq!(call(round), status, "{name}");
        }
        let asked = ASKED.get() - before;
        if asked > known * ROUNDS {
            self.wrong.push(format!("{name}: {asked} allocations in {ROUNDS} calls, {known} a call are known"));
        } else if known > 0 && asked == 0 {
            self.wrong.push(format!("{name} does not allocate any more: take it off the list"));
        }
    }

    /// A call of a hot path.
    fn hot(&mut self, name: &str, call: impl FnMut(u64) -> nmc_status_t) {
        self.expect(name, 0, NMC_OK, call);
    }

    fn close(self) {
        assert!(self.wrong.is_empty(), "\n{}", self.wrong.join("\n"));
    }
}

/// A key of 40 bytes, a part of which is not in the header.
fn key(number: u64) -> [u8; 40] {
    let mut key = [b'k'; 40];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn store_with(policy: u32, flags: u32) -> *mut nmc_store_t {
    let mut config: nmc_store_config_t = fresh();
    (config.page_bytes, config.heap_bytes, config.max_objects) = (4096, 256 * 4096, 256);
    (config.high_permille, config.low_permille, config.watchdog_ms) = (-1, -1, -1);
    (config.device, config.attach_timeout_ms, config.call_timeout_ms) = (-1, -1, -1);
    (config.eviction, config.flags, config.heap_kind) = (policy, flags, NMC_HEAP_HOST);
    let mut store = null_mut();
    // SAFETY: a complete config, and an out-pointer that is a local.
    assert_eq!(unsafe { nmc_store_create(null_mut(), &raw const config, &raw mut store) }, NMC_OK);
    store
}

/// The count itself is right: this control allocates, and the book says so.
#[test]
fn an_allocation_is_noticed() {
    let mut book = Book::default();
    book.hot("nothing", |_| NMC_OK);
    assert!(book.wrong.is_empty());
    book.hot("a box", |round| {
        drop(std::hint::black_box(Box::new(round)));
        NMC_OK
    });
    assert_eq!(book.wrong, ["a box: 500 allocations in 500 calls, 0 a call are known"]);
}

#[test]
fn reading_and_pinning_does_not_allocate() {
    for (policy, flags) in [(NMC_EVICT_FIFO, 0), (NMC_EVICT_LRU, NMC_STORE_CHECKSUMS)] {
        let store = store_with(policy, flags);
        let (there, missing, value) = (key(1), key(2), [7u8; 6000]);
        let (there, missing) = (slice(&there), slice(&missing));
        let mut to = [0u8; 6000];
        let (mut size, mut state, mut matched) = (0usize, 0u32, 0usize);
        let mut view: nmc_view_t = zeroed();
        let mut meta: nmc_object_meta_t = zeroed();
        let mut book = Book::default();
        let data = to.as_mut_ptr();
        let halves = [
            nmc_buffer_t { ptr: data.cast(), len: 3000 },
            nmc_buffer_t { ptr: data.wrapping_add(3000).cast(), len: 3000 },
        ];
        // SAFETY: the C contracts: every pointer is to a local that is large enough.
        unsafe {
            assert_eq!(nmc_store_put(store, there, value.as_ptr().cast(), value.len(), null()), NMC_OK);
            book.hot("get", |_| nmc_store_get(store, there, data.cast(), 6000, &raw mut size));
            book.expect("get of a missing key", 0, NMC_ERR_NOT_FOUND, |_| {
                nmc_store_get(store, missing, data.cast(), 6000, &raw mut size)
            });
            book.hot("get of the size", |_| nmc_store_get(store, there, null_mut(), 0, &raw mut size));
            book.hot("get_into", |_| nmc_store_get_into(store, there, data.cast(), 6000));
            book.expect("get_into of a missing key", 0, NMC_ERR_NOT_FOUND, |_| {
                nmc_store_get_into(store, missing, data.cast(), 6000)
            });
            book.hot("get_slices", |_| nmc_store_get_slices(store, there, 0, halves.as_ptr(), 2, &raw mut size));
            let part = nmc_buffer_t { ptr: data.cast(), len: 5000 };
            book.hot("a range", |_| nmc_store_get_slices(store, there, 100, &raw const part, 1, null_mut()));
            book.hot("get_strided", |_| nmc_store_get_strided(store, there, 0, data.cast(), 10, 100, 200));
            book.hot("get_location", |_| nmc_store_get_location(store, there, &raw mut meta));
            book.expect("get_location of a missing key", 0, NMC_ERR_NOT_FOUND, |_| {
                nmc_store_get_location(store, missing, &raw mut meta)
            });
            book.hot("exists", |_| nmc_store_exists(store, there, &raw mut state));
            book.hot("exists of a missing key", |_| nmc_store_exists(store, missing, &raw mut state));
            book.hot("touch", |_| nmc_store_touch(store, there));
            book.expect("touch of a missing key", 0, NMC_ERR_NOT_FOUND, |_| nmc_store_touch(store, missing));
            book.hot("pin and unpin", |_| {
                nmc_store_pin(store, there, &raw mut view).min(nmc_store_unpin(store, &raw const view))
            });
            book.expect("pin of a missing key", 0, NMC_ERR_NOT_FOUND, |_| nmc_store_pin(store, missing, &raw mut view));
            book.hot("pin_partial and unpin", |_| {
                nmc_store_pin_partial(store, there, 1, &raw mut view).min(nmc_store_unpin(store, &raw const view))
            });

            let keys = [there, there, there, missing];
            let mut views: [nmc_view_t; 4] = zeroed();
            let (mut states, mut statuses) = ([0u32; 4], [0; 4]);
            let buffers = [nmc_buffer_t { ptr: data.cast(), len: 6000 }; 4];
            book.hot("match_prefix", |_| nmc_store_match_prefix(store, keys.as_ptr(), 4, &raw mut matched));
            book.hot("exists_batch", |_| nmc_store_exists_batch(store, keys.as_ptr(), 4, states.as_mut_ptr()));
            book.hot("get_into_batch", |_| {
                nmc_store_get_into_batch(store, keys.as_ptr(), buffers.as_ptr(), 3, statuses.as_mut_ptr())
            });
            book.expect("get_into_batch with a missing key", 0, NMC_ERR_NOT_FOUND, |_| {
                nmc_store_get_into_batch(store, keys.as_ptr(), buffers.as_ptr(), 4, statuses.as_mut_ptr())
            });
            book.hot("pin_batch and unpin_batch", |_| {
                let pinned =
                    nmc_store_pin_batch(store, keys.as_ptr(), 3, views.as_mut_ptr(), null_mut(), statuses.as_mut_ptr());
                pinned.min(nmc_store_unpin_batch(store, views.as_ptr(), 3, statuses.as_mut_ptr()))
            });
            book.expect("pin_batch with a missing key", 0, NMC_ERR_NOT_FOUND, |_| {
                nmc_store_pin_batch(store, keys.as_ptr(), 4, views.as_mut_ptr(), null_mut(), statuses.as_mut_ptr())
            });
            assert_eq!(nmc_store_destroy(store), NMC_OK);
        }
        book.close();
    }
}

/// In the process of the master, in a store that is full: every write evicts.
#[test]
fn writing_does_not_allocate() {
    for policy in [NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO] {
        let store = store_with(policy, 0);
        let value = [7u8; 3000];
        let data = value.as_ptr().cast();
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            key(next)
        };
        let mut replace: nmc_put_options_t = ffi::fresh();
        (replace.preferred_segment, replace.flags) = (-1, NMC_PUT_REPLACE);
        let mut plan: nmc_write_plan_t = zeroed();
        let mut book = Book::default();
        // SAFETY: the C contracts: every pointer is to a local that is large enough.
        unsafe {
            book.hot("put", |_| nmc_store_put(store, slice(&fresh()), data, 3000, null()));
            let halves = [slice(&value[..1000]), slice(&value[1000..])];
            book.hot("put_slices", |_| nmc_store_put_slices(store, slice(&fresh()), halves.as_ptr(), 2, null()));
            book.hot("put_strided", |_| nmc_store_put_strided(store, slice(&fresh()), data, 10, 100, 200, null()));
            book.hot("open_for_write and commit", |_| {
                let opened = nmc_store_open_for_write(store, slice(&fresh()), 3000, null(), &raw mut plan);
                opened.min(nmc_store_commit(store, &raw const plan))
            });
            book.hot("open_for_write, publish_pages and commit", |_| {
                let opened = nmc_store_open_for_write(store, slice(&fresh()), 3000, null(), &raw mut plan);
                let published = nmc_store_publish_pages(store, &raw const plan, 1);
                opened.min(published).min(nmc_store_commit(store, &raw const plan))
            });

            // Known to allocate: calls that go through the list of requests which a master elsewhere gets too, lists of
            // results, and errors with a text.
            let same = key(u64::MAX);
            assert_eq!(nmc_store_put(store, slice(&same), data, 3000, null()), NMC_OK);
            let mut pinned: nmc_view_t = zeroed();
            assert_eq!(nmc_store_pin(store, slice(&same), &raw mut pinned), NMC_OK);
            book.expect("put of a key that exists", KNOWN.put_exists, NMC_ERR_EXISTS, |_| {
                nmc_store_put(store, slice(&same), data, 3000, null())
            });
            assert_eq!(nmc_store_unpin(store, &raw const pinned), NMC_OK);
            book.expect("put that replaces", KNOWN.replace, NMC_OK, |_| {
                nmc_store_put(store, slice(&same), data, 3000, &raw const replace)
            });
            book.expect("put and remove", KNOWN.remove, NMC_OK, |_| {
                let key = fresh();
                nmc_store_put(store, slice(&key), data, 3000, null()).min(nmc_store_remove(store, slice(&key)))
            });
            book.expect("open_for_write and abort", KNOWN.abort, NMC_OK, |_| {
                let opened = nmc_store_open_for_write(store, slice(&fresh()), 3000, null(), &raw mut plan);
                opened.min(nmc_store_abort(store, &raw const plan))
            });
            let values = [slice(&value); 4];
            let (mut plans, mut statuses): ([nmc_write_plan_t; 4], _) = (zeroed(), [0; 4]);
            let sizes = [3000; 4];
            book.expect("put_batch", KNOWN.put_batch, NMC_OK, |_| {
                let keys = [fresh(), fresh(), fresh(), fresh()];
                let keys = [0, 1, 2, 3].map(|at| slice(&keys[at]));
                nmc_store_put_batch(store, keys.as_ptr(), values.as_ptr(), 4, null(), statuses.as_mut_ptr())
            });
            book.expect("open_batch and commit_batch", KNOWN.open_batch, NMC_OK, |_| {
                let keys = [fresh(), fresh(), fresh(), fresh()];
                let keys = [0, 1, 2, 3].map(|at| slice(&keys[at]));
                let (plans, statuses) = (plans.as_mut_ptr(), statuses.as_mut_ptr());
                nmc_store_open_batch(store, keys.as_ptr(), sizes.as_ptr(), 4, null(), plans, statuses)
                    .min(nmc_store_commit_batch(store, plans, 4, statuses))
            });
            assert_eq!(nmc_store_destroy(store), NMC_OK);
        }
        book.close();
    }
}

/// Most allocations a call of what is known to allocate; of batches of four.
struct Known {
    put_exists: u64,
    replace: u64,
    remove: u64,
    abort: u64,
    put_batch: u64,
    open_batch: u64,
}

const KNOWN: Known = Known { put_exists: 8, replace: 2, remove: 3, abort: 3, put_batch: 7, open_batch: 6 };

#[test]
fn a_step_of_the_kv_cache_does_not_allocate() {
    let mut config: nmc_kv_config_t = fresh();
    (config.total_blocks, config.tokens_per_block, config.hash) = (1024, 16, NMC_KV_HASH_BLAKE3);
    config.eviction = NMC_EVICT_LRU;
    let options = nmc_kv_append_t::defaults();
    let mut room: nmc_kv_room_t = zeroed();
    room.struct_size = u32::try_from(size_of::<nmc_kv_room_t>()).unwrap();
    let mut kv = null_mut();
    let mut book = Book::default();
    let prompt: Vec<u32> = (0..256).collect();
    let ids = [1u64, 2, 3, 4];
    let next = [5u32; 4];
    let mut rows: [nmc_kv_row_t; 4] = zeroed();
    let (mut table, mut statuses, mut written, mut hit) = ([0i32; 4 * 128], [0; 4], 0u64, 0u64);
    let (mut indptr, mut indices, mut last, mut n) = ([0i32; 5], [0i32; 4 * 128], [0i32; 4], 0usize);
    let (mut slots, none) = ([0i64; 4], slice(&[]));
    // SAFETY: the C contracts: every pointer is to a local that is large enough.
    unsafe {
        assert_eq!(nmc_kv_create(null_mut(), &raw const config, &raw mut kv), NMC_OK);
        for id in ids.into_iter().chain([5]) {
            let prompt = prompt.as_ptr();
            assert_eq!(nmc_kv_open(kv, id, prompt, 256, null(), null_mut(), null_mut()), NMC_OK);
            // As much as the test will need: a sequence grows by doubling.
            assert_eq!(nmc_kv_reserve(kv, id, 1800, null_mut()), NMC_OK);
        }
        book.hot("append_batch", |_| nmc_kv_append_batch(kv, ids.as_ptr(), next.as_ptr(), 1, statuses.as_mut_ptr()));
        book.hot("append", |_| nmc_kv_append(kv, 2, next.as_ptr(), 1, null(), null_mut()));
        book.hot("append with options and room", |_| {
            nmc_kv_append(kv, 5, next.as_ptr(), 1, &raw const options, &raw mut room)
        });
        book.hot("append of tokens that are not told", |_| nmc_kv_append(kv, 3, null(), 1, null(), null_mut()));
        book.hot("match", |_| nmc_kv_match(kv, prompt.as_ptr(), 256, null(), none, &raw mut hit));
        book.hot("match of something else", |_| {
            nmc_kv_match(kv, prompt[1..].as_ptr(), 255, null(), none, &raw mut hit)
        });
        book.hot("table", |_| {
            let (rows, table) = (rows.as_mut_ptr(), table.as_mut_ptr());
            nmc_kv_append(kv, 4, next.as_ptr(), 1, null(), null_mut()).min(nmc_kv_table(
                kv,
                0,
                NMC_KV_TABLE_BLOCKS,
                ids.as_ptr(),
                4,
                128,
                0,
                rows,
                table,
                &raw mut written,
            ))
        });
        book.hot("table_csr", |_| {
            let (indptr, indices, last) = (indptr.as_mut_ptr(), indices.as_mut_ptr(), last.as_mut_ptr());
            nmc_kv_table_csr(kv, 0, ids.as_ptr(), 4, indptr, last, indices, 512, &raw mut n)
        });
        book.hot("slot mapping", |_| {
            nmc_kv_slot_mapping(kv, 0, ids.as_ptr(), null(), 4, slots.as_mut_ptr(), 4, &raw mut n)
        });
        assert_eq!(nmc_kv_destroy(kv), NMC_OK);
    }
    book.close();
}

#[test]
fn looking_at_a_world_does_not_allocate() {
    let mut config: nmc_world_config_t = fresh();
    (config.world_size, config.heap_bytes) = (2, 1 << 20);
    config.heap_kind = NMC_HEAP_HOST;
    (config.rank, config.device, config.device_rank, config.words_per_rank) = (-1, -1, -1, -1);
    (config.join_timeout_ms, config.drain_ms, config.service_cpu) = (-1, -1, -1);
    let mut worlds = [null_mut(); 2];
    let (mut at, mut word, mut state, mut rank, mut offset) = (null_mut(), null_mut(), 0u32, 0i32, 0u64);
    let mut book = Book::default();
    // SAFETY: the C contracts: every pointer is to a local that is large enough.
    unsafe {
        assert_eq!(nmc_world_create_local(&raw const config, worlds.as_mut_ptr()), NMC_OK);
        let world = worlds[0];
        book.hot("ptr", |_| nmc_world_ptr(world, 1, 4096, 4096, &raw mut at));
        book.hot("locate", |_| nmc_world_locate(world, at, &raw mut rank, &raw mut offset));
        book.hot("word", |_| nmc_world_word(world, 1, 0, &raw mut word, null_mut()));
        book.hot("alive", |_| nmc_world_alive(world, 1, &raw mut state));
        for world in worlds {
            assert_eq!(nmc_world_destroy(world), NMC_OK);
        }
    }
    book.close();
}
