//! Blocks that are held by something other than a sequence: pins of the program, and transfers, which read blocks that are
//! published or write those of a sequence that waits for them. Each hold has a number, and counts like a sequence.

use super::Cache;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use crate::kv::block::NONE;
use crate::kv::error::busy;
use crate::kv::groups::SeqGroup;
use crate::kv::hash::BlockHash;
use crate::kv::pool::Pool;
use crate::kv::seq::{Editor, standing_block};
use std::sync::atomic::Ordering;

/// Blocks that are held together.
#[derive(Debug, Default)]
pub struct Hold {
    pub blocks: Vec<u32>,
    /// Blocks of groups that have their own, with the group.
    pub of_groups: Vec<(usize, u32)>,
}

impl Hold {
    /// Its blocks of one such group.
    pub fn of_group(&self, own_group: u32) -> impl Iterator<Item = u32> + '_ {
        self.of_groups.iter().filter(move |(number, _)| *number == own_group as usize).map(|(_, block)| *block)
    }

    fn release(&self, pool: &mut Pool) -> Result<()> {
        for (number, block) in &self.of_groups {
            pool.groups[*number].release(*block);
        }
        pool.release(&self.blocks)
    }
}

/// A block that a transfer reads or writes.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// Whose block it is: the number of a group with blocks of its own, or [`NONE`] for the cache's.
    pub own_group: u32,
    pub block: u32,
    /// The name of the block of the index that it is, or belongs to.
    pub hash: BlockHash,
}

fn item_of(own_group: usize, block: u32, hash: BlockHash) -> Item {
    Item { own_group: u32::try_from(own_group).unwrap_or(NONE), block, hash }
}

#[cold]
fn changed(id: u64) -> Error {
    Error::new(NMC_ERR_STALE, format!("sequence {id} changed meanwhile"))
}

#[cold]
fn no_pin(pin: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("there is no pin {pin}; was it ended before?"))
}

impl Cache {
    /// Holds the leading published blocks of a sequence, up to `tokens` tokens, beyond its life. Returns the pin and the
    /// tokens that it covers.
    pub fn pin(&self, id: u64, tokens: u32) -> Result<(u64, u32)> {
        self.with(id, |seq, _| {
            let count = (tokens / self.per_block()).min(seq.published) as usize;
            let mut blocks = memory::collect(seq.blocks[..count].iter().copied().take_while(|block| *block != NONE))?;
            let mut pins = self.pins.lock();
            memory::reserve_map(&mut pins, 1)?;
            let mut pool = self.supply.pool.lock();
            let mut of_groups = memory::with_capacity(blocks.len() * pool.groups.len())?;
            if seq.doubles && !blocks.is_empty() {
                // What is to stay is what the index has for them.
                let mut at = standing_block(&mut pool, seq, blocks.len() - 1).unwrap_or(NONE);
                for block in blocks.iter_mut().rev() {
                    *block = at;
                    at = pool.parent(at);
                }
                let total = pool.levels().total;
                blocks.retain(|block| *block < total);
            }
            for block in &blocks {
                pool.acquire(*block);
            }
            // A group may not have what comes after all of them, but after fewer: there sequences begin.
            let usable = pool.usable(&blocks);
            for (number, group) in pool.groups.iter_mut().enumerate() {
                let first = of_groups.len();
                of_groups.extend(group.needed(&blocks[..usable]).map(|block| (number, block)));
                of_groups[first..].iter().for_each(|(_, block)| group.acquire(*block));
            }
            let covered = u32::try_from(blocks.len()).unwrap_or(0) * self.per_block();
            let pin = self.next_pin.fetch_add(1, Ordering::Relaxed);
            pins.insert(pin, Hold { blocks, of_groups });
            Ok((pin, covered))
        })
    }

    /// Holds the published blocks of the first `tokens` tokens of a sequence as pin `number`, with all that belongs to them
    /// in groups with blocks of their own, and names them.
    pub(in crate::kv) fn hold_published(&self, id: u64, tokens: u32, number: u64) -> Result<Vec<Item>> {
        self.with(id, |seq, editor| {
            editor.publish(seq)?;
            let count = (tokens / self.per_block()).min(seq.published) as usize;
            let held = memory::collect(seq.blocks[..count].iter().copied().filter(|block| *block != NONE))?;
            let mut pins = self.pins.lock();
            memory::reserve_map(&mut pins, 1)?;
            let mut pool = self.supply.pool.lock();
            let most = held.len() * pool.groups.len();
            let (mut items, mut of_groups) = (memory::with_capacity(most + held.len())?, memory::with_capacity(most)?);
            for block in &held {
                pool.acquire(*block);
            }
            for group in 0..pool.groups.len() {
                for owner in &held {
                    if let Some(block) = pool.groups[group].peer(*owner) {
                        pool.groups[group].acquire(block);
                        of_groups.push((group, block));
                        items.push(item_of(group, block, pool.hash(*owner)));
                    }
                }
            }
            items.extend(held.iter().map(|block| Item { own_group: NONE, block: *block, hash: pool.hash(*block) }));
            pins.insert(number, Hold { blocks: held, of_groups });
            Ok(items)
        })
    }

    /// The hashes of all full blocks of a sequence that are known.
    pub(in crate::kv) fn names(&self, id: u64) -> Result<Vec<BlockHash>> {
        self.read(id, |seq| {
            let pool = self.supply.pool.lock();
            let published = seq.blocks[..seq.published as usize].iter();
            let known = published.take_while(|block| **block != NONE).map(|block| pool.hash(*block));
            memory::collect(known.chain(seq.ahead.iter().copied()))
        })
    }

    /// A sequence's number, how many blocks it has, and the hashes of the full ones that it has yet to compute; unless `all`,
    /// the last token is left to compute.
    pub(in crate::kv) fn wanted(&self, id: u64, all: bool) -> Result<(u64, usize, Vec<BlockHash>)> {
        self.read(id, |seq| {
            if seq.fetching != 0 {
                return Err(busy(id));
            }
            let whole = seq.computed <= seq.published * self.per_block();
            let tokens = if all { seq.tokens } else { seq.tokens.saturating_sub(1) };
            let end = (tokens / self.per_block()).saturating_sub(seq.published) as usize;
            let ahead = if whole { memory::copy(&seq.ahead[..end.min(seq.ahead.len())])? } else { Vec::new() };
            Ok((seq.uid, seq.published as usize, ahead))
        })
    }

    /// Holds the blocks for these hashes, which the sequence has yet to compute, as pin `number`; they will be written.
    pub(in crate::kv) fn hold_wanted(&self, id: u64, uid: u64, hashes: &[BlockHash], number: u64) -> Result<Vec<Item>> {
        self.with(id, |seq, _| {
            let (first, count) = (seq.published as usize, hashes.len());
            let resident = seq.blocks.get(first..first + count).filter(|blocks| !blocks.contains(&NONE));
            let (Some(blocks), Some(ahead)) = (resident, seq.ahead.get(..count)) else {
                return Err(changed(id));
            };
            if seq.uid != uid || ahead != hashes {
                return Err(changed(id));
            }
            let held = memory::copy(blocks)?;
            let (mut items, mut of_groups) = (Vec::new(), Vec::new());
            for (number, own) in seq.groups.iter().enumerate() {
                for at in self.supply.needed_from(number, first, first + count) {
                    let Some(block) = own.wanted(at) else {
                        return Err(changed(id));
                    };
                    memory::push(&mut of_groups, (number, block))?;
                    memory::push(&mut items, item_of(number, block, hashes[at - first]))?;
                }
            }
            memory::reserve(&mut items, held.len())?;
            let mut pins = self.pins.lock();
            memory::reserve_map(&mut pins, 1)?;
            let mut pool = self.supply.pool.lock();
            for (number, own) in seq.groups.iter().enumerate() {
                // A fork reads the slot as the state after all tokens, and would find that after those that came.
                if let SeqGroup::State(slots) = own
                    && slots.next != NONE
                    && !pool.groups[number].is_ours_alone(slots.next)
                {
                    crate::bail!(
                        NMC_ERR_UNSUPPORTED,
                        "sequence {id} was forked, and its forks wait for its state: fetch first, then fork"
                    );
                }
            }
            let shared = (seq.shared as usize).saturating_sub(first).min(held.len());
            if held[..shared].iter().any(|block| !pool.is_ours_alone(*block)) {
                crate::bail!(
                    NMC_ERR_UNSUPPORTED,
                    "sequence {id} has blocks to fetch that it shares with a fork, or that were published: fetch first, then fork"
                );
            }
            of_groups.iter().for_each(|(group, block)| pool.groups[*group].acquire(*block));
            for (k, block) in held.iter().enumerate() {
                if k >= shared {
                    pool.share(*block);
                }
                pool.acquire(*block);
            }
            seq.shared = seq.shared.max(u32::try_from(first + count).unwrap_or(u32::MAX));
            (seq.fetching, seq.fetch_from) = (number, seq.published);
            items.extend(held.iter().zip(hashes).map(|(block, hash)| Item {
                own_group: NONE,
                block: *block,
                hash: *hash,
            }));
            pins.insert(number, Hold { blocks: held, of_groups });
            Ok(items)
        })
    }

    /// Transfer `number` is over: the first `good` blocks that it wrote for a sequence are there. Nothing if that is gone. What
    /// is left to compute the program knows when it is told of the end ([`Cache::acknowledge`]), and can do nothing else before.
    pub(in crate::kv) fn land(&self, id: u64, uid: u64, number: u64, good: u32) -> Result<()> {
        let Ok((mut lane, at)) = self.locked(id) else { return Ok(()) };
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        if seq.uid != uid || seq.fetching != number {
            return Ok(());
        }
        let landed = (seq.fetch_from + good) * self.per_block();
        seq.computed = seq.computed.max(landed);
        let mut editor = Editor { supply: &self.supply, spare: &mut lane.spare };
        if seq.groups.is_empty() || good == 0 {
            editor.publish(seq)
        } else {
            self.release_groups_of(number);
            editor.land_groups(seq, landed)
        }
    }

    /// A sequence is about to be closed: what has come for it by now stays, as many blocks as `come` says of the transfer with that number. With groups that
    /// have blocks of their own that would be of no use.
    pub(in crate::kv) fn land_early(&self, id: u64, come: impl FnOnce(u64) -> u32) -> Result<()> {
        let (mut lane, at) = self.locked(id)?;
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        if seq.fetching == 0 || !seq.groups.is_empty() {
            return Ok(());
        }
        let landed = (seq.fetch_from + come(seq.fetching)) * self.per_block();
        seq.computed = seq.computed.max(landed);
        Editor { supply: &self.supply, spare: &mut lane.spare }.publish(seq)
    }

    /// The program knows that transfer `number` is over, and how it ended. From now on what it asks of the sequence counts.
    pub(in crate::kv) fn acknowledge(&self, id: u64, uid: u64, number: u64) {
        let Ok((mut lane, at)) = self.locked(id) else { return };
        let seq = &mut lane.seqs[at];
        if seq.uid == uid && seq.fetching == number {
            seq.fetching = 0;
            seq.find_ceiling(self.per_block(), self.supply.config.window);
        }
    }

    /// What a transfer wrote to groups with blocks of their own is the sequence's alone again.
    fn release_groups_of(&self, number: u64) {
        let mut pins = self.pins.lock();
        let of_groups = pins.get_mut(&number).map(|hold| std::mem::take(&mut hold.of_groups)).unwrap_or_default();
        let mut pool = self.supply.pool.lock();
        of_groups.iter().for_each(|(group, block)| pool.groups[*group].release(*block));
    }

    /// Ends a pin.
    pub fn unpin(&self, pin: u64) -> Result<()> {
        // Holds of transfers have other numbers.
        if pin >> 63 == 1 { Err(no_pin(pin)) } else { self.release_hold(pin) }
    }

    /// Ends a pin, or the hold of a transfer.
    pub(in crate::kv) fn release_hold(&self, number: u64) -> Result<()> {
        let mut pins = self.pins.lock();
        let Some(hold) = pins.remove(&number) else { return Err(no_pin(number)) };
        hold.release(&mut self.supply.pool.lock())
    }
}
