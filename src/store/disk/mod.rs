//! Where a tier below memory meets the store: what it reads for clients and writes for the master, the index of what lies there, and
//! what it tells of. The store does not know how a tier lays out values.

mod map;
mod owner;
mod reader;
mod seat;
pub(super) mod told;

pub use map::{DiskMap, heat_now};
pub use owner::{
    Admission, DiskContent, DiskCounts, DiskGrant, DiskOwner, HeldMemory, Mark, OnDisk, Scope, SpaceName, Stored,
    ToWrite,
};
pub(super) use reader::make_reader;
pub use reader::{
    DiskEntry, DiskInfo, DiskRead, DiskReader, DiskRecord, MakeReader, NextOnDisk, PLACE_SHIFT, Take, Target, Wanted,
    set_maker,
};
pub use seat::{DiskAccess, DiskSeat};
pub use told::{Event, Happened, Told, ToldValue};
