//! What a packet looks like: the number of the service, the kind of the message, and its fields, little-endian and without
//! padding. Kind 0 is a refusal in every service. Decoding trusts nothing: lengths and counts are checked before they are
//! used, and a list is never longer than the packet it is in.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_PROTOCOL, TABLE, nmc_status_t};

/// The kind of a [`Refusal`].
pub const REFUSAL: u32 = 0;

/// Most entries of a list.
const MAX_LIST: usize = 8192;
/// Longest text in a message.
const MAX_TEXT: usize = 1024;

/// Reads fields off a packet.
pub struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// Reads `packet` from its beginning.
    #[must_use]
    pub fn new(packet: &'a [u8]) -> Self {
        Self(packet)
    }

    /// The next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.0.split_at_checked(len) else {
            crate::bail!(NMC_ERR_PROTOCOL, "a message ends in the middle of {len} bytes");
        };
        self.0 = rest;
        Ok(head)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else {
            crate::bail!(NMC_ERR_PROTOCOL, "a message ends in the middle of a field");
        };
        self.0 = rest;
        Ok(*head)
    }

    /// Fails if something follows the last field.
    pub fn end(&self) -> Result<()> {
        if !self.0.is_empty() {
            crate::bail!(NMC_ERR_PROTOCOL, "{} bytes follow the end of a message", self.0.len());
        }
        Ok(())
    }
}

/// Somebody who is spoken to in packets.
#[derive(Debug)]
pub struct Service {
    /// What its packets begin with.
    pub magic: u32,
    /// Who it is, for people: "the world's master".
    pub name: &'static str,
}

impl Service {
    /// Begins a packet; its kind follows.
    pub fn begin(&self, to: &mut Vec<u8>) {
        to.clear();
        self.magic.put(to);
    }

    /// Checks how a packet begins, and takes the kind of the message.
    pub fn kind(&self, from: &mut Cursor<'_>) -> Result<u32> {
        let magic = u32::get(from)?;
        if magic != self.magic {
            crate::bail!(NMC_ERR_PROTOCOL, "a packet starts with {magic:#x}: it is none of {}", self.name);
        }
        u32::get(from)
    }

    /// The packet that says no.
    #[must_use]
    pub fn refusal(&self, error: &Error) -> Vec<u8> {
        let mut packet = Vec::new();
        self.begin(&mut packet);
        REFUSAL.put(&mut packet);
        Refusal::from(error.clone()).put(&mut packet);
        packet
    }
}

/// A value that can be put into and taken out of a packet.
pub trait Field: Sized {
    /// Appends the value.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes the value off the front.
    fn get(from: &mut Cursor<'_>) -> Result<Self>;
}

macro_rules! integer_fields {
    ($($t:ty),*) => {$(
        impl Field for $t {
            #[inline]
            fn put(&self, to: &mut Vec<u8>) { to.extend_from_slice(&self.to_le_bytes()); }
            #[inline]
            fn get(from: &mut Cursor<'_>) -> Result<Self> { Ok(<$t>::from_le_bytes(from.take()?)) }
        }
    )*};
}
integer_fields!(u32, i32, u64);

impl Field for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        match from.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => crate::bail!(NMC_ERR_PROTOCOL, "a flag in a message is {other}"),
        }
    }
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        from.take()
    }
}

impl Field for String {
    fn put(&self, to: &mut Vec<u8>) {
        let mut end = self.len().min(MAX_TEXT);
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        u32::try_from(end).unwrap_or(0).put(to);
        to.extend_from_slice(&self.as_bytes()[..end]);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        let len = u32::get(from)? as usize;
        if len > MAX_TEXT || len > from.0.len() {
            crate::bail!(NMC_ERR_PROTOCOL, "a text in a message claims {len} bytes");
        }
        let (text, rest) = from.0.split_at(len);
        from.0 = rest;
        match std::str::from_utf8(text) {
            Ok(text) => Ok(text.to_owned()),
            // It is not mended: that may be longer than a text can be.
            Err(_) => crate::bail!(NMC_ERR_PROTOCOL, "a text in a message is not UTF-8"),
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(to);
        self.iter().for_each(|item| item.put(to));
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        let n = u32::get(from)? as usize;
        // No entry is shorter than a byte.
        if n > MAX_LIST || n > from.0.len() {
            crate::bail!(NMC_ERR_PROTOCOL, "a list in a message claims {n} entries");
        }
        memory::try_collect((0..n).map(|_| T::get(from)))
    }
}

/// Structs that are fields: all of their fields, in order.
macro_rules! message_structs {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$fdoc:meta])* pub $field:ident: $t:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $t,)* }
        impl $crate::rpc::packet::Field for $name {
            fn put(&self, to: &mut Vec<u8>) { $($crate::rpc::packet::Field::put(&self.$field, to);)* }
            fn get(from: &mut $crate::rpc::packet::Cursor<'_>) -> $crate::base::error::Result<Self> {
                Ok(Self { $($field: $crate::rpc::packet::Field::get(from)?,)* })
            }
        }
    )*};
}
pub(crate) use message_structs;

message_structs! {
    /// The server says no, and closes the connection.
    pub struct Refusal {
        /// Why, for programs.
        pub status: nmc_status_t,
        /// Why, for people.
        pub message: String,
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { status: error.status, message: error.message }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        // A status that is not an error of ours would read as success.
        let known = refusal.status < 0 && TABLE.iter().any(|(s, _)| *s == refusal.status);
        Error::new(if known { refusal.status } else { NMC_ERR_PROTOCOL }, refusal.message)
    }
}
