"""`python -m nanomc doctor`: what is here, what is missing for which feature, and whether the library works in this process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from typing import Callable, List, Tuple

from . import _abi, _library

GOOD, BAD, NOTE = "ok", "MISSING", "note"


def _library_line() -> Tuple[str, str]:
    if _library.missing:
        return BAD, _library.missing
    lib = _library.lib
    return GOOD, (f"{_library.version()} from {_library.path}, ABI {lib.nmc_abi_version()} (this package: {_abi.ABI_VERSION}), "
                  f"layout {lib.nmc_layout_version()}")


def _store_line() -> Tuple[str, str]:
    from .store import Store

    with Store(heap_bytes=1 << 20, page_bytes=4096) as store:
        store.put("doctor", b"x" * 10_000)
        with store.pin("doctor") as view:
            right = bytes(view) == store.get("doctor")
    return (GOOD, "put, get and pin in one process") if right else (BAD, "a get returned other bytes than were put")


def _world_line() -> Tuple[str, str]:
    from .world import World

    with tempfile.TemporaryDirectory(prefix="nmc-doctor-") as folder:
        with World.join("doctor", world_size=1, rank=0, heap_bytes=1 << 20, directory=folder, join_timeout_ms=10_000) as world:
            world.selftest(1, 10_000)
    return GOOD, "processes can meet and share memory"


def _optional(name: str, use: str) -> Tuple[str, str]:
    """Not imported: that takes seconds for some."""
    if importlib.util.find_spec(name) is None:
        return NOTE, f"not installed; {use}"
    try:
        return GOOD, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return GOOD, "of unknown version"


def _cuda_line() -> Tuple[str, str]:
    from .errors import NanomcError
    from .store import Store

    try:
        with Store(heap_bytes=4 << 20, heap_kind=_abi.HEAP_CUDA) as store:
            store.put("doctor", b"x")
            return GOOD, "heaps can lie on the GPU"
    except NanomcError as error:
        return NOTE, f"heaps are in host memory: {error.message}"


def main() -> int:
    """Prints a line for each; 1 if something that everything needs is missing."""
    lines: List[Tuple[str, Callable[[], Tuple[str, str]]]] = [
        ("python", lambda: (GOOD, f"{platform.python_version()}, {platform.machine()}, {sys.executable}")),
        ("cffi", lambda: _optional("cffi", "nothing works without its backend")),
        ("library", _library_line),
    ]
    if not _library.missing:
        lines += [("store", _store_line), ("world", _world_line), ("cuda", _cuda_line)]
    lines += [
        ("numpy", lambda: _optional("numpy", "arrays come as memoryviews")),
        ("torch", lambda: _optional("torch", "NanoKVCache returns numpy arrays")),
        ("triton", lambda: _optional("triton", "nanomc.triton cannot be imported")),
    ]
    if "NMC_LIBRARY" in os.environ:
        lines.insert(2, ("NMC_LIBRARY", lambda: (NOTE, os.environ["NMC_LIBRARY"])))
    failed = 0
    for name, look in lines:
        try:
            state, text = look()
        except Exception as error:  # the doctor goes on
            state, text = BAD, f"{type(error).__name__}: {error}"
        failed |= state == BAD
        print(f"{name:12} {state:8} {text}")
    print("everything that is needed is here" if not failed else "something that everything needs is missing: see above")
    return failed
