//! `nmc_master_*`: the masters of a world and its store in a process that is not one of the ranks.

use super::handle::{self, HasC, Object};
use super::world_types::{nmc_world_config_t, parse};
use super::{guard, out};
use crate::base::status::nmc_status_t;
use crate::store::Masters;

/// The master of a world and that of its store, each on a thread of its own.
pub struct nmc_master_t {
    _opaque: [u8; 0],
}

impl Object for Masters {
    const KIND: u64 = 2;
    const NAME: &'static str = "master";
    fn cancel(&self) {}
}

impl HasC for Masters {
    type C = nmc_master_t;
}

/// Starts the master of the world that `config` describes, and of its store, for ranks that join with `NMC_MASTER_EXTERNAL`. `rank` and
/// the fields about own memory are not used. It takes over a world whose former master died, as soon as a survivor
/// reports; and it serves the next world of the same name when all ranks have left.
///
/// Waits at most half a second for a master that is just ending. Thread-safe. Not graph-safe. The handle is destroyed
/// with `nmc_master_destroy`.
/// Statuses: those of `nmc_world_join`; `NMC_ERR_EXISTS` if a master of that name is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_master_start(
    config: *const nmc_world_config_t,
    out_master: *mut *mut nmc_master_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_master, "out_master")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let config = unsafe { parse(config) }?;
        slot.write(handle::create(Masters::open(&config)?)?);
        Ok(())
    })
}

/// Ends the master. Ranks that have joined go on without it; no further rank can join. NULL is fine. In a forked child
/// it does nothing.
///
/// Blocks until its thread has ended, which is soon. Graph-safe. Thread-safe: of several callers one succeeds.
/// Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_master_destroy(master: *mut nmc_master_t) -> nmc_status_t {
    guard(|| {
        drop(handle::take::<Masters>(master)?);
        Ok(())
    })
}
