//! Blocks that are held by something other than a sequence: pins of the program, and transfers, which read blocks that are
//! published or write those of a sequence that waits for them. Each hold has a number, and counts like a sequence.

use super::cache::Cache;
use super::hands::{Hands, stand};
use super::hash::BlockHash;
use super::lists::NONE;
use super::parts::Part;
use super::pool::Pool;
use super::transfer::Item;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_NOT_FOUND;
use std::sync::atomic::Ordering;

/// Blocks that are held together.
#[derive(Debug, Default)]
pub(super) struct Hold {
    pub blocks: Vec<u32>,
    /// Blocks of sides, with their sides.
    pub parts: Vec<(usize, u32)>,
}

impl Hold {
    /// Its blocks of one side.
    pub fn of_side(&self, side: u32) -> impl Iterator<Item = u32> + '_ {
        self.parts.iter().filter(move |(number, _)| *number == side as usize).map(|(_, block)| *block)
    }

    /// Lets go of everything.
    fn release(&self, pool: &mut Pool) -> Result<()> {
        for (number, block) in &self.parts {
            pool.sides[*number].release(*block);
        }
        pool.release(&self.blocks)
    }
}

fn item_of(side: usize, block: u32, hash: BlockHash) -> Item {
    Item { side: u32::try_from(side).unwrap_or(NONE), block, hash }
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
            let mut pool = self.pool.lock();
            let mut parts = memory::with_capacity(blocks.len() * pool.sides.len())?;
            if seq.doubles && !blocks.is_empty() {
                // What is to stay is what the index has for them.
                let mut at = stand(&mut pool, seq, blocks.len() - 1).unwrap_or(NONE);
                for block in blocks.iter_mut().rev() {
                    *block = at;
                    at = pool.info.get(at as usize).map_or(NONE, |entry| entry.parent);
                }
                blocks.retain(|block| pool.info.get(*block as usize).is_some());
            }
            for block in &blocks {
                pool.acquire(*block);
            }
            // Sides may not have what comes after all of them, but after fewer: there sequences begin.
            let usable = pool.usable(&blocks);
            for (number, side) in pool.sides.iter_mut().enumerate() {
                let first = parts.len();
                parts.extend(side.needed(&blocks[..usable]).map(|block| (number, block)));
                parts[first..].iter().for_each(|(_, block)| side.acquire(*block));
            }
            let covered = u32::try_from(blocks.len()).unwrap_or(0) * self.per_block();
            let pin = self.next_pin.fetch_add(1, Ordering::Relaxed);
            pins.insert(pin, Hold { blocks, parts });
            Ok((pin, covered))
        })
    }

    /// Holds the published blocks of the first `tokens` tokens of a sequence as pin `number`, with all that belongs to them
    /// in sides, and names them.
    pub(super) fn hold_published(&self, id: u64, tokens: u32, number: u64) -> Result<Vec<Item>> {
        self.with(id, |seq, hands| {
            hands.publish(seq)?;
            let count = (tokens / self.per_block()).min(seq.published) as usize;
            let held = memory::collect(seq.blocks[..count].iter().copied().filter(|block| *block != NONE))?;
            let mut pins = self.pins.lock();
            memory::reserve_map(&mut pins, 1)?;
            let mut pool = self.pool.lock();
            let most = held.len() * pool.sides.len();
            let (mut items, mut parts) = (memory::with_capacity(most + held.len())?, memory::with_capacity(most)?);
            for block in &held {
                pool.acquire(*block);
            }
            for side in 0..pool.sides.len() {
                for owner in &held {
                    if let Some(block) = pool.sides[side].peer(*owner) {
                        pool.sides[side].acquire(block);
                        parts.push((side, block));
                        items.push(item_of(side, block, pool.hash(*owner)));
                    }
                }
            }
            items.extend(held.iter().map(|block| Item { side: NONE, block: *block, hash: pool.hash(*block) }));
            pins.insert(number, Hold { blocks: held, parts });
            Ok(items)
        })
    }

    /// The hashes of all full blocks of a sequence that are known.
    pub(super) fn names(&self, id: u64) -> Result<Vec<BlockHash>> {
        self.read(id, |seq| {
            let pool = self.pool.lock();
            let published = seq.blocks[..seq.published as usize].iter();
            let known = published.take_while(|block| **block != NONE).map(|block| pool.hash(*block));
            memory::collect(known.chain(seq.ahead.iter().copied()))
        })
    }

    /// A sequence's number, how many blocks it has, and the hashes of the full ones that it has yet to compute; unless `all`,
    /// the last token is left to compute.
    pub(super) fn wanted(&self, id: u64, all: bool) -> Result<(u64, usize, Vec<BlockHash>)> {
        self.read(id, |seq| {
            if seq.fetching != 0 {
                return Err(super::transfer::busy(id));
            }
            let whole = seq.computed <= seq.published * self.per_block();
            let tokens = if all { seq.tokens } else { seq.tokens.saturating_sub(1) };
            let end = (tokens / self.per_block()).saturating_sub(seq.published) as usize;
            let ahead = if whole { memory::copy(&seq.ahead[..end.min(seq.ahead.len())])? } else { Vec::new() };
            Ok((seq.uid, seq.published as usize, ahead))
        })
    }

    /// Holds the blocks for these hashes, which the sequence has yet to compute, as pin `number`; they will be written.
    pub(super) fn hold_wanted(&self, id: u64, uid: u64, hashes: &[BlockHash], number: u64) -> Result<Vec<Item>> {
        self.with(id, |seq, _| {
            let (first, count) = (seq.published as usize, hashes.len());
            let there = seq.blocks.get(first..first + count).filter(|blocks| !blocks.contains(&NONE));
            let (Some(blocks), Some(ahead)) = (there, seq.ahead.get(..count)) else {
                crate::bail!(NMC_ERR_STALE, "sequence {id} changed meanwhile");
            };
            if seq.uid != uid || ahead != hashes {
                crate::bail!(NMC_ERR_STALE, "sequence {id} changed meanwhile");
            }
            let held = memory::copy(blocks)?;
            let (mut items, mut parts) = (Vec::new(), Vec::new());
            for (number, part) in seq.parts.iter().enumerate() {
                for at in self.needed_from(number, first, first + count) {
                    let Some(block) = part.wanted(at) else {
                        crate::bail!(NMC_ERR_STALE, "sequence {id} changed meanwhile");
                    };
                    memory::push(&mut parts, (number, block))?;
                    memory::push(&mut items, item_of(number, block, hashes[at - first]))?;
                }
            }
            memory::reserve(&mut items, held.len())?;
            let mut pins = self.pins.lock();
            memory::reserve_map(&mut pins, 1)?;
            let mut pool = self.pool.lock();
            for (number, part) in seq.parts.iter().enumerate() {
                // A fork reads the slot as the state after all tokens, and would find that after those that came.
                if let Part::State(slots) = part
                    && slots.next != NONE
                    && !pool.sides[number].is_ours_alone(slots.next)
                {
                    crate::bail!(
                        NMC_ERR_UNSUPPORTED,
                        "sequence {id} was forked, and its forks wait for its state: fetch first, then fork"
                    );
                }
            }
            parts.iter().for_each(|(side, block)| pool.sides[*side].acquire(*block));
            for (k, block) in held.iter().enumerate() {
                if first + k >= seq.shared as usize {
                    pool.share(*block);
                }
                pool.acquire(*block);
            }
            seq.shared = seq.shared.max(u32::try_from(first + count).unwrap_or(u32::MAX));
            seq.fetching = number;
            items.extend(held.iter().zip(hashes).map(|(block, hash)| Item { side: NONE, block: *block, hash: *hash }));
            pins.insert(number, Hold { blocks: held, parts });
            Ok(items)
        })
    }

    /// Transfer `number` is over: the first `good` blocks that it wrote for a sequence are there. Nothing if that is gone. What
    /// is left to compute the program knows when it is told of the end ([`Cache::told`]), and can do nothing else before.
    pub(super) fn land(&self, id: u64, uid: u64, number: u64, good: u32) -> Result<()> {
        let Ok((mut lane, at)) = self.locked(id) else { return Ok(()) };
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        if seq.uid != uid || seq.fetching != number {
            return Ok(());
        }
        let landed = (seq.published + good) * self.per_block();
        seq.computed = seq.computed.max(landed);
        let mut hands = Hands { cache: self, spare: &mut lane.spare };
        if seq.parts.is_empty() || good == 0 {
            hands.publish(seq)
        } else {
            self.let_parts_of_hold_go(number);
            hands.land_parts(seq, landed)
        }
    }

    /// The program knows that transfer `number` is over, and how it ended. From now on what it asks of the sequence counts.
    pub(super) fn told(&self, id: u64, uid: u64, number: u64) {
        let Ok((mut lane, at)) = self.locked(id) else { return };
        let seq = &mut lane.seqs[at];
        if seq.uid == uid && seq.fetching == number {
            seq.fetching = 0;
            seq.find_ceiling(self.config.tokens_per_block, self.config.window);
        }
    }

    /// What a transfer wrote to sides is the sequence's alone again.
    fn let_parts_of_hold_go(&self, number: u64) {
        let mut pins = self.pins.lock();
        let parts = pins.get_mut(&number).map(|hold| std::mem::take(&mut hold.parts)).unwrap_or_default();
        let mut pool = self.pool.lock();
        parts.iter().for_each(|(side, block)| pool.sides[*side].release(*block));
    }

    /// Ends a pin.
    pub fn unpin(&self, pin: u64) -> Result<()> {
        // Holds of transfers have other numbers.
        if pin >> 63 == 1 { Err(no_pin(pin)) } else { self.let_hold_go(pin) }
    }

    /// Ends a pin, or the hold of a transfer.
    pub(super) fn let_hold_go(&self, number: u64) -> Result<()> {
        let mut pins = self.pins.lock();
        let Some(hold) = pins.remove(&number) else { return Err(no_pin(number)) };
        hold.release(&mut self.pool.lock())
    }
}
