//! Paths at which processes listen. Whoever listens at one holds the lock of a file beside it, which ends with the process however that ends: what
//! is left of the dead is told from what the living use, and of two who want one path at the same time one gets it. Nothing here waits.

use super::sys;
use crate::base::error::{Error, Result};
use crate::rpc::ParentOnly;
use std::ffi::OsString;
use std::fs::{Metadata, OpenOptions, TryLockError, remove_file, symlink_metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// What the name of a lock ends with, behind that of its socket.
const LOCK: &str = ".lock";
/// How often a lock is taken anew whose file has just gone.
const MOST_TRIES: u32 = 100;

/// Which file it is, whatever its name.
type Which = (u64, u64);

/// The right to listen at a path. Dropping it removes the socket, and the lock behind it.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// The socket, once it is there.
    socket: Option<Which>,
    beside: Which,
    /// A child that lives on must not keep the path of a process that has died.
    _lock: ParentOnly,
}

impl Claim {
    /// Takes a path. `None` if somebody who lives has it.
    fn take(path: &Path) -> Result<Option<Self>> {
        let lock = lock_of(path);
        let failed = |call, cause: std::io::Error| Error::os(call, &cause).context(lock.display());
        for _ in 0..MOST_TRIES {
            let mut how = OpenOptions::new();
            // Others could hold it for ever if they could open it.
            how.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let file = how.open(&lock).map_err(|e| failed("open", e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(failed("flock", e)),
            }
            let beside = which(&file.metadata().map_err(|e| failed("stat", e))?);
            // Whoever had it may have removed it since it was opened.
            if is_at(&lock, beside) {
                let lock = ParentOnly::new(file.into());
                return Ok(Some(Self { path: path.to_path_buf(), socket: None, beside, _lock: lock }));
            }
        }
        Ok(None)
    }

    /// Listens at a path. What is left there of the dead goes.
    pub fn listen(path: &Path) -> Result<(Self, UnixListener)> {
        let failed = |e: std::io::Error| Error::os("bind", &e).context(path.display());
        let in_use = || failed(std::io::Error::from_raw_os_error(libc::EADDRINUSE));
        let mut claim = Self::take(path)?.ok_or_else(in_use)?;
        if dead(path).is_some() {
            let _ = remove_file(path);
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        claim.socket = socket_at(path);
        Ok((claim, listener))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.socket.is_some_and(|socket| is_at(&self.path, socket)) {
            let _ = remove_file(&self.path);
        }
        // Beside a socket of somebody else it stays, so that the socket is known as what is left when that one has died.
        let lock = lock_of(&self.path);
        if socket_at(&self.path).is_none() && is_at(&lock, self.beside) {
            let _ = remove_file(lock);
        }
    }
}

/// Removes what is left in a folder of those who have died, of names that are `ours`.
pub fn sweep(folder: &Path, ours: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let socket = name.to_str().and_then(|name| name.strip_suffix(LOCK)).filter(|socket| ours(socket));
        // That of another user is left to that user.
        if let Some(Ok(Some(mut claim))) = socket.map(|socket| Claim::take(&folder.join(socket))) {
            claim.socket = dead(&claim.path);
        }
    }
}

fn lock_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(LOCK);
    name.into()
}

fn which(of: &Metadata) -> Which {
    (of.dev(), of.ino())
}

fn is_at(path: &Path, this: Which) -> bool {
    symlink_metadata(path).is_ok_and(|there| which(&there) == this)
}

fn socket_at(path: &Path) -> Option<Which> {
    symlink_metadata(path).ok().filter(|there| there.file_type().is_socket()).as_ref().map(which)
}

/// A socket at which nobody listens any more. What is no socket refuses whoever connects too, and is somebody's file.
fn dead(path: &Path) -> Option<Which> {
    let refused = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
    socket_at(path).filter(|_| sys::connect_unix(path).is_err_and(refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;

    fn names(folder: &Path) -> BTreeSet<String> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// A process listens at a path, and is killed.
    fn killed_at(path: &Path) {
        drop(sys::Child::doing(|| drop(Claim::listen(path).map(std::mem::forget))));
        assert!(dead(path).is_some() && lock_of(path).exists());
    }

    /// As if its process were killed.
    fn die(mut claim: Claim) {
        (claim.socket, claim.beside) = (None, (0, 0));
    }

    /// What was done before: whoever finds a dead socket removes it.
    fn without_lock(path: &Path, found: &Barrier, first: bool) -> UnixListener {
        assert!(dead(path).is_some());
        found.wait();
        if !first {
            // It comes later than the other.
            found.wait();
        }
        std::fs::remove_file(path).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        if first {
            found.wait();
        }
        listener
    }

    #[test]
    fn of_two_who_listen_at_a_path_at_the_same_moment_one_does_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for _ in 0..200 {
            drop(UnixListener::bind(&path).unwrap());
            let both = Barrier::new(2);
            let listen = || {
                both.wait();
                Claim::listen(&path)
            };
            let (one, two) = std::thread::scope(|threads| {
                let other = threads.spawn(listen);
                (listen(), other.join().unwrap())
            });
            let (listening, refused) = if one.is_ok() { (one, two) } else { (two, one) };
            let (claim, listener) = listening.unwrap();
            let why = refused.map(|_| ()).unwrap_err();
            assert!(why.message.contains("in use"), "{why}");
            let _other_end = UnixStream::connect(&path).unwrap();
            listener.accept().unwrap();
            drop(claim);
            assert_eq!(names(dir.path()), BTreeSet::new());
        }
        // Control: without the lock both believe that they do.
        drop(UnixListener::bind(&path).unwrap());
        let found = Barrier::new(2);
        let both = std::thread::scope(|threads| {
            let other = threads.spawn(|| without_lock(&path, &found, false));
            [without_lock(&path, &found, true), other.join().unwrap()]
        });
        let _other_end = UnixStream::connect(&path).unwrap();
        both.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        assert_eq!(both.iter().map(|listener| listener.accept().is_ok()).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn what_is_left_of_the_dead_goes_and_nothing_of_the_living_or_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let living = Claim::listen(&at("living.sock")).unwrap();
        ["dead.sock", "socketless.sock", "other"].iter().for_each(|name| killed_at(&at(name)));
        // One was killed before it had a socket, or when it had none any more; of two a child lives on, which has the socket of one.
        remove_file(at("socketless.sock")).unwrap();
        let (forked, (inherited, listener)) =
            (Claim::listen(&at("forked.sock")).unwrap().0, Claim::listen(&at("inherited.sock")).unwrap());
        let child = sys::Child::fork();
        drop(listener);
        [forked, inherited].into_iter().for_each(die);
        drop(UnixListener::bind(at("unlocked.sock")).unwrap());
        let swept = || {
            sweep(dir.path(), |name| name.ends_with(".sock"));
            let all = names(dir.path()).into_iter();
            all.filter(|name| !name.ends_with(LOCK) && dir.path().join(name).exists()).collect::<Vec<_>>().join(" ")
        };
        let locks = || names(dir.path()).iter().filter(|name| name.ends_with(LOCK)).count();
        assert_eq!((names(dir.path()).len(), locks()), (12, 6));
        assert_eq!((swept().as_str(), locks()), ("inherited.sock living.sock other unlocked.sock", 3));
        drop(child);
        assert_eq!((swept().as_str(), locks()), ("living.sock other unlocked.sock", 2));
        UnixStream::connect(at("living.sock")).unwrap();
        // What is left there is in nobody's way who comes for it by name, also if it has no lock.
        drop(Claim::listen(&at("other")).unwrap());
        drop(Claim::listen(&at("unlocked.sock")).unwrap());
        // Somebody has removed the lock of one who lives: its socket stays.
        remove_file(at("living.sock.lock")).unwrap();
        assert!(Claim::listen(&at("living.sock")).is_err());
        assert_eq!(swept(), "living.sock");
        UnixStream::connect(at("living.sock")).unwrap();
        drop(living);
        assert_eq!((swept().as_str(), locks()), ("", 0));
    }

    #[test]
    fn a_lock_is_for_its_user_alone_and_a_file_of_somebody_is_no_socket_of_the_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listening = Claim::listen(&path).unwrap();
        assert_eq!(std::fs::metadata(lock_of(&path)).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listening);
        std::fs::write(&path, "precious").unwrap();
        assert!(Claim::listen(&path).unwrap_err().message.contains("in use"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        // Nor is what somebody has put in the place of a lock followed.
        std::os::unix::fs::symlink(&path, lock_of(&path)).unwrap();
        assert!(Claim::listen(&path).is_err());
        sweep(dir.path(), |_| true);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
