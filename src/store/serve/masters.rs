//! The masters of a world and of its store in a process that is not one of the ranks.

use super::master_slot::MasterSlot;
use super::server::Server;
use crate::base::error::Result;
use crate::world::{Config, Master};
use std::sync::Arc;
use std::time::Duration;

/// How often, and how long apart, a place is tried that a master who is just ending may still hold.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// Both masters. Dropping it ends them.
pub struct Masters {
    _store: Server,
    slot: Arc<MasterSlot>,
    _world: Master,
}

impl Masters {
    /// Starts them; fails with `NMC_ERR_EXISTS` if somebody serves the world or its store. The store comes into being
    /// with its first client, or is rebuilt from what the first survivor hands over.
    pub fn open(config: &Config) -> Result<Self> {
        Self::start(config, false)
    }

    /// The same for a store with a tier, which somebody opens in this process when there is a store: nothing is stored before.
    pub fn open_with_tier(config: &Config) -> Result<Self> {
        Self::start(config, true)
    }

    fn start(config: &Config, with_tier: bool) -> Result<Self> {
        let world = Master::open(config)?;
        let slot = Arc::new(MasterSlot::external(world.board()));
        if with_tier {
            slot.wait_for_tier();
            world.board().map_heaps();
        }
        let place = config.place().beside("store");
        for _ in 0..TRIES {
            if let Some(store) = Server::start(&place, Arc::clone(&slot), config.service_cpu)? {
                return Ok(Self { _store: store, slot, _world: world });
            }
            std::thread::sleep(PAUSE);
        }
        crate::bail!(
            NMC_ERR_EXISTS,
            "the store of world {:?} already has a master at {}",
            config.name,
            place.socket().display()
        )
    }

    /// Where the store's master is.
    #[must_use]
    pub fn slot(&self) -> &Arc<MasterSlot> {
        &self.slot
    }
}
