//! Open files of buckets. A file is known by the number of its bucket alone: numbers are never used again. What is read through
//! a file that was removed meanwhile is for the entry to judge that led there.

use crate::base::error::Result;
use crate::base::memory;
use crate::tier::format::bucket_name;
use crate::tier::io::{Disk as _, File, RealDisk};
use parking_lot::Mutex;
use std::sync::Arc;

/// Most files that are kept open.
const MOST: usize = 64;

/// The files of a directory.
pub struct Files {
    disk: RealDisk,
    /// Those that were used last are last.
    open: Mutex<Vec<(u64, Arc<dyn File>)>>,
}

impl Files {
    /// With none open.
    pub fn new(disk: RealDisk) -> Result<Self> {
        Ok(Self { disk, open: Mutex::new(memory::with_capacity(MOST)?) })
    }

    /// The directory.
    pub fn disk(&self) -> &RealDisk {
        &self.disk
    }

    /// The file of a bucket, opened before or now; with `anew` now in any case.
    pub fn get(&self, bucket: u64, anew: bool) -> Result<Arc<dyn File>> {
        if !anew {
            let mut open = self.open.lock();
            if let Some(at) = open.iter().position(|(number, _)| *number == bucket) {
                open[at..].rotate_left(1);
                if let Some((_, file)) = open.last() {
                    return Ok(Arc::clone(file));
                }
            }
        }
        let opened = self.disk.open(&bucket_name(bucket), false);
        let mut open = self.open.lock();
        let former = open.iter().position(|(number, _)| *number == bucket).map(|at| open.remove(at));
        let file: Arc<dyn File> = match opened {
            Ok(file) => file.into(),
            Err(error) => {
                drop(open);
                drop(former);
                return Err(error);
            }
        };
        let oldest = (open.len() >= MOST).then(|| open.remove(0));
        open.push((bucket, Arc::clone(&file)));
        // Closing may take a while.
        drop(open);
        drop((former, oldest));
        Ok(file)
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.open.lock().len()
    }
}
