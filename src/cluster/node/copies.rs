//! Copies of what other nodes have, kept here: because somebody here read it, or because the leader wants it elsewhere. A copy
//! is filled, announced, and published when the leader of this term has heard of it; whatever drops the original meanwhile
//! drops the copy too.

use super::storage::{Plan, Wanted};
use super::{Action, Agent, Standing, Storage};
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_STALE, NMC_OK, nmc_status_t};
use crate::cluster::types::{Media, Millis, ObjectKey, slow_ms};
use crate::cluster::wire::{Announce, Metadata, Replica};

/// Copies under way.
const MAX_COPIES: usize = 256;

/// A copy that is not published yet.
#[derive(Debug)]
pub(super) struct Copy {
    pub key: ObjectKey,
    pub from: Replica,
    plan: Plan,
    state: State,
    until: Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Filling,
    /// The same, but it is not wanted any more.
    Cancelled,
    Announced,
    /// The leader has heard of it. It may be published by now, although the store could not say so.
    Publishing,
}

impl<S: Storage> Agent<S> {
    /// Begins a copy: a copy says what the original does, which its owner is asked for. It is no loss if none comes of it.
    pub(super) fn keep(&mut self, key: ObjectKey, from: Replica, to: &mut Queue<Action>) {
        // Who asks does not know how far it is.
        let is_it = |copy: &Copy| copy.state != State::Cancelled && copy.from.put == from.put && copy.key == key;
        let is_coming = self.copies.values().any(is_it);
        if self.standing == Standing::In && self.copies.len() < MAX_COPIES && !is_coming {
            to.push(Action::Describe(key, from));
        }
    }

    /// It is known what the original says.
    pub(super) fn described(
        &mut self,
        key: ObjectKey,
        from: Replica,
        metadata: &Metadata,
        retain: u32,
        now: Millis,
        to: &mut Queue<Action>,
    ) {
        if self.standing != Standing::In || self.copies.len() >= MAX_COPIES {
            return;
        }
        // Not where nothing new is to be.
        let mut open = self.config.segments.iter().filter(|s| s.media != Media::Ssd && !self.is_closed(s.number));
        let Some(segment) = open.next().map(|segment| segment.number) else { return };
        let (put, length, inner) = (from.put, from.length, key.inner(from.put));
        let wanted = Wanted { put, key: &inner, length, segment, exact: false, retain, metadata, is_copy: true };
        let Ok(plan) = self.storage.open(&wanted) else { return };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        to.push(Action::Fill { ticket, plan, key: key.clone(), from: from.clone() });
        let until = now + self.config.copy_ms + slow_ms(from.length);
        self.copies.insert(ticket, Copy { key, from, plan, state: State::Filling, until });
    }

    /// A copy has its bytes, or none will come.
    pub(super) fn filled(&mut self, ticket: u64, whole: bool, now: Millis) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let announce = Announce { key: copy.key.clone(), put: copy.from.put, ticket };
        if whole && copy.state == State::Filling && self.stream.note(announce).is_ok() {
            copy.state = State::Announced;
            copy.until = now + self.config.copy_ms;
        } else if let Some(copy) = self.copies.remove(&ticket) {
            self.storage.abandon(copy.plan);
        }
    }

    /// The leader has heard of a copy, or refuses it.
    pub(super) fn announced(&mut self, ticket: u64, status: nmc_status_t) {
        let Some(copy) = self.copies.get(&ticket).filter(|copy| copy.state == State::Announced) else { return };
        if status != NMC_OK {
            let plan = copy.plan;
            self.copies.remove(&ticket);
            return self.storage.abandon(plan);
        }
        self.publish_copy(ticket);
    }

    /// Publishes a copy of which the leader has heard. What cannot be now is tried again: a repeat does no harm.
    fn publish_copy(&mut self, ticket: u64) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.state = State::Publishing;
        match self.storage.commit(copy.plan) {
            Err(error) if error.status != NMC_ERR_STALE => return,
            Err(_) => self.storage.abandon(copy.plan),
            Ok(_) => {}
        }
        if let Some(copy) = self.copies.remove(&ticket) {
            // Behind its fact, which may be missing if it was evicted before a snapshot: then none is to come either.
            let _ = self.stream.withdraw(copy.key, copy.from.put);
        }
    }

    /// Gives up copies. What was announced of them is withdrawn; of what is being filled the pages are free when that has ended.
    pub(super) fn cancel_copies(&mut self, which: impl Fn(&Copy) -> bool) {
        let Self { copies, storage, stream, .. } = self;
        copies.retain(|_, copy| {
            if !which(copy) {
                return true;
            }
            if copy.state == State::Announced {
                // Without memory for it the announcement stays until this life of the node ends.
                let _ = stream.withdraw(copy.key.clone(), copy.from.put);
                storage.abandon(copy.plan);
                return false;
            }
            if copy.state == State::Publishing {
                // The announcement stays until this life of the node ends: if it was published, whoever removes it must tell this node.
                storage.abandon(copy.plan);
                return false;
            }
            copy.state = State::Cancelled;
            true
        });
    }

    /// Copies that could not be published are tried again, and those that are late end.
    pub(super) fn look_after_copies(&mut self, now: Millis) {
        let publishing = |(ticket, copy): (&u64, &Copy)| (copy.state == State::Publishing).then_some(*ticket);
        let again: Vec<u64> = self.copies.iter().filter_map(publishing).collect();
        again.into_iter().for_each(|ticket| self.publish_copy(ticket));
        // Of one that may be published the store says in the end what became of it.
        self.cancel_copies(|copy| now >= copy.until && copy.state != State::Publishing);
    }
}
