//! What a store promises around the life of a rank: leaving, dying, being replaced, coming back, also while the master is
//! away. Each is a way in which it once gave wrong bytes, or lost a place for ever.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "processes are stopped")]

mod common;
#[path = "common/store.rs"]
mod values;

use common::{PATIENCE, config as world_config, eventually};
use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::mem::{Import, Slab};
use nanomc::store::types::{Look, PutOptions};
use nanomc::store::{Config, Store};
use nanomc::world::{RankState, World};
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use values::{get, put_on as put};

const PAGE: u32 = 4096;

fn store_config() -> Config {
    Config { page_bytes: PAGE, call_ms: 2000, ..Config::default() }
}

fn used(store: &Store) -> u64 {
    store.stats().unwrap().ranks.iter().map(|r| r.bytes_used).sum()
}

fn join(dir: &Path, n: u32) -> Vec<World> {
    World::join_many((0..n).map(|r| world_config(dir, Some(r), n)).collect()).unwrap()
}

/// Not a test: a process that is rank 0, hosts both masters and waits to be killed.
#[test]
fn child_master() {
    let Ok(dir) = std::env::var("NMC_TEST_MASTER") else { return };
    let size = std::env::var("NMC_TEST_SIZE").unwrap().parse().unwrap();
    let world = World::join(world_config(dir.as_ref(), Some(0), size)).unwrap();
    let _store = Store::attach(&world, &store_config()).unwrap();
    println!("ready");
    std::thread::sleep(PATIENCE * 5);
}

/// Rank 0 of `size`, in a process of its own. It is ready when its store is.
struct MasterProcess(Child);

impl MasterProcess {
    fn start(dir: &Path, size: u32) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_master", "--nocapture"])
            .env("NMC_TEST_MASTER", dir)
            .env("NMC_TEST_SIZE", size.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn wait_until_ready(mut self) -> Self {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        self
    }

    fn signal(&self, signal: i32) {
        let mut status = 0;
        let pid = self.0.id().cast_signed();
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        if signal == libc::SIGSTOP {
            // SAFETY: as above; it says that the child has stopped.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
        }
    }
}

impl Drop for MasterProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A rank that had left while its store was open lost its pins to whoever took the rank, and took that one's when it closed.
#[test]
fn a_rank_does_not_leave_while_something_that_was_made_from_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut worlds = join(dir.path(), 3);
    let last = worlds.pop().unwrap();
    let _host = Store::attach(&worlds[0], &store_config()).unwrap();
    let store = Store::attach(&last, &store_config()).unwrap();
    let error = last.finalize().unwrap_err();
    assert_eq!(error.status, NMC_ERR_BUSY);
    assert!(error.message.contains("its store"), "{}", error.message);
    // The handle goes, the store stays, and so does the rank.
    put(&store, b"k", b"bytes", 2).unwrap();
    drop(last);
    assert_eq!(worlds[0].state(2).unwrap(), RankState::Alive);
    let hasty = nanomc::world::Config {
        deadline: Deadline::after(Duration::from_millis(200)),
        ..world_config(dir.path(), Some(2), 3)
    };
    assert_eq!(World::join(hasty).err().unwrap().status, NMC_ERR_EXISTS);
    assert_eq!(get(&store, b"k").unwrap(), b"bytes");
    put(&store, b"l", b"more", 2).unwrap();
    drop(store);
    assert!(eventually(|| worlds[0].state(2).unwrap() == RankState::Left));
    let next = World::join(world_config(dir.path(), Some(2), 3)).unwrap();
    let store = Store::attach(&next, &store_config()).unwrap();
    put(&store, b"m", b"next", 2).unwrap();
    assert_eq!(get(&store, b"m").unwrap(), b"next");
}

/// The same for whatever else can be made from a rank.
#[test]
fn what_holds_a_rank_is_named_and_nothing_is_made_from_one_that_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let worlds = join(dir.path(), 2);
    let member = worlds[1].membership("KV cache").unwrap();
    let copy = member.clone();
    drop(member);
    assert!(worlds[1].finalize().unwrap_err().message.contains("KV cache"));
    drop(copy);
    worlds[1].finalize().unwrap();
    assert_eq!(worlds[1].membership("KV cache").err().unwrap().status, NMC_ERR_CANCELLED);
    assert_eq!(Store::attach(&worlds[1], &store_config()).err().unwrap().status, NMC_ERR_CANCELLED);
}

/// After an abort the rank is not given away before its store is closed, which still has its pins.
#[test]
fn an_aborted_rank_keeps_its_pins_until_its_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let mut worlds = join(dir.path(), 2);
    let first = Store::attach(&worlds[0], &store_config()).unwrap();
    let store = Store::attach(&worlds[1], &store_config()).unwrap();
    put(&first, b"k", b"bytes", 0).unwrap();
    let Look::Ready((_pin, _)) = store.pin(b"k").unwrap() else { panic!("not there") };
    worlds[1].abort();
    drop(worlds.pop());
    first.remove(b"k").unwrap();
    assert!(eventually(|| worlds[0].state(1).unwrap() == RankState::Dying));
    assert!(used(&first) > 0, "its pin does not hold any more");
    drop(store);
    assert!(eventually(|| worlds[0].state(1).unwrap().free()));
    assert!(eventually(|| used(&first) == 0));
}

fn lender(dir: &Path) -> nanomc::world::Config {
    let slab = Slab::create(c"lent", 1 << 20, false, &Deadline::after(PATIENCE)).unwrap();
    let import = Some(Import::host_fd(slab.as_fd().try_clone_to_owned().unwrap()));
    nanomc::world::Config { import, ..world_config(dir, Some(1), 2) }
}

/// A rank was taken by somebody who lends memory, and then by somebody who does not: what was published in its first heap
/// was looked for in its third.
#[test]
fn what_lay_in_a_heap_that_was_replaced_is_never_read_from_another() {
    let dir = tempfile::tempdir().unwrap();
    let mut worlds = join(dir.path(), 2);
    let store = Store::attach(&worlds[0], &store_config()).unwrap();
    put(&store, b"k", b"what was published", 1).unwrap();
    drop(worlds.pop());
    let right_or_lost = |store: &Store| match get(store, b"k") {
        Ok(value) => assert_eq!(value, b"what was published"),
        Err(status) => assert!([NMC_ERR_NOT_FOUND, NMC_ERR_PEER_LOST].contains(&status), "{status}"),
    };
    let lent = World::join(lender(dir.path())).unwrap();
    right_or_lost(&store);
    assert_eq!(Store::attach(&lent, &store_config()).err().unwrap().status, NMC_ERR_UNSUPPORTED);
    assert!(eventually(|| get(&store, b"k") == Err(NMC_ERR_NOT_FOUND)), "nobody dropped what is lost");
    assert_eq!(put(&store, b"l", b"x", 1).unwrap_err().status, NMC_ERR_PEER_LOST);
    drop(lent);
    let third = World::join(world_config(dir.path(), Some(1), 2)).unwrap();
    let its = Store::attach(&third, &store_config()).unwrap();
    assert_eq!(get(&its, b"k"), Err(NMC_ERR_NOT_FOUND));
    put(&its, b"l", b"in the third heap", 1).unwrap();
    assert_eq!(get(&its, b"l").unwrap(), b"in the third heap");
    // Who came before has the first heap mapped, or none: it says so.
    assert_eq!(get(&store, b"l"), Err(NMC_ERR_PEER_LOST));
    let patience = Deadline::after(PATIENCE);
    assert_eq!(store.wait_ready(b"l", None, false, &patience).unwrap_err().status, NMC_ERR_PEER_LOST);
    assert_eq!(store.consume(b"l").unwrap_err().status, NMC_ERR_PEER_LOST);
    assert_eq!(get(&its, b"l").unwrap(), b"in the third heap", "who cannot read it does not take it away");
    drop(store);
    let store = Store::attach(&worlds[0], &store_config()).unwrap();
    assert_eq!(get(&store, b"l").unwrap(), b"in the third heap");
    assert_eq!(used(&store), u64::from(PAGE));
}

/// The same without anybody noticing in between: the third holder is the first to say hello.
#[test]
fn a_successor_with_another_heap_reads_nothing_of_the_former() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let mut worlds = join(dir.path(), 2);
        let store = Store::attach(&worlds[0], &store_config()).unwrap();
        put(&store, b"k", b"what was published", 1).unwrap();
        drop(worlds.pop());
        drop(World::join(lender(dir.path())).unwrap());
        let third = World::join(world_config(dir.path(), Some(1), 2)).unwrap();
        let its = Store::attach(&third, &store_config()).unwrap();
        assert_eq!(get(&its, b"k"), Err(NMC_ERR_NOT_FOUND));
    }
}

/// A rank that is taken over keeps its heap, and what is in it.
#[test]
fn a_heap_that_is_inherited_keeps_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let mut worlds = join(dir.path(), 2);
    let store = Store::attach(&worlds[0], &store_config()).unwrap();
    put(&store, b"k", b"what was published", 1).unwrap();
    for _ in 0..3 {
        drop(worlds.pop());
        worlds.push(World::join(world_config(dir.path(), Some(1), 2)).unwrap());
        let its = Store::attach(&worlds[1], &store_config()).unwrap();
        assert_eq!(get(&its, b"k").unwrap(), b"what was published");
        assert_eq!(get(&store, b"k").unwrap(), b"what was published");
    }
}

/// An attach that timed out, because the master was stopped, kept a place for clients each time.
#[test]
fn attaches_that_time_out_use_up_no_places() {
    let dir = tempfile::tempdir().unwrap();
    let master = MasterProcess::start(dir.path(), 2);
    let world = World::join(world_config(dir.path(), Some(1), 2)).unwrap();
    let master = master.wait_until_ready();
    let hasty = || Config { deadline: Deadline::after(Duration::from_millis(50)), ..store_config() };
    for _ in 0..3 {
        master.signal(libc::SIGSTOP);
        for _ in 0..12 {
            assert_eq!(Store::attach(&world, &hasty()).err().unwrap().status, NMC_ERR_TIMEOUT);
        }
        master.signal(libc::SIGCONT);
        let store = Store::attach(&world, &store_config()).unwrap();
        put(&store, b"k", b"v", 0).unwrap();
        store.remove(b"k").unwrap();
    }
}

/// A store that was destroyed while the master was away kept its place and the pages of its plans while its process lived.
#[test]
fn what_a_client_left_while_the_master_was_away_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut master = MasterProcess::start(dir.path(), 3);
    let worlds = World::join_many((1..3).map(|r| world_config(dir.path(), Some(r), 3)).collect()).unwrap();
    master = master.wait_until_ready();
    let witness = Store::attach(&worlds[1], &store_config()).unwrap();
    for round in 0..8 {
        let store = Store::attach(&worlds[0], &store_config()).unwrap();
        let there = PutOptions { rank: Some(2), ..PutOptions::DEFAULT };
        let key = format!("half {round}");
        store.open_for_write(key.as_bytes(), 3 * u64::from(PAGE), &there).unwrap();
        assert!(used(&witness) >= 3 * u64::from(PAGE));
        drop(master);
        drop(store);
        master = MasterProcess::start(dir.path(), 3).wait_until_ready();
        // Nobody attaches: the new master finds the last word.
        assert!(eventually(|| witness.client().master_up() && used(&witness) == 0), "{} bytes", used(&witness));
    }
}

/// Connections that say nothing kept clients out.
#[test]
fn silent_connections_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let master = MasterProcess::start(dir.path(), 2);
    let world = World::join(world_config(dir.path(), Some(1), 2)).unwrap();
    let _master = master.wait_until_ready();
    let path = world.membership("test").unwrap().place("store").socket();
    let mut silent = Vec::new();
    // A master that is busy has its queue full: such a connection is asked for again.
    let enough = eventually(|| {
        while let Some(link) = nanomc::rpc::Link::connect(&path).unwrap() {
            silent.push(link);
            if silent.len() == 600 {
                return true;
            }
        }
        false
    });
    assert!(enough, "only {} connections", silent.len());
    let store = Store::attach(&world, &store_config()).unwrap();
    put(&store, b"k", b"v", 0).unwrap();
    assert_eq!(get(&store, b"k").unwrap(), b"v");
}

/// One thread destroys the last handle of a client while another makes a new one, and watches a key: either is done.
#[test]
fn a_watch_is_not_lost_with_the_last_handle_of_another_thread() {
    let mut config = world_config(Path::new("/"), None, 1);
    config.dir = None;
    let worlds = World::local(&config).unwrap();
    for round in 0..800u64 {
        let first = Store::attach(&worlds[0], &store_config()).unwrap();
        let gate = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gate.wait();
                drop(first);
            });
            gate.wait();
            let second = Store::attach(&worlds[0], &store_config()).unwrap();
            second.watch(b"nothing", round, false).unwrap();
            let told = eventually(|| {
                let mut token = None;
                second.completions(1, |done| token = Some(done.token)) == 1 && token == Some(round)
            });
            assert!(told, "round {round}: the watch is lost");
        });
    }
}

/// A store's master is killed, and all ranks leave: nothing stays behind.
#[test]
fn the_last_to_leave_removes_what_a_killed_master_left() {
    let dir = tempfile::tempdir().unwrap();
    let master = MasterProcess::start(dir.path(), 2);
    let world = World::join(world_config(dir.path(), Some(1), 2)).unwrap();
    let master = master.wait_until_ready();
    let store = Store::attach(&world, &store_config()).unwrap();
    put(&store, b"k", b"v", 1).unwrap();
    drop(master);
    drop(store);
    drop(world);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
