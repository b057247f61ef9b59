"""An SSD below a store: what memory evicts, disk keeps, and any process reads it by itself, with the methods of `Store`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple

from . import _abi
from ._abi import TierStats, TierVerified
from ._library import NULL, Handle, Key, check, failure, ffi, key_slices, lib, record, struct
from .memory import buffer_of
from .store import Store, _strict, _told, batch_failure


@dataclass(frozen=True)
class TierEntry:
    """A value on disk."""

    namespace: bytes
    key: bytes
    nbytes: int
    epoch: int
    bucket: int
    block: int


@dataclass(frozen=True)
class TierEvent:
    """Values to which the same happened at the same time: TIER_STORED or TIER_EVICTED."""

    what: int
    #: (namespace, key, bytes) of each.
    values: List[Tuple[bytes, bytes, int]]
    #: Values of earlier events that nobody took in time.
    lost: int


class Staged:
    """Values in memory that the library lends, for a while (`Tier.stage`). Use it with `with`: the end of the block gives the memory
    back, and raises StaleError if that was too late, so that what was read last may be other values."""

    def __init__(self, handle: Handle, loan: int, values: List[Optional[memoryview]], statuses: List[int]) -> None:
        self._handle = handle
        self._loan = loan
        #: The values, read-only and where they are; None for those that are not there.
        self.values = values
        #: What became of each.
        self.statuses = statuses

    def __len__(self) -> int:
        return len(self.statuses)

    def __getitem__(self, at: int) -> Optional[memoryview]:
        return self.values[at]

    def release(self) -> None:
        """Gives the memory back: no value is there any more. A view that was kept shows something else from now on."""
        loan, self._loan = self._loan, 0
        self.values = [None] * len(self.statuses)
        check(lib.nmc_tier_release(self._handle.raw, loan))

    def __enter__(self) -> "Staged":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        if self._loan:
            lib.nmc_tier_release(self._handle.raw, self._loan)


class _Call:
    """A callback of one call: what it raises is raised when the call has returned. Where the callback has a result, False ends
    the call."""

    def __init__(self, signature: str, function: Callable[..., Any]) -> None:
        self.raised: Optional[BaseException] = None

        def guarded(*arguments: Any) -> Optional[int]:
            try:
                going = self.raised is None and function(*arguments) is not False
            except BaseException as error:
                self.raised, going = error, False
            return None if signature.startswith("void(") else int(going)

        self.pointer = ffi.callback(signature, guarded)

    def end(self, status: int) -> None:
        if self.raised is not None:
            raise self.raised
        check(status)


def _bytes(piece: Any) -> bytes:
    return bytes(ffi.unpack(ffi.cast("char *", piece.ptr), piece.len)) if piece.len else b""


class Tier:
    """The tier of a store. In the process of the store's master it owns `directory`; elsewhere it is a handle to the tier that the
    store has, and `directory` may be left out. The other arguments are the fields of nmc_tier_config_t; `flags` are TIER_*."""

    def __init__(self, store: Store, directory: Optional[str] = None, *, max_objects: int = 0, capacity_bytes: int = 0,
                 bucket_bytes: int = 0, bucket_keys: int = 0, heartbeat_ms: int = 0, depth: int = 0, flags: int = 0,
                 eviction: int = _abi.EVICT_NONE, promote_after: int = 0, admit_reads: int = 0, admit_priority: int = 0,
                 backend: int = _abi.TIER_BACKEND_BUCKET, write_bytes_per_s: int = 0,
                 progress: Optional[Callable[[int, int], None]] = None) -> None:
        config = struct(
            "nmc_tier_config_t", max_objects=max_objects, capacity_bytes=capacity_bytes, bucket_bytes=bucket_bytes,
            bucket_keys=bucket_keys, heartbeat_ms=heartbeat_ms, depth=depth, flags=flags, eviction=eviction,
            promote_after=promote_after, admit_reads=admit_reads, admit_priority=admit_priority, backend=backend,
            write_bytes_per_s=write_bytes_per_s)
        text = os.fsencode(directory) if directory is not None else b""
        pointer = ffi.from_buffer(text)
        config.directory = (pointer, len(text))
        told: Optional[_Call] = None
        if progress is not None:
            given = progress
            told = _Call("void(void *, uint64_t, uint64_t)", lambda _, done, total: given(int(done), int(total)))
            config.progress = told.pointer
        out = ffi.new("nmc_tier_t **")
        status = lib.nmc_tier_open(store._handle.raw, config if directory is not None else NULL, out)
        check(status)
        self._handle = Handle(out[0], "tier", lib.nmc_tier_close, store)
        if told is not None and told.raised is not None:
            self.close()
            raise told.raised

    def close(self) -> None:
        """Ends the handle; that of the owner ends the tier, and what is in the directory is found when it is opened again."""
        self._handle.close()

    def __enter__(self) -> "Tier":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def sync(self) -> None:
        """What was removed or written before is safe from a power loss when this returns."""
        check(lib.nmc_tier_sync(self._handle.raw))

    def offload(self, keys: Optional[Sequence[Key]] = None) -> int:
        """Writes the values of `keys`, or all that are in memory, to disk now; how many."""
        out = ffi.new("uint64_t *")
        if keys is None:
            check(lib.nmc_tier_offload(self._handle.raw, NULL, 0, out))
        else:
            names, kept = key_slices(keys)
            check(lib.nmc_tier_offload(self._handle.raw, names, len(keys), out))
            del kept
        return int(out[0])

    def prefetch(self, keys: Sequence[Key], *, strict: bool = True) -> List[int]:
        """Brings values back into memory, all together. Returns the status of each."""
        names, kept = key_slices(keys)
        statuses = ffi.new("nmc_status_t[]", len(keys) or 1)
        status = lib.nmc_tier_prefetch(self._handle.raw, names, len(keys), statuses)
        del kept
        return _strict(_told(status, statuses, len(keys), False), strict)

    def stage(self, keys: Sequence[Key], *, ttl_ms: int = 0) -> Staged:
        """Reads values into memory of the library, from disk or memory, for `ttl_ms` (5 s) at most: no copy, no buffer of one's own."""
        names, kept = key_slices(keys)
        count = len(keys)
        values = ffi.new("nmc_slice_t[]", count or 1)
        statuses = ffi.new("nmc_status_t[]", count or 1)
        loan = ffi.new("uint64_t *")
        status = lib.nmc_tier_stage(self._handle.raw, names, count, ttl_ms, loan, values, statuses)
        del kept
        told = _told(status, statuses, count, False)
        if loan[0] == 0 and any(one < 0 and one != _abi.ERR_NOT_FOUND for one in told):
            raise batch_failure(told) or failure(status)
        views: List[Optional[memoryview]] = []
        for at in range(count):
            there = values[at].ptr != NULL
            views.append(buffer_of(self._handle.lease(values[at].ptr), values[at].len, True) if there else None)
        return Staged(self._handle, int(loan[0]), views, told)

    def evict(self, keep_bytes: int) -> int:
        """Takes values from the disk until its files take at most `keep_bytes`; how many."""
        out = ffi.new("uint64_t *")
        check(lib.nmc_tier_evict(self._handle.raw, keep_bytes, out))
        return int(out[0])

    def events(self) -> List[TierEvent]:
        """What happened to values on disk since the last call in this process; the owner needs TIER_EVENTS."""
        taken: List[TierEvent] = []

        def take(_: Any, event: Any) -> None:
            values = [(_bytes(event.namespace_names[at]), _bytes(event.keys[at]), int(event.bytes[at])) for at in range(event.n)]
            taken.append(TierEvent(int(event.what), values, int(event.lost)))

        call = _Call("int32_t(void *, const nmc_tier_event_t *)", take)
        call.end(lib.nmc_tier_events(self._handle.raw, call.pointer, NULL))
        return taken

    def pause(self) -> None:
        """Ends offloading until `resume`."""
        check(lib.nmc_tier_pause(self._handle.raw))

    def resume(self) -> None:
        check(lib.nmc_tier_resume(self._handle.raw))

    def stats(self) -> TierStats:
        out = struct("nmc_tier_stats_t")
        check(lib.nmc_tier_stats(self._handle.raw, out))
        return record(TierStats, out)

    def verify(self, progress: Optional[Callable[[int, int], Any]] = None) -> TierVerified:
        """Reads everything and compares checksums. `progress(done, total)` may return False to end it."""
        out = struct("nmc_tier_verified_t")
        if progress is None:
            check(lib.nmc_tier_verify(self._handle.raw, NULL, NULL, out))
        else:
            given = progress
            call = _Call("int32_t(void *, uint64_t, uint64_t)", lambda _, done, total: given(int(done), int(total)))
            call.end(lib.nmc_tier_verify(self._handle.raw, call.pointer, NULL, out))
        return record(TierVerified, out)

    def scan(self, callback: Optional[Callable[[TierEntry], Any]] = None) -> List[TierEntry]:
        """Every value on disk: as a list, or one after the other to `callback`, which may return False to end it."""
        found: List[TierEntry] = []
        take = found.append if callback is None else callback

        def one(_: Any, entry: Any) -> Any:
            return take(TierEntry(_bytes(entry.namespace_name), _bytes(entry.key), int(entry.bytes), int(entry.epoch),
                                  int(entry.bucket), int(entry.block)))

        call = _Call("int32_t(void *, const nmc_tier_entry_t *)", one)
        call.end(lib.nmc_tier_scan(self._handle.raw, call.pointer, NULL))
        return found

