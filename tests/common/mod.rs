//! What the tests of the world share: configs in a directory of their own, and bounded waiting.
#![allow(dead_code, reason = "each test program uses a part of it")]

use nanomc::base::Deadline;
use nanomc::mem::HeapKind;
use nanomc::world::{Config, Hosting};
use std::path::Path;
use std::time::{Duration, Instant};

/// Long enough for a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A small host world called "t" in `dir`.
pub fn config(dir: &Path, rank: Option<u32>, world_size: u32) -> Config {
    Config {
        name: "t".into(),
        dir: Some(dir.to_path_buf()),
        rank,
        world_size,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes: 1 << 20,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 8,
        hosting: Hosting::Rank0,
        deadline: Deadline::after(PATIENCE),
        drain_ms: 0,
        service_cpu: None,
        give_up: std::sync::Arc::default(),
    }
}

/// Waits until `done` says so; false when patience ran out.
pub fn eventually(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    done()
}
