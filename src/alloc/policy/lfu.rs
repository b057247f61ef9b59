//! The entry that was used least often goes first, in powers of two; of equals the one that joined first. The heat of an
//! entry is how often it was used, up to 255; an owner that gives its number to something new sets it to 0.

use super::{Entry, Policy, Queue, Turn};

pub struct Lfu;

fn list_of(uses: u8) -> u16 {
    // At most 8.
    (u16::from(uses) + 1).ilog2().try_into().unwrap_or(0)
}

impl Policy for Lfu {
    const LISTS: u16 = 9;

    #[inline]
    fn joins<E: Entry>(&mut self, entry: &mut E, _: u64) -> u16 {
        list_of(entry.heat())
    }

    #[inline]
    fn touch<E: Entry>(&mut self, queue: &mut Queue<'_, E>, id: u32) {
        let entry = &mut queue.table[id as usize];
        let uses = entry.heat().saturating_add(1);
        entry.set_heat(uses);
        queue.move_to(list_of(uses), id);
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
