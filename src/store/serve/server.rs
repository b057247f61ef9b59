//! The store's master as a server: it answers the calls of clients in other processes, notices clients that are gone, and
//! does the upkeep when nobody calls. `rpc` does the talking.

use super::master_slot::MasterSlot;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_PROTOCOL, NMC_ERR_UNAVAILABLE};
use crate::layout::MAX_RANKS;
use crate::layout::store::Fate;
use crate::layout::world::Farewell;
use crate::rpc::packet::Service;
use crate::rpc::server::Id;
use crate::rpc::{self, Connections, Sent};
use crate::store::config::check_sane;
use crate::store::map::Map;
use crate::store::types::{ClientId, ClientInfo};
use crate::store::wire::{Hello, Item, MAX_PACKET, Request, SERVICE, encode_reply};
use crate::world::RankState;
use crate::world::dir::{Lock, Place};
use crate::world::master::Verdict;
use crate::world::sys;
use crate::world::watch::Watch;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sleep between looks when something waits, and when nothing does.
const TICK_BUSY: Duration = Duration::from_millis(20);
const TICK_IDLE: Duration = Duration::from_millis(250);
/// A client that nobody vouches for and whose process is dead counts as gone after this time.
const ORPHAN: Duration = Duration::from_secs(2);

/// A running server. Dropping it stops the thread and removes the socket.
pub struct Server {
    _server: rpc::Server,
}

impl Server {
    /// Serves the store of `host` at `place`; `None` if somebody else does.
    pub fn start(place: &Place, host: Arc<MasterSlot>, cpu: Option<u32>) -> Result<Option<Self>> {
        let Some(lock) = place.try_lock()? else { return Ok(None) };
        let listener = lock.listen()?;
        let serving = Serving {
            _lock: lock,
            host,
            watches: BTreeMap::new(),
            orphans: BTreeMap::new(),
            reply: memory::with_capacity(MAX_PACKET)?,
            next_look: Instant::now(),
        };
        Ok(Some(Self { _server: rpc::Server::start(c"nmc-store", cpu, listener, serving)? }))
    }
}

type Clients = Connections<ClientId>;

struct Serving {
    /// The right to be the master.
    _lock: Lock,
    host: Arc<MasterSlot>,
    /// How the end of each client is noticed, for as long as it has a place: also of one that left in order, but whose
    /// streams still hold pins.
    watches: BTreeMap<ClientId, Watch>,
    /// Clients of a former master that have not come back, since when their process is dead.
    orphans: BTreeMap<ClientId, Instant>,
    /// Room for an answer, however short memory is.
    reply: Vec<u8>,
    next_look: Instant,
}

impl rpc::Handler for Serving {
    type Peer = ClientId;
    const SERVICE: Service = SERVICE;
    const MAX_CONNECTIONS: usize = 8 * MAX_RANKS;

    fn received(&mut self, clients: &mut Clients, from: Id, packet: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        match clients.peer(from).copied() {
            Some(client) => self.answer(clients, from, client, packet),
            None => self.meet(clients, from, packet, fds),
        }
    }

    /// A client is gone when its process is, not with its connection.
    fn closed(&mut self, _: Option<ClientId>, _: &str) {}

    fn watched<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.watches.values().flat_map(|watch| watch.pending(RankState::Alive)));
    }

    fn tick(&mut self, clients: &mut Clients, woken: bool) -> Duration {
        if woken || Instant::now() >= self.next_look {
            let limit = if self.look(clients) { TICK_BUSY } else { TICK_IDLE };
            self.next_look = Instant::now() + limit;
        }
        self.next_look.saturating_duration_since(Instant::now())
    }
}

impl Serving {
    /// Answers a call. One that cannot be understood ends the connection.
    fn answer(&mut self, clients: &mut Clients, from: Id, client: ClientId, packet: &[u8]) -> Result<()> {
        let (items, leaves) = match Request::decode(packet) {
            Ok(Request::Reach) => return self.reach(clients, from),
            Ok(request) => (self.host.serve(client, &request), request == Request::Detach),
            Err(error) if error.status == NMC_ERR_PROTOCOL => return Err(error),
            Err(error) => (vec![Item::from(Err(error))], false),
        };
        let broken = items.first().is_some_and(|item| item.status == NMC_ERR_PROTOCOL);
        let over = leaves || self.host.with(|master| Ok(master.is_attached(client))) != Ok(true);
        encode_reply(&items, &mut self.reply);
        self.send(clients, from, &[]);
        if broken || over {
            clients.close(from);
        }
        Ok(())
    }

    /// Hands out the disk below the store.
    fn reach(&mut self, clients: &mut Clients, from: Id) -> Result<()> {
        let granted = match self.host.disk_owner() {
            Some(owner) => owner.grant().and_then(|grant| Ok((grant.map.descriptors()?, grant))),
            None => Err(Error::new(NMC_ERR_UNAVAILABLE, "the tier of the store has no owner at the moment")),
        };
        match granted {
            Ok(([index, heat], grant)) => {
                encode_reply(&[Item::ok([grant.map.id(), grant.map.entries(), grant.flags])], &mut self.reply);
                self.send(clients, from, &[index.as_fd(), heat.as_fd(), grant.directory.as_fd()]);
            }
            Err(error) => {
                encode_reply(&[Item::from(Err(error))], &mut self.reply);
                self.send(clients, from, &[]);
            }
        }
        Ok(())
    }

    /// The first packet of a connection says who it is.
    fn meet(&mut self, clients: &mut Clients, from: Id, packet: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        let (client, store_id, fds) = match Request::decode(packet)? {
            Request::Hello(hello) => self.introduce(clients, &hello, fds)?,
            other => crate::bail!(NMC_ERR_PROTOCOL, "a client calls {} before it has introduced itself", other.name()),
        };
        clients.introduce(from, client);
        encode_reply(&[Item::ok([client.number.into(), store_id, client.generation])], &mut self.reply);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.send(clients, from, &fds);
        Ok(())
    }

    /// Sends the reply; who has no room for it is not waited for.
    fn send(&self, clients: &mut Clients, to: Id, fds: &[BorrowedFd<'_>]) {
        if let Some(connection) = clients.get_mut(to)
            && !matches!(connection.send(&self.reply, fds), Ok(Sent::Yes))
        {
            clients.close(to);
        }
    }

    /// Upkeep; true if there will be something to do soon.
    fn look(&mut self, clients: &mut Clients) -> bool {
        self.host.look_at_heaps();
        let host = &self.host;
        self.watches.retain(|client, _| host.with(|master| Ok(master.has_place(*client))) == Ok(true));
        let mut busy = false;
        let mut gone = Vec::new();
        for (client, watch) in &mut self.watches {
            let state = watch.observe(Farewell::None);
            busy |= state == RankState::Dying;
            if state.free() {
                gone.push(*client);
            }
        }
        gone.extend(self.look_at_orphans());
        busy |= !self.orphans.is_empty();
        for client in gone {
            self.lose(clients, client);
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

    fn lose(&mut self, clients: &mut Clients, client: ClientId) {
        log::emit(log::INFO, || format!("store: client {} is gone", client.number));
        self.watches.remove(&client);
        self.orphans.remove(&client);
        clients.close_all(|c| *c == client);
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
            let ClientInfo { pid, start_time, rank, rank_generation, .. } = info;
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

    fn introduce(
        &mut self,
        clients: &mut Clients,
        hello: &Hello,
        fds: Vec<OwnedFd>,
    ) -> Result<(ClientId, u64, Vec<OwnedFd>)> {
        let mut fds = fds.into_iter();
        let (Some(pidfd), Some(life)) = (fds.next(), fds.next()) else {
            crate::bail!(NMC_ERR_PROTOCOL, "a client introduces itself without signs of life");
        };
        let params = hello.params()?;
        check_sane(&params)?;
        if hello.rank >= params.world_size {
            crate::bail!(NMC_ERR_PROTOCOL, "a client says that it is rank {} of {}", hello.rank, params.world_size);
        }
        check_generation(&self.host, hello)?;
        let watch = Watch::new(pidfd, life, Duration::from_millis(hello.drain_ms.min(600_000).into()));
        let info = hello.info()?;
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
            clients.close_all(|c| *c == client);
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
pub(in crate::store) fn check_generation(host: &MasterSlot, hello: &Hello) -> Result<()> {
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
