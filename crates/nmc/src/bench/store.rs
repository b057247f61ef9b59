//! Area `store`: objects in the heaps of a world. This process is rank 0: it owns the heap and runs the master; readers
//! and writers are processes of their own, or this one with a store of its own. Everything goes through the C ABI.

use super::crowd::{Rank, Scratch};
use super::rank::Role;
use super::store_library::{Shelf, Slices, Wanted};
use super::store_ops::{self as ops, Pair, PlainMap};
use super::store_rank::{ECHO, family, read_keys, wanted};
use super::{Better, Metric, Run, median, mooncake};
use crate::args::Failure;
use crate::facts;
use crate::sys::Cpus;
use std::time::Instant;

/// How many metrics [`measure`] adds, without those of Mooncake.
pub const METRICS: usize = 22;

/// Sizes of values that are read, with the names of the warm and the cold metric.
const READS: [(usize, &str, &str); 4] = [
    (64 << 10, "store.get_into.64KiB", "store.get_into.cold.64KiB"),
    (256 << 10, "store.get_into.256KiB", "store.get_into.cold.256KiB"),
    (1 << 20, "store.get_into.1MiB", "store.get_into.cold.1MiB"),
    (8 << 20, "store.get_into.8MiB", "store.get_into.cold.8MiB"),
];
const HEAP_BYTES: u64 = 128 << 20;
const MEMCPY: &str = "memcpy from the same mapping, same objects in turn";
/// Objects of the large store.
const MILLION: usize = 1_000_000;
/// The most that the design allows, all included.
const METADATA_BAR: f64 = 320.0;

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    run.measure("store.get_into, store.get, store.put from another process", between);
    run.measure("store.get_into.cold", cold);
    run.measure("store.put in this process", within);
    run.measure("store.churn", churn);
    run.measure("store.lookup.1M", million);
    run.measure("store.vs_mooncake", mooncake::measure);
}

fn add(run: &mut Run, name: &'static str, unit: &'static str, better: Better, pair: Pair, baseline_name: &'static str) {
    run.add(Metric { name, value: pair.0, unit, better, baseline_name, baseline: pair.1 });
}

/// Calls a second instead of ns a call.
fn rate((ours, plain): Pair) -> Pair {
    (1e9 / ours, 1e9 / plain)
}

/// Bytes that programs can still get.
pub fn available_bytes() -> u64 {
    let info = facts::read("/proc/meminfo");
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kb| kb * 1024)
}

/// Bytes of the last-level cache.
fn cache_bytes() -> u64 {
    let size = facts::read("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let number = |unit: char| size.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
    number('K').map(|k| k << 10).or(number('M').map(|m| m << 20)).unwrap_or(32 << 20)
}

/// This process and `others` more, clients of one store.
struct Crew {
    shelf: Shelf,
    others: Vec<Rank>,
    _scratch: Scratch,
}

impl Crew {
    fn form(others: u32, heap_bytes: u64) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let size = others + 1;
        let spawn = |number| Rank::spawn(Role::Store, scratch.path(), number, size, heap_bytes);
        let mut others = (1..size).map(spawn).collect::<Result<Vec<_>, _>>()?;
        let shelf = Shelf::join(scratch.path(), 0, size, &wanted(heap_bytes))?;
        for other in &mut others {
            other.heard()?;
        }
        Ok(Self { shelf, others, _scratch: scratch })
    }

    fn tell(&mut self, other: usize, order: &str) -> Result<(), Failure> {
        self.others[other].tell(format!("{order}\n").as_bytes())
    }

    /// The figures of an order, giving echoes meanwhile.
    fn answer(&mut self, other: usize) -> Result<Vec<Pair>, Failure> {
        let other = &mut self.others[other];
        let mut line = String::new();
        loop {
            match other.heard()? {
                ECHO => other.tell(&[ECHO])?,
                b'\n' => break,
                byte => line.push(byte.into()),
            }
        }
        let figures: Vec<f64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        Ok(figures.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    fn ask<const N: usize>(&mut self, order: &str) -> Result<[Pair; N], Failure> {
        self.tell(0, order)?;
        let answer = self.answer(0)?;
        answer.try_into().map_err(|_| Failure::new(format!("{order:?} was not answered with {N} figures")))
    }

    fn part(mut self) -> Result<(), Failure> {
        self.others.iter_mut().for_each(Rank::dismiss);
        self.others.into_iter().try_for_each(Rank::finish)?;
        self.shelf.close()
    }
}

fn between(run: &mut Run) -> Result<(), Failure> {
    let mut crew = Crew::form(2, HEAP_BYTES)?;
    for (bytes, name, _) in READS {
        // A few MiB of the smaller ones, and enough of the large ones that they are not just one.
        let objects = ((1 << 20) / bytes).max(4);
        crew.shelf.fill(read_keys(bytes, objects).all(), bytes)?;
        let [pair] = crew.ask(&format!("read {bytes} {objects} {objects} {}", run.reps(20, 400)))?;
        add(run, name, "GB/s", Better::Higher, pair, MEMCPY);
        crew.shelf.remove(read_keys(bytes, objects).all())?;
    }
    let small = Slices::keys(family::SMALL, 0..ops::SMALL_SET as u64);
    crew.shelf.fill(small.all(), ops::SMALL)?;
    let [pin, get, exists] = crew.ask(&format!("small {}", run.reps(20, 1000)))?;
    add(
        run,
        "store.pin_unpin",
        "ns",
        Better::Lower,
        pin,
        "Mutex<HashMap<key, Arc>> lookup, clone and drop, one process",
    );
    add(run, "store.get.1KiB", "ops/s", Better::Higher, rate(get), "the same map, and memcpy out of the Arc");
    add(run, "store.exists", "ops/s", Better::Higher, rate(exists), "the same map, lookup alone");
    readers(run, &mut crew)?;
    let [put] = crew.ask(&format!("put {}", run.reps(5, 50)))?;
    add(
        run,
        "store.put.1KiB.remote",
        "µs",
        Better::Lower,
        put,
        "one byte there and back through pipes, same processes",
    );
    let [batch] = crew.ask(&format!("batch {}", run.reps(5, 100)))?;
    add(run, "store.put.1KiB.batch128", "keys/s", Better::Higher, batch, "one call a key, same processes");
    let [large] = crew.ask(&format!("large {}", run.reps(5, 100)))?;
    add(run, "store.put.1MiB.remote", "GB/s", Better::Higher, large, "memcpy into the same pages, same values in turn");
    crew.part()
}

/// Two readers at once against one alone, each on a CPU of its own.
fn readers(run: &mut Run, crew: &mut Crew) -> Result<(), Failure> {
    let cpus = Cpus::current().map_err(|e| Failure::os("asking for the CPUs", &e))?;
    if let [first, second, ..] = cpus.numbers()[..] {
        for (other, cpu) in [first, second].into_iter().enumerate() {
            crew.tell(other, &format!("bind {cpu}"))?;
            crew.answer(other)?;
        }
    }
    let (mut both, mut alone) = (Vec::new(), Vec::new());
    let order = format!("rate {}", run.reps(10, 60));
    for round in 0..run.reps(3, 31) {
        crew.tell(0, &order)?;
        crew.tell(1, &order)?;
        let sum = (0..2).map(|other| crew.answer(other)).collect::<Result<Vec<_>, _>>()?;
        let one = round % 2;
        crew.tell(one, &order)?;
        let single = crew.answer(one)?;
        if round > 0 {
            both.push(sum.iter().flatten().map(|pair| pair.0).sum());
            alone.extend(single.iter().map(|pair| pair.0));
        }
    }
    let pair = (median(&mut both), median(&mut alone));
    add(run, "store.readers_x2", "ops/s", Better::Higher, pair, "one reader process alone, 1 KiB gets");
    for other in 0..2 {
        crew.tell(other, "free")?;
        crew.answer(other)?;
    }
    Ok(())
}

/// Values that no cache holds: the working set is half as large again as the last-level cache.
fn cold(run: &mut Run) -> Result<(), Failure> {
    let set = if run.is_quick() { 32 << 20 } else { (cache_bytes() * 3 / 2).clamp(64 << 20, 1 << 30) };
    let heap = (set + set / 8).next_multiple_of(16 << 20);
    if available_bytes() < 3 * heap {
        READS.iter().for_each(|(_, _, name)| run.skip(name, "skipped: not enough memory"));
        return Ok(());
    }
    let mut crew = Crew::form(1, heap)?;
    let set = usize::try_from(set).map_err(|_| Failure::new("the cache is too large"))?;
    for (bytes, _, name) in READS {
        let objects = set / bytes;
        let block = ((8 << 20) / bytes).max(1);
        // Each kind reads every other block: twice round, and once more if the number of blocks is even.
        let blocks = 2 * objects.div_ceil(block);
        crew.shelf.fill(read_keys(bytes, objects).all(), bytes)?;
        let [pair] = crew.ask(&format!("read {bytes} {objects} {block} {blocks}"))?;
        add(run, name, "GB/s", Better::Higher, pair, MEMCPY);
        for part in (0..objects).step_by(256) {
            crew.shelf.remove(read_keys(bytes, objects).part(part, 256.min(objects - part)))?;
        }
    }
    crew.part()
}

fn within(run: &mut Run) -> Result<(), Failure> {
    let shelf = Shelf::embedded(&wanted(HEAP_BYTES))?;
    let map = PlainMap::new();
    let mut here = 0;
    let put = ops::small_puts(&shelf, family::PUT, run.reps(5, 200), |key, value| {
        let start = Instant::now();
        map.put(key, value);
        let us = start.elapsed().as_secs_f64() * 1e6;
        here += 1;
        if here % 1000 == 0 {
            map.clear();
        }
        Ok(us)
    })?;
    add(run, "store.put.1KiB.inproc", "µs", Better::Lower, put, "Mutex<HashMap<key, Arc>>: allocate, memcpy, insert");
    let large = ops::write_values(&shelf, family::LARGE, run.reps(5, 100))?;
    add(run, "store.put.1MiB", "GB/s", Better::Higher, large, "memcpy into the same pages, same values in turn");
    shelf.close()
}

fn churn(run: &mut Run) -> Result<(), Failure> {
    let heap_bytes = 64 << 20;
    let (full, empty) = (Shelf::embedded(&wanted(heap_bytes))?, Shelf::embedded(&wanted(heap_bytes))?);
    let capacity = usize::try_from(heap_bytes / 4096).unwrap_or(0);
    let found = ops::churn(&full, &empty, family::CHURN, capacity, run.reps(2, 40))?;
    add(run, "store.churn", "puts/s", Better::Higher, found.rate, "puts on an empty heap");
    add(run, "store.churn.p999", "µs", Better::Lower, found.p999, "p99.9 on an empty heap");
    full.close()?;
    empty.close()
}

fn million(run: &mut Run) -> Result<(), Failure> {
    const NAMES: [&str; 3] = ["store.lookup.1M", "store.lookup.1M.batch128", "store.bytes_per_object"];
    let heap_bytes = 4u64 << 30;
    let why = if run.is_quick() {
        "skipped: quick run"
    } else if available_bytes() < heap_bytes + (1 << 30) {
        "skipped: not enough memory"
    } else {
        ""
    };
    if !why.is_empty() {
        NAMES.into_iter().for_each(|name| run.skip(name, why));
        return Ok(());
    }
    let max_objects = u32::try_from(MILLION).unwrap_or(0);
    let large = Shelf::embedded(&Wanted { heap_bytes, page_bytes: 4096, max_objects, brim: true })?;
    let small = Shelf::embedded(&wanted(8 << 20))?;
    large.fill(Slices::keys(family::SMALL, 0..MILLION as u64).all(), 64)?;
    small.fill(Slices::keys(family::SMALL, 0..ops::SMALL_SET as u64).all(), 64)?;
    let [alone, batched] = ops::lookups((&large, MILLION), &small, family::SMALL, 21)?;
    add(run, NAMES[0], "ns", Better::Lower, alone, "the same with 1,000 objects");
    add(run, NAMES[1], "ns", Better::Lower, batched, "the same with 1,000 objects");
    let (shared, master) = large.metadata_bytes()?;
    let each = (shared + master) as f64 / MILLION as f64;
    add(run, NAMES[2], "bytes", Better::Lower, (each, METADATA_BAR), "the most that the design allows");
    large.close()?;
    small.close()
}
