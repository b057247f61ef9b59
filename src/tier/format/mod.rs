//! What lies on disk, byte by byte: the directory's head, records, the ends of buckets, the journal. Pure functions over
//! bytes, without I/O: what was written reads back the same, whatever else the bytes are is an error, and no length that was
//! read is believed before it was compared with the bytes that are there.
//!
//! A directory holds `SUPER` ([`head`]), `LOCK`, `journal.N` ([`journal`]) and buckets ([`record`]s, then a footer, [`bucket`]): files
//! of 16 hex digits and `.bucket`, or what another backend makes of them. What is being written has `.tmp` behind its name. All numbers are little-endian,
//! bytes that no table names are zero, and head, record header and the last block of a bucket begin alike:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic: `NMCSUPER`, `NMCOBJCT` or `NMCBUCKT` |
//! | 8..12 | format: 3 |
//! | 12..16 | CRC32C of the whole block, for a record of all its header blocks except a value that lies there; these four bytes count as zero |

pub mod bucket;
pub mod head;
pub mod journal;
pub mod record;

mod fields;
#[cfg(test)]
mod tests;

pub use bucket::{
    Item, Items, Tail, bucket_id, bucket_name, bucket_temporary_id, bucket_temporary_name, encode_footer, footer_bytes,
};
pub use head::{Head, LOCK_NAME, SUPER_NAME};
pub use journal::{
    Entry, JOURNAL_RECORD, Replay, Replayer, encode_entries, encode_entry, journal_name, journal_number,
    journal_temporary_name, journal_temporary_number,
};
pub use record::{Header, Record, Shape, header_bytes};

pub use crate::layout::disk::{Fingerprint, MAX_BLOCK, MAX_BUCKET, MAX_SPACE, MAX_VALUE, Space, Spot, fingerprint};

use crate::layout::store;

/// What everything on disk is counted in, whatever the file system's blocks are.
pub const BLOCK: usize = 4096;
/// Bytes of a value under one CRC32C.
pub const GRANULE: usize = 64 * 1024;
/// The format that this library writes, and the only one that it reads.
pub const FORMAT: u32 = 3;

/// Most records of a bucket.
pub const MAX_RECORDS: u32 = (1 << 26) - 1;
/// Epochs from this one on have no room in an entry of the index.
pub const MAX_EPOCH: u64 = 1 << 56;

/// Longest key. It and the next two are the format's own: a store that allows less reads what one with more has written.
pub const MAX_KEY: usize = 1024;
/// Most bytes of metadata; so many are reserved in every record.
pub const MAX_METADATA: usize = 256;
/// Longest name of a namespace.
pub const MAX_NAME: usize = 64;
const _: () = assert!(
    store::MAX_KEY <= MAX_KEY
        && store::MAX_METADATA <= MAX_METADATA
        && store::MAX_NAMESPACE_NAME <= MAX_NAME
        && store::MAX_NAMESPACES <= MAX_SPACE as usize
);

/// What is wrong with the numbers of an object, if an entry of the index has no room for them.
fn beyond_limits(space: Space, epoch: u64, key_bytes: usize, value_bytes: u64) -> Option<String> {
    if space.number >= MAX_SPACE {
        Some(format!("the namespace number {} is not below {MAX_SPACE}", space.number))
    } else if epoch >= MAX_EPOCH {
        Some(format!("the epoch {epoch} is not below {MAX_EPOCH}"))
    } else if !(1..=MAX_KEY).contains(&key_bytes) {
        Some(format!("the key has {key_bytes} bytes; 1 to {MAX_KEY} are possible"))
    } else if value_bytes >= MAX_VALUE {
        Some(format!("the value has {value_bytes} bytes; fewer than {MAX_VALUE} are possible"))
    } else {
        None
    }
}
