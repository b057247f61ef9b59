//! What is done with a cluster, and what of it is measured.

use crate::counted::Cost;
use crate::shelf::{LENGTH, key};
use crate::sim::{LEASE_MS, Sim, agent, name, segment};
use crate::sockets::sockets;
use nanomc::base::status::{NMC_IN_PROGRESS, NMC_OK};
use nanomc::cluster::directory::Event;
use nanomc::cluster::facade::PING_MS;
use nanomc::cluster::node::Storage as _;
use nanomc::cluster::node::storage::Wanted;
use nanomc::cluster::types::{Chance, Millis, Name, NodeId, ObjectKey};
use nanomc::cluster::wire::{Done, Drain, Find, Message, Metadata, PutEnd, PutStart, Remove, Replicate};

/// How much of each.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub nodes: usize,
    pub objects: usize,
    /// Messages of each kind of call.
    pub calls: usize,
    /// Calls under way together.
    pub together: usize,
    /// Simulated time for what goes on by itself.
    pub idle_ms: Millis,
}

/// What came of one cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    pub nodes: usize,
    pub objects: usize,
    pub memory: f64,
    pub rebuild: Cost,
    pub rebuild_s: f64,
    pub change_s: f64,
    pub idle_messages: f64,
    pub idle_share: f64,
    pub tick_us: f64,
    pub find_us: f64,
    pub find_key_us: f64,
    pub start_us: f64,
    pub put_us: f64,
    pub put_messages: f64,
    pub put_heard: f64,
    pub remove_us: f64,
    pub remove_messages: f64,
    pub join_us: f64,
    pub copies: f64,
    pub copy_us: f64,
}

/// Ticks of which the time is taken.
const TICKS: usize = 20;
/// Nodes that join later.
const JOINS: usize = 10;
/// Keys that a batch of lookups has.
pub const BATCH: usize = 128;

pub fn measure(size: Size) -> Row {
    let Size { nodes, objects, .. } = size;
    let mut row = Row { nodes, objects, ..Row::default() };
    let mut sim = Sim::new(nodes, objects);
    // The nodes are new, and so is the cluster.
    sim.elect(0, 1);
    sim.settle(0);
    sim.pass(10);
    assert_eq!(sim.figures(0).unwrap().objects, objects);
    assert_eq!(sim.members.len(), nodes);
    row.memory = sim.memory as f64;

    let before = (sim.cost, sim.now_us);
    sim.pass(size.idle_ms);
    let (cost, seconds) = (sim.cost.since(before.0), (sim.now_us - before.1) as f64 / 1e6);
    assert!(cost.heard >= size.idle_ms / PING_MS * nodes as u64 / 2, "nodes are heard of");
    (row.idle_messages, row.idle_share) = (cost.messages() as f64 / seconds, cost.cpu_ns as f64 / 1e9 / seconds);

    let before = sim.cost;
    (0..TICKS).for_each(|_| sim.work(0, Event::Tick));
    row.tick_us = sim.cost.since(before).us_per(TICKS);

    finds(&mut sim, size, &mut row);
    puts(&mut sim, size, &mut row);

    // More nodes, with nothing, one after the other.
    let before = sim.cost;
    for node in nodes..nodes + JOINS {
        sim.nodes.push(agent(node, 0, sim.now()));
        sim.by_id.insert(NodeId::of(&name(node)), node);
        sim.rest(0, &[node]);
    }
    row.join_us = sim.cost.since(before).us_per(JOINS);
    assert_eq!(sim.active(0), nodes + JOINS);

    drain(&mut sim, size, &mut row);
    change(&mut sim, &mut row);
    row
}

pub fn finds(sim: &mut Sim, size: Size, row: &mut Row) {
    let mut chance = Chance::new(1);
    let mut some = |count: usize| -> Vec<ObjectKey> {
        let mut one = || {
            let node = chance.below(size.nodes);
            key(node as u32, chance.below((size.objects / size.nodes).max(1)) as u32)
        };
        (0..count).map(|_| one()).collect()
    };
    for (keys, calls) in [(1, size.calls), (BATCH, (size.calls / BATCH).max(2))] {
        let messages = (0..calls).map(|_| Find { keys: some(keys), missed: Vec::new() }.into()).collect();
        let before = sim.cost;
        let answers = sim.ask(0, messages);
        let us = sim.cost.since(before).us_per(calls * keys);
        *(if keys == 1 { &mut row.find_us } else { &mut row.find_key_us }) = us;
        for answer in answers {
            let Message::Found(found) = answer else { panic!("{answer:?}") };
            assert!(found.keys.iter().all(|listed| listed.status == NMC_OK && listed.replicas.len() == 1));
        }
    }
}

/// Puts on nodes that the master chooses, and removes of them.
pub fn puts(sim: &mut Sim, size: Size, row: &mut Row) {
    let config = Replicate { copies: 1, media: Vec::new(), fixed: Vec::new(), near: String::new() };
    let mut owners: Vec<Vec<usize>> = Vec::new();
    let (before, mut starts) = (sim.cost, 0);
    let keys: Vec<ObjectKey> =
        (0..size.calls).map(|n| ObjectKey::new(b"kv", format!("new-{n:032}").as_bytes()).unwrap()).collect();
    for keys in keys.chunks(size.together) {
        let start = |key: &ObjectKey| {
            PutStart { key: key.clone(), length: LENGTH, slices: vec![LENGTH], config: config.clone(), striped: false }
                .into()
        };
        let begun = sim.cost.cpu_ns;
        let answers = sim.ask(0, keys.iter().map(start).collect());
        starts += sim.cost.cpu_ns - begun;
        let (mut ends, mut numbers) = (Vec::new(), Vec::new());
        for (key, answer) in keys.iter().zip(answers) {
            let Message::PutPlaces(places) = answer else { panic!("{answer:?}") };
            let place = &places.places[0];
            let number = sim.by_id[&place.node];
            let storage = sim.nodes[number].agent.storage_mut();
            let metadata = Metadata::default();
            let wanted = Wanted {
                put: places.put,
                key,
                length: LENGTH,
                segment: place.segment,
                exact: true,
                retain: 0,
                metadata: &metadata,
                is_copy: false,
            };
            let plan = storage.open(&wanted).unwrap();
            let fact = storage.commit(plan).unwrap().unwrap();
            let name = Name { node: place.node, incarnation: place.incarnation, index: plan.index, epoch: plan.epoch };
            ends.push(
                PutEnd {
                    put: places.put,
                    key: key.clone(),
                    done: vec![Done { name, fact }],
                    tried: Vec::new(),
                    crc: None,
                }
                .into(),
            );
            numbers.push(number);
        }
        sim.rest(0, &numbers);
        for answer in sim.ask(0, ends) {
            assert!(
                matches!(&answer, Message::Answer(answer) if answer.status == NMC_OK && answer.count == 1),
                "{answer:?}"
            );
        }
        owners.push(numbers);
    }
    let cost = sim.cost.since(before);
    row.start_us = starts as f64 / 1e3 / size.calls as f64;
    (row.put_us, row.put_messages) = (cost.us_per(size.calls), cost.messages() as f64 / size.calls as f64);
    row.put_heard = cost.heard as f64 / size.calls as f64;

    let before = sim.cost;
    for (n, (keys, numbers)) in keys.chunks(size.together).zip(&owners).enumerate() {
        let call = |at: usize| (n * size.together + at) as u64 + 1;
        let remove = |(at, key): (usize, &ObjectKey)| Remove { key: key.clone(), wait: true, call: call(at) }.into();
        let mut answers = sim.ask(0, keys.iter().enumerate().map(remove).collect());
        sim.rest(0, numbers);
        answers.append(&mut sim.answers);
        assert_eq!(answers.len(), keys.len(), "every remove has ended");
        assert!(answers.iter().all(|answer| matches!(answer, Message::Answer(answer) if answer.status == NMC_OK)));
    }
    let cost = sim.cost.since(before);
    (row.remove_us, row.remove_messages) = (cost.us_per(size.calls), cost.messages() as f64 / size.calls as f64);
    assert_eq!(sim.figures(0).unwrap().objects, size.objects);
}

/// The first node is emptied, for a while.
pub fn drain(sim: &mut Sim, size: Size, row: &mut Row) {
    let commits = |sim: &Sim| sim.nodes.iter().map(|node| node.agent.storage().commits).sum::<u64>();
    let ask = |sim: &mut Sim, cancel: bool| {
        let answers = sim.ask(0, vec![Drain { segment: segment(0), cancel }.into()]);
        let expected = if cancel { NMC_OK } else { NMC_IN_PROGRESS };
        assert!(matches!(&answers[..], [Message::Answer(answer)] if answer.status == expected), "{answers:?}");
    };
    ask(sim, false);
    let all = u64::from(sim.nodes[0].agent.storage().first);
    let (before, had) = ((sim.cost, sim.now_us), commits(sim));
    // Until everything was copied, if that is not much.
    while sim.now_us < before.1 + size.idle_ms * 1000 && commits(sim) < had + all {
        sim.step();
    }
    let (cost, seconds) = (sim.cost.since(before.0), (sim.now_us - before.1) as f64 / 1e6);
    let copied = commits(sim) - had;
    assert!(copied > 0, "something is copied");
    row.copies = copied as f64 / seconds;
    row.copy_us = (cost.cpu_ns as f64 / 1e3 - row.idle_share * seconds * 1e6).max(0.0) / copied as f64;
    ask(sim, true);
    // What was copied goes, so that there are as many objects as before.
    sim.pass(size.idle_ms.min(500));
}

/// The leader dies, and the other master leads as soon as the lease is over.
pub fn change(sim: &mut Sim, row: &mut Row) {
    let objects = sim.figures(0).unwrap().objects;
    (sim.places[0].master, sim.memory) = (None, 0);
    let died = sim.now_us;
    sim.pass(LEASE_MS);
    let (before, elected) = (sim.cost, sim.now_us);
    sim.elect(1, 2);
    sim.settle(1);
    row.rebuild = sim.cost.since(before);
    row.rebuild_s = row.rebuild.cpu_ns as f64 / 1e9;
    row.change_s = (sim.now_us - died) as f64 / 1e6;
    assert!(sim.now_us > elected && sim.figures(1).unwrap().objects == objects, "nothing is lost");
}

/// What depends on the number of nodes alone.
pub struct Alone {
    /// Bytes of the directory when they have nothing.
    pub bytes: f64,
    /// See [`sockets`].
    pub socket_us: f64,
}

impl Alone {
    pub fn of(nodes: usize, messages: usize) -> Self {
        let mut sim = Sim::new(nodes, 0);
        sim.elect(0, 1);
        sim.settle(0);
        Self { bytes: sim.memory as f64, socket_us: sockets(nodes, messages / nodes) }
    }
}
