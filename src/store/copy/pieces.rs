//! The program's side of a copy: one buffer, a list of slices, or rows with a stride, walked once and in order. Whoever made the
//! [`Slice`]s or [`Rows`] of [`Pieces`] vouches for them.
#![allow(unsafe_code, reason = "copies and checksums by address")]

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::store::sys;

/// A slice of the program's memory: address and bytes, for which whoever made it vouches: see [`Slice::new`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    address: u64,
    bytes: u64,
}

/// Rows of the program's memory that are as far from each other; see [`Rows::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    address: u64,
    rows: u64,
    row_bytes: u64,
    stride: u64,
}

/// The program's side of a copy. Whoever made the slices or rows vouches for them, so calls that are given pieces are safe: what they
/// touch is memory of which somebody said, in an `unsafe` block, that it is there. The C contract hands that on to the program. Inside
/// the store every access names this promise.
#[derive(Debug, Clone, Copy)]
pub enum Pieces<'a> {
    /// One after the other.
    Slices(&'a [Slice]),
    /// One after the other.
    Rows(Rows),
}

impl Slice {
    /// No memory.
    pub const NONE: Self = Self { address: 0, bytes: 0 };

    /// Where its length is: C has the same two words, the address first.
    pub(crate) const BYTES_AT: usize = std::mem::offset_of!(Self, bytes);

    /// `bytes` bytes from `address` on.
    ///
    /// # Safety
    /// They are memory of this process, or of a device where the call takes that, until every call has ended that is given the slice, a
    /// part or a copy of it; for what is enqueued or submitted, until that has ended. Meanwhile nobody else writes what such a call
    /// reads, nor uses what it writes, which can be written to. Of what [`Pieces::check`] refuses nothing is promised: then it is
    /// given to that, or to calls that begin with it, alone.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// First byte.
    #[must_use]
    #[inline(always)]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its first bytes; all of it if there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn first(self, bytes: u64) -> Self {
        Self { address: self.address, bytes: self.bytes.min(bytes) }
    }

    /// What is behind its first bytes.
    #[must_use]
    #[inline(always)]
    pub fn behind(self, bytes: u64) -> Self {
        let passed = self.bytes.min(bytes);
        Self { address: self.address + passed, bytes: self.bytes - passed }
    }

    /// Of a buffer of a test, which keeps it as long as it uses the slice.
    #[cfg(test)]
    pub(crate) fn of_test(bytes: &[u8]) -> Self {
        Self { address: bytes.as_ptr().expose_provenance() as u64, bytes: bytes.len() as u64 }
    }

    /// The same, to be written to.
    #[cfg(test)]
    pub(crate) fn of_test_mut(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_mut_ptr().expose_provenance() as u64, bytes: bytes.len() as u64 }
    }
}

impl Rows {
    /// `rows` rows of `row_bytes`, the first at `address`; from the beginning of one to that of the next there are `stride` bytes.
    ///
    /// # Safety
    /// Each row is as [`Slice::new`] wants it.
    #[must_use]
    pub const unsafe fn new(address: u64, rows: u64, row_bytes: u64, stride: u64) -> Self {
        Self { address, rows, row_bytes, stride }
    }

    /// Of a buffer of a test, from the beginning on; the test keeps it as long as it uses the rows.
    #[cfg(test)]
    pub(crate) fn of_test_mut(bytes: &mut [u8], rows: usize, row_bytes: usize, stride: usize) -> Self {
        assert!(rows == 0 || (rows - 1) * stride + row_bytes <= bytes.len());
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        Self { address, rows: rows as u64, row_bytes: row_bytes as u64, stride: stride as u64 }
    }
}

impl Pieces<'_> {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> Result<u64> {
        let sum = match self {
            Pieces::Slices(slices) => slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.bytes)),
            Pieces::Rows(Rows { rows, row_bytes, .. }) => rows.checked_mul(*row_bytes),
        };
        match sum {
            Some(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
            _ => crate::bail!(NMC_ERR_INVALID_ARG, "the slices have more than 2^63 bytes together"),
        }
    }

    /// Refuses pieces that cannot be memory. Whatever passes can be walked without an overflow.
    #[inline]
    pub fn check(&self) -> Result<()> {
        let good = match self {
            Pieces::Slices(slices) => slices.iter().all(Slice::is_memory),
            Pieces::Rows(Rows { address, rows, row_bytes, stride }) => {
                let span = rows.saturating_sub(1).checked_mul(*stride).and_then(|span| span.checked_add(*row_bytes));
                *rows == 0 || (*rows == 1 || stride >= row_bytes) && is_memory(*address, *row_bytes > 0, span)
            }
        };
        if good { Ok(()) } else { Err(self.not_memory()) }
    }

    #[cold]
    fn not_memory(&self) -> Error {
        let text = match self {
            Pieces::Slices(slices) => {
                let bad = slices.iter().position(|slice| !slice.is_memory()).unwrap_or(0);
                let Slice { address, bytes } = slices.get(bad).copied().unwrap_or(Slice::NONE);
                let which = if slices.len() == 1 { String::new() } else { format!(" of slice {bad}") };
                match address {
                    0 => format!("the address{which} is NULL, but {bytes} bytes are to be there"),
                    _ => format!("the {bytes} bytes{which} from {address:#x} on do not end within the address space"),
                }
            }
            Pieces::Rows(Rows { rows, row_bytes, stride, .. }) if *rows > 1 && stride < row_bytes => {
                format!("stride {stride} is less than row_bytes {row_bytes}")
            }
            Pieces::Rows(Rows { address: 0, rows, row_bytes, stride }) if rows.checked_mul(*stride).is_some() => {
                format!("the address is NULL, but {rows} rows of {row_bytes} bytes are to be there")
            }
            Pieces::Rows(Rows { address, rows, row_bytes, stride }) => format!(
                "{rows} rows of {row_bytes} bytes with stride {stride} from {address:#x} on do not end within the address \
                 space"
            ),
        };
        Error::new(NMC_ERR_INVALID_ARG, text)
    }

    /// CRC32C of the pieces, cut as `pages` say: each is what the sum starts with, and how many bytes go into it. `store` gets
    /// the sums of those that are full. False if there are not enough of them. For memory that the CPU reaches.
    pub(in crate::store) fn sums(
        &self,
        mut pages: impl Iterator<Item = (u32, u64)>,
        mut store: impl FnMut(u32),
    ) -> Result<bool> {
        let mut now = pages.next();
        let mut fits = true;
        self.each(|mut address, mut left| {
            while left > 0 {
                let Some((sum, room)) = &mut now else {
                    fits = false;
                    return Ok(());
                };
                let step = left.min(*room);
                // SAFETY: within a piece, which stays as it is during the call: see `Pieces`.
                *sum = unsafe { sys::checksum(*sum, address, step) };
                (address, left, *room) = (address + step, left - step, *room - step);
                if *room == 0 {
                    store(*sum);
                    now = pages.next();
                }
            }
            Ok(())
        })?;
        Ok(fits)
    }

    /// The same as a list.
    pub(in crate::store) fn slices(&self) -> Result<Vec<Slice>> {
        let mut slices = Vec::new();
        self.each(|address, bytes| memory::push(&mut slices, Slice { address, bytes }))?;
        Ok(slices)
    }

    pub(in crate::store) fn each(&self, mut one: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        match *self {
            Pieces::Slices(slices) => slices.iter().try_for_each(|slice| one(slice.address, slice.bytes)),
            // There may be any number of them.
            Pieces::Rows(Rows { row_bytes: 0, .. }) => Ok(()),
            Pieces::Rows(Rows { address, rows, row_bytes, stride }) => {
                (0..rows).try_for_each(|row| one(address + row * stride, row_bytes))
            }
        }
    }
}

/// Goes through pieces in order, in steps of any size, and can be kept to go on later.
#[derive(Debug, Clone, Copy)]
pub struct Walk<'a> {
    pieces: Pieces<'a>,
    piece: u64,
    within: u64,
}

impl<'a> Walk<'a> {
    /// At the beginning of the first piece.
    #[must_use]
    pub fn new(pieces: Pieces<'a>) -> Self {
        Self { pieces, piece: 0, within: 0 }
    }

    /// The next bytes that lie together, at most so many of them; `None` behind the last piece.
    #[inline]
    pub fn step(&mut self, most: u64) -> Option<Slice> {
        loop {
            let (address, bytes) = match self.pieces {
                Pieces::Slices(slices) => {
                    usize::try_from(self.piece).ok().and_then(|n| slices.get(n)).map(|s| (s.address, s.bytes))
                }
                Pieces::Rows(Rows { address, rows, row_bytes, stride }) => {
                    (self.piece < rows && row_bytes > 0).then(|| (address + self.piece * stride, row_bytes))
                }
            }?;
            if self.within < bytes {
                let step = most.min(bytes - self.within);
                let at = address + self.within;
                self.within += step;
                return Some(Slice { address: at, bytes: step });
            }
            (self.piece, self.within) = (self.piece + 1, 0);
        }
    }

    /// Passes so many bytes by.
    pub fn skip(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some(step) = self.step(bytes)
        {
            bytes -= step.bytes;
        }
    }

    /// Copies bytes to where they belong next. For memory that the CPU reaches.
    pub fn fill(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty()
            && let Some(step) = self.step(bytes.len() as u64)
        {
            let (now, later) = bytes.split_at(usize::try_from(step.bytes).unwrap_or(usize::MAX).min(bytes.len()));
            // SAFETY: within a piece, which is ours to write to during the call: see `Pieces`.
            unsafe { sys::copy(now.as_ptr() as u64, step.address, now.len() as u64) };
            bytes = later;
        }
    }
}

/// Whether `span` bytes from an address on, in which there are some to copy or none, can be memory: they end in the lower
/// half of the addresses, where programs live.
#[inline(always)]
fn is_memory(address: u64, some: bool, span: Option<u64>) -> bool {
    let end = span.and_then(|span| address.checked_add(span));
    (address != 0 || !some) && end.is_some_and(|end| end <= i64::MAX as u64)
}

impl Slice {
    #[inline(always)]
    fn is_memory(&self) -> bool {
        self.bytes == 0 || is_memory(self.address, true, Some(self.bytes))
    }
}

#[cfg(test)]
pub(in crate::store) mod tests {
    /// Bytes of a heap that a test knows.
    pub fn slice_at(address: u64, bytes: u64) -> super::Slice {
        // SAFETY: the test has the heap.
        unsafe { super::Slice::new(address, bytes) }
    }

    /// Stores bytes in a piece of a test.
    pub fn copy_to(bytes: &[u8], address: u64) {
        // SAFETY: see `Pieces`; the test made them.
        unsafe { crate::store::sys::copy(bytes.as_ptr() as u64, address, bytes.len() as u64) };
    }

    /// The other way.
    pub fn copy_from(address: u64, bytes: &mut [u8]) {
        // SAFETY: as above.
        unsafe { crate::store::sys::copy(address, bytes.as_mut_ptr() as u64, bytes.len() as u64) };
    }
}
