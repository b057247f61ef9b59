//! What lies on disk, byte by byte: the directory's head, records, the ends of buckets, the journal. Pure functions over
//! bytes, without I/O: what was written reads back the same, whatever else the bytes are is an error, and no length that was
//! read is believed before it was compared with the bytes that are there.
//!
//! A directory holds `SUPER` ([`head`]), `LOCK`, `journal.N` ([`journal`]) and files of 16 hex digits and `.bucket`
//! ([`record`]s, then a footer, [`bucket`]). What is being written has `.tmp` behind its name. All numbers are little-endian,
//! bytes that no table names are zero, and head, record header and the last block of a bucket begin alike:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic: `NMCSUPER`, `NMCOBJCT` or `NMCBUCKT` |
//! | 8..12 | format: 1 |
//! | 12..16 | CRC32C of the whole block, for a record of all its header blocks except a value that lies there; these four bytes count as zero |

pub mod bucket;
pub mod head;
pub mod journal;
pub mod record;

mod fields;
#[cfg(test)]
mod tests;

pub use bucket::{
    Item, Items, Tail, bucket_id, bucket_name, bucket_temporary_id, bucket_temporary_name, encode_footer,
};
pub use head::{Head, LOCK_NAME, SUPER_NAME};
pub use journal::{
    Entry, JOURNAL_RECORD, Replay, encode_entries, encode_entry, journal_name, journal_number, journal_temporary_name,
    journal_temporary_number, replay,
};
pub use record::{Header, Record, Shape, header_bytes};

use crate::layout::store;

/// What everything on disk is counted in, whatever the file system's blocks are.
pub const BLOCK: usize = 4096;
/// Bytes of a value under one CRC32C.
pub const GRANULE: usize = 64 * 1024;
/// The format that this library writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// What an entry of the index has no room for: values of so many bytes, …
pub const MAX_VALUE: u64 = 1 << 40;
/// … buckets from this number on, …
pub const MAX_BUCKET: u64 = 1 << 28;
/// … records that begin at this block of their bucket or behind it, …
pub const MAX_BLOCK: u64 = 1 << 28;
/// … namespaces from this number on, …
pub const MAX_SPACE: u32 = 256;
/// … and epochs from this one on.
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

/// A namespace as the disk knows it, and how often it was flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Space {
    /// Given to the name once and for ever, whatever number the store has for it; below [`MAX_SPACE`].
    pub number: u32,
    /// Goes up with every flush: what was written before it belongs to no key any more.
    pub generation: u32,
}

/// 88 bits that stand for a key: keyed BLAKE3 over namespace number, generation and key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Fingerprint {
    /// The first 64 bits.
    pub low: u64,
    /// The other 24.
    pub high: u32,
}

/// Keys up to this length are hashed in one go, without the state of a longer hash: a quarter less time,
/// which every miss of a store with a tier pays.
const SHORT_KEY: usize = 120;

/// The fingerprint of a key in a tier with this secret. Number and generation have a fixed width in front of the key, so
/// that nothing of one can be read as part of another.
#[must_use]
pub fn fingerprint(secret: &[u8; 32], space: Space, key: &[u8]) -> Fingerprint {
    let mut input = [0; 8 + SHORT_KEY];
    fields::put(&mut input, 0, &space.number.to_le_bytes());
    fields::put(&mut input, 4, &space.generation.to_le_bytes());
    let hash = if key.len() <= SHORT_KEY {
        fields::put(&mut input, 8, key);
        blake3::keyed_hash(secret, fields::bytes_at(&input, 0, 8 + key.len()))
    } else {
        blake3::Hasher::new_keyed(secret).update(fields::bytes_at(&input, 0, 8)).update(key).finalize()
    };
    let [a, b, c, d, e, f, g, h, i, j, k, ..] = *hash.as_bytes();
    Fingerprint { low: u64::from_le_bytes([a, b, c, d, e, f, g, h]), high: u32::from_le_bytes([i, j, k, 0]) }
}

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
