//! Puts that wait for the disk: where the tier writes through, a value is safe from a power loss when its put returns. The owner
//! writes what many callers wait for into one bucket, and syncs once for all of them.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_IO, NMC_ERR_STALE};
use crate::store::client::{Interrupt, Store};
use crate::store::disk::DiskAccess;
use crate::store::types::{Look, show};
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
    pub(in crate::store) fn wait_for_disk(&self, values: &[(&[u8], u64)], interrupt: &Interrupt<'_>) -> Result<()> {
        let mut first = Ok(());
        self.wait_for_disk_each(values, interrupt, |_, became| {
            if first.is_ok() {
                first = became;
            }
        });
        first
    }

    /// The same, and `became` hears by number what became of each.
    pub(super) fn wait_for_disk_each(
        &self,
        values: &[(&[u8], u64)],
        interrupt: &Interrupt<'_>,
        mut became: impl FnMut(usize, Result<()>),
    ) {
        if values.is_empty() {
            return;
        }
        let disk = match self.disk_to_wait_for(interrupt) {
            Ok(Some(disk)) => disk,
            refused => {
                let of_all = refused.map(|_| ());
                return (0..values.len()).for_each(|number| became(number, of_all.clone()));
            }
        };
        for (at, part) in values.chunks(TOGETHER).enumerate() {
            let mut tell = |number: usize, of_it| became(at * TOGETHER + number, of_it);
            if let Err(error) = self.wait_for_some(&disk, part, interrupt, &mut tell) {
                (0..part.len()).for_each(|number| tell(number, Err(error.clone())));
            }
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

    /// Whether a value of this put is on disk. Fails if it will not be: with STALE if it was removed or evicted meanwhile.
    pub fn is_written(&self, key: &[u8], put: u64, ticket: u64) -> Result<bool> {
        let is_there = || Ok::<_, Error>(self.entry_of(key)?.is_some_and(|found| found.put == put));
        if is_there()? {
            return Ok(true);
        }
        let [done, ..] = match self.call_disk(CALL_DONE, [ticket, 0], &[]) {
            Ok(done) => done,
            // What failed may be others that were written with it.
            Err(_) if is_there()? => return Ok(true),
            Err(error) => return Err(error),
        };
        // It may have come between the two looks.
        if done == 0 || is_there()? {
            return Ok(done != 0);
        }
        if self.epoch_in_memory(key, put)?.is_some() {
            return Err(unwritten(key));
        }
        // Or memory was left for the disk behind that.
        if is_there()? { Ok(true) } else { Err(gone(key)) }
    }

    /// Fails for all, and tells nothing then.
    #[cold]
    fn wait_for_some(
        &self,
        disk: &DiskAccess,
        values: &[(&[u8], u64)],
        interrupt: &Interrupt<'_>,
        became: &mut impl FnMut(usize, Result<()>),
    ) -> Result<()> {
        let keys: Vec<&[u8]> = memory::collect(values.iter().map(|(key, _)| *key))?;
        let mut each: Vec<Result<()>> = memory::with_capacity(values.len())?;
        let view = self.client.view();
        let mut pins: Vec<u32> = memory::with_capacity(values.len())?;
        // What is pinned is evicted last. If one goes all the same, or there is no slot for it, that is told below.
        pins.extend(values.iter().filter_map(|(key, _)| match self.pin_to_read(view, key) {
            Ok(Look::Ready(pin)) => Some(pin.slot),
            _ => None,
        }));
        let mut looked = Ok(());
        for _ in 0..TIMES {
            let waited = self.wait_while_pinned(disk, &keys, interrupt);
            each.clear();
            looked = self.look_what_became(disk, values, &waited, interrupt, &mut each);
            if waited.is_err() || looked.is_err() || !each.iter().any(is_in_memory) {
                break;
            }
        }
        pins.into_iter().for_each(|slot| self.release_pin(view, slot));
        looked?;
        each.into_iter().enumerate().for_each(|(number, of_it)| became(number, of_it));
        Ok(())
    }

    /// Asks the owner for these values, and waits until it is done, or all are on disk.
    fn wait_while_pinned(&self, disk: &DiskAccess, keys: &[&[u8]], interrupt: &Interrupt<'_>) -> Result<()> {
        let [ticket, ..] = self.call_disk_until(CALL_THROUGH, [self.namespace.into(), 0], keys, interrupt)?;
        let mut looks = 0u32;
        let is_there = |key: &[u8]| Ok::<_, Error>(disk.map.probe(self.namespace, key)?.is_some());
        loop {
            if keys.iter().try_fold(true, |all, key| Ok::<_, Error>(all && is_there(key)?))? {
                return Ok(());
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                interrupt.check()?;
                let [done, ..] = self.call_disk_until(CALL_DONE, [ticket, 0], &[], interrupt)?;
                if done != 0 {
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Looks at each value: others may have failed where it was stored. What is in memory alone has failed as the wait for all has.
    fn look_what_became(
        &self,
        disk: &DiskAccess,
        values: &[(&[u8], u64)],
        waited: &Result<()>,
        interrupt: &Interrupt<'_>,
        each: &mut Vec<Result<()>>,
    ) -> Result<()> {
        // The tier may have been opened anew meanwhile, with another index.
        let current = if waited.is_ok() { self.disk_for_call_until(interrupt)? } else { None };
        let map = current.as_ref().map_or(&disk.map, |current| &current.map);
        for (key, epoch) in values {
            let is_there = map.probe(self.namespace, key)?.is_some();
            let of_it = match (is_there, self.look(self.client.view(), key)?) {
                (true, _) => Ok(()),
                (_, Look::Ready((_, found))) if found == *epoch => match waited {
                    Ok(()) => Err(unwritten(key)),
                    Err(error) => Err(error.clone()),
                },
                // Another one has its place.
                (_, Look::Ready(_) | Look::Writing(..)) => Ok(()),
                (_, Look::Missing) => Err(gone(key)),
            };
            each.push(of_it);
        }
        Ok(())
    }
}

fn unwritten(key: &[u8]) -> Error {
    Error::new(NMC_ERR_IO, format!("{} is in memory, but was not written to disk: see the owner's log", show(key)))
}

fn gone(key: &[u8]) -> Error {
    Error::new(NMC_ERR_STALE, format!("{} was evicted or removed before it was written to disk", show(key)))
}

/// Whether a value was found in memory alone after the owner was done.
fn is_in_memory(became: &Result<()>) -> bool {
    became.as_ref().is_err_and(|error| error.status == NMC_ERR_IO)
}
