//! Doubly linked lists of entries. The links lie in the entries, in a table of the owner's, so that no operation allocates
//! and each costs the same wherever the entry is. An entry is in one list of its owner at most, and knows which.

/// No entry: the end of a list.
pub const NONE: u32 = u32::MAX;

/// Number of a list among those of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListId(pub u16);

/// The entries before and behind one in its list, or [`NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    pub prev: u32,
    pub next: u32,
}

impl Links {
    pub const NONE: Self = Self { prev: NONE, next: NONE };
}

/// What lists and policies keep in an entry of the owner's table.
pub trait Entry {
    fn links(&self) -> Links;
    fn links_mut(&mut self) -> &mut Links;
    fn list(&self) -> Option<ListId>;
    fn set_list(&mut self, list: Option<ListId>);
    /// What the policy remembers: uses, or a priority.
    fn heat(&self) -> u8;
    fn set_heat(&mut self, heat: u8);
}

/// An entry for owners that need no tighter one of their own: 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    links: Links,
    /// For owners that hear of uses late, from stamps: the one at which they last looked.
    pub seen: u32,
    /// `u16::MAX` is none.
    list: u16,
    heat: u8,
}

impl Node {
    pub const NEW: Self = Self { links: Links::NONE, seen: 0, list: u16::MAX, heat: 0 };
}

impl Entry for Node {
    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }

    fn list(&self) -> Option<ListId> {
        (self.list != u16::MAX).then_some(ListId(self.list))
    }

    fn set_list(&mut self, list: Option<ListId>) {
        self.list = list.map_or(u16::MAX, |list| list.0);
    }

    fn heat(&self) -> u8 {
        self.heat
    }

    fn set_heat(&mut self, heat: u8) {
        self.heat = heat;
    }
}

/// The ends of a list and its length. An owner has an array of them, in which [`ListId`] is the place.
#[derive(Debug, Clone, Copy)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    #[inline]
    pub const fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The entries, the first one first.
    pub fn iter<'a, E: Entry>(&self, table: &'a [E]) -> impl Iterator<Item = u32> + use<'a, E> {
        let behind = |id: &u32| table.get(*id as usize).map(|entry| entry.links().next).filter(|next| *next != NONE);
        std::iter::successors(self.front(), behind)
    }
}

/// Puts an entry that is in no list at the end of one.
#[inline]
pub fn push<E: Entry>(lists: &mut [List], table: &mut [E], list: ListId, id: u32) {
    debug_assert!(table[id as usize].list().is_none(), "entry {id} is in a list");
    let ends = &mut lists[usize::from(list.0)];
    let last = std::mem::replace(&mut ends.tail, id);
    ends.len += 1;
    match table.get_mut(last as usize) {
        Some(last) => last.links_mut().next = id,
        None => ends.head = id,
    }
    let entry = &mut table[id as usize];
    *entry.links_mut() = Links { prev: last, next: NONE };
    entry.set_list(Some(list));
}

/// Takes an entry out of its list, if it is in one.
#[inline]
pub fn remove<E: Entry>(lists: &mut [List], table: &mut [E], id: u32) {
    let entry = &mut table[id as usize];
    let Some(list) = entry.list() else { return };
    let Links { prev, next } = entry.links();
    entry.set_list(None);
    let ends = &mut lists[usize::from(list.0)];
    ends.len -= 1;
    match table.get_mut(prev as usize) {
        Some(before) => before.links_mut().next = next,
        None => ends.head = next,
    }
    match table.get_mut(next as usize) {
        Some(behind) => behind.links_mut().prev = prev,
        None => ends.tail = prev,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use std::collections::VecDeque;

    #[test]
    fn lists_behave_like_deques_and_an_entry_is_in_one_at_most() {
        let mut table = vec![Node::NEW; 64];
        let mut lists = [List::EMPTY; 4];
        let mut naive: Vec<VecDeque<u32>> = vec![VecDeque::new(); 4];
        let mut random = Random(12345);
        for _ in 0..20_000 {
            let id = random.below(64);
            for naive in &mut naive {
                naive.retain(|other| *other != id);
            }
            remove(&mut lists, &mut table, id);
            let to = random.below(6);
            if let (Some(naive), Ok(list)) = (naive.get_mut(to as usize), to.try_into()) {
                push(&mut lists, &mut table, ListId(list), id);
                naive.push_back(id);
            }
            for (number, (list, naive)) in (0..).map(ListId).zip(lists.iter().zip(&naive)) {
                assert_eq!((list.len() as usize, list.front()), (naive.len(), naive.front().copied()));
                assert!(list.iter(&table).eq(naive.iter().copied()));
                assert!(naive.iter().all(|id| table[*id as usize].list() == Some(number)));
            }
        }
    }
}
