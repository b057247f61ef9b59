//! Values that are not what their owners had: who is asked again, and what a get comes to.

use super::{Rig, asks_for_a_stub, fetched, key, replica, stub};
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_UNAVAILABLE, NMC_OK};
use crate::cluster::client::{Action, Call, Event, GetCall};
use crate::cluster::types::NodeId;
use crate::cluster::wire::{Extent, Fetch, Fetched, Found, Listed, Message, Replica};

/// The owner sends three bytes, with a checksum.
fn with_sum() -> Fetched {
    Fetched { sum: Some(5), ..fetched(NMC_OK, 7, 3) }
}

/// Who was asked, and whether it is to look itself.
fn asked(rig: &Rig) -> (u64, NodeId, bool) {
    let (request, Message::Fetch(Fetch { name, verify, .. })) = rig.sent()[0].clone() else { panic!() };
    (request, name.node, verify)
}

fn status(rig: &Rig) -> Option<(i32, u64)> {
    rig.done().map(|outcome| (outcome.status, outcome.count))
}

/// The bytes come, and are something else.
fn torn(rig: &mut Rig, request: u64) {
    rig.node_says(request, with_sum());
    assert!(matches!(rig.actions[..], [Action::Take { length: 3, sum: Some(5), .. }]));
    rig.on(Event::Torn(request));
}

#[test]
fn an_owner_looks_itself_before_it_sends_again_what_was_not_what_it_had() {
    // It was damaged on its way.
    let mut rig = Rig::new(false);
    rig.get(0);
    rig.found(vec![replica(1, 7)]);
    let (request, node, verify) = asked(&rig);
    assert_eq!((node, verify), (NodeId(1), false));
    torn(&mut rig, request);
    let (request, node, verify) = asked(&rig);
    assert_eq!((node, verify), (NodeId(1), true));
    rig.node_says(request, with_sum());
    rig.on(Event::Took(request, true));
    assert_eq!(status(&rig), Some((NMC_OK, 3)));
    // The next get begins like the first.
    rig.get(0);
    assert!(!asked(&rig).2);
}

#[test]
fn a_damaged_copy_is_not_read_again_and_others_are() {
    let mut rig = Rig::new(false);
    rig.get(0);
    rig.found(vec![replica(2, 7), replica(1, 7)]);
    let (request, ..) = asked(&rig);
    torn(&mut rig, request);
    let (request, ..) = asked(&rig);
    rig.node_says(request, fetched(NMC_ERR_CORRUPT, 0, 0));
    let (request, node, verify) = asked(&rig);
    assert_eq!((node, verify), (NodeId(2), false));
    rig.node_says(request, with_sum());
    rig.on(Event::Took(request, true));
    assert_eq!(status(&rig), Some((NMC_OK, 3)));
    // It is not remembered, either.
    rig.get(0);
    let (request, node, _) = asked(&rig);
    assert_eq!(node, NodeId(2));
    rig.node_says(request, fetched(NMC_ERR_UNAVAILABLE, 0, 0));
    rig.now += 20;
    rig.on(Event::Tick);
    assert!(matches!(rig.sent()[0].1, Message::Find(_)));
}

#[test]
fn where_every_copy_is_damaged_a_get_says_so_at_once() {
    for twice in [false, true] {
        let mut rig = Rig::new(false);
        rig.get(0);
        rig.found(vec![replica(1, 7)]);
        let (request, ..) = asked(&rig);
        torn(&mut rig, request);
        let (request, ..) = asked(&rig);
        match twice {
            // The owner finds nothing, and it is wrong once more.
            true => torn(&mut rig, request),
            false => rig.node_says(request, fetched(NMC_ERR_CORRUPT, 0, 0)),
        }
        assert!(matches!(rig.sent()[0].1, Message::Find(_)), "there may be other copies by now");
        rig.found(vec![replica(1, 7)]);
        assert_eq!(status(&rig), Some((NMC_ERR_CORRUPT, 0)));
    }
}

#[test]
fn what_somebody_else_has_moved_is_looked_at_where_it_is() {
    for right in [true, false] {
        let mut rig = Rig::new(true);
        rig.get(1);
        rig.found(vec![replica(1, 7)]);
        let (request, ..) = asked(&rig);
        rig.node_says(request, Fetched { sum: Some(5), ..fetched(NMC_OK, 7, 0) });
        let landed = matches!(rig.actions[..], [Action::Landed { call: 1, length: 3, sum: Some(5), .. }]);
        assert!(landed, "{:?}", rig.actions);
        rig.on(Event::Checked(1, right));
        if right {
            assert_eq!(status(&rig), Some((NMC_OK, 3)));
        } else {
            assert!(status(&rig).is_none() && asked(&rig).2);
        }
    }
    // Without checksums, and where the CPU does not see it, nobody waits for that. There the owner looks before it sends.
    for unseen in [true, false] {
        let mut rig = Rig::new(true);
        let into = vec![Extent { region: 1, offset: 0, length: 3 }];
        rig.on(Event::Call(1, 2000, Call::Get(GetCall { into, unseen, ..GetCall::new(key(), 3) })));
        rig.found(vec![replica(1, 7)]);
        let (request, _, verify) = asked(&rig);
        assert_eq!(verify, unseen);
        rig.node_says(request, Fetched { sum: unseen.then_some(5), ..fetched(NMC_OK, 7, 0) });
        assert_eq!(status(&rig), Some((NMC_OK, 3)));
    }
}

#[test]
fn a_value_in_parts_of_which_one_is_damaged_everywhere_is_damaged() {
    let (mut rig, whole, request) = asks_for_a_stub(100);
    rig.node_says(request, stub(whole, 2));
    let part = |number: u64| vec![Replica { length: 5, ..replica(1, 70 + number) }];
    let keys = [0, 1].map(|number| Listed { status: NMC_OK, replicas: part(number) }).to_vec();
    rig.master_says(Found { term: 1, keys });
    let fetches = rig.sent();
    assert_eq!(fetches.len(), 2);
    rig.node_says(fetches[0].0, fetched(NMC_ERR_CORRUPT, 0, 0));
    // That part is looked for once more, and then the value: there may be another one.
    rig.found(part(0));
    rig.found(vec![Replica { length: 10, put: whole, ..replica(2, 0) }]);
    assert_eq!(status(&rig), Some((NMC_ERR_CORRUPT, 0)));
}
