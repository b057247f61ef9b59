//! A small store for tests.

use crate::base::Deadline;
use crate::base::error::Result;
use crate::mem::HeapKind;
use crate::store::client::Store;
use crate::store::config::{Config, Policy};
use crate::store::copy::{Pieces, Slice};
use crate::store::types::PutOptions;
use crate::world::Hosting;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const PAGE: usize = 4096;
pub(super) const PAGES: u64 = 12;

/// A world for an embedded store.
pub(crate) fn world() -> crate::world::Config {
    crate::world::Config {
        name: "strays".into(),
        dir: None,
        rank: None,
        world_size: 2,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes: PAGES * PAGE as u64,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 0,
        hosting: Hosting::Rank0,
        deadline: Deadline::after(Duration::from_secs(60)),
        drain_ms: 0,
        service_cpu: None,
        give_up: Arc::default(),
    }
}

pub(crate) fn config(checksums: bool) -> Config {
    Config {
        page_bytes: u32::try_from(PAGE).unwrap(),
        max_objects: Some(32),
        key_bytes: Some(4096),
        pin_slots: 8,
        policy: Policy::S3Fifo,
        checksums,
        high_permille: 1000,
        low_permille: 1000,
        ..Config::default()
    }
}

/// Waits until something is so, for a time after which it will not be any more.
pub(crate) fn eventually(mut so: impl FnMut() -> bool) -> bool {
    let late = Instant::now() + Duration::from_secs(60);
    loop {
        let over = Instant::now() > late;
        if so() {
            return true;
        }
        if over {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stores a value that lies in one piece.
pub(crate) fn put(store: &Store, key: &[u8], value: &[u8], options: &PutOptions) -> Result<()> {
    let slices = [Slice::of_test(value)];
    store.put(key, &Pieces::Slices(&slices), options)
}
