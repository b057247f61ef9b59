//! Names for blocks of tokens: the hash of a block covers its tokens and the hash of the block before it, so equal hashes
//! mean equal prefixes, and a cache finds the longest known prefix of a prompt by walking the chain.
//! The same key, algorithm and input give the same hash in every process and version. Pure; any thread may use a [`Chain`].
//!
//! What is hashed, integers little-endian, so that no two different inputs are the same bytes:
//! ```text
//! root   1 | u64 parts | for each part: u64 length, bytes      (3 instead of 1 for XXH3, whose roots are BLAKE3)
//! block  2 | parent 16 | u64 tokens | u64 0 | u32 tokens...
//! ```

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3;

const ROOT: u8 = 1;
const BLOCK: u8 = 2;
/// A root that BLAKE3 makes for a chain of XXH3: another than that of a chain of BLAKE3.
const ROOT_FOR_XXH3: u8 = 3;
/// Bytes of a block's message before its tokens.
const HEAD: usize = 1 + 16 + 8 + 8;
/// Messages up to this size, which is 39 tokens, are put together on the stack and hashed in one call.
const SHORT: usize = 192;
/// Tokens that are turned into bytes at a time in longer ones.
const STEP: usize = 64;
/// Separates keys made here from everything else that is derived from the same secret.
const KEY_CONTEXT: &str = "nanomc 2026 kv block hash key";
/// Fills the first block of SHA-256 behind the key, so that its state can be kept. 32 bytes.
const SHA256_LABEL: &[u8; 32] = b"nanomc kv block hash, SHA-256/16";

/// Name of a token block and of all blocks before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BlockHash(pub [u8; 16]);

impl BlockHash {
    /// Its first 8 bytes as a number, for tables and logs.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl core::fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How blocks are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algo {
    /// BLAKE3 with a key. Nobody without the key can find two prefixes with one hash, or tell what a hash stands for.
    Blake3,
    /// SHA-256 of key and message, the first 16 of its 32 bytes: the half that is cut off is what extending it would need.
    Sha256,
    /// XXH3 with 128 bits and a seed. The fastest, but whoever chooses the tokens can make two prefixes collide: a cache
    /// that uses it has to compare the tokens as well.
    Xxh3,
}

impl Algo {
    /// Whether equal hashes are as good as equal tokens.
    #[must_use]
    pub const fn collision_resistant(self) -> bool {
        !matches!(self, Self::Xxh3)
    }
}

/// What keeps the hashes of one tenant apart from those of another.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a secret of any length. Who does not know the secret can neither predict nor provoke a hash.
    #[must_use]
    pub fn from_secret(secret: &[u8]) -> Self {
        Self(blake3::derive_key(KEY_CONTEXT, secret))
    }
}

impl Default for Key {
    /// The key of the empty secret: the same everywhere, so that processes agree without being told. It keeps no one out.
    fn default() -> Self {
        Self::from_secret(&[])
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// An algorithm ready to hash with a key.
#[derive(Clone)]
pub struct Chain {
    algo: Algo,
    key: Key,
    /// Has swallowed the key and the label.
    sha256: Sha256,
    /// First 8 bytes of the key.
    seed: u64,
}

impl core::fmt::Debug for Chain {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Chain").field("algo", &self.algo).finish_non_exhaustive()
    }
}

impl Chain {
    /// Hashes with `algo` and `key`.
    #[must_use]
    pub fn new(algo: Algo, key: &Key) -> Self {
        let sha256 = Sha256::new().chain_update(key.0).chain_update(SHA256_LABEL);
        let mut seed = [0; 8];
        seed.copy_from_slice(&key.0[..8]);
        Self { algo, key: key.clone(), sha256, seed: u64::from_le_bytes(seed) }
    }

    /// The algorithm.
    #[must_use]
    pub const fn algo(&self) -> Algo {
        self.algo
    }

    /// Whether equal hashes may stand for different tokens, so that these have to be compared.
    #[must_use]
    pub const fn needs_comparison(&self) -> bool {
        !self.algo.collision_resistant()
    }

    /// The parent of first blocks. The parts are what else decides the contents of the cache: a salt, the id of a LoRA
    /// adapter, the name of the model. Their number and lengths count: `["ab"]`, `["a", "b"]` and `["ab", ""]` differ.
    #[must_use]
    pub fn root(&self, parts: &[&[u8]]) -> BlockHash {
        // A root stands for the salt where tokens are compared, so it must not collide in any case.
        let (mut hasher, tag) = match self.algo {
            Algo::Xxh3 => (Streaming::Blake3(blake3::Hasher::new_keyed(&self.key.0)), ROOT_FOR_XXH3),
            Algo::Blake3 | Algo::Sha256 => (Streaming::new(self), ROOT),
        };
        hasher.update(&[tag]);
        hasher.update(&(parts.len() as u64).to_le_bytes());
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finish()
    }

    /// The block of `tokens` after `parent`.
    #[must_use]
    pub fn next(&self, parent: BlockHash, tokens: &[u32]) -> BlockHash {
        let mut head = [0; HEAD];
        head[0] = BLOCK;
        head[1..17].copy_from_slice(&parent.0);
        head[17..25].copy_from_slice(&(tokens.len() as u64).to_le_bytes());
        // A slice has at most 2^63 bytes, so that and a little does not wrap.
        let bytes = HEAD + tokens.len() * 4;
        if bytes <= SHORT {
            let mut message = [0; SHORT];
            message[..HEAD].copy_from_slice(&head);
            put(tokens, &mut message[HEAD..bytes]);
            return self.whole(&message[..bytes]);
        }
        let mut hasher = Streaming::new(self);
        hasher.update(&head);
        let mut buffer = [0; STEP * 4];
        for step in tokens.chunks(STEP) {
            let part = &mut buffer[..step.len() * 4];
            put(step, part);
            hasher.update(part);
        }
        hasher.finish()
    }

    /// The hashes of the full blocks of `tokens`, in order. Tokens left over at the end belong to none.
    pub fn blocks<'a>(
        &'a self,
        root: BlockHash,
        tokens: &'a [u32],
        tokens_per_block: core::num::NonZeroU32,
    ) -> impl ExactSizeIterator<Item = BlockHash> + 'a {
        let mut parent = root;
        tokens.chunks_exact(tokens_per_block.get() as usize).map(move |block| {
            parent = self.next(parent, block);
            parent
        })
    }

    fn whole(&self, message: &[u8]) -> BlockHash {
        match self.algo {
            Algo::Blake3 => cut(blake3::keyed_hash(&self.key.0, message).as_bytes()),
            Algo::Sha256 => cut(&self.sha256.clone().chain_update(message).finalize().into()),
            Algo::Xxh3 => BlockHash(xxh3::xxh3_128_with_seed(message, self.seed).to_le_bytes()),
        }
    }
}

fn put(tokens: &[u32], to: &mut [u8]) {
    for (token, bytes) in tokens.iter().zip(to.chunks_exact_mut(4)) {
        bytes.copy_from_slice(&token.to_le_bytes());
    }
}

fn cut(hash: &[u8; 32]) -> BlockHash {
    let mut first = [0; 16];
    first.copy_from_slice(&hash[..16]);
    BlockHash(first)
}

/// The same hashes for messages that come in parts.
#[allow(clippy::large_enum_variant, reason = "it lives on the stack for one hash")]
enum Streaming {
    Blake3(blake3::Hasher),
    Sha256(Sha256),
    Xxh3(xxh3::Xxh3),
}

impl Streaming {
    fn new(chain: &Chain) -> Self {
        match chain.algo {
            Algo::Blake3 => Self::Blake3(blake3::Hasher::new_keyed(&chain.key.0)),
            Algo::Sha256 => Self::Sha256(chain.sha256.clone()),
            Algo::Xxh3 => Self::Xxh3(xxh3::Xxh3::with_seed(chain.seed)),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Xxh3(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> BlockHash {
        match self {
            Self::Blake3(hasher) => cut(hasher.finalize().as_bytes()),
            Self::Sha256(hasher) => cut(&hasher.finalize().into()),
            Self::Xxh3(hasher) => BlockHash(hasher.digest128().to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use std::collections::HashSet;
    use std::num::NonZeroU32;

    const ALGOS: [Algo; 3] = [Algo::Blake3, Algo::Sha256, Algo::Xxh3];

    fn chains() -> [Chain; 3] {
        ALGOS.map(|algo| Chain::new(algo, &Key::default()))
    }

    /// Tokens that look like tokens: below a vocabulary of 128,256.
    fn tokens(count: usize, seed: u64) -> Vec<u32> {
        let mut random = Random(seed);
        (0..count).map(|_| random.below(128_256)).collect()
    }

    /// Computed with other implementations (Python's hashlib, blake3 1.0.11, xxhash 4.1.0) from the description above.
    #[test]
    fn hashes_are_what_other_implementations_make_of_the_description() {
        let secret = b"tenant 7";
        let small: Vec<u32> = (0..16).collect();
        let large: Vec<u32> = (0..300).map(|n| n * 1000).collect();
        for (algo, answers) in KNOWN {
            let open = Chain::new(algo, &Key::default());
            let closed = Chain::new(algo, &Key::from_secret(secret));
            let root = open.root(&[b"salt", b"lora-3"]);
            let first = open.next(root, &small);
            let found = [
                open.root(&[]),
                root,
                first,
                open.next(first, &large),
                closed.next(closed.root(&[b"salt", b"lora-3"]), &small),
            ];
            assert_eq!(found.map(|h| format!("{h:?}")), answers, "{algo:?}");
        }
    }

    const KNOWN: [(Algo, [&str; 5]); 3] = [
        (
            Algo::Blake3,
            [
                "279d38fe68c8082e72b88e96325cfece",
                "6c59e51aa10a9dcad0f918c97a50be37",
                "cc2ac4fba1a328e2c4578aef176ff407",
                "ac38dea66324f60aeb8c8fc7547d65f5",
                "bc32cf0823bcb77c7553aefc60266e7c",
            ],
        ),
        (
            Algo::Sha256,
            [
                "b3490495e32bb0ad7c8a3d39f5ab3d72",
                "39890800be74ae0923c8e980bb16c86f",
                "4eb67d98d3010a72aa1f16ba6423e846",
                "197e6363ae6802ff2b391ba586e379c6",
                "3d0fbbdc05180280574f3ab564e1acd7",
            ],
        ),
        (
            Algo::Xxh3,
            [
                "9a7a4f1423cd8dd0f74bd112b5e531e8",
                "b15e98648e382ab970b5ca32489b6497",
                "ccf8546865a6534e4c73b527e3dc0b42",
                "b325159097966846e1c2f97da9b5fd0d",
                "f762b77f91a75da54e237bb4e2eee36d",
            ],
        ),
    ];

    #[test]
    fn long_and_short_messages_are_hashed_alike() {
        for chain in chains() {
            let root = chain.root(&[]);
            for count in 0..120 {
                let tokens = tokens(count, 3);
                let mut message = vec![BLOCK];
                message.extend(root.0);
                message.extend((count as u64).to_le_bytes());
                message.extend([0; 8]);
                message.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
                assert_eq!(chain.next(root, &tokens), chain.whole(&message), "{chain:?} {count}");
            }
        }
    }

    #[test]
    fn the_order_of_tokens_and_of_blocks_counts() {
        for chain in chains() {
            let root = chain.root(&[]);
            let forward = tokens(16, 1);
            let backward: Vec<u32> = forward.iter().rev().copied().collect();
            let (f, b) = (chain.next(root, &forward), chain.next(root, &backward));
            assert_ne!(f, b);
            assert_ne!(chain.next(f, &backward), chain.next(b, &forward));
            assert_ne!(chain.next(root, &[0, 0]), chain.next(root, &[0]));
            let pair = [forward.as_slice(), &backward].concat();
            assert_ne!(chain.next(root, &pair), chain.next(f, &backward), "two blocks are not one of twice the size");
        }
    }

    #[test]
    fn salts_keys_and_algorithms_keep_hashes_apart() {
        let mut seen = HashSet::new();
        let salts: [&[&[u8]]; 9] =
            [&[], &[b""], &[b"", b""], &[b"ab"], &[b"a", b"b"], &[b"ab", b""], &[b"", b"ab"], &[b"b", b"a"], &[b"ba"]];
        let block = tokens(16, 5);
        let mut count = 0;
        for secret in [&b""[..], b"\0", b"one", b"two"] {
            for algo in ALGOS {
                let chain = Chain::new(algo, &Key::from_secret(secret));
                for salt in salts {
                    let root = chain.root(salt);
                    for hash in [root, chain.next(root, &block), chain.next(root, &[])] {
                        assert!(seen.insert(hash), "{secret:?} {algo:?} {salt:?}");
                        count += 1;
                    }
                }
            }
        }
        assert_eq!(seen.len(), count);
        assert_eq!(Key::default(), Key::from_secret(b""));
    }

    #[test]
    fn a_root_cannot_pass_as_a_block() {
        for chain in chains() {
            let root = chain.root(&[]);
            let as_block = [&root.0[..], &[0; 16]].concat();
            assert_ne!(chain.root(&[&as_block]), chain.next(root, &[]));
        }
    }

    #[test]
    fn equal_prefixes_have_equal_hashes_up_to_the_first_difference() {
        let size = NonZeroU32::new(16).unwrap();
        for chain in chains() {
            let root = chain.root(&[b"model"]);
            let one = tokens(16 * 40 + 9, 11);
            for changed in [0, 15, 16, 333, 16 * 40 - 1] {
                let mut other = one.clone();
                other[changed] ^= 1;
                let a: Vec<BlockHash> = chain.blocks(root, &one, size).collect();
                let b: Vec<BlockHash> = chain.blocks(root, &other, size).collect();
                assert_eq!((a.len(), b.len()), (40, 40), "the 9 tokens at the end are no block");
                let same = changed / 16;
                assert_eq!(a[..same], b[..same]);
                assert!(a[same..].iter().zip(&b[same..]).all(|(a, b)| a != b), "{chain:?} {changed}");
            }
            let longer = [one.as_slice(), &tokens(100, 12)].concat();
            let of_longer: Vec<BlockHash> = chain.blocks(root, &longer, size).collect();
            assert!(chain.blocks(root, &one, size).zip(&of_longer).all(|(a, b)| a == *b));
        }
    }

    /// `cargo test --release kv::hash -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn how_long_a_block_takes() {
        for chain in chains() {
            for per_block in [16, 32, 64, 256] {
                let tokens = tokens(per_block, 1);
                let rounds = 200_000;
                let mut best = f64::MAX;
                let mut hash = chain.root(&[]);
                for _ in 0..5 {
                    let begin = std::time::Instant::now();
                    for _ in 0..rounds {
                        hash = chain.next(std::hint::black_box(hash), std::hint::black_box(&tokens));
                    }
                    best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(rounds));
                }
                println!("{:?}: {per_block} tokens {best:.1} ns ({hash:?})", chain.algo());
            }
        }
    }
}
