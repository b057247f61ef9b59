//! Numbers about a store, without asking the master: it keeps its counters in shared memory, and a client has its own.

use crate::base::error::Result;
use crate::base::memory;
use crate::layout::store::RankCounters;
use crate::store::client::{BUCKETS, Store, Totals};
use crate::store::wire::Request;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of a rank's heap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankStats {
    /// See `layout::store::RankCounters`, also for the others.
    pub bytes_used: u64,
    /// Bytes in pages.
    pub bytes_total: u64,
    /// Objects known to be readable.
    pub ready_count: u64,
    /// Objects being written.
    pub writing_count: u64,
    /// Objects evicted.
    pub evict_count: u64,
    /// Requests that found no room.
    pub oom_count: u64,
    /// Evictions that found the object pinned.
    pub evict_in_use_retry: u64,
    /// Objects taken from a late writer.
    pub stuck_put_reclaimed: u64,
    /// Bytes that wait for a writer to stop.
    pub quarantined_bytes: u64,
    /// Bytes that wait for a reader to unpin.
    pub limbo_bytes: u64,
    /// Free runs of pages.
    pub free_runs: u64,
    /// Largest free run.
    pub largest_free_bytes: u64,
}

/// When a call that found no room may be worth repeating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryHint {
    /// After this time; 0 if waiting alone will not help.
    pub retry_after_us: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes of the largest free run.
    pub largest_free_bytes: u64,
    /// Bytes that will be free when readers unpin and late writers stop.
    pub waiting_bytes: u64,
    /// Objects that could be evicted if nobody had pinned them.
    pub ready_count: u64,
}

/// Numbers about a store.
#[derive(Debug, Clone)]
pub struct Stats {
    /// By rank.
    pub ranks: Vec<RankStats>,
    /// Of all ranks together; of the largest free runs, the largest.
    pub total: RankStats,
    /// Of this client.
    pub own: Totals,
    /// Bytes of shared memory for headers, keys, index, words.
    pub metadata_bytes: u64,
    /// Bytes of the master, if it is in this process.
    pub master_bytes: u64,
    /// Whether the master can be reached.
    pub master_up: bool,
}

impl RankStats {
    fn plus(mut self, r: &RankStats) -> RankStats {
        self.bytes_used += r.bytes_used;
        self.bytes_total += r.bytes_total;
        self.ready_count += r.ready_count;
        self.writing_count += r.writing_count;
        self.evict_count += r.evict_count;
        self.oom_count += r.oom_count;
        self.evict_in_use_retry += r.evict_in_use_retry;
        self.stuck_put_reclaimed += r.stuck_put_reclaimed;
        self.quarantined_bytes += r.quarantined_bytes;
        self.limbo_bytes += r.limbo_bytes;
        self.free_runs += r.free_runs;
        self.largest_free_bytes = self.largest_free_bytes.max(r.largest_free_bytes);
        self
    }
}

impl From<&RankCounters> for RankStats {
    fn from(c: &RankCounters) -> Self {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Self {
            bytes_used: get(&c.bytes_used),
            bytes_total: get(&c.bytes_total),
            ready_count: get(&c.ready_count),
            writing_count: get(&c.writing_count),
            evict_count: get(&c.evict_count),
            oom_count: get(&c.oom_count),
            evict_in_use_retry: get(&c.evict_in_use_retry),
            stuck_put_reclaimed: get(&c.stuck_put_reclaimed),
            quarantined_bytes: get(&c.quarantined_bytes),
            limbo_bytes: get(&c.limbo_bytes),
            free_runs: get(&c.free_runs),
            largest_free_bytes: get(&c.largest_free_bytes),
        }
    }
}

impl Store {
    /// Numbers of one rank.
    pub fn rank_stats(&self, rank: u32) -> Result<RankStats> {
        let view = self.client.view();
        match view.rank(rank) {
            Some(counters) => Ok(counters.into()),
            None => crate::bail!(
                NMC_ERR_INVALID_ARG,
                "rank {rank} is not below the world size {}",
                self.client.params().world_size
            ),
        }
    }

    /// What a call that found no room on a rank may hope for.
    pub fn retry_hint(&self, rank: u32) -> Result<RetryHint> {
        let r = self.rank_stats(rank)?;
        let waiting_bytes = r.limbo_bytes + r.quarantined_bytes;
        let in_motion = waiting_bytes + r.writing_count + r.ready_count > 0;
        Ok(RetryHint {
            // The master looks at what waits every millisecond or so.
            retry_after_us: if in_motion { 1_000 } else { 0 },
            free_bytes: r.bytes_total.saturating_sub(r.bytes_used),
            largest_free_bytes: r.largest_free_bytes,
            waiting_bytes,
            ready_count: r.ready_count,
        })
    }

    /// All numbers. If the master is in this process it looks first, so that they are up to date.
    pub fn stats(&self) -> Result<Stats> {
        self.client.tend();
        let ranks: Vec<RankStats> =
            memory::try_collect((0..self.client.params().world_size).map(|rank| self.rank_stats(rank)))?;
        Ok(Stats {
            total: ranks.iter().fold(RankStats::default(), RankStats::plus),
            ranks,
            own: self.client.counters.totals(),
            metadata_bytes: self.client.map.bytes(),
            master_bytes: self.client.master_bytes(),
            master_up: self.client.master_up(),
        })
    }

    /// The numbers in the text format of Prometheus.
    pub fn prometheus(&self) -> Result<String> {
        let stats = self.stats()?;
        let mut text = memory::Text::default();
        let written = prometheus(&stats, &mut text);
        text.finish(written)
    }

    /// A picture of the heaps, for people.
    pub fn dump(&self, width: u32) -> Result<String> {
        self.call_text(&Request::Dump(width))
    }
}

fn prometheus(stats: &Stats, text: &mut memory::Text) -> std::fmt::Result {
    type Of = fn(&RankStats) -> u64;
    let gauges: [(&str, &str, Of); 12] = [
        ("bytes_used", "gauge", |r| r.bytes_used),
        ("bytes_total", "gauge", |r| r.bytes_total),
        ("ready_objects", "gauge", |r| r.ready_count),
        ("writing_objects", "gauge", |r| r.writing_count),
        ("evictions_total", "counter", |r| r.evict_count),
        ("out_of_memory_total", "counter", |r| r.oom_count),
        ("evict_in_use_retries_total", "counter", |r| r.evict_in_use_retry),
        ("stuck_puts_reclaimed_total", "counter", |r| r.stuck_put_reclaimed),
        ("quarantined_bytes", "gauge", |r| r.quarantined_bytes),
        ("limbo_bytes", "gauge", |r| r.limbo_bytes),
        ("free_runs", "gauge", |r| r.free_runs),
        ("largest_free_bytes", "gauge", |r| r.largest_free_bytes),
    ];
    for (name, kind, of) in gauges {
        writeln!(text, "# TYPE nanomc_store_{name} {kind}")?;
        for (rank, number) in stats.ranks.iter().zip(0..) {
            writeln!(text, "nanomc_store_{name}{{rank=\"{number}\"}} {}", of(rank))?;
        }
    }
    let own = &stats.own;
    let client = [
        ("puts_total", "counter", own.puts),
        ("get_hits_total", "counter", own.hits),
        ("get_misses_total", "counter", own.misses),
        ("bytes_written_total", "counter", own.tx),
        ("bytes_read_total", "counter", own.rx),
        ("plans_total", "counter", own.plans),
        ("peer_hits_total", "counter", own.peer_hits),
        ("peer_bytes_read_total", "counter", own.peer_rx),
        ("metadata_bytes", "gauge", stats.metadata_bytes),
    ];
    for (name, kind, value) in client {
        writeln!(text, "# TYPE nanomc_store_{name} {kind}\nnanomc_store_{name} {value}")?;
    }
    for (name, histogram) in ["put", "get", "plan"].iter().zip(&own.histograms) {
        histogram_text(text, name, histogram)?;
    }
    Ok(())
}

fn histogram_text(text: &mut memory::Text, name: &str, histogram: &[u64; BUCKETS]) -> std::fmt::Result {
    writeln!(text, "# TYPE nanomc_store_{name}_ns histogram")?;
    let (mut sum, mut weight) = (0u64, 0u64);
    for (bucket, count) in histogram.iter().enumerate() {
        sum += count;
        // The middle of the bucket stands for all of its calls.
        weight += count * (3u64 << bucket) / 4;
        if *count > 0 {
            writeln!(text, "nanomc_store_{name}_ns_bucket{{le=\"{}\"}} {sum}", 1u64 << bucket)?;
        }
    }
    writeln!(text, "nanomc_store_{name}_ns_bucket{{le=\"+Inf\"}} {sum}")?;
    writeln!(text, "nanomc_store_{name}_ns_sum {weight}\nnanomc_store_{name}_ns_count {sum}")
}

/// The latency below which `permille`/1000 of the calls of a histogram were, in ns, to the next power of two.
#[must_use]
pub fn percentile(histogram: &[u64; BUCKETS], permille: u64) -> u64 {
    let all: u64 = histogram.iter().sum();
    let mut seen = 0;
    for (bucket, count) in histogram.iter().enumerate() {
        seen += count;
        if all > 0 && seen * 1000 >= all * permille {
            return 1 << bucket;
        }
    }
    0
}
