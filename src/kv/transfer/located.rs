//! Where the memory of groups is, on the host or on a device, and copies of blocks there: in host memory the calling thread
//! makes them, in memory of a device a kernel does, on the caller's stream. Both take the same description of the pieces,
//! which is checked against the regions that they lie in.
#![allow(unsafe_code, reason = "blocks are copied by their addresses")]

use super::gpu;
use crate::base::error::Result;
use crate::base::memory;
use crate::cuda::GivenStream;
use crate::cuda::{self, Device, Owner};
use crate::kv::place::Region;
use crate::kv::place::arena::Group;
use crate::kv::place::geometry::Pieces;
use std::sync::Arc;

/// Where a group lies.
#[derive(Debug, Clone)]
pub enum Located {
    /// The cache was not told.
    Unknown,
    /// On the host, pinned or not.
    Host,
    /// Where the driver moves it about (cudaMallocManaged).
    Managed,
    /// On a device, whose kernels are loaded.
    Device(Arc<Device>),
}

impl core::fmt::Display for Located {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unknown => f.write_str("nowhere"),
            Self::Host => f.write_str("in host memory"),
            Self::Managed => f.write_str("in managed memory"),
            Self::Device(device) => write!(f, "on device {}", device.ordinal()),
        }
    }
}

/// Where the groups of a cache lie: asked once, since its memory stays where it is.
#[derive(Debug)]
pub struct Locations(Vec<Located>);

impl Locations {
    /// Finds out where groups lie, and loads the kernels of devices.
    pub fn find(groups: &[Group]) -> Result<Self> {
        // A program without the driver has no memory of a device, and is spared what looking for one costs.
        let host_only = !cuda::in_process() || cuda::probe().problem.is_some();
        let of = |group: &Group| -> Result<Located> {
            let Some(memory) = group.memory() else { return Ok(Located::Unknown) };
            if host_only {
                return Ok(Located::Host);
            }
            cuda::require()?;
            Ok(match cuda::owner(memory.base())? {
                Owner::Host | Owner::Pinned => Located::Host,
                Owner::Device(None) => Located::Managed,
                Owner::Device(Some(number)) => {
                    let device = Device::open(number)?;
                    device.kernels()?;
                    Located::Device(device)
                }
            })
        };
        Ok(Self(memory::try_collect(groups.iter().map(of))?))
    }

    /// Where the groups with these numbers lie, which must be one place.
    pub fn common(&self, groups: impl Iterator<Item = u32>) -> Result<&Located> {
        let mut found: Option<(u32, &Located)> = None;
        for number in groups {
            let located = self.0.get(number as usize).unwrap_or(&Located::Unknown);
            match (located, found) {
                (Located::Unknown, _) => {
                    crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know the memory of group {number}: set it")
                }
                (Located::Managed, _) => {
                    crate::bail!(NMC_ERR_UNSUPPORTED, "group {number} lies in managed memory (cudaMallocManaged)")
                }
                (Located::Host, Some((_, Located::Host))) | (_, None) => {}
                (Located::Device(device), Some((_, Located::Device(other)))) if Arc::ptr_eq(device, other) => {}
                (_, Some((first, other))) => crate::bail!(
                    NMC_ERR_UNSUPPORTED,
                    "group {first} lies {other} and group {number} {located}; copy them one at a time"
                ),
            }
            found = Some((number, located));
        }
        match found {
            Some((_, located)) => Ok(located),
            None => crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know its memory: set groups with memory"),
        }
    }
}

/// Numbered blocks of equal pieces, all of which lie in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Address of the first piece of block 0.
    pub(super) base: u64,
    /// Distance between blocks.
    pub(super) block: u64,
    /// Distances between pieces along three axes, the outermost first.
    pub(super) step: [u64; 3],
    /// How many blocks there are.
    pub(super) blocks: u64,
    /// Bytes of a piece.
    pub(super) bytes: u64,
    /// Pieces along the three axes.
    pub(super) counts: [u64; 3],
}

impl Placed {
    /// The blocks of a group, in its memory.
    pub fn in_group(group: &Group, pieces: &Pieces) -> Result<Self> {
        let step = pieces.axes.map(|(_, step)| step);
        let placed = Self::new(0, pieces.block, step, group.geometry().shape().total_blocks, pieces);
        let base = group.address(pieces.offset, placed.span()?)?;
        Ok(Self { base, ..placed })
    }

    /// `blocks` blocks of `block` bytes, one after the other, in which the pieces begin at `offset` and follow each other.
    pub fn packed(region: &Region, offset: u64, block: u64, blocks: u64, pieces: &Pieces) -> Result<Self> {
        let [_, (middle, _), (inner, _)] = pieces.axes;
        let step = [middle * inner * pieces.bytes, inner * pieces.bytes, pieces.bytes];
        let placed = Self::new(0, block, step, blocks, pieces);
        let base = region.address(offset, placed.span()?)?;
        Ok(Self { base, ..placed })
    }

    fn new(base: u64, block: u64, step: [u64; 3], blocks: u64, pieces: &Pieces) -> Self {
        Self { base, block, step, blocks, bytes: pieces.bytes, counts: pieces.axes.map(|(count, _)| count) }
    }

    /// Bytes from the first of the first piece of the first block to the last of the last.
    fn span(&self) -> Result<u64> {
        if self.blocks == 0 || self.counts.contains(&0) {
            return Ok(0);
        }
        let pieces = self.counts.iter().zip(&self.step).map(|(count, step)| (count - 1).checked_mul(*step));
        let blocks = (self.blocks - 1).checked_mul(self.block);
        let span = pieces.chain([blocks]).try_fold(self.bytes, |sum, next| sum.checked_add(next?));
        match span {
            Some(span) => Ok(span),
            None => crate::bail!(NMC_ERR_INTERNAL, "the pieces of {} blocks pass 2^64 bytes", self.blocks),
        }
    }

    fn address(&self, block: u32, [a, b, c]: [u64; 3]) -> u64 {
        self.base + u64::from(block) * self.block + a * self.step[0] + b * self.step[1] + c * self.step[2]
    }
}

/// A copy of pieces from blocks to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    from: Placed,
    to: Placed,
}

impl Copy {
    /// Fails unless both have the same pieces.
    pub fn new(from: Placed, to: Placed) -> Result<Self> {
        if (from.bytes, from.counts) != (to.bytes, to.counts) {
            crate::bail!(NMC_ERR_INTERNAL, "{from:?} and {to:?} have other pieces");
        }
        Ok(Self { from, to })
    }

    pub const fn from(&self) -> &Placed {
        &self.from
    }

    pub const fn to(&self) -> &Placed {
        &self.to
    }

    /// Fails for blocks that are not there.
    #[inline]
    pub fn check(&self, [from, to]: [u32; 2]) -> Result<()> {
        if u64::from(from) >= self.from.blocks || u64::from(to) >= self.to.blocks {
            let (of_from, of_to) = (self.from.blocks, self.to.blocks);
            crate::bail!(NMC_ERR_INTERNAL, "block {from} of {of_from} cannot be copied to block {to} of {of_to}");
        }
        Ok(())
    }
}

/// What nmc_k_kv_copy does, by the calling thread.
///
/// # Safety
/// The regions of both sides are host memory.
unsafe fn copy_on_host(copy: &Copy, pairs: impl Iterator<Item = [u32; 2]>) -> Result<()> {
    let [outer, middle, inner] = copy.from.counts;
    let bytes = usize::try_from(copy.from.bytes).unwrap_or(usize::MAX);
    for pair in pairs {
        copy.check(pair)?;
        for a in 0..outer {
            for b in 0..middle {
                for c in 0..inner {
                    let (from, to) = (copy.from.address(pair[0], [a, b, c]), copy.to.address(pair[1], [a, b, c]));
                    // SAFETY: both pieces lie in regions, since the blocks are there; whoever made those vouches for
                    // the memory, which the caller says is the host's.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                }
            }
        }
    }
    Ok(())
}

impl Located {
    /// The program's memory as whoever copies sees it; fails if it cannot be reached.
    pub fn reachable(&self, memory: &Region) -> Result<Region> {
        let address = memory.base();
        if address == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "the contiguous memory is NULL");
        }
        let seen = match self {
            Self::Device(device) => device.with_current(|| match cuda::owner(address)? {
                Owner::Host => crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "the contiguous memory is ordinary host memory, which device {} does not reach; pin it",
                    device.ordinal()
                ),
                Owner::Device(Some(other)) if other != device.ordinal() => crate::bail!(
                    NMC_ERR_UNSUPPORTED,
                    "the cache lies on device {} and the contiguous memory on device {other}",
                    device.ordinal()
                ),
                Owner::Pinned => cuda::kernel_address(device, address),
                Owner::Device(_) => Ok(address),
            })?,
            _ if !cuda::in_process() || cuda::probe().problem.is_some() => address,
            _ => match cuda::owner(address)? {
                Owner::Device(Some(device)) => crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "the cache lies in host memory and the contiguous memory on device {device}"
                ),
                _ => address,
            },
        };
        // SAFETY: the same bytes, under the address that the driver says they have for the device.
        Ok(unsafe { Region::new(seen, memory.bytes()) })
    }

    /// Copies blocks from and to the numbers in `pairs`. On a device it only enqueues.
    pub fn copy(&self, copy: &Copy, pairs: impl Iterator<Item = [u32; 2]>, stream: GivenStream) -> Result<()> {
        match self {
            // SAFETY: `find` and `reachable` asked the driver whether the device reaches the regions, whose makers vouch for them. The
            // stream is the program's, by the C contract.
            Self::Device(device) => unsafe { gpu::copy(&device.kernels()?, copy, pairs, stream) },
            // SAFETY: the driver, if there is one, was asked: groups that lie here are host memory, and so is what
            // `reachable` let pass.
            Self::Host => unsafe { copy_on_host(copy, pairs) },
            Self::Unknown | Self::Managed => self.not_copied(),
        }
    }

    /// Copies the bytes of one region to another of the same place. On a device it only enqueues.
    pub fn copy_region(&self, from: &Region, to: &Region, stream: GivenStream) -> Result<()> {
        if from.base() == 0 || to.base() == 0 || from.bytes() != to.bytes() {
            crate::bail!(NMC_ERR_INVALID_ARG, "{from:?} cannot be copied to {to:?}");
        }
        match self {
            // SAFETY: whoever made the regions vouches for them; the stream is the program's, by the C contract.
            Self::Device(device) => unsafe {
                cuda::copy_on_stream(device, stream.raw(), from.base(), to.base(), from.bytes())
            },
            Self::Host => {
                let bytes = usize::try_from(from.bytes()).unwrap_or(usize::MAX);
                // SAFETY: whoever made the regions vouches for them, and they are the host's.
                unsafe { std::ptr::copy(from.base() as *const u8, to.base() as *mut u8, bytes) };
                Ok(())
            }
            Self::Unknown | Self::Managed => self.not_copied(),
        }
    }

    fn not_copied(&self) -> Result<()> {
        crate::bail!(NMC_ERR_UNSUPPORTED, "blocks that lie {self} are not copied")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;

    const PIECES: Pieces = Pieces { offset: 0, block: 64, bytes: 8, axes: [(2, 32), (2, 16), (1, 0)] };

    #[test]
    fn blocks_that_do_not_lie_in_the_region_are_refused() {
        let memory = [0u64; 32];
        // SAFETY: nobody else has it.
        let region = unsafe { Region::new(memory.as_ptr() as u64, 256) };
        let placed = |offset, blocks| Placed::packed(&region, offset, 64, blocks, &PIECES);
        assert!(placed(0, 4).is_ok() && placed(224, 1).is_ok());
        assert!(placed(0, 5).is_err() && placed(225, 1).is_err() && placed(0, u64::MAX).is_err());
        let four = placed(0, 4).unwrap();
        let copy = Copy::new(four, placed(64, 2).unwrap()).unwrap();
        assert!(copy.check([3, 1]).is_ok() && copy.check([4, 1]).is_err() && copy.check([3, 2]).is_err());
        assert!(Copy::new(four, Placed { bytes: 9, ..four }).is_err());
        let done = Located::Host.copy(&copy, [[0, 2]].into_iter(), GivenStream::NULL);
        assert!(done.is_err());
    }
}
