//! Puts of others on this node. On a stream the bytes follow the request, and none comes after its connection has ended. Where
//! somebody else moves them, those of a writer that is late, or has stopped, may still arrive, also when the writer is dead: its pages are in
//! doubt until this node's own mover was renewed.

use super::storage::{Plan, Wanted};
use super::{Action, Agent, Standing, Storage};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::queue::Queue;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_CUDA, NMC_ERR_INVALID_ARG, NMC_ERR_NO_SPACE, NMC_ERR_STALE,
    NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED, NMC_NOT_READY, NMC_OK, nmc_status_t,
};
use crate::cluster::types::{Millis, Name, Peer, PutId, slow_ms};
use crate::cluster::wire::{Answer, Done, Extent, Frame, Put, PutDone, Reserve, Reserved, Stopped, Verified, Verify};
use std::collections::{HashMap, VecDeque};

/// How long a put of so many bytes may take at most, whatever its client says.
fn most_ms(length: u64) -> Millis {
    30_000 + slow_ms(length)
}

/// Puts of which it is remembered what came of them.
const MAX_REMEMBERED: usize = 1 << 16;

/// Pieces of memory that one answer can name; a value in more of them comes on a stream.
const MOST_EXTENTS: usize = 2048;

/// A put that this node has taken and that is under way.
#[derive(Debug)]
pub(super) struct Taken {
    plan: Plan,
    state: State,
    /// When it has taken too long.
    until: Millis,
    /// The mover that was told to whoever writes it.
    mover: u64,
    /// It is not published before its checksum was compared.
    hold: bool,
}

/// Who is told what came of a put.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// Its client, in an answer.
    Client(Peer, u64),
    /// The leader, which said this checksum.
    Leader(u32),
}

#[derive(Debug)]
enum State {
    /// Its bytes follow the request.
    Receiving(Peer, u64),
    /// The same, but it is not to be published, and its connection is being ended.
    Stopping,
    /// Somebody else writes its bytes.
    Reserved,
    /// Somebody else may still write bytes of it, so many, since then.
    Doubtful(u64, Millis),
    /// All bytes are there, and it is published when the master says what their checksum is.
    Held,
    /// It is published, and answered when it is on disk.
    Storing(Asked),
}

/// What came of puts that are done: those of the last while, and not more than so many. Whoever repeats a put is told that.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    done: HashMap<PutId, (Done, Option<u32>)>,
    /// Until when, in the order in which they were done.
    order: VecDeque<(Millis, PutId)>,
}

impl Remembered {
    fn enter(&mut self, put: PutId, done: (Done, Option<u32>), until: Millis) {
        let room = memory::reserve_queue(&mut self.order, 1).and(memory::reserve_map(&mut self.done, 1));
        if room.is_ok() {
            self.order.push_back((until, put));
            self.done.insert(put, done);
        }
    }

    fn forget(&mut self, now: Millis) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) || self.order.len() > MAX_REMEMBERED {
            if let Some((_, put)) = self.order.pop_front() {
                self.done.remove(&put);
            }
        }
    }
}

impl<S: Storage> Agent<S> {
    /// Whether a put may be taken now; what came of it if it was before.
    fn may_take(&self, put: &Put) -> Result<Option<Done>> {
        if let Some((done, _)) = self.remembered.done.get(&put.put) {
            return Ok(Some(done.clone()));
        }
        if self.taken.contains_key(&put.put) {
            crate::bail!(NMC_ERR_BUSY, "put {:x} is under way", put.put.0);
        }
        if self.revoked.contains(put.put) {
            crate::bail!(NMC_ERR_STALE, "put {:x} was given up, or has ended without this node", put.put.0);
        }
        let current = put.term == self.term && put.put.is_of(self.term) && put.incarnation == self.config.incarnation;
        if !current {
            // What began under another leader is begun again under this one: see the module of the agent.
            crate::bail!(NMC_ERR_STALE, "put {:x} began in term {}; the node is in {}", put.put.0, put.term, self.term);
        }
        if self.standing != Standing::In || self.position() < put.after {
            // It will have in a moment, or is a member again.
            crate::bail!(NMC_NOT_READY, "the node has not applied what was removed before the put");
        }
        Ok(None)
    }

    /// A put is not to be taken here any more, also not what is under way of it.
    pub(super) fn refuse(&mut self, put: PutId) {
        if put.is_of(self.term) {
            // The room for it is what a set takes anyway, for which nobody can be refused.
            let _ = self.revoked.enter(put);
        }
        // Nobody will compare what is held back of it: its key is free.
        if let Some(Taken { state: State::Held, plan, .. }) = self.taken.get(&put) {
            self.storage.abandon(*plan);
            self.taken.remove(&put);
        }
    }

    fn open(&mut self, put: &Put) -> Result<Plan> {
        let opened = self.storage.open(&Wanted {
            put: put.put,
            key: &put.key.inner(put.put),
            length: put.length,
            segment: put.segment,
            exact: put.exact,
            retain: put.retain,
            metadata: &put.metadata,
            is_copy: false,
        });
        match opened {
            // The leader sends nobody to what it wants closed: either it did so before, or it is about to be open again.
            Err(error) if self.is_closed(put.segment) && error.status == NMC_ERR_NO_SPACE => {
                Err(Error { status: NMC_NOT_READY, ..error })
            }
            opened => opened,
        }
    }

    pub(super) fn put(
        &mut self,
        from: Peer,
        request: u64,
        time_left: Millis,
        put: Put,
        now: Millis,
        to: &mut Queue<Action>,
    ) -> Result<()> {
        if let Some(Taken { state: State::Receiving(peer, number), .. }) = self.taken.get(&put.put)
            && (*peer, *number) == (from, request)
        {
            return Ok(());
        }
        let plan = match self.may_take(&put) {
            Ok(None) => self.open(&put),
            Ok(Some(done)) => {
                to.push(answer(from, request, Ok(done)));
                return Ok(());
            }
            Err(error) => Err(error),
        };
        match plan {
            Ok(plan) => {
                let until = now + time_left.min(most_ms(put.length));
                let taken = Taken { plan, state: State::Receiving(from, request), until, mover: 0, hold: put.hold };
                self.taken.insert(put.put, taken);
                to.push(Action::Receive { from, request, put: put.put, plan, length: put.length });
            }
            Err(error) => to.push(answer(from, request, Err(error))),
        }
        Ok(())
    }

    /// The bytes of a put are there, or will never be.
    pub(super) fn received(&mut self, put: PutId, whole: bool, now: Millis, to: &mut Queue<Action>) {
        let Some(taken) = self.taken.get(&put) else { return };
        match taken.state {
            State::Receiving(from, request) if whole && taken.hold => {
                let plan = taken.plan;
                if let Some(taken) = self.taken.get_mut(&put) {
                    taken.state = State::Held;
                }
                let done = Done { name: self.name_of(plan), fact: 0 };
                self.answer(Asked::Client(from, request), put, Ok(done), to);
            }
            State::Receiving(from, request) if whole => self.publish(put, Asked::Client(from, request), now, to),
            State::Receiving(..) | State::Stopping => {
                let plan = taken.plan;
                self.taken.remove(&put);
                self.storage.abandon(plan);
                // A repeat that comes late would be taken for what has just ended, if that is told once more.
                self.refuse(put);
            }
            State::Reserved | State::Doubtful(..) | State::Storing(..) | State::Held => {}
        }
    }

    /// Publishes a put whose bytes are all there, and answers; later, if it is to be on disk first.
    fn publish(&mut self, put: PutId, asked: Asked, now: Millis, to: &mut Queue<Action>) {
        let Some(taken) = self.taken.remove(&put) else { return };
        let plan = taken.plan;
        let revoked = self.revoked.contains(put);
        let committed = match revoked {
            false => self.storage.commit(plan),
            true => Err(Error::new(NMC_ERR_STALE, "the put was given up, or has ended without this node")),
        };
        match committed {
            Ok(None) => {
                self.taken.insert(put, Taken { state: State::Storing(asked), ..taken });
            }
            Ok(Some(fact)) => self.done(put, plan, fact, asked, now, to),
            Err(error) => {
                self.storage.abandon(plan);
                // A repeat that comes late would be published without a byte.
                self.refuse(put);
                self.answer(asked, put, Err(error), to);
            }
        }
    }

    /// A put is done.
    fn done(&mut self, put: PutId, plan: Plan, fact: u64, asked: Asked, now: Millis, to: &mut Queue<Action>) {
        let done = Done { name: self.name_of(plan), fact };
        let sum = match asked {
            Asked::Leader(sum) => Some(sum),
            Asked::Client(..) => None,
        };
        self.remembered.enter(put, (done.clone(), sum), now + self.config.remember_ms);
        self.answer(asked, put, Ok(done), to);
    }

    fn name_of(&self, plan: Plan) -> Name {
        Name { node: self.id, incarnation: self.config.incarnation, index: plan.index, epoch: plan.epoch }
    }

    /// Says what came of a put.
    fn answer(&self, asked: Asked, put: PutId, done: Result<Done>, to: &mut Queue<Action>) {
        match asked {
            Asked::Client(from, request) => to.push(answer(from, request, done)),
            Asked::Leader(_) => {
                let (status, done) = said(done);
                let (term, node, incarnation) = (self.term, self.id, self.config.incarnation);
                let verified = Verified { term, node, incarnation, put, status, done };
                to.push(Action::Master(self.leaders.current(), Frame::telling(verified)));
            }
        }
    }

    /// The leader says what the checksum of a put is, which is published if that is so.
    pub(super) fn verify(&mut self, verify: &Verify, now: Millis, to: &mut Queue<Action>) {
        let put = verify.put;
        let asked = Asked::Leader(verify.crc);
        let other = || Error::new(NMC_ERR_CORRUPT, "the checksum of the value is another");
        if let Some((done, sum)) = self.remembered.done.get(&put) {
            let again = match sum {
                Some(sum) if *sum == verify.crc => Ok(done.clone()),
                Some(_) => Err(other()),
                None => Err(Error::new(NMC_ERR_INVALID_ARG, "the put was published at once, and not held back")),
            };
            return self.answer(asked, put, again, to);
        }
        let stale = || Error::new(NMC_ERR_STALE, format!("put {:x} was given up", put.0));
        let sum = match self.taken.get(&put).map(|taken| (&taken.state, taken.plan)) {
            Some((State::Held, plan)) => self.storage.checksum(plan),
            // It says so again.
            Some((State::Storing(_) | State::Receiving(..), _)) => return,
            _ => return self.answer(asked, put, Err(stale()), to),
        };
        match sum {
            Ok(sum) if sum == verify.crc => self.publish(put, asked, now, to),
            sum => {
                if let Some(taken) = self.taken.remove(&put) {
                    self.storage.abandon(taken.plan);
                }
                self.refuse(put);
                self.answer(asked, put, Err(sum.err().unwrap_or_else(other)), to);
            }
        }
    }

    /// Looks whether puts that are to be on disk are.
    pub(super) fn answer_stored(&mut self, now: Millis, to: &mut Queue<Action>) {
        let Self { taken, storage, .. } = self;
        let mut over = Queue::new();
        for (put, taken) in taken.iter() {
            let State::Storing(asked) = taken.state else { continue };
            match storage.written(taken.plan) {
                Ok(None) => {}
                Ok(Some(fact)) => over.push((*put, taken.plan, asked, Ok(fact))),
                Err(error) => over.push((*put, taken.plan, asked, Err(error))),
            }
        }
        for (put, plan, asked, written) in over {
            self.taken.remove(&put);
            match written {
                Ok(fact) => self.done(put, plan, fact, asked, now, to),
                Err(error) => {
                    self.storage.abandon(plan);
                    self.refuse(put);
                    self.answer(asked, put, Err(error), to);
                }
            }
        }
    }

    pub(super) fn reserve(
        &mut self,
        from: Peer,
        request: u64,
        time_left: Millis,
        reserve: &Reserve,
        now: Millis,
        to: &mut Queue<Action>,
    ) -> Result<()> {
        let put = &reserve.put;
        let again = self.taken.get(&put.put).and_then(|taken| match taken.state {
            State::Reserved => Some(taken.plan),
            _ => None,
        });
        let plan = match again {
            Some(plan) => Ok(plan),
            None => match self.may_take(put) {
                Ok(None) => self.open(put),
                Ok(Some(_)) => Err(Error::new(crate::base::status::NMC_ERR_EXISTS, "the put is done")),
                Err(error) => Err(error),
            },
        };
        let reserved = plan.and_then(|plan| Ok((plan, self.named_extents(plan, again.is_none())?)));
        let message = match reserved {
            Ok((plan, extents)) => {
                let until = now + time_left.min(most_ms(put.length));
                let mover = self.mover;
                let taken = self.taken.entry(put.put).or_insert(Taken {
                    plan,
                    state: State::Reserved,
                    until,
                    mover,
                    hold: false,
                });
                taken.mover = mover;
                let incarnation = self.config.incarnation;
                let name = Name { node: self.id, incarnation, index: plan.index, epoch: plan.epoch };
                Reserved { status: NMC_OK, name: Some(name), extents, mover: self.mover }
            }
            Err(error) => Reserved { status: error.status, name: None, extents: Vec::new(), mover: 0 },
        };
        to.push(Action::Send(from, Frame::answering(request, message)));
        Ok(())
    }

    /// Where a writer is to write; if that cannot be said, a plan that is new is given up.
    fn named_extents(&mut self, plan: Plan, new: bool) -> Result<Vec<Extent>> {
        let unsupported = || Err(Error::new(NMC_ERR_UNSUPPORTED, "the value would be in too many pieces"));
        let extents = self.storage.extents(plan);
        let extents = extents.and_then(|list| if list.len() > MOST_EXTENTS { unsupported() } else { Ok(list) });
        if extents.is_err() && new {
            self.storage.abandon(plan);
        }
        extents
    }

    pub(super) fn commit(
        &mut self,
        from: Peer,
        request: u64,
        put: PutId,
        now: Millis,
        to: &mut Queue<Action>,
    ) -> Result<()> {
        let done = match (self.remembered.done.get(&put), self.taken.get(&put).map(|taken| &taken.state)) {
            (Some((done, _)), _) => Ok(done.clone()),
            (None, Some(State::Reserved)) => {
                self.publish(put, Asked::Client(from, request), now, to);
                return Ok(());
            }
            (None, Some(State::Storing(..))) => Err(Error::new(NMC_ERR_BUSY, "the put is being written to disk")),
            _ => Err(Error::new(NMC_ERR_STALE, format!("put {:x} was given up", put.0))),
        };
        to.push(answer(from, request, done));
        Ok(())
    }

    /// A writer says that it writes no more. What it has written may still be on its way, unless it has not begun.
    pub(super) fn stopped(
        &mut self,
        from: Peer,
        request: u64,
        stopped: &Stopped,
        now: Millis,
        to: &mut Queue<Action>,
    ) -> Result<()> {
        let Self { taken, storage, .. } = self;
        let mut is_over = !self.remembered.done.contains_key(&stopped.put);
        if let Some(found) = taken.get_mut(&stopped.put) {
            match (&found.state, stopped.begun) {
                (State::Reserved, true) => found.state = State::Doubtful(storage.doubt(found.plan), now),
                // All of it has arrived, or nothing will.
                (State::Held, _) | (State::Reserved | State::Doubtful(..), false) => {
                    storage.abandon(found.plan);
                    taken.remove(&stopped.put);
                }
                _ => is_over = false,
            }
        }
        if is_over {
            // A repeat of the reservation that comes late, and one of its commit, would publish pages that nobody wrote to.
            self.refuse(stopped.put);
        }
        to.push(Action::Send(from, Frame::answering(request, Answer::new(0, NMC_OK, ""))));
        Ok(())
    }

    /// Gives up puts that are late, and forgets those that were done long ago.
    pub(super) fn end_late_puts(&mut self, now: Millis, to: &mut Queue<Action>) {
        self.remembered.forget(now);
        self.give_up(|taken| now >= taken.until, now, to);
    }

    /// Gives up every put that is not done.
    pub(super) fn give_up_taken(&mut self, to: &mut Queue<Action>) {
        let now = self.heard;
        self.give_up(|_| true, now, to);
    }

    fn give_up(&mut self, which: impl Fn(&Taken) -> bool, now: Millis, to: &mut Queue<Action>) {
        let Self { taken, storage, .. } = self;
        taken.retain(|_, taken| match taken.state {
            State::Held if which(taken) => {
                storage.abandon(taken.plan);
                false
            }
            State::Storing(asked) if which(taken) => {
                storage.abandon(taken.plan);
                // The leader gives up by itself.
                if let Asked::Client(from, request) = asked {
                    let late = Error::new(NMC_ERR_STALE, "the put was not on disk in time, or another leader came");
                    to.push(answer(from, request, Err(late)));
                }
                false
            }
            _ => true,
        });
        for (put, taken) in taken.iter_mut().filter(|(_, taken)| which(taken)) {
            match taken.state {
                State::Receiving(from, request) => {
                    taken.state = State::Stopping;
                    to.push(Action::Stop(*put));
                    let late = Error::new(NMC_ERR_STALE, "the put was late, or another leader came");
                    to.push(answer(from, request, Err(late)));
                }
                State::Reserved => taken.state = State::Doubtful(storage.doubt(taken.plan), now),
                State::Stopping | State::Doubtful(..) | State::Storing(..) | State::Held => {}
            }
        }
    }

    /// Renews the mover if too much has been in doubt for too long.
    pub(super) fn renew_if_needed(&mut self, now: Millis, to: &mut Queue<Action>) {
        let (mut bytes, mut oldest) = (0u64, now);
        for taken in self.taken.values() {
            if let State::Doubtful(n, since) = taken.state {
                bytes += n;
                oldest = oldest.min(since);
            }
        }
        let late = self.serving.values().any(|serving| serving.is_late(now));
        let needed = bytes > self.config.doubt_bytes || oldest + self.config.doubt_ms <= now || late;
        if needed && !self.renewing {
            self.mover += 1;
            self.renewing = true;
            to.push(Action::Renew(self.mover));
        }
    }

    /// Renews the mover, whatever there is.
    #[cfg(test)]
    pub(super) fn renew_now(&mut self, to: &mut Queue<Action>) {
        (self.mover, self.renewing) = (self.mover + 1, true);
        to.push(Action::Renew(self.mover));
    }

    /// What was begun before the mover was renewed has ended.
    pub(super) fn renewed(&mut self, number: u64, to: &mut Queue<Action>) {
        if !self.renewing || number != self.mover {
            return;
        }
        self.renewing = false;
        self.end_doubts();
        self.pushes_ended(number, to);
    }

    /// What was to come by a mover that is no more does not: also if that is found out later.
    pub(super) fn end_doubts(&mut self) {
        if self.renewing {
            return;
        }
        let Self { taken, storage, mover, .. } = self;
        taken.retain(|_, taken| match taken.state {
            State::Doubtful(..) if taken.mover < *mover => {
                storage.abandon(taken.plan);
                false
            }
            _ => true,
        });
    }
}

fn said(done: Result<Done>) -> (nmc_status_t, Option<Done>) {
    match done {
        Ok(done) => (NMC_OK, Some(done)),
        Err(error) => match error.status {
            NMC_OK => (NMC_ERR_BUSY, None),
            // Of a GPU that is nothing to whoever asks.
            NMC_ERR_CUDA => (NMC_ERR_UNAVAILABLE, None),
            status => (status, None),
        },
    }
}

/// What came of a put.
fn answer(from: Peer, request: u64, done: Result<Done>) -> Action {
    let (status, done) = said(done);
    Action::Send(from, Frame::answering(request, PutDone { status, done }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_put_has_time_on_a_slow_network() {
        // 4 GiB at 100 Mbit/s, which some share.
        assert!(most_ms(4 << 30) > 10 * 360_000 && most_ms(1000) < 31_000);
    }
}
