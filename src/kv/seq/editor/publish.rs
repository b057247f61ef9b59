//! Full blocks that are computed, and whose tokens are known, enter the prefix index, where later sequences find them.

use super::Editor;
use crate::base::error::Result;
use crate::kv::block::NONE;
use crate::kv::pool::{Named, Pool, Published};
use crate::kv::seq::{Placement, Seq};
use std::sync::atomic::Ordering;

impl Editor<'_> {
    /// Puts the full blocks that are computed, and whose tokens are known, into the index.
    #[inline]
    pub fn publish(&mut self, seq: &mut Seq) -> Result<()> {
        let size = self.supply.per_block();
        // Multiplied, not divided: this is asked for every token.
        if seq.computed < (seq.published + 1) * size || !seq.known && seq.ahead.is_empty() {
            return Ok(());
        }
        self.publish_up_to(seq, seq.computed / size)
    }

    #[cold]
    fn publish_up_to(&mut self, seq: &mut Seq, end: u32) -> Result<()> {
        let size = self.supply.per_block() as usize;
        let first = seq.published;
        let mut pool = self.supply.pool.lock();
        let mut swapped = 0;
        // The block of the index that the next one continues; others may have taken the place of the sequence's own.
        let mut parent = match first.checked_sub(1) {
            None => Some(NONE),
            Some(last) => standing_block(&mut pool, seq, last as usize),
        };
        pool.look_ahead_of(&seq.ahead);
        while seq.published < end {
            let at = seq.published as usize;
            let done = at - first as usize;
            pool.look_ahead(&seq.ahead, done);
            let tokens = if seq.known { &seq.pending[done * size..(done + 1) * size] } else { &[] };
            let hash = match seq.ahead.get(done) {
                Some(hash) => *hash,
                None if seq.known => self.supply.config.chain.next(seq.chain, tokens),
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
            for (group, own) in pool.groups.iter_mut().zip(&mut seq.groups) {
                own.publish(group, at, seq.blocks[at]);
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
        if swapped > 0 {
            seq.rewrites += 1;
            self.supply.deduplicated.fetch_add(swapped, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The block that the index has for the tokens up to the end of block `at`, which the sequence has published: that one, or
/// another of the same name. What has left the index since, and is still here, enters it again: when room was needed,
/// another's block went, or was in the way, of which the sequence has a double. `None` if a block that is needed
/// for that was dropped.
pub fn standing_block(pool: &mut Pool, seq: &Seq, at: usize) -> Option<u32> {
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
