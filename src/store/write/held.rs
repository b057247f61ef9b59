//! Objects that the master holds for whoever writes them to disk, read by a client.

use crate::base::error::Result;
use crate::store::client::Store;
use crate::store::disk::{HeldMemory, ToWrite};
use crate::store::serve::read_held;

impl HeldMemory for Store {
    fn store_id(&self) -> u64 {
        self.client.map.store_id()
    }

    fn read_held(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()> {
        read_held(&self.client.map, item, |view, object, seal| self.read_pinned_to(view, object, offset, to, seal))
    }

    fn promote(&self, namespace: u32, key: &[u8], rank: u32) -> bool {
        let mut there = false;
        self.in_namespace(namespace).promote_gently(&[key], rank, |_, came| there = matches!(came, Ok(true)));
        there
    }
}
