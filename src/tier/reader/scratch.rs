//! Memory for what cannot be read to where it belongs: headers, and blocks of which only a part is wanted or whose destination
//! is not aligned. It is kept between calls, and no call takes more than [`MOST`] slabs of it.

use crate::base::error::Result;
use crate::base::memory;
use crate::tier::io::Buffer;
use parking_lot::Mutex;

/// Bytes of a slab.
pub const SLAB: usize = 1 << 20;
/// Slabs that a call may have, and that are kept for the next one.
pub const MOST: usize = 16;

/// Slabs that nobody uses.
#[derive(Default)]
pub struct Pool(Mutex<Vec<Buffer>>);

impl Pool {
    fn take(&self) -> Result<Buffer> {
        let idle = self.0.lock().pop();
        idle.map_or_else(|| Buffer::new(SLAB), Ok)
    }

    fn give(&self, slabs: &mut Vec<Buffer>) {
        let mut idle = self.0.lock();
        let more = slabs.len().min(MOST.saturating_sub(idle.len()));
        // If there is no room to keep them, they are freed.
        if idle.try_reserve(more).is_ok() {
            idle.extend(slabs.drain(..more));
        }
    }
}

/// What one call has of it.
pub struct Scratch<'p> {
    pool: &'p Pool,
    slabs: Vec<Buffer>,
    /// Slabs of which all was given out, and bytes of the next one that were.
    full: usize,
    used: usize,
    /// Pieces that are larger than a slab.
    large: Vec<Buffer>,
}

impl<'p> Scratch<'p> {
    /// With nothing taken.
    pub fn new(pool: &'p Pool) -> Self {
        Self { pool, slabs: Vec::new(), full: 0, used: 0, large: Vec::new() }
    }

    /// Whether [`Scratch::take`] will give this many bytes, in one or several pieces: not after the last slab.
    pub fn has(&mut self, bytes: usize) -> Result<bool> {
        if bytes > SLAB {
            return Ok(true);
        }
        if self.used + bytes > SLAB {
            (self.full, self.used) = (self.full + 1, 0);
        }
        if self.full < self.slabs.len() {
            return Ok(true);
        }
        if self.full >= MOST {
            return Ok(false);
        }
        memory::reserve(&mut self.slabs, 1)?;
        match self.pool.take() {
            Ok(slab) => self.slabs.push(slab),
            Err(error) if self.slabs.is_empty() => return Err(error),
            // It has to be done with what there is.
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// The address of this many bytes, which [`Scratch::has`]. Those that follow are behind them, as long as the slab has some.
    pub fn take(&mut self, bytes: usize) -> Result<u64> {
        if bytes > SLAB {
            let mut buffer = Buffer::new(bytes)?;
            let address = buffer.as_mut_ptr() as u64;
            memory::push(&mut self.large, buffer)?;
            return Ok(address);
        }
        let slab = self.slabs.get_mut(self.full).filter(|_| self.used + bytes <= SLAB);
        let Some(slab) = slab else {
            crate::bail!(NMC_ERR_INTERNAL, "{bytes} bytes of scratch were taken that are not there");
        };
        let address = slab[self.used..].as_mut_ptr() as u64;
        self.used += bytes;
        Ok(address)
    }

    /// Everything that was taken is free again.
    pub fn clear(&mut self) {
        (self.full, self.used) = (0, 0);
        self.large.clear();
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.pool.give(&mut self.slabs);
    }
}
