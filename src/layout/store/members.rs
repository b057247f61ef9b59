//! Who and what a store consists of: clients, ranks and their heaps, namespaces.

use super::MAX_NAMESPACE_NAME;
use super::object::{padded, same};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A client of the store.
#[repr(C, align(64))]
pub struct ClientEntry {
    /// Grows each time the entry is taken; odd while it is in use.
    pub generation: AtomicU64,
    /// Start time of the process.
    pub start_time: AtomicU64,
    /// Process id.
    pub pid: AtomicU32,
    /// Rank in the world.
    pub rank: AtomicU32,
    /// Generation of that rank.
    pub rank_generation: AtomicU64,
    /// Which of the clients of that rank's holder it is.
    pub role: AtomicU64,
    reserved: [AtomicU64; 3],
}

/// Counters of a rank's heap. One writer; readers may see a state between two stores.
#[repr(C, align(128))]
pub struct RankCounters {
    /// Bytes in pages that are not free.
    pub bytes_used: AtomicU64,
    /// Bytes in pages.
    pub bytes_total: AtomicU64,
    /// Objects that the master knows to be readable.
    pub ready_count: AtomicU64,
    /// Objects that are being written, as far as the master knows.
    pub writing_count: AtomicU64,
    /// Objects evicted so far.
    pub evict_count: AtomicU64,
    /// Requests that found no room.
    pub oom_count: AtomicU64,
    /// Evictions that found the object pinned.
    pub evict_in_use_retry: AtomicU64,
    /// Objects that the watchdog took from a writer that was late.
    pub stuck_put_reclaimed: AtomicU64,
    /// Bytes that wait for a writer to stop.
    pub quarantined_bytes: AtomicU64,
    /// Bytes that wait for a reader to unpin.
    pub limbo_bytes: AtomicU64,
    /// Free runs of pages.
    pub free_runs: AtomicU64,
    /// Largest free run, in bytes.
    pub largest_free_bytes: AtomicU64,
    reserved: [AtomicU64; 4],
}

/// The heap that a rank's objects lie in: all live ones, always. Written by the master.
#[repr(C, align(16))]
pub struct RankHeap {
    /// Random name of the memory; 0 while nothing can be stored there.
    pub id: AtomicU64,
    /// How many processes had held the rank when it brought this heap, and [`RankHeap::REPLACED`].
    pub generation: AtomicU64,
}

impl RankHeap {
    /// The objects of the rank lay in other memory before.
    pub const REPLACED: u64 = 1 << 63;
}

/// A namespace.
#[repr(C, align(64))]
pub struct Namespace {
    /// Grows with every flush: objects of an earlier generation are not found.
    pub generation: AtomicU32,
    /// Length of the name.
    pub name_len: AtomicU32,
    /// Most bytes of pages it may use; 0 for no limit.
    pub quota_bytes: AtomicU64,
    /// Bytes of pages it uses.
    pub bytes_used: AtomicU64,
    /// Objects in it.
    pub objects: AtomicU64,
    /// The name, padded with zeros.
    pub name: [AtomicU64; MAX_NAMESPACE_NAME / 8],
    reserved: [AtomicU64; 4],
}

impl Namespace {
    /// The name.
    #[must_use]
    pub fn name(&self) -> Vec<u8> {
        // Acquire: whoever finds a length finds the whole name.
        let len = self.name_len.load(Ordering::Acquire) as usize;
        let mut name: Vec<u8> = self.name.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        name.truncate(len);
        name
    }

    /// Whether this is its name.
    #[must_use]
    pub fn is_named(&self, name: &[u8]) -> bool {
        self.name_len.load(Ordering::Acquire) as usize == name.len() && same(&self.name, name)
    }

    /// Stores the name.
    pub fn set_name(&self, name: &[u8]) {
        for (place, chunk) in self.name.iter().zip(name.chunks(8)) {
            place.store(padded(chunk), Ordering::Relaxed);
        }
        self.name_len.store(u32::try_from(name.len()).unwrap_or(0), Ordering::Release);
    }
}
