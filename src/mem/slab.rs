//! A slab: anonymous shared memory of fixed size behind a file descriptor. It is reserved whole and sealed
//! against shrinking and growing when it is made, so no access to a mapping of it can fault.

use super::limits;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_TIMEOUT;
use crate::cuda::{Device, HostRegistration};
use crate::layout::region::Region;
use parking_lot::Mutex;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const HUGE_BYTES: u64 = 2 << 20;
/// `fallocate` is called in steps of this size.
const STEP_BYTES: u64 = 64 << 20;
/// Bytes that this process is about to reserve, in the order in which that began: several of its ranks do at a time, and what is left may be enough
/// for one of them only.
static AHEAD: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
/// Page tables are filled in steps of this size, each some 20 ms.
const POPULATE_BYTES: usize = 64 << 20;

/// A mapped slab and its descriptor.
#[derive(Debug)]
pub struct Slab {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    huge: bool,
}

// SAFETY: the mapping belongs to this value until drop; access to the bytes goes through atomics or the program's
// own synchronisation.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// One of them.
struct Ahead {
    number: u64,
}

impl Ahead {
    fn new(bytes: u64) -> Result<Self> {
        let mut all = AHEAD.lock();
        let number = all.last().map_or(0, |(number, _)| number + 1);
        memory::push(&mut all, (number, bytes))?;
        Ok(Self { number })
    }

    /// Fails if there is not enough for what it and those that began before it have still to reserve: those that came later wait for their turn to
    /// fail. From now on the system counts this step.
    fn begin(&self, step: u64) -> Result<()> {
        let mut all = AHEAD.lock();
        limits::check_available(all.iter().filter(|(number, _)| *number <= self.number).map(|(_, bytes)| bytes).sum())?;
        if let Some((_, bytes)) = all.iter_mut().find(|(number, _)| *number == self.number) {
            *bytes = bytes.saturating_sub(step);
        }
        Ok(())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        AHEAD.lock().retain(|(number, _)| *number != self.number);
    }
}

impl Slab {
    /// Reserves `bytes` (rounded up to whole pages) of zeroed memory. Huge pages are used if asked for and there
    /// are enough of them; [`Slab::huge`] tells. Large slabs take a while (about a second per 2 GiB): `deadline` bounds it.
    pub fn create(name: &CStr, bytes: u64, huge: bool, deadline: &Deadline) -> Result<Self> {
        let what = name.to_string_lossy().into_owned();
        if bytes == 0 || bytes > i64::MAX as u64 / 2 {
            crate::bail!(NMC_ERR_INVALID_ARG, "{what}: {bytes} bytes cannot be reserved");
        }
        if huge && let Ok(slab) = Self::reserve(name, bytes.next_multiple_of(HUGE_BYTES), libc::MFD_HUGETLB, deadline) {
            return Ok(slab);
        }
        let bytes = bytes.next_multiple_of(4096);
        let slab = Self::reserve(name, bytes, 0, deadline)
            .map_err(|e| e.context(format!("reserving {bytes} bytes for {what}")))?;
        if huge {
            // Transparent huge pages are the next best thing; a kernel without them says no, which is fine.
            // SAFETY: advice on our own mapping.
            unsafe { libc::madvise(slab.base.as_ptr().cast(), slab.bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(slab)
    }

    fn reserve(name: &CStr, bytes: u64, extra: libc::c_uint, deadline: &Deadline) -> Result<Self> {
        // SAFETY: plain system call with a NUL-terminated name.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | extra) };
        if raw < 0 {
            return Err(Error::last_os("memfd_create"));
        }
        // SAFETY: `raw` is a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        limits::check_file_size(bytes)?;
        if extra == 0 {
            // By itself: what cannot be is not to keep others from what can.
            limits::check_available(bytes)?;
        }
        // Huge pages come from a pool of their own.
        let ahead = if extra == 0 { Some(Ahead::new(bytes)?) } else { None };
        let mut done = 0;
        while done < bytes {
            let step = STEP_BYTES.min(bytes - done);
            // Before every step, since other processes reserve at the same time.
            ahead.as_ref().map_or(Ok(()), |ahead| ahead.begin(step))?;
            // SAFETY: plain system call on our own descriptor; offsets were checked to fit i64 in `create`.
            while unsafe { libc::fallocate(fd.as_raw_fd(), 0, done.cast_signed(), step.cast_signed()) } != 0 {
                let cause = std::io::Error::last_os_error();
                if cause.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::os("fallocate", &cause));
                }
                // A step that a signal ends begins anew: signals that come often enough let none get through.
                if deadline.passed() {
                    return Err(Error::new(NMC_ERR_TIMEOUT, format!("{done} of {bytes} bytes were reserved in time")));
                }
            }
            done += step;
            if done < bytes && deadline.passed() {
                return Err(Error::new(NMC_ERR_TIMEOUT, format!("{done} of {bytes} bytes were reserved in time")));
            }
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: fcntl with an integer argument.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(Error::last_os("fcntl(F_ADD_SEALS)"));
        }
        Self::map(fd, bytes, true, extra != 0)
    }

    /// Lets a device reach the slab, as long as the registration is there. Drop that before the slab.
    pub fn register(&self, device: &Arc<Device>, read_only: bool) -> Result<HostRegistration> {
        // SAFETY: a mapping of our own. If the slab went first the device would reach its old pages, which stay a slab's until then, and
        // no other memory.
        unsafe { HostRegistration::new(device, self.base(), self.bytes as u64, read_only) }
    }

    /// Maps a slab that another process made. Its size and seals are checked before anything is touched.
    pub fn open(fd: OwnedFd, bytes: u64, writable: bool) -> Result<Self> {
        // SAFETY: an all-zero stat is a valid value to be overwritten.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: fstat fills the struct.
        if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(Error::last_os("fstat of a shared slab"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        // SAFETY: fcntl without argument.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if bytes == 0 || size < bytes {
            crate::bail!(NMC_ERR_PROTOCOL, "a shared slab has {size} bytes where {bytes} were announced");
        }
        if seals < 0 || seals & (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) != libc::F_SEAL_SHRINK | libc::F_SEAL_GROW {
            crate::bail!(NMC_ERR_PROTOCOL, "a shared slab is not sealed against resizing");
        }
        // The block size of a memfd is its page size.
        Self::map(fd, size, writable, stat.st_blksize > 4096)
    }

    fn map(fd: OwnedFd, bytes: u64, writable: bool, huge: bool) -> Result<Self> {
        let Ok(len) = usize::try_from(bytes) else {
            crate::bail!(NMC_ERR_NO_MEMORY, "{bytes} bytes do not fit the address space");
        };
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new shared mapping of our descriptor at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(mapped) if base != libc::MAP_FAILED => Ok(Self { fd, base: mapped, bytes: len, huge }),
            _ => Err(Error::last_os("mmap")),
        }
    }

    /// Fills this process's page tables, so that no access has to later; the content stays. Between steps `goes_on` is asked.
    pub fn populate(&self, goes_on: impl Fn() -> bool) -> Result<()> {
        let mut done = 0;
        while done < self.bytes {
            let step = POPULATE_BYTES.min(self.bytes - done);
            // SAFETY: inside our mapping; the advice changes no byte.
            let rc = unsafe { libc::madvise(self.base.add(done).as_ptr().cast(), step, libc::MADV_POPULATE_WRITE) };
            let cause = std::io::Error::last_os_error();
            match cause.raw_os_error().filter(|_| rc != 0) {
                None => done += step,
                Some(libc::EINTR | libc::EAGAIN) => {}
                // A kernel before 5.14. The memory is reserved, so that touching it cannot fail.
                Some(libc::EINVAL) => {
                    self.touch(done, step);
                    done += step;
                }
                // EFAULT: an access would have ended in SIGBUS.
                Some(libc::EFAULT | libc::EHWPOISON) => crate::bail!(
                    NMC_ERR_NO_MEMORY,
                    "{done} of {} bytes could be populated; the system has no memory for more",
                    self.bytes
                ),
                Some(_) => return Err(Error::os("madvise(MADV_POPULATE_WRITE)", &cause)),
            }
            if done < self.bytes && !goes_on() {
                return Err(Error::new(
                    NMC_ERR_TIMEOUT,
                    format!("{done} of {} bytes were populated in time", self.bytes),
                ));
            }
        }
        Ok(())
    }

    /// Touches every page of a part, without changing it.
    fn touch(&self, from: usize, bytes: usize) {
        for at in (from..from + bytes).step_by(4096) {
            // SAFETY: inside our mapping, which others access as atomics or not at all at this time.
            let byte = unsafe { AtomicU8::from_ptr(self.base.add(at).as_ptr()) };
            // Also when it fails this counts as a store for the CPU.
            let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// A descriptor of the same memory through which it cannot be written.
    pub fn read_only_fd(&self) -> Result<OwnedFd> {
        reopen(self.fd.as_fd(), libc::O_RDONLY)
    }

    /// First byte.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the memory is backed by huge pages.
    #[must_use]
    pub fn huge(&self) -> bool {
        self.huge
    }

    /// The memory, for views made of atomics.
    #[must_use]
    pub fn region(&self) -> Region<'_> {
        // SAFETY: mapped with this length as long as `self` lives.
        unsafe { Region::new(self.base, self.bytes) }
    }

    /// The memory, for a view that is kept beside the slab.
    ///
    /// # Safety
    /// The region is not used after the slab is gone.
    pub(super) unsafe fn region_unbound<'a>(&self) -> Region<'a> {
        // SAFETY: mapped with this length as long as `self` lives, which the caller vouches for.
        unsafe { Region::new(self.base, self.bytes) }
    }
}

impl AsFd for Slab {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length and not unmapped since.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Opens the memory behind `fd` anew with other access: read-only for ranks, read-write for a new master.
pub fn reopen(fd: BorrowedFd<'_>, flags: libc::c_int) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}\0", fd.as_raw_fd());
    // SAFETY: a NUL-terminated path.
    let raw = unsafe { libc::open(path.as_ptr().cast(), flags | libc::O_CLOEXEC) };
    if raw < 0 {
        return Err(Error::last_os("reopening shared memory through /proc/self/fd"));
    }
    // SAFETY: `raw` is a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use std::time::Duration;

    const BYTES: usize = 4 << 20;

    fn slab() -> Slab {
        let deadline = Deadline::after(Duration::from_secs(60));
        Slab::create(c"test", BYTES as u64, false, &deadline).unwrap()
    }

    /// Bytes of a slab that are in this process's page tables.
    fn mapped(slab: &Slab) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{:x}-", slab.base() as usize);
        let part = maps.lines().skip_while(|line| !line.starts_with(&head));
        let rss = part.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn of_several_that_have_no_room_together_the_first_has_it() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let most = limits::mem_available(&meminfo).unwrap() / 10 * 7;
        let (first, second) = (Ahead::new(most).unwrap(), Ahead::new(most).unwrap());
        if first.begin(0).is_err() {
            return println!("skipped: a cgroup allows less than the machine has");
        }
        assert_eq!(second.begin(0).unwrap_err().status, crate::base::status::NMC_ERR_NO_MEMORY);
        // What it has reserved is the system's to count.
        first.begin(most).unwrap();
        second.begin(0).unwrap();
        drop((first, second));
        assert_eq!(AHEAD.lock().iter().filter(|(_, bytes)| *bytes == most).count(), 0);
    }

    #[test]
    fn a_populated_slab_is_in_the_page_tables_as_it_was() {
        for by_touching in [false, true] {
            let slab = slab();
            let last = slab.region().at::<std::sync::atomic::AtomicU64>(BYTES - 8).unwrap();
            last.store(7, Ordering::Relaxed);
            assert!(mapped(&slab) < BYTES, "control: before it is not");
            if by_touching {
                slab.touch(0, BYTES);
            } else {
                slab.populate(|| true).unwrap();
            }
            assert_eq!(mapped(&slab), BYTES);
            assert_eq!(last.load(Ordering::Relaxed), 7);
        }
    }
}
