//! A bucket is a folder: every record is a file in it, named by its block, and the list is one, too. The folder lies in one of 256
//! others, by the last byte of its number, is written under a temporary name, and gets its own when all of it is safe: so many
//! keys that are written together count together, and cost one sync of names.

use super::super::config::Config;
use super::super::format::{BLOCK, Item, Tail};
use super::super::io::{Disk, File, Listed};
use super::super::journal::{Journal, State};
use super::{Draft, FileId, Found, Place, Storage, blocks_of, check_is, gone_is_fine, read_list_file, take_away};
use crate::base::error::Result;
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_EXISTS, NMC_ERR_NOT_FOUND, NMC_ERR_PERMISSION};
use crate::layout::disk::Spot;
use parking_lot::Mutex;
use std::sync::Arc;

/// The list of a bucket.
const LIST_NAME: &str = "list";
/// Files that are open before they are synced: there are only so many descriptors.
const MOST_OPEN: usize = 64;

/// The folder that the folder of a bucket is in.
fn shard_name(bucket: u64) -> String {
    format!("{:02x}", bucket & 0xff)
}

fn folder_name(bucket: u64) -> String {
    format!("{bucket:016x}.keys")
}

fn temporary_name(bucket: u64) -> String {
    format!("{bucket:016x}.keys.tmp")
}

fn damaged_name(bucket: u64) -> String {
    format!("{bucket:016x}.keys.damaged")
}

fn record_name(block: u64) -> String {
    format!("{block:07x}.kv")
}

/// The bucket of a name that one of these functions gives.
fn id_of(name: &str, function: fn(u64) -> String) -> Option<u64> {
    let id = u64::from_str_radix(name.get(..16)?, 16).ok()?;
    (function(id) == name).then_some(id)
}

/// See the module.
pub struct Folders {
    disk: Arc<dyn Disk>,
    /// Shards whose names are known to last.
    lasting: Mutex<[bool; 256]>,
}

impl Folders {
    /// Those of a directory.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, lasting: Mutex::new([false; 256]) }
    }

    fn shard(&self, bucket: u64) -> Result<Arc<dyn Disk>> {
        self.disk.folder(&shard_name(bucket))
    }

    fn folder(&self, bucket: u64) -> Result<Arc<dyn Disk>> {
        self.shard(bucket)?.folder(&folder_name(bucket))
    }

    /// Deletes a folder and all files in it, if it is there. With something in it that is no file, which nobody here has made, it stays.
    fn delete(shard: &dyn Disk, name: &str) -> Result<()> {
        let folder = match shard.folder(name) {
            Err(error) if error.status == NMC_ERR_NOT_FOUND => return Ok(()),
            folder => folder?,
        };
        let mut foreign = None;
        for file in folder.list()? {
            if file.regular {
                take_away(&*folder, &file.name)?;
            } else {
                foreign = Some(file.name);
            }
        }
        if let Some(foreign) = foreign {
            log::emit(log::WARN, || format!("tier: {name} stays, since {foreign} in it is not the tier's"));
            return Ok(());
        }
        gone_is_fine(shard.remove_folder(name))
    }
}

impl Storage for Folders {
    fn find(&self, listed: &[Listed], _: &State) -> Result<Found> {
        let mut found = Found::default();
        for shard in listed {
            let number = u64::from_str_radix(&shard.name, 16).ok().filter(|number| shard_name(*number) == shard.name);
            let Some(number) = number.filter(|_| shard.folder) else {
                memory::push(&mut found.foreign, shard.name.clone())?;
                continue;
            };
            let folder = self.disk.folder(&shard.name)?;
            for file in folder.list()? {
                for function in [folder_name, temporary_name, damaged_name] {
                    id_of(&file.name, function).into_iter().for_each(|id| found.meet(id));
                }
                let of = |function| id_of(&file.name, function).filter(|id| file.folder && id & 0xff == number);
                if let Some(id) = of(folder_name) {
                    memory::push(&mut found.buckets, id)?;
                } else if of(temporary_name).is_some() {
                    memory::push(&mut found.leftovers, (Some(shard.name.clone()), file.name))?;
                } else if of(damaged_name).is_some() {
                    // What cannot be read has a size that nobody knows.
                    let files = folder.folder(&file.name).and_then(|aside| aside.list()).unwrap_or_default();
                    found.aside_blocks += files.iter().map(blocks_of).sum::<u64>();
                    memory::push(&mut found.aside, (Some(shard.name.clone()), file.name))?;
                } else {
                    memory::push(&mut found.foreign, format!("{}/{}", shard.name, file.name))?;
                }
            }
        }
        found.buckets.sort_unstable();
        Ok(found)
    }

    fn locate(&self, spot: Spot) -> (FileId, u64) {
        ((spot.bucket, spot.block), 0)
    }

    fn place(&self, (bucket, block): FileId) -> Place {
        Place { folders: Some([shard_name(bucket), folder_name(bucket)]), name: record_name(block) }
    }

    fn list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)> {
        let folder = self.folder(bucket)?;
        let file = folder.open(LIST_NAME, false).map_err(|mut error| {
            let other = |listed: &Listed| listed.name == LIST_NAME && !listed.regular;
            let damaged = match error.status {
                // A folder that is being deleted is not damaged.
                NMC_ERR_NOT_FOUND => self.folder(bucket).is_ok(),
                // Something else stands there than a file that must not be opened.
                NMC_ERR_PERMISSION => folder.list().is_ok_and(|listed| listed.iter().any(other)),
                _ => false,
            };
            if damaged {
                error.status = NMC_ERR_CORRUPT;
            }
            error
        })?;
        let (tail, list) = read_list_file(&*file)?;
        check_is(&tail, bucket)?;
        Ok((tail, list))
    }

    fn blocks(&self, bucket: u64) -> Result<u64> {
        let files = self.folder(bucket)?.list()?;
        Ok(files.iter().map(blocks_of).sum())
    }

    fn begin(&mut self, _: &Config, _: &State) -> Result<()> {
        // Whoever gave a folder its name may have been killed before that lasted, and what is found counts.
        for shard in self.disk.list()?.iter().filter(|listed| listed.folder && listed.name.len() == 2) {
            self.disk.folder(&shard.name)?.sync()?;
        }
        self.disk.sync()
    }

    fn draft(&self, bucket: u64, records: &[u64], _: u64) -> Result<Box<dyn Draft + '_>> {
        let shard = match self.disk.make_folder(&shard_name(bucket)) {
            Err(error) if error.status == NMC_ERR_EXISTS => self.shard(bucket),
            made => made,
        }?;
        let mut starts = memory::with_capacity(records.len() + 1)?;
        let mut next = 0;
        for blocks in records {
            starts.push(next);
            next += blocks;
        }
        starts.push(next);
        let folder = shard.make_folder(&temporary_name(bucket))?;
        reach("tier.created");
        Ok(Box::new(DraftFolder { folders: self, bucket, shard, folder, starts, open: Mutex::default() }))
    }

    fn discard(&self, bucket: u64, gone: bool) {
        if let Ok(shard) = self.shard(bucket) {
            // If it may come back, it has to be whole: a folder is not deleted in one step. Who opens the directory next does that.
            if !gone {
                let _ = shard.rename(&folder_name(bucket), &temporary_name(bucket));
                return;
            }
            for name in [temporary_name(bucket), folder_name(bucket)] {
                let _ = Self::delete(&*shard, &name);
            }
        }
    }

    fn take_away(&self, bucket: u64) -> Result<Option<Box<dyn File>>> {
        let (shard, temporary) = (self.shard(bucket)?, temporary_name(bucket));
        // In one step, for those who read it: a folder that has its name has its list.
        let renamed = shard.rename(&folder_name(bucket), &temporary);
        gone_is_fine(renamed.clone())?;
        Self::delete(&*shard, &temporary)?;
        renamed.map(|()| None)
    }

    fn take_away_again(&self, gone: &[u64]) -> Result<Vec<u64>> {
        let mut unlinked = memory::with_capacity(gone.len())?;
        for bucket in gone {
            let again = |shard: Arc<dyn Disk>| {
                let name = folder_name(*bucket);
                shard.make_folder(&name).and_then(|_| shard.remove_folder(&name))
            };
            match self.shard(*bucket).and_then(again) {
                Ok(()) => unlinked.push(*bucket),
                // Then it never lasted, or somebody else deleted all of it.
                Err(error) if error.status == NMC_ERR_NOT_FOUND => unlinked.push(*bucket),
                Err(_) => {}
            }
        }
        Ok(unlinked)
    }

    fn forget(&self, gone: &[u64]) -> Result<()> {
        let mut shards = memory::collect(gone.iter().map(|bucket| bucket & 0xff))?;
        shards.sort_unstable();
        shards.dedup();
        for shard in shards {
            match self.shard(shard) {
                Err(error) if error.status == NMC_ERR_NOT_FOUND => {}
                shard => shard?.sync()?,
            }
        }
        Ok(())
    }

    fn give_back(&self, bucket: u64, records: &[(u64, u64)]) -> Result<u64> {
        let folder = self.folder(bucket)?;
        let mut freed = 0;
        for (block, blocks) in records {
            match folder.unlink(&record_name(*block)) {
                Ok(()) => freed += blocks,
                // Before the last restart.
                Err(error) if error.status == NMC_ERR_NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        Ok(freed)
    }

    fn set_aside(&self, bucket: u64, delete: bool) -> Result<bool> {
        let shard = self.shard(bucket)?;
        if delete {
            Self::delete(&*shard, &folder_name(bucket))?;
        } else {
            shard.rename(&folder_name(bucket), &damaged_name(bucket))?;
        }
        Ok(true)
    }

    fn clean(&self, (shard, name): &(Option<String>, String)) -> Result<()> {
        match shard {
            Some(shard) => {
                let shard = self.disk.folder(shard)?;
                // It may have had its own name before: that must not be there again when a part of it is not.
                shard.sync()?;
                Self::delete(&*shard, name)
            }
            None => Ok(()),
        }
    }
}

struct DraftFolder<'a> {
    folders: &'a Folders,
    bucket: u64,
    shard: Arc<dyn Disk>,
    folder: Arc<dyn Disk>,
    /// First block of each record, and the one behind the last.
    starts: Vec<u64>,
    /// Files that are not synced yet, by first block; the last one may be written to once more.
    open: Mutex<Vec<(u64, Box<dyn File>)>>,
}

impl DraftFolder<'_> {
    fn sync_all(open: &mut Vec<(u64, Box<dyn File>)>) -> Result<()> {
        open.iter().try_for_each(|(_, file)| file.datasync())?;
        open.clear();
        Ok(())
    }
}

impl Draft for DraftFolder<'_> {
    fn write(&self, mut from: &[u8], offset: u64) -> Result<()> {
        let mut block = offset / BLOCK as u64;
        while !from.is_empty() {
            let next = self.starts.partition_point(|start| *start <= block);
            let (Some(start), Some(end)) = (self.starts.get(next.wrapping_sub(1)), self.starts.get(next)) else {
                crate::bail!(NMC_ERR_INTERNAL, "block {block} of bucket {} belongs to no record", self.bucket);
            };
            let bytes = usize::try_from((end - block) * BLOCK as u64).unwrap_or(usize::MAX).min(from.len());
            let (part, rest) = from.split_at(bytes);
            let mut open = self.open.lock();
            if open.last().is_none_or(|(last, _)| last != start) {
                if open.len() >= MOST_OPEN {
                    Self::sync_all(&mut open)?;
                }
                let file = self.folder.create(&record_name(*start), (end - start) * BLOCK as u64)?;
                memory::push(&mut open, (*start, file))?;
            }
            if let Some((_, file)) = open.last() {
                file.write_aligned(part, (block - start) * BLOCK as u64)?;
            }
            (from, block) = (rest, block + (bytes / BLOCK) as u64);
        }
        Ok(())
    }

    fn complete(&mut self, items: &[Item<'_>], list: &[u8]) -> Result<u64> {
        let open = self.open.get_mut();
        let file = self.folder.create(LIST_NAME, list.len() as u64)?;
        file.write(list, 0)?;
        memory::push(open, (u64::MAX, file))?;
        reach("tier.written");
        Self::sync_all(open)?;
        // Those whose values could not be read after all.
        let mut blocks = list.len() as u64 / BLOCK as u64;
        for ends in self.starts.windows(2) {
            if items.binary_search_by_key(&ends[0], |item| item.block).is_ok() {
                blocks += ends[1] - ends[0];
            } else {
                take_away(&*self.folder, &record_name(ends[0]))?;
            }
        }
        self.folder.sync()?;
        reach("tier.synced");
        Ok(blocks)
    }

    fn seal(&mut self, journal: &Mutex<Journal>) -> Result<()> {
        self.shard.rename(&temporary_name(self.bucket), &folder_name(self.bucket))?;
        reach("tier.renamed");
        self.shard.sync().inspect_err(|_| journal.lock().doubt_names())?;
        let shard = usize::try_from(self.bucket & 0xff).unwrap_or(0);
        let mut lasting = self.folders.lasting.lock();
        if !lasting[shard] {
            // Whoever made it may have ended before its name lasted.
            self.folders.disk.sync().inspect_err(|_| journal.lock().doubt_names())?;
            lasting[shard] = true;
        }
        Ok(())
    }
}
