//! A queue for what must not be lost: what happened, and what is to be done about it. It asks for memory in pieces of less than 4 KiB, which
//! are not among those that may be refused ([`super::memory`]), however long it becomes, and keeps one when it is empty.

use std::collections::{LinkedList, VecDeque};

/// Bytes of a piece, unless one entry has more.
const PIECE: usize = 3 << 10;

/// See the module.
#[derive(Debug)]
pub struct Queue<T> {
    /// Only the last one may be empty, and none is longer than [`Self::MOST`].
    pieces: LinkedList<VecDeque<T>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// Entries of a piece.
    const MOST: usize = match PIECE / if size_of::<T>() == 0 { 1 } else { size_of::<T>() } {
        0 => 1,
        most => most,
    };

    /// An empty one, without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: LinkedList::new() }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.front().is_none_or(VecDeque::is_empty)
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(VecDeque::len).sum()
    }

    /// Puts an entry at the end.
    pub fn push(&mut self, entry: T) {
        match self.pieces.back_mut().filter(|piece| piece.len() < Self::MOST) {
            Some(piece) => piece.push_back(entry),
            None => {
                let mut piece = VecDeque::with_capacity(Self::MOST);
                piece.push_back(entry);
                self.pieces.push_back(piece);
            }
        }
    }

    /// Takes the first entry.
    pub fn pop(&mut self) -> Option<T> {
        let first = self.pieces.front_mut()?;
        let entry = first.pop_front();
        if first.is_empty() && self.pieces.len() > 1 {
            self.pieces.pop_front();
        }
        entry
    }

    /// The first entry.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.pieces.front()?.front()
    }

    /// All entries, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    /// Leaves out what is not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for _ in 0..self.len() {
            self.pop().into_iter().filter(&mut keep).for_each(|entry| self.push(entry));
        }
    }

    /// Makes the first entry the last one.
    pub fn turn(&mut self) {
        if let Some(entry) = self.pop() {
            self.push(entry);
        }
    }
}

impl<T> IntoIterator for Queue<T> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::collections::linked_list::IntoIter<VecDeque<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

impl<T> Extend<T> for Queue<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::super::largest::Largest;
    use super::super::random::Random;
    use super::*;

    #[test]
    fn entries_come_out_as_they_went_in() {
        let (mut queue, mut model, mut random, mut most) = (Queue::new(), VecDeque::new(), Random(1), 0);
        for number in 0..100_000u64 {
            // Longer for a while, and then shorter.
            let longer = number / 2_000 % 2 == 0;
            match random.below(8u64) {
                0 | 1 => assert_eq!(queue.pop(), model.pop_front()),
                2 | 3 if !longer => assert_eq!((queue.pop(), queue.pop()), (model.pop_front(), model.pop_front())),
                3 if random.one_in(1_000) => {
                    queue.retain(|entry: &[u64; 5]| !entry[0].is_multiple_of(3));
                    model.retain(|entry: &[u64; 5]| !entry[0].is_multiple_of(3));
                }
                4 => {
                    queue.turn();
                    let first = model.pop_front();
                    model.extend(first);
                }
                _ => {
                    queue.push([number; 5]);
                    model.push_back([number; 5]);
                }
            }
            most = most.max(queue.len());
            assert_eq!((queue.is_empty(), queue.first()), (model.is_empty(), model.front()));
        }
        assert!(most > 500 && queue.iter().eq(&model));
    }

    #[test]
    fn however_long_it_is_no_piece_has_4_kib() {
        let largest = Largest::of_nobody();
        largest.watch_here();
        let mut queue = Queue::new();
        queue.extend((0..1_000).map(|number| [number; 63]));
        assert_eq!(queue.len(), 1_000);
        assert!(largest.take() < 4096);
        let control: VecDeque<_> = (0..1_000).map(|number| [number; 63]).collect();
        assert!(control.len() == 1_000 && largest.take() > 4096);
    }
}
