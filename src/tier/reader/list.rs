//! The keys on disk, from the lists of buckets. A cursor is the number of a bucket times 2^26, plus that of a record in its
//! footer, which has fewer. Buckets that are sealed later have higher numbers, so that a cursor comes to them, too.

use super::files::Files;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND};
use crate::layout::disk::{Busy, Entry, Fingerprint, Space, Spot};
use crate::store::PLACE_SHIFT;
use crate::store::disk::{DiskEntry, DiskMap, DiskRecord, NextOnDisk, Wanted};
use crate::tier::{backend, format};
use parking_lot::Mutex;
use std::sync::Arc;

/// Bits of a cursor that are the number of a record.
const RECORD_BITS: u32 = PLACE_SHIFT;
const _: () = assert!(format::MAX_RECORDS < 1 << RECORD_BITS);
/// Footers that are kept: one for each who goes through the keys at the same time, and some for who asks for keys in the order of
/// their entries, which is nearly that of their buckets.
const KEPT: usize = 16;
/// How often the directory is looked at again while its owner changes it.
const MOST_TRIES: u32 = 8;

/// What was read of the footers.
#[derive(Default)]
pub struct Lists(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Numbers of the buckets that are there or that entries lead to, in order.
    buckets: Arc<Vec<u64>>,
    /// The footers that were used last; the last one is last.
    footers: Vec<Arc<Footer>>,
}

/// A record to which an entry leads.
pub struct Live<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its namespace, and the generation of that.
    pub space: Space,
    /// The entry.
    pub entry: DiskEntry,
}

/// What is done with each; false ends it.
pub type EachLive<'a> = dyn FnMut(&Live<'_>) -> Result<bool> + 'a;
/// What hears of lists that cannot be read.
pub type Lost<'a> = dyn FnMut(u64, Error) -> Result<()> + 'a;

/// The list of a bucket.
struct Footer {
    bucket: u64,
    items: Vec<Item>,
    /// The keys of all items, one behind the other.
    keys: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Item {
    block: u64,
    space: Space,
    fingerprint: Fingerprint,
    epoch: u64,
    put: u64,
    value_bytes: u64,
    /// Where its key ends.
    key_end: usize,
}

impl Lists {
    /// See `DiskReader::next`.
    pub fn next(
        &self,
        files: &Files,
        map: &DiskMap,
        space: Space,
        cursor: u64,
        wanted: &mut Wanted<'_>,
    ) -> Result<NextOnDisk> {
        let (mut bucket, mut record) = (cursor >> RECORD_BITS, cursor & ((1 << RECORD_BITS) - 1));
        let mut listed = cursor == 0;
        if listed {
            self.list(files, map)?;
        }
        loop {
            let buckets = Arc::clone(&self.0.lock().buckets);
            match buckets.get(buckets.partition_point(|number| *number < bucket)) {
                Some(next) if *next == bucket => {}
                Some(next) => (bucket, record) = (*next, 0),
                None if listed => return Ok((None, bucket << RECORD_BITS)),
                // There may be new ones.
                None => {
                    self.list(files, map)?;
                    listed = true;
                    continue;
                }
            }
            if let Some(footer) = self.footer(files, map, bucket)?
                && let Some((key, bytes, record)) = footer.find(map, space, record, wanted)?
            {
                return Ok((Some((key, bytes)), (bucket << RECORD_BITS) + record + 1));
            }
            (bucket, record) = (bucket + 1, 0);
        }
    }

    /// See `DiskReader::key_of`.
    pub fn key_of(&self, files: &Files, map: &DiskMap, entry: &Entry) -> Result<Option<(Vec<u8>, Space)>> {
        let Spot { bucket, block } = entry.spot;
        let Some(footer) = self.footer(files, map, bucket)? else { return Ok(None) };
        let Ok(at) = footer.items.binary_search_by_key(&block, |item| item.block) else { return Ok(None) };
        let item = footer.items[at];
        let from = at.checked_sub(1).map_or(0, |before| footer.items[before].key_end);
        if item.fingerprint != entry.fingerprint {
            return Ok(None);
        }
        memory::copy(footer.keys.get(from..item.key_end).unwrap_or_default()).map(|key| Some((key, item.space)))
    }

    /// See [`super::Reader::each`].
    pub fn each(&self, files: &Files, map: &DiskMap, each: &mut EachLive<'_>, lost: &mut Lost<'_>) -> Result<()> {
        self.list(files, map)?;
        let buckets = Arc::clone(&self.0.lock().buckets);
        for bucket in &*buckets {
            match self.footer(files, map, *bucket) {
                Ok(None) => {}
                Ok(Some(footer)) if !footer.each(map, each)? => break,
                Ok(Some(_)) => {}
                // Want of memory is not the bucket's.
                Err(error) if error.status == NMC_ERR_NO_MEMORY => return Err(error),
                Err(error) => lost(*bucket, error)?,
            }
        }
        Ok(())
    }

    fn list(&self, files: &Files, map: &DiskMap) -> Result<()> {
        let mut found = files.find();
        for _ in 0..MOST_TRIES {
            match &found {
                // Its owner may be writing the journal anew.
                Err(error) if is_missing(error) => found = files.find(),
                _ => break,
            }
        }
        let mut buckets = found?.buckets;
        if !files.knows_all() {
            // A file that somebody has taken away is not gone: what leads there comes back with it.
            let (found, mut last) = (buckets.len(), None);
            for Entry { spot: Spot { bucket, .. }, .. } in map.live() {
                if last.replace(bucket) != Some(bucket) && buckets[..found].binary_search(&bucket).is_err() {
                    memory::push(&mut buckets, bucket)?;
                }
            }
            buckets.sort_unstable();
            buckets.dedup();
        }
        self.0.lock().buckets = Arc::new(buckets);
        Ok(())
    }

    /// The footer of a bucket; `None` if it is gone, or nothing leads there. CORRUPT if it is not there while something does.
    fn footer(&self, files: &Files, map: &DiskMap, bucket: u64) -> Result<Option<Arc<Footer>>> {
        {
            let mut known = self.0.lock();
            if let Some(at) = known.footers.iter().position(|footer| footer.bucket == bucket) {
                known.footers[at..].rotate_left(1);
                return Ok(known.footers.last().cloned());
            }
        }
        let mut footer = Footer::read(files, bucket);
        if footer.as_ref().is_err_and(is_missing) {
            // It may have been given up: taken away, made empty, or its blocks used again. Or it is new: where buckets share a file,
            // only the journal tells where they are.
            self.list(files, map)?;
            if self.0.lock().buckets.binary_search(&bucket).is_err() {
                return Ok(None);
            }
            footer = Footer::read(files, bucket);
        }
        let footer = match footer {
            // Its owner makes an empty file under the name of a bucket that is gone, to take the name away for good.
            Err(error) if is_missing(&error) && !leads_to(map, bucket) => return Ok(None),
            other => other.map_err(|error| backend::missed(error).context(format!("the footer of bucket {bucket}"))),
        };
        let footer = Arc::new(footer?);
        let mut known = self.0.lock();
        if known.footers.len() >= KEPT {
            known.footers.remove(0);
        }
        memory::push(&mut known.footers, Arc::clone(&footer))?;
        Ok(Some(footer))
    }
}

/// Whether there is no list, or none that can be a list.
fn is_missing(error: &Error) -> bool {
    [NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND].contains(&error.status)
}

/// Whether an entry leads to a bucket.
fn leads_to(map: &DiskMap, bucket: u64) -> bool {
    map.live().any(|entry| entry.spot.bucket == bucket)
}

fn busy(_: Busy) -> Error {
    Error::new(NMC_ERR_BUSY, "the index of the disk was rebuilt again and again")
}

impl Footer {
    fn read(files: &Files, bucket: u64) -> Result<Self> {
        let (tail, list) = files.list(bucket)?;
        let mut items = memory::with_capacity(tail.count as usize)?;
        let mut keys = memory::with_capacity(list.len())?;
        for item in tail.items(&list)? {
            let item = item?;
            memory::extend(&mut keys, item.key)?;
            let format::Item { block, space, fingerprint, epoch, put, value_bytes, .. } = item;
            memory::push(&mut items, Item { block, space, fingerprint, epoch, put, value_bytes, key_end: keys.len() })?;
        }
        Ok(Self { bucket, items, keys })
    }

    /// The first record from this one on that is of the namespace and wanted: its key, the bytes of its value, and its number.
    fn find(
        &self,
        map: &DiskMap,
        space: Space,
        from: u64,
        wanted: &mut Wanted<'_>,
    ) -> Result<Option<(Vec<u8>, u64, u64)>> {
        let mut key_at = match from.checked_sub(1) {
            None => 0,
            Some(before) => self.item(before).map_or(self.keys.len(), |item| item.key_end),
        };
        for number in from..self.items.len() as u64 {
            let Some(item) = self.item(number) else { break };
            let key = self.keys.get(key_at..item.key_end).unwrap_or_default();
            key_at = item.key_end;
            if item.space != space {
                continue;
            }
            let found = map.view().find(item.fingerprint);
            let spot = Spot { bucket: self.bucket, block: item.block };
            let resident = found.map_err(busy)?.is_some_and(|(_, _, entry)| entry.spot == spot);
            if wanted(&DiskRecord { key, epoch: item.epoch, put: item.put, resident })? {
                return Ok(Some((memory::copy(key)?, item.value_bytes, number)));
            }
        }
        Ok(None)
    }

    /// See [`Lists::each`]; false if it was ended.
    fn each(&self, map: &DiskMap, each: &mut EachLive<'_>) -> Result<bool> {
        let mut key_at = 0;
        for item in &self.items {
            let key = self.keys.get(key_at..item.key_end).unwrap_or_default();
            key_at = item.key_end;
            let Some((index, word, entry)) = map.view().find(item.fingerprint).map_err(busy)? else { continue };
            let entry = DiskEntry { index, word, entry, put: map.view().put(index) };
            let leads_here = entry.entry.spot == Spot { bucket: self.bucket, block: item.block };
            if leads_here && !each(&Live { key, space: item.space, entry })? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn item(&self, number: u64) -> Option<&Item> {
        self.items.get(usize::try_from(number).ok()?)
    }
}
