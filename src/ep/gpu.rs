//! Launches of the expert-parallel kernels (kernels/ep.cu, kernels/ep_gemm.cu). A launch serves several ranks of this process;
//! it only enqueues and can be captured.
#![allow(unsafe_code, reason = "a launch passes arguments by address")]

use super::calls::{CallArgs, CallKind};
use super::forward::Gemm;
use super::sys::Given;
use crate::bail;
use crate::base::error::Result;
use crate::cuda::{Device, Kernel, Launch, arg};
use crate::layout::ep::{Dtype, MAX_EP_RANKS, RankDesc, Shape};
use std::ffi::c_void;
use std::sync::Arc;

/// Most experts of a rank that the pack kernel can count.
pub(super) const MAX_LOCAL_EXPERTS: u32 = 1024;
/// Threads of a block that packs.
const PACK_THREADS: u32 = 256;
/// Shared memory that a dispatch asks for, though it needs none, so that no multiprocessor takes more than two blocks.
const SPREAD_BYTES: u32 = 96 << 10;
/// Threads, and columns of a block, of the product; see kernels/ep_gemm.cu.
const GEMM_THREADS: u32 = 128;
const GEMM_TILE_N: u32 = 64;
const SILU_THREADS: u32 = 256;
const SILU_BLOCKS: u32 = 16;

/// NmcEpGroup in kernels/ep.cu.
#[repr(C)]
struct Ranks<const N: usize> {
    rank: [RankDesc; N],
    call: [CallArgs; N],
    n: u32,
    early: u32,
}

/// When the next kernel of the stream may be placed. It begins its work after this one in any case. NMC_EP_EARLY_* in
/// kernels/ep.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Early {
    /// When this one ends.
    Never = 0,
    /// While a dispatch waits.
    Waiting = 1,
    /// Also while a combine sums. The blocks of the next dispatch are kept from crowding the multiprocessors that are free
    /// first.
    Always = 3,
}

/// How a step is launched.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLaunch {
    pub(super) kind: CallKind,
    /// Blocks a rank; for pack, parts of each expert.
    pub(super) blocks: u32,
    /// Threads a block, a multiple of 32; pack has its own number.
    pub(super) threads: u32,
    pub(super) early: Early,
}

/// The device of a rank, and the kernels on it.
pub(super) struct Gpu {
    pub(super) device: Arc<Device>,
    /// By kind of call, for 1, 8 and 32 ranks.
    steps: [[Kernel; 3]; 4],
    gemm: Kernel,
    /// For bf16, fp16 and fp32.
    silu_mul: [Kernel; 3],
}

impl Gpu {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let kernels = device.kernels()?;
        let three = |names: [&core::ffi::CStr; 3]| -> Result<[Kernel; 3]> {
            let [a, b, c] = names.map(|name| kernels.find(name));
            Ok([a?, b?, c?])
        };
        let steps = [
            three([c"nmc_k_ep_dispatch_1", c"nmc_k_ep_dispatch_8", c"nmc_k_ep_dispatch_32"])?,
            three([c"nmc_k_ep_combine_1", c"nmc_k_ep_combine_8", c"nmc_k_ep_combine_32"])?,
            three([c"nmc_k_ep_pack_1", c"nmc_k_ep_pack_8", c"nmc_k_ep_pack_32"])?,
            three([c"nmc_k_ep_scatter_1", c"nmc_k_ep_scatter_8", c"nmc_k_ep_scatter_32"])?,
        ];
        for dispatch in steps[0] {
            kernels.allow_shared(dispatch, SPREAD_BYTES)?;
        }
        let gemm = kernels.find(c"nmc_k_ep_gemm")?;
        let silu_mul = three([c"nmc_k_ep_silu_mul", c"nmc_k_ep_silu_mul_fp16", c"nmc_k_ep_silu_mul_fp32"])?;
        Ok(Self { device: Arc::clone(device), steps, gemm, silu_mul })
    }

    /// The kernel for launches of one rank (0), up to 8 (1), or more (2).
    fn step(&self, kind: CallKind, size: usize) -> Kernel {
        let row = match kind {
            CallKind::Dispatch => &self.steps[0],
            CallKind::Combine => &self.steps[1],
            CallKind::Pack => &self.steps[2],
            CallKind::Scatter => &self.steps[3],
        };
        row[size % 3]
    }

    /// Blocks of a step that the device can hold at once.
    pub(super) fn resident_blocks(&self, kind: CallKind, threads: u32) -> Result<u32> {
        self.device.kernels()?.resident_blocks(self.step(kind, 0), threads)
    }

    /// Enqueues a step for the ranks in `ranks`.
    pub(super) fn launch(&self, stream: *mut c_void, how: StepLaunch, ranks: &[(RankDesc, CallArgs)]) -> Result<()> {
        match ranks.len() {
            0 => Ok(()),
            1 => self.launch_sized::<1>(stream, how, ranks, 0),
            2..=8 => self.launch_sized::<8>(stream, how, ranks, 1),
            9..=MAX_EP_RANKS => self.launch_sized::<MAX_EP_RANKS>(stream, how, ranks, 2),
            n => bail!(NMC_ERR_LIMIT, "{n} ranks in one launch; at most {MAX_EP_RANKS} are possible"),
        }
    }

    fn launch_sized<const N: usize>(
        &self,
        stream: *mut c_void,
        how: StepLaunch,
        ranks: &[(RankDesc, CallArgs)],
        size: usize,
    ) -> Result<()> {
        let Some(first) = ranks.first() else { return Ok(()) };
        let n = u32::try_from(ranks.len()).unwrap_or(0);
        let mut all = Ranks { rank: [first.0; N], call: [first.1; N], n, early: how.early as u32 };
        for (i, (rank, call)) in ranks.iter().enumerate() {
            all.rank[i % N] = *rank;
            all.call[i % N] = *call;
        }
        let (grid, threads) = match how.kind {
            CallKind::Pack => ((first.0.n_local * n, how.blocks), PACK_THREADS),
            _ => ((how.blocks * n, 1), how.threads),
        };
        let spread = how.kind == CallKind::Dispatch && how.early == Early::Always;
        let launch = Launch {
            grid,
            threads,
            shared_bytes: if spread { SPREAD_BYTES } else { 0 },
            // A pack has many blocks: placed while a dispatch waits they would take the room of another rank's dispatch.
            overlaps: how.early != Early::Waiting || how.kind != CallKind::Pack,
        };
        // SAFETY: found on this device; the kernel takes one NmcEpGroup of this size.
        unsafe { self.device.kernels()?.launch_on(stream, self.step(how.kind, size), launch, &mut [arg(&all)]) }
    }

    /// Enqueues a product of bf16 rows.
    pub(super) fn gemm(&self, stream: *mut c_void, shape: &Shape, g: &Gemm) -> Result<()> {
        let (groups, max_m) = (shape.groups(), shape.max_m);
        let mut arguments = [
            arg(&g.a),
            arg(&g.b),
            arg(&g.c),
            arg(&g.masked_m),
            arg(&g.group_expert),
            arg(&groups),
            arg(&max_m),
            arg(&g.n),
            arg(&g.k),
        ];
        let grid = (g.n.div_ceil(GEMM_TILE_N), groups);
        let launch = Launch { grid, threads: GEMM_THREADS, shared_bytes: 0, overlaps: false };
        // SAFETY: found on this device; order and types are those of nmc_k_ep_gemm in kernels/ep_gemm.cu.
        unsafe { self.device.kernels()?.launch_on(stream, self.gemm, launch, &mut arguments) }
    }

    /// Enqueues `silu(gate) * up` for the rows in use. Memory: (gate_up, result, masked_m).
    pub(super) fn silu_mul(
        &self,
        stream: *mut c_void,
        shape: &Shape,
        (gate_up, act, masked_m): (Given, Given, Given),
        inner: u32,
    ) -> Result<()> {
        let (groups, max_m) = (shape.groups(), shape.max_m);
        let mut arguments = [arg(&gate_up), arg(&act), arg(&masked_m), arg(&groups), arg(&max_m), arg(&inner)];
        let [bf16, fp16, fp32] = self.silu_mul;
        let kernel = match shape.dtype {
            Dtype::Bf16 => bf16,
            Dtype::Fp16 => fp16,
            Dtype::Fp32 => fp32,
            Dtype::Fp8 => bail!(NMC_ERR_UNSUPPORTED, "the activation has no fp8"),
        };
        let grid = (max_m.min(SILU_BLOCKS), groups);
        let launch = Launch { grid, threads: SILU_THREADS, shared_bytes: 0, overlaps: false };
        // SAFETY: found on this device; order and types are those of nmc_k_ep_silu_mul and its siblings in kernels/ep_gemm.cu.
        unsafe { self.device.kernels()?.launch_on(stream, kernel, launch, &mut arguments) }
    }
}
