//! What the agent of a node needs of its store beside what programs do: a client of its own, puts that a cluster has named,
//! objects by header or entry and epoch, and the place in the cluster's drop log. Everything that changes something asks the master.

use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND};
use crate::layout::store::{MAX_NAMESPACES, ON_DISK, ObjectHeader, PRIORITY_SHIFT, RETAIN_SHIFT};
use crate::store::client::{Client, Store};
use crate::store::copy::{Pieces, Slice};
use crate::store::disk::DiskEntry;
use crate::store::read::LOOKS;
use crate::store::types::{Location, Look, Opened, Pin, PutOptions, Retain, check_key, namespace_word, show};
use crate::store::watch::Described;
use crate::store::wire::Request;
use crate::store::write::keep_of;
use crate::sync::object;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What a record on disk says of the value that was read from it.
pub struct FromDisk {
    /// The put that it came from.
    pub put: u64,
    /// Bytes of the value.
    pub bytes: u64,
    /// Retain class and priority.
    pub class: (Retain, u32),
    /// What its writer said about it.
    pub metadata: Vec<u8>,
}

/// A value that was come to, wherever it was.
pub enum Reached {
    /// In memory, held.
    Held(Pin, Location),
    /// On disk, and read.
    Read(FromDisk),
}

impl Store {
    /// The same store through a client of its own, with pin slots of its own, for the agent of this process. It keeps this client
    /// open as long as it is. There is one at a time.
    pub fn for_agent(&self, limit: Duration) -> Result<Self> {
        Ok(Self::of(Client::of_agent(self, limit)?, 0))
    }

    /// Random name of the store.
    #[must_use]
    pub fn store_id(&self) -> u64 {
        self.client.map.store_id()
    }

    /// The namespace with this name, if there is one; the default one for the empty name. It is not made.
    #[must_use]
    pub fn find_namespace(&self, name: &[u8]) -> Option<u32> {
        if name.is_empty() {
            return Some(0);
        }
        let view = self.client.view();
        let is = |id: &u32| view.namespace(*id).is_some_and(|ns| ns.is_named(name));
        (1..u32::try_from(MAX_NAMESPACES).unwrap_or(0)).find(is)
    }

    /// The name of a namespace, which is empty for the default one; `None` if there is no such namespace.
    #[must_use]
    pub fn namespace_name(&self, id: u32) -> Option<Vec<u8>> {
        let name = self.client.view().namespace(id)?.name();
        (id == 0 || !name.is_empty()).then_some(name)
    }

    /// Opens a plan that has the name of a put which a cluster has given. BUSY if one with that name is open.
    pub fn open_clustered(
        &self,
        put: u64,
        key: &[u8],
        bytes: u64,
        options: &PutOptions<'_>,
    ) -> Result<(Opened, Location)> {
        if put == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "no put has the name 0");
        }
        if self.client.plans.get(put).is_some() {
            crate::bail!(NMC_ERR_BUSY, "put {put:x} is being written already");
        }
        self.open_put(put, key, bytes, options)
    }

    /// Commits a plan. When this returns the master has told of it: gives the number of the newest fact, which is that of this one or
    /// a later one. Does not wait for a disk, even where the tier writes through.
    pub fn commit_and_tell(&self, plan: &Opened) -> Result<u64> {
        self.commit_in_memory(plan, &self.interrupt())?;
        self.call(&Request::Notice(Some(plan.index))).map(|[newest, ..]| newest)
    }

    /// The key of an object that is planned or pinned.
    #[must_use]
    pub fn key_of(&self, index: u32) -> Vec<u8> {
        let view = self.client.view();
        view.object(index).map(|header| view.key_of(header)).unwrap_or_default()
    }

    /// Number of the namespace of an object that is planned or pinned.
    #[must_use]
    pub fn namespace_of(&self, index: u32) -> u32 {
        self.client.view().object(index).map_or(0, |header| header.namespace.load(Relaxed) & 0xff)
    }

    /// Has the master take note of everything that was published before this call. Gives the number of the newest fact.
    pub fn notice(&self) -> Result<u64> {
        self.call(&Request::Notice(None)).map(|[newest, ..]| newest)
    }

    /// A number that changes when somebody publishes something after this call.
    #[must_use]
    pub fn publications(&self) -> u32 {
        self.client.view().bells().published.listen()
    }

    /// Does what a master does when nobody calls, if it is in this process and has no thread for that.
    pub fn tend(&self) {
        self.client.tend();
    }

    /// Gives a plan up to which somebody may still write: its pages stay out of use until [`Store::give_up`]. Gives how many bytes
    /// they are. The plan is open until then, so that no master takes it for forgotten.
    pub fn doubt(&self, plan: &Opened) -> Result<u64> {
        self.check_plan(plan)?;
        self.call(&Request::Doubt(*plan)).map(|[bytes, ..]| bytes)
    }

    /// Gives a plan up of which nothing is under way; if it was published meanwhile, the object goes.
    pub fn give_up(&self, plan: &Opened) -> Result<()> {
        let abandoned = self.abandon(plan);
        self.drop_named(plan.index, plan.epoch).and(abandoned.map(drop))
    }

    /// Pins the object of this namespace with this header, epoch and key; `None` if it is not there.
    pub fn pin_named(&self, index: u32, epoch: u64, key: &[u8]) -> Result<Option<(Pin, Location)>> {
        check_key(key)?;
        self.client.check_counted()?;
        let view = self.client.view();
        let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { return Ok(None) };
        let slot = self.client.take_slot(view)?;
        let word = object::pin_word(index, epoch);
        let pinned = self
            .slot_word(view, slot)
            .is_some_and(|slot| object::pin(slot, word, &header.control, &words.published, epoch));
        // A flush that was before this call has changed the namespace's word.
        if !pinned || !view.key_is(header, key, namespace_word(view, self.namespace)) {
            self.release_pin(view, slot);
            return Ok(None);
        }
        let pin = Pin { index, slot, epoch, turn: self.client.slots.turn(slot) };
        let location = self.located(view, pin)?;
        self.stamp(view, index);
        Ok(Some((pin, location)))
    }

    /// The put that a pinned object came from.
    #[must_use]
    pub fn put_of(&self, pin: Pin) -> u64 {
        self.client.view().object(pin.index).map_or(0, |header| header.plan_id.load(Relaxed))
    }

    /// Retain class and priority of an object that is held.
    #[must_use]
    pub fn class_of(&self, pin: Pin) -> (Retain, u32) {
        let flags = self.client.view().object(pin.index).map_or(0, |header| header.flags.load(Relaxed));
        (Retain::from_code(flags >> RETAIN_SHIFT & 3).unwrap_or(Retain::None), flags >> PRIORITY_SHIFT & 3)
    }

    /// Drops the object with this header and epoch, if it is there, and what is on disk of it; or, with [`ON_DISK`], the entry of the
    /// disk with this epoch, and what is in memory of it. Readers that hold it finish.
    pub fn drop_named(&self, index: u32, epoch: u64) -> Result<()> {
        let header = self.client.view().object(index);
        if index & ON_DISK == 0 && !header.is_some_and(|header| object::still(&header.control, epoch)) {
            return Ok(());
        }
        gone(self.call(&Request::Drop(index, epoch)).map(|_| ()))
    }

    /// Drops what a key has, if it is there and came from this put, if one is named.
    pub fn drop_key(&self, key: &[u8], put: Option<u64>) -> Result<()> {
        check_key(key)?;
        let Some(put) = put else { return gone(self.remove(key)) };
        let interrupt = self.interrupt();
        for _ in 0..LOOKS {
            let before = self.moves_on_disk(&interrupt)?;
            self.drop_put(key, put)?;
            // Or it came into memory behind the look there, and left the disk before the other.
            if self.moves_on_disk(&interrupt)? == before {
                return Ok(());
            }
        }
        Err(Error::new(NMC_ERR_BUSY, format!("{} was moved again and again while it was to be dropped", show(key))))
    }

    fn drop_put(&self, key: &[u8], put: u64) -> Result<()> {
        if let Look::Ready((index, epoch)) | Look::Writing(index, epoch) = self.look(self.client.view(), key)? {
            let header = self.client.view().object(index);
            let of = |header: &ObjectHeader| header.plan_id.load(Relaxed) == put;
            // In this order: what has the epoch afterwards had it when the put was read.
            if header.is_some_and(|header| of(header) && object::still(&header.control, epoch)) {
                self.drop_named(index, epoch)?;
            }
        }
        // Also if memory has something: of what just comes from the disk it does not say yet which put it is of.
        match self.entry_of(key)? {
            Some(found) if found.put == put => self.drop_named(found.index | ON_DISK, found.entry.epoch),
            _ => Ok(()),
        }
    }

    /// The put that what a key has came from, as far as that is known by now.
    pub fn put_under(&self, key: &[u8]) -> Result<Option<u64>> {
        let (view, interrupt) = (self.client.view(), self.interrupt());
        for _ in 0..LOOKS {
            let before = self.moves_on_disk(&interrupt)?;
            if let Look::Ready((index, epoch)) = self.look(view, key)? {
                let header = view.object(index);
                // In this order, as above.
                let put = header.map(|header| (header, header.plan_id.load(Relaxed)));
                return Ok(put.filter(|(header, _)| object::still(&header.control, epoch)).map(|(_, put)| put));
            }
            let found = self.entry_of(key)?;
            if found.is_some() || self.moves_on_disk(&interrupt)? == before {
                return Ok(found.map(|found| found.put));
            }
        }
        Ok(None)
    }

    /// Drops an entry that a disk which is apart brought with it, unless memory had the same already. What came into memory from there since goes
    /// with it; what was written there since stays.
    pub fn drop_apart(&self, entry: u32, found: &Described) -> Result<()> {
        let view = self.client.view();
        let since = view.header().apart_since();
        if found.epoch >= since {
            return Ok(());
        }
        if self.epoch_in_memory(&found.key, found.put)?.is_some_and(|epoch| epoch < since) {
            return Ok(());
        }
        self.drop_named(entry | ON_DISK, found.epoch)
    }

    /// The epoch of what memory has of a key, if it came from this put.
    pub(super) fn epoch_in_memory(&self, key: &[u8], put: u64) -> Result<Option<u64>> {
        let view = self.client.view();
        let Look::Ready((index, epoch)) = self.look(view, key)? else { return Ok(None) };
        let of = |header: &ObjectHeader| header.plan_id.load(Relaxed) == put;
        let there = view.object(index).is_some_and(|header| of(header) && object::still(&header.control, epoch));
        Ok(there.then_some(epoch))
    }

    /// What the disk has of a key.
    pub(super) fn entry_of(&self, key: &[u8]) -> Result<Option<DiskEntry>> {
        check_key(key)?;
        let Some(disk) = self.disk()? else { return Ok(None) };
        // With the put of this very entry.
        Ok(disk.map.probe(self.namespace, key)?.filter(|found| disk.map.is_still(found)))
    }

    /// The same, if it is the entry with this epoch.
    fn entry_named(&self, entry: u32, epoch: u64, key: &[u8]) -> Result<Option<DiskEntry>> {
        Ok(self.entry_of(key)?.filter(|found| (found.index, found.entry.epoch) == (entry, epoch)))
    }

    /// Whether the entry of the disk with this epoch is that of a key.
    pub fn is_on_disk_as(&self, entry: u32, epoch: u64, key: &[u8]) -> Result<bool> {
        self.entry_named(entry, epoch, key).map(|found| found.is_some())
    }

    /// Pins what a key has. What is on disk alone comes into memory: as far as nothing has to go for it that only memory has, or like a put.
    pub fn pin_key(&self, key: &[u8], gently: bool) -> Result<Option<(Pin, Location)>> {
        if let Look::Ready(held) = self.pin(key)? {
            return Ok(Some(held));
        }
        if !self.is_on_disk(key)? {
            return Ok(None);
        }
        let mut came = Ok(false);
        match gently {
            true => self.promote_gently(&[key], self.rank(), |_, told| came = told),
            false => self.promote(&[key], self.rank(), |_, told| came = told),
        }
        gone(came.map(|_| ()))?;
        match self.pin(key)? {
            Look::Ready(held) => Ok(Some(held)),
            _ => Ok(None),
        }
    }

    /// Pins what memory has of a key. What is on the disk alone is read, whole and verified, into the slice that `room` gives for its size,
    /// and stays on the disk alone. `None` if it is nowhere.
    pub fn pin_or_read(&self, key: &[u8], mut room: impl FnMut(u64) -> Result<Slice>) -> Result<Option<Reached>> {
        check_key(key)?;
        let Some(disk) = self.disk()? else { return Ok(None) };
        let look = self.look_on_disk(disk, key, |found| {
            let Some((disk, entry)) = found else {
                return Ok(Some(match self.pin(key)? {
                    Look::Ready((pin, location)) => Look::Ready(Reached::Held(pin, location)),
                    Look::Writing(index, epoch) => Look::Writing(index, epoch),
                    Look::Missing => Look::Missing,
                }));
            };
            let bytes = entry.entry.bytes;
            let info = match disk.reader.infos(&disk.map, &[(*entry, key)])?.pop().unwrap_or(Ok(None)) {
                Ok(Some(info)) => info,
                Ok(None) => return Ok(None),
                Err(error) => return self.judge(disk, entry, bytes, Err(error)).map(|_| None),
            };
            let slice = [room(bytes)?];
            if !self.read_entry(disk, entry, key, 0, &Pieces::Slices(&slice))? {
                return Ok(None);
            }
            let keep = keep_of(&info);
            let class = (keep.retain, keep.priority);
            // Of this very entry, as the record has it that was read.
            Ok(Some(Look::Ready(Reached::Read(FromDisk { put: entry.put, bytes, class, metadata: info.metadata }))))
        })?;
        Ok(match look {
            Look::Ready(reached) => Some(reached),
            _ => None,
        })
    }

    /// What an entry of the disk says, if it lives and its namespace is one of this store. One whose key cannot be read ends: nobody
    /// could be told to drop it.
    pub fn described_on_disk(&self, entry: u32) -> Result<Option<Described>> {
        let Some(disk) = self.disk()? else { return Ok(None) };
        let view = disk.map.view();
        let Some((word, found, put)) = view.live(entry) else { return Ok(None) };
        let at = DiskEntry { index: entry, word, entry: found, put };
        let named = match disk.reader.key_of(&disk.map, &at) {
            Err(error) if error.status != NMC_ERR_CORRUPT => return Err(error),
            named => named,
        };
        let Ok(Some((key, space))) = named else {
            if disk.map.is_still(&at) {
                let why =
                    named.err().map_or_else(|| "it is not in the list of its bucket".into(), |error| error.message);
                log::emit(log::WARN, || format!("store: value {entry} on disk has no key, and is given up: {why}"));
                self.drop_named(entry | ON_DISK, found.epoch)?;
            }
            return Ok(None);
        };
        // Of a former generation nothing is there, though its entries end bit by bit.
        let namespace = (0..u32::try_from(MAX_NAMESPACES).unwrap_or(0)).find(|id| view.space(*id) == Some(space));
        let owner_rank = self.client.params().world_size;
        Ok(namespace.map(|namespace| Described {
            epoch: found.epoch,
            namespace,
            key,
            put,
            bytes: found.bytes,
            owner_rank,
        }))
    }

    /// Name of the disk below the store, another one whenever it is opened anew; 0 for none.
    #[must_use]
    pub fn disk_id(&self) -> u64 {
        self.client.view().header().disk.load(Relaxed)
    }

    /// How often the disk has come or gone. To be asked before its name.
    #[must_use]
    pub fn disk_changes(&self) -> u64 {
        self.client.view().header().disk_changes()
    }

    /// Name of the tier that the store has, or had last.
    #[must_use]
    pub fn tier_name(&self) -> u64 {
        self.client.view().header().tier.load(Relaxed)
    }

    /// Entries that the disk below the store has room for; 0 without one. Makes every namespace of which something is there.
    pub fn adopt_disk(&self, limit: Duration) -> Result<u32> {
        let deadline = Deadline::after(limit.min(self.client.call_limit));
        let Some(disk) = self.disk_within(deadline.left(), &self.interrupt())? else { return Ok(0) };
        self.call_soon(&Request::Adopt, deadline.left())?;
        Ok(disk.map.view().capacity())
    }

    /// Bytes of values on disk, and bytes that there may be; `None` without one.
    #[must_use]
    pub fn disk_usage(&self) -> Option<(u64, u64)> {
        let disk = self.disk().ok().flatten()?;
        let header = disk.map.view().header();
        Some((header.bytes_used.load(Relaxed), header.bytes_total.load(Relaxed)))
    }

    /// How far the drop log of the cluster was applied: term and number; `None` if the store never was in one.
    #[must_use]
    pub fn position(&self) -> Option<(u64, u64)> {
        self.client.view().header().position()
    }

    /// How far what is on disk was told of it, if the store was in the cluster without the disk meanwhile: it has what was removed since.
    #[must_use]
    pub fn apart(&self) -> Option<(u64, u64)> {
        self.client.view().header().apart()
    }

    /// Whether a disk that the store had is not there any more, and the cluster has not heard of that.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.client.view().header().has_left()
    }

    /// It was applied this far, to memory and to the disk that there is after so many changes; or with term 0 the store is as one that never was in a cluster. Known as
    /// long as the store lives, whoever dies. STALE if one has come or gone since.
    pub fn set_position(&self, position: (u64, u64), changes: u64) -> Result<()> {
        self.call(&Request::Position(position, changes)).map(|_| ())
    }

    /// Nothing new is stored on a rank any more, by whomever; or it is again. What is there stays.
    pub fn close_rank(&self, rank: u32, closed: bool) -> Result<()> {
        self.call(&Request::Close(rank, closed)).map(|_| ())
    }

    /// Objects that are being written to a rank.
    #[must_use]
    pub fn writing_on(&self, rank: u32) -> u64 {
        self.client.view().rank(rank).map_or(0, |counters| counters.writing_count.load(Relaxed))
    }

    /// Bytes of a rank's heap that are in use, and bytes that the store has there.
    #[must_use]
    pub fn heap_usage(&self, rank: u32) -> (u64, u64) {
        let counters = self.client.view().rank(rank);
        counters.map_or((0, 0), |c| (c.bytes_used.load(Relaxed), c.bytes_total.load(Relaxed)))
    }
}

/// What is not there need not go.
fn gone(dropped: Result<()>) -> Result<()> {
    match dropped {
        Err(error) if error.status == NMC_ERR_NOT_FOUND => Ok(()),
        other => other,
    }
}
