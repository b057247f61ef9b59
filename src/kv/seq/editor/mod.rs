//! What a call does to a sequence while it has its lane: gets blocks (`take`), grows, publishes, cuts, forks, releases, and
//! the same for groups with blocks of their own (`groups`). Each of these does all of it or nothing; for want of room it says
//! how much there is. So memory for lists is reserved before anything changes, and what only releases needs none.

mod cut;
mod fork;
mod groups;
mod grow;
mod publish;
mod take;

pub(in crate::kv) use publish::standing_block;

use super::{Seq, Supply};
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::error::{Attempt, too_long};
use crate::kv::groups::first_seen;

/// Works on one sequence at a time, whose lane is locked.
pub struct Editor<'a> {
    pub supply: &'a Supply,
    /// The spare blocks of the lane.
    pub spare: &'a mut Vec<u32>,
}

impl Editor<'_> {
    /// What the sequence has counts as computed now, and copies that it asked for as done.
    #[inline]
    pub fn settle(&mut self, seq: &mut Seq) -> Result<()> {
        seq.computed = seq.tokens;
        if seq.is_unsettled() {
            self.release_settled(seq)?;
        }
        self.publish(seq)?;
        if !seq.groups.is_empty() {
            self.settle_groups(seq, false);
        }
        Ok(())
    }

    #[cold]
    fn release_settled(&mut self, seq: &mut Seq) -> Result<()> {
        self.supply.pool.lock().release(&seq.held)?;
        seq.held.clear();
        self.put_back(&seq.left)?;
        seq.left.clear();
        seq.plan.clear();
        if !seq.lent.is_empty() {
            self.release_lent(seq);
        }
        Ok(())
    }

    /// Adds tokens.
    #[inline]
    pub fn append(
        &mut self,
        seq: &mut Seq,
        count: u32,
        tokens: Option<&[u32]>,
        importance: Option<f32>,
    ) -> Result<Attempt<()>> {
        self.settle(seq)?;
        let size = self.supply.per_block();
        let Some(after) = seq.tokens.checked_add(count).filter(|after| *after <= seq.limit) else {
            return Err(too_long(seq.id, u64::from(seq.tokens) + u64::from(count), seq.limit));
        };
        if seq.known {
            memory::reserve(&mut seq.pending, tokens.map_or(0, <[u32]>::len))?;
        }
        if importance.is_some() {
            memory::reserve_to(&mut seq.scores, after.div_ceil(size) as usize)?;
        }
        if self.supply.config.window > 0 {
            self.slide(seq)?;
        }
        if !seq.groups.is_empty() {
            self.slide_groups(seq);
        }
        let more = u64::from(after) > seq.blocks.len() as u64 * u64::from(size);
        if (more || !seq.groups.is_empty() && count > 0)
            && let Err(room) = self.grow_all(seq, self.supply.blocks_for(after), count > 0)?
        {
            return Ok(Err(room));
        }
        if seq.known {
            match tokens {
                Some(tokens) => seq.pending.extend_from_slice(tokens),
                None => seq.stop_publishing(),
            }
        }
        if let Some(importance) = importance {
            seq.note_importance(seq.tokens / size, after.div_ceil(size), importance);
        }
        seq.tokens = after;
        Ok(Ok(()))
    }

    /// Releases everything.
    pub fn empty(&mut self, seq: &mut Seq) -> Result<()> {
        if seq.doubles && seq.published > 0 {
            // Its double of a block that has left the index since stays there instead.
            let _stands = standing_block(&mut self.supply.pool.lock(), seq, seq.published as usize - 1);
        }
        self.release_settled(seq)?;
        if !seq.groups.is_empty() {
            self.let_parts_go(seq);
        }
        self.release_blocks(seq, 0)?;
        seq.stop_publishing();
        seq.published = 0;
        Ok(())
    }

    /// Drops one block; its tokens keep their positions.
    pub fn drop_block(&mut self, seq: &mut Seq, k: usize) -> Result<()> {
        let block = std::mem::replace(&mut seq.blocks[k], NONE);
        if k < seq.shared as usize { self.supply.pool.lock().release_one(block) } else { self.put_back(&[block]) }
    }

    /// Drops the blocks that the next token's window does not reach.
    fn slide(&mut self, seq: &mut Seq) -> Result<()> {
        let end = first_seen(seq.tokens, self.supply.config.window, self.supply.per_block());
        for k in seq.slid..end {
            if seq.blocks[k as usize] != NONE {
                self.drop_block(seq, k as usize)?;
                seq.rewrites += 1;
            }
        }
        seq.slid = seq.slid.max(end);
        Ok(())
    }
}
