"""NanoKVCache: tensors in and out, in place, plans, numbers, ranks."""

from __future__ import annotations

import pytest
from conftest import finish

import nanomc
from nanomc import errors
from nanomc.cache import NotReady, ObjMeta, WritePlan, unpack_metadata

numpy = pytest.importorskip("numpy")


@pytest.fixture
def cache():
    with nanomc.NanoKVCache(32 << 20, rank=0, world_size=1, device=-1) as made:
        yield made


def same(one, other) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def as_numpy(value):
    return value if isinstance(value, numpy.ndarray) else value.numpy()


def test_the_signature_is_that_of_the_design():
    import inspect

    parameters = list(inspect.signature(nanomc.NanoKVCache.__init__).parameters.values())
    assert [p.name for p in parameters[:4]] == ["self", "heap_bytes", "master_rank", "page_bytes"]
    assert parameters[2].default == 0 and parameters[3].default == 256 * 1024
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[4:])
    for name, arguments in {"put": ["key", "tensor", "preferred_segment"], "get": ["key", "dst"], "get_into": ["key", "dst"],
                            "open_for_write": ["key", "bytes_total", "preferred_segment"], "commit": ["key"], "remove": ["key"],
                            "touch": ["key"], "get_location": ["key"], "evict_until_below": ["usage_ratio"], "stats": []}.items():
        found = list(inspect.signature(getattr(nanomc.NanoKVCache, name)).parameters)[1:]
        assert found[: len(arguments)] == arguments, name


@pytest.mark.parametrize("kind", ["u1", "i1", "?", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_arrays_of_every_type_come_back_as_they_were(cache, kind):
    array = numpy.random.default_rng(1).integers(0, 2, (3, 5, 7)).astype(kind)
    cache.put("k", array)
    assert same(as_numpy(cache.get("k")), array)
    with cache.pin("k") as view:
        assert same(view.numpy(), array) and not view.numpy().flags.writeable
    into = numpy.zeros_like(array)
    cache.get_into("k", into)
    assert same(into, array)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 4, 5, 6)])
def test_every_shape_comes_back(cache, shape):
    array = numpy.ones(shape, dtype="f4")
    cache.put("k", array)
    assert as_numpy(cache.get("k")).shape == shape
    assert cache.pin("k").shape == shape


def test_views_that_are_not_contiguous(cache):
    base = numpy.arange(64 * 64, dtype="i4").reshape(64, 64)
    cache.put("columns", base.T[::3])
    assert (as_numpy(cache.get("columns")) == base.T[::3]).all()
    into = numpy.zeros((64, 128), dtype="i4")[:, ::2].T[: base.T[::3].shape[0]]
    cache.get_into("columns", into)
    assert (into == base.T[::3]).all()
    with pytest.raises(ValueError, match="int32"):
        cache.get_into("columns", numpy.zeros((22, 64), dtype="f4"))
    with pytest.raises(ValueError):
        cache.put("order", numpy.arange(5, dtype=">i4"))


def test_sizes_of_the_design(cache):
    for size in (64 << 10, 256 << 10, (256 << 10) + 4, 1 << 20, 8 << 20):
        array = numpy.frombuffer(numpy.random.default_rng(size).bytes(size), dtype="f4")
        cache.put(f"{size}", array)
        assert as_numpy(cache.get(f"{size}")).tobytes() == array.tobytes()


def test_immutable_remove_and_touch(cache):
    cache.put("k", numpy.zeros(4))
    with pytest.raises(errors.AlreadyExists):
        cache.put("k", numpy.ones(4))
    cache.touch("k")
    cache.touch("none")
    cache.remove("k")
    for call in (cache.get, cache.remove, cache.pin):
        with pytest.raises(KeyError):
            call("k")


def test_a_plan_is_written_committed_and_located(cache):
    plan = cache.open_for_write("k", 1_000_000, dtype="float32")
    assert isinstance(plan, WritePlan) and plan.n_pages == 4 and plan.last_page_bytes == 1_000_000 - 3 * 262144
    assert plan.bytes_total == 1_000_000 and plan.page_bytes == 262144 and plan.dst_rank == 0 and plan.payload_ptr and plan.header_ptr
    where = cache.get_location("k")
    assert isinstance(where, NotReady) and where.writing and not where
    with pytest.raises(errors.NotReadyError):
        cache.get("k")
    cache.payload("k").numpy().view("f4")[:] = 2.5
    cache.commit("k")
    cache.commit("k")
    where = cache.get_location("k")
    assert isinstance(where, ObjMeta) and where.payload_ptr == plan.payload_ptr and where.epoch == plan.epoch
    assert where.key_hash == plan.key_hash and where.owner_rank == plan.dst_rank
    assert (as_numpy(cache.get("k")) == 2.5).all()
    assert cache.get_location("none") == NotReady(writing=False)
    with pytest.raises(errors.NotFound):
        cache.commit("none")
    with pytest.raises(ValueError):
        cache.open_for_write("bad", 10, dtype="float32", shape=(3,))
    cache.open_for_write("given up", 10)
    cache.abort("given up")
    cache.put("given up", numpy.zeros(3))


def test_numbers_are_integers_with_the_names_of_the_design(cache):
    cache.put("k", numpy.zeros(1000))
    stats = cache.stats()
    names = {"bytes_used", "bytes_total", "ready_count", "evict_count", "oom_count"}
    assert names | {"t_plan_us", "bytes_tx", "bytes_rx", "stuck_put_reclaimed", "evict_in_use_retry"} <= set(stats)
    assert names <= set(stats["ranks"][0]) and len(stats["ranks"]) == 1
    assert all(type(value) is int for name, value in stats.items() if name != "ranks")
    assert stats["ready_count"] == 1 and stats["bytes_used"] > 0
    with cache.pin("k"):
        cache.evict_until_below(0.0)
        assert cache.stats()["ready_count"] == 1  # pinned
    cache.evict_until_below(0.0)
    assert cache.stats()["ready_count"] == 0
    with pytest.raises(ValueError):
        cache.evict_until_below(2)


def test_eviction_makes_room_and_a_pinned_tensor_is_never_torn():
    with nanomc.NanoKVCache(4 << 20, page_bytes=64 << 10, rank=0, world_size=1, device=-1) as cache:
        cache.put("held", numpy.full(10_000, 7))
        with cache.pin("held") as view:
            array = view.numpy()
            for at in range(500):
                cache.put(f"k{at}", numpy.full(10_000, at))
                assert array[0] == 7 and array[-1] == 7
        assert cache.stats()["evict_count"] > 0


def test_objects_of_others_are_bytes(cache):
    cache.store.put("raw", b"\x01\x02\x03\x04")
    assert as_numpy(cache.get("raw")).tolist() == [1, 2, 3, 4]
    into = numpy.zeros(1, dtype="u4")
    cache.get_into("raw", into)
    assert into[0] == 0x04030201
    for text in (b"", b"{", b"[]", b'{"dtype":"float32","shape":[5]}', b'{"dtype":"nothing","shape":[4]}',
                 b'{"dtype":"float32","shape":[-1]}'):
        assert unpack_metadata(text, 4) == ("uint8", (4,))
    assert unpack_metadata(b'{"dtype":"float32","shape":[]}', 4) == ("float32", ())


def test_a_cache_over_a_store_that_exists(store):
    with nanomc.NanoKVCache.over(store) as cache:
        cache.put("k", numpy.arange(5))
        assert cache.stats()["ready_count"] == 1
    assert store.exists("k")
    assert as_numpy(nanomc.NanoKVCache.over(store).get("k")).tolist() == [0, 1, 2, 3, 4]


def test_ranks_come_from_arguments_or_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="rank 3 of 2"):
        nanomc.NanoKVCache(1 << 20)
    with pytest.raises(ValueError, match="master_rank"):
        nanomc.NanoKVCache(1 << 20, master_rank=1, rank=0, world_size=1)


def test_several_processes_share_a_cache(launch):
    program = """
import numpy
os.environ["RANK"], os.environ["WORLD_SIZE"] = sys.argv[1], "3"
rank = int(sys.argv[1])
cache = nanomc.NanoKVCache(8 << 20, master_rank=1, name="c", directory=folder, device=-1, join_timeout_ms=60000)
cache.put(f"from-{rank}", numpy.full((100, 10), rank, dtype="f4"), preferred_segment=(rank + 1) % 3)
plan = cache.open_for_write(f"plan-{rank}", 4000, preferred_segment=2)
assert plan.dst_rank == 2 and cache.world.ptr(2, plan.payload_offset, 4000) == plan.payload_ptr
cache.payload(f"plan-{rank}").numpy()[:] = rank
cache.commit(f"plan-{rank}")
cache.world.barrier(60000)
for other in range(3):
    assert (numpy.asarray(cache.get(f"from-{other}")) == other).all()
    assert cache.get_location(f"from-{other}").owner_rank == (other + 1) % 3
    with cache.pin(f"plan-{other}") as view:
        assert (view.numpy() == other).all()
assert len(cache.stats()["ranks"]) == 3
cache.world.barrier(60000)
cache.close()
say("ok")
"""
    ranks = [launch(program, rank) for rank in range(3)]
    assert [finish(process).strip() for process in ranks] == ["ok"] * 3


# ---- torch -----------------------------------------------------------------------------------------------------------------

torch_program = """
import torch
cache = nanomc.NanoKVCache(32 << 20, rank=0, world_size=1)
kinds = ["uint8", "int8", "bool", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
         "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
lazy = torch.tensor([1 + 2j, 3 - 4j]).conj()
cache.put("lazy", lazy)
assert torch.equal(cache.get("lazy"), lazy.resolve_conj())
for name in kinds:
    kind = getattr(torch, name, None)
    if kind is None:
        continue
    raw = torch.randint(0, 2, (3 * 5 * 16,), dtype=torch.uint8)
    value = raw.view(kind).reshape(3, 5, -1)
    cache.put(name, value)
    got = cache.get(name)
    assert got.dtype == kind and got.shape == value.shape and torch.equal(got.view(torch.uint8), value.view(torch.uint8)), name
    into = torch.zeros_like(value)
    assert cache.get(name, dst=into) is into and torch.equal(into.view(torch.uint8), value.view(torch.uint8))
    with cache.pin(name) as view:
        seen = view.tensor()
        assert seen.dtype == kind and torch.equal(seen.view(torch.uint8), value.view(torch.uint8))
        if name not in ("uint16", "uint32", "uint64"):
            assert torch.from_dlpack(view).data_ptr() == seen.data_ptr() or name.startswith("float8")
value = torch.arange(4096).reshape(64, 64)
cache.put("columns", value.t()[::2])
assert torch.equal(cache.get("columns"), value.t()[::2])
into = torch.zeros(64, 64, dtype=torch.int64)[:, ::2].t()
cache.get_into("columns", into)
assert torch.equal(into, value.t()[::2])
cache.put("grad", torch.ones(3, requires_grad=True))
assert torch.equal(cache.get("grad"), torch.ones(3)) and torch.equal(cache.get("columns"), value.t()[::2])
cache.put("numpy", numpy.arange(3)) if (numpy := sys.modules.get("numpy")) else None
# A tensor in place outlives its pin, its cache and a removal.
view = cache.pin("columns")
seen = view.tensor()
view.unpin()
cache.remove("columns")
cache.close()
assert torch.equal(seen, value.t()[::2])
say("ok")
"""


def test_torch_tensors_of_every_type(launch):
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    assert finish(launch(torch_program), timeout=120).strip() == "ok"


distributed_program = """
import torch, torch.distributed
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2)
cache = nanomc.NanoKVCache(4 << 20, directory=folder, name="d", device=-1, join_timeout_ms=60000)
assert (cache.rank, cache.world_size) == (rank, 2)
cache.put(f"from-{rank}", torch.full((10,), rank, dtype=torch.bfloat16))
torch.distributed.barrier()
assert torch.equal(cache.get(f"from-{1 - rank}"), torch.full((10,), 1 - rank, dtype=torch.bfloat16))
torch.distributed.barrier()
cache.close()
torch.distributed.destroy_process_group()
say("ok")
"""


def test_ranks_come_from_torch_distributed(launch):
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    ranks = [launch(distributed_program, rank) for rank in range(2)]
    assert [finish(process, timeout=120).strip() for process in ranks] == ["ok", "ok"]


def test_it_works_without_torch_and_numpy(launch):
    program = """
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
with nanomc.Store(heap_bytes=1 << 20, page_bytes=4096) as store:
    store.put("k", b"abc")
    assert bytes(store.pin("k")) == b"abc"
with nanomc.KvCache(total_blocks=16) as kv:
    opened = kv.open(range(40))
    assert kv.table([opened.id], 4).tolist()[0][3] == -1
say("torch" in sys.modules or "numpy" in sys.modules)
"""
    assert finish(launch(program)).strip() == "False"
