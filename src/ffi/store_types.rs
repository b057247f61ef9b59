//! Structs and constants of the store API.

use super::basic::{NMC_ABI_VERSION, nmc_slice_t};
use super::common::{NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO};
use super::config::Config as Versioned;
use super::world_types::{NMC_HEAP_HOST, NMC_IMPORT_NONE, nmc_memory_t, nmc_world_config_t};
use crate::base::Deadline;
use crate::base::deadline::MAX_TIMEOUT_MS;
use crate::base::error::Result;
use crate::store::Store;
use crate::store::config::{
    Config, DEFAULT_HIGH, DEFAULT_LOW, DEFAULT_PAGE_BYTES, DEFAULT_PIN_SLOTS, DEFAULT_WATCHDOG_MS, Policy,
};
use crate::store::types::{Keep, PutOptions, Retain, Wait};
use std::ffi::c_void;
use std::time::Duration;

/// Keep a CRC32C of every page and check it on every read by the library. The checksums are stored by
/// `nmc_store_commit`: until then, such reads of an object that its program published by itself return `NMC_NOT_READY`.
pub const NMC_STORE_CHECKSUMS: u32 = 1;
/// The store waits for its tier. While the tier is not open (`nmc_tier_open` in the process of the master), calls that
/// store, remove or replace something return `NMC_ERR_UNAVAILABLE`, and so do reads of what is not in memory, instead
/// of `NMC_ERR_NOT_FOUND`. Use this for stores that start with the contents of a directory: without it, other ranks may
/// store a key that is on disk before that is known. Counts in the process of the master; others ignore it.
pub const NMC_STORE_WAIT_FOR_TIER: u32 = 2;

/// Store the value in one run of pages.
pub const NMC_PUT_CONTIGUOUS: u32 = 1;
/// Replace an object with the same key; readers see the old value until the new one is complete. If the store is a node
/// of a cluster, copies that other nodes have stay, see `nmc_client_attach_store`.
pub const NMC_PUT_REPLACE: u32 = 2;
/// If the rank that is to hold the value has no room, cannot hold anything or has no holder, use another rank. First
/// the store looks for a rank that has room without evicting anything: the preferred one, otherwise the one with the
/// most free pages. If there is none, the preferred rank evicts, and if it cannot, the others do, in the same order.
/// `dst_rank` of the plan, or `nmc_store_get_location`, says which rank it is.
pub const NMC_PUT_ANY_RANK: u32 = 4;

/// Evicted as the config says.
pub const NMC_RETAIN_NONE: u32 = 0;
/// Evicted when nothing else is left, or when its time is over.
pub const NMC_RETAIN_SOFT: u32 = 1;
/// Never evicted, only removed.
pub const NMC_RETAIN_HARD: u32 = 2;

/// There is no such object.
pub const NMC_OBJECT_ABSENT: u32 = 0;
/// The object is being written.
pub const NMC_OBJECT_WRITING: u32 = 1;
/// The object can be read.
pub const NMC_OBJECT_READY: u32 = 2;
/// The object is not in memory, but can be read from disk. It cannot be pinned.
pub const NMC_OBJECT_ON_DISK: u32 = 3;
/// The object is not in this store, but can be read from a node of the cluster. Only handles of `nmc_client_open_store`
/// return this. The object cannot be pinned.
pub const NMC_OBJECT_ELSEWHERE: u32 = 4;

/// Most bytes of an object's metadata.
pub const NMC_MAX_METADATA: u32 = 256;
const _: () = assert!(NMC_MAX_METADATA as usize == crate::layout::store::MAX_METADATA);

/// Also wait for a key that is not being written yet.
pub const NMC_WAIT_APPEAR: u32 = 1;

/// How a store is made or attached to. Start from `NMC_STORE_CONFIG_INIT`. With a world, all ranks must agree on
/// everything but the timeouts; without one, `heap_bytes` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_store_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Bytes of each rank's heap that the store uses, rounded down to whole pages. 0: with a world, the heap from
    /// `heap_offset` to its end.
    pub heap_bytes: u64,
    /// First byte of each heap that the store uses, a multiple of `page_bytes`.
    pub heap_offset: u64,
    /// Bytes for keys, metadata and long lists of extents; 0 for 64 bytes an object. A key takes room there for what is behind
    /// its first 32 bytes, metadata for all of it.
    pub key_slab_bytes: u64,
    /// Bytes of a page, a power of two from 4 KiB to 2 MiB; 0 for 256 KiB. Values take whole pages.
    pub page_bytes: u32,
    /// Most objects at a time; 0 for one a page, between 1,024 and 1,048,576.
    pub max_objects: u32,
    /// Most pins that a client can hold at a time; 0 for 1,024.
    pub pin_slots: u32,
    /// `NMC_EVICT_FIFO`, `NMC_EVICT_LRU` or `NMC_EVICT_S3FIFO`.
    pub eviction: u32,
    /// 0, or `NMC_STORE_*` flags.
    pub flags: u32,
    /// Rank whose process runs the master; not used when the world's master runs elsewhere.
    pub master_rank: i32,
    /// Usage of a heap, in 1/1000, above which the master evicts; -1 for 950.
    pub high_permille: i32,
    /// Usage of a heap, in 1/1000, down to which it evicts then; -1 for 850.
    pub low_permille: i32,
    /// Time after which an object that was not published is taken from its writer, in ms; -1 for 30 s.
    pub watchdog_ms: i32,
    /// Embedded store: number of heaps; 0 for 1.
    pub world_size: u32,
    /// Embedded store: `NMC_HEAP_HOST` or `NMC_HEAP_CUDA`.
    pub heap_kind: u32,
    /// Embedded store: CUDA device, as in `nmc_world_config_t`.
    pub device: i32,
    /// Embedded store: `NMC_HEAP_*` flags, as in `nmc_world_config_t`.
    pub heap_flags: u32,
    /// Zero.
    pub reserved0: u32,
    /// How long to wait for the store's master when attaching, in ms; -1 for 30 s.
    pub attach_timeout_ms: i64,
    /// How long a call waits for the master, in ms; -1 for 10 s.
    pub call_timeout_ms: i64,
    /// Embedded store with one heap: memory of the program to use as this heap, `heap_offset` and `heap_bytes` bytes of
    /// it; `NMC_IMPORT_NONE` for memory of the library. It stays the program's. The program must not touch it until the
    /// last handle of the store is destroyed, or `nmc_client_unmount` of what was mounted has returned.
    pub heap_import: nmc_memory_t,
    /// Zero.
    pub reserved: [u64; 2],
}

/// How a value is stored. Start from `NMC_PUT_OPTIONS_INIT`; NULL means the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_put_options_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Rank whose heap is to hold the value; -1 for `key_hash` of `nmc_write_plan_t` modulo the number of ranks.
    pub preferred_segment: i32,
    /// 0, or `NMC_PUT_*` flags.
    pub flags: u32,
    /// One of `NMC_RETAIN_*`.
    pub retain: u32,
    /// 0 to 3; lower ones are evicted first.
    pub priority: u32,
    /// For `NMC_RETAIN_SOFT`: how long, in ms; 0 for no end.
    pub ttl_ms: u64,
    /// How long to wait for room if there is none, in ms: 0 for not at all, -1 for `call_timeout_ms` of the store, at
    /// most 7 days (as for all waiting times). Room appears when readers unpin, writers commit or give up, or objects
    /// are removed. `NMC_ERR_BUSY`, `NMC_ERR_LIMIT` and `NMC_ERR_NO_SPACE` then mean that none appeared in time; a
    /// value that no empty heap and no unused quota could hold is `NMC_ERR_NO_SPACE` at once. Waiting calls are served
    /// in no particular order.
    pub wait_ms: i64,
    /// Metadata of the object, up to `NMC_MAX_METADATA` bytes, which `nmc_store_get_metadata` reads. It comes and goes
    /// with the value, and with `NMC_STORE_CHECKSUMS` it is verified with it.
    pub metadata: nmc_slice_t,
    /// In calls for `n` objects: NULL, or metadata for each of them instead.
    pub metadata_each: *const nmc_slice_t,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Where the program stores the bytes of an object that it writes itself. Addresses are valid in this process until the
/// plan is committed or aborted. Pages are consecutive within an extent; `nmc_store_plan_extents` lists the extents.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_write_plan_t {
    /// xxh64 of the key, seeded with the number of its namespace.
    pub key_hash: u64,
    /// Name of the plan; it cannot be guessed.
    pub plan_id: u64,
    /// What has to be published.
    pub epoch: u64,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// First byte of the first extent; a device pointer for CUDA heaps. NULL for an empty value.
    pub payload: *mut c_void,
    /// The same for the GPU: equal for CUDA heaps, the registered address for host heaps, NULL without a device.
    pub payload_device: *mut c_void,
    /// The object's header in shared memory; read-only.
    pub header: *const c_void,
    /// The word that is to become `epoch` when all bytes are stored.
    pub publish_word: *mut u64,
    /// The same for the GPU; NULL without a device.
    pub publish_word_device: *mut u64,
    /// Rank whose heap holds the value.
    pub dst_rank: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of the value.
    pub n_pages: u32,
    /// Bytes used of the last page; 0 for an empty value.
    pub last_page_bytes: u32,
    /// Extents of the value.
    pub n_extents: u32,
    /// Number of the header.
    pub index: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Where an object is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_object_meta_t {
    /// xxh64 of the key, seeded with the number of its namespace.
    pub key_hash: u64,
    /// Epoch of the object: another object with the same key has another one.
    pub epoch: u64,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// First byte of the value in this process; a device pointer for CUDA heaps. To be read only while pinned.
    pub payload: *const c_void,
    /// The object's header in shared memory; read-only.
    pub header: *const c_void,
    /// Rank whose heap holds the value.
    pub owner_rank: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of the value.
    pub n_pages: u32,
    /// Bytes used of the last page; 0 for an empty value.
    pub last_page_bytes: u32,
    /// Extents of the value; with one, all bytes are consecutive.
    pub n_extents: u32,
    /// Number of the header.
    pub index: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// A pinned object: its bytes stay where and what they are until `nmc_store_unpin`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_view_t {
    /// First byte of the value in this process; a device pointer for CUDA heaps. NULL for an empty value.
    pub data: *const c_void,
    /// The same for the GPU: equal for CUDA heaps, the registered address for host heaps, NULL without a device.
    pub data_device: *const c_void,
    /// Bytes of the value.
    pub bytes: u64,
    /// Epoch of the object.
    pub epoch: u64,
    /// Pages that are ready; all of them, unless the object is still being written.
    pub ready_pages: u32,
    /// Extents of the value; with one, all bytes are consecutive.
    pub n_extents: u32,
    /// Rank whose heap holds the value.
    pub owner_rank: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of the header.
    pub index: u32,
    /// Pin slot.
    pub slot: u32,
    /// Distinguishes this pin from an earlier one of the same object in the same slot.
    pub nonce: u64,
}

/// A run of consecutive bytes of a value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_extent_t {
    /// First byte in this process; a device pointer for CUDA heaps.
    pub ptr: *mut c_void,
    /// The same for the GPU; NULL without a device.
    pub device_ptr: *mut c_void,
    /// Bytes of the value in this run.
    pub bytes: u64,
}

/// Memory of the caller that is written to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_buffer_t {
    /// First byte.
    pub ptr: *mut c_void,
    /// Bytes.
    pub len: usize,
}

/// Outcome of watching a key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_completion_t {
    /// What the caller passed to `nmc_store_watch`.
    pub token: u64,
    /// `NMC_OK` if the object can be read; else why it will not become so.
    pub status: i32,
    /// How many completions just before this one were dropped, because more than `NMC_MAX_COMPLETIONS` waited; mostly
    /// 0. If it is not, look at the keys that the program still waits for (`nmc_store_exists_batch`), or watch them
    /// again.
    pub lost: u32,
}

/// Most completions of one client that wait to be taken. When there are more, the oldest go.
pub const NMC_MAX_COMPLETIONS: u32 = 65536;
const _: () = assert!(NMC_MAX_COMPLETIONS as usize == crate::store::completions::MAX_COMPLETIONS);

/// When a call that found no room may be worth repeating (`nmc_store_retry_hint`).
/// Start from `NMC_RETRY_HINT_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_retry_hint_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Try again after this time, in microseconds; 0 if waiting alone will not help, because no room is about to become
    /// free.
    pub retry_after_us: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes of the largest free run.
    pub largest_free_bytes: u64,
    /// Bytes that will be free when readers unpin and late writers stop.
    pub waiting_bytes: u64,
    /// Objects that could be evicted if they were not pinned.
    pub ready_count: u64,
}

/// Counters of one rank's heap. Start from `NMC_STORE_RANK_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_store_rank_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes in pages that are not free.
    pub bytes_used: u64,
    /// Bytes in pages.
    pub bytes_total: u64,
    /// Objects that the master knows to be readable.
    pub ready_count: u64,
    /// Objects that are being written, as far as the master knows.
    pub writing_count: u64,
    /// Objects evicted so far.
    pub evict_count: u64,
    /// Requests that found no room.
    pub oom_count: u64,
    /// Evictions that found the object pinned.
    pub evict_in_use_retry: u64,
    /// Objects that the watchdog took from a writer that was late.
    pub stuck_put_reclaimed: u64,
    /// Bytes that wait for a writer to stop.
    pub quarantined_bytes: u64,
    /// Bytes that wait for a reader to unpin.
    pub limbo_bytes: u64,
    /// Free runs of pages.
    pub free_runs: u64,
    /// Bytes of the largest free run.
    pub largest_free_bytes: u64,
}

/// Counters of a store: of all ranks together, as in `nmc_store_rank_stats_t`, and of this client. Start from
/// `NMC_STORE_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_store_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Number of ranks.
    pub n_ranks: u32,
    /// Bytes in pages that are not free.
    pub bytes_used: u64,
    /// Bytes in pages.
    pub bytes_total: u64,
    /// Objects that the master knows to be readable.
    pub ready_count: u64,
    /// Objects that are being written, as far as the master knows.
    pub writing_count: u64,
    /// Objects evicted so far.
    pub evict_count: u64,
    /// Requests that found no room.
    pub oom_count: u64,
    /// Evictions that found the object pinned.
    pub evict_in_use_retry: u64,
    /// Objects that the watchdog took from a writer that was late.
    pub stuck_put_reclaimed: u64,
    /// Bytes that wait for a writer to stop.
    pub quarantined_bytes: u64,
    /// Bytes that wait for a reader to unpin.
    pub limbo_bytes: u64,
    /// Free runs of pages.
    pub free_runs: u64,
    /// Bytes of the largest free run of any rank.
    pub largest_free_bytes: u64,
    /// Moving average of the time for a plan, in microseconds.
    pub t_plan_us: u64,
    /// Moving average of the bytes of a put.
    pub bytes_tx: u64,
    /// Moving average of the bytes of a get.
    pub bytes_rx: u64,
    /// Values that this client has written.
    pub puts: u64,
    /// Bytes that this client has written.
    pub bytes_written: u64,
    /// Reads of this client that found their object.
    pub get_hits: u64,
    /// Reads of this client that did not.
    pub get_misses: u64,
    /// Bytes that this client has read.
    pub bytes_read: u64,
    /// Share of reads that found their object, in 1/1000.
    pub hit_permille: u64,
    /// Half of the puts (a sample) took less than this, in ns, to the next power of two.
    pub put_p50_ns: u64,
    /// 99 % of the puts (a sample) took less than this.
    pub put_p99_ns: u64,
    /// Half of the gets (a sample) took less than this.
    pub get_p50_ns: u64,
    /// 99 % of the gets (a sample) took less than this.
    pub get_p99_ns: u64,
    /// Bytes of shared memory for headers, keys, index and words.
    pub metadata_bytes: u64,
    /// Bytes of this process that the master takes, if it is here.
    pub master_bytes: u64,
    /// 1 if the master can be reached.
    pub master_up: u64,
}

const EMPTY: nmc_slice_t = nmc_slice_t { ptr: std::ptr::null(), len: 0 };
#[allow(clippy::cast_possible_truncation, reason = "a struct is smaller than 4 GiB")]
const CONFIG_BYTES: u32 = size_of::<nmc_store_config_t>() as u32;
#[allow(clippy::cast_possible_truncation, reason = "a struct is smaller than 4 GiB")]
const OPTIONS_BYTES: u32 = size_of::<nmc_put_options_t>() as u32;

// SAFETY: repr(C), begins with the two u32, integers only; ctest compares size and offsets with C, where the same struct
// has no padding.
unsafe impl Versioned for nmc_store_config_t {
    const NAME: &'static str = "nmc_store_config_t";
    fn defaults() -> Self {
        Self {
            struct_size: CONFIG_BYTES,
            abi_version: NMC_ABI_VERSION,
            heap_bytes: 0,
            heap_offset: 0,
            key_slab_bytes: 0,
            page_bytes: 0,
            max_objects: 0,
            pin_slots: 0,
            eviction: NMC_EVICT_FIFO,
            flags: 0,
            master_rank: 0,
            high_permille: -1,
            low_permille: -1,
            watchdog_ms: -1,
            world_size: 0,
            heap_kind: NMC_HEAP_HOST,
            device: -1,
            heap_flags: 0,
            reserved0: 0,
            attach_timeout_ms: -1,
            call_timeout_ms: -1,
            heap_import: nmc_memory_t { kind: NMC_IMPORT_NONE, fd: -1, ptr: std::ptr::null_mut() },
            reserved: [0, 0],
        }
    }
}

// SAFETY: as above.
unsafe impl Versioned for nmc_put_options_t {
    const NAME: &'static str = "nmc_put_options_t";
    fn defaults() -> Self {
        Self {
            struct_size: OPTIONS_BYTES,
            abi_version: NMC_ABI_VERSION,
            preferred_segment: -1,
            flags: 0,
            retain: NMC_RETAIN_NONE,
            priority: 0,
            ttl_ms: 0,
            wait_ms: 0,
            metadata: EMPTY,
            metadata_each: std::ptr::null(),
            reserved: [0; 2],
        }
    }
}

fn or_default(value: i32, default: u32, name: &str) -> Result<u32> {
    match value {
        -1 => Ok(default),
        v => match u32::try_from(v) {
            Ok(v) => Ok(v),
            Err(_) => crate::bail!(NMC_ERR_INVALID_ARG, "{name} {v} is neither -1 nor a number from 0 up"),
        },
    }
}

fn nonzero<T: PartialEq + Default>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// Checks a C config and turns it into the library's.
///
/// # Safety
/// `ptr` is NULL or a config as the C contract says.
pub(crate) unsafe fn parse_store(ptr: *const nmc_store_config_t) -> Result<(Config, nmc_store_config_t)> {
    // SAFETY: forwarded from the caller.
    let c = unsafe { super::config::read(ptr) }?;
    if c.flags & !(NMC_STORE_CHECKSUMS | NMC_STORE_WAIT_FOR_TIER) != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {:#x} has bits that mean nothing", c.flags);
    }
    if c.reserved0 != 0 || c.reserved.iter().any(|r| *r != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "the reserved fields of the config are not zero; start from its _INIT macro");
    }
    let policy = match c.eviction {
        NMC_EVICT_FIFO => Policy::Fifo,
        NMC_EVICT_LRU => Policy::Lru,
        NMC_EVICT_S3FIFO => Policy::S3Fifo,
        other => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "eviction {other} is none of NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO"
        ),
    };
    let call_ms = if c.call_timeout_ms == -1 { 10_000 } else { c.call_timeout_ms };
    let Some(call_ms) = u32::try_from(call_ms).ok().filter(|ms| i64::from(*ms) <= MAX_TIMEOUT_MS) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "call_timeout_ms {call_ms} is not between 0 and {MAX_TIMEOUT_MS}");
    };
    let config = Config {
        page_bytes: nonzero(c.page_bytes).unwrap_or(DEFAULT_PAGE_BYTES),
        heap_offset: c.heap_offset,
        heap_bytes: nonzero(c.heap_bytes),
        max_objects: nonzero(c.max_objects),
        key_bytes: nonzero(c.key_slab_bytes),
        pin_slots: nonzero(c.pin_slots).unwrap_or(DEFAULT_PIN_SLOTS),
        policy,
        checksums: c.flags & NMC_STORE_CHECKSUMS != 0,
        high_permille: or_default(c.high_permille, DEFAULT_HIGH, "high_permille")?,
        low_permille: or_default(c.low_permille, DEFAULT_LOW, "low_permille")?,
        watchdog_ms: or_default(c.watchdog_ms, DEFAULT_WATCHDOG_MS, "watchdog_ms")?,
        master_rank: or_default(c.master_rank, 0, "master_rank")?,
        deadline: Deadline::from_ms(c.attach_timeout_ms, 30_000)?,
        call_ms,
        wait_for_tier: c.flags & NMC_STORE_WAIT_FOR_TIER != 0,
    };
    Ok((config, c))
}

/// A store of this process alone, in memory of its own or of the program.
pub(crate) fn embedded(c: &nmc_store_config_t, config: &Config) -> Result<Store> {
    let mut world = embedded_world(c)?;
    match world.import.take() {
        Some(lent) => Store::embedded_on(&world, lent, config),
        None => Store::embedded(&world, config),
    }
}

/// The world of an embedded store.
fn embedded_world(c: &nmc_store_config_t) -> Result<crate::world::Config> {
    if c.heap_bytes == 0 || c.heap_bytes > 1 << 46 {
        crate::bail!(NMC_ERR_INVALID_ARG, "heap_bytes {} of an embedded store is not between 1 and 2^46", c.heap_bytes);
    }
    let world = nmc_world_config_t {
        name: nmc_slice_t { ptr: c"local".as_ptr().cast(), len: 5 },
        dir: EMPTY,
        world_size: c.world_size.max(1),
        heap_bytes: c.heap_bytes.saturating_add(c.heap_offset),
        heap_kind: c.heap_kind,
        heap_flags: c.heap_flags,
        heap_import: c.heap_import,
        device: c.device,
        words_per_rank: 0,
        join_timeout_ms: MAX_TIMEOUT_MS,
        ..nmc_world_config_t::default()
    };
    // SAFETY: a full, valid config.
    unsafe { super::world_types::parse(&raw const world) }
}

/// Checks how an object is to be kept.
pub(crate) fn keep(retain: u32, priority: u32, ttl_ms: u64) -> Result<Keep> {
    let Some(retain) = Retain::from_code(retain) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "retain {retain} is none of NMC_RETAIN_*");
    };
    if priority > 3 {
        crate::bail!(NMC_ERR_INVALID_ARG, "priority {priority} is above 3");
    }
    Ok(Keep { retain, priority, ttl_ms })
}

/// Checks C options for one object and turns them into the library's.
///
/// # Safety
/// `ptr` is NULL or options as the C contract says.
#[inline]
pub(crate) unsafe fn parse_options<'a>(ptr: *const nmc_put_options_t) -> Result<PutOptions<'a>> {
    // SAFETY: forwarded from the caller.
    match unsafe { parse_batch_options(ptr) }? {
        (options, each) if each.is_null() => Ok(options),
        _ => crate::bail!(NMC_ERR_INVALID_ARG, "metadata_each is for calls that store many objects"),
    }
}

/// The same for a batch, with the metadata of each of its objects or NULL.
///
/// # Safety
/// As for [`parse_options`].
#[inline]
pub(crate) unsafe fn parse_batch_options<'a>(
    ptr: *const nmc_put_options_t,
) -> Result<(PutOptions<'a>, *const nmc_slice_t)> {
    if ptr.is_null() {
        return Ok((PutOptions::DEFAULT, std::ptr::null()));
    }
    // SAFETY: forwarded from the caller.
    let c = unsafe { super::config::read(ptr) }?;
    if c.flags & !(NMC_PUT_CONTIGUOUS | NMC_PUT_REPLACE | NMC_PUT_ANY_RANK) != 0 || c.reserved.iter().any(|r| *r != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {:#x} or a reserved field has bits that mean nothing", c.flags);
    }
    let rank = match c.preferred_segment {
        -1 => None,
        rank => match u32::try_from(rank) {
            Ok(rank) => Some(rank),
            Err(_) => crate::bail!(NMC_ERR_INVALID_ARG, "preferred_segment {rank} is neither -1 nor a rank"),
        },
    };
    let wait = match c.wait_ms {
        0 => Wait::No,
        -1 => Wait::CallTimeout,
        ms @ 1..=MAX_TIMEOUT_MS => Wait::For(Duration::from_millis(ms.unsigned_abs())),
        ms => crate::bail!(NMC_ERR_INVALID_ARG, "wait_ms {ms} is not between -1 and {MAX_TIMEOUT_MS}"),
    };
    let options = PutOptions {
        rank,
        any_rank: c.flags & NMC_PUT_ANY_RANK != 0,
        wait,
        contiguous: c.flags & NMC_PUT_CONTIGUOUS != 0,
        replace: c.flags & NMC_PUT_REPLACE != 0,
        keep: keep(c.retain, c.priority, c.ttl_ms)?,
        // SAFETY: forwarded from the caller.
        metadata: unsafe { metadata_of(c.metadata) }?,
        metadata_each: &[],
    };
    Ok((options, c.metadata_each))
}

/// The bytes of metadata.
///
/// # Safety
/// `metadata.ptr` points to `metadata.len` readable bytes unless the length is 0.
pub(crate) unsafe fn metadata_of<'a>(metadata: nmc_slice_t) -> Result<&'a [u8]> {
    // SAFETY: forwarded from the caller.
    unsafe { super::world_types::bytes_of(metadata, "metadata", NMC_MAX_METADATA as usize) }
}
