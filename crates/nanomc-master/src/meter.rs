//! Counts what gRPC clients ask for and how long it takes, and remembers what took long. Nobody waits for anybody here but those
//! who were slow.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The calls of the service; whatever else somebody asks for is counted as `other`.
pub const METHODS: [&str; 26] = [
    "AddReplica",
    "BatchEvictDiskReplica",
    "BatchExists",
    "BatchGetReplicaList",
    "BatchPutEnd",
    "BatchPutRevoke",
    "BatchPutStart",
    "BatchQuery",
    "BatchRemove",
    "Drain",
    "Exists",
    "GetReplicaList",
    "ListKeys",
    "ListSegments",
    "MountSegment",
    "NotifyOffloadSuccess",
    "OffloadObjectHeartbeat",
    "Ping",
    "PutEnd",
    "PutRevoke",
    "PutStart",
    "QueryKey",
    "Remove",
    "RemoveAll",
    "UnmountSegment",
    "other",
];

/// Upper ends of the histogram, in µs; there is one more without an end.
pub const BUCKETS_US: [u64; 7] = [100, 300, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// A call that takes so long is remembered.
const SLOW: Duration = Duration::from_millis(100);
/// So many are.
const MAX_SLOW: usize = 32;

/// How often something was asked for.
#[derive(Debug, Default)]
pub struct Method {
    /// Calls.
    pub count: AtomicU64,
    /// Those that gRPC's own status says have failed.
    pub failed: AtomicU64,
    /// Time of all of them, in µs.
    pub total_us: AtomicU64,
    /// Calls by their time.
    pub buckets: [AtomicU64; BUCKETS_US.len() + 1],
}

/// A call that took long.
#[derive(Debug, Clone)]
pub struct Slow {
    /// Which.
    pub method: &'static str,
    /// How long.
    pub ms: u64,
    /// When it ended, in ms since 1970.
    pub at_ms: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Meter {
    methods: [Method; METHODS.len()],
    connections: AtomicI64,
    slow: Mutex<VecDeque<Slow>>,
}

impl Meter {
    /// A connection more, or one less.
    pub fn connected(&self, more: i64) {
        self.connections.fetch_add(more, Relaxed);
    }

    /// Connections of gRPC clients.
    pub fn connections(&self) -> i64 {
        self.connections.load(Relaxed)
    }

    /// A call has ended.
    pub fn called(&self, method: &str, time: Duration, failed: bool) {
        let at = METHODS.binary_search(&method).unwrap_or(METHODS.len() - 1);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (Some(counted), Some(name)) = (self.methods.get(at), METHODS.get(at)) else { return };
        counted.count.fetch_add(1, Relaxed);
        counted.failed.fetch_add(failed.into(), Relaxed);
        counted.total_us.fetch_add(us, Relaxed);
        let bucket = BUCKETS_US.iter().position(|end| us <= *end).unwrap_or(BUCKETS_US.len());
        if let Some(bucket) = counted.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        if time >= SLOW
            && let Ok(mut slow) = self.slow.lock()
        {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            slow.push_back(Slow { method: name, ms: us / 1000, at_ms: u64::try_from(now.as_millis()).unwrap_or(0) });
            if slow.len() > MAX_SLOW {
                slow.pop_front();
            }
        }
    }

    /// What was asked for, with its name.
    pub fn methods(&self) -> impl Iterator<Item = (&'static str, &Method)> {
        METHODS.into_iter().zip(&self.methods)
    }

    /// What took long lately, the last first.
    pub fn slow(&self) -> Vec<Slow> {
        self.slow.lock().map(|slow| slow.iter().rev().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_the_service_is_counted_by_its_name() {
        let proto = include_str!("../../../proto/nanomc/master/v1/master.proto");
        let mut names: Vec<_> =
            proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next()).collect();
        names.sort_unstable();
        names.push("other");
        assert_eq!(names, METHODS);
    }

    #[test]
    fn slow_calls_are_remembered_up_to_a_limit() {
        let meter = Meter::default();
        meter.called("Remove", Duration::from_millis(1), false);
        for ms in 0..40 {
            meter.called("PutEnd", SLOW + Duration::from_millis(ms), true);
        }
        meter.called("Whatever", Duration::ZERO, true);
        let slow = meter.slow();
        assert_eq!((slow.len(), slow[0].ms, slow[0].method), (MAX_SLOW, 139, "PutEnd"));
        let counts: Vec<_> = meter.methods().filter(|(_, m)| m.count.load(Relaxed) > 0).map(|(name, _)| name).collect();
        assert_eq!(counts, ["PutEnd", "Remove", "other"]);
    }
}
