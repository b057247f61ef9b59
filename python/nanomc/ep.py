"""Expert-parallel transport: the tokens of an MoE layer to their experts, and the results back. `Ep` has a method for every nmc_ep_*
call. On CUDA heaps calls enqueue on `stream`, by default torch's current one, and can be captured by torch.cuda.graph; on host heaps
they work at once. Memory that a call is given is the caller's, and must stay until the stream has run the step.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _abi
from ._abi import EpBytes
from ._library import NULL, Handle, address_of, check, ffi, lib, pointer_to, record, struct
from .memory import Array, cuda_device_of, dtype_of, in_place, type_bytes, writable
from .store import _enqueued
from .world import World, default_stream, stream_pointer

_GROUP = threading.local()  # `kept`: memory of the calls of an ep_group, which are made when it ends
_DTYPES = {_abi.DTYPE_FP32: "float32", _abi.DTYPE_BF16: "bfloat16", _abi.DTYPE_FP16: "float16"}


def _config(fields: Dict[str, Any]) -> Any:
    return struct("nmc_ep_config_t", **fields)


def ep_bytes_needed(world_size: int, *, hidden: int, top_k: int, experts: int, inner: int = 0, **fields: Any) -> EpBytes:
    """How much memory a group needs, before it is made. `fields` are those of nmc_ep_config_t."""
    config = _config({"hidden": hidden, "top_k": top_k, "experts": experts, **fields})
    out = struct("nmc_ep_bytes_t")
    check(lib.nmc_ep_bytes_needed(config, world_size, inner, out))
    return record(EpBytes, out)


@contextlib.contextmanager
def ep_group() -> Iterator[None]:
    """Calls for several ranks of this process inside the block go out together when it ends."""
    check(lib.nmc_ep_group_begin())
    outer, _GROUP.kept = getattr(_GROUP, "kept", None), []
    try:
        try:
            yield
        except BaseException:
            lib.nmc_ep_group_end()
            raise
        check(lib.nmc_ep_group_end())
    finally:
        if outer is not None:  # the calls of a block inside a block go out with the outer one
            outer.extend(_GROUP.kept)
        _GROUP.kept = outer


@dataclass(frozen=True)
class RecvBuffers:
    """What a rank receives in a step: views of its heap. Token t of rank s is in slot s * t_cap + t."""

    x: Array
    scales: Optional[Array]
    local_eid: Array
    weights: Array
    #: One a source, `record_stride` bytes apart.
    records: int
    record_stride: int
    #: Rows to return: what is put here needs no copy.
    y: Array


@dataclass(frozen=True)
class Gemm:
    """A product that `moe_forward` asks for: c[g][r] = a[g][r] * b[e]^T for r < masked_m[g], where e is group_expert[g]. Addresses."""

    which: int
    a: int
    a_scales: int
    b: int
    c: int
    masked_m: int
    group_expert: int
    groups: int
    max_m: int
    n: int
    k: int
    expected_m: int


def _address(value: Any, kind: Callable[[Any], Any] = writable, least: int = 0, name: str = "the memory") -> Any:
    """A pointer to a tensor or array of at least `least` bytes, to an address, or to nothing. Nothing is copied: the stream reads when
    the call has returned."""
    if value is None:
        return NULL
    if isinstance(value, int):
        return pointer_to(value)
    memory = _enqueued(value, kind)
    if memory.nbytes < least:
        raise ValueError(f"{name} takes {least} bytes, and has {memory.nbytes}")
    kept = getattr(_GROUP, "kept", None)
    if kept is not None:
        kept.append(memory)
    return memory.pointer


def _typed(value: Any, name: str, *kinds: str) -> str:
    """The element type of what a caller passes, one of `kinds`; the first for an address."""
    if value is None or isinstance(value, int):
        return kinds[0]
    kind = value.dtype if isinstance(value, Array) else dtype_of(value)
    if kind not in kinds:
        raise ValueError(f"{name} is {kind}, not {' or '.join(kinds)}")
    return str(kind)


class Ep:
    """One rank's part of an expert-parallel group, made together with all other members. `fields` are those of nmc_ep_config_t:
    members, heap_offset, t_cap, dtype, dispatch, weights, max_m, spill_groups, buffer_sets, blocks, flags, deadline_ms, ..."""

    def __init__(self, world: World, *, hidden: int, top_k: int, experts: int, **fields: Any) -> None:
        config = _config({"hidden": hidden, "top_k": top_k, "experts": experts, **fields})
        out = ffi.new("nmc_ep_t **")
        check(lib.nmc_ep_create(world._handle.raw, config, out))
        self._setup(world, config, out[0])

    @classmethod
    def create_ranks(cls, worlds: Sequence[World], *, hidden: int, top_k: int, experts: int, **fields: Any) -> List["Ep"]:
        """The same for several ranks of this process at once."""
        config = _config({"hidden": hidden, "top_k": top_k, "experts": experts, **fields})
        handles = ffi.new("nmc_world_t *[]", [world._handle.raw for world in worlds])
        out = ffi.new("nmc_ep_t *[]", len(worlds))
        check(lib.nmc_ep_create_ranks(handles, len(worlds), config, out))
        made = []
        for world, raw in zip(worlds, out):
            one = cls.__new__(cls)
            one._setup(world, config, raw)
            made.append(one)
        return made

    def _setup(self, world: World, config: Any, raw: Any) -> None:
        self._handle = Handle(raw, "expert-parallel group", lib.nmc_ep_destroy, world)
        info = world.info()
        members = config.members or (1 << info.world_size) - 1
        self.on_device = info.heap_kind == _abi.HEAP_CUDA
        #: Ranks of the group.
        self.ranks = bin(members).count("1")
        self.hidden, self.top_k, self.experts = config.hidden, config.top_k, config.experts
        self.t_cap = config.t_cap or max(256 // self.ranks, 1)
        self._dtype = _DTYPES[config.dtype]
        self._fp8 = config.dispatch != _abi.EP_DISPATCH_SAME
        self._weights = "float16" if config.weights == _abi.DTYPE_FP16 else "float32"
        self._sizes = struct("nmc_ep_bytes_t")
        check(lib.nmc_ep_bytes_needed(config, info.world_size, 0, self._sizes))
        self._row_bytes = self.hidden * type_bytes(self._dtype)
        self._recv_bytes = self.ranks * self.t_cap * self._row_bytes
        self._sent: Dict[int, int] = {}  # by layer: how many tokens a combine brings back

    def _stream(self, stream: Any) -> Any:
        return stream_pointer(default_stream(stream, self.on_device))

    def close(self) -> None:
        """Leaves the group. Finish the same steps everywhere first. May be called again."""
        self._handle.close()

    def __enter__(self) -> "Ep":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def abort(self) -> None:
        """Ends the group for all ranks at once."""
        check(lib.nmc_ep_abort(self._handle.raw))

    def check(self) -> None:
        """Raises what ended the group, if something did."""
        check(lib.nmc_ep_check(self._handle.raw))

    def _arguments(self, x: Any, topk_idx: Any, topk_w: Any, layer: int, scales: Any, n_tokens: Optional[int],
                   n_tokens_ptr: Any) -> Any:
        if n_tokens is None:
            if isinstance(topk_idx, int):
                raise ValueError("topk_idx is an address: say n_tokens")
            n_tokens = int(topk_idx.shape[0]) if topk_idx is not None else 0
        # The number at n_tokens_ptr is read later, and is the caller's affair: memory has room for n_tokens.
        wide = _typed(topk_idx, "topk_idx", "int32", "int64") == "int64"
        _typed(topk_w, "topk_w", self._weights)
        row_bytes = self.hidden if scales is not None else self._row_bytes  # with scales rows are fp8
        picks = n_tokens * self.top_k
        return struct(
            "nmc_ep_dispatch_t", x=_address(x, in_place, n_tokens * row_bytes, "x"),
            scales=ffi.cast("float *", _address(scales, in_place, n_tokens * (self.hidden // 128) * 4, "scales")),
            topk_idx=_address(topk_idx, in_place, picks * (8 if wide else 4), "topk_idx"),
            topk_w=_address(topk_w, in_place, picks * type_bytes(self._weights), "topk_w"),
            n_tokens_ptr=ffi.cast("int32_t *", _address(n_tokens_ptr, in_place, 4, "n_tokens_ptr")), n_tokens=n_tokens, layer=layer,
            idx_is_64=int(wide))

    def _out(self, out: Any, n_tokens: int) -> Any:
        return _address(out, writable, n_tokens * self._row_bytes, "out")

    def _y_recv(self, y_recv: Any, kind: Callable[[Any], Any] = in_place) -> Any:
        return _address(y_recv, kind, self._recv_bytes, "y_recv")

    def dispatch(self, x: Any, topk_idx: Any, topk_w: Any, *, layer: int = 0, scales: Any = None, n_tokens: Optional[int] = None,
                 n_tokens_ptr: Any = None, stream: Any = None) -> None:
        """Sends this rank's tokens to the ranks of their experts, and waits for those that come here. Tensors are contiguous:
        x [n, hidden], topk_idx [n, top_k] int32 or int64, topk_w [n, top_k]."""
        arguments = self._arguments(x, topk_idx, topk_w, layer, scales, n_tokens, n_tokens_ptr)
        check(lib.nmc_ep_dispatch(self._handle.raw, arguments, self._stream(stream)))
        self._sent[layer] = arguments.n_tokens

    def dispatch_send(self, x: Any, topk_idx: Any, topk_w: Any, *, layer: int = 0, scales: Any = None,
                      n_tokens: Optional[int] = None, n_tokens_ptr: Any = None, stream: Any = None) -> None:
        """The first half of a dispatch: sends, does not wait."""
        arguments = self._arguments(x, topk_idx, topk_w, layer, scales, n_tokens, n_tokens_ptr)
        check(lib.nmc_ep_dispatch_send(self._handle.raw, arguments, self._stream(stream)))
        self._sent[layer] = arguments.n_tokens

    def dispatch_recv(self, layer: int = 0, stream: Any = None) -> None:
        """The second half: waits for what comes here."""
        check(lib.nmc_ep_dispatch_recv(self._handle.raw, layer, self._stream(stream)))

    def recv_buffers(self, layer: int = 0) -> RecvBuffers:
        """Where the rows that a dispatch of `layer` brings are."""
        out = struct("nmc_ep_recv_buffers_t")
        check(lib.nmc_ep_recv_buffers(self._handle.raw, layer, out))
        slots = self.ranks * self.t_cap

        def array(pointer: Any, shape: Tuple[int, ...], dtype: str) -> Array:
            device = max(cuda_device_of(address_of(pointer)), 0) if self.on_device else -1
            return Array(self._handle.lease(ffi.cast("uint8_t *", pointer)), shape, dtype, device=device)

        scales = array(out.scales, (slots, self.hidden // 128), "float32") if out.scales != NULL else None
        return RecvBuffers(
            x=array(out.x, (slots, self.hidden), "float8_e4m3fn" if self._fp8 else self._dtype), scales=scales,
            local_eid=array(out.local_eid, (slots, self.top_k), "int16"),
            weights=array(out.weights, (slots, self.top_k), self._weights), records=address_of(out.records),
            record_stride=int(out.record_stride), y=array(out.y, (slots, self.hidden), self._dtype))

    def device(self, layer: int = 0) -> bytes:
        """nmc_ep_rank_t, what a kernel of the program needs to take part in a step, as bytes."""
        out = ffi.new("nmc_ep_rank_t *")
        check(lib.nmc_ep_device(self._handle.raw, layer, out))
        return bytes(ffi.buffer(out))

    def route_pack(self, *, layer: int = 0, x: Any = None, scales: Any = None, masked_m: Any, group_expert: Any = None,
                   row_of: Any = None, row_index: Any = None, stream: Any = None) -> None:
        """Groups the rows that came by expert, into memory of the sizes that `ep_bytes_needed` says."""
        sizes = self._sizes

        def integers(value: Any, least: int, name: str) -> Any:
            return ffi.cast("int32_t *", _address(value, writable, least, name))

        grouped = struct(
            "nmc_ep_grouped_t", x=_address(x, writable, sizes.grouped_x, "x"),
            scales=ffi.cast("float *", _address(scales, writable, sizes.grouped_scales, "scales")),
            masked_m=integers(masked_m, sizes.masked_m, "masked_m"), group_expert=integers(group_expert, sizes.masked_m, "group_expert"),
            row_of=integers(row_of, sizes.row_of, "row_of"), row_index=integers(row_index, sizes.row_index, "row_index"))
        check(lib.nmc_ep_route_pack(self._handle.raw, layer, grouped, self._stream(stream)))

    def scatter(self, y_grouped: Any, row_of: Any, *, layer: int = 0, y_recv: Any = None, stream: Any = None) -> None:
        """Sums the weighted rows of each token that came."""
        check(lib.nmc_ep_scatter(
            self._handle.raw, layer, _address(y_grouped, in_place, self._sizes.grouped_y, "y_grouped"),
            ffi.cast("int32_t *", _address(row_of, in_place, self._sizes.row_of, "row_of")), self._y_recv(y_recv, writable),
            self._stream(stream)))

    def combine(self, out: Any, *, layer: int = 0, y_recv: Any = None, stream: Any = None) -> None:
        """Returns rows to their owners, and sums what comes back for own tokens into out [n, hidden]."""
        check(lib.nmc_ep_combine(self._handle.raw, layer, self._y_recv(y_recv), self._out(out, self._sent.get(layer, 0)),
                                 self._stream(stream)))

    def combine_send(self, *, layer: int = 0, y_recv: Any = None, stream: Any = None) -> None:
        """The first half of a combine: returns rows, does not wait."""
        check(lib.nmc_ep_combine_send(self._handle.raw, layer, self._y_recv(y_recv), self._stream(stream)))

    def combine_recv(self, out: Any, *, layer: int = 0, stream: Any = None) -> None:
        """The second half: waits for what comes back, and sums it."""
        check(lib.nmc_ep_combine_recv(self._handle.raw, layer, self._out(out, self._sent.get(layer, 0)), self._stream(stream)))

    def moe_forward(self, x: Any, topk_idx: Any, topk_w: Any, *, w13: Any, w2: Any, workspace: Any, out: Any, inner: int,
                    layer: int = 0, scales: Any = None, n_tokens: Optional[int] = None, n_tokens_ptr: Any = None,
                    gemm: Optional[Callable[[Gemm, int], None]] = None, stream: Any = None) -> None:
        """A whole layer. `gemm(product, stream)` enqueues the engine's grouped product; without it the built-in one is used."""
        arguments = self._arguments(x, topk_idx, topk_w, layer, scales, n_tokens, n_tokens_ptr)
        memory = _enqueued(workspace, writable)
        # What the engine's own product makes of its weights is its affair.
        w13_bytes = 0 if gemm is not None else self.experts // self.ranks * 2 * inner * self._row_bytes
        moe = struct(
            "nmc_ep_moe_t", w13=_address(w13, in_place, w13_bytes, "w13"), w2=_address(w2, in_place, w13_bytes // 2, "w2"),
            workspace=memory.pointer, workspace_bytes=memory.nbytes, out=self._out(out, arguments.n_tokens), inner=inner)
        raised: List[BaseException] = []
        if gemm is not None:
            given = gemm

            def product(_: Any, asked: Any, on: Any) -> int:
                try:
                    given(_gemm(asked), address_of(on))
                    return _abi.OK
                except BaseException as error:
                    raised.append(error)
                    return _abi.ERR_CANCELLED

            moe.gemm = callback = ffi.callback("int32_t(void *, const nmc_ep_gemm_t *, void *)", product)
        status = lib.nmc_ep_moe_forward(self._handle.raw, arguments, moe, self._stream(stream))
        if gemm is not None:
            del callback
        if raised:
            raise raised[0]
        check(status)

    def stats(self) -> Tuple[List[int], List[int], int]:
        """Tokens sent to each expert, nanoseconds waited for each rank, and rows that did not fit the grouped layout."""
        load, waited = ffi.new("uint64_t[]", self.experts), ffi.new("uint64_t[]", self.ranks)
        overflow = ffi.new("uint64_t *")
        check(lib.nmc_ep_stats(self._handle.raw, load, waited, overflow))
        return list(load), list(waited), int(overflow[0])


def _gemm(asked: Any) -> Gemm:
    return Gemm(
        int(asked.which), address_of(asked.a), address_of(asked.a_scales), address_of(asked.b), address_of(asked.c),
        address_of(asked.masked_m), address_of(asked.group_expert), int(asked.groups), int(asked.max_m), int(asked.n),
        int(asked.k), int(asked.expected_m))
