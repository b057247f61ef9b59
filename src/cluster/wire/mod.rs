//! The protocol between clients, nodes and masters: frames of a head and a message, and for some messages a value whose bytes
//! follow. A head is checked whole before anything is allocated for what it announces; a message is never longer than
//! [`MAX_MESSAGE`]. What is sent is written down in `docs/protocol.md`, what it is for in `docs/cluster-inside.md`.

mod fields;
pub mod messages;
#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

pub use fields::{Card, Metadata, Prefix, Space};
pub use messages::*;

use crate::base::error::Result;
use crate::base::memory;
use crate::rpc::packet::{Cursor, Field};

/// "NMC" and the version of the protocol: it changes with any message.
pub const MAGIC: u32 = 0x0543_4d4e;
/// Bytes of a head.
pub const HEAD: usize = 32;
/// Longest message.
pub const MAX_MESSAGE: usize = crate::rpc::MAX_PACKET;
/// Longest value that may follow a message.
pub const MAX_VALUE: u64 = 1 << 40;

/// What every frame begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Which message follows.
    pub kind: u32,
    /// Bytes of the message.
    pub len: u32,
    /// Whose answer is whose: an answer has the number of its request. 0 for what is not answered.
    pub request: u64,
    /// How long the sender will wait for the answer, in ms.
    pub time_left_ms: u32,
    /// Bytes of the value that follows the message.
    pub value: u64,
}

impl Head {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let words = [MAGIC, self.kind, self.len, self.time_left_ms];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        bytes[24..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// The head with these bytes, if a frame may begin like this.
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Self> {
        let from = &mut Cursor::new(bytes);
        let magic = u32::get(from)?;
        if magic != MAGIC {
            if magic & 0x00ff_ffff == MAGIC & 0x00ff_ffff {
                crate::bail!(
                    NMC_ERR_VERSION,
                    "a peer speaks version {} of the protocol, not {}",
                    magic >> 24,
                    MAGIC >> 24
                );
            }
            crate::bail!(NMC_ERR_PROTOCOL, "a frame starts with {magic:#x}: it is none of the cluster's");
        }
        let (kind, len, time_left_ms) = (u32::get(from)?, u32::get(from)?, u32::get(from)?);
        let (request, value) = (u64::get(from)?, u64::get(from)?);
        if len as usize > MAX_MESSAGE {
            crate::bail!(NMC_ERR_PROTOCOL, "a message claims {len} bytes; {MAX_MESSAGE} are possible");
        }
        if value > MAX_VALUE || value > 0 && !may_carry_a_value(kind) {
            crate::bail!(NMC_ERR_PROTOCOL, "{value} bytes are to follow a message of kind {kind}");
        }
        Ok(Self { kind, len, request, time_left_ms, value })
    }
}

/// A message and how it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Whose answer is whose, see [`Head::request`].
    pub request: u64,
    /// How long the sender will wait for the answer, in ms.
    pub time_left_ms: u32,
    /// What is said.
    pub message: Message,
}

impl Frame {
    /// What nobody answers, or what answers itself.
    #[must_use]
    pub fn telling(message: impl Into<Message>) -> Self {
        Self { request: 0, time_left_ms: 0, message: message.into() }
    }

    /// The answer to a request.
    #[must_use]
    pub fn answering(request: u64, message: impl Into<Message>) -> Self {
        Self { request, time_left_ms: 0, message: message.into() }
    }

    /// Puts head and message into `to`. The bytes of a value, if any, are the mover's business.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<()> {
        to.clear();
        memory::reserve_to(to, HEAD + MAX_MESSAGE)?;
        to.resize(HEAD, 0);
        self.message.put_body(to);
        let len = to.len() - HEAD;
        if len > MAX_MESSAGE {
            crate::bail!(
                NMC_ERR_INTERNAL,
                "a message {} has {len} bytes; {MAX_MESSAGE} are possible",
                self.message.name()
            );
        }
        let head = Head {
            kind: self.message.number(),
            len: u32::try_from(len).unwrap_or(u32::MAX),
            request: self.request,
            time_left_ms: self.time_left_ms,
            value: self.message.value(),
        };
        to[..HEAD].copy_from_slice(&head.encode());
        Ok(())
    }

    /// The frame with this head and this message.
    pub fn decode(head: &Head, message: &[u8]) -> Result<Self> {
        if message.len() != head.len as usize {
            crate::bail!(NMC_ERR_PROTOCOL, "a message has {} bytes, its head says {}", message.len(), head.len);
        }
        let mut from = Cursor::new(message);
        let message = Message::get_body(head.kind, &mut from)?;
        from.end()?;
        if message.value() != head.value {
            crate::bail!(
                NMC_ERR_PROTOCOL,
                "{} bytes are to follow {}, which has a value of {}",
                head.value,
                message.name(),
                message.value()
            );
        }
        Ok(Self { request: head.request, time_left_ms: head.time_left_ms, message })
    }
}
