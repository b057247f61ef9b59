//! What a program says about the store it wants, checked before anything is done.

use crate::base::Deadline;
use crate::base::error::Result;
use crate::layout::MAX_RANKS;
use crate::layout::store::{KEY_UNIT, Params};
use crate::sync::object::MAX_INDEX;

/// Default bytes of a page.
pub const DEFAULT_PAGE_BYTES: u32 = 256 << 10;
/// Default pin slots of a client.
pub const DEFAULT_PIN_SLOTS: u32 = 1024;
/// Default time after which an unpublished object is given up.
pub const DEFAULT_WATCHDOG_MS: u32 = 30_000;
/// Default watermarks, in 1/1000 of a heap.
pub const DEFAULT_HIGH: u32 = 950;
/// See [`DEFAULT_HIGH`].
pub const DEFAULT_LOW: u32 = 850;
/// Most objects for which headers are reserved by default.
const DEFAULT_MAX_OBJECTS: u64 = 1 << 20;
/// Bytes of the key slab that are reserved by default for each object.
const DEFAULT_KEY_BYTES: u64 = 64;

/// Which objects go first when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The oldest.
    Fifo,
    /// Those that were not read for the longest time, as far as sampled stamps tell.
    Lru,
    /// Those that were not read soon after they came (S3-FIFO).
    S3Fifo,
}

impl Policy {
    /// Number in the C header.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Policy::Fifo => 0,
            Policy::Lru => 1,
            Policy::S3Fifo => 2,
        }
    }

    /// The policy with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Policy::Fifo, Policy::Lru, Policy::S3Fifo].into_iter().find(|p| p.code() == code)
    }
}

/// A store as a program wants it. `None` is the default.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// First byte of each heap that the store uses.
    pub heap_offset: u64,
    /// Bytes of each heap that it uses; the rest of the heap by default.
    pub heap_bytes: Option<u64>,
    /// Headers.
    pub max_objects: Option<u32>,
    /// Bytes for keys.
    pub key_bytes: Option<u64>,
    /// Pin slots of a client.
    pub pin_slots: u32,
    /// Eviction policy.
    pub policy: Policy,
    /// Whether values are checksummed.
    pub checksums: bool,
    /// Usage in 1/1000 above which the master evicts.
    pub high_permille: u32,
    /// Usage in 1/1000 down to which it evicts.
    pub low_permille: u32,
    /// Time after which an unpublished object is given up.
    pub watchdog_ms: u32,
    /// Rank whose process runs the master, unless it runs in a process of its own.
    pub master_rank: u32,
    /// When attaching gives up.
    pub deadline: Deadline,
    /// How long a call waits for the master.
    pub call_ms: u32,
    /// Whether nothing is stored before the tier is open; counts in the process of the master.
    pub wait_for_tier: bool,
}

impl Config {
    /// What all clients must agree on, for a world of `world_size` ranks with heaps of `heap_bytes`.
    pub fn params(&self, world_size: u32, heap_bytes: u64) -> Result<Params> {
        let page = self.page_bytes;
        if !page.is_power_of_two() || !(4 << 10..=2 << 20).contains(&page) {
            crate::bail!(NMC_ERR_INVALID_ARG, "page_bytes {page} is not a power of two between 4 KiB and 2 MiB");
        }
        if !self.heap_offset.is_multiple_of(page.into()) || self.heap_offset >= heap_bytes {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "heap_offset {} is not a multiple of page_bytes {page} below the heap's {heap_bytes} bytes",
                self.heap_offset
            );
        }
        let room = heap_bytes - self.heap_offset;
        let wanted = self.heap_bytes.unwrap_or(room);
        let pages = wanted / u64::from(page);
        if wanted > room || pages == 0 || pages >= u64::from(u32::MAX) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "heap_bytes {wanted} from offset {} on must hold at least one page of {page} bytes, fewer than 2^32 \
                 of them, and fit the heap of {heap_bytes} bytes",
                self.heap_offset
            );
        }
        let usual = (pages * u64::from(world_size)).clamp(1024, DEFAULT_MAX_OBJECTS);
        let max_objects = self.max_objects.map_or(usual, u64::from);
        let Some(max_objects) = u32::try_from(max_objects).ok().filter(|n| (1..=MAX_INDEX / 2).contains(n)) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "max_objects {max_objects} is not between 1 and {}", MAX_INDEX / 2);
        };
        let least = KEY_UNIT as u64 * u64::from(max_objects);
        let key_bytes = self.key_bytes.unwrap_or((DEFAULT_KEY_BYTES * u64::from(max_objects)).max(64 << 10));
        if !(KEY_UNIT as u64 * 64..=1 << 36).contains(&key_bytes) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "key_slab_bytes {key_bytes} is not between {} and 2^36; {least} is the least for {max_objects} keys",
                KEY_UNIT * 64
            );
        }
        if !(1..=1 << 20).contains(&self.pin_slots) {
            crate::bail!(NMC_ERR_INVALID_ARG, "pin_slots {} is not between 1 and 2^20", self.pin_slots);
        }
        let (low, high) = (self.low_permille, self.high_permille);
        if low > high || high > 1000 || high == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "watermarks {low} and {high} are not 0 <= low <= high <= 1000");
        }
        if self.watchdog_ms == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "watchdog_ms is 0");
        }
        if self.master_rank >= world_size {
            crate::bail!(NMC_ERR_INVALID_ARG, "master_rank {} is not below {world_size}", self.master_rank);
        }
        Ok(Params {
            page_bytes: page,
            world_size,
            heap_offset: self.heap_offset,
            heap_bytes: pages * u64::from(page),
            max_objects,
            key_bytes,
            pin_slots: self.pin_slots,
            // A rank that is replaced is still dying while its successor comes; so may be the agent of a cluster's node.
            max_clients: (2 * world_size).max(4) + 2,
            policy: self.policy.code(),
            checksums: self.checksums.into(),
            high_permille: high,
            low_permille: low,
            watchdog_ms: self.watchdog_ms,
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            page_bytes: DEFAULT_PAGE_BYTES,
            heap_offset: 0,
            heap_bytes: None,
            max_objects: None,
            key_bytes: None,
            pin_slots: DEFAULT_PIN_SLOTS,
            policy: Policy::Fifo,
            checksums: false,
            high_permille: DEFAULT_HIGH,
            low_permille: DEFAULT_LOW,
            watchdog_ms: DEFAULT_WATCHDOG_MS,
            master_rank: 0,
            deadline: Deadline::after(std::time::Duration::from_secs(30)),
            call_ms: 10_000,
            wait_for_tier: false,
        }
    }
}

/// Refuses parameters that no [`Config`] gives: they came from another process.
pub fn check_sane(p: &Params) -> Result<()> {
    let config = Config {
        page_bytes: p.page_bytes,
        heap_offset: p.heap_offset,
        heap_bytes: Some(p.heap_bytes),
        max_objects: Some(p.max_objects),
        key_bytes: Some(p.key_bytes),
        pin_slots: p.pin_slots,
        policy: Policy::from_code(p.policy).unwrap_or(Policy::Fifo),
        checksums: p.checksums != 0,
        high_permille: p.high_permille,
        low_permille: p.low_permille,
        watchdog_ms: p.watchdog_ms,
        ..Config::default()
    };
    let end = p.heap_offset.checked_add(p.heap_bytes).filter(|end| *end <= 1 << 47);
    let ranks = (1..=u32::try_from(MAX_RANKS).unwrap_or(0)).contains(&p.world_size);
    match end {
        Some(end) if ranks && config.params(p.world_size, end)? == *p => Ok(()),
        _ => crate::bail!(NMC_ERR_PROTOCOL, "a client sent parameters that no store has"),
    }
}

/// Fails with the first parameter on which two clients differ, naming both values.
pub fn check_same(ours: &Params, theirs: &Params) -> Result<()> {
    for ((name, ours), theirs) in Params::NAMES.iter().zip(ours.words()).zip(theirs.words()) {
        if ours != theirs {
            crate::bail!(NMC_ERR_MISMATCH, "{name} of the store is {ours} in one process and {theirs} in another");
        }
    }
    Ok(())
}
