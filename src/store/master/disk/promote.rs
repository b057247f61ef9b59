//! Values that come back from the disk into memory, and those that leave it to make room. While a value is in both places its
//! entry stays, so that memory can drop it again without writing it.

use super::*;

impl Master {
    /// Fails if what was read from an entry must not come into memory: it was removed or replaced meanwhile, or somebody else has
    /// brought it.
    pub(in crate::store::master) fn check_promotion(
        &self,
        key: &[u8],
        in_memory: Option<u32>,
        on_disk: Option<u32>,
        ReadFrom { disk, entry, word }: ReadFrom,
        bytes: u64,
    ) -> Result<()> {
        if in_memory.is_some() {
            return Err(exists(key, "is in memory"));
        }
        // Of another disk, an entry with the same number leads elsewhere.
        let same = self.disk.as_ref().filter(|here| here.map.id() == disk);
        let words = same.and_then(|disk| disk.map.view().entry(entry));
        let there = words.and_then(disk_entry::read).filter(|words| on_disk == Some(entry) && words[0] == word);
        if there.is_none_or(|words| Entry::from_words(words).bytes != bytes) {
            return Err(not_found(key));
        }
        Ok(())
    }

    /// An object was read from an entry, and both are there from now on. It is of the same put, and its header says so, for a master
    /// that comes to both without knowing that they are the same.
    pub(in crate::store::master) fn marry_to_disk(&mut self, header: &ObjectHeader, index: u32, entry: u32) {
        if let (Some(disk), Some(book)) = (&mut self.disk, self.books.get_mut(index as usize)) {
            disk.marry(index, book, entry, true);
            book.plan_id = disk.put_of(entry);
            header.plan_id.store(book.plan_id, Relaxed);
        }
    }

    /// A bucket leaves the disk: these are of its records. Their entries end, and nothing has to be written down for it. Gives how
    /// many there were.
    pub fn end_bucket(&mut self, bucket: u64, records: &[Fingerprint]) -> Result<u64> {
        let Some(disk) = &mut self.disk else { return Ok(0) };
        memory::reserve(&mut disk.marks, records.len() + MOST_HELD)?;
        let since = self.map.view().header().since_apart();
        let mut brought = memory::with_capacity(if since.is_some() { records.len() } else { 0 })?;
        let (mut ended, mut counted) = (0, false);
        for fingerprint in records {
            let Some((index, entry)) = disk.find(*fingerprint).filter(|(_, entry)| entry.spot.bucket == bucket) else {
                continue;
            };
            brought.extend(since.and_then(|since| disk.brought(&self.books, index, since)));
            // Once is enough: all that is back was back before this call.
            if !counted && disk.is_back(&self.lists, &self.books, index) {
                disk.count_same();
                counted = true;
            }
            disk.end(index);
            disk.marks.push(Mark::Over { spot: entry.spot });
            ended += 1;
        }
        disk.counts.evicted += ended;
        disk.forget_fronts();
        self.drop_brought(&brought);
        Ok(ended)
    }

    /// What the disk brought into memory, and cannot tell from the rest any more, goes.
    pub(in crate::store::master) fn drop_brought(&mut self, brought: &[u32]) {
        let map = Arc::clone(&self.map);
        self.drop_objects(map.view(), brought, false);
    }
}
