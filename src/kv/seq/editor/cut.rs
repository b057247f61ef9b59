//! A sequence is cut to fewer tokens, or loses all its blocks.

use super::Editor;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::error::Attempt;
use crate::kv::groups::first_seen;
use crate::kv::pool::Pool;
use crate::kv::seq::{BlockCopy, Placement, Seq};

impl Editor<'_> {
    /// Cuts a sequence to `tokens` tokens. A block of which only a part stays, and that others may read, is copied.
    pub fn truncate(&mut self, seq: &mut Seq, tokens: u32) -> Result<Attempt<()>> {
        self.check_window(seq, tokens)?;
        if seq.groups.is_empty() {
            return self.cut_blocks(seq, tokens);
        }
        if tokens == seq.tokens {
            let cut = self.cut_blocks(seq, tokens);
            // What was reserved goes in the groups as well.
            self.shrink_groups(seq, false);
            return cut;
        }
        let ready = match self.prepare_cut(seq, tokens)? {
            Ok(ready) => ready,
            Err(room) => return Ok(Err(room)),
        };
        let cut = self.cut_blocks(seq, tokens);
        match cut {
            Ok(Ok(())) => self.cut_groups(seq, tokens, ready),
            _ => self.abandon_cut(&ready),
        }
        cut
    }

    /// Fails if blocks left the window that the next token after `tokens` would see.
    fn check_window(&self, seq: &Seq, tokens: u32) -> Result<()> {
        let (window, size) = (self.supply.config.window, self.supply.per_block());
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
        let size = self.supply.per_block();
        let keep = self.supply.blocks_for(tokens);
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
            let pool = self.supply.pool.lock();
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
        self.release_blocks(seq, keep)?;
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
            let mut pool = self.supply.pool.lock();
            pool.is_ours_alone(tail) || (pool.info(tail).refs == 1 && pool.unpublish(tail))
        };
        if !alone && seq.placement == Placement::Run {
            return self.relocate(seq, u32::try_from(keep).unwrap_or(u32::MAX));
        }
        // The blocks behind it must be released as what they are, before the count of shared ones shrinks.
        let mut fresh = Vec::new();
        if !alone && let Err(room) = self.take(1, &mut fresh)? {
            return Ok(Err(room));
        }
        self.release_blocks(seq, keep)?;
        seq.shared = u32::try_from(keep - 1).unwrap_or(u32::MAX);
        if let Some(fresh) = fresh.pop() {
            seq.plan.push(BlockCopy { from: tail, to: fresh, own_group: NONE });
            seq.blocks[keep - 1] = fresh;
            seq.held.push(tail);
            seq.rewrites += 1;
        }
        Ok(Ok(()))
    }

    /// Releases all blocks from the `keep`th on, the last first.
    pub(super) fn release_blocks(&mut self, seq: &mut Seq, keep: usize) -> Result<()> {
        let shared = seq.shared as usize;
        if shared > keep {
            let mut pool = self.supply.pool.lock();
            for block in seq.blocks[keep..shared].iter().rev().filter(|block| **block != NONE) {
                pool.release_one(*block)?;
            }
        }
        let private = shared.max(keep);
        if seq.blocks.len() > private && seq.address_space != 0 {
            self.keep_mapped(seq.address_space, private, &seq.blocks[private..])?;
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
}

/// The first `count` tokens of a published block, if they are kept.
fn pool_tokens(pool: &Pool, block: u32, count: usize) -> Option<&[u32]> {
    if block == NONE {
        return None;
    }
    pool.tokens_of(block).map(|tokens| &tokens[..count])
}
