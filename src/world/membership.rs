//! What a capability built on a world needs of it: where the heaps are, who is alive, where to meet. While it exists the
//! rank does not leave, also when the world's handle is destroyed first.

use super::config::Hosting;
use super::dir::Place;
use super::liveness::RankState;
use super::presence::Presence;
use super::shared::{PeerView, Shared};
use super::sys;
use super::world::World;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_PEER_LOST;
use crate::cuda::Device;
use crate::layout::world::EpMeeting;
use crate::mem::HeapKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A rank's place in its world, held by something that was made from it.
pub struct Membership {
    presence: Arc<Presence>,
    what: &'static str,
}

impl Clone for Membership {
    fn clone(&self) -> Self {
        self.presence.enter_again(self.what);
        Self { presence: Arc::clone(&self.presence), what: self.what }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.presence.exit(self.what);
    }
}

/// A rank's heap as it is mapped in this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct MappedHeap {
    /// How many processes had held the rank; 0 if the heap could not be mapped.
    pub generation: u64,
    /// Random name of the memory; 0 if an engine lent it: then it ends with its holder.
    pub id: u64,
    base: u64,
    device_base: u64,
}

impl MappedHeap {
    /// First byte.
    #[must_use]
    #[inline(always)]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The same as the GPU sees it; 0 without a device.
    #[must_use]
    #[inline(always)]
    pub const fn device_base(&self) -> u64 {
        self.device_base
    }
}

impl World {
    /// See [`Membership`]. `what` names what is made from the rank, for messages. Fails if the rank has left.
    pub fn membership(&self, what: &'static str) -> Result<Membership> {
        self.presence.enter(what)?;
        Ok(Membership { presence: Arc::clone(&self.presence), what })
    }
}

impl Membership {
    #[inline(always)]
    fn shared(&self) -> &Shared {
        &self.presence.shared
    }

    /// Own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared().rank
    }

    /// How many processes have held the rank, this one counted.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared().generation
    }

    /// Random name of the world.
    #[must_use]
    pub fn world_id(&self) -> u64 {
        self.shared().world_id
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.shared().params.world_size
    }

    /// Bytes of every heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        self.shared().params.heap_bytes
    }

    /// Kind of every heap.
    #[must_use]
    pub fn heap_kind(&self) -> HeapKind {
        HeapKind::from_code(self.shared().params.heap_kind).unwrap_or(HeapKind::Host)
    }

    /// Whether all ranks are in this process, without a socket.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.shared().control.is_none()
    }

    /// Who runs masters.
    #[must_use]
    pub fn hosting(&self) -> Hosting {
        self.shared().hosting
    }

    /// Where the clients of a capability called `what` meet.
    #[must_use]
    pub fn place(&self, what: &str) -> Place {
        self.shared().place.beside(what)
    }

    /// The heap of every rank as it is mapped here, with the generation of the holder that brought or inherited it.
    #[must_use]
    pub fn heaps(&self) -> Vec<MappedHeap> {
        let peers = self.shared().peers.lock();
        let mapped = |peer: &PeerView| {
            let heap = peer.heap.as_ref()?;
            Some(MappedHeap {
                generation: peer.generation,
                id: if heap.desc().lent { 0 } else { heap.desc().id },
                base: heap.base(),
                device_base: heap.device_base(),
            })
        };
        peers.iter().map(|peer| peer.as_ref().and_then(mapped).unwrap_or_default()).collect()
    }

    /// Whether memory is a part of a heap of the world, which another process may have next.
    #[must_use]
    pub fn shares(&self, address: u64, bytes: u64) -> bool {
        let size = self.heap_bytes();
        self.shared().bases.iter().any(|base| {
            let base = base.load(Ordering::Acquire);
            base != 0 && address < base.saturating_add(size) && base < address.saturating_add(bytes)
        })
    }

    /// First byte of a rank's heap in this process.
    #[inline(always)]
    pub fn base(&self, rank: u32) -> Result<u64> {
        match self.shared().bases.get(rank as usize).map(|base| base.load(Ordering::Acquire)) {
            Some(base) if base != 0 => Ok(base),
            _ => Err(no_heap(rank)),
        }
    }

    /// The same as the GPU sees it; 0 without a device.
    #[must_use]
    pub fn device_base(&self, rank: u32) -> u64 {
        let peers = self.shared().peers.lock();
        let peer = peers.get(rank as usize).and_then(Option::as_ref);
        peer.and_then(|peer| peer.heap.as_ref()).map_or(0, |heap| heap.device_base())
    }

    /// Whether the heap of a rank that is there is memory that its engine lent. Whoever takes the rank of a lender that has
    /// gone brings another one.
    #[must_use]
    pub fn has_lent_heap(&self) -> bool {
        let shared = self.shared();
        let lent = |rank: u32| {
            let peers = shared.peers.lock();
            let heap = peers.get(rank as usize).and_then(Option::as_ref).and_then(|peer| peer.heap.as_ref());
            heap.is_some_and(|heap| heap.desc().lent)
        };
        (0..self.world_size()).any(|rank| lent(rank) && !shared.changing(rank) && !shared.state(rank).free())
    }

    /// The CUDA device that the world was joined with.
    #[must_use]
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.shared().device.as_ref()
    }

    /// State of whoever held `rank` in `generation`.
    #[must_use]
    pub fn state(&self, rank: u32, generation: u64) -> RankState {
        if rank >= self.world_size() {
            return RankState::Absent;
        }
        let state = self.shared().state(rank);
        let known = self.shared().peers.lock().get(rank as usize).and_then(Option::as_ref).map_or(0, |p| p.generation);
        match known.cmp(&generation) {
            // A rank is given to another only when its former holder is gone.
            std::cmp::Ordering::Greater => RankState::Gone,
            std::cmp::Ordering::Equal => state,
            // Nobody has told us of it yet: nothing says that it is gone.
            std::cmp::Ordering::Less => RankState::Alive,
        }
    }

    /// The newest holder of a rank that this one has heard of; 0 if of none.
    #[must_use]
    pub fn generation_of(&self, rank: u32) -> u64 {
        if rank == self.rank() {
            return self.generation();
        }
        self.shared().peers.lock().get(rank as usize).and_then(Option::as_ref).map_or(0, |peer| peer.generation)
    }

    /// Fails if the rank has left or aborted, or its handle is being destroyed: nothing new is made from it.
    pub fn check_present(&self) -> Result<()> {
        self.shared().check_present()
    }

    /// Whether the rank has aborted. It does not leave while this exists.
    #[must_use]
    pub fn has_departed(&self) -> bool {
        self.shared().departed.load(Ordering::SeqCst)
    }

    /// Copies of the descriptors by which others see that this process is gone: pidfd and life pipe.
    pub fn signs_of_life(&self) -> Result<(OwnedFd, OwnedFd)> {
        let peers = self.shared().peers.lock();
        let own = peers.get(self.shared().rank as usize).and_then(Option::as_ref).and_then(|own| own.watch.as_ref());
        let Some(watch) = own else { crate::bail!(NMC_ERR_INTERNAL, "a local world has no signs of life") };
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::os("dup", &e));
        Ok((copy(&watch.pidfd)?, copy(&watch.life)?))
    }

    /// Own process id, start time, and the time that its GPU gets to drain, in ms.
    #[must_use]
    pub fn process(&self) -> (u32, u64, u32) {
        let peers = self.shared().peers.lock();
        let own = peers.get(self.shared().rank as usize).and_then(Option::as_ref);
        own.map_or((std::process::id(), sys::own_start_time(), 0), |own| {
            (own.holder.pid, own.holder.start_time, own.holder.drain_ms)
        })
    }

    /// The store that a rank has said to be a client of; 0 for none.
    #[must_use]
    pub fn store_of(&self, rank: u32) -> u64 {
        self.shared().words().lines(rank).map_or(0, |lines| lines.store.value.load(Ordering::Acquire))
    }

    /// Says which store this rank is a client of.
    pub fn set_store(&self, store_id: u64) {
        if let Some(lines) = self.shared().words().lines(self.shared().rank) {
            lines.store.value.store(store_id, Ordering::Release);
        }
    }

    /// Where `rank` shows what it wants of an expert-parallel group.
    #[must_use]
    pub fn ep_meeting(&self, rank: u32) -> Option<&EpMeeting> {
        self.shared().words().lines(rank).map(|lines| &lines.ep)
    }

    /// State of whoever holds `rank` now, and how many have held it.
    #[must_use]
    pub fn holder(&self, rank: u32) -> (RankState, u64) {
        if rank >= self.world_size() {
            return (RankState::Absent, 0);
        }
        let state = self.shared().state(rank);
        let generation =
            self.shared().peers.lock().get(rank as usize).and_then(Option::as_ref).map_or(0, |p| p.generation);
        (state, generation)
    }

    /// Whether `rank` has been given to a process that this one has not been told of yet.
    #[must_use]
    pub fn changing(&self, rank: u32) -> bool {
        self.shared().changing(rank)
    }

    /// Which GPU `rank` uses; all zero for none.
    #[must_use]
    pub fn device_uuid(&self, rank: u32) -> [u8; 16] {
        let peers = self.shared().peers.lock();
        peers.get(rank as usize).and_then(Option::as_ref).map_or([0; 16], |p| p.holder.device_uuid)
    }

    /// CPU for threads of the library.
    #[must_use]
    pub fn service_cpu(&self) -> Option<u32> {
        self.shared().service_cpu
    }
}

#[cold]
fn no_heap(rank: u32) -> Error {
    Error::new(NMC_ERR_PEER_LOST, format!("rank {rank} has no heap at the moment"))
}
