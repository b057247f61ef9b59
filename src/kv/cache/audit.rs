//! Proof that no block is lost or owned twice: every block of the pool is looked up among the sequences, the pins and
//! the free ones, and the counts are compared with what is found.

use super::hold::Hold;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::error::audit_found as wrong;
use crate::kv::groups::SeqGroup;
use crate::kv::pool::Pool;
use crate::kv::seq::Seq;

/// The first thing that is wrong, if anything is. The caller holds every lock.
pub(super) fn check<'a>(
    pool: &Pool,
    seqs: impl Iterator<Item = &'a Seq>,
    spares: impl Iterator<Item = &'a [u32]>,
    pins: impl Iterator<Item = &'a Hold>,
) -> Result<()> {
    let total = pool.blocks().total() as usize;
    let mut holders = memory::zeroed::<u32>(total)?;
    let mut private = memory::vec_of(total, false)?;
    let mut groups = memory::try_collect(pool.groups.iter().map(|group| memory::zeroed::<u32>(group.total())))?;
    let mut own = |block: u32, whose: &str| match private.get_mut(block as usize) {
        None => Err(wrong(format!("block {block} of {whose} is not one of {total}"))),
        Some(taken) if *taken => Err(wrong(format!("block {block} of {whose} has another owner"))),
        Some(taken) => {
            *taken = true;
            Ok(())
        }
    };
    for seq in seqs {
        for block in seq.private() {
            own(block, &format!("sequence {}", seq.id))?;
        }
        let own = seq.groups.iter().enumerate().flat_map(|(group, own)| own.held().map(move |block| (group, block)));
        for (group, block) in own.chain(seq.lent.iter().copied()) {
            let count = groups.get_mut(group).and_then(|group| group.get_mut(block as usize));
            *count.ok_or_else(|| wrong(format!("sequence {} holds block {block} of group {group}", seq.id)))? += 1;
        }
        if let Some(places) = seq.groups.iter().filter_map(SeqGroup::places).find(|places| *places != seq.blocks.len())
        {
            let (id, blocks) = (seq.id, seq.blocks.len());
            return Err(wrong(format!("sequence {id} has {blocks} blocks, and places for {places} in a group")));
        }
        for block in seq.counted() {
            let count = holders.get_mut(block as usize);
            *count.ok_or_else(|| wrong(format!("sequence {} holds block {block}", seq.id)))? += 1;
        }
        // Behind a block that it dropped, or has a double of, what the sequence published may have left the index.
        for (at, block) in
            seq.blocks[..seq.published as usize].iter().enumerate().take_while(|(_, block)| **block != NONE)
        {
            if !seq.doubles && !pool.info(*block).is_published() {
                return Err(wrong(format!("block {block} of sequence {} at {at} is not in the index", seq.id)));
            }
        }
    }
    for block in spares.flatten() {
        own(*block, "the spare blocks")?;
    }
    for hold in pins {
        hold.blocks.iter().for_each(|block| holders[*block as usize] += 1);
        hold.of_groups.iter().for_each(|(group, block)| groups[*group][*block as usize] += 1);
    }
    for (group, holders) in pool.groups.iter().zip(&groups) {
        group.check(holders, |owner| pool.info(owner).is_published())?;
    }
    let mut free = 0;
    for block in 0..pool.blocks().total() {
        let at = block as usize;
        let counted = holders[at] > 0 || pool.info(block).is_published();
        if counted && pool.info(block).refs != holders[at] {
            let refs = pool.info(block).refs;
            return Err(wrong(format!("block {block} has {} holders, its count says {refs}", holders[at])));
        }
        let used = pool.is_used(block);
        free += u32::from(!used);
        match (counted, private[at], used) {
            (true, false, true) | (false, true, true) | (false, false, false) => {}
            (true, true, _) => return Err(wrong(format!("block {block} is private and shared"))),
            (false, false, true) => return Err(wrong(format!("block {block} is lost: in use, but nobody has it"))),
            _ => return Err(wrong(format!("block {block} is free, but somebody has it"))),
        }
    }
    if free != pool.levels().free {
        return Err(wrong(format!("{free} blocks are free, the count says {}", pool.levels().free)));
    }
    pool.check()
}
