//! Clients as they introduce themselves, and as the master names them.

/// Which of the clients of a rank's holder one is: there is one of each at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The program's.
    Program,
    /// That of the node's agent in a cluster.
    Agent,
}

impl Role {
    /// As shared memory and packets have it.
    #[must_use]
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The inverse.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Role::Program, Role::Agent].into_iter().find(|role| role.code() == code)
    }
}

/// A client as the master knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientInfo {
    /// Process id.
    pub pid: u32,
    /// Start time of the process.
    pub start_time: u64,
    /// Rank in the world.
    pub rank: u32,
    /// Generation of that rank.
    pub rank_generation: u64,
    /// Which of its clients.
    pub role: Role,
}

/// A client's place: its number, and how often that was given out. A number alone would be the next holder's, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId {
    /// Number of the pin block.
    pub number: u32,
    /// Generation of the place; odd while somebody has it.
    pub generation: u64,
}

impl ClientInfo {
    /// Whoever has no place.
    pub(in crate::store) const NOBODY: ClientInfo =
        ClientInfo { pid: 0, start_time: 0, rank: u32::MAX, rank_generation: 0, role: Role::Program };
}
