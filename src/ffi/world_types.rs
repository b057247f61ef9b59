//! Structs and constants of the world API.

use super::basic::{NMC_ABI_VERSION, nmc_slice_t};
use super::config::Config as Versioned;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::mem::{HeapKind, Import};
use crate::world::config::{Config, DEFAULT_DRAIN_MS, DEFAULT_JOIN_MS, DEFAULT_WORDS, Hosting};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;

/// Heaps in host memory (sealed memfd).
pub const NMC_HEAP_HOST: u32 = 1;
/// Heaps in the memory of a CUDA device.
pub const NMC_HEAP_CUDA: u32 = 2;

/// Use huge pages for a host heap if there are any; `nmc_world_info_t.heap_flags` says whether there were.
pub const NMC_HEAP_HUGE_PAGES: u32 = 1;
/// Fault host heaps in while joining, so that the first access to a page costs what every other does: the own heap, and in
/// this process those of all ranks that are there. It takes about a second per 4 GiB, and counts towards `join_timeout_ms`.
/// Heaps that come later, lent memory and CUDA heaps are left as they are.
pub const NMC_HEAP_POPULATE: u32 = 2;

/// The library allocates the heap.
pub const NMC_IMPORT_NONE: u32 = 0;
/// `ptr`: host memory of this process. Only ranks of the same process can reach it.
pub const NMC_IMPORT_HOST_PTR: u32 = 1;
/// `fd`: a memfd that is sealed with F_SEAL_SHRINK and F_SEAL_GROW.
pub const NMC_IMPORT_HOST_FD: u32 = 2;
/// `ptr`: device memory from `cudaMalloc`, or one VMM allocation that was created as exportable.
pub const NMC_IMPORT_CUDA_PTR: u32 = 3;
/// `fd`: a VMM allocation exported with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
pub const NMC_IMPORT_CUDA_FD: u32 = 4;

/// The master runs in the process of rank 0 (with automatic ranks: of the first process that comes).
pub const NMC_MASTER_RANK0: u32 = 0;
/// The master runs elsewhere: `nmc_master_start` in another process, or `nmc master`.
pub const NMC_MASTER_EXTERNAL: u32 = 1;

/// The rank has not been taken yet.
pub const NMC_RANK_ABSENT: u32 = 0;
/// A process holds the rank.
pub const NMC_RANK_ALIVE: u32 = 1;
/// The process died or broke off; something of it (a forked child, a kernel) may still write to shared memory.
pub const NMC_RANK_DYING: u32 = 2;
/// Provably nothing of the process is left. The rank can be taken again.
pub const NMC_RANK_GONE: u32 = 3;
/// The process left in order. The rank can be taken again.
pub const NMC_RANK_LEFT: u32 = 4;

/// Memory of the engine that is to be used instead of memory of the library. It stays the engine's, and must stay valid
/// until the world is destroyed in every process. It may be lent to only one heap at a time, which is not checked. It
/// must be writable, which is checked for file descriptors only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_memory_t {
    /// One of `NMC_IMPORT_*`.
    pub kind: u32,
    /// File descriptor, for the kinds that need one; it is duplicated. Otherwise -1.
    pub fd: i32,
    /// Address, for the kinds that need one; aligned to 16 bytes. Otherwise NULL.
    pub ptr: *mut c_void,
}

/// How a process joins a world. Start from `NMC_WORLD_CONFIG_INIT`; `name`, `world_size` and `heap_bytes` must be
/// set. Ranks must agree on `world_size`, `min_ranks`, `heap_kind`, `heap_bytes` and `words_per_rank`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_world_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Name under which ranks find each other: 1 to 48 of A-Z a-z 0-9 . _ - of which the first is no dot.
    pub name: nmc_slice_t,
    /// Directory in which they meet; empty for $XDG_RUNTIME_DIR/nanomc or /tmp/nanomc-UID. The library makes a
    /// subdirectory with mode 0700 in it.
    pub dir: nmc_slice_t,
    /// Own rank; -1 for the lowest that is free.
    pub rank: i32,
    /// Number of ranks, 1 to `NMC_MAX_RANKS`; the most there can be, if `min_ranks` is less.
    pub world_size: u32,
    /// Bytes of every rank's heap.
    pub heap_bytes: u64,
    /// `NMC_HEAP_HOST` (default) or `NMC_HEAP_CUDA`.
    pub heap_kind: u32,
    /// `NMC_HEAP_*` flags: 0, or any of `NMC_HEAP_HUGE_PAGES` and `NMC_HEAP_POPULATE`. Ranks may differ.
    pub heap_flags: u32,
    /// Memory of the engine to use as this rank's heap.
    pub heap_import: nmc_memory_t,
    /// CUDA device. -1: none for host heaps, the current context's (else device 0) for CUDA heaps. With a device,
    /// host heaps and words are registered with it.
    pub device: i32,
    /// This rank's number in device code, if that differs from the rank; -1 for the same. No two ranks share one.
    pub device_rank: i32,
    /// Control words per rank; -1 for 64.
    pub words_per_rank: i32,
    /// `NMC_MASTER_RANK0` (default) or `NMC_MASTER_EXTERNAL`.
    pub master: u32,
    /// When joining gives up, in ms; -1 for 30 s.
    pub join_timeout_ms: i64,
    /// How long this process's GPU may go on after its death, in ms, before its memory is reused; -1 for 1 s.
    /// Without a device it is 0.
    pub drain_ms: i32,
    /// CPU to which the library's threads are bound; -1 for none.
    pub service_cpu: i32,
    /// How many ranks must be there for a join to complete; 0 for all. If it is less than `world_size`, the others may
    /// come later, or never: until then they are `NMC_RANK_ABSENT` and have no heap. The master must run: with
    /// `NMC_MASTER_RANK0`, rank 0 must be among the first.
    pub min_ranks: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 3],
}

/// Facts about a world. Set `struct_size` before the call (`NMC_WORLD_INFO_INIT`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_world_info_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Own rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// `NMC_HEAP_HOST` or `NMC_HEAP_CUDA`.
    pub heap_kind: u32,
    /// Bytes of every heap.
    pub heap_bytes: u64,
    /// Random name of this world; a new one each time all ranks have left and others join.
    pub world_id: u64,
    /// Flags that are in effect, such as `NMC_HEAP_HUGE_PAGES`.
    pub heap_flags: u32,
    /// Control words per rank.
    pub words_per_rank: u32,
    /// 1 if the master can be reached, else 0.
    pub master_up: u32,
    /// How many ranks had to be there for a join to complete.
    pub min_ranks: u32,
}

/// Facts about a rank. Set `struct_size` before the call (`NMC_RANK_INFO_INIT`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_rank_info_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// One of `NMC_RANK_*`.
    pub state: u32,
    /// How many processes have held the rank so far.
    pub generation: u64,
    /// Process id of the holder.
    pub pid: u32,
    /// CUDA device in the holder's process; -1 for none.
    pub device: i32,
    /// First byte of its heap in this process; a device pointer for CUDA heaps. NULL if it has none.
    pub heap_base: *mut c_void,
    /// Its number in device code.
    pub device_rank: u32,
    /// Zero.
    pub reserved: u32,
}

/// Size of the config as this library knows it.
#[allow(clippy::cast_possible_truncation, reason = "a struct is smaller than 4 GiB")]
pub(crate) const WORLD_CONFIG_BYTES: u32 = size_of::<nmc_world_config_t>() as u32;

// SAFETY: repr(C), begins with the two u32, integers and raw pointers only; ctest compares size and offsets with C,
// where the same struct has no padding.
unsafe impl Versioned for nmc_world_config_t {
    const NAME: &'static str = "nmc_world_config_t";
    fn defaults() -> Self {
        Self::default()
    }
}

impl Default for nmc_world_config_t {
    /// What `NMC_WORLD_CONFIG_INIT` stores.
    fn default() -> Self {
        let empty = nmc_slice_t { ptr: std::ptr::null(), len: 0 };
        Self {
            struct_size: WORLD_CONFIG_BYTES,
            abi_version: NMC_ABI_VERSION,
            name: empty,
            dir: empty,
            rank: -1,
            world_size: 1,
            heap_bytes: 0,
            heap_kind: NMC_HEAP_HOST,
            heap_flags: 0,
            heap_import: nmc_memory_t { kind: NMC_IMPORT_NONE, fd: -1, ptr: std::ptr::null_mut() },
            device: -1,
            device_rank: -1,
            words_per_rank: -1,
            master: NMC_MASTER_RANK0,
            join_timeout_ms: -1,
            drain_ms: -1,
            service_cpu: -1,
            min_ranks: 0,
            reserved0: 0,
            reserved: [0; 3],
        }
    }
}

/// The bytes of a caller's slice.
///
/// # Safety
/// `slice.ptr` points to `slice.len` readable bytes unless the length is 0.
pub(crate) unsafe fn bytes_of<'a>(slice: nmc_slice_t, name: &str, most: usize) -> Result<&'a [u8]> {
    if slice.len == 0 {
        return Ok(&[]);
    }
    if slice.ptr.is_null() || slice.len > most {
        crate::bail!(NMC_ERR_INVALID_ARG, "{name}: pointer {:p} with length {} (at most {most})", slice.ptr, slice.len);
    }
    // SAFETY: non-null, and the caller promises `len` readable bytes.
    Ok(unsafe { std::slice::from_raw_parts(slice.ptr.cast(), slice.len) })
}

/// `-1` is "not given", other negative numbers are mistakes.
fn optional(value: i32, name: &str) -> Result<Option<u32>> {
    match value {
        -1 => Ok(None),
        v => u32::try_from(v).map(Some).map_err(|_| {
            Error::new(
                crate::base::status::NMC_ERR_INVALID_ARG,
                format!("{name} {v} is neither -1 nor a number from 0 up"),
            )
        }),
    }
}

/// Checks a C config and turns it into the library's.
///
/// # Safety
/// `ptr` is NULL or a config as the C contract says, with valid slices.
pub(crate) unsafe fn parse(ptr: *const nmc_world_config_t) -> Result<Config> {
    // SAFETY: forwarded from the caller.
    let c = unsafe { super::config::read(ptr) }?;
    let Some(heap_kind) = HeapKind::from_code(c.heap_kind) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "heap_kind {} is neither host (1) nor cuda (2)", c.heap_kind);
    };
    if c.heap_flags & !(NMC_HEAP_HUGE_PAGES | NMC_HEAP_POPULATE) != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "heap_flags {:#x} has bits that mean nothing", c.heap_flags);
    }
    if c.reserved.iter().any(|r| *r != 0) || c.reserved0 != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "the reserved fields of the config are not zero; start from its _INIT macro");
    }
    let hosting = match c.master {
        NMC_MASTER_RANK0 => Hosting::Rank0,
        NMC_MASTER_EXTERNAL => Hosting::Elsewhere,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "master {other} is neither rank 0 (0) nor external (1)"),
    };
    // SAFETY: the caller promises valid slices.
    let (name, dir) = unsafe { (bytes_of(c.name, "name", 256)?, bytes_of(c.dir, "dir", 4096)?) };
    if dir.contains(&0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "dir contains a NUL byte");
    }
    let device = optional(c.device, "device")?;
    let config = Config {
        name: crate::world::dir::check_name(name)?.to_owned(),
        dir: (!dir.is_empty()).then(|| std::ffi::OsStr::from_bytes(dir).into()),
        rank: optional(c.rank, "rank")?,
        world_size: c.world_size,
        min_ranks: c.min_ranks,
        heap_kind,
        heap_bytes: c.heap_bytes,
        huge_pages: c.heap_flags & NMC_HEAP_HUGE_PAGES != 0,
        populate: c.heap_flags & NMC_HEAP_POPULATE != 0,
        import: import(&c.heap_import, heap_kind, c.heap_bytes)?,
        device: device.map(|d| i32::try_from(d).unwrap_or(i32::MAX)),
        device_rank: optional(c.device_rank, "device_rank")?,
        words_per_rank: optional(c.words_per_rank, "words_per_rank")?.unwrap_or(DEFAULT_WORDS),
        hosting,
        deadline: Deadline::from_ms(c.join_timeout_ms, DEFAULT_JOIN_MS)?,
        drain_ms: optional(c.drain_ms, "drain_ms")?.unwrap_or(DEFAULT_DRAIN_MS),
        service_cpu: optional(c.service_cpu, "service_cpu")?,
        give_up: std::sync::Arc::default(),
    };
    config.check()?;
    Ok(config)
}

fn import(memory: &nmc_memory_t, kind: HeapKind, bytes: u64) -> Result<Option<Import>> {
    let (fd, pointer) = match memory.kind {
        NMC_IMPORT_NONE => (false, false),
        NMC_IMPORT_HOST_FD | NMC_IMPORT_CUDA_FD => (true, false),
        NMC_IMPORT_HOST_PTR | NMC_IMPORT_CUDA_PTR => (false, true),
        other => crate::bail!(NMC_ERR_INVALID_ARG, "heap_import.kind {other} does not exist"),
    };
    // 0 is what a struct of zeros has.
    if !fd && memory.fd > 0 {
        let nmc_memory_t { fd, kind, .. } = memory;
        crate::bail!(NMC_ERR_INVALID_ARG, "heap_import.fd is {fd}, and kind {kind} uses none: -1, or another kind");
    }
    if !pointer && !memory.ptr.is_null() {
        let nmc_memory_t { ptr, kind, .. } = memory;
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "heap_import.ptr is {ptr:p}, and kind {kind} uses none: NULL, or another kind"
        );
    }
    let address = || -> Result<u64> {
        let address = memory.ptr as u64;
        if address == 0 || !address.is_multiple_of(16) || address.checked_add(bytes).is_none() {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "heap_import.ptr {:p} must be the address of {bytes} bytes, aligned to 16",
                memory.ptr
            );
        }
        Ok(address)
    };
    let descriptor = || {
        if memory.fd < 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "heap_import.fd {} is not a descriptor", memory.fd);
        }
        // SAFETY: borrowed for the duration of the duplication only; a number that is not open gives EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(memory.fd) };
        fd.try_clone_to_owned().map_err(|e| Error::os("dup of heap_import.fd", &e))
    };
    let import = match memory.kind {
        NMC_IMPORT_NONE => return Ok(None),
        // SAFETY: the C contract of nmc_memory_t: as many bytes of the program's, which it keeps until the world is destroyed.
        NMC_IMPORT_HOST_PTR => unsafe { Import::host_ptr(address()?, bytes) },
        NMC_IMPORT_HOST_FD => Import::host_fd(descriptor()?),
        // SAFETY: as above.
        NMC_IMPORT_CUDA_PTR => unsafe { Import::cuda_ptr(address()?, bytes) },
        _ => Import::cuda_fd(descriptor()?),
    };
    if import.kind() != kind {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "heap_import.kind {} does not go with heap_kind {}",
            memory.kind,
            kind.code()
        );
    }
    Ok(Some(import))
}
