"""Device functions for Triton kernels that store, publish, wait for, pin and read objects; and two kernels that use them.

    kv_store_page_from_src   a page of a value into its owner's memory, clamped to the page and to the value
    kv_commit_ready          publishes: everything that the program stored is visible to the whole system first
    kv_commit_ready_last     the same by the last program of a grid
    kv_wait_ready            waits for a publication and acquires
    kv_pin, kv_unpin         a pin from inside a kernel
    kv_read_remote           bytes of an object into own memory
    peer_ptr                 an address in a rank's heap, through the world's table of bases

Objects are reached where this process has them mapped: `payload_ptr` is what a plan, a location or a view says. With `in_heap` it is
an offset in the heap of a rank instead, the same in every process, and `heap_bases_ptr` (`World.base_table().device`) makes it an
address. Ranks are device ranks there.

Words are published with a fence and a store, never with an atomic: they lie in host memory, on which a GPU must not do
read-modify-write. What to publish is a small tensor, {address of the word, value}, so that captured graphs can be launched again
with other objects: `publish_state` makes one for a plan, `word_state` for a control word of a world.
"""

# Triton reads the annotations of its functions: no `from __future__ import annotations` here.
from typing import Any

import torch
import triton
import triton.language as tl

# Thread 0 alone, after everything that is ordered before it: fence, then the word.
_PUBLISH = tl.constexpr("""
{
    .reg .pred %first;
    .reg .u32 %thread;
    mov.u32 %thread, %tid.x;
    setp.eq.u32 %first, %thread, 0;
    @%first fence.acq_rel.sys;
    @%first st.relaxed.sys.u64 [$1], $2;
    mov.u32 $0, %thread;
}
""")

# Every thread: 0 when the word at $1 is $2, 2 after $3 nanoseconds.
_WAIT = tl.constexpr("""
{
    .reg .pred %ready;
    .reg .pred %early;
    .reg .u64 %seen;
    .reg .u64 %start;
    .reg .u64 %now;
    .reg .u32 %code;
    mov.u32 %code, 0;
    mov.u64 %start, %globaltimer;
again:
    ld.acquire.sys.u64 %seen, [$1];
    setp.eq.u64 %ready, %seen, $2;
    @%ready bra done;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, $3;
    @%early bra again;
    mov.u32 %code, 2;
done:
    mov.u32 $0, %code;
}
""")

# Every thread stores the same pin; 0 if the object of this epoch is being written or ready ($3) and published ($4), else 1.
_PIN = tl.constexpr("""
{
    .reg .pred %good;
    .reg .u64 %control;
    .reg .u64 %word;
    .reg .u32 %code;
    .reg .u32 %more;
    st.release.sys.u64 [$1], $2;
    fence.sc.sys;
    ld.acquire.sys.u64 %control, [$3];
    shr.u64 %word, %control, 8;
    setp.eq.u64 %good, %word, $5;
    selp.u32 %code, 0, 1, %good;
    and.b64 %word, %control, 15;
    sub.u64 %word, %word, 1;
    setp.lt.u64 %good, %word, 2;
    selp.u32 %more, 0, 1, %good;
    or.b32 %code, %code, %more;
    ld.acquire.sys.u64 %word, [$4];
    setp.eq.u64 %good, %word, $5;
    selp.u32 %more, 0, 1, %good;
    or.b32 %code, %code, %more;
    mov.u32 $0, %code;
}
""")


# ---- device functions -----------------------------------------------------------------------------------------------------


@triton.jit
def peer_ptr(offset, rank, heap_bases_ptr):
    """Address of byte `offset` in the heap of `rank` (a device rank), in this process. The table is a tensor or an address."""
    bases = tl.cast(heap_bases_ptr, tl.pointer_type(tl.int64))
    return tl.cast(tl.load(bases + rank) + offset, tl.pointer_type(tl.uint8))


@triton.jit
def _bytes_at(address, rank, heap_bases_ptr, in_heap: tl.constexpr):
    if in_heap:
        return peer_ptr(address, rank, heap_bases_ptr)
    else:
        return tl.cast(address, tl.pointer_type(tl.uint8))


@triton.jit
def kv_copy_bytes(dst, src, n_bytes, use_cg: tl.constexpr, TILE: tl.constexpr = 2048):
    """Copies `n_bytes` bytes with one program, in 16-byte vectors where both addresses allow it. Touches no byte outside."""
    to = tl.cast(dst, tl.pointer_type(tl.uint8))
    at = tl.cast(src, tl.pointer_type(tl.uint8))
    done = n_bytes * 0
    if ((to.to(tl.int64) | at.to(tl.int64)) & 15) == 0:
        # New values, which are aligned: a hint on the old ones would hold outside of the branch as well.
        to4 = tl.multiple_of(tl.cast(to.to(tl.int64) // 16 * 16, tl.pointer_type(tl.int32)), 16)
        at4 = tl.multiple_of(tl.cast(at.to(tl.int64) // 16 * 16, tl.pointer_type(tl.int32)), 16)
        words = n_bytes // 16 * 4
        for first in range(0, words, TILE):
            i = first + tl.arange(0, TILE)
            if use_cg:
                part = tl.load(at4 + i, mask=i < words, cache_modifier=".cg")
            else:
                part = tl.load(at4 + i, mask=i < words)
            tl.store(to4 + i, part, mask=i < words)
        done = words * 4
    for first in range(done, n_bytes, TILE):
        i = first + tl.arange(0, TILE)
        if use_cg:
            piece = tl.load(at + i, mask=i < n_bytes, cache_modifier=".cg")
        else:
            piece = tl.load(at + i, mask=i < n_bytes)
        tl.store(to + i, piece, mask=i < n_bytes)


@triton.jit
def kv_store_page_from_src(src_ptr, n_elems, payload_ptr, page_idx, page_bytes, src_rank: tl.constexpr, dst_rank: tl.constexpr,
                           heap_bases_ptr, use_cg: tl.constexpr, in_heap: tl.constexpr = False):
    """One program stores page `page_idx` of a value: `src_ptr` points to the first element of the page, `n_elems` elements of the
    value are left from there on. Stores a page, or what is left if that is less. `src_rank` is who stores; it is for the reader."""
    size: tl.constexpr = src_ptr.dtype.element_ty.primitive_bitwidth // 8
    left = tl.cast(n_elems, tl.int64) * size
    mine = tl.minimum(left, page_bytes).to(tl.int32)
    payload = _bytes_at(payload_ptr, dst_rank, heap_bases_ptr, in_heap)
    kv_copy_bytes(payload + tl.cast(page_idx, tl.int64) * page_bytes, src_ptr, mine, use_cg)


@triton.jit
def kv_commit_ready(header_state_ptr, src_rank: tl.constexpr, dst_rank: tl.constexpr, heap_bases_ptr):
    """Publishes what this program has stored: release at system scope. For a value that one program stores alone.
    `header_state_ptr` points to {address of the word, value} (`publish_state`)."""
    tl.debug_barrier()  # all threads of the program have stored
    word = tl.load(header_state_ptr)
    value = tl.load(header_state_ptr + 1)
    tl.inline_asm_elementwise(_PUBLISH, "=r,l,l", [word, value], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def kv_commit_ready_last(header_state_ptr, counter_ptr, n_programs, src_rank: tl.constexpr, dst_rank: tl.constexpr, heap_bases_ptr):
    """The same for a value that `n_programs` programs store: each calls it after its part, and the last to arrive publishes.
    `counter_ptr` is an int32 in device memory, 0 at first and again afterwards; one launch at a time uses it."""
    tl.debug_barrier()
    before = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    if before == n_programs - 1:
        tl.store(counter_ptr, 0)  # before the publication: whoever sees that may launch again
        kv_commit_ready(header_state_ptr, src_rank, dst_rank, heap_bases_ptr)


@triton.jit
def kv_wait_ready(header_state_ptr, timeout_ns):
    """Waits until the word has its value, and acquires: READY_YES (0), or READY_TIMEOUT (2). The programs that wait, and those that
    they wait for, must be resident together."""
    lanes = tl.zeros((32,), dtype=tl.int64)
    word = tl.load(header_state_ptr) + lanes
    value = tl.load(header_state_ptr + 1) + lanes
    code = tl.inline_asm_elementwise(
        _WAIT, "=r,l,l,l", [word, value, timeout_ns + lanes], dtype=tl.int32, is_pure=False, pack=1)
    found = tl.max(code, axis=0)  # the same for all threads
    tl.debug_barrier()
    return found


@triton.jit
def kv_unpin(pin_ptr):
    """Ends the pin: every read of the program is before it."""
    tl.debug_barrier()
    slot = tl.load(pin_ptr)
    tl.inline_asm_elementwise(_PUBLISH, "=r,l,l", [slot, slot * 0], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def kv_pin(pin_ptr):
    """Pins an object with a slot that the host reserved: 1 if it can be read until `kv_unpin`, 0 if it is gone. `pin_ptr` points to
    what `pin_state` made of `Store.device_pin`. One program at a time uses a slot."""
    lanes = tl.zeros((32,), dtype=tl.int64)
    slot = tl.load(pin_ptr) + lanes
    value = tl.load(pin_ptr + 1) + lanes
    control = tl.load(pin_ptr + 2) + lanes
    published = tl.load(pin_ptr + 3) + lanes
    epoch = tl.load(pin_ptr + 4) + lanes
    code = tl.inline_asm_elementwise(
        _PIN, "=r,l,l,l,l,l", [slot, value, control, published, epoch], dtype=tl.int32, is_pure=False, pack=1)
    gone = tl.max(code, axis=0)
    tl.debug_barrier()  # all threads have stored the pin, before one of them can end it
    if gone != 0:
        kv_unpin(pin_ptr)
    return 1 - gone


@triton.jit
def kv_read_remote(dst_ptr, payload_ptr, n_bytes, my_rank: tl.constexpr, src_rank: tl.constexpr, heap_bases_ptr,
                   in_heap: tl.constexpr = False, TILE: tl.constexpr = 16384):
    """Reads a part of an object into own memory: program i of a one-dimensional grid copies TILE bytes from i * TILE on, clamped to
    `n_bytes`. The object is pinned, or the program has waited for it and nobody removes it."""
    payload = _bytes_at(payload_ptr, src_rank, heap_bases_ptr, in_heap)
    first = tl.program_id(0).to(tl.int64) * TILE
    mine = tl.minimum(tl.maximum(n_bytes - first, 0), TILE).to(tl.int32)
    kv_copy_bytes(tl.cast(dst_ptr, tl.pointer_type(tl.uint8)) + first, payload + first, mine, False)


# ---- kernels --------------------------------------------------------------------------------------------------------------


@triton.jit
def push_pages(src_ptr, n_bytes, payload_ptr, page_bytes, state_ptr, counter_ptr, heap_bases_ptr, src_rank: tl.constexpr,
               dst_rank: tl.constexpr, use_cg: tl.constexpr = True, in_heap: tl.constexpr = False, PARTS: tl.constexpr = 8):
    """Stores a value and publishes it. Grid (n_pages, PARTS): a program has a part of a page, in whole units of 16 bytes."""
    part = (page_bytes // PARTS + 15) // 16 * 16
    begin = tl.program_id(1) * part
    first = tl.program_id(0).to(tl.int64) * page_bytes + begin
    room = tl.minimum(tl.maximum(page_bytes - begin, 0), part)
    mine = tl.minimum(tl.maximum(n_bytes - first, 0), room).to(tl.int32)
    payload = _bytes_at(payload_ptr, dst_rank, heap_bases_ptr, in_heap)
    kv_copy_bytes(payload + first, tl.cast(src_ptr, tl.pointer_type(tl.uint8)) + first, mine, use_cg)
    kv_commit_ready_last(state_ptr, counter_ptr, tl.num_programs(0) * tl.num_programs(1), src_rank, dst_rank, heap_bases_ptr)


@triton.jit
def read_remote(dst_ptr, payload_ptr, n_bytes, heap_bases_ptr, my_rank: tl.constexpr, src_rank: tl.constexpr,
                in_heap: tl.constexpr = False, TILE: tl.constexpr = 16384):
    """`kv_read_remote` as a kernel: grid (cdiv(n_bytes, TILE),)."""
    kv_read_remote(dst_ptr, payload_ptr, n_bytes, my_rank, src_rank, heap_bases_ptr, in_heap, TILE)


# ---- on the host ----------------------------------------------------------------------------------------------------------


def publish_state(plan: Any, device: Any = "cuda") -> torch.Tensor:
    """{address of the publish word, epoch} of a plan of `NanoKVCache` or `Store`, for `kv_commit_ready` and `kv_wait_ready`."""
    if hasattr(plan, "publish_ptr"):
        return word_state(plan.publish_ptr, plan.epoch, device)
    return word_state(plan.info.publish_word_device, plan.info.epoch, device)


def word_state(address: int, value: int, device: Any = "cuda") -> torch.Tensor:
    """The same for any word that the GPU can reach, such as `World.word(...).device_address`."""
    if address == 0:
        raise ValueError("the word has no address on the GPU: the store or the world has no device")
    return torch.tensor([address, value], dtype=torch.int64, device=device)


def pin_state(pin: Any, device: Any = "cuda") -> torch.Tensor:
    """What `Store.device_pin` said, for `kv_pin` and `kv_unpin`. A pin's value may have its highest bit set."""
    words = [pin.slot, pin.value, pin.control, pin.published, pin.epoch, pin.payload, pin.bytes]
    signed = [word - (1 << 64) if word >= 1 << 63 else word for word in words]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def push(plan: Any, tensor: torch.Tensor, counter: torch.Tensor, *, use_cg: bool = True, parts: int = 8) -> None:
    """Stores a contiguous CUDA tensor through a plan of `NanoKVCache` with a kernel, which publishes it, on the current stream.
    `counter` is an int32 tensor with one zero, for one launch at a time. `NanoKVCache.commit` tells what became of it."""
    value = tensor.detach().reshape(-1).view(torch.uint8)
    if value.numel() != plan.bytes_total or not tensor.is_contiguous():
        raise ValueError(f"a contiguous tensor of {plan.bytes_total} bytes is needed, not one of {value.numel()}")
    state = publish_state(plan, tensor.device)
    push_pages[(max(plan.n_pages, 1), parts)](
        value, value.numel(), plan.payload_ptr, plan.page_bytes, state, counter, state, src_rank=0, dst_rank=0, use_cg=use_cg,
        in_heap=False, PARTS=parts, num_warps=8)
