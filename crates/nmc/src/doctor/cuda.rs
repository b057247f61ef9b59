//! CUDA: the driver, each device, and MPS. What the library needs of a device is tried on it: an export of device
//! memory as a descriptor, a legacy IPC handle, registration of host memory.

use super::{Check, Feature, Status};
use crate::facts::size;
use nanomc::cuda::{self, Device, DeviceTable, MIN_DRIVER_CUDA, VmmHeap};
use nanomc::mem::Slab;
use std::path::PathBuf;
use std::sync::Arc;

const HEAPS: &str = "CUDA heaps";
const INSTALL: &str = "install the NVIDIA driver 580 or newer; in a container, start it with the NVIDIA runtime";

/// All checks of this file, and why CUDA heaps cannot be used if they cannot.
pub fn checks() -> (Vec<Check>, Option<String>) {
    let probe = cuda::probe();
    let library = if probe.library { "libcuda.so.1 is loaded" } else { "libcuda.so.1 cannot be loaded" };
    let mut checks = vec![Check::ok("cuda.library", library, HEAPS).missing_if(!probe.library, INSTALL)];
    if probe.library {
        let lacking = probe.missing_symbols.join(", ");
        let text = if lacking.is_empty() { "all there".to_owned() } else { format!("lacks {lacking}") };
        checks.push(Check::ok("cuda.functions", text, HEAPS).missing_if(!lacking.is_empty(), INSTALL));
    }
    if probe.driver_version != 0 {
        let text = format!("CUDA {}, {} is needed", version(probe.driver_version), version(MIN_DRIVER_CUDA));
        checks.push(
            Check::ok("cuda.driver", text, "the embedded kernels")
                .missing_if(probe.driver_version < MIN_DRIVER_CUDA, INSTALL),
        );
    }
    if probe.library && probe.missing_symbols.is_empty() {
        let text = match (&probe.problem, probe.devices) {
            (Some(problem), 0) => problem.clone(),
            (_, n) => n.to_string(),
        };
        checks.push(
            Check::ok("cuda.devices", text, HEAPS)
                .missing_if(probe.devices == 0, "check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        );
    }
    let mut reason = probe.problem.clone();
    if probe.problem.is_none() {
        let per_device: Vec<(Vec<Check>, Feature)> = (0..probe.devices).map(of_device).collect();
        if per_device.iter().all(|(_, feature)| !feature.available) {
            reason = per_device.first().map(|(_, feature)| feature.reason.clone());
        }
        checks.push(mps());
        checks.extend(per_device.into_iter().flat_map(|(checks, _)| checks));
    }
    (checks, reason)
}

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn of_device(ordinal: i32) -> (Vec<Check>, Feature) {
    let name = |fact: &str| format!("gpu{ordinal}.{fact}");
    let device = match Device::open(ordinal) {
        Ok(device) => device,
        Err(error) => {
            let reason = format!("{}: {}", name("model"), error.message);
            let check = Check::ok(name("model"), error.message, HEAPS).missing_if(true, "check nvidia-smi");
            return (vec![check], Feature { name: HEAPS, available: false, reason });
        }
    };
    let facts = device.facts();
    let flag = |fact: &str, has: bool, needed_for, remedy: &str| {
        Check::ok(name(fact), if has { "yes" } else { "no" }, needed_for).missing_if(!has, remedy)
    };
    let capability = format!("{}.{}", facts.cc_major, facts.cc_minor);
    let text = format!("{}, compute capability {capability}, {} SMs", device.name(), facts.sm_count);
    let mut checks = vec![
        Check::ok(name("model"), text, HEAPS)
            .missing_if(facts.cc_major < 8, "the embedded kernels need compute capability 8.0 or newer"),
        Check::ok(name("memory"), size(facts.total_bytes), HEAPS),
        flag("vmm", facts.vmm, HEAPS, "the driver or the virtual machine does not offer it; nothing replaces it"),
    ];
    let export = trial(name("posix_fd_export"), "works", HEAPS, || {
        VmmHeap::create(&device, 2 << 20).and_then(|heap| heap.export_fd()).map(drop)
    });
    checks.push(export);
    let ipc = trial(name("legacy_ipc"), "works", "lending cudaMalloc memory as a heap", || {
        DeviceTable::new(&device, &[0]).and_then(|table| table.export()).map(drop)
    });
    checks.push(downgrade(ipc));
    checks.push(trial(name("host_register"), "works", "control words that kernels can read", || register(&device)));
    checks.push(flag(
        "stream_mem_ops_64",
        facts.stream_mem_ops_64,
        "nmc_world_write_word_async",
        "the driver refuses cuStreamWriteValue64; check NVreg_EnableStreamMemOPs",
    ));
    let fabric =
        if facts.fabric_handle { "the device can; only an export shows whether the machine can" } else { "no" };
    checks.push(Check::ok(name("fabric_handles"), fabric, "heaps across nodes by NVLink (optional)"));
    let atomics = if facts.host_native_atomics { "yes" } else { "no; nanomc does not rely on them" };
    checks.push(Check::ok(name("host_native_atomics"), atomics, "nothing"));
    let needed = ["model", "vmm", "posix_fd_export", "host_register"].map(name);
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    let feature = Feature::from_checks(HEAPS, &checks, &needed);
    (checks, feature)
}

fn trial(name: String, good: &str, needed_for: &'static str, body: impl FnOnce() -> nanomc::base::Result<()>) -> Check {
    match body() {
        Ok(()) => Check::ok(name, good, needed_for),
        Err(error) => Check::ok(name, error.message, needed_for).missing_if(true, "fix what the message names"),
    }
}

/// Something that is nice to have: its absence is a warning.
fn downgrade(check: Check) -> Check {
    if check.status == Status::Missing { Check { status: Status::Warn, ..check } } else { check }
}

fn register(device: &Arc<Device>) -> nanomc::base::Result<()> {
    let slab = Slab::create(c"nmc doctor", 1 << 16, false, &super::trial_deadline())?;
    // The registration ends before the slab it refers to.
    slab.register(device, false).map(drop)
}

fn mps() -> Check {
    let folder =
        std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let running = folder.join("control").exists();
    let text = if running { format!("control daemon at {}", folder.display()) } else { "not running".to_owned() };
    Check::ok("cuda.mps", text, "several ranks on one GPU at full speed").warn_if(
        !running,
        "only if ranks share a GPU: nvidia-cuda-mps-control -d; else they take turns of milliseconds",
    )
}
