//! The calls of a step: what the program asks for, checked before anything is done.

use super::sys::Given;
use super::{Ep, call_group, check_layer};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_LIMIT;
use crate::cuda::GivenStream;
use crate::cuda::{self, Reach};
use crate::layout::ep::Wire;
use std::sync::Arc;

/// First half of a dispatch or combine.
pub(crate) const SEND: u32 = 1;
/// Second half.
pub(crate) const RECV: u32 = 2;
/// The whole of it.
pub(crate) const BOTH: u32 = SEND | RECV;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Rows to the experts' ranks.
    Dispatch,
    /// Rows back, and their sum.
    Combine,
    /// Received rows into groups by expert.
    Pack,
    /// Rows of groups into one row a token.
    Scatter,
}

/// What one rank wants done; NmcEpCall in kernels/ep.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CallArgs {
    /// Dispatch: rows. Combine: rows to return, none if they are in place.
    pub(super) x: Given,
    /// Dispatch: scales of given fp8 rows.
    pub(super) scales: Given,
    /// Dispatch: expert numbers.
    pub(super) idx: Given,
    /// Dispatch: weights.
    pub(super) weight: Given,
    /// Dispatch: where the number of tokens is; none for `tokens`.
    pub(super) tokens_at: Given,
    /// Combine: rows. Pack: grouped rows. Scatter: rows, none for in place.
    pub(super) out: Given,
    /// Pack: grouped scales.
    pub(super) out_scales: Given,
    /// Pack: rows of each group.
    pub(super) masked_m: Given,
    /// Pack: expert of each group.
    pub(super) group_expert: Given,
    /// Pack and scatter: the row of each slot and entry.
    pub(super) row_of: Given,
    /// Pack: the slot of each row.
    pub(super) row_index: Given,
    /// Scatter: grouped rows.
    pub(super) grouped: Given,
    /// Dispatch: tokens.
    pub(super) tokens: u32,
    /// Whether expert numbers have 64 bits.
    pub(super) idx_64: u32,
    /// [`SEND`], [`RECV`] or [`BOTH`].
    pub(super) halves: u32,
    /// Whether to count tokens per expert.
    pub(super) count_load: u32,
}

/// A call, with its arguments checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    pub(super) layer: u32,
    pub(super) args: CallArgs,
}

impl Call {
    /// Whether both can be in one launch.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.kind == other.kind && self.args.halves == other.args.halves
    }
}

/// The arguments of a dispatch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dispatch {
    /// Number of the layer; all ranks must say the same.
    pub(crate) layer: u32,
    /// Rows.
    pub(crate) x: Given,
    /// Scales of given fp8 rows.
    pub(crate) scales: Given,
    /// Expert numbers.
    pub(crate) idx: Given,
    /// Whether they have 64 bits.
    pub(crate) idx_64: bool,
    /// Weights.
    pub(crate) weight: Given,
    /// Tokens, unless `tokens_at` is given.
    pub(crate) tokens: u32,
    /// Where the number of tokens is, an int32; none for `tokens`.
    pub(crate) tokens_at: Given,
    /// [`SEND`], [`RECV`] or [`BOTH`].
    pub(crate) halves: u32,
}

/// Where grouped rows go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped {
    /// Rows `[groups][max_m]`; none for the lists alone.
    pub(crate) x: Given,
    /// Scales `[groups][scales][max_m rounded up to 4]`.
    pub(crate) scales: Given,
    /// Rows of each group.
    pub(crate) masked_m: Given,
    /// Expert of each group.
    pub(crate) group_expert: Given,
    /// Row of each slot and entry, or -1.
    pub(crate) row_of: Given,
    /// Slot of each row, or -1.
    pub(crate) row_index: Given,
}

impl Ep {
    /// Fails unless the program's memory can be used; `align` bytes of alignment are needed.
    pub(super) fn check_memory(&self, name: &str, given: Given, align: u64) -> Result<()> {
        let address = given.address();
        if address == 0 || !address.is_multiple_of(align) {
            crate::bail!(NMC_ERR_INVALID_ARG, "{name} is {address:#x}; it must be an address aligned to {align}");
        }
        if let Some(gpu) = &self.gpu
            && cuda::reach(&gpu.device, address)? == Reach::Cpu
        {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{name} at {address:#x} is host memory that the GPU cannot reach; this group works on CUDA memory"
            );
        }
        Ok(())
    }

    fn submit(self: &Arc<Self>, kind: CallKind, layer: u32, args: CallArgs, stream: GivenStream) -> Result<()> {
        if self.gpu.is_none() && !stream.is_null() {
            crate::bail!(NMC_ERR_INVALID_ARG, "this group is on host memory and takes no stream; pass NULL");
        }
        self.usable()?;
        call_group::submit(self, stream, Call { kind, layer: check_layer(layer)?, args })
    }

    /// Sends tokens to the ranks of their experts and waits for those that come here.
    pub(crate) fn dispatch(self: &Arc<Self>, a: &Dispatch, stream: GivenStream) -> Result<()> {
        let mut args = CallArgs { halves: a.halves, count_load: u32::from(self.count_load), ..CallArgs::default() };
        if a.halves & SEND != 0 {
            if !a.tokens_at.is_none() {
                self.check_memory("n_tokens_ptr", a.tokens_at, 4)?;
            } else if a.tokens > self.shape.t_cap {
                return Err(Error::new(
                    NMC_ERR_LIMIT,
                    format!("{} tokens are more than t_cap {}; nothing was sent", a.tokens, self.shape.t_cap),
                ));
            }
            if a.tokens > 0 || !a.tokens_at.is_none() {
                self.check_memory("x", a.x, 16)?;
                self.check_memory("topk_idx", a.idx, if a.idx_64 { 8 } else { 4 })?;
                self.check_memory("topk_w", a.weight, u64::from(self.shape.weight_bytes))?;
                if self.shape.wire == Wire::Given {
                    self.check_memory("scales", a.scales, 4)?;
                }
            }
            args.x = a.x;
            args.scales = a.scales;
            args.idx = a.idx;
            args.idx_64 = u32::from(a.idx_64);
            args.weight = a.weight;
            args.tokens = a.tokens;
            args.tokens_at = a.tokens_at;
        }
        self.submit(CallKind::Dispatch, a.layer, args, stream)
    }

    /// Returns rows to their owners and sums what comes back. No `y`: the rows are in place.
    pub(crate) fn combine(
        self: &Arc<Self>,
        layer: u32,
        y: Given,
        out: Given,
        halves: u32,
        stream: GivenStream,
    ) -> Result<()> {
        let in_place = y.address() == self.recv_buffers(layer)?.y;
        let y = if in_place { Given::NONE } else { y };
        if halves & SEND != 0 && !y.is_none() {
            self.check_memory("y_recv", y, 16)?;
        }
        if halves & RECV != 0 {
            self.check_memory("out", out, 16)?;
        }
        let args = CallArgs { x: y, out, halves, ..CallArgs::default() };
        self.submit(CallKind::Combine, layer, args, stream)
    }

    /// Groups received rows by expert.
    pub(crate) fn pack(self: &Arc<Self>, layer: u32, g: &Grouped, stream: GivenStream) -> Result<()> {
        for (name, list) in [
            ("masked_m", g.masked_m),
            ("group_expert", g.group_expert),
            ("row_of", g.row_of),
            ("row_index", g.row_index),
        ] {
            self.check_memory(name, list, 4)?;
        }
        if !g.x.is_none() {
            self.check_memory("x", g.x, 16)?;
            if self.shape.scales() > 0 {
                self.check_memory("scales", g.scales, 16)?;
            }
        }
        let args = CallArgs {
            out: g.x,
            out_scales: g.scales,
            masked_m: g.masked_m,
            group_expert: g.group_expert,
            row_of: g.row_of,
            row_index: g.row_index,
            ..CallArgs::default()
        };
        self.submit(CallKind::Pack, layer, args, stream)
    }

    /// Sums the weighted rows of each received token. No `y`: in place, ready for the combine.
    pub(crate) fn scatter(
        self: &Arc<Self>,
        layer: u32,
        grouped: Given,
        row_of: Given,
        y: Given,
        stream: GivenStream,
    ) -> Result<()> {
        self.check_memory("y_grouped", grouped, 16)?;
        self.check_memory("row_of", row_of, 4)?;
        if !y.is_none() {
            self.check_memory("y_recv", y, 16)?;
        }
        let args = CallArgs { grouped, row_of, out: y, ..CallArgs::default() };
        self.submit(CallKind::Scatter, layer, args, stream)
    }
}
