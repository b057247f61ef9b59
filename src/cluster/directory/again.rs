//! Copies made again: where the master is told to, what is lost with a node is copied from a replica that lives, so many a second and no
//! more. As many are wanted as a put had when it ended, less those that their owners have evicted since. A node that is away is gone
//! through again and again until nothing is missing or it is back; what the former store of a node had, some times, before it is forgotten.
//!
//! A copy is announced like any other. It is no promise: if none comes of it, the next round asks once more.

use super::drain::replica;
use super::members::State;
use super::objects::{At, Gate, Held};
use super::{Action, Leader};
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::{Millis, NodeId, ObjectKey};
use crate::cluster::wire::{CopyThis, Frame, Replica};

/// Indexes that one tick looks at.
const STEP: usize = 1024;
/// Time between two rounds: what was asked for in one is there before the next.
pub(super) const ROUND_MS: Millis = 5_000;
/// Rounds in which what a former store had is asked for, if the copies do not come.
pub(super) const ROUNDS: u32 = 24;

/// A node that is away.
#[derive(Debug)]
struct Job {
    node: NodeId,
    /// The index that is looked at next.
    at: u64,
    /// Something was missing in this round.
    short: bool,
    /// The next round begins then.
    begins: Millis,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Again {
    jobs: Vec<Job>,
    /// Copies that may be asked for by now, in thousandths.
    credit: u64,
    /// When that was reckoned.
    reckoned: Millis,
    /// Copies that were asked for.
    pub asked: u64,
}

impl Leader {
    /// A node is away: what it had is made again from now on.
    pub(super) fn mourn(&mut self, node: NodeId, now: Millis) {
        if self.config.re_replicate > 0 && !self.again.jobs.iter().any(|job| job.node == node) {
            // Without memory for it nothing is made again of this node.
            let _ = memory::push(&mut self.again.jobs, Job { node, at: 0, short: false, begins: now });
        }
    }

    /// Looks at some more of what is lost, and asks for copies.
    pub(super) fn make_again(&mut self, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let rate = u64::from(self.config.re_replicate);
        if rate == 0 {
            return Ok(());
        }
        let passed = now.saturating_sub(self.again.reckoned).min(1000);
        self.again.credit = (self.again.credit + rate * passed).min(rate.max(1) * 1000);
        self.again.reckoned = now;
        let mut jobs = std::mem::take(&mut self.again.jobs);
        jobs.retain(|job| self.node(job.node).is_some_and(|node| node.state == State::Away));
        let mut over = Vec::new();
        let result = jobs.iter_mut().try_for_each(|job| {
            if self.go_through(job, now, to)? {
                memory::push(&mut over, job.node)?;
            }
            Ok(())
        });
        jobs.retain(|job| !over.contains(&job.node));
        self.again.jobs = jobs;
        result
    }

    /// Whether nothing is missing any more.
    fn go_through(&mut self, job: &mut Job, now: Millis, to: &mut Vec<Action>) -> Result<bool> {
        if now < job.begins {
            return Ok(false);
        }
        for _ in 0..STEP {
            let (Some(slot), Some(node)) = (self.members.get(&job.node).copied(), self.node(job.node)) else {
                return Ok(true);
            };
            let Some(index) = node.table.next(job.at) else {
                let over = !job.short;
                (job.at, job.short, job.begins) = (0, false, now + ROUND_MS);
                return Ok(over);
            };
            if let Some(at) = node.table.live(index) {
                match self.replace(at, (slot, index), to)? {
                    Replaced::Later => return Ok(false),
                    Replaced::Asked => job.short = true,
                    Replaced::Enough => {}
                }
            }
            job.at = u64::from(index) + 1;
        }
        Ok(false)
    }

    /// Asks for a copy in the place of a replica that is lost, if one is missing.
    pub(super) fn replace(&mut self, at: At, lost: (u16, u32), to: &mut Vec<Action>) -> Result<Replaced> {
        let Some((key, from)) = self.is_short(at, lost)? else { return Ok(Replaced::Enough) };
        if self.again.credit < 1000 {
            return Ok(Replaced::Later);
        }
        let Some(copier) = self.other_copier(&key, &from) else { return Ok(Replaced::Asked) };
        let (peer, incarnation, term) = (copier.peer, copier.incarnation, self.term);
        to.push(Action::Send(peer, Frame::telling(CopyThis { term, incarnation, key, from })));
        self.again.credit -= 1000;
        self.again.asked += 1;
        Ok(Replaced::Asked)
    }

    /// If fewer replicas of a put are there, or coming, than there should be: the key, and one that can be copied.
    fn is_short(&self, at: At, (slot, index): (u16, u32)) -> Result<Option<(ObjectKey, Replica)>> {
        let all = self.objects.replicas(at);
        let is_lost = |held: &&Held| (held.owner, held.index) == (slot, index) && held.gate == Gate::Open;
        let Some(put) = all.iter().find(is_lost).map(|held| held.put) else { return Ok(None) };
        let mut owners: Vec<u16> = memory::with_capacity(all.len())?;
        let mut source = None;
        for held in all.iter().filter(|held| held.put == put && matches!(held.gate, Gate::Open | Gate::Announced)) {
            let owner = self.owners.get(usize::from(held.owner)).and_then(|owner| owner.listed());
            let Some(node) = owner.filter(|node| self.is_there(node)) else { continue };
            if held.gate == Gate::Open && source.is_none() {
                source = Some((node, held));
            }
            // In memory and on disk is one copy.
            if !owners.contains(&held.owner) {
                owners.push(held.owner);
            }
        }
        let Some((node, held)) = source.filter(|_| owners.len() < self.objects.wanted(at)) else { return Ok(None) };
        let named = self.objects.key(at).and_then(|(space, key)| Some((self.spaces.name(space)?, key)));
        let Some((space, key)) = named else { return Ok(None) };
        Ok(Some((ObjectKey::new(space, key)?, replica(node, held))))
    }
}

/// What came of a look at a replica that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    /// There are as many as there should be, or none that could be copied.
    Enough,
    /// A copy was asked for, or nobody could take one.
    Asked,
    /// Too many were asked for lately.
    Later,
}
