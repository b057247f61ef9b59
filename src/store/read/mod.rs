//! Reads: in place, as copies, from the disk below and from peers elsewhere; listings, metadata and checksums. Nothing here asks the
//! master, except to consume.

mod disk;
mod get;
mod list;
mod peers;
mod pin;
mod seal;

pub use list::Listed;
pub(super) use pin::LOOKS;
