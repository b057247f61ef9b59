"""What calls raise: a class for each family of statuses, all of them NanomcError. `status` is the number from nanomc.h, `name` its
name, and `message` the library's sentence with the values. Where Python has an exception of its own for the case, it is a base too.
"""

from __future__ import annotations

from typing import Dict, Type

from . import _abi


class NanomcError(Exception):
    """A call of the library failed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    @property
    def name(self) -> str:
        """Such as "NMC_ERR_TIMEOUT"."""
        return _abi.STATUS_NAMES.get(self.status, "NMC_UNKNOWN_STATUS")

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


class InvalidArgument(NanomcError, ValueError):
    """An argument is out of range or contradicts another one, or a buffer is too small."""


class ClosedError(NanomcError, ValueError):
    """The object was closed, or was never open."""


class ForkedError(ClosedError):
    """This process was forked from the one that made the object. Fork before the first call, or exec in the child."""


class UnsupportedError(NanomcError, NotImplementedError):
    """This machine, driver, library or peer cannot do it; the message says what is missing."""


class NotFound(NanomcError, KeyError):
    """There is no such thing."""

    __str__ = NanomcError.__str__


class NotReadyError(NanomcError):
    """It is being written, or is on disk only: nothing is wrong, but it cannot be had this way yet."""


class AlreadyExists(NanomcError):
    """The key, rank, name or directory is taken."""


class StaleError(NanomcError):
    """The object was removed, evicted or given up in the meantime."""


class NoRoom(NanomcError):
    """There is no room, or a limit was reached."""


class BusyError(NoRoom):
    """Not possible right now, because something is in use; the call may be repeated."""


class OutOfMemory(NoRoom, MemoryError):
    """Memory could not be reserved."""


class DeadlineError(NanomcError, TimeoutError):
    """The deadline passed first."""


class MismatchError(NanomcError):
    """Ranks of one world disagree about a parameter; the message names both values."""


class UnavailableError(NanomcError, ConnectionError):
    """No master answers at the moment; the call may be repeated."""


class PeerLost(UnavailableError):
    """A rank that the call depends on has died."""


class Cancelled(NanomcError):
    """The call was ended from another thread."""


class CorruptError(NanomcError):
    """Bytes are not what was written, or a peer does not speak the protocol."""


class AccessError(NanomcError, PermissionError):
    """Owner or mode of a file, or the user of a peer, is not acceptable."""


class SystemFailure(NanomcError, OSError):
    """The operating system, the disk or CUDA failed; the message names the call and the reason."""


class InternalError(NanomcError):
    """A bug in the library was caught. Close the object that was involved."""


_CLASSES: Dict[int, Type[NanomcError]] = {
    _abi.NOT_READY: NotReadyError,
    _abi.IN_PROGRESS: NotReadyError,
    _abi.ERR_INVALID_ARG: InvalidArgument,
    _abi.ERR_BAD_HANDLE: ClosedError,
    _abi.ERR_FORKED: ForkedError,
    _abi.ERR_VERSION: UnsupportedError,
    _abi.ERR_UNSUPPORTED: UnsupportedError,
    _abi.ERR_NO_MEMORY: OutOfMemory,
    _abi.ERR_LIMIT: NoRoom,
    _abi.ERR_TIMEOUT: DeadlineError,
    _abi.ERR_MISMATCH: MismatchError,
    _abi.ERR_EXISTS: AlreadyExists,
    _abi.ERR_PERMISSION: AccessError,
    _abi.ERR_PROTOCOL: CorruptError,
    _abi.ERR_UNAVAILABLE: UnavailableError,
    _abi.ERR_PEER_LOST: PeerLost,
    _abi.ERR_CANCELLED: Cancelled,
    _abi.ERR_OS: SystemFailure,
    _abi.ERR_CUDA: SystemFailure,
    _abi.ERR_INTERNAL: InternalError,
    _abi.ERR_BUSY: BusyError,
    _abi.ERR_NOT_FOUND: NotFound,
    _abi.ERR_TOO_SMALL: InvalidArgument,
    _abi.ERR_CORRUPT: CorruptError,
    _abi.ERR_STALE: StaleError,
    _abi.ERR_NO_SPACE: NoRoom,
    _abi.ERR_IO: SystemFailure,
}


def error_of(status: int, message: str) -> NanomcError:
    """The exception for a status."""
    return _CLASSES.get(status, NanomcError)(status, message)
