//! The SSD tier of a store: what memory evicts, disk keeps. The process of the store's master owns a directory and writes to
//! it ahead of eviction; every process reads it by itself. After any crash the disk tells the truth.

pub mod format;
pub mod io;
