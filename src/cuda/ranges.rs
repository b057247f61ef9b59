//! Device memory that is placed by mapping: a stock of equal physical pages, and contiguous ranges of device addresses into
//! which pages are mapped on demand. A range never moves, so growing it keeps every pointer a kernel has; a page can be in
//! several ranges. `mem::ranges` is the same for host memory.
//!
//! Mapping and unmapping are calls of the driver that the CPU waits for and that no stream orders: whoever unmaps a page or
//! drops a range has waited for the work that uses it. A place without a page faults on the device, which ends the context.

use std::sync::Arc;

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::device::Device;
use super::error::call;
use super::vmm::{Allocation, granularity_for, read_write, require_vmm};
use crate::alloc::pages::{PageCounts, PageId, Pages, Slots, Taken, take_all};
use crate::bail;
use crate::base::error::Result;

#[derive(Debug)]
struct Stock {
    books: Pages,
    /// By the number of the page; `None` for pages without memory.
    memory: Vec<Option<Allocation>>,
}

impl Stock {
    fn put(&mut self, page: PageId, memory: Allocation) {
        let at = page.0 as usize;
        if self.memory.len() <= at {
            self.memory.resize_with(at + 1, || None);
        }
        self.memory[at] = Some(memory);
    }
}

/// A pool of physical pages on one device. Any thread may use it; a forked child gets `NMC_ERR_FORKED` from what needs the
/// driver.
#[derive(Debug)]
pub struct CudaPages {
    device: Arc<Device>,
    page_bytes: usize,
    granularity: usize,
    stock: Mutex<Stock>,
}

impl CudaPages {
    /// A pool of at most `pages` pages of `page_bytes`, a multiple of the device's granularity (2 MiB on the GPUs known),
    /// which 0 stands for. It takes no memory yet.
    pub fn new(device: &Arc<Device>, page_bytes: u64, pages: u32) -> Result<Arc<Self>> {
        require_vmm(device)?;
        let granularity = device.with_current(|| granularity_for(device))?;
        let wanted = if page_bytes == 0 { granularity as u64 } else { page_bytes };
        let page_bytes = match usize::try_from(wanted) {
            Ok(bytes) if bytes.is_multiple_of(granularity) && bytes <= isize::MAX.cast_unsigned() => bytes,
            _ => bail!(
                NMC_ERR_INVALID_ARG,
                "page_bytes is {wanted}; on device {} it must be a multiple of {granularity}",
                device.ordinal()
            ),
        };
        if pages == 0 {
            bail!(NMC_ERR_INVALID_ARG, "a pool of 0 pages cannot be used; give at least 1");
        }
        let stock = Mutex::new(Stock { books: Pages::new(pages), memory: Vec::new() });
        Ok(Arc::new(Self { device: Arc::clone(device), page_bytes, granularity, stock }))
    }

    /// What the bytes of a page on a device must be a multiple of.
    pub fn granularity(device: &Arc<Device>) -> Result<u64> {
        require_vmm(device)?;
        device.with_current(|| granularity_for(device)).map(|bytes| bytes as u64)
    }

    /// Reserves device addresses for at least `bytes` bytes, rounded up to whole pages. Takes no memory.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<CudaRange> {
        CudaRange::new(Arc::clone(self), bytes)
    }

    /// The device of the pages.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes as u64
    }

    /// How many pages are in which state.
    pub fn counts(&self) -> PageCounts {
        self.stock.lock().books.counts()
    }

    /// Holders of a page: takers that have not released it, and ranges.
    pub fn holders(&self, page: PageId) -> u32 {
        self.stock.lock().books.holders(page)
    }

    fn create(&self) -> Result<Allocation> {
        self.device.with_current(|| Allocation::create(&self.device, self.page_bytes)).map_err(|e| {
            let (ordinal, counts) = (self.device.ordinal(), self.counts());
            e.context(format_args!(
                "a page of {} bytes on device {ordinal}, which has {} of the pool in use and {} idle",
                self.page_bytes, counts.used, counts.idle
            ))
        })
    }

    /// Takes a page with memory behind it. The caller is its first holder. The bytes are those of the last holder, or
    /// undefined; [`CudaRange::zero`] clears them.
    pub fn take(&self) -> Result<PageId> {
        let taken = self.stock.lock().books.take()?;
        match taken {
            Taken::Idle(page) => Ok(page),
            Taken::Bare(page) => self.fill(page).map(|()| page),
        }
    }

    /// Gets memory for a page that has just been taken without; gives it up if there is none.
    fn fill(&self, page: PageId) -> Result<()> {
        let made = self.create();
        let mut stock = self.stock.lock();
        match made {
            Ok(memory) => {
                stock.put(page, memory);
                Ok(())
            }
            Err(error) => {
                stock.books.release(page)?;
                stock.books.park(page, false);
                Err(error)
            }
        }
    }

    /// Gets memory for `pages` more pages ahead of their use, so that taking them needs no driver.
    /// What was got before a failure stays.
    pub fn prepare(&self, pages: u32) -> Result<()> {
        for _ in 0..pages {
            let page = self.stock.lock().books.take_bare()?;
            self.fill(page)?;
            self.release(page)?;
        }
        Ok(())
    }

    /// Adds a holder to a page.
    pub fn retain(&self, page: PageId) -> Result<()> {
        self.stock.lock().books.retain(page)
    }

    /// Takes a holder away; the last one puts the page back into the stock. For callers of `take` and `retain`: what
    /// ranges hold is theirs.
    pub fn release(&self, page: PageId) -> Result<()> {
        let books = &mut self.stock.lock().books;
        if books.release(page)? {
            books.park(page, true);
        }
        Ok(())
    }

    /// Adds a holder to each page and returns the driver's names of them. All or none.
    fn retain_all(&self, pages: &[PageId]) -> Result<Vec<sys::CUmemGenericAllocationHandle>> {
        let stock = &mut *self.stock.lock();
        let mut handles = Vec::with_capacity(pages.len());
        for page in pages {
            let memory = stock.memory.get(page.0 as usize).and_then(Option::as_ref);
            // Without memory nobody holds it, and so it is refused.
            if let Err(error) = stock.books.retain(*page) {
                // None of these is the last holder.
                pages[..handles.len()].iter().for_each(|page| drop(stock.books.release(*page)));
                return Err(error);
            }
            handles.push(memory.map_or(0, Allocation::handle));
        }
        Ok(handles)
    }
}

impl Drop for CudaPages {
    fn drop(&mut self) {
        let mut memory = Some(std::mem::take(&mut self.stock.get_mut().memory));
        let _done = self.device.with_current(|| {
            drop(memory.take());
            Ok(())
        });
        // Only when the context could not be entered (a forked child, a device that was reset): the driver's objects are
        // not ours to touch then, and the driver frees them with the process.
        core::mem::forget(memory);
    }
}

/// Contiguous device addresses with pages of a pool behind some of them. Dropping it unmaps and frees what is in it; nothing
/// on the device may use its addresses then.
#[derive(Debug)]
pub struct CudaRange {
    pages: Arc<CudaPages>,
    base: u64,
    bytes: usize,
    slots: Slots,
}

impl CudaRange {
    fn new(pages: Arc<CudaPages>, bytes: u64) -> Result<Self> {
        let page = pages.page_bytes;
        let count = bytes.div_ceil(page as u64);
        let rounded = usize::try_from(count).ok().and_then(|n| n.checked_mul(page));
        let (Some(bytes), Ok(count @ 1..)) = (rounded, u32::try_from(count)) else {
            bail!(
                NMC_ERR_INVALID_ARG,
                "a range of {bytes} bytes has no pages of {page} bytes, or more than {} of them",
                u32::MAX
            );
        };
        let slots = Slots::new(count)?;
        let mut base = 0;
        pages.device.with_current(|| {
            // SAFETY: the out-pointer is a local; the range is given back in `drop`.
            unsafe { call!(sys::cuMemAddressReserve(&raw mut base, bytes, pages.granularity, 0, 0)) }
                .map_err(|e| e.context(format_args!("reserving {bytes} bytes of device addresses")))
        })?;
        Ok(Self { pages, base, bytes, slots })
    }

    /// First address on the device; stays the same for the range's lifetime.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of addresses.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The pool whose pages it maps.
    pub fn pool(&self) -> &Arc<CudaPages> {
        &self.pages
    }

    /// Which page is where.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    fn address(&self, index: u32) -> u64 {
        self.base + u64::from(index) * self.pages.page_bytes as u64
    }

    /// Maps pages that are held to the empty places from `first` on and lets the device read and write them; the range
    /// becomes a holder of each. All or none.
    pub fn map(&mut self, first: u32, pages: &[PageId]) -> Result<()> {
        self.slots.check_empty(first, u32::try_from(pages.len()).unwrap_or(u32::MAX))?;
        if pages.is_empty() {
            return Ok(());
        }
        let handles = self.pages.retain_all(pages)?;
        let (device, bytes) = (&self.pages.device, self.pages.page_bytes);
        let access = read_write(device);
        let mut done = 0;
        let outcome = device.with_current(|| {
            let mut address = self.address(first);
            for handle in handles {
                // SAFETY: the place is in our range and empty, and the page is held, so that its handle is valid.
                unsafe { call!(sys::cuMemMap(address, bytes, 0, handle, 0))? };
                address += bytes as u64;
                done += 1;
            }
            // SAFETY: all of these places have been mapped.
            unsafe { call!(sys::cuMemSetAccess(self.address(first), bytes * pages.len(), &raw const access, 1)) }
        });
        let (mapped, others) = pages.split_at(done);
        for (index, page) in (first..).zip(mapped) {
            self.slots.set(index, *page);
        }
        if let Err(error) = outcome {
            others.iter().for_each(|page| drop(self.pages.release(*page)));
            // What cannot be unmapped stays mapped and held.
            let _undone = self.unmap(first, u32::try_from(done).unwrap_or(0));
            return Err(error.context(format_args!("mapping {} pages of device memory", pages.len())));
        }
        Ok(())
    }

    /// Takes new pages and maps them to the `count` empty places from `first` on. All or none.
    pub fn grow(&mut self, first: u32, count: u32) -> Result<()> {
        self.slots.check_empty(first, count)?;
        let give_back = |page| drop(self.pages.release(page));
        let taken = take_all(count, || self.pages.take(), give_back)?;
        let outcome = self.map(first, &taken);
        taken.into_iter().for_each(|page| drop(self.pages.release(page)));
        outcome
    }

    /// Empties the `count` places from `first` on, whether they have pages or not; a page that nobody else holds goes back
    /// into the stock. Returns how many pages there were. The work on the device that used them is over.
    pub fn unmap(&mut self, first: u32, count: u32) -> Result<u32> {
        self.slots.check(first, count)?;
        let device = Arc::clone(&self.pages.device);
        let (mut unmapped, mut outcome) = (0, Ok(()));
        device.with_current(|| {
            // A call may cover several mappings, but no gap.
            while let Some((begin, length)) = self.slots.next_run(first, first + count) {
                let bytes = length as usize * self.pages.page_bytes;
                // SAFETY: every place of the run is mapped by whole pages of ours, and the caller's work on it is over.
                unsafe { call!(sys::cuMemUnmap(self.address(begin), bytes))? };
                for index in begin..begin + length {
                    if let Some(page) = self.slots.clear(index) {
                        unmapped += 1;
                        outcome = outcome.clone().and(self.pages.release(page));
                    }
                }
            }
            Ok(())
        })?;
        outcome.map(|()| unmapped)
    }

    /// Copies bytes out of the range and waits for it; fails if a place without a page is among them. Not for hot paths.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.slots.span(offset, to.len() as u64, self.pages.page_bytes as u64)?;
        if to.is_empty() {
            return Ok(());
        }
        let device = &self.pages.device;
        device.with_current(|| {
            device.run_and_wait(|stream| {
                // SAFETY: mapped as checked, and `to` outlives the wait.
                unsafe {
                    call!(sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), self.base + offset, to.len(), stream))
                }
            })
        })
    }

    /// Copies bytes into the range and waits for it; fails if a place without a page is among them. Not for hot paths.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.slots.span(offset, from.len() as u64, self.pages.page_bytes as u64)?;
        if from.is_empty() {
            return Ok(());
        }
        let device = &self.pages.device;
        device.with_current(|| {
            device.run_and_wait(|stream| {
                // SAFETY: mapped as checked, and `from` outlives the wait.
                unsafe {
                    call!(sys::cuMemcpyHtoDAsync_v2(self.base + offset, from.as_ptr().cast(), from.len(), stream))
                }
            })
        })
    }

    /// Sets the bytes of the `count` places from `first` on, which must have pages, to zero, and waits for it.
    pub fn zero(&self, first: u32, count: u32) -> Result<()> {
        self.slots.check_mapped(first, count)?;
        if count == 0 {
            return Ok(());
        }
        let (device, bytes) = (&self.pages.device, count as usize * self.pages.page_bytes);
        device.with_current(|| {
            device.run_and_wait(|stream| {
                // SAFETY: mapped with write access as checked.
                unsafe { call!(sys::cuMemsetD8Async(self.address(first), 0, bytes, stream)) }
            })
        })
    }
}

impl Drop for CudaRange {
    fn drop(&mut self) {
        let device = Arc::clone(&self.pages.device);
        // In a forked child and after a reset of the device this touches nothing; addresses and pages end with the process.
        let _done = device.with_current(|| {
            self.unmap(0, self.slots.len())?;
            // SAFETY: reserved by `new`, and nothing is mapped there any more.
            unsafe { call!(sys::cuMemAddressFree(self.base, self.bytes)) }
        });
    }
}
