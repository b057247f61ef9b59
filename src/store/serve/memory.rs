//! Objects that the master holds for whoever writes them to disk, in the process of a master that is no rank and maps the heaps for
//! this alone.

use crate::base::error::Result;
use crate::layout::store::{ObjectHeader, Seal, Shape, View};
use crate::mem::heap::Heap;
use crate::store::copy::{Base, check_sums, copy_out, seal_of};
use crate::store::disk::{HeldMemory, ToWrite};
use crate::store::map::Map;
use crate::store::types::{Pin, Sums, check_within, corrupt, shaped};
use crate::sync::object;
use crate::world::master::Board;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Lets `copy` have a held object and what it was sealed with, and sees to it that it was the same one all the while.
pub(in crate::store) fn read_held(
    map: &Map,
    item: &ToWrite,
    copy: impl FnOnce(&View<'_>, (u32, &ObjectHeader, &Shape), Option<Seal>) -> Result<()>,
) -> Result<()> {
    let view = map.view();
    let (header, shape) = shaped(view, item.index)?;
    // In no slot: the master's hold keeps it.
    let pin = Pin { index: item.index, slot: u32::MAX, epoch: item.epoch, turn: 0 };
    let seal = seal_of(map, view, (item.namespace, &item.key), pin, header, &shape)?;
    copy(view, (item.index, header, &shape), seal)?;
    if object::epoch(header.control.load(Acquire)) == item.epoch { Ok(()) } else { Err(corrupt(item.index)) }
}

/// The heaps of a store in the process of its external master: those in host memory that the ranks share.
pub struct MasterMemory {
    map: Arc<Map>,
    board: Arc<Board>,
    world_id: u64,
}

impl MasterMemory {
    /// Of the store with this map, in a world whose ranks `board` knows.
    pub(in crate::store) fn new(map: Arc<Map>, board: Arc<Board>, world_id: u64) -> Self {
        Self { map, board, world_id }
    }

    /// Name of the heap in which the objects of a rank lie; 0 for none, or one that is lent.
    fn wanted(&self, rank: u32) -> u64 {
        self.map.view().heap(rank).map_or(0, |heap| heap.id.load(Acquire))
    }

    /// Whether the heaps of all ranks can be read. Those of a world that outlived its master come when its ranks have reported.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let ranks = 0..self.map.params().world_size;
        ranks.into_iter().all(|rank| self.wanted(rank) == 0 || self.heap(rank).is_ok())
    }

    /// The heap of a rank, if it is the one that the objects lie in.
    fn heap(&self, rank: u32) -> Result<Arc<Heap>> {
        let (wanted, params) = (self.wanted(rank), self.map.params());
        // What a client says about sizes must not lead behind the end.
        let end = params.heap_offset.saturating_add(params.heap_bytes);
        match self.board.heap(self.world_id, rank) {
            Some(heap) if wanted != 0 && heap.desc().id == wanted && end <= heap.bytes() => Ok(heap),
            _ => crate::bail!(NMC_ERR_PEER_LOST, "the master cannot map the heap of rank {rank}, or it was replaced"),
        }
    }
}

impl HeldMemory for MasterMemory {
    fn store_id(&self) -> u64 {
        self.map.store_id()
    }

    fn read_held(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()> {
        let bytes = to.len() as u64;
        read_held(&self.map, item, |view, (index, header, shape), seal| {
            check_within(offset, bytes, shape.bytes_total)?;
            let heap = self.heap(shape.owner_rank)?;
            let base = Base::of(&heap, self.map.params())?;
            copy_out(view, (header, shape), offset, base, to)?;
            match seal {
                Some(seal) => {
                    let part = offset..offset + bytes;
                    check_sums(view, (index, header, shape), base, part, seal, Sums::Touched)
                }
                None => Ok(()),
            }
        })
    }

    /// Only ranks bring values back, by `nmc_tier_prefetch`.
    fn promote(&self, _: u32, _: &[u8], _: u32) -> bool {
        false
    }
}
