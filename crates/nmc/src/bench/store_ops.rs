//! What is measured on a store, whichever process does it: blocks of our calls and of the baseline in turn, with keys and
//! values made before the clock starts.

use super::store_library::{Item, KEY_BYTES, Part, Shelf, Slices};
use super::{median, ns_per_call, percentile};
use crate::args::Failure;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Ours and the baseline.
pub type Pair = (f64, f64);

/// Objects of the small working set.
pub const SMALL_SET: usize = 1000;
/// Bytes of a small value.
pub const SMALL: usize = 1024;
/// Keys of a batch.
pub const BATCH: usize = 128;

/// Objects that are read in turn.
pub struct Rotation {
    /// Bytes of an object.
    pub bytes: usize,
    /// How many there are.
    pub objects: usize,
    /// How many are read between two looks at the clock.
    pub block: usize,
    /// How many such blocks there are of each kind.
    pub blocks: usize,
}

fn gigabytes(bytes: usize, since: Instant) -> f64 {
    bytes as f64 / since.elapsed().as_secs_f64() / 1e9
}

/// Reads whole values: GB/s of `get_into`, and of memcpy out of the same mapping. Both go on where the other stopped.
pub fn read_values(shelf: &Shelf, keys: Part<'_>, rotation: &Rotation) -> Result<Pair, Failure> {
    let places = shelf.places(keys)?;
    let mut buffer = vec![0u8; rotation.bytes];
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    let mut at = 0;
    // One block more than asked for: the first of each kind touches the memory and does not count.
    for block in 0..=rotation.blocks {
        let mut wrong = 0;
        let start = Instant::now();
        for _ in 0..rotation.block {
            wrong |= shelf.get_into(keys.item(at), &mut buffer);
            at = (at + 1) % rotation.objects;
        }
        let rate = gigabytes(rotation.block * rotation.bytes, start);
        shelf.check("nmc_store_get_into", wrong)?;
        let start = Instant::now();
        for _ in 0..rotation.block {
            places[at].copy_to(&mut buffer);
            std::hint::black_box(&mut buffer);
            at = (at + 1) % rotation.objects;
        }
        if block > 0 {
            ours.push(rate);
            plain.push(gigabytes(rotation.block * rotation.bytes, start));
        }
    }
    Ok((median(&mut ours), median(&mut plain)))
}

/// Writes values of 1 MiB: GB/s of `put`, and of memcpy into the same pages.
pub fn write_values(shelf: &Shelf, family: u32, blocks: usize) -> Result<Pair, Failure> {
    const COUNT: usize = 8;
    const BYTES: usize = 1 << 20;
    let values = Slices::values(COUNT, BYTES);
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for block in 0..=blocks {
        let keys = Slices::keys(family, (block * COUNT) as u64..((block + 1) * COUNT) as u64);
        let mut wrong = 0;
        let start = Instant::now();
        for i in 0..COUNT {
            wrong |= shelf.put(keys.all().item(i), values.all().item(i));
        }
        let rate = gigabytes(COUNT * BYTES, start);
        shelf.check("nmc_store_put", wrong)?;
        let places = shelf.places(keys.all())?;
        shelf.remove(keys.all())?;
        let start = Instant::now();
        for (place, value) in places.iter().zip(values.all().each()) {
            place.copy_from(value);
        }
        if block > 0 {
            ours.push(rate);
            plain.push(gigabytes(COUNT * BYTES, start));
        }
    }
    Ok((median(&mut ours), median(&mut plain)))
}

/// What a program does that keeps its values in a map of its own.
pub struct PlainMap(Mutex<HashMap<[u8; KEY_BYTES], Arc<[u8]>>>);

impl PlainMap {
    /// An empty one.
    pub fn new() -> Self {
        Self(Mutex::default())
    }

    fn key(key: Item<'_>) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes.copy_from_slice(key.bytes());
        bytes
    }

    /// Allocates, copies, inserts.
    pub fn put(&self, key: Item<'_>, value: Item<'_>) {
        let value = Arc::from(value.bytes());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(Self::key(key), value);
    }

    /// Looks up and counts a use.
    pub fn pin(&self, key: Item<'_>) -> Option<Arc<[u8]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key.bytes()).map(Arc::clone)
    }

    /// Looks up.
    pub fn exists(&self, key: Item<'_>) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key.bytes())
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Small reads over the small set, in ns a call: pin and unpin, get, exists.
pub fn small_reads(shelf: &Shelf, keys: Part<'_>, blocks: usize) -> Result<[Pair; 3], Failure> {
    let map = PlainMap::new();
    let values = Slices::values(1, SMALL);
    keys.each().for_each(|key| map.put(key, values.all().item(0)));
    let mut buffer = vec![0u8; SMALL];
    let mut samples: [(Vec<f64>, Vec<f64>); 3] = Default::default();
    let n = keys.len();
    let mut wrong = 0;
    for _ in 0..blocks {
        samples[0].0.push(ns_per_call(n, |i| wrong |= shelf.pin_unpin(keys.item(i))));
        samples[0].1.push(ns_per_call(n, |i| map.pin(keys.item(i))));
        samples[1].0.push(ns_per_call(n, |i| wrong |= shelf.get(keys.item(i), &mut buffer)));
        samples[1].1.push(ns_per_call(n, |i| {
            if let Some(value) = map.pin(keys.item(i)) {
                buffer.copy_from_slice(&value);
            }
        }));
        samples[2].0.push(ns_per_call(n, |i| wrong |= i32::from(!shelf.exists(keys.item(i)))));
        samples[2].1.push(ns_per_call(n, |i| map.exists(keys.item(i))));
    }
    shelf.check("a small read", wrong)?;
    Ok(samples.map(|(mut ours, mut plain)| (median(&mut ours), median(&mut plain))))
}

/// Gets of small values a second, for about `limit`.
pub fn read_rate(shelf: &Shelf, keys: Part<'_>, limit: Duration) -> Result<f64, Failure> {
    let mut buffer = vec![0u8; SMALL];
    let (start, mut calls, mut wrong) = (Instant::now(), 0usize, 0);
    while start.elapsed() < limit {
        for key in keys.each() {
            wrong |= shelf.get(key, &mut buffer);
        }
        calls += keys.len();
    }
    let rate = calls as f64 / start.elapsed().as_secs_f64();
    shelf.check("nmc_store_get", wrong)?;
    Ok(rate)
}

/// Puts of small values under fresh keys, each call on its own, in µs: the median of ours, and of `baseline`, which is
/// given a number, key and value and tells its time.
pub fn small_puts(
    shelf: &Shelf,
    family: u32,
    blocks: usize,
    mut baseline: impl FnMut(Item<'_>, Item<'_>) -> Result<f64, Failure>,
) -> Result<Pair, Failure> {
    const EACH: usize = 200;
    let values = Slices::values(1, SMALL);
    let value = values.all().item(0);
    let (mut ours, mut plain) = (Vec::with_capacity(blocks * EACH), Vec::with_capacity(blocks * EACH));
    for block in 0..=blocks {
        let keys = Slices::keys(family, (block * EACH) as u64..((block + 1) * EACH) as u64);
        let mut wrong = 0;
        for key in keys.all().each() {
            let start = Instant::now();
            wrong |= shelf.put(key, value);
            ours.push(start.elapsed().as_secs_f64() * 1e6);
        }
        shelf.check("nmc_store_put", wrong)?;
        shelf.remove(keys.all())?;
        for key in keys.all().each() {
            plain.push(baseline(key, value)?);
        }
        if block == 0 {
            ours.clear();
            plain.clear();
        }
    }
    Ok((median(&mut ours), median(&mut plain)))
}

/// Puts of small values in batches, in keys a second, and one by one.
pub fn batched_puts(shelf: &Shelf, family: u32, blocks: usize) -> Result<Pair, Failure> {
    const BATCHES: usize = 8;
    let values = Slices::values(BATCH, SMALL);
    let (mut ours, mut single) = (Vec::new(), Vec::new());
    let rate = |n: usize, start: Instant| n as f64 / start.elapsed().as_secs_f64();
    for block in 0..=blocks {
        let n = BATCH * BATCHES;
        let keys = Slices::keys(family, (block * n) as u64..((block + 1) * n) as u64);
        let mut wrong = 0;
        let start = Instant::now();
        for batch in 0..BATCHES {
            wrong |= shelf.put_batch(keys.part(batch * BATCH, BATCH), values.all());
        }
        let together = rate(n, start);
        shelf.check("nmc_store_put_batch", wrong)?;
        shelf.remove(keys.all())?;
        let part = keys.all().head(BATCH);
        let start = Instant::now();
        for (key, value) in part.each().zip(values.all().each()) {
            wrong |= shelf.put(key, value);
        }
        let alone = rate(BATCH, start);
        shelf.check("nmc_store_put", wrong)?;
        shelf.remove(part)?;
        if block > 0 {
            ours.push(together);
            single.push(alone);
        }
    }
    Ok((median(&mut ours), median(&mut single)))
}

/// What puts cost on a full heap and on an empty one.
pub struct Churn {
    /// Puts a second.
    pub rate: Pair,
    /// µs that 999 of 1,000 calls stay below.
    pub p999: Pair,
}

/// Puts under fresh keys: on `full`, which has been filled and evicts for each of them, and on `empty`, which is emptied
/// again and again.
pub fn churn(full: &Shelf, empty: &Shelf, family: u32, capacity: usize, blocks: usize) -> Result<Churn, Failure> {
    const EACH: usize = 4000;
    let values = Slices::values(1, SMALL);
    let value = values.all().item(0);
    let mut next = 0u64;
    let mut fresh = |n: usize| {
        let first = next;
        next += n as u64;
        Slices::keys(family, first..next)
    };
    // Twice its capacity: it has begun to evict, and the index to be purged.
    full.fill(fresh(2 * capacity).all(), SMALL)?;
    let mut rates = (Vec::new(), Vec::new());
    let mut calls = (Vec::new(), Vec::new());
    for block in 0..=blocks {
        for (shelf, rates, calls) in [(full, &mut rates.0, &mut calls.0), (empty, &mut rates.1, &mut calls.1)] {
            let keys = fresh(2 * EACH);
            let (blind, timed) = (keys.part(0, EACH), keys.part(EACH, EACH));
            let mut wrong = 0;
            let start = Instant::now();
            for key in blind.each() {
                wrong |= shelf.put(key, value);
            }
            rates.push(EACH as f64 / start.elapsed().as_secs_f64());
            for key in timed.each() {
                let start = Instant::now();
                wrong |= shelf.put(key, value);
                calls.push(start.elapsed().as_secs_f64() * 1e6);
            }
            shelf.check("nmc_store_put", wrong)?;
            if block == 0 {
                rates.clear();
                calls.clear();
            }
            if std::ptr::eq(shelf, empty) {
                shelf.remove(keys.all())?;
            }
        }
    }
    Ok(Churn {
        rate: (median(&mut rates.0), median(&mut rates.1)),
        p999: (percentile(&mut calls.0, 0.999), percentile(&mut calls.1, 0.999)),
    })
}

/// ns a look-up in random order, over as long a list of keys in both stores: `large` has `objects`, `small`
/// [`SMALL_SET`]. Key by key, and in batches.
pub fn lookups(large: (&Shelf, usize), small: &Shelf, family: u32, blocks: usize) -> Result<[Pair; 2], Failure> {
    const EACH: usize = 1500 * BATCH;
    let list = |objects: usize| {
        let mut state = 1u64;
        let numbers = (0..EACH).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % objects as u64
        });
        Slices::keys(family, numbers)
    };
    let stores = [(large.0, list(large.1)), (small, list(SMALL_SET))];
    let mut samples: [(Vec<f64>, Vec<f64>); 2] = Default::default();
    let (mut wrong, mut states) = (0, [0; BATCH]);
    for block in 0..=blocks {
        let mut alone = |(shelf, keys): &(&Shelf, Slices)| {
            ns_per_call(EACH, |i| wrong |= i32::from(!shelf.exists(keys.all().item(i))))
        };
        let single = (alone(&stores[0]), alone(&stores[1]));
        let mut together = |(shelf, keys): &(&Shelf, Slices)| {
            let batches = EACH / BATCH;
            let body = |i| wrong |= i32::from(!shelf.exist(keys.part(i * BATCH, BATCH), &mut states));
            ns_per_call(batches, body) / BATCH as f64
        };
        let batched = (together(&stores[0]), together(&stores[1]));
        if block > 0 {
            for (samples, pair) in samples.iter_mut().zip([single, batched]) {
                samples.0.push(pair.0);
                samples.1.push(pair.1);
            }
        }
    }
    large.0.check("nmc_store_exists", wrong)?;
    Ok(samples.map(|(mut many, mut few)| (median(&mut many), median(&mut few))))
}
