//! A sequence begins as another is: it shares the full blocks, and gets a copy of one that is not full.

use super::Editor;
use crate::base::error::Result;
use crate::kv::block::NONE;
use crate::kv::error::Attempt;
use crate::kv::seq::{BlockCopy, Seq};

impl Editor<'_> {
    /// Makes `child` a copy of `parent` that shares its full blocks.
    pub fn fork(&mut self, parent: &mut Seq, child: &mut Seq) -> Result<Attempt<()>> {
        let size = self.supply.per_block();
        let full = (parent.tokens / size) as usize;
        let tail = parent.blocks[..self.supply.blocks_for(parent.tokens)].get(full).copied();
        let mut fresh = Vec::new();
        child.reserve_like(parent, full + 1)?;
        if !parent.groups.is_empty()
            && let Err(room) = self.fork_groups(parent, child)?
        {
            return Ok(Err(room));
        }
        if tail.is_some()
            && let Err(room) = self.take_at(child.address_space, full, 1, &mut fresh)?
        {
            return Ok(Err(room));
        }
        let mut pool = self.supply.pool.lock();
        for (k, block) in parent.blocks[..full].iter().enumerate().filter(|(_, block)| **block != NONE) {
            if k >= parent.shared as usize {
                pool.share(*block);
            }
            pool.acquire(*block);
        }
        let count = |blocks: usize| u32::try_from(blocks).unwrap_or(u32::MAX);
        parent.shared = parent.shared.max(count(full));
        child.blocks.extend_from_slice(&parent.blocks[..full]);
        if let (Some(from), Some(to)) = (tail, fresh.first().copied()) {
            child.blocks.push(to);
            child.plan.push(BlockCopy { from, to, own_group: NONE });
            // What the copy reads stays until it is made, whatever becomes of the parent. Addresses keep theirs otherwise.
            if parent.address_space == 0 {
                if parent.shared as usize == full {
                    pool.share(from);
                    parent.shared += 1;
                }
                pool.acquire(from);
                child.held.push(from);
            }
        }
        drop(pool);
        child.inherit(parent);
        child.shared = count(full);
        Ok(Ok(()))
    }
}
