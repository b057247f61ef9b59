//! The experts of a layer on the CPU: two products, and the activation between them.

use super::HostRank;
use super::sys::Operands;
use crate::base::error::Error;
use crate::base::memory;
use crate::ep::dtype;
use crate::ep::layer::{Activation, Gemm};
use crate::layout::ep::{Dtype, SCALE_GROUP};
use std::cell::Cell;

/// Rows for the products and the activation, made before a layer begins.
#[derive(Default)]
pub(in crate::ep) struct Rows {
    a: Vec<f32>,
    b: Vec<f32>,
    out: Vec<f32>,
}

impl Rows {
    pub(in crate::ep) fn new(hidden: u32, inner: u32) -> Result<Self, Error> {
        let (hidden, inner) = (hidden as usize, inner as usize);
        let row = |n: usize| memory::vec_of(n, 0.0);
        Ok(Self { a: row(hidden.max(inner))?, b: row(hidden.max(inner))?, out: row(hidden.max(2 * inner))? })
    }
}

/// The rows in use, as numbers in the grouped layout, with the group of each.
fn rows_in_use<'a>(h: &HostRank<'_>, masked_m: &'a [Cell<i32>]) -> impl Iterator<Item = (usize, u64)> + 'a {
    let max_m = u64::from(h.d.max_m);
    masked_m.iter().enumerate().flat_map(move |(group, rows)| {
        let rows = u64::try_from(rows.get()).unwrap_or(0).min(max_m);
        (0..rows).map(move |row| (group, group as u64 * max_m + row))
    })
}

/// Rows of a group times the transposed matrix of its expert: `c[g][r] = a[g][r] * b[e]^T`, summed in single precision.
pub(in crate::ep) fn gemm(h: &HostRank<'_>, g: &Gemm, rows: &mut Rows) {
    let (max_m, dtype) = (u64::from(h.d.max_m), h.y_dtype());
    let a_dtype = if g.a_scales.is_none() { dtype } else { Dtype::Fp8 };
    let Operands { a: a_rows, a_scales, b: matrices, c, masked_m, group_expert } = h.operands(g);
    let (a, b) = (&mut rows.a[..g.k as usize], &mut rows.b[..g.k as usize]);
    let out = &mut rows.out[..g.n as usize];
    for (group, row) in rows_in_use(h, masked_m) {
        let expert = u64::try_from(group_expert[group].get()).ok();
        let Some(e) = expert.filter(|e| *e < u64::from(h.d.n_local)) else { continue };
        a.fill(0.0);
        dtype::add(a_dtype, a, a_rows.row(row, g.k * a_dtype.bytes()), None);
        if let Some(all) = a_scales {
            let (scales, pitch) = (u64::from(g.k.div_ceil(SCALE_GROUP)), max_m.next_multiple_of(4));
            for (s, part) in (0u64..).zip(a.chunks_mut(SCALE_GROUP as usize)) {
                let scale: f32 = all.get(4 * ((group as u64 * scales + s) * pitch + row % max_m));
                part.iter_mut().for_each(|v| *v *= scale);
            }
        }
        for (j, o) in (0u64..).zip(out.iter_mut()) {
            b.fill(0.0);
            dtype::add(dtype, b, matrices.row(e * u64::from(g.n) + j, g.k * dtype.bytes()), None);
            *o = a.iter().zip(&*b).map(|(a, b)| a * b).sum();
        }
        dtype::store(dtype, out, c.row(row, g.n * dtype.bytes()));
    }
}

/// `silu(gate) * up` of every row; gate and up lie one after the other.
pub(in crate::ep) fn silu_mul(h: &HostRank<'_>, a: &Activation, rows: &mut Rows) {
    let dtype = h.y_dtype();
    let inner = a.inner;
    let bytes = inner * dtype.bytes();
    let (gate_up, act, masked_m) = h.activation(a);
    let (gate, up) = (&mut rows.a[..inner as usize], &mut rows.b[..inner as usize]);
    for (_, row) in rows_in_use(h, masked_m) {
        gate.fill(-0.0);
        up.fill(-0.0);
        dtype::add(dtype, gate, gate_up.row(2 * row, bytes), None);
        dtype::add(dtype, up, gate_up.row(2 * row + 1, bytes), None);
        gate.iter_mut().zip(&*up).for_each(|(gate, up)| *gate = *gate / (1.0 + (-*gate).exp()) * up);
        dtype::store(dtype, gate, act.row(row, bytes));
    }
}
