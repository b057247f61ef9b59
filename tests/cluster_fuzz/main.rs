//! Whatever anybody sends: the bodies of the fuzz targets in `fuzz/`, here with inputs by chance that are the same in every run. Each has
//! a control: something broken in its place, which the same inputs find.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod counted;
mod directory;
mod frame;
mod mutate;
mod node;
mod script;
mod shelf;

use nanomc::base::error::Result;
use nanomc::base::queue::Queue;
use nanomc::cluster::directory::Master;
use nanomc::cluster::node::Agent;
use nanomc::cluster::types::Millis;
use nanomc::cluster::wire::{Card, Frame, Hello, Message, Mover, Region};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One frame of each kind, as they are said in the examples.
fn frames() -> Vec<Vec<u8>> {
    let mut kinds = BTreeMap::new();
    let mut keep = |message: &Message| {
        kinds.entry(message.number()).or_insert_with(|| message.clone());
    };
    directory::examples().iter().for_each(|example| directory::run(example, Master::new, &mut keep));
    node::examples().iter().for_each(|example| node::run(example, node::agent, &mut keep));
    keep(&Hello { token: "secret".into() }.into());
    let regions = vec![Region { number: 1, base: 4096, length: 9, device: Some(3) }];
    keep(&Mover { id: 7, edition: 2, card: Card(vec![1, 2]), regions }.into());
    let encode = |message: Message| {
        let mut bytes = Vec::new();
        Frame { request: 1 << 40, time_left_ms: 250, message }.encode(&mut bytes).unwrap();
        bytes
    };
    kinds.into_values().map(encode).collect()
}

/// Whether something is found by the inputs: it panics with one of them.
fn finds(seed: u64, count: usize, examples: &[Vec<u8>], mut run: impl FnMut(&[u8])) -> bool {
    catch_unwind(AssertUnwindSafe(|| mutate::each(seed, count, examples, &mut run))).is_err()
}

#[test]
fn the_examples_have_every_kind_of_message() {
    let known = (0..100).filter(|kind| {
        let error = Message::get_body(*kind, &mut nanomc::rpc::packet::Cursor::new(&[])).err();
        !error.is_some_and(|error| error.message.contains("there is no message"))
    });
    let kinds: Vec<u32> = frames().iter().map(|bytes| u32::from_le_bytes(bytes[4..8].try_into().unwrap())).collect();
    assert_eq!(kinds, known.collect::<Vec<_>>());
}

#[test]
fn bytes_are_refused_or_are_a_frame_that_is_encoded_to_them() {
    mutate::each(1, mutate::many(20_000), &frames(), frame::body);
}

#[test]
fn control_a_decoder_that_believes_a_length_is_found() {
    fn believing(bytes: &[u8]) -> Option<Result<Frame>> {
        let length = bytes.get(8..12).map_or(0, |length| u32::from_le_bytes(length.try_into().unwrap()));
        let room = Vec::<u8>::with_capacity(length as usize);
        frame::decode(bytes).inspect(|_| drop(room))
    }
    assert!(finds(1, 20_000, &frames(), |data| frame::check(data, believing)));
}

#[test]
fn control_a_decoder_that_forgets_a_field_is_found() {
    fn forgetting(bytes: &[u8]) -> Option<Result<Frame>> {
        Some(frame::decode(bytes)?.map(|frame| Frame { time_left_ms: 0, ..frame }))
    }
    assert!(finds(1, 1, &frames(), |data| frame::check(data, forgetting)));
}

#[test]
fn a_master_outlives_what_it_is_told() {
    mutate::each(2, mutate::many(2_000), &directory::examples(), directory::body);
}

/// A machine that is right, and what it does wrong besides.
struct Wrong<M>(M, Vec<Vec<u8>>);

impl directory::Machine for Wrong<Master> {
    fn on(
        &mut self,
        event: nanomc::cluster::directory::Event,
        now: Millis,
        to: &mut Vec<nanomc::cluster::directory::Action>,
    ) {
        // It makes room for as much as a put is going to have.
        if let nanomc::cluster::directory::Event::Message(_, Frame { message: Message::PutStart(start), .. }) = &event {
            self.1.push(Vec::with_capacity(usize::try_from(start.length.min(1 << 24)).unwrap()));
        }
        self.0.on(event, now, to);
    }
}

#[test]
fn control_a_master_that_makes_room_for_what_is_announced_is_found() {
    let run = |data: &[u8]| directory::run(data, |config| Wrong(Master::new(config), Vec::new()), |_| ());
    assert!(finds(2, 2_000, &directory::examples(), run));
}

#[test]
fn an_agent_outlives_what_it_is_told() {
    mutate::each(3, mutate::many(3_000), &node::examples(), node::body);
}

impl node::Machine for Wrong<Agent<shelf::Shelf>> {
    fn on(&mut self, event: nanomc::cluster::node::Event, now: Millis, to: &mut Queue<nanomc::cluster::node::Action>) {
        // It has no more than a few clients.
        if let nanomc::cluster::node::Event::Message(peer, _) = &event {
            assert!(peer.0 < 4);
        }
        self.0.on(event, now, to);
    }

    fn begin_anew(&mut self, life: u64, now: Millis, to: &mut Queue<nanomc::cluster::node::Action>) {
        node::Machine::begin_anew(&mut self.0, life, now, to);
    }
}

#[test]
fn control_an_agent_that_relies_on_others_is_found() {
    let run = |data: &[u8]| node::run(data, |config| Wrong(node::agent(config), Vec::new()), |_| ());
    assert!(finds(3, 3_000, &node::examples(), run));
}

/// Writes the examples where a fuzzer begins with them: `NMC_FUZZ_CORPUS=fuzz/corpus cargo test --test cluster_fuzz corpus -- --ignored`.
#[test]
#[ignore = "writes files"]
fn corpus() {
    let root = std::path::PathBuf::from(std::env::var_os("NMC_FUZZ_CORPUS").expect("NMC_FUZZ_CORPUS says where to"));
    for (target, examples) in [("frame", frames()), ("directory", directory::examples()), ("node", node::examples())] {
        std::fs::create_dir_all(root.join(target)).unwrap();
        for (n, example) in examples.iter().enumerate() {
            std::fs::write(root.join(target).join(format!("example-{n:02}")), example).unwrap();
        }
    }
}
