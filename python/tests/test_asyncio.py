"""asyncio: waiting for objects, room and transfers on the event descriptor, without threads."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time

import pytest
from conftest import line

import nanomc
from nanomc import constants as c
from nanomc import errors


def stop(pid):
    """Stops a child. All of its threads have stopped when this returns: until then some would still answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


def test_a_store_that_is_closed_takes_no_descriptor_from_the_next_one():
    async def work():
        first = nanomc.Store(heap_bytes=8 << 20, page_bytes=64 << 10)
        waiting = asyncio.create_task(first.await_ready("never", appear=True))
        await asyncio.sleep(0.01)
        first.close()  # `waiting` has not heard of it yet
        with nanomc.Store(heap_bytes=8 << 20, page_bytes=64 << 10) as second:
            plan = second.open_for_write("coming", 3)
            early = asyncio.create_task(second.aget("coming", timeout_ms=60000))
            with pytest.raises(errors.NanomcError):
                await waiting
            await asyncio.sleep(0.01)
            plan.write(b"abc")
            plan.commit()
            assert await asyncio.wait_for(early, 50) == b"abc"

    asyncio.run(work())


def test_a_value_is_got_as_soon_as_it_is_there(store):
    async def work():
        plan = store.open_for_write("coming", 3)
        early = asyncio.create_task(store.aget("coming"))
        later = asyncio.create_task(store.aget("appears", appear=True))
        await asyncio.sleep(0)
        assert not early.done() and not later.done()
        plan.data[:] = b"abc"
        plan.commit()
        assert await early == b"abc"
        await store.aput("appears", b"def")
        assert await later == b"def"
        with pytest.raises(errors.NotFound):
            await store.aget("none")
        with pytest.raises(TimeoutError):
            await store.await_ready("none", appear=True, timeout_ms=20)
        doomed = store.open_for_write("doomed", 3)
        waits = asyncio.create_task(store.await_ready("doomed"))
        await asyncio.sleep(0)
        doomed.abort()
        with pytest.raises((errors.StaleError, errors.NotFound)):  # as it was seen before it was given up, or not
            await waits

    before = threading.active_count()
    asyncio.run(work())
    assert threading.active_count() == before


def test_batches_wait_for_all(store):
    async def work():
        plans = [store.open_for_write(f"k{at}", 4) for at in range(20)]

        async def write():
            for at, plan in enumerate(plans):
                await asyncio.sleep(0)
                plan.data[:] = at.to_bytes(4, "little")
                plan.commit()

        writing = asyncio.create_task(write())
        got = await store.aget_batch([f"k{at}" for at in range(20)] + ["none"])
        assert got == [at.to_bytes(4, "little") for at in range(20)] + [None]
        await writing
        with pytest.raises(TimeoutError):
            await store.aget_batch(["k0", "none"], appear=True, timeout_ms=20)
        await store.aput_batch(["a", "b"], [b"1", b"2"])
        with pytest.raises(errors.AlreadyExists):
            await store.aput_batch(["a", "c"], [b"1", b"2"])
        assert store.get("c") == b"2"

    asyncio.run(work())


def test_a_put_waits_for_room_and_the_loop_goes_on():
    async def work():
        with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096) as store:
            store.put("all", b"x" * (900 << 10), retain=c.RETAIN_HARD)
            with pytest.raises(errors.BusyError):
                await store.aput("more", b"y" * (500 << 10), wait_ms=10)
            waits = asyncio.create_task(store.aput("more", b"y" * (500 << 10)))
            for _ in range(5):
                await asyncio.sleep(0.001)
            assert not waits.done()
            store.remove("all")
            await waits
            assert store.size("more") == 500 << 10

    asyncio.run(work())


def test_users_tokens_and_asyncio_share_the_descriptor(store):
    async def work():
        store.watch("mine", 5, appear=True)
        waits = asyncio.create_task(store.aget("theirs", appear=True))
        await asyncio.sleep(0)
        store.put("mine", b"1")
        store.put("theirs", b"2")
        assert await waits == b"2"
        taken = []
        while not taken:
            taken = store.completions()
            await asyncio.sleep(0.001)
        assert [done.token for done in taken] == [5]

    asyncio.run(work())


def test_many_waits_in_two_loops(store):
    failed = []

    def loop(number):
        async def work():
            got = await asyncio.gather(*(store.aget(f"{number}-{at}", appear=True) for at in range(50)))
            assert got == [f"{number}-{at}".encode() for at in range(50)]

        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in range(2):
        for at in range(50):
            store.put(f"{number}-{at}", f"{number}-{at}".encode())
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)


def test_namespaces_share_the_events_of_their_client(store):
    async def work():
        tenant = store.namespace("t")
        waits = asyncio.create_task(tenant.aget("k", appear=True))
        other = asyncio.create_task(store.aget("k", appear=True))
        await asyncio.sleep(0)
        tenant.put("k", b"tenant")
        assert await waits == b"tenant" and not other.done()
        store.put("k", b"root")
        assert await other == b"root"

    asyncio.run(work())


def test_waits_that_give_up_leave_no_pile_of_watches(store):
    async def work():
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await store.await_ready("never", appear=True, timeout_ms=1)
        assert len(store._events.watches) == 1
        waits = asyncio.create_task(store.aget("never", appear=True))
        await asyncio.sleep(0)
        store.put("never", b"now")
        assert await waits == b"now" and not store._events.watches

    asyncio.run(work())


def test_closing_a_store_ends_what_asyncio_waits_for():
    async def work():
        store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
        waits = asyncio.create_task(store.aget("never", appear=True))
        await asyncio.sleep(0.01)
        store.close()
        with pytest.raises((errors.Cancelled, errors.ClosedError)):
            await waits
        with pytest.raises(errors.ClosedError):
            await store.aget("never")

    asyncio.run(work())


def test_deaths_are_events(launch, folder):
    process = launch("""
        world = nanomc.World.join("w", rank=1, world_size=2, heap_bytes=1 << 20, directory=folder, join_timeout_ms=60000)
        say("in")
        hear()
    """)

    async def work():
        world = nanomc.World.join("w", rank=0, world_size=2, heap_bytes=1 << 20, directory=folder, join_timeout_ms=60_000)
        assert line(process) == "in"
        process.kill()
        while world.alive(1) == c.RANK_ALIVE:
            await asyncio.wait_for(world.next_event(), 60)
        world.close()

    asyncio.run(work())
    assert process.wait(60) != 0


def test_a_client_of_a_cluster_waits_without_threads(master):
    async def work(node, client):
        values = [os.urandom(i * 997 % 200000) for i in range(100)]
        await asyncio.gather(*(client.aput(f"k{i}", value) for i, value in enumerate(values)))
        got = await asyncio.gather(*(client.aget(f"k{i}") for i in range(100)))
        assert got == values
        assert await node.aget("k7") == values[7]
        into = bytearray(200000)
        assert await client.aget_into("k50", into) == len(values[50]) and into[: len(values[50])] == values[50]
        with pytest.raises(errors.InvalidArgument):
            await client.aget_into("k50", bytearray(1))
        with pytest.raises(errors.NotFound):
            await client.aget("none")
        assert await client.aget("none", None) is None
        with pytest.raises(errors.InvalidArgument):
            await client.aput("", b"v")
        assert await client.aremove("k7") and "k7" not in client
        with pytest.raises(KeyError):
            await client.aremove("k7")
        keys = [f"b{i}" for i in range(600)]
        assert await client.aput_batch(keys, [b"v" * i for i in range(600)]) == [0] * 600
        assert await client.aget_batch([*keys, "none", "k50"]) == [*(b"v" * i for i in range(600)), None, values[50]]
        assert await client.aput_batch(["", "new"], [b"1", b"2"], strict=False) == [c.ERR_INVALID_ARG, 0]
        with pytest.raises(errors.InvalidArgument):
            await client.aput_batch(["", "newer"], [b"1", b"2"])
        assert await client.aput_batch([], []) == [] and await client.aget_batch([]) == []
        said = nanomc.Replicate(metadata=b"said")
        await asyncio.gather(*(client.aput(f"m{i}", b"v", said) for i in range(50)))
        assert await asyncio.gather(*(client.ametadata(f"m{i}") for i in range(50)), node.ametadata("m7")) == [b"said"] * 51
        assert await client.ametadata("k3") == b""
        with pytest.raises(errors.NotFound):
            await client.ametadata("none")
        assert await client.aremove_batch([f"m{i}" for i in range(40)] + ["none"], strict=False) == [0] * 40 + [c.ERR_NOT_FOUND]
        with pytest.raises(errors.NotFound):
            await client.aremove_batch(["none", "m40"])
        assert await client.aremove_batch([f"m{i}" for i in range(41, 50)], wait=False) == [0] * 9 and list(client.keys("m")) == []
        assert await client.aremove_batch([]) == []
        # More than may be under way: they wait for each other.
        assert await asyncio.gather(*(client.aget("k3") for _ in range(5000))) == [values[3]] * 5000
        assert not client._calls.waiting and not client._calls.readers

    before = threading.active_count()
    with nanomc.Client(master, timeout_ms=60000) as node, nanomc.Client(master, timeout_ms=60000) as client:
        node.mount("a", heap_bytes=64 << 20)
        asyncio.run(work(node, client))
        asyncio.run(work2(client))  # another loop
    assert threading.active_count() == before


async def work2(client):
    assert await client.aget("b3") == b"vvv"


def test_a_client_call_that_is_given_up_or_closed_ends(master):
    async def work():
        client = nanomc.Client(master, timeout_ms=60000)
        with pytest.raises(errors.NoRoom):
            await client.aput("k", b"v")
        stop(master.process.pid)
        try:
            given_up = asyncio.create_task(client.aget("k"))
            await asyncio.sleep(0.01)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert not client._calls.waiting
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.aget("k"), 0.05)
            closed = [asyncio.create_task(client.aget("k")) for _ in range(5)]
            await asyncio.sleep(0.01)
            client.close()
            for one in closed:
                with pytest.raises(errors.Cancelled):
                    await one
            with pytest.raises(errors.ClosedError):
                await client.aget("k")
        finally:
            os.kill(master.process.pid, signal.SIGCONT)
        with nanomc.Client(master, timeout_ms=300) as hasty:
            master.process.kill()
            with pytest.raises((errors.DeadlineError, errors.UnavailableError)):
                await hasty.aget("k")

    asyncio.run(work())


def test_two_loops_share_a_client(master):
    """What another thread does for this loop does not take away the descriptor of a call that the loop has begun meanwhile."""

    async def work(client):
        elsewhere = threading.Thread(target=take, args=(client,))
        early = asyncio.create_task(client.aget("k"))
        await asyncio.sleep(0)
        taken = bool(client._calls.waiting)
        elsewhere.start()
        elsewhere.join()  # the loop does nothing until the other thread has ended its call
        assert await client.aget("l") == b"second"
        assert await early == b"first"
        return taken

    def take(client):
        while client._calls.waiting:
            client._calls.take()

    with nanomc.Client(master, timeout_ms=60000) as node, nanomc.Client(master, timeout_ms=60000) as client:
        node.mount("a", heap_bytes=1 << 20)
        client.put("k", b"first")
        client.put("l", b"second")
        assert any([asyncio.run(asyncio.wait_for(work(client), 30)) for _ in range(20)])
        assert not client._calls.waiting and not client._calls.readers


def test_a_descriptor_that_is_used_again_is_not_taken_from_its_loop(master):
    async def work():
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        client = nanomc.Client(master, timeout_ms=60000)
        stop(master.process.pid)
        try:
            early = asyncio.create_task(client.aget("k"))
            await asyncio.sleep(0.01)
            number = nanomc._library.ffi.new("int32_t *")
            nanomc._library.check(nanomc._library.lib.nmc_client_event_fd(client._handle.raw, number))
            read, write = os.pipe()
            closes = threading.Thread(target=client.close)
            closes.start()
            closes.join()
            os.dup2(read, number[0])
            loop.add_reader(number[0], came.set)
            os.write(write, b"x")
            await asyncio.wait_for(came.wait(), 30)
            loop.remove_reader(number[0])
            for descriptor in (read, write, number[0]):
                os.close(descriptor)
            with pytest.raises(errors.Cancelled):
                await early
        finally:
            os.kill(master.process.pid, signal.SIGCONT)

    before = os.listdir("/proc/self/fd")
    asyncio.run(work())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_whoever_waits_for_a_world_hears_that_it_is_left():
    def closed(world):
        world.close()

    async def run(leave):
        worlds = nanomc.World.local(2, heap_bytes=1 << 20)
        number = worlds[0].event_fd()
        waits = [asyncio.ensure_future(worlds[0].next_event()) for _ in range(3)]
        await asyncio.sleep(0.01)
        waits.pop().cancel()  # the others go on waiting
        await asyncio.sleep(0.01)
        assert not any(wait.done() for wait in waits)
        leave(worlds[0])
        for outcome in await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 30):
            assert isinstance(outcome, errors.Cancelled)
        # Also who begins to wait only now.
        with pytest.raises(errors.ClosedError if leave is closed else errors.Cancelled):
            await asyncio.wait_for(worlds[0].next_event(), 30)
        worlds[0].close()
        with pytest.raises(errors.ClosedError):
            await worlds[0].next_event()
        # The number is free for others, and the loop knows nothing of it.
        worlds[1].close()
        pairs = [socket.socketpair() for _ in range(12)]
        for mine, other in pairs + [(other, mine) for mine, other in pairs]:
            if mine.fileno() == number:
                mine.setblocking(False)
                heard = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(mine, 100))
                await asyncio.sleep(0.01)
                other.send(b"12345678")
                assert await asyncio.wait_for(heard, 30) == b"12345678"
        for pair in pairs:
            for one in pair:
                one.close()

    for leave in (closed, nanomc.World.abort, nanomc.World.finalize):
        asyncio.run(run(leave))


def test_news_of_a_world_are_for_all_that_wait(folder, launch):
    other = launch("""
        world = nanomc.World.join("news", world_size=2, heap_bytes=1 << 20, rank=1, directory=folder)
        say("joined")
        hear()
    """)

    async def run():
        loop = asyncio.get_running_loop()
        world = await loop.run_in_executor(
            None, lambda: nanomc.World.join("news", world_size=2, heap_bytes=1 << 20, rank=0, directory=folder))
        waits = [asyncio.ensure_future(world.next_event()) for _ in range(3)]
        await asyncio.sleep(0.05)
        waits.pop(0).cancel()
        other.kill()
        while world.alive(1) == c.RANK_ALIVE:
            await asyncio.wait_for(asyncio.gather(*waits), 30)
            waits = [asyncio.ensure_future(world.next_event()) for _ in range(2)]
        for wait in waits:
            wait.cancel()
        world.close()

    asyncio.run(run())


def test_news_reach_a_loop_in_which_nobody_waited_when_they_came(folder, launch):
    other = launch("""
        world = nanomc.World.join("news", world_size=2, heap_bytes=1 << 20, rank=1, directory=folder)
        say("joined")
        hear()
    """)
    world = nanomc.World.join("news", world_size=2, heap_bytes=1 << 20, rank=0, directory=folder)
    known, gone = threading.Event(), threading.Event()

    async def slow():
        with pytest.raises(asyncio.TimeoutError):
            while True:  # what there is to hear of the join
                await asyncio.wait_for(world.next_event(), 0.3)
        known.set()
        assert gone.wait(60)  # it does something else, and the other loop hears the news
        await asyncio.wait_for(world.next_event(), 30)
        assert world.alive(1) == c.RANK_GONE

    async def quick():
        while world.alive(1) != c.RANK_GONE:
            await asyncio.wait_for(world.next_event(), 60)
        with pytest.raises(asyncio.TimeoutError):
            while True:
                await asyncio.wait_for(world.next_event(), 0.3)

    failed = []

    def run(what):
        try:
            asyncio.run(what())
        except BaseException as error:
            failed.append(error)

    first = threading.Thread(target=run, args=(slow,))
    first.start()
    assert known.wait(60)
    second = threading.Thread(target=run, args=(quick,))
    second.start()
    time.sleep(0.1)
    other.kill()
    second.join(60)
    gone.set()
    first.join(60)
    assert not failed, failed
    world.close()
