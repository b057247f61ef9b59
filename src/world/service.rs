//! The one thread that a joined rank runs: it notices deaths, takes in ranks that rejoin, and hands the world to a
//! new master. It wakes up for events, not for the clock.

use super::liveness::RankState;
use super::roster::{Slot, slots_of};
use super::shared::{PeerView, Shared, is_want};
use super::wire::{Message, Peer, Reattach, SERVICE};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::NMC_ERR_EXISTS;
use crate::rpc::{self, Link, MAX_PACKET, Packet, Sent, caller};
use crate::sync::{panics, service_thread};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep: a rank whose forked child keeps the life pipe open leaves without waking anybody.
const IDLE: Duration = Duration::from_millis(250);
const RECONNECT_FIRST: Duration = Duration::from_millis(5);
const RECONNECT_MOST: Duration = Duration::from_millis(100);
const RECONNECT_REFUSED: Duration = Duration::from_secs(1);
/// A master that has not answered by then is taken for a dead one whose socket somebody keeps open.
const ANSWER: Duration = Duration::from_secs(2);

/// Starts the thread of a rank that has joined through `link`.
pub fn start(shared: Arc<Shared>, link: Link, cpu: Option<u32>) -> Result<JoinHandle<()>> {
    // Before the thread: it must be able to hear whatever happens.
    let buffer = memory::zeroed(MAX_PACKET)?;
    service_thread::spawn(c"nmc-world", cpu, move || {
        if panics::catch(|| Service::new(&shared, link, buffer).run()).is_err() {
            fail(
                &shared,
                Error::new(crate::base::status::NMC_ERR_INTERNAL, "the world's thread ended by a bug in nanomc"),
            );
        }
    })
}

fn fail(shared: &Shared, error: Error) {
    log::emit(log::ERROR, || format!("rank {}: {error}", shared.rank));
    *shared.failure.lock() = Some(error);
    shared.changed.signal();
}

struct Service<'a> {
    shared: &'a Shared,
    link: Option<Link>,
    /// When the world was handed to the master at the other end, until it answers.
    asked: Option<Instant>,
    /// When to look for a master again, and how long to wait after that.
    next_try: Instant,
    pause: Duration,
    /// The master refused us for good.
    refused: bool,
    /// There was no memory for a peer's heap.
    missing: bool,
    buffer: Vec<u8>,
}

impl<'a> Service<'a> {
    fn new(shared: &'a Shared, link: Link, buffer: Vec<u8>) -> Self {
        Self {
            shared,
            link: Some(link),
            asked: None,
            next_try: Instant::now(),
            pause: RECONNECT_FIRST,
            refused: false,
            missing: true,
            buffer,
        }
    }

    fn run(&mut self) {
        let mut limit = IDLE;
        while !self.wait(limit) {
            self.hear();
            if self.asked.is_some_and(|asked| asked.elapsed() > ANSWER) {
                self.lose_master("does not answer");
            }
            if self.link.is_none() && self.wants_master() && Instant::now() >= self.next_try {
                self.reconnect();
            }
            if self.missing {
                match self.shared.open_missing() {
                    Ok(missing) => self.missing = missing,
                    Err(error) => fail(self.shared, error),
                }
            }
            let (changed, grace) = self.shared.observe();
            if changed {
                self.shared.changed.signal();
            }
            limit = grace.unwrap_or(IDLE).min(IDLE);
            if self.link.is_none() && self.wants_master() {
                limit = limit.min(self.next_try.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Whether there is a point in looking for a master: not for a rank that was refused for good, or has left.
    fn wants_master(&self) -> bool {
        !self.refused && !self.shared.departed.load(Ordering::Relaxed)
    }

    /// Sleeps until something happens; true when the thread has to end.
    fn wait(&self, limit: Duration) -> bool {
        // The descriptors are polled without the lock: a peer that is replaced meanwhile must not lose them.
        let watched: Vec<OwnedFd> = {
            let peers = self.shared.peers.lock();
            let pending = peers.iter().zip(&self.shared.states).filter_map(|(peer, state)| {
                let state = RankState::from_code(state.load(Ordering::Acquire));
                Some(peer.as_ref()?.watch.as_ref()?.pending(state))
            });
            pending.flatten().filter_map(|fd| fd.try_clone_to_owned().ok()).collect()
        };
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.shared.stop.as_fd()];
        fds.extend(self.link.as_ref().map(AsFd::as_fd));
        fds.extend(watched.iter().map(AsFd::as_fd));
        rpc::poll(&fds, limit).first().copied().unwrap_or(false)
    }

    fn hear(&mut self) {
        while let Some(link) = &mut self.link {
            let heard = link.receive(&mut self.buffer).and_then(|packet| match packet {
                Packet::Empty => Ok(None),
                Packet::End => Ok(Some(false)),
                Packet::Data(len, fds) => self.handle(Message::decode(&self.buffer[..len])?, fds).map(|()| Some(true)),
            });
            match heard {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return self.lose_master("is away"),
                Ok(None) => return,
                Err(error) => return self.lose_master(&format!("sent what could not be used: {error}")),
            }
        }
    }

    fn lose_master(&mut self, why: &str) {
        log::emit(log::WARN, || format!("rank {}: the master {why}", self.shared.rank));
        self.link = None;
        self.asked = None;
        self.next_try = Instant::now() + self.pause;
        self.shared.master_up.store(false, Ordering::Relaxed);
        self.shared.changed.signal();
    }

    fn handle(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<()> {
        match message {
            Message::PeerList(list) if list.world_id == self.shared.world_id => {
                if self.asked.take().is_some() {
                    log::emit(log::INFO, || format!("rank {}: handed the world to a new master", self.shared.rank));
                    self.shared.master_up.store(true, Ordering::Relaxed);
                    self.shared.changed.signal();
                }
                for (rank, slot) in slots_of(list.peers, fds.into_iter())? {
                    let generation = slot.generation;
                    match self.shared.replace(rank, slot) {
                        // It was not put in place: the master says it again to whoever comes back.
                        Err(error) if self.shared.known_generation(rank) < generation => return Err(error),
                        Err(error) if is_want(&error) => {
                            log::emit(log::WARN, || format!("rank {}: {error}; it is tried again", self.shared.rank));
                            self.missing = true;
                        }
                        Err(error) => fail(self.shared, error),
                        Ok(()) => {}
                    }
                }
                self.pause = RECONNECT_FIRST;
                Ok(())
            }
            Message::Refusal(refusal) => {
                let error = Error::from(refusal);
                // Only a rank or world that is somebody else's now stays so; a master with other parameters may be a
                // mistake that is corrected by the next one.
                self.refused = error.status == NMC_ERR_EXISTS;
                self.pause = RECONNECT_REFUSED;
                self.lose_master(&format!("refuses us: {error}"));
                fail(self.shared, error);
                Ok(())
            }
            other => crate::bail!(NMC_ERR_PROTOCOL, "the master sent {} out of turn", other.name()),
        }
    }

    fn reconnect(&mut self) {
        self.pause = (self.pause * 2).clamp(RECONNECT_FIRST, RECONNECT_MOST.max(self.pause));
        self.next_try = Instant::now() + self.pause;
        let handed = caller::connect(&self.shared.place.socket(), &SERVICE).and_then(|link| {
            let Some(mut link) = link else { return Ok(None) };
            Ok((self.hand_over(&mut link)? == Sent::Yes).then_some(link))
        });
        match handed {
            Ok(Some(link)) => {
                self.link = Some(link);
                self.asked = Some(Instant::now());
            }
            Ok(None) => {}
            Err(error) => log::emit(log::WARN, || format!("rank {}: {error}", self.shared.rank)),
        }
    }

    fn hand_over(&self, link: &mut Link) -> Result<Sent> {
        let shared = self.shared;
        let Some(control) = &shared.control else { return Ok(Sent::Closed) };
        let views = shared.peers.lock();
        let mut peers = memory::with_capacity(views.len())?;
        let mut fds = vec![control.as_fd(), shared.words.as_fd()];
        for (view, rank) in views.iter().zip(0u32..) {
            let Some(view) = view else { continue };
            if let (Some(watch), Some((desc, fd))) = (&view.watch, view.announced()) {
                fds.extend([watch.pidfd.as_fd(), watch.life.as_fd()]);
                fds.extend(fd);
                let (generation, holder, heap) = (view.generation, view.holder.clone(), desc.clone());
                peers.push(Peer { rank, generation, holder, heap });
            }
        }
        let reattach = Reattach {
            world_id: shared.world_id,
            params: shared.params.clone(),
            rank: shared.rank,
            generation: shared.generation,
            peers,
        };
        link.send(&Message::Reattach(reattach).encode()?, &fds)
    }
}

impl Shared {
    /// `rank` was taken by another process.
    fn replace(&self, rank: u32, slot: Slot) -> Result<()> {
        self.check_rank(rank)?;
        if self.known_generation(rank) >= slot.generation {
            return Ok(());
        }
        let mapped = self.peers.lock().get(rank as usize).and_then(Option::as_ref).and_then(|p| p.heap.clone());
        let announced = slot.heap.as_ref().map(|(desc, _)| desc.id);
        let keep = mapped.clone().filter(|heap| Some(heap.desc().id) == announced);
        let kept = keep.is_some();
        let (view, opened) = PeerView::open(rank, slot, keep, self.device.as_ref());
        let pid = view.holder.pid;
        self.install(rank, view, mapped.filter(|_| !kept))?;
        log::emit(log::INFO, || format!("rank {}: rank {rank} is process {pid} now", self.rank));
        self.changed.signal();
        self.ring();
        opened
    }
}
