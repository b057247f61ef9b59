//! Area `kv`, second part: sequences over blocks. What kvbm-logical can do as well is done as `benches/` does it with that;
//! the rest is measured against the plain thing that a program would write instead.

use super::kv_cache_library::Kv;
use super::library::c_api::{NMC_KV_HASH_BLAKE3, NMC_KV_HASH_SHA256, NMC_KV_HASH_XXH3, nmc_kv_hash_t, nmc_kv_row_t};
use super::{Better, Metric, Run, median};
use crate::args::Failure;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// How many metrics [`measure`] adds.
pub const METRICS: usize = 16;

const BLOCKS: u32 = 131_072;
/// Blocks of a prefix that is looked up.
const PREFIX: usize = 128;
/// Id of the sequence that asks, beside those that hold the prefixes.
const ASKING: u64 = 1 << 62;
/// Blocks of the cache that evicts, and of the sequences that make it.
const CHURN_BLOCKS: u32 = 8_192;
const CHURN_PREFIX: usize = 100;
const SEQUENCES: usize = 256;
/// Decode steps of a sample.
const STEPS: usize = 16;

const NOT_BUILT: &str = "peers not built; a hash map of 16-byte keys";

/// Adds the metrics.
pub fn measure(run: &mut Run, peers: &HashMap<String, f64>) {
    let peer = |work: &str| peers.get(&format!("kvbm-logical {work}")).copied();
    let active = peer("prefix_match.active.lru");
    run.measure("kv.match", |run| matches(run, "kv.match", 64, true, active));
    let inactive = peer("prefix_match.inactive.lru");
    run.measure("kv.match.idle", |run| matches(run, "kv.match.idle", 64, false, inactive));
    run.measure("kv.match.idle.128k", |run| matches(run, "kv.match.idle.128k", 1_000, false, None));
    run.measure("kv.churn", |run| churn(run, "kv.churn", CHURN_BLOCKS, peer("churn.lru")));
    run.measure("kv.churn.128k", |run| churn(run, "kv.churn.128k", BLOCKS, None));
    run.measure("kv.append", |run| append(run, "kv.append", false));
    run.measure("kv.append.tokens", |run| append(run, "kv.append.tokens", true));
    run.measure("kv.append.hybrid", hybrid_append);
    run.measure("kv.table.256x128", table);
    run.measure("kv.threads_x2", threads);
    run.measure("kv.bytes_per_block", bytes);
    let mut smallest = None;
    for (name, size) in [("kv.prompt4k.b16", 16), ("kv.prompt4k.b64", 64), ("kv.prompt4k.b256", 256)] {
        run.measure(name, |run| block_size(run, name, size, &mut smallest));
    }
    let algorithms = [
        ("kv.hash.blake3", NMC_KV_HASH_BLAKE3),
        ("kv.hash.sha256", NMC_KV_HASH_SHA256),
        ("kv.hash.xxh3", NMC_KV_HASH_XXH3),
    ];
    for (name, algorithm) in algorithms {
        run.measure(name, |run| hashing(run, name, algorithm));
    }
}

/// Hashes that no other seed has.
fn hashes(seed: u64, count: usize) -> Vec<nmc_kv_hash_t> {
    let mix = |n: u64| {
        let x = (seed << 20 | n).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let hash = |n: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&mix(2 * n).to_le_bytes());
        bytes[8..].copy_from_slice(&mix(2 * n + 1).to_le_bytes());
        nmc_kv_hash_t { bytes }
    };
    (0..count as u64).map(hash).collect()
}

fn add(run: &mut Run, name: &'static str, value: f64, unit: &'static str, baseline: (&'static str, f64)) {
    let (baseline_name, baseline) = baseline;
    run.add(Metric { name, value, unit, better: Better::Lower, baseline_name, baseline });
}

/// Medians of samples of one thing and of another, each of which is given in nanoseconds.
fn samples(count: usize, mut sample: impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    sample()?;
    let mut all = (0..count).map(|_| sample()).collect::<Result<Vec<_>, _>>()?;
    Ok(median(&mut all))
}

/// A prefix is found and let go; somebody else holds it all the time if `active`.
fn matches(run: &mut Run, name: &'static str, prefixes: u64, active: bool, peer: Option<f64>) -> Result<(), Failure> {
    let kv = Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?;
    let prefixes: Vec<_> = (1..=prefixes).map(|seed| hashes(seed, PREFIX)).collect();
    for (id, prefix) in (0..).zip(&prefixes) {
        kv.open_hashes(id, prefix)?;
        kv.close(id)?;
        if active {
            kv.open_hashes(id, prefix)?;
        }
    }
    let (count, per_sample) = (run.reps(3, 301), run.reps(20, prefixes.len().min(100)));
    let mut turn = prefixes.iter().cycle();
    let ours = samples(count, || {
        let start = Instant::now();
        for prefix in turn.by_ref().take(per_sample) {
            let hit = kv.open_hashes(ASKING, prefix)?;
            if hit != PREFIX as u64 * 16 {
                return Err(Failure::new(format!("{hit} tokens were found of {}", PREFIX * 16)));
            }
            kv.close(ASKING)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / (per_sample * PREFIX) as f64)
    })?;
    let baseline = match peer {
        Some(ns) => ("kvbm-logical 1.6", ns),
        None => {
            let all: HashMap<[u8; 16], u32> = prefixes.iter().flatten().map(|hash| (hash.bytes, 1)).collect();
            let mut turn = prefixes.iter().cycle();
            let plain = samples(count, || {
                let start = Instant::now();
                for prefix in turn.by_ref().take(per_sample) {
                    let found = prefix.iter().take_while(|hash| all.contains_key(&hash.bytes)).count();
                    std::hint::black_box(found);
                }
                Ok(start.elapsed().as_secs_f64() * 1e9 / (per_sample * PREFIX) as f64)
            })?;
            (if name.ends_with("128k") { "a hash map of 16-byte keys, lookup only" } else { NOT_BUILT }, plain)
        }
    };
    add(run, name, ours, "ns/block", baseline);
    Ok(())
}

/// All blocks hold something: old contents go, new ones come and are let go.
fn churn(run: &mut Run, name: &'static str, blocks: u32, peer: Option<f64>) -> Result<(), Failure> {
    let kv = Kv::create(blocks, NMC_KV_HASH_BLAKE3)?;
    let mut seed = 0;
    let mut some = |count: usize| -> Vec<_> {
        seed += count as u64;
        (0..count as u64).map(|at| hashes(seed - at, CHURN_PREFIX)).collect()
    };
    let turn = |chains: &[Vec<nmc_kv_hash_t>]| {
        let start = Instant::now();
        for chain in chains {
            kv.open_hashes(1, chain)?;
            kv.close(1)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / (chains.len() * CHURN_PREFIX) as f64)
    };
    turn(&some(blocks as usize / CHURN_PREFIX + 1))?;
    let (count, per_sample) = (run.reps(3, 301), run.reps(4, 10));
    let ours = samples(count, || turn(&some(per_sample)))?;
    let baseline = match peer {
        Some(ns) => ("kvbm-logical 1.6", ns),
        None => {
            let mut map: HashMap<[u8; 16], u32> = HashMap::new();
            let mut line = std::collections::VecDeque::new();
            let plain = samples(count, || {
                let chains = some(per_sample);
                let start = Instant::now();
                for hash in chains.iter().flatten() {
                    map.insert(hash.bytes, 1);
                    line.push_back(hash.bytes);
                    if line.len() > blocks as usize {
                        line.pop_front().map(|old| map.remove(&old));
                    }
                }
                Ok(start.elapsed().as_secs_f64() * 1e9 / (chains.len() * CHURN_PREFIX) as f64)
            })?;
            ("a hash map and a queue of 16-byte keys", plain)
        }
    };
    add(run, name, ours, "ns/block", baseline);
    Ok(())
}

/// The ids of the sequences of a decode step.
fn step_ids() -> Vec<u64> {
    (0..SEQUENCES as u64).map(|at| 1_000 + at * 7).collect()
}

/// What one token more for each of 256 sequences of 100 takes, in ns a sequence; the tokens may be `told`.
fn decode(run: &Run, kv: &Kv, told: bool) -> Result<f64, Failure> {
    let ids = step_ids();
    let mut prompt: Vec<u32> = (0..100).collect();
    let tokens = vec![7; if told { SEQUENCES } else { 0 }];
    for id in &ids {
        prompt[0] = u32::try_from(*id).unwrap_or(0);
        kv.open(*id, if told { &prompt } else { &[] }, 100)?;
    }
    // Means over 16 steps: every sequence gets a block in one of them.
    samples(run.reps(3, 301), || {
        let start = Instant::now();
        for _ in 0..STEPS {
            kv.append_batch(&ids, &tokens)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / (STEPS * SEQUENCES) as f64)
    })
}

/// A decode step with a window and a recurrent state, which have blocks of their own, beside full attention.
fn hybrid_append(run: &mut Run) -> Result<(), Failure> {
    let ours = decode(run, &Kv::create_hybrid(BLOCKS)?, false)?;
    let plain = decode(run, &Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?, false)?;
    add(run, "kv.append.hybrid", ours, "ns/sequence", ("full attention alone", plain));
    Ok(())
}

/// A decode step: one token more for each of 256 sequences.
fn append(run: &mut Run, name: &'static str, told: bool) -> Result<(), Failure> {
    let ours = decode(run, &Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?, told)?;
    let ids = step_ids();
    let plain = Mutex::new(ids.iter().map(|id| (*id, (100u32, Vec::<u32>::new()))).collect::<HashMap<_, _>>());
    let baseline = samples(run.reps(3, 301), || {
        let start = Instant::now();
        for _ in 0..STEPS {
            let mut all = plain.lock().map_err(|_| Failure::new("a lock"))?;
            for id in &ids {
                if let Some((tokens, blocks)) = all.get_mut(id) {
                    *tokens += 1;
                    if tokens.is_multiple_of(16) {
                        blocks.push(*tokens);
                    }
                }
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / (STEPS * SEQUENCES) as f64)
    })?;
    add(run, name, ours, "ns/sequence", ("a hash map of counters and vectors, one lock a step", baseline));
    Ok(())
}

/// 256 sequences of 128 blocks, each with a block more.
fn table(run: &mut Run) -> Result<(), Failure> {
    const WIDTH: usize = 160;
    let kv = Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?;
    let ids: Vec<u64> = (0..SEQUENCES as u64).collect();
    for id in &ids {
        kv.open(*id, &[], 127 * 16)?;
    }
    let mut rows = vec![nmc_kv_row_t { uid: 0, rewrites: 0, blocks: 0 }; SEQUENCES];
    let mut table = vec![0; SEQUENCES * WIDTH];
    let count = run.reps(3, 301);
    let mut length = 127;
    let ours = samples(count, || {
        if length == WIDTH as u64 {
            length = 127;
            for id in &ids {
                kv.truncate(*id, length * 16)?;
            }
            kv.table(&ids, &mut rows, &mut table)?;
        }
        for id in &ids {
            kv.append(*id, 16)?;
        }
        length += 1;
        if length == 128 {
            // The rows were never written, or are being written anew.
            kv.table(&ids, &mut rows, &mut table)?;
            for id in &ids {
                kv.append(*id, 16)?;
            }
            length += 1;
        }
        let start = Instant::now();
        let written = kv.table(&ids, &mut rows, &mut table)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        if written == SEQUENCES as u64 { Ok(us) } else { Err(Failure::new(format!("{written} entries were written"))) }
    })?;
    let source = table.clone();
    let baseline = samples(count, || {
        let start = Instant::now();
        for (to, from) in table.chunks_exact_mut(WIDTH).zip(source.chunks_exact(WIDTH)) {
            to[..128].copy_from_slice(&from[..128]);
        }
        std::hint::black_box(&mut table);
        Ok(start.elapsed().as_secs_f64() * 1e6)
    })?;
    add(run, "kv.table.256x128", ours, "us", ("memcpy of all 256 x 128 entries", baseline));
    Ok(())
}

/// One thread's work: sequences come, grow and go.
fn work(kv: &Kv, thread: u64, rounds: u64) -> Result<(), Failure> {
    let mut random = thread * 2 + 1;
    for round in 0..rounds {
        let ids: Vec<u64> = (0..32).map(|at| thread << 40 | round << 8 | at).collect();
        for id in &ids {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            kv.open(*id, &[], 64 + (random >> 40) % 512)?;
        }
        for _ in 0..64 {
            kv.append_batch(&ids, &[])?;
        }
        for id in &ids {
            kv.close(*id)?;
        }
    }
    Ok(())
}

/// How much more two threads do than one, with a cache each or the same one.
fn scaling(caches: [&Kv; 2], rounds: u64) -> Result<f64, Failure> {
    let start = Instant::now();
    work(caches[0], 1, rounds)?;
    let one = start.elapsed().as_secs_f64();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let both = [(caches[0], 2), (caches[1], 3)];
        let both = both.map(|(kv, thread)| scope.spawn(move || work(kv, thread, rounds)));
        both.into_iter().try_for_each(|one| one.join().map_err(|_| Failure::new("a thread ended"))?)
    })?;
    Ok(2.0 * one / start.elapsed().as_secs_f64())
}

fn threads(run: &mut Run) -> Result<(), Failure> {
    let (kv, other) = (Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?, Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?);
    let (count, rounds) = (run.reps(3, 51), run.reps(20, 200) as u64);
    let mut apart = Vec::new();
    let value = samples(count, || {
        apart.push(scaling([&kv, &other], rounds)?);
        scaling([&kv, &kv], rounds)
    })?;
    let (name, baseline) = ("kv.threads_x2", median(&mut apart));
    let baseline_name = "the same with a cache each: what the machine can do";
    run.add(Metric { name, value, unit: "x", better: Better::Higher, baseline_name, baseline });
    Ok(())
}

/// A cache that is full of published blocks, all held by sequences of 128 blocks.
fn bytes(run: &mut Run) -> Result<(), Failure> {
    let kv = Kv::create(BLOCKS, NMC_KV_HASH_BLAKE3)?;
    let sequences = u64::from(BLOCKS) / PREFIX as u64;
    for id in 0..sequences {
        // Closed and opened again: the first time publishes them.
        kv.open_hashes(id, &hashes(id + 1, PREFIX))?;
        kv.close(id)?;
    }
    for id in 0..sequences {
        kv.open_hashes(id, &hashes(id + 1, PREFIX))?;
    }
    add(run, "kv.bytes_per_block", kv.bytes_per_block()?, "bytes", ("the limit that was set", 64.0));
    Ok(())
}

/// A cached prompt of 4,096 tokens is opened and closed: hashed, matched, and let go, in blocks of this size.
fn block_size(run: &mut Run, name: &'static str, size: u32, smallest: &mut Option<f64>) -> Result<(), Failure> {
    let kv = Kv::create_with(BLOCKS, NMC_KV_HASH_BLAKE3, size)?;
    let tokens: Vec<u32> = (0..4096).collect();
    kv.open(1, &tokens, 4096)?;
    kv.close(1)?;
    let us = samples(run.reps(3, 301), || {
        let start = Instant::now();
        kv.open(1, &tokens, 4096)?;
        kv.close(1)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    })?;
    add(run, name, us, "us", ("the same in blocks of 16", *smallest.get_or_insert(us)));
    Ok(())
}

fn hashing(run: &mut Run, name: &'static str, algorithm: u32) -> Result<(), Failure> {
    let kv = Kv::create(1_024, algorithm)?;
    let tokens: Vec<u32> = (0..128 * 16).collect();
    let mut out = hashes(1, 128);
    let count = run.reps(3, 301);
    let ours = samples(count, || {
        let start = Instant::now();
        kv.hash(&tokens, &mut out)?;
        Ok(start.elapsed().as_secs_f64() * 1e9 / 128.0)
    })?;
    let baseline = samples(count, || {
        let start = Instant::now();
        for block in tokens.chunks_exact(16) {
            let words = block.iter().fold(0u64, |sum, token| (sum ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3));
            std::hint::black_box(words);
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / 128.0)
    })?;
    add(run, name, ours, "ns/block", ("FNV-1a over tokens, 64 bits", baseline));
    Ok(())
}
