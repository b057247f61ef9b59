//! What a call does to a sequence while it has its lane: gets blocks, publishes, grows, cuts, forks, lets go. Each of
//! these does all of it or nothing; for want of room it says how much there is. So memory for lists is reserved before
//! anything changes, and what only lets go needs none.

use super::cache::{Cache, too_long};
use super::hash::BlockHash;
use super::hybrid::begin_parts;
use super::lists::NONE;
use super::parts::Part;
use super::pool::{Named, Pool, Prefix, Published};
use super::seq::Seq;
use super::side::first_seen;
use super::types::{Attempt, BlockCopy, Open, Opened, Placement, Room, WhenFull};
use crate::alloc::runs::Run;
use crate::base::error::Result;
use crate::base::memory;
use std::sync::atomic::Ordering;

/// The cache, and the spare blocks of the lane that is locked.
pub(super) struct Hands<'a> {
    pub cache: &'a Cache,
    pub spare: &'a mut Vec<u32>,
}

impl Hands<'_> {
    /// Adds `count` private blocks to `out`.
    #[inline]
    fn grab(&mut self, count: usize, out: &mut Vec<u32>) -> Result<Attempt<()>> {
        if let Some(kept) = self.spare.len().checked_sub(count) {
            memory::reserve(out, count)?;
            out.extend(self.spare.drain(kept..));
            return Ok(Ok(()));
        }
        self.grab_from_pool(count, out)
    }

    #[cold]
    fn grab_from_pool(&mut self, count: usize, out: &mut Vec<u32>) -> Result<Attempt<()>> {
        let missing = count - self.spare.len();
        let mut kept = self.cache.kept.lock();
        let mut pool = self.cache.pool.lock();
        // More than all cannot be had.
        memory::reserve(out, count.min(pool.levels().total as usize))?;
        memory::reserve_to(self.spare, self.cache.spare_max)?;
        // They are free, and go before anything that is cached.
        while (pool.levels().free as usize) < missing
            && let Some(block) = kept.reclaim()
        {
            pool.give(&[block])?;
        }
        drop(kept);
        let taken = pool.take(missing, out, self.cache.now())?;
        if taken && self.cache.spare_max > 0 {
            out.append(self.spare);
            let more = (self.cache.spare_max / 2).min(pool.levels().free as usize);
            pool.take(more, self.spare, 0)?;
        } else if taken {
            out.append(self.spare);
        }
        drop(pool);
        Ok(if taken { Ok(()) } else { Err(self.short(count)) })
    }

    /// The same for the places from `first` on of addresses that may still map blocks there.
    #[inline(never)]
    fn gain(&mut self, keeper: u64, first: usize, count: usize, out: &mut Vec<u32>) -> Result<Attempt<()>> {
        if keeper == 0 {
            return self.grab(count, out);
        }
        let total = self.cache.pool.lock().levels().total as usize;
        if count > total {
            return Ok(Err(self.short(count)));
        }
        memory::reserve(out, count)?;
        let mut own: Vec<u32> = memory::with_capacity(count)?;
        let mut fresh = memory::with_capacity(count)?;
        {
            let mut kept = self.cache.kept.lock();
            own.extend((first..first + count).map(|place| kept.take(keeper, place)));
        }
        let missing = own.iter().filter(|block| **block == NONE).count();
        let grabbed = self.grab(missing, &mut fresh);
        if !matches!(grabbed, Ok(Ok(()))) {
            self.keep(keeper, first, &own)?;
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
    fn keep(&mut self, keeper: u64, first: usize, blocks: &[u32]) -> Result<()> {
        for (k, block) in blocks.iter().enumerate().filter(|(_, block)| **block != NONE) {
            let other = self.cache.kept.lock().put(keeper, first + k, *block);
            if let Some(other) = other {
                self.put_back(&[other])?;
            }
        }
        Ok(())
    }

    #[cold]
    fn short(&self, count: usize) -> Room {
        let mut room = self.cache.room(count);
        room.free += self.spare.len() as u64;
        room
    }

    /// Private blocks become spare, or free if there are enough of those.
    fn put_back(&mut self, blocks: &[u32]) -> Result<()> {
        let room = self.spare.capacity().min(self.cache.spare_max);
        let fits = room.saturating_sub(self.spare.len()).min(blocks.len());
        self.spare.extend_from_slice(&blocks[..fits]);
        if fits == blocks.len() {
            return Ok(());
        }
        let mut pool = self.cache.pool.lock();
        pool.give(&blocks[fits..])?;
        // A full shelf of spare blocks would send every later one here: half of it goes along.
        let half = self.spare.len() / 2;
        pool.give(&self.spare[half..])?;
        self.spare.truncate(half);
        Ok(())
    }

    /// Gives a new sequence its blocks: of the cache what it has, the rest fresh.
    pub fn fill(&mut self, seq: &mut Seq, open: &Open<'_>, hashes: &[BlockHash]) -> Result<Attempt<Opened>> {
        let size = self.cache.per_block();
        let known = open.tokens.unwrap_or_default();
        let reusable = if seq.placement != Placement::Run { (open.max_hit / size) as usize } else { 0 };
        let asked = &hashes[..reusable.min(hashes.len())];
        memory::reserve(&mut seq.ahead, hashes.len())?;
        memory::reserve(&mut seq.pending, if seq.known { known.len() } else { 0 })?;
        memory::reserve(&mut seq.blocks, asked.len())?;
        memory::reserve(&mut seq.parts, self.cache.config.sides.len())?;
        seq.parts.extend(self.cache.config.sides.iter().map(|side| Part::new(side.kind)));
        seq.parts.iter_mut().try_for_each(|part| part.reserve(usize::MAX, asked.len()))?;
        let hits = if asked.is_empty() {
            0
        } else {
            let mut pool = self.cache.pool.lock();
            let found = pool.acquire_prefix(Prefix { root: seq.root, hashes: asked, tokens: known }, &mut seq.blocks);
            // Under the same lock: until the sequence holds it, others may take what belongs to these blocks.
            begin_parts(&mut pool, seq, found, size);
            found
        };
        #[allow(clippy::cast_possible_truncation, reason = "fewer than the blocks of n_tokens")]
        let hit_blocks = hits as u32;
        (seq.shared, seq.published) = (hit_blocks, hit_blocks);
        let mut tokens = open.n_tokens;
        let want = self.cache.blocks_for(tokens);
        let mut got = self.grow_new(seq, want, want > hits)?;
        if got.is_err() && self.cache.config.when_full == WhenFull::Shorten {
            // With hits alone there would be nothing to compute, unless that is what was asked for.
            let least = usize::from(hits == 0 || open.max_hit < open.n_tokens);
            let mut fits = want - hits;
            // Another group may have even less, and another thread may be quicker.
            while let Err(room) = got {
                let has = match seq.placement {
                    Placement::Run => u64::from(self.cache.pool.lock().longest_run()),
                    _ => room.free + room.evictable,
                };
                let has = usize::try_from(has).unwrap_or(0);
                let fewer = if has < fits { has } else { fits / 2 };
                if fewer < least || fewer == fits {
                    break;
                }
                fits = fewer;
                got = self.grow_new(seq, hits + fits, fits > 0)?;
            }
            if got.is_ok() {
                tokens = u32::try_from(seq.blocks.len()).unwrap_or(u32::MAX).saturating_mul(size).min(tokens);
                seq.limit = tokens;
            }
        }
        if let Err(room) = got {
            self.empty(seq)?;
            return Ok(Err(room));
        }
        seq.tokens = tokens;
        seq.computed = hit_blocks * size;
        seq.chain = if hits > 0 { hashes[hits - 1] } else { seq.root };
        seq.ahead.extend_from_slice(&hashes[hits..(tokens / size) as usize * usize::from(!hashes.is_empty())]);
        if seq.known {
            seq.pending.extend_from_slice(&known[hits * size as usize..tokens as usize]);
        }
        Ok(Ok(Opened { hit_tokens: hit_blocks * size, tokens }))
    }

    /// The same as [`Hands::grow_all`], for a sequence that is being opened: if it fails, that has nothing.
    fn grow_new(&mut self, seq: &mut Seq, count: usize, writes: bool) -> Result<Attempt<()>> {
        let got = self.grow_all(seq, count, writes);
        if got.is_err() {
            self.empty(seq)?;
        }
        got
    }

    /// Makes a sequence have at least `count` blocks, of all sides as well, and slots for states if tokens are to be
    /// written. A run that cannot grow where it is moves.
    pub fn grow_all(&mut self, seq: &mut Seq, count: usize, writes: bool) -> Result<Attempt<()>> {
        if seq.parts.is_empty() {
            return self.grow(seq, count);
        }
        if let Err(room) = self.grow_parts(seq, count, writes)? {
            return Ok(Err(room));
        }
        let got = self.grow(seq, count);
        if !matches!(got, Ok(Ok(()))) {
            self.shrink_parts(seq, writes);
        }
        got
    }

    fn grow(&mut self, seq: &mut Seq, count: usize) -> Result<Attempt<()>> {
        let Some(more) = count.checked_sub(seq.blocks.len()).filter(|more| *more > 0) else { return Ok(Ok(())) };
        if seq.placement != Placement::Run {
            if seq.keeper == 0 {
                return self.grab(more, &mut seq.blocks);
            }
            let first = seq.blocks.len();
            return self.gain(seq.keeper, first, more, &mut seq.blocks);
        }
        let all = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let total = self.cache.pool.lock().levels().total as usize;
        if count > total {
            return Ok(Err(self.short(count)));
        }
        memory::reserve(&mut seq.blocks, more)?;
        if let Some(last) = seq.blocks.last().copied().filter(|last| *last != NONE)
            && self.cache.pool.lock().extend_run(Run { first: last, count: 1 }, all(more))?
        {
            seq.blocks.extend(last + 1..=last + all(more));
            return Ok(Ok(()));
        }
        self.relocate(seq, all(count))
    }

    /// Moves a contiguous sequence to a new run of `count` blocks. Its blocks so far stay until the next call for it.
    fn relocate(&mut self, seq: &mut Seq, count: u32) -> Result<Attempt<()>> {
        let had = seq.blocks.len();
        memory::reserve_to(&mut seq.blocks, count as usize)?;
        memory::reserve(&mut seq.plan, had)?;
        memory::reserve(&mut seq.held, seq.shared as usize)?;
        memory::reserve(&mut seq.left, had)?;
        let mut holes: Vec<usize> = memory::with_capacity(had)?;
        let run = self.cache.pool.lock().take_run(count, self.cache.now())?;
        let Some(run) = run else { return Ok(Err(self.short(count as usize))) };
        let written = self.cache.blocks_for(seq.tokens).min(count as usize);
        let moved = seq.blocks.iter().zip(run.first..).take(written).filter(|(from, _)| **from != NONE);
        seq.plan.extend(moved.map(|(from, to)| BlockCopy { from: *from, to, side: NONE }));
        let shared = seq.shared as usize;
        seq.held.extend(seq.blocks[..shared].iter().filter(|block| **block != NONE));
        seq.left.extend(seq.blocks[shared..].iter().filter(|block| **block != NONE));
        seq.rewrites += u32::from(!seq.blocks.is_empty());
        if !seq.blocks.is_empty() {
            // What is in the index are the old blocks; the copies are not the ones that others match.
            seq.stop_publishing();
            (seq.shared, seq.published) = (0, 0);
        }
        holes.extend((0..written.min(had)).filter(|at| seq.blocks[*at] == NONE));
        seq.blocks.clear();
        seq.blocks.extend(run.first..run.first + count);
        for at in holes {
            self.drop_block(seq, at)?;
        }
        Ok(Ok(()))
    }

    /// What the sequence has counts as computed now, and copies that it asked for as done.
    #[inline]
    pub fn settle(&mut self, seq: &mut Seq) -> Result<()> {
        seq.computed = seq.tokens;
        if seq.is_unsettled() {
            self.let_go(seq)?;
        }
        self.publish(seq)?;
        if !seq.parts.is_empty() {
            self.settle_parts(seq, false);
        }
        Ok(())
    }

    #[cold]
    fn let_go(&mut self, seq: &mut Seq) -> Result<()> {
        self.cache.pool.lock().release(&seq.held)?;
        seq.held.clear();
        self.put_back(&seq.left)?;
        seq.left.clear();
        seq.plan.clear();
        if !seq.lent.is_empty() {
            self.let_lent_go(seq);
        }
        Ok(())
    }

    /// Puts the full blocks that are computed, and whose tokens are known, into the index.
    #[inline]
    pub fn publish(&mut self, seq: &mut Seq) -> Result<()> {
        let size = self.cache.per_block();
        // Multiplied, not divided: this is asked for every token.
        if seq.computed < (seq.published + 1) * size || !seq.known && seq.ahead.is_empty() {
            return Ok(());
        }
        self.publish_up_to(seq, seq.computed / size)
    }

    #[cold]
    fn publish_up_to(&mut self, seq: &mut Seq, end: u32) -> Result<()> {
        let size = self.cache.per_block() as usize;
        let first = seq.published;
        let mut pool = self.cache.pool.lock();
        let mut swapped = 0;
        // The block of the index that the next one continues; others may have taken the place of the sequence's own.
        let mut parent = match first.checked_sub(1) {
            None => Some(NONE),
            Some(last) => stand(&mut pool, seq, last as usize),
        };
        pool.look_ahead_of(&seq.ahead);
        while seq.published < end {
            let at = seq.published as usize;
            let done = at - first as usize;
            pool.look_ahead(&seq.ahead, done);
            let tokens = if seq.known { &seq.pending[done * size..(done + 1) * size] } else { &[] };
            let hash = match seq.ahead.get(done) {
                Some(hash) => *hash,
                None if seq.known => self.cache.config.chain.next(seq.chain, tokens),
                None => break,
            };
            let block = seq.blocks[at];
            let Some(before) = parent.filter(|_| block != NONE) else {
                seq.known = false;
                break;
            };
            if seq.shared as usize == at {
                pool.share(block);
                seq.shared += 1;
            }
            let may_swap = seq.placement == Placement::Paged;
            let named = Named { root: seq.root, parent: before, hash, tokens };
            parent = Some(block);
            match pool.publish(block, named, seq.keep, may_swap)? {
                Published::Ours => {}
                Published::Other(other) => {
                    (seq.blocks[at], parent) = (other, Some(other));
                    swapped += 1;
                }
                Published::Double(other) => (seq.doubles, parent) = (true, Some(other)),
                Published::Refused => {
                    seq.known = false;
                    break;
                }
            }
            for (side, part) in pool.sides.iter_mut().zip(&mut seq.parts) {
                part.publish(side, at, seq.blocks[at]);
            }
            seq.chain = hash;
            seq.published += 1;
        }
        drop(pool);
        let done = (seq.published - first) as usize;
        seq.ahead.drain(..done.min(seq.ahead.len()));
        if seq.published < end {
            seq.stop_publishing();
        } else {
            seq.pending.drain(..(done * size).min(seq.pending.len()));
        }
        seq.rewrites += u32::from(swapped > 0);
        self.cache.counters.deduplicated.fetch_add(swapped, Ordering::Relaxed);
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
        let size = self.cache.per_block();
        let Some(after) = seq.tokens.checked_add(count).filter(|after| *after <= seq.limit) else {
            return Err(too_long(seq.id, u64::from(seq.tokens) + u64::from(count), seq.limit));
        };
        if seq.known {
            memory::reserve(&mut seq.pending, tokens.map_or(0, <[u32]>::len))?;
        }
        if importance.is_some() {
            memory::reserve_to(&mut seq.scores, after.div_ceil(size) as usize)?;
        }
        if self.cache.config.window > 0 {
            self.slide(seq)?;
        }
        if !seq.parts.is_empty() {
            self.slide_parts(seq);
        }
        let more = u64::from(after) > seq.blocks.len() as u64 * u64::from(size);
        if (more || !seq.parts.is_empty() && count > 0)
            && let Err(room) = self.grow_all(seq, self.cache.blocks_for(after), count > 0)?
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

    /// Cuts a sequence to `tokens` tokens. A block of which only a part stays, and that others may read, is copied.
    pub fn truncate(&mut self, seq: &mut Seq, tokens: u32) -> Result<Attempt<()>> {
        self.check_window(seq, tokens)?;
        if seq.parts.is_empty() {
            return self.cut_blocks(seq, tokens);
        }
        if tokens == seq.tokens {
            let cut = self.cut_blocks(seq, tokens);
            // What was reserved goes in the parts as well.
            self.shrink_parts(seq, false);
            return cut;
        }
        let ready = match self.prepare_cut(seq, tokens)? {
            Ok(ready) => ready,
            Err(room) => return Ok(Err(room)),
        };
        let cut = self.cut_blocks(seq, tokens);
        match cut {
            Ok(Ok(())) => self.cut_parts(seq, tokens, ready),
            _ => self.abandon_cut(&ready),
        }
        cut
    }

    /// Fails if blocks left the window that the next token after `tokens` would see.
    fn check_window(&self, seq: &Seq, tokens: u32) -> Result<()> {
        let (window, size) = (self.cache.config.window, self.cache.per_block());
        if window == 0 || tokens == seq.tokens {
            return Ok(());
        }
        let seen = first_seen(tokens, window, size).min(tokens.div_ceil(size));
        if seen < seq.slid.min(tokens.div_ceil(size)) {
            let (id, slid) = (seq.id, seq.slid);
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "sequence {id} cannot be cut to {tokens} tokens: their window begins in block {seen}, and blocks before \
                 {slid} have left it"
            );
        }
        Ok(())
    }

    fn cut_blocks(&mut self, seq: &mut Seq, tokens: u32) -> Result<Attempt<()>> {
        let size = self.cache.per_block();
        let keep = self.cache.blocks_for(tokens);
        let rest = (tokens % size) as usize;
        if rest > 0 && seq.blocks[keep - 1] == NONE {
            let (id, at) = (seq.id, tokens - tokens % size);
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the tokens of sequence {id} from {at} on were dropped; cut it to {at}, or to a block that is there"
            );
        }
        let published = seq.published.min(tokens / size);
        let (mut chain, mut pending, mut known) = (seq.root, Vec::new(), seq.known);
        if published < seq.published {
            let pool = self.cache.pool.lock();
            if let Some(last) = published.checked_sub(1).map(|last| seq.blocks[last as usize]) {
                known &= last != NONE;
                chain = if last == NONE { seq.root } else { pool.hash(last) };
            }
            if rest > 0 {
                let kept = pool_tokens(&pool, seq.blocks[published as usize], rest);
                known &= kept.is_some();
                pending = memory::copy(kept.unwrap_or_default())?;
            }
        }
        if rest > 0
            && keep <= seq.shared as usize
            && let Err(room) = self.own_tail(seq, keep)?
        {
            return Ok(Err(room));
        }
        self.let_blocks_go(seq, keep)?;
        if published < seq.published {
            (seq.published, seq.chain, seq.pending, seq.known) = (published, chain, pending, known);
            seq.ahead.clear();
            seq.tokens = tokens;
            seq.computed = seq.computed.min(tokens);
        } else {
            seq.cut_tokens(tokens, size);
        }
        seq.scores.truncate(keep);
        // Blocks that come where others left the window will leave it again.
        seq.slid = seq.slid.min(u32::try_from(keep).unwrap_or(u32::MAX));
        Ok(Ok(()))
    }

    /// Makes the block before `keep`, which the pool counts, private, so that tokens can be written to it.
    fn own_tail(&mut self, seq: &mut Seq, keep: usize) -> Result<Attempt<()>> {
        let tail = seq.blocks[keep - 1];
        memory::reserve(&mut seq.plan, 1)?;
        memory::reserve(&mut seq.held, 1)?;
        let alone = {
            let mut pool = self.cache.pool.lock();
            pool.is_ours_alone(tail) || (pool.info(tail).refs == 1 && pool.unpublish(tail))
        };
        if !alone && seq.placement == Placement::Run {
            return self.relocate(seq, u32::try_from(keep).unwrap_or(u32::MAX));
        }
        // The blocks behind it must be let go as what they are, before the count of shared ones shrinks.
        let mut fresh = Vec::new();
        if !alone && let Err(room) = self.grab(1, &mut fresh)? {
            return Ok(Err(room));
        }
        self.let_blocks_go(seq, keep)?;
        seq.shared = u32::try_from(keep - 1).unwrap_or(u32::MAX);
        if let Some(fresh) = fresh.pop() {
            seq.plan.push(BlockCopy { from: tail, to: fresh, side: NONE });
            seq.blocks[keep - 1] = fresh;
            seq.held.push(tail);
            seq.rewrites += 1;
        }
        Ok(Ok(()))
    }

    /// Lets go of all blocks from the `keep`th on, the last first.
    fn let_blocks_go(&mut self, seq: &mut Seq, keep: usize) -> Result<()> {
        let shared = seq.shared as usize;
        if shared > keep {
            let mut pool = self.cache.pool.lock();
            for block in seq.blocks[keep..shared].iter().rev().filter(|block| **block != NONE) {
                pool.release_one(*block)?;
            }
        }
        let private = shared.max(keep);
        if seq.blocks.len() > private && seq.keeper != 0 {
            self.keep(seq.keeper, private, &seq.blocks[private..])?;
        } else if seq.blocks.len() > private {
            for some in seq.blocks[private..].split(|block| *block == NONE) {
                self.put_back(some)?;
            }
        }
        seq.rewrites += u32::from(seq.blocks.len() > keep);
        seq.blocks.truncate(keep);
        seq.shared = seq.shared.min(u32::try_from(keep).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Makes `child` a copy of `parent` that shares its full blocks.
    pub fn fork(&mut self, parent: &mut Seq, child: &mut Seq) -> Result<Attempt<()>> {
        let size = self.cache.per_block();
        let full = (parent.tokens / size) as usize;
        let tail = parent.blocks[..self.cache.blocks_for(parent.tokens)].get(full).copied();
        let mut fresh = Vec::new();
        child.reserve_like(parent, full + 1)?;
        if !parent.parts.is_empty()
            && let Err(room) = self.fork_parts(parent, child)?
        {
            return Ok(Err(room));
        }
        if tail.is_some()
            && let Err(room) = self.gain(child.keeper, full, 1, &mut fresh)?
        {
            return Ok(Err(room));
        }
        let mut pool = self.cache.pool.lock();
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
            child.plan.push(BlockCopy { from, to, side: NONE });
            // What the copy reads stays until it is made, whatever becomes of the parent. Addresses keep theirs otherwise.
            if parent.keeper == 0 {
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

    /// Lets go of everything.
    pub fn empty(&mut self, seq: &mut Seq) -> Result<()> {
        if seq.doubles && seq.published > 0 {
            // Its double of a block that has left the index since stays there instead.
            let _stands = stand(&mut self.cache.pool.lock(), seq, seq.published as usize - 1);
        }
        self.let_go(seq)?;
        if !seq.parts.is_empty() {
            self.let_parts_go(seq);
        }
        self.let_blocks_go(seq, 0)?;
        seq.stop_publishing();
        seq.published = 0;
        Ok(())
    }

    /// Drops one block; its tokens keep their positions.
    pub fn drop_block(&mut self, seq: &mut Seq, k: usize) -> Result<()> {
        let block = std::mem::replace(&mut seq.blocks[k], NONE);
        if k < seq.shared as usize { self.cache.pool.lock().release_one(block) } else { self.put_back(&[block]) }
    }

    /// Drops the blocks that the next token's window does not reach.
    fn slide(&mut self, seq: &mut Seq) -> Result<()> {
        let end = first_seen(seq.tokens, self.cache.config.window, self.cache.per_block());
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

/// The block that the index has for the tokens up to the end of block `at`, which the sequence has published: that one, or
/// another of the same name. What has left the index since, and is still here, enters it again: when room was needed,
/// another's block went, or was in the way, of which the sequence has a double. `None` if a block that is needed
/// for that was dropped.
pub(super) fn stand(pool: &mut Pool, seq: &Seq, at: usize) -> Option<u32> {
    // Up to a block that the index has, or to the root; then down again.
    let (mut next, mut found) = (at + 1, NONE);
    while let Some(up) = next.checked_sub(1) {
        if seq.blocks[up] == NONE {
            return None;
        }
        if let Some(standing) = pool.standing(seq.blocks[up]) {
            found = standing;
            break;
        }
        next = up;
    }
    for block in &seq.blocks[next..=at] {
        found = match pool.publish_again(*block, seq.root, found, seq.keep) {
            Published::Ours => *block,
            Published::Other(other) | Published::Double(other) => other,
            Published::Refused => return None,
        };
    }
    Some(found)
}

/// The first `count` tokens of a published block, if they are kept.
fn pool_tokens(pool: &Pool, block: u32, count: usize) -> Option<&[u32]> {
    if block == NONE {
        return None;
    }
    pool.tokens_of(block).map(|tokens| &tokens[..count])
}
