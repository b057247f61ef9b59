//! What a thread does at a time: one part of a job, or several whose blocks are on disk and not in memory. A disk is as fast as it can
//! be only when many reads are under way, so those are read together.

use super::exchange::Exchange;
use super::job::{Come, Job, Work};
use super::steps::Step;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::kv::cache::Item;
use crate::store::copy::{Pieces, Slice};
use crate::store::types::{Look, Presence};

/// Most blocks that a thread reads together, and most bytes of them: a cancelled job ends after those that are under way.
const MOST: usize = 16;
const MOST_BYTES: u64 = 8 << 20;

/// Parts that a thread has taken, and what came of each. With room from the beginning: what is taken must not be lost.
pub struct Hand {
    parts: [(usize, Option<Result<()>>); MOST],
    len: usize,
}

impl Default for Hand {
    fn default() -> Self {
        Self { parts: [const { (0, None) }; MOST], len: 0 }
    }
}

impl Hand {
    /// A part was taken. There must be room.
    pub fn put(&mut self, part: usize) {
        self.parts[self.len] = (part, None);
        self.len += 1;
    }

    /// This came of a part, by its number here.
    pub fn settle(&mut self, at: usize, done: Result<()>) {
        self.parts[at].1 = Some(done);
    }

    /// All parts, with what came of them: nothing is left.
    pub fn empty(&mut self) -> impl Iterator<Item = (usize, Option<Result<()>>)> {
        let len = std::mem::take(&mut self.len);
        self.parts[..len].iter_mut().map(|(part, done)| (*part, done.take()))
    }
}

impl Exchange {
    /// Whether a part is the first of a block that is to be fetched, and is on disk and not in memory.
    pub fn is_late(&self, job: &Job, part: usize) -> bool {
        let on_disk = |item: &Item| {
            let key = self.codec.key(item.own_group, item.hash);
            matches!(self.store.presence(&key), Ok(Presence::OnDisk))
        };
        matches!(job.work, Work::In { .. }) && self.store.has_disk() && job.items.get(part).is_some_and(on_disk)
    }

    /// Does the part that was taken, whose block is late, and those that follow it as long as theirs are, too; no more than leaves
    /// some for each thread, all of which look at what comes.
    pub fn read_together(&self, job: &Job, hand: &mut Hand, slices: &mut Vec<Slice>) {
        let most = job.items.len().div_ceil(self.threads).min(MOST);
        let bytes_of = |part: usize| self.codec.block_bytes(job.items[part].own_group);
        let mut bytes = bytes_of(hand.parts[0].0);
        while hand.len < most
            && let Some(part) = job.next_item()
            && bytes + bytes_of(part) <= MOST_BYTES
            && self.is_late(job, part)
        {
            // If another thread was faster, the one behind it may be as well.
            if job.take_if_next(part) {
                bytes += bytes_of(part);
                hand.put(part);
            }
        }
        for at in 1..hand.len {
            if let Err(error) = self.begin(job, hand.parts[at].0) {
                hand.settle(at, Err(error));
            }
        }
        if hand.len > 1 {
            // Without memory for lists they come one after the other.
            let _nothing_came = self.read_late(job, hand, slices);
        }
        for at in 0..hand.len {
            let (part, done) = &mut hand.parts[at];
            // Of what did not come with the others it is told why when it is fetched alone.
            let (part, done) = (*part, done.take());
            let done = match done {
                Some(Ok(())) => self.steps.part(job.number, Step::Copied(part)),
                Some(failed) => failed,
                None => self.part(job, part, slices),
            };
            hand.settle(at, done);
        }
    }

    /// Reads the blocks of all parts of which nothing came yet. Leaves out those that are not there any more, or not as they should be; all,
    /// if it fails.
    fn read_late(&self, job: &Job, hand: &mut Hand, slices: &mut Vec<Slice>) -> Result<()> {
        let mut wanted = memory::with_capacity(hand.len)?;
        let mut comes = memory::with_capacity(hand.len)?;
        slices.clear();
        for (at, (part, _)) in hand.parts[..hand.len].iter().enumerate().filter(|(_, (_, done))| done.is_none()) {
            // Who holds one of these has no other that is waited for here: each item is begun by one thread.
            let come = job.come.get(*part).map(|come| come.lock());
            if come.as_ref().is_some_and(|come| **come != Come::Nothing) {
                continue;
            }
            let (Item { own_group, block, hash }, first) = (job.items[*part], slices.len());
            self.codec.slices(own_group, block, 0..u32::MAX, slices)?;
            wanted.push((at, self.codec.key(own_group, hash), first..slices.len()));
            comes.push(come);
        }
        let slices = &slices[..];
        let item = |number: usize| {
            let (_, key, places) = &wanted[number];
            Ok((&key[..], Pieces::Slices(&slices[places.clone()])))
        };
        self.store.get_many_into(wanted.len(), item, |number, look| match look {
            Ok(Look::Ready(_)) => {
                if let Some(come) = &mut comes[number] {
                    **come = Come::Whole;
                }
                hand.settle(wanted[number].0, Ok(()));
            }
            // It has another size, or is not there.
            Ok(_) => {}
            Err(error) if error.status == NMC_ERR_INVALID_ARG => {}
            Err(error) => hand.settle(wanted[number].0, Err(error)),
        });
        Ok(())
    }
}
