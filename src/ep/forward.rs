//! A whole MoE layer: dispatch, pack, the experts' two matrix products with the activation between them, scatter, combine.
//! The products are the engine's own, through a callback that enqueues them, or the library's.

use super::calls::BOTH;
use super::cpu;
use super::group::{Ep, call_group};
use super::layer::{Gemm, Layer, Steps};
use super::sys::Given;
use crate::base::error::Result;
use crate::cuda::GivenStream;
use crate::layout::ep::{Dtype, Wire};
use std::sync::Arc;

/// Runs a layer, or enqueues it.
pub(crate) fn forward(ep: &Arc<Ep>, layer: &Layer<'_>, stream: GivenStream) -> Result<()> {
    if call_group::open() {
        crate::bail!(NMC_ERR_INVALID_ARG, "nmc_ep_moe_forward cannot be part of a group of calls");
    }
    let shape = &ep.shape;
    let steps = Steps::of(shape, layer)?;
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
    experts(ep, layer, &steps, &mut rows, stream).inspect_err(|_| ep.abort())
}

/// Everything after the dispatch.
fn experts(ep: &Arc<Ep>, layer: &Layer<'_>, steps: &Steps, rows: &mut cpu::Rows, stream: GivenStream) -> Result<()> {
    let number = layer.dispatch.layer;
    ep.pack(number, &steps.grouped, stream)?;
    product(ep, layer, &steps.first, rows, stream)?;
    match &ep.gpu {
        None => cpu::silu_mul(&ep.host_rank(number), &steps.between, rows),
        Some(gpu) => gpu.silu_mul(stream, &ep.shape, &steps.between)?,
    }
    product(ep, layer, &steps.second, rows, stream)?;
    ep.scatter(number, steps.second.c, steps.grouped.row_of, Given::NONE, stream)?;
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
        None => cpu::gemm(&ep.host_rank(layer.dispatch.layer), gemm, rows),
        Some(gpu) => gpu.gemm(stream, &ep.shape, gemm)?,
    }
    Ok(())
}
