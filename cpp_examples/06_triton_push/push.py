#!/usr/bin/env python3
"""Writes objects of a nanomc store from inside Triton kernels, publishes them there, and reads them with another one.

usage: push.py [--library PATH/libnanomc.so] [--publish kernel|stream] [--mib N]

Exits with 0 when every byte is right, 1 when not, and 77 when there is no torch, no Triton, no cffi or no GPU.
"""

import argparse
import os
import sys


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libnanomc.so; by default the one of the package, or of target/release")
    parser.add_argument("--publish", choices=["kernel", "stream"], default="kernel")
    parser.add_argument("--mib", type=int, default=32, help="size of the values whose speed is measured")
    return parser.parse_args()


given = arguments()
if given.library:
    os.environ["NMC_LIBRARY"] = given.library  # before nanomc is imported
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))  # if it is not installed
try:
    import torch
    import triton
    import triton.language as tl

    import nanomc
    from nanomc import triton as nt
except ImportError as missing:
    skip(missing)


# ---- kernels ----------------------------------------------------------------------------------------------------------------


@triton.jit
def store_pages(src, n_elems, elems_per_page, payload, page_bytes, state, counter, PUBLISH: tl.constexpr):
    """Program i stores page i of a value, and the last one to arrive publishes it. Without a world there are no other ranks: both
    ranks are 0, and nobody looks at the table of heap bases."""
    page = tl.program_id(0)
    first = page.to(tl.int64) * elems_per_page
    nt.kv_store_page_from_src(src + first, n_elems - first, payload, page, page_bytes, 0, 0, state, True)
    if PUBLISH:
        nt.kv_commit_ready_last(state, counter, tl.num_programs(0), 0, 0, state)


@triton.jit
def count_wrong(payload, expected, n_bytes, wrong, TILE: tl.constexpr):
    """Counts the bytes that differ."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    seen = tl.load(tl.cast(payload, tl.pointer_type(tl.uint8)) + at, mask=at < n_bytes, other=0)
    want = tl.load(expected + at, mask=at < n_bytes, other=0)
    bad = tl.sum((seen != want).to(tl.int32), axis=0)
    if bad > 0:
        tl.atomic_add(wrong, bad)


# ---- the example ------------------------------------------------------------------------------------------------------------


def push(store, key, tensor, counter):
    """Stores a contiguous tensor as object `key`; it is published when the stream gets there. Returns the plan."""
    # One run of pages, so that payload_device is the address of all of them.
    plan = store.open_for_write(key, tensor.nbytes, contiguous=True)
    info = plan.info
    store_pages[(info.n_pages,)](
        tensor, tensor.numel(), info.page_bytes // tensor.element_size(), info.payload_device, info.page_bytes,
        nt.publish_state(plan), counter, PUBLISH=given.publish == "kernel", num_warps=8)
    if given.publish == "stream":
        plan.commit_async(torch.cuda.current_stream())
    return plan


def verify(store, key, tensor, wrong):
    """Waits for the object, pins it, and compares it in place with a kernel."""
    store.wait_ready(key, timeout_ms=10_000)
    view = store.pin(key)
    expected = tensor.reshape(-1).view(torch.uint8)
    if view.nbytes != expected.numel():
        sys.exit(f"FAIL {key}: {view.nbytes} bytes, not {expected.numel()}")
    count_wrong[(triton.cdiv(view.nbytes, 4096),)](view.info.data_device, expected, view.nbytes, wrong, TILE=4096)
    store.unpin_async(view, torch.cuda.current_stream())  # when the kernel has read


def speed(cache, counter, mib):
    """GB/s of the kernel of `nanomc.triton.push` and of `copy_`, and what the objects must be. Plans are opened before, one launch is for
    warming up, and the others are enqueued while the GPU sleeps, so that the time between two events is not that of Python."""
    source = torch.randint(0, 256, (mib << 20,), dtype=torch.uint8, device="cuda")
    target = torch.empty((8, source.numel()), dtype=torch.uint8, device="cuda")
    names = [f"speed/{i}" for i in range(9)]
    plans = [cache.open_for_write(name, source.numel()) for name in names]
    states = [nt.publish_state(plan) for plan in plans]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def push_one(i):
        nt.push_pages[(plans[i].n_pages, 8)](
            source, source.numel(), plans[i].payload_ptr, plans[i].page_bytes, states[i], counter, states[i], src_rank=0, dst_rank=0,
            num_warps=8)

    def rate(body):
        body(0)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # cycles, about 10 ms
        begin.record()
        for i in range(1, 9):
            body(i)
        end.record()
        torch.cuda.synchronize()
        return 8 * source.numel() / begin.elapsed_time(end) / 1e6

    ours, copy = rate(push_one), rate(lambda i: target[i % 8].copy_(source))
    for name in names:
        cache.commit(name)
    return ours, copy, {name: source for name in names}


def main():
    if not torch.cuda.is_available():
        skip("no GPU")
    torch.zeros(1, device="cuda")
    page = 256 << 10
    with nanomc.NanoKVCache((given.mib << 20) * 11 + (256 << 20), page_bytes=page, rank=0, world_size=1) as cache:
        store = cache.store
        counter, wrong = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
        # Sizes with every kind of tail, KV-like tensors, and one that begins at an odd address.
        tensors = [torch.randint(0, 256, (n,), dtype=torch.uint8, device="cuda")
                   for n in (1, 15, 16, 17, page - 1, page, page + 1, 3 * page + 5, (8 << 20) + 3)]
        tensors += [torch.randn(shape, device="cuda").to(torch.bfloat16)
                    for shape in ((2, 16, 8, 128), (61, 577), (2, 2048, 8, 128))]
        tensors.append(torch.randint(0, 256, (2 * page + 9,), dtype=torch.uint8, device="cuda")[1:])
        plans = [push(store, f"kv/{i}", tensor, counter) for i, tensor in enumerate(tensors)]
        for i, tensor in enumerate(tensors):
            verify(store, f"kv/{i}", tensor, wrong)
        torch.cuda.synchronize()
        for plan in plans:
            plan.commit()  # only tells what became of it
        by = "a Triton kernel" if given.publish == "kernel" else "the stream after a Triton kernel"
        print(f"{len(tensors)} objects pushed and published by {by}, verified in place by another: {wrong.item()} wrong bytes")
        ours, copy, objects = speed(cache, counter, given.mib)
        for name, tensor in objects.items():
            verify(store, name, tensor, wrong)
        torch.cuda.synchronize()
        print(f"push and publish of {given.mib} MiB: {ours:.0f} GB/s; torch copy_: {copy:.0f} GB/s")
        if wrong.item() != 0 or counter.item() != 0:
            print(f"FAIL {wrong.item()} wrong bytes, counter {counter.item()}")
            return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
