//! Requests that have no answer yet: by number, by call, and by the time at which they are late.

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::net::ByNumber;
use crate::cluster::types::{Millis, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that must move while a window of a second is open: the owner of a value from which less comes, or which takes less, is as good as stopped. See
/// [`slow_ms`](crate::cluster::types::slow_ms).
pub(super) const LEAST: u64 = 16 << 10;

/// A request whose answer is waited for as long as the bytes of its value move.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Then it is late in any case.
    pub limit: Millis,
    /// How long it is waited from when it has left.
    pub first: Millis,
    /// How long again, each time, if enough has moved meanwhile.
    pub window: Millis,
    /// How long when all of it has moved, if there is something to do with it then.
    pub after: Option<Millis>,
    /// Bytes since this window is open.
    pub moved: u64,
    /// All of it has.
    pub whole: bool,
}

impl Pace {
    /// Until when it is waited now that a window is over.
    fn next(&mut self, now: Millis) -> Option<Millis> {
        let moves = std::mem::take(&mut self.moved) >= LEAST;
        let after = if self.whole { self.after.take() } else { None };
        let until = now.saturating_add(after.or(moves.then_some(self.window))?).min(self.limit);
        (until > now).then_some(until)
    }
}

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
    /// It may have more time.
    pub pace: Option<Pace>,
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

    /// It waits until then, from now on.
    fn wait_until(&mut self, number: u64, until: Millis) {
        if let Some(request) = self.all.get_mut(&number) {
            self.by_time.remove(&(request.until, number));
            self.by_time.insert((until, number));
            request.until = until;
        }
    }

    /// It has just left, and may have waited for that: its time begins. So it does if `window` says how long, when its value begins to come.
    pub(super) fn begins(&mut self, number: u64, window: Option<Millis>, now: Millis) {
        let Some(pace) = self.all.get_mut(&number).and_then(|request| request.pace.as_mut()) else { return };
        pace.moved = 0;
        let until = now.saturating_add(window.unwrap_or(pace.first)).min(pace.limit);
        self.wait_until(number, until);
    }

    /// So many bytes of its value have moved since this was told last, and whether those were the last; or of those that it waits for.
    pub(super) fn moved(&mut self, number: u64, bytes: u64, whole: bool) {
        if let Some(pace) = self.all.get_mut(&number).and_then(|request| request.pace.as_mut()) {
            pace.moved = pace.moved.saturating_add(bytes);
            pace.whole = whole;
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

    /// Takes out one that is late. Those whose values move have more time.
    pub(super) fn take_late(&mut self, now: Millis) -> Option<(u64, Request)> {
        loop {
            let (until, number) = *self.by_time.first()?;
            if until > now {
                return None;
            }
            let request = self.all.get_mut(&number)?;
            match request.pace.as_mut().and_then(|pace| pace.next(now)) {
                Some(until) => self.wait_until(number, until),
                None => return self.remove(number).map(|request| (number, request)),
            }
        }
    }
}
