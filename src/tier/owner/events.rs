//! What happened to values on disk, for programs that want to know, in whatever process: batches of keys that were stored or evicted. The
//! newest are kept, for each process to take at its own pace; the oldest make way, and are counted for whoever has not taken them.

use super::Owner;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED};
use crate::store::disk::{Event, Happened, ToWrite, Told, ToldValue};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Release;

/// Batches that are kept, at most,
const MOST: usize = 1024;
/// and values in them.
const MOST_VALUES: usize = 1 << 16;

struct Batch {
    happened: Happened,
    values: Vec<ToldValue>,
    /// Values that were told of before it.
    first: u64,
}

impl Batch {
    fn end(&self) -> u64 {
        self.first + self.values.len() as u64
    }
}

/// Batches in the order in which they came.
#[derive(Default)]
pub(super) struct Queue {
    kept: VecDeque<Batch>,
    /// Values that are kept.
    values: usize,
    /// Values that were told of, with those for which there was no memory.
    told: u64,
}

impl Queue {
    /// `lost` more were before these, and nobody knows which.
    fn push(&mut self, happened: Happened, values: Vec<ToldValue>, lost: u64) {
        let first = self.told + lost;
        let batch = Batch { happened, values, first };
        self.told = batch.end();
        self.values += batch.values.len();
        while self.kept.len() >= MOST || self.values > MOST_VALUES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.values -= oldest.values.len();
        }
        if !batch.values.is_empty() && self.kept.try_reserve(1).is_ok() {
            self.kept.push_back(batch);
        } else {
            self.values -= batch.values.len();
        }
    }

    /// The oldest that is kept of what was told since there were so many values, as far as it has room; one value always has.
    fn since(&self, since: u64, room: usize) -> Result<Told> {
        let since = since.min(self.told);
        let at = self.kept.partition_point(|batch| batch.end() <= since);
        let Some(batch) = self.kept.get(at) else {
            let event = Event { happened: Happened::Stored, values: Vec::new(), lost: self.told - since };
            return Ok(Told { event, next: self.told });
        };
        let from = since.max(batch.first);
        let skip = usize::try_from(from - batch.first).unwrap_or(usize::MAX);
        let rest = batch.values.get(skip..).unwrap_or_default();
        let mut left = room;
        let fits = |(name, key, _): &&ToldValue| {
            let taken = left.checked_sub(Told::room(name, key));
            left = taken.unwrap_or(0);
            taken.is_some()
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let copied = |(name, key, bytes): &ToldValue| Ok((memory::copy(name)?, memory::copy(key)?, *bytes));
        let values = memory::try_collect(rest[..count].iter().map(copied))?;
        Ok(Told { event: Event { happened: batch.happened, values, lost: from - since }, next: from + count as u64 })
    }
}

impl Owner {
    /// These were written; without memory to say so they are counted as lost.
    pub(super) fn happened<'a>(&self, happened: Happened, items: impl Iterator<Item = &'a ToWrite>) {
        if !self.config.events {
            return;
        }
        let names = self.directory.names();
        let name_of = |item: &ToWrite| {
            let names = names.as_ref().map_err(Clone::clone)?;
            let name = names.iter().find(|(space, _)| *space == item.space);
            name.map_or(Ok(Vec::new()), |(_, name)| memory::copy(name))
        };
        let mut values = Vec::new();
        let mut lost = 0;
        for item in items {
            let name = name_of(item);
            let value = name.and_then(|name| Ok((name, memory::copy(&item.key)?, item.bytes)));
            lost += u64::from(value.and_then(|value| memory::push(&mut values, value)).is_err());
        }
        self.tell(happened, values, lost);
    }

    pub(super) fn tell(&self, happened: Happened, values: Vec<ToldValue>, lost: u64) {
        if !self.config.events || values.is_empty() && lost == 0 {
            return;
        }
        let mut events = self.events.lock();
        events.push(happened, values, lost);
        // Other processes look at this.
        self.map.view().header().told.store(events.told, Release);
        self.announcer.announce(true);
    }

    /// Whether it keeps what happens.
    #[must_use]
    pub fn keeps_events(&self) -> bool {
        self.config.events
    }

    /// See `DiskOwner::told`.
    pub(super) fn told_since(&self, disk: u64, since: u64, room: usize) -> Result<Told> {
        if disk != self.map.id() {
            return Err(Error::new(NMC_ERR_UNAVAILABLE, "the tier was opened anew"));
        }
        if !self.config.events {
            let text = "the tier keeps no events: its owner has to ask for them, by NMC_TIER_EVENTS or nmc master --ssd-events";
            return Err(Error::new(NMC_ERR_UNSUPPORTED, text));
        }
        self.events.lock().since(since, room)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    fn values(from: u64, count: u64) -> Vec<ToldValue> {
        (from..from + count).map(|number| (Vec::new(), number.to_le_bytes().to_vec(), number)).collect()
    }

    /// Everything that one process takes from `since` on: values, and how many it has lost.
    fn take(queue: &Queue, mut since: u64, room: usize) -> (Vec<u64>, u64) {
        let (mut taken, mut lost) = (Vec::new(), 0);
        loop {
            let Told { event, next } = queue.since(since, room).unwrap();
            lost += event.lost;
            taken.extend(event.values.iter().map(|(.., bytes)| *bytes));
            if next == since {
                return (taken, lost);
            }
            since = next;
        }
    }

    #[test]
    fn every_process_takes_all_at_its_own_pace() {
        let mut queue = Queue::default();
        (0..10).for_each(|batch| queue.push(Happened::Stored, values(10 * batch, 10), 0));
        // One value at a time, some, and whole batches.
        for room in [0, 100, usize::MAX] {
            assert_eq!(take(&queue, 0, room), ((0..100).collect(), 0), "room {room}");
            assert_eq!(take(&queue, 55, room), ((55..100).collect(), 0), "room {room}");
        }
        assert_eq!(take(&queue, 100, 100), (Vec::new(), 0));
        assert_eq!(queue.since(u64::MAX, 100).unwrap().next, 100, "nobody is ahead");
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_gone_is_counted() {
        let mut queue = Queue::default();
        let all = 2 * MOST as u64;
        (0..all).for_each(|number| queue.push(Happened::Evicted, values(number, 1), 0));
        assert_eq!(queue.kept.len(), MOST);
        let (taken, lost) = take(&queue, 5, 1000);
        assert_eq!((taken.len(), taken[0], lost), (MOST, all - MOST as u64, all - MOST as u64 - 5));
        (0..40).for_each(|batch| queue.push(Happened::Stored, values(4096 * batch, 4096), 0));
        assert!(queue.values <= MOST_VALUES && queue.kept.len() <= MOST_VALUES / 4096);
        let (taken, lost) = take(&queue, 0, 1000);
        assert_eq!(taken.len() as u64 + lost, queue.told, "each is taken or counted");
        // Those for which there was no memory, whether others come after them or not.
        let until = queue.told;
        queue.push(Happened::Stored, values(0, 2), 3);
        assert_eq!(take(&queue, until, 1000), (vec![0, 1], 3));
        queue.push(Happened::Stored, Vec::new(), 4);
        assert_eq!(take(&queue, until, 1000), (vec![0, 1], 7));
    }
}
