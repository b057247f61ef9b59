//! Structs and constants of the SSD tier's API, and the environment that stands in for what a config leaves open.

use super::basic::{NMC_ABI_VERSION, nmc_slice_t};
use super::common::{NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_NONE};
use super::config::Config as Versioned;
use super::world_types::bytes_of;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::store::disk::Admission;
use crate::store::types::PRIORITIES;
use crate::tier::{Backend, Config, Evict, OnDamage, Scanned, Stats, Torn, Verified};
use std::ffi::{OsStr, OsString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Read and write through the page cache. Without this flag, files are opened with `O_DIRECT` where the file system
/// supports it.
pub const NMC_TIER_NO_DIRECT: u32 = 1;
/// Do not use io_uring, but one `preadv` or `pwritev` after the other.
pub const NMC_TIER_NO_URING: u32 = 2;
/// A remove, replacement or flush returns only when it is safe from a power loss. Without this flag, it is safe from
/// the death of any process when it returns, and from a power loss after the next `nmc_tier_sync`.
pub const NMC_TIER_DURABLE_REMOVE: u32 = 4;
/// Start paused: nothing is written before `nmc_tier_resume` or `nmc_tier_offload`.
pub const NMC_TIER_PAUSED: u32 = 8;
/// If the head or the journal of the directory is damaged, delete all files of the tier in it and start empty. Without
/// this flag, opening fails with `NMC_ERR_CORRUPT` and changes nothing. Nothing is deleted but regular files, and folders of
/// the tier that are empty then. If something else has the name of a file that a new tier needs, opening fails with
/// `NMC_ERR_PERMISSION`, and deletes nothing.
pub const NMC_TIER_RESET_IF_DAMAGED: u32 = 16;
/// Delete buckets whose end is damaged. Without this flag they are renamed, so that you can look at them.
pub const NMC_TIER_DELETE_TORN: u32 = 32;

/// Record what is stored on disk and what is evicted from it, for `nmc_tier_events` in every process of the store.
pub const NMC_TIER_EVENTS: u32 = 64;

/// A put or commit returns only when its value is on disk, safe from a power loss. Values that several callers wait for
/// at the same time are written and synced together. If a value cannot be written, the call returns `NMC_ERR_IO`,
/// `NMC_ERR_NO_SPACE` or `NMC_ERR_LIMIT` (see `nmc_tier_offload`), and the value is only in memory: to try again, put it with `NMC_PUT_REPLACE`, commit once more,
/// or call `nmc_tier_offload`. If it was evicted or removed before it was written, the call returns `NMC_ERR_STALE`.
pub const NMC_TIER_WRITE_THROUGH: u32 = 128;

/// Open this directory although the store's tier under its former master had another one, whose disk is lost. Without
/// this flag that is `NMC_ERR_MISMATCH`: what is removed from now on would come back when the former directory is
/// opened again.
pub const NMC_TIER_OTHER_DIRECTORY: u32 = 256;

/// Write the list of every bucket a second time, to `<number>.meta`, which is used if the list in the bucket cannot be
/// read. `NMC_TIER_BACKEND_BUCKET` only.
pub const NMC_TIER_META: u32 = 512;

/// Many values per file. The default, and the fastest.
pub const NMC_TIER_BACKEND_BUCKET: u32 = 0;
/// One file per value, in two levels of folders, for people who want to see values as files.
pub const NMC_TIER_BACKEND_FILE: u32 = 1;
/// One file, `kv_cache.data`, of `capacity_bytes`, which must be set, up to 1 TiB. No file is created or deleted while
/// the tier runs.
pub const NMC_TIER_BACKEND_OFFSET: u32 = 2;
/// Keeps nothing: what is written is gone. For measuring what the rest costs.
pub const NMC_TIER_BACKEND_NOOP: u32 = 3;

/// The values are on disk, safe from a power loss.
pub const NMC_TIER_STORED: u32 = 1;
/// The values were evicted from the disk, to make room or by `nmc_tier_evict`. Those that are in memory are still
/// there.
pub const NMC_TIER_EVICTED: u32 = 2;

/// Receives the progress of a recovery: `done` of `total` buckets have been read. Called on the thread that opens the
/// tier; must not throw.
pub type nmc_tier_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64)>;

/// Receives the progress of a verification: `done` of `total` values have been read. Returns 0 to end it. Called on the
/// calling thread; must not throw. It may call nmc functions, but not close this tier.
pub type nmc_tier_verify_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64) -> i32>;

/// How a tier is opened. Start from `NMC_TIER_CONFIG_INIT` and set `directory`. A number that is 0 stands for the
/// default.
///
/// Three settings that are left at their default come from the environment: `heartbeat_ms` from
/// `NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS`, `capacity_bytes` from `NMC_BUCKET_MAX_TOTAL_SIZE`, and
/// `NMC_TIER_NO_URING`, if the flag is not set, from `NMC_USE_URING`. If such a variable is unset or empty, the one
/// with `MOONCAKE_` in place of `NMC_` counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Path of the directory. Its last component is created if it does not exist, for this user alone. One process at a
    /// time can own it.
    pub directory: nmc_slice_t,
    /// Most values on disk; 0 for 1,048,576, or twice as many as the directory has if that is more. Each takes up to
    /// 100 bytes of memory.
    pub max_objects: u64,
    /// Most bytes that the files take; 0 for the environment's value, or no limit but the file system's.
    pub capacity_bytes: u64,
    /// A bucket is complete, and gets its name, when it has this many bytes, up to 2^40; 0 for 256 MiB.
    pub bucket_bytes: u64,
    /// A bucket is also complete when it has this many values; 0 for 500.
    pub bucket_keys: u32,
    /// Longest time between two checks for something to write, in ms; 0 for the environment's value, or 10 s. Under
    /// pressure it checks at once.
    pub heartbeat_ms: u32,
    /// Most disk requests in flight for one call, up to 1,024; 0 for 32.
    pub depth: u32,
    /// 0, or `NMC_TIER_*` flags.
    pub flags: u32,
    /// What is evicted when the file system, `capacity_bytes` or `max_objects` is used up: `NMC_EVICT_NONE`,
    /// `NMC_EVICT_FIFO` or `NMC_EVICT_LRU`. If `capacity_bytes` comes from the environment, `NMC_EVICT_NONE` stands for
    /// FIFO.
    pub eviction: u32,
    /// After how many reads from disk a value comes back into memory, into the heap of the rank that read it last: 1
    /// for always, up to 255; 0 for never. This happens in the background. If memory is full it evicts other values, but none that is still to
    /// be written to disk.
    pub promote_after: u32,
    /// Write a value ahead of its eviction only if it was read from memory in at least this many different
    /// milliseconds, up to 2^24 - 1; 0 for all values. The store must evict by LRU or S3-FIFO.
    pub admit_reads: u32,
    /// Write a value ahead of its eviction only if it has this priority or a higher one, from 0 to 3.
    pub admit_priority: u32,
    /// How values are laid out in the directory: `NMC_TIER_BACKEND_*`. A directory keeps the backend that it was
    /// created with; opening it with another one is `NMC_ERR_MISMATCH`.
    pub backend: u32,
    /// Zero.
    pub reserved0: u32,
    /// Most bytes of values per second that are written ahead of eviction; 0 for no limit. Does not slow down
    /// `nmc_tier_offload`.
    pub write_bytes_per_s: u64,
    /// Receives the progress of the recovery, or NULL.
    pub progress: nmc_tier_progress_fn,
    /// Passed to `progress`.
    pub progress_user: *mut c_void,
    /// Zero.
    pub reserved: [u64; 4],
}

/// Values on disk to which the same thing happened at the same time. What it points to is valid during the callback
/// only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_event_t {
    /// Size of this struct as the library knows it; there are no fields beyond that.
    pub struct_size: u32,
    /// `NMC_TIER_STORED` or `NMC_TIER_EVICTED`.
    pub what: u32,
    /// Number of values.
    pub n: usize,
    /// Name of each value's namespace; empty for the one that a store begins with.
    pub namespace_names: *const nmc_slice_t,
    /// Key of each value.
    pub keys: *const nmc_slice_t,
    /// Size of each value.
    pub bytes: *const u64,
    /// Number of values in earlier events that were dropped because they were not taken in time. At most 1,024 events
    /// with 65,536 values wait; beyond that, the oldest are dropped.
    pub lost: u64,
}

/// Receives an event. Returns 0 to leave the others for later. Called on the calling thread; must not throw. It may
/// call nmc functions, but not close this tier.
pub type nmc_tier_event_fn = Option<unsafe extern "C" fn(user: *mut c_void, event: *const nmc_tier_event_t) -> i32>;

/// Counters of a tier: those of its owner since it was opened, unless a field says otherwise. Start from
/// `NMC_TIER_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// 1 if this process owns the tier.
    pub owner: u32,
    /// Values that can be read from disk now. Those of a namespace that was emptied count until the owner has got to
    /// them.
    pub objects: u64,
    /// Bytes of these values.
    pub bytes: u64,
    /// Most values that the index has room for.
    pub max_objects: u64,
    /// Bytes that the files take now.
    pub file_bytes: u64,
    /// Buckets that exist now.
    pub buckets: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Values written.
    pub written_objects: u64,
    /// Bytes of the values written.
    pub written_bytes: u64,
    /// Buckets written.
    pub written_buckets: u64,
    /// Values that memory evicted when they were on disk.
    pub evicted_clean: u64,
    /// Values that memory evicted when they were not on disk: these are lost.
    pub evicted_dirty: u64,
    /// How often something could not be kept on disk because the file system, `capacity_bytes` or `max_objects` was
    /// used up.
    pub full: u64,
    /// Values that were found damaged, and given up.
    pub corrupt: u64,
    /// Writes and syncs that failed.
    pub errors: u64,
    /// 1 if offloading is paused (`nmc_tier_pause`).
    pub paused: u64,
    /// 1 if the disk refuses to be written. Reads go on, offloading has stopped, and removals take effect in memory and
    /// return `NMC_ERR_IO`.
    pub degraded: u64,
    /// Values that the recovery found.
    pub recovered_objects: u64,
    /// Buckets that the recovery read.
    pub recovered_buckets: u64,
    /// How long the recovery took, in ns.
    pub recovery_ns: u64,
    /// Values that the recovery found removed or damaged, or that the index had no room for.
    pub recovered_dead: u64,
    /// Values that this process has read from disk.
    pub read_objects: u64,
    /// Bytes of the values that this process has read from disk.
    pub read_bytes: u64,
    /// Values that were evicted from the disk, to make room or by `nmc_tier_evict`.
    pub evicted: u64,
    /// Values that came back into memory because they were read often (`promote_after`).
    pub promoted: u64,
    /// Buckets whose list could not be read when the tier was opened. Their values are not found.
    pub torn: u64,
    /// Bytes of dead values whose space becomes free only when their whole bucket is dead.
    pub dead_bytes: u64,
}

/// Result of a verification. Start from `NMC_TIER_VERIFIED_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_verified_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Values that are intact.
    pub objects: u64,
    /// Bytes of the intact values.
    pub bytes: u64,
    /// Values that are damaged, and were given up.
    pub corrupt: u64,
    /// Values that could not be read for another reason. They stay.
    pub unreadable: u64,
}

/// A value on disk.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_entry_t {
    /// Size of this struct as the library knows it; there are no fields beyond that.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of the value's namespace; empty for the one that a store begins with.
    pub namespace_name: nmc_slice_t,
    /// Key of the value.
    pub key: nmc_slice_t,
    /// Bytes of the value.
    pub bytes: u64,
    /// Epoch of the object; another object with the same key has another one.
    pub epoch: u64,
    /// Number of the bucket that has the value.
    pub bucket: u64,
    /// Where the value's record begins in the bucket, in blocks of 4 KiB.
    pub block: u64,
}

/// Receives a value that is on disk; `entry` and what it points to are valid during the call only. Returns 0 to end the
/// scan. Called on the calling thread; must not throw. It may call nmc functions, but not close this tier.
pub type nmc_tier_scan_fn = Option<unsafe extern "C" fn(user: *mut c_void, entry: *const nmc_tier_entry_t) -> i32>;

// SAFETY: repr(C), begins with the two u32, integers and pointers only (any bits are a valid Option of a function pointer that is
// not called), no padding.
unsafe impl Versioned for nmc_tier_config_t {
    const NAME: &'static str = "nmc_tier_config_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            directory: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            max_objects: 0,
            capacity_bytes: 0,
            bucket_bytes: 0,
            bucket_keys: 0,
            heartbeat_ms: 0,
            depth: 0,
            flags: 0,
            eviction: NMC_EVICT_NONE,
            promote_after: 0,
            admit_reads: 0,
            admit_priority: 0,
            backend: NMC_TIER_BACKEND_BUCKET,
            reserved0: 0,
            write_bytes_per_s: 0,
            progress: None,
            progress_user: std::ptr::null_mut(),
            reserved: [0; 4],
        }
    }
}

/// Every flag.
const FLAGS: u32 = NMC_TIER_NO_DIRECT
    | NMC_TIER_NO_URING
    | NMC_TIER_DURABLE_REMOVE
    | NMC_TIER_PAUSED
    | NMC_TIER_RESET_IF_DAMAGED
    | NMC_TIER_DELETE_TORN
    | NMC_TIER_EVENTS
    | NMC_TIER_WRITE_THROUGH
    | NMC_TIER_OTHER_DIRECTORY
    | NMC_TIER_META;
/// Longest path that is looked at.
const MAX_PATH: usize = 4096;
/// The kernel's rings are not much larger.
const MAX_DEPTH: u32 = 1024;
/// The index counts the blocks of a bucket in 28 bits.
const MAX_BUCKET_BYTES: u64 = 1 << 40;

/// Checks a C config and turns it into the library's. NULL stands for one that says nothing, which is enough where another
/// process owns the tier.
///
/// # Safety
/// `ptr` is NULL or a config as the C contract says.
pub(super) unsafe fn parse_tier(ptr: *const nmc_tier_config_t) -> Result<(Config, nmc_tier_config_t)> {
    // SAFETY: forwarded from the caller.
    let c = if ptr.is_null() { Versioned::defaults() } else { unsafe { super::config::read(ptr) }? };
    // SAFETY: as above.
    let directory = unsafe { bytes_of(c.directory, "directory", MAX_PATH - 1) }?;
    if directory.contains(&0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "directory contains a NUL byte");
    }
    let directory = OsStr::from_bytes(directory).into();
    Ok((translate(&c, directory, |name| std::env::var_os(name))?, c))
}

/// The library's config for a directory: that of C's defaults, changed, and with what the environment says where that says nothing.
pub fn config_for(directory: PathBuf, change: impl FnOnce(&mut nmc_tier_config_t)) -> Result<Config> {
    let mut c = Versioned::defaults();
    change(&mut c);
    translate(&c, directory, |name| std::env::var_os(name))
}

/// The library's config for one of C, with what `environment` says where that says nothing.
fn translate(
    c: &nmc_tier_config_t,
    directory: PathBuf,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Config> {
    if c.flags & !FLAGS != 0 || c.reserved0 != 0 || c.reserved.iter().any(|r| *r != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {:#x} or a reserved field has bits that mean nothing", c.flags);
    }
    if c.depth > MAX_DEPTH {
        crate::bail!(NMC_ERR_INVALID_ARG, "depth {} is above {MAX_DEPTH}", c.depth);
    }
    if c.bucket_bytes > MAX_BUCKET_BYTES {
        crate::bail!(NMC_ERR_INVALID_ARG, "bucket_bytes {} is above {MAX_BUCKET_BYTES}", c.bucket_bytes);
    }
    if c.promote_after > u8::MAX.into() || c.admit_reads >= 1 << 24 || c.admit_priority >= PRIORITIES.into() {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "promote_after {} is above {}, admit_reads {} is not below 2^24, or admit_priority {} is not below {PRIORITIES}",
            c.promote_after,
            u8::MAX,
            c.admit_reads,
            c.admit_priority
        );
    }
    let Some(backend) = Backend::from_code(c.backend) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "backend {} is not one of NMC_TIER_BACKEND_*", c.backend);
    };
    let default = Config::default();
    let heartbeat_ms = match c.heartbeat_ms {
        0 => seconds_of(&environment)?.map_or(default.heartbeat_ms, |seconds| seconds * 1000),
        ms => ms,
    };
    let capacity_bytes = match c.capacity_bytes {
        0 => total_size_of(&environment)?.unwrap_or(default.capacity_bytes),
        bytes => bytes,
    };
    let evict = match c.eviction {
        NMC_EVICT_NONE if c.capacity_bytes == 0 && capacity_bytes != 0 => Evict::Fifo,
        NMC_EVICT_NONE => Evict::Never,
        NMC_EVICT_FIFO => Evict::Fifo,
        NMC_EVICT_LRU => Evict::Lru,
        other => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "eviction {other} is none of NMC_EVICT_NONE, NMC_EVICT_FIFO, NMC_EVICT_LRU"
        ),
    };
    // Looked at whatever the flag says: a variable that is wrong is told of, not forgotten.
    let uring = switch_of(&environment)?.unwrap_or(default.uring);
    Ok(Config {
        backend,
        meta: c.flags & NMC_TIER_META != 0,
        directory,
        max_objects: c.max_objects,
        capacity_bytes,
        bucket_bytes: if c.bucket_bytes == 0 { default.bucket_bytes } else { c.bucket_bytes },
        bucket_keys: if c.bucket_keys == 0 { default.bucket_keys } else { c.bucket_keys },
        heartbeat_ms,
        direct: c.flags & NMC_TIER_NO_DIRECT == 0,
        uring: uring && c.flags & NMC_TIER_NO_URING == 0,
        depth: if c.depth == 0 { default.depth } else { c.depth },
        durable_remove: c.flags & NMC_TIER_DURABLE_REMOVE != 0,
        paused: c.flags & NMC_TIER_PAUSED != 0,
        on_damage: if c.flags & NMC_TIER_RESET_IF_DAMAGED == 0 { OnDamage::Fail } else { OnDamage::Reset },
        torn: if c.flags & NMC_TIER_DELETE_TORN == 0 { Torn::MoveAside } else { Torn::Delete },
        evict,
        promote_after: c.promote_after,
        admission: Admission {
            reads: c.admit_reads,
            priority: u16::try_from(c.admit_priority).unwrap_or(u16::MAX),
            ..Admission::default()
        },
        write_bytes_per_s: c.write_bytes_per_s,
        other_directory: c.flags & NMC_TIER_OTHER_DIRECTORY != 0,
        write_through: c.flags & NMC_TIER_WRITE_THROUGH != 0,
        events: c.flags & NMC_TIER_EVENTS != 0,
    })
}

/// A variable that is set and not empty: its name and its text. Ours comes before that of the reference implementation.
struct Variable(String, OsString);

impl Variable {
    fn find(environment: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<Self> {
        ["NMC_", "MOONCAKE_"].into_iter().find_map(|prefix| {
            let name = format!("{prefix}{name}");
            let text = environment(&name).filter(|text| !text.is_empty())?;
            Some(Self(name, text))
        })
    }

    fn wrong(&self, wanted: &str) -> Error {
        let Self(name, text) = self;
        Error::new(NMC_ERR_INVALID_ARG, format!("the environment variable {name} is {text:?}, which is not {wanted}"))
    }

    fn number(&self) -> Option<u64> {
        self.1.to_str()?.trim().parse().ok()
    }
}

fn seconds_of(environment: impl Fn(&str) -> Option<OsString>) -> Result<Option<u32>> {
    const MOST: u32 = u32::MAX / 1000;
    let Some(found) = Variable::find(environment, "OFFLOAD_HEARTBEAT_INTERVAL_SECONDS") else { return Ok(None) };
    let seconds = found.number().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=MOST).contains(n));
    seconds.map(Some).ok_or_else(|| found.wrong(&format!("a whole number of seconds from 1 to {MOST}")))
}

fn total_size_of(environment: impl Fn(&str) -> Option<OsString>) -> Result<Option<u64>> {
    let Some(found) = Variable::find(environment, "BUCKET_MAX_TOTAL_SIZE") else { return Ok(None) };
    found.number().map(Some).ok_or_else(|| found.wrong("a whole number of bytes"))
}

fn switch_of(environment: impl Fn(&str) -> Option<OsString>) -> Result<Option<bool>> {
    let Some(found) = Variable::find(environment, "USE_URING") else { return Ok(None) };
    let is = |words: [&str; 4]| words.iter().any(|word| found.1.eq_ignore_ascii_case(word));
    if is(["1", "true", "on", "yes"]) {
        Ok(Some(true))
    } else if is(["0", "false", "off", "no"]) {
        Ok(Some(false))
    } else {
        Err(found.wrong("true or false"))
    }
}

/// The numbers as C has them.
pub(super) fn stats_of(owner: bool, found: &Stats) -> nmc_tier_stats_t {
    nmc_tier_stats_t {
        struct_size: 0,
        owner: owner.into(),
        objects: found.objects,
        bytes: found.bytes,
        max_objects: found.max_objects,
        file_bytes: found.file_bytes,
        buckets: found.buckets,
        index_bytes: found.index_bytes,
        written_objects: found.written_objects,
        written_bytes: found.written_bytes,
        written_buckets: found.written_buckets,
        evicted_clean: found.evicted_clean,
        evicted_dirty: found.evicted_dirty,
        full: found.full,
        corrupt: found.corrupt,
        errors: found.errors,
        paused: found.paused,
        degraded: found.degraded,
        recovered_objects: found.recovered_objects,
        recovered_buckets: found.recovered_buckets,
        recovery_ns: found.recovery_ns,
        recovered_dead: found.recovered_dead,
        read_objects: found.read_objects,
        read_bytes: found.read_bytes,
        evicted: found.evicted,
        promoted: found.promoted,
        torn: found.torn,
        dead_bytes: found.dead_bytes,
    }
}

/// What a verification found, as C has it.
pub(super) fn verified_of(found: &Verified) -> nmc_tier_verified_t {
    nmc_tier_verified_t {
        struct_size: 0,
        reserved: 0,
        objects: found.objects,
        bytes: found.bytes,
        corrupt: found.corrupt,
        unreadable: found.unreadable,
    }
}

/// A value as C has it, for as long as `found` lives.
pub(super) fn entry_of(found: &Scanned<'_>) -> nmc_tier_entry_t {
    let slice = |bytes: &[u8]| nmc_slice_t { ptr: bytes.as_ptr().cast(), len: bytes.len() };
    nmc_tier_entry_t {
        struct_size: u32::try_from(size_of::<nmc_tier_entry_t>()).unwrap_or(0),
        reserved: 0,
        namespace_name: slice(found.namespace),
        key: slice(found.key),
        bytes: found.bytes,
        epoch: found.epoch,
        bucket: found.spot.0,
        block: found.spot.1,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test reports by failing")]
mod tests {
    use super::*;

    /// The config that is made of C's defaults, changed, with these variables set.
    fn made(variables: &[(&str, &str)], change: impl FnOnce(&mut nmc_tier_config_t)) -> Result<Config> {
        let mut c = nmc_tier_config_t::defaults();
        change(&mut c);
        translate(&c, PathBuf::new(), |wanted| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, text)| text.into())
        })
    }

    #[test]
    fn a_config_that_says_nothing_is_the_librarys_default() {
        assert_eq!(made(&[], |_| {}).unwrap(), Config::default());
        let empty = [("NMC_USE_URING", ""), ("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", "")];
        assert_eq!(made(&empty, |_| {}).unwrap(), Config::default(), "an empty variable says nothing either");
    }

    #[test]
    fn the_environment_counts_where_the_config_says_nothing_and_our_names_come_first() {
        let all = [
            ("NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "3"),
            ("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "not looked at"),
            ("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", " 4096 "),
            ("NMC_USE_URING", "False"),
        ];
        let found = made(&all, |_| {}).unwrap();
        assert_eq!((found.heartbeat_ms, found.capacity_bytes, found.uring), (3000, 4096, false));
        assert_eq!(found.evict, Evict::Fifo, "a total size alone turns it on");
        let found = made(&all, |c| (c.heartbeat_ms, c.capacity_bytes) = (7, 1 << 40)).unwrap();
        assert_eq!(found.evict, Evict::Never, "one of the config does not");
        assert_eq!((found.heartbeat_ms, found.capacity_bytes), (7, 1 << 40), "the config comes before the environment");
        assert!(made(&[("NMC_USE_URING", "1")], |_| {}).unwrap().uring);
        assert!(!made(&[("NMC_USE_URING", "1")], |c| c.flags = NMC_TIER_NO_URING).unwrap().uring);
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_named_with_its_text() {
        for (name, text) in [
            ("NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "ten"),
            ("NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "0"),
            ("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "4294968"),
            ("NMC_BUCKET_MAX_TOTAL_SIZE", "-1"),
            ("NMC_BUCKET_MAX_TOTAL_SIZE", "1e9"),
            ("MOONCAKE_USE_URING", "maybe"),
        ] {
            let error = made(&[(name, text)], |_| {}).unwrap_err();
            assert_eq!(error.status, NMC_ERR_INVALID_ARG);
            assert!(error.message.contains(name) && error.message.contains(text), "{}", error.message);
        }
    }

    #[test]
    fn what_is_kept_is_as_the_config_says_and_nonsense_is_refused() {
        let found = made(&[], |c| {
            (c.eviction, c.promote_after, c.admit_reads) = (NMC_EVICT_LRU, 255, (1 << 24) - 1);
            (c.admit_priority, c.write_bytes_per_s) = (3, u64::MAX);
        });
        let found = found.unwrap();
        assert_eq!((found.evict, found.promote_after, found.write_bytes_per_s), (Evict::Lru, 255, u64::MAX));
        assert_eq!((found.admission.reads, found.admission.priority), ((1 << 24) - 1, 3));
        assert_eq!(made(&[], |c| c.eviction = NMC_EVICT_FIFO).unwrap().evict, Evict::Fifo);
        assert_eq!(made(&[], |c| c.backend = NMC_TIER_BACKEND_OFFSET).unwrap().backend, Backend::Offset);
        for wrong in 0..5 {
            let made = made(&[], |c| match wrong {
                0 => c.eviction = 3,
                1 => c.promote_after = 256,
                2 => c.admit_reads = 1 << 24,
                3 => c.backend = 4,
                _ => c.admit_priority = 4,
            });
            assert_eq!(made.unwrap_err().status, NMC_ERR_INVALID_ARG);
        }
    }

    #[test]
    fn every_flag_says_what_its_name_does_and_others_are_refused() {
        let flags = |flags| made(&[], |c| c.flags = flags);
        assert!(!flags(NMC_TIER_NO_DIRECT).unwrap().direct && !flags(NMC_TIER_NO_URING).unwrap().uring);
        assert!(flags(NMC_TIER_DURABLE_REMOVE).unwrap().durable_remove && flags(NMC_TIER_PAUSED).unwrap().paused);
        assert_eq!(flags(NMC_TIER_RESET_IF_DAMAGED).unwrap().on_damage, OnDamage::Reset);
        assert_eq!(flags(NMC_TIER_DELETE_TORN).unwrap().torn, Torn::Delete);
        assert!(flags(NMC_TIER_EVENTS).unwrap().events && flags(NMC_TIER_WRITE_THROUGH).unwrap().write_through);
        assert!(flags(NMC_TIER_OTHER_DIRECTORY).unwrap().other_directory && flags(NMC_TIER_META).unwrap().meta);
        for bit in 10..32 {
            assert!(flags(1 << bit).unwrap_err().message.contains(&format!("flags {:#x}", 1u32 << bit)));
        }
    }
}
