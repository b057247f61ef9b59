//! The SSD tier of a store: what memory evicts, disk keeps. The process of the store's master owns a directory and writes to
//! it ahead of eviction; every process reads it by itself. After any crash the disk tells the truth.

#[cfg(test)]
mod away_tests;
pub mod backend;
#[cfg(test)]
mod churn_tests;
mod config;
#[cfg(test)]
mod crash_tests;
pub mod directory;
mod elsewhere;
mod facade;
pub mod format;
mod hosted;
pub mod io;
pub mod journal;
#[cfg(test)]
mod moves_tests;
mod owner;
pub mod reader;
pub mod recovery;
#[cfg(test)]
mod sequences_tests;
mod stages;
mod staging;
mod sys;
#[cfg(test)]
mod test_store;
#[cfg(test)]
mod tests;

pub use crate::store::disk::{Event, Happened};
pub use config::{Backend, Config, Evict, OnDamage, Scanned, Stats, Torn, Verified};
pub use facade::Tier;
pub use hosted::Hosted;
pub use reader::install;
pub use staging::Lent;
