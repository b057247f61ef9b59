//! What is in a directory when its owner begins: reads the head and the journal, looks at the list of every bucket, and puts aside
//! what cannot be used. Nothing that was promised is overlooked, nothing that is over is found, and nothing is touched that is not
//! the tier's. And what is there for one who only reads.

use super::backend::{self, DATA_NAME, Found, Storage};
use super::config::{Backend, Config, Torn};
use super::format::{
    self, BLOCK, Entry as Note, Head, Item, SUPER_NAME, Space, journal_name, journal_number, journal_temporary_number,
};
use super::io::{Disk, Listed, create_temporary};
use super::journal::{self, Journal, State};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_IO};
use crate::layout::disk::{Entry, Spot};
use crate::store::disk::OnDisk;
use std::collections::HashMap;
use std::sync::Arc;

/// Threads that read the lists of buckets.
const SCANNERS: usize = 8;

/// What the first look at a directory gave.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Records that may live, newest bucket first.
    pub found: Vec<OnDisk>,
    /// Names and spaces.
    pub spaces: Vec<(Space, Vec<u8>)>,
    /// The highest epoch of all records, dead or alive.
    pub last_epoch: u64,
    /// How far the drop log of a cluster was applied.
    pub position: Option<(u64, u64)>,
    /// Buckets.
    pub buckets: u64,
    /// Records that are dead.
    pub dead: u64,
    /// Buckets whose lists are damaged, or could not be read, now or before.
    pub torn: u64,
    /// Blocks of such buckets that are still there.
    pub aside_blocks: u64,
    /// Files that are not the tier's.
    pub foreign: u64,
}

/// A bucket that was found.
pub struct FoundBucket {
    /// Its number.
    pub id: u64,
    /// Blocks that it takes.
    pub blocks: u64,
    /// Records that may live.
    pub live: usize,
    /// Those that are dead.
    pub dead: Vec<u64>,
}

/// A directory that was looked at, before anything is written there but its journal.
pub struct Opened {
    /// Its head.
    pub head: Head,
    /// Its journal, which was written anew.
    pub journal: Journal,
    /// Its backend.
    pub storage: Box<dyn Storage>,
    /// The buckets that count, by number.
    pub buckets: Vec<FoundBucket>,
    /// The highest number of all buckets that are there, whether they count or not.
    pub last_bucket: u64,
    /// What was found.
    pub recovered: Recovered,
    /// There was no head: what is there was made by this.
    pub made: bool,
}

/// Names of the files in a directory.
fn names_of(listed: &[Listed]) -> Result<Vec<String>> {
    memory::collect(listed.iter().filter(|file| file.regular).map(|file| file.name.clone()))
}

/// What was begun and never got its name, of what all backends have.
fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp") == Some(SUPER_NAME) || journal_temporary_number(name).is_some()
}

/// What is left for the backend.
fn others(listed: Vec<Listed>) -> Vec<Listed> {
    let common = |file: &Listed| {
        let name = &*file.name;
        file.regular
            && (name == SUPER_NAME || name == format::LOCK_NAME || journal_number(name).is_some() || is_temporary(name))
    };
    listed.into_iter().filter(|file| !common(file)).collect()
}

/// What a directory has besides its head and its journals, as its backend sees it.
pub fn find(storage: &dyn Storage, listed: Vec<Listed>, state: &State) -> Result<Found> {
    storage.find(&others(listed), state)
}

/// The same for one who is not its owner, and has looked at nothing yet.
pub fn find_in(storage: &dyn Storage, disk: &dyn Disk) -> Result<Found> {
    let listed = disk.list()?;
    let mut state = State::default();
    if storage.is_in_journal() {
        state = journal::read_latest(disk, read_head(disk)?.tier_id, &names_of(&listed)?)?.1;
    }
    find(storage, listed, &state)
}

/// Reads the head of a directory.
pub fn read_head(disk: &dyn Disk) -> Result<Head> {
    let file = disk.open_buffered(SUPER_NAME, false)?;
    let mut block = [0; BLOCK];
    if file.bytes()? != BLOCK as u64 {
        crate::bail!(NMC_ERR_CORRUPT, "{SUPER_NAME} has {} bytes instead of {BLOCK}", file.bytes()?);
    }
    file.read(&mut block, 0)?;
    Head::decode(&block)
}

fn write_head(disk: &dyn Disk, head: &Head) -> Result<()> {
    let temporary = format!("{SUPER_NAME}.tmp");
    let file = create_temporary(disk, &temporary, BLOCK as u64)?;
    file.write(&head.encode(), 0)?;
    file.datasync()?;
    disk.rename(&temporary, SUPER_NAME)?;
    disk.sync()
}

/// The backend of a directory with this head.
pub fn backend_of(head: &Head) -> Result<Backend> {
    match Backend::from_number(head.backend) {
        Some(backend) => Ok(backend),
        None => crate::bail!(NMC_ERR_VERSION, "this library does not know backend {} of the directory", head.backend),
    }
}

/// Opens a directory, or makes it, with a head that `made` gives.
pub fn open(
    disk: &Arc<dyn Disk>,
    config: &Config,
    made: &impl Fn() -> Result<Head>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Opened> {
    let listed = disk.list()?;
    let names = names_of(&listed)?;
    let storage = backend::storage(config.backend, disk);
    let (head, mut journal, found) = if names.iter().any(|name| name == SUPER_NAME) {
        let head = read_head(&**disk)?;
        let backend = backend_of(&head)?;
        if backend != config.backend {
            let (is, asked) = (backend.name(), config.backend.name());
            crate::bail!(NMC_ERR_MISMATCH, "the directory has the backend {is}, and {asked} was asked for");
        }
        if !names.iter().filter_map(journal_number).any(|number| number > 0) {
            // Whoever made the directory may have failed to make the name of its head last.
            write_head(&**disk, &head)?;
        }
        let latest = journal::read_latest(&**disk, head.tier_id, &names)?;
        let found = find(&*storage, listed, &latest.1)?;
        let journal = Journal::resume(disk, head.tier_id, &names, latest, &found.buckets)?;
        reach("tier.resumed");
        (head, journal, found)
    } else {
        refuse_others(&listed, config.backend)?;
        let found = refuse_values(disk, listed, config.backend)?;
        // Whatever journal is there is of one that was being made.
        for name in names.iter().filter(|name| journal_number(name).is_some()) {
            disk.unlink(name)?;
        }
        let head = Head { backend: config.backend.number(), ..made()? };
        let journal = Journal::create(disk, head.tier_id)?;
        write_head(&**disk, &head).inspect_err(|_| unmake(&**disk))?;
        (head, journal, found)
    };
    // They may have been in the way of a journal or a head.
    for name in names.iter().filter(|name| is_temporary(name)) {
        backend::take_away(&**disk, name)?;
    }
    found.leftovers.iter().try_for_each(|leftover| storage.clean(leftover))?;
    for name in &found.foreign {
        log::emit(log::WARN, || {
            format!("tier: {}: {name} is not the tier's and stays as it is", config.directory.display())
        });
    }
    let last_bucket = found.last;
    let (buckets, mut recovered) = scan(&*storage, &head, &mut journal, config, &found.buckets, progress)?;
    reach("tier.scanned");
    recovered.foreign = found.foreign.len() as u64;
    recovered.aside_blocks += found.aside_blocks;
    if recovered.aside_blocks > 0 {
        log::emit(log::WARN, || {
            let (directory, bytes) = (config.directory.display(), recovered.aside_blocks * BLOCK as u64);
            format!("tier: {directory}: damaged buckets that are still there take {bytes} bytes of its capacity")
        });
    }
    let made = !names.iter().any(|name| name == SUPER_NAME);
    Ok(Opened { head, journal, storage, buckets, last_bucket, recovered, made })
}

/// Takes away what was made of a directory that could not be made to the end. The head goes when it is certain that there is no file
/// for values, and the journal when there is no head: values without a head, and a head without a journal, are a directory that is
/// damaged. What stays is an empty one.
pub fn unmake(disk: &dyn Disk) {
    let temporary = format!("{SUPER_NAME}.tmp");
    let away = |names: &[&str]| names.iter().try_for_each(|name| backend::take_away(disk, name));
    let _ = away(&[DATA_NAME])
        .and_then(|()| disk.sync())
        .and_then(|()| away(&[&temporary, SUPER_NAME]))
        .and_then(|()| disk.sync())
        .and_then(|()| away(&[&journal_name(0)]))
        .and_then(|()| disk.sync());
}

/// A directory without a head must not have values, of whatever backend. Gives what else is there.
fn refuse_values(disk: &Arc<dyn Disk>, listed: Vec<Listed>, asked: Backend) -> Result<Found> {
    let listed = others(listed);
    let mut found = Found::default();
    for backend in Backend::ALL {
        let other = backend::storage(backend, disk).find(&listed, &State::default())?;
        if !other.buckets.is_empty() || listed.iter().any(|file| file.regular && file.name == DATA_NAME) {
            crate::bail!(NMC_ERR_CORRUPT, "the directory has values, but no {SUPER_NAME}");
        }
        if backend == asked {
            found = other;
        }
    }
    Ok(found)
}

/// Nothing but a file must have a name that a directory which is made needs.
fn refuse_others(listed: &[Listed], backend: Backend) -> Result<()> {
    let needed = |name: &str| {
        let made = name == SUPER_NAME || journal_number(name).is_some();
        made || is_temporary(name) || backend == Backend::Offset && name == DATA_NAME
    };
    match listed.iter().find(|file| !file.regular && needed(&file.name)) {
        Some(other) => crate::bail!(
            NMC_ERR_PERMISSION,
            "{} in the directory of a tier is no regular file: take it away; nothing was changed",
            other.name
        ),
        None => Ok(()),
    }
}

/// Deletes everything that is the tier's, its head last. Nothing, if there could be no new one, since something else has its name.
pub fn reset(disk: &Arc<dyn Disk>, backend: Backend) -> Result<()> {
    let listed = disk.list()?;
    refuse_others(&listed, backend)?;
    for name in names_of(&listed)? {
        if is_temporary(&name) || journal_number(&name).is_some() || name == DATA_NAME {
            disk.unlink(&name)?;
        }
    }
    let listed = others(listed);
    for backend in Backend::ALL {
        let storage = backend::storage(backend, disk);
        let found = storage.find(&listed, &State::default())?;
        found.buckets.iter().try_for_each(|bucket| backend::gone_is_fine(storage.take_away(*bucket)).map(drop))?;
        found.leftovers.iter().chain(&found.aside).try_for_each(|other| storage.clean(other))?;
    }
    disk.sync()?;
    backend::take_away(&**disk, SUPER_NAME)?;
    disk.sync()
}

/// What the look at one bucket gave.
enum Look {
    Good(Vec<(OnDisk, Space)>, u64),
    /// Its list is damaged.
    Torn(Error),
    /// Its list cannot be read, now.
    Unreadable(Error),
}

fn look_at(storage: &dyn Storage, head: &Head, id: u64) -> Result<Look> {
    let read = || -> Result<(Vec<(OnDisk, Space)>, u64)> {
        let (tail, list) = storage.list(id)?;
        if tail.tier_id != head.tier_id {
            crate::bail!(NMC_ERR_CORRUPT, "bucket {id} says that it is of tier {:016x}", tail.tier_id);
        }
        let mut found = memory::with_capacity(tail.count as usize)?;
        for item in tail.items(&list)? {
            let Item { block, space, fingerprint, epoch, store_id, value_bytes, put, .. } = item?;
            let spot = Spot { bucket: id, block };
            let entry = Entry { epoch, fingerprint, bytes: value_bytes, spot, space: space.number };
            found.push((OnDisk { entry, store_id, put }, space));
        }
        Ok((found, storage.blocks(id)?))
    };
    match read() {
        Ok((found, blocks)) => Ok(Look::Good(found, blocks)),
        Err(error) if error.status == NMC_ERR_CORRUPT => Ok(Look::Torn(error)),
        Err(error) if error.status == NMC_ERR_IO => Ok(Look::Unreadable(error)),
        Err(error) => Err(error),
    }
}

/// Looks at these buckets, by several threads: each waits for the disk twice.
fn look_at_all(storage: &dyn Storage, head: &Head, buckets: &[u64]) -> Vec<Result<Look>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = buckets
            .chunks(buckets.len().div_ceil(SCANNERS))
            .map(|ids| {
                let run = move || ids.iter().map(|id| look_at(storage, head, *id)).collect::<Vec<_>>();
                (ids.len(), std::thread::Builder::new().spawn_scoped(scope, run))
            })
            .collect();
        let mut looks = Vec::new();
        for (n, thread) in threads {
            let lost = || Error::new(NMC_ERR_IO, "a thread that reads buckets ended early");
            match thread.map_err(|cause| Error::os("clone", &cause)).map(|thread| thread.join()) {
                Ok(Ok(found)) => looks.extend(found),
                Ok(Err(_)) => looks.extend((0..n).map(|_| Err(lost()))),
                Err(error) => looks.extend((0..n).map(|_| Err(error.clone()))),
            }
        }
        looks
    })
}

/// Looks at all buckets of a directory.
fn scan(
    storage: &dyn Storage,
    head: &Head,
    journal: &mut Journal,
    config: &Config,
    buckets: &[u64],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Vec<FoundBucket>, Recovered)> {
    let state = journal.state();
    let mut recovered = Recovered { spaces: state.names()?, position: state.position, ..Recovered::default() };
    let mut ids = memory::with_capacity(buckets.len())?;
    for id in buckets {
        if state.gone.binary_search(id).is_ok() {
            backend::gone_is_fine(storage.take_away(*id))?;
        } else if state.lost.binary_search(id).is_ok() {
            recovered.torn += 1;
            // What cannot be read has a size that nobody knows.
            recovered.aside_blocks += storage.blocks(*id).unwrap_or(0);
        } else {
            ids.push(*id);
        }
    }
    if recovered.torn > 0 {
        log::emit(log::WARN, || {
            let (lost, directory) = (recovered.torn, config.directory.display());
            format!("tier: {directory}: {lost} buckets could not be read before, and are left alone")
        });
    }
    let mut current: HashMap<u32, u32> = HashMap::new();
    memory::reserve_map(&mut current, state.spaces.len())?;
    current.extend(state.spaces.iter().map(|(space, _)| (space.number, space.generation)));
    let (mut scanned, mut all) = (memory::with_capacity(ids.len())?, memory::with_capacity(ids.len())?);
    let (mut damaged, total, mut done) = (Vec::new(), ids.len() as u64, 0);
    for part in ids.chunks(SCANNERS * 4) {
        for (id, look) in part.iter().zip(look_at_all(storage, head, part)) {
            let (found, blocks) = match look? {
                Look::Good(found, blocks) => (found, blocks),
                Look::Torn(error) => {
                    memory::push(&mut damaged, (*id, error, true))?;
                    continue;
                }
                Look::Unreadable(error) => {
                    memory::push(&mut damaged, (*id, error, false))?;
                    continue;
                }
            };
            let mut live = memory::with_capacity(found.len())?;
            let mut dead = Vec::new();
            for (record, space) in found {
                recovered.last_epoch = recovered.last_epoch.max(record.entry.epoch);
                let block = record.entry.spot.block;
                if state.is_dead(*id, block) || current.get(&space.number) != Some(&space.generation) {
                    recovered.dead += 1;
                    memory::push(&mut dead, block)?;
                } else {
                    live.push(record);
                }
            }
            scanned.push(FoundBucket { id: *id, blocks, live: live.len(), dead });
            all.push(live);
        }
        done += part.len() as u64;
        progress(done, total);
    }
    recovered.torn += damaged.len() as u64;
    let stays = damaged.iter().filter(|(_, _, torn)| !torn || config.torn == Torn::MoveAside);
    recovered.aside_blocks += stays.map(|(id, ..)| storage.blocks(*id).unwrap_or(0)).sum::<u64>();
    set_aside(storage, journal, config, damaged)?;
    recovered.buckets = scanned.len() as u64;
    recovered.found = memory::with_capacity(all.iter().map(Vec::len).sum())?;
    // The newest first: if there is no room for all, these stay.
    all.into_iter().rev().for_each(|found| recovered.found.extend(found));
    Ok((scanned, recovered))
}

/// Buckets without a list never count again: after the tier went on without them, what is in them may have been removed or replaced,
/// and nobody knows. What is damaged is renamed or deleted. What cannot be read stays as it is, since the disk may be read by
/// other means; the journal says that it is not to be looked at.
fn set_aside(
    storage: &dyn Storage,
    journal: &mut Journal,
    config: &Config,
    damaged: Vec<(u64, Error, bool)>,
) -> Result<()> {
    let mut notes = Vec::new();
    for (bucket, error, torn) in damaged {
        let what = if torn { "is damaged" } else { "cannot be read; it stays as it is, and its values are not found" };
        log::emit(log::WARN, || format!("tier: {}: bucket {bucket} {what}: {error}", config.directory.display()));
        let delete = config.torn == Torn::Delete;
        if !torn || !storage.set_aside(bucket, delete)? {
            let note = if torn && delete { Note::Gone { bucket } } else { Note::Lost { bucket } };
            memory::push(&mut notes, note)?;
        }
    }
    if notes.is_empty() {
        return Ok(());
    }
    journal.append(&mut notes)?;
    journal.sync()
}
