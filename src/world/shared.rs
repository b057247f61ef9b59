//! What the threads of one rank share: who the peers are, where their heaps are mapped, and how they fare. The program's
//! threads read it through `World`; the rank's own thread keeps it up to date.

use super::config::{Config, Hosting};
use super::dir::Place;
use super::liveness::RankState;
use super::rank_locks::RankLocks;
use super::roster::Slot;
use super::watch::Watch;
use super::wire::{Holder, Params};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY, NMC_ERR_PROTOCOL};
use crate::cuda::{Device, DeviceTable};
use crate::layout::world::{Control, Farewell, Words};
use crate::mem::{Heap, HeapDesc, HeapKind, Slab};
use crate::rpc::Event;
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A peer as this rank knows it.
pub struct PeerView {
    pub generation: u64,
    pub holder: Holder,
    /// `None` in a local world, where nobody has to be watched.
    pub watch: Option<Watch>,
    /// `None` if it could not be opened.
    pub heap: Option<Arc<Heap>>,
    /// What it is opened from, if there was no memory for it: that is tried again.
    pub unopened: Option<Announced>,
}

/// A heap as it is announced, with its descriptor.
pub type Announced = (HeapDesc, Option<OwnedFd>);

/// Whether a heap could not be opened for want of something that may be there later.
pub fn is_want(error: &Error) -> bool {
    matches!(error.status, NMC_ERR_NO_MEMORY | NMC_ERR_LIMIT)
}

/// Opens what was announced, which stays as it is.
#[allow(unsafe_code, reason = "a heap of this process is known by its address")]
fn open_announced(rank: u32, (desc, fd): &Announced, device: Option<&Arc<Device>>) -> Result<Arc<Heap>> {
    let of = |error: Error| error.context(format!("opening the heap of rank {rank}"));
    let fd = match fd.as_ref().map(OwnedFd::try_clone).transpose() {
        Ok(fd) => fd,
        Err(cause) => return Err(of(Error::new(NMC_ERR_LIMIT, format!("a descriptor: {cause}")))),
    };
    // SAFETY: the world's master announced it, who passes on what ranks have offered, all of them of this user (`dir::Place::check`). What a
    // rank of this process offers by its address was lent to it, and stays until every heap that is made of it is gone (`mem::heap::Import`).
    unsafe { Heap::open(desc, fd, device) }.map(Arc::new).map_err(of)
}

impl PeerView {
    /// What the master announced about `rank`, with its heap open if that works; `own` is given if we have it mapped.
    pub fn open(rank: u32, slot: Slot, own: Option<Arc<Heap>>, device: Option<&Arc<Device>>) -> (Self, Result<()>) {
        let opened = match (own, &slot.heap) {
            (Some(own), _) => Ok(own),
            (None, Some(announced)) => open_announced(rank, announced, device),
            (None, None) => Err(Error::new(NMC_ERR_PROTOCOL, format!("rank {rank} was announced without a heap"))),
        };
        let again = matches!(&opened, Err(error) if is_want(error));
        let (heap, outcome) = match opened {
            Ok(heap) => (Some(heap), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let unopened = slot.heap.filter(|_| again);
        (Self { generation: slot.generation, holder: slot.holder, watch: Some(slot.watch), heap, unopened }, outcome)
    }

    /// What this rank knows of the heap, for whoever is told of it.
    pub fn announced(&self) -> Option<(&HeapDesc, Option<BorrowedFd<'_>>)> {
        match (&self.heap, &self.unopened) {
            (Some(heap), _) => Some((heap.desc(), heap.fd())),
            (None, Some((desc, fd))) => Some((desc, fd.as_ref().map(AsFd::as_fd))),
            (None, None) => None,
        }
    }

    /// Looks at the holder now. `farewell` is what its word says.
    pub fn state(&mut self, farewell: Farewell) -> RankState {
        match &mut self.watch {
            Some(watch) => watch.observe(farewell),
            None => match farewell {
                Farewell::None => RankState::Alive,
                Farewell::Left => RankState::Left,
                Farewell::Aborted => RankState::Dying,
                Farewell::Ended => RankState::Gone,
            },
        }
    }

    pub fn device_rank(&self, rank: u32) -> u32 {
        u32::try_from(self.holder.device_rank).unwrap_or(rank)
    }
}

pub struct Shared {
    pub params: Params,
    pub rank: u32,
    pub generation: u64,
    pub world_id: u64,
    pub place: Place,
    pub hosting: Hosting,
    pub service_cpu: Option<u32>,
    /// Host heaps were faulted in at the join.
    pub populated: bool,
    /// Read-only; `None` in a local world.
    pub control: Option<Slab>,
    pub words: Arc<Slab>,
    /// With the byte of this rank locked until it goes; `None` in a local world.
    pub locks: Option<RankLocks>,
    pub device: Option<Arc<Device>>,
    pub peers: Mutex<Vec<Option<PeerView>>>,
    /// Heaps that a rejoining rank replaced; pointers to them may still be in use.
    replaced: Mutex<Vec<Arc<Heap>>>,
    pub bases: Box<[AtomicU64]>,
    pub device_table: Mutex<Option<DeviceTable>>,
    pub states: Box<[AtomicU32]>,
    pub changed: Event,
    pub stop: Event,
    pub cancelled: AtomicBool,
    /// The rank has left or aborted: another process may hold it.
    pub departed: AtomicBool,
    pub master_up: AtomicBool,
    pub failure: Mutex<Option<Error>>,
}

impl Shared {
    pub fn new(
        config: &Config,
        device: Option<Arc<Device>>,
        (rank, generation, world_id): (u32, u64, u64),
        control: Option<(Slab, RankLocks)>,
        words: Arc<Slab>,
        peers: Vec<Option<PeerView>>,
    ) -> Result<Self> {
        let (control, locks) = control.unzip();
        let size = config.world_size as usize;
        let shared = Self {
            params: config.params(),
            rank,
            generation,
            world_id,
            place: config.place(),
            hosting: config.hosting,
            service_cpu: config.service_cpu,
            populated: config.populate && config.heap_kind == HeapKind::Host,
            control,
            words,
            locks,
            device,
            peers: Mutex::new(peers),
            replaced: Mutex::new(Vec::new()),
            bases: (0..size).map(|_| AtomicU64::new(0)).collect(),
            device_table: Mutex::new(None),
            states: (0..size).map(|_| AtomicU32::new(RankState::Absent.code())).collect(),
            changed: Event::new()?,
            stop: Event::new()?,
            cancelled: AtomicBool::new(false),
            departed: AtomicBool::new(false),
            master_up: AtomicBool::new(true),
            failure: Mutex::new(None),
        };
        if let Some(lines) = shared.words().lines(rank) {
            // What the former holder of the rank said there is over.
            lines.store.value.store(0, Ordering::Release);
        }
        shared.observe();
        shared.refresh_tables(&shared.peers.lock())?;
        Ok(shared)
    }

    /// Brings the base tables up to date with the peers.
    fn refresh_tables(&self, peers: &[Option<PeerView>]) -> Result<()> {
        let mut by_device_rank = vec![0; self.bases.len()];
        for ((peer, base), rank) in peers.iter().zip(&self.bases).zip(0u32..) {
            let heap = peer.as_ref().and_then(|peer| peer.heap.as_ref());
            base.store(heap.map_or(0, |heap| heap.base()), Ordering::Release);
            let alive = self.states[rank as usize].load(Ordering::Acquire) == RankState::Alive.code();
            if let (Some(peer), Some(heap)) = (peer, heap)
                && let Some(entry) = by_device_rank.get_mut(peer.device_rank(rank) as usize)
                // A number that a dead rank had may have gone to a living one.
                && (*entry == 0 || alive)
            {
                *entry = heap.device_base();
            }
        }
        if let Some(device) = &self.device {
            let mut table = self.device_table.lock();
            match table.as_mut() {
                Some(table) => table.update(&by_device_rank)?,
                None => *table = Some(DeviceTable::new(device, &by_device_rank)?),
            }
        }
        Ok(())
    }

    /// Puts the new holder of a rank in place. Whoever sees its generation finds its heap and state too. Memory that is
    /// no longer the rank's stays mapped, since the program may hold pointers to it.
    pub fn install(&self, rank: u32, mut view: PeerView, replaced: Option<Arc<Heap>>) -> Result<()> {
        memory::reserve(&mut self.replaced.lock(), 1)?;
        self.replaced.lock().extend(replaced);
        let mut peers = self.peers.lock();
        let state = self.look(rank, &mut view);
        self.states[rank as usize].store(state.code(), Ordering::Release);
        if let Some(place) = peers.get_mut(rank as usize) {
            *place = Some(view);
        }
        self.refresh_tables(&peers)
    }

    /// Opens heaps for which there was no memory when they were announced. Gives whether some are missing still.
    pub fn open_missing(&self) -> Result<bool> {
        let mut peers = self.peers.lock();
        let (mut missing, mut came) = (false, Vec::new());
        for (peer, rank) in peers.iter_mut().zip(0u32..) {
            let Some(peer) = peer else { continue };
            let Some(announced) = peer.unopened.take_if(|_| peer.heap.is_none()) else { continue };
            match open_announced(rank, &announced, self.device.as_ref()) {
                Ok(heap) => {
                    peer.heap = Some(heap);
                    came.push(rank);
                }
                Err(_) => {
                    peer.unopened = Some(announced);
                    missing = true;
                }
            }
        }
        if came.is_empty() {
            return Ok(missing);
        }
        self.refresh_tables(&peers)?;
        drop(peers);
        log::emit(log::INFO, || format!("rank {}: the heaps of ranks {came:?} are open now", self.rank));
        self.changed.signal();
        self.ring();
        Ok(missing)
    }

    fn look(&self, rank: u32, peer: &mut PeerView) -> RankState {
        peer.state(self.words().farewell(rank, peer.generation))
    }

    /// Looks at every peer; true if a state changed. Also the time until a drain grace ends.
    pub fn observe(&self) -> (bool, Option<Duration>) {
        let mut grace: Option<Duration> = None;
        let mut changes = Vec::new();
        let mut peers = self.peers.lock();
        for (peer, rank) in peers.iter_mut().zip(0u32..) {
            let Some(peer) = peer else { continue };
            let state = self.look(rank, peer);
            grace = [grace, peer.watch.as_ref().and_then(Watch::grace_left)].into_iter().flatten().min();
            if self.states[rank as usize].swap(state.code(), Ordering::AcqRel) != state.code() {
                changes.push((rank, state));
            }
        }
        // The program's log callback may call us: it must not find the lock taken.
        drop(peers);
        for (rank, state) in &changes {
            log::emit(log::INFO, || format!("rank {}: rank {rank} is now {state:?}", self.rank));
        }
        (!changes.is_empty(), grace)
    }

    /// Own heap as the GPU sees it.
    pub fn own_device_base(&self) -> u64 {
        let peers = self.peers.lock();
        let own = peers.get(self.rank as usize).and_then(Option::as_ref);
        own.and_then(|own| own.heap.as_ref()).map_or(0, |heap| heap.device_base())
    }

    /// State of a rank, which must be below the world size.
    pub fn state(&self, rank: u32) -> RankState {
        if self.control.is_none() {
            // A local world has no thread that would look.
            self.observe();
        }
        RankState::from_code(self.states[rank as usize].load(Ordering::Acquire))
    }

    /// The holder of a rank that is in place here, counted; 0 if nobody is.
    pub fn known_generation(&self, rank: u32) -> u64 {
        self.peers.lock().get(rank as usize).and_then(Option::as_ref).map_or(0, |p| p.generation)
    }

    /// Whether the master has given `rank` to a process that this rank has not been told of yet.
    pub fn changing(&self, rank: u32) -> bool {
        let Some(control) = &self.control else { return false };
        let entry = Control::new(control.region()).rank(rank);
        let known = self.known_generation(rank);
        entry.is_some_and(|e| {
            let newest = e.generation.load(Ordering::Acquire);
            // If it died before we heard of it, nobody may be there to tell us: its process is looked at.
            newest > known
                && self.words().farewell(rank, newest) == Farewell::None
                && e.pid.load(Ordering::Acquire) != 0
                && self.locks.as_ref().is_some_and(|locks| locks.is_held(rank))
        })
    }

    /// The state of a rank on which nobody can wait; `None` if it is alive or just being replaced.
    pub fn lost(&self, rank: u32) -> Option<RankState> {
        // In this order: a holder that is no longer news has its state in place.
        (!self.changing(rank)).then(|| self.state(rank)).filter(|state| *state != RankState::Alive)
    }

    pub fn words(&self) -> Words<'_> {
        Words::new(self.words.region(), self.params.words_per_rank)
    }

    pub fn check_rank(&self, rank: u32) -> Result<()> {
        if rank >= self.params.world_size {
            crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is not below the world size {}", self.params.world_size);
        }
        Ok(())
    }

    /// Makes calls that wait give up.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Fails if the rank has left or aborted, or its handle is being destroyed.
    pub fn check_present(&self) -> Result<()> {
        if self.cancelled.load(Ordering::SeqCst) || self.departed.load(Ordering::SeqCst) {
            return Err(departed());
        }
        Ok(())
    }
}

/// The error of a rank that is not there any more.
#[cold]
pub fn departed() -> Error {
    Error::new(NMC_ERR_CANCELLED, "the rank has left, aborted, or is being destroyed")
}
