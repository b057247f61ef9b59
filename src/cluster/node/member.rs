//! The node as a member: joining, applying what it must drop, and being heard of.

use super::puts::Remembered;
use super::storage::Offer;
use super::stream::Stream;
use super::{Action, Agent, Standing, Storage};
use crate::base::log;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_STALE, NMC_OK, nmc_status_t};
use crate::cluster::told::Told;
use crate::cluster::types::{Millis, NO_INDEX, Position, Term, stubs_of};
use crate::cluster::wire::{Ack, Dropped, Drops, Frame, Join, Leave, Message, Ping, STREAM_SHIFT, Welcome};

/// The only request of a node whose answer is waited for: that it ends.
pub const PARTING: u64 = 1;

impl<S: Storage> Agent<S> {
    pub(super) fn master(&mut self, from: usize, frame: Frame, now: Millis, to: &mut Queue<Action>) {
        match frame.message {
            Message::Redirect(redirect) if from == self.leaders.current() => {
                self.leaders.redirected(redirect.term, &redirect.leader);
                self.asked_since = now;
                self.leave(now);
            }
            Message::Welcome(welcome) => self.welcome(from, &welcome, now, to),
            Message::Ack(ack) if self.is_mine(from, ack.term, ack.incarnation) => self.acknowledged(ack, now, to),
            Message::Drops(drops) if self.is_mine(from, drops.term, self.config.incarnation) => self.drops(drops),
            Message::Announced(a) if self.is_mine(from, a.term, a.incarnation) => self.announced(a.ticket, a.status),
            Message::CopyThis(copy) if self.is_mine(from, copy.term, copy.incarnation) => {
                self.keep(copy.key, copy.from, to);
            }
            Message::Verify(verify) if self.is_mine(from, verify.term, verify.incarnation) => {
                self.verify(&verify, now, to);
            }
            // Only the leader that the node counts on, or a later one, can put it out.
            Message::Rejoin(rejoin) if self.leaders.heard(from, rejoin.term) => {
                self.heard = now;
                self.leave(now);
            }
            // An error of a master: what was sent is sent again, or another master is tried.
            _ => {}
        }
    }

    /// Whether the leader that the node has joined speaks, and to this life of it.
    fn is_mine(&mut self, from: usize, term: Term, incarnation: u64) -> bool {
        term == self.term && incarnation == self.config.incarnation && self.leaders.heard(from, term)
    }

    /// The node is no member any more, and asks to be one at once.
    fn leave(&mut self, now: Millis) {
        if !matches!(self.standing, Standing::Out(_)) {
            self.go_out(now.saturating_sub(self.config.resend_ms), now);
        }
    }

    fn go_out(&mut self, asked: Millis, now: Millis) {
        (self.standing, self.out_since, self.asked_since) = (Standing::Out(asked), now, now);
    }

    fn welcome(&mut self, from: usize, welcome: &Welcome, now: Millis, to: &mut Queue<Action>) {
        if welcome.incarnation != self.config.incarnation || !self.leaders.heard(from, welcome.term) {
            return;
        }
        let newer = welcome.term != self.term;
        // A welcome of a stream that is over, or of a moment that is, comes late: what it says of what was removed is not so any more.
        let late = welcome.next >> STREAM_SHIFT < self.stream.first() >> STREAM_SHIFT;
        if welcome.sent_at < self.out_since || !newer && (late || !matches!(self.standing, Standing::Out(_))) {
            return;
        }
        self.heard = now;
        // Another leader, or another life, counts from the beginning.
        self.changed = 0;
        if newer {
            // Nothing that was begun under another leader may appear after this one has been told what there is.
            self.term = welcome.term;
            self.revoked.clear();
            // It has heard nothing of what is to go.
            self.told = Told::default();
            self.give_up_taken(to);
            self.cancel_copies(|_| true);
            self.stream = Stream::new(welcome.next);
        } else if welcome.next >> STREAM_SHIFT == self.stream.first() >> STREAM_SHIFT {
            self.stream.acknowledged(welcome.next);
            self.stream.again();
        } else {
            self.cancel_copies(|_| true);
            self.stream = Stream::new(welcome.next);
        }
        self.fence_ms = welcome.fence_ms.into();
        self.joined_at = welcome.sent_at;
        self.standing = Standing::Applying(welcome.head);
        self.must_drop_all |= welcome.fresh;
        if welcome.fresh {
            // What they wait for goes.
            self.end_syncs(NMC_ERR_STALE, to);
        }
        self.must_drop_apart = welcome.apart;
        if self.must_drop_all {
            self.drop_all();
        } else if self.must_drop_apart {
            self.drop_apart();
        } else if self.storage.position().is_none() {
            // A new store has nothing to drop. Its position is kept when the leader has heard of that, and counts with it: if the leader forgot
            // a store that had one already, all that is in it would have to go.
            self.stream.applied(welcome.head, self.storage.newest());
        } else if self.position() >= welcome.head {
            self.went_to(self.position());
        }
    }

    /// The node ends: nothing that comes from now on changes anything.
    pub(super) fn end(&mut self, to: &mut Queue<Action>) {
        (self.standing, self.answered, self.fence_ms) = (Standing::Left, 0, 0);
        // The program's store is its own again.
        self.close(&[]);
        // Without a position it comes back as new, whatever was put into it by then: a remove concerns nothing of that.
        let empty = self.config.volatile || self.is_empty() && self.storage.set_position(Position::default()).is_ok();
        let leave = Leave { node: self.id, incarnation: self.config.incarnation, empty };
        let frame = Frame { request: PARTING, ..Frame::telling(leave) };
        to.push(Action::Master(self.leaders.current(), frame));
        self.end_syncs(NMC_ERR_CANCELLED, to);
    }

    fn end_syncs(&mut self, status: nmc_status_t, to: &mut Queue<Action>) {
        to.extend(self.waiting.drain(..).map(|(ticket, ..)| Action::Synced(ticket, status)));
    }

    /// The store has another tier, and the node begins anew with it, in this life. For others the former life has ended: what it had is told
    /// again, under names of this one.
    pub fn begin_anew(&mut self, incarnation: u64, offer: Offer, now: Millis, to: &mut Queue<Action>) {
        if self.standing == Standing::Left {
            return;
        }
        let leave = Leave { node: self.id, incarnation: self.config.incarnation, empty: false };
        to.push(Action::Master(self.leaders.current(), Frame::telling(leave)));
        // Nobody waits for the former life.
        (self.answered, self.fence_ms) = (0, 0);
        self.give_up_taken(to);
        self.cancel_copies(|_| true);
        self.remembered = Remembered::default();
        self.closed = None;
        let Offer { store, slots, segments } = offer;
        (self.config.incarnation, self.config.store) = (incarnation, store);
        (self.config.slots, self.config.segments) = (slots, segments);
        self.go_out(now.saturating_sub(self.config.resend_ms), now);
    }

    /// Whether the store has nothing, not even a value without bytes.
    fn is_empty(&mut self) -> bool {
        let mut next = Some(0).filter(|_| !self.storage.has_bytes());
        let is_empty = next.is_some();
        while let Some(from) = next {
            match self.storage.part(from, 1) {
                Ok(part) if part.live.is_empty() => next = part.next,
                _ => return false,
            }
        }
        is_empty
    }

    /// Drops all that there is, and is then where the log ends. If that fails it is done again, and nothing else before it.
    fn drop_all(&mut self) {
        let Standing::Applying(head) = self.standing else { return };
        self.cancel_copies(|_| true);
        self.storage.drop_space(None);
        self.must_drop_all = self.storage.set_position(head).is_err();
        if !self.must_drop_all {
            self.must_drop_apart = false;
            self.went_to(head);
        }
    }

    /// Drops what nobody knows of whether it was removed, and goes on with the rest. If that fails it is done again as well.
    fn drop_apart(&mut self) {
        let Standing::Applying(head) = self.standing else { return };
        self.must_drop_apart = self.storage.drop_apart().is_err();
        if !self.must_drop_apart && self.position() >= head {
            self.went_to(self.position());
        }
    }

    pub(super) fn position(&self) -> Position {
        self.storage.position().unwrap_or_default()
    }

    /// The drop log was applied this far.
    fn went_to(&mut self, position: Position) {
        // If it cannot be kept nothing is confirmed, and the entries come again.
        self.unkept = self.storage.set_position(position).is_err();
        if self.unkept {
            return;
        }
        self.stream.applied(position, self.storage.newest());
        if let Standing::Applying(head) = self.standing
            && position >= head
        {
            self.standing = Standing::In;
            self.answered = self.answered.max(self.joined_at);
        }
    }

    fn drops(&mut self, drops: Drops) {
        let at = self.position();
        let not_yet = matches!(self.standing, Standing::Out(_)) || self.storage.position().is_none();
        if not_yet || at < drops.after || self.must_drop_all || self.must_drop_apart {
            return;
        }
        for entry in drops.entries.iter().filter(|entry| entry.position > at) {
            self.apply(&entry.what);
        }
        // What comes again was told already, or is in the stream.
        if drops.through > at {
            self.went_to(drops.through);
        }
    }

    fn apply(&mut self, what: &Dropped) {
        match what {
            Dropped::Replica(replica) => {
                self.cancel_copies(|copy| copy.key == replica.key && copy.from.put == replica.put);
                let key = replica.key.inner(replica.put);
                if replica.incarnation == self.config.incarnation && replica.index != NO_INDEX {
                    let plan = super::Plan { index: replica.index, epoch: replica.epoch };
                    self.storage.drop_named(plan, &key);
                } else {
                    self.refuse(replica.put);
                }
                // It may have another place by now, on disk or in memory, of which nobody has heard yet.
                self.storage.drop_put(&key, replica.put);
            }
            Dropped::Key(key) => {
                self.cancel_copies(|copy| copy.key == key.key);
                self.storage.drop_key(&key.key);
                self.storage.drop_key(&key.key.stub());
            }
            Dropped::Space(space) => {
                let name = space.space.as_ref().map(|space| space.0.as_slice());
                self.cancel_copies(|copy| name.is_none_or(|name| copy.key.space() == name));
                self.storage.drop_space(name);
                if let Some(name) = name {
                    self.storage.drop_space(Some(&stubs_of(name)));
                }
            }
        }
    }

    fn acknowledged(&mut self, ack: Ack, now: Millis, to: &mut Queue<Action>) {
        self.heard = now;
        if matches!(self.standing, Standing::Out(_) | Standing::Left) {
            return;
        }
        if ack.next >> STREAM_SHIFT > self.stream.first() >> STREAM_SHIFT {
            // The leader has begun another stream with this node and knows nothing of this one.
            return self.leave(now);
        }
        self.stream.acknowledged(ack.next);
        if let Standing::Applying(head) = self.standing {
            if self.storage.position().is_none() && self.stream.is_acknowledged() {
                self.went_to(head);
            }
            return;
        }
        self.answered = self.answered.max(ack.sent_at);
        if ack.changed >= self.changed {
            self.close(&ack.closed);
            self.changed = ack.changed;
        }
        self.waiting.retain(|(ticket, fact, _)| {
            let known = fact.is_some_and(|fact| fact <= ack.facts);
            if known {
                to.push(Action::Synced(*ticket, NMC_OK));
            }
            !known
        });
    }

    /// Closes these segments and opens all others. What a former agent has closed is opened too; what fails is tried with the next answer.
    fn close(&mut self, wanted: &[u32]) {
        if self.closed.as_ref().is_some_and(|closed| closed.iter().eq(wanted)) {
            return;
        }
        let mut closed = std::collections::BTreeSet::new();
        let mut all = true;
        for segment in &self.config.segments {
            let close = wanted.contains(&segment.number);
            let is = self.closed.as_ref().is_some_and(|closed| closed.contains(&segment.number));
            let done = close == is && self.closed.is_some() || self.storage.close(segment.number, close).is_ok();
            if if done { close } else { is } {
                closed.insert(segment.number);
            }
            all &= done;
        }
        if all || self.closed.is_some() {
            self.closed = Some(closed);
        }
    }

    /// Segments that are closed and to which nobody is writing any more; and the newest fact after that.
    fn quiet(&mut self) -> (Vec<u32>, u64) {
        let Self { closed, storage, .. } = self;
        let closed: Vec<u32> = closed.iter().flatten().copied().filter(|number| storage.is_quiet(*number)).collect();
        let newest = if closed.is_empty() { 0 } else { storage.newest() };
        (closed, newest)
    }

    /// Says what is due to the leader, or looks for one.
    pub(super) fn speak(&mut self, now: Millis, to: &mut Queue<Action>) {
        let asleep = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        if asleep > self.config.ping_ms && self.serves(now) {
            // Nobody was silent meanwhile: the process was stopped, or had no processor. It is a member still.
            self.heard = self.heard.saturating_add(asleep).min(now);
        }
        if now >= self.heard + self.config.master_ms {
            self.leaders.unanswered();
            (self.heard, self.asked_since) = (now, now);
            self.leave(now);
        }
        match self.standing {
            Standing::Left => {}
            Standing::Out(asked) => {
                // One that is stopped takes what it is told and answers nothing. Another one may lead, and wait for this node.
                let patience = (self.config.master_ms / 4).max(3 * self.config.resend_ms);
                if now >= self.asked_since + patience {
                    self.leaders.next();
                    self.asked_since = now;
                }
                if now >= asked + self.config.resend_ms {
                    self.standing = Standing::Out(now);
                    to.push(Action::Master(self.leaders.current(), Frame::telling(self.application(now))));
                }
            }
            Standing::Applying(_) | Standing::In => {
                if self.must_drop_all {
                    self.drop_all();
                } else if self.must_drop_apart {
                    self.drop_apart();
                } else if let (Standing::Applying(head), Some(at)) = (self.standing, self.storage.position())
                    && at >= head
                {
                    // It could not be kept when it was welcome.
                    self.went_to(at);
                }
                if now >= self.pinged + self.config.ping_ms {
                    self.pinged = now;
                    let (closed, newest) = self.quiet();
                    let ping = Ping {
                        term: self.term,
                        node: self.id,
                        incarnation: self.config.incarnation,
                        sent_at: now,
                        position: self.position(),
                        used: self.storage.used(),
                        closed,
                        newest,
                        changed: self.changed,
                    };
                    to.push(Action::Master(self.leaders.current(), Frame::telling(ping)));
                }
                // What fails for want of memory is tried again with the next event.
                let reported = self.report(now, to);
                let told = reported.is_ok_and(|()| !self.unkept && !self.must_drop_all && !self.must_drop_apart);
                self.rest_if_stuck(told, now);
            }
        }
    }

    /// A member whose store cannot do what is asked of it, because its disk fails or its master is away, keeps all others waiting: for removes, and after
    /// another leader came for every key that nobody has. After a while it counts as away instead, and tries again later.
    fn rest_if_stuck(&mut self, well: bool, now: Millis) {
        if well {
            self.stuck = None;
            if self.standing == Standing::In {
                self.rest_ms = 0;
            }
            return;
        }
        if now < self.stuck.get_or_insert(now).saturating_add(self.config.stuck_ms) {
            return;
        }
        self.rest_ms = (2 * self.rest_ms).clamp(self.config.rest_ms.0, self.config.rest_ms.1);
        let (name, seconds) = (&self.config.name, self.rest_ms / 1000);
        log::emit(log::WARN, || {
            format!("cluster: the store of {name} does not do what is removed elsewhere: it leaves for {seconds} s")
        });
        self.stuck = None;
        self.go_out(now + self.rest_ms, now);
    }

    fn application(&self, now: Millis) -> Join {
        Join {
            name: self.config.name.clone(),
            incarnation: self.config.incarnation,
            store: self.config.store,
            since: self.storage.position(),
            tier: self.storage.tier(),
            apart: self.storage.apart(),
            left: self.storage.has_left(),
            endpoint: self.config.endpoint.clone(),
            host: self.config.host.clone(),
            headers: self.config.headers,
            slots: self.config.slots,
            sent_at: now,
            segments: self.config.segments.clone(),
        }
    }
}
