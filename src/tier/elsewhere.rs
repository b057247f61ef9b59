//! What a process that does not own the tier can do with all of it, by itself: go through what is on disk. It reads the lists of the
//! buckets and their records, believes what the index leads to, and tells the owner of what is wrong, as a read does.

use super::config::{Scanned, Verified};
use super::io::Buffer;
use super::reader::{Live, Reader};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND};
use crate::layout::disk::Space;
use crate::layout::store::MAX_NAMESPACES;
use crate::store::Store;
use crate::store::disk::{DiskAccess, DiskEntry};
use std::any::Any;
use std::time::Duration;

/// For a call of the owner: as long as the store lets calls wait.
const ALL: Duration = Duration::MAX;

#[cold]
pub fn no_tier() -> Error {
    Error::new(NMC_ERR_NOT_FOUND, "the store has no tier: the process of its master opens it first")
}

fn reader_of(disk: &DiskAccess) -> Result<&Reader> {
    (&*disk.reader as &dyn Any).downcast_ref().ok_or_else(no_tier)
}

/// See [`super::Tier::verify`]; `total` is how many values there may be. `look` has the owner look at a value that is not right here, and gives
/// whether it has ended.
pub fn verify(
    store: &Store,
    total: u64,
    look: &dyn Fn(&DiskEntry) -> Result<bool>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(Verified, Option<Error>)> {
    let disk = store.disk_access()?.ok_or_else(no_tier)?;
    let (map, reader) = (&*disk.map, reader_of(&disk)?);
    let (mut found, mut why, mut done, mut goes_on) = (Verified::default(), None, 0, true);
    let mut scratch = Buffer::new(1 << 20)?;
    let mut lost: Vec<(u64, Error)> = Vec::new();
    // What is not right while its entry stands is the owner's to judge. What it keeps was not readable here.
    let mut judge = |found: &mut Verified, entry: &DiskEntry, error: Error| {
        let damaged = [NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND].contains(&error.status);
        let ended = if damaged { look(entry) } else { Ok(false) };
        match ended {
            Ok(true) => found.corrupt += 1,
            _ if !map.is_still(entry) => {}
            ended => {
                found.unreadable += 1;
                why.get_or_insert_with(|| store.judge_list(&disk, ended.err().unwrap_or(error)));
            }
        }
    };
    let mut each = |live: &Live<'_>| {
        let checked = reader.check(live, &mut scratch);
        done += 1;
        match checked {
            // It ended while it was read: what was read is nobody's.
            _ if !map.is_still(&live.entry) => {}
            Ok(()) => {
                found.objects += 1;
                found.bytes += live.entry.entry.bytes;
            }
            Err(error) => judge(&mut found, &live.entry, error),
        }
        goes_on = progress(done, total.max(done));
        Ok(goes_on)
    };
    reader.each(map, &mut each, &mut |bucket, error| memory::push(&mut lost, (bucket, error)))?;
    for index in 0..if lost.is_empty() { 0 } else { map.view().capacity() } {
        let Some((word, entry, put)) = map.view().live(index) else { continue };
        if !goes_on {
            break;
        }
        if let Some((bucket, error)) = lost.iter().find(|(bucket, _)| *bucket == entry.spot.bucket) {
            done += 1;
            goes_on = progress(done, total.max(done));
            let error = error.clone().context(format!("the list of bucket {bucket}"));
            judge(&mut found, &DiskEntry { index, word, entry, put }, error);
        }
    }
    Ok((found, why))
}

/// See [`super::Tier::scan`].
pub fn scan(store: &Store, each: &mut dyn FnMut(&Scanned<'_>) -> bool) -> Result<()> {
    // Of namespaces that nobody has opened since the tier was, the store knows no names before.
    store.adopt_disk(ALL)?;
    let disk = store.disk_access()?.ok_or_else(no_tier)?;
    let (map, mut why) = (&*disk.map, None);
    let name_of = |space: Space| {
        let mut ids = 0..u32::try_from(MAX_NAMESPACES).unwrap_or(0);
        ids.find(|id| map.view().space(*id) == Some(space)).and_then(|id| store.namespace_name(id))
    };
    let mut names: Vec<(Space, Option<Vec<u8>>)> = Vec::new();
    let mut one = |live: &Live<'_>| {
        let at = match names.iter().position(|(space, _)| *space == live.space) {
            Some(at) => at,
            None => {
                memory::push(&mut names, (live.space, name_of(live.space)))?;
                names.len() - 1
            }
        };
        let Some(namespace) = names.get(at).and_then(|(_, name)| name.as_deref()) else { return Ok(true) };
        let found = live.entry.entry;
        let spot = (found.spot.bucket, found.spot.block);
        Ok(each(&Scanned { namespace, key: live.key, bytes: found.bytes, epoch: found.epoch, spot }))
    };
    reader_of(&disk)?.each(map, &mut one, &mut |bucket, error| {
        why.get_or_insert_with(|| error.context(format!("the list of bucket {bucket}")));
        Ok(())
    })?;
    why.map_or(Ok(()), |error| Err(store.judge_list(&disk, error)))
}
