//! A rank's membership in a store: the mapped slabs, its pin slots, its open plans, and the way to the master. Several
//! handles of one process may share it.

use super::counters::Counters;
use super::handle::Store;
use super::plans::Plans;
use super::remote::{self, Buffers, Remote};
use super::seat::{Occupancy, Seat, Taken};
use super::slots::Slots;
use super::wait::Ending;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_PEER_LOST, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
};
use crate::cuda::Copier;
use crate::layout::MAX_RANKS;
use crate::layout::store::{Params, RankHeap, View};
use crate::mem::{HeapKind, Import};
use crate::store::completions::Watches;
use crate::store::config::{Config, check_same};
use crate::store::disk::DiskSeat;
use crate::store::map::Map;
use crate::store::serve::{MasterSlot, Server};
use crate::store::types::{ClientId, ClientInfo, Role};
use crate::sync::object;
use crate::world::config::Hosting;
use crate::world::{MappedHeap, Membership, RankState, World};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a new client waits for news about heaps that the master of the store has already.
const SETTLING: Duration = Duration::from_secs(2);

/// The way to the master.
pub(in crate::store) enum Way {
    Direct { host: Arc<MasterSlot>, _server: Option<Arc<Server>> },
    Remote(Remote),
}

/// See the module.
pub struct Client {
    /// Dropped first: it ends the threads.
    pub(in crate::store) way: Way,
    pub(in crate::store) map: Arc<Map>,
    pub(in crate::store) member: Membership,
    /// The heaps as they were mapped when this client came.
    heaps: Vec<MappedHeap>,
    /// Those of ranks that nobody had taken by then.
    late_heaps: Vec<OnceLock<MappedHeap>>,
    pub(in crate::store) id: ClientId,
    /// Number of its pin block.
    pub(in crate::store) number: u32,
    pub(in crate::store) slots: Slots,
    pub(in crate::store) plans: Arc<Plans>,
    pub(in crate::store) counters: Counters,
    pub(in crate::store) watches: Arc<Watches>,
    /// Where values may be that memory does not hold.
    pub(in crate::store) disk: Arc<DiskSeat>,
    /// For copies that need a GPU.
    pub(super) copiers: Mutex<Vec<Copier>>,
    /// Grows when whoever waits is to give up.
    pub(in crate::store) cancelled: AtomicU64,
    /// Whether it ends, see [`Client::end_waits`].
    pub(super) ending: Ending,
    /// How long a call waits for the master.
    pub(in crate::store) call_limit: Duration,
    closed: AtomicBool,
    /// Which of the rank's clients it is.
    role: Role,
    /// Ends when it has closed; none if it is embedded.
    _seat: Option<Occupancy>,
    /// The program's client, if this is the agent's: it names the store to the world, and ends later.
    _first: Option<Store>,
    /// The world of an embedded store; dropped last.
    _worlds: Vec<World>,
}

/// What a client has of its own.
struct Parts {
    slots: Slots,
    counters: Counters,
    watches: Arc<Watches>,
    late_heaps: Vec<OnceLock<MappedHeap>>,
    plans: Arc<Plans>,
    disk: Arc<DiskSeat>,
}

impl Parts {
    fn new(params: &Params) -> Result<Self> {
        Ok(Self {
            slots: Slots::new(params.pin_slots)?,
            counters: Counters::new()?,
            watches: Arc::new(Watches::new()?),
            late_heaps: memory::collect((0..params.world_size).map(|_| OnceLock::new()))?,
            plans: Arc::default(),
            disk: Arc::default(),
        })
    }
}

fn heaps_of(member: &Membership) -> impl Iterator<Item = (u64, u64)> {
    member.heaps().into_iter().map(|heap| (heap.generation, heap.id))
}

/// The heaps as they are mapped, when the world's thread has heard what the master of the store knows: a rank's former
/// heap may still be mapped here. What is not settled by then cannot be read through this client.
fn settled_heaps(member: &Membership, map: &Map, deadline: &Deadline) -> Vec<MappedHeap> {
    let patience = Deadline::after(SETTLING.min(deadline.left()));
    loop {
        let mut heaps = member.heaps();
        let settled = |mapped: &MappedHeap, rank: u32| {
            map.view().heap(rank).is_some_and(|heap| heap.id.load(Ordering::Acquire) == mapped.id)
        };
        if heaps.iter().zip(0u32..).all(|(mapped, rank)| settled(mapped, rank)) {
            return heaps;
        }
        if patience.passed() || member.check_present().is_err() {
            // Not later either: what was pinned before it was settled lies in the other memory.
            let unsettled = |(mapped, rank): (&mut MappedHeap, u32)| {
                if !settled(mapped, rank) {
                    mapped.id = 0;
                }
            };
            heaps.iter_mut().zip(0u32..).for_each(unsettled);
            return heaps;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn info_of(member: &Membership, role: Role) -> ClientInfo {
    let (pid, start_time, _) = member.process();
    ClientInfo { pid, start_time, rank: member.rank(), rank_generation: member.generation(), role }
}

/// The place of a master that begins here.
fn made_for(member: &Membership, config: &Config) -> Arc<MasterSlot> {
    let slot = MasterSlot::new(Some(member.clone()));
    if config.wait_for_tier {
        slot.wait_for_tier();
    }
    Arc::new(slot)
}

/// A store that another rank of the world is a client of; 0 if there is none. One that is dying may still be storing into
/// the heaps: nobody begins with empty ones until it is gone.
fn expected(member: &Membership) -> u64 {
    // Whoever has the rank now, also one that this process has not heard of yet.
    let there =
        |rank: u32| matches!(member.holder(rank).0, RankState::Alive | RankState::Dying) || member.changing(rank);
    let others = (0..member.world_size()).filter(|rank| *rank != member.rank());
    let named = others.map(|rank| (rank, member.store_of(rank))).filter(|(_, store)| *store != 0);
    named.into_iter().find(|(rank, _)| there(*rank)).map_or(0, |(_, store)| store)
}

impl Client {
    /// Makes this rank a client of its world's store. Waits for the master until the deadline of `config`.
    pub fn attach(world: &World, config: &Config) -> Result<Arc<Self>> {
        let member = world.membership("store")?;
        member.check_present()?;
        let params = config.params(member.world_size(), member.heap_bytes())?;
        let seat = Seat::of(&member, Role::Program)?;
        let seated = match seat.take(&member, &config.deadline)? {
            Taken::By(client) => {
                check_same(client.map.params(), &params)?;
                return Ok(client);
            }
            Taken::Here(seated) => seated,
        };
        let client = Arc::new(Self::reach(member, &params, config, Some(seated), Vec::new())?);
        seat.set(&client);
        Ok(client)
    }

    /// A client of the same store with a place and pin slots of its own, for the agent of the node. It keeps `first`, which is the
    /// program's, until it has closed. There is one of a rank at a time.
    pub(in crate::store) fn of_agent(first: &Store, limit: Duration) -> Result<Arc<Self>> {
        let (of, role) = (&*first.client, Role::Agent);
        if of.role == role {
            crate::bail!(NMC_ERR_INVALID_ARG, "an agent's client is made from the program's");
        }
        let (member, params, map) = (of.member.clone(), of.params(), Arc::clone(&of.map));
        member.check_present()?;
        let deadline = Deadline::after(of.call_limit.min(limit));
        let seat = Seat::of(&member, role)?;
        let seated = match seat.take(&member, &deadline)? {
            Taken::By(_) => crate::bail!(NMC_ERR_EXISTS, "rank {} has an agent already", member.rank()),
            Taken::Here(seated) => seated,
        };
        let parts = Parts::new(params)?;
        let (way, id) = match &of.way {
            Way::Direct { host, _server } => {
                let (info, heaps) = (info_of(&member, role), heaps_of(&member));
                let (id, _) = host.attach_direct(member.world_id(), &info, heaps, params, map.store_id())?;
                (Way::Direct { host: Arc::clone(host), _server: _server.clone() }, id)
            }
            Way::Remote(_) => Self::meet_as_agent(of, &parts, &deadline)?,
        };
        let of_program = (Some(seated), Some(first.share()), Vec::new());
        let client = Arc::new(Self::new(way, id, (map, member, role), of.call_limit, &deadline, parts, of_program)?);
        seat.set(&client);
        Ok(client)
    }

    /// Finds the master of the store that this process is a client of already.
    fn meet_as_agent(of: &Client, parts: &Parts, deadline: &Deadline) -> Result<(Way, ClientId)> {
        let (member, map, role) = (&of.member, &of.map, Role::Agent);
        let place = member.place("store");
        loop {
            let mut buffers = Buffers::new()?;
            let met = remote::attach(&place, (member, role), map.params(), || map.store_id(), deadline, &mut buffers);
            match met {
                Ok(Some((_, _, other))) if other.store_id() != map.store_id() => return Err(not_counted()),
                Ok(Some((link, id, _))) => {
                    let known = (Arc::clone(&parts.plans), Arc::clone(&parts.disk));
                    let whose = (member.clone(), role);
                    let remote = Remote::new(link, buffers, place, whose, Arc::clone(map), id, known, of.call_limit)?;
                    return Ok((Way::Remote(remote), id));
                }
                Ok(None) => {}
                Err(error) if error.status == NMC_ERR_UNAVAILABLE => {}
                Err(error) => return Err(error.context("attaching the agent to the store")),
            }
            member.check_present()?;
            if deadline.passed() {
                crate::bail!(
                    NMC_ERR_TIMEOUT,
                    "attaching the agent to the store: nobody serves {}",
                    place.socket().display()
                );
            }
            std::thread::sleep(Duration::from_millis(5).min(deadline.left()));
        }
    }

    /// A store in a world of its own, in this process alone, on memory of the program if that lends some.
    pub fn embedded(world: &crate::world::Config, lent: Option<Import>, config: &Config) -> Result<Arc<Self>> {
        let worlds = World::local_on(world, lent)?;
        let Some(first) = worlds.first() else {
            crate::bail!(NMC_ERR_INVALID_ARG, "an embedded store needs a world of at least one rank");
        };
        let member = first.membership("store")?;
        let params = config.params(member.world_size(), member.heap_bytes())?;
        Self::reach(member, &params, config, None, worlds).map(Arc::new)
    }

    fn reach(
        member: Membership,
        params: &Params,
        config: &Config,
        seat: Option<Occupancy>,
        worlds: Vec<World>,
    ) -> Result<Self> {
        if member.has_lent_heap() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "a rank lends memory of its engine as its heap, which ends with it; a store needs heaps of the library"
            );
        }
        if params.checksums != 0 && member.heap_kind() == HeapKind::Cuda {
            crate::bail!(NMC_ERR_UNSUPPORTED, "checksums are computed by the CPU; a store on CUDA heaps has none");
        }
        // What may be refused comes first: a client that is entered has everything.
        let (parts, role) = (Parts::new(params)?, Role::Program);
        let (way, id, map) = if member.is_local() {
            let host = MasterSlot::of_world_or(member.world_id(), || Ok(made_for(&member, config)))?;
            let (id, map) =
                host.attach_direct(member.world_id(), &info_of(&member, role), heaps_of(&member), params, 0)?;
            (Way::Direct { host, _server: None }, id, map)
        } else {
            Self::meet(&member, params, config, &parts)?
        };
        member.set_store(map.store_id());
        let limit = Duration::from_millis(config.call_ms.into());
        Self::new(way, id, (map, member, role), limit, &config.deadline, parts, (seat, None, worlds))
    }

    fn new(
        way: Way,
        id: ClientId,
        (map, member, role): (Arc<Map>, Membership, Role),
        call_limit: Duration,
        deadline: &Deadline,
        Parts { slots, counters, watches, late_heaps, plans, disk }: Parts,
        (seat, first, worlds): (Option<Occupancy>, Option<Store>, Vec<World>),
    ) -> Result<Self> {
        let client = Self {
            way,
            slots,
            heaps: settled_heaps(&member, &map, deadline),
            late_heaps,
            map,
            member,
            id,
            number: id.number,
            plans,
            counters,
            watches,
            disk,
            copiers: Mutex::new(Vec::new()),
            cancelled: AtomicU64::new(0),
            ending: Ending::default(),
            call_limit,
            closed: AtomicBool::new(false),
            role,
            _seat: seat,
            _first: first,
            _worlds: worlds,
        };
        if let Some(device) = client.member.device() {
            client.map.register(device)?;
        }
        Ok(client)
    }

    /// Finds the master, or becomes its host.
    fn meet(member: &Membership, params: &Params, config: &Config, parts: &Parts) -> Result<(Way, ClientId, Arc<Map>)> {
        let role = Role::Program;
        let place = member.place("store");
        let may_host = member.hosting() == Hosting::Rank0 && member.rank() == config.master_rank;
        let mut server: Option<Arc<Server>> = None;
        loop {
            if may_host && server.is_none() {
                let made = || made_for(member, config);
                let host = MasterSlot::of_world(member.world_id()).unwrap_or_else(made);
                server = host.server();
                if server.is_none() {
                    server = Server::start(&place, Arc::clone(&host), member.service_cpu())?.map(Arc::new);
                    if let Some(server) = &server {
                        host.set_server(server);
                        MasterSlot::of_world_or(member.world_id(), || Ok(host))?;
                    }
                }
            }
            // Every client of this process keeps the server: whoever calls the master directly must have its lock.
            let here = MasterSlot::of_world(member.world_id()).and_then(|host| {
                let server = server.clone().or_else(|| host.server())?;
                Some((host, server))
            });
            let attempt: Result<Option<(Way, ClientId, Arc<Map>)>> = match here {
                Some((host, server)) => {
                    let (info, heaps) = (info_of(member, role), heaps_of(member));
                    let attached = host.attach_direct(member.world_id(), &info, heaps, params, expected(member));
                    attached.map(|(id, map)| Some((Way::Direct { host, _server: Some(server) }, id, map)))
                }
                None => {
                    let mut buffers = Buffers::new()?;
                    let (who, whom) = ((member, role), || expected(member));
                    let met = remote::attach(&place, who, params, whom, &config.deadline, &mut buffers);
                    met.and_then(|met| {
                        let Some((link, id, map)) = met else { return Ok(None) };
                        let map = Arc::new(map);
                        let limit = Duration::from_millis(config.call_ms.into());
                        let known = (Arc::clone(&parts.plans), Arc::clone(&parts.disk));
                        let (member, place) = ((member.clone(), role), place.clone());
                        let remote = Remote::new(link, buffers, place, member, Arc::clone(&map), id, known, limit)?;
                        remote.get_disk(&config.deadline);
                        Ok(Some((Way::Remote(remote), id, map)))
                    })
                }
            };
            let why = match attempt {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => format!("nobody serves {}", place.socket().display()),
                Err(error) if error.status == NMC_ERR_UNAVAILABLE => error.message,
                Err(error) => return Err(error.context("attaching to the store")),
            };
            member.check_present()?;
            if config.deadline.passed() {
                let who = match member.hosting() {
                    Hosting::Rank0 => format!("has rank {} created its store?", config.master_rank),
                    Hosting::Elsewhere => "is the master process running?".into(),
                };
                return Err(Error::new(NMC_ERR_TIMEOUT, format!("attaching to the store: {why}; {who}")));
            }
            std::thread::sleep(Duration::from_millis(5).min(config.deadline.left()));
        }
    }

    /// Fails if the master counts this client as gone: nobody looks at its pins any more, so nothing can be read.
    #[inline(always)]
    pub(in crate::store) fn check_counted(&self) -> Result<()> {
        match &self.way {
            Way::Remote(remote) if remote.is_refused() => Err(not_counted()),
            _ => Ok(()),
        }
    }

    /// A rank's heap. Fails if the store's objects lie in another one than was mapped when this client came.
    #[inline(always)]
    pub(in crate::store) fn heap(&self, rank: u32) -> Result<&MappedHeap> {
        self.heap_within(rank, SETTLING)
    }

    /// The same without waiting for news of a rank that has just been taken.
    pub(in crate::store) fn heap_now(&self, rank: u32) -> Result<&MappedHeap> {
        self.heap_within(rank, Duration::ZERO)
    }

    #[inline(always)]
    fn heap_within(&self, rank: u32, patience: Duration) -> Result<&MappedHeap> {
        match (self.heaps.get(rank as usize), self.view().heap(rank)) {
            // Acquire: of an object that was found alive before, this is the memory, or the object is dead by now.
            (Some(mapped), Some(heap)) if heap.id.load(Ordering::Acquire) == mapped.id && mapped.id != 0 => Ok(mapped),
            _ => self.late_heap(rank, patience),
        }
    }

    /// The heap of a rank that nobody had taken when this client came, if it is the first one that the store has had there:
    /// whatever the caller has found on that rank lies in it.
    #[inline(never)]
    fn late_heap(&self, rank: u32, patience: Duration) -> Result<&MappedHeap> {
        let (Some(place), Some(heap)) = (self.late_heaps.get(rank as usize), self.view().heap(rank)) else {
            return Err(replaced(rank));
        };
        // Acquire: whoever finds the name of other memory finds that it is not the first.
        let id = heap.id.load(Ordering::Acquire);
        let first = heap.generation.load(Ordering::Relaxed) & RankHeap::REPLACED == 0;
        if id == 0 {
            crate::bail!(
                NMC_ERR_PEER_LOST,
                "rank {rank} has no heap of which the store knows: nobody has taken it yet, or who has lends memory"
            );
        }
        let absent = self.heaps.get(rank as usize).is_some_and(|mapped| mapped.generation == 0);
        if absent && first && place.get().is_none() {
            match self.wait_for_heap(rank, id, patience) {
                Some(mapped) => _ = place.set(mapped),
                None => crate::bail!(NMC_ERR_PEER_LOST, "the heap of rank {rank} is not mapped in this process yet"),
            }
        }
        place.get().filter(|mapped| mapped.id == id).ok_or_else(|| replaced(rank))
    }

    /// The heap that a rank brought, when the world's thread has heard of it.
    #[cold]
    fn wait_for_heap(&self, rank: u32, id: u64, patience: Duration) -> Option<MappedHeap> {
        let patience = Deadline::after(patience);
        loop {
            // In this order: what is no longer changing has its heap in place.
            let changing = self.member.changing(rank);
            let mapped = self.member.heaps().get(rank as usize).copied().unwrap_or_default();
            if mapped.id == id {
                return Some(mapped);
            }
            if !changing || patience.passed() || self.member.check_present().is_err() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The ranks in whose heaps this client can store something that stays, a bit each: it has mapped the heap, and the
    /// rank has a holder.
    pub(super) fn ranks_to_store_on(&self) -> u64 {
        let good = (0..self.params().world_size).filter(|rank| self.may_store_on(*rank));
        good.fold(0, |all, rank| all | 1 << (rank as usize % MAX_RANKS))
    }

    /// Whether a rank has a heap for objects, and somebody who holds it.
    pub fn may_store_on(&self, rank: u32) -> bool {
        self.heap_now(rank).is_ok() && self.member.holder(rank).0 == RankState::Alive
    }

    /// Fails if the rank has aborted.
    pub(super) fn check_departed(&self) -> Result<()> {
        if self.member.has_departed() {
            return Err(Error::new(NMC_ERR_CANCELLED, "the rank has aborted"));
        }
        Ok(())
    }

    /// What is in the slabs.
    #[inline(always)]
    pub(in crate::store) fn view(&self) -> &View<'_> {
        self.map.view()
    }

    /// Parameters of the store.
    #[must_use]
    pub fn params(&self) -> &Params {
        self.map.params()
    }

    /// The rank's place in its world.
    #[must_use]
    pub fn member(&self) -> &Membership {
        &self.member
    }

    /// Whether the master can be reached.
    #[must_use]
    pub fn master_up(&self) -> bool {
        match &self.way {
            Way::Direct { .. } => true,
            Way::Remote(remote) => remote.is_up(),
        }
    }

    /// Takes a pin slot.
    #[inline(always)]
    pub(in crate::store) fn take_slot(&self, view: &View<'_>) -> Result<u32> {
        self.slots.take(view, self.number).ok_or_else(|| self.no_slot())
    }

    #[cold]
    fn no_slot(&self) -> Error {
        Error::new(
            NMC_ERR_BUSY,
            format!("all {} pin slots of this client are in use; unpin something", self.map.params().pin_slots),
        )
    }

    /// Whoever waits through any handle of it gives up after a moment, now and later: it is about to end. What is answered in time goes on.
    pub fn end_waits(&self) {
        self.ending.begin();
        self.ring();
    }

    /// Makes whoever waits give up.
    pub fn cancel(&self) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        self.ring();
    }

    /// Wakes those who wait for a publication or for room, in all processes.
    pub(in crate::store) fn ring(&self) {
        let bells = self.view().bells();
        bells.published.ring();
        bells.room.ring();
    }

    /// The program has one more handle.
    pub(super) fn enter_handle(&self) {
        self.watches.enter();
    }

    /// The program has one handle less. With the last one the client ends here and now, on the thread that destroys it.
    pub(super) fn leave_handle(&self) {
        self.watches.leave();
    }

    fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some((_, words)) = self.view().pins(self.number) {
            // What the program has pinned ends with its handle; what a stream holds, the stream ends.
            for (word, slot) in words.iter().zip(0u32..) {
                if self.slots.is_held(slot) {
                    object::unpin(word);
                }
            }
        }
        // If the master is away: the next one finds it here.
        if let Some(word) = self.view().last_word(self.number) {
            word.store(self.id.generation, Ordering::Release);
        }
        if self.role == Role::Program {
            self.member.set_store(0);
        }
        match &self.way {
            Way::Direct { host, .. } => host.detach_direct(self.id),
            Way::Remote(remote) => {
                remote.detach();
                // A master that was killed left its socket. Whoever leaves cleans up, if nobody serves by now.
                self.member.place("store").sweep();
            }
        }
    }

    /// Bytes of this process that the master takes; 0 if it is elsewhere.
    #[must_use]
    pub fn master_bytes(&self) -> u64 {
        match &self.way {
            Way::Direct { host, .. } => host.with(|master| Ok(master.private_bytes())).unwrap_or(0),
            Way::Remote(_) => 0,
        }
    }

    /// Lets the master do its upkeep now, if it is in this process. A server does it by itself.
    pub(in crate::store) fn tend(&self) {
        if let Way::Direct { host, .. } = &self.way {
            let _ = host.with(|master| master.tend());
        }
    }
}

#[cold]
fn replaced(rank: u32) -> Error {
    Error::new(
        NMC_ERR_PEER_LOST,
        format!(
            "rank {rank} has another heap than when this client came: what was stored in the former one is lost; \
             destroy all handles of this store and create it again to use the new one"
        ),
    )
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

#[cold]
fn not_counted() -> Error {
    Error::new(NMC_ERR_STALE, "the store's master counts this client as gone; destroy the handle and attach again")
}
