"""The KV cache, the block allocator and the tier: thin classes over every call."""

from __future__ import annotations

import random
import time

import pytest

import nanomc
from nanomc import constants as c
from nanomc import errors

numpy = pytest.importorskip("numpy")


def test_prefixes_are_found_and_tables_are_right():
    with nanomc.KvCache(total_blocks=64, tokens_per_block=4, event_capacity=64) as kv:
        first = kv.open(range(10), id=1, name="one")
        assert (first.id, first.hit_tokens, first.tokens) == (1, 0, 10) and kv.find("one") == 1
        kv.append(1, [10, 11])
        kv.commit(1, 12)
        assert kv.match(range(12)) == 12 and kv.match([99]) == 0
        hashes = kv.hash(range(12))
        assert len(hashes) == 3 and len(hashes[0]) == 16
        assert kv.match(n_tokens=12, hashes=hashes) == 12 and kv.match(range(12), salt=b"x") == 0
        second = kv.open(numpy.arange(13), flags=c.KV_OPEN_MATCH_ALL)
        assert second.hit_tokens == 12 and second.id >= 1 << 63
        table = kv.table([1, second.id], 4)
        rows = numpy.asarray(table)
        assert rows.shape == (2, 4) and rows.dtype == numpy.int32
        assert (rows[0, :3] == rows[1, :3]).all() and rows[0, 3] == -1 and rows[1, 3] >= 0
        indptr, last, indices = kv.table_csr([1, second.id])
        assert indptr.tolist() == [0, 3, 7] and last.tolist() == [4, 1] and indices.tolist() == [*rows[0, :3], *rows[1]]
        assert kv.slot_mapping([1]).tolist() == [int(rows[0, 2]) * 4 + 3]
        assert len(kv.slot_mapping([1, second.id], [2, 3])) == 5
        assert kv.append_batch([1, second.id], [12, 13]) == [0, 0]
        info = kv.seq_info(1)
        assert info.tokens == 13 and info.state == c.KV_SEQ_OPEN and info.blocks == 4
        pin, covered = kv.pin(1, 12)
        assert covered == 12
        kv.fork(1, 7)
        kv.truncate(7, 6)
        kv.reserve(7, 20)
        copies = kv.take_copies(7)
        assert all(copy.from_ >= 0 and copy.to >= 0 for copy in copies)
        assert 7 in kv.victims()
        for number in (1, second.id, 7):
            kv.close_sequence(number)
        kv.unpin(pin)
        events, cursor, lost = kv.events()
        assert lost == 0 and cursor == len(events) and events[0].kind == c.KV_EVENT_STORED and events[0].hash == hashes[0]
        blocks, _ = kv.snapshot()
        assert {event.hash for event in blocks} >= set(hashes)
        assert kv.clear() > 0 and kv.stats().free == 64
        kv.audit()
        assert "64" in kv.dump(16)
        with pytest.raises(errors.NotFound):
            kv.append(1, [1])
    with pytest.raises(errors.ClosedError):
        kv.stats()


def test_no_room_says_how_much_there_was():
    with nanomc.KvCache(total_blocks=4, capacity_blocks=8, tokens_per_block=4) as kv:
        kv.open(n_tokens=8, id=1)
        with pytest.raises(errors.NoRoom) as caught:
            kv.open(n_tokens=100, id=2)
        assert caught.value.room.needed == 25 and caught.value.room.free == 2
        with pytest.raises(errors.NoRoom):
            kv.append(1, n_tokens=100)
        kv.resize(8)
        kv.append(1, n_tokens=8)
        assert kv.append_batch([1, 99], strict=False) == [0, c.ERR_NOT_FOUND]


def test_views_are_arrays_of_the_callers_memory():
    group = nanomc.KvGroup(layers=2, kv_heads=2, head_dim=8, dtype=c.DTYPE_FP32)
    need = nanomc.kv_heap_bytes([group], 0, total_blocks=8, tokens_per_block=4)
    group.memory = memory = numpy.zeros(need, dtype="u1")
    kv = nanomc.KvCache([group], total_blocks=8, tokens_per_block=4)
    kv.open(range(9), id=1)
    k = kv.view(1, layer=1, side=c.KV_K).numpy()
    assert k.shape == (8, 2, 4, 8) and k.dtype == numpy.float32
    blocks = numpy.asarray(kv.table([1], 3))[0]
    k[blocks[2], 1, 0, 5] = 3.5
    address = kv.token_address(1, token=8, layer=1, side=c.KV_K, head=1)
    offset = address - memory.ctypes.data
    assert memory[offset : offset + 32].view("f4")[5] == 3.5
    assert kv.view_info(1).element_bytes == 4
    out = numpy.zeros(2 * need // 8, dtype="u1")
    kv.gather([int(blocks[2]), int(blocks[0])], out)
    assert out.view("f4")[out.view("f4") != 0].tolist() == [3.5]
    memory[:] = 0
    kv.scatter([int(blocks[2]), int(blocks[0])], out)
    assert memory[offset : offset + 32].view("f4")[5] == 3.5
    kv.fork(1, 2)
    kv.copy_blocks(kv.take_copies(2))
    row = numpy.asarray(kv.table([2], 3))[0]
    assert row[2] != blocks[2] and k[row[2], 1, 0, 5] == 3.5
    table = nanomc.KvTable(kv, 2, 3)
    assert table.update([1, 2]) > 0 and table.update([1, 2]) == 0
    assert table._keep is table.data.obj  # which `update` writes to, also when the program has released the view
    table.data.release()
    assert table.update([2, 1]) > 0
    kv.close()
    del kv, group, memory
    assert k[blocks[2], 1, 0, 5] == 3.5  # the array keeps all that it lies in


def test_sequences_go_to_a_store_and_come_back(store):
    def make():
        group = nanomc.KvGroup(layers=1, kv_heads=1, head_dim=16, dtype=c.DTYPE_FP32)
        group.memory = numpy.zeros(nanomc.kv_heap_bytes([group], 0, total_blocks=16, tokens_per_block=4), dtype="u1")
        kv = nanomc.KvCache([group], total_blocks=16, tokens_per_block=4)
        kv.attach_store(store)
        return kv

    one, other = make(), make()
    one.open(range(16), id=1)
    one.view(1).numpy()[:] = 1.25
    one.commit(1, 16)
    done, progress = one.transfer_wait(one.offload(1, 16))
    assert done and progress.tokens_done == 16
    assert one.seq_info(1, c.KV_SEQ_STORED).stored_tokens == 16
    assert other.open(range(17), id=5).hit_tokens == 0
    ticket, tokens = other.onboard(5)
    assert tokens == 16
    import asyncio

    assert asyncio.run(other.atransfer(ticket)).tokens_done == 16
    row = numpy.asarray(other.table([5], 5))[0]
    assert (other.view(5).numpy()[row[:4]] == 1.25).all()
    with pytest.raises(errors.NotFound):
        other.transfer_poll(ticket)
    assert one.onboard(1)[1] == 0
    one.close()
    other.close()


def test_a_cache_in_the_heap_of_a_world():
    world = nanomc.World.local(1, heap_bytes=8 << 20)[0]
    group = nanomc.KvGroup(layers=1, kv_heads=1, head_dim=16)
    assert nanomc.kv_heap_bytes([group], total_blocks=16) <= 8 << 20
    kv = nanomc.KvCache([group], world=world, total_blocks=16)
    kv.open(n_tokens=5, id=1)
    view = kv.view(1)
    rank, offset = world.locate(view.address)
    assert rank == 0 and kv.group_stats(0).heap_offset <= offset
    world.close()
    kv.close()
    assert view.numpy().shape[0] == 16


def test_blocks():
    with nanomc.Blocks(100) as blocks:
        run = blocks.allocate(10)
        longer = blocks.extend(run, 5)
        assert longer.count == 15
        numbers = blocks.allocate_scattered(3)
        assert len(set(numbers)) == 3
        ticket = blocks.request(90)
        assert blocks.poll(ticket) is None
        blocks.free_scattered(numbers)
        blocks.free(longer)
        assert blocks.poll(ticket).count == 90
        with pytest.raises(errors.NoRoom):
            blocks.allocate(50)
        waits = blocks.request(50)
        blocks.cancel(waits)
        assert blocks.stats().used == 90 and "X" in blocks.dump()
        blocks.resize(200)
        assert blocks.stats().total == 200


def test_a_tier_keeps_what_memory_evicts(tmp_path):
    keys = [f"k{at}" for at in range(40)]
    values = {key: random.Random(key).randbytes(20_000) for key in keys}
    seen = []
    with nanomc.Store(heap_bytes=4 << 20, page_bytes=4096) as store:
        with nanomc.Tier(store, str(tmp_path / "tier"), flags=c.TIER_EVENTS | c.TIER_NO_DIRECT) as tier:
            for key in keys:
                store.put(key, values[key], metadata=key.encode())
            assert tier.offload(["k0", "none"]) == 1 and tier.offload() == 39
            store.evict_until_below(0, 0)
            assert store.state("k3") == c.OBJECT_ON_DISK and "k3" in store
            assert store.find("k3") is None
            with pytest.raises(errors.NotReadyError):
                store.pin("k3")
            assert store.get("k3") == values["k3"] and store.metadata("k3") == b"k3" and store.get_range("k3", 5, 7) == values["k3"][5:12]
            assert store.get_batch(keys + ["none"]) == [*values.values(), None]
            assert tier.prefetch(["k3", "none"], strict=False) == [0, c.ERR_NOT_FOUND] and store.state("k3") == c.OBJECT_READY
            with tier.stage(["k5", "none", "k3"]) as staged:
                assert staged.statuses == [0, c.ERR_NOT_FOUND, 0] and staged[1] is None and len(staged) == 3
                assert staged[0] == values["k5"] and staged[2] == values["k3"] and staged[0].readonly
            late = tier.stage(["k5"], ttl_ms=1)
            time.sleep(0.02)
            with pytest.raises(errors.StaleError):
                late.release()
            kept = tier.stage(["k6"])[0]  # the loan is over, the memory is not gone
            assert len(kept) == 20_000
            del kept
            entries = tier.scan()
            assert {entry.key.decode(): entry.nbytes for entry in entries} == {key: 20_000 for key in keys}
            few = []
            tier.scan(lambda entry: few.append(entry) or len(few) < 3)
            assert len(few) == 3
            assert tier.verify(lambda done, total: seen.append((done, total))).objects == 40 and seen
            with pytest.raises(RuntimeError, match="stop"):
                tier.scan(lambda entry: (_ for _ in ()).throw(RuntimeError("stop")))
            stored = {key for event in tier.events() if event.what == c.TIER_STORED for _, key, _ in event.values}
            assert stored == {key.encode() for key in keys} and tier.events() == []
            tier.pause()
            assert tier.stats().paused == 1
            tier.resume()
            tier.sync()
            assert tier.stats().objects == 40
    progress = []
    with nanomc.Store(heap_bytes=4 << 20, page_bytes=4096) as store:
        with nanomc.Tier(store, str(tmp_path / "tier"), flags=c.TIER_NO_DIRECT, progress=lambda *at: progress.append(at)) as tier:
            assert store.get("k7") == values["k7"] and progress
            assert tier.evict(0) == 40
            assert store.get("k7", None) is None
        with pytest.raises(errors.NotFound):
            nanomc.Tier(store, str(tmp_path / "no" / "such" / "path"))


def test_a_tier_outlives_its_store(tmp_path):
    store = nanomc.Store(heap_bytes=1 << 20, page_bytes=4096)
    tier = nanomc.Tier(store, str(tmp_path / "tier"))
    store.close()
    assert tier.stats().owner == 1
    tier.close()
    with pytest.raises(errors.ClosedError):
        tier.stats()


def test_counts_that_contradict_what_is_there_are_refused():
    with nanomc.KvCache(total_blocks=16, tokens_per_block=4) as kv:
        kv.open(range(8), id=1)
        kv.open(range(8), id=2)
        kv.commit(1, 8)
        hashes = kv.hash(range(8))
        for call in (lambda: kv.match([1, 2, 3], n_tokens=4), lambda: kv.open([1], n_tokens=2), lambda: kv.append(1, [1], n_tokens=2),
                     lambda: kv.match(n_tokens=8, hashes=hashes[:1]), lambda: kv.match(n_tokens=4, hashes=[b"short"]),
                     lambda: kv.match(n_tokens=4, hashes=[b"x" * 17]), lambda: kv.slot_mapping([1, 2], [1]),
                     lambda: kv.slot_mapping([1], [1, 1])):
            with pytest.raises(ValueError):
                call()
        assert kv.match(range(8), n_tokens=8) == kv.match(n_tokens=8, hashes=hashes) == 8
        kv.append(1, n_tokens=2)


def test_tokens_that_do_not_fit_are_not_cut():
    with nanomc.KvCache(total_blocks=16, tokens_per_block=4) as kv:
        kv.open(range(8), id=1)
        kv.commit(1, 8)
        for wrong, error in ((numpy.arange(8) + 2**32, OverflowError), (numpy.arange(8) - 1, OverflowError),
                             (numpy.arange(8) + 0.5, TypeError)):
            with pytest.raises(error):
                kv.match(wrong)
        assert [kv.match(numpy.arange(8, dtype=kind)) for kind in ("i8", "u8", "u4", "i2")] == [8] * 4
        assert kv.match(numpy.zeros(0)) == 0


def test_a_tier_is_not_closed_inside_its_callback(folder):
    with nanomc.Store(heap_bytes=4 << 20, page_bytes=64 << 10) as store:
        tier = nanomc.Tier(store, folder)
        store.put("k", b"value")
        tier.offload()
        with pytest.raises(errors.BusyError):
            tier.scan(lambda entry: tier.close())
        assert len(tier.scan()) == 1
        tier.close()
        with pytest.raises(errors.ClosedError):
            tier.scan()
        with nanomc.Tier(store, folder) as again:  # the first one is gone
            assert len(again.scan()) == 1
