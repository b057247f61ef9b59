//! What a look for a key gives.

/// What a look for a key gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look<T> {
    /// It is there and readable.
    Ready(T),
    /// It is being written.
    Writing(u32, u64),
    /// It is not there.
    Missing,
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// There is no such object.
    Absent,
    /// It is being written.
    Writing,
    /// It is in memory, readable.
    Ready,
    /// It is not in memory, but can be read from disk.
    OnDisk,
    /// It is not here, but peers of the handle have it. Only said where they are asked.
    Elsewhere,
}

impl Presence {
    /// Whether it can be read.
    #[must_use]
    pub fn is_readable(self) -> bool {
        matches!(self, Presence::Ready | Presence::OnDisk | Presence::Elsewhere)
    }
}

/// Which pages a read verifies, where there are checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// Those that it touches.
    Touched,
    /// Those that begin in it: reads of all parts of a value verify every page once. None of them counts alone.
    Begun,
}

/// A hold on an object. It must be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// Header.
    pub index: u32,
    /// Slot of this client.
    pub slot: u32,
    /// Epoch of the object.
    pub epoch: u64,
    /// Which use of the slot it is.
    pub turn: u64,
}

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Header.
    pub index: u32,
    /// Rank whose heap holds the value.
    pub owner_rank: u32,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of the value.
    pub n_pages: u32,
    /// Bytes used of the last page.
    pub last_page_bytes: u32,
    /// Runs of pages.
    pub n_extents: u32,
    /// Epoch.
    pub epoch: u64,
    /// Offset of the first page in the owner's heap.
    pub offset: u64,
    /// `FLAG_*`.
    pub flags: u32,
}

/// The runs of pages of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    /// Rank whose heap holds them.
    pub owner_rank: u32,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Offset in the owner's heap and bytes of each run.
    pub runs: Vec<(u64, u64)>,
}
