//! Finds out whether CUDA can be used, without ever panicking: cudarc panics on a missing library or symbol, so every
//! symbol that `cuda` calls is looked up here first. The answer is computed once and cached; any layer may ask.
//!
//! `cuInit` runs here. A process that forks afterwards cannot use CUDA in the child (a limit of the driver), so probe
//! after the last fork that needs CUDA; [`require`] answers `NMC_ERR_FORKED` in such a child.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUresult};
use once_cell::sync::OnceCell;

use super::error::failure;
use crate::bail;
use crate::base::error::Result;

/// Oldest CUDA version of the driver, as `cuDriverGetVersion` counts it: 13.0, which is driver branch 580.
///
/// The embedded fatbin is made by nvcc 13.0. Its machine code (sm_80, sm_90, sm_100) is supported by drivers of CUDA
/// major version 13 and later, and its PTX is ISA 9.0, which only a driver of CUDA 13.0 or later can compile. The driver
/// functions themselves need 12.0; a rebuild with `NMC_NVCC` of an older toolkit may lower this number.
pub const MIN_DRIVER_CUDA: i32 = 13_000;

/// Every driver function that `src/cuda` calls; a test compares the list with the sources.
pub(super) const SYMBOLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFlushGPUDirectRDMAWrites",
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWriteValue64_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// What the probe found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probe {
    /// The driver library could be loaded.
    pub library: bool,
    /// Functions that the library needs and the driver does not have.
    pub missing_symbols: Vec<&'static str>,
    /// CUDA version of the driver (13000 is 13.0); 0 when unknown.
    pub driver_version: i32,
    /// Visible devices.
    pub devices: i32,
    /// Why CUDA cannot be used and what to do about it; `None` when it can.
    pub problem: Option<String>,
}

struct Cached {
    probe: Probe,
    pid: u32,
}

static PROBE: OnceCell<Cached> = OnceCell::new();

fn cached() -> &'static Cached {
    PROBE.get_or_init(|| Cached { probe: look(), pid: std::process::id() })
}

/// Whether CUDA can be used. The first call loads the driver and runs `cuInit`; later calls return the same answer.
pub fn probe() -> &'static Probe {
    &cached().probe
}

/// Whether the driver's library is in this process. If it is not, no address can belong to a device, and nobody needs the
/// probe, which would load it. Cheap enough to be asked for every call.
pub fn in_process() -> bool {
    /// How many libraries had been loaded when it was not there, and 0 for never; [`THERE`] once it was.
    static SEEN: AtomicU64 = AtomicU64::new(0);
    const THERE: u64 = u64::MAX;
    let seen = SEEN.load(Ordering::Relaxed);
    if seen == THERE {
        return true;
    }
    let loaded = libraries_loaded();
    if seen != 0 && loaded == seen {
        return false;
    }
    // SAFETY: the name ends with NUL; a library that is not there is not loaded.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        SEEN.store(loaded, Ordering::Relaxed);
        return false;
    }
    // SAFETY: gives back the reference that was just taken.
    unsafe { libc::dlclose(library) };
    SEEN.store(THERE, Ordering::Relaxed);
    true
}

/// How many libraries this process has loaded so far.
fn libraries_loaded() -> u64 {
    extern "C" fn note(info: *mut libc::dl_phdr_info, _bytes: usize, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes what it says, and the place is that of the caller.
        unsafe { *out.cast::<u64>() = (*info).dlpi_adds };
        1 // the first one is enough
    }
    let mut loaded = 0_u64;
    // SAFETY: the function keeps to its type, and the place outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut loaded).cast()) };
    loaded
}

/// `Ok` when CUDA can be used; `NMC_ERR_UNSUPPORTED` with the reason and the remedy, or `NMC_ERR_FORKED`, when not.
pub fn require() -> Result<()> {
    let Cached { probe, pid } = cached();
    if let Some(problem) = &probe.problem {
        bail!(NMC_ERR_UNSUPPORTED, "{problem}");
    }
    if *pid != std::process::id() {
        bail!(
            NMC_ERR_FORKED,
            "process {pid} initialised CUDA before it forked this one; fork first, or exec the child"
        );
    }
    Ok(())
}

fn look() -> Probe {
    let mut found = Probe::default();
    found.problem = find_problem(&mut found);
    found
}

fn find_problem(found: &mut Probe) -> Option<String> {
    // SAFETY: loads the driver library, whose constructors are NVIDIA's and run in any CUDA program.
    found.library = unsafe { sys::is_culib_present() };
    if !found.library {
        return Some(String::from(
            "the CUDA driver library (libcuda.so.1) cannot be loaded; install the NVIDIA driver 580 or newer and, in a \
             container, start it with the NVIDIA runtime, or use host memory (NMC_HEAP_HOST)",
        ));
    }
    found.missing_symbols = SYMBOLS
        .iter()
        .copied()
        // SAFETY: the library is present, so `culib` does not panic; the pointer is looked up and not used.
        .filter(|name| unsafe { sys::culib().get::<*const ()>(name.as_bytes()) }.is_err())
        .collect();
    if !found.missing_symbols.is_empty() {
        return Some(format!(
            "the CUDA driver lacks {}; install the NVIDIA driver 580 or newer",
            found.missing_symbols.join(", ")
        ));
    }
    // SAFETY: the symbol is there; 0 is the only legal flag.
    let result = unsafe { sys::cuInit(0) };
    if result != CUresult::CUDA_SUCCESS {
        return Some(format!("{}; check that nvidia-smi lists a GPU", failure("cuInit", result).message));
    }
    // SAFETY: the symbol is there and the out-pointer is a local.
    let result = unsafe { sys::cuDriverGetVersion(&raw mut found.driver_version) };
    if result != CUresult::CUDA_SUCCESS {
        return Some(failure("cuDriverGetVersion", result).message);
    }
    if found.driver_version < MIN_DRIVER_CUDA {
        return Some(format!(
            "the NVIDIA driver supports CUDA {}, and {} is needed; install driver 580 or newer",
            version(found.driver_version),
            version(MIN_DRIVER_CUDA)
        ));
    }
    // SAFETY: the symbol is there and the out-pointer is a local.
    let result = unsafe { sys::cuDeviceGetCount(&raw mut found.devices) };
    if result != CUresult::CUDA_SUCCESS {
        return Some(failure("cuDeviceGetCount", result).message);
    }
    if found.devices == 0 {
        return Some(String::from("the NVIDIA driver shows no device; check CUDA_VISIBLE_DEVICES"));
    }
    None
}

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test may")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::base::status::NMC_ERR_UNSUPPORTED;

    /// Names after `sys::` that look like driver functions and are called.
    fn called_in(source: &str) -> BTreeSet<String> {
        let names = source.split("sys::").skip(1);
        names
            .filter_map(|rest| {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
                let (name, rest) = rest.split_at(end);
                (name.starts_with("cu") && name != "culib" && rest.starts_with('(')).then(|| name.to_owned())
            })
            .collect()
    }

    #[test]
    fn every_driver_function_that_is_called_is_probed_first() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
        let mut called = BTreeSet::new();
        for entry in std::fs::read_dir(folder).expect("src/cuda") {
            let path = entry.expect("entry").path();
            let source = std::fs::read_to_string(path).expect("source");
            let code: Vec<&str> = source.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
            called.extend(called_in(&code.join("\n")));
        }
        let listed: BTreeSet<String> = SYMBOLS.iter().map(|&s| s.to_owned()).collect();
        assert_eq!(listed.len(), SYMBOLS.len(), "a name is listed twice");
        assert_eq!(called, listed);
    }

    #[test]
    fn the_search_for_calls_finds_a_call_that_is_not_listed() {
        // Written with a marker, so that the search above does not find it in this file.
        let source = "call!(@cuNotListed(0)); use @cuOnlyNamed; @culib();".replace('@', "sys::");
        let found = called_in(&source);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["cuNotListed"]);
    }

    #[test]
    fn the_probe_answers_with_a_device_or_with_a_reason() {
        let probe = probe();
        match &probe.problem {
            None => assert!(probe.library && probe.missing_symbols.is_empty() && probe.devices > 0),
            Some(reason) => {
                assert!(reason.len() > 20, "{reason}");
                let error = require().expect_err("a problem is an error");
                assert_eq!(error.status, NMC_ERR_UNSUPPORTED);
                assert_eq!(&error.message, reason);
                assert!(probe.library || reason.contains("libcuda.so.1"));
            }
        }
    }

    #[test]
    fn a_version_is_written_as_people_say_it() {
        assert_eq!(version(MIN_DRIVER_CUDA), "13.0");
        assert_eq!(version(12_080), "12.8");
    }
}
