//! How a group is made: what can fail is done before the ranks meet; once all have met, heaps are found and regions cleared, and
//! nobody goes on before all of them are.

use super::Ep;
use super::grid::Grid;
use super::step_order::StepOrder;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_UNSUPPORTED;
use crate::ep::config::Config;
use crate::ep::cpu::Scratch;
use crate::ep::gpu::Gpu;
use crate::ep::rendezvous::{self, Fields, MEMBERS};
use crate::ep::status::Status;
use crate::layout::ep::{OFF_COUNTED, OFF_FLAGS, OFF_PHASE, OFF_RETURNS, OFF_SCATTERED, RankDesc, Shape};
use crate::mem::HeapKind;
use crate::world::{Membership, RankState};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

impl Ep {
    /// Makes a group together with the other members; for several ranks of this process at once.
    pub(crate) fn create(members: &[Membership], config: &Config) -> Result<Vec<Arc<Self>>> {
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
        let mut eps = memory::try_collect(members.iter().map(|member| Self::prepare(member, config, &ranks, shape)))?;
        let own: Vec<&Membership> = members.iter().collect();
        // Members first: defaults of other fields follow from how many they are.
        let mut fields: Fields = vec![(MEMBERS, mask_of(&ranks))];
        fields.extend(shape.fields());
        fields.push(("heap_offset", config.heap_offset));
        fields.push(("first_phase", config.first_phase.into()));
        // Nothing that a former group left running writes any more; then regions are cleared; then all are clear.
        for ep in &eps {
            ep.wait_for_leavers(&ranks, &deadline)?;
        }
        rendezvous::meet(&own, &ranks, &fields, &deadline, || {
            for ep in &mut eps {
                ep.find_heaps(config.heap_offset, &ranks, &deadline)?;
                ep.grid = ep.gpu.as_ref().map(|gpu| ep.fit_grid(gpu, &ranks)).transpose()?.unwrap_or_default();
                ep.desc.scope = ep.scope(members.len());
            }
            eps.iter().try_for_each(|ep| ep.clear(config.first_phase, &mut blank))
        })?;
        made.extend(eps.into_iter().map(Arc::new));
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
        // Kernels now, not when they are needed: loading may wait for the device, and an abort must not.
        let gpu = match member.heap_kind() {
            HeapKind::Host => None,
            HeapKind::Cuda => Some(Gpu::new(member.device().ok_or_else(no_device)?, &shape)?),
        };
        if let Some(gpu) = &gpu {
            gpu.device.prepare_urgent()?;
        }
        let status = Status::new(shape.n_local(), gpu.as_ref().map(|gpu| &gpu.device))?;
        let scratch = Mutex::new(if gpu.is_none() { Scratch::new(&shape)? } else { Scratch::default() });
        let deadline_ns = u64::try_from(config.deadline.as_nanos()).unwrap_or(u64::MAX);
        let mut desc = RankDesc::new(&shape, number, deadline_ns, config.trap);
        desc.status = status.address();
        Ok(Self {
            member: member.clone(),
            shape,
            desc,
            ranks: memory::with_capacity(ranks.len())?,
            gpu,
            grid: Grid::default(),
            status,
            scratch,
            streams: Mutex::default(),
            order: StepOrder::new(shape.sets),
            count_load: config.count_load,
            early: config.early,
            own_kernels: AtomicBool::new(false),
            identity: (member.world_id(), config.heap_offset, mask_of(ranks)),
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
                let base = match &self.gpu {
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
        if let Some(gpu) = &self.gpu {
            gpu.device.synchronize()?;
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

    /// Sets the words of own region to what they are before the first step, and the records to no tokens. `words` is as large as
    /// the words and records of a set.
    fn clear(&self, first_phase: u32, words: &mut [u8]) -> Result<()> {
        let before = first_phase.wrapping_sub(1);
        let mut put = |at: u64, value: &[u8]| {
            let at = usize::try_from(at).unwrap_or(0);
            words[at..at + value.len()].copy_from_slice(value);
        };
        put(OFF_PHASE, &before.to_le_bytes());
        put(OFF_SCATTERED, &before.to_le_bytes());
        put(OFF_COUNTED, &u64::from(before).to_le_bytes());
        for flag in (OFF_RETURNS..OFF_FLAGS + 8 * u64::from(self.shape.world)).step_by(8) {
            put(flag, &u64::from(before).to_le_bytes());
        }
        let head = self.shape.head_bytes();
        for set in (0..self.shape.sets).map(|set| head + self.shape.set().bytes * u64::from(set)) {
            match &self.gpu {
                None => self.own_region().part(set, words.len() as u64).write(words),
                Some(gpu) => self.write_own(&gpu.device, set, words)?,
            }
        }
        match &self.gpu {
            None => self.own_region().part(0, head).cells::<u8>().iter().for_each(|byte| byte.set(0)),
            Some(gpu) => self.clear_own(&gpu.device, head)?,
        }
        Ok(())
    }
}

fn mask_of(ranks: &[u32]) -> u64 {
    ranks.iter().fold(0, |mask, rank| mask | 1 << rank)
}

#[cold]
fn no_device() -> Error {
    Error::new(NMC_ERR_UNSUPPORTED, "the world was joined without a CUDA device (set config.device)")
}
