//! The tier of a store whose master is a process of its own (`nmc master --ssd`): it opens when there is a store and closes when
//! that is over, so that the next one finds everything again.

use super::config::Config;
use super::io::{Options, RealDisk};
use super::owner::Running;
use super::reader::install;
use crate::base::error::Result;
use crate::store::completions::Announcer;
use crate::store::disk::HeldMemory as _;
use crate::store::{MasterSlot, Masters};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it waits for heaps of ranks that have not reported to this master yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module. Dropping it closes the tier: before the masters end.
pub struct Hosted {
    slot: Arc<MasterSlot>,
    config: Config,
    running: Option<Running>,
    /// The store that it was open for last, and that is over.
    ended: u64,
    /// Since when heaps are missing.
    incomplete: Option<Instant>,
}

impl Hosted {
    /// For the store of these masters, which wait for it ([`Masters::open_with_tier`]). Fails at once if the directory cannot be had.
    pub fn new(masters: &Masters, config: Config) -> Result<Self> {
        install();
        if config.promote_after > 0 {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "a master that is no rank cannot bring values back into memory; ranks do, by nmc_tier_prefetch"
            );
        }
        RealDisk::open(&config.directory, true, Options::default())?.lock().map(drop)?;
        Ok(Self { slot: Arc::clone(masters.slot()), config, running: None, ended: 0, incomplete: None })
    }

    /// Opens the tier if there is a store that has none, or closes it if the store is over. To be called again and again. Gives
    /// whether it was opened now.
    pub fn look(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<bool> {
        if let Some(ended) = self.slot.ended_store() {
            // What is left of this store must not be taken for the next one.
            self.ended = ended;
            self.running = None;
        }
        if self.running.is_some() {
            return Ok(false);
        }
        let Some(memory) = self.slot.memory().filter(|memory| memory.store_id() != self.ended) else {
            return Ok(false);
        };
        if memory.is_complete() {
            self.incomplete = None;
        } else if self.incomplete.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(false);
        }
        let (slot, store_id) = (Arc::clone(&self.slot), memory.store_id());
        match Running::open(Box::new(memory), Announcer::to_nobody(), slot, &self.config, progress) {
            Ok(running) => {
                self.running = Some(running);
                Ok(true)
            }
            // It ended while its tier was being opened.
            Err(_) if self.slot.store_id() != store_id => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The process ends: what is on disk stays readable for the ranks, as if it had been killed.
    pub fn end(mut self) {
        if let Some(running) = &mut self.running {
            running.leave_readable();
        }
    }

    /// Values that the tier has by now.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.running.as_ref().and_then(|running| running.owner().stats().ok()).map_or(0, |stats| stats.objects)
    }
}
