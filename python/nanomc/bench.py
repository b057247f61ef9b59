"""`python -m nanomc.bench [--json] [--quick]`: what Python costs on top of the C calls, measured in turn in one run.

The baseline is a C program, compiled from bench.c against the header of the source tree: without a compiler or the tree only our
figures are shown. Mooncake's Python client is measured too where scripts/bench_mooncake.sh has installed it. Lines of --json are
those of `nmc bench`. `--sweep` is another one: `NanoKVCache.put` over sizes and pages, on the GPU if torch has one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import _abi, _library
from .cache import NanoKVCache
from .store import Store

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = 128


class Baseline:
    """The C program, or why there is none."""

    def __init__(self, folder: str) -> None:
        self.why = ""
        self._process: "Optional[subprocess.Popen[str]]" = None
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        header = ROOT / "include" / "nanomc.h"
        if compiler is None or not header.exists():
            self.why = "no C compiler" if compiler is None else f"{header} is not there: a source tree is needed"
            return
        program = Path(folder) / "bench"
        # Under its soname, since that is what the program looks for.
        library = Path(folder) / f"libnanomc.so.{_abi.VERSION_MAJOR}"
        library.symlink_to(Path(str(_library.path)).resolve())
        made = subprocess.run(
            [compiler, "-O2", f"-I{header.parent}", str(HERE / "bench.c"), str(library), f"-Wl,-rpath,{folder}", "-o", str(program)],
            capture_output=True, text=True)
        if made.returncode:
            self.why = f"{compiler} failed: {made.stderr.strip()}"
            return
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ns(self, what: str, calls: int) -> Optional[float]:
        """Nanoseconds of a call."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        process.stdin.write(f"{what} {calls}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"bench.c ended with {process.wait()} at {what}")
        return float(answer)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def median(values: List[float]) -> float:
    return sorted(values)[len(values) // 2]


def ns_per_call(calls: int, body: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        body()
    return (time.perf_counter_ns() - start) / calls


class Metric:
    def __init__(self, name: str, value: float, unit: str, baseline_name: str, baseline: Optional[float], lower: bool, goal: str) -> None:
        self.name, self.value, self.unit, self.goal = name, value, unit, goal
        self.baseline_name, self.baseline, self.lower = baseline_name, baseline, lower

    def line(self) -> str:
        """As `nmc bench --json` prints it."""
        fields: Dict[str, Any] = {"name": self.name, "value": round(self.value, 4), "unit": self.unit}
        if self.baseline is not None:
            fields.update(baseline_name=self.baseline_name, baseline=round(self.baseline, 4), ratio=round(self.value / self.baseline, 4))
        return json.dumps(fields, ensure_ascii=False)


def measure(quick: bool) -> Tuple[List[Metric], List[Tuple[str, str]]]:
    """Metrics, and what was left out."""
    rounds = 5 if quick else 25
    metrics: List[Metric] = []
    remarks: List[Tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="nmc-bench-") as folder, \
            Store(heap_bytes=64 << 20, page_bytes=4096, populate=True) as store:
        baseline = Baseline(folder)
        if baseline.why:
            remarks.append(("python", f"no baseline: {baseline.why}"))
        small, large, into = b"x" * 1024, b"y" * (1 << 20), bytearray(1 << 20)
        store.put("small", small)
        store.put("large", large)
        names = [f"k-{at}" for at in range(KEYS)]
        values = [small] * KEYS

        def pin() -> None:
            store.pin("small").unpin()

        def put_batch() -> float:
            start = time.perf_counter_ns()
            store.put_batch(names, values)
            taken = time.perf_counter_ns() - start
            store.remove_batch(names)
            return taken

        def in_turn(what: str, calls: int, body: Callable[[], float]) -> Tuple[float, Optional[float]]:
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(body())
                their = baseline.ns(what, calls)
                if their is not None:
                    theirs.append(their)
            return median(ours), median(theirs) if theirs else None

        c = "the same calls in C"
        ours, theirs = in_turn("get", 5000, lambda: ns_per_call(2000, lambda: store.get("small")))
        metrics.append(Metric("python.get.1KiB", ours / 1e3, "µs", c, theirs and theirs / 1e3, True, "at most 3 µs above C"))
        got = ours
        ours, theirs = in_turn("get_into", 50, lambda: ns_per_call(50, lambda: store.get_into("large", into)))
        rate = (1 << 20) / ours
        metrics.append(Metric("python.get_into.1MiB", rate, "GB/s", c, theirs and (1 << 20) / theirs, False, "at least 0.9 of C"))
        copied = ours
        ours, theirs = in_turn("put_batch", 4, lambda: sum(put_batch() for _ in range(4)) / 4)
        metrics.append(Metric("python.put_batch128", KEYS / ours * 1e9, "keys/s", c, theirs and KEYS / theirs * 1e9, False,
                              "at least 300,000 keys/s"))
        batch = KEYS / ours * 1e9
        ours, theirs = in_turn("exists", 5000, lambda: ns_per_call(2000, lambda: store.exists("small")))
        metrics.append(Metric("python.exists", ours / 1e3, "µs", c, theirs and theirs / 1e3, True, ""))
        exists = ours
        ours, theirs = in_turn("pin", 5000, lambda: ns_per_call(1000, pin))
        metrics.append(Metric("python.pin", ours / 1e3, "µs", c, theirs and theirs / 1e3, True, ""))
        store.put_batch(names, values)
        ours = median([ns_per_call(5, lambda: store.get_batch(names)) for _ in range(rounds)])
        metrics.append(Metric("python.get_batch128", KEYS / ours * 1e9, "keys/s", "", None, False, ""))
        baseline.close()
    _mooncake(metrics, remarks, quick, {
        "get_into.1MiB": (copied / 1e3, "µs", True), "get.1KiB": (1e9 / got, "ops/s", False), "exists": (1e9 / exists, "ops/s", False),
        "put.1KiB.batch128": (batch, "keys/s", False)})
    return metrics, remarks


def _mooncake(metrics: List[Metric], remarks: List[Tuple[str, str]], quick: bool, ours: Dict[str, Tuple[float, str, bool]]) -> None:
    """The same of Mooncake's client, which is Python too."""
    script = ROOT / "scripts" / "bench_mooncake.sh"
    if quick or not (ROOT / "target" / "mooncake-venv" / "bin" / "python").exists():
        remarks.append(("python.vs_mooncake", "quick run" if quick else "not installed: run scripts/bench_mooncake.sh --install"))
        return
    try:
        done = subprocess.run(["bash", str(script), "--run"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        remarks.append(("python.vs_mooncake", f"{script} took longer than 120 s"))
        return
    said = [json.loads(text) for text in done.stdout.split("\n") if text.startswith("{")]
    theirs = {entry["name"]: entry["value"] for entry in said if "name" in entry}
    for name, (value, unit, lower) in ours.items():
        if name in theirs:
            label = "Mooncake Store's client over loopback TCP"
            metrics.append(Metric(f"python.vs_mooncake.{name}", value, unit, label, float(theirs[name]), lower, ""))
    if not theirs:
        remarks.append(("python.vs_mooncake", f"{script} said nothing: {done.stderr.strip()[-200:]}"))


SIZES = (64 << 10, 256 << 10, 1 << 20, 8 << 20)
PAGES = (128 << 10, 256 << 10, 512 << 10)


def sweep(quick: bool, tensor_of: Callable[[int], Any]) -> Iterator[Dict[str, Any]]:
    """Latency and throughput of a put for every size and page size."""
    for page in PAGES:
        with NanoKVCache(256 << 20, page_bytes=page, rank=0, world_size=1) as cache:
            for size in SIZES:
                tensor = tensor_of(size)
                times = []
                for at in range(20 if quick else 200):
                    start = time.perf_counter_ns()
                    cache.put("k", tensor)
                    if at >= 5:  # memory that nobody has used before is slower
                        times.append(time.perf_counter_ns() - start)
                    cache.remove("k")
                times.sort()
                p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
                yield {"name": f"python.sweep.page{page >> 10}KiB.put{size >> 10}KiB", "value": round(size / p50, 3), "unit": "GB/s",
                       "p50_us": round(p50 / 1e3, 1), "p99_us": round(p99 / 1e3, 1)}


def _tensor_of(size: int) -> Any:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return torch.ones(size, dtype=torch.uint8, device="cuda")
    import numpy

    return numpy.ones(size, dtype=numpy.uint8)


def _print_sweep(quick: bool, as_json: bool) -> None:
    for figure in sweep(quick, _tensor_of):
        if as_json:
            print(json.dumps(figure))
        else:
            print(f"{figure['name']:38} {figure['value']:8.2f} GB/s   p50 {figure['p50_us']:8.1f} µs   p99 {figure['p99_us']:8.1f} µs")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nanomc.bench", description="What Python costs on top of the C calls.")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each figure")
    parser.add_argument("--quick", action="store_true", help="only to see that everything works")
    parser.add_argument("--sweep", action="store_true", help="put of NanoKVCache over sizes and pages")
    given = parser.parse_args()
    if given.sweep:
        _print_sweep(given.quick, given.json)
        return 0
    metrics, remarks = measure(given.quick)
    if given.json:
        for metric in metrics:
            print(metric.line())
        for name, why in remarks:
            print(json.dumps({"name": name, "skipped": why}, ensure_ascii=False))
        return 0
    for metric in metrics:
        ratio = "" if metric.baseline is None else f"{metric.baseline:12.2f} {metric.value / metric.baseline:8.2f}"
        print(f"{metric.name:34} {metric.value:12.2f} {ratio:21} {metric.unit:7} {'lower' if metric.lower else 'higher'}  {metric.goal}")
    for name, why in remarks:
        print(f"{name}  {why}")
    print(f"\ncolumns: ours, the baseline (C, or Mooncake), the ratio; Python {platform.python_version()}, "
          f"nanomc {_library.version()}, medians of a {'quick' if given.quick else 'full'} run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
