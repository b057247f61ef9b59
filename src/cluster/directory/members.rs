//! Members: how nodes come, report, fall silent and go. A node applies the drop log before it reports, and is in lookups from
//! then on; it takes puts when it has reported everything. Going out of lookups is one step; what is left of a node that is
//! gone is cleared away in small ones.

use super::again::{ROUND_MS, ROUNDS, Replaced};
use super::log::Entry;
use super::objects::{At, Gate};
use super::table::Table;
use super::{Action, Ask, Change, Leader, Member, Recording};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_OK;
use crate::cluster::types::{Media, Millis, NodeId, ObjectKey, Peer, Position, PutId};
use crate::cluster::wire::{Ack, Announced, Drops, Frame, Leave, News, Ping, Rejoin, Report, SegmentInfo};

/// Replicas of nodes that are gone that one tick clears away.
const RETIRE: usize = 4096;
/// Lives that have ended which are remembered.
const MAX_ENDED: usize = 1024;
/// Copies that a node may have announced.
const MAX_ANNOUNCED: usize = 4096;

/// How a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It was a member before this leader came, and has not been heard of.
    Silent,
    /// It is applying the drop log.
    Joining,
    /// It is telling what it has: that may be read.
    Reporting,
    /// It has told everything, and takes puts.
    Active,
    /// It was silent for too long.
    Away,
}

/// A segment of a node.
#[derive(Debug)]
pub struct Seg {
    /// As the node described it.
    pub info: SegmentInfo,
    /// It takes nothing more.
    pub draining: bool,
    /// The node says so too: the facts up to this one tell of all that was ever put there.
    pub closed: Option<u64>,
}

impl Seg {
    /// Whether other nodes' values may be copied there.
    pub(super) fn takes_copies(&self) -> bool {
        !self.draining && self.info.media != Media::Ssd
    }
}

/// A member.
#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub name: String,
    /// The drop log as it concerns the node begins behind this.
    pub since: Position,
    pub incarnation: u64,
    pub past: Vec<u64>,
    pub store: u64,
    /// The tier that it has; 0 for none.
    pub tier: u64,
    /// One that was closed when all was known of it that it has, and how far it had dropped what it was told to.
    pub closed: Option<(u64, Position)>,
    /// Where it began for a store that has left a tier behind, until that has come to where it begins now.
    pub reach: Position,
    /// The life of which it is written down that it goes on without a tier that it had.
    pub parted: u64,
    pub endpoint: String,
    pub host: String,
    pub peer: Peer,
    pub state: State,
    /// The connection on which it was heard of last has not ended.
    pub connected: bool,
    /// It has said that it ends.
    pub left: bool,
    /// It has said besides that it has nothing, nor will have when it comes again: nobody need wait for what it had.
    pub empty: bool,
    /// It may be written down that it is gone. If it is back it has to be written down as a member again.
    pub going: bool,
    /// When it was heard of last.
    pub heard: Millis,
    /// When it said the newest of what it has said in this life, by its own clock.
    pub said: Millis,
    /// Entries that it needs are no longer in the drop log: nothing that it says counts until it has come again.
    pub outdated: bool,
    /// Everything that it has that can be visible is known.
    pub complete: bool,
    /// It is telling all that it has, perhaps once more.
    pub telling: bool,
    /// It is back, and may not have told yet what has ended while nobody heard of it.
    pub behind: bool,
    /// What was known and no range has told of, by index and epoch.
    pub unlisted: Vec<(u32, u64)>,
    /// What is over at its index and epoch since it began to tell.
    pub moved: Vec<(At, (u32, u64))>,
    /// Its store never was in a cluster, and does not know yet that this leader counts with it.
    pub blank: bool,
    /// The report that comes next.
    pub next: u64,
    /// The ring's facts that are known.
    pub facts: u64,
    /// How far it has applied the drop log.
    pub position: Position,
    /// How far it must before it may report.
    pub head: Position,
    /// When it was sent entries of the drop log.
    pub sent_drops: Millis,
    /// Entries of the drop log that it has not confirmed.
    pub owed: usize,
    /// The last entry that it was to apply which names more than a replica. A put that it takes comes after that.
    pub broad: Position,
    pub table: Table,
    pub segments: Vec<Seg>,
    /// How often it was changed which of them are drained.
    pub changed: u64,
    /// What its former store had, until the new one has told what it has of it.
    pub former: Option<u16>,
    /// Copies that may come: announced, or possible until it has applied the drop log up to somewhere.
    pub announced: Vec<(ObjectKey, PutId, Option<Position>)>,
    /// Puts whose end waits for facts of this node.
    pub ending: Vec<PutId>,
}

impl Node {
    /// It has applied the drop log this far: what it has may be read if that is enough.
    fn applied(&mut self, position: Position) {
        if self.state == State::Joining && position >= self.head {
            self.state = if self.complete { State::Active } else { State::Reporting };
            self.blank = false;
        }
    }

    /// What is known of it, to whoever said something then.
    pub(super) fn ack(&self, term: u64, sent_at: Millis) -> Ack {
        let (incarnation, next, facts) = (self.incarnation, self.next, self.facts);
        let closed = self.segments.iter().filter(|segment| segment.draining).map(|segment| segment.info.number);
        Ack { term, incarnation, next, facts, sent_at, closed: closed.collect(), changed: self.changed }
    }

    /// Its connection ended before it had told anything of a store that is new: nobody knows a place in it, so nobody has to be kept
    /// waiting, and it will be as new when it comes again.
    fn never_came(&self) -> bool {
        self.blank && !self.connected
    }
}

/// What a node had once.
#[derive(Debug)]
pub struct Former {
    pub id: NodeId,
    pub incarnation: u64,
    pub table: Table,
    /// How much of it was cleared away in this round; none as long as it may be needed.
    pub cleared: Option<u64>,
    /// Copies of what it had were asked for in this round.
    pub short: bool,
    /// Rounds before this one, and when it begins.
    pub rounds: u32,
    pub begins: Millis,
}

impl Former {
    pub fn new(id: NodeId, incarnation: u64, table: Table, cleared: Option<u64>) -> Self {
        Self { id, incarnation, table, cleared, short: false, rounds: 0, begins: 0 }
    }
}

/// Whose a replica is.
#[derive(Debug)]
pub enum Owner {
    Nobody,
    Node(Box<Node>),
    Former(Box<Former>),
}

impl Owner {
    pub fn node(&self) -> Option<&Node> {
        match self {
            Owner::Node(node) => Some(node),
            _ => None,
        }
    }

    pub fn table_mut(&mut self) -> Option<&mut Table> {
        match self {
            Owner::Node(node) => Some(&mut node.table),
            Owner::Former(former) => Some(&mut former.table),
            Owner::Nobody => None,
        }
    }

    /// Who must be told to drop something, and the life in which it had its name.
    pub fn whose(&self) -> Option<(NodeId, u64)> {
        match self {
            Owner::Node(node) => Some((node.id, node.incarnation)),
            Owner::Former(former) => Some((former.id, former.incarnation)),
            Owner::Nobody => None,
        }
    }

    /// The node, if what it has may be read.
    pub fn listed(&self) -> Option<&Node> {
        self.node().filter(|node| matches!(node.state, State::Reporting | State::Active))
    }
}

impl Leader {
    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.owners.get(usize::from(*self.members.get(&id)?))?.node()
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        match self.owners.get_mut(usize::from(*self.members.get(&id)?))? {
            Owner::Node(node) => Some(node),
            _ => None,
        }
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.members.values().filter_map(|slot| self.owners.get(usize::from(*slot))?.node())
    }

    /// Whether every member has said which segments it has, or was silent for so long that it is not waited for.
    pub(super) fn knows_segments(&self, now: Millis) -> bool {
        let is_in = |node: &Node| node.incarnation != 0 || now.saturating_sub(node.heard) >= self.config.settle_ms;
        self.settled || self.nodes().all(is_in)
    }

    fn ids(&self) -> Result<Vec<NodeId>> {
        memory::collect(self.members.keys().copied())
    }

    /// A place for an owner.
    pub(super) fn slot(&mut self, owner: Owner) -> Result<u16> {
        let free = self.owners.iter().position(|owner| matches!(owner, Owner::Nobody));
        let at = match free {
            Some(at) => {
                self.owners[at] = owner;
                at
            }
            None => {
                if self.owners.len() >= usize::from(u16::MAX) {
                    crate::bail!(NMC_ERR_LIMIT, "{} nodes are there or were lately", self.owners.len());
                }
                memory::push(&mut self.owners, owner)?;
                self.owners.len() - 1
            }
        };
        Ok(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// A member that was written down, and is to be heard of.
    pub(super) fn expect(&mut self, member: Member, now: Millis) -> Result<()> {
        let id = NodeId::of(&member.name);
        let node = Node {
            id,
            name: member.name,
            since: member.since,
            reach: member.since,
            incarnation: 0,
            past: Vec::new(),
            store: 0,
            tier: 0,
            closed: None,
            parted: 0,
            endpoint: String::new(),
            host: String::new(),
            peer: Peer(0),
            state: State::Silent,
            connected: false,
            left: false,
            empty: false,
            going: false,
            heard: now,
            said: 0,
            outdated: false,
            complete: false,
            telling: false,
            behind: false,
            unlisted: Vec::new(),
            moved: Vec::new(),
            blank: false,
            next: 1,
            facts: 0,
            position: Position::default(),
            head: Position::default(),
            sent_drops: 0,
            owed: self.log.owed(id),
            broad: self.log.broad_of(id),
            table: Table::new(0, 0),
            segments: Vec::new(),
            changed: 0,
            former: None,
            announced: Vec::new(),
            ending: Vec::new(),
        };
        let slot = self.slot(Owner::Node(Box::new(node)))?;
        self.members.insert(id, slot);
        Ok(())
    }

    /// Whether a node is a member, and in this life in this term.
    pub(super) fn is_known(&self, node: NodeId, life: (u64, u64)) -> bool {
        self.node(node).is_some_and(|node| {
            let counts = !matches!(node.state, State::Silent | State::Away) && !node.outdated;
            counts && (self.term, node.incarnation) == life
        })
    }

    /// The node that says this, if it is a member and in this life; else it is told to join.
    pub(super) fn known(
        &mut self,
        ask: Ask,
        node: NodeId,
        life: (u64, u64),
        now: Millis,
        to: &mut Vec<Action>,
    ) -> bool {
        let known = self.is_known(node, life);
        match self.node_mut(node).filter(|_| known) {
            Some(node) => (node.heard, node.peer, node.connected) = (now, ask.peer, true),
            None => to.push(ask.answer(Rejoin { term: self.term })),
        }
        known
    }

    fn ack(&mut self, ask: Ask, id: NodeId, sent_at: u64, to: &mut Vec<Action>) {
        let term = self.term;
        if let Some(node) = self.node_mut(id) {
            node.said = node.said.max(sent_at);
            to.push(ask.answer(node.ack(term, sent_at)));
        }
    }

    /// Sends a node out that is where this log never was: it had a tier of another cluster for a moment, and comes to drop what it has.
    fn is_astray(&self, ask: Ask, position: Position, to: &mut Vec<Action>) -> bool {
        let astray = position > self.log.head();
        if astray {
            to.push(ask.answer(Rejoin { term: self.term }));
        }
        astray
    }

    pub(super) fn ping(&mut self, ask: Ask, ping: &Ping, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        if self.known(ask, ping.node, (ping.term, ping.incarnation), now, to) && !self.is_astray(ask, ping.position, to)
        {
            if let Some(node) = self.node_mut(ping.node) {
                for (segment, used) in node.segments.iter_mut().zip(&ping.used) {
                    segment.info.used = *used;
                }
                // What it says of a drain before this one: it may have been open in between.
                let current = ping.changed == node.changed;
                for segment in &mut node.segments {
                    let closed = current && segment.draining && ping.closed.contains(&segment.info.number);
                    segment.closed = closed.then(|| segment.closed.unwrap_or(ping.newest));
                }
                node.applied(ping.position);
                if ping.position < node.head {
                    // It waits for entries, of which a message was lost.
                    self.send_drops_after(ping.node, ping.position, to)?;
                }
            }
            self.ack(ask, ping.node, ping.sent_at, to);
        }
        Ok(())
    }

    pub(super) fn report(&mut self, ask: Ask, report: Report, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let id = report.node;
        if !self.known(ask, id, (report.term, report.incarnation), now, to) {
            return Ok(());
        }
        if let News::Applied(applied) = &report.news
            && self.is_astray(ask, applied.position, to)
        {
            return Ok(());
        }
        if self.node(id).is_some_and(|node| node.next == report.number) {
            self.news(id, report.news, to)?;
            if let Some(node) = self.node_mut(id) {
                node.next += 1;
            }
            self.end_puts(id, to)?;
        }
        self.ack(ask, id, report.sent_at, to);
        Ok(())
    }

    fn news(&mut self, id: NodeId, news: News, to: &mut Vec<Action>) -> Result<()> {
        match news {
            News::Facts(facts) => self.facts(id, facts),
            News::Range(range) => self.range(id, &range),
            News::SnapshotEnd(end) => {
                self.end_ranges(id)?;
                let Some(node) = self.node_mut(id) else { return Ok(()) };
                node.facts = node.facts.max(end.facts);
                node.complete = true;
                if node.state == State::Reporting {
                    node.state = State::Active;
                }
                if let Some(former) = node.former.take() {
                    self.retire(former);
                }
                Ok(())
            }
            News::Applied(applied) => {
                let Some(node) = self.node_mut(id) else { return Ok(()) };
                node.applied(applied.position);
                // It says so behind what had happened by then.
                node.behind &= applied.position < node.head;
                self.confirmed(id, applied.position, to);
                // One part after the other, until there is no more.
                if self.node(id).is_some_and(|node| node.owed > 0) { self.send_drops_to(id, to) } else { Ok(()) }
            }
            News::Announce(announce) => {
                let status = match self.announce(id, announce.key, announce.put) {
                    Ok(()) => NMC_OK,
                    Err(error) => error.status,
                };
                if let Some(node) = self.node(id) {
                    let (term, incarnation, ticket) = (self.term, node.incarnation, announce.ticket);
                    to.push(Action::Send(node.peer, Frame::telling(Announced { term, incarnation, ticket, status })));
                }
                Ok(())
            }
            News::Withdraw(withdraw) => {
                self.withdraw(id, &withdraw.key, withdraw.put, false);
                Ok(())
            }
        }
    }

    fn announce(&mut self, id: NodeId, key: ObjectKey, put: PutId) -> Result<()> {
        let Some(node) = self.node(id).filter(|node| node.state == State::Active) else {
            crate::bail!(NMC_ERR_BUSY, "the node has not reported yet");
        };
        if node.announced.len() >= MAX_ANNOUNCED {
            crate::bail!(NMC_ERR_BUSY, "the node has announced {MAX_ANNOUNCED} copies, the most possible");
        }
        if !self.outlives_removes(&key, put) {
            // Somebody may have reported it who is about to drop it: what is copied now would stay.
            crate::bail!(NMC_ERR_BUSY, "{key:?} is being removed somewhere");
        }
        self.add_announced(id, &key, put)?;
        match self.node_mut(id) {
            Some(node) => memory::push(&mut node.announced, (key, put, None)),
            None => Ok(()),
        }
    }

    /// Whether a put came after everything that is being removed under its key, or with its namespace: nobody has yet to drop that, or
    /// somebody has it who did, and nobody who did not.
    fn outlives_removes(&self, key: &ObjectKey, put: PutId) -> bool {
        if self.log.unseen(key).next().is_none() {
            return true;
        }
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let replicas = found.map_or(&[][..], |at| self.objects.replicas(at));
        let has =
            |slot: u16| replicas.iter().any(|held| held.owner == slot && held.put == put && held.gate == Gate::Open);
        let mut unseen = self.log.unseen(key).filter_map(|id| self.members.get(&id).copied());
        self.live(key, put) > 0 && !unseen.any(has)
    }

    /// Members that were silent for too long are away, and out of every lookup in this one step; later they are gone.
    pub(super) fn watch_members(&mut self, now: Millis, to: &mut Vec<Action>) {
        let Ok(ids) = self.ids() else { return };
        // While this process did not run nobody could be heard: that was not the members' silence.
        let paused = now.saturating_sub(self.watched);
        self.watched = now;
        if paused > self.config.away_ms / 2 {
            for id in &ids {
                if let Some(node) = self.node_mut(*id) {
                    node.heard = (node.heard + paused).min(now);
                }
            }
        }
        for id in ids {
            let (away_ms, gone_ms) = (self.config.away_ms, self.config.gone_ms);
            let returns = self.arriving.contains_key(&id);
            let Some(node) = self.node_mut(id) else { continue };
            let (silent, never_came) = (now.saturating_sub(node.heard), node.never_came());
            let gone_ms = if never_came { away_ms } else { gone_ms };
            if node.state != State::Away && (silent >= away_ms || never_came) {
                node.state = State::Away;
                self.away(id, now, to);
            } else if node.state == State::Away && silent >= gone_ms && !returns {
                // Written down again and again until it is: that is rare.
                let name = node.name.clone();
                (node.heard, node.going) = (now, true);
                self.record(Recording::Gone(id), vec![Change::Gone(name)], to);
            }
        }
        if !self.settled {
            let patience = self.config.settle_ms;
            let is_in = |node: &Node| node.complete || now.saturating_sub(node.heard) >= patience;
            self.settled = self.nodes().all(is_in) && now > self.elected_at;
        }
    }

    /// A connection has ended. That alone does not make a node away: it may come on another one.
    pub(super) fn closed(&mut self, peer: Peer) {
        let Ok(ids) = self.ids() else { return };
        for id in ids {
            if let Some(node) = self.node_mut(id).filter(|node| node.peer == peer) {
                node.connected = false;
            }
        }
        self.arriving
            .values_mut()
            .filter(|arrival| arrival.ask.peer == peer)
            .for_each(|arrival| arrival.connected = false);
        // If it lives it asks again, on another one.
        self.returning.retain(|_, (ask, _)| ask.peer != peer);
    }

    /// A node has ended: it is away at once, or gone if it has nothing. That is as good as silence, since it serves nobody and does not come back in this life.
    pub(super) fn leave(&mut self, leave: &Leave, now: Millis, to: &mut Vec<Action>) {
        let silent_since = now.saturating_sub(self.config.away_ms);
        if !self.ended.contains(leave) {
            if self.ended.len() >= MAX_ENDED {
                self.ended.remove(0);
            }
            // Without room for it a message that comes late may bring back a member that is not there, until it is away.
            let _ = memory::push(&mut self.ended, leave.clone());
        }
        let Some(node) = self.node_mut(leave.node).filter(|node| node.incarnation == leave.incarnation) else { return };
        let (was_away, was_going) = (node.state == State::Away, node.going);
        if !was_away {
            (node.state, node.heard) = (State::Away, silent_since);
        }
        (node.left, node.empty, node.going) = (true, leave.empty, was_going || leave.empty);
        let name = node.name.clone();
        if !was_away {
            self.away(leave.node, now, to);
        }
        if leave.empty && !was_going {
            // Nobody has to wait for what it might bring back.
            self.record(Recording::Gone(leave.node), vec![Change::Gone(name)], to);
        }
    }

    fn away(&mut self, id: NodeId, now: Millis, to: &mut Vec<Action>) {
        self.mourn(id, now);
        if self.config.durable {
            self.log.excuse_from_the_beginning();
        } else {
            let doubt = self.node(id).is_none_or(|node| !node.empty);
            self.excuse(id, Position::default(), |_: &Entry| true, doubt, to);
        }
        let _ = self.end_puts(id, to);
    }

    /// A member is forgotten, with all that it had. If it ever comes back it drops that.
    pub(super) fn forget_member(&mut self, id: NodeId, to: &mut Vec<Action>) {
        self.withdraw_all(id);
        self.lift_moved(id);
        // Whatever position it comes back with, it is behind this one.
        self.log.skip();
        let head = self.log.head();
        if let Some(node) = self.node_mut(id) {
            node.position = Position::default();
        }
        self.confirmed(id, head, to);
        let Some(slot) = self.members.remove(&id) else { return };
        let owner = std::mem::replace(&mut self.owners[usize::from(slot)], Owner::Nobody);
        if let Owner::Node(node) = owner {
            let former = Former::new(id, node.incarnation, node.table, Some(0));
            self.owners[usize::from(slot)] = Owner::Former(Box::new(former));
            if let Some(old) = node.former {
                self.retire(old);
            }
            for put in node.ending {
                let _ = self.try_end(put, to);
            }
        }
    }

    /// What a former store had is cleared away from now on.
    pub(super) fn retire(&mut self, slot: u16) {
        if let Some(Owner::Former(former)) = self.owners.get_mut(usize::from(slot)) {
            former.cleared.get_or_insert(0);
        }
    }

    /// Clears some of what former stores had. What is to be made again of it is asked for first.
    pub(super) fn retire_some(&mut self, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let mut budget = RETIRE;
        for slot in 0..self.owners.len() {
            let owner = u16::try_from(slot).unwrap_or(u16::MAX);
            while budget > 0 {
                let Some(Owner::Former(former)) = self.owners.get_mut(slot) else { break };
                let Some(cleared) = former.cleared.filter(|_| now >= former.begins) else { break };
                let Some(index) = former.table.next(cleared) else {
                    if former.short {
                        // Not all of the copies need have come.
                        (former.cleared, former.short, former.begins) = (Some(0), false, now + ROUND_MS);
                        former.rounds += 1;
                    } else {
                        self.owners[slot] = Owner::Nobody;
                    }
                    break;
                };
                budget -= 1;
                let (mut short, mut is_over) = (former.short, true);
                let last = former.rounds >= ROUNDS;
                let epoch = former.table.epoch(index);
                if let Some(at) = former.table.live(index) {
                    let replaced = match self.config.re_replicate {
                        0 => Replaced::Enough,
                        _ => self.replace(at, (owner, index), to)?,
                    };
                    match replaced {
                        Replaced::Later => break,
                        Replaced::Asked if !last => (short, is_over) = (true, false),
                        Replaced::Asked | Replaced::Enough => self.lift(owner, at, (index, epoch)),
                    }
                }
                if let Owner::Former(former) = &mut self.owners[slot] {
                    (former.cleared, former.short) = (Some(u64::from(index) + 1), short);
                    if is_over {
                        former.table.set_dead(index, epoch);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells a node what it must drop next.
    pub(super) fn send_drops_to(&mut self, id: NodeId, to: &mut Vec<Action>) -> Result<()> {
        let Some(node) = self.node(id) else { return Ok(()) };
        self.send_drops_after(id, node.position, to)
    }

    fn send_drops_after(&mut self, id: NodeId, after: Position, to: &mut Vec<Action>) -> Result<()> {
        // To one that has to come again entries before these are missing: it would be told that it has done what it has not heard of.
        let Some(node) = self.node(id).filter(|node| !node.outdated) else { return Ok(()) };
        let peer = node.peer;
        let (entries, through) = self.log.next_for(id, after)?;
        to.push(Action::Send(peer, Frame::telling(Drops { term: self.term, after, through, entries })));
        Ok(())
    }

    /// Tells members again what they have not confirmed.
    pub(super) fn send_drops(&mut self, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let resend = self.config.resend_ms;
        for id in self.ids()? {
            let Some(node) = self.node_mut(id) else { continue };
            let behind = node.owed > 0 || node.state == State::Joining;
            let there = !matches!(node.state, State::Silent | State::Away);
            if behind && there && now >= node.sent_drops + resend {
                node.sent_drops = now;
                self.send_drops_to(id, to)?;
            }
        }
        Ok(())
    }
}
