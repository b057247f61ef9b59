//! The simulated disk as the tests hand it to a directory: before every operation that changes something, and in the middle of
//! every write, there is a moment at which the machine may stop. For controls it does some operations wrong.

use super::ledger::{Moments, TIER};
use crate::base::error::Result;
use crate::tier::format::{Entry, JOURNAL_RECORD, bucket_id, bucket_temporary_id, encode_entry};
use crate::tier::io::sim::SimDisk;
use crate::tier::io::{Disk, File, Listed};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A mistake that the tests must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// Buckets get their names without a datasync.
    NoDatasync,
    /// Names are never made to last.
    NoDirectorySync,
    /// Whoever waits for a sync hears of it before it happens: entries are there before what they lead to.
    EarlyEntries,
    /// A sync that failed is called again.
    RepeatedSync,
    /// What is added to a journal is not made to last.
    NoJournalSync,
    /// A mark is for a key, whatever value it has, not for a place.
    MarksByKey,
    /// GONE is forgotten before the name is away for good.
    GoneEarly,
    /// The journal does not say which numbers of buckets were used.
    NumbersReused,
    /// Namespaces have the numbers on disk that they have in the store.
    StoreNumbers,
}

/// What is done later than the directory believes.
enum Late {
    Datasync(Arc<dyn File>),
    Sync,
    Unlink(String),
}

struct Shared {
    sim: SimDisk,
    moments: Arc<Moments>,
    mistake: Option<Mistake>,
    late: Mutex<Vec<Late>>,
    /// Bytes of buckets that were given back.
    punched: Mutex<BTreeMap<String, u64>>,
}

/// See the module.
#[derive(Clone)]
pub struct Watched(Arc<Shared>);

struct WatchedFile {
    shared: Arc<Shared>,
    file: Arc<dyn File>,
    name: String,
    is_bucket: bool,
    synced: AtomicBool,
}

impl Shared {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Something is about to change.
    fn moment(&self) {
        self.moments.come(&self.sim);
        if self.makes(Mistake::EarlyEntries) {
            self.catch_up();
        }
    }

    fn catch_up(&self) {
        for late in std::mem::take(&mut *self.late.lock()) {
            let _ = match late {
                Late::Datasync(file) => file.datasync(),
                Late::Sync => self.sim.sync(),
                Late::Unlink(name) => self.sim.unlink(&name),
            };
        }
    }

    fn later(&self, what: Late) -> Result<()> {
        self.late.lock().push(what);
        Ok(())
    }

    /// A sync, as often as a mistaken caller would try.
    fn sync(&self, sync: impl Fn() -> Result<()>) -> Result<()> {
        match sync() {
            Err(_) if self.makes(Mistake::RepeatedSync) => sync(),
            done => done,
        }
    }
}

impl Watched {
    /// This disk, with a moment before each change.
    pub fn new(sim: &SimDisk, moments: &Arc<Moments>, mistake: Option<Mistake>) -> Self {
        let (sim, moments) = (sim.clone(), Arc::clone(moments));
        Self(Arc::new(Shared { sim, moments, mistake, late: Mutex::default(), punched: Mutex::default() }))
    }

    /// The disk below.
    pub fn sim(&self) -> &SimDisk {
        &self.0.sim
    }

    /// Who keeps the moments.
    pub fn moments(&self) -> &Arc<Moments> {
        &self.0.moments
    }

    /// The mistake that is made.
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.0.makes(mistake)
    }

    /// Whether any is.
    pub fn is_mistaken(&self) -> bool {
        self.0.mistake.is_some()
    }

    fn file(&self, name: &str, file: Box<dyn File>) -> Box<dyn File> {
        let is_bucket = bucket_temporary_id(name).or(bucket_id(name)).is_some();
        let (shared, file) = (Arc::clone(&self.0), Arc::from(file));
        Box::new(WatchedFile { shared, file, name: name.into(), is_bucket, synced: AtomicBool::new(false) })
    }

    /// The directory is opened: what was given back before is not known any more.
    pub fn opened(&self) {
        self.0.punched.lock().clear();
    }

    /// Bytes that buckets take, without those that were given back.
    pub fn bucket_bytes(&self) -> u64 {
        let (list, punched) = (self.0.sim.kill().list().unwrap(), self.0.punched.lock());
        let buckets = list.iter().filter(|file| bucket_id(&file.name).is_some());
        buckets.map(|file| file.bytes - punched.get(&file.name).copied().unwrap_or(0)).sum()
    }
}

impl Disk for Watched {
    fn list(&self) -> Result<Vec<Listed>> {
        self.0.sim.list()
    }

    fn create(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.0.moment();
        Ok(self.file(name, self.0.sim.create(name, bytes)?))
    }

    fn create_buffered(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.create(name, bytes)
    }

    fn open(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        Ok(self.file(name, self.0.sim.open(name, write)?))
    }

    fn open_buffered(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        self.open(name, write)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.moment();
        self.0.sim.rename(from, to)
    }

    fn unlink(&self, name: &str) -> Result<()> {
        self.0.moment();
        if self.0.makes(Mistake::GoneEarly) && bucket_id(name).is_some() {
            return self.0.later(Late::Unlink(name.into()));
        }
        self.0.sim.unlink(name)
    }

    fn sync(&self) -> Result<()> {
        self.0.moment();
        match self.0.mistake {
            Some(Mistake::NoDirectorySync) => Ok(()),
            Some(Mistake::EarlyEntries) => self.0.later(Late::Sync),
            _ => {
                self.0.sync(|| self.0.sim.sync())?;
                self.0.catch_up();
                Ok(())
            }
        }
    }
}

impl WatchedFile {
    /// The bytes that are written instead of these.
    fn mistaken(&self, from: &[u8]) -> Vec<u8> {
        let mut bytes = from.to_vec();
        if self.shared.makes(Mistake::NumbersReused) && !self.is_bucket {
            for record in
                bytes.chunks_mut(JOURNAL_RECORD).filter(|record| record.len() == JOURNAL_RECORD && record[4] == 6)
            {
                let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
                let without = encode_entry(number(8), number(16), TIER, &Entry::High { bucket: 0 });
                record.copy_from_slice(&without);
            }
        }
        bytes
    }
}

impl File for WatchedFile {
    fn bytes(&self) -> Result<u64> {
        self.file.bytes()
    }

    fn read(&self, to: &mut [u8], offset: u64) -> Result<()> {
        self.file.read(to, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        self.shared.moment();
        let bytes = self.mistaken(from);
        let half = bytes.len() / 2;
        self.file.write(&bytes[..half], offset)?;
        self.shared.moment();
        self.file.write(&bytes[half..], offset + half as u64)
    }

    fn datasync(&self) -> Result<()> {
        self.shared.moment();
        match self.shared.mistake {
            Some(Mistake::NoDatasync) if self.is_bucket => Ok(()),
            // When it gets its name, it lasts.
            Some(Mistake::NoJournalSync) if !self.is_bucket && self.synced.swap(true, Relaxed) => Ok(()),
            Some(Mistake::EarlyEntries) if self.is_bucket => self.shared.later(Late::Datasync(Arc::clone(&self.file))),
            _ => self.shared.sync(|| self.file.datasync()),
        }
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.shared.moment();
        let punched = self.file.punch(offset, bytes)?;
        *self.shared.punched.lock().entry(self.name.clone()).or_default() += bytes;
        Ok(punched)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.shared.moment();
        self.file.truncate(bytes)
    }
}
