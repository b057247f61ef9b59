//! One rank's view of its world: what the program asks about ranks, heaps and words is answered from here, without
//! asking anybody.

use super::config::Config;
use super::join::{self, Joined};
use super::liveness::RankState;
use super::master::Master;
use super::presence::Presence;
use super::shared::{PeerView, Shared};
use super::wire::{Holder, Params};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_PEER_LOST, NMC_ERR_UNSUPPORTED};
use crate::base::{id, log, memory};
use crate::cuda::{Device, DeviceTable, HostRegistration};
use crate::layout::world::{Farewell, Words, words_bytes};
use crate::mem::{Heap, HeapKind, Import, Slab};
use crate::rpc::Link;
use crate::sync::panics;
use crate::sync::service_thread::BlockSignals;
use parking_lot::Mutex;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One rank of a world: the program's handle.
pub struct World {
    pub(super) presence: Arc<Presence>,
}

/// Facts about a rank.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Its state.
    pub state: RankState,
    /// How many processes have held it.
    pub generation: u64,
    /// Process id.
    pub pid: u32,
    /// CUDA ordinal in its process, -1 for none.
    pub device: i32,
    /// Number in device code.
    pub device_rank: u32,
    /// First byte of its heap, in this process.
    pub heap_base: u64,
}

impl World {
    /// Joins as one rank; returns when all ranks are there, or by the deadline.
    pub fn join(mut config: Config) -> Result<Self> {
        let device = open_device(&config)?;
        let joined = join::join(&mut config, device.as_ref())?;
        Self::assemble(&config, device, joined)
    }

    /// Joins as several ranks of one process. If one of them fails, the others give up.
    pub fn join_many(mut configs: Vec<Config>) -> Result<Vec<Self>> {
        let give_up = Arc::new(AtomicBool::new(false));
        let first_error = Mutex::new(None);
        for config in &mut configs {
            config.give_up = Arc::clone(&give_up);
        }
        let fail = |error| {
            first_error.lock().get_or_insert(error);
            give_up.store(true, Ordering::Relaxed);
        };
        let join = |config| panics::catch(|| Self::join(config)).and_then(|joined| joined).map_err(fail).ok();
        let n = configs.len();
        let (mut worlds, mut joined): (Vec<Self>, Vec<Option<Self>>) =
            (memory::with_capacity(n)?, memory::with_capacity(n)?);
        std::thread::scope(|scope| -> Result<()> {
            let mut threads = memory::with_capacity(n)?;
            let start = |config| {
                let thread = std::thread::Builder::new().name("nmc-join".into());
                thread.spawn_scoped(scope, move || join(config)).map_err(|e| fail(Error::os("starting a thread", &e)))
            };
            let quiet = BlockSignals::now();
            threads.extend(configs.into_iter().map(start));
            drop(quiet);
            joined.extend(threads.into_iter().map(|thread| thread.ok().and_then(|t| t.join().unwrap_or_default())));
            Ok(())
        })?;
        let panicked = || Error::new(NMC_ERR_INTERNAL, "a joining thread panicked");
        worlds.extend(joined.into_iter().flatten());
        if worlds.len() == n { Ok(worlds) } else { Err(first_error.into_inner().unwrap_or_else(panicked)) }
    }

    /// Makes all ranks of a world in this process, without socket or threads.
    pub fn local(config: &Config) -> Result<Vec<Self>> {
        Self::local_on(config, None)
    }

    /// The same, with this memory as the heap of its one rank: the program keeps it as it is until the world is destroyed, and
    /// whatever was made from it.
    pub fn local_on(config: &Config, mut lent: Option<Import>) -> Result<Vec<Self>> {
        config.check()?;
        if config.import.is_some() {
            crate::bail!(NMC_ERR_UNSUPPORTED, "a local world makes its own heaps; join ranks to lend memory");
        }
        if lent.is_some() && config.world_size != 1 {
            crate::bail!(NMC_ERR_INVALID_ARG, "memory for one heap was lent to a world of {} ranks", config.world_size);
        }
        let device = open_device(config)?;
        let world_id = id::random_u64()?;
        let bytes = words_bytes(config.world_size, config.words_per_rank);
        let words = Arc::new(Slab::create(c"nanomc words", bytes, false, &config.deadline)?);
        let registration = register_words(device.as_ref(), &words)?;
        let (kind, heap_bytes, huge) = (config.heap_kind, config.heap_bytes, config.huge_pages);
        let of_program = lent.is_some();
        let heaps = (0..config.world_size)
            .map(|_| match lent.take() {
                Some(import) => Heap::of_program(import, heap_bytes, device.as_ref()).map(Arc::new),
                None => Heap::create(kind, heap_bytes, huge, device.as_ref(), &config.deadline).map(Arc::new),
            })
            .collect::<Result<Vec<_>>>()?;
        if config.populate && !of_program {
            heaps.iter().try_for_each(|heap| heap.populate(|| !config.gives_up()))?;
        }
        let holder = |rank: u32| Holder {
            pid: std::process::id(),
            start_time: 0,
            device_rank: rank.cast_signed(),
            device: device.as_ref().map_or(-1, |d| d.ordinal()),
            device_uuid: device.as_ref().map_or([0; 16], |d| d.uuid()),
            drain_ms: 0,
            lent: false,
        };
        memory::try_collect((0..config.world_size).map(|rank| {
            let peers = memory::collect(heaps.iter().zip(0u32..).map(|(heap, peer)| {
                let heap = Some(Arc::clone(heap));
                Some(PeerView { generation: 1, holder: holder(peer), watch: None, heap, unopened: None })
            }))?;
            let shared = Shared::new(config, device.clone(), (rank, 1, world_id), None, Arc::clone(&words), peers)?;
            Self::finish(shared, registration.clone(), None, None, None)
        }))
    }

    fn assemble(config: &Config, device: Option<Arc<Device>>, joined: Joined) -> Result<Self> {
        let Joined { seat, socket, heap, peers, master } = joined;
        let (words, rank, generation) = (Arc::clone(&seat.words), seat.rank, seat.generation);
        let built = || -> Result<Self> {
            let mut views: Vec<Option<PeerView>> = memory::collect((0..config.world_size).map(|_| None))?;
            for (rank, slot) in peers {
                let Some(place) = views.get_mut(rank as usize) else {
                    crate::bail!(NMC_ERR_PROTOCOL, "the master announced rank {rank} of {}", config.world_size);
                };
                let own = (rank == seat.rank).then(|| Arc::clone(&heap));
                let (mut view, opened) = PeerView::open(rank, slot, own, device.as_ref());
                if let Err(error) = opened {
                    // What a dead rank left may be beyond reach (its engine's memory died with it): that must not keep
                    // others from joining.
                    let words = Words::new(seat.words.region(), config.words_per_rank);
                    if rank == seat.rank || view.state(words.farewell(rank, view.generation)) == RankState::Alive {
                        return Err(error);
                    }
                    log::emit(log::WARN, || format!("rank {}: {error}", seat.rank));
                }
                if config.populate
                    && let Some(heap) = view.heap.as_ref().filter(|_| rank != seat.rank)
                {
                    let of = |error: Error| error.context(format!("populating the heap of rank {rank}"));
                    heap.populate(|| !config.gives_up()).map_err(of)?;
                }
                *place = Some(view);
            }
            let registration = register_words(device.as_ref(), &seat.words)?;
            let ids = (seat.rank, seat.generation, seat.world_id);
            let shared = Shared::new(config, device, ids, Some((seat.control, seat.locks)), seat.words, views)?;
            Self::finish(shared, registration, Some(seat.life), Some((socket, config.service_cpu)), master)
        };
        built().inspect_err(|_| {
            // Others may have been told of us: say that nothing of ours will ever write.
            Words::new(words.region(), config.words_per_rank).say_farewell(rank, generation, Farewell::Aborted);
        })
    }

    fn finish(
        shared: Shared,
        words_registration: Option<Arc<HostRegistration>>,
        life: Option<OwnedFd>,
        service: Option<(Link, Option<u32>)>,
        master: Option<Master>,
    ) -> Result<Self> {
        let presence = Presence::begin(shared, words_registration, life, service, master)?;
        Ok(Self { presence: Arc::new(presence) })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.presence.shared
    }

    /// Own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared().rank
    }

    /// What all ranks agreed on.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.shared().params
    }

    /// Random name of this world.
    #[must_use]
    pub fn world_id(&self) -> u64 {
        self.shared().world_id
    }

    /// Whether the master can be reached. A local world needs none and says yes.
    #[must_use]
    pub fn master_up(&self) -> bool {
        self.shared().master_up.load(Ordering::Relaxed)
    }

    /// Whether own heap is on huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        let peers = self.shared().peers.lock();
        let own = peers.get(self.rank() as usize).and_then(Option::as_ref);
        own.and_then(|own| own.heap.as_ref()).is_some_and(|heap| heap.huge())
    }

    /// Whether the heaps of all ranks that were there at the join were faulted in.
    #[must_use]
    pub fn populated(&self) -> bool {
        self.shared().populated
    }

    /// Descriptor that becomes readable when a rank's state changes. It belongs to this value.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        self.shared().changed.as_fd().as_raw_fd()
    }

    /// Error that the world's thread ran into, if any.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared().failure.lock().clone()
    }

    /// State of a rank.
    pub fn state(&self, rank: u32) -> Result<RankState> {
        self.shared().check_rank(rank)?;
        Ok(self.shared().state(rank))
    }

    /// Facts about a rank.
    pub fn peer(&self, rank: u32) -> Result<PeerInfo> {
        self.shared().check_rank(rank)?;
        self.shared().state(rank);
        let peers = self.shared().peers.lock();
        // Under the lock, so that state and holder belong together.
        let state = self.shared().states[rank as usize].load(Ordering::Acquire);
        let state = RankState::from_code(state);
        Ok(match peers.get(rank as usize).and_then(Option::as_ref) {
            Some(peer) => PeerInfo {
                state,
                generation: peer.generation,
                pid: peer.holder.pid,
                device: peer.holder.device,
                device_rank: peer.device_rank(rank),
                heap_base: peer.heap.as_ref().map_or(0, |heap| heap.base()),
            },
            None => PeerInfo { state, generation: 0, pid: 0, device: -1, device_rank: rank, heap_base: 0 },
        })
    }

    /// The rank that device code knows as `device_rank`.
    pub fn rank_of_device_rank(&self, device_rank: u32) -> Result<u32> {
        self.shared().check_rank(device_rank)?;
        let peers = self.shared().peers.lock();
        let has_it = |rank: &u32| {
            let peer = peers.get(*rank as usize).and_then(Option::as_ref);
            peer.is_some_and(|p| p.device_rank(*rank) == device_rank)
        };
        // A number that a dead rank had may have gone to a living one.
        let mut found: Vec<u32> = (0..self.params().world_size).filter(has_it).collect();
        found.sort_by_key(|rank| {
            self.shared().states[*rank as usize].load(Ordering::Acquire) != RankState::Alive.code()
        });
        match found.first() {
            Some(rank) => Ok(*rank),
            None => crate::bail!(NMC_ERR_NOT_FOUND, "no rank has device_rank {device_rank}"),
        }
    }

    /// Address of `bytes` bytes at `offset` in the heap of `rank`, in this process.
    pub fn ptr(&self, rank: u32, offset: u64, bytes: u64) -> Result<u64> {
        self.shared().check_rank(rank)?;
        let size = self.shared().params.heap_bytes;
        match offset.checked_add(bytes) {
            Some(end) if end <= size => {}
            _ => crate::bail!(
                NMC_ERR_INVALID_ARG,
                "offset {offset} and {bytes} bytes reach past the end of a heap of {size} bytes"
            ),
        }
        match self.shared().bases[rank as usize].load(Ordering::Acquire) {
            0 => Err(Error::new(NMC_ERR_PEER_LOST, format!("rank {rank} has no heap at the moment"))),
            base => Ok(base + offset),
        }
    }

    /// The rank and offset of an address in one of the heaps.
    pub fn locate(&self, address: u64) -> Result<(u32, u64)> {
        let size = self.shared().params.heap_bytes;
        for (base, rank) in self.shared().bases.iter().zip(0u32..) {
            let base = base.load(Ordering::Acquire);
            if base != 0 && (base..base + size).contains(&address) {
                return Ok((rank, address - base));
            }
        }
        crate::bail!(NMC_ERR_NOT_FOUND, "{address:#x} is in no heap of this world")
    }

    /// Base addresses by rank, and the device address of the same table by device rank (0 without a device).
    #[must_use]
    pub fn base_tables(&self) -> (*const u64, u64) {
        let device = self.shared().device_table.lock().as_ref().map_or(0, DeviceTable::ptr);
        (self.shared().bases.as_ptr().cast(), device)
    }

    /// Program word `index` of `rank`: its address here and on the device (0 without a device).
    pub fn word(&self, rank: u32, index: u32) -> Result<(&AtomicU64, u64)> {
        self.shared().check_rank(rank)?;
        let words = self.shared().words();
        let (Some(word), Some(at)) = (words.word(rank, index), words.offset(rank, index)) else {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "word {index} is not below words_per_rank {}",
                self.shared().params.words_per_rank
            );
        };
        Ok((word, self.presence.words_registration.as_ref().map_or(0, |r| r.device_ptr() + at as u64)))
    }

    pub(super) fn device(&self) -> Result<&Arc<Device>> {
        self.shared().device.as_ref().ok_or_else(|| {
            Error::new(NMC_ERR_UNSUPPORTED, "the world was joined without a CUDA device (set config.device)")
        })
    }

    /// Leaves in order; see [`Presence::finalize`].
    pub fn finalize(&self) -> Result<()> {
        self.presence.finalize()
    }

    /// Breaks off at once, without waiting for anything: others see the rank as dying. It is gone when this value and
    /// whatever was made from it are dropped, since until then threads of this process may still hold pointers.
    pub fn abort(&self) {
        self.presence.abort();
    }

    /// Makes calls that wait return `NMC_ERR_CANCELLED`.
    pub fn cancel(&self) {
        self.shared().cancel();
    }

    /// The world as text, for people.
    pub fn dump(&self) -> Result<String> {
        let mut text = memory::Text::default();
        let written = self.describe(&mut text);
        text.finish(written)
    }

    fn describe(&self, text: &mut memory::Text) -> std::fmt::Result {
        use std::fmt::Write as _;
        let p = self.params();
        let kind = if p.heap_kind == HeapKind::Cuda.code() { "cuda" } else { "host" };
        let master = if self.master_up() { "up" } else { "away" };
        writeln!(
            text,
            "world {:016x}: rank {} of {}, {kind} heaps of {} bytes, {} words a rank, master {master}",
            self.world_id(),
            self.rank(),
            p.world_size,
            p.heap_bytes,
            p.words_per_rank
        )?;
        for rank in 0..p.world_size {
            if let Ok(peer) = self.peer(rank) {
                writeln!(
                    text,
                    "  rank {rank}: {:?}, process {}, generation {}, device rank {}, heap at {:#x}",
                    peer.state, peer.pid, peer.generation, peer.device_rank, peer.heap_base
                )?;
            }
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let held = self.presence.held_by();
        if !held.is_empty() {
            let rank = self.rank();
            log::emit(log::INFO, || format!("rank {rank} leaves when its {} is destroyed", held.join(" and its ")));
        }
    }
}

fn register_words(device: Option<&Arc<Device>>, words: &Slab) -> Result<Option<Arc<HostRegistration>>> {
    device.map(|device| words.register(device, false).map(Arc::new)).transpose()
}

fn open_device(config: &Config) -> Result<Option<Arc<Device>>> {
    match (config.device, config.heap_kind) {
        (Some(ordinal), _) => Device::open(ordinal).map(Some),
        (None, HeapKind::Cuda) => Device::open(-1).map(Some),
        (None, HeapKind::Host) => Ok(None),
    }
}
