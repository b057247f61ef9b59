//! Nothing ends the process for want of memory: in every call of `nmc_kv_*` and `nmc_blocks_*` every request for memory of
//! 4 KiB or more is refused once. The call then says `NMC_ERR_NO_MEMORY` and has changed nothing, or does without; repeated,
//! it gives what it gives in a cache that was never refused anything, its twin.

#![allow(
    unsafe_code,
    unused_unsafe,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may, and calls the C functions"
)]

#[path = "common/failing.rs"]
mod failing;
#[path = "common/ffi.rs"]
mod ffi;

use failing::{alone, last_error};
use ffi::{fresh, slice, zeroed};
use nanomc::base::status::{NMC_ERR_NO_MEMORY, NMC_IN_PROGRESS, NMC_OK};
use nanomc::ffi::basic::nmc_slice_t;
use nanomc::ffi::blocks::*;
use nanomc::ffi::common::*;
use nanomc::ffi::config::Config as _;
use nanomc::ffi::kv::*;
use nanomc::ffi::kv_copy::*;
use nanomc::ffi::kv_move::*;
use nanomc::ffi::kv_seq::*;
use nanomc::ffi::kv_state::*;
use nanomc::ffi::kv_tables::*;
use nanomc::ffi::kv_types::*;
use nanomc::ffi::store as store_api;
use nanomc::ffi::store_types::nmc_store_config_t;
use nanomc::ffi::world_types::NMC_HEAP_HOST;
use std::cell::Cell;
use std::ptr::{null, null_mut};

thread_local! {
    /// Which request of the next call is refused, and how many it made.
    static REFUSE: Cell<Option<u64>> = const { Cell::new(None) };
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Runs one call of the library, in which a request is refused if that is wanted. What the test itself needs is not.
fn call(body: impl FnOnce() -> i32) -> i32 {
    let Some(refuse) = REFUSE.get() else { return body() };
    let (status, seen) = failing::fail_nth(refuse, body);
    SEEN.set(seen);
    status
}

/// One call of the library.
macro_rules! call {
    ($($call:tt)*) => {
        // SAFETY: the arrays are as long as is said, structs have their sizes, and all live through the call.
        call(|| unsafe { $($call)* })
    };
}

/// A status, and all numbers that the call gave.
type Outcome = (i32, Vec<u64>);

const SIZE: u32 = 4;
const BLOCKS: u32 = 8192;
const CAPACITY: u32 = 4 * BLOCKS;
/// Tokens of a long prompt: its lists have more than 4 KiB.
const LONG: u64 = 6000;

/// How a cache is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    Contiguous,
    Compared,
    Priority,
    Sides,
    Virtual,
}

/// A cache, its memory, and what its calls need.
struct Cache {
    kv: *mut nmc_kv_t,
    shape: Shape,
    memory: Vec<Vec<u64>>,
    store: *mut store_api::nmc_store_t,
}

fn group(shape: Shape) -> nmc_kv_group_t {
    let mut group = nmc_kv_group_t::defaults();
    (group.kind, group.dtype, group.element_bytes) = (NMC_KV_KIND_ATTENTION, NMC_DTYPE_RAW, 8);
    // With pages, those of the system.
    (group.layers, group.kv_heads, group.head_dim) = if shape == Shape::Virtual { (1, 1, 128) } else { (1, 1, 1) };
    (group.order, group.sides) = (NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_SEPARATE);
    group
}

fn groups(shape: Shape) -> Vec<nmc_kv_group_t> {
    let mut all = vec![group(shape)];
    if shape == Shape::Sides {
        all.push(nmc_kv_group_t { window: 5000, blocks: 4 * BLOCKS, ..group(shape) });
        let mut states = nmc_kv_group_t::defaults();
        (states.kind, states.layers, states.state_bytes, states.blocks) = (NMC_KV_KIND_RECURRENT, 1, 8, 2000);
        (states.dtype, states.order, states.state_every) = (NMC_DTYPE_BF16, NMC_KV_BLOCK_MAJOR, 500);
        all.push(states);
    }
    all
}

fn config(shape: Shape, groups: &[nmc_kv_group_t]) -> nmc_kv_config_t {
    let mut config: nmc_kv_config_t = fresh();
    (config.total_blocks, config.tokens_per_block, config.capacity_blocks) = (BLOCKS, SIZE, CAPACITY);
    (config.max_sequences, config.event_capacity) = (2000, 3000);
    (config.heap_kind, config.device, config.eviction) = (NMC_HEAP_HOST, -1, NMC_EVICT_LRU);
    (config.groups, config.n_groups) = (groups.as_ptr(), groups.len());
    match shape {
        Shape::Plain | Shape::Contiguous | Shape::Sides => {}
        Shape::Compared => config.hash = NMC_KV_HASH_XXH3,
        Shape::Priority => config.eviction = NMC_EVICT_PRIORITY,
        Shape::Virtual => {
            config.capacity_blocks = 0;
            (config.flags, config.max_sequence_tokens) = (NMC_KV_VIRTUAL, 13_500);
        }
    }
    config
}

impl Cache {
    /// With memory behind its blocks, and a store where it can have one.
    fn new(shape: Shape) -> Self {
        let mut groups = groups(shape);
        let mut memory = Vec::new();
        if shape != Shape::Virtual {
            for number in 0..groups.len() {
                let mut bytes = 0;
                // SAFETY: a config and its groups.
                assert_eq!(unsafe { nmc_kv_heap_bytes(&config(shape, &groups), number as u32, &mut bytes) }, NMC_OK);
                let mut words = vec![0u64; bytes.div_ceil(8) as usize];
                (groups[number].memory, groups[number].memory_bytes) = (words.as_mut_ptr().cast(), bytes);
                memory.push(words);
            }
        }
        Self::with(&config(shape, &groups), shape, memory)
    }

    fn with(config: &nmc_kv_config_t, shape: Shape, memory: Vec<Vec<u64>>) -> Self {
        let (mut kv, mut store) = (null_mut(), null_mut());
        // SAFETY: a config and its groups; the memory lives as long as the cache.
        unsafe {
            assert_eq!(nmc_kv_create(null_mut(), config, &raw mut kv), NMC_OK, "{}", last_error());
            if shape == Shape::Plain {
                let mut config: nmc_store_config_t = fresh();
                (config.page_bytes, config.heap_bytes, config.device) = (4096, 64 << 20, -1);
                (config.heap_kind, config.eviction) = (NMC_HEAP_HOST, NMC_EVICT_FIFO);
                (config.high_permille, config.low_permille, config.watchdog_ms) = (-1, -1, -1);
                (config.attach_timeout_ms, config.call_timeout_ms) = (-1, -1);
                let status = store_api::nmc_store_create(null_mut(), &config, &mut store);
                assert_eq!(status, NMC_OK, "{}", last_error());
                assert_eq!(nmc_kv_attach_store(kv, store), NMC_OK, "{}", last_error());
            }
        }
        Self { kv, shape, memory, store }
    }

    fn audit(&self) {
        assert_eq!(nmc_kv_audit(self.kv), NMC_OK, "{}", last_error());
    }

    /// What must be the same before and after a call that failed: who is there, and how many blocks are in use.
    fn levels(&self) -> [u64; 4] {
        let mut stats: nmc_kv_stats_t = zeroed();
        stats.struct_size = size_of::<nmc_kv_stats_t>() as u32;
        // SAFETY: a struct of its size.
        assert_eq!(unsafe { nmc_kv_stats(self.kv, &mut stats) }, NMC_OK);
        // What was reserved on the way to an append of a virtual sequence stays reserved.
        let used = if self.shape == Shape::Virtual { 0 } else { stats.used };
        [stats.total, stats.sequences, used, stats.hit_tokens]
    }

    /// The state, as text. Which blocks are free is not a part of it: that depends on what came and went.
    fn picture(&self) -> String {
        let mut needed = 0;
        // SAFETY: a size is asked for, then a text of that size.
        let text = unsafe {
            nmc_kv_dump(self.kv, 0, null_mut(), 0, &raw mut needed);
            let mut text = vec![0u8; needed];
            let status = nmc_kv_dump(self.kv, 0, text.as_mut_ptr().cast(), needed, null_mut());
            assert_eq!(status, NMC_OK, "{}", last_error());
            String::from_utf8_lossy(&text).into_owned()
        };
        // How many were evicted for a run depends on that, too.
        let exact = |line: &&str| !["Fragmentation", "Mapped", "evicted"].iter().any(|what| line.contains(what));
        text.lines().filter(exact).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        assert_eq!(nmc_kv_destroy(self.kv), NMC_OK);
        if !self.store.is_null() {
            assert_eq!(store_api::nmc_store_destroy(self.store), NMC_OK);
        }
        self.memory.clear();
    }
}

fn tokens(kind: u32, count: u64) -> Vec<u32> {
    (0..count as u32).map(|at| kind * 100_000 + at).collect()
}

fn some<T>(count: usize) -> Vec<T> {
    (0..count).map(|_| zeroed()).collect()
}

const NO_SALT: nmc_slice_t = nmc_slice_t { ptr: null(), len: 0 };

type Step = (String, Box<dyn Fn(&Cache) -> Outcome>);

fn step(name: impl Into<String>, body: impl Fn(&Cache) -> Outcome + 'static) -> Step {
    (name.into(), Box::new(body))
}

/// A call that gives nothing but a status.
fn plain(name: impl Into<String>, body: impl Fn(*mut nmc_kv_t) -> i32 + 'static) -> Step {
    step(name, move |cache| (body(cache.kv), Vec::new()))
}

fn open(id: u64, kind: u32, count: u64, flags: u32, name: &'static str) -> Step {
    step(format!("open {name} {id}"), move |cache| {
        let (tokens, salt, own) = (tokens(kind, count), id.to_le_bytes(), format!("{name} {id}"));
        let mut options: nmc_kv_open_t = fresh();
        (options.flags, options.priority, options.ttl_ms) = (flags, (id % 16) as u32, 1 << 30);
        if !name.is_empty() {
            options.name = slice(own.as_bytes());
            // Each has a root of its own.
            options.salt = slice(&salt);
        }
        let mut opened: nmc_kv_opened_t = zeroed();
        opened.struct_size = size_of::<nmc_kv_opened_t>() as u32;
        let (kv, first) = (cache.kv, tokens.as_ptr());
        let status = call!(nmc_kv_open(kv, id, first, count, &raw const options, &raw mut opened, null_mut()));
        (status, vec![opened.id, opened.hit_tokens, opened.tokens])
    })
}

fn append(id: u64, kind: u32, count: u64) -> Step {
    plain(format!("append {count} to {id}"), move |kv| {
        let tokens = tokens(kind, count);
        call!(nmc_kv_append(kv, id, tokens.as_ptr(), count, null(), null_mut()))
    })
}

fn truncate(id: u64, count: u64) -> Step {
    plain(format!("truncate {id} to {count}"), move |kv| call!(nmc_kv_truncate(kv, id, count, null_mut())))
}

fn close(id: u64) -> Step {
    plain(format!("close {id}"), move |kv| call!(nmc_kv_close(kv, id, 0)))
}

fn resize(blocks: u32) -> Step {
    plain(format!("resize to {blocks}"), move |kv| call!(nmc_kv_resize(kv, blocks)))
}

fn dump(name: &str, width: u32) -> Step {
    step(name, move |cache| {
        let mut needed = 0;
        (call!(nmc_kv_dump(cache.kv, width, null_mut(), 0, &raw mut needed)), vec![needed as u64])
    })
}

fn copies(id: u64) -> Step {
    step(format!("copies of {id}"), move |cache| {
        let (mut n, mut copies) = (0, some::<nmc_kv_copy_t>(4000));
        let status = call!(nmc_kv_take_copies(cache.kv, id, copies.as_mut_ptr(), 4000, &raw mut n));
        (status, vec![n as u64])
    })
}

fn table(id: u64) -> Step {
    step(format!("table of {id}"), move |cache| {
        let (mut row, mut table, mut written): (nmc_kv_row_t, _, _) = (zeroed(), vec![0i32; 4000], 0);
        let (kv, entries) = (cache.kv, table.as_mut_ptr());
        let (row, written) = (&raw mut row, &raw mut written);
        let status = call!(nmc_kv_table(kv, 0, NMC_KV_TABLE_BLOCKS, &raw const id, 1, 4000, -1, row, entries, written));
        // Which blocks they are depends on what came and went.
        (status, table.iter().map(|entry| u64::from(*entry >= 0)).collect())
    })
}

/// Sends a sequence to the store, and waits until it is there.
fn offload(id: u64) -> Step {
    step(format!("offload {id}"), move |cache| {
        let mut ticket = 0;
        let status = call!(nmc_kv_offload(cache.kv, id, u64::MAX, null(), &raw mut ticket));
        if status != NMC_OK {
            return (status, Vec::new());
        }
        // SAFETY: no progress is asked for.
        let over = unsafe { nmc_kv_transfer_wait(cache.kv, ticket, 60_000, null_mut()) };
        (over, Vec::new())
    })
}

fn onboard(id: u64) -> Step {
    step(format!("onboard {id}"), move |cache| {
        let (mut ticket, mut tokens) = (0, 0);
        let status = call!(nmc_kv_onboard(cache.kv, id, 0, null(), &raw mut ticket, &raw mut tokens));
        if status != NMC_OK || ticket == 0 {
            return (status, vec![tokens]);
        }
        // SAFETY: no progress is asked for.
        let over = unsafe { nmc_kv_transfer_wait(cache.kv, ticket, 60_000, null_mut()) };
        (over, vec![tokens])
    })
}

/// The calls, in an order in which each has something to do.
fn script(shape: Shape) -> Vec<Step> {
    let mut all = vec![
        open(1, 1, LONG, 0, ""),
        append(1, 2, 3000),
        plain("commit", |kv| call!(nmc_kv_commit(kv, 1, LONG))),
        // Begins with what the first one has.
        open(2, 1, LONG, NMC_KV_OPEN_MATCH_ALL, ""),
        // The same, and more.
        open(10, 1, LONG + 5000, 0, ""),
        close(10),
        plain("append scored", |kv| {
            let tokens = tokens(3, 2001);
            let options = nmc_kv_append_t { importance: 0.5, ..nmc_kv_append_t::defaults() };
            call!(nmc_kv_append(kv, 2, tokens.as_ptr(), 2001, &raw const options, null_mut()))
        }),
        plain("fork", |kv| call!(nmc_kv_fork(kv, 2, 3, null_mut()))),
        plain("reserve", |kv| call!(nmc_kv_reserve(kv, 3, LONG + 6000, null_mut()))),
        append(3, 4, 5001),
        step("pin", |cache| {
            let (mut pin, mut pinned) = (0, 0);
            let status = call!(nmc_kv_pin(cache.kv, 2, LONG, &raw mut pin, &raw mut pinned));
            (status, vec![pinned])
        }),
        step("match", |cache| {
            let (tokens, mut hit) = (tokens(1, LONG), 0);
            let first = tokens.as_ptr();
            (call!(nmc_kv_match(cache.kv, first, LONG, null(), NO_SALT, &raw mut hit)), vec![hit])
        }),
        step("hash", |cache| {
            let (tokens, mut hashes) = (tokens(1, LONG), some::<nmc_kv_hash_t>(LONG as usize / SIZE as usize));
            let status = call!(nmc_kv_hash(cache.kv, tokens.as_ptr(), LONG, NO_SALT, hashes.as_mut_ptr()));
            (status, hashes.iter().map(|hash| hash.bytes[0].into()).collect())
        }),
        step("events", |cache| {
            let (mut cursor, mut n, mut lost, mut events) = (0, 0, 0, some::<nmc_kv_event_t>(4000));
            let (to, from) = (events.as_mut_ptr(), &raw mut cursor);
            let status = call!(nmc_kv_events(cache.kv, from, to, 4000, &raw mut n, &raw mut lost));
            (status, vec![cursor, n as u64, lost])
        }),
        step("snapshot", |cache| {
            let (mut cursor, mut n, mut events) = (0, 0, some::<nmc_kv_event_t>(BLOCKS as usize));
            let (to, from) = (events.as_mut_ptr(), &raw mut cursor);
            let status = call!(nmc_kv_snapshot(cache.kv, from, to, BLOCKS as usize, &raw mut n));
            (status, vec![cursor, n as u64])
        }),
        dump("dump", 0),
        dump("dump with a picture", 64),
        step("info", |cache| {
            let mut info: nmc_kv_seq_info_t = zeroed();
            info.struct_size = size_of::<nmc_kv_seq_info_t>() as u32;
            let status = call!(nmc_kv_seq_info(cache.kv, 1, NMC_KV_SEQ_STORED, &raw mut info));
            (status, vec![info.tokens, info.computed_tokens, info.stored_tokens])
        }),
        plain("audit", |kv| call!(nmc_kv_audit(kv))),
    ];
    if shape == Shape::Sides {
        all.push(plain("keep a state", |kv| call!(nmc_kv_keep_state(kv, 1))));
        all.push(append(1, 9, 2000));
        // To where a state was kept, with a window that is there again.
        all.push(truncate(1, LONG + 3000));
    } else {
        all.push(truncate(3, LONG + 999));
        // Into a block that others read.
        all.push(truncate(3, 4001));
    }
    match shape {
        Shape::Virtual => all.push(copies(3)),
        _ => all.extend(paged_script(shape)),
    }
    // Maps and lists of what there are many of.
    let many = if shape == Shape::Virtual { 1000..1115 } else { 1000..1600 };
    all.extend(many.clone().map(|id| open(id, id as u32, 5, 0, "sequence")));
    let ids: Vec<u64> = many.clone().collect();
    all.push(plain("append to many", move |kv| {
        let (tokens, mut statuses) = (vec![7u32; ids.len()], vec![0; ids.len()]);
        call!(nmc_kv_append_batch(kv, ids.as_ptr(), tokens.as_ptr(), ids.len(), statuses.as_mut_ptr()))
    }));
    all.push(step("victims", |cache| {
        let (mut ids, mut n) = (vec![0; 1000], 0);
        (call!(nmc_kv_victims(cache.kv, ids.as_mut_ptr(), 1000, &raw mut n)), vec![n as u64])
    }));
    all.push(dump("dump of many", 0));
    all.extend(many.chain([3, 2, 1]).map(close));
    all.push(plain("unpin", |kv| call!(nmc_kv_unpin(kv, 1))));
    all.push(plain("clear", |kv| call!(nmc_kv_clear(kv, null_mut()))));
    all
}

/// Calls that virtual sequences do not have.
fn paged_script(shape: Shape) -> Vec<Step> {
    let mut all = vec![
        copies(3),
        table(1),
        table(3),
        step("gather", |cache| {
            let (blocks, mut to): (Vec<i32>, _) = ((0..2000).collect(), vec![0u64; 2000 * 8]);
            let (kv, first, to) = (cache.kv, blocks.as_ptr(), to.as_mut_ptr().cast());
            (call!(nmc_kv_gather(kv, 0, first, 2000, to, 2000 * 64, null_mut())), Vec::new())
        }),
        step("scatter", |cache| {
            let (blocks, from): (Vec<i32>, _) = ((6000..8000).collect(), vec![0u64; 2000 * 8]);
            let (kv, first, from) = (cache.kv, blocks.as_ptr(), from.as_ptr().cast());
            (call!(nmc_kv_scatter(kv, 0, first, 2000, from, 2000 * 64, null_mut())), Vec::new())
        }),
        step("copy blocks", |cache| {
            let copy = |at: i32| nmc_kv_copy_t { from: at, to: 6000 + at, group: NMC_KV_GROUPS_ALL, ..zeroed() };
            let copies: Vec<nmc_kv_copy_t> = (0..2000).map(copy).collect();
            (call!(nmc_kv_copy_blocks(cache.kv, copies.as_ptr(), 2000, null_mut())), Vec::new())
        }),
        step("drop", |cache| {
            let mut dropped = 0;
            (call!(nmc_kv_drop_least(cache.kv, 2, 100, 4, 4, &raw mut dropped)), vec![dropped.into()])
        }),
        resize(CAPACITY),
        resize(CAPACITY - 5000),
    ];
    if shape == Shape::Plain {
        all.extend([offload(1), open(7, 1, LONG, 0, "elsewhere"), close(7), open(8, 77, 9, 0, "")]);
        all.extend([close(8), open(9, 1, LONG, NMC_KV_OPEN_CONTIGUOUS, ""), onboard(9), close(9)]);
    }
    if shape == Shape::Contiguous {
        all.extend([
            open(4, 1, LONG, NMC_KV_OPEN_CONTIGUOUS, ""),
            open(5, 9, 100, NMC_KV_OPEN_CONTIGUOUS, ""),
            // There is another one behind it: it moves.
            append(4, 6, 3000),
            close(5),
            close(4),
            // What is cached goes for a run.
            open(6, 8, 90_000, NMC_KV_OPEN_CONTIGUOUS | NMC_KV_OPEN_PRIVATE, ""),
            close(6),
        ]);
    }
    all
}

/// Calls a step until nothing is refused any more. Returns how many requests were.
fn refuse_all(subject: &Cache, name: &str, body: &dyn Fn(&Cache) -> Outcome) -> (Outcome, u64) {
    let mut refused = 0;
    loop {
        let before = subject.levels();
        REFUSE.set(Some(refused));
        let outcome = body(subject);
        REFUSE.set(None);
        let said = last_error();
        if outcome.0 != NMC_ERR_NO_MEMORY {
            // All were granted, or it does without.
            return (outcome, refused + u64::from(SEEN.get() > refused));
        }
        assert!(SEEN.get() > refused && said.contains("bytes"), "{name}, request {refused}: {said}");
        assert_eq!(subject.levels(), before, "{name}, request {refused}");
        // Of many alike, the first few will do.
        if refused == 0 || !name.contains("sequence") {
            subject.audit();
        }
        refused += 1;
    }
}

fn run(shape: Shape) {
    let _alone = alone();
    let (subject, twin) = (Cache::new(shape), Cache::new(shape));
    let mut all = 0;
    for (name, body) in script(shape) {
        let (outcome, refused) = refuse_all(&subject, &name, &body);
        let untouched = body(&twin);
        assert_eq!(untouched.0, NMC_OK, "{shape:?}, {name}: {}", last_error());
        assert_eq!(outcome, untouched, "{shape:?}, {name}, after {refused} were refused");
        all += refused;
        if refused > 0 {
            println!("{shape:?}, {name}: {refused} refused");
            subject.audit();
        }
        // Which blocks are side by side, and so what must go for a run, depends on what came and went.
        if refused > 0 && shape != Shape::Contiguous {
            assert_eq!(subject.picture(), twin.picture(), "{shape:?}, {name}");
        }
    }
    assert_eq!(subject.picture(), twin.picture(), "{shape:?}");
    assert!(all > 50, "{shape:?}: {all} requests were refused");
}

#[test]
fn paged_sequences_outlive_every_refusal() {
    run(Shape::Plain);
}

#[test]
fn so_do_contiguous_sequences() {
    run(Shape::Contiguous);
}

#[test]
fn so_do_caches_that_compare_tokens() {
    run(Shape::Compared);
}

#[test]
fn so_do_caches_with_priorities_and_buddies() {
    run(Shape::Priority);
}

#[test]
fn so_do_windows_and_states() {
    run(Shape::Sides);
}

#[test]
fn so_do_virtual_sequences() {
    run(Shape::Virtual);
}

#[test]
fn a_cache_is_made_or_refused() {
    let _alone = alone();
    // Whatever a process has once is there.
    drop(Cache::new(Shape::Plain));
    for shape in [Shape::Plain, Shape::Compared, Shape::Priority, Shape::Sides, Shape::Virtual] {
        let groups = groups(shape);
        let config = config(shape, &groups);
        let mut refused = 0;
        loop {
            let mut kv = null_mut();
            // SAFETY: a config with its groups.
            let (status, seen) =
                failing::fail_nth(refused, || unsafe { nmc_kv_create(null_mut(), &raw const config, &raw mut kv) });
            if seen <= refused {
                assert_eq!((status, nmc_kv_destroy(kv)), (NMC_OK, NMC_OK));
                break;
            }
            assert!(status == NMC_ERR_NO_MEMORY && kv.is_null(), "{shape:?}, request {refused}: {status}");
            assert!(last_error().contains("bytes"), "{}", last_error());
            refused += 1;
        }
        println!("{shape:?}: {refused} refused");
        assert!(refused > 3);
    }
}

/// Threads of the library move the blocks: what is refused to any of them ends a transfer, and nothing else.
#[test]
fn transfers_outlive_refusals_in_any_thread() {
    let _alone = alone();
    // Blocks of many pieces, the list of which is long.
    let mut pieces = nmc_kv_group_t { layers: 600, order: NMC_KV_LAYER_MAJOR, ..group(Shape::Plain) };
    let mut refused = 0;
    // How many threads get to do something, and so ask for memory, differs.
    for n in 0..8 {
        let mut config = nmc_kv_config_t { total_blocks: 64, capacity_blocks: 0, ..config(Shape::Plain, &[]) };
        (config.groups, config.n_groups) = (&raw const pieces, 1);
        let mut bytes = 0;
        // SAFETY: a config and its group.
        assert_eq!(unsafe { nmc_kv_heap_bytes(&raw const config, 0, &raw mut bytes) }, NMC_OK, "{}", last_error());
        let mut memory = vec![1u64; bytes as usize / 8];
        (pieces.memory, pieces.memory_bytes) = (memory.as_mut_ptr().cast(), bytes);
        let cache = Cache::with(&config, Shape::Plain, vec![memory]);
        let (kv, tokens) = (cache.kv, tokens(1, 64));
        // Out: the tokens of one sequence. In: the same for another, after the cache forgot them.
        let transfer = |out: bool| {
            let (mut ticket, id) = (0, if out { 1 } else { 2 });
            // SAFETY: arrays and structs of their sizes.
            unsafe {
                assert_eq!(nmc_kv_open(kv, id, tokens.as_ptr(), 64, null(), null_mut(), null_mut()), NMC_OK);
                if out {
                    assert_eq!(nmc_kv_commit(kv, id, 64), NMC_OK);
                }
                let mut move_all = || {
                    let begun = match out {
                        true => nmc_kv_offload(kv, id, 64, null(), &raw mut ticket),
                        false => nmc_kv_onboard(kv, id, 0, null(), &raw mut ticket, null_mut()),
                    };
                    if begun != NMC_OK || ticket == 0 {
                        return begun;
                    }
                    nmc_kv_transfer_wait(kv, ticket, 60_000, null_mut())
                };
                let (status, seen) = failing::fail_nth_anywhere(n, &mut move_all);
                assert!(seen > n || status == NMC_OK, "{}", last_error());
                assert!(status == NMC_OK || status == NMC_ERR_NO_MEMORY, "{status}: {}", last_error());
                cache.audit();
                let again = if status == NMC_OK { status } else { move_all() };
                assert_eq!(again, NMC_OK, "{}", last_error());
                assert_eq!(nmc_kv_close(kv, id, NMC_KV_CLOSE_ABORT), NMC_OK);
                assert_eq!(nmc_kv_clear(kv, null_mut()), NMC_OK);
                cache.audit();
                seen > n
            }
        };
        refused += [true, false].map(transfer).iter().filter(|some| **some).count();
    }
    println!("{refused} refused");
    assert!(refused > 0);
}

/// What the machine does not have is refused before it is used.
#[test]
fn books_that_cannot_be_are_refused() {
    let _alone = alone();
    let config = |change: &dyn Fn(&mut nmc_kv_config_t)| {
        let mut config = config(Shape::Plain, &[]);
        (config.groups, config.n_groups, config.capacity_blocks) = (null(), 0, 0);
        change(&mut config);
        let mut kv = null_mut();
        // SAFETY: a config.
        let status = unsafe { nmc_kv_create(null_mut(), &raw const config, &raw mut kv) };
        assert!(kv.is_null() == (status != NMC_OK));
        if status == NMC_OK {
            assert_eq!(nmc_kv_destroy(kv), NMC_OK);
        }
        status
    };
    assert_eq!(config(&|_| {}), NMC_OK);
    // More than any machine has: 2^42 bytes and more.
    let compared = |config: &mut nmc_kv_config_t| {
        (config.total_blocks, config.tokens_per_block, config.hash) = (1 << 30, 1 << 20, NMC_KV_HASH_XXH3);
    };
    assert_eq!(config(&compared), NMC_ERR_NO_MEMORY);
    assert!(last_error().contains("bytes"), "{}", last_error());
}

/// Blocks without a cache.
#[test]
fn blocks_outlive_every_refusal() {
    let _alone = alone();
    // Whatever a process has once is there.
    drop(Cache::new(Shape::Plain));
    let mut config: nmc_blocks_config_t = fresh();
    config.total_blocks = 200_000;
    let (mut blocks, mut all) = (null_mut(), 0);
    let mut until_granted = |name: &str, body: &mut dyn FnMut() -> i32| {
        let mut refused = 0;
        loop {
            let (status, seen) = failing::fail_nth(refused, &mut *body);
            if seen <= refused {
                assert_eq!(status, NMC_OK, "{name}: {}", last_error());
                break;
            }
            assert_eq!(status, NMC_ERR_NO_MEMORY, "{name}, request {refused}: {}", last_error());
            refused += 1;
        }
        all += refused;
    };
    // SAFETY: structs and arrays of the sizes that are said, here and in all that follows.
    until_granted("create", &mut || unsafe { nmc_blocks_create(&raw const config, &raw mut blocks) });
    let stats = || {
        let mut stats: nmc_blocks_stats_t = zeroed();
        stats.struct_size = size_of::<nmc_blocks_stats_t>() as u32;
        // SAFETY: see above.
        assert_eq!(unsafe { nmc_blocks_stats(blocks, &raw mut stats) }, NMC_OK);
        [stats.total, stats.used, stats.free, stats.free_runs, stats.waiting, stats.ready]
    };
    let mut taken = vec![0i32; 50_001];
    let first = taken.as_mut_ptr();
    // SAFETY: see above.
    until_granted("take", &mut || unsafe { nmc_blocks_allocate_scattered(blocks, 50_001, first) });
    // SAFETY: see above.
    until_granted("give", &mut || unsafe { nmc_blocks_free_scattered(blocks, first, 50_000) });
    assert_eq!(stats()[..3], [200_000, 1, 199_999]);
    until_granted("grow", &mut || nmc_blocks_resize(blocks, 400_000));
    assert_eq!(stats()[..3], [400_000, 1, 399_999]);
    let mut run = nmc_block_run_t { first: 0, count: 0 };
    // SAFETY: see above.
    until_granted("run", &mut || unsafe { nmc_blocks_allocate(blocks, 150_000, &raw mut run) });
    // Most of these wait for it.
    let mut tickets = Vec::new();
    for _ in 0..3000 {
        let mut ticket = 0;
        // SAFETY: see above.
        until_granted("request", &mut || unsafe { nmc_blocks_request(blocks, 100_000, &raw mut ticket) });
        tickets.push(ticket);
    }
    let mut needed = 0;
    // SAFETY: see above.
    until_granted("dump", &mut || unsafe { nmc_blocks_dump(blocks, null_mut(), 0, &raw mut needed) });
    until_granted("free", &mut || nmc_blocks_free(blocks, run));
    for ticket in tickets {
        // SAFETY: see above.
        let polled = unsafe { nmc_blocks_poll(blocks, ticket, &raw mut run) };
        assert!(polled == NMC_OK || polled == NMC_IN_PROGRESS);
        let mut end =
            || if polled == NMC_OK { nmc_blocks_free(blocks, run) } else { nmc_blocks_cancel(blocks, ticket) };
        until_granted("end of a request", &mut end);
    }
    until_granted("shrink", &mut || nmc_blocks_resize(blocks, 200_000));
    assert_eq!(stats(), [200_000, 1, 199_999, stats()[3], 0, 0]);
    assert_eq!(nmc_blocks_destroy(blocks), NMC_OK);
    println!("{all} refused");
    assert!(all > 10);
}

#[test]
fn control_the_allocator_refuses_what_it_is_told_to() {
    let _alone = alone();
    let ask = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    let three = || [ask(failing::LEAST), ask(failing::LEAST - 1), ask(1 << 20), ask(failing::LEAST)];
    assert_eq!(failing::count(three), ([true; 4], 3), "those below its least size do not count");
    assert_eq!(failing::fail_nth(0, three), ([false, true, true, true], 3));
    assert_eq!(failing::fail_nth(2, three), ([true, true, true, false], 3));
    assert_eq!(failing::fail_nth(3, three), ([true; 4], 3));
    assert_eq!(failing::fail_from(1, three), ([true, true, false, false], 3));
    let mut list = Vec::<u8>::with_capacity(failing::LEAST);
    assert_eq!(failing::fail_nth(0, || list.try_reserve_exact(2 * failing::LEAST).is_ok()), (false, 1), "growing, too");
    let elsewhere = || std::thread::scope(|scope| scope.spawn(|| ask(failing::LEAST)).join().unwrap());
    assert_eq!(failing::fail_nth(0, elsewhere), (true, 0), "another thread is not meant");
    let refused = |n| !failing::fail_nth_anywhere(n, elsewhere).0;
    assert!((0..20).any(refused), "unless all are");
}
