#!/usr/bin/env python3
"""Baselines for the expert-parallel transport on one GPU: PyTorch, Triton, and DeepEP if it is installed.

usage: ep_torch.py [--json]

The workload of `ep_bench` (benches/gpu): 8 ranks of 32 tokens, here 8 index ranges on one device; 256 experts, 8 a token
without repeats, rows of 7168 bf16. A layer sends each row to the ranks that have its experts and sums what comes back.
A graph of 58 layers, median of 100 replays. Nothing waits for a peer: these are copies and sums without a protocol.

Exits with 0 when PyTorch and Triton agree, 1 when not, and 77 when there is no torch, no triton or no GPU.
"""

import argparse
import json
import statistics
import sys

WORLD, TOKENS, EXPERTS, TOP_K, HIDDEN, LAYERS = 8, 32, 256, 8, 7168, 58
ALL = WORLD * TOKENS
LOCAL = EXPERTS // WORLD
REPLAYS = 100


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import torch
except ImportError:
    skip("torch is not installed")
if not torch.cuda.is_available():
    skip("torch finds no CUDA device")
try:
    import triton
    import triton.language as tl
except ImportError:
    skip("triton is not installed")


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def torch_layer(x, idx, recv, out):
    # Only the device knows the routing, so every (rank, slot) is looked at; rows that are not hit stay.
    ranks = torch.arange(WORLD, device=x.device).view(WORLD, 1, 1)
    hit = (idx // LOCAL == ranks).any(-1).unsqueeze(-1)
    torch.where(hit, x, recv, out=recv)
    out.copy_(torch.where(hit, recv, 0).sum(0, dtype=torch.float32))


# ---- Triton ---------------------------------------------------------------------------------------------------------


@triton.jit
def send_rows(x, idx, recv, n: tl.constexpr, hidden: tl.constexpr, world: tl.constexpr, local: tl.constexpr,
              top_k: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    ranks = tl.load(idx + token * top_k + tl.arange(0, top_k)) // local
    row = tl.load(x + token * hidden + columns)
    for rank in tl.static_range(world):
        if tl.sum((ranks == rank).to(tl.int32), 0) > 0:
            tl.store(recv + (rank * n + token) * hidden + columns, row)


@triton.jit
def sum_rows(recv, idx, out, n: tl.constexpr, hidden: tl.constexpr, world: tl.constexpr, local: tl.constexpr,
             top_k: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    ranks = tl.load(idx + token * top_k + tl.arange(0, top_k)) // local
    total = tl.zeros([block], tl.float32)
    for rank in tl.static_range(world):
        # A mask instead of a branch: the loads of all ranks are under way at once.
        hit = (columns < hidden) & (tl.sum((ranks == rank).to(tl.int32), 0) > 0)
        total += tl.load(recv + (rank * n + token) * hidden + columns, mask=hit, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + columns, total.to(tl.bfloat16))


def triton_layer(x, idx, recv, out):
    block = 1024  # HIDDEN is 7 of them
    grid = (ALL, HIDDEN // block)
    send_rows[grid](x, idx, recv, ALL, HIDDEN, WORLD, LOCAL, TOP_K, block)
    sum_rows[grid](recv, idx, out, ALL, HIDDEN, WORLD, LOCAL, TOP_K, block)


# ---- DeepEP ---------------------------------------------------------------------------------------------------------


def deep_ep_graph(x, idx):
    """A graph of DeepEP's low-latency mode, or why there is none. It wants a GPU for each rank: here one rank has all
    tokens and all experts, and gets a row for each expert instead of one for each rank."""
    try:
        import deep_ep
    except ImportError:
        return None, "not installed"
    try:
        import torch.distributed as dist

        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        room = deep_ep.Buffer.get_low_latency_rdma_size_hint(ALL, HIDDEN, 1, EXPERTS)
        buffer = deep_ep.Buffer(dist.group.WORLD, 0, room, low_latency_mode=True, num_qps_per_rank=EXPERTS)
        idx = idx.to(getattr(deep_ep, "topk_idx_t", torch.int64))
        weights = torch.full((ALL, TOP_K), 1 / TOP_K, device=x.device)

        def layer():
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, ALL, EXPERTS, use_fp8=False)
            buffer.low_latency_combine(rows, idx, weights, handle)

        return capture(layer), ""
    except Exception as error:  # It has many ways to say that a machine does not suit it.
        return None, f"does not run here: {error}"


# ---- measuring ------------------------------------------------------------------------------------------------------


def capture(layer):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            layer()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            layer()
    return graph


def measure(graphs):
    """us a layer of each graph; replays are taken in turn, so that a clock that drifts drifts for all."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = {name: [] for name in graphs}
    for replay in range(REPLAYS + 5):
        for name, graph in graphs.items():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if replay >= 5:
                samples[name].append(begin.elapsed_time(end) * 1000 / LAYERS)
    return {name: statistics.median(times) for name, times in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda", 0)
    # Small whole numbers: their sums are exact, so both must give the same bits.
    x = torch.randint(-8, 9, (ALL, HIDDEN), device=device).to(torch.bfloat16)
    idx = torch.rand(ALL, EXPERTS, device=device).topk(TOP_K).indices.to(torch.int32)
    results, graphs = {}, {}
    for name, layer in (("ep.torch.T32", torch_layer), ("ep.triton.T32", triton_layer)):
        recv = torch.zeros(WORLD, ALL, HIDDEN, dtype=torch.bfloat16, device=device)
        out = torch.zeros_like(x)
        graphs[name] = capture(lambda layer=layer, recv=recv, out=out: layer(x, idx, recv, out))
        results[name] = (recv, out)
    deep_ep, why_not = deep_ep_graph(x, idx)
    if deep_ep is not None:
        graphs["ep.deep_ep.T32.one_rank"] = deep_ep
    times = measure(graphs)

    # The last replay of each left its rows and sums behind.
    (torch_recv, torch_out), (triton_recv, triton_out) = results.values()
    times_sent = (idx.unsqueeze(0) // LOCAL == torch.arange(WORLD, device=device).view(WORLD, 1, 1)).any(-1).sum(0)
    right = torch.equal(torch_recv, triton_recv) and torch.equal(torch_out, triton_out)
    right = right and torch.equal(torch_out, x * times_sent.unsqueeze(-1))

    copies = times["ep.triton.T32"]
    for name, value in times.items():
        base = None if name == "ep.triton.T32" else copies
        if args.json:
            print(json.dumps({
                "name": name, "value": round(value, 3), "unit": "us/layer",
                "baseline_name": None if base is None else "triton copies",
                "baseline": None if base is None else round(base, 3),
                "ratio": None if base is None else round(value / base, 3),
            }, separators=(",", ":")))
        else:
            ratio = "" if base is None else f"  {value / base:5.2f} x triton copies"
            print(f"{name:<28} {value:8.2f} us/layer{ratio}")
    if not args.json:
        print(f"{int(times_sent.sum())} rows of {2 * HIDDEN} bytes each way; {torch.cuda.get_device_name(device)}, "
              f"torch {torch.__version__}, triton {triton.__version__}")
    if deep_ep is None:
        print(f"deep_ep: {why_not}", file=sys.stderr if args.json else sys.stdout)
    if not right:
        print("PyTorch and Triton disagree", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
