//! What the tests of the store share: a value in, a value out.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "slices.rs"]
mod slices;

pub use slices::{slice, slice_mut};

use nanomc::base::Result;
use nanomc::base::status::{NMC_ERR_NOT_FOUND, NMC_NOT_READY, nmc_status_t};
use nanomc::store::Store;
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Look, PutOptions};

/// Stores a value wherever it goes.
pub fn put(store: &Store, key: &[u8], value: &[u8]) -> Result<()> {
    put_as(store, key, value, &PutOptions::DEFAULT)
}

/// Stores a value in the heap of a rank.
pub fn put_on(store: &Store, key: &[u8], value: &[u8], rank: u32) -> Result<()> {
    put_as(store, key, value, &PutOptions { rank: Some(rank), ..PutOptions::DEFAULT })
}

/// Stores a value as these options say.
pub fn put_as(store: &Store, key: &[u8], value: &[u8], options: &PutOptions) -> Result<()> {
    let slices = [slice(value)];
    store.put(key, &Pieces::Slices(&slices), options)
}

/// The value, or why there is none.
pub fn get(store: &Store, key: &[u8]) -> std::result::Result<Vec<u8>, nmc_status_t> {
    let place = match store.location(key).map_err(|e| e.status)? {
        Look::Ready(place) => place,
        Look::Writing(..) => return Err(NMC_NOT_READY),
        Look::Missing => return Err(NMC_ERR_NOT_FOUND),
    };
    let mut value = vec![0u8; usize::try_from(place.bytes_total).unwrap()];
    let slices = [slice_mut(&mut value)];
    match store.read(key, 0, &Pieces::Slices(&slices), |_| Ok(true)).map_err(|e| e.status)? {
        Look::Ready(_) => Ok(value),
        _ => Err(NMC_ERR_NOT_FOUND),
    }
}

/// The value, if there is one; any other outcome fails the test.
pub fn get_if(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    match get(store, key) {
        Ok(value) => Some(value),
        Err(NMC_ERR_NOT_FOUND | NMC_NOT_READY) => None,
        Err(status) => panic!("{}: status {status}", String::from_utf8_lossy(key)),
    }
}
