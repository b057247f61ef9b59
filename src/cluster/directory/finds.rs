//! Answers about what there is: replicas of keys, and segments.

use super::members::{Node, State};
use super::objects::Gate;
use super::{Action, Ask, Leader};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_UNAVAILABLE, NMC_OK};
use crate::cluster::types::{Media, Millis, Name, ObjectKey, is_reserved};
use crate::cluster::wire::{Find, Found, ListSegments, Listed, MAX_KEYS, MAX_LISTED, ROOM, Replica, Segment, Segments};

/// Keys that are worth looking at together first.
const SEVERAL: usize = 8;
/// Segments of one answer.
const SEGMENTS: usize = 64;

impl Leader {
    pub(super) fn find(&mut self, ask: Ask, find: &Find, to: &mut Vec<Action>) -> Result<()> {
        if find.keys.len() > MAX_KEYS {
            crate::bail!(NMC_ERR_INVALID_ARG, "{} keys are asked for; {MAX_KEYS} are possible", find.keys.len());
        }
        if find.keys.len() >= SEVERAL {
            let keys = find.keys.iter().filter_map(|key| Some((self.spaces.find(key.space())?, key.key())));
            self.objects.warm(keys)?;
        }
        let mut keys = memory::try_collect(find.keys.iter().map(|key| self.listed(key, &find.missed)))?;
        cut(&mut keys);
        // Whoever asks for parts has asked for their value before.
        let whole = keys.iter().zip(&find.keys).filter(|(_, key)| !is_reserved(key.space()));
        whole.for_each(|(listed, _)| self.lookups.count(listed));
        to.push(ask.answer(Found { term: self.term, keys }));
        Ok(())
    }

    /// What of a key may be read, without those that were missed. Of a striped value all must be there. What is with an owner that is away is only not
    /// found: it stays, since its owner may be back with all of it.
    fn listed(&self, key: &ObjectKey, missed: &[Name]) -> Result<Listed> {
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let held = found.map_or(&[][..], |at| self.objects.replicas(at));
        let mut replicas = Vec::new();
        let (mut last, mut unsure) = (None, false);
        for held in held.iter().filter(|held| held.gate == Gate::Open) {
            let owner = self.owners.get(usize::from(held.owner)).and_then(|owner| owner.listed());
            let Some(node) = owner else { continue };
            let name = Name { node: node.id, incarnation: node.incarnation, index: held.index, epoch: held.epoch };
            // Who missed a stub may have missed one of its parts, which may be with somebody who is still telling.
            let is_missed = missed.contains(&name);
            if is_missed && !held.put.is_striped() || replicas.len() == MAX_LISTED {
                continue;
            }
            let media = media(node, held.segment);
            let length = match last {
                Some((put, length)) if put == held.put => length,
                _ => self.length_of(held),
            };
            last = Some((held.put, length));
            let Some(length) = length else {
                unsure |= !self.knows_parts();
                continue;
            };
            if is_missed {
                continue;
            }
            let (put, endpoint) = (held.put, node.endpoint.clone());
            memory::push(&mut replicas, Replica { name, put, length, media, endpoint })?;
        }
        let status = match (replicas.is_empty(), self.settled && !unsure) {
            (false, _) => NMC_OK,
            (true, true) => NMC_ERR_NOT_FOUND,
            (true, false) => NMC_ERR_UNAVAILABLE,
        };
        Ok(Listed { status, replicas })
    }

    pub(super) fn list_segments(
        &mut self,
        ask: Ask,
        list: &ListSegments,
        now: Millis,
        to: &mut Vec<Action>,
    ) -> Result<()> {
        if !self.knows_segments(now) {
            crate::bail!(NMC_ERR_UNAVAILABLE, "a node has not said yet which segments it has");
        }
        let all = self.nodes().flat_map(|node| node.segments.iter().map(move |segment| (node, segment)));
        let mut left = all.skip(list.cursor as usize);
        let mut listed = memory::with_capacity(SEGMENTS)?;
        for (node, segment) in left.by_ref().take(SEGMENTS) {
            let state = match (node.state, segment.draining) {
                (State::Away | State::Silent, _) => 2,
                (_, draining) => u32::from(draining),
            };
            listed.push(Segment { node: node.id, host: node.host.clone(), info: segment.info.clone(), state });
        }
        let more = left.next().is_some();
        let next = if more { list.cursor.saturating_add(u32::try_from(SEGMENTS).unwrap_or(0)) } else { 0 };
        to.push(ask.answer(Segments { term: self.term, list: listed, next }));
        Ok(())
    }
}

/// Leaves out replicas of keys that have most, until the answer fits a message.
fn cut(keys: &mut [Listed]) {
    let size = |most: usize| -> usize {
        let replica = |replica: &Replica| 64 + replica.endpoint.len();
        keys.iter().map(|listed| 16 + listed.replicas.iter().take(most).map(replica).sum::<usize>()).sum()
    };
    let most = (1..=MAX_LISTED).rev().find(|most| size(*most) <= ROOM).unwrap_or(1);
    keys.iter_mut().for_each(|listed| listed.replicas.truncate(most));
}

/// What a node's segment is made of.
pub(super) fn media(node: &Node, segment: u8) -> Media {
    let segment = node.segments.iter().find(|s| s.info.number == u32::from(segment));
    segment.map_or(Media::Ram, |segment| segment.info.media)
}
