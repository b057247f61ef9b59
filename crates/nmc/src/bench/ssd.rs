//! Area `ssd`: what a store does with its SSD tier, against the bare disk. The store is this process's own, and everything goes
//! through the C ABI. Files lie below `NMC_BENCH_DIR`, or the folder for temporary files; nothing is left of them.
//!
//! A virtual disk gives half of its speed in one second and all of it in the next. So samples are short, ours and the
//! baseline's in turn, each as often first as second, and both read the same values, half a round apart.

use super::crowd::Scratch;
use super::library::c_api::{NMC_ERR_NOT_FOUND, NMC_OK};
use super::ssd_kv::{BLOCK_BYTES, Cache};
use super::ssd_library::{Buffers, Drive};
use super::ssd_mooncake::Mooncake;
use super::ssd_raw::{self as raw, FileSystem, Files, Place};
use super::store::available_bytes;
use super::store_library::{Part, Shelf, Slices, Wanted};
use super::store_ops::{Pair, SMALL, SMALL_SET};
use super::store_rank::wanted;
use super::{Better, Metric, Run, median, ns_per_call, percentile};
use crate::args::Failure;
use crate::facts;
use io_uring::IoUring;
use nanomc::tier::format::{BLOCK, GRANULE, bucket_name};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many metrics [`measure`] adds, without that of Mooncake.
pub const METRICS: usize = NAMES.len() - 1;
const NAMES: [&str; 18] = [
    "ssd.get.256KiB",
    "ssd.get.batch16.256KiB",
    "ssd.get.1MiB",
    "ssd.get.batch16.1MiB",
    "ssd.cpu",
    "ssd.get.8MiB",
    "ssd.get.batch16.8MiB",
    "ssd.kv_onboard",
    "ssd.kv_onboard.by_layer",
    "ssd.offload",
    "ssd.recover.100k",
    "ssd.recover.1M",
    "ssd.bytes_per_object",
    "ssd.miss",
    "ssd.get_beside_offload",
    "ssd.get_beside_offload.p99",
    "ssd.put_under_pressure",
    MOONCAKE,
];
const MOONCAKE: &str = "ssd.vs_mooncake.get.1MiB";

const MIB: usize = 1 << 20;
/// Values of a batch.
const BATCH: usize = 16;
const RING: u32 = 16;
/// What has to be free: the largest that is on disk at a time is a million blocks of 4 KiB.
const ROOM: u64 = 8 << 30;
/// Bytes that the plain loop writes at a time, and the library.
const PIECE: usize = 4 * MIB;
/// Bytes of a value of which there are many.
const TINY: usize = 16;
/// How many of them are in memory before they go to disk.
const TINY_AT_ONCE: usize = 40_000;
/// What has no other baseline than what the design allows.
const BAR: &str = "the bar";
const RECOVER: [(&str, usize, f64); 2] = [("ssd.recover.100k", 100_000, 0.5), ("ssd.recover.1M", 1_000_000, 3.0)];
const BYTES_BAR: f64 = 100.0;
const MISS_BAR_NS: f64 = 400.0;

/// A size of values that are read.
struct Size {
    bytes: usize,
    /// How many there are, a multiple of [`BATCH`].
    objects: usize,
    /// How many are a sample when they are read one by one.
    sample: usize,
    single: &'static str,
    batch: &'static str,
}

const SIZES: [Size; 3] = [
    Size { bytes: MIB / 4, objects: 1024, sample: 16, single: "ssd.get.256KiB", batch: "ssd.get.batch16.256KiB" },
    Size { bytes: MIB, objects: 256, sample: 8, single: "ssd.get.1MiB", batch: "ssd.get.batch16.1MiB" },
    Size { bytes: 8 * MIB, objects: 64, sample: 2, single: "ssd.get.8MiB", batch: "ssd.get.batch16.8MiB" },
];

/// Families of keys.
mod family {
    pub const WRITTEN: u32 = 64;
    pub const TINY: u32 = 65;
    pub const HOT: u32 = 66;
    pub const ABSENT: u32 = 67;
    pub const CHURN: u32 = 68;
    /// Values that are read, by their size.
    pub const READ: u32 = 96;
}

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    let mut ground = None;
    run.measure("ssd", |run| {
        ground = Ground::new(run)?;
        Ok(())
    });
    let Some(ground) = ground else { return };
    run.measure("ssd.get", |run| reads(run, &ground));
    run.measure("ssd.kv_onboard", |run| onboard(run, &ground));
    run.measure("ssd.offload", |run| offload(run, &ground));
    run.measure("ssd.recover", |run| recover(run, &ground));
    run.measure("ssd.bytes_per_object", |run| bytes_per_object(run, &ground));
    run.measure("ssd.miss", |run| miss(run, &ground));
    run.measure("ssd.get_beside_offload", |run| beside_offload(run, &ground));
    run.measure("ssd.put_under_pressure", |run| under_pressure(run, &ground));
    run.measure(MOONCAKE, |run| against_mooncake(run, &ground));
}

/// A folder for everything that the area writes.
struct Ground {
    scratch: Scratch,
    direct: bool,
}

impl Ground {
    /// `None` if there is too little room.
    fn new(run: &mut Run) -> Result<Option<Self>, Failure> {
        let folder = std::env::var_os("NMC_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let scratch = Scratch::within(&folder)?;
        let FileSystem { name, direct, free_bytes } = FileSystem::of(scratch.path())?;
        let how = if direct { "O_DIRECT" } else { "through the page cache: these are no figures of a disk" };
        run.note("ssd", format!("files in {}: {name}, {how}", folder.display()));
        let room = if run.is_quick() { ROOM / 8 } else { ROOM };
        if free_bytes < room {
            let why = format!("skipped: {} are free, {} are needed", facts::size(free_bytes), facts::size(room));
            NAMES.into_iter().for_each(|metric| run.skip(metric, why.as_str()));
            return Ok(None);
        }
        Ok(Some(Self { scratch, direct }))
    }

    /// A folder in it.
    fn folder(&self, name: &str) -> Result<Folder, Failure> {
        let path = self.scratch.path().join(name);
        std::fs::create_dir(&path).map_err(|e| Failure::os(format!("making {}", path.display()), &e))?;
        Ok(Folder(path))
    }
}

/// A folder that goes with this value: what one measurement wrote is not there during the next.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn add(run: &mut Run, name: &'static str, unit: &'static str, better: Better, pair: Pair, baseline_name: &'static str) {
    run.add(Metric { name, value: pair.0, unit, better, baseline_name, baseline: pair.1 });
}

/// A store for values that are not small.
fn large(heap_bytes: usize) -> Wanted {
    Wanted { heap_bytes: heap_bytes as u64, page_bytes: 64 << 10, max_objects: 0, brim: true }
}

fn gigabytes(bytes: usize, since: Instant) -> f64 {
    bytes as f64 / since.elapsed().as_secs_f64() / 1e9
}

/// Whose sample it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The library's.
    Ours,
    /// The baseline's.
    Plain,
}

/// Samples of ours and of the baseline in turn, either first in every other round; their medians. Of more than a few rounds the
/// first does not count.
fn in_turn(rounds: usize, sample: impl FnMut(Side) -> Result<f64, Failure>) -> Result<Pair, Failure> {
    in_turn_for(Duration::MAX, rounds, sample)
}

/// The same for a while: what takes longer than expected has fewer rounds, but a few.
pub fn in_turn_for(
    limit: Duration,
    rounds: usize,
    mut sample: impl FnMut(Side) -> Result<f64, Failure>,
) -> Result<Pair, Failure> {
    let start = Instant::now();
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round > 3 && start.elapsed() > limit {
            break;
        }
        let order = if round % 2 == 0 { [Side::Ours, Side::Plain] } else { [Side::Plain, Side::Ours] };
        for side in order {
            let found = sample(side)?;
            match side {
                _ if round == 0 && rounds > 3 => {}
                Side::Ours => ours.push(found),
                Side::Plain => plain.push(found),
            }
        }
    }
    Ok((median(&mut ours), median(&mut plain)))
}

// ---- reading ---------------------------------------------------------------------------------------------------------

/// Values that are on disk alone.
struct Cold<'a> {
    drive: &'a Drive,
    keys: Slices,
    objects: usize,
    /// Where they lie.
    places: Vec<Place>,
    files: Files,
    ring: Option<IoUring>,
    /// Where ours and the baseline are read to.
    to: (Buffers, Buffers),
    /// Where ours and the baseline go on.
    at: (usize, usize),
    /// How many ours has read.
    read: u64,
}

impl<'a> Cold<'a> {
    fn new(drive: &'a Drive, ground: &Ground, folder: &Folder, bytes: usize, objects: usize) -> Result<Self, Failure> {
        let keys = Slices::keys(family::READ + bytes.trailing_zeros(), 0..objects as u64);
        drive.fill_disk(keys.all(), bytes)?;
        let places = drive.places(keys.all())?;
        let files = Files::open(&places, ground.direct, |bucket| folder.0.join(bucket_name(bucket)))?;
        let ring = IoUring::new(RING).ok();
        let to = (Buffers::new(BATCH, bytes)?, Buffers::new(BATCH, bytes)?);
        let at = (0, objects / 2 / BATCH * BATCH);
        Ok(Self { drive, keys, objects, places, files, ring, to, at, read: 0 })
    }

    /// Reads the next `count` values, one by one.
    fn read(&mut self, side: Side, count: usize) -> Result<(), Failure> {
        let mut wrong = NMC_OK;
        for _ in 0..count {
            match side {
                Side::Ours => wrong |= self.drive.shelf.get_into(self.keys.all().item(self.at.0), self.to.0.first()),
                Side::Plain => self.files.read(self.places[self.at.1], self.to.1.first())?,
            }
            self.went_on(side, 1);
        }
        self.drive.shelf.check("nmc_store_get_into", wrong)
    }

    /// Reads the next batch.
    fn read_batch(&mut self, side: Side) -> Result<(), Failure> {
        // Reads one by one may have ended in the middle of one.
        self.at = (self.at.0 / BATCH * BATCH, self.at.1 / BATCH * BATCH);
        match side {
            Side::Ours => {
                let status = self.drive.get_into_batch(self.keys.part(self.at.0, BATCH), &mut self.to.0);
                self.drive.shelf.check("nmc_store_get_into_batch", status)?;
            }
            Side::Plain => {
                let (places, mut to) = (&self.places[self.at.1..self.at.1 + BATCH], self.to.1.slices());
                match &mut self.ring {
                    Some(ring) => self.files.read_all(ring, places, &mut to)?,
                    None => places.iter().zip(to).try_for_each(|(place, to)| self.files.read(*place, to))?,
                }
            }
        }
        self.went_on(side, BATCH);
        Ok(())
    }

    fn went_on(&mut self, side: Side, count: usize) {
        let at = if side == Side::Ours { &mut self.at.0 } else { &mut self.at.1 };
        *at = (*at + count) % self.objects;
        self.read += if side == Side::Ours { count as u64 } else { 0 };
    }

    /// What was read last without the library, summed up as the library sums up its values.
    fn checksum(&mut self) {
        for value in self.to.1.slices() {
            value.chunks(GRANULE).for_each(|granule| _ = black_box(crc_fast::crc32_iscsi(granule)));
        }
    }
}

fn reads(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    const SINGLE: &str = "pread of the same files, same values in turn";
    const TOGETHER: &str = "16 reads of the same files at a time, io_uring";
    const NO_RING: &str = "pread of the same files, no io_uring here";
    let folder = ground.folder("read")?;
    let heap = if run.is_quick() { 160 * MIB } else { 640 * MIB };
    let drive = Drive::open(&large(heap), &folder.0, 0, true)?;
    for Size { bytes, objects, sample, single, batch } in SIZES {
        let objects = if run.is_quick() { BATCH } else { objects };
        let mut cold = Cold::new(&drive, ground, &folder, bytes, objects)?;
        let before = drive.stats()?.read_objects;
        let rounds = |values: usize| run.reps(1, (8 * objects / values).max(32));
        let alone = in_turn(rounds(sample), |side| {
            let start = Instant::now();
            cold.read(side, sample)?;
            Ok(gigabytes(sample * bytes, start))
        })?;
        let together = in_turn(rounds(BATCH), |side| {
            let start = Instant::now();
            cold.read_batch(side)?;
            Ok(gigabytes(BATCH * bytes, start))
        })?;
        add(run, single, "GB/s", Better::Higher, alone, SINGLE);
        add(run, batch, "GB/s", Better::Higher, together, if cold.ring.is_some() { TOGETHER } else { NO_RING });
        if bytes == MIB {
            cpu(run, &mut cold)?;
        }
        let read = drive.stats()?.read_objects - before;
        if read != cold.read {
            return Err(Failure::new(format!("{read} of {} values came from disk", cold.read)));
        }
    }
    drive.close()
}

fn cpu(run: &mut Run, cold: &mut Cold<'_>) -> Result<(), Failure> {
    let pair = in_turn(run.reps(1, 64), |side| {
        let start = raw::cpu_us();
        cold.read_batch(side)?;
        if side == Side::Plain {
            cold.checksum();
        }
        Ok((raw::cpu_us() - start) / BATCH as f64)
    })?;
    add(run, "ssd.cpu", "µs/MiB", Better::Lower, pair, "the same reads and CRC32C of 64 KiB each, CPU of the process");
    Ok(())
}

/// Blocks of a KV cache that are on disk alone, a sequence at a time.
fn onboard(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    const BLOCKS: usize = 64;
    const BARE: &str = "16 reads of the same files at a time, io_uring";
    const NO_RING: &str = "pread of the same files, no io_uring here";
    let blocks = u32::try_from(BLOCKS).unwrap_or(0);
    let (sequences, heap) = if run.is_quick() { (1, 64 * MIB) } else { (8, 256 * MIB) };
    let folder = ground.folder("onboarded")?;
    let drive = Drive::open(&large(heap), &folder.0, 0, true)?;
    let cache = Cache::over(&drive, blocks)?;
    (0..sequences as u64).try_for_each(|id| cache.store(id))?;
    drive.offload_all()?;
    drive.evict()?;
    let places = drive.all_places()?;
    if places.len() != sequences * BLOCKS {
        return Err(Failure::new(format!("{} of {} blocks are on disk", places.len(), sequences * BLOCKS)));
    }
    let files = Files::open(&places, ground.direct, |bucket| folder.0.join(bucket_name(bucket)))?;
    let mut ring = IoUring::new(RING).ok();
    let mut to = Buffers::new(BATCH, BLOCK_BYTES)?;
    let (before, mut read) = (drive.stats()?.read_objects, 0);
    for (name, by_layer) in [("ssd.kv_onboard", false), ("ssd.kv_onboard.by_layer", true)] {
        let mut at = (0, sequences / 2);
        let pair = in_turn(run.reps(1, 48), |side| {
            let mut start = Instant::now();
            if side == Side::Ours {
                at.0 = (at.0 + 1) % sequences;
                cache.fetch(at.0 as u64, by_layer, || start = Instant::now())?;
            } else {
                at.1 = (at.1 + 1) % sequences;
                for places in places[at.1 * BLOCKS..][..BLOCKS].chunks(BATCH) {
                    match &mut ring {
                        Some(ring) => files.read_all(ring, places, &mut to.slices())?,
                        None => places.iter().try_for_each(|place| files.read(*place, to.first()))?,
                    }
                }
            }
            let rate = gigabytes(BLOCKS * BLOCK_BYTES, start);
            if side == Side::Ours {
                read += BLOCKS as u64;
                cache.end(at.0 as u64)?;
            }
            Ok(rate)
        })?;
        add(run, name, "GB/s", Better::Higher, pair, if ring.is_some() { BARE } else { NO_RING });
    }
    drop(cache);
    match drive.stats()?.read_objects - before {
        found if found == read => drive.close(),
        found => Err(Failure::new(format!("{found} of {read} blocks came from disk"))),
    }
}

// ---- writing ---------------------------------------------------------------------------------------------------------

fn offload(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    // Everything stays in memory and on disk until the end: neither evictions nor deletions run beside a sample.
    let (rounds, objects, heap) = if run.is_quick() { (2, 8, 64 * MIB) } else { (13, 128, 2048 * MIB) };
    if available_bytes() < 2 * heap as u64 {
        run.skip("ssd.offload", "skipped: not enough memory");
        return Ok(());
    }
    let (folder, plain) = (ground.folder("written")?, ground.folder("plain")?);
    let drive = Drive::open(&large(heap), &folder.0, 0, true)?;
    let mut noise = Buffers::new(1, PIECE)?;
    noise.first().copy_from_slice(Slices::noise(1, PIECE).all().item(0).bytes());
    let (mut keys, mut files, mut buckets) = (0, 0, 1);
    let bytes = objects * MIB;
    let pair = in_turn(rounds, |side| {
        if side == Side::Plain {
            let each = (bytes as u64).div_ceil(buckets).next_multiple_of(BLOCK as u64);
            let start = Instant::now();
            for _ in 0..buckets {
                files += 1;
                raw::write_file(&plain.0.join(files.to_string()), ground.direct, each, noise.first())?;
            }
            return Ok(gigabytes(bytes, start));
        }
        drive.fill(Slices::keys(family::WRITTEN, keys..keys + objects as u64).all(), MIB)?;
        keys += objects as u64;
        let before = drive.stats()?.written_buckets;
        let start = Instant::now();
        let written = drive.offload_all()?;
        let rate = gigabytes(bytes, start);
        buckets = drive.stats()?.written_buckets - before;
        if written == objects as u64 { Ok(rate) } else { Err(Failure::new(format!("{written} values were written"))) }
    })?;
    add(run, "ssd.offload", "GB/s", Better::Higher, pair, "as many files written in 4 MiB pieces, as many fdatasyncs");
    drive.close()
}

// ---- recovery and memory ---------------------------------------------------------------------------------------------

fn recover(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    let folder = ground.folder("recovered")?;
    let heap = wanted(256 << 20);
    let mut there = 0;
    for (name, objects, bar) in RECOVER {
        if run.is_quick() && there > 0 {
            run.skip(name, "skipped: quick run");
            continue;
        }
        let objects = if run.is_quick() { 2000 } else { objects };
        let drive = Drive::open(&heap, &folder.0, 0, true)?;
        while there < objects {
            let to = objects.min(there + TINY_AT_ONCE);
            drive.fill_disk(Slices::keys(family::TINY, there as u64..to as u64).all(), TINY)?;
            there = to;
        }
        drive.close()?;
        let mut samples = Vec::new();
        for _ in 0..run.reps(2, 5) {
            let drive = Drive::open(&heap, &folder.0, 0, true)?;
            samples.push(drive.opened.as_secs_f64());
            let found = drive.stats()?.recovered_objects;
            if found != objects as u64 {
                return Err(Failure::new(format!("{found} of {objects} values were found again")));
            }
            drive.close()?;
        }
        add(run, name, "s", Better::Lower, (median(&mut samples), bar), BAR);
        if run.is_quick() {
            run.note(name, format!("quick run: {objects} values"));
        }
    }
    Ok(())
}

fn bytes_per_object(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    let folder = ground.folder("index")?;
    let drive = Drive::open(&wanted(8 << 20), &folder.0, 1_000_000, true)?;
    let stats = drive.stats()?;
    let each = stats.index_bytes as f64 / stats.max_objects as f64;
    add(run, "ssd.bytes_per_object", "bytes", Better::Lower, (each, BYTES_BAR), BAR);
    drive.close()
}

// ---- what a tier costs those who do not need it ----------------------------------------------------------------------

fn miss(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    let folder = ground.folder("missed")?;
    let drive = Drive::open(&wanted(128 << 20), &folder.0, 0, true)?;
    let without = Shelf::embedded(&wanted(128 << 20))?;
    drive.fill_disk(Slices::keys(family::TINY, 0..run.reps(1000, 20_000) as u64).all(), TINY)?;
    let hot = Slices::keys(family::HOT, 0..SMALL_SET as u64);
    let absent = Slices::keys(family::ABSENT, 0..SMALL_SET as u64);
    let mut buffer = vec![0; SMALL];
    for shelf in [&drive.shelf, &without] {
        shelf.fill(hot.all(), SMALL)?;
    }
    let pair = in_turn(run.reps(20, 1000), |side| {
        let shelf = if side == Side::Ours { &drive.shelf } else { &without };
        let mut found = 0;
        let ns = ns_per_call(SMALL_SET, |i| {
            found += i32::from(shelf.get(absent.all().item(i), &mut buffer) != NMC_ERR_NOT_FOUND);
        });
        if found == 0 { Ok(ns) } else { Err(Failure::new(format!("{found} keys were found that are not there"))) }
    })?;
    add(run, "ssd.miss", "ns", Better::Lower, pair, "the same in a store without a tier");
    run.note("ssd.miss", format!("the tier adds {:.0} ns; the bar is {MISS_BAR_NS:.0}", pair.0 - pair.1));
    drive.close()?;
    without.close()
}

/// Times gets that hit memory, in ns, until `go_on` ends it or there is no room for more times; how many there were.
fn timed_gets(
    shelf: &Shelf,
    keys: Part<'_>,
    times: &mut [f64],
    mut go_on: impl FnMut(usize) -> bool,
) -> Result<usize, Failure> {
    let mut buffer = [0; SMALL];
    let (mut wrong, mut calls) = (NMC_OK, 0);
    while calls < times.len() && go_on(calls) {
        let key = keys.item(calls % keys.len());
        let start = Instant::now();
        wrong |= shelf.get(key, &mut buffer);
        times[calls] = start.elapsed().as_secs_f64() * 1e9;
        calls += 1;
    }
    shelf.check("nmc_store_get", wrong)?;
    Ok(calls)
}

fn beside_offload(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    const ALONE: &str = "the same gets without an offload";
    let (rounds, objects, heap) = if run.is_quick() { (2, 8, 64 * MIB) } else { (12, 64, 1024 * MIB) };
    let folder = ground.folder("beside")?;
    let drive = Drive::open(&large(heap), &folder.0, 0, true)?;
    let hot = Slices::keys(family::HOT, 0..SMALL_SET as u64 / 4);
    drive.shelf.fill(hot.all(), SMALL)?;
    drive.offload_all()?;
    let (mut p50, mut p99) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    // Touched before: a page fault is no part of a get.
    let mut times = vec![1.0; 1 << 20];
    for round in 0..rounds {
        let first = (round * objects) as u64;
        drive.fill(Slices::keys(family::WRITTEN, first..first + objects as u64).all(), MIB)?;
        let done = AtomicBool::new(false);
        let calls = std::thread::scope(|scope| {
            let offload = scope.spawn(|| {
                let written = drive.offload_all();
                done.store(true, Ordering::Release);
                written
            });
            let calls = timed_gets(&drive.shelf, hot.all(), &mut times, |_| !done.load(Ordering::Acquire));
            let written = offload.join().unwrap_or_else(|_| Err(Failure::new("the offload panicked")))?;
            if written == objects as u64 { calls } else { Err(Failure::new(format!("{written} values were written"))) }
        })?;
        p50.0.push(percentile(&mut times[..calls], 0.5));
        p99.0.push(percentile(&mut times[..calls], 0.99));
        let calls = timed_gets(&drive.shelf, hot.all(), &mut times, |made| made < calls)?;
        p50.1.push(percentile(&mut times[..calls], 0.5));
        p99.1.push(percentile(&mut times[..calls], 0.99));
    }
    let p50 = (median(&mut p50.0), median(&mut p50.1));
    let p99 = (median(&mut p99.0), median(&mut p99.1));
    add(run, "ssd.get_beside_offload", "ns", Better::Lower, p50, ALONE);
    add(run, "ssd.get_beside_offload.p99", "ns", Better::Lower, p99, ALONE);
    drive.close()
}

fn under_pressure(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    let heap = wanted(if run.is_quick() { 8 << 20 } else { 64 << 20 });
    let capacity = usize::try_from(heap.heap_bytes / u64::from(heap.page_bytes)).unwrap_or(0);
    // So few that none of them comes to the front itself.
    let each = capacity / 8;
    let folder = ground.folder("pressed")?;
    let drive = Drive::open(&heap, &folder.0, 0, false)?;
    let without = Shelf::embedded(&heap)?;
    let mut next = 0;
    let mut fresh = |n: usize| {
        next += n as u64;
        Slices::keys(family::CHURN, next - n as u64..next)
    };
    // Twice what fits: from now on every put evicts.
    for shelf in [&drive.shelf, &without] {
        shelf.fill(fresh(2 * capacity).all(), SMALL)?;
    }
    let values = Slices::values(1, SMALL);
    let pair = in_turn(run.reps(3, 60), |side| {
        let shelf = if side == Side::Ours { &drive.shelf } else { &without };
        drive.offload_all()?;
        let before = drive.stats()?;
        let (keys, mut times, mut wrong) = (fresh(each), Vec::with_capacity(each), NMC_OK);
        for key in keys.all().each() {
            let start = Instant::now();
            wrong |= shelf.put(key, values.all().item(0));
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        shelf.check("nmc_store_put", wrong)?;
        let after = drive.stats()?;
        let (clean, lost) = (after.evicted_clean - before.evicted_clean, after.evicted_dirty - before.evicted_dirty);
        if lost > 0 || (side == Side::Ours && clean == 0) {
            return Err(Failure::new(format!("{clean} values were evicted that were on disk, {lost} that were not")));
        }
        Ok(percentile(&mut times, 0.99))
    })?;
    add(run, "ssd.put_under_pressure", "µs", Better::Lower, pair, "p99 of the same puts in a store without a tier");
    drive.close()?;
    without.close()
}

// ---- others ----------------------------------------------------------------------------------------------------------

fn against_mooncake(run: &mut Run, ground: &Ground) -> Result<(), Failure> {
    const EACH: usize = 8;
    if run.is_quick() {
        run.skip(MOONCAKE, "skipped: quick run");
        return Ok(());
    }
    let theirs = ground.folder("mooncake")?;
    let mut mooncake = match Mooncake::start(&theirs.0)? {
        Ok(started) => started,
        Err(why) => {
            run.skip(MOONCAKE, why);
            return Ok(());
        }
    };
    let folder = ground.folder("ours")?;
    let drive = Drive::open(&large(192 * MIB), &folder.0, 0, true)?;
    let mut cold = Cold::new(&drive, ground, &folder, MIB, 128)?;
    let pair = in_turn(64, |side| {
        if side == Side::Plain {
            return mooncake.read(EACH);
        }
        let start = Instant::now();
        cold.read(side, EACH)?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / EACH as f64)
    })?;
    let name = "Mooncake Store, bucket backend with io_uring, read by its owner";
    add(run, MOONCAKE, "µs", Better::Lower, pair, name);
    drive.close()
}
