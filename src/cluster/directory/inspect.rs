//! What a master knows, for people and for those who watch over it: figures, members, all of a key, and keys page by page. Nothing
//! here changes anything, and no call looks at more than a bounded part of the directory.

use super::finds::media;
use super::members::{Node, State};
use super::objects::{Gate, Held};
use super::{Action, Ask, Leader, Master, Role};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_ERR_NOT_FOUND;
use crate::cluster::types::{Media, Millis, NO_INDEX, Name, NodeId, ObjectKey, Position, PutId, Term, is_reserved};
use crate::cluster::wire::{Keys, ListKeys, Listed, ROOM, SegmentInfo};

/// Places of objects that one page of keys looks at.
const LOOK: usize = 8192;

impl State {
    /// All of them.
    pub const ALL: [State; 5] = [State::Silent, State::Joining, State::Reporting, State::Active, State::Away];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Silent => "silent",
            State::Joining => "joining",
            State::Reporting => "reporting",
            State::Active => "active",
            State::Away => "away",
        }
    }
}

/// What came of lookups since this master leads, in keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lookups {
    /// Found, by the fastest medium that has it, in the order of [`Media::ALL`].
    pub found: [u64; 3],
    /// Not found.
    pub missing: u64,
    /// Nobody could say.
    pub unknown: u64,
}

impl Lookups {
    pub(super) fn count(&mut self, listed: &Listed) {
        let best = listed.replicas.iter().map(|replica| replica.media).min();
        let counter = match (best, listed.status) {
            (Some(media), _) => self.found.get_mut(media.code() as usize),
            (None, NMC_ERR_NOT_FOUND) => Some(&mut self.missing),
            (None, _) => Some(&mut self.unknown),
        };
        if let Some(counter) = counter {
            *counter += 1;
        }
    }
}

/// A leader in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Its term.
    pub term: Term,
    /// Whether what is unknown does not exist.
    pub settled: bool,
    /// Objects of which there is any replica.
    pub objects: usize,
    /// Puts that have begun and not ended.
    pub puts: usize,
    /// Removes that wait for owners.
    pub calls: usize,
    /// Entries of the drop log.
    pub log: usize,
    /// Where the drop log ends.
    pub head: Position,
    /// Namespaces that something was put to; those that have nothing any more may be forgotten.
    pub spaces: usize,
    /// What came of lookups.
    pub lookups: Lookups,
    /// Copies that were asked for in the place of lost ones.
    pub re_replications: u64,
}

/// A member as the master sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: NodeId,
    /// How it stands.
    pub state: State,
    /// Its present life; 0 if it was not heard of in this term.
    pub incarnation: u64,
    /// Where it listens.
    pub endpoint: String,
    /// The machine it is on.
    pub host: String,
    /// How long it was silent.
    pub silent_ms: Millis,
    /// Entries of the drop log that it has not confirmed.
    pub owed: usize,
    /// What it offers, and whether that is being emptied.
    pub segments: Vec<(SegmentInfo, bool)>,
}

/// A replica as the master sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaView {
    /// What may be done with it.
    pub gate: Gate,
    /// Whether its owner can be asked for it.
    pub reachable: bool,
    /// Its name; none if it was announced only.
    pub name: Option<Name>,
    /// The put that it came from.
    pub put: PutId,
    /// Bytes of the value.
    pub length: u64,
    /// The owner, and the life of it that is meant.
    pub owner: (NodeId, u64),
    /// Where the owner listens; empty if it has another life by now.
    pub endpoint: String,
    /// Number of the owner's segment.
    pub segment: u32,
    /// Name of that; empty if there is none any more.
    pub segment_name: String,
    /// What it is made of.
    pub media: Media,
    /// Its parts, of a striped value: those that are listed.
    pub parts: Vec<PartView>,
}

/// A part of a striped value, where one copy of it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartView {
    /// Which part.
    pub number: u64,
    /// Its bytes.
    pub length: u64,
    /// Whether its owner can be asked for it.
    pub reachable: bool,
    /// The owner, and the life of it that is meant.
    pub owner: (NodeId, u64),
    /// Where the owner listens.
    pub endpoint: String,
    /// Number of the owner's segment.
    pub segment: u32,
    /// Name of that.
    pub segment_name: String,
    /// What it is made of.
    pub media: Media,
}

/// Which keys are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// Of one namespace only.
    pub space: Option<&'a [u8]>,
    /// That begin like this.
    pub prefix: &'a [u8],
    /// Most of them.
    pub limit: usize,
}

impl Master {
    /// The leader, if this master is that and may answer.
    fn leading(&self, now: Millis) -> Option<&Leader> {
        match &self.role {
            Role::Leader(leader) if now < leader.until => Some(leader),
            _ => None,
        }
    }

    /// The highest term that was heard of, and where its leader listens, of a master that does not lead.
    #[must_use]
    pub fn follows(&self) -> Option<(Term, &str)> {
        match &self.role {
            Role::Standby(term, leader) => Some((*term, leader)),
            Role::Leader(_) => None,
        }
    }

    /// Numbers; none if it does not lead, or may have lost its lease.
    #[must_use]
    pub fn figures(&self, now: Millis) -> Option<Figures> {
        let leader = self.leading(now)?;
        Some(Figures {
            term: leader.term,
            settled: leader.settled,
            objects: leader.objects.len(),
            puts: leader.puts.len(),
            calls: leader.calls.len(),
            log: leader.log.len(),
            head: leader.log.head(),
            spaces: leader.spaces.len(),
            lookups: leader.lookups,
            re_replications: leader.again.asked,
        })
    }

    /// All members.
    pub fn members(&self, now: Millis) -> Result<Vec<MemberView>> {
        let Some(leader) = self.leading(now) else { return Ok(Vec::new()) };
        memory::collect(leader.nodes().map(|node| view(node, now)))
    }

    /// The member with this name.
    #[must_use]
    pub fn member(&self, name: &str, now: Millis) -> Option<MemberView> {
        let node = self.leading(now)?.node(NodeId::of(name))?;
        (node.name == name).then(|| view(node, now))
    }

    /// Name of a member's segment.
    #[must_use]
    pub fn segment_name(&self, node: NodeId, number: u32, now: Millis) -> Option<String> {
        let node = self.leading(now)?.node(node)?;
        node.segments.iter().find(|segment| segment.info.number == number).map(|segment| segment.info.name.clone())
    }

    /// All replicas of a key, whether they may be read or not.
    pub fn replicas(&self, key: &ObjectKey, now: Millis) -> Result<Vec<ReplicaView>> {
        let Some(leader) = self.leading(now) else { return Ok(Vec::new()) };
        let found = leader.spaces.find(key.space()).and_then(|space| leader.objects.find(space, key.key()));
        let held = found.map_or(&[][..], |at| leader.objects.replicas(at));
        let views = held.iter().filter_map(|held| {
            let owner = leader.owners.get(usize::from(held.owner))?;
            let (id, incarnation) = owner.whose()?;
            let segment = owner.node().and_then(|n| n.segments.iter().find(|s| s.info.number == held.segment.into()));
            let name = Name { node: id, incarnation, index: held.index, epoch: held.epoch };
            Some(ReplicaView {
                gate: held.gate,
                reachable: owner.listed().is_some(),
                name: (held.index != NO_INDEX).then_some(name),
                put: held.put,
                length: leader.length_of(held).unwrap_or(0),
                parts: leader.parts_of(held).filter_map(|(number, held)| leader.part_view(number, held)).collect(),
                owner: (id, incarnation),
                endpoint: owner.node().map_or(String::new(), |node| node.endpoint.clone()),
                segment: held.segment.into(),
                segment_name: segment.map_or(String::new(), |segment| segment.info.name.clone()),
                media: owner.node().map_or(Media::Ram, |node| media(node, held.segment)),
            })
        });
        memory::collect(views)
    }

    /// Keys that may be read, from a place on, and the place to go on from: 0 is the beginning, and the end.
    pub fn keys(&self, from: u32, wanted: Wanted<'_>, now: Millis) -> Result<(Vec<ObjectKey>, u32)> {
        self.leading(now).map_or(Ok((Vec::new(), 0)), |leader| leader.keys(from, wanted, usize::MAX))
    }
}

impl Leader {
    fn part_view(&self, number: u64, held: &Held) -> Option<PartView> {
        let owner = self.owners.get(usize::from(held.owner))?;
        let node = owner.node()?;
        let segment = node.segments.iter().find(|segment| segment.info.number == held.segment.into());
        Some(PartView {
            number,
            length: held.length,
            reachable: owner.listed().is_some(),
            owner: (node.id, node.incarnation),
            endpoint: node.endpoint.clone(),
            segment: held.segment.into(),
            segment_name: segment.map_or(String::new(), |segment| segment.info.name.clone()),
            media: media(node, held.segment),
        })
    }

    /// See [`Master::keys`]; of so many bytes at most.
    fn keys(&self, from: u32, wanted: Wanted<'_>, room: usize) -> Result<(Vec<ObjectKey>, u32)> {
        let (mut list, mut bytes) = (Vec::new(), 0usize);
        let mut last: Option<(u32, Option<&[u8]>)> = None;
        for (looked, at) in self.objects.from(from).enumerate() {
            if looked == LOOK || list.len() >= wanted.limit {
                return Ok((list, at.0));
            }
            let Some((number, key)) = self.objects.key(at) else { continue };
            let space = match last {
                Some((other, space)) if other == number => space,
                _ => self.spaces.name(number),
            };
            last = Some((number, space));
            let space = space.filter(|space| !is_reserved(space) && wanted.space.is_none_or(|only| only == *space));
            let Some(space) = space else { continue };
            let readable = self.objects.replicas(at).iter().any(|held| {
                let owner = self.owners.get(usize::from(held.owner));
                held.gate == Gate::Open && owner.is_some_and(|owner| owner.listed().is_some())
            });
            if readable && key.starts_with(wanted.prefix) {
                bytes += space.len() + key.len() + 8;
                if bytes > room {
                    return Ok((list, at.0));
                }
                memory::push(&mut list, ObjectKey::new(space, key)?)?;
            }
        }
        Ok((list, 0))
    }

    pub(super) fn list_keys(&self, ask: Ask, list: &ListKeys, to: &mut Vec<Action>) -> Result<()> {
        if !self.settled {
            crate::bail!(NMC_ERR_UNAVAILABLE, "this master is still being told what there is");
        }
        let wanted = Wanted { space: Some(&list.space.0), prefix: &list.prefix.0, limit: usize::MAX };
        let (list, next) = self.keys(list.cursor, wanted, ROOM)?;
        to.push(ask.answer(Keys { term: self.term, list, next }));
        Ok(())
    }
}

fn view(node: &Node, now: Millis) -> MemberView {
    MemberView {
        name: node.name.clone(),
        id: node.id,
        state: node.state,
        incarnation: node.incarnation,
        endpoint: node.endpoint.clone(),
        host: node.host.clone(),
        silent_ms: now.saturating_sub(node.heard),
        owed: node.owed,
        segments: node.segments.iter().map(|segment| (segment.info.clone(), segment.draining)).collect(),
    }
}
