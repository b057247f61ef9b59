"""What is closed, collected, forked or used by many threads: an exception, never a crash, and never memory that is gone."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time

import pytest
from conftest import HERE, finish

import nanomc
from nanomc import _library, errors


def test_views_outlive_their_store():
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    store.put("k", b"x" * 5000)
    view = store.pin("k")
    data = view.data
    store.close()
    assert bytes(data) == b"x" * 5000  # still there: somebody looks at it
    for use in (lambda v: v.data, lambda v: v.array(), lambda v: v.extents(), lambda v: v.metadata(), bytes):
        with pytest.raises(errors.ClosedError):
            use(view)
    view.unpin()
    assert data[4999] == ord("x")
    handle = store._handle
    assert handle._owned != handle.raw  # not destroyed yet
    del data, view
    assert handle._owned == handle.raw  # now it is


def test_a_pin_that_nobody_looks_at_does_not_keep_a_closed_store():
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    store.put("k", b"x")
    view, plan = store.pin("k"), store.open_for_write("p", 5)
    store.close()
    assert store._handle._owned == store._handle.raw and not view.pinned
    for use in (lambda: view.data, lambda: plan.data, plan.commit):
        with pytest.raises(errors.ClosedError):
            use()


def test_stores_outlive_their_world():
    world = nanomc.World.local(1, heap_bytes=1 << 20)[0]
    store = nanomc.Store(world, page_bytes=4096)
    store.put("k", b"x")
    heap = world.heap(0)
    word = world.word(0, 3)
    world.close()
    assert store.get("k") == b"x"  # the rank stays until the store is closed
    assert heap.numpy().nbytes == 1 << 20
    for use in (world.info, lambda: word.value, lambda: setattr(word, "value", 7), lambda: world.word(0, 1), lambda: world.heap(0)):
        with pytest.raises(errors.ClosedError):
            use()
    with pytest.raises(errors.ClosedError):
        nanomc.Store(world, page_bytes=4096)
    store.close()
    assert heap.numpy()[0] in range(256)


def test_every_order_of_collection_is_fine():
    names = ["world", "store", "namespace", "view", "array", "data", "plan", "memory"]
    for count, order in enumerate(itertools.permutations(names)):
        if count % 401:  # a hundred of them
            continue
        world = nanomc.World.local(1, heap_bytes=1 << 20)[0]
        store = nanomc.Store(world, page_bytes=4096)
        namespace = store.namespace("n")
        namespace.put("k", b"0123456789")
        view = namespace.pin("k")
        plan = store.open_for_write("p", 10)
        things = {"world": world, "store": store, "namespace": namespace, "view": view, "array": view.array(), "data": view.data[2:4],
                  "plan": plan, "memory": plan.data}
        del world, store, namespace, view, plan
        for name in order:
            del things[name]
            if "data" in things:
                assert bytes(things["data"]) == b"23"
            if "memory" in things:
                things["memory"][0] = 1
    gc.collect()


def test_closing_in_every_order_is_fine():
    for order in itertools.permutations(["world", "store", "namespace", "view", "plan"]):
        world = nanomc.World.local(1, heap_bytes=1 << 20)[0]
        store = nanomc.Store(world, page_bytes=4096)
        namespace = store.namespace("n")
        namespace.put("k", b"0123456789")
        things = {"world": world, "store": store, "namespace": namespace, "view": namespace.pin("k"), "plan": store.open_for_write("p", 10)}
        for name in order:
            thing = things[name]
            try:
                {"view": lambda: thing.unpin(), "plan": lambda: thing.abort()}.get(name, lambda: thing.close())()
            except errors.ClosedError:
                assert name == "plan"  # its store is closed


def test_reference_cycles_are_collected():
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096, pin_slots=4)
    store.put("k", b"x")
    for _ in range(10):
        loop = [store.pin("k")]
        loop.append(loop)
        del loop
        gc.collect()
    store.pin("k")


def test_a_program_that_ends_in_the_middle_ends_well(launch):
    """Nothing is closed, and views are in globals when the interpreter ends."""
    out = finish(launch("""
        import atexit
        def late():
            say(bytes(data)[:1].decode())
        atexit.register(late)
        world = nanomc.World.join("end", world_size=1, heap_bytes=1 << 20, rank=0, directory=folder)
        store = nanomc.Store(world, page_bytes=4096)
        store.put("k", b"xyz")
        view = store.pin("k")
        data = view.data
        plan = store.open_for_write("p", 10)
        nanomc.log_to()
        class Late:
            def __init__(self, view): self.view = view
            def __del__(self):
                try: self.view.unpin()
                except Exception: pass
        keeper = Late(store.pin("k"))
    """))
    assert out.strip() == "x"


def test_a_forked_child_gets_a_clear_error(launch):
    out = finish(launch("""
        store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
        store.put("k", b"parent")
        view = store.pin("k")
        child = os.fork()
        if child == 0:
            try:
                for call in (lambda: store.get("k"), lambda: store.put("q", b"1"), lambda: view.data, lambda: store.pin("k"),
                             lambda: nanomc.Store(heap_bytes=1 << 20)):
                    try:
                        call()
                        say("no error")
                    except errors.ForkedError as error:
                        assert error.status == c.ERR_FORKED and error.message
                view.unpin(); store.close()
                del view, store
                say("child done")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert store.get("k") == b"parent" and bytes(view) == b"parent"
        say("parent done")
    """))
    assert out.split("\n")[:2] == ["child done", "parent done"]


def test_a_child_is_not_caught_in_locks_of_threads_that_it_does_not_have(launch):
    assert finish(launch("""
        import threading
        store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
        store.put("k", b"x")
        view = store.pin("k")
        held = threading.Event()
        def hold():
            with store._handle._lock, store._events._lock:
                held.set()
                time.sleep(3600)
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            view.unpin()
            store.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        say("ok")
        os._exit(0)
    """)).strip() == "ok"


def test_a_child_that_forks_before_the_first_call_works(launch):
    assert finish(launch("""
        child = os.fork()
        store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
        store.put("k", b"x")
        assert store.get("k") == b"x"
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        say("ok")
    """)).strip() == "ok"


def test_threads_share_a_store():
    store = nanomc.Store(heap_bytes=16 << 20, page_bytes=4096)
    failed = []

    def work(number: int) -> None:
        try:
            for at in range(300):
                key = f"{number}-{at % 10}"
                store.put(key, key.encode() * 50, replace=True)
                with store.pin(key) as view:
                    assert bytes(view) == key.encode() * 50
                assert store.get(key) == key.encode() * 50
                store.get(f"{(number + 1) % 8}-{at % 10}", None)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    store.close()


def test_closing_a_store_ends_waits_of_other_threads():
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    raised = []
    ready = threading.Event()

    def wait() -> None:
        ready.set()
        try:
            store.wait_ready("never", appear=True, timeout_ms=60_000)
        except errors.NanomcError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    store.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(raised[0], (errors.Cancelled, errors.ClosedError))


def test_a_store_is_closed_while_threads_use_it():
    """Round after round, at another moment each time: whoever is late gets an error, and what was handed out stays readable."""
    for at in range(20):
        world = nanomc.World.local(1, heap_bytes=1 << 20)[0]
        store = nanomc.Store(world, page_bytes=4096)
        store.put("k", b"z" * 9000, contiguous=True)
        kept, failed, begun = [], [], threading.Barrier(5)

        def use() -> None:
            begun.wait()
            try:
                for number in range(10_000):
                    with store.pin("k") as view:
                        data = view.data
                        if number % 50 == 0:
                            kept.append(data[10:20])
                        assert data[8999] == 122
                    store.put(f"n{number % 8}", b"x" * 100, replace=True)
            except errors.NanomcError as error:
                if not isinstance(error, (errors.ClosedError, errors.Cancelled)):
                    failed.append(error)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        time.sleep(at / 2000)
        store.close()
        world.close()
        for thread in threads:
            thread.join(60)
        assert not failed, failed
        assert all(bytes(piece) == b"z" * 10 for piece in kept)
        del kept[:]
        assert store._handle._owned == store._handle.raw


def test_other_threads_run_while_one_waits():
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    done = []
    thread = threading.Thread(target=lambda: (store.wait_ready("k", appear=True, timeout_ms=60_000), done.append(1)))
    thread.start()
    store.put("k", b"x")  # would never come if the wait held the lock of the interpreter
    thread.join(30)
    assert done == [1]


def test_use_after_close_and_nonsense_handles():
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    store.close()
    store.close()
    for call in (lambda: store.get("k"), lambda: store.put("k", b""), lambda: store.stats(), lambda: store.pin("k"),
                 lambda: list(store.keys()), lambda: store.namespace("n"), lambda: store.get_batch(["k"]), lambda: store.dump()):
        with pytest.raises(errors.ClosedError):
            call()


def test_without_a_library_every_call_says_what_to_do():
    program = "import nanomc\ntry:\n    nanomc.Store(heap_bytes=1)\nexcept ImportError as error:\n    print(error)"
    environment = dict(os.environ, NMC_LIBRARY="/nowhere/libnanomc.so", PYTHONPATH=str(HERE.parent))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "/nowhere/libnanomc.so is not there" in done.stdout and "NMC_LIBRARY" in done.stdout, done.stderr


def test_a_handle_that_is_collected_inside_a_log_callback_ends_later(tmp_path):
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    raw, kept, said = store._handle._owned, [store], []
    del store

    def hear(level, text):
        said.append(text)
        kept.clear()

    def is_open():
        return _library.lib.nmc_store_evict_until_below(raw, 0, 1000) == 0

    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096) as other:
        nanomc.set_log_callback(hear)
        try:
            nanomc.Tier(other, str(tmp_path)).close()
        finally:
            nanomc.set_log_callback(None)
        assert said and not kept
        with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096):
            assert not is_open()
