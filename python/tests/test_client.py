"""`Client`: nodes, values, batches and what is told when something is missing; and the end of everything in any order."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import finish, line, tell

import nanomc
from nanomc import constants as c
from nanomc import errors


@pytest.fixture
def node(master):
    with nanomc.Client(master, timeout_ms=20000) as made:
        made.mount("a", heap_bytes=32 << 20)
        yield made


@pytest.fixture
def client(master):
    with nanomc.Client(master, timeout_ms=20000) as made:
        yield made


def test_values_of_any_kind_are_put_and_read(node, client):
    for number, value in enumerate([b"", b"x", bytearray(b"abc"), memoryview(b"hello"), os.urandom(300000)]):
        client.put(f"k{number}", value)
        assert client.get(f"k{number}") == bytes(value) == node.get(f"k{number}")
        assert client.size(f"k{number}") == len(bytes(value)) and f"k{number}" in client
    client.put_slices(b"parts", [b"one ", bytearray(b"two")])
    first, second = bytearray(4), bytearray(10)
    assert client.get_slices("parts", [first, second]) == 7 and (first, second[:3]) == (b"one ", b"two")
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1000, dtype="f4").reshape(10, 100)
    client.put("array", array[:, ::2])
    into = numpy.zeros((10, 50), dtype="f4")
    assert client.get_into("array", into) == 2000 and (into == array[:, ::2]).all()


def test_what_is_missing_is_told(node, client):
    with pytest.raises(KeyError):
        client.get("none")
    assert client.get("none", None) is None and client.size("none") is None and client.query("none") == []
    with pytest.raises(errors.NotFound):
        client.remove("none")
    client.put("k", b"v")
    with pytest.raises(errors.AlreadyExists):
        client.put("k", b"w")
    with pytest.raises(errors.InvalidArgument):
        client.get_into("k", bytearray())
    with pytest.raises(errors.InvalidArgument):
        client.put("", b"v")
    assert client.remove("k") and "k" not in client


def test_batches_tell_of_every_item(node, client):
    keys, values = [f"b{i}" for i in range(300)], [os.urandom(i * 7) for i in range(300)]
    assert client.put_batch(keys, values) == [0] * 300
    assert client.get_batch(keys) == values
    client.put("large", b"l" * 200000)
    assert client.get_batch(["b3", "none", "large"]) == [values[3], None, b"l" * 200000]
    assert client.exists_batch(["b3", "none"]) == [True, False]
    told = client.put_batch(["new", ""], [b"1", b"2"], strict=False)
    assert told == [0, c.ERR_INVALID_ARG]
    with pytest.raises(errors.InvalidArgument):
        client.put_batch(["newer", ""], [b"1", b"2"])
    with pytest.raises(ValueError):
        client.put_batch(["a"], [])
    assert client.put_batch([], []) == [] and client.get_batch([]) == [] and client.exists_batch([]) == []
    assert client.remove_all() and client.exists_batch(keys[:3]) == [False] * 3


def test_a_store_that_goes_on_to_the_cluster_reads_what_others_have(node, client):
    client.put("far", b"v" * 100000)
    client.put("farther", b"w")
    with nanomc.Store(heap_bytes=4 << 20) as alone, client.open_store(alone, 20000) as far:
        alone.put("near", b"n")
        assert far.get("far") == b"v" * 100000 and far.get("near") == b"n"
        assert far.state_batch(["near", "far", "none"]) == [c.OBJECT_READY, c.OBJECT_ELSEWHERE, c.OBJECT_ABSENT]
        assert far.get_batch(["near", "far", "none", "farther"]) == [b"n", b"v" * 100000, None, b"w"]
        assert far.match_prefix(["near", "far", "none", "far"]) == 2 and "far" in far and far.size("far") == 100000
        part = bytearray(10)
        assert far.get_slices("far", [part], offset=99990) == 100000 and part == b"v" * 10
        assert "far" not in alone and alone.match_prefix(["near", "far"]) == 1
        with pytest.raises(errors.NotFound):
            far.get("none")
        client.close()
        assert "far" not in far and far.get("near") == b"n"


def test_with_certificates_nobody_else_is_heard(folder, monkeypatch, request):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for line_of in [f"req -x509 {key} -days 2 -subj /CN=test -keyout ca.key -out ca.pem",
                    f"req {key} -subj /CN=all -keyout all.key -out all.csr",
                    "x509 -req -days 1 -in all.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile all.ext -out all.pem"]:
        with open(f"{folder}/all.ext", "w") as extensions:
            extensions.write("extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=DNS:all\n")
        subprocess.run(["openssl", *line_of.split()], cwd=folder, check=True, capture_output=True)
    files = {"tls_cert": f"{folder}/all.pem", "tls_key": f"{folder}/all.key", "tls_ca": f"{folder}/ca.pem"}
    for name, path in files.items():
        monkeypatch.setenv(f"NMC_MASTER_{name.upper()}", path)
    master = request.getfixturevalue("master")
    with nanomc.Client(master, timeout_ms=20000, **files) as made:
        made.mount("a", heap_bytes=32 << 20)
        value = os.urandom(300000)
        made.put("k", value)
        assert made.get("k") == value
        with nanomc.Client(master, timeout_ms=20000) as other, pytest.raises(errors.AccessError):
            other.put("k2", b"x")
    with pytest.raises(errors.InvalidArgument, match="together"):
        nanomc.Client(master, tls_cert=files["tls_cert"])


def test_keys_are_listed_page_by_page(master, node, client):
    keys = {f"{'p' if i % 3 else 'q'}/{i:04}/{'x' * 80}".encode() for i in range(1200)}  # more than a message holds
    client.put_batch(sorted(keys), [b"v"] * len(keys))
    assert set(client.keys()) == keys and len(list(client.keys())) == len(keys)
    assert set(client.keys("q/")) == {key for key in keys if key.startswith(b"q/")} and list(client.keys(b"none")) == []
    first = next(client.keys())
    assert first in keys
    with nanomc.Client(master, namespace="other", timeout_ms=20000) as other:
        other.put("apart", b"v")
        assert list(other.keys()) == [b"apart"]
    assert client.remove_all() and list(client.keys()) == []


def test_what_is_said_about_a_value_is_told(node, client):
    most = os.urandom(c.MAX_METADATA)
    client.put("said", b"v" * 200000, nanomc.Replicate(metadata=most))
    client.put("none", b"")
    for reader in (node, client):  # one has it, the other asks
        assert reader.metadata("said") == most and reader.metadata("none") == b""
        assert reader.get_with_metadata("said") == (b"v" * 200000, most) and reader.get_with_metadata("none") == (b"", b"")
        assert reader.metadata_batch(["none", "missing", "said"]) == [b"", None, most] and reader.metadata_batch([]) == []
        for missing in (reader.metadata, reader.get_with_metadata):
            with pytest.raises(errors.NotFound):
                missing("missing")
        with pytest.raises(errors.InvalidArgument):
            reader.metadata_batch(["said", ""])
    with nanomc.Store(heap_bytes=4 << 20) as alone, client.open_store(alone, 20000) as far:
        alone.put("near", b"n", metadata=b"here")
        assert far.metadata("said") == most and far.metadata("near") == b"here"
        for store in (alone, far):
            with pytest.raises(errors.NotFound):
                store.metadata("missing" if store is far else "said")
    client.remove("said")
    client.put("said", b"w", nanomc.Replicate(metadata=b"anew"))
    assert node.metadata("said") == client.metadata("said") == b"anew"


def test_many_are_removed_with_one_call(node, client):
    keys = [f"r{i}" for i in range(600)]
    for remover in (node, client):
        client.put_batch(keys, [b"v"] * 600)
        told = remover.remove_batch(keys[:300] + ["missing"], strict=False)
        assert told == [0] * 300 + [c.ERR_NOT_FOUND] and client.exists_batch(keys) == [False] * 300 + [True] * 300
        with pytest.raises(errors.NotFound) as raised:
            remover.remove_batch(["missing", keys[300]])
        assert raised.value.statuses == [c.ERR_NOT_FOUND, 0] and keys[300] not in client
        assert remover.remove_batch(keys[301:], wait=False) == [0] * 299 and list(client.keys()) == []
        assert remover.remove_batch([]) == []
    with pytest.raises(errors.InvalidArgument):
        client.remove_batch([""])


def test_values_of_a_batch_may_lie_in_pieces(node, client):
    assert client.put_slices_batch(["p0", "p1", "p2"], [[b"one ", b"two"], [], [b"x" * 70000]]) == [0, 0, 0]
    assert client.get_batch(["p0", "p1", "p2"]) == [b"one two", b"", b"x" * 70000]
    head, tail, all_of_it = bytearray(5), bytearray(10), bytearray(70000)
    assert client.get_slices_batch(["p0", "none", "p2"], [[head, tail], [], [all_of_it]]) == ([0, c.ERR_NOT_FOUND, 0], [7, 0, 70000])
    assert head + tail[:2] == b"one two" and all_of_it == b"x" * 70000
    with pytest.raises(ValueError):
        client.put_slices_batch(["a"], [])
    with pytest.raises(TypeError):
        client.put_slices_batch(["a"], [5])


def test_a_drain_says_what_is_left_and_is_waited_for(master, node, client):
    client.put_batch([f"d{i}" for i in range(6)], [b"v"] * 6)
    begun = time.monotonic()
    left = client.drain("a", 1200)
    assert 1.1 < time.monotonic() - begun < 30
    assert not left and left.left == 6 and sum(f'"d{i}"' in left.what for i in range(6)) == 4 and "and 2 more" in left.what
    with pytest.raises(errors.InvalidArgument):
        client.drain("a", -2)
    with nanomc.Client(master, timeout_ms=20000) as other:
        other.mount("b", heap_bytes=8 << 20)
        done = client.drain("a", 60000)
        assert done and done == nanomc.Drained(True, 0, "") and client.drain("a", -1)
        node.unmount("a")
        assert client.get_batch([f"d{i}" for i in range(6)]) == [b"v"] * 6


class OnDevice:
    """Says that it is memory of a GPU, at an address where nothing is."""

    def __init__(self, nbytes, address=1 << 44):
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3}


def test_memory_that_no_driver_knows_is_refused_before_anybody_touches_it(node, client):
    import asyncio

    far = OnDevice(100)
    client.put("k", b"v")
    calls = [lambda: client.put("g", far), lambda: client.put_slices("g", [b"x", far]), lambda: client.put_batch(["g"], [far]),
             lambda: client.put_slices_batch(["g"], [[far]]), lambda: client.get_into("k", far), lambda: client.get_slices("k", [far]),
             lambda: client.get_slices_batch(["k"], [[far]]), lambda: client.mount("g", memory=far)]
    for call in calls:
        with pytest.raises(errors.UnsupportedError, match="100 bytes at 0x100000000000 are on a GPU"):
            call()
    for wait in (lambda: client.aput("g", far), lambda: client.aget_into("k", far), lambda: client.aput_batch(["g"], [far])):
        with pytest.raises(errors.UnsupportedError, match="100 bytes at 0x100000000000 are on a GPU"):
            asyncio.run(wait())
    assert "g" not in client and client.get("k") == b"v"
    client.put("empty", OnDevice(0, 0))
    assert client.get("empty") == b""


def test_a_segment_may_be_on_a_gpu_or_lie_in_memory_of_the_program(master, node, client):
    import ctypes
    import mmap

    if nanomc.memory.cuda_device_of(0) == -1 and not os.path.exists("/dev/nvidiactl"):
        with pytest.raises(errors.UnsupportedError):
            client.mount("gpu", heap_bytes=8 << 20, heap_kind=c.HEAP_CUDA, device=0)
    memory = mmap.mmap(-1, 4 << 20)
    client.mount("lent", memory=memory)
    value = os.urandom(100000)
    node.put("l", value, nanomc.Replicate(locations=["lent"]))
    assert client.get("l") == node.get("l") == value and memory.find(value[:4096]) >= 0
    assert {one.name: one.capacity for one in node.segments()}["lent"] == 4 << 20
    with pytest.raises(BufferError):
        memory.close()  # it is in use
    client.unmount("lent")
    assert not client._lent
    memory[:] = b"m" * len(memory)
    memory.close()
    assert client.get("l", None) is None
    part = bytearray(2 << 20)
    client.mount("part", memory=part, heap_bytes=1 << 20, world_size=1)
    node.put("l", value, nanomc.Replicate(locations=["part"]))
    assert value[:4096] in bytes(part[: 1 << 20]) and not any(part[1 << 20 :])
    client.close()
    part.clear()  # nobody holds it
    for wrong, raised in ((b"read-only", ValueError), (5, TypeError), (bytearray(100), errors.NanomcError)):
        with pytest.raises(raised):
            node.mount("wrong", memory=wrong)
    with pytest.raises(ValueError):
        node.mount("wrong", memory=bytearray(4096), heap_bytes=8192)
    with pytest.raises(errors.InvalidArgument):
        node.mount("wrong", memory=bytearray(1 << 20), world_size=2)
    assert [name for name, _ in node._lent] == [] and ctypes.sizeof(ctypes.c_void_p) == 8


def test_a_drain_that_is_given_up_opens_the_segment_again(node, client):
    assert not client.drain("a")  # its node has not heard of it
    with pytest.raises(errors.NoRoom):
        client.put("k", b"v")
    client.undrain("a")
    client.put("k", b"v")
    with pytest.raises(errors.NotFound):
        client.undrain("none")


def test_what_was_read_goes_and_the_order_of_reading_is_chosen(master, node, client):
    with nanomc.Client(master, timeout_ms=20000, expire_ms=300, read_order=c.READ_SPREAD) as other:
        client.put("read", b"v")
        client.put("kept", b"v")
        assert other.get("read") == b"v" and client.get("kept") == b"v"
        end = time.monotonic() + 30
        while client.exists("read") and time.monotonic() < end:
            time.sleep(0.05)
        assert not client.exists("read") and client.get("kept") == b"v"
    with pytest.raises(errors.InvalidArgument):
        nanomc.Client(master, read_order=7)
    with pytest.raises(errors.InvalidArgument):
        nanomc.Client(master, expire_ms=0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what a placement raises is printed
def test_a_placement_says_where_values_go(master, node, client):
    with nanomc.Store(heap_bytes=8 << 20, page_bytes=4096) as store, nanomc.Client(master, timeout_ms=20000) as other:
        other.attach_store("b", store)
        asked = []

        def to_b(key, nbytes, copies, segments):
            asked.append((key, nbytes, copies))
            return [at for at, one in enumerate(segments) if one.name == "b"]

        client.set_placement(to_b)
        for i in range(4):
            client.put(f"p{i}", b"v" * 100)
            assert store.get(f"p{i}") == b"v" * 100
        assert asked == [(f"p{i}".encode(), 100, 1) for i in range(4)]
        for wrong in (lambda *_: [99], lambda *_: [0] * 17, lambda *_: 1 // 0, lambda *_: [-1]):
            client.set_placement(wrong)
            with pytest.raises(errors.InvalidArgument):
                client.put("wrong", b"v")
        client.set_placement(None)
        client.put("free", b"v", nanomc.Replicate(locations=["a"]))
        assert client.get("free") == b"v"


def test_copies_segments_and_nodes(master, node, client):
    with nanomc.Store(heap_bytes=8 << 20, page_bytes=4096) as store, nanomc.Client(master, timeout_ms=20000) as other:
        other.attach_store("b", store)
        assert {one.name: one.state for one in client.segments()} == {"a": c.SEGMENT_OK, "b": c.SEGMENT_OK}
        assert all(one.host == "127.0.0.1" and one.here for one in client.segments())
        client.put("two", b"v" * 5000, nanomc.Replicate(copies=2, retain=c.RETAIN_SOFT, priority=1, metadata=b"said"))
        copies = client.query("two")
        assert len(copies) == 2 and copies[0].put_id == copies[1].put_id and {one.nbytes for one in copies} == {5000}
        assert store.get("two") == b"v" * 5000 and store.metadata("two") == b"said"
        client.put("there", b"w", nanomc.Replicate(locations=["b"]))
        assert store.get("there") == b"w"
        client.put("too", b"w", nanomc.Replicate(locations=[nanomc.Location("b", c.MEDIA_RAM)]))
        store.put("own", b"mine")
        other.sync()
        assert client.get("own") == b"mine"
        other.unmount("b")
        with pytest.raises(errors.NotFound):
            other.unmount("b")
        assert store.get("own") == b"mine"
    assert client.get("two") == b"v" * 5000


def test_without_a_master_calls_say_so(master, node):
    with nanomc.Client(master, timeout_ms=500) as hasty:
        node.put("k", b"v")
        master.process.kill()
        master.process.wait()
        assert node.get("k") == b"v"  # it has it
        for call in (lambda: hasty.get("k"), lambda: hasty.put("j", b"v"), hasty.segments, lambda: hasty.exists("k")):
            with pytest.raises((errors.UnavailableError, errors.DeadlineError)):
                call()


def test_what_cannot_be_is_refused(master):
    with pytest.raises(errors.InvalidArgument):
        nanomc.Client("")
    with pytest.raises(errors.AccessError):
        nanomc.Client("192.0.2.1:50051")
    with pytest.raises(errors.InvalidArgument):
        nanomc.Client(master, protocol="carrier pigeon")
    made = nanomc.Client(master)
    made.close()
    made.close()
    assert made.closed
    with pytest.raises(errors.ClosedError):
        made.get("k")
    with pytest.raises(errors.ClosedError):
        made.put_batch(["k"], [b"v"])


def test_what_is_of_a_wrong_type_is_refused_before_the_call(node, client):
    for wrong in (None, 5, b"a"):
        for call in (client.mount, client.unmount, client.drain, client.undrain):
            with pytest.raises(TypeError):
                call(wrong, **({"heap_bytes": 1 << 20} if call == client.mount else {}))
        with pytest.raises(TypeError):
            client.open_store(wrong)
        with pytest.raises(TypeError):
            client.attach_store("b", wrong)
    with pytest.raises(TypeError):
        client.set_placement(5)
    with pytest.raises(TypeError):
        client.put("k", b"v", nanomc.Replicate(locations=[5]))
    assert client.get_batch({"a": 1}) == [None]
    assert client.get_batch(key for key in ("a",)) == [None]


def test_a_forked_child_gets_an_error(master, launch):
    program = """
        client = nanomc.Client(sys.argv[1])
        pid = os.fork()
        if pid == 0:
            try:
                client.get("k")
            except errors.ForkedError:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if sys.version_info >= (3, 9) else 7)
    """
    assert finish(launch(program, master)).strip() == "7"


def test_it_ends_in_any_order(master):
    for order in range(3):
        store = nanomc.Store(heap_bytes=8 << 20, page_bytes=4096)
        made = nanomc.Client(master, timeout_ms=20000)
        made.attach_store(f"s{order}", store)
        made.put(f"k{order}", b"v")
        if order == 0:
            store.close()  # the client keeps it open
            assert made.get("k0") == b"v"
            made.close()
        elif order == 1:
            made.close()
            assert store.get("k1") == b"v"
        del store, made
        gc.collect()


def test_another_process_reads_what_this_one_has_until_it_is_killed(master, client, launch):
    program = """
        client = nanomc.Client(sys.argv[1], timeout_ms=20000)
        client.mount(sys.argv[2], heap_bytes=16 << 20)
        say("mounted")
        hear()
    """
    first, second = launch(program, master, "a"), launch(program, master, "b")
    assert line(first) == line(second) == "mounted"
    value = os.urandom(100000)
    client.put("two", value, nanomc.Replicate(copies=2))
    assert len(client.query("two")) == 2
    os.kill(first.pid, signal.SIGKILL)
    start = time.monotonic()
    assert client.get("two") == value and time.monotonic() - start < 30
    tell(second)
    second.wait(60)
