//! The addresses of one virtual sequence, and the pages that are mapped there. The addresses are an arena of the sequence's
//! own ([`Geometry`]) in which its blocks follow each other, with one place more for what a copy reads. What lies outside
//! the blocks in the layout splits it into planes: one for each layer and side, one for each head as well, or one in
//! all. A page is one block in one plane, so a block has a page in every plane, and these come and go together.

use super::geometry::Geometry;
use crate::alloc::pages::PageId;
use crate::base::error::Result;
use crate::base::memory;
use crate::cuda::Device;
use crate::kv::block::NONE;
use crate::kv::error::audit_found as wrong;
use crate::mem::{PagePool, PageRange};
use std::ops::Range;
use std::sync::Arc;

/// A place of which some pages could not be unmapped: no block is there, and it is tried again before one is mapped.
const TORN: u32 = NONE - 1;

/// A group of layers: its pages, of which the block `b` in plane `p` has the number `p * blocks + b`.
#[derive(Debug)]
pub(super) struct MappedGroup {
    /// Of the addresses of one sequence.
    pub geometry: Geometry,
    pool: PagePool,
    pub planes: u32,
    pub blocks: u32,
    /// Blocks that fit the addresses.
    places: u32,
}

impl MappedGroup {
    /// Gets memory for `blocks` blocks, on the host or on a device.
    pub fn new(geometry: Geometry, blocks: u32, device: Option<&Arc<Device>>) -> Result<Self> {
        let planes = u32::try_from(geometry.pieces_per_block()).ok();
        let pages = planes.and_then(|planes| planes.checked_mul(blocks));
        let places = u32::try_from(geometry.shape().total_blocks).ok();
        let (Some(planes), Some(pages), Some(places)) = (planes, pages, places) else {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{blocks} blocks, or the places of a sequence, have more than 2^32 pages"
            );
        };
        let pool = PagePool::new(device, c"nmc-kv", geometry.piece_bytes(), pages)?;
        pool.prepare(pages)?;
        // All of them, so that their numbers are known.
        for _ in 0..pages {
            pool.take()?;
        }
        Ok(Self { geometry, pool, planes, blocks, places })
    }

    fn page(&self, plane: u32, block: u32) -> PageId {
        PageId(plane * self.blocks + block)
    }

    /// Where a plane has its place `place`; the range was made for all of them.
    fn index(&self, plane: u32, place: u32) -> u32 {
        plane * self.places + place
    }
}

/// Addresses for one sequence.
#[derive(Debug)]
pub(super) struct AddressSpace {
    /// Known to the cache by this number.
    pub number: u64,
    pub owner: Option<u64>,
    /// One for each group.
    ranges: Vec<PageRange>,
    /// The block that is mapped at each place, or [`NONE`].
    mapped: Vec<u32>,
    /// The blocks that should be; has room for all places, so that what a call changed can always be followed.
    pub wanted: Vec<u32>,
    /// Pages of one plane that are to be mapped; has room for all places, too.
    pages: Vec<PageId>,
    /// Tokens of its owner.
    pub tokens: u32,
    /// Leading tokens for which pages are mapped.
    pub ready: u32,
    /// What the owner's copy reads: the block, and the addresses and the place at which it is mapped.
    pub source: Option<(u32, Vec<u64>, u32)>,
}

impl AddressSpace {
    /// Addresses with nothing mapped.
    pub fn new(groups: &[MappedGroup], places: u32, number: u64) -> Result<Self> {
        let mapped = memory::vec_of(places as usize, NONE)?;
        let (wanted, pages) = (memory::with_capacity(places as usize)?, memory::with_capacity(places as usize)?);
        let ranges = groups.iter().map(|group| group.pool.reserve(group.geometry.bytes()));
        Ok(Self {
            number,
            owner: None,
            ranges: memory::try_collect(ranges)?,
            mapped,
            wanted,
            pages,
            tokens: 0,
            ready: 0,
            source: None,
        })
    }

    /// The first address of each group.
    pub fn bases(&self) -> Result<Vec<u64>> {
        memory::collect(self.ranges.iter().map(PageRange::base))
    }

    /// The first address of a group that exists.
    pub fn base(&self, group: u32) -> u64 {
        self.ranges[group as usize].base()
    }

    /// Pages that are mapped.
    pub fn mapped_pages(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.slots().mapped())).sum()
    }

    /// Leading places with a block.
    pub fn leading(&self) -> usize {
        self.mapped.iter().take_while(|block| **block < TORN).count()
    }

    /// Empties the places `at` in all planes.
    fn unmap(&mut self, groups: &[MappedGroup], at: Range<u32>) -> Result<()> {
        let places = at.start as usize..at.end as usize;
        self.mapped[places.clone()].fill(TORN);
        for (group, range) in groups.iter().zip(&mut self.ranges) {
            for plane in 0..group.planes {
                range.unmap(group.index(plane, at.start), at.end - at.start)?;
            }
        }
        self.mapped[places].fill(NONE);
        Ok(())
    }

    /// Maps blocks, with all their pages, to the places from `first` on, whatever was there before. All or none.
    pub fn map(&mut self, groups: &[MappedGroup], first: u32, blocks: &[u32]) -> Result<()> {
        let at = first..first + u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let places = at.start as usize..at.end as usize;
        if self.mapped[places.clone()].iter().any(|block| *block != NONE) {
            self.unmap(groups, at.clone())?;
        }
        for (group, range) in groups.iter().zip(&mut self.ranges) {
            for plane in 0..group.planes {
                self.pages.clear();
                self.pages.extend(blocks.iter().map(|block| group.page(plane, *block)));
                if let Err(error) = range.map(group.index(plane, first), &self.pages) {
                    return self.unmap(groups, at).and(Err(error));
                }
            }
        }
        self.mapped[places].copy_from_slice(blocks);
        Ok(())
    }

    /// Maps the blocks of a sequence where they are not mapped yet, and finds out how many tokens are ready.
    pub fn show(&mut self, groups: &[MappedGroup], blocks: &[u32], per_block: u32) -> Result<()> {
        let differs = |mapped: &[u32], k: usize| blocks[k] != NONE && mapped[k] != blocks[k];
        let (mut k, mut outcome) = (0, Ok(()));
        while k < blocks.len() && outcome.is_ok() {
            let end = (k..blocks.len()).find(|at| !differs(&self.mapped, *at)).unwrap_or(blocks.len());
            if end > k {
                outcome = self.map(groups, u32::try_from(k).unwrap_or(u32::MAX), &blocks[k..end]);
            }
            k = end + 1;
        }
        let ready = (0..blocks.len()).find(|at| differs(&self.mapped, *at)).unwrap_or(blocks.len());
        self.ready = u32::try_from(ready).unwrap_or(u32::MAX).saturating_mul(per_block);
        outcome
    }

    /// The first thing that is not as it should be, if the first tokens of a sequence have these blocks.
    pub fn audit(&self, groups: &[MappedGroup], blocks: &[u32]) -> Result<()> {
        for (k, (block, mapped)) in blocks.iter().zip(&self.mapped).enumerate() {
            if *block != NONE && mapped != block {
                return Err(wrong(format!("block {block} should be at {k}, but {mapped} is mapped")));
            }
        }
        for (group, range) in groups.iter().zip(&self.ranges) {
            for (place, block) in (0..).zip(&self.mapped).filter(|(_, block)| **block != TORN) {
                for plane in 0..group.planes {
                    let page = (*block != NONE).then(|| group.page(plane, *block));
                    let found = range.slots().get(group.index(plane, place));
                    if found != page {
                        return Err(wrong(format!("place {place} of plane {plane} has {found:?}, not {page:?}")));
                    }
                }
            }
        }
        Ok(())
    }
}
