//! The master of a world: gives out ranks, makes the shared slabs, and passes descriptors around. It is one thread
//! that never waits for anybody: a client that says nothing, says nonsense or reads nothing is dropped. After a
//! restart it takes the world over from the first survivor that hands it back.

use super::config::Config;
use super::dir::Lock;
use super::rank_locks::RankLocks;
use super::roster::{Roster, Slot};
use super::sys::{self, BlockSignals, Event, Link, Packet, ParentOnly, Sent};
use super::watch::Watch;
use super::wire::{Hello, Message, Offer, Params, Peer, PeerList, Reattach, Reject, Waiting, Welcome};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_PERMISSION, NMC_ERR_PROTOCOL};
use crate::layout::MAX_RANKS;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A connection that has not said who it is by then is closed.
const SILENCE: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: usize = 4 * MAX_RANKS;
/// A connection that has had no room for what it is owed by then is closed.
const SLOWNESS: Duration = Duration::from_secs(10);
/// For one that has had no room for this long no newcomer waits: it may be stopped.
const HESITATION: Duration = Duration::from_millis(500);
/// How often a waiting join looks whether a dying rank is gone.
const TICK_BUSY: Duration = Duration::from_millis(20);
const TICK_IDLE: Duration = Duration::from_millis(500);

/// What a master knows about the ranks, for others in its process that are not ranks themselves.
#[derive(Debug, Default)]
pub struct Board(Mutex<(u64, Vec<RankNote>)>);

/// A rank on a [`Board`].
#[derive(Debug, Clone, Copy)]
struct RankNote {
    generation: u64,
    free: bool,
    /// The holder that brought or inherited the heap, and the heap's name.
    heap: (u64, u64),
}

/// What a [`Board`] says about a former holder of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No survivor has reported yet.
    Unknown,
    /// The master serves another world.
    OtherWorld,
    /// Something of it may be left.
    There,
    /// Provably nothing of it is left, or it said goodbye.
    Gone,
}

impl Board {
    /// The newest holder of `rank`; `None` if nothing is known about this world.
    #[must_use]
    pub fn newest(&self, world_id: u64, rank: u32) -> Option<u64> {
        let seen = self.0.lock();
        seen.1.get(rank as usize).filter(|_| seen.0 == world_id).map(|note| note.generation)
    }

    /// About whoever held `rank` in `generation`.
    #[must_use]
    pub fn verdict(&self, world_id: u64, rank: u32, generation: u64) -> Verdict {
        let seen = self.0.lock();
        match seen.1.get(rank as usize) {
            _ if seen.0 == 0 => Verdict::Unknown,
            _ if seen.0 != world_id => Verdict::OtherWorld,
            Some(note) if generation < note.generation || (generation == note.generation && note.free) => Verdict::Gone,
            _ => Verdict::There,
        }
    }

    /// The heap of each rank of `world_id`: generation of its holder, and name of the memory (0 if it does not stay with
    /// the rank). Empty while nothing is known of that world.
    #[must_use]
    pub fn heaps(&self, world_id: u64) -> Vec<(u64, u64)> {
        let seen = self.0.lock();
        let known = if seen.0 == world_id { seen.1.as_slice() } else { &[] };
        known.iter().map(|note| note.heap).collect()
    }
}

/// A running master. Dropping it stops the thread and removes the socket.
pub struct Master {
    board: Arc<Board>,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Master {
    /// Becomes the master of the world of `config`; fails with `NMC_ERR_EXISTS` if somebody is.
    pub fn open(config: &Config) -> Result<Self> {
        config.check()?;
        let place = config.place();
        // A master that is just ending may still hold the lock of a directory that is about to vanish.
        for _ in 0..20 {
            if let Some(lock) = place.try_lock()? {
                return Self::start(lock, config.params(), config.service_cpu);
            }
            std::thread::sleep(TICK_BUSY);
        }
        crate::bail!(NMC_ERR_EXISTS, "world {:?} already has a master at {}", config.name, place.socket().display())
    }

    /// Starts to serve the world of `lock`.
    pub fn start(lock: Lock, params: Params, cpu: Option<u32>) -> Result<Self> {
        let listener = lock.listen()?;
        let locks = lock.rank_locks()?;
        let stop = Arc::new(Event::new()?);
        let stopped = Arc::clone(&stop);
        let board = Arc::<Board>::default();
        let shown = Arc::clone(&board);
        // Before the thread: it must be able to hear whatever happens.
        let buffer = memory::zeroed(sys::MAX_PACKET)?;
        let _quiet = BlockSignals::new();
        let thread = std::thread::Builder::new()
            .name("nmc-master".into())
            .spawn(move || {
                sys::settle_thread(c"nmc-master", cpu);
                let mut server = Server::new(listener, params, shown, locks, buffer);
                sys::persist("the master thread", || server.serve(&stopped));
                drop(lock);
            })
            .map_err(|e| Error::os("starting the master thread", &e))?;
        Ok(Self { board, stop, thread: Some(thread) })
    }

    /// What it knows about the ranks.
    #[must_use]
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A rank that was given to a connection. Another process may have taken the rank since, or another world may be
/// there: then the connection speaks for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seat {
    world_id: u64,
    rank: u32,
    generation: u64,
}

enum Role {
    Silent,
    Waiting { hello: Hello, pidfd: OwnedFd, life: OwnedFd },
    Rank(Seat),
}

struct Connection {
    socket: Link,
    since: Instant,
    role: Role,
    /// What it has to be told as soon as there is room.
    owed: Owed,
    /// It knows that it waits for the former holder of its rank.
    told_to_wait: bool,
}

#[derive(Default)]
struct Owed {
    welcome: bool,
    /// Ranks to tell about; `Some` and empty is an answer without news.
    roster: Option<BTreeSet<u32>>,
    /// The roster completes its join: others are to know of it first.
    completes: bool,
    since: Option<Instant>,
}

struct Server {
    listener: ParentOnly,
    params: Params,
    connections: BTreeMap<u64, Connection>,
    next_id: u64,
    roster: Option<Roster>,
    buffer: Vec<u8>,
    missing: Vec<u32>,
    /// Ranks of a former world for which newcomers wait.
    living: Vec<u32>,
    board: Arc<Board>,
    locks: Arc<RankLocks>,
    /// The connection that is being heard: if that ends by a bug, so does the connection.
    hearing: Option<u64>,
}

impl Server {
    fn new(listener: ParentOnly, params: Params, board: Arc<Board>, locks: RankLocks, buffer: Vec<u8>) -> Self {
        Self {
            listener,
            params,
            connections: BTreeMap::new(),
            next_id: 1,
            roster: None,
            buffer,
            missing: Vec::new(),
            living: Vec::new(),
            board,
            locks: Arc::new(locks),
            hearing: None,
        }
    }

    fn show(&mut self) {
        let Some(roster) = &mut self.roster else { return };
        let notes = (0..self.params.world_size).map(|rank| RankNote {
            generation: roster.newest(rank),
            free: roster.state(rank).free(),
            heap: roster.heap_of(rank),
        });
        let notes = notes.collect();
        *self.board.0.lock() = (roster.id(), notes);
    }

    fn serve(&mut self, stop: &Event) {
        if let Some(id) = self.hearing.take() {
            self.drop_connection(id, "what it said met a bug");
        }
        loop {
            let mut fds: Vec<BorrowedFd<'_>> = vec![stop.as_fd(), self.listener.as_fd()];
            fds.extend(self.connections.values().map(|c| c.socket.as_fd()));
            let ready = sys::poll(&fds, if self.is_busy() { TICK_BUSY } else { TICK_IDLE });
            let ids: Vec<u64> = self.connections.keys().copied().collect();
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
            self.drop_dead();
            self.show();
            if self.roster.as_mut().is_some_and(Roster::is_over) {
                log::emit(log::INFO, || "master: all ranks are gone, the next join forms a new world".into());
                self.roster = None;
            }
            self.admit();
            self.pay();
        }
    }

    /// Whether something is to be done that no descriptor announces.
    fn is_busy(&self) -> bool {
        self.connections.values().any(|c| match c.role {
            Role::Rank(seat) => c.owed.since.is_some() || c.owed.roster.is_some() || self.is_joining(seat),
            Role::Silent | Role::Waiting { .. } => true,
        })
    }

    fn is_current(&self, seat: Seat) -> bool {
        self.roster.as_ref().is_some_and(|r| r.id() == seat.world_id && r.is_holder(seat.rank, seat.generation))
    }

    fn is_joining(&self, seat: Seat) -> bool {
        self.is_current(seat) && self.roster.as_ref().is_some_and(|r| r.is_joining(seat.rank))
    }

    fn accept(&mut self) {
        match sys::accept(self.listener.as_fd()) {
            Ok(Some(socket)) => {
                let checked = check_peer(socket.as_fd()).and_then(|()| self.make_room());
                if let Err(error) = checked {
                    log::emit(log::WARN, || format!("master: refused a connection: {error}"));
                    let _ = tell(&socket, &Message::Reject(error.into()), &[]);
                    return;
                }
                let connection = Connection {
                    socket,
                    since: Instant::now(),
                    role: Role::Silent,
                    owed: Owed::default(),
                    told_to_wait: false,
                };
                self.connections.insert(self.next_id, connection);
                self.next_id += 1;
            }
            Ok(None) => {}
            Err(error) => {
                // Out of descriptors: the connection stays in the queue; do not spin on it.
                log::emit(log::ERROR, || format!("master: {error}"));
                std::thread::sleep(TICK_BUSY);
            }
        }
    }

    /// Whoever says nothing does not keep others out.
    fn make_room(&mut self) -> Result<()> {
        if self.connections.len() < MAX_CONNECTIONS {
            return Ok(());
        }
        match self.connections.iter().find(|(_, c)| matches!(c.role, Role::Silent)).map(|(id, _)| *id) {
            Some(oldest) => self.drop_connection(oldest, "others need its place"),
            None => crate::bail!(NMC_ERR_LIMIT, "the master already has {MAX_CONNECTIONS} connections"),
        }
        Ok(())
    }

    /// Drops who says nothing, who died while joining (a forked child may keep its socket open), and who does not read.
    fn drop_dead(&mut self) {
        let verdict = |c: &Connection| match &c.role {
            Role::Silent if c.since.elapsed() > SILENCE => Some("it said nothing"),
            Role::Waiting { pidfd, .. } if sys::ready(pidfd.as_fd()) => Some("it died"),
            Role::Rank(seat)
                if self.is_joining(*seat) && self.roster.as_ref().is_some_and(|r| r.joiner_died(seat.rank)) =>
            {
                Some("it died")
            }
            _ if c.owed.since.is_some_and(|since| since.elapsed() > SLOWNESS) => Some("it does not read"),
            _ => None,
        };
        let dead = memory::collect(self.connections.iter().filter_map(|(id, c)| Some((*id, verdict(c)?))));
        // Without memory they are dropped when it is looked at the next time.
        for (id, why) in dead.unwrap_or_default() {
            self.drop_connection(id, why);
        }
    }

    fn hear(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let heard = match sys::receive(connection.socket.as_fd(), &mut self.buffer) {
            Ok(Packet::Empty) => return,
            Ok(Packet::End) => return self.drop_connection(id, "it closed"),
            Ok(Packet::Data(len, fds)) => Message::decode(&self.buffer[..len]).and_then(|m| self.handle(id, m, fds)),
            Err(error) => Err(error),
        };
        if let Err(error) = heard {
            self.reject(id, error);
        }
    }

    fn handle(&mut self, id: u64, message: Message, fds: Vec<OwnedFd>) -> Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        match (&connection.role, message) {
            (Role::Silent, Message::Hello(hello)) => {
                let [pidfd, life]: [OwnedFd; 2] = exactly(fds)?;
                self.params.check(&hello.params)?;
                connection.role = Role::Waiting { hello, pidfd, life };
                self.check_rivals(id)
            }
            (Role::Silent, Message::Reattach(reattach)) => self.reattach(id, reattach, fds),
            (Role::Rank(seat), Message::Offer(offer)) => {
                let seat = *seat;
                self.offer(seat, offer, fds)
            }
            (_, other) => crate::bail!(NMC_ERR_PROTOCOL, "unexpected message {}", other.name()),
        }
    }

    /// Before the world exists, two joiners that want the same rank are told apart at once.
    fn check_rivals(&self, id: u64) -> Result<()> {
        let asks = |c: &Connection| match &c.role {
            Role::Waiting { hello, pidfd, .. } if !sys::ready(pidfd.as_fd()) => {
                Some((hello.rank, hello.holder.device_rank, hello.holder.pid))
            }
            _ => None,
        };
        let Some((rank, device_rank, _)) = self.connections.get(&id).and_then(asks) else { return Ok(()) };
        let size = self.params.world_size;
        for (name, value) in [("rank", rank), ("device_rank", device_rank)] {
            if value < -1 || value >= size.cast_signed() {
                crate::bail!(NMC_ERR_INVALID_ARG, "{name} {value} is not below the world size {size}");
            }
        }
        if self.roster.is_some() {
            return Ok(());
        }
        let mut others = 0;
        for (other_rank, other_device_rank, pid) in
            self.connections.iter().filter(|(other, _)| **other != id).filter_map(|(_, c)| asks(c))
        {
            others += 1;
            if rank >= 0 && rank == other_rank {
                return Err(taken(rank, pid));
            }
            if device_rank >= 0 && device_rank == other_device_rank {
                return Err(Error::new(
                    NMC_ERR_EXISTS,
                    format!("device_rank {device_rank} is already taken by process {pid}"),
                ));
            }
        }
        if others >= size {
            return Err(Error::new(NMC_ERR_EXISTS, format!("all {size} ranks are taken")));
        }
        Ok(())
    }

    /// Gives ranks to whoever waits, as far as that is possible now.
    fn admit(&mut self) {
        let waiting: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| matches!(c.role, Role::Waiting { .. }))
            .map(|(id, _)| *id)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let seats: Vec<Seat> = self.seats().map(|(_, seat)| seat).filter(|seat| self.is_current(*seat)).collect();
        let all_came = waiting.len() >= self.params.world_size as usize;
        if self.roster.is_none() && all_came && self.someone_lives(&waiting) {
            return;
        }
        match &mut self.roster {
            Some(roster) => {
                if roster.is_settling(|rank| seats.iter().any(|seat| seat.rank == rank)) {
                    return;
                }
            }
            None if !all_came => return self.tell_missing(&waiting),
            None => match Roster::create(&self.params, &self.locks) {
                Ok(roster) => self.roster = Some(roster),
                Err(error) => {
                    for id in waiting {
                        self.reject(id, error.clone());
                    }
                    return;
                }
            },
        }
        // Explicit ranks first, so that an automatic one cannot take what another asked for.
        let automatic = |id: &u64| match self.connections.get(id).map(|c| &c.role) {
            Some(Role::Waiting { hello, .. }) => hello.rank < 0,
            _ => true,
        };
        let mut order = waiting;
        order.sort_by_key(automatic);
        for id in order {
            if let Err(error) = self.admit_one(id) {
                self.reject(id, error);
            }
        }
    }

    /// Whether ranks of a world that outlived its master are there, which have not reported: they go before newcomers, who
    /// are told what they wait for.
    fn someone_lives(&mut self, waiting: &[u64]) -> bool {
        let living: Vec<u32> = (0..self.params.world_size).filter(|rank| self.locks.is_held(*rank)).collect();
        if living != self.living {
            let waiting_for = Message::Waiting(Waiting { missing: vec![], dying: vec![], living: living.clone() });
            for connection in waiting.iter().filter_map(|id| self.connections.get(id)) {
                let _ = tell(&connection.socket, &waiting_for, &[]);
            }
            self.living = living;
        }
        !self.living.is_empty()
    }

    fn seats(&self) -> impl Iterator<Item = (u64, Seat)> {
        self.connections.iter().filter_map(|(id, c)| match c.role {
            Role::Rank(seat) => Some((*id, seat)),
            _ => None,
        })
    }

    fn admit_one(&mut self, id: u64) -> Result<()> {
        let (Some(roster), Some(connection)) = (self.roster.as_mut(), self.connections.get_mut(&id)) else {
            return Ok(());
        };
        let Role::Waiting { hello, .. } = &connection.role else { return Ok(()) };
        let Some(rank) = roster.choose_rank(hello)? else {
            if !std::mem::replace(&mut connection.told_to_wait, true) {
                let dying = u32::try_from(hello.rank).into_iter().collect();
                let waiting = Message::Waiting(Waiting { missing: vec![], dying, living: vec![] });
                let _ = tell(&connection.socket, &waiting, &[]);
            }
            return Ok(());
        };
        let Role::Waiting { hello, pidfd, life } = std::mem::replace(&mut connection.role, Role::Silent) else {
            return Ok(());
        };
        let watch = Watch::new(pidfd, life, hello.holder.drain());
        let generation = roster.seat(rank, hello.holder, watch);
        connection.role = Role::Rank(Seat { world_id: roster.id(), rank, generation });
        connection.owed = Owed { welcome: true, ..Owed::default() };
        Ok(())
    }

    fn offer(&mut self, seat: Seat, offer: Offer, mut fds: Vec<OwnedFd>) -> Result<()> {
        if !self.is_joining(seat) {
            crate::bail!(NMC_ERR_EXISTS, "rank {} was given to another process meanwhile", seat.rank);
        }
        let Some(roster) = self.roster.as_mut() else { return Ok(()) };
        if fds.len() != usize::from(offer.heap.route.has_fd()) || offer.heap.bytes != self.params.heap_bytes {
            crate::bail!(NMC_ERR_PROTOCOL, "rank {} offers a heap that is not what it announced", seat.rank);
        }
        let was_formed = roster.formed();
        let now_formed = roster.set_heap(seat.rank, offer.heap, fds.pop());
        let everyone: Vec<u32> = (0..self.params.world_size).collect();
        match (was_formed, now_formed) {
            (false, true) => self.owe(|_| true, &everyone),
            (true, _) => {
                self.owe(|to| to != seat, &[seat.rank]);
                self.owe(|to| to == seat, &everyone);
                for connection in self.connections.values_mut() {
                    connection.owed.completes |= matches!(connection.role, Role::Rank(own) if own == seat);
                }
            }
            (false, false) => {}
        }
        Ok(())
    }

    /// Notes that holders are to be told about ranks. Who is still joining will be told everything when it has joined.
    fn owe(&mut self, to: impl Fn(Seat) -> bool, about: &[u32]) {
        let receivers: Vec<u64> = self
            .seats()
            .filter(|(_, seat)| to(*seat) && self.is_current(*seat) && !self.is_joining(*seat))
            .map(|(id, _)| id)
            .collect();
        for id in receivers {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.owed.roster.get_or_insert_default().extend(about);
            }
        }
    }

    /// Sends what is owed, as far as there is room.
    fn pay(&mut self) {
        let Some(roster) = &self.roster else { return };
        let mut closed = Vec::new();
        // If the master died in between, a rank that nobody else knows could not be watched by anybody.
        // Without memory all of them wait for the next look.
        let Ok(mut order) = memory::collect(self.connections.iter_mut()) else { return };
        order.sort_unstable_by_key(|(id, c)| (c.owed.completes, **id));
        let mut still_owed: BTreeSet<u32> = BTreeSet::new();
        for (id, connection) in order {
            let Role::Rank(seat) = connection.role else { continue };
            if connection.owed.completes && still_owed.contains(&seat.rank) {
                continue;
            }
            if roster.id() != seat.world_id || !roster.is_holder(seat.rank, seat.generation) {
                connection.owed = Owed::default();
                continue;
            }
            let sent = if connection.owed.welcome {
                let mut fds = vec![roster.control_ro(), roster.words_fd()];
                let inherited = roster.inheritance(seat.rank);
                fds.extend(inherited.map(|(_, fd)| fd));
                let adopt = inherited.map(|(desc, _)| desc.clone()).into_iter().collect();
                let Seat { world_id, rank, generation } = seat;
                let welcome = Message::Welcome(Welcome { world_id, rank, generation, adopt });
                tell(&connection.socket, &welcome, &fds)
            } else if let Some(about) = &connection.owed.roster {
                roster.roster(|rank| about.contains(&rank)).and_then(|(peers, fds)| {
                    let message = Message::PeerList(PeerList { world_id: seat.world_id, peers });
                    tell(&connection.socket, &message, &fds)
                })
            } else {
                continue;
            };
            match sent {
                Ok(Sent::Yes) => connection.owed = Owed::default(),
                Ok(Sent::Full) => {
                    if connection.owed.since.get_or_insert_with(Instant::now).elapsed() < HESITATION {
                        still_owed.extend(connection.owed.roster.iter().flatten());
                    }
                }
                Ok(Sent::Closed) => memory::push(&mut closed, (*id, "it closed".to_owned())).unwrap_or_default(),
                Err(error) => memory::push(&mut closed, (*id, error.to_string())).unwrap_or_default(),
            }
        }
        for (id, why) in closed {
            self.drop_connection(id, &why);
        }
    }

    fn reattach(&mut self, id: u64, reattach: Reattach, fds: Vec<OwnedFd>) -> Result<()> {
        self.params.check(&reattach.params)?;
        let Reattach { world_id, rank, generation, peers, .. } = reattach;
        let mut fds = fds.into_iter();
        let (Some(control), Some(words)) = (fds.next(), fds.next()) else {
            crate::bail!(NMC_ERR_PROTOCOL, "a survivor came without the world's memory");
        };
        let known: BTreeMap<u32, u64> = peers.iter().map(|p| (p.rank, p.generation)).collect();
        let slots = slots_of(peers, fds)?;
        let roster = match &mut self.roster {
            Some(roster) if roster.id() == world_id => roster,
            Some(_) => crate::bail!(
                NMC_ERR_EXISTS,
                "another world was formed under this name; destroy this one and join again"
            ),
            None => {
                let roster = Roster::adopt(&self.params, world_id, control, words, &self.locks)?;
                log::emit(log::INFO, || format!("master: took over world {world_id:x}"));
                self.roster.insert(roster)
            }
        };
        let news_from_it = roster.merge(rank, generation, slots)?;
        let generations = roster.generations().to_vec();
        let seat = Seat { world_id, rank, generation };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Rank(seat);
        }
        // The answer: what was taken anew while it had no master. And others learn what it knew alone.
        let news = |rank: &u32| generations.get(*rank as usize) > known.get(rank);
        let news_for_it: Vec<u32> = (0..self.params.world_size).filter(news).collect();
        self.owe(|to| to == seat, &news_for_it);
        if !news_from_it.is_empty() {
            self.owe(|to| to != seat, &news_from_it);
        }
        Ok(())
    }

    /// Tells everyone who waits for the world to form which ranks it waits for.
    fn tell_missing(&mut self, waiting: &[u64]) {
        let mut present = vec![false; self.params.world_size as usize];
        let mut automatic = 0;
        for connection in waiting.iter().filter_map(|id| self.connections.get(id)) {
            if let Role::Waiting { hello, .. } = &connection.role {
                match present.get_mut(usize::try_from(hello.rank).unwrap_or(usize::MAX)) {
                    Some(seat) => *seat = true,
                    None => automatic += 1,
                }
            }
        }
        let free = present.iter().zip(0u32..).filter(|(present, _)| !**present).map(|(_, rank)| rank);
        let missing: Vec<u32> = free.skip(automatic).collect();
        if missing == self.missing {
            return;
        }
        let waiting_for = Waiting { missing: missing.clone(), dying: vec![], living: vec![] };
        let Ok(packet) = Message::Waiting(waiting_for).encode() else { return };
        for connection in waiting.iter().filter_map(|id| self.connections.get(id)) {
            // Just news: who has no room for it does without.
            let _ = sys::send(connection.socket.as_fd(), &packet, &[]);
        }
        self.missing = missing;
    }

    fn reject(&mut self, id: u64, error: Error) {
        if let Some(connection) = self.connections.get(&id) {
            let _ = tell(&connection.socket, &Message::Reject(Reject::from(error.clone())), &[]);
        }
        self.drop_connection(id, &error.to_string());
    }

    fn drop_connection(&mut self, id: u64, why: &str) {
        self.missing.clear();
        self.living.clear();
        let Some(connection) = self.connections.remove(&id) else { return };
        let Role::Rank(seat) = connection.role else { return };
        log::emit(log::INFO, || format!("master: connection of rank {} ended: {why}", seat.rank));
        if self.is_current(seat)
            && let Some(roster) = &mut self.roster
        {
            roster.unseat_if_joining(seat.rank);
            if !roster.formed() && roster.is_empty() {
                self.roster = None;
            }
        }
    }
}

/// Sends a message. For want of memory it is as if there were no room: what is owed stays so.
fn tell(socket: &Link, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<Sent> {
    message.encode().map_or(Ok(Sent::Full), |packet| sys::send(socket.as_fd(), &packet, fds))
}

fn check_peer(socket: BorrowedFd<'_>) -> Result<()> {
    let (theirs, ours) = (sys::peer_uid(socket)?, sys::own_uid());
    if theirs != ours {
        return Err(Error::new(
            NMC_ERR_PERMISSION,
            format!("the world belongs to user {ours}, the peer runs as user {theirs}"),
        ));
    }
    Ok(())
}

/// The error for a rank that somebody holds.
pub fn taken(rank: impl std::fmt::Display, pid: u32) -> Error {
    Error::new(NMC_ERR_EXISTS, format!("rank {rank} is already taken by process {pid}"))
}

fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    let got = fds.len();
    <[OwnedFd; N]>::try_from(fds)
        .map_err(|_| Error::new(NMC_ERR_PROTOCOL, format!("a message came with {got} descriptors, not {N}")))
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
