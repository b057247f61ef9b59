//! Records on their way into a bucket: they are put together in stages, which are written by a thread while the next one is filled.

use super::format::{BLOCK, GRANULE, Record};
use super::io::Buffer;
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::NMC_ERR_IO;
use std::sync::mpsc;

/// Bytes that are collected before they are written. The first stages of a bucket are shorter, so that writing begins soon.
pub(super) const STAGE: usize = if cfg!(test) { GRANULE } else { 6 << 20 };

/// One is filled, one waits, and one is written.
pub(super) const STAGES: usize = 3;

/// Stages that are filled one after the other, while a thread writes those that are full.
pub(super) struct Stages {
    full: mpsc::SyncSender<(Buffer, u64, usize)>,
    free: mpsc::Receiver<Buffer>,
    stage: Option<Buffer>,
    /// Where the stage goes in the file, and how much of it is filled.
    at: u64,
    used: usize,
    /// How much is to be.
    enough: usize,
}

impl Stages {
    /// Stages that come from `free`, and go to `full` with their place in the file and their bytes.
    pub fn new(full: mpsc::SyncSender<(Buffer, u64, usize)>, free: mpsc::Receiver<Buffer>) -> Self {
        Self { full, free, stage: None, at: 0, used: 0, enough: STAGE / 8 }
    }

    /// No more comes. Gives where stages come back to when they are written, and the one that was being filled.
    pub fn finish(self) -> (mpsc::Receiver<Buffer>, Option<Buffer>) {
        (self.free, self.stage)
    }

    fn stopped() -> Error {
        Error::new(NMC_ERR_IO, "writing has stopped")
    }

    /// Hands over what is filled.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(stage) = self.stage.take().filter(|_| self.used > 0) {
            self.full.send((stage, self.at, self.used)).map_err(|_| Self::stopped())?;
        }
        self.used = 0;
        Ok(())
    }

    /// Room for `bytes` more, which are a multiple of a block and fit a stage, for offset `at` of the file.
    fn room(&mut self, at: u64, bytes: usize) -> Result<&mut [u8]> {
        let is_full = self.used + bytes > self.enough;
        if self.used > 0 && (is_full || self.at + self.used as u64 != at) {
            self.flush()?;
            self.enough = if is_full { STAGE.min(2 * self.enough) } else { self.enough };
        }
        if self.stage.is_none() {
            self.stage = Some(self.free.recv().map_err(|_| Self::stopped())?);
        }
        if self.used == 0 {
            self.at = at;
        }
        let from = self.used;
        self.used += bytes;
        self.stage.as_mut().and_then(|stage| stage.get_mut(from..from + bytes)).ok_or_else(Self::stopped)
    }

    /// Writes a record at `at`; false if its value cannot be read, and then nothing of it is there that means anything.
    pub fn record(
        &mut self,
        record: &Record<'_>,
        at: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<bool> {
        let shape = record.shape();
        let (value_at, bytes) = (usize::try_from(shape.value_at).unwrap_or(0), record.value_bytes);
        let mut sums: Vec<u32> = memory::with_capacity(shape.granules as usize)?;
        let whole = usize::try_from(shape.blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK);
        if whole <= STAGE {
            let room = self.room(at, whole)?;
            let end = value_at + usize::try_from(bytes).unwrap_or(0);
            for (number, part) in room[value_at..end].chunks_mut(GRANULE).enumerate() {
                if let Err(error) = read((number * GRANULE) as u64, part) {
                    return Ok(Self::unreadable(&error));
                }
                // While it is in the nearest cache.
                sums.push(crc::crc32c(part));
            }
            room[end..].fill(0);
            record.encode(&sums, &mut room[..shape.header_bytes()])?;
            return Ok(true);
        }
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(STAGE as u64);
            let (step, padded) = {
                let step = usize::try_from(step).unwrap_or(STAGE);
                (step, step.next_multiple_of(BLOCK))
            };
            let room = self.room(at + shape.value_at + done, padded)?;
            if let Err(error) = read(done, &mut room[..step]) {
                return Ok(Self::unreadable(&error));
            }
            room[step..].fill(0);
            sums.extend(room[..step].chunks(GRANULE).map(crc::crc32c));
            done += step as u64;
        }
        // The sums are known last. The header of a very long value does not fit a stage.
        self.flush()?;
        let mut header = Buffer::new(shape.header_bytes())?;
        record.encode(&sums, &mut header)?;
        for (number, part) in header.chunks(STAGE).enumerate() {
            self.room(at + (number * STAGE) as u64, part.len())?.copy_from_slice(part);
        }
        self.flush()?;
        Ok(true)
    }

    fn unreadable(error: &Error) -> bool {
        log::emit(log::WARN, || format!("tier: a value is not written: {error}"));
        false
    }
}
