//! Reads of a store that go on to the cluster: by the name of the store's namespace instead of the client's, and past the nodes of this
//! process, in which the store has looked already. Whoever waits can be stopped.

use super::batch::nothing;
use super::words::failed;
use super::{Cluster, Got, Item, What};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_TOO_SMALL, NMC_ERR_UNAVAILABLE, NMC_OK};
use crate::cluster::client::{Call, Outcome};
use crate::cluster::run::client::Task;
use crate::cluster::submit::questions;
use crate::cluster::types::ObjectKey;
use crate::cluster::wire::{Find, Listed, MAX_KEYS, Message, ROOM};
use std::time::Duration;

/// Values whose places are asked for together.
const ASKED: usize = 16 * MAX_KEYS;

/// What a read of the cluster is about, and when it ends.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// Namespace of the keys.
    pub space: &'a [u8],
    /// It is over then.
    pub deadline: &'a Deadline,
    /// Or soon after this says so, with CANCELLED.
    pub stop: &'a dyn Fn() -> bool,
    /// How long after it was first read a value goes, in ms; 0 if it stays.
    pub expire_ms: u32,
}

impl Cluster {
    /// How long a call of the client may take.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.config.patience
    }

    /// Reads values into memory that holds them, from owners; says of each what came of it.
    pub fn fetch(&self, scope: Scope<'_>, items: &[Item<'_>]) -> Result<Vec<Got>> {
        self.fetch_what(scope, items, What::Value)
    }

    /// The same, of this.
    pub fn fetch_what(&self, scope: Scope<'_>, items: &[Item<'_>], what: What) -> Result<Vec<Got>> {
        let mut all = memory::with_capacity(items.len())?;
        for part in items.chunks(ASKED) {
            all.extend(self.fetch_part(scope, part, what)?);
        }
        Ok(all)
    }

    fn fetch_part(&self, scope: Scope<'_>, items: &[Item<'_>], what: What) -> Result<Vec<Got>> {
        let mut tasks: Vec<Result<Task>> = memory::with_capacity(items.len())?;
        tasks.extend(items.iter().map(|item| self.get_task(scope.space, item, what, scope.expire_ms)));
        let (asked, unknown) = match items.len() {
            ..2 => (Vec::new(), Vec::new()),
            _ => self.unknown(scope, &tasks).unwrap_or_default(),
        };
        let size = |task: &Task| task.spans.iter().map(|span| span.len() as u64).sum();
        let tell = |item: &Item<'_>, outcome: &Outcome| {
            Ok(match outcome.status {
                NMC_OK if what == What::Value => Got::whole(outcome.count),
                NMC_OK => Got { metadata: memory::copy(&outcome.metadata.0)?, ..Got::whole(outcome.count) },
                NMC_ERR_TOO_SMALL => Got::too_large(outcome.count, item.bytes()?),
                _ => Got::of(Err(failed(outcome, item.key.escape_ascii()))),
            })
        };
        // Where they are is asked for all at once, beside those that need not be asked for. If that fails it is asked for each.
        let (mut later, mut those) = (memory::with_capacity(unknown.len())?, memory::with_capacity(unknown.len())?);
        for at in &unknown {
            those.push(items[*at]);
            later.push(std::mem::replace(&mut tasks[*at], nothing()));
        }
        let mut read = self.batch(items, tasks, asked, scope, size, tell)?;
        for (at, got) in unknown.into_iter().zip(self.batch(&those, later, Vec::new(), scope, size, tell)?) {
            read[at] = got;
        }
        memory::collect(read.into_iter().map(|got| got.unwrap_or_else(|error| Got::of(Err(error)))))
    }

    /// Questions where values are that are to be read, and which: those whose places are not remembered.
    fn unknown(&self, scope: Scope<'_>, tasks: &[Result<Task>]) -> Result<(Vec<Task>, Vec<usize>)> {
        let keys = || tasks.iter().enumerate().filter_map(|(at, task)| Some((at, task.as_ref().ok()?.call.key()?)));
        self.calls.service.look_at(|knows| {
            let unknown = || keys().filter(|(_, key)| !knows(key));
            let asked = questions(unknown().map(|(_, key)| key), scope.deadline.left())?;
            Ok((asked, memory::collect(unknown().map(|(at, _)| at))?))
        })
    }

    /// Asks where keys are, as many at once as a message holds, and remembers it.
    pub(super) fn locate(&self, scope: Scope<'_>, keys: &[&[u8]]) -> Result<Vec<Listed>> {
        let mut listed = memory::with_capacity(keys.len())?;
        let (mut part, mut bytes) = (Vec::new(), 0);
        for (at, key) in keys.iter().enumerate() {
            let key = ObjectKey::new(scope.space, key)?;
            bytes += key.as_bytes().len() + 8;
            memory::push(&mut part, key)?;
            let next = keys.get(at + 1).map_or(usize::MAX, |next| next.len() + scope.space.len() + 16);
            if part.len() == MAX_KEYS || next == usize::MAX || bytes + next > ROOM {
                let call = Call::Ask(Box::new(Find { keys: std::mem::take(&mut part), missed: Vec::new() }.into()));
                match self.ask_within(call, scope)?.reply.map(|reply| *reply) {
                    Some(Message::Found(found)) => listed.extend(found.keys),
                    _ => crate::bail!(NMC_ERR_UNAVAILABLE, "no master has answered"),
                }
                bytes = 0;
            }
        }
        Ok(listed)
    }

    /// Whether somebody has each of these keys, by what the leader lists.
    pub fn listed(&self, scope: Scope<'_>, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let listed = self.locate(scope, keys)?;
        let mut found = memory::with_capacity(keys.len())?;
        for at in 0..keys.len() {
            let status = listed.get(at).map_or(NMC_ERR_NOT_FOUND, |listed| listed.status);
            if status == NMC_ERR_UNAVAILABLE {
                crate::bail!(NMC_ERR_UNAVAILABLE, "the master is still being told what there is");
            }
            found.push(status == NMC_OK);
        }
        Ok(found)
    }
}
