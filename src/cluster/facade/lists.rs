//! What there is, as the leader lists it: where keys are, which there are, and the segments.

use super::Cluster;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::client::Call;
use crate::cluster::types::ObjectKey;
use crate::cluster::wire::{ListKeys, ListSegments, Listed, Message, Prefix, Segment, Space};

impl Cluster {
    /// Where keys are, as the leader lists them.
    pub fn query(&self, keys: &[&[u8]]) -> Result<Vec<Listed>> {
        self.locate(self.scope(&Deadline::after(self.config.patience)), keys)
    }

    /// Whether keys can be read: here, or by what the leader lists.
    pub fn exists(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let here =
            |key: &&[u8]| self.local(|node| Ok(node.store.exists(key)?.then_some(()))).map(|found| found.is_some());
        let mut found = memory::try_collect(keys.iter().map(here))?;
        let away = memory::collect(keys.iter().zip(&found).filter(|(_, here)| !**here).map(|(key, _)| *key))?;
        let mut listed = self.listed(self.scope(&Deadline::after(self.config.patience)), &away)?.into_iter();
        for place in found.iter_mut().filter(|here| !**here) {
            *place = listed.next().unwrap_or(false);
        }
        Ok(found)
    }

    /// The segments of the cluster.
    pub fn segments(&self) -> Result<Vec<Segment>> {
        self.list_segments(&Deadline::after(self.config.patience))
    }

    /// Whether a segment is on this machine.
    #[must_use]
    pub fn is_here(&self, segment: &Segment) -> bool {
        segment.host == self.near
    }

    pub(super) fn list_segments(&self, deadline: &Deadline) -> Result<Vec<Segment>> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        loop {
            let outcome = self.ask_within(Call::Ask(Box::new(ListSegments { cursor }.into())), self.scope(deadline))?;
            let Some(Message::Segments(segments)) = outcome.reply.map(|reply| *reply) else {
                crate::bail!(NMC_ERR_UNAVAILABLE, "no master has answered");
            };
            memory::reserve(&mut all, segments.list.len())?;
            all.extend(segments.list);
            if segments.next == 0 {
                return Ok(all);
            }
            cursor = segments.next;
        }
    }

    /// A page of the keys that begin like this, in no particular order, and the place of the next page: 0 is the beginning, and the end.
    pub fn keys(&self, prefix: &[u8], cursor: u32) -> Result<(Vec<ObjectKey>, u32)> {
        let (space, prefix) = (Space(memory::copy(&self.config.space)?), Prefix(memory::copy(prefix)?));
        let outcome = self.ask(Call::Ask(Box::new(ListKeys { cursor, space, prefix }.into())))?;
        match outcome.reply.map(|reply| *reply) {
            Some(Message::Keys(keys)) => Ok((keys.list, keys.next)),
            _ => crate::bail!(NMC_ERR_UNAVAILABLE, "no master has answered"),
        }
    }
}
