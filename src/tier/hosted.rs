//! The tier of a store whose master is a process of its own (`nmc master --ssd`): it opens when there is a store and closes when
//! that is over, so that the next one finds everything again.

use super::config::Config;
use super::owner::Running;
use crate::base::error::Result;
use crate::store::watch::Announcer;
use crate::store::{MasterSlot, Masters};
use std::sync::Arc;

/// See the module. Dropping it closes the tier: before the masters end.
pub struct Hosted {
    slot: Arc<MasterSlot>,
    config: Config,
    running: Option<Running>,
}

impl Hosted {
    /// For the store of these masters, which wait for it ([`Masters::open_with_tier`]).
    pub fn new(masters: &Masters, config: Config) -> Result<Self> {
        super::install();
        if config.promote_after > 0 {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "a master that is no rank cannot bring values back into memory; ranks do, by nmc_tier_prefetch"
            );
        }
        Ok(Self { slot: Arc::clone(masters.slot()), config, running: None })
    }

    /// Opens the tier if there is a store that has none, or closes it if the store is over. To be called again and again. Gives
    /// whether it was opened now.
    pub fn look(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<bool> {
        if self.slot.is_tier_in_the_way() {
            self.running = None;
        }
        if self.running.is_some() {
            return Ok(false);
        }
        let Some(memory) = self.slot.memory() else { return Ok(false) };
        let slot = Arc::clone(&self.slot);
        let running = Running::open(Box::new(memory), Announcer::to_nobody(), slot, &self.config, progress)?;
        self.running = Some(running);
        Ok(true)
    }

    /// Values that the tier has by now.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.running.as_ref().and_then(|running| running.owner().stats().ok()).map_or(0, |stats| stats.objects)
    }
}
