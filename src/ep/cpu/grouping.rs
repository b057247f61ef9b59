//! Received rows into groups by expert, and the sums of what the experts made of them.

use super::sys::Packed;
use super::{HostRank, Outcome, Scratch, check};
use crate::ep::calls::CallArgs;
use crate::ep::dtype;
use crate::ep::status::OFF_OVERFLOW;
use crate::layout::ep::RECORD_HEAD;
use parking_lot::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Whether token `t` of rank `src` has come in this step.
fn live(h: &HostRank<'_>, src: u32, t: u32) -> bool {
    let record = h.d.off_record + u64::from(src) * u64::from(h.d.record_stride);
    let mask: u32 = h.own().get(record + RECORD_HEAD + u64::from(t / 32) * 4);
    t < h.own().get(record) && mask >> (t % 32) & 1 != 0
}

/// The slots of all tokens that have come.
pub(super) fn live_slots<'a>(h: &'a HostRank<'_>) -> impl Iterator<Item = u64> + 'a {
    let t_cap = h.d.t_cap;
    (0..h.d.world).flat_map(move |s| (0..t_cap).filter(move |t| live(h, s, *t)).map(move |t| u64::from(s * t_cap + t)))
}

/// Puts received rows into groups by expert: ascending slot, then entry.
pub(in crate::ep) fn pack(h: &HostRank<'_>, c: &CallArgs, scratch: &Mutex<Scratch>) -> Outcome {
    check(h)?;
    let d = &h.d;
    let (k, max_m, n_local, groups) =
        (u64::from(d.top_k), u64::from(d.max_m), u64::from(d.n_local), u64::from(d.groups));
    let Packed { x, scales, masked_m, group_expert, row_of, row_index } = h.packed(c);
    let set_all = |list: &[std::cell::Cell<i32>], value| list.iter().for_each(|cell| cell.set(value));
    set_all(row_of, -1);
    set_all(row_index, -1);
    // A peer stored it: what is no expert of ours counts as none.
    let eids = h.own().part(d.off_eid, 2 * h.slots() * k).cells::<i16>();
    let eid = |entry: usize| usize::try_from(eids[entry].get()).ok().filter(|e| *e < d.n_local as usize);
    let entries = |slot: u64| (slot * k..(slot + 1) * k).filter_map(|entry| usize::try_from(entry).ok());
    let [rows, spill_first, next] = &mut scratch.lock().experts;
    rows.fill(0);
    for e in live_slots(h).flat_map(entries).filter_map(eid) {
        rows[e] += 1;
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
    set_all(masked_m, 0);
    set_all(group_expert, -1);
    for (e, place) in (0..).zip(group_expert.iter().take(d.n_local as usize)) {
        place.set(e);
    }
    next.fill(0);
    for slot in live_slots(h) {
        for entry in entries(slot) {
            let Some(e) = eid(entry) else { continue };
            let n = next[e];
            next[e] += 1;
            let Some((group, row)) = group_of(e, n) else { continue };
            let at = group * max_m + row;
            let (Ok(place), Ok(of), Ok(g)) = (usize::try_from(at), i32::try_from(at), usize::try_from(group)) else {
                continue;
            };
            row_of[entry].set(of);
            row_index[place].set(i32::try_from(slot).unwrap_or(-1));
            masked_m[g].set(masked_m[g].get() + 1);
            group_expert[g].set(i32::try_from(e).unwrap_or(-1));
            let Some(x) = x else { continue };
            x.row(at, d.x_bytes).copy_from(h.own().part(d.off_x + slot * u64::from(d.x_bytes), d.x_bytes.into()));
            let (n_scales, pitch) = (u64::from(d.scales), max_m.next_multiple_of(4));
            for s in 0..n_scales {
                let scale: f32 = h.own().get(d.off_scale + 4 * (slot * n_scales + s));
                scales.put(4 * ((group * n_scales + s) * pitch + row), scale);
            }
        }
    }
    for (e, n) in rows.iter().enumerate() {
        let room = (groups - n_local).saturating_sub(spill_first[e]);
        let lost = n.saturating_sub(max_m * (1 + room));
        if lost > 0 {
            h.status.word(OFF_OVERFLOW + 8 * e as u64).fetch_add(lost, Relaxed);
        }
    }
    Ok(())
}

/// Sums the weighted rows of each received token: ascending entry, one rounding.
pub(in crate::ep) fn scatter(h: &HostRank<'_>, c: &CallArgs, scratch: &Mutex<Scratch>) -> Outcome {
    check(h)?;
    let d = &h.d;
    let k = u64::from(d.top_k);
    let (grouped, row_of, out, rows) = (h.y_grouped(c), h.row_of(c), h.y_scattered(c), h.grouped_rows());
    let weights = h.own().part(d.off_weight, u64::from(d.weight_bytes) * h.slots() * k);
    let sum = &mut scratch.lock().row;
    for slot in live_slots(h) {
        sum.fill(0.0);
        for entry in slot * k..(slot + 1) * k {
            let stored = usize::try_from(entry).ok().and_then(|entry| u64::try_from(row_of[entry].get()).ok());
            let Some(row) = stored.filter(|row| *row < rows) else { continue };
            let weight =
                if d.weight_bytes == 4 { weights.get(4 * entry) } else { dtype::from_fp16(weights.get(2 * entry)) };
            dtype::add(h.y_dtype(), sum, grouped.row(row, d.y_bytes), Some(weight));
        }
        dtype::store(h.y_dtype(), sum, out.row(slot, d.y_bytes));
    }
    Ok(())
}
