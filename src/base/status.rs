//! The one table of status codes. Numbers are part of the ABI: they are never changed and never reused.
//! The C header is generated from this file.

#![allow(non_camel_case_types, reason = "the names are the C names")]

/// Result of a call: 0 is success, negative numbers are errors, positive numbers are outcomes that are not errors.
pub type nmc_status_t = i32;

/// The call succeeded.
pub const NMC_OK: i32 = 0;
/// Nothing is wrong, but what was asked for is not there yet.
pub const NMC_NOT_READY: i32 = 1;
/// The operation was started and has not finished.
pub const NMC_IN_PROGRESS: i32 = 2;

/// An argument is out of range, NULL where a value is needed, or contradicts another one.
pub const NMC_ERR_INVALID_ARG: i32 = -1;
/// The handle is NULL, stale, of another kind, already destroyed, or not a handle at all.
pub const NMC_ERR_BAD_HANDLE: i32 = -2;
/// The handle belongs to the parent of this forked process. Only `destroy` is allowed here, and does nothing.
pub const NMC_ERR_FORKED: i32 = -3;
/// A struct, a shared region or a peer speaks a version of the ABI or layout that this library does not.
pub const NMC_ERR_VERSION: i32 = -4;
/// This machine, driver or build cannot do it; the message says what is missing.
pub const NMC_ERR_UNSUPPORTED: i32 = -5;
/// Memory could not be reserved.
pub const NMC_ERR_NO_MEMORY: i32 = -6;
/// A limit was reached: file descriptors, sizes of files, handles, nesting, table entries.
pub const NMC_ERR_LIMIT: i32 = -7;
/// The deadline passed first.
pub const NMC_ERR_TIMEOUT: i32 = -8;
/// Ranks of one world disagree about a parameter; the message names both values.
pub const NMC_ERR_MISMATCH: i32 = -9;
/// The rank, name or key is already taken.
pub const NMC_ERR_EXISTS: i32 = -10;
/// Owner or mode of a file, or the user id of a peer, is not acceptable.
pub const NMC_ERR_PERMISSION: i32 = -11;
/// A peer sent something that is not part of the protocol.
pub const NMC_ERR_PROTOCOL: i32 = -12;
/// No master answers at the moment; the call may be repeated.
pub const NMC_ERR_UNAVAILABLE: i32 = -13;
/// A rank that this call depends on has died.
pub const NMC_ERR_PEER_LOST: i32 = -14;
/// The call was ended by `finalize`, `destroy` or `abort` in another thread.
pub const NMC_ERR_CANCELLED: i32 = -15;
/// An operating-system call failed; the message names it and the reason.
pub const NMC_ERR_OS: i32 = -16;
/// A CUDA driver call failed; the message names it and the reason.
pub const NMC_ERR_CUDA: i32 = -17;
/// A bug in the library was caught at the boundary. The handle involved should be destroyed.
pub const NMC_ERR_INTERNAL: i32 = -18;
/// Not possible right now because something is in use; the call may be repeated.
pub const NMC_ERR_BUSY: i32 = -19;
/// There is no such thing.
pub const NMC_ERR_NOT_FOUND: i32 = -20;
/// The caller's buffer is too small; the size that is needed was stored.
pub const NMC_ERR_TOO_SMALL: i32 = -21;
/// Bytes in shared memory are not what was written.
pub const NMC_ERR_CORRUPT: i32 = -22;
/// The object was removed, evicted or given up in the meantime.
pub const NMC_ERR_STALE: i32 = -23;
/// There is no room: the value is larger than the heap, or a quota is used up.
pub const NMC_ERR_NO_SPACE: i32 = -24;
/// The disk below the store failed, or refuses to be written; the message names the file and the reason.
pub const NMC_ERR_IO: i32 = -25;

/// Every status with its C name, in the order of the header.
pub(crate) const TABLE: &[(nmc_status_t, &core::ffi::CStr)] = &[
    (NMC_OK, c"NMC_OK"),
    (NMC_NOT_READY, c"NMC_NOT_READY"),
    (NMC_IN_PROGRESS, c"NMC_IN_PROGRESS"),
    (NMC_ERR_INVALID_ARG, c"NMC_ERR_INVALID_ARG"),
    (NMC_ERR_BAD_HANDLE, c"NMC_ERR_BAD_HANDLE"),
    (NMC_ERR_FORKED, c"NMC_ERR_FORKED"),
    (NMC_ERR_VERSION, c"NMC_ERR_VERSION"),
    (NMC_ERR_UNSUPPORTED, c"NMC_ERR_UNSUPPORTED"),
    (NMC_ERR_NO_MEMORY, c"NMC_ERR_NO_MEMORY"),
    (NMC_ERR_LIMIT, c"NMC_ERR_LIMIT"),
    (NMC_ERR_TIMEOUT, c"NMC_ERR_TIMEOUT"),
    (NMC_ERR_MISMATCH, c"NMC_ERR_MISMATCH"),
    (NMC_ERR_EXISTS, c"NMC_ERR_EXISTS"),
    (NMC_ERR_PERMISSION, c"NMC_ERR_PERMISSION"),
    (NMC_ERR_PROTOCOL, c"NMC_ERR_PROTOCOL"),
    (NMC_ERR_UNAVAILABLE, c"NMC_ERR_UNAVAILABLE"),
    (NMC_ERR_PEER_LOST, c"NMC_ERR_PEER_LOST"),
    (NMC_ERR_CANCELLED, c"NMC_ERR_CANCELLED"),
    (NMC_ERR_OS, c"NMC_ERR_OS"),
    (NMC_ERR_CUDA, c"NMC_ERR_CUDA"),
    (NMC_ERR_INTERNAL, c"NMC_ERR_INTERNAL"),
    (NMC_ERR_BUSY, c"NMC_ERR_BUSY"),
    (NMC_ERR_NOT_FOUND, c"NMC_ERR_NOT_FOUND"),
    (NMC_ERR_TOO_SMALL, c"NMC_ERR_TOO_SMALL"),
    (NMC_ERR_CORRUPT, c"NMC_ERR_CORRUPT"),
    (NMC_ERR_STALE, c"NMC_ERR_STALE"),
    (NMC_ERR_NO_SPACE, c"NMC_ERR_NO_SPACE"),
    (NMC_ERR_IO, c"NMC_ERR_IO"),
];

/// Whether a number is a status.
#[must_use]
pub fn is_known(status: nmc_status_t) -> bool {
    TABLE.iter().any(|(known, _)| *known == status)
}

/// The C name of a status, or `NMC_UNKNOWN_STATUS`.
#[must_use]
pub fn name(status: nmc_status_t) -> &'static core::ffi::CStr {
    TABLE.iter().find(|(s, _)| *s == status).map_or(c"NMC_UNKNOWN_STATUS", |(_, n)| n)
}
