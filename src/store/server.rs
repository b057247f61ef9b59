//! The thread that serves a store's clients in other processes and looks after the master: it answers calls, notices
//! clients that are gone, and does the upkeep when nobody calls. It never waits for a client.

use super::config::check_sane;
use super::map::Map;
use super::master::{ClientId, ClientInfo};
use super::master_slot::MasterSlot;
use super::sys::{self as quick, Heard};
use super::wire::{Hello, Item, MAX_PACKET, Request, encode_reply};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_PERMISSION, NMC_ERR_PROTOCOL};
use crate::layout::MAX_RANKS;
use crate::layout::store::Fate;
use crate::layout::world::Farewell;
use crate::world::dir::{Lock, Place};
use crate::world::master::Verdict;
use crate::world::sys::{self, BlockSignals, Event, Link, Packet, ParentOnly};
use crate::world::watch::Watch;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sleep between looks when something waits, and when nothing does.
const TICK_BUSY: Duration = Duration::from_millis(20);
const TICK_IDLE: Duration = Duration::from_millis(250);
/// A connection that has not said who it is by then is closed.
const SILENCE: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: usize = 8 * MAX_RANKS;
/// A client that nobody vouches for and whose process is dead counts as gone after this time.
const ORPHAN: Duration = Duration::from_secs(2);

/// A running server. Dropping it stops the thread and removes the socket.
pub struct Server {
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the store of `host` at `place`; `None` if somebody else does.
    pub fn start(place: &Place, host: Arc<MasterSlot>, cpu: Option<u32>) -> Result<Option<Self>> {
        match place.try_lock()? {
            Some(lock) => Self::run(lock, host, cpu).map(Some),
            None => Ok(None),
        }
    }

    fn run(lock: Lock, host: Arc<MasterSlot>, cpu: Option<u32>) -> Result<Self> {
        let listener = lock.listen()?;
        let stop = Arc::new(Event::new()?);
        let stopped = Arc::clone(&stop);
        let buffers = Buffers::new()?;
        let _quiet = BlockSignals::new();
        let thread = std::thread::Builder::new()
            .name("nmc-store".into())
            .spawn(move || {
                sys::settle_thread(c"nmc-store", cpu);
                let mut serving = Serving::new(&listener, &host, buffers);
                sys::persist("the store's thread", || serving.serve(&stopped));
                drop(lock);
            })
            .map_err(|e| Error::os("starting the store's thread", &e))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Connection {
    link: Link,
    since: Instant,
    client: Option<ClientId>,
}

/// What the thread must have, however short memory is.
struct Buffers {
    packet: Vec<u8>,
    reply: Vec<u8>,
    ids: Vec<u64>,
}

impl Buffers {
    fn new() -> Result<Self> {
        let (packet, reply) = (memory::zeroed(MAX_PACKET)?, memory::with_capacity(MAX_PACKET)?);
        Ok(Self { packet, reply, ids: memory::with_capacity(MAX_CONNECTIONS)? })
    }
}

struct Serving<'a> {
    listener: &'a ParentOnly,
    host: &'a MasterSlot,
    connections: BTreeMap<u64, Connection>,
    next_id: u64,
    /// How the end of each client is noticed, for as long as it has a place: also of one that left in order, but whose
    /// streams still hold pins.
    watches: BTreeMap<ClientId, Watch>,
    /// Clients of a former master that have not come back, since when their process is dead.
    orphans: BTreeMap<ClientId, Instant>,
    packet: Vec<u8>,
    reply: Vec<u8>,
    /// Connections, in the order in which they are polled.
    ids: Vec<u64>,
    /// The connection that is being heard: if that ends by a bug, so does the connection.
    hearing: Option<u64>,
}

impl<'a> Serving<'a> {
    fn new(listener: &'a ParentOnly, host: &'a MasterSlot, buffers: Buffers) -> Self {
        let Buffers { packet, reply, ids } = buffers;
        Self {
            listener,
            host,
            connections: BTreeMap::new(),
            next_id: 1,
            watches: BTreeMap::new(),
            orphans: BTreeMap::new(),
            packet,
            reply,
            ids,
            hearing: None,
        }
    }

    fn serve(&mut self, stop: &Event) {
        if let Some(id) = self.hearing.take() {
            self.connections.remove(&id);
        }
        let mut limit = TICK_IDLE;
        let mut next_look = Instant::now();
        loop {
            let mut fds = Vec::with_capacity(2 + self.connections.len() + 2 * self.watches.len());
            fds.extend([stop.as_fd(), self.listener.as_fd()]);
            fds.extend(self.connections.values().map(|c| c.link.as_fd()));
            let pending = self.watches.values().flat_map(|w| w.pending(crate::world::RankState::Alive));
            fds.extend(pending);
            let ready = sys::poll(&fds, limit.min(next_look.saturating_duration_since(Instant::now())));
            let mut ids = std::mem::take(&mut self.ids);
            ids.clear();
            ids.extend(self.connections.keys());
            if ready.first().copied().unwrap_or(false) {
                return;
            }
            for (id, _) in ids.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
                self.hearing = Some(*id);
                self.hear(*id);
                self.hearing = None;
            }
            if ready.get(1).copied().unwrap_or(false) {
                self.accept();
            }
            let polled = ids.len();
            self.ids = ids;
            let news = ready.get(2 + polled..).is_some_and(|watched| watched.contains(&true));
            if news || Instant::now() >= next_look {
                limit = if self.look() { TICK_BUSY } else { TICK_IDLE };
                next_look = Instant::now() + limit;
            }
        }
    }

    /// Upkeep; true if there will be something to do soon.
    fn look(&mut self) -> bool {
        self.connections.retain(|_, c| c.client.is_some() || c.since.elapsed() < SILENCE);
        self.host.look_at_heaps();
        let host = self.host;
        self.watches.retain(|client, _| host.with(|master| Ok(master.has_place(*client))) == Ok(true));
        let mut busy = false;
        let mut gone = Vec::new();
        for (client, watch) in &mut self.watches {
            let state = watch.observe(Farewell::None);
            busy |= state == crate::world::RankState::Dying;
            if state.free() {
                gone.push(*client);
            }
        }
        gone.extend(self.look_at_orphans());
        busy |= !self.orphans.is_empty();
        for client in gone {
            self.lose(client);
        }
        let tended = self.host.with(|master| {
            master.heed_last_words()?;
            master.tend()
        });
        match tended {
            Ok(waiting) => busy | waiting,
            Err(_) => busy,
        }
    }

    fn lose(&mut self, client: ClientId) {
        log::emit(log::INFO, || format!("store: client {} is gone", client.number));
        self.watches.remove(&client);
        self.orphans.remove(&client);
        self.connections.retain(|_, c| c.client != Some(client));
        if let Err(error) = self.host.with(|master| master.client_gone(client)) {
            log::emit(log::WARN, || format!("store: taking back what client {} left: {error}", client.number));
        }
    }

    /// Clients of the former master that did not come back: gone when the world says so, or when their process has been
    /// dead for a while.
    fn look_at_orphans(&mut self) -> Vec<ClientId> {
        let watches = &self.watches;
        let unwatched = self.host.unwatched(|client| watches.contains_key(client));
        self.orphans.retain(|client, _| unwatched.contains(client));
        let mut gone = Vec::new();
        for client in unwatched {
            let Ok(info) = self.host.with(|master| Ok(master.info_of(client))) else { continue };
            let ClientInfo { pid, start_time, rank, rank_generation } = info;
            if rank as usize >= MAX_RANKS {
                // Its entry was overwritten: nobody knows who it is, so nobody can say that it is gone.
                continue;
            }
            let verdict = self.host.board.as_ref().map(|b| b.verdict(self.host.world_id(), rank, rank_generation));
            match (&self.host.member, verdict) {
                (Some(member), _) if member.state(rank, rank_generation).free() => gone.push(client),
                (None, Some(Verdict::Gone)) => gone.push(client),
                // A dead process alone proves nothing: a forked child or a kernel may still be storing.
                (Some(_), _) | (None, Some(Verdict::Unknown | Verdict::There)) => {}
                (None, _) if sys::is_running(pid, start_time) => {
                    self.orphans.remove(&client);
                }
                (None, _) => {
                    if self.orphans.entry(client).or_insert_with(Instant::now).elapsed() > ORPHAN {
                        gone.push(client);
                    }
                }
            }
        }
        gone
    }

    fn accept(&mut self) {
        match sys::accept(self.listener.as_fd()) {
            Ok(Some(link)) => {
                if let Err(error) = check_peer(&link).and_then(|()| self.make_room()) {
                    log::emit(log::WARN, || format!("store: refused a connection: {error}"));
                    encode_reply(&[Item::from(Err(error))], &mut self.reply);
                    let _ = quick::send(link.as_fd(), &self.reply);
                    return;
                }
                self.connections.insert(self.next_id, Connection { link, since: Instant::now(), client: None });
                self.next_id += 1;
            }
            Ok(None) => {}
            Err(error) => {
                // Out of descriptors: the connection stays in the queue; do not spin on it.
                log::emit(log::ERROR, || format!("store: {error}"));
                std::thread::sleep(TICK_BUSY);
            }
        }
    }

    /// Whoever says nothing does not keep others out.
    fn make_room(&mut self) -> Result<()> {
        if self.connections.len() < MAX_CONNECTIONS {
            return Ok(());
        }
        let Some(oldest) = self.connections.iter().find(|(_, c)| c.client.is_none()).map(|(id, _)| *id) else {
            crate::bail!(NMC_ERR_LIMIT, "the store already has {MAX_CONNECTIONS} connections");
        };
        self.connections.remove(&oldest);
        Ok(())
    }

    fn hear(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(client) = connection.client else { return self.meet(id) };
        let heard = quick::receive(connection.link.as_fd(), &mut self.packet, None);
        let (items, leaves) = match heard {
            Ok(Heard::Nothing) => return,
            Ok(Heard::End) => {
                self.connections.remove(&id);
                return;
            }
            Ok(Heard::Packet(len)) => match Request::decode(&self.packet[..len]) {
                Ok(request) => (self.host.serve(client, &request), request == Request::Detach),
                Err(error) => (vec![Item::from(Err(error))], false),
            },
            Err(error) => (vec![Item::from(Err(error))], false),
        };
        let broken = items.first().is_some_and(|item| item.status == NMC_ERR_PROTOCOL);
        let over = leaves || self.host.with(|master| Ok(master.is_attached(client))) != Ok(true);
        encode_reply(&items, &mut self.reply);
        let sent = quick::send(connection.link.as_fd(), &self.reply).unwrap_or(false);
        if broken || over || !sent {
            self.connections.remove(&id);
        }
    }

    /// The first packet of a connection says who it is.
    fn meet(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let met = match sys::receive(connection.link.as_fd(), &mut self.packet) {
            Ok(Packet::Empty) => return,
            Ok(Packet::End) => {
                self.connections.remove(&id);
                return;
            }
            Ok(Packet::Data(len, fds)) => match Request::decode(&self.packet[..len]) {
                Ok(Request::Hello(hello)) => self.introduce(&hello, fds),
                Ok(other) => {
                    let text = format!("a client calls {} before it has introduced itself", other.name());
                    Err(Error::new(NMC_ERR_PROTOCOL, text))
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match met {
            Ok((client, store_id, fds)) => {
                connection.client = Some(client);
                encode_reply(&[Item::ok([client.number.into(), store_id, client.generation])], &mut self.reply);
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
                if sys::send(connection.link.as_fd(), &self.reply, &fds).ok() != Some(sys::Sent::Yes) {
                    self.connections.remove(&id);
                }
            }
            Err(error) => {
                log::emit(log::INFO, || format!("store: refused a client: {error}"));
                encode_reply(&[Item::from(Err(error))], &mut self.reply);
                let _ = quick::send(connection.link.as_fd(), &self.reply);
                self.connections.remove(&id);
            }
        }
    }

    fn introduce(&mut self, hello: &Hello, fds: Vec<OwnedFd>) -> Result<(ClientId, u64, Vec<OwnedFd>)> {
        let mut fds = fds.into_iter();
        let (Some(pidfd), Some(life)) = (fds.next(), fds.next()) else {
            crate::bail!(NMC_ERR_PROTOCOL, "a client introduces itself without signs of life");
        };
        let params = hello.params()?;
        check_sane(&params)?;
        if hello.rank >= params.world_size {
            crate::bail!(NMC_ERR_PROTOCOL, "a client says that it is rank {} of {}", hello.rank, params.world_size);
        }
        check_generation(self.host, hello)?;
        let watch = Watch::new(pidfd, life, Duration::from_millis(hello.drain_ms.min(600_000).into()));
        let info = ClientInfo {
            pid: hello.pid,
            start_time: hello.start_time,
            rank: hello.rank,
            rank_generation: hello.rank_generation,
        };
        if hello.holds {
            let (Some(control), Some(words)) = (fds.next(), fds.next()) else {
                crate::bail!(NMC_ERR_PROTOCOL, "a client of before comes without memory");
            };
            let client = ClientId { number: hello.client, generation: hello.client_generation };
            let seed = hello.seed()?;
            let map = || Map::adopt(&params, hello.store_id, seed, control, words);
            self.host.reattach(hello.world_id, client, &info, hello.heaps(), map)?;
            if self.host.store_id() != hello.store_id {
                crate::bail!(NMC_ERR_STALE, "the client was one of another store");
            }
            if hello.kept_all {
                self.host.with(|master| {
                    let map = Arc::clone(master.map());
                    master.end_plans(map.view(), client.number, &hello.kept, Fate::GivenUp)
                })?;
            }
            self.connections.retain(|_, c| c.client != Some(client));
            self.watches.insert(client, watch);
            return Ok((client, hello.store_id, Vec::new()));
        }
        let (client, map) = self.host.attach(hello.world_id, &info, hello.heaps(), &params, hello.store_id)?;
        let (control, words) = map.client_fds()?;
        self.watches.insert(client, watch);
        Ok((client, map.store_id(), vec![control, words]))
    }
}

/// Refuses a client that says to be a holder of its rank whom the world does not know, or knows to be gone.
pub(super) fn check_generation(host: &MasterSlot, hello: &Hello) -> Result<()> {
    let Hello { rank, rank_generation, world_id, .. } = *hello;
    let known = match (&host.member, &host.board) {
        (Some(member), _) if member.world_id() == world_id => Some(member.generation_of(rank)),
        (None, Some(board)) => board.newest(world_id, rank),
        _ => None,
    };
    match known {
        Some(known) if rank_generation > known => crate::bail!(
            NMC_ERR_UNAVAILABLE,
            "a client says that it is holder {rank_generation} of rank {rank}, of which the world knows {known} so far"
        ),
        Some(known) if rank_generation < known => crate::bail!(
            NMC_ERR_STALE,
            "a client says that it is holder {rank_generation} of rank {rank}, which holder {known} has now"
        ),
        _ => Ok(()),
    }
}

fn check_peer(link: &Link) -> Result<()> {
    let (theirs, ours) = (sys::peer_uid(link.as_fd())?, sys::own_uid());
    if theirs != ours {
        return Err(Error::new(NMC_ERR_PERMISSION, format!("user {theirs} is not user {ours}")));
    }
    Ok(())
}
