//! What the blocks of a prompt are called, and how much of it the cache has.

use super::Cache;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::hash::BlockHash;
use crate::kv::pool::Prefix;

impl Cache {
    /// The hashes of the full blocks of a prompt with this salt.
    pub fn hashes_of(&self, tokens: &[u32], salt: &[u8]) -> Result<Vec<BlockHash>> {
        self.hashes(self.supply.config.chain.root(&[salt]), tokens)
    }

    /// The hashes of the full blocks of a prompt.
    pub(super) fn hashes(&self, root: BlockHash, tokens: &[u32]) -> Result<Vec<BlockHash>> {
        let mut hashes = Vec::new();
        self.hash_into(root, tokens, &mut hashes)?;
        Ok(hashes)
    }

    fn hash_into(&self, root: BlockHash, tokens: &[u32], to: &mut Vec<BlockHash>) -> Result<()> {
        let mut last = root;
        let full = tokens.chunks_exact(self.per_block() as usize);
        memory::reserve(to, full.len())?;
        to.extend(full.map(|block| {
            last = self.supply.config.chain.next(last, block);
            last
        }));
        Ok(())
    }

    /// Whether the salt matters beside the hashes: if tokens are known, more hashes may be made of them.
    pub(super) fn needs_root(&self, tokens: Option<&[u32]>) -> bool {
        tokens.is_some() || self.supply.config.chain.needs_comparison()
    }

    /// How many leading tokens of a prompt the cache has; holds nothing.
    pub fn matching(&self, tokens: Option<&[u32]>, hashes: Option<&[BlockHash]>, salt: &[u8]) -> Result<u32> {
        if !self.supply.config.prefix {
            return Ok(0);
        }
        let root = if self.needs_root(tokens) { self.supply.config.chain.root(&[salt]) } else { BlockHash::default() };
        let tokens = tokens.unwrap_or_default();
        let found = match hashes {
            Some(hashes) => self.supply.pool.lock().matching(Prefix { root, hashes, tokens })?,
            None => {
                let mut own = std::mem::take(&mut *self.asked.lock());
                own.clear();
                let found = self
                    .hash_into(root, tokens, &mut own)
                    .and_then(|()| self.supply.pool.lock().matching(Prefix { root, hashes: &own, tokens }));
                *self.asked.lock() = own;
                found?
            }
        };
        Ok(u32::try_from(found).unwrap_or(0) * self.per_block())
    }
}
