"""Immutable objects by key: one process writes, all read, in place or as a copy. `Store` has a method for every nmc_store_* call; the
asyncio forms begin with `a` and use the store's event descriptor, no threads. Methods that end in `_async` enqueue on a CUDA stream.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union, overload

from . import _abi
from ._abi import Completion, DevicePin, ObjectInfo, RetryHint, StoreRankStats, StoreStats
from ._library import (NULL, Handle, Key, address_of, check, expect, failure, ffi, flat, key_bytes, key_slices, lib, pointer_to, record,
                       slice_of, struct, text_call)
from .errors import BusyError, DeadlineError, NanomcError, NoRoom, NotFound, NotReadyError, error_of
from .events import OURS, Events, Watch
from .memory import Memory, cuda_device_of, in_place, own_memory, readable, writable
from .views import View, WritePlan
from .world import SLICE_MS, World, stream_pointer, wait_in_slices

_SCRATCH = 64 << 10  # values up to this size are read with one call
_ROOM = (_abi.ERR_BUSY, _abi.ERR_NO_SPACE, _abi.ERR_LIMIT)  # may pass if one waits
_LONGEST_MS = 7 * 24 * 3600 * 1000  # the library waits no longer
_RAISE: Any = object()
_from_buffer, _unpack = ffi.from_buffer, ffi.unpack
_DEFAULT_OPTIONS = struct("nmc_put_options_t")[0]
_get = flat("nmc_store_get", "int32_t(*)(void *, const char *, size_t, void *, size_t, size_t *)")
_get_into = flat("nmc_store_get_into", "int32_t(*)(void *, const char *, size_t, void *, size_t)")
_put = flat("nmc_store_put", "int32_t(*)(void *, const char *, size_t, const char *, size_t, const void *)")
# The same with addresses as numbers.
_put_from = flat("nmc_store_put", "int32_t(*)(void *, const char *, size_t, uintptr_t, size_t, const void *)")
_get_to = flat("nmc_store_get_into", "int32_t(*)(void *, const char *, size_t, uintptr_t, size_t)")
_exists = flat("nmc_store_exists", "int32_t(*)(void *, const char *, size_t, uint32_t *)")
_pin = flat("nmc_store_pin", "int32_t(*)(void *, const char *, size_t, nmc_view_t *)")
Default = TypeVar("Default")


def put_options(preferred_segment: int = -1, contiguous: bool = False, replace: bool = False, any_rank: bool = False, retain: int = 0,
                priority: int = 0, ttl_ms: int = 0, wait_ms: int = 0, metadata: Optional[bytes] = None) -> Tuple[Any, Any]:
    """nmc_put_options_t, or NULL if everything is as usual; and what it points to."""
    flags = contiguous * _abi.PUT_CONTIGUOUS | replace * _abi.PUT_REPLACE | any_rank * _abi.PUT_ANY_RANK
    if not (flags or retain or priority or ttl_ms or wait_ms or metadata) and preferred_segment == -1:
        return NULL, None
    made = ffi.new("nmc_put_options_t *", _DEFAULT_OPTIONS)
    made.preferred_segment, made.flags = preferred_segment, flags
    if retain or priority or ttl_ms or wait_ms:
        made.retain, made.priority, made.ttl_ms, made.wait_ms = retain, priority, ttl_ms, wait_ms
    if metadata:
        pointer = _from_buffer(metadata)
        made.metadata = (pointer, len(metadata))
        return made, pointer
    return made, None


def batch_failure(statuses: Sequence[int]) -> Optional[NanomcError]:
    """The first failure of a batch; its `statuses` has what became of every item."""
    for status in statuses:
        if status:
            error = error_of(status, f"item {list(statuses).index(status)} of {len(statuses)}")
            error.statuses = list(statuses)  # type: ignore[attr-defined]
            return error
    return None


class Store:
    """A client of a store, in one of its namespaces. With a world it attaches to the world's store; without one it is a store inside
    this process, of `heap_bytes`. The other arguments are the fields of nmc_store_config_t.

    Values are anything with a buffer: bytes, bytearray, memoryview, numpy arrays, torch tensors on CPU or GPU."""

    _call_ms = 10_000  # what waits without a time of their own take

    def __init__(self, world: Optional[World] = None, *, heap_bytes: int = 0, heap_offset: int = 0, key_slab_bytes: int = 0,
                 page_bytes: int = 0, max_objects: int = 0, pin_slots: int = 0, eviction: int = _abi.EVICT_FIFO,
                 checksums: bool = False, huge_pages: bool = False, populate: bool = False, wait_for_tier: bool = False,
                 master_rank: int = 0, high_permille: int = -1, low_permille: int = -1, watchdog_ms: int = -1,
                 world_size: int = 0, heap_kind: int = _abi.HEAP_HOST, device: int = -1, attach_timeout_ms: int = -1,
                 call_timeout_ms: int = -1) -> None:
        flags = checksums * _abi.STORE_CHECKSUMS | wait_for_tier * _abi.STORE_WAIT_FOR_TIER
        heap_flags = huge_pages * _abi.HEAP_HUGE_PAGES | populate * _abi.HEAP_POPULATE
        config = struct(
            "nmc_store_config_t", heap_bytes=heap_bytes, heap_offset=heap_offset, key_slab_bytes=key_slab_bytes,
            page_bytes=page_bytes, max_objects=max_objects, pin_slots=pin_slots, eviction=eviction, flags=flags,
            master_rank=master_rank, high_permille=high_permille, low_permille=low_permille, watchdog_ms=watchdog_ms,
            world_size=world_size, heap_kind=heap_kind, device=device, heap_flags=heap_flags, attach_timeout_ms=attach_timeout_ms,
            call_timeout_ms=call_timeout_ms)
        if world is not None:
            expect(World, world, "world")
            world._handle.require()
            heap_kind = world.info().heap_kind
        elif world_size > 1:
            raise ValueError(f"world_size {world_size} without a world: a store inside this process has one rank")
        out = ffi.new("nmc_store_t **")
        check(lib.nmc_store_create(NULL if world is None else world._handle.raw, config, out))
        self._setup(Handle(out[0], "store", lib.nmc_store_destroy, world), heap_kind == _abi.HEAP_CUDA, Events())
        if call_timeout_ms >= 0:
            self._call_ms = call_timeout_ms

    def _setup(self, handle: Handle, on_device: bool, events: Events) -> None:
        self._handle = handle
        #: Whether values lie in device memory.
        self.on_device = on_device
        self._events = events
        with events._lock:
            events.handles.add(handle)
        self._pool: List[Any] = []

    def namespace(self, name: Key, quota_bytes: Optional[int] = 0) -> "Store":
        """A namespace of the same store: keys of its own, and an optional quota. 0 is no limit, None leaves what it is."""
        out = ffi.new("nmc_store_t **")
        text = key_bytes(name)
        quota = 2**64 - 1 if quota_bytes is None else quota_bytes
        check(lib.nmc_store_namespace(self._handle.raw, slice_of(text), quota, out))
        return self._handle_of(out[0])

    def _handle_of(self, raw: Any) -> "Store":
        """Another handle of the same store."""
        made = Store.__new__(Store)
        made._setup(Handle(raw, "store", lib.nmc_store_destroy, self), self.on_device, self._events)
        made._call_ms = self._call_ms
        return made

    def close(self) -> None:
        """Leaves the store; pins and plans end. May be called again. While Python objects look at its memory it stays until they
        are gone, though every call fails."""
        self._handle.close()
        if self._events.raw() == NULL:
            self._events.tell_all(_abi.ERR_CANCELLED)

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _device_of(self, pointer: Any) -> int:
        return max(cuda_device_of(address_of(pointer)), 0) if self.on_device else -1

    # ---- copies in and out

    def put(self, key: Key, value: Any, *, preferred_segment: int = -1, contiguous: bool = False, replace: bool = False,
            any_rank: bool = False, retain: int = 0, priority: int = 0, ttl_ms: int = 0, wait_ms: int = 0,
            metadata: Optional[bytes] = None) -> None:
        """Stores a value. AlreadyExists if the key is taken and `replace` is not set; BusyError or NoRoom if there is no room
        within `wait_ms`."""
        options, keep = put_options(preferred_segment, contiguous, replace, any_rank, retain, priority, ttl_ms, wait_ms, metadata)
        name = key_bytes(key)
        if value.__class__ is bytes and not wait_ms:
            check(_put(self._handle.raw, name, len(name), value, len(value), options))
        else:
            self._put_memory(name, readable(value), options, wait_ms)
        del keep

    def _put_memory(self, name: bytes, memory: Memory, options: Any, wait_ms: int = 0) -> None:
        if wait_ms:
            check(self._for_room(wait_ms, options, functools.partial(
                _put_from, self._handle.raw, name, len(name), memory.address, memory.nbytes, options)))
        else:
            check(_put_from(self._handle.raw, name, len(name), memory.address, memory.nbytes, options))

    def _for_room(self, wait_ms: int, options: Any, call: Callable[[], int]) -> int:
        """Makes a call that waits up to `wait_ms` for room. On the main thread it waits in slices: signals are heard between them."""
        whole = self._call_ms if wait_ms == -1 else wait_ms
        if not SLICE_MS < whole <= _LONGEST_MS or threading.current_thread() is not threading.main_thread():
            return call()
        end = time.monotonic() + whole / 1000
        while True:
            begun = time.monotonic()
            left = max(0, int((end - begun) * 1000))
            options.wait_ms = min(left, SLICE_MS)
            status = call()
            # Without a wait: room is of no use to it.
            if status not in _ROOM or left <= SLICE_MS or time.monotonic() - begun < SLICE_MS / 2000:
                return status

    def _each_for_room(self, wait_ms: int, options: Any, count: int, call: Callable[[List[int]], List[int]]) -> List[int]:
        """The same for a call for many objects, whose numbers it gets: after a slice it is made for those that found no room."""
        told = [0] * count
        left = list(range(count))

        def attempt() -> int:
            nonlocal left
            for at, status in zip(left, call(left)):
                told[at] = status
            left = [at for at in left if told[at] in _ROOM]
            return _abi.ERR_BUSY if left else _abi.OK

        self._for_room(wait_ms, options, attempt)
        return told

    def put_slices(self, key: Key, values: Sequence[Any], *, preferred_segment: int = -1, contiguous: bool = False,
                   replace: bool = False, any_rank: bool = False, retain: int = 0, priority: int = 0, ttl_ms: int = 0,
                   wait_ms: int = 0, metadata: Optional[bytes] = None) -> None:
        """Stores one value from several pieces of memory, one after the other."""
        options, keep = put_options(preferred_segment, contiguous, replace, any_rank, retain, priority, ttl_ms, wait_ms, metadata)
        parts = [readable(value) for value in values]
        slices = ffi.new("nmc_slice_t[]", [(part.pointer, part.nbytes) for part in parts])
        name = key_bytes(key)
        check(self._for_room(wait_ms, options, lambda: int(lib.nmc_store_put_slices(
            self._handle.raw, slice_of(name), slices, len(parts), options))))
        del keep

    def put_strided(self, key: Key, value: Any, rows: int, row_bytes: int, stride: int, *, preferred_segment: int = -1,
                    contiguous: bool = False, replace: bool = False, any_rank: bool = False, retain: int = 0, priority: int = 0,
                    ttl_ms: int = 0, wait_ms: int = 0, metadata: Optional[bytes] = None) -> None:
        """Stores `rows` rows of `row_bytes` bytes whose beginnings are `stride` bytes apart in `value`."""
        options, keep = put_options(preferred_segment, contiguous, replace, any_rank, retain, priority, ttl_ms, wait_ms, metadata)
        memory = _rows(readable(value), rows, row_bytes, stride)
        name = key_bytes(key)
        check(self._for_room(wait_ms, options, lambda: int(lib.nmc_store_put_strided(
            self._handle.raw, slice_of(name), memory.pointer, rows, row_bytes, stride, options))))
        del keep

    @overload
    def get(self, key: Key) -> bytes: ...

    @overload
    def get(self, key: Key, default: Default) -> Union[bytes, Default]: ...

    def get(self, key: Key, default: Any = _RAISE) -> Any:
        """The value as bytes. A key that is missing raises NotFound, one that is being written NotReadyError; with `default` both
        give that instead."""
        name = key.encode() if isinstance(key, str) else key_bytes(key)
        try:
            # Taken out while it is used: a signal handler or another thread may read, too.
            scratch = self._pool.pop()
        except IndexError:
            scratch = ffi.new("char[]", _SCRATCH), ffi.new("size_t *")
        buffer, size = scratch
        status = _get(self._handle.raw, name, len(name), buffer, _SCRATCH, size)
        if status == 0:
            value = _unpack(buffer, size[0])
            self._pool.append(scratch)
            return value
        while status == _abi.ERR_TOO_SMALL:
            # Nobody else has seen these bytes yet, so they can still be written: one copy instead of two.
            value = bytes(size[0])
            status = lib.nmc_store_get(self._handle.raw, slice_of(name), ffi.from_buffer(value), len(value), size)
            if status == 0 and size[0] == len(value):
                return value
            if status == 0:  # it was replaced by a smaller one meanwhile
                return value[: size[0]]
        if default is not _RAISE and status in (_abi.NOT_READY, _abi.ERR_NOT_FOUND):
            return default
        raise failure(status)

    def size(self, key: Key) -> Optional[int]:
        """Bytes of the value; None if it is missing or being written."""
        out = ffi.new("size_t *")
        status = lib.nmc_store_get(self._handle.raw, slice_of(key_bytes(key)), NULL, 0, out)
        if status in (_abi.NOT_READY, _abi.ERR_NOT_FOUND):
            return None
        check(status)
        return int(out[0])

    def get_into(self, key: Key, dst: Any) -> None:
        """Reads the value into memory of exactly its size."""
        name = key_bytes(key)
        if dst.__class__ is bytearray:
            status = _get_into(self._handle.raw, name, len(name), _from_buffer(dst), len(dst))
        else:
            memory = writable(dst)
            status = _get_to(self._handle.raw, name, len(name), memory.address, memory.nbytes)
        if status:
            raise failure(status)

    def get_slices(self, key: Key, buffers: Sequence[Any], offset: int = 0) -> int:
        """Reads a part of the value, from byte `offset` on, into several buffers. Returns the size of the whole value."""
        parts = [writable(buffer) for buffer in buffers]
        out = ffi.new("size_t *")
        array = ffi.new("nmc_buffer_t[]", [(part.pointer, part.nbytes) for part in parts])
        check(lib.nmc_store_get_slices(self._handle.raw, slice_of(key_bytes(key)), offset, array, len(parts), out))
        return int(out[0])

    def get_range(self, key: Key, offset: int, nbytes: int) -> bytes:
        """`nbytes` bytes of the value from byte `offset` on."""
        buffer = bytearray(nbytes)
        self.get_slices(key, [buffer], offset)
        return bytes(buffer)

    def get_strided(self, key: Key, dst: Any, rows: int, row_bytes: int, stride: int, offset: int = 0) -> None:
        """Reads a part of the value into `rows` rows of `row_bytes` bytes whose beginnings are `stride` bytes apart in `dst`."""
        memory = _rows(writable(dst), rows, row_bytes, stride)
        check(lib.nmc_store_get_strided(
            self._handle.raw, slice_of(key_bytes(key)), offset, memory.pointer, rows, row_bytes, stride))

    def metadata(self, key: Key) -> bytes:
        """What the writer said about the object; empty if nothing."""
        buffer, size = ffi.new("char[]", _abi.MAX_METADATA), ffi.new("size_t *")
        check(lib.nmc_store_get_metadata(self._handle.raw, slice_of(key_bytes(key)), buffer, _abi.MAX_METADATA, size))
        return bytes(ffi.unpack(buffer, size[0]))

    # ---- keys

    def state(self, key: Key) -> int:
        """OBJECT_ABSENT, _WRITING, _READY, _ON_DISK or, from `Client.open_store`, _ELSEWHERE."""
        out = ffi.new("uint32_t *")
        name = key_bytes(key)
        check(_exists(self._handle.raw, name, len(name), out))
        return int(out[0])

    def exists(self, key: Key) -> bool:
        """Whether the object can be read."""
        return self.state(key) >= _abi.OBJECT_READY

    def __contains__(self, key: Key) -> bool:
        return self.exists(key)

    def remove(self, key: Key) -> None:
        """Takes an object away at once; whoever has pinned it keeps it."""
        check(lib.nmc_store_remove(self._handle.raw, slice_of(key_bytes(key))))

    def remove_by_prefix(self, prefix: Key) -> int:
        """Removes all objects whose keys begin with `prefix`; how many."""
        out = ffi.new("uint64_t *")
        check(lib.nmc_store_remove_by_prefix(self._handle.raw, slice_of(key_bytes(prefix)), out))
        return int(out[0])

    def remove_all(self) -> None:
        """Forgets every object of the namespace at once."""
        check(lib.nmc_store_remove_all(self._handle.raw))

    def touch(self, key: Key) -> None:
        """Counts as an access, without reading."""
        check(lib.nmc_store_touch(self._handle.raw, slice_of(key_bytes(key))))

    def retain(self, key: Key, retain: int, priority: int = 0, ttl_ms: int = 0) -> None:
        """Changes how an object is kept: RETAIN_NONE, _SOFT or _HARD."""
        check(lib.nmc_store_retain(self._handle.raw, slice_of(key_bytes(key)), retain, priority, ttl_ms))

    def location(self, key: Key) -> Optional[ObjectInfo]:
        """Where in memory an object is; None if it is being written or on disk only."""
        out = ffi.new("nmc_object_meta_t *")
        status = lib.nmc_store_get_location(self._handle.raw, slice_of(key_bytes(key)), out)
        if status == _abi.NOT_READY:
            return None
        check(status)
        return record(ObjectInfo, out)

    def items(self) -> Iterator[Tuple[bytes, int]]:
        """Key and size of every object that can be read, in no particular order. Objects that come or go meanwhile may be missed;
        one that moves between memory and disk meanwhile may come twice."""
        cursor, length, size = ffi.new("uint64_t *"), ffi.new("size_t *"), ffi.new("uint64_t *")
        buffer = ffi.new("char[]", 1024)
        while True:
            status = lib.nmc_store_next(self._handle.raw, cursor, buffer, 1024, length, size)
            if status == _abi.ERR_NOT_FOUND:
                return
            check(status)
            yield bytes(ffi.unpack(buffer, length[0])), int(size[0])

    def keys(self) -> Iterator[bytes]:
        """The keys of `items`."""
        return (key for key, _ in self.items())

    # ---- in place

    def open_for_write(self, key: Key, nbytes: int, *, preferred_segment: int = -1, contiguous: bool = False,
                       replace: bool = False, any_rank: bool = False, retain: int = 0, priority: int = 0, ttl_ms: int = 0,
                       wait_ms: int = 0, metadata: Optional[bytes] = None) -> WritePlan:
        """Opens an object for writing: the program stores the bytes itself, and commits."""
        options, keep = put_options(preferred_segment, contiguous, replace, any_rank, retain, priority, ttl_ms, wait_ms, metadata)
        name = key_bytes(key)
        plan = ffi.new("nmc_write_plan_t *")
        try:
            check(self._for_room(wait_ms, options, lambda: int(lib.nmc_store_open_for_write(
                self._handle.raw, slice_of(name), nbytes, options, plan))))
            del keep
            return WritePlan(self, name, plan)
        except BaseException:
            self._give_up([plan])
            raise

    def pin(self, key: Key) -> View:
        """Pins an object where it is."""
        view = ffi.new("nmc_view_t *")
        name = key_bytes(key)
        try:
            check(_pin(self._handle.raw, name, len(name), view))
            return View(self, view)
        except BaseException:
            self._unpin([view])
            raise

    # A signal may raise between a call that has opened or pinned something and the object that would end it. What C has not filled in
    # is zero; what has ended is not found a second time.

    def _give_up(self, plans: Iterable[Any]) -> None:
        for plan in plans:
            if plan.plan_id:
                lib.nmc_store_abort(self._handle.raw, plan)

    def _unpin(self, views: Iterable[Any]) -> None:
        for view in views:
            if view.epoch:
                lib.nmc_store_unpin(self._handle.raw, view)

    def find(self, key: Key) -> Optional[View]:
        """`pin`, with None for a key that is missing, being written, or on disk only."""
        try:
            return self.pin(key)
        except (NotFound, NotReadyError):
            return None

    def consume(self, key: Key) -> View:
        """Pins an object and removes it, for exactly one consumer."""
        view = ffi.new("nmc_view_t *")
        check(lib.nmc_store_consume(self._handle.raw, slice_of(key_bytes(key)), view))
        return View(self, view)

    def pin_partial(self, key: Key, pages: int) -> View:
        """Pins an object of which at least the first `pages` pages are ready; only those may be read."""
        view = ffi.new("nmc_view_t *")
        check(lib.nmc_store_pin_partial(self._handle.raw, slice_of(key_bytes(key)), pages, view))
        return View(self, view)

    # ---- waiting

    def wait_ready(self, key: Key, *, appear: bool = False, timeout_ms: int = -1) -> None:
        """Waits until an object can be read from memory, up to `timeout_ms` (-1 for 30 s). With `appear` also for a key that nobody
        is writing yet."""
        name = key_bytes(key)
        flags = appear * _abi.WAIT_APPEAR
        check(wait_in_slices(lambda ms: int(lib.nmc_store_wait_ready(self._handle.raw, slice_of(name), flags, ms)), timeout_ms))

    def wait_pages(self, key: Key, pages: int, *, appear: bool = False, timeout_ms: int = -1) -> None:
        """The same, until the first `pages` pages are ready."""
        name = key_bytes(key)
        flags = appear * _abi.WAIT_APPEAR
        check(wait_in_slices(
            lambda ms: int(lib.nmc_store_wait_pages(self._handle.raw, slice_of(name), pages, flags, ms)), timeout_ms))

    def cancel(self) -> None:
        """Ends every wait and every watch of this client, in all threads."""
        check(lib.nmc_store_cancel(self._handle.raw))

    def watch(self, key: Key, token: int, *, appear: bool = False) -> None:
        """Queues a completion with `token` when the object can be read, or will not become so."""
        if not 0 <= token < OURS:
            raise ValueError(f"token {token} is not between 0 and 2^63 - 1")
        check(lib.nmc_store_watch(self._handle.raw, slice_of(key_bytes(key)), appear * _abi.WAIT_APPEAR, token))

    def completions(self) -> List[Completion]:
        """Takes what is queued, the oldest first."""
        self._handle.require()
        self._events.take()
        taken = []
        while self._events.users:
            taken.append(self._events.users.popleft())
        return taken

    def event_fd(self) -> int:
        """A descriptor that is readable while completions are queued. Not to be closed."""
        out = ffi.new("int32_t *")
        check(lib.nmc_store_event_fd(self._handle.raw, out))
        return int(out[0])

    # ---- many at once. Items that fail do not stop the others; with strict=False nothing is raised for them.

    def put_batch(self, keys: Sequence[Key], values: Sequence[Any], *, preferred_segment: int = -1, contiguous: bool = False,
                  replace: bool = False, any_rank: bool = False, retain: int = 0, priority: int = 0, ttl_ms: int = 0,
                  wait_ms: int = 0, metadata: Optional[Sequence[bytes]] = None, strict: bool = True) -> List[int]:
        """Stores many values; `metadata` has one for each. Returns the status of each."""
        count = len(keys)
        if len(values) != count or (metadata is not None and len(metadata) != count):
            raise ValueError(f"{count} keys, {len(values)} values, {'no' if metadata is None else len(metadata)} metadata")
        options, keep = put_options(preferred_segment, contiguous, replace, any_rank, retain, priority, ttl_ms, wait_ms, None)
        if metadata is not None:
            if options == NULL:
                options = struct("nmc_put_options_t")
            each, keep = key_slices(metadata)
        names, kept = key_slices(keys)
        slices, memories = _value_slices(values)

        def attempt(left: List[int]) -> List[int]:
            statuses = ffi.new("nmc_status_t[]", count or 1)
            if metadata is not None:
                described = _some(each, left, count)
                options.metadata_each = described
            status = lib.nmc_store_put_batch(
                self._handle.raw, _some(names, left, count), _some(slices, left, count), len(left), options, statuses)
            return _told(status, statuses, len(left), False)

        told = self._each_for_room(wait_ms, options, count, attempt)
        del kept, keep, memories
        return _strict(told, strict)

    def get_batch(self, keys: Sequence[Key]) -> List[Optional[bytes]]:
        """Reads many values; None where a key is missing or being written. Those that are not in memory are read
        together."""
        states = self.state_batch(keys)
        values = [self.get(key, None) if state == _abi.OBJECT_READY else None for key, state in zip(keys, states)]
        sizes = [(at, self.size(keys[at])) for at, state in enumerate(states) if state > _abi.OBJECT_READY]
        found = [(at, bytearray(size)) for at, size in sizes if size is not None]
        statuses = self.get_into_batch([keys[at] for at, _ in found], [buffer for _, buffer in found], strict=False)
        for (at, buffer), status in zip(found, statuses):
            if status == 0:
                values[at] = bytes(buffer)
            elif status == _abi.ERR_INVALID_ARG:  # replaced by a value of another size meanwhile
                values[at] = self.get(keys[at], None)
            elif status not in (_abi.NOT_READY, _abi.ERR_NOT_FOUND):
                raise error_of(status, f"key {keys[at]!r}")
        return values

    def get_into_batch(self, keys: Sequence[Key], buffers: Sequence[Any], *, strict: bool = True) -> List[int]:
        """Reads many values, each into memory of exactly its size. Returns the status of each."""
        count = len(keys)
        if len(buffers) != count:
            raise ValueError(f"{count} keys and {len(buffers)} buffers")
        names, kept = key_slices(keys)
        memories = [writable(buffer) for buffer in buffers]
        array = ffi.new("nmc_buffer_t[]", [(part.pointer, part.nbytes) for part in memories] or 1)
        statuses = ffi.new("nmc_status_t[]", count or 1)
        status = lib.nmc_store_get_into_batch(self._handle.raw, names, array, count, statuses)
        del kept, memories
        return _told(status, statuses, count, strict)

    def state_batch(self, keys: Sequence[Key]) -> List[int]:
        """`state` of many keys."""
        names, kept = key_slices(keys)
        out = ffi.new("uint32_t[]", len(keys) or 1)
        check(lib.nmc_store_exists_batch(self._handle.raw, names, len(keys), out))
        del kept
        return list(out)[: len(keys)]

    def exists_batch(self, keys: Sequence[Key]) -> List[bool]:
        """`exists` of many keys."""
        return [state >= _abi.OBJECT_READY for state in self.state_batch(keys)]

    def match_prefix(self, keys: Sequence[Key]) -> int:
        """How many of the keys, from the first on, can be read."""
        names, kept = key_slices(keys)
        out = ffi.new("size_t *")
        check(lib.nmc_store_match_prefix(self._handle.raw, names, len(keys), out))
        del kept
        return int(out[0])

    def remove_batch(self, keys: Sequence[Key], *, strict: bool = True) -> List[int]:
        """Removes many objects. Returns the status of each."""
        names, kept = key_slices(keys)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        status = lib.nmc_store_remove_batch(self._handle.raw, names, len(keys), statuses)
        del kept
        return _told(status, statuses, len(keys), strict)

    def open_batch(self, keys: Sequence[Key], sizes: Sequence[int], *, preferred_segment: int = -1, contiguous: bool = False,
                   replace: bool = False, any_rank: bool = False, retain: int = 0, priority: int = 0, ttl_ms: int = 0,
                   wait_ms: int = 0, metadata: Optional[bytes] = None) -> List[Union[WritePlan, NanomcError]]:
        """Opens many objects for writing: a plan for each, or why there is none."""
        options, keep = put_options(preferred_segment, contiguous, replace, any_rank, retain, priority, ttl_ms, wait_ms, metadata)
        count = len(keys)
        if len(sizes) != count:
            raise ValueError(f"{count} keys and {len(sizes)} sizes")
        names, kept = key_slices(keys)
        opened: Dict[int, WritePlan] = {}  # if a signal ends the wait for the others, they are collected, and given up

        def attempt(left: List[int]) -> List[int]:
            plans, statuses = ffi.new("nmc_write_plan_t[]", count or 1), ffi.new("nmc_status_t[]", count or 1)
            wanted = ffi.new("uint64_t[]", [sizes[at] for at in left] or 1)
            try:
                status = lib.nmc_store_open_batch(
                    self._handle.raw, _some(names, left, count), wanted, len(left), options, plans, statuses)
                told = _told(status, statuses, len(left), False)
                for at, state, plan in zip(left, told, plans):
                    if state == 0:
                        opened[at] = WritePlan(self, key_bytes(keys[at]), ffi.new("nmc_write_plan_t *", plan))
            except BaseException:
                self._give_up(ffi.addressof(plan) for plan in plans)
                raise
            return told

        told = self._each_for_room(wait_ms, options, count, attempt)
        del keep, kept
        made: List[Union[WritePlan, NanomcError]] = []
        for at, state in enumerate(told):
            made.append(error_of(state, f"key {keys[at]!r}") if state else opened[at])
        return made

    def commit_batch(self, plans: Sequence[WritePlan], *, strict: bool = True) -> List[int]:
        """Commits many plans. Returns the status of each."""
        for plan in plans:
            expect(WritePlan, plan, "a plan")
        array = ffi.new("nmc_write_plan_t[]", [plan._raw[0] for plan in plans] or 1)
        statuses = ffi.new("nmc_status_t[]", len(plans) or 1)
        status = lib.nmc_store_commit_batch(self._handle.raw, array, len(plans), statuses)
        told = _told(status, statuses, len(plans), False)
        for plan, state in zip(plans, told):
            if state == 0:
                plan._done[0] = True
                plan._lease = None
        return _strict(told, strict)

    def pin_batch(self, keys: Sequence[Key]) -> List[Optional[View]]:
        """Pins as many of the objects as can be; None for the others."""
        names, kept = key_slices(keys)
        count = len(keys)
        views, pinned = ffi.new("nmc_view_t[]", count or 1), ffi.new("size_t *")
        statuses = ffi.new("nmc_status_t[]", count or 1)
        try:
            status = lib.nmc_store_pin_batch(self._handle.raw, names, count, views, pinned, statuses)
            del kept
            told = _told(status, statuses, count, False)
            if _abi.ERR_INVALID_ARG in told:
                raise failure(_abi.ERR_INVALID_ARG)
            return [View(self, ffi.new("nmc_view_t *", views[at])) if told[at] == 0 else None for at in range(count)]
        except BaseException:
            self._unpin(ffi.addressof(view) for view in views)
            raise

    def unpin_batch(self, views: Sequence[View]) -> None:
        """Ends many pins."""
        self._handle.require()
        views = list(views)
        for view in views:
            expect(View, view, "a view")
        for view in views:
            view.unpin()

    # ---- asyncio

    async def await_ready(self, key: Key, *, appear: bool = False, timeout_ms: int = -1) -> None:
        """`wait_ready` for asyncio."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (30_000 if timeout_ms < 0 else timeout_ms) / 1000
        events, name = self._events, key_bytes(key)
        key_here = (self._handle.number, name, appear)
        while True:
            future: "asyncio.Future[int]" = loop.create_future()
            events.listen(loop, 1)
            try:
                with events._lock:
                    token = events.tokens.get(key_here)
                    if token is None:
                        token = next(events.numbers)
                        check(lib.nmc_store_watch(self._handle.raw, slice_of(name), appear * _abi.WAIT_APPEAR, token))
                        events.tokens[key_here] = token
                        events.watches[token] = Watch(key_here)
                    watch = events.watches[token]
                    watch.waiters.append((loop, future))
                try:
                    status = await asyncio.wait_for(future, max(0.0, end - loop.time()))
                finally:
                    watch.waiters.remove((loop, future))
            except asyncio.TimeoutError:
                raise DeadlineError(_abi.ERR_TIMEOUT, f"key {name!r} is not ready after {timeout_ms} ms") from None
            finally:
                events.listen(loop, -1)
            if status != _abi.NOT_READY:  # else completions were lost: watch it again
                if status:
                    raise error_of(status, f"key {name!r} will not become readable")
                return

    async def aget(self, key: Key, *, appear: bool = False, timeout_ms: int = -1) -> bytes:
        """The value, as soon as it can be read."""
        while True:
            try:
                return self.get(key)
            except NotReadyError:
                pass
            except NotFound:
                if not appear:
                    raise
            await self.await_ready(key, appear=appear, timeout_ms=timeout_ms)

    async def aget_batch(self, keys: Sequence[Key], *, appear: bool = False, timeout_ms: int = -1) -> List[Optional[bytes]]:
        """`get_batch`, which first waits for those that are being written, or with `appear` for all. None for a key that is missing."""
        missing = _abi.OBJECT_WRITING if appear else 0
        waits = [self.await_ready(key, appear=appear, timeout_ms=timeout_ms)
                 for key, state in zip(keys, self.state_batch(keys))
                 if state == _abi.OBJECT_WRITING or (missing and state == _abi.OBJECT_ABSENT)]
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(outcome, DeadlineError) or (isinstance(outcome, BaseException) and not isinstance(outcome, NanomcError)):
                raise outcome
        return self.get_batch(keys)

    async def aput(self, key: Key, value: Any, *, wait_ms: int = -1, **options: Any) -> None:
        """`put`, which waits for room without blocking the loop, up to `wait_ms` (-1 for 30 s)."""
        await _room(lambda: self.put(key, value, **options), wait_ms)

    async def aput_batch(self, keys: Sequence[Key], values: Sequence[Any], *, wait_ms: int = -1, **options: Any) -> None:
        """`put_batch`, which waits for room without blocking the loop: items that found room are stored meanwhile."""
        if len(values) != len(keys):
            raise ValueError(f"{len(keys)} keys and {len(values)} values")
        left = list(range(len(keys)))

        def attempt() -> None:
            nonlocal left
            statuses = self.put_batch([keys[at] for at in left], [values[at] for at in left], strict=False, **options)
            full = [at for at, status in zip(left, statuses) if status in _ROOM]
            other = [status for status in statuses if status not in (0, *_ROOM)]
            left = full
            if other:
                raise error_of(other[0], f"{len(other)} of {len(statuses)} items")
            if full:
                raise error_of(_abi.ERR_BUSY, f"{len(full)} of {len(keys)} items found no room")

        await _room(attempt, wait_ms)

    # ---- streams, graphs, kernels

    def push_async(self, plan: WritePlan, values: Sequence[Any], stream: Any, offset: int = 0) -> None:
        """Copies memory that the GPU can reach into a plan's pages when the stream gets there. Keep the values until then."""
        expect(WritePlan, plan, "plan")
        parts = [_enqueued(value, in_place) for value in values]
        slices = ffi.new("nmc_slice_t[]", [(part.pointer, part.nbytes) for part in parts] or 1)
        check(lib.nmc_store_push_async(self._handle.raw, plan._raw, offset, slices, len(parts), stream_pointer(stream)))

    def fetch_async(self, view: View, buffers: Sequence[Any], stream: Any, offset: int = 0) -> None:
        """Copies from a pinned object into memory that the GPU can reach when the stream gets there."""
        expect(View, view, "view")
        parts = [_enqueued(buffer, writable) for buffer in buffers]
        array = ffi.new("nmc_buffer_t[]", [(part.pointer, part.nbytes) for part in parts] or 1)
        check(lib.nmc_store_fetch_async(self._handle.raw, view._raw, offset, array, len(parts), stream_pointer(stream)))

    def unpin_async(self, view: View, stream: Any) -> None:
        """Ends a pin when the stream gets there. The view and what was made of it must not be used again."""
        expect(View, view, "view")
        check(lib.nmc_store_unpin_async(self._handle.raw, view._raw, stream_pointer(stream)))
        view._state[0] = False
        view._lease = None

    def wait_ready_async(self, key: Key, stream: Any, timeout_ms: int = -1, result: int = 0) -> None:
        """Makes the stream wait for an object. `result`: address, for the GPU, of a uint32 that becomes READY_*; 0 for none."""
        check(lib.nmc_store_wait_ready_async(
            self._handle.raw, slice_of(key_bytes(key)), timeout_ms, stream_pointer(stream), pointer_to(result, "uint32_t *")))

    def publish_desc(self, plan: WritePlan, descriptor: int) -> None:
        """Fills the nmc_publish_desc_t at the address `descriptor`, in pinned memory, before a graph is launched."""
        expect(WritePlan, plan, "plan")
        check(lib.nmc_store_publish_desc(self._handle.raw, plan._raw, pointer_to(descriptor, "nmc_publish_desc_t *")))

    def publish_captured(self, descriptors: int, count: int, stream: Any) -> None:
        """Publishes what `count` descriptors at the address `descriptors` say when the stream gets there: made to be captured."""
        pointer = pointer_to(descriptors, "nmc_publish_desc_t *")
        check(lib.nmc_store_publish_captured(self._handle.raw, pointer, count, stream_pointer(stream)))

    def slot_reserve(self) -> int:
        """Sets a pin slot aside for a captured graph or for kernels."""
        out = ffi.new("uint32_t *")
        check(lib.nmc_store_slot_reserve(self._handle.raw, out))
        return int(out[0])

    def slot_release(self, slot: int) -> None:
        """Gives a reserved slot back."""
        check(lib.nmc_store_slot_release(self._handle.raw, slot))

    def slot_pin(self, slot: int, key: Key) -> View:
        """Pins an object in a reserved slot; `slot_unpin_async` ends the pin, not the view."""
        view = ffi.new("nmc_view_t *")
        check(lib.nmc_store_slot_pin(self._handle.raw, slot, slice_of(key_bytes(key)), view))
        return View(self, view, owned=False)

    def slot_unpin_async(self, slot: int, stream: Any) -> None:
        """Ends the pin in a reserved slot when the stream gets there."""
        check(lib.nmc_store_slot_unpin_async(self._handle.raw, slot, stream_pointer(stream)))

    def device_pin(self, slot: int, key: Key) -> DevicePin:
        """What a kernel needs to pin the object by itself, with a reserved slot."""
        out = ffi.new("nmc_device_pin_t *")
        check(lib.nmc_store_device_pin(self._handle.raw, slot, slice_of(key_bytes(key)), out))
        return record(DevicePin, out)

    # ---- numbers

    def evict_until_below(self, rank: int, permille: int) -> None:
        """Evicts objects of `rank` until at most `permille`/1000 of its heap are used."""
        check(lib.nmc_store_evict_until_below(self._handle.raw, rank, permille))

    def retry_hint(self, rank: int = 0) -> RetryHint:
        """After BusyError or NoRoom: what is free, what waits, and when to try again."""
        out = struct("nmc_retry_hint_t")
        check(lib.nmc_store_retry_hint(self._handle.raw, rank, out))
        return record(RetryHint, out)

    def stats(self) -> StoreStats:
        """Numbers about the store and this client."""
        out = struct("nmc_store_stats_t")
        check(lib.nmc_store_stats(self._handle.raw, NULL, 0, out))
        return record(StoreStats, out)

    def rank_stats(self) -> List[StoreRankStats]:
        """Numbers about the heap of each rank."""
        count = self.stats().n_ranks
        out, ranks = struct("nmc_store_stats_t"), ffi.new("nmc_store_rank_stats_t[]", count)
        for rank in ranks:
            rank.struct_size = ffi.sizeof("nmc_store_rank_stats_t")
        check(lib.nmc_store_stats(self._handle.raw, ranks, count, out))
        return [record(StoreRankStats, rank) for rank in ranks]

    def prometheus(self) -> str:
        """The numbers in the text format of Prometheus."""
        return text_call(lambda buffer, size, needed: int(lib.nmc_store_prometheus(self._handle.raw, buffer, size, needed)))

    def dump(self, width: int = 64) -> str:
        """A picture of the heaps, for people."""
        return text_call(lambda buffer, size, needed: int(lib.nmc_store_dump(self._handle.raw, width, buffer, size, needed)))


# ---- helpers --------------------------------------------------------------------------------------------------------------


def _rows(memory: Memory, rows: int, row_bytes: int, stride: int) -> Memory:
    if min(rows, row_bytes, stride) < 0 or (rows and (rows - 1) * stride + row_bytes > memory.nbytes):
        raise ValueError(f"{rows} rows of {row_bytes} bytes, {stride} apart, do not fit into {memory.nbytes} bytes")
    return memory


def _some(array: Any, left: List[int], count: int) -> Any:
    """Those slices of an array that a call is made for once more."""
    return array if len(left) == count else ffi.new("nmc_slice_t[]", [array[at] for at in left])


def _value_slices(values: Sequence[Any]) -> Tuple[Any, Any]:
    if all(value.__class__ is bytes for value in values):
        if sum(map(len, values)) <= len(values) * _SCRATCH // 4:
            return key_slices(values)  # small ones are copied faster than their addresses are found
        pairs = [(ffi.from_buffer(value), len(value)) for value in values]
        return ffi.new("nmc_slice_t[]", pairs or 1), pairs
    memories = [readable(value) for value in values]
    return ffi.new("nmc_slice_t[]", [(part.pointer, part.nbytes) for part in memories] or 1), memories


def _told(status: int, statuses: Any, count: int, strict: bool) -> List[int]:
    told = list(statuses)[:count]
    if status and not any(told):  # the call itself failed, before it looked at the items
        raise failure(status)
    return _strict(told, strict)


def _strict(told: List[int], strict: bool) -> List[int]:
    error = batch_failure(told) if strict else None
    if error is not None:
        raise error
    return told


def _enqueued(value: Any, kind: Callable[[Any], Memory]) -> Memory:
    """Memory for a copy on the caller's stream, which orders it: nothing is waited for."""
    if hasattr(value, "data_ptr"):
        own_memory(value)
        return Memory(value.data_ptr(), value.numel() * value.element_size(), value, bool(value.is_cuda))
    return kind(value)


async def _room(attempt: Callable[[], None], wait_ms: int) -> None:
    end = time.monotonic() + (30_000 if wait_ms < 0 else wait_ms) / 1000
    pause = 0.0005
    while True:
        try:
            attempt()
            return
        except NoRoom as error:
            if time.monotonic() >= end or not (isinstance(error, BusyError) or error.status in (_abi.ERR_LIMIT, _abi.ERR_NO_SPACE)):
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.008)
