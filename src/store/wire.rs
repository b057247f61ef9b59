//! What clients ask of a master in another process, and its answers: one packet each. A call may carry many items; the
//! answer has one result for each.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_NO_MEMORY, NMC_ERR_PROTOCOL, NMC_OK};
use crate::layout::store::{MAX_KEY, PARAM_WORDS, Params};
use crate::rpc::packet::{Cursor, Field, REFUSAL, Refusal, Service, message_structs};
use crate::store::types::{ClientInfo, Keep, OpenRequest, Opened, ReadFrom, Retain, Role};
use std::fmt::Write as _;

/// The master of a store. "STO" and the version of its packets: it changes with them, and with what both sides keep in shared
/// memory.
pub const SERVICE: Service = Service { magic: 0x374f_5453, name: "the store's master" };
/// The kind of an answer; the calls have the kinds below.
const REPLY: u32 = u32::MAX;
/// Largest packet.
pub const MAX_PACKET: usize = crate::rpc::MAX_PACKET;
/// Bytes that an item with `texts` bytes of key and metadata takes at most, in a call.
#[must_use]
pub fn item_bytes(texts: usize) -> usize {
    texts + 64
}
/// Items of one call, so that the answer fits a packet even if each is an error.
pub const MAX_ITEMS: usize = 256;
/// Longest message in an answer of many items.
const MAX_TEXT: usize = 200;

message_structs! {
    /// A client introduces itself. Descriptors: pidfd, life pipe, and if it holds the store's memory, control and words.
    pub struct Hello {
        /// World of the client.
        pub world_id: u64,
        /// The store that it holds, or that somebody in its world is a client of; 0 for none.
        pub store_id: u64,
        /// Whether it holds the store's memory: it was a client before.
        pub holds: bool,
        /// Its number, if it was.
        pub client: u32,
        /// Generation of its place, if it was.
        pub client_generation: u64,
        /// Process id.
        pub pid: u32,
        /// Start time of the process.
        pub start_time: u64,
        /// Rank.
        pub rank: u32,
        /// Generation of the rank.
        pub rank_generation: u64,
        /// Which of the clients of the rank's holder it is.
        pub role: u32,
        /// Time that its GPU gets to drain after its death, in ms.
        pub drain_ms: u32,
        /// The heap of each rank as it knows it: generation of the rank's holder and name of the memory, in turn.
        pub heaps: Vec<u64>,
        /// What the hash of the index is made from, if it was a client before.
        pub seed: Vec<u64>,
        /// Parameters of the store as it wants or knows it.
        pub params: Vec<u64>,
        /// Whether `kept` is complete.
        pub kept_all: bool,
        /// Epochs of the plans that it has open.
        pub kept: Vec<u64>,
    }
}

impl Hello {
    /// The heap of each rank: generation of its holder, and name of the memory.
    pub fn heaps(&self) -> impl Iterator<Item = (u64, u64)> {
        self.heaps.as_chunks::<2>().0.iter().map(|[generation, id]| (*generation, *id))
    }

    /// What the hash of the index is made from.
    pub fn seed(&self) -> Result<[u64; 2]> {
        match self.seed.as_slice().try_into() {
            Ok(seed) => Ok(seed),
            Err(_) => crate::bail!(NMC_ERR_PROTOCOL, "a client sent a seed of {} words", self.seed.len()),
        }
    }

    /// Who it says to be.
    pub fn info(&self) -> Result<ClientInfo> {
        let Some(role) = Role::from_code(self.role) else {
            crate::bail!(NMC_ERR_PROTOCOL, "there is no client of kind {}", self.role);
        };
        let Hello { pid, start_time, rank, rank_generation, .. } = *self;
        Ok(ClientInfo { pid, start_time, rank, rank_generation, role })
    }

    /// The parameters.
    pub fn params(&self) -> Result<Params> {
        let words: Option<&[u64; PARAM_WORDS]> = self.params.as_slice().try_into().ok();
        match words.and_then(Params::from_words) {
            Some(params) => Ok(params),
            None => crate::bail!(NMC_ERR_PROTOCOL, "a client sent {} parameters", self.params.len()),
        }
    }
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// Introduces a client.
    Hello(Hello),
    /// Opens objects for writing.
    Open(Vec<OpenRequest<'a>>),
    /// Gives a plan up.
    Abandon(Opened),
    /// A replacement takes its place; or a value comes into memory that was read from this entry of the disk, if its first word is
    /// still this one.
    Reveal(Opened, Option<ReadFrom>),
    /// Removes objects.
    Remove(u32, Vec<&'a [u8]>),
    /// Removes the object with this header and epoch, for somebody who has it from then on.
    Take(u32, u64),
    /// Removes it for nobody.
    Drop(u32, u64),
    /// Gives a plan up to which somebody may still write: its pages stay out of use until it is abandoned.
    Doubt(Opened),
    /// Takes note of what was published: of the object with this header, or of all. Gives the number of the newest fact.
    Notice(Option<u32>),
    /// A node has applied the drop log of its cluster up to this term and number, to memory and to the disk
    /// that there is after so many changes.
    Position((u64, u64), u64),
    /// Makes every namespace of which something is on disk.
    Adopt,
    /// Nothing new is stored on a rank any more; or it is again.
    Close(u32, bool),
    /// Removes objects by the beginning of their keys, from a cursor on.
    RemoveMatching(u32, &'a [u8], u32),
    /// Changes how an object is kept.
    Retain(u32, &'a [u8], Keep),
    /// Opens a namespace.
    Namespace(&'a [u8], Option<u64>),
    /// Forgets a namespace.
    Flush(u32),
    /// Evicts from a rank down to 1/1000 of its heap.
    Evict(u32, u32),
    /// Asks for a picture of the heaps.
    Dump(u32),
    /// Leaves.
    Detach,
    /// Asks whether the master that entered the client is still there.
    Confirm,
    /// Calls the owner of the disk below the store: what, two numbers, and keys.
    Disk(u32, [u64; 2], Vec<&'a [u8]>),
    /// Asks for the disk itself: the answer has descriptors, the index and the directory.
    Reach,
    /// Asks what happened to values of the disk with this name, from this count of them on.
    Told(u64, u64),
}

/// The result of an item: three numbers, or an error; and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Status of the item.
    pub status: i32,
    /// What it gave.
    pub values: [u64; 3],
    /// Error message, or text or other bytes that were asked for.
    pub text: Vec<u8>,
}

impl Item {
    /// A success.
    #[must_use]
    pub fn ok(values: [u64; 3]) -> Self {
        Self { status: NMC_OK, values, text: Vec::new() }
    }

    /// The result.
    pub fn result(self) -> Result<[u64; 3]> {
        match self.status {
            NMC_OK => Ok(self.values),
            status => {
                let known = status < 0 && crate::base::status::TABLE.iter().any(|(s, _)| *s == status);
                // Better an error without its explanation than none.
                let text = get_text(&self.text).unwrap_or_default();
                Err(Error::new(if known { status } else { NMC_ERR_PROTOCOL }, text))
            }
        }
    }
}

impl From<Result<[u64; 3]>> for Item {
    fn from(result: Result<[u64; 3]>) -> Self {
        match result {
            Ok(values) => Self::ok(values),
            Err(error) => Self { status: error.status, values: [0; 3], text: error.message.into() },
        }
    }
}

pub(super) fn put_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).put(to);
    to.extend_from_slice(bytes);
}

pub(super) fn get_bytes<'a>(from: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let len = u32::get(from)? as usize;
    if len > MAX_KEY {
        crate::bail!(NMC_ERR_PROTOCOL, "a key or metadata in a call claims {len} bytes");
    }
    from.bytes(len)
}

fn put_keep(keep: Keep, to: &mut Vec<u8>) {
    keep.retain.code().put(to);
    keep.priority.put(to);
    keep.ttl_ms.put(to);
}

fn get_keep(from: &mut Cursor<'_>) -> Result<Keep> {
    let code = u32::get(from)?;
    let Some(retain) = Retain::from_code(code) else {
        crate::bail!(NMC_ERR_PROTOCOL, "there is no retain class {code}");
    };
    Ok(Keep { retain, priority: u32::get(from)?, ttl_ms: u64::get(from)? })
}

fn put_plan(plan: &Opened, to: &mut Vec<u8>) {
    plan.index.put(to);
    plan.epoch.put(to);
    plan.plan_id.put(to);
}

fn get_plan(from: &mut Cursor<'_>) -> Result<Opened> {
    Ok(Opened { index: u32::get(from)?, epoch: u64::get(from)?, plan_id: u64::get(from)? })
}

fn get_count(from: &mut Cursor<'_>) -> Result<usize> {
    let n = u32::get(from)? as usize;
    if n > MAX_ITEMS {
        crate::bail!(NMC_ERR_PROTOCOL, "a call claims {n} items; {MAX_ITEMS} are possible");
    }
    Ok(n)
}

/// A text of an answer; bytes that are none are left out.
pub(super) fn get_text(bytes: &[u8]) -> Result<String> {
    let mut text = memory::Text::default();
    let written = bytes.utf8_chunks().try_for_each(|chunk| text.write_str(chunk.valid()));
    text.finish(written)
}

fn get_list<'a, T>(from: &mut Cursor<'a>, mut one: impl FnMut(&mut Cursor<'a>) -> Result<T>) -> Result<Vec<T>> {
    let n = get_count(from)?;
    let mut list = memory::with_capacity(n)?;
    for _ in 0..n {
        list.push(one(from)?);
    }
    Ok(list)
}

fn put_len(n: usize, to: &mut Vec<u8>) {
    u32::try_from(n).unwrap_or(u32::MAX).put(to);
}

impl<'a> Request<'a> {
    /// What kind of call it is, for errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Request::Hello(_) => "hello",
            Request::Open(_) => "open",
            Request::Abandon(_) => "abandon",
            Request::Reveal(..) => "reveal",
            Request::Remove(..) | Request::RemoveMatching(..) => "remove",
            Request::Take(..) => "consume",
            Request::Drop(..) => "drop",
            Request::Doubt(_) => "doubt",
            Request::Notice(_) => "notice",
            Request::Position(..) => "position",
            Request::Adopt => "adopt",
            Request::Close(..) => "close",
            Request::Retain(..) => "retain",
            Request::Namespace(..) => "namespace",
            Request::Flush(_) => "flush",
            Request::Evict(..) => "evict",
            Request::Dump(_) => "dump",
            Request::Detach => "detach",
            Request::Confirm => "confirm",
            Request::Disk(..) => "disk",
            Request::Reach => "reach",
            Request::Told(..) => "events",
        }
    }

    /// How many results its answer has, if it may have more than one.
    #[must_use]
    pub fn items(&self) -> usize {
        match self {
            Request::Open(items) => items.len(),
            Request::Remove(_, keys) => keys.len(),
            _ => 0,
        }
    }

    /// Puts the packet into `to`, which has room for [`MAX_PACKET`] bytes: no call is longer.
    pub fn encode(&self, to: &mut Vec<u8>) {
        SERVICE.begin(to);
        match self {
            Request::Hello(hello) => {
                1u32.put(to);
                hello.put(to);
            }
            Request::Open(items) => {
                2u32.put(to);
                put_len(items.len(), to);
                for item in items {
                    put_bytes(item.key, to);
                    item.namespace.put(to);
                    item.bytes.put(to);
                    item.rank.map_or(-1, u32::cast_signed).put(to);
                    item.among.put(to);
                    item.flags.put(to);
                    put_keep(item.keep, to);
                    put_bytes(item.metadata, to);
                    item.put.put(to);
                }
            }
            Request::Abandon(plan) => {
                3u32.put(to);
                put_plan(plan, to);
            }
            Request::Reveal(plan, read_from) => {
                4u32.put(to);
                put_plan(plan, to);
                let ReadFrom { disk, entry, word } = read_from.unwrap_or_default();
                read_from.is_some().put(to);
                disk.put(to);
                entry.put(to);
                word.put(to);
            }
            Request::Remove(namespace, keys) => {
                5u32.put(to);
                namespace.put(to);
                put_len(keys.len(), to);
                keys.iter().for_each(|key| put_bytes(key, to));
            }
            Request::RemoveMatching(namespace, prefix, cursor) => {
                6u32.put(to);
                namespace.put(to);
                put_bytes(prefix, to);
                cursor.put(to);
            }
            Request::Retain(namespace, key, keep) => {
                7u32.put(to);
                namespace.put(to);
                put_bytes(key, to);
                put_keep(*keep, to);
            }
            Request::Namespace(name, quota) => {
                8u32.put(to);
                put_bytes(name, to);
                quota.is_some().put(to);
                quota.unwrap_or(0).put(to);
            }
            Request::Flush(namespace) => {
                9u32.put(to);
                namespace.put(to);
            }
            Request::Evict(rank, permille) => {
                10u32.put(to);
                rank.put(to);
                permille.put(to);
            }
            Request::Dump(width) => {
                11u32.put(to);
                width.put(to);
            }
            Request::Detach => 12u32.put(to),
            Request::Confirm => 13u32.put(to),
            Request::Disk(what, arguments, keys) => {
                15u32.put(to);
                what.put(to);
                arguments.iter().for_each(|argument| argument.put(to));
                put_len(keys.len(), to);
                keys.iter().for_each(|key| put_bytes(key, to));
            }
            Request::Reach => 16u32.put(to),
            Request::Told(disk, since) => {
                23u32.put(to);
                disk.put(to);
                since.put(to);
            }
            Request::Take(index, epoch) => {
                14u32.put(to);
                index.put(to);
                epoch.put(to);
            }
            Request::Drop(index, epoch) => {
                17u32.put(to);
                index.put(to);
                epoch.put(to);
            }
            Request::Doubt(plan) => {
                18u32.put(to);
                put_plan(plan, to);
            }
            Request::Notice(index) => {
                19u32.put(to);
                index.is_some().put(to);
                index.unwrap_or(0).put(to);
            }
            Request::Position((term, number), changes) => {
                20u32.put(to);
                term.put(to);
                number.put(to);
                changes.put(to);
            }
            Request::Adopt => 22u32.put(to),
            Request::Close(rank, closed) => {
                21u32.put(to);
                rank.put(to);
                closed.put(to);
            }
        }
    }

    /// The call in a packet.
    pub fn decode(packet: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(packet);
        let from = &mut cursor;
        let request = match SERVICE.kind(from)? {
            1 => Request::Hello(Field::get(from)?),
            2 => Request::Open(get_list(from, |from| {
                Ok(OpenRequest {
                    key: get_bytes(from)?,
                    namespace: u32::get(from)?,
                    bytes: u64::get(from)?,
                    rank: u32::try_from(i32::get(from)?).ok(),
                    among: u64::get(from)?,
                    flags: u32::get(from)?,
                    keep: get_keep(from)?,
                    metadata: get_bytes(from)?,
                    put: u64::get(from)?,
                })
            })?),
            3 => Request::Abandon(get_plan(from)?),
            4 => {
                let (plan, promoted) = (get_plan(from)?, bool::get(from)?);
                let read_from = ReadFrom { disk: u64::get(from)?, entry: u32::get(from)?, word: u64::get(from)? };
                Request::Reveal(plan, Some(read_from).filter(|_| promoted))
            }
            5 => Request::Remove(u32::get(from)?, get_list(from, get_bytes)?),
            6 => Request::RemoveMatching(u32::get(from)?, get_bytes(from)?, u32::get(from)?),
            7 => Request::Retain(u32::get(from)?, get_bytes(from)?, get_keep(from)?),
            8 => {
                let name = get_bytes(from)?;
                let given = bool::get(from)?;
                Request::Namespace(name, Some(u64::get(from)?).filter(|_| given))
            }
            9 => Request::Flush(u32::get(from)?),
            10 => Request::Evict(u32::get(from)?, u32::get(from)?),
            11 => Request::Dump(u32::get(from)?),
            12 => Request::Detach,
            13 => Request::Confirm,
            14 => Request::Take(u32::get(from)?, u64::get(from)?),
            15 => Request::Disk(u32::get(from)?, [u64::get(from)?, u64::get(from)?], get_list(from, get_bytes)?),
            16 => Request::Reach,
            17 => Request::Drop(u32::get(from)?, u64::get(from)?),
            18 => Request::Doubt(get_plan(from)?),
            19 => {
                let one = bool::get(from)?;
                Request::Notice(Some(u32::get(from)?).filter(|_| one))
            }
            20 => Request::Position((u64::get(from)?, u64::get(from)?), u64::get(from)?),
            21 => Request::Close(u32::get(from)?, bool::get(from)?),
            22 => Request::Adopt,
            23 => Request::Told(u64::get(from)?, u64::get(from)?),
            other => crate::bail!(NMC_ERR_PROTOCOL, "there is no call of kind {other}"),
        };
        from.end()?;
        Ok(request)
    }
}

/// Puts the packet of an answer into `to`, which has room for [`MAX_PACKET`] bytes: no answer is longer.
pub fn encode_reply(items: &[Item], to: &mut Vec<u8>) {
    SERVICE.begin(to);
    REPLY.put(to);
    put_len(items.len(), to);
    let most = if items.len() == 1 { MAX_PACKET - 64 } else { MAX_TEXT };
    for item in items {
        item.status.put(to);
        item.values.iter().for_each(|v| v.put(to));
        put_bytes(&item.text[..item.text.len().min(most)], to);
    }
}

/// The results in an answer, of which at most `room` come: a list with room for them is made before the call, since
/// what was done must not get lost for want of memory.
pub fn decode_reply(packet: &[u8], mut room: Vec<Item>) -> Result<Vec<Item>> {
    let mut cursor = Cursor::new(packet);
    let from = &mut cursor;
    match SERVICE.kind(from)? {
        REPLY => {}
        REFUSAL => return Err(Refusal::get(from)?.into()),
        other => crate::bail!(NMC_ERR_PROTOCOL, "an answer is of kind {other}"),
    }
    let n = get_count(from)?;
    memory::reserve(&mut room, n)?;
    for _ in 0..n {
        let (status, values) = (i32::get(from)?, [u64::get(from)?, u64::get(from)?, u64::get(from)?]);
        let len = u32::get(from)? as usize;
        let text = match memory::copy(from.bytes(len)?) {
            // Better an error without its explanation than none of the other results.
            Err(error) if error.status == NMC_ERR_NO_MEMORY && status != 0 => Vec::new(),
            text => text?,
        };
        room.push(Item { status, values, text });
    }
    from.end()?;
    Ok(room)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    fn samples() -> Vec<Request<'static>> {
        let plan = Opened { index: 3, epoch: 9, plan_id: 77 };
        let keep = Keep { retain: Retain::Soft, priority: 2, ttl_ms: 5 };
        let (rank, among, metadata) = (Some(2), 6, &b"m"[..]);
        let open = OpenRequest { key: b"k", namespace: 1, bytes: 10, rank, among, flags: 3, keep, metadata, put: 5 };
        let hello = Hello {
            world_id: 1,
            store_id: 2,
            holds: true,
            client: 3,
            client_generation: 9,
            pid: 4,
            start_time: 5,
            rank: 6,
            rank_generation: 7,
            role: 1,
            drain_ms: 8,
            heaps: vec![1, 2, 3, 4],
            seed: vec![5, 6],
            params: (0..PARAM_WORDS as u64).collect(),
            kept_all: true,
            kept: vec![1, 2, 3],
        };
        vec![
            Request::Hello(hello),
            Request::Open(vec![open, OpenRequest { rank: None, among: 0, metadata: &[], ..open }]),
            Request::Abandon(plan),
            Request::Reveal(plan, None),
            Request::Reveal(plan, Some(ReadFrom { disk: 7, entry: 3, word: 5 })),
            Request::Remove(1, vec![b"a", b"bc"]),
            Request::RemoveMatching(2, b"pre", 7),
            Request::Retain(0, b"key", keep),
            Request::Namespace(b"n", Some(9)),
            Request::Namespace(b"n", None),
            Request::Flush(4),
            Request::Evict(1, 500),
            Request::Dump(80),
            Request::Detach,
            Request::Confirm,
            Request::Take(3, 9),
            Request::Disk(2, [3, 4], Vec::new()),
            Request::Disk(2, [3, 4], vec![b"a", b"bc"]),
            Request::Reach,
            Request::Told(7, 9),
            Request::Drop(3, 9),
            Request::Doubt(plan),
            Request::Notice(None),
            Request::Notice(Some(4)),
            Request::Position((2, 7), 9),
            Request::Close(1, true),
            Request::Adopt,
        ]
    }

    #[test]
    fn calls_and_answers_survive_the_wire() {
        let mut packet = Vec::new();
        for request in samples() {
            request.encode(&mut packet);
            assert_eq!(Request::decode(&packet).unwrap(), request);
        }
        let items = vec![Item::ok([1, 2, 3]), Item { status: -5, values: [0; 3], text: "no".into() }];
        encode_reply(&items, &mut packet);
        assert_eq!(decode_reply(&packet, Vec::new()).unwrap(), items);
    }

    #[test]
    fn no_damaged_packet_is_taken_for_a_longer_one_or_panics() {
        let mut packet = Vec::new();
        for request in samples() {
            request.encode(&mut packet);
            for cut in 0..packet.len() {
                assert!(Request::decode(&packet[..cut]).is_err());
            }
            for at in 0..packet.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = packet.clone();
                    damaged[at] = value;
                    let _ = Request::decode(&damaged);
                    let _ = decode_reply(&damaged, Vec::new());
                }
            }
        }
    }

    #[test]
    fn an_answer_of_errors_fits_a_packet() {
        let item = Item { status: -1, values: [0; 3], text: vec![b'x'; 5000] };
        let mut packet = Vec::new();
        encode_reply(&vec![item; MAX_ITEMS], &mut packet);
        assert!(packet.len() <= MAX_PACKET);
    }
}
