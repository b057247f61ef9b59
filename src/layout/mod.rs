//! What lies where in shared memory, and who may write it. Structs here are mapped by several processes, some of
//! them by GPUs; sizes and offsets are asserted at compile time and compared with the C side in ctest.
#![allow(unsafe_code, reason = "views of mapped memory")]

pub mod device;
pub mod disk;
pub mod ep;
pub mod region;
pub mod store;
pub mod world;

/// Version of everything that ranks share: memory layouts and socket messages. Ranks must agree on it.
pub const VERSION: u32 = 6;
/// Words written by different parties are at least this far apart, in bytes.
pub const CACHE_LINE: usize = 64;
/// Most ranks that a world can have.
pub const MAX_RANKS: usize = 64;
