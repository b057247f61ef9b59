//! Hashes of keys: one that everybody can compute, which chooses the rank, and one that nobody outside of the store can,
//! which chooses the bucket of the index. Keys often come from far away, made from what strangers typed: whoever can make
//! many keys of one bucket makes every look long. See `docs/decisions/024-hashes-with-a-secret.md`.

use xxhash_rust::xxh3::xxh3_64_with_secret;
use xxhash_rust::xxh64::xxh64;

/// Bytes of the secret: as many as XXH3 has a use for.
const SECRET: usize = 192;

/// Which rank holds a key by default, modulo their number. The same in every store, and for ever.
#[must_use]
pub fn route_of(key: &[u8], namespace: u32) -> u64 {
    xxh64(key, u64::from(namespace))
}

/// Where the keys of one store are in its index.
pub struct KeyHash {
    secret: [u8; SECRET],
}

impl KeyHash {
    /// The hash of the store with this seed. Whoever has the seed computes the same.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        let mut secret = [0; SECRET];
        let mut stretch = blake3::Hasher::new_derive_key("nanomc 2026 index of a store");
        for word in seed {
            stretch.update(&word.to_le_bytes());
        }
        stretch.finalize_xof().fill(&mut secret);
        Self { secret }
    }

    /// Hash of a key in a namespace.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, key: &[u8], namespace: u32) -> u64 {
        // A key that several namespaces have is to have several places.
        xxh3_64_with_secret(key, &self.secret) ^ u64::from(namespace).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
