//! Puts that wait for the disk: where the tier writes through, a value is safe from a power loss when its put returns. The owner
//! writes what many callers wait for into one bucket, and syncs once for all of them.

use super::Store;
use super::disk::DiskAccess;
use super::master::show;
use super::read::Look;
use super::wait::Interrupt;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_IO, NMC_ERR_STALE};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The call by which the owner hears of values that somebody waits for: the namespace, and their keys. Gives a ticket.
pub const CALL_THROUGH: u32 = 8;
/// The call that asks what became of a ticket: 1, and what it gave; 0 while it is not done.
pub const CALL_DONE: u32 = 5;
/// Keys of one call.
const TOGETHER: usize = 64;
/// Time between two looks at the index, which asks nobody.
const LOOK: Duration = Duration::from_micros(200);
/// Looks between two questions.
const LOOKS: u32 = 32;
/// Times that values are asked for: what was written may leave the disk again before anybody looks.
const TIMES: usize = 8;

impl Store {
    /// Waits until values that were just published, with these epochs, are on disk. One that was replaced meanwhile is not waited
    /// for.
    pub(super) fn wait_for_disk(&self, values: &[(&[u8], u64)], interrupt: &Interrupt<'_>) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        match self.disk_to_wait_for(interrupt)? {
            Some(disk) => values.chunks(TOGETHER).try_for_each(|part| self.wait_for_some(&disk, part, interrupt)),
            None => Ok(()),
        }
    }

    /// Whether a put is complete only when its value is on disk.
    pub fn writes_through(&self) -> Result<bool> {
        self.disk_to_wait_for(&self.interrupt()).map(|disk| disk.is_some())
    }

    fn disk_to_wait_for(&self, interrupt: &Interrupt<'_>) -> Result<Option<DiskAccess>> {
        let id = self.client.view().header().disk.load(Relaxed);
        let through = |disk: &DiskAccess| disk.map.view().header().write_through.load(Relaxed) != 0;
        // Most puts of most tiers end here.
        if id == 0 || self.client.disk.look(id, through) == Some(false) {
            return Ok(None);
        }
        Ok(self.disk_for_call_until(interrupt)?.filter(through))
    }

    /// Has a value that was published written to disk, whether the tier writes through or not. Does not wait: gives a ticket for
    /// [`Store::is_written`].
    pub fn begin_to_write(&self, key: &[u8]) -> Result<u64> {
        if self.disk_for_call()?.is_none() {
            crate::bail!(NMC_ERR_UNAVAILABLE, "the store has no tier that {} could be written to", show(key));
        }
        self.call_disk(CALL_THROUGH, [self.namespace.into(), 0], &[key]).map(|[ticket, ..]| ticket)
    }

    /// Whether a value of this put is on disk. Fails if it will not be.
    pub fn is_written(&self, key: &[u8], put: u64, ticket: u64) -> Result<bool> {
        let is_there = || Ok::<_, Error>(self.entry_of(key)?.is_some_and(|found| found.put == put));
        if is_there()? {
            return Ok(true);
        }
        let [done, ..] = self.call_disk(CALL_DONE, [ticket, 0], &[])?;
        // It may have come between the two looks.
        if done == 0 || is_there()? {
            return Ok(done != 0);
        }
        let text = format!("{} was not written to disk: it was removed meanwhile, or see the owner's log", show(key));
        Err(Error::new(NMC_ERR_IO, text))
    }

    #[cold]
    fn wait_for_some(&self, disk: &DiskAccess, values: &[(&[u8], u64)], interrupt: &Interrupt<'_>) -> Result<()> {
        let keys: Vec<&[u8]> = memory::collect(values.iter().map(|(key, _)| *key))?;
        let view = self.client.view();
        let mut pins: Vec<u32> = memory::with_capacity(values.len())?;
        // What is pinned is evicted last. If one goes all the same, or there is no slot for it, that is told below.
        pins.extend(values.iter().filter_map(|(key, _)| match self.pin_to_read(view, key) {
            Ok(Look::Ready(pin)) => Some(pin.slot),
            _ => None,
        }));
        let mut waited = Ok(None);
        for _ in 0..TIMES {
            waited = self.wait_while_pinned(disk, values, &keys, interrupt);
            if !matches!(waited, Ok(Some(_))) {
                break;
            }
        }
        pins.into_iter().for_each(|slot| self.release_pin(view, slot));
        match waited? {
            Some(key) => {
                let text = format!("{} is in memory, but was not written to disk: see the owner's log", show(key));
                Err(Error::new(NMC_ERR_IO, text))
            }
            None => Ok(()),
        }
    }

    /// Asks the owner for these values, and waits until it is done. Gives one that is in memory, and not on disk.
    fn wait_while_pinned<'a>(
        &self,
        disk: &DiskAccess,
        values: &[(&'a [u8], u64)],
        keys: &[&[u8]],
        interrupt: &Interrupt<'_>,
    ) -> Result<Option<&'a [u8]>> {
        let [ticket, ..] = self.call_disk_until(CALL_THROUGH, [self.namespace.into(), 0], keys, interrupt)?;
        let mut looks = 0u32;
        let is_there = |key: &[u8]| Ok::<_, Error>(disk.map.probe(self.namespace, key)?.is_some());
        loop {
            if keys.iter().try_fold(true, |all, key| Ok::<_, Error>(all && is_there(key)?))? {
                return Ok(None);
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                interrupt.check()?;
                let [done, ..] = self.call_disk_until(CALL_DONE, [ticket, 0], &[], interrupt)?;
                if done != 0 {
                    break;
                }
            }
            std::thread::sleep(LOOK);
        }
        // The tier may have been opened anew meanwhile, with another index.
        let current = self.disk_for_call_until(interrupt)?;
        let map = current.as_ref().map_or(&disk.map, |current| &current.map);
        for (key, epoch) in values {
            if map.probe(self.namespace, key)?.is_some() {
                continue;
            }
            match self.look(self.client.view(), key)? {
                Look::Ready((_, found)) if found == *epoch => return Ok(Some(key)),
                // Another one has its place.
                Look::Ready(_) | Look::Writing(..) => {}
                Look::Missing => {
                    let text = format!("{} was evicted or removed before it was written to disk", show(key));
                    return Err(Error::new(NMC_ERR_STALE, text));
                }
            }
        }
        Ok(None)
    }
}
