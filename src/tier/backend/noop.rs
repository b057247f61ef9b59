//! Takes everything and keeps nothing: for measuring what else offloading costs.

use super::super::config::Config;
use super::super::format::{Item, Tail};
use super::super::io::{File, Listed};
use super::super::journal::{Journal, State};
use super::{Draft, FileId, Found, Place, Storage, no_bucket};
use crate::base::error::Result;
use crate::base::memory;
use crate::layout::disk::Spot;
use parking_lot::Mutex;

/// See the module.
pub struct Noop;

impl Storage for Noop {
    fn find(&self, listed: &[Listed], _: &State) -> Result<Found> {
        let foreign = memory::collect(listed.iter().map(|file| file.name.clone()))?;
        Ok(Found { foreign, ..Found::default() })
    }

    fn locate(&self, spot: Spot) -> (FileId, u64) {
        ((spot.bucket, 0), spot.block)
    }

    fn place(&self, _: FileId) -> Place {
        Place { folders: None, name: "nowhere".into() }
    }

    fn list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)> {
        Err(no_bucket(bucket))
    }

    fn blocks(&self, bucket: u64) -> Result<u64> {
        Err(no_bucket(bucket))
    }

    fn begin(&mut self, _: &Config, _: &State) -> Result<()> {
        Ok(())
    }

    fn draft(&self, _: u64, _: &[u64], _: u64) -> Result<Box<dyn Draft + '_>> {
        Ok(Box::new(Self))
    }

    fn discard(&self, _: u64, _: bool) {}

    fn take_away(&self, _: u64) -> Result<Option<Box<dyn File>>> {
        Ok(None)
    }

    fn take_away_again(&self, gone: &[u64]) -> Result<Vec<u64>> {
        memory::copy(gone)
    }

    fn forget(&self, _: &[u64]) -> Result<()> {
        Ok(())
    }

    fn give_back(&self, _: u64, _: &[(u64, u64)]) -> Result<u64> {
        Ok(0)
    }

    fn set_aside(&self, _: u64, _: bool) -> Result<bool> {
        Ok(true)
    }

    fn clean(&self, _: &(Option<String>, String)) -> Result<()> {
        Ok(())
    }

    fn keeps(&self) -> bool {
        false
    }
}

impl Draft for Noop {
    fn write(&self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }

    fn complete(&mut self, _: &[Item<'_>], _: &[u8]) -> Result<u64> {
        Ok(0)
    }

    fn seal(&mut self, _: &Mutex<Journal>) -> Result<()> {
        Ok(())
    }
}
