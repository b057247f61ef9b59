//! Groups with blocks of their own, as far as the whole cache has something to say about them: states that are kept, the slots
//! of states, and numbers.

use super::Cache;
use crate::base::error::Result;
use crate::kv::groups::{GroupPool, GroupStats, OwnKind, SeqGroup};

impl Cache {
    /// Numbers about a group with blocks of its own.
    pub fn group_stats(&self, own_group: u32) -> GroupStats {
        self.supply.pool.lock().groups.get(own_group as usize).map(GroupPool::stats).unwrap_or_default()
    }

    /// Keeps the state that a sequence has now for others that begin with the same tokens. Counts all of them as computed.
    pub fn keep_state(&self, id: u64) -> Result<()> {
        let size = self.per_block();
        self.with(id, |seq, editor| {
            if !self.supply.config.own_groups.iter().any(|group| matches!(group.kind, OwnKind::State { .. })) {
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
            editor.publish(seq)?;
            if seq.published < seq.tokens / size {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "the tokens of sequence {} are not in the prefix index, so nobody could find its state",
                    seq.id
                );
            }
            editor.settle_groups(seq, true);
            Ok(())
        })
    }

    /// For the tokens that the last call gave room for: the slot that holds the state before them ([`NONE`](crate::kv::NONE) if they are the
    /// first), and the one that gets the state after them (`NONE` if there are none).
    pub fn state_slots(&self, id: u64, own_group: u32) -> Result<(u32, u32)> {
        self.read(id, |seq| match seq.groups.get(own_group as usize) {
            Some(SeqGroup::State(slots)) => Ok((slots.state, slots.next)),
            _ => crate::bail!(NMC_ERR_INVALID_ARG, "the group is not of kind NMC_KV_KIND_RECURRENT"),
        })
    }
}
