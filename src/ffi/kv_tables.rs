//! `nmc_kv_*`: views of sequences, and the tables that attention kernels take.

use super::arg::{array, array_out};
use super::config::OutStruct;
use super::kv::{nmc_kv_t, with};
use super::kv_seq::counted;
use super::kv_types::*;
use super::{guard, optional_out, out};
use crate::base::error::Result;
use crate::base::status::nmc_status_t;
use crate::kv::place::geometry::Side;
use crate::kv::place::tables::{Format, Row};
use std::ffi::c_void;

fn side_of(side: u32) -> Result<Side> {
    match side {
        NMC_KV_K => Ok(Side::K),
        NMC_KV_V => Ok(Side::V),
        other => crate::bail!(NMC_ERR_INVALID_ARG, "side {other} is neither NMC_KV_K nor NMC_KV_V"),
    }
}

/// Stores K or V of a sequence in one layer as a 4-D tensor in `*out_view`. For a contiguous sequence these are its own blocks
/// in order; for a paged one all blocks of the layer, which a kernel indexes through the block table. Nothing is copied.
/// The view of a contiguous sequence is valid until it moves; that of a virtual one, which has all blocks that are mapped,
/// until it is closed: only its number of blocks changes.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (group, layer or side), `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_view(
    kv: *mut nmc_kv_t,
    id: u64,
    group: u32,
    layer: u32,
    side: u32,
    out_view: *mut nmc_kv_view_t,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of `out_view`.
        let slot = unsafe { OutStruct::new(out_view, "out_view") }?;
        with(kv, |kv| {
            let found = kv.view(id, group, layer, side_of(side)?)?;
            // Lengths and distances in an arena are below 2^63.
            let signed = |numbers: [u64; 4]| numbers.map(u64::cast_signed);
            slot.put(nmc_kv_view_t {
                struct_size: 0,
                element_bytes: u32::try_from(found.view.element_bytes).unwrap_or(u32::MAX),
                data: found.view.offset as *mut c_void,
                shape: signed(found.view.shape),
                strides: signed(found.view.element_strides()),
                contiguous: u32::from(found.contiguous),
                reserved0: 0,
            });
            Ok(())
        })
    })
}

/// Stores the address of the vector of one token, by its position in the sequence, in `*out_address`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (group, layer, side, head or token),
/// `NMC_ERR_STALE` (also: the token's block was dropped), `NMC_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_token_address(
    kv: *mut nmc_kv_t,
    id: u64,
    token: u64,
    group: u32,
    layer: u32,
    side: u32,
    head: u32,
    out_address: *mut *mut c_void,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_address, "out_address")?;
        with(kv, |kv| {
            let at = (layer, side_of(side)?, head);
            let found = counted(token, |token| kv.token_address(id, token, group, at))?;
            slot.write(found as *mut c_void);
            Ok(())
        })
    })
}

/// Writes the rows of a dense block table, int32 `[n, width]` (`[n, 2, width]` with `NMC_KV_TABLE_OFFSETS`), for `n`
/// sequences. `group` says which group the table is for: groups with blocks of their own have their own tables, all
/// others share one. Pass 0 if there are no groups. Writes only what changed since the row was last written, as `rows`
/// remembers, one `nmc_kv_row_t` for each sequence, all zero at first. A row that is new, of another sequence, or of
/// one whose earlier blocks changed is written whole, and filled up with `pad`. A dropped block is -1. `out_table` may
/// be pinned memory; it is never read. Give every buffer its own `rows`. `out_written`, if not NULL, receives how many
/// entries were stored.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (a sequence has more than `width` blocks),
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`; rows before the one at fault are written. `NMC_ERR_UNSUPPORTED` with
/// `NMC_KV_VIRTUAL`, here and in the two functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_table(
    kv: *mut nmc_kv_t,
    group: u32,
    format: u32,
    ids: *const u64,
    n: usize,
    width: usize,
    pad: i32,
    rows: *mut nmc_kv_row_t,
    out_table: *mut i32,
    out_written: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let (format, sides) = match format {
            NMC_KV_TABLE_BLOCKS => (Format::Dense, 1),
            NMC_KV_TABLE_OFFSETS => (Format::Offsets, 2),
            other => crate::bail!(NMC_ERR_INVALID_ARG, "format {other} is none of NMC_KV_TABLE_*"),
        };
        let Some(entries) = width.checked_mul(sides).and_then(|row| row.checked_mul(n)) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "{n} rows of {width} entries cannot be");
        };
        let slot = optional_out(out_written, "out_written")?;
        // SAFETY: the C contract of the arrays; `Row` and `nmc_kv_row_t` are the same.
        let (ids, rows, table) = unsafe {
            (
                array(ids, n, "ids")?,
                array_out(rows.cast::<Row>(), n, "rows")?,
                array_out(out_table, entries, "out_table")?,
            )
        };
        let count = with(kv, |kv| kv.write_table(ids, group, format, width, pad, rows, table))?;
        if let Some(slot) = slot {
            slot.write(count);
        }
        Ok(())
    })
}

/// Writes the compressed table that FlashInfer takes: `out_indptr` int32 `[n + 1]`, `out_indices` int32 with room for `capacity`
/// blocks, `out_last_page_len` int32 `[n]` (1 to `tokens_per_block`; 0 for a sequence without tokens). `*out_n` receives how many
/// blocks there are.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (more than `capacity`; `*out_n` was stored),
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_table_csr(
    kv: *mut nmc_kv_t,
    group: u32,
    ids: *const u64,
    n: usize,
    out_indptr: *mut i32,
    out_last_page_len: *mut i32,
    out_indices: *mut i32,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_n, "out_n")?;
        // SAFETY: the C contract of the arrays.
        let (ids, indptr, indices, last) = unsafe {
            (
                array(ids, n, "ids")?,
                array_out(out_indptr, n.saturating_add(1), "out_indptr")?,
                array_out(out_indices, capacity, "out_indices")?,
                array_out(out_last_page_len, n, "out_last_page_len")?,
            )
        };
        let count = with(kv, |kv| kv.write_csr(ids, group, indptr, indices, last))?;
        slot.write(count);
        if count > capacity {
            crate::bail!(NMC_ERR_TOO_SMALL, "the sequences have {count} blocks, there is room for {capacity}");
        }
        Ok(())
    })
}

/// Writes the slot mapping, int64: where the last `counts[i]` tokens of each sequence go, as block x `tokens_per_block` +
/// place in the block, one sequence after the other; -1 in a dropped block. `counts` NULL is the last token of each; they have 32 bits, as
/// kernels take them. `*out_n` receives how many slots there are.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (more than `capacity`; `*out_n` was stored),
/// `NMC_ERR_INVALID_ARG` (more than a sequence has), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_slot_mapping(
    kv: *mut nmc_kv_t,
    group: u32,
    ids: *const u64,
    counts: *const u32,
    n: usize,
    out_slots: *mut i64,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_n, "out_n")?;
        // SAFETY: the C contract of the arrays.
        let (ids, counts, slots) = unsafe {
            (
                array(ids, n, "ids")?,
                if counts.is_null() { None } else { Some(array(counts, n, "counts")?) },
                array_out(out_slots, capacity, "out_slots")?,
            )
        };
        let count = with(kv, |kv| kv.write_slot_mapping(ids, group, counts, slots))?;
        slot.write(count);
        if count > capacity {
            crate::bail!(NMC_ERR_TOO_SMALL, "there are {count} slots, and room for {capacity}");
        }
        Ok(())
    })
}

/// Stores the slots of the states of `n` sequences in a group of kind `NMC_KV_KIND_RECURRENT`, int32 `[n]` each, for the tokens that
/// the last call gave room for: `out_reads` has the slot with the state before them, or -1 if they are the first and begin with no
/// state; `out_writes` the slot for the state after them, or -1 if there are none. Where the two differ, the state that is read is
/// kept for others: a kernel that can only update in place copies it first.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not such a group), `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_STALE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_state_slots(
    kv: *mut nmc_kv_t,
    group: u32,
    ids: *const u64,
    n: usize,
    out_reads: *mut i32,
    out_writes: *mut i32,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of the arrays.
        let (ids, reads, writes) = unsafe {
            (array(ids, n, "ids")?, array_out(out_reads, n, "out_reads")?, array_out(out_writes, n, "out_writes")?)
        };
        with(kv, |kv| {
            kv.state_slots(ids, group, |at, (read, write)| {
                (reads[at], writes[at]) = (read.cast_signed(), write.cast_signed());
            })
        })
    })
}
