"""Several processes: they meet, share, die for real, and the others go on."""

from __future__ import annotations

import signal
import time

import pytest
from conftest import finish, line, tell

import nanomc
from nanomc import constants as c
from nanomc import errors

JOIN = """
rank = int(sys.argv[1])
world = nanomc.World.join("w", rank=rank, world_size=int(sys.argv[2]), heap_bytes=4 << 20, directory=folder, join_timeout_ms=60000)
store = nanomc.Store(world, page_bytes=4096, attach_timeout_ms=60000)
"""


def test_one_process_writes_and_the_others_read_in_place(launch):
    reader = JOIN + """
store.wait_ready("k", appear=True, timeout_ms=60000)
with store.pin("k") as view:
    say(f"{len(view)} {view.data[99999]} {view.info.owner_rank} {store.metadata('k').decode()}")
world.barrier(60000)
"""
    writer = JOIN + """
store.put("k", b"\\x07" * 100000, preferred_segment=2, contiguous=True, metadata=b"m")
world.barrier(60000)
"""
    readers = [launch(reader, rank, 3) for rank in (1, 2)]
    done = launch(writer, 0, 3)
    assert [finish(process).strip() for process in readers] == ["100000 7 2 m"] * 2
    finish(done)


def test_heaps_words_and_barriers_are_shared(launch):
    program = """
rank = int(sys.argv[1])
with nanomc.World.join("w", rank=rank, world_size=2, heap_bytes=1 << 20, directory=folder, join_timeout_ms=60000) as world:
    info = world.info()
    assert (info.rank, info.world_size, world.rank, world.size) == (rank, 2, rank, 2)
    other = 1 - rank
    mine = world.heap_view(other, 4096, 16)   # the heap of the other
    mine[:5] = b"from" + bytes([48 + rank])
    world.word(rank, 5).value = 17
    world.barrier(60000)
    assert bytes(world.heap_view(rank, 4096, 5)) == b"from" + bytes([48 + other])
    assert world.word(other, 5).value == 17
    address = world.ptr(other, 4096, 16)
    assert world.locate(address) == (other, 4096)
    assert world.base_table().host[other] == address - 4096 and world.base_table().device == 0
    assert world.alive(other) == c.RANK_ALIVE and world.rank_of_device_rank(other) == other
    assert world.rank_info(other).pid != os.getpid() and world.rank_info(rank).pid == os.getpid()
    assert world.async_error() is None and "rank" in world.dump()
    world.selftest(3, 60000)
    try:
        world.write_word_async(0, 0, 1, None)
        say("no error")
    except errors.UnsupportedError:
        pass
    world.barrier(60000)
say("ok")
"""
    ranks = [launch(program, rank) for rank in (0, 1)]
    assert [finish(process).strip() for process in ranks] == ["ok", "ok"]


def test_a_killed_reader_never_blocks_eviction(launch):
    reader = JOIN + """
store.wait_ready("pinned", appear=True, timeout_ms=60000)
view = store.pin("pinned")
say("pinned")
hear()
"""
    owner = JOIN + """
store.put("pinned", b"x" * 8192)
say("stored")
hear()
store.remove("pinned")
held = store.stats().limbo_bytes
world.alive(1) == c.RANK_ALIVE or say("dead?")
say(f"limbo {held}")
hear()
deadline = time.monotonic() + 60
while time.monotonic() < deadline and (world.alive(1) != c.RANK_GONE or store.stats().limbo_bytes):
    time.sleep(0.02)
    store.evict_until_below(0, 0)
say(f"{world.alive(1)} {store.stats().limbo_bytes}")
"""
    first, second = launch(owner, 0, 2), launch(reader, 1, 2)
    assert line(first) == "stored" and line(second) == "pinned"
    tell(first)
    assert line(first) == "limbo 8192"  # control: the pin of a living reader does block it
    second.send_signal(signal.SIGKILL)
    second.wait()
    tell(first)
    assert line(first) == f"{c.RANK_GONE} 0"
    finish(first)


def test_a_killed_writer_leaves_no_half_object(launch):
    writer = JOIN + """
store.put("whole", b"x" * 8192)
plan = store.open_for_write("half", 8192)
plan.data[:4096] = b"y" * 4096
say("half")
hear()
"""
    other = JOIN + """
store.wait_ready("whole", appear=True, timeout_ms=60000)
say("ready")
hear()
try:
    store.wait_ready("half", timeout_ms=60000)
    say("readable")
except (errors.PeerLost, errors.NotFound, errors.StaleError) as error:
    say(error.name)
say(store.get("whole") == b"x" * 8192)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        store.put("half", b"now")
        break
    except errors.NanomcError:
        time.sleep(0.02)
say(store.get("half"))
"""
    first, second = launch(other, 0, 2), launch(writer, 1, 2)
    assert line(second) == "half" and line(first) == "ready"
    second.send_signal(signal.SIGKILL)
    second.wait()
    tell(first)
    assert line(first) in ("NMC_ERR_PEER_LOST", "NMC_ERR_NOT_FOUND", "NMC_ERR_STALE")
    assert line(first) == "True" and line(first) == "b'now'"
    finish(first)


def test_reads_go_on_without_the_master(launch, folder):
    owner = JOIN + """
store.put("k", b"value")
say("stored")
hear()
"""
    first = launch(owner, 0, 2)
    world = nanomc.World.join("w", rank=1, world_size=2, heap_bytes=4 << 20, directory=folder, join_timeout_ms=60_000)
    store = nanomc.Store(world, page_bytes=4096, attach_timeout_ms=60_000, call_timeout_ms=2_000)
    assert line(first) == "stored" and store.get("k") == b"value"
    view = store.pin("k")
    first.send_signal(signal.SIGKILL)
    first.wait()
    for _ in range(50):
        assert store.get("k") == b"value" and bytes(view) == b"value"
    with pytest.raises(errors.UnavailableError):
        for _ in range(200):
            store.put("new", b"x", replace=True)
    store.close()
    world.close()
    del view


def test_a_master_outside_of_the_ranks(folder):
    with nanomc.Master("w", world_size=2, heap_bytes=1 << 20, directory=folder):
        worlds = nanomc.World.join_ranks(
            "w", [0, 1], world_size=2, heap_bytes=1 << 20, directory=folder, master=c.MASTER_EXTERNAL, join_timeout_ms=60_000)
        stores = [nanomc.Store(world, page_bytes=4096) for world in worlds]
        stores[0].put("k", b"x")
        assert stores[1].get("k") == b"x"
        for thing in stores + worlds:
            thing.close()


def test_ctrl_c_ends_a_wait(launch):
    process = launch("""
        store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
        try:
            say("waits")
            store.wait_ready("never", appear=True, timeout_ms=600_000)
        except KeyboardInterrupt:
            say("interrupted")
    """)
    assert line(process) == "waits"
    time.sleep(0.2)  # so that it mostly waits by now; before that, it is interrupted all the same
    process.send_signal(signal.SIGINT)
    assert finish(process).strip() == "interrupted"


def test_the_name_of_a_missing_rank_is_in_the_message(folder):
    with pytest.raises(errors.DeadlineError, match="1"):
        nanomc.World.join("w", rank=0, world_size=2, heap_bytes=1 << 20, directory=folder, join_timeout_ms=200)
    with pytest.raises(errors.InvalidArgument):
        nanomc.World.join("bad/name", world_size=1, heap_bytes=1 << 20, directory=folder)


def test_the_log_tells_of_a_death(launch, folder):
    said = []
    nanomc.set_log_callback(lambda level, text: said.append((level, text)))
    try:
        process = launch(JOIN + "say('in')\nhear()", 1, 2)
        world = nanomc.World.join("w", rank=0, world_size=2, heap_bytes=4 << 20, directory=folder, join_timeout_ms=60_000)
        store = nanomc.Store(world, page_bytes=4096, attach_timeout_ms=60_000)
        assert line(process) == "in"
        process.kill()
        process.wait()
        import select

        while world.alive(1) != c.RANK_GONE:
            select.select([world.event_fd()], [], [], 0.05)
        store.close()
        world.close()
    finally:
        nanomc.set_log_callback(None)
    assert any("1" in text for _, text in said), said


def test_a_wait_for_room_hears_ctrl_c(launch):
    process = launch("""
        store = nanomc.Store(heap_bytes=1 << 20, page_bytes=64 << 10)
        held = store.open_for_write("held", 900 << 10)
        store.put("fits", b"x", wait_ms=600_000)
        for wait in (lambda: store.put("k", bytes(800 << 10), wait_ms=600_000),
                     lambda: store.put_batch(["k"], [bytes(800 << 10)], wait_ms=600_000),
                     lambda: store.open_batch(["l", "k"], [100, 800 << 10], wait_ms=600_000)):
            try:
                say("waits")
                wait()
            except KeyboardInterrupt:
                say("heard")
        assert "k" not in store
    """)
    for _ in range(3):
        assert line(process) == "waits"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert line(process) == "heard"
    finish(process)
