//! The words of the cluster's language: who somebody is, what an object, a replica and a put are called, and where somebody
//! is in the drop log. All of them are plain values that mean the same on every machine.

use crate::base::error::Result;
use crate::base::memory;
pub use crate::layout::store::cluster_of;
use crate::layout::store::{COUNTED_BITS, MAX_KEY, MAX_NAMESPACE_NAME};

/// A moment, in ms of the clock of whoever looks: clocks of two machines are never compared.
pub type Millis = u64;

/// Values up to this size share a connection, and are copied on their way out of it; larger ones have one for themselves.
pub const SMALL: u64 = 64 << 10;

/// How long so many bytes take at the slowest pace at which anybody waits for them, 16 KiB a second: a thousandth of what a value is given by itself, so
/// that as many may share a slow network.
#[must_use]
pub fn slow_ms(bytes: u64) -> Millis {
    bytes >> 4
}

/// Term of a leader; 0 is before the first.
pub type Term = u64;

/// A node of the cluster. It is made from its name, and the same for as long as the node has that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The node with this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(xxhash_rust::xxh64::xxh64(name.as_bytes(), 0x6e6f_6465))
    }
}

/// The public name of a life of a node, which is in the names of its replicas. The node itself proves that it is the one by the secret
/// that this is made from: in everything that it says to a master, the secret stands in its place.
#[must_use]
pub fn incarnation_of(secret: u64) -> u64 {
    let hash = blake3::hash(&secret.to_le_bytes());
    hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// One end of a connection, as the loop around a state machine numbers them. It means nothing to anybody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u64);

/// Index of a replica that is announced and not yet published.
pub const NO_INDEX: u32 = u32::MAX;

/// The name of a replica. Nothing else ever had it or will have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Who owns it.
    pub node: NodeId,
    /// Which life of that node: random, new with each store and with each agent.
    pub incarnation: u64,
    /// Header of the object, or slot of the tier with the highest bit set.
    pub index: u32,
    /// Epoch of the header or slot.
    pub epoch: u64,
}

/// Bit of a put id that a master has given; what a node puts by itself has another kind of id.
const CLUSTERED: u64 = 1 << 63;
/// Where the bits of the term are.
const TERM_SHIFT: u32 = 48;
/// How many bits of the term there are.
const TERM_BITS: u64 = (1 << 15) - 1;
/// Bit of a put id of a master: what is put is the stub of a striped value.
const STRIPED: u64 = 1 << 47;

/// Names one put: every replica that came of it, on whatever node, has its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId(pub u64);

impl PutId {
    /// The id of a put that the leader of a term lets begin.
    #[must_use]
    pub fn clustered(term: Term, random: u64) -> Self {
        Self(CLUSTERED | (term & TERM_BITS) << TERM_SHIFT | random & (STRIPED - 1))
    }

    /// The same of a value that is put in parts.
    #[must_use]
    pub fn striped(term: Term, random: u64) -> Self {
        Self(Self::clustered(term, random).0 | STRIPED)
    }

    /// Whether what it has put is the stub of a value whose bytes are in parts.
    #[must_use]
    pub fn is_striped(self) -> bool {
        self.is_clustered() && self.0 & STRIPED != 0
    }

    /// The id of a put of a node on itself.
    #[must_use]
    pub fn local(random: u64) -> Self {
        Self(random & !CLUSTERED)
    }

    /// Whether a master gave it, so that there is a gate to open.
    #[must_use]
    pub fn is_clustered(self) -> bool {
        self.0 & CLUSTERED != 0
    }

    /// Whether the leader of this term gave it. One of 32,768 terms is taken for another: what it then costs is that a put
    /// whose end comes late is said to be given up.
    #[must_use]
    pub fn is_of(self, term: Term) -> bool {
        self.is_clustered() && (self.0 >> TERM_SHIFT) & TERM_BITS == term & TERM_BITS
    }
}

/// First byte of namespaces that no program can open.
const RESERVED: u8 = 0xff;
/// Namespace of the parts of striped values, everywhere.
pub const PARTS: &[u8] = b"\xffp";
/// What a node has in front of a namespace's name for the stubs of its striped values: programs of that node that look for the key must not take
/// the stub for the value.
const STUBS: &[u8] = b"\xffw";
/// Most parts of a value.
pub const MAX_PARTS: u64 = 4096;

/// Whether a namespace of this name is the cluster's own.
#[must_use]
pub fn is_reserved(space: &[u8]) -> bool {
    space.first() == Some(&RESERVED)
}

/// How a value is cut into parts: as many as were asked for, all but the last of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the value.
    pub total: u64,
    /// How many parts.
    pub count: u64,
    /// Bytes of each but the last.
    part: u64,
}

impl Cut {
    /// Whole pages go into a part, where that leaves something for the last one.
    const PAGE: u64 = 4096;

    /// A value of so many bytes in parts of so many, or of more if they would be too many; none if it fits one.
    #[must_use]
    pub fn by_size(total: u64, part: u64) -> Option<Self> {
        if part == 0 || total <= part {
            return None;
        }
        let part = part.max(total.div_ceil(MAX_PARTS));
        // With parts of whole pages there may be one less.
        let paged = part.checked_next_multiple_of(Self::PAGE).filter(|_| part >= Self::PAGE).unwrap_or(part);
        Self::of(total, total.div_ceil(paged))
    }

    /// The same by their number: what whoever reads it knows. None if no value is cut like this.
    #[must_use]
    pub fn of(total: u64, count: u64) -> Option<Self> {
        if !(2..=MAX_PARTS).contains(&count) || count > total {
            return None;
        }
        let even = total.div_ceil(count);
        let leaves_some = |part: &u64| part.checked_mul(count - 1).is_some_and(|others| others < total);
        let part = even.checked_next_multiple_of(Self::PAGE).filter(leaves_some).or(Some(even).filter(leaves_some))?;
        Some(Self { total, count, part })
    }

    /// Where a part begins, and its bytes.
    #[must_use]
    pub fn part(&self, number: u64) -> (u64, u64) {
        let first = (number * self.part).min(self.total);
        (first, self.part.min(self.total - first))
    }
}

const CLUSTER_BITS: u32 = 21;

/// The term before the first one of a cluster that has this random number.
#[must_use]
pub fn terms_of(cluster: u64) -> Term {
    (cluster & ((1 << CLUSTER_BITS) - 1)) << COUNTED_BITS
}

/// The number of a term in its cluster, as people see it.
#[must_use]
pub fn counted(term: Term) -> u64 {
    term & ((1 << COUNTED_BITS) - 1)
}

/// A place in the drop log: the entries of a term follow those of the terms before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Whose entry it is.
    pub term: Term,
    /// Its number in that term, from 1.
    pub number: u64,
}

/// What a segment is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Media {
    /// Memory of a GPU.
    Vram,
    /// Memory of the host.
    Ram,
    /// The tier.
    Ssd,
}

impl Media {
    /// All of them, by their codes.
    pub const ALL: [Media; 3] = [Media::Vram, Media::Ram, Media::Ssd];

    /// Its number on the wire.
    #[must_use]
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The medium with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }
}

/// An object's namespace, by name, and its key: one run of bytes, the length of the namespace first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Vec<u8>);

impl ObjectKey {
    /// Longest one.
    pub const MAX: usize = 1 + MAX_NAMESPACE_NAME + MAX_KEY;

    /// The object `key` of namespace `space`.
    pub fn new(space: &[u8], key: &[u8]) -> Result<Self> {
        if space.len() > MAX_NAMESPACE_NAME {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the name of a namespace has {} bytes; {MAX_NAMESPACE_NAME} are possible",
                space.len()
            );
        }
        if key.is_empty() || key.len() > MAX_KEY {
            crate::bail!(NMC_ERR_INVALID_ARG, "a key has {} bytes; 1 to {MAX_KEY} are possible", key.len());
        }
        let mut bytes = memory::with_capacity(1 + space.len() + key.len())?;
        bytes.push(u8::try_from(space.len()).unwrap_or(0));
        bytes.extend_from_slice(space);
        bytes.extend_from_slice(key);
        Ok(Self(bytes))
    }

    /// From the bytes of one, which may be anything.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let parts = bytes.split_first().and_then(|(len, rest)| rest.split_at_checked((*len).into()));
        match parts {
            Some((space, key)) => Self::new(space, key),
            None => crate::bail!(NMC_ERR_PROTOCOL, "an object's key of {} bytes ends in its namespace", bytes.len()),
        }
    }

    /// All of it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let (len, rest) = self.0.split_first().unwrap_or((&0, &[]));
        rest.split_at_checked((*len).into()).unwrap_or((&[], rest))
    }

    /// Name of the namespace.
    #[must_use]
    pub fn space(&self) -> &[u8] {
        self.split().0
    }

    /// The key in it.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.split().1
    }

    /// The same, if memory is given for it.
    pub fn copy(&self) -> Result<Self> {
        memory::copy(&self.0).map(Self)
    }

    /// A part of the value of a striped put.
    pub fn part(whole: PutId, number: u64) -> Result<Self> {
        Self::new(PARTS, &part_key(whole, number))
    }

    /// Which part it is, and of which put.
    #[must_use]
    pub fn as_part(&self) -> Option<(PutId, u64)> {
        let (space, key) = self.split();
        part_of(space, key)
    }

    /// Where a node has it that came from this put.
    #[must_use]
    pub fn inner(&self, put: PutId) -> Self {
        if put.is_striped() { self.stub() } else { self.clone() }
    }

    /// Where a node has the stub of a striped value. One whose name would be too long is not there, whatever it is called.
    #[must_use]
    pub fn stub(&self) -> Self {
        let name = [STUBS, self.space()].concat();
        Self::new(&name, self.key()).unwrap_or_else(|_| self.clone())
    }

    /// What others call something that a node has; none if a put of this kind is not to be there.
    pub fn outer(&self, put: PutId) -> Result<Option<Self>> {
        match (self.space().strip_prefix(STUBS), put.is_striped()) {
            (Some(space), true) => Self::new(space, self.key()).map(Some),
            (None, false) => self.copy().map(Some),
            _ => Ok(None),
        }
    }

    /// Whether its value may be put in parts: the name of its namespace must leave room.
    #[must_use]
    pub fn may_be_striped(&self) -> bool {
        !is_reserved(self.space()) && self.space().len() + STUBS.len() <= MAX_NAMESPACE_NAME
    }
}

/// Where a node has the stubs of a namespace's striped values.
#[must_use]
pub fn stubs_of(space: &[u8]) -> Vec<u8> {
    [STUBS, space].concat()
}

/// The key of a part, in the namespace of parts.
#[must_use]
pub fn part_key(whole: PutId, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&whole.0.to_be_bytes());
    key[8..].copy_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
    key
}

/// Which part has this key in this namespace, and of which put.
#[must_use]
pub fn part_of(space: &[u8], key: &[u8]) -> Option<(PutId, u64)> {
    let (put, number) = key.split_first_chunk::<8>().filter(|_| space == PARTS)?;
    let number = u32::from_be_bytes(*number.first_chunk::<4>().filter(|_| number.len() == 4)?);
    Some((PutId(u64::from_be_bytes(*put)), number.into()))
}

impl std::fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (space, key) = self.split();
        write!(f, "{}/{}", space.escape_ascii(), key.escape_ascii())
    }
}

/// Numbers by chance, the same after the same seed: what the master chooses by.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// Begins with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number: splitmix64.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        // The high half of the product is below n.
        let wide = u128::from(self.word()) * n as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_namespace_apart() {
        let object = ObjectKey::new(b"kv", b"abc").unwrap();
        assert_eq!((object.space(), object.key()), (&b"kv"[..], &b"abc"[..]));
        assert_ne!(object, ObjectKey::new(b"k", b"vabc").unwrap());
        assert_eq!(ObjectKey::from_bytes(object.as_bytes()).unwrap(), object);
        for bad in [&b""[..], b"\x05abc", b"\x00", b"\x02kv"] {
            assert!(ObjectKey::from_bytes(bad).is_err(), "{bad:?}");
        }
        assert!(ObjectKey::new(&[0; MAX_NAMESPACE_NAME + 1], b"k").is_err());
        assert!(ObjectKey::new(b"", &[0; MAX_KEY + 1]).is_err());
    }

    #[test]
    fn a_put_id_tells_its_term_and_a_local_one_has_none() {
        let put = PutId::clustered(7, u64::MAX);
        assert!(put.is_clustered() && put.is_of(7) && !put.is_of(8));
        assert!(!PutId::local(u64::MAX).is_clustered() && !PutId::local(u64::MAX).is_of(0x7fff));
        let striped = PutId::striped(7, 5);
        assert!(striped.is_striped() && striped.is_of(7) && !put.is_striped() && !PutId::local(u64::MAX).is_striped());
        assert_ne!(striped, PutId::clustered(7, 5));
    }

    #[test]
    fn parts_are_named_by_their_put_and_stubs_are_apart_from_values() {
        let (whole, value) = (PutId::striped(3, 9), PutId::clustered(3, 9));
        let part = ObjectKey::part(whole, 7).unwrap();
        assert_eq!((part.as_part(), is_reserved(part.space())), (Some((whole, 7)), true));
        let key = ObjectKey::new(b"kv", b"abc").unwrap();
        assert_eq!((key.as_part(), is_reserved(b"kv"), is_reserved(b"")), (None, false, false));
        let stub = key.inner(whole);
        assert_eq!((stub.space(), stub.key()), (&b"\xffwkv"[..], &b"abc"[..]));
        assert_eq!(stubs_of(b"kv"), stub.space());
        assert_eq!((stub.outer(whole).unwrap(), stub.outer(value).unwrap()), (Some(key.copy().unwrap()), None));
        assert_eq!((key.outer(value).unwrap(), key.outer(whole).unwrap()), (Some(key.copy().unwrap()), None));
        assert_eq!(key.inner(value), key);
        let long = ObjectKey::new(&[b'a'; MAX_NAMESPACE_NAME - 1], b"k").unwrap();
        assert!(key.may_be_striped() && !long.may_be_striped() && !part.may_be_striped());
        assert_eq!(long.inner(whole), long);
    }

    #[test]
    fn parts_add_up_and_their_number_says_how_a_value_is_cut() {
        let mut chance = Chance::new(5);
        for round in 0..20_000u64 {
            let total = 1 + chance.word() % [10, 5000, 1 << 20, 1 << 40][chance.below(4)];
            let size = 1 + chance.word() % [4, 4096, 1 << 20, 1 << 36][chance.below(4)];
            let Some(cut) = Cut::by_size(total, size) else {
                assert!(total <= size.next_multiple_of(Cut::PAGE), "{round}: {total} in parts of {size}");
                continue;
            };
            assert_eq!(Cut::of(total, cut.count), Some(cut));
            let mut end = 0;
            for number in 0..cut.count {
                let (first, bytes) = cut.part(number);
                assert!(first == end && bytes > 0, "{round}: part {number} of {cut:?}");
                end += bytes;
            }
            assert_eq!(end, total);
        }
        let cut = Cut::by_size(10 << 20, 4 << 20).unwrap();
        assert_eq!((cut.count, cut.part(0), cut.part(2)), (3, (0, 3_497_984), (6_995_968, 3_489_792)));
        assert_eq!((Cut::by_size(8, 8), Cut::by_size(8, 0), Cut::of(8, 9), Cut::of(9, 6)), (None, None, None, None));
        assert_eq!((Cut::of(u64::MAX, 4097), Cut::of(8, 1)), (None, None));
    }
}
