//! Every order in which the steps of a small expert-parallel group can happen, with the flag words of the library: no stale
//! row, no lost token, the right layer's bytes in every combine, no deadlock. The protocols that do not work are here too:
//! each must be found out. Memory is sequentially consistent here; what orders the stores on a machine is not the subject.
#![allow(clippy::expect_used, clippy::panic, reason = "a test reports by failing")]

use nanomc::layout::ep::{came, flag, unflag};
use std::collections::{HashSet, VecDeque};

/// Rows that a source has room for at a destination.
const T_CAP: usize = 2;
const DISPATCH: usize = 0;
const RETURN: usize = 1;

/// Which of two phases is the later one.
type Compare = fn(u32, u32) -> bool;

/// The protocol, and what can be wrong with it.
#[derive(Clone, Copy)]
struct Protocol {
    ranks: usize,
    layers: usize,
    first_phase: u32,
    /// The record has a hit mask. Without, a row is taken as live when the count covers it and something was there.
    mask: bool,
    /// Dispatch and return have flags of their own.
    separate_flags: bool,
    /// Dispatch and return have numbers of their own: twice the phase, and one more.
    separate_numbers: bool,
    /// There is a return flag, and owners wait for it.
    return_flag: bool,
    /// The return flag is stored before the rows are computed.
    return_early: bool,
    /// All steps use the first phase, as in a graph that has it as a constant.
    baked: bool,
    /// Own flags are reset at the beginning of every step but the first.
    reset: bool,
    came: Compare,
}

/// What src/ep/cpu and kernels/ep.cu do.
const REAL: Protocol = Protocol {
    ranks: 3,
    layers: 3,
    first_phase: 0,
    mask: true,
    separate_flags: true,
    separate_numbers: false,
    return_flag: true,
    return_early: false,
    baked: false,
    reset: false,
    came,
};

/// One thing that a rank does at once; the number is a peer.
#[derive(Clone, Copy, Debug)]
enum Op {
    Reset,
    /// Rows of the tokens that go there, and what they are for.
    Rows(usize),
    Record(usize),
    Flag(usize, usize),
    Wait(usize, usize),
    /// The phase word, when the wait of the dispatch is over.
    Phase,
    /// Rows of a source are replaced by results, in the same memory.
    Compute(usize),
    /// Results are read in the memory of a peer.
    Combine(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Row {
    Garbage,
    Token(u8),
    Result(u8),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    at: Vec<u8>,
    phase: Vec<u32>,
    rows: Vec<Row>,
    /// Count and hit mask.
    records: Vec<(u8, u8)>,
    flags: Vec<u64>,
}

/// Tokens of `src` in a layer, and those that go to `dst`, one bit each: all; one of them; none at all from the last rank.
fn routed(p: &Protocol, layer: usize, src: usize, dst: usize) -> (u8, u8) {
    match layer % 3 {
        0 => (2, 0b11),
        1 => (2, if (src + dst).is_multiple_of(2) { 0b01 } else { 0b10 }),
        _ if src == p.ranks - 1 => (0, 0),
        _ => (1, 0b01),
    }
}

impl Protocol {
    fn steps(&self) -> Vec<(usize, Op)> {
        let peers = |op: fn(usize) -> Op| (0..self.ranks).map(op);
        let mut all = Vec::new();
        for layer in 0..self.layers {
            let mut ops = Vec::new();
            ops.extend((self.reset && layer > 0).then_some(Op::Reset));
            ops.extend(peers(Op::Rows).chain(peers(Op::Record)));
            ops.extend(peers(|d| Op::Flag(d, DISPATCH)).chain(peers(|s| Op::Wait(s, DISPATCH))));
            ops.push(Op::Phase);
            let returns = peers(|d| Op::Flag(d, RETURN)).filter(|_| self.return_flag);
            if self.return_early {
                ops.extend(returns.chain(peers(Op::Compute)));
            } else {
                ops.extend(peers(Op::Compute).chain(returns));
            }
            ops.extend(peers(|s| Op::Wait(s, RETURN)).filter(|_| self.return_flag));
            ops.extend(peers(Op::Combine));
            all.extend(ops.into_iter().map(|op| (layer, op)));
        }
        all
    }

    fn flag_at(&self, at: usize, from: usize, kind: usize) -> usize {
        (at * self.ranks + from) * 2 + if self.separate_flags { kind } else { DISPATCH }
    }

    fn row_at(&self, at: usize, from: usize, t: usize) -> usize {
        (at * self.ranks + from) * T_CAP + t
    }

    fn number(&self, phase: u32, kind: usize) -> u32 {
        if self.separate_numbers { phase.wrapping_mul(2).wrapping_add(u32::from(kind == RETURN)) } else { phase }
    }

    fn start(&self) -> State {
        let before = self.first_phase.wrapping_sub(1);
        let pairs = self.ranks * self.ranks;
        State {
            at: vec![0; self.ranks],
            phase: vec![before; self.ranks],
            rows: vec![Row::Garbage; pairs * T_CAP],
            records: vec![(0, 0); pairs],
            flags: vec![flag(self.number(before, RETURN), 0, 0); pairs * 2],
        }
    }

    /// The state after `rank` has done `op`; none if it has to wait.
    fn act(&self, state: &State, rank: usize, layer: usize, op: Op) -> Result<Option<State>, String> {
        let mut next = state.clone();
        next.at[rank] += 1;
        let current = if self.baked { self.first_phase } else { state.phase[rank] };
        let coming = if self.baked { self.first_phase } else { current.wrapping_add(1) };
        let stamp = u8::try_from(layer).expect("few layers");
        let hit = |mask: u8, t: usize| mask >> t & 1 != 0;
        match op {
            Op::Reset => {
                let before = self.start().flags[0];
                (0..self.ranks).for_each(|s| next.flags[self.flag_at(rank, s, DISPATCH)] = before);
            }
            Op::Rows(d) => {
                let (_, mask) = routed(self, layer, rank, d);
                for t in (0..T_CAP).filter(|t| hit(mask, *t)) {
                    next.rows[self.row_at(d, rank, t)] = Row::Token(stamp);
                }
            }
            Op::Record(d) => next.records[d * self.ranks + rank] = routed(self, layer, rank, d),
            Op::Flag(d, kind) => {
                let phase = self.number(if kind == DISPATCH { coming } else { current }, kind);
                let word = flag(phase, u32::from(stamp), u32::from(routed(self, layer, rank, d).0));
                next.flags[self.flag_at(d, rank, kind)] = word;
            }
            Op::Wait(s, kind) => {
                let want = self.number(if kind == DISPATCH { coming } else { current }, kind);
                let (seen, ..) = unflag(state.flags[self.flag_at(rank, s, kind)]);
                if !(self.came)(seen, want) {
                    return Ok(None);
                }
            }
            Op::Phase => next.phase[rank] = coming,
            Op::Compute(s) => {
                let (count, mask) = state.records[rank * self.ranks + s];
                let (_, wanted) = routed(self, layer, s, rank);
                for t in 0..T_CAP {
                    let row = state.rows[self.row_at(rank, s, t)];
                    let live = t < usize::from(count) && if self.mask { hit(mask, t) } else { row != Row::Garbage };
                    let about = || format!("layer {layer}: row {t} of rank {s} at rank {rank}, which has {row:?}");
                    match (live, hit(wanted, t)) {
                        (true, false) => return Err(format!("a ghost row is used: {}", about())),
                        (false, true) => return Err(format!("a token is lost: {}", about())),
                        (true, true) if row != Row::Token(stamp) => {
                            return Err(format!("a stale row is used: {}", about()));
                        }
                        _ => {}
                    }
                    if live {
                        next.rows[self.row_at(rank, s, t)] = Row::Result(stamp);
                    }
                }
            }
            Op::Combine(d) => {
                let (_, mask) = routed(self, layer, rank, d);
                for t in (0..T_CAP).filter(|t| hit(mask, *t)) {
                    let row = state.rows[self.row_at(d, rank, t)];
                    if row != Row::Result(stamp) {
                        return Err(format!("layer {layer}: rank {rank} sums {row:?} of rank {d}, row {t}"));
                    }
                }
            }
        }
        Ok(Some(next))
    }

    /// Goes through all states; the number of them, or what went wrong on the shortest way to it.
    fn explore(&self) -> Result<usize, String> {
        let steps = self.steps();
        let start = self.start();
        let mut seen = HashSet::from([start.clone()]);
        let mut open = VecDeque::from([start]);
        while let Some(state) = open.pop_front() {
            let mut moved = false;
            for rank in 0..self.ranks {
                let Some((layer, op)) = steps.get(usize::from(state.at[rank])).copied() else { continue };
                let Some(next) = self.act(&state, rank, layer, op)? else { continue };
                moved = true;
                if seen.insert(next.clone()) {
                    open.push_back(next);
                }
            }
            if !moved && state.at.iter().any(|at| usize::from(*at) < steps.len()) {
                let waits: Vec<_> = state.at.iter().map(|at| steps.get(usize::from(*at))).collect();
                return Err(format!("deadlock: {waits:?}"));
            }
        }
        Ok(seen.len())
    }

    #[track_caller]
    fn works(&self) {
        for ranks in 2..=self.ranks {
            match (Self { ranks, ..*self }).explore() {
                Ok(states) => println!("{ranks} ranks, {} layers: {states} states", self.layers),
                Err(what) => panic!("{ranks} ranks: {what}"),
            }
        }
    }

    #[track_caller]
    fn fails_with(&self, what: &str) {
        let found = self.explore().expect_err("this protocol must not work");
        println!("{found}");
        assert!(found.contains(what), "expected {what:?}: {found}");
    }
}

fn equal(seen: u32, want: u32) -> bool {
    seen == want
}

fn plain(seen: u32, want: u32) -> bool {
    seen >= want
}

fn plain_signed(seen: u32, want: u32) -> bool {
    seen.cast_signed() >= want.cast_signed()
}

#[test]
fn the_protocol_works_in_every_order() {
    REAL.works();
}

/// The phase before the first one is what flags have in the beginning: the wrap is between the first steps.
#[test]
fn the_protocol_works_across_both_wraps() {
    for first_phase in [1 << 31, (1 << 31) - 1, u32::MAX, u32::MAX - 1] {
        Protocol { ranks: 2, first_phase, ..REAL }.works();
    }
}

#[test]
fn control_without_hit_mask_ghost_rows_are_used() {
    Protocol { ranks: 2, mask: false, ..REAL }.fails_with("a ghost row is used");
}

#[test]
fn control_with_one_flag_for_both_ways_unfinished_rows_are_summed() {
    Protocol { ranks: 2, separate_flags: false, ..REAL }.fails_with("sums Token");
}

#[test]
fn control_without_return_flag_rows_of_another_step_are_summed() {
    Protocol { ranks: 2, return_flag: false, ..REAL }.fails_with("sums Token");
}

#[test]
fn control_with_an_early_return_flag_unfinished_rows_are_summed() {
    Protocol { ranks: 2, return_early: true, ..REAL }.fails_with("sums Token");
}

#[test]
fn control_with_a_baked_phase_nobody_waits_any_more() {
    Protocol { ranks: 2, baked: true, ..REAL }.fails_with("layer 1: ");
}

/// A peer that is done with the last step may have begun the next one: its flag is lost.
#[test]
fn control_with_a_reset_a_flag_is_lost() {
    Protocol { ranks: 2, reset: true, ..REAL }.fails_with("deadlock");
}

/// With two flags nobody ever sees a phase later than the one it waits for, and `==` would do. With one flag and two
/// numbers a step it does not, since a fast peer's return takes the place of its dispatch; the comparison that counts from
/// there on does.
#[test]
fn control_with_equality_a_fast_peer_is_waited_for_forever() {
    let one_flag = Protocol { ranks: 2, separate_flags: false, separate_numbers: true, ..REAL };
    one_flag.works();
    Protocol { came: equal, ..one_flag }.fails_with("deadlock");
    Protocol { came: equal, ..REAL }.works();
}

#[test]
fn control_with_a_plain_comparison_nobody_waits_at_the_wrap() {
    let at = |first_phase, came: Compare| Protocol { ranks: 2, first_phase, came, ..REAL };
    at(1 << 31, plain_signed).fails_with("layer 0: ");
    at(0, plain).fails_with("layer 0: ");
    // Away from the wrap nothing shows.
    at(1000, plain).works();
    at(1000, plain_signed).works();
}
