//! What a master knows about the ranks, shown to others in its process that are not ranks themselves.

use crate::mem::heap::Heap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Default)]
pub struct Board {
    notes: Mutex<(u64, Vec<RankNote>)>,
    /// The heaps by rank, as far as they can be mapped, of the world that the notes are about.
    heaps: Mutex<(u64, Vec<Option<Arc<Heap>>>)>,
    wants_heaps: AtomicBool,
    /// The last world of which nobody is left.
    over: AtomicU64,
}

/// A rank on a [`Board`].
#[derive(Debug, Clone, Copy)]
pub(super) struct RankNote {
    pub generation: u64,
    pub free: bool,
    /// The holder that brought or inherited the heap, and the heap's name.
    pub heap: (u64, u64),
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
    pub(super) fn show(&self, world_id: u64, ranks: Vec<RankNote>) {
        *self.notes.lock() = (world_id, ranks);
    }

    /// From now on the heaps of all ranks are mapped: the master itself needs none of them.
    pub fn map_heaps(&self) {
        self.wants_heaps.store(true, Ordering::Relaxed);
    }

    pub(super) fn wants_heaps(&self) -> bool {
        self.wants_heaps.load(Ordering::Relaxed)
    }

    /// Shows the heap of a rank, which `open` maps if it is not the one that is shown already.
    pub(super) fn show_heap(&self, world_id: u64, rank: u32, id: u64, open: impl FnOnce() -> Option<Heap>) {
        let mut shown = self.heaps.lock();
        if shown.0 != world_id {
            *shown = (world_id, Vec::new());
        }
        let at = rank as usize;
        if shown.1.len() <= at {
            shown.1.resize(at + 1, None);
        }
        if shown.1[at].as_ref().is_none_or(|heap| heap.desc().id != id) {
            shown.1[at] = open().map(Arc::new);
        }
    }

    /// Nobody of a world is left: its heaps are let go.
    pub(super) fn end(&self, world_id: u64) {
        self.over.store(world_id, Ordering::Relaxed);
        *self.heaps.lock() = (0, Vec::new());
    }

    /// Whether a world was there, and nobody of it is left.
    #[must_use]
    pub fn is_over(&self, world_id: u64) -> bool {
        world_id != 0 && self.over.load(Ordering::Relaxed) == world_id
    }

    /// The heap of a rank, if [`Board::map_heaps`] was called and it can be mapped.
    #[must_use]
    pub fn heap(&self, world_id: u64, rank: u32) -> Option<Arc<Heap>> {
        let shown = self.heaps.lock();
        shown.1.get(rank as usize).filter(|_| shown.0 == world_id)?.clone()
    }

    /// The newest holder of `rank`; `None` if nothing is known about this world.
    #[must_use]
    pub fn newest(&self, world_id: u64, rank: u32) -> Option<u64> {
        let seen = self.notes.lock();
        seen.1.get(rank as usize).filter(|_| seen.0 == world_id).map(|note| note.generation)
    }

    /// About whoever held `rank` in `generation`.
    #[must_use]
    pub fn verdict(&self, world_id: u64, rank: u32, generation: u64) -> Verdict {
        let seen = self.notes.lock();
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
        let seen = self.notes.lock();
        let known = if seen.0 == world_id { seen.1.as_slice() } else { &[] };
        known.iter().map(|note| note.heap).collect()
    }
}
