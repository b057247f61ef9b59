//! How a process becomes a rank: find the master (or become it), ask, map the slabs, offer a heap, receive the
//! peers. If the master dies in between, it starts over; whatever happens, it returns by the deadline.

use super::config::{Config, Hosting};
use super::dir::Place;
use super::master::Master;
use super::rank_locks::RankLocks;
use super::roster::{Slot, slots_of};
use super::sys;
use super::wire::{Hello, Holder, Message, Offer, SERVICE, Waiting, Welcome};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_PROTOCOL, NMC_ERR_TIMEOUT};
use crate::cuda::Device;
use crate::layout::world::{Control, Farewell, Words, control_bytes, words_bytes};
use crate::mem::{Heap, Slab};
use crate::rpc::{self, Link, MAX_PACKET, Sent, caller};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A rank that has been given to this process.
pub struct Seat {
    pub rank: u32,
    pub generation: u64,
    pub world_id: u64,
    pub control: Slab,
    pub words: Arc<Slab>,
    /// Writing end of the life pipe.
    pub life: OwnedFd,
    /// With the byte of the rank locked.
    pub locks: RankLocks,
}

impl Seat {
    /// Stores the rank's last word.
    pub fn farewell(&self, words_per_rank: u32, what: Farewell) {
        Words::new(self.words.region(), words_per_rank).say_farewell(self.rank, self.generation, what);
    }
}

/// Everything that joining yields.
pub struct Joined {
    pub seat: Seat,
    pub socket: Link,
    pub heap: Arc<Heap>,
    pub peers: Peers,
    pub master: Option<Master>,
}

/// How often a waiting join looks whether it should give up.
const GLANCE: Duration = Duration::from_millis(100);

/// Why one attempt did not succeed.
enum Setback {
    /// Nobody serves, or the master went away: try again.
    NoMaster,
    /// Joining failed for good.
    Failed(Error),
}

impl From<Error> for Setback {
    fn from(error: Error) -> Self {
        Setback::Failed(error)
    }
}

/// Joins the world of `config`; see the module. Who fails leaves nothing behind.
pub fn join(config: &mut Config, device: Option<&Arc<Device>>) -> Result<Joined> {
    config.check()?;
    let place = config.place();
    let mut master = None;
    let joined = meet(config, device, &place, &mut master);
    if joined.is_err() {
        drop(master.take());
        // A master that has ended meanwhile left the directory to whoever was about to be a rank.
        place.sweep();
    }
    let (seat, socket, heap, peers) = joined?;
    Ok(Joined { seat, socket, heap, peers, master })
}

fn meet(
    config: &mut Config,
    device: Option<&Arc<Device>>,
    place: &Place,
    master: &mut Option<Master>,
) -> Result<Success> {
    let mut lent = config.import.take().map(|import| Heap::lend(import, config.heap_bytes, device)).transpose()?;
    let holder = Holder {
        pid: std::process::id(),
        start_time: sys::own_start_time(),
        device_rank: config.device_rank.map_or(-1, u32::cast_signed),
        device: device.map_or(-1, |d| d.ordinal()),
        device_uuid: device.map_or([0; 16], |d| d.uuid()),
        drain_ms: if device.is_some() { config.drain_ms } else { 0 },
        lent: lent.is_some(),
    };
    let may_host = config.hosting == Hosting::Rank0 && config.rank.unwrap_or(0) == 0;
    let mut waited_for = WaitedFor { what: Waiting::NOTHING, connected: false, given: None };
    let mut buffer = memory::zeroed(MAX_PACKET)?;
    let mut pause = Duration::from_millis(1);
    loop {
        if may_host
            && master.is_none()
            && let Some(lock) = place.try_lock()?
        {
            *master = Some(Master::start(lock, config.params(), config.service_cpu)?);
        }
        place.check()?;
        let mut attempt = Attempt { config, device, holder: &holder, waited_for: &mut waited_for, buffer: &mut buffer };
        match attempt.run(&place.socket(), &mut lent) {
            Ok(joined) => return Ok(joined),
            Err(Setback::Failed(error)) => return Err(error.context(format!("joining world {:?}", config.name))),
            Err(Setback::NoMaster) => {}
        }
        if config.gives_up() {
            return Err(timeout(config, &waited_for, master.is_some()));
        }
        std::thread::sleep(pause.min(config.deadline.left()));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn timeout(config: &Config, waited_for: &WaitedFor, hosts: bool) -> Error {
    let Waiting { missing, unready, dying, living } = &waited_for.what;
    let (size, least) = (config.world_size, config.params().min_ranks);
    let why = if !missing.is_empty() && least < size {
        format!("ranks {missing:?} of {size} did not come, and {least} are needed")
    } else if !missing.is_empty() {
        format!("ranks {missing:?} of {size} did not come")
    } else if !unready.is_empty() {
        format!("ranks {unready:?} of {size} came, but have no heap yet")
    } else if let Some(rank) = dying.first() {
        format!("something of the former holder of rank {rank} is left: a forked child, or work on a GPU")
    } else if !living.is_empty() {
        format!("ranks {living:?} of the former world live, and have not reported to its new master yet")
    } else if let Some(rank) = waited_for.given {
        format!("the master gave rank {rank} to this process, and has not told it who the others are")
    } else if hosts || waited_for.connected {
        "the master has not answered".into()
    } else {
        let who = if config.hosting == Hosting::Rank0 { "rank 0" } else { "the master process" };
        format!("nobody serves {}; is {who} running?", config.place().where_it_is())
    };
    Error::new(NMC_ERR_TIMEOUT, format!("joining world {:?}: the deadline passed: {why}", config.name))
}

/// What a join was waiting for, for the message when time is over.
struct WaitedFor {
    what: Waiting,
    /// There was a connection to the master.
    connected: bool,
    /// The rank that the master gave.
    given: Option<u32>,
}

struct Attempt<'a> {
    config: &'a Config,
    device: Option<&'a Arc<Device>>,
    holder: &'a Holder,
    waited_for: &'a mut WaitedFor,
    buffer: &'a mut Vec<u8>,
}

type Try<T> = std::result::Result<T, Setback>;
type Peers = Vec<(u32, Slot)>;
type Success = (Seat, Link, Arc<Heap>, Peers);

impl Attempt<'_> {
    fn run(&mut self, path: &std::path::Path, lent: &mut Option<Heap>) -> Try<Success> {
        let Some(mut socket) = caller::connect(path, &SERVICE)? else { return Err(Setback::NoMaster) };
        self.waited_for.connected = true;
        let (life_end, life) = sys::life_pipe()?;
        let pidfd = sys::own_pidfd()?;
        let hello = Hello {
            params: self.config.params(),
            rank: self.config.rank.map_or(-1, u32::cast_signed),
            holder: self.holder.clone(),
        };
        say(&mut socket, &Message::Hello(hello), &[pidfd.as_fd(), life_end.as_fd()])?;
        drop((life_end, pidfd));
        let (welcome, fds) = match self.next(&mut socket)? {
            (Message::Welcome(welcome), fds) => (welcome, fds),
            (other, _) => return Err(unexpected(&other).into()),
        };
        let mut fds = fds.into_iter();
        self.waited_for.given = Some(welcome.rank);
        let seat = self.sit(&welcome, &mut fds, life)?;
        let taken = self.settle(&mut socket, &welcome, &mut fds, lent);
        match taken {
            Ok((heap, peers)) => Ok((seat, socket, heap, peers)),
            Err(setback) => {
                // Others may have been told of us already: say that nothing of ours will ever write.
                seat.farewell(self.config.words_per_rank, Farewell::Aborted);
                Err(setback)
            }
        }
    }

    /// Maps the slabs and checks that they are those of this world.
    fn sit(&self, welcome: &Welcome, fds: &mut impl Iterator<Item = OwnedFd>, life: OwnedFd) -> Try<Seat> {
        let (Some(control), Some(words)) = (fds.next(), fds.next()) else {
            return Err(Error::new(NMC_ERR_PROTOCOL, "the master sent no memory").into());
        };
        let (size, words_per_rank) = (self.config.world_size, self.config.words_per_rank);
        let control = Slab::open(control, control_bytes(size), false)?;
        let words = Slab::open(words, words_bytes(size, words_per_rank), true)?;
        if !Control::new(control.region()).is_of(welcome.world_id) || welcome.rank >= size {
            let text = format!("the memory that the master sent is not that of world {:x}", welcome.world_id);
            return Err(Error::new(NMC_ERR_PROTOCOL, text).into());
        }
        let Welcome { world_id, rank, generation, .. } = *welcome;
        // The master has ended meanwhile, and removed the directory.
        let locks = RankLocks::open(&self.config.place().rank_locks())?.ok_or(Setback::NoMaster)?;
        locks.hold(rank, &self.config.deadline)?;
        Ok(Seat { rank, generation, world_id, control, words: Arc::new(words), life, locks })
    }

    fn settle(
        &mut self,
        socket: &mut Link,
        welcome: &Welcome,
        fds: &mut impl Iterator<Item = OwnedFd>,
        lent: &mut Option<Heap>,
    ) -> Try<(Arc<Heap>, Peers)> {
        let heap = match (lent.take(), welcome.adopt.first()) {
            (Some(heap), _) => heap,
            (None, Some(former)) => {
                let missing = || Error::new(NMC_ERR_PROTOCOL, "the former heap came without its descriptor");
                let heap = Heap::open_descriptor(former, fds.next().ok_or_else(missing)?, self.device)?;
                if heap.bytes() != self.config.heap_bytes {
                    return Err(Error::new(NMC_ERR_PROTOCOL, "the former heap has another size").into());
                }
                heap
            }
            (None, None) => {
                let c = self.config;
                Heap::create(c.heap_kind, c.heap_bytes, c.huge_pages, self.device, &c.deadline)?
            }
        };
        if self.config.populate {
            heap.populate(|| !self.config.gives_up())?;
        }
        let offer = Offer { heap: heap.desc().clone() };
        let sent = say(socket, &Message::Offer(offer), &heap.fd().into_iter().collect::<Vec<_>>());
        let own = (welcome.rank, welcome.generation);
        let roster = match sent.and_then(|()| self.roster(socket, welcome.world_id, own)) {
            Err(Setback::NoMaster) if self.holder.lent => {
                // Keep the engine's memory for the next attempt.
                *lent = Some(heap);
                return Err(Setback::NoMaster);
            }
            other => other?,
        };
        Ok((Arc::new(heap), roster))
    }

    /// Waits for the roster that completes the join: the one that has us in it.
    fn roster(&mut self, socket: &mut Link, world_id: u64, own: (u32, u64)) -> Try<Peers> {
        loop {
            match self.next(socket)? {
                (Message::PeerList(list), fds) => {
                    let complete = list.peers.iter().any(|p| (p.rank, p.generation) == own);
                    if complete && list.world_id == world_id {
                        return Ok(slots_of(list.peers, fds.into_iter())?);
                    }
                }
                (other, _) => return Err(unexpected(&other).into()),
            }
        }
    }

    /// The next message that is not just news about who is missing.
    fn next(&mut self, socket: &mut Link) -> Try<(Message, Vec<OwnedFd>)> {
        loop {
            match self.hear(socket)? {
                None => return Err(Setback::NoMaster),
                Some((Message::Waiting(waiting), _)) => self.waited_for.what = waiting,
                Some((Message::Refusal(refusal), _)) => return Err(Error::from(refusal).into()),
                Some(other) => {
                    self.waited_for.what = Waiting::NOTHING;
                    return Ok(other);
                }
            }
        }
    }

    /// Waits for a message; `None` when the other end closed or the deadline passed.
    fn hear(&mut self, socket: &mut Link) -> Result<Option<(Message, Vec<OwnedFd>)>> {
        let wait = |socket: &Link| {
            let goes_on = !self.config.gives_up();
            if goes_on {
                rpc::poll(&[socket.as_fd()], self.config.deadline.left().min(GLANCE));
            }
            goes_on
        };
        let Some((len, fds)) = caller::next(socket, self.buffer, wait)? else { return Ok(None) };
        Ok(Some((Message::decode(&self.buffer[..len])?, fds)))
    }
}

fn say(socket: &mut Link, message: &Message, fds: &[std::os::fd::BorrowedFd<'_>]) -> Try<()> {
    match socket.send(&message.encode()?, fds)? {
        // What a master said before it closed is still to be read, and ends with the end of the connection.
        Sent::Yes | Sent::Closed => Ok(()),
        Sent::Full => Err(Setback::NoMaster),
    }
}

fn unexpected(message: &Message) -> Error {
    Error::new(NMC_ERR_PROTOCOL, format!("the master sent {} out of turn", message.name()))
}
