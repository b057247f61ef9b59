"""Expert-parallel transport on host heaps: a whole layer, by steps and in one call, against a plain computation."""

from __future__ import annotations

import threading

import pytest

import nanomc
from nanomc import constants as c
from nanomc import errors

numpy = pytest.importorskip("numpy")

RANKS, TOKENS, HIDDEN, TOP_K, EXPERTS = 2, 4, 64, 2, 4
CONFIG = dict(hidden=HIDDEN, top_k=TOP_K, experts=EXPERTS, t_cap=TOKENS, dtype=c.DTYPE_FP32)


@pytest.fixture
def group():
    need = nanomc.ep_bytes_needed(RANKS, **CONFIG)
    worlds = nanomc.World.local(RANKS, heap_bytes=need.transport + (1 << 20))
    eps = nanomc.Ep.create_ranks(worlds, **CONFIG)
    yield eps, need
    for thing in eps + worlds:
        thing.close()


def inputs(rank):
    chance = numpy.random.default_rng(rank)
    x = chance.standard_normal((TOKENS, HIDDEN)).astype("f4")
    idx = numpy.stack([chance.choice(EXPERTS, TOP_K, replace=False) for _ in range(TOKENS)]).astype("i4")
    return x, idx, chance.random((TOKENS, TOP_K)).astype("f4")


def test_tokens_go_to_their_experts_and_back(group):
    eps, need = group
    given = [inputs(rank) for rank in range(RANKS)]
    with nanomc.ep_group():
        for ep, (x, idx, w) in zip(eps, given):
            ep.dispatch(x, idx, w, layer=3)
    outs = [numpy.zeros((TOKENS, HIDDEN), dtype="f4") for _ in eps]
    local = EXPERTS // RANKS
    for rank, ep in enumerate(eps):
        rows = need.grouped_x // (4 * HIDDEN)
        grouped = numpy.zeros((rows, HIDDEN), dtype="f4")
        masked, experts = numpy.zeros(local, dtype="i4"), numpy.zeros(local, dtype="i4")
        row_of = numpy.zeros(need.row_of // 4, dtype="i4")
        row_index = numpy.zeros(need.row_index // 4, dtype="i4")
        ep.route_pack(layer=3, x=grouped, masked_m=masked, group_expert=experts, row_of=row_of, row_index=row_index)
        assert masked.sum() == sum((idx // local == rank).sum() for _, idx, _ in given)
        per = rows // local
        for expert in range(local):  # what the expert does: multiplies by its number + 1
            grouped[expert * per : (expert + 1) * per] *= rank * local + expert + 1
        ep.scatter(grouped, row_of, layer=3)
        assert ep.recv_buffers(3).x.shape == (RANKS * TOKENS, HIDDEN)
    with nanomc.ep_group():
        for ep, out in zip(eps, outs):
            ep.combine(out, layer=3)
    for (x, idx, w), out in zip(given, outs):
        want = sum(w[:, at : at + 1] * (idx[:, at : at + 1] + 1) * x for at in range(TOP_K))
        assert numpy.allclose(out, want, rtol=1e-5)
    load, waited, overflow = eps[0].stats()
    assert sum(load) == TOKENS * TOP_K and len(waited) == RANKS and overflow == 0
    eps[0].check()
    with pytest.raises(errors.UnsupportedError):
        eps[0].device()


def test_a_whole_layer_with_the_programs_own_product(group):
    eps, _ = group
    inner = 32
    need = nanomc.ep_bytes_needed(RANKS, inner=inner, **CONFIG)
    given = [inputs(rank) for rank in range(RANKS)]
    chance = numpy.random.default_rng(9)
    local = EXPERTS // RANKS
    w13 = chance.standard_normal((EXPERTS, 2 * inner, HIDDEN)).astype("f4") / 8
    w2 = chance.standard_normal((EXPERTS, HIDDEN, inner)).astype("f4") / 8
    outs = [numpy.zeros((TOKENS, HIDDEN), dtype="f4") for _ in eps]
    failed = []

    def view(address, shape, kind):
        from nanomc._library import ffi

        raw = ffi.buffer(ffi.cast("char *", address), int(numpy.prod(shape)) * 4)
        return numpy.frombuffer(raw, dtype=kind).reshape(shape)

    def run(rank):
        def product(gemm, stream):
            a, c_ = view(gemm.a, (gemm.groups, gemm.max_m, gemm.k), "f4"), view(gemm.c, (gemm.groups, gemm.max_m, gemm.n), "f4")
            rows, experts = view(gemm.masked_m, (gemm.groups,), "i4"), view(gemm.group_expert, (gemm.groups,), "i4")
            b = view(gemm.b, (local, gemm.n, gemm.k), "f4")
            for at in range(gemm.groups):
                c_[at, : rows[at]] = a[at, : rows[at]] @ b[experts[at]].T

        try:
            x, idx, w = given[rank]
            mine = slice(rank * local, (rank + 1) * local)
            raw = numpy.zeros(need.workspace + 256, dtype="u1")
            space = raw[-raw.ctypes.data % 256 :][: need.workspace]
            eps[rank].moe_forward(x, idx, w, w13=w13[mine].copy(), w2=w2[mine].copy(), workspace=space, out=outs[rank], inner=inner,
                                  gemm=product)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for (x, idx, w), out in zip(given, outs):
        for token in range(TOKENS):
            want = 0
            for at in range(TOP_K):
                both = w13[idx[token, at]] @ x[token]
                gate, up = both[:inner], both[inner:]
                want = want + w[token, at] * (w2[idx[token, at]] @ (gate / (1 + numpy.exp(-gate)) * up))
            assert numpy.allclose(out[token], want, rtol=1e-3, atol=1e-4)


def test_what_a_product_raises_comes_out_and_ends_the_group(group):
    eps, _ = group
    need = nanomc.ep_bytes_needed(RANKS, inner=32, **CONFIG)
    raised = []

    def broken(gemm, stream):
        raise RuntimeError("my product")

    def run(rank):
        x, idx, w = inputs(rank)
        raw = numpy.zeros(need.workspace + 256, dtype="u1")
        space = raw[-raw.ctypes.data % 256 :][: need.workspace]
        try:
            eps[rank].moe_forward(x, idx, w, w13=x, w2=x, workspace=space, out=numpy.zeros_like(x), inner=32, gemm=broken)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raised) == RANKS and any(isinstance(error, RuntimeError) and str(error) == "my product" for error in raised)
    with pytest.raises(errors.NanomcError):
        eps[0].check()


def test_a_call_out_of_turn_is_refused(group):
    eps, _ = group
    with pytest.raises(errors.InvalidArgument):
        eps[0].combine(numpy.zeros((TOKENS, HIDDEN), dtype="f4"))
    eps[0].abort()
    with pytest.raises(errors.Cancelled):
        eps[1].check()


def test_memory_of_another_size_type_or_order_is_refused(group):
    eps, need = group
    x, idx, w = inputs(0)
    twice = numpy.zeros((TOKENS, 2 * HIDDEN), dtype="f4")
    wrong = [
        (twice[:, ::2], idx, w), (x, idx.repeat(2, 1)[:, ::2], w), (memoryview(twice)[::2], idx, w),  # a copy would be gone
        (x[:1], idx, w), (x, idx, w[:1]),  # less rows than tokens
        (x, idx, w.astype("f8")), (x, idx.astype("i2"), w), (x, idx.astype("f4"), w)]
    for given in wrong:
        with pytest.raises(ValueError):
            eps[0].dispatch_send(*given)
    with pytest.raises(ValueError):
        eps[0].dispatch_send(x, idx[:1], w, n_tokens=TOKENS)
    with nanomc.ep_group():
        for rank, ep in enumerate(eps):
            ep.dispatch(*inputs(rank))
    short, out = numpy.zeros((TOKENS - 1, HIDDEN), dtype="f4"), numpy.zeros((TOKENS, HIDDEN), dtype="f4")
    rows = numpy.zeros(need.row_of // 4, dtype="i4")
    for call in (lambda: eps[0].combine(short), lambda: eps[0].combine_recv(short), lambda: eps[0].combine(out, y_recv=out),
                 lambda: eps[0].route_pack(masked_m=numpy.zeros(1, dtype="i4")), lambda: eps[0].scatter(short, rows)):
        with pytest.raises(ValueError, match="takes"):
            call()
    with nanomc.ep_group():  # none of them has done anything
        for ep in eps:
            ep.combine(out)
