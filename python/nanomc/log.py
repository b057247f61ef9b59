"""What the library says in the background, such as the death of a rank. Without a callback it writes nothing anywhere."""

from __future__ import annotations

import atexit
import logging
from typing import Any, Callable, List, Optional

from . import _abi
from ._library import NULL, check, ffi, lib, missing, text_of

_LEVELS = {_abi.LOG_ERROR: logging.ERROR, _abi.LOG_WARN: logging.WARNING, _abi.LOG_INFO: logging.INFO, _abi.LOG_DEBUG: logging.DEBUG}
_KEEP: List[Any] = []


def set_log_callback(callback: Optional[Callable[[int, str], None]], max_level: int = _abi.LOG_INFO) -> None:
    """Sends log lines up to `max_level` (LOG_*) to `callback(level, text)`, on whichever thread logs; None ends logging."""
    if callback is None:
        check(lib.nmc_log_set_callback(NULL, _abi.LOG_DEBUG, NULL))
        _KEEP.clear()
        return

    def tell(level: int, text: Any, _: Any) -> None:
        callback(level, text_of(text))

    # cffi prints what the callback raises and goes on.
    wrapped = ffi.callback("void(int32_t, const char *, void *)", tell)
    _KEEP.append(wrapped)  # before the library knows it, whatever comes between
    check(lib.nmc_log_set_callback(wrapped, max_level, NULL))
    _KEEP[:] = [wrapped]


def log_to(logger: Optional[logging.Logger] = None, max_level: int = _abi.LOG_INFO) -> None:
    """Sends log lines to a logger of Python, "nanomc" by default."""
    target = logger if logger is not None else logging.getLogger("nanomc")
    set_log_callback(lambda level, text: target.log(_LEVELS.get(level, logging.INFO), "%s", text), max_level)


@atexit.register
def _quiet() -> None:
    """Threads of the library must not call into an interpreter that ends."""
    if not missing and _KEEP:
        lib.nmc_log_set_callback(NULL, _abi.LOG_DEBUG, NULL)
