//! Joins, deaths and master restarts in the worst order. A raw client stops where a crash or a slow machine would.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]
#![allow(unsafe_code, reason = "looks into heaps and words")]

mod common;
#[path = "../src/base/over.rs"]
mod over;
#[path = "common/raw.rs"]
mod raw;

use common::{PATIENCE, config, eventually};
use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::layout::world::Farewell;
use nanomc::world::{Config, Hosting, Master, RankState, World};
use over::Over;
use raw::{Raw, memfd, pidfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

fn external(dir: &Path, rank: u32, n: u32) -> Config {
    Config { hosting: Hosting::Elsewhere, ..config(dir, Some(rank), n) }
}

fn within(seconds: u64) -> Deadline {
    Deadline::after(Duration::from_secs(seconds))
}

fn serve(dir: &Path, n: u32) -> Master {
    Master::open(&config(dir, None, n)).expect("master")
}

fn join_all(dir: &Path, n: u32) -> Vec<World> {
    World::join_many((0..n).map(|r| external(dir, r, n)).collect()).expect("join")
}

/// What `join` does when it loses the master after its welcome: its last word is "aborted".
fn say_aborted(words: &OwnedFd, rank: usize, generation: u64) {
    // SAFETY: the words slab of a small world: one page per rank, the farewell first.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_WRITE, libc::MAP_SHARED, words.as_raw_fd(), 0);
        map.cast::<u64>().byte_add(4096 * rank).write_volatile(Farewell::Aborted.encode(generation));
        libc::munmap(map, 8192);
    }
}

#[test]
fn a_connection_of_the_past_does_not_unseat_its_successor() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 2);
    let mut worlds = join_all(dir, 2);
    let (old, other) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    old.finalize().expect("finalize");
    let mut successor = Raw::connect(dir);
    successor.hello(&external(dir, 1, 2), false);
    assert_eq!(successor.welcome().generation, 2);
    let heap = successor.fds.pop().expect("the inherited heap");
    drop(old);
    std::thread::sleep(Duration::from_millis(100));
    successor.offer(&heap);
    assert_eq!(successor.roster().peers.len(), 2, "it has joined");
    assert!(eventually(|| other.peer(1).unwrap().generation == 2));
    let third = World::join(Config { deadline: within(2), ..external(dir, 1, 2) }).err().expect("the rank is taken");
    assert_eq!(third.status, NMC_ERR_EXISTS, "{third}");
}

#[test]
fn handles_of_an_old_world_do_not_disturb_the_next_one() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path().to_path_buf();
    let _master = serve(&dir, 2);
    let old = join_all(&dir, 2);
    for world in &old {
        world.finalize().expect("finalize");
    }
    let mut slow = Raw::connect(&dir);
    slow.hello(&external(&dir, 0, 2), false);
    let other = std::thread::spawn({
        let dir = dir.clone();
        move || World::join(external(&dir, 1, 2)).map(|w| w.rank())
    });
    slow.welcome();
    std::thread::sleep(Duration::from_millis(200));
    drop(old);
    std::thread::sleep(Duration::from_millis(200));
    slow.offer(&memfd(1 << 20, true));
    assert_eq!(other.join().expect("thread"), Ok(1));
}

#[test]
fn ranks_that_rejoin_at_once_all_get_the_whole_world() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 4);
    let mut worlds = join_all(dir.path(), 4);
    worlds.truncate(1);
    for round in 0..60 {
        let again = World::join_many((1..4).map(|r| external(dir.path(), r, 4)).collect()).expect("rejoin");
        for world in &again {
            assert!(
                world.ptr(world.rank(), 0, 8).is_ok(),
                "round {round}: own heap\n{}",
                world.dump().expect("memory")
            );
            assert_eq!(world.state(world.rank()), Ok(RankState::Alive), "round {round}");
        }
    }
}

#[test]
fn a_generation_is_given_out_once_also_across_masters() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let master = serve(dir, 2);
    let mut worlds = join_all(dir, 2);
    drop(worlds.pop());
    let survivor = worlds.pop().unwrap();
    let mut unlucky = Raw::connect(dir);
    unlucky.hello(&external(dir, 1, 2), false);
    let welcome = unlucky.welcome();
    drop(master); // before the survivor was told
    say_aborted(&unlucky.fds[1], 1, welcome.generation);
    drop(unlucky);
    let _master = serve(dir, 2);
    let next = World::join(external(dir, 1, 2)).expect("the rank can be taken");
    assert!(next.peer(1).unwrap().generation > welcome.generation);
    assert!(eventually(|| survivor.state(1) == Ok(RankState::Alive)));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(survivor.state(1), Ok(RankState::Alive), "and stays alive");
}

#[test]
fn peers_map_the_memory_that_the_holder_uses() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 2);
    let mut worlds = join_all(dir, 2);
    drop(worlds.pop());
    let other = worlds.pop().unwrap();
    let mut lender = Raw::connect(dir);
    lender.hello(&external(dir, 1, 2), true); // brings memory of its own, and dies while joining
    lender.welcome();
    drop(lender);
    let next = World::join(external(dir, 1, 2)).expect("join");
    assert!(eventually(|| other.peer(1).unwrap().generation == next.peer(1).unwrap().generation));
    // SAFETY: both pointers are to mapped heaps.
    let seen = unsafe {
        (next.ptr(1, 0, 8).unwrap() as *mut u64).write_volatile(0xabcd);
        (other.ptr(1, 0, 8).unwrap() as *const u64).read_volatile()
    };
    assert_eq!(seen, 0xabcd);
}

#[test]
fn a_log_callback_may_call_the_library() {
    let dir = tempfile::tempdir().expect("dir");
    let mut worlds = World::join_many((0..2).map(|r| config(dir.path(), Some(r), 2)).collect()).expect("join");
    let leaver = worlds.pop().unwrap();
    let world: &'static World = Box::leak(Box::new(worlds.pop().unwrap()));
    let called = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let calls = std::sync::Arc::clone(&called);
    nanomc::base::log::set_sink(
        Some(Box::new(move |_, text| {
            if text.contains("is now") {
                let _ = (world.huge_pages(), world.dump(), world.peer(1));
                calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        })),
        4,
    );
    drop(leaver);
    assert!(eventually(|| called.load(std::sync::atomic::Ordering::SeqCst) > 0), "the callback came back");
    assert!(eventually(|| world.state(1) == Ok(RankState::Left)));
    nanomc::base::log::set_sink(None, 1);
    // SAFETY: leaked above, used by nobody else any more.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(world).cast_mut()) });
}

#[test]
fn a_heap_that_cannot_be_opened_is_reported_once_and_the_world_goes_on() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 2);
    let mut worlds = join_all(dir, 2);
    drop(worlds.pop());
    let world = worlds.pop().unwrap();
    let mut bad = Raw::connect(dir);
    bad.hello(&external(dir, 1, 2), true);
    bad.welcome();
    bad.offer(&memfd(1 << 20, false));
    assert!(eventually(|| world.failure().is_some()), "an async error");
    let failure = world.failure().unwrap();
    assert!(failure.message.contains("opening the heap of rank 1"), "{failure}");
    assert_eq!(world.ptr(1, 0, 8).expect_err("no heap").status, NMC_ERR_PEER_LOST);
    assert!(world.ptr(0, 0, 8).is_ok() && world.master_up());
}

#[test]
fn cancel_ends_a_selftest() {
    let dir = tempfile::tempdir().expect("dir");
    let worlds = World::join_many((0..2).map(|r| config(dir.path(), Some(r), 2)).collect()).expect("join");
    std::thread::scope(|scope| {
        let test = scope.spawn(|| worlds[0].selftest(1, &Deadline::after(PATIENCE * 10)));
        worlds[1].barrier(&Deadline::after(PATIENCE)).expect("meets the first of its barriers");
        std::thread::sleep(Duration::from_millis(50));
        let cancelled = Instant::now();
        worlds[0].cancel();
        assert_eq!(test.join().expect("thread").expect_err("cancelled").status, NMC_ERR_CANCELLED);
        assert!(cancelled.elapsed() < PATIENCE, "long before its deadline");
    });
}

#[test]
fn a_barrier_names_the_dead_rank_behind_a_slow_one() {
    let dir = tempfile::tempdir().expect("dir");
    let worlds = World::join_many((0..3).map(|r| config(dir.path(), Some(r), 3)).collect()).expect("join");
    worlds[2].abort();
    assert!(eventually(|| worlds[0].state(2) != Ok(RankState::Alive)));
    let error = worlds[0].barrier(&Deadline::after(PATIENCE)).expect_err("rank 2 is lost");
    assert!(error.status == NMC_ERR_PEER_LOST && error.message.contains("rank 2"), "{error}");
}

#[test]
fn a_rank_that_has_left_does_not_arrive_for_its_successor() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 2);
    let worlds = join_all(dir.path(), 2);
    worlds[1].finalize().expect("finalize");
    let _successor = World::join(external(dir.path(), 1, 2)).expect("takes over");
    assert!(eventually(|| worlds[0].peer(1).unwrap().generation == 2));
    let past = worlds[1].barrier(&Deadline::after(Duration::ZERO)).expect_err("it has left");
    assert_eq!(past.status, NMC_ERR_CANCELLED);
    assert_eq!(worlds[0].barrier(&within(1)).expect_err("nobody else arrived").status, NMC_ERR_TIMEOUT);
}

#[test]
fn an_external_master_keeps_nothing_after_everybody_left() {
    // Looks at descriptors of its process, so it needs one of its own.
    let out = in_process("master_keeps_nothing", Path::new("")).wait_with_output().expect("child");
    assert!(out.status.success());
}

fn case_master_keeps_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 2);
    drop(join_all(dir.path(), 2));
    let of_ours = || {
        let fds = std::fs::read_dir("/proc/self/fd").expect("fds");
        let links = fds.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
        links.filter(|l| l.to_string_lossy().contains("nanomc")).count()
    };
    assert!(eventually(|| of_ours() == 0), "{} slabs are kept", of_ours());
}

#[test]
fn a_forked_child_does_not_play_the_dead_master() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let mut master = in_process("master_with_a_child", dir);
    assert!(eventually(|| dir.join("ready").exists()));
    let worlds = join_all(dir, 2);
    master.kill().expect("kill");
    master.wait().expect("wait");
    assert!(eventually(|| worlds.iter().all(|w| !w.master_up())), "its death is seen");
    let _master = serve(dir, 2);
    assert!(eventually(|| worlds.iter().all(World::master_up)), "and another can take over");
    std::fs::write(dir.join("over"), "").expect("tell the child");
}

fn case_master_with_a_child(dir: &Path) {
    let _master = serve(dir, 2);
    // SAFETY: the child only sleeps and leaves.
    if unsafe { libc::fork() } == 0 {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && !dir.join("over").exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::process::exit(0);
    }
    std::fs::write(dir.join("ready"), "").expect("ready");
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_joiner_that_died_does_not_block_its_rank() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 2);
    let mut process = Command::new("sleep").arg("600").spawn().expect("sleep");
    let mut dead = Raw::connect(dir); // as if a forked child kept the socket
    dead.hello_for(&external(dir, 1, 2), false, process.id(), &pidfd(process.id()));
    process.kill().expect("kill");
    process.wait().expect("wait");
    let worlds = join_all(dir, 2);
    assert_eq!(worlds.len(), 2);
}

/// A rank that is stopped reads nothing. Others come and go all the same.
#[test]
fn a_rank_that_does_not_read_keeps_nobody_from_joining() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 3);
    let mut deaf = Raw::connect(dir);
    deaf.hello(&external(dir, 2, 3), false);
    let mut worlds = std::thread::scope(|scope| {
        let others = scope.spawn(|| World::join_many((0..2).map(|r| external(dir, r, 3)).collect()).expect("join"));
        deaf.welcome();
        deaf.offer(&memfd(1 << 20, true));
        assert_eq!(deaf.roster().peers.len(), 3);
        others.join().expect("no panic")
    });
    // Far more than its socket has room for.
    for round in 0..400 {
        drop(worlds.pop());
        let again = Config { deadline: within(5), ..external(dir, 1, 3) };
        worlds.push(World::join(again).unwrap_or_else(|error| panic!("round {round}: {error}")));
    }
}

#[test]
fn a_newer_header_may_make_a_local_world() {
    use nanomc::ffi::world::{nmc_world_create_local, nmc_world_destroy};
    use nanomc::ffi::world_types::nmc_world_config_t;
    #[repr(C, align(8))]
    struct Newer {
        config: nmc_world_config_t,
        tail: [u8; 3072],
    }
    // SAFETY: a C struct of integers and pointers; what matters is set below.
    let mut newer: Box<Newer> = Box::new(unsafe { std::mem::zeroed() });
    let c = &mut newer.config;
    c.struct_size = u32::try_from(size_of::<Newer>()).unwrap();
    c.abi_version = 2;
    (c.world_size, c.heap_bytes, c.heap_kind, c.heap_import.fd) = (1, 4096, 1, -1);
    (c.rank, c.device, c.device_rank, c.words_per_rank, c.drain_ms, c.service_cpu) = (-1, -1, -1, -1, -1, -1);
    c.join_timeout_ms = -1;
    let mut world = std::ptr::null_mut();
    for (tail, expected) in [(0, NMC_OK), (1, NMC_ERR_VERSION)] {
        newer.tail[3071] = tail;
        // SAFETY: a config of the size it states.
        let status = unsafe { nmc_world_create_local(&raw const newer.config, &raw mut world) };
        assert_eq!(status, expected);
    }
    assert_eq!(nmc_world_destroy(world), NMC_OK);
}

#[test]
fn what_a_dead_rank_left_keeps_nobody_from_joining() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 3);
    let mut worlds = join_all(dir, 3);
    worlds.truncate(1);
    // Rank 1 comes with memory that nobody else can open, as an engine's memory is after its death, and dies.
    let mut process = Command::new("sleep").arg("600").spawn().expect("sleep");
    let mut lender = Raw::connect(dir);
    lender.hello_for(&external(dir, 1, 3), true, process.id(), &pidfd(process.id()));
    lender.welcome();
    lender.offer(&memfd(1 << 20, false));
    assert!(eventually(|| worlds[0].failure().is_some()));
    process.kill().expect("kill");
    process.wait().expect("wait");
    drop(lender);
    assert!(eventually(|| worlds[0].state(1) == Ok(RankState::Gone)));
    let next = World::join(external(dir, 2, 3)).expect("rank 2 joins");
    assert_eq!(next.ptr(1, 0, 8).expect_err("beyond reach").status, NMC_ERR_PEER_LOST);
}

#[test]
fn a_joiner_whose_master_died_is_not_in_its_own_way() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let master = serve(dir, 2);
    let mut worlds = join_all(dir, 2);
    drop(worlds.pop());
    let mut joiner = Raw::connect(dir);
    joiner.hello(&external(dir, 1, 2), false);
    joiner.welcome(); // as if the welcome had been lost with the master
    drop((master, joiner));
    let barrier = worlds[0].barrier(&Deadline::after(PATIENCE)).expect_err("nobody is there");
    assert_eq!(barrier.status, NMC_ERR_PEER_LOST, "{barrier}");
    let _master = serve(dir, 2);
    World::join(external(dir, 1, 2)).expect("it joins again");
}

#[test]
fn a_joiner_that_failed_leaves_the_rank_as_it_was() {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let _master = serve(dir, 3);
    let mut worlds = join_all(dir, 3);
    // SAFETY: a mapped heap.
    unsafe { (worlds[1].ptr(1, 0, 8).unwrap() as *mut u64).write_volatile(7) };
    worlds.truncate(1);
    let mut joiner = Raw::connect(dir);
    joiner.hello(&external(dir, 1, 3), false);
    joiner.welcome();
    let while_joining = World::join(external(dir, 2, 3)).expect("another joins meanwhile");
    assert!(while_joining.ptr(1, 0, 8).is_ok(), "and sees the heap of the one before");
    drop((joiner, while_joining));
    let next = World::join(external(dir, 2, 3)).expect("join");
    assert_eq!(next.state(1), Ok(RankState::Left));
    // SAFETY: a mapped heap.
    assert_eq!(unsafe { (next.ptr(1, 0, 8).unwrap() as *const u64).read_volatile() }, 7);
}

#[test]
fn state_and_holder_are_of_one_process() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 2);
    let mut worlds = join_all(dir.path(), 2);
    drop(worlds.pop());
    let reader = worlds.pop().unwrap();
    let newest = std::sync::atomic::AtomicU64::new(1);
    let over = std::sync::atomic::AtomicBool::new(false);
    use std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(SeqCst) {
                let seen = reader.peer(1).expect("peer");
                // A generation begins to leave only after it has been stored in `newest`.
                let may_have_left = seen.generation <= newest.load(SeqCst);
                assert!(may_have_left || seen.state == RankState::Alive, "{seen:?}");
            }
        });
        for _ in 0..60 {
            let holder = World::join(external(dir.path(), 1, 2)).expect("join");
            let generation = holder.peer(1).unwrap().generation;
            assert!(eventually(|| reader.peer(1).unwrap().generation == generation));
            newest.store(generation, SeqCst);
        }
    });
}

#[test]
fn an_aborted_local_rank_is_gone_when_it_is_destroyed() {
    let dir = tempfile::tempdir().expect("dir");
    let mut worlds = World::local(&config(dir.path(), None, 3)).expect("local");
    worlds[2].abort();
    assert_eq!(worlds[0].state(2), Ok(RankState::Dying));
    drop(worlds.pop());
    assert_eq!(worlds[0].state(2), Ok(RankState::Gone));
    drop(worlds.pop());
    assert_eq!(worlds[0].state(1), Ok(RankState::Left));
}

/// Runs one of the `case_*` functions in a process of its own.
fn in_process(case: &str, dir: &Path) -> Child {
    run_case(Command::new(std::env::current_exe().expect("exe")), case, dir)
}

fn run_case(mut command: Command, case: &str, dir: &Path) -> Child {
    let arguments = ["--exact", "child", "--test-threads=1", "--nocapture"];
    command.args(arguments).env("NMC_CASE", case).env("NMC_DIR", dir).spawn().expect("child")
}

/// Not a test of its own: the other side of [`in_process`].
#[test]
fn child() {
    let dir = std::env::var_os("NMC_DIR").unwrap_or_default();
    match std::env::var("NMC_CASE").as_deref() {
        Ok("master_keeps_nothing") => case_master_keeps_nothing(),
        Ok("master_with_a_child") => case_master_with_a_child(Path::new(&dir)),
        Ok("survivor") => case_survivor(Path::new(&dir)),
        Ok("foreigner") => case_foreigner(Path::new(&dir)),
        _ => {}
    }
}

/// Two ranks whose master went away, two newcomers who want the same ranks, and a new master. Gives how many newcomers
/// came in, and whether the survivors are still what they were.
fn return_of_the_master() -> (usize, bool) {
    let dir = tempfile::tempdir().expect("dir");
    let first = serve(dir.path(), 2);
    let worlds = join_all(dir.path(), 2);
    drop(first);
    std::thread::scope(|scope| {
        let newcomer = |rank| World::join(Config { deadline: within(60), ..external(dir.path(), rank, 2) });
        let threads: Vec<_> = (0..2).map(|rank| scope.spawn(move || newcomer(rank))).collect();
        // Newcomers ask every 50 ms, survivors every 100 ms: who is first is chance.
        std::thread::sleep(Duration::from_millis(70));
        let again = serve(dir.path(), 2);
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        for error in joined.iter().filter_map(|joined| joined.as_ref().err()) {
            assert_eq!(error.status, NMC_ERR_EXISTS, "{}", error.message);
        }
        let came_in = joined.iter().filter(|joined| joined.is_ok()).count();
        let whole = || worlds.iter().all(|world| world.master_up() && world.failure().is_none());
        let kept = came_in == 0 && eventually(whole) && worlds[0].barrier(&within(1)).is_err();
        drop((worlds, again));
        (came_in, kept)
    })
}

#[test]
fn survivors_go_before_newcomers_when_a_master_returns() {
    for _ in 0..8 {
        assert_eq!(return_of_the_master(), (0, true));
    }
}

/// A process that is rank 0 of 1, stopped; and a new master. Gives that, and how to let it go on.
fn stopped_survivor(dir: &Path) -> (Child, Master) {
    let first = serve(dir, 1);
    let survivor = in_process("survivor", dir);
    assert!(eventually(|| dir.join("joined").exists()));
    signal(&survivor, libc::SIGSTOP);
    drop(first);
    (survivor, serve(dir, 1))
}

fn signal(child: &Child, signal: i32) {
    let mut status = 0;
    let pid = child.id().cast_signed();
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    if signal == libc::SIGSTOP {
        // SAFETY: as above; it says that the child has stopped.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
    }
}

fn end(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("wait");
}

fn newcomer(dir: &Path, seconds: u64) -> nanomc::base::error::Result<World> {
    World::join(Config { deadline: within(seconds), ..external(dir, 0, 1) })
}

/// A survivor that is stopped cannot report. The world is still its own.
#[test]
fn a_stopped_survivor_keeps_its_world() {
    let dir = tempfile::tempdir().expect("dir");
    let (survivor, _master) = stopped_survivor(dir.path());
    let error = newcomer(dir.path(), 1).err().expect("the survivor has not reported");
    assert_eq!(error.status, NMC_ERR_TIMEOUT);
    assert!(error.message.contains("ranks [0] of the former world live"), "{}", error.message);
    signal(&survivor, libc::SIGCONT);
    assert!(eventually(|| newcomer(dir.path(), 5).err().is_some_and(|error| error.status == NMC_ERR_EXISTS)));
    end(survivor);
    newcomer(dir.path(), 60).expect("now nobody is in the way");
}

/// Without the file in which ranks hold their locks, a new master cannot know of the living.
#[test]
fn control_without_locks_a_newcomer_expels_the_living() {
    let dir = tempfile::tempdir().expect("dir");
    let (survivor, master) = stopped_survivor(dir.path());
    drop(master);
    std::fs::remove_file(dir.path().join("t/ranks")).expect("the locks");
    let _master = serve(dir.path(), 1);
    newcomer(dir.path(), 60).expect("a second world of the same name");
    end(survivor);
}

fn case_survivor(dir: &Path) {
    let _world = World::join(external(dir, 0, 1)).expect("join");
    std::fs::write(dir.join("joined"), "").expect("flag");
    std::thread::sleep(PATIENCE * 3);
}

/// A rank in another pid namespace has a number here that is somebody else's, or nobody's: nothing may depend on it.
#[test]
fn ranks_in_two_pid_namespaces_are_one_world() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: pid namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let mut master = serve(dir.path(), 2);
    let abroad = || {
        let mut command = unshare();
        command.arg(std::env::current_exe().expect("exe"));
        run_case(command, "foreigner", dir.path())
    };
    let mut foreigner = abroad();
    let home = World::join(external(dir.path(), 0, 2)).expect("join");
    for generation in 1..4 {
        assert!(eventually(|| home.peer(1).is_ok_and(|peer| peer.generation == generation)));
        home.barrier(&within(60)).expect("both are there");
        // A new master hears of it from the survivors; it is alive all the time.
        drop(master);
        master = serve(dir.path(), 2);
        assert!(eventually(|| home.master_up()));
        let hasty = Config { deadline: within(2), ..external(dir.path(), 1, 2) };
        assert_eq!(World::join(hasty).err().expect("it lives").status, NMC_ERR_EXISTS);
        foreigner.kill().expect("kill");
        foreigner.wait().expect("wait");
        assert!(eventually(|| home.state(1) == Ok(RankState::Gone)));
        foreigner = abroad();
    }
    foreigner.kill().expect("kill");
    foreigner.wait().expect("wait");
}

fn case_foreigner(dir: &Path) {
    let world = World::join(external(dir, 1, 2)).expect("join");
    assert!(std::process::id() < 100, "a namespace of its own");
    world.barrier(&within(60)).expect("both are there");
    std::thread::sleep(PATIENCE * 3);
}
