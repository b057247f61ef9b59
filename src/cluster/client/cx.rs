//! What a call works with: what all of them share, what came for it, whom it asks, and how long it waits.

use super::cache::Cache;
use super::requests::{Pace, Request, Requests};
use super::stripes::Wanted;
use super::words::{Action, Config, Memory};
use crate::base::queue::Queue;
use crate::base::status::nmc_status_t;
use crate::cluster::leaders::Leaders;
use crate::cluster::types::{Chance, Millis, NodeId};
use crate::cluster::wire::{Frame, Message};
use std::collections::BTreeMap;

/// How long a mover may take to end what was cancelled before it is renewed.
pub(super) const CANCEL_MS: Millis = 1_000;
/// How long a node that cannot move bytes itself is not asked for that again.
const ALONE_MS: Millis = 200;
/// Nodes of which that is remembered.
const MOST_ALONE: usize = 1024;
/// How long a master has to answer at least, where others are still to be asked.
const LEAST_PATIENCE_MS: Millis = 100;
/// First wait before something is asked again; it doubles.
const PAUSE_MS: Millis = 20;
/// Longest such wait.
const MAX_PAUSE_MS: Millis = 500;

/// What came for a call.
pub(super) enum Reply {
    /// An answer.
    Message(Message),
    /// None, in time.
    Late,
    /// It could not be asked, for this reason.
    Failed(nmc_status_t),
    /// Who was asked answers nothing, for this reason.
    Refused(nmc_status_t),
    /// The bytes are there, or will not come.
    Bytes(bool),
    /// They are there, and are not what the owner said.
    Torn,
    /// None was sent.
    Unwritten,
}

/// What calls need besides their own state.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) leaders: Leaders,
    pub(super) cache: Cache,
    pub(super) chance: Chance,
    pub(super) requests: Requests,
    pub(super) next_request: u64,
    /// Nodes that failed lately, and until when they are asked last.
    pub(super) failed: BTreeMap<NodeId, Millis>,
    /// Nodes that cannot move bytes themselves, and until when they are not asked again.
    pub(super) alone: BTreeMap<NodeId, Millis>,
    /// The mover that there is or is being made, by the number of its renewal.
    pub(super) mover: u64,
    /// The last renewal that is over.
    pub(super) renewed: u64,
    /// Bytes of values that are being put: they share connections.
    pub(super) bytes: u64,
}

/// What an event is handled with.
pub(super) struct Cx<'a> {
    pub(super) shared: &'a mut Shared,
    pub(super) call: u64,
    pub(super) memory: Memory,
    pub(super) now: Millis,
    pub(super) to: &'a mut Queue<Action>,
    /// What is to happen to the parts of the call.
    pub(super) parts: &'a mut Wanted,
}

impl Cx<'_> {
    pub(super) fn request(&mut self, part: usize, until: Millis, master: bool) -> u64 {
        let number = self.shared.next_request;
        self.shared.next_request += 1;
        let request = Request { call: self.call, part, until, master, node: None, pace: None };
        self.shared.requests.insert(number, request);
        number
    }

    /// Asks the leader, for as long as it may take.
    pub(super) fn ask_master(&mut self, part: usize, deadline: Millis, message: impl Into<Message>) {
        self.ask_master_for(part, self.shared.config.master_ms, deadline, message);
    }

    /// The same, with a patience of its own.
    pub(super) fn ask_master_for(
        &mut self,
        part: usize,
        patience: Millis,
        deadline: Millis,
        message: impl Into<Message>,
    ) {
        // Where nobody is known to lead, all are to be asked while there is time.
        let left = deadline.saturating_sub(self.now);
        let patience = match self.shared.leaders.is_known() {
            true => patience,
            false => patience.min((left / self.shared.leaders.count() as u64).max(LEAST_PATIENCE_MS)),
        };
        let until = deadline.min(self.now + patience);
        let request = self.request(part, until, true);
        let time_left_ms = u32::try_from(deadline.saturating_sub(self.now)).unwrap_or(u32::MAX);
        let frame = Frame { request, time_left_ms, message: message.into() };
        self.to.push(Action::Master(self.shared.leaders.current(), frame));
    }

    /// Asks a node. Gives the number of the request.
    pub(super) fn ask_node(
        &mut self,
        part: usize,
        until: Millis,
        node: (NodeId, &str),
        message: impl Into<Message>,
    ) -> u64 {
        self.ask_node_for(part, (until, None), node, message)
    }

    /// The same; if there is a pace its answer is waited for as long as its value moves.
    pub(super) fn ask_node_for(
        &mut self,
        part: usize,
        (until, pace): (Millis, Option<Pace>),
        node: (NodeId, &str),
        message: impl Into<Message>,
    ) -> u64 {
        let (call, number) = (self.call, self.shared.next_request);
        self.shared.next_request += 1;
        let request = Request { call, part, until, master: false, node: Some(node.0), pace };
        self.shared.requests.insert(number, request);
        let most = pace.map_or(until, |pace| pace.limit);
        let time_left_ms = u32::try_from(most.saturating_sub(self.now)).unwrap_or(u32::MAX);
        let frame = Frame { request: number, time_left_ms, message: message.into() };
        self.to.push(Action::Node(node.0, node.1.to_string(), frame, self.memory));
        number
    }

    /// Says something that nobody waits for the answer of.
    pub(super) fn tell_master(&mut self, message: impl Into<Message>) {
        self.to.push(Action::Master(self.shared.leaders.current(), Frame::telling(message)));
    }

    /// Ends what goes by a mover: gives the renewal to wait for, or nothing if one is over since. One that is under way is as good as another: many
    /// calls that lose their owner together would else wait for as many, one after the other.
    pub(super) fn renew(&mut self, since: u64) -> Option<u64> {
        if self.shared.renewed > since {
            return None;
        }
        if self.shared.mover <= since {
            self.shared.mover = since + 1;
            self.to.push(Action::Renew(self.shared.mover));
        }
        Some(since + 1)
    }

    /// Whether somebody else is to move a value of so many bytes from or to a node.
    pub(super) fn is_pushed(&self, node: NodeId, length: u64) -> bool {
        let config = &self.shared.config;
        let alone = self.shared.alone.get(&node).is_some_and(|until| self.now < *until);
        config.pushed && length >= config.pushed_from && length > 0 && !alone
    }

    /// A node cannot do that, or not now.
    pub(super) fn alone(&mut self, node: NodeId) {
        self.shared.alone.insert(node, self.now + ALONE_MS);
        while self.shared.alone.len() > MOST_ALONE {
            self.shared.alone.pop_first();
        }
    }

    pub(super) fn failed(&mut self, node: NodeId) {
        let until = self.now + 10 * self.shared.config.owner_ms;
        self.shared.failed.insert(node, until);
        while self.shared.failed.len() > 1024 {
            self.shared.failed.pop_first();
        }
    }
}

/// Waits between tries of the same thing.
#[derive(Debug, Default)]
pub(super) struct Pause {
    length: Millis,
    pub(super) until: Option<Millis>,
}

impl Pause {
    /// Waits, longer than the last time.
    pub(super) fn begin(&mut self, now: Millis) {
        self.length = (self.length * 2).clamp(PAUSE_MS, MAX_PAUSE_MS);
        self.until = Some(now + self.length);
    }

    /// Whether it is over.
    pub(super) fn over(&mut self, now: Millis) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

/// How long a value may take besides, at 16 MiB a second.
pub(super) fn moving_ms(bytes: u64) -> Millis {
    bytes >> 14
}
