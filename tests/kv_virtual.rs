//! Virtual sequences against the memory that they are mapped to. An engine is simulated: it writes a word for every token,
//! in every group, layer, side and head, through the view of the sequence, and makes the copies it is asked for. Whatever
//! a sequence then reads through its addresses must be its own words: a page that two sequences write, that is not mapped
//! where it should be, or that is lost in a copy shows as a wrong word. The audit compares every mapping besides.

#![allow(
    unsafe_code,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may"
)]

#[path = "common/kv.rs"]
mod common;
#[path = "../src/base/random.rs"]
mod random;
#[path = "common/words.rs"]
mod words;

use nanomc::base::status::{NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT, NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use nanomc::kv::hash::Algo;
use nanomc::kv::place::geometry::{Dtype, Geometry, Kind, Order, Shape, Side, Sides, View};
use nanomc::kv::place::page_tokens;
use nanomc::kv::{Config, Copies, GroupSpec, Kv, MappedSpec, Open, Spec, WhenFull};
use random::Random;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use words::words;

/// The tests look at the mappings of the whole process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Mappings of a cache's memory in this process.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:nmc-kv")).count()
}

const PER_BLOCK: u32 = 32;
const LIMIT: u32 = 300;

fn config(blocks: u32, when_full: WhenFull, prefix: bool) -> Config {
    Config { max_sequences: 64, when_full, prefix, ..common::config(blocks, PER_BLOCK, Algo::Blake3) }
}

/// Pages of 4,096 bytes: 32 tokens of 128 bytes, however they are laid out.
fn groups(order: Order, sides: Sides) -> Vec<Geometry> {
    let shape = |kind, layers, kv_heads, head_dim| Shape {
        kind,
        dtype: Dtype::Raw(8),
        layers,
        kv_heads,
        head_dim,
        tokens_per_block: PER_BLOCK,
        total_blocks: u64::from(LIMIT.div_ceil(PER_BLOCK)) + 1,
        order,
        sides,
    };
    let heads_inside = order != Order::HeadMajor;
    vec![
        Geometry::new(shape(Kind::Full, 2, 2, if heads_inside { 8 } else { 16 })).unwrap(),
        Geometry::new(shape(Kind::Mla, 1, 1, 16)).unwrap(),
    ]
}

/// A cache whose sequences have addresses for [`LIMIT`] tokens each.
fn virtual_kv(config: Config, groups: &[Geometry]) -> nanomc::base::error::Result<Kv> {
    let group = |geometry: &Geometry| GroupSpec { shape: *geometry.shape(), own: None, memory: None };
    let mapped = Some(MappedSpec { max_sequence_tokens: LIMIT.into(), device: None });
    Kv::new(&Spec { capacity_blocks: config.total_blocks, groups: groups.iter().map(group).collect(), mapped, config })
}

/// What the engine knows of a sequence.
#[derive(Clone)]
struct Known {
    tokens: Vec<u32>,
    /// Tokens whose words are in memory.
    written: usize,
    /// Where each group's first layer begins.
    bases: Vec<u64>,
    /// Not cut within a block that was in the index: when it is closed, all that it computed can be matched.
    published: bool,
}

impl Known {
    /// The words of all positions.
    fn words(&self) -> Vec<u64> {
        words(1, &self.tokens).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    SkipsCopies,
    RewritesTokens,
}

struct Engine {
    kv: Kv,
    groups: Vec<Geometry>,
    known: BTreeMap<u64, Known>,
    random: Random,
    fault: Fault,
    next_id: u64,
    hits: u64,
    forks: u64,
    copies: u64,
    refusals: u64,
    evicted: u64,
}

type Check = Result<(), String>;

/// Where one head of a token is.
fn vector(view: &View, token: usize, head: u32) -> *mut u64 {
    let (block, place) = (token as u64 / u64::from(PER_BLOCK), token as u64 % u64::from(PER_BLOCK));
    view.at([block, u64::from(head), place, 0]).expect("inside the view") as *mut u64
}

/// Where all of them are.
fn vectors(tensors: &[(View, u32)], token: usize) -> impl Iterator<Item = *mut u64> {
    tensors.iter().flat_map(move |(view, heads)| (0..*heads).map(move |head| vector(view, token, head)))
}

impl Engine {
    fn new(config: Config, groups: Vec<Geometry>, seed: u64, fault: Fault) -> Self {
        let kv = virtual_kv(config, &groups).unwrap();
        let random = Random(seed);
        let known = BTreeMap::new();
        let (next_id, hits, forks, copies, refusals, evicted) = (1, 0, 0, 0, 0, 0);
        Self { kv, groups, known, random, fault, next_id, hits, forks, copies, refusals, evicted }
    }

    /// All tensors of a sequence, each with its number of heads.
    fn tensors(&self, id: u64) -> Vec<(View, u32)> {
        let mut all = Vec::new();
        let tokens = self.kv.info(id).unwrap().tokens;
        for (number, group) in (0..).zip(&self.groups) {
            let sides = if group.side_count() == 2 { &[Side::K, Side::V][..] } else { &[Side::K] };
            let heads = group.shape().kv_heads;
            for (layer, side) in (0..group.shape().layers).flat_map(|layer| sides.iter().map(move |s| (layer, *s))) {
                let found = self.kv.view(id, number, layer, side).unwrap();
                assert!(found.contiguous && found.view.shape[0] * u64::from(PER_BLOCK) >= u64::from(tokens));
                if let Some(last) = tokens.checked_sub(1) {
                    let at = (layer, side, heads - 1);
                    let told = self.kv.token_address(id, last, number, at).unwrap();
                    assert_eq!(vector(&found.view, last as usize, heads - 1) as u64, told);
                }
                all.push((found.view, heads));
            }
        }
        all
    }

    /// Writes the words of the tokens that are not written yet.
    fn compute(&mut self, id: u64) {
        let known = self.known[&id].clone();
        let words = known.words();
        let extra = usize::from(self.fault == Fault::RewritesTokens && known.tokens.len() % 32 == 31);
        let tensors = self.tensors(id);
        for (token, word) in words.iter().enumerate().skip(known.written.saturating_sub(extra * 40)) {
            let wrong = u64::from(extra == 1 && token < known.written);
            for (at, address) in vectors(&tensors, token).enumerate() {
                // SAFETY: a mapped vector of the sequence's own; the whole of it is 64 bytes at least.
                unsafe {
                    address.write(word.wrapping_add(at as u64).wrapping_add(wrong));
                    address.add(7).write(!word);
                }
            }
        }
        self.known.get_mut(&id).unwrap().written = known.tokens.len();
    }

    fn verify(&self, id: u64) -> Check {
        let known = &self.known[&id];
        let bases: Vec<u64> = self.bases(id);
        if bases != known.bases {
            return Err(format!("sequence {id} moved"));
        }
        let words = known.words();
        let tensors = self.tensors(id);
        for (token, word) in words.iter().enumerate().take(known.written) {
            for (at, address) in vectors(&tensors, token).enumerate() {
                // SAFETY: as above.
                let found = unsafe { (address.read(), address.add(7).read()) };
                if found != (word.wrapping_add(at as u64), !word) {
                    return Err(format!("sequence {id} reads another word at token {token}, vector {at}"));
                }
            }
        }
        Ok(())
    }

    fn bases(&self, id: u64) -> Vec<u64> {
        let base = |group| self.kv.view(id, group, 0, Side::K).unwrap().view.offset;
        (0..self.groups.len() as u32).map(base).collect()
    }

    fn copy(&mut self, id: u64) {
        let all = self.groups.iter().map(|group| group.pieces_per_block() as usize).sum::<usize>();
        let too_small = self.kv.take_copies(id, all - 1).unwrap();
        let moves = match too_small {
            Ok(none) => {
                assert_eq!(none, Copies::Bytes(Vec::new()));
                return;
            }
            Err(count) => self.kv.take_copies(id, count).unwrap().unwrap(),
        };
        let Copies::Bytes(moves) = moves else { panic!("copies of blocks") };
        assert_eq!(moves.len(), all);
        assert_eq!(self.kv.take_copies(id, all).unwrap().unwrap(), Copies::Bytes(Vec::new()), "each is told once");
        self.copies += 1;
        if self.fault == Fault::SkipsCopies {
            return;
        }
        for one in moves {
            // SAFETY: whole pages that the cache says are mapped.
            unsafe { std::ptr::copy(one.from as *const u8, one.to as *mut u8, one.bytes as usize) };
        }
    }

    fn some_tokens(&mut self, most: u64) -> Vec<u32> {
        let n = self.random.below(most);
        // Few different ones, so that prefixes are shared.
        let kind = self.random.below(3) as u32;
        (0..n as u32).map(|at| if self.random.one_in(60) { 9 } else { at % 5 + kind }).collect()
    }

    fn forget_evicted(&mut self) {
        let ids: Vec<u64> = self.known.keys().copied().collect();
        for id in ids {
            if self.kv.info(id).unwrap().state == nanomc::kv::State::Evicted {
                let refused = self.kv.view(id, 0, 0, Side::K).unwrap_err();
                assert_eq!(refused.status, NMC_ERR_STALE);
                assert_eq!(self.kv.append(id, 1, None, None).unwrap_err().status, NMC_ERR_STALE);
                self.kv.close(id, false).unwrap();
                self.known.remove(&id);
                self.evicted += 1;
            }
        }
    }

    fn step(&mut self) -> Check {
        let open: Vec<u64> = self.known.keys().copied().collect();
        let some = open.get(self.random.below(open.len().max(1) as u64) as usize).copied();
        let choice = if some.is_none() { 0 } else { self.random.below(12) };
        let id = some.unwrap_or(0);
        match choice {
            0 | 1 => {
                let id = self.next_id;
                self.next_id += 1;
                let tokens = self.some_tokens(200);
                let open = Open {
                    n_tokens: tokens.len() as u32,
                    tokens: Some(&tokens),
                    max_hit: (tokens.len() as u32).saturating_sub(1),
                    ..Open::default()
                };
                match self.kv.open(id, &open).unwrap() {
                    Ok(opened) => {
                        self.hits += u64::from(opened.hit_tokens);
                        let tokens = tokens[..opened.tokens as usize].to_vec();
                        let bases = self.bases(id);
                        let written = opened.hit_tokens as usize;
                        self.known.insert(id, Known { tokens, written, bases, published: true });
                        self.compute(id);
                    }
                    Err(_) => self.refusals += 1,
                }
            }
            2..=5 => {
                let more = self.some_tokens(70);
                let known = self.known[&id].tokens.len();
                match self.kv.append(id, more.len() as u32, Some(&more), None) {
                    Ok(Ok(())) => {
                        self.known.get_mut(&id).unwrap().tokens.extend(more);
                        self.compute(id);
                    }
                    Ok(Err(room)) => {
                        assert!(room.needed > room.free, "{room:?}");
                        self.refusals += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.status, NMC_ERR_LIMIT);
                        let limit = self.kv.info(id).unwrap().limit as usize;
                        assert!(known + more.len() > limit);
                    }
                }
            }
            6 => {
                let want = self.random.below(u64::from(LIMIT)) as u32;
                let limit = self.kv.info(id).unwrap().limit;
                match self.kv.reserve(id, want) {
                    Ok(done) => self.refusals += u64::from(done.is_err()),
                    Err(error) => assert!(error.status == NMC_ERR_LIMIT && want > limit),
                }
            }
            7 | 8 => {
                let known = self.known[&id].tokens.len();
                let keep = self.random.below(known as u64 + 1) as u32;
                let published = self.kv.info(id).unwrap().published;
                match self.kv.truncate(id, keep).unwrap() {
                    Ok(()) => {
                        let known = self.known.get_mut(&id).unwrap();
                        known.tokens.truncate(keep as usize);
                        known.written = known.tokens.len();
                        known.published &= keep.is_multiple_of(PER_BLOCK) || keep / PER_BLOCK >= published;
                        self.copy(id);
                    }
                    Err(_) => self.refusals += 1,
                }
            }
            9 => {
                let child = self.next_id;
                self.next_id += 1;
                match self.kv.fork(id, child).unwrap() {
                    Ok(()) => {
                        let bases = self.bases(child);
                        let known = Known { bases, ..self.known[&id].clone() };
                        assert_ne!(known.bases, self.known[&id].bases);
                        self.known.insert(child, known);
                        self.forks += 1;
                        self.copy(child);
                    }
                    Err(_) => self.refusals += 1,
                }
            }
            _ => {
                let discard = self.random.one_in(4);
                self.kv.close(id, discard).unwrap();
                let known = self.known.remove(&id).unwrap();
                assert_eq!(self.kv.close(id, false).unwrap_err().status, NMC_ERR_NOT_FOUND);
                if !discard && known.published && self.kv.config().prefix {
                    let full = known.tokens.len() as u32 / PER_BLOCK * PER_BLOCK;
                    let found = self.kv.matching(Some(&known.tokens), None, &[]).unwrap();
                    if found != full {
                        return Err(format!("{found} of {full} tokens of closed sequence {id} are cached"));
                    }
                }
            }
        }
        self.forget_evicted();
        self.kv.audit().map_err(|error| error.to_string())?;
        self.count()?;
        let all = self.random.one_in(8);
        let touched = |other: &&u64| all || **other == id || **other + 1 == self.next_id;
        self.known.keys().filter(touched).try_for_each(|id| self.verify(*id))
    }

    /// Blocks are counted exactly.
    fn count(&self) -> Check {
        let stats = self.kv.stats().cache;
        if stats.total != stats.free + stats.idle + stats.used {
            return Err(format!("the numbers do not add up: {stats:?}"));
        }
        if self.known.is_empty() && stats.used != 0 {
            return Err(format!("{} blocks are in use, but no sequence is open", stats.used));
        }
        Ok(())
    }
}

fn run(
    order: Order,
    sides: Sides,
    when_full: WhenFull,
    prefix: bool,
    seed: u64,
    fault: Fault,
) -> Result<Engine, String> {
    let mut engine = Engine::new(config(40, when_full, prefix), groups(order, sides), seed, fault);
    for step in 0..200 {
        engine.step().map_err(|what| format!("{order:?} {sides:?} seed {seed} step {step}: {what}"))?;
    }
    Ok(engine)
}

#[test]
fn every_sequence_reads_its_own_words_in_every_layout() {
    let _alone = alone();
    let (mut hits, mut forks, mut copies, mut refusals, mut evicted, mut seed) = (0, 0, 0, 0, 0, 1);
    for order in [Order::LayerMajor, Order::HeadMajor, Order::LayerMajorNhd, Order::BlockMajor] {
        for sides in [Sides::Separate, Sides::PerLayer, Sides::PerBlock] {
            for (when_full, prefix) in
                [(WhenFull::Reject, false), (WhenFull::Shorten, true), (WhenFull::EvictSequence, true)]
            {
                let engine = run(order, sides, when_full, prefix, seed, Fault::None).unwrap();
                seed += 1;
                hits += engine.hits;
                forks += engine.forks;
                copies += engine.copies;
                refusals += engine.refusals;
                evicted += engine.evicted;
                assert!(engine.kv.mapped_pages().unwrap() > 0);
                drop(engine);
                assert_eq!(mappings(), 0, "nothing stays mapped");
            }
        }
    }
    println!("{hits} hit tokens, {forks} forks, {copies} copies, {refusals} refusals, {evicted} evicted");
    assert!(hits > 0 && forks > 0 && copies > 0 && refusals > 0 && evicted > 0);
}

#[test]
fn an_engine_that_is_wrong_is_caught() {
    let _alone = alone();
    for fault in [Fault::SkipsCopies, Fault::RewritesTokens] {
        let caught = (1..20).any(|seed| {
            run(Order::LayerMajorNhd, Sides::Separate, WhenFull::Reject, true, seed, fault).is_err_and(|what| {
                assert!(what.contains("reads another word"), "{what}");
                true
            })
        });
        assert!(caught);
    }
}

#[test]
fn virtual_sequences_publish_what_follows_a_block_that_another_has_published() {
    let _alone = alone();
    let kv = virtual_kv(config(16, WhenFull::Reject, true), &groups(Order::LayerMajor, Sides::Separate)).unwrap();
    let prompt = |kind: u32| -> Vec<u32> { (0..96).map(|at| if at < PER_BLOCK { at } else { kind + at }).collect() };
    let [first, second] = [prompt(1000), prompt(2000)];
    for (id, tokens) in [(1, &first), (2, &second)] {
        let open = Open { n_tokens: 96, tokens: Some(tokens), max_hit: 95, ..Open::default() };
        assert_eq!(kv.open(id, &open).unwrap().unwrap().hit_tokens, 0);
    }
    let matches = |tokens: &[u32]| kv.matching(Some(tokens), None, &[]).unwrap();
    kv.close(1, false).unwrap();
    kv.commit(2, 64).unwrap();
    assert_eq!((matches(&first), matches(&second)), (96, 64));
    kv.audit().unwrap();
    kv.close(2, false).unwrap();
    assert_eq!((matches(&first), matches(&second)), (96, 96));
    let stats = kv.stats().cache;
    assert_eq!((stats.idle, stats.used), (5, 0), "the block that was computed twice is cached once");
    kv.audit().unwrap();
}

#[test]
fn growth_maps_pages_once_and_reuse_maps_none() {
    let _alone = alone();
    let groups = groups(Order::LayerMajor, Sides::Separate);
    let planes: u64 = groups.iter().map(Geometry::pieces_per_block).sum();
    assert_eq!(planes, 5, "two layers with K and V, and a latent one");
    let kv = virtual_kv(config(16, WhenFull::Reject, false), &groups).unwrap();
    assert_eq!(kv.stats().arena_bytes, 16 * planes * 4096);
    let open = |id, n_tokens| kv.open(id, &Open { n_tokens, ..Open::default() }).unwrap();
    open(1, 0).unwrap();
    assert_eq!(kv.mapped_pages().unwrap(), 0);
    assert_eq!(kv.view(1, 0, 0, Side::K).unwrap().view.shape[0], 0);
    for tokens in 1..=LIMIT {
        kv.append(1, 1, None, None).unwrap().unwrap();
        assert_eq!(kv.mapped_pages().unwrap(), u64::from(tokens.div_ceil(PER_BLOCK)) * planes);
    }
    assert_eq!(kv.append(1, 1, None, None).unwrap_err().status, NMC_ERR_LIMIT);
    assert_eq!(kv.stats().cache.used, 10);
    let base = kv.view(1, 0, 0, Side::K).unwrap().view.offset;

    // What is cut off is free, and stays mapped where it is.
    kv.truncate(1, 33).unwrap().unwrap();
    assert_eq!((kv.stats().cache.used, kv.mapped_pages().unwrap()), (2, 10 * planes));
    kv.close(1, false).unwrap();
    assert_eq!((kv.stats().cache.used, kv.stats().cache.free), (0, 16));
    let before = mappings();
    open(2, LIMIT).unwrap();
    assert_eq!(kv.view(2, 0, 0, Side::K).unwrap().view.offset, base, "the same addresses");
    assert_eq!((kv.mapped_pages().unwrap(), mappings()), (10 * planes, before));

    // Another sequence takes free blocks from where they are mapped, if there are no others.
    kv.truncate(2, 1).unwrap().unwrap();
    open(3, LIMIT).unwrap();
    assert_eq!((kv.stats().cache.used, kv.stats().cache.free), (11, 5));
    let room = kv.reserve(2, LIMIT).unwrap().unwrap_err();
    assert_eq!((room.needed, room.free), (9, 5));
    kv.reserve(2, 6 * PER_BLOCK).unwrap().unwrap();
    assert_eq!((kv.stats().cache.used, kv.stats().cache.free), (16, 0));
    assert_eq!(open(4, 1).unwrap_err().needed, 1);
    kv.audit().unwrap();

    // A fork shares its full blocks.
    kv.close(3, false).unwrap();
    let pages = kv.mapped_pages().unwrap();
    kv.append(2, 3 * PER_BLOCK, None, None).unwrap().unwrap();
    kv.fork(2, 5).unwrap().unwrap();
    assert_eq!(kv.stats().cache.used, 7);
    assert_eq!(kv.mapped_pages().unwrap(), pages, "into the addresses of the closed one");
    assert_eq!(kv.fork(2, 5).unwrap_err().status, NMC_ERR_EXISTS);
    assert_eq!(kv.fork(9, 10).unwrap_err().status, NMC_ERR_NOT_FOUND);
    kv.audit().unwrap();
    drop(kv);
    assert_eq!(mappings(), 0);
}

#[test]
fn a_page_must_be_whole() {
    let _alone = alone();
    let good = groups(Order::LayerMajor, Sides::Separate);
    assert_eq!(page_tokens(&good, 4096), 32);
    assert_eq!(page_tokens(&good, 2 << 20), 16384);
    assert_eq!(page_tokens(&groups(Order::BlockMajor, Sides::PerLayer)[..1], 4096), 8);
    let shape = Shape { head_dim: 3, ..*good[0].shape() };
    let odd = Geometry::new(shape).unwrap();
    assert_eq!(page_tokens(&[odd], 4096), 256);
    let refused = virtual_kv(config(4, WhenFull::Reject, true), &[odd]).err().unwrap();
    assert_eq!(refused.status, NMC_ERR_INVALID_ARG);
    assert!(refused.message.contains("must be a multiple of 256"), "{}", refused.message);
    assert_eq!(mappings(), 0);
}

#[test]
fn threads_that_map_do_not_disturb_each_other() {
    let _alone = alone();
    let kv = virtual_kv(config(64, WhenFull::Reject, false), &groups(Order::LayerMajorNhd, Sides::PerLayer)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let kv = &kv;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                for round in 0..200u64 {
                    let id = thread << 32 | round;
                    let open = Open { n_tokens: random.below(100) as u32, ..Open::default() };
                    if kv.open(id, &open).unwrap().is_err() {
                        continue;
                    }
                    for step in 0..4 {
                        if kv.append(id, random.below(50) as u32, None, None).unwrap().is_err() {
                            break;
                        }
                        let tokens = kv.info(id).unwrap().tokens;
                        for token in 0..tokens {
                            let at = kv.token_address(id, token, 0, (1, Side::V, 1)).unwrap() as *mut u64;
                            // SAFETY: a mapped vector that only this sequence has.
                            unsafe {
                                if step > 0 && token < 1 {
                                    assert_eq!(at.read(), id, "another thread wrote here");
                                }
                                at.write(id);
                            }
                        }
                    }
                    kv.close(id, false).unwrap();
                }
            });
        }
    });
    kv.audit().unwrap();
    assert_eq!(kv.stats().cache.used, 0);
}

#[test]
fn when_there_are_too_many_mappings_those_of_closed_sequences_go() {
    let _alone = alone();
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if most > 100_000 {
        eprintln!("skipped: this machine allows {most} mappings");
        return;
    }
    let shape = Shape { layers: 32, ..*groups(Order::LayerMajor, Sides::Separate)[0].shape() };
    let kv = virtual_kv(
        Config { max_sequences: 4096, ..config(21, WhenFull::Reject, false) },
        &[Geometry::new(shape).unwrap()],
    )
    .unwrap();
    // Four that grow in turn, so that no page is mapped beside its neighbour: 64 mappings a block.
    for id in 1..=4 {
        kv.open(id, &Open::default()).unwrap().unwrap();
    }
    for id in (0..5).flat_map(|_| 1..=4) {
        kv.append(id, PER_BLOCK, None, None).unwrap().unwrap();
    }
    kv.open(5, &Open { n_tokens: PER_BLOCK, ..Open::default() }).unwrap().unwrap();
    let mut id = 6;
    // First in large steps, then in small ones, until there is no room for one more block.
    for parent in [1, 5] {
        let refused = loop {
            match kv.fork(parent, id) {
                Ok(done) => done.unwrap(),
                Err(error) => break error,
            }
            id += 1;
        };
        assert_eq!(refused.status, NMC_ERR_LIMIT);
        assert!(refused.message.contains("vm.max_map_count"), "{}", refused.message);
    }
    assert_eq!(kv.fork(1, 7).unwrap_err().status, NMC_ERR_EXISTS);
    kv.audit().unwrap();

    kv.close(3, false).unwrap();
    let before = kv.mapped_pages().unwrap();
    kv.append(1, LIMIT - 5 * PER_BLOCK, None, None).unwrap().unwrap();
    // Its five blocks are mapped elsewhere now; the rest is what could not be unmapped when a fork failed.
    assert!(kv.mapped_pages().unwrap() <= before);
    kv.audit().unwrap();
    drop(kv);
    assert_eq!(mappings(), 0);
}
