//! Writing into a peer's heap against copying between private buffers: the same instructions, the same sizes, the same
//! number of buffers in the same order, all of them touched before.
#![allow(unsafe_code, reason = "copies into mapped memory by address")]

use crate::args::Failure;
use crate::sys::Mapping;
use nanomc::world::World;
use std::time::Instant;

/// Bytes of one copy.
pub const BYTES: usize = 1 << 20;
/// Buffers on each side: together more than a core's own caches hold.
pub const BUFFERS: usize = 16;

/// The buffers of both sides.
pub struct Copies {
    source: Mapping,
    private: Mapping,
    peer: *mut u8,
}

impl Copies {
    /// Takes the first `BUFFERS * BYTES` bytes of the heap of rank `peer`.
    pub fn new(world: &World, peer: u32) -> Result<Self, Failure> {
        let all = BUFFERS * BYTES;
        let map = || Mapping::private(all).map_err(|e| Failure::os("mapping buffers", &e));
        let address = world.ptr(peer, 0, all as u64)?;
        let copies = Self { source: map()?, private: map()?, peer: address as *mut u8 };
        // SAFETY: `all` bytes belong to the mapping that was just made; nobody else knows it.
        unsafe { copies.source.base().write_bytes(0x5a, all) };
        Ok(copies)
    }

    /// GB/s into the peer's heap.
    pub fn peer_rate(&self, rounds: usize) -> f64 {
        self.rate(self.peer, rounds)
    }

    /// GB/s into private buffers.
    pub fn private_rate(&self, rounds: usize) -> f64 {
        self.rate(self.private.base(), rounds)
    }

    fn rate(&self, to: *mut u8, rounds: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..rounds {
            for i in 0..BUFFERS {
                // SAFETY: both sides have BUFFERS * BYTES bytes and do not overlap; the peer's process lives, leaves
                // its heap alone, and the mapping of its heap lasts as long as the world, which outlives `self`.
                unsafe { std::ptr::copy_nonoverlapping(self.source.base().add(i * BYTES), to.add(i * BYTES), BYTES) };
            }
        }
        (rounds * BUFFERS * BYTES) as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}
