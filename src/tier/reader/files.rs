//! Open files of a directory. A file is known by the numbers that its backend has for it, which are never used again. What is
//! read through a file that was removed meanwhile is for the entry to judge that led there.

use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_ERR_LIMIT;
use crate::layout::disk::Spot;
use crate::tier::backend::{self, FileId, Found, Storage};
use crate::tier::config::Backend;
use crate::tier::format::Tail;
use crate::tier::io::{Disk, File};
use crate::tier::recovery;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most files that are kept open.
const MOST: usize = 64;

/// The files of a directory.
pub struct Files {
    disk: Arc<dyn Disk>,
    storage: Box<dyn Storage>,
    /// Those that were used last are last.
    open: Mutex<Vec<(FileId, Arc<dyn File>)>>,
}

impl Files {
    /// With none open.
    pub fn new(disk: Arc<dyn Disk>, backend: Backend) -> Result<Self> {
        let storage = backend::storage(backend, &disk);
        Ok(Self { disk, storage, open: Mutex::new(memory::with_capacity(MOST)?) })
    }

    /// Which buckets there are.
    pub fn find(&self) -> Result<Found> {
        self.sparing(|| recovery::find_in(&*self.storage, &*self.disk))
    }

    /// Whether what [`Files::find`] does not find is gone: what names alone lead to may have been taken away by others.
    pub fn knows_all(&self) -> bool {
        self.storage.is_in_journal()
    }

    /// The list of a bucket, as of the last [`Files::find`].
    pub fn list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)> {
        self.sparing(|| self.storage.list(bucket))
    }

    /// The file of a record, opened before or now, with `anew` now in any case, and the block at which the record begins there.
    pub fn get(&self, spot: Spot, anew: bool) -> Result<(Arc<dyn File>, u64)> {
        let (id, block) = self.storage.locate(spot);
        if !anew {
            let mut open = self.open.lock();
            if let Some(at) = open.iter().position(|(other, _)| *other == id) {
                open[at..].rotate_left(1);
                if let Some((_, file)) = open.last() {
                    return Ok((Arc::clone(file), block));
                }
            }
        }
        let opened = self.sparing(|| self.storage.place(id).open(&*self.disk));
        let mut open = self.open.lock();
        let former = open.iter().position(|(other, _)| *other == id).map(|at| open.remove(at));
        let file: Arc<dyn File> = match opened {
            Ok(file) => file.into(),
            Err(error) => {
                drop(open);
                drop(former);
                return Err(error);
            }
        };
        let oldest = (open.len() >= MOST).then(|| open.remove(0));
        open.push((id, Arc::clone(&file)));
        // Closing may take a while.
        drop(open);
        drop((former, oldest));
        Ok((file, block))
    }

    /// Where the process has no descriptor left, files that are kept open have to go for what is opened now.
    fn sparing<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            match open() {
                Err(error) if error.status == NMC_ERR_LIMIT && self.close_one() => {}
                opened => return opened,
            }
        }
    }

    /// Closes the file that nobody has used for longest; false if none is open but for those that are being read.
    fn close_one(&self) -> bool {
        let mut open = self.open.lock();
        let idle = open.iter().position(|(_, file)| Arc::strong_count(file) == 1).map(|at| open.remove(at));
        drop(open);
        idle.is_some()
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.open.lock().len()
    }
}
