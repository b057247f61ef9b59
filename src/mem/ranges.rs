//! Host memory that is placed by mapping: a pool of equal pages in one memfd, and contiguous ranges of addresses into which
//! pages are mapped on demand. A range never moves, so growing it keeps every pointer; a page can be in several ranges,
//! so sequences share what they have in common. A page has its memory before it can be mapped: a shortage is a status
//! of [`HostPages::take`] and never a signal. `cuda::ranges` is the same for device memory.
//!
//! A place without a page is not readable or writable: [`HostRange::read`] and [`HostRange::write`] refuse it, a pointer faults.

use super::limits;
use crate::alloc::pages::{PageCounts, PageId, Pages, Slots, Taken, take_all};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_LIMIT;
use parking_lot::Mutex;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Page size unless told otherwise, the granularity of device memory.
pub const DEFAULT_PAGE_BYTES: u64 = 2 << 20;
/// Ranges begin at a multiple of this if their pages are multiples of it.
const ALIGNMENT: u64 = 2 << 20;
/// Pages are made in steps of at most this size between two looks at the limits.
const STEP_BYTES: u64 = 256 << 20;

/// A pool of pages. A page that is taken again has the bytes of its last holder. Any thread may use it; a forked child gets
/// `NMC_ERR_FORKED`.
#[derive(Debug)]
pub struct HostPages {
    file: File,
    page_bytes: u64,
    pid: u32,
    /// Also held while bytes are copied by [`HostRange::read`] and [`HostRange::write`]: two ranges may show one page.
    books: Mutex<Pages>,
    spare: Spare,
}

/// Mappings that nobody uses. Where a process has as many as it may, some kernels refuse to replace one by another, too: giving some of these
/// up makes room for that. They are parts of one stretch of addresses, so that nothing else can come in between.
#[derive(Debug)]
struct Spare(NonNull<u8>);

// SAFETY: nobody reads or writes what is there; the kernel orders the calls that change its protection.
unsafe impl Send for Spare {}
// SAFETY: as above.
unsafe impl Sync for Spare {}

impl Spare {
    /// Every second page has a mapping of its own, and those between them too.
    const PAGES: usize = 5;

    fn page() -> usize {
        usize::try_from(system_page_bytes()).unwrap_or(4096)
    }

    fn new() -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = Self::PAGES * Self::page();
        // SAFETY: a new mapping, which replaces none.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        match NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED) {
            Some(base) => {
                let spare = Self(base);
                spare.take();
                Ok(spare)
            }
            None => Err(too_many(Error::last_os("mmap"))),
        }
    }

    fn protect(&self, first: usize, pages: usize, protection: i32) {
        // SAFETY: pages of our own mapping, which nobody uses. Where the table is full it fails, and there are fewer to give up.
        unsafe { libc::mprotect(self.0.as_ptr().add(first * Self::page()).cast(), pages * Self::page(), protection) };
    }

    fn take(&self) {
        (1..Self::PAGES).step_by(2).for_each(|page| self.protect(page, 1, libc::PROT_READ));
    }

    /// Runs something that is to have a little more room in the table.
    fn without<R>(&self, body: impl FnOnce() -> R) -> R {
        self.protect(0, Self::PAGES, libc::PROT_NONE);
        let result = body();
        self.take();
        result
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::PAGES * Self::page()) };
    }
}

impl HostPages {
    /// A pool of at most `pages` pages of `page_bytes`, a multiple of the system's page size. It takes no memory yet.
    pub fn new(name: &CStr, page_bytes: u64, pages: u32) -> Result<Arc<Self>> {
        let system = system_page_bytes();
        if page_bytes == 0 || !page_bytes.is_multiple_of(system) {
            crate::bail!(NMC_ERR_INVALID_ARG, "page_bytes is {page_bytes}; it must be a multiple of {system}");
        }
        let total = page_bytes.checked_mul(u64::from(pages)).filter(|n| *n > 0 && *n <= i64::MAX as u64);
        let Some(total) = total else {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{pages} pages of {page_bytes} bytes are none or pass {} bytes",
                i64::MAX
            );
        };
        limits::check_file_size(total)?;
        // SAFETY: plain system call with a NUL-terminated name.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if raw < 0 {
            return Err(Error::last_os("memfd_create"));
        }
        // SAFETY: `raw` is a fresh descriptor that nobody else owns.
        let file = unsafe { File::from_raw_fd(raw) };
        // SAFETY: plain system call on our own descriptor; the size was checked to fit.
        if unsafe { libc::ftruncate(file.as_raw_fd(), total.cast_signed()) } != 0 {
            return Err(Error::last_os("ftruncate").context(format_args!("a pool of {total} bytes")));
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: fcntl with an integer argument.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(Error::last_os("fcntl(F_ADD_SEALS)"));
        }
        let books = Mutex::new(Pages::new(pages));
        Ok(Arc::new(Self { file, page_bytes, pid: std::process::id(), books, spare: Spare::new()? }))
    }

    /// Reserves addresses for at least `bytes` bytes, rounded up to whole pages. Takes no memory.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<HostRange> {
        HostRange::new(Arc::clone(self), bytes)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// How many pages are in which state.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        self.books.lock().counts()
    }

    /// Holders of a page: takers that have not released it, and ranges.
    #[must_use]
    pub fn holders(&self, page: PageId) -> u32 {
        self.books.lock().holders(page)
    }

    fn check_process(&self) -> Result<()> {
        if self.pid != std::process::id() {
            crate::bail!(NMC_ERR_FORKED, "process {} made this pool before it forked this one", self.pid);
        }
        Ok(())
    }

    /// Takes a page with memory behind it. The caller is its first holder.
    pub fn take(&self) -> Result<PageId> {
        self.check_process()?;
        let taken = self.books.lock().take()?;
        match taken {
            Taken::Idle(page) => Ok(page),
            Taken::Bare(page) => {
                let made = limits::check_headroom(self.page_bytes).and_then(|()| self.commit(page));
                if let Err(error) = made {
                    let mut books = self.books.lock();
                    books.release(page)?;
                    books.park(page, false);
                    return Err(error.context(format_args!("a page of {} bytes", self.page_bytes)));
                }
                Ok(page)
            }
        }
    }

    /// Gets memory for `pages` more pages ahead of their use, so that taking them costs no system call.
    /// What was got before a failure stays.
    pub fn prepare(&self, pages: u32) -> Result<()> {
        self.check_process()?;
        let per_step = u32::try_from(STEP_BYTES / self.page_bytes).unwrap_or(u32::MAX).max(1);
        for done in 0..pages {
            if done % per_step == 0 {
                limits::check_headroom(u64::from(pages - done).saturating_mul(self.page_bytes))?;
            }
            let page = self.books.lock().take_bare()?;
            let made = self.commit(page);
            let mut books = self.books.lock();
            books.release(page)?;
            books.park(page, made.is_ok());
            made?;
        }
        Ok(())
    }

    /// Adds a holder to a page.
    pub fn retain(&self, page: PageId) -> Result<()> {
        self.check_process()?;
        self.books.lock().retain(page)
    }

    /// Takes a holder away; the last one frees the page. For callers of `take` and `retain`: what ranges hold is theirs.
    pub fn release(&self, page: PageId) -> Result<()> {
        self.check_process()?;
        let mut books = self.books.lock();
        if books.release(page)? {
            books.park(page, true);
        }
        Ok(())
    }

    /// Offset of a page in the file; its end was checked to fit when the pool was made.
    fn offset(&self, page: PageId) -> i64 {
        (u64::from(page.0) * self.page_bytes).cast_signed()
    }

    fn commit(&self, page: PageId) -> Result<()> {
        let (offset, bytes) = (self.offset(page), self.page_bytes.cast_signed());
        loop {
            // SAFETY: plain system call on our own descriptor.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, offset, bytes) } == 0 {
                return Ok(());
            }
            let cause = std::io::Error::last_os_error();
            if cause.kind() != std::io::ErrorKind::Interrupted {
                return Err(Error::os("fallocate", &cause));
            }
        }
    }
}

impl AsFd for HostPages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Contiguous addresses with pages of a pool behind some of them. Dropping it unmaps and frees what is in it; nothing may use
/// its addresses then.
#[derive(Debug)]
pub struct HostRange {
    pages: Arc<HostPages>,
    base: NonNull<u8>,
    bytes: usize,
    slots: Slots,
}

// SAFETY: the addresses belong to this value until drop; the bytes are reached through pointers, whose users agree among
// themselves, or by `read`, `write` and `zero`, which hold the pool's lock.
unsafe impl Send for HostRange {}
// SAFETY: as above; mappings change through `&mut self` only.
unsafe impl Sync for HostRange {}

impl HostRange {
    fn new(pages: Arc<HostPages>, bytes: u64) -> Result<Self> {
        let page = pages.page_bytes;
        let alignment = (1 << page.trailing_zeros()).min(ALIGNMENT);
        let sizes = bytes.div_ceil(page).checked_mul(page).filter(|n| *n > 0 && *n <= isize::MAX as u64 - alignment);
        let count = sizes.and_then(|n| u32::try_from(n / page).ok());
        let (Some(rounded), Some(count)) = (sizes, count) else {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a range of {bytes} bytes has no pages, or more than {} pages of {page} bytes or {} bytes",
                u32::MAX,
                isize::MAX
            );
        };
        let (Ok(len), Ok(alignment)) = (usize::try_from(rounded), usize::try_from(alignment)) else {
            crate::bail!(NMC_ERR_NO_MEMORY, "{rounded} bytes do not fit the address space");
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping that nobody can access, at an address of the kernel's choice.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), len + alignment, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(
                too_many(Error::last_os("mmap")).context(format_args!("reserving {rounded} bytes of addresses"))
            );
        }
        let before = raw.cast::<u8>().align_offset(alignment);
        // SAFETY: the cut-off ends lie in the mapping made above, at multiples of the system's page size.
        let base = unsafe {
            let base = raw.cast::<u8>().add(before);
            if before > 0 {
                libc::munmap(raw, before);
            }
            if alignment > before {
                libc::munmap(base.add(len).cast(), alignment - before);
            }
            base
        };
        let Some(base) = NonNull::new(base) else {
            crate::bail!(NMC_ERR_INTERNAL, "a range was mapped at address 0");
        };
        let mut range = Self { pages, base, bytes: len, slots: Slots::new(0)? };
        range.slots = Slots::new(count)?;
        Ok(range)
    }

    /// First address; stays the same for the range's lifetime.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes of addresses.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The pool whose pages it maps.
    #[must_use]
    pub fn pool(&self) -> &Arc<HostPages> {
        &self.pages
    }

    /// Which page is where.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    fn address(&self, index: u32) -> *mut libc::c_void {
        // Inside the range, which fits `isize`, for every index that was checked.
        self.base.as_ptr().wrapping_add(index as usize * self.page_len()).cast()
    }

    #[allow(clippy::cast_possible_truncation, reason = "a range, which has at least one page, fits usize")]
    fn page_len(&self) -> usize {
        self.pages.page_bytes as usize
    }

    /// Maps pages that are held to the empty places from `first` on; the range becomes a holder of each. All or none.
    pub fn map(&mut self, first: u32, pages: &[PageId]) -> Result<()> {
        self.pages.check_process()?;
        self.slots.check_empty(first, u32::try_from(pages.len()).unwrap_or(u32::MAX))?;
        let mut books = self.pages.books.lock();
        for (done, page) in pages.iter().enumerate() {
            if let Err(error) = books.retain(*page) {
                // None of them is the last holder.
                pages[..done].iter().for_each(|page| drop(books.release(*page)));
                return Err(error);
            }
        }
        drop(books);
        let (mut index, mut left) = (first, pages);
        while let Some(page) = left.first() {
            // Pages that follow each other in the file take one call and one entry in the kernel's table.
            let together = left.iter().zip(page.0..).take_while(|(a, b)| a.0 == *b).count();
            if let Err(error) = self.map_stretch(index, *page, together) {
                left.iter().for_each(|page| drop(self.pages.release(*page)));
                // What cannot be unmapped stays mapped and held.
                let _undone = self.unmap(first, index - first);
                return Err(error);
            }
            for page in &left[..together] {
                self.slots.set(index, *page);
                index += 1;
            }
            left = &left[together..];
        }
        Ok(())
    }

    fn map_stretch(&self, index: u32, page: PageId, count: usize) -> Result<()> {
        let (address, bytes) = (self.address(index), count * self.page_len());
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let (fd, offset) = (self.pages.file.as_raw_fd(), self.pages.offset(page));
        // SAFETY: replaces places of our own range that were checked to be empty by pages that have memory.
        if unsafe { libc::mmap(address, bytes, access, flags, fd, offset) } == libc::MAP_FAILED {
            let error = Error::last_os("mmap");
            reserve_again(address, bytes);
            return Err(too_many(error).context(format_args!("mapping {count} pages")));
        }
        Ok(())
    }

    /// Takes new pages and maps them to the `count` empty places from `first` on. All or none.
    pub fn grow(&mut self, first: u32, count: u32) -> Result<()> {
        self.slots.check_empty(first, count)?;
        let give_back = |page| drop(self.pages.release(page));
        let mut taken = take_all(count, || self.pages.take(), give_back)?;
        // So that as many as can be are neighbours in the file.
        taken.sort_unstable();
        let outcome = self.map(first, &taken);
        taken.into_iter().for_each(|page| drop(self.pages.release(page)));
        outcome
    }

    /// Empties the `count` places from `first` on, whether they have pages or not; a page that nobody else holds is free.
    /// Returns how many pages there were. Nothing may use their addresses any more.
    pub fn unmap(&mut self, first: u32, count: u32) -> Result<u32> {
        self.pages.check_process()?;
        self.slots.check(first, count)?;
        // From the first page to the last one: where an end lay between addresses without pages, the kernel would have to split
        // a mapping, and at its limit of mappings it cannot.
        let Some((begin, _)) = self.slots.next_run(first, first + count) else { return Ok(0) };
        let last = (begin..first + count).rev().find(|index| self.slots.get(*index).is_some()).unwrap_or(begin);
        let (address, bytes) = (self.address(begin), (last + 1 - begin) as usize * self.page_len());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces places of our own range by addresses that nobody can access.
        let replace = || unsafe { libc::mmap(address, bytes, libc::PROT_NONE, flags, -1, 0) } != libc::MAP_FAILED;
        if !replace() {
            let error = Error::last_os("mmap");
            // If there was room to reserve, the pages are gone all the same.
            if !reserve_again(address, bytes) && !self.pages.spare.without(replace) {
                return Err(too_many(error).context("unmapping pages"));
            }
        }
        let (mut unmapped, mut outcome) = (0, Ok(()));
        for index in begin..=last {
            if let Some(page) = self.slots.clear(index) {
                unmapped += 1;
                outcome = outcome.and(self.pages.release(page));
            }
        }
        outcome.map(|()| unmapped)
    }

    /// Copies bytes out of the range; fails if a place without a page is among them.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let _still = self.pages.books.lock();
        let from = self.reach(offset, to.len())?;
        // SAFETY: mapped and readable as checked; `to` is the caller's own memory, which no range can be part of.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes into the range; fails if a place without a page is among them.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let _still = self.pages.books.lock();
        let to = self.reach(offset, from.len())?;
        // SAFETY: as in `read`; the lock keeps other writers through this interface away.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Sets the bytes of the `count` places from `first` on, which must have pages, to zero.
    pub fn zero(&self, first: u32, count: u32) -> Result<()> {
        let _still = self.pages.books.lock();
        self.slots.check_mapped(first, count)?;
        // SAFETY: mapped and writable as checked.
        unsafe { std::ptr::write_bytes(self.address(first).cast::<u8>(), 0, count as usize * self.page_len()) };
        Ok(())
    }

    /// The address of bytes that were checked to be mapped.
    fn reach(&self, offset: u64, bytes: usize) -> Result<*mut u8> {
        self.slots.span(offset, bytes as u64, self.pages.page_bytes)?;
        #[allow(clippy::cast_possible_truncation, reason = "checked to be inside the range")]
        Ok(self.base.as_ptr().wrapping_add(offset as usize))
    }
}

impl Drop for HostRange {
    fn drop(&mut self) {
        // SAFETY: reserved by `new` with this length, and every place of it is still ours.
        let gone = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) } == 0;
        // In a forked child the pages are the parent's, and `release` refuses.
        for index in 0..self.slots.len() {
            if let Some(page) = self.slots.clear(index).filter(|_| gone) {
                let _freed = self.pages.release(page);
            }
        }
    }
}

pub(super) fn system_page_bytes() -> u64 {
    // SAFETY: plain call.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}

/// After a mapping failed: makes sure that no gap is left in a range, into which something else could be mapped. `true` if
/// there was one.
fn reserve_again(address: *mut libc::c_void, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: fails unless nothing is mapped there.
    let got = unsafe { libc::mmap(address, bytes, libc::PROT_NONE, flags, -1, 0) };
    if got != libc::MAP_FAILED && got != address {
        // SAFETY: a kernel that does not know the flag chose another place for this new mapping.
        unsafe { libc::munmap(got, bytes) };
    }
    got == address
}

/// `mmap` says "no memory" when it means that the process has too many mappings.
fn too_many(mut error: Error) -> Error {
    if error.status == crate::base::status::NMC_ERR_NO_MEMORY {
        error.status = NMC_ERR_LIMIT;
        error.message.push_str("; use larger pages, or raise vm.max_map_count or ulimit -v");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::status::{
        NMC_ERR_EXISTS, NMC_ERR_FORKED, NMC_ERR_INVALID_ARG, NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND,
    };

    const SMALL: u64 = 12 << 10;

    fn pool(name: &CStr, pages: u32) -> Arc<HostPages> {
        HostPages::new(name, SMALL, pages).unwrap()
    }

    /// Bytes of memory behind a pool.
    fn resident(pool: &HostPages) -> u64 {
        // SAFETY: an all-zero stat is a valid value to be overwritten, which fstat does.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(pool.file.as_raw_fd(), &raw mut stat), 0);
            stat
        };
        u64::try_from(stat.st_blocks).unwrap() * 512
    }

    fn maps_with(text: &str) -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(text)).count()
    }

    fn byte_at(range: &HostRange, offset: u64) -> Result<u8> {
        let mut byte = [0];
        range.read(offset, &mut byte).map(|()| byte[0])
    }

    #[test]
    fn growing_keeps_the_address_and_the_data() {
        let pool = pool(c"nmc-test-grow", 64);
        let mut range = pool.reserve(64 * SMALL).unwrap();
        let base = range.base();
        assert_eq!(pool.counts().used, 0, "reserving takes no memory");
        for index in 0..64u32 {
            range.grow(index, 1).unwrap();
            range.write(u64::from(index) * SMALL, &[u8::try_from(index).unwrap() + 1; 100]).unwrap();
            assert_eq!(range.base(), base);
            for earlier in 0..=index {
                assert_eq!(byte_at(&range, u64::from(earlier) * SMALL + 99), Ok(u8::try_from(earlier).unwrap() + 1));
            }
        }
        let mut whole = vec![0; usize::try_from(range.bytes()).unwrap()];
        range.read(0, &mut whole).unwrap();
        // SAFETY: the whole range is mapped now and nobody writes.
        let by_pointer = unsafe { std::slice::from_raw_parts(base, whole.len()) };
        assert!(by_pointer == whole, "the addresses are one contiguous piece");
    }

    #[test]
    fn large_pages_begin_at_their_multiple() {
        let pool = HostPages::new(c"nmc-test-align", DEFAULT_PAGE_BYTES, 2).unwrap();
        for bytes in [1, DEFAULT_PAGE_BYTES, DEFAULT_PAGE_BYTES + 1] {
            let range = pool.reserve(bytes).unwrap();
            assert_eq!(range.base() as u64 % DEFAULT_PAGE_BYTES, 0);
            assert_eq!(range.bytes(), bytes.next_multiple_of(DEFAULT_PAGE_BYTES));
        }
    }

    #[test]
    fn a_page_in_two_ranges_is_the_same_memory() {
        let pool = pool(c"nmc-test-alias", 4);
        let (mut one, mut two) = (pool.reserve(3 * SMALL).unwrap(), pool.reserve(3 * SMALL).unwrap());
        let page = pool.take().unwrap();
        one.map(0, &[page]).unwrap();
        two.map(2, &[page]).unwrap();
        assert_eq!(pool.holders(page), 3);
        pool.release(page).unwrap();
        one.write(7, b"shared").unwrap();
        let mut seen = [0; 6];
        two.read(2 * SMALL + 7, &mut seen).unwrap();
        assert_eq!(&seen, b"shared");
        drop(one);
        assert_eq!(byte_at(&two, 2 * SMALL + 7), Ok(b's'), "the page lives as long as one range has it");
        assert_eq!(two.unmap(0, 3), Ok(1));
        assert_eq!(pool.counts(), PageCounts { total: 4, used: 0, idle: 1 });
    }

    #[test]
    fn places_without_a_page_are_refused() {
        let pool = pool(c"nmc-test-refuse", 4);
        let mut range = pool.reserve(4 * SMALL).unwrap();
        assert_eq!(byte_at(&range, 0).unwrap_err().status, NMC_ERR_NOT_FOUND);
        range.grow(1, 2).unwrap();
        assert_eq!(byte_at(&range, SMALL), Ok(0));
        assert_eq!(range.write(SMALL - 1, b"ab").unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.write(3 * SMALL - 1, b"ab").unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.zero(0, 2).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.write(4 * SMALL - 1, b"ab").unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(range.read(u64::MAX, &mut [0; 2]).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(range.write(4 * SMALL, b""), Ok(()));
        range.unmap(1, 1).unwrap();
        assert_eq!(byte_at(&range, SMALL).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(byte_at(&range, 2 * SMALL), Ok(0));
    }

    #[test]
    fn what_cannot_be_mapped_changes_nothing() {
        let pool = pool(c"nmc-test-unchanged", 4);
        let mut range = pool.reserve(4 * SMALL).unwrap();
        let page = pool.take().unwrap();
        range.map(1, &[page]).unwrap();
        assert_eq!(range.map(1, &[page]).unwrap_err().status, NMC_ERR_EXISTS);
        assert_eq!(range.map(4, &[page]).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(range.map(2, &[page, PageId(3)]).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.unmap(3, 2).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(pool.holders(page), 2);
        assert_eq!((range.slots().mapped(), range.slots().get(1)), (1, Some(page)));
        assert_eq!(range.unmap(0, 4), Ok(1));
        assert_eq!(range.unmap(0, 4), Ok(0));
        pool.release(page).unwrap();
        assert_eq!(pool.release(page).unwrap_err().status, NMC_ERR_NOT_FOUND);
    }

    #[test]
    fn a_shortage_is_a_status() {
        let pool = pool(c"nmc-test-short", 2);
        let mut range = pool.reserve(4 * SMALL).unwrap();
        assert_eq!(range.grow(0, 3).unwrap_err().status, NMC_ERR_NO_SPACE);
        assert_eq!((range.slots().mapped(), pool.counts().used), (0, 0), "all or none");
        range.grow(0, 2).unwrap();
        let huge = HostPages::new(c"nmc-test-huge", 1 << 46, 2).unwrap();
        assert_eq!(huge.take().unwrap_err().status, NMC_ERR_NO_MEMORY);
        assert_eq!(huge.prepare(2).unwrap_err().status, NMC_ERR_NO_MEMORY);
        assert_eq!(huge.counts(), PageCounts { total: 2, used: 0, idle: 0 });
        assert_eq!(huge.reserve(1 << 62).unwrap_err().status, NMC_ERR_LIMIT, "more than there are addresses");
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for (page_bytes, pages) in [(0, 1), (100, 1), (4095, 1), (SMALL, 0), (1 << 62, 2), (1 << 63, 1)] {
            let error = HostPages::new(c"nmc-test-size", page_bytes, pages).unwrap_err();
            assert_eq!(error.status, NMC_ERR_INVALID_ARG, "{page_bytes} {pages}: {error}");
        }
        let pool = pool(c"nmc-test-size", 1);
        for bytes in [0, u64::MAX, 1 << 63, SMALL << 32] {
            assert_eq!(pool.reserve(bytes).unwrap_err().status, NMC_ERR_INVALID_ARG, "{bytes}");
        }
    }

    #[test]
    fn a_page_that_is_taken_again_has_its_memory_and_the_bytes_of_its_last_holder() {
        let pool = pool(c"nmc-test-again", 3);
        let mut range = pool.reserve(SMALL).unwrap();
        range.grow(0, 1).unwrap();
        range.write(0, &[9; 12 << 10]).unwrap();
        let page = range.slots().get(0);
        range.unmap(0, 1).unwrap();
        assert_eq!((pool.counts().idle, resident(&pool)), (1, SMALL));
        range.grow(0, 1).unwrap();
        assert_eq!((range.slots().get(0), byte_at(&range, SMALL - 1)), (page, Ok(9)));
        range.zero(0, 1).unwrap();
        assert_eq!((byte_at(&range, 0), byte_at(&range, SMALL - 1)), (Ok(0), Ok(0)));
        pool.prepare(2).unwrap();
        assert_eq!((pool.counts().idle, resident(&pool)), (2, 3 * SMALL));
    }

    #[test]
    fn nothing_is_left_after_drop() {
        let pool = pool(c"nmc-test-drop", 40);
        let mut range = pool.reserve(37 * SMALL).unwrap();
        let addresses = format!("{:x}-{:x} ", range.base() as usize, range.base() as usize + 37 * 12 * 1024);
        range.grow(3, 5).unwrap();
        range.grow(20, 17).unwrap();
        assert!(maps_with("nmc-test-drop") >= 2);
        drop(range);
        assert_eq!((maps_with("nmc-test-drop"), maps_with(&addresses)), (0, 0));
        assert_eq!(pool.counts(), PageCounts { total: 40, used: 0, idle: 22 });
        let descriptor = format!("/proc/self/fd/{}", pool.file.as_raw_fd());
        drop(pool);
        let now = std::fs::read_link(descriptor).map(|to| to.display().to_string()).unwrap_or_default();
        assert!(!now.contains("nmc-test-drop"), "{now}");
    }

    #[test]
    fn ten_thousand_mappings_leak_nothing() {
        let pool = pool(c"nmc-test-many", 16);
        let mut range = pool.reserve(16 * SMALL).unwrap();
        for round in 0..10_000u32 {
            let (first, count) = (round % 13, 1 + round % 3);
            range.grow(first, count).unwrap();
            range.write(u64::from(first) * SMALL, &round.to_le_bytes()).unwrap();
            assert_eq!(range.unmap(first, count), Ok(count));
        }
        assert_eq!(maps_with("nmc-test-many"), 0);
        assert_eq!(pool.counts().used, 0);
        assert!(resident(&pool) <= 3 * SMALL, "{}", resident(&pool));
        range.grow(0, 16).unwrap();
    }

    #[test]
    fn many_threads_share_a_pool() {
        let pool = pool(c"nmc-test-threads", 64);
        std::thread::scope(|scope| {
            for mark in 1..=4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut range = pool.reserve(16 * SMALL).unwrap();
                    for round in 0..300u32 {
                        let (first, count) = (round % 12, 1 + round % 4);
                        range.grow(first, count).unwrap();
                        for index in first..first + count {
                            let at = u64::from(index) * SMALL;
                            range.write(at, &[mark]).unwrap();
                        }
                        for index in first..first + count {
                            assert_eq!(byte_at(&range, u64::from(index) * SMALL), Ok(mark), "nobody else's bytes");
                        }
                        range.unmap(first, count).unwrap();
                    }
                });
            }
        });
        assert_eq!(pool.counts().used, 0);
    }

    #[test]
    fn a_forked_child_cannot_harm_its_parent() {
        let pool = pool(c"nmc-test-fork", 4);
        let mut range = pool.reserve(4 * SMALL).unwrap();
        range.grow(0, 1).unwrap();
        range.write(0, b"parent").unwrap();
        let page = range.slots().get(0).unwrap();
        // SAFETY: the child only calls what is tested here and leaves without running the parent's destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let forked = |status| status == NMC_ERR_FORKED;
            let refused = pool.take().is_err_and(|e| forked(e.status))
                && pool.release(page).is_err_and(|e| forked(e.status))
                && range.unmap(0, 1).is_err_and(|e| forked(e.status))
                && range.grow(1, 1).is_err_and(|e| forked(e.status));
            drop(range);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child was refused everything");
        let mut seen = [0; 6];
        range.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"parent");
    }
}
