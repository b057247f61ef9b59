"""Programs for Mooncake Store run as they are: its class under every name, its return codes, its two scripts; compared with a dict."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nanomc
from nanomc import errors, mooncake
from nanomc.mooncake import MooncakeDistributedStore, ReplicateConfig

PYTHON = Path(__file__).resolve().parents[1]


def made(master, segment=16 << 20, kind=MooncakeDistributedStore):
    store = kind()
    assert store.setup("localhost", "etcd://127.0.0.1:2379", segment, 1 << 20, "tcp", "ibp6s0", master) == 0
    return store


@pytest.fixture
def store(master):
    store = made(master)
    yield store
    assert store.close() == 0


def test_the_calls_of_the_seed(store):
    assert store.initAll("tcp", "ibp6s0", 16 << 20) == 0 and store.initAll(protocol="tcp", device_name="x") == 0
    for key, value in {"kvcache1": b"value", "empty": b"", "large": os.urandom(3 << 20)}.items():
        assert store.isExist(key) == 0
        assert store.put(key, value) == 0 and store.isExist(key) == 1
        assert store.get(key) == value
    with pytest.raises(KeyError):
        store.get("none")
    assert store.remove("kvcache1") == 0 and store.isExist("kvcache1") == 0
    with pytest.raises(KeyError):
        store.get("kvcache1")
    assert store.tearDownAll() == 0 and store.close() == 0


def given(store):
    return sorted((segment.name, segment.capacity >> 20) for segment in store._open().segments())


def test_initAll_gives_as_much_as_it_is_told(master):
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "etcd://127.0.0.1:2379", master_server_addr=master) == 0
    name, before = store.get_hostname(), given(store)
    assert store.initAll("tcp", "") == 0 and store.initAll("tcp", "", 0) == 0 and given(store) == before and len(before) == 1
    assert store.initAll("tcp", "", mount_segment_size=64 << 20) == 0
    values = {f"{number}": os.urandom(1 << 20) for number in range(40)}  # what there is no room for is evicted
    values["large"] = os.urandom(17 << 20)
    assert [store.put(key, value) for key, value in values.items()] == [0] * len(values)
    assert [key for key, value in values.items() if store.is_exist(key) != 1 or store.get(key) != value] == []
    after = given(store)
    assert [one for one, _ in after] == [name] and after[0][1] > before[0][1] + 40
    assert store.initAll("tcp", "", 64 << 20) == 0 and store.init_all(mount_segment_size=32 << 20) == 0 and given(store) == after
    assert store.initAll("tcp", "", -1) == mooncake.INVALID_PARAMS and store.initAll("tcp", "", "much") == mooncake.INVALID_PARAMS
    assert store.close() == 0 and store.initAll("tcp", "", 64 << 20) == mooncake.INVALID_PARAMS


def test_initAll_loses_nothing(master):
    store = made(master)
    name, before = store.get_hostname(), given(store)
    assert store.initAll("tcp", "", 1 << 60) < 0 and given(store) == before  # nobody has so much
    assert store.put("k", b"v") == 0
    assert store.initAll("tcp", "", (16 << 20) + 1) == 0  # there is nowhere else to copy it to
    assert len(given(store)) == 2 and before[0] in given(store) and store.get("k") == b"v"
    other = made(master)
    assert store.initAll("tcp", "", 48 << 20) == 0 and other.get("k") == store.get("k") == b"v"
    assert len(given(store)) == 3 and dict(given(store))[name] >= 45 and store.get_hostname() == name
    assert store.close() == 0 and other.close() == 0
    assert store.setup("localhost", "", 0, 0, "tcp", "", master) == 0 and store.get_hostname() not in dict(given(store))
    assert store.initAll("tcp", "", 1 << 20) == 0 and dict(given(store))[store.get_hostname()] == 1 and store.close() == 0


def test_the_calls_of_the_package(store):
    assert store.health_check() == 0 and store.get_hostname().startswith("localhost:")
    assert store.put("k", bytearray(b"value")) == 0
    assert store.put("k", b"other") == 0 and store.get("k") == b"value"  # a value stays
    assert store.get_size("k") == 5 and store.get_size("none") == mooncake.OBJECT_NOT_FOUND
    assert store.is_exist("k") == 1 and store.batch_is_exist(["k", "none"]) == [1, 0]
    handle = store.get_buffer("k")
    assert handle.size() == len(handle) == 5 and bytes(memoryview(handle)) == b"value"
    assert ctypes.string_at(handle.ptr(), 5) == b"value" and store.get_buffer("none") is None
    assert store.batch_get_buffer(["k", "none"]) == [b"value", None]
    assert store.put_parts("parts", b"a", b"bc", config=ReplicateConfig()) == 0 and store.get("parts") == b"abc"
    memory = ctypes.create_string_buffer(b"0123456789", 10)
    at = ctypes.addressof(memory)
    assert store.register_buffer(at, 10) == 0 and store.register_buffer(at, 10) < 0
    assert store.put_from("from", at, 10) == 0 and store.get("from") == b"0123456789"
    assert store.batch_put_from(["f1", "f2"], [at, at + 5], [5, 5]) == [0, 0]
    assert store.get_batch(["f1", "f2", "none"]) == [b"01234", b"56789", b""]
    assert store.get_into("k", at, 10) == 5 and memory.raw == b"value56789"
    assert store.get_into("from", at, 3) < 0 and store.get_into("none", at, 10) == mooncake.OBJECT_NOT_FOUND
    assert store.batch_get_into(["f1", "none", "f2"], [at, at, at + 5], [5, 5, 5]) == [5, mooncake.OBJECT_NOT_FOUND, 5]
    assert memory.raw == b"0123456789"
    assert store.unregister_buffer(at) == 0 and store.unregister_buffer(at) < 0
    assert store.put_batch(["p1", "p2"], [b"1", b"22"]) == 0 and store.get_batch(["p1", "p2"]) == [b"1", b"22"]
    assert store.remove("none") == mooncake.OBJECT_NOT_FOUND and store.batch_remove(["p1", "none"]) == [0, mooncake.OBJECT_NOT_FOUND]
    assert store.batch_remove([]) == [] and store.batch_remove(["p2", ""]) == [0, mooncake.INVALID_PARAMS] and store.put("p2", b"22") == 0
    one_by_one, store._open().remove = store._open().remove, None  # many are removed with one call
    assert store.put_batch(["q1", "q2"], [b"1", b"2"]) == 0 and store.batch_remove(["q1", "q2"]) == [0, 0]
    store._open().remove = one_by_one
    assert store.put_batch([f"re/{i}" for i in range(20)], [b"v"] * 20) == 0
    assert store.remove_by_regex("^re/1[0-9]$") == 10 and store.is_exist("re/10") == 0 and store.is_exist("re/9") == 1
    assert store.remove_by_regex("^re/1[0-9]$") == 0 and store.remove_by_regex("(") == mooncake.INVALID_PARAMS
    assert store.remove_by_regex("re/") == 10
    left = sum(store.batch_is_exist(["k", "from", "f1", "f2", "p2"]))
    assert left == 5 and store.remove_all() >= left and store.is_exist("k") == 0 and store.remove_all() == 0


def test_copies_and_preferences(master, store):
    other = made(master)
    config = ReplicateConfig()
    config.replica_num, config.with_soft_pin = 2, True
    assert store.put("two", b"v", config) == 0 and len(store._open().query("two")) == 2
    config = ReplicateConfig()
    config.preferred_segment = other.get_hostname()
    assert store.put("there", b"v", config) == 0
    assert [copy.endpoint.rpartition(":")[2] for copy in store._open().query("there")] == [other.get_hostname().rpartition(":")[2]]
    config.preferred_segment = "nowhere:1"
    assert store.put("anywhere", b"v", config) == 0 and other.get("anywhere") == b"v"
    reader = MooncakeDistributedStore()
    assert reader.setup("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", master) == 0
    assert reader.get("there") == b"v" and reader.close() == 0
    assert other.close() == 0


def test_what_cannot_be_is_a_number(master, caplog):
    store = MooncakeDistributedStore()
    assert store.put("k", b"v") < 0 and store.is_exist("k") == -1 and store.remove("k") < 0 and store.get_size("k") < 0
    assert store.initAll("tcp", "") < 0 and store.health_check() == 1 and store.get_hostname() == "" and store.get_batch(["k"]) == [b""]
    assert store.batch_remove(["k", "j"]) == [-1, -1] and store.batch_put_from(["k"], [0], [0]) == [-1] and store.batch_get_into(["k"], [0], [0]) == [-1] and store.close() == 0
    with pytest.raises(errors.ClosedError):
        store.get("k")
    assert store.setup("localhost", "gopher://x", 0, 0, "tcp", "", master) == mooncake.INVALID_PARAMS
    assert store.setup("localhost", "", 0, 0, "carrier pigeon", "mlx5_0", master) == mooncake.INVALID_PARAMS
    assert store.setup("localhost", "", -1, 0, "tcp", "", master) == mooncake.INVALID_PARAMS
    assert store.setup("192.0.2.1", "", 0, 0, "tcp", "", master) == mooncake.INVALID_PARAMS  # no token
    assert store.setup("localhost", "", 0, 0, "tcp", "", master) == 0
    assert store.setup("localhost", "", 0, 0, "tcp", "", master) == mooncake.INVALID_PARAMS  # twice
    assert store.put("k", 7) == mooncake.INVALID_PARAMS and store.put_batch(["a"], []) == mooncake.INVALID_PARAMS
    assert store.put("k", b"v") == mooncake.NO_AVAILABLE_HANDLE  # nobody gives memory
    assert store.close() == 0 and store.put("k", b"v") < 0


def test_without_a_master_it_says_how_to_start_one(caplog):
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", "127.0.0.1:1") in (mooncake.RPC_FAIL, mooncake.RPC_TIMEOUT)
    assert "nanomc-master" in caplog.text and store.health_check() == 1


def test_it_behaves_like_a_dict(master):
    stores, model, chance = [made(master), made(master, 0), made(master)], {}, random.Random(5)
    config = ReplicateConfig()
    config.replica_num = 2
    for step in range(1500):
        store, key = chance.choice(stores), f"k{chance.randrange(20)}"
        what = chance.randrange(6)
        if what <= 1 and key not in model:
            model[key] = os.urandom(chance.choice((0, 10, 5000, 100000)))
            assert store.put(key, model[key], config) == 0
        elif what == 2:
            assert store.remove(key) == (0 if model.pop(key, None) is not None else mooncake.OBJECT_NOT_FOUND)
        elif what == 3:
            assert store.is_exist(key) == (key in model)
        elif what == 4:
            keys = [f"k{chance.randrange(20)}" for _ in range(5)]
            assert store.get_batch(keys) == [model.get(key, b"") for key in keys]
        elif key in model:
            assert store.get(key) == model[key] and store.get_size(key) == len(model[key])
        else:
            with pytest.raises(KeyError):
                store.get(key)
    for store in stores:
        assert store.close() == 0


def test_threads_share_it(store):
    wrong = []

    def work(number):
        for step in range(40):
            key, value = f"{number}/{step}", bytes([number]) * (step * 3000)
            if store.put(key, value) or store.get(key) != value or store.get_batch([key, "none"]) != [value, b""] or store.remove(key):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_class_under_other_names(master, launch):
    import distributed_object_store
    import mooncake_vllm_adaptor

    assert mooncake_vllm_adaptor.MooncakeDistributedStore is MooncakeDistributedStore
    assert distributed_object_store.DistributedObjectStore is distributed_object_store.distributed_object_store is MooncakeDistributedStore
    program = """
        import nanomc.mooncake
        try:
            import mooncake.store
            sys.exit("mooncake is there without being asked for")
        except ImportError:
            pass
        nanomc.mooncake.install()
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", sys.argv[1]) == 0
        assert store.put("k", b"v") == 0 and store.get("k") == b"v" and store.get("none") == b""
        assert store.close() == 0 and store.get("k") == b""
        print("right")
    """
    out, err = launch(program, master).communicate(timeout=60)
    assert out.strip() == "right", err


def script(name, master, **variables):
    environment = dict(os.environ, PYTHONPATH=str(PYTHON), MASTER_SERVER=master, NMC_LIBRARY=str(nanomc.library_path()), **variables)
    return subprocess.Popen([sys.executable, str(PYTHON / "examples" / name)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def test_the_two_scripts_run(master):
    small = {"SEGMENT_SIZE": str(64 << 20), "BUFFER_SIZE": str(1 << 20), "VALUE_LENGTH": "200000", "MAX_REQUESTS": "50", "WAIT_S": "600"}
    prefill = script("stress_cluster_benchmark.py", master, ROLE="prefill", **small)
    try:
        assert "50 done, 0 failed" in prefill.stdout.readline()
        out, err = script("stress_cluster_benchmark.py", master, ROLE="decode", **small).communicate(timeout=100)
        assert "decode: 50 done, 0 failed" in out, out + err
        out, err = script("distributed_object_store_provider.py", master, **dict(small, WAIT_S="0")).communicate(timeout=100)
        assert "all tests passed" in out, out + err
    finally:
        prefill.kill()
        prefill.communicate()


def test_a_script_for_mooncake_runs_as_it_is(master, tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text("""
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "http://127.0.0.1:8080/metadata", 16 * 1024 * 1024, 1024 * 1024, "tcp", "", sys.argv[1]) == 0
store.put("hello", b"world")
print(store.get("hello").decode())
""")
    environment = dict(os.environ, PYTHONPATH=str(PYTHON), NMC_LIBRARY=str(nanomc.library_path()))
    done = subprocess.run([sys.executable, "-m", "nanomc.mooncake", str(path), master], env=environment, capture_output=True, text=True,
                          timeout=100)
    assert done.stdout.strip() == "world", done.stderr


def test_wrong_arguments_are_a_code_as_well(store):
    assert store.put("k", b"x" * 48) == 0
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory)
    wrong = mooncake.INVALID_PARAMS
    assert store.get_into("k", address, -1) == store.put_from("new", address, -1) == wrong
    assert store.get_into("k", address + 2**64, 64) == store.get_into("k", -5, 64) == wrong
    assert memory.raw == bytes(64)
    assert store.put("new", b"x", 5) == wrong and MooncakeDistributedStore().setup(None) == wrong
    assert store.get_buffer("\ud800") is None and store.is_exist("\ud800") == -1 and store.get_batch(["\ud800"]) == [b""]
    assert store.get_into("k", address, 64) == 48
    assert MooncakeDistributedStore().setup("localhost", local_buffer_size=1 << 60) == mooncake.NO_AVAILABLE_HANDLE
