//! How buckets are written: records are put together by one thread while another one writes them. A bucket counts as a whole or not
//! at all, and its number is never given again.

use super::super::format::{
    BLOCK, Entry as Note, Item, MAX_BLOCK, MAX_BUCKET, Record, Shape, encode_footer, footer_bytes,
};
use super::super::io::Buffer;
use super::super::stages::{STAGE, STAGES, Stages};
use super::super::{backend::Draft, config::Backend};
use super::{Bucket, Directory, is_the_disks};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_IO, NMC_ERR_NO_SPACE};
use crate::layout::disk::{Entry, Spot};
use crate::store::disk::{Stored, ToWrite};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc;

/// Numbers of buckets that are reserved at a time.
const RESERVED: u64 = if cfg!(test) { 3 } else { 1024 };

/// Bytes of the file system that values leave free: without room for a new journal a directory cannot be opened again.
const SPARE: u64 = 16 << 20;

/// Where the bytes of values come from that are to be written.
pub trait Source: Sync {
    /// Copies bytes of a value from `offset` on. What fails is not written.
    fn read(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()>;
}

/// Tells where records of held objects will be, and which of them are still wanted.
pub type Assign<'a> = dyn FnMut(&[(u32, Spot)]) -> Result<Vec<bool>> + 'a;

impl Directory {
    /// The number of a new bucket.
    fn reserve(&self) -> Result<u64> {
        let id = self.next_bucket.load(Relaxed);
        // A listing goes on behind the last one.
        if id >= MAX_BUCKET - 1 {
            crate::bail!(NMC_ERR_LIMIT, "all {MAX_BUCKET} numbers of buckets were used");
        }
        if id > self.reserved.load(Relaxed) {
            // Before the first file has the number: it is never given twice.
            let high = (id + RESERVED - 1).min(MAX_BUCKET - 1);
            let mut journal = self.journal.lock();
            journal.append(&mut [Note::High { bucket: high }]).and_then(|()| journal.sync())?;
            self.reserved.store(high, Relaxed);
        }
        self.next_bucket.store(id + 1, Relaxed);
        Ok(id)
    }

    /// Writes these objects into a bucket that is safe from everything when this returns. Gives those whose records are there. If
    /// it fails, nothing of it comes back, unless the disk refuses everything.
    pub fn write(
        &self,
        items: &[ToWrite],
        store_id: u64,
        source: &dyn Source,
        assign: &mut Assign<'_>,
    ) -> Result<Vec<Stored>> {
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        let mut first = None;
        for _ in 0..2 {
            let error = match self.write_once(items, store_id, source, assign) {
                Ok(stored) => return Ok(stored),
                Err(error) => error,
            };
            self.counts.full.fetch_add(u64::from(error.status == NMC_ERR_NO_SPACE), Relaxed);
            if self.degraded.load(Acquire) || !is_the_disks(&error) {
                return Err(error);
            }
            // What may not have become safe is written anew, elsewhere.
            self.counts.errors.fetch_add(1, Relaxed);
            first.get_or_insert(error);
        }
        let error = first.unwrap_or_else(|| Error::new(NMC_ERR_IO, "a bucket could not be written"));
        self.degrade(&error);
        Err(self.trouble().unwrap_or(error))
    }

    /// Bytes that files take more with a bucket of these, at most.
    pub fn bytes_of(&self, items: &[ToWrite]) -> u64 {
        let records: u64 = items.iter().map(|item| Shape::of(item.key.len(), item.bytes).blocks).sum();
        let lists = 1 + u64::from(self.config.meta);
        records * BLOCK as u64 + lists * footer_bytes(items.iter().map(|item| item.key.len()))
    }

    fn write_once(
        &self,
        items: &[ToWrite],
        store_id: u64,
        source: &dyn Source,
        assign: &mut Assign<'_>,
    ) -> Result<Vec<Stored>> {
        let sizes = memory::collect(items.iter().map(|item| Shape::of(item.key.len(), item.bytes).blocks))?;
        let blocks: u64 = sizes.iter().sum();
        let list_bytes = footer_bytes(items.iter().map(|item| item.key.len()));
        let size = self.bytes_of(items);
        if blocks > MAX_BLOCK {
            crate::bail!(NMC_ERR_LIMIT, "a bucket of {blocks} blocks; {MAX_BLOCK} are possible");
        }
        // Before a number is used up.
        if self.config.capacity_bytes != 0 && self.file_bytes() + size > self.config.capacity_bytes {
            crate::bail!(NMC_ERR_NO_SPACE, "the tier's {} bytes are used up", self.config.capacity_bytes);
        }
        if let Some((left, all)) = self.disk.space().filter(|_| self.config.backend != Backend::Offset) {
            let kept = SPARE.min(all / 4);
            if left < size.saturating_add(kept) {
                crate::bail!(
                    NMC_ERR_NO_SPACE,
                    "the file system has {left} bytes left, of which {kept} are for the tier's journal; {size} were to be written"
                );
            }
        }
        let bucket = self.reserve().inspect_err(|error| {
            if is_the_disks(error) {
                self.degrade(error);
            }
        })?;
        // Known before the first mark for it can come.
        memory::push(&mut self.buckets.lock(), Bucket::new(bucket))?;
        let written = (|| -> Result<(Vec<Stored>, u64, Box<dyn Draft + '_>)> {
            let mut draft = self.storage.draft(bucket, &sizes, list_bytes)?;
            let mut places = memory::with_capacity(items.len())?;
            let mut end = draft.first();
            for (item, blocks) in items.iter().zip(&sizes) {
                places.push((item.index, Spot { bucket, block: end }));
                end += blocks;
            }
            let wanted = if self.storage.keeps() { assign(&places)? } else { memory::vec_of(items.len(), true)? };
            let stored = self.write_records(&*draft, items, &places, &wanted, store_id, source)?;
            let list: Vec<Item<'_>> = memory::collect(stored.iter().map(|(number, stored)| Item {
                block: stored.entry.spot.block,
                space: items[*number].space,
                fingerprint: stored.entry.fingerprint,
                epoch: stored.entry.epoch,
                store_id,
                value_bytes: stored.entry.bytes,
                put: stored.put,
                key: &items[*number].key,
            }))?;
            let footer = encode_footer(self.head.tier_id, bucket, end, &list)?;
            let total = draft.complete(&list, &footer)?;
            let stored = memory::collect(stored.into_iter().map(|(_, stored)| stored))?;
            Ok((stored, total, draft))
        })();
        let mut begun = false;
        let sealed = written.and_then(|(stored, total, mut draft)| {
            // What these values replaced must not come back in their place after a power loss, though its epoch may be higher.
            self.settle_all()?;
            self.journal.lock().sync()?;
            begun = true;
            draft.seal(&self.journal)?;
            Ok((stored, total))
        });
        match sealed {
            Ok((stored, total)) => {
                reach("tier.sealed");
                self.forget_gone();
                self.counts.objects.fetch_add(stored.len() as u64, Relaxed);
                self.counts.bytes.fetch_add(stored.iter().map(|stored| stored.entry.bytes).sum(), Relaxed);
                self.counts.buckets.fetch_add(1, Relaxed);
                let mut buckets = self.buckets.lock();
                if !self.storage.keeps() {
                    buckets.retain(|other| other.id != bucket);
                    return Ok(Vec::new());
                }
                if let Ok(at) = buckets.binary_search_by_key(&bucket, |bucket| bucket.id) {
                    (buckets[at].blocks, buckets[at].sealed) = (total, true);
                }
                Ok(stored)
            }
            Err(error) => {
                self.give_up(bucket, begun)?;
                Err(error)
            }
        }
    }

    /// Nothing of a bucket may come back. `sealed`: that was begun, so that it may count by now, and for ever.
    fn give_up(&self, bucket: u64, sealed: bool) -> Result<()> {
        self.buckets.lock().retain(|other| other.id != bucket);
        let mut gone = Ok(());
        let mut journal = self.journal.lock();
        if sealed && (!self.storage.is_in_journal() || journal.may_have(bucket)) {
            let marked = journal.append(&mut [Note::Gone { bucket }]).and_then(|()| journal.sync());
            // For whatever reason: what replaces its values from now on would find nothing to mark.
            gone = marked.inspect_err(|error| self.degrade(error));
        }
        drop(journal);
        self.storage.discard(bucket, gone.is_ok());
        gone
    }

    /// Writes the records of the objects that are wanted; gives those that could be read, with their numbers.
    fn write_records(
        &self,
        draft: &dyn Draft,
        items: &[ToWrite],
        places: &[(u32, Spot)],
        wanted: &[bool],
        store_id: u64,
        source: &dyn Source,
    ) -> Result<Vec<(usize, Stored)>> {
        let mut stored = memory::with_capacity(items.len())?;
        let (full, to_write) = mpsc::sync_channel::<(Buffer, u64, usize)>(1);
        let (empty, free) = mpsc::channel::<Buffer>();
        let mut stages = std::mem::take(&mut *self.stages.lock());
        memory::reserve(&mut stages, STAGES)?;
        while stages.len() < STAGES {
            stages.push(Buffer::new(STAGE)?);
        }
        stages.into_iter().for_each(|stage| _ = empty.send(stage));
        std::thread::scope(|scope| {
            // The next stage is filled while one is written.
            let writer = std::thread::Builder::new().name("nmc-tier-write".into()).spawn_scoped(scope, move || {
                while let Ok((stage, offset, bytes)) = to_write.recv() {
                    draft.write(&stage[..bytes], offset)?;
                    let _ = empty.send(stage);
                }
                Ok::<(), Error>(())
            });
            let writer = writer.map_err(|cause| Error::os("clone", &cause))?;
            let mut stages = Stages::new(full, free);
            let filled = (|| -> Result<()> {
                for (number, (item, (_, spot))) in items.iter().zip(places).enumerate() {
                    if wanted.get(number) != Some(&true) {
                        continue;
                    }
                    let record = Record {
                        space: item.space,
                        key: &item.key,
                        metadata: &item.metadata,
                        value_bytes: item.bytes,
                        epoch: item.epoch,
                        store_id,
                        rank: item.rank,
                        retain: u8::try_from(item.class.0.code()).unwrap_or(0),
                        priority: u8::try_from(item.class.1).unwrap_or(0),
                        put: item.put,
                    };
                    if !stages.record(&record, spot.block * BLOCK as u64, |offset, to| source.read(item, offset, to))? {
                        continue;
                    }
                    let fingerprint = self.head.fingerprint(item.space, &item.key);
                    let space = item.space.number;
                    let entry = Entry { epoch: item.epoch, fingerprint, bytes: item.bytes, spot: *spot, space };
                    let generation = item.space.generation;
                    stored.push((number, Stored { index: item.index, generation, entry, put: item.put }));
                }
                stages.flush()
            })();
            let (free, rest) = stages.finish();
            let written = writer.join().unwrap_or_else(|_| Err(Error::new(NMC_ERR_IO, "the writing thread panicked")));
            // Memory that was never touched costs more than to write it.
            *self.stages.lock() = memory::collect(free.try_iter().chain(rest)).unwrap_or_default();
            // If writing failed, filling failed because of that.
            written.and(filled)
        })?;
        Ok(stored)
    }
}
