//! Area `cluster`: a client, an owner and a master as processes on 127.0.0.1. This process is the client and calls the library
//! through the C ABI; the owner also runs the plain server that is compared with, and another process runs one in the place of
//! the master. What is compared with a bare trip sends as many bytes as the cluster's own messages have.

use super::cluster_frames::{Trips, key};
use super::cluster_library::Client;
use super::cluster_master as master;
use super::cluster_mooncake as mooncake;
use super::cluster_nixl as nixl;
use super::cluster_plain::Line;
use super::cluster_rank::{LISTENS, node_name, program};
use super::cluster_ways as ways;
use super::crowd::{Rank, Scratch};
use super::library::c_api::NMC_OK;
use super::rank::Role;
use super::ssd::{Side, in_turn_for};
use super::ssd_library::Buffers;
use super::store_library::{Part, Shelf, Slices};
use super::store_ops::{BATCH, Pair, SMALL, SMALL_SET};
use super::store_rank::wanted;
use super::{Better, Metric, Run, median, ns_per_call};
use crate::args::Failure;
use crate::facts;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many metrics [`measure`] adds, without those of NIXL and Mooncake.
pub const METRICS: usize = 19;

/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;
/// Keys whose places the client remembers that is to ask for them: fewer than are read in turn.
const FEW: i32 = 256;
/// Small puts, or small calls, of a sample.
pub const EACH: usize = 32;
/// How long the samples of a metric may take: the area ends in time whatever the machine is busy with.
const LIMIT: Duration = Duration::from_secs(12);

/// A size of values.
pub struct Size {
    /// Bytes of each.
    pub bytes: usize,
    /// How many are a sample.
    pub sample: usize,
    /// How many samples.
    pub rounds: usize,
    /// What is measured of reading them.
    pub get: &'static str,
    /// The same of writing.
    pub put: &'static str,
}

/// What is compared with a stream, and how many of each size are read in turn.
const SIZES: [(Size, usize); 3] = [
    (Size { bytes: MIB, sample: 8, rounds: 400, get: "cluster.get.1MiB", put: "cluster.put.1MiB" }, 32),
    (Size { bytes: 8 * MIB, sample: 2, rounds: 200, get: "cluster.get.8MiB", put: "cluster.put.8MiB" }, 8),
    (Size { bytes: 64 * MIB, sample: 1, rounds: 80, get: "cluster.get.64MiB", put: "cluster.put.64MiB" }, 2),
];

/// Families of keys.
pub mod family {
    /// Small values that are read.
    pub const SMALL: u32 = 112;
    /// What is put and removed again.
    pub const PUT: u32 = 113;
    /// What is put and not ended.
    pub const START: u32 = 114;
    /// What is not there.
    pub const ABSENT: u32 = 115;
    /// What a store has that is a node itself.
    pub const LOCAL: u32 = 116;
    /// Large values that are read.
    pub const READ: u32 = 117;
}

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    let mut parts = None;
    run.measure("cluster", |run| {
        let which = match program() {
            Some(_) => "the master is nanomc-master",
            None => {
                "no nanomc-master of this build lies beside nmc: the master is the same directory in a process of nmc"
            }
        };
        run.note("cluster", which);
        parts = Some(Parts::start(if run.is_quick() { 192 } else { 512 } * MIB)?);
        Ok(())
    });
    let Some(mut parts) = parts else { return };
    run.measure("cluster.get.1KiB", |run| small_gets(run, &mut parts));
    run.measure("cluster.put.1KiB", |run| small_puts(run, &mut parts));
    for (size, objects) in &SIZES {
        run.measure(size.get, |run| large(run, &mut parts, size, *objects));
    }
    run.measure("cluster.lookup.batch128", |run| master::lookups(run, &mut parts));
    run.measure("cluster.put_start", |run| master::starts(run, &mut parts));
    run.measure("cluster.local_get, cluster.local_put", |run| local(run, &parts));
    run.measure(ways::STRIPED, |run| ways::striped(run, &parts));
    run.measure(ways::TLS, |run| ways::tls(run, &parts));
    run.measure("cluster.rebuild.1M", |run| master::million(run, &parts));
    run.measure(nixl::NAME, nixl::measure);
    run.measure(mooncake::NAME, |run| mooncake::measure(run, &parts.master.address));
}

pub fn add(
    run: &mut Run,
    name: &'static str,
    unit: &'static str,
    better: Better,
    pair: Pair,
    baseline_name: &'static str,
) {
    run.add(Metric { name, value: pair.0, unit, better, baseline_name, baseline: pair.1 });
}

// ---- processes -------------------------------------------------------------------------------------------------------

/// What a process says in a line.
pub fn line(rank: &mut Rank) -> Result<String, Failure> {
    let mut line = String::new();
    loop {
        match rank.heard()? {
            b'\n' => return Ok(line),
            byte => line.push(byte.into()),
        }
    }
}

fn port(text: &str) -> Result<u16, Failure> {
    let number = text.rsplit(':').next().and_then(|port| port.parse().ok());
    number.ok_or_else(|| Failure::new(format!("{text:?} is no port")))
}

/// A master that runs.
pub struct Directory {
    /// Its process.
    pub rank: Rank,
    /// Where it listens.
    pub address: String,
    /// The port of that.
    pub port: u16,
}

impl Directory {
    /// Starts one that keeps its state in this folder, at a port or any. `members` nodes were there in the term before this one.
    pub fn start(dir: &Path, at: u16, members: usize, term: u64) -> Result<Self, Failure> {
        let members = u32::try_from(members).map_err(|_| Failure::new("too many members"))?;
        let mut rank = Rank::spawn(Role::Directory, dir, at.into(), members, term)?;
        let address = loop {
            if let Some(address) = line(&mut rank)?.strip_prefix(LISTENS) {
                break address.to_owned();
            }
        };
        let port = port(&address)?;
        Ok(Self { rank, address, port })
    }

    /// Bytes of memory that it has.
    pub fn resident(&self) -> Result<f64, Failure> {
        let status = facts::read(format!("/proc/{}/status", self.rank.id()));
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0).ok_or_else(|| Failure::new("the memory of the master is not told"))
    }

    /// Starts a node of it.
    pub fn owner(&self, dir: &Path, number: usize, page_bytes: u32, heap_bytes: usize) -> Result<Rank, Failure> {
        Rank::spawn(Role::Owner, &dir.join(node_name(number)), self.port.into(), page_bytes, heap_bytes as u64)
    }
}

/// The cluster, and what it is compared with. In the order in which they end.
pub struct Parts {
    /// A client that asks where keys are.
    fresh: Client,
    /// One that remembers.
    pub knowing: Client,
    /// To the plain server in the process of the owner.
    stream: Line,
    /// To the one in the place of the master.
    pub trips: Line,
    _owner: Rank,
    _echo: Rank,
    /// The master of both clients.
    pub master: Directory,
    /// A folder for everything.
    pub scratch: Scratch,
}

impl Parts {
    fn start(heap_bytes: usize) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let master = Directory::start(&scratch.path().join("master"), 0, 0, 1)?;
        let mut owner = master.owner(scratch.path(), 0, 16 << 10, heap_bytes)?;
        let mut echo = Rank::spawn(Role::Echo, scratch.path(), 0, 0, MIB as u64)?;
        let stream = Line::connect(port(&line(&mut owner)?)?)?;
        let trips = Line::connect(port(&line(&mut echo)?)?)?;
        let (fresh, knowing) = (Client::open(&master.address, FEW)?, Client::open(&master.address, -1)?);
        Ok(Self { fresh, knowing, stream, trips, _owner: owner, _echo: echo, master, scratch })
    }
}

/// Samples of ours and of the baseline in turn; their medians.
pub fn in_turn(rounds: usize, sample: impl FnMut(Side) -> Result<f64, Failure>) -> Result<Pair, Failure> {
    in_turn_for(LIMIT, rounds, sample)
}

/// Median of the µs that calls take.
pub fn p50(calls: usize, mut call: impl FnMut(usize) -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut samples = Vec::with_capacity(calls);
    for i in 0..calls {
        let start = Instant::now();
        call(i)?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&mut samples))
}

/// How many a second.
pub fn rate(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

// ---- values ----------------------------------------------------------------------------------------------------------

/// Keys of the small values that are read.
pub fn small_keys() -> Slices {
    // Whole batches.
    Slices::keys(family::SMALL, 0..(SMALL_SET.next_multiple_of(BATCH)) as u64)
}

fn small_gets(run: &mut Run, parts: &mut Parts) -> Result<(), Failure> {
    let Parts { fresh, knowing, stream, trips, .. } = parts;
    let (keys, values) = (small_keys(), Slices::values(BATCH, SMALL));
    let bare = Trips::of(&key(keys.all().item(0))?, SMALL as u64)?;
    for part in keys.all().0.chunks(BATCH) {
        fresh.check("nmc_client_put_batch", fresh.put_batch(Part(part), values.all()))?;
    }
    let (mut to, mut at) = (Buffers::new(BATCH, SMALL)?, 0);
    let mut next = |count: usize| {
        let from = at;
        at = (at + count) % keys.all().len();
        from
    };
    let rounds = run.reps(3, 400);
    let asked = in_turn(rounds, |side| match side {
        Side::Ours => p50(EACH, |_| fresh.check("nmc_client_get", fresh.get(keys.all().item(next(1)), to.first()))),
        Side::Plain => p50(EACH, |_| {
            trips.trip(bare.find)?;
            stream.trip(bare.fetch)
        }),
    })?;
    add(run, "cluster.get.1KiB", "µs", Better::Lower, asked, "two bare framed trips, the second with the bytes");
    for key in keys.all().each() {
        knowing.check("nmc_client_get", knowing.get(key, to.first()))?;
    }
    let known = in_turn(rounds, |side| match side {
        Side::Ours => p50(EACH, |_| knowing.check("nmc_client_get", knowing.get(keys.all().item(next(1)), to.first()))),
        Side::Plain => p50(EACH, |_| stream.trip(bare.fetch)),
    })?;
    add(run, "cluster.get_cached.1KiB", "µs", Better::Lower, known, "a bare framed trip with the bytes");
    // From the beginning of a batch on.
    let from = next(0);
    next(keys.all().len() - from);
    let batch = in_turn(run.reps(3, 200), |side| {
        let part = keys.part(next(BATCH), BATCH);
        let start = Instant::now();
        match side {
            Side::Ours => fresh.check("nmc_client_get_batch", fresh.get_batch(part, &mut to))?,
            Side::Plain => {
                let each = |key| fresh.check("nmc_client_get", fresh.get(key, to.first()));
                part.each().try_for_each(each)?;
            }
        }
        Ok(rate(BATCH, start))
    })?;
    add(run, "cluster.get.batch128.1KiB", "keys/s", Better::Higher, batch, "one call a key, same processes");
    Ok(())
}

fn small_puts(run: &mut Run, parts: &mut Parts) -> Result<(), Failure> {
    let Parts { fresh, stream, trips, .. } = parts;
    let (keys, values) = (Slices::keys(family::PUT, 0..BATCH as u64), Slices::values(BATCH, SMALL));
    let (keys, values) = (keys.all(), values.all());
    let bare = Trips::of(&key(keys.item(0))?, SMALL as u64)?;
    let single = in_turn(run.reps(3, 400), |side| match side {
        Side::Ours => {
            let us = p50(EACH, |i| fresh.check("nmc_client_put", fresh.put(keys.item(i), values.item(i))))?;
            fresh.remove(keys.head(EACH))?;
            Ok(us)
        }
        Side::Plain => p50(EACH, |_| {
            trips.trip(bare.start)?;
            stream.trip(bare.put)?;
            trips.trip(bare.end)
        }),
    })?;
    add(run, "cluster.put.1KiB", "µs", Better::Lower, single, "three bare framed trips, the second with the bytes");
    let batch = in_turn(run.reps(3, 120), |side| {
        let start = Instant::now();
        match side {
            Side::Ours => fresh.check("nmc_client_put_batch", fresh.put_batch(keys, values))?,
            Side::Plain => {
                let mut pairs = keys.each().zip(values.each());
                pairs.try_for_each(|(key, value)| fresh.check("nmc_client_put", fresh.put(key, value)))?;
            }
        }
        let found = rate(BATCH, start);
        fresh.remove(keys)?;
        Ok(found)
    })?;
    add(run, "cluster.put.batch128.1KiB", "keys/s", Better::Higher, batch, "one call a key, same processes");
    Ok(())
}

fn large(run: &mut Run, parts: &mut Parts, size: &Size, objects: usize) -> Result<(), Failure> {
    const STREAM: &str = "the same bytes over one TCP connection, same processes";
    let Parts { knowing: client, stream, .. } = parts;
    let (bytes, sample, rounds) = (size.bytes, size.sample, run.reps(2, size.rounds));
    let objects = run.reps(sample, objects);
    let (keys, values) = (Slices::keys(family::READ, 0..objects as u64), Slices::noise(1, bytes));
    let (keys, value) = (keys.all(), values.all().item(0));
    let mut to = (Buffers::new(1, bytes)?, Buffers::new(1, bytes)?);
    let gigabytes = |since: Instant| (sample * bytes) as f64 / since.elapsed().as_secs_f64() / 1e9;
    for key in keys.each() {
        client.check("nmc_client_put", client.put(key, value))?;
    }
    let mut at = (0, 0);
    let read = in_turn(rounds, |side| {
        let start = Instant::now();
        for _ in 0..sample {
            match side {
                Side::Ours => {
                    client.check("nmc_client_get", client.get(keys.item(at.0), to.0.first()))?;
                    at.0 = (at.0 + 1) % objects;
                }
                Side::Plain => {
                    stream.get(at.1 * bytes, to.1.first())?;
                    at.1 = (at.1 + 1) % objects;
                }
            }
        }
        Ok(gigabytes(start))
    })?;
    add(run, size.get, "GB/s", Better::Higher, read, STREAM);
    if to.0.first() != value.bytes() {
        return Err(Failure::new(format!("{} has read other bytes than were put", size.get)));
    }
    client.remove(keys)?;
    let written = Slices::keys(family::PUT, 0..sample as u64);
    let write = in_turn(rounds, |side| {
        let start = Instant::now();
        for (i, key) in written.all().each().enumerate() {
            match side {
                Side::Ours => client.check("nmc_client_put", client.put(key, value))?,
                Side::Plain => stream.put(i * bytes, value.bytes())?,
            }
        }
        let found = gigabytes(start);
        if side == Side::Ours {
            client.remove(written.all())?;
        }
        Ok(found)
    })?;
    add(run, size.put, "GB/s", Better::Higher, write, STREAM);
    Ok(())
}

// ---- on the own node -------------------------------------------------------------------------------------------------

/// A store that is a node against one that is not.
fn local(run: &mut Run, parts: &Parts) -> Result<(), Failure> {
    const ALONE: &str = "a store that is in no cluster, same process";
    let (clustered, alone) = (Shelf::embedded(&wanted(64 << 20))?, Shelf::embedded(&wanted(64 << 20))?);
    let client = Client::open(&parts.master.address, -1)?;
    client.attach("here", &clustered)?;
    let keys = Slices::keys(family::LOCAL, 0..SMALL_SET as u64);
    let values = Slices::values(SMALL_SET, SMALL);
    let (keys, values) = (keys.all(), values.all());
    for shelf in [&clustered, &alone] {
        shelf.fill(keys, SMALL)?;
    }
    client.sync()?;
    let shelf = |side| if side == Side::Ours { &clustered } else { &alone };
    let mut to = vec![0; SMALL];
    let get = in_turn(run.reps(3, 400), |side| {
        let (shelf, mut wrong) = (shelf(side), NMC_OK);
        let ns = ns_per_call(SMALL_SET, |i| wrong |= shelf.get(keys.item(i), &mut to));
        shelf.check("nmc_store_get", wrong)?;
        Ok(ns)
    })?;
    add(run, "cluster.local_get", "ns", Better::Lower, get, ALONE);
    for shelf in [&clustered, &alone] {
        shelf.remove(keys)?;
    }
    let put = in_turn(run.reps(3, 400), |side| {
        client.sync()?;
        let (shelf, mut wrong) = (shelf(side), NMC_OK);
        let ns = ns_per_call(BATCH, |i| wrong |= shelf.put(keys.item(i), values.item(i)));
        shelf.check("nmc_store_put", wrong)?;
        shelf.remove(keys.head(BATCH))?;
        Ok(ns / 1e3)
    })?;
    add(run, "cluster.local_put", "µs", Better::Lower, put, ALONE);
    drop(client);
    clustered.close()?;
    alone.close()
}
