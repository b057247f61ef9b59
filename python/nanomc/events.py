"""Completions of a store's client, between those who take them and asyncio, which waits for them on the event descriptor."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from collections import deque
from typing import Any, Deque, Dict, List, Tuple

from . import _abi
from ._abi import Completion
from ._library import _LOCKED, NULL, Handle, check, ffi, lib, record
from .world import Reader, _settle

OURS = 1 << 63  # tokens from here on are those of asyncio's watches


class Watch:
    """A key that asyncio waits for, and who does. A wait that gives up leaves the watch to the next one for the same key."""

    def __init__(self, key: Tuple[int, bytes, bool]) -> None:
        self.key = key
        self.waiters: List[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[int]"]] = []


class Events:
    """Completions of one client, which its namespaces share: those of asyncio's watches go to their futures, all others wait for
    `Store.completions`."""

    def __init__(self) -> None:
        self.handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()
        self.numbers = itertools.count(OURS)
        self.watches: Dict[int, Watch] = {}
        self.tokens: Dict[Tuple[int, bytes, bool], int] = {}
        self.users: Deque[Completion] = deque()
        self.readers: Dict[asyncio.AbstractEventLoop, Reader] = {}
        self._lock = threading.RLock()
        _LOCKED.add(self)

    def raw(self) -> Any:
        """A handle of the client that is open; NULL if none is."""
        with self._lock:
            return next((handle.raw for handle in list(self.handles) if not handle.closed), NULL)

    def take(self) -> int:
        """Takes what is queued; how many."""
        out, n = ffi.new("nmc_completion_t[256]"), ffi.new("size_t *")
        total = 0
        while True:
            check(lib.nmc_store_completions(self.raw(), out, 256, n))
            for at in range(n[0]):
                done = record(Completion, out[at])
                if done.lost:  # somebody's news are gone: everybody looks again
                    self.tell_all(_abi.NOT_READY)
                if done.token < OURS:
                    self.users.append(done)
                else:
                    self.tell(done.token, done.status)
            total += int(n[0])
            if n[0] < 256:
                return total

    def tell(self, token: int, status: int) -> None:
        with self._lock:
            watch = self.watches.pop(token, None)
            if watch is None:
                return
            self.tokens.pop(watch.key, None)
            waiters = list(watch.waiters)  # whoever gives up takes itself out of the other one
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_settle, future, status)
            except RuntimeError:  # the loop is closed, and nobody waits in it
                pass

    def tell_all(self, status: int) -> None:
        for token in list(self.watches):
            self.tell(token, status)

    def listen(self, loop: asyncio.AbstractEventLoop, by: int) -> None:
        """Counts who waits in a loop; the first adds the descriptor to it, the last takes it away."""
        with self._lock:
            reader = self.readers.get(loop)
            if reader is None:
                out = ffi.new("int32_t *")
                check(lib.nmc_store_event_fd(self.raw(), out))
                reader = self.readers[loop] = Reader(os.dup(out[0]))
                loop.add_reader(reader.descriptor, self.readable, loop)
            reader.calls += by
            if reader.calls == 0:
                del self.readers[loop]
                reader.end(loop)

    def readable(self, loop: asyncio.AbstractEventLoop) -> None:
        is_open = self.raw() != NULL
        if is_open and self.take() > 0:
            return
        # Another loop was faster, it is about events of a tier that nobody takes, or the store is closed: do not spin.
        reader = self.readers.get(loop)
        if reader is not None:
            reader.end(loop)
            if is_open:
                loop.call_later(0.005, self.resume, loop)

    def resume(self, loop: asyncio.AbstractEventLoop) -> None:
        reader = self.readers.get(loop)
        if reader is not None and self.raw() != NULL:
            loop.add_reader(reader.descriptor, self.readable, loop)
