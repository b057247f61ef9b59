//! Which memory a rank's objects lie in. A rank that is taken over keeps its heap, unless somebody lends memory of his
//! own: then what was stored there is lost, and must not be looked for in the other memory.

use super::*;
use crate::layout::store::RankHeap;

/// Largest number of holders of a rank that is believed.
const SANE_GENERATION: u64 = 1 << 48;

impl Master {
    /// What the former master knew.
    pub(super) fn read_heaps(&mut self) {
        let view = self.map.view();
        self.closed = view.header().closed_ranks.load(Relaxed);
        for (known, rank) in self.heaps.iter_mut().zip(0u32..) {
            if let Some(heap) = view.heap(rank) {
                *known = (heap.generation.load(Relaxed) & !RankHeap::REPLACED, heap.id.load(Relaxed));
                if known.0 > SANE_GENERATION {
                    // A stray store: whoever reports next knows.
                    known.0 = 0;
                }
            }
        }
    }

    /// Takes note of the heaps that ranks have: for each rank the generation of its holder and the name of its memory.
    /// What is older than what is known already says nothing.
    pub fn note_heaps(&mut self, heaps: impl IntoIterator<Item = (u64, u64)>) {
        let map = Arc::clone(&self.map);
        let view = map.view();
        for ((generation, id), rank) in heaps.into_iter().zip(0u32..) {
            let Some(known) = self.heaps.get(rank as usize).copied() else { continue };
            if generation != 0 && generation >= known.0 && (generation, id) != known {
                if id != known.1 {
                    if let Some(heap) = view.heap(rank).filter(|_| known.1 != 0) {
                        heap.generation.fetch_or(RankHeap::REPLACED, Release);
                    }
                    // In this order: whoever finds the new name finds no object of the former memory alive. A master
                    // that dies in between leaves the former name, and the next one begins again.
                    self.drop_rank(view, rank);
                    reach("master.rank_dropped");
                }
                self.heaps[rank as usize] = (generation, id);
            }
        }
        self.show_heaps(view);
    }

    /// Says it to everybody, again if somebody has overwritten it.
    pub(super) fn show_heaps(&self, view: &View<'_>) {
        for ((generation, id), rank) in self.heaps.iter().zip(0u32..) {
            let Some(heap) = view.heap(rank) else { continue };
            let shown = heap.generation.load(Relaxed);
            if heap.id.load(Relaxed) != *id || shown & !RankHeap::REPLACED != *generation {
                heap.id.store(*id, Release);
                heap.generation.store(*generation | shown & RankHeap::REPLACED, Release);
            }
        }
    }

    /// Kills all objects of a rank, whoever reads or writes them.
    fn drop_rank(&mut self, view: &View<'_>, rank: u32) {
        let mut lost = 0;
        let all = self.map.params().max_objects;
        for from in (0..all).step_by(FLUSH as usize) {
            let to = from.saturating_add(FLUSH).min(all);
            let unfinished = |index: &u32| self.lists.list_of(*index) == Some(WRITING);
            for index in (from..to).filter(|index| self.book(*index).owner == rank).filter(unfinished) {
                self.tell_fate(view, index, Fate::HeapGone);
            }
            lost += self.drop_those(view, from..to, |master, index| master.book(index).owner == rank);
        }
        if lost > 0 {
            self.tell(log::WARN, || {
                format!("store: rank {rank} has other memory than before: {lost} objects in the former are lost")
            });
        }
        self.count(rank);
    }

    /// The ranks on which something can be stored, a bit each.
    pub(super) fn usable(&self) -> u64 {
        let usable = self.heaps.iter().zip(0u32..).filter(|((_, id), _)| *id != 0);
        usable.fold(0, |ranks, (_, rank)| ranks | bit_of(rank)) & !self.closed
    }

    /// Nothing new is stored on a rank, or it is again. What is there stays, and this does too if the master dies.
    pub fn close_rank(&mut self, rank: u32, closed: bool) -> Result<()> {
        let n = self.heaps.len();
        if rank as usize >= n {
            crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is not below the world size {n}");
        }
        self.closed = if closed { self.closed | bit_of(rank) } else { self.closed & !bit_of(rank) };
        self.map.view().header().closed_ranks.store(self.closed, Relaxed);
        Ok(())
    }

    /// Where a key belongs whose writer does not say: the rank that its hash names, or the next one that has a heap.
    pub(super) fn home_of(&self, hash: u64) -> u32 {
        let n = self.heaps.len().max(1) as u64;
        let rank = |step: u64| u32::try_from((hash % n + step) % n).unwrap_or(0);
        let takes = |rank: &u32| self.heaps[*rank as usize].1 != 0 && self.closed & bit_of(*rank) == 0;
        (0..n).map(rank).find(takes).unwrap_or_else(|| rank(0))
    }

    /// Fails if nothing can be stored on a rank. What `returns` from the disk is nothing new.
    pub(super) fn check_heap(&self, rank: u32, returns: bool) -> Result<()> {
        if self.heaps.get(rank as usize).is_none_or(|(_, id)| *id == 0) {
            crate::bail!(
                NMC_ERR_PEER_LOST,
                "rank {rank} has no heap in which objects can lie: nobody has taken it yet, its engine lent it, or it could not \
                 be mapped"
            );
        }
        if self.closed & bit_of(rank) != 0 && !returns {
            crate::bail!(NMC_ERR_NO_SPACE, "rank {rank} is closed: nothing new is stored there");
        }
        Ok(())
    }
}

fn bit_of(rank: u32) -> u64 {
    1 << (rank as usize % MAX_RANKS)
}
