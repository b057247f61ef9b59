#!/usr/bin/env python3
"""Writes objects of a nanomc store from inside a Triton kernel, publishes them there, and reads them with another one.

usage: push.py [--library PATH/libnanomc.so] [--nmc PATH/nmc] [--publish kernel|stream] [--mib N]

Exits with 0 when every byte is right, 1 when not, and 77 when there is no torch, no triton or no GPU.
"""

import argparse
import ctypes
import os
import subprocess
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import torch
except ImportError:
    skip("torch is not installed")
try:
    import triton
    import triton.language as tl
except ImportError:
    skip("triton is not installed")


# ---- nanomc through ctypes: as much of nanomc.h as this example needs -----------------------------------------------

ABI_VERSION = 1
HEAP_CUDA = 2
PUT_CONTIGUOUS = 1
OK = 0


class Slice(Structure):
    _fields_ = [("ptr", c_void_p), ("len", c_size_t)]


class StoreConfig(Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("abi_version", c_uint32), ("heap_bytes", c_uint64), ("heap_offset", c_uint64),
        ("key_slab_bytes", c_uint64), ("page_bytes", c_uint32), ("max_objects", c_uint32), ("pin_slots", c_uint32),
        ("eviction", c_uint32), ("flags", c_uint32), ("master_rank", c_int32), ("high_permille", c_int32),
        ("low_permille", c_int32), ("watchdog_ms", c_int32), ("world_size", c_uint32), ("heap_kind", c_uint32),
        ("device", c_int32), ("attach_timeout_ms", c_int64), ("call_timeout_ms", c_int64), ("reserved", c_uint64 * 4),
    ]


class PutOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("abi_version", c_uint32), ("preferred_segment", c_int32), ("flags", c_uint32),
        ("retain", c_uint32), ("priority", c_uint32), ("ttl_ms", c_uint64), ("metadata", Slice),
        ("metadata_each", c_void_p), ("reserved", c_uint64 * 2),
    ]


class WritePlan(Structure):
    _fields_ = [
        ("key_hash", c_uint64), ("plan_id", c_uint64), ("epoch", c_uint64), ("bytes_total", c_uint64),
        ("payload", c_void_p), ("payload_device", c_void_p), ("header", c_void_p), ("publish_word", c_void_p),
        ("publish_word_device", c_void_p), ("dst_rank", c_uint32), ("page_bytes", c_uint32), ("n_pages", c_uint32),
        ("last_page_bytes", c_uint32), ("n_extents", c_uint32), ("index", c_uint32), ("reserved", c_uint64 * 2),
    ]


class View(Structure):
    _fields_ = [
        ("data", c_void_p), ("data_device", c_void_p), ("bytes", c_uint64), ("epoch", c_uint64),
        ("ready_pages", c_uint32), ("n_extents", c_uint32), ("owner_rank", c_uint32), ("page_bytes", c_uint32),
        ("index", c_uint32), ("slot", c_uint32), ("reserved", c_uint64),
    ]


STRUCTS = {
    "nmc_slice_t": Slice,
    "nmc_store_config_t": StoreConfig,
    "nmc_put_options_t": PutOptions,
    "nmc_write_plan_t": WritePlan,
    "nmc_view_t": View,
}


def store_config(**fields):
    """NMC_STORE_CONFIG_INIT, with some fields set."""
    config = StoreConfig(
        struct_size=ctypes.sizeof(StoreConfig), abi_version=ABI_VERSION, high_permille=-1, low_permille=-1,
        watchdog_ms=-1, heap_kind=1, device=-1, attach_timeout_ms=-1, call_timeout_ms=-1)
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def put_options(flags):
    """NMC_PUT_OPTIONS_INIT, with flags."""
    return PutOptions(
        struct_size=ctypes.sizeof(PutOptions), abi_version=ABI_VERSION, preferred_segment=-1, flags=flags)


def load(path):
    lib = ctypes.CDLL(path)
    lib.nmc_abi_version.restype = c_uint32
    lib.nmc_abi_version.argtypes = []
    lib.nmc_status_name.restype = c_char_p
    lib.nmc_status_name.argtypes = [c_int32]
    lib.nmc_last_error_message.restype = c_char_p
    lib.nmc_last_error_message.argtypes = []
    functions = {
        "nmc_store_create": [c_void_p, POINTER(StoreConfig), POINTER(c_void_p)],
        "nmc_store_destroy": [c_void_p],
        "nmc_store_open_for_write": [c_void_p, Slice, c_uint64, POINTER(PutOptions), POINTER(WritePlan)],
        "nmc_store_commit": [c_void_p, POINTER(WritePlan)],
        "nmc_store_commit_async": [c_void_p, POINTER(WritePlan), c_void_p],
        "nmc_store_wait_ready": [c_void_p, Slice, c_uint32, c_int64],
        "nmc_store_pin": [c_void_p, Slice, POINTER(View)],
        "nmc_store_unpin_async": [c_void_p, POINTER(View), c_void_p],
        "nmc_store_remove": [c_void_p, Slice],
    }
    for name, argtypes in functions.items():
        function = getattr(lib, name)
        function.restype = c_int32
        function.argtypes = argtypes
    if lib.nmc_abi_version() < ABI_VERSION:
        sys.exit(f"{path} speaks version {lib.nmc_abi_version()} of the ABI, this example {ABI_VERSION}")
    return lib


def check_layout(nmc):
    """Compares the structs above with what `nmc abi` prints: "nmc_view_t size 64 align 8", "nmc_view_t.data 0", ..."""
    sizes, offsets = {}, {}
    for line in subprocess.run([nmc, "abi"], check=True, capture_output=True, text=True).stdout.splitlines():
        words = line.split()
        if len(words) == 5 and words[1] == "size" and words[3] == "align":
            sizes[words[0]] = int(words[2])
        elif len(words) == 2 and "." in words[0]:
            offsets[words[0]] = int(words[1])
    for name, struct in STRUCTS.items():
        ours = {f"{name}.{field[0]}": getattr(struct, field[0]).offset for field in struct._fields_}
        theirs = {field: at for field, at in offsets.items() if field.startswith(name + ".")}
        if sizes.get(name) != ctypes.sizeof(struct) or ours != theirs:
            here = ctypes.sizeof(struct)
            sys.exit(f"FAIL {name}: {here} bytes here, {sizes.get(name)} in the library; {ours} and {theirs}")
    print(f"structs agree with {nmc}")


class Store:
    """An embedded store on a CUDA heap."""

    def __init__(self, lib, **fields):
        self.lib, self.handle = lib, c_void_p()
        config = store_config(**fields)
        self.check(lib.nmc_store_create(None, byref(config), byref(self.handle)), "nmc_store_create")

    def check(self, status, what):
        if status != OK:
            name = self.lib.nmc_status_name(status).decode()
            sys.exit(f"FAIL {what}: {name}: {self.lib.nmc_last_error_message().decode()}")

    def call(self, function, *arguments):
        self.check(getattr(self.lib, function)(self.handle, *arguments), function)


def key_of(text):
    """A key as the library takes it, with what keeps its bytes alive."""
    keep = ctypes.create_string_buffer(text.encode(), len(text.encode()))
    return Slice(ctypes.cast(keep, c_void_p), len(text.encode())), keep


class DeviceMemory:
    """Device memory at an address, for torch.as_tensor: no copy."""

    def __init__(self, address, n_bytes):
        self.__cuda_array_interface__ = {
            "shape": (n_bytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3}


def bytes_at(address, n_bytes):
    tensor = torch.as_tensor(DeviceMemory(address, n_bytes), device="cuda")
    if tensor.data_ptr() != address:
        sys.exit("FAIL torch copied memory that it was to use in place")
    return tensor


# ---- kernels --------------------------------------------------------------------------------------------------------

# One thread: everything that is ordered before it becomes visible to the whole system, then the word.
PUBLISH = tl.constexpr("""
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


@triton.jit
def copy_bytes(dst, src, n_bytes, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Copies `n_bytes` bytes (an int32). ALIGNED: both addresses are multiples of 16, so all but the last bytes go in
    16-byte vectors. Every mask counts bytes of this copy: nothing behind the end is read or written."""
    done = 0
    if ALIGNED:
        dst4 = dst.to(tl.pointer_type(tl.int32))
        src4 = src.to(tl.pointer_type(tl.int32))
        words = n_bytes // 16 * 4
        for at in range(0, words, TILE):
            i = at + tl.arange(0, TILE)
            tl.store(dst4 + i, tl.load(src4 + i, mask=i < words), mask=i < words)
        done = words * 4
        i = done + tl.arange(0, 16)
        tl.store(dst + i, tl.load(src + i, mask=i < n_bytes), mask=i < n_bytes)
    else:
        for at in range(0, n_bytes, TILE):
            i = at + tl.arange(0, TILE)
            tl.store(dst + i, tl.load(src + i, mask=i < n_bytes), mask=i < n_bytes)


@triton.jit
def push_pages(src, payload, n_bytes, counter, publish, PAGE: tl.constexpr, PARTS: tl.constexpr,
               IN_KERNEL: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Program (page, part) stores its part of a page; `n_bytes` is the size of the value, and what a part gets is
    clamped to it. The last program to arrive publishes: `publish` holds {address of the publish word, epoch}."""
    PART: tl.constexpr = PAGE // PARTS
    first = tl.program_id(0).to(tl.int64) * PAGE + tl.program_id(1) * PART
    mine = tl.minimum(tl.maximum(n_bytes - first, 0), PART).to(tl.int32)
    copy_bytes(payload + first, src + first, mine, ALIGNED, TILE)
    if IN_KERNEL:
        # All threads of the program have stored, before the one that counts it.
        tl.debug_barrier()
        before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        if before == tl.num_programs(0) * tl.num_programs(1) - 1:
            # For the next launch; before the publication, since whoever sees that may launch it.
            tl.store(counter, 0)
            word = tl.load(publish)
            epoch = tl.load(publish + 1)
            tl.inline_asm_elementwise(PUBLISH, "=r,l,l", [word, epoch], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def count_wrong(payload, expected, n_bytes, wrong, TILE: tl.constexpr):
    """Counts the bytes that differ."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < n_bytes
    seen = tl.load(payload + at, mask=mask, other=0)
    want = tl.load(expected + at, mask=mask, other=0)
    bad = tl.sum((seen != want).to(tl.int32), axis=0)
    if bad > 0:
        tl.atomic_add(wrong, bad)


# ---- the example ----------------------------------------------------------------------------------------------------

PARTS = 8
TILE = 2048


def push(store, key, tensor, counter, in_kernel):
    """Stores a contiguous tensor as object `key`; it is published when the stream gets there. Returns the plan."""
    value = tensor.reshape(-1).view(torch.uint8)
    n_bytes = value.numel()
    name, keep = key_of(key)
    plan = WritePlan()
    # One run of pages, so that payload_device is the address of all of them.
    store.call("nmc_store_open_for_write", name, n_bytes, byref(put_options(PUT_CONTIGUOUS)), byref(plan))
    payload = bytes_at(plan.payload_device, n_bytes)
    publish = torch.tensor([plan.publish_word_device, plan.epoch], dtype=torch.int64, device="cuda")
    push_pages[(plan.n_pages, PARTS)](
        value, payload, n_bytes, counter, publish, PAGE=plan.page_bytes, PARTS=PARTS, IN_KERNEL=in_kernel,
        ALIGNED=value.data_ptr() % 16 == 0, TILE=TILE, num_warps=8)
    if not in_kernel:
        store.call("nmc_store_commit_async", byref(plan), torch.cuda.current_stream().cuda_stream)
    del keep
    return plan


def verify(store, key, tensor, wrong):
    """Waits for the object, pins it, and compares it in place with a kernel."""
    value = tensor.reshape(-1).view(torch.uint8)
    name, keep = key_of(key)
    store.call("nmc_store_wait_ready", name, 0, 10000)
    view = View()
    store.call("nmc_store_pin", name, byref(view))
    if view.bytes != value.numel() or view.n_extents != 1:
        sys.exit(f"FAIL {key}: {view.bytes} bytes in {view.n_extents} extents, not {value.numel()} in one")
    in_place = bytes_at(view.data_device, view.bytes)
    count_wrong[(triton.cdiv(view.bytes, 4096),)](in_place, value, view.bytes, wrong, TILE=4096, num_warps=4)
    # The stream ends the pin when the kernel has read.
    store.call("nmc_store_unpin_async", byref(view), torch.cuda.current_stream().cuda_stream)
    del keep


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=os.path.join(here, "../../target/release/libnanomc.so"))
    parser.add_argument("--nmc", help="the nmc program, to compare struct layouts with")
    parser.add_argument("--publish", choices=["kernel", "stream"], default="kernel")
    parser.add_argument("--mib", type=int, default=32, help="size of the values whose speed is measured")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        skip("no GPU")
    if arguments.nmc:
        check_layout(arguments.nmc)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    lib = load(arguments.library)
    in_kernel = arguments.publish == "kernel"
    n_speed, speed_bytes = 8, arguments.mib << 20
    store = Store(
        lib, heap_bytes=(n_speed + 3) * speed_bytes + (256 << 20), page_bytes=256 << 10, heap_kind=HEAP_CUDA,
        device=torch.cuda.current_device())
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    wrong = torch.zeros(1, dtype=torch.int32, device="cuda")

    # Sizes with every kind of tail, KV-like tensors, and one that begins at an odd address.
    generator = torch.Generator(device="cuda").manual_seed(1)
    page = 256 << 10
    tensors = [torch.randint(0, 256, (n,), dtype=torch.uint8, device="cuda", generator=generator)
               for n in (1, 15, 16, 17, page - 1, page, page + 1, 3 * page + 5, (8 << 20) + 3)]
    tensors += [torch.randn(shape, device="cuda", generator=generator).to(torch.bfloat16)
                for shape in ((2, 16, 8, 128), (61, 577), (2, 2048, 8, 128))]
    tensors.append(torch.randint(0, 256, (2 * page + 9,), dtype=torch.uint8, device="cuda", generator=generator)[1:])
    plans = [push(store, f"kv/{i}", tensor, counter, in_kernel) for i, tensor in enumerate(tensors)]
    for i, tensor in enumerate(tensors):
        verify(store, f"kv/{i}", tensor, wrong)
    torch.cuda.synchronize()
    for plan in plans:
        store.call("nmc_store_commit", byref(plan))  # only tells what became of it
    if wrong.item() != 0 or counter.item() != 0:
        print(f"FAIL {wrong.item()} wrong bytes, counter {counter.item()}")
        return 1
    print(f"{len(tensors)} objects pushed and published by "
          f"{'a Triton kernel' if in_kernel else 'the stream after a Triton kernel'}, verified in place by another: OK")

    # Speed of the kernel alone: plans are opened before, one launch is for warming up, and the others are all enqueued
    # while the GPU sleeps, so that the time between two events is not that of Python.
    source = torch.randint(0, 256, (speed_bytes,), dtype=torch.uint8, device="cuda", generator=generator)
    names = [key_of(f"speed/{i}") for i in range(n_speed + 1)]
    opened = [WritePlan() for _ in names]
    for (name, _), plan in zip(names, opened):
        store.call("nmc_store_open_for_write", name, speed_bytes, byref(put_options(PUT_CONTIGUOUS)), byref(plan))
    payloads = [bytes_at(plan.payload_device, speed_bytes) for plan in opened]
    publishes = [torch.tensor([plan.publish_word_device, plan.epoch], dtype=torch.int64, device="cuda")
                 for plan in opened]
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for i, (plan, payload, publish) in enumerate(zip(opened, payloads, publishes)):
        if i == 1:
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)  # cycles, about 10 ms
            begin.record()
        push_pages[(plan.n_pages, PARTS)](
            source, payload, speed_bytes, counter, publish, PAGE=plan.page_bytes, PARTS=PARTS, IN_KERNEL=in_kernel,
            ALIGNED=True, TILE=TILE, num_warps=8)
        if not in_kernel:
            store.call("nmc_store_commit_async", byref(plan), torch.cuda.current_stream().cuda_stream)
    end.record()
    torch.cuda.synchronize()
    ours = begin.elapsed_time(end) / n_speed
    copies = []
    for _ in range(2):  # the first one warms up
        torch.cuda._sleep(20_000_000)
        begin.record()
        for payload in payloads[1:]:
            payload.copy_(source)
        end.record()
        torch.cuda.synchronize()
        copies.append(begin.elapsed_time(end) / n_speed)
    rate, base = speed_bytes / ours / 1e6, speed_bytes / copies[-1] / 1e6
    print(f"push and publish of {arguments.mib} MiB: {rate:.0f} GB/s; "
          f"torch copy_ between the same memories: {base:.0f} GB/s")
    for plan in opened:
        store.call("nmc_store_commit", byref(plan))
    for i in range(n_speed + 1):
        verify(store, f"speed/{i}", source, wrong)
    torch.cuda.synchronize()
    if wrong.item() != 0:
        print(f"FAIL {wrong.item()} wrong bytes")
        return 1
    store.check(lib.nmc_store_destroy(store.handle), "nmc_store_destroy")
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
