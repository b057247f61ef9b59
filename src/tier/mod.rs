//! The SSD tier of a store: what memory evicts, disk keeps. The process of the store's master owns a directory and writes to
//! it ahead of eviction; every process reads it by itself. After any crash the disk tells the truth.

mod config;
pub mod format;
pub mod io;

pub use config::{Config, OnDamage, Scanned, Stats, Torn, Verified};

use crate::base::error::Result;
use crate::store::Store;

/// The tier of a store: its owner in the process of the store's master, elsewhere a handle to it.
pub struct Tier {
    store: Store,
}

/// Lets clients of stores read tiers. To be called before the first one comes; calling it again does nothing.
pub fn install() {}

impl Tier {
    /// In the process of the store's master: opens the directory, recovers what is there, and writes to it from then on.
    /// Elsewhere: a handle to the tier that the store has; `config` is not looked at.
    pub fn open(store: &Store, config: &Config, progress: &mut dyn FnMut(u64, u64)) -> Result<Self> {
        let _ = (config, progress);
        Ok(Self { store: store.share() })
    }

    /// Whether this process owns it.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.store.client().params().world_size == 0
    }

    /// Everything that was removed or written so far is safe from a power loss when this returns.
    pub fn sync(&self) -> Result<()> {
        crate::bail!(NMC_ERR_UNSUPPORTED, "not yet")
    }

    /// Writes values to disk now: those of these keys, or all that are in memory. Gives how many were written; those that are on
    /// disk already, or are not there, are not counted. In the owner's process only.
    pub fn offload(&self, keys: Option<&[&[u8]]>) -> Result<u64> {
        let _ = keys;
        crate::bail!(NMC_ERR_UNSUPPORTED, "not yet")
    }

    /// Ends or begins offloading. What is being written is written.
    pub fn pause(&self, paused: bool) -> Result<()> {
        let _ = paused;
        crate::bail!(NMC_ERR_UNSUPPORTED, "not yet")
    }

    /// Numbers.
    pub fn stats(&self) -> Result<Stats> {
        crate::bail!(NMC_ERR_UNSUPPORTED, "not yet")
    }

    /// Reads every value on disk and compares its checksums; those that are wrong end. `progress` is told how many of how many
    /// were read, and ends it by false. In the owner's process only.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Verified> {
        let _ = progress;
        crate::bail!(NMC_ERR_UNSUPPORTED, "not yet")
    }

    /// Every value on disk, of all namespaces, in no order that means anything; `each` ends it by false. What comes and goes
    /// meanwhile may be in it or not. In the owner's process only.
    pub fn scan(&self, each: &mut dyn FnMut(&Scanned<'_>) -> bool) -> Result<()> {
        let _ = each;
        crate::bail!(NMC_ERR_UNSUPPORTED, "not yet")
    }
}
