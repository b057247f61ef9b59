//! The promises under many seeds, the controls, and every counterexample that there was.

use super::check::{Promise, content};
use super::{Addr, Control, Setup, Sim};
use crate::cluster::types::ObjectKey;
use std::collections::BTreeMap;

fn run(setup: Setup) -> Sim {
    let mut sim = Sim::new(setup);
    sim.run();
    sim
}

fn seeds(usual: u64) -> u64 {
    std::env::var("NMC_CLUSTER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn what_is_promised_holds_whatever_happens() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let first: u64 = std::env::var("NMC_CLUSTER_FIRST").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut bad = Vec::new();
    for seed in first..first + seeds(120) {
        let sim = run(Setup::by_seed(seed));
        if let Some(violation) = sim.checker.violations.first() {
            bad.push(format!("seed {seed}: {violation:?}"));
            if bad.len() >= 10 {
                break;
            }
        }
        for (what, n) in sim.checker.counts {
            *counts.entry(what).or_default() += n;
        }
    }
    eprintln!("{counts:?}");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    for what in [
        "put",
        "got",
        "got here",
        "removed",
        "not found",
        "kept",
        "cancelled",
        "expires",
        "put to disk",
        "put with a checksum",
        "put in parts",
    ] {
        assert!(counts.get(what).is_some_and(|n| *n > 40), "too little was seen of {what}: {counts:?}");
    }
    // Any part that is evicted ends one.
    assert!(counts.get("got in parts").is_some_and(|n| *n > 15), "too little was seen: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..5 {
        let (a, b) = (run(Setup::by_seed(seed)), run(Setup::by_seed(seed)));
        assert_eq!((a.trace, a.now, a.handled), (b.trace, b.now, b.handled));
        assert_ne!(a.trace, run(Setup::by_seed(seed + 100)).trace);
    }
}

/// Runs until a promise is broken, which must be one of these; from a seed on that is not long before that.
fn breaks(control: Control, promises: &[Promise], first: u64, adjust: impl Fn(&mut Setup)) {
    for seed in first..first + 400 {
        let mut setup = Setup { control: Some(control), ..Setup::by_seed(seed) };
        adjust(&mut setup);
        let sim = run(setup);
        if sim.checker.violations.first().is_some_and(|violation| promises.contains(&violation.promise)) {
            eprintln!("{control:?} broke {:?} at seed {seed}", promises);
            return;
        }
    }
    panic!("{control:?} broke nothing");
}

/// An owner has evicted a value and cannot say so; the value is removed without waiting, and the key is put again, on that owner
/// too, before it hears of the remove.
fn put_again_while_the_owner_is_cut_off(control: Option<Control>) -> Sim {
    let mut sim = Sim::new(Setup { control, ..Setup::quiet(1, 2) });
    let key = Sim::key(1);
    sim.run_for(2000);
    sim.call_put(1, key.clone(), 2000);
    sim.run_for(300);
    sim.evict_key(0, &key);
    for master in 0..sim.setup.masters {
        sim.cut(Addr::Node(0), Addr::Master(master), 300);
    }
    sim.call_remove(1, key.clone(), false, 1000);
    sim.run_for(50);
    sim.call_put(1, key.clone(), 2000);
    sim.run_for(1500);
    assert_eq!(sim.checker.counts.get("put"), Some(&2), "{:?}", sim.checker.counts);
    sim.call_get(1, key, 1000);
    sim.run_for(500);
    sim
}

#[test]
fn a_value_put_after_a_remove_stays_whenever_owners_hear_of_the_remove() {
    let sim = put_again_while_the_owner_is_cut_off(None);
    assert_eq!((sim.checker.violations.as_slice(), sim.checker.counts.get("got")), (&[][..], Some(&1)));
}

#[test]
fn control_owners_that_drop_by_key_lose_what_was_put_since() {
    let sim = put_again_while_the_owner_is_cut_off(Some(Control::RemoveByKey));
    assert_eq!(sim.checker.violations.first().map(|violation| violation.promise), Some(Promise::Found));
}

fn cut_from_masters(sim: &mut Sim, client: usize, length: u64) {
    for master in 0..sim.setup.masters {
        sim.cut(Addr::Client(client), Addr::Master(master), length);
    }
}

/// A remove that no master has heard of is cancelled, and somebody else puts the key.
fn put_after_a_cancelled_remove(control: Option<Control>) -> Sim {
    let mut sim = Sim::new(Setup { control, ..Setup::quiet(1, 3) });
    let key = Sim::key(1);
    sim.run_for(2000);
    cut_from_masters(&mut sim, 1, 300);
    sim.call_remove(1, key.clone(), true, 10_000);
    sim.run_for(100);
    sim.cancel(1, 1);
    sim.run_for(100);
    sim.call_put(2, key.clone(), 2000);
    sim.run_for(6000);
    assert_eq!(sim.checker.counts.get("put"), Some(&1), "{:?}", sim.checker.counts);
    sim.call_get(2, key, 1000);
    sim.run_for(500);
    sim
}

/// A put whose owner has it, and whose end no master has heard of, is cancelled; then somebody else removes the key.
fn removed_after_a_cancelled_put(control: Option<Control>) -> Sim {
    let mut sim = Sim::new(Setup { control, ..Setup::quiet(1, 3) });
    let key = Sim::key(1);
    sim.run_for(2000);
    sim.call_put(1, key.clone(), 10_000);
    while sim.agent_of(0).unwrap().storage().find(&key).is_none() {
        sim.run_for(1);
    }
    cut_from_masters(&mut sim, 1, 600);
    sim.run_for(300);
    sim.cancel(1, 1);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(100);
    assert!(sim.clients[2].calls.is_empty());
    sim.run_for(1500);
    sim.call_get(2, key, 1000);
    sim.run_for(500);
    sim
}

#[test]
fn what_was_cancelled_does_not_happen_later() {
    let sim = put_after_a_cancelled_remove(None);
    assert_eq!((sim.checker.violations.as_slice(), sim.checker.counts.get("got")), (&[][..], Some(&1)));
    let sim = removed_after_a_cancelled_put(None);
    assert_eq!((sim.checker.violations.as_slice(), sim.checker.counts.get("not found")), (&[][..], Some(&1)));
}

#[test]
fn control_what_was_cancelled_and_goes_on_happens_later() {
    let control = Some(Control::CancelForgets);
    let sim = put_after_a_cancelled_remove(control);
    assert_eq!(sim.checker.counts.get("not found"), Some(&1));
    let sim = removed_after_a_cancelled_put(control);
    assert_eq!(sim.checker.counts.get("got"), Some(&1));
    breaks(Control::CancelForgets, &[Promise::Over], 0, |_| ());
}

/// A value that was read, and is to go 1,500 ms after that, is replaced by another one before.
fn put_again_before_the_former_goes(control: Option<Control>) -> Sim {
    let mut sim = Sim::new(Setup { control, ..Setup::quiet(1, 3) });
    let key = Sim::key(1);
    sim.run_for(2000);
    sim.call_put(1, key.clone(), 2000);
    sim.run_for(200);
    sim.call_get_expiring(1, key.clone(), 1500, 1000);
    sim.run_for(100);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(500);
    sim.call_put(2, key.clone(), 1000);
    sim.run_for(2000);
    assert_eq!(sim.checker.counts.get("put"), Some(&2), "{:?}", sim.checker.counts);
    sim.call_get(2, key, 1000);
    sim.run_for(500);
    sim
}

#[test]
fn what_was_put_since_stays_when_what_was_read_goes() {
    let sim = put_again_before_the_former_goes(None);
    assert_eq!((sim.checker.violations.as_slice(), sim.checker.counts.get("got")), (&[][..], Some(&2)));
}

#[test]
fn control_who_removes_by_key_what_was_read_takes_what_was_put_since() {
    let sim = put_again_before_the_former_goes(Some(Control::ExpireByKey));
    assert_eq!(sim.checker.violations.first().map(|violation| violation.promise), Some(Promise::Found));
}

#[test]
fn control_who_answers_before_it_is_on_disk_is_seen() {
    breaks(Control::AnswerBeforeDisk, &[Promise::OnDisk], 0, |setup| setup.tiers = true);
}

#[test]
fn control_an_owner_that_compares_no_checksum_publishes_what_is_wrong() {
    breaks(Control::BelieveAnySum, &[Promise::Checksum], 0, |setup| setup.pushed = false);
}

#[test]
fn control_what_goes_before_its_time_is_missed() {
    breaks(Control::ExpireAtOnce, &[Promise::Found], 12, |_| ());
}

/// A value with two copies, of which one is read at 0; `meanwhile` something happens. Whether it is found after 900 ms and after
/// 2,500 ms by others.
fn found_after_it_was_read(here: bool, meanwhile: impl Fn(&mut Sim)) -> (bool, bool) {
    let mut sim = Sim::new(Setup::quiet(2, 4));
    let key = Sim::key(1);
    sim.run_for(2000);
    let value = sim.new_value(&key, 1);
    sim.call_put_copies(2, key.clone(), 2, (value, 1), 2000);
    sim.run_for(300);
    // The clients 0 and 1 are on the nodes.
    sim.call_get_expiring(if here { 0 } else { 2 }, key.clone(), 1200, 500);
    sim.run_for(50);
    meanwhile(&mut sim);
    let found = |sim: &mut Sim, wait| {
        sim.run_for(wait);
        let before = sim.checker.counts.get("got").copied();
        sim.call_get_expiring(3, key.clone(), 0, 300);
        sim.run_for(300);
        sim.checker.counts.get("got").copied() != before
    };
    let found = (found(&mut sim, 850), found(&mut sim, 1300));
    assert_eq!(sim.checker.violations, []);
    let has = |at: usize| sim.agent_of(at).unwrap().storage().find(&key).is_some();
    assert_eq!((has(0), has(1)), (found.1, found.1), "all copies go, or none");
    found
}

#[test]
fn what_was_read_goes_with_all_its_copies_and_not_before_its_time() {
    assert_eq!(found_after_it_was_read(false, |_| ()), (true, false));
    assert_eq!(found_after_it_was_read(true, |_| ()), (true, false));
    // The first time counts, whoever reads it again.
    assert_eq!(
        found_after_it_was_read(false, |sim| {
            sim.run_for(100);
            sim.call_get_expiring(3, Sim::key(1), 5000, 300);
            sim.run_for(100);
        }),
        (true, false)
    );
}

#[test]
fn a_leader_that_comes_does_not_know_what_was_to_go() {
    let restart = |sim: &mut Sim| {
        for master in 0..sim.setup.masters {
            sim.kill(Addr::Master(master));
        }
        sim.run_for(100);
        for master in 0..sim.setup.masters {
            sim.start(Addr::Master(master));
        }
    };
    assert!(found_after_it_was_read(false, restart).1);
    // It hears of it from whoever reads it again.
    let read_again = |sim: &mut Sim| {
        restart(sim);
        sim.run_for(2000);
        sim.call_get_expiring(2, Sim::key(1), 1200, 1000);
        sim.run_for(200);
    };
    assert_eq!(found_after_it_was_read(false, read_again), (true, false));
}

/// Values with two copies on three nodes, one of which dies and does not come back. Gives how many have two owners in the end, of those that had.
fn copies_after_a_death(again: u32, how: impl Fn(&mut Sim)) -> (usize, usize) {
    const KEYS: usize = 6;
    let mut sim = Sim::new(Setup { again, ..Setup::quiet(3, 2) });
    sim.run_for(2000);
    for number in 0..KEYS {
        let key = Sim::key(number);
        let value = sim.new_value(&key, 1);
        sim.call_put_copies(1, key, 2, (value, 1), 2000);
        sim.run_for(100);
    }
    let owners = |sim: &Sim| {
        let leader = sim.masters.iter().find(|m| m.process.up && m.master.leads().is_some()).unwrap();
        let mut owners: BTreeMap<_, std::collections::BTreeSet<_>> = BTreeMap::new();
        leader.master.listed_all().into_iter().for_each(|(key, _, name)| {
            owners.entry(key.as_bytes().to_vec()).or_default().insert(name.node);
        });
        owners.values().filter(|owners| owners.len() == 2).count()
    };
    let before = owners(&sim);
    assert_eq!(before, KEYS, "{:?}", sim.checker.counts);
    how(&mut sim);
    sim.run_for(15_000);
    assert_eq!(sim.checker.violations, []);
    (before, owners(&sim))
}

#[test]
fn what_is_lost_with_a_node_is_made_again_where_that_is_wanted() {
    let (before, after) = copies_after_a_death(50, |sim| sim.kill(Addr::Node(0)));
    assert_eq!(before, after);
}

#[test]
fn control_what_is_lost_with_a_node_stays_lost() {
    let (before, after) = copies_after_a_death(0, |sim| sim.kill(Addr::Node(0)));
    assert!(after < before, "{after} of {before} have two owners though one of three has died");
}

#[test]
fn what_an_owner_evicts_is_not_made_again() {
    let (before, after) = copies_after_a_death(50, |sim| {
        sim.evict_key(0, &Sim::key(1));
        sim.evict_key(1, &Sim::key(1));
        sim.run_for(500);
        sim.kill(Addr::Node(0));
    });
    assert_eq!(before, after + 1);
}

#[test]
fn control_a_put_end_that_adds_replicas_lists_what_is_not_there() {
    breaks(Control::PutEndAdds, &[Promise::Truth], 0, |_| ());
}

#[test]
fn control_a_copy_that_nobody_was_told_of_outlives_a_remove() {
    breaks(Control::CopyFirst, &[Promise::Removed], 636, |_| ());
}

#[test]
fn control_pages_given_away_on_a_timeout_are_written_by_others() {
    breaks(Control::AbandonOnTimeout, &[Promise::NoLateWrite, Promise::WholeValue], 0, |setup| setup.pushed = true);
}

#[test]
fn control_a_writer_that_has_ended_still_has_bytes_on_their_way() {
    breaks(Control::TrustWriter, &[Promise::NoLateWrite, Promise::WholeValue], 0, |setup| setup.pushed = true);
}

#[test]
fn control_a_leader_that_answers_without_a_lease_denies_what_there_is() {
    breaks(Control::StaleLeader, &[Promise::Found, Promise::Removed], 250, |setup| {
        (setup.durable, setup.masters, setup.tiers) = (true, 3, false);
    });
}

/// Where the stub and the parts of the value under a key are, by their nodes.
fn places(sim: &Sim, key: &ObjectKey) -> (Vec<usize>, Vec<(u64, usize)>) {
    let leader = sim.masters.iter().find(|m| m.process.up && m.master.leads().is_some()).unwrap();
    let (mut stubs, mut parts) = (Vec::new(), Vec::new());
    for (listed, _, name) in leader.master.listed_all() {
        let at = sim.node_at(name.node).unwrap();
        match listed.as_part() {
            Some((_, number)) => parts.push((number, at)),
            None if listed == *key => stubs.push(at),
            None => {}
        }
    }
    parts.sort_unstable();
    (stubs, parts)
}

/// A value of two parts on two nodes is removed and put again while somebody reads it who has one of the parts and does not reach the other.
fn replaced_while_read(control: Option<Control>) -> (Sim, [u64; 2]) {
    let mut sim = Sim::new(Setup { control, ..Setup::quiet(2, 4) });
    let key = Sim::key(1);
    sim.run_for(2000);
    let former = sim.call_put_parts(2, key.clone(), 1, 4, 2);
    sim.run_for(500);
    let (stubs, parts) = places(&sim, &key);
    assert!(stubs.len() == 1 && parts.len() == 2 && parts[0].1 != parts[1].1, "{stubs:?}, {parts:?}");
    let other = 1 - stubs[0];
    sim.cut(Addr::Client(3), Addr::Node(other), 400);
    sim.call_get_expiring(3, key.clone(), 0, 5000);
    sim.run_for(100);
    // It asks the master again when the other value is there.
    cut_from_masters(&mut sim, 3, 1500);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(500);
    let latter = sim.call_put_parts(2, key.clone(), 1, 4, 2);
    sim.run_for(3000);
    assert_eq!(sim.checker.counts.get("put"), Some(&2), "{:?}", sim.checker.counts);
    assert!(sim.clients[3].calls.is_empty());
    (sim, [former, latter])
}

#[test]
fn parts_of_two_puts_never_mix() {
    let (sim, _) = replaced_while_read(None);
    assert_eq!((sim.checker.violations.as_slice(), sim.checker.counts.get("got in parts")), (&[][..], Some(&1)));
}

#[test]
fn control_parts_named_by_the_key_mix() {
    let (sim, values) = replaced_while_read(Some(Control::PartsByKey));
    let violation = sim.checker.violations.first().unwrap();
    assert_eq!(violation.promise, Promise::WholeValue);
    let has = |value: u64| (0..4).any(|page| violation.text.contains(&content(value, page).to_string()));
    assert!(values.into_iter().all(has), "{}", violation.text);
}

/// Four parts and their stub, with one copy, on three nodes.
fn in_four_parts(control: Option<Control>) -> (Sim, ObjectKey) {
    let mut sim = Sim::new(Setup { control, striped: true, ..Setup::quiet(3, 5) });
    let key = Sim::key(1);
    sim.run_for(2000);
    sim.call_put_parts(4, key.clone(), 1, 4, 1);
    sim.run_for(500);
    let (stubs, parts) = places(&sim, &key);
    let nodes: std::collections::BTreeSet<usize> = parts.iter().map(|(_, at)| *at).collect();
    assert_eq!((stubs.len(), parts.len(), nodes.len()), (1, 4, 3), "parts are everywhere: {parts:?}");
    (sim, key)
}

fn is_all_gone(sim: &Sim, key: &ObjectKey) -> bool {
    let left: usize = (0..3).filter_map(|at| sim.agent_of(at)).map(|agent| agent.storage().all().len()).sum();
    places(sim, key) == (vec![], vec![]) && left == 0
}

#[test]
fn with_one_part_or_the_stub_all_of_a_value_goes() {
    for part in [Some(0), Some(3), None] {
        let (mut sim, key) = in_four_parts(None);
        let (stubs, parts) = places(&sim, &key);
        let at = part.map_or(stubs[0], |part: usize| parts[part].1);
        let all = sim.agent_of(at).unwrap().storage().all();
        let is_it = |key: &ObjectKey| key.as_part().map(|(_, number)| number) == part.map(|part| part as u64);
        let (_, lost, _) = all.into_iter().find(|(_, key, _)| is_it(key)).unwrap();
        sim.evict_key(at, &lost);
        sim.run_for(1000);
        assert!(is_all_gone(&sim, &key), "{part:?}: {:?}", places(&sim, &key));
        sim.call_get(4, key, 1000);
        sim.run_for(300);
        assert_eq!((sim.checker.counts.get("not found"), sim.checker.violations.len()), (Some(&1), 0));
    }
}

#[test]
fn a_removed_value_goes_with_its_parts_also_under_another_leader() {
    for another_leader in [false, true] {
        let (mut sim, key) = in_four_parts(None);
        if another_leader {
            sim.change_leader();
            sim.run_for(3000);
            let (stubs, parts) = places(&sim, &key);
            assert_eq!((stubs.len(), parts.len()), (1, 4), "told again by the nodes");
        }
        sim.call_get(4, key.clone(), 1000);
        sim.run_for(300);
        assert_eq!(sim.checker.counts.get("got in parts"), Some(&1));
        sim.call_remove(4, key.clone(), true, 1000);
        sim.run_for(1000);
        assert!(is_all_gone(&sim, &key), "{:?}", places(&sim, &key));
        assert_eq!(sim.checker.violations, []);
    }
}

#[test]
fn a_value_with_a_part_on_a_dead_node_is_dropped_when_somebody_puts_it_or_the_node_comes_with_nothing() {
    for (with_stub, comes) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut sim, key) = with_an_owner_away(with_stub, |sim, at| {
            sim.kill(Addr::Node(at));
            sim.nodes[at].store = None;
        });
        match comes {
            true => (0..3).for_each(|at| sim.start(Addr::Node(at))),
            false => drop(sim.call_put_parts(4, key.clone(), 1, 4, 1)),
        }
        sim.run_for(1500);
        if comes {
            assert!(is_all_gone(&sim, &key), "{:?}", places(&sim, &key));
        } else {
            assert_eq!(sim.checker.counts.get("put in parts"), Some(&2), "{:?}", sim.checker.counts);
            let (stubs, parts) = places(&sim, &key);
            let left: usize = (0..3).filter_map(|at| sim.agent_of(at)).map(|agent| agent.storage().all().len()).sum();
            assert_eq!((stubs.len(), parts.len(), left), (1, 4, 5), "nothing is left of the former one");
        }
        assert_eq!(sim.checker.violations, []);
    }
}

#[test]
fn a_value_that_is_asked_for_while_an_owner_is_cut_off_is_found_when_that_is_back() {
    for with_stub in [false, true] {
        let (mut sim, key) = with_an_owner_away(with_stub, |sim, at| {
            (0..sim.setup.masters).for_each(|master| sim.cut(Addr::Node(at), Addr::Master(master), 5000));
        });
        sim.run_for(4000);
        sim.call_get(4, key, 1000);
        sim.run_for(1000);
        assert_eq!((sim.checker.counts.get("got in parts"), sim.checker.violations.len()), (Some(&1), 0));
    }
}

/// A value of four parts with an owner of its stub, or only of a part, that is away. It was asked for since.
fn with_an_owner_away(with_stub: bool, goes: impl Fn(&mut Sim, usize)) -> (Sim, ObjectKey) {
    let (mut sim, key) = in_four_parts(None);
    let (stubs, parts) = places(&sim, &key);
    let dead = match with_stub {
        true => stubs[0],
        false => parts.iter().map(|(_, at)| *at).find(|at| *at != stubs[0]).unwrap(),
    };
    goes(&mut sim, dead);
    sim.run_for(3000);
    sim.call_get(4, key.clone(), 1000);
    sim.run_for(1500);
    assert_eq!((sim.checker.counts.get("not found"), sim.checker.violations.len()), (Some(&1), 0));
    assert!(!places(&sim, &key).1.is_empty(), "it may come back");
    (sim, key)
}

#[test]
fn a_put_that_is_given_up_or_whose_client_dies_leaves_no_parts() {
    for dies in [false, true] {
        let mut sim = Sim::new(Setup { striped: true, ..Setup::quiet(3, 5) });
        let key = Sim::key(1);
        sim.run_for(2000);
        sim.call_put_parts(4, key.clone(), 1, 4, 1);
        while places(&sim, &key).1.len() < 2 {
            sim.run_for(1);
            assert!(sim.now < 5000);
        }
        match dies {
            true => sim.kill(Addr::Client(4)),
            false => sim.cancel(4, 1),
        }
        // As long as its client would have waited.
        sim.run_for(if dies { super::PUT_MS + 4000 } else { 1000 });
        assert_eq!(places(&sim, &key), (vec![], vec![]), "dies: {dies}");
        assert_eq!(sim.checker.violations, []);
    }
}

#[test]
fn control_parts_that_end_while_somebody_else_moves_their_bytes_are_hit() {
    breaks(Control::PartsEndAtOnce, &[Promise::NoLateWrite, Promise::WholeValue], 340, |setup| {
        (setup.pushed, setup.striped) = (true, true);
    });
}

#[test]
fn control_what_is_left_of_a_striped_value_stays() {
    breaks(Control::PartsStay, &[Promise::Truth], 0, |setup| setup.striped = true);
}

/// Another leader comes, and a node that has part of a value is cut off from it for so long that others think it is all there is. Gives whether the value is
/// found when it is back.
fn found_after_a_late_report(control: Option<Control>) -> bool {
    let (mut sim, key) = in_four_parts(control);
    let (stubs, parts) = places(&sim, &key);
    let late = parts.iter().map(|(_, at)| *at).find(|at| *at != stubs[0]).unwrap();
    for master in 0..sim.setup.masters {
        sim.cut(Addr::Node(late), Addr::Master(master), 1500 + super::SETTLE_MS);
    }
    let leader = (0..sim.setup.masters).find(|at| sim.masters[*at].master.leads().is_some()).unwrap();
    sim.kill(Addr::Master(leader));
    sim.run_for(200);
    sim.start(Addr::Master(leader));
    sim.run_for(5000);
    sim.call_get(4, key, 1000);
    sim.run_for(1000);
    sim.checker.counts.contains_key("got in parts")
}

#[test]
fn nothing_of_a_value_goes_before_all_have_told_what_they_have() {
    assert!(found_after_a_late_report(None));
    assert!(!found_after_a_late_report(Some(Control::DropsUntold)));
}

#[test]
fn control_who_takes_a_stub_for_the_value_is_seen() {
    breaks(Control::StubsAreValues, &[Promise::WholeValue], 0, |setup| setup.striped = true);
}

/// Prints what happened in one run: `NMC_CLUSTER_SEED=7 cargo test --lib cluster::sim::tests::tell -- --ignored --nocapture`.
#[test]
#[ignore = "prints a run, for people"]
fn tell() {
    let seed = std::env::var("NMC_CLUSTER_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut sim = Sim::new(Setup::by_seed(seed));
    sim.log = Some(Vec::new());
    eprintln!("{:?}", sim.setup);
    sim.run();
    for line in sim.log.take().unwrap_or_default() {
        eprintln!("{line}");
    }
    eprintln!("{:?}", sim.checker.violations);
}

/// Two nodes have a value, one of them on disk only.
fn on_disk_and_elsewhere(control: Option<Control>) -> (Sim, crate::cluster::types::ObjectKey) {
    let mut sim = Sim::new(Setup { control, tiers: true, ..Setup::quiet(2, 3) });
    let key = Sim::key(1);
    sim.run_for(2000);
    sim.open_tier(0, false);
    sim.run_for(500);
    let value = sim.new_value(&key, 1);
    sim.call_put_copies(2, key.clone(), 2, (value, 1), 2000);
    sim.run_for(500);
    sim.offload_all(0);
    sim.evict_key(0, &key);
    sim.run_for(500);
    assert_eq!(sim.owners_of(&key), 2);
    (sim, key)
}

/// Whether a value is read after it was removed, and what was to come back has.
fn removed_and_read(mut sim: Sim, key: crate::cluster::types::ObjectKey) -> Option<Promise> {
    sim.run_for(1000);
    for client in 0..3 {
        sim.call_get(client, key.clone(), 1000);
        sim.run_for(500);
    }
    assert!(sim.checker.counts.get("removed").is_some_and(|n| *n > 0), "{:?}", sim.checker.counts);
    sim.checker.violations.first().map(|violation| violation.promise)
}

/// A tier is closed; what it has is removed elsewhere; the process dies, and the next one opens the tier first.
fn removed_before_a_new_process_opens_the_tier(control: Option<Control>, another_leader: bool) -> Option<Promise> {
    let (mut sim, key) = on_disk_and_elsewhere(control);
    sim.close_tier(0);
    sim.run_for(500);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(500);
    sim.kill(Addr::Node(0));
    if another_leader {
        sim.change_leader();
    }
    sim.start_with_tier(0);
    removed_and_read(sim, key)
}

#[test]
fn what_was_removed_while_a_tier_was_closed_does_not_come_back_with_a_new_process() {
    for another_leader in [false, true] {
        assert_eq!(removed_before_a_new_process_opens_the_tier(None, another_leader), None);
    }
}

#[test]
fn control_a_tier_that_nobody_knows_was_left_behind_brings_back_what_was_removed() {
    // The leader under which it was closed remembers how far the node was.
    let broken = removed_before_a_new_process_opens_the_tier(Some(Control::NeverLeft), true);
    assert_eq!(broken, Some(Promise::Removed));
}

/// A tier comes, is written to and goes before anybody has noticed; what it has is removed; the next process opens the tier first.
fn removed_after_a_tier_has_passed(control: Option<Control>) -> Option<Promise> {
    let mut sim = Sim::new(Setup { control, ..Setup::quiet(2, 3) });
    sim.run_for(2000);
    // The node comes further than where it joined.
    for key in [Sim::key(2), Sim::key(1)] {
        let value = sim.new_value(&key, 1);
        sim.call_put_copies(2, key, 2, (value, 1), 2000);
        sim.run_for(500);
        sim.call_remove(2, Sim::key(2), true, 2000);
        sim.run_for(1000);
    }
    sim.setup.tiers = true;
    sim.open_tier(0, false);
    sim.offload_all(0);
    sim.close_tier(0);
    sim.run_for(500);
    sim.call_remove(2, Sim::key(1), true, 2000);
    sim.run_for(1000);
    sim.kill(Addr::Node(0));
    sim.change_leader();
    sim.start_with_tier(0);
    removed_and_read(sim, Sim::key(1))
}

#[test]
fn what_was_removed_does_not_come_back_with_a_tier_that_nobody_has_noticed() {
    assert_eq!(removed_after_a_tier_has_passed(None), None);
    assert_eq!(removed_after_a_tier_has_passed(Some(Control::TiersByName)), Some(Promise::Removed));
}

/// The same in one process: the tier has just come back.
fn back_since_it_was_removed(control: Option<Control>) -> (Sim, crate::cluster::types::ObjectKey) {
    let (mut sim, key) = on_disk_and_elsewhere(control);
    sim.close_tier(0);
    sim.run_for(500);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(500);
    // Nobody tells the node anything until it is open.
    for master in 0..sim.setup.masters {
        sim.cut(Addr::Node(0), Addr::Master(master), 600);
    }
    sim.open_tier(0, true);
    (sim, key)
}

/// `again`: the tier is closed and opened once more before anybody has noticed.
fn removed_while_closed(control: Option<Control>, again: bool, promoted: bool) -> Option<Promise> {
    let (mut sim, key) = back_since_it_was_removed(control);
    if again {
        sim.run_for(100);
        sim.close_tier(0);
        sim.run_for(100);
        sim.open_tier(0, true);
    }
    if promoted {
        sim.promote_all(0);
    }
    sim.run_for(700);
    removed_and_read(sim, key)
}

#[test]
fn what_was_removed_while_a_tier_was_closed_does_not_come_back_with_it() {
    for (again, promoted) in [(false, false), (true, false), (false, true)] {
        assert_eq!(removed_while_closed(None, again, promoted), None);
    }
}

/// A tier that comes and goes before anybody has noticed leaves nothing behind in memory.
fn promoted_in_passing(control: Option<Control>) -> Option<Promise> {
    let (mut sim, key) = back_since_it_was_removed(control);
    sim.promote_all(0);
    sim.close_tier(0);
    sim.run_for(700);
    removed_and_read(sim, key)
}

#[test]
fn what_a_tier_brought_into_memory_goes_with_it() {
    assert_eq!(promoted_in_passing(None), None);
    assert_eq!(promoted_in_passing(Some(Control::KeepsPromoted)), Some(Promise::Removed));
}

#[test]
fn control_a_tier_that_is_not_apart_brings_back_what_was_removed() {
    let removed = Some(Promise::Removed);
    assert_eq!(removed_while_closed(Some(Control::NeverApart), false, false), removed);
    assert_eq!(removed_while_closed(Some(Control::NeverApart), true, false), removed);
    assert_eq!(removed_while_closed(Some(Control::KeepsPromoted), false, true), removed);
}

/// A value moves to disk and back, and off the disk, while nobody hears of it.
fn moved_while_cut_off(control: Option<Control>) -> Sim {
    let mut sim = Sim::new(Setup { control, tiers: true, ..Setup::quiet(1, 2) });
    let key = Sim::key(1);
    sim.run_for(2000);
    sim.open_tier(0, false);
    sim.run_for(500);
    sim.call_put(1, key.clone(), 2000);
    sim.run_for(500);
    for master in 0..sim.setup.masters {
        sim.cut(Addr::Node(0), Addr::Master(master), 600);
    }
    sim.offload_all(0);
    sim.evict_key(0, &key);
    // Something else is where it was.
    let other = Sim::key(2);
    let value = sim.new_value(&other, 1);
    sim.call_put_copies(1, other, 1, (value, 1), 500);
    sim.run_for(100);
    sim.promote_all(0);
    let store = sim.nodes[0].agent.as_mut().unwrap().storage_mut();
    let slot = store.slot_of(&key).unwrap();
    store.end_slot(slot, true);
    sim.call_get(1, key, 300);
    sim.run_for(400);
    sim
}

#[test]
fn a_value_is_found_by_a_name_that_it_had_while_nobody_knows_the_new_one() {
    let sim = moved_while_cut_off(None);
    assert_eq!((sim.checker.violations.as_slice(), sim.checker.counts.get("got")), (&[][..], Some(&1)));
    let sim = moved_while_cut_off(Some(Control::PinsByName));
    assert_eq!(sim.checker.violations.first().map(|violation| violation.promise), Some(Promise::Found));
}

#[test]
fn control_a_remove_that_takes_one_place_leaves_the_other() {
    breaks(Control::OnePlace, &[Promise::Removed], 0, |setup| (setup.tiers, setup.striped) = (true, false));
}

/// A tier is open that was closed while something was removed, and its node has not noticed yet when it is told to drop something else.
fn told_before_it_notices(control: Option<Control>) -> Option<Promise> {
    let (mut sim, key) = on_disk_and_elsewhere(control);
    let other = Sim::key(2);
    let value = sim.new_value(&other, 1);
    sim.call_put_copies(2, other.clone(), 2, (value, 1), 2000);
    sim.run_for(500);
    sim.close_tier(0);
    sim.run_for(500);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(500);
    let directory = sim.nodes[0].shelf.pop().unwrap();
    sim.nodes[0].agent.as_mut().unwrap().storage_mut().open_tier(directory, 99);
    sim.call_remove(2, other, true, 1000);
    sim.run_for(500);
    let life = sim.nodes[0].process.life;
    sim.notice(0, life);
    sim.run_for(1000);
    assert!(sim.clients[2].calls.is_empty());
    removed_and_read(sim, key)
}

#[test]
fn a_position_is_not_kept_for_a_tier_that_its_node_does_not_know_of() {
    assert_eq!(told_before_it_notices(None), None);
    assert_eq!(told_before_it_notices(Some(Control::PositionOfAnyTier)), Some(Promise::Removed));
}

/// Something is removed while an owner is dead; then the cluster loses what it had written down, and all come back.
fn removed_before_the_cluster_forgot(control: Option<Control>) -> Option<Promise> {
    let (mut sim, key) = on_disk_and_elsewhere(control);
    sim.kill(Addr::Node(0));
    sim.run_for(3000);
    sim.call_remove(2, key.clone(), true, 1000);
    sim.run_for(500);
    sim.forget_cluster(Some(0));
    sim.run_for(3000);
    sim.start_with_tier(0);
    removed_and_read(sim, key)
}

#[test]
fn a_position_of_another_cluster_is_not_believed() {
    assert_eq!(removed_before_the_cluster_forgot(None), None);
    assert_eq!(removed_before_the_cluster_forgot(Some(Control::SameTerms)), Some(Promise::Removed));
}
