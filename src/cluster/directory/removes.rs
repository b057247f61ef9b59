//! Removing: out of the directory at once, into the drop log, and answered when every owner has dropped what it had. Owners
//! drop by name, so that a value that was put meanwhile stays; only members of whom it is not known what they have are told
//! the key.

use super::log::{self, Entry, Recorded};
use super::members::{Owner, State};
use super::objects::{Gate, Held};
use super::{Action, Ask, Change, Leader, Recording};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_IN_PROGRESS, NMC_OK, nmc_status_t};
use crate::cluster::types::{Millis, NodeId, ObjectKey, Position, is_reserved};
use crate::cluster::wire::{Answer, DropKey, DropReplica, DropSpace, Dropped, Remove, RemoveAll};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Removes that need be remembered: a message may come again, and must not remove what was put since.
const MAX_RECENT: usize = 1 << 16;

/// What became of removes that came lately, by the names of the calls.
#[derive(Debug, Default)]
pub struct Recent {
    outcomes: BTreeMap<u64, Came>,
    order: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Came {
    /// Under way, as this call.
    Call(u64),
    /// Over, with this status and count.
    Over(nmc_status_t, u64),
}

impl Recent {
    fn enter(&mut self, name: u64, call: u64) -> Result<()> {
        memory::reserve_queue(&mut self.order, 1)?;
        self.order.push_back(name);
        self.outcomes.insert(name, Came::Call(call));
        while self.order.len() > MAX_RECENT
            && let Some(oldest) = self.order.pop_front()
        {
            self.outcomes.remove(&oldest);
        }
        Ok(())
    }

    fn over(&mut self, name: u64, status: nmc_status_t, count: u64) {
        if let Some(came) = self.outcomes.get_mut(&name) {
            *came = Came::Over(status, count);
        }
    }
}

/// What a remove is remembered by: the name of its call, and what it is to remove. Who uses a name again for something else means that.
fn named(call: u64, what: &[u8]) -> u64 {
    xxh3_64_with_seed(what, call)
}

/// Somebody who waits until owners have dropped something.
#[derive(Debug)]
pub struct Call {
    ask: Ask,
    /// Entries and owners that have not been heard of.
    left: usize,
    /// How many entries there were.
    all: u64,
    /// An owner is away, and nothing says that it will drop it.
    doubt: bool,
    /// Whether the answer waits.
    wait: bool,
    /// What it is remembered by; 0 for nothing.
    name: u64,
    /// Its entries of the log are behind this.
    since: Position,
}

impl Leader {
    pub(super) fn begin_call(&mut self, ask: Ask, wait: bool, name: u64) -> u64 {
        let number = self.next_call;
        self.next_call += 1;
        let since = self.log.head();
        self.calls.insert(number, Call { ask, left: 0, all: 0, doubt: false, wait, name, since });
        number
    }

    /// Whether a remove came before: then it is answered as it was, or when it is done.
    fn came_before(&mut self, ask: Ask, name: u64, to: &mut Vec<Action>) -> bool {
        match self.recent.outcomes.get(&name) {
            None => return false,
            Some(Came::Call(call)) => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.ask = ask;
                }
            }
            Some(Came::Over(status, count)) => {
                let answer = Answer { count: *count, ..Answer::new(self.term, *status, "") };
                to.push(ask.answer(answer));
            }
        }
        true
    }

    /// Answers a call.
    fn end_call(&mut self, number: u64, status: nmc_status_t, to: &mut Vec<Action>) {
        let Some(call) = self.calls.remove(&number) else { return };
        self.recent.over(call.name, status, call.all);
        to.push(call.ask.answer(Answer { count: call.all, ..Answer::new(self.term, status, "") }));
    }

    /// Appends to the drop log.
    pub(super) fn append(&mut self, what: Dropped, nodes: &[NodeId], call: u64) -> Result<()> {
        let broad = log::is_broad(&what);
        let position = self.log.append(what, nodes, call)?;
        for id in nodes {
            if let Some(node) = self.node_mut(*id) {
                node.owed += 1;
                node.broad = if broad { position } else { node.broad };
                // Told with the next look, which follows.
                node.sent_drops = 0;
            }
        }
        if let Some(call) = self.calls.get_mut(&call) {
            call.left += nodes.len();
            call.all += 1;
        }
        Ok(())
    }

    /// Takes replicas of an object out of every lookup, and tells their owners.
    pub(super) fn take_replicas(&mut self, key: &ObjectKey, which: impl Fn(&Held) -> bool, call: u64) -> Result<()> {
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let Some(at) = found else { return Ok(()) };
        let list = memory::collect(self.objects.replicas(at).iter().filter(|held| which(held)).copied())?;
        for held in self.objects.replicas_mut(at).iter_mut().filter(|held| which(held)) {
            // It stays until its owner says that it is gone: who removes it once more has to wait for that too.
            held.gate = Gate::Dropped;
        }
        for held in list {
            self.goes(key, held.put);
            let Some((node, incarnation)) = self.owners.get(usize::from(held.owner)).and_then(Owner::whose) else {
                continue;
            };
            if self.members.contains_key(&node) {
                let key = key.copy()?;
                let what = DropReplica { incarnation, index: held.index, epoch: held.epoch, key, put: held.put };
                self.append(what.into(), &[node], call)?;
            }
        }
        Ok(())
    }

    /// Members of whom it is not known what they have under a key: those that have not reported, or are doing so once more, and those that have not dropped
    /// yet what they were told to drop unseen.
    fn unknown(&self, key: &ObjectKey) -> Result<Vec<NodeId>> {
        let mut list = memory::collect(self.nodes().filter(|node| !node.complete || node.telling).map(|node| node.id))?;
        for node in self.log.unseen(key) {
            if !list.contains(&node) {
                memory::push(&mut list, node)?;
            }
        }
        Ok(list)
    }

    pub(super) fn remove(&mut self, ask: Ask, remove: Remove, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let name = named(remove.call, remove.key.as_bytes());
        if self.came_before(ask, name, to) {
            return Ok(());
        }
        check_open(remove.key.space())?;
        let call = self.begin_call(ask, remove.wait, name);
        self.recent.enter(name, call)?;
        let done = self.remove_key(remove.key, call);
        self.go_on(call, done, now, to)
    }

    fn remove_key(&mut self, key: ObjectKey, call: u64) -> Result<()> {
        self.take_replicas(&key, |held| held.gate != Gate::Closed, call)?;
        let unknown = self.unknown(&key)?;
        if !unknown.is_empty() {
            self.append(DropKey { key }.into(), &unknown, call)?;
        }
        Ok(())
    }

    pub(super) fn remove_all(&mut self, ask: Ask, remove: RemoveAll, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        // Of all namespaces, or of one, not of a key.
        let name = remove.space.as_ref().map_or(named(!remove.call, &[0]), |space| named(!remove.call, &space.0));
        if self.came_before(ask, name, to) {
            return Ok(());
        }
        check_open(remove.space.as_ref().map_or(&[], |space| space.0.as_slice()))?;
        let call = self.begin_call(ask, remove.wait, name);
        self.recent.enter(name, call)?;
        let renewed = self.spaces.renew(remove.space.as_ref().map(|space| space.0.as_slice()));
        let done = renewed.and_then(|_| {
            let all = memory::collect(self.members.keys().copied())?;
            if all.is_empty() { Ok(()) } else { self.append(DropSpace { space: remove.space }.into(), &all, call) }
        });
        if self.members.is_empty() && done.is_ok() {
            // All of nothing.
            self.end_call(call, NMC_OK, to);
        }
        self.go_on(call, done, now, to)
    }

    /// Sends what was appended, and answers the call if nothing is left to wait for.
    pub(super) fn go_on(&mut self, call: u64, done: Result<()>, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        if let Err(error) = done {
            self.calls.remove(&call);
            return Err(error);
        }
        self.send_drops(now, to)?;
        if !self.config.durable {
            // Those that are away already are not waited for.
            let since = self.calls.get(&call).map_or(self.log.head(), |call| call.since);
            let away = self.nodes().filter(|n| n.state == State::Away).map(|n| (n.id, !n.empty));
            for (id, doubt) in memory::collect(away)? {
                self.excuse(id, since, |entry: &Entry| entry.call == call, doubt, to);
            }
        }
        self.record_drops(to)?;
        match self.calls.get(&call) {
            Some(c) if c.all == 0 => self.end_call(call, NMC_ERR_NOT_FOUND, to),
            Some(c) if !c.wait => self.end_call(call, NMC_OK, to),
            _ => {}
        }
        Ok(())
    }

    /// Somebody whom a call waited for need not be waited for any more.
    fn heard(&mut self, calls: &[u64], doubt: bool, to: &mut Vec<Action>) {
        for number in calls {
            let Some(call) = self.calls.get_mut(number) else { continue };
            call.left = call.left.saturating_sub(1);
            call.doubt |= doubt;
            if call.left > 0 {
                continue;
            }
            let status = if call.doubt { NMC_IN_PROGRESS } else { NMC_OK };
            self.end_call(*number, status, to);
        }
    }

    /// A node has applied the drop log.
    pub(super) fn confirmed(&mut self, id: NodeId, through: Position, to: &mut Vec<Action>) {
        let Some(node) = self.node_mut(id) else { return };
        let from = node.position;
        node.position = from.max(through);
        if through >= node.since {
            node.reach = node.since;
        }
        let mut calls = Vec::new();
        let count = self.log.confirm(id, from, through, |call| tell(&mut calls, call));
        if let Some(node) = self.node_mut(id) {
            node.owed = node.owed.saturating_sub(count);
        }
        self.ruled_out(id, through);
        self.heard(&calls, false, to);
    }

    /// Nobody waits for a node any more.
    pub(super) fn excuse(
        &mut self,
        id: NodeId,
        since: Position,
        which: impl FnMut(&Entry) -> bool,
        doubt: bool,
        to: &mut Vec<Action>,
    ) {
        let mut calls = Vec::new();
        self.log.excuse(id, since, which, |call| tell(&mut calls, call));
        self.heard(&calls, doubt, to);
    }

    /// Writes down entries that members who are away will have to apply.
    pub(super) fn record_drops(&mut self, to: &mut Vec<Action>) -> Result<()> {
        let owing = |node: &super::members::Node| node.state == State::Away && node.owed > 0;
        if !self.config.durable || !self.nodes().any(owing) {
            return Ok(());
        }
        let away = memory::collect(self.nodes().filter(|node| owing(node)).map(|node| node.id))?;
        let absent = |node| away.contains(&node);
        let entries = self.log.unrecorded(absent)?;
        if !entries.is_empty() {
            let changes = memory::collect(entries.into_iter().map(Change::Drop))?;
            // Nothing fails from here on: what is marked is written down under this number.
            self.log.recording(self.next_recording, absent);
            self.record(Recording::Drops, changes, to);
        }
        // Some of it may be written down already, for others that went away before.
        self.excuse_recorded(to);
        Ok(())
    }

    /// Members that are away are not waited for where it is written down what they must drop.
    pub(super) fn excuse_recorded(&mut self, to: &mut Vec<Action>) {
        let away = self.nodes().filter(|node| node.state == State::Away && node.owed > 0).map(|node| node.id);
        let Ok(away) = memory::collect(away) else { return };
        let since = self.log.excuse_from();
        for id in away {
            self.excuse(id, since, |entry: &Entry| entry.recorded == Recorded::Yes, false, to);
        }
    }

    /// Lets go of entries that nobody needs.
    pub(super) fn trim_log(&mut self, to: &mut Vec<Action>) {
        let mut calls = Vec::new();
        let (written, lost) = self.log.trim(|call| tell(&mut calls, call));
        for id in lost {
            // It has to come again, and to drop all that it has. It does not count as away before it was silent: until then it may
            // give others what it has.
            let owed = self.log.owed(id);
            if let Some(node) = self.node_mut(id) {
                (node.owed, node.outdated) = (owed, true);
                if node.state != State::Away {
                    node.state = State::Joining;
                }
            }
        }
        self.heard(&calls, true, to);
        if written {
            let (first, floor) = (self.log.first(), self.log.floor());
            self.record(Recording::Forget, vec![Change::Forget(first, floor)], to);
        }
    }
}

/// Fails for a namespace that is the cluster's own: what is in it goes with what it belongs to.
fn check_open(space: &[u8]) -> Result<()> {
    if is_reserved(space) {
        crate::bail!(NMC_ERR_INVALID_ARG, "namespace \"{}\" is the cluster's own", space.escape_ascii());
    }
    Ok(())
}

/// Remembers to tell a call that it has one to wait for less. Without memory for that it waits until its client gives up.
fn tell(calls: &mut Vec<u64>, call: u64) {
    if call != 0 {
        let _ = memory::push(calls, call);
    }
}
