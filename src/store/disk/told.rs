//! What happened to values on disk, for programs that want to know. The owner of the disk keeps the newest of it and counts the values
//! that it has told of; every process takes it from there, from the count on that it has come to. The owner waits for nobody: what
//! was not taken in time is gone, and is counted.

use crate::base::error::Result;
use crate::base::memory;
use crate::rpc::packet::{Cursor, Field as _};
use crate::store::wire::{Item, MAX_PACKET, get_bytes, put_bytes};

/// Bytes of names and keys in one answer to another process, with what each value takes besides.
pub const ROOM: usize = MAX_PACKET / 2;
/// What each value takes besides its name and its key.
const BESIDE: usize = 16;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// Values are on disk for good.
    Stored,
    /// Values were taken from the disk, to make room.
    Evicted,
}

/// Name of the namespace of a value, its key, and its bytes.
pub type ToldValue = (Vec<u8>, Vec<u8>, u64);

/// A batch of keys to which the same happened at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub happened: Happened,
    /// The values.
    pub values: Vec<ToldValue>,
    /// Values of earlier batches that were not taken in time.
    pub lost: u64,
}

/// A batch, or a part of one, as the owner gives it to one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The batch: without values if there is nothing new.
    pub event: Event,
    /// Values that were told of until it ends, since the disk was opened.
    pub next: u64,
}

impl Told {
    /// What a value takes of an answer.
    #[must_use]
    pub fn room(name: &[u8], key: &[u8]) -> usize {
        BESIDE + name.len() + key.len()
    }

    /// The answer to another process.
    pub(in crate::store) fn item(&self) -> Result<Item> {
        let Self { event: Event { happened, values, lost }, next } = self;
        let bytes = values.iter().map(|(name, key, _)| Self::room(name, key)).sum();
        let mut text = memory::with_capacity(bytes)?;
        for (name, key, bytes) in values {
            put_bytes(name, &mut text);
            put_bytes(key, &mut text);
            bytes.put(&mut text);
        }
        let words = (values.len() as u64) << 1 | u64::from(*happened == Happened::Evicted);
        Ok(Item { text, ..Item::ok([*next, *lost, words]) })
    }

    /// The inverse.
    pub(in crate::store) fn of(mut item: Item) -> Result<Self> {
        let text = if item.status == 0 { std::mem::take(&mut item.text) } else { Vec::new() };
        let [next, lost, words] = item.result()?;
        let count = usize::try_from(words >> 1).ok().filter(|count| *count <= text.len() / BESIDE);
        let Some(count) = count else { crate::bail!(NMC_ERR_PROTOCOL, "an answer has no room for its values") };
        let mut cursor = Cursor::new(&text);
        let mut values = memory::with_capacity(count)?;
        for _ in 0..count {
            let (name, key) = (get_bytes(&mut cursor)?, get_bytes(&mut cursor)?);
            values.push((memory::copy(name)?, memory::copy(key)?, u64::get(&mut cursor)?));
        }
        cursor.end()?;
        let happened = if words & 1 == 0 { Happened::Stored } else { Happened::Evicted };
        Ok(Self { event: Event { happened, values, lost }, next })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use crate::base::status::NMC_ERR_UNAVAILABLE;

    #[test]
    fn batches_survive_the_wire_and_damaged_ones_are_refused() {
        let values = vec![(b"space".to_vec(), b"\xff\0key".to_vec(), 7), (Vec::new(), vec![1; 1024], u64::MAX)];
        for happened in [Happened::Stored, Happened::Evicted] {
            let told = Told { event: Event { happened, values: values.clone(), lost: 3 }, next: 99 };
            let item = told.item().unwrap();
            assert_eq!(item.text.len(), values.iter().map(|(name, key, _)| Told::room(name, key)).sum::<usize>());
            assert_eq!(Told::of(item.clone()).unwrap(), told);
            for cut in 0..item.text.len() {
                assert!(Told::of(Item { text: item.text[..cut].to_vec(), ..item.clone() }).is_err());
            }
            assert!(Told::of(Item { values: [0, 0, u64::MAX], ..item }).is_err());
        }
        let refused = Item::from(Err(Error::new(NMC_ERR_UNAVAILABLE, "away")));
        assert_eq!(Told::of(refused).unwrap_err(), Error::new(NMC_ERR_UNAVAILABLE, "away"));
    }
}
