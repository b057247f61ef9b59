//! The agent of a node: it joins the leader, applies the drop log, tells what the store does, takes puts and serves gets of
//! others. It decides nothing about objects: the store owns them.
//!
//! Binding rules: the drop log is applied before anything is reported; a put is taken only in the term in which it began; a
//! copy is published only after the leader of this term has heard of it; pages that somebody may still write to stay out of
//! use; and a node that may have been counted as away serves nobody else until it is back.

mod bounce;
mod copies;
mod member;
#[cfg(test)]
pub(super) mod model;
mod promoter;
mod puts;
pub mod real;
mod serve;
mod staged;
pub mod storage;
mod stream;
#[cfg(test)]
mod tests;

pub use member::PARTING;
pub use real::NodeStore;
pub use storage::{Hold, Memory, Offer, Pinned, Plan, Storage, Wake};

use super::leaders::Leaders;
use super::revoked::Revoked;
use super::told::Told;
use super::types::{Millis, NodeId, Peer, Position, PutId, Term};
use super::wire::{Extent, Frame, Message, Metadata, Replica, SegmentInfo};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_STALE, nmc_status_t};
use crate::cluster::types::ObjectKey;
use copies::Copy;
use puts::{Remembered, Taken};
use serve::{Coming, Serving};
use std::collections::{BTreeMap, BTreeSet};
use stream::Stream;

/// What an agent is set up with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the node.
    pub name: String,
    /// Which life of it this is: random.
    pub incarnation: u64,
    /// Which store it has.
    pub store: u64,
    /// Where it listens.
    pub endpoint: String,
    /// The machine.
    pub host: String,
    /// Headers of the store.
    pub headers: u32,
    /// Slots of its tier.
    pub slots: u32,
    /// What the store has is gone when the node ends.
    pub volatile: bool,
    /// What it offers.
    pub segments: Vec<SegmentInfo>,
    /// Addresses of the masters.
    pub masters: Vec<String>,
    /// How often the leader hears of the node.
    pub ping_ms: Millis,
    /// After so long without an answer something is sent again.
    pub resend_ms: Millis,
    /// After so long without an answer another master is tried.
    pub master_ms: Millis,
    /// How long a copy may wait for the leader's word.
    pub copy_ms: Millis,
    /// How long what came of a put is remembered.
    pub remember_ms: Millis,
    /// Bytes that may be in doubt before the mover is renewed.
    pub doubt_bytes: u64,
    /// How long they may be.
    pub doubt_ms: Millis,
    /// How long the store may fail to do what a member has to before the node counts as away.
    pub stuck_ms: Millis,
    /// How long it then stays away, at least and at most: longer than it takes until it counts so.
    pub rest_ms: (Millis, Millis),
}

/// What an agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A master, by its place in the list, says something.
    Master(usize, Frame),
    /// Somebody else does.
    Message(Peer, Frame),
    /// Time has passed, or the store has news.
    Tick,
    /// The bytes of a put are all there; or none will come any more.
    Received(PutId, bool),
    /// The bytes of a value have left, or no more of them will: what is held is not read any more.
    Sent(u64, bool),
    /// A value that was to be pushed cannot be: not a byte of it has left.
    Unsent(u64),
    /// A connection has ended.
    Closed(Peer),
    /// A value is to be kept here too.
    Keep(ObjectKey, Replica),
    /// What the owner of a value says about it: metadata, and the code of its retain class and priority.
    Described(ObjectKey, Replica, Metadata, u32),
    /// A copy has all its bytes; or none will come any more.
    Filled(u64, bool),
    /// The mover has no byte under way of what was begun before it was to be renewed with this number.
    Renewed(u64),
    /// A program of this node has read a put that is to go so long after that.
    Expire(ObjectKey, PutId, u32),
    /// Wait until the leader knows everything up to now; this long.
    Sync(u64, Millis),
    /// It ends: from now on it serves nobody and takes nothing.
    Leave,
}

/// What an agent wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to a master.
    Master(usize, Frame),
    /// Send this to somebody else.
    Send(Peer, Frame),
    /// Take the bytes that follow a put, into its plan; then say `Received`.
    Receive {
        /// From whom.
        from: Peer,
        /// In which request.
        request: u64,
        /// Of which put.
        put: PutId,
        /// Where to.
        plan: Plan,
        /// How many.
        length: u64,
    },
    /// The bytes of a put are late: end its connection, then say `Received` with false.
    Stop(PutId),
    /// Send this and bytes of a value that is held; then say `Sent`.
    SendValue {
        /// To whom.
        to: Peer,
        /// What goes before.
        frame: Frame,
        /// What is held.
        pin: u64,
        /// First byte.
        offset: u64,
    },
    /// End the connection of somebody who takes a value too slowly; then say `Sent` with false of all that was on its way there.
    Close(Peer),
    /// Write bytes of a value that is held to where the other side said; then say `Sent`.
    Push {
        /// To whom.
        to: Peer,
        /// What is held.
        pin: u64,
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
        /// Where to.
        into: Vec<Extent>,
        /// By which of the other side's movers.
        mover: u64,
    },
    /// Try to end a push. `Sent` is said as always.
    CancelPush(u64),
    /// Ask the owner of a replica what it says about it; then say `Described`, if it is still that.
    Describe(ObjectKey, Replica),
    /// Fill a copy: from this replica, if its owner gives it with the same put and length; then say `Filled`.
    Fill {
        /// Which copy.
        ticket: u64,
        /// Where to.
        plan: Plan,
        /// The object.
        key: ObjectKey,
        /// What it is a copy of.
        from: Replica,
    },
    /// Destroy what moves bytes and make it again, under this number; then say `Renewed`. What is begun after this goes by the
    /// new one.
    Renew(u64),
    /// Whoever waited need not any more.
    Synced(u64, nmc_status_t),
}

/// How the node stands with the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It is no member, and has asked at this time to be one.
    Out(Millis),
    /// It applies the drop log up to there.
    Applying(Position),
    /// It is in.
    In,
    /// It has ended.
    Left,
}

/// See the module.
pub struct Agent<S: Storage> {
    config: Config,
    id: NodeId,
    storage: S,
    leaders: Leaders,
    /// The term of the leader that it joined.
    term: Term,
    /// The drop log does not reach back to what it has: all of it goes before anything is told.
    must_drop_all: bool,
    /// The same of a part that was not there for a while.
    must_drop_apart: bool,
    standing: Standing,
    /// Since when it is no member, or was last.
    out_since: Millis,
    stream: Stream,
    /// When the last message was sent that was answered while the node was in.
    answered: Millis,
    /// When the message was sent by which it joined.
    joined_at: Millis,
    /// When the leader was heard of last, and spoken to last.
    heard: Millis,
    pinged: Millis,
    /// When it was looked last whether it was.
    looked_at: Millis,
    /// Since when the current master is asked to let the node in.
    asked_since: Millis,
    fence_ms: Millis,
    taken: BTreeMap<PutId, Taken>,
    remembered: Remembered,
    /// Puts of this term that are not to be taken any more.
    revoked: Revoked,
    copies: BTreeMap<u64, Copy>,
    next_ticket: u64,
    serving: BTreeMap<u64, Serving>,
    coming: Vec<Coming>,
    /// The highest request of each peer that asked for something to be written, or for that to end.
    pushes: BTreeMap<Peer, u64>,
    /// The mover that there is or is being made, by the number of its renewal.
    mover: u64,
    renewing: bool,
    /// Segments that the leader wants closed and that are; not known before it has said so.
    closed: Option<BTreeSet<u32>>,
    /// By which answer.
    changed: u64,
    /// What was read and is to go.
    told: Told,
    /// Whether the store could not keep the last position.
    unkept: bool,
    /// Since when the store has not done what a member has to.
    stuck: Option<Millis>,
    /// How long the node stays away because of that.
    rest_ms: Millis,
    /// Who waits until the leader knows the facts up to a number, and how long. No number while the store cannot say it.
    waiting: Vec<(u64, Option<u64>, Millis)>,
}

impl<S: Storage> Agent<S> {
    /// An agent that has not spoken to anybody.
    #[must_use]
    pub fn new(config: Config, storage: S, now: Millis) -> Self {
        Self {
            id: NodeId::of(&config.name),
            leaders: Leaders::new(config.masters.clone()),
            config,
            storage,
            term: 0,
            must_drop_all: false,
            must_drop_apart: false,
            standing: Standing::Out(0),
            out_since: now,
            stream: Stream::new(0),
            answered: 0,
            joined_at: 0,
            heard: now,
            pinged: 0,
            looked_at: now,
            asked_since: now,
            fence_ms: 0,
            taken: BTreeMap::new(),
            remembered: Remembered::default(),
            revoked: Revoked::default(),
            copies: BTreeMap::new(),
            next_ticket: 1,
            serving: BTreeMap::new(),
            coming: Vec::new(),
            pushes: BTreeMap::new(),
            mover: 0,
            renewing: false,
            closed: None,
            changed: 0,
            told: Told::default(),
            unkept: false,
            stuck: None,
            rest_ms: 0,
            waiting: Vec::new(),
        }
    }

    /// The store.
    #[must_use]
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The store, for what goes on in it without the cluster.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Who it is, and in which life.
    #[must_use]
    pub fn identity(&self) -> (NodeId, u64) {
        (self.id, self.config.incarnation)
    }

    /// Whether it may give others what it has: nobody can have been told that any of it is removed.
    #[must_use]
    pub fn serves(&self, now: Millis) -> bool {
        now < self.answered.saturating_add(self.fence_ms)
    }

    /// Whether nothing new is stored in a segment, as the leader wants it.
    fn is_closed(&self, segment: u32) -> bool {
        self.closed.as_ref().is_some_and(|closed| closed.contains(&segment))
    }

    /// Whether it has dropped all that was removed while it was no member.
    #[cfg(test)]
    pub fn is_in(&self) -> bool {
        self.standing == Standing::In
    }

    /// When it wants to be told that time has passed, at the latest.
    #[must_use]
    pub fn wake(&self, now: Millis) -> Millis {
        now + (self.config.ping_ms / 4).max(1)
    }

    /// What happened at `now`; what is to be done is added to `to`.
    pub fn on(&mut self, event: Event, now: Millis, to: &mut Queue<Action>) {
        self.hear(event, now, to);
        self.go_on(now, to);
    }

    /// The same for one of several events that came at once: what is due is done with the last of them.
    pub fn hear(&mut self, event: Event, now: Millis, to: &mut Queue<Action>) {
        if self.standing == Standing::Left {
            return;
        }
        match event {
            Event::Master(from, frame) => self.master(from, frame, now, to),
            Event::Message(from, frame) => self.message(from, frame, now, to),
            Event::Tick => {}
            Event::Received(put, whole) => self.received(put, whole, now, to),
            Event::Sent(pin, whole) => self.sent(pin, whole, now, to),
            Event::Unsent(pin) => self.unsent(pin, now, to),
            Event::Closed(peer) => self.forget_coming(peer),
            Event::Keep(key, from) => self.keep(key, from, to),
            Event::Described(key, from, metadata, retain) => self.described(key, from, &metadata, retain, now, to),
            Event::Filled(ticket, whole) => self.filled(ticket, whole, now),
            Event::Renewed(number) => self.renewed(number, to),
            Event::Sync(ticket, patience) => {
                // The answer to a ping tells what is known.
                self.pinged = 0;
                let until = now.saturating_add(patience);
                let status = match self.must_drop_all {
                    true => NMC_ERR_STALE,
                    false => match memory::reserve(&mut self.waiting, 1) {
                        Ok(()) => return self.waiting.push((ticket, self.storage.notice().ok(), until)),
                        Err(error) => error.status,
                    },
                };
                to.push(Action::Synced(ticket, status));
            }
            Event::Expire(key, put, after_ms) => {
                self.was_read(key, put, after_ms, now, to);
            }
            Event::Leave => self.end(to),
        }
    }

    fn message(&mut self, from: Peer, frame: Frame, now: Millis, to: &mut Queue<Action>) {
        let (request, time_left) = (frame.request, Millis::from(frame.time_left_ms));
        let done = match frame.message {
            Message::Put(put) => self.put(from, request, time_left, put, now, to),
            Message::Reserve(reserve) => self.reserve(from, request, time_left, &reserve, now, to),
            Message::Commit(commit) => self.commit(from, request, commit.put, now, to),
            Message::Stopped(stopped) => self.stopped(from, request, &stopped, now, to),
            Message::Fetch(fetch) => self.fetch(from, request, time_left, fetch, now, to),
            Message::CancelFetch(cancel) => self.cancel_fetch(from, request, &cancel, to),
            other => Err(crate::base::error::Error::new(
                crate::base::status::NMC_ERR_PROTOCOL,
                format!("a node is not told {}", other.name()),
            )),
        };
        if let Err(error) = done {
            let answer = super::wire::Answer::new(0, error.status, error.message);
            to.push(Action::Send(from, Frame::answering(request, answer)));
        }
    }

    /// What is due: joining, pings, reports, and everything that has waited too long.
    fn go_on(&mut self, now: Millis, to: &mut Queue<Action>) {
        if self.standing == Standing::Left {
            return;
        }
        self.answer_stored(now, to);
        self.serve_come(now, to);
        self.end_late_puts(now, to);
        self.end_slow_streams(now, to);
        self.look_after_copies(now);
        self.end_doubts();
        self.renew_if_needed(now, to);
        self.speak(now, to);
        let (term, late) = (self.term, crate::base::status::NMC_ERR_TIMEOUT);
        for (_, fact, _) in self.waiting.iter_mut().filter(|(_, fact, _)| fact.is_none()) {
            *fact = self.storage.notice().ok();
        }
        self.waiting.retain(|(ticket, _, until)| {
            let keep = now < *until && term < Term::MAX;
            if !keep {
                to.push(Action::Synced(*ticket, late));
            }
            keep
        });
    }

    /// Sends the reports that are due.
    fn report(&mut self, now: Millis, to: &mut Queue<Action>) -> Result<()> {
        let Self { stream, storage, config, .. } = self;
        let (term, node, incarnation, master) = (self.term, self.id, config.incarnation, self.leaders.current());
        let all = self.standing == Standing::In;
        stream.next(storage, all, now, config.resend_ms, |number, news| {
            let news = news.clone();
            let report = super::wire::Report { term, node, incarnation, number, sent_at: now, news };
            to.push(Action::Master(master, Frame::telling(report)));
        })
    }
}
