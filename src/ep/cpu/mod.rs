//! The CPU backend: the same steps as kernels/ep.cu on host memory, with the same bits as result. It is what runs without a
//! GPU, and what the kernels are compared with.
//!
//! A step writes to a peer's region only what the protocol says that it may, then stores a flag with release; the peer
//! loads the flag with acquire before it looks. Here are the words of the protocol; the steps are in `exchange`, `grouping` and
//! `experts`.

mod exchange;
mod experts;
mod grouping;
mod sys;

pub(super) use exchange::{recv_combine, recv_dispatch, send_combine, send_dispatch};
pub(super) use experts::{Rows, gemm, silu_mul};
pub(super) use grouping::{pack, scatter};
pub(super) use sys::HostRank;

use crate::base::error::Error;
use crate::base::memory;
use crate::ep::status::OFF_REQUEST;
use crate::layout::CACHE_LINE;
use crate::layout::ep::{Fault, OFF_ABORT, OFF_PHASE, Shape, Wire, came, unflag};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// The group has failed; the error word says why.
#[derive(Debug)]
pub(super) struct Failed;

/// Whether a step was done.
pub(super) type Outcome = Result<(), Failed>;

/// Memory of the steps of a rank, made with its group: a step that the others wait for must not need any.
#[derive(Default)]
pub(super) struct Scratch {
    /// A bit for every token, by rank: it goes there.
    masks: Vec<u32>,
    /// A row in single precision.
    row: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    /// By expert: its rows, its first group of those that spill, and what comes next.
    experts: [Vec<u64>; 3],
}

impl Scratch {
    pub(super) fn new(shape: &Shape) -> Result<Self, Error> {
        let (hidden, n_local) = (shape.hidden as usize, shape.n_local() as usize);
        Ok(Self {
            masks: memory::zeroed(shape.world as usize * shape.t_cap.div_ceil(32) as usize)?,
            row: memory::vec_of(hidden, 0.0)?,
            codes: memory::zeroed(if shape.wire == Wire::Quantised { hidden } else { 0 })?,
            scales: memory::vec_of(shape.scales() as usize, 0.0)?,
            experts: [memory::zeroed(n_local)?, memory::zeroed(n_local)?, memory::zeroed(n_local)?],
        })
    }
}

/// See [`Shape::off_waited`].
const OFF_WAITED: u64 = CACHE_LINE as u64;
/// How often a waiting thread looks whether its peers live.
const LOOK: Duration = Duration::from_millis(2);

/// Records the first failure and tells the peers, so that nobody waits for a group that is over. Of one that is over already
/// they have been told, and their memory may have another use by now.
fn fail(h: &HostRank<'_>, fault: Fault, about: u32, value: u32) -> Failed {
    fail_with(h, fault.word(h.d.rank, about, h.d.layer, value))
}

/// The same with an error word.
pub(super) fn fail_with(h: &HostRank<'_>, error: u64) -> Failed {
    let _ = h.status.word(0).compare_exchange(0, error, Relaxed, Relaxed);
    if h.own().word(OFF_ABORT).compare_exchange(0, error, Release, Relaxed).is_ok() {
        for region in h.regions() {
            let _ = region.word(OFF_ABORT).compare_exchange(0, error, Release, Relaxed);
        }
    }
    Failed
}

fn check(h: &HostRank<'_>) -> Outcome {
    let request = h.status.word(OFF_REQUEST).load(Acquire);
    if request != 0 {
        return Err(fail_with(h, request));
    }
    if h.own().word(OFF_ABORT).load(Acquire) == 0 { Ok(()) } else { Err(Failed) }
}

fn phase(h: &HostRank<'_>) -> u32 {
    h.own().word32(h.d.off_set + OFF_PHASE).load(Relaxed)
}

/// Stores the own flag at every rank.
fn signal(h: &HostRank<'_>, off_flags: u64, value: u64) {
    for region in h.regions() {
        region.word(h.d.off_set + off_flags + 8 * u64::from(h.d.rank)).store(value, Release);
    }
}

/// Waits for the flags of all ranks.
fn wait(h: &HostRank<'_>, off_flags: u64, want: u32, lost: &dyn Fn(u32) -> bool) -> Outcome {
    let start = Instant::now();
    let mut looked = start;
    for src in 0..h.d.world {
        let at = h.own().word(h.d.off_set + off_flags + 8 * u64::from(src));
        let mut rounds = 0u32;
        loop {
            let (seen, layer, _) = unflag(at.load(Acquire));
            if came(seen, want) {
                if seen == want && layer != h.d.layer & 0xffff {
                    return Err(fail(h, Fault::Layer, src, layer));
                }
                break;
            }
            rounds += 1;
            if rounds < 64 {
                std::hint::spin_loop();
                continue;
            }
            check(h)?;
            let now = Instant::now();
            if now.duration_since(looked) >= LOOK {
                looked = now;
                if lost(src) {
                    return Err(fail(h, Fault::Lost, src, 0));
                }
                if now.duration_since(start).as_nanos() > u128::from(h.d.deadline_ns) {
                    return Err(fail(h, Fault::Timeout, src, 0));
                }
            }
            if rounds < 1024 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let total = h.own().word(OFF_WAITED + 8 * u64::from(src));
        total.store(total.load(Relaxed).wrapping_add(waited), Relaxed);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::ep::calls::CallArgs;
    use crate::ep::layer::{Activation, Between};
    use crate::ep::sys::Given;
    use crate::layout::ep::{Dtype, OFF_TOKENS, RECORD_HEAD, RankDesc};
    use parking_lot::Mutex;

    /// A group of one rank, its region, and the tables of a call, each with a guard behind it.
    struct Bed {
        region: Vec<u64>,
        status: Vec<u64>,
        tables: [Vec<i32>; 4],
        rows: Vec<f32>,
        out: Vec<f32>,
        desc: RankDesc,
        scratch: Mutex<Scratch>,
    }

    const T_CAP: u32 = 4;
    const K: u32 = 2;
    const HIDDEN: u32 = 8;
    const GUARD: i32 = 0x5a5a_5a5a;

    impl Bed {
        fn new() -> Self {
            let shape = Shape {
                t_cap: T_CAP,
                hidden: HIDDEN,
                top_k: K,
                experts: 2,
                dtype: Dtype::Fp32,
                wire: Wire::Same,
                weight_bytes: 4,
                max_m: 4,
                spill_groups: 1,
                sets: 1,
                world: 1,
                separate_y: false,
                blocks: 1,
                device_scope: false,
            };
            let region = vec![0u64; usize::try_from(shape.region_bytes() / 8).unwrap()];
            let status = vec![0u64; 64];
            let desc = RankDesc::new(&shape, 0, 1_000_000_000, false);
            let (groups, max_m) = (3, 4);
            let table = |n: usize| {
                let mut table = vec![0; n + 16];
                table[n..].fill(GUARD);
                table
            };
            let slots = (T_CAP * K) as usize;
            let tables = [table(slots), table(groups * max_m), table(groups), table(groups)];
            let rows = vec![1.0; groups * max_m * HIDDEN as usize];
            let out = vec![0.0; (T_CAP * HIDDEN) as usize];
            let scratch = Mutex::new(Scratch::new(&shape).unwrap());
            Self { region, status, tables, rows, out, desc, scratch }
        }

        fn call(&mut self) -> CallArgs {
            let [row_of, row_index, masked_m, group_expert] = &mut self.tables;
            CallArgs {
                row_of: Given::of(row_of),
                row_index: Given::of(row_index),
                masked_m: Given::of(masked_m),
                group_expert: Given::of(group_expert),
                grouped: Given::of(&mut self.rows),
                out: Given::of(&mut self.rows),
                ..CallArgs::default()
            }
        }

        fn run<R>(&mut self, step: impl FnOnce(&HostRank<'_>, &Mutex<Scratch>) -> R) -> R {
            step(&HostRank::alone(self.desc, &mut self.region, &mut self.status), &self.scratch)
        }

        /// All tokens of the only source have come, with this expert at every entry.
        fn receive(&mut self, expert: i16) {
            self.run(|h, _| {
                h.own().put(h.d.off_record, u32::MAX);
                h.own().put(h.d.off_record + RECORD_HEAD, u32::MAX);
                for entry in 0..u64::from(T_CAP * K) {
                    h.own().put(h.d.off_eid + 2 * entry, expert);
                }
            });
        }

        /// A combine that finds this number of tokens.
        fn combine(&mut self, tokens: u32) -> Outcome {
            let call = CallArgs { out: Given::of(&mut self.out), ..CallArgs::default() };
            self.run(|h, scratch| {
                h.own().put(h.d.off_set + OFF_TOKENS, tokens);
                recv_combine(h, &call, &|_| false, scratch)
            })
        }

        fn is_intact(&self) -> bool {
            self.tables.iter().all(|table| table[table.len() - 16..].iter().all(|v| *v == GUARD))
        }
    }

    #[test]
    fn an_expert_number_that_a_peer_made_up_is_no_index() {
        for expert in [2, 3, 255, 256, i16::MAX, -1, -2, i16::MIN] {
            let mut bed = Bed::new();
            bed.receive(expert);
            let call = bed.call();
            bed.run(|h, scratch| pack(h, &call, scratch)).unwrap();
            assert!(bed.is_intact() && bed.tables[2][..3] == [0; 3], "{expert}: {:?}", bed.tables);
            bed.run(|h, scratch| scatter(h, &CallArgs { out: Given::NONE, ..call }, scratch)).unwrap();
            assert!(!bed.region.is_empty() && bed.status[0] == 0);
        }
        // Control: those that are experts are taken.
        let mut bed = Bed::new();
        bed.receive(1);
        let call = bed.call();
        bed.run(|h, scratch| pack(h, &call, scratch)).unwrap();
        assert_eq!(bed.tables[2][..3], [0, 4, 4]);
        assert!(bed.is_intact());
    }

    #[test]
    fn a_number_of_tokens_that_was_overwritten_is_no_count() {
        for tokens in [T_CAP + 1, 1 << 16, u32::MAX] {
            let mut bed = Bed::new();
            assert!(bed.combine(tokens).is_err());
            assert_ne!(bed.status[0], 0, "the group has failed, and says why");
        }
        let mut bed = Bed::new();
        bed.combine(T_CAP).unwrap();
    }

    #[test]
    fn rows_of_a_group_that_were_overwritten_are_no_count_either() {
        let mut bed = Bed::new();
        let call = bed.call();
        bed.tables[2][..3].fill(i32::MAX);
        let mut out = vec![0f32; 3 * 4 * HIDDEN as usize];
        let mut work = Rows::new(HIDDEN, HIDDEN / 2).unwrap();
        let (gate_up, act, masked_m) = (call.grouped, Given::of(&mut out), call.masked_m);
        let activation = Activation::of_test(Between { gate_up, act, masked_m, inner: HIDDEN / 2 });
        bed.run(|h, _| silu_mul(h, &activation, &mut work));
        bed.tables[0].iter_mut().take((T_CAP * K) as usize).for_each(|row| *row = i32::MAX);
        bed.receive(0);
        bed.run(|h, scratch| scatter(h, &CallArgs { out: Given::NONE, ..call }, scratch)).unwrap();
    }
}
