//! Looks at what is on disk: one value that somebody could not read, all of them, or their keys.

use super::super::config::{Scanned, Verified};
use super::super::directory::read_end;
use super::super::format::{Item, bucket_name};
use super::super::io::{Buffer, File};
use super::super::reader::check_record;
use super::Owner;
use crate::base::error::Result;
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND};
use crate::layout::disk::Spot;
use crate::sync::disk_entry;
use std::sync::atomic::Ordering::SeqCst;

impl Owner {
    /// Reads what an entry leads to, and ends it if that is not right. Gives whether it did.
    pub(super) fn look_at(&self, index: u32, word: u64) -> Result<bool> {
        let Some(words) = self.map.view().entry(index).and_then(disk_entry::read).filter(|words| words[0] == word)
        else {
            return Ok(false);
        };
        let entry = crate::layout::disk::Entry::from_words(words);
        let name = bucket_name(entry.spot.bucket);
        let checked = (|| -> Result<()> {
            let file = self.real_file(&name)?;
            let (tail, list) = read_end(&*file)?;
            for item in tail.items(&list)? {
                let item = item?;
                if item.block == entry.spot.block {
                    let mut scratch = Buffer::new(1 << 20)?;
                    return check_record(&*file, item.block, item.key, entry.epoch, entry.bytes, &mut scratch);
                }
            }
            crate::bail!(NMC_ERR_CORRUPT, "{name} has no record at block {}", entry.spot.block)
        })();
        let error = match checked {
            Ok(()) => return Ok(false),
            // What cannot be read now may be readable later.
            Err(error) if ![NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND].contains(&error.status) => return Err(error),
            Err(error) => error,
        };
        let ended = self.host()?.with(|master| master.end_entry(index, word))?;
        if ended {
            self.corrupt.fetch_add(1, SeqCst);
            log::emit(log::ERROR, || format!("tier: a value on disk is given up: {error}"));
        }
        Ok(ended)
    }

    fn real_file(&self, name: &str) -> Result<Box<dyn File>> {
        self.directory.disk().open(name, false)
    }

    /// The entry that leads to a record, if one does.
    pub(super) fn entry_of(&self, bucket: u64, item: &Item<'_>) -> Option<(u32, u64)> {
        let (index, word, entry) = self.map.view().find(item.fingerprint).ok().flatten()?;
        (entry.spot == Spot { bucket, block: item.block }).then_some((index, word))
    }

    /// See [`super::Tier::verify`].
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Verified> {
        let mut found = Verified::default();
        let total = self.counts().objects;
        let mut done = 0;
        let mut suspects: Vec<(u32, u64)> = Vec::new();
        let mut scratch = Buffer::new(1 << 20)?;
        self.directory.list(&mut |bucket, item| {
            let Some((index, word)) = self.entry_of(bucket, item) else { return Ok(true) };
            let file = self.real_file(&bucket_name(bucket));
            let checked = file.and_then(|file| {
                check_record(&*file, item.block, item.key, item.epoch, item.value_bytes, &mut scratch)
            });
            done += 1;
            match checked {
                Ok(()) => {
                    found.objects += 1;
                    found.bytes += item.value_bytes;
                }
                Err(error) if [NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND].contains(&error.status) => {
                    memory::push(&mut suspects, (index, word))?;
                }
                Err(error) => return Err(error),
            }
            Ok(progress(done, total.max(done)))
        })?;
        for (index, word) in suspects {
            found.corrupt += u64::from(self.look_at(index, word)?);
        }
        Ok(found)
    }

    /// See [`super::Tier::scan`].
    pub fn scan(&self, each: &mut dyn FnMut(&Scanned<'_>) -> bool) -> Result<()> {
        let names = self.directory.names();
        self.directory.list(&mut |bucket, item| {
            let Some((_, name)) = names.iter().find(|(space, _)| *space == item.space) else { return Ok(true) };
            if self.entry_of(bucket, item).is_none() {
                return Ok(true);
            }
            let Item { key, value_bytes: bytes, epoch, block, .. } = *item;
            Ok(each(&Scanned { namespace: name, key, bytes, epoch, spot: (bucket, block) }))
        })
    }
}
