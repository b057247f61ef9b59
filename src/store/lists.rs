//! Every header is in exactly one list of the master: free, being written, in an eviction queue, or waiting for a reader
//! or a writer. Lists are doubly linked through one array, so moving a header costs the same wherever it is.

use crate::base::error::Result;
use crate::base::memory;

const NONE: u32 = u32::MAX;

/// A list. Which list a header is in is part of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListId(pub u16);

#[derive(Debug, Clone, Copy)]
struct Node {
    prev: u32,
    next: u32,
    /// Access stamp at which the policy last looked.
    seen: u32,
    list: ListId,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

/// All lists of a master.
pub struct Lists {
    nodes: Vec<Node>,
    ends: Vec<Ends>,
}

impl Lists {
    /// Bytes of memory for a header.
    pub const NODE_BYTES: u64 = size_of::<Node>() as u64;

    /// `count` headers, all in list `first`, and `lists` lists.
    pub fn new(count: u32, lists: u16, first: ListId) -> Result<Self> {
        let ends = memory::vec_of(lists.into(), Ends { head: NONE, tail: NONE, len: 0 })?;
        let mut all = Self { nodes: memory::with_capacity(count as usize)?, ends };
        for index in 0..count {
            all.nodes.push(Node { prev: NONE, next: NONE, seen: 0, list: first });
            all.link(index, first);
        }
        Ok(all)
    }

    fn link(&mut self, index: u32, list: ListId) {
        let Some(ends) = self.ends.get_mut(usize::from(list.0)) else { return };
        let tail = std::mem::replace(&mut ends.tail, index);
        if ends.head == NONE {
            ends.head = index;
        }
        ends.len += 1;
        if let Some(node) = self.nodes.get_mut(index as usize) {
            (node.prev, node.next, node.list) = (tail, NONE, list);
        }
        if let Some(before) = self.nodes.get_mut(tail as usize) {
            before.next = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(Node { prev, next, list, .. }) = self.nodes.get(index as usize).copied() else { return };
        if let Some(before) = self.nodes.get_mut(prev as usize) {
            before.next = next;
        }
        if let Some(after) = self.nodes.get_mut(next as usize) {
            after.prev = prev;
        }
        if let Some(ends) = self.ends.get_mut(usize::from(list.0)) {
            if ends.head == index {
                ends.head = next;
            }
            if ends.tail == index {
                ends.tail = prev;
            }
            ends.len -= 1;
        }
    }

    /// Puts a header at the end of `list`, taking it out of the one it is in.
    pub fn move_to(&mut self, index: u32, list: ListId) {
        self.unlink(index);
        self.link(index, list);
    }

    /// The list a header is in.
    #[must_use]
    pub fn list_of(&self, index: u32) -> Option<ListId> {
        self.nodes.get(index as usize).map(|node| node.list)
    }

    /// First of a list.
    #[must_use]
    pub fn head(&self, list: ListId) -> Option<u32> {
        self.ends.get(usize::from(list.0)).map(|ends| ends.head).filter(|head| *head != NONE)
    }

    /// The one after `index` in its list.
    #[must_use]
    pub fn after(&self, index: u32) -> Option<u32> {
        self.nodes.get(index as usize).map(|node| node.next).filter(|next| *next != NONE)
    }

    /// Length of a list.
    #[must_use]
    pub fn len(&self, list: ListId) -> u32 {
        self.ends.get(usize::from(list.0)).map_or(0, |ends| ends.len)
    }

    /// The headers of a list, oldest first.
    pub fn iter(&self, list: ListId) -> impl Iterator<Item = u32> {
        std::iter::successors(self.head(list), |index| self.after(*index))
    }

    /// Access stamp at which the policy last looked at a header.
    #[must_use]
    pub fn seen(&self, index: u32) -> u32 {
        self.nodes.get(index as usize).map_or(0, |node| node.seen)
    }

    /// Notes the access stamp.
    pub fn set_seen(&mut self, index: u32, stamp: u32) {
        if let Some(node) = self.nodes.get_mut(index as usize) {
            node.seen = stamp;
        }
    }

    /// Bytes of this process that the lists take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_is_in_exactly_one_list_in_order_of_arrival() {
        let mut lists = Lists::new(50, 4, ListId(0)).expect("memory");
        let mut model: Vec<Vec<u32>> = vec![(0..50).collect(), vec![], vec![], vec![]];
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = u32::try_from(random >> 33).unwrap_or(0) % 50;
            let to = usize::try_from(random >> 20 & 3).unwrap_or(0);
            for list in &mut model {
                list.retain(|i| *i != index);
            }
            model[to].push(index);
            lists.move_to(index, ListId(u16::try_from(to).unwrap_or(0)));
            for (list, id) in model.iter().zip(0u16..) {
                assert!(lists.iter(ListId(id)).eq(list.iter().copied()));
                assert_eq!(lists.len(ListId(id)) as usize, list.len());
                assert!(list.iter().all(|i| lists.list_of(*i) == Some(ListId(id))));
            }
        }
    }
}
