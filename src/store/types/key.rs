//! Keys as they are checked, and as messages show them.

use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_NOT_READY};
use crate::layout::store::MAX_KEY;

/// Refuses a key of the wrong length.
#[inline(always)]
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(bad_key(key.len()));
    }
    Ok(())
}

/// The error for a key of this length.
#[cold]
#[must_use]
pub fn bad_key(len: usize) -> Error {
    let text = format!("a key has {len} bytes; 1 to {MAX_KEY} are possible");
    Error::new(crate::base::status::NMC_ERR_INVALID_ARG, text)
}

/// Bytes of a key that messages show.
pub const SHOWN: usize = 48;

/// A key as it appears in messages.
#[must_use]
pub fn show(key: &[u8]) -> String {
    let head = &key[..key.len().min(SHOWN)];
    let dots = if key.len() > head.len() { "..." } else { "" };
    format!("\"{}{dots}\"", head.escape_ascii())
}

/// The error for a key that is not there.
#[cold]
#[must_use]
pub fn not_found(key: &[u8]) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("there is no object {}", show(key)))
}

/// What a wait says of a value that is on disk only: it can be read, but does not come into memory by itself.
#[cold]
pub fn on_disk(key: &[u8]) -> Error {
    Error::new(NMC_NOT_READY, format!("{} is on disk, not in memory", show(key)))
}
