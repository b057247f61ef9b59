//! Where ranks meet: a directory per world, readable by its owner alone, that holds one socket. The master holds
//! the lock of the directory itself, so a crash leaves nothing that could be mistaken for a living master, and
//! two masters can never serve one name.

use super::rank_locks::RankLocks;
use super::sys;
use crate::base::error::{Error, Result};
use crate::layout::MAX_RANKS;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a rank that leaves looks whether it is the last.
const SWEEPS: u32 = 20;
/// Longest name of a world.
pub const MAX_NAME: usize = 48;

/// The place of one world in the file system.
#[derive(Debug, Clone)]
pub struct Place {
    base: PathBuf,
    world: PathBuf,
}

/// The right to be the master. Dropping it removes socket and directory.
#[derive(Debug)]
pub struct Lock {
    place: Place,
    dir: sys::ParentOnly,
}

/// Checks a world's name: it becomes a file name and appears in messages.
pub fn check_name(name: &[u8]) -> Result<&str> {
    let fine = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        && name[0] != b'.';
    match std::str::from_utf8(name) {
        Ok(text) if fine => Ok(text),
        _ => crate::bail!(
            NMC_ERR_INVALID_ARG,
            "the world name {:?} must be 1 to {MAX_NAME} of A-Z a-z 0-9 . _ - and not start with a dot",
            String::from_utf8_lossy(&name[..name.len().min(MAX_NAME + 1)])
        ),
    }
}

impl Place {
    /// The place of world `name` under `base`, or under the user's runtime directory.
    #[must_use]
    pub fn new(base: Option<&Path>, name: &str) -> Self {
        let base = base.map_or_else(default_base, Path::to_path_buf);
        Self { world: base.join(name), base }
    }

    /// A place for something else of the same world: the masters of capabilities have their own.
    #[must_use]
    pub fn beside(&self, what: &str) -> Self {
        let mut name = self.world.file_name().unwrap_or_default().to_os_string();
        name.push(format!("+{what}"));
        Self { world: self.base.join(name), base: self.base.clone() }
    }

    /// Path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.world.join("sock")
    }

    /// Path of the file in which ranks lock a byte each.
    #[must_use]
    pub fn rank_locks(&self) -> PathBuf {
        self.world.join("ranks")
    }

    /// Makes sure the directories exist and belong to this user alone, and opens the world's. `None` when a
    /// master that just ended removed them meanwhile.
    fn open(&self) -> Result<Option<OwnedFd>> {
        for dir in [&self.base, &self.world] {
            match DirBuilder::new().mode(0o700).create(dir) {
                Err(e) if e.kind() == ErrorKind::NotFound && *dir == self.world => return Ok(None),
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    return Err(Error::os("mkdir", &e).context(dir.display()));
                }
                _ => {}
            }
        }
        self.check()?;
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        match File::options().read(true).custom_flags(flags).open(&self.world) {
            Ok(dir) => Ok(Some(dir.into())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::os("open", &e).context(self.world.display())),
        }
    }

    /// Refuses a world directory that others could have planted, could write to, or could move away.
    pub fn check(&self) -> Result<()> {
        if let Ok(base) = std::fs::metadata(&self.base)
            && base.uid() != sys::own_uid()
            && base.uid() != 0
        {
            crate::bail!(
                NMC_ERR_PERMISSION,
                "{} belongs to user {}; it must belong to user {} or to root",
                self.base.display(),
                base.uid(),
                sys::own_uid()
            );
        }
        let meta = match std::fs::symlink_metadata(&self.world) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::os("stat", &e).context(self.world.display())),
        };
        let uid = sys::own_uid();
        if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
            crate::bail!(
                NMC_ERR_PERMISSION,
                "{} must be a directory of user {uid} that nobody else can write; it has owner {} and mode {:o}",
                self.world.display(),
                meta.uid(),
                meta.mode() & 0o7777
            );
        }
        Ok(())
    }

    /// Removes what a master left that has ended, unless ranks of its world are still there.
    pub fn sweep(&self) {
        for _ in 0..SWEEPS {
            if !self.world.exists() {
                return;
            }
            match self.try_lock() {
                Ok(Some(lock)) => return drop(lock),
                // A master serves, or another rank that leaves is just looking, perhaps a moment too early.
                Ok(None) if !matches!(sys::connect(&self.socket()), Ok(None)) => return,
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => return,
            }
        }
    }

    /// Becomes the master if nobody is.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        let Some(dir) = self.open()? else { return Ok(None) };
        let dir = sys::ParentOnly::new(dir);
        if !sys::try_lock(dir.as_fd())? {
            return Ok(None);
        }
        // A master that just ended removed the directory after we opened it: then we locked a ghost.
        let lock = Lock { place: self.clone(), dir };
        Ok(lock.is_of_the_path().then_some(lock))
    }
}

impl Lock {
    /// Whether the path still names the directory that is locked.
    fn is_of_the_path(&self) -> bool {
        let ours = std::fs::metadata(format!("/proc/self/fd/{}", self.dir.as_fd().as_raw_fd()));
        let now = std::fs::symlink_metadata(&self.place.world);
        matches!((ours, now), (Ok(a), Ok(b)) if a.ino() == b.ino() && a.dev() == b.dev())
    }

    /// The locks of the ranks.
    pub fn rank_locks(&self) -> Result<RankLocks> {
        RankLocks::open(&self.place)
    }

    /// Binds the socket, replacing what a dead master left.
    pub fn listen(&self) -> Result<sys::ParentOnly> {
        let path = self.place.socket();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::os("unlink of a stale socket", &e).context(path.display()))
            }
            _ => sys::listen(&path),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.is_of_the_path() {
            return; // somebody else's by now
        }
        // While the lock is held no other master can be between these calls.
        let _ = std::fs::remove_file(self.place.socket());
        if self.place.rank_locks().exists() {
            let held = |locks: RankLocks| (0..MAX_RANKS).any(|rank| locks.is_held(u32::try_from(rank).unwrap_or(0)));
            if RankLocks::open(&self.place).is_ok_and(held) {
                return; // the last rank to leave removes the rest
            }
            let _ = std::fs::remove_file(self.place.rank_locks());
        }
        let _ = std::fs::remove_dir(&self.place.world);
        if self.place.base == default_base() {
            let _ = std::fs::remove_dir(&self.place.base);
        }
    }
}

fn default_base() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("nanomc"),
        _ => PathBuf::from(format!("/tmp/nanomc-{}", sys::own_uid())),
    }
}
