//! What happened to values on disk, for a program that wants to know: batches of keys that were stored or evicted. The oldest
//! make way if nobody takes them, and are counted.

use super::Owner;
use crate::base::memory;
use crate::store::master::ToWrite;
use std::collections::VecDeque;

/// Batches that wait to be taken, at most,
const MOST: usize = 1024;
/// and values in them.
const MOST_VALUES: usize = 1 << 16;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// Values are on disk for good.
    Stored,
    /// Values were taken from the disk, to make room.
    Evicted,
}

/// A batch of keys to which the same happened at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub happened: Happened,
    /// Of each value: name of its namespace, key, and bytes.
    pub values: Vec<(Vec<u8>, Vec<u8>, u64)>,
    /// Values of earlier batches that were not taken in time.
    pub lost: u64,
}

/// Batches in the order in which they came.
pub(super) struct Queue {
    wanted: bool,
    waiting: VecDeque<Event>,
    /// Values that wait.
    values: usize,
    lost: u64,
}

impl Queue {
    pub fn new(wanted: bool) -> Self {
        Self { wanted, waiting: VecDeque::new(), values: 0, lost: 0 }
    }

    fn push(&mut self, event: Event) {
        self.values += event.values.len();
        while self.waiting.len() >= MOST || self.values > MOST_VALUES {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.values -= oldest.values.len();
            self.lost += oldest.values.len() as u64;
        }
        if self.waiting.try_reserve(1).is_ok() {
            self.waiting.push_back(event);
        } else {
            self.values -= event.values.len();
            self.lost += event.values.len() as u64;
        }
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

    pub(super) fn tell(&self, happened: Happened, values: Vec<(Vec<u8>, Vec<u8>, u64)>, lost: u64) {
        let mut events = self.events.lock();
        if !events.wanted || values.is_empty() && lost == 0 {
            return;
        }
        events.lost += lost;
        events.push(Event { happened, values, lost: 0 });
        self.announcer.announce(true);
    }

    /// The oldest batch that nobody has taken.
    pub fn next_event(&self) -> Option<Event> {
        let mut events = self.events.lock();
        let event = events.waiting.pop_front();
        if events.waiting.is_empty() {
            self.announcer.announce(false);
        }
        let event = event?;
        events.values -= event.values.len();
        Some(Event { lost: std::mem::take(&mut events.lost), ..event })
    }
}
