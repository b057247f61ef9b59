//! Where a master runs, and who calls it: clients of its process through its slot, others through a server; a process of its own has
//! the masters of a world and of its store.

mod master_slot;
mod masters;
mod memory;
mod server;

pub use master_slot::MasterSlot;
pub use masters::Masters;
pub use memory::MasterMemory;
pub(super) use memory::read_held;
pub(super) use server::Server;
#[cfg(test)]
pub(super) use server::check_generation;
