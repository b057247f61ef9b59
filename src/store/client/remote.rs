//! A client's connection to a master in another process. Calls go out one at a time and have a deadline; a call that
//! failed half-way closes the connection, and a thread opens the next one, handing over the store's memory and naming
//! the plans that are still open, so that a new master and an old one know the same. Calls of others wait for that.

use super::plans::Plans;
use super::wait::Interrupt;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_NO_MEMORY, NMC_ERR_PROTOCOL, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
};
use crate::layout::store::DISK_EXPECTED;
use crate::layout::store::Params;
use crate::rpc::caller::{self, Answer, LinkEnd};
use crate::rpc::{self, Event, Link, Sent};
use crate::store::disk::{DiskAccess, DiskMap, DiskSeat, make_reader};
use crate::store::map::Map;
use crate::store::types::{ClientId, Role};
use crate::store::wire::{Hello, Item, MAX_PACKET, Request, SERVICE, decode_reply};
use crate::sync::service_thread;
use crate::world::Membership;
use crate::world::dir::Place;
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest list of open plans that is named to a master.
const MAX_KEPT: usize = 4096;
/// How often a call that waits looks whether it is to give up.
const LOOK: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_millis(20);
const RETRY_REFUSED: Duration = Duration::from_secs(1);
/// How long a master may take to answer an introduction; rebuilding a large store takes a while.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a call that is to give up still waits for its answer: with it, it is known what was done.
const GRACE: Duration = Duration::from_millis(250);
/// How often a call looks whether the next connection is there.
const RENEWAL: Duration = Duration::from_millis(1);
/// How long the master may take to hand out the disk.
const DISK: Duration = Duration::from_secs(1);
/// How often the thread looks whether the store has another disk.
const LOOK_FOR_DISK: Duration = Duration::from_millis(100);
/// How long a client that leaves waits for the master to say goodbye. It hears of it anyway, later.
const FAREWELL: Duration = Duration::from_millis(500);

/// Room for a call and for its answer, made before anything that may be refused.
pub struct Buffers {
    packet: Vec<u8>,
    buffer: Vec<u8>,
}

impl Buffers {
    /// Room for the longest.
    pub fn new() -> Result<Self> {
        Ok(Self { packet: memory::with_capacity(MAX_PACKET)?, buffer: memory::zeroed(MAX_PACKET)? })
    }
}

struct Wire {
    link: Option<Link>,
    /// There is none because this side has closed it: the next one is on its way.
    renewing: bool,
    buffers: Buffers,
}

struct Inner {
    wire: Mutex<Wire>,
    place: Place,
    member: Membership,
    role: Role,
    map: Arc<Map>,
    client: ClientId,
    plans: Arc<Plans>,
    /// What the client has of the disk below the store.
    disk: Arc<DiskSeat>,
    /// Wakes the thread: the connection is lost, or the end has come.
    nudge: Event,
    stop: AtomicBool,
    /// The master is to hear again which plans are open.
    renew: AtomicBool,
    /// It has not heard of all of them, since there were too many, and ended none.
    cut: AtomicBool,
    /// The master refused this client for good.
    refused: Mutex<Option<Error>>,
    /// There is a master, but it has no memory to begin with.
    no_memory: Mutex<Option<Error>>,
    is_refused: AtomicBool,
}

/// See the module.
pub struct Remote {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
    call_limit: Duration,
}

/// Introduces a client that is new; `None` when nobody serves.
pub fn attach(
    place: &Place,
    (member, role): (&Membership, Role),
    params: &Params,
    expected: impl Fn() -> u64,
    deadline: &Deadline,
    buffers: &mut Buffers,
) -> Result<Option<(Link, ClientId, Map)>> {
    // After the connection is there: whoever serves has the lock, so a master before it is dead, and all its clients have
    // named their store by now.
    let hello = || Ok(introduction((member, role), params, expected(), None));
    let patience = Deadline::after(ANSWER.min(deadline.left()));
    let wait = |link: &Link| {
        rpc::poll(&[link.as_fd()], LOOK.min(patience.left()));
        !patience.passed() && member.check_present().is_ok()
    };
    let Some((mut link, items, fds)) = introduce(place, member, hello, None, buffers, &wait)? else { return Ok(None) };
    let [number, store_id, generation] = first(items)?;
    let mut fds = fds.into_iter();
    let (Some(control), Some(words)) = (fds.next(), fds.next()) else {
        crate::bail!(NMC_ERR_PROTOCOL, "the store's master sent no memory");
    };
    let map = Map::open(params, store_id, control, words)?;
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    // Named while the master lives that entered us, or not used at all: the next master begins with empty heaps if it finds
    // nobody's name, and must not do so under a client of this store. The agent's client ends before the program's, which names it.
    let names = role == Role::Program;
    if names {
        member.set_store(store_id);
    }
    if !confirmed(&mut link, buffers, wait) {
        if names {
            member.set_store(0);
        }
        return Ok(None);
    }
    Ok(Some((link, ClientId { number, generation }, map)))
}

/// Whether the master at the other end still answers.
fn confirmed(link: &mut Link, buffers: &mut Buffers, wait: impl Fn(&Link) -> bool) -> bool {
    Request::Confirm.encode(&mut buffers.packet);
    if link.send(&buffers.packet, &[]) != Ok(Sent::Yes) {
        return false;
    }
    match caller::next(link, &mut buffers.buffer, wait) {
        Ok(Some((len, _))) => decode_reply(&buffers.buffer[..len], Vec::new()).and_then(first).is_ok(),
        _ => false,
    }
}

fn introduction(
    (member, role): (&Membership, Role),
    params: &Params,
    store_id: u64,
    held: Option<(ClientId, [u64; 2], Vec<u64>)>,
) -> Hello {
    let (pid, start_time, drain_ms) = member.process();
    let holds = held.is_some();
    let nobody = ClientId { number: u32::MAX, generation: 0 };
    let (client, seed, mut kept) = held.unwrap_or((nobody, [0; 2], Vec::new()));
    let kept_all = kept.len() <= MAX_KEPT;
    kept.truncate(MAX_KEPT);
    Hello {
        world_id: member.world_id(),
        store_id,
        holds,
        client: client.number,
        client_generation: client.generation,
        pid,
        start_time,
        rank: member.rank(),
        rank_generation: member.generation(),
        role: role.code(),
        drain_ms,
        heaps: member.heaps().iter().flat_map(|heap| [heap.generation, heap.id]).collect(),
        seed: seed.to_vec(),
        params: params.words().to_vec(),
        kept_all,
        kept,
    }
}

type Met = (Link, Vec<Item>, Vec<std::os::fd::OwnedFd>);

/// Says hello; `wait` sleeps until there may be an answer, and tells whether to go on.
fn introduce(
    place: &Place,
    member: &Membership,
    hello: impl FnOnce() -> Result<Hello>,
    map: Option<&Map>,
    buffers: &mut Buffers,
    wait: &impl Fn(&Link) -> bool,
) -> Result<Option<Met>> {
    place.check()?;
    let Some(mut link) = caller::connect(&place.socket(), &SERVICE)? else { return Ok(None) };
    let (pidfd, life) = member.signs_of_life()?;
    let memory = map.map(Map::client_fds).transpose()?;
    let mut fds: Vec<BorrowedFd<'_>> = vec![pidfd.as_fd(), life.as_fd()];
    if let Some((control, words)) = &memory {
        fds.extend([control.as_fd(), words.as_fd()]);
    }
    Request::Hello(hello()?).encode(&mut buffers.packet);
    if link.send(&buffers.packet, &fds)? != Sent::Yes {
        return Ok(None);
    }
    let Some((len, fds)) = caller::next(&mut link, &mut buffers.buffer, wait)? else { return Ok(None) };
    Ok(Some((link, decode_reply(&buffers.buffer[..len], Vec::new())?, fds)))
}

/// What a read says that needs a disk which the master has not handed out.
#[cold]
pub(super) fn no_disk_yet(limit: Duration) -> Error {
    let ms = limit.as_millis();
    let text =
        format!("the owner of the store's tier has not answered for {ms} ms: what is on disk cannot be read yet");
    Error::new(NMC_ERR_UNAVAILABLE, text)
}

#[cold]
pub(super) fn silent_for(limit: Duration) -> Error {
    Error::new(NMC_ERR_TIMEOUT, format!("the store's master has not answered for {} ms", limit.as_millis()))
}

fn first(items: Vec<Item>) -> Result<[u64; 3]> {
    match items.into_iter().next() {
        Some(item) => item.result(),
        None => Err(Error::new(NMC_ERR_PROTOCOL, "the store's master sent an empty answer")),
    }
}

impl Remote {
    /// Goes on with the connection that [`attach`] gave.
    #[allow(clippy::too_many_arguments, reason = "what a connection needs")]
    pub fn new(
        link: Link,
        buffers: Buffers,
        place: Place,
        (member, role): (Membership, Role),
        map: Arc<Map>,
        client: ClientId,
        (plans, disk): (Arc<Plans>, Arc<DiskSeat>),
        call_limit: Duration,
    ) -> Result<Self> {
        let cpu = member.service_cpu();
        let wire = Wire { link: Some(link), renewing: false, buffers };
        let inner = Arc::new(Inner {
            wire: Mutex::new(wire),
            place,
            member,
            role,
            map,
            client,
            plans,
            disk,
            nudge: Event::new()?,
            stop: AtomicBool::new(false),
            renew: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            refused: Mutex::new(None),
            no_memory: Mutex::new(None),
            is_refused: AtomicBool::new(false),
        });
        let keeping = Arc::clone(&inner);
        let thread = service_thread::spawn(c"nmc-store-link", cpu, move || {
            service_thread::persist("the store's link", || keeping.keep_connected());
        })?;
        Ok(Self { inner, thread: Some(thread), call_limit })
    }

    /// Calls the master and waits for its answer, unless `interrupt` ends the wait. `heard` runs before the next call or
    /// reconnection can: what it notes about the answer is known to whoever hands the store to a new master.
    pub fn call(
        &self,
        request: &Request<'_>,
        interrupt: &Interrupt<'_>,
        heard: impl FnOnce(&[Item]),
    ) -> Result<Vec<Item>> {
        interrupt.check_answers()?;
        interrupt.note(self.call_within(self.call_limit, request, || interrupt.check(), heard))
    }

    /// The same, for `limit` at most.
    pub fn call_soon(&self, limit: Duration, request: &Request<'_>, interrupt: &Interrupt<'_>) -> Result<Vec<Item>> {
        interrupt.check_answers()?;
        interrupt.note(self.call_within(limit.min(self.call_limit), request, || interrupt.check(), |_| ()))
    }

    fn call_within(
        &self,
        limit: Duration,
        request: &Request<'_>,
        go_on: impl Fn() -> Result<()>,
        heard: impl FnOnce(&[Item]),
    ) -> Result<Vec<Item>> {
        let inner = &*self.inner;
        let deadline = Deadline::after(limit);
        let Some(mut wire) = inner.lock_within(limit, &go_on)? else { return Err(silent_for(limit)) };
        let Wire { link, renewing, buffers: Buffers { packet, buffer } } = &mut *wire;
        let Some(open) = link.as_mut() else { return Err(inner.why_away()) };
        let room = memory::with_capacity(request.items().max(1))?;
        request.encode(packet);
        let grace = Cell::new(None);
        let go_on = || {
            go_on().or_else(|error| {
                let over = grace.get().unwrap_or_else(|| Instant::now() + GRACE);
                grace.set(Some(over));
                if Instant::now() < over { Ok(()) } else { Err(error) }
            })
        };
        let called = caller::call(open, packet, buffer, &deadline, go_on);
        let by_us = !matches!(called, Ok(Answer::End));
        let failure = match called {
            Ok(Answer::Packet(len)) => match decode_reply(&buffer[..len], room) {
                Ok(items) => {
                    heard(&items);
                    return Ok(items);
                }
                // Only of a text that was asked for: it can be asked for again.
                Err(error) if error.status == NMC_ERR_NO_MEMORY => return Err(error),
                Err(error) => error,
            },
            Ok(Answer::Late) => silent_for(limit),
            Ok(Answer::End) => inner.why_away(),
            Err(error) => error,
        };
        // What comes on this connection now may be the answer to another call.
        (*link, *renewing) = (None, by_us);
        inner.nudge.signal();
        Err(failure)
    }

    /// Gets the disk below the store, if there is one, before somebody reads: until `deadline`, and not for long. If it does not
    /// come, the thread gets it later.
    pub fn get_disk(&self, deadline: &Deadline) {
        if !deadline.passed() {
            self.inner.look_for_disk(DISK.min(deadline.left()));
        }
    }

    /// Has the thread ask the master for the disk now. Does not wait.
    pub fn ask_for_disk(&self) {
        self.inner.nudge.signal();
    }

    /// Fails if it is known that there is no master to wait for.
    pub fn check_up(&self) -> Result<()> {
        let wire = self.inner.wire.try_lock();
        let away = wire.as_ref().is_some_and(|wire| wire.link.is_none() && !wire.renewing);
        drop(wire);
        if away { Err(self.inner.why_away()) } else { Ok(()) }
    }

    /// Has the master told soon which plans are open, since it may not have heard that one is not. Does not wait.
    pub fn renew(&self) {
        self.inner.renew.store(true, SeqCst);
        self.inner.nudge.signal();
    }

    /// Whether the master refused this client for good.
    #[inline(always)]
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.inner.is_refused.load(Relaxed)
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.inner.wire.try_lock().is_none_or(|wire| wire.link.is_some() || wire.renewing)
    }

    /// Leaves in order, soon also if the master does not answer.
    pub fn detach(&self) {
        self.stop();
        let _ = self.call_within(FAREWELL.min(self.call_limit), &Request::Detach, || Ok(()), |_| ());
        self.inner.wire.lock().link = None;
    }

    fn stop(&self) {
        self.inner.stop.store(true, SeqCst);
        self.inner.nudge.signal();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// The connection, when no other call has it and none is being made in the place of one that this side has closed; `None`
    /// after `limit`.
    fn lock_within(&self, limit: Duration, go_on: impl Fn() -> Result<()>) -> Result<Option<MutexGuard<'_, Wire>>> {
        let deadline = Deadline::after(limit);
        loop {
            match self.wire.try_lock_for(LOOK.min(deadline.left())) {
                Some(wire) if wire.link.is_none() && wire.renewing && !self.stopped() => {
                    drop(wire);
                    std::thread::sleep(RENEWAL.min(deadline.left()));
                }
                Some(wire) => return Ok(Some(wire)),
                None => {}
            }
            if deadline.passed() {
                return Ok(None);
            }
            go_on()?;
        }
    }

    fn fetch_disk(&self, id: u64, limit: Duration) -> Result<()> {
        // Not the next connection is waited for, which this thread may be the one to make.
        let Some(mut wire) = self.wire.try_lock_for(limit) else { return Err(no_disk_yet(limit)) };
        if self.disk.id() == id {
            return Ok(());
        }
        let Wire { link, renewing, buffers: Buffers { packet, buffer } } = &mut *wire;
        // Whoever reads sees by itself that there is no master.
        let Some(open) = link.as_mut() else { return Ok(()) };
        Request::Reach.encode(packet);
        let deadline = Deadline::after(limit);
        let wait = |link: &Link| {
            rpc::poll(&[link.as_fd()], LOOK.min(deadline.left()));
            !deadline.passed() && !self.stopped()
        };
        let answer = match open.send(packet, &[]) {
            Ok(Sent::Yes) => caller::next(open, buffer, wait),
            Ok(Sent::Full | Sent::Closed) => Ok(None),
            Err(error) => Err(error),
        };
        let Ok(Some((len, fds))) = answer else {
            // What comes on this connection now may be the answer to another call.
            (*link, *renewing) = (None, true);
            self.nudge.signal();
            return Err(answer.err().unwrap_or_else(|| no_disk_yet(limit)));
        };
        let [id, entries, flags] = first(decode_reply(&buffer[..len], Vec::new())?)?;
        let mut fds = fds.into_iter();
        let (Some(index), Some(heat), Some(directory)) = (fds.next(), fds.next(), fds.next()) else {
            crate::bail!(NMC_ERR_PROTOCOL, "the store's master sent no disk");
        };
        let map = Arc::new(DiskMap::open(id, entries, index, heat)?);
        self.disk.set(DiskAccess { map, reader: make_reader(directory, flags)? });
        Ok(())
    }

    /// Gets the disk below the store before it is needed: it can be read when the master is gone. Reads wait for that, not for the
    /// master: one that gives up leaves the connection to the others.
    fn look_for_disk(&self, limit: Duration) {
        let id = self.map.view().header().disk.load(Acquire);
        if id == 0 || id == DISK_EXPECTED {
            // Nothing of a tier that was closed is kept open.
            self.disk.clear();
        }
        if id != 0 && id != DISK_EXPECTED && self.disk.id() != id {
            // If it fails: the next time.
            if let Err(error) = self.fetch_disk(id, limit) {
                self.disk.refuse(id, error);
            }
        }
        self.disk.announce();
    }

    #[cold]
    fn why_away(&self) -> Error {
        if self.member.has_departed() {
            return Error::new(NMC_ERR_CANCELLED, "the rank has left or aborted");
        }
        self.refused.lock().clone().or_else(|| self.no_memory.lock().clone()).unwrap_or_else(|| {
            Error::new(
                NMC_ERR_UNAVAILABLE,
                "the master of the store is away; reads go on, writes can be repeated when it is back",
            )
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    fn keep_connected(&self) {
        while !self.stopped() {
            let cut = self.cut.load(Relaxed) && self.plans.len() <= MAX_KEPT;
            let end = self.wire.lock().link.as_ref().and_then(Link::end);
            // What is told to the next connection is newer than what asked for it.
            match end {
                Some(end) if !self.renew.swap(false, SeqCst) && !cut => {
                    self.look_for_disk(DISK);
                    self.watch(&end);
                }
                _ => self.reconnect(),
            }
        }
    }

    /// Sleeps until the connection ends. Answers to calls are not looked at: only the end of the connection counts.
    fn watch(&self, end: &LinkEnd) {
        if end.wait(self.nudge.as_fd(), LOOK_FOR_DISK) {
            let mut wire = self.wire.lock();
            // A call may have replaced it meanwhile.
            if wire.link.as_ref().is_some_and(Link::has_ended) {
                wire.link = None;
            }
        }
        self.nudge.drain();
    }

    /// Opens a connection. One that is there serves until the next one does: the master closes it then.
    fn reconnect(&self) {
        // The lock is held, so that no call begins a plan that is not in the list.
        let mut wire = self.wire.lock();
        wire.renewing = false;
        let again = wire.link.is_some();
        if self.refused.lock().is_some() || self.member.has_departed() {
            drop(wire);
            rpc::poll(&[self.nudge.as_fd()], RETRY_REFUSED);
            return self.nudge.drain();
        }
        // Whoever rang did so before the lock was ours. It may have been the end already.
        self.nudge.drain();
        if self.stopped() {
            return;
        }
        let patience = Deadline::after(ANSWER);
        let wait = |link: &Link| {
            if !self.stopped() {
                rpc::poll(&[link.as_fd(), self.nudge.as_fd()], patience.left());
                // It need not be the end: what else is rung for is looked at when the connection is there.
                self.nudge.drain();
            }
            !patience.passed() && !self.stopped()
        };
        let hello = || {
            let epochs = self.plans.epochs()?;
            self.cut.store(epochs.len() > MAX_KEPT, Relaxed);
            let held = Some((self.client, self.map.seed(), epochs));
            Ok(introduction((&self.member, self.role), self.map.params(), self.map.store_id(), held))
        };
        let outcome = introduce(&self.place, &self.member, hello, Some(&self.map), &mut wire.buffers, &wait);
        let met = outcome.and_then(|answer| match answer {
            Some((link, items, _)) => first(items).map(|_| Some(link)),
            None => Ok(None),
        });
        *self.no_memory.lock() = match &met {
            Err(error) if error.status == NMC_ERR_NO_MEMORY => Some(error.clone().context("the store's master")),
            _ => None,
        };
        let (pause, error) = match met {
            Ok(Some(link)) => {
                wire.link = Some(link);
                // The program's log callback may call us: it must not find the lock taken.
                drop(wire);
                if !again {
                    log::emit(log::INFO, || format!("rank {}: the store has a master again", self.member.rank()));
                }
                return;
            }
            Ok(None) => (RETRY, None),
            Err(error) => {
                if error.status == NMC_ERR_STALE {
                    *self.refused.lock() = Some(error.clone());
                    self.is_refused.store(true, SeqCst);
                    wire.link = None;
                }
                (RETRY_REFUSED, Some(error))
            }
        };
        if again {
            // The master may still not have heard of what it is to hear.
            self.renew.store(true, SeqCst);
        }
        drop(wire);
        if let Some(error) = error {
            log::emit(log::WARN, || format!("rank {}: the store's master refuses: {error}", self.member.rank()));
        }
        rpc::poll(&[self.nudge.as_fd()], pause);
        // Also if it is not the end: a call that failed has rung, and the next pause would be none.
        self.nudge.drain();
    }
}

#[cfg(test)]
mod tests;
