//! Puts: a master lets one begin, which gives it an id and places; owners' facts arrive behind a closed gate; the end opens
//! it. What has not ended in time, or was given up, is dropped by its owners.

use super::members::{Node, Owner, State};
use super::objects::{Gate, Held};
use super::placement::{self, Candidate};
use super::{Action, Ask, Leader};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NO_SPACE, NMC_ERR_STALE, NMC_ERR_UNAVAILABLE, NMC_OK, nmc_status_t};
use crate::cluster::types::{
    Chance, MAX_PARTS, Media, Millis, NO_INDEX, NodeId, ObjectKey, PutId, is_reserved, slow_ms,
};
use crate::cluster::wire::{
    Answer, Done, DropReplica, Frame, Location, Place, PutEnd, PutPlaces, PutRevoke, PutStart, Verified, Verify,
};

/// Those who wait for the end of one put.
const MOST_ASKS: usize = 8;
/// How long a value may wait before it leaves its client, at most: whatever that says, its put is not kept for ever.
const MOST_WAIT: Millis = 600_000;

/// A put that has begun and not ended.
#[derive(Debug)]
pub struct Pending {
    key: ObjectKey,
    /// Who may have been asked to take it.
    places: Vec<NodeId>,
    end: Option<End>,
    /// When it is forgotten: if it is in parts, not before each that has begun is.
    pub(super) until: Millis,
}

/// A put whose end was asked for.
#[derive(Debug)]
struct End {
    /// Who waits for it: more than one if it was asked for again.
    asks: Vec<Ask>,
    /// What must be known first.
    done: Vec<Done>,
    /// Who else may have it.
    tried: Vec<NodeId>,
    /// What owners are to compare first.
    check: Option<Check>,
}

impl End {
    /// Tells all who wait.
    fn answer(&self, answer: &Answer, to: &mut Vec<Action>) {
        to.extend(self.asks.iter().map(|ask| ask.answer(answer.clone())));
    }
}

/// Owners that hold a put back until they have compared its checksum.
#[derive(Debug)]
struct Check {
    crc: u32,
    /// Those that have not answered.
    waiting: Vec<NodeId>,
    /// When they were asked.
    asked: Millis,
    /// Why one will not publish it.
    status: nmc_status_t,
}

impl Leader {
    /// A put of which its client says how long it waits.
    pub(super) fn put_start(
        &mut self,
        ask: Ask,
        start: PutStart,
        time_left: Millis,
        now: Millis,
        to: &mut Vec<Action>,
    ) -> Result<()> {
        let sum = start.slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(*slice));
        if sum != Some(start.length) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a value of {} bytes comes in {} slices, which do not add up to that",
                start.length,
                start.slices.len()
            );
        }
        if self.puts.len() >= self.config.max_puts {
            crate::bail!(NMC_ERR_BUSY, "{} puts are under way, the most possible", self.config.max_puts);
        }
        if start.striped && (!start.key.may_be_striped() || start.length > MAX_PARTS) {
            crate::bail!(NMC_ERR_INVALID_ARG, "a value in {} parts is to be under {:?}", start.length, start.key);
        }
        if is_reserved(start.key.space()) && start.key.as_part().is_none() {
            crate::bail!(NMC_ERR_INVALID_ARG, "{:?} is in a namespace of the cluster's own", start.key);
        }
        let part = self.part_begins(&start.key, now)?;
        self.spaces.check(start.key.space(), |space| self.objects.has_any_of(space))?;
        let copies = placement::copies(&start.config)?;
        if let Some((whole, number)) = start.key.as_part() {
            self.check_room(whole, number, &start, copies)?;
        }
        let found = self.spaces.find(start.key.space()).and_then(|s| self.objects.find(s, start.key.key()));
        let replicas = found.map_or(&[][..], |at| self.objects.replicas(at));
        let readable = |owner: u16| self.owners.get(usize::from(owner)).is_some_and(|o| o.listed().is_some());
        let mut open = replicas.iter().filter(|held| held.gate == Gate::Open && readable(held.owner));
        // What is left of a value whose stub is with an owner that is away. It goes if this put begins, which may take its place.
        let lost =
            replicas.iter().filter(|held| held.put.is_striped() && held.gate == Gate::Open && !readable(held.owner));
        let mut broken = memory::collect(lost.filter(|_| self.knows_parts()).map(|held| held.put))?;
        if open.any(|held| {
            let whole = self.length_of(held).is_some() || !self.knows_parts();
            broken.extend((!whole).then_some(held.put));
            whole
        }) {
            crate::bail!(NMC_ERR_EXISTS, "there is a value under {} already", start.key.key().escape_ascii());
        }
        broken.retain(|put| !self.puts.contains_key(put));
        // A part is new in any case: nobody else has its put id.
        if !self.settled && part.is_none() {
            crate::bail!(
                NMC_ERR_UNAVAILABLE,
                "a node that may have {} has not reported yet",
                start.key.key().escape_ascii()
            );
        }
        let mut candidates = Vec::new();
        for (slot, node) in self.members.values().filter_map(|s| Some((*s, self.owners.get(usize::from(*s))?.node()?)))
        {
            let has = |held: &Held| held.owner == slot && held.gate != Gate::Dropped && !broken.contains(&held.put);
            if node.state != State::Active || replicas.iter().any(has) {
                continue;
            }
            for segment in node.segments.iter().filter(|s| !s.draining && s.info.capacity >= start.length) {
                let candidate = Candidate {
                    node: slot,
                    segment: segment.info.number,
                    name: &segment.info.name,
                    node_name: &node.name,
                    host: &node.host,
                    media: segment.info.media,
                    capacity: segment.info.capacity,
                    used: segment.info.used,
                    given: part.map_or(0, |whole| self.parts_at(whole, slot, segment.info.number)),
                    doubtful: !self.is_there(node),
                };
                memory::push(&mut candidates, candidate)?;
            }
        }
        // Parts of a value take turns, in an order that is the value's own.
        let (mut chance, turn) = match (part, start.key.as_part()) {
            (Some(whole), Some((_, number))) => (Chance::new(whole.0), number),
            _ => (self.chance.clone(), 0),
        };
        let chosen = placement::choose(&candidates, &start.config, self.config.strategy, turn, &mut chance);
        let under_way = || {
            let is = replicas.iter().any(|held| held.gate == Gate::Closed);
            is.then(|| Error::new(NMC_ERR_BUSY, format!("another put of {:?} is under way", start.key)))
        };
        let chosen = match chosen {
            Err(error) if error.status == NMC_ERR_NO_SPACE && self.is_coming(&start.config.fixed) => {
                crate::bail!(NMC_ERR_UNAVAILABLE, "a node that is asked for has not reported yet");
            }
            Err(error) if error.status == NMC_ERR_NO_SPACE => return Err(under_way().unwrap_or(error)),
            chosen => chosen?,
        };
        let asked = Media::ALL.iter().zip(&start.config.media);
        let have = |media: &Media| chosen.iter().filter(|at| candidates[**at].media == *media).count();
        let mut lacking = asked.filter(|(media, count)| have(media) < **count as usize);
        if lacking.any(|(media, _)| self.coming().any(|node| node.segments.iter().any(|s| s.info.media == *media))) {
            crate::bail!(NMC_ERR_UNAVAILABLE, "a node with a medium that is asked for has not reported yet");
        }
        if chosen.is_empty() {
            if self.nodes().any(|node| !matches!(node.state, State::Active | State::Away)) {
                crate::bail!(NMC_ERR_UNAVAILABLE, "the members have not reported yet");
            }
            if let Some(error) = under_way() {
                return Err(error);
            }
            if !self.nodes().any(|node| node.state == State::Active) {
                let nodes = if self.members.is_empty() { "has no nodes" } else { "has no node that is not away" };
                crate::bail!(NMC_ERR_NO_SPACE, "the cluster {nodes}: nobody gives memory for values");
            }
            crate::bail!(NMC_ERR_NO_SPACE, "no segment of the cluster takes a value of {} bytes", start.length);
        }
        // What an owner has still to apply, lest it takes what was put after it. Others were not told of that.
        let owes = |node: &Node| Some(node.broad).filter(|broad| *broad > node.position).unwrap_or_default();
        let place = |at: &usize| {
            let c = &candidates[*at];
            let node = self.owners.get(usize::from(c.node)).and_then(|owner| owner.node());
            node.map(|node| Place {
                node: node.id,
                incarnation: node.incarnation,
                segment: c.segment,
                media: c.media,
                endpoint: node.endpoint.clone(),
                after: owes(node),
                exact: c.name != c.node_name && start.config.fixed.iter().any(|location| location.segment == c.name),
            })
        };
        let places = memory::collect(chosen.iter().filter_map(place))?;
        let nodes = memory::collect(places.iter().map(|place| place.node))?;
        let counted = if part.is_some() { copies as usize } else { 0 };
        let goes_to = chosen.iter().take(counted).map(|at| (candidates[*at].node, candidates[*at].segment));
        let goes_to: Vec<(u16, u32)> = memory::collect(goes_to)?;
        if part.is_none() {
            self.chance = chance;
        }
        let put = match start.striped {
            true => self.striped_id(&start.key),
            false => PutId::clustered(self.term, self.ids.next()),
        };
        if start.striped {
            self.note_stub(&start.key, put, 0)?;
            self.plan_parts(put, start.length);
        }
        self.drop_broken(&broken, now, to)?;
        if let Some(whole) = part {
            self.part_goes(whole, &goes_to)?;
        }
        memory::reserve_queue(&mut self.put_ends, 1)?;
        self.put_ends.push_back((now + self.config.put_ms, put));
        // A client that asked otherwise may not have said how long it waits for the put.
        let more = time_left.max(start.length >> 14).min(MOST_WAIT + slow_ms(start.length));
        let until = now + self.config.put_ms + more;
        if let Some(whole) = part.and_then(|whole| self.puts.get_mut(&whole)) {
            whole.until = whole.until.max(until);
        }
        self.puts.insert(put, Pending { key: start.key, places: nodes, end: None, until });
        let (status, term) = (NMC_OK, self.term);
        to.push(ask.answer(PutPlaces { status, term, put, copies, places }));
        Ok(())
    }

    /// An id that no striped value has: parts are known by it alone.
    fn striped_id(&mut self, _key: &ObjectKey) -> PutId {
        #[cfg(test)]
        if self.has_flaw(super::control::Flaw::SameIds) {
            return PutId::striped(self.term, NodeId::of(&format!("{_key:?}")).0);
        }
        loop {
            let put = PutId::striped(self.term, self.ids.next());
            if !self.stripes.knows(put) {
                return put;
            }
        }
    }

    /// Whether one of these places is of a node that is about to take puts.
    fn is_coming(&self, fixed: &[Location]) -> bool {
        let names = |node: &Node, name: &str| node.name == name || node.segments.iter().any(|s| s.info.name == name);
        self.coming().any(|node| fixed.iter().any(|location| names(node, &location.segment)))
    }

    fn coming(&self) -> impl Iterator<Item = &Node> {
        self.nodes().filter(|node| matches!(node.state, State::Joining | State::Reporting))
    }

    pub(super) fn put_end(&mut self, ask: Ask, end: PutEnd, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        if end.done.is_empty() {
            crate::bail!(NMC_ERR_INVALID_ARG, "a put ends that no owner has");
        }
        let term = self.term;
        match self.puts.get_mut(&end.put) {
            Some(pending) if pending.key == end.key => {
                let before = pending.end.as_ref().map_or(&[][..], |end| &end.asks);
                let before = before.iter().filter(|other| **other != ask).take(MOST_ASKS - 1);
                let asks = memory::collect([ask].iter().chain(before).copied())?;
                if let Some(end) = pending.end.as_mut().filter(|end| end.check.is_some()) {
                    // Whatever this one says, it ends like the one that is being compared.
                    end.asks = asks;
                    return Ok(());
                }
                let (done, tried) = (memory::copy(&end.done)?, memory::copy(&end.tried)?);
                let check = match end.crc {
                    None => None,
                    Some(crc) => {
                        let waiting = memory::collect(done.iter().map(|done| done.name.node))?;
                        self.checking.insert(end.put);
                        Some(Check { crc, waiting, asked: 0, status: NMC_ERR_STALE })
                    }
                };
                let checks = check.is_some();
                pending.end = Some(End { asks, done, tried, check });
                if checks {
                    return self.check(end.put, now, to);
                }
                for done in &end.done {
                    if let Some(node) = self.node_mut(done.name.node)
                        && !node.ending.contains(&end.put)
                    {
                        memory::push(&mut node.ending, end.put)?;
                    }
                }
                self.try_end(end.put, to)
            }
            Some(_) => crate::bail!(NMC_ERR_INVALID_ARG, "put {:x} is not of {:?}", end.put.0, end.key),
            None => {
                // It has ended before, or it began under another leader, of which owners may still have to tell.
                let live = self.live(&end.key, end.put);
                let told = |done: &Done| {
                    self.node(done.name.node).is_none_or(|n| n.complete && n.incarnation == done.name.incarnation)
                };
                let status = match (live, end.put.is_of(term) || end.done.iter().all(told)) {
                    (1.., _) => NMC_OK,
                    (0, true) => NMC_ERR_STALE,
                    (0, false) => NMC_ERR_UNAVAILABLE,
                };
                to.push(ask.answer(Answer { count: live, ..Answer::new(term, status, "") }));
                Ok(())
            }
        }
    }

    /// Owners of a put that may be read there: in memory and on disk is once.
    pub(super) fn live(&self, key: &ObjectKey, put: PutId) -> u64 {
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let listed = |owner: u16| self.owners.get(usize::from(owner)).is_some_and(|o| o.listed().is_some());
        found.map_or(0, |at| self.objects.owners_among(at, put, listed) as u64)
    }

    /// Ends a put if everything that it waits for is known.
    pub(super) fn try_end(&mut self, put: PutId, to: &mut Vec<Action>) -> Result<()> {
        let Some(pending) = self.puts.get(&put) else { return Ok(()) };
        let Some(End { done, tried, check: None, .. }) = &pending.end else { return Ok(()) };
        let known = |done: &Done| {
            self.node(done.name.node).is_none_or(|node| {
                let other = node.incarnation != done.name.incarnation || node.state == State::Away;
                other || node.facts >= done.fact
            })
        };
        if !done.iter().all(known) {
            return Ok(());
        }
        let key = pending.key.copy()?;
        let others = memory::collect(done.iter().map(|done| done.name.node).chain(tried.iter().copied()))?;
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        if let Some(at) = found {
            for held in self.objects.replicas_mut(at).iter_mut().filter(|h| h.put == put && h.gate == Gate::Closed) {
                held.gate = Gate::Open;
            }
        }
        let lost = self.has_lost_parts(&key, put);
        let count = if lost { 0 } else { self.live(&key, put) };
        if let Some(at) = found {
            self.objects.want(at, self.objects.owners_of(at, put));
        }
        if count == 0 {
            // None of them lives any more, or only with owners that are away: nobody may count on it.
            self.revoke(put, 0)?;
        }
        let ended = self.puts.remove(&put).and_then(|pending| pending.end);
        self.stripes.has_ended(put);
        // Something of it may have gone before this.
        self.came(&key, put, 0)?;
        if count > 0 {
            others.into_iter().try_for_each(|id| self.rule_out(id, &key, put))?;
        }
        let (status, text) = match (count, lost) {
            (1.., _) => (NMC_OK, ""),
            (0, true) => {
                (NMC_ERR_NO_SPACE, "parts of the value were evicted before the last was put: there is no room for all")
            }
            (0, false) => (NMC_ERR_STALE, ""),
        };
        let answer = Answer { count, ..Answer::new(self.term, status, text) };
        ended.iter().for_each(|end| end.answer(&answer, to));
        Ok(())
    }

    /// Asks owners again to compare what they hold back.
    pub(super) fn check_some(&mut self, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let checking = memory::collect(self.checking.iter().copied())?;
        checking.into_iter().try_for_each(|put| self.check(put, now, to))
    }

    /// Asks the owners of a put to compare what they hold back, unless they were asked a moment ago; nobody waits for one that cannot any
    /// more.
    fn check(&mut self, put: PutId, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let (term, resend_ms) = (self.term, self.config.resend_ms);
        let (puts, owners, members) = (&mut self.puts, &self.owners, &self.members);
        let node_of = |id: NodeId| owners.get(usize::from(*members.get(&id)?))?.node();
        let Some(End { done, tried, check: Some(check), .. }) = puts.get_mut(&put).and_then(|p| p.end.as_mut()) else {
            self.checking.remove(&put);
            return Ok(());
        };
        let life = |id: NodeId| done.iter().find(|done| done.name.node == id).map(|done| done.name.incarnation);
        let answers = |id: NodeId| node_of(id).filter(|n| n.state != State::Away && Some(n.incarnation) == life(id));
        let (waiting, gone): (Vec<_>, Vec<_>) = check.waiting.iter().partition(|id| answers(**id).is_some());
        check.waiting = waiting;
        if check.asked == 0 || check.asked + resend_ms <= now {
            check.asked = now;
            for node in check.waiting.iter().filter_map(|id| answers(*id)) {
                let verify = Verify { term, incarnation: node.incarnation, put, crc: check.crc };
                to.push(Action::Send(node.peer, Frame::telling(verify)));
            }
        }
        done.retain(|done| !gone.contains(&done.name.node));
        tried.extend(gone);
        if check.waiting.is_empty() { self.checked(put, to) } else { Ok(()) }
    }

    /// An owner has compared what it held back.
    pub(super) fn verified(&mut self, said: Verified, to: &mut Vec<Action>) -> Result<()> {
        if !self.is_known(said.node, (said.term, said.incarnation)) {
            return Ok(());
        }
        let pending = self.puts.get_mut(&said.put).and_then(|pending| pending.end.as_mut());
        let Some(End { done, tried, check: Some(check), .. }) = pending else { return Ok(()) };
        let Some(at) = check.waiting.iter().position(|id| *id == said.node) else { return Ok(()) };
        check.waiting.swap_remove(at);
        done.retain(|done| done.name.node != said.node);
        match said.done {
            Some(published) if published.name.node == said.node => memory::push(done, published)?,
            _ => {
                check.status = if said.status < 0 { said.status } else { NMC_ERR_STALE };
                memory::push(tried, said.node)?;
            }
        }
        if check.waiting.is_empty() { self.checked(said.put, to) } else { Ok(()) }
    }

    /// All owners have answered: what they have published ends like any other put.
    fn checked(&mut self, put: PutId, to: &mut Vec<Action>) -> Result<()> {
        self.checking.remove(&put);
        let Some(end) = self.puts.get_mut(&put).and_then(|pending| pending.end.as_mut()) else { return Ok(()) };
        let Some(check) = end.check.take() else { return Ok(()) };
        if end.done.is_empty() {
            end.answer(&Answer::new(self.term, check.status, "no owner holds back a value with this checksum"), to);
            self.revoke(put, 0)?;
            self.puts.remove(&put);
            return Ok(());
        }
        let nodes = memory::collect(end.done.iter().map(|done| done.name.node))?;
        for id in nodes {
            if let Some(node) = self.node_mut(id)
                && !node.ending.contains(&put)
            {
                memory::push(&mut node.ending, put)?;
            }
        }
        self.try_end(put, to)
    }

    /// A node may have taken a put that has ended, and has not told: whoever removes the object has to count with it. It is told
    /// to drop it, and refuses it from then on.
    fn rule_out(&mut self, id: NodeId, key: &ObjectKey, put: PutId) -> Result<()> {
        let Some(slot) = self.members.get(&id).copied() else { return Ok(()) };
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let Some(at) = found else { return Ok(()) };
        let Some(source) = self.objects.replicas(at).iter().find(|held| held.put == put).copied() else {
            return Ok(());
        };
        if self.objects.replicas(at).iter().any(|held| held.owner == slot && held.put == put) {
            return Ok(());
        }
        let Some(incarnation) = self.node(id).map(|node| node.incarnation) else { return Ok(()) };
        let held = Held { epoch: 0, index: NO_INDEX, owner: slot, gate: Gate::Announced, ..source };
        self.objects.add(at, held)?;
        let what = DropReplica { incarnation, index: NO_INDEX, epoch: 0, key: key.copy()?, put };
        let before = self.log.appended();
        self.append(what.into(), &[id], 0)?;
        self.log.gave_up(before, key, put, Some(id));
        let until = Some(self.log.head());
        match self.node_mut(id) {
            Some(node) => memory::push(&mut node.announced, (key.copy()?, put, until)),
            None => Ok(()),
        }
    }

    /// Something is known of a node that puts may wait for.
    pub(super) fn end_puts(&mut self, id: NodeId, to: &mut Vec<Action>) -> Result<()> {
        let Some(node) = self.node_mut(id) else { return Ok(()) };
        let mut waiting = std::mem::take(&mut node.ending);
        for put in &waiting {
            self.try_end(*put, to)?;
        }
        waiting.retain(|put| self.puts.contains_key(put));
        if let Some(node) = self.node_mut(id) {
            node.ending = waiting;
        }
        Ok(())
    }

    pub(super) fn put_revoke(&mut self, ask: Ask, revoke: PutRevoke, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        match self.puts.get(&revoke.put) {
            Some(pending) if pending.key == revoke.key => {
                if let Some(end) = &pending.end {
                    end.answer(&Answer::new(self.term, NMC_ERR_STALE, "the put was given up"), to);
                }
                let call = self.begin_call(ask, true, 0);
                let mut revoked = self.revoke(revoke.put, call);
                if let Some(Pending { key, places, .. }) = self.puts.remove(&revoke.put)
                    && ask.request != 0
                {
                    revoked = revoked.and_then(|()| self.drop_untold(&key, revoke.put, &places, call));
                }
                self.go_on(call, revoked, now, to)
            }
            _ => {
                to.push(ask.answer(Answer::new(self.term, NMC_ERR_STALE, "the put has ended, or was given up")));
                Ok(())
            }
        }
    }

    /// Drops what owners have of a put. It is not to end any more.
    fn revoke(&mut self, put: PutId, call: u64) -> Result<()> {
        let Some(pending) = self.puts.get(&put) else { return Ok(()) };
        let key = pending.key.copy()?;
        self.revoked.enter(put)?;
        self.goes(&key, put);
        let before = self.log.appended();
        self.take_replicas(&key, |held| held.put == put, call)?;
        self.log.gave_up(before, &key, put, None);
        Ok(())
    }

    /// Owners that hold a put back, or are about to take it, have told nothing of it: whoever waits until nothing is left of it waits for them too.
    fn drop_untold(&mut self, key: &ObjectKey, put: PutId, places: &[NodeId], call: u64) -> Result<()> {
        let at = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let told = at.map_or(&[][..], |at| self.objects.replicas(at)).iter().filter(|held| held.put == put);
        let told: Vec<u16> = memory::collect(told.map(|held| held.owner))?;
        let before = self.log.appended();
        for id in places {
            let Some(slot) = self.members.get(id).filter(|slot| !told.contains(slot)) else { continue };
            let Some(node) = self.owners.get(usize::from(*slot)).and_then(Owner::node) else { continue };
            let what = DropReplica { incarnation: node.incarnation, index: NO_INDEX, epoch: 0, key: key.copy()?, put };
            self.append(what.into(), &[*id], call)?;
        }
        self.log.gave_up(before, key, put, None);
        Ok(())
    }

    /// Forgets puts that have not ended in time.
    pub(super) fn forget_puts(&mut self, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        while let Some((_, put)) = self.put_ends.front().copied().filter(|(end, _)| *end <= now) {
            let until = self.puts.get(&put).map_or(0, |pending| pending.until);
            if until > now {
                memory::reserve_queue(&mut self.put_ends, 1)?;
                self.put_ends.push_back((until.min(now + self.config.put_ms), put));
            } else if let Some(pending) = self.puts.get(&put) {
                if let Some(end) = &pending.end {
                    end.answer(&Answer::new(self.term, NMC_ERR_STALE, "the put took too long"), to);
                }
                self.revoke(put, 0)?;
                self.puts.remove(&put);
            }
            self.put_ends.pop_front();
        }
        Ok(())
    }
}
