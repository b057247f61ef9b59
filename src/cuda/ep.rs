//! Launches of the expert-parallel kernels (kernels/ep.cu). A launch serves several ranks of this process; it only
//! enqueues and can be captured. `ep` calls this.

use core::ffi::{CStr, c_void};

use cudarc::driver::sys::{self, CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};

use super::device::Device;
use super::error::call;
use super::kernels::{Kernels, arg};
use crate::bail;
use crate::base::error::Result;
use crate::layout::ep::{Dtype, MAX_EP_RANKS, RankDesc};

/// Most experts of a rank that the pack kernel can count.
pub const MAX_LOCAL_EXPERTS: u32 = 1024;
/// Threads of a block that packs.
const PACK_THREADS: u32 = 256;

/// The kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpKernel {
    /// Rows to the experts' ranks.
    Dispatch,
    /// Rows back, and their sum.
    Combine,
    /// Received rows into groups by expert.
    Pack,
    /// Rows of groups into one row a token.
    Scatter,
}

/// What one rank wants done; NmcEpCall in kernels/ep.cu. Addresses are device addresses, 0 for none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct EpCall {
    /// Dispatch: rows. Combine: rows to return, 0 if they are in place.
    pub x: u64,
    /// Dispatch: scales of given fp8 rows.
    pub scales: u64,
    /// Dispatch: expert numbers.
    pub idx: u64,
    /// Dispatch: weights.
    pub weight: u64,
    /// Dispatch: where the number of tokens is; 0 for `tokens`.
    pub tokens_at: u64,
    /// Combine: rows. Pack: grouped rows. Scatter: rows, 0 for in place.
    pub out: u64,
    /// Pack: grouped scales.
    pub out_scales: u64,
    /// Pack: rows of each group.
    pub masked_m: u64,
    /// Pack: expert of each group.
    pub group_expert: u64,
    /// Pack and scatter: the row of each slot and entry.
    pub row_of: u64,
    /// Pack: the slot of each row.
    pub row_index: u64,
    /// Scatter: grouped rows.
    pub grouped: u64,
    /// Dispatch: tokens.
    pub tokens: u32,
    /// Whether expert numbers have 64 bits.
    pub idx_64: u32,
    /// 1: send, 2: receive.
    pub halves: u32,
    /// Whether to count tokens per expert.
    pub count_load: u32,
}

/// NmcEpGroup in kernels/ep.cu.
#[repr(C)]
struct Group<const N: usize> {
    rank: [RankDesc; N],
    call: [EpCall; N],
    n: u32,
    early: u32,
}

/// When the next kernel of the stream may be placed. It begins its work after this one in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// When this one ends.
    Never,
    /// While a dispatch waits.
    Waiting,
    /// Also while a combine sums. The blocks of the next dispatch are kept from crowding the multiprocessors that are free
    /// first.
    Always,
}

/// Shared memory that a dispatch asks for, though it needs none, so that no multiprocessor takes more than two blocks.
const SPREAD_BYTES: u32 = 96 << 10;

/// How a kernel is launched.
#[derive(Debug, Clone, Copy)]
pub struct EpLaunch {
    /// Which kernel.
    pub kernel: EpKernel,
    /// Blocks a rank; for pack, parts of each expert.
    pub blocks: u32,
    /// Threads a block, a multiple of 32; pack has its own number.
    pub threads: u32,
    /// When the next kernel may be placed.
    pub early: Early,
}

/// Sizes of a grouped product.
#[derive(Debug, Clone, Copy)]
pub struct GemmShape {
    /// Groups.
    pub groups: u32,
    /// Rows of a group.
    pub max_m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Columns of the rows.
    pub k: u32,
}

/// Threads, and columns of a block, of the product; see kernels/ep_gemm.cu.
const GEMM_THREADS: u32 = 128;
const GEMM_TILE_N: u32 = 64;
const SILU_THREADS: u32 = 256;
const SILU_BLOCKS: u32 = 16;

/// The functions of the module: by kernel, for 1, 8 and 32 ranks; the product; the activation by element type.
pub(super) struct Functions([[CUfunction; 3]; 4], CUfunction, [CUfunction; 3]);

impl Functions {
    pub(super) fn find(function: impl Fn(&CStr) -> Result<CUfunction>) -> Result<Self> {
        let names = [
            [c"nmc_k_ep_dispatch_1", c"nmc_k_ep_dispatch_8", c"nmc_k_ep_dispatch_32"],
            [c"nmc_k_ep_combine_1", c"nmc_k_ep_combine_8", c"nmc_k_ep_combine_32"],
            [c"nmc_k_ep_pack_1", c"nmc_k_ep_pack_8", c"nmc_k_ep_pack_32"],
            [c"nmc_k_ep_scatter_1", c"nmc_k_ep_scatter_8", c"nmc_k_ep_scatter_32"],
        ];
        let mut found = [[core::ptr::null_mut(); 3]; 4];
        for (row, names) in found.iter_mut().zip(names) {
            for (place, name) in row.iter_mut().zip(names) {
                *place = function(name)?;
            }
        }
        for dispatch in found[0] {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of the module that is being loaded. A device with less shared memory says no, and then
            // refuses the launches that ask for it; they are for larger ones.
            unsafe { sys::cuFuncSetAttribute(dispatch, most, SPREAD_BYTES.cast_signed()) };
        }
        let silu_mul = [
            function(c"nmc_k_ep_silu_mul")?,
            function(c"nmc_k_ep_silu_mul_fp16")?,
            function(c"nmc_k_ep_silu_mul_fp32")?,
        ];
        Ok(Self(found, function(c"nmc_k_ep_gemm")?, silu_mul))
    }

    fn get(&self, kernel: EpKernel, size: usize) -> CUfunction {
        let row = match kernel {
            EpKernel::Dispatch => &self.0[0],
            EpKernel::Combine => &self.0[1],
            EpKernel::Pack => &self.0[2],
            EpKernel::Scatter => &self.0[3],
        };
        row[size % 3]
    }
}

/// NMC_EP_EARLY_* in kernels/ep.cu.
fn early_bits(early: Early) -> u32 {
    match early {
        Early::Never => 0,
        Early::Waiting => 1,
        Early::Always => 3,
    }
}

#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "a stream is a handle that only the driver looks into")]
impl Kernels<'_> {
    /// Enqueues a kernel for the ranks in `ranks`.
    pub fn ep(&self, stream: *mut c_void, how: EpLaunch, ranks: &[(RankDesc, EpCall)]) -> Result<()> {
        match ranks.len() {
            0 => Ok(()),
            1 => self.ep_sized::<1>(stream, how, ranks, 0),
            2..=8 => self.ep_sized::<8>(stream, how, ranks, 1),
            9..=MAX_EP_RANKS => self.ep_sized::<MAX_EP_RANKS>(stream, how, ranks, 2),
            n => bail!(NMC_ERR_LIMIT, "{n} ranks in one launch; at most {MAX_EP_RANKS} are possible"),
        }
    }

    fn ep_sized<const N: usize>(
        &self,
        stream: *mut c_void,
        how: EpLaunch,
        ranks: &[(RankDesc, EpCall)],
        size: usize,
    ) -> Result<()> {
        let Some(first) = ranks.first() else { return Ok(()) };
        let n = u32::try_from(ranks.len()).unwrap_or(0);
        let mut group = Group { rank: [first.0; N], call: [first.1; N], n, early: early_bits(how.early) };
        let spread = how.kernel == EpKernel::Dispatch && how.early == Early::Always;
        for (i, (rank, call)) in ranks.iter().enumerate() {
            group.rank[i % N] = *rank;
            group.call[i % N] = *call;
        }
        let (x, y, threads) = match how.kernel {
            EpKernel::Pack => (first.0.n_local * n, how.blocks, PACK_THREADS),
            _ => (how.blocks * n, 1, how.threads),
        };
        let function = self.loaded.ep.get(how.kernel, size);
        let mut arguments = [arg(&group)];
        let mut serial = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            // SAFETY: plain numbers, for which zero is a value.
            value: unsafe { core::mem::zeroed() },
        };
        serial.value.programmaticStreamSerializationAllowed = 1;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: if spread { SPREAD_BYTES } else { 0 },
            hStream: stream.cast(),
            attrs: &raw mut serial,
            // A pack has many blocks: placed while a dispatch waits they would take the room of another rank's dispatch.
            numAttrs: u32::from(how.early != Early::Waiting || how.kernel != EpKernel::Pack),
        };
        self.device.with_current(|| {
            let arguments = arguments.as_mut_ptr();
            // SAFETY: the kernel takes one Group of this size, which the driver copies.
            unsafe { call!(sys::cuLaunchKernelEx(&raw const config, function, arguments, core::ptr::null_mut())) }
        })
    }

    /// Enqueues `c[g] = a[g] * b[expert of g]^T` for the rows in use, in bf16. Addresses: (a, b, c), (masked_m,
    /// group_expert).
    pub fn ep_gemm(
        &self,
        stream: *mut c_void,
        (a, b, c): (u64, u64, u64),
        (masked_m, group_expert): (u64, u64),
        s: GemmShape,
    ) -> Result<()> {
        let mut arguments = [
            arg(&a),
            arg(&b),
            arg(&c),
            arg(&masked_m),
            arg(&group_expert),
            arg(&s.groups),
            arg(&s.max_m),
            arg(&s.n),
            arg(&s.k),
        ];
        let grid = (s.n.div_ceil(GEMM_TILE_N), s.groups);
        // SAFETY: order and types are those of nmc_k_ep_gemm in kernels/ep_gemm.cu.
        unsafe { self.launch_2d(self.loaded.ep.1, grid, GEMM_THREADS, stream, &mut arguments) }
    }

    /// Enqueues `out = silu(gate) * up` for the rows in use. Addresses: (gate_up, out, masked_m).
    pub fn ep_silu_mul(
        &self,
        stream: *mut c_void,
        dtype: Dtype,
        (gate_up, out, masked_m): (u64, u64, u64),
        groups: u32,
        max_m: u32,
        inner: u32,
    ) -> Result<()> {
        let mut arguments = [arg(&gate_up), arg(&out), arg(&masked_m), arg(&groups), arg(&max_m), arg(&inner)];
        let grid = (max_m.min(SILU_BLOCKS), groups);
        let [bf16, fp16, fp32] = self.loaded.ep.2;
        let function = match dtype {
            Dtype::Bf16 => bf16,
            Dtype::Fp16 => fp16,
            Dtype::Fp32 => fp32,
            Dtype::Fp8 => bail!(NMC_ERR_UNSUPPORTED, "the activation has no fp8"),
        };
        // SAFETY: order and types are those of nmc_k_ep_silu_mul and its siblings in kernels/ep_gemm.cu.
        unsafe { self.launch_2d(function, grid, SILU_THREADS, stream, &mut arguments) }
    }

    /// Blocks of a kernel that the device can hold at once.
    pub fn ep_resident(&self, kernel: EpKernel, threads: u32) -> Result<u32> {
        let function = self.loaded.ep.get(kernel, 0);
        let mut blocks = 0;
        self.device.with_current(|| {
            // SAFETY: the function is of this device's module and the out-pointer is a local.
            unsafe {
                call!(sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut blocks,
                    function,
                    threads.cast_signed(),
                    0
                ))
            }
        })?;
        Ok(u32::try_from(blocks * self.device.facts().sm_count).unwrap_or(0))
    }
}

impl Device {
    /// Copies between device memory and ordinary memory of this process, and waits.
    pub fn copy_now(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.with_current(|| {
            self.run_and_wait(|stream| {
                // SAFETY: the driver checks device addresses; the caller vouches for its own memory.
                unsafe { call!(sys::cuMemcpyAsync(to, from, bytes, stream)) }
            })
        })
    }

    /// Fills device memory with zeros, and waits.
    pub fn zero_now(&self, to: u64, bytes: usize) -> Result<()> {
        self.with_current(|| {
            self.run_and_wait(|stream| {
                // SAFETY: the driver checks the address; the caller vouches for the memory.
                unsafe { call!(sys::cuMemsetD8Async(to, 0, bytes, stream)) }
            })
        })
    }
}
