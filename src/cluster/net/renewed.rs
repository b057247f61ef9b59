//! What was made of files, and is made again when they have changed: certificates end, and others take their place while a program runs. A thread
//! looks at the files when somebody wants what was made of them, and nobody waits for it: a file system may not answer.

use crate::base::error::Result;
use crate::base::log;
use crate::sync::service_thread;
use parking_lot::Mutex;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);
/// The longest time until what could not be read is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Tells one state of a file from another; nothing of one that is not there.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;
type Make<T> = Box<dyn Fn() -> Result<T> + Send + Sync>;

/// See the module.
pub struct Renewed<T>(Arc<Shared<T>>);

struct Shared<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    made: Arc<T>,
    /// What the files were like when it was made.
    stamps: Vec<Stamp>,
    failed: Option<Failed>,
    /// When they are looked at again; nothing while they are.
    next: Option<Instant>,
}

/// Nothing could be made of the files as they are.
struct Failed {
    stamps: Vec<Stamp>,
    why: String,
    tries: u32,
    /// When it is tried again, if they stay like that.
    again: Instant,
}

impl<T> fmt::Debug for Renewed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed").field("paths", &self.0.paths).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Renewed<T> {
    /// Makes it of the files for the first time.
    pub fn new(paths: Vec<PathBuf>, make: impl Fn() -> Result<T> + Send + Sync + 'static) -> Result<Self> {
        // Looked at before they are read: what changes meanwhile is seen the next time.
        let stamps = paths.iter().map(stamp).collect();
        let state = State { made: Arc::new(make()?), stamps, failed: None, next: Some(Instant::now() + LOOK) };
        Ok(Self(Arc::new(Shared { paths, make: Box::new(make), state: Mutex::new(state) })))
    }

    /// As the files were when they were looked at last, which this may set off. Where nothing can be made of them it stays as it was, the log says
    /// why, and it is tried again: one of them may be written later than the others.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.0.state.lock();
        if state.next.is_some_and(|next| next <= Instant::now()) {
            let shared = Arc::clone(&self.0);
            // If there can be no thread now, there may be one the next time.
            state.next = match service_thread::spawn(c"nmc-files", None, move || shared.look()) {
                Ok(_) => None,
                Err(_) => Some(Instant::now() + LOOK),
            };
        }
        Arc::clone(&state.made)
    }
}

impl<T> Shared<T> {
    fn look(&self) {
        let stamps: Vec<Stamp> = self.paths.iter().map(stamp).collect();
        let made = self.is_new(&stamps).then(|| (self.make)());
        if let Some((level, text)) = self.take(stamps, made) {
            log::emit(level, || text);
        }
    }

    fn is_new(&self, stamps: &[Stamp]) -> bool {
        let state = self.state.lock();
        let tried = |failed: &Failed| failed.stamps == stamps && Instant::now() < failed.again;
        state.stamps != stamps && !state.failed.as_ref().is_some_and(tried)
    }

    /// Takes what was made of the files, if they were read; what there is to say about it.
    fn take(&self, stamps: Vec<Stamp>, made: Option<Result<T>>) -> Option<(i32, String)> {
        let mut state = self.state.lock();
        state.next = Some(Instant::now() + LOOK);
        match made? {
            Ok(made) => {
                (state.made, state.stamps, state.failed) = (Arc::new(made), stamps, None);
                Some((log::INFO, format!("cluster: read anew: {:?}", self.paths)))
            }
            Err(error) => {
                let why = error.message;
                let same = state.failed.take().filter(|before| before.stamps == stamps && before.why == why);
                let tries = same.map_or(0, |before| before.tries + 1);
                let said = (tries == 0).then(|| format!("cluster: what was read before stays in use: {why}"));
                let again = Instant::now() + (LOOK * (1 << tries.min(6))).min(RETRY);
                state.failed = Some(Failed { stamps, why, tries, again });
                said.map(|text| (log::WARN, text))
            }
        }
    }
}

fn stamp(path: &PathBuf) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), (file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Waits until it is this.
    fn becomes(of: &Renewed<String>, wanted: &str) {
        let since = Instant::now();
        while of.current().as_str() != wanted {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?} is not {wanted}", of.current());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn what_could_not_be_read_is_tried_again_without_another_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let (from, fails) = (path.clone(), Arc::new(AtomicU32::new(0)));
        let left = Arc::clone(&fails);
        let made = Renewed::new(vec![path.clone()], move || {
            if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                crate::bail!(NMC_ERR_IO, "not now");
            }
            Ok(std::fs::read_to_string(&from).unwrap_or_default())
        })
        .unwrap();
        becomes(&made, "one");
        // Once, as without a free descriptor.
        fails.store(1, SeqCst);
        std::fs::write(&path, "two!").unwrap();
        becomes(&made, "two!");
        assert_eq!(fails.load(SeqCst), 0);
        // Another file in its place, and one that is gone for a while.
        std::fs::write(dir.path().join("other"), "3333").unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        becomes(&made, "3333");
        std::fs::remove_file(&path).unwrap();
        becomes(&made, "");
    }
}
