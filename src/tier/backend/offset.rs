//! A bucket is an extent of one large file, which is made once: no names come and go. It is sealed by a record of the journal that
//! says where it lies, and its blocks are free again when another one says durably that it is gone. Journals that are written
//! anew carry the extents that are in use. Blocks are counted from the beginning of the file, everywhere: a reader opens the file
//! once and never asks where an extent begins.
//!
//! Blocks that are used again are no danger to readers: what they read counts only if its entry is still there after the read.

use super::super::config::Config;
use super::super::format::{BLOCK, Entry, Item, Tail};
use super::super::io::{Disk, File, Listed};
use super::super::journal::{Extent, Journal, State};
use super::{Draft, FileId, Found, Place, Storage, check_is, no_bucket, read_end, take_away};
use crate::alloc::runs::{Run, Runs};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::NMC_ERR_INTERNAL;
use crate::layout::disk::Spot;
use parking_lot::Mutex;
use std::sync::Arc;

/// The file that has everything.
pub const DATA_NAME: &str = "kv_cache.data";

/// Which blocks are whose.
#[derive(Default)]
struct Space {
    /// Extents, sealed or being written, by bucket.
    extents: Vec<Extent>,
    /// For the owner.
    runs: Option<Runs>,
    /// Nobody who was killed writes any more.
    quiet: bool,
}

/// See the module.
pub struct Extents {
    disk: Arc<dyn Disk>,
    space: Mutex<Space>,
}

impl Space {
    fn at(&self, bucket: u64) -> Option<usize> {
        self.extents.binary_search_by_key(&bucket, |extent| extent.bucket).ok()
    }

    fn free(&mut self, first: u64, blocks: u64) -> Result<()> {
        match &mut self.runs {
            Some(runs) if blocks > 0 => runs.free(run_of(first, blocks)),
            _ => Ok(()),
        }
    }

    /// The blocks of a bucket may be used again.
    fn release(&mut self, bucket: u64) -> Result<()> {
        let Some(at) = self.at(bucket) else { return Ok(()) };
        let Extent { first, blocks, .. } = self.extents.remove(at);
        self.free(first, blocks)
    }
}

/// Both are below 2^28.
fn run_of(first: u64, blocks: u64) -> Run {
    let short = |blocks: u64| u32::try_from(blocks).unwrap_or(u32::MAX);
    Run { first: short(first), count: short(blocks) }
}

impl Extents {
    /// Those of a directory.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, space: Mutex::default() }
    }

    fn extent(&self, bucket: u64) -> Result<Extent> {
        let space = self.space.lock();
        space.at(bucket).map(|at| space.extents[at]).ok_or_else(|| no_bucket(bucket))
    }

    /// The data file with room for so many blocks. What nobody needs is made anew, since the name or the size of what is there may
    /// not last; neither does what a sync was to make last that failed.
    fn prepare(&self, blocks: u64, is_empty: bool) -> Result<()> {
        let file = if is_empty {
            take_away(&*self.disk, DATA_NAME)?;
            self.disk.create(DATA_NAME, blocks * BLOCK as u64)?
        } else {
            let file = self.disk.open(DATA_NAME, true)?;
            file.truncate(blocks * BLOCK as u64)?;
            file
        };
        file.datasync()?;
        self.disk.sync()
    }
}

impl Storage for Extents {
    fn find(&self, listed: &[Listed], state: &State) -> Result<Found> {
        if !state.extents.is_empty() && !listed.iter().any(|file| file.regular && file.name == DATA_NAME) {
            let count = state.extents.len();
            crate::bail!(NMC_ERR_CORRUPT, "the journal knows {count} buckets in {DATA_NAME}, which is not there");
        }
        let mut found = Found { buckets: memory::collect(state.extents.iter().map(|e| e.bucket))?, ..Found::default() };
        found.last = found.buckets.last().copied().unwrap_or(0);
        for file in listed.iter().filter(|file| !file.regular || file.name != DATA_NAME) {
            memory::push(&mut found.foreign, file.name.clone())?;
        }
        self.space.lock().extents = memory::copy(&state.extents)?;
        Ok(found)
    }

    fn is_in_journal(&self) -> bool {
        true
    }

    fn locate(&self, spot: Spot) -> (FileId, u64) {
        ((0, 0), spot.block)
    }

    fn place(&self, _: FileId) -> Place {
        Place { folders: None, name: DATA_NAME.into() }
    }

    fn list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)> {
        let Extent { first, blocks, .. } = self.extent(bucket)?;
        let data = self.disk.open(DATA_NAME, false)?;
        let (tail, list) = read_end(&*data, (first + blocks) * BLOCK as u64)?;
        check_is(&tail, bucket)?;
        if let Some(item) = tail.items(&list)?.next().transpose()?
            && item.block < first
        {
            crate::bail!(
                NMC_ERR_CORRUPT,
                "bucket {bucket} begins with block {first}, its first record with {}",
                item.block
            );
        }
        Ok((tail, list))
    }

    fn blocks(&self, bucket: u64) -> Result<u64> {
        self.extent(bucket).map(|extent| extent.blocks)
    }

    fn begin(&mut self, config: &Config, state: &State) -> Result<()> {
        let blocks = config.capacity_bytes / BLOCK as u64;
        let space = self.space.get_mut();
        space.extents = memory::copy(&state.extents)?;
        let mut used = memory::collect(state.extents.iter().map(|extent| run_of(extent.first, extent.blocks)))?;
        let end = state.extents.iter().map(|extent| extent.first + extent.blocks).max().unwrap_or(0);
        // What is there stays, though there may be less room by now.
        let blocks = blocks.max(end);
        space.runs = Some(Runs::with_used(u32::try_from(blocks).unwrap_or(u32::MAX), &mut used)?);
        self.prepare(blocks, state.extents.is_empty())
    }

    fn draft(&self, bucket: u64, records: &[u64], list_bytes: u64) -> Result<Box<dyn Draft + '_>> {
        let records: u64 = records.iter().sum();
        let blocks = records + list_bytes.div_ceil(BLOCK as u64);
        let data = self.disk.open(DATA_NAME, true)?;
        let mut space = self.space.lock();
        memory::reserve(&mut space.extents, 1)?;
        let Some(runs) = &mut space.runs else {
            return Err(Error::new(NMC_ERR_INTERNAL, "only the owner of a directory writes there"));
        };
        let Some(run) = u32::try_from(blocks).ok().and_then(|blocks| runs.allocate(blocks)) else {
            let (free, largest) = (runs.fragmentation().free_units, runs.fragmentation().largest_run);
            crate::bail!(
                NMC_ERR_NO_SPACE,
                "{blocks} blocks in a row are needed; {free} are free, {largest} of them in a row"
            );
        };
        let first = u64::from(run.first);
        if !space.quiet {
            // What a former owner had under way when it was killed would end up in our bucket. A hole is not made before
            // that has ended.
            match data.punch(first * BLOCK as u64, BLOCK as u64) {
                Ok(true) => {}
                Ok(false) => log::emit(log::WARN, || {
                    format!("tier: {DATA_NAME}: the file system makes no holes; nobody waits for I/O of a killed owner")
                }),
                Err(error) => {
                    space.free(first, blocks)?;
                    return Err(error);
                }
            }
            space.quiet = true;
        }
        // Numbers only grow.
        space.extents.push(Extent { bucket, first, blocks });
        reach("tier.created");
        Ok(Box::new(DraftExtent { extents: self, bucket, first, end: first + records, data }))
    }

    fn discard(&self, bucket: u64, gone: bool) {
        // If it may come back, nobody else writes there.
        if gone {
            let _ = self.space.lock().release(bucket);
        }
    }

    fn take_away(&self, bucket: u64) -> Result<Option<Box<dyn File>>> {
        self.space.lock().release(bucket).map(|()| None)
    }

    fn take_away_again(&self, gone: &[u64]) -> Result<Vec<u64>> {
        memory::copy(gone)
    }

    fn forget(&self, _: &[u64]) -> Result<()> {
        // There is no name that could come back.
        Ok(())
    }

    fn give_back(&self, _: u64, _: &[(u64, u64)]) -> Result<u64> {
        // They come back with the whole extent.
        Ok(0)
    }

    fn set_aside(&self, _: u64, _: bool) -> Result<bool> {
        Ok(false)
    }

    fn clean(&self, _: &(Option<String>, String)) -> Result<()> {
        Ok(())
    }
}

struct DraftExtent<'a> {
    extents: &'a Extents,
    bucket: u64,
    first: u64,
    /// Behind the last record.
    end: u64,
    data: Box<dyn File>,
}

impl Draft for DraftExtent<'_> {
    fn first(&self) -> u64 {
        self.first
    }

    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        self.data.write_aligned(from, offset)
    }

    fn complete(&mut self, _: &[Item<'_>], list: &[u8]) -> Result<u64> {
        self.data.write(list, self.end * BLOCK as u64)?;
        reach("tier.written");
        self.data.datasync()?;
        reach("tier.synced");
        let blocks = self.end - self.first + list.len() as u64 / BLOCK as u64;
        let mut space = self.extents.space.lock();
        if let Some(at) = space.at(self.bucket) {
            // The list may be shorter than there was room for.
            let reserved = std::mem::replace(&mut space.extents[at].blocks, blocks);
            space.free(self.first + blocks, reserved.saturating_sub(blocks))?;
        }
        Ok(blocks)
    }

    fn seal(&mut self, journal: &Mutex<Journal>) -> Result<()> {
        let extent = self.extents.extent(self.bucket)?;
        let mut journal = journal.lock();
        let Extent { bucket, first, blocks } = extent;
        journal.append(&mut [Entry::Extent { bucket, first, blocks }])?;
        reach("tier.renamed");
        journal.sync()
    }
}
