//! A small master: what keys stand for, what is being written, and the marks that follow, in the order in which the store's
//! master makes them. It writes into the ledger what it was promised.

mod moves;

use super::Promise::{Counted, Found as IsFound, NumbersOnce, RightBytes};
use super::Violation;
use super::disk::{Mistake, Watched};
use super::ledger::{Name, TIER, Version, value_of};
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_CORRUPT;
use crate::layout::disk::{Space, Spot};
use crate::store::disk::{Mark, SpaceName, Stored, ToWrite};
use crate::store::types::Retain;
use crate::tier::backend::{self, Storage};
use crate::tier::config::{Backend, Config};
use crate::tier::directory::{Directory, Source};
use crate::tier::format::{BLOCK, GRANULE, Head, Header, header_bytes};
use crate::tier::io::Disk;
use crate::tier::io::sim::SimDisk;
use crate::tier::journal;
use crate::tier::recovery::Recovered;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most steps of tidying in a row.
const TIDY: usize = 16;

/// What happens while a bucket is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After its objects were chosen, before they have places.
    Chosen,
    /// When they have places, before the first byte is written.
    Assigned,
    /// When the bucket is safe, before there are entries.
    Written,
}

/// What is done to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A put, or a replace if the key is there.
    Set(Name),
    Remove(Name),
    /// Everything of a namespace.
    Flush(u8),
    /// Writes what is in memory only: of all keys, or of those with this number.
    Write(Option<u8>),
    /// The same, and something else meanwhile.
    WriteAnd(When, Meanwhile),
    /// What is in memory leaves it.
    Evict,
    /// The oldest bucket leaves the disk to make room.
    GiveUp,
    /// The same, but only so many of its entries could be ended for now.
    Condemn(usize),
    /// A value that only the disk has comes back into memory.
    Promote(Name),
    /// The same, and something else when it was read and is not shown yet.
    PromoteAnd(Name, Meanwhile),
    Sync,
    /// Sweeps the index, and gives space back until there is none to give.
    Tidy,
    /// Ends the tier and opens it again; memory survives.
    Close,
    /// The same for a store that begins anew.
    Restart,
}

/// See [`Op::WriteAnd`] and [`Op::PromoteAnd`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    Set(Name),
    Remove(Name),
    Flush(u8),
    /// Only the thread that writes does that: before it has begun to.
    GiveUp,
}

/// What a key stands for.
#[derive(Debug, Clone, Copy)]
struct Object {
    version: Version,
    /// A value that came back from the disk has another one than it was put with.
    epoch: u64,
    index: u32,
    memory: bool,
    entry: Option<Spot>,
    /// For [`Mistake::CleanFlag`].
    written: bool,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    index: u32,
    name: Name,
    spot: Option<Spot>,
    gone: bool,
}

/// A record that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub version: Version,
    epoch: u64,
    pub spot: Spot,
}

/// See the module.
pub struct Master {
    disk: Watched,
    config: Config,
    directory: Arc<Directory>,
    store_id: u64,
    next_epoch: u64,
    next_index: u32,
    objects: BTreeMap<Name, Object>,
    holds: Vec<Hold>,
    spaces: BTreeMap<u8, Space>,
    /// Entries of generations that are over.
    former: Vec<Spot>,
    /// Keys that had a mark, for [`Mistake::MarksByKey`].
    marked: BTreeSet<Name>,
}

fn space_name(namespace: u8) -> [u8; 1] {
    [b'a' + namespace]
}

pub fn key_of(name: Name) -> Vec<u8> {
    format!("key {}", name.1).into_bytes()
}

/// What a record says of the put that its value came from.
pub fn put_of((store, epoch): Version) -> u64 {
    store << 32 | epoch
}

pub fn version_of(put: u64) -> Version {
    (put >> 32, put & 0xffff_ffff)
}

/// The head of a directory that is made now.
pub fn head() -> Result<Head> {
    Ok(Head { tier_id: TIER, secret: [7; 32], backend: 0, created: 1 })
}

/// A disk whose records are read.
pub struct Records {
    disk: Arc<dyn Disk>,
    storage: Box<dyn Storage>,
}

impl Records {
    pub fn new(disk: &SimDisk, backend: Backend) -> Self {
        let disk = Arc::new(disk.clone()) as Arc<dyn Disk>;
        Self { storage: backend::storage(backend, &disk), disk }
    }
}

/// Reads a record as whoever finds it does: key, version and value, if all sums are right.
pub fn read_record(records: &Records, spot: Spot) -> Result<(Vec<u8>, Version, Vec<u8>)> {
    let (file, block) = records.storage.locate(spot);
    let file = records.storage.place(file).open(&*records.disk)?;
    let at = block * BLOCK as u64;
    let mut bytes = vec![0; BLOCK];
    file.read(&mut bytes, at)?;
    let no_record = || Error::new(NMC_ERR_CORRUPT, "no record begins here");
    bytes.resize(header_bytes(&bytes).ok_or_else(no_record)?, 0);
    file.read(&mut bytes, at)?;
    let header = Header::decode(&bytes)?;
    let record = header.record;
    let mut value = vec![0; usize::try_from(record.value_bytes).unwrap()];
    file.read(&mut value, at + header.shape().value_at)?;
    for (granule, bytes) in (0..).zip(value.chunks(GRANULE)) {
        if header.sum(granule) != Some(crc::crc32c(bytes)) {
            return Err(Error::new(NMC_ERR_CORRUPT, "a sum is wrong"));
        }
    }
    Ok((record.key.to_vec(), version_of(record.put), value))
}

/// Reads what lies at a place, which must be this version of a key in this namespace; gives the key.
fn check_record(
    records: &Records,
    spot: Spot,
    namespace: u8,
    version: Version,
) -> std::result::Result<Name, Violation> {
    let wrong = |what: String| Violation::new(RightBytes, format!("{version:?} at {spot:?}: {what}"));
    let (key, other, value) = read_record(records, spot).map_err(|error| wrong(error.to_string()))?;
    let name = (namespace, key.last().map_or(0, |digit| digit - b'0'));
    if key != key_of(name) || other != version || value != value_of(name, version) {
        let key = key.escape_ascii();
        return Err(wrong(format!("it is {other:?} of {key}, and not what namespace {namespace} has of that")));
    }
    Ok(name)
}

/// What a recovery found: for each key the record that counts, and the places of the others.
pub fn look(
    records: &Records,
    recovered: &Recovered,
    mistake: Option<Mistake>,
) -> std::result::Result<(BTreeMap<Name, Found>, Vec<Spot>), Violation> {
    let namespace_of = |number: u32| {
        if mistake == Some(Mistake::StoreNumbers) {
            // In the new store they are opened in another order.
            return u8::try_from(1 - number).unwrap();
        }
        let (_, name) = recovered.spaces.iter().find(|(space, _)| space.number == number).unwrap();
        name[0] - b'a'
    };
    let (mut current, mut losers) = (BTreeMap::<Name, Found>::new(), Vec::new());
    for record in &recovered.found {
        let (epoch, spot) = (record.entry.epoch, record.entry.spot);
        let version = version_of(record.put);
        let name = check_record(records, spot, namespace_of(record.entry.space), version)?;
        match current.get(&name) {
            Some(other) if other.epoch >= epoch => losers.push(spot),
            Some(_) | None => {
                if let Some(loser) = current.insert(name, Found { version, epoch, spot }) {
                    losers.push(loser.spot);
                }
            }
        }
    }
    Ok((current, losers))
}

/// Bytes of one file that buckets have, as the journal says.
pub fn extent_bytes(disk: &SimDisk) -> u64 {
    let names: Vec<String> = disk.list().unwrap().into_iter().map(|file| file.name).collect();
    let (_, state) = journal::read_latest(disk, TIER, &names).unwrap();
    state.extents.iter().map(|extent| extent.blocks * BLOCK as u64).sum()
}

/// The values that were put.
pub struct Values;

impl Source for Values {
    fn read(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()> {
        // Now and then one cannot be read: it is not written.
        if item.epoch % 16 == 15 {
            return Err(Error::new(NMC_ERR_CORRUPT, "this one cannot be read"));
        }
        let value = value_of(name_of(item), version_of(item.put));
        let from = usize::try_from(offset).unwrap();
        to.copy_from_slice(&value[from..from + to.len()]);
        Ok(())
    }
}

fn name_of(item: &ToWrite) -> Name {
    (u8::try_from(item.namespace).unwrap(), item.key.last().unwrap() - b'0')
}

fn dead(spot: Spot, entered: bool) -> Mark {
    Mark::Dead { spot, entered }
}

impl Master {
    /// A store that begins anew, on what is in the directory.
    pub fn open(disk: &Watched, config: &Config) -> Result<Self> {
        let store_id = {
            let mut ledger = disk.moments().ledger.lock();
            ledger.store_ids += 1;
            ledger.store_ids
        };
        Self::attach(disk, config, store_id, 1, BTreeMap::new())
    }

    fn attach(
        disk: &Watched,
        config: &Config,
        store_id: u64,
        next_epoch: u64,
        memory: BTreeMap<Name, Object>,
    ) -> Result<Self> {
        let (directory, recovered) = Directory::open(Arc::new(disk.clone()), config, head, &mut |_, _| {})?;
        let mistake = Some(Mistake::StoreNumbers).filter(|mistake| disk.makes(*mistake));
        let records = Records::new(&disk.sim().kill(), config.backend);
        let (current, losers) = look(&records, &recovered, mistake).map_err(|violation| {
            disk.moments().is_wrong(violation);
            Error::new(NMC_ERR_CORRUPT, "nobody goes on from here")
        })?;
        directory.hasty.store(disk.makes(Mistake::Hasty), Relaxed);
        disk.opened();
        let mut marks: Vec<Mark> = losers.into_iter().map(|spot| dead(spot, true)).collect();
        let mut master = Self {
            disk: disk.clone(),
            config: config.clone(),
            directory: Arc::new(directory),
            store_id,
            next_epoch: next_epoch.max(recovered.last_epoch + 1),
            next_index: 0,
            objects: memory,
            holds: Vec::new(),
            spaces: BTreeMap::new(),
            former: Vec::new(),
            marked: BTreeSet::new(),
        };
        if !disk.makes(Mistake::StoreNumbers) {
            master.spaces = recovered.spaces.iter().map(|(space, name)| (name[0] - b'a', *space)).collect();
        }
        master.objects.values_mut().for_each(|object| object.entry = None);
        master.next_index = master.objects.values().map(|object| object.index + 1).max().unwrap_or(0);
        for (name, Found { version, epoch, spot }) in &current {
            match master.objects.get_mut(name) {
                Some(object) if object.version == *version => object.entry = Some(*spot),
                // What memory has counts.
                Some(_) => marks.push(dead(*spot, true)),
                None => {
                    let index = master.take_index();
                    let (entry, version, epoch) = (Some(*spot), *version, *epoch);
                    let object = Object { version, epoch, index, memory: false, entry, written: true };
                    master.objects.insert(*name, object);
                }
            }
        }
        {
            let mut ledger = disk.moments().ledger.lock();
            if recovered.torn > 0 {
                // A list could not be read: nobody finds what is in it, and it never comes back.
                ledger.there.clear();
            }
            if let Err(violation) = super::keeps(&current, &ledger, &ledger.over) {
                disk.moments().is_wrong(violation);
            }
            let objects = master.objects.iter().filter(|(_, object)| object.entry.is_some());
            ledger.there = objects.map(|(name, object)| (*name, object.version)).collect();
        }
        master.directory.note(&marks);
        let known: BTreeSet<u8> = master.objects.keys().map(|name| name.0).collect();
        for namespace in known {
            master.space_of(namespace)?;
        }
        master.sync()?;
        Ok(master)
    }

    fn take_index(&mut self) -> u32 {
        self.next_index += 1;
        self.next_index - 1
    }

    /// Why the directory is only read, if it is.
    pub fn trouble(&self) -> Option<Error> {
        self.directory.trouble()
    }

    /// Does it, if there is anything to do; gives whether there was. Failures of the disk are the ledger's affair.
    pub fn run(&mut self, op: Op) -> Result<bool> {
        match op {
            Op::Set(name) => self.set(name).map(|()| true),
            Op::Remove(name) => self.remove(name),
            Op::Flush(namespace) => self.flush(namespace),
            Op::Write(key) => self.write(key, None),
            Op::WriteAnd(when, meanwhile) => self.write(None, Some((when, meanwhile))),
            Op::Evict => Ok(self.evict()),
            Op::GiveUp => self.give_up(usize::MAX),
            Op::Condemn(entries) => self.give_up(entries),
            Op::Promote(name) => self.promote(name, None),
            Op::PromoteAnd(name, meanwhile) => self.promote(name, Some(meanwhile)),
            Op::Sync => self.sync().map(|()| true),
            Op::Tidy => self.tidy(),
            Op::Close | Op::Restart => self.close(op == Op::Close).map(|()| true),
        }
    }

    /// Notes marks and has them written; then these values are over.
    fn tell(&self, marks: &[Mark], ended: &[(Name, Version)], for_good: bool) -> Result<()> {
        self.directory.note(marks);
        self.directory.settle(!marks.is_empty())?;
        if marks.is_empty() && self.trouble().is_some() {
            // Whoever has no marks hears nothing of the trouble; a former value of the key may have had some that were lost.
            return Ok(());
        }
        let mut ledger = self.disk.moments().ledger.lock();
        ended.iter().for_each(|(name, version)| ledger.ended(*name, *version, for_good));
        Ok(())
    }

    /// What becomes of the records of an object that is no longer what its key stands for.
    fn end(&mut self, name: Name, object: &Object) -> Vec<Mark> {
        self.disk.moments().ledger.lock().there.remove(&name);
        let mut marks: Vec<Mark> = object.entry.iter().map(|spot| dead(*spot, true)).collect();
        marks.extend(self.end_hold(object.index));
        if !marks.is_empty() {
            self.marked.insert(name);
        }
        marks
    }

    fn end_hold(&mut self, index: u32) -> Option<Mark> {
        let hold = self.holds.iter_mut().find(|hold| hold.index == index && !hold.gone)?;
        hold.gone = true;
        hold.spot.map(|spot| dead(spot, false))
    }

    fn space_of(&mut self, namespace: u8) -> Result<Space> {
        if let Some(space) = self.spaces.get(&namespace) {
            return Ok(*space);
        }
        let number = (0..).find(|number| self.spaces.values().all(|space| space.number != *number)).unwrap();
        let space = Space { number, generation: 0 };
        self.spaces.insert(namespace, space);
        let name = SpaceName::new(&space_name(namespace)).unwrap();
        self.tell(&[Mark::Namespace(name, space)], &[], false)?;
        Ok(space)
    }

    fn set(&mut self, name: Name) -> Result<()> {
        let known = self.space_of(name.0);
        let version = (self.store_id, self.next_epoch);
        self.next_epoch += 1;
        let (index, epoch) = (self.take_index(), version.1);
        let object = Object { version, epoch, index, memory: true, entry: None, written: false };
        let former = self.objects.insert(name, object);
        let marks = former.map_or(Vec::new(), |former| self.end(name, &former));
        let ended: Vec<_> = former.map(|former| (name, former.version)).into_iter().collect();
        self.tell(&marks, &ended, self.config.durable_remove)?;
        known.map(|_| ())
    }

    fn remove(&mut self, name: Name) -> Result<bool> {
        let Some(object) = self.objects.remove(&name) else { return Ok(false) };
        let marks = self.end(name, &object);
        self.tell(&marks, &[(name, object.version)], self.config.durable_remove)?;
        Ok(true)
    }

    fn flush(&mut self, namespace: u8) -> Result<bool> {
        let Some(space) = self.spaces.get_mut(&namespace) else { return Ok(false) };
        space.generation += 1;
        let mut marks = vec![Mark::Generation(*space)];
        let last = (self.store_id, self.next_epoch - 1);
        let gone: Vec<(Name, Object)> = self.objects.extract_if(.., |name, _| name.0 == namespace).collect();
        for (name, object) in gone {
            self.disk.moments().ledger.lock().there.remove(&name);
            self.former.extend(object.entry);
            // The master comes to them sooner or later.
            if object.index.is_multiple_of(2) {
                marks.extend(self.end_hold(object.index));
            }
        }
        let ended: Vec<_> = (0..4).map(|key| ((namespace, key), last)).collect();
        self.tell(&marks, &ended, true)?;
        Ok(true)
    }

    fn sync(&mut self) -> Result<()> {
        let over = self.disk.moments().ledger.lock().over.clone();
        self.directory.sync()?;
        self.disk.moments().ledger.lock().synced(over);
        Ok(())
    }

    /// As the owner does with every beat.
    pub fn try_again(&self) {
        self.directory.try_again();
    }

    fn tidy(&mut self) -> Result<bool> {
        let swept: Vec<Mark> = std::mem::take(&mut self.former).into_iter().map(|spot| Mark::Over { spot }).collect();
        let mut worked = !swept.is_empty() || self.end_condemned();
        self.tell(&swept, &[], false)?;
        for _ in 0..TIDY {
            if !self.directory.tidy()? {
                break;
            }
            worked = true;
        }
        // Once more for files that were unlinked.
        self.directory.tidy()?;
        Ok(worked)
    }

    fn close(&mut self, memory: bool) -> Result<()> {
        // As the owner does when it ends. If it fails, the next one finds what is there.
        let _ = self.sync();
        let next = if memory {
            let memory = self.objects.iter().filter(|(_, object)| object.memory);
            let memory = memory.map(|(name, object)| (*name, *object)).collect();
            Self::attach(&self.disk, &self.config, self.store_id, self.next_epoch, memory)?
        } else {
            Self::open(&self.disk, &self.config)?
        };
        *self = next;
        Ok(())
    }

    // ---- writing -----------------------------------------------------------------------------------------------------

    fn next_to_write(&mut self, key: Option<u8>) -> Vec<ToWrite> {
        let mut items = Vec::new();
        for (name, object) in &self.objects {
            if !object.memory || self.is_clean(object) || key.is_some_and(|key| key != name.1) {
                continue;
            }
            self.holds.push(Hold { index: object.index, name: *name, spot: None, gone: false });
            items.push(ToWrite {
                index: object.index,
                epoch: object.epoch,
                namespace: name.0.into(),
                space: self.spaces[&name.0],
                key: key_of(*name),
                metadata: vec![name.1; 3],
                bytes: value_of(*name, object.version).len() as u64,
                rank: 0,
                class: (Retain::None, 0),
                put: put_of(object.version),
            });
        }
        items
    }

    fn assign(&mut self, places: &[(u32, Spot)]) -> Vec<bool> {
        let bucket = places[0].1.bucket;
        if !self.disk.moments().ledger.lock().numbers.insert(bucket) {
            let text = format!("bucket {bucket} is written a second time");
            self.disk.moments().is_wrong(Violation::new(NumbersOnce, text));
        }
        let mut wanted = Vec::new();
        for (index, spot) in places {
            let Some(at) = self.holds.iter().position(|hold| hold.index == *index) else {
                wanted.push(false);
                continue;
            };
            wanted.push(!self.holds[at].gone);
            if self.holds[at].gone {
                self.holds.swap_remove(at);
                continue;
            }
            self.holds[at].spot = Some(*spot);
            if self.disk.makes(Mistake::MarksByKey) && self.marked.contains(&self.holds[at].name) {
                self.directory.note(&[dead(*spot, false)]);
            }
        }
        wanted
    }

    fn do_meanwhile(&mut self, meanwhile: Meanwhile) {
        // If it fails, it was not promised.
        let _ = match meanwhile {
            Meanwhile::Set(name) => self.set(name).map(|()| true),
            Meanwhile::Remove(name) => self.remove(name),
            Meanwhile::Flush(namespace) => self.flush(namespace),
            Meanwhile::GiveUp => self.give_up(usize::MAX),
        };
    }

    fn write(&mut self, key: Option<u8>, mut meanwhile: Option<(When, Meanwhile)>) -> Result<bool> {
        let items = self.next_to_write(key);
        if items.is_empty() {
            return Ok(false);
        }
        let mut reach = |master: &mut Self, when: When| {
            if let Some((_, meanwhile)) = meanwhile.take_if(|(at, _)| *at == when) {
                master.do_meanwhile(meanwhile);
            }
        };
        reach(self, When::Chosen);
        let (directory, store_id) = (Arc::clone(&self.directory), self.store_id);
        let written = directory.write(&items, store_id, &Values, &mut |places| {
            let wanted = self.assign(places);
            reach(self, When::Assigned);
            Ok(wanted)
        });
        let stored = written.inspect_err(|_| self.holds.clear())?;
        for Stored { index, put, .. } in &stored {
            let mut objects = self.objects.iter();
            if let Some((name, object)) = objects.find(|(_, object)| object.index == *index) {
                self.disk.moments().ledger.lock().there.insert(*name, version_of(*put));
                assert_eq!(object.version, version_of(*put));
            }
        }
        reach(self, When::Written);
        let mut marks = Vec::new();
        for Stored { index, generation, entry, .. } in stored {
            let Some(at) = self.holds.iter().position(|hold| hold.index == index) else { continue };
            let hold = self.holds.swap_remove(at);
            if hold.gone {
                continue;
            }
            let known = self.spaces.get(&hold.name.0).is_some_and(|space| space.generation == generation);
            match self.objects.get_mut(&hold.name).filter(|object| known && object.index == index) {
                Some(object) => {
                    (object.entry, object.written) = (Some(entry.spot), true);
                    self.directory.entered(entry.spot.bucket);
                }
                None => marks.push(dead(entry.spot, false)),
            }
        }
        self.holds.clear();
        self.tell(&marks, &[], false)?;
        Ok(true)
    }

    // ---- looking -----------------------------------------------------------------------------------------------------

    /// Everything that has an entry can be read, and what was found wrong in passing.
    pub fn audit(&self) -> std::result::Result<(), Violation> {
        if let Some(wrong) = self.disk.moments().wrong() {
            return Err(wrong);
        }
        // Not on the disk itself, where a test may count operations.
        let records = Records::new(&self.disk.sim().kill(), self.config.backend);
        for (name, object) in &self.objects {
            if let Some(spot) = object.entry {
                let found = check_record(&records, spot, name.0, object.version)?;
                assert_eq!(found, *name);
            } else if !object.memory {
                return Err(Violation::new(
                    IsFound,
                    format!("{name:?} left memory since the disk has it, and it is not"),
                ));
            }
        }
        Ok(())
    }

    /// What the directory counts is there.
    pub fn audit_bytes(&self) -> std::result::Result<(), Violation> {
        let counted = self.directory.file_bytes();
        let there = match self.config.backend {
            Backend::Offset => {
                // What is being given up is not in the journal any more, and counts until it is.
                if self.disk.moments().ledger.lock().gone.iter().any(|bucket| self.directory.has(*bucket)) {
                    return Ok(());
                }
                extent_bytes(&self.disk.sim().kill())
            }
            _ => self.disk.bucket_bytes(),
        };
        if counted != there {
            return Err(Violation::new(Counted, format!("{counted} bytes are counted, {there} are there")));
        }
        Ok(())
    }
}
