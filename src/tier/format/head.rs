//! The head of a tier's directory, the file `SUPER`: one block, written once when the directory is made.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | magic `NMCSUPER`, format, CRC32C |
//! | 16..24 | id of the tier, random |
//! | 24..32 | when it was made, seconds since 1970 |
//! | 32..64 | secret of the fingerprints, random |
//! | 64..68 | number of the backend |

use super::fields::{begin, bytes_at, check_begin, check_seal, put, seal, u32_at, u64_at};
use super::{BLOCK, Fingerprint, Space, fingerprint};
use crate::base::error::Result;
use crate::base::status::NMC_ERR_VERSION;

/// Name of the head's file.
pub const SUPER_NAME: &str = "SUPER";
/// Name of the file whose lock the owner holds. Nothing is in it.
pub const LOCK_NAME: &str = "LOCK";

const MAGIC: &[u8; 8] = b"NMCSUPER";
const WHAT: &str = "the head of a tier";

/// What is said about a directory as a whole.
#[derive(Clone, PartialEq, Eq)]
pub struct Head {
    /// Random; every bucket and journal of the directory has it.
    pub tier_id: u64,
    /// Key of the fingerprints. Whoever has it can make keys that look the same.
    pub secret: [u8; 32],
    /// Which backend wrote the rest.
    pub backend: u32,
    /// When the directory was made, in seconds since 1970.
    pub created: u64,
}

impl Head {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        begin(&mut block, MAGIC);
        put(&mut block, 16, &self.tier_id.to_le_bytes());
        put(&mut block, 24, &self.created.to_le_bytes());
        put(&mut block, 32, &self.secret);
        put(&mut block, 64, &self.backend.to_le_bytes());
        seal(&mut block, BLOCK..BLOCK);
        block
    }

    /// Reads the file's bytes: exactly one block. `NMC_ERR_VERSION` for a format of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        check_begin(bytes, MAGIC, WHAT, NMC_ERR_VERSION)?;
        if bytes.len() != BLOCK {
            crate::bail!(NMC_ERR_CORRUPT, "{WHAT} has {} bytes instead of {BLOCK}", bytes.len());
        }
        check_seal(bytes, BLOCK..BLOCK, WHAT)?;
        let mut secret = [0; 32];
        put(&mut secret, 0, bytes_at(bytes, 32, 32));
        Ok(Self { tier_id: u64_at(bytes, 16), secret, backend: u32_at(bytes, 64), created: u64_at(bytes, 24) })
    }

    /// The fingerprint of a key in this tier.
    #[must_use]
    pub fn fingerprint(&self, space: Space, key: &[u8]) -> Fingerprint {
        fingerprint(&self.secret, space, key)
    }
}

impl std::fmt::Debug for Head {
    /// Without the secret, which has no business in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Head");
        text.field("tier_id", &self.tier_id).field("backend", &self.backend).field("created", &self.created);
        text.finish_non_exhaustive()
    }
}
