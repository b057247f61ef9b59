#!/usr/bin/env python3
"""What needs a GPU, with 8 processes on one: tensors, pushes and reads by Triton kernels across processes, pins in kernels, graphs, speed.

    python3 python/tests/gpu/run.py [--ranks 8] [--quick]

Prints a table, and exits with 0 if every line is right, 1 if not, 77 without torch, Triton, cffi or a GPU. Times are of one process while
the others sleep.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2]))

try:
    import _cffi_backend  # noqa: F401  what nanomc needs of cffi
    import torch
    import triton
    import triton.language as tl
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import nanomc  # noqa: E402
from nanomc import bench  # noqa: E402
from nanomc import constants as c  # noqa: E402
from nanomc import triton as nt  # noqa: E402
from nanomc.memory import readable  # noqa: E402

PAGE = 256 << 10
TIMEOUT_MS = 120_000


# ---- kernels that use the device functions as the design does ---------------------------------------------------------------


@triton.jit
def push_by_page(src, n_elems, elems_per_page, payload, page_bytes, state, counter, bases, rank: tl.constexpr, owner: tl.constexpr,
                 use_cg: tl.constexpr, in_heap: tl.constexpr):
    page = tl.program_id(0)
    first = page.to(tl.int64) * elems_per_page
    nt.kv_store_page_from_src(src + first, n_elems - first, payload, page, page_bytes, rank, owner, bases, use_cg, in_heap)
    nt.kv_commit_ready_last(state, counter, tl.num_programs(0), rank, owner, bases)


@triton.jit
def push_one(src, n_elems, payload, page_bytes, state, bases, rank: tl.constexpr, owner: tl.constexpr):
    nt.kv_store_page_from_src(src, n_elems, payload, tl.program_id(0), page_bytes, rank, owner, bases, 1)
    nt.kv_commit_ready(state, rank, owner, bases)


@triton.jit
def wait_and_read(state, dst, payload, n_bytes, bases, out, timeout_ns, rank: tl.constexpr, owner: tl.constexpr, in_heap: tl.constexpr):
    found = nt.kv_wait_ready(state, timeout_ns)
    if found == 0:
        nt.kv_read_remote(dst, payload, n_bytes, rank, owner, bases, in_heap)
    tl.atomic_max(out, found)


@triton.jit
def pin_and_read(pin, dst, n_bytes, out):
    held = nt.kv_pin(pin)
    if held == 1:
        payload = tl.load(pin + 5)
        nt.kv_copy_bytes(dst, tl.cast(payload, tl.pointer_type(tl.uint8)), tl.cast(n_bytes, tl.int32), False)
        nt.kv_unpin(pin)
    tl.store(out, held)


@triton.jit
def push_from_table(src, table, page_bytes, counter, PARTS: tl.constexpr):
    """For graphs: {word, epoch, payload, bytes} are read from `table` by every launch."""
    payload = tl.cast(tl.load(table + 2), tl.pointer_type(tl.uint8))
    n_bytes = tl.load(table + 3)
    nt.push_pages(src, n_bytes, payload, page_bytes, table, counter, table, 0, 0, True, False, PARTS)


# ---- checks -----------------------------------------------------------------------------------------------------------------

KINDS = ["uint8", "int8", "bool", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
         "float8_e4m3fn", "float8_e5m2"]


def random_bytes(n, seed, device="cuda"):
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randint(0, 256, (n,), dtype=torch.uint8, device=device, generator=generator)


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu()


def expect(right, what):
    if not right:
        raise AssertionError(what)


def tensors_of_every_type(cache, ranks):
    """Rank r puts, rank r + 1 gets, bit for bit; CPU and CUDA, contiguous or not."""
    rank, before = cache.rank, (cache.rank - 1) % ranks
    for at, name in enumerate(KINDS):
        values = random_bytes(3 * 5 * 16, 100 * rank + at)
        tensor = (values % 2 if name == "bool" else values).view(getattr(torch, name)).reshape(3, 5, -1)
        cache.put(f"type/{rank}/{name}", tensor if at % 3 else tensor.cpu(), preferred_segment=at % ranks)
    base = random_bytes(64 * 64, rank).reshape(64, 64)
    cache.put(f"columns/{rank}", base.t()[::3])
    cache.world.barrier(TIMEOUT_MS)
    for at, name in enumerate(KINDS):
        values = random_bytes(3 * 5 * 16, 100 * before + at)
        want = (values % 2 if name == "bool" else values).view(getattr(torch, name)).reshape(3, 5, -1)
        got = cache.get(f"type/{before}/{name}")
        expect(got.is_cuda and got.dtype == want.dtype and got.shape == want.shape and torch.equal(raw(got), raw(want)), f"get {name}")
        host = torch.zeros_like(want, device="cpu")
        cache.get_into(f"type/{before}/{name}", host)
        expect(torch.equal(raw(host), raw(want)), f"get_into {name} on the host")
        with cache.pin(f"type/{before}/{name}") as view:
            expect(torch.equal(raw(view.tensor()), raw(want)), f"pin {name}")
    want = random_bytes(64 * 64, before).reshape(64, 64).t()[::3]
    expect(torch.equal(cache.get(f"columns/{before}"), want), "a tensor that is not contiguous")
    return f"{len(KINDS)} types, {ranks} ranks"


def push_and_read(cache, ranks):
    """Kernels push pages into the next rank's memory and publish; the rank after that reads them with a kernel."""
    rank, target = cache.rank, (cache.rank + 1) % ranks
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    bases = cache.world.base_table().device
    sizes = [4, 20, PAGE - 4, PAGE, PAGE + 4, 3 * PAGE + 20, (8 << 20) + 12]
    for at, size in enumerate(sizes):
        plan = cache.open_for_write(f"push/{rank}/{at}", size, preferred_segment=target)
        expect(plan.dst_rank == target, "the owner is the preferred rank")
        source = random_bytes(size, 7 * rank + at).view(torch.float32)
        in_heap = at % 2 == 1
        where = plan.payload_offset if in_heap else plan.payload_ptr
        push_by_page[(plan.n_pages,)](
            source, source.numel(), PAGE // 4, where, PAGE, nt.publish_state(plan), counter, bases, rank=rank, owner=target,
            use_cg=at % 3 != 0, in_heap=in_heap, num_warps=8)
    odd = random_bytes(PAGE + 10, 7 * rank + 90)[1:]  # an address that is not aligned
    plan = cache.open_for_write(f"push/{rank}/odd", odd.numel(), preferred_segment=target)
    nt.push(plan, odd, counter)
    one = random_bytes(1000, 7 * rank + 91).view(torch.bfloat16)
    plan = cache.open_for_write(f"push/{rank}/one", 1000, preferred_segment=target)
    push_one[(1,)](one, one.numel(), plan.payload_ptr, PAGE, nt.publish_state(plan), bases, rank=rank, owner=target)
    torch.cuda.synchronize()
    names = [str(at) for at in range(len(sizes))] + ["odd", "one"]
    for name in names:
        cache.commit(f"push/{rank}/{name}")
    expect(int(counter.item()) == 0, "the counter is back at 0")
    before = (rank - 2) % ranks
    for at, name in enumerate(names):
        key = f"push/{before}/{name}"
        cache.store.wait_ready(key, appear=True, timeout_ms=TIMEOUT_MS)
        with cache.store.pin(key) as view:
            size = view.nbytes
            dst = torch.zeros(size + 64, dtype=torch.uint8, device="cuda")
            nt.read_remote[(triton.cdiv(size, 16384),)](
                dst, view.info.data_device, size, bases, my_rank=rank, src_rank=view.info.owner_rank)
            torch.cuda.synchronize()
        seed = 7 * before + (at if at < len(sizes) else 90 + at - len(sizes))
        want = random_bytes(size + 1, seed)[1:] if name == "odd" else random_bytes(size, seed)
        expect(torch.equal(dst[:size], want) and int(dst[size:].sum()) == 0, f"{key}: other bytes, or bytes behind the end")
    return f"{len(names)} objects a rank, tails and odd addresses"


def publish_and_wait_in_kernels(cache, ranks):
    """A kernel of one process waits for a kernel of another: push into the peer's heap, publish a control word, acquire, read."""
    world, rank, target = cache.world, cache.rank, (cache.rank + 1) % ranks
    size = 100_000
    plan = cache.open_for_write(f"word/{rank}", size, preferred_segment=target)
    offsets = world.word(rank, 8)
    offsets.value = plan.payload_offset + 1
    world.barrier(TIMEOUT_MS)
    before = (rank - 1) % ranks
    arrived, source = world.word(before, 9), world.word(before, 8).value - 1
    dst = torch.zeros(size, dtype=torch.uint8, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    bases = world.base_table().device
    value, nothing = random_bytes(size, 1000 + rank), torch.zeros(size, dtype=torch.uint8, device="cuda")
    mine, other = nt.word_state(world.word(rank, 9).device_address, 77), nt.word_state(world.word(rank, 11).device_address, 77)
    theirs, never = nt.word_state(arrived.device_address, 77), nt.word_state(world.word(rank, 10).device_address, 77)

    def push(what, state):
        push_by_page[(plan.n_pages,)](
            what.view(torch.int32), size // 4, PAGE // 4, plan.payload_offset, PAGE, state, counter, bases, rank=rank, owner=target,
            use_cg=1, in_heap=True, num_warps=8)

    def read(state, timeout_ns):
        wait_and_read[(triton.cdiv(size, 16384),)](
            state, dst, source, size, bases, out, timeout_ns, rank=rank, owner=rank, in_heap=True)

    # Control: a word that nobody publishes. And both kernels are loaded now: loading one may wait for those that run.
    push(nothing, other)
    read(never, 3_000_000_000)
    expect(int(out.item()) == c.READY_TIMEOUT, "a wait for nothing ended early")
    out.zero_()
    torch.cuda.synchronize()
    world.barrier(TIMEOUT_MS)
    waiter, pusher = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(waiter):  # waits first
        read(theirs, 60_000_000_000)
    with torch.cuda.stream(pusher):
        push(value, mine)
    torch.cuda.synchronize()
    expect(int(out.item()) == c.READY_YES, "the wait did not see the publication")
    expect(torch.equal(dst, random_bytes(size, 1000 + before)), "the kernel read other bytes")
    world.barrier(TIMEOUT_MS)
    cache.abort(f"word/{rank}")
    return "kernel to kernel, two processes"


def pins_in_kernels(cache, ranks):
    """A kernel pins, reads and unpins; for an object that is gone it does not read."""
    store, rank = cache.store, cache.rank
    value = random_bytes(50_000, rank)
    cache.put(f"pin/{rank}", value, preferred_segment=(rank + 1) % ranks)
    slot = store.slot_reserve()
    state = nt.pin_state(store.device_pin(slot, f"pin/{rank}"))
    dst, out = torch.zeros_like(value), torch.zeros(1, dtype=torch.int32, device="cuda")
    for _ in range(3):
        dst.zero_()
        pin_and_read[(1,)](state, dst, value.numel(), out)
        expect(int(out.item()) == 1 and torch.equal(dst, value), "a pinned read")
    cache.remove(f"pin/{rank}")
    dst.zero_()
    pin_and_read[(1,)](state, dst, value.numel(), out)
    expect(int(out.item()) == 0 and int(dst.sum()) == 0, "a removed object was read")
    store.slot_release(slot)
    expect(cache.stats()["bytes_total"] > 0, "the store lives")
    return "pin, read, unpin; gone"


def graphs(cache, ranks):
    """A captured push publishes another object with every launch."""
    rank = cache.rank
    size = PAGE + 100
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    table = torch.zeros(4, dtype=torch.int64, device="cuda")
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    def launch():
        push_from_table[(2, 8)](source, table, PAGE, counter, PARTS=8, num_warps=8)

    def fill(key):
        plan = cache.open_for_write(key, size)
        table.copy_(torch.tensor([plan.publish_ptr, plan.epoch, plan.payload_ptr, size], dtype=torch.int64))

    fill(f"graph/{rank}/warm")
    launch()
    torch.cuda.synchronize()
    cache.commit(f"graph/{rank}/warm")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for at in range(4):
        source.copy_(random_bytes(size, at + 50 * rank))
        fill(f"graph/{rank}/{at}")
        graph.replay()
        torch.cuda.synchronize()
        cache.commit(f"graph/{rank}/{at}")
    for at in range(4):
        expect(torch.equal(cache.get(f"graph/{rank}/{at}"), random_bytes(size, at + 50 * rank)), f"launch {at}")
    # The store's own calls on a stream that is captured.
    pinned = cache.store.pin(f"graph/{rank}/1")
    dst = torch.zeros(size, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.store.fetch_async(pinned, [dst], torch.cuda.current_stream())
    graph.replay()
    torch.cuda.synchronize()
    expect(torch.equal(dst, random_bytes(size, 1 + 50 * rank)), "a captured fetch")
    pinned.unpin()
    return "push with 4 launches, fetch"


def streams(cache, ranks):
    """push_async, commit_async, wait_ready_async, fetch_async, unpin_async."""
    store, rank = cache.store, cache.rank
    value = random_bytes(300_000, rank)
    stream = torch.cuda.Stream()
    plan = store.open_for_write(f"stream/{rank}", value.numel())
    torch.cuda.synchronize()
    store.push_async(plan, [value], stream)
    plan.commit_async(stream)
    store.wait_ready_async(f"stream/{rank}", stream)
    stream.synchronize()
    plan.commit()
    view = store.pin(f"stream/{rank}")
    dst = torch.zeros_like(value)
    torch.cuda.synchronize()
    store.fetch_async(view, [dst], stream)
    store.unpin_async(view, stream)
    stream.synchronize()
    expect(torch.equal(dst, value), "what came back")
    return "push, commit, wait, fetch, unpin"


def expert_parallel(cache, ranks):
    """A layer over all processes in a graph: every token comes back as the sum of its weights times itself."""
    tokens, hidden, top_k, experts = 8, 512, 4, 4 * ranks
    config = dict(hidden=hidden, top_k=top_k, experts=experts, t_cap=tokens, heap_offset=cache.heap_used, blocks=8)
    ep = nanomc.Ep(cache.world, **config)
    generator = torch.Generator(device="cuda").manual_seed(cache.rank)
    x = torch.randn(tokens, hidden, device="cuda", generator=generator).to(torch.bfloat16)
    idx = torch.stack([torch.randperm(experts, device="cuda", generator=generator)[:top_k] for _ in range(tokens)])
    w = torch.full((tokens, top_k), 1.0 / top_k, device="cuda")
    need = nanomc.ep_bytes_needed(ranks, **config)
    rows = torch.zeros(need.grouped_x, dtype=torch.uint8, device="cuda")
    masked, group_expert = (torch.zeros(need.masked_m // 4, dtype=torch.int32, device="cuda") for _ in range(2))
    row_of = torch.zeros(need.row_of // 4, dtype=torch.int32, device="cuda")
    row_index = torch.zeros(need.row_index // 4, dtype=torch.int32, device="cuda")
    out = torch.zeros_like(x)

    def layer():
        ep.dispatch(x, idx, w)
        ep.route_pack(x=rows, masked_m=masked, group_expert=group_expert, row_of=row_of, row_index=row_index)
        ep.scatter(rows, row_of)
        ep.combine(out)

    layer()
    torch.cuda.synchronize()
    ep.check()
    expect(torch.allclose(out.float(), x.float(), rtol=0.02, atol=0.02), "a layer")
    cache.world.barrier(TIMEOUT_MS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    ep.check()
    expect(torch.allclose(out.float(), x.float(), rtol=0.02, atol=0.02), "a captured layer")
    cache.world.barrier(TIMEOUT_MS)
    ep.close()
    return f"{tokens} tokens, {experts} experts, captured"


CHECKS = [tensors_of_every_type, push_and_read, publish_and_wait_in_kernels, pins_in_kernels, streams, graphs, expert_parallel]


# ---- speed, in one process ----------------------------------------------------------------------------------------------------


def median(times):
    return sorted(times)[len(times) // 2]


def speed(quick):
    """The design's sweep, and `put` of a CUDA tensor against `copy_` of the same bytes, both synchronised."""
    rounds = 50 if quick else 300
    lines = []
    with nanomc.NanoKVCache(512 << 20, rank=0, world_size=1) as cache:
        source = random_bytes(1 << 20, 1)
        target = torch.empty_like(source)
        stream = torch.cuda.current_stream()
        ours, base, bare, streamed, settled = [], [], [], [], []

        def timed(times, body):
            begin = time.perf_counter()
            body()
            times.append(time.perf_counter() - begin)

        def on_the_stream():
            plan = cache.store.open_for_write("put", source.numel())
            cache.store.push_async(plan, [source], stream)
            plan.commit_async(stream)
            stream.synchronize()
            plan.commit()

        memory = readable(source)
        for at in range(rounds):
            timed(ours, lambda: cache.put("put", source))
            cache.remove("put")
            timed(base, lambda: (target.copy_(source), torch.cuda.synchronize()))
            timed(bare, lambda: cache.store._put_memory(b"put", memory, nanomc._library.NULL))
            cache.remove("put")
            timed(streamed, on_the_stream)
            cache.remove("put")
            timed(settled, stream.synchronize)
        lines.append(f"python.put_cuda.1MiB  put {median(ours) * 1e6:7.1f} us   copy_ {median(base) * 1e6:7.1f} us   "
                     f"ratio {median(base) / median(ours):.2f} (goal 0.85)")
        lines.append(f"  of it the C call {median(bare) * 1e6:.1f} us, waiting for an idle stream {median(settled) * 1e6:.1f} us; "
                     f"plan, push_async and commit_async instead: {median(streamed) * 1e6:.1f} us")
        ours = []
        cache.put("get", source)
        for at in range(rounds):
            begin = time.perf_counter()
            cache.get_into("get", target)
            ours.append(time.perf_counter() - begin)
        lines.append(f"python.get_cuda.1MiB  get_into {median(ours) * 1e6:7.1f} us")
    for figure in bench.sweep(quick, lambda size: random_bytes(size, 2)):
        lines.append(f"{figure['name']:36} {figure['value']:7.1f} GB/s   p50 {figure['p50_us']:7.1f} us   p99 {figure['p99_us']:7.1f} us")
    for page in bench.PAGES:
        with nanomc.NanoKVCache(512 << 20, page_bytes=page, rank=0, world_size=1) as cache:
            counter = torch.zeros(1, dtype=torch.int32, device="cuda")
            for size in bench.SIZES:
                source, times = random_bytes(size, 2), []
                for _ in range(20 if quick else 100):
                    plan = cache.open_for_write("push", size)
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    nt.push(plan, source, counter)
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - begin)
                    cache.commit("push")
                    cache.remove("push")
                name = f"push.page{page >> 10}KiB.{size >> 10}KiB"
                lines.append(f"{name:36} {size / median(times) / 1e9:7.1f} GB/s   p50 {median(times) * 1e6:7.1f} us, with the launch")
    return lines


# ---- processes --------------------------------------------------------------------------------------------------------------


def run_rank(rank, ranks, folder, quick):
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    store_bytes = 192 << 20
    world = nanomc.World.join(
        "gpu", rank=rank, world_size=ranks, heap_bytes=store_bytes + (64 << 20), heap_kind=c.HEAP_CUDA, device=0, directory=folder,
        join_timeout_ms=TIMEOUT_MS)
    # The store leaves room in the heap for the expert-parallel group.
    store = nanomc.Store(world, heap_bytes=store_bytes, page_bytes=PAGE, attach_timeout_ms=TIMEOUT_MS, watchdog_ms=600_000)
    cache = nanomc.NanoKVCache.over(store, world)
    cache.heap_used = store_bytes
    failed = 0
    for check in CHECKS:
        world.barrier(TIMEOUT_MS)
        try:
            note = check(cache, ranks)
            print(f"RESULT {check.__name__} {rank} ok {note}", flush=True)
        except BaseException:
            failed = 1
            text = traceback.format_exc().replace("\n", "\\n")
            print(f"RESULT {check.__name__} {rank} FAILED {text}", flush=True)
            break  # the others would wait for this rank
    if not failed:
        world.barrier(TIMEOUT_MS)
    store.close()
    world.close()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="fewer rounds of the times")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    if given.rank is not None:
        return run_rank(given.rank, given.ranks, given.folder, given.quick)
    print(f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}, nanomc {nanomc.version()} from "
          f"{nanomc.library_path()}")
    with tempfile.TemporaryDirectory(prefix="nmc-gpu-") as folder:
        start = time.time()
        processes = [
            subprocess.Popen([sys.executable, str(HERE), "--ranks", str(given.ranks), "--rank", str(rank), "--folder", folder],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ))
            for rank in range(given.ranks)]
        outputs = []
        for process in processes:
            try:
                outputs.append(process.communicate(timeout=400)[0])
            except subprocess.TimeoutExpired:
                process.kill()
                outputs.append(process.communicate()[0] + "\nkilled after 400 s")
    results = {}
    for output in outputs:
        for text in output.split("\n"):
            if text.startswith("RESULT "):
                _, name, rank, state, *note = text.split(" ", 4)
                results.setdefault(name, []).append((int(rank), state, note[0] if note else ""))
    failed = 0
    for check in CHECKS:
        found = results.get(check.__name__, [])
        good = [entry for entry in found if entry[1] == "ok"]
        right = len(good) == given.ranks
        failed |= not right
        note = good[0][2] if good else "no rank came so far"
        print(f"{check.__name__.replace('_', ' '):32} {'ok' if right else 'FAILED'}  {len(good)}/{given.ranks} ranks  {note}")
        for rank, state, text in found:
            if state != "ok":
                print(f"  rank {rank}: " + text.replace("\\n", "\n    "))
    print(f"{time.time() - start:.0f} s")
    if failed:
        for rank, (process, output) in enumerate(zip(processes, outputs)):
            rest = "\n".join(text for text in output.split("\n") if not text.startswith("RESULT "))
            if process.returncode or rest.strip():
                print(f"--- rank {rank}, exit {process.returncode}\n{rest[-3000:]}")
        return 1
    for text in speed(given.quick):
        print(text)
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
