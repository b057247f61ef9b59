//! What the master of a cluster costs: lookups and beginnings of puts by its own protocol over a plain socket, and a million objects, of
//! which a new master is told by the stores that have them.

use super::cluster::{Directory, EACH, MIB, Parts, add, family, in_turn, line, p50, rate, small_keys};
use super::cluster_frames::{Frames, Trips, key, put_start, request};
use super::cluster_plain::Trip;
use super::cluster_rank::FILLED;
use super::library::c_api::{NMC_ERR_NOT_FOUND, NMC_OK, nmc_status_t};
use super::ssd::Side;
use super::store::available_bytes;
use super::store_library::{Part, Slices};
use super::store_ops::{BATCH, SMALL};
use super::{Better, Run, median};
use crate::args::Failure;
use nanomc::cluster::wire::{Find, Message};
use std::time::{Duration, Instant};

/// Calls to a master that are under way together.
const PIPELINED: usize = 128;
/// What has no other baseline than what the design allows.
const BAR: &str = "the bar";
const BYTES_BAR: f64 = 400.0;
const REBUILD_BAR_S: f64 = 5.0;
/// Nodes that tell a master of a million objects.
const NODES: usize = 4;
const MILLION: u64 = 1_000_000;
/// How long a new master may take.
const REBUILD_LIMIT: Duration = Duration::from_secs(120);

/// Requests for batches of these keys, and what is asked for in turn.
struct Lookups {
    frames: Frames,
    requests: Vec<Vec<u8>>,
    at: usize,
}

impl Lookups {
    fn new(address: &str, keys: Part<'_>) -> Result<Self, Failure> {
        let batch = |part| -> Result<Vec<u8>, Failure> {
            let keys = Part(part).each().map(key).collect::<Result<Vec<_>, _>>()?;
            request(Find { keys, missed: Vec::new() })
        };
        let requests = keys.0.chunks_exact(BATCH).map(batch).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { frames: Frames::connect(address)?, requests, at: 0 })
    }

    /// Looks a batch up.
    fn next(&mut self) -> Result<(), Failure> {
        self.at = (self.at + 1) % self.requests.len();
        self.frames.ask(&self.requests[self.at], 1)
    }

    /// Whether all keys of the last batch were found.
    fn check(&self) -> Result<(), Failure> {
        match self.frames.answers()?.pop() {
            Some(Message::Found(found)) if found.keys.iter().all(|listed| listed.status == NMC_OK) => Ok(()),
            answer => Err(Failure::new(format!("not all keys are found: {answer:?}"))),
        }
    }

    fn sample(&mut self) -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..EACH {
            self.next()?;
        }
        let found = rate(EACH * BATCH, start);
        self.check()?;
        Ok(found)
    }
}

/// Lookups of 128 keys at a time.
pub fn lookups(run: &mut Run, parts: &mut Parts) -> Result<(), Failure> {
    const NAME: &str = "cluster.lookup.batch128";
    let keys = small_keys();
    let mut lookups = Lookups::new(&parts.master.address, keys.all())?;
    lookups.next()?;
    let bare = Trip { request: lookups.requests[0].len(), answer: lookups.frames.came() };
    let rounds = run.reps(3, 200);
    let pair = in_turn(rounds, |side| {
        let start = Instant::now();
        match side {
            Side::Ours => return lookups.sample(),
            Side::Plain => (0..EACH).try_for_each(|_| parts.trips.trip(bare))?,
        }
        Ok(rate(EACH * BATCH, start))
    })?;
    add(run, NAME, "keys/s", Better::Higher, pair, "a bare framed trip of the same bytes");
    let (mut found, mut at, mut called) = ([0 as nmc_status_t; BATCH], 0, Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        if !parts.knowing.exist(keys.part(at, BATCH), &mut found) {
            return Err(Failure::new("nmc_client_exists_batch does not find all keys"));
        }
        called.push(rate(BATCH, start));
        at = (at + BATCH) % keys.all().len();
    }
    run.note(NAME, format!("frames on a socket; by nmc_client_exists_batch {:.0} keys/s", median(&mut called)));
    Ok(())
}

/// Puts that begin.
pub fn starts(run: &mut Run, parts: &mut Parts) -> Result<(), Failure> {
    let mut frames = Frames::connect(&parts.master.address)?;
    let bare = Trips::of(&key(Slices::keys(family::START, 0..1).all().item(0))?, SMALL as u64)?;
    let mut first = 0;
    // None of them is ended: the master forgets them.
    let mut requests = |count: usize| {
        let keys = Slices::keys(family::START, first..first + count as u64);
        first += count as u64;
        let each = keys.all().each().map(|item| request(put_start(key(item)?, SMALL as u64)));
        each.collect::<Result<Vec<_>, Failure>>()
    };
    let check = |frames: &Frames| {
        let good = |answer: &Message| matches!(answer, Message::PutPlaces(places) if places.status == NMC_OK);
        match frames.answers()?.iter().find(|answer| !good(answer)) {
            Some(answer) => Err(Failure::new(format!("a put may not begin: {answer:?}"))),
            None => Ok(()),
        }
    };
    let single = in_turn(run.reps(3, 200), |side| match side {
        Side::Ours => {
            let requests = requests(EACH)?;
            let us = p50(EACH, |i| frames.ask(&requests[i], 1))?;
            check(&frames)?;
            Ok(us)
        }
        Side::Plain => p50(EACH, |_| parts.trips.trip(bare.start)),
    })?;
    add(run, "cluster.put_start", "µs", Better::Lower, single, "a bare framed trip of the same bytes");
    let pipelined = in_turn(run.reps(3, 100), |side| {
        let requests = requests(PIPELINED)?;
        let together = requests.concat();
        let start = Instant::now();
        match side {
            Side::Ours => frames.ask(&together, PIPELINED)?,
            Side::Plain => requests.iter().try_for_each(|request| frames.ask(request, 1))?,
        }
        let found = rate(PIPELINED, start);
        check(&frames)?;
        Ok(found)
    })?;
    add(run, "cluster.put_start.pipelined", "ops/s", Better::Higher, pipelined, "one after the other, same connection");
    Ok(())
}

/// A million objects of four nodes: what they take at the master, how fast they are found, and how long a new master takes to be told.
pub fn million(run: &mut Run, parts: &Parts) -> Result<(), Failure> {
    const NAMES: [&str; 3] = ["cluster.bytes_per_object", "cluster.lookup.1M", "cluster.rebuild.1M"];
    let each = if run.is_quick() { 500 } else { MILLION / NODES as u64 };
    let heap_bytes = usize::try_from(each * 4096).map_err(|_| Failure::new("a heap that does not fit"))?;
    let heap_bytes = (heap_bytes + heap_bytes / 16).next_multiple_of(4 * MIB);
    if available_bytes() < (NODES * heap_bytes) as u64 + (2 << 30) && !run.is_quick() {
        NAMES.into_iter().for_each(|name| run.skip(name, "skipped: not enough memory"));
        return Ok(());
    }
    let dir = parts.scratch.path().join("million");
    let mut master = Directory::start(&dir, 0, 0, 1)?;
    let before = master.resident()?;
    let started = (0..NODES).map(|number| master.owner(parts.scratch.path(), number, 4096, heap_bytes));
    let mut owners = started.collect::<Result<Vec<_>, _>>()?;
    for owner in &mut owners {
        line(owner)?;
    }
    for (first, owner) in (0..).step_by(usize::try_from(each).unwrap_or(1)).zip(&mut owners) {
        owner.tell(format!("{first} {each} 64\n").as_bytes())?;
    }
    for owner in &mut owners {
        line(owner)?;
    }
    let objects = each * NODES as u64;
    if run.is_quick() {
        NAMES.into_iter().take(2).for_each(|name| run.skip(name, "skipped: quick run"));
    } else {
        let bytes = (master.resident()? - before) / objects as f64;
        add(run, NAMES[0], "bytes", Better::Lower, (bytes, BYTES_BAR), "the most that the design allows");
        // All over the directory, and in it only once.
        let spread = Slices::keys(FILLED, (0..objects).step_by(97));
        let (mut many, few) = (Lookups::new(&master.address, spread.all())?, small_keys());
        let mut few = Lookups::new(&parts.master.address, few.all())?;
        let pair = in_turn(run.reps(3, 100), |side| match side {
            Side::Ours => many.sample(),
            Side::Plain => few.sample(),
        })?;
        add(run, NAMES[1], "keys/s", Better::Higher, pair, "the same with 1,000 objects");
    }
    master.rank.kill()?;
    master.rank.reap()?;
    let start = Instant::now();
    let master = Directory::start(&dir, master.port, NODES, 2)?;
    let mut frames = Frames::connect(&master.address)?;
    let absent = key(Slices::keys(family::ABSENT, 0..1).all().item(0))?;
    // What is unknown does not exist, once all have told.
    while frames.find(vec![absent.clone()])?.first().is_none_or(|listed| listed.status != NMC_ERR_NOT_FOUND) {
        if start.elapsed() > REBUILD_LIMIT {
            return Err(Failure::new(format!("the directory is not settled after {REBUILD_LIMIT:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let seconds = start.elapsed().as_secs_f64();
    let all = Slices::keys(FILLED, (0..objects).step_by(if run.is_quick() { 1 } else { 97 }));
    let mut lookups = Lookups::new(&master.address, all.all())?;
    for _ in 0..lookups.requests.len() {
        lookups.next()?;
        lookups.check()?;
    }
    add(run, NAMES[2], "s", Better::Lower, (seconds, REBUILD_BAR_S), BAR);
    run.note(NAMES[2], format!("{objects} objects of {NODES} stores, from the start of the new master's process on"));
    Ok(())
}
