//! Copies of blocks: many of them into contiguous memory, in the form in which a store keeps them, back from there, and from
//! block to block. In host memory the calling thread does it; in memory of a device a kernel does, on the caller's stream, and
//! the call only enqueues. Both take the same description of the pieces. `ffi` calls it.

use super::arena::Group;
use super::geometry::Pieces;
use crate::base::error::Result;
use crate::base::memory;
use crate::cuda::{self, Device, KvCopy, KvPlace, Owner};
use crate::store::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// Where a group lies.
#[derive(Debug, Clone)]
pub enum Memory {
    /// The cache was not told.
    Unknown,
    /// On the host, pinned or not.
    Host,
    /// Where the driver moves it about (cudaMallocManaged).
    Managed,
    /// On a device, whose kernels are loaded.
    Device(Arc<Device>),
}

impl core::fmt::Display for Memory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unknown => f.write_str("nowhere"),
            Self::Host => f.write_str("in host memory"),
            Self::Managed => f.write_str("in managed memory"),
            Self::Device(device) => write!(f, "on device {}", device.ordinal()),
        }
    }
}

/// Contiguous memory of the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Which way blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Out of the cache.
    Gather,
    /// Into it.
    Scatter,
}

/// Who can copy: asked once for a cache, since its memory stays where it is.
#[derive(Debug)]
pub struct Places(Vec<Memory>);

impl Places {
    /// Finds out where groups lie, and loads the kernels of devices.
    pub fn find(groups: &[Group]) -> Result<Self> {
        // A program without the driver has no memory of a device, and is spared what looking for one costs.
        let host_only = !cuda::in_process() || cuda::probe().problem.is_some();
        let of = |group: &Group| -> Result<Memory> {
            if group.base == 0 || host_only {
                return Ok(if group.base == 0 { Memory::Unknown } else { Memory::Host });
            }
            cuda::require()?;
            Ok(match cuda::owner(group.base)? {
                Owner::Host | Owner::Pinned => Memory::Host,
                Owner::Device(None) => Memory::Managed,
                Owner::Device(Some(number)) => {
                    let device = Device::open(number)?;
                    device.kernels()?;
                    Memory::Device(device)
                }
            })
        };
        Ok(Self(memory::try_collect(groups.iter().map(of))?))
    }

    /// Where the groups with these numbers lie, which must be one place.
    pub fn common(&self, groups: impl Iterator<Item = u32>) -> Result<&Memory> {
        let mut found: Option<(u32, &Memory)> = None;
        for number in groups {
            let memory = self.0.get(number as usize).unwrap_or(&Memory::Unknown);
            match (memory, found) {
                (Memory::Unknown, _) => {
                    crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know the memory of group {number}: set it")
                }
                (Memory::Managed, _) => {
                    crate::bail!(NMC_ERR_UNSUPPORTED, "group {number} lies in managed memory (cudaMallocManaged)")
                }
                (Memory::Host, Some((_, Memory::Host))) | (_, None) => {}
                (Memory::Device(device), Some((_, Memory::Device(other)))) if Arc::ptr_eq(device, other) => {}
                (_, Some((first, other))) => crate::bail!(
                    NMC_ERR_UNSUPPORTED,
                    "group {first} lies {other} and group {number} {memory}; copy them one at a time"
                ),
            }
            found = Some((number, memory));
        }
        match found {
            Some((_, memory)) => Ok(memory),
            None => crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know its memory: set groups with memory"),
        }
    }
}

impl Memory {
    /// Copies blocks, in this order, to or from contiguous memory: each with all its groups, layers, K and V one after the
    /// other.
    pub fn pack(&self, way: Way, groups: &[&Group], blocks: &[i32], packed: Packed, stream: *mut c_void) -> Result<()> {
        let total: u64 = groups.iter().map(|group| group.geometry.block_bytes()).sum();
        let bytes = total.checked_mul(blocks.len() as u64).filter(|bytes| *bytes <= i64::MAX as u64);
        let (Some(needed), Ok(_)) = (bytes, u32::try_from(blocks.len())) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "{} blocks of {total} bytes are too many for one call", blocks.len());
        };
        self.check_stream(stream)?;
        check_numbers(groups, blocks.iter().copied())?;
        if packed.bytes < needed {
            let (count, bytes) = (blocks.len(), packed.bytes);
            crate::bail!(NMC_ERR_TOO_SMALL, "{count} blocks of {total} bytes need {needed} bytes, there are {bytes}");
        }
        if way == Way::Scatter {
            check_distinct(memory::collect(blocks.iter().map(|block| block.unsigned_abs()))?, [])?;
        }
        if needed == 0 {
            return Ok(());
        }
        let mut address = self.reachable(packed.address)?;
        let clear = |group: &&Group| {
            let end = group.base + group.geometry.bytes();
            packed.address.checked_add(needed).is_some_and(|mine| mine <= group.base || packed.address >= end)
        };
        if !groups.iter().all(clear) {
            crate::bail!(NMC_ERR_INVALID_ARG, "the contiguous memory overlaps that of the cache");
        }
        for group in groups {
            let pieces = group.geometry.pieces(0..group.geometry.shape().layers);
            let (here, there) = (place(group, &pieces), contiguous(address, total, &pieces));
            let numbered = || blocks.iter().zip(0u32..).map(|(block, i)| (block.unsigned_abs(), i));
            match way {
                Way::Gather => self.copy(stream, &pieces, here, there, numbered().map(|(block, i)| [block, i]))?,
                Way::Scatter => self.copy(stream, &pieces, there, here, numbered().map(|(block, i)| [i, block]))?,
            }
            address += group.geometry.block_bytes();
        }
        Ok(())
    }

    /// Fails if [`Memory::copy_blocks`] would.
    pub fn check_copies(&self, groups: &[&Group], copies: &[[i32; 2]], stream: *mut c_void) -> Result<()> {
        self.check_stream(stream)?;
        check_numbers(groups, copies.iter().flatten().copied())?;
        let pairs = || copies.iter().map(|pair| pair.map(i32::unsigned_abs));
        check_distinct(memory::collect(pairs().map(|[_, to]| to))?, pairs().map(|[from, _]| from))
    }

    /// Copies blocks to other blocks of the same groups. No block is written twice, or read and written: the caller has
    /// checked that.
    pub fn copy_blocks(&self, groups: &[&Group], copies: &[[i32; 2]], stream: *mut c_void) -> Result<()> {
        let pairs = || copies.iter().map(|pair| pair.map(i32::unsigned_abs));
        for group in groups {
            let pieces = group.geometry.pieces(0..group.geometry.shape().layers);
            let place = place(group, &pieces);
            self.copy(stream, &pieces, place, place, pairs())?;
        }
        Ok(())
    }

    fn check_stream(&self, stream: *mut c_void) -> Result<()> {
        if !matches!(self, Self::Device(_)) && !stream.is_null() {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the cache lies in host memory, which is copied at once: stream must be NULL"
            );
        }
        Ok(())
    }

    /// The address of the program's memory for whoever copies; fails if it cannot be reached.
    fn reachable(&self, address: u64) -> Result<u64> {
        if address == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "the contiguous memory is NULL");
        }
        match self {
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
            }),
            _ if !cuda::in_process() || cuda::probe().problem.is_some() => Ok(address),
            _ => match cuda::owner(address)? {
                Owner::Device(Some(device)) => crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "the cache lies in host memory and the contiguous memory on device {device}"
                ),
                _ => Ok(address),
            },
        }
    }

    fn copy(
        &self,
        stream: *mut c_void,
        pieces: &Pieces,
        from: KvPlace,
        to: KvPlace,
        pairs: impl Iterator<Item = [u32; 2]>,
    ) -> Result<()> {
        let copy = KvCopy { from, to, bytes: pieces.bytes, counts: pieces.axes.map(|(count, _)| count) };
        match self {
            Self::Device(device) => return device.kernels()?.kv_copy(stream, &copy, pairs),
            _ => copy_here(&copy, pairs),
        }
        Ok(())
    }
}

/// What nmc_k_kv_copy does, by the calling thread.
#[allow(unsafe_code, reason = "a copy by address")]
fn copy_here(copy: &KvCopy, pairs: impl Iterator<Item = [u32; 2]>) {
    let [outer, middle, inner] = copy.counts;
    let at = |place: &KvPlace, block: u32, [a, b, c]: [u64; 3]| {
        place.base + u64::from(block) * place.block + a * place.step[0] + b * place.step[1] + c * place.step[2]
    };
    for [from, to] in pairs {
        for a in 0..outer {
            for b in 0..middle {
                for c in 0..inner {
                    let (from, to) = (at(&copy.from, from, [a, b, c]), at(&copy.to, to, [a, b, c]));
                    // SAFETY: both are pieces of blocks whose numbers were checked, in memory of the cache or of the caller, who
                    // vouches for it by the C contract; what is copied from and to does not overlap.
                    unsafe { sys::copy(from, to, copy.bytes) };
                }
            }
        }
    }
}

/// Where the pieces of the blocks of a group lie.
fn place(group: &Group, pieces: &Pieces) -> KvPlace {
    KvPlace { base: group.base + pieces.offset, block: pieces.block, step: pieces.axes.map(|(_, step)| step) }
}

/// Where they lie one after the other, in blocks of `block` bytes.
fn contiguous(base: u64, block: u64, pieces: &Pieces) -> KvPlace {
    let [_, (middle, _), (inner, _)] = pieces.axes;
    KvPlace { base, block, step: [middle * inner * pieces.bytes, inner * pieces.bytes, pieces.bytes] }
}

fn check_numbers(groups: &[&Group], mut blocks: impl Iterator<Item = i32>) -> Result<()> {
    let least = groups.iter().map(|group| group.geometry.shape().total_blocks).min().unwrap_or(0);
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
