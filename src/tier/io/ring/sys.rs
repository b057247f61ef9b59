//! The rings themselves, and the system calls that stand in for them.
#![allow(unsafe_code, reason = "the kernel reads and writes memory by address")]

use super::super::hitch::{self, By, Met};
use super::super::sys::{found, may_reach, path_of};
use super::super::{FixedBuffer, Options, ended, error};
use super::{DEEPEST, HANDED_OVER, LONG_FLIGHT, LONGEST, LOOKED_AT, PIECES, REQUEST, go_on_from, joined};
use crate::base::error::{Error, Result};
use crate::base::{log, memory};
use crate::sync::fork;
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A piece of a file and the memory that it is read to. (Inside this module also: written from.)
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The file.
    pub fd: RawFd,
    /// Memory that whoever calls vouches for until the call returns.
    pub address: u64,
    /// Its length, not 0.
    pub bytes: u32,
    /// Where in the file.
    pub offset: u64,
}

#[derive(Clone, Copy)]
enum Way {
    FromFile,
    ToFile,
}

/// Why not everything was transferred.
pub enum Stopped {
    /// The system said no.
    Os(io::Error),
    /// The file ends at this offset.
    End(u64),
    /// There is no memory for the list of requests.
    Memory(Error),
}

impl Stopped {
    /// The error of a call on a file.
    pub fn error(self, call: &str, file: &str) -> Error {
        match self {
            Self::Os(cause) => error(call, file, &cause),
            Self::End(at) => ended(file, at),
            Self::Memory(error) => error,
        }
    }
}

/// Reads for clients: many at once, completions as they come. Threads may share one.
pub struct Readers(Rings);

impl Readers {
    /// With no ring yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self(Rings::new(options))
    }

    /// Reads into this memory need not look its pages up any more, as far as the system lets us. The first one counts.
    pub fn fix(&self, memory: &Arc<FixedBuffer>) {
        self.0.fix(memory);
    }

    /// Rings that wait to be used, and whether they know the memory of [`Readers::fix`].
    #[cfg(test)]
    pub fn rings(&self) -> Vec<bool> {
        self.0.idle.lock().iter().map(|ring| ring.is_registered).collect()
    }

    /// Performs all reads, at most `depth` at a time, and calls `done(i)` as each is complete while others are under way. Each
    /// is whole or the call fails; behind the end of a file that is `NMC_ERR_CORRUPT`. Small ones that follow each other in a
    /// file are read together. When the call returns, also with an error, nothing is under way any more.
    ///
    /// # Safety
    /// The memory that all reads name is writable, belongs to the caller and is not otherwise used until the call returns, except
    /// that of reads for which `done` was called.
    pub unsafe fn read(&self, reads: &[Read], done: &mut dyn FnMut(usize)) -> Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.0.transfer(Way::FromFile, reads, done) }
            .map_err(|(fd, stopped)| stopped.error("read", &path_of(fd)))
    }
}

/// The pool.
pub struct Rings {
    idle: Mutex<Vec<Ring>>,
    depth: u32,
    /// None are to be made, or none can be.
    off: AtomicBool,
    told: AtomicBool,
    told_fixed: AtomicBool,
    /// Memory that rings register: kept for as long as they are.
    fixed: OnceLock<Arc<FixedBuffer>>,
    manner: Manner,
}

/// How the disk takes requests. One that is virtual, or a page cache, may do a request while it is handed over, and the thread that
/// hands it over does nothing else meanwhile: there the kernel's threads hand over what is long, a few requests at a time, so that
/// the thread has time for what is there, while it is in a near cache.
#[derive(Default)]
struct Manner {
    /// Long flights that began.
    flights: AtomicU32,
    /// The last one that was looked at was over when it had been handed over.
    at_once: AtomicBool,
}

impl Manner {
    /// What a flight does.
    fn of(&self, pieces: &[Read]) -> (Handover, usize) {
        if total(pieces) < LONG_FLIGHT {
            return (Handover::Own, usize::MAX);
        }
        // Now and then it is looked again: the disk may be another one by now, or the thread was not running when it looked.
        let looks = self.flights.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKED_AT);
        match (looks, self.at_once.load(Ordering::Relaxed)) {
            (true, _) => (Handover::Watched, usize::MAX),
            (false, true) => (Handover::Kernels, HANDED_OVER),
            (false, false) => (Handover::Own, usize::MAX),
        }
    }
}

/// Who hands requests over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handover {
    /// The thread that made them.
    Own,
    /// That one, and it looks whether they are done thereby.
    Watched,
    /// A thread of the kernel.
    Kernels,
}

impl Rings {
    /// With no ring yet.
    pub fn new(options: Options) -> Self {
        // Without the mark of a fork nobody could tell that a ring is the parent's.
        let off = !options.uring || fork::init().is_err();
        let depth = options.depth.clamp(1, DEEPEST);
        Self {
            idle: Mutex::new(Vec::new()),
            depth,
            off: AtomicBool::new(off),
            told: AtomicBool::new(false),
            told_fixed: AtomicBool::new(false),
            fixed: OnceLock::new(),
            manner: Manner::default(),
        }
    }

    fn fix(&self, memory: &Arc<FixedBuffer>) {
        let _ = self.fixed.set(Arc::clone(memory));
    }

    /// A ring for this thread, if there can be one.
    fn take(&self) -> Option<Ring> {
        // In a forked child another thread may have held the lock.
        if self.off.load(Ordering::Relaxed) || fork::is_child() {
            return None;
        }
        let idle = self.idle.lock().pop();
        let cause = match idle.map_or_else(|| Ring::new(self.depth), Ok) {
            Ok(mut ring) => {
                if let Err(cause) = ring.know(self.fixed.get())
                    && !self.told_fixed.swap(true, Ordering::Relaxed)
                {
                    log::emit(log::INFO, || {
                        format!("io_uring_register: {cause}; the pages of every read to staging memory are looked up")
                    });
                }
                return Some(ring);
            }
            Err(cause) => cause,
        };
        // Descriptors or memory may be there the next time.
        if !matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)) {
            self.off.store(true, Ordering::Relaxed);
        }
        if !self.told.swap(true, Ordering::Relaxed) {
            log::emit(log::WARN, || format!("io_uring_setup: {cause}; files are read by plain system calls"));
        }
        None
    }

    /// Transfers all pieces and calls `done` with the number of each. On failure tells the file.
    ///
    /// # Safety
    /// The memory that the pieces name is valid for the way, and only the kernel uses it until this returns or `done` was called.
    unsafe fn transfer(
        &self,
        way: Way,
        pieces: &[Read],
        done: &mut dyn FnMut(usize),
    ) -> std::result::Result<(), (RawFd, Stopped)> {
        // A single request is quickest as a plain call.
        let several = self.depth > 1 && joined(pieces) < pieces.len();
        let outcome = if let Some(mut ring) = several.then(|| self.take()).flatten() {
            // SAFETY: as promised by the caller.
            let outcome = unsafe { Flight::new(&mut ring, pieces, way, &self.manner).run(done) };
            self.put_back(ring);
            outcome
        } else {
            // SAFETY: as promised by the caller.
            unsafe { plain_all(way, pieces, 0, done) }
        };
        outcome.map_err(|(first, stopped)| {
            let fd = pieces[first].fd;
            match stopped {
                // Of several requests behind the end any may have been the first to say so.
                Stopped::End(at) => (fd, Stopped::End(bytes_of(fd).unwrap_or(at).min(at))),
                other => (fd, other),
            }
        })
    }

    fn put_back(&self, ring: Ring) {
        if ring.is_clean() {
            let mut idle = self.idle.lock();
            // If there is no room to keep it, it is closed.
            if idle.try_reserve(1).is_ok() {
                idle.push(ring);
            }
        }
    }

    /// Bytes of the longest read that is made of a long piece.
    fn longest(&self) -> usize {
        // Without a ring requests follow each other, and the kernel splits them better itself.
        if self.off.load(Ordering::Relaxed) || self.depth == 1 { LONGEST } else { REQUEST }
    }

    /// Reads from several places of a file, in requests that are in flight together.
    pub fn read(&self, fd: BorrowedFd<'_>, to: &mut [(u64, &mut [u8])]) -> std::result::Result<(), Stopped> {
        let places = to.iter_mut().map(|(offset, to)| (*offset, to.as_mut_ptr() as u64, to.len()));
        let pieces = split(fd, places, self.longest())?;
        // SAFETY: the slices are borrowed for writing until this returns.
        unsafe { self.transfer(Way::FromFile, &pieces, &mut |_| {}) }.map_err(|(_, stopped)| stopped)
    }

    /// Writes to several places of a file, in requests that are in flight together. Nobody waits for a part of what is written, so the
    /// kernel splits it.
    pub fn write(&self, fd: BorrowedFd<'_>, from: &[(u64, &[u8])]) -> std::result::Result<(), Stopped> {
        let end = from.iter().map(|(offset, from)| offset.saturating_add(from.len() as u64)).max();
        may_reach(end.unwrap_or(0)).map_err(Stopped::Os)?;
        let places = from.iter().map(|(offset, from)| (*offset, from.as_ptr() as u64, from.len()));
        let pieces = split(fd, places, LONGEST)?;
        // SAFETY: the slices are borrowed until this returns, and on this way the kernel only reads them.
        unsafe { self.transfer(Way::ToFile, &pieces, &mut |_| {}) }.map_err(|(_, stopped)| stopped)
    }
}

/// Reads up to the end of the file, or as much as there is room for.
pub fn read_some(fd: BorrowedFd<'_>, to: &mut [u8], offset: u64) -> std::result::Result<usize, Stopped> {
    let length = to.len().min(LONGEST);
    let bytes = u32::try_from(length).unwrap_or(0);
    let piece = Read { fd: fd.as_raw_fd(), address: to.as_mut_ptr() as u64, bytes, offset };
    // SAFETY: the slice is borrowed for writing until this returns.
    match unsafe { plain(Way::FromFile, &[piece], 0) } {
        Err(Stopped::End(at)) => Ok(usize::try_from(at - offset).unwrap_or(0)),
        other => other.map(|()| length),
    }
}

/// Splits places of a file, which are offset, address and length, into requests.
fn split(
    fd: BorrowedFd<'_>,
    places: impl Iterator<Item = (u64, u64, usize)>,
    longest: usize,
) -> std::result::Result<Vec<Read>, Stopped> {
    let mut pieces = Vec::new();
    for (offset, address, bytes) in places {
        memory::reserve(&mut pieces, bytes.div_ceil(longest)).map_err(Stopped::Memory)?;
        pieces.extend((0..bytes).step_by(longest).map(|at| Read {
            fd: fd.as_raw_fd(),
            address: address + at as u64,
            bytes: u32::try_from(longest.min(bytes - at)).unwrap_or(0),
            offset: offset.saturating_add(at as u64),
        }));
    }
    Ok(pieces)
}

fn bytes_of(fd: RawFd) -> Option<u64> {
    // SAFETY: the caller of the transfer has the descriptor open.
    found(unsafe { BorrowedFd::borrow_raw(fd) }).ok().map(|found| found.bytes)
}

fn total(pieces: &[Read]) -> usize {
    pieces.iter().map(|piece| piece.bytes as usize).sum()
}

/// The memory of a request without its first `skip` bytes.
fn memory_of(pieces: &[Read], mut skip: usize) -> impl Iterator<Item = libc::iovec> {
    pieces.iter().filter_map(move |piece| {
        let here = skip.min(piece.bytes as usize);
        skip -= here;
        let (base, left) = (piece.address + here as u64, piece.bytes as usize - here);
        (left > 0).then_some(libc::iovec { iov_base: base as *mut libc::c_void, iov_len: left })
    })
}

/// A request by plain system calls, when `done` bytes of it are there.
///
/// # Safety
/// As for [`Rings::transfer`].
unsafe fn plain(way: Way, pieces: &[Read], mut done: usize) -> std::result::Result<(), Stopped> {
    let Some(first) = pieces.first() else { return Ok(()) };
    let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
    while done < total(pieces) {
        let from = go_on_from(done);
        let count = list.iter_mut().zip(memory_of(pieces, from)).map(|(place, memory)| *place = memory).count();
        let met = hitch::request(By::Call, &mut list[..count]);
        let (list, count) = (list.as_ptr(), i32::try_from(count).unwrap_or(0));
        let offset = i64::try_from(first.offset.saturating_add(from as u64));
        let offset = offset.map_err(|_| Stopped::Os(io::Error::from_raw_os_error(libc::EFBIG)))?;
        let moved = match way {
            // SAFETY: the list has `count` entries; the memory is the caller's promise.
            Way::FromFile => unsafe { libc::preadv(first.fd, list, count, offset) },
            // SAFETY: as above.
            Way::ToFile => unsafe { libc::pwritev(first.fd, list, count, offset) },
        };
        let moved = match met.moved(usize::try_from(moved).map_err(|_| io::Error::last_os_error())) {
            Ok(moved) => moved,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => return Err(Stopped::Os(cause)),
        };
        if from + moved <= done {
            return Err(match way {
                Way::FromFile => Stopped::End(first.offset + done as u64),
                Way::ToFile => Stopped::Os(io::ErrorKind::WriteZero.into()),
            });
        }
        done = from + moved;
    }
    Ok(())
}

/// All requests from piece `first` on by plain system calls, one after the other.
///
/// # Safety
/// As for [`Rings::transfer`].
unsafe fn plain_all(
    way: Way,
    pieces: &[Read],
    mut first: usize,
    done: &mut dyn FnMut(usize),
) -> std::result::Result<(), (usize, Stopped)> {
    while first < pieces.len() {
        let count = joined(&pieces[first..]);
        // SAFETY: as promised by the caller.
        unsafe { plain(way, &pieces[first..first + count], 0) }.map_err(|stopped| (first, stopped))?;
        (first..first + count).for_each(&mut *done);
        first += count;
    }
    Ok(())
}

/// A request that the ring was given.
#[derive(Default)]
struct Request {
    first: usize,
    /// Pieces; 0 while this place is free.
    count: usize,
    /// Where the kernel finds the pieces, if there are several.
    list: Vec<libc::iovec>,
    met: Met,
}

/// A ring with room for as many requests as it may have in flight.
struct Ring {
    /// Always there but while it is dropped.
    ring: Option<IoUring>,
    requests: Vec<Request>,
    free: Vec<usize>,
    /// It did not accept a request, which is still in its queue: it must not be used again.
    is_broken: bool,
    /// Memory that was registered, or was to be.
    fixed: Option<Arc<FixedBuffer>>,
    is_registered: bool,
}

// SAFETY: the addresses in the lists belong to a call that is over or that holds the ring.
unsafe impl Send for Ring {}

impl Ring {
    fn new(depth: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        // Completions wait until the thread asks for them, without an interrupt; Linux 5.19.
        let ring = builder.clone().setup_coop_taskrun().build(depth).or_else(|_| builder.build(depth))?;
        let (mut requests, mut free) = (Vec::new(), Vec::new());
        let refused = |_| io::Error::from_raw_os_error(libc::ENOMEM);
        requests.try_reserve_exact(depth as usize).map_err(refused)?;
        free.try_reserve_exact(depth as usize).map_err(refused)?;
        requests.resize_with(depth as usize, Request::default);
        free.extend(0..depth as usize);
        Ok(Self { ring: Some(ring), requests, free, is_broken: false, fixed: None, is_registered: false })
    }

    /// Registers memory, once. Where the system refuses, for want of memory that may be locked, it is read to like any other.
    fn know(&mut self, memory: Option<&Arc<FixedBuffer>>) -> io::Result<()> {
        let (None, Some(memory), Some(ring)) = (&self.fixed, memory, &self.ring) else { return Ok(()) };
        let whole = libc::iovec { iov_base: memory.address() as *mut libc::c_void, iov_len: memory.bytes() };
        // SAFETY: the memory stays as long as the ring, which keeps it.
        let registered = unsafe { ring.submitter().register_buffers(&[whole]) };
        (self.is_registered, self.fixed) = (registered.is_ok(), Some(Arc::clone(memory)));
        registered
    }

    fn is_fixed(&self, piece: &Read) -> bool {
        self.is_registered && self.fixed.as_ref().is_some_and(|fixed| fixed.has(piece.address, piece.bytes.into()))
    }

    fn is_clean(&self) -> bool {
        !self.is_broken && self.free.len() == self.requests.len()
    }

    /// Requests that the kernel has.
    fn under_way(&mut self) -> usize {
        let queued = self.ring.as_mut().map_or(0, |ring| ring.submission().len());
        (self.requests.len() - self.free.len()).saturating_sub(queued)
    }

    /// Puts a request into the queue; false if there is no room.
    ///
    /// # Safety
    /// The memory of the pieces is valid for the way until the request is complete.
    unsafe fn push(&mut self, way: Way, handover: Handover, pieces: &[Read], first: usize, count: usize) -> bool {
        let fixed = count == 1 && self.is_fixed(&pieces[first]);
        let (Some(ring), Some(place)) = (self.ring.as_mut(), self.free.last().copied()) else { return false };
        let (request, piece) = (&mut self.requests[place], pieces[first]);
        if hitch::is_full() {
            return false;
        }
        // An offset that is none would mean the place where the file was read last. The plain call refuses it.
        if i64::try_from(piece.offset).is_err() {
            return false;
        }
        request.list.clear();
        if count > 1 {
            if request.list.try_reserve(count).is_err() {
                return false;
            }
            request.list.extend(memory_of(&pieces[first..first + count], 0));
        }
        let (fd, address) = (types::Fd(piece.fd), piece.address as *mut u8);
        let mut one = [libc::iovec { iov_base: address.cast(), iov_len: piece.bytes as usize }];
        request.met = hitch::request(By::Ring, if count > 1 { &mut request.list } else { &mut one });
        let bytes = u32::try_from(one[0].iov_len).unwrap_or(0);
        let (list, length) = (request.list.as_ptr(), u32::try_from(count).unwrap_or(0));
        let entry: squeue::Entry = match (way, count) {
            (Way::FromFile, 1) if fixed => opcode::ReadFixed::new(fd, address, bytes, 0).offset(piece.offset).build(),
            (Way::FromFile, 1) => opcode::Read::new(fd, address, bytes).offset(piece.offset).build(),
            (Way::FromFile, _) => opcode::Readv::new(fd, list, length).offset(piece.offset).build(),
            (Way::ToFile, 1) => opcode::Write::new(fd, address, bytes).offset(piece.offset).build(),
            (Way::ToFile, _) => opcode::Writev::new(fd, list, length).offset(piece.offset).build(),
        };
        let entry = if handover == Handover::Kernels { entry.flags(squeue::Flags::ASYNC) } else { entry };
        // SAFETY: the memory is the caller's promise; the list stays until its place is free again.
        if unsafe { ring.submission().push(&entry.user_data(place as u64)) }.is_err() {
            return false;
        }
        (request.first, request.count) = (first, count);
        self.free.pop();
        true
    }

    /// Completions that nobody has looked at.
    fn arrived(&mut self) -> usize {
        self.ring.as_mut().map_or(0, |ring| ring.completion().len())
    }

    /// Hands the kernel what is queued and waits for so many completions. False if the kernel did not take all of it.
    fn submit_and_wait(&mut self, completions: usize) -> bool {
        let Some(ring) = self.ring.as_mut() else { return false };
        loop {
            match hitch::enter(|| ring.submit_and_wait(completions)) {
                // It may stop early; the rest is offered again. What it took is out of the queue and never offered twice.
                Ok(_) => return true,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                // Its queue of completions is full: take some first.
                Err(_) if !ring.completion().is_empty() => return true,
                Err(_) => return false,
            }
        }
    }

    /// Waits for at least one completion, and hands the kernel nothing.
    fn wait(&mut self) {
        let Some(ring) = self.ring.as_mut() else { return };
        // SAFETY: no argument is passed.
        let waited = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 1, EnterFlags::GETEVENTS.bits(), None) };
        if waited.is_err_and(|cause| cause.kind() != io::ErrorKind::Interrupted) && ring.completion().is_empty() {
            // Somebody closed our descriptor. The memory is still shared, so completions arrive nevertheless.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next completed request and its result.
    fn completed(&mut self) -> Option<(usize, usize, i32)> {
        let entry = self.ring.as_mut()?.completion().next()?;
        let place = usize::try_from(entry.user_data()).ok()?;
        let request = self.requests.get_mut(place)?;
        let count = std::mem::take(&mut request.count);
        self.free.push(place);
        Some((request.first, count, request.met.result(entry.result())))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // In a forked child the memory of the ring is not there; something else may be in its place.
        if fork::is_child() {
            std::mem::forget(self.ring.take());
        }
    }
}

/// The transfers of one call. However it ends, even by a panic of `done`, the kernel is through with the memory.
struct Flight<'a> {
    ring: &'a mut Ring,
    pieces: &'a [Read],
    /// The first piece that was not queued.
    next: usize,
    way: Way,
    manner: &'a Manner,
    handover: Handover,
    /// Most bytes under way, but one request always may be.
    most: usize,
    under_way: usize,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        while self.ring.under_way() > 0 {
            if self.ring.completed().is_none() {
                self.ring.wait();
            }
        }
        // What is left was queued and never handed over.
        self.ring.is_broken |= self.ring.free.len() < self.ring.requests.len();
    }
}

impl<'a> Flight<'a> {
    fn new(ring: &'a mut Ring, pieces: &'a [Read], way: Way, manner: &'a Manner) -> Self {
        let (handover, most) = manner.of(pieces);
        Self { ring, pieces, next: 0, way, manner, handover, most, under_way: 0 }
    }

    /// Queues what comes next, as far as it may be under way.
    ///
    /// # Safety
    /// As for [`Rings::transfer`].
    unsafe fn queue(&mut self) {
        while !self.ring.is_broken && self.next < self.pieces.len() && !self.ring.free.is_empty() {
            let count = joined(&self.pieces[self.next..]);
            let bytes = total(&self.pieces[self.next..self.next + count]);
            if self.under_way > 0 && self.under_way.saturating_add(bytes) > self.most {
                return;
            }
            // SAFETY: as promised by the caller; `Drop` waits for the end of it.
            if unsafe { self.ring.push(self.way, self.handover, self.pieces, self.next, count) } {
                (self.next, self.under_way) = (self.next + count, self.under_way + bytes);
            } else {
                self.ring.is_broken = true;
            }
        }
    }

    /// Remembers whether everything was done when it had been handed over.
    fn look(&mut self) {
        if self.handover == Handover::Watched {
            let queued = self.ring.requests.len() - self.ring.free.len();
            self.manner.at_once.store(self.ring.arrived() >= queued, Ordering::Relaxed);
            self.handover = Handover::Own;
        }
    }

    /// # Safety
    /// As for [`Rings::transfer`].
    unsafe fn run(&mut self, done: &mut dyn FnMut(usize)) -> std::result::Result<(), (usize, Stopped)> {
        loop {
            // SAFETY: as promised by the caller.
            unsafe { self.queue() };
            if self.ring.is_broken {
                if self.ring.under_way() == 0 {
                    break;
                }
                self.ring.wait();
            } else if self.ring.free.len() == self.ring.requests.len() {
                return Ok(());
            } else if !self.ring.submit_and_wait(1) {
                self.ring.is_broken = true;
            }
            self.look();
            while let Some((first, count, result)) = self.ring.completed() {
                // SAFETY: as promised by the caller.
                unsafe { self.settle(first, count, result) }.map_err(|stopped| (first, stopped))?;
                self.under_way -= total(&self.pieces[first..first + count]);
                if self.handover == Handover::Kernels {
                    // The next ones come while this one is looked at.
                    // SAFETY: as promised by the caller.
                    unsafe { self.queue() };
                    self.ring.is_broken |= !self.ring.is_broken && !self.ring.submit_and_wait(0);
                }
                (first..first + count).for_each(&mut *done);
            }
        }
        // The ring refused something. What it did not take, and what it was never given, is done without it.
        for place in 0..self.ring.requests.len() {
            let Request { first, count, .. } = self.ring.requests[place];
            if count > 0 {
                // SAFETY: as promised by the caller; the kernel has no request any more.
                unsafe { plain(self.way, &self.pieces[first..first + count], 0) }.map_err(|e| (first, e))?;
                (first..first + count).for_each(&mut *done);
            }
        }
        // SAFETY: as promised by the caller.
        unsafe { plain_all(self.way, self.pieces, self.next, done) }
    }

    /// Looks at the result of a request. What came short is continued, and what the ring cannot do is done without it.
    ///
    /// # Safety
    /// As for [`Rings::transfer`].
    unsafe fn settle(&self, first: usize, count: usize, result: i32) -> std::result::Result<(), Stopped> {
        let pieces = &self.pieces[first..first + count];
        let moved = match usize::try_from(result) {
            Ok(moved) => moved,
            Err(_) => match result.saturating_neg() {
                libc::EAGAIN | libc::EINTR | libc::ECANCELED | libc::EINVAL | libc::EOPNOTSUPP => 0,
                code => return Err(Stopped::Os(io::Error::from_raw_os_error(code))),
            },
        };
        // SAFETY: as promised by the caller; this request is over.
        if moved < total(pieces) { unsafe { plain(self.way, pieces, moved) } } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::super::super::BLOCK;
    use super::*;
    use crate::base::status::NMC_ERR_CORRUPT;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    const PIECE: usize = 128 << 10;

    fn piece(i: usize) -> Vec<u8> {
        (0..PIECE).map(|at| u8::try_from((i * 31 + at / 7 + at) % 251).unwrap()).collect()
    }

    /// A file of `count` pieces, and a block more.
    fn file(count: usize) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        (0..count).for_each(|i| file.write_all(&piece(i)).unwrap());
        file.write_all(&[9; BLOCK]).unwrap();
        file
    }

    /// Reads pieces `which`; gives what was there when `done` was called for each, and in which order.
    fn read(readers: &Readers, file: &std::fs::File, which: &[usize]) -> Result<Vec<(usize, Vec<u8>)>> {
        let mut buffers = vec![vec![0xAA_u8; PIECE]; which.len()];
        let reads: Vec<Read> = buffers.iter_mut().zip(which).map(|(buffer, i)| read_of(file, buffer, *i)).collect();
        let mut seen = Vec::new();
        let mut done = |i: usize| {
            // SAFETY: the buffer is live, and this read is over.
            let there = unsafe { std::slice::from_raw_parts(reads[i].address as *const u8, PIECE) };
            seen.push((i, there.to_vec()));
        };
        // SAFETY: the buffers live until the end of this function.
        unsafe { readers.read(&reads, &mut done) }?;
        Ok(seen)
    }

    fn read_of(file: &std::fs::File, buffer: &mut [u8], i: usize) -> Read {
        let (address, bytes) = (buffer.as_mut_ptr() as u64, u32::try_from(buffer.len()).unwrap());
        Read { fd: file.as_raw_fd(), address, bytes, offset: (i * PIECE) as u64 }
    }

    #[test]
    fn memory_that_rings_know_is_read_to_like_any_other_and_stays_as_long_as_they_do() {
        const COUNT: usize = 8;
        for readers in all() {
            let file = file(COUNT);
            let memory = Arc::new(FixedBuffer::new((COUNT - 2) * PIECE).unwrap());
            readers.fix(&memory);
            // The second of two does not count: what it names is read to as well.
            readers.fix(&Arc::new(FixedBuffer::new(BLOCK).unwrap()));
            let mut outside = vec![0u8; 2 * PIECE];
            let place = |i: usize| match i.checked_sub(COUNT - 2) {
                None => memory.address() + (i * PIECE) as u64,
                Some(i) => outside.as_ptr() as u64 + (i * PIECE) as u64,
            };
            let bytes = u32::try_from(PIECE).unwrap();
            // Not in their order, so that none are joined.
            let order = [5, 0, 7, 2, 4, 1, 6, 3];
            let offset = |i: usize| (i * PIECE) as u64;
            let reads = order.map(|i| Read { fd: file.as_raw_fd(), address: place(i), bytes, offset: offset(i) });
            for _ in 0..3 {
                // SAFETY: the memory lives until the end of the block.
                unsafe { readers.read(&reads, &mut |_| {}) }.unwrap();
                for i in order {
                    // SAFETY: all reads are over.
                    let there = unsafe { std::slice::from_raw_parts_mut(place(i) as *mut u8, PIECE) };
                    assert!(*there == *piece(i), "piece {i}");
                    there.fill(0);
                }
            }
            outside.clear();
            let registered = readers.0.idle.lock().iter().any(|ring| ring.is_registered);
            if !registered {
                eprintln!("nothing was registered: io_uring is off, or no memory may be locked here");
            }
            let weak = Arc::downgrade(&memory);
            drop(memory);
            assert!(weak.upgrade().is_some());
            drop(readers);
            assert!(weak.upgrade().is_none());
        }
    }

    fn both() -> [Readers; 2] {
        [true, false].map(|uring| Readers::new(Options { direct: false, uring, depth: 4 }))
    }

    /// Those, and one whose requests the kernel's threads hand over.
    fn all() -> [Readers; 3] {
        let ([ring, plain], [slow, _]) = (both(), both());
        slow.0.manner.flights.store(1, Ordering::Relaxed);
        slow.0.manner.at_once.store(true, Ordering::Relaxed);
        [ring, plain, slow]
    }

    #[test]
    fn every_read_is_done_once_and_its_bytes_are_there_by_then() {
        let file = file(20);
        for readers in all() {
            for which in [(0..20).collect(), (0..20).rev().collect(), vec![3], vec![], vec![7; 9]] {
                let mut seen = read(&readers, &file, &which).unwrap();
                seen.sort_by_key(|(i, _)| *i);
                assert!(seen.iter().map(|(i, _)| *i).eq(0..which.len()));
                assert!(seen.iter().all(|(i, bytes)| *bytes == piece(which[*i])));
            }
        }
    }

    #[test]
    fn a_read_behind_the_end_fails_the_call_and_leaves_nothing_under_way() {
        let file = file(20);
        for readers in all() {
            for which in [vec![0, 20, 1, 2, 3, 4, 5, 6, 7, 8], vec![0, 1, 2, 3, 4, 30, 31, 32], vec![20]] {
                let error = read(&readers, &file, &which).unwrap_err();
                assert_eq!(error.status, NMC_ERR_CORRUPT);
                let end = format!("ends at byte {}", 20 * PIECE + BLOCK);
                assert!(error.message.contains(&end) || which.contains(&30), "{error}");
                assert!(readers.0.idle.lock().iter().all(Ring::is_clean));
                assert_eq!(read(&readers, &file, &[1, 2]).unwrap().len(), 2);
            }
        }
    }

    #[test]
    fn a_disk_that_does_requests_while_they_are_handed_over_is_noticed() {
        let (file, which) = (file(20), (0..20).rev().collect::<Vec<_>>());
        let [readers, _] = both();
        let manner = &readers.0.manner;
        let reads: Vec<Read> = (0..20).map(|_| Read { fd: 0, address: 0, bytes: 128 << 10, offset: 0 }).collect();
        assert!(manner.of(&reads[..2]).0 == Handover::Own, "too little to look at");
        assert!(manner.of(&reads).0 == Handover::Watched, "the first long one is looked at");
        assert!(manner.of(&reads).0 == Handover::Own, "nothing was seen");
        manner.flights.store(0, Ordering::Relaxed);
        // A file in the page cache is such a disk.
        assert_eq!(read(&readers, &file, &which).unwrap().len(), 20);
        if readers.0.idle.lock().is_empty() {
            eprintln!("skipped: there is no io_uring here");
            return;
        }
        assert!(manner.of(&reads) == (Handover::Kernels, HANDED_OVER));
        for _ in 0..LOOKED_AT {
            let seen = read(&readers, &file, &which).unwrap();
            assert!(seen.iter().all(|(i, bytes)| *bytes == piece(which[*i])));
        }
        // One that is looked at and is not over at once ends it.
        manner.at_once.store(true, Ordering::Relaxed);
        let mut ring = readers.0.take().unwrap();
        let mut flight = Flight::new(&mut ring, &reads, Way::FromFile, manner);
        (flight.handover, flight.ring.requests[0].count) = (Handover::Watched, 1);
        let place = flight.ring.free.pop();
        flight.look();
        flight.ring.free.extend(place);
        assert!(!manner.at_once.load(Ordering::Relaxed));
    }

    #[test]
    fn a_ring_is_used_again_and_each_thread_has_its_own() {
        let file = file(20);
        let [readers, plain] = both();
        for _ in 0..5 {
            read(&readers, &file, &[1, 5, 9]).unwrap();
            read(&plain, &file, &[1, 5, 9]).unwrap();
        }
        assert!(readers.0.idle.lock().len() == 1 || readers.0.off.load(Ordering::Relaxed));
        assert_eq!(plain.0.idle.lock().len(), 0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (readers, file) = (&readers, &file);
                scope.spawn(move || {
                    for round in 0..20 {
                        let which = [0, 3, 7, 11, 2].map(|i| (i + thread + round) % 20);
                        let seen = read(readers, file, &which).unwrap();
                        assert!(seen.iter().all(|(i, bytes)| *bytes == piece(which[*i])));
                    }
                });
            }
        });
        assert!(readers.0.idle.lock().len() <= 8);
    }

    #[test]
    fn what_a_ring_refuses_is_read_without_it() {
        let file = file(20);
        let [readers, _] = both();
        read(&readers, &file, &[1, 5, 9]).unwrap();
        let nothing = std::fs::File::open("/dev/null").unwrap();
        let Some(ring) = readers.0.idle.lock().pop() else { return }; // there are none here
        // SAFETY: the descriptor is the ring's, which is gone after this test; it leads somewhere that takes no requests.
        unsafe { libc::dup2(nothing.as_raw_fd(), ring.ring.as_ref().unwrap().as_raw_fd()) };
        readers.0.put_back(ring);
        let which: Vec<usize> = (0..20).collect();
        let mut seen = read(&readers, &file, &which).unwrap();
        seen.sort_by_key(|(i, _)| *i);
        assert!(seen.iter().map(|(i, _)| *i).eq(0..20), "each once");
        assert!(seen.iter().all(|(i, bytes)| *bytes == piece(*i)));
        assert_eq!(readers.0.idle.lock().len(), 0, "and it is not used again");
        read(&readers, &file, &[1, 5, 9]).unwrap();
        assert_eq!(readers.0.idle.lock().len(), 1, "a new one is made");
    }

    #[test]
    fn a_panic_while_reads_are_under_way_waits_for_them() {
        let file = file(20);
        for readers in all() {
            let mut buffers = vec![vec![0xAA_u8; PIECE]; 20];
            let reads: Vec<Read> = buffers.iter_mut().zip(0..).map(|(buffer, i)| read_of(&file, buffer, i)).collect();
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: the buffers live until the end of the loop.
                unsafe { readers.read(&reads, &mut |_| std::panic::resume_unwind(Box::new(()))) }
            }));
            assert!(caught.is_err());
            assert!(readers.0.idle.lock().is_empty(), "a ring of which nobody knows the state is closed");
            assert_eq!(read(&readers, &file, &[1, 2]).unwrap().len(), 2);
        }
    }

    #[test]
    fn a_forked_child_reads_without_the_rings_of_its_parent() {
        let file = file(20);
        let [readers, _] = both();
        read(&readers, &file, &[1, 5, 9]).unwrap();
        // As if another thread were taking a ring.
        let held = readers.0.idle.lock();
        // SAFETY: the child only calls what is tested here and leaves without running the parent's destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let fine = fork::is_child() && read(&readers, &file, &[1, 5, 9]).is_ok_and(|seen| seen.len() == 3);
            std::mem::forget(held);
            drop(readers); // leaves memory alone that is not there
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(read(&readers, &file, &[1, 5, 9]).unwrap().len(), 3);
    }

    #[test]
    fn short_transfers_go_on_and_the_end_is_where_it_is() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 3 * BLOCK + 100]).unwrap();
        let mut to = vec![0; 4 * BLOCK];
        assert_eq!(read_some(file.as_fd(), &mut to, 0).ok(), Some(3 * BLOCK + 100));
        let (address, bytes) = (to.as_mut_ptr() as u64, u32::try_from(3 * BLOCK).unwrap());
        let whole = [Read { fd: file.as_raw_fd(), address, bytes, offset: 0 }];
        // As if some of it had come already, at an odd place.
        for done in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 7, 3 * BLOCK] {
            to.fill(0);
            // SAFETY: the buffer is live.
            assert!(unsafe { plain(Way::FromFile, &whole, done) }.is_ok());
            assert!(to[go_on_from(done)..3 * BLOCK].iter().all(|byte| *byte == 1));
            assert!(to[3 * BLOCK..].iter().all(|byte| *byte == 0));
        }
    }
}
