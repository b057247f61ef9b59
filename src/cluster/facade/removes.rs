//! Removes, one key or many. What is removed may have been put into a store of this process a moment ago: the leader has to know of that first.

use super::nodes::Local;
use super::words::failed;
use super::{Cluster, Item};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_STALE, NMC_IN_PROGRESS, NMC_OK, nmc_status_t};
use crate::cluster::client::Call;
use crate::cluster::run::node as agent;
use crate::cluster::submit::{Numbered, Sum};
use crate::cluster::wire::Space;

impl Cluster {
    /// Removes an object everywhere. OK when every owner has dropped it, `NMC_IN_PROGRESS` if that is not known of all.
    pub fn remove(&self, key: &[u8], wait: bool) -> Result<nmc_status_t> {
        let deadline = Deadline::after(self.config.patience);
        self.tell_of(&[key], &deadline)?;
        Ok(self.ask_within(Call::Remove(self.key(key)?, wait), self.scope(&deadline))?.status)
    }

    /// Removes many, as many together as may be under way; says of each what became of it.
    pub fn remove_batch(&self, keys: &[&[u8]], wait: bool) -> Result<Vec<Result<nmc_status_t>>> {
        let deadline = Deadline::after(self.config.patience);
        self.tell_of(keys, &deadline)?;
        let items = memory::collect(keys.iter().map(|key| Item::new(key, &[])))?;
        let task = |key: &&[u8]| Ok(self.task(Call::Remove(self.key(key)?, wait), Vec::new()));
        let tasks = memory::collect(keys.iter().map(task))?;
        self.batch(
            &items,
            tasks,
            Vec::new(),
            self.scope(&deadline),
            |_| 0,
            |item, outcome| match outcome.status {
                NMC_OK | NMC_IN_PROGRESS => Ok(outcome.status),
                _ => Err(failed(outcome, item.key.escape_ascii())),
            },
        )
    }

    /// Removes all objects of the client's namespace, or of all of them.
    pub fn remove_all(&self, everywhere: bool, wait: bool) -> Result<nmc_status_t> {
        let space = (!everywhere).then(|| Space(self.config.space.clone()));
        Ok(self.ask(Call::RemoveAll(space, wait))?.status)
    }

    /// Removes objects without waiting for that: `keys[i]` is told to `sum` as number `numbers[i]`. One completion is queued for all.
    pub fn submit_remove(&self, token: u64, keys: &[&[u8]], numbers: &[usize], wait: bool, mut sum: Sum) -> Result<()> {
        self.calls.check(keys.len())?;
        let mut tasks = memory::with_capacity(keys.len())?;
        for (key, number) in keys.iter().zip(numbers) {
            match self.key(key) {
                Ok(key) => tasks.push(Numbered::new(*number, self.task(Call::Remove(key, wait), Vec::new()))),
                Err(error) => sum.add(*number, 0, error.status),
            }
        }
        let nodes = self.nodes.read();
        self.calls.submit_after(&owners(&nodes, keys)?, token, tasks, sum, self.config.patience)
    }

    /// The leader knows what nodes of this process have under these keys.
    fn tell_of(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let owners = owners(&self.nodes.read(), keys)?;
        match self.sync_all(owners, deadline) {
            // What the own node is emptied of goes anyway.
            Err(error) if error.status == NMC_ERR_STALE => Ok(()),
            synced => synced,
        }
    }
}

/// Nodes that have something under one of these keys.
fn owners(nodes: &[Local], keys: &[&[u8]]) -> Result<Vec<agent::Handle>> {
    let mut handles = memory::with_capacity(nodes.len())?;
    let has = |node: &&Local| keys.iter().any(|key| node.store.exists(key).unwrap_or(true));
    handles.extend(nodes.iter().filter(has).map(|node| node.agent.handle()));
    Ok(handles)
}
