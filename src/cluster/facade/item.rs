//! A value in memory of the program, and what came of reading one.
#![allow(unsafe_code, reason = "memory of the program, by address")]

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_TOO_SMALL;
use crate::cluster::net::Span;
use crate::store::copy::{Pieces, Slice};

/// A key and the memory that its value is in, or goes to.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Pieces of memory, one after the other; of the host, or, where a call says so, of a device.
    pub slices: &'a [Slice],
    /// The CPU does not reach them, and they are registered: NIXL moves them, or nobody.
    pub far: bool,
}

impl<'a> Item<'a> {
    /// In memory that the CPU reaches, or that somebody looks at first.
    #[must_use]
    pub fn new(key: &'a [u8], slices: &'a [Slice]) -> Self {
        Self { key, slices, far: false }
    }

    pub(super) fn spans(&self) -> Result<Vec<Span>> {
        let size = |n: u64| usize::try_from(n).unwrap_or(0);
        // SAFETY: whoever made the slices vouches for them until the call has ended that they are given to: see `Slice::new`.
        memory::collect(
            self.slices.iter().map(|slice| unsafe { Span::new(size(slice.address()), size(slice.bytes())) }),
        )
    }

    pub(super) fn bytes(&self) -> Result<u64> {
        Pieces::Slices(self.slices).bytes()
    }
}

/// What came of reading a value.
#[derive(Debug)]
pub struct Got {
    /// Bytes of the value, as far as that is known: also of one that did not fit. Not where only its metadata was read.
    pub bytes: u64,
    /// What its writer said about it, where that was wanted.
    pub metadata: Vec<u8>,
    /// How it went.
    pub result: Result<()>,
}

impl Got {
    pub(super) fn of(result: Result<()>) -> Self {
        Self { bytes: 0, metadata: Vec::new(), result }
    }

    pub(super) fn whole(bytes: u64) -> Self {
        Self { bytes, metadata: Vec::new(), result: Ok(()) }
    }

    pub(super) fn too_large(bytes: u64, room: u64) -> Self {
        let text = format!("the value has {bytes} bytes, and there is room for {room}");
        Self { bytes, metadata: Vec::new(), result: Err(Error::new(NMC_ERR_TOO_SMALL, text)) }
    }
}

/// The first so many bytes of memory in pieces.
pub(super) fn first_bytes(slices: &[Slice], mut bytes: u64) -> Result<Vec<Slice>> {
    memory::collect(slices.iter().map(|slice| {
        let taken = slice.first(bytes);
        bytes -= taken.bytes();
        taken
    }))
}
