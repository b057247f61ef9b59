//! Dispatch and combine: rows to the ranks of their experts, and back.

use super::{HostRank, Outcome, Scratch, check, fail, phase, signal, wait};
use crate::ep::calls::CallArgs;
use crate::ep::cpu::grouping::live_slots;
use crate::ep::dtype;
use crate::ep::sys::Region;
use crate::layout::ep::{Fault, OFF_FLAGS, OFF_PHASE, OFF_RETURNS, OFF_TOKENS, RECORD_HEAD, Wire, flag};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// The expert at an entry, or -1.
fn expert(c: &CallArgs, idx: Region<'_>, at: u64) -> i64 {
    if c.idx_64 != 0 { idx.get(8 * at) } else { i64::from(idx.get::<i32>(4 * at)) }
}

/// First half of a dispatch: rows, what they are for, and a record to every rank that has an expert of them.
pub(in crate::ep) fn send_dispatch(h: &HostRank<'_>, c: &CallArgs, scratch: &Mutex<Scratch>) -> Outcome {
    check(h)?;
    let d = &h.d;
    let tokens = h.tokens(c);
    if tokens > d.t_cap {
        return Err(fail(h, Fault::Tokens, d.rank, tokens));
    }
    let next = phase(h).wrapping_add(1);
    let (k, n_local) = (u64::from(d.top_k), i64::from(d.n_local));
    let words = d.t_cap.div_ceil(32) as usize;
    let (x, idx, weight, given_scales) =
        (h.x(c, tokens), h.topk_idx(c, tokens), h.topk_w(c, tokens), h.scales(c, tokens));
    let Scratch { masks, row, codes, scales, .. } = &mut *scratch.lock();
    masks.fill(0);
    for t in 0..tokens {
        let first = u64::from(t) * k;
        let mut targets = 0u32;
        for i in 0..k {
            let e = expert(c, idx, first + i);
            if e < -1 || e >= n_local * i64::from(d.world) {
                return Err(fail(h, Fault::Expert, d.rank, t));
            }
            if e >= 0 {
                targets |= 1 << (e / n_local);
            }
        }
        h.own().put(d.off_sent + 4 * u64::from(t), targets);
        let slot = u64::from(d.rank * d.t_cap + t);
        let from = x.row(t.into(), h.source_bytes());
        if d.wire == Wire::Quantised as u32 {
            // Negative zero is what changes nothing when it is added to, not even the sign of a zero.
            row.fill(-0.0);
            dtype::add(h.y_dtype(), row, from, None);
            dtype::quantise(row, codes, scales);
        } else if d.wire == Wire::Given as u32 {
            let given = given_scales.row(t.into(), 4 * d.scales).cells::<f32>();
            scales.iter_mut().zip(given).for_each(|(to, scale)| *to = scale.get());
        }
        for r in (0..d.world).filter(|r| targets >> r & 1 != 0) {
            let region = h.region(r);
            masks[r as usize * words + t as usize / 32] |= 1 << (t % 32);
            let to = region.part(d.off_x + slot * u64::from(d.x_bytes), d.x_bytes.into());
            if d.wire == Wire::Quantised as u32 {
                to.write(codes);
            } else {
                to.copy_from(from);
            }
            if d.scales != 0 {
                region.part(d.off_scale + 4 * slot * u64::from(d.scales), 4 * u64::from(d.scales)).write(scales);
            }
            for i in 0..k {
                let (e, entry) = (expert(c, idx, first + i), slot * k + i);
                let mine = e >= 0 && e / n_local == i64::from(r);
                let local = if mine { i16::try_from(e % n_local).unwrap_or(-1) } else { -1 };
                region.put(d.off_eid + 2 * entry, local);
                let to = d.off_weight + u64::from(d.weight_bytes) * entry;
                if d.weight_bytes == 4 {
                    region.put(to, if mine { weight.get::<f32>(4 * (first + i)) } else { 0.0 });
                } else {
                    region.put(to, if mine { weight.get::<u16>(2 * (first + i)) } else { 0 });
                }
            }
        }
        if c.count_load != 0 {
            for i in 0..k {
                let e = expert(c, idx, first + i);
                if e >= 0 {
                    let load = h.own().word(d.off_load + 8 * e.unsigned_abs());
                    load.store(load.load(Relaxed) + 1, Relaxed);
                }
            }
        }
    }
    for (region, mask) in h.regions().iter().zip(masks.chunks(words)) {
        let at = d.off_record + u64::from(d.rank) * u64::from(d.record_stride);
        let record = region.part(at, d.record_stride.into());
        for (i, value) in (0u64..).zip([tokens, d.layer, d.config_hash, next]) {
            record.put(4 * i, value);
        }
        record.part(RECORD_HEAD, 4 * words as u64).write(mask);
    }
    h.own().put(d.off_set + OFF_TOKENS, tokens);
    signal(h, OFF_FLAGS, flag(next, d.layer, tokens));
    Ok(())
}

/// Second half of a dispatch: waits for all ranks.
pub(in crate::ep) fn recv_dispatch(h: &HostRank<'_>, lost: &dyn Fn(u32) -> bool) -> Outcome {
    check(h)?;
    let next = phase(h).wrapping_add(1);
    wait(h, OFF_FLAGS, next, lost)?;
    h.own().word32(h.d.off_set + OFF_PHASE).store(next, Relaxed);
    Ok(())
}

/// First half of a combine: the rows, unless they are in place already, and the flags.
pub(in crate::ep) fn send_combine(h: &HostRank<'_>, c: &CallArgs) -> Outcome {
    check(h)?;
    if let Some(y) = h.y_recv(c) {
        let in_place = h.own().part(h.d.off_y, h.slots() * u64::from(h.d.y_bytes));
        live_slots(h).for_each(|slot| in_place.row(slot, h.d.y_bytes).copy_from(y.row(slot, h.d.y_bytes)));
    }
    signal(h, OFF_RETURNS, flag(phase(h), h.d.layer, 0));
    Ok(())
}

/// Second half of a combine: waits for all ranks and sums what they return, in the order of their numbers.
pub(in crate::ep) fn recv_combine(
    h: &HostRank<'_>,
    c: &CallArgs,
    lost: &dyn Fn(u32) -> bool,
    scratch: &Mutex<Scratch>,
) -> Outcome {
    check(h)?;
    let d = &h.d;
    wait(h, OFF_RETURNS, phase(h), lost)?;
    // Peers can reach this word: it was checked when it was stored, which says nothing about now.
    let tokens: u32 = h.own().get(d.off_set + OFF_TOKENS);
    if tokens > d.t_cap {
        return Err(fail(h, Fault::Tokens, d.rank, tokens));
    }
    let out = h.out(c, tokens);
    let sum = &mut scratch.lock().row;
    for t in 0..tokens {
        let targets: u32 = h.own().get(d.off_sent + 4 * u64::from(t));
        sum.fill(0.0);
        let slot = u64::from(d.rank * d.t_cap + t);
        for r in (0..d.world).filter(|r| targets >> r & 1 != 0) {
            let row = h.region(r).part(d.off_y + slot * u64::from(d.y_bytes), d.y_bytes.into());
            dtype::add(h.y_dtype(), sum, row, None);
        }
        dtype::store(h.y_dtype(), sum, out.row(t.into(), d.y_bytes));
    }
    Ok(())
}
