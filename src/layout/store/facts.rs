//! What happened to objects, as the master tells it: the ring of facts, and how an object ended that somebody waits for.

use crate::sync::facts;

/// A record of the ring of facts.
#[repr(C, align(32))]
pub struct FactRecord(pub(super) facts::Record);

/// Bit of the index in a fact that is not a header's but that of an entry of the disk below the store. The epoch is the entry's then,
/// see [`super::disk::Entry`].
pub const ON_DISK: u32 = 1 << 31;

/// Something that happened to an object, as the master noticed it, in the order in which it did. What was not read in time is
/// overwritten: then all objects have to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// It can be read.
    Published {
        /// Header.
        index: u32,
        /// Epoch.
        epoch: u64,
    },
    /// It was evicted, removed, replaced, taken or lost.
    Retired {
        /// Header.
        index: u32,
        /// Epoch.
        epoch: u64,
    },
    /// All objects of a namespace of before this generation are over.
    Flushed {
        /// Namespace id.
        namespace: u32,
        /// Generation that begins.
        generation: u32,
    },
}

impl Fact {
    /// As a record has it.
    #[must_use]
    pub fn words(self) -> [u64; 3] {
        match self {
            Self::Published { index, epoch } => [1, index.into(), epoch],
            Self::Retired { index, epoch } => [2, index.into(), epoch],
            Self::Flushed { namespace, generation } => [3, namespace.into(), generation.into()],
        }
    }

    /// The inverse; `None` for what is no fact.
    #[must_use]
    pub fn from_words([kind, first, second]: [u64; 3]) -> Option<Self> {
        let index = u32::try_from(first).ok()?;
        match kind {
            1 => Some(Self::Published { index, epoch: second }),
            2 => Some(Self::Retired { index, epoch: second }),
            3 => Some(Self::Flushed { namespace: index, generation: u32::try_from(second).ok()? }),
            _ => None,
        }
    }
}

/// How an object ended that was never published, or was consumed. Others were removed, replaced or evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its writer gave it up.
    GivenUp,
    /// Its writer took longer than the watchdog allows.
    Late,
    /// Nothing is left of its writer.
    WriterGone,
    /// The rank that held its pages has other memory now.
    HeapGone,
    /// It was published, and a consumer has it.
    Taken,
}

impl Fate {
    const ALL: [Fate; 5] = [Fate::GivenUp, Fate::Late, Fate::WriterGone, Fate::HeapGone, Fate::Taken];

    /// A word that tells that the object with this epoch ended so.
    #[must_use]
    pub fn word(self, epoch: u64) -> u64 {
        epoch << 8 | (self as u64 + 1)
    }

    /// The inverse; `None` if the word tells of another object.
    #[must_use]
    pub fn of(word: u64, epoch: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.word(epoch) == word)
    }
}
