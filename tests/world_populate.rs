//! Heaps that are faulted in while joining.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]

mod common;

use common::config;
use nanomc::base::Deadline;
use nanomc::base::status::NMC_ERR_TIMEOUT;
use nanomc::world::{Config, World};
use std::path::Path;
use std::time::Duration;

const HEAP: u64 = 8 << 20;

/// Bytes of the heap of `rank`, as `world` has it mapped, that are in this process's page tables.
fn mapped(world: &World, rank: u32) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let head = format!("{:x}-", world.ptr(rank, 0, 1).unwrap());
    let part = maps.lines().skip_while(|line| !line.starts_with(&head));
    let rss = part.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

/// Whether all of it is. A page that the kernel is just moving is not counted, so a heap that is not is looked at again.
fn is_whole(world: &World, rank: u32, expected: bool) -> bool {
    (0..if expected { 1000 } else { 1 }).any(|_| {
        let whole = mapped(world, rank) == HEAP;
        if !whole && expected {
            std::thread::sleep(Duration::from_millis(10));
        }
        whole
    })
}

fn with(dir: &Path, populate: bool) -> Vec<World> {
    let one = |rank| Config { heap_bytes: HEAP, populate, ..config(dir, Some(rank), 2) };
    World::join_many(vec![one(0), one(1)]).unwrap()
}

#[test]
fn all_heaps_are_in_the_page_tables_after_a_join_that_asked_for_it() {
    for populate in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        for world in with(dir.path(), populate) {
            assert_eq!(world.populated(), populate);
            for rank in 0..2 {
                assert_eq!(
                    is_whole(&world, rank, populate),
                    populate,
                    "rank {rank} seen by {}; control: false",
                    world.rank()
                );
            }
        }
    }
}

#[test]
fn the_heaps_of_a_local_world_too() {
    for populate in [true, false] {
        let local = Config { heap_bytes: HEAP, populate, ..config(Path::new("/"), None, 2) };
        let worlds = World::local(&local).unwrap();
        for rank in 0..2 {
            assert_eq!(is_whole(&worlds[0], rank, populate), populate);
        }
    }
}

#[test]
fn a_join_ends_by_its_deadline_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let deadline = Deadline::after(Duration::ZERO);
    let late = Config { heap_bytes: 256 << 20, populate: true, deadline, ..config(dir.path(), Some(0), 1) };
    assert_eq!(World::join(late).err().unwrap().status, NMC_ERR_TIMEOUT);
}
