//! Between the messages of gRPC and those of the directory. Whatever comes in is checked here as far as the framed protocol would
//! have checked it: counts and codes. The rest is the directory's.

use crate::proto::v1::{self, buf_handle::BufStatus, replica_info::ReplicaStatus};
use nanomc::base::error::{Error, Result};
use nanomc::base::status::NMC_ERR_INVALID_ARG;
use nanomc::cluster::directory::{Gate, MemberView, PartView, ReplicaView, State};
use nanomc::cluster::types::{Media, Name, NodeId, ObjectKey, Position, PutId};
use nanomc::cluster::wire;

/// Longest list in one request of one object.
const MAX_LIST: usize = 1024;

fn invalid(what: impl Into<String>) -> Error {
    Error::new(NMC_ERR_INVALID_ARG, what)
}

fn bounded(what: &str, len: usize) -> Result<()> {
    if len > MAX_LIST { Err(invalid(format!("{len} {what} are given; {MAX_LIST} are possible"))) } else { Ok(()) }
}

/// A medium.
pub fn media(code: i32) -> Result<Media> {
    let media = u32::try_from(code).ok().and_then(Media::from_code);
    media.ok_or_else(|| invalid(format!("there is no medium {code}")))
}

fn media_code(media: Media) -> i32 {
    i32::try_from(media.code()).unwrap_or(0)
}

/// The name of a replica.
#[must_use]
pub fn name(name: &v1::ReplicaName) -> Name {
    Name { node: NodeId(name.node), incarnation: name.incarnation, index: name.index, epoch: name.epoch }
}

fn name_out(name: Name) -> v1::ReplicaName {
    v1::ReplicaName { node: name.node.0, incarnation: name.incarnation, index: name.index, epoch: name.epoch }
}

/// A place in the drop log.
#[must_use]
pub fn position(at: Position) -> v1::Position {
    v1::Position { term: at.term, number: at.number }
}

/// Which replicas the client has missed.
pub fn missed(list: &[v1::ReplicaName]) -> Result<Vec<Name>> {
    bounded("missed replicas", list.len())?;
    Ok(list.iter().map(name).collect())
}

/// How an object is to be spread.
pub fn replicate(config: v1::ReplicateConfig) -> Result<wire::Replicate> {
    bounded("locations", config.locations.len())?;
    bounded("media", config.media_replica_num.len())?;
    let mut by_media = vec![0u32; Media::ALL.len()];
    for item in config.media_replica_num {
        if let Some(count) = by_media.get_mut(media(item.media)?.code() as usize) {
            *count = count.saturating_add(item.replica_num);
        }
    }
    let fixed = config.locations.into_iter().map(|location| {
        let media = location.media.map(media).transpose()?;
        Ok(wire::Location { segment: location.segment_name, media })
    });
    Ok(wire::Replicate {
        copies: u32::try_from(config.replica_num).unwrap_or(u32::MAX),
        media: by_media,
        fixed: fixed.collect::<Result<_>>()?,
        near: config.near_host,
    })
}

/// A put that is to begin.
pub fn put_start(start: v1::PutStartRequest) -> Result<wire::PutStart> {
    bounded("slices", start.slice_lengths.len())?;
    let slices = if start.slice_lengths.is_empty() { vec![start.value_length] } else { start.slice_lengths };
    Ok(wire::PutStart {
        key: ObjectKey::new(&start.space, &start.key)?,
        length: start.value_length,
        slices,
        config: replicate(start.config.unwrap_or_default())?,
        striped: false,
    })
}

/// A put that is to end.
pub fn put_end(end: v1::PutEndRequest) -> Result<wire::PutEnd> {
    bounded("replicas", end.done.len())?;
    bounded("nodes", end.tried.len())?;
    let done = end.done.iter().map(|done| match &done.name {
        Some(of) => Ok(wire::Done { name: name(of), fact: done.fact }),
        None => Err(invalid("a replica that was put has no name")),
    });
    Ok(wire::PutEnd {
        put: PutId(end.put_id),
        key: ObjectKey::new(&end.space, &end.key)?,
        done: done.collect::<Result<_>>()?,
        tried: end.tried.into_iter().map(NodeId).collect(),
        crc: end.crc32c,
    })
}

/// A place for a replica of so many bytes, on a segment with this name.
#[must_use]
pub fn place(place: &wire::Place, put: PutId, length: u64, segment_name: String) -> v1::ReplicaInfo {
    let handle = v1::BufHandle {
        segment_name,
        size: length,
        status: BufStatus::Init.into(),
        node: place.node.0,
        incarnation: place.incarnation,
        segment: place.segment,
        media: media_code(place.media),
        endpoint: place.endpoint.clone(),
        exact: place.exact,
        after: Some(position(place.after)),
    };
    let status = ReplicaStatus::Initialized.into();
    v1::ReplicaInfo { handles: vec![handle], status, put_id: put.0, length, name: None }
}

/// A replica that may be read, as the directory lists it; the directory's own view of it knows its segment.
#[must_use]
pub fn listed(replica: &wire::Replica, view: Option<&ReplicaView>) -> v1::ReplicaInfo {
    let handle = v1::BufHandle {
        segment_name: view.map_or(String::new(), |view| view.segment_name.clone()),
        size: replica.length,
        status: BufStatus::Complete.into(),
        node: replica.name.node.0,
        incarnation: replica.name.incarnation,
        segment: view.map_or(0, |view| view.segment),
        media: media_code(replica.media),
        endpoint: replica.endpoint.clone(),
        exact: false,
        after: None,
    };
    v1::ReplicaInfo {
        handles: view.and_then(parts).unwrap_or_else(|| vec![handle]),
        status: ReplicaStatus::Complete.into(),
        put_id: replica.put.0,
        length: replica.length,
        name: Some(name_out(replica.name)),
    }
}

/// Where the bytes of a striped value are, part by part; none if it is in one.
fn parts(view: &ReplicaView) -> Option<Vec<v1::BufHandle>> {
    let handle = |part: &PartView| v1::BufHandle {
        segment_name: part.segment_name.clone(),
        size: part.length,
        status: if part.reachable { BufStatus::Complete } else { BufStatus::Unregistered }.into(),
        node: part.owner.0.0,
        incarnation: part.owner.1,
        segment: part.segment,
        media: media_code(part.media),
        endpoint: part.endpoint.clone(),
        exact: false,
        after: None,
    };
    view.put.is_striped().then(|| view.parts.iter().map(handle).collect())
}

/// The put of a replica; 0 while it has not ended, because whoever knows it then can end it or give it up.
#[must_use]
pub fn shown_put(view: &ReplicaView) -> u64 {
    if view.gate == Gate::Closed { 0 } else { view.put.0 }
}

/// A replica in any state.
#[must_use]
pub fn viewed(view: ReplicaView) -> v1::ReplicaInfo {
    let (status, buffer) = match view.gate {
        Gate::Announced => (ReplicaStatus::Initialized, BufStatus::Init),
        Gate::Closed => (ReplicaStatus::Processing, BufStatus::Complete),
        Gate::Open => (ReplicaStatus::Complete, BufStatus::Complete),
        Gate::Dropped => (ReplicaStatus::Removed, BufStatus::Complete),
    };
    let buffer = if view.reachable { buffer } else { BufStatus::Unregistered };
    let (put_id, parts) = (shown_put(&view), parts(&view));
    let handle = v1::BufHandle {
        segment_name: view.segment_name,
        size: view.length,
        status: buffer.into(),
        node: view.owner.0.0,
        incarnation: view.owner.1,
        segment: view.segment,
        media: media_code(view.media),
        endpoint: view.endpoint,
        exact: false,
        after: None,
    };
    v1::ReplicaInfo {
        handles: parts.unwrap_or_else(|| vec![handle]),
        status: status.into(),
        put_id,
        length: view.length,
        name: view.name.map(name_out),
    }
}

/// A segment.
#[must_use]
pub fn segment(segment: wire::Segment) -> v1::Segment {
    let info = segment.info;
    v1::Segment {
        segment_name: info.name,
        media: media_code(info.media),
        size: info.capacity,
        used: info.used,
        state: i32::try_from(segment.state).unwrap_or(0),
        node: segment.node.0,
        number: info.number,
        near: info.near,
        host: segment.host,
    }
}

/// A segment that a node offers.
pub fn mount(mount: v1::MountSegmentRequest) -> Result<wire::Mount> {
    let segment = wire::SegmentInfo {
        number: mount.number,
        name: mount.segment_name,
        media: media(mount.media)?,
        capacity: mount.size,
        used: 0,
        near: mount.near,
    };
    if segment.name.is_empty() || segment.name.len() > MAX_LIST {
        return Err(invalid(format!(
            "a segment's name has {} bytes; 1 to {MAX_LIST} are possible",
            segment.name.len()
        )));
    }
    let (node, incarnation) = (NodeId::of(&mount.node_name), mount.secret);
    Ok(wire::Mount { node, incarnation, segment, unmount: false })
}

/// A segment that a node takes back.
#[must_use]
pub fn unmount(unmount: v1::UnmountSegmentRequest) -> wire::Mount {
    let (node, incarnation) = (NodeId::of(&unmount.node_name), unmount.secret);
    let (name, media) = (unmount.segment_name, Media::Ram);
    let segment = wire::SegmentInfo { number: 0, name, media, capacity: 0, used: 0, near: -1 };
    wire::Mount { node, incarnation, segment, unmount: true }
}

/// How a member stands.
#[must_use]
pub fn member_state(member: Option<&MemberView>) -> v1::ping_response::MemberState {
    use v1::ping_response::MemberState;
    match member.map(|member| member.state) {
        None => MemberState::None,
        Some(State::Silent) => MemberState::Silent,
        Some(State::Joining) => MemberState::Joining,
        Some(State::Reporting) => MemberState::Reporting,
        Some(State::Active) => MemberState::Active,
        Some(State::Away) => MemberState::Away,
    }
}
