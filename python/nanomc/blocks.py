"""An allocator of block numbers without memory, for engines with their own sequences."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from . import _abi
from ._abi import BlockRun, BlocksStats
from ._library import Handle, check, expect, ffi, lib, record, struct, text_call


class Blocks:
    """The numbers 0 to `total_blocks` - 1. It knows which are in use, but not by whom or for what."""

    def __init__(self, total_blocks: int) -> None:
        out = ffi.new("nmc_blocks_t **")
        check(lib.nmc_blocks_create(struct("nmc_blocks_config_t", total_blocks=total_blocks), out))
        self._handle = Handle(out[0], "block allocator", lib.nmc_blocks_destroy)

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> "Blocks":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def allocate(self, count: int) -> BlockRun:
        """Takes a run of `count` blocks that follow each other; NoRoom if none is free."""
        out = ffi.new("nmc_block_run_t *")
        check(lib.nmc_blocks_allocate(self._handle.raw, count, out))
        return record(BlockRun, out)

    def free(self, run: BlockRun) -> None:
        """Gives back the blocks of a run, or of a part of one."""
        expect(BlockRun, run, "run")
        check(lib.nmc_blocks_free(self._handle.raw, (run.first, run.count)))

    def extend(self, run: BlockRun, more: int) -> BlockRun:
        """Makes a run longer by the `more` blocks behind it; NoRoom if they are not free."""
        expect(BlockRun, run, "run")
        raw = ffi.new("nmc_block_run_t *", (run.first, run.count))
        check(lib.nmc_blocks_extend(self._handle.raw, raw, more))
        return record(BlockRun, raw)

    def allocate_scattered(self, count: int) -> List[int]:
        """Takes any `count` free blocks, all or none."""
        out = ffi.new("int32_t[]", count or 1)
        check(lib.nmc_blocks_allocate_scattered(self._handle.raw, count, out))
        return list(out)[:count]

    def free_scattered(self, numbers: Sequence[int]) -> None:
        """Gives back blocks, in any order, however they were taken."""
        check(lib.nmc_blocks_free_scattered(self._handle.raw, ffi.new("int32_t[]", list(numbers) or 1), len(numbers)))

    def request(self, count: int) -> int:
        """Asks for a run when there is room; a ticket for `poll`. Requests are served strictly in their order."""
        out = ffi.new("uint64_t *")
        check(lib.nmc_blocks_request(self._handle.raw, count, out))
        return int(out[0])

    def poll(self, ticket: int) -> Optional[BlockRun]:
        """The run of a request, with which its ticket ends; None while it waits."""
        out = ffi.new("nmc_block_run_t *")
        status = lib.nmc_blocks_poll(self._handle.raw, ticket, out)
        if status == _abi.IN_PROGRESS:
            return None
        check(status)
        return record(BlockRun, out)

    def cancel(self, ticket: int) -> None:
        """Gives up a request."""
        check(lib.nmc_blocks_cancel(self._handle.raw, ticket))

    def resize(self, total_blocks: int) -> None:
        """Changes the number of blocks; those that go must be free."""
        check(lib.nmc_blocks_resize(self._handle.raw, total_blocks))

    def stats(self) -> BlocksStats:
        out = struct("nmc_blocks_stats_t")
        check(lib.nmc_blocks_stats(self._handle.raw, out))
        return record(BlocksStats, out)

    def dump(self) -> str:
        """Counts and a map of the blocks, for people."""
        return text_call(lambda buffer, size, needed: int(lib.nmc_blocks_dump(self._handle.raw, buffer, size, needed)))
