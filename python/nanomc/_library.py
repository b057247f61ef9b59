"""The loaded library and how it is called: `lib`, `ffi`, structs that start as their _INIT macros say, statuses that become
exceptions, and handles. cffi lets other Python threads run during every call.

A handle is destroyed when it is closed or collected, but never while Python objects still look at its memory: each of those holds
a lease, and the last lease ends the handle. Objects that can tell their user that they are over (views, plans, words) are holders:
they let go of their lease when the handle is closed. So nothing that Python can reach points to memory that is gone.
"""

from __future__ import annotations

import atexit
import collections
import itertools
import os
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _abi
from ._ffi import ffi as ffi
from .errors import ClosedError, NanomcError, error_of

Record = TypeVar("Record")
Key = Union[str, bytes]
NULL: Any = ffi.NULL


# ---- loading ----------------------------------------------------------------------------------------------------------


def candidates() -> List[Path]:
    """Where the library is looked for: $NMC_LIBRARY alone if it is set, else the wheel and then the source tree."""
    named = os.environ.get("NMC_LIBRARY")
    if named:
        return [Path(named)]
    here = Path(__file__).resolve().parent
    return [here / "libnanomc.so", here.parent.parent / "target" / "release" / "libnanomc.so"]


class _Missing:
    """Stands in for the library, so that `import nanomc` and the doctor work without it. Every use says what is wrong."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise ImportError(self._why)


def _load() -> Tuple[Any, Optional[Path], str]:
    tried = []
    for path in candidates():
        if not path.exists():
            tried.append(f"{path} is not there")
            continue
        try:
            found = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
        except OSError as error:
            tried.append(f"{path} cannot be loaded: {error}")
            continue
        version = found.nmc_abi_version()
        if version < _abi.ABI_VERSION:
            tried.append(f"{path} speaks version {version} of the ABI, this package needs {_abi.ABI_VERSION}")
            continue
        return found, path, ""
    why = "libnanomc.so: " + "; ".join(tried) + ". Set NMC_LIBRARY, install a wheel, or run `make lib` in the source tree."
    return _Missing(why), None, why


#: The library, the file it came from, and why there is none.
lib, path, missing = _load()


def library_path() -> Optional[str]:
    """The file of the loaded library; None if there is none."""
    return str(path) if path else None


def version() -> str:
    """Version of the loaded library, such as "0.1.0"."""
    return text_of(lib.nmc_version())


# ---- statuses -----------------------------------------------------------------------------------------------------------


def text_of(pointer: Any) -> str:
    raw: bytes = ffi.string(pointer)
    return raw.decode("utf-8", "replace")


def failure(status: int) -> NanomcError:
    """The exception for a status that a call on this thread has just returned."""
    message = "" if status > 0 else text_of(lib.nmc_last_error_message())
    return error_of(status, message)


def check(status: int) -> None:
    """Raises unless the call succeeded. Outcomes that are not errors count as failures here: calls that expect them look first."""
    if status:
        raise failure(status)


# ---- arguments ----------------------------------------------------------------------------------------------------------


def address_of(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def pointer_to(address: int, kind: str = "void *") -> Any:
    return ffi.cast(kind, address)


def expect(kind: type, value: Any, name: str) -> None:
    """Raises TypeError for an argument of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")


def key_bytes(key: Key) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    return bytes(memoryview(key))


def text_bytes(text: str, name: str) -> bytes:
    """A name as the library takes it."""
    expect(str, text, name)
    return text.encode()


def slice_of(data: bytes) -> Tuple[Any, int]:
    """An nmc_slice_t for a call. The caller keeps `data`."""
    return ffi.from_buffer(data), len(data)


def flat(function: str, signature: str) -> Any:
    """A function whose nmc_slice_t is given as two arguments, a pointer and a length: x86-64 and AArch64, and the library runs on no
    other machine, pass both the same way while registers last, which they do for the functions that are called so. cffi then takes
    bytes as they are, which saves 0.4 µs."""
    if missing:
        return lambda *_: getattr(lib, function)  # raises
    return ffi.cast(signature, getattr(lib, function))


def key_slices(keys: Sequence[Key]) -> Tuple[Any, Any]:
    """An array of nmc_slice_t, and what must be kept while it is used. All keys lie in one piece of memory: for many of them
    that is faster than one pointer conversion each."""
    parts = [key.encode() if isinstance(key, str) else key_bytes(key) for key in keys]
    whole = b"".join(parts)
    base = ffi.from_buffer(whole)
    slices = ffi.new("nmc_slice_t[]", len(parts) or 1)
    at = address_of(base)
    words = ffi.cast("uint64_t *", slices)
    flat: List[int] = []
    for part in parts:
        size = len(part)
        flat.append(at)
        flat.append(size)
        at += size
    words[0 : len(flat)] = flat
    return slices, (base, whole)


def struct(kind: str, /, **fields: Any) -> Any:
    """A struct as its _INIT macro makes it, with some fields set."""
    made = ffi.new(kind + " *")
    sized = _abi.SIZED.get(kind)
    if sized is not None:
        made.struct_size = ffi.sizeof(kind)
        if sized:
            made.abi_version = _abi.ABI_VERSION
    for name, value in _abi.DEFAULTS.get(kind, {}).items():
        if "." in name:  # the descriptor of an nmc_memory_t, the second field of it
            getattr(made, name.split(".")[0]).fd = value
        else:
            setattr(made, name, value)
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    return made


def record(kind: Type[Record], source: Any) -> Record:
    """What a call stored, as a dataclass; addresses become numbers."""
    pointers = _abi.POINTERS.get(kind.__name__, ())
    values = []
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(source, "from" if name == "from_" else name)
        values.append(address_of(value) if name in pointers else value)
    return kind(*values)


def text_call(call: Callable[[Any, int, Any], int]) -> str:
    """Text from a function that takes a buffer, its capacity, and where to store the size that is needed."""
    needed = ffi.new("size_t *")
    capacity = 4096
    while True:
        buffer = ffi.new("char[]", capacity)
        status = call(buffer, capacity, needed)
        if status != _abi.ERR_TOO_SMALL:
            check(status)
            return text_of(buffer)
        capacity = max(needed[0], capacity + 1) + 256


# ---- handles ------------------------------------------------------------------------------------------------------------

_LIVE: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_NUMBERS = itertools.count(1)
_FORKS = [0]  # how many forks this process is away from the first one


_LOCKED: "weakref.WeakSet[Any]" = weakref.WeakSet()  # what has a `_lock`
_LATE: "Deque[Tuple[Callable[[Any], int], Any, Any]]" = collections.deque()  # handles that were collected inside a callback


def _forked() -> None:
    """In a child: threads that held locks are not here to let go of them."""
    _FORKS[0] += 1
    for locked in list(_LOCKED):
        locked._lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def _end_late() -> None:
    """Ends the handles that could not end when they were collected. How to end one, the handle, and what it needs until then."""
    for _ in range(len(_LATE)):
        try:
            late = _LATE.popleft()
        except IndexError:  # another thread was faster
            return
        if late[0](late[1]) == _abi.ERR_BUSY:
            _LATE.append(late)


class Handle:
    """Owns a C handle. `raw` is what calls get: NULL when it is closed, which the library answers with an error."""

    __slots__ = ("raw", "kind", "number", "_destroy", "_owned", "_closed", "_leases", "_lock", "_parents", "_forks",
                 "__weakref__")

    def __init__(self, raw: Any, kind: str, destroy: Callable[[Any], int], *parents: Any) -> None:
        self.raw = raw
        self.kind = kind
        self.number = next(_NUMBERS)
        self._owned = raw
        self._destroy = destroy
        self._closed = False
        self._leases: "Dict[int, Optional[weakref.ref[Any]]]" = {}
        self._lock = threading.RLock()
        self._parents = parents
        self._forks = _FORKS[0]
        _LIVE.add(self)
        _LOCKED.add(self)
        _end_late()

    @property
    def closed(self) -> bool:
        return self._closed

    def require(self) -> None:
        """Raises if the handle is closed, or belongs to the parent of this process."""
        if self._closed:
            raise ClosedError(_abi.ERR_BAD_HANDLE, f"the {self.kind} is closed")
        if self._forks != _FORKS[0]:
            raise error_of(_abi.ERR_FORKED, f"the {self.kind} was made before this process was forked")

    def close(self) -> None:
        """Calls fail from now on. The C handle ends now, or with the last lease."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.raw = NULL
            holders = [holder() for holder in self._leases.values() if holder is not None]
        for held in holders:
            if held is not None:
                held._drop()
        del holders
        with self._lock:
            if self._leases:
                return
        if self._end() == _abi.ERR_BUSY:  # not inside a callback: what was made with the handle has ended, itself it can be closed later
            with self._lock:
                self._closed = False
                self.raw = self._owned
            raise failure(_abi.ERR_BUSY)

    def lease(self, pointer: Any, ended: Optional[Callable[[], None]] = None, holder: Any = None) -> Any:
        """`pointer` as an object that keeps the handle until it is collected; then `ended` is called. A holder has a method `_drop`."""
        with self._lock:
            self.require()
            number = next(_NUMBERS)
            self._leases[number] = None if holder is None else weakref.ref(holder)

        def end(_: Any) -> None:
            if ended is not None:
                ended()
            with self._lock:
                self._leases.pop(number, None)
                last = self._closed and not self._leases
            if last:
                self._end_or_later()

        return ffi.gc(pointer, end)

    def _end(self) -> int:
        with self._lock:
            owned, self._owned = self._owned, NULL
        if owned == NULL:
            return _abi.OK
        status = int(self._destroy(owned))
        if status == _abi.ERR_BUSY:
            self._owned = owned
        return status

    def _end_or_later(self) -> None:
        """For who is not asked again: inside a callback the library ends no handle."""
        if self._end() == _abi.ERR_BUSY:
            owned, self._owned = self._owned, NULL
            _LATE.append((self._destroy, owned, self._parents))

    def __del__(self) -> None:
        try:
            self.raw = NULL
            self._end_or_later()
        except Exception:  # while the interpreter ends, what this needs may be gone
            pass


@atexit.register
def _close_all() -> None:
    """A program that ends leaves its worlds in order. What somebody still looks at stays until the process is gone."""
    for handle in sorted(list(_LIVE), key=lambda live: -live.number):
        handle.close()
    _end_late()
