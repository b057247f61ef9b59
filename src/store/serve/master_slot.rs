//! A master and those who call it. Clients of the same process call it directly; others through a server. The master
//! comes into being with the first client, or is rebuilt from what the first survivor hands over.

use super::memory::MasterMemory;
use super::server::Server;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_NO_MEMORY, NMC_ERR_STALE, NMC_ERR_UNAVAILABLE, NMC_OK};
use crate::layout::store::{DISK_EXPECTED, Params};
use crate::store::config::check_same;
use crate::store::disk::{DiskAccess, DiskContent, DiskMap, DiskOwner, told};
use crate::store::map::Map;
use crate::store::master::Master;
use crate::store::types::{ClientId, ClientInfo, Opened};
use crate::store::wire::{Item, Request};
use crate::world::Membership;
use crate::world::master::Board;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often somebody looks whether the master is free, or wanted: about 10 µs, longer than it takes whoever does long work to end its
/// step, and shorter than a thread takes to fall asleep and wake up.
const LOOKS: u32 = 400;
/// How often whoever works in steps comes back before it stands in line for the master, and how long it stays away.
const VISITS: u32 = 20;
/// See [`VISITS`].
const BETWEEN_VISITS: Duration = Duration::from_micros(20);

static HOSTS: Mutex<Option<HashMap<u64, Weak<MasterSlot>>>> = Mutex::new(None);

/// See the module.
pub struct MasterSlot {
    state: Mutex<State>,
    /// Those who look whether it is free.
    waiting: AtomicU32,
    /// The world as the host's process sees it, if it is a rank itself.
    pub(in crate::store) member: Option<Membership>,
    /// What is known about the ranks in a process that is none of them.
    pub(super) board: Option<Arc<Board>>,
    /// Whoever serves it to other processes; its clients in this process keep it.
    server: Mutex<Weak<Server>>,
    /// Nothing is stored before the tier is open.
    waits_for_tier: AtomicBool,
    /// The next store waits until the tier of the former is closed.
    tier_in_the_way: AtomicBool,
}

#[derive(Default)]
struct State {
    /// World that the store belongs to, once there is one.
    world_id: u64,
    master: Option<Master>,
    /// Why there is none, if the last one who brought the store's memory could not be served for want of memory.
    no_memory: Option<Error>,
    /// Clients of this process.
    direct: Vec<ClientId>,
    /// The disk below the store, if there is one: as long as the master knows of it.
    disk: Option<Arc<dyn DiskOwner>>,
}

#[cold]
fn away() -> Error {
    Error::new(
        NMC_ERR_UNAVAILABLE,
        "the master of the store is away; reads go on, writes can be repeated when it is back",
    )
}

/// Runs `body` on the master, which begins anew if that ends by a bug.
#[inline]
fn guarded<R>(master: &mut Master, body: impl FnOnce(&mut Master) -> Result<R>) -> Result<R> {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let result = body(master);
        master.publish_counters();
        result
    }));
    done.unwrap_or_else(|_| Err(recover(master)))
}

/// A call ended by a bug, in the middle of a change: the master begins anew with what is in the slabs.
#[cold]
fn recover(master: &mut Master) -> Error {
    let text = match catch_unwind(AssertUnwindSafe(|| master.renew())) {
        Ok(Ok(renewed)) => {
            *master = renewed;
            "a call to the store's master ended by a bug in nanomc; its state was rebuilt. Please report it".to_owned()
        }
        Ok(Err(error)) => format!("the store's master could not be rebuilt after a bug in nanomc: {error}"),
        Err(_) => "the store's master could not be rebuilt after a bug in nanomc; please report it".to_owned(),
    };
    master.note(log::ERROR, text.clone());
    Error::new(NMC_ERR_INTERNAL, text)
}

impl MasterSlot {
    /// A host without a master yet.
    #[must_use]
    pub fn new(member: Option<Membership>) -> Self {
        Self {
            state: Mutex::default(),
            waiting: AtomicU32::new(0),
            member,
            board: None,
            server: Mutex::new(Weak::new()),
            waits_for_tier: AtomicBool::new(false),
            tier_in_the_way: AtomicBool::new(false),
        }
    }

    /// A store that is made here waits for its tier: without it nothing is stored, and nothing is said to be missing.
    pub fn wait_for_tier(&self) {
        self.waits_for_tier.store(true, Relaxed);
    }

    /// A host in a process that is no rank, beside the master of its world.
    #[must_use]
    pub fn external(board: Arc<Board>) -> Self {
        Self { board: Some(board), ..Self::new(None) }
    }

    /// World that the store belongs to; 0 while there is none.
    #[must_use]
    pub fn world_id(&self) -> u64 {
        self.state.lock().world_id
    }

    /// The server, if it runs.
    #[must_use]
    pub fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().upgrade()
    }

    /// Says who serves it.
    pub fn set_server(&self, server: &Arc<Server>) {
        *self.server.lock() = Arc::downgrade(server);
    }

    /// The host of a world's store in this process.
    pub fn of_world(world_id: u64) -> Option<Arc<MasterSlot>> {
        HOSTS.lock().as_ref()?.get(&world_id)?.upgrade()
    }

    /// The host of a world's store in this process, made if need be.
    pub fn of_world_or(world_id: u64, make: impl FnOnce() -> Result<Arc<MasterSlot>>) -> Result<Arc<MasterSlot>> {
        let mut hosts = HOSTS.lock();
        let hosts = hosts.get_or_insert_default();
        hosts.retain(|_, host| host.strong_count() > 0);
        if let Some(host) = hosts.get(&world_id).and_then(Weak::upgrade) {
            return Ok(host);
        }
        memory::reserve_map(hosts, 1)?;
        let host = make()?;
        hosts.insert(world_id, Arc::downgrade(&host));
        Ok(host)
    }

    /// Runs `body` on the master. What must not come back from the disk is written down there before this returns.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&mut Master) -> Result<R>) -> Result<R> {
        self.run(self.lock(), body, drop)
    }

    /// The same, for whoever does long work in steps: those who wait for the master go before each of them. `body` is told how to ask
    /// whether somebody waits, and ends its step soon then.
    pub fn step<R>(&self, body: impl FnOnce(&mut Master, &dyn Fn() -> bool) -> Result<R>) -> Result<R> {
        let wanted = || self.waiting.load(Relaxed) > 0;
        self.run(self.lock_politely(), |master| body(master, &wanted), MutexGuard::unlock_fair)
    }

    /// The lock when nobody wants it. Whoever has it would have to wake us up if we waited for it, which is longer than most calls: we
    /// come back by ourselves, and stand in line only if that does not help.
    fn lock_politely(&self) -> MutexGuard<'_, State> {
        for _ in 0..VISITS {
            for _ in 0..LOOKS {
                if let Some(state) = (self.waiting.load(Relaxed) == 0).then(|| self.state.try_lock()).flatten() {
                    return state;
                }
                std::hint::spin_loop();
            }
            std::thread::sleep(BETWEEN_VISITS);
        }
        self.state.lock()
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Relaxed);
        let mut looks = 0..LOOKS;
        let free = looks.find_map(|_| {
            std::hint::spin_loop();
            self.state.try_lock()
        });
        self.waiting.fetch_sub(1, Relaxed);
        free.unwrap_or_else(|| self.state.lock())
    }

    #[inline]
    fn run<'a, R>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        body: impl FnOnce(&mut Master) -> Result<R>,
        unlock: impl FnOnce(MutexGuard<'a, State>),
    ) -> Result<R> {
        let master = state.master.as_mut().ok_or_else(away)?;
        let result = guarded(master, body);
        let news = master.take_news();
        let (disk, mut mine, mut wake) = (state.disk.clone(), false, false);
        if let (Some(disk), Some(master)) = (&disk, &mut state.master) {
            mine = master.give_marks(|marks| disk.note(marks));
            wake = master.take_wake();
        }
        // The program's log callback may call us: it must not find the lock taken. Nor do others wait for a disk.
        unlock(state);
        if let Some(disk) = disk.as_ref().filter(|_| wake) {
            disk.wake();
        }
        // What others have noted, too: this call may have seen what came of it.
        let written = disk.map_or(Ok(()), |disk| disk.settle(mine));
        for (level, line) in news {
            log::emit(level, || line);
        }
        written.and(result)
    }

    /// The store's memory as a process sees it that is no rank, if there is a store.
    pub fn memory(&self) -> Option<MasterMemory> {
        let state = self.state.lock();
        let map = Arc::clone(state.master.as_ref()?.map());
        Some(MasterMemory::new(map, Arc::clone(self.board.as_ref()?), state.world_id))
    }

    /// Name of the store if it is over: the next one waits until the tier is closed, or nobody of its world is left. Both in one look,
    /// or it might be the name of the next one.
    #[must_use]
    pub fn ended_store(&self) -> Option<u64> {
        let state = self.state.lock();
        let master = state.master.as_ref()?;
        let over = || self.board.as_ref().is_some_and(|board| board.is_over(state.world_id));
        let ended = self.tier_in_the_way.load(Relaxed) || over() && master.entered().is_empty();
        ended.then(|| master.map().store_id())
    }

    /// Random name of the store; 0 while there is none.
    #[must_use]
    pub fn store_id(&self) -> u64 {
        self.state.lock().master.as_ref().map_or(0, |m| m.map().store_id())
    }

    /// Takes in a client that is new. `expected` is a store that somebody in its world is a client of: then the master
    /// has to be rebuilt by that one first. `heaps` are those of all ranks as the client knows them.
    pub fn attach(
        &self,
        world_id: u64,
        info: &ClientInfo,
        heaps: impl IntoIterator<Item = (u64, u64)>,
        params: &Params,
        expected: u64,
    ) -> Result<(ClientId, Arc<Map>)> {
        let mut state = self.state.lock();
        self.make_way(&mut state, world_id, expected)?;
        if state.master.is_none() {
            let deadline = Deadline::after(Duration::from_secs(60));
            let master = Master::new(Arc::new(Map::create(params, &deadline)?))?;
            if self.waits_for_tier.load(Relaxed) {
                master.wait_for_disk();
            }
            state.master = Some(master);
            state.world_id = world_id;
        }
        let Some(master) = state.master.as_mut() else { return Err(away()) };
        check_same(master.map().params(), params)?;
        master.map().restore_header();
        let client = guarded(master, |master| {
            // Not left to the next look: a master that dies young would leave its own client behind each time.
            master.supersede(info)?;
            // Before the client can read: it may have other memory in the place of what was lost.
            master.note_heaps(heaps);
            master.attach(info)
        })?;
        Ok((client, Arc::clone(master.map())))
    }

    /// Like [`MasterSlot::attach`], for a client of this process.
    pub fn attach_direct(
        &self,
        world_id: u64,
        info: &ClientInfo,
        heaps: impl IntoIterator<Item = (u64, u64)>,
        params: &Params,
        expected: u64,
    ) -> Result<(ClientId, Arc<Map>)> {
        let (client, map) = self.attach(world_id, info, heaps, params, expected)?;
        self.state.lock().direct.push(client);
        Ok((client, map))
    }

    /// Takes in a client that was one before, with the memory that it holds.
    pub fn reattach(
        &self,
        world_id: u64,
        client: ClientId,
        info: &ClientInfo,
        heaps: impl IntoIterator<Item = (u64, u64)>,
        map: impl FnOnce() -> Result<Map>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        self.make_way(&mut state, world_id, 0)?;
        if state.master.is_none() {
            let taken = map().and_then(|map| Master::take_over(Arc::new(map)));
            state.no_memory = taken.as_ref().err().filter(|error| error.status == NMC_ERR_NO_MEMORY).cloned();
            state.master = Some(taken?);
            state.world_id = world_id;
        }
        match &mut state.master {
            Some(master) if master.is_attached(client) && master.info_of(client) == *info => {
                guarded(master, |master| {
                    master.note_heaps(heaps);
                    Ok(())
                })
            }
            _ => Err(Error::new(NMC_ERR_STALE, "the master counts this client as gone")),
        }
    }

    /// From now on `owner` writes what is below the store: `content` is what is there. Gives how many
    /// records found no room in the index. What has to be written down for it is noted, not settled. If another store than this one is there by
    /// now, nothing happens.
    pub fn attach_disk(
        &self,
        owner: Arc<dyn DiskOwner>,
        map: Arc<DiskMap>,
        content: &DiskContent<'_>,
        store_id: u64,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        if state.disk.is_some() {
            crate::bail!(NMC_ERR_EXISTS, "the store has a tier already");
        }
        let master = state.master.as_mut().filter(|master| master.map().store_id() == store_id).ok_or_else(away)?;
        let left_out = guarded(master, |master| master.attach_disk(map, content))?;
        master.give_marks(|marks| owner.note(marks));
        state.disk = Some(owner);
        Ok(left_out)
    }

    /// The name of the disk that the store has or, without an owner, had.
    #[must_use]
    pub fn disk_name(&self) -> u64 {
        let state = self.state.lock();
        state.master.as_ref().map_or(0, |master| master.map().view().header().disk.load(Relaxed))
    }

    /// The disk goes; gives who wrote it. `named`: it never came, and what the store said before is true again.
    pub fn detach_disk(&self, named: Option<u64>) -> Option<Arc<dyn DiskOwner>> {
        let mut state = self.state.lock();
        let owner = state.disk.take()?;
        self.tier_in_the_way.store(false, Relaxed);
        if let Some(master) = &mut state.master {
            master.give_marks(|marks| owner.note(marks));
            let expected = if self.waits_for_tier.load(Relaxed) { DISK_EXPECTED } else { 0 };
            master.detach_disk(named.unwrap_or(expected));
        }
        Some(owner)
    }

    /// Who writes the disk, if there is one.
    #[must_use]
    pub fn disk_owner(&self) -> Option<Arc<dyn DiskOwner>> {
        self.state.lock().disk.clone()
    }

    /// The disk, for readers of this process.
    #[must_use]
    pub fn disk_access(&self) -> Option<DiskAccess> {
        let (map, reader) = self.disk_owner()?.reader();
        Some(DiskAccess { map, reader })
    }

    /// A store of a world that is over makes way for the next one.
    fn make_way(&self, state: &mut MutexGuard<'_, State>, world_id: u64, expected: u64) -> Result<()> {
        if state.master.is_some() && state.world_id != world_id {
            if !state.master.as_ref().is_some_and(|m| m.entered().is_empty()) {
                return Err(Error::new(NMC_ERR_UNAVAILABLE, "the store of the former world is not over yet"));
            }
            if state.disk.is_some() {
                self.tier_in_the_way.store(true, Relaxed);
                return Err(Error::new(NMC_ERR_UNAVAILABLE, "the tier of the former store is being closed"));
            }
            state.master = None;
        }
        if expected != 0 && state.master.is_none() {
            if let Some(error) = &state.no_memory {
                return Err(error.clone());
            }
            return Err(Error::new(NMC_ERR_UNAVAILABLE, "the store's master has not been rebuilt yet"));
        }
        Ok(())
    }

    /// Clients that have a place, but are neither of this process nor in `watched`.
    pub(super) fn unwatched(&self, watched: impl Fn(&ClientId) -> bool) -> Vec<ClientId> {
        let state = self.state.lock();
        let entered = state.master.as_ref().map_or_else(Vec::new, Master::entered);
        entered.into_iter().filter(|c| !watched(c) && !state.direct.contains(c)).collect()
    }

    /// What the host itself knows about the heaps of all ranks.
    pub(super) fn look_at_heaps(&self) {
        let heaps = match (&self.member, &self.board) {
            (Some(member), _) => member.heaps().into_iter().map(|heap| (heap.generation, heap.id)).collect(),
            (None, Some(board)) => board.heaps(self.world_id()),
            (None, None) => Vec::new(),
        };
        // Without a master there is nothing to note.
        let _ = self.with(|master| {
            master.note_heaps(heaps);
            Ok(())
        });
    }

    /// A client of this process leaves.
    pub fn detach_direct(&self, client: ClientId) {
        self.state.lock().direct.retain(|c| *c != client);
        if let Err(error) = self.with(|master| master.detach(client)) {
            log::emit(log::WARN, || format!("store: a client leaves: {error}"));
        }
    }

    /// Answers a call of a client in another process.
    pub fn serve(&self, id: ClientId, request: &Request<'_>) -> Vec<Item> {
        let client = id.number;
        let one = |result: Result<[u64; 3]>| vec![Item::from(result)];
        let nothing = |()| [0; 3];
        if let Request::Disk(what, arguments, keys) = request {
            let Some(disk) = self.disk_owner() else {
                return one(Err(Error::new(NMC_ERR_UNAVAILABLE, "the store has no tier, or its owner is gone")));
            };
            return one(disk.call(*what, *arguments, keys));
        }
        if let Request::Told(disk, since) = request {
            let Some(owner) = self.disk_owner() else {
                return one(Err(Error::new(NMC_ERR_UNAVAILABLE, "the store has no tier, or its owner is gone")));
            };
            let told = owner.told(*disk, *since, told::ROOM).and_then(|told| told.item());
            return vec![told.unwrap_or_else(|error| Item::from(Err(error)))];
        }
        // Whoever takes an object wants to have it: it is not destroyed for an error.
        if let (Request::Take(..), Some(error)) = (request, self.disk_owner().and_then(|disk| disk.trouble())) {
            return one(Err(error.context("nothing was taken, since it could not be written down")));
        }
        // Before anything is done: a call that was served has an answer.
        let mut each = match memory::with_capacity(request.items()) {
            Ok(each) => each,
            Err(error) => return one(Err(error)),
        };
        let answered = self.with(|master| {
            if !master.is_attached(id) {
                return Err(Error::new(NMC_ERR_STALE, "the master counts this client as gone"));
            }
            Ok(match request {
                Request::Hello(_) => one(Err(Error::new(
                    crate::base::status::NMC_ERR_PROTOCOL,
                    "the client has introduced itself already",
                ))),
                Request::Open(items) => {
                    let open = |item| master.open(client, item).map(|o: Opened| [o.index.into(), o.epoch, o.plan_id]);
                    each.extend(items.iter().map(open).map(Item::from));
                    each
                }
                Request::Abandon(plan) => one(master.abandon(client, plan).map(|taken| [taken.into(), 0, 0])),
                Request::Reveal(plan, read_from) => one(master.reveal(client, plan, *read_from).map(nothing)),
                Request::Remove(namespace, keys) => {
                    each.extend(keys.iter().map(|key| Item::from(master.remove(*namespace, key).map(nothing))));
                    each
                }
                Request::Take(index, epoch) => one(master.take(*index, *epoch).map(nothing)),
                Request::Drop(index, epoch) => one(master.drop_named(*index, *epoch).map(nothing)),
                Request::Doubt(plan) => one(master.doubt(client, plan).map(|bytes| [bytes, 0, 0])),
                Request::Notice(index) => one(Ok([master.notice(*index), 0, 0])),
                Request::Position(position, changes) => one(master.note_position(*position, *changes).map(nothing)),
                Request::Adopt => one(master.adopt_namespaces().map(nothing)),
                Request::Close(rank, closed) => one(master.close_rank(*rank, *closed).map(nothing)),
                Request::RemoveMatching(namespace, prefix, cursor) => {
                    let removed = master.remove_matching(*namespace, prefix, *cursor);
                    one(removed.map(|(n, next)| [n.into(), next.map_or(u64::MAX, u64::from), 0]))
                }
                Request::Retain(namespace, key, keep) => one(master.retain(*namespace, key, *keep).map(nothing)),
                Request::Namespace(name, quota) => one(master.namespace(name, *quota).map(|id| [id.into(), 0, 0])),
                Request::Flush(namespace) => one(master.flush(*namespace).map(nothing)),
                Request::Evict(rank, permille) => {
                    one(master.evict_until_below(*rank, *permille).map(|done| [done.into(), 0, 0]))
                }
                Request::Dump(width) => {
                    let mut item = Item::ok([0; 3]);
                    item.text = master.dump((*width as usize).clamp(8, 512))?.into();
                    vec![item]
                }
                Request::Detach => one(master.detach(id).map(nothing)),
                Request::Confirm => one(Ok([0; 3])),
                // Answered elsewhere.
                Request::Disk(..) | Request::Reach | Request::Told(..) => {
                    one(Err(Error::new(NMC_ERR_INTERNAL, "not a call of the master")))
                }
            })
        });
        let items = answered.unwrap_or_else(|error| vec![Item::from(Err(error))]);
        match request {
            // Said when it is written down, and not before.
            Request::Position(position, changes) if items.iter().all(|item| item.status == NMC_OK) => {
                one(self.with(|master| master.set_position(*position, *changes)).map(nothing))
            }
            _ => items,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::store::types::Role;

    /// A client brings the memory of a store to a new master, which fails with `status`; then another one comes.
    fn newcomer_after(status: i32) -> i32 {
        let config = crate::store::config::Config { page_bytes: 4096, ..crate::store::config::Config::default() };
        let params = config.params(1, 1 << 20).unwrap();
        let info = |rank| ClientInfo { pid: 1, start_time: 1, rank, rank_generation: 1, role: Role::Program };
        let slot = MasterSlot::new(None);
        let failed = || Err(Error::new(status, "for a test"));
        let survivor = ClientId { number: 0, generation: 1 };
        assert_eq!(slot.reattach(7, survivor, &info(0), [], failed).unwrap_err().status, status);
        slot.attach(7, &info(1), [(1, 1)], &params, 9).err().unwrap().status
    }

    #[test]
    fn a_master_without_memory_for_its_store_says_so_to_newcomers() {
        assert_eq!(newcomer_after(NMC_ERR_NO_MEMORY), NMC_ERR_NO_MEMORY);
        assert_eq!(newcomer_after(NMC_ERR_STALE), NMC_ERR_UNAVAILABLE, "control: others are to come again");
    }
}
