//! Sequences of a cache that has groups with blocks of their own: what happens there when they begin, grow, publish, are cut
//! and end. Callers look whether there are any first, so that other caches pay one comparison.

use super::Editor;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::error::Attempt;
use crate::kv::groups::{GroupPool, GroupStats, NoCut, OwnKind, Ready, SeqGroup};
use crate::kv::pool::Pool;
use crate::kv::seq::{BlockCopy, Seq};

/// Each group: its number, its blocks, and what the sequence has of them.
fn each<'a>(
    pool: &'a mut Pool,
    seq: &'a mut Seq,
) -> impl Iterator<Item = (usize, &'a mut GroupPool, &'a mut SeqGroup)> {
    pool.groups.iter_mut().zip(&mut seq.groups).enumerate().map(|(number, (group, own))| (number, group, own))
}

/// Gives the groups of a new sequence what belongs to the blocks of the index that it begins with.
pub(super) fn begin_groups(pool: &mut Pool, seq: &mut Seq, hits: usize, size: u32) {
    let tokens = u32::try_from(hits).unwrap_or(u32::MAX).saturating_mul(size);
    for (group, own) in pool.groups.iter_mut().zip(&mut seq.groups) {
        own.begin(group, &seq.blocks[..hits], tokens);
    }
}

impl Editor<'_> {
    /// Gets room for `count` blocks in all groups, and slots for states if tokens are to be written; all or nothing.
    pub fn grow_groups(&mut self, seq: &mut Seq, count: usize, writes: bool) -> Result<Attempt<()>> {
        // A sequence has as many places there as blocks.
        let before = seq.blocks.len();
        let mut pool = self.supply.pool.lock();
        each(&mut pool, seq).try_for_each(|(_, group, own)| own.reserve(group.total(), count))?;
        let mut short = None;
        for (number, group, own) in each(&mut pool, seq) {
            if let Err(missing) = own.grow(group, count, writes) {
                short = Some((number, group.room(number, missing)));
                break;
            }
        }
        let Some((failed, room)) = short else { return Ok(Ok(())) };
        for (_, group, own) in each(&mut pool, seq).take(failed) {
            own.shrink(group, before, writes);
        }
        Ok(Err(room))
    }

    /// Undoes [`Editor::grow_groups`].
    pub fn shrink_groups(&mut self, seq: &mut Seq, wrote: bool) {
        let count = seq.blocks.len();
        let mut pool = self.supply.pool.lock();
        for (_, group, own) in each(&mut pool, seq) {
            own.shrink(group, count, wrote);
        }
    }

    /// All tokens are computed, and published as far as they can be: states that are due are kept. With `all`, those that
    /// are not due as well.
    pub fn settle_groups(&mut self, seq: &mut Seq, all: bool) {
        let size = self.supply.per_block();
        let end = seq.tokens / size;
        let owner = (seq.tokens.is_multiple_of(size) && end > 0 && seq.published >= end)
            .then(|| seq.blocks[end as usize - 1])
            .filter(|block| *block != NONE);
        let tokens = seq.tokens;
        let mut pool = self.supply.pool.lock();
        // Behind a block that it dropped, what the sequence published may have left the index.
        let owner = owner.filter(|block| pool.info(*block).is_published());
        for (_, group, own) in each(&mut pool, seq) {
            own.settle(group, tokens);
            let due = matches!(group.kind(), OwnKind::State { every } if every > 0 && end.is_multiple_of(every));
            if let Some(owner) = owner.filter(|_| due || all) {
                own.keep(group, owner);
            }
        }
    }

    /// The first `tokens` tokens of a sequence, which are whole blocks, were fetched. A state that came is kept for others, if
    /// there is a slot to go on with.
    pub fn land_groups(&mut self, seq: &mut Seq, tokens: u32) -> Result<()> {
        let size = self.supply.per_block();
        {
            let mut pool = self.supply.pool.lock();
            // Before they are published: what did not come, because no token sees it, must not be found by others.
            for (_, group, own) in each(&mut pool, seq) {
                own.land(group, tokens, size);
            }
        }
        self.publish(seq)?;
        let owner = (seq.published >= tokens / size).then(|| seq.blocks[(tokens / size) as usize - 1]);
        let (count, writes) = (seq.blocks.len(), seq.tokens > tokens);
        let mut pool = self.supply.pool.lock();
        // As in `settle_groups`: what belongs to a block that left the index would be found under other tokens.
        let owner = owner.filter(|block| *block != NONE && pool.info(*block).is_published());
        for (_, group, own) in each(&mut pool, seq) {
            let GroupStats { free, idle, .. } = group.stats();
            if let Some(owner) = owner.filter(|_| !writes || free + idle > 0) {
                own.keep(group, owner);
            }
            // Either there is a slot, or the state is its own to overwrite.
            let _enough = own.grow(group, count, writes);
        }
        Ok(())
    }

    /// Releases what the next token does not see.
    pub fn slide_groups(&mut self, seq: &mut Seq) {
        let (tokens, size) = (seq.tokens, self.supply.per_block());
        let mut pool = self.supply.pool.lock();
        for (_, group, own) in each(&mut pool, seq) {
            own.slide(group, tokens, size);
        }
    }

    /// Drops the blocks of one place.
    pub fn drop_groups(&mut self, seq: &mut Seq, at: usize) {
        let mut pool = self.supply.pool.lock();
        for (_, group, own) in each(&mut pool, seq) {
            own.drop(group, at);
        }
    }

    /// Gets what a cut needs, or nothing.
    pub fn prepare_cut(&mut self, seq: &mut Seq, tokens: u32) -> Result<Attempt<Vec<Ready>>> {
        memory::reserve(&mut seq.plan, seq.groups.len())?;
        memory::reserve(&mut seq.lent, seq.groups.len())?;
        let mut ready = memory::with_capacity(seq.groups.len())?;
        let mut pool = self.supply.pool.lock();
        let mut failed = None;
        for (number, (group, own)) in pool.groups.iter_mut().zip(&seq.groups).enumerate() {
            match own.prepare_cut(group, &seq.blocks, tokens, self.supply.per_block()) {
                Ok(one) => ready.push(one),
                Err(why) => {
                    failed = Some((why, group.room(number, 1)));
                    break;
                }
            }
        }
        let Some((why, room)) = failed else { return Ok(Ok(ready)) };
        drop(pool);
        self.abandon_cut(&ready);
        match why {
            NoCut::Room => Ok(Err(room)),
            NoCut::Memory(error) => Err(error),
            NoCut::Gone => crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "sequence {} cannot be cut to {tokens} tokens: the window or the state there is gone; cut it to the end \
                 of a block whose state was kept, or to 0",
                seq.id
            ),
        }
    }

    /// Gives up a cut.
    pub fn abandon_cut(&mut self, ready: &[Ready]) {
        let mut pool = self.supply.pool.lock();
        for (group, ready) in pool.groups.iter_mut().zip(ready) {
            ready.release(group);
        }
    }

    /// Cuts the groups.
    pub fn cut_groups(&mut self, seq: &mut Seq, tokens: u32, ready: Vec<Ready>) {
        let size = self.supply.per_block();
        let mut pool = self.supply.pool.lock();
        // There is room for them since the cut was prepared.
        let (mut plan, mut lent) = (std::mem::take(&mut seq.plan), std::mem::take(&mut seq.lent));
        for ((number, group, own), ready) in each(&mut pool, seq).zip(ready) {
            if let Some((from, to)) = own.cut(group, tokens, size, ready) {
                plan.push(copy_of(number, from, to));
                lent.push((number, from));
            }
        }
        drop(pool);
        (seq.plan, seq.lent) = (plan, lent);
    }

    /// Gives a fork its groups; all or nothing.
    pub fn fork_groups(&mut self, parent: &mut Seq, child: &mut Seq) -> Result<Attempt<()>> {
        let (tokens, size) = (parent.tokens, self.supply.per_block());
        let full = (tokens / size) as usize;
        let tail = !tokens.is_multiple_of(size);
        let count = parent.groups.len();
        memory::reserve(&mut child.groups, count)?;
        memory::reserve(&mut child.plan, count + 1)?;
        memory::reserve(&mut child.lent, count)?;
        let lists = memory::try_collect(parent.groups.iter().map(|own| own.list_for_fork(full)))?;
        let mut fresh: Vec<Option<u32>> = memory::with_capacity(count)?;
        let mut pool = self.supply.pool.lock();
        let mut short = None;
        for (number, group, own) in each(&mut pool, parent) {
            let mut one = Vec::new();
            if tail && own.fork_copies() && !group.take(1, &mut one) {
                short = Some(group.room(number, 1));
                break;
            }
            fresh.push(one.pop());
        }
        if let Some(room) = short {
            for (group, block) in pool.groups.iter_mut().zip(fresh) {
                block.into_iter().for_each(|block| group.release(block));
            }
            return Ok(Err(room));
        }
        for (((number, group, own), fresh), list) in each(&mut pool, parent).zip(fresh).zip(lists) {
            let (forked, from) = own.fork(group, tokens, full, fresh, list);
            child.groups.push(forked);
            if let (Some(from), Some(to)) = (from, fresh) {
                child.plan.push(copy_of(number, from, to));
                group.acquire(from);
                child.lent.push((number, from));
            }
        }
        Ok(Ok(()))
    }

    /// Copies that read blocks of groups are made.
    pub fn release_lent(&mut self, seq: &mut Seq) {
        let mut pool = self.supply.pool.lock();
        for (number, block) in seq.lent.drain(..) {
            pool.groups[number].release(block);
        }
    }

    /// Releases all groups.
    pub fn let_parts_go(&mut self, seq: &mut Seq) {
        let mut pool = self.supply.pool.lock();
        for (_, group, own) in each(&mut pool, seq) {
            own.release(group);
        }
        drop(pool);
        seq.groups.clear();
    }
}

/// The copy of one block of a group with blocks of its own.
fn copy_of(number: usize, from: u32, to: u32) -> BlockCopy {
    BlockCopy { from, to, own_group: u32::try_from(number).unwrap_or(NONE) }
}
