//! Those who have connected and have not shown yet that they may speak here. They have room of their own, and little time: who is
//! let in moves to the room of those who are known. When there are many of them the oldest go, so that somebody who connects and
//! says nothing, a thousand times, keeps nobody away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout_at;

/// From so many on the oldest goes when another comes.
const MANY: usize = 1024;
/// How long each of them stays in any case: everybody comes at once after a restart, and needs as long to say something.
const MOMENT: Duration = Duration::from_millis(250);

/// Somebody who waits, and how it hears that it was let in.
struct Waiting {
    since: Instant,
    tell: oneshot::Sender<OwnedSemaphorePermit>,
}

/// By number, and so by age.
#[derive(Default)]
struct List {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

/// See the module.
pub struct Door {
    list: Mutex<List>,
    /// For those who were let in.
    room: Arc<Semaphore>,
    /// Those who were not, at most, if all of them have just come; and from how many on the oldest goes.
    most: usize,
    many: usize,
    moment: Duration,
}

impl Door {
    /// With room for so many who are let in, in a process that may have so many descriptors: others may have a part of them.
    #[must_use]
    pub fn new(most: usize, files: usize) -> Self {
        let door = Self::with(most, MANY.min(files / 8), MOMENT);
        Self { most: most.min(files / 4), ..door }
    }

    /// One where everybody stays a guest: the oldest goes if there are so many, after a moment.
    #[must_use]
    pub fn of_guests(many: usize) -> Self {
        Self::with(MANY, many, MOMENT)
    }

    fn with(most: usize, many: usize, moment: Duration) -> Self {
        Self { list: Mutex::default(), room: Arc::new(Semaphore::new(most)), most, many, moment }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has connected; nobody has, if there is no room at all.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Option<Guest> {
        let mut list = self.list();
        let had_time = |waiting: &Waiting| waiting.since.elapsed() >= self.moment;
        if list.waiting.len() >= self.many && list.waiting.first_key_value().is_some_and(|(_, oldest)| had_time(oldest))
        {
            // It hears that nobody lets it in.
            list.waiting.pop_first();
        }
        if list.waiting.len() >= self.most {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let number = list.next;
        list.next += 1;
        list.waiting.insert(number, Waiting { since: Instant::now(), tell });
        drop(list);
        Some(Guest { door: Arc::clone(self), number, told })
    }

    /// Somebody has made a request that it may make: from now on it counts among those who are known. It is not let in if those are too
    /// many.
    pub fn let_in(&self, number: u64) {
        // Later requests of the same find nobody here.
        let Some(waiting) = self.list().waiting.remove(&number) else { return };
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            // If it has gone meanwhile there is room again.
            let _ = waiting.tell.send(permit);
        }
    }
}

/// A connection of somebody who may or may not be let in.
pub struct Guest {
    door: Arc<Door>,
    number: u64,
    told: oneshot::Receiver<OwnedSemaphorePermit>,
}

impl Guest {
    /// By which it is let in.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until it was let in, and gives the room that it has then; nothing if it is not, or not by then.
    pub async fn let_in_by(&mut self, late: Instant) -> Option<OwnedSemaphorePermit> {
        timeout_at(late.into(), &mut self.told).await.ok()?.ok()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.door.list().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn strangers_make_room_for_strangers_and_keep_nobody_away() {
        let door = Arc::new(Door::with(4, 2, Duration::ZERO));
        let mut known = door.enter().unwrap();
        door.let_in(known.number());
        let room = known.let_in_by(later()).await;
        assert!(room.is_some());
        let mut strangers: Vec<Guest> = (0..9).map(|_| door.enter().unwrap()).collect();
        for guest in &mut strangers[..7] {
            assert!(guest.let_in_by(later()).await.is_none(), "the oldest have gone");
        }
        // Whoever comes among them is let in all the same.
        let mut other = door.enter().unwrap();
        door.let_in(other.number());
        assert!(other.let_in_by(later()).await.is_some());
        assert!(door.room.available_permits() == 3 && door.list().waiting.len() <= 2);
        // Nothing is left of those who go.
        drop(strangers);
        assert!(door.list().waiting.is_empty());
        drop(room);
        assert_eq!(door.room.available_permits(), 4);
    }

    #[tokio::test]
    async fn strangers_leave_descriptors_to_others() {
        let door = Arc::new(Door::new(1 << 14, 64));
        let guests: Vec<Guest> = (0..1000).filter_map(|_| door.enter()).collect();
        assert_eq!(guests.len(), 16, "all at once");
        let many = Door::new(1 << 14, 1 << 20);
        assert_eq!((many.many, many.most), (MANY, 1 << 14));
    }

    #[tokio::test]
    async fn those_who_have_just_come_stay_and_nobody_stays_for_ever() {
        let door = Arc::new(Door::with(3, 1, Duration::from_secs(3600)));
        let mut guests: Vec<Guest> = (0..3).map(|_| door.enter().unwrap()).collect();
        assert!(door.enter().is_none(), "not even for a moment");
        assert!(guests[0].let_in_by(Instant::now()).await.is_none());
        let mut rooms = Vec::new();
        for guest in &mut guests {
            door.let_in(guest.number());
            rooms.extend(guest.let_in_by(later()).await);
        }
        assert_eq!(rooms.len(), 3);
        // Known ones are too many: another is not let in, and hears so.
        let mut other = door.enter().unwrap();
        door.let_in(other.number());
        assert!(other.let_in_by(later()).await.is_none());
    }
}
