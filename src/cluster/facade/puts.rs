//! Putting values.

use super::words::failed;
use super::{Cluster, Item, device};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_OK;
use crate::cluster::client::{Call, PutCall};
use crate::cluster::run::client::Task;
use crate::cluster::wire::{MAX_COPIES, Metadata, Replicate};

/// How a value is to be put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// How many copies, and where.
    pub replicate: Replicate,
    /// Code of the retain class and priority.
    pub retain: u32,
    /// What is said about it.
    pub metadata: Vec<u8>,
}

impl Default for PutOptions {
    fn default() -> Self {
        let replicate = Replicate { copies: 1, media: Vec::new(), fixed: Vec::new(), near: String::new() };
        Self { replicate, retain: 0, metadata: Vec::new() }
    }
}

impl Cluster {
    /// Puts values; says of each what became of it. What is put twice under a key is refused with EXISTS by owners that have it.
    pub fn put(&self, items: &[Item<'_>], options: &PutOptions) -> Result<Vec<Result<()>>> {
        check_copies(options)?;
        let deadline = Deadline::after(self.config.patience);
        let call = |items: &[Item<'_>]| self.put_within(items, options, &deadline);
        device::put(&device::Calls { cluster: self, deadline: &deadline }, items, call)
    }

    fn put_within(&self, items: &[Item<'_>], options: &PutOptions, deadline: &Deadline) -> Result<Vec<Result<()>>> {
        let mut tasks = memory::with_capacity(items.len())?;
        for item in items {
            tasks.push(self.put_task(item, options, deadline));
        }
        let size = |task: &Task| match &task.call {
            Call::Put(put) => put.length,
            _ => 0,
        };
        self.batch(items, tasks, Vec::new(), self.scope(deadline), size, |item, outcome| match outcome.status {
            NMC_OK => Ok(()),
            _ => Err(failed(outcome, item.key.escape_ascii())),
        })
    }

    pub(super) fn put_task(&self, item: &Item<'_>, options: &PutOptions, deadline: &Deadline) -> Result<Task> {
        let (key, length) = (self.key(item.key)?, item.bytes()?);
        let mut config = self.placed(item.key, length, options.replicate.clone(), deadline)?;
        if config.near.is_empty() {
            config.near = memory::text(&self.near)?;
        }
        let put = PutCall {
            key,
            length,
            // They were added up here.
            slices: vec![length],
            config,
            retain: options.retain,
            metadata: Metadata(memory::copy(&options.metadata)?),
            crc: None,
            stripe: self.config.stripe,
        };
        Ok(Task { far: item.far, ..self.task(Call::Put(put), item.spans()?) })
    }
}

pub(super) fn check_copies(options: &PutOptions) -> Result<()> {
    match options.replicate.copies {
        1..=MAX_COPIES => Ok(()),
        copies => crate::bail!(NMC_ERR_INVALID_ARG, "{copies} copies are wanted; 1 to {MAX_COPIES} are possible"),
    }
}
