//! Maps by numbers that this process gives out itself: nobody else chooses them, so that a multiplication is enough of a hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// An odd number whose bits are even-handed.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the module.
#[derive(Debug, Default, Clone)]
pub struct Numbers(u64);

impl Hasher for Numbers {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(MIX);
    }
}

/// A map by such numbers.
pub type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<Numbers>>;
