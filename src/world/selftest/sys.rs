//! Words of host heaps, written and read by this process.
#![allow(unsafe_code, reason = "heaps are memory by address")]
#![allow(clippy::cast_possible_truncation, reason = "numbers of words in mapped memory fit")]

use super::World;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_PEER_LOST, NMC_ERR_UNSUPPORTED};
use crate::mem::{Heap, HeapKind};
use std::sync::Arc;

/// Words of a rank's host heap.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// Whose.
    pub rank: u32,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Their address, and the heap that they are in, which is mapped as long as it is kept. Fails if they are not in the heap, or are no
/// words, or if the heap is not host memory.
fn open(world: &World, Words { rank, offset, bytes }: Words) -> Result<(Arc<Heap>, *mut u64)> {
    world.shared().check_rank(rank)?;
    let heap = {
        let peers = world.shared().peers.lock();
        peers.get(rank as usize).and_then(Option::as_ref).and_then(|peer| peer.heap.clone())
    };
    let Some(heap) = heap else {
        return Err(Error::new(NMC_ERR_PEER_LOST, format!("rank {rank} has no heap at the moment")));
    };
    let wrong = |status, what: &str| {
        let text = format!("self-test: {bytes} bytes at offset {offset} in the heap of rank {rank}: {what}");
        Err(Error::new(status, text))
    };
    if heap.kind() != HeapKind::Host {
        return wrong(NMC_ERR_UNSUPPORTED, "the heap is memory of a CUDA device, which this process cannot touch");
    }
    if offset.checked_add(bytes).is_none_or(|end| end > heap.bytes()) {
        return wrong(NMC_ERR_INVALID_ARG, "they reach past its end");
    }
    let address = heap.base() + offset;
    if !address.is_multiple_of(8) || !bytes.is_multiple_of(8) {
        return wrong(NMC_ERR_INVALID_ARG, "they are not whole words at an address that is a multiple of 8");
    }
    Ok((heap, address as *mut u64))
}

/// Fills them. Fails where [`open`] does.
pub(super) fn fill_words(world: &World, words: Words, word: impl Fn(u64) -> u64) -> Result<()> {
    let (_mapped, at) = open(world, words)?;
    for i in 0..words.bytes / 8 {
        // SAFETY: a word in host memory that is mapped for the call. Others may look at it meanwhile, so the store is volatile.
        unsafe { at.add(i as usize).write_volatile(word(i)) };
    }
    Ok(())
}

/// Index of the first that is not what it should be. Fails where [`open`] does.
pub(super) fn first_bad_word(world: &World, words: Words, word: impl Fn(u64) -> u64) -> Result<Option<u64>> {
    let (_mapped, at) = open(world, words)?;
    // SAFETY: as in `fill_words`.
    Ok((0..words.bytes / 8).find(|i| unsafe { at.add(*i as usize).read_volatile() } != word(*i)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::{Deadline, id};
    use crate::mem::heap::{HeapDesc, Route};
    use crate::world::config::{Config, DEFAULT_DRAIN_MS, DEFAULT_WORDS, Hosting};
    use std::time::Duration;

    const BYTES: u64 = 4096;

    fn world() -> World {
        let config = Config {
            name: "words".into(),
            dir: None,
            rank: None,
            world_size: 1,
            min_ranks: 0,
            heap_kind: HeapKind::Host,
            heap_bytes: BYTES,
            huge_pages: false,
            populate: false,
            import: None,
            device: None,
            device_rank: None,
            words_per_rank: DEFAULT_WORDS,
            hosting: Hosting::Rank0,
            deadline: Deadline::after(Duration::from_secs(60)),
            drain_ms: DEFAULT_DRAIN_MS,
            service_cpu: None,
            give_up: Arc::default(),
        };
        World::local(&config).unwrap().remove(0)
    }

    /// What both functions say, which is the same.
    fn refusal(world: &World, rank: u32, offset: u64, bytes: u64) -> Option<(i32, String)> {
        let words = Words { rank, offset, bytes };
        let filled = fill_words(world, words, |i| i).err();
        assert_eq!(filled, first_bad_word(world, words, |i| i).err());
        filled.map(|error| (error.status, error.message))
    }

    #[test]
    fn words_are_written_and_read_where_they_are_whole_and_in_the_heap() {
        let world = world();
        for (offset, bytes) in [(0, BYTES), (8, BYTES - 8), (BYTES - 8, 8), (BYTES, 0)] {
            assert_eq!(refusal(&world, 0, offset, bytes), None, "{bytes} at {offset}");
        }
        let words = Words { rank: 0, offset: 16, bytes: 32 };
        fill_words(&world, words, |i| i + 7).unwrap();
        assert_eq!(first_bad_word(&world, words, |i| i + 7).unwrap(), None);
        assert_eq!(first_bad_word(&world, words, |i| if i == 3 { 0 } else { i + 7 }).unwrap(), Some(3));
    }

    #[test]
    fn what_is_no_word_or_not_in_the_heap_is_refused() {
        let world = world();
        let cases = [
            (0, 1, 8, "a multiple of 8"),
            (0, 4, 8, "a multiple of 8"),
            (0, 8, 12, "a multiple of 8"),
            (0, BYTES, 8, "past its end"),
            (0, BYTES - 8, 16, "past its end"),
            (0, u64::MAX - 7, 16, "past its end"),
            (1, 0, 8, "world size"),
        ];
        for (rank, offset, bytes, why) in cases {
            let (status, message) = refusal(&world, rank, offset, bytes).unwrap();
            assert_eq!(status, NMC_ERR_INVALID_ARG, "{message}");
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn a_heap_on_a_device_is_refused() {
        let world = world();
        let desc = HeapDesc {
            route: Route::Ipc,
            bytes: BYTES,
            allocation_bytes: BYTES,
            offset: 0,
            address: BYTES,
            device_address: BYTES,
            process: id::of_process().unwrap(),
            id: 1,
            lent: true,
            ipc: [0; 64],
        };
        // SAFETY: nobody reads or writes there: that is what the test is about.
        let heap = unsafe { Heap::open(&desc, None, None) }.unwrap();
        world.shared().peers.lock()[0].as_mut().unwrap().heap = Some(Arc::new(heap));
        let (status, message) = refusal(&world, 0, 0, 8).unwrap();
        assert!(status == NMC_ERR_UNSUPPORTED && message.contains("CUDA"), "{status}: {message}");
    }

    #[test]
    fn a_rank_without_a_heap_is_refused() {
        let world = world();
        world.shared().peers.lock()[0].as_mut().unwrap().heap = None;
        assert_eq!(refusal(&world, 0, 0, 8).unwrap().0, NMC_ERR_PEER_LOST);
    }
}
