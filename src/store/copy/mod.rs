//! Moving bytes between a value, which lies in runs of pages, and the program's memory: both sides are walked once, in order. The only
//! place below `client` where the store touches bytes of values.

mod cursor;
mod pieces;
mod seal;

pub use cursor::Cursor;
pub(super) use cursor::{Base, copy_by_cpu, copy_out, page_sum, read_to, walk};
#[cfg(test)]
pub(super) use pieces::tests;
pub use pieces::{Pieces, Rows, Slice, Walk};
pub(super) use seal::{check_seal, check_sums, metadata_of, seal_of};
