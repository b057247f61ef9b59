//! A world as its master keeps it: the two slabs and one slot per rank. Pure bookkeeping; the master's thread
//! does the talking.

use super::liveness::RankState;
use super::master::taken;
use super::watch::Watch;
use super::wire::{Hello, Holder, Params, Peer};
use crate::base::error::Result;
use crate::base::{id, log};
use crate::layout::world::{Control, Farewell, MAGIC, Words, control_bytes, words_bytes};
use crate::mem::heap::HeapDesc;
use crate::mem::slab::{Slab, reopen};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A rank as the master knows it.
pub struct Slot {
    /// How many processes have held the rank.
    pub generation: u64,
    /// The process that holds it.
    pub holder: Holder,
    /// Its observation.
    pub watch: Watch,
    /// Its heap, kept for the next holder after its death.
    pub heap: Option<(HeapDesc, Option<OwnedFd>)>,
    /// It was given the rank but has not offered its heap yet.
    pub joining: bool,
}

/// The master's state of one world.
pub struct Realm {
    id: u64,
    params: Params,
    control: Slab,
    control_ro: OwnedFd,
    words: Slab,
    slots: Vec<Option<Slot>>,
    /// Generations of ranks, which outlive their slots.
    generations: Vec<u64>,
    formed: bool,
}

impl Realm {
    /// A new, empty world.
    pub fn create(params: &Params) -> Result<Self> {
        let control = Slab::create(c"nanomc control", control_bytes(params.world_size), false)?;
        let words = Slab::create(c"nanomc words", words_bytes(params.world_size, params.words_per_rank), false)?;
        let id = id::random_u64()?;
        if let Some(view) = Control::new(control.shared_bytes(), params.world_size) {
            let p = params;
            view.header().fill(id, p.world_size, p.heap_kind, p.heap_bytes, p.words_per_rank);
        }
        let size = params.world_size as usize;
        Ok(Self {
            id,
            params: params.clone(),
            control_ro: control.read_only_fd()?,
            control,
            words,
            slots: (0..size).map(|_| None).collect(),
            generations: vec![0; size],
            formed: false,
        })
    }

    /// A world that outlived its master, from what a survivor handed over.
    pub fn adopt(p: &Params, id: u64, control: OwnedFd, words: OwnedFd, slots: Vec<(u32, Slot)>) -> Result<Self> {
        let writable = reopen(control.as_fd(), libc::O_RDWR)?;
        let control = Slab::open(writable, control_bytes(p.world_size), true)?;
        let words = Slab::open(words, words_bytes(p.world_size, p.words_per_rank), true)?;
        let intact = Control::new(control.shared_bytes(), p.world_size).is_some_and(|view| {
            let header = view.header();
            header.magic.load(Ordering::Acquire) == MAGIC && header.world_id.load(Ordering::Relaxed) == id
        });
        if !intact || slots.len() > p.world_size as usize {
            crate::bail!(NMC_ERR_PROTOCOL, "a survivor handed over something that is not world {id:x}");
        }
        let size = p.world_size as usize;
        let mut realm = Self {
            id,
            params: p.clone(),
            control_ro: control.read_only_fd()?,
            control,
            words,
            slots: (0..size).map(|_| None).collect(),
            generations: vec![0; size],
            formed: true,
        };
        for (rank, slot) in slots {
            realm.place(rank, slot)?;
        }
        Ok(realm)
    }

    fn place(&mut self, rank: u32, slot: Slot) -> Result<()> {
        let (Some(seat), Some(generation)) =
            (self.slots.get_mut(rank as usize), self.generations.get_mut(rank as usize))
        else {
            crate::bail!(NMC_ERR_PROTOCOL, "rank {rank} is not below {}", self.params.world_size);
        };
        *generation = slot.generation;
        *seat = Some(slot);
        Ok(())
    }

    /// Another survivor came back: what it knows better than we do is taken over.
    pub fn merge(&mut self, rank: u32, generation: u64, slots: Vec<(u32, Slot)>) -> Result<()> {
        for (other, slot) in slots {
            if self.generations.get(other as usize).is_some_and(|known| slot.generation > *known) {
                self.place(other, slot)?;
            }
        }
        let known = self.generations.get(rank as usize).copied();
        if known != Some(generation) {
            crate::bail!(NMC_ERR_EXISTS, "rank {rank} was given to another process meanwhile");
        }
        Ok(())
    }

    /// Random name of the world.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many processes have held each rank.
    pub fn generations(&self) -> &[u64] {
        &self.generations
    }

    /// Whether all ranks were there at once; only then does anybody's join complete.
    pub fn formed(&self) -> bool {
        self.formed
    }

    /// Whether nobody holds any rank.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// The control slab for ranks: they cannot write through it.
    pub fn control_ro(&self) -> BorrowedFd<'_> {
        self.control_ro.as_fd()
    }

    /// The words slab.
    pub fn words_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    fn state(&mut self, rank: u32) -> RankState {
        let words = Words::new(self.words.shared_bytes(), self.params.world_size, self.params.words_per_rank);
        let word = words.and_then(|w| w.lines(rank)).map_or(0, |l| l.farewell.value.load(Ordering::Acquire));
        match self.slots.get_mut(rank as usize) {
            Some(Some(slot)) => slot.watch.observe(Farewell::decode(word, slot.generation)),
            _ => RankState::Absent,
        }
    }

    /// Whether the world was formed and all its ranks are gone.
    pub fn is_over(&mut self) -> bool {
        self.formed && (0..self.params.world_size).all(|rank| self.state(rank).free())
    }

    /// The rank for a joiner; `None` if it has to wait for the former holder to be gone.
    pub fn choose_rank(&mut self, hello: &Hello) -> Result<Option<u32>> {
        let size = self.params.world_size;
        let rank = match u32::try_from(hello.rank) {
            Ok(rank) => rank,
            Err(_) => {
                let states: Vec<RankState> = (0..size).map(|rank| self.state(rank)).collect();
                match states.iter().zip(0u32..).find(|(s, _)| s.free()) {
                    Some((_, rank)) => rank,
                    None if states.contains(&RankState::Dying) => return Ok(None),
                    None => crate::bail!(NMC_ERR_EXISTS, "all {size} ranks are taken"),
                }
            }
        };
        let state = self.state(rank);
        let former = self.slots.get(rank as usize).and_then(Option::as_ref);
        match (state, former) {
            (RankState::Alive, Some(slot)) => return Err(taken(rank, slot.holder.pid)),
            (RankState::Dying, _) => return Ok(None),
            _ => {}
        }
        if let Some(slot) = former
            && slot.holder.device_uuid != hello.holder.device_uuid
        {
            crate::bail!(
                NMC_ERR_MISMATCH,
                "device: rank {rank} was on the GPU {}, the joining process has {}",
                uuid_text(&slot.holder.device_uuid),
                uuid_text(&hello.holder.device_uuid)
            );
        }
        let device_rank = |rank: u32, holder: &Holder| u32::try_from(holder.device_rank).unwrap_or(rank);
        let wanted = device_rank(rank, &hello.holder);
        for (slot, other) in self.slots.iter().zip(0u32..).filter(|(_, other)| *other != rank) {
            if let Some(slot) = slot
                && device_rank(other, &slot.holder) == wanted
            {
                crate::bail!(
                    NMC_ERR_EXISTS,
                    "device_rank {wanted}: rank {rank} wants it, but rank {other} (process {}) has it",
                    slot.holder.pid
                );
            }
        }
        Ok(Some(rank))
    }

    /// Gives `rank` to a process and returns its generation.
    pub fn seat(&mut self, rank: u32, holder: Holder, watch: Watch) -> Result<u64> {
        let at = rank as usize;
        let generation = self.generations.get(at).copied().unwrap_or(0) + 1;
        let heap = self.slots.get_mut(at).and_then(Option::take).and_then(|former| {
            // Memory that an engine lent died with it or belongs to it; only the library's own heaps live on.
            (!former.holder.lent && !holder.lent).then_some(former.heap).flatten()
        });
        if let Some(entry) =
            Control::new(self.control.shared_bytes(), self.params.world_size).and_then(|view| view.rank(rank))
        {
            entry.pid.store(holder.pid, Ordering::Relaxed);
            entry.start_time.store(holder.start_time, Ordering::Relaxed);
            entry.device_plus_1.store((holder.device + 1).unsigned_abs(), Ordering::Relaxed);
            entry.device_rank.store(u32::try_from(holder.device_rank).unwrap_or(rank), Ordering::Relaxed);
            entry.cuda.store(u32::from(holder.device >= 0), Ordering::Relaxed);
            entry.generation.store(generation, Ordering::Release);
        }
        log::emit(log::INFO, || format!("master: rank {rank} goes to process {}", holder.pid));
        self.place(rank, Slot { generation, holder, watch, heap, joining: true })?;
        Ok(generation)
    }

    /// The heap of the former holder of `rank`, if its next holder can go on with it.
    pub fn inheritance(&self, rank: u32) -> Option<(&HeapDesc, BorrowedFd<'_>)> {
        let (desc, fd) = self.slots.get(rank as usize)?.as_ref()?.heap.as_ref()?;
        Some((desc, fd.as_ref()?.as_fd()))
    }

    /// A rank has its heap. True when the world is formed.
    pub fn set_heap(&mut self, rank: u32, desc: HeapDesc, fd: Option<OwnedFd>) -> bool {
        if let Some(Some(slot)) = self.slots.get_mut(rank as usize) {
            slot.heap = Some((desc, fd));
            slot.joining = false;
        }
        self.formed |= self.slots.iter().all(|s| s.as_ref().is_some_and(|s| !s.joining));
        self.formed
    }

    /// A connection ended before its join was complete: the rank is free again. Its heap, if it was adopted, stays.
    pub fn unseat_if_joining(&mut self, rank: u32) {
        let formed = self.formed;
        let entry = Control::new(self.control.shared_bytes(), self.params.world_size).and_then(|view| view.rank(rank));
        if let Some(seat) = self.slots.get_mut(rank as usize)
            && seat.as_ref().is_some_and(|slot| slot.joining || !formed)
        {
            if let Some(entry) = entry {
                entry.pid.store(0, Ordering::Release);
            }
            match seat {
                Some(slot) if formed && slot.heap.is_some() => slot.watch.vacate(),
                _ => *seat = None,
            }
        }
    }

    /// The ranks for which `about` holds, and their descriptors, ready to be sent.
    pub fn roster(&self, about: impl Fn(u32) -> bool) -> (Vec<Peer>, Vec<BorrowedFd<'_>>) {
        let mut peers = Vec::new();
        let mut fds = Vec::new();
        for (slot, rank) in self.slots.iter().zip(0u32..) {
            if let Some(slot) = slot
                && let Some((heap, fd)) = &slot.heap
                && !slot.joining
                && about(rank)
            {
                fds.extend([slot.watch.pidfd.as_fd(), slot.watch.life.as_fd()]);
                fds.extend(fd.as_ref().map(AsFd::as_fd));
                let holder = slot.holder.clone();
                peers.push(Peer { rank, generation: slot.generation, holder, heap: heap.clone() });
            }
        }
        (peers, fds)
    }
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    if uuid.iter().all(|b| *b == 0) {
        return "none".into();
    }
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}
