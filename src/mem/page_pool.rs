//! Memory that is placed by mapping, on the host or on a device, behind one interface: what [`crate::mem::ranges`] and
//! `cuda::ranges` say holds for both. `kv` uses it.

use super::ranges::{HostPages, HostRange};
use crate::alloc::pages::{PageCounts, PageId, Slots};
use crate::base::error::Result;
use crate::cuda::{CudaPages, CudaRange, Device};
use std::ffi::CStr;
use std::sync::Arc;

/// A pool of equal pages.
#[derive(Debug, Clone)]
pub enum PagePool {
    /// In host memory.
    Host(Arc<HostPages>),
    /// On a device.
    Cuda(Arc<CudaPages>),
}

/// Contiguous addresses with pages of a pool behind some of them.
#[derive(Debug)]
pub enum PageRange {
    /// In host memory.
    Host(HostRange),
    /// On a device.
    Cuda(CudaRange),
}

/// Calls the same method on whichever it is.
macro_rules! either {
    ($self:ident, $inner:ident => $call:expr) => {
        match $self {
            Self::Host($inner) => $call,
            Self::Cuda($inner) => $call,
        }
    };
}

impl PagePool {
    /// What the bytes of a page must be a multiple of, in host memory or on a device.
    pub fn granularity(device: Option<&Arc<Device>>) -> Result<u64> {
        device.map_or_else(|| Ok(super::ranges::system_page_bytes()), CudaPages::granularity)
    }

    /// At most `pages` pages of `page_bytes` in host memory, where the file has this name, or on a device. It takes no
    /// memory yet. A page that is taken again has the bytes of its last holder.
    pub fn new(device: Option<&Arc<Device>>, name: &CStr, page_bytes: u64, pages: u32) -> Result<Self> {
        Ok(match device {
            None => Self::Host(HostPages::new(name, page_bytes, pages)?),
            Some(device) => Self::Cuda(CudaPages::new(device, page_bytes, pages)?),
        })
    }

    /// Reserves addresses for at least `bytes` bytes, rounded up to whole pages. Takes no memory.
    pub fn reserve(&self, bytes: u64) -> Result<PageRange> {
        match self {
            Self::Host(pages) => pages.reserve(bytes).map(PageRange::Host),
            Self::Cuda(pages) => pages.reserve(bytes).map(PageRange::Cuda),
        }
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        either!(self, pages => pages.page_bytes())
    }

    /// How many pages are in which state.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        either!(self, pages => pages.counts())
    }

    /// Holders of a page: takers that have not released it, and ranges.
    #[must_use]
    pub fn holders(&self, page: PageId) -> u32 {
        either!(self, pages => pages.holders(page))
    }

    /// Takes a page with memory behind it. The caller is its first holder.
    pub fn take(&self) -> Result<PageId> {
        either!(self, pages => pages.take())
    }

    /// Adds a holder to a page.
    pub fn retain(&self, page: PageId) -> Result<()> {
        either!(self, pages => pages.retain(page))
    }

    /// Takes a holder away; the last one frees the page.
    pub fn release(&self, page: PageId) -> Result<()> {
        either!(self, pages => pages.release(page))
    }

    /// Gets memory for `pages` more pages ahead of their use.
    pub fn prepare(&self, pages: u32) -> Result<()> {
        either!(self, all => all.prepare(pages))
    }
}

impl PageRange {
    /// First address, on the host or on the device; stays the same for the range's lifetime.
    #[must_use]
    pub fn base(&self) -> u64 {
        match self {
            Self::Host(range) => range.base() as u64,
            Self::Cuda(range) => range.base(),
        }
    }

    /// Bytes of addresses.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        either!(self, range => range.bytes())
    }

    /// Which page is where.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        either!(self, range => range.slots())
    }

    /// Maps pages of the range's own pool that are held to the empty places from `first` on. All or none.
    pub fn map(&mut self, first: u32, pages: &[PageId]) -> Result<()> {
        either!(self, range => range.map(first, pages))
    }

    /// Takes new pages and maps them to the `count` empty places from `first` on. All or none.
    pub fn grow(&mut self, first: u32, count: u32) -> Result<()> {
        either!(self, range => range.grow(first, count))
    }

    /// Empties the `count` places from `first` on. Returns how many pages there were.
    pub fn unmap(&mut self, first: u32, count: u32) -> Result<u32> {
        either!(self, range => range.unmap(first, count))
    }

    /// Copies bytes out of the range; fails if a place without a page is among them. Not for hot paths.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        either!(self, range => range.read(offset, to))
    }

    /// Copies bytes into the range; fails if a place without a page is among them. Not for hot paths.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        either!(self, range => range.write(offset, from))
    }

    /// Sets the bytes of the `count` places from `first` on, which must have pages, to zero.
    pub fn zero(&self, first: u32, count: u32) -> Result<()> {
        either!(self, range => range.zero(first, count))
    }
}
