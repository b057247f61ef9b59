//! Calls that nobody waits for, and what became of them.

use super::puts::check_copies;
use super::{Cluster, Item, PutOptions, What, device};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::cluster::run::client::Task;
use crate::cluster::submit::{Completion, Numbered, Sum};
use crate::cuda::Ordinary;
use std::os::fd::RawFd;
use std::time::Duration;

/// How an item that is submitted begins.
#[allow(clippy::large_enum_variant, reason = "made one at a time, and taken apart at once")]
enum Begun {
    /// With a call.
    Call(Task),
    /// It has ended: its bytes, and how it went.
    Over(u64, nmc_status_t),
}

impl Cluster {
    /// Puts values without waiting: item `i` is told to `sum` as number `numbers[i]`. One completion is queued for all.
    pub fn submit_put(
        &self,
        token: u64,
        items: &[Item<'_>],
        numbers: &[usize],
        options: &PutOptions,
        sum: Sum,
    ) -> Result<()> {
        check_copies(options)?;
        self.submit(token, items, numbers, sum, Ordinary::Destination, |item, deadline| {
            self.put_task(item, options, deadline).map(Begun::Call)
        })
    }

    /// Reads values without waiting, except those that a node of this client has: they are there when it returns.
    pub fn submit_get(&self, token: u64, items: &[Item<'_>], numbers: &[usize], sum: Sum) -> Result<()> {
        self.submit(token, items, numbers, sum, Ordinary::Source, |item, _| {
            Ok(match device::get_here(self, item)? {
                Some(got) => Begun::Over(got.bytes, got.result.map_or_else(|error| error.status, |()| NMC_OK)),
                None => Begun::Call(self.get_task(&self.config.space, item, What::Value, self.config.expire_ms)?),
            })
        })
    }

    fn submit(
        &self,
        token: u64,
        items: &[Item<'_>],
        numbers: &[usize],
        mut sum: Sum,
        way: Ordinary,
        begin: impl Fn(&Item<'_>, &Deadline) -> Result<Begun>,
    ) -> Result<()> {
        self.calls.check(items.len())?;
        // A placement may wait for the list of segments.
        let deadline = Deadline::after(self.config.patience);
        let mut tasks = memory::with_capacity(items.len())?;
        let mut over = memory::with_capacity(items.len())?;
        for (item, number) in items.iter().zip(numbers) {
            let begun = begin(item, &deadline).and_then(|begun| match begun {
                Begun::Call(task) => {
                    let bounce = device::bounce(self, item, way)?;
                    tasks.push(Numbered { bounce, ..Numbered::new(*number, task) });
                    Ok(None)
                }
                Begun::Over(bytes, status) => Ok(Some((bytes, status))),
            });
            match begun {
                Ok(None) => {}
                Ok(Some((bytes, status))) => over.push((*number, bytes, status)),
                Err(error) => over.push((*number, 0, error.status)),
            }
        }
        over.into_iter().for_each(|(number, bytes, status)| sum.add(number, bytes, status));
        self.calls.submit(token, tasks, sum, deadline.left())
    }

    /// What became of what was submitted; see [`crate::cluster::submit::Calls::completions`].
    pub fn completions(&self, most: usize, limit: Duration, take: impl FnMut(Completion)) -> usize {
        self.calls.completions(most, limit, take)
    }

    /// Ends what was submitted with this token; gives how much.
    pub fn cancel_submitted(&self, token: u64) -> Result<usize> {
        self.calls.cancel(token)
    }

    /// A descriptor that is readable while there is a completion to take, or something to do for what was submitted.
    pub fn event_fd(&self) -> Result<RawFd> {
        self.calls.event_fd()
    }
}
