//! How nodes become members: with a name that nobody else has, written down before they are answered, and in a new life or in the
//! one that they had. What a node brings is listed only after it has applied the drop log.

use super::members::{Former, Node, Owner, Seg, State};
use super::table::Table;
use super::{Action, Ask, Change, Leader, Member, Recording};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_OK;
use crate::cluster::types::{Millis, NO_INDEX, NodeId, ObjectKey, Position, PutId};
use crate::cluster::wire::{Answer, DropReplica, Join, Leave, MAX_SEGMENTS, Mount, Rejoin, STREAM_SHIFT, Welcome};

/// Former lives of a node that are remembered, so that they are not taken for new ones.
const PAST: usize = 8;
/// Most members.
const MAX_MEMBERS: usize = 1 << 15;

/// A node that is written down as a member before it is let in.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) ask: Ask,
    join: Join,
    since: Position,
    /// The connection on which it came has not ended.
    pub(super) connected: bool,
}

impl Leader {
    fn check_join(&self, join: &Join, now: Millis) -> Result<()> {
        let id = NodeId::of(&join.name);
        if join.name.is_empty() || join.incarnation == 0 || join.segments.len() > MAX_SEGMENTS {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a node joins as \"{}\" with {} segments; {MAX_SEGMENTS} are possible",
                join.name,
                join.segments.len()
            );
        }
        for node in self.nodes().filter(|node| node.id != id) {
            for segment in &join.segments {
                if node.segments.iter().any(|other| other.info.name == segment.name) {
                    crate::bail!(NMC_ERR_EXISTS, "segment \"{}\" is {}'s", segment.name, node.name);
                }
            }
        }
        let arriving =
            self.arriving.iter().filter(|(other, _)| **other != id).flat_map(|(_, other)| &other.join.segments);
        if let Some(taken) = arriving.into_iter().find(|other| join.segments.iter().any(|s| s.name == other.name)) {
            crate::bail!(NMC_ERR_EXISTS, "segment \"{}\" is being mounted by another node", taken.name);
        }
        if self.has_ended(id, join.incarnation).is_some() {
            crate::bail!(NMC_ERR_STALE, "\"{}\" has said that it ends", join.name);
        }
        let Some(node) = self.node(id) else { return Ok(()) };
        if node.name != join.name {
            crate::bail!(
                NMC_ERR_EXISTS,
                "\"{}\" has the number of \"{}\": it needs another name",
                join.name,
                node.name
            );
        }
        let absent = matches!(node.state, State::Silent | State::Away) || now >= node.heard + self.config.away_ms;
        // A former agent is refused for as long as the later one is heard of: a message of the former may just have come late.
        if node.past.contains(&join.incarnation) && !absent {
            crate::bail!(NMC_ERR_STALE, "\"{}\" has another agent by now", join.name);
        }
        // On one machine the end of its connection tells that an agent has died; elsewhere only time does, since it may serve others for a
        // while although it is not heard of.
        let heard_of = node.incarnation != 0 && !node.left;
        let may_serve = heard_of && now < node.heard + self.config.away_ms.max(self.fence());
        let held = may_serve && (node.host != join.host || self.config.sees_ends && node.connected);
        if node.incarnation != join.incarnation && held {
            crate::bail!(NMC_ERR_EXISTS, "\"{}\" is a node on {} and alive", join.name, node.host);
        }
        Ok(())
    }

    /// How long a node may serve others after it was heard of: until then nobody can have been told that something is removed which it
    /// still has.
    fn fence(&self) -> Millis {
        let limit = if self.config.durable { self.config.away_ms } else { self.config.gone_ms };
        limit - limit / 10
    }

    pub(super) fn join(&mut self, ask: Ask, join: Join, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        self.check_join(&join, now)?;
        let id = NodeId::of(&join.name);
        if self.recordings.values().any(|what| matches!(what, Recording::Gone(gone) if *gone == id)) {
            // Whatever it was told now would be forgotten with the member that it was.
            self.returning.insert(id, (ask, join));
            return Ok(());
        }
        // A new store says for the node that it has nothing to drop. A former one that comes back must not be taken for one that has
        // done so: whatever position it comes back with, it is behind the one at which the new one came.
        let head = self.log.head();
        // So does one that is told to drop all that it has.
        let replaces = |node: &Node| {
            let has_nothing = join.since.is_none() || self.is_fresh(node, &join);
            has_nothing && node.store != join.store && (node.incarnation != 0 || node.since < head)
        };
        // The same for one that goes on without the tier that it had: that is not told what is dropped from now on, and may come back with another
        // store, when nobody remembers any more.
        let anew = |node: &Node| replaces(node) || join.left && node.parted != join.incarnation;
        if self.node(id).is_some_and(|node| !node.going && !anew(node)) {
            return self.admit(ask, join, true, now, to);
        }
        if self.node(id).is_none() && self.members.len() + self.arriving.len() >= MAX_MEMBERS {
            crate::bail!(NMC_ERR_LIMIT, "the cluster has {MAX_MEMBERS} members, the most possible");
        }
        if self.arriving.get(&id).is_some_and(|arrival| arrival.join.store != join.store) {
            // What is written down just now is where that one begins.
            crate::bail!(NMC_ERR_BUSY, "another store is just coming as \"{}\"", join.name);
        }
        let since = match (self.arriving.get(&id), self.node(id).filter(|node| !anew(node))) {
            (Some(arrival), _) => arrival.since,
            (None, Some(node)) => node.since,
            (None, None) => {
                // A former one may have been told of the last entry.
                if self.node(id).is_some_and(|node| node.incarnation != 0) {
                    self.log.skip();
                }
                self.log.head()
            }
        };
        let member = Member { name: join.name.clone(), since };
        let arrival = Arrival { ask, join, since, connected: true };
        let recording = self.arriving.insert(id, arrival).is_some();
        if !recording {
            self.record(Recording::Member(id), vec![Change::Member(member)], to);
        }
        Ok(())
    }

    /// It is written down that a node is a member, or it cannot be.
    pub(super) fn member_recorded(&mut self, id: NodeId, done: bool, now: Millis, to: &mut Vec<Action>) {
        let Some(Arrival { ask, join, since, connected }) = self.arriving.remove(&id) else { return };
        if !done {
            return;
        }
        // The node drops what it had if it was in a cluster before: nobody kept the log for it.
        let member = Member { name: join.name.clone(), since };
        let expected = match self.node_mut(id) {
            Some(node) => {
                (node.going, node.since, node.parted) = (false, since, join.incarnation);
                // Whoever has not heard of the node does not know what was confirmed for it since, by another store with the tier that was left.
                if !join.left || node.incarnation == 0 {
                    node.reach = since;
                }
                Ok(())
            }
            None => self.expect(member, now),
        };
        let life = join.incarnation;
        if let Err(error) = expected.and_then(|()| self.admit(ask, join, connected, now, to)) {
            to.push(self.refusal(ask, &error));
        } else if let Some(leave) = self.has_ended(id, life) {
            self.leave(&leave, now, to);
        }
    }

    /// What a life of a node has said when it ended, if it has.
    fn has_ended(&self, id: NodeId, life: u64) -> Option<Leave> {
        self.ended.iter().find(|leave| (leave.node, leave.incarnation) == (id, life)).cloned()
    }

    /// It is written down that a member is gone, or it cannot be. If it is here again it comes now.
    pub(super) fn gone_recorded(&mut self, id: NodeId, done: bool, now: Millis, to: &mut Vec<Action>) {
        if done {
            self.forget_member(id, to);
        }
        if let Some((ask, join)) = self.returning.remove(&id)
            && let Err(error) = self.join(ask, join, now, to)
        {
            to.push(self.refusal(ask, &error));
        }
    }

    /// Whether a node that comes has to drop all that it has: entries behind where it is may be missing; or it is where this log never
    /// was, and was in another one.
    fn is_fresh(&self, node: &Node, join: &Join) -> bool {
        // The log begins anew for what was left behind, not for what says so. But what was confirmed for the node is there for nobody any more:
        // another store may have done that.
        let since = if join.left { node.reach } else { node.since }.max(node.position);
        join.since.is_some_and(|at| at < since || at < self.log.floor() || at > self.log.head())
    }

    /// Lets a member in, in a new life or in the one that it had.
    fn admit(&mut self, ask: Ask, join: Join, connected: bool, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let id = NodeId::of(&join.name);
        let Some(node) = self.node(id) else { return Ok(()) };
        let fresh = self.is_fresh(node, &join);
        // Nobody has told the part that was not there what was dropped. Of puts that were given up it is known; one that begins is told nothing.
        let mut missed = match join.apart {
            Some(at) => self.given_up_without(id, join.tier, at)?,
            None => Some(Vec::new()),
        };
        missed.take_if(|list| join.since.is_none() && !list.is_empty());
        let apart = missed.is_none();
        if node.incarnation != join.incarnation {
            let before = self.log.appended();
            for (key, put) in missed.into_iter().flatten().filter(|_| !fresh) {
                let what = DropReplica { incarnation: join.incarnation, index: NO_INDEX, epoch: 0, key, put };
                self.append(what.into(), &[id], 0)?;
            }
            self.log.repeated(before);
            self.new_life(&join, to)?;
        } else if join.sent_at < node.said {
            // It has come late: the node was let in since, and is not where it was when it asked.
            return Ok(());
        }
        let head = self.log.head();
        let fence = self.fence();
        let (term, sent_at) = (self.term, join.sent_at);
        let Some(node) = self.node_mut(id) else { return Ok(()) };
        (node.endpoint, node.host, node.peer) = (join.endpoint, join.host, ask.peer);
        (node.connected, node.left, node.empty, node.said) = (connected, false, false, sent_at);
        (node.heard, node.sent_drops) = (now, now);
        // While it counted as a member nobody was excused from waiting for it.
        node.blank = join.since.is_none();
        if fresh || node.blank || matches!(node.state, State::Silent | State::Away) {
            node.state = State::Joining;
        }
        (node.outdated, node.behind) = (false, true);
        node.position = Position::default();
        node.head = head;
        let welcome = Welcome {
            term,
            incarnation: node.incarnation,
            next: node.next,
            fresh,
            apart,
            head,
            fence_ms: u32::try_from(fence).unwrap_or(u32::MAX),
            sent_at,
        };
        to.push(ask.answer(welcome));
        if fresh {
            self.withdraw_all(id);
        } else if let Some(since) = join.since {
            self.confirmed(id, since, to);
            if let Some(node) = self.node_mut(id) {
                node.position = since;
            }
            self.send_drops_to(id, to)?;
        }
        // A store that never was in a cluster has nothing of this one, whatever a former one under its name had. It says so when it is
        // welcome: a join may be of a life that has ended.
        Ok(())
    }

    /// The puts that were given up since a tier of a node was closed, which says that it was told everything up to `at`: if nothing else was dropped
    /// since.
    fn given_up_without(&self, id: NodeId, tier: u64, at: Position) -> Result<Option<Vec<(ObjectKey, PutId)>>> {
        if let Some(list) = self.log.given_up_behind(at, id)? {
            return Ok(Some(list));
        }
        match self.node(id).and_then(|node| node.closed) {
            Some((closed, told)) if closed == tier => self.log.given_up_behind(told, id),
            _ => Ok(None),
        }
    }

    /// A node has a new agent, and perhaps a new store.
    fn new_life(&mut self, join: &Join, to: &mut Vec<Action>) -> Result<()> {
        let id = NodeId::of(&join.name);
        self.withdraw_all(id);
        // What was said in another stream must not be taken for what is said in this one.
        self.streams += 1;
        let first = (self.streams << STREAM_SHIFT) + 1;
        let head = self.log.head();
        // What may fail comes before anything is changed.
        let segments =
            memory::collect(join.segments.iter().map(|s| Seg { info: s.clone(), draining: false, closed: None }))?;
        let has_other = |node: &Node| node.incarnation != 0 && node.store != join.store;
        let new_slot = match self.node(id).is_some_and(has_other) {
            true => Some(self.slot(Owner::Nobody)?),
            false => None,
        };
        if new_slot.is_some() {
            self.lift_moved(id);
        }
        let Some(node) = self.node_mut(id) else { return Ok(()) };
        memory::reserve(&mut node.past, 1)?;
        if node.tier != 0 && node.tier != join.tier {
            let told = if node.owed == 0 { head } else { node.position };
            node.closed = (node.complete && !node.outdated).then_some((node.tier, told));
        }
        node.tier = join.tier;
        let (old_life, old_former) = (node.incarnation, node.former);
        if old_life != 0 {
            node.past.retain(|life| *life != join.incarnation);
            node.past.push(old_life);
            if node.past.len() > PAST {
                node.past.remove(0);
            }
        }
        let same_store = node.store == join.store && old_life != 0;
        let mut former = None;
        if !same_store {
            let table = std::mem::replace(&mut node.table, Table::new(join.headers, join.slots));
            if old_life != 0 {
                // The old replicas keep their owner's place, and the node gets a new one.
                former = Some(Former::new(id, old_life, table, None));
            }
        }
        (node.incarnation, node.store, node.state) = (join.incarnation, join.store, State::Joining);
        (node.next, node.facts, node.complete) = (first, 0, false);
        node.unlisted.clear();
        node.segments = segments;
        if let (Some(former), Some(new_slot)) = (former, new_slot) {
            if let Some(old) = old_former {
                self.retire(old);
            }
            let Some(old_slot) = self.members.get(&id).copied() else { return Ok(()) };
            self.owners.swap(usize::from(old_slot), usize::from(new_slot));
            self.owners[usize::from(old_slot)] = Owner::Former(Box::new(former));
            self.members.insert(id, new_slot);
            if let Some(node) = self.node_mut(id) {
                node.former = Some(old_slot);
            }
        }
        self.end_puts(id, to)
    }

    pub(super) fn mount(&mut self, ask: Ask, mount: Mount, to: &mut Vec<Action>) -> Result<()> {
        // Whoever mounts for a node need not be at the connection on which the node is told things.
        if !self.is_known(mount.node, (self.term, mount.incarnation)) {
            to.push(ask.answer(Rejoin { term: self.term }));
            return Ok(());
        }
        let name = &mount.segment.name;
        let taken = |node: &Node| node.id != mount.node && node.segments.iter().any(|s| s.info.name == *name);
        if self.nodes().any(taken) {
            crate::bail!(NMC_ERR_EXISTS, "segment \"{name}\" is another node's");
        }
        let Some(node) = self.node_mut(mount.node) else { return Ok(()) };
        let at = node.segments.iter().position(|segment| segment.info.name == *name);
        match (mount.unmount, at) {
            (true, Some(at)) => drop(node.segments.remove(at)),
            (true, None) => crate::bail!(NMC_ERR_NOT_FOUND, "the node has no segment \"{name}\""),
            (false, Some(_)) => crate::bail!(NMC_ERR_EXISTS, "the node has a segment \"{name}\" already"),
            (false, None) if node.segments.len() >= MAX_SEGMENTS => {
                crate::bail!(NMC_ERR_LIMIT, "the node has {MAX_SEGMENTS} segments, the most possible")
            }
            (false, None) => {
                memory::push(&mut node.segments, Seg { info: mount.segment, draining: false, closed: None })?
            }
        }
        to.push(ask.answer(Answer::new(self.term, NMC_OK, "")));
        Ok(())
    }
}
