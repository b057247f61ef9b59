//! Going through all objects, in memory and on disk, while they move between the two. A cursor says how far this is:
//!
//! 1. everything on disk, bucket by bucket, in the order in which they are written, whether memory has it as well or not;
//! 2. memory, but for what is on disk in a bucket that was gone through;
//! 3. the buckets that were written since.
//!
//! So whoever stays where it is is come to once, and whoever moves is not missed. What comes from disk into memory was come to there,
//! since its record stays; what was in memory and left it has a record in a bucket that is still to come. A bucket has its name a moment
//! before the index leads to its records: until then memory has the values, and they count as being on disk.

use crate::base::error::Result;
use crate::layout::disk::MAX_BUCKET;
use crate::layout::store::{FLAG_HIDDEN, View};
use crate::store::client::Store;
use crate::store::disk::{DiskAccess, DiskRecord, NextOnDisk, PLACE_SHIFT, Wanted};
use crate::store::types::{Look, namespace_word};
use crate::sync::object;
use std::sync::atomic::Ordering::Relaxed;

/// In a cursor: which of the three parts it is in, from this bit on. The rest is a place on disk, see `DiskReader::next`, or an index
/// with the first bucket that was not gone through above it.
const PART_SHIFT: u32 = 62;
const BUCKET_SHIFT: u32 = 26;
const _: () = assert!(
    MAX_BUCKET << PLACE_SHIFT <= 1 << PART_SHIFT
        && MAX_BUCKET << BUCKET_SHIFT <= 1 << PART_SHIFT
        && object::MAX_INDEX < 1 << BUCKET_SHIFT
);

/// An object that [`Store::next`] came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Vec<u8>,
    /// Bytes of its value.
    pub bytes: u64,
    /// Where to go on.
    pub cursor: u64,
}

/// How far a listing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On disk.
    Disk(u64),
    /// At an index in memory, after all buckets below this one.
    Memory(u64, u32),
    /// On disk again.
    Since(u64),
}

impl Place {
    fn of(cursor: u64) -> Self {
        let rest = cursor & ((1 << PART_SHIFT) - 1);
        match cursor >> PART_SHIFT {
            0 => Self::Disk(rest),
            1 => {
                Self::Memory(rest >> BUCKET_SHIFT, u32::try_from(rest & ((1 << BUCKET_SHIFT) - 1)).unwrap_or(u32::MAX))
            }
            _ => Self::Since(rest),
        }
    }

    fn cursor(self) -> u64 {
        match self {
            Self::Disk(place) => place,
            Self::Memory(bucket, index) => 1 << PART_SHIFT | bucket << BUCKET_SHIFT | u64::from(index),
            Self::Since(place) => 2 << PART_SHIFT | place,
        }
    }
}

impl Store {
    /// The next object from `cursor` on, which is 0 at first; `None` at the end. Whatever comes and goes meanwhile, an object that
    /// stays where it is is come to once. One that moves between memory and disk may be come to in both places.
    pub fn next(&self, cursor: u64) -> Result<Option<Listed>> {
        let view = self.client.view();
        let disk = self.disk()?;
        let mut place = Place::of(cursor);
        loop {
            place = match place {
                Place::Disk(at) => {
                    // Also what is about to be on disk.
                    let mut wanted = |record: &DiskRecord<'_>| Ok(record.resident || self.has(view, record)?);
                    match self.next_on_disk(disk.as_ref(), at, &mut wanted)? {
                        (Some((key, bytes)), at) => {
                            return Ok(Some(Listed { key, bytes, cursor: Place::Disk(at).cursor() }));
                        }
                        (None, at) => Place::Memory(at >> PLACE_SHIFT, 0),
                    }
                }
                Place::Memory(bucket, index) => match self.next_in_memory(view, disk.as_ref(), bucket, index)? {
                    Some((key, bytes, index)) => {
                        return Ok(Some(Listed { key, bytes, cursor: Place::Memory(bucket, index).cursor() }));
                    }
                    None => Place::Since(bucket << PLACE_SHIFT),
                },
                Place::Since(at) => {
                    // What has been in memory since before it was written was come to there.
                    let mut wanted = |record: &DiskRecord<'_>| {
                        let found = self.look(view, record.key)?;
                        Ok(record.resident && !matches!(found, Look::Ready((_, epoch)) if epoch == record.epoch))
                    };
                    let (found, at) = self.next_on_disk(disk.as_ref(), at, &mut wanted)?;
                    let cursor = Place::Since(at).cursor();
                    return Ok(found.map(|(key, bytes)| Listed { key, bytes, cursor }));
                }
            };
        }
    }

    /// Whether memory has the value of a record.
    fn has(&self, view: &View<'_>, record: &DiskRecord<'_>) -> Result<bool> {
        let Look::Ready((index, epoch)) = self.look(view, record.key)? else { return Ok(false) };
        let Some(header) = view.object(index) else { return Ok(false) };
        Ok(header.plan_id.load(Relaxed) == record.put && object::still(&header.control, epoch))
    }

    /// The next object in memory from an index on, but for those that are on disk in a bucket below this one.
    pub(in crate::store) fn next_in_memory(
        &self,
        view: &View<'_>,
        disk: Option<&DiskAccess>,
        bucket: u64,
        first: u32,
    ) -> Result<Option<(Vec<u8>, u64, u32)>> {
        let namespace = namespace_word(view, self.namespace);
        for index in first..self.client.params().max_objects {
            let (Some(header), Some(epoch)) = (view.object(index), view.readable(index)) else { continue };
            let hidden = header.flags.load(Relaxed) & FLAG_HIDDEN != 0;
            if header.namespace.load(Relaxed) != namespace || hidden {
                continue;
            }
            let (key, bytes) = (view.key_of(header), header.bytes_total.load(Relaxed));
            if !object::still(&header.control, epoch) {
                continue;
            }
            let on_disk = disk.map_or(Ok(None), |disk| disk.map.probe(self.namespace, &key))?;
            if on_disk.is_none_or(|found| found.entry.spot.bucket >= bucket) {
                return Ok(Some((key, bytes, index + 1)));
            }
        }
        Ok(None)
    }

    /// The next record on disk that is wanted, with the bytes of its value, and where to go on.
    pub(in crate::store) fn next_on_disk(
        &self,
        disk: Option<&DiskAccess>,
        at: u64,
        wanted: &mut Wanted<'_>,
    ) -> Result<NextOnDisk> {
        match disk.and_then(|disk| Some((disk, disk.map.view().space(self.namespace)?))) {
            Some((disk, space)) => {
                disk.reader.next(&disk.map, space, at, wanted).map_err(|error| self.judge_list(disk, error))
            }
            None => Ok((None, at)),
        }
    }
}
