//! What the program asks for, checked before anything is done.

use super::{Ep, call_group, check_layer};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_LIMIT;
use crate::cuda::GivenStream;
use crate::cuda::{self, Reach};
use crate::ep::calls::{Call, CallArgs, CallKind, Dispatch, Grouped, RECV, SEND};
use crate::ep::sys::Given;
use crate::layout::ep::Wire;
use std::sync::Arc;

impl Ep {
    /// Fails unless the program's memory can be used; `align` bytes of alignment are needed.
    pub(in crate::ep) fn check_memory(&self, name: &str, given: Given, align: u64) -> Result<()> {
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
