//! How the cluster's words are put into a message and taken out of it. Whatever comes in is checked before it is kept: a
//! length against what is left of the message and against its own limit, a code against what there is.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_PROTOCOL;
use crate::cluster::types::{Media, Name, NodeId, ObjectKey, Position, PutId};
use crate::layout::store::{MAX_KEY, MAX_METADATA, MAX_NAMESPACE_NAME};
use crate::rpc::packet::{Cursor, Field};

fn put_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).put(to);
    to.extend_from_slice(bytes);
}

fn get_bytes<'a>(from: &mut Cursor<'a>, most: usize, what: &str) -> Result<&'a [u8]> {
    let len = u32::get(from)? as usize;
    if len > most {
        crate::bail!(NMC_ERR_PROTOCOL, "{what} in a message claims {len} bytes; {most} are possible");
    }
    from.bytes(len)
}

impl Field for ObjectKey {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        let bytes = get_bytes(from, Self::MAX, "a key")?;
        Self::from_bytes(bytes).map_err(|error| Error { status: NMC_ERR_PROTOCOL, ..error })
    }
}

/// The name of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Space(pub Vec<u8>);

impl Field for Space {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(&self.0, to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        memory::copy(get_bytes(from, MAX_NAMESPACE_NAME, "the name of a namespace")?).map(Self)
    }
}

/// What keys begin with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prefix(pub Vec<u8>);

impl Field for Prefix {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(&self.0, to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        memory::copy(get_bytes(from, MAX_KEY, "the beginning of a key")?).map(Self)
    }
}

/// What a mover's library says about itself, for one of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Card(pub Vec<u8>);

impl Card {
    /// Longest one.
    pub const MAX: usize = 32 << 10;
}

impl Field for Card {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(&self.0, to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        memory::copy(get_bytes(from, Self::MAX, "the card of a mover")?).map(Self)
    }
}

/// What the writer of an object says about it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata(pub Vec<u8>);

impl Field for Metadata {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(&self.0, to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        memory::copy(get_bytes(from, MAX_METADATA, "metadata")?).map(Self)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        Ok(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl Field for Media {
    fn put(&self, to: &mut Vec<u8>) {
        self.code().put(to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        let code = u32::get(from)?;
        match Self::from_code(code) {
            Some(media) => Ok(media),
            None => crate::bail!(NMC_ERR_PROTOCOL, "there is no medium {code}"),
        }
    }
}

impl Field for NodeId {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        u64::get(from).map(Self)
    }
}

impl Field for PutId {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        u64::get(from).map(Self)
    }
}

impl Field for Position {
    fn put(&self, to: &mut Vec<u8>) {
        self.term.put(to);
        self.number.put(to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        Ok(Self { term: u64::get(from)?, number: u64::get(from)? })
    }
}

impl Field for Name {
    fn put(&self, to: &mut Vec<u8>) {
        self.node.put(to);
        self.incarnation.put(to);
        self.index.put(to);
        self.epoch.put(to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        Ok(Self {
            node: NodeId::get(from)?,
            incarnation: u64::get(from)?,
            index: u32::get(from)?,
            epoch: u64::get(from)?,
        })
    }
}

/// Enums whose variants have numbers on the wire and hold one struct each, or nothing. A number that is none is refused.
macro_rules! numbered {
    ($(#[$doc:meta])* pub enum $name:ident: $what:literal { $($(#[$vdoc:meta])* $number:literal => $variant:ident($t:ty),)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant($t),)* }
        impl $name {
            /// Its number on the wire.
            #[must_use]
            pub fn number(&self) -> u32 {
                match self { $($name::$variant(_) => $number,)* }
            }
            /// What it is called.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $($name::$variant(_) => stringify!($variant),)* }
            }
            /// Puts what it holds, without its number.
            pub fn put_body(&self, to: &mut Vec<u8>) {
                match self { $($name::$variant(body) => $crate::rpc::packet::Field::put(body, to),)* }
            }
            /// Takes what one with this number holds.
            pub fn get_body(number: u32, from: &mut $crate::rpc::packet::Cursor<'_>) -> $crate::base::error::Result<Self> {
                match number {
                    $($number => $crate::rpc::packet::Field::get(from).map($name::$variant),)*
                    other => $crate::bail!(NMC_ERR_PROTOCOL, "there is no {} with the number {other}", $what),
                }
            }
        }
        $(impl From<$t> for $name {
            fn from(body: $t) -> Self { $name::$variant(body) }
        })*
    };
}
pub(crate) use numbered;
