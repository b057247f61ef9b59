//! Values of the disk in host memory beside the store's, for others that read them while the store's takes nothing. A value is there whole and
//! verified, and until the last byte has left, or no more of them can leave. How much there is at a time is bounded; whoever would have more is
//! told to come again.

use super::bounce::Bounce;
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_TOO_SMALL};
use crate::cluster::net::Span;
use crate::store::Store;
use crate::store::agent::{FromDisk, Reached};
use crate::store::types::{Location, Pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Bytes of all of them.
pub const MOST: u64 = 64 << 20;

/// What all of them may have. Threads share it.
pub struct Room {
    most: u64,
    used: AtomicU64,
    /// Whether the log has heard of a value that never fits.
    told: AtomicBool,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Room {
    /// So many bytes, all of them free.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self { most, used: AtomicU64::new(0), told: AtomicBool::new(false) }
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Memory for so many bytes. BUSY while others have too much, TOO_SMALL for what would not fit if nobody had anything.
    fn take(self: &Arc<Self>, bytes: u64) -> Result<Taken> {
        let most = self.most;
        if bytes > most {
            let why =
                format!("memory takes nothing, and the {most} bytes beside it are too few for a value of {bytes}");
            if !self.told.swap(true, Relaxed) {
                log::emit(log::WARN, || {
                    format!("cluster: others cannot read what is on disk, which is said once: {why}")
                });
            }
            return Err(Error::new(NMC_ERR_TOO_SMALL, why));
        }
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= most);
        if let Err(used) = self.used.fetch_update(Relaxed, Relaxed, more) {
            crate::bail!(
                NMC_ERR_BUSY,
                "memory takes nothing, and beside it {used} of {most} bytes are in use, and {bytes} are wanted"
            );
        }
        // From here on it is given back, also if there is no such memory.
        let share = Share { room: Arc::clone(self), bytes };
        let bounce = Bounce::new(0, bytes).map_err(|error| Error { status: NMC_ERR_BUSY, ..error })?;
        Ok(Taken { bounce, _share: share })
    }
}

/// Bytes of the room that are in use until this ends.
struct Share {
    room: Arc<Room>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// Memory, which is freed before others get its share.
struct Taken {
    bounce: Bounce,
    _share: Share,
}

/// See the module.
pub struct Staged {
    taken: Taken,
    /// What its record says.
    pub about: FromDisk,
    /// CRC32C of all of it, if the store keeps checksums.
    pub sum: Option<u32>,
}

impl Staged {
    /// Where these bytes of it are, if it has them.
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Option<Span> {
        self.taken.bounce.part(offset, bytes)
    }
}

/// A value of a key.
pub enum Value {
    /// In the store's memory, held.
    Held(Pin, Location),
    /// Beside it.
    Staged(Staged),
}

/// Reads what the disk has of a key; or holds what memory has by now. `None` if neither has anything.
pub fn read(store: &Store, key: &[u8], room: &Arc<Room>) -> Result<Option<Value>> {
    let mut taken = None;
    let reached = store.pin_or_read(key, |bytes| {
        // That of the last try is free again.
        taken = None;
        Ok(taken.insert(room.take(bytes)?).bounce.slice())
    })?;
    Ok(match (reached, taken) {
        (Some(Reached::Held(pin, location)), _) => Some(Value::Held(pin, location)),
        (Some(Reached::Read(about)), Some(taken)) => {
            let sum = (store.client().params().checksums != 0).then(|| taken.bounce.sum());
            Some(Value::Staged(Staged { taken, about, sum }))
        }
        (Some(Reached::Read(_)) | None, _) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_as_much_as_was_said_until_it_is_given_back() {
        let room = Arc::new(Room::new(100));
        let first = room.take(60).unwrap();
        let status = |bytes| room.take(bytes).err().map(|error| (error.status, error.message));
        let (busy, why) = status(41).unwrap();
        assert!(busy == NMC_ERR_BUSY && why.contains("60 of 100"), "{why}");
        let (busy, why) = status(101).unwrap();
        assert!(busy == NMC_ERR_TOO_SMALL && why.contains("too few for a value of 101"), "{why}");
        assert_eq!(status(u64::MAX).unwrap().0, NMC_ERR_TOO_SMALL);
        let second = room.take(40).unwrap();
        assert!(status(0).is_none() && status(1).is_some());
        drop(first);
        assert_eq!(room.used(), 40);
        assert!(status(60).is_none());
        drop(second);
        assert_eq!(room.used(), 0);
        // What nobody has: nothing of it counts as taken.
        let room = Arc::new(Room::new(u64::MAX));
        assert_eq!(room.take(u64::MAX / 2).err().map(|error| error.status), Some(NMC_ERR_BUSY));
        assert_eq!(room.used(), 0);
    }
}
