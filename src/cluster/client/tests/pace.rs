//! Values that take long, on networks that are slow or shared: who is waited for, and how long.

use super::{Rig, done, fetched, key, replica};
use crate::base::status::{NMC_ERR_TIMEOUT, NMC_OK};
use crate::cluster::client::requests::LEAST;
use crate::cluster::client::{Action, Call, Event, GetCall, PutCall};
use crate::cluster::types::{Millis, NodeId, SMALL};
use crate::cluster::wire::{Fetch, Message, Metadata, Replica, Replicate};

/// How long a call may take here, and how much its value has: four seconds are given to that at 16 MiB a second.
const PATIENCE: Millis = 60_000;
const LENGTH: u64 = 64 << 20;

fn large(node: u64) -> Replica {
    Replica { length: LENGTH, ..replica(node, 7) }
}

/// A get that has asked the first of two owners, and under which number.
fn begins() -> (Rig, u64) {
    let mut rig = Rig::new(false);
    rig.on(Event::Call(1, PATIENCE, Call::Get(GetCall::new(key(), u64::MAX))));
    rig.found(vec![large(2), large(1)]);
    let (request, Message::Fetch(fetch)) = rig.sent()[0].clone() else { panic!("{:?}", rig.actions) };
    assert_eq!(fetch.name.node, NodeId(1));
    (rig, request)
}

/// The same, whose bytes have begun to come.
fn comes() -> (Rig, u64) {
    let (mut rig, request) = begins();
    let fetched = super::Fetched { length: LENGTH, ..fetched(NMC_OK, 7, LENGTH) };
    rig.node_says(request, fetched);
    assert!(matches!(rig.actions[..], [Action::Take { length: LENGTH, .. }]));
    (rig, request)
}

/// A put that has asked the first of these nodes.
fn puts(nodes: &[u64]) -> (Rig, u64) {
    puts_within(PATIENCE, nodes)
}

fn puts_within(patience: Millis, nodes: &[u64]) -> (Rig, u64) {
    let mut rig = Rig::new(false);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let (length, slices, metadata) = (LENGTH, vec![LENGTH], Metadata::default());
    let put = PutCall { key: key(), length, slices, config, retain: 0, metadata, crc: None, stripe: 0 };
    rig.on(Event::Call(1, patience, Call::Put(put)));
    rig.places(nodes, 1);
    let request = asked(&rig).unwrap().0;
    (rig, request)
}

/// Which request was sent to which node, and how long it says that it waits.
fn asked(rig: &Rig) -> Option<(u64, NodeId, u32)> {
    rig.actions.iter().find_map(|action| match action {
        Action::Node(node, _, frame, _) => Some((frame.request, *node, frame.time_left_ms)),
        _ => None,
    })
}

/// Time passes, in pieces, in each of which so many bytes move. Gives whether somebody else was asked, or the call has ended.
fn moves(rig: &mut Rig, request: u64, ms: Millis, bytes: u64) -> bool {
    for _ in 0..ms / 100 {
        rig.now += 100;
        rig.on(Event::Moved(request, bytes, false));
        assert!(rig.actions.is_empty());
        rig.on(Event::Tick);
        if !rig.actions.is_empty() {
            return true;
        }
    }
    false
}

#[test]
fn a_get_goes_on_as_long_as_its_bytes_come() {
    let (mut rig, request) = comes();
    assert!(!moves(&mut rig, request, 50_000, 8 << 10), "80 KiB a second");
    rig.on(Event::Took(request, true));
    assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_OK));
    // But not beyond its time.
    let (mut rig, request) = comes();
    assert!(moves(&mut rig, request, PATIENCE, 1 << 20));
    assert_eq!((rig.done().map(|outcome| outcome.status), rig.now), (Some(NMC_ERR_TIMEOUT), 1000 + PATIENCE));
    assert!(rig.actions.contains(&Action::Close(request)));
}

#[test]
fn an_owner_from_which_nothing_comes_any_more_is_given_up_after_a_moment_and_so_is_one_that_trickles() {
    for trickles in [0, LEAST / 5 - 1] {
        let (mut rig, request) = comes();
        assert!(!moves(&mut rig, request, 20_000, 1 << 20));
        let since = rig.now;
        assert!(moves(&mut rig, request, 10_000, trickles));
        // A window may have been open when it stopped.
        assert!(rig.now - since <= 1_000, "{}", rig.now - since);
        assert!(rig.actions.contains(&Action::Close(request)));
        assert_eq!(asked(&rig).map(|(_, node, _)| node), Some(NodeId(2)));
    }
}

#[test]
fn an_owner_has_time_to_read_a_large_value_before_it_sends_the_first_byte() {
    let (mut rig, request) = begins();
    assert!(!moves(&mut rig, request, 4_400, 0));
    assert!(moves(&mut rig, request, 200, 0));
    assert_eq!(asked(&rig).map(|(_, node, _)| node), Some(NodeId(2)));
}

#[test]
fn what_waits_for_a_connection_waits_while_others_move_and_has_its_time_when_it_leaves() {
    let (mut rig, request) = begins();
    assert!(!moves(&mut rig, request, 20_000, 1 << 20));
    rig.on(Event::Begun(request));
    assert!(!moves(&mut rig, request, 4_400, 0));
    assert!(moves(&mut rig, request, 200, 0));
    // Nothing moves to that node.
    let (mut rig, request) = begins();
    assert!(moves(&mut rig, request, 5_000, 0));
}

#[test]
fn a_put_goes_on_as_long_as_its_owner_takes_it_and_has_time_for_what_comes_after() {
    let (mut rig, request) = puts(&[1, 2, 3]);
    assert_eq!(asked(&rig).map(|(_, _, left)| left), Some(59_500), "as long as it may be waited for at most");
    assert!(!moves(&mut rig, request, 40_000, 8 << 10));
    // All of it is there: it may be on its way to the disk.
    rig.on(Event::Moved(request, 0, true));
    assert!(!moves_whole(&mut rig, request, 4_400));
    rig.node_says(request, done(1));
    assert!(matches!(rig.sent()[0].1, Message::PutEnd(_)));
    // That has an end too, and is not begun again.
    let (mut rig, request) = puts(&[1, 2, 3]);
    rig.on(Event::Moved(request, LENGTH, true));
    assert!(moves_whole(&mut rig, request, 6_000));
    assert_eq!(asked(&rig).map(|(_, node, _)| node), Some(NodeId(2)));
}

#[test]
fn a_put_has_nearly_all_of_its_time_for_its_bytes_and_is_late_then() {
    for (patience, moving) in [(1_000, 800), (1_500, 1_300), (2_000, 1_700), (20_000, 19_400)] {
        let (mut rig, request) = puts_within(patience, &[1]);
        assert!(!moves(&mut rig, request, moving, 1 << 20), "{patience}");
        assert!(moves(&mut rig, request, patience, 1 << 20));
        while rig.done().is_none() {
            rig.now += 100;
            rig.on(Event::Tick);
        }
        assert_eq!(rig.done().map(|outcome| outcome.status), Some(NMC_ERR_TIMEOUT), "{patience}");
    }
}

fn moves_whole(rig: &mut Rig, request: u64, ms: Millis) -> bool {
    for _ in 0..ms / 100 {
        rig.now += 100;
        rig.on(Event::Moved(request, 0, true));
        rig.on(Event::Tick);
        if !rig.actions.is_empty() {
            return true;
        }
    }
    false
}

#[test]
fn an_owner_that_takes_nothing_more_of_a_put_is_replaced_after_a_moment() {
    let (mut rig, request) = puts(&[1, 2, 3]);
    assert!(moves(&mut rig, request, 600, 0), "not even the first byte");
    let (mut rig, request) = puts(&[1, 2, 3]);
    assert!(!moves(&mut rig, request, 20_000, 1 << 20));
    let since = rig.now;
    assert!(moves(&mut rig, request, 10_000, LEAST / 5 - 1));
    assert!(rig.now - since <= 1_000, "{}", rig.now - since);
    assert!(rig.actions.contains(&Action::Close(request)));
    assert_eq!(asked(&rig).map(|(_, node, _)| node), Some(NodeId(2)));
    // However fast it is, time is left to end the put.
    let (mut rig, request) = puts(&[1, 2, 3]);
    assert!(moves(&mut rig, request, PATIENCE, 1 << 20));
    assert_eq!(rig.now, 1000 + PATIENCE - 500);
}

#[test]
fn what_shares_a_connection_has_the_time_that_it_had() {
    let mut rig = Rig::new(false);
    rig.on(Event::Call(1, PATIENCE, Call::Get(GetCall::new(key(), u64::MAX))));
    rig.found(vec![Replica { length: SMALL, ..replica(2, 7) }, Replica { length: SMALL, ..replica(1, 7) }]);
    assert_eq!(asked(&rig).map(|(_, _, left)| left), Some(504), "no byte of it is counted");
    let mut rig = Rig::new(false);
    let config = Replicate { copies: 1, media: vec![], fixed: vec![], near: String::new() };
    let (length, slices, metadata) = (SMALL, vec![SMALL], Metadata::default());
    let put = PutCall { key: key(), length, slices, config, retain: 0, metadata, crc: None, stripe: 0 };
    rig.on(Event::Call(1, PATIENCE, Call::Put(put)));
    rig.places(&[1, 2, 3], 1);
    assert_eq!(asked(&rig).map(|(_, _, left)| left), Some(504));
}

#[test]
fn what_somebody_else_moves_has_the_time_that_it_had() {
    let mut rig = Rig::new(true);
    let extent = |offset| super::Extent { region: 1, offset, length: LENGTH };
    let get = GetCall { into: vec![extent(0)], ..GetCall::new(key(), u64::MAX) };
    rig.on(Event::Call(1, PATIENCE, Call::Get(get)));
    rig.found(vec![large(1)]);
    let (request, Message::Fetch(Fetch { into, .. })) = rig.sent()[0].clone() else { panic!("{:?}", rig.actions) };
    assert!(!into.is_empty());
    assert_eq!(asked(&rig).map(|(_, _, left)| left), Some(4_596));
    assert!(moves(&mut rig, request, 4_600, 1 << 20));
    assert!(matches!(rig.sent()[0].1, Message::CancelFetch(_)));
}
