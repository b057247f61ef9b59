//! Worlds, the store of a world, and the expert-parallel transport when memory is short: no call and no thread of the library
//! ends the process; a call gives `NMC_ERR_NO_MEMORY`, and works when it is repeated.

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

use failing::{alone, check_message, count, descriptors, fail_nth, fail_nth_anywhere, last_error, refuse_each};
use ffi::{fresh, key, slice, value};
use nanomc::base::status::{NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND, NMC_OK};
use nanomc::ffi::ep::{self, nmc_ep_t};
use nanomc::ffi::ep_types::{nmc_ep_bytes_t, nmc_ep_config_t, nmc_ep_dispatch_t, nmc_ep_grouped_t, nmc_ep_moe_t};
use nanomc::ffi::store::{self as store, nmc_store_t};
use nanomc::ffi::store_types::nmc_store_config_t;
use nanomc::ffi::world::{self as world, nmc_world_t};
use nanomc::ffi::world_types::nmc_world_config_t;
use nanomc::ffi::{store_batch as batch, store_service as service};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

/// Items of a batch.
const N: usize = 600;

fn world_config(dir: &Path, ranks: u32, heap_bytes: u64) -> nmc_world_config_t {
    let mut config: nmc_world_config_t = fresh();
    (config.name, config.dir) = (slice(b"t"), slice(dir.as_os_str().as_encoded_bytes()));
    (config.rank, config.world_size, config.heap_bytes) = (-1, ranks, heap_bytes);
    config.heap_kind = nanomc::ffi::world_types::NMC_HEAP_HOST;
    config.heap_import.fd = -1;
    (config.device, config.device_rank, config.words_per_rank) = (-1, -1, 8);
    (config.join_timeout_ms, config.drain_ms, config.service_cpu) = (60_000, 0, -1);
    config
}

/// A joined or local world of several ranks of this process.
struct Worlds(Vec<*mut nmc_world_t>);

impl Drop for Worlds {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| assert_eq!(world::nmc_world_destroy(*one), NMC_OK));
    }
}

#[test]
fn a_local_world_is_made_or_refused() {
    let _alone = alone();
    let config = world_config(Path::new("/"), 64, 4096);
    let mut handles = Worlds(vec![null_mut(); 64]);
    // What the first call of a process sets up stays.
    // SAFETY: the C contract, also for all calls below.
    assert_eq!(unsafe { world::nmc_world_create_local(&raw const config, handles.0.as_mut_ptr()) }, NMC_OK);
    drop(handles);
    let before = descriptors();
    let mut handles = Worlds(vec![null_mut(); 64]);
    let make = || unsafe { world::nmc_world_create_local(&raw const config, handles.0.as_mut_ptr()) };
    let refused = refuse_each("nmc_world_create_local", make, || assert_eq!(descriptors(), before));
    assert!(refused > 10, "only {refused} requests");
    let (mut text, mut needed) = (vec![0u8; 1 << 16], 0);
    let dump = || unsafe { world::nmc_world_dump(handles.0[0], text.as_mut_ptr().cast(), text.len(), &raw mut needed) };
    assert!(refuse_each("nmc_world_dump", dump, || ()) >= 1);
    assert!(needed > 4096);
    drop(handles);
    assert_eq!(descriptors(), before);
}

/// With sockets and threads: whichever thread's request is refused, the join succeeds or says why not.
#[test]
fn a_world_is_joined_or_refused_whichever_thread_is_short_of_memory() {
    let _alone = alone();
    for ranks in [2usize, 32] {
        let dir = tempfile::tempdir().expect("a directory");
        let config = world_config(dir.path(), u32::try_from(ranks).expect("few"), 4096);
        let numbers: Vec<i32> = (0..64).take(ranks).collect();
        let (mut refused, mut joined) = (0, 0);
        let mut n = 0;
        loop {
            let mut handles = Worlds(vec![null_mut(); ranks]);
            let join = || unsafe {
                world::nmc_world_join_ranks(&raw const config, numbers.as_ptr(), ranks, handles.0.as_mut_ptr())
            };
            let (status, seen) = fail_nth_anywhere(n, join);
            if status == NMC_OK {
                joined += 1;
                // Everyone sees everyone, soon also one that had to begin again while the others were there already.
                let mut state = 77;
                for (handle, of) in handles.0.iter().flat_map(|h| numbers.iter().map(move |of| (*h, *of))) {
                    let mut alive = || {
                        assert_eq!(unsafe { world::nmc_world_alive(handle, of, &raw mut state) }, NMC_OK);
                        state == nanomc::ffi::world_types::NMC_RANK_ALIVE
                    };
                    assert!(common::eventually(&mut alive));
                }
            } else {
                check_message(status);
                refused += 1;
            }
            if seen <= n {
                break;
            }
            // With many ranks a part of the requests will do: the threads make the same ones.
            n += if n < 20 { 1 } else { 43 };
        }
        assert!(refused > 4 && joined > 0, "{refused} refused, {joined} joined");
    }
}

// ---- the store of a world, whose master is in another process --------------------------------------------------------------

fn store_config() -> nmc_store_config_t {
    let mut config: nmc_store_config_t = fresh();
    config.eviction = nanomc::ffi::common::NMC_EVICT_FIFO;
    (config.page_bytes, config.max_objects, config.device) = (4096, 4096, -1);
    config.heap_kind = nanomc::ffi::world_types::NMC_HEAP_HOST;
    (config.high_permille, config.low_permille, config.watchdog_ms) = (-1, -1, -1);
    (config.attach_timeout_ms, config.call_timeout_ms) = (60_000, 60_000);
    config
}

fn get(at: *mut nmc_store_t, key: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut size) = (vec![0u8; 4096], 0);
    match unsafe { store::nmc_store_get(at, slice(key), bytes.as_mut_ptr().cast(), bytes.len(), &raw mut size) } {
        NMC_OK => bytes.truncate(size),
        NMC_ERR_NOT_FOUND => return None,
        status => panic!("get: {status}: {}", last_error()),
    }
    Some(bytes)
}

/// Stores many objects and removes them again while memory may be refused; the first attempt of both is made by `attempt`.
/// Gives how many items were refused. What a status says is true, byte for byte; repeated, both calls succeed.
fn round(at: *mut nmc_store_t, attempt: &mut dyn FnMut(&mut dyn FnMut())) -> usize {
    let (keys, values): (Vec<_>, Vec<_>) = (0..N).map(|i| (key(i), value(i))).unzip();
    let mut refused = 0;
    for remove in [false, true] {
        let (mut left, mut first): (Vec<usize>, bool) = ((0..N).collect(), true);
        while !left.is_empty() {
            let (k, v): (Vec<_>, Vec<_>) = left.iter().map(|i| (slice(&keys[*i]), slice(&values[*i]))).unzip();
            let (mut statuses, mut status) = (vec![77; left.len()], 77);
            let mut call = || {
                let statuses = statuses.as_mut_ptr();
                status = unsafe {
                    if remove {
                        batch::nmc_store_remove_batch(at, k.as_ptr(), k.len(), statuses)
                    } else {
                        batch::nmc_store_put_batch(at, k.as_ptr(), v.as_ptr(), k.len(), null(), statuses)
                    }
                };
            };
            if std::mem::take(&mut first) {
                attempt(&mut call)
            } else {
                call()
            }
            let worst = statuses.iter().copied().find(|status| *status != NMC_OK).unwrap_or(NMC_OK);
            assert_eq!(status, worst, "{}", last_error());
            if status != NMC_OK {
                check_message(status);
            }
            for (i, status) in left.iter().zip(&statuses) {
                assert!([NMC_OK, NMC_ERR_NO_MEMORY].contains(status), "{status}");
                let there = (*status == NMC_OK) != remove;
                assert_eq!(get(at, &keys[*i]), there.then(|| values[*i].clone()), "{i}: {status}");
            }
            let mut done = statuses.iter().map(|status| *status == NMC_OK);
            left.retain(|_| !done.next().unwrap_or(false));
            refused += left.len();
        }
    }
    refused
}

/// Not a test: rank 1 of the one below. It does what it is told through its standard input.
#[test]
fn child_rank_one() {
    let Ok(dir) = std::env::var("NMC_TEST_DIR") else { return };
    let mut handles = Worlds(vec![null_mut()]);
    let mut config = world_config(dir.as_ref(), 2, 16 << 20);
    config.rank = 1;
    assert_eq!(unsafe { world::nmc_world_join(&raw const config, handles.0.as_mut_ptr()) }, NMC_OK, "{}", last_error());
    let config = store_config();
    let mut at = null_mut();
    let attach = || unsafe { store::nmc_store_create(handles.0[0], &raw const config, &raw mut at) };
    let before = descriptors();
    let attached = refuse_each("attaching", attach, || assert!(descriptors() <= before + 1));
    println!("attached {attached}.");
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            // Requests of this thread are refused, one after the other.
            "own" => {
                let (mut n, mut refused) = (0, 0);
                loop {
                    let mut most = 0;
                    refused += round(at, &mut |call| most = most.max(fail_nth(n, call).1));
                    if most <= n {
                        break;
                    }
                    n += 1;
                }
                let mut text = vec![0u8; 1 << 16];
                let place = text.as_mut_ptr().cast();
                let dump = || unsafe { service::nmc_store_dump(at, 512, place, 1 << 16, null_mut()) };
                refuse_each("nmc_store_dump", dump, || ());
                println!("refused {refused}.");
            }
            // There are few places for clients: none may be lost.
            "attach" => {
                assert_eq!(store::nmc_store_destroy(at), NMC_OK);
                let attach = || unsafe { store::nmc_store_create(handles.0[0], &raw const config, &raw mut at) };
                let mut tries = std::iter::repeat_with(attach).take_while(|status| *status != NMC_OK);
                println!("refused {}.", tries.by_ref().inspect(|status| check_message(*status)).count());
            }
            "round" => println!("refused {}.", round(at, &mut |call| call())),
            _ => break,
        }
    }
    assert_eq!(store::nmc_store_destroy(at), NMC_OK);
}

#[test]
fn clients_and_master_in_two_processes_go_on() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "child_rank_one", "--nocapture"])
        .env("NMC_TEST_DIR", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut handles = Worlds(vec![null_mut()]);
    let mut config = world_config(dir.path(), 2, 16 << 20);
    config.rank = 0;
    assert_eq!(unsafe { world::nmc_world_join(&raw const config, handles.0.as_mut_ptr()) }, NMC_OK, "{}", last_error());
    let (config, mut at) = (store_config(), null_mut());
    assert_eq!(unsafe { store::nmc_store_create(handles.0[0], &raw const config, &raw mut at) }, NMC_OK);
    let mut orders = child.stdin.take().expect("its input");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut tell = |word: &str, order: &str| -> usize {
        if !order.is_empty() {
            writeln!(orders, "{order}").expect("an order");
        }
        let answer = lines.find_map(|line| {
            let line = line.expect("a line");
            let (_, number) = line.split_once(&format!("{word} "))?;
            number.trim_end_matches('.').parse().ok()
        });
        answer.expect("an answer of the child")
    };
    assert!(tell("attached", "") >= 4, "attaching needs memory");
    assert!(tell("refused", "own") > 0);
    // Now the requests of the master's threads.
    for order in ["attach", "round"] {
        let (mut n, mut refused) = (0, 0);
        loop {
            let (items, seen) = fail_nth_anywhere(n, || tell("refused", order));
            refused += items;
            if seen <= n {
                break;
            }
            n += 1;
        }
        // What the master needs to take a client in it has from the first time.
        assert!((refused > 0) == (order == "round"), "{order}: {refused} refused");
    }
    assert_eq!(tell("refused", "round"), 0);
    drop(orders);
    assert!(child.wait().expect("the child").success());
    assert_eq!(store::nmc_store_destroy(at), NMC_OK);
}

// ---- expert-parallel steps on the CPU ----------------------------------------------------------------------------------------

const HIDDEN: u32 = 1024;
const INNER: u32 = 512;
const TOKENS: u32 = 3;

fn ep_config(experts: u32) -> nmc_ep_config_t {
    let mut config: nmc_ep_config_t = fresh();
    (config.t_cap, config.hidden, config.top_k, config.experts) = (2048, HIDDEN, 1, experts);
    (config.max_m, config.spill_groups) = (4, 4);
    config.dtype = nanomc::ffi::common::NMC_DTYPE_FP32;
    config.dispatch = nanomc::ffi::ep_types::NMC_EP_DISPATCH_FP8;
    config.deadline_ms = -1;
    config
}

/// Memory as aligned as the transport wants it.
fn aligned(bytes: u64) -> Vec<[u64; 32]> {
    vec![[0; 32]; usize::try_from(bytes.div_ceil(256)).expect("a size") + 1]
}

fn start(memory: &mut [[u64; 32]]) -> *mut std::ffi::c_void {
    let at = memory.as_mut_ptr() as usize;
    at.next_multiple_of(256) as *mut _
}

/// A group of all ranks of a local world.
struct Group {
    eps: Vec<*mut nmc_ep_t>,
    bytes: nmc_ep_bytes_t,
    _worlds: Worlds,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.eps.iter().for_each(|one| assert_eq!(ep::nmc_ep_destroy(*one), NMC_OK));
    }
}

impl Group {
    fn new(ranks: usize, experts: u32) -> (Self, u64) {
        let (config, world_size) = (ep_config(experts), u32::try_from(ranks).expect("few"));
        let mut bytes = nmc_ep_bytes_t::default();
        assert_eq!(unsafe { ep::nmc_ep_bytes_needed(&raw const config, world_size, INNER, &raw mut bytes) }, NMC_OK);
        let heap = bytes.transport.next_multiple_of(4096);
        let world_config = world_config(Path::new("/"), world_size, heap);
        let mut worlds = Worlds(vec![null_mut(); ranks]);
        assert_eq!(unsafe { world::nmc_world_create_local(&raw const world_config, worlds.0.as_mut_ptr()) }, NMC_OK);
        let mut eps = vec![null_mut(); ranks];
        let before = descriptors();
        let make = || unsafe { ep::nmc_ep_create_ranks(worlds.0.as_ptr(), ranks, &raw const config, eps.as_mut_ptr()) };
        let refused = refuse_each("nmc_ep_create_ranks", make, || assert_eq!(descriptors(), before));
        (Self { eps, bytes, _worlds: worlds }, refused)
    }
}

#[test]
fn steps_of_a_group_need_no_memory() {
    let _alone = alone();
    const RANKS: usize = 2;
    let experts = 2 * 512;
    let (group, refused) = Group::new(RANKS, experts);
    assert!(refused >= 8, "only {refused} requests");
    let rows: Vec<f32> = (0..TOKENS * HIDDEN).map(|i| f32::from(u16::try_from(i % 97).expect("small"))).collect();
    let (idx, weights) = ([0i32, 700, 700], [1.0f32; 3]);
    let mut dispatch: nmc_ep_dispatch_t = fresh();
    (dispatch.x, dispatch.topk_idx) = (rows.as_ptr().cast(), idx.as_ptr().cast());
    (dispatch.topk_w, dispatch.n_tokens) = (weights.as_ptr().cast(), TOKENS);
    let b = &group.bytes;
    let mut memory: Vec<_> = (0..RANKS)
        .map(|_| {
            [b.grouped_x, b.grouped_scales, b.masked_m, b.masked_m, b.row_of, b.row_index, b.grouped_y].map(aligned)
        })
        .collect();
    let mut outs: Vec<_> = (0..RANKS).map(|_| aligned(u64::from(TOKENS * HIDDEN) * 4)).collect();
    let mut first: Option<Vec<Vec<[u64; 32]>>> = None;
    for _ in 0..3 {
        let mut refused = 0;
        assert_eq!(ep::nmc_ep_group_begin(), NMC_OK);
        for (rank, at) in group.eps.iter().enumerate() {
            let [x, scales, masked_m, group_expert, row_of, row_index, y] = &mut memory[rank];
            let grouped = nmc_ep_grouped_t {
                x: start(x),
                scales: start(scales).cast(),
                masked_m: start(masked_m).cast(),
                group_expert: start(group_expert).cast(),
                row_of: start(row_of).cast(),
                row_index: start(row_index).cast(),
                ..Default::default()
            };
            let (y, out) = (start(y), start(&mut outs[rank]));
            // Many calls wait for the end of the group, and what it needs then is reserved now.
            refused +=
                refuse_each("dispatch", || unsafe { ep::nmc_ep_dispatch(*at, &raw const dispatch, null_mut()) }, || ());
            let pack = || unsafe { ep::nmc_ep_route_pack(*at, 0, &raw const grouped, null_mut()) };
            refused += refuse_each("pack", pack, || ());
            let scatter = || unsafe { ep::nmc_ep_scatter(*at, 0, y, grouped.row_of, null_mut(), null_mut()) };
            refused += refuse_each("scatter", scatter, || ());
            let combine = || unsafe { ep::nmc_ep_combine(*at, 0, null(), out, null_mut()) };
            refused += refuse_each("combine", combine, || ());
        }
        assert!(refused > 0, "nothing was kept for the end of the group");
        assert_eq!(count(|| ep::nmc_ep_group_end()), (NMC_OK, 0), "{}", last_error());
        let now: Vec<_> = memory.iter().flatten().chain(&outs).cloned().collect();
        assert_eq!(*first.get_or_insert_with(|| now.clone()), now);
    }
    let mut load = vec![0u64; experts as usize];
    let stats = || unsafe { ep::nmc_ep_stats(group.eps[0], load.as_mut_ptr(), null_mut(), null_mut()) };
    assert!(refuse_each("nmc_ep_stats", stats, || ()) >= 2);
    assert_eq!((load[0], load[700], load.iter().sum::<u64>()), (3, 6, 9));
}

#[test]
fn a_layer_begins_with_all_its_memory_or_not_at_all() {
    let _alone = alone();
    let (group, _) = Group::new(1, 2);
    let rows: Vec<f32> =
        (0..TOKENS * HIDDEN).map(|i| f32::from(u16::try_from(i % 97).expect("small")) / 97.0).collect();
    let (idx, weights) = ([0i32, 1, 0], [0.5f32; 3]);
    let weight =
        |n: u32| -> Vec<f32> { (0..n).map(|i| f32::from(u16::try_from(i % 13).expect("small")) / 1e3).collect() };
    let (w13, w2) = (weight(2 * 2 * INNER * HIDDEN), weight(2 * HIDDEN * INNER));
    let (mut workspace, mut out) = (aligned(group.bytes.workspace), aligned(u64::from(TOKENS * HIDDEN) * 4));
    let mut dispatch: nmc_ep_dispatch_t = fresh();
    (dispatch.x, dispatch.topk_idx) = (rows.as_ptr().cast(), idx.as_ptr().cast());
    (dispatch.topk_w, dispatch.n_tokens) = (weights.as_ptr().cast(), TOKENS);
    let mut moe: nmc_ep_moe_t = fresh();
    (moe.w13, moe.w2, moe.inner) = (w13.as_ptr().cast(), w2.as_ptr().cast(), INNER);
    (moe.workspace, moe.workspace_bytes) = (start(&mut workspace), group.bytes.workspace);
    moe.out = start(&mut out);
    let forward = || unsafe { ep::nmc_ep_moe_forward(group.eps[0], &raw const dispatch, &raw const moe, null_mut()) };
    let check = || assert_eq!(ep::nmc_ep_check(group.eps[0]), NMC_OK);
    assert_eq!(refuse_each("nmc_ep_moe_forward", forward, check), 3);
    let first = out.clone();
    assert!(first.iter().flatten().any(|word| *word != 0));
    out.fill([0; 32]);
    assert_eq!(forward(), NMC_OK);
    assert_eq!(out, first);
}
