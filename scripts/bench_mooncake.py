"""Measures Mooncake Store: a master, a process that owns the memory, and this one, which reads and writes through
loopback TCP. Prints one JSON line a figure. With `ssd` it owns the memory itself, and reads from disk when it is told;
with `cluster` it reads and writes when it is told, without a copy.
Every process it starts dies with it, and it with the one that started it."""

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
SSD_LIMIT_S = 150
CLUSTER_LIMIT_S = 300
SEGMENT_BYTES = 512 << 20
KIB = 1 << 10
MIB = 1 << 20
# Values that are read from disk, in buckets of 32: it writes whole buckets only.
ON_DISK = 256
BUCKET_BYTES = 32 * MIB


def die_with(parent):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def open_store(master, segment_bytes, **more):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 64 << 20, "tcp", "", master, **more)
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


class Missing(Exception):
    """What is to be measured is not there."""


def settle(what, seconds, body):
    """Waits until `body` gives true."""
    deadline = time.monotonic() + seconds
    while not body():
        if time.monotonic() > deadline:
            raise Missing(f"{what} in {seconds} s")
        time.sleep(0.2)


def measure_ssd(master, folder):
    """Puts values, waits until they are on disk alone, and then, for each number in a line of its input, reads so many."""
    try:
        store = open_store(master, SEGMENT_BYTES, enable_ssd_offload=True, ssd_offload_path=folder)
    except TypeError:
        raise Missing("this Mooncake has no SSD backend")
    try:
        keys = move_to_disk(store, folder)
        buffer = ctypes.create_string_buffer(MIB + 4096)
        address = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
        if store.register_buffer(address, MIB) != 0:
            raise RuntimeError("register_buffer failed")
        print(json.dumps({"ready": True}), flush=True)
        at = 0
        for line in sys.stdin:
            count = int(line)
            start = time.perf_counter_ns()
            for i in range(count):
                if store.get_into(keys[(at + i) % len(keys)], address, MIB) != MIB:
                    raise RuntimeError("a value could not be read from disk")
            tell("get", (time.perf_counter_ns() - start) / 1e3 / count, "us")
            at += count
    finally:
        store.close()


def move_to_disk(store, folder):
    """Keys of values that are on disk alone, when nothing is written any more."""

    def put(key):
        settle("a value could not be put", 20, lambda: store.put(key, os.urandom(MIB)) == 0)

    def kinds(key):
        return {("memory" if r.is_memory_replica() else "disk") for r in store.get_replica_desc(key)}

    def quiet():
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
        if size != seen[0]:
            seen[:] = size, time.monotonic()
        return time.monotonic() - seen[1] > 3

    keys = [f"cold-{i}" for i in range(ON_DISK)]
    for key in keys:
        put(key)
    # Not all of them: what does not fill a bucket waits.
    settle("Mooncake wrote too little to disk", 30, lambda: sum("disk" in kinds(key) for key in keys) > ON_DISK // 2)
    seen = [-1, 0]
    settle("Mooncake did not stop writing", 60, quiet)
    # Others push them out of memory; nobody may look meanwhile, which would keep them there. What is not on disk by then is lost.
    for i in range(3 * SEGMENT_BYTES // MIB // 2):
        put(f"other-{i}")
    settle("Mooncake did not stop writing", 60, quiet)
    keys = [key for key in keys if kinds(key) == {"disk"}]
    if len(keys) < ON_DISK // 4:
        raise Missing(f"Mooncake kept {len(keys)} of {ON_DISK} values on disk alone")
    return keys


def ssd(folder):
    # Before its library is loaded. All that is not said here is as it is by default.
    os.environ.update(
        MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder,
        MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR="bucket_storage_backend",
        MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES=str(BUCKET_BYTES),
        MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=str(128 * MIB),
        MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="1",
        MOONCAKE_USE_URING="true",
        MOONCAKE_OFFLOAD_USE_URING="true",
    )
    try:
        with_master(["-default_kv_lease_ttl=10", "-enable_offload=true"], lambda master, _: measure_ssd(master, folder))
    except Missing as missing:
        print(json.dumps({"skipped": str(missing)}), flush=True)


def measure_cluster(master):
    """For each line of its input, `put` or `get`, bytes and a count, does that from or to registered memory."""
    store = open_store(master, 0)
    buffer = ctypes.create_string_buffer(os.urandom(MIB), 64 * MIB)
    address = ctypes.addressof(buffer)
    if store.register_buffer(address, len(buffer)) != 0:
        raise RuntimeError("register_buffer failed")
    print(json.dumps({"ready": True}), flush=True)
    there = set()
    at = 0
    for line in sys.stdin:
        what, size, count = line.split()[0], int(line.split()[1]), int(line.split()[2])
        if what == "put":
            keys = [f"put-{at + i}" for i in range(count)]
            at += count
        else:
            keys = [f"get-{size}-{i}" for i in range(count)]
            for key in keys:
                if key not in there and store.put_from(key, address, size) == 0:
                    there.add(key)
        body, good = (store.put_from, 0) if what == "put" else (store.get_into, size)
        start = time.perf_counter_ns()
        results = [body(key, address, size) for key in keys]
        us = (time.perf_counter_ns() - start) / 1e3 / count
        if what == "put":
            for key in keys:
                store.remove(key)
        if all(rc == good for rc in results):
            tell(what, us, "us")
        else:
            print(json.dumps({"skipped": f"Mooncake fails: {what} of {size} bytes gives {results[0]}"}), flush=True)
    store.close()


def cluster():
    def body(master, start_owner):
        start_owner()
        measure_cluster(master)

    with_master(["-default_kv_lease_ttl=60000"], body)


def with_master(flags, body):
    """Calls `body` with the address of a master and a function that starts a process that owns memory."""
    deadline = time.monotonic() + 15
    port, metrics = free_port(), free_port()
    master = f"127.0.0.1:{port}"
    me = os.getpid()
    started = []
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null:

        def start_owner():
            owner = [sys.executable, os.path.abspath(__file__), "own", master, str(me)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": null, "cwd": folder}
            started.append(subprocess.Popen(owner, **pipes))
            while line := started[-1].stdout.readline():
                if line.strip() == b"ready":
                    return
            raise RuntimeError("the process that owns the memory ended early")

        try:
            # The program itself: the one in bin is a script that starts it and would die alone.
            command = [os.path.join(list(mooncake.__path__)[0], "mooncake_master"), "-rpc_address=127.0.0.1", f"-rpc_port={port}", f"-metrics_port={metrics}"]
            command += ["-enable_metric_reporting=false", "-rpc_thread_num=2", *flags]
            quiet = {"stdout": null, "stderr": null, "cwd": folder}
            started.append(subprocess.Popen(command, preexec_fn=lambda: die_with(me), **quiet))
            wait_for(port, started[0], deadline)
            body(master, start_owner)
        finally:
            for process in reversed(started):
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def main():
    if sys.argv[1] == "own":
        die_with(int(sys.argv[3]))
        return own(sys.argv[2])
    if sys.argv[1] == "ssd":
        die_with(int(sys.argv[3]))
        signal.alarm(SSD_LIMIT_S)
        return ssd(sys.argv[2])
    if sys.argv[1] == "cluster":
        die_with(int(sys.argv[2]))
        signal.alarm(CLUSTER_LIMIT_S)
        return cluster()
    die_with(int(sys.argv[1]))
    signal.alarm(LIMIT_S)

    def body(master, start_owner):
        start_owner()
        measure(master)

    with_master(["-default_kv_lease_ttl=60000"], body)


if __name__ == "__main__":
    main()
