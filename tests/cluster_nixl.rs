//! NIXL as the mover of a cluster, over UCX's TCP on the loopback device: parts in one process. Where NIXL is not installed (`make cluster-deps`, and
//! `NMC_NIXL`) the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "common/cluster.rs"]
mod common;
#[path = "../src/base/random.rs"]
mod random;

use common::{Directory, a_store, slice, slice_mut};
use nanomc::base::deadline::Deadline;
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions, Scope};
use nanomc::cluster::nixl::sys::Library;
use nanomc::cluster::submit::Sum;
use nanomc::store::Store;
use nanomc::store::copy::{Pieces, Slice};
use nanomc::store::types::{Look, PutOptions as Put};
use nanomc::tier::{self, Tier};
use random::Random;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn config(directory: &Directory, rdma: bool) -> Config {
    Config { rdma, rdma_from: 4096, ..directory.config() }
}

fn a_client(directory: &Directory, rdma: bool) -> Cluster {
    Cluster::open(config(directory, rdma)).unwrap()
}

fn a_node(directory: &Directory, rdma: bool) -> (Cluster, Store) {
    let (cluster, store) = (a_client(directory, rdma), a_store(1024));
    cluster.mount(&store, None, false).unwrap();
    (cluster, store)
}

/// Bytes that say of what they are and where in it.
fn value(seed: usize, bytes: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..4096).map(|i| u8::try_from((i * 7 + seed * 13 + i / 256) % 256).unwrap()).collect();
    let mut all = Vec::with_capacity(bytes + block.len());
    for number in 0..bytes.div_ceil(block.len()) {
        all.extend_from_slice(&number.to_le_bytes());
        all.extend_from_slice(&block[8..]);
    }
    all.truncate(bytes);
    all
}

fn slices(bytes: &[u8], at: usize) -> [Slice; 2] {
    let (a, b) = bytes.split_at(at);
    [slice(a), slice(b)]
}

/// To be written to.
fn slices_mut(bytes: &mut [u8], at: usize) -> [Slice; 2] {
    let (a, b) = bytes.split_at_mut(at);
    [slice_mut(a), slice_mut(b)]
}

fn put(cluster: &Cluster, key: &str, bytes: &[u8]) {
    try_put(cluster, key, bytes).unwrap();
}

fn try_put(cluster: &Cluster, key: &str, bytes: &[u8]) -> nanomc::base::Result<()> {
    let slices = slices(bytes, bytes.len() / 3);
    let item = Item { key: key.as_bytes(), slices: &slices, far: false };
    cluster.put(&[item], &PutOptions::default()).unwrap().remove(0)
}

fn get(cluster: &Cluster, key: &str, room: &mut [u8]) -> u64 {
    let at = room.len() / 5;
    let slices = slices_mut(room, at);
    let got = cluster.get(&[Item { key: key.as_bytes(), slices: &slices, far: false }]).unwrap().remove(0);
    got.result.unwrap();
    got.bytes
}

/// Whether NIXL is there.
fn is_there() -> bool {
    if let Err(error) = Library::get() {
        eprintln!("skipped: {}", error.message);
        return false;
    }
    true
}

/// Repeats something until NIXL has moved bytes: the first calls go by tcp while both sides get to know each other.
fn until_moved(moved: impl Fn() -> u64, mut once: impl FnMut(usize)) {
    let (before, begun) = (moved(), Instant::now());
    for n in 0.. {
        once(n);
        if moved() > before {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "NIXL has moved nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn values_are_read_by_nixl_into_any_memory() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let ((owner, _store), reader) = (a_node(&directory, true), a_client(&directory, true));
    let bytes = value(1, 3 * MIB + 77);
    put(&owner, "large", &bytes);
    put(&owner, "small", &value(2, 1000));
    let moved = || owner.moved().1;
    // Memory that nobody knows of, with more room than is needed.
    let mut room = vec![0u8; 4 * MIB];
    until_moved(moved, |_| {
        room.fill(0);
        assert_eq!(get(&reader, "large", &mut room), bytes.len() as u64);
        assert!(room[..bytes.len()] == bytes[..] && room[bytes.len()..].iter().all(|byte| *byte == 0));
    });
    // Memory that was registered.
    let mut known = vec![0u8; 4 * MIB];
    register(&reader, &known);
    until_moved(moved, |_| {
        known.fill(0);
        assert_eq!(get(&reader, "large", &mut known), bytes.len() as u64);
        assert!(known[..bytes.len()] == bytes[..] && known[bytes.len()..].iter().all(|byte| *byte == 0));
    });
    reader.unregister(known.as_ptr() as usize).unwrap();
    let before = moved();
    assert_eq!(get(&reader, "small", &mut room), 1000);
    assert_eq!(moved(), before, "what is small goes by tcp");
    // A value that does not fit.
    let few = slices_mut(&mut room[..MIB], 100);
    let got = reader.get(&[Item { key: b"large", slices: &few, far: false }]).unwrap().remove(0);
    assert_eq!((got.bytes, got.result.unwrap_err().status), (bytes.len() as u64, NMC_ERR_TOO_SMALL));
}

#[test]
fn values_are_put_by_nixl_from_any_memory() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let ((owner, _store), writer) = (a_node(&directory, true), a_client(&directory, true));
    let bytes = value(3, 2 * MIB + 5);
    let mut room = vec![0u8; bytes.len()];
    for registered in [false, true] {
        if registered {
            register(&writer, &bytes);
        }
        until_moved(
            || writer.moved().0,
            |n| {
                let key = format!("{registered}{n}");
                put(&writer, &key, &bytes);
                assert_eq!(get(&owner, &key, &mut room), bytes.len() as u64);
                assert!(room == bytes, "{key}");
                room.fill(0);
            },
        );
    }
}

/// Puts and reads a value in parts until NIXL has moved every byte of it, both ways.
fn moves_all_parts(writer: &Cluster, nodes: &[(Cluster, Store)], bytes: &[u8], room: &mut [u8], round: &str) {
    let (all, begun) = (bytes.len() as u64, Instant::now());
    let moved = || nodes.iter().map(|(node, _)| node.moved().1).sum::<u64>();
    let (mut put_all, mut got_all) = (false, false);
    for n in 0.. {
        let key = format!("{round}/{n}");
        let before = (writer.moved().0, moved());
        put(writer, &key, bytes);
        assert_eq!(get(writer, &key, room), all);
        assert!(room[..bytes.len()] == *bytes && room[bytes.len()..].iter().all(|byte| *byte == 0), "{key}");
        room.fill(0);
        put_all |= writer.moved().0 >= before.0 + all;
        got_all |= moved() >= before.1 + all;
        writer.remove(key.as_bytes(), true).unwrap();
        if put_all && got_all {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{round}: NIXL has not moved all: {put_all} {got_all}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn parts_of_a_value_are_moved_by_nixl_from_and_to_any_memory() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let nodes: Vec<_> = (0..3).map(|_| a_node(&directory, true)).collect();
    let writer = Cluster::open(Config { stripe: 1 << 20, ..config(&directory, true) }).unwrap();
    let bytes = value(8, 7 * MIB + 77);
    let mut room = vec![0u8; 8 * MIB];
    // Through memory of the library, which has room for the whole value.
    moves_all_parts(&writer, &nodes, &bytes, &mut room, "unknown");
    register(&writer, &bytes);
    register(&writer, &room);
    moves_all_parts(&writer, &nodes, &bytes, &mut room, "registered");
    // One without NIXL reads the same.
    put(&writer, "k", &bytes);
    assert_eq!(get(&a_client(&directory, false), "k", &mut room), bytes.len() as u64);
    assert!(room[..bytes.len()] == bytes[..]);
}

#[test]
fn a_get_of_parts_that_is_cancelled_has_ended_when_that_returns() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| a_node(&directory, true)).collect();
    let reader = Cluster::open(Config { stripe: 1 << 20, ..config(&directory, true) }).unwrap();
    let bytes = value(6, 16 * MIB);
    let mut room = vec![0u8; bytes.len()];
    register(&reader, &room);
    moves_all_parts(&reader, &nodes, &bytes, &mut room, "warm");
    put(&reader, "k", &bytes);
    for n in 0..20 {
        room.fill(0);
        let slices = slices_mut(&mut room, MIB);
        let item = Item { key: b"k", slices: &slices, far: false };
        reader.submit_get(7, &[item], &[0], Sum::new(None)).unwrap();
        reader.completions(1, Duration::from_micros(700 * n), |_| ());
        reader.cancel_submitted(7).unwrap();
        let then = room.clone();
        std::thread::sleep(Duration::from_millis(30));
        assert!(room == then, "bytes came after it was cancelled");
        reader.completions(8, Duration::ZERO, |_| ());
    }
    assert_eq!(get(&reader, "k", &mut room), bytes.len() as u64);
    assert!(room == bytes);
}

/// What comes from the disk beside a full memory lies where NIXL does not reach, and goes by TCP.
#[test]
fn what_is_beside_a_full_memory_goes_by_tcp() {
    if !is_there() {
        return;
    }
    let (directory, dir) = (Directory::new(), tempfile::tempdir().unwrap());
    let ((owner, store), reader) = (a_node(&directory, true), a_client(&directory, true));
    let config = tier::Config { directory: dir.path().into(), paused: true, ..tier::Config::default() };
    let tier = Tier::open(&store, &config, &mut |_, _| ()).unwrap();
    let bytes = value(6, MIB);
    put(&owner, "on disk", &bytes);
    assert_eq!(tier.offload(None).unwrap(), 1);
    store.evict_until_below(0, 0).unwrap();
    put(&owner, "in memory", &bytes);
    let slices = [slice(&bytes)];
    let Look::Ready((pin, _)) = store.pin(b"in memory").unwrap() else { panic!("it was just put") };
    let mut held = vec![pin];
    while store.put(&held.len().to_le_bytes(), &Pieces::Slices(&slices), &Put::DEFAULT).is_ok() {
        let Look::Ready((pin, _)) = store.pin(&held.len().to_le_bytes()).unwrap() else { panic!("it was just put") };
        held.push(pin);
    }
    let mut room = vec![0u8; MIB];
    until_moved(
        || owner.moved().1,
        |_| {
            for key in ["in memory", "on disk"] {
                room.fill(0);
                assert_eq!(get(&reader, key, &mut room), MIB as u64);
                assert!(room == bytes, "{key}");
            }
        },
    );
    for _ in 0..5 {
        room.fill(0);
        // As soon as NIXL would be taken again.
        std::thread::sleep(Duration::from_millis(250));
        let before = owner.moved().1;
        assert_eq!(get(&reader, "on disk", &mut room), MIB as u64);
        assert!(room == bytes && owner.moved().1 == before);
    }
    held.into_iter().for_each(|pin| store.unpin(pin).unwrap());
}

#[test]
fn where_only_one_side_has_nixl_all_goes_by_tcp() {
    if !is_there() {
        return;
    }
    for (node, client) in [(true, false), (false, true)] {
        let directory = Directory::new();
        let ((owner, _store), other) = (a_node(&directory, node), a_client(&directory, client));
        let bytes = value(4, MIB);
        let mut room = vec![0u8; MIB];
        for n in 0..10 {
            let key = n.to_string();
            put(&other, &key, &bytes);
            assert_eq!(get(&other, &key, &mut room), MIB as u64);
            assert!(room == bytes);
            std::thread::sleep(Duration::from_millis(30));
        }
        assert_eq!((owner.moved(), other.moved()), ((0, 0), (0, 0)));
    }
}

#[test]
fn a_node_that_leaves_and_one_that_comes_are_known_as_what_they_are() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let client = a_client(&directory, true);
    let bytes = value(5, MIB);
    let mut room = vec![0u8; MIB];
    for round in 0..3 {
        let (owner, _store) = a_node(&directory, true);
        until_moved(
            || owner.moved().1,
            |n| {
                let key = format!("{round}/{n}");
                put(&client, &key, &bytes);
                assert_eq!(get(&client, &key, &mut room), MIB as u64);
                assert!(room == bytes);
            },
        );
    }
}

/// Registers memory, which a test keeps as long as anybody moves bytes of it.
#[allow(unsafe_code, reason = "memory by address")]
fn register(client: &Cluster, memory: &[u8]) {
    // SAFETY: the bytes move while a call goes on that borrows them, or later into memory that the test still has.
    unsafe { client.register(memory.as_ptr() as usize, memory.len()) }.unwrap();
}

/// A value of an owner that NIXL moves to a reader, under "k", and registered memory for it.
fn large_value_between(owner: &Cluster, reader: &Cluster) -> (Vec<u8>, Vec<u8>) {
    let bytes = value(6, 16 * MIB);
    put(owner, "k", &bytes);
    let mut room = vec![0u8; bytes.len()];
    register(reader, &room);
    until_moved(|| owner.moved().1, |_| assert_eq!(get(reader, "k", &mut room), bytes.len() as u64));
    (bytes, room)
}

#[test]
fn calls_that_are_cancelled_have_ended_when_that_returns() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let ((owner, _store), reader) = (a_node(&directory, true), a_client(&directory, true));
    let (bytes, mut room) = large_value_between(&owner, &reader);
    for n in 0..20 {
        room.fill(0);
        let slices = slices_mut(&mut room, MIB);
        let item = Item { key: b"k", slices: &slices, far: false };
        reader.submit_get(7, &[item], &[0], Sum::new(None)).unwrap();
        // Some while it is on its way, some when it has come.
        reader.completions(1, Duration::from_micros(700 * n), |_| ());
        let begun = Instant::now();
        reader.cancel_submitted(7).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
        let then = room.clone();
        std::thread::sleep(Duration::from_millis(30));
        assert!(room == then, "bytes came after it was cancelled");
        reader.completions(8, Duration::ZERO, |_| ());
    }
    assert_eq!(get(&reader, "k", &mut room), bytes.len() as u64);
    assert!(room == bytes);
}

/// As a handle of a store does whose program cancels it: from then on it says so for ever, and still the call ends.
#[test]
fn a_read_that_is_stopped_ends_and_so_do_others() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let ((owner, _store), reader) = (a_node(&directory, true), a_client(&directory, true));
    let (bytes, mut room) = large_value_between(&owner, &reader);
    for n in 0..10 {
        let begun = Instant::now();
        let stop = || begun.elapsed() > Duration::from_micros(700 * n);
        let deadline = Deadline::after(Duration::from_secs(20));
        let slices = slices_mut(&mut room, MIB);
        let scope = Scope { space: b"", deadline: &deadline, stop: &stop, expire_ms: 0 };
        let got = reader.fetch(scope, &[Item { key: b"k", slices: &slices, far: false }]).unwrap().remove(0);
        assert!(got.result.map_or_else(|error| error.status == NMC_ERR_CANCELLED, |()| true));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    assert_eq!(get(&reader, "k", &mut room), bytes.len() as u64);
}

/// Bytes of a value in the rounds, and pages of the owner's store, which holds eight of them.
const LARGE: usize = 8 * MIB;
const PAGES: u32 = 8 * 128;

/// A process of the rounds: this program again, in another role.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(role: &str, master: &str, unfenced: bool) -> Self {
        Self::striping(role, master, unfenced, 0)
    }

    /// One that puts values of more bytes than that in parts.
    fn striping(role: &str, master: &str, unfenced: bool, stripe: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--ignored", "--nocapture", "--test-threads=1"])
            .env("NMC_TEST_ROLE", role)
            .env("NMC_TEST_MASTER", master)
            .env("NMC_TEST_UNFENCED", if unfenced { "1" } else { "" })
            .env("NMC_TEST_STRIPE", stripe.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, lines) = channel();
        let from = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let process = Self { child, lines };
        process.wait("ready");
        process
    }

    /// Waits for a line that ends with this: the library of the mover says something, too.
    fn wait(&self, what: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.ends_with(what) => return,
                Ok(_) => {}
                Err(error) => panic!("no \"{what}\": {error}"),
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    #[allow(unsafe_code, reason = "a signal")]
    fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child that was not waited for.
        unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process of the rounds does.
#[test]
#[ignore = "a part of other tests"]
fn role() {
    let Ok(role) = std::env::var("NMC_TEST_ROLE") else { return };
    let unfenced = std::env::var("NMC_TEST_UNFENCED").is_ok_and(|text| !text.is_empty());
    let masters = vec![std::env::var("NMC_TEST_MASTER").unwrap()];
    let patience = Duration::from_secs(3);
    let stripe = std::env::var("NMC_TEST_STRIPE").unwrap().parse().unwrap();
    let config = Config { masters, patience, rdma: true, rdma_from: 4096, unfenced, stripe, ..Config::default() };
    let cluster = Cluster::open(config).unwrap();
    let store = a_store(PAGES);
    if role == "owner" {
        cluster.mount(&store, Some("owner"), true).unwrap();
    } else {
        until_moved(|| cluster.moved().0, |n| put(&cluster, &format!("warm{}{n}", std::process::id()), &value(n, MIB)));
    }
    println!("\nready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let Some((key, seed)) = line.split_once(' ') else { continue };
        let bytes = value(seed.parse().unwrap(), LARGE);
        let slices = slices(&bytes, MIB);
        println!("\nbegins");
        let done = cluster.put(&[Item { key: key.as_bytes(), slices: &slices, far: false }], &PutOptions::default());
        println!("\n{}", if done.is_ok_and(|mut done| done.remove(0).is_ok()) { "done" } else { "failed" });
    }
}

/// Rounds of each kind: `NMC_NIXL_ROUNDS=200` for many.
fn rounds() -> u64 {
    std::env::var("NMC_NIXL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

/// A writer is stopped, or killed, while it writes; its pages are given to others; it goes on. Whether a value was hit by what came late.
fn writers_round(directory: &Directory, client: &Cluster, writer: &mut Process, round: u64, stripe: u64) -> bool {
    writer.tell(&format!("late{round} {round}"));
    writer.wait("begins");
    std::thread::sleep(Duration::from_micros(Random(round).below(25_000)));
    let killed = round % 4 == 3;
    writer.signal(if killed { libc::SIGKILL } else { libc::SIGSTOP });
    // Its time at the owner ends, and others take all that there is.
    std::thread::sleep(Duration::from_millis(1800));
    let keys: Vec<String> = (0..8).map(|n| format!("r{round}/{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        put(client, key, &value(n + 100, LARGE));
    }
    writer.signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(300));
    let mut room = vec![0u8; LARGE];
    let mut hit = false;
    for (n, key) in keys.iter().enumerate() {
        let slices = slices_mut(&mut room, 10);
        let got = client.get(&[Item { key: key.as_bytes(), slices: &slices, far: false }]).unwrap().remove(0);
        // It may have been evicted.
        hit |= got.result.is_ok() && room != value(n + 100, LARGE);
        room.fill(0);
    }
    if killed {
        *writer = Process::striping("writer", &directory.address, false, stripe);
    }
    hit
}

fn writers_hit_nothing(stripe: u64) {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let _owner = Process::start("owner", &directory.address, false);
    let client = a_client(&directory, false);
    let mut writer = Process::striping("writer", &directory.address, false, stripe);
    for round in 0..rounds() {
        assert!(!writers_round(&directory, &client, &mut writer, round, stripe), "round {round}");
    }
}

#[test]
fn a_writer_that_is_stopped_or_killed_hits_no_page_of_others() {
    writers_hit_nothing(0);
}

#[test]
fn a_writer_of_parts_that_is_stopped_or_killed_hits_no_page_of_others() {
    writers_hit_nothing(1 << 20);
}

#[test]
fn control_an_owner_whose_renewal_ends_nothing_is_hit_by_a_writer() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let _owner = Process::start("owner", &directory.address, true);
    let client = a_client(&directory, false);
    let mut writer = Process::start("writer", &directory.address, false);
    // Those that are only stopped.
    let hit = (0..40).filter(|round| round % 4 != 3).any(|n| writers_round(&directory, &client, &mut writer, n, 0));
    assert!(hit, "the rounds find nothing");
}

/// An owner is stopped, or killed, while it writes what somebody reads; that gives up, and uses its memory for something else; the owner goes on.
/// Whether that was hit by what came late.
fn readers_round(directory: &Directory, reader: &Cluster, owner: &mut Process, round: u64, stripe: u64) -> bool {
    let client = Cluster::open(Config { stripe, ..config(directory, false) }).unwrap();
    let key = format!("v{round}");
    put(&client, &key, &value(1, LARGE));
    let mut room = vec![0u8; LARGE];
    register(reader, &room);
    // Where there is much to do its short time may not be enough for one.
    until_moved(|| reader.moved().0, |n| _ = try_put(reader, &format!("w{round}/{n}"), &value(2, MIB)));
    let killed = round % 4 == 3;
    let begun = Instant::now();
    let got = std::thread::scope(|scope| {
        let get = scope.spawn(|| {
            let slices = slices_mut(&mut room, 10);
            reader.get(&[Item { key: key.as_bytes(), slices: &slices, far: false }]).unwrap().remove(0)
        });
        std::thread::sleep(Duration::from_micros(Random(round).below(12_000)));
        owner.signal(if killed { libc::SIGKILL } else { libc::SIGSTOP });
        get.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_millis(400 + 2_000 + 500), "{:?}", begun.elapsed());
    let was_late = got.result.is_err();
    room.fill(0xa5);
    owner.signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(300));
    let hit = room.iter().any(|byte| *byte != 0xa5);
    reader.unregister(room.as_ptr() as usize).unwrap();
    assert!(was_late || !hit);
    if killed {
        *owner = Process::start("owner", &directory.address, false);
    }
    hit
}

fn reader(directory: &Directory, unfenced: bool) -> Cluster {
    let patience = Duration::from_millis(400);
    Cluster::open(Config { patience, unfenced, ..config(directory, true) }).unwrap()
}

fn owners_hit_nothing(stripe: u64) {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let mut owner = Process::start("owner", &directory.address, false);
    let reader = reader(&directory, false);
    for round in 0..rounds() {
        assert!(!readers_round(&directory, &reader, &mut owner, round, stripe), "round {round}");
    }
}

#[test]
fn an_owner_that_is_stopped_or_killed_hits_no_memory_that_its_reader_has_back() {
    owners_hit_nothing(0);
}

#[test]
fn an_owner_of_parts_that_is_stopped_or_killed_hits_no_memory_that_their_reader_has_back() {
    owners_hit_nothing(1 << 20);
}

#[test]
fn control_a_reader_whose_renewal_ends_nothing_is_hit_by_an_owner() {
    if !is_there() {
        return;
    }
    let directory = Directory::new();
    let mut owner = Process::start("owner", &directory.address, false);
    let reader = reader(&directory, true);
    let hit = (0..40).filter(|round| round % 4 != 3).any(|n| readers_round(&directory, &reader, &mut owner, n, 0));
    assert!(hit, "the rounds find nothing");
}
