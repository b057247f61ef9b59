//! Which entry goes next: an eviction policy a file, all of one shape, over lists that lie in the owner's table. Entries are
//! dense numbers. No call allocates, and none takes longer the more entries there are, but for priorities with a deadline,
//! which take a few steps of a tree.
//!
//! A policy knows the order and nothing else. What an entry is, who holds it, what may never go, classes, quotas and sizes
//! are its owner's: whenever it is an entry's turn, the owner is asked, and what stays for now is passed over. Owners that
//! hear of uses when they happen say so with [`Policy::touch`]; those that hear of them late, from stamps that readers
//! left, answer [`Turn::Stays`] for an entry that was used since they last looked.

mod deadlines;
mod fifo;
mod lfu;
pub mod list;
mod lru;
mod priority;
mod s3fifo;
#[cfg(test)]
mod tests;

pub use fifo::Fifo;
pub use lfu::Lfu;
pub use list::{Entry, Links, List, ListId, NONE, Node};
pub use lru::Lru;
pub use priority::{PRIORITIES, Priority};
pub use s3fifo::S3Fifo;

/// What its owner says of an entry whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is held, or was used since the owner was last asked.
    Stays,
    /// It can go. If it comes back it has this name, a hash.
    Goes(u64),
}

/// Where a policy keeps its entries: its list `n` is the owner's list `first + n`.
pub struct Queue<'a, E> {
    pub lists: &'a mut [List],
    pub table: &'a mut [E],
    pub first: u16,
}

impl<E: Entry> Queue<'_, E> {
    #[inline]
    fn list(&self, list: u16) -> &List {
        &self.lists[usize::from(self.first + list)]
    }

    /// Moves an entry to the end of a list, unless it is in none.
    #[inline]
    fn move_to(&mut self, list: u16, id: u32) {
        if self.table[id as usize].list().is_some() {
            list::remove(self.lists, self.table, id);
            list::push(self.lists, self.table, ListId(self.first + list), id);
        }
    }

    /// The first of a list that can go. Those before it move to its end, so that the next search does not meet them again
    /// before the others; none is asked for twice.
    #[inline]
    fn first_to_go(
        &mut self,
        list: u16,
        looks: &mut usize,
        judge: &mut impl FnMut(&mut E, u32) -> Turn,
    ) -> Option<u32> {
        for _ in 0..self.list(list).len() {
            let id = self.list(list).front().filter(|_| take(looks))?;
            match judge(&mut self.table[id as usize], id) {
                Turn::Goes(_) => return Some(id),
                Turn::Stays => self.move_to(list, id),
            }
        }
        None
    }
}

/// An order in which entries go.
pub trait Policy {
    /// Lists that it needs.
    const LISTS: u16;

    /// The list that an entry joins, at its end. Its `name` is a hash, which it has again when it comes back.
    fn joins<E: Entry>(&mut self, entry: &mut E, name: u64) -> u16;

    /// An entry was used, whether it is in a list now or not.
    fn touch<E: Entry>(&mut self, queue: &mut Queue<'_, E>, id: u32);

    /// The next entry that its owner lets go; it stays where it is until the owner takes it out. `None` if there is no
    /// such entry, or after so many `looks`, which it counts down.
    fn victim<E: Entry>(
        &mut self,
        queue: &mut Queue<'_, E>,
        looks: &mut usize,
        judge: impl FnMut(&mut E, u32) -> Turn,
    ) -> Option<u32>;

    /// The entry whose turn it is, whatever its owner would say.
    fn front<E: Entry>(&self, queue: &Queue<'_, E>) -> Option<u32> {
        (0..Self::LISTS).find_map(|list| queue.list(list).front())
    }
}

/// Counts one look, if any are left.
#[inline]
pub fn take(looks: &mut usize) -> bool {
    let left = *looks > 0;
    *looks = looks.saturating_sub(1);
    left
}
