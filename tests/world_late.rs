//! Worlds in which not all ranks have to be there: the others come later, go, and come again.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]

mod common;

use common::{PATIENCE, config, eventually};
use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::world::{Config, Hosting, Master, RankState, World};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

const SIZE: u32 = 4;

fn at_least(n: u32, dir: &Path, rank: Option<u32>) -> Config {
    Config { min_ranks: n, ..config(dir, rank, SIZE) }
}

fn first_two(dir: &Path) -> Vec<World> {
    World::join_many((0..2).map(|rank| at_least(2, dir, Some(rank))).collect()).unwrap()
}

fn barrier_of(worlds: &[World]) {
    std::thread::scope(|scope| {
        for world in worlds {
            scope.spawn(|| world.barrier(&Deadline::after(PATIENCE)).unwrap());
        }
    });
}

#[test]
fn a_rank_that_has_not_come_is_absent_and_has_no_heap() {
    let dir = tempfile::tempdir().unwrap();
    let worlds = first_two(dir.path());
    for world in &worlds {
        assert_eq!(world.params().min_ranks, 2);
        for rank in 2..SIZE {
            let info = world.peer(rank).unwrap();
            assert_eq!((info.state, info.generation, info.heap_base), (RankState::Absent, 0, 0));
            assert_eq!(world.ptr(rank, 0, 1).unwrap_err().status, NMC_ERR_PEER_LOST);
        }
        assert!(world.ptr(0, 0, 1).is_ok() && world.ptr(1, 0, 1).is_ok(), "control: those who came have one");
    }
    drop(worlds);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_rank_that_comes_later_is_told_of_all_and_all_are_told_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut worlds = first_two(dir.path());
    barrier_of(&worlds);
    barrier_of(&worlds);
    // SAFETY: the descriptor belongs to the world, which lives.
    #[allow(unsafe_code, reason = "borrows a descriptor that lives")]
    let event = unsafe { BorrowedFd::borrow_raw(worlds[0].event_fd()) };
    assert!(!nanomc::rpc::ready(event), "control: nothing has happened");
    let late = World::join(at_least(2, dir.path(), None)).unwrap();
    assert_eq!(late.rank(), 2, "the lowest that is free");
    assert_eq!(late.world_id(), worlds[0].world_id());
    assert!((0..2).all(|rank| late.state(rank) == Ok(RankState::Alive) && late.ptr(rank, 0, 1).is_ok()));
    assert!(eventually(|| nanomc::rpc::ready(event)));
    assert!(eventually(|| worlds.iter().all(|w| w.state(2) == Ok(RankState::Alive) && w.ptr(2, 0, 1).is_ok())));
    worlds.push(late);
    barrier_of(&worlds);
    // It goes, its place is taken, and the last one comes.
    drop(worlds.pop());
    assert!(eventually(|| worlds.iter().all(|w| w.state(2) == Ok(RankState::Left))));
    worlds.push(World::join(at_least(2, dir.path(), Some(3))).unwrap());
    assert_eq!(worlds[2].state(2), Ok(RankState::Left));
    worlds.push(World::join(at_least(2, dir.path(), Some(2))).unwrap());
    assert_eq!(worlds[3].peer(2).unwrap().generation, 2);
    barrier_of(&worlds);
    std::thread::scope(|scope| {
        for world in &worlds {
            scope.spawn(|| world.selftest(5, &Deadline::after(PATIENCE)).unwrap());
        }
    });
}

#[test]
fn a_barrier_waits_for_a_rank_that_came_later_and_not_for_one_that_did_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut worlds = first_two(dir.path());
    barrier_of(&worlds);
    worlds.push(World::join(at_least(2, dir.path(), Some(3))).unwrap());
    assert!(eventually(|| worlds.iter().all(|w| w.state(3) == Ok(RankState::Alive))));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| worlds[0].barrier(&Deadline::after(PATIENCE)));
        let early = worlds[1].barrier(&Deadline::after(Duration::from_millis(100))).unwrap_err();
        assert_eq!(early.status, NMC_ERR_TIMEOUT);
        assert!(early.message.contains("rank 3"), "{early}");
        scope.spawn(|| worlds[2].barrier(&Deadline::after(PATIENCE)).unwrap());
        worlds[1].barrier(&Deadline::after(PATIENCE)).unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn too_few_ranks_are_a_timeout_that_names_who_is_missing_and_how_many_are_needed() {
    let dir = tempfile::tempdir().unwrap();
    let deadline = Deadline::after(Duration::from_millis(300));
    let alone = World::join(Config { deadline, ..at_least(2, dir.path(), Some(0)) }).err().unwrap();
    assert_eq!(alone.status, NMC_ERR_TIMEOUT);
    assert!(alone.message.contains("ranks [1, 2, 3] of 4 did not come, and 2 are needed"), "{alone}");
}

#[test]
fn ranks_agree_on_how_many_are_needed() {
    let dir = tempfile::tempdir().unwrap();
    let worlds = first_two(dir.path());
    let other = World::join(at_least(3, dir.path(), Some(2))).err().unwrap();
    assert_eq!(other.status, NMC_ERR_MISMATCH);
    assert!(other.message.contains("min_ranks: the world has 2, the joining rank has 3"), "{other}");
    let all = World::join(at_least(0, dir.path(), Some(2))).err().unwrap();
    assert!(all.message.contains("the joining rank has 4"), "0 is all: {all}");
    assert_eq!(World::join(at_least(5, dir.path(), Some(2))).err().unwrap().status, NMC_ERR_INVALID_ARG);
    drop(worlds);
}

/// A master that returns finds the world as it was: who was absent still is, and may come.
#[test]
fn a_rank_may_come_after_the_master_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = |rank| Config { hosting: Hosting::Elsewhere, ..at_least(2, dir.path(), Some(rank)) };
    let master = Master::open(&elsewhere(0)).unwrap();
    let worlds = World::join_many(vec![elsewhere(0), elsewhere(1)]).unwrap();
    drop(master);
    assert!(eventually(|| worlds.iter().all(|w| !w.master_up())));
    let _master = Master::open(&elsewhere(0)).unwrap();
    let late = World::join(elsewhere(3)).unwrap();
    assert_eq!(late.world_id(), worlds[0].world_id());
    assert_eq!(late.state(2), Ok(RankState::Absent));
    assert!(eventually(|| worlds.iter().all(|w| w.state(3) == Ok(RankState::Alive))));
}
