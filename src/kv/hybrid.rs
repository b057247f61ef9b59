//! Sequences of a cache that has sides: what happens to their parts when they begin, grow, publish, are cut and end.
//! Callers look whether there are any parts first, so that other caches pay one comparison.

use super::cache::Cache;
use super::hands::Hands;
use super::lists::NONE;
use super::parts::{NoCut, Part, Ready, copy_of};
use super::pool::Pool;
use super::room::count_of;
use super::seq::Seq;
use super::side::{Side, seen_from};
use super::types::{Attempt, Room, SideKind, SideStats};
use crate::base::error::Result;
use crate::base::memory;

/// Each part of a sequence with its side and number.
fn each<'a>(pool: &'a mut Pool, seq: &'a mut Seq) -> impl Iterator<Item = (usize, &'a mut Side, &'a mut Part)> {
    pool.sides.iter_mut().zip(&mut seq.parts).enumerate().map(|(number, (side, part))| (number, side, part))
}

/// Gives the parts of a new sequence what belongs to the blocks of the index that it begins with.
pub(super) fn begin_parts(pool: &mut Pool, seq: &mut Seq, hits: usize, size: u32) {
    let tokens = u32::try_from(hits).unwrap_or(u32::MAX).saturating_mul(size);
    for (side, part) in pool.sides.iter_mut().zip(&mut seq.parts) {
        part.begin(side, &seq.blocks[..hits], tokens);
    }
}

impl Hands<'_> {
    /// Gets room for `count` blocks in all parts, and slots for states if tokens are to be written; all or nothing.
    pub fn grow_parts(&mut self, seq: &mut Seq, count: usize, writes: bool) -> Result<Attempt<()>> {
        // Parts have as many places as the sequence has blocks.
        let before = seq.blocks.len();
        let mut pool = self.cache.pool.lock();
        each(&mut pool, seq).try_for_each(|(_, side, part)| part.reserve(side.total(), count))?;
        let mut short = None;
        for (number, side, part) in each(&mut pool, seq) {
            if let Err(missing) = part.grow(side, count, writes) {
                short = Some((number, side.room(number, missing)));
                break;
            }
        }
        let Some((failed, room)) = short else { return Ok(Ok(())) };
        for (_, side, part) in each(&mut pool, seq).take(failed) {
            part.shrink(side, before, writes);
        }
        Ok(Err(room))
    }

    /// Undoes [`Hands::grow_parts`].
    pub fn shrink_parts(&mut self, seq: &mut Seq, wrote: bool) {
        let count = seq.blocks.len();
        let mut pool = self.cache.pool.lock();
        for (_, side, part) in each(&mut pool, seq) {
            part.shrink(side, count, wrote);
        }
    }

    /// All tokens are computed, and published as far as they can be: states that are due are kept. With `all`, those that
    /// are not due as well.
    pub fn settle_parts(&mut self, seq: &mut Seq, all: bool) {
        let size = self.cache.per_block();
        let end = seq.tokens / size;
        let owner = (seq.tokens.is_multiple_of(size) && end > 0 && seq.published >= end)
            .then(|| seq.blocks[end as usize - 1])
            .filter(|block| *block != NONE);
        let tokens = seq.tokens;
        let mut pool = self.cache.pool.lock();
        // Behind a block that it dropped, what the sequence published may have left the index.
        let owner = owner.filter(|block| pool.info(*block).is_published());
        for (_, side, part) in each(&mut pool, seq) {
            part.settle(side, tokens);
            let due = matches!(side.kind(), SideKind::State { every } if every > 0 && end.is_multiple_of(every));
            if let Some(owner) = owner.filter(|_| due || all) {
                part.keep(side, owner);
            }
        }
    }

    /// The first `tokens` tokens of a sequence, which are whole blocks, were fetched. A state that came is kept for others, if
    /// there is a slot to go on with.
    pub fn land_parts(&mut self, seq: &mut Seq, tokens: u32) -> Result<()> {
        let size = self.cache.per_block();
        {
            let mut pool = self.cache.pool.lock();
            // Before they are published: what did not come, because no token sees it, must not be found by others.
            for (_, side, part) in each(&mut pool, seq) {
                part.land(side, tokens, size);
            }
        }
        self.publish(seq)?;
        let owner = (seq.published >= tokens / size).then(|| seq.blocks[(tokens / size) as usize - 1]);
        let (count, writes) = (seq.blocks.len(), seq.tokens > tokens);
        let mut pool = self.cache.pool.lock();
        // As in `settle_parts`: what belongs to a block that left the index would be found under other tokens.
        let owner = owner.filter(|block| *block != NONE && pool.info(*block).is_published());
        for (_, side, part) in each(&mut pool, seq) {
            let SideStats { free, idle, .. } = side.stats();
            if let Some(owner) = owner.filter(|_| !writes || free + idle > 0) {
                part.keep(side, owner);
            }
            // Either there is a slot, or the state is its own to overwrite.
            let _enough = part.grow(side, count, writes);
        }
        Ok(())
    }

    /// Lets go of what the next token does not see.
    pub fn slide_parts(&mut self, seq: &mut Seq) {
        let (tokens, size) = (seq.tokens, self.cache.per_block());
        let mut pool = self.cache.pool.lock();
        for (_, side, part) in each(&mut pool, seq) {
            part.slide(side, tokens, size);
        }
    }

    /// Drops the blocks of one place.
    pub fn drop_parts(&mut self, seq: &mut Seq, at: usize) {
        let mut pool = self.cache.pool.lock();
        for (_, side, part) in each(&mut pool, seq) {
            part.drop(side, at);
        }
    }

    /// Gets what a cut needs, or nothing.
    pub fn prepare_cut(&mut self, seq: &mut Seq, tokens: u32) -> Result<Attempt<Vec<Ready>>> {
        memory::reserve(&mut seq.plan, seq.parts.len())?;
        memory::reserve(&mut seq.lent, seq.parts.len())?;
        let mut ready = memory::with_capacity(seq.parts.len())?;
        let mut pool = self.cache.pool.lock();
        let mut failed = None;
        for (number, (side, part)) in pool.sides.iter_mut().zip(&seq.parts).enumerate() {
            match part.prepare_cut(side, &seq.blocks, tokens, self.cache.per_block()) {
                Ok(one) => ready.push(one),
                Err(why) => {
                    failed = Some((why, side.room(number, 1)));
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
        let mut pool = self.cache.pool.lock();
        for (side, ready) in pool.sides.iter_mut().zip(ready) {
            ready.let_go(side);
        }
    }

    /// Cuts the parts.
    pub fn cut_parts(&mut self, seq: &mut Seq, tokens: u32, ready: Vec<Ready>) {
        let size = self.cache.per_block();
        let mut pool = self.cache.pool.lock();
        // There is room for them since the cut was prepared.
        let (mut plan, mut lent) = (std::mem::take(&mut seq.plan), std::mem::take(&mut seq.lent));
        for ((number, side, part), ready) in each(&mut pool, seq).zip(ready) {
            if let Some((from, to)) = part.cut(side, tokens, size, ready) {
                plan.push(copy_of(number, from, to));
                lent.push((number, from));
            }
        }
        drop(pool);
        (seq.plan, seq.lent) = (plan, lent);
    }

    /// Gives a fork its parts; all or nothing.
    pub fn fork_parts(&mut self, parent: &mut Seq, child: &mut Seq) -> Result<Attempt<()>> {
        let (tokens, size) = (parent.tokens, self.cache.per_block());
        let full = (tokens / size) as usize;
        let tail = !tokens.is_multiple_of(size);
        let count = parent.parts.len();
        memory::reserve(&mut child.parts, count)?;
        memory::reserve(&mut child.plan, count + 1)?;
        memory::reserve(&mut child.lent, count)?;
        let lists = memory::try_collect(parent.parts.iter().map(|part| part.list_for_fork(full)))?;
        let mut fresh: Vec<Option<u32>> = memory::with_capacity(count)?;
        let mut pool = self.cache.pool.lock();
        let mut short = None;
        for (number, side, part) in each(&mut pool, parent) {
            let mut one = Vec::new();
            if tail && part.fork_copies() && !side.take(1, &mut one) {
                short = Some(side.room(number, 1));
                break;
            }
            fresh.push(one.pop());
        }
        if let Some(room) = short {
            for (side, block) in pool.sides.iter_mut().zip(fresh) {
                block.into_iter().for_each(|block| side.release(block));
            }
            return Ok(Err(room));
        }
        for (((number, side, part), fresh), list) in each(&mut pool, parent).zip(fresh).zip(lists) {
            let (forked, from) = part.fork(side, tokens, full, fresh, list);
            child.parts.push(forked);
            if let (Some(from), Some(to)) = (from, fresh) {
                child.plan.push(copy_of(number, from, to));
                side.acquire(from);
                child.lent.push((number, from));
            }
        }
        Ok(Ok(()))
    }

    /// Copies that read blocks of sides are made.
    pub fn let_lent_go(&mut self, seq: &mut Seq) {
        let mut pool = self.cache.pool.lock();
        for (number, block) in seq.lent.drain(..) {
            pool.sides[number].release(block);
        }
    }

    /// Lets go of all parts.
    pub fn let_parts_go(&mut self, seq: &mut Seq) {
        let mut pool = self.cache.pool.lock();
        for (_, side, part) in each(&mut pool, seq) {
            part.let_go(side);
        }
        drop(pool);
        seq.parts.clear();
    }
}

impl Cache {
    /// Numbers about a side.
    pub fn side_stats(&self, side: u32) -> SideStats {
        self.pool.lock().sides.get(side as usize).map(Side::stats).unwrap_or_default()
    }

    /// Keeps the state that a sequence has now for others that begin with the same tokens. Counts all of them as computed.
    pub fn keep_state(&self, id: u64) -> Result<()> {
        let size = self.per_block();
        self.with(id, |seq, hands| {
            if !self.config.sides.iter().any(|side| matches!(side.kind, SideKind::State { .. })) {
                crate::bail!(NMC_ERR_UNSUPPORTED, "the cache has no group of kind NMC_KV_KIND_RECURRENT");
            }
            if seq.tokens == 0 || !seq.tokens.is_multiple_of(size) {
                let (id, tokens) = (seq.id, seq.tokens);
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "sequence {id} has {tokens} tokens; a state is kept at the end of a block of {size}"
                );
            }
            seq.computed = seq.tokens;
            hands.publish(seq)?;
            if seq.published < seq.tokens / size {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "the tokens of sequence {} are not in the prefix index, so nobody could find its state",
                    seq.id
                );
            }
            hands.settle_parts(seq, true);
            Ok(())
        })
    }

    /// For the tokens that the last call gave room for: the slot that holds the state before them ([`NONE`] if they are the
    /// first), and the one that gets the state after them ([`NONE`] if there are none).
    pub fn state_slots(&self, id: u64, side: u32) -> Result<(u32, u32)> {
        self.read(id, |seq| match seq.parts.get(side as usize) {
            Some(Part::State(slots)) => Ok((slots.state, slots.next)),
            _ => crate::bail!(NMC_ERR_INVALID_ARG, "the group is not of kind NMC_KV_KIND_RECURRENT"),
        })
    }

    /// The places of what a side must have for a sequence that begins with `end` full blocks and has what belongs to the first
    /// `first`.
    pub(super) fn needed_from(&self, side: usize, first: usize, end: usize) -> std::ops::Range<usize> {
        let from = match self.config.sides[side].kind {
            SideKind::Window(window) => seen_from(end, window, self.per_block()),
            SideKind::State { .. } => end.saturating_sub(1),
        };
        from.max(first)..end
    }

    /// Whether a side would have room if all sequences but one, of which these are the parts, were gone.
    pub(super) fn side_could_fit(&self, room: Room, own: &Seq) -> Result<bool> {
        let pinned = memory::collect(self.pins.lock().values().flat_map(|hold| hold.of_side(room.side)))?;
        let kept = count_of(pinned, own.parts.get(room.side as usize).into_iter().flat_map(Part::held))?;
        let total = self.config.sides.get(room.side as usize).map_or(0, |side| u64::from(side.blocks));
        Ok(room.needed + kept <= total)
    }
}
