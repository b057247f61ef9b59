//! The journal: what has happened to buckets and namespaces since they were written, in numbered records of 128 bytes, each
//! at the place of its number. A record is believed only where it belongs, in its own tier. Records that were never synced may
//! be lost in any order by a power loss; that one which was synced cannot be read is never taken for that.
//!
//! Every record tells the number below which all are durable. One that is missing below any such number is corruption; one
//! that is missing above them all was not promised to anybody, and what follows it counts.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | CRC32C of the tier's id (8 bytes) and bytes 4..128 |
//! | 4 | kind |
//! | 5 | bytes of the name, for kind 4 |
//! | 8..16 | number of the record |
//! | 16..24 | number below which all records are durable |
//! | 24..128 | by kind, see below |
//!
//! | kind | 24.. | 32.. |
//! |---|---|---|
//! | 1 start | id of the tier, 8 bytes | number of the journal, 8 bytes |
//! | 2 dead | bucket, 8 bytes | block, 8 bytes |
//! | 3 gone | bucket, 8 bytes | |
//! | 4 namespace | number and generation, 4 bytes each | name, up to 64 bytes |
//! | 5 generation | number and generation, 4 bytes each | |
//! | 6 high | bucket, 8 bytes | |
//! | 7 position | term, 8 bytes | number, 8 bytes |
//! | 8 extent | bucket, 8 bytes | first block and number of blocks, 8 bytes each |
//! | 9 lost | bucket, 8 bytes | |
//!
//! A record of zeros is space that was not used yet.

use super::fields::{bytes_at, is_zero, put, u32_at, u64_at};
use super::{MAX_BLOCK, MAX_BUCKET, MAX_NAME, MAX_SPACE, Space};
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_CORRUPT;

/// Bytes of a record.
pub const JOURNAL_RECORD: usize = 128;

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The first record of every journal, and no other one.
    Start {
        /// The tier that the journal belongs to.
        tier_id: u64,
        /// The number in the name of its file.
        journal: u64,
    },
    /// The record that begins there belongs to no key any more.
    Dead {
        /// Its bucket.
        bucket: u64,
        /// Its first block.
        block: u64,
    },
    /// The bucket was given up as a whole; its file may come back and means nothing.
    Gone {
        /// Its number.
        bucket: u64,
    },
    /// A namespace has this number on disk.
    Namespace {
        /// Up to [`MAX_NAME`] bytes.
        name: Vec<u8>,
        /// Its number, and its generation at the time.
        space: Space,
    },
    /// A namespace was flushed: this is its generation from now on.
    Generation(Space),
    /// Numbers of buckets up to this one may have been used.
    High {
        /// Up to [`MAX_BUCKET`].
        bucket: u64,
    },
    /// How far the drop log of the cluster was applied.
    Position {
        /// Term of the entry.
        term: u64,
        /// Its number in that term.
        number: u64,
    },
    /// The bucket lies in these blocks of the one file that has them all, and counts.
    Extent {
        /// Its number.
        bucket: u64,
        /// Its first block.
        first: u64,
        /// How many there are.
        blocks: u64,
    },
    /// The list of the bucket could not be read, and the tier went on without it: what is in it means nothing, and stays there.
    Lost {
        /// Its number.
        bucket: u64,
    },
}

impl Entry {
    /// Fails if a number or the name is beyond what the format allows.
    pub fn check(&self) -> Result<()> {
        let (what, value, limit) = match self {
            Self::Dead { bucket, block } if *block < MAX_BLOCK => ("bucket", *bucket, MAX_BUCKET),
            Self::Dead { block, .. } => ("block", *block, MAX_BLOCK),
            Self::Gone { bucket } | Self::Lost { bucket } => ("bucket", *bucket, MAX_BUCKET),
            Self::Extent { first, blocks, .. } if *blocks == 0 || first.saturating_add(*blocks) > MAX_BLOCK => {
                crate::bail!(NMC_ERR_INVALID_ARG, "{blocks} blocks from {first} on; up to {MAX_BLOCK} are possible")
            }
            Self::Extent { bucket, .. } => ("bucket", *bucket, MAX_BUCKET),
            Self::High { bucket } => ("high mark", *bucket, MAX_BUCKET + 1),
            Self::Namespace { name, .. } if name.len() > MAX_NAME => {
                ("length of a name", name.len() as u64, MAX_NAME as u64 + 1)
            }
            Self::Namespace { space, .. } | Self::Generation(space) => {
                ("namespace number", u64::from(space.number), u64::from(MAX_SPACE))
            }
            Self::Start { .. } | Self::Position { .. } => return Ok(()),
        };
        if value >= limit {
            crate::bail!(NMC_ERR_INVALID_ARG, "the {what} {value} is not below {limit}");
        }
        Ok(())
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Start { .. } => 1,
            Self::Dead { .. } => 2,
            Self::Gone { .. } => 3,
            Self::Namespace { .. } => 4,
            Self::Generation(_) => 5,
            Self::High { .. } => 6,
            Self::Position { .. } => 7,
            Self::Extent { .. } => 8,
            Self::Lost { .. } => 9,
        }
    }
}

/// The record with this number, for an entry that passes [`Entry::check`]. All records below `durable` are on disk for good by
/// the time this one is read: synced before, or, where a journal is written whole and synced before it gets its name, all of it.
#[must_use]
pub fn encode_entry(number: u64, durable: u64, tier_id: u64, entry: &Entry) -> [u8; JOURNAL_RECORD] {
    let mut record = [0; JOURNAL_RECORD];
    put(&mut record, 4, &[entry.kind()]);
    put(&mut record, 8, &number.to_le_bytes());
    put(&mut record, 16, &durable.to_le_bytes());
    match entry {
        Entry::Start { tier_id: first, journal: second }
        | Entry::Dead { bucket: first, block: second }
        | Entry::Position { term: first, number: second } => {
            put(&mut record, 24, &first.to_le_bytes());
            put(&mut record, 32, &second.to_le_bytes());
        }
        Entry::Gone { bucket } | Entry::High { bucket } | Entry::Lost { bucket } => {
            put(&mut record, 24, &bucket.to_le_bytes());
        }
        Entry::Extent { bucket, first, blocks } => {
            put(&mut record, 24, &bucket.to_le_bytes());
            put(&mut record, 32, &first.to_le_bytes());
            put(&mut record, 40, &blocks.to_le_bytes());
        }
        Entry::Namespace { space, .. } | Entry::Generation(space) => {
            put(&mut record, 24, &space.number.to_le_bytes());
            put(&mut record, 28, &space.generation.to_le_bytes());
        }
    }
    if let Entry::Namespace { name, .. } = entry {
        // A name that does not fit is not written in part, which would be another one: its length makes the record invalid.
        put(&mut record, 5, &[u8::try_from(name.len()).unwrap_or(u8::MAX)]);
        put(&mut record, 32, name.get(..name.len().min(MAX_NAME)).unwrap_or(&[]));
    }
    let sum = sum(tier_id, &record);
    put(&mut record, 0, &sum.to_le_bytes());
    record
}

/// Records with the numbers from `first` on, to be written at once; see [`encode_entry`].
pub fn encode_entries(first: u64, durable: u64, tier_id: u64, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut records = memory::with_capacity(entries.len().saturating_mul(JOURNAL_RECORD))?;
    for (number, entry) in (first..).zip(entries) {
        entry.check()?;
        records.extend_from_slice(&encode_entry(number, durable, tier_id, entry));
    }
    Ok(records)
}

fn sum(tier_id: u64, record: &[u8]) -> u32 {
    crc::crc32c_append(crate::base::crc::crc32c(&tier_id.to_le_bytes()), bytes_at(record, 4, JOURNAL_RECORD - 4))
}

/// Whether the bytes are what somebody wrote as this record of this tier. No kind is 0, so zeros never are.
fn is_whole(record: &[u8], number: u64, tier_id: u64) -> bool {
    record.len() == JOURNAL_RECORD
        && record.get(4) != Some(&0)
        && u64_at(record, 8) == number
        && u32_at(record, 0) == sum(tier_id, record)
}

/// Reads a record that is whole. An error is none of a disk's: another version, or somebody's mistake, has written it.
fn decode_entry(record: &[u8], number: u64, tier_id: u64) -> Result<Entry> {
    let (first, second) = (u64_at(record, 24), u64_at(record, 32));
    let space = Space { number: u32_at(record, 24), generation: u32_at(record, 28) };
    let (kind, name_bytes) = (record.get(4).copied().unwrap_or(0), record.get(5).copied().unwrap_or(0));
    let entry = match kind {
        1 => Entry::Start { tier_id: first, journal: second },
        2 => Entry::Dead { bucket: first, block: second },
        3 => Entry::Gone { bucket: first },
        4 if usize::from(name_bytes) > MAX_NAME => {
            crate::bail!(NMC_ERR_CORRUPT, "the name has {name_bytes} bytes; {MAX_NAME} are possible")
        }
        4 => Entry::Namespace { name: memory::copy(bytes_at(record, 32, usize::from(name_bytes)))?, space },
        5 => Entry::Generation(space),
        6 => Entry::High { bucket: first },
        7 => Entry::Position { term: first, number: second },
        8 => Entry::Extent { bucket: first, first: second, blocks: u64_at(record, 40) },
        9 => Entry::Lost { bucket: first },
        _ => crate::bail!(NMC_ERR_VERSION, "its kind is {kind}, which this library does not know"),
    };
    entry.check().map_err(|error| Error::new(NMC_ERR_CORRUPT, error.message))?;
    if matches!(entry, Entry::Start { .. }) != (number == 0) {
        crate::bail!(NMC_ERR_CORRUPT, "the first record of a journal, and only that, tells whose it is: {entry:?}");
    }
    match entry {
        Entry::Start { tier_id: other, .. } if other != tier_id => {
            crate::bail!(NMC_ERR_CORRUPT, "the journal belongs to tier {other:016x}, not to {tier_id:016x}")
        }
        entry => Ok(entry),
    }
}

/// What a journal says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replay {
    /// Every record that is whole, with its number, in their order. The first is [`Entry::Start`], unless that was lost.
    pub entries: Vec<(u64, Entry)>,
    /// The number behind the last record that is there, whole or not.
    pub next: u64,
    /// Records before `next` that are not whole: none of them was known to be durable. A journal that has lost some must be
    /// written anew before it is used, for the next record that says "durable up to here" would make them corruption.
    pub lost: u64,
}

/// Reads a journal piece by piece. `NMC_ERR_CORRUPT` names the first record that is not whole, if any whole one says that it was
/// durable. Reads on behind others that are not whole; ends where only zeros follow.
pub struct Replayer {
    tier_id: u64,
    /// The next record.
    number: u64,
    durable: u64,
    /// The first record that is not whole: nothing behind it may be called durable.
    missing: Option<u64>,
    replay: Replay,
}

impl Replayer {
    /// At the beginning of a journal of this tier.
    #[must_use]
    pub fn new(tier_id: u64) -> Self {
        let replay = Replay { entries: Vec::new(), next: 0, lost: 0 };
        Self { tier_id, number: 0, durable: 0, missing: None, replay }
    }

    /// Takes in what comes next: whole records, but for the last piece.
    pub fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let from = self.number;
        self.number += bytes.len().div_ceil(JOURNAL_RECORD) as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        if is_zero(bytes) {
            // Space that was not used yet, of which there may be much.
            self.missing = self.missing.or(Some(from));
            return Ok(());
        }
        for (number, record) in (from..).zip(bytes.chunks(JOURNAL_RECORD)) {
            let whole = is_whole(record, number, self.tier_id);
            if whole {
                let entry = decode_entry(record, number, self.tier_id);
                memory::push(
                    &mut self.replay.entries,
                    (number, entry.map_err(|error| error.context(format!("record {number} of the journal")))?),
                )?;
                self.durable = u64_at(record, 16).max(self.durable);
            } else {
                self.missing = self.missing.or(Some(number));
            }
            if whole || !is_zero(record) {
                self.replay.next = number + 1;
            }
        }
        Ok(())
    }

    /// Records that are durable, as far as it was read.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The journal is over.
    pub fn finish(mut self) -> Result<Replay> {
        let (missing, durable) = (self.missing.unwrap_or(self.replay.next), self.durable);
        if missing < durable {
            crate::bail!(
                NMC_ERR_CORRUPT,
                "record {missing} of the journal is damaged; the first {durable} were durable"
            );
        }
        self.replay.lost = self.replay.next - self.replay.entries.len() as u64;
        Ok(self.replay)
    }
}

/// Reads the bytes of a whole journal.
#[cfg(test)]
pub fn replay(bytes: &[u8], tier_id: u64) -> Result<Replay> {
    let mut replayer = Replayer::new(tier_id);
    replayer.read(bytes)?;
    replayer.finish()
}

/// The file of a journal.
#[must_use]
pub fn journal_name(number: u64) -> String {
    format!("journal.{number}")
}

/// The number of the journal whose file has this name, exactly as [`journal_name`] gives it.
#[must_use]
pub fn journal_number(name: impl AsRef<[u8]>) -> Option<u64> {
    let digits = name.as_ref().strip_prefix(b"journal.")?;
    let plain = digits.iter().all(u8::is_ascii_digit) && (digits == b"0" || digits.first() != Some(&b'0'));
    if plain { std::str::from_utf8(digits).ok()?.parse().ok() } else { None }
}

/// The file of a journal while it is being written.
#[must_use]
pub fn journal_temporary_name(number: u64) -> String {
    format!("journal.{number}.tmp")
}

/// The number of the journal whose temporary file has this name, exactly as [`journal_temporary_name`] gives it.
#[must_use]
pub fn journal_temporary_number(name: impl AsRef<[u8]>) -> Option<u64> {
    journal_number(name.as_ref().strip_suffix(b".tmp")?)
}
