//! Groups with blocks of their own, one promise at a time; `kv_model` has them under random calls.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test may")]

#[path = "common/kv.rs"]
mod common;

use nanomc::kv::Cache;
use nanomc::kv::NONE;
use nanomc::kv::hash::Algo;
use nanomc::kv::{Config, Open, Opened, OwnGroup, OwnKind, Room, State, WhenFull};

const SIZE: u32 = 4;

fn window(tokens: u32, blocks: u32) -> OwnGroup {
    OwnGroup { blocks, kind: OwnKind::Window(tokens) }
}

fn state(every: u32, blocks: u32) -> OwnGroup {
    OwnGroup { blocks, kind: OwnKind::State { every } }
}

fn cache(blocks: u32, when_full: WhenFull, groups: &[OwnGroup]) -> Cache {
    let groups = groups.to_vec();
    Cache::new(Config { when_full, own_groups: groups, ..common::config(blocks, SIZE, Algo::Blake3) }).expect("a cache")
}

fn open(cache: &Cache, id: u64, tokens: &[u32]) -> Result<Opened, Room> {
    let n_tokens = u32::try_from(tokens.len()).expect("few");
    let open = Open { n_tokens, tokens: Some(tokens), max_hit: n_tokens - 1, ..Open::default() };
    cache.open(id, &open).expect("valid")
}

fn numbers(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

#[test]
fn a_cut_to_the_same_length_frees_what_was_reserved_in_all_groups() {
    let cache = cache(64, WhenFull::Reject, &[window(6, 30), state(0, 4)]);
    open(&cache, 1, &numbers(0, 8)).expect("room");
    let (before, slots) = (cache.group_stats(0).used, cache.state_slots(1, 1).expect("open"));
    cache.reserve(1, 40).expect("valid").expect("room");
    assert_eq!(cache.group_stats(0).used, before + 8);
    cache.truncate(1, 8).expect("valid").expect("room");
    assert_eq!((cache.group_stats(0).used, cache.stats().used), (before, 2));
    assert_eq!(cache.state_slots(1, 1).expect("open"), slots, "the slot for its tokens is still its own");
    cache.audit().expect("right");
}

#[test]
fn what_is_pinned_and_held_is_counted_once_when_room_is_looked_for() {
    let cache = cache(64, WhenFull::EvictSequence, &[state(0, 2)]);
    open(&cache, 1, &numbers(0, 4)).expect("room");
    cache.keep_state(1).expect("at the end of a block");
    cache.pin(1, 4).expect("open");
    open(&cache, 2, &numbers(100, 4)).expect("room");
    // Its state is kept, so that one more slot is needed: that of the other sequence.
    cache.append(1, 1, Some(&[9]), None).expect("valid").expect("the other sequence goes");
    assert_eq!(cache.info(2).expect("open").state, State::Evicted);
    cache.audit().expect("right");
}

#[test]
fn a_pin_keeps_the_window_and_the_state_of_where_a_sequence_can_begin() {
    let cache = cache(64, WhenFull::Reject, &[window(6, 8), state(0, 8)]);
    let mut tokens = numbers(0, 8);
    open(&cache, 1, &tokens).expect("room");
    cache.keep_state(1).expect("at the end of a block");
    let more = numbers(50, 12);
    for token in &more {
        cache.append(1, 1, Some(&[*token]), None).expect("valid").expect("room");
    }
    cache.commit(1, 20).expect("valid");
    tokens.extend(more);
    // Five blocks, and a state after two of them. A sequence can begin with two, so that it is their window that matters.
    assert_eq!(cache.pin(1, 20).expect("open").1, 20);
    assert_eq!(cache.matching(Some(&tokens), None, &[]), Ok(8));
    cache.close(1, true).expect("open");
    // Others need all blocks of windows that they can get.
    for id in 10..20 {
        let _room = open(&cache, u64::from(id), &numbers(id * 1000, 24));
        cache.close(u64::from(id), true).ok();
    }
    assert_eq!(cache.matching(Some(&tokens), None, &[]), Ok(8), "the pinned prefix can still be used");
    cache.audit().expect("right");
}

#[test]
fn a_sequence_is_shortened_to_what_the_scarcest_group_has() {
    let cache = cache(10, WhenFull::Shorten, &[window(100, 40), state(0, 4)]);
    open(&cache, 1, &numbers(0, 32)).expect("room");
    // 40 - 8 blocks of the window, but 2 of the cache.
    let opened = open(&cache, 2, &numbers(1000, 160)).expect("shortened");
    assert_eq!(opened.tokens, 8);
    cache.audit().expect("right");
}

#[test]
fn nobody_is_evicted_for_a_sequence_that_could_never_fit_with_what_it_shares() {
    let cache = cache(10, WhenFull::EvictSequence, &[]);
    let mut tokens = numbers(0, 20);
    open(&cache, 1, &tokens).expect("room");
    cache.commit(1, 20).expect("valid");
    open(&cache, 2, &numbers(500, 8)).expect("room");
    // Eleven blocks, five of which it shares.
    tokens.extend(numbers(900, 24));
    assert_eq!(open(&cache, 3, &tokens).expect_err("too long").needed, 6);
    for id in [1, 2] {
        assert_eq!(cache.info(id).expect("open").state, State::Open);
    }
}

#[test]
fn the_largest_windows_and_sequences_do_not_overflow() {
    for tokens in [u32::MAX, u32::MAX - 2, 1 << 31] {
        let mut groups = [window(tokens, 30), state(1, 8)].to_vec();
        for main in [0, tokens] {
            groups.truncate(if main == 0 { 2 } else { 1 });
            let plain = cache(64, WhenFull::Reject, &groups);
            let cache = Cache::new(Config { window: main, ..plain.config().clone() }).expect("a cache");
            open(&cache, 1, &numbers(0, 3)).expect("room");
            for token in 0..30 {
                let mut done = None;
                cache.append_batch(&[1], Some(&[token]), |_, one| done = Some(one));
                done.expect("told").expect("valid").expect("room");
            }
            assert_eq!(cache.group_stats(0).used, 9, "nothing ever leaves the window");
            assert_eq!(cache.info(1).expect("open").holes, 0);
            cache.audit().expect("right");
        }
    }
}

#[test]
fn a_reserved_slot_is_not_a_state() {
    let cache = cache(64, WhenFull::Reject, &[state(0, 4)]);
    open(&cache, 1, &numbers(0, 4)).expect("room");
    cache.append(1, 0, Some(&[]), None).expect("valid").expect("room");
    let (read, write) = cache.state_slots(1, 0).expect("open");
    assert!(read != NONE && write == NONE, "all tokens are computed, and there are no others");
    cache.reserve(1, 20).expect("valid").expect("room");
    assert_eq!(cache.state_slots(1, 0).expect("open"), (read, NONE));
}
