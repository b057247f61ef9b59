//! The words that all of the store has in common: keys, puts and plans, clients, what a look gives. No state and no I/O.

mod client;
mod header;
mod keep;
mod key;
mod look;
mod plan;
mod put;

pub use client::{ClientId, ClientInfo, Role};
pub use header::{check_within, corrupt, located, namespace_word, placed, shaped};
pub use keep::{Keep, PRIORITIES, Retain};
pub use key::{SHOWN, bad_key, check_key, not_found, on_disk, show};
pub use look::{Extents, Location, Look, Pin, Presence, Sums};
pub use plan::{OpenRequest, Opened, ReadFrom, no_plan};
pub use put::{PutOptions, Wait};
