//! `nmc_kv_*`: blocks are copied where they lie, into contiguous memory and back, on the host or on a stream.

use super::arg::array;
use super::guard;
use super::kv::{nmc_kv_t, with};
use super::kv_types::*;
use crate::base::status::nmc_status_t;
use crate::kv::place::Region;
use crate::kv::{GROUPS_ALL, GroupCopy};
use std::ffi::c_void;

const _: () = assert!(NMC_KV_GROUPS_ALL == GROUPS_ALL, "the same number in C and in Rust");

/// Copies `n` blocks of a group, or of all with `NMC_KV_GROUPS_ALL`, one after the other in this order into the `to_bytes`
/// bytes at `to`. Each is as it is in a store, whatever the order of the cache's memory: its groups one after the other, of
/// those the layers, of those K and V, of those the heads and then the tokens, or the tokens and then the heads with
/// `NMC_KV_LAYER_MAJOR_NHD`. So `nmc_kv_scatter` of another cache can take it. A block has `nmc_kv_group_bytes` /
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
    guard(|| {
        // SAFETY: the C contract of `blocks`.
        let blocks = unsafe { array(blocks, n, "blocks") }?;
        // SAFETY: the C contract of `from`, which is only read, until the copy is made.
        let from = unsafe { Region::new(from as u64, from_bytes) };
        with(kv, |kv| kv.scatter(group, blocks, &from, stream))
    })
}

/// Makes the copies that `nmc_kv_copies` told, of one sequence or of several, each in the groups that it names; also those
/// from slot to slot of a recurrent group, where `nmc_kv_states` has two. They are made in no order: a block that is written
/// must not be read or written by another copy of the same call. Those of one `nmc_kv_copies` never are; the copy for a fork
/// of a sequence that waits for one itself goes into a second call.
///
/// In device memory the copies run when `stream` gets there, and `copies` may be freed at once; in host memory they are done
/// when the call returns, and `stream` is NULL.
///
/// Does not block, except as `nmc_kv_gather`. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no such block, one that
/// is written twice or read and written, no memory, a stream for host memory), `NMC_ERR_UNSUPPORTED` (groups on host and
/// device together, managed memory, or `NMC_KV_VIRTUAL`), `NMC_ERR_LIMIT`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_kv_copy_blocks(
    kv: *mut nmc_kv_t,
    copies: *const nmc_kv_copy_t,
    n: usize,
    stream: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of `copies`.
        let copies = unsafe { array(copies, n, "copies") }?;
        let copies = copies.iter().map(|copy| GroupCopy { group: copy.group, from: copy.from, to: copy.to });
        with(kv, |kv| kv.copy_blocks(copies, stream))
    })
}
