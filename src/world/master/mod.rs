//! The master of a world: gives out ranks, makes the shared slabs, and passes descriptors around. It never waits for
//! anybody: what a rank has no room for is owed to it. After a restart it takes the world over from the first survivor that
//! hands it back. `rpc` does the talking; `admission` gives out ranks, and `news` tells ranks of each other.

mod admission;
mod board;
mod news;

use super::config::Config;
use super::dir::Lock;
use super::rank_locks::RankLocks;
use super::roster::Roster;
use super::wire::{Hello, Message, Params, SERVICE, Waiting};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_PROTOCOL;
use crate::base::{log, memory};
use crate::layout::MAX_RANKS;
use crate::mem::Heap;
use crate::rpc::packet::Service;
use crate::rpc::server::Id;
use crate::rpc::{self, Connection, Connections, Sent, Server};
use board::RankNote;
use news::Owed;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

pub use board::{Board, Verdict};

/// How often a waiting join looks whether a dying rank is gone.
const TICK_BUSY: Duration = Duration::from_millis(20);
const TICK_IDLE: Duration = Duration::from_millis(500);

/// A running master. Dropping it stops the thread and removes the socket.
pub struct Master {
    board: Arc<Board>,
    _server: Server,
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
        let locks = Arc::new(lock.rank_locks()?);
        let board = Arc::<Board>::default();
        let books = Books { _lock: lock, params, roster: None, board: Arc::clone(&board), locks };
        Ok(Self { board, _server: Server::start(c"nmc-master", cpu, listener, books)? })
    }

    /// What it knows about the ranks.
    #[must_use]
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
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
    /// Asks for a rank.
    Waiting { hello: Hello, pidfd: OwnedFd, life: OwnedFd },
    /// Has a rank, and is to be told something as soon as there is room.
    Rank(Seat, Owed),
}

/// Whoever has said what it wants.
struct Guest {
    role: Role,
    /// What it knows to be waiting for.
    told: Waiting,
}

impl Guest {
    fn new(role: Role) -> Self {
        Self { role, told: Waiting::NOTHING }
    }

    fn seat(&self) -> Option<Seat> {
        match self.role {
            Role::Rank(seat, _) => Some(seat),
            Role::Waiting { .. } => None,
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.role, Role::Waiting { .. })
    }
}

type Guests = Connections<Guest>;

/// What the master's thread knows.
struct Books {
    /// The right to be the master.
    _lock: Lock,
    params: Params,
    roster: Option<Roster>,
    board: Arc<Board>,
    locks: Arc<RankLocks>,
}

impl rpc::Handler for Books {
    type Peer = Guest;
    const SERVICE: Service = SERVICE;
    const MAX_CONNECTIONS: usize = 4 * MAX_RANKS;

    fn received(&mut self, guests: &mut Guests, from: Id, packet: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        match (guests.peer(from).map(|guest| &guest.role), Message::decode(packet)?) {
            (None, Message::Hello(hello)) => {
                let [pidfd, life]: [OwnedFd; 2] = exactly(fds)?;
                self.params.check(&hello.params)?;
                guests.introduce(from, Guest::new(Role::Waiting { hello, pidfd, life }));
                self.check_rivals(guests, from)
            }
            (None, Message::Reattach(reattach)) => self.reattach(guests, from, reattach, fds),
            (Some(Role::Rank(seat, _)), Message::Offer(offer)) => {
                let seat = *seat;
                self.offer(guests, seat, offer, fds)
            }
            (_, other) => crate::bail!(NMC_ERR_PROTOCOL, "unexpected message {}", other.name()),
        }
    }

    fn closed(&mut self, guest: Option<Guest>, why: &str) {
        let Some(seat) = guest.and_then(|guest| guest.seat()) else { return };
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

    fn tick(&mut self, guests: &mut Guests, _: bool) -> Duration {
        self.drop_dead(guests);
        self.show();
        if self.roster.as_mut().is_some_and(Roster::is_over) {
            log::emit(log::INFO, || "master: all ranks are gone, the next join forms a new world".into());
            self.board.end(self.roster.take().map_or(0, |roster| roster.id()));
        }
        self.admit(guests);
        self.tell_unready(guests);
        self.pay(guests);
        if self.is_busy(guests) { TICK_BUSY } else { TICK_IDLE }
    }
}

impl Books {
    fn show(&mut self) {
        let Some(roster) = &mut self.roster else { return };
        let notes = (0..self.params.world_size).map(|rank| RankNote {
            generation: roster.newest(rank),
            free: roster.state(rank).free(),
            heap: roster.heap_of(rank),
        });
        let notes = notes.collect();
        if self.board.wants_heaps() {
            for (rank, desc, fd) in roster.shared_heaps() {
                // One that cannot be mapped is tried again the next time.
                let open = || Heap::open_descriptor(desc, fd.try_clone_to_owned().ok()?, None).ok();
                self.board.show_heap(roster.id(), rank, desc.id, open);
            }
        }
        self.board.show(roster.id(), notes);
    }

    /// Whether something is to be done that no descriptor announces.
    fn is_busy(&self, guests: &Guests) -> bool {
        guests.peers().any(|(_, guest)| match &guest.role {
            Role::Rank(seat, owed) => !owed.is_nothing() || self.is_joining(*seat),
            Role::Waiting { .. } => true,
        })
    }

    fn is_current(&self, seat: Seat) -> bool {
        self.roster.as_ref().is_some_and(|r| r.id() == seat.world_id && r.is_holder(seat.rank, seat.generation))
    }

    fn is_joining(&self, seat: Seat) -> bool {
        self.is_current(seat) && self.roster.as_ref().is_some_and(|r| r.is_joining(seat.rank))
    }

    /// Drops who died while joining: a forked child may keep its socket open.
    fn drop_dead(&mut self, guests: &mut Guests) {
        let died = |guest: &Guest| match &guest.role {
            Role::Waiting { pidfd, .. } => rpc::ready(pidfd.as_fd()),
            Role::Rank(seat, _) => {
                self.is_joining(*seat) && self.roster.as_ref().is_some_and(|r| r.joiner_died(seat.rank))
            }
        };
        let dead = memory::collect(guests.peers().filter(|(_, guest)| died(guest)).map(|(id, _)| id));
        // Without memory they are dropped when it is looked at the next time.
        for id in dead.unwrap_or_default() {
            self.drop_guest(guests, id, "it died");
        }
    }

    fn drop_guest(&mut self, guests: &mut Guests, id: Id, why: &str) {
        let guest = guests.close(id);
        rpc::Handler::closed(self, guest, why);
    }

    fn reject(&mut self, guests: &mut Guests, id: Id, error: &Error) {
        if let Some(connection) = guests.get_mut(id) {
            connection.mention(&SERVICE.refusal(error));
        }
        self.drop_guest(guests, id, &error.message);
    }
}

/// Sends a message that its receiver must get. For want of memory it is as if there were no room: what is owed stays so.
fn tell(to: &mut Connection<Guest>, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<Sent> {
    match message.encode() {
        Ok(packet) => to.send(&packet, fds),
        Err(_) => {
            to.lacks_room();
            Ok(Sent::Full)
        }
    }
}

fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    let got = fds.len();
    <[OwnedFd; N]>::try_from(fds)
        .map_err(|_| Error::new(NMC_ERR_PROTOCOL, format!("a message came with {got} descriptors, not {N}")))
}
