//! Every header is in exactly one list of the master: free, being written, in an eviction queue, or waiting for a reader
//! or a writer. With its place there goes the stamp at which the eviction policy last looked; 16 bytes a header.

use crate::alloc::policy::{Entry, List, NONE, Node, Queue, list};
use crate::base::error::Result;
use crate::base::memory;

pub use crate::alloc::policy::ListId;

pub struct Lists {
    table: Vec<Node>,
    lists: Vec<List>,
}

impl Lists {
    /// Bytes of memory for a header.
    pub const NODE_BYTES: u64 = size_of::<Node>() as u64;

    /// `count` headers, all in list `first`, and `lists` lists.
    pub fn new(count: u32, lists: u16, first: ListId) -> Result<Self> {
        let table = memory::vec_of(count as usize, Node::NEW)?;
        let mut all = Self { table, lists: memory::vec_of(lists.into(), List::EMPTY)? };
        (0..count).for_each(|index| all.move_to(index, first));
        Ok(all)
    }

    /// The lists from `first` on, for a policy.
    pub fn queue(&mut self, first: ListId) -> Queue<'_, Node> {
        Queue { lists: &mut self.lists, table: &mut self.table, first: first.0 }
    }

    /// Puts a header at the end of `list`, taking it out of the one it is in.
    pub fn move_to(&mut self, index: u32, list: ListId) {
        if (index as usize) < self.table.len() {
            list::remove(&mut self.lists, &mut self.table, index);
            list::push(&mut self.lists, &mut self.table, list, index);
        }
    }

    /// The list a header is in; `None` if there is no such header.
    pub fn list_of(&self, index: u32) -> Option<ListId> {
        self.table.get(index as usize).and_then(Entry::list)
    }

    pub fn head(&self, list: ListId) -> Option<u32> {
        self.lists.get(usize::from(list.0)).and_then(List::front)
    }

    /// The one after `index` in its list.
    pub fn after(&self, index: u32) -> Option<u32> {
        self.table.get(index as usize).map(|node| node.links().next).filter(|next| *next != NONE)
    }

    pub fn len(&self, list: ListId) -> u32 {
        self.lists.get(usize::from(list.0)).map_or(0, List::len)
    }

    /// The headers of a list, oldest first.
    pub fn iter(&self, list: ListId) -> impl Iterator<Item = u32> {
        self.lists.get(usize::from(list.0)).into_iter().flat_map(|list| list.iter(&self.table))
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.table.get_mut(index as usize)
    }

    /// Bytes of this process that the lists take.
    pub fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<Node>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    #[test]
    fn every_header_is_in_exactly_one_list_in_order_of_arrival() {
        let mut lists = Lists::new(50, 4, ListId(0)).expect("memory");
        let mut model: Vec<Vec<u32>> = vec![(0..50).collect(), vec![], vec![], vec![]];
        let mut random = Random(1);
        for _ in 0..20_000 {
            let index = random.below(50);
            let to = random.below(4_usize);
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
