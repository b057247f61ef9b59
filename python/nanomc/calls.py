"""What a client has submitted for asyncio: the event descriptor tells when something is to be done for it, and what it came to goes to
the futures that wait. No thread is involved."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import Any, Callable, Dict, Tuple

from . import _abi
from ._library import _LOCKED, Handle, check, failure, ffi, lib
from .world import Reader, _settle

Outcome = Tuple[int, int]  # status and bytes


class Calls:
    """Calls of one client that are under way. Whatever they read or write is kept until they have ended, also if nobody waits any more."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.numbers = itertools.count(1)
        self.waiting: Dict[int, Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Outcome]", Any]] = {}
        self.readers: Dict[asyncio.AbstractEventLoop, Reader] = {}
        self._lock = threading.RLock()
        _LOCKED.add(self)

    async def run(self, submit: Callable[[int], int], keep: Any) -> Outcome:
        """Submits a call under a token and waits for it. If too many are under way it waits for that first."""
        loop = asyncio.get_running_loop()
        pause = 0.0005
        while True:
            future: "asyncio.Future[Outcome]" = loop.create_future()
            with self._lock:
                token = next(self.numbers)
                self.listen(loop, 1)
                self.waiting[token] = (loop, future, keep)
            status = submit(token)
            if status == 0:
                break
            why = failure(status)
            self.forget(token)
            if status != _abi.ERR_BUSY:
                raise why
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.008)
        self.take()
        try:
            return await future
        except asyncio.CancelledError:
            if not self.handle.closed:
                lib.nmc_client_cancel(self.handle.raw, token)
                self.take()
            raise

    def take(self) -> None:
        """Does what there is to do, and tells those who wait what their calls came to."""
        out, n = ffi.new("nmc_client_completion_t[64]"), ffi.new("size_t *")
        while True:
            check(lib.nmc_client_completions(self.handle.raw, out, 64, 0, n))
            for at in range(n[0]):
                self.tell(int(out[at].token), (int(out[at].status), int(out[at].bytes)))
            if n[0] < 64:
                return

    def tell(self, token: int, outcome: Outcome) -> None:
        told = self.forget(token)
        if told is None:
            return
        loop, future, _ = told
        try:
            loop.call_soon_threadsafe(_settle, future, outcome)
        except RuntimeError:  # the loop is closed, and nobody waits in it
            pass

    def forget(self, token: int) -> Any:
        with self._lock:
            told = self.waiting.pop(token, None)
            if told is not None:
                self.listen(told[0], -1)
            return told

    def listen(self, loop: asyncio.AbstractEventLoop, by: int) -> None:
        """Counts what is under way for a loop; the first adds the descriptor to it, the last takes it away."""
        reader = self.readers.get(loop)
        if reader is None:
            if by < 0:
                return
            out = ffi.new("int32_t *")
            check(lib.nmc_client_event_fd(self.handle.raw, out))
            reader = Reader(os.dup(int(out[0])))
            loop.add_reader(reader.descriptor, self.readable)
            self.readers[loop] = reader
        reader.calls += by
        if reader.calls == 0:
            del self.readers[loop]
            self._unread(loop, reader)

    @staticmethod
    def _unread(loop: asyncio.AbstractEventLoop, reader: Reader) -> None:
        try:
            if asyncio._get_running_loop() is loop:
                reader.end(loop)
            else:
                loop.call_soon_threadsafe(reader.end, loop)
        except RuntimeError:  # the loop is closed
            pass

    def readable(self) -> None:
        if not self.handle.closed:
            self.take()

    def close(self, end: Callable[[], None]) -> None:
        """Closes the client by `end`. Whoever waits is told so, and loops forget their descriptors."""
        end()
        with self._lock:
            readers, self.readers = self.readers, {}
            for loop, reader in readers.items():
                self._unread(loop, reader)
        for token in list(self.waiting):
            self.tell(token, (_abi.ERR_CANCELLED, 0))
