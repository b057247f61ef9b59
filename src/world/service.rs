//! The one thread that a joined rank runs: it notices deaths, takes in ranks that rejoin, and hands the world to a
//! new master. It wakes up for events, not for the clock.

use super::RankState;
use super::join::connect;
use super::master::slots_of;
use super::sys::{self, BlockSignals, Packet};
use super::view::{PeerView, Shared};
use super::wire::{Message, Peer, Reattach};
use crate::base::error::{Error, Result};
use crate::base::log;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep: a rank whose forked child keeps the life pipe open leaves without waking anybody.
const IDLE: Duration = Duration::from_millis(250);
const RECONNECT_FIRST: Duration = Duration::from_millis(5);
const RECONNECT_MOST: Duration = Duration::from_millis(100);

/// Starts the thread of a rank that has joined through `socket`.
pub fn start(shared: Arc<Shared>, socket: OwnedFd, cpu: Option<u32>) -> Result<JoinHandle<()>> {
    let _quiet = BlockSignals::new();
    std::thread::Builder::new()
        .name("nmc-world".into())
        .spawn(move || {
            sys::settle_thread(c"nmc-world", cpu);
            let service = std::panic::AssertUnwindSafe(|| Service::new(&shared, socket).run());
            if std::panic::catch_unwind(service).is_err() {
                fail(
                    &shared,
                    Error::new(crate::base::status::NMC_ERR_INTERNAL, "the world's thread ended by a bug in nanomc"),
                );
            }
        })
        .map_err(|e| Error::os("starting the world's thread", &e))
}

fn fail(shared: &Shared, error: Error) {
    log::emit(log::ERROR, || format!("rank {}: {error}", shared.rank));
    *shared.failure.lock() = Some(error);
    shared.changed.signal();
}

struct Service<'a> {
    shared: &'a Shared,
    socket: Option<OwnedFd>,
    pause: Duration,
    /// The master refused us for good.
    refused: bool,
    buffer: Vec<u8>,
}

impl<'a> Service<'a> {
    fn new(shared: &'a Shared, socket: OwnedFd) -> Self {
        Self { shared, socket: Some(socket), pause: RECONNECT_FIRST, refused: false, buffer: Vec::new() }
    }

    fn run(&mut self) {
        let mut limit = IDLE;
        loop {
            if self.wait(limit) {
                return;
            }
            self.hear();
            if self.socket.is_none() && !self.refused {
                self.reconnect();
            }
            let (changed, grace) = self.shared.observe();
            if changed {
                self.shared.changed.signal();
            }
            limit = grace.unwrap_or(IDLE).min(IDLE);
            if self.socket.is_none() && !self.refused {
                limit = limit.min(self.pause);
            }
        }
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
        fds.extend(self.socket.as_ref().map(AsFd::as_fd));
        fds.extend(watched.iter().map(AsFd::as_fd));
        sys::poll(&fds, limit).first().copied().unwrap_or(false)
    }

    fn hear(&mut self) {
        while let Some(socket) = &self.socket {
            let heard = sys::receive(socket.as_fd(), &mut self.buffer).and_then(|packet| match packet {
                Packet::Empty => Ok(false),
                Packet::End => {
                    log::emit(log::WARN, || format!("rank {}: the master is away", self.shared.rank));
                    self.lose_master();
                    Ok(false)
                }
                Packet::Data(bytes, fds) => self.handle(Message::decode(&bytes)?, fds).map(|()| true),
            });
            match heard {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    log::emit(log::ERROR, || format!("rank {}: {error}", self.shared.rank));
                    self.lose_master();
                    return;
                }
            }
        }
    }

    fn lose_master(&mut self) {
        self.socket = None;
        self.pause = RECONNECT_FIRST;
        self.shared.master_up.store(false, Ordering::Relaxed);
        self.shared.changed.signal();
    }

    fn handle(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<()> {
        match message {
            Message::Roster(roster) => {
                for (rank, slot) in slots_of(roster.peers, fds.into_iter())? {
                    self.replace(rank, slot)?;
                }
                Ok(())
            }
            Message::Reject(reject) => {
                self.refused = true;
                self.lose_master();
                fail(self.shared, reject.into());
                Ok(())
            }
            other => crate::bail!(NMC_ERR_PROTOCOL, "the master sent {other:?} out of turn"),
        }
    }

    /// A rank was taken by another process.
    fn replace(&self, rank: u32, slot: super::realm::Slot) -> Result<()> {
        let shared = self.shared;
        shared.check_rank(rank)?;
        let former = {
            let peers = shared.peers.lock();
            peers
                .get(rank as usize)
                .and_then(Option::as_ref)
                .map(|p| (p.generation, Arc::clone(&p.heap), p.holder.lent))
        };
        // A heap that the library made is handed on from holder to holder: what we have mapped is it already.
        let keep = match former {
            Some((generation, _, _)) if generation >= slot.generation => return Ok(()),
            Some((_, heap, false)) if !slot.holder.lent => Some(heap),
            Some((_, heap, _)) => {
                shared.replaced.lock().push(heap);
                None
            }
            None => None,
        };
        let view = PeerView::open(rank, slot, keep, shared.device.as_ref())?;
        log::emit(log::INFO, || format!("rank {}: rank {rank} is process {} now", shared.rank, view.holder.pid));
        if let Some(place) = shared.peers.lock().get_mut(rank as usize) {
            *place = Some(view);
        }
        shared.refresh_tables()?;
        shared.observe();
        shared.changed.signal();
        shared.ring();
        Ok(())
    }

    fn reconnect(&mut self) {
        match connect(&self.shared.socket_path) {
            Ok(Some(socket)) => match self.hand_over(&socket) {
                Ok(true) => {
                    log::emit(log::INFO, || format!("rank {}: handed the world to a new master", self.shared.rank));
                    self.socket = Some(socket);
                    self.shared.master_up.store(true, Ordering::Relaxed);
                    self.shared.changed.signal();
                }
                Ok(false) => {}
                Err(error) => log::emit(log::ERROR, || format!("rank {}: {error}", self.shared.rank)),
            },
            Ok(None) => {}
            Err(error) => log::emit(log::WARN, || format!("rank {}: {error}", self.shared.rank)),
        }
        self.pause = (self.pause * 2).min(RECONNECT_MOST);
    }

    fn hand_over(&self, socket: &OwnedFd) -> Result<bool> {
        let shared = self.shared;
        let Some(control) = &shared.control else { return Ok(false) };
        let views = shared.peers.lock();
        let mut peers = Vec::new();
        let mut fds = vec![control.as_fd(), shared.words.as_fd()];
        for (view, rank) in views.iter().zip(0u32..) {
            if let Some(view) = view
                && let Some(watch) = &view.watch
            {
                let heap = view.heap.desc().clone();
                fds.extend([watch.pidfd.as_fd(), watch.life.as_fd()]);
                fds.extend(view.heap.fd());
                peers.push(Peer { rank, generation: view.generation, holder: view.holder.clone(), heap });
            }
        }
        let reattach = Reattach {
            world_id: shared.world_id,
            params: shared.params.clone(),
            rank: shared.rank,
            generation: shared.generation,
            peers,
        };
        sys::send(socket.as_fd(), &Message::Reattach(reattach).encode(), &fds)
    }
}
