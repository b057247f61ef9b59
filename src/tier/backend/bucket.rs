//! A bucket is a file: its records, their list, and a last block. It is written under a temporary name and gets its own when it
//! is safe. If asked for, a second copy of the list lies in a file beside it.

use super::super::config::Config;
use super::super::format::{BLOCK, Item, Tail, bucket_id, bucket_name, bucket_temporary_id, bucket_temporary_name};
use super::super::io::{Disk, File, Listed};
use super::super::journal::{Journal, State};
use super::{
    Draft, FileId, Found, Place, Storage, blocks_of, check_is, no_bucket, read_end, read_list_file, take_away,
};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_NOT_FOUND};
use crate::layout::disk::Spot;
use parking_lot::Mutex;
use std::sync::Arc;

/// Behind the name of a bucket whose end is damaged.
const DAMAGED: &str = ".damaged";

/// The file with the second copy of a bucket's list.
#[must_use]
pub fn meta_name(bucket: u64) -> String {
    format!("{bucket:016x}.meta")
}

/// The bucket of a file with this name, exactly as [`meta_name`] gives it.
#[must_use]
pub fn meta_id(name: &str) -> Option<u64> {
    bucket_id(format!("{}.bucket", name.strip_suffix(".meta")?))
}

/// See the module.
pub struct Buckets {
    disk: Arc<dyn Disk>,
    meta: bool,
    /// Blocks of the buckets that were found, with second copies of their lists, by number.
    found: Mutex<Vec<(u64, u64)>>,
}

impl Buckets {
    /// Those of a directory.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, meta: false, found: Mutex::default() }
    }

    fn copy_of_list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)> {
        let (tail, list) = read_list_file(&*self.disk.open(&meta_name(bucket), false)?)?;
        tail.items(&list)?;
        check_is(&tail, bucket)?;
        Ok((tail, list))
    }
}

impl Storage for Buckets {
    fn find(&self, listed: &[Listed], _: &State) -> Result<Found> {
        let mut found = Found::default();
        let (mut buckets, mut metas) = (Vec::new(), Vec::new());
        for file in listed {
            let name = &*file.name;
            let damaged = name.strip_suffix(DAMAGED).and_then(bucket_id);
            let ids = [bucket_id(name), meta_id(name), bucket_temporary_id(name), damaged];
            ids.into_iter().flatten().for_each(|id| found.meet(id));
            if !file.regular {
                memory::push(&mut found.foreign, name.into())?;
            } else if let Some(id) = bucket_id(name) {
                memory::push(&mut buckets, (id, blocks_of(file)))?;
            } else if let Some(id) = meta_id(name) {
                memory::push(&mut metas, (id, blocks_of(file)))?;
            } else if bucket_temporary_id(name).is_some() {
                memory::push(&mut found.leftovers, (None, name.into()))?;
            } else if damaged.is_some() {
                memory::push(&mut found.aside, (None, name.into()))?;
                found.aside_blocks += blocks_of(file);
            } else {
                memory::push(&mut found.foreign, name.into())?;
            }
        }
        buckets.sort_unstable();
        for (id, blocks) in metas {
            match buckets.binary_search_by_key(&id, |(bucket, _)| *bucket) {
                Ok(at) => buckets[at].1 += blocks,
                Err(_) => memory::push(&mut found.leftovers, (None, meta_name(id)))?,
            }
        }
        found.buckets = memory::collect(buckets.iter().map(|(bucket, _)| *bucket))?;
        *self.found.lock() = buckets;
        Ok(found)
    }

    fn locate(&self, spot: Spot) -> (FileId, u64) {
        ((spot.bucket, 0), spot.block)
    }

    fn place(&self, (bucket, _): FileId) -> Place {
        Place { folders: None, name: bucket_name(bucket) }
    }

    fn list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)> {
        let own = || -> Result<(Tail, Vec<u8>)> {
            let file = self.disk.open(&bucket_name(bucket), false)?;
            let (tail, list) = read_end(&*file, file.bytes()?)?;
            tail.items(&list)?;
            check_is(&tail, bucket)?;
            Ok((tail, list))
        };
        own().or_else(|error| match error.status {
            // Of a bucket that is gone there is nothing to read, whatever the copy of its list says.
            NMC_ERR_NOT_FOUND => Err(error),
            _ => self.copy_of_list(bucket).map_err(|_| error),
        })
    }

    fn blocks(&self, bucket: u64) -> Result<u64> {
        let found = self.found.lock();
        let at = found.binary_search_by_key(&bucket, |(found, _)| *found).map_err(|_| no_bucket(bucket))?;
        Ok(found[at].1)
    }

    fn begin(&mut self, config: &Config, _: &State) -> Result<()> {
        self.meta = config.meta;
        Ok(())
    }

    fn draft(&self, bucket: u64, records: &[u64], _: u64) -> Result<Box<dyn Draft + '_>> {
        let records: u64 = records.iter().sum();
        let file = self.disk.create(&bucket_temporary_name(bucket), records * BLOCK as u64)?;
        reach("tier.created");
        Ok(Box::new(DraftFile { buckets: self, bucket, records, file }))
    }

    fn discard(&self, bucket: u64, _: bool) {
        for name in [bucket_temporary_name(bucket), bucket_name(bucket)] {
            let _ = self.disk.unlink(&name);
        }
        if self.meta {
            let _ = self.disk.unlink(&meta_name(bucket));
        }
    }

    fn gone_must_last(&self) -> bool {
        // The name goes in one step: it leads to all of the bucket or is not there.
        false
    }

    fn take_away(&self, bucket: u64) -> Result<Option<Box<dyn File>>> {
        let name = bucket_name(bucket);
        let file = match self.disk.open(&name, true) {
            // If others have it open, nobody would take its space: later.
            Err(error) if error.status == NMC_ERR_LIMIT => return Err(error),
            opened => opened.ok(),
        };
        // First, so that the bucket counts as long as anything of it is there.
        take_away(&*self.disk, &meta_name(bucket))?;
        self.disk.unlink(&name).map(|()| file)
    }

    fn take_away_again(&self, gone: &[u64]) -> Result<Vec<u64>> {
        let mut unlinked = memory::with_capacity(gone.len())?;
        for bucket in gone {
            let name = bucket_name(*bucket);
            if self.disk.create(&name, 0).and_then(|_| self.disk.unlink(&name)).is_ok() {
                unlinked.push(*bucket);
            }
        }
        Ok(unlinked)
    }

    fn forget(&self, _: &[u64]) -> Result<()> {
        // Whoever sealed a bucket since has synced the directory.
        Ok(())
    }

    fn give_back(&self, bucket: u64, records: &[(u64, u64)]) -> Result<u64> {
        let file = self.disk.open(&bucket_name(bucket), true)?;
        let mut punched = 0;
        for (block, blocks) in records {
            if !file.punch(block * BLOCK as u64, blocks * BLOCK as u64)? {
                break;
            }
            punched += blocks;
        }
        Ok(punched)
    }

    fn set_aside(&self, bucket: u64, delete: bool) -> Result<bool> {
        let name = bucket_name(bucket);
        if delete {
            self.disk.unlink(&name)?;
            // One that stays is taken away by whoever opens the directory next; so is that of one that is renamed.
            let _ = self.disk.unlink(&meta_name(bucket));
        } else {
            self.disk.rename(&name, &format!("{name}{DAMAGED}"))?;
        }
        Ok(true)
    }

    fn clean(&self, (_, name): &(Option<String>, String)) -> Result<()> {
        take_away(&*self.disk, name)
    }
}

struct DraftFile<'a> {
    buckets: &'a Buckets,
    bucket: u64,
    /// Blocks of all records.
    records: u64,
    file: Box<dyn File>,
}

impl Draft for DraftFile<'_> {
    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        self.file.write_aligned(from, offset)
    }

    fn complete(&mut self, _: &[Item<'_>], list: &[u8]) -> Result<u64> {
        let list_at = self.records * BLOCK as u64;
        let total = list_at + list.len() as u64;
        self.file.truncate(total)?;
        self.file.write(list, list_at)?;
        reach("tier.written");
        self.file.datasync()?;
        let mut blocks = total / BLOCK as u64;
        if self.buckets.meta {
            let meta = self.buckets.disk.create(&meta_name(self.bucket), list.len() as u64)?;
            meta.write(list, 0)?;
            meta.datasync()?;
            blocks += list.len() as u64 / BLOCK as u64;
        }
        reach("tier.synced");
        Ok(blocks)
    }

    fn seal(&mut self, journal: &Mutex<Journal>) -> Result<()> {
        let disk = &self.buckets.disk;
        disk.rename(&bucket_temporary_name(self.bucket), &bucket_name(self.bucket))?;
        reach("tier.renamed");
        disk.sync().inspect_err(|_| journal.lock().doubt_names())
    }
}
