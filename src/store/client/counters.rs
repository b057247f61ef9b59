//! What a client counts about its own calls, spread over cache lines so that threads do not slow each other down.

use super::slots::thread_number;
use crate::base::error::Result;
use crate::base::memory;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SHARDS: usize = 8;
/// Buckets of a latency histogram: bucket `i` counts calls of less than `2^i` ns that are in no lower one.
pub const BUCKETS: usize = 40;
/// One in so many calls of a kind is timed: a look at the clock costs as much as a search.
const SAMPLE: u64 = 32;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A value was written.
    Put,
    /// A value was read or pinned.
    Get,
    /// A plan was asked for.
    Plan,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    puts: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    disk_hits: AtomicU64,
    disk_rx: AtomicU64,
    peer_hits: AtomicU64,
    peer_rx: AtomicU64,
    tx: AtomicU64,
    rx: AtomicU64,
    plans: AtomicU64,
    histograms: [Histogram; 3],
}

struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Counters of one client.
pub struct Counters {
    shards: Box<[Shard; SHARDS]>,
    average_plan_ns: AtomicU64,
    average_tx: AtomicU64,
    average_rx: AtomicU64,
}

/// A sum over all threads.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// Values written.
    pub puts: u64,
    /// Reads that found their object.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Reads that found it on disk; they are not among the hits.
    pub disk_hits: u64,
    /// Bytes read from there.
    pub disk_rx: u64,
    /// Reads that found it elsewhere; they are not among the hits.
    pub peer_hits: u64,
    /// Bytes read from there.
    pub peer_rx: u64,
    /// Bytes written.
    pub tx: u64,
    /// Bytes read.
    pub rx: u64,
    /// Plans asked for.
    pub plans: u64,
    /// Moving average of the time for a plan.
    pub average_plan_ns: u64,
    /// Moving average of the bytes of a put.
    pub average_tx: u64,
    /// Moving average of the bytes of a get.
    pub average_rx: u64,
    /// Latencies of puts, gets and plans, a sample of each.
    pub histograms: [[u64; BUCKETS]; 3],
}

impl Totals {
    /// Share of reads that found their object, in 1/1000.
    #[must_use]
    pub fn hit_permille(&self) -> u64 {
        self.hits * 1000 / (self.hits + self.misses).max(1)
    }
}

/// Adds without a locked instruction when one thread uses the shard; with several, a count may get lost rarely.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Moves an average by 1/16 of the distance.
fn approach(average: &AtomicU64, value: u64) {
    let old = average.load(Relaxed);
    let next = if old == 0 { value } else { old - old / 16 + value / 16 };
    average.store(next, Relaxed);
}

impl Counters {
    /// All zero.
    pub fn new() -> Result<Self> {
        let shards = memory::vec_with(SHARDS, |_| Shard::default())?;
        Ok(Self {
            shards: shards.try_into().map_err(|_| memory::refused::<Shard>(SHARDS))?,
            average_plan_ns: AtomicU64::new(0),
            average_tx: AtomicU64::new(0),
            average_rx: AtomicU64::new(0),
        })
    }

    #[inline(always)]
    fn shard(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }

    /// A read found its object.
    #[inline(always)]
    pub fn hit(&self, bytes: u64) {
        let shard = self.shard();
        add(&shard.hits, 1);
        add(&shard.rx, bytes);
    }

    /// A read did not find its object.
    #[inline(always)]
    pub fn miss(&self) {
        add(&self.shard().misses, 1);
    }

    /// A read that did not find its object in memory found it on disk.
    pub fn disk_hit(&self, bytes: u64) {
        let shard = self.shard();
        add(&shard.misses, u64::MAX);
        add(&shard.disk_hits, 1);
        add(&shard.disk_rx, bytes);
    }

    /// A read that did not find its object here found it elsewhere.
    pub fn peer_hit(&self, bytes: u64) {
        let shard = self.shard();
        add(&shard.misses, u64::MAX);
        add(&shard.peer_hits, 1);
        add(&shard.peer_rx, bytes);
    }

    /// Whether the next call of this kind is one of those that are timed.
    #[inline(always)]
    pub fn is_sample(&self, op: Op) -> bool {
        let shard = self.shard();
        let so_far = match op {
            Op::Put => &shard.puts,
            Op::Get => &shard.hits,
            Op::Plan => &shard.plans,
        };
        so_far.load(Relaxed).is_multiple_of(SAMPLE)
    }

    /// A read was timed.
    pub fn timed_get(&self, ns: u64, bytes: u64) {
        self.timed(Op::Get, ns);
        approach(&self.average_rx, bytes);
    }

    /// A value was written.
    pub fn put(&self, bytes: u64) {
        let shard = self.shard();
        add(&shard.puts, 1);
        add(&shard.tx, bytes);
        approach(&self.average_tx, bytes);
    }

    /// A put was timed.
    pub fn timed_put(&self, ns: u64) {
        self.timed(Op::Put, ns);
    }

    /// `n` plans were asked for in one call.
    pub fn plan(&self, n: u64) {
        add(&self.shard().plans, n);
    }

    /// A call that asked for plans was timed.
    pub fn timed_plan(&self, ns: u64) {
        self.timed(Op::Plan, ns);
        approach(&self.average_plan_ns, ns);
    }

    fn timed(&self, op: Op, ns: u64) {
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        let histogram = &self.shard().histograms[op as usize].0;
        add(&histogram[bucket.min(BUCKETS - 1)], 1);
    }

    /// The sums.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let sum = |of: fn(&Shard) -> &AtomicU64| self.shards.iter().map(|s| of(s).load(Relaxed)).sum();
        let histogram =
            |op: usize| std::array::from_fn(|b| self.shards.iter().map(|s| s.histograms[op].0[b].load(Relaxed)).sum());
        Totals {
            puts: sum(|s| &s.puts),
            hits: sum(|s| &s.hits),
            misses: sum(|s| &s.misses),
            disk_hits: sum(|s| &s.disk_hits),
            disk_rx: sum(|s| &s.disk_rx),
            peer_hits: sum(|s| &s.peer_hits),
            peer_rx: sum(|s| &s.peer_rx),
            tx: sum(|s| &s.tx),
            rx: sum(|s| &s.rx),
            plans: sum(|s| &s.plans),
            average_plan_ns: self.average_plan_ns.load(Relaxed),
            average_tx: self.average_tx.load(Relaxed),
            average_rx: self.average_rx.load(Relaxed),
            histograms: std::array::from_fn(histogram),
        }
    }
}
