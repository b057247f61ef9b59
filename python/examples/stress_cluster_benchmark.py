"""Puts many values as one node of a cluster and reads them as another. Start `nanomc-master` (or `mooncake_master`), then

    ROLE=prefill python3 stress_cluster_benchmark.py        # on one machine
    ROLE=decode python3 stress_cluster_benchmark.py         # on another

The variables and their defaults are those of Mooncake Store's program of this name.
"""

import os
import sys
import time

from distributed_object_store import DistributedObjectStore

store = DistributedObjectStore()
# "tcp"; "rdma" where the library can do that
protocol = os.getenv("PROTOCOL", "tcp")
# Not used with tcp
device_name = os.getenv("DEVICE_NAME", "ibp6s0")
# This node; its port is a free one of 12300 to 14299
local_hostname = os.getenv("LOCAL_HOSTNAME", "localhost")
# Its form is checked, and nobody is contacted
metadata_server = os.getenv("METADATA_ADDR", "127.0.0.1:2379")
# What each node gives the cluster, and its own buffer, in bytes
global_segment_size = int(os.getenv("SEGMENT_SIZE", str(3200 * 1024 * 1024)))
local_buffer_size = int(os.getenv("BUFFER_SIZE", str(512 * 1024 * 1024)))
master_server_address = os.getenv("MASTER_SERVER", "127.0.0.1:50051")
value_length = int(os.getenv("VALUE_LENGTH", str(1 * 1024 * 1024)))
max_requests = int(os.getenv("MAX_REQUESTS", "1000"))
# How long prefill stays, so that others can read
wait_s = float(os.getenv("WAIT_S", "100"))


def value_of(number):
    return bytes([number % 256]) * value_length


def timed(name, call):
    """Calls it for each request; prints speed and latencies. How many failed."""
    failed, seconds = 0, []
    for number in range(max_requests):
        start = time.perf_counter()
        good = call(number)
        seconds.append(time.perf_counter() - start)
        if not good:
            failed += 1
            print(f"key{number} failed", file=sys.stderr)
    seconds.sort()
    speed = (max_requests - failed) * value_length / sum(seconds) / 1e9
    print(f"{name}: {max_requests - failed} done, {failed} failed; {speed:.2f} GB/s; p50 {seconds[len(seconds) // 2] * 1e3:.3f} ms, "
          f"p99 {seconds[len(seconds) * 99 // 100] * 1e3:.3f} ms", flush=True)
    return failed


def get(number):
    try:
        return store.get(f"key{number}") == value_of(number)
    except KeyError:
        return False


if __name__ == "__main__":
    if store.setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, device_name, master_server_address):
        sys.exit("setup failed")
    if os.getenv("ROLE", "prefill") == "prefill":
        failed = timed("prefill", lambda number: store.put(f"key{number}", value_of(number)) == 0)
        time.sleep(wait_s)
    else:
        failed = timed("decode", get)
    store.close()
    sys.exit(1 if failed else 0)
