//! What was made of files, and is made again when they have changed: certificates end, and others take their place while a program runs.

use crate::base::error::Result;
use crate::base::log;
use parking_lot::Mutex;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);

/// Tells one state of a file from another; nothing of one that is not there.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;
type Make<T> = Box<dyn Fn() -> Result<T> + Send + Sync>;

/// See the module.
pub struct Renewed<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    made: Arc<T>,
    /// What the files were like when they were last read, or tried to be.
    stamps: Vec<Stamp>,
    looked: Instant,
}

impl<T> fmt::Debug for Renewed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T> Renewed<T> {
    /// Makes it of the files for the first time.
    pub fn new(paths: Vec<PathBuf>, make: impl Fn() -> Result<T> + Send + Sync + 'static) -> Result<Self> {
        // Looked at before they are read: what changes meanwhile is seen the next time.
        let stamps = paths.iter().map(stamp).collect();
        let state = State { made: Arc::new(make()?), stamps, looked: Instant::now() };
        Ok(Self { paths, make: Box::new(make), state: Mutex::new(state) })
    }

    /// As the files are now, or were a moment ago. Where nothing can be made of them it stays as it was, and the log says why: one of them may be
    /// written later than the others, and is seen then.
    pub fn current(&self) -> Arc<T> {
        let (made, said) = self.look();
        // Whoever hears it may ask for it again.
        if let Some((level, text)) = said {
            log::emit(level, || text);
        }
        made
    }

    /// The same, and what there is to say about it.
    fn look(&self) -> (Arc<T>, Option<(i32, String)>) {
        let mut state = self.state.lock();
        let mut said = None;
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            let stamps: Vec<Stamp> = self.paths.iter().map(stamp).collect();
            if stamps != state.stamps {
                state.stamps = stamps;
                said = Some(match (self.make)() {
                    Ok(made) => {
                        state.made = Arc::new(made);
                        (log::INFO, format!("cluster: read anew: {:?}", self.paths))
                    }
                    Err(error) => (log::WARN, format!("cluster: what was read before stays in use: {}", error.message)),
                });
            }
        }
        (Arc::clone(&state.made), said)
    }
}

fn stamp(path: &PathBuf) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), (file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())))
}
