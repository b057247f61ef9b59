//! Where a value goes when its rank is full, and what a put that waits for room waits for. What happens between processes
//! is in ctest/store/waits.cpp.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod common;
#[path = "common/store.rs"]
mod values;

use common::{PATIENCE, config as world_config, eventually};
use nanomc::base::status::*;
use nanomc::base::{Deadline, Error, Result};
use nanomc::mem::{Import, Slab};
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Keep, Look, Opened, Pin, PutOptions, Retain, Wait};
use nanomc::store::{Config, Store};
use nanomc::world::World;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

const PAGE: usize = 4096;
/// Nothing is evicted ahead of need: what goes is what was in the way.
const FULL: u32 = 1000;

fn config() -> Config {
    Config { page_bytes: 4096, high_permille: FULL, low_permille: FULL, ..Config::default() }
}

fn world(pages: usize, ranks: u32) -> nanomc::world::Config {
    let heap_bytes = (pages * PAGE) as u64;
    nanomc::world::Config { dir: None, heap_bytes, ..world_config(Path::new("/"), None, ranks) }
}

fn store(pages: usize, ranks: u32) -> Store {
    Store::embedded(&world(pages, ranks), &config()).unwrap()
}

fn on(rank: u32) -> PutOptions<'static> {
    PutOptions { rank: Some(rank), ..PutOptions::DEFAULT }
}

fn anywhere(rank: u32) -> PutOptions<'static> {
    PutOptions { any_rank: true, ..on(rank) }
}

fn patient(options: PutOptions<'static>) -> PutOptions<'static> {
    PutOptions { wait: Wait::For(PATIENCE), ..options }
}

fn hard(options: PutOptions<'static>) -> PutOptions<'static> {
    PutOptions { keep: Keep { retain: Retain::Hard, ..Keep::DEFAULT }, ..options }
}

fn put(store: &Store, key: &str, pages: usize, options: &PutOptions) -> Result<()> {
    values::put_as(store, key.as_bytes(), &vec![7; pages * PAGE], options)
}

/// The rank that holds a value; `None` if it is not there.
fn place(store: &Store, key: &str) -> Option<u32> {
    match store.location(key.as_bytes()).unwrap() {
        Look::Ready(place) => Some(place.owner_rank),
        _ => None,
    }
}

fn pin(store: &Store, key: &str) -> Pin {
    let Look::Ready((pin, _)) = store.pin(key.as_bytes()).unwrap() else { panic!("{key} is not there") };
    pin
}

fn status<T: std::fmt::Debug>(result: Result<T>) -> nmc_status_t {
    result.map_or_else(|error| error.status, |_| NMC_OK)
}

/// Fills a rank with values of one page.
fn fill(store: &Store, name: &str, pages: usize, options: &PutOptions) {
    for i in 0..pages {
        put(store, &format!("{name}{i}"), 1, options).unwrap();
    }
}

#[test]
fn a_value_that_may_lie_anywhere_takes_free_room_before_anything_is_evicted() {
    let store = store(4, 3);
    fill(&store, "old", 4, &on(0));
    put(&store, "there", 1, &on(1)).unwrap();
    put(&store, "a", 1, &anywhere(0)).unwrap();
    assert_eq!(place(&store, "a"), Some(2), "most is free there");
    put(&store, "b", 3, &anywhere(0)).unwrap();
    assert_eq!((place(&store, "b"), place(&store, "old0")), (Some(1), Some(0)), "nothing had to go");
    put(&store, "c", 2, &anywhere(2)).unwrap();
    assert_eq!(place(&store, "c"), Some(2), "the preferred rank comes first");
    // Control: without the flag the oldest goes, though another rank has a page.
    put(&store, "d", 1, &on(0)).unwrap();
    assert_eq!((place(&store, "d"), place(&store, "old0")), (Some(0), None));
}

#[test]
fn then_the_preferred_rank_evicts_and_then_the_others() {
    let store = store(4, 3);
    fill(&store, "zero", 4, &hard(on(0)));
    fill(&store, "one", 4, &on(1));
    fill(&store, "two", 4, &hard(on(2)));
    put(&store, "a", 1, &anywhere(1)).unwrap();
    assert_eq!((place(&store, "a"), place(&store, "one0")), (Some(1), None), "it evicts as it would alone");
    // Control: rank 0 alone has nothing that may go.
    assert_eq!(status(put(&store, "b", 1, &on(0))), NMC_ERR_BUSY);
    put(&store, "b", 1, &anywhere(0)).unwrap();
    assert_eq!(place(&store, "b"), Some(1));
    let pins = ["one2", "one3", "a", "b"].map(|key| pin(&store, key));
    let error = put(&store, "c", 1, &anywhere(0)).unwrap_err();
    assert_eq!(error.status, NMC_ERR_BUSY);
    assert!(error.message.contains("none of the ranks"), "{}", error.message);
    pins.into_iter().for_each(|pin| store.unpin(pin).unwrap());
    put(&store, "c", 1, &anywhere(0)).unwrap();
}

/// The high watermark says what is full: a rank above it begins to evict, so the value goes elsewhere before.
/// With watermarks and without.
#[test]
fn what_cannot_fit_makes_nothing_go() {
    let usual = Config { page_bytes: 4096, ..Config::default() };
    for config in [config(), Config { policy: nanomc::store::Policy::Lru, ..usual.clone() }, usual] {
        let store = Store::embedded(&world(16, 1), &config).unwrap();
        fill(&store, "hard", 6, &hard(on(0)));
        put(&store, "pinned", 2, &on(0)).unwrap();
        let held = pin(&store, "pinned");
        fill(&store, "ordinary", 4, &on(0));
        let left = || (0..4).filter(|n| place(&store, &format!("ordinary{n}")).is_some()).count();
        assert_eq!(left(), 4);
        // 8 pages stay, whatever goes.
        for pages in [9, 12, 16] {
            assert_eq!(status(put(&store, "large", pages, &on(0))), NMC_ERR_BUSY, "{pages}");
            assert_eq!(status(put(&store, "large", pages, &anywhere(0))), NMC_ERR_BUSY, "{pages}");
            assert_eq!(left(), 4, "{pages} pages");
        }
        put(&store, "large", 8, &on(0)).unwrap();
        assert_eq!(left(), 0, "control: what fits makes them go");
        store.unpin(held).unwrap();
        put(&store, "larger", 10, &on(0)).unwrap();
    }
}

#[test]
fn a_rank_above_its_watermark_counts_as_full() {
    let config = Config { high_permille: 500, low_permille: 250, ..config() };
    let store = Store::embedded(&world(8, 2), &config).unwrap();
    for i in 0..8 {
        put(&store, &format!("k{i}"), 1, &anywhere(0)).unwrap();
    }
    let used = || store.stats().unwrap().ranks.iter().map(|rank| rank.bytes_used).collect::<Vec<u64>>();
    assert_eq!(used(), [4 * PAGE as u64; 2], "four each, and all are there");
    for i in 8..16 {
        put(&store, &format!("k{i}"), 1, &on(0)).unwrap();
    }
    assert!(store.stats().unwrap().ranks[0].evict_count > 0, "control: with the one rank alone it evicts");
}

#[test]
fn many_values_spread_over_the_ranks_and_each_plan_says_where() {
    let store = store(4, 3);
    let keys: Vec<String> = (0..12).map(|i| format!("k{i}")).collect();
    let items: Vec<(&[u8], u64)> = keys.iter().map(|key| (key.as_bytes(), PAGE as u64)).collect();
    // Control: what is open cannot be evicted, and one rank has four pages.
    let alone = store.open_many(&items, &on(1)).unwrap();
    assert_eq!(alone.iter().filter(|opened| opened.is_ok()).count(), 4);
    alone.into_iter().flatten().for_each(|(plan, _)| store.abort(&plan).unwrap());
    let opened = store.open_many(&items, &anywhere(1)).unwrap();
    let mut on_rank = [0; 3];
    for (opened, key) in opened.into_iter().zip(&keys) {
        let (plan, location) = opened.unwrap();
        on_rank[location.owner_rank as usize] += 1;
        store.commit(&plan).unwrap();
        assert_eq!(place(&store, key), Some(location.owner_rank));
    }
    assert_eq!(on_rank, [4; 3]);
}

#[test]
fn a_rank_that_lends_its_memory_or_has_no_holder_is_not_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let joined = World::join_many((0..3).map(|r| world_config(dir.path(), Some(r), 3)).collect()).unwrap();
    let [zero, one, two]: [World; 3] = joined.try_into().ok().unwrap();
    let store = Store::attach(&zero, &config()).unwrap();
    put(&store, "there", 1, &anywhere(2)).unwrap();
    assert_eq!(place(&store, "there"), Some(2), "control: while it is held it is");
    drop(two);
    assert!(eventually(|| zero.state(2).unwrap().free()));
    put(&store, "gone", 1, &anywhere(2)).unwrap();
    assert!([Some(0), Some(1)].contains(&place(&store, "gone")));
    let slab = Slab::create(c"lent", 1 << 20, false, &Deadline::after(PATIENCE)).unwrap();
    let import = Some(Import::host_fd(slab.as_fd().try_clone_to_owned().unwrap()));
    let lent = World::join(nanomc::world::Config { import, ..world_config(dir.path(), Some(2), 3) }).unwrap();
    assert!(eventually(|| status(put(&store, "alone", 1, &on(2))) == NMC_ERR_PEER_LOST), "control: not on that rank");
    put(&store, "lent", 1, &anywhere(2)).unwrap();
    assert!([Some(0), Some(1)].contains(&place(&store, "lent")));
    drop((lent, one));
}

/// Puts a page while there is no room for it, and does something else meanwhile, when it waits. Gives what the put gave.
fn put_meanwhile(store: &Store, options: PutOptions, act: impl FnOnce()) -> nmc_status_t {
    std::thread::scope(|scope| {
        let before = store.rank_stats(0).unwrap().oom_count;
        let waiter = scope.spawn(|| status(put(store, "late", 1, &options)));
        // It has been refused once, and again since it waits.
        assert!(eventually(|| store.rank_stats(0).unwrap().oom_count >= before + 2));
        assert!(!waiter.is_finished());
        act();
        waiter.join().unwrap()
    })
}

#[test]
fn a_put_that_waits_gets_the_room_that_an_unpin_a_commit_an_abort_or_a_removal_leaves() {
    let store = store(4, 1);
    fill(&store, "k", 3, &hard(on(0)));
    put(&store, "pinned", 1, &on(0)).unwrap();
    let held = pin(&store, "pinned");
    assert_eq!(status(put(&store, "late", 1, &on(0))), NMC_ERR_BUSY, "control: who does not wait is refused at once");
    assert_eq!(put_meanwhile(&store, patient(on(0)), || store.unpin(held).unwrap()), NMC_OK);
    assert_eq!(place(&store, "pinned"), None);

    store.remove(b"late").unwrap();
    let (plan, _) = store.open_for_write(b"plan", PAGE as u64, &on(0)).unwrap();
    assert_eq!(put_meanwhile(&store, patient(on(0)), || store.commit(&plan).unwrap()), NMC_OK);
    store.remove(b"late").unwrap();
    let (plan, _) = store.open_for_write(b"plan", PAGE as u64, &on(0)).unwrap();
    assert_eq!(put_meanwhile(&store, patient(on(0)), || store.abort(&plan).unwrap()), NMC_OK);
    store.remove(b"late").unwrap();
    put(&store, "hard", 1, &hard(on(0))).unwrap();
    assert_eq!(put_meanwhile(&store, patient(on(0)), || store.remove(b"hard").unwrap()), NMC_OK);
    // Whoever writes the same key meanwhile is first.
    store.remove(b"late").unwrap();
    put(&store, "hard", 1, &hard(on(0))).unwrap();
    let first = || {
        store.remove(b"k0").unwrap();
        let _ = put(&store, "late", 1, &on(0));
    };
    assert!([NMC_OK, NMC_ERR_EXISTS].contains(&put_meanwhile(&store, patient(on(0)), first)));
}

#[test]
fn a_put_that_waits_in_vain_says_what_is_full_and_what_never_fits_is_not_waited_for() {
    let store = store(4, 1);
    let soon = |options| PutOptions { wait: Wait::For(Duration::from_millis(20)), ..options };
    fill(&store, "k", 4, &hard(on(0)));
    let error = put(&store, "late", 1, &soon(on(0))).unwrap_err();
    assert_eq!(error.status, NMC_ERR_BUSY);
    assert!(error.message.contains("no room came"), "{}", error.message);
    // These return, though they could wait for a minute.
    let asked = || store.rank_stats(0).unwrap().oom_count;
    let before = asked();
    assert_eq!(status(put(&store, "huge", 5, &patient(on(0)))), NMC_ERR_NO_SPACE);
    assert_eq!(asked(), before + 1, "it was asked for once");
    let space = store.namespace(b"space", Some(2 * PAGE as u64)).unwrap();
    assert_eq!(status(put(&space, "huge", 3, &patient(on(0)))), NMC_ERR_NO_SPACE);
    // A quota that is used up is waited for.
    store.remove(b"k0").unwrap();
    store.remove(b"k1").unwrap();
    fill(&space, "q", 2, &hard(on(0)));
    assert_eq!(status(put(&space, "late", 1, &soon(on(0)))), NMC_ERR_NO_SPACE);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| status(put(&space, "late", 1, &patient(on(0)))));
        std::thread::sleep(Duration::from_millis(20));
        space.remove(b"q0").unwrap();
        assert_eq!(waiter.join().unwrap(), NMC_OK);
    });
}

#[test]
fn a_wait_for_room_ends_with_cancel_or_its_handle() {
    let store = store(4, 1);
    fill(&store, "k", 4, &hard(on(0)));
    assert_eq!(put_meanwhile(&store, patient(on(0)), || store.cancel()), NMC_ERR_CANCELLED);
    let other = store.share();
    assert_eq!(put_meanwhile(&other, patient(on(0)), || other.close()), NMC_ERR_CANCELLED);
    // Control: another handle's end ends nothing.
    let other = store.share();
    let act = || {
        other.close();
        std::thread::sleep(Duration::from_millis(20));
        store.remove(b"k0").unwrap();
    };
    assert_eq!(put_meanwhile(&store, patient(on(0)), act), NMC_OK);
}

#[test]
fn a_batch_waits_for_what_found_no_room_and_uses_its_own() {
    let store = store(4, 1);
    let value = vec![3u8; PAGE];
    let slices = [values::slice(&value)];
    let keys: Vec<String> = (0..16).map(|i| format!("k{i}")).collect();
    let items: Vec<(&[u8], Pieces<'_>)> = keys.iter().map(|key| (key.as_bytes(), Pieces::Slices(&slices))).collect();
    // Control: plans are asked for together, and four have room.
    let done = store.put_many(&items, &on(0)).unwrap();
    assert_eq!(done.iter().filter(|result| result.is_ok()).count(), 4);
    store.remove_all().unwrap();
    let done = store.put_many(&items, &patient(on(0))).unwrap();
    assert!(done.iter().all(std::result::Result::is_ok), "what was stored first makes room for the rest: {done:?}");

    store.remove_all().unwrap();
    fill(&store, "hard", 2, &hard(on(0)));
    let sizes: Vec<(&[u8], u64)> = keys[..3].iter().map(|key| (key.as_bytes(), PAGE as u64)).collect();
    // Each has metadata of its own, also the one that finds room later.
    let about: [&[u8]; 3] = [b"first", b"second", b"third"];
    let told = PutOptions { metadata_each: &about, ..patient(on(0)) };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| store.open_many(&sizes, &told).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        store.remove(b"hard0").unwrap();
        let opened = waiter.join().unwrap();
        assert!(opened.iter().all(std::result::Result::is_ok), "{opened:?}");
        for ((plan, _), (key, about)) in opened.into_iter().flatten().zip(keys.iter().zip(about)) {
            store.commit(&plan).unwrap();
            let Look::Ready(found) = store.metadata(key.as_bytes()).unwrap() else { panic!("{key} was committed") };
            assert_eq!(&found[..], about, "{key}");
            store.remove(key.as_bytes()).unwrap();
        }
    });
    // Those that found room keep it when the others are cancelled.
    fill(&store, "more", 1, &hard(on(0)));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| store.open_many(&sizes, &patient(on(0))).unwrap());
        while !waiter.is_finished() {
            std::thread::sleep(Duration::from_millis(2));
            store.cancel();
        }
        let opened = waiter.join().unwrap();
        let statuses: Vec<nmc_status_t> = opened.iter().cloned().map(status).collect();
        assert_eq!(statuses, [NMC_OK, NMC_OK, NMC_ERR_CANCELLED]);
    });
}

/// Many wait for the room of few: all get theirs, whoever comes first.
#[test]
fn everybody_who_waits_is_served_when_room_comes_again_and_again() {
    const THREADS: u64 = 6;
    let store = store(2, 1);
    fill(&store, "first", 2, &hard(on(0)));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for i in 0..40 {
                    let key = format!("{thread}/{i}");
                    // Nothing is ever evicted: room comes from the others' removals alone.
                    put(store, &key, 1, &hard(patient(on(0)))).unwrap();
                    store.remove(key.as_bytes()).unwrap();
                }
            });
        }
        // Control: none of them finds room before somebody leaves it.
        assert!(eventually(|| store.rank_stats(0).unwrap().oom_count >= 2 * THREADS));
        assert_eq!(store.rank_stats(0).unwrap().bytes_used, 2 * PAGE as u64);
        store.remove(b"first0").unwrap();
        store.remove(b"first1").unwrap();
    });
    assert_eq!(store.stats().unwrap().ranks[0].bytes_used, 0);
}

/// Waits for an object in three ways while `act` does something to its plan. All say the same.
fn ended_while(store: &Store, act: impl FnOnce(&Opened)) -> Error {
    let (plan, _) = store.open_for_write(b"k", 2 * PAGE as u64, &on(0)).unwrap();
    let begun = std::sync::Barrier::new(3);
    let wait = |pages, appear| {
        begun.wait();
        store.wait_ready(b"k", pages, appear, &Deadline::after(PATIENCE)).unwrap_err()
    };
    let ended = std::thread::scope(|scope| {
        let (whole, part) = (scope.spawn(|| wait(None, false)), scope.spawn(|| wait(Some(1), true)));
        store.watch(b"k", 5, true).unwrap();
        begun.wait();
        std::thread::sleep(Duration::from_millis(200));
        act(&plan);
        let ended = whole.join().unwrap();
        assert_eq!(part.join().unwrap(), ended);
        ended
    });
    let mut told = None;
    assert!(eventually(|| {
        store.completions(1, |completion| told = Some(completion));
        told.is_some()
    }));
    assert_eq!(told.map(|told| told.status), Some(ended.status));
    let _ = store.abort(&plan);
    ended
}

#[test]
fn a_wait_tells_removed_from_given_up_and_late() {
    let patient = store(8, 1);
    let removed = ended_while(&patient, |_| patient.remove(b"k").unwrap());
    assert!(removed.status == NMC_ERR_NOT_FOUND && removed.message.contains("removed"), "{removed}");
    let flushed = ended_while(&patient, |_| patient.remove_all().unwrap());
    assert_eq!(flushed.status, NMC_ERR_NOT_FOUND);
    let given_up = ended_while(&patient, |plan| patient.abort(plan).unwrap());
    assert!(given_up.status == NMC_ERR_STALE && given_up.message.contains("given up"), "{given_up}");
    // It stays told when the header is another object's.
    let again = ended_while(&patient, |plan| {
        patient.abort(plan).unwrap();
        for i in 0..3000 {
            put(&patient, &format!("x{i}"), 1, &on(0)).unwrap();
        }
    });
    assert_eq!(again, given_up);
    let hurried = Store::embedded(&world(8, 1), &Config { watchdog_ms: 2000, ..config() }).unwrap();
    let late = ended_while(&hurried, |_| ());
    assert!(late.status == NMC_ERR_STALE && late.message.contains("watchdog"), "{late}");
    // Control: nobody writes it; not yet.
    let soon = || Deadline::after(Duration::from_millis(5));
    assert_eq!(patient.wait_ready(b"k", None, false, &soon()).unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert_eq!(patient.wait_ready(b"k", None, true, &soon()).unwrap_err().status, NMC_ERR_TIMEOUT);
    let (_plan, _) = patient.open_for_write(b"k", 1, &on(0)).unwrap();
    assert_eq!(patient.wait_ready(b"k", None, false, &soon()).unwrap_err().status, NMC_ERR_TIMEOUT);
}
