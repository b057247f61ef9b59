//! Moving bytes between a value, which lies in runs of pages, and the program's memory, which may be one buffer, a list
//! of slices, or rows with a stride. Both sides are walked once, in order.

use super::Store;
use super::client::Client;
use super::sys;
use crate::base::error::Result;
use crate::layout::store::{ObjectHeader, View};
use std::sync::atomic::Ordering::Relaxed;

/// A slice of the program's memory: address and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The program's side of a copy.
#[derive(Debug, Clone, Copy)]
pub enum Pieces<'a> {
    /// One after the other.
    Slices(&'a [Slice]),
    /// `rows` rows of `row_bytes`, `stride` apart.
    Rows {
        /// First byte of the first row.
        address: u64,
        /// Number of rows.
        rows: u64,
        /// Bytes of a row.
        row_bytes: u64,
        /// Bytes from the beginning of a row to that of the next.
        stride: u64,
    },
}

impl Pieces<'_> {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> Result<u64> {
        let sum = match self {
            Pieces::Slices(slices) => slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.bytes)),
            Pieces::Rows { rows, row_bytes, .. } => rows.checked_mul(*row_bytes),
        };
        match sum {
            Some(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
            _ => crate::bail!(NMC_ERR_INVALID_ARG, "the slices have more than 2^63 bytes together"),
        }
    }

    /// Refuses pieces that cannot be memory.
    pub fn check(&self) -> Result<()> {
        let bad = match self {
            Pieces::Slices(slices) => slices.iter().any(|s| s.bytes > 0 && s.address == 0),
            Pieces::Rows { address, rows, row_bytes, stride } => {
                if *rows > 1 && stride < row_bytes {
                    crate::bail!(NMC_ERR_INVALID_ARG, "stride {stride} is less than row_bytes {row_bytes}");
                }
                let span = rows.saturating_sub(1).checked_mul(*stride).and_then(|s| s.checked_add(*row_bytes));
                if span.and_then(|span| address.checked_add(span)).is_none() {
                    crate::bail!(NMC_ERR_INVALID_ARG, "{rows} rows with stride {stride} leave the address space");
                }
                *address == 0 && *rows > 0 && *row_bytes > 0
            }
        };
        if bad {
            crate::bail!(NMC_ERR_INVALID_ARG, "a slice with bytes in it has no address");
        }
        Ok(())
    }

    fn each(&self, mut one: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        match *self {
            Pieces::Slices(slices) => slices.iter().try_for_each(|slice| one(slice.address, slice.bytes)),
            Pieces::Rows { address, rows, row_bytes, stride } => {
                (0..rows).try_for_each(|row| one(address + row * stride, row_bytes))
            }
        }
    }
}

/// Walks the runs of a value.
pub struct Cursor<'v> {
    view: View<'v>,
    header: &'v ObjectHeader,
    /// Address of page 0 of the store in the owner's heap.
    base: u64,
    page: u64,
    next_extent: usize,
    /// Where the current run goes on, and what is left of it.
    at: u64,
    left: u64,
}

impl<'v> Cursor<'v> {
    /// At byte `offset` of an object that is pinned or planned.
    pub fn new(store: &Store, view: &View<'v>, header: &'v ObjectHeader, offset: u64) -> Result<Self> {
        let client = &store.client;
        let base = client.member.base(header.owner_rank.load(Relaxed))? + client.params().heap_offset;
        let page = u64::from(header.page_bytes.load(Relaxed));
        let mut cursor = Self { view: *view, header, base, page, next_extent: 0, at: 0, left: 0 };
        let mut skip = offset;
        while skip > 0 {
            if cursor.left == 0 && !cursor.advance() {
                crate::bail!(NMC_ERR_INVALID_ARG, "offset {offset} is behind the end of the value");
            }
            let step = skip.min(cursor.left);
            cursor.at += step;
            cursor.left -= step;
            skip -= step;
        }
        Ok(cursor)
    }

    fn advance(&mut self) -> bool {
        if self.next_extent >= self.header.n_extents.load(Relaxed) as usize {
            return false;
        }
        let Some((first, count)) = self.view.extent(self.header, self.next_extent) else { return false };
        self.next_extent += 1;
        self.at = self.base + u64::from(first) * self.page;
        self.left = u64::from(count) * self.page;
        self.left > 0
    }
}

impl Client {
    /// Moves `bytes` bytes between the value at `cursor` and `pieces`; `into` the value, or out of it.
    pub(super) fn move_bytes(
        &self,
        cursor: &mut Cursor<'_>,
        pieces: &Pieces<'_>,
        bytes: u64,
        into: bool,
    ) -> Result<()> {
        let mut mover = self.mover(pieces, bytes)?;
        pieces.each(|mut address, mut left| {
            while left > 0 {
                if cursor.left == 0 && !cursor.advance() {
                    crate::bail!(NMC_ERR_INTERNAL, "a value ends before its pages do");
                }
                let step = left.min(cursor.left);
                if into {
                    mover.copy(address, cursor.at, step)?;
                } else {
                    mover.copy(cursor.at, address, step)?;
                }
                address += step;
                left -= step;
                cursor.at += step;
                cursor.left -= step;
            }
            Ok(())
        })?;
        mover.finish()
    }

    fn mover(&self, _pieces: &Pieces<'_>, _bytes: u64) -> Result<Mover> {
        Ok(Mover::Host)
    }
}

/// How bytes are moved.
enum Mover {
    /// By this thread.
    Host,
}

impl Mover {
    #[inline(always)]
    fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Result<()> {
        match self {
            Mover::Host => sys::copy(from, to, bytes),
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}
