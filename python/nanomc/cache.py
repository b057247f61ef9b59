"""NanoKVCache: tensors by key, in memory that the processes of a node share. Values never change after they were put; shape and type
travel with them as metadata of the object, as JSON: {"dtype": "bfloat16", "shape": [2, 4096]}. Other clients read the same objects
with `Store` or in C.

Tensors are torch's or numpy's: `get` returns torch tensors where torch is imported, else numpy arrays.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from . import _abi
from ._library import key_bytes
from .errors import InvalidArgument, NotFound, NotReadyError
from .memory import Array, dtype_of, is_torch, product, readable, type_bytes
from .store import Store, put_options
from .views import View
from .views import WritePlan as StorePlan
from .world import World


@dataclass(frozen=True)
class ObjMeta:
    """Where an object is. Pointers are addresses in this process; read there only while the object is pinned."""

    key_hash: int
    owner_rank: int
    header_ptr: int
    payload_ptr: int
    bytes_total: int
    page_bytes: int
    n_pages: int
    last_page_bytes: int
    epoch: int


@dataclass(frozen=True)
class WritePlan:
    """Where a producer stores the pages of an object: consecutive, the last one up to `last_page_bytes`. Pointers are addresses in
    this process: device pointers where the heap is on a GPU, or registered with one. A kernel publishes by storing `epoch` at
    `publish_ptr` after everything else (`nanomc.triton.kv_commit_ready`), a program with `NanoKVCache.commit`."""

    key_hash: int
    dst_rank: int
    header_ptr: int
    payload_ptr: int
    page_bytes: int
    n_pages: int
    last_page_bytes: int
    bytes_total: int
    epoch: int
    #: The word that says that the object is ready; a device pointer where there is a device.
    publish_ptr: int
    #: Where the payload is in the heap of `dst_rank`, the same in every process; 0 without a world.
    payload_offset: int


class NotReady:
    """What `get_location` returns for an object that is not there yet. Counts as false; `writing` says whether somebody is at it."""

    def __init__(self, writing: bool) -> None:
        self.writing = writing

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NotReady) and other.writing == self.writing

    def __hash__(self) -> int:
        return hash(self.writing)

    def __repr__(self) -> str:
        return f"NotReady(writing={self.writing})"


@functools.lru_cache(maxsize=4096)
def pack_metadata(dtype: str, shape: Tuple[int, ...]) -> bytes:
    """Type and shape as they travel with an object."""
    text = json.dumps({"dtype": dtype, "shape": list(shape)}, separators=(",", ":")).encode()
    if len(text) > _abi.MAX_METADATA:
        raise ValueError(f"a shape of {len(shape)} axes takes {len(text)} bytes of metadata, at most {_abi.MAX_METADATA} fit")
    return text


@functools.lru_cache(maxsize=4096)
def unpack_metadata(text: bytes, nbytes: int) -> Tuple[str, Tuple[int, ...]]:
    """The reverse; bytes of an object that says nothing, or something else, are uint8[nbytes]."""
    try:
        said = json.loads(text)
        dtype, shape = said["dtype"], tuple(int(length) for length in said["shape"])
        if min(shape, default=0) >= 0 and product(shape) * type_bytes(dtype) == nbytes:
            return dtype, shape
    except (ValueError, KeyError, TypeError):
        pass
    return "uint8", (nbytes,)


def _ranks(rank: Optional[int], world_size: Optional[int]) -> Tuple[int, int]:
    """Arguments, else torch.distributed, else the environment, else one process."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if world_size is None:
        world_size = distributed.get_world_size() if ready and distributed else int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None:
        rank = distributed.get_rank() if ready and distributed else int(os.environ.get("RANK", "0"))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: set RANK and WORLD_SIZE, or pass rank and world_size")
    return rank, world_size


def _name() -> str:
    """The same in all processes of one job, if its launcher says which job it is."""
    named = os.environ.get("NMC_WORLD")
    if named:
        return named
    job = os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("MASTER_PORT") or "cache"
    return "nanokv-" + "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in job)[:40]


class NanoKVCache:
    """A cache of tensors. With one rank it lives in this process; with several every rank calls this with the same arguments, and all
    ranks read what any of them has put. `heap_bytes` is what each rank gives, on its current CUDA device if torch has one, else in
    host memory.

    Beside the arguments of the design: `rank`, `world_size` (else from torch.distributed, else RANK and WORLD_SIZE), `name` of the
    world (else NMC_WORLD, or from the launcher's job id or port), `directory` in which its ranks meet, `device` (a CUDA device, -1
    for host memory; None to choose), and `join_timeout_ms`.
    """

    def __init__(self, heap_bytes: int, master_rank: int = 0, page_bytes: int = 256 * 1024, *, rank: Optional[int] = None,
                 world_size: Optional[int] = None, name: Optional[str] = None, directory: str = "", device: Optional[int] = None,
                 eviction: int = _abi.EVICT_FIFO, checksums: bool = False, join_timeout_ms: int = -1) -> None:
        self.rank, self.world_size = _ranks(rank, world_size)
        if not 0 <= master_rank < self.world_size:
            raise ValueError(f"master_rank {master_rank} is not one of {self.world_size} ranks")
        if device is None:
            torch = sys.modules.get("torch")
            device = torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else -1
        kind = _abi.HEAP_HOST if device < 0 else _abi.HEAP_CUDA
        self.world: Optional[World] = None
        if self.world_size == 1:
            self.store = Store(heap_bytes=heap_bytes, page_bytes=page_bytes, eviction=eviction, checksums=checksums,
                               heap_kind=kind, device=device)
        else:
            self.world = World.join(
                name or _name(), rank=self.rank, world_size=self.world_size, heap_bytes=heap_bytes, heap_kind=kind, device=device,
                directory=directory, join_timeout_ms=join_timeout_ms)
            self.store = Store(self.world, page_bytes=page_bytes, master_rank=master_rank, eviction=eviction,
                               checksums=checksums, attach_timeout_ms=join_timeout_ms)
        self._begin()

    @classmethod
    def over(cls, store: Store, world: Optional[World] = None) -> "NanoKVCache":
        """A cache over a store that exists, such as one that has only a part of its world's heap. Closing the cache leaves both open."""
        made = cls.__new__(cls)
        made.rank, made.world_size = (0, store.stats().n_ranks) if world is None else (world.rank, world.size)
        made.world, made.store = world, store
        made._begin()
        made._owner = False
        return made

    def _begin(self) -> None:
        self._owner = True
        self._plans: Dict[str, StorePlan] = {}
        self._options: Dict[Tuple[Any, Any, Optional[int]], Tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    # ---- objects

    def put(self, key: str, tensor: Any, *, preferred_segment: Optional[int] = None) -> None:
        """Stores a tensor of any type, on CPU or GPU, contiguous or not. AlreadyExists if the key is taken."""
        try:
            kind = (tensor.dtype, tensor.shape, preferred_segment)
        except AttributeError:
            raise TypeError(f"a {type(tensor).__name__} is no tensor and no array: a Store takes bytes") from None
        options = self._options.get(kind)
        if options is None:
            metadata = pack_metadata(dtype_of(tensor), tuple(tensor.shape))
            options = put_options(_segment(preferred_segment), contiguous=True, metadata=metadata)
            if len(self._options) < 4096:  # engines have few shapes
                self._options[kind] = options
        self.store._put_memory(key_bytes(key), readable(tensor), options[0])

    def get(self, key: str, *, dst: Any = None) -> Any:
        """A copy of the tensor, on the device that the cache is on; into `dst`, which is returned, if that is given."""
        if dst is not None:
            self.get_into(key, dst)
            return dst
        while True:
            nbytes = self._size(key)
            dtype, shape = unpack_metadata(self.store.metadata(key), nbytes)
            made = self._empty(dtype, shape)
            if self._read(key, made, nbytes):
                return made

    def get_into(self, key: str, dst: Any) -> None:
        """Copies the tensor into `dst`, which has its type and shape."""
        nbytes = self._size(key)
        dtype, shape = unpack_metadata(self.store.metadata(key), nbytes)
        raw = dtype == "uint8" and len(shape) == 1  # bytes without a type fit into anything of their size
        mine, its = dtype_of(dst), tuple(dst.shape)
        if not raw and (mine, its) != (dtype, shape):
            raise ValueError(f"{key!r} is {dtype}{list(shape)}, dst is {mine}{list(its)}")
        if raw and product(its) * type_bytes(mine) != nbytes:
            raise ValueError(f"{key!r} has {nbytes} bytes, dst {mine}{list(its)} has {product(its) * type_bytes(mine)}")
        dense = dst.is_contiguous() if is_torch(dst) else bool(dst.flags.c_contiguous)
        target = dst if dense else (dst.contiguous() if is_torch(dst) else dst.copy(order="C"))
        self.store.get_into(key, target)
        if not dense:
            if is_torch(dst):
                dst.copy_(target)
            else:
                dst[...] = target

    def remove(self, key: str) -> None:
        """Takes an object away; whoever has pinned it keeps it. NotFound if there is none."""
        self.store.remove(key)

    def touch(self, key: str) -> None:
        """Counts as an access, for eviction by use. A key that is not there is no error."""
        try:
            self.store.touch(key)
        except NotFound:
            pass

    def pin(self, key: str) -> "TensorView":
        """The tensor in place, without a copy: `with cache.pin(key) as view: view.tensor()`."""
        view = self.store.pin(key)
        return TensorView(view, *unpack_metadata(view.metadata(), view.nbytes))

    # ---- plans

    def open_for_write(self, key: str, bytes_total: int, *, preferred_segment: Optional[int] = None, dtype: Optional[str] = None,
                       shape: Optional[Sequence[int]] = None) -> WritePlan:
        """Opens an object for writing by a kernel or by the program. `dtype` and `shape` make it a tensor; else it is bytes."""
        metadata = None
        if dtype is not None:
            sizes = tuple(shape) if shape is not None else (bytes_total // type_bytes(dtype),)
            if product(sizes) * type_bytes(dtype) != bytes_total or min(sizes, default=0) < 0:
                raise ValueError(f"{dtype}{list(sizes)} takes {product(sizes) * type_bytes(dtype)} bytes, not {bytes_total}")
            metadata = pack_metadata(dtype, sizes)
        plan = self.store.open_for_write(
            key, bytes_total, preferred_segment=_segment(preferred_segment), contiguous=True, metadata=metadata)
        with self._lock:
            self._plans[key] = plan
        info = plan.info
        offset = 0
        if self.world is not None and info.payload:
            offset = self.world.locate(info.payload)[1]
        return WritePlan(
            key_hash=info.key_hash, dst_rank=info.dst_rank, header_ptr=info.header, payload_ptr=info.payload_device or info.payload,
            page_bytes=info.page_bytes, n_pages=info.n_pages, last_page_bytes=info.last_page_bytes,
            bytes_total=info.bytes_total, epoch=info.epoch, publish_ptr=info.publish_word_device or info.publish_word,
            payload_offset=offset)

    def payload(self, key: str) -> Array:
        """Where the bytes of an object go that this process has opened. Nothing may be written there after `commit`."""
        self.store._handle.require()
        with self._lock:
            plan = self._plans.get(key)
        if plan is None:
            raise NotFound(_abi.ERR_NOT_FOUND, f"no plan for {key!r} was opened here")
        return plan.array()

    def commit(self, key: str) -> None:
        """Publishes an object that this process has opened, or confirms that a kernel has. May be called again, also for an object
        that is ready already."""
        with self._lock:
            plan = self._plans.get(key)
        if plan is None:
            state = self.store.state(key)
            if state >= _abi.OBJECT_READY:
                return
            if state == _abi.OBJECT_WRITING:
                raise NotReadyError(_abi.NOT_READY, f"{key!r} is being written, and was not opened here")
            raise NotFound(_abi.ERR_NOT_FOUND, f"there is no object {key!r}, and no plan for one")
        plan.commit()
        with self._lock:
            if self._plans.get(key) is plan:
                del self._plans[key]

    def abort(self, key: str) -> None:
        """Gives up an object that this process has opened."""
        self.store._handle.require()
        with self._lock:
            plan = self._plans.pop(key, None)
        if plan is None:
            raise NotFound(_abi.ERR_NOT_FOUND, f"no plan for {key!r} was opened here")
        plan.abort()

    def get_location(self, key: str) -> Union[ObjMeta, NotReady]:
        """Where an object is, without pinning it; NotReady if it is being written or not there. Never blocks."""
        try:
            found = self.store.location(key)
        except NotFound:
            return NotReady(writing=False)
        if found is None:
            return NotReady(writing=self.store.state(key) == _abi.OBJECT_WRITING)
        return ObjMeta(
            key_hash=found.key_hash, owner_rank=found.owner_rank, header_ptr=found.header, payload_ptr=found.payload,
            bytes_total=found.bytes_total, page_bytes=found.page_bytes, n_pages=found.n_pages,
            last_page_bytes=found.last_page_bytes, epoch=found.epoch)

    # ---- numbers

    def stats(self) -> Dict[str, Any]:
        """Integers: of all ranks together, and under "ranks" of each."""
        of_rank = ("bytes_used", "bytes_total", "ready_count", "evict_count", "oom_count", "stuck_put_reclaimed", "evict_in_use_retry")
        all_ranks = self.store.stats()
        told: Dict[str, Any] = {name: getattr(all_ranks, name) for name in of_rank + ("t_plan_us", "bytes_tx", "bytes_rx")}
        told["ranks"] = [{name: getattr(rank, name) for name in of_rank} for rank in self.store.rank_stats()]
        return told

    def evict_until_below(self, usage_ratio: float) -> None:
        """Evicts objects until at most this part of every rank's heap is used, or nothing is left that may be evicted."""
        if not 0 <= usage_ratio <= 1:
            raise ValueError(f"usage_ratio {usage_ratio} is not between 0 and 1")
        for rank in range(self.world_size):
            self.store.evict_until_below(rank, int(usage_ratio * 1000))

    def heap_bases(self) -> int:
        """Address of the table of heap bases on the GPU, for kernels (`nanomc.triton`); 0 without a world or a device."""
        self.store._handle.require()
        return self.world.base_table().device if self.world is not None else 0

    def close(self) -> None:
        """Leaves the cache. May be called again."""
        with self._lock:
            plans, self._plans = list(self._plans.values()), {}
        del plans
        if self._owner:
            self.store.close()
            if self.world is not None:
                self.world.close()

    def __enter__(self) -> "NanoKVCache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- helpers

    def _size(self, key: str) -> int:
        size = self.store.size(key)
        if size is None:
            if self.store.state(key) == _abi.OBJECT_WRITING:
                raise NotReadyError(_abi.NOT_READY, f"{key!r} is being written")
            raise NotFound(_abi.ERR_NOT_FOUND, f"there is no object {key!r}")
        return size

    def _empty(self, dtype: str, shape: Tuple[int, ...]) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None:
            device = f"cuda:{torch.cuda.current_device()}" if self.store.on_device else "cpu"
            return torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        import numpy

        letter = {"bfloat16": "u2", "complex32": "u4"}.get(dtype, "u1" if dtype.startswith("float8") else dtype)
        return numpy.empty(shape, dtype=letter)

    def _read(self, key: str, made: Any, nbytes: int) -> bool:
        """False if another value of another size has taken its place meanwhile."""
        try:
            self.store.get_into(key, made)
            return True
        except InvalidArgument:
            if self._size(key) != nbytes:
                return False
            raise


class TensorView:
    """A pinned tensor. `tensor()`, `numpy()` and DLPack look at the shared memory itself; the pin ends with the `with` block, or with
    the last of them, whichever is later. It must not be written to."""

    def __init__(self, view: View, dtype: str, shape: Tuple[int, ...]) -> None:
        self._view = view
        self.dtype = dtype
        self.shape = shape

    def array(self) -> Array:
        return self._view.array(self.shape, self.dtype)

    def tensor(self) -> Any:
        """As a torch tensor, in place."""
        return self.array().torch()

    def numpy(self) -> Any:
        """As a read-only numpy array, in place; host memory only."""
        return self.array().numpy()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return self.array().__array__(dtype, copy)

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array().__dlpack__(**arguments)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.array().__dlpack_device__()

    def unpin(self) -> None:
        self._view.unpin()

    def __enter__(self) -> "TensorView":
        return self

    def __exit__(self, *_: Any) -> None:
        self.unpin()


def _segment(preferred: Optional[int]) -> int:
    return -1 if preferred is None else preferred
