/*
 * nanomc: memory that LLM serving processes share, and what moves through it.
 *
 * Rules that hold for every function, unless it says otherwise:
 *  - It returns a status: 0 is success, negative an error, positive an outcome that is no error. After an error
 *    nmc_last_error_message() of the same thread says what was wrong, with the values. Out parameters are written
 *    only on success, except where stated.
 *  - It may be called from any thread. Handles are checked: NULL, a destroyed handle, a handle of another kind or
 *    any other pointer gives NMC_ERR_BAD_HANDLE, also while another thread destroys it.
 *  - Nothing is thrown, aborted, or written to stdout or stderr.
 *  - A process that has made a handle and forks: every call in the child returns NMC_ERR_FORKED, destroy does
 *    nothing. Fork before the first call, or exec in the child.
 *  - Memory that the caller passes stays the caller's and is not kept after the call, except where stated.
 *  - Config structs start from their _INIT macro. A program compiled against an older or newer header keeps working.
 *  - The library never changes the calling thread's current CUDA context. "Graph-safe" means legal while a stream is
 *    being captured. Streams are cudaStream_t or CUstream, passed as void*.
 *
 * Generated from the Rust sources by cbindgen; do not edit.
 */

#ifndef NANOMC_H
#define NANOMC_H

#include <stddef.h>
#include <stdint.h>
#include "nanomc/layout.h"

/* Version of this header, from Cargo.toml. */
#define NMC_VERSION_MAJOR 0
#define NMC_VERSION_MINOR 1
#define NMC_VERSION_PATCH 0
#define NMC_VERSION_STRING "0.1.0"
/* Initialisers: start from these, so that fields added later have their defaults. */
#define NMC_WORLD_CONFIG_INIT \
  { \
    (uint32_t)sizeof(nmc_world_config_t), NMC_ABI_VERSION, {NULL, 0}, {NULL, 0}, -1, 1, 0, NMC_HEAP_HOST, 0, \
    {NMC_IMPORT_NONE, -1, NULL}, -1, -1, -1, NMC_MASTER_RANK0, -1, -1, -1, {0, 0, 0, 0} \
  }
#define NMC_WORLD_INFO_INIT {(uint32_t)sizeof(nmc_world_info_t), 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define NMC_RANK_INFO_INIT {(uint32_t)sizeof(nmc_rank_info_t), 0, 0, 0, -1, NULL, 0, 0}

/**
 * The call succeeded.
 */
#define NMC_OK 0

/**
 * Nothing is wrong, but what was asked for is not there yet.
 */
#define NMC_NOT_READY 1

/**
 * The operation was started and has not finished.
 */
#define NMC_IN_PROGRESS 2

/**
 * An argument is out of range, NULL where a value is needed, or contradicts another one.
 */
#define NMC_ERR_INVALID_ARG -1

/**
 * The handle is NULL, stale, of another kind, already destroyed, or not a handle at all.
 */
#define NMC_ERR_BAD_HANDLE -2

/**
 * The handle belongs to the parent of this forked process. Only `destroy` is allowed here, and does nothing.
 */
#define NMC_ERR_FORKED -3

/**
 * A struct, a shared region or a peer speaks a version of the ABI or layout that this library does not.
 */
#define NMC_ERR_VERSION -4

/**
 * This machine, driver or build cannot do it; the message says what is missing.
 */
#define NMC_ERR_UNSUPPORTED -5

/**
 * Memory could not be reserved.
 */
#define NMC_ERR_NO_MEMORY -6

/**
 * A limit was reached: file descriptors, handles, nesting, table entries.
 */
#define NMC_ERR_LIMIT -7

/**
 * The deadline passed first.
 */
#define NMC_ERR_TIMEOUT -8

/**
 * Ranks of one world disagree about a parameter; the message names both values.
 */
#define NMC_ERR_MISMATCH -9

/**
 * The rank, name or key is already taken.
 */
#define NMC_ERR_EXISTS -10

/**
 * Owner or mode of a file, or the user id of a peer, is not acceptable.
 */
#define NMC_ERR_PERMISSION -11

/**
 * A peer sent something that is not part of the protocol.
 */
#define NMC_ERR_PROTOCOL -12

/**
 * No master answers at the moment; the call may be repeated.
 */
#define NMC_ERR_UNAVAILABLE -13

/**
 * A rank that this call depends on has died.
 */
#define NMC_ERR_PEER_LOST -14

/**
 * The call was ended by `finalize`, `destroy` or `abort` in another thread.
 */
#define NMC_ERR_CANCELLED -15

/**
 * An operating-system call failed; the message names it and the reason.
 */
#define NMC_ERR_OS -16

/**
 * A CUDA driver call failed; the message names it and the reason.
 */
#define NMC_ERR_CUDA -17

/**
 * A bug in the library was caught at the boundary. The handle involved should be destroyed.
 */
#define NMC_ERR_INTERNAL -18

/**
 * Not possible right now because something is in use; the call may be repeated.
 */
#define NMC_ERR_BUSY -19

/**
 * There is no such thing.
 */
#define NMC_ERR_NOT_FOUND -20

/**
 * The caller's buffer is too small; the size that is needed was stored.
 */
#define NMC_ERR_TOO_SMALL -21

/**
 * Bytes in shared memory are not what was written.
 */
#define NMC_ERR_CORRUPT -22

/**
 * Version of the C ABI. It grows by one with every release that adds to the ABI; a release that would break it
 * changes the soname instead.
 */
#define NMC_ABI_VERSION 1

/**
 * Something failed and a user will notice.
 */
#define NMC_LOG_ERROR 1

/**
 * Something is wrong but was dealt with.
 */
#define NMC_LOG_WARN 2

/**
 * Rare events of normal life: a rank joined, a rank died.
 */
#define NMC_LOG_INFO 3

/**
 * What a developer of the library wants to see.
 */
#define NMC_LOG_DEBUG 4

/**
 * Heaps in host memory (sealed memfd).
 */
#define NMC_HEAP_HOST 1

/**
 * Heaps in the memory of a CUDA device.
 */
#define NMC_HEAP_CUDA 2

/**
 * Use huge pages for a host heap if there are any; `nmc_world_info_t.heap_flags` tells whether there were.
 */
#define NMC_HEAP_HUGE_PAGES 1

/**
 * The library allocates the heap.
 */
#define NMC_IMPORT_NONE 0

/**
 * `ptr`: host memory of this process. Only ranks of the same process can reach it.
 */
#define NMC_IMPORT_HOST_PTR 1

/**
 * `fd`: a memfd that is sealed with F_SEAL_SHRINK and F_SEAL_GROW.
 */
#define NMC_IMPORT_HOST_FD 2

/**
 * `ptr`: device memory from `cudaMalloc`, or one VMM allocation that was created as exportable.
 */
#define NMC_IMPORT_CUDA_PTR 3

/**
 * `fd`: a VMM allocation exported with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
 */
#define NMC_IMPORT_CUDA_FD 4

/**
 * The master runs in the process of rank 0 (with automatic ranks: of whoever comes first).
 */
#define NMC_MASTER_RANK0 0

/**
 * The master runs elsewhere: `nmc_master_start` in another process, or `nmc master`.
 */
#define NMC_MASTER_EXTERNAL 1

/**
 * Nobody has taken the rank yet.
 */
#define NMC_RANK_ABSENT 0

/**
 * A process holds the rank.
 */
#define NMC_RANK_ALIVE 1

/**
 * The process died or broke off; something of it (a forked child, a kernel) may still write to shared memory.
 */
#define NMC_RANK_DYING 2

/**
 * Provably nothing of the process is left. The rank can be taken again.
 */
#define NMC_RANK_GONE 3

/**
 * The process left in order. The rank can be taken again.
 */
#define NMC_RANK_LEFT 4

/**
 * The master of a world, running on a thread of its own.
 */
typedef struct nmc_master_t nmc_master_t;

/**
 * One rank of a world: the heaps of all ranks, control words, and who is alive. All functions that take it may be
 * called from any thread at the same time, also while another thread destroys it.
 */
typedef struct nmc_world_t nmc_world_t;

/**
 * Result of a call: 0 is success, negative numbers are errors, positive numbers are outcomes that are not errors.
 */
typedef int32_t nmc_status_t;

/**
 * Receives a log line: level, NUL-terminated text that is valid during the call, and the caller's pointer. It is
 * called on whichever thread logs, also on threads of the library, and must not throw. It may call nmc functions;
 * destroying a handle in it gives `NMC_ERR_BUSY`.
 */
typedef void (*nmc_log_fn)(int32_t level, const char *text, void *user);

/**
 * A sequence of bytes that belongs to the caller. `ptr` may be NULL if `len` is 0.
 */
typedef struct nmc_slice_t {
  /**
   * First byte.
   */
  const void *ptr;
  /**
   * Number of bytes.
   */
  size_t len;
} nmc_slice_t;

/**
 * Memory of the engine that is to be used instead of memory of the library. It stays the engine's, and must stay
 * valid until the world is destroyed in every process.
 */
typedef struct nmc_memory_t {
  /**
   * One of `NMC_IMPORT_*`.
   */
  uint32_t kind;
  /**
   * File descriptor, for the kinds that need one; it is duplicated. Otherwise -1.
   */
  int32_t fd;
  /**
   * Address, for the kinds that need one; aligned to 16 bytes. Otherwise NULL.
   */
  void *ptr;
} nmc_memory_t;

/**
 * How a process joins a world. Start from `NMC_WORLD_CONFIG_INIT`; `name`, `world_size` and `heap_bytes` must be
 * set. Ranks must agree on `world_size`, `heap_kind`, `heap_bytes` and `words_per_rank`.
 */
typedef struct nmc_world_config_t {
  /**
   * Size of this struct as the caller knows it.
   */
  uint32_t struct_size;
  /**
   * `NMC_ABI_VERSION` as the caller knows it.
   */
  uint32_t abi_version;
  /**
   * Name under which ranks find each other: 1 to 48 of A-Z a-z 0-9 . _ -
   */
  struct nmc_slice_t name;
  /**
   * Directory in which they meet; empty for $XDG_RUNTIME_DIR/nanomc or /tmp/nanomc-UID. The library makes a
   * subdirectory with mode 0700 in it.
   */
  struct nmc_slice_t dir;
  /**
   * Own rank; -1 for the lowest that is free.
   */
  int32_t rank;
  /**
   * Number of ranks, 1 to `NMC_MAX_RANKS`.
   */
  uint32_t world_size;
  /**
   * Bytes of every rank's heap.
   */
  uint64_t heap_bytes;
  /**
   * `NMC_HEAP_HOST` (default) or `NMC_HEAP_CUDA`.
   */
  uint32_t heap_kind;
  /**
   * 0 or `NMC_HEAP_HUGE_PAGES`.
   */
  uint32_t heap_flags;
  /**
   * Memory of the engine to use as this rank's heap.
   */
  struct nmc_memory_t heap_import;
  /**
   * CUDA device. -1: none for host heaps, the current context's (else device 0) for CUDA heaps. With a device,
   * host heaps and words are registered with it.
   */
  int32_t device;
  /**
   * This rank's number in device code, if that differs from the rank; -1 for the same. No two ranks share one.
   */
  int32_t device_rank;
  /**
   * Control words per rank; -1 for 64.
   */
  int32_t words_per_rank;
  /**
   * `NMC_MASTER_RANK0` (default) or `NMC_MASTER_EXTERNAL`.
   */
  uint32_t master;
  /**
   * When joining gives up, in ms; -1 for 30 s.
   */
  int64_t join_timeout_ms;
  /**
   * How long this process's GPU may go on after its death, in ms, before its memory is reused; -1 for 1 s.
   * Without a device it is 0.
   */
  int32_t drain_ms;
  /**
   * CPU to which the library's threads are bound; -1 for none.
   */
  int32_t service_cpu;
  /**
   * Zero.
   */
  uint64_t reserved[4];
} nmc_world_config_t;

/**
 * Facts about a world. Set `struct_size` before the call (`NMC_WORLD_INFO_INIT`).
 */
typedef struct nmc_world_info_t {
  /**
   * Size of this struct as the caller knows it.
   */
  uint32_t struct_size;
  /**
   * Own rank.
   */
  uint32_t rank;
  /**
   * Number of ranks.
   */
  uint32_t world_size;
  /**
   * `NMC_HEAP_HOST` or `NMC_HEAP_CUDA`.
   */
  uint32_t heap_kind;
  /**
   * Bytes of every heap.
   */
  uint64_t heap_bytes;
  /**
   * Random name of this world; a new one each time all ranks have left and others join.
   */
  uint64_t world_id;
  /**
   * Flags that are in effect, such as `NMC_HEAP_HUGE_PAGES`.
   */
  uint32_t heap_flags;
  /**
   * Control words per rank.
   */
  uint32_t words_per_rank;
  /**
   * 1 if the master can be reached, else 0.
   */
  uint32_t master_up;
  /**
   * Zero.
   */
  uint32_t reserved;
} nmc_world_info_t;

/**
 * Facts about a rank. Set `struct_size` before the call (`NMC_RANK_INFO_INIT`).
 */
typedef struct nmc_rank_info_t {
  /**
   * Size of this struct as the caller knows it.
   */
  uint32_t struct_size;
  /**
   * One of `NMC_RANK_*`.
   */
  uint32_t state;
  /**
   * How many processes have held the rank so far.
   */
  uint64_t generation;
  /**
   * Process id of the holder.
   */
  uint32_t pid;
  /**
   * CUDA device in the holder's process; -1 for none.
   */
  int32_t device;
  /**
   * First byte of its heap in this process; a device pointer for CUDA heaps. NULL if it has none.
   */
  void *heap_base;
  /**
   * Its number in device code.
   */
  uint32_t device_rank;
  /**
   * Zero.
   */
  uint32_t reserved;
} nmc_rank_info_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library as text, such as "0.1.0". Static, never NULL. Thread-safe, does not block, graph-safe.
 */
const char *nmc_version(void);

/**
 * Version of the ABI that the loaded library speaks; compare with `NMC_ABI_VERSION` of the header that was
 * compiled in. Thread-safe, does not block, graph-safe.
 */
uint32_t nmc_abi_version(void);

/**
 * Layout version of the loaded library; compare with `NMC_LAYOUT_VERSION`. Ranks with different versions do not
 * join. Thread-safe, does not block, graph-safe.
 */
uint32_t nmc_layout_version(void);

/**
 * Name of a status, such as "NMC_ERR_TIMEOUT"; "NMC_UNKNOWN_STATUS" for a number that is none. Static, never
 * NULL. Thread-safe, does not block, graph-safe.
 */
const char *nmc_status_name(nmc_status_t status);

/**
 * Why the last failed call of this thread failed: one sentence with the values involved. Empty if none failed
 * yet; calls that succeed leave it alone. Never NULL; valid until the next failing call of the same thread.
 * Thread-safe, does not block, graph-safe.
 */
const char *nmc_last_error_message(void);

/**
 * Sends log lines up to `max_level` to `callback`; NULL ends logging, whatever the level. Without a callback the library writes nothing
 * anywhere. When the call returns, the former callback is not running and will not be called again.
 *
 * Thread-safe, graph-safe; waits for a callback that is running. Returns `NMC_ERR_INVALID_ARG` for a level that does not exist
 * and `NMC_ERR_BUSY` when called from inside a callback.
 */
nmc_status_t nmc_log_set_callback(nmc_log_fn callback,
                                  int32_t max_level,
                                  void *user);

/**
 * Joins a world as one rank and stores a handle in `*out`. Returns when all ranks have joined (or, if the world
 * exists already and the rank's former holder is gone, when it has taken its place; it then finds the heap as it
 * was left, unless one of them lends its memory). Processes may start in any order.
 *
 * Blocks up to `join_timeout_ms`. Thread-safe: several threads of one process may join as different ranks. Not
 * graph-safe. The handle is destroyed with `nmc_world_destroy`. On error `*out` is NULL.
 * Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`, `NMC_ERR_TIMEOUT` (the message names the ranks that are
 * missing), `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_EXISTS` (rank or device rank is taken),
 * `NMC_ERR_PERMISSION`, `NMC_ERR_PROTOCOL`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED`,
 * `NMC_ERR_OS`, `NMC_ERR_CUDA`, `NMC_ERR_FORKED`.
 */
nmc_status_t nmc_world_join(const struct nmc_world_config_t *config, struct nmc_world_t **out_world);

/**
 * Joins a world as `n_ranks` ranks of this process and stores their handles in `out_worlds[0..n_ranks]`. `config`
 * is used for all of them, with its `rank` and `device_rank` replaced by `ranks[i]`; `heap_import` must be none.
 * Otherwise like `nmc_world_join`. On error no rank has joined and all of `out_worlds` is NULL.
 */
nmc_status_t nmc_world_join_ranks(const struct nmc_world_config_t *config,
                                  const int32_t *ranks,
                                  size_t n_ranks,
                                  struct nmc_world_t **out_worlds);

/**
 * Makes a world of `config->world_size` ranks inside this process, without socket, files or threads, and stores
 * all handles in `out_worlds`. `name`, `dir`, `rank`, `device_rank`, `master` and the timeouts are not looked at.
 * Takes as long as reserving the memory does. Thread-safe. Not graph-safe. Statuses as for `nmc_world_join`.
 */
nmc_status_t nmc_world_create_local(const struct nmc_world_config_t *config, struct nmc_world_t **out_worlds);

/**
 * Leaves the world in order: waits until this process's GPU work is done, then tells the other ranks, which see
 * `NMC_RANK_LEFT`. Pointers and handle stay valid until `nmc_world_destroy`. May be called again; later calls do
 * nothing.
 *
 * Blocks for the GPU if the world has a device. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_world_finalize(struct nmc_world_t *world);

/**
 * Breaks off at once: calls that wait return `NMC_ERR_CANCELLED` and the other ranks see `NMC_RANK_DYING`. The handle
 * must still be destroyed; after that and the drain grace they see `NMC_RANK_GONE`.
 *
 * Never blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`.
 */
nmc_status_t nmc_world_abort(struct nmc_world_t *world);

/**
 * Leaves the world if that has not happened yet, ends calls that wait in other threads (they return
 * `NMC_ERR_CANCELLED`), and frees everything: all pointers from this handle become invalid. If the master runs in
 * this handle it ends too; the others go on without one. NULL is fine. In a forked child it does nothing.
 *
 * Blocks for the GPU if the world has a device (not after `nmc_world_abort`: then make sure that no kernel of this
 * process uses the heaps), and until other threads are out of their calls. Thread-safe: of several callers one
 * succeeds. Not graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_world_destroy(struct nmc_world_t *world);

/**
 * Stores facts about the world. Thread-safe, does not block, graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`.
 */
nmc_status_t nmc_world_info(const struct nmc_world_t *world, struct nmc_world_info_t *out_info);

/**
 * Stores facts about a rank. Thread-safe, does not block, graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`.
 */
nmc_status_t nmc_world_rank_info(const struct nmc_world_t *world, int32_t rank, struct nmc_rank_info_t *out_info);

/**
 * Stores the state of a rank, one of `NMC_RANK_*`. A death is reported within a second, usually within a
 * millisecond. Thread-safe, does not block, graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_world_alive(const struct nmc_world_t *world, int32_t rank, uint32_t *out_state);

/**
 * Stores an eventfd that becomes readable when the state of a rank changes, a rank is taken by another process, the
 * master goes away or returns, or `nmc_world_async_error` has news. Read 8 bytes from it to rearm it. It belongs to
 * the handle: do not close it. A world made by `nmc_world_create_local` never signals.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_world_event_fd(const struct nmc_world_t *world, int32_t *out_fd);

/**
 * Stores the address, in this process, of `bytes` bytes at `offset` in the heap of `rank`: a host pointer for host
 * heaps, a device pointer for CUDA heaps. It stays valid until the handle is destroyed, also when the rank dies.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`
 * (past the end of the heap), `NMC_ERR_PEER_LOST` (the rank has no heap at the moment).
 */
nmc_status_t nmc_world_ptr(const struct nmc_world_t *world,
                           int32_t rank,
                           uint64_t offset,
                           uint64_t bytes,
                           void **out_ptr);

/**
 * The reverse of `nmc_world_ptr`: stores the rank and the offset of an address in one of the heaps.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
 * `NMC_ERR_NOT_FOUND` (the address is in no heap).
 */
nmc_status_t nmc_world_locate(const struct nmc_world_t *world,
                              const void *ptr,
                              int32_t *out_rank,
                              uint64_t *out_offset);

/**
 * Stores the tables of heap base addresses, for code that computes addresses itself. `*out_host`, indexed by rank,
 * is in host memory; `*out_device`, indexed by **device rank**, is in device memory, for `nmc_dev_peer_ptr`, and is
 * NULL without a device. `*out_n` is the number of entries. An entry is 0 while a rank has no heap. Each out
 * pointer may be NULL. The tables live until the handle is destroyed.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_world_base_table(const struct nmc_world_t *world,
                                  const uint64_t **out_host,
                                  const uint64_t **out_device,
                                  uint32_t *out_n);

/**
 * Stores the rank that device code knows as `device_rank`.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
 * `NMC_ERR_NOT_FOUND`.
 */
nmc_status_t nmc_world_rank_of_device_rank(const struct nmc_world_t *world, int32_t device_rank, int32_t *out_rank);

/**
 * Stores the address of control word `index` of `rank`: 64 bits in host memory that all ranks share, alone on a
 * cache line, zero at first, kept when a rank is taken by another process. `*out_device` is its address for
 * kernels and `cuStreamWriteValue64`, NULL without a device; each out pointer may be NULL. Give every word one
 * writer; publish with a release store and read with an acquire load (system scope on the GPU); a GPU must not do
 * read-modify-write on it. The program defines what the words mean; `nmc_world_selftest` uses the first of them.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_world_word(const struct nmc_world_t *world,
                            int32_t rank,
                            uint32_t index,
                            uint64_t **out_host,
                            uint64_t **out_device);

/**
 * Stores `value` in control word `index` of `rank` when the work before it in `stream` (a `cudaStream_t` or
 * `CUstream`) is done and visible to the whole system. No kernel is launched.
 *
 * Thread-safe, does not block. Graph-safe: it can be captured; the value is then the same in every replay.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_UNSUPPORTED` (no device, or
 * one that cannot), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_world_write_word_async(const struct nmc_world_t *world,
                                        int32_t rank,
                                        uint32_t index,
                                        uint64_t value,
                                        void *stream);

/**
 * Waits until all ranks have called it. For start-up, tests and tools, not for hot paths. After an error the same
 * barrier is still open, and the next call continues to wait for it: also together with a process that has taken
 * the place of a dead rank. After a barrier all ranks know the same holders of all ranks.
 *
 * Blocks up to `timeout_ms` (-1 for 30 s). One thread per handle at a time. Not graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST`
 * (names the rank), `NMC_ERR_CANCELLED` (the rank has left, aborted or is being destroyed), `NMC_ERR_BUSY` (another
 * thread is in it).
 */
nmc_status_t nmc_world_barrier(const struct nmc_world_t *world, int64_t timeout_ms);

/**
 * Proves the paths between all ranks: each writes a pattern into every heap, publishes it with a system-scope
 * release, and compares every byte that the others wrote for it; on CUDA heaps with kernels. All ranks must call it
 * with the same `seed`. **Overwrites** up to `world_size` MiB at the start of every heap and the first `world_size`
 * control words of every rank.
 *
 * Blocks up to about `timeout_ms` (-1 for 30 s). Not graph-safe. Statuses: those of `nmc_world_barrier`, and
 * `NMC_ERR_CORRUPT` (names the ranks and the offset), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_world_selftest(const struct nmc_world_t *world, uint64_t seed, int64_t timeout_ms);

/**
 * What went wrong in the background of this world, where no call could return it. Stores the status (`NMC_OK` if
 * nothing did) in `*out_status`, also if the text is too long, and the message in `buffer`, as `nmc_world_dump` does; a
 * NULL buffer of capacity 0 leaves the text out.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
 * `NMC_ERR_TOO_SMALL`.
 */
nmc_status_t nmc_world_async_error(const struct nmc_world_t *world,
                                   nmc_status_t *out_status,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *needed);

/**
 * Writes the world as text for people into `buffer`, NUL-terminated. `*needed` (may be NULL) receives the size that
 * the whole text needs; with capacity 0 nothing else happens.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
 * `NMC_ERR_TOO_SMALL` (as much as fits was written).
 */
nmc_status_t nmc_world_dump(const struct nmc_world_t *world, char *buffer, size_t capacity, size_t *needed);

/**
 * Starts the master of the world that `config` describes, for ranks that join with `NMC_MASTER_EXTERNAL`. `rank` and
 * the fields about own memory are not used. It takes over a world whose former master died, as soon as a survivor
 * reports; and it serves the next world of the same name when all ranks have left.
 *
 * Waits at most half a second for a master that is just ending. Thread-safe. Not graph-safe. The handle is destroyed
 * with `nmc_master_destroy`.
 * Statuses: those of `nmc_world_join`; `NMC_ERR_EXISTS` if a master of that name is running.
 */
nmc_status_t nmc_master_start(const struct nmc_world_config_t *config, struct nmc_master_t **out_master);

/**
 * Ends the master. Ranks that have joined go on without it; nobody can join. NULL is fine. In a forked child it
 * does nothing.
 *
 * Blocks until its thread has ended, which is soon. Graph-safe. Thread-safe: of several callers one succeeds.
 * Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_master_destroy(struct nmc_master_t *master);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NANOMC_H */
