//! What NIXL moves for a cluster, against NIXL alone: the same bytes, written from registered memory of one process to that of another, with nobody who
//! asks where to, looks at them or is told. Here the parts are called from Rust, since they tell how much NIXL has moved. Where NIXL is not installed (`make cluster-deps`, `NMC_NIXL`) the metrics are left out.
#![allow(unsafe_code, reason = "gives NIXL memory by address")]

use super::cluster::{Directory, MIB, Size, add, in_turn, line};
use super::cluster_rank::{say, wire};
use super::crowd::{Rank, Scratch};
use super::rank::{self, Role};
use super::ssd::Side;
use super::store_library::Slices;
use super::{Better, Run};
use crate::args::Failure;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::Span;
use nanomc::cluster::nixl::sys::{Library, Medium};
use nanomc::cluster::nixl::{How, Mover, News, Settings, Write};
use nanomc::cluster::wire::{Extent, Frame, HEAD, Head, Message};
use nanomc::store::copy::Slice;
use nanomc::store::{self, Store};
use nanomc::world;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What [`measure`] is called.
pub const NAME: &str = "cluster.nixl";

const ALONE: &str = "the same bytes, written by NIXL alone";
/// Number of the memory of a mover.
const REGION: u32 = 1;
/// How long NIXL may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the largest value.
const MOST: usize = 64 * MIB;

const SIZES: [Size; 3] = [
    Size { bytes: MIB, sample: 8, rounds: 100, get: "cluster.nixl.get.1MiB", put: "cluster.nixl.put.1MiB" },
    Size { bytes: 8 * MIB, sample: 2, rounds: 60, get: "cluster.nixl.get.8MiB", put: "cluster.nixl.put.8MiB" },
    Size { bytes: 64 * MIB, sample: 1, rounds: 30, get: "cluster.nixl.get.64MiB", put: "cluster.nixl.put.64MiB" },
];

/// A mover, and its memory.
struct Alone {
    mover: Mover,
    news: Receiver<News>,
    memory: Vec<u8>,
}

impl Alone {
    fn start(bytes: usize) -> Result<Self, Failure> {
        let (tell, news) = channel();
        let settings = Settings { loopback: true, devices: String::new(), drain: PATIENCE, unfenced: false };
        let mover = Mover::start(settings, move |news| _ = tell.send(news))?;
        let mut memory = vec![1u8; bytes];
        // SAFETY: the memory stays as long as the mover.
        let all = unsafe { Span::new(memory.as_mut_ptr() as usize, bytes) };
        mover.register(REGION, all, Medium::Host)?;
        Ok(Self { mover, news, memory })
    }

    fn wait<R>(&self, which: impl Fn(News) -> Option<R>) -> Result<R, Failure> {
        loop {
            let news = self.news.recv_timeout(PATIENCE).map_err(|_| Failure::new("NIXL does not answer"))?;
            if let Some(found) = which(news) {
                return Ok(found);
            }
        }
    }

    /// So many bytes to the memory of another.
    fn write(&mut self, to: u64, ticket: u64, bytes: usize) -> Result<(), Failure> {
        // SAFETY: the same memory, and this waits until they are there.
        let from = vec![unsafe { Span::new(self.memory.as_mut_ptr() as usize, bytes) }];
        let into = vec![Extent { region: REGION, offset: 0, length: bytes as u64 }];
        self.mover.write(Write { ticket, from, stage: None, to, into });
        let how = self.wait(|news| match news {
            News::Moved(of, how) if of == ticket => Some(how),
            _ => None,
        })?;
        if how == How::Whole { Ok(()) } else { Err(Failure::new("NIXL has not moved it")) }
    }
}

/// Where a node's process leaves how its mover is reached.
fn card(dir: &Path) -> PathBuf {
    dir.join("mover")
}

fn open(master: &str) -> Result<Cluster, Failure> {
    let masters = vec![master.to_owned()];
    Ok(Cluster::open(Config { masters, rdma: true, patience: PATIENCE, ..Config::default() })?)
}

/// A node of a cluster, and memory that NIXL writes to for nobody. To each line it says how much its node has written by NIXL.
pub fn owner(dir: &Path, master_port: u32, heap_bytes: u64) -> Result<(), Failure> {
    let world = world::Config { dir: None, rank: None, ..rank::config(dir, 0, 1, heap_bytes) };
    let store = Store::embedded(&world, &store::Config { page_bytes: 16 << 10, ..store::Config::default() })?;
    let cluster = open(&format!("127.0.0.1:{master_port}"))?;
    cluster.mount(&store, None, false)?;
    let alone = Alone::start(MOST)?;
    let current = alone.mover.current().ok_or_else(|| Failure::new("NIXL is not there any more"))?;
    let mut said = Vec::new();
    Frame { request: 1, time_left_ms: 0, message: current.said.clone().into() }.encode(&mut said)?;
    std::fs::write(card(dir), said).map_err(|e| Failure::os("a mover", &e))?;
    let mut wire = wire()?;
    say(&mut wire, "")?;
    while wire.line().map_err(|e| Failure::os("a process of a cluster", &e))?.is_some() {
        say(&mut wire, &cluster.moved().1.to_string())?;
    }
    Ok(())
}

/// Gets to know the mover of another process; its name.
fn meet(alone: &Alone, dir: &Path) -> Result<u64, Failure> {
    let bytes = std::fs::read(card(dir)).map_err(|e| Failure::os("a mover", &e))?;
    let head = bytes.first_chunk::<HEAD>().ok_or_else(|| Failure::new("that is no frame"))?;
    let Message::Mover(other) = Frame::decode(&Head::decode(head)?, &bytes[HEAD..])?.message else {
        return Err(Failure::new("that is no mover"));
    };
    let id = other.id;
    alone.mover.meet(other);
    let good = alone.wait(|news| match news {
        News::Met(of, good) if of == id => Some(good),
        _ => None,
    })?;
    if good { Ok(id) } else { Err(Failure::new("NIXL does not reach the other process")) }
}

fn put(client: &Cluster, key: &[u8], value: &[u8]) -> Result<(), Failure> {
    // SAFETY: borrowed until the call has ended.
    let slices = [unsafe { Slice::new(value.as_ptr() as u64, value.len() as u64) }];
    client.put(&[Item::new(key, &slices)], &PutOptions::default())?.remove(0)?;
    Ok(())
}

fn get(client: &Cluster, key: &[u8], to: &mut [u8]) -> Result<(), Failure> {
    // SAFETY: as above.
    let slices = [unsafe { Slice::new(to.as_mut_ptr() as u64, to.len() as u64) }];
    client.get(&[Item::new(key, &slices)])?.remove(0).result?;
    Ok(())
}

/// Adds the metrics, if NIXL is there.
pub fn measure(run: &mut Run) -> Result<(), Failure> {
    if run.is_quick() {
        run.skip(NAME, "skipped: quick run");
        return Ok(());
    }
    if Library::get().is_err() {
        run.skip(NAME, "NIXL is not installed: make cluster-deps, and NMC_NIXL as it says");
        return Ok(());
    }
    let scratch = Scratch::new()?;
    let master = Directory::start(&scratch.path().join("master"), 0, 0, 1)?;
    let mut owner = Rank::spawn(Role::Mover, scratch.path(), master.port.into(), 0, 4 * MOST as u64)?;
    line(&mut owner)?;
    let mut alone = Alone::start(MOST)?;
    let to = meet(&alone, scratch.path())?;
    let client = open(&master.address)?;
    let (values, mut room) = (Slices::noise(1, MOST), vec![0u8; MOST]);
    let first = values.all().item(0);
    let noise = first.bytes();
    for memory in [noise, &room] {
        // SAFETY: both stay as long as values are put and read.
        unsafe { client.register(memory.as_ptr() as usize, memory.len()) }?;
    }
    let mut moved = |client: &Cluster| -> Result<(u64, u64), Failure> {
        owner.tell(b"\n")?;
        let theirs = line(&mut owner)?.parse().map_err(|_| Failure::new("that is no number"))?;
        Ok((client.moved().0, theirs))
    };
    // The first bytes go by TCP, until both have met.
    let since = Instant::now();
    loop {
        put(&client, b"first", &noise[..MIB])?;
        get(&client, b"first", &mut room[..MIB])?;
        client.remove(b"first", true)?;
        let (written, read) = moved(&client)?;
        if written > 0 && read > 0 {
            break;
        }
        if since.elapsed() > PATIENCE {
            return Err(Failure::new("NIXL moves nothing between a client and a node"));
        }
    }
    let mut tickets = 0;
    for size in &SIZES {
        let (bytes, sample, rounds) = (size.bytes, size.sample, run.reps(2, size.rounds));
        let keys: Vec<String> = (0..sample).map(|number| format!("{bytes}.{number}")).collect();
        let value = &noise[..bytes];
        let gigabytes = |since: Instant| (sample * bytes) as f64 / since.elapsed().as_secs_f64() / 1e9;
        let mut bare = |alone: &mut Alone| {
            tickets += 1;
            alone.write(to, tickets, bytes)
        };
        let remove = || keys.iter().try_for_each(|key| client.remove(key.as_bytes(), true).map(drop));
        let (before, mut calls) = (moved(&client)?, (0, 0));
        let write = in_turn(rounds, |side| {
            let start = Instant::now();
            for key in &keys {
                match side {
                    Side::Ours => put(&client, key.as_bytes(), value)?,
                    Side::Plain => bare(&mut alone)?,
                }
            }
            let found = gigabytes(start);
            if side == Side::Ours {
                calls.0 += sample;
                remove()?;
            }
            Ok(found)
        })?;
        keys.iter().try_for_each(|key| put(&client, key.as_bytes(), value))?;
        let read = in_turn(rounds, |side| {
            let start = Instant::now();
            for key in &keys {
                match side {
                    Side::Ours => get(&client, key.as_bytes(), &mut room[..bytes])?,
                    Side::Plain => bare(&mut alone)?,
                }
            }
            if side == Side::Ours {
                calls.1 += sample;
            }
            Ok(gigabytes(start))
        })?;
        if room[..bytes] != *value {
            return Err(Failure::new(format!("{} has read other bytes than were put", size.get)));
        }
        remove()?;
        let after = moved(&client)?;
        for (more, calls, name) in [(after.0 - before.0, calls.0, size.put), (after.1 - before.1, calls.1, size.get)] {
            // The values that are read were put as well.
            if more < (calls * bytes) as u64 {
                return Err(Failure::new(format!("{name}: not all bytes were moved by NIXL")));
            }
        }
        add(run, size.get, "GB/s", Better::Higher, read, ALONE);
        add(run, size.put, "GB/s", Better::Higher, write, ALONE);
    }
    Ok(())
}
