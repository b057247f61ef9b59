//! How a client comes to the disk below its store. The store's header names the index that counts: a client that has another one, or
//! none, gets it from the master; one that has it asks nobody. A client of another process has its own thread ask, so that no read waits
//! for the master for long.

use super::map::DiskMap;
use super::reader::DiskReader;
use crate::base::error::Error;
use crate::store::completions::Announcer;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// The disk of a store, for one who reads it.
#[derive(Clone)]
pub struct DiskAccess {
    /// The index.
    pub map: Arc<DiskMap>,
    /// The files.
    pub reader: Arc<dyn DiskReader>,
}

/// What a client has of it, which changes when the tier is opened anew.
#[derive(Default)]
pub struct DiskSeat {
    held: Mutex<Held>,
    /// The client has another one, or has been refused it.
    changed: Condvar,
    /// Whether it has one, for those who do not want to wait.
    taken: AtomicBool,
    heard: Mutex<Heard>,
}

/// How far the program has heard what happens on disk, see [`super::told`].
#[derive(Default)]
struct Heard {
    /// Handles of the program to the disk.
    handles: usize,
    /// The disk of which it has taken events, and values of which it has heard.
    disk: u64,
    until: u64,
    announcer: Announcer,
    announced: bool,
}

impl Heard {
    fn until(&self, disk: u64) -> u64 {
        if self.disk == disk { self.until } else { 0 }
    }
}

#[derive(Default)]
struct Held {
    access: Option<DiskAccess>,
    /// Why the client has not got the disk with this name: reads do not wait for it again.
    refused: Option<(u64, Error)>,
}

impl Held {
    fn get(&self, id: u64) -> Option<&DiskAccess> {
        self.access.as_ref().filter(|access| access.map.id() == id)
    }
}

impl DiskSeat {
    /// The disk with this name, if the client has it.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<DiskAccess> {
        self.held.lock().get(id).cloned()
    }

    /// Looks at the disk with this name, if the client has it, and takes nothing of it along.
    pub fn look<R>(&self, id: u64, look: impl FnOnce(&DiskAccess) -> R) -> Option<R> {
        self.held.lock().get(id).map(look)
    }

    /// From now on the client has this one.
    pub fn set(&self, access: DiskAccess) {
        // Outside of the lock: unmapping takes a while.
        let former = std::mem::replace(&mut *self.held.lock(), Held { access: Some(access), refused: None });
        self.taken.store(true, Relaxed);
        self.changed.notify_all();
        drop(former);
    }

    /// The tier was closed.
    pub fn clear(&self) {
        self.taken.store(false, Relaxed);
        let former = std::mem::take(&mut *self.held.lock());
        drop(former);
    }

    /// The disk with this name cannot be had for now.
    pub fn refuse(&self, id: u64, why: Error) {
        let mut held = self.held.lock();
        // Another thread may have got it meanwhile.
        if held.get(id).is_none() {
            held.refused = Some((id, why));
        }
        drop(held);
        self.changed.notify_all();
    }

    /// Why the disk with this name cannot be had, if that is known.
    #[must_use]
    pub fn refusal(&self, id: u64) -> Option<Error> {
        let held = self.held.lock();
        held.refused.as_ref().filter(|(of, _)| *of == id).map(|(_, why)| why.clone())
    }

    /// Sleeps until the client may have the disk with this name or be refused it, for `time` at most.
    pub fn wait(&self, id: u64, time: Duration) {
        let mut held = self.held.lock();
        if held.get(id).is_none() {
            self.changed.wait_for(&mut held, time);
        }
    }

    /// Whether it has one.
    #[inline]
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.taken.load(Relaxed)
    }

    /// The program has one more handle to the disk, or one less.
    pub fn listen(&self, more: bool, announcer: Announcer) {
        let mut heard = self.heard.lock();
        heard.handles = if more { heard.handles + 1 } else { heard.handles.saturating_sub(1) };
        if heard.handles == 0 {
            heard.announced = false;
            announcer.announce(false);
        }
        heard.announcer = announcer;
    }

    /// Values of the disk with this name of which the program has heard.
    #[must_use]
    pub fn heard(&self, disk: u64) -> u64 {
        self.heard.lock().until(disk)
    }

    /// It has heard of those from `since` to `next`; false if another thread has heard of them before.
    #[must_use]
    pub fn hear(&self, disk: u64, since: u64, next: u64) -> bool {
        let mut heard = self.heard.lock();
        if heard.until(disk) != since {
            return false;
        }
        (heard.disk, heard.until) = (disk, next);
        true
    }

    /// In a process that does not own the disk: makes the descriptor readable if there are events that the program has not taken.
    pub fn announce(&self) {
        let told = |access: &DiskAccess| (access.map.id(), access.map.view().header().told.load(Acquire));
        let told = self.held.lock().access.as_ref().map(told);
        let mut heard = self.heard.lock();
        let waits = heard.handles > 0 && told.is_some_and(|(disk, told)| told > heard.until(disk));
        if waits || heard.announced {
            heard.announcer.announce(waits);
        }
        heard.announced = waits;
    }

    /// The name of the one that it has; 0 for none.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.held.lock().access.as_ref().map_or(0, |access| access.map.id())
    }
}
