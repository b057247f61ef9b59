//! The CPU backend: the same steps as kernels/ep.cu on host memory, with the same bits as result. It is what runs without a
//! GPU, and what the kernels are compared with.
//!
//! A step writes to a peer's region only what the protocol says that it may, then stores a flag with release; the peer
//! loads the flag with acquire before it looks.

use super::dtype;
use super::sys::{self, word, word32};
use crate::base::error::Error;
use crate::base::memory;
use crate::cuda::EpCall;
use crate::layout::ep::{
    Dtype, Fault, OFF_ABORT, OFF_FLAGS, OFF_PHASE, OFF_RETURNS, OFF_TOKENS, RECORD_HEAD, RankDesc, Shape, Wire, came,
    flag, unflag,
};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// The group has failed; the error word says why.
#[derive(Debug)]
pub struct Failed;

/// Whether a step was done.
pub type Outcome = Result<(), Failed>;

/// Memory of the steps of a rank, made with its group: a step that the others wait for must not need any.
#[derive(Default)]
pub struct Scratch {
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
    /// For the steps of a rank of this shape.
    pub fn new(shape: &Shape) -> Result<Self, Error> {
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

/// Rows for the built-in products and the activation, made before a layer begins.
#[derive(Default)]
pub struct Rows {
    a: Vec<f32>,
    b: Vec<f32>,
    out: Vec<f32>,
}

impl Rows {
    /// For both products of a layer.
    pub fn new(hidden: u32, inner: u32) -> Result<Self, Error> {
        let (hidden, inner) = (hidden as usize, inner as usize);
        let row = |n: usize| memory::vec_of(n, 0.0);
        Ok(Self { a: row(hidden.max(inner))?, b: row(hidden.max(inner))?, out: row(hidden.max(2 * inner))? })
    }
}

/// How often a waiting thread looks whether its peers live.
const LOOK: Duration = Duration::from_millis(2);

fn y_dtype(d: &RankDesc) -> Dtype {
    Dtype::from_code(d.dtype).unwrap_or(Dtype::Fp32)
}

/// Records the first failure and tells the peers, so that nobody waits for a group that is over. Of one that is over already
/// they have been told, and their memory may have another use by now.
pub fn fail(d: &RankDesc, fault: Fault, about: u32, value: u32) -> Failed {
    fail_with(d, fault.word(d.rank, about, d.layer, value))
}

/// The same with an error word.
pub fn fail_with(d: &RankDesc, error: u64) -> Failed {
    let _ = word(d.status).compare_exchange(0, error, Relaxed, Relaxed);
    if word(d.own() + OFF_ABORT).compare_exchange(0, error, Release, Relaxed).is_ok() {
        for region in d.region.iter().take(d.world as usize) {
            let _ = word(region + OFF_ABORT).compare_exchange(0, error, Release, Relaxed);
        }
    }
    Failed
}

fn check(d: &RankDesc) -> Outcome {
    let request = word(d.status + 8).load(Acquire);
    if request != 0 {
        return Err(fail_with(d, request));
    }
    if word(d.own() + OFF_ABORT).load(Acquire) == 0 { Ok(()) } else { Err(Failed) }
}

fn phase(d: &RankDesc) -> u32 {
    word32(d.own() + d.off_set + OFF_PHASE).load(Relaxed)
}

fn signal(d: &RankDesc, off_flags: u64, value: u64) {
    for region in d.region.iter().take(d.world as usize) {
        word(region + d.off_set + off_flags + 8 * u64::from(d.rank)).store(value, Release);
    }
}

fn wait(d: &RankDesc, off_flags: u64, want: u32, lost: &dyn Fn(u32) -> bool) -> Outcome {
    let start = Instant::now();
    let mut looked = start;
    for src in 0..d.world {
        let at = word(d.own() + d.off_set + off_flags + 8 * u64::from(src));
        let mut rounds = 0u32;
        loop {
            let (seen, layer, _) = unflag(at.load(Acquire));
            if came(seen, want) {
                if seen == want && layer != d.layer & 0xffff {
                    return Err(fail(d, Fault::Layer, src, layer));
                }
                break;
            }
            rounds += 1;
            if rounds < 64 {
                std::hint::spin_loop();
                continue;
            }
            check(d)?;
            let now = Instant::now();
            if now.duration_since(looked) >= LOOK {
                looked = now;
                if lost(src) {
                    return Err(fail(d, Fault::Lost, src, 0));
                }
                if now.duration_since(start).as_nanos() > u128::from(d.deadline_ns) {
                    return Err(fail(d, Fault::Timeout, src, 0));
                }
            }
            if rounds < 1024 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let total = word(d.own() + 64 + 8 * u64::from(src));
        total.store(total.load(Relaxed).wrapping_add(waited), Relaxed);
    }
    Ok(())
}

fn expert(c: &EpCall, at: u64) -> i64 {
    if c.idx_64 != 0 { sys::get(c.idx + 8 * at) } else { i64::from(sys::get::<i32>(c.idx + 4 * at)) }
}

/// First half of a dispatch: rows, what they are for, and a record to every rank that has an expert of them.
pub fn send_dispatch(d: &RankDesc, c: &EpCall, scratch: &Mutex<Scratch>) -> Outcome {
    check(d)?;
    let tokens = if c.tokens_at != 0 { sys::get::<i32>(c.tokens_at).cast_unsigned() } else { c.tokens };
    if tokens > d.t_cap {
        return Err(fail(d, Fault::Tokens, d.rank, tokens));
    }
    let next = phase(d).wrapping_add(1);
    let (k, n_local) = (u64::from(d.top_k), i64::from(d.n_local));
    let words = d.t_cap.div_ceil(32) as usize;
    let Scratch { masks, row, codes, scales, .. } = &mut *scratch.lock();
    masks.fill(0);
    for t in 0..tokens {
        let mut targets = 0u32;
        for i in 0..k {
            let e = expert(c, u64::from(t) * k + i);
            if e < -1 || e >= n_local * i64::from(d.world) {
                return Err(fail(d, Fault::Expert, d.rank, t));
            }
            if e >= 0 {
                targets |= 1 << (e / n_local);
            }
        }
        sys::put(d.own() + d.off_sent + 4 * u64::from(t), targets);
        let slot = u64::from(d.rank * d.t_cap + t);
        let source_bytes = if d.wire == Wire::Quantised as u32 { d.y_bytes } else { d.x_bytes };
        let from = c.x + u64::from(t) * u64::from(source_bytes);
        if d.wire == Wire::Quantised as u32 {
            // Negative zero is what changes nothing when it is added to, not even the sign of a zero.
            row.fill(-0.0);
            dtype::add(y_dtype(d), row, from, None);
            dtype::quantise(row, codes, scales);
        } else if d.wire == Wire::Given as u32 {
            scales.copy_from_slice(sys::slice(c.scales + 4 * u64::from(t) * u64::from(d.scales), u64::from(d.scales)));
        }
        for r in (0..d.world).filter(|r| targets >> r & 1 != 0) {
            let base = d.region[r as usize];
            masks[r as usize * words + t as usize / 32] |= 1 << (t % 32);
            let to = base + d.off_x + slot * u64::from(d.x_bytes);
            if d.wire == Wire::Quantised as u32 {
                sys::slice_mut(to, u64::from(d.x_bytes)).copy_from_slice(codes);
            } else {
                sys::copy(from, to, u64::from(d.x_bytes));
            }
            if d.scales != 0 {
                let to = base + d.off_scale + 4 * slot * u64::from(d.scales);
                sys::slice_mut(to, u64::from(d.scales)).copy_from_slice(scales);
            }
            for i in 0..k {
                let (e, entry) = (expert(c, u64::from(t) * k + i), slot * k + i);
                let mine = e >= 0 && e / n_local == i64::from(r);
                let local = if mine { i16::try_from(e % n_local).unwrap_or(-1) } else { -1 };
                sys::put(base + d.off_eid + 2 * entry, local);
                let (at, to) = (u64::from(t) * k + i, base + d.off_weight + u64::from(d.weight_bytes) * entry);
                if d.weight_bytes == 4 {
                    sys::put(to, if mine { sys::get::<f32>(c.weight + 4 * at) } else { 0.0 });
                } else {
                    sys::put(to, if mine { sys::get::<u16>(c.weight + 2 * at) } else { 0 });
                }
            }
        }
        if c.count_load != 0 {
            for i in 0..k {
                let e = expert(c, u64::from(t) * k + i);
                if e >= 0 {
                    let load = word(d.own() + d.off_load + 8 * e.unsigned_abs());
                    load.store(load.load(Relaxed) + 1, Relaxed);
                }
            }
        }
    }
    for r in 0..d.world as usize {
        let record = d.region[r] + d.off_record + u64::from(d.rank) * u64::from(d.record_stride);
        for (i, value) in (0u64..).zip([tokens, d.layer, d.config_hash, next]) {
            sys::put(record + 4 * i, value);
        }
        sys::slice_mut(record + RECORD_HEAD, words as u64).copy_from_slice(&masks[r * words..(r + 1) * words]);
    }
    sys::put(d.own() + d.off_set + OFF_TOKENS, tokens);
    signal(d, OFF_FLAGS, flag(next, d.layer, tokens));
    Ok(())
}

/// Second half of a dispatch: waits for all ranks.
pub fn recv_dispatch(d: &RankDesc, lost: &dyn Fn(u32) -> bool) -> Outcome {
    check(d)?;
    let next = phase(d).wrapping_add(1);
    wait(d, OFF_FLAGS, next, lost)?;
    word32(d.own() + d.off_set + OFF_PHASE).store(next, Relaxed);
    Ok(())
}

/// Whether token `t` of rank `src` has come in this step.
#[must_use]
pub fn live(d: &RankDesc, src: u32, t: u32) -> bool {
    let record = d.own() + d.off_record + u64::from(src) * u64::from(d.record_stride);
    let mask: u32 = sys::get(record + RECORD_HEAD + u64::from(t / 32) * 4);
    t < sys::get(record) && mask >> (t % 32) & 1 != 0
}

fn live_slots(d: &RankDesc) -> impl Iterator<Item = u64> + '_ {
    (0..d.world)
        .flat_map(move |s| (0..d.t_cap).filter(move |t| live(d, s, *t)).map(move |t| u64::from(s * d.t_cap + t)))
}

/// First half of a combine: the rows, unless they are in place already, and the flags.
pub fn send_combine(d: &RankDesc, c: &EpCall) -> Outcome {
    check(d)?;
    if c.x != 0 {
        for slot in live_slots(d) {
            let at = slot * u64::from(d.y_bytes);
            sys::copy(c.x + at, d.own() + d.off_y + at, u64::from(d.y_bytes));
        }
    }
    signal(d, OFF_RETURNS, flag(phase(d), d.layer, 0));
    Ok(())
}

/// Second half of a combine: waits for all ranks and sums what they return, in the order of their numbers.
pub fn recv_combine(d: &RankDesc, c: &EpCall, lost: &dyn Fn(u32) -> bool, scratch: &Mutex<Scratch>) -> Outcome {
    check(d)?;
    wait(d, OFF_RETURNS, phase(d), lost)?;
    // Peers can reach this word: it was checked when it was stored, which says nothing about now.
    let tokens: u32 = sys::get(d.own() + d.off_set + OFF_TOKENS);
    if tokens > d.t_cap {
        return Err(fail(d, Fault::Tokens, d.rank, tokens));
    }
    let sum = &mut scratch.lock().row;
    for t in 0..tokens {
        let targets: u32 = sys::get(d.own() + d.off_sent + 4 * u64::from(t));
        sum.fill(0.0);
        for r in (0..d.world).filter(|r| targets >> r & 1 != 0) {
            let slot = u64::from(d.rank * d.t_cap + t);
            dtype::add(y_dtype(d), sum, d.region[r as usize] + d.off_y + slot * u64::from(d.y_bytes), None);
        }
        dtype::store(y_dtype(d), sum, c.out + u64::from(t) * u64::from(d.y_bytes));
    }
    Ok(())
}

/// Puts received rows into groups by expert: ascending slot, then entry.
pub fn pack(d: &RankDesc, c: &EpCall, scratch: &Mutex<Scratch>) -> Outcome {
    check(d)?;
    let (k, max_m, n_local) = (u64::from(d.top_k), u64::from(d.max_m), u64::from(d.n_local));
    let (slots, groups) = (u64::from(d.world) * u64::from(d.t_cap), u64::from(d.groups));
    let row_of = sys::slice_mut::<i32>(c.row_of, slots * k);
    row_of.fill(-1);
    let row_index = sys::slice_mut::<i32>(c.row_index, groups * max_m);
    row_index.fill(-1);
    // A peer stored it: what is no expert of ours counts as none.
    let eid = |slot: u64, i: u64| {
        let stored: i16 = sys::get(d.own() + d.off_eid + 2 * (slot * k + i));
        usize::try_from(stored).ok().filter(|e| *e < d.n_local as usize)
    };
    let [rows, spill_first, next] = &mut scratch.lock().experts;
    rows.fill(0);
    for slot in live_slots(d) {
        for i in 0..k {
            if let Some(e) = eid(slot, i) {
                rows[e] += 1;
            }
        }
    }
    let mut used = 0;
    for (first, n) in spill_first.iter_mut().zip(&*rows) {
        *first = used;
        used += n.saturating_sub(max_m).div_ceil(max_m);
    }
    let group_of = |e: usize, n: u64| {
        let group = if n < max_m { e as u64 } else { n_local + spill_first[e] + (n - max_m) / max_m };
        (group < groups).then_some((group, n % max_m))
    };
    let masked_m = sys::slice_mut::<i32>(c.masked_m, groups);
    masked_m.fill(0);
    let group_expert = sys::slice_mut::<i32>(c.group_expert, groups);
    group_expert.fill(-1);
    for (e, place) in group_expert.iter_mut().take(d.n_local as usize).enumerate() {
        *place = i32::try_from(e).unwrap_or(-1);
    }
    next.fill(0);
    for slot in live_slots(d) {
        for i in 0..k {
            let Some(e) = eid(slot, i) else { continue };
            let n = next[e];
            next[e] += 1;
            let Some((group, row)) = group_of(e, n) else { continue };
            let at = group * max_m + row;
            let (Ok(place), Ok(of)) = (usize::try_from(at), i32::try_from(at)) else { continue };
            row_of[usize::try_from(slot * k + i).unwrap_or(0)] = of;
            row_index[place] = i32::try_from(slot).unwrap_or(-1);
            masked_m[usize::try_from(group).unwrap_or(0)] += 1;
            group_expert[usize::try_from(group).unwrap_or(0)] = i32::try_from(e).unwrap_or(-1);
            if c.out != 0 {
                let bytes = u64::from(d.x_bytes);
                sys::copy(d.own() + d.off_x + slot * bytes, c.out + at * bytes, bytes);
                let (n_scales, pitch) = (u64::from(d.scales), max_m.next_multiple_of(4));
                for s in 0..n_scales {
                    let scale: f32 = sys::get(d.own() + d.off_scale + 4 * (slot * n_scales + s));
                    sys::put(c.out_scales + 4 * ((group * n_scales + s) * pitch + row), scale);
                }
            }
        }
    }
    for (e, n) in rows.iter().enumerate() {
        let room = (groups - n_local).saturating_sub(spill_first[e]);
        let lost = n.saturating_sub(max_m * (1 + room));
        if lost > 0 {
            word(d.status + 64 + 8 * e as u64).fetch_add(lost, Relaxed);
        }
    }
    Ok(())
}

/// Sums the weighted rows of each received token: ascending entry, one rounding.
pub fn scatter(d: &RankDesc, c: &EpCall, scratch: &Mutex<Scratch>) -> Outcome {
    check(d)?;
    let k = u64::from(d.top_k);
    let out = if c.out != 0 { c.out } else { d.own() + d.off_y };
    let rows = u64::from(d.groups) * u64::from(d.max_m);
    let sum = &mut scratch.lock().row;
    for slot in live_slots(d) {
        sum.fill(0.0);
        for i in 0..k {
            let entry = slot * k + i;
            let stored = u64::try_from(sys::get::<i32>(c.row_of + 4 * entry)).ok();
            let Some(row) = stored.filter(|row| *row < rows) else { continue };
            let at = d.own() + d.off_weight + u64::from(d.weight_bytes) * entry;
            let weight = if d.weight_bytes == 4 { sys::get(at) } else { dtype::from_fp16(sys::get(at)) };
            dtype::add(y_dtype(d), sum, c.grouped + row * u64::from(d.y_bytes), Some(weight));
        }
        dtype::store(y_dtype(d), sum, out + slot * u64::from(d.y_bytes));
    }
    Ok(())
}

/// Rows of a group times the transposed matrix of its expert: `c[g][r] = a[g][r] * b[e]^T`, summed in single precision.
pub fn gemm(d: &RankDesc, g: &super::forward::Gemm, rows: &mut Rows) {
    let (n, k, max_m) = (u64::from(g.n), u64::from(g.k), u64::from(d.max_m));
    let dtype = y_dtype(d);
    let a_dtype = if g.a_scales != 0 { Dtype::Fp8 } else { dtype };
    let size = u64::from(dtype.bytes());
    let (a, b) = (&mut rows.a[..g.k as usize], &mut rows.b[..g.k as usize]);
    let out = &mut rows.out[..g.n as usize];
    for group in 0..u64::from(d.groups) {
        let expert = u64::try_from(sys::get::<i32>(g.group_expert + 4 * group)).ok();
        let Some(e) = expert.filter(|e| *e < u64::from(d.n_local)) else { continue };
        let rows = u64::try_from(sys::get::<i32>(g.masked_m + 4 * group)).unwrap_or(0).min(max_m);
        for row in (0..rows).map(|r| group * max_m + r) {
            a.fill(0.0);
            dtype::add(a_dtype, a, g.a + row * k * u64::from(a_dtype.bytes()), None);
            if g.a_scales != 0 {
                let (scales, pitch) = (k.div_ceil(128), max_m.next_multiple_of(4));
                for (s, part) in (0u64..).zip(a.chunks_mut(128)) {
                    let at = (group * scales + s) * pitch + row % max_m;
                    let scale: f32 = sys::get(g.a_scales + 4 * at);
                    part.iter_mut().for_each(|v| *v *= scale);
                }
            }
            for (j, o) in (0u64..).zip(out.iter_mut()) {
                b.fill(0.0);
                dtype::add(dtype, b, g.b + (e * n + j) * k * size, None);
                *o = a.iter().zip(&*b).map(|(a, b)| a * b).sum();
            }
            dtype::store(dtype, out, g.c + row * n * size);
        }
    }
}

/// `silu(gate) * up` of every row; gate and up lie one after the other.
pub fn silu_mul(d: &RankDesc, gate_up: u64, out: u64, masked_m: u64, inner: u32, rows: &mut Rows) {
    let row_out = &mut rows.out[..inner as usize];
    let (dtype, inner) = (y_dtype(d), u64::from(inner));
    let size = u64::from(dtype.bytes());
    for group in 0..u64::from(d.groups) {
        let rows = u64::try_from(sys::get::<i32>(masked_m + 4 * group)).unwrap_or(0).min(d.max_m.into());
        for row in (0..rows).map(|r| group * u64::from(d.max_m) + r) {
            let at = gate_up + row * 2 * inner * size;
            for (i, o) in (0u64..).zip(row_out.iter_mut()) {
                let (gate, up) = (dtype::element(dtype, at, i), dtype::element(dtype, at, inner + i));
                *o = gate / (1.0 + (-gate).exp()) * up;
            }
            dtype::store(dtype, row_out, out + row * inner * size);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::layout::ep::Shape;

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
            };
            let region = vec![0u64; usize::try_from(shape.region_bytes() / 8).unwrap()];
            let status = vec![0u64; 64];
            let mut desc = RankDesc::new(&shape, 0, 1_000_000_000, false);
            (desc.region[0], desc.status) = (region.as_ptr() as u64, status.as_ptr() as u64);
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

        fn call(&mut self) -> EpCall {
            let [row_of, row_index, masked_m, group_expert] = &mut self.tables;
            EpCall {
                row_of: row_of.as_mut_ptr() as u64,
                row_index: row_index.as_mut_ptr() as u64,
                masked_m: masked_m.as_mut_ptr() as u64,
                group_expert: group_expert.as_mut_ptr() as u64,
                grouped: self.rows.as_mut_ptr() as u64,
                out: self.rows.as_mut_ptr() as u64,
                ..EpCall::default()
            }
        }

        /// All tokens of the only source have come, with this expert at every entry.
        fn receive(&mut self, expert: i16) {
            let d = &self.desc;
            sys::put(d.own() + d.off_record, u32::MAX);
            sys::put(d.own() + d.off_record + RECORD_HEAD, u32::MAX);
            for entry in 0..u64::from(T_CAP * K) {
                sys::put(d.own() + d.off_eid + 2 * entry, expert);
            }
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
            pack(&bed.desc, &call, &bed.scratch).unwrap();
            assert!(bed.is_intact() && bed.tables[2][..3] == [0; 3], "{expert}: {:?}", bed.tables);
            scatter(&bed.desc, &EpCall { out: 0, ..call }, &bed.scratch).unwrap();
            assert!(!bed.region.is_empty() && bed.status[0] == 0);
        }
        // Control: those that are experts are taken.
        let mut bed = Bed::new();
        bed.receive(1);
        let call = bed.call();
        pack(&bed.desc, &call, &bed.scratch).unwrap();
        assert_eq!(bed.tables[2][..3], [0, 4, 4]);
        assert!(bed.is_intact());
    }

    #[test]
    fn a_number_of_tokens_that_was_overwritten_is_no_count() {
        for tokens in [T_CAP + 1, 1 << 16, u32::MAX] {
            let mut bed = Bed::new();
            let call = EpCall { out: bed.out.as_mut_ptr() as u64, ..EpCall::default() };
            sys::put(bed.desc.own() + bed.desc.off_set + OFF_TOKENS, tokens);
            assert!(recv_combine(&bed.desc, &call, &|_| false, &bed.scratch).is_err());
            assert_ne!(bed.status[0], 0, "the group has failed, and says why");
        }
        let mut bed = Bed::new();
        let call = EpCall { out: bed.out.as_mut_ptr() as u64, ..EpCall::default() };
        sys::put(bed.desc.own() + bed.desc.off_set + OFF_TOKENS, T_CAP);
        recv_combine(&bed.desc, &call, &|_| false, &bed.scratch).unwrap();
    }

    #[test]
    fn rows_of_a_group_that_were_overwritten_are_no_count_either() {
        let mut bed = Bed::new();
        let call = bed.call();
        bed.tables[2][..3].fill(i32::MAX);
        let mut out = vec![0f32; 3 * 4 * HIDDEN as usize];
        let mut work = Rows::new(HIDDEN, HIDDEN / 2).unwrap();
        silu_mul(&bed.desc, bed.rows.as_ptr() as u64, out.as_mut_ptr() as u64, call.masked_m, HIDDEN / 2, &mut work);
        bed.tables[0].iter_mut().take((T_CAP * K) as usize).for_each(|row| *row = i32::MAX);
        bed.receive(0);
        scatter(&bed.desc, &EpCall { out: 0, ..call }, &bed.scratch).unwrap();
    }
}
