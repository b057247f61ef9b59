//! What the GPU does with the words of a world.
#![allow(unsafe_code, reason = "the driver is given addresses")]

use super::world::World;
use crate::base::error::Result;
use crate::cuda::{self, GivenStream};

impl World {
    /// Stores a word when the work before it in `stream` is done.
    pub fn write_word_async(&self, rank: u32, index: u32, value: u64, stream: GivenStream) -> Result<()> {
        let (_, address) = self.word(rank, index)?;
        let device = self.device()?;
        // SAFETY: a word of the slab that the world has registered. That the stream is one, and gets there before the world is destroyed, says
        // the C contract.
        unsafe { cuda::stream_write_value64(device, stream.raw(), address, value) }
    }
}
