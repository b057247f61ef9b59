//! A sequence gets its first blocks, or more of them. One whose blocks follow each other moves if it cannot grow in place.

use super::Editor;
use super::groups::begin_groups;
use crate::alloc::runs::Run;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::config::WhenFull;
use crate::kv::error::Attempt;
use crate::kv::groups::SeqGroup;
use crate::kv::hash::BlockHash;
use crate::kv::pool::Prefix;
use crate::kv::seq::{BlockCopy, Open, Opened, Placement, Seq};

impl Editor<'_> {
    /// Gives a new sequence its blocks: of the cache what it has, the rest fresh.
    pub fn fill(&mut self, seq: &mut Seq, open: &Open<'_>, hashes: &[BlockHash]) -> Result<Attempt<Opened>> {
        let size = self.supply.per_block();
        let known = open.tokens.unwrap_or_default();
        let reusable = if seq.placement != Placement::Run { (open.max_hit / size) as usize } else { 0 };
        let asked = &hashes[..reusable.min(hashes.len())];
        memory::reserve(&mut seq.ahead, hashes.len())?;
        memory::reserve(&mut seq.pending, if seq.known { known.len() } else { 0 })?;
        memory::reserve(&mut seq.blocks, asked.len())?;
        memory::reserve(&mut seq.groups, self.supply.config.own_groups.len())?;
        seq.groups.extend(self.supply.config.own_groups.iter().map(|group| SeqGroup::new(group.kind)));
        seq.groups.iter_mut().try_for_each(|own| own.reserve(usize::MAX, asked.len()))?;
        let hits = if asked.is_empty() {
            0
        } else {
            let mut pool = self.supply.pool.lock();
            let found = pool.acquire_prefix(Prefix { root: seq.root, hashes: asked, tokens: known }, &mut seq.blocks);
            // Under the same lock: until the sequence holds it, others may take what belongs to these blocks.
            begin_groups(&mut pool, seq, found, size);
            found
        };
        #[allow(clippy::cast_possible_truncation, reason = "fewer than the blocks of n_tokens")]
        let hit_blocks = hits as u32;
        (seq.shared, seq.published) = (hit_blocks, hit_blocks);
        let mut tokens = open.n_tokens;
        let want = self.supply.blocks_for(tokens);
        let mut got = self.grow_new(seq, want, want > hits)?;
        if got.is_err() && self.supply.config.when_full == WhenFull::Shorten {
            // With hits alone there would be nothing to compute, unless that is what was asked for.
            let least = usize::from(hits == 0 || open.max_hit < open.n_tokens);
            let mut fits = want - hits;
            // Another group may have even less, and another thread may be quicker.
            while let Err(room) = got {
                let has = match seq.placement {
                    Placement::Run => u64::from(self.supply.pool.lock().longest_run()),
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

    /// The same as [`Editor::grow_all`], for a sequence that is being opened: if it fails, that has nothing.
    fn grow_new(&mut self, seq: &mut Seq, count: usize, writes: bool) -> Result<Attempt<()>> {
        let got = self.grow_all(seq, count, writes);
        if got.is_err() {
            self.empty(seq)?;
        }
        got
    }

    /// Makes a sequence have at least `count` blocks, of all groups as well, and slots for states if tokens are to be
    /// written. A run that cannot grow where it is moves.
    pub fn grow_all(&mut self, seq: &mut Seq, count: usize, writes: bool) -> Result<Attempt<()>> {
        if seq.groups.is_empty() {
            return self.grow(seq, count);
        }
        if let Err(room) = self.grow_groups(seq, count, writes)? {
            return Ok(Err(room));
        }
        let got = self.grow(seq, count);
        if !matches!(got, Ok(Ok(()))) {
            self.shrink_groups(seq, writes);
        }
        got
    }

    fn grow(&mut self, seq: &mut Seq, count: usize) -> Result<Attempt<()>> {
        let Some(more) = count.checked_sub(seq.blocks.len()).filter(|more| *more > 0) else { return Ok(Ok(())) };
        if seq.placement != Placement::Run {
            if seq.address_space == 0 {
                return self.take(more, &mut seq.blocks);
            }
            let first = seq.blocks.len();
            return self.take_at(seq.address_space, first, more, &mut seq.blocks);
        }
        let all = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let total = self.supply.pool.lock().levels().total as usize;
        if count > total {
            return Ok(Err(self.short(count)));
        }
        memory::reserve(&mut seq.blocks, more)?;
        if let Some(last) = seq.blocks.last().copied().filter(|last| *last != NONE)
            && self.supply.pool.lock().extend_run(Run { first: last, count: 1 }, all(more))?
        {
            seq.blocks.extend(last + 1..=last + all(more));
            return Ok(Ok(()));
        }
        self.relocate(seq, all(count))
    }

    /// Moves a contiguous sequence to a new run of `count` blocks. Its blocks so far stay until the next call for it.
    pub(super) fn relocate(&mut self, seq: &mut Seq, count: u32) -> Result<Attempt<()>> {
        let had = seq.blocks.len();
        memory::reserve_to(&mut seq.blocks, count as usize)?;
        memory::reserve(&mut seq.plan, had)?;
        memory::reserve(&mut seq.held, seq.shared as usize)?;
        memory::reserve(&mut seq.left, had)?;
        let mut holes: Vec<usize> = memory::with_capacity(had)?;
        let run = self.supply.pool.lock().take_run(count, self.supply.now())?;
        let Some(run) = run else { return Ok(Err(self.short(count as usize))) };
        let written = self.supply.blocks_for(seq.tokens).min(count as usize);
        let moved = seq.blocks.iter().zip(run.first..).take(written).filter(|(from, _)| **from != NONE);
        seq.plan.extend(moved.map(|(from, to)| BlockCopy { from: *from, to, own_group: NONE }));
        let shared = seq.shared as usize;
        seq.held.extend(seq.blocks[..shared].iter().filter(|block| **block != NONE));
        seq.left.extend(seq.blocks[shared..].iter().filter(|block| **block != NONE));
        seq.rewrites += u32::from(!seq.blocks.is_empty());
        if written > 0 {
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
}
