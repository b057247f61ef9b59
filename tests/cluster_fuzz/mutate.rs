//! Inputs from valid ones, by chance: the same for the same seed.

use nanomc::cluster::types::Chance;

/// Numbers that are not usual.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, u64::MAX - 1, u64::MAX];

/// How many inputs: `usual`, or `NMC_FUZZ_TIMES` as many. Controls have the usual ones.
pub fn many(usual: usize) -> usize {
    let times = std::env::var("NMC_FUZZ_TIMES").ok().and_then(|times| times.parse().ok());
    usual * times.unwrap_or(1)
}

/// Runs something with `count` inputs, each a few changes away from one of `examples`.
pub fn each(seed: u64, count: usize, examples: &[Vec<u8>], mut run: impl FnMut(&[u8])) {
    let mut chance = Chance::new(seed);
    examples.iter().for_each(|example| run(example));
    for _ in 0..count {
        let mut input = examples[chance.below(examples.len())].clone();
        for _ in 0..=chance.below(6) {
            change(&mut input, examples, &mut chance);
        }
        run(&input);
    }
}

fn change(input: &mut Vec<u8>, examples: &[Vec<u8>], chance: &mut Chance) {
    let at = chance.below(input.len());
    let end = (at + 1 + chance.below(64)).min(input.len());
    match chance.below(7) {
        0 if at < end => input[at] = chance.word().to_le_bytes()[0],
        1 if at < end => input[at] ^= 1 << chance.below(8),
        2 => {
            let edge = EDGES[chance.below(EDGES.len())].to_le_bytes();
            let width = [1, 2, 4, 8][chance.below(4)].min(input.len() - at);
            input[at..at + width].copy_from_slice(&edge[..width]);
        }
        3 => drop(input.drain(at..end)),
        4 => {
            let again = input[at..end].to_vec();
            input.splice(at..at, again);
        }
        5 => {
            let other = &examples[chance.below(examples.len())];
            let from = chance.below(other.len());
            input.truncate(at);
            input.extend(&other[from..]);
        }
        _ => input.truncate(end),
    }
}
