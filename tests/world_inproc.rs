//! Several ranks in one process, through the real socket.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]

mod common;

use common::{PATIENCE, config, eventually};
use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::world::{RankState, World};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn join_all(dir: &std::path::Path, n: u32) -> Vec<World> {
    World::join_many((0..n).map(|r| config(dir, Some(r), n)).collect()).expect("all ranks join")
}

fn on_all<R: Send>(worlds: &[World], f: impl Fn(&World) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let threads: Vec<_> = worlds.iter().map(|w| s.spawn(|| f(w))).collect();
        threads.into_iter().map(|t| t.join().expect("thread")).collect()
    })
}

#[test]
fn ranks_share_heaps_words_and_a_barrier() {
    let dir = tempfile::tempdir().expect("tempdir");
    let worlds = join_all(dir.path(), 4);
    on_all(&worlds, |w| {
        w.selftest(7, &Deadline::after(PATIENCE)).expect("selftest");
        w.word((w.rank() + 1) % 4, 5).expect("word").0.store(100 + u64::from(w.rank()), Ordering::Release);
        w.barrier(&Deadline::after(PATIENCE)).expect("barrier");
        let got = w.word(w.rank(), 5).expect("word").0.load(Ordering::Acquire);
        assert_eq!(got, 100 + u64::from((w.rank() + 3) % 4));
        let at = w.ptr(2, 12345, 1).expect("ptr");
        assert_eq!(w.locate(at).expect("locate"), (2, 12345));
    });
    drop(worlds);
    assert_eq!(std::fs::read_dir(dir.path()).expect("dir").count(), 0, "nothing is left behind");
}

#[test]
fn a_join_that_fails_leaves_nothing_behind_and_says_what_is_not_there() {
    let dir = tempfile::tempdir().expect("tempdir");
    let base = dir.path().join("made here");
    let soon = |rank| {
        let deadline = Deadline::after(Duration::from_millis(300));
        World::join(nanomc::world::Config { deadline, ..config(&base, Some(rank), 2) })
            .err()
            .expect("a rank is missing")
    };
    let alone = soon(0);
    assert!(alone.message.contains("ranks [1] of 2 did not come"), "{alone}");
    assert!(!base.exists());
    let lost = soon(1);
    assert!(lost.message.contains("made here: No such file or directory"), "{lost}");
    assert!(!base.exists());
}

#[test]
fn a_rank_that_leaves_is_seen_and_its_place_can_be_taken_with_the_heap_intact() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut worlds = join_all(dir.path(), 3);
    on_all(&worlds, |w| w.selftest(3, &Deadline::after(PATIENCE)).expect("selftest"));
    let before = heap_word(&worlds[0], 1, 4096);
    drop(worlds.remove(1));
    assert!(eventually(|| worlds[0].state(1) == Ok(RankState::Left) && worlds[1].state(1) == Ok(RankState::Left)));
    let barrier = worlds[0].barrier(&Deadline::after(Duration::from_secs(5))).expect_err("a rank is missing");
    assert_eq!(barrier.status, NMC_ERR_PEER_LOST, "{barrier}");
    let again = World::join(config(dir.path(), Some(1), 3)).expect("rejoin");
    assert_eq!(again.peer(1).expect("peer").generation, 2);
    assert_eq!(heap_word(&again, 1, 4096), before, "the heap is as it was left");
    assert!(eventually(|| worlds.iter().all(|w| w.state(1) == Ok(RankState::Alive))));
    worlds.push(again);
    on_all(&worlds, |w| w.barrier(&Deadline::after(PATIENCE)).expect("the same barrier goes on with the new process"));
    on_all(&worlds, |w| w.selftest(4, &Deadline::after(PATIENCE)).expect("selftest"));
}

fn heap_word(world: &World, rank: u32, offset: u64) -> u64 {
    let at = world.ptr(rank, offset, 8).expect("ptr");
    // SAFETY: `ptr` checked the range; the heap is mapped as long as the world lives.
    #[allow(unsafe_code, reason = "reads a mapped heap")]
    unsafe {
        (at as *const u64).read_volatile()
    }
}

#[test]
fn an_aborted_rank_is_dying_until_it_is_destroyed_and_then_gone() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut worlds = join_all(dir.path(), 2);
    worlds[1].abort();
    assert_eq!(worlds[1].barrier(&Deadline::after(PATIENCE)).expect_err("aborted").status, NMC_ERR_CANCELLED);
    assert!(eventually(|| worlds[0].state(1) == Ok(RankState::Dying)));
    drop(worlds.pop());
    assert!(eventually(|| worlds[0].state(1) == Ok(RankState::Gone)));
}

#[test]
fn the_master_can_go_and_return() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut worlds = join_all(dir.path(), 3);
    drop(worlds.remove(0)); // the master went with it
    assert!(eventually(|| worlds.iter().all(|w| !w.master_up())));
    let back = World::join(config(dir.path(), Some(0), 3)).expect("rank 0 returns and takes the world over");
    assert_eq!(back.world_id(), worlds[0].world_id(), "it is the same world");
    assert!(eventually(|| worlds.iter().all(|w| w.master_up() && w.state(0) == Ok(RankState::Alive))));
    worlds.push(back);
    on_all(&worlds, |w| w.selftest(9, &Deadline::after(PATIENCE)).expect("selftest"));
}

#[test]
fn joining_alone_times_out_and_says_who_is_missing() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut alone = config(dir.path(), Some(0), 3);
    alone.deadline = Deadline::after(Duration::from_millis(300));
    let error = World::join(alone).err().expect("nobody else came");
    assert_eq!(error.status, NMC_ERR_TIMEOUT);
    assert!(error.message.contains("ranks [1, 2] of 3"), "{error}");
    let mut lost = config(dir.path(), Some(1), 3);
    lost.deadline = Deadline::after(Duration::from_millis(300));
    let error = World::join(lost).err().expect("no master");
    assert!(error.status == NMC_ERR_TIMEOUT && error.message.contains("is rank 0 running?"), "{error}");
}

#[test]
fn automatic_ranks_are_all_different() {
    let dir = tempfile::tempdir().expect("tempdir");
    let worlds = World::join_many((0..4).map(|_| config(dir.path(), None, 4)).collect()).expect("join");
    let mut ranks: Vec<u32> = worlds.iter().map(World::rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3]);
}
