//! A whole MoE layer: dispatch, pack, the experts' two matrix products with the activation between them, scatter, combine.
//! The products are the engine's own, through a callback that enqueues them, or the library's.

use super::calls::{BOTH, Dispatch, Grouped};
use super::cpu::{self, HostRank};
use super::sys::{Given, Workspace};
use super::{Ep, call_group};
use crate::base::error::Result;
use crate::cuda::GivenStream;
use crate::layout::ep::{Dtype, Shape, Wire};
use std::sync::Arc;

/// Most columns between the products.
pub(crate) const MAX_INNER: u32 = 1 << 20;

/// A product of a layer, whose memory has the sizes that its numbers say: only [`forward`] makes one, when it has checked the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gemm(Product);

impl std::ops::Deref for Gemm {
    type Target = Product;

    fn deref(&self) -> &Product {
        &self.0
    }
}

/// The activation between the products; the same goes for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activation(Between);

impl std::ops::Deref for Activation {
    type Target = Between;

    fn deref(&self) -> &Between {
        &self.0
    }
}

impl Activation {
    /// Of a test, whose memory has these sizes.
    #[cfg(test)]
    pub(super) fn of_test(between: Between) -> Self {
        Self(between)
    }
}

/// Of rows of `inner` columns each of a gate and of what it lets through, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between {
    /// Rows `[groups][max_m][2 * inner]`.
    pub(crate) gate_up: Given,
    /// Rows `[groups][max_m][inner]`.
    pub(crate) act: Given,
    /// Rows of each group.
    pub(crate) masked_m: Given,
    /// Columns of the result.
    pub(crate) inner: u32,
}

/// `c[g][r] = a[g][r] * b[group_expert[g]]^T` for the rows `r < masked_m[g]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// 0 for gate and up, 1 for down.
    pub(crate) which: u32,
    /// Rows `[groups][max_m][k]`.
    pub(crate) a: Given,
    /// Scales of `a`, none unless it is fp8.
    pub(crate) a_scales: Given,
    /// Matrices `[n_local][n][k]`; none if the engine keeps them.
    pub(crate) b: Given,
    /// Rows `[groups][max_m][n]`.
    pub(crate) c: Given,
    /// Rows of each group.
    pub(crate) masked_m: Given,
    /// Expert of each group.
    pub(crate) group_expert: Given,
    /// Columns of the result.
    pub(crate) n: u32,
    /// Columns of `a`.
    pub(crate) k: u32,
}

/// The engine's product.
pub(crate) type GemmFn<'a> = &'a dyn Fn(&Gemm) -> Result<()>;

/// What a layer is computed from.
pub(crate) struct Layer<'a> {
    /// Tokens and where they go.
    pub(crate) dispatch: Dispatch,
    /// Gate and up matrices `[n_local][2 * inner][hidden]`.
    pub(crate) w13: Given,
    /// Down matrices `[n_local][hidden][inner]`.
    pub(crate) w2: Given,
    /// Columns between the products.
    pub(crate) inner: u32,
    /// [`Parts`] of memory for what is between the steps.
    pub(crate) workspace: Workspace,
    /// Result rows.
    pub(crate) out: Given,
    /// The engine's product, or the library's.
    pub(crate) gemm: Option<GemmFn<'a>>,
}

/// Where the buffers of a layer are in its workspace: grouped rows and their scales, the result of the first product, the same
/// after the activation, the result of the second, and the lists of [`Grouped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    x: u64,
    scales: u64,
    gate_up: u64,
    act: u64,
    y: u64,
    masked_m: u64,
    group_expert: u64,
    row_of: u64,
    row_index: u64,
    /// Bytes of all.
    pub(crate) bytes: u64,
}

impl Parts {
    /// The parts for `inner` columns between the products; 0 for a workspace without them.
    pub(crate) fn of(shape: &Shape, inner: u32) -> Self {
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
pub(crate) fn forward(ep: &Arc<Ep>, layer: &Layer<'_>, stream: GivenStream) -> Result<()> {
    if call_group::open() {
        crate::bail!(NMC_ERR_INVALID_ARG, "nmc_ep_moe_forward cannot be part of a group of calls");
    }
    let shape = &ep.shape;
    if layer.inner == 0 || !layer.inner.is_multiple_of(16 / shape.dtype.bytes()) || layer.inner > MAX_INNER {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "inner {} is not a multiple of {} up to {MAX_INNER}",
            layer.inner,
            16 / shape.dtype.bytes()
        );
    }
    let parts = Parts::of(shape, layer.inner);
    let workspace = layer.workspace.first().address();
    if layer.workspace.bytes() < parts.bytes || !workspace.is_multiple_of(256) || workspace == 0 {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "the workspace at {workspace:#x} with {} bytes is not aligned to 256 with {} bytes (nmc_ep_bytes_needed)",
            layer.workspace.bytes(),
            parts.bytes
        );
    }
    // All of it before anything is sent: a layer that stops half-way would leave the peers waiting.
    ep.check_memory("out", layer.out, 16)?;
    ep.check_memory("workspace", layer.workspace.first(), 256)?;
    if layer.gemm.is_none() {
        check_built_in(ep, layer)?;
    }
    let mut rows = match ep.gpu {
        None => cpu::Rows::new(shape.hidden, layer.inner)?,
        Some(_) => cpu::Rows::default(),
    };
    ep.dispatch(&layer.dispatch, stream)?;
    // The others wait for this rank from here on.
    experts(ep, layer, &parts, &mut rows, stream).inspect_err(|_| ep.abort())
}

/// Everything after the dispatch.
fn experts(ep: &Arc<Ep>, layer: &Layer<'_>, parts: &Parts, rows: &mut cpu::Rows, stream: GivenStream) -> Result<()> {
    let (shape, number) = (&ep.shape, layer.dispatch.layer);
    let at = |offset: u64| layer.workspace.at(offset);
    let grouped = Grouped {
        x: at(parts.x)?,
        scales: if shape.scales() > 0 { at(parts.scales)? } else { Given::NONE },
        masked_m: at(parts.masked_m)?,
        group_expert: at(parts.group_expert)?,
        row_of: at(parts.row_of)?,
        row_index: at(parts.row_index)?,
    };
    ep.pack(number, &grouped, stream)?;
    let first = Product {
        which: 0,
        a: grouped.x,
        a_scales: grouped.scales,
        b: layer.w13,
        c: at(parts.gate_up)?,
        masked_m: grouped.masked_m,
        group_expert: grouped.group_expert,
        n: 2 * layer.inner,
        k: shape.hidden,
    };
    let second = Product {
        which: 1,
        a: at(parts.act)?,
        a_scales: Given::NONE,
        b: layer.w2,
        c: at(parts.y)?,
        n: shape.hidden,
        k: layer.inner,
        ..first
    };
    product(ep, layer, &Gemm(first), rows, stream)?;
    let between = Between { gate_up: first.c, act: second.a, masked_m: grouped.masked_m, inner: layer.inner };
    match &ep.gpu {
        None => cpu::silu_mul(&HostRank::of(ep, number), &Activation(between), rows),
        Some(gpu) => gpu.silu_mul(stream, shape, &Activation(between))?,
    }
    product(ep, layer, &Gemm(second), rows, stream)?;
    ep.scatter(number, second.c, grouped.row_of, Given::NONE, stream)?;
    ep.combine(number, Given::NONE, layer.out, BOTH, stream)
}

fn check_built_in(ep: &Ep, layer: &Layer<'_>) -> Result<()> {
    if layer.w13.is_none() || layer.w2.is_none() {
        crate::bail!(NMC_ERR_INVALID_ARG, "without a callback the layer needs w13 and w2");
    }
    ep.check_memory("w13", layer.w13, 16)?;
    ep.check_memory("w2", layer.w2, 16)?;
    if ep.gpu.is_some() && (ep.shape.dtype != Dtype::Bf16 || ep.shape.wire != Wire::Same) {
        crate::bail!(NMC_ERR_UNSUPPORTED, "on a GPU the built-in product takes bf16 rows only; give a callback");
    }
    Ok(())
}

fn product(ep: &Ep, layer: &Layer<'_>, gemm: &Gemm, rows: &mut cpu::Rows, stream: GivenStream) -> Result<()> {
    if let Some(theirs) = layer.gemm {
        return theirs(gemm);
    }
    match &ep.gpu {
        None => cpu::gemm(&HostRank::of(ep, layer.dispatch.layer), gemm, rows),
        Some(gpu) => gpu.gemm(stream, &ep.shape, gemm)?,
    }
    Ok(())
}
