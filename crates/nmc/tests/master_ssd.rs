//! `nmc master --ssd`: a master that is no rank writes what ranks store, and every rank reads it, also after that master was killed,
//! after all ranks left, and after both.

#![allow(unsafe_code, reason = "a signal is sent to a process")]
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../src/base/random.rs"]
mod random;
#[path = "../../../tests/common/slices.rs"]
mod slices;

use nanomc::base::status::{NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED};
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Look, PutOptions};
use nanomc::store::{Config as StoreConfig, Store};
use nanomc::tier::{self, Happened, Tier};
use nanomc::world::{Config, Hosting, World};
use random::Random;
use slices::{slice, slice_mut};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Values, of which memory holds a part.
const VALUES: u64 = 200;
const BYTES: usize = 40_000;

/// A master that is ended with the test, whatever happens.
struct Master(Child);

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Master {
    fn start(dir: &Path) -> Self {
        Self::start_with(dir, &["--ssd-write-through"])
    }

    fn start_with(dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nmc"));
        command.args(["master", "--name", "t", "--world-size", "2", "--heap-bytes", "1MiB", "--words", "8", "--dir"]);
        command.arg(dir.join("world")).args(more).arg("--ssd").arg(dir.join("ssd"));
        let mut child = Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("serving world"), "{line}");
        child
    }

    fn end_in_order(mut self) {
        // SAFETY: a signal to our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.0.id()).unwrap(), libc::SIGTERM) }, 0);
        assert!(self.0.wait().unwrap().success());
    }
}

struct Rank {
    store: Store,
    world: World,
}

/// Both ranks, each on a thread while they join.
fn ranks(dir: &Path) -> [Rank; 2] {
    tier::install();
    let join = |rank| {
        let config = Config { hosting: Hosting::Elsewhere, ..common::config(&dir.join("world"), Some(rank), 2) };
        let world = World::join(config).unwrap();
        let store = StoreConfig {
            page_bytes: 4096,
            deadline: nanomc::base::Deadline::after(common::PATIENCE),
            ..StoreConfig::default()
        };
        Rank { store: Store::attach(&world, &store).unwrap(), world }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        [join(0), other.join().unwrap()]
    })
}

fn leave(ranks: [Rank; 2]) {
    for Rank { store, world } in ranks {
        drop(store);
        world.finalize().unwrap();
    }
}

fn value(number: u64) -> Vec<u8> {
    Random(number).bytes(BYTES + usize::try_from(number).unwrap())
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn put(store: &Store, number: u64) {
    let (key, value) = (key(number), value(number));
    let slices = [slice(&value)];
    // While the master is away, or has not opened its tier yet.
    assert!(common::eventually(|| store.put(&key, &Pieces::Slices(&slices), &PutOptions::DEFAULT).is_ok()), "{number}");
}

/// Which values are there; each is right.
fn found(store: &Store) -> Vec<u64> {
    let mut buffer = vec![0; 2 * BYTES];
    let mut is_there = |number: &u64| {
        let slice = slice_mut(&mut buffer);
        match store.get(&key(*number), slice).unwrap() {
            Look::Ready(bytes) => {
                assert!(buffer[..usize::try_from(bytes).unwrap()] == value(*number), "wrong bytes of value {number}");
                true
            }
            _ => false,
        }
    };
    (0..VALUES).filter(|number| is_there(number)).collect()
}

#[test]
fn what_ranks_store_stays_on_the_masters_disk() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::create_dir(dir.join("world")).unwrap();
    let all: Vec<u64> = (0..VALUES).collect();

    let mut master = Master::start(dir);
    let both = ranks(dir);
    for number in 0..VALUES / 2 {
        put(&both[usize::try_from(number % 2).unwrap()].store, number);
    }
    assert_eq!(found(&both[0].store), all[..all.len() / 2], "four megabytes in two heaps of one");

    // Killed: reads go on, and the next one goes on with what is in memory and on disk.
    let _ = master.0.kill();
    let _ = master.0.wait();
    assert_eq!(found(&both[1].store), all[..all.len() / 2]);
    let master = Master::start(dir);
    for number in VALUES / 2..VALUES {
        put(&both[usize::try_from(number % 2).unwrap()].store, number);
    }
    assert_eq!(found(&both[0].store), all);
    let handle = Tier::open(&both[0].store, &tier::Config::default(), &mut |_, _| {}).unwrap();
    assert_eq!(handle.stats().unwrap().objects, VALUES);
    handle.sync().unwrap();
    let mut came = Vec::new();
    handle.prefetch(&[&key(0)], |_, result| came.push(result));
    assert_eq!(came, [Ok(true)]);
    drop(handle);

    // All ranks leave: the same master serves the next world, and its store has the tier from the beginning.
    leave(both);
    let both = ranks(dir);
    put(&both[0].store, VALUES);
    assert_eq!(found(&both[1].store), all, "from disk alone");
    assert!(both[0].store.remove(&key(7)).is_ok());
    leave(both);

    // And so does another process.
    master.end_in_order();
    let master = Master::start(dir);
    let both = ranks(dir);
    put(&both[0].store, VALUES + 1);
    let without_the_removed: Vec<u64> = all.iter().copied().filter(|number| *number != 7).collect();
    assert_eq!(found(&both[0].store), without_the_removed);
    leave(both);
    master.end_in_order();
}

#[test]
fn the_tier_goes_from_world_to_world_and_lets_go_of_what_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::create_dir(dir.join("world")).unwrap();
    let master = Master::start(dir);
    let owned = || {
        let seen = Command::new(env!("CARGO_BIN_EXE_nmc")).args(["ssd", "stat"]).arg(dir.join("ssd")).output().unwrap();
        String::from_utf8_lossy(&seen.stderr).contains("owned by")
    };
    for world in 0..8 {
        let both = ranks(dir);
        for number in 10 * world..10 * (world + 1) {
            put(&both[usize::try_from(number % 2).unwrap()].store, number);
        }
        assert_eq!(found(&both[1].store).len() as u64, 10 * (world + 1), "world {world}");
        leave(both);
        if world == 4 {
            assert!(common::eventually(|| !owned()), "nobody is there, and the directory is free");
        }
    }
    // Ended in order, it leaves what is on disk readable for those who have read there, as if it had been killed.
    let both = ranks(dir);
    put(&both[0].store, 80);
    both.iter().for_each(|rank| assert_eq!(found(&rank.store).len(), 81));
    master.end_in_order();
    assert_eq!(found(&both[0].store).len(), 81);
    assert_eq!(found(&both[1].store).len(), 81);
    let master = Master::start(dir);
    put(&both[1].store, 81);
    assert_eq!(found(&both[0].store).len(), 82);
    leave(both);
    master.end_in_order();
}

#[test]
fn what_is_asked_for_after_a_restart_is_written_or_the_call_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::create_dir(dir.join("world")).unwrap();
    let mut master = Master::start_with(dir, &[]);
    let both = ranks(dir);
    for round in 0..6 {
        let numbers = 10 * round..10 * (round + 1);
        numbers.clone().for_each(|number| put(&both[0].store, number));
        let _ = master.0.kill();
        let _ = master.0.wait();
        std::thread::sleep(std::time::Duration::from_millis(60 * round));
        master = Master::start_with(dir, &[]);
        let written = || {
            let Ok(handle) = Tier::open(&both[0].store, &tier::Config::default(), &mut |_, _| {}) else { return false };
            handle.offload(None).is_ok()
        };
        assert!(common::eventually(written));
        // Everything leaves memory: what is found now is on disk.
        (0..2).for_each(|rank| assert!(common::eventually(|| both[0].store.evict_until_below(rank, 0).is_ok())));
        assert_eq!(found(&both[1].store).len() as u64, numbers.end, "round {round}");
    }
    leave(both);
    master.end_in_order();
}

fn is_readable(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one struct, which lives for the call.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
}

/// Takes what happened on the master's disk, until it is of so many values.
fn take_events(handle: &Tier, store: &Store, wanted: usize) -> Vec<(Happened, Vec<u8>)> {
    let mut taken = Vec::new();
    let all = common::eventually(|| {
        // Only what the descriptor tells of is asked for.
        while is_readable(store.event_fd()) {
            let Some(event) = handle.next_event().unwrap() else { break };
            assert_eq!(event.lost, 0);
            taken.extend(event.values.into_iter().map(|(_, key, _)| (event.happened, key)));
        }
        taken.len() >= wanted
    });
    assert!(all, "{} of {wanted}", taken.len());
    assert_eq!(taken.len(), wanted);
    taken
}

#[test]
fn every_rank_hears_what_happens_on_the_masters_disk() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::create_dir(dir.join("world")).unwrap();
    let mut master = Master::start_with(dir, &["--ssd-write-through", "--ssd-events"]);
    let both = ranks(dir);
    put(&both[0].store, 0);
    let open = |rank: &Rank| Tier::open(&rank.store, &tier::Config::default(), &mut |_, _| {}).unwrap();
    let handles = both.each_ref().map(open);
    for number in 1..VALUES {
        put(&both[usize::try_from(number % 2).unwrap()].store, number);
    }
    let keys = |happened: Happened| (0..VALUES).map(|number| (happened, key(number))).collect::<Vec<_>>();
    for (rank, handle) in both.iter().zip(&handles) {
        let mut stored = take_events(handle, &rank.store, keys(Happened::Stored).len());
        stored.sort_by_key(|(_, key)| key.clone());
        let mut wanted = keys(Happened::Stored);
        wanted.sort_by_key(|(_, key)| key.clone());
        assert_eq!(stored, wanted, "each rank hears of all, also of what came before it asked");
        assert_eq!(handle.next_event().unwrap(), None, "and of each once");
        assert!(!is_readable(rank.store.event_fd()));
    }
    // What is still in memory would be written again.
    handles[0].pause(true).unwrap();
    let evicted = handles[1].evict(0).unwrap();
    let stats = handles[0].stats().unwrap();
    assert_eq!((evicted, stats.evicted), (VALUES, VALUES));
    for (rank, handle) in both.iter().zip(&handles) {
        let heard = take_events(handle, &rank.store, usize::try_from(evicted).unwrap());
        assert!(heard.iter().all(|(happened, _)| *happened == Happened::Evicted));
    }
    // Another master begins anew; while there is none, the call says so.
    let _ = master.0.kill();
    let _ = master.0.wait();
    assert_eq!(handles[0].next_event().unwrap_err().status, NMC_ERR_UNAVAILABLE);
    let master = Master::start_with(dir, &["--ssd-write-through", "--ssd-events", "--ssd-paused"]);
    put(&both[0].store, VALUES);
    for (rank, handle) in both.iter().zip(&handles) {
        assert_eq!(take_events(handle, &rank.store, 1), [(Happened::Stored, key(VALUES))]);
    }
    // Without a handle nobody is told that there is something.
    drop(handles);
    put(&both[0].store, VALUES + 1);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!is_readable(both[0].store.event_fd()));
    leave(both);
    master.end_in_order();
}

#[test]
fn a_master_that_keeps_no_events_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::create_dir(dir.join("world")).unwrap();
    let master = Master::start(dir);
    let both = ranks(dir);
    put(&both[0].store, 1);
    let handle = Tier::open(&both[1].store, &tier::Config::default(), &mut |_, _| {}).unwrap();
    let refused = handle.next_event().unwrap_err();
    assert_eq!(refused.status, NMC_ERR_UNSUPPORTED);
    assert!(refused.message.contains("--ssd-events"), "{refused}");
    assert!(!is_readable(both[1].store.event_fd()));
    drop(handle);
    leave(both);
    master.end_in_order();
}

#[test]
fn a_damaged_directory_begins_anew_if_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::create_dir(dir.join("world")).unwrap();
    for (number, damaged) in [(1, false), (2, true)] {
        if damaged {
            std::fs::write(dir.join("ssd/SUPER"), [0xaa; 4096]).unwrap();
        }
        let limits = ["--ssd-reset-if-damaged", "--ssd-max-objects", "1000", "--ssd-write-rate", "64MiB"];
        let master = Master::start_with(dir, &limits);
        let both = ranks(dir);
        put(&both[0].store, number);
        assert_eq!(found(&both[1].store), [number], "nothing of what was damaged");
        leave(both);
        master.end_in_order();
    }
}

#[test]
fn without_a_directory_or_host_heaps_it_explains_itself() {
    let sizes = ["--name", "x", "--world-size", "1", "--heap-bytes", "1MiB"];
    for (more, says) in [
        (&["--ssd-evict", "lru"][..], "nothing without --ssd"),
        (&["--ssd-write-through"], "nothing without --ssd"),
        (&["--ssd-reset-if-damaged"], "nothing without --ssd"),
        (&["--ssd-max-objects", "5"], "nothing without --ssd"),
        (&["--ssd-heartbeat-ms", "5"], "nothing without --ssd"),
        (&["--ssd-events"], "nothing without --ssd"),
        (&["--ssd", "d", "--ssd-admit-priority", "4"], "--ssd-admit-priority 4 is above 3"),
        (&["--ssd", "d", "--ssd-write-rate", "slow"], "--ssd-write-rate \"slow\" is not a number of bytes"),
        (&["--ssd", "d", "--heap-kind", "cuda"], "host heaps"),
        (&["--ssd", "d", "--ssd-evict", "some"], "never, fifo and lru"),
        (&["--ssd", "d", "--ssd-backend", "noop"], "bucket, file-per-key and offset"),
        (&["--ssd", "d", "--ssd-capacity", "much"], "not a number of bytes"),
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_nmc")).arg("master").args(sizes).args(more).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{text}");
    }
}
