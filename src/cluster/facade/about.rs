//! What the writer of a value said about it: from a store of this process, or from an owner, which is asked for no byte of the value.

use super::{Cluster, Got, Item};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::submit::{Numbered, Said, Sum};
use crate::store::Store;
use crate::store::types::Look;

/// What is read of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Its bytes.
    Value,
    /// What its writer said about it, and no byte of it. That does not count as having been read.
    Metadata,
    /// Both, of the same put.
    Both,
}

/// What a store has to say about a value, in memory or on disk; `None` if it cannot be read there.
pub(super) fn said_here(store: &Store, key: &[u8]) -> Result<Option<Vec<u8>>> {
    match store.metadata(key)? {
        Look::Ready(said) => memory::copy(&said).map(Some),
        Look::Writing(..) => Ok(None),
        Look::Missing => match store.disk_metadata(key)? {
            Look::Ready(said) => Ok(Some(said)),
            Look::Writing(..) | Look::Missing => Ok(None),
        },
    }
}

impl Cluster {
    pub(super) fn about_here(&self, key: &[u8]) -> Result<Option<Got>> {
        let said = self.local(|node| said_here(&node.store, key))?;
        Ok(said.map(|metadata| Got { metadata, ..Got::whole(0) }))
    }

    /// Asks what is said about a value without waiting for it: `said` gets it when that is known.
    pub fn submit_about(&self, token: u64, key: &[u8], said: Said) -> Result<()> {
        self.calls.check(1)?;
        let deadline = Deadline::after(self.config.patience);
        let (item, mut tasks, mut sum) = (Item::new(key, &[]), memory::with_capacity(1)?, Sum::saying(said));
        match self.about_here(key) {
            Ok(Some(got)) => sum.said(&got.metadata),
            Ok(None) => tasks.push(Numbered::new(0, self.get_task(&self.config.space, &item, What::Metadata, 0)?)),
            Err(error) => sum.add(0, 0, error.status),
        }
        self.calls.submit(token, tasks, sum, deadline.left())
    }
}
