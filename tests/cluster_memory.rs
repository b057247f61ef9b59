//! What the directory of a cluster costs: at a million objects of four nodes no more than 400 bytes each.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use nanomc::cluster::directory::{Action, Config, Elected, Event, Master, Member};
use nanomc::cluster::types::{Media, NodeId, ObjectKey, Peer, Position, PutId};
use nanomc::cluster::wire::{
    Applied, Fact, Facts, Find, Frame, Join, Message, News, Published, Report, SegmentInfo, SnapshotEnd,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with a count of what is in use.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // What the allocator itself adds: a word, and the rounding to 16 bytes.
        USED.fetch_add((layout.size() + 8).next_multiple_of(16), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED.fetch_sub((layout.size() + 8).next_multiple_of(16), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

const NODES: u32 = 4;
const OBJECTS: u32 = 250_000;

fn key(node: u32, index: u32) -> ObjectKey {
    // As long as a hash that an engine would use, as text.
    ObjectKey::new(b"kv", format!("{node:02}-{index:016x}-{index:016x}").as_bytes()).unwrap()
}

fn tell(master: &mut Master, from: u32, message: impl Into<Message>) -> Vec<Message> {
    let mut actions = Vec::new();
    master.on(Event::Message(Peer(from.into()), Frame::telling(message)), 100, &mut actions);
    let said = actions.into_iter().filter_map(|action| match action {
        Action::Send(_, frame) => Some(frame.message),
        Action::Record(..) => None,
    });
    said.collect()
}

#[test]
fn a_million_objects_take_at_most_400_bytes_each() {
    let mut master = Master::new(Config::default());
    let members =
        (0..NODES).map(|n| Member { name: format!("n{n}"), since: Position { term: 1, number: 0 } }).collect();
    let elected = Elected { term: 1, until: u64::MAX, members, log: Vec::new(), floor: Position::default() };
    master.on(Event::Elected(elected), 0, &mut Vec::new());
    let before = USED.load(Relaxed);
    for n in 0..NODES {
        let name = format!("n{n}");
        let capacity = 1 << 40;
        let (media, used, near) = (Media::Ram, 0, -1);
        let segment = SegmentInfo { number: 0, name: format!("{name}/ram"), media, capacity, used, near };
        let node = NodeId::of(&name);
        let (endpoint, host) = (format!("host{n}:12345"), format!("host{n}"));
        let (incarnation, store, since, headers, slots, sent_at) = (7, 7, None, OBJECTS, 0, 1);
        let segments = vec![segment];
        let join = Join {
            name,
            incarnation,
            store,
            since,
            tier: 0,
            apart: None,
            left: false,
            endpoint,
            host,
            headers,
            slots,
            sent_at,
            segments,
        };
        let said = tell(&mut master, n, join);
        let Some(Message::Welcome(welcome)) = said.into_iter().next() else { panic!("not welcome") };
        let mut number = welcome.next;
        let mut report = |master: &mut Master, news: News| {
            tell(master, n, Report { term: 1, node, incarnation, number, sent_at: 1, news });
            number += 1;
        };
        report(&mut master, Applied { position: welcome.head }.into());
        report(&mut master, SnapshotEnd { facts: 0 }.into());
        for first in (0..OBJECTS).step_by(250) {
            let fact = |index: u32| -> Fact {
                let (put, length, segment) = (PutId::local(u64::from(index) << 8 | u64::from(n)), 1 << 20, 0);
                Published { index, epoch: 1, key: key(n, index), put, length, segment }.into()
            };
            let facts = (first..OBJECTS.min(first + 250)).map(fact).collect();
            report(&mut master, Facts { first: u64::from(first) + 1, facts }.into());
        }
    }
    let bytes = (USED.load(Relaxed) - before) / (NODES * OBJECTS) as usize;
    println!("{bytes} bytes an object");
    assert!(bytes <= 400, "{bytes} bytes an object");
    for (node, index) in [(0, 0), (3, OBJECTS - 1), (2, 77_777)] {
        let said = tell(&mut master, 9, Find { keys: vec![key(node, index), key(9, index)], missed: vec![] });
        let Some(Message::Found(found)) = said.into_iter().next() else { panic!("no answer") };
        assert_eq!(found.keys[0].replicas[0].name.index, index);
        assert!(found.keys[1].replicas.is_empty());
    }
}
