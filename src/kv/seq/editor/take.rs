//! Where private blocks come from and go to: the spare ones of the lane, the pool, and for a virtual sequence the free ones
//! that its addresses still map.

use super::Editor;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::error::{Attempt, Room};

impl Editor<'_> {
    /// Adds `count` private blocks to `out`.
    #[inline]
    pub(super) fn take(&mut self, count: usize, out: &mut Vec<u32>) -> Result<Attempt<()>> {
        if let Some(kept) = self.spare.len().checked_sub(count) {
            memory::reserve(out, count)?;
            out.extend(self.spare.drain(kept..));
            return Ok(Ok(()));
        }
        self.take_from_pool(count, out)
    }

    #[cold]
    fn take_from_pool(&mut self, count: usize, out: &mut Vec<u32>) -> Result<Attempt<()>> {
        let missing = count - self.spare.len();
        let mut kept = self.supply.mapped_free.lock();
        let mut pool = self.supply.pool.lock();
        // More than all cannot be had.
        memory::reserve(out, count.min(pool.levels().total as usize))?;
        memory::reserve_to(self.spare, self.supply.spare_max)?;
        // They are free, and go before anything that is cached.
        while (pool.levels().free as usize) < missing
            && let Some(block) = kept.reclaim()
        {
            pool.give(&[block])?;
        }
        drop(kept);
        let taken = pool.take(missing, out, self.supply.now())?;
        if taken && self.supply.spare_max > 0 {
            out.append(self.spare);
            let more = (self.supply.spare_max / 2).min(pool.levels().free as usize);
            pool.take(more, self.spare, 0)?;
        } else if taken {
            out.append(self.spare);
        }
        drop(pool);
        Ok(if taken { Ok(()) } else { Err(self.short(count)) })
    }

    /// The same for the places from `first` on of addresses that may still map blocks there.
    #[inline(never)]
    pub(super) fn take_at(
        &mut self,
        address_space: u64,
        first: usize,
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<Attempt<()>> {
        if address_space == 0 {
            return self.take(count, out);
        }
        let total = self.supply.pool.lock().levels().total as usize;
        if count > total {
            return Ok(Err(self.short(count)));
        }
        memory::reserve(out, count)?;
        let mut own: Vec<u32> = memory::with_capacity(count)?;
        let mut fresh = memory::with_capacity(count)?;
        {
            let mut kept = self.supply.mapped_free.lock();
            own.extend((first..first + count).map(|place| kept.take(address_space, place)));
        }
        let missing = own.iter().filter(|block| **block == NONE).count();
        let grabbed = self.take(missing, &mut fresh);
        if !matches!(grabbed, Ok(Ok(()))) {
            self.keep_mapped(address_space, first, &own)?;
            return grabbed.map(|got| {
                got.map_err(|room| Room { needed: count as u64, free: room.free + (count - missing) as u64, ..room })
            });
        }
        // Taken from the end: ascending, neighbours can be mapped together.
        fresh.sort_unstable_by(|a, b| b.cmp(a));
        for slot in own.iter_mut().filter(|block| **block == NONE) {
            *slot = fresh.pop().unwrap_or(NONE);
        }
        out.append(&mut own);
        Ok(Ok(()))
    }

    /// Private blocks become free, but stay at their places as long as nobody else needs them.
    pub(super) fn keep_mapped(&mut self, address_space: u64, first: usize, blocks: &[u32]) -> Result<()> {
        for (k, block) in blocks.iter().enumerate().filter(|(_, block)| **block != NONE) {
            let other = self.supply.mapped_free.lock().put(address_space, first + k, *block);
            if let Some(other) = other {
                self.put_back(&[other])?;
            }
        }
        Ok(())
    }

    #[cold]
    pub(super) fn short(&self, count: usize) -> Room {
        let mut room = self.supply.room(count);
        room.free += self.spare.len() as u64;
        room
    }

    /// Private blocks become spare, or free if there are enough of those.
    pub(super) fn put_back(&mut self, blocks: &[u32]) -> Result<()> {
        let room = self.spare.capacity().min(self.supply.spare_max);
        let fits = room.saturating_sub(self.spare.len()).min(blocks.len());
        self.spare.extend_from_slice(&blocks[..fits]);
        if fits == blocks.len() {
            return Ok(());
        }
        let mut pool = self.supply.pool.lock();
        pool.give(&blocks[fits..])?;
        // A full shelf of spare blocks would send every later one here: half of it goes along.
        let half = self.spare.len() / 2;
        pool.give(&self.spare[half..])?;
        self.spare.truncate(half);
        Ok(())
    }
}
