//! The end of a bucket file, behind its records: the list of them, padded with zeros to a whole block, then one last block
//! that says where the list begins. Recovery reads nothing else of a bucket.
//!
//! An entry of the list, one after the other in the order of the records:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | first block of the record |
//! | 4..8 | namespace number |
//! | 8..12 | namespace generation |
//! | 12..14 | last 16 bits of the fingerprint |
//! | 16..24 | first 64 bits of the fingerprint |
//! | 24..32 | epoch |
//! | 32..40 | id of the store that wrote it |
//! | 40..48 | bytes of the value |
//! | 48..56 | name of the put that the value came from |
//! | 56..58 | bytes of the key, `k` |
//! | 58..58 + `k` | key |
//!
//! The last block:
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | magic `NMCBUCKT`, format, CRC32C |
//! | 16..24 | id of the tier |
//! | 24..32 | number of the bucket |
//! | 32..40 | blocks of all records; the list begins behind them |
//! | 40..48 | bytes of the list with its padding |
//! | 48..56 | highest epoch of the list, 0 if it is empty |
//! | 56..60 | entries of the list |
//! | 60..64 | CRC32C of the list with its padding |

use super::fields::{begin, check_begin, check_seal, put, seal, u16_at, u32_at, u64_at};
use super::{BLOCK, Fingerprint, MAX_BLOCK, MAX_BUCKET, MAX_EPOCH, MAX_RECORDS, Shape, Space, beyond_limits};
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG};

const MAGIC: &[u8; 8] = b"NMCBUCKT";
const WHAT: &str = "the last block of a bucket";
/// Bytes of an entry before its key.
const ITEM: usize = 58;

/// A record, as the list of its bucket knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// First block of the record.
    pub block: u64,
    /// The namespace that the key is in.
    pub space: Space,
    /// Of the key in its namespace.
    pub fingerprint: Fingerprint,
    /// The object's epoch in its store.
    pub epoch: u64,
    /// The store that the epoch is of.
    pub store_id: u64,
    /// Length of the value.
    pub value_bytes: u64,
    /// The put that the value came from.
    pub put: u64,
    /// 1 to [`super::MAX_KEY`] bytes.
    pub key: &'a [u8],
}

impl Item<'_> {
    /// The block behind the record, or what is wrong with one that must lie between `from` and `to`.
    fn end(&self, from: u64, to: u64) -> std::result::Result<u64, String> {
        if let Some(wrong) = beyond_limits(self.space, self.epoch, self.key.len(), self.value_bytes) {
            return Err(wrong);
        }
        let end = self.block.saturating_add(Shape::of(self.key.len(), self.value_bytes).blocks);
        if self.block < from || self.block >= MAX_BLOCK || end > to {
            return Err(format!("it takes the blocks {} to {end}; {from} to {to} are left", self.block));
        }
        Ok(end)
    }
}

/// Bytes of the list and the last block of a bucket whose keys have these lengths.
#[must_use]
pub fn footer_bytes(keys: impl Iterator<Item = usize>) -> u64 {
    let bytes: u64 = keys.map(|key| (ITEM + key) as u64).sum();
    bytes.next_multiple_of(BLOCK as u64) + BLOCK as u64
}

/// The list and the last block, a multiple of [`BLOCK`] bytes, for a bucket whose records take `records_blocks` blocks and are
/// `items`, in the order in which they lie there.
pub fn encode_footer(tier_id: u64, bucket: u64, records_blocks: u64, items: &[Item<'_>]) -> Result<Vec<u8>> {
    let Some(count) = u32::try_from(items.len()).ok().filter(|count| *count <= MAX_RECORDS) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "a bucket has {} records; {MAX_RECORDS} are possible", items.len());
    };
    if bucket >= MAX_BUCKET || records_blocks > MAX_BLOCK {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "bucket {bucket} of {records_blocks} blocks; below {MAX_BUCKET} and up to {MAX_BLOCK} are possible"
        );
    }
    let bytes: usize = items.iter().map(|item| ITEM + item.key.len()).sum();
    let list_bytes = bytes.next_multiple_of(BLOCK);
    let mut footer = memory::zeroed(list_bytes + BLOCK)?;
    let (list, last) = footer.split_at_mut(list_bytes);

    let (mut at, mut free, mut max_epoch) = (0, 0, 0);
    for (number, item) in items.iter().enumerate() {
        let wrong = |wrong| Error::new(NMC_ERR_INVALID_ARG, wrong).context(format!("record {number} of a bucket"));
        free = item.end(free, records_blocks).map_err(wrong)?;
        max_epoch = item.epoch.max(max_epoch);
        at = item.encode(list, at);
    }

    begin(last, MAGIC);
    put(last, 16, &tier_id.to_le_bytes());
    put(last, 24, &bucket.to_le_bytes());
    put(last, 32, &records_blocks.to_le_bytes());
    put(last, 40, &(list_bytes as u64).to_le_bytes());
    put(last, 48, &max_epoch.to_le_bytes());
    put(last, 56, &count.to_le_bytes());
    put(last, 60, &crc::crc32c(list).to_le_bytes());
    seal(last, BLOCK..BLOCK);
    Ok(footer)
}

impl<'a> Item<'a> {
    /// Writes the entry, whose numbers were checked, and gives where the next one begins.
    fn encode(&self, list: &mut [u8], at: usize) -> usize {
        let block = u32::try_from(self.block).unwrap_or(u32::MAX);
        let key_bytes = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
        put(list, at, &block.to_le_bytes());
        put(list, at + 4, &self.space.number.to_le_bytes());
        put(list, at + 8, &self.space.generation.to_le_bytes());
        put(list, at + 12, &self.fingerprint.high.to_le_bytes());
        put(list, at + 16, &self.fingerprint.low.to_le_bytes());
        put(list, at + 24, &self.epoch.to_le_bytes());
        put(list, at + 32, &self.store_id.to_le_bytes());
        put(list, at + 40, &self.value_bytes.to_le_bytes());
        put(list, at + 48, &self.put.to_le_bytes());
        put(list, at + 56, &key_bytes.to_le_bytes());
        put(list, at + ITEM, self.key);
        at + ITEM + self.key.len()
    }

    /// The entry that `list` begins with and what follows it; `None` if it ends before. Its numbers are not checked yet.
    fn decode(list: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (fixed, rest) = list.split_at_checked(ITEM)?;
        let (key, rest) = rest.split_at_checked(usize::from(u16_at(fixed, 56)))?;
        let item = Self {
            block: u64::from(u32_at(fixed, 0)),
            space: Space { number: u32_at(fixed, 4), generation: u32_at(fixed, 8) },
            fingerprint: Fingerprint { low: u64_at(fixed, 16), high: u16_at(fixed, 12) },
            epoch: u64_at(fixed, 24),
            store_id: u64_at(fixed, 32),
            value_bytes: u64_at(fixed, 40),
            put: u64_at(fixed, 48),
            key,
        };
        Some((item, rest))
    }
}

/// What the last block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// The tier that the bucket belongs to.
    pub tier_id: u64,
    /// The bucket's number.
    pub bucket: u64,
    /// Entries of the list.
    pub count: u32,
    /// Blocks of all records.
    pub records_blocks: u64,
    /// Where the list begins in the file.
    pub list_at: u64,
    /// Bytes of the list with its padding, a multiple of [`BLOCK`].
    pub list_bytes: u64,
    /// Highest epoch of the list.
    pub max_epoch: u64,
    list_crc: u32,
}

impl Tail {
    /// Reads the last [`BLOCK`] bytes of a file that has `file_bytes`: records, list and last block must end exactly there.
    pub fn decode(last_block: &[u8], file_bytes: u64) -> Result<Self> {
        let tail = Self::decode_any(last_block)?;
        if tail.list_at.saturating_add(tail.list_bytes).saturating_add(BLOCK as u64) != file_bytes {
            crate::bail!(NMC_ERR_CORRUPT, "{WHAT} does not fit a file of {file_bytes} bytes: {tail:?}");
        }
        Ok(tail)
    }

    /// The same for a file that has the list and the last block only: its list begins with its first byte.
    pub fn decode_alone(last_block: &[u8], file_bytes: u64) -> Result<Self> {
        let tail = Self::decode_any(last_block)?;
        if tail.list_bytes.saturating_add(BLOCK as u64) != file_bytes {
            crate::bail!(NMC_ERR_CORRUPT, "{WHAT} does not fit a list of {file_bytes} bytes: {tail:?}");
        }
        Ok(Self { list_at: 0, ..tail })
    }

    fn decode_any(last_block: &[u8]) -> Result<Self> {
        check_begin(last_block, MAGIC, WHAT, NMC_ERR_CORRUPT)?;
        if last_block.len() != BLOCK {
            crate::bail!(NMC_ERR_CORRUPT, "{WHAT} has {} bytes instead of {BLOCK}", last_block.len());
        }
        check_seal(last_block, BLOCK..BLOCK, WHAT)?;
        let tail = Self {
            tier_id: u64_at(last_block, 16),
            bucket: u64_at(last_block, 24),
            count: u32_at(last_block, 56),
            records_blocks: u64_at(last_block, 32),
            list_at: u64_at(last_block, 32).saturating_mul(BLOCK as u64),
            list_bytes: u64_at(last_block, 40),
            max_epoch: u64_at(last_block, 48),
            list_crc: u32_at(last_block, 60),
        };
        let entries_bytes = u64::from(tail.count) * (ITEM as u64 + 1);
        let possible = tail.bucket < MAX_BUCKET
            && tail.records_blocks <= MAX_BLOCK
            && tail.max_epoch < MAX_EPOCH
            && tail.count <= MAX_RECORDS;
        let list_fits = tail.list_bytes.is_multiple_of(BLOCK as u64) && entries_bytes <= tail.list_bytes;
        if !possible || !list_fits {
            crate::bail!(NMC_ERR_CORRUPT, "{WHAT} says what cannot be: {tail:?}");
        }
        Ok(tail)
    }

    /// The records in their order. `list` has the [`Tail::list_bytes`] bytes at [`Tail::list_at`]; their CRC is checked here,
    /// each entry as the iterator comes to it. The first error is also the end.
    pub fn items<'a>(&self, list: &'a [u8]) -> Result<Items<'a>> {
        if list.len() as u64 != self.list_bytes {
            let (is, should) = (list.len(), self.list_bytes);
            crate::bail!(NMC_ERR_CORRUPT, "the list of bucket {} has {should} bytes, but {is} were read", self.bucket);
        }
        let (is, should) = (crc::crc32c(list), self.list_crc);
        if is != should {
            let text = format!("the list of bucket {} has CRC32C {is:08x} instead of {should:08x}", self.bucket);
            return Err(Error::new(NMC_ERR_CORRUPT, text));
        }
        Ok(Items { list, number: 0, free: 0, tail: *self })
    }
}

/// The records of a bucket, see [`Tail::items`].
#[derive(Debug)]
pub struct Items<'a> {
    /// What is left of the list.
    list: &'a [u8],
    /// How many were read.
    number: u32,
    /// The block behind the last one.
    free: u64,
    tail: Tail,
}

impl<'a> Items<'a> {
    fn read(&mut self) -> std::result::Result<Item<'a>, String> {
        let Some((item, rest)) = Item::decode(self.list) else {
            return Err(format!("it does not fit the {} bytes that are left of the list", self.list.len()));
        };
        self.free = item.end(self.free, self.tail.records_blocks)?;
        if item.epoch > self.tail.max_epoch {
            return Err(format!("its epoch {} is above the bucket's highest, {}", item.epoch, self.tail.max_epoch));
        }
        self.list = rest;
        Ok(item)
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.number == self.tail.count {
            return None;
        }
        let (number, bucket) = (self.number, self.tail.bucket);
        let read = self.read();
        self.number = if read.is_ok() { number + 1 } else { self.tail.count };
        let context = |wrong| Error::new(NMC_ERR_CORRUPT, wrong).context(format!("record {number} of bucket {bucket}"));
        Some(read.map_err(context))
    }
}

/// The file of a bucket.
#[must_use]
pub fn bucket_name(id: u64) -> String {
    format!("{id:016x}.bucket")
}

/// The bucket whose file has this name, exactly as [`bucket_name`] gives it.
#[must_use]
pub fn bucket_id(name: impl AsRef<[u8]>) -> Option<u64> {
    let digits = name.as_ref().strip_suffix(b".bucket")?;
    let lower = |digit: &u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit);
    if digits.len() != 16 || !digits.iter().all(lower) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The file of a bucket while it is being written.
#[must_use]
pub fn bucket_temporary_name(id: u64) -> String {
    format!("{id:016x}.bucket.tmp")
}

/// The bucket whose temporary file has this name, exactly as [`bucket_temporary_name`] gives it.
#[must_use]
pub fn bucket_temporary_id(name: impl AsRef<[u8]>) -> Option<u64> {
    bucket_id(name.as_ref().strip_suffix(b".tmp")?)
}
