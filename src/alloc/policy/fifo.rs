//! The entry that came first goes first, used or not.

use super::{Entry, Policy, Queue, Turn};

pub struct Fifo;

impl Policy for Fifo {
    const LISTS: u16 = 1;

    #[inline]
    fn joins<E: Entry>(&mut self, _: &mut E, _: u64) -> u16 {
        0
    }

    fn touch<E: Entry>(&mut self, _: &mut Queue<'_, E>, _: u32) {}

    fn victim<E: Entry>(
        &mut self,
        queue: &mut Queue<'_, E>,
        looks: &mut usize,
        mut judge: impl FnMut(&mut E, u32) -> Turn,
    ) -> Option<u32> {
        queue.first_to_go(0, looks, &mut judge)
    }
}
