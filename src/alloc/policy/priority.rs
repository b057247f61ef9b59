//! The entry with the lowest priority goes first; of equals the one that joined first. A priority can lapse: when its time
//! is over, the entry falls to the lowest. The heat of an entry is its priority.

use super::deadlines::Deadlines;
use super::{Entry, Policy, Queue, Turn};
use crate::base::error::Result;

/// Priorities are below this; 0 goes first.
pub const PRIORITIES: u8 = 16;

#[derive(Default)]
pub struct Priority {
    deadlines: Deadlines,
}

fn list_of(priority: u8) -> u16 {
    priority.min(PRIORITIES - 1).into()
}

/// The later of two times, of which 0 is never.
fn later(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 { 0 } else { a.max(b) }
}

impl Priority {
    /// Gets memory for so many entries.
    pub fn reserve(&mut self, entries: usize) -> Result<()> {
        self.deadlines.reserve(entries)
    }

    /// There are now so many entries, for which there is memory.
    pub fn fit(&mut self, entries: usize) {
        self.deadlines.fit(entries);
    }

    pub fn bytes(&self) -> usize {
        self.deadlines.bytes()
    }

    /// Gives an entry that is in no list a priority, which lapses at `until` unless that is 0.
    pub fn set<E: Entry>(&mut self, entry: &mut E, id: u32, priority: u8, until: u32) {
        entry.set_heat(priority);
        self.deadlines.set(id, until);
    }

    /// An entry has no priority any more that could lapse.
    pub fn forget(&mut self, id: u32) {
        self.deadlines.set(id, 0);
    }

    /// Gives an entry at least this priority, for at least this long. False if it has it already.
    pub fn raise<E: Entry>(&mut self, queue: &mut Queue<'_, E>, id: u32, priority: u8, until: u32) -> bool {
        let entry = &mut queue.table[id as usize];
        let (has, lasts) = (entry.heat(), self.deadlines.get(id));
        let until = if has == priority { later(lasts, until) } else { until };
        if has > priority || (has == priority && (priority == 0 || lasts == until)) {
            return false;
        }
        entry.set_heat(priority);
        self.deadlines.set(id, until);
        queue.move_to(list_of(priority), id);
        true
    }

    /// Entries whose time is over at `now` fall to the lowest priority.
    pub fn lapse<E: Entry>(&mut self, queue: &mut Queue<'_, E>, now: u32) {
        while let Some(id) = self.deadlines.pop(now) {
            queue.table[id as usize].set_heat(0);
            queue.move_to(0, id);
        }
    }
}

impl Policy for Priority {
    const LISTS: u16 = PRIORITIES as u16;

    #[inline]
    fn joins<E: Entry>(&mut self, entry: &mut E, _: u64) -> u16 {
        list_of(entry.heat())
    }

    #[inline]
    fn touch<E: Entry>(&mut self, queue: &mut Queue<'_, E>, id: u32) {
        queue.move_to(list_of(queue.table[id as usize].heat()), id);
    }

    fn victim<E: Entry>(
        &mut self,
        queue: &mut Queue<'_, E>,
        looks: &mut usize,
        mut judge: impl FnMut(&mut E, u32) -> Turn,
    ) -> Option<u32> {
        (0..Self::LISTS).find_map(|list| queue.first_to_go(list, looks, &mut judge))
    }
}
