//! A cache and the store that it exchanges blocks with: what a thread does with one part of a job, and how much of a prompt
//! the store has.

use super::codec::Codec;
use super::hand::Hand;
use super::job::{Come, Job, Ticket, Work};
use super::queue::Queue;
use super::steps::{Step, Steps};
use super::{After, Wait};
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_STALE};
use crate::kv::block::NONE;
use crate::kv::cache::{Cache, Item};
use crate::kv::hash::BlockHash;
use crate::store::Store;
use crate::store::copy::{Pieces, Slice};
use crate::store::types::{Look, Presence, PutOptions, Sums};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long a block that somebody else stores is waited for, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// What the threads of a link share.
pub struct Exchange {
    pub cache: Arc<Cache>,
    pub codec: Codec,
    pub store: Store,
    pub queue: Queue,
    /// How many they are.
    pub threads: usize,
    /// What moves come after that make room.
    pub before_moves: Mutex<After>,
    pub steps: Steps,
}

impl Exchange {
    /// Checks what a job is to wait for.
    pub fn wait_of(&self, after: After) -> Result<Wait> {
        Wait::new(after, self.store.client().member().device(), self.codec.arena())
    }

    /// Does a part that was taken; if its block is on disk, others with it that are taken for that.
    pub fn parts(&self, job: &Job, first: usize, hand: &mut Hand, slices: &mut Vec<Slice>) {
        hand.put(first);
        match self.begin(job, first) {
            Ok(()) if self.is_late(job, first) => self.read_together(job, hand, slices),
            begun => hand.settle(0, begun.and_then(|()| self.part(job, first, slices))),
        }
    }

    /// What comes before the copy of a part.
    pub fn begin(&self, job: &Job, part: usize) -> Result<()> {
        self.steps.part(job.number, Step::Taken(part))?;
        job.ticket.check()?;
        // For all threads, the first one waits.
        job.ready.get_or_init(|| job.wait.wait()).clone()?;
        self.steps.part(job.number, Step::Waited(part))
    }

    /// Does one part of a job, which has begun.
    pub fn part(&self, job: &Job, part: usize, slices: &mut Vec<Slice>) -> Result<()> {
        let item = job.items[part % job.items.len()];
        match job.work {
            Work::Out => self.send(item, &job.ticket, slices),
            Work::In { by_layer: true, .. } => {
                let layer = u32::try_from(part / job.items.len()).unwrap_or(u32::MAX);
                self.fetch_layer(item, layer, &mut job.come[part % job.items.len()].lock(), slices)
            }
            Work::In { .. } => self.fetch(item, 0..u32::MAX, None, slices).map(drop),
        }?;
        self.steps.part(job.number, Step::Copied(part))
    }

    fn send(&self, Item { own_group, block, hash }: Item, ticket: &Ticket, slices: &mut Vec<Slice>) -> Result<()> {
        let key = self.codec.key(own_group, hash);
        let patience = Deadline::after(PATIENCE);
        while !self.store.exists(&key)? {
            slices.clear();
            self.codec.slices(own_group, block, 0..u32::MAX, slices)?;
            match self.store.put(&key, &Pieces::Slices(slices), &PutOptions::DEFAULT) {
                // Somebody else computed the same block and stores it, or has begun to and died.
                Err(error) if error.status == NMC_ERR_EXISTS => {
                    ticket.check()?;
                    if patience.left().is_zero() {
                        crate::bail!(
                            NMC_ERR_BUSY,
                            "another process has not come to an end with storing block {hash:?}"
                        );
                    }
                    if self.store.wait_ready(&key, None, false, &Deadline::after(LOOK)).is_err() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                other => return other,
            }
        }
        Ok(())
    }

    /// The next layer of a block, of the same value as those before it. What is not in memory comes at once, with the first of them: from disk, or from
    /// elsewhere, each would cost as much as all.
    fn fetch_layer(&self, item: Item, layer: u32, come: &mut Come, slices: &mut Vec<Slice>) -> Result<()> {
        *come = match *come {
            Come::Whole => Come::Whole,
            Come::Of(put) => Come::Of(self.fetch(item, layer..layer + 1, Some(put), slices)?),
            Come::Nothing => {
                let in_memory = self.store.presence(&self.codec.key(item.own_group, item.hash))? == Presence::Ready;
                match self.fetch(item, if in_memory { layer..layer + 1 } else { 0..u32::MAX }, None, slices) {
                    Ok(put) if in_memory && put != 0 => Come::Of(put),
                    Ok(_) if !in_memory => Come::Whole,
                    // It has just left for where nobody knows which it is.
                    Ok(_) => {
                        self.fetch(item, 0..u32::MAX, None, slices)?;
                        Come::Whole
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(())
    }

    /// Layers of a block, of any value or of the one that came from a put. Gives that, 0 if nobody knows.
    fn fetch(&self, item: Item, layers: Range<u32>, of: Option<u64>, slices: &mut Vec<Slice>) -> Result<u64> {
        let Item { own_group, block, hash } = item;
        slices.clear();
        self.codec.slices(own_group, block, 0..layers.start, slices)?;
        let offset = slices.iter().map(|slice| slice.bytes()).sum();
        slices.clear();
        self.codec.slices(own_group, block, layers.clone(), slices)?;
        let pieces = Pieces::Slices(slices);
        let expected = self.codec.block_bytes(own_group);
        // Layers come from the same pages; a layer counts only when all before it have come.
        let sums = if layers == (0..u32::MAX) { Sums::Touched } else { Sums::Begun };
        let mut read = 0;
        let fits = |bytes, put| {
            read = put;
            match of {
                Some(of) if of != put => {
                    Err(Error::new(NMC_ERR_STALE, format!("block {hash:?} was replaced meanwhile")))
                }
                _ => Ok(bytes == expected),
            }
        };
        match self.store.read_with(&self.codec.key(own_group, hash), offset, &pieces, sums, fits)? {
            Look::Ready(bytes) if bytes == expected => Ok(read),
            Look::Ready(bytes) => {
                crate::bail!(NMC_ERR_CORRUPT, "block {hash:?} has {bytes} bytes in the store, not {expected}")
            }
            _ => Err(Error::new(NMC_ERR_STALE, format!("block {hash:?} left the store in the meantime"))),
        }
    }

    /// How many leading blocks of these the store has.
    pub fn leading(&self, hashes: &[BlockHash]) -> Result<usize> {
        let keys = memory::collect(hashes.iter().map(|hash| self.codec.key(NONE, *hash)))?;
        self.store.match_prefix(keys.iter().map(|key| Ok(&key[..])))
    }

    /// How many of these blocks, of which the store has the first `stored`, a sequence can begin with that has the first
    /// `first` already, so that every group has what comes next.
    pub fn usable(&self, hashes: &[BlockHash], first: usize, stored: usize) -> Result<usize> {
        let has = |own_group: usize, at: usize| {
            let own_group = u32::try_from(own_group).unwrap_or(NONE);
            self.store.exists(&self.codec.key(own_group, hashes[at - first]))
        };
        let mut end = first + stored;
        let mut settled = false;
        while !settled && end > first {
            settled = true;
            for own_group in 0..self.codec.own_groups() {
                for at in self.cache.supply.needed_from(own_group, first, end).rev() {
                    if !has(own_group, at)? {
                        // A window may begin behind what is missing; a state needs an earlier one.
                        (end, settled) = (at, false);
                        break;
                    }
                }
            }
        }
        Ok(end.saturating_sub(first))
    }
}
