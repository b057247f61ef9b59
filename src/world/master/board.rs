//! What a master knows about the ranks, shown to others in its process that are not ranks themselves.

use parking_lot::Mutex;

/// See the module.
#[derive(Debug, Default)]
pub struct Board(Mutex<(u64, Vec<RankNote>)>);

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
        *self.0.lock() = (world_id, ranks);
    }

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
