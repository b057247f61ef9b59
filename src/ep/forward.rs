//! A whole MoE layer: dispatch, pack, the experts' two matrix products with the activation between them, scatter, combine.
//! The products are the engine's own, through a callback that enqueues them, or the library's.

use super::{Core, Dispatch, Grouped, cpu};
use crate::base::error::Result;
use crate::cuda::GemmShape;
use crate::layout::ep::{Dtype, Shape, Wire};
use std::ffi::c_void;
use std::sync::Arc;

/// Most columns between the products.
pub const MAX_INNER: u32 = 1 << 20;

/// A product: `c[g][r] = a[g][r] * b[group_expert[g]]^T` for the rows `r < masked_m[g]`.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    /// 0 for gate and up, 1 for down.
    pub which: u32,
    /// Rows `[groups][max_m][k]`.
    pub a: u64,
    /// Scales of `a`, 0 unless it is fp8.
    pub a_scales: u64,
    /// Matrices `[n_local][n][k]`; 0 if the engine keeps them.
    pub b: u64,
    /// Rows `[groups][max_m][n]`.
    pub c: u64,
    /// Rows of each group.
    pub masked_m: u64,
    /// Expert of each group.
    pub group_expert: u64,
    /// Columns of the result.
    pub n: u32,
    /// Columns of `a`.
    pub k: u32,
}

/// The engine's product.
pub type GemmFn<'a> = &'a dyn Fn(&Gemm) -> Result<()>;

/// What a layer is computed from.
pub struct Layer<'a> {
    /// Tokens and where they go.
    pub dispatch: Dispatch,
    /// Gate and up matrices `[n_local][2 * inner][hidden]`.
    pub w13: u64,
    /// Down matrices `[n_local][hidden][inner]`.
    pub w2: u64,
    /// Columns between the products.
    pub inner: u32,
    /// [`Parts`] of memory for what is between the steps.
    pub workspace: u64,
    /// Its size.
    pub workspace_bytes: u64,
    /// Result rows.
    pub out: u64,
    /// The engine's product, or the library's.
    pub gemm: Option<GemmFn<'a>>,
}

/// Where the buffers of a layer are in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Grouped rows.
    pub x: u64,
    /// Their scales.
    pub scales: u64,
    /// Result of the first product.
    pub gate_up: u64,
    /// After the activation.
    pub act: u64,
    /// Result of the second product.
    pub y: u64,
    /// Rows of each group.
    pub masked_m: u64,
    /// Expert of each group.
    pub group_expert: u64,
    /// Row of each slot and entry.
    pub row_of: u64,
    /// Slot of each row.
    pub row_index: u64,
    /// Bytes of all.
    pub bytes: u64,
}

impl Parts {
    /// The parts for `inner` columns between the products; 0 for a workspace without them.
    #[must_use]
    pub fn of(shape: &Shape, inner: u32) -> Self {
        let rows = u64::from(shape.groups()) * u64::from(shape.max_m);
        let element = u64::from(shape.dtype.bytes());
        let mut at = 0u64;
        let mut take = |bytes: u64| {
            let begin = at;
            at += bytes.next_multiple_of(256);
            begin
        };
        let x = take(rows * u64::from(shape.x_bytes()));
        let pitch = u64::from(shape.max_m.next_multiple_of(4));
        let scales = take(4 * u64::from(shape.groups()) * u64::from(shape.scales()) * pitch);
        let masked_m = take(4 * u64::from(shape.groups()));
        let group_expert = take(4 * u64::from(shape.groups()));
        let row_of = take(4 * shape.slots() * u64::from(shape.top_k));
        let row_index = take(4 * rows);
        let gate_up = take(rows * 2 * u64::from(inner) * element);
        let act = take(rows * u64::from(inner) * element);
        let y = take(rows * u64::from(shape.y_bytes()));
        Self { x, scales, gate_up, act, y, masked_m, group_expert, row_of, row_index, bytes: at }
    }
}

/// Runs a layer, or enqueues it.
pub fn forward(core: &Arc<Core>, stream: *mut c_void, layer: &Layer<'_>) -> Result<()> {
    if super::group::open() {
        crate::bail!(NMC_ERR_INVALID_ARG, "nmc_ep_moe_forward cannot be part of a group of calls");
    }
    let shape = &core.shape;
    if layer.inner == 0 || !layer.inner.is_multiple_of(16 / shape.dtype.bytes()) || layer.inner > MAX_INNER {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "inner {} is not a multiple of {} up to {MAX_INNER}",
            layer.inner,
            16 / shape.dtype.bytes()
        );
    }
    let parts = Parts::of(shape, layer.inner);
    if layer.workspace_bytes < parts.bytes || !layer.workspace.is_multiple_of(256) || layer.workspace == 0 {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "the workspace at {:#x} with {} bytes is not aligned to 256 with {} bytes (nmc_ep_bytes_needed)",
            layer.workspace,
            layer.workspace_bytes,
            parts.bytes
        );
    }
    // All of it before anything is sent: a layer that stops half-way would leave the peers waiting.
    core.memory("out", layer.out, 16)?;
    core.memory("workspace", layer.workspace, 256)?;
    if layer.gemm.is_none() {
        check_built_in(core, layer)?;
    }
    let at = |offset: u64| layer.workspace + offset;
    let grouped = Grouped {
        x: at(parts.x),
        scales: if shape.scales() > 0 { at(parts.scales) } else { 0 },
        masked_m: at(parts.masked_m),
        group_expert: at(parts.group_expert),
        row_of: at(parts.row_of),
        row_index: at(parts.row_index),
    };
    let mut rows = match core.device {
        None => cpu::Rows::new(shape.hidden, layer.inner)?,
        Some(_) => cpu::Rows::default(),
    };
    core.dispatch(stream, &layer.dispatch)?;
    // The others wait for this rank from here on.
    experts(core, stream, layer, &parts, &grouped, &mut rows).inspect_err(|_| core.abort())
}

/// Everything after the dispatch.
fn experts(
    core: &Arc<Core>,
    stream: *mut c_void,
    layer: &Layer<'_>,
    parts: &Parts,
    grouped: &Grouped,
    rows: &mut cpu::Rows,
) -> Result<()> {
    let (shape, number) = (&core.shape, layer.dispatch.layer);
    let at = |offset: u64| layer.workspace + offset;
    core.pack(stream, number, grouped)?;
    let first = Gemm {
        which: 0,
        a: grouped.x,
        a_scales: grouped.scales,
        b: layer.w13,
        c: at(parts.gate_up),
        masked_m: grouped.masked_m,
        group_expert: grouped.group_expert,
        n: 2 * layer.inner,
        k: shape.hidden,
    };
    let second = Gemm {
        which: 1,
        a: at(parts.act),
        a_scales: 0,
        b: layer.w2,
        c: at(parts.y),
        n: shape.hidden,
        k: layer.inner,
        ..first
    };
    product(core, stream, layer, &first, rows)?;
    match &core.device {
        None => cpu::silu_mul(&core.desc_for(number), first.c, second.a, grouped.masked_m, layer.inner, rows),
        Some(device) => {
            let groups = shape.groups();
            device.kernels()?.ep_silu_mul(
                stream,
                shape.dtype,
                (first.c, second.a, grouped.masked_m),
                groups,
                shape.max_m,
                layer.inner,
            )?;
        }
    }
    product(core, stream, layer, &second, rows)?;
    core.scatter(stream, number, second.c, grouped.row_of, 0)?;
    core.combine(stream, number, 0, layer.out, super::BOTH)
}

fn check_built_in(core: &Core, layer: &Layer<'_>) -> Result<()> {
    if layer.w13 == 0 || layer.w2 == 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "without a callback the layer needs w13 and w2");
    }
    core.memory("w13", layer.w13, 16)?;
    core.memory("w2", layer.w2, 16)?;
    if core.device.is_some() && (core.shape.dtype != Dtype::Bf16 || core.shape.wire != Wire::Same) {
        crate::bail!(NMC_ERR_UNSUPPORTED, "on a GPU the built-in product takes bf16 rows only; give a callback");
    }
    Ok(())
}

fn product(core: &Core, stream: *mut c_void, layer: &Layer<'_>, gemm: &Gemm, rows: &mut cpu::Rows) -> Result<()> {
    if let Some(theirs) = layer.gemm {
        return theirs(gemm);
    }
    match &core.device {
        None => cpu::gemm(&core.desc_for(layer.dispatch.layer), gemm, rows),
        Some(device) => {
            let (groups, max_m) = (core.shape.groups(), core.shape.max_m);
            let shape = GemmShape { groups, max_m, n: gemm.n, k: gemm.k };
            device.kernels()?.ep_gemm(stream, (gemm.a, gemm.b, gemm.c), (gemm.masked_m, gemm.group_expert), shape)?;
        }
    }
    Ok(())
}
