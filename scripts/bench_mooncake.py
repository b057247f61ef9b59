"""Measures Mooncake Store: a master, a process that owns the memory, and this one, which reads and writes through
loopback TCP. Prints one JSON line a figure. Every process it starts dies with it, and it with the one that started it."""

import ctypes
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import mooncake

LIMIT_S = 50
SEGMENT_BYTES = 512 << 20
KIB = 1 << 10


def die_with(parent):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def open_store(master, segment_bytes):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 64 << 20, "tcp", "", master)
    if rc != 0:
        raise RuntimeError(f"setup of Mooncake Store failed: {rc}")
    return store


def own(master):
    store = open_store(master, SEGMENT_BYTES)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


def wait_for(port, process, deadline):
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"mooncake_master ended: {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("mooncake_master does not listen")


def tell(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def median_us(calls, body):
    samples = []
    for i in range(calls):
        start = time.perf_counter_ns()
        rc = body(i)
        samples.append((time.perf_counter_ns() - start) / 1e3)
        if isinstance(rc, int) and rc < 0:
            raise RuntimeError(f"a call failed: {rc}")
    return statistics.median(samples[calls // 10:])


def rate(keys, seconds, body):
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for key in keys:
            body(key)
        n += len(keys)
    return n / (time.perf_counter() - start)


def measure(master):
    store = open_store(master, 0)
    buffer = ctypes.create_string_buffer(1 << 20)
    address = ctypes.addressof(buffer)
    if store.register_buffer(address, len(buffer)) != 0:
        raise RuntimeError("register_buffer failed")
    for name, size in (("64KiB", 64 * KIB), ("1MiB", KIB * KIB)):
        keys = [f"read-{name}-{i}" for i in range(8)]
        for key in keys:
            if store.put(key, bytes(size)) != 0:
                raise RuntimeError(f"put of {key} failed")
        tell(f"get_into.{name}", median_us(800, lambda i: store.get_into(keys[i % 8], address, size)), "us")
    value = bytes(KIB)
    small = [f"small-{i}" for i in range(1000)]
    for key in small:
        store.put(key, value)
    tell("get.1KiB", rate(small, 2, store.get), "ops/s")
    tell("exists", rate(small, 1, store.is_exist), "ops/s")
    tell("put.1KiB", median_us(2000, lambda i: store.put(f"put-{i}", value)), "us")
    large = bytes(1 << 20)
    tell("put.1MiB", median_us(100, lambda i: store.put(f"large-{i}", large)), "us")
    batches = [[f"batch-{b}-{i}" for i in range(128)] for b in range(60)]
    values = [value] * 128
    us = median_us(len(batches), lambda i: store.put_batch(batches[i], values))
    tell("put.1KiB.batch128", 128e6 / us, "keys/s")
    store.close()


def main():
    if sys.argv[1] == "own":
        die_with(int(sys.argv[3]))
        return own(sys.argv[2])
    die_with(int(sys.argv[1]))
    signal.alarm(LIMIT_S)
    deadline = time.monotonic() + 15
    port, metrics = free_port(), free_port()
    master = f"127.0.0.1:{port}"
    me = os.getpid()
    started = []
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null:
        try:
            # The program itself: the one in bin is a script that starts it and would die alone.
            command = [os.path.join(list(mooncake.__path__)[0], "mooncake_master"), "-rpc_address=127.0.0.1", f"-rpc_port={port}", f"-metrics_port={metrics}"]
            command += ["-enable_metric_reporting=false", "-rpc_thread_num=2", "-default_kv_lease_ttl=60000"]
            quiet = {"stdout": null, "stderr": null, "cwd": folder}
            started.append(subprocess.Popen(command, preexec_fn=lambda: die_with(me), **quiet))
            wait_for(port, started[0], deadline)
            owner = [sys.executable, os.path.abspath(__file__), "own", master, str(me)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": null, "cwd": folder}
            started.append(subprocess.Popen(owner, **pipes))
            while line := started[1].stdout.readline():
                if line.strip() == b"ready":
                    break
            else:
                raise RuntimeError("the process that owns the memory ended early")
            measure(master)
        finally:
            for process in reversed(started):
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main()
