//! Copies of blocks: many of them into contiguous memory, in the form in which a store keeps them, back from there, and from
//! block to block. What is asked for is checked here; `located` makes the copies.

use super::located::{Copy, Located, Placed};
use crate::base::error::Result;
use crate::base::memory;
use crate::cuda::GivenStream;
use crate::kv::place::Region;
use crate::kv::place::arena::Group;

/// Which way blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Out of the cache.
    Gather,
    /// Into it.
    Scatter,
}

impl Located {
    /// Copies blocks, in this order, to or from contiguous memory: each with all its groups, layers, K and V one after the
    /// other.
    pub fn pack(
        &self,
        way: Way,
        groups: &[&Group],
        blocks: &[i32],
        packed: &Region,
        stream: GivenStream,
    ) -> Result<()> {
        let total: u64 = groups.iter().map(|group| group.geometry().block_bytes()).sum();
        let bytes = total.checked_mul(blocks.len() as u64).filter(|bytes| *bytes <= i64::MAX as u64);
        let (Some(needed), Ok(_)) = (bytes, u32::try_from(blocks.len())) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "{} blocks of {total} bytes are too many for one call", blocks.len());
        };
        self.check_stream(stream)?;
        check_numbers(groups, blocks.iter().copied())?;
        if packed.bytes() < needed {
            let (count, bytes) = (blocks.len(), packed.bytes());
            crate::bail!(NMC_ERR_TOO_SMALL, "{count} blocks of {total} bytes need {needed} bytes, there are {bytes}");
        }
        if way == Way::Scatter {
            check_distinct(memory::collect(blocks.iter().map(|block| block.unsigned_abs()))?, [])?;
        }
        if needed == 0 {
            return Ok(());
        }
        let seen = self.reachable(packed)?;
        if groups.iter().filter_map(|group| group.memory()).any(|memory| memory.overlaps(packed.base(), needed)) {
            crate::bail!(NMC_ERR_INVALID_ARG, "the contiguous memory overlaps that of the cache");
        }
        let mut offset = 0;
        for group in groups {
            let pieces = group.geometry().pieces(0..group.geometry().shape().layers);
            let here = Placed::in_group(group, &pieces)?;
            let contiguous = Placed::packed(&seen, offset, total, blocks.len() as u64, &pieces)?;
            let numbered = blocks.iter().zip(0u32..).map(|(block, i)| (block.unsigned_abs(), i));
            match way {
                Way::Gather => {
                    self.copy(&Copy::new(here, contiguous)?, numbered.map(|(block, i)| [block, i]), stream)?;
                }
                Way::Scatter => {
                    self.copy(&Copy::new(contiguous, here)?, numbered.map(|(block, i)| [i, block]), stream)?;
                }
            }
            offset += group.geometry().block_bytes();
        }
        Ok(())
    }

    /// Fails if [`Located::copy_blocks`] would.
    pub fn check_copies(&self, groups: &[&Group], copies: &[[i32; 2]], stream: GivenStream) -> Result<()> {
        self.check_stream(stream)?;
        check_numbers(groups, copies.iter().flatten().copied())?;
        let pairs = || copies.iter().map(|pair| pair.map(i32::unsigned_abs));
        check_distinct(memory::collect(pairs().map(|[_, to]| to))?, pairs().map(|[from, _]| from))
    }

    /// Copies blocks to other blocks of the same groups. No block is written twice, or read and written: the caller has
    /// checked that.
    pub fn copy_blocks(&self, groups: &[&Group], copies: &[[i32; 2]], stream: GivenStream) -> Result<()> {
        let pairs = || copies.iter().map(|pair| pair.map(i32::unsigned_abs));
        for group in groups {
            let pieces = group.geometry().pieces(0..group.geometry().shape().layers);
            let placed = Placed::in_group(group, &pieces)?;
            self.copy(&Copy::new(placed, placed)?, pairs(), stream)?;
        }
        Ok(())
    }

    /// Fails if there is a stream for host memory.
    pub fn check_stream(&self, stream: GivenStream) -> Result<()> {
        if !matches!(self, Self::Device(_)) && !stream.is_null() {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the cache lies in host memory, which is copied at once: stream must be NULL"
            );
        }
        Ok(())
    }
}

fn check_numbers(groups: &[&Group], mut blocks: impl Iterator<Item = i32>) -> Result<()> {
    let least = groups.iter().map(|group| group.geometry().shape().total_blocks).min().unwrap_or(0);
    match blocks.find(|block| u64::try_from(*block).map_or(true, |block| block >= least)) {
        Some(block) => crate::bail!(NMC_ERR_INVALID_ARG, "block {block} does not exist; there are {least}, from 0"),
        None => Ok(()),
    }
}

/// Fails if a block is written twice, or is written and read: nobody says which copy comes first.
fn check_distinct(mut written: Vec<u32>, read: impl IntoIterator<Item = u32>) -> Result<()> {
    written.sort_unstable();
    if let Some(twice) = written.windows(2).find(|pair| pair[0] == pair[1]) {
        crate::bail!(NMC_ERR_INVALID_ARG, "block {} would be written twice", twice[0]);
    }
    if let Some(both) = read.into_iter().find(|block| written.binary_search(block).is_ok()) {
        crate::bail!(NMC_ERR_INVALID_ARG, "block {both} would be read and written by one call; make two");
    }
    Ok(())
}
