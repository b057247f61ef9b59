//! Blocks that go to a store and come back: bit for bit, in arenas of other layouts; and whatever is cancelled, closed,
//! damaged or gone on the way, only whole and checked blocks count, and the audit finds every block where it should be.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may"
)]
#![allow(unsafe_code, reason = "a test that damages memory")]

mod common;
#[path = "common/kv.rs"]
mod kv;
#[path = "common/slices.rs"]
mod slices;
#[path = "common/words.rs"]
mod words;

use nanomc::base::Deadline;
use nanomc::base::error::Result;
use nanomc::base::status::*;
use nanomc::kv::Open;
use nanomc::kv::hash::Algo;
use nanomc::kv::place::Region;
use nanomc::kv::place::geometry::{Dtype, Geometry, Kind, Order, Shape, Side, Sides};
use nanomc::kv::transfer::After;
use nanomc::kv::transfer::steps::Step;
use nanomc::kv::{GroupSpec, Kv, Spec};
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Look, PutOptions};
use nanomc::store::{self, Store};
use nanomc::tier::{self, Tier};
use slices::{slice, slice_mut};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use words::short_word;

const SIZE: u32 = 4;
const LAYERS: [u32; 2] = [3, 1];
const PAGE: u32 = 4096;

fn store(checksums: bool) -> Store {
    let mut world = common::config(std::path::Path::new("/"), None, 1);
    (world.dir, world.heap_bytes) = (None, 4096 * u64::from(PAGE));
    Store::embedded(&world, &store::Config { page_bytes: PAGE, checksums, ..store::Config::default() }).unwrap()
}

/// A cache with its memory: a group of attention layers and one of latent vectors.
struct Node {
    kv: Kv,
    geometries: Vec<Geometry>,
    memory: Vec<Vec<u64>>,
}

impl Node {
    fn new(store: &Store, blocks: u32, order: Order, sides: Sides) -> Self {
        let config = kv::config(blocks, SIZE, Algo::Blake3);
        let shape = |kind, layers, kv_heads| Shape {
            kind,
            dtype: Dtype::Fp32,
            layers,
            kv_heads,
            head_dim: 6,
            tokens_per_block: SIZE,
            total_blocks: u64::from(blocks),
            order,
            sides,
        };
        let shapes = [shape(Kind::Full, LAYERS[0], 2), shape(Kind::Mla, LAYERS[1], 1)];
        let geometries = shapes.map(|shape| Geometry::new(shape).unwrap()).to_vec();
        let memory: Vec<Vec<u64>> = geometries.iter().map(|g| vec![0; g.bytes().div_ceil(8) as usize]).collect();
        let group = |(shape, memory): (Shape, &Vec<u64>)| {
            // SAFETY: the node has it as long as its cache, and looks at it only where no transfer writes.
            let region = unsafe { Region::new(memory.as_ptr() as u64, memory.len() as u64 * 8) };
            GroupSpec { shape, own: None, memory: Some(region) }
        };
        let groups = shapes.into_iter().zip(&memory).map(group).collect();
        let kv = Kv::new(&Spec { config, capacity_blocks: blocks, groups, mapped: None }).unwrap();
        kv.attach_store(|| Ok(store.share())).unwrap();
        Self { kv, geometries, memory }
    }

    /// All places of a token of a sequence, with what makes each of them different.
    fn places(&self, id: u64, token: u32) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        for (number, geometry) in (0..).zip(&self.geometries) {
            let shape = geometry.shape();
            let heads = if shape.kind == Kind::Mla { 1 } else { shape.kv_heads };
            for layer in 0..shape.layers {
                for side in [Side::K, Side::V].into_iter().take(geometry.side_count() as usize) {
                    for head in 0..heads {
                        let at = self.kv.token_address(id, token, number, (layer, side, head)).unwrap();
                        for dim in 0..shape.head_dim {
                            let salt = ((number * 8 + layer) * 2 + u32::from(side == Side::V)) * 4 + head;
                            all.push((at + u64::from(dim) * 4, salt * 64 + dim));
                        }
                    }
                }
            }
        }
        all
    }

    /// Computes tokens of a sequence.
    fn write(&mut self, id: u64, tokens: &[u32], range: std::ops::Range<u32>) {
        for at in range {
            for (address, salt) in self.places(id, at) {
                // SAFETY: an address in `memory`, which nobody else touches now.
                unsafe { (address as *mut u32).write(short_word(salt, &tokens[..=at as usize])) };
            }
        }
    }

    fn is_right(&self, id: u64, tokens: &[u32], range: std::ops::Range<u32>) -> bool {
        range.into_iter().all(|at| {
            // SAFETY: an address in `memory`, which no transfer writes now.
            let read = |address: u64| unsafe { (address as *const u32).read() };
            self.places(id, at)
                .into_iter()
                .all(|(address, salt)| read(address) == short_word(salt, &tokens[..=at as usize]))
        })
    }

    fn open(&self, id: u64, tokens: &[u32]) -> u32 {
        let n_tokens = tokens.len() as u32;
        let open = Open { n_tokens, tokens: Some(tokens), max_hit: n_tokens, ..Open::default() };
        self.kv.open(id, &open).unwrap().expect("room").hit_tokens
    }

    fn end(&self, ticket: u64) -> (u32, Result<()>) {
        let (progress, over) = self.kv.wait(ticket, Deadline::after(Duration::from_secs(60))).unwrap();
        (progress.blocks_done, over.expect("it ends"))
    }

    /// Opens, computes and sends a prompt, and lets it go.
    fn send(&mut self, id: u64, tokens: &[u32]) {
        let hit = self.open(id, tokens);
        self.write(id, tokens, hit..tokens.len() as u32);
        self.kv.commit(id, tokens.len() as u32).unwrap();
        let ticket = self.kv.offload(id, tokens.len() as u32, After::Nothing).unwrap();
        // What becomes of the sequence does not matter any more.
        self.kv.close(id, false).unwrap();
        self.end(ticket).1.unwrap();
    }

    fn is_clean(&self) {
        self.kv.audit().unwrap();
        let stats = self.kv.stats().cache;
        assert_eq!((stats.used, stats.sequences), (0, 0), "nothing is held when nothing is open");
    }
}

fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|at| seed * 1000 + at).collect()
}

fn key_of(store: &Store, node: &Node, tokens: &[u32], block: usize) -> Vec<u8> {
    let hash = node.kv.hashes_of(tokens, b"").unwrap()[block];
    let mut found = None;
    let mut cursor = 0;
    while let Some(listed) = store.next(cursor).unwrap() {
        cursor = listed.cursor;
        if listed.key.ends_with(&hash.0) {
            found = Some(listed.key);
        }
    }
    found.expect("the block is in the store")
}

#[test]
fn a_sequence_whose_fetch_nobody_asked_about_counts_only_what_came() {
    let store = store(true);
    let mut a = Node::new(&store, 40, Order::BlockMajor, Sides::PerLayer);
    let tokens = prompt(3, 24);
    a.send(1, &tokens);
    for by_layer in [false, true] {
        let mut b = Node::new(&store, 40, Order::BlockMajor, Sides::PerLayer);
        let found = |node: &Node| node.kv.matching(Some(&tokens), None, b"").unwrap();
        b.open(7, &tokens);
        let (ticket, fetched) = b.kv.onboard(7, After::Nothing, false, by_layer).unwrap();
        assert_eq!(fetched, 20, "the last token, and so its block, is left to compute");
        // It is over, but the program does not know, and so has computed nothing.
        assert!(common::eventually(|| b.kv.info(7).unwrap().computed == 20));
        assert!(common::eventually(|| b.kv.audit().is_ok() && found(&b) == 20));
        let busy = [b.kv.append(7, 1, None, None).map(drop), b.kv.commit(7, 24), b.kv.fork(7, 8).map(drop)];
        assert!(busy.iter().all(|done| done.as_ref().is_err_and(|error| error.status == NMC_ERR_BUSY)), "{busy:?}");
        b.kv.close(7, false).unwrap();
        assert_eq!(found(&b), 20, "what it did not compute is not there");
        b.end(ticket).1.unwrap();
        b.is_clean();

        // The control: told, the program computes the rest, and closing counts it.
        b.kv.clear().unwrap();
        assert_eq!(b.open(7, &tokens), 0);
        let (ticket, _) = b.kv.onboard(7, After::Nothing, false, by_layer).unwrap();
        b.end(ticket).1.unwrap();
        b.write(7, &tokens, 20..24);
        b.kv.close(7, false).unwrap();
        assert_eq!(found(&b), 24);
        b.is_clean();
    }
}

#[test]
fn doubles_of_blocks_that_others_published_go_to_the_store_under_their_names() {
    let store = store(true);
    let mut a = Node::new(&store, 40, Order::BlockMajor, Sides::PerLayer);
    let tokens = prompt(4, 16);
    for (id, contiguous) in [(1, false), (2, true)] {
        let open = Open { n_tokens: 16, tokens: Some(&tokens), max_hit: 15, contiguous, ..Open::default() };
        assert_eq!(a.kv.open(id, &open).unwrap().expect("room").hit_tokens, 0);
        a.write(id, &tokens, 0..16);
    }
    a.kv.commit(1, 8).unwrap();
    a.kv.commit(2, 16).unwrap();
    assert_eq!(a.kv.info(2).unwrap().published, 4);
    let ticket = a.kv.offload(2, 16, After::Nothing).unwrap();
    a.end(ticket).1.unwrap();
    assert_eq!(a.kv.stored_tokens(2).unwrap(), 16);
    a.kv.close(1, true).unwrap();
    a.kv.close(2, false).unwrap();
    a.is_clean();
    let mut b = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    b.open(7, &tokens);
    let (ticket, found) = b.kv.onboard(7, After::Nothing, true, false).unwrap();
    assert_eq!(found, 16);
    b.end(ticket).1.unwrap();
    assert!(b.is_right(7, &tokens, 0..16));
    b.write(7, &tokens, 16..16);
    b.kv.close(7, false).unwrap();
    b.is_clean();
}

const LAYOUTS: [(Order, Sides); 5] = [
    (Order::LayerMajor, Sides::Separate),
    (Order::HeadMajor, Sides::Separate),
    (Order::BlockMajor, Sides::PerLayer),
    (Order::LayerMajor, Sides::PerBlock),
    (Order::BlockMajor, Sides::Separate),
];

#[test]
fn blocks_come_back_bit_for_bit_in_any_layout() {
    let store = store(true);
    for (from, (order, sides)) in (0..).zip(LAYOUTS) {
        let mut a = Node::new(&store, 40, order, sides);
        let tokens = prompt(from + 1, 22);
        a.send(1, &tokens);
        for (order, sides) in LAYOUTS {
            for by_layer in [false, true] {
                let mut b = Node::new(&store, 40, order, sides);
                assert_eq!(b.open(7, &tokens), 0);
                let (ticket, found) = b.kv.onboard(7, After::Nothing, false, by_layer).unwrap();
                assert_eq!(found, 20, "five full blocks; the last two tokens are left");
                b.end(ticket).1.unwrap();
                assert_eq!(b.kv.info(7).unwrap().computed, 20);
                assert!(b.is_right(7, &tokens, 0..20));
                assert_eq!(b.kv.stored_tokens(7).unwrap(), 20);
                // The rest is computed here, and the next one finds all of it.
                b.write(7, &tokens, 20..22);
                b.kv.close(7, false).unwrap();
                assert_eq!(b.open(8, &tokens), 20);
                assert!(b.is_right(8, &tokens, 0..20));
                b.kv.close(8, false).unwrap();
                b.is_clean();
            }
        }
        a.is_clean();
    }
}

#[test]
fn another_layout_of_heads_and_tokens_finds_nothing() {
    let store = store(false);
    let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(1, 16);
    a.send(1, &tokens);
    let b = Node::new(&store, 40, Order::LayerMajorNhd, Sides::Separate);
    b.open(1, &tokens);
    assert_eq!(b.kv.onboard(1, After::Nothing, true, false).unwrap(), (0, 0));
    b.kv.close(1, false).unwrap();
    b.is_clean();
}

#[test]
fn what_is_being_fetched_can_be_read_or_closed_and_nothing_else() {
    let store = store(false);
    let mut a = Node::new(&store, 600, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(1, 2000);
    a.send(1, &tokens);
    let b = Node::new(&store, 600, Order::HeadMajor, Sides::Separate);
    b.open(5, &tokens);
    let (ticket, _) = b.kv.onboard(5, After::Nothing, false, true).unwrap();
    let busy = |result: Result<()>| {
        // It may be over by now, on a machine that stalls here; then the call is as any other.
        if let Err(error) = result {
            assert_eq!(error.status, NMC_ERR_BUSY);
        }
    };
    busy(b.kv.append(5, 1, None, None).map(|_| ()));
    busy(b.kv.commit(5, 1).map(|_| ()));
    busy(b.kv.fork(5, 6).map(|_| ()));
    busy(b.kv.onboard(5, After::Nothing, false, false).map(|_| ()));
    assert!(b.kv.unpin(ticket).is_err(), "a transfer's hold is not a pin");
    b.kv.audit().unwrap();
    b.kv.close(5, false).unwrap();
    let _whichever = b.kv.close(6, true);
    b.end(ticket).1.ok();
    b.is_clean();
    assert!(b.kv.poll(ticket).is_err(), "an end is told once");
}

#[test]
fn cancelled_or_closed_at_any_moment_nothing_is_lost_and_nothing_unwritten_is_matched() {
    let store = store(true);
    let mut a = Node::new(&store, MANY, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(3, 400);
    a.send(1, &tokens);
    let mut b = Node::new(&store, 210, Order::HeadMajor, Sides::PerLayer);
    let (mut whole, mut part, mut none) = (0, 0, 0);
    for round in 0..150u32 {
        b.memory.iter_mut().for_each(|group| group.fill(u64::MAX));
        let id = u64::from(round);
        b.open(id, &tokens);
        let (ticket, _) = b.kv.onboard(id, After::Nothing, false, round % 3 == 0).unwrap();
        for _ in 0..round * 37 % 4000 {
            std::hint::spin_loop();
        }
        let closes = round % 2 == 0;
        if closes {
            // An abort: an orderly close says that all was computed, if the fetch is over by now.
            b.kv.close(id, true).unwrap();
        }
        if round % 5 > 0 {
            b.kv.cancel_transfer(ticket).unwrap();
        }
        let (done, over) = b.end(ticket);
        match over {
            Ok(()) => whole += 1,
            Err(error) => {
                assert_eq!(error.status, NMC_ERR_CANCELLED);
                if done > 0 { part += 1 } else { none += 1 }
            }
        }
        b.kv.audit().unwrap();
        if !closes {
            let computed = b.kv.info(id).unwrap().computed;
            assert_eq!(computed, done * SIZE, "whole blocks, in order");
            assert!(b.is_right(id, &tokens, 0..computed));
            // Not `close`, which would say that the rest was computed.
            b.kv.close(id, true).unwrap();
        }
        // What others find now is right, and no more than what came.
        let hit = b.open(1_000_000, &tokens);
        assert!(hit <= done * SIZE && b.is_right(1_000_000, &tokens, 0..hit));
        b.kv.close(1_000_000, true).unwrap();
        b.kv.clear().unwrap();
        b.is_clean();
    }
    println!("{whole} whole, {part} in part, {none} not at all");
    assert!(whole > 0 && none + part > 0);
}

#[test]
fn control_a_program_that_says_it_computed_what_never_came_is_caught() {
    let store = store(false);
    let mut a = Node::new(&store, MANY, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(3, 400);
    a.send(1, &tokens);
    let mut b = Node::new(&store, 210, Order::LayerMajor, Sides::Separate);
    b.memory.iter_mut().for_each(|group| group.fill(u64::MAX));
    b.open(1, &tokens);
    let (ticket, _) = b.kv.onboard(1, After::Nothing, false, true).unwrap();
    b.kv.cancel_transfer(ticket).unwrap();
    let (done, over) = b.end(ticket);
    b.kv.close(1, false).unwrap();
    let hit = b.open(2, &tokens);
    // The last block was left to compute in any case, and never was.
    assert!(hit > done * SIZE, "{over:?}");
    assert!(!b.is_right(2, &tokens, 0..hit), "unwritten blocks were taken for right");
    b.kv.close(2, true).unwrap();
    b.is_clean();
}

#[test]
fn a_block_that_is_damaged_or_of_another_size_ends_the_fetch_before_it() {
    for (damage, by_layer) in [(true, false), (true, true), (false, false), (false, true)] {
        let store = store(true);
        let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
        let tokens = prompt(9, 24);
        a.send(1, &tokens);
        let key = key_of(&store, &a, &tokens, 3);
        if damage {
            let Look::Ready((pin, place)) = store.pin(&key).unwrap() else { panic!() };
            let address = store.base(0).unwrap() + place.offset + place.bytes_total - 1;
            // SAFETY: inside the value, which is pinned.
            unsafe { (address as *mut u8).write(!(address as *const u8).read()) };
            store.unpin(pin).unwrap();
        } else {
            store.remove(&key).unwrap();
            let less = [7u8; 100];
            let slices = [slice(&less)];
            store.put(&key, &Pieces::Slices(&slices), &PutOptions::DEFAULT).unwrap();
        }
        let b = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
        b.open(1, &tokens);
        let (ticket, found) = b.kv.onboard(1, After::Nothing, true, by_layer).unwrap();
        assert_eq!(found, 24);
        let (done, over) = b.end(ticket);
        assert_eq!(over.unwrap_err().status, NMC_ERR_CORRUPT);
        assert_eq!(done, if by_layer { 0 } else { 3 });
        assert_eq!(b.kv.info(1).unwrap().computed, done * SIZE);
        assert!(b.is_right(1, &tokens, 0..done * SIZE));
        assert_eq!(b.kv.matching(Some(&tokens), None, b"").unwrap(), done * SIZE);
        b.kv.close(1, true).unwrap();
        b.is_clean();
    }
}

#[test]
fn blocks_that_leave_the_store_meanwhile_are_missed_and_not_made_up() {
    let store = store(false);
    let mut a = Node::new(&store, 900, Order::LayerMajor, Sides::Separate);
    let (long, tokens) = (prompt(1, 3000), prompt(2, 24));
    a.send(2, &tokens);
    let b = Node::new(&store, 900, Order::LayerMajor, Sides::Separate);
    let mut missed = false;
    for round in 0..50 {
        // The thread is busy with the long one when a block of the short one goes.
        let n = long.len() as u32;
        let open = Open { n_tokens: n, tokens: Some(&long), max_hit: 0, ..Open::default() };
        b.kv.open(100, &open).unwrap().unwrap();
        b.kv.commit(100, n).unwrap();
        let slow = b.kv.offload(100, n, After::Nothing).unwrap();
        b.open(1, &tokens);
        let (ticket, found) = b.kv.onboard(1, After::Nothing, true, false).unwrap();
        assert_eq!(found, 24);
        let key = key_of(&store, &a, &tokens, 4);
        store.remove(&key).unwrap();
        let (done, over) = b.end(ticket);
        if let Err(error) = over {
            assert_eq!((error.status, done), (NMC_ERR_STALE, 4));
            assert_eq!(b.kv.info(1).unwrap().computed, 16);
            missed = true;
        }
        b.end(slow).1.unwrap();
        b.kv.close(1, true).unwrap();
        b.kv.close(100, true).unwrap();
        b.kv.clear().unwrap();
        b.is_clean();
        if missed {
            break;
        }
        store.remove_all().unwrap();
        a.send(10 + round, &tokens);
        // The cache had it, so it was not sent: compute it again.
        a.kv.clear().unwrap();
        a.send(100 + round, &tokens);
    }
    assert!(missed, "in no round was the thread busy long enough");
}

#[test]
fn a_full_store_says_so_and_the_cache_goes_on() {
    let mut world = common::config(std::path::Path::new("/"), None, 1);
    (world.dir, world.heap_bytes) = (None, 16 * u64::from(PAGE));
    let config = store::Config { page_bytes: PAGE, ..store::Config::default() };
    let store = Store::embedded(&world, &config).unwrap();
    // What is pinned does not make room.
    let page = vec![1u8; PAGE as usize];
    let slices = [slice(&page)];
    let mut pins = Vec::new();
    for number in 0..64u8 {
        if store.put(&[number], &Pieces::Slices(&slices), &PutOptions::DEFAULT).is_err() {
            break;
        }
        let Look::Ready((pin, _)) = store.pin(&[number]).unwrap() else { panic!() };
        pins.push(pin);
    }
    assert!(pins.len() < 64);
    let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(1, 100);
    a.open(1, &tokens);
    a.write(1, &tokens, 0..100);
    a.kv.commit(1, 100).unwrap();
    let ticket = a.kv.offload(1, 100, After::Nothing).unwrap();
    let (done, over) = a.end(ticket);
    assert_eq!(done, 0);
    assert!(matches!(over.unwrap_err().status, NMC_ERR_NO_SPACE | NMC_ERR_BUSY));
    assert!(a.is_right(1, &tokens, 0..100));
    pins.into_iter().for_each(|pin| store.unpin(pin).unwrap());
    a.kv.close(1, false).unwrap();
    a.is_clean();
}

#[test]
fn nothing_is_fetched_into_blocks_that_others_have() {
    let store = store(true);
    let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(9, 24);
    a.send(1, &tokens);
    let mut b = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    b.open(1, &tokens);
    b.kv.fork(1, 2).unwrap().unwrap();
    // Both have them, and either may compute them at any time.
    for id in [1, 2] {
        let refused = b.kv.onboard(id, After::Nothing, true, false).unwrap_err();
        assert_eq!((refused.status, refused.message.contains("then fork")), (NMC_ERR_UNSUPPORTED, true));
    }
    b.write(1, &tokens, 0..24);
    b.kv.commit(1, 24).unwrap();
    b.kv.close(1, false).unwrap();
    // They were published, though nobody else holds them any more.
    assert_eq!(b.kv.onboard(2, After::Nothing, true, false).unwrap_err().status, NMC_ERR_UNSUPPORTED);
    assert!(b.is_right(2, &tokens, 0..24));
    b.kv.close(2, false).unwrap();
    b.is_clean();
    // One whose parent was given up has them alone.
    let other = prompt(8, 24);
    a.send(3, &other);
    b.open(3, &other);
    b.kv.fork(3, 4).unwrap().unwrap();
    b.kv.close(3, true).unwrap();
    let (ticket, found) = b.kv.onboard(4, After::Nothing, true, false).unwrap();
    assert_eq!(found, 24);
    b.end(ticket).1.unwrap();
    assert!(b.is_right(4, &other, 0..24));
    b.kv.close(4, false).unwrap();
    b.is_clean();
}

/// What happens to a transfer, and when.
fn at(node: &Node, wanted: Step, then: impl FnOnce() + Send + 'static) {
    let then = Mutex::new(Some(then));
    let told = node.kv.link().unwrap().watch(Box::new(move |_, step| {
        if step == wanted
            && let Some(then) = then.lock().unwrap().take()
        {
            then();
        }
        Ok(())
    }));
    assert!(told);
}

#[test]
fn what_had_come_stays_when_its_sequence_is_closed_in_the_middle() {
    let store = store(true);
    let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(1, 80);
    a.send(1, &tokens);
    for discard in [false, true] {
        let b = Node::new(&store, 40, Order::HeadMajor, Sides::Separate);
        b.open(5, &tokens);
        let (come, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let both = (Arc::clone(&come), Arc::clone(&go_on));
        at(&b, Step::Counted(12), move || {
            both.0.wait();
            both.1.wait();
        });
        let (ticket, _) = b.kv.onboard(5, After::Nothing, true, false).unwrap();
        come.wait();
        // Threads work side by side: how many leading blocks there are by now it says itself.
        let had_come = b.kv.poll(ticket).unwrap().0.blocks_done;
        b.kv.close(5, discard).unwrap();
        go_on.wait();
        b.end(ticket).1.unwrap();
        let stayed = b.kv.matching(Some(&tokens), None, b"").unwrap() / SIZE;
        assert!(stayed >= had_come && stayed <= 20, "{stayed} of {had_come} stayed");
        b.open(6, &tokens);
        assert!(b.is_right(6, &tokens, 0..stayed * SIZE));
        b.kv.close(6, true).unwrap();
        b.is_clean();
    }
}

#[test]
fn what_somebody_else_only_writes_is_not_in_the_store_yet() {
    let store = store(true);
    let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(9, 24);
    a.send(1, &tokens);
    let key = key_of(&store, &a, &tokens, 3);
    let Look::Ready(place) = store.location(&key).unwrap() else { panic!("it is there") };
    for gives_up in [true, false] {
        store.remove(&key).unwrap();
        let (plan, _) = store.open_for_write(&key, place.bytes_total, &PutOptions::DEFAULT).unwrap();
        a.open(2, &tokens);
        let ticket = a.kv.offload(2, 24, After::Nothing).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(a.kv.poll(ticket).unwrap().1.is_none(), "it is not stored yet");
        match gives_up {
            true => store.abort(&plan).unwrap(),
            false => store.commit(&plan).unwrap(),
        }
        a.end(ticket).1.unwrap();
        assert_eq!(a.kv.stored_tokens(2).unwrap(), 24);
        a.kv.close(2, false).unwrap();
    }
    // Nobody waits for it who gives up himself.
    store.remove(&key).unwrap();
    let (plan, _) = store.open_for_write(&key, place.bytes_total, &PutOptions::DEFAULT).unwrap();
    a.open(2, &tokens);
    let ticket = a.kv.offload(2, 24, After::Nothing).unwrap();
    a.kv.cancel_transfer(ticket).unwrap();
    assert_eq!(a.end(ticket).1.unwrap_err().status, NMC_ERR_CANCELLED);
    store.abort(&plan).unwrap();
    a.kv.close(2, false).unwrap();
    a.is_clean();
}

/// A block that comes layer by layer is of one value, or does not count.
#[test]
fn layers_of_two_values_are_no_block() {
    let store = store(true);
    let mut a = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(9, 4);
    a.send(1, &tokens);
    let key = key_of(&store, &a, &tokens, 0);
    let Look::Ready(place) = store.location(&key).unwrap() else { panic!("it is there") };
    let mut value = vec![0u8; place.bytes_total as usize];
    let slices = [slice_mut(&mut value)];
    store.get_into(&key, &Pieces::Slices(&slices)).unwrap();
    for (after, replaced) in [(None, false), (Some(0), true), (Some(1), true)] {
        let b = Node::new(&store, 40, Order::LayerMajor, Sides::Separate);
        if let Some(part) = after {
            let (store, key, other) = (store.share(), key.clone(), value.iter().map(|byte| !byte).collect::<Vec<_>>());
            let replaced = AtomicBool::new(false);
            let told = b.kv.link().unwrap().watch(Box::new(move |_, step| {
                match step {
                    Step::Copied(copied) if copied == part => {
                        let slices = [slice(&other)];
                        let options = PutOptions { replace: true, ..PutOptions::DEFAULT };
                        store.put(&key, &Pieces::Slices(&slices), &options).unwrap();
                        replaced.store(true, SeqCst);
                    }
                    // Threads work side by side, and this layer comes after that.
                    Step::Waited(later) if later > part => {
                        while !replaced.load(SeqCst) {
                            std::thread::yield_now();
                        }
                    }
                    _ => {}
                }
                Ok(())
            }));
            assert!(told);
        }
        b.open(7, &tokens);
        let (ticket, found) = b.kv.onboard(7, After::Nothing, true, true).unwrap();
        assert_eq!(found, 4);
        let ended = b.end(ticket).1;
        match replaced {
            true => assert_eq!(ended.unwrap_err().status, NMC_ERR_STALE, "{after:?}"),
            false => ended.unwrap(),
        }
        assert_eq!(b.kv.matching(Some(&tokens), None, b"").unwrap(), if replaced { 0 } else { 4 });
        assert!(replaced || b.is_right(7, &tokens, 0..4));
        b.kv.close(7, false).unwrap();
        b.is_clean();
        let options = PutOptions { replace: true, ..PutOptions::DEFAULT };
        store.put(&key, &Pieces::Slices(&slices), &options).unwrap();
    }
}

// ---- from disk -------------------------------------------------------------------------------------------------------

/// Blocks that a thread reads together if there are many, and enough for that.
const TOGETHER: usize = 16;
const MANY: u32 = 256;

/// A store that has a prompt on disk, and nothing in memory.
fn on_disk() -> (tempfile::TempDir, Store, Tier, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let store = store(true);
    let config =
        tier::Config { directory: dir.path().join("tier"), paused: true, max_objects: 4096, ..tier::Config::default() };
    let tier = Tier::open(&store, &config, &mut |_, _| ()).unwrap();
    let mut node = Node::new(&store, MANY, Order::LayerMajor, Sides::Separate);
    let tokens = prompt(1, MANY * SIZE);
    node.send(1, &tokens);
    assert_eq!(tier.offload(None).unwrap(), u64::from(MANY));
    store.evict_until_below(0, 0).unwrap();
    (dir, store, tier, tokens)
}

/// What the threads of a link do. All but the first that comes wait with the part that they took until that one has copied one.
#[derive(Default)]
struct Turns {
    now: Mutex<Now>,
    turned: Condvar,
}

#[derive(Default)]
struct Now {
    first: Option<ThreadId>,
    may_go: bool,
    /// Parts that a thread has begun and not copied.
    open: HashMap<ThreadId, usize>,
    /// The most of one thread, and of all.
    most: (usize, usize),
    waited: usize,
}

impl Turns {
    /// Watches; `then` is called at each step of the first thread, before others hear of it.
    fn of(node: &Node, then: impl Fn(Step) + Send + Sync + 'static) -> Arc<Self> {
        let turns = Arc::new(Self::default());
        let mine = Arc::clone(&turns);
        let told = node.kv.link().unwrap().watch(Box::new(move |_, step| {
            // The others are steps of the thread that asked, or of none in particular.
            if matches!(step, Step::Taken(_) | Step::Waited(_) | Step::Copied(_)) {
                mine.reach(step, || then(step));
            }
            Ok(())
        }));
        assert!(told);
        turns
    }

    fn reach(&self, step: Step, then: impl Fn()) {
        let me = std::thread::current().id();
        let is_first = *self.now.lock().unwrap().first.get_or_insert(me) == me;
        if is_first {
            then();
        }
        let mut now = self.now.lock().unwrap();
        match step {
            Step::Taken(_) if !is_first => drop(self.turned.wait_while(now, |now| !now.may_go).unwrap()),
            Step::Waited(_) => {
                now.waited += 1;
                let mine = now.open.entry(me).or_default();
                *mine += 1;
                let (mine, all) = (*mine, now.open.values().sum());
                now.most = (now.most.0.max(mine), now.most.1.max(all));
            }
            Step::Copied(_) => {
                *now.open.entry(me).or_default() -= 1;
                now.may_go = true;
                self.turned.notify_all();
            }
            _ => {}
        }
    }

    /// The most blocks that were under way together: of one thread, and of all.
    fn most(&self) -> (usize, usize) {
        self.now.lock().unwrap().most
    }
}

fn keys_on_disk(tier: &Tier) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    tier.scan(&mut |found| {
        keys.push(found.key.to_vec());
        true
    })
    .unwrap();
    keys
}

#[test]
fn blocks_on_disk_are_read_together_and_each_once() {
    let (_dir, store, tier, tokens) = on_disk();
    let fetch = |by_layer| {
        let node = Node::new(&store, MANY, Order::HeadMajor, Sides::Separate);
        let turns = Turns::of(&node, |_| ());
        node.open(2, &tokens);
        let before = store.disk_reads().0;
        let (ticket, found) = node.kv.onboard(2, After::Nothing, true, by_layer).unwrap();
        assert_eq!(found, MANY * SIZE);
        node.end(ticket).1.unwrap();
        assert!(node.is_right(2, &tokens, 0..MANY * SIZE));
        node.kv.close(2, false).unwrap();
        node.is_clean();
        (turns.most(), store.disk_reads().0 - before)
    };
    for by_layer in [false, true] {
        let (most, reads) = fetch(by_layer);
        println!("by layer {by_layer}: {most:?} blocks under way, {reads} reads");
        assert_eq!((most.0, reads), (TOGETHER, u64::from(MANY)), "by layer: {by_layer}");
    }
    // From memory each goes to the next thread that has time.
    let keys = keys_on_disk(&tier);
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    tier.prefetch(&keys, |_, came| assert!(came.unwrap()));
    for by_layer in [false, true] {
        let (most, reads) = fetch(by_layer);
        assert_eq!((most.0, reads), (1, 0), "by layer: {by_layer}");
    }
}

#[test]
fn a_block_that_leaves_the_disk_while_others_are_read_with_it_is_missed_alone() {
    // At most 12 threads have one each when the first one takes more: this is one of them.
    const GONE: u32 = 13;
    for by_layer in [false, true] {
        let (_dir, store, tier, tokens) = on_disk();
        let node = Node::new(&store, MANY, Order::LayerMajor, Sides::Separate);
        let hash = node.kv.hashes_of(&tokens, b"").unwrap()[GONE as usize];
        let key = keys_on_disk(&tier).into_iter().find(|key| key.ends_with(&hash.0)).unwrap();
        let (leaves, begun) = (store.share(), AtomicUsize::new(0));
        Turns::of(&node, move |step| {
            // With the second one the first thread has taken all that it reads, and has read nothing.
            if matches!(step, Step::Waited(_)) && begun.fetch_add(1, SeqCst) == 1 {
                leaves.remove(&key).unwrap();
            }
        });
        node.open(2, &tokens);
        let (ticket, _) = node.kv.onboard(2, After::Nothing, true, by_layer).unwrap();
        let (done, over) = node.end(ticket);
        assert_eq!(over.unwrap_err().status, NMC_ERR_STALE);
        assert_eq!(done, if by_layer { 0 } else { GONE });
        assert_eq!(node.kv.info(2).unwrap().computed, done * SIZE);
        // Those with it came all the same.
        assert!(node.is_right(2, &tokens, 0..GONE * SIZE));
        assert!(node.is_right(2, &tokens, (GONE + 1) * SIZE..TOGETHER as u32 * SIZE));
        node.kv.close(2, true).unwrap();
        node.is_clean();
    }
}

#[test]
fn a_cancelled_job_ends_with_what_is_read_together() {
    let (_dir, store, _tier, tokens) = on_disk();
    let node = Node::new(&store, MANY, Order::LayerMajor, Sides::Separate);
    let (come, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (both, once) = ((Arc::clone(&come), Arc::clone(&go_on)), AtomicBool::new(false));
    let turns = Turns::of(&node, move |step| {
        if matches!(step, Step::Copied(_)) && !once.swap(true, SeqCst) {
            both.0.wait();
            both.1.wait();
        }
    });
    node.open(2, &tokens);
    let (ticket, _) = node.kv.onboard(2, After::Nothing, true, false).unwrap();
    come.wait();
    node.kv.cancel_transfer(ticket).unwrap();
    go_on.wait();
    let (done, over) = node.end(ticket);
    assert_eq!(over.unwrap_err().status, NMC_ERR_CANCELLED);
    assert_eq!((turns.now.lock().unwrap().waited, store.disk_reads().0), (TOGETHER, TOGETHER as u64));
    assert!(done <= TOGETHER as u32 && node.is_right(2, &tokens, 0..done * SIZE));
    node.kv.close(2, true).unwrap();
    node.is_clean();
}
