"""A cluster: objects on the nodes of many machines, found by key. `Client` has a method for every nmc_client_* call. Who gives memory
mounts it or attaches a store; everybody puts, reads and removes. A call returns at most 2 s after the client's `timeout_ms`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union, overload

from . import _abi
from ._library import (NULL, Handle, Key, address_of, check, expect, failure, ffi, key_bytes, key_slices, lib, slice_of, struct,
                       text_bytes, text_of)
from .calls import Calls
from .errors import error_of
from .memory import Memory, cuda_device_of, readable, writable
from .store import _LONGEST_MS, _RAISE, Default, Store, _strict, _told
from .tier import _bytes, _Call
from .world import wait_in_slices

_SCRATCH = 64 << 10  # values up to this size are read with one call


@dataclass(frozen=True)
class Replica:
    """A copy of an object, as the leader lists it."""

    #: MEDIA_RAM, MEDIA_VRAM or MEDIA_SSD.
    media: int
    nbytes: int
    #: The same for copies of one put.
    put_id: int
    #: Address at which its owner listens.
    endpoint: str


@dataclass(frozen=True)
class Segment:
    """A segment of the cluster."""

    name: str
    media: int
    #: SEGMENT_OK, SEGMENT_DRAINING or SEGMENT_GONE.
    state: int
    #: NUMA node, or CUDA device, as it was when its node joined; -1 if that was not known.
    near: int
    capacity: int
    #: As its node said last.
    used: int
    #: The machine that has it: the address by which others reach its node.
    host: str
    #: Whether that is this client's machine.
    here: bool


@dataclass(frozen=True)
class Drained:
    """How far a drain is; true if nothing is left."""

    done: bool
    #: Objects, as far as that is known.
    left: int
    #: What is left, in words, the first objects by their names.
    what: str

    def __bool__(self) -> bool:
        return self.done


@dataclass(frozen=True)
class Location:
    """Where a copy must be: a segment, or a node and which of its media."""

    segment: str
    media: int = _abi.MEDIA_ANY


@dataclass
class Replicate:
    """How a value is put: how many copies, on which media, where, and how it is kept."""

    copies: int = 1
    #: Copies on MEDIA_VRAM, MEDIA_RAM and MEDIA_SSD. If they are more than `copies` together, their sum counts.
    media_copies: Sequence[int] = (0, 0, 0)
    locations: Sequence[Union[str, Location]] = ()
    #: RETAIN_NONE, RETAIN_SOFT or RETAIN_HARD.
    retain: int = _abi.RETAIN_NONE
    #: 0 to 3; lower ones are evicted first.
    priority: int = 0
    metadata: bytes = b""

    def _struct(self) -> Tuple[Any, Any]:
        """nmc_replicate_t, and what it points to."""
        made = struct("nmc_replicate_t", copies=self.copies, retain=self.retain, priority=self.priority)
        if len(self.media_copies) > 3:
            raise ValueError(f"there are 3 media, and media_copies has {len(self.media_copies)}")
        for at, count in enumerate(self.media_copies):
            made.media_copies[at] = count
        keep: List[Any] = []
        if self.locations:
            places = ffi.new("nmc_location_t[]", len(self.locations))
            for at, given in enumerate(self.locations):
                where = given if isinstance(given, Location) else Location(given)
                keep.append(ffi.from_buffer(text_bytes(where.segment, "segment")))
                places[at].segment, places[at].media = (keep[-1], len(keep[-1])), where.media
            made.locations, made.n_locations = places, len(self.locations)
            keep.append(places)
        if self.metadata:
            keep.append(ffi.from_buffer(self.metadata))
            made.metadata = (keep[-1], len(self.metadata))
        return made, keep


def _options(given: Optional[Replicate]) -> Tuple[Any, Any]:
    if given is None:
        return NULL, None
    expect(Replicate, given, "replicate")
    return given._struct()


def _pieces(kind: str, keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]) -> Any:
    """Memory at addresses, as an array of nmc_slice_t or nmc_buffer_t."""
    _same(keys, addresses)
    _same(keys, sizes)
    for address in addresses:
        if not 0 <= address < 1 << 64:  # a cast would make another one of it
            raise ValueError(f"{address} is no address")
    return ffi.new(kind, [(ffi.cast("void *", a), n) for a, n in zip(addresses, sizes)] or 1)


def _here(memory: Memory) -> Memory:
    """Memory that a call takes: of the host, or of a GPU that this process can reach. The library takes any other for the host's."""
    if memory.cuda and memory.nbytes and cuda_device_of(memory.address) < 0:
        raise error_of(_abi.ERR_UNSUPPORTED,
                       f"{memory.nbytes} bytes at {memory.address:#x} are on a GPU, and no CUDA driver of this process knows that memory")
    return memory


def _lists(kind: str, keys: Sequence[Key], values: Sequence[Sequence[Any]], memory: Callable[[Any], Memory]) -> Tuple[Any, Any, Any]:
    """The pieces of several values as an array of nmc_slice_t or nmc_buffer_t, how many each has, and what must be kept."""
    _same(keys, values)
    parts = [[_here(memory(piece)) for piece in value] for value in values]
    pieces = [(part.pointer, part.nbytes) for value in parts for part in value]
    return ffi.new(kind, pieces or 1), ffi.new("size_t[]", [len(value) for value in parts] or 1), parts


class Client:
    """Takes part in a cluster. `master_server` lists masters: `host`, `host:port` or `unix:/path`, with commas between. The other
    arguments are the fields of nmc_client_config_t. Nobody is contacted yet. Values are anything with a buffer in host memory, and for calls
    that wait torch tensors and other memory of a GPU too."""

    def __init__(self, master_server: str, *, local_hostname: str = "", metadata_server: str = "", protocol: str = "",
                 device_names: str = "", token: Union[str, bytes] = b"", namespace: Key = b"", timeout_ms: int = -1,
                 cache_keys: int = -1, keep_copies: bool = False, thread: bool = False,
                 expire_ms: Optional[int] = None, read_order: int = _abi.READ_NEAR, rdma_bytes: int = 0,
                 stripe_bytes: int = 0, tls_cert: str = "", tls_key: str = "", tls_ca: str = "") -> None:
        """With `expire_ms`, a value that this client has read goes so long after that (-1 is 1 s). `read_order` is READ_NEAR, READ_MEMORY
        or READ_SPREAD. Values of more than `stripe_bytes` are put in parts, on different segments. With the three files (PEM) of
        `tls_*` connections are encrypted, and both ends show certificates that `tls_ca` has signed."""
        expire = expire_ms is not None
        config = struct("nmc_client_config_t", timeout_ms=timeout_ms, cache_keys=cache_keys, read_order=read_order,
                        rdma_bytes=rdma_bytes, stripe_bytes=stripe_bytes, expire_ms=-1 if expire_ms is None else expire_ms,
                        flags=keep_copies * _abi.CLIENT_KEEP_COPIES | thread * _abi.CLIENT_THREAD | expire * _abi.CLIENT_EXPIRE)
        texts = {"master_server": master_server, "local_hostname": local_hostname, "metadata_server": metadata_server,
                 "protocol": protocol, "device_names": device_names, "token": token, "namespace_name": namespace,
                 "tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca}
        keep = []
        for name, text in texts.items():
            keep.append(key_bytes(text))
            setattr(config, name, slice_of(keep[-1]))
        out = ffi.new("nmc_client_t **")
        check(lib.nmc_client_open(config, out))
        #: Memory of the program that is a segment, by the name it was mounted with; kept as long as the library has it.
        self._lent: List[Tuple[str, Any]] = []
        self._handle = Handle(out[0], "client", lib.nmc_client_close, self._lent)
        self._calls = Calls(self._handle)

    def close(self) -> None:
        """Ends it: its nodes leave the cluster. May be called again."""
        self._calls.close(self._handle.close)
        self._lent.clear()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- nodes

    def mount(self, name: str = "", *, heap_bytes: int = 0, memory: Any = None, page_bytes: int = 0, max_objects: int = 0,
              key_slab_bytes: int = 0, eviction: int = _abi.EVICT_FIFO, checksums: bool = False, huge_pages: bool = False,
              populate: bool = False, high_permille: int = -1, low_permille: int = -1, world_size: int = 0,
              heap_kind: int = _abi.HEAP_HOST, device: int = -1) -> None:
        """Gives the cluster memory of this process, as a segment; without a name it is called `host:port`. It is on a GPU with `heap_kind` HEAP_CUDA.

        `memory` is memory of yours instead: a writable buffer, or a tensor on a GPU; the library has all of it, or its first `heap_bytes`
        bytes, and it is kept, until `unmount` or `close`. Nobody else may use it meanwhile."""
        heap_flags = huge_pages * _abi.HEAP_HUGE_PAGES | populate * _abi.HEAP_POPULATE
        config = struct("nmc_store_config_t", heap_bytes=heap_bytes, page_bytes=page_bytes, max_objects=max_objects,
                        key_slab_bytes=key_slab_bytes, eviction=eviction, flags=checksums * _abi.STORE_CHECKSUMS, heap_flags=heap_flags,
                        high_permille=high_permille, low_permille=low_permille, world_size=world_size, heap_kind=heap_kind, device=device)
        text, lent = text_bytes(name, "name"), None
        if memory is not None:
            lent = _here(writable(memory))
            if heap_bytes > lent.nbytes:
                raise ValueError(f"heap_bytes {heap_bytes} is more than the memory has, {lent.nbytes} bytes")
            config.heap_bytes = heap_bytes or lent.nbytes
            config.heap_kind = _abi.HEAP_CUDA if lent.cuda else _abi.HEAP_HOST
            config.heap_import = (_abi.IMPORT_CUDA_PTR if lent.cuda else _abi.IMPORT_HOST_PTR, -1, lent.pointer)
        check(lib.nmc_client_mount(self._handle.raw, slice_of(text), config))
        if lent is not None:
            self._lent.append((name, lent))

    def attach_store(self, name: str, store: Store) -> None:
        """Makes a node of a store that the program has: what is put into it others find, and they put to it."""
        expect(Store, store, "store")
        check(lib.nmc_client_attach_store(self._handle.raw, slice_of(text_bytes(name, "name")), store._handle.raw))

    def open_store(self, store: Store, timeout_ms: int = -1) -> Store:
        """A handle of a store, in its namespace, whose reads go on to the cluster: what neither memory nor disk has is read from a node.
        A miss takes up to `timeout_ms`, by default the client's. `store` itself stays as it is."""
        expect(Store, store, "store")
        out = ffi.new("nmc_store_t **")
        check(lib.nmc_client_open_store(self._handle.raw, store._handle.raw, timeout_ms, out))
        return store._handle_of(out[0])

    def unmount(self, name: str) -> None:
        """Takes a node of this client out of the cluster; `drain` first copies what is only there."""
        check(lib.nmc_client_unmount(self._handle.raw, slice_of(text_bytes(name, "name"))))
        for lent in [lent for lent in self._lent if lent[0] == name][:1]:
            self._lent.remove(lent)

    def drain(self, segment: str, timeout_ms: int = 0) -> Drained:
        """Closes a segment, for its own programs too, and has what is only there copied. Waits up to `timeout_ms` until nothing is left, -1 for as
        long as it takes. What it gives is true then, and else says what is left: ask again."""
        name, left = text_bytes(segment, "segment"), ffi.new("uint64_t *")

        def ask(ms: int) -> int:
            return int(lib.nmc_client_drain(self._handle.raw, slice_of(name), ms, left))

        status = ask(timeout_ms) if timeout_ms < -1 else wait_in_slices(ask, _LONGEST_MS if timeout_ms == -1 else timeout_ms)
        if status < 0:
            raise failure(status)
        return Drained(status == 0, int(left[0]), text_of(lib.nmc_last_error_message()) if status else "")

    def undrain(self, segment: str) -> None:
        """Gives a drain up: the segment takes values again."""
        check(lib.nmc_client_undrain(self._handle.raw, slice_of(text_bytes(segment, "segment"))))

    def sync(self) -> None:
        """Waits until others find what was stored in this client's nodes before, by `Store.put` too."""
        check(lib.nmc_client_sync(self._handle.raw))

    # ---- memory

    def register(self, address: int, nbytes: int) -> None:
        """Values will be put from, or read into, this memory. With `tcp` nothing depends on it."""
        check(lib.nmc_client_register(self._handle.raw, ffi.cast("void *", address), nbytes))

    def unregister(self, address: int) -> None:
        check(lib.nmc_client_unregister(self._handle.raw, ffi.cast("void *", address)))

    # ---- values

    def put(self, key: Key, value: Any, replicate: Optional[Replicate] = None) -> None:
        """Stores a value. AlreadyExists if an owner that was chosen has the key, NoRoom if no segment has room."""
        self.put_slices(key, [value], replicate)

    def put_slices(self, key: Key, values: Sequence[Any], replicate: Optional[Replicate] = None) -> None:
        """Stores one value from several pieces of memory, one after the other."""
        parts = [_here(readable(value)) for value in values]
        slices = ffi.new("nmc_slice_t[]", [(part.pointer, part.nbytes) for part in parts])
        options, keep = _options(replicate)
        check(lib.nmc_client_put(self._handle.raw, slice_of(key_bytes(key)), slices, len(parts), options))
        del keep

    @overload
    def get(self, key: Key) -> bytes: ...

    @overload
    def get(self, key: Key, default: Default) -> Union[bytes, Default]: ...

    def get(self, key: Key, default: Any = _RAISE) -> Any:
        """The value as bytes, from wherever it is. A key that is missing raises NotFound, or gives `default`."""
        name = key_bytes(key)
        buffer, size = ffi.new("char[]", _SCRATCH), ffi.new("uint64_t *")
        into = ffi.new("nmc_buffer_t *", (buffer, _SCRATCH))
        status = self._get(name, into, 1, size)
        if status == 0:
            return ffi.unpack(buffer, size[0])
        while status == _abi.ERR_TOO_SMALL:
            # Nobody else has seen these bytes yet, so they can still be written: one copy instead of two.
            value = bytes(size[0])
            into.ptr, into.len = ffi.from_buffer(value), len(value)
            status = self._get(name, into, 1, size)
            if status == 0:
                return value if size[0] == len(value) else value[: size[0]]
        if default is not _RAISE and status == _abi.ERR_NOT_FOUND:
            return default
        raise failure(status)

    def get_into(self, key: Key, dst: Any) -> int:
        """Reads the value into memory that is large enough. Returns its size."""
        return self.get_slices(key, [dst])

    def get_slices(self, key: Key, buffers: Sequence[Any]) -> int:
        """The same into several buffers, one after the other."""
        parts = [_here(writable(buffer)) for buffer in buffers]
        array = ffi.new("nmc_buffer_t[]", [(part.pointer, part.nbytes) for part in parts])
        out = ffi.new("uint64_t *")
        check(self._get(key_bytes(key), array, len(parts), out))
        return int(out[0])

    def _get(self, name: bytes, buffers: Any, count: int, size: Any) -> int:
        status: int = lib.nmc_client_get(self._handle.raw, slice_of(name), buffers, count, size)
        return status

    def metadata(self, key: Key) -> bytes:
        """What was said about a value when it was put (`Replicate.metadata`), without a byte of it; empty if nothing. A key that is missing
        raises NotFound."""
        buffer, size = ffi.new("char[]", _abi.MAX_METADATA), ffi.new("size_t *")
        check(lib.nmc_client_get_metadata(self._handle.raw, slice_of(key_bytes(key)), buffer, _abi.MAX_METADATA, size))
        return bytes(ffi.unpack(buffer, size[0]))

    def get_with_metadata(self, key: Key) -> Tuple[bytes, bytes]:
        """A value, and what was said about it by the put that it is of."""
        said, size, found = ffi.new("char[]", _abi.MAX_METADATA), ffi.new("size_t *"), ffi.new("uint64_t *", _SCRATCH)
        name = key_bytes(key)
        while True:
            value = bytes(found[0])  # nobody else has seen it yet, so it can still be written
            into = ffi.new("nmc_buffer_t *", (ffi.from_buffer(value), len(value)))
            status = lib.nmc_client_get_with_metadata(
                self._handle.raw, slice_of(name), into, 1, (said, _abi.MAX_METADATA), found, size)
            if status != _abi.ERR_TOO_SMALL:
                check(status)
                return value if found[0] == len(value) else value[: found[0]], bytes(ffi.unpack(said, size[0]))

    def exists(self, key: Key) -> bool:
        status = lib.nmc_client_exists(self._handle.raw, slice_of(key_bytes(key)))
        if status == _abi.ERR_NOT_FOUND:
            return False
        check(status)
        return True

    def __contains__(self, key: Key) -> bool:
        return self.exists(key)

    def size(self, key: Key) -> Optional[int]:
        """Bytes of the value, as the leader lists it; None if there is none."""
        copies = self.query(key)
        return copies[0].nbytes if copies else None

    def remove(self, key: Key, *, wait: bool = True) -> bool:
        """Removes an object everywhere. With `wait`, until every owner has dropped it: False if one of them is away and may still
        have it. A key that is missing raises NotFound."""
        return self._removed(lib.nmc_client_remove(self._handle.raw, slice_of(key_bytes(key)), 0 if wait else _abi.REMOVE_ASYNC))

    def remove_all(self, *, everywhere: bool = False, wait: bool = True) -> bool:
        """Removes all objects of the client's namespace, or of all namespaces, in one step."""
        flags = everywhere * _abi.REMOVE_EVERYWHERE | (not wait) * _abi.REMOVE_ASYNC
        return self._removed(lib.nmc_client_remove_all(self._handle.raw, flags))

    @staticmethod
    def _removed(status: int) -> bool:
        if status != _abi.IN_PROGRESS:
            check(status)
        return status == 0

    # ---- many at a time

    def put_batch(self, keys: Sequence[Key], values: Sequence[Any], replicate: Optional[Replicate] = None, *,
                  strict: bool = True) -> List[int]:
        """Stores many values. Returns the status of each; with `strict` the first failure is raised."""
        _same(keys, values)
        parts = [_here(readable(value)) for value in values]
        slices = ffi.new("nmc_slice_t[]", [(part.pointer, part.nbytes) for part in parts] or 1)
        return _strict(self._put_batch(keys, slices, replicate), strict)

    def put_slices_batch(self, keys: Sequence[Key], values: Sequence[Sequence[Any]], replicate: Optional[Replicate] = None, *,
                         strict: bool = True) -> List[int]:
        """The same, each value from several pieces of memory, one after the other."""
        slices, counts, kept = _lists("nmc_slice_t[]", keys, values, readable)
        told = self._put_batch(keys, slices, replicate, counts)
        del kept
        return _strict(told, strict)

    def put_batch_from(self, keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int],
                       replicate: Optional[Replicate] = None) -> List[int]:
        """The same from addresses, of the host or a GPU. The status of each."""
        slices = _pieces("nmc_slice_t[]", keys, addresses, sizes)
        return self._put_batch(keys, slices, replicate)

    def _put_batch(self, keys: Sequence[Key], slices: Any, replicate: Optional[Replicate], counts: Any = NULL) -> List[int]:
        names, kept = key_slices(keys)
        options, keep = _options(replicate)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        status = lib.nmc_client_put_batch(self._handle.raw, names, slices, counts, len(keys), options, statuses)
        del kept, keep
        return _told(status, statuses, len(keys), False)

    def get_batch(self, keys: Sequence[Key]) -> List[Optional[bytes]]:
        """Many values as bytes; None for those that are missing."""
        keys = list(keys)
        sizes = [_SCRATCH] * len(keys)
        found: List[Optional[bytes]] = [None] * len(keys)
        left = list(range(len(keys)))
        while left:
            values = [bytearray(sizes[at]) for at in left]
            memory = [readable_address(value) for value in values]
            statuses, got = self.get_batch_into([keys[at] for at in left], memory, [len(value) for value in values])
            again = []
            for number, at in enumerate(left):
                if statuses[number] == 0:
                    found[at] = bytes(values[number][: got[number]])
                elif statuses[number] == _abi.ERR_TOO_SMALL:
                    sizes[at] = got[number]
                    again.append(at)
                elif statuses[number] != _abi.ERR_NOT_FOUND:
                    _strict(statuses, True)
            left = again
        return found

    def get_batch_into(self, keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]) -> Tuple[List[int], List[int]]:
        """Many values into memory at these addresses, of the host or a GPU. The status of each, and its size."""
        return self._get_batch(keys, _pieces("nmc_buffer_t[]", keys, addresses, sizes))

    def get_slices_batch(self, keys: Sequence[Key], buffers: Sequence[Sequence[Any]]) -> Tuple[List[int], List[int]]:
        """Many values, each into several pieces of memory, one after the other. The status of each, and its size."""
        array, counts, kept = _lists("nmc_buffer_t[]", keys, buffers, writable)
        told = self._get_batch(keys, array, counts)
        del kept
        return told

    def _get_batch(self, keys: Sequence[Key], buffers: Any, counts: Any = NULL) -> Tuple[List[int], List[int]]:
        names, kept = key_slices(keys)
        got = ffi.new("uint64_t[]", len(keys) or 1)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        status = lib.nmc_client_get_batch(self._handle.raw, names, buffers, counts, len(keys), got, statuses)
        del kept
        return _told(status, statuses, len(keys), False), [int(got[at]) for at in range(len(keys))]

    def metadata_batch(self, keys: Sequence[Key]) -> List[Optional[bytes]]:
        """`metadata` of many values; None for those that are missing."""
        names, kept = key_slices(keys)
        room = ffi.new("char[]", _abi.MAX_METADATA * len(keys) or 1)
        buffers = ffi.new("nmc_buffer_t[]", [(room + _abi.MAX_METADATA * at, _abi.MAX_METADATA) for at in range(len(keys))] or 1)
        sizes, statuses = ffi.new("size_t[]", len(keys) or 1), ffi.new("nmc_status_t[]", len(keys) or 1)
        status = lib.nmc_client_get_metadata_batch(self._handle.raw, names, buffers, len(keys), sizes, statuses)
        del kept
        told = _told(status, statuses, len(keys), False)
        _strict([0 if one == _abi.ERR_NOT_FOUND else one for one in told], True)
        return [None if one else bytes(ffi.buffer(room + _abi.MAX_METADATA * at, sizes[at])) for at, one in enumerate(told)]

    def remove_batch(self, keys: Sequence[Key], *, wait: bool = True, strict: bool = True) -> List[int]:
        """Removes many objects. Returns the status of each: OK, or IN_PROGRESS where `remove` gives False; with `strict` the first failure is
        raised, also that a key is missing."""
        names, kept = key_slices(keys)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        status = lib.nmc_client_remove_batch(self._handle.raw, names, len(keys), 0 if wait else _abi.REMOVE_ASYNC, statuses)
        del kept
        return _no_failure(_told(status, statuses, len(keys), False), strict)

    def exists_batch(self, keys: Sequence[Key]) -> List[bool]:
        names, kept = key_slices(keys)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        check(lib.nmc_client_exists_batch(self._handle.raw, names, len(keys), statuses))
        del kept
        return [statuses[at] == 0 for at in range(len(keys))]

    # ---- asyncio: the loop waits on a descriptor, and no thread is needed. `timeout_ms` holds, whoever gives up waiting.

    async def aput(self, key: Key, value: Any, replicate: Optional[Replicate] = None) -> None:
        """`put` for asyncio. The value must not change until it has returned."""
        name, part = key_bytes(key), _here(readable(value))
        one = ffi.new("nmc_slice_t *", (part.pointer, part.nbytes))
        options, keep = _options(replicate)
        status, _ = await self._calls.run(
            lambda token: lib.nmc_client_submit_put(self._handle.raw, slice_of(name), one, 1, options, token), (part, keep))
        _ended(status, name)

    async def aget(self, key: Key, default: Any = _RAISE) -> Any:
        """`get` for asyncio."""
        name, size = key_bytes(key), _SCRATCH
        while True:
            # Nobody else has seen these bytes yet, so they can still be written.
            value = bytes(size)
            status, got = await self._aget(name, ffi.from_buffer(value), size)
            if status == 0:
                return value if got == size else value[:got]
            if status != _abi.ERR_TOO_SMALL:
                break
            size = got
        if default is not _RAISE and status == _abi.ERR_NOT_FOUND:
            return default
        raise error_of(status, f"key {name!r}")

    async def aget_into(self, key: Key, dst: Any) -> int:
        """`get_into` for asyncio. The memory is the library's until it has returned."""
        name, part = key_bytes(key), _here(writable(dst))
        status, got = await self._aget(name, part.pointer, part.nbytes, part)
        _ended(status, name)
        return got

    async def _aget(self, name: bytes, pointer: Any, nbytes: int, keep: Any = None) -> Tuple[int, int]:
        into = ffi.new("nmc_buffer_t *", (pointer, nbytes))
        return await self._calls.run(
            lambda token: lib.nmc_client_submit_get(self._handle.raw, slice_of(name), into, 1, token), (pointer, keep))

    async def aremove(self, key: Key, *, wait: bool = True) -> bool:
        """`remove` for asyncio."""
        name, flags = key_bytes(key), 0 if wait else _abi.REMOVE_ASYNC
        status, _ = await self._calls.run(
            lambda token: lib.nmc_client_submit_remove(self._handle.raw, slice_of(name), flags, token), None)
        if status != _abi.IN_PROGRESS:
            _ended(status, name)
        return status == 0

    async def aremove_batch(self, keys: Sequence[Key], *, wait: bool = True, strict: bool = True) -> List[int]:
        """`remove_batch` for asyncio."""
        names, kept = key_slices(keys)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        count, flags = len(keys), 0 if wait else _abi.REMOVE_ASYNC
        await self._calls.run(
            lambda token: lib.nmc_client_submit_remove_batch(self._handle.raw, names, count, flags, token, statuses), (kept, statuses))
        return _no_failure([int(statuses[at]) for at in range(count)], strict)

    async def ametadata(self, key: Key) -> bytes:
        """`metadata` for asyncio."""
        name, room = key_bytes(key), ffi.new("char[]", _abi.MAX_METADATA)
        status, size = await self._calls.run(
            lambda token: lib.nmc_client_submit_get_metadata(self._handle.raw, slice_of(name), room, _abi.MAX_METADATA, token), room)
        _ended(status, name)
        return bytes(ffi.unpack(room, size))

    async def aput_batch(self, keys: Sequence[Key], values: Sequence[Any], replicate: Optional[Replicate] = None, *,
                         strict: bool = True) -> List[int]:
        """`put_batch` for asyncio. The values must not change until it has returned."""
        _same(keys, values)
        parts = [_here(readable(value)) for value in values]
        slices = ffi.new("nmc_slice_t[]", [(part.pointer, part.nbytes) for part in parts] or 1)
        names, kept = key_slices(keys)
        options, keep = _options(replicate)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        status, _ = await self._calls.run(
            lambda token: lib.nmc_client_submit_put_batch(self._handle.raw, names, slices, NULL, len(keys), options, token, statuses),
            (parts, slices, kept, keep, statuses))
        if strict:
            _ended(status, f"one of {len(keys)} keys")
        return [int(statuses[at]) for at in range(len(keys))]

    async def aget_batch(self, keys: Sequence[Key]) -> List[Optional[bytes]]:
        """`get_batch` for asyncio."""
        keys = list(keys)
        sizes = [_SCRATCH] * len(keys)
        found: List[Optional[bytes]] = [None] * len(keys)
        left = list(range(len(keys)))
        while left:
            values = [bytes(sizes[at]) for at in left]
            memory = [ffi.from_buffer(value) for value in values]
            buffers = ffi.new("nmc_buffer_t[]", [(one, len(value)) for one, value in zip(memory, values)])
            names, kept = key_slices([keys[at] for at in left])
            got, statuses = ffi.new("uint64_t[]", len(left)), ffi.new("nmc_status_t[]", len(left))

            def submit(token: int, count: int = len(left), arrays: Tuple[Any, ...] = (names, buffers, got, statuses)) -> int:
                status: int = lib.nmc_client_submit_get_batch(
                    self._handle.raw, arrays[0], arrays[1], NULL, count, token, arrays[2], arrays[3])
                return status

            await self._calls.run(submit, (memory, buffers, kept, got, statuses))
            again = []
            for number, at in enumerate(left):
                status = int(statuses[number])
                if status == 0:
                    found[at] = values[number][: got[number]]
                elif status == _abi.ERR_TOO_SMALL:
                    sizes[at] = int(got[number])
                    again.append(at)
                elif status != _abi.ERR_NOT_FOUND:
                    raise error_of(status, f"key {keys[at]!r}")
            left = again
        return found

    # ---- looking

    def query(self, key: Key) -> List[Replica]:
        """The copies of an object; none if nobody has it."""
        found: List[Replica] = []

        def take(_: Any, copy: Any) -> None:
            found.append(Replica(int(copy.media), int(copy.bytes), int(copy.put_id), _bytes(copy.endpoint).decode()))

        call = _Call("int32_t(void *, const nmc_replica_t *)", take)
        status = lib.nmc_client_query(self._handle.raw, slice_of(key_bytes(key)), call.pointer, NULL)
        call.end(0 if status == _abi.ERR_NOT_FOUND else status)
        return found

    def keys(self, prefix: Key = b"") -> Iterator[bytes]:
        """The keys of the client's namespace that begin like this, in no particular order; the leader is asked for a page at a time.
        Keys that come or go meanwhile may or may not be seen."""
        name, cursor = key_bytes(prefix), ffi.new("uint64_t *")
        while True:
            page: List[bytes] = []
            call = _Call("int32_t(void *, nmc_slice_t)", lambda _, key: page.append(_bytes(key)))
            call.end(lib.nmc_client_keys(self._handle.raw, slice_of(name), cursor, call.pointer, NULL))
            yield from page
            if cursor[0] == 0:
                return

    def segments(self) -> List[Segment]:
        """The segments of the cluster."""
        found: List[Segment] = []

        def take(_: Any, one: Any) -> None:
            found.append(_segment(one))

        call = _Call("int32_t(void *, const nmc_segment_t *)", take)
        call.end(lib.nmc_client_segments(self._handle.raw, call.pointer, NULL))
        return found

    def set_placement(self, placement: Optional[Callable[[bytes, int, int, List[Segment]], Sequence[int]]]) -> None:
        """Where values go that this client puts without `locations`: `placement(key, nbytes, copies, segments)` answers with numbers of
        segments in that list, the best first; the leader chooses what is missing. Called on the thread that puts, by several at the same
        time. If it raises, that is printed and the put fails with `InvalidArgument`. None takes it back."""
        if placement is None:
            check(lib.nmc_client_set_placement(self._handle.raw, NULL, NULL, NULL))
            return
        if not callable(placement):
            raise TypeError(f"placement is a {type(placement).__name__}, which cannot be called")
        place = placement

        def answer(_: Any, put: Any, out: Any) -> int:
            segments = [_segment(put.segments[i]) for i in range(put.n_segments)]
            chosen = list(place(_bytes(put.key), int(put.bytes), int(put.copies), segments))
            for at, number in enumerate(chosen[: _abi.CLIENT_MAX_COPIES]):
                out[at] = number
            return len(chosen)

        number = next(_NUMBERS)
        _PLACEMENTS[number] = ffi.callback("int32_t(void *, const nmc_placement_t *, uint32_t *)", answer, error=_abi.ERR_INVALID_ARG)
        status = lib.nmc_client_set_placement(self._handle.raw, _PLACEMENTS[number], ffi.cast("void *", number), _RELEASED)
        if status:
            del _PLACEMENTS[number]
        check(status)


def _segment(one: Any) -> Segment:
    return Segment(_bytes(one.name).decode(), int(one.media), int(one.state), int(one.near), int(one.capacity), int(one.used),
                   _bytes(one.host).decode(), bool(one.here))


# Callbacks that the library may still call, by the number that it knows them by.
_PLACEMENTS: Dict[int, Any] = {}
_NUMBERS = itertools.count(1)


def _released(user: Any) -> None:
    _PLACEMENTS.pop(int(ffi.cast("uintptr_t", user)), None)


_RELEASED = ffi.callback("void(void *)", _released)


def _no_failure(told: List[int], strict: bool) -> List[int]:
    """The statuses of a batch; with `strict` the first failure is raised. What is in progress has not failed."""
    _strict([min(status, 0) for status in told], strict)
    return told


def _ended(status: int, what: Union[bytes, str]) -> None:
    """Raises if a call that was submitted has failed."""
    if status:
        raise error_of(status, f"key {what!r}" if isinstance(what, bytes) else what)


def readable_address(buffer: bytearray) -> int:
    return address_of(ffi.from_buffer(buffer)) if buffer else 0


def _same(keys: Sequence[Any], others: Sequence[Any]) -> None:
    if len(keys) != len(others):
        raise ValueError(f"{len(keys)} keys do not go with {len(others)} others")
