"""Where the K and V of every token are: blocks, sequences, shared prefixes, block tables. `KvCache` has a method for every nmc_kv_*
call. Tables come as memoryviews of integers, which numpy.asarray and torch.frombuffer take without a copy. Calls that copy blocks of a
cache in device memory enqueue on `stream`, by default torch's current one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

from . import _abi
from ._abi import KvCopy, KvGroupStats, KvOpened, KvProgress, KvRoom, KvSeqInfo, KvStats
from ._library import (NULL, Handle, Key, address_of, check, expect, failure, ffi, key_bytes, lib, pointer_to, record, slice_of, struct,
                       text_call)
from .errors import DeadlineError
from .memory import Array, Memory, cuda_device_of, in_place, is_numpy, is_torch, readable, writable
from .store import Store, _enqueued, _told
from .world import World, default_stream, stream_pointer, wait_in_slices

_DTYPES = {_abi.DTYPE_FP32: "float32", _abi.DTYPE_BF16: "bfloat16", _abi.DTYPE_FP16: "float16", _abi.DTYPE_FP8: "float8_e4m3fn",
           _abi.DTYPE_INT8: "int8"}


@dataclass
class KvGroup:
    """Layers with one layout: the fields of nmc_kv_group_t. `memory` is a tensor, an array or anything else with a buffer; it stays
    the caller's, and is kept as long as the cache."""

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    kind: int = _abi.KV_KIND_ATTENTION
    dtype: int = _abi.DTYPE_BF16
    element_bytes: int = 0
    order: int = _abi.KV_LAYER_MAJOR
    sides: int = _abi.KV_SIDES_SEPARATE
    blocks: int = 0
    state_every: int = 0
    window: int = 0
    state_bytes: int = 0
    memory: Any = None


@dataclass(frozen=True)
class KvEvent:
    """What entered or left the prefix index: KV_EVENT_STORED, _REMOVED or _CLEARED."""

    number: int
    kind: int
    hash: bytes
    parent: bytes


@dataclass(frozen=True)
class KvView:
    """A 4-D tensor [blocks, heads, tokens, dim]; `data` is an address, or an offset if the group has no memory. Strides count
    elements."""

    data: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    element_bytes: int
    contiguous: bool


def _config(groups: Sequence[KvGroup], hash_secret: bytes, **fields: Any) -> Tuple[Any, Any]:
    config = struct("nmc_kv_config_t", **fields)
    array = ffi.new("nmc_kv_group_t[]", len(groups) or 1)
    keep: List[Any] = [array, hash_secret, [False] * len(groups)]  # the last: whether its memory is on a GPU
    for at, group in enumerate(groups):
        expect(KvGroup, group, "a group")
        given = struct(
            "nmc_kv_group_t", layers=group.layers, kv_heads=group.kv_heads, head_dim=group.head_dim, kind=group.kind,
            dtype=group.dtype, element_bytes=group.element_bytes, order=group.order, sides=group.sides, blocks=group.blocks,
            state_every=group.state_every, window=group.window, state_bytes=group.state_bytes)
        if group.memory is not None:
            memory = _enqueued(group.memory, writable)
            keep.append(memory)
            keep[2][at] = memory.cuda
            given.memory, given.memory_bytes = memory.pointer, memory.nbytes
        array[at] = given[0]
    if groups:
        config.groups, config.n_groups = array, len(groups)
    pointer = ffi.from_buffer(hash_secret)
    config.hash_secret = (pointer, len(hash_secret))
    keep.append(pointer)
    return config, keep


def _tokens(tokens: Any) -> Tuple[Any, int, Any]:
    """uint32 tokens from a sequence of integers, a tensor or an array; pointer, count, and what is kept."""
    if tokens is None:
        return NULL, 0, None
    if is_torch(tokens):
        tokens = tokens.detach().cpu().numpy()
    if is_numpy(tokens):
        import numpy

        if tokens.dtype != numpy.uint32 and tokens.size:  # a cast would make other tokens of those that do not fit
            if tokens.dtype.kind not in "iu":
                raise TypeError(f"tokens are integers, not {tokens.dtype}")
            if tokens.min() < 0 or tokens.max() >= 1 << 32:
                raise OverflowError(f"tokens from {tokens.min()} to {tokens.max()} are not between 0 and 2^32 - 1")
        dense = numpy.ascontiguousarray(tokens, dtype=numpy.uint32)
        return pointer_to(dense.ctypes.data, "uint32_t *"), dense.size, dense
    copied = list(tokens)
    array = ffi.new("uint32_t[]", copied or 1)
    return array, len(copied), array


def _counted(tokens: Any, n_tokens: Optional[int]) -> Tuple[Any, int, Any]:
    """`_tokens`, or without them `n_tokens` unknown ones."""
    pointer, count, keep = _tokens(tokens)
    if n_tokens is None or (tokens is not None and n_tokens == count):
        return pointer, count, keep
    if tokens is not None:
        raise ValueError(f"n_tokens is {n_tokens}, and there are {count} tokens")
    return pointer, n_tokens, keep


def _ids(ids: Sequence[int]) -> Any:
    return ffi.new("uint64_t[]", [int(one) for one in ids] or 1)


def _hashes(hashes: Optional[Sequence[bytes]]) -> Tuple[Any, int]:
    if hashes is None:
        return NULL, 0
    for one in hashes:
        if len(one) != 16:
            raise ValueError(f"a hash has 16 bytes, not {len(one)}")
    return ffi.new("nmc_kv_hash_t[]", [(list(one),) for one in hashes] or 1), len(hashes)


def _events(array: Any, count: int) -> List[KvEvent]:
    return [KvEvent(int(array[at].number), int(array[at].kind), bytes(array[at].hash.bytes), bytes(array[at].parent.bytes))
            for at in range(count)]


def _integers(count: int, kind: str = "i") -> Tuple[memoryview, Any]:
    """Integers for the library to fill: a view of them, and a pointer to them."""
    size = {"i": 4, "q": 8}[kind]
    view = memoryview(bytearray(count * size)).cast(kind)  # type: ignore[call-overload]
    pointer = ffi.from_buffer(view.obj) if count else NULL
    return view, ffi.cast("int32_t *" if kind == "i" else "int64_t *", pointer)


def kv_heap_bytes(groups: Sequence[KvGroup], group: Optional[int] = None, *, total_blocks: int = 0, capacity_blocks: int = 0,
                  tokens_per_block: int = 16, max_total_tokens: int = 0, flags: int = 0) -> int:
    """How much memory a group needs, or without `group` how much of a world's heap all of them take."""
    config, keep = _config(groups, b"", total_blocks=total_blocks, capacity_blocks=capacity_blocks,
                           tokens_per_block=tokens_per_block, max_total_tokens=max_total_tokens, flags=flags)
    out = ffi.new("uint64_t *")
    check(lib.nmc_kv_heap_bytes(config, _abi.KV_GROUPS_ALL if group is None else group, out))
    del keep
    return int(out[0])


def kv_page_tokens(groups: Sequence[KvGroup], *, total_blocks: int = 0, max_total_tokens: int = 0,
                   heap_kind: int = _abi.HEAP_HOST, device: int = -1) -> int:
    """The smallest `tokens_per_block` of a virtual cache (KV_VIRTUAL)."""
    config, keep = _config(groups, b"", total_blocks=total_blocks, max_total_tokens=max_total_tokens, flags=_abi.KV_VIRTUAL,
                           heap_kind=heap_kind, device=device)
    out = ffi.new("uint32_t *")
    check(lib.nmc_kv_page_tokens(config, out))
    del keep
    return int(out[0])


class KvCache:
    """A block KV cache: it maps the tokens of sequences to numbered blocks. The arguments are the fields of nmc_kv_config_t. With a
    world the groups lie in the heap of its rank."""

    def __init__(self, groups: Sequence[KvGroup] = (), *, world: Optional[World] = None, total_blocks: int = 0,
                 capacity_blocks: int = 0, tokens_per_block: int = 16, max_sequences: int = 0, max_total_tokens: int = 0,
                 window: int = 0, eviction: int = _abi.EVICT_LRU, when_full: int = _abi.KV_WHEN_FULL_REJECT,
                 hash: int = _abi.KV_HASH_BLAKE3, flags: int = 0, hash_secret: bytes = b"", event_capacity: int = 0,
                 heap_kind: int = _abi.HEAP_HOST, device: int = -1, max_sequence_tokens: int = 0, heap_offset: int = 0) -> None:
        config, keep = _config(
            groups, hash_secret, total_blocks=total_blocks, capacity_blocks=capacity_blocks, tokens_per_block=tokens_per_block,
            max_sequences=max_sequences, max_total_tokens=max_total_tokens, window=window, eviction=eviction,
            when_full=when_full, hash=hash, flags=flags, event_capacity=event_capacity, heap_kind=heap_kind, device=device,
            max_sequence_tokens=max_sequence_tokens, heap_offset=heap_offset)
        out = ffi.new("nmc_kv_t **")
        check(lib.nmc_kv_create(NULL if world is None else world._handle.raw, config, out))
        # The blocks are in the callers' memory: it stays as long as the handle and every array made of it.
        self._handle = Handle(out[0], "KV cache", lib.nmc_kv_destroy, world, keep)
        self.groups = list(groups)
        self.tokens_per_block = tokens_per_block
        self._memory = world is not None or bool(flags & _abi.KV_VIRTUAL)
        kind = world.info().heap_kind if world is not None else heap_kind
        self._on_device = [self._memory and kind == _abi.HEAP_CUDA or cuda for cuda in keep[2]]

    def close(self) -> None:
        """Destroys the cache. May be called again."""
        self._handle.close()

    def __enter__(self) -> "KvCache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _stream(self, stream: Any) -> Any:
        return default_stream(stream, any(self._on_device))

    def _roomy(self, status: int, room: Any) -> None:
        """Raises; NoRoom has `room`, how much there was."""
        if status:
            error = failure(status)
            if status == _abi.ERR_NO_SPACE:
                error.room = record(KvRoom, room)  # type: ignore[attr-defined]
            raise error

    # ---- sequences

    def open(self, tokens: Any = None, *, id: Optional[int] = None, n_tokens: Optional[int] = None, flags: int = 0,
             priority: int = 0, ttl_ms: int = 0, salt: bytes = b"", name: Key = b"",
             hashes: Optional[Sequence[bytes]] = None) -> KvOpened:
        """Opens a sequence: takes the blocks that the cache has of its prefix, and gets others for the rest. Without `id` the cache
        chooses one. Without `tokens`, `n_tokens` unknown ones."""
        pointer, count, keep = _counted(tokens, n_tokens)
        title = key_bytes(name)
        options = struct("nmc_kv_open_t", flags=flags, priority=priority, ttl_ms=ttl_ms)
        kept = [ffi.from_buffer(salt), ffi.from_buffer(title)]
        options.salt, options.name = (kept[0], len(salt)), (kept[1], len(title))
        array, n_hashes = _hashes(hashes)
        options.hashes, options.n_hashes = array, n_hashes
        opened, room = struct("nmc_kv_opened_t"), struct("nmc_kv_room_t")
        chosen = _abi.KV_ID_AUTO if id is None else id
        self._roomy(lib.nmc_kv_open(self._handle.raw, chosen, pointer, count, options, opened, room), room)
        del keep
        return record(KvOpened, opened)

    def find(self, name: Key) -> int:
        """The id of the open sequence with this name."""
        out = ffi.new("uint64_t *")
        check(lib.nmc_kv_find(self._handle.raw, slice_of(key_bytes(name)), out))
        return int(out[0])

    def append(self, id: int, tokens: Any = None, *, n_tokens: Optional[int] = None, importance: float = 0.0) -> None:
        """Adds tokens to a sequence, and blocks as they are needed. What it had before counts as computed."""
        pointer, count, keep = _counted(tokens, n_tokens)
        room = struct("nmc_kv_room_t")
        options = struct("nmc_kv_append_t", importance=importance) if importance else NULL
        self._roomy(lib.nmc_kv_append(self._handle.raw, id, pointer, count, options, room), room)
        del keep

    def append_batch(self, ids: Sequence[int], tokens: Any = None, *, strict: bool = True) -> List[int]:
        """Adds one token to each of many sequences. Returns the status of each."""
        pointer, count, keep = _tokens(tokens)
        if tokens is not None and count != len(ids):
            raise ValueError(f"{len(ids)} sequences and {count} tokens")
        statuses = ffi.new("nmc_status_t[]", len(ids) or 1)
        status = lib.nmc_kv_append_batch(self._handle.raw, _ids(ids), pointer, len(ids), statuses)
        del keep
        return _told(status, statuses, len(ids), strict)

    def commit(self, id: int, n_tokens: int) -> None:
        """Says that the first `n_tokens` tokens of a sequence are computed."""
        check(lib.nmc_kv_commit(self._handle.raw, id, n_tokens))

    def keep_state(self, id: int) -> None:
        """Keeps the recurrent state that a sequence has now, for later ones that begin with the same tokens."""
        check(lib.nmc_kv_keep_state(self._handle.raw, id))

    def reserve(self, id: int, n_tokens: int) -> None:
        """Gets blocks for `n_tokens` tokens in all."""
        room = struct("nmc_kv_room_t")
        self._roomy(lib.nmc_kv_reserve(self._handle.raw, id, n_tokens, room), room)

    def truncate(self, id: int, n_tokens: int) -> None:
        """Cuts a sequence to its first `n_tokens` tokens."""
        room = struct("nmc_kv_room_t")
        self._roomy(lib.nmc_kv_truncate(self._handle.raw, id, n_tokens, room), room)

    def fork(self, parent: int, child: int) -> None:
        """Opens sequence `child` with the tokens of `parent`."""
        room = struct("nmc_kv_room_t")
        self._roomy(lib.nmc_kv_fork(self._handle.raw, parent, child, room), room)

    def close_sequence(self, id: int, flags: int = 0) -> None:
        """Closes a sequence; full blocks that it computed stay in the cache. `flags`: KV_CLOSE_ABORT or 0."""
        check(lib.nmc_kv_close(self._handle.raw, id, flags))

    def drop_least(self, id: int, count: int, keep_first: int = 0, keep_recent: int = 0) -> int:
        """Drops up to `count` full blocks from the middle of a sequence, the least important first; how many."""
        out = ffi.new("uint32_t *")
        check(lib.nmc_kv_drop_least(self._handle.raw, id, count, keep_first, keep_recent, out))
        return int(out[0])

    def match(self, tokens: Any = None, *, n_tokens: Optional[int] = None, hashes: Optional[Sequence[bytes]] = None,
              salt: bytes = b"") -> int:
        """How many leading tokens the cache has. Holds nothing."""
        pointer, count, keep = _counted(tokens, n_tokens)
        array, n_hashes = _hashes(hashes)
        if hashes is not None and n_hashes != count // self.tokens_per_block:
            raise ValueError(f"{count} tokens have {count // self.tokens_per_block} full blocks, and there are {n_hashes} hashes")
        out = ffi.new("uint64_t *")
        check(lib.nmc_kv_match(self._handle.raw, pointer, count, array, slice_of(salt), out))
        del keep
        return int(out[0])

    def hash(self, tokens: Any, salt: bytes = b"") -> List[bytes]:
        """The hashes of the full blocks of `tokens`."""
        pointer, count, keep = _tokens(tokens)
        full = count // self.tokens_per_block
        out = ffi.new("nmc_kv_hash_t[]", full or 1)
        check(lib.nmc_kv_hash(self._handle.raw, pointer, count, slice_of(salt), out))
        del keep
        return [bytes(out[at].bytes) for at in range(full)]

    def pin(self, id: int, n_tokens: int) -> Tuple[int, int]:
        """Keeps published blocks of a sequence in the cache until `unpin`: the pin, and how many tokens it covers."""
        pin, covered = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        check(lib.nmc_kv_pin(self._handle.raw, id, n_tokens, pin, covered))
        return int(pin[0]), int(covered[0])

    def unpin(self, pin: int) -> None:
        check(lib.nmc_kv_unpin(self._handle.raw, pin))

    def clear(self) -> int:
        """Evicts every cached block that nobody holds; how many."""
        out = ffi.new("uint64_t *")
        check(lib.nmc_kv_clear(self._handle.raw, out))
        return int(out[0])

    def resize(self, total_blocks: int) -> None:
        """Changes the number of blocks, up to `capacity_blocks`."""
        check(lib.nmc_kv_resize(self._handle.raw, total_blocks))

    # ---- facts

    def events(self, cursor: int = 0, capacity: int = 1024) -> Tuple[List[KvEvent], int, int]:
        """Events from number `cursor` on, the number to go on with, and how many were lost before they could be read."""
        at, n, lost = ffi.new("uint64_t *", cursor), ffi.new("size_t *"), ffi.new("uint64_t *")
        out = ffi.new("nmc_kv_event_t[]", capacity)
        check(lib.nmc_kv_events(self._handle.raw, at, out, capacity, n, lost))
        return _events(out, n[0]), int(at[0]), int(lost[0])

    def snapshot(self) -> Tuple[List[KvEvent], int]:
        """Every block of the prefix index, and the number with which `events` goes on."""
        capacity = 1024
        while True:
            cursor, n, out = ffi.new("uint64_t *"), ffi.new("size_t *"), ffi.new("nmc_kv_event_t[]", capacity)
            status = lib.nmc_kv_snapshot(self._handle.raw, cursor, out, capacity, n)
            if status != _abi.ERR_TOO_SMALL:
                check(status)
                return _events(out, n[0]), int(cursor[0])
            capacity = n[0] + 256

    def seq_info(self, id: int, flags: int = 0) -> KvSeqInfo:
        """What a sequence is; with KV_SEQ_STORED also how much of it the store has."""
        out = struct("nmc_kv_seq_info_t")
        check(lib.nmc_kv_seq_info(self._handle.raw, id, flags, out))
        return record(KvSeqInfo, out)

    def victims(self, capacity: int = 64) -> List[int]:
        """Ids of the sequences that were used longest ago, the oldest first."""
        out, n = ffi.new("uint64_t[]", capacity), ffi.new("size_t *")
        check(lib.nmc_kv_victims(self._handle.raw, out, capacity, n))
        return list(out)[: n[0]]

    def stats(self) -> KvStats:
        out = struct("nmc_kv_stats_t")
        check(lib.nmc_kv_stats(self._handle.raw, out))
        return record(KvStats, out)

    def group_stats(self, group: int) -> KvGroupStats:
        out = struct("nmc_kv_group_stats_t")
        check(lib.nmc_kv_group_stats(self._handle.raw, group, out))
        return record(KvGroupStats, out)

    def dump(self, width: int = 0) -> str:
        """The state as text for people, with a picture of the blocks if `width` is not 0."""
        return text_call(lambda buffer, size, needed: int(lib.nmc_kv_dump(self._handle.raw, width, buffer, size, needed)))

    def audit(self) -> None:
        """Counts every block afresh; InternalError if something is lost or owned twice."""
        check(lib.nmc_kv_audit(self._handle.raw))

    # ---- memory and tables

    def view_info(self, id: int, group: int = 0, layer: int = 0, side: int = _abi.KV_K) -> KvView:
        """K or V of a sequence in one layer: where it is."""
        out = struct("nmc_kv_view_t")
        check(lib.nmc_kv_view(self._handle.raw, id, group, layer, side, out))
        return KvView(address_of(out.data), tuple(out.shape), tuple(out.strides), int(out.element_bytes), bool(out.contiguous))

    def view(self, id: int, group: int = 0, layer: int = 0, side: int = _abi.KV_K) -> Array:
        """The same as an array [blocks, heads, tokens, dim], without a copy. For a paged sequence these are all blocks of the layer,
        which the block table indexes."""
        if group < len(self.groups) and self.groups[group].memory is None and not self._memory:
            raise ValueError(f"group {group} has no memory: the cache manages its block numbers alone")
        info = self.view_info(id, group, layer, side)
        kind = self.groups[group].dtype
        name = _DTYPES.get(kind) or {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}.get(info.element_bytes)
        if name is None:
            raise ValueError(f"elements of {info.element_bytes} bytes are no type of arrays: use view_info")
        lease = self._handle.lease(pointer_to(info.data, "uint8_t *"))
        device = max(cuda_device_of(info.data), 0) if self._on_device[group] else -1
        return Array(lease, info.shape, name, strides=info.strides, device=device)

    def token_address(self, id: int, token: int, group: int = 0, layer: int = 0, side: int = _abi.KV_K, head: int = 0) -> int:
        """The address of the vector of one token."""
        out = ffi.new("void **")
        check(lib.nmc_kv_token_address(self._handle.raw, id, token, group, layer, side, head, out))
        return address_of(out[0])

    def table(self, ids: Sequence[int], width: int, *, group: int = 0, format: int = _abi.KV_TABLE_BLOCKS,
              pad: int = -1) -> memoryview:
        """A dense block table, int32 [n, width], or [n, 2, width] with KV_TABLE_OFFSETS. `KvTable` writes only what changes."""
        made = KvTable(self, len(ids), width, group=group, format=format, pad=pad)
        made.update(ids)
        shape = [len(ids), width] if format == _abi.KV_TABLE_BLOCKS else [len(ids), 2, width]
        return made.data if not made.data.nbytes else made.data.cast("B").cast("i", shape)

    def table_csr(self, ids: Sequence[int], group: int = 0) -> Tuple[memoryview, memoryview, memoryview]:
        """The compressed table of FlashInfer: indptr [n + 1], last_page_len [n], indices; int32."""
        n = len(ids)
        (indptr, to_indptr), (last, to_last) = _integers(n + 1), _integers(n)
        capacity, count = 64 * max(n, 1), ffi.new("size_t *")
        while True:
            indices, to_indices = _integers(capacity)
            status = lib.nmc_kv_table_csr(self._handle.raw, group, _ids(ids), n, to_indptr, to_last, to_indices, capacity, count)
            if status != _abi.ERR_TOO_SMALL:
                check(status)
                return indptr, last, indices[: count[0]]
            capacity = count[0] + 64

    def slot_mapping(self, ids: Sequence[int], counts: Optional[Sequence[int]] = None, group: int = 0) -> memoryview:
        """Where the last `counts[i]` tokens of each sequence go (the last one without `counts`); int64."""
        if counts is not None and len(counts) != len(ids):
            raise ValueError(f"{len(ids)} sequences and {len(counts)} counts")
        capacity, n = (sum(counts) if counts is not None else len(ids)), ffi.new("size_t *")
        given = ffi.new("uint32_t[]", list(counts) or 1) if counts is not None else NULL
        slots, pointer = _integers(capacity, "q")
        check(lib.nmc_kv_slot_mapping(self._handle.raw, group, _ids(ids), given, len(ids), pointer, capacity, n))
        return slots[: n[0]]

    def state_slots(self, ids: Sequence[int], group: int) -> Tuple[memoryview, memoryview]:
        """The slots of recurrent states: read from, and write to; int32, -1 for none."""
        (reads, to_reads), (writes, to_writes) = _integers(len(ids)), _integers(len(ids))
        check(lib.nmc_kv_state_slots(self._handle.raw, group, _ids(ids), len(ids), to_reads, to_writes))
        return reads, writes

    # ---- moving

    def attach_store(self, store: Store) -> None:
        """Ties the cache to a store, through which it exchanges blocks with caches of other processes."""
        check(lib.nmc_kv_attach_store(self._handle.raw, store._handle.raw))
        self._store = store

    def move_after(self, stream: Any = None) -> None:
        """Says which stream moves come after that make room; needed if the cache lies in device memory."""
        check(lib.nmc_kv_move_after(self._handle.raw, _after(self._stream(stream), None)))

    def offload(self, id: int, n_tokens: int, *, stream: Any = None, event: Any = None) -> int:
        """Begins to copy published blocks of a sequence to the store; a ticket. In device memory it waits for what is on the stream
        that computes the blocks, or for an event behind that work."""
        out = ffi.new("uint64_t *")
        check(lib.nmc_kv_offload(self._handle.raw, id, n_tokens, _after(self._stream(stream), event), out))
        return int(out[0])

    def onboard(self, id: int, flags: int = 0, *, stream: Any = None, event: Any = None) -> Tuple[int, int]:
        """Begins to fetch the blocks that follow those that a new sequence found in the cache: ticket and tokens, both 0 if the
        store has none."""
        ticket, tokens = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        check(lib.nmc_kv_onboard(self._handle.raw, id, flags, _after(self._stream(stream), event), ticket, tokens))
        return int(ticket[0]), int(tokens[0])

    def transfer_poll(self, ticket: int) -> Tuple[bool, KvProgress]:
        """Whether a transfer is over, with which the ticket ends, and how far it is. Raises if it failed."""
        out = struct("nmc_kv_progress_t")
        status = lib.nmc_kv_transfer_poll(self._handle.raw, ticket, out)
        if status != _abi.IN_PROGRESS:
            check(status)
        return status == _abi.OK, record(KvProgress, out)

    def transfer_wait(self, ticket: int, timeout_ms: int = -1) -> Tuple[bool, KvProgress]:
        """The same, after waiting up to `timeout_ms` (-1 for 30 s)."""
        out = struct("nmc_kv_progress_t")
        status = wait_in_slices(lambda ms: int(lib.nmc_kv_transfer_wait(self._handle.raw, ticket, ms, out)), timeout_ms)
        if status != _abi.IN_PROGRESS:
            check(status)
        return status == _abi.OK, record(KvProgress, out)

    async def atransfer(self, ticket: int, timeout_ms: int = -1) -> KvProgress:
        """Waits for a transfer without blocking the loop; DeadlineError if the time is over first, and the transfer goes on."""
        end = time.monotonic() + (30_000 if timeout_ms < 0 else timeout_ms) / 1000
        pause = 0.0002
        while True:
            done, progress = self.transfer_poll(ticket)
            if done:
                return progress
            if time.monotonic() >= end:
                raise DeadlineError(_abi.ERR_TIMEOUT, f"{progress.tokens_done} of {progress.tokens} tokens after {timeout_ms} ms")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.005)

    def transfer_cancel(self, ticket: int) -> None:
        """Asks a transfer to end soon."""
        check(lib.nmc_kv_transfer_cancel(self._handle.raw, ticket))

    def take_copies(self, id: int) -> List[KvCopy]:
        """The copies that a sequence waits for; `copy_blocks` makes them."""
        capacity, n = 64, ffi.new("size_t *")
        while True:
            out = ffi.new("nmc_kv_copy_t[]", capacity)
            status = lib.nmc_kv_take_copies(self._handle.raw, id, out, capacity, n)
            if status != _abi.ERR_TOO_SMALL:
                check(status)
                return [record(KvCopy, out[at]) for at in range(n[0])]
            capacity = n[0]

    def copy_blocks(self, copies: Sequence[KvCopy], stream: Any = None) -> None:
        """Makes copies of blocks, at once in host memory, or when the stream gets there."""
        array = ffi.new("nmc_kv_copy_t[]", len(copies) or 1)
        for at, copy in enumerate(copies):
            expect(KvCopy, copy, "a copy")
            array[at] = (copy.from_, copy.to, copy.group, 0, pointer_to(copy.from_address), pointer_to(copy.to_address), copy.bytes)
        check(lib.nmc_kv_copy_blocks(self._handle.raw, array, len(copies), stream_pointer(self._stream(stream))))

    def gather(self, blocks: Sequence[int], to: Any, *, group: int = _abi.KV_GROUPS_ALL, stream: Any = None) -> None:
        """Copies blocks one after the other into `to`, as they are in a store."""
        memory = _enqueued(to, writable)
        numbers = ffi.new("int32_t[]", list(blocks) or 1)
        check(lib.nmc_kv_gather(
            self._handle.raw, group, numbers, len(blocks), memory.pointer, memory.nbytes, stream_pointer(self._stream(stream))))

    def scatter(self, blocks: Sequence[int], source: Any, *, group: int = _abi.KV_GROUPS_ALL, stream: Any = None) -> None:
        """The reverse of `gather`."""
        memory: Memory = _enqueued(source, in_place if any(self._on_device) else readable)
        numbers = ffi.new("int32_t[]", list(blocks) or 1)
        check(lib.nmc_kv_scatter(
            self._handle.raw, group, numbers, len(blocks), memory.pointer, memory.nbytes, stream_pointer(self._stream(stream))))


def _after(stream: Any, event: Any) -> Any:
    if event is not None:
        return ffi.new("nmc_kv_after_t *", (_abi.KV_AFTER_EVENT, 0, pointer_to(getattr(event, "cuda_event", event))))
    if stream is not None:
        return ffi.new("nmc_kv_after_t *", (_abi.KV_AFTER_STREAM, 0, stream_pointer(stream)))
    return ffi.new("nmc_kv_after_t *", (_abi.KV_AFTER_NOTHING, 0, NULL))


class KvTable:
    """A dense block table that is kept up to date: `update` writes only the entries that changed since its last call. `out` is int32
    memory of [rows, width] ([rows, 2, width] with KV_TABLE_OFFSETS), such as a pinned torch tensor; without it there is `data`."""

    def __init__(self, kv: KvCache, rows: int, width: int, *, group: int = 0, format: int = _abi.KV_TABLE_BLOCKS, pad: int = -1,
                 out: Any = None) -> None:
        self._kv, self._width, self._group, self._format, self._pad = kv, width, group, format, pad
        self._rows = ffi.new("nmc_kv_row_t[]", rows or 1)
        self._count = rows
        entries = rows * width * (2 if format == _abi.KV_TABLE_OFFSETS else 1)
        self.data, self._pointer = _integers(entries if out is None else 0)
        self._keep = self.data.obj  # also if the program releases its view of it
        if out is not None:
            self._memory = writable(out)
            if self._memory.cuda:
                raise ValueError("a table is written by the CPU: out is on a GPU")
            if self._memory.nbytes < 4 * entries:
                raise ValueError(f"{entries} entries take {4 * entries} bytes, out has {self._memory.nbytes}")
            self._pointer = pointer_to(self._memory.address, "int32_t *")

    def update(self, ids: Sequence[int]) -> int:
        """Row i becomes that of sequence ids[i]. Returns how many entries were written."""
        if len(ids) > self._count:
            raise ValueError(f"{len(ids)} sequences for {self._count} rows")
        written = ffi.new("uint64_t *")
        check(lib.nmc_kv_table(self._kv._handle.raw, self._group, self._format, _ids(ids), len(ids), self._width, self._pad,
                               self._rows, self._pointer, written))
        return int(written[0])
