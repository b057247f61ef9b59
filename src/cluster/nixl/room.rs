//! Memory of the library for values whose callers have not registered theirs: they are copied from it or to it.
#![allow(unsafe_code, reason = "its bytes are given away by address")]

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::net::Span;
use std::collections::BTreeMap;

/// Pieces begin at multiples of this.
const ALIGN: usize = 4096;

/// See the module.
pub struct Room {
    bytes: Vec<u8>,
    /// Pieces that are given away: where each ends, by where it begins.
    used: BTreeMap<usize, usize>,
}

impl Room {
    /// So many bytes, which take no memory until they are used.
    pub fn new(bytes: usize) -> Result<Self> {
        Ok(Self { bytes: memory::zeroed(bytes)?, used: BTreeMap::new() })
    }

    /// All of it.
    #[must_use]
    pub fn span(&self) -> Span {
        // SAFETY: the room stays as long as the mover that uses it, and a piece belongs to one transfer until it is given back.
        unsafe { Span::new(self.bytes.as_ptr() as usize, self.bytes.len()) }
    }

    /// So many bytes of it, and where in it they begin; nothing if there is no such piece.
    pub fn take(&mut self, bytes: usize) -> Option<(usize, Span)> {
        let wanted = bytes.checked_next_multiple_of(ALIGN)?.max(ALIGN);
        let mut at = 0;
        for (first, end) in &self.used {
            if first - at >= wanted {
                break;
            }
            at = *end;
        }
        if self.bytes.len() - at < wanted {
            return None;
        }
        self.used.insert(at, at + wanted);
        Some((at, self.span().behind(at).up_to(bytes)))
    }

    /// A piece is not used any more, and nobody writes to it.
    pub fn give_back(&mut self, first: usize) {
        self.used.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        let mut room = Room::new(4 * ALIGN).unwrap();
        let (first, a) = room.take(1).unwrap();
        let (second, b) = room.take(ALIGN + 1).unwrap();
        assert_eq!((first, second, a.len(), b.len()), (0, ALIGN, 1, ALIGN + 1));
        assert!(room.take(ALIGN + 1).is_none() && room.take(usize::MAX).is_none());
        room.give_back(first);
        assert_eq!(room.take(ALIGN).map(|(first, _)| first), Some(0));
        room.give_back(second);
        assert_eq!(room.take(3 * ALIGN).map(|(first, _)| first), Some(ALIGN));
        assert!(room.take(1).is_none());
    }
}
