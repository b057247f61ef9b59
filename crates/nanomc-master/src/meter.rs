//! Counts what gRPC clients ask for and how long it takes, and remembers what took long. Nobody waits for anybody here but those
//! who were slow. Framed clients are counted where they are served, see `nanomc::cluster::run::times`.

use nanomc::cluster::run::times::{BUCKETS_US, Count, SLOW, Slow};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

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

/// See the module.
#[derive(Debug, Default)]
pub struct Meter {
    methods: [Count; METHODS.len()],
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
        counted.failed.fetch_add(failed.into(), Relaxed);
        counted.total_us.fetch_add(us, Relaxed);
        let bucket = BUCKETS_US.iter().position(|end| us <= *end).unwrap_or(BUCKETS_US.len());
        if let Some(bucket) = counted.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        if time >= SLOW
            && let Ok(mut slow) = self.slow.lock()
        {
            Slow::now(name, time).remember(&mut slow);
        }
    }

    /// What was asked for, with its name.
    pub fn methods(&self) -> impl Iterator<Item = (&'static str, &Count)> {
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
    use nanomc::cluster::run::times::MAX_SLOW;

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
        let has_some = |count: &Count| count.buckets.iter().any(|bucket| bucket.load(Relaxed) > 0);
        let counts: Vec<_> = meter.methods().filter(|(_, count)| has_some(count)).map(|(name, _)| name).collect();
        assert_eq!(counts, ["PutEnd", "Remove", "other"]);
    }
}
