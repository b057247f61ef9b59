"""Gives memory to a cluster, and shows that it works: start `nanomc-master` (or `mooncake_master`), then this program. It puts, reads and
removes some objects, says how that went, and stays as a node for WAIT_S seconds. Variables as in stress_cluster_benchmark.py."""

import os
import sys
import time

from distributed_object_store import DistributedObjectStore


def main():
    store = DistributedObjectStore()
    failed = store.setup(
        os.getenv("LOCAL_HOSTNAME", "localhost"),
        os.getenv("METADATA_ADDR", "127.0.0.1:2379"),
        int(os.getenv("SEGMENT_SIZE", str(3200 * 1024 * 1024))),
        int(os.getenv("BUFFER_SIZE", str(512 * 1024 * 1024))),
        os.getenv("PROTOCOL", "tcp"),
        os.getenv("DEVICE_NAME", "ibp6s0"),
        os.getenv("MASTER_SERVER", "127.0.0.1:50051"),
    )
    if failed:
        return f"setup failed: {failed}"
    mark = f"provider-{os.getpid()}/"
    for size in (0, 1, 1000, 1 << 20):
        key, value = f"{mark}{size}", os.urandom(size)
        if store.put(key, value) or store.get(key) != value or store.isExist(key) != 1:
            return f"{key} was not stored and read"
        if store.remove(key) or store.isExist(key) != 0:
            return f"{key} was not removed"
    try:
        return f"{mark}none is there: {store.get(mark + 'none')!r}"
    except KeyError:
        pass
    print(f"all tests passed; {store.get_hostname()} stays", flush=True)
    time.sleep(float(os.getenv("WAIT_S", "100")))
    store.close()
    return None


if __name__ == "__main__":
    sys.exit(main())
