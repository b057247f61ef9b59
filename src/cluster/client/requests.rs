//! Requests that have no answer yet: by number, by call, and by the time at which they are late.

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::net::ByNumber;
use crate::cluster::types::{Millis, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub call: u64,
    /// What it is to the call.
    pub part: usize,
    pub until: Millis,
    /// Whether it went to a master.
    pub master: bool,
    /// The node that it went to.
    pub node: Option<NodeId>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Requests {
    all: ByNumber<u64, Request>,
    by_call: BTreeSet<(u64, u64)>,
    by_time: BTreeSet<(Millis, u64)>,
    /// How many there are of each node that has any.
    by_node: BTreeMap<NodeId, usize>,
}

impl Requests {
    /// Room for so many.
    pub(super) fn reserve(&mut self, all: usize) -> Result<()> {
        let more = all.saturating_sub(self.all.len());
        memory::reserve_map(&mut self.all, more)
    }

    /// Room for so many besides.
    pub(super) fn reserve_more(&mut self, more: usize) -> Result<()> {
        memory::reserve_map(&mut self.all, more)
    }

    pub(super) fn insert(&mut self, number: u64, request: Request) {
        self.remove(number);
        self.by_call.insert((request.call, number));
        self.by_time.insert((request.until, number));
        if let Some(node) = request.node {
            *self.by_node.entry(node).or_default() += 1;
        }
        self.all.insert(number, request);
    }

    /// A node was asked.
    pub(super) fn goes_to(&mut self, number: u64, node: NodeId) {
        if let Some(request) = self.all.get_mut(&number).filter(|request| request.node.is_none()) {
            request.node = Some(node);
            *self.by_node.entry(node).or_default() += 1;
        }
    }

    /// How many a node has not answered.
    pub(super) fn of_node(&self, node: NodeId) -> usize {
        self.by_node.get(&node).copied().unwrap_or(0)
    }

    pub(super) fn get(&self, number: u64) -> Option<Request> {
        self.all.get(&number).copied()
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Request> {
        let request = self.all.remove(&number)?;
        self.by_call.remove(&(request.call, number));
        self.by_time.remove(&(request.until, number));
        if let Some(node) = request.node
            && let Some(count) = self.by_node.get_mut(&node)
        {
            *count -= 1;
            if *count == 0 {
                self.by_node.remove(&node);
            }
        }
        Some(request)
    }

    /// Such requests of a call are not waited for any more: `tell` is told of each.
    pub(super) fn remove_those_of(&mut self, call: u64, which: impl Fn(Request) -> bool, mut tell: impl FnMut(u64)) {
        let next = |all: &Self| {
            let mut of_call = all.by_call.range((call, 0)..=(call, u64::MAX)).map(|(_, number)| *number);
            of_call.find(|number| all.get(*number).is_some_and(&which))
        };
        while let Some(number) = next(self) {
            self.remove(number);
            tell(number);
        }
    }

    /// When the first will be late.
    pub(super) fn due(&self) -> Option<Millis> {
        self.by_time.first().map(|(until, _)| *until)
    }

    /// Takes out one that is late.
    pub(super) fn take_late(&mut self, now: Millis) -> Option<(u64, Request)> {
        let (until, number) = *self.by_time.first()?;
        if until > now {
            return None;
        }
        self.remove(number).map(|request| (number, request))
    }
}
