//! A transfer is held at every step of its way, one after the other, and there it is cancelled, its sequence closed or
//! used, its part made to fail, its objects removed, or its link closed. Whatever it is: it ends, nothing stays held, what
//! others match afterwards was written, and the next transfer works.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may"
)]
#![allow(unsafe_code, reason = "a test that reads and writes the blocks")]

mod common;
#[path = "common/kv.rs"]
mod kv;
#[path = "common/words.rs"]
mod words;

use nanomc::base::Deadline;
use nanomc::base::error::{Error, Result};
use nanomc::base::status::*;
use nanomc::kv::hash::Algo;
use nanomc::kv::place::Region;
use nanomc::kv::place::arena::{Arena, Group};
use nanomc::kv::place::geometry::{Dtype, Geometry, Kind, Order, Shape, Side, Sides};
use nanomc::kv::transfer::steps::Step;
use nanomc::kv::transfer::{After, Link};
use nanomc::kv::{Cache, NONE};
use nanomc::kv::{Config, Open, OwnGroup, OwnKind};
use nanomc::store::{self, Store};
use nanomc::tier::{self, Tier};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use words::short_word;

const SIZE: u32 = 4;
const LAYERS: u32 = 2;
const BLOCKS: u32 = 24;
/// Three full blocks, and two tokens that are computed here.
const LENGTH: u32 = 14;
/// Tokens of the window, where there is one.
const WINDOW: u32 = 6;
/// What makes a state different from the words of its tokens.
const STATE: u32 = 999;
const PATIENCE: Duration = common::PATIENCE;

fn store() -> Store {
    let mut world = common::config(std::path::Path::new("/"), None, 1);
    (world.dir, world.heap_bytes) = (None, 1 << 20);
    Store::embedded(&world, &store::Config { page_bytes: 4096, checksums: true, ..store::Config::default() }).unwrap()
}

/// What is to happen at which step; `None` only listens.
#[derive(Default)]
struct Plan {
    seen: Vec<Step>,
    at: Option<Step>,
    fails: bool,
    /// Tells that a thread waits at the step, and lets it go on.
    bell: Option<(Sender<u64>, Receiver<()>)>,
}

/// A cache with its memory, and a link to the store.
struct Node {
    cache: Arc<Cache>,
    arena: Arena,
    /// Of each group: all layers, and with groups that have blocks of their own the window and the state.
    memory: Vec<Vec<u64>>,
    link: Arc<Link>,
    plan: Arc<Mutex<Plan>>,
    /// Below the store, if what it has comes from disk.
    tier: Option<Tier>,
}

impl Node {
    fn new(store: &Store) -> Self {
        Self::with(store, Vec::new())
    }

    /// A cache that has a window and a state beside full attention.
    fn hybrid(store: &Store) -> Self {
        let window = OwnGroup { blocks: 20, kind: OwnKind::Window(WINDOW) };
        Self::with(store, vec![window, OwnGroup { blocks: 8, kind: OwnKind::State { every: 0 } }])
    }

    fn with(store: &Store, own_groups: Vec<OwnGroup>) -> Self {
        let config = Config { own_groups: own_groups.clone(), ..kv::config(BLOCKS, SIZE, Algo::Blake3) };
        let shape = Shape {
            kind: Kind::Full,
            dtype: Dtype::Fp32,
            layers: LAYERS,
            kv_heads: 1,
            head_dim: 2,
            tokens_per_block: SIZE,
            total_blocks: u64::from(BLOCKS),
            order: Order::LayerMajor,
            sides: Sides::Separate,
        };
        let own = |group: &OwnGroup| {
            let kind = match group.kind {
                OwnKind::Window(_) => Kind::Full,
                OwnKind::State { .. } => Kind::Recurrent { state_bytes: 8 },
            };
            Shape { kind, layers: 1, total_blocks: u64::from(group.blocks), ..shape }
        };
        let shapes = std::iter::once(shape).chain(own_groups.iter().map(own));
        let geometries: Vec<Geometry> = shapes.map(|shape| Geometry::new(shape).unwrap()).collect();
        let memory: Vec<Vec<u64>> = geometries.iter().map(|g| vec![0; g.bytes().div_ceil(8) as usize]).collect();
        let numbers = std::iter::once(NONE).chain(0..);
        let groups = geometries.into_iter().zip(&memory).zip(numbers);
        let group = |((geometry, memory), own_group): ((Geometry, &Vec<u64>), u32)| {
            // SAFETY: the node has it as long as its link, and looks at it only where no transfer writes.
            let region = unsafe { Region::new(memory.as_ptr() as u64, memory.len() as u64 * 8) };
            Group::new(geometry, Some(region), own_group).unwrap()
        };
        let arena = Arena::new(groups.map(group).collect());
        let cache = Arc::new(Cache::new(config).unwrap());
        let link = Link::new(Arc::clone(&cache), arena.clone(), store.share()).unwrap();
        let node = Self { cache, arena, memory, link: Arc::new(link), plan: Arc::default(), tier: None };
        node.watch();
        node
    }

    fn watch(&self) {
        let plan = Arc::clone(&self.plan);
        let watched = self.link.watch(Box::new(move |number, step| {
            let bell = {
                let mut plan = plan.lock().unwrap();
                plan.seen.push(step);
                if plan.at != Some(step) {
                    return Ok(());
                }
                plan.at = None;
                (plan.bell.take(), plan.fails)
            };
            if let (Some((here, go)), _) = bell {
                here.send(number).unwrap();
                go.recv_timeout(PATIENCE).unwrap();
            }
            if bell.1 { Err(Error::new(NMC_ERR_INTERNAL, "made to fail")) } else { Ok(()) }
        }));
        assert!(watched);
    }

    /// What the store has is on disk and not in memory, if there is a disk.
    fn to_disk(&self, store: &Store) {
        if let Some(tier) = &self.tier {
            tier.offload(None).unwrap();
            store.evict_until_below(0, 0).unwrap();
        }
    }

    /// A link that was closed is replaced.
    fn link_again(&mut self, store: &Store) {
        self.link = Arc::new(Link::new(Arc::clone(&self.cache), self.arena.clone(), store.share()).unwrap());
        self.watch();
    }

    fn is_hybrid(&self) -> bool {
        self.memory.len() > 1
    }

    /// All places of a token: in all layers, and if `near`, which is when the next token sees it, in the window.
    fn places(&self, id: u64, token: u32, near: bool) -> Vec<(*mut u32, u32)> {
        let mut all = Vec::new();
        let groups = [(0, LAYERS), (1, 1)].into_iter().take(1 + usize::from(near && self.is_hybrid()));
        for (group, layer) in groups.flat_map(|(group, layers)| (0..layers).map(move |layer| (group, layer))) {
            for (side, number) in [Side::K, Side::V].into_iter().zip(0..) {
                let at = self.arena.address(&self.cache, id, token, group, (layer, side, 0)).unwrap() as *mut u32;
                let salt = (group * 8 + layer * 2 + number) * 2;
                all.extend((0..2).map(|dim| (at.wrapping_add(dim as usize), salt + dim)));
            }
        }
        all
    }

    /// Where the state before, or after, the next tokens is.
    fn state(&self, id: u64, after: bool) -> *mut u64 {
        let (read, write) = self.cache.state_slots(id, 1).unwrap();
        let slot = if after { write } else { read };
        assert_ne!(slot, NONE, "there is a slot");
        (self.memory[2].as_ptr() as *mut u64).wrapping_add(slot as usize)
    }

    /// Computes tokens of a sequence.
    fn write(&self, id: u64, tokens: &[u32], range: std::ops::Range<u32>) {
        for at in range.clone() {
            for (address, salt) in self.places(id, at, true) {
                // SAFETY: an address in `memory`, which nobody else touches now.
                unsafe { address.write_volatile(short_word(salt, &tokens[..=at as usize])) };
            }
        }
        if self.is_hybrid() && !range.is_empty() {
            let state = u64::from(short_word(STATE, &tokens[..range.end as usize]));
            // SAFETY: a slot in `memory`, which nobody else touches now.
            unsafe { self.state(id, true).write_volatile(state) };
        }
    }

    /// Whether the first `count` tokens of a sequence are there, with all that the next one needs.
    fn is_right(&self, id: u64, tokens: &[u32], count: u32) -> bool {
        // SAFETY: an address in `memory`, which no transfer writes now.
        let read = |address: *mut u32| unsafe { address.read_volatile() };
        let state_is_right = || {
            // SAFETY: the same.
            let state = unsafe { self.state(id, false).read_volatile() };
            state == u64::from(short_word(STATE, &tokens[..count as usize]))
        };
        let seen = (count + 1).saturating_sub(WINDOW);
        let all = (0..count).all(|at| {
            let places = self.places(id, at, at >= seen);
            places.into_iter().all(|(address, salt)| read(address) == short_word(salt, &tokens[..=at as usize]))
        });
        all && (!self.is_hybrid() || count == 0 || state_is_right())
    }

    fn open(&self, id: u64, tokens: &[u32]) -> u32 {
        let n_tokens = tokens.len() as u32;
        let open = Open { n_tokens, tokens: Some(tokens), max_hit: n_tokens, ..Open::default() };
        self.cache.open(id, &open).unwrap().expect("room").hit_tokens
    }

    /// Opens a sequence and computes what is not cached.
    fn compute(&self, id: u64, tokens: &[u32]) {
        let (count, full) = (tokens.len() as u32, tokens.len() as u32 / SIZE * SIZE);
        // A state is there only between calls: it is kept at the end of the last full block.
        let first = if self.is_hybrid() { full } else { count };
        let hit = self.open(id, &tokens[..first as usize]);
        self.write(id, tokens, hit..first);
        if self.is_hybrid() {
            self.cache.keep_state(id).unwrap();
            let rest = &tokens[full as usize..];
            self.cache.append(id, count - full, Some(rest), None).unwrap().expect("room");
            self.write(id, tokens, full..count);
        }
        self.cache.commit(id, count).unwrap();
    }

    fn end(&self, ticket: u64) -> std::result::Result<Result<()>, String> {
        let (_, over) = self.link.wait(ticket, Deadline::after(PATIENCE)).map_err(|error| error.to_string())?;
        over.ok_or_else(|| "the transfer does not end".into())
    }
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..LENGTH).map(|at| seed * 1000 + at).collect()
}

/// The transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
    InByLayer,
}

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Nothing,
    Cancel,
    Close,
    Abort,
    TheStepFails,
    ObjectsGo,
    LinkCloses,
    SequenceIsUsed,
    /// For the controls: what came is overwritten, as if it had not come.
    Scribble,
    /// For the controls: blocks are held that nobody lets go of.
    HoldsOn,
    /// A bug: the step panics.
    Panics,
}

const ID: u64 = 5;
type Check = std::result::Result<(), String>;

fn ask(link: &Link, way: Way) -> Result<u64> {
    match way {
        Way::Out => link.offload(ID, LENGTH, After::Nothing),
        Way::In | Way::InByLayer => {
            link.onboard(ID, After::Nothing, true, way == Way::InByLayer).map(|(ticket, _)| ticket)
        }
    }
}

/// What may be done while the transfer stands at `step`.
fn strike(node: &Node, store: &Store, number: u64, step: Step, way: Way, blow: Blow) -> Check {
    match blow {
        Blow::Nothing | Blow::TheStepFails | Blow::Panics => {}
        Blow::HoldsOn => {
            // By another sequence: one that is being fetched cannot be pinned.
            let hit = node.open(99, &prompt(1));
            let (_forgotten, pinned) = node.cache.pin(99, LENGTH).unwrap();
            assert!(pinned == hit && hit > 0);
            node.cache.close(99, true).unwrap();
        }
        Blow::Cancel => match node.link.cancel(number) {
            Err(error) if step != Step::Held => return Err(format!("cannot be cancelled: {error}")),
            _ => {}
        },
        Blow::Close | Blow::Abort => {
            // Nobody was told the end of a fetch yet: an orderly close says nothing of what was not fetched.
            node.cache.close(ID, blow == Blow::Abort).map_err(|error| error.to_string())?;
        }
        Blow::ObjectsGo => {
            store.remove_all().unwrap();
        }
        Blow::LinkCloses => node.link.close(),
        Blow::SequenceIsUsed => {
            let busy = way != Way::Out;
            let uses: [(&str, Result<()>); 4] = [
                ("truncate", node.cache.truncate(ID, LENGTH).map(|_| ())),
                ("commit", node.cache.commit(ID, 0)),
                ("reserve", node.cache.reserve(ID, LENGTH + 1).map(|_| ())),
                ("append", node.cache.append(ID, 1, None, None).map(|_| ())),
            ];
            for (name, done) in uses {
                match done {
                    Ok(()) if !busy => {}
                    Err(error) if busy && error.status == NMC_ERR_BUSY => {}
                    other => return Err(format!("{name} was {other:?}")),
                }
            }
        }
        Blow::Scribble => {
            for token in 0..SIZE {
                for (address, _) in node.places(ID, token, false) {
                    // SAFETY: an address in `memory`; the copy of this part is over.
                    unsafe { address.write_volatile(0) };
                }
            }
        }
    }
    node.cache.audit().map_err(|error| error.to_string())
}

/// One transfer that stands at `step` while `blow` strikes, and all that must be true after it.
fn run(node: &mut Node, store: &Store, way: Way, step: Option<Step>, blow: Blow) -> Check {
    let tokens = prompt(1);
    store.remove_all().unwrap();
    node.cache.clear().unwrap();
    node.memory.iter_mut().for_each(|group| group.fill(u64::MAX));
    if way != Way::Out {
        *node.plan.lock().unwrap() = Plan::default();
        node.compute(1, &tokens);
        let ticket = node.link.offload(1, LENGTH, After::Nothing).unwrap();
        node.end(ticket)?.unwrap();
        node.to_disk(store);
        node.cache.close(1, false).unwrap();
        node.cache.clear().unwrap();
        node.memory.iter_mut().for_each(|group| group.fill(u64::MAX));
        node.open(ID, &tokens);
    } else {
        node.compute(ID, &tokens);
    }
    let (here, is_here) = channel();
    let (go, may_go) = channel();
    *node.plan.lock().unwrap() =
        Plan { seen: Vec::new(), at: step, fails: blow == Blow::TheStepFails, bell: Some((here, may_go)) };
    let asked = {
        let link = Arc::clone(&node.link);
        std::thread::spawn(move || ask(&link, way))
    };
    if let Some(step) = step {
        let number = match is_here.recv_timeout(PATIENCE) {
            Ok(number) => number,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err("the step never came".into()),
        };
        let struck = strike(node, store, number, step, way, blow);
        if blow == Blow::Panics {
            // The thread's end of the bell is gone, and it panics.
            drop(go);
        } else {
            go.send(()).unwrap();
        }
        struck?;
    }
    let ticket = asked.join().unwrap().map_err(|error| format!("it was refused: {error}"))?;
    let over = node.end(ticket)?;
    match (&over, blow) {
        (Ok(()), _) => {}
        (Err(error), Blow::Cancel | Blow::LinkCloses) if error.status != NMC_ERR_INTERNAL => {}
        (Err(error), Blow::TheStepFails | Blow::Panics) if error.status == NMC_ERR_INTERNAL => {}
        (Err(error), Blow::ObjectsGo) if error.status == NMC_ERR_STALE => {}
        (Err(error), _) => return Err(format!("it failed: {error}")),
    }
    if !matches!(blow, Blow::Close | Blow::Abort) {
        let computed = node.cache.info(ID).map_err(|error| error.to_string())?.computed;
        if !node.is_right(ID, &tokens, computed.min(LENGTH)) {
            return Err(format!("of {computed} tokens that count as computed, some are not"));
        }
        if way != Way::Out && over.is_ok() && computed < LENGTH / SIZE * SIZE {
            return Err(format!("only {computed} tokens came"));
        }
        node.cache.close(ID, true).map_err(|error| error.to_string())?;
    }
    is_clean(node, &tokens)?;
    if blow == Blow::LinkCloses {
        // Whoever still asks is told so, and nothing is held for it.
        node.compute(ID, &tokens);
        if let Ok(ticket) = node.link.offload(ID, LENGTH, After::Nothing) {
            node.end(ticket)?.expect_err("the link is closed");
        }
        node.cache.close(ID, true).unwrap();
        is_clean(node, &tokens)?;
        node.link_again(store);
    }
    works_again(node)
}

/// Nothing is held, and what is matched is right.
fn is_clean(node: &Node, tokens: &[u32]) -> Check {
    node.cache.audit().map_err(|error| error.to_string())?;
    let stats = node.cache.stats();
    let own: u64 = (0..2).map(|group| node.cache.group_stats(group).used).sum();
    if (stats.used + own, stats.sequences) != (0, 0) {
        return Err(format!("{} blocks and {} sequences stay held", stats.used + own, stats.sequences));
    }
    let hit = node.open(77, tokens);
    let right = node.is_right(77, tokens, hit);
    node.cache.close(77, true).unwrap();
    if right { Ok(()) } else { Err(format!("{hit} tokens are matched, and some of them were never written")) }
}

/// Another prompt goes out and comes back.
fn works_again(node: &mut Node) -> Check {
    *node.plan.lock().unwrap() = Plan::default();
    let tokens = prompt(2);
    node.compute(9, &tokens);
    let ticket = node.link.offload(9, LENGTH, After::Nothing).unwrap();
    node.end(ticket)?.map_err(|error| format!("the next offload: {error}"))?;
    node.cache.close(9, false).unwrap();
    node.cache.clear().unwrap();
    node.memory.iter_mut().for_each(|group| group.fill(u64::MAX));
    node.open(9, &tokens);
    let (ticket, _) = node.link.onboard(9, After::Nothing, true, false).unwrap();
    node.end(ticket)?.map_err(|error| format!("the next onboard: {error}"))?;
    let right = node.is_right(9, &tokens, LENGTH / SIZE * SIZE);
    node.cache.close(9, true).unwrap();
    if right { is_clean(node, &tokens) } else { Err("the next onboard brought other bytes".into()) }
}

/// All steps of a transfer; that there are no others is a test of its own.
fn steps(way: Way, hybrid: bool) -> Vec<Step> {
    let blocks = (LENGTH / SIZE) as usize;
    let parts = match (way, hybrid) {
        (Way::InByLayer, _) => blocks * LAYERS as usize,
        (_, false) => blocks,
        // The window of each, and one state.
        (Way::Out, true) => 2 * blocks + 1,
        // Of the window only what the next token sees.
        (Way::In, true) => 2 * blocks,
    };
    let each = |part| [Step::Taken(part), Step::Waited(part), Step::Copied(part), Step::Counted(part)];
    let ends = [Step::Held, Step::Queued, Step::Ending, Step::Landed, Step::Released];
    (0..parts).flat_map(each).chain(ends).collect()
}

const BLOWS: [Blow; 8] = [
    Blow::Nothing,
    Blow::Cancel,
    Blow::Close,
    Blow::Abort,
    Blow::TheStepFails,
    Blow::ObjectsGo,
    Blow::LinkCloses,
    Blow::SequenceIsUsed,
];

fn try_all(node: &mut Node, store: &Store, ways: &[Way]) {
    let mut runs = 0;
    for way in ways.iter().copied() {
        for step in steps(way, node.is_hybrid()) {
            for blow in BLOWS {
                if let Err(what) = run(node, store, way, Some(step), blow) {
                    panic!("{way:?}, {blow:?} at {step:?}: {what}");
                }
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}

#[test]
fn whatever_happens_at_any_step_of_a_transfer_nothing_is_lost_and_nothing_unwritten_is_matched() {
    let store = store();
    try_all(&mut Node::new(&store), &store, &[Way::Out, Way::In, Way::InByLayer]);
}

#[test]
fn whatever_happens_at_any_step_of_a_transfer_windows_and_states_are_whole_or_absent() {
    let store = store();
    try_all(&mut Node::hybrid(&store), &store, &[Way::Out, Way::In]);
}

/// A store, a cache over it, and a directory for its disk.
fn with_disk() -> (tempfile::TempDir, Store, Node) {
    let (dir, store) = (tempfile::tempdir().unwrap(), store());
    let directory = dir.path().join("tier");
    let config = tier::Config { directory, paused: true, max_objects: 4096, ..tier::Config::default() };
    let mut node = Node::new(&store);
    node.tier = Some(Tier::open(&store, &config, &mut |_, _| ()).unwrap());
    (dir, store, node)
}

#[test]
fn whatever_happens_at_any_step_of_a_transfer_from_disk_nothing_is_lost_and_nothing_unwritten_is_matched() {
    let (_dir, store, mut node) = with_disk();
    try_all(&mut node, &store, &[Way::In, Way::InByLayer]);
}

fn check_steps(node: &Node, store: &Store, ways: &[Way]) {
    for way in ways.iter().copied() {
        let (mut tried, tokens) = (steps(way, node.is_hybrid()), prompt(1));
        store.remove_all().unwrap();
        node.compute(1, &tokens);
        if way != Way::Out {
            let ticket = node.link.offload(1, LENGTH, After::Nothing).unwrap();
            node.end(ticket).unwrap().unwrap();
            node.to_disk(store);
        }
        node.cache.close(1, true).unwrap();
        node.cache.clear().unwrap();
        if way == Way::Out {
            node.compute(ID, &tokens);
        } else {
            node.open(ID, &tokens);
        }
        *node.plan.lock().unwrap() = Plan::default();
        let ticket = ask(&node.link, way).unwrap();
        node.end(ticket).unwrap().unwrap();
        let mut seen = std::mem::take(&mut node.plan.lock().unwrap().seen);
        node.cache.close(ID, true).unwrap();
        node.cache.clear().unwrap();
        tried.sort();
        seen.sort();
        assert_eq!(tried, seen, "{way:?}");
    }
}

#[test]
fn the_steps_that_are_tried_are_all_there_are() {
    let store = store();
    check_steps(&Node::new(&store), &store, &[Way::Out, Way::In, Way::InByLayer]);
    check_steps(&Node::hybrid(&store), &store, &[Way::Out, Way::In]);
    let (_dir, store, node) = with_disk();
    check_steps(&node, &store, &[Way::In, Way::InByLayer]);
}

#[test]
fn control_a_block_that_did_not_come_is_caught() {
    let store = store();
    for step in [Step::Counted(0), Step::Landed] {
        let mut node = Node::new(&store);
        let caught = run(&mut node, &store, Way::In, Some(step), Blow::Scribble).unwrap_err();
        assert!(caught.contains("are not"), "{caught}");
    }
}

#[test]
fn control_a_transfer_that_never_lets_go_is_caught() {
    let store = store();
    for way in [Way::Out, Way::In] {
        let mut node = Node::new(&store);
        let caught = run(&mut node, &store, way, Some(Step::Landed), Blow::HoldsOn).unwrap_err();
        assert!(caught.contains("stay held"), "{caught}");
    }
}

#[test]
fn a_bug_in_any_step_ends_the_transfer_and_lets_go() {
    let store = store();
    for way in [Way::Out, Way::In, Way::InByLayer] {
        for step in [Step::Taken(0), Step::Copied(1), Step::Ending, Step::Landed] {
            let mut node = Node::new(&store);
            if let Err(what) = run(&mut node, &store, way, Some(step), Blow::Panics) {
                panic!("{way:?}, {step:?}: {what}");
            }
            if way != Way::Out {
                let (_dir, store, mut node) = with_disk();
                if let Err(what) = run(&mut node, &store, way, Some(step), Blow::Panics) {
                    panic!("from disk, {way:?}, {step:?}: {what}");
                }
            }
        }
    }
}
