//! Which memory a rank's objects lie in. A rank that is taken over keeps its heap, unless somebody lends memory of his
//! own: then what was stored there is lost, and must not be looked for in the other memory.

use super::*;

impl Master {
    /// Takes note of the heaps that ranks have: for each rank the generation of its holder and the name of its memory.
    /// What is older than what is known already says nothing.
    pub fn note_heaps(&mut self, heaps: impl IntoIterator<Item = (u64, u64)>) {
        let map = Arc::clone(&self.map);
        let view = map.view();
        for ((generation, id), rank) in heaps.into_iter().zip(0u32..) {
            let Some(heap) = view.heap(rank) else { continue };
            if generation <= heap.generation.load(Relaxed) {
                continue;
            }
            if heap.id.load(Relaxed) != id {
                // In this order: whoever finds the new name finds no object of the former memory alive. A master that
                // dies in between leaves the former name, and the next one begins again.
                self.drop_rank(view, rank);
                reach("master.rank_dropped");
                heap.id.store(id, Release);
            }
            heap.generation.store(generation, Release);
        }
    }

    /// Kills all objects of a rank, whoever reads or writes them.
    fn drop_rank(&mut self, view: &View<'_>, rank: u32) {
        let of_rank = |index: &u32| {
            view.object(*index).is_some_and(|header| {
                header.owner_rank.load(Relaxed) == rank && object::is_live(header.control.load(Relaxed))
            })
        };
        let mut lost = 0;
        for from in (0..self.map.params().max_objects).step_by(FLUSH as usize) {
            let batch: Vec<u32> = (from..self.map.params().max_objects).take(FLUSH as usize).filter(of_rank).collect();
            lost += batch.len();
            self.drop_objects(view, &batch, false);
        }
        if lost > 0 {
            let text =
                format!("store: rank {rank} has other memory than before: {lost} objects in the former are lost");
            self.news.push((log::WARN, text));
        }
        self.count(rank);
    }

    /// Fails if nothing can be stored on a rank.
    pub(super) fn check_heap(&self, view: &View<'_>, rank: u32) -> Result<()> {
        if view.heap(rank).is_none_or(|heap| heap.id.load(Relaxed) == 0) {
            crate::bail!(
                NMC_ERR_PEER_LOST,
                "rank {rank} has no heap in which objects can lie: its engine lent it, or it could not be mapped"
            );
        }
        Ok(())
    }
}
