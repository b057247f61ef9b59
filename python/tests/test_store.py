"""A store inside one process: every verb, in and out, in place, many at once."""

from __future__ import annotations

import random

import pytest

import nanomc
from nanomc import constants as c
from nanomc import errors


def test_what_was_put_is_what_is_got(store):
    for size in (0, 1, 1024, 65536, 65537, 1 << 20, (5 << 20) + 3):
        value = random.Random(size).randbytes(size)
        store.put(f"size-{size}", value)
        assert store.get(f"size-{size}") == value
        assert store.size(f"size-{size}") == size
        into = bytearray(size)
        store.get_into(f"size-{size}", into)
        assert into == value


def test_keys_are_text_or_bytes(store):
    store.put("schlüssel", b"1")
    assert store.get("schlüssel".encode()) == b"1"
    assert "schlüssel" in store and b"nichts" not in store
    with pytest.raises(errors.InvalidArgument) as caught:
        store.put("", b"x")
    assert caught.value.status == c.ERR_INVALID_ARG
    with pytest.raises(errors.InvalidArgument):
        store.get("k" * 1025)


def test_any_buffer_is_a_value(store):
    import array

    numbers = array.array("I", range(100))
    store.put("array", numbers)
    assert store.get("array") == numbers.tobytes()
    store.put("bytearray", bytearray(b"abc"))
    store.put("memoryview", memoryview(b"abcdef")[::2])
    assert store.get("bytearray") == b"abc" and store.get("memoryview") == b"ace"
    with store.pin("array") as view:  # as are views, and arrays of shared memory
        store.put("copy of a view", view)
        store.put("copy of an array", view.array((100,), "uint32"))
        with pytest.raises(ValueError, match="read-only"):
            store.get_into("array", view.array())
    assert store.get("copy of a view") == store.get("copy of an array") == numbers.tobytes()
    with pytest.raises(TypeError):
        store.put("number", 5)
    with pytest.raises(ValueError):
        store.get_into("bytearray", b"   ")  # read-only
    with pytest.raises(errors.InvalidArgument):
        store.get_into("bytearray", bytearray(4))  # not its size


def test_a_missing_key_is_a_key_error_and_a_default_is_returned(store):
    with pytest.raises(KeyError) as caught:
        store.get("none")
    assert isinstance(caught.value, errors.NotFound) and caught.value.status == c.ERR_NOT_FOUND
    assert caught.value.name == "NMC_ERR_NOT_FOUND" and "none" in str(caught.value)
    assert store.get("none", None) is None and store.get("none", b"-") == b"-"
    assert store.size("none") is None and store.find("none") is None and not store.exists("none")
    for call in (store.remove, store.touch, store.metadata, store.pin, store.consume, store.location):
        with pytest.raises(errors.NotFound):
            call("none")


def test_an_object_that_exists_stays_unless_it_is_replaced(store):
    store.put("k", b"old")
    with pytest.raises(errors.AlreadyExists):
        store.put("k", b"new")
    assert store.get("k") == b"old"
    store.put("k", b"newer", replace=True)
    assert store.get("k") == b"newer"


def test_metadata_travels_with_the_value(store):
    store.put("k", b"v", metadata=b"said")
    assert store.metadata("k") == b"said"
    with store.pin("k") as view:
        assert view.metadata() == b"said"
    store.put("plain", b"v")
    assert store.metadata("plain") == b""
    with pytest.raises(errors.InvalidArgument):
        store.put("long", b"v", metadata=b"x" * (c.MAX_METADATA + 1))


def test_slices_rows_and_ranges(store):
    store.put_slices("s", [b"abc", bytearray(b"def"), memoryview(b"ghi")])
    assert store.get("s") == b"abcdefghi"
    first, second = bytearray(2), bytearray(3)
    assert store.get_slices("s", [first, second], offset=1) == 9
    assert first == b"bc" and second == b"def"
    assert store.get_range("s", 7, 2) == b"hi"
    store.put_strided("rows", b"ab..cd..ef", rows=3, row_bytes=2, stride=4)
    assert store.get("rows") == b"abcdef"
    into = bytearray(b"." * 10)
    store.get_strided("rows", into, rows=3, row_bytes=2, stride=4)
    assert into == b"ab..cd..ef"
    with pytest.raises(ValueError):
        store.put_strided("bad", b"ab..cd..e", rows=3, row_bytes=2, stride=4)
    with pytest.raises(errors.InvalidArgument):
        store.get_range("s", 8, 2)


def test_a_pin_holds_what_was_removed(store):
    store.put("k", b"x" * 1000)
    with store.pin("k") as view:
        store.remove("k")
        assert bytes(view) == b"x" * 1000 and len(view) == 1000
        assert view.data.readonly and view.info.owner_rank == 0 and view.ready_pages() == 1
        with pytest.raises(errors.UnsupportedError):
            view.verify()  # no checksums
        assert store.rank_stats()[0].limbo_bytes > 0
    store.evict_until_below(0, 0)
    assert store.rank_stats()[0].limbo_bytes == 0
    with pytest.raises(errors.ClosedError):
        view.data
    assert not view.pinned
    view.unpin()


def test_an_array_made_of_a_pin_holds_it(store):
    store.put("k", bytes(range(200)))
    view = store.pin("k")
    piece = view.data[100:110]
    view.unpin()
    store.remove("k")
    store.evict_until_below(0, 0)
    assert store.rank_stats()[0].limbo_bytes > 0 and piece[0] == 100
    del piece
    store.evict_until_below(0, 0)
    assert store.rank_stats()[0].limbo_bytes == 0


def test_dlpack_holds_a_pin_as_long_as_somebody_has_it(store):
    numpy = pytest.importorskip("numpy")
    from nanomc import memory

    store.put("k", bytes(range(100)))
    taken = len(memory._TAKEN)
    view = store.pin("k")
    array = numpy.from_dlpack(view.array((25,), "int32"))
    capsule = view.__dlpack__()  # that nobody takes
    assert view.__dlpack_device__() == (1, 0) and len(memory._TAKEN) == taken + 2
    view.unpin()
    store.remove("k")
    store.evict_until_below(0, 0)
    assert array.shape == (25,) and array.tobytes() == bytes(range(100)) and store.rank_stats()[0].limbo_bytes > 0
    del array
    assert store.rank_stats()[0].limbo_bytes > 0
    del capsule
    store.evict_until_below(0, 0)
    assert store.rank_stats()[0].limbo_bytes == 0 and len(memory._TAKEN) == taken
    with pytest.raises(BufferError):
        store.put("k", b"x") or store.pin("k").__dlpack__(copy=True)


def test_pins_of_empty_values_end_as_well():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096, pin_slots=4) as store:
        store.put("empty", b"")
        for _ in range(100):
            with store.pin("empty") as view:
                assert bytes(view) == b"" and view.array().numpy().shape == (0,)


def test_pins_that_are_forgotten_end():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096, pin_slots=4) as store:
        store.put("k", b"x")
        for _ in range(100):
            store.pin("k")
        held = [store.pin("k") for _ in range(4)]
        with pytest.raises(errors.BusyError):  # control: that many are too many
            store.pin("k")
        del held
        store.pin("k")


def test_a_plan_is_written_in_place_and_committed(store):
    with store.open_for_write("k", 100_000, metadata=b"m") as plan:
        assert store.state("k") == c.OBJECT_WRITING and store.location("k") is None
        with pytest.raises(errors.NotReadyError):
            store.get("k")
        assert store.get("k", None) is None
        plan.data[:] = b"y" * 100_000
        plan.publish_pages(1)
        with store.pin_partial("k", 1) as part:
            assert part.info.ready_pages == 1 and part.data[0] == ord("y")
    assert store.get("k") == b"y" * 100_000 and store.metadata("k") == b"m"
    plan.commit()
    where = store.location("k")
    assert where is not None and where.bytes_total == 100_000 and where.n_pages == 2 and where.last_page_bytes == 100_000 - 65536
    with pytest.raises(errors.ClosedError):
        plan.data


def test_a_plan_whose_block_raises_is_given_up(store):
    with pytest.raises(RuntimeError):
        with store.open_for_write("k", 10):
            raise RuntimeError("no")
    assert store.state("k") == c.OBJECT_ABSENT
    store.put("k", b"now")


def test_a_plan_that_is_forgotten_is_given_up(store):
    plan = store.open_for_write("k", 10)
    memory = plan.data
    del plan
    assert store.state("k") == c.OBJECT_WRITING  # somebody may still write
    del memory
    assert store.state("k") == c.OBJECT_ABSENT


def test_a_value_in_pieces_is_read_and_written_in_pieces():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096) as store:
        for at in range(256):
            store.put(str(at), b"x" * 4096, retain=c.RETAIN_HARD) if at < 200 else None
        for at in range(0, 200, 2):
            store.remove(str(at))
        value = random.Random(1).randbytes(4096 * 120 + 5)
        plan = store.open_for_write("pieces", len(value))
        assert plan.info.n_extents > 1
        with pytest.raises(ValueError, match="pieces"):
            plan.data
        plan.write(value[:5000])
        plan.write(value[5000:], offset=5000)
        with pytest.raises(ValueError):
            plan.write(b"xx", offset=len(value) - 1)
        plan.commit()
        assert store.get("pieces") == value
        with store.pin("pieces") as view:
            assert bytes(view) == value and len(view.extents()) > 1
            with pytest.raises(ValueError, match="pieces"):
                view.array()
        with pytest.raises(errors.NoRoom):
            store.open_for_write("run", 4096 * 60, contiguous=True)


def test_consume_gives_an_object_once(store):
    store.put("k", b"mine")
    with store.consume("k") as view:
        assert bytes(view) == b"mine"
        with pytest.raises(errors.NotFound):
            store.consume("k")
    assert not store.exists("k")


def test_batches(store):
    keys = [f"k{at}" for at in range(300)]
    values = [bytes([at % 256]) * (at + 1) for at in range(300)]
    assert store.put_batch(keys, values, metadata=[key.encode() for key in keys]) == [0] * 300
    assert store.get_batch(keys + ["none"]) == values + [None]
    assert store.metadata("k7") == b"k7"
    assert store.exists_batch(["k0", "none"]) == [True, False]
    assert store.match_prefix(["k0", "k1", "none", "k2"]) == 2
    with pytest.raises(errors.AlreadyExists) as caught:
        store.put_batch(["fresh", "k0"], [b"1", b"2"])
    assert caught.value.statuses == [0, c.ERR_EXISTS] and store.get("fresh") == b"1"
    assert store.put_batch(["fresh2", "k0"], [b"1", b"2"], strict=False) == [0, c.ERR_EXISTS]
    buffers = [bytearray(1), bytearray(2)]
    assert store.get_into_batch(["k0", "k1"], buffers) == [0, 0]
    assert [bytes(buffer) for buffer in buffers] == values[:2]
    assert store.get_into_batch(["none", "k1"], buffers, strict=False) == [c.ERR_NOT_FOUND, 0]
    views = store.pin_batch(["k0", "none", "k1"])
    assert views[1] is None and bytes(views[2]) == values[1]
    store.unpin_batch([view for view in views if view])
    plans = store.open_batch(["p0", "k0"], [10, 10])
    assert isinstance(plans[1], errors.AlreadyExists)
    plans[0].data[:] = b"0123456789"
    assert store.commit_batch([plans[0]]) == [0] and store.get("p0") == b"0123456789"
    assert store.remove_batch(["k0", "none"], strict=False) == [0, c.ERR_NOT_FOUND]
    assert store.put_batch([], []) == [] and store.get_batch([]) == [] and store.match_prefix([]) == 0
    with pytest.raises(ValueError):
        store.put_batch(["a"], [])


def test_namespaces_have_their_own_keys_and_quota(store):
    tenant = store.namespace("tenant", quota_bytes=4 * 65536)
    store.put("k", b"root")
    tenant.put("k", b"tenant")
    assert store.get("k") == b"root" and tenant.get("k") == b"tenant"
    for at in range(10):
        tenant.put(f"n{at}", b"x" * 65536)
    assert sum(1 for _ in tenant.keys()) <= 4
    tenant.remove_all()
    assert list(tenant.keys()) == [] and store.get("k") == b"root"
    with pytest.raises(errors.NoRoom):
        tenant.put("large", b"x" * (5 * 65536))
    tenant.close()
    with pytest.raises(errors.ClosedError):
        tenant.get("k")
    assert store.get("k") == b"root"


def test_eviction_keeps_what_is_retained():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096, eviction=c.EVICT_LRU) as store:
        store.put("hard", b"x", retain=c.RETAIN_HARD)
        store.put("soft", b"x")
        store.retain("soft", c.RETAIN_HARD)
        for at in range(1000):
            store.put(f"filler{at}", b"x" * 4096)
        store.touch("filler999")
        assert store.exists("hard") and store.exists("soft") and not store.exists("filler0")
        assert store.stats().evict_count > 0
        store.evict_until_below(0, 0)
        assert sorted(store.keys()) == [b"hard", b"soft"]
        hint = store.retry_hint(0)
        assert hint.free_bytes > 0
        assert store.remove_by_prefix("h") == 1


def test_no_room_is_an_error_with_a_message():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096) as store:
        with pytest.raises(errors.NoRoom) as caught:
            store.put("large", b"x" * (2 << 20))
        assert caught.value.status == c.ERR_NO_SPACE and caught.value.message
        store.put("all", b"x" * (900 << 10), retain=c.RETAIN_HARD)
        with pytest.raises(errors.BusyError):
            store.put("more", b"x" * (500 << 10), wait_ms=20)


def test_checksums_are_verified_in_place():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096, checksums=True) as store:
        store.put("k", b"x" * 10000, contiguous=True)
        with store.pin("k") as view:
            view.verify()
        where = store.location("k")
        from nanomc._library import ffi

        ffi.cast("char *", where.payload)[5000] = b"y"  # a stray pointer of the program
        with pytest.raises(errors.CorruptError):
            store.get("k")
        with store.pin("k") as view, pytest.raises(errors.CorruptError):
            view.verify()


def test_iteration_text_and_numbers(store):
    sizes = {f"k{at}".encode(): at for at in range(50)}
    for key, size in sizes.items():
        store.put(key, b"x" * size)
    assert dict(store.items()) == sizes
    assert "nanomc" in store.prometheus() or "nmc" in store.prometheus()
    assert "#" in store.dump(32) or "+" in store.dump(32)
    stats = store.stats()
    assert stats.puts == 50 and stats.ready_count == 50 and stats.n_ranks == 1


def test_watches_and_completions(store):
    import select

    store.put("there", b"x")
    store.watch("there", 1)
    plan = store.open_for_write("coming", 5)
    store.watch("coming", 2)
    fd = store.event_fd()
    assert select.select([fd], [], [], 30)[0]
    plan.data[:] = b"12345"
    plan.commit()
    seen = {}
    while len(seen) < 2:
        assert select.select([fd], [], [], 30)[0]
        seen.update({done.token: done.status for done in store.completions()})
    assert seen == {1: 0, 2: 0}
    with pytest.raises(ValueError):
        store.watch("there", 1 << 63)
    with pytest.raises(errors.NotFound):
        store.wait_ready("none", timeout_ms=10)
    with pytest.raises(TimeoutError):
        store.wait_ready("none", appear=True, timeout_ms=250)
    store.wait_pages("there", 1)


def test_a_store_does_what_a_dict_does(store):
    chance = random.Random(7)
    model = {}
    for _ in range(3000):
        key = f"k{chance.randrange(40)}"
        act = chance.randrange(6)
        if act == 0:
            value = chance.randbytes(chance.choice([0, 1, 100, 70_000]))
            if key in model:
                with pytest.raises(errors.AlreadyExists):
                    store.put(key, value)
            else:
                store.put(key, value)
                model[key] = value
        elif act == 1:
            value = chance.randbytes(chance.randrange(200))
            store.put(key, value, replace=True)
            model[key] = value
        elif act == 2:
            if key in model:
                store.remove(key)
                del model[key]
            else:
                with pytest.raises(errors.NotFound):
                    store.remove(key)
        elif act == 3:
            assert store.get(key, None) == model.get(key)
        elif act == 4:
            view = store.find(key)
            assert (None if view is None else bytes(view)) == model.get(key)
        else:
            assert (key in store) == (key in model)
    assert {key.decode(): size for key, size in store.items()} == {key: len(value) for key, value in model.items()}


def test_a_batch_of_plans_has_a_size_for_each(store):
    for keys, sizes in ((["a", "b"], [1]), (["a"], []), (["a"], [1, 2])):
        with pytest.raises(ValueError):
            store.open_batch(keys, sizes)
    assert [plan.nbytes for plan in store.open_batch(["a", "b"], [1, 2])] == [1, 2]


def test_references_to_objects_are_no_bytes(store):
    numpy = pytest.importorskip("numpy")
    objects = numpy.zeros(2, dtype=object)
    pairs = numpy.zeros(2, dtype=[("a", "i4"), ("b", object)])
    store.put("k", bytes(16))
    for value in (objects, pairs, memoryview(objects)):
        with pytest.raises(TypeError):
            store.put("objects", value)
        with pytest.raises(TypeError):
            store.get_into("k", value)
    assert list(objects) == [0, 0] and "objects" not in store
    store.put("named", memoryview(numpy.zeros(2, dtype=[("Offset", "i4")])))  # an O of a name is none of a type


def test_a_plan_takes_what_a_put_takes(store):
    numpy = pytest.importorskip("numpy")
    for at, value in enumerate((numpy.arange(12).reshape(3, 4)[:, ::2], numpy.zeros((0, 3)), numpy.array(["2026-01-01"], "M8[D]"))):
        store.put(f"put {at}", value)
        with store.open_for_write(f"plan {at}", value.nbytes) as plan:
            plan.write(value)
        assert store.get(f"plan {at}") == store.get(f"put {at}")
    with store.open_for_write("more", 4) as plan:
        with pytest.raises(ValueError):
            plan.write(b"x", -1)


def test_lengths_are_not_negative(store):
    with store.open_for_write("k", 100) as plan:
        with pytest.raises(ValueError):
            plan.array((-10, -10))
    with pytest.raises(ValueError):
        store.pin("k").array((-10, -10))
    with pytest.raises(ValueError):
        nanomc.NanoKVCache.over(store).open_for_write("t", 6, dtype="uint8", shape=(-2, -3))


def test_batches_that_wait_for_room_take_what_there_is():
    with nanomc.Store(heap_bytes=1 << 20, page_bytes=64 << 10, call_timeout_ms=300) as small:
        hold = [small.open_for_write(f"held {at}", 64 << 10) for at in range(12)]
        part = bytes(range(256)) * 256
        told = small.put_batch([f"k{at}" for at in range(20)], [part] * 20, wait_ms=500, metadata=[b"%d" % at for at in range(20)],
                               retain=c.RETAIN_HARD, strict=False)
        there = [at for at, status in enumerate(told) if status == 0]
        assert 0 < len(there) < 20 and set(told) <= {0, c.ERR_BUSY, c.ERR_NO_SPACE}
        for at in there:
            assert small.get(f"k{at}") == part and small.metadata(f"k{at}") == b"%d" % at
        with pytest.raises(errors.NoRoom):
            small.put("later", part * 8, wait_ms=-1)
        opened = small.open_batch(["a", "b"], [1 << 19, 1 << 18], wait_ms=300)
        assert any(isinstance(one, errors.NoRoom) for one in opened)
        del hold, opened
        small.put("later", part * 8, wait_ms=60_000)


def test_a_signal_just_after_a_call_loses_neither_plan_nor_pin(store, monkeypatch):
    from nanomc import store as module

    def interrupted(*_):
        raise KeyboardInterrupt

    def each(*calls):
        with monkeypatch.context() as patch:
            patch.setattr(module, "check", interrupted)
            patch.setattr(module, "_told", interrupted)
            for call in calls:
                with pytest.raises(KeyboardInterrupt):
                    call()

    each(lambda: store.open_for_write("a", 100), lambda: store.open_batch(["b", "c"], [100, 100]))
    for key in "abc":
        store.put(key, b"x")  # nobody writes it
    for pin in (lambda: store.pin("large"), lambda: store.pin_batch(["large", "a"])):
        store.put("large", bytes(20 << 20))
        each(pin)
        store.remove("large")
        store.put("next", bytes(20 << 20))  # has room, since nobody holds the memory
        store.remove("next")
