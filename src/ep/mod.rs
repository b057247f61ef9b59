//! Expert-parallel transport: tokens go to the ranks that have their experts (dispatch), are grouped by expert (pack),
//! summed per token (scatter) and come back to their owners (combine). Two flags a step and rank order everything; the
//! sums have one order, so results are the same bits in every arrangement. docs/ep.md explains it.
//!
//! [`Core`] is one rank's part of a group. On CUDA heaps calls only enqueue; on host heaps they work at once, with the
//! same results. `ffi` calls this.

pub mod config;
mod cpu;
pub mod dtype;
pub mod forward;
pub mod group;
mod rendezvous;
pub mod status;
mod stream_turns;
mod sys;
mod turns;

pub use config::Config;

use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_UNSUPPORTED};
use crate::cuda::{self, Device, Early, EpCall, EpKernel, EpLaunch, Reach};
use crate::layout::ep::{OFF_FLAGS, OFF_PHASE, OFF_RETURNS, RankDesc, Shape, Wire};
use crate::mem::HeapKind;
use crate::world::{Membership, RankState};
use group::Pending;
use parking_lot::Mutex;
use status::Status;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// First half of a step.
pub const SEND: u32 = 1;
/// Second half.
pub const RECV: u32 = 2;
/// A whole step.
pub const BOTH: u32 = SEND | RECV;

/// Threads of a dispatching block: 7 warps that move rows and one that tells what they are for. A row of 7168 bf16 elements
/// is 14 pieces of a warp, so a block has a token in two turns.
const DISPATCH_THREADS: u32 = 256;
const COMBINE_THREADS: u32 = 448;
const SCATTER_THREADS: u32 = 448;
/// Blocks of a rank by default, and at most.
const USUAL_BLOCKS: u32 = 32;
const MAX_BLOCKS: u32 = 128;

/// How large a rank's kernels are.
#[derive(Debug, Clone, Copy, Default)]
struct Grid {
    dispatch: u32,
    combine: u32,
    scatter: u32,
    pack_parts: u32,
    /// Ranks of the group that use this device.
    sharing: usize,
    /// Whether steps of two buffer sets can be resident at once.
    two_sets: bool,
}

/// One rank's part of a group.
pub struct Core {
    member: Membership,
    /// What all ranks agreed on.
    pub shape: Shape,
    desc: RankDesc,
    /// World rank and generation of each rank of the group.
    ranks: Vec<(u32, u64)>,
    device: Option<Arc<Device>>,
    status: Status,
    grid: Grid,
    /// Of the CPU backend.
    scratch: Mutex<cpu::Scratch>,
    streams: Mutex<stream_turns::Streams>,
    turns: turns::Turns,
    count_load: bool,
    early: bool,
    /// World, heap offset and members: which group it is, for all ranks of this process.
    group: (u64, u64, u64),
}

/// The arguments of a dispatch.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch {
    /// Number of the layer; all ranks must say the same.
    pub layer: u32,
    /// Rows.
    pub x: u64,
    /// Scales of given fp8 rows.
    pub scales: u64,
    /// Expert numbers.
    pub idx: u64,
    /// Whether they have 64 bits.
    pub idx_64: bool,
    /// Weights.
    pub weight: u64,
    /// Tokens, unless `tokens_at` is given.
    pub tokens: u32,
    /// Where the number of tokens is, an int32; 0 for `tokens`.
    pub tokens_at: u64,
    /// [`SEND`], [`RECV`] or [`BOTH`].
    pub halves: u32,
}

/// Where grouped rows go. All memory is the caller's.
#[derive(Debug, Clone, Copy)]
pub struct Grouped {
    /// Rows `[groups][max_m]`; 0 for the lists alone.
    pub x: u64,
    /// Scales `[groups][scales][max_m rounded up to 4]`.
    pub scales: u64,
    /// Rows of each group.
    pub masked_m: u64,
    /// Expert of each group.
    pub group_expert: u64,
    /// Row of each slot and entry, or -1.
    pub row_of: u64,
    /// Slot of each row, or -1.
    pub row_index: u64,
}

/// A call, with its arguments checked.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    kernel: EpKernel,
    layer: u32,
    args: EpCall,
}

impl Call {
    /// Whether both can be in one launch.
    #[must_use]
    pub fn goes_with(&self, other: &Self) -> bool {
        self.kernel == other.kernel && self.args.halves == other.args.halves
    }
}

/// Views of what a rank received.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Rows `[world * t_cap]`.
    pub x: u64,
    /// Scales.
    pub scales: u64,
    /// Local expert numbers, int16.
    pub eid: u64,
    /// Weights.
    pub weight: u64,
    /// Records: `[world]`, `record_stride` bytes apart.
    pub record: u64,
    /// See above.
    pub record_stride: u32,
    /// Rows to return in place.
    pub y: u64,
}

impl Core {
    /// Makes a group together with the other members; for several ranks of this process at once.
    pub fn create(members: &[Membership], config: &Config) -> Result<Vec<Arc<Self>>> {
        let Some(first) = members.first() else { return Ok(Vec::new()) };
        for (i, member) in members.iter().enumerate() {
            let twice = members.iter().take(i).any(|other| other.rank() == member.rank());
            if twice || member.world_id() != first.world_id() {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "rank {} is given twice, or is of another world than rank {}",
                    member.rank(),
                    first.rank()
                );
            }
        }
        let ranks = config.members(first.world_size())?;
        let world = u32::try_from(ranks.len()).unwrap_or(0);
        let shape = config.shape(world, first.heap_kind())?;
        let deadline = Deadline::after(config.deadline);
        // All memory before the first meeting: from there on the others wait for this rank.
        let mut made = memory::with_capacity(members.len())?;
        let mut blank = memory::zeroed(usize::try_from(shape.set().sent).unwrap_or(0))?;
        let mut cores = memory::try_collect(members.iter().map(|member| Self::prepare(member, config, &ranks, shape)))?;
        let own: Vec<&Membership> = members.iter().collect();
        let mut fields: rendezvous::Fields = shape.fields().to_vec();
        fields.push(("heap_offset", config.heap_offset));
        fields.push(("members", mask_of(&ranks)));
        fields.push(("first phase", config.first_phase.into()));
        // Nothing that a former group left running writes any more; then regions are cleared; then all are clear.
        for core in &cores {
            core.wait_for_leavers(&ranks, &deadline)?;
        }
        rendezvous::meet(&own, &ranks, &fields, &deadline, || {
            for core in &mut cores {
                core.find_heaps(config.heap_offset, &ranks, &deadline)?;
                core.grid =
                    core.device.as_ref().map(|device| core.grid(device, &ranks)).transpose()?.unwrap_or_default();
            }
            cores.iter().try_for_each(|core| core.clear(config.first_phase, &mut blank))
        })?;
        made.extend(cores.into_iter().map(Arc::new));
        Ok(made)
    }

    fn prepare(member: &Membership, config: &Config, ranks: &[u32], shape: Shape) -> Result<Self> {
        member.check_present()?;
        let Some(number) = (0u32..).zip(ranks).find(|(_, rank)| **rank == member.rank()).map(|(number, _)| number)
        else {
            crate::bail!(NMC_ERR_INVALID_ARG, "rank {} is not in members", member.rank());
        };
        let (begin, bytes, heap) = (config.heap_offset, shape.region_bytes(), member.heap_bytes());
        if !begin.is_multiple_of(256) || begin.checked_add(bytes).is_none_or(|end| end > heap) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the transport needs {bytes} bytes from heap_offset {begin} (a multiple of 256) on; heaps have {heap}"
            );
        }
        let device = match member.heap_kind() {
            HeapKind::Host => None,
            HeapKind::Cuda => Some(Arc::clone(member.device().ok_or_else(no_device)?)),
        };
        let status = Status::new(shape.n_local(), device.as_ref())?;
        let scratch = Mutex::new(if device.is_none() { cpu::Scratch::new(&shape)? } else { cpu::Scratch::default() });
        let deadline_ns = u64::try_from(config.deadline.as_nanos()).unwrap_or(u64::MAX);
        let mut desc = RankDesc::new(&shape, number, deadline_ns, config.trap);
        desc.status = status.address();
        if let Some(device) = &device {
            // Now, not when it is needed: loading may wait for the device, and an abort must not.
            device.kernels()?;
            device.prepare_urgent()?;
        }
        Ok(Self {
            member: member.clone(),
            shape,
            desc,
            ranks: memory::with_capacity(ranks.len())?,
            device,
            status,
            grid: Grid::default(),
            scratch,
            streams: Mutex::default(),
            turns: turns::Turns::new(shape.sets),
            count_load: config.count_load,
            early: config.early,
            group: (member.world_id(), config.heap_offset, mask_of(ranks)),
        })
    }

    /// Who the others are and where their heaps begin. Only after all have met: a rank may just have been replaced, and this
    /// process not have been told yet.
    fn find_heaps(&mut self, begin: u64, ranks: &[u32], deadline: &Deadline) -> Result<()> {
        self.ranks.clear();
        for (number, rank) in ranks.iter().copied().enumerate() {
            let base = loop {
                // In this order: what is no longer changing has its state and its heap in place.
                let changing = self.member.changing(rank);
                let (state, generation) = self.member.holder(rank);
                let base = match &self.device {
                    Some(_) => self.member.device_base(rank),
                    None => self.member.base(rank).unwrap_or(0),
                };
                if !changing && state == RankState::Alive && base != 0 {
                    self.ranks.push((rank, generation));
                    break base;
                }
                if !changing && state != RankState::Alive || deadline.passed() {
                    crate::bail!(NMC_ERR_PEER_LOST, "rank {rank} is {state:?} and has no heap for a group");
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            self.desc.region[number] = base + begin;
        }
        Ok(())
    }

    /// A rank that died may still have a kernel that stores into heaps.
    fn wait_for_leavers(&self, ranks: &[u32], deadline: &Deadline) -> Result<()> {
        if let Some(device) = &self.device {
            device.synchronize()?;
        }
        for rank in (0..self.member.world_size()).filter(|rank| !ranks.contains(rank)) {
            while self.member.holder(rank).0 == RankState::Dying {
                if deadline.passed() {
                    crate::bail!(NMC_ERR_TIMEOUT, "rank {rank} is dying and may still write to heaps");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Sets the words of own region to what they are before the first step, and the records to no tokens.
    fn clear(&self, first_phase: u32, bytes: &mut [u8]) -> Result<()> {
        let before = first_phase.wrapping_sub(1);
        let head = self.shape.head_bytes();
        let mut put = |at: u64, value: &[u8]| {
            let at = usize::try_from(at).unwrap_or(0);
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(OFF_PHASE, &before.to_le_bytes());
        for flag in (OFF_RETURNS..OFF_FLAGS + 8 * u64::from(self.shape.world * self.shape.blocks)).step_by(8) {
            put(flag, &u64::from(before).to_le_bytes());
        }
        for set in 0..self.shape.sets {
            let to = self.desc.own() + head + self.shape.set().bytes * u64::from(set);
            match &self.device {
                None => sys::copy(bytes.as_ptr() as u64, to, bytes.len() as u64),
                Some(device) => device.copy_now(bytes.as_ptr() as u64, to, bytes.len())?,
            }
        }
        match &self.device {
            None => sys::zero(self.desc.own(), head),
            Some(device) => device.zero_now(self.desc.own(), usize::try_from(head).unwrap_or(0))?,
        }
        Ok(())
    }

    /// The descriptor for a layer.
    #[must_use]
    pub fn desc_for(&self, layer: u32) -> RankDesc {
        let mut desc = self.desc;
        desc.select(&self.shape, layer);
        desc
    }

    /// The same for kernels of the engine.
    pub fn device_desc(&self, layer: u32) -> Result<RankDesc> {
        if self.device.is_none() {
            return Err(Error::new(NMC_ERR_UNSUPPORTED, "this group is on host memory; no kernel can take part"));
        }
        let layer = Self::layer(layer)?;
        self.turns.forget();
        Ok(self.desc_for(layer))
    }

    /// What a dispatch of `layer` receives.
    #[must_use]
    pub fn received(&self, layer: u32) -> Received {
        let d = self.desc_for(layer);
        let at = |offset: u64| d.own() + offset;
        Received {
            x: at(d.off_x),
            scales: if d.scales > 0 { at(d.off_scale) } else { 0 },
            eid: at(d.off_eid),
            weight: at(d.off_weight),
            record: at(d.off_record),
            record_stride: d.record_stride,
            y: at(d.off_y),
        }
    }

    /// Whether the program's memory can be used; `align` bytes of alignment are needed.
    fn memory(&self, name: &str, address: u64, align: u64) -> Result<()> {
        if address == 0 || !address.is_multiple_of(align) {
            crate::bail!(NMC_ERR_INVALID_ARG, "{name} is {address:#x}; it must be an address aligned to {align}");
        }
        if let Some(device) = &self.device
            && cuda::reach(device, address)? == Reach::Cpu
        {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{name} at {address:#x} is host memory that the GPU cannot reach; this group works on CUDA memory"
            );
        }
        Ok(())
    }

    fn layer(layer: u32) -> Result<u32> {
        if layer > 0xffff {
            crate::bail!(NMC_ERR_INVALID_ARG, "layer {layer} is more than 65535");
        }
        Ok(layer)
    }

    fn stream(&self, stream: *mut c_void) -> Result<()> {
        if self.device.is_none() && !stream.is_null() {
            crate::bail!(NMC_ERR_INVALID_ARG, "this group is on host memory and takes no stream; pass NULL");
        }
        Ok(())
    }

    fn submit(self: &Arc<Self>, stream: *mut c_void, kernel: EpKernel, layer: u32, args: EpCall) -> Result<()> {
        self.stream(stream)?;
        self.usable()?;
        group::submit(self, stream, Call { kernel, layer: Self::layer(layer)?, args })
    }

    /// Sends tokens to the ranks of their experts and waits for those that come here.
    pub fn dispatch(self: &Arc<Self>, stream: *mut c_void, a: &Dispatch) -> Result<()> {
        let mut args = EpCall { halves: a.halves, count_load: u32::from(self.count_load), ..EpCall::default() };
        if a.halves & SEND != 0 {
            if a.tokens_at != 0 {
                self.memory("n_tokens_ptr", a.tokens_at, 4)?;
            } else if a.tokens > self.shape.t_cap {
                return Err(Error::new(
                    NMC_ERR_LIMIT,
                    format!("{} tokens are more than t_cap {}; nothing was sent", a.tokens, self.shape.t_cap),
                ));
            }
            if a.tokens > 0 || a.tokens_at != 0 {
                self.memory("x", a.x, 16)?;
                self.memory("topk_idx", a.idx, if a.idx_64 { 8 } else { 4 })?;
                self.memory("topk_w", a.weight, u64::from(self.shape.weight_bytes))?;
                if self.shape.wire == Wire::Given {
                    self.memory("scales", a.scales, 4)?;
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
        self.submit(stream, EpKernel::Dispatch, a.layer, args)
    }

    /// Returns rows to their owners and sums what comes back. `y` 0: the rows are in place.
    pub fn combine(self: &Arc<Self>, stream: *mut c_void, layer: u32, y: u64, out: u64, halves: u32) -> Result<()> {
        let in_place = self.received(layer).y;
        let y = if y == in_place { 0 } else { y };
        if halves & SEND != 0 && y != 0 {
            self.memory("y_recv", y, 16)?;
        }
        if halves & RECV != 0 {
            self.memory("out", out, 16)?;
        }
        let args = EpCall { x: y, out, halves, ..EpCall::default() };
        self.submit(stream, EpKernel::Combine, layer, args)
    }

    /// Groups received rows by expert.
    pub fn pack(self: &Arc<Self>, stream: *mut c_void, layer: u32, g: &Grouped) -> Result<()> {
        for (name, address) in [
            ("masked_m", g.masked_m),
            ("group_expert", g.group_expert),
            ("row_of", g.row_of),
            ("row_index", g.row_index),
        ] {
            self.memory(name, address, 4)?;
        }
        if g.x != 0 {
            self.memory("x", g.x, 16)?;
            if self.shape.scales() > 0 {
                self.memory("scales", g.scales, 16)?;
            }
        }
        let args = EpCall {
            out: g.x,
            out_scales: g.scales,
            masked_m: g.masked_m,
            group_expert: g.group_expert,
            row_of: g.row_of,
            row_index: g.row_index,
            ..EpCall::default()
        };
        self.submit(stream, EpKernel::Pack, layer, args)
    }

    /// Sums the weighted rows of each received token. `y` 0: in place, ready for the combine.
    pub fn scatter(self: &Arc<Self>, stream: *mut c_void, layer: u32, grouped: u64, row_of: u64, y: u64) -> Result<()> {
        self.memory("y_grouped", grouped, 16)?;
        self.memory("row_of", row_of, 4)?;
        if y != 0 {
            self.memory("y_recv", y, 16)?;
        }
        let args = EpCall { grouped, row_of, out: y, ..EpCall::default() };
        self.submit(stream, EpKernel::Scatter, layer, args)
    }

    /// Whether calls of both can go out together: they are ranks of one group, on one device.
    fn goes_with(&self, other: &Self) -> bool {
        let device = |core: &Self| core.device.as_ref().map(|device| device.ordinal());
        self.group == other.group && self.shape == other.shape && device(self) == device(other)
    }

    /// When kernels after those of a launch for `n` ranks may be placed. A kernel that waits for a dispatch must not take the
    /// room of a dispatch that is to come; with all ranks of the device in the launch there is none to come.
    fn early(&self, n: usize) -> Early {
        match self.device.as_ref().map_or(0, |device| device.facts().cc_major) {
            9.. if n >= self.grid.sharing => Early::Always,
            9.. if self.early => Early::Waiting,
            _ => Early::Never,
        }
    }

    /// How many blocks the kernels of this rank have; see [`Shape::blocks`]. All that wait at a time must be resident, with those
    /// of the other ranks that share the device. Only after all have met: before, a rank's device may not be known here. What
    /// else runs on the device, such as another group, cannot be known at all.
    fn grid(&self, device: &Device, ranks: &[u32]) -> Result<Grid> {
        let kernels = device.kernels()?;
        let uuid = device.uuid();
        let sharing = ranks.iter().filter(|rank| self.member.device_uuid(**rank) == uuid).count();
        let sharing = u32::try_from(sharing.max(1)).unwrap_or(1);
        let resident = kernels
            .ep_resident(EpKernel::Combine, COMBINE_THREADS)?
            .min(kernels.ep_resident(EpKernel::Dispatch, DISPATCH_THREADS)?);
        // Kernels that are placed early take room too.
        let most = if self.early && sharing > 1 { resident / sharing / 2 } else { resident / sharing };
        let blocks = self.shape.blocks;
        if blocks > most {
            crate::bail!(
                NMC_ERR_LIMIT,
                "{blocks} blocks of each of the {sharing} ranks on device {} cannot be resident at once; {most} can (set blocks)",
                device.ordinal()
            );
        }
        Ok(Grid {
            dispatch: blocks,
            combine: blocks,
            scatter: (2 * device.facts().sm_count.unsigned_abs() / sharing).max(1),
            pack_parts: 4,
            sharing: sharing as usize,
            two_sets: 2 * blocks <= most,
        })
    }

    /// Fails if this combine can wait beside a step of another buffer set, and there is no room for both. With all ranks of the
    /// group in the launch it cannot be kept from ending, once it is placed.
    fn check_room(&self, stream: *mut c_void, kernel: EpKernel, layer: u32, n: usize) -> Result<()> {
        if self.shape.sets == 1 || self.grid.two_sets || !matches!(kernel, EpKernel::Dispatch | EpKernel::Combine) {
            return Ok(());
        }
        let turns = self.streams.lock().take_turns((layer % self.shape.sets) as usize, stream as usize);
        if turns && kernel == EpKernel::Combine && n < self.shape.world as usize {
            crate::bail!(
                NMC_ERR_LIMIT,
                "steps of two buffer sets are on two streams, and twice the {} blocks of each of the {} ranks on the device \
                 cannot be resident at once (set blocks, or use one stream)",
                self.shape.blocks,
                self.grid.sharing
            );
        }
        Ok(())
    }

    /// Whether a rank of the group can no longer come.
    fn lost(&self, number: u32) -> bool {
        let Some((rank, generation)) = self.ranks.get(number as usize).copied() else { return false };
        self.member.state(rank, generation) != RankState::Alive
    }
}

fn mask_of(ranks: &[u32]) -> u64 {
    ranks.iter().fold(0, |mask, rank| mask | 1 << rank)
}

#[cold]
fn no_device() -> Error {
    Error::new(NMC_ERR_UNSUPPORTED, "the world was joined without a CUDA device (set config.device)")
}

/// Runs calls of one kind, one for each rank; `ranks` has room for them. One that is out of turn keeps all of them back.
fn run(calls: &[Pending], ranks: &mut Vec<(RankDesc, EpCall)>) -> Result<()> {
    for p in calls {
        if let Some(device) = &p.core.device
            && p.core.turns.known()
            && cuda::may_be_captured(device, p.stream)
        {
            p.core.turns.forget();
        }
        p.core.turns.check(p.call.kernel, p.call.args.halves, p.call.layer)?;
    }
    go(calls, ranks)?;
    calls.iter().for_each(|p| p.core.turns.done(p.call.kernel, p.call.args.halves, p.call.layer));
    Ok(())
}

fn go(calls: &[Pending], ranks: &mut Vec<(RankDesc, EpCall)>) -> Result<()> {
    let Some(first) = calls.first() else { return Ok(()) };
    match &first.core.device {
        None => run_on_host(calls),
        Some(device) => {
            let core = &first.core;
            let (blocks, threads) = match first.call.kernel {
                EpKernel::Dispatch if first.call.args.halves == RECV => (1, DISPATCH_THREADS),
                EpKernel::Dispatch => (core.grid.dispatch, DISPATCH_THREADS),
                EpKernel::Combine => (core.grid.combine, COMBINE_THREADS),
                EpKernel::Scatter => (core.grid.scatter, SCATTER_THREADS),
                EpKernel::Pack => (core.grid.pack_parts, 0),
            };
            for p in calls {
                p.core.check_room(p.stream, p.call.kernel, p.call.layer, calls.len())?;
            }
            let launch = EpLaunch { kernel: first.call.kernel, blocks, threads, early: core.early(calls.len()) };
            ranks.clear();
            ranks.extend(calls.iter().map(|p| (p.core.desc_for(p.call.layer), p.call.args)));
            device.kernels()?.ep(first.stream, launch, ranks)
        }
    }
}

fn run_on_host(calls: &[Pending]) -> Result<()> {
    let each = |f: &dyn Fn(&Core, &RankDesc, &EpCall) -> cpu::Outcome| {
        for p in calls {
            let desc = p.core.desc_for(p.call.layer);
            f(&p.core, &desc, &p.call.args).map_err(|cpu::Failed| p.core.failure())?;
        }
        Ok(())
    };
    let Some(first) = calls.first() else { return Ok(()) };
    let (send, recv) = (first.call.args.halves & SEND != 0, first.call.args.halves & RECV != 0);
    match first.call.kernel {
        EpKernel::Dispatch => {
            if send {
                each(&|core, d, c| cpu::send_dispatch(d, c, &core.scratch))?;
            }
            if recv { each(&|core, d, _| cpu::recv_dispatch(d, &|n| core.lost(n))) } else { Ok(()) }
        }
        EpKernel::Combine => {
            if send {
                each(&|_, d, c| cpu::send_combine(d, c))?;
            }
            let receive =
                |core: &Core, d: &RankDesc, c: &EpCall| cpu::recv_combine(d, c, &|n| core.lost(n), &core.scratch);
            if recv { each(&receive) } else { Ok(()) }
        }
        EpKernel::Pack => each(&|core, d, c| cpu::pack(d, c, &core.scratch)),
        EpKernel::Scatter => each(&|core, d, c| cpu::scatter(d, c, &core.scratch)),
    }
}
