//! Memory on loan as a store sees it, by address.
#![allow(unsafe_code, reason = "slices are made of addresses in the staging memory")]

use super::io::FixedBuffer;
use super::staging::Lent;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_INTERNAL;
use crate::store::Store;
use crate::store::copy::{Pieces, Slice};
use crate::store::types::Look;

/// Reads values with these keys, each into what was lent for it, of a loan in `memory` that has not begun: nobody else uses it.
pub fn read_to<'a>(
    store: &Store,
    (memory, lent): (&FixedBuffer, &[Lent]),
    key: impl Fn(usize) -> &'a [u8],
    result: impl FnMut(usize, Result<Look<u64>>),
) -> Result<()> {
    if !lent.iter().all(|lent| memory.has(lent.address(), lent.bytes())) {
        return Err(Error::new(NMC_ERR_INTERNAL, "what was lent is not staging memory"));
    }
    // SAFETY: in the buffer, as was just seen, which is borrowed until the reads are over. The loan has not begun, so its bytes are nobody
    // else's, and those of its values do not overlap (`Staging::lend`).
    let slices = memory::collect(lent.iter().map(|lent| unsafe { Slice::new(lent.address(), lent.bytes()) }))?;
    let item = |at: usize| Ok((key(at), Pieces::Slices(std::slice::from_ref(&slices[at]))));
    store.get_many_into(lent.len(), item, result);
    Ok(())
}
