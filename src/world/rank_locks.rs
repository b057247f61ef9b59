//! Which ranks are held by a living process, without asking anybody: a file beside the socket with a byte for each rank,
//! which its holder keeps locked. The kernel unlocks it with the holder's last descriptor. A master that is new asks it
//! before it forms a world: whoever lives in the former one goes before newcomers. Process ids would say the same, but not
//! across pid namespaces.

use super::sys;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::rpc::ParentOnly;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The file, opened.
#[derive(Debug)]
pub struct RankLocks(ParentOnly);

impl RankLocks {
    /// Opens the file of a world ([`super::dir::Place::rank_locks`]), made if need be; `None` if its directory is gone. The directory must
    /// have been checked.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        match file.open(path) {
            // A forked child never reports to a master, and does not make one wait.
            Ok(file) => Ok(Some(Self(ParentOnly::new(file.into())))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::os("open", &e).context(path.display())),
        }
    }

    /// Locks the byte of `rank`; waits for a former holder whose descriptors are just being closed.
    pub fn hold(&self, rank: u32, deadline: &Deadline) -> Result<()> {
        while !sys::try_lock_byte(self.0.as_fd(), rank.into())? {
            if deadline.passed() {
                crate::bail!(NMC_ERR_TIMEOUT, "another process still holds the lock of rank {rank}");
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Unlocks what this descriptor locked, whoever has a copy of it.
    pub fn release(&self) {
        sys::unlock_bytes(self.0.as_fd());
    }

    /// Whether somebody else holds the byte of `rank`.
    #[must_use]
    pub fn is_held(&self, rank: u32) -> bool {
        sys::is_locked(self.0.as_fd(), rank.into())
    }
}
