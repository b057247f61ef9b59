//! What leaves memory, what leaves the disk to make room, as the owner does it, and what comes back into memory.

use super::*;
use crate::tier::io::Buffer;
use crate::tier::reader::check_record as check_value;

impl Master {
    /// Whether the disk has what is in memory.
    pub(super) fn is_clean(&self, object: &Object) -> bool {
        if self.disk.makes(Mistake::CleanFlag) { object.written } else { object.entry.is_some() }
    }

    /// What memory has leaves it; what the disk has not is lost.
    pub(super) fn evict(&mut self) -> bool {
        let before = self.objects.values().filter(|object| object.memory).count();
        let lost: Vec<Name> =
            self.objects.iter().filter(|(_, object)| !self.is_clean(object)).map(|(name, _)| *name).collect();
        self.objects.retain(|name, _| !lost.contains(name));
        self.objects.values_mut().for_each(|object| object.memory = false);
        before > 0
    }

    /// The oldest bucket leaves the disk: GONE, then its entries, then what it is made of. Without memory for more than so many
    /// entries it is half given up until somebody tidies.
    pub(super) fn give_up(&mut self, entries: usize) -> Result<bool> {
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        let Some(bucket) = self.directory.sealed()?.first().copied() else { return Ok(false) };
        // What cannot be read goes all the same.
        let _ = self.directory.list_one(bucket, &mut |_| Ok(()));
        self.condemn(bucket)?;
        self.end_entries(bucket, entries);
        if entries == usize::MAX {
            self.directory.emptied(bucket);
            // What fails is tried again by whoever tidies next.
            (0..TIDY).take_while(|_| self.directory.tidy().unwrap_or(false)).for_each(drop);
        }
        Ok(true)
    }

    /// From now on nothing of a bucket comes back, whatever happens.
    fn condemn(&mut self, bucket: u64) -> Result<()> {
        let in_it = |object: &Object| object.entry.is_some_and(|spot| spot.bucket == bucket);
        let names: Vec<Name> = self.objects.iter().filter(|(_, object)| in_it(object)).map(|(name, _)| *name).collect();
        let were: BTreeMap<Name, Version> = {
            let mut ledger = self.disk.moments().ledger.lock();
            ledger.there.extract_if(.., |name, _| names.contains(name)).collect()
        };
        let condemned = if self.disk.makes(Mistake::EntriesFirst) {
            Ok(())
        } else {
            self.disk.put_off(|| self.directory.condemn(bucket))
        };
        let mut ledger = self.disk.moments().ledger.lock();
        match &condemned {
            Ok(()) => _ = ledger.gone.insert(bucket),
            // What was not said stays.
            Err(_) if self.trouble().is_none() => ledger.there.extend(were),
            Err(_) => {}
        }
        condemned
    }

    /// Entries that lead to a bucket end, so many of them. Nothing has to be written down for that.
    fn end_entries(&mut self, bucket: u64, most: usize) {
        let in_it = |spot: &Spot| spot.bucket == bucket;
        let mut over: Vec<Mark> = Vec::new();
        self.objects.retain(|_, object| {
            if let Some(spot) = object.entry.take_if(|spot| in_it(spot) && over.len() < most) {
                over.push(Mark::Over { spot });
                return object.memory;
            }
            true
        });
        self.former.retain(|spot| {
            let ends = in_it(spot) && over.len() < most;
            if ends {
                over.push(Mark::Over { spot: *spot });
            }
            !ends
        });
        self.directory.note(&over);
        let _ = self.directory.settle(false);
    }

    /// Goes on with a bucket that is half given up; gives whether there was one.
    pub(super) fn end_condemned(&mut self) -> bool {
        let Some(bucket) = self.directory.condemned() else { return false };
        self.end_entries(bucket, usize::MAX);
        self.directory.emptied(bucket);
        true
    }

    /// A value that only the disk has comes back into memory, if its entry still lives when it was read.
    pub(super) fn promote(&mut self, name: Name, meanwhile: Option<Meanwhile>) -> Result<bool> {
        let Some(read) = self.objects.get(&name).filter(|object| !object.memory).copied() else { return Ok(false) };
        let Some(spot) = read.entry else { return Ok(false) };
        let (file, block) = self.directory.open_record(spot)?;
        let bytes = value_of(name, read.version).len() as u64;
        check_value(&*file, block, &key_of(name), put_of(read.version), bytes, &mut Buffer::new(1 << 20)?)?;
        if let Some(meanwhile) = meanwhile {
            self.do_meanwhile(meanwhile);
        }
        let (epoch, index) = (self.next_epoch, self.take_index());
        self.next_epoch += 1;
        match self.objects.get_mut(&name) {
            Some(object) if !object.memory && object.entry == read.entry => {
                (object.memory, object.epoch, object.index) = (true, epoch, index);
            }
            None if self.disk.makes(Mistake::PromotedByPut) => {
                let object = Object { epoch, index, memory: true, entry: None, written: false, ..read };
                self.objects.insert(name, object);
            }
            _ => {}
        }
        Ok(true)
    }
}
