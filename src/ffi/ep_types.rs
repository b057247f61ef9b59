//! Structs and constants of the expert-parallel API.

use super::basic::NMC_ABI_VERSION;
use super::common::{NMC_DTYPE_BF16, NMC_DTYPE_FP16, NMC_DTYPE_FP32};
use super::config::Config as Versioned;
use crate::base::deadline::MAX_TIMEOUT_MS;
use crate::base::error::Result;
use crate::ep::config::{Config, DEFAULT_DEADLINE_MS};
use crate::layout::ep::{Dtype, Wire};
use std::ffi::c_void;
use std::time::Duration;

/// Rows travel to the experts as they are.
pub const NMC_EP_DISPATCH_SAME: u32 = 0;
/// Rows travel as fp8 (e4m3) with an fp32 scale for every 128 elements; the library quantises them. If all 128 are smaller than
/// 1e-30, the scale is 1 and they become zeros, each with its sign.
pub const NMC_EP_DISPATCH_FP8: u32 = 1;
/// Rows travel as fp8 with scales that the caller gives.
pub const NMC_EP_DISPATCH_FP8_GIVEN: u32 = 2;

/// Trap in the kernel that finds an error, instead of reporting it. For debugging: the context is lost.
pub const NMC_EP_TRAP: u32 = 1;
/// Do not count tokens per expert.
pub const NMC_EP_NO_LOAD: u32 = 2;
/// Give rows to return memory of their own. Without it `y` of `nmc_ep_recv_buffers_t` is its `x`: a row goes back from
/// where it came, which halves what passes through the caches. Rows that travel as fp8 always have it.
pub const NMC_EP_SEPARATE_Y: u32 = 4;
/// Let kernels that are launched with programmatic stream serialization be placed early although other processes share
/// the device: from the beginning of the dispatch before them on, while a combine sums, or while a pack or a scatter
/// ends. Faster, and needs half of the room: `blocks` 16 for 8 ranks on an H200. What the program itself launches this
/// way must leave room for the dispatch of the others, which otherwise come too late and lose the group. A launch for
/// all ranks of the group that use the device places the next one early in any case.
pub const NMC_EP_EARLY: u32 = 8;
/// Let ranks in several processes that share one GPU order their stores with fences of that device's scope instead of
/// the system's, which are slow while several processes use the device. PTX promises this scope only to threads of one
/// program. That it also holds between processes follows from the one L2 cache that they share, and was tested, but is
/// not guaranteed (docs/ep.md). Has no effect if ranks are on several devices. Ranks of one process on one device use
/// it in any case, if they are of a local world or were created by one `nmc_ep_create_ranks`.
pub const NMC_EP_DEVICE_SCOPE: u32 = 16;

/// How a group is made. Start from `NMC_EP_CONFIG_INIT`; `hidden`, `top_k` and `experts` must be set. All ranks must
/// agree on everything but the deadline and what is counted or trapped.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Ranks of the world that are in the group, one bit each; 0 for all. At most 32. The lowest one is number 0.
    pub members: u64,
    /// Where the transport lies in every rank's heap, a multiple of 256; `nmc_ep_bytes_needed` says how much it takes.
    pub heap_offset: u64,
    /// Most tokens of a rank in a step; 0 for 256 shared by all ranks (32 with 8).
    pub t_cap: u32,
    /// Elements of a row; rows are whole multiples of 16 bytes, with fp8 of 128 elements.
    pub hidden: u32,
    /// Experts of a token, 1 to 32.
    pub top_k: u32,
    /// Experts of all ranks together, a multiple of their number. Rank r has those from r * n_local on.
    pub experts: u32,
    /// Type of rows: `NMC_DTYPE_BF16`, `NMC_DTYPE_FP16` or `NMC_DTYPE_FP32`.
    pub dtype: u32,
    /// How rows travel to the experts: one of `NMC_EP_DISPATCH_*`.
    pub dispatch: u32,
    /// Type of weights: `NMC_DTYPE_FP32` or `NMC_DTYPE_FP16`.
    pub weights: u32,
    /// Rows that an expert has room for in the grouped layout; 0 for world * t_cap, as many as can come
    /// unless a token names an expert twice. With less,
    /// rows that do not fit are counted, or go to spill groups.
    pub max_m: u32,
    /// Groups of `max_m` rows behind those of the experts, for rows that did not fit, filled in the order of experts.
    pub spill_groups: u32,
    /// Buffer sets; 0 for 1. Layer l uses set l % buffer_sets. Steps of different sets may overlap on two streams, and on more if
    /// there is room for all of them (see `blocks`).
    pub buffer_sets: u32,
    /// Blocks of a rank's kernels on a GPU, at most 128; 0 for 32. What cannot be resident at once, with the other ranks of
    /// the group on the same device, is refused; what else runs there is not known. A combine that is not launched together with
    /// all ranks of the device has at most as many as the device has multiprocessors for each rank (half as many with several
    /// buffer sets): it leaves room for kernels of ranks that it waits for.
    pub blocks: u32,
    /// 0, or `NMC_EP_TRAP`, `NMC_EP_NO_LOAD`, `NMC_EP_SEPARATE_Y`, `NMC_EP_EARLY`,
    /// `NMC_EP_DEVICE_SCOPE`.
    pub flags: u32,
    /// Longest wait for a peer, in ms; -1 for 10 s. Also how long making the group may take.
    pub deadline_ms: i64,
    /// Number of the first step; for tests of the wrap. 0 is fine.
    pub first_phase: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

// SAFETY: repr(C), integers only, no padding.
unsafe impl Versioned for nmc_ep_config_t {
    const NAME: &'static str = "nmc_ep_config_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            members: 0,
            heap_offset: 0,
            t_cap: 0,
            hidden: 0,
            top_k: 0,
            experts: 0,
            dtype: NMC_DTYPE_BF16,
            dispatch: NMC_EP_DISPATCH_SAME,
            weights: NMC_DTYPE_FP32,
            max_m: 0,
            spill_groups: 0,
            buffer_sets: 0,
            blocks: 0,
            flags: 0,
            deadline_ms: -1,
            first_phase: 0,
            reserved0: 0,
            reserved: [0; 4],
        }
    }
}

/// What a group needs, in bytes. Start from `NMC_EP_BYTES_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_bytes_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// In every rank's heap, from `heap_offset` on.
    pub transport: u64,
    /// Grouped rows: `[groups][max_m][hidden]` of the type that travels.
    pub grouped_x: u64,
    /// Scales of grouped rows: fp32 `[groups][hidden / 128][max_m rounded up to 4]`; 0 without fp8.
    pub grouped_scales: u64,
    /// Grouped results: `[groups][max_m][hidden]`.
    pub grouped_y: u64,
    /// `masked_m`, and the same for `group_expert`: int32 `[groups]`.
    pub masked_m: u64,
    /// `row_of`: int32 `[ranks * t_cap][top_k]`.
    pub row_of: u64,
    /// `row_index`: int32 `[groups][max_m]`.
    pub row_index: u64,
    /// The workspace of `nmc_ep_moe_forward` for the given `inner`.
    pub workspace: u64,
}

/// `NMC_EP_BYTES_INIT`.
impl Default for nmc_ep_bytes_t {
    fn default() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            reserved: 0,
            transport: 0,
            grouped_x: 0,
            grouped_scales: 0,
            grouped_y: 0,
            masked_m: 0,
            row_of: 0,
            row_index: 0,
            workspace: 0,
        }
    }
}

/// The arguments of a dispatch. Start from `NMC_EP_DISPATCH_INIT`. Memory stays the caller's and is used until the
/// stream has run the step; on host heaps, until the call returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_dispatch_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Rows `[n_tokens][hidden]`, aligned to 16 bytes.
    pub x: *const c_void,
    /// Scales `[n_tokens][hidden / 128]` of rows given as fp8; NULL otherwise.
    pub scales: *const f32,
    /// Expert numbers `[n_tokens][top_k]`, int32 or int64; -1 for none. An expert that is named twice gets two rows.
    pub topk_idx: *const c_void,
    /// Weights `[n_tokens][top_k]`.
    pub topk_w: *const c_void,
    /// Where the number of tokens is; NULL for `n_tokens`. Read by the kernel, so a captured graph can be replayed with
    /// other numbers.
    pub n_tokens_ptr: *const i32,
    /// Number of tokens, at most `t_cap`.
    pub n_tokens: u32,
    /// Layer, 0 to 65535; all ranks must be at the same.
    pub layer: u32,
    /// 1 if `topk_idx` is int64, 0 if it is int32.
    pub idx_is_64: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), integers and pointers only, no padding.
unsafe impl Versioned for nmc_ep_dispatch_t {
    const NAME: &'static str = "nmc_ep_dispatch_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            x: std::ptr::null(),
            scales: std::ptr::null(),
            topk_idx: std::ptr::null(),
            topk_w: std::ptr::null(),
            n_tokens_ptr: std::ptr::null(),
            n_tokens: 0,
            layer: 0,
            idx_is_64: 0,
            reserved: 0,
        }
    }
}

/// What a rank receives in a step: views of its heap, valid until it takes part in the next dispatch of the same buffer
/// set. Token t of rank s is in slot `s * t_cap + t`; rows of slots whose hit bit is not set are what they were. Start from
/// `NMC_EP_RECV_BUFFERS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_recv_buffers_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Bytes from one record to the next.
    pub record_stride: u32,
    /// Rows `[ranks * t_cap][hidden]`.
    pub x: *const c_void,
    /// Scales `[ranks * t_cap][hidden / 128]`; NULL without fp8.
    pub scales: *const f32,
    /// Local expert numbers `[ranks * t_cap][top_k]`; -1 for entries of other ranks.
    pub local_eid: *const i16,
    /// Weights `[ranks * t_cap][top_k]`; 0 for entries of other ranks.
    pub weights: *const c_void,
    /// Records, one a source, `record_stride` bytes apart: uint32 number of tokens, layer, config hash, phase; then the
    /// hit mask, uint32 `[(t_cap + 31) / 32]`.
    pub records: *const c_void,
    /// Rows to return `[ranks * t_cap][hidden]`: what is put here needs no copy in `nmc_ep_combine`. The same memory as `x`
    /// unless `NMC_EP_SEPARATE_Y` was given or rows travel as fp8.
    pub y: *mut c_void,
}

/// `NMC_EP_RECV_BUFFERS_INIT`.
impl Default for nmc_ep_recv_buffers_t {
    fn default() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            record_stride: 0,
            x: std::ptr::null(),
            scales: std::ptr::null(),
            local_eid: std::ptr::null(),
            weights: std::ptr::null(),
            records: std::ptr::null(),
            y: std::ptr::null_mut(),
        }
    }
}

/// Where grouped rows go: memory of the caller, of the sizes that `nmc_ep_bytes_needed` says. Start from `NMC_EP_GROUPED_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_grouped_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Rows `[groups][max_m][hidden]`, aligned to 16 bytes; NULL for the lists alone. Rows from `masked_m` on are left.
    pub x: *mut c_void,
    /// Scales of fp8 rows `[groups][hidden / 128][max_m rounded up to 4]`; NULL without fp8.
    pub scales: *mut f32,
    /// Rows of each group.
    pub masked_m: *mut i32,
    /// Local expert of each group: group g < n_local has expert g, spill groups any, or -1 if they are empty.
    pub group_expert: *mut i32,
    /// For each slot and entry: the row (`group * max_m + row`), or -1. What `nmc_ep_scatter` goes by.
    pub row_of: *mut i32,
    /// For each row its slot, or -1: for products that gather from `nmc_ep_recv_buffers_t.x` and need no packed rows.
    pub row_index: *mut i32,
}

// SAFETY: repr(C), integers and pointers only, no padding.
unsafe impl Versioned for nmc_ep_grouped_t {
    const NAME: &'static str = "nmc_ep_grouped_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            x: std::ptr::null_mut(),
            scales: std::ptr::null_mut(),
            masked_m: std::ptr::null_mut(),
            group_expert: std::ptr::null_mut(),
            row_of: std::ptr::null_mut(),
            row_index: std::ptr::null_mut(),
        }
    }
}

/// `NMC_EP_GROUPED_INIT`.
impl Default for nmc_ep_grouped_t {
    fn default() -> Self {
        Self::defaults()
    }
}

/// A product that `nmc_ep_moe_forward` asks the engine for: `c[g][r] = a[g][r] * b[e]^T` for `r < masked_m[g]`, where e is
/// `group_expert[g]` and b the engine's own weights.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_gemm_t {
    /// Size of this struct as the library knows it; there are no fields beyond that.
    pub struct_size: u32,
    /// 0: gate and up (n = 2 * inner). 1: down (n = hidden).
    pub which: u32,
    /// Rows `[groups][max_m][k]`.
    pub a: *const c_void,
    /// Scales of `a` if it is fp8, else NULL.
    pub a_scales: *const f32,
    /// What was given as `w13` or `w2`.
    pub b: *const c_void,
    /// Result `[groups][max_m][n]`.
    pub c: *mut c_void,
    /// Rows of each group.
    pub masked_m: *const i32,
    /// Local expert of each group, or -1.
    pub group_expert: *const i32,
    /// Groups.
    pub groups: u32,
    /// Rows of a group.
    pub max_m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Columns of `a`.
    pub k: u32,
    /// A guess of the rows of a group, at least 1: (tokens of all ranks * top_k) / experts, for products that want one.
    pub expected_m: u32,
    /// Zero.
    pub reserved: u32,
}

/// Enqueues a product on `stream`; called on the calling thread. Returns `NMC_OK`, or an error that the call passes on.
pub type nmc_ep_gemm_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, gemm: *const nmc_ep_gemm_t, stream: *mut c_void) -> i32>;

/// A whole MoE layer. Start from `NMC_EP_MOE_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_ep_moe_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Gate and up matrices of the local experts `[n_local][2 * inner][hidden]`; passed on to the callback if there is one.
    pub w13: *const c_void,
    /// Down matrices `[n_local][hidden][inner]`.
    pub w2: *const c_void,
    /// Memory for what is between the steps, aligned to 256 bytes.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Result rows `[n_tokens][hidden]`.
    pub out: *mut c_void,
    /// The engine's grouped product; NULL for the built-in one (bf16 on a GPU).
    pub gemm: nmc_ep_gemm_fn,
    /// Passed to the callback.
    pub gemm_user: *mut c_void,
    /// Columns between the two products.
    pub inner: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), integers and pointers only (any bits are a valid Option of a function pointer that is not called), no
// padding.
unsafe impl Versioned for nmc_ep_moe_t {
    const NAME: &'static str = "nmc_ep_moe_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            w13: std::ptr::null(),
            w2: std::ptr::null(),
            workspace: std::ptr::null_mut(),
            workspace_bytes: 0,
            out: std::ptr::null_mut(),
            gemm: None,
            gemm_user: std::ptr::null_mut(),
            inner: 0,
            reserved: 0,
        }
    }
}

/// Checks a C config and turns it into the library's.
///
/// # Safety
/// `ptr` is NULL or a config as the C contract says.
pub(super) unsafe fn parse_ep(ptr: *const nmc_ep_config_t) -> Result<Config> {
    // SAFETY: forwarded from the caller.
    let c = unsafe { super::config::read(ptr) }?;
    let dtype = [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32].into_iter().find(|dtype| dtype.public_code() == c.dtype);
    let (Some(dtype), Some(wire)) = (dtype, Wire::from_code(c.dispatch)) else {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "dtype {} is not one of rows (NMC_DTYPE_BF16, _FP16 or _FP32), or dispatch {} does not exist",
            c.dtype,
            c.dispatch
        );
    };
    let weight_bytes = match c.weights {
        NMC_DTYPE_FP32 => 4,
        NMC_DTYPE_FP16 => 2,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "weights {other} is neither NMC_DTYPE_FP32 nor NMC_DTYPE_FP16"),
    };
    let known = NMC_EP_TRAP | NMC_EP_NO_LOAD | NMC_EP_SEPARATE_Y | NMC_EP_EARLY | NMC_EP_DEVICE_SCOPE;
    if c.flags & !known != 0 || c.reserved0 != 0 || c.reserved.iter().any(|r| *r != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {:#x} or reserved fields have bits that mean nothing", c.flags);
    }
    let ms = if c.deadline_ms == -1 { DEFAULT_DEADLINE_MS } else { c.deadline_ms };
    if !(1..=MAX_TIMEOUT_MS).contains(&ms) {
        crate::bail!(NMC_ERR_INVALID_ARG, "deadline_ms {ms} is not between 1 and {MAX_TIMEOUT_MS}");
    }
    Ok(Config {
        members: c.members,
        heap_offset: c.heap_offset,
        t_cap: c.t_cap,
        hidden: c.hidden,
        top_k: c.top_k,
        experts: c.experts,
        dtype,
        wire,
        weight_bytes,
        max_m: c.max_m,
        spill_groups: c.spill_groups,
        sets: c.buffer_sets,
        blocks: c.blocks,
        separate_y: c.flags & NMC_EP_SEPARATE_Y != 0,
        trap: c.flags & NMC_EP_TRAP != 0,
        count_load: c.flags & NMC_EP_NO_LOAD == 0,
        early: c.flags & NMC_EP_EARLY != 0,
        device_scope: c.flags & NMC_EP_DEVICE_SCOPE != 0,
        deadline: Duration::from_millis(ms.unsigned_abs()),
        first_phase: c.first_phase,
    })
}
