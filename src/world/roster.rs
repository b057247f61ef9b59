//! A world as its master keeps it: the two slabs and one slot per rank. Pure bookkeeping; the master's thread
//! does the talking.

use super::liveness::RankState;
use super::rank_locks::RankLocks;
use super::watch::Watch;
use super::wire::{Hello, Holder, Params, Peer};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_PROTOCOL};
use crate::base::{Deadline, id, log, memory};
use crate::layout::world::{Control, Farewell, RankEntry, Words, control_bytes, words_bytes};
use crate::mem::heap::{HeapDesc, HeapKind, Route};
use crate::mem::slab::{Slab, reopen};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
    /// Who held the rank before, for as long as the holder is joining.
    pub former: Option<(u64, Holder, Watch)>,
}

/// The master's state of one world.
pub struct Roster {
    id: u64,
    params: Params,
    control: Slab,
    control_ro: OwnedFd,
    words: Slab,
    slots: Vec<Option<Slot>>,
    /// How many processes have held each rank. The control slab has the same numbers, and outlives masters.
    generations: Vec<u64>,
    formed: bool,
    locks: Arc<RankLocks>,
    /// Nobody is seated before, so that survivors of a former master can report first.
    settled_at: Instant,
}

/// How long a master that took a world over waits for survivors who have not reported.
const SETTLING: Duration = Duration::from_secs(1);

impl Roster {
    /// A new, empty world.
    pub fn create(params: &Params, locks: &Arc<RankLocks>) -> Result<Self> {
        let deadline = Deadline::after(Duration::from_secs(60));
        let control = Slab::create(c"nanomc control", control_bytes(params.world_size), false, &deadline)?;
        let bytes = words_bytes(params.world_size, params.words_per_rank);
        let words = Slab::create(c"nanomc words", bytes, false, &deadline)?;
        let id = id::random_u64()?;
        if let Some(header) = Control::new(control.region()).header() {
            let p = params;
            header.fill(id, p.world_size, p.heap_kind, p.heap_bytes, p.words_per_rank);
        }
        Self::assemble(params, id, control, words, locks, false)
    }

    fn assemble(
        params: &Params,
        id: u64,
        control: Slab,
        words: Slab,
        locks: &Arc<RankLocks>,
        formed: bool,
    ) -> Result<Self> {
        Ok(Self {
            id,
            params: params.clone(),
            control_ro: control.read_only_fd()?,
            generations: (0..params.world_size)
                .map(|rank| {
                    let entry = Control::new(control.region()).rank(rank);
                    entry.map_or(0, |e| e.generation.load(Ordering::Acquire))
                })
                .collect(),
            control,
            words,
            slots: memory::collect((0..params.world_size).map(|_| None))?,
            formed,
            locks: Arc::clone(locks),
            settled_at: Instant::now(),
        })
    }

    /// A world that outlived its master, from what a survivor handed over.
    pub fn adopt(p: &Params, id: u64, control: OwnedFd, words: OwnedFd, locks: &Arc<RankLocks>) -> Result<Self> {
        let writable = reopen(control.as_fd(), libc::O_RDWR)?;
        let control = Slab::open(writable, control_bytes(p.world_size), true)?;
        let words = Slab::open(words, words_bytes(p.world_size, p.words_per_rank), true)?;
        if !Control::new(control.region()).is_of(id) {
            crate::bail!(NMC_ERR_PROTOCOL, "a survivor handed over something that is not world {id:x}");
        }
        let mut roster = Self::assemble(p, id, control, words, locks, true)?;
        roster.settled_at = Instant::now() + SETTLING;
        Ok(roster)
    }

    fn entry(&self, rank: u32) -> Option<&RankEntry> {
        Control::new(self.control.region()).rank(rank)
    }

    fn slot(&self, rank: u32) -> Option<&Slot> {
        self.slots.get(rank as usize).and_then(Option::as_ref)
    }

    /// A survivor reported: what it knows and we do not is taken over. Returns the ranks that this is news about.
    pub fn merge(&mut self, rank: u32, generation: u64, slots: Vec<(u32, Slot)>) -> Result<Vec<u32>> {
        if self.generations.get(rank as usize) != Some(&generation) {
            crate::bail!(NMC_ERR_EXISTS, "rank {rank} was given to another process meanwhile");
        }
        let mut news = Vec::new();
        for (other, slot) in slots {
            let newest = self.generations.get(other as usize).copied();
            let known = self.slot(other).map_or(0, |s| s.generation);
            if slot.generation > known && newest.is_some_and(|newest| slot.generation <= newest) {
                self.slots[other as usize] = Some(slot);
                news.push(other);
            }
        }
        Ok(news)
    }

    /// Random name of the world.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether `rank` is held by the holder number `generation`.
    pub fn is_holder(&self, rank: u32, generation: u64) -> bool {
        self.slot(rank).is_some_and(|slot| slot.generation == generation)
    }

    /// Whether the holder of `rank` has not offered its heap yet.
    pub fn is_joining(&self, rank: u32) -> bool {
        self.slot(rank).is_some_and(|slot| slot.joining)
    }

    /// Whether the process that is joining as `rank` has died.
    pub fn joiner_died(&self, rank: u32) -> bool {
        self.slot(rank).is_some_and(|slot| slot.joining && slot.watch.process_died())
    }

    /// How many processes have held a rank.
    pub fn newest(&self, rank: u32) -> u64 {
        self.generations.get(rank as usize).copied().unwrap_or(0)
    }

    /// The holder that brought or inherited a rank's heap, and the heap's name, 0 for lent memory. Who is still joining
    /// may bring another one: nothing is known then.
    pub fn heap_of(&self, rank: u32) -> (u64, u64) {
        let Some(slot) = self.slot(rank).filter(|slot| !slot.joining) else { return (0, 0) };
        (slot.generation, slot.heap.as_ref().map_or(0, |(desc, _)| if desc.lent { 0 } else { desc.id }))
    }

    /// Ranks that were given away, but have no heap yet.
    pub fn unready(&self) -> Vec<u32> {
        (0..self.params.world_size).filter(|rank| self.is_joining(*rank)).collect()
    }

    /// Ranks that nobody holds.
    pub fn absent(&self) -> Vec<u32> {
        (0..self.params.world_size).filter(|rank| self.slot(*rank).is_none()).collect()
    }

    /// How many processes have held each rank.
    pub fn generations(&self) -> &[u64] {
        &self.generations
    }

    /// Whether as many ranks as are needed were there at once; only then does anybody's join complete.
    pub fn formed(&self) -> bool {
        self.formed
    }

    /// Whether nobody holds any rank.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Whether survivors may still report: some that live have not, and their time is not over.
    pub fn is_settling(&mut self, reported: impl Fn(u32) -> bool) -> bool {
        Instant::now() < self.settled_at
            && (0..self.params.world_size).any(|rank| !reported(rank) && self.state(rank) == RankState::Alive)
    }

    /// The control slab for ranks: they cannot write through it.
    pub fn control_ro(&self) -> BorrowedFd<'_> {
        self.control_ro.as_fd()
    }

    /// The words slab.
    pub fn words_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// State of the newest holder of a rank.
    pub fn state(&mut self, rank: u32) -> RankState {
        let newest = self.generations.get(rank as usize).copied().unwrap_or(0);
        if newest > self.slot(rank).map_or(0, |slot| slot.generation) {
            return self.state_of_unknown(rank);
        }
        let words = Words::new(self.words.region(), self.params.words_per_rank);
        match self.slots.get_mut(rank as usize) {
            Some(Some(slot)) => slot.watch.observe(words.farewell(rank, slot.generation)),
            _ => RankState::Absent,
        }
    }

    /// A former master gave the rank to a process that nobody has reported. All that is known of it is in the control
    /// slab; if it lives it will report itself.
    fn state_of_unknown(&self, rank: u32) -> RankState {
        let Some(entry) = self.entry(rank) else { return RankState::Absent };
        let pid = entry.pid.load(Ordering::Acquire);
        let left = Words::new(self.words.region(), self.params.words_per_rank)
            .farewell(rank, entry.generation.load(Ordering::Acquire));
        if pid == 0 || left != Farewell::None {
            RankState::Gone
        } else if self.locks.is_held(rank) {
            RankState::Alive
        } else if Instant::now() < self.settled_at {
            RankState::Dying
        } else {
            // Nobody has to wait for it any more.
            entry.pid.store(0, Ordering::Release);
            RankState::Gone
        }
    }

    /// Whether the world was formed and all its ranks are gone.
    pub fn is_over(&mut self) -> bool {
        self.formed && (0..self.params.world_size).all(|rank| self.state(rank).free())
    }

    /// The rank for a joiner; `None` if it has to wait for the former holder to be gone.
    pub fn choose_rank(&mut self, hello: &Hello) -> Result<Option<u32>> {
        let size = self.params.world_size;
        let states: Vec<RankState> = (0..size).map(|rank| self.state(rank)).collect();
        let rank = match u32::try_from(hello.rank) {
            Ok(rank) => rank,
            Err(_) => match states.iter().zip(0u32..).find(|(s, _)| s.free()) {
                Some((_, rank)) => rank,
                None if states.contains(&RankState::Dying) => return Ok(None),
                None => crate::bail!(NMC_ERR_EXISTS, "all {size} ranks are taken"),
            },
        };
        match states.get(rank as usize) {
            Some(RankState::Alive) => {
                let pid = self.entry(rank).map_or(0, |e| e.pid.load(Ordering::Relaxed));
                return Err(taken(rank, self.slot(rank).map_or(pid, |slot| slot.holder.pid)));
            }
            Some(RankState::Dying) | None => return Ok(None),
            Some(_) => {}
        }
        if let Some(slot) = self.slot(rank)
            && self.params.heap_kind == HeapKind::Cuda.code()
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
        let others = self.slots.iter().zip(0u32..).zip(&states).filter(|((_, other), s)| *other != rank && !s.free());
        for ((slot, other), _) in others {
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

    /// Gives `rank` to a process and returns its generation. The former holder's heap stays with the rank until the new
    /// one has offered its own.
    pub fn seat(&mut self, rank: u32, holder: Holder, watch: Watch) -> u64 {
        let at = rank as usize;
        let generation = self.generations.get(at).copied().unwrap_or(0).saturating_add(1);
        let (heap, former) = match self.slots.get_mut(at).and_then(Option::take) {
            Some(slot) => (slot.heap, Some((slot.generation, slot.holder, slot.watch))),
            None => (None, None),
        };
        if let Some(entry) = self.entry(rank) {
            // The pid follows when the join is complete: who has not got so far never wrote, and can be forgotten.
            entry.pid.store(0, Ordering::Release);
            entry.start_time.store(holder.start_time, Ordering::Relaxed);
            entry.device_plus_1.store(holder.device.saturating_add(1).unsigned_abs(), Ordering::Relaxed);
            entry.device_rank.store(u32::try_from(holder.device_rank).unwrap_or(rank), Ordering::Relaxed);
            entry.cuda.store(u32::from(holder.device >= 0), Ordering::Relaxed);
            entry.generation.store(generation, Ordering::Release);
        }
        log::emit(log::INFO, || format!("master: rank {rank} goes to process {}", holder.pid));
        if let (Some(seat), Some(number)) = (self.slots.get_mut(at), self.generations.get_mut(at)) {
            *number = generation;
            *seat = Some(Slot { generation, holder, watch, heap, joining: true, former });
        }
        generation
    }

    /// The heap that the holder of `rank` inherits: what an engine lent does not pass on, and who brings memory wants none.
    pub fn inheritance(&self, rank: u32) -> Option<(&HeapDesc, BorrowedFd<'_>)> {
        let slot = self.slot(rank)?;
        let (desc, fd) = slot.heap.as_ref()?;
        (!desc.lent && !slot.holder.lent).then_some((desc, fd.as_ref()?.as_fd()))
    }

    /// The heaps that any process can map which has their descriptors.
    pub fn shared_heaps(&self) -> impl Iterator<Item = (u32, &HeapDesc, BorrowedFd<'_>)> {
        let known =
            self.slots.iter().zip(0u32..).filter_map(|(slot, rank)| Some((rank, slot.as_ref()?.heap.as_ref()?)));
        let with_fd = known.filter_map(|(rank, (desc, fd))| Some((rank, desc, fd.as_ref()?.as_fd())));
        with_fd.filter(|(_, desc, _)| desc.route == Route::HostFd && !desc.lent)
    }

    /// A rank has its heap. True when the world is formed.
    pub fn set_heap(&mut self, rank: u32, desc: HeapDesc, fd: Option<OwnedFd>) -> bool {
        if let Some(Some(slot)) = self.slots.get_mut(rank as usize) {
            slot.heap = Some((desc, fd));
            slot.joining = false;
            slot.former = None;
        }
        if let (Some(entry), Some(slot)) = (self.entry(rank), self.slot(rank)) {
            entry.pid.store(slot.holder.pid, Ordering::Release);
        }
        let ready = self.slots.iter().flatten().filter(|slot| !slot.joining).count();
        self.formed |= ready >= self.params.min_ranks as usize;
        self.formed
    }

    /// A connection ended before its join was complete: the rank is what it was before, and free.
    pub fn unseat_if_joining(&mut self, rank: u32) {
        let formed = self.formed;
        if !self.slot(rank).is_some_and(|slot| slot.joining || !formed) {
            return;
        }
        if let Some(entry) = self.entry(rank) {
            entry.pid.store(0, Ordering::Release);
        }
        if let Some(seat) = self.slots.get_mut(rank as usize) {
            *seat = seat.take().and_then(|slot| {
                let (generation, holder, watch) = slot.former?;
                Some(Slot { generation, holder, watch, heap: slot.heap, joining: false, former: None })
            });
        }
    }

    /// The ranks for which `about` holds, and their descriptors, ready to be sent. While somebody is joining, its
    /// predecessor is told of.
    pub fn roster(&self, about: impl Fn(u32) -> bool) -> Result<(Vec<Peer>, Vec<BorrowedFd<'_>>)> {
        let mut peers = memory::with_capacity(self.slots.len())?;
        let mut fds = Vec::new();
        for (slot, rank) in self.slots.iter().zip(0u32..) {
            let Some(slot) = slot else { continue };
            let (generation, holder, watch) = match &slot.former {
                Some((generation, holder, watch)) => (*generation, holder, watch),
                None => (slot.generation, &slot.holder, &slot.watch),
            };
            if let Some((heap, fd)) = &slot.heap
                && (slot.former.is_some() || !slot.joining)
                && about(rank)
            {
                fds.extend([watch.pidfd.as_fd(), watch.life.as_fd()]);
                fds.extend(fd.as_ref().map(AsFd::as_fd));
                peers.push(Peer { rank, generation, holder: holder.clone(), heap: heap.clone() });
            }
        }
        Ok((peers, fds))
    }
}

/// The error for a rank that somebody holds.
pub fn taken(rank: impl std::fmt::Display, pid: u32) -> Error {
    Error::new(NMC_ERR_EXISTS, format!("rank {rank} is already taken by process {pid}"))
}

/// Pairs the peers of a message with the descriptors that follow it.
pub fn slots_of(peers: Vec<Peer>, mut fds: impl Iterator<Item = OwnedFd>) -> Result<Vec<(u32, Slot)>> {
    let short = || Error::new(NMC_ERR_PROTOCOL, "a list of peers came with too few descriptors");
    memory::try_collect(peers.into_iter().map(|peer| {
        let watch = Watch::new(fds.next().ok_or_else(short)?, fds.next().ok_or_else(short)?, peer.holder.drain());
        let fd = if peer.heap.route.has_fd() { Some(fds.next().ok_or_else(short)?) } else { None };
        Ok((
            peer.rank,
            Slot {
                generation: peer.generation,
                holder: peer.holder,
                watch,
                heap: Some((peer.heap, fd)),
                former: None,
                joining: false,
            },
        ))
    }))
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    if uuid.iter().all(|b| *b == 0) {
        return "none".into();
    }
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}
