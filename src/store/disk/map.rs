//! The index of the disk below a store, mapped.

use super::reader::DiskEntry;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_INTERNAL};
use crate::layout::disk::{Busy, Entry, Fingerprint, Heat, Layout, View, fingerprint};
use crate::mem::{MappedDisk, Slab};
use crate::store::sys;
use crate::sync::disk_entry;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

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

    /// What the entries that live say. Entries are used in the order of their numbers: behind one that never was there is nothing, and
    /// no memory yet.
    pub fn live(&self) -> impl Iterator<Item = Entry> {
        let words = (0..self.view().capacity()).map_while(|index| self.view().entry(index));
        let used = words.take_while(|words| words[0].load(Relaxed) != 0);
        used.filter_map(disk_entry::read).map(Entry::from_words)
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
