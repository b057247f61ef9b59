//! Where ranks meet: a directory per world, readable by its owner alone, that holds one socket. The master holds
//! the lock of the directory itself, so a crash leaves nothing that could be mistaken for a living master, and
//! two masters can never serve one name.

use super::rank_locks::RankLocks;
use super::sys;
use crate::base::error::{Error, Result};
use crate::layout::MAX_RANKS;
use crate::rpc::{Link, Listener, ParentOnly, own_uid};
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a rank that leaves looks whether it is the last.
const SWEEPS: u32 = 20;
/// How often a directory is made anew whose parent has just vanished.
const MOST_TRIES: u32 = 100;
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
    dir: ParentOnly,
    /// The base was not there before.
    made_base: bool,
}

/// Directories that were made; removed again if the call fails that made them.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes a directory for this user alone, unless there is one.
    fn dir(&mut self, path: &Path) -> std::io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                self.0.push(path.to_path_buf());
                Ok(())
            }
        }
    }

    /// They stay; gives which.
    fn keep(mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What somebody else has begun to use is not empty, and stays.
        for path in self.0.iter().rev() {
            let _ = std::fs::remove_dir(path);
        }
    }
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

    /// The path of the socket, and if there is no way to it, why.
    #[must_use]
    pub fn where_it_is(&self) -> String {
        let socket = self.socket();
        match std::fs::metadata(&self.base) {
            Ok(_) => socket.display().to_string(),
            Err(error) => format!("{} ({}: {error})", socket.display(), self.base.display()),
        }
    }

    /// Makes sure the directories exist and belong to this user alone, and opens the world's. `None` when a
    /// master that just ended removed them meanwhile.
    fn open(&self) -> Result<Option<(OwnedFd, Made)>> {
        let mut made = Made::default();
        for tries in 1.. {
            made.dir(&self.base).map_err(|e| Error::os("mkdir", &e).context(self.base.display()))?;
            match made.dir(&self.world) {
                // A master that just ended may have removed the base. A link that leads nowhere stays.
                Err(error) if error.kind() == ErrorKind::NotFound && tries < MOST_TRIES => {}
                Err(error) => return Err(Error::os("mkdir", &error).context(self.world.display())),
                Ok(()) => break,
            }
        }
        self.check()?;
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        match File::options().read(true).custom_flags(flags).open(&self.world) {
            Ok(dir) => Ok(Some((dir.into(), made))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::os("open", &e).context(self.world.display())),
        }
    }

    /// Refuses a world directory that others could have planted, could write to, or could move away.
    pub fn check(&self) -> Result<()> {
        check_path(&self.base)?;
        let meta = match std::fs::symlink_metadata(&self.world) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::os("stat", &e).context(self.world.display())),
        };
        let uid = own_uid();
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
                Ok(None) if !matches!(Link::connect(&self.socket()), Ok(None)) => return,
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => return,
            }
        }
    }

    /// Becomes the master if nobody is.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        let Some((dir, made)) = self.open()? else { return Ok(None) };
        let dir = ParentOnly::new(dir);
        if !sys::try_lock(dir.as_fd())? {
            made.keep();
            return Ok(None);
        }
        let made_base = made.keep().contains(&self.base);
        // A master that just ended removed the directory after we opened it: then we locked a ghost.
        let lock = Lock { place: self.clone(), dir, made_base };
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
        match RankLocks::open(&self.place.rank_locks())? {
            Some(locks) => Ok(locks),
            None => crate::bail!(NMC_ERR_OS, "{} was removed", self.place.world.display()),
        }
    }

    /// Binds the socket, replacing what a dead master left.
    pub fn listen(&self) -> Result<Listener> {
        let path = self.place.socket();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::os("unlink of a stale socket", &e).context(path.display()))
            }
            _ => Listener::bind(&path),
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
            // If they cannot be looked at, nobody knows that they are free.
            if RankLocks::open(&self.place.rank_locks()).map_or(true, |locks| locks.is_some_and(held)) {
                return; // the last rank to leave removes the rest
            }
            let _ = std::fs::remove_file(self.place.rank_locks());
        }
        let _ = std::fs::remove_dir(&self.place.world);
        if self.made_base || self.place.base == default_base() {
            let _ = std::fs::remove_dir(&self.place.base);
        }
    }
}

/// Refuses a path of which others could move a part away, and put something of theirs in its place: every directory on the way
/// must belong to this user or to root, and if others can write to it, it must be sticky, as /tmp is. What is not there yet is
/// fine.
fn check_path(path: &Path) -> Result<()> {
    // As it was given, for links on the way, and where it leads.
    let given = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let real = std::fs::canonicalize(&given).ok();
    for part in given.ancestors().chain(real.iter().flat_map(|real| real.ancestors())) {
        let Ok(meta) = std::fs::symlink_metadata(part) else { continue };
        if !trusted(meta.uid()) {
            crate::bail!(
                NMC_ERR_PERMISSION,
                "{} belongs to user {}; it must belong to user {} or to root",
                part.display(),
                meta.uid(),
                own_uid()
            );
        }
        // A group of the same number as its user is that user's alone.
        let own_group = meta.gid() == 0 || meta.gid() == own_uid();
        let others = if own_group { 0o002 } else { 0o022 };
        if meta.is_dir() && meta.mode() & others != 0 && meta.mode() & 0o1000 == 0 {
            crate::bail!(
                NMC_ERR_PERMISSION,
                "{} has mode {:o}: others could move {} away; take their right to write, or set the sticky bit",
                part.display(),
                meta.mode() & 0o7777,
                path.display()
            );
        }
    }
    Ok(())
}

/// Whether a directory of this user is as safe as an own one. In a user namespace root's may be shown as nobody's.
fn trusted(uid: u32) -> bool {
    const NOBODY: u32 = 65_534;
    let is_whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    uid == own_uid() || uid == 0 || uid == NOBODY && !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(is_whole)
}

fn default_base() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("nanomc"),
        _ => PathBuf::from(format!("/tmp/nanomc-{}", own_uid())),
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test reports by failing")]
mod tests {
    use super::*;
    use crate::base::status::{NMC_ERR_OS, NMC_ERR_PERMISSION};
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    fn status(path: &Path) -> i32 {
        Place::new(Some(path), "w").try_lock().map_or_else(|error| error.status, |_| 0)
    }

    /// A master that ends and cannot look at the locks of the ranks does not know that nobody holds one.
    #[test]
    fn locks_that_cannot_be_looked_at_count_as_held() {
        for readable in [false, true] {
            let top = folder();
            let place = Place::new(Some(top.path()), "w");
            let lock = place.try_lock().expect("lock").expect("nobody has it");
            if readable {
                lock.rank_locks().expect("the file");
            } else {
                create_dir(place.rank_locks()).expect("something that cannot be opened as a file");
            }
            drop(lock);
            assert_eq!(
                place.world.exists(),
                !readable,
                "control: where it can be seen that nobody is there, all is removed"
            );
        }
    }

    #[test]
    fn a_directory_that_others_could_move_away_is_refused_and_named() {
        let top = folder();
        let (parent, base) = (top.path().join("parent"), top.path().join("parent/base"));
        create_dir(&parent).and_then(|()| create_dir(&base)).expect("folders");
        for (mode, want) in
            [(0o700, 0), (0o755, 0), (0o777, NMC_ERR_PERMISSION), (0o1777, 0), (0o757, NMC_ERR_PERMISSION)]
        {
            for path in [&parent, &base] {
                set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
                assert_eq!(status(&base), want, "{mode:o} {}", path.display());
                let error = Place::new(Some(&base), "w").check().err();
                assert_eq!(error.is_some(), want != 0);
                assert!(error.is_none_or(|e| e.message.contains(&format!("{} has mode", path.display()))));
                set_permissions(path, Permissions::from_mode(0o700)).expect("chmod");
            }
        }
        assert!(std::fs::read_dir(&base).expect("the base").next().is_none(), "nothing is left behind");
    }

    #[test]
    fn a_directory_below_one_of_another_user_is_refused() {
        let top = folder();
        let base = top.path().join("base");
        create_dir(&base).expect("a folder");
        if chown(top.path(), Some(12_345), None).is_err() {
            return; // only root can give a folder away
        }
        let refused = status(&base);
        chown(top.path(), Some(own_uid()), None).expect("chown");
        assert_eq!(refused, NMC_ERR_PERMISSION);
    }

    #[test]
    fn what_a_failed_attempt_made_is_gone() {
        let top = folder();
        let base = top.path().join("base");
        set_permissions(top.path(), Permissions::from_mode(0o777)).expect("chmod");
        assert_eq!(status(&base), NMC_ERR_PERMISSION);
        set_permissions(top.path(), Permissions::from_mode(0o700)).expect("chmod");
        assert!(!base.exists());
        // And what a master made, when it ends.
        let lock = Place::new(Some(&base), "w").try_lock().expect("a lock").expect("nobody has it");
        let beside = Place::new(Some(&base), "w").beside("store").try_lock().expect("a lock");
        assert!(base.join("w").exists() && base.join("w+store").exists());
        drop(beside);
        drop(lock);
        assert!(!base.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_at_once() {
        let top = folder();
        let told = |path: &Path| Place::new(Some(path), "w").try_lock().expect_err("it cannot work");
        let missing = told(&top.path().join("no/base"));
        assert!(missing.status == NMC_ERR_OS && missing.message.contains("no/base: mkdir: No such file"), "{missing}");
        let link = top.path().join("link");
        symlink(top.path().join("nowhere"), &link).expect("a link");
        let dangling = told(&link);
        assert!(dangling.message.contains("link/w: mkdir: No such file"), "{dangling}");
        let file = top.path().join("file");
        std::fs::write(&file, "").expect("a file");
        assert!(told(&file).message.contains("file/w: mkdir: Not a directory"));
    }
}
