//! A store for tests of its tier, and what they do with it besides.
#![allow(clippy::unwrap_used, reason = "a test may")]

use super::config::Config;
use crate::base::error::Result;
use crate::store::copy::Slice;
use crate::store::types::{Look, Presence, PutOptions};
use crate::store::{Store, test_store};

pub(super) const PAGE: u32 = 4096;
pub(super) const PAGES: u64 = 512;

pub(super) fn store() -> Store {
    let heap_bytes = PAGES * u64::from(PAGE);
    let world = crate::world::Config { heap_bytes, world_size: 1, ..test_store::world() };
    let config = crate::store::Config { page_bytes: PAGE, max_objects: Some(1024), ..crate::store::Config::default() };
    Store::embedded(&world, &config).unwrap()
}

pub(super) fn config(dir: &tempfile::TempDir) -> Config {
    Config { directory: dir.path().join("tier"), paused: true, max_objects: 4096, ..Config::default() }
}

pub(super) fn value(seed: u64, bytes: usize) -> Vec<u8> {
    let word =
        |i: u64| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ i.wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mut value: Vec<u8> = (0..bytes.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes()).collect();
    value.truncate(bytes);
    value
}

pub(super) fn try_put(store: &Store, key: &str, value: &[u8], replace: bool) -> Result<()> {
    let options = PutOptions { replace, metadata: key.as_bytes(), ..PutOptions::DEFAULT };
    test_store::put(store, key.as_bytes(), value, &options)
}

pub(super) fn put(store: &Store, key: &str, value: &[u8]) {
    try_put(store, key, value, false).unwrap();
}

pub(super) fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 2 << 20];
    let slice = Slice::of_test_mut(&mut buffer);
    match store.get(key.as_bytes(), slice).unwrap() {
        Look::Ready(bytes) => {
            buffer.truncate(usize::try_from(bytes).unwrap());
            Some(buffer)
        }
        _ => None,
    }
}

pub(super) fn where_is(store: &Store, key: &str) -> Presence {
    store.presence(key.as_bytes()).unwrap()
}

pub(super) fn evict(store: &Store) {
    store.evict_until_below(0, 0).unwrap();
}
