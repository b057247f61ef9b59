//! Expert-parallel groups over the C ABI.

use super::arg::{array, array_out};
use super::ep_types::{
    nmc_ep_bytes_t, nmc_ep_config_t, nmc_ep_dispatch_t, nmc_ep_gemm_t, nmc_ep_grouped_t, nmc_ep_moe_t,
    nmc_ep_recv_buffers_t, parse_ep,
};
use super::handle::{self, HasC, Object};
use super::world::nmc_world_t;
use super::{guard, out, put_struct};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::cuda::GivenStream;
use crate::ep::calls::{BOTH, Dispatch, Grouped, RECV, SEND};
use crate::ep::layer::{Gemm, Layer, MAX_INNER, Parts};
use crate::ep::sys::{Given, Workspace};
use crate::ep::{Ep, call_group, forward};
use crate::layout::ep::RankDesc;
use crate::world::World;
use std::ffi::c_void;
use std::sync::Arc;

/// One rank's part of an expert-parallel group: it sends tokens to the ranks of their experts and gets results back.
///
/// All ranks take the same steps in the same order: dispatch and combine of a layer, in turn, in each buffer set. A
/// call out of turn (a combine without its dispatch, a second dispatch) is refused with `NMC_ERR_INVALID_ARG` and does
/// nothing, as long as the host makes all calls itself; once a call was captured, or `nmc_ep_device` was called, this
/// is not checked any more. Calls of one handle are made by one thread at a time, on one stream for each buffer set. On
/// CUDA heaps calls only enqueue, need no synchronisation, allocate nothing, and are graph-safe; on host heaps they
/// work at once and take a NULL stream. Results are the same bits in every arrangement.
///
/// When a rank dies, does not come within the deadline, or makes a mistake that only the GPU can see, the group is over
/// for all ranks: kernels of later steps do nothing, calls return the reason, and `nmc_ep_check` returns it too. Heaps,
/// contexts and the world live on; destroy the handle and create a new group. Statuses that every function can return:
/// `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`; those with a stream also `NMC_ERR_PEER_LOST`,
/// `NMC_ERR_MISMATCH`, `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the group is over), `NMC_ERR_CUDA`, and between
/// `nmc_ep_group_begin` and `nmc_ep_group_end` `NMC_ERR_NO_MEMORY` (the call is not part of the group).
pub struct nmc_ep_t {
    _opaque: [u8; 0],
}

struct Handle(Arc<Ep>);

impl Object for Handle {
    const KIND: u64 = 4;
    const NAME: &'static str = "ep";
    fn cancel(&self) {
        self.0.abort_own();
    }
}

impl HasC for Handle {
    type C = nmc_ep_t;
}

fn with<R>(ep: *const nmc_ep_t, body: impl FnOnce(&Arc<Ep>) -> Result<R>) -> Result<R> {
    handle::with::<Handle, R>(ep, |handle| body(&handle.0))
}

/// Stores how much memory a group with this config needs, before it is created, in a world of `world_size` ranks: all
/// of them are in the group, or those that `config->members` names. `inner` is for `nmc_ep_moe_forward`; 0 without it.
///
/// Contacts no other rank. Thread-safe. Statuses: `NMC_ERR_LIMIT` (too many ranks), and see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_bytes_needed(
    config: *const nmc_ep_config_t,
    world_size: u32,
    inner: u32,
    out_bytes: *mut nmc_ep_bytes_t,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of `config`.
        let config = unsafe { parse_ep(config) }?;
        if world_size == 0 || world_size as usize > crate::layout::MAX_RANKS {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "world_size {world_size} is not between 1 and {}",
                crate::layout::MAX_RANKS
            );
        }
        if inner > MAX_INNER {
            crate::bail!(NMC_ERR_INVALID_ARG, "inner {inner} is more than {MAX_INNER}");
        }
        let ranks = u32::try_from(config.members(world_size)?.len()).unwrap_or(0);
        // With more blocks the transport is larger: as large as it gets on either kind of heap.
        let shape = config.shape(ranks, crate::mem::HeapKind::Cuda)?;
        let (groups, max_m) = (u64::from(shape.groups()), u64::from(shape.max_m));
        let bytes = nmc_ep_bytes_t {
            transport: shape.region_bytes(),
            grouped_x: groups * max_m * u64::from(shape.x_bytes()),
            grouped_scales: 4 * groups * u64::from(shape.scales()) * max_m.next_multiple_of(4),
            grouped_y: groups * max_m * u64::from(shape.y_bytes()),
            masked_m: 4 * groups,
            row_of: 4 * shape.slots() * u64::from(shape.top_k),
            row_index: 4 * groups * max_m,
            workspace: Parts::of(&shape, inner).bytes,
            ..Default::default()
        };
        // SAFETY: the C contract of `out_bytes`.
        unsafe { put_struct(out_bytes, bytes) }
    })
}

/// Creates a group together with all other members, which call this at the same time, and stores a handle in `*out_ep`.
/// Destroy it with `nmc_ep_destroy`.
///
/// The transport lies in the world's heaps from `heap_offset` on; whatever else uses the heap (a store, the program)
/// must stay clear of it. The world must not be destroyed before the group.
///
/// Blocks up to the deadline. On CUDA heaps it waits for the device's work of this process. One thread at a time for a
/// handle. Not graph-safe. Statuses: `NMC_ERR_MISMATCH` (names the field, the rank and both values; all ranks that came
/// get it, and can call this again at once), `NMC_ERR_TIMEOUT` (says which ranks are missing), `NMC_ERR_PEER_LOST`,
/// `NMC_ERR_LIMIT` (blocks that cannot be resident at once, too many ranks), `NMC_ERR_UNSUPPORTED`,
/// `NMC_ERR_NO_MEMORY`, `NMC_ERR_VERSION`, `NMC_ERR_CANCELLED`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_create(
    world: *mut nmc_world_t,
    config: *const nmc_ep_config_t,
    out_ep: *mut *mut nmc_ep_t,
) -> nmc_status_t {
    let worlds = [world];
    // SAFETY: the C contract of this function.
    unsafe { nmc_ep_create_ranks(worlds.as_ptr(), 1, config, out_ep) }
}

/// Like `nmc_ep_create`, for `n` ranks of this process at once: `worlds[i]` gets `out_eps[i]`. On error no handle is made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_create_ranks(
    worlds: *const *mut nmc_world_t,
    n: usize,
    config: *const nmc_ep_config_t,
    out_eps: *mut *mut nmc_ep_t,
) -> nmc_status_t {
    guard(|| {
        if n == 0 || n > crate::layout::MAX_RANKS {
            crate::bail!(NMC_ERR_INVALID_ARG, "{n} ranks are not between 1 and {}", crate::layout::MAX_RANKS);
        }
        // SAFETY: the C contract of these arrays.
        let (worlds, slots) = unsafe { (array(worlds, n, "worlds")?, array_out(out_eps, n, "out_eps")?) };
        slots.fill(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let config = unsafe { parse_ep(config) }?;
        let member = |world: &*mut nmc_world_t| {
            handle::with::<World, _>(*world, |world| world.membership("expert-parallel group"))
        };
        let members = memory::try_collect(worlds.iter().map(member))?;
        let mut made = memory::with_capacity(n)?;
        for ep in Ep::create(&members, &config)? {
            match handle::create(Handle(ep)) {
                Ok(one) => made.push(one),
                Err(error) => {
                    for one in made {
                        drop(handle::take::<Handle>(one));
                    }
                    return Err(error);
                }
            }
        }
        slots.copy_from_slice(&made);
        Ok(())
    })
}

/// Leaves a group. Peers that still wait for this rank run into their deadline: finish the same steps everywhere first.
/// NULL is fine; in a forked child it does nothing.
///
/// On CUDA heaps it waits for the device's work of this process: steps that wait for a peer end by the deadline. One
/// thread at a time for a handle. Not graph-safe: graphs that hold steps of the group must not be launched afterwards.
/// Statuses: `NMC_ERR_BUSY` when called inside a log callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_ep_destroy(ep: *mut nmc_ep_t) -> nmc_status_t {
    guard(|| {
        drop(handle::take::<Handle>(ep)?);
        Ok(())
    })
}

/// Ends the group. Never blocks. On all ranks, steps that wait return, and calls return `NMC_ERR_CANCELLED`, at once.
/// On CUDA heaps the word is stored by a stream of the library, and kernels of all ranks that wait see it; a peer's
/// calls return the error after the first kernel that has seen it. A group that is over already is left alone.
///
/// Thread-safe. Graph-safe: takes effect at once, also during a capture. Statuses: `NMC_ERR_BAD_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_ep_abort(ep: *mut nmc_ep_t) -> nmc_status_t {
    guard(|| {
        with(ep, |ep| {
            ep.abort();
            Ok(())
        })
    })
}

/// Returns whether the group works: `NMC_OK`, or the error that ended it, whichever rank found it. It also looks for
/// ranks that died; kernels that wait for them then return soon. It does not wait for streams, so errors of work that
/// is still under way do not show yet.
///
/// Thread-safe. Graph-safe. Statuses: those that end a group, see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_ep_check(ep: *const nmc_ep_t) -> nmc_status_t {
    guard(|| with(ep, |ep| ep.check()))
}

/// Begins a group of calls on this thread: calls for several ranks of this process up to `nmc_ep_group_end` go out
/// together, on a GPU in one launch a step. On host heaps this is how one thread serves several ranks.
///
/// Graph-safe. Thread-safe: a group belongs to the thread that begins it. Statuses: `NMC_ERR_INVALID_ARG` if it has begun one.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_ep_group_begin() -> nmc_status_t {
    guard(|| handle::enter().and_then(|()| call_group::begin()))
}

/// Ends a group of calls: those of ranks of one expert-parallel group, on one stream and device, go out together, others one after
/// the other. Errors that calls find only when they go out are returned here; calls that could not go out before an error are
/// dropped. On the thread that began the group.
///
/// Graph-safe. One thread: that of `nmc_ep_group_begin`. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_ep_group_end() -> nmc_status_t {
    guard(|| handle::enter().and_then(|()| call_group::end()))
}

/// # Safety
/// `args` is NULL or what the C contract says, and so is the memory that it names.
unsafe fn dispatch_of(args: *const nmc_ep_dispatch_t, halves: u32) -> Result<Dispatch> {
    // SAFETY: forwarded from the caller.
    let a = unsafe { super::config::read(args) }?;
    if a.reserved != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "the reserved field of nmc_ep_dispatch_t is {:#x} and not zero", a.reserved);
    }
    if a.idx_is_64 > 1 {
        crate::bail!(NMC_ERR_INVALID_ARG, "idx_is_64 is {}; it must be 0 (int32) or 1 (int64)", a.idx_is_64);
    }
    // SAFETY: forwarded from the caller.
    unsafe {
        Ok(Dispatch {
            layer: a.layer,
            x: Given::new(a.x),
            scales: Given::new(a.scales.cast()),
            idx: Given::new(a.topk_idx),
            idx_64: a.idx_is_64 != 0,
            weight: Given::new(a.topk_w),
            tokens: a.n_tokens,
            tokens_at: Given::new(a.n_tokens_ptr.cast()),
            halves,
        })
    }
}

/// Sends this rank's tokens to the ranks of their experts, and waits for those that come here. A rank without tokens takes
/// part with `n_tokens` 0.
///
/// On CUDA heaps only enqueues; graph-safe. What only the GPU can see (expert numbers out of range, too many tokens in
/// `n_tokens_ptr`, a peer at another layer) ends the group: `nmc_ep_check`. Statuses: `NMC_ERR_LIMIT` (more tokens than
/// `t_cap`; nothing was sent), and see `nmc_ep_t`.
/// One thread at a time for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_dispatch(
    ep: *mut nmc_ep_t,
    args: *const nmc_ep_dispatch_t,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of `args`.
    guard(|| with(ep, |ep| ep.dispatch(&unsafe { dispatch_of(args, BOTH) }?, stream)))
}

/// The first half of a dispatch: sends, does not wait. Own work can run until `nmc_ep_dispatch_recv`.
///
/// On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_dispatch_send(
    ep: *mut nmc_ep_t,
    args: *const nmc_ep_dispatch_t,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of `args`.
    guard(|| with(ep, |ep| ep.dispatch(&unsafe { dispatch_of(args, SEND) }?, stream)))
}

/// The second half of a dispatch: waits for what comes here.
///
/// On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_dispatch_recv(ep: *mut nmc_ep_t, layer: u32, stream: *mut c_void) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    let nothing = Dispatch { layer, halves: RECV, ..Dispatch::default() };
    guard(|| with(ep, |ep| ep.dispatch(&nothing, stream)))
}

/// Where the rows that a dispatch of `layer` brings are. The same for all layers of a buffer set: it can be asked once,
/// before anything is sent. Thread-safe. Graph-safe.
///
/// Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_recv_buffers(
    ep: *const nmc_ep_t,
    layer: u32,
    out_buffers: *mut nmc_ep_recv_buffers_t,
) -> nmc_status_t {
    guard(|| {
        let r = with(ep, |ep| ep.recv_buffers(layer))?;
        let buffers = nmc_ep_recv_buffers_t {
            record_stride: r.record_stride,
            x: r.x as *const c_void,
            scales: r.scales as *const f32,
            local_eid: r.eid as *const i16,
            weights: r.weight as *const c_void,
            records: r.record as *const c_void,
            y: r.y as *mut c_void,
            ..Default::default()
        };
        // SAFETY: the C contract of `out_buffers`.
        unsafe { put_struct(out_buffers, buffers) }
    })
}

/// What a kernel of the engine needs to take part in a step of `layer` (nanomc/ep.cuh). Thread-safe. Graph-safe: the
/// struct can be baked into a graph. Statuses: `NMC_ERR_UNSUPPORTED` for groups on host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_device(
    ep: *const nmc_ep_t,
    layer: u32,
    out_device: *mut crate::layout::ep::nmc_ep_rank_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_device.cast::<RankDesc>(), "out_device")?;
        slot.write(with(ep, |ep| ep.device_desc(layer))?);
        Ok(())
    })
}

/// Groups the rows that came by expert: `grouped->x[g][r]` in ascending order of slot, then entry, as masked grouped
/// products take them. With `grouped->x` NULL writes the lists alone.
///
/// On CUDA heaps only enqueues; graph-safe. Rows that do not fit `max_m` and the spill groups are counted
/// (`overflow_rows` of `nmc_ep_stats`) and left out of the sums of `nmc_ep_scatter`; with the default `max_m` there are none,
/// unless a token names an expert twice.
/// One thread at a time for a handle. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_route_pack(
    ep: *mut nmc_ep_t,
    layer: u32,
    grouped: *const nmc_ep_grouped_t,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        // SAFETY: the C contract of `grouped`, and of the memory that it names.
        let grouped = unsafe {
            let g = super::config::read(grouped)?;
            Grouped {
                x: Given::new(g.x),
                scales: Given::new(g.scales.cast()),
                masked_m: Given::new(g.masked_m.cast()),
                group_expert: Given::new(g.group_expert.cast()),
                row_of: Given::new(g.row_of.cast()),
                row_index: Given::new(g.row_index.cast()),
            }
        };
        with(ep, |ep| ep.pack(layer, &grouped, stream))
    })
}

/// Sums the weighted rows of each token that came: `y[slot] = sum over entries of weight * y_grouped[row_of]`, in fp32 in
/// the order of entries, rounded once. `y_recv` NULL puts the rows where `nmc_ep_combine` needs no copy, and their owners may
/// fetch them from then on: nothing may change them any more. To change them first, give the address that `nmc_ep_recv_buffers`
/// has for `y`: the rows go to the same place, and the combine lets the owners fetch them.
///
/// On CUDA heaps only enqueues; graph-safe.
/// One thread at a time for a handle. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_scatter(
    ep: *mut nmc_ep_t,
    layer: u32,
    y_grouped: *const c_void,
    row_of: *const i32,
    y_recv: *mut c_void,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of these.
    let (grouped, row_of, y) = unsafe { (Given::new(y_grouped), Given::new(row_of.cast()), Given::new(y_recv)) };
    guard(|| with(ep, |ep| ep.scatter(layer, grouped, row_of, y, stream)))
}

/// Returns the rows of all slots that came to their owners, and sums what comes back for own tokens into
/// `out[n_tokens][hidden]`: in fp32 in the order of ranks, rounded once. `y_recv` NULL, or `nmc_ep_recv_buffers_t.y`, means that
/// the rows are in place. Tokens that went nowhere get zeros.
///
/// On CUDA heaps only enqueues; graph-safe. Statuses: `NMC_ERR_LIMIT` (steps of two buffer sets are on two streams, and cannot be
/// resident at once; nothing was returned), and see `nmc_ep_t`.
/// One thread at a time for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_combine(
    ep: *mut nmc_ep_t,
    layer: u32,
    y_recv: *const c_void,
    out: *mut c_void,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of these.
    let (y, out) = unsafe { (Given::new(y_recv), Given::new(out)) };
    guard(|| with(ep, |ep| ep.combine(layer, y, out, BOTH, stream)))
}

/// The first half of a combine: returns rows, does not wait.
///
/// On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_combine_send(
    ep: *mut nmc_ep_t,
    layer: u32,
    y_recv: *const c_void,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of `y_recv`.
    let y = unsafe { Given::new(y_recv) };
    guard(|| with(ep, |ep| ep.combine(layer, y, Given::NONE, SEND, stream)))
}

/// The second half of a combine: waits for what comes back, and sums it.
///
/// On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_combine_recv(
    ep: *mut nmc_ep_t,
    layer: u32,
    out: *mut c_void,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of `out`.
    let out = unsafe { Given::new(out) };
    guard(|| with(ep, |ep| ep.combine(layer, Given::NONE, out, RECV, stream)))
}

/// A product as the engine's callback takes it.
fn gemm_of(ep: &Ep, gemm: &Gemm) -> nmc_ep_gemm_t {
    let expected = ep.shape.slots() * u64::from(ep.shape.top_k) / u64::from(ep.shape.experts);
    nmc_ep_gemm_t {
        struct_size: u32::try_from(size_of::<nmc_ep_gemm_t>()).unwrap_or(0),
        which: gemm.which,
        a: gemm.a.address() as *const c_void,
        a_scales: gemm.a_scales.address() as *const f32,
        b: gemm.b.address() as *const c_void,
        c: gemm.c.address() as *mut c_void,
        masked_m: gemm.masked_m.address() as *const i32,
        group_expert: gemm.group_expert.address() as *const i32,
        groups: ep.shape.groups(),
        max_m: ep.shape.max_m,
        n: gemm.n,
        k: gemm.k,
        expected_m: u32::try_from(expected.max(1)).unwrap_or(u32::MAX),
        reserved: 0,
    }
}

/// A whole layer: dispatch, pack, product with `w13`, silu(gate) * up, product with `w2`, scatter, combine.
///
/// The products are those of the callback, which enqueues them on the stream, or built in. On CUDA heaps only enqueues;
/// graph-safe if the callback is. Not between `nmc_ep_group_begin` and `_end`. What fails after the dispatch, such as the callback,
/// aborts the group (`nmc_ep_abort`), since the others already wait for this rank; arguments are checked before. Statuses:
/// `NMC_ERR_UNSUPPORTED` (built-in product on a GPU with other rows than bf16), `NMC_ERR_NO_MEMORY` (on host heaps; nothing was
/// sent), what the callback returns, and see `nmc_ep_t`.
/// One thread at a time for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_moe_forward(
    ep: *mut nmc_ep_t,
    dispatch: *const nmc_ep_dispatch_t,
    moe: *const nmc_ep_moe_t,
    stream: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        // SAFETY: the C contract of these arguments.
        let (dispatch, moe) = unsafe { (dispatch_of(dispatch, BOTH)?, super::config::read(moe)?) };
        if moe.reserved != 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "the reserved field of nmc_ep_moe_t is {:#x} and not zero", moe.reserved);
        }
        // SAFETY: the C contract of `moe`.
        let [w13, w2, out] = [moe.w13, moe.w2, moe.out].map(|ptr| unsafe { Given::new(ptr) });
        // SAFETY: as above.
        let workspace = unsafe { Workspace::new(moe.workspace, moe.workspace_bytes) };
        with(ep, |ep| {
            let callback = moe.gemm.map(|function| {
                move |gemm: &Gemm| -> Result<()> {
                    let gemm = gemm_of(ep, gemm);
                    // SAFETY: the engine's function, called as its type says.
                    match unsafe { function(moe.gemm_user, &raw const gemm, stream) } {
                        NMC_OK => Ok(()),
                        status @ 1.. => crate::bail!(
                            NMC_ERR_INVALID_ARG,
                            "the callback for product {} returned {status}, which is neither NMC_OK nor an error",
                            gemm.which
                        ),
                        status => Err(Error::new(status, format!("the callback for product {} failed", gemm.which))),
                    }
                }
            });
            let layer =
                Layer { dispatch, w13, w2, inner: moe.inner, workspace, out, gemm: callback.as_ref().map(|f| f as _) };
            // SAFETY: the C contract of `stream`.
            forward::forward(ep, &layer, unsafe { GivenStream::new(stream) })
        })
    })
}

/// Copies what was counted since the group was created: `out_expert_load[experts]`, the tokens that this rank sent to
/// each expert; `out_waited_ns[ranks of the group]`, the time spent waiting for each rank (on a GPU without waits of a
/// few us); `*out_overflow_rows`, rows that did not fit the grouped layout. Each may be NULL. Does not wait for
/// streams: steps that are under way may be counted or not.
///
/// Thread-safe. Not graph-safe on CUDA heaps (copies on a stream of the library). Statuses: `NMC_ERR_NO_MEMORY`, and
/// see `nmc_ep_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_ep_stats(
    ep: *const nmc_ep_t,
    out_expert_load: *mut u64,
    out_waited_ns: *mut u64,
    out_overflow_rows: *mut u64,
) -> nmc_status_t {
    guard(|| {
        let counts = with(ep, |ep| ep.counts())?;
        for (to, from, name) in [
            (out_expert_load, &counts.expert_load, "out_expert_load"),
            (out_waited_ns, &counts.waited_ns, "out_waited_ns"),
        ] {
            if !to.is_null() {
                // SAFETY: the C contract of these arrays.
                unsafe { array_out(to, from.len(), name)? }.copy_from_slice(from);
            }
        }
        if let Some(slot) = super::optional_out(out_overflow_rows, "out_overflow_rows")? {
            slot.write(counts.overflow_rows);
        }
        Ok(())
    })
}
