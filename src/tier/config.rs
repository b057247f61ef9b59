//! What a tier is opened with, and what it tells about itself.

use crate::store::disk::Admission;
use std::path::PathBuf;

/// What becomes of a directory whose journal or head is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// Opening fails, and nothing is changed.
    #[default]
    Fail,
    /// Everything in it that is the tier's is deleted, and it begins empty.
    Reset,
}

/// What becomes of a bucket whose end is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Torn {
    /// It is renamed, so that somebody can look at it.
    #[default]
    MoveAside,
    /// It is deleted.
    Delete,
}

/// What goes when the disk, its share or the index is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Evict {
    /// Nothing: offloading pauses.
    #[default]
    Never,
    /// The bucket that was written first.
    Fifo,
    /// The bucket that nobody has read for the longest time.
    Lru,
}

/// What buckets are made of, see `backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// A file for many values.
    #[default]
    Bucket,
    /// A file for every value.
    File,
    /// One file for all values.
    Offset,
    /// Nothing is kept.
    Noop,
}

impl Backend {
    /// All of them, by their codes.
    pub const ALL: [Self; 4] = [Self::Bucket, Self::File, Self::Offset, Self::Noop];

    /// The backend with this code in the C API.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// Its code.
    #[must_use]
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The backend with this number in the head of a directory: codes begin with 0, these with 1.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::from_code(number.checked_sub(1)?)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.code() + 1
    }

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bucket => "bucket",
            Self::File => "file-per-key",
            Self::Offset => "offset",
            Self::Noop => "noop",
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The directory. Made if it is not there.
    pub directory: PathBuf,
    /// What buckets are made of. A directory keeps the backend that it was made with.
    pub backend: Backend,
    /// Whether the list of a bucket is written twice, the second time beside it. For [`Backend::Bucket`] only.
    pub meta: bool,
    /// Most values on disk; 0 for as many as seem right: a million, or twice what is found.
    pub max_objects: u64,
    /// Most bytes that files take; 0 for no limit but the file system's.
    pub capacity_bytes: u64,
    /// Bytes and values after which a bucket is complete.
    pub bucket_bytes: u64,
    /// See `bucket_bytes`.
    pub bucket_keys: u32,
    /// Longest time between two looks for something to write.
    pub heartbeat_ms: u32,
    /// Whether files are read and written past the page cache, where the file system can.
    pub direct: bool,
    /// Whether io_uring is used, where the kernel has it.
    pub uring: bool,
    /// Requests in flight.
    pub depth: u32,
    /// Whether `remove` and `replace` return when that is safe from a power loss, not only from a crash.
    pub durable_remove: bool,
    /// Whether offloading waits for [`super::Tier::pause`] to end it.
    pub paused: bool,
    /// See [`OnDamage`].
    pub on_damage: OnDamage,
    /// See [`Torn`].
    pub torn: Torn,
    /// See [`Evict`].
    pub evict: Evict,
    /// Reads after which a value comes back into memory; 0 for never.
    pub promote_after: u32,
    /// What is written ahead of its eviction.
    pub admission: Admission,
    /// Most bytes of values a second that are written ahead; 0 for no limit.
    pub write_bytes_per_s: u64,
    /// Whether it may be another directory than the store's former tier.
    pub other_directory: bool,
    /// Whether puts wait until their values are on disk.
    pub write_through: bool,
    /// Whether the program wants to hear of what is stored and evicted.
    pub events: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            directory: PathBuf::new(),
            backend: Backend::Bucket,
            meta: false,
            max_objects: 0,
            capacity_bytes: 0,
            bucket_bytes: 256 << 20,
            bucket_keys: 500,
            heartbeat_ms: 10_000,
            direct: true,
            uring: true,
            depth: 32,
            durable_remove: false,
            paused: false,
            on_damage: OnDamage::Fail,
            torn: Torn::MoveAside,
            evict: Evict::Never,
            promote_after: 0,
            admission: Admission::default(),
            write_bytes_per_s: 0,
            other_directory: false,
            write_through: false,
            events: false,
        }
    }
}

/// A struct of numbers that can go from one process to another as a list of words, in the order of its fields.
macro_rules! numbers {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Number of fields.
            pub const WORDS: usize = [$(stringify!($field)),*].len();

            /// All fields, in their order.
            #[must_use]
            pub fn words(&self) -> [u64; Self::WORDS] {
                [$(self.$field),*]
            }

            /// The inverse.
            #[must_use]
            pub fn from_words(words: [u64; Self::WORDS]) -> Self {
                let [$($field),*] = words;
                Self { $($field),* }
            }
        }
    };
}

numbers! {
    /// A tier in numbers. In processes that are not its owner's only some are known; the others are 0.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Stats {
        /// Values on disk that can be read.
        objects,
        /// Their bytes.
        bytes,
        /// Most values.
        max_objects,
        /// Bytes that the files take.
        file_bytes,
        /// Buckets.
        buckets,
        /// Bytes of memory that the index takes.
        index_bytes,
        /// Values written since the tier was opened, and their bytes.
        written_objects,
        /// See `written_objects`.
        written_bytes,
        /// Buckets written.
        written_buckets,
        /// Values that left memory when the disk had them, and when it had not: those are lost.
        evicted_clean,
        /// See `evicted_clean`.
        evicted_dirty,
        /// Times that nothing was written because the disk, its share or the index was full.
        full,
        /// Values that could not be read and were ended.
        corrupt,
        /// Failed writes and syncs.
        errors,
        /// 1 if offloading is paused by the program.
        paused,
        /// 1 if the disk refuses to be written: reads go on, offloading has stopped, removals fail after they are done in memory.
        degraded,
        /// Values, buckets and ns of the recovery when the tier was opened.
        recovered_objects,
        /// See `recovered_objects`.
        recovered_buckets,
        /// See `recovered_objects`.
        recovery_ns,
        /// Values found dead, damaged or without room in the index.
        recovered_dead,
        /// Buckets whose lists could not be read when the tier was opened: their values are not found.
        torn,
        /// Bytes of dead values that come back with their buckets only.
        dead_bytes,
        /// Values that this process read from disk, and their bytes.
        read_objects,
        /// See `read_objects`.
        read_bytes,
        /// Values that were taken from the disk to make room.
        evicted,
        /// Values that came back into memory, because they were read or asked for.
        promoted,
    }
}

/// A value that a scan came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned<'a> {
    /// Name of its namespace; empty for the default one.
    pub namespace: &'a [u8],
    /// Its key.
    pub key: &'a [u8],
    /// Bytes of the value.
    pub bytes: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Bucket and block.
    pub spot: (u64, u64),
}

/// What a verification found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Values that are right, and their bytes.
    pub objects: u64,
    /// See `objects`.
    pub bytes: u64,
    /// Values that are not.
    pub corrupt: u64,
    /// Values that could not be read, for another reason: they stay.
    pub unreadable: u64,
}
