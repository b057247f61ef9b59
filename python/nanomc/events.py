"""Completions of a store's client, between those who take them and asyncio, which waits for them on the event descriptor."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections import deque
from typing import Any, Deque, Dict, List, Tuple

from . import _abi
from ._abi import Completion
from ._library import _LOCKED, NULL, Handle, check, ffi, lib, record
from .world import _settle

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
        self.readers: Dict[asyncio.AbstractEventLoop, List[int]] = {}  # how many wait, and the descriptor
        self._lock = threading.RLock()
        _LOCKED.add(self)

    def raw(self) -> Any:
        """A handle of the client that is open; NULL if none is."""
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
        for loop, future in watch.waiters:
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
            entry = self.readers.get(loop)
            if entry is None:
                out = ffi.new("int32_t *")
                check(lib.nmc_store_event_fd(self.raw(), out))
                entry = self.readers[loop] = [0, int(out[0])]
                loop.add_reader(entry[1], self.readable, loop)
            entry[0] += by
            if entry[0] == 0:
                del self.readers[loop]
                loop.remove_reader(entry[1])

    def readable(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.raw() == NULL or self.take() > 0:
            return
        # Another loop was faster, or it is about events of a tier that nobody takes: do not spin.
        entry = self.readers.get(loop)
        if entry is not None:
            loop.remove_reader(entry[1])
            loop.call_later(0.005, self.resume, loop)

    def resume(self, loop: asyncio.AbstractEventLoop) -> None:
        entry = self.readers.get(loop)
        if entry is not None and self.raw() != NULL:
            loop.add_reader(entry[1], self.readable, loop)
