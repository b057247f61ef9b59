//! The words of the cluster's language: who somebody is, what an object, a replica and a put are called, and where somebody
//! is in the drop log. All of them are plain values that mean the same on every machine.

use crate::base::error::Result;
use crate::base::memory;
use crate::layout::store::{MAX_KEY, MAX_NAMESPACE_NAME};

/// A moment, in ms of the clock of whoever looks: clocks of two machines are never compared.
pub type Millis = u64;

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

/// Names one put: every replica that came of it, on whatever node, has its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId(pub u64);

impl PutId {
    /// The id of a put that the leader of a term lets begin.
    #[must_use]
    pub fn clustered(term: Term, random: u64) -> Self {
        Self(CLUSTERED | (term & TERM_BITS) << TERM_SHIFT | random & ((1 << TERM_SHIFT) - 1))
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

/// Bits of a term that are counted. Those above them are of the cluster, so that what was reached in one is not taken for what was
/// reached in another.
const COUNTED_BITS: u32 = 40;
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
    }
}
