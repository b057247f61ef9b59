//! Launches of the expert-parallel kernels (kernels/ep.cu, kernels/ep_gemm.cu). A launch serves several ranks of this process;
//! it only enqueues and can be captured.
#![allow(unsafe_code, reason = "a launch passes arguments by address")]

use super::calls::{CallArgs, CallKind};
use super::layer::{Activation, Gemm};
use crate::bail;
use crate::base::error::Result;
use crate::cuda::GivenStream;
use crate::cuda::{Device, Kernel, Launch, arg};
use crate::layout::ep::{Dtype, MAX_EP_RANKS, RankDesc, Shape, Wire};
use std::ffi::CString;
use std::sync::Arc;

/// Threads of a block that packs; see kernels/ep.cu.
pub(super) const PACK_THREADS: u32 = 256;
/// Vectors of 16 bytes, or for quantising elements, that a warp works on at a time; see kernels/ep.cu.
const SEND_UNIT: u32 = 64;
const QUANTISE_UNIT: u32 = 512;
const SUM_UNIT: u32 = 32;
const PACK_UNIT: u32 = 128;
const SCATTER_UNIT: u32 = 64;
/// Shared memory that a dispatch may ask for, though it needs none: so much that a multiprocessor with 228 KiB takes one block, or
/// two.
pub(super) const SPREAD_ONE: u32 = 120 << 10;
pub(super) const SPREAD_TWO: u32 = 96 << 10;
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
    parts: u32,
    parts_inverse: u32,
    share_bits: u32,
}

/// When the next kernel of the stream may be placed. It begins its work after this one in any case. Unless it is never
/// early, the blocks of a dispatch are kept from crowding the multiprocessors that are free first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Early {
    /// When this one ends.
    Never,
    /// While a dispatch sends and waits, unless it is a pack; as blocks of a pack or a scatter end; and while a combine sums.
    Sharing,
    /// While a dispatch waits, and while a combine sums.
    Always,
    /// At once. All ranks of the group are in the launch: nobody is told or waited for.
    Alone,
}

impl Early {
    /// NMC_EP_EARLY_* and NMC_EP_ALONE in kernels/ep.cu.
    fn bits(self) -> u32 {
        match self {
            Early::Never => 0,
            Early::Sharing => 2 | 8,
            Early::Always => 1 | 2,
            Early::Alone => 4,
        }
    }
}

/// How a step is launched.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLaunch {
    pub(super) kind: CallKind,
    /// Blocks a rank, or for a pack an expert, and threads a block, a multiple of 32.
    pub(super) blocks: u32,
    pub(super) threads: u32,
    pub(super) early: Early,
    /// Shared memory that a dispatch asks for.
    pub(super) spread: u32,
}

/// The device of a rank, and the kernels on it that its group needs.
pub(super) struct Gpu {
    pub(super) device: Arc<Device>,
    /// By kind of call, for 1, 8 and 32 ranks.
    steps: [[Kernel; 3]; 4],
    gemm: Kernel,
    silu_mul: Kernel,
}

impl Gpu {
    /// Finds the kernels now: loading one may wait for kernels that wait for this rank, and is not legal in a capture.
    pub(super) fn new(device: &Arc<Device>, shape: &Shape) -> Result<Self> {
        let kernels = device.kernels()?;
        let dtype = match shape.dtype {
            Dtype::Bf16 => "bf16",
            Dtype::Fp16 => "fp16",
            Dtype::Fp32 => "fp32",
            Dtype::Fp8 => bail!(NMC_ERR_UNSUPPORTED, "rows are not summed in fp8"),
        };
        let rows = match shape.wire {
            Wire::Same => "copy",
            Wire::Quantised => dtype,
            Wire::Given => "given",
        };
        let find = |name: String| kernels.find(&CString::new(name).unwrap_or_default());
        let step = |name: &str, of: &str| -> Result<[Kernel; 3]> {
            let [a, b, c] = [1, 8, 32].map(|ranks| find(format!("nmc_k_ep_{name}_{of}_{ranks}")));
            Ok([a?, b?, c?])
        };
        let steps = [step("dispatch", rows)?, step("combine", dtype)?, step("pack", "rows")?, step("scatter", dtype)?];
        for dispatch in steps[0] {
            kernels.allow_shared(dispatch, SPREAD_ONE)?;
        }
        let gemm = find(String::from("nmc_k_ep_gemm"))?;
        let silu_mul = find(format!("nmc_k_ep_silu_mul_{dtype}"))?;
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

    /// Blocks of a step that the device can hold at once, whichever of its kernels is launched.
    pub(super) fn resident_blocks(&self, kind: CallKind, threads: u32) -> Result<u32> {
        let kernels = self.device.kernels()?;
        (0..3).try_fold(u32::MAX, |least, size| Ok(least.min(kernels.resident_blocks(self.step(kind, size), threads)?)))
    }

    /// Enqueues a step for the ranks in `ranks`.
    pub(super) fn launch(&self, stream: GivenStream, how: StepLaunch, ranks: &[(RankDesc, CallArgs)]) -> Result<()> {
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
        stream: GivenStream,
        how: StepLaunch,
        ranks: &[(RankDesc, CallArgs)],
        size: usize,
    ) -> Result<()> {
        let Some(first) = ranks.first() else { return Ok(()) };
        let n = u32::try_from(ranks.len()).unwrap_or(0);
        let parts = pieces(how.kind, &first.0);
        let (early, parts_inverse) = (how.early.bits(), u32::MAX / parts);
        // Lists alone are made by one block an expert.
        let share_bits = if first.1.out.is_none() { 0 } else { how.blocks.trailing_zeros() };
        let mut all = Ranks { rank: [first.0; N], call: [first.1; N], n, early, parts, parts_inverse, share_bits };
        for (i, (rank, call)) in ranks.iter().enumerate() {
            all.rank[i % N] = *rank;
            all.call[i % N] = *call;
        }
        let blocks = if how.kind == CallKind::Pack { first.0.n_local << share_bits } else { how.blocks };
        let spread = how.kind == CallKind::Dispatch && how.early != Early::Never;
        let launch = Launch {
            grid: (n, blocks),
            threads: how.threads,
            shared_bytes: if spread { how.spread } else { 0 },
            // A pack has many blocks: placed while a dispatch waits they would take the room of another rank's dispatch.
            overlaps: how.early != Early::Sharing || how.kind != CallKind::Pack,
        };
        // SAFETY: found on this device; the kernel takes one NmcEpGroup of this size.
        unsafe { self.device.kernels()?.launch_on(stream.raw(), self.step(how.kind, size), launch, &mut [arg(&all)]) }
    }

    /// Enqueues a product of bf16 rows.
    pub(super) fn gemm(&self, stream: GivenStream, shape: &Shape, g: &Gemm) -> Result<()> {
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
        unsafe { self.device.kernels()?.launch_on(stream.raw(), self.gemm, launch, &mut arguments) }
    }

    /// Enqueues `silu(gate) * up` for the rows in use.
    pub(super) fn silu_mul(&self, stream: GivenStream, shape: &Shape, a: &Activation) -> Result<()> {
        let (groups, max_m) = (shape.groups(), shape.max_m);
        let mut arguments = [arg(&a.gate_up), arg(&a.act), arg(&a.masked_m), arg(&groups), arg(&max_m), arg(&a.inner)];
        let grid = (max_m.min(SILU_BLOCKS), groups);
        let launch = Launch { grid, threads: SILU_THREADS, shared_bytes: 0, overlaps: false };
        // SAFETY: found on this device; order and types are those of nmc_k_ep_silu_mul and its siblings in kernels/ep_gemm.cu.
        unsafe { self.device.kernels()?.launch_on(stream.raw(), self.silu_mul, launch, &mut arguments) }
    }
}

/// Pieces of a row that the warps of a step work on.
fn pieces(kind: CallKind, d: &RankDesc) -> u32 {
    match kind {
        CallKind::Dispatch if d.wire == Wire::Quantised as u32 => d.hidden.div_ceil(QUANTISE_UNIT),
        CallKind::Dispatch => (d.x_bytes / 16).div_ceil(SEND_UNIT),
        CallKind::Combine => (d.y_bytes / 16).div_ceil(SUM_UNIT),
        CallKind::Pack => (d.x_bytes / 16).div_ceil(PACK_UNIT),
        CallKind::Scatter => (d.y_bytes / 16).div_ceil(SCATTER_UNIT),
    }
}
