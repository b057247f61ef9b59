"""Mooncake Store's Python API over a nanomc cluster, for programs that exist. `MooncakeDistributedStore` has the calls, defaults and return
codes of Mooncake's class: 0 or a negative number, never an exception, except that `get` raises KeyError for a key that is missing.

    import mooncake_vllm_adaptor, distributed_object_store         # modules of this package: nothing to do
    nanomc.mooncake.install()                                      # from here on `from mooncake.store import ...` gives this class
    python -m nanomc.mooncake script.py                            # the same for a script as it is

As in Mooncake's own package, `get` of the class in `mooncake.store` gives b"" for a key that is missing. docs/from-mooncake.md lists every
call and what is different. On more than one machine the environment variable NMC_TOKEN must hold the cluster's token, or
NMC_TLS_CERT, NMC_TLS_KEY and NMC_TLS_CA name the files of its certificates.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import os
import random
import re
import runpy
import socket
import sys
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from . import _abi
from ._library import _LOCKED, address_of, ffi
from .client import Client, Replicate
from .errors import ClosedError, NanomcError, NotFound, error_of

_LOG = logging.getLogger("nanomc.mooncake")
_MIB = 1 << 20
_PORTS = range(12300, 14300)
_MOST_KEYS = 1_000_000  # that are looked at by a pattern

#: What Mooncake's calls return.
OK = 0
INTERNAL_ERROR = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
REPLICA_IS_NOT_READY = -703
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
TRANSFER_FAIL = -800
RPC_FAIL = -900
RPC_TIMEOUT = -901

_CODES: Dict[int, int] = {
    0: OK,
    _abi.IN_PROGRESS: OK,
    _abi.ERR_NOT_FOUND: OBJECT_NOT_FOUND,
    _abi.ERR_EXISTS: OBJECT_ALREADY_EXISTS,
    _abi.ERR_NO_SPACE: NO_AVAILABLE_HANDLE,
    _abi.ERR_BUSY: NO_AVAILABLE_HANDLE,
    _abi.ERR_NO_MEMORY: NO_AVAILABLE_HANDLE,
    _abi.ERR_LIMIT: NO_AVAILABLE_HANDLE,
    _abi.ERR_INVALID_ARG: INVALID_PARAMS,
    _abi.ERR_TOO_SMALL: INVALID_PARAMS,
    _abi.ERR_PERMISSION: INVALID_PARAMS,
    _abi.ERR_UNSUPPORTED: INVALID_PARAMS,
    _abi.ERR_STALE: REPLICA_IS_NOT_READY,
    _abi.ERR_PEER_LOST: TRANSFER_FAIL,
    _abi.ERR_CORRUPT: TRANSFER_FAIL,
    _abi.ERR_UNAVAILABLE: RPC_FAIL,
    _abi.ERR_TIMEOUT: RPC_TIMEOUT,
}


def code_of(status: int) -> int:
    """Mooncake's number for a status of this library."""
    return _CODES.get(status, INTERNAL_ERROR)


class ReplicateConfig:
    """How a value is put. Of Mooncake's fields these have a meaning here; others can be set and have none."""

    def __init__(self) -> None:
        self.replica_num = 1
        #: Evicted after all that is not pinned.
        self.with_soft_pin = False
        #: Never evicted.
        self.with_hard_pin = False
        #: Where copies go if there is room.
        self.preferred_segment = ""
        self.preferred_segments: List[str] = []
        self.prefer_alloc_in_same_node = False

    def _replicate(self, preferred: bool) -> Replicate:
        retain = _abi.RETAIN_HARD if self.with_hard_pin else _abi.RETAIN_SOFT if self.with_soft_pin else _abi.RETAIN_NONE
        places = list(self.preferred_segments) or [self.preferred_segment]
        return Replicate(copies=self.replica_num, retain=retain, locations=[place for place in places if place] if preferred else ())


class BufferHandle(bytearray):
    """A value that was read, in memory of its own."""

    def ptr(self) -> int:
        return address_of(ffi.from_buffer(self)) if self else 0

    def size(self) -> int:
        return len(self)


_WRONG = (TypeError, ValueError, OverflowError, AttributeError)  # what an argument of a wrong type or size raises
Method = TypeVar("Method", bound=Callable[..., Any])


def _coded(method: Method) -> Method:
    """What the library raises becomes Mooncake's number, and a line in the log unless it is an ordinary answer."""

    @functools.wraps(method)
    def call(self: "MooncakeDistributedStore", *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        except NanomcError as error:
            if not isinstance(error, NotFound):
                _LOG.error("%s: %s", method.__name__, error)
            return code_of(error.status)
        except _WRONG as error:
            _LOG.error("%s: %s", method.__name__, error)
            return INVALID_PARAMS
        except (MemoryError, OSError) as error:
            _LOG.error("%s: %s", method.__name__, error)
            return NO_AVAILABLE_HANDLE

    return call  # type: ignore[return-value]


class MooncakeDistributedStore:
    """A client of the cluster, and a node of it if it gives memory. All calls may be made from any thread."""

    def __init__(self) -> None:
        self._client: Optional[Client] = None
        self._hostname = ""
        self._staging: Optional[mmap.mmap] = None
        #: Bytes of the segment that has the node's name, and of all its segments.
        self._segment = self._given = 0
        self._lock = threading.RLock()
        _LOCKED.add(self)

    # ---- set-up

    @_coded
    def setup(self, local_hostname: str, metadata_server: str = "", global_segment_size: int = 16 * _MIB,
              local_buffer_size: int = 16 * _MIB, protocol: str = "tcp", rdma_devices: str = "",
              master_server_addr: str = "127.0.0.1:50051", engine: Any = None, **_others: Any) -> int:
        """Joins the cluster of a master, and gives it `global_segment_size` bytes; with 0 it is only a client."""
        if self._client is not None:
            raise ValueError("setup was called before; close ends that")
        if global_segment_size < 0 or local_buffer_size < 0:
            raise ValueError(f"a segment of {global_segment_size} and a buffer of {local_buffer_size} bytes are not possible")
        staging = mmap.mmap(-1, local_buffer_size) if local_buffer_size > 0 else None
        for attempt in range(64):
            hostname, chosen = _with_port(local_hostname)
            client = Client(master_server_addr, local_hostname=hostname, metadata_server=metadata_server, protocol=protocol,
                            device_names=rdma_devices, token=os.environ.get("NMC_TOKEN", ""),
                            tls_cert=os.environ.get("NMC_TLS_CERT", ""), tls_key=os.environ.get("NMC_TLS_KEY", ""),
                            tls_ca=os.environ.get("NMC_TLS_CA", ""))
            try:
                if global_segment_size > 0:
                    client.mount(heap_bytes=global_segment_size)
                else:
                    client.segments()  # somebody answers
                break
            except NanomcError as error:
                client.close()
                if error.status == _abi.ERR_OS and chosen and attempt < 63:
                    continue  # the port was taken meanwhile
                if error.status in (_abi.ERR_UNAVAILABLE, _abi.ERR_TIMEOUT):
                    _LOG.error("no master answers at %s: start one with `nanomc-master` (or `mooncake_master`), or say where it is in "
                               "master_server_addr", master_server_addr)
                raise
        if staging is not None:
            self._staging = staging
            client.register(address_of(ffi.from_buffer(staging)), local_buffer_size)
        self._client, self._hostname = client, hostname
        self._segment = self._given = global_segment_size
        return OK

    @_coded
    def initAll(self, protocol: str = "tcp", device_name: str = "", mount_segment_size: int = 16 * _MIB) -> int:
        """After `setup`, which has joined the cluster: sees that this node gives `mount_segment_size` bytes. If it gives less, its segment
        is made anew under its name, which takes about a second. One with values that have nowhere else to go stays as it is; then what is
        missing is a further segment. If it gives more, nothing changes."""
        if self._client is None:
            raise ValueError("call setup first")
        if mount_segment_size < 0:
            raise ValueError(f"a segment of {mount_segment_size} bytes is not possible")
        with self._lock:
            if mount_segment_size > self._given:
                self._give(self._open(), mount_segment_size - self._given)
        return OK

    def _give(self, client: Client, more: int) -> None:
        former = self._segment
        if former == 0:
            return self._mount(client, more)
        if not self._emptied(client):
            client.mount(heap_bytes=max(more, _MIB))  # values may be larger than what is missing
            self._given += more
            return None
        client.unmount(self._hostname)
        self._segment, self._given = 0, self._given - former
        try:
            self._mount(client, former + more)
        except NanomcError:
            self._mount(client, former)
            raise
        finally:
            with contextlib.suppress(NanomcError):
                client.undrain(self._hostname)  # what the master knows of the former one is no drain of this one
        return None

    def _mount(self, client: Client, nbytes: int) -> None:
        client.mount(self._hostname, heap_bytes=nbytes)
        self._segment, self._given = nbytes, self._given + nbytes

    def _emptied(self, client: Client) -> bool:
        """Whether nothing is in the segment, and nothing comes into it any more: other nodes have taken what was there."""
        emptied, left = False, 0
        try:
            for _ in range(15):
                told = client.drain(self._hostname, 2000)
                emptied = told.done
                if emptied or 0 < left <= told.left:
                    break
                left = told.left
        except NotFound:
            _LOG.warning("initAll: there is no segment %s any more", self._hostname)
        finally:
            if not emptied:
                with contextlib.suppress(NanomcError):
                    client.undrain(self._hostname)
        return emptied

    init_all = initAll

    @_coded
    def close(self) -> int:
        """Leaves the cluster: what only this node has is not found any more. May be called again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        with self._lock:
            self._staging = None
        return OK

    tearDownAll = close

    def _open(self) -> Client:
        if self._client is None:
            raise ClosedError(_abi.ERR_BAD_HANDLE, "the store is not set up, or closed")
        return self._client

    def get_hostname(self) -> str:
        """Name of this node, and of its segment; empty before setup."""
        return self._hostname

    def health_check(self) -> int:
        """0 if all is well, 1 if it is not set up, 2 if no master answers."""
        client = self._client
        if client is None:
            return 1
        try:
            client.segments()
        except NanomcError:
            return 2
        return 0

    # ---- put

    @_coded
    def put(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> int:
        """Stores a value. If there is one already, that stays, and it is no error."""
        return self._put(key, [value], config)

    @_coded
    def put_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> int:
        """Stores one value from several pieces."""
        return self._put(key, parts, config)

    @_coded
    def put_from(self, key: str, buffer_ptr: int, size: int, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_batch([key], [buffer_ptr], [size], config)[0]

    @_coded
    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: Optional[ReplicateConfig] = None) -> int:
        """0 if all were stored, else the number of the first that was not."""
        client = self._open()
        told = self._preferring(config, lambda replicate: client.put_batch(keys, values, replicate, strict=False))
        return next((code for code in map(_stored, told) if code), OK)

    def batch_put_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: Optional[ReplicateConfig] = None) -> List[int]:
        return _each(len(keys), lambda: self._put_batch(keys, buffer_ptrs, sizes, config))

    def _put(self, key: str, parts: Sequence[Any], config: Optional[ReplicateConfig]) -> int:
        client = self._open()

        def put(replicate: Optional[Replicate]) -> List[int]:
            try:
                client.put_slices(key, parts, replicate)
            except NanomcError as error:
                if code_of(error.status) not in (OBJECT_ALREADY_EXISTS, NO_AVAILABLE_HANDLE, OBJECT_NOT_FOUND):
                    raise
                return [error.status]
            return [0]

        return _stored(self._preferring(config, put)[0])

    def _put_batch(self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int],
                   config: Optional[ReplicateConfig]) -> List[int]:
        client = self._open()
        told = self._preferring(config, lambda replicate: client.put_batch_from(keys, pointers, sizes, replicate))
        return [_stored(status) for status in told]

    @staticmethod
    def _preferring(config: Optional[ReplicateConfig], put: Callable[[Optional[Replicate]], List[int]]) -> List[int]:
        """Preferred segments are a wish: where they cannot be had, anywhere."""
        if config is None:
            return put(None)
        told = put(config._replicate(True))
        refused = (_abi.ERR_NO_SPACE, _abi.ERR_NOT_FOUND, _abi.ERR_BUSY)
        if (config.preferred_segment or config.preferred_segments) and any(status in refused for status in told):
            again = put(config._replicate(False))
            told = [second if first in refused else first for first, second in zip(told, again)]
        return told

    # ---- get

    def get(self, key: str) -> bytes:
        """The value. A key that is missing raises KeyError, everything else that fails another exception."""
        return self._get(key)

    def _get(self, key: str) -> bytes:
        client = self._open()
        staging = self._staging
        # One thread at a time has the buffer; the others ask for the size first.
        if staging is not None and self._lock.acquire(blocking=False):
            try:
                view = memoryview(staging)
                with view:
                    return bytes(view[: client.get_into(key, view)])
            except NanomcError as error:
                if error.status != _abi.ERR_TOO_SMALL:
                    raise
            finally:
                self._lock.release()
        return client.get(key)

    def get_batch(self, keys: Sequence[str]) -> List[bytes]:
        """The values; b"" for those that are missing."""
        try:
            return [value or b"" for value in self._open().get_batch(keys)]
        except (NanomcError, *_WRONG) as error:
            _LOG.error("get_batch: %s", error)
            return [b""] * len(keys)

    def get_buffer(self, key: str) -> Optional[BufferHandle]:
        """The value in memory of its own; None if it is missing."""
        try:
            return BufferHandle(self._get(key))
        except (NanomcError, *_WRONG) as error:
            if not isinstance(error, NotFound):
                _LOG.error("get_buffer: %s", error)
            return None

    def batch_get_buffer(self, keys: Sequence[str]) -> List[Optional[BufferHandle]]:
        try:
            return [None if value is None else BufferHandle(value) for value in self._open().get_batch(keys)]
        except (NanomcError, *_WRONG) as error:
            _LOG.error("batch_get_buffer: %s", error)
            return [None] * len(keys)

    @_coded
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads the value into memory that is large enough. Its size, or a negative number."""
        return self._get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[int]:
        return _each(len(keys), lambda: self._get_into(keys, buffer_ptrs, sizes))

    def _get_into(self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int]) -> List[int]:
        told, got = self._open().get_batch_into(keys, pointers, sizes)
        return [size if status == 0 else code_of(status) for status, size in zip(told, got)]

    # ---- keys

    def is_exist(self, key: str) -> int:
        """1, 0, or -1 if it cannot be found out."""
        return self.batch_is_exist([key])[0]

    isExist = is_exist

    def batch_is_exist(self, keys: Sequence[str]) -> List[int]:
        try:
            return [int(found) for found in self._open().exists_batch(keys)]
        except (NanomcError, *_WRONG) as error:
            _LOG.error("is_exist: %s", error)
            return [INTERNAL_ERROR] * len(keys)

    @_coded
    def get_size(self, key: str) -> int:
        size = self._open().size(key)
        return OBJECT_NOT_FOUND if size is None else size

    @_coded
    def remove(self, key: str, force: bool = False) -> int:
        self._open().remove(key)
        return OK

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> List[int]:
        """The number of each, as of `remove`."""
        return _each(len(keys), lambda: [code_of(status) for status in self._open().remove_batch(keys, strict=False)])

    @_coded
    def remove_all(self, force: bool = False) -> int:
        """Removes every object, in one step. How many there were, as they were listed just before."""
        client = self._open()
        count = sum(1 for _ in client.keys())
        client.remove_all()
        return count

    @_coded
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes every object with a key in which the pattern is found. How many. Keys are listed first: if there are
        more than a million, nothing is removed, and INVALID_PARAMS says so."""
        client = self._open()
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            raise ValueError(f"{regex_pattern!r} is no regular expression: {error}") from error
        wanted: List[bytes] = []
        for number, key in enumerate(client.keys()):
            if number == _MOST_KEYS:
                raise ValueError(f"there are more than {_MOST_KEYS} keys to look at")
            if pattern.search(key.decode("utf-8", "replace")):
                wanted.append(key)
        told = client.remove_batch(wanted, strict=False)
        for status in told:
            if status < 0 and status != _abi.ERR_NOT_FOUND:  # then somebody was faster
                raise error_of(status, f"{sum(one >= 0 for one in told)} of {len(told)} were removed")
        return sum(status >= 0 for status in told)

    # ---- memory

    @_coded
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        self._open().register(buffer_ptr, size)
        return OK

    @_coded
    def unregister_buffer(self, buffer_ptr: int) -> int:
        self._open().unregister(buffer_ptr)
        return OK


class _PackageStore(MooncakeDistributedStore):
    """As in Mooncake's own package: a get that fails gives b""."""

    def get(self, key: str) -> bytes:
        try:
            return self._get(key)
        except (NanomcError, *_WRONG) as error:
            if not isinstance(error, NotFound):
                _LOG.error("get: %s", error)
            return b""


DistributedObjectStore = MooncakeDistributedStore


def _stored(status: int) -> int:
    """That there is a value already is no error of a put."""
    code = code_of(status)
    return OK if code == OBJECT_ALREADY_EXISTS else code


def _each(count: int, call: Callable[[], List[int]]) -> List[int]:
    """The numbers of a batch; the same one for all if the call as a whole failed."""
    try:
        return call()
    except NanomcError as error:
        _LOG.error("%s", error)
        return [code_of(error.status)] * count
    except _WRONG as error:
        _LOG.error("%s", error)
        return [INVALID_PARAMS] * count


def _with_port(hostname: str) -> Tuple[str, bool]:
    """The name of this machine with a port, and whether that was chosen here: a free one of 12300 to 14299."""
    host, found, port = hostname.rpartition(":")
    if found and port.isdigit() or hostname.startswith("unix:"):
        return hostname, False
    for candidate in random.sample(_PORTS, 100):
        try:
            with socket.socket() as probe:
                probe.bind((hostname or "127.0.0.1", candidate))
            return f"{hostname or '127.0.0.1'}:{candidate}", True
        except OSError:
            continue
    return hostname, False


# ---- under Mooncake's name ------------------------------------------------------------------------------------------------------


def install() -> None:
    """From here on `mooncake.store` is this module, with the behaviour of Mooncake's package. Refused where that is imported already."""
    present = sys.modules.get("mooncake.store")
    if present is not None and not hasattr(present, "_of_nanomc"):
        raise RuntimeError(f"{present!r} is imported already: call install() before")
    store = types.ModuleType("mooncake.store", "Mooncake Store's Python API over a nanomc cluster.")
    for name, value in {"MooncakeDistributedStore": _PackageStore, "ReplicateConfig": ReplicateConfig, "BufferHandle": BufferHandle,
                        "_of_nanomc": True}.items():
        setattr(store, name, value)
    package = sys.modules.get("mooncake")
    if package is None:
        package = types.ModuleType("mooncake")
        package.__path__ = []
        sys.modules["mooncake"] = package
    setattr(package, "store", store)
    sys.modules["mooncake.store"] = store


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m nanomc.mooncake script.py [arguments]")
    from nanomc import mooncake as _mooncake

    _mooncake.install()
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
