//! `nmc_kv_*`: what sequences wait for to be copied, and copies of blocks where they lie, into contiguous memory and back, on the
//! host or on a stream.

use super::arg::{array, array_out};
use super::kv::{nmc_kv_t, with};
use super::kv_types::*;
use super::{guard, out};
use crate::base::status::nmc_status_t;
use crate::cuda::GivenStream;
use crate::kv::place::{Move, Region};
use crate::kv::{BlockCopy, Copies, GROUPS_ALL, GroupCopy, Kv, SeqCopy};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const _: () = assert!(NMC_KV_GROUPS_ALL == GROUPS_ALL, "the same number in C and in Rust");

/// Stores the copies that a sequence waits for, and forgets them. They must be enqueued, in this order, before the next call that
/// changes the sequence; the blocks that they read stay until then, whatever becomes of a parent. `nmc_kv_copy_blocks` makes them.
/// Paged sequences have at most one, and one more for each group with a window, from `nmc_kv_fork` or `nmc_kv_truncate`; contiguous
/// ones one a block when they move. `*out_n` receives how many there are; if `capacity` is less, that is all that happens.
///
/// With `NMC_KV_VIRTUAL` they are of bytes: after `nmc_kv_fork` the last block of the child if it is not full, after
/// `nmc_kv_truncate` the last block if others share it; one copy for each page of it. They must also be enqueued before the next call
/// that changes the parent, and be done before either is cut or closed.
///
/// Does not block; with `NMC_KV_VIRTUAL` it may map pages and call CUDA. Thread-safe. Graph-safe without it. Statuses:
/// `NMC_ERR_TOO_SMALL` (`*out_n` was stored), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_LIMIT`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_take_copies(
    kv: *mut nmc_kv_t,
    id: u64,
    out_copies: *mut nmc_kv_copy_t,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_n, "out_n")?;
        // SAFETY: the C contract of `out_copies`.
        let to = unsafe { array_out(out_copies, capacity, "out_copies") }?;
        with(kv, |kv| {
            let count = match kv.take_copies(id, capacity)? {
                Err(count) => {
                    slot.write(count);
                    crate::bail!(
                        NMC_ERR_TOO_SMALL,
                        "sequence {id} waits for {count} copies, there is room for {capacity}"
                    );
                }
                Ok(Copies::Blocks(plan)) => {
                    to.iter_mut().zip(&plan).for_each(|(to, copy)| *to = block_to_c(kv, copy));
                    plan.len()
                }
                Ok(Copies::Bytes(moves)) => {
                    to.iter_mut().zip(&moves).for_each(|(to, copy)| *to = bytes_to_c(copy));
                    moves.len()
                }
            };
            slot.write(count);
            Ok(())
        })
    })
}

/// Copies `n` blocks of a group, or of all with `NMC_KV_GROUPS_ALL`, one after the other in this order into the `to_bytes`
/// bytes at `to`. Each is as it is in a store, whatever the order of the cache's memory: its groups one after the other, of
/// those the layers, of those K and V, of those the heads and then the tokens, or the tokens and then the heads with
/// `NMC_KV_LAYER_MAJOR_NHD`. So `nmc_kv_scatter` of another cache can take it. A block has `nmc_kv_heap_bytes` /
/// `capacity_blocks` bytes in a group. A block may be named more than once.
///
/// If the cache lies in device memory, the copy runs when `stream`, of that device, gets there, and `to` is memory of the same
/// device or pinned host memory; `blocks` may be freed at once. A captured graph has the block numbers in it. In host memory
/// it is done when the call returns, `to` is host memory and `stream` is NULL. Copies of pieces and addresses that are
/// multiples of 16 bytes are the fastest.
///
/// Does not block, except that the first call for device memory loads the kernels; a call with `n` = 0 does just that, before
/// a capture. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`to_bytes`; the message says how many are needed),
/// `NMC_ERR_INVALID_ARG` (no such block or group, no memory, a stream for host memory, memory that overlaps or cannot be
/// reached), `NMC_ERR_UNSUPPORTED` (groups on host and device together, another device, managed memory, or
/// `NMC_KV_VIRTUAL`), `NMC_ERR_LIMIT` (a block that is too large), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_gather(
    kv: *mut nmc_kv_t,
    group: u32,
    blocks: *const i32,
    n: usize,
    to: *mut c_void,
    to_bytes: u64,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        // SAFETY: the C contract of `blocks`.
        let blocks = unsafe { array(blocks, n, "blocks") }?;
        // SAFETY: the C contract of `to`, until the copy is made.
        let to = unsafe { Region::new(to as u64, to_bytes) };
        with(kv, |kv| kv.gather(group, blocks, &to, stream))
    })
}

/// The reverse of `nmc_kv_gather`: copies the `from_bytes` bytes at `from`, as that function left them there, into `n` blocks,
/// in this order. No block may be named twice.
///
/// Does not block, except as `nmc_kv_gather`. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_gather`;
/// `NMC_ERR_INVALID_ARG` also if a block is named twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_scatter(
    kv: *mut nmc_kv_t,
    group: u32,
    blocks: *const i32,
    n: usize,
    from: *const c_void,
    from_bytes: u64,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        // SAFETY: the C contract of `blocks`.
        let blocks = unsafe { array(blocks, n, "blocks") }?;
        // SAFETY: the C contract of `from`, which is only read, until the copy is made.
        let from = unsafe { Region::new(from as u64, from_bytes) };
        with(kv, |kv| kv.scatter(group, blocks, &from, stream))
    })
}

/// Makes the copies that `nmc_kv_take_copies` stored, of one sequence or of several, each in the groups that it names; also those
/// from slot to slot of a recurrent group, where `nmc_kv_state_slots` has two. Blocks are copied in no order: one that is written
/// must not be read or written by another copy of the same call. Those of one `nmc_kv_take_copies` never are; the copy for a fork
/// of a sequence that waits for one itself goes into a second call. With `NMC_KV_VIRTUAL` copies are of bytes, at the addresses
/// that `nmc_kv_take_copies` stored, and are made one after the other.
///
/// In device memory the copies run when `stream` gets there, and `copies` may be freed at once; in host memory they are done
/// when the call returns, and `stream` is NULL.
///
/// Does not block, except as `nmc_kv_gather`. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no such block, one that
/// is written twice or read and written, no memory, a stream for host memory), `NMC_ERR_UNSUPPORTED` (bytes in a paged cache,
/// blocks in a virtual one, groups on host and device together, managed memory), `NMC_ERR_LIMIT`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_copy_blocks(
    kv: *mut nmc_kv_t,
    copies: *const nmc_kv_copy_t,
    n: usize,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        // SAFETY: the C contract of `copies`.
        let copies = unsafe { array(copies, n, "copies") }?;
        if let Some(at) = copies.iter().position(|copy| copy.reserved != 0) {
            crate::bail!(NMC_ERR_INVALID_ARG, "the reserved field of copy {at} is not zero");
        }
        // SAFETY: the C contract of the addresses, until the copies are made.
        let copies = copies.iter().map(|copy| unsafe { from_c(copy) });
        with(kv, |kv| kv.copy_blocks(copies, stream))
    })
}

/// # Safety
/// The C contract of the addresses.
unsafe fn from_c(copy: &nmc_kv_copy_t) -> SeqCopy {
    let nmc_kv_copy_t { from, to, group, from_address, to_address, bytes, .. } = *copy;
    if bytes == 0 && from_address.is_null() && to_address.is_null() {
        return SeqCopy::Block(GroupCopy { group, from, to });
    }
    // SAFETY: the caller's.
    unsafe {
        SeqCopy::Bytes { from: Region::new(from_address as u64, bytes), to: Region::new(to_address as u64, bytes) }
    }
}

fn block_to_c(kv: &Kv, copy: &BlockCopy) -> nmc_kv_copy_t {
    nmc_kv_copy_t {
        from: copy.from.cast_signed(),
        to: copy.to.cast_signed(),
        group: kv.group_of(copy.own_group),
        reserved: 0,
        from_address: null(),
        to_address: null_mut(),
        bytes: 0,
    }
}

const fn bytes_to_c(copy: &Move) -> nmc_kv_copy_t {
    nmc_kv_copy_t {
        from: -1,
        to: -1,
        group: copy.group,
        reserved: 0,
        from_address: copy.from as *const c_void,
        to_address: copy.to as *mut c_void,
        bytes: copy.bytes,
    }
}
