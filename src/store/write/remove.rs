//! What objects leave by: removal, by key, prefix or all, and eviction; and how firmly they are kept.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NOT_FOUND};
use crate::layout::store::MAX_KEY;
use crate::store::client::{Interrupt, Store};
use crate::store::disk::DiskRecord;
use crate::store::read::LOOKS;
use crate::store::types::{Keep, Presence, check_key, on_disk, show};
use crate::store::wire::{MAX_ITEMS, Request};

impl Store {
    /// Removes an object.
    pub fn remove(&self, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.call(&Request::Remove(self.namespace, vec![key])).map(|_| ())
    }

    /// Removes many objects. Fails as a whole only before anything is removed.
    pub fn remove_many(&self, keys: &[&[u8]]) -> Result<Vec<Result<()>>> {
        let (mut good, mut results) = (memory::with_capacity(keys.len())?, memory::with_capacity(keys.len())?);
        good.extend(keys.iter().copied().filter(|key| check_key(key).is_ok()));
        let mut removed = self.remove_keys(&good)?.into_iter();
        results.extend(keys.iter().map(|key| check_key(key).and_then(|()| removed.next().unwrap_or(Ok(())))));
        Ok(results)
    }

    /// Removes the objects whose keys begin with `prefix`; gives how many.
    pub fn remove_by_prefix(&self, prefix: &[u8]) -> Result<u64> {
        if prefix.len() > MAX_KEY {
            crate::bail!(NMC_ERR_INVALID_ARG, "the prefix {} has more than {MAX_KEY} bytes", show(prefix));
        }
        let interrupt = self.interrupt();
        let mut removed = 0;
        for _ in 0..LOOKS {
            let before = self.moves_on_disk(&interrupt)?;
            // Memory first: what leaves it meanwhile is on disk then. What comes into it meanwhile is on disk, too, unless that
            // is counted.
            removed += self.remove_in_memory(prefix, &interrupt)?;
            removed += self.remove_on_disk(prefix)?;
            if self.moves_on_disk(&interrupt)? == before {
                return Ok(removed);
            }
        }
        let text =
            format!("values moved from disk to memory again and again while those with {} were removed", show(prefix));
        Err(Error::new(NMC_ERR_BUSY, text))
    }

    fn remove_in_memory(&self, prefix: &[u8], interrupt: &Interrupt<'_>) -> Result<u64> {
        let (mut removed, mut cursor) = (0, 0);
        loop {
            let [n, next, _] = self.call_until(&Request::RemoveMatching(self.namespace, prefix, cursor), interrupt)?;
            interrupt.check()?;
            removed += n;
            match u32::try_from(next) {
                Ok(next) => cursor = next,
                Err(_) => return Ok(removed),
            }
        }
    }

    /// Removes what is on disk of the keys that begin with `prefix`; gives how many.
    pub(super) fn remove_on_disk(&self, prefix: &[u8]) -> Result<u64> {
        let Some(disk) = self.disk_for_call()? else { return Ok(0) };
        let (mut at, mut removed, mut keys) = (0, 0, Vec::new());
        loop {
            let mut wanted = |record: &DiskRecord<'_>| Ok(record.resident && record.key.starts_with(prefix));
            let (found, next) = self.next_on_disk(Some(&disk), at, &mut wanted)?;
            let over = found.is_none();
            at = next;
            if let Some((key, _)) = found {
                memory::push(&mut keys, key)?;
            }
            if over || keys.len() == MAX_ITEMS {
                let names: Vec<&[u8]> = memory::collect(keys.iter().map(Vec::as_slice))?;
                for result in self.remove_keys(&names)? {
                    match result {
                        Ok(()) => removed += 1,
                        // Somebody else was faster.
                        Err(error) if error.status == NMC_ERR_NOT_FOUND => {}
                        Err(error) => return Err(error),
                    }
                }
                keys.clear();
            }
            if over {
                return Ok(removed);
            }
        }
    }

    /// Forgets every object of the namespace at once.
    pub fn remove_all(&self) -> Result<()> {
        self.call(&Request::Flush(self.namespace)).map(|_| ())
    }

    /// Changes how an object is kept.
    pub fn retain(&self, key: &[u8], keep: Keep) -> Result<()> {
        check_key(key)?;
        let mut kept = Ok([0; 3]);
        for _ in 0..LOOKS {
            kept = self.call(&Request::Retain(self.namespace, key, keep));
            match &kept {
                Err(error) if error.status == NMC_ERR_NOT_FOUND => match self.presence(key)? {
                    Presence::OnDisk => return Err(on_disk(key)),
                    Presence::Absent => break,
                    // It came meanwhile.
                    _ => {}
                },
                _ => break,
            }
        }
        kept.map(|_| ())
    }

    /// Evicts from a rank until at most `permille`/1000 of its heap are used.
    pub fn evict_until_below(&self, rank: u32, permille: u32) -> Result<()> {
        let interrupt = self.interrupt();
        while self.call_until(&Request::Evict(rank, permille), &interrupt)?[0] == 0 {
            interrupt.check()?;
        }
        Ok(())
    }
}
