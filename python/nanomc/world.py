"""The ranks of one machine: shared heaps, control words, liveness; and the master in a process that is not a rank."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from ._abi import RankInfo, WorldInfo
from ._library import _LOCKED, NULL, Handle, address_of, check, failure, ffi, lib, pointer_to, record, struct, text_call
from .errors import ClosedError, NanomcError, error_of
from .memory import Array, cuda_device_of, type_bytes

SLICE_MS = 200  # how long a call waits at once, so that Ctrl-C is heard


def stream_pointer(stream: Any) -> Any:
    """A stream of torch (or anything with `cuda_stream`), an address, or None, as the library takes it."""
    if stream is None:
        return NULL
    return pointer_to(getattr(stream, "cuda_stream", stream))


def default_stream(stream: Any, on_device: bool) -> Any:
    """The stream that was given, else torch's current one for what is on a GPU: also the one that torch.cuda.graph captures."""
    if stream is None and on_device:
        torch = sys.modules.get("torch")
        if torch is not None:
            return torch.cuda.current_stream()
    return stream


def wait_in_slices(call: Callable[[int], int], timeout_ms: int) -> int:
    """Calls `call(ms)` until it has another answer than "not yet" or the time is over. -1 is 30 s, as in the library."""
    end = time.monotonic() + (30_000 if timeout_ms < 0 else timeout_ms) / 1000
    while True:
        left = max(0, int((end - time.monotonic()) * 1000))
        status = call(min(left, SLICE_MS))
        if status not in (_abi.ERR_TIMEOUT, _abi.IN_PROGRESS) or left <= SLICE_MS:
            return status


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


class Reader:
    """A loop that waits for a descriptor of the library: how many of its calls do, and a duplicate of its own. That is closed when the
    loop has forgotten it, which may be after the library has closed its one, so no stranger gets the number meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self.calls = 0
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self.descriptor)


class _News:
    """Who waits for the event descriptor of a world. News are for all that wait, in whatever loop; a loop in which nobody waits at the
    moment has missed none when somebody does again."""

    def __init__(self) -> None:
        self.waiting: List[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[int]"]] = []
        self.readers: Dict[asyncio.AbstractEventLoop, Reader] = {}
        self.closed = False
        self.left = False
        self.count = 0  # how often there were news
        self.heard: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int]" = weakref.WeakKeyDictionary()  # up to which, by loop
        self.told = 0  # and in any loop: where a new one begins
        self._lock = threading.RLock()
        _LOCKED.add(self)

    async def next(self, descriptor: Callable[[], int]) -> int:
        """OK when there are news, or what `tell` was given."""
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[int]" = loop.create_future()
        mine = (loop, future)
        with self._lock:
            if self.closed:
                raise ClosedError(_abi.ERR_BAD_HANDLE, "the world is closed")
            if self.left:
                return _abi.ERR_CANCELLED
            number = descriptor()
            if self.heard.setdefault(loop, self.told) < self.count:
                self.hear(loop)
                return _abi.OK
            reader = self.readers.get(loop)
            if reader is None:
                reader = self.readers[loop] = Reader(os.dup(number))
                loop.add_reader(reader.descriptor, self.readable, reader)
            reader.calls += 1
            self.waiting.append(mine)
        self.readable(reader)
        try:
            status = await future
            self.hear(loop)
            return status
        finally:
            with self._lock:
                if mine in self.waiting:
                    self.waiting.remove(mine)
                reader.calls -= 1
                if reader.calls == 0:
                    self.readers.pop(loop, None)
                    if not loop.is_closed():
                        reader.end(loop)

    def readable(self, reader: Reader) -> None:
        try:
            os.read(reader.descriptor, 8)
        except BlockingIOError:  # another loop was faster, and has told everybody
            return
        self.tell(_abi.OK)

    def hear(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self.heard[loop] = self.told = self.count

    def leave(self) -> None:
        """The world is left: nobody waits any more."""
        with self._lock:
            self.left = True
        self.tell(_abi.ERR_CANCELLED)

    def close(self, closed: bool) -> None:
        """While it is closed nobody duplicates the descriptor, whose number may soon be a stranger's."""
        with self._lock:
            self.closed = closed

    def tell(self, status: int) -> None:
        with self._lock:
            waiting, self.waiting = self.waiting, []
            self.count += status == _abi.OK
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_settle, future, status)
            except RuntimeError:  # the loop is closed, and nobody waits in it
                pass


class Word:
    """A control word: 64 bits that all ranks share. Give every word one writer. Reading acquires and writing releases: the library
    runs on x86-64, where loads and stores of 8 bytes do that by themselves."""

    def __init__(self, handle: Handle, pointer: Any, device_address: int) -> None:
        self._pointer: Any = handle.lease(pointer, None, self)
        #: Its address for kernels; 0 without a device.
        self.device_address = device_address

    def _drop(self) -> None:
        """Its world is closed."""
        self._pointer = None

    def _open(self) -> Any:
        pointer = self._pointer
        if pointer is None:
            raise ClosedError(_abi.ERR_BAD_HANDLE, "the world of the word is closed")
        return pointer

    @property
    def address(self) -> int:
        return address_of(self._open())

    @property
    def value(self) -> int:
        return int(self._open()[0])

    @value.setter
    def value(self, value: int) -> None:
        self._open()[0] = value


class BaseTable(NamedTuple):
    """Where the heaps begin."""

    #: By rank, in this process; 0 while a rank has no heap.
    host: List[int]
    #: Address of the same table in device memory, by device rank; 0 without a device.
    device: int


def _config(name: str, directory: str, memory: Optional[Tuple[int, int, int]], **fields: Any) -> Tuple[Any, Any]:
    config = struct("nmc_world_config_t", **fields)
    keep = (name.encode(), os.fsencode(directory))
    pointers = [ffi.from_buffer(text) for text in keep]
    config.name = (pointers[0], len(keep[0]))
    config.dir = (pointers[1], len(keep[1]))
    if memory is not None:
        kind, fd, address = memory
        config.heap_import = (kind, fd, pointer_to(address))
    return config, (keep, pointers)


class World:
    """One rank of a world. Make one with `join`, `join_ranks` or `local`, and close it when everything made from it is closed; what
    still exists then keeps the rank until it is closed too."""

    def __init__(self, raw: Any) -> None:
        self._handle = Handle(raw, "world", lib.nmc_world_destroy)
        self._news = _News()

    # The fields of nmc_world_config_t by their names; None is its default.
    @classmethod
    def join(cls, name: str, *, world_size: int, heap_bytes: int, rank: int = -1, directory: str = "",
             heap_kind: Optional[int] = None, heap_flags: int = 0, heap_import: Optional[Tuple[int, int, int]] = None,
             device: int = -1, device_rank: int = -1, words_per_rank: int = -1, master: Optional[int] = None,
             join_timeout_ms: int = -1, drain_ms: int = -1, service_cpu: int = -1, min_ranks: int = 0) -> "World":
        """Joins a world as one rank; returns when all ranks have joined, or as many as `min_ranks` says. `heap_import` is
        (kind, descriptor, address) of memory that is to be used instead of memory of the library."""
        config, keep = _config(
            name, directory, heap_import, world_size=world_size, heap_bytes=heap_bytes, rank=rank, heap_kind=heap_kind,
            heap_flags=heap_flags, device=device, device_rank=device_rank, words_per_rank=words_per_rank, master=master,
            join_timeout_ms=join_timeout_ms, drain_ms=drain_ms, service_cpu=service_cpu, min_ranks=min_ranks)
        out = ffi.new("nmc_world_t **")
        check(lib.nmc_world_join(config, out))
        del keep
        return cls(out[0])

    @classmethod
    def join_ranks(cls, name: str, ranks: Sequence[int], *, world_size: int, heap_bytes: int, directory: str = "",
                   heap_kind: Optional[int] = None, heap_flags: int = 0, device: int = -1, words_per_rank: int = -1,
                   master: Optional[int] = None, join_timeout_ms: int = -1, drain_ms: int = -1, service_cpu: int = -1,
                   min_ranks: int = 0) -> List["World"]:
        """Joins a world as several ranks of this process."""
        config, keep = _config(
            name, directory, None, world_size=world_size, heap_bytes=heap_bytes, heap_kind=heap_kind, heap_flags=heap_flags,
            device=device, words_per_rank=words_per_rank, master=master, join_timeout_ms=join_timeout_ms, drain_ms=drain_ms,
            service_cpu=service_cpu, min_ranks=min_ranks)
        out = ffi.new("nmc_world_t *[]", len(ranks))
        check(lib.nmc_world_join_ranks(config, ffi.new("int32_t[]", list(ranks)), len(ranks), out))
        del keep
        return [cls(raw) for raw in out]

    @classmethod
    def local(cls, world_size: int, *, heap_bytes: int, heap_kind: Optional[int] = None, heap_flags: int = 0, device: int = -1,
              words_per_rank: int = -1) -> List["World"]:
        """All ranks of a world inside this process, without socket, files or threads."""
        config, keep = _config(
            "", "", None, world_size=world_size, heap_bytes=heap_bytes, heap_kind=heap_kind, heap_flags=heap_flags,
            device=device, words_per_rank=words_per_rank)
        out = ffi.new("nmc_world_t *[]", max(world_size, 1))
        check(lib.nmc_world_create_local(config, out))
        del keep
        return [cls(raw) for raw in out]

    # ---- leaving

    def finalize(self) -> None:
        """Leaves the world in order. What was made from it is closed first, else BusyError."""
        check(lib.nmc_world_finalize(self._handle.raw))
        self._news.leave()

    def abort(self) -> None:
        """Breaks off: calls that wait raise Cancelled, and the others see this rank as dying."""
        check(lib.nmc_world_abort(self._handle.raw))
        self._news.leave()

    def close(self) -> None:
        """Leaves the world if that has not happened. May be called again. While Python objects look at its memory, or stores,
        caches and groups made from it are open, the rank stays until the last of them is gone."""
        self._news.close(True)
        try:
            self._handle.close()
        finally:
            self._news.close(self._handle.closed)
        self._news.tell(_abi.ERR_CANCELLED)

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- facts

    def info(self) -> WorldInfo:
        """Facts about the world."""
        out = struct("nmc_world_info_t")
        check(lib.nmc_world_info(self._handle.raw, out))
        return record(WorldInfo, out)

    @property
    def rank(self) -> int:
        return self.info().rank

    @property
    def size(self) -> int:
        return self.info().world_size

    def rank_info(self, rank: int) -> RankInfo:
        """Facts about a rank."""
        out = struct("nmc_rank_info_t")
        check(lib.nmc_world_rank_info(self._handle.raw, rank, out))
        return record(RankInfo, out)

    def alive(self, rank: int) -> int:
        """One of RANK_*. A death is reported within a second, usually within a millisecond."""
        out = ffi.new("uint32_t *")
        check(lib.nmc_world_alive(self._handle.raw, rank, out))
        return int(out[0])

    def event_fd(self) -> int:
        """A descriptor that is readable after something has happened to a rank; read 8 bytes from it to rearm it. Not to be closed."""
        out = ffi.new("int32_t *")
        check(lib.nmc_world_event_fd(self._handle.raw, out))
        return int(out[0])

    async def next_event(self) -> None:
        """Returns when something has happened to a rank or to the master since the last time in this loop; `alive` says what. All that
        wait are told. Cancelled if the world is left, or was."""
        status = await self._news.next(self.event_fd)
        if status:
            raise error_of(status, "the world was left")

    def async_error(self) -> Optional[NanomcError]:
        """What went wrong in the background, where no call could raise it; None if nothing did."""
        status = ffi.new("nmc_status_t *")
        text = text_call(lambda buffer, size, needed: int(lib.nmc_world_async_error(self._handle.raw, status, buffer, size, needed)))
        return error_of(status[0], text) if status[0] else None

    def dump(self) -> str:
        """The world as text for people."""
        return text_call(lambda buffer, size, needed: int(lib.nmc_world_dump(self._handle.raw, buffer, size, needed)))

    # ---- memory

    def ptr(self, rank: int, offset: int = 0, nbytes: int = 0) -> int:
        """Address, in this process, of `nbytes` bytes at `offset` in the heap of `rank`; a device pointer for CUDA heaps. It is
        valid until the world is closed."""
        out = ffi.new("void **")
        check(lib.nmc_world_ptr(self._handle.raw, rank, offset, nbytes, out))
        return address_of(out[0])

    def heap(self, rank: int, offset: int = 0, nbytes: Optional[int] = None, dtype: str = "uint8") -> Array:
        """Part of the heap of a rank as an array; to the end without `nbytes`. It keeps the memory, also when the world is closed."""
        info = self.info()
        size = info.heap_bytes - offset if nbytes is None else nbytes
        address = self.ptr(rank, offset, size)
        device = max(cuda_device_of(address), 0) if info.heap_kind == _abi.HEAP_CUDA else -1
        return Array(self._handle.lease(pointer_to(address)), (size // type_bytes(dtype),), dtype, device=device)

    def heap_view(self, rank: int, offset: int = 0, nbytes: Optional[int] = None) -> memoryview:
        """The same as bytes, of a heap in host memory."""
        return self.heap(rank, offset, nbytes).data

    def locate(self, address: int) -> Tuple[int, int]:
        """Rank and offset of an address in one of the heaps."""
        rank, offset = ffi.new("int32_t *"), ffi.new("uint64_t *")
        check(lib.nmc_world_locate(self._handle.raw, pointer_to(address), rank, offset))
        return int(rank[0]), int(offset[0])

    def base_table(self) -> BaseTable:
        """Where the heaps of all ranks begin, for code that computes addresses itself."""
        host, device, count = ffi.new("uint64_t const **"), ffi.new("uint64_t const **"), ffi.new("uint32_t *")
        check(lib.nmc_world_base_table(self._handle.raw, host, device, count))
        return BaseTable([int(host[0][at]) for at in range(count[0])], address_of(device[0]))

    def rank_of_device_rank(self, device_rank: int) -> int:
        """The rank that device code knows as `device_rank`."""
        out = ffi.new("int32_t *")
        check(lib.nmc_world_rank_of_device_rank(self._handle.raw, device_rank, out))
        return int(out[0])

    def word(self, rank: int, index: int) -> Word:
        """Control word `index` of `rank`."""
        host, device = ffi.new("uint64_t **"), ffi.new("uint64_t **")
        check(lib.nmc_world_word(self._handle.raw, rank, index, host, device))
        return Word(self._handle, host[0], address_of(device[0]))

    def write_word_async(self, rank: int, index: int, value: int, stream: Any) -> None:
        """Stores `value` in a word when the work before it in `stream` is done."""
        check(lib.nmc_world_write_word_async(self._handle.raw, rank, index, value, stream_pointer(stream)))

    # ---- meeting

    def barrier(self, timeout_ms: int = -1) -> None:
        """Waits until all ranks have called it, up to `timeout_ms` (-1 for 30 s)."""
        check(wait_in_slices(lambda ms: int(lib.nmc_world_barrier(self._handle.raw, ms)), timeout_ms))

    def selftest(self, seed: int = 1, timeout_ms: int = -1) -> None:
        """Proves the paths between all ranks, which all call it. Overwrites the beginning of every heap and the first words."""
        check(lib.nmc_world_selftest(self._handle.raw, seed, timeout_ms))


class Master:
    """The master of a world and of its store, for ranks that join with MASTER_EXTERNAL."""

    def __init__(self, name: str, *, world_size: int, heap_bytes: int, directory: str = "", heap_kind: Optional[int] = None,
                 words_per_rank: int = -1, join_timeout_ms: int = -1, service_cpu: int = -1, min_ranks: int = 0) -> None:
        config, keep = _config(
            name, directory, None, world_size=world_size, heap_bytes=heap_bytes, heap_kind=heap_kind,
            words_per_rank=words_per_rank, join_timeout_ms=join_timeout_ms, service_cpu=service_cpu, min_ranks=min_ranks)
        out = ffi.new("nmc_master_t **")
        status = lib.nmc_master_start(config, out)
        del keep
        if status:
            raise failure(status)
        self._handle = Handle(out[0], "master", lib.nmc_master_destroy)

    def close(self) -> None:
        """Ends the master. Ranks that have joined go on without it."""
        self._handle.close()

    def __enter__(self) -> "Master":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
