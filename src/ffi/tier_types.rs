//! Structs and constants of the SSD tier's API, and the environment that stands in for what a config leaves open.

use super::basic::{NMC_ABI_VERSION, nmc_slice_t};
use super::config::Config as Versioned;
use super::world_types::bytes_of;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::tier::{Config, OnDamage, Scanned, Stats, Torn, Verified};
use std::ffi::{OsStr, OsString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Read and write through the page cache. Without it files are opened with `O_DIRECT` where the file system can do that.
pub const NMC_TIER_NO_DIRECT: u32 = 1;
/// Do not use io_uring: one `preadv` or `pwritev` after the other.
pub const NMC_TIER_NO_URING: u32 = 2;
/// A remove, a replacement or a flush returns when it is safe from a power loss. Without it, it is safe from the death of any
/// process when it returns, and from a power loss after the next `nmc_tier_sync`.
pub const NMC_TIER_DURABLE_REMOVE: u32 = 4;
/// Begin paused: nothing is written before `nmc_tier_resume` or `nmc_tier_offload`.
pub const NMC_TIER_PAUSED: u32 = 8;
/// If the head or the journal of the directory is damaged, delete all files of the tier in it and begin empty. Without it,
/// opening fails with `NMC_ERR_CORRUPT` and changes nothing.
pub const NMC_TIER_RESET_IF_DAMAGED: u32 = 16;
/// Delete buckets whose end is damaged. Without it they get another name, so that somebody can look at them.
pub const NMC_TIER_DELETE_TORN: u32 = 32;

/// Told how far a recovery is: `done` of `total` buckets are read. Called on the thread that opens the tier; must not throw.
pub type nmc_tier_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64)>;

/// Told how far a verification is: `done` of `total` values are read. Returns 0 to end it. Called on the calling thread; must not
/// throw. It may call nmc functions, but not close this tier.
pub type nmc_tier_verify_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64) -> i32>;

/// How a tier is opened. Start from `NMC_TIER_CONFIG_INIT` and set `directory`. In a number, 0 stands for the default.
///
/// Three fields that are left open take their value from the environment: `heartbeat_ms` from
/// `NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS`, `capacity_bytes` from `NMC_BUCKET_MAX_TOTAL_SIZE`, and `NMC_TIER_NO_URING`, where it is
/// not set, from `NMC_USE_URING`. If such a variable is not set or empty, the one with `MOONCAKE_` in the place of `NMC_` counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Path of the directory. Its last part is made if it is not there, for this user alone. One process at a
    /// time can own it.
    pub directory: nmc_slice_t,
    /// Most values on disk; 0 for a million, or twice as many as are found there. Each takes up to 100 bytes of memory.
    pub max_objects: u64,
    /// Most bytes that the files take; 0 for the environment, or no limit but the file system's.
    pub capacity_bytes: u64,
    /// Bytes after which a bucket is complete and gets its name, up to 2^40; 0 for 256 MiB.
    pub bucket_bytes: u64,
    /// Values after which it is; 0 for 500.
    pub bucket_keys: u32,
    /// Longest time between two looks for something to write, in ms; 0 for the environment, or 10 s. Under pressure it looks at once.
    pub heartbeat_ms: u32,
    /// Most requests in flight for one call, up to 4,096; 0 for 32.
    pub depth: u32,
    /// 0, or `NMC_TIER_*` flags.
    pub flags: u32,
    /// Told how far the recovery is, or NULL.
    pub progress: nmc_tier_progress_fn,
    /// Passed to it.
    pub progress_user: *mut c_void,
    /// Zero.
    pub reserved: [u64; 4],
}

/// A tier in numbers: those of its owner since it was opened, unless said otherwise. Start from `NMC_TIER_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// 1 if this process owns the tier.
    pub owner: u32,
    /// Values that can be read from disk now.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Most values that the index has room for.
    pub max_objects: u64,
    /// Bytes that the files take now.
    pub file_bytes: u64,
    /// Buckets there are now.
    pub buckets: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Values written.
    pub written_objects: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Buckets written.
    pub written_buckets: u64,
    /// Values that left memory when the disk had them.
    pub evicted_clean: u64,
    /// Values that left memory when the disk did not have them: these are lost.
    pub evicted_dirty: u64,
    /// Times that something could not be kept on disk, because the file system, `capacity_bytes` or `max_objects` was used up.
    pub full: u64,
    /// Values that could not be read, and ended.
    pub corrupt: u64,
    /// Writes and syncs that failed.
    pub errors: u64,
    /// 1 if offloading is paused (`nmc_tier_pause`).
    pub paused: u64,
    /// 1 if the disk refuses to be written: reads go on, offloading has stopped, and removals are done in memory and return
    /// `NMC_ERR_IO`.
    pub degraded: u64,
    /// Values that the recovery found.
    pub recovered_objects: u64,
    /// Buckets that it read.
    pub recovered_buckets: u64,
    /// How long it took, in ns.
    pub recovery_ns: u64,
    /// Values that it found removed or damaged, or had no room for in the index.
    pub recovered_dead: u64,
    /// Values that this process has read from disk.
    pub read_objects: u64,
    /// Their bytes.
    pub read_bytes: u64,
}

/// What a verification found. Start from `NMC_TIER_VERIFIED_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_verified_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Values that are right.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Values that are not: they ended.
    pub corrupt: u64,
}

/// A value on disk.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_tier_entry_t {
    /// Size of this struct as the library knows it: what lies behind it is not there.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of its namespace; empty for the one that a store begins with.
    pub namespace_name: nmc_slice_t,
    /// Its key.
    pub key: nmc_slice_t,
    /// Bytes of the value.
    pub bytes: u64,
    /// Epoch of the object: another object with the same key has another one.
    pub epoch: u64,
    /// Number of the bucket that it lies in.
    pub bucket: u64,
    /// Where it begins there, in blocks of 4 KiB.
    pub block: u64,
}

/// Gets a value that is on disk; `entry` and what it points to are valid during the call. Returns 0 to end the scan. Called on the
/// calling thread; must not throw. It may call nmc functions, but not close this tier.
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
    | NMC_TIER_DELETE_TORN;
/// Longest path that is looked at.
const MAX_PATH: usize = 4096;
/// The kernel's rings are not much larger.
const MAX_DEPTH: u32 = 4096;
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

/// The library's config for one of C, with what `environment` says where that says nothing.
fn translate(
    c: &nmc_tier_config_t,
    directory: PathBuf,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Config> {
    if c.flags & !FLAGS != 0 || c.reserved.iter().any(|r| *r != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {:#x} or a reserved field has bits that mean nothing", c.flags);
    }
    if c.depth > MAX_DEPTH {
        crate::bail!(NMC_ERR_INVALID_ARG, "depth {} is above {MAX_DEPTH}", c.depth);
    }
    if c.bucket_bytes > MAX_BUCKET_BYTES {
        crate::bail!(NMC_ERR_INVALID_ARG, "bucket_bytes {} is above {MAX_BUCKET_BYTES}", c.bucket_bytes);
    }
    let default = Config::default();
    let heartbeat_ms = match c.heartbeat_ms {
        0 => seconds_of(&environment)?.map_or(default.heartbeat_ms, |seconds| seconds * 1000),
        ms => ms,
    };
    let capacity_bytes = match c.capacity_bytes {
        0 => total_size_of(&environment)?.unwrap_or(default.capacity_bytes),
        bytes => bytes,
    };
    // Looked at whatever the flag says: a variable that is wrong is told of, not forgotten.
    let uring = switch_of(&environment)?.unwrap_or(default.uring);
    Ok(Config {
        backend: crate::tier::Backend::Bucket,
        meta: false,
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
        let found = made(&all, |c| (c.heartbeat_ms, c.capacity_bytes) = (7, 1 << 40)).unwrap();
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
    fn every_flag_says_what_its_name_does_and_others_are_refused() {
        let flags = |flags| made(&[], |c| c.flags = flags);
        assert!(!flags(NMC_TIER_NO_DIRECT).unwrap().direct && !flags(NMC_TIER_NO_URING).unwrap().uring);
        assert!(flags(NMC_TIER_DURABLE_REMOVE).unwrap().durable_remove && flags(NMC_TIER_PAUSED).unwrap().paused);
        assert_eq!(flags(NMC_TIER_RESET_IF_DAMAGED).unwrap().on_damage, OnDamage::Reset);
        assert_eq!(flags(NMC_TIER_DELETE_TORN).unwrap().torn, Torn::Delete);
        for bit in 6..32 {
            assert!(flags(1 << bit).unwrap_err().message.contains(&format!("flags {:#x}", 1u32 << bit)));
        }
    }
}
