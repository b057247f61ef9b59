//! What is written down in etcd: transactions and what they ask for, positions and entries as bytes.

use crate::proto::etcd::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcd::request_op::Request as Op;
use crate::proto::etcd::{Compare, RequestOp};
use nanomc::cluster::directory::{Entry, Recorded, Target};
use nanomc::cluster::types::{NodeId, Position};
use nanomc::rpc::packet::{Cursor, Field};
use prost::Message as _;

/// Changes of one transaction: etcd takes 128 unless it is told otherwise.
pub(super) const MAX_OPS: usize = 100;
/// Bytes of one transaction: etcd takes 1.5 MiB unless it is told otherwise.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Lists of changes that are written down together, and the numbers under which the directory waits for them.
pub(super) struct Batch {
    pub(super) numbers: Vec<u64>,
    pub(super) operations: Vec<RequestOp>,
}

impl Batch {
    /// Whether more fits into the same transaction, in which etcd takes a key once, and not one that is deleted there.
    pub(super) fn takes(&self, more: &Self) -> bool {
        let puts = |key: &[u8]| self.operations.iter().any(|op| put_key(op) == Some(key));
        let bytes: usize = self.operations.iter().chain(&more.operations).map(RequestOp::encoded_len).sum();
        self.operations.len() + more.operations.len() <= MAX_OPS
            && bytes <= MAX_BYTES
            && self.operations.iter().all(|op| put_key(op).is_some())
            && more.operations.iter().all(|op| put_key(op).is_some_and(|key| !puts(key)))
    }
}

/// How many of the first operations fit into a transaction: one at least.
pub(super) fn fitting(operations: &[RequestOp]) -> usize {
    let mut bytes = 0;
    let fits = |op: &&RequestOp| {
        bytes += op.encoded_len();
        bytes <= MAX_BYTES
    };
    operations.iter().take(MAX_OPS).take_while(fits).count().max(1)
}

/// The key that an operation puts, if it puts one.
pub(super) fn put_key(op: &RequestOp) -> Option<&[u8]> {
    match &op.request {
        Some(Op::RequestPut(put)) => Some(&put.key),
        _ => None,
    }
}

pub(super) fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// A key was made by this revision; 0 if there is none.
pub(super) fn created(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

pub(super) fn changed(key: &[u8], revision: i64) -> Compare {
    Compare {
        target: CompareTarget::Mod.into(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..created(key, 0)
    }
}

pub(super) fn holds(key: &[u8], value: &[u8]) -> Compare {
    Compare {
        target: CompareTarget::Value.into(),
        target_union: Some(TargetUnion::Value(value.to_vec())),
        ..created(key, 0)
    }
}

pub(super) fn position_out(position: Position) -> Vec<u8> {
    format!("{} {}", position.term, position.number).into_bytes()
}

pub(super) fn position_in(bytes: &[u8]) -> Option<Position> {
    let (term, number) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some(Position { term: term.parse().ok()?, number: number.parse().ok()? })
}

/// Under what an entry of the drop log is kept: in their order.
pub(super) fn drop_name(position: Position) -> String {
    format!("drop/{:016x}.{:016x}", position.term, position.number)
}

pub(super) fn drop_position(name: &[u8]) -> Option<Position> {
    let (term, number) = std::str::from_utf8(name).ok()?.split_once('.')?;
    Some(Position { term: u64::from_str_radix(term, 16).ok()?, number: u64::from_str_radix(number, 16).ok()? })
}

/// An entry as it would be in a message: what is to go, then who must drop it.
pub(super) fn entry_out(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry.what.put(&mut bytes);
    entry.targets.iter().map(|target| target.node).collect::<Vec<NodeId>>().put(&mut bytes);
    bytes
}

pub(super) fn entry_in(position: Position, bytes: &[u8]) -> Option<Entry> {
    let from = &mut Cursor::new(bytes);
    let what = Field::get(from).ok()?;
    let nodes = Vec::<NodeId>::get(from).ok()?;
    from.end().ok()?;
    // Whoever waited for it asked another leader.
    let targets = nodes.into_iter().map(|node| Target { node, excused: false }).collect();
    Some(Entry { position, what, targets, call: 0, recorded: Recorded::Yes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nanomc::cluster::types::{ObjectKey, PutId};
    use nanomc::cluster::wire::{DropKey, DropReplica, DropSpace, Dropped};

    #[test]
    fn entries_are_read_as_they_were_written_and_sort_in_their_order() {
        let key = ObjectKey::new(b"s", b"k\0\xff").unwrap();
        let replica = DropReplica { incarnation: 1, index: 2, epoch: 3, key: key.clone(), put: PutId(4) };
        let all: [Dropped; 3] = [replica.into(), DropKey { key }.into(), DropSpace { space: None }.into()];
        let mut names = Vec::new();
        for (number, what) in (9..).zip(all) {
            let position = Position { term: 0x10, number };
            let targets = vec![Target { node: NodeId(5), excused: false }, Target { node: NodeId(6), excused: false }];
            let entry = Entry { position, what, targets, call: 0, recorded: Recorded::Yes };
            let name = drop_name(position);
            let read = drop_position(name.strip_prefix("drop/").unwrap().as_bytes()).unwrap();
            let bytes = entry_out(&entry);
            assert_eq!(entry_in(read, &bytes), Some(entry));
            assert_eq!(entry_in(read, &bytes[..bytes.len() - 1]), None, "a part of one is none");
            names.push(name);
        }
        names.push(drop_name(Position { term: 0x11, number: 1 }));
        assert!(names.is_sorted() && names.iter().all(|name| name.as_str() < "drop0"));
        assert_eq!(position_in(&position_out(Position { term: 3, number: 4 })), Some(Position { term: 3, number: 4 }));
    }
}
