//! Looks at what is on disk: one value that somebody could not read, all of them, or their keys.

use super::super::config::{Scanned, Verified};
use super::super::format::Item;
use super::super::io::Buffer;
use super::super::reader::check_record;
use super::Owner;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND};
use crate::layout::disk::{Entry, Spot};
use crate::sync::disk_entry;
use std::sync::atomic::Ordering::SeqCst;

/// What a look at one value gave.
pub(super) enum Looked {
    /// It is whole, and has so many bytes.
    Right(u64),
    /// It was not, and has ended by this.
    Ended,
    /// It had ended before, or did meanwhile.
    Over,
}

impl Owner {
    /// Reads what an entry leads to, and ends it if that is not right.
    pub(super) fn look_at(&self, index: u32, word: u64) -> Result<Looked> {
        let Some((_, entry, put)) = self.map.view().live(index).filter(|(now, ..)| *now == word) else {
            return Ok(Looked::Over);
        };
        let checked = (|| -> Result<()> {
            let key = self.directory.key_of(entry.spot)?;
            let (file, block) = self.directory.open_record(entry.spot)?;
            let mut scratch = Buffer::new(1 << 20)?;
            check_record(&*file, block, &key, put, entry.bytes, &mut scratch)
        })();
        let error = match checked {
            Ok(()) => return Ok(Looked::Right(entry.bytes)),
            // What cannot be read now may be readable later.
            Err(error) if ![NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND].contains(&error.status) => return Err(error),
            Err(error) => error,
        };
        let ended = self.host()?.with(|master| master.end_entry(index, word))?;
        if ended {
            self.corrupt.fetch_add(1, SeqCst);
            let Spot { bucket, block } = entry.spot;
            log::emit(log::ERROR, || {
                format!("tier: the value in bucket {bucket} at block {block} is given up: {error}")
            });
        }
        Ok(if ended { Looked::Ended } else { Looked::Over })
    }

    /// The entry that leads to a record, if one does.
    pub(super) fn entry_of(&self, bucket: u64, item: &Item<'_>) -> Option<(u32, u64)> {
        let (index, word, entry) = self.map.view().find(item.fingerprint).ok().flatten()?;
        (entry.spot == Spot { bucket, block: item.block }).then_some((index, word))
    }

    /// See [`super::Tier::verify`].
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<(Verified, Option<Error>)> {
        let mut found = Verified::default();
        let total = self.counts().objects;
        let mut done = 0;
        let mut suspects: Vec<(u32, u64)> = Vec::new();
        let mut lost: Vec<u64> = Vec::new();
        let mut why = None;
        let mut scratch = Buffer::new(1 << 20)?;
        let mut each = |bucket: u64, item: &Item<'_>| {
            let Some((index, word)) = self.entry_of(bucket, item) else { return Ok(true) };
            let record = self.directory.open_record(Spot { bucket, block: item.block });
            let checked = record.and_then(|(file, block)| {
                check_record(&*file, block, item.key, item.put, item.value_bytes, &mut scratch)
            });
            done += 1;
            match checked {
                Ok(()) => {
                    found.objects += 1;
                    found.bytes += item.value_bytes;
                }
                Err(_) => memory::push(&mut suspects, (index, word))?,
            }
            Ok(progress(done, total.max(done)))
        };
        self.directory.list(&mut each, &mut |bucket, _| memory::push(&mut lost, bucket))?;
        for bucket in lost {
            self.each_entry(bucket, &mut |index, word, _| memory::push(&mut suspects, (index, word)))?;
        }
        for (index, word) in suspects {
            match self.look_at(index, word) {
                Ok(Looked::Ended) => found.corrupt += 1,
                Ok(Looked::Over) => {}
                // What was in the way the first time was not the disk.
                Ok(Looked::Right(bytes)) => {
                    found.objects += 1;
                    found.bytes += bytes;
                }
                Err(error) => {
                    found.unreadable += 1;
                    why.get_or_insert(error);
                }
            }
        }
        Ok((found, why))
    }

    /// Every entry that leads to a bucket, from the index itself: number, first word, and what it says.
    pub(super) fn each_entry(&self, bucket: u64, each: &mut dyn FnMut(u32, u64, &Entry) -> Result<()>) -> Result<()> {
        let view = self.map.view();
        for index in 0..view.capacity() {
            let Some(words) = view.entry(index).and_then(disk_entry::read) else { continue };
            let entry = Entry::from_words(words);
            if entry.spot.bucket == bucket {
                each(index, words[0], &entry)?;
            }
        }
        Ok(())
    }

    /// See [`super::Tier::scan`].
    pub fn scan(&self, each: &mut dyn FnMut(&Scanned<'_>) -> bool) -> Result<()> {
        let names = self.directory.names()?;
        let mut why = None;
        let mut one = |bucket: u64, item: &Item<'_>| {
            let Some((_, name)) = names.iter().find(|(space, _)| *space == item.space) else { return Ok(true) };
            if self.entry_of(bucket, item).is_none() {
                return Ok(true);
            }
            let Item { key, value_bytes: bytes, epoch, block, .. } = *item;
            Ok(each(&Scanned { namespace: name, key, bytes, epoch, spot: (bucket, block) }))
        };
        self.directory.list(&mut one, &mut |bucket, error| {
            why.get_or_insert_with(|| error.context(format!("the list of bucket {bucket}")));
            Ok(())
        })?;
        why.map_or(Ok(()), Err)
    }
}
