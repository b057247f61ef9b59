//! The tables that attention kernels take (block table, CSR, slot mapping), written straight into the caller's memory, which may be pinned or
//! write-combined: nothing is read from it. A dense row remembers, in memory of its own, what was written to it, so that
//! only what changed is written again.

use crate::base::error::Result;
use crate::kv::block::NONE;
use crate::kv::cache::Cache;
use crate::kv::groups::SeqGroup;
use crate::kv::seq::Seq;

/// What a row of a dense table holds. All zero is a row that holds nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Row {
    /// The sequence; other than its id, it is never used twice.
    pub uid: u64,
    /// Its count of rewrites.
    pub rewrites: u32,
    /// Entries that were written.
    pub blocks: u32,
}

#[inline]
fn entry(block: u32) -> i32 {
    // A hole is -1, and a block is below 2^31.
    block.cast_signed()
}

/// How entries of a row are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The block.
    Dense,
    /// Two rows a sequence, of K and of V, in a pool whose blocks hold K and then V: 2 x block and 2 x block + 1.
    Offsets,
}

/// Writes the rows of a dense table, one for each sequence (two with [`Format::Offsets`]); returns how many entries
/// were written. `rows` has a [`Row`] for each sequence. Entries after the last block become `pad` if the row was
/// longer before, or is new. Blocks are those of a group with its own, or with [`NONE`] those of the cache.
#[allow(clippy::too_many_arguments, reason = "a table has as many properties")]
pub fn write_dense(
    cache: &Cache,
    ids: &[u64],
    own_group: u32,
    format: Format,
    width: usize,
    pad: i32,
    rows: &mut [Row],
    out: &mut [i32],
) -> Result<u64> {
    let sides = if format == Format::Offsets { 2 } else { 1 };
    if rows.len() != ids.len() || out.len() != ids.len() * width * sides {
        crate::bail!(NMC_ERR_INVALID_ARG, "{} rows and {} entries for {} sequences", rows.len(), out.len(), ids.len());
    }
    let mut written = 0;
    let stride = width * sides;
    cache.read_each(ids, |at, seq| {
        let (row, out) = (&mut rows[at], &mut out[at * stride..(at + 1) * stride]);
        let (blocks, rewrites) = used_blocks(cache, seq, own_group)?;
        if blocks.len() > width {
            let (id, n) = (seq.id, blocks.len());
            crate::bail!(NMC_ERR_TOO_SMALL, "sequence {id} has {n} blocks, a row of the table {width}");
        }
        let same = row.uid == seq.uid && row.rewrites == rewrites && row.blocks as usize <= blocks.len();
        let from = if same { row.blocks as usize } else { 0 };
        for (side, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
            written += write_row(&blocks[from..], format, side, &mut out[from..]);
            if !same {
                out[blocks.len()..].fill(pad);
                written += (width - blocks.len()) as u64;
            }
        }
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        *row = Row { uid: seq.uid, rewrites, blocks: count };
        Ok(())
    })?;
    Ok(written)
}

/// The blocks of a sequence that hold tokens, of a group with its own or of the cache, and how often they changed.
pub(super) fn used_blocks<'s>(cache: &Cache, seq: &'s Seq, own_group: u32) -> Result<(&'s [u32], u32)> {
    let count = cache.blocks_for(seq.tokens);
    if own_group == NONE {
        return Ok((&seq.blocks[..count], seq.rewrites));
    }
    match seq.groups.get(own_group as usize) {
        Some(SeqGroup::Window(strip)) => Ok((&strip.blocks[..count], strip.rewrites)),
        _ => crate::bail!(NMC_ERR_INVALID_ARG, "a recurrent group has no table; nmc_kv_state_slots has its slots"),
    }
}

/// Writes the compressed form: where each sequence's blocks begin, the blocks, and how full the last one is (1 to
/// `tokens_per_block`; 0 for a sequence without tokens). Returns how many blocks there are; if that is more than
/// `indices` holds, nothing in it is complete.
pub fn write_csr(
    cache: &Cache,
    ids: &[u64],
    own_group: u32,
    indptr: &mut [i32],
    indices: &mut [i32],
    last_len: &mut [i32],
) -> Result<usize> {
    if indptr.len() != ids.len() + 1 || last_len.len() != ids.len() {
        crate::bail!(NMC_ERR_INVALID_ARG, "indptr has {} entries for {} sequences", indptr.len(), ids.len());
    }
    let size = cache.per_block();
    let mut at = 0;
    indptr[0] = 0;
    cache.read_each(ids, |i, seq| {
        let (blocks, _) = used_blocks(cache, seq, own_group)?;
        if let Some(out) = indices.get_mut(at..at + blocks.len()) {
            write_row(blocks, Format::Dense, 0, out);
        }
        at += blocks.len();
        let last = if seq.tokens == 0 { 0 } else { (seq.tokens - 1) % size + 1 };
        last_len[i] = last.cast_signed();
        let Ok(end) = i32::try_from(at) else { crate::bail!(NMC_ERR_LIMIT, "the batch has more than 2^31 blocks") };
        indptr[i + 1] = end;
        Ok(())
    })?;
    Ok(at)
}

/// Writes the slots (block x tokens_per_block + place in the block) of the last `counts[i]` tokens of each sequence,
/// one after the other; without counts, of the last token. A dropped block gives -1. Returns how many there are.
pub fn write_slot_mapping(
    cache: &Cache,
    ids: &[u64],
    own_group: u32,
    counts: Option<&[u32]>,
    out: &mut [i64],
) -> Result<usize> {
    let size = cache.per_block();
    let mut at = 0;
    cache.read_each(ids, |i, seq| {
        let count = counts.map_or(1, |counts| counts[i]);
        let Some(first) = seq.tokens.checked_sub(count) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "sequence {} has {} tokens, not {count}", seq.id, seq.tokens)
        };
        let (blocks, _) = used_blocks(cache, seq, own_group)?;
        let end = at + count as usize;
        if let Some(out) = out.get_mut(at..end) {
            for (token, out) in (first..seq.tokens).zip(out) {
                *out = slot(blocks, token, size);
            }
        }
        at = end;
        Ok(())
    })?;
    Ok(at)
}

fn slot(blocks: &[u32], token: u32, size: u32) -> i64 {
    match blocks[(token / size) as usize] {
        NONE => -1,
        block => i64::from(block) * i64::from(size) + i64::from(token % size),
    }
}

#[inline]
fn write_row(blocks: &[u32], format: Format, side: usize, out: &mut [i32]) -> u64 {
    for (block, out) in blocks.iter().zip(out) {
        *out = match format {
            Format::Dense => entry(*block),
            Format::Offsets if *block == NONE => -1,
            #[allow(clippy::cast_possible_truncation, reason = "0 or 1")]
            Format::Offsets => entry(block.wrapping_mul(2) + side as u32),
        };
    }
    blocks.len() as u64
}
