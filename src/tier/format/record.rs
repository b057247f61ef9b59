//! A record: one object on disk. Header blocks with everything but the value, then the value, padded with zeros to a whole
//! block; a value that fits behind the header in the first block lies there. Where the parts are follows from the lengths of
//! key and value alone, so that a reader who knows both brings everything with one request.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | magic `NMCOBJCT`, format, CRC32C |
//! | 16..24 | bytes of the value, `v` |
//! | 24..32 | epoch |
//! | 32..40 | id of the store that wrote it |
//! | 40..44 | namespace number |
//! | 44..48 | namespace generation |
//! | 48..52 | rank |
//! | 52..54 | bytes of the key, `k` |
//! | 54..56 | bytes of the metadata |
//! | 56 | retain class |
//! | 57 | priority |
//! | 64..72 | name of the put that the value came from |
//! | 72..328 | metadata, padded with zeros |
//! | 328.. | CRC32C of each granule, the 64 KiB of the value from its beginning, 4 bytes each, `g` of them |
//! | 328 + 4`g`.. | key |
//! | 328 + 4`g` + `k`.. | the value, if it ends within the first block; else it begins with the next whole block |

use super::fields::{begin, bytes_at, check_begin, check_seal, put, seal, u16_at, u32_at, u64_at};
use super::{BLOCK, GRANULE, MAX_METADATA, Space, beyond_limits};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"NMCOBJCT";
const WHAT: &str = "the header of a record";
/// Where the metadata begins, and where the sums do.
const METADATA: usize = 72;
const SUMS: usize = METADATA + MAX_METADATA;

/// An object without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The namespace that the key is in.
    pub space: Space,
    /// 1 to [`super::MAX_KEY`] bytes.
    pub key: &'a [u8],
    /// What the program says about the object, up to [`MAX_METADATA`] bytes.
    pub metadata: &'a [u8],
    /// Length of the value.
    pub value_bytes: u64,
    /// The object's epoch in its store.
    pub epoch: u64,
    /// The store that the epoch is of.
    pub store_id: u64,
    /// The rank whose heap the value was in.
    pub rank: u32,
    /// Retain class.
    pub retain: u8,
    /// Priority.
    pub priority: u8,
    /// The put that the value came from, wherever it was before.
    pub put: u64,
}

/// Where the parts of a record lie. It follows from the lengths of key and value: room for all metadata is always reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks of the header.
    pub header_blocks: u32,
    /// Whether the value lies in the header's first and only block.
    pub inline: bool,
    /// First byte of the value, from the record's first.
    pub value_at: u64,
    /// Blocks of the whole record.
    pub blocks: u64,
    /// How many sums the header has.
    pub granules: u32,
}

impl Shape {
    /// The shape of a record. Lengths beyond the limits give one that nothing can be written or read with.
    #[must_use]
    pub fn of(key_bytes: usize, value_bytes: u64) -> Self {
        let granules = u32::try_from(value_bytes.div_ceil(GRANULE as u64)).unwrap_or(u32::MAX);
        let header = (SUMS as u64 + 4 * u64::from(granules)).saturating_add(key_bytes as u64);
        if header.saturating_add(value_bytes) <= BLOCK as u64 {
            return Self { header_blocks: 1, inline: true, value_at: header, blocks: 1, granules };
        }
        let header_blocks = u32::try_from(header.div_ceil(BLOCK as u64)).unwrap_or(u32::MAX);
        let value_at = u64::from(header_blocks) * BLOCK as u64;
        let blocks = u64::from(header_blocks) + value_bytes.div_ceil(BLOCK as u64);
        Self { header_blocks, inline: false, value_at, blocks, granules }
    }

    /// Bytes of the header's blocks.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_blocks as usize * BLOCK
    }

    /// What belongs to the value in the header's blocks: nothing behind their end, if it lies behind them.
    fn value_in_header(&self, value_bytes: u64) -> Range<usize> {
        if !self.inline {
            return self.header_bytes()..self.header_bytes();
        }
        let end = |bytes: u64| usize::try_from(bytes).unwrap_or(BLOCK).min(BLOCK);
        end(self.value_at)..end(self.value_at.saturating_add(value_bytes))
    }
}

impl Record<'_> {
    /// Where the parts of the record lie.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape::of(self.key.len(), self.value_bytes)
    }

    /// Writes the header into `to`, which has the bytes of the header's blocks. `sums` has the CRC32C of each granule of the
    /// value. An inline value is left as it is, and may be copied in before or after; everything around it is written.
    pub fn encode(&self, sums: &[u32], to: &mut [u8]) -> Result<()> {
        if let Some(wrong) = beyond_limits(self.space, self.epoch, self.key.len(), self.value_bytes) {
            return Err(Error::new(NMC_ERR_INVALID_ARG, wrong));
        }
        if self.metadata.len() > MAX_METADATA {
            let bytes = self.metadata.len();
            crate::bail!(NMC_ERR_INVALID_ARG, "the metadata has {bytes} bytes; {MAX_METADATA} are possible");
        }
        let key_bytes = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
        let metadata_bytes = u16::try_from(self.metadata.len()).unwrap_or(u16::MAX);
        let shape = self.shape();
        if sums.len() != shape.granules as usize || to.len() != shape.header_bytes() {
            let (bytes, need) = (to.len(), shape.header_bytes());
            let (given, granules) = (sums.len(), shape.granules);
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a header of {need} bytes with {granules} sums is to be written into {bytes} bytes with {given} sums"
            );
        }
        let value = shape.value_in_header(self.value_bytes);
        for around in [0..value.start, value.end..to.len()] {
            to.get_mut(around).unwrap_or_default().fill(0);
        }
        begin(to, MAGIC);
        put(to, 16, &self.value_bytes.to_le_bytes());
        put(to, 24, &self.epoch.to_le_bytes());
        put(to, 32, &self.store_id.to_le_bytes());
        put(to, 40, &self.space.number.to_le_bytes());
        put(to, 44, &self.space.generation.to_le_bytes());
        put(to, 48, &self.rank.to_le_bytes());
        put(to, 52, &key_bytes.to_le_bytes());
        put(to, 54, &metadata_bytes.to_le_bytes());
        put(to, 56, &[self.retain, self.priority]);
        put(to, 64, &self.put.to_le_bytes());
        put(to, METADATA, self.metadata);
        for (granule, sum) in sums.iter().enumerate() {
            put(to, SUMS + 4 * granule, &sum.to_le_bytes());
        }
        put(to, SUMS + 4 * sums.len(), self.key);
        seal(to, value);
        Ok(())
    }
}

/// A header that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// What it says.
    pub record: Record<'a>,
    sums: &'a [u8],
    shape: Shape,
}

/// Lengths that a header says it has, not yet checked by its CRC but possible.
struct Lengths {
    key: usize,
    metadata: usize,
    value: u64,
    shape: Shape,
}

/// `bytes` are at least those before the metadata.
fn lengths(bytes: &[u8]) -> Result<Lengths> {
    check_begin(bytes, MAGIC, WHAT, NMC_ERR_CORRUPT)?;
    if bytes.len() < METADATA {
        crate::bail!(NMC_ERR_CORRUPT, "{WHAT} ends after {} bytes", bytes.len());
    }
    let (value, epoch) = (u64_at(bytes, 16), u64_at(bytes, 24));
    let (key, metadata) = (usize::from(u16_at(bytes, 52)), usize::from(u16_at(bytes, 54)));
    let wrong = beyond_limits(space_of(bytes), epoch, key, value).or_else(|| {
        let text = || format!("the metadata has {metadata} bytes; {MAX_METADATA} are possible");
        (metadata > MAX_METADATA).then(text)
    });
    match wrong {
        Some(wrong) => Err(Error::new(NMC_ERR_CORRUPT, wrong).context(WHAT)),
        None => Ok(Lengths { key, metadata, value, shape: Shape::of(key, value) }),
    }
}

fn space_of(bytes: &[u8]) -> Space {
    Space { number: u32_at(bytes, 40), generation: u32_at(bytes, 44) }
}

impl<'a> Header<'a> {
    /// Reads a header from the beginning of a record; `bytes` may go on behind it. `NMC_ERR_CORRUPT` says what is wrong.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let Lengths { key, metadata, value, shape } = lengths(bytes)?;
        let Some(bytes) = bytes.get(..shape.header_bytes()) else {
            let need = shape.header_bytes();
            crate::bail!(NMC_ERR_CORRUPT, "{WHAT} has {need} bytes, of which only {} are there", bytes.len());
        };
        check_seal(bytes, shape.value_in_header(value), WHAT)?;
        let sums = bytes_at(bytes, SUMS, 4 * shape.granules as usize);
        let record = Record {
            space: space_of(bytes),
            key: bytes_at(bytes, SUMS + sums.len(), key),
            metadata: bytes_at(bytes, METADATA, metadata),
            value_bytes: value,
            epoch: u64_at(bytes, 24),
            store_id: u64_at(bytes, 32),
            rank: u32_at(bytes, 48),
            retain: bytes.get(56).copied().unwrap_or(0),
            priority: bytes.get(57).copied().unwrap_or(0),
            put: u64_at(bytes, 64),
        };
        Ok(Self { record, sums, shape })
    }

    /// Where the parts of the record lie.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// CRC32C of the 64 KiB of the value with this number; the last ones are fewer bytes.
    #[must_use]
    pub fn sum(&self, granule: u32) -> Option<u32> {
        (granule < self.shape.granules).then(|| u32_at(self.sums, 4 * granule as usize))
    }

    /// Whether it is the record that an index entry leads to.
    #[must_use]
    pub fn is(&self, key: &[u8], put: u64, value_bytes: u64) -> bool {
        self.record.put == put && self.record.value_bytes == value_bytes && self.record.key == key
    }
}

/// How many bytes of a record are needed to decode its header, from its first block or the first 72 bytes of it; `None` if
/// no record begins there. No CRC stands behind the answer: up to 64 MiB, to be compared with the bytes that there are.
#[must_use]
pub fn header_bytes(first_block: &[u8]) -> Option<usize> {
    lengths(first_block).ok().map(|lengths| lengths.shape.header_bytes())
}
