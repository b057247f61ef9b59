//! One rank's part of a group, [`Ep`]. `create` makes it, together with the other ranks; `submit` checks what the program asks for,
//! `call_group` keeps calls that go out together, and `run` takes them to the kernels, as large as `grid` says, or does them at once on
//! the CPU, with the same results. `step_order` and `stream_turns` know what may come next, and where; `health` tells how the group
//! fares.

pub(crate) mod call_group;
mod create;
mod grid;
mod health;
mod run;
mod step_order;
mod stream_turns;
mod submit;
mod sys;

use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_UNSUPPORTED;
use crate::ep::cpu::Scratch;
use crate::ep::gpu::Gpu;
use crate::ep::status::Status;
use crate::layout::ep::{RankDesc, Shape};
use crate::world::{Membership, RankState};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// One rank's part of a group.
pub(crate) struct Ep {
    member: Membership,
    /// What all ranks agreed on.
    pub(crate) shape: Shape,
    /// With layer 0; see [`Self::desc_for`].
    desc: RankDesc,
    /// World rank and generation of each rank of the group.
    ranks: Vec<(u32, u64)>,
    /// None on host memory.
    pub(super) gpu: Option<Gpu>,
    grid: grid::Grid,
    status: Status,
    /// Of the CPU backend.
    scratch: Mutex<Scratch>,
    streams: Mutex<stream_turns::Streams>,
    order: step_order::StepOrder,
    count_load: bool,
    early: bool,
    /// Whether kernels of the program may take part in steps.
    own_kernels: AtomicBool,
    /// World, heap offset and members: which group it is, for all ranks of this process.
    identity: (u64, u64, u64),
}

/// Where a rank finds what it received: addresses in its heap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecvBuffers {
    pub(crate) x: u64,
    /// 0 without fp8.
    pub(crate) scales: u64,
    pub(crate) eid: u64,
    pub(crate) weight: u64,
    pub(crate) record: u64,
    pub(crate) record_stride: u32,
    /// Rows to return in place.
    pub(crate) y: u64,
}

/// Fails unless flags and error words have room for the layer.
fn check_layer(layer: u32) -> Result<u32> {
    if layer > 0xffff {
        crate::bail!(NMC_ERR_INVALID_ARG, "layer {layer} is more than 65535");
    }
    Ok(layer)
}

impl Ep {
    /// The descriptor for a layer.
    fn desc_for(&self, layer: u32) -> RankDesc {
        let mut desc = self.desc;
        desc.select(&self.shape, layer);
        desc
    }

    /// The same for kernels of the engine, which may take steps from now on.
    pub(crate) fn device_desc(&self, layer: u32) -> Result<RankDesc> {
        if self.gpu.is_none() {
            return Err(Error::new(NMC_ERR_UNSUPPORTED, "this group is on host memory; no kernel can take part"));
        }
        let layer = check_layer(layer)?;
        self.order.forget();
        self.own_kernels.store(true, Relaxed);
        Ok(self.desc_for(layer))
    }

    /// What a dispatch of `layer` receives.
    pub(crate) fn recv_buffers(&self, layer: u32) -> Result<RecvBuffers> {
        let d = self.desc_for(check_layer(layer)?);
        let at = |offset: u64| d.own() + offset;
        Ok(RecvBuffers {
            x: at(d.off_x),
            scales: if d.scales > 0 { at(d.off_scale) } else { 0 },
            eid: at(d.off_eid),
            weight: at(d.off_weight),
            record: at(d.off_record),
            record_stride: d.record_stride,
            y: at(d.off_y),
        })
    }

    /// Whether calls of both can go out together: they are ranks of one group, on one device.
    fn goes_with(&self, other: &Self) -> bool {
        let device = |ep: &Self| ep.gpu.as_ref().map(|gpu| gpu.device.ordinal());
        self.identity == other.identity && self.shape == other.shape && device(self) == device(other)
    }

    /// Whether a rank of the group can no longer come.
    fn lost(&self, number: u32) -> bool {
        let Some((rank, generation)) = self.ranks.get(number as usize).copied() else { return false };
        self.member.state(rank, generation) != RankState::Alive
    }
}
