//! Memory that somebody vouches for. In the KV cache addresses of the program come in as a [`Region`] and in no other way, and
//! all that is derived from one lies inside it; so who copies blocks has to trust the one who made the region, and nobody else.
#![allow(unsafe_code, reason = "a region is made from an address, for which its maker vouches")]

use crate::base::error::Result;
use crate::store::copy::Slice;
use crate::world::{Membership, World};
use std::sync::Arc;

/// Addresses that can be read and written.
#[derive(Clone)]
pub struct Region {
    base: u64,
    bytes: u64,
    /// Keeps the heap that it lies in, if it lies in one.
    _member: Option<Arc<Membership>>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.base)
    }
}

impl Region {
    /// The `bytes` bytes from address `base` on.
    ///
    /// # Safety
    /// As long as the region, or what was made with it, is used, these bytes can be read and written: by this process, or if
    /// they are a device's, by its kernels. Nobody else writes those that a call reads, or touches those that it writes.
    #[must_use]
    pub const unsafe fn new(base: u64, bytes: u64) -> Self {
        Self { base, bytes, _member: None }
    }

    /// Bytes of the caller's own heap in a world, which stays as long as the region does.
    pub(in crate::kv) fn of_heap(world: &World, member: &Arc<Membership>, offset: u64, bytes: u64) -> Result<Self> {
        Ok(Self { base: world.ptr(world.rank(), offset, bytes)?, bytes, _member: Some(Arc::clone(member)) })
    }

    /// The first address.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// How many bytes there are.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its first bytes, or all if there are fewer.
    pub(super) fn first(self, bytes: u64) -> Self {
        Self { bytes: self.bytes.min(bytes), ..self }
    }

    /// The address of `bytes` bytes in it.
    #[inline]
    pub fn address(&self, offset: u64, bytes: u64) -> Result<u64> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let Self { base, bytes: all, .. } = self;
            crate::bail!(NMC_ERR_INTERNAL, "{bytes} bytes from {offset} on do not lie in the {all} bytes at {base:#x}");
        }
        Ok(self.base + offset)
    }

    /// `bytes` bytes in it, for a store.
    #[inline]
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Slice> {
        let address = self.address(offset, bytes)?;
        // SAFETY: they lie in the region, and whoever made that vouches for what is made with it; those of a heap stay as long as the
        // region, which the transfers of the cache keep.
        Ok(unsafe { Slice::new(address, bytes) })
    }

    /// Whether it has a byte in common with `bytes` bytes at an address.
    pub(in crate::kv) const fn overlaps(&self, address: u64, bytes: u64) -> bool {
        match (self.base.checked_add(self.bytes), address.checked_add(bytes)) {
            (Some(end), Some(other_end)) => self.base < other_end && address < end,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_inside_or_is_refused() {
        // SAFETY: nobody touches them.
        let region = unsafe { Region::new(4096, 100) };
        assert_eq!(region.address(90, 10).unwrap(), 4186);
        for (offset, bytes) in [(91, 10), (101, 0), (u64::MAX, 2), (0, 101)] {
            assert!(region.address(offset, bytes).is_err(), "{offset} {bytes}");
        }
    }

    #[test]
    fn neighbours_do_not_overlap() {
        // SAFETY: nobody touches them.
        let region = unsafe { Region::new(4096, 100) };
        for (address, bytes, overlaps) in [
            (4195, 1, true),
            (4196, 1, false),
            (4095, 1, false),
            (4095, 2, true),
            (0, 1 << 20, true),
            (u64::MAX, 2, true),
        ] {
            assert_eq!(region.overlaps(address, bytes), overlaps, "{bytes} at {address}");
        }
    }
}
