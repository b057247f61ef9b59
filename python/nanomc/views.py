"""`View` is a pin, `WritePlan` an object that is being written. Both are context managers, and both keep the memory that was handed
out: a pin ends when its block has ended and nothing looks at its bytes any more.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

from . import _abi
from ._abi import PlanInfo, ViewInfo
from ._library import NULL, check, ffi, lib, record
from .errors import ClosedError
from .memory import Array, buffer_of, product, readable, type_bytes
from .world import stream_pointer

if TYPE_CHECKING:
    from .store import Store


def _hold(_kept: Any, _: Any) -> None:
    """Does nothing: as the destructor of a pointer it keeps `_kept` as long as that."""


class _InPlace:
    """What a pin and a plan have in common: bytes of the store, where they are."""

    _store: "Store"
    _raw: Any
    _lease: Any
    # How messages call it, say that it is over, and what to do about memory that is in pieces or on a device.
    _noun: str
    _over: str
    _joined: str
    _on_device: str
    _readonly: bool

    # The field that has its size, and the function that lists its pieces.
    _size: str
    _list: str

    @property
    def nbytes(self) -> int:
        return int(getattr(self._raw, self._size))

    @property
    def epoch(self) -> int:
        return int(self._raw.epoch)

    def _open(self) -> Any:
        self._store._handle.require()
        lease = self._lease
        if lease is None:
            raise ClosedError(_abi.ERR_NOT_FOUND, self._over)
        return lease

    def _one_piece(self) -> Any:
        lease = self._open()
        if self._raw.n_extents > 1:
            raise ValueError(f"the {self._noun} {self._joined}".format(self._raw.n_extents))
        return lease

    @property
    def data(self) -> memoryview:
        """Its bytes in place, read-only if it is published. What lies in several pieces has `extents` instead."""
        lease = self._one_piece()
        if self._store.on_device:
            raise ValueError(f"the {self._noun} is in device memory: use {self._on_device}")
        return buffer_of(lease, self.nbytes, self._readonly)

    def extents(self) -> List[Array]:
        """Its pieces, in order."""
        lease = self._open()
        if self._raw.n_extents <= 1:
            return [self.array()] if self.nbytes else []
        count = self._raw.n_extents
        out, n = ffi.new("nmc_extent_t[]", count), ffi.new("size_t *")
        check(getattr(lib, self._list)(self._store._handle.raw, self._raw, out, count, n))
        return [_piece(self._store, lease, extent, self._readonly) for extent in out]

    def array(self, shape: Optional[Sequence[int]] = None, dtype: str = "uint8") -> Array:
        """Its bytes as an array, without a copy, on host or GPU."""
        lease = self._one_piece()
        size = type_bytes(dtype)
        if shape is None:
            shape = (self.nbytes // size,)
        if product(shape) * size != self.nbytes or min(shape, default=0) < 0:
            raise ValueError(f"{dtype}{list(shape)} takes {product(shape) * size} bytes, the {self._noun} has {self.nbytes}")
        return Array(lease, shape, dtype, device=self._store._device_of(lease), readonly=self._readonly)


class View(_InPlace):
    """A pinned object: its bytes stay where and what they are. The pin ends with `unpin`, with the block of a `with` statement, or
    when the view is collected, but not before every memoryview, array and tensor made of it is gone."""

    _noun, _over = "object", "the view was unpinned"
    _joined = "lies in {} pieces: use extents(), or put it with contiguous=True"
    _on_device = "array(), DLPack or info.data_device"
    _size, _list = "bytes", "nmc_store_view_extents"
    _readonly = True

    def __init__(self, store: "Store", raw: Any, owned: bool = True) -> None:
        self._store = store
        self._raw = raw
        client = store._handle
        self._state = state = [owned]  # False: somebody else ends the pin

        def unpin() -> None:
            if state[0]:
                lib.nmc_store_unpin(client._owned, raw)  # a status would have nobody to go to

        self._lease: Any = client.lease(ffi.cast("uint8_t *", raw.data), unpin, self)

    @property
    def info(self) -> ViewInfo:
        """What the library says about it: addresses, extents, pages, owner."""
        return record(ViewInfo, self._raw)

    def __len__(self) -> int:
        return self.nbytes

    @property
    def pinned(self) -> bool:
        return self._lease is not None

    def __bytes__(self) -> bytes:
        if self._raw.n_extents > 1:
            return b"".join(bytes(piece.data) for piece in self.extents())
        return bytes(self.data)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return self.array().__array__(dtype, copy)

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array().__dlpack__(**arguments)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.array().__dlpack_device__()

    def metadata(self) -> bytes:
        """What its writer said about it."""
        self._open()
        buffer, size = ffi.new("char[]", _abi.MAX_METADATA), ffi.new("size_t *")
        check(lib.nmc_store_view_metadata(self._store._handle.raw, self._raw, buffer, _abi.MAX_METADATA, size))
        return bytes(ffi.unpack(buffer, size[0]))

    def verify(self) -> None:
        """Compares every page with its checksum, which a pin does not do."""
        self._open()
        check(lib.nmc_store_verify(self._store._handle.raw, self._raw))

    def ready_pages(self) -> int:
        """How many pages are ready by now."""
        self._open()
        out = ffi.new("uint32_t *")
        check(lib.nmc_store_ready_pages(self._store._handle.raw, self._raw, out))
        return int(out[0])

    def unpin(self) -> None:
        """Ends the pin, now or with the last array made of it. May be called again."""
        self._lease = None

    _drop = unpin  # when its store is closed

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: Any) -> None:
        self.unpin()


def _piece(store: "Store", lease: Any, extent: Any, readonly: bool) -> Array:
    pointer = ffi.gc(ffi.cast("uint8_t *", extent.ptr), functools.partial(_hold, lease))
    return Array(pointer, (int(extent.bytes),), "uint8", device=store._device_of(extent.ptr), readonly=readonly)


class WritePlan(_InPlace):
    """An object that is being written. Store the bytes into `data` (or where `info` says, with a kernel), then `commit`. As a context
    manager it commits, or aborts when the block raises. Nothing may write to its memory after that."""

    _noun, _over = "plan", "the plan was committed or aborted"
    _joined = "has {} pieces: use extents(), or open it with contiguous=True"
    _on_device = "array() or info.payload_device"
    _size, _list = "bytes_total", "nmc_store_plan_extents"
    _readonly = False

    def __init__(self, store: "Store", key: bytes, raw: Any) -> None:
        self._store = store
        self.key = key
        self._raw = raw
        self._done = done = [False]
        client = store._handle
        automatic = raw.payload_device == NULL  # kernels may still write for a plan that Python has forgotten

        def ended() -> None:
            if automatic and not done[0]:
                lib.nmc_store_abort(client._owned, raw)

        self._lease: Any = client.lease(ffi.cast("uint8_t *", raw.payload), ended, self)

    @property
    def info(self) -> PlanInfo:
        """What the library says about it: addresses, pages, rank, epoch, publish word."""
        return record(PlanInfo, self._raw)

    def _drop(self) -> None:
        """Its store is closed."""
        self._lease = None

    def write(self, data: Any, offset: int = 0) -> None:
        """Copies bytes into the plan, over the borders of its pieces; host memory only."""
        memory = readable(data)
        if memory.cuda:
            raise ValueError("the bytes are in device memory: use push_async")
        if offset < 0 or offset + memory.nbytes > self.nbytes:
            raise ValueError(f"{memory.nbytes} bytes at {offset} reach behind the {self.nbytes} of the plan")
        source = memoryview(ffi.buffer(memory.pointer, memory.nbytes))
        for piece in self.extents():
            if offset < piece.nbytes:
                part = source[: piece.nbytes - offset]
                piece.data[offset : offset + part.nbytes] = part
                source = source[part.nbytes :]
                offset = piece.nbytes
            offset -= piece.nbytes
        del memory

    def publish_pages(self, pages: int) -> None:
        """Tells readers that the first `pages` pages are stored."""
        check(lib.nmc_store_publish_pages(self._store._handle.raw, self._raw, pages))

    def commit(self) -> None:
        """Publishes the object. May be called again while the object lives."""
        check(lib.nmc_store_commit(self._store._handle.raw, self._raw))
        self._done[0] = True
        self._lease = None

    def commit_async(self, stream: Any) -> None:
        """Publishes it when the stream gets there; `commit` tells afterwards what became of it."""
        check(lib.nmc_store_commit_async(self._store._handle.raw, self._raw, stream_pointer(stream)))

    def abort(self) -> None:
        """Gives the plan up. Nothing writes for it any more. May be called again."""
        if not self._done[0]:
            self._done[0] = True
            self._lease = None
            check(lib.nmc_store_abort(self._store._handle.raw, self._raw))

    def __enter__(self) -> "WritePlan":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._done[0]:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()
