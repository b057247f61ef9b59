//! A disk in memory for tests, weaker than any file system: whatever was not made to last by the sync that it needs may be
//! lost at a power loss or stay, sector by sector and name by name. It fails where a test wants it to.
//!
//! What lasts: the contents and the size of a file by its `datasync`, names by the `sync` of the directory. A sync that fails
//! gives up what it was to write: reads go on showing it, later syncs succeed without it, and a power loss may take it.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod crash;
#[cfg(test)]
mod tests;
mod versions;

use super::{Disk, File, Listed, check_name, ended, error};
use crate::base::error::{Error, Result};
use crate::base::largest::Largest;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use versions::Versions;

pub use crate::base::random::Random;

/// What is written to a disk whole or not at all.
const SECTOR: usize = 512;

/// What goes wrong at an operation. One that the operation cannot suffer passes it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails; a write has written a part of it, a sync has given up what it was to write.
    Eio,
    /// A create or a write fails for want of space; a write has written a part of it.
    Enospc,
    /// A create fails for want of space; what has its space already can be written.
    Full,
    /// A sync fails and gives up what it was to write.
    FailedSync,
    /// Nothing can be opened: the process has no descriptor left. A folder is made all the same.
    Emfile,
    /// Nothing becomes longer, and nothing is written: files must not be so long.
    Efbig,
}

/// A simulated directory, or a folder in it. Clones are the same directory.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    folder: Folder,
}

/// The number of a folder: that of its file and one more, 0 for the directory itself. A folder that is made in another one has a
/// higher number.
type Folder = usize;

#[derive(Clone, Default)]
struct State {
    /// Every file there ever was, by number.
    files: Vec<Contents>,
    names: BTreeMap<(Folder, String), Versions<Option<usize>>>,
    operations: u64,
    failures: u64,
    /// What is to go wrong, and at which operation.
    faults: Vec<(u64, Fault)>,
    /// Whoever uses it is watched.
    largest: Option<Largest>,
}

type Sector = [u8; SECTOR];

#[derive(Clone)]
struct Contents {
    /// What lasts, up to where there was anything but zeros.
    lasting: Arc<Vec<u8>>,
    /// Sectors that were written since, or of which a failed sync left nobody knows what.
    sectors: BTreeMap<usize, Versions<Sector>>,
    bytes: Versions<u64>,
    is_folder: bool,
}

fn os(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

impl Contents {
    /// A file of `bytes` bytes, of which these are the first and zeros the rest.
    fn lasting(mut first: Vec<u8>, bytes: u64) -> Self {
        first.truncate(index(bytes));
        Self { lasting: Arc::new(first), sectors: BTreeMap::new(), bytes: Versions::new(bytes), is_folder: false }
    }

    fn lasting_sector(&self, number: usize) -> Sector {
        let mut sector = [0; SECTOR];
        let from = self.lasting.get(number * SECTOR..).unwrap_or_default();
        let there = from.len().min(SECTOR);
        sector[..there].copy_from_slice(&from[..there]);
        sector
    }

    fn sector(&self, number: usize) -> Sector {
        self.sectors.get(&number).map_or_else(|| self.lasting_sector(number), |versions| *versions.now())
    }

    /// Changes bytes `from..to` by `change`, which is given a part of them and where in the file that is.
    fn change(&mut self, from: usize, to: usize, change: impl Fn(&mut [u8], usize)) {
        for number in from / SECTOR..to.div_ceil(SECTOR) {
            let first = number * SECTOR;
            let (begin, end) = (from.max(first), to.min(first + SECTOR));
            let mut sector = self.sector(number);
            change(&mut sector[begin - first..end - first], begin);
            let lasting = self.lasting_sector(number);
            self.sectors.entry(number).or_insert_with(|| Versions::new(lasting)).set(sector);
        }
    }

    fn write(&mut self, from: &[u8], offset: u64) {
        let start = index(offset);
        self.change(start, start + from.len(), |part, at| part.copy_from_slice(&from[at - start..][..part.len()]));
        if !from.is_empty() && offset + from.len() as u64 > *self.bytes.now() {
            self.bytes.set(offset + from.len() as u64);
        }
    }

    /// Bytes up to where anything was ever written, which are kept.
    fn kept(&self) -> usize {
        self.sectors.last_key_value().map_or(0, |(last, _)| (last + 1) * SECTOR).max(self.lasting.len())
    }

    /// Zeros, which change nothing where there are no others.
    fn clear(&mut self, from: u64, to: u64) {
        let (from, to) = (index(from), index(to).min(self.kept()));
        if from < to {
            self.change(from, to, |part, _| part.fill(0));
        }
    }

    fn resize(&mut self, bytes: u64) {
        self.clear(bytes, u64::MAX);
        self.bytes.set(bytes);
    }

    fn read(&self, to: &mut [u8], offset: u64) {
        let (start, end) = (index(offset), index(offset) + to.len());
        to.fill(0);
        let there = self.lasting.get(start..).unwrap_or_default();
        let length = there.len().min(to.len());
        to[..length].copy_from_slice(&there[..length]);
        for (number, versions) in self.sectors.range(start / SECTOR..end.div_ceil(SECTOR)) {
            let first = number * SECTOR;
            let (begin, end) = (start.max(first), end.min(first + SECTOR));
            to[begin - start..end - start].copy_from_slice(&versions.now()[begin - first..end - first]);
        }
    }

    fn sync(&mut self) {
        self.bytes.sync();
        let lasting = Arc::make_mut(&mut self.lasting);
        let end = self.sectors.last_key_value().map_or(0, |(last, _)| (last + 1) * SECTOR);
        lasting.reserve_exact(end.saturating_sub(lasting.len()));
        self.sectors.retain(|number, versions| {
            versions.sync();
            if versions.is_certain() {
                let end = (number + 1) * SECTOR;
                lasting.resize(lasting.len().max(end), 0);
                lasting[end - SECTOR..end].copy_from_slice(versions.now());
            }
            !versions.is_certain()
        });
    }

    fn give_up(&mut self) {
        self.bytes.give_up();
        self.sectors.values_mut().for_each(Versions::give_up);
    }
}

impl State {
    /// What has a name in a folder: a file or another folder.
    fn any(&self, folder: Folder, name: &str) -> Option<usize> {
        self.names.get(&(folder, name.into())).and_then(|versions| *versions.now())
    }

    fn file(&self, folder: Folder, name: &str) -> Option<usize> {
        self.any(folder, name).filter(|file| !self.files[*file].is_folder)
    }

    fn set_name(&mut self, folder: Folder, name: &str, file: Option<usize>) {
        self.names.entry((folder, name.into())).or_insert_with(|| Versions::new(None)).set(file);
    }

    /// The error that an operation has to suffer if one of these faults was wanted for it.
    fn suffer(&mut self, fault: Option<Fault>, may: &[Fault]) -> Option<io::Error> {
        let fault = fault.filter(|fault| may.contains(fault))?;
        self.failures += 1;
        Some(os(match fault {
            Fault::Enospc | Fault::Full => libc::ENOSPC,
            Fault::Eio | Fault::FailedSync => libc::EIO,
            Fault::Emfile => libc::EMFILE,
            Fault::Efbig => libc::EFBIG,
        }))
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        Self::of(State::default())
    }

    fn of(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)), folder: 0 }
    }

    /// The operation after the next `n` suffers `fault`: 0 is the next one. May be called for several.
    pub fn fail_at(&self, n: u64, fault: Fault) {
        let mut state = self.state.lock();
        let at = state.operations + n;
        state.faults.push((at, fault));
    }

    /// From now on the largest request for memory is noted of all threads that do something with it.
    pub fn watch(&self, largest: Largest) {
        self.state.lock().largest = Some(largest);
    }

    /// Nothing goes wrong from now on.
    pub fn mend(&self) {
        self.state.lock().faults.clear();
    }

    /// Operations so far: calls on the directory and on its files, and one for every piece that is moved.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// How many of them failed because a test wanted it.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Bytes that this disk keeps in memory of the file of which it keeps most.
    #[must_use]
    pub fn most_kept(&self) -> usize {
        self.state.lock().files.iter().map(Contents::kept).max().unwrap_or(0)
    }

    /// What a killed process leaves: all of it, as the page cache survives. Files of this disk do not reach that one.
    #[must_use]
    pub fn kill(&self) -> Self {
        let state = self.state.lock().clone();
        Self::of(State { operations: 0, failures: 0, faults: Vec::new(), largest: None, ..state })
    }

    /// Begins an operation; gives what it is to suffer.
    fn begin(&self) -> (MutexGuard<'_, State>, Option<Fault>) {
        let mut state = self.state.lock();
        if let Some(largest) = state.largest {
            largest.watch_here();
        }
        let now = state.operations;
        state.operations += 1;
        let fault = state.faults.iter().position(|(at, _)| *at == now).map(|i| state.faults.swap_remove(i).1);
        (state, fault)
    }

    fn opened(&self, file: usize, write: bool, name: &str) -> Box<dyn File> {
        Box::new(SimFile { disk: self.clone(), file, write, name: name.into() })
    }
}

impl Disk for SimDisk {
    fn list(&self) -> Result<Vec<Listed>> {
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio, Fault::Emfile]) {
            return Err(error("readdir", "", &cause));
        }
        let there = |((folder, name), versions): (&(Folder, String), &Versions<Option<usize>>)| {
            let file = &state.files[(*versions.now()).filter(|_| *folder == self.folder)?];
            let (bytes, folder) = (*file.bytes.now(), file.is_folder);
            Some(Listed { name: name.clone(), bytes, regular: !folder, folder })
        };
        Ok(state.names.iter().filter_map(there).collect())
    }

    fn create(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        check_name(name)?;
        let (mut state, fault) = self.begin();
        let may = [Fault::Eio, Fault::Enospc, Fault::Full, Fault::Emfile, Fault::Efbig];
        if let Some(cause) = state.suffer(fault, &may) {
            return Err(error("fallocate", name, &cause));
        }
        if state.any(self.folder, name).is_some() {
            return Err(error("open", name, &os(libc::EEXIST)));
        }
        let mut contents = Contents::lasting(Vec::new(), 0);
        contents.resize(bytes);
        state.files.push(contents);
        let file = state.files.len() - 1;
        state.set_name(self.folder, name, Some(file));
        Ok(self.opened(file, true, name))
    }

    fn create_buffered(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.create(name, bytes)
    }

    fn open(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        check_name(name)?;
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio, Fault::Emfile]) {
            return Err(error("open", name, &cause));
        }
        let file = state.file(self.folder, name).ok_or_else(|| error("open", name, &os(libc::ENOENT)))?;
        Ok(self.opened(file, write, name))
    }

    fn open_buffered(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        self.open(name, write)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio]) {
            return Err(error("rename", from, &cause));
        }
        let file = state.any(self.folder, from).ok_or_else(|| error("rename", from, &os(libc::ENOENT)))?;
        if from != to {
            state.set_name(self.folder, to, Some(file));
            state.set_name(self.folder, from, None);
        }
        Ok(())
    }

    fn unlink(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio]) {
            return Err(error("unlink", name, &cause));
        }
        state.file(self.folder, name).ok_or_else(|| error("unlink", name, &os(libc::ENOENT)))?;
        state.set_name(self.folder, name, None);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio, Fault::FailedSync]) {
            let names = state.names.iter_mut().filter(|((folder, _), _)| *folder == self.folder);
            names.for_each(|(_, versions)| versions.give_up());
            return Err(error("fsync", "", &cause));
        }
        state.names.retain(|(folder, _), versions| {
            if *folder == self.folder {
                versions.sync();
            }
            !versions.is_certain() || versions.now().is_some()
        });
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Disk>> {
        check_name(name)?;
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio, Fault::Emfile]) {
            return Err(error("open", name, &cause));
        }
        let found = state.any(self.folder, name).filter(|file| state.files[*file].is_folder);
        let file = found.ok_or_else(|| error("open", name, &os(libc::ENOENT)))?;
        Ok(Arc::new(Self { state: Arc::clone(&self.state), folder: file + 1 }))
    }

    fn make_folder(&self, name: &str) -> Result<Arc<dyn Disk>> {
        check_name(name)?;
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio, Fault::Enospc, Fault::Full]) {
            return Err(error("mkdir", name, &cause));
        }
        if state.any(self.folder, name).is_some() {
            return Err(error("mkdir", name, &os(libc::EEXIST)));
        }
        state.files.push(Contents { is_folder: true, ..Contents::lasting(Vec::new(), 0) });
        let folder = state.files.len();
        state.set_name(self.folder, name, Some(folder - 1));
        if let Some(cause) = state.suffer(fault, &[Fault::Emfile]) {
            return Err(error("open", name, &cause));
        }
        Ok(Arc::new(Self { state: Arc::clone(&self.state), folder }))
    }

    fn remove_folder(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let (mut state, fault) = self.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio]) {
            return Err(error("rmdir", name, &cause));
        }
        let found = state.any(self.folder, name).filter(|file| state.files[*file].is_folder);
        let folder = found.ok_or_else(|| error("rmdir", name, &os(libc::ENOENT)))? + 1;
        if state.names.iter().any(|((other, _), versions)| *other == folder && versions.now().is_some()) {
            return Err(error("rmdir", name, &os(libc::ENOTEMPTY)));
        }
        state.set_name(self.folder, name, None);
        Ok(())
    }
}

/// A file of a simulated directory.
struct SimFile {
    disk: SimDisk,
    file: usize,
    write: bool,
    name: String,
}

impl SimFile {
    /// Begins an operation that changes the file.
    fn begin(&self, call: &str) -> Result<(MutexGuard<'_, State>, Option<Fault>)> {
        if self.write { Ok(self.disk.begin()) } else { Err(error(call, &self.name, &os(libc::EBADF))) }
    }

    fn failed(&self, call: &str, cause: &io::Error) -> Error {
        error(call, &self.name, cause)
    }
}

impl File for SimFile {
    fn bytes(&self) -> Result<u64> {
        let (mut state, fault) = self.disk.begin();
        match state.suffer(fault, &[Fault::Eio]) {
            Some(cause) => Err(self.failed("fstat", &cause)),
            None => Ok(*state.files[self.file].bytes.now()),
        }
    }

    fn read(&self, to: &mut [u8], offset: u64) -> Result<()> {
        let (mut state, fault) = self.disk.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio]) {
            // What was to be read to means nothing any more.
            to.fill(0xEE);
            return Err(self.failed("read", &cause));
        }
        let contents = &state.files[self.file];
        let end = *contents.bytes.now();
        if !to.is_empty() && offset.saturating_add(to.len() as u64) > end {
            return Err(ended(&self.name, end));
        }
        contents.read(to, offset);
        Ok(())
    }

    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        let (mut state, fault) = self.begin("write")?;
        if let Some(cause) = state.suffer(fault, &[Fault::Efbig]) {
            return Err(self.failed("write", &cause));
        }
        let suffered = state.suffer(fault, &[Fault::Eio, Fault::Enospc]);
        // Half of it, nothing, or a little: a record of the journal says all that it says in its first half.
        let part = match (&suffered, state.failures % 3) {
            (None, _) => from.len(),
            (_, 1) => from.len() / 2,
            (_, 2) => 0,
            _ => from.len() / 8,
        };
        let written = &from[..part];
        state.files[self.file].write(written, offset);
        suffered.map_or(Ok(()), |cause| Err(self.failed("write", &cause)))
    }

    fn datasync(&self) -> Result<()> {
        let (mut state, fault) = self.disk.begin();
        if let Some(cause) = state.suffer(fault, &[Fault::Eio, Fault::FailedSync]) {
            state.files[self.file].give_up();
            return Err(self.failed("fdatasync", &cause));
        }
        state.files[self.file].sync();
        Ok(())
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<bool> {
        let (mut state, fault) = self.begin("fallocate")?;
        if let Some(cause) = state.suffer(fault, &[Fault::Eio]) {
            return Err(self.failed("fallocate", &cause));
        }
        let contents = &mut state.files[self.file];
        let end = offset.saturating_add(bytes).min(*contents.bytes.now());
        contents.clear(offset, end);
        Ok(true)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        let (mut state, fault) = self.begin("truncate")?;
        let longer = bytes > *state.files[self.file].bytes.now();
        let may = [Fault::Eio, Fault::Efbig];
        if let Some(cause) = state.suffer(fault, if longer { &may } else { &may[..1] }) {
            return Err(self.failed("truncate", &cause));
        }
        state.files[self.file].resize(bytes);
        Ok(())
    }
}
