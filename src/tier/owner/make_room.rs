//! Room for new values, where the config lets old ones go: whole buckets, the oldest or those that nobody has read for the
//! longest time. A mark in the journal comes first, then the entries end, then the file goes: whatever happens in between, nothing
//! of the bucket comes back.

use super::super::config::Evict;
use super::super::directory::{Assign, Source};
use super::Owner;
use crate::base::error::Result;
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_ERR_OS};
use crate::layout::disk::Fingerprint;
use crate::store::disk::{Happened, Stored, ToWrite, heat_now};
use std::sync::atomic::Ordering::Relaxed;

/// Entries that end at a time, under the master's lock.
const STEP: usize = 256;
/// Buckets that are given up in a row because a file system has no space.
const TRIES: usize = 8;

impl Owner {
    fn evicts(&self) -> bool {
        self.config.evict != Evict::Never && self.directory.trouble().is_none()
    }

    /// Makes room for this many bytes of values and what goes with them, if there is a limit to what files take.
    pub(super) fn make_room_for(&self, bytes: u64) -> Result<()> {
        let limit = self.config.capacity_bytes;
        if limit == 0 || !self.could_fit(bytes) {
            return Ok(());
        }
        if self.evicts() && self.directory.file_bytes() + bytes > limit {
            // What is over anyway comes first.
            self.tidy_all();
        }
        while self.evicts() && self.directory.file_bytes() + bytes > limit {
            if self.evict_one()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Whether there would be room if everything went that can. What can never fit makes nothing go.
    fn could_fit(&self, bytes: u64) -> bool {
        let limit = self.config.capacity_bytes;
        limit == 0 || bytes.saturating_add(self.directory.aside_bytes()) <= limit
    }

    /// Makes room for so many entries.
    pub(super) fn make_room_in_index(&self, entries: u64) -> Result<()> {
        while self.evicts() {
            let Some(counts) = self.host()?.with(|master| Ok(master.disk_counts()))? else { break };
            let wanted = entries.min((counts.capacity / 4).max(1));
            if counts.objects + wanted <= counts.capacity || self.evict_one()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Writes a bucket, and lets old ones go if there is no room for it.
    pub(super) fn write_somehow(
        &self,
        items: &[ToWrite],
        store_id: u64,
        source: &dyn Source,
        assign: &mut Assign<'_>,
    ) -> Result<Vec<Stored>> {
        let bytes = self.directory.bytes_of(items);
        let could_fit = self.could_fit(bytes);
        self.make_room_for(bytes)?;
        for _ in 0..TRIES {
            match self.directory.write(items, store_id, source, assign) {
                Err(error) if error.status == NMC_ERR_NO_SPACE && could_fit => {
                    // What is over anyway comes first.
                    let came_back = self.tidy();
                    if !came_back && (!self.evicts() || self.evict_one()?.is_none()) {
                        return Err(error);
                    }
                }
                written => return written,
            }
        }
        self.directory.write(items, store_id, source, assign)
    }

    /// Lets buckets go until the files take this many bytes at most, without what is damaged and set aside; gives how many values went.
    pub(super) fn evict_down_to(&self, keep: u64) -> Result<u64> {
        let (mut evicted, keep) = (0, keep.saturating_add(self.directory.aside_bytes()));
        while self.directory.file_bytes() > keep {
            match self.evict_one()? {
                Some(more) => evicted += more,
                None => break,
            }
        }
        Ok(evicted)
    }

    /// Lets the bucket go that is wanted least; gives how many values went with it, or `None` if there is none, or no space came
    /// back by it.
    fn evict_one(&self) -> Result<Option<u64>> {
        if let Some(error) = self.directory.trouble() {
            return Err(error);
        }
        let (now, heat) = (heat_now(), self.map.heat());
        let age = |bucket: &u64| now.wrapping_sub(heat.last(*bucket));
        let sealed = self.directory.sealed()?;
        let chosen = match self.config.evict {
            // Of those that were never read the oldest goes.
            Evict::Lru => sealed.iter().max_by_key(|bucket| (age(bucket), std::cmp::Reverse(**bucket))),
            Evict::Fifo | Evict::Never => sealed.first(),
        };
        let Some(bucket) = chosen.copied() else { return Ok(None) };
        // Before anything is given up: without descriptors or memory it is tried again later.
        if let Err(error) = self.directory.list_one(bucket, &mut |_| Ok(()))
            && matches!(error.status, NMC_ERR_LIMIT | NMC_ERR_NO_MEMORY | NMC_ERR_OS)
        {
            return Err(error);
        }
        self.directory.condemn(bucket)?;
        self.newest_evicted.fetch_max(bucket, Relaxed);
        let evicted = self.end_all(bucket)?;
        self.directory.emptied(bucket);
        self.tidy_all();
        Ok(Some(evicted).filter(|_| !self.directory.has(bucket)))
    }

    /// Ends all entries that lead to a bucket.
    pub(super) fn end_all(&self, bucket: u64) -> Result<u64> {
        let mut records: Vec<Fingerprint> = Vec::new();
        let mut values = Vec::new();
        let listed = self.list_bucket(bucket, &mut records, &mut values);
        if let Err(error) = listed {
            log::emit(log::WARN, || {
                format!("tier: bucket {bucket} is given up, though its list cannot be read: {error}")
            });
            records.clear();
            self.each_entry(bucket, &mut |_, _, entry| memory::push(&mut records, entry.fingerprint))?;
        }
        let host = self.host()?;
        let mut ended = 0;
        for part in records.chunks(STEP) {
            ended += host.with(|master| master.end_bucket(bucket, part))?;
        }
        self.tell(Happened::Evicted, values, 0);
        Ok(ended)
    }

    fn list_bucket(
        &self,
        bucket: u64,
        records: &mut Vec<Fingerprint>,
        values: &mut Vec<(Vec<u8>, Vec<u8>, u64)>,
    ) -> Result<()> {
        let names = self.directory.names()?;
        self.directory.list_one(bucket, &mut |item| {
            if self.entry_of(bucket, item).is_none() {
                return Ok(());
            }
            memory::push(records, item.fingerprint)?;
            if self.config.events {
                let name = names.iter().find(|(space, _)| *space == item.space).map_or(&[][..], |(_, name)| name);
                memory::push(values, (memory::copy(name)?, memory::copy(item.key)?, item.value_bytes))?;
            }
            Ok(())
        })
    }
}
