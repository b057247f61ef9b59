//! Keys that were made to collide: what they cost with a secret and without one, and who finds what by them.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::base::Deadline;
use crate::store::config::Config;
use crate::store::hash::{KeyHash, route_of};
use crate::store::map::Map;
use crate::store::master::Master;
use crate::store::types::{ClientInfo, Keep, OpenRequest, Role};
use crate::sync::index;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use xxhash_rust::xxh64::xxh64;

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// What an odd number is multiplied by to give 1.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// Keys of 16 bytes that all have the same xxh64 with seed 0: the second half undoes what the first one did.
fn equal_under_xxh64(n: u64) -> Vec<Vec<u8>> {
    let mixed = |word: u64| word.wrapping_mul(P2).rotate_left(31).wrapping_mul(P1);
    let unmixed = |word: u64| word.wrapping_mul(inverse(P1)).rotate_right(31).wrapping_mul(inverse(P2));
    let key = |first: u64| {
        let state = ((P5 + 16) ^ mixed(first)).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        [first.to_le_bytes(), unmixed(state ^ 0x1234_5678).to_le_bytes()].concat()
    };
    (1..=n).map(key).collect()
}

/// Keys of 128 bytes of which many have the same xxh64 whatever its seed is. In each of 8 pairs of words that meet in
/// one lane, the topmost bit of the first makes a difference of plus or minus one number, and the second takes the one
/// or the other away: of three choices two are equal.
fn alike_under_any_seed() -> Vec<Vec<u8>> {
    let step = (P1 << 30).wrapping_mul(inverse(P2));
    let choices = [[0, 0], [1 << 63, step], [1 << 63, step.wrapping_neg()]];
    let key = |number: usize| {
        let mut words = [0u64; 16];
        for pair in 0..8 {
            let at = pair / 4 * 8 + pair % 4;
            [words[at], words[at + 4]] = choices[number / 3usize.pow(u32::try_from(pair).unwrap()) % 3];
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    (0..3usize.pow(8)).map(key).collect()
}

fn plain(n: u64) -> Vec<Vec<u8>> {
    (0..n).map(|i| [i.to_le_bytes(), (!i).to_le_bytes()].concat()).collect()
}

/// Buckets that are looked at to find all of these keys, in an index that has twice as many or more.
fn probes(keys: &[Vec<u8>], hash: impl Fn(&[u8]) -> u64) -> usize {
    let table: Vec<AtomicU64> = (0..(keys.len() * 2).next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
    for (key, number) in keys.iter().zip(0u32..) {
        index::insert(&table, hash(key), number).unwrap();
    }
    let of = |hash: u64, number: u32| {
        let found = index::path(table.len(), hash).position(|at| table[at].load(Relaxed) == index::entry(hash, number));
        found.unwrap() + 1
    };
    keys.iter().zip(0u32..).map(|(key, number)| of(hash(key), number)).sum()
}

#[test]
fn keys_that_were_made_to_collide_are_found_as_fast_as_others() {
    for (made, n) in [(equal_under_xxh64(4000), 4000), (alike_under_any_seed(), 6561)] {
        for seed in [[0, 0], [1, 0], [0x0123_4567_89ab_cdef, 7]] {
            let keys = KeyHash::new(seed);
            let (theirs, usual) = (probes(&made, |key| keys.of(key, 0)), probes(&plain(n), |key| keys.of(key, 0)));
            assert!(theirs <= 2 * usual, "{theirs} probes, {usual} for plain keys");
        }
    }
}

/// The control: what the test above is about happens with the hash that everybody can compute, and with xxh64 even if
/// its seed is a secret.
#[test]
fn without_a_secret_the_same_keys_are_found_slowly() {
    let usual = probes(&plain(4000), |key| route_of(key, 0));
    let theirs = probes(&equal_under_xxh64(4000), |key| route_of(key, 0));
    assert!(theirs > 100 * usual, "{theirs} probes, {usual} for plain keys");
    let usual = probes(&plain(6561), |key| xxh64(key, 0x0123_4567_89ab_cdef));
    let theirs = probes(&alike_under_any_seed(), |key| xxh64(key, 0x0123_4567_89ab_cdef));
    assert!(theirs > 5 * usual, "{theirs} probes, {usual} for plain keys");
}

fn map(max_objects: u32) -> Map {
    let config = Config { page_bytes: 4096, max_objects: Some(max_objects), ..Config::default() };
    Map::create(&config.params(1, 1 << 20).unwrap(), &Deadline::after(Duration::from_secs(60))).unwrap()
}

/// Longest row of buckets in use: as long as the longest look.
fn longest_row(map: &Map) -> usize {
    let [table, _] = map.view().index().tables;
    table.split(|bucket| bucket.load(Relaxed) == index::EMPTY).map(<[_]>::len).max().unwrap_or(0)
}

#[test]
fn the_index_of_a_store_is_not_what_strangers_can_compute() {
    let keys = equal_under_xxh64(2000);
    let row = |keys: &[Vec<u8>]| {
        let map = Arc::new(map(4000));
        let mut master = Master::new(Arc::clone(&map)).unwrap();
        master.note_heaps([(1, 1)]);
        let info = ClientInfo { pid: 1, start_time: 1, rank: 0, rank_generation: 1, role: Role::Program };
        let client = master.attach(&info).unwrap();
        for key in keys {
            let keep = Keep::DEFAULT;
            master
                .open(
                    client.number,
                    &OpenRequest {
                        key,
                        namespace: 0,
                        bytes: 0,
                        rank: None,
                        among: 0,
                        flags: 0,
                        keep,
                        metadata: &[],
                        put: 0,
                    },
                )
                .unwrap();
        }
        longest_row(&map)
    };
    // About 20 at this load; all 2,000 if the hash were known.
    assert!(row(&keys) < 200 && row(&plain(2000)) < 200);
}

#[test]
fn who_maps_a_store_has_its_hash_and_no_other_store_has_it() {
    let (here, other) = (map(64), map(64));
    let (control, words) = here.client_fds().unwrap();
    let there = Map::open(here.params(), here.store_id(), control, words).unwrap();
    assert_eq!(here.hash_of(b"key", 3), there.hash_of(b"key", 3));
    assert_ne!(here.hash_of(b"key", 3), other.hash_of(b"key", 3));
    assert_ne!(here.hash_of(b"key", 3), here.hash_of(b"key", 4), "a namespace has places of its own");
}

#[test]
fn a_new_master_and_those_who_stayed_find_each_others_keys() {
    let old = Arc::new(map(64));
    let mut master = Master::new(Arc::clone(&old)).unwrap();
    master.note_heaps([(1, 1)]);
    let info = ClientInfo { pid: 1, start_time: 1, rank: 0, rank_generation: 1, role: Role::Program };
    let client = master.attach(&info).unwrap();
    let request = |key| OpenRequest {
        key,
        namespace: 0,
        bytes: 0,
        rank: None,
        among: 0,
        flags: 0,
        keep: Keep::DEFAULT,
        metadata: &[],
        put: 0,
    };
    master.open(client.number, &request(b"before")).unwrap();
    drop(master);
    let (control, words) = old.client_fds().unwrap();
    let new = Arc::new(Map::adopt(old.params(), old.store_id(), old.seed(), control, words).unwrap());
    let mut master = Master::take_over(new).unwrap();
    let again = master.open(client.number, &request(b"before")).unwrap_err();
    assert_eq!(again.status, crate::base::status::NMC_ERR_EXISTS);
    let plan = master.open(client.number, &request(b"after")).unwrap();
    let view = old.view();
    let there = |index| view.object(index).is_some_and(|header| view.key_is(header, b"after", 0));
    assert_eq!(view.find(old.hash_of(b"after", 0), there), index::Found::At(plan.index));
}

#[test]
fn the_rank_of_a_key_is_the_same_for_ever() {
    // As the reference implementation gives it.
    assert_eq!(route_of(b"", 0), 0xef46_db37_51d8_e999);
    assert_eq!(route_of(b"abc", 0), 0x44bc_2cf5_ad77_0999);
}
