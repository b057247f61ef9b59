//! Emptying a segment: it takes no puts, those of its own node neither, and what is nowhere else is copied by other nodes, which are asked
//! to and announce their copies like any other. Whoever drains asks again until nothing is left, or gives up and is told what is.
//! Nothing is left only when the node has said that nobody stores there any more, and everything was looked at after that. A node all of
//! whose memory is emptied is about to go, and its disk with it: what that has is copied too.

use super::finds::media;
use super::members::{Node, Seg, State};
use super::objects::{Gate, Held};
use super::{Action, Ask, Leader};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_IN_PROGRESS, NMC_OK};
use crate::cluster::types::{Media, Millis, Name, NodeId, ObjectKey};
use crate::cluster::wire::{Answer, CopyThis, Drain, Frame, Replica};
use crate::store::types::show;

/// Indexes that one tick looks at.
const STEP: usize = 1024;
/// Copies of one segment that are under way, and their bytes: more would only wait for each other.
const COPIES: usize = 64;
const BYTES: u64 = 256 << 20;
/// How long one may take before somebody else is asked, besides a second for each MiB that shares the way with it.
const COPY_MS: Millis = 10_000;
/// Segments that are emptied at the same time.
const MAX_DRAINS: usize = 64;
/// Objects that are named of those that are left.
const NAMED: usize = 4;

/// A segment that is being emptied.
#[derive(Debug)]
struct Job {
    node: NodeId,
    segment: u32,
    /// The index that is looked at next.
    at: u64,
    /// What this round found only there, and the first of it.
    left: u64,
    named: Vec<ObjectKey>,
    /// Nothing can have come since this round began.
    closed: bool,
    /// The same of the last round, if there was one.
    last: Option<(u64, Vec<ObjectKey>)>,
    /// What somebody was asked to copy.
    asked: Vec<Asked>,
}

/// A copy that was asked for.
#[derive(Debug)]
struct Asked {
    index: u32,
    epoch: u64,
    bytes: u64,
    by: NodeId,
    until: Millis,
}

impl Job {
    /// Bytes that are being copied.
    fn on_the_way(&self) -> u64 {
        self.asked.iter().map(|asked| asked.bytes).sum()
    }

    /// Whether a copy may be asked for now: not of what is being copied, nor of too much.
    fn may_ask(&self, index: u32, from: &Replica) -> bool {
        let bytes = self.on_the_way();
        let is = |asked: &Asked| (asked.index, asked.epoch) == (index, from.name.epoch);
        let room = self.asked.len() < COPIES && bytes.saturating_add(from.length) <= BYTES;
        !self.asked.iter().any(is) && (room || self.asked.is_empty())
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Drains(Vec<Job>);

impl Leader {
    pub(super) fn drain(&mut self, ask: Ask, drain: &Drain, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let found = self.nodes().find_map(|node| {
            let segment = node.segments.iter().find(|segment| segment.info.name == drain.segment)?;
            Some((node.id, segment.info.number))
        });
        let Some((id, segment)) = found else {
            if !self.knows_segments(now) {
                crate::bail!(
                    NMC_ERR_UNAVAILABLE,
                    "a node that may have segment \"{}\" has not come yet",
                    drain.segment
                );
            }
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no segment \"{}\"", drain.segment);
        };
        if drain.cancel {
            self.drains.0.retain(|job| (job.node, job.segment) != (id, segment));
            self.set_draining(id, segment, false, to);
            to.push(ask.answer(Answer::new(self.term, NMC_OK, "")));
            return Ok(());
        }
        // One of a former life of the node, whose segment had the same number, knows nothing of this one.
        self.end_drains();
        let job = self.drains.0.iter().find(|job| (job.node, job.segment) == (id, segment));
        let answer = match job.map(|job| &job.last) {
            None => {
                if self.drains.0.len() >= MAX_DRAINS {
                    crate::bail!(NMC_ERR_BUSY, "{MAX_DRAINS} segments are being emptied, the most possible");
                }
                let (left, named, closed, last, asked) = (0, Vec::new(), false, None, Vec::new());
                let job = Job { node: id, segment, at: 0, left, named, closed, last, asked };
                memory::push(&mut self.drains.0, job)?;
                self.set_draining(id, segment, true, to);
                Answer::new(self.term, NMC_IN_PROGRESS, "")
            }
            Some(None) => Answer::new(self.term, NMC_IN_PROGRESS, ""),
            Some(Some((0, _))) => Answer::new(self.term, NMC_OK, ""),
            Some(Some((left, named))) => {
                Answer { count: *left, ..Answer::new(self.term, NMC_IN_PROGRESS, names(*left, named)) }
            }
        };
        to.push(ask.answer(answer));
        Ok(())
    }

    fn set_draining(&mut self, id: NodeId, number: u32, draining: bool, to: &mut Vec<Action>) {
        let term = self.term;
        let Some(node) = self.node_mut(id) else { return };
        node.changed += 1;
        for segment in node.segments.iter_mut().filter(|segment| segment.info.number == number) {
            (segment.draining, segment.closed) = (draining, None);
        }
        // With every answer as well, in case this is lost. It answers nothing that was not answered before.
        to.push(Action::Send(node.peer, Frame::telling(node.ack(term, node.said))));
    }

    /// Ends drains of segments that are not being drained any more.
    fn end_drains(&mut self) {
        let mut jobs = std::mem::take(&mut self.drains.0);
        jobs.retain(|job| {
            let node = self.node(job.node);
            node.is_some_and(|node| node.segments.iter().any(|s| s.info.number == job.segment && s.draining))
        });
        self.drains.0 = jobs;
    }

    /// Looks at some more of what is being emptied, and asks for copies.
    pub(super) fn drain_some(&mut self, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        self.end_drains();
        for _ in 0..self.drains.0.len() {
            let mut job = self.drains.0.remove(0);
            let result = self.drain_step(&mut job, now, to);
            self.drains.0.push(job);
            result?;
        }
        Ok(())
    }

    fn drain_step(&mut self, job: &mut Job, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        let is_there = |asked: &Asked| self.node(asked.by).is_some_and(|node| self.is_there(node));
        // What has come makes room for others at once.
        let is_missing = |asked: &Asked| {
            let left = self.node(job.node).map(|node| self.only_here(node, asked.index, job.segment));
            match left.unwrap_or(Ok(None)) {
                Ok(left) => left.is_some_and(|(_, from, _)| from.name.epoch == asked.epoch),
                Err(_) => true,
            }
        };
        job.asked.retain(|asked| now < asked.until && is_there(asked) && is_missing(asked));
        for _ in 0..STEP {
            let Some(node) = self.node(job.node).filter(|node| node.complete && !node.telling) else {
                // What it has may turn up where it was looked at already.
                (job.at, job.left) = (0, 0);
                job.named.clear();
                return Ok(());
            };
            if job.at == 0 {
                let is_closed = |s: &Seg| s.info.number == job.segment && s.closed.is_some_and(|to| node.facts >= to);
                job.closed = node.segments.iter().any(is_closed);
            }
            let Some(index) = node.table.next(job.at) else {
                if job.closed || job.left > 0 {
                    job.last = Some((job.left, std::mem::take(&mut job.named)));
                }
                (job.at, job.left) = (0, 0);
                job.named.clear();
                return Ok(());
            };
            if let Some((key, from, busy)) = self.only_here(node, index, job.segment)? {
                memory::reserve(&mut job.asked, 1)?;
                memory::reserve(&mut job.named, 1)?;
                job.left += 1;
                if !busy
                    && job.may_ask(index, &from)
                    && let Some(copier) = self.copier(&key, &from, &job.asked, true)
                {
                    let (peer, by, incarnation, term) = (copier.peer, copier.id, copier.incarnation, self.term);
                    let (epoch, bytes) = (from.name.epoch, from.length);
                    let copy = CopyThis { term, incarnation, key: key.copy()?, from };
                    to.push(Action::Send(peer, Frame::telling(copy)));
                    let until = now + COPY_MS + ((bytes + job.on_the_way()) >> 10);
                    job.asked.push(Asked { index, epoch, bytes, by, until });
                }
                if job.named.len() < NAMED {
                    job.named.push(key);
                }
            }
            job.at = u64::from(index) + 1;
        }
        Ok(())
    }

    /// What is at an index of the segment and may be read nowhere else, or has not been put to its end; and whether a copy is coming already, or cannot.
    fn only_here(&self, node: &Node, index: u32, segment: u32) -> Result<Option<(ObjectKey, Replica, bool)>> {
        let Some(at) = node.table.live(index) else { return Ok(None) };
        let all = self.objects.replicas(at);
        let Some(slot) = self.members.get(&node.id) else { return Ok(None) };
        let is_it = |held: &&Held| {
            let goes = u32::from(held.segment) == segment || goes_with_memory(node, held.segment);
            let may_stay = matches!(held.gate, Gate::Open | Gate::Closed);
            (held.owner, held.index) == (*slot, index) && may_stay && goes
        };
        let Some(held) = all.iter().find(is_it) else { return Ok(None) };
        // What has begun may end well at any time: until then nobody knows where it is besides.
        let ends = held.gate == Gate::Open;
        let counts_on = |other: &Held| {
            let owner = self.owners.get(usize::from(other.owner)).and_then(|owner| owner.listed());
            owner.filter(|node| other.put == held.put && self.is_there(node))
        };
        let elsewhere = |other: &Held| {
            let stays = |node: &Node| {
                let segment = node.segments.iter().find(|s| s.info.number == u32::from(other.segment));
                segment.is_none_or(|segment| !segment.draining) && !goes_with_memory(node, other.segment)
            };
            // What one has that is telling, or is to tell, may be over.
            let has_told = |node: &Node| node.complete && !node.telling && !node.behind;
            other.gate == Gate::Open && counts_on(other).is_some_and(|node| has_told(node) && stays(node))
        };
        if ends && all.iter().any(elsewhere) {
            return Ok(None);
        }
        let named = self.objects.key(at).and_then(|(space, key)| Some((self.spaces.name(space)?, key)));
        let Some((space, key)) = named else { return Ok(None) };
        let from = replica(node, held);
        // What a node may have that nobody hears of is none until it is back.
        let comes = |other: &Held| other.gate == Gate::Announced && counts_on(other).is_some();
        let busy = !ends || all.iter().any(comes);
        Ok(Some((ObjectKey::new(space, key)?, from, busy)))
    }

    /// Whether a node can be counted on now: one whose connection has ended may be dead, though it is not away yet.
    pub(super) fn is_there(&self, node: &Node) -> bool {
        node.connected || !self.config.sees_ends
    }

    /// Who is to take another copy of what `from` has.
    pub(super) fn other_copier(&mut self, key: &ObjectKey, from: &Replica) -> Option<&Node> {
        self.copier(key, from, &[], false)
    }

    /// Who is to take a copy of what `from` has: a node that has none. Best is one with room, where nothing has to go for it; then one on a
    /// machine without another replica that stays, of which `from` is one unless it `leaves`. Among those that are equal one by chance.
    fn copier(&mut self, key: &ObjectKey, from: &Replica, asked: &[Asked], leaves: bool) -> Option<&Node> {
        let at = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()))?;
        let replicas = self.objects.replicas(at);
        let owner = |held: &Held| self.owners.get(usize::from(held.owner)).and_then(|owner| owner.listed());
        let stays = |node: &&Node| self.is_there(node) && !(leaves && node.id == from.name.node);
        let is_beside =
            |node: &Node| replicas.iter().filter_map(owner).filter(stays).any(|other| other.host == node.host);
        let takes = |segment: &Seg| segment.takes_copies() && segment.info.capacity >= from.length;
        let fits = |slot: u16, node: &Node| {
            let has = replicas.iter().any(|held| held.owner == slot);
            node.state == State::Active && self.is_there(node) && !has && node.segments.iter().any(takes)
        };
        let all = self.members.values().filter_map(|slot| Some((*slot, self.owners.get(usize::from(*slot))?.node()?)));
        let rank = |node: &Node| (!self.has_room(node, asked, from.length), is_beside(node));
        let mut fit =
            memory::collect(all.filter(|(slot, node)| fits(*slot, node)).map(|(_, node)| (rank(node), node.id)))
                .ok()?;
        let best = fit.iter().map(|(rank, _)| *rank).min()?;
        fit.retain(|(rank, _)| *rank == best);
        let (_, id) = *fit.get(self.chance.below(fit.len()))?;
        self.node(id)
    }

    /// Whether a node has room for so many bytes beside what drains have asked it to copy already, `asked` among them. A store begins to evict
    /// before it is full; one with a disk loses nothing by that.
    fn has_room(&self, node: &Node, asked: &[Asked], bytes: u64) -> bool {
        let all = self.drains.0.iter().flat_map(|job| &job.asked).chain(asked);
        let coming = all.filter(|asked| asked.by == node.id);
        let coming = coming.fold(0u64, |sum, asked| sum.saturating_add(asked.bytes));
        let free = |segment: &Seg| (segment.info.capacity / 10 * 9).saturating_sub(segment.info.used);
        let free =
            node.segments.iter().filter(|segment| segment.takes_copies()).map(free).fold(0u64, u64::saturating_add);
        node.segments.iter().any(|segment| segment.info.media == Media::Ssd) || free >= coming.saturating_add(bytes)
    }
}

/// What is left of so many objects, by the first of them.
fn names(left: u64, named: &[ObjectKey]) -> String {
    let one = |key: &ObjectKey| match (key.as_part(), key.space()) {
        (Some((_, number)), _) => format!("part {number} of a value in parts"),
        (None, []) => show(key.key()),
        (None, space) => format!("{} of namespace {}", show(key.key()), show(space)),
    };
    let mut text = named.iter().map(one).collect::<Vec<_>>().join(", ");
    let more = left.saturating_sub(named.len() as u64);
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Whether a segment is a disk, and all memory of its node is being emptied.
fn goes_with_memory(node: &Node, segment: u8) -> bool {
    let mut memory = node.segments.iter().filter(|segment| segment.info.media != Media::Ssd).peekable();
    media(node, segment) == Media::Ssd && memory.peek().is_some() && memory.all(|segment| segment.draining)
}

/// A replica as others are told of it.
pub(super) fn replica(node: &Node, held: &Held) -> Replica {
    let name = Name { node: node.id, incarnation: node.incarnation, index: held.index, epoch: held.epoch };
    let (media, endpoint) = (media(node, held.segment), node.endpoint.clone());
    Replica { name, put: held.put, length: held.length, media, endpoint }
}
