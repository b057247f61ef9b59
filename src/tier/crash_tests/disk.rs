//! The simulated disk as the tests hand it to a directory: before every operation that changes something, and in the middle of
//! every write, there is a moment at which the machine may stop. For controls it does some operations wrong.

use super::ledger::{Moments, TIER};
use crate::base::error::Result;
use crate::base::status::NMC_ERR_LIMIT;
use crate::tier::backend::DATA_NAME;
use crate::tier::format::{
    Entry, JOURNAL_RECORD, SUPER_NAME, bucket_id, encode_entry, journal_number, journal_temporary_number,
};
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
    /// Space is used again before GONE lasts.
    Hasty,
    /// Folders are not synced, nor is what they are in.
    NoFolderSync,
    /// The entries of a bucket that is given up end before anything says so.
    EntriesFirst,
    /// They end before that lasts.
    GoneUnsynced,
    /// Whether the disk has a value is noted when it is written, and not looked at in the index.
    CleanFlag,
    /// A value comes back into memory by an ordinary put.
    PromotedByPut,
}

/// What is done later than the directory believes.
enum Late {
    Datasync(Arc<dyn File>),
    Sync(Arc<dyn Disk>),
    Unlink(Arc<dyn Disk>, String),
}

struct Shared {
    sim: SimDisk,
    moments: Arc<Moments>,
    mistake: Option<Mistake>,
    late: Mutex<Vec<Late>>,
    /// Bytes of buckets that were given back.
    punched: Mutex<BTreeMap<String, u64>>,
    /// See [`Watched::put_off`].
    put_off: AtomicBool,
}

/// See the module.
#[derive(Clone)]
pub struct Watched {
    shared: Arc<Shared>,
    /// The directory, or a folder in it.
    at: Arc<dyn Disk>,
    is_folder: bool,
}

/// Whether a file has values, or tells where they are.
fn is_values(name: &str) -> bool {
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    name != SUPER_NAME && journal_number(name).or(journal_temporary_number(name)).is_none()
}

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
                Late::Sync(at) => at.sync(),
                Late::Unlink(at, name) => at.unlink(&name),
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
        let (at, sim, moments) = (Arc::new(sim.clone()), sim.clone(), Arc::clone(moments));
        let (late, punched, put_off) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let shared = Shared { sim, moments, mistake, late, punched, put_off };
        Self { shared: Arc::new(shared), at, is_folder: false }
    }

    /// The disk below.
    pub fn sim(&self) -> &SimDisk {
        &self.shared.sim
    }

    /// Who keeps the moments.
    pub fn moments(&self) -> &Arc<Moments> {
        &self.shared.moments
    }

    /// The mistake that is made.
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.shared.makes(mistake)
    }

    /// Whether any is.
    pub fn is_mistaken(&self) -> bool {
        self.shared.mistake.is_some()
    }

    /// Gives a bucket up. For [`Mistake::GoneUnsynced`] no file is synced for that.
    pub fn put_off(&self, condemn: impl FnOnce() -> Result<()>) -> Result<()> {
        self.shared.put_off.store(self.makes(Mistake::GoneUnsynced), Relaxed);
        let condemned = condemn();
        self.shared.put_off.store(false, Relaxed);
        condemned
    }

    fn file(&self, name: &str, file: Box<dyn File>) -> Box<dyn File> {
        let (shared, file) = (Arc::clone(&self.shared), Arc::from(file));
        let is_bucket = self.is_folder || is_values(name);
        Box::new(WatchedFile { shared, file, name: name.into(), is_bucket, synced: AtomicBool::new(false) })
    }

    fn folder_at(&self, at: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(Self { shared: Arc::clone(&self.shared), at, is_folder: true })
    }

    /// The directory is opened: what was given back before is not known any more.
    pub fn opened(&self) {
        self.shared.punched.lock().clear();
    }

    /// Bytes of a file that were given back.
    pub fn punched(&self, name: &str) -> u64 {
        self.shared.punched.lock().get(name).copied().unwrap_or(0)
    }

    /// Bytes that buckets take, without those that were given back.
    pub fn bucket_bytes(&self) -> u64 {
        let punched = self.shared.punched.lock();
        values(&self.shared.sim.kill()).map(|(name, bytes)| bytes - punched.get(&name).copied().unwrap_or(0)).sum()
    }
}

/// Files with values and with lists, and their bytes; of a folder, all files in it.
pub fn values(disk: &dyn Disk) -> impl Iterator<Item = (String, u64)> {
    let mut all = Vec::new();
    for file in disk.list().unwrap() {
        if file.folder {
            all.extend(values(&*disk.folder(&file.name).unwrap()).collect::<Vec<_>>());
        } else if is_values(&file.name) && file.name != DATA_NAME {
            all.push((file.name, file.bytes));
        }
    }
    all.into_iter()
}

impl Disk for Watched {
    fn list(&self) -> Result<Vec<Listed>> {
        self.at.list()
    }

    fn create(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.shared.moment();
        Ok(self.file(name, self.at.create(name, bytes)?))
    }

    fn create_buffered(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.create(name, bytes)
    }

    fn open(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        Ok(self.file(name, self.at.open(name, write)?))
    }

    fn open_buffered(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        self.open(name, write)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.shared.moment();
        self.at.rename(from, to)
    }

    fn unlink(&self, name: &str) -> Result<()> {
        self.shared.moment();
        if self.shared.makes(Mistake::GoneEarly) && !self.is_folder && bucket_id(name).is_some() {
            return self.shared.later(Late::Unlink(Arc::clone(&self.at), name.into()));
        }
        self.at.unlink(name)
    }

    fn sync(&self) -> Result<()> {
        self.shared.moment();
        match self.shared.mistake {
            Some(Mistake::NoDirectorySync) => Ok(()),
            Some(Mistake::NoFolderSync) if self.is_folder => Ok(()),
            Some(Mistake::EarlyEntries) => self.shared.later(Late::Sync(Arc::clone(&self.at))),
            _ => {
                self.shared.sync(|| self.at.sync())?;
                self.shared.catch_up();
                Ok(())
            }
        }
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Disk>> {
        Ok(self.folder_at(self.at.folder(name)?))
    }

    fn make_folder(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.shared.moment();
        Ok(self.folder_at(self.at.make_folder(name)?))
    }

    fn remove_folder(&self, name: &str) -> Result<()> {
        self.shared.moment();
        self.at.remove_folder(name)
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
        let rest = || self.file.write(&bytes[half..], offset + half as u64);
        // What must not be so long is refused before anything is written: half of it tells that it may be.
        rest().or_else(|error| if error.status == NMC_ERR_LIMIT { rest() } else { Err(error) })
    }

    fn datasync(&self) -> Result<()> {
        self.shared.moment();
        match self.shared.mistake {
            Some(Mistake::NoDatasync) if self.is_bucket => Ok(()),
            Some(Mistake::GoneUnsynced) if self.shared.put_off.load(Relaxed) => Ok(()),
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
