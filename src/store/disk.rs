//! The index of the disk below a store, mapped; and how a client comes to it. The store's header names the index that counts:
//! a client that has another one, or none, gets it from the master; one that has it asks nobody. A client of another process has
//! its own thread ask, so that no read waits for the master for long.

use super::backing::{DiskEntry, DiskReader};
use super::sys;
use super::watch::Announcer;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_INTERNAL};
use crate::layout::disk::{Busy, Fingerprint, Heat, Layout, View, fingerprint};
use crate::mem::{MappedDisk, Slab};
use crate::sync::disk_entry;
use parking_lot::{Condvar, Mutex};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// The slab that leads to values on disk.
pub struct DiskMap {
    mapped: MappedDisk,
    id: u64,
    tier: u64,
    entries: u64,
    secret: [u8; 32],
}

impl DiskMap {
    /// A new one for a tier, empty, with room for `entries` values.
    pub fn create(id: u64, tier: u64, entries: u64, secret: &[u8; 32], deadline: &Deadline) -> Result<Self> {
        let layout = layout(entries)?;
        let slab = Slab::create(c"nanomc store disk", layout.bytes as u64, false, deadline)?;
        let heat = Slab::create(c"nanomc store heat", Heat::bytes(entries), false, deadline)?;
        let mapped = MappedDisk::new(&layout, entries, slab, heat).ok_or_else(too_small)?;
        mapped.view().header().fill(id, entries, secret);
        Ok(Self { mapped, id, tier, entries, secret: *secret })
    }

    /// That of another process.
    pub fn open(id: u64, entries: u64, slab: OwnedFd, heat: OwnedFd) -> Result<Self> {
        let layout = layout(entries)?;
        let slab = Slab::open(slab, layout.bytes as u64, false)?;
        let heat = Slab::open(heat, Heat::bytes(entries), true)?;
        let mapped = MappedDisk::new(&layout, entries, slab, heat).ok_or_else(too_small)?;
        if !mapped.view().header().is(id, entries) {
            crate::bail!(NMC_ERR_PROTOCOL, "the memory that came is not the index of this store's disk");
        }
        let secret = mapped.view().header().secret();
        Ok(Self { mapped, id, tier: 0, entries, secret })
    }

    /// Name of the tier's directory; 0 where it is only read.
    #[must_use]
    pub fn tier(&self) -> u64 {
        self.tier
    }

    /// Its name, as the store's header has it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Room for so many values.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.mapped.slab().bytes() + self.mapped.heat_slab().bytes()) as u64
    }

    /// What fingerprints are made with.
    #[must_use]
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Descriptors for a client: the index, which it reads, and the heat, which it writes.
    pub fn descriptors(&self) -> Result<[OwnedFd; 2]> {
        let heat = self.mapped.heat_slab().as_fd().try_clone_to_owned();
        let heat = heat.map_err(|cause| Error::os("dup", &cause))?;
        Ok([self.mapped.slab().read_only_fd()?, heat])
    }

    /// How often values are read.
    #[must_use]
    pub fn heat(&self) -> &Heat<'_> {
        self.mapped.heat()
    }

    /// The value of an entry was read, by a client of this rank. The owner finds those that are read often, and brings them back
    /// into memory: nobody is told, and nobody waits.
    pub fn count_read(&self, entry: &DiskEntry, rank: u32) {
        self.touch(entry);
        let after = self.view().header().promote_after.load(Relaxed);
        if after != 0 {
            self.heat().hit(entry.index, rank, after);
        }
    }

    /// The value of an entry was used, though not read: its bucket counts as read now.
    pub fn touch(&self, entry: &DiskEntry) {
        self.heat().warm(entry.entry.spot.bucket, heat_now());
    }

    /// What is in it.
    #[must_use]
    pub fn view(&self) -> &View<'_> {
        self.mapped.view()
    }

    /// What stands for a key; `None` if nothing of its namespace was ever on disk.
    #[must_use]
    pub fn fingerprint(&self, namespace: u32, key: &[u8]) -> Option<Fingerprint> {
        Some(fingerprint(&self.secret, self.view().space(namespace)?, key))
    }

    /// The entry of a key, if the disk has its value.
    pub fn probe(&self, namespace: u32, key: &[u8]) -> Result<Option<DiskEntry>> {
        let Some(wanted) = self.fingerprint(namespace, key) else { return Ok(None) };
        match self.view().find(wanted) {
            Ok(found) => {
                Ok(found.map(|(index, word, entry)| DiskEntry { index, word, entry, put: self.view().put(index) }))
            }
            Err(Busy) => Err(Error::new(NMC_ERR_BUSY, "the index of the disk was rebuilt again and again")),
        }
    }

    /// Whether an entry is what it was: everything that was read since then belongs to it.
    #[must_use]
    pub fn is_still(&self, entry: &DiskEntry) -> bool {
        self.view().entry(entry.index).is_some_and(|words| disk_entry::is_still(words, entry.word))
    }
}

/// The time, as stamps of buckets have it: in 64 ms, for some years before it begins again.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "only distances count")]
pub fn heat_now() -> u32 {
    (sys::coarse_ms() >> 6) as u32
}

fn layout(entries: u64) -> Result<Layout> {
    match Layout::new(entries) {
        Some(layout) => Ok(layout),
        None => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "{entries} objects on disk: between 1 and {} are possible",
            crate::layout::disk::MAX_ENTRIES
        ),
    }
}

#[cold]
fn too_small() -> Error {
    Error::new(NMC_ERR_INTERNAL, "the slab of the disk's index is smaller than its layout")
}

/// The disk of a store, for one who reads it.
#[derive(Clone)]
pub struct DiskAccess {
    /// The index.
    pub map: Arc<DiskMap>,
    /// The files.
    pub reader: Arc<dyn DiskReader>,
}

/// What a client has of it, which changes when the tier is opened anew.
#[derive(Default)]
pub struct DiskSeat {
    held: Mutex<Held>,
    /// The client has another one, or has been refused it.
    changed: Condvar,
    /// Whether it has one, for those who do not want to wait.
    taken: AtomicBool,
    heard: Mutex<Heard>,
}

/// How far the program has heard what happens on disk, see [`super::told`].
#[derive(Default)]
struct Heard {
    /// Handles of the program to the disk.
    handles: usize,
    /// The disk of which it has taken events, and values of which it has heard.
    disk: u64,
    until: u64,
    announcer: Announcer,
    announced: bool,
}

impl Heard {
    fn until(&self, disk: u64) -> u64 {
        if self.disk == disk { self.until } else { 0 }
    }
}

#[derive(Default)]
struct Held {
    access: Option<DiskAccess>,
    /// Why the client has not got the disk with this name: reads do not wait for it again.
    refused: Option<(u64, Error)>,
}

impl Held {
    fn get(&self, id: u64) -> Option<&DiskAccess> {
        self.access.as_ref().filter(|access| access.map.id() == id)
    }
}

impl DiskSeat {
    /// The disk with this name, if the client has it.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<DiskAccess> {
        self.held.lock().get(id).cloned()
    }

    /// Looks at the disk with this name, if the client has it, and takes nothing of it along.
    pub fn look<R>(&self, id: u64, look: impl FnOnce(&DiskAccess) -> R) -> Option<R> {
        self.held.lock().get(id).map(look)
    }

    /// From now on the client has this one.
    pub fn set(&self, access: DiskAccess) {
        // Outside of the lock: unmapping takes a while.
        let former = std::mem::replace(&mut *self.held.lock(), Held { access: Some(access), refused: None });
        self.taken.store(true, Relaxed);
        self.changed.notify_all();
        drop(former);
    }

    /// The tier was closed.
    pub fn clear(&self) {
        self.taken.store(false, Relaxed);
        let former = std::mem::take(&mut *self.held.lock());
        drop(former);
    }

    /// The disk with this name cannot be had for now.
    pub fn refuse(&self, id: u64, why: Error) {
        let mut held = self.held.lock();
        // Another thread may have got it meanwhile.
        if held.get(id).is_none() {
            held.refused = Some((id, why));
        }
        drop(held);
        self.changed.notify_all();
    }

    /// Why the disk with this name cannot be had, if that is known.
    #[must_use]
    pub fn refusal(&self, id: u64) -> Option<Error> {
        let held = self.held.lock();
        held.refused.as_ref().filter(|(of, _)| *of == id).map(|(_, why)| why.clone())
    }

    /// Sleeps until the client may have the disk with this name or be refused it, for `time` at most.
    pub fn wait(&self, id: u64, time: Duration) {
        let mut held = self.held.lock();
        if held.get(id).is_none() {
            self.changed.wait_for(&mut held, time);
        }
    }

    /// Whether it has one.
    #[inline]
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.taken.load(Relaxed)
    }

    /// The program has one more handle to the disk, or one less.
    pub fn listen(&self, more: bool, announcer: Announcer) {
        let mut heard = self.heard.lock();
        heard.handles = if more { heard.handles + 1 } else { heard.handles.saturating_sub(1) };
        if heard.handles == 0 {
            heard.announced = false;
            announcer.announce(false);
        }
        heard.announcer = announcer;
    }

    /// Values of the disk with this name of which the program has heard.
    #[must_use]
    pub fn heard(&self, disk: u64) -> u64 {
        self.heard.lock().until(disk)
    }

    /// It has heard of those from `since` to `next`; false if another thread has heard of them before.
    #[must_use]
    pub fn hear(&self, disk: u64, since: u64, next: u64) -> bool {
        let mut heard = self.heard.lock();
        if heard.until(disk) != since {
            return false;
        }
        (heard.disk, heard.until) = (disk, next);
        true
    }

    /// In a process that does not own the disk: makes the descriptor readable if there are events that the program has not taken.
    pub fn announce(&self) {
        let told = |access: &DiskAccess| (access.map.id(), access.map.view().header().told.load(Acquire));
        let told = self.held.lock().access.as_ref().map(told);
        let mut heard = self.heard.lock();
        let waits = heard.handles > 0 && told.is_some_and(|(disk, told)| told > heard.until(disk));
        if waits || heard.announced {
            heard.announcer.announce(waits);
        }
        heard.announced = waits;
    }

    /// The name of the one that it has; 0 for none.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.held.lock().access.as_ref().map_or(0, |access| access.map.id())
    }
}
