//! Where a new object goes. A pure choice among segments: fixed places first, then by strategy; nodes always differ, hosts
//! where there are enough of them, and every medium gets as many copies as were asked for.

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::{Chance, Media};
use crate::cluster::wire::{MAX_COPIES, Replicate};

/// How segments are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// By chance, from a seed.
    Random,
    /// The one with the smallest part in use.
    LeastLoaded,
    /// On the host of whoever asks, then as least loaded.
    Topology,
}

/// Places that are named beyond those that are needed, for when one fails.
pub const SPARES: usize = 3;

/// A segment that takes puts.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its node, in whatever way the caller counts them.
    pub node: u16,
    /// Number of the segment there.
    pub segment: u32,
    /// Its name.
    pub name: &'a str,
    /// The name of its node.
    pub node_name: &'a str,
    /// The machine.
    pub host: &'a str,
    /// What it is made of.
    pub media: Media,
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Parts of the same value that it has.
    pub given: u64,
    /// Its node may have died: only if there is nothing else.
    pub doubtful: bool,
}

/// How many copies a config asks for: the sum over the media if that is more.
pub fn copies(config: &Replicate) -> Result<u32> {
    let by_media = config.media.iter().fold(0u32, |sum, n| sum.saturating_add(*n));
    let fixed = u32::try_from(config.fixed.len()).unwrap_or(u32::MAX);
    let copies = config.copies.max(by_media).max(fixed).max(1);
    if config.media.len() > Media::ALL.len() {
        let (said, media) = (config.media.len(), Media::ALL.len());
        crate::bail!(NMC_ERR_INVALID_ARG, "copies on {said} media are asked for; there are {media}");
    }
    if copies > MAX_COPIES {
        crate::bail!(NMC_ERR_INVALID_ARG, "{copies} copies are asked for; {MAX_COPIES} are possible");
    }
    Ok(copies)
}

/// Chooses among `candidates`, which all have room; gives their places in that list, best first, with [`SPARES`] behind those
/// that are needed. Fails if a fixed place is not among them. With each `turn` the best is another one: parts of a value, which are asked for with the
/// same chance, are on different segments then, as far as there are enough.
pub fn choose(
    candidates: &[Candidate<'_>],
    config: &Replicate,
    strategy: Strategy,
    turn: u64,
    chance: &mut Chance,
) -> Result<Vec<usize>> {
    let wanted = copies(config)? as usize;
    let mut chosen: Vec<usize> = memory::with_capacity(wanted + 2 * SPARES)?;
    for location in &config.fixed {
        let is = |c: &Candidate<'_>| {
            let named = c.name == location.segment || c.node_name == location.segment;
            named && location.media.is_none_or(|media| media == c.media)
        };
        let free = |at: &usize| chosen.iter().all(|other| candidates[*other].node != candidates[*at].node);
        // Of those of a node the emptiest memory; the node itself takes another one if that is full by then. A disk only if there is nothing else,
        // or if it was named.
        let last = |c: &Candidate<'_>| c.media == Media::Ssd && location.media.is_none() && c.name != location.segment;
        let fitting = (0..candidates.len()).filter(|at| is(&candidates[*at]) && free(at));
        match fitting.min_by_key(|at| (last(&candidates[*at]), load(&candidates[*at]))) {
            Some(at) => chosen.push(at),
            None => crate::bail!(
                NMC_ERR_NO_SPACE,
                "segment \"{}\", where a copy must be, is not there, is full, or has one already",
                location.segment
            ),
        }
    }
    let mut order = order(candidates, config, strategy, chance)?;
    if turn > 0 {
        // Disks and memory take turns for themselves.
        order.sort_by_key(|at| candidates[*at].media == Media::Ssd);
        let memory = order.iter().filter(|at| candidates[**at].media != Media::Ssd).count();
        let (first, second) = order.split_at_mut(memory);
        for part in [first, second] {
            let by = usize::try_from(turn % (part.len().max(1) as u64)).unwrap_or(0);
            part.rotate_left(by);
        }
    }
    // A small segment has fewer parts of a value than a large one: else it would evict some to take others.
    order.sort_by_key(|at| u128::from(candidates[*at].given) * 1_000_000 / u128::from(candidates[*at].capacity.max(1)));
    order.sort_by_key(|at| candidates[*at].doubtful);
    // What the fewest have comes first: a node that has a disk is not to be used up for its memory, which others have too.
    let mut media: Vec<_> = Media::ALL.iter().zip(&config.media).collect();
    media.sort_by_key(|(media, _)| candidates.iter().filter(|c| c.media == **media).count());
    for (media, count) in media {
        let have = chosen.iter().filter(|at| candidates[**at].media == *media).count();
        let more = (*count as usize).saturating_sub(have);
        pick(candidates, &order, &mut chosen, more, |c| c.media == *media);
    }
    // Beyond what was asked for by medium, memory: a disk is chosen only by name of the medium or of the place.
    let more = wanted.saturating_sub(chosen.len());
    pick(candidates, &order, &mut chosen, more, |c| c.media != Media::Ssd);
    pick(candidates, &order, &mut chosen, SPARES, |c| c.media != Media::Ssd);
    // Of which a client takes one for what failed on a disk only.
    if chosen.len() >= wanted && chosen.iter().any(|at| candidates[*at].media == Media::Ssd) {
        pick(candidates, &order, &mut chosen, SPARES, |c| c.media == Media::Ssd);
    }
    Ok(chosen)
}

/// How much of a segment is in use, in parts of a thousand, so that those that are about equal take turns.
fn load(of: &Candidate<'_>) -> u128 {
    u128::from(of.used) * 1000 / u128::from(of.capacity.max(1))
}

/// All candidates, in the order of the strategy.
fn order(
    candidates: &[Candidate<'_>],
    config: &Replicate,
    strategy: Strategy,
    chance: &mut Chance,
) -> Result<Vec<usize>> {
    let mut order = memory::collect(0..candidates.len())?;
    for at in (1..order.len()).rev() {
        order.swap(at, chance.below(at + 1));
    }
    match strategy {
        Strategy::Random => {}
        Strategy::LeastLoaded => order.sort_by_key(|at| load(&candidates[*at])),
        Strategy::Topology => order.sort_by_key(|at| (candidates[*at].host != config.near, load(&candidates[*at]))),
    }
    Ok(order)
}

/// Adds `more` from `order` to `chosen`, on new nodes; on new hosts where there are.
fn pick(
    candidates: &[Candidate<'_>],
    order: &[usize],
    chosen: &mut Vec<usize>,
    more: usize,
    fits: impl Fn(&Candidate<'_>) -> bool,
) {
    let end = chosen.len() + more;
    for new_host in [true, false] {
        for at in order {
            if chosen.len() >= end {
                return;
            }
            let c = &candidates[*at];
            let used = |other: &usize| {
                let other = &candidates[*other];
                other.node == c.node || new_host && other.host == c.host
            };
            if fits(c) && !chosen.iter().any(used) && chosen.len() < chosen.capacity() {
                chosen.push(*at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wire::Location;

    const HOSTS: [&str; 3] = ["x", "y", "z"];

    /// Six nodes on three hosts: each with memory, used by its number in tenths, and the first two with a disk.
    fn six() -> Vec<Candidate<'static>> {
        let names = ["a", "b", "c", "d", "e", "f"];
        let make = |node: u16, segment, media| Candidate {
            node,
            segment,
            name: ["a0", "b0", "c0", "d0", "e0", "f0"][usize::from(node)],
            node_name: names[usize::from(node)],
            host: HOSTS[usize::from(node) / 2],
            media,
            capacity: 1000,
            used: 100 * u64::from(node),
            given: 0,
            doubtful: false,
        };
        let memory = (0..6).map(|node| make(node, 0, Media::Ram));
        memory.chain((0..2).map(|node| Candidate { name: "disk", ..make(node, 1, Media::Ssd) })).collect()
    }

    fn config(copies: u32) -> Replicate {
        Replicate { copies, media: vec![], fixed: vec![], near: String::new() }
    }

    fn nodes(chosen: &[usize], list: &[Candidate<'_>]) -> Vec<u16> {
        chosen.iter().map(|at| list[*at].node).collect()
    }

    #[test]
    fn nodes_always_differ_and_hosts_where_there_are_enough() {
        let list = six();
        for seed in 0..200 {
            let chosen = choose(&list, &config(3), Strategy::Random, 0, &mut Chance::new(seed)).unwrap();
            assert_eq!(chosen.len(), 6, "three and the spares");
            let mut hosts: Vec<&str> = chosen[..3].iter().map(|at| list[*at].host).collect();
            hosts.sort_unstable();
            assert_eq!(hosts, HOSTS);
            let mut all = nodes(&chosen, &list);
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 6);
            assert!(chosen.iter().all(|at| list[*at].media == Media::Ram));
        }
    }

    #[test]
    fn the_same_seed_chooses_the_same_and_others_differ() {
        let list = six();
        let run = |seed| {
            let mut chance = Chance::new(seed);
            let once = |_| choose(&list, &config(1), Strategy::Random, 0, &mut chance).unwrap()[0];
            (0..50).map(once).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!((0..6).all(|at| run(3).contains(&at)), "all get their turn");
    }

    #[test]
    fn load_and_nearness_count() {
        let list = six();
        let chance = &mut Chance::new(1);
        assert_eq!(choose(&list, &config(2), Strategy::LeastLoaded, 0, chance).unwrap()[..2], [0, 2]);
        let near = Replicate { near: "z".into(), ..config(1) };
        assert_eq!(choose(&list, &near, Strategy::Topology, 0, chance).unwrap()[0], 4);
    }

    #[test]
    fn a_node_that_is_named_takes_it_where_it_has_most_room() {
        let mut list = six();
        let more = [("f1", 2, 700), ("f2", 3, 20), ("f3", 4, 900)];
        list.extend(more.map(|(name, segment, used)| Candidate { name, segment, used, ..list[5] }));
        let at = |segment: &str| {
            let fixed = vec![Location { segment: segment.into(), media: None }];
            let chosen = choose(&list, &Replicate { fixed, ..config(1) }, Strategy::Random, 0, &mut Chance::new(1));
            list[chosen.unwrap()[0]].name
        };
        assert_eq!((at("f"), at("f1"), at("f0")), ("f2", "f1", "f0"));
    }

    #[test]
    fn a_node_that_is_named_takes_it_in_memory_unless_its_disk_is_named_too() {
        let mut list = six();
        list.push(Candidate { name: "f/ssd", segment: 9, media: Media::Ssd, used: 0, ..list[5] });
        list[5].used = 900;
        let at = |list: &[Candidate<'_>], segment: &str, media| {
            let fixed = vec![Location { segment: segment.into(), media }];
            let chosen = choose(list, &Replicate { fixed, ..config(1) }, Strategy::Random, 0, &mut Chance::new(1));
            list[chosen.unwrap()[0]].segment
        };
        assert_eq!(
            (at(&list, "f", None), at(&list, "f", Some(Media::Ssd)), at(&list, "f/ssd", None)),
            (list[5].segment, 9, 9)
        );
        // It has nothing else, or nothing else has room.
        list.remove(5);
        assert_eq!(at(&list, "f", None), 9);
    }

    #[test]
    fn a_small_segment_has_fewer_parts_of_a_value() {
        for strategy in [Strategy::Random, Strategy::LeastLoaded, Strategy::Topology] {
            let mut list = six();
            list.truncate(3);
            list[1].capacity = 64_000;
            list[2].capacity = 4000;
            for turn in 0..690 {
                let chosen = choose(&list, &config(1), strategy, turn, &mut Chance::new(7)).unwrap();
                list[chosen[0]].given += 1;
            }
            assert_eq!(list.iter().map(|c| c.given).collect::<Vec<_>>(), [10, 640, 40], "{strategy:?}");
        }
    }

    #[test]
    fn parts_of_a_value_take_turns() {
        let list = six();
        for strategy in [Strategy::Random, Strategy::LeastLoaded, Strategy::Topology] {
            for seed in 0..50 {
                let config = Replicate { near: "y".into(), ..config(2) };
                let first = |turn| {
                    let chosen = choose(&list, &config, strategy, turn, &mut Chance::new(seed)).unwrap();
                    assert!(list[chosen[0]].node != list[chosen[1]].node && list[chosen[0]].media == Media::Ram);
                    list[chosen[0]].node
                };
                let mut nodes: Vec<u16> = (0..12).map(first).collect();
                nodes.sort_unstable();
                assert_eq!(nodes, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "{strategy:?}");
            }
        }
        let disks = Replicate { media: vec![0, 0, 1], ..config(1) };
        let disk = |turn| choose(&list, &disks, Strategy::Random, turn, &mut Chance::new(7)).unwrap()[0];
        assert!(disk(0) != disk(1) && disk(0) == disk(2) && list[disk(0)].media == Media::Ssd);
        let fixed = vec![Location { segment: "e".into(), media: None }];
        let fixed = Replicate { fixed, ..config(1) };
        for turn in 0..7 {
            let chosen = choose(&list, &fixed, Strategy::Random, turn, &mut Chance::new(7)).unwrap();
            assert_eq!(list[chosen[0]].node, 4, "who names a segment gets all parts there");
        }
    }

    #[test]
    fn fixed_places_come_first_and_media_get_their_copies() {
        let list = six();
        let chance = &mut Chance::new(1);
        let fixed = vec![Location { segment: "e".into(), media: None }, Location { segment: "b0".into(), media: None }];
        let chosen = choose(&list, &Replicate { fixed, ..config(3) }, Strategy::Random, 0, chance).unwrap();
        assert_eq!(nodes(&chosen[..2], &list), [4, 1]);
        // One on disk, and two in memory since that is the higher number.
        let media = Replicate { media: vec![0, 0, 1], ..config(3) };
        let chosen = choose(&list, &media, Strategy::Random, 0, chance).unwrap();
        assert_eq!(list[chosen[0]].media, Media::Ssd);
        assert!(chosen[1..3].iter().all(|at| list[*at].media == Media::Ram));
        // Six have memory, two a disk: each medium gets its copies.
        for seed in 0..100 {
            let both = Replicate { media: vec![0, 4, 2], ..config(1) };
            let chosen = choose(&list, &both, Strategy::Random, 0, &mut Chance::new(seed)).unwrap();
            assert_eq!(chosen[..6].iter().filter(|at| list[**at].media == Media::Ssd).count(), 2);
        }
        assert_eq!(copies(&Replicate { media: vec![1, 2, 1], ..config(2) }).unwrap(), 4);
        let absent = Replicate { fixed: vec![Location { segment: "q".into(), media: None }], ..config(1) };
        assert!(choose(&list, &absent, Strategy::Random, 0, chance).is_err());
        assert!(copies(&config(MAX_COPIES + 1)).is_err());
    }
}
