//! Copies that the calling thread waits for: between any two of device memory, pinned host memory and ordinary host
//! memory. Ordinary memory goes through two pinned buffers, so that the CPU's copy of one part runs beside the GPU's
//! copy of another. `store` calls it.

use std::sync::Arc;

use super::device::Device;
use super::host::HostRegistration;
use super::kernels::{STRETCHES, Stretch};
use super::stream::{Stream, copy_on_stream};
use crate::base::error::Result;
use crate::base::memory;

/// Bytes of a pinned buffer.
const BUFFER: usize = 2 << 20;
/// Stretches below this size are collected for one launch of a kernel; larger ones are copied by the driver.
const SMALL: u64 = 512 << 10;

struct Staging {
    /// Dropped before the memory that it registers.
    registration: HostRegistration,
    memory: Box<[u8]>,
}

/// A stream and buffers for one thread's copies at a time.
pub struct Copier {
    device: Arc<Device>,
    streams: [Stream; 2],
    staging: Option<[Staging; 2]>,
    pending: Vec<Stretch>,
    turn: usize,
    /// Streams with work on them.
    used: [bool; 2],
}

impl Copier {
    /// A copier for `device`.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            streams: [Stream::new(device)?, Stream::new(device)?],
            staging: None,
            pending: memory::with_capacity(STRETCHES)?,
            turn: 0,
            used: [false; 2],
        })
    }

    /// Begins a copy; [`Copier::finish`] waits for it. `ordinary` tells that `from` or `to` is ordinary host memory.
    ///
    /// # Safety
    /// `from` has `bytes` readable bytes that nobody writes to, and `to` as many writable ones, elsewhere, that nobody else uses,
    /// both until [`Copier::finish`] has returned: for this process where `ordinary` says so, else for the device.
    pub unsafe fn copy(&mut self, from: u64, to: u64, bytes: u64, ordinary: Option<Ordinary>) -> Result<()> {
        match ordinary {
            None if bytes < SMALL => {
                self.pending.push(Stretch { dst: to, src: from, bytes });
                if self.pending.len() == STRETCHES { self.flush() } else { Ok(()) }
            }
            None => self.enqueue(0, from, to, bytes),
            Some(Ordinary::Source) => self.upload(from, to, bytes),
            Some(Ordinary::Destination) => self.download(from, to, bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.used[0] = true;
        let copied = match self.pending.as_slice() {
            // SAFETY: whoever called `copy` vouches for these until `finish` has returned; the stream is our own.
            [one] => unsafe { copy_on_stream(&self.device, self.streams[0].raw(), one.src, one.dst, one.bytes) },
            // SAFETY: as above.
            many => self.device.kernels().and_then(|k| unsafe { k.store_copy(self.streams[0].raw(), many, true) }),
        };
        self.pending.clear();
        copied
    }

    /// Copies by the driver, for [`Self::copy`]: both sides are as that was promised, or a buffer of ours.
    fn enqueue(&mut self, stream: usize, from: u64, to: u64, bytes: u64) -> Result<()> {
        self.used[stream] = true;
        // SAFETY: see `copy`, until `finish` has returned; our buffers stay longer. The stream is our own.
        unsafe { copy_on_stream(&self.device, self.streams[stream].raw(), from, to, bytes) }
    }

    fn stage(&mut self) -> Result<()> {
        if self.staging.is_none() {
            let make = || -> Result<Staging> {
                let mut memory = memory::zeroed(BUFFER)?.into_boxed_slice();
                // SAFETY: of our own, and dropped after the registration.
                let registration =
                    unsafe { HostRegistration::new(&self.device, memory.as_mut_ptr(), BUFFER as u64, false) }?;
                Ok(Staging { registration, memory })
            };
            self.staging = Some([make()?, make()?]);
        }
        Ok(())
    }

    /// From ordinary memory to memory of the device.
    fn upload(&mut self, from: u64, to: u64, bytes: u64) -> Result<()> {
        self.flush()?;
        self.stage()?;
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(BUFFER as u64);
            let turn = self.turn;
            self.turn ^= 1;
            // The buffer's last copy has to be over.
            self.streams[turn].synchronize()?;
            let Some(staging) = self.staging.as_mut() else { return Ok(()) };
            let buffer = &mut staging[turn];
            #[allow(clippy::cast_possible_truncation, reason = "at most BUFFER")]
            // SAFETY: the caller vouches for `bytes` readable bytes; the buffer holds `step`.
            unsafe {
                core::ptr::copy_nonoverlapping((from + done) as *const u8, buffer.memory.as_mut_ptr(), step as usize);
            }
            let staged = buffer.registration.device_ptr();
            self.enqueue(turn, staged, to + done, step)?;
            done += step;
        }
        Ok(())
    }

    /// From memory of the device to ordinary memory.
    fn download(&mut self, from: u64, to: u64, bytes: u64) -> Result<()> {
        self.flush()?;
        self.stage()?;
        for stream in &self.streams {
            stream.synchronize()?;
        }
        let parts = bytes.div_ceil(BUFFER as u64);
        let part = |n: u64| (n * BUFFER as u64, (bytes - n * BUFFER as u64).min(BUFFER as u64));
        for n in 0..parts + 1 {
            if n < parts {
                let (at, step) = part(n);
                let staged = self.staging.as_ref().map_or(0, |s| s[(n & 1) as usize].registration.device_ptr());
                self.enqueue((n & 1) as usize, from + at, staged, step)?;
            }
            if n > 0 {
                let (at, step) = part(n - 1);
                let turn = ((n - 1) & 1) as usize;
                self.streams[turn].synchronize()?;
                let Some(staging) = self.staging.as_ref() else { return Ok(()) };
                #[allow(clippy::cast_possible_truncation, reason = "at most BUFFER")]
                // SAFETY: the caller vouches for `bytes` writable bytes; the buffer holds `step`.
                unsafe {
                    core::ptr::copy_nonoverlapping(staging[turn].memory.as_ptr(), (to + at) as *mut u8, step as usize);
                }
            }
        }
        Ok(())
    }

    /// Waits until everything is copied.
    pub fn finish(&mut self) -> Result<()> {
        // All of it whatever fails: nothing may be in flight when the caller gives the memory back.
        let mut outcome = self.flush();
        for (stream, used) in self.streams.iter().zip(&mut self.used) {
            if std::mem::take(used) {
                outcome = outcome.and(stream.synchronize());
            }
        }
        outcome
    }
}

/// Which side of a copy is ordinary host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordinary {
    /// The source.
    Source,
    /// The destination.
    Destination,
}
