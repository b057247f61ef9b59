//! The entry that was used least recently goes first. One that its owner passes over counts as used just now.

use super::{Entry, Policy, Queue, Turn};

pub struct Lru;

impl Policy for Lru {
    const LISTS: u16 = 1;

    #[inline]
    fn joins<E: Entry>(&mut self, _: &mut E, _: u64) -> u16 {
        0
    }

    #[inline]
    fn touch<E: Entry>(&mut self, queue: &mut Queue<'_, E>, id: u32) {
        queue.move_to(0, id);
    }

    fn victim<E: Entry>(
        &mut self,
        queue: &mut Queue<'_, E>,
        looks: &mut usize,
        mut judge: impl FnMut(&mut E, u32) -> Turn,
    ) -> Option<u32> {
        queue.first_to_go(0, looks, &mut judge)
    }
}
