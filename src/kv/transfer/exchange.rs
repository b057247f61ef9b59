//! A cache and the store that it exchanges blocks with: what a thread does with one part of a job, and how much of a prompt
//! the store has.

use super::codec::Codec;
use super::job::{Job, Work};
use super::queue::Queue;
use super::steps::{Step, Steps};
use super::{After, Wait};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_STALE};
use crate::kv::block::NONE;
use crate::kv::cache::{Cache, Item};
use crate::kv::hash::BlockHash;
use crate::store::Store;
use crate::store::copy::{Pieces, Slice};
use crate::store::read::{Look, Presence, Sums};
use crate::store::write::PutOptions;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// What the threads of a link share.
pub struct Exchange {
    pub cache: Arc<Cache>,
    pub codec: Codec,
    pub store: Store,
    pub queue: Queue,
    /// What moves come after that make room.
    pub before_moves: Mutex<After>,
    pub steps: Steps,
}

impl Exchange {
    /// Checks what a job is to wait for.
    pub fn wait_of(&self, after: After) -> Result<Wait> {
        Wait::new(after, self.store.client().member().device(), self.codec.arena())
    }

    /// Does one part of a job.
    pub fn part(&self, job: &Job, part: usize, slices: &mut Vec<Slice>) -> Result<()> {
        self.steps.part(job.number, Step::Taken(part))?;
        job.ticket.check()?;
        // For all threads, the first one waits.
        job.ready.get_or_init(|| job.wait.wait()).clone()?;
        self.steps.part(job.number, Step::Waited(part))?;
        let item = job.items[part % job.items.len()];
        match job.work {
            Work::Out => self.send(item, slices),
            Work::In { by_layer: true, .. } => {
                let layer = u32::try_from(part / job.items.len()).unwrap_or(u32::MAX);
                if layer == 0 {
                    self.stage(item)?;
                }
                self.fetch(item, layer..layer + 1, slices)
            }
            Work::In { .. } => self.fetch(item, 0..u32::MAX, slices),
        }?;
        self.steps.part(job.number, Step::Copied(part))
    }

    fn send(&self, Item { own_group, block, hash }: Item, slices: &mut Vec<Slice>) -> Result<()> {
        let key = self.codec.key(own_group, hash);
        if self.store.exists(&key)? {
            return Ok(());
        }
        slices.clear();
        self.codec.slices(own_group, block, 0..u32::MAX, slices)?;
        match self.store.put(&key, &Pieces::Slices(slices), &PutOptions::DEFAULT) {
            // Somebody else computed and stored the same block.
            Err(error) if error.status == NMC_ERR_EXISTS => Ok(()),
            other => other,
        }
    }

    /// A block that comes layer by layer is read from disk once, into the store's memory. If there is no room, each layer is read by
    /// itself.
    fn stage(&self, Item { own_group, hash, .. }: Item) -> Result<()> {
        let key = self.codec.key(own_group, hash);
        if self.store.presence(&key)? == Presence::OnDisk {
            self.store.promote(&[&key], self.store.rank(), |_, _| ());
        }
        Ok(())
    }

    fn fetch(&self, item: Item, layers: Range<u32>, slices: &mut Vec<Slice>) -> Result<()> {
        let Item { own_group, block, hash } = item;
        slices.clear();
        self.codec.slices(own_group, block, 0..layers.start, slices)?;
        let offset = slices.iter().map(|slice| slice.bytes).sum();
        slices.clear();
        self.codec.slices(own_group, block, layers.clone(), slices)?;
        let pieces = Pieces::Slices(slices);
        let expected = self.codec.block_bytes(own_group);
        // Layers come from the same pages; a layer counts only when all before it have come.
        let sums = if layers == (0..u32::MAX) { Sums::Touched } else { Sums::Begun };
        match self
            .store
            .read_with(&self.codec.key(own_group, hash), offset, &pieces, sums, |bytes| Ok(bytes == expected))?
        {
            Look::Ready(bytes) if bytes == expected => Ok(()),
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
