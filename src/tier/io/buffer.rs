//! Memory that direct I/O accepts.

use super::BLOCK;
use crate::base::error::Result;
use crate::base::memory;
use std::ops::{Deref, DerefMut};

/// Long buffers are kept in huge pages, if the system has some: a request has a limited number of pieces of memory, and each small page
/// may be one.
const HUGE: usize = 2 << 20;

/// Memory that starts at a multiple of [`BLOCK`]. Zero at first.
pub struct Buffer {
    /// More than asked for: there is such a multiple in it wherever it lies.
    memory: Vec<u8>,
    first: usize,
    bytes: usize,
}

impl Buffer {
    /// A buffer of `bytes` zeros, or `NMC_ERR_NO_MEMORY`.
    pub fn new(bytes: usize) -> Result<Self> {
        let align = if bytes < HUGE { BLOCK } else { HUGE };
        let memory = memory::zeroed::<u8>(bytes.saturating_add(align))?;
        let first = (memory.as_ptr() as usize).next_multiple_of(align) - memory.as_ptr() as usize;
        let buffer = Self { memory, first, bytes };
        if align == HUGE {
            super::sys::huge_pages(&buffer);
        }
        Ok(buffer)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.first..self.first + self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.first..self.first + self.bytes]
    }
}

/// A buffer that rings may know for good, so that the kernel need not look its pages up for every request. Whoever registers it keeps
/// it: its address never is another's meanwhile.
pub struct FixedBuffer {
    _memory: Buffer,
    address: u64,
    bytes: usize,
}

impl FixedBuffer {
    /// As [`Buffer::new`].
    pub fn new(bytes: usize) -> Result<Self> {
        let mut memory = Buffer::new(bytes)?;
        let address = memory.as_mut_ptr() as u64;
        super::sys::plain_pages(&memory);
        Ok(Self { _memory: memory, address, bytes })
    }

    /// First byte; others may use it as they agree.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether these bytes are in it.
    #[must_use]
    pub fn has(&self, address: u64, bytes: u64) -> bool {
        address >= self.address && address.saturating_add(bytes) <= self.address + self.bytes as u64
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::status::NMC_ERR_NO_MEMORY;

    #[test]
    fn buffers_are_aligned_zero_and_may_be_refused() {
        for bytes in [0, 1, BLOCK, 3 * BLOCK + 5, 1 << 20] {
            let mut buffer = Buffer::new(bytes).unwrap();
            assert_eq!((buffer.as_ptr() as usize % BLOCK, buffer.len()), (0, bytes));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
        }
        assert_eq!(Buffer::new(usize::MAX).err().unwrap().status, NMC_ERR_NO_MEMORY);
    }

    /// What the kernel was told about the pages at an address, two letters for each thing.
    fn told(address: u64) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            if let Some((from, to)) = first.split_once('-').filter(|_| !first.ends_with(':')) {
                let number = |text| u64::from_str_radix(text, 16).unwrap();
                inside = (number(from)..number(to)).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.split_whitespace().map(Into::into).collect();
            }
        }
        panic!("nothing is at {address:#x}");
    }

    #[test]
    fn what_rings_know_for_good_is_in_pages_of_the_usual_size() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("SKIPPED: the kernel has no huge pages that it could be told to leave out");
            return;
        }
        let fixed = FixedBuffer::new(4 << 20).unwrap();
        let bytes = fixed.bytes() as u64;
        for address in [fixed.address(), fixed.address() + bytes / 2, fixed.address() + bytes - BLOCK as u64] {
            let flags = told(address);
            assert!(flags.iter().any(|flag| flag == "nh"), "{flags:?}");
        }
        // Control: other memory of that size is wanted in huge pages.
        let other = Buffer::new(4 << 20).unwrap();
        let flags = told(other.as_ptr() as u64 + (2 << 20));
        assert!(flags.iter().any(|flag| flag == "hg") && !flags.iter().any(|flag| flag == "nh"), "{flags:?}");
    }
}
