//! A rank's membership in a store: the mapped slabs, its pin slots, its open plans, and the way to the master. Several
//! handles of one process may share it.

use super::config::{Config, check_same};
use super::counters::Counters;
use super::host::Host;
use super::map::Map;
use super::master::{ClientInfo, Master, OpenRequest, Opened, hash_of};
use super::remote::{self, Remote};
use super::server::Server;
use super::slots::Slots;
use super::watch::Watches;
use super::wire::{Item, MAX_ITEMS, MAX_PACKET, Request, item_bytes};
use crate::base::error::{Error, Result};
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_PEER_LOST, NMC_ERR_PROTOCOL, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
};
use crate::cuda::Copier;
use crate::layout::store::{Params, View};
use crate::mem::HeapKind;
use crate::sync::object;
use crate::world::config::Hosting;
use crate::world::{Membership, RankState, World};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A rank of a world, and how many held it before.
type Place = (u64, u32, u64);
/// Clients of this process by rank.
type Registry = HashMap<Place, Weak<Client>>;
static CLIENTS: Mutex<Option<Registry>> = Mutex::new(None);
/// How many clients each rank has in this process: while there is one, the rank names its store to others.
static NAMED: Mutex<Option<HashMap<Place, u32>>> = Mutex::new(None);

fn place_of(member: &Membership) -> Place {
    (member.world_id(), member.rank(), member.generation())
}

fn name_store(member: &Membership, store_id: u64) {
    let mut named = NAMED.lock();
    *named.get_or_insert_default().entry(place_of(member)).or_default() += 1;
    member.set_store(store_id);
}

fn unname_store(member: &Membership) {
    let mut named = NAMED.lock();
    let named = named.get_or_insert_default();
    let left = named.get(&place_of(member)).map_or(0, |n| n.saturating_sub(1));
    if left > 0 {
        named.insert(place_of(member), left);
    } else {
        named.remove(&place_of(member));
        member.set_store(0);
    }
}

/// Names of plans are random already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

/// A plan, and what it was asked for: the header says it too, but others can reach that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The plan.
    pub plan: Opened,
    /// Hash of the key.
    pub key_hash: u64,
    /// Bytes of the value.
    pub bytes: u64,
}

/// The plans that a client has open, by their names.
#[derive(Default)]
pub struct Plans(Mutex<HashMap<u64, Terms, BuildHasherDefault<AsItIs>>>);

impl Plans {
    /// Notes a plan, and what it was asked for.
    pub fn add(&self, plan: Opened, request: &OpenRequest<'_>) {
        let key_hash = hash_of(request.key, request.namespace);
        self.0.lock().insert(plan.plan_id, Terms { plan, key_hash, bytes: request.bytes });
    }

    /// Forgets a plan.
    pub fn remove(&self, plan_id: u64) {
        self.0.lock().remove(&plan_id);
    }

    /// The plan of this name.
    #[must_use]
    pub fn get(&self, plan_id: u64) -> Option<Opened> {
        self.terms(plan_id).map(|terms| terms.plan)
    }

    /// The same with what it was asked for.
    #[must_use]
    pub fn terms(&self, plan_id: u64) -> Option<Terms> {
        self.0.lock().get(&plan_id).copied()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Forgets the plans for which `over` says so.
    pub fn sweep(&self, over: impl Fn(&Opened) -> bool) {
        self.0.lock().retain(|_, terms| !over(&terms.plan));
    }

    /// Epochs of all plans.
    #[must_use]
    pub fn epochs(&self) -> Vec<u64> {
        self.0.lock().values().map(|terms| terms.plan.epoch).collect()
    }
}

/// The way to the master.
enum Way {
    Direct { host: Arc<Host>, _server: Option<Arc<Server>> },
    Remote(Remote),
}

/// See the module.
pub struct Client {
    /// Dropped first: it ends the threads.
    way: Way,
    pub(super) map: Arc<Map>,
    pub(super) member: Membership,
    /// Where the heaps were when this client came.
    bases: Vec<u64>,
    pub(super) number: u32,
    pub(super) slots: Slots,
    pub(super) plans: Arc<Plans>,
    pub(super) counters: Counters,
    pub(super) watches: Watches,
    /// For copies that need a GPU.
    pub(super) copiers: Mutex<Vec<Copier>>,
    /// Grows when whoever waits is to give up.
    pub(super) cancelled: AtomicU64,
    /// Handles of the program; the thread that watches keys holds the client too, now and then.
    handles: AtomicU64,
    closed: AtomicBool,
    /// The world of an embedded store; dropped last.
    _worlds: Vec<World>,
}

fn info_of(member: &Membership) -> ClientInfo {
    let (pid, start_time, _) = member.process();
    ClientInfo { pid, start_time, rank: member.rank(), rank_generation: member.generation() }
}

/// A store that another rank of the world is a client of; 0 if there is none. One that is dying may still be storing into
/// the heaps: nobody begins with empty ones until it is gone.
fn expected(member: &Membership) -> u64 {
    (0..member.world_size())
        .filter(|rank| *rank != member.rank())
        .filter(|rank| member.store_of(*rank) != 0)
        .find(|rank| matches!(member.state(*rank, u64::MAX), RankState::Alive | RankState::Dying))
        .map_or(0, |rank| member.store_of(rank))
}

impl Client {
    /// Makes this rank a client of its world's store. Waits for the master until the deadline of `config`.
    pub fn attach(world: &World, config: &Config) -> Result<Arc<Self>> {
        let member = world.membership();
        member.check_present()?;
        let params = config.params(member.world_size(), member.heap_bytes())?;
        let key = place_of(&member);
        let mut clients = CLIENTS.lock();
        let known = clients.get_or_insert_default();
        known.retain(|_, client| client.strong_count() > 0);
        if let Some(client) = known.get(&key).and_then(Weak::upgrade) {
            check_same(client.map.params(), &params)?;
            return Ok(client);
        }
        drop(clients);
        let client = Arc::new(Self::reach(member, &params, config, Vec::new())?);
        let mut clients = CLIENTS.lock();
        let known = clients.get_or_insert_default();
        // Another thread may have been faster: a rank has one client. Ours leaves, without the lock.
        if let Some(other) = known.get(&key).and_then(Weak::upgrade) {
            drop(clients);
            check_same(other.map.params(), &params)?;
            return Ok(other);
        }
        known.insert(key, Arc::downgrade(&client));
        Ok(client)
    }

    /// A store in a world of its own, in this process alone.
    pub fn embedded(world: &crate::world::Config, config: &Config) -> Result<Arc<Self>> {
        let worlds = World::local(world)?;
        let Some(first) = worlds.first() else {
            crate::bail!(NMC_ERR_INVALID_ARG, "an embedded store needs a world of at least one rank");
        };
        let member = first.membership();
        let params = config.params(member.world_size(), member.heap_bytes())?;
        Self::reach(member, &params, config, worlds).map(Arc::new)
    }

    fn reach(member: Membership, params: &Params, config: &Config, worlds: Vec<World>) -> Result<Self> {
        if member.has_lent_heap() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "a rank lends memory of its engine as its heap, which ends with it; a store needs heaps of the library"
            );
        }
        if params.checksums != 0 && member.heap_kind() == HeapKind::Cuda {
            crate::bail!(NMC_ERR_UNSUPPORTED, "checksums are computed by the CPU; a store on CUDA heaps has none");
        }
        let plans = Arc::new(Plans::default());
        let (way, number, map) = if member.is_local() {
            let host = Host::of_world_or(member.world_id(), || Ok(Arc::new(Host::new(Some(member.clone())))))?;
            let (number, map) = host.attach_direct(member.world_id(), &info_of(&member), params, 0)?;
            (Way::Direct { host, _server: None }, number, map)
        } else {
            Self::meet(&member, params, config, &plans)?
        };
        if let Some(device) = member.device() {
            map.register(device)?;
        }
        let watches = Watches::new()?;
        name_store(&member, map.store_id());
        Ok(Self {
            way,
            slots: Slots::new(map.params().pin_slots),
            map,
            bases: (0..member.world_size()).map(|rank| member.base(rank).unwrap_or(0)).collect(),
            member,
            number,
            plans,
            counters: Counters::default(),
            watches,
            copiers: Mutex::new(Vec::new()),
            cancelled: AtomicU64::new(0),
            handles: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            _worlds: worlds,
        })
    }

    /// Finds the master, or becomes its host.
    fn meet(member: &Membership, params: &Params, config: &Config, plans: &Arc<Plans>) -> Result<(Way, u32, Arc<Map>)> {
        let place = member.place("store");
        let may_host = member.hosting() == Hosting::Rank0 && member.rank() == config.master_rank;
        let mut server: Option<Arc<Server>> = None;
        loop {
            if may_host && server.is_none() {
                let made = || Arc::new(Host::new(Some(member.clone())));
                let host = Host::of_world(member.world_id()).unwrap_or_else(made);
                server = host.server();
                if server.is_none() {
                    server = Server::start(&place, Arc::clone(&host), member.service_cpu())?.map(Arc::new);
                    if let Some(server) = &server {
                        host.set_server(server);
                        Host::of_world_or(member.world_id(), || Ok(host))?;
                    }
                }
            }
            // Every client of this process keeps the server: whoever calls the master directly must have its lock.
            let here = Host::of_world(member.world_id()).and_then(|host| {
                let server = server.clone().or_else(|| host.server())?;
                Some((host, server))
            });
            let attempt: Result<Option<(Way, u32, Arc<Map>)>> = match here {
                Some((host, server)) => {
                    let attached = host.attach_direct(member.world_id(), &info_of(member), params, expected(member));
                    attached.map(|(number, map)| Some((Way::Direct { host, _server: Some(server) }, number, map)))
                }
                None => remote::attach(&place, member, params, expected(member), &config.deadline).and_then(|met| {
                    let Some((link, number, map)) = met else { return Ok(None) };
                    let map = Arc::new(map);
                    let limit = Duration::from_millis(config.call_ms.into());
                    let (member, plans) = (member.clone(), Arc::clone(plans));
                    let remote = Remote::new(link, place.clone(), member, Arc::clone(&map), number, plans, limit)?;
                    Ok(Some((Way::Remote(remote), number, map)))
                }),
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
    pub(super) fn check_counted(&self) -> Result<()> {
        match &self.way {
            Way::Remote(remote) if remote.is_refused() => Err(not_counted()),
            _ => Ok(()),
        }
    }

    /// First byte of a rank's heap. Fails if the heap is another one than when this client came: what was stored in it is
    /// not there.
    #[inline(always)]
    pub(super) fn base(&self, rank: u32) -> Result<u64> {
        let base = self.member.base(rank)?;
        if self.bases.get(rank as usize) == Some(&base) { Ok(base) } else { Err(replaced(rank)) }
    }

    /// What is in the slabs.
    #[inline(always)]
    pub(super) fn view(&self) -> &View<'_> {
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

    fn ask(&self, request: &Request<'_>) -> Result<Item> {
        let items = match &self.way {
            Way::Direct { host, .. } => host.serve(self.number, request),
            Way::Remote(remote) => remote.call(request, |_| ())?,
        };
        match items.into_iter().next() {
            Some(item) => Ok(item),
            None => Err(Error::new(NMC_ERR_PROTOCOL, "the store's master sent an empty answer")),
        }
    }

    /// One call with one result.
    pub(super) fn call(&self, request: &Request<'_>) -> Result<[u64; 3]> {
        self.ask(request)?.result()
    }

    /// A call that gives a text.
    pub(super) fn call_text(&self, request: &Request<'_>) -> Result<String> {
        let item = self.ask(request)?;
        let text = item.text.clone();
        item.result().map(|_| text)
    }

    /// Asks for one plan, and notes it.
    pub(super) fn open(&self, request: &OpenRequest<'_>) -> Result<Opened> {
        match &self.way {
            Way::Direct { host, .. } => {
                let plan = host.with(|master: &mut Master| master.open(self.number, request))?;
                self.plans.add(plan, request);
                Ok(plan)
            }
            Way::Remote(_) => {
                let mut opened = self.open_many(std::slice::from_ref(request));
                opened.pop().unwrap_or_else(|| Err(Error::new(NMC_ERR_PROTOCOL, "an empty answer")))
            }
        }
    }

    /// Asks for many plans, in as few calls as possible.
    pub(super) fn open_many(&self, requests: &[OpenRequest<'_>]) -> Vec<Result<Opened>> {
        match &self.way {
            Way::Direct { host, .. } => {
                let mut opened = Vec::with_capacity(requests.len());
                for part in requests.chunks(MAX_ITEMS) {
                    let some = host.with(|master| {
                        Ok(part.iter().map(|request| master.open(self.number, request)).collect::<Vec<_>>())
                    });
                    opened.extend(some.unwrap_or_else(|error| vec![Err(error); part.len()]));
                }
                let asked =
                    opened.iter().zip(requests).filter_map(|(plan, request)| Some((plan.as_ref().ok()?, request)));
                asked.for_each(|(plan, request)| self.plans.add(*plan, request));
                opened
            }
            Way::Remote(remote) => {
                let mut results = Vec::with_capacity(requests.len());
                for part in parts(requests, |request| request.key.len()) {
                    let answer = remote.call(&Request::Open(part.to_vec()), |items| {
                        let asked = items.iter().zip(part);
                        let made = asked.filter_map(|(item, request)| Some((plan_of(item)?, request)));
                        made.for_each(|(plan, request)| self.plans.add(plan, request));
                    });
                    collect(&mut results, answer, part.len(), |item| {
                        let plan = plan_of(&item);
                        item.result().and(plan.ok_or_else(|| Error::new(NMC_ERR_PROTOCOL, "a plan makes no sense")))
                    });
                }
                results
            }
        }
    }

    /// Removes many objects.
    pub(super) fn remove_many(&self, namespace: u32, keys: &[&[u8]]) -> Vec<Result<()>> {
        let mut results = Vec::with_capacity(keys.len());
        for part in parts(keys, |key| key.len()) {
            let request = Request::Remove(namespace, part.to_vec());
            let answer = match &self.way {
                Way::Direct { host, .. } => Ok(host.serve(self.number, &request)),
                Way::Remote(remote) => remote.call(&request, |_| ()),
            };
            collect(&mut results, answer, part.len(), |item| item.result().map(|_| ()));
        }
        results
    }

    /// Gives plans up: nothing of this process stores for them any more.
    pub(super) fn abandon(&self, plans: &[Opened]) -> Result<()> {
        for part in plans.chunks(MAX_ITEMS) {
            for plan in part {
                self.plans.remove(plan.plan_id);
            }
            self.call(&Request::Abandon(part.to_vec()))?;
        }
        Ok(())
    }

    /// Takes a pin slot.
    #[inline(always)]
    pub(super) fn take_slot(&self, view: &View<'_>) -> Result<u32> {
        self.slots.take(view, self.number).ok_or_else(|| self.no_slot())
    }

    #[cold]
    fn no_slot(&self) -> Error {
        Error::new(
            NMC_ERR_BUSY,
            format!("all {} pin slots of this client are in use; unpin something", self.map.params().pin_slots),
        )
    }

    /// Makes whoever waits give up.
    pub fn cancel(&self) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        self.ring();
    }

    /// Wakes those who wait for a publication, in all processes. They say so anew before each look: a waiter that died
    /// costs one wake.
    pub(super) fn ring(&self) {
        let bell = self.view().bell();
        if bell.waiting.load(Ordering::SeqCst) != 0 {
            // Before the ring: whoever says it after hears the next one.
            bell.waiting.store(0, Ordering::SeqCst);
            bell.ring.fetch_add(1, Ordering::SeqCst);
            crate::sync::futex::wake_all(&bell.ring);
        }
    }

    /// The program has one more handle.
    pub(super) fn enter_handle(&self) {
        self.handles.fetch_add(1, Ordering::SeqCst);
    }

    /// The program has one handle less. With the last one the client ends here and now, on the thread that destroys it.
    pub(super) fn leave_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.watches.stop();
        }
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
        unname_store(&self.member);
        match &self.way {
            Way::Direct { host, .. } => host.detach_direct(self.number),
            Way::Remote(remote) => remote.detach(),
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
    pub(super) fn tend(&self) {
        if let Way::Direct { host, .. } = &self.way {
            let _ = host.with(|master| master.tend());
        }
    }
}

#[cold]
fn replaced(rank: u32) -> Error {
    Error::new(
        NMC_ERR_PEER_LOST,
        format!("rank {rank} brought another heap; what was stored in its former one is lost"),
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

fn plan_of(item: &Item) -> Option<Opened> {
    let [index, epoch, plan_id] = item.values;
    (item.status == 0 && plan_id != 0).then_some(Opened { index: u32::try_from(index).ok()?, epoch, plan_id })
}

/// Cuts a list into parts that fit a packet.
fn parts<T>(items: &[T], key_len: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, item) in items.iter().enumerate() {
        let more = item_bytes(key_len(item));
        if at > start && (bytes + more > MAX_PACKET - 64 || at - start == MAX_ITEMS) {
            parts.push(&items[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += more;
    }
    if start < items.len() {
        parts.push(&items[start..]);
    }
    parts
}

/// One result for each of `wanted` items, whatever the answer.
fn collect<T>(results: &mut Vec<Result<T>>, answer: Result<Vec<Item>>, wanted: usize, one: impl Fn(Item) -> Result<T>) {
    match answer {
        Ok(items) if items.len() == wanted => results.extend(items.into_iter().map(one)),
        Ok(items) => {
            let text = format!("the store's master gave {} answers to {wanted} questions", items.len());
            let error = items.into_iter().next().and_then(|item| item.result().err());
            let error = error.unwrap_or_else(|| Error::new(NMC_ERR_PROTOCOL, text));
            results.extend((0..wanted).map(|_| Err(error.clone())));
        }
        Err(error) => results.extend((0..wanted).map(|_| Err(error.clone()))),
    }
}
