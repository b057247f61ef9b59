/*
 * nanomc: memory that LLM serving processes share, and what moves through it.
 *
 * Rules for every function, unless its comment says otherwise:
 *  - It returns a status: 0 is success, negative numbers are errors, positive numbers are outcomes that are not errors.
 *    After an error, nmc_last_error_message() on the same thread says what was wrong, with the values. Out parameters are
 *    written only on success, except where stated. A function that creates handles stores NULL in their place when it fails.
 *  - It may be called from any thread. Handles are checked: NULL, a destroyed handle, a handle of another kind or any
 *    other pointer gives NMC_ERR_BAD_HANDLE, even while another thread destroys the handle.
 *  - It throws nothing, aborts nothing, and writes nothing to stdout or stderr.
 *  - If a process that has created a handle, or tried to, forks, every call in the child returns NMC_ERR_FORKED, and destroy
 *    does nothing there. Fork before the first call, or exec in the child.
 *  - Memory that the caller passes stays the caller's, and is not kept after the call, except where stated.
 *  - A struct that begins with struct_size starts from its _INIT macro, whether the program or the library fills it. A
 *    program compiled against an older or newer header then keeps working.
 *  - The library never changes the calling thread's current CUDA context. "Graph-safe" means legal while a stream is
 *    being captured. Streams are cudaStream_t or CUstream, passed as void*.
 *
 * Contents. Each part begins with how its calls go together.
 *
 *  Basics    versions, statuses, error messages, types that several parts share, the log
 *            nmc_*: version abi_version layout_version status_name last_error_message log_set_callback
 *
 *  World     the ranks of one machine: shared heaps, control words, liveness
 *            nmc_world_*: join join_ranks create_local finalize abort destroy info rank_info alive event_fd ptr
 *              locate base_table rank_of_device_rank word write_word_async barrier selftest async_error dump
 *
 *  Master    the master of a world and of its store, in a process that is not a rank
 *            nmc_master_*: start destroy
 *
 *  Store     immutable objects by key: one process writes, all read, in place or as a copy
 *            nmc_store_*: create namespace destroy put put_slices put_strided get get_into get_slices get_strided
 *              get_metadata exists remove remove_by_prefix remove_all touch retain get_location open_for_write commit
 *              publish_pages abort plan_extents view_extents pin consume verify view_metadata pin_partial unpin
 *              ready_pages wait_ready wait_pages cancel watch completions event_fd evict_until_below retry_hint next
 *              stats prometheus dump put_batch get_into_batch exists_batch match_prefix remove_batch open_batch
 *              commit_batch pin_batch unpin_batch commit_async push_async fetch_async unpin_async wait_ready_async
 *              publish_desc publish_captured slot_reserve slot_release slot_pin slot_unpin_async device_pin
 *
 *  Tier      an SSD below the store: what memory evicts, disk keeps, and any process reads it by itself
 *            nmc_tier_*: open close sync offload prefetch stage release evict events pause resume stats verify scan
 *
 *  Client    a cluster: objects on the nodes of many machines, found by key
 *            nmc_client_*: open close mount attach_store unmount register unregister put get put_batch get_batch
 *              exists exists_batch query segments keys sync get_metadata get_metadata_batch submit_get_metadata
 *              get_with_metadata remove remove_batch remove_all set_placement drain undrain submit_put submit_get
 *              submit_remove submit_put_batch submit_get_batch submit_remove_batch completions event_fd cancel
 *              open_store
 *
 *  KV cache  where the K and V of every token are: blocks, sequences, shared prefixes, block tables
 *            nmc_kv_*: create heap_bytes page_tokens destroy open find append append_batch commit keep_state reserve
 *              truncate fork close drop_least match hash pin unpin clear events snapshot resize seq_info victims
 *              stats group_stats dump audit view token_address table table_csr slot_mapping state_slots attach_store
 *              move_after offload onboard transfer_poll transfer_wait transfer_cancel take_copies gather scatter
 *              copy_blocks
 *
 *  Blocks    an allocator of block numbers without memory, for engines with their own sequences
 *            nmc_blocks_*: create destroy allocate free extend allocate_scattered free_scattered request poll cancel
 *              stats dump resize
 *
 *  EP        expert-parallel transport: the tokens of an MoE layer to their experts, and the results back
 *            nmc_ep_*: bytes_needed create create_ranks destroy abort check group_begin group_end dispatch
 *              dispatch_send dispatch_recv recv_buffers device route_pack scatter combine combine_send combine_recv
 *              moe_forward stats
 *
 * Generated from the Rust sources (build/header.rs) by cbindgen; do not edit.
 */

#ifndef NANOMC_H
#define NANOMC_H

#include <stddef.h>
#include <stdint.h>
#include "nanomc/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Handles: what calls make and destroy. The part of each says more. */
struct nmc_world_t;
struct nmc_master_t;
struct nmc_store_t;
struct nmc_tier_t;
struct nmc_client_t;
struct nmc_kv_t;
struct nmc_blocks_t;
struct nmc_ep_t;

/* == Basics ======================================================================================================= */

/**
 * @defgroup basics Basics
 * Versions, statuses, error messages, types that several parts share, the log.
 *
 * If your program loads the library at run time, first compare `nmc_abi_version` with `NMC_ABI_VERSION`. After a failed call,
 * `nmc_status_name` returns the name of the status, and `nmc_last_error_message` a sentence with the values; call it on the same
 * thread, before the next call there fails. Background events, such as the death of a rank, go to the callback that you set
 * with `nmc_log_set_callback`; without a callback the library writes nothing anywhere. Pass keys, names and other input bytes
 * as `nmc_slice_t`.
 * @{
 */

/* Version of this header, from Cargo.toml. */
#define NMC_VERSION_MAJOR 0
#define NMC_VERSION_MINOR 1
#define NMC_VERSION_PATCH 0
#define NMC_VERSION_STRING "0.1.0"

/**
 * Version of the C ABI. It grows by one with every release that adds to the ABI; a release that would break it
 * changes the soname instead.
 */
#define NMC_ABI_VERSION 1

/** A sequence of bytes that belongs to the caller. `ptr` may be NULL if `len` is 0. */
typedef struct nmc_slice_t {
  /** First byte. */
  const void *ptr;
  /** Number of bytes. */
  size_t len;
} nmc_slice_t;

/** Result of a call: 0 is success, negative numbers are errors, positive numbers are outcomes that are not errors. */
typedef int32_t nmc_status_t;

/** The call succeeded. */
#define NMC_OK 0

/** Nothing is wrong, but what was asked for is not there yet. */
#define NMC_NOT_READY 1

/** The operation was started and has not finished. */
#define NMC_IN_PROGRESS 2

/** An argument is out of range, NULL where a value is needed, or contradicts another one. */
#define NMC_ERR_INVALID_ARG -1

/** The handle is NULL, stale, of another kind, already destroyed, or not a handle at all. */
#define NMC_ERR_BAD_HANDLE -2

/** The handle belongs to the parent of this forked process. Only `destroy` is allowed here, and does nothing. */
#define NMC_ERR_FORKED -3

/** A struct, a shared region or a peer speaks a version of the ABI or layout that this library does not. */
#define NMC_ERR_VERSION -4

/** This machine, driver or build cannot do it; the message says what is missing. */
#define NMC_ERR_UNSUPPORTED -5

/** Memory could not be reserved. */
#define NMC_ERR_NO_MEMORY -6

/** A limit was reached: file descriptors, sizes of files, handles, nesting, table entries. */
#define NMC_ERR_LIMIT -7

/** The deadline passed first. */
#define NMC_ERR_TIMEOUT -8

/** Ranks of one world disagree about a parameter; the message names both values. */
#define NMC_ERR_MISMATCH -9

/** The rank, name or key is already taken. */
#define NMC_ERR_EXISTS -10

/** Owner or mode of a file, or the user id of a peer, is not acceptable. */
#define NMC_ERR_PERMISSION -11

/** A peer sent something that is not part of the protocol. */
#define NMC_ERR_PROTOCOL -12

/** No master answers at the moment; the call may be repeated. */
#define NMC_ERR_UNAVAILABLE -13

/** A rank that this call depends on has died. */
#define NMC_ERR_PEER_LOST -14

/** The call was ended by `finalize`, `destroy` or `abort` in another thread. */
#define NMC_ERR_CANCELLED -15

/** An operating-system call failed; the message names it and the reason. */
#define NMC_ERR_OS -16

/** A CUDA driver call failed; the message names it and the reason. */
#define NMC_ERR_CUDA -17

/** A bug in the library was caught at the boundary. The handle involved should be destroyed. */
#define NMC_ERR_INTERNAL -18

/** Not possible right now because something is in use; the call may be repeated. */
#define NMC_ERR_BUSY -19

/** There is no such thing. */
#define NMC_ERR_NOT_FOUND -20

/** The caller's buffer is too small; the size that is needed was stored. */
#define NMC_ERR_TOO_SMALL -21

/** Bytes in shared memory are not what was written. */
#define NMC_ERR_CORRUPT -22

/** The object was removed, evicted or given up in the meantime. */
#define NMC_ERR_STALE -23

/** There is no room: the value is larger than the heap, or a quota is used up. */
#define NMC_ERR_NO_SPACE -24

/** The disk below the store failed, or refuses to be written; the message names the file and the reason. */
#define NMC_ERR_IO -25

/** Element types: 32-bit float. */
#define NMC_DTYPE_FP32 0

/** 16-bit brain float. */
#define NMC_DTYPE_BF16 1

/** 16-bit float. */
#define NMC_DTYPE_FP16 2

/** 8-bit float of either kind. */
#define NMC_DTYPE_FP8 3

/** 8-bit integer. */
#define NMC_DTYPE_INT8 4

/** Elements of `element_bytes` bytes that the library knows nothing else about. */
#define NMC_DTYPE_RAW 5

/**
 * Nothing is evicted to make room: when the disk is full, offloading pauses, which `full` of `nmc_tier_stats_t` counts. SSD tier only.
 */
#define NMC_EVICT_NONE 0

/** What was stored, written or published first goes first. */
#define NMC_EVICT_FIFO 1

/**
 * What was used longest ago: an object, the bucket on disk that was last read longest ago, the cached block of the KV
 * cache that has been idle longest.
 */
#define NMC_EVICT_LRU 2

/**
 * S3-FIFO: what is new passes a small queue first, and stays if it is used there or returns soon after it left. A scan does
 * not push out what is read often. Store and KV cache only.
 */
#define NMC_EVICT_S3FIFO 3

/** What was used least, in powers of two; among equals the one idle longest. KV cache only. */
#define NMC_EVICT_LFU 4

/** What has the lowest priority; a priority lapses after its time to live. KV cache only. */
#define NMC_EVICT_PRIORITY 5

/** Something failed and a user will notice. */
#define NMC_LOG_ERROR 1

/** Something is wrong but was dealt with. */
#define NMC_LOG_WARN 2

/** Rare events of normal life: a rank joined, a rank died. */
#define NMC_LOG_INFO 3

/** What a developer of the library wants to see. */
#define NMC_LOG_DEBUG 4

/**
 * Receives a log line: level, NUL-terminated text that is valid during the call, and the caller's pointer. It is
 * called on whichever thread logs, also on threads of the library, and must not throw. It may call nmc functions;
 * destroying a handle in it gives `NMC_ERR_BUSY`.
 */
typedef void (*nmc_log_fn)(int32_t level, const char *text, void *user);

/** Version of the library as text, such as "0.1.0". Static, never NULL. Thread-safe, does not block, graph-safe. */
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

/** @} */

/* == World ======================================================================================================== */

/**
 * @defgroup world World
 * The ranks of one machine: shared heaps, control words, liveness.
 *
 * Every process calls `nmc_world_join` with the same name; `nmc_world_create_local` creates all ranks inside one process. Then
 * `nmc_world_ptr` returns the address of any byte in any rank's heap. To publish data, write it to a heap, then store to a control
 * word (`nmc_world_word`) with release; a rank that loads the word with acquire may read the data. `nmc_world_alive` and
 * `nmc_world_event_fd` report deaths; a new process can join as a dead rank and finds its heap as it was. To leave, destroy what was
 * created from the world, then call `nmc_world_finalize` and `nmc_world_destroy`; `nmc_world_abort` breaks off without waiting.
 * @{
 */

/** Heaps in host memory (sealed memfd). */
#define NMC_HEAP_HOST 1

/** Heaps in the memory of a CUDA device. */
#define NMC_HEAP_CUDA 2

/** Use huge pages for a host heap if there are any; `nmc_world_info_t.heap_flags` says whether there were. */
#define NMC_HEAP_HUGE_PAGES 1

/**
 * Fault host heaps in while joining, so that the first access to a page costs what every other does: the own heap, and in
 * this process those of all ranks that are there. It takes about a second per 4 GiB, and counts towards `join_timeout_ms`.
 * Heaps that come later, lent memory and CUDA heaps are left as they are.
 */
#define NMC_HEAP_POPULATE 2

/** The library allocates the heap. */
#define NMC_IMPORT_NONE 0

/** `ptr`: host memory of this process. Only ranks of the same process can reach it. */
#define NMC_IMPORT_HOST_PTR 1

/** `fd`: a memfd that is sealed with F_SEAL_SHRINK and F_SEAL_GROW. */
#define NMC_IMPORT_HOST_FD 2

/** `ptr`: device memory from `cudaMalloc`, or one VMM allocation that was created as exportable. */
#define NMC_IMPORT_CUDA_PTR 3

/** `fd`: a VMM allocation exported with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR. */
#define NMC_IMPORT_CUDA_FD 4

/** The master runs in the process of rank 0 (with automatic ranks: of the first process that comes). */
#define NMC_MASTER_RANK0 0

/** The master runs elsewhere: `nmc_master_start` in another process, or `nmc master`. */
#define NMC_MASTER_EXTERNAL 1

/** The rank has not been taken yet. */
#define NMC_RANK_ABSENT 0

/** A process holds the rank. */
#define NMC_RANK_ALIVE 1

/** The process died or broke off; something of it (a forked child, a kernel) may still write to shared memory. */
#define NMC_RANK_DYING 2

/** Provably nothing of the process is left. The rank can be taken again. */
#define NMC_RANK_GONE 3

/** The process left in order. The rank can be taken again. */
#define NMC_RANK_LEFT 4

/**
 * Memory of the engine that is to be used instead of memory of the library. It stays the engine's, and must stay valid
 * until the world is destroyed in every process. It may be lent to only one heap at a time, which is not checked. It
 * must be writable, which is checked for file descriptors only.
 */
typedef struct nmc_memory_t {
  /** One of `NMC_IMPORT_*`. */
  uint32_t kind;
  /** File descriptor, for the kinds that need one; it is duplicated. Otherwise -1. */
  int32_t fd;
  /** Address, for the kinds that need one; aligned to 16 bytes. Otherwise NULL. */
  void *ptr;
} nmc_memory_t;

/**
 * How a process joins a world. Start from `NMC_WORLD_CONFIG_INIT`; `name`, `world_size` and `heap_bytes` must be
 * set. Ranks must agree on `world_size`, `min_ranks`, `heap_kind`, `heap_bytes` and `words_per_rank`.
 */
typedef struct nmc_world_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** Name under which ranks find each other: 1 to 48 of A-Z a-z 0-9 . _ - of which the first is no dot. */
  struct nmc_slice_t name;
  /**
   * Directory in which they meet; empty for $XDG_RUNTIME_DIR/nanomc or /tmp/nanomc-UID. The library makes a
   * subdirectory with mode 0700 in it.
   */
  struct nmc_slice_t dir;
  /** Own rank; -1 for the lowest that is free. */
  int32_t rank;
  /** Number of ranks, 1 to `NMC_MAX_RANKS`; the most there can be, if `min_ranks` is less. */
  uint32_t world_size;
  /** Bytes of every rank's heap. */
  uint64_t heap_bytes;
  /** `NMC_HEAP_HOST` (default) or `NMC_HEAP_CUDA`. */
  uint32_t heap_kind;
  /** `NMC_HEAP_*` flags: 0, or any of `NMC_HEAP_HUGE_PAGES` and `NMC_HEAP_POPULATE`. Ranks may differ. */
  uint32_t heap_flags;
  /** Memory of the engine to use as this rank's heap. */
  struct nmc_memory_t heap_import;
  /**
   * CUDA device. -1: none for host heaps, the current context's (else device 0) for CUDA heaps. With a device,
   * host heaps and words are registered with it.
   */
  int32_t device;
  /** This rank's number in device code, if that differs from the rank; -1 for the same. No two ranks share one. */
  int32_t device_rank;
  /** Control words per rank; -1 for 64. */
  int32_t words_per_rank;
  /** `NMC_MASTER_RANK0` (default) or `NMC_MASTER_EXTERNAL`. */
  uint32_t master;
  /** When joining gives up, in ms; -1 for 30 s. */
  int64_t join_timeout_ms;
  /**
   * How long this process's GPU may go on after its death, in ms, before its memory is reused; -1 for 1 s.
   * Without a device it is 0.
   */
  int32_t drain_ms;
  /** CPU to which the library's threads are bound; -1 for none. */
  int32_t service_cpu;
  /**
   * How many ranks must be there for a join to complete; 0 for all. If it is less than `world_size`, the others may
   * come later, or never: until then they are `NMC_RANK_ABSENT` and have no heap. The master must run: with
   * `NMC_MASTER_RANK0`, rank 0 must be among the first.
   */
  uint32_t min_ranks;
  /** Zero. */
  uint32_t reserved0;
  /** Zero. */
  uint64_t reserved[3];
} nmc_world_config_t;

/** What an nmc_world_config_t starts from. */
#define NMC_WORLD_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_world_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* name */ {NULL, 0}, \
    /* dir */ {NULL, 0}, \
    /* rank */ -1, \
    /* world_size */ 1, \
    /* heap_bytes */ 0, \
    /* heap_kind */ NMC_HEAP_HOST, \
    /* heap_flags */ 0, \
    /* heap_import */ {NMC_IMPORT_NONE, -1, NULL}, \
    /* device */ -1, \
    /* device_rank */ -1, \
    /* words_per_rank */ -1, \
    /* master */ NMC_MASTER_RANK0, \
    /* join_timeout_ms */ -1, \
    /* drain_ms */ -1, \
    /* service_cpu */ -1, \
    /* min_ranks */ 0, \
    /* reserved0 */ 0, \
    /* reserved */ {0, 0, 0} \
  }

/** Facts about a world. Set `struct_size` before the call (`NMC_WORLD_INFO_INIT`). */
typedef struct nmc_world_info_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Own rank. */
  uint32_t rank;
  /** Number of ranks. */
  uint32_t world_size;
  /** `NMC_HEAP_HOST` or `NMC_HEAP_CUDA`. */
  uint32_t heap_kind;
  /** Bytes of every heap. */
  uint64_t heap_bytes;
  /** Random name of this world; a new one each time all ranks have left and others join. */
  uint64_t world_id;
  /** Flags that are in effect, such as `NMC_HEAP_HUGE_PAGES`. */
  uint32_t heap_flags;
  /** Control words per rank. */
  uint32_t words_per_rank;
  /** 1 if the master can be reached, else 0. */
  uint32_t master_up;
  /** How many ranks had to be there for a join to complete. */
  uint32_t min_ranks;
} nmc_world_info_t;

/** What an nmc_world_info_t starts from. */
#define NMC_WORLD_INFO_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_world_info_t), \
    /* rank */ 0, \
    /* world_size */ 0, \
    /* heap_kind */ 0, \
    /* heap_bytes */ 0, \
    /* world_id */ 0, \
    /* heap_flags */ 0, \
    /* words_per_rank */ 0, \
    /* master_up */ 0, \
    /* min_ranks */ 0 \
  }

/** Facts about a rank. Set `struct_size` before the call (`NMC_RANK_INFO_INIT`). */
typedef struct nmc_rank_info_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** One of `NMC_RANK_*`. */
  uint32_t state;
  /** How many processes have held the rank so far. */
  uint64_t generation;
  /** Process id of the holder. */
  uint32_t pid;
  /** CUDA device in the holder's process; -1 for none. */
  int32_t device;
  /** First byte of its heap in this process; a device pointer for CUDA heaps. NULL if it has none. */
  void *heap_base;
  /** Its number in device code. */
  uint32_t device_rank;
  /** Zero. */
  uint32_t reserved;
} nmc_rank_info_t;

/** What an nmc_rank_info_t starts from. */
#define NMC_RANK_INFO_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_rank_info_t), \
    /* state */ 0, \
    /* generation */ 0, \
    /* pid */ 0, \
    /* device */ 0, \
    /* heap_base */ NULL, \
    /* device_rank */ 0, \
    /* reserved */ 0 \
  }

/**
 * One rank of a world: the heaps of all ranks, control words, and who is alive. All functions that take it may be
 * called from any thread at the same time, also while another thread destroys it.
 */
typedef struct nmc_world_t nmc_world_t;

/**
 * Joins a world as one rank and stores a handle in `*out_world`. Destroy it with `nmc_world_destroy`. Returns when all
 * ranks have joined, or as many as `min_ranks` says. If the world exists already and the rank is free, the process
 * takes that rank: one whose former holder is gone (it then finds the heap as it was left, unless one of the two lends
 * its memory), or one that was never taken. Processes may start in any order.
 *
 * Blocks up to `join_timeout_ms`. Thread-safe: several threads of one process may join as different ranks. Not
 * graph-safe. Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`, `NMC_ERR_TIMEOUT` (the message names the ranks that
 * are missing), `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_EXISTS` (rank or device rank is taken),
 * `NMC_ERR_PERMISSION`, `NMC_ERR_PROTOCOL`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED`, `NMC_ERR_OS`,
 * `NMC_ERR_CUDA`, `NMC_ERR_FORKED`.
 */
nmc_status_t nmc_world_join(const struct nmc_world_config_t *config,
                            struct nmc_world_t **out_world);

/**
 * Joins a world as `n_ranks` ranks of this process and stores their handles in `out_worlds[0..n_ranks]`. `config`
 * is used for all of them, with its `rank` and `device_rank` replaced by `ranks[i]`; `heap_import` must be none.
 * Otherwise like `nmc_world_join`. On error no rank has joined.
 */
nmc_status_t nmc_world_join_ranks(const struct nmc_world_config_t *config,
                                  const int32_t *ranks,
                                  size_t n_ranks,
                                  struct nmc_world_t **out_worlds);

/**
 * Creates a world of `config->world_size` ranks inside this process, without socket, files or threads, and stores all
 * handles in `out_worlds`. `name`, `dir`, `rank`, `device_rank`, `min_ranks`, `master` and the timeouts are ignored.
 * If `config` cannot be read, `out_worlds` stays as it is, because its length is unknown.
 *
 * Takes as long as reserving the memory does. Thread-safe. Not graph-safe. Statuses as for `nmc_world_join`.
 */
nmc_status_t nmc_world_create_local(const struct nmc_world_config_t *config, struct nmc_world_t **out_worlds);

/**
 * Leaves the world in order: waits until this process's GPU work is done, then tells the other ranks, which see
 * `NMC_RANK_LEFT`. Handle and pointers stay valid until `nmc_world_destroy`, but from now on another process may take
 * the rank and its heap: do not store there any more. May be called again; later calls, and calls after `nmc_world_abort`, do
 * nothing.
 *
 * What was made from the rank (stores, KV caches in its heap, expert-parallel groups) is destroyed first: while any of it
 * exists the rank stays, and this returns `NMC_ERR_BUSY`.
 *
 * Blocks for the GPU if the world has a device. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_BUSY` (the message names what is still there), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_world_finalize(struct nmc_world_t *world);

/**
 * Breaks off: calls that wait return `NMC_ERR_CANCELLED` soon, and the other ranks see `NMC_RANK_DYING`. The handle
 * must still be destroyed, and so must all that was made from it; after that and the drain grace they see `NMC_RANK_GONE`.
 *
 * Never blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`.
 */
nmc_status_t nmc_world_abort(struct nmc_world_t *world);

/**
 * Leaves the world if that has not happened yet, ends calls that wait in other threads (they return
 * `NMC_ERR_CANCELLED`), and frees everything: all pointers from this handle become invalid. If the master runs in
 * this handle it ends too; the others go on without one. NULL is fine. In a forked child it does nothing.
 *
 * If something that was made from the rank still exists (a store, a KV cache in its heap, an expert-parallel group), only
 * the handle ends now: the rank leaves, and its master ends, when the last of them is destroyed.
 *
 * Blocks for the GPU if the world has a device (not after `nmc_world_abort`: then make sure that no kernel of this
 * process uses the heaps), and until other threads are out of their calls. Thread-safe: of several callers one
 * succeeds. Not graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_world_destroy(struct nmc_world_t *world);

/**
 * Stores facts about the world. Thread-safe, does not block, graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_world_info(const struct nmc_world_t *world, struct nmc_world_info_t *out_info);

/**
 * Stores facts about a rank. Thread-safe, does not block, graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
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
 * barrier is still open, and the next call continues to wait for it: also together with a process that has taken the
 * place of a dead rank. After a barrier all ranks know the same holders of all ranks.
 *
 * A rank that was never taken is not waited for. A rank that joins while a barrier is open takes part in it, or finds
 * it passed: its own count begins where that of the others is.
 *
 * Blocks up to `timeout_ms` (-1 for 30 s). One thread per handle at a time. Not graph-safe. Statuses:
 * `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST` (names the
 * rank), `NMC_ERR_CANCELLED` (the rank has left, aborted or is being destroyed), `NMC_ERR_BUSY` (another thread is in
 * it).
 */
nmc_status_t nmc_world_barrier(const struct nmc_world_t *world, int64_t timeout_ms);

/**
 * Proves the paths between all ranks: each writes a pattern into every heap, publishes it with a system-scope
 * release, and compares every byte that the others wrote for it; on CUDA heaps with kernels. All ranks must call it
 * with the same `seed`. **Overwrites** up to `world_size` MiB at the start of every heap and the first `world_size`
 * control words of every rank. While a rank is `NMC_RANK_ABSENT` it fails with `NMC_ERR_PEER_LOST`.
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
                                   size_t *out_needed);

/**
 * Writes the world as text for people into `buffer`, NUL-terminated. `*out_needed` (may be NULL) receives the size that
 * the whole text needs; with capacity 0 nothing else happens.
 *
 * Thread-safe, does not block, graph-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
 * `NMC_ERR_TOO_SMALL` (as much as fits was written), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_world_dump(const struct nmc_world_t *world,
                            char *buffer,
                            size_t capacity,
                            size_t *out_needed);

/** @} */

/* == Master ======================================================================================================= */

/**
 * @defgroup master Master
 * The master of a world and of its store, in a process that is not a rank.
 *
 * You need this only if ranks join with `NMC_MASTER_EXTERNAL`; otherwise rank 0 runs the master. One process calls
 * `nmc_master_start` with the same name and sizes as the ranks, before or after they start. Ranks need the master to join and to
 * write to the store. They do not need it to use heaps, to read objects, or to detect deaths. If the master's process dies, start
 * it again: the surviving ranks hand the world back to it. `nmc_master_destroy` ends it. `nmc master` is the same as a command.
 * @{
 */

/** The master of a world and that of its store, each on a thread of its own. */
typedef struct nmc_master_t nmc_master_t;

/**
 * Starts the master of the world that `config` describes, and of its store, for ranks that join with `NMC_MASTER_EXTERNAL`. `rank` and
 * the fields about own memory are not used. It takes over a world whose former master died, as soon as a survivor
 * reports; and it serves the next world of the same name when all ranks have left.
 *
 * Waits at most half a second for a master that is just ending. Thread-safe. Not graph-safe. The handle is destroyed
 * with `nmc_master_destroy`.
 * Statuses: those of `nmc_world_join`; `NMC_ERR_EXISTS` if a master of that name is running.
 */
nmc_status_t nmc_master_start(const struct nmc_world_config_t *config,
                              struct nmc_master_t **out_master);

/**
 * Ends the master. Ranks that have joined go on without it; no further rank can join. NULL is fine. In a forked child
 * it does nothing.
 *
 * Blocks until its thread has ended, which is soon. Graph-safe. Thread-safe: of several callers one succeeds.
 * Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_master_destroy(struct nmc_master_t *master);

/** @} */

/* == Store ======================================================================================================== */

/**
 * @defgroup store Store
 * Immutable objects by key: one process writes, all read, in place or as a copy.
 *
 * `nmc_store_create` attaches to the store of a world, or creates a store inside this process if the world is NULL. To copy values,
 * use `nmc_store_put` and `nmc_store_get_into`. To work in place, `nmc_store_open_for_write` returns where to write and
 * `nmc_store_commit` publishes; `nmc_store_pin` returns the address of an object, whose bytes stay there until `nmc_store_unpin`. An
 * object never changes; it is replaced, removed or evicted as a whole. `nmc_store_wait_ready` and `nmc_store_watch` wait for an object. Calls
 * ending in `_batch` take many keys, calls ending in `_async` enqueue on a CUDA stream. Reads do not need the master.
 * @{
 */

/**
 * Keep a CRC32C of every page and check it on every read by the library. The checksums are stored by
 * `nmc_store_commit`: until then, such reads of an object that its program published by itself return `NMC_NOT_READY`.
 */
#define NMC_STORE_CHECKSUMS 1

/**
 * The store waits for its tier. While the tier is not open (`nmc_tier_open` in the process of the master), calls that
 * store, remove or replace something return `NMC_ERR_UNAVAILABLE`, and so do reads of what is not in memory, instead
 * of `NMC_ERR_NOT_FOUND`. Use this for stores that start with the contents of a directory: without it, other ranks may
 * store a key that is on disk before that is known. Counts in the process of the master; others ignore it.
 */
#define NMC_STORE_WAIT_FOR_TIER 2

/** Store the value in one run of pages. */
#define NMC_PUT_CONTIGUOUS 1

/**
 * Replace an object with the same key; readers see the old value until the new one is complete. If the store is a node
 * of a cluster, copies that other nodes have stay, see `nmc_client_attach_store`.
 */
#define NMC_PUT_REPLACE 2

/**
 * If the rank that is to hold the value has no room, cannot hold anything or has no holder, use another rank. First
 * the store looks for a rank that has room without evicting anything: the preferred one, otherwise the one with the
 * most free pages. If there is none, the preferred rank evicts, and if it cannot, the others do, in the same order.
 * `dst_rank` of the plan, or `nmc_store_get_location`, says which rank it is.
 */
#define NMC_PUT_ANY_RANK 4

/** Evicted as the config says. */
#define NMC_RETAIN_NONE 0

/** Evicted when nothing else is left, or when its time is over. */
#define NMC_RETAIN_SOFT 1

/** Never evicted, only removed. */
#define NMC_RETAIN_HARD 2

/** There is no such object. */
#define NMC_OBJECT_ABSENT 0

/** The object is being written. */
#define NMC_OBJECT_WRITING 1

/** The object can be read. */
#define NMC_OBJECT_READY 2

/** The object is not in memory, but can be read from disk. It cannot be pinned. */
#define NMC_OBJECT_ON_DISK 3

/**
 * The object is not in this store, but can be read from a node of the cluster. Only handles of `nmc_client_open_store`
 * return this. The object cannot be pinned.
 */
#define NMC_OBJECT_ELSEWHERE 4

/** Most bytes of an object's metadata. */
#define NMC_MAX_METADATA 256

/** Also wait for a key that is not being written yet. */
#define NMC_WAIT_APPEAR 1

/**
 * How a store is made or attached to. Start from `NMC_STORE_CONFIG_INIT`. With a world, all ranks must agree on
 * everything but the timeouts; without one, `heap_bytes` must be set.
 */
typedef struct nmc_store_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Bytes of each rank's heap that the store uses, rounded down to whole pages. 0: with a world, the heap from
   * `heap_offset` to its end.
   */
  uint64_t heap_bytes;
  /** First byte of each heap that the store uses, a multiple of `page_bytes`. */
  uint64_t heap_offset;
  /**
   * Bytes for keys, metadata and long lists of extents; 0 for 64 bytes an object. A key takes room there for what is behind
   * its first 32 bytes, metadata for all of it.
   */
  uint64_t key_slab_bytes;
  /** Bytes of a page, a power of two from 4 KiB to 2 MiB; 0 for 256 KiB. Values take whole pages. */
  uint32_t page_bytes;
  /** Most objects at a time; 0 for one a page, between 1,024 and 1,048,576. */
  uint32_t max_objects;
  /** Most pins that a client can hold at a time; 0 for 1,024. */
  uint32_t pin_slots;
  /** `NMC_EVICT_FIFO`, `NMC_EVICT_LRU` or `NMC_EVICT_S3FIFO`. */
  uint32_t eviction;
  /** 0, or `NMC_STORE_*` flags. */
  uint32_t flags;
  /** Rank whose process runs the master; not used when the world's master runs elsewhere. */
  int32_t master_rank;
  /** Usage of a heap, in 1/1000, above which the master evicts; -1 for 950. */
  int32_t high_permille;
  /** Usage of a heap, in 1/1000, down to which it evicts then; -1 for 850. */
  int32_t low_permille;
  /** Time after which an object that was not published is taken from its writer, in ms; -1 for 30 s. */
  int32_t watchdog_ms;
  /** Embedded store: number of heaps; 0 for 1. */
  uint32_t world_size;
  /** Embedded store: `NMC_HEAP_HOST` or `NMC_HEAP_CUDA`. */
  uint32_t heap_kind;
  /** Embedded store: CUDA device, as in `nmc_world_config_t`. */
  int32_t device;
  /** Embedded store: `NMC_HEAP_*` flags, as in `nmc_world_config_t`. */
  uint32_t heap_flags;
  /** Zero. */
  uint32_t reserved0;
  /** How long to wait for the store's master when attaching, in ms; -1 for 30 s. */
  int64_t attach_timeout_ms;
  /** How long a call waits for the master, in ms; -1 for 10 s. */
  int64_t call_timeout_ms;
  /**
   * Embedded store with one heap: memory of the program to use as this heap, `heap_offset` and `heap_bytes` bytes of
   * it; `NMC_IMPORT_NONE` for memory of the library. It stays the program's. The program must not touch it until the
   * last handle of the store is destroyed, or `nmc_client_unmount` of what was mounted has returned.
   */
  struct nmc_memory_t heap_import;
  /** Zero. */
  uint64_t reserved[2];
} nmc_store_config_t;

/** What an nmc_store_config_t starts from. */
#define NMC_STORE_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_store_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* heap_bytes */ 0, \
    /* heap_offset */ 0, \
    /* key_slab_bytes */ 0, \
    /* page_bytes */ 0, \
    /* max_objects */ 0, \
    /* pin_slots */ 0, \
    /* eviction */ NMC_EVICT_FIFO, \
    /* flags */ 0, \
    /* master_rank */ 0, \
    /* high_permille */ -1, \
    /* low_permille */ -1, \
    /* watchdog_ms */ -1, \
    /* world_size */ 0, \
    /* heap_kind */ NMC_HEAP_HOST, \
    /* device */ -1, \
    /* heap_flags */ 0, \
    /* reserved0 */ 0, \
    /* attach_timeout_ms */ -1, \
    /* call_timeout_ms */ -1, \
    /* heap_import */ {NMC_IMPORT_NONE, -1, NULL}, \
    /* reserved */ {0, 0} \
  }

/** How a value is stored. Start from `NMC_PUT_OPTIONS_INIT`; NULL means the same. */
typedef struct nmc_put_options_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** Rank whose heap is to hold the value; -1 for `key_hash` of `nmc_write_plan_t` modulo the number of ranks. */
  int32_t preferred_segment;
  /** 0, or `NMC_PUT_*` flags. */
  uint32_t flags;
  /** One of `NMC_RETAIN_*`. */
  uint32_t retain;
  /** 0 to 3; lower ones are evicted first. */
  uint32_t priority;
  /** For `NMC_RETAIN_SOFT`: how long, in ms; 0 for no end. */
  uint64_t ttl_ms;
  /**
   * How long to wait for room if there is none, in ms: 0 for not at all, -1 for `call_timeout_ms` of the store, at
   * most 7 days (as for all waiting times). Room appears when readers unpin, writers commit or give up, or objects
   * are removed. `NMC_ERR_BUSY`, `NMC_ERR_LIMIT` and `NMC_ERR_NO_SPACE` then mean that none appeared in time; a
   * value that no empty heap and no unused quota could hold is `NMC_ERR_NO_SPACE` at once. Waiting calls are served
   * in no particular order.
   */
  int64_t wait_ms;
  /**
   * Metadata of the object, up to `NMC_MAX_METADATA` bytes, which `nmc_store_get_metadata` reads. It comes and goes
   * with the value, and with `NMC_STORE_CHECKSUMS` it is verified with it.
   */
  struct nmc_slice_t metadata;
  /** In calls for `n` objects: NULL, or metadata for each of them instead. */
  const struct nmc_slice_t *metadata_each;
  /** Zero. */
  uint64_t reserved[2];
} nmc_put_options_t;

/** What an nmc_put_options_t starts from. */
#define NMC_PUT_OPTIONS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_put_options_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* preferred_segment */ -1, \
    /* flags */ 0, \
    /* retain */ NMC_RETAIN_NONE, \
    /* priority */ 0, \
    /* ttl_ms */ 0, \
    /* wait_ms */ 0, \
    /* metadata */ {NULL, 0}, \
    /* metadata_each */ NULL, \
    /* reserved */ {0, 0} \
  }

/**
 * Where the program stores the bytes of an object that it writes itself. Addresses are valid in this process until the
 * plan is committed or aborted. Pages are consecutive within an extent; `nmc_store_plan_extents` lists the extents.
 */
typedef struct nmc_write_plan_t {
  /** xxh64 of the key, seeded with the number of its namespace. */
  uint64_t key_hash;
  /** Name of the plan; it cannot be guessed. */
  uint64_t plan_id;
  /** What has to be published. */
  uint64_t epoch;
  /** Bytes of the value. */
  uint64_t bytes_total;
  /** First byte of the first extent; a device pointer for CUDA heaps. NULL for an empty value. */
  void *payload;
  /** The same for the GPU: equal for CUDA heaps, the registered address for host heaps, NULL without a device. */
  void *payload_device;
  /** The object's header in shared memory; read-only. */
  const void *header;
  /** The word that is to become `epoch` when all bytes are stored. */
  uint64_t *publish_word;
  /** The same for the GPU; NULL without a device. */
  uint64_t *publish_word_device;
  /** Rank whose heap holds the value. */
  uint32_t dst_rank;
  /** Bytes of a page. */
  uint32_t page_bytes;
  /** Pages of the value. */
  uint32_t n_pages;
  /** Bytes used of the last page; 0 for an empty value. */
  uint32_t last_page_bytes;
  /** Extents of the value. */
  uint32_t n_extents;
  /** Number of the header. */
  uint32_t index;
  /** Zero. */
  uint64_t reserved[2];
} nmc_write_plan_t;

/** Where an object is. */
typedef struct nmc_object_meta_t {
  /** xxh64 of the key, seeded with the number of its namespace. */
  uint64_t key_hash;
  /** Epoch of the object: another object with the same key has another one. */
  uint64_t epoch;
  /** Bytes of the value. */
  uint64_t bytes_total;
  /** First byte of the value in this process; a device pointer for CUDA heaps. To be read only while pinned. */
  const void *payload;
  /** The object's header in shared memory; read-only. */
  const void *header;
  /** Rank whose heap holds the value. */
  uint32_t owner_rank;
  /** Bytes of a page. */
  uint32_t page_bytes;
  /** Pages of the value. */
  uint32_t n_pages;
  /** Bytes used of the last page; 0 for an empty value. */
  uint32_t last_page_bytes;
  /** Extents of the value; with one, all bytes are consecutive. */
  uint32_t n_extents;
  /** Number of the header. */
  uint32_t index;
  /** Zero. */
  uint64_t reserved[2];
} nmc_object_meta_t;

/** A pinned object: its bytes stay where and what they are until `nmc_store_unpin`. */
typedef struct nmc_view_t {
  /** First byte of the value in this process; a device pointer for CUDA heaps. NULL for an empty value. */
  const void *data;
  /** The same for the GPU: equal for CUDA heaps, the registered address for host heaps, NULL without a device. */
  const void *data_device;
  /** Bytes of the value. */
  uint64_t bytes;
  /** Epoch of the object. */
  uint64_t epoch;
  /** Pages that are ready; all of them, unless the object is still being written. */
  uint32_t ready_pages;
  /** Extents of the value; with one, all bytes are consecutive. */
  uint32_t n_extents;
  /** Rank whose heap holds the value. */
  uint32_t owner_rank;
  /** Bytes of a page. */
  uint32_t page_bytes;
  /** Number of the header. */
  uint32_t index;
  /** Pin slot. */
  uint32_t slot;
  /** Distinguishes this pin from an earlier one of the same object in the same slot. */
  uint64_t nonce;
} nmc_view_t;

/** A run of consecutive bytes of a value. */
typedef struct nmc_extent_t {
  /** First byte in this process; a device pointer for CUDA heaps. */
  void *ptr;
  /** The same for the GPU; NULL without a device. */
  void *device_ptr;
  /** Bytes of the value in this run. */
  uint64_t bytes;
} nmc_extent_t;

/** Memory of the caller that is written to. */
typedef struct nmc_buffer_t {
  /** First byte. */
  void *ptr;
  /** Bytes. */
  size_t len;
} nmc_buffer_t;

/** Outcome of watching a key. */
typedef struct nmc_completion_t {
  /** What the caller passed to `nmc_store_watch`. */
  uint64_t token;
  /** `NMC_OK` if the object can be read; else why it will not become so. */
  int32_t status;
  /**
   * How many completions just before this one were dropped, because more than `NMC_MAX_COMPLETIONS` waited; mostly
   * 0. If it is not, look at the keys that the program still waits for (`nmc_store_exists_batch`), or watch them
   * again.
   */
  uint32_t lost;
} nmc_completion_t;

/** Most completions of one client that wait to be taken. When there are more, the oldest go. */
#define NMC_MAX_COMPLETIONS 65536

/**
 * When a call that found no room may be worth repeating (`nmc_store_retry_hint`).
 * Start from `NMC_RETRY_HINT_INIT`.
 */
typedef struct nmc_retry_hint_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /**
   * Try again after this time, in microseconds; 0 if waiting alone will not help, because no room is about to become
   * free.
   */
  uint64_t retry_after_us;
  /** Bytes that are free. */
  uint64_t free_bytes;
  /** Bytes of the largest free run. */
  uint64_t largest_free_bytes;
  /** Bytes that will be free when readers unpin and late writers stop. */
  uint64_t waiting_bytes;
  /** Objects that could be evicted if they were not pinned. */
  uint64_t ready_count;
} nmc_retry_hint_t;

/** What an nmc_retry_hint_t starts from. */
#define NMC_RETRY_HINT_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_retry_hint_t), \
    /* reserved */ 0, \
    /* retry_after_us */ 0, \
    /* free_bytes */ 0, \
    /* largest_free_bytes */ 0, \
    /* waiting_bytes */ 0, \
    /* ready_count */ 0 \
  }

/** Counters of one rank's heap. Start from `NMC_STORE_RANK_STATS_INIT`. */
typedef struct nmc_store_rank_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Bytes in pages that are not free. */
  uint64_t bytes_used;
  /** Bytes in pages. */
  uint64_t bytes_total;
  /** Objects that the master knows to be readable. */
  uint64_t ready_count;
  /** Objects that are being written, as far as the master knows. */
  uint64_t writing_count;
  /** Objects evicted so far. */
  uint64_t evict_count;
  /** Requests that found no room. */
  uint64_t oom_count;
  /** Evictions that found the object pinned. */
  uint64_t evict_in_use_retry;
  /** Objects that the watchdog took from a writer that was late. */
  uint64_t stuck_put_reclaimed;
  /** Bytes that wait for a writer to stop. */
  uint64_t quarantined_bytes;
  /** Bytes that wait for a reader to unpin. */
  uint64_t limbo_bytes;
  /** Free runs of pages. */
  uint64_t free_runs;
  /** Bytes of the largest free run. */
  uint64_t largest_free_bytes;
} nmc_store_rank_stats_t;

/** What an nmc_store_rank_stats_t starts from. */
#define NMC_STORE_RANK_STATS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_store_rank_stats_t), \
    /* reserved */ 0, \
    /* bytes_used */ 0, \
    /* bytes_total */ 0, \
    /* ready_count */ 0, \
    /* writing_count */ 0, \
    /* evict_count */ 0, \
    /* oom_count */ 0, \
    /* evict_in_use_retry */ 0, \
    /* stuck_put_reclaimed */ 0, \
    /* quarantined_bytes */ 0, \
    /* limbo_bytes */ 0, \
    /* free_runs */ 0, \
    /* largest_free_bytes */ 0 \
  }

/**
 * Counters of a store: of all ranks together, as in `nmc_store_rank_stats_t`, and of this client. Start from
 * `NMC_STORE_STATS_INIT`.
 */
typedef struct nmc_store_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Number of ranks. */
  uint32_t n_ranks;
  /** Bytes in pages that are not free. */
  uint64_t bytes_used;
  /** Bytes in pages. */
  uint64_t bytes_total;
  /** Objects that the master knows to be readable. */
  uint64_t ready_count;
  /** Objects that are being written, as far as the master knows. */
  uint64_t writing_count;
  /** Objects evicted so far. */
  uint64_t evict_count;
  /** Requests that found no room. */
  uint64_t oom_count;
  /** Evictions that found the object pinned. */
  uint64_t evict_in_use_retry;
  /** Objects that the watchdog took from a writer that was late. */
  uint64_t stuck_put_reclaimed;
  /** Bytes that wait for a writer to stop. */
  uint64_t quarantined_bytes;
  /** Bytes that wait for a reader to unpin. */
  uint64_t limbo_bytes;
  /** Free runs of pages. */
  uint64_t free_runs;
  /** Bytes of the largest free run of any rank. */
  uint64_t largest_free_bytes;
  /** Moving average of the time for a plan, in microseconds. */
  uint64_t t_plan_us;
  /** Moving average of the bytes of a put. */
  uint64_t bytes_tx;
  /** Moving average of the bytes of a get. */
  uint64_t bytes_rx;
  /** Values that this client has written. */
  uint64_t puts;
  /** Bytes that this client has written. */
  uint64_t bytes_written;
  /** Reads of this client that found their object. */
  uint64_t get_hits;
  /** Reads of this client that did not. */
  uint64_t get_misses;
  /** Bytes that this client has read. */
  uint64_t bytes_read;
  /** Share of reads that found their object, in 1/1000. */
  uint64_t hit_permille;
  /** Half of the puts (a sample) took less than this, in ns, to the next power of two. */
  uint64_t put_p50_ns;
  /** 99 % of the puts (a sample) took less than this. */
  uint64_t put_p99_ns;
  /** Half of the gets (a sample) took less than this. */
  uint64_t get_p50_ns;
  /** 99 % of the gets (a sample) took less than this. */
  uint64_t get_p99_ns;
  /** Bytes of shared memory for headers, keys, index and words. */
  uint64_t metadata_bytes;
  /** Bytes of this process that the master takes, if it is here. */
  uint64_t master_bytes;
  /** 1 if the master can be reached. */
  uint64_t master_up;
} nmc_store_stats_t;

/** What an nmc_store_stats_t starts from. */
#define NMC_STORE_STATS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_store_stats_t), \
    /* n_ranks */ 0, \
    /* bytes_used */ 0, \
    /* bytes_total */ 0, \
    /* ready_count */ 0, \
    /* writing_count */ 0, \
    /* evict_count */ 0, \
    /* oom_count */ 0, \
    /* evict_in_use_retry */ 0, \
    /* stuck_put_reclaimed */ 0, \
    /* quarantined_bytes */ 0, \
    /* limbo_bytes */ 0, \
    /* free_runs */ 0, \
    /* largest_free_bytes */ 0, \
    /* t_plan_us */ 0, \
    /* bytes_tx */ 0, \
    /* bytes_rx */ 0, \
    /* puts */ 0, \
    /* bytes_written */ 0, \
    /* get_hits */ 0, \
    /* get_misses */ 0, \
    /* bytes_read */ 0, \
    /* hit_permille */ 0, \
    /* put_p50_ns */ 0, \
    /* put_p99_ns */ 0, \
    /* get_p50_ns */ 0, \
    /* get_p99_ns */ 0, \
    /* metadata_bytes */ 0, \
    /* master_bytes */ 0, \
    /* master_up */ 0 \
  }

/**
 * A client of a store, in one of its namespaces. All functions that take it may be called from any thread at the same
 * time, even while another thread destroys it.
 *
 * Reads (`get`, `pin`, `exists`, `match_prefix`, ...) never ask the master, and go on while it is away. Calls that do
 * ask the master return `NMC_ERR_UNAVAILABLE` then, and can be repeated. Calls that wait for its answer return
 * `NMC_ERR_CANCELLED` when `nmc_store_cancel`, destroy or `nmc_world_abort` ends the wait.
 *
 * To read an SSD tier that another process owns, a client needs its index. It gets it in the background, once for each
 * opening of the tier: when the client attaches, and soon (0.1 s) after the tier was opened. A read of a key that is
 * not in memory, and that comes before that, waits for it, for 500 ms at most; otherwise reads do not block. If the
 * owner does not answer in that time, the read returns `NMC_ERR_UNAVAILABLE`. All reads after it then do so at once,
 * without waiting, until the owner has answered. Keys in memory are not affected.
 *
 * Statuses that every function can return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG` (keys have 1
 * to 1,024 bytes), `NMC_ERR_NO_MEMORY` (the message says how much was refused). Those that read values or keys from a
 * tier can also return `NMC_ERR_PERMISSION` (a file of the tier must not be opened, or is no regular file any more).
 */
typedef struct nmc_store_t nmc_store_t;

/**
 * Creates a store, or attaches to the store of a world, and stores a handle in `*out_store`. Destroy it with
 * `nmc_store_destroy`.
 *
 * With `world` NULL the store is embedded: it has a heap of `config->heap_bytes` of its own, in this process alone,
 * without socket, files or threads. With a world, the calling rank becomes a client of the world's one store; the
 * process of `master_rank` (or the world's external master) runs the master. The world must not be destroyed before
 * the store.
 *
 * Blocks up to `attach_timeout_ms` for the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_VERSION`,
 * `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_TIMEOUT` (says who is missing), `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the rank has left), `NMC_ERR_PERMISSION`, `NMC_ERR_PROTOCOL`, `NMC_ERR_OS`,
 * `NMC_ERR_UNSUPPORTED` (among others: a rank of the world lends its memory, see `nmc_world_config_t.heap_import`),
 * `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_create(struct nmc_world_t *world,
                              const struct nmc_store_config_t *config,
                              struct nmc_store_t **out_store);

/**
 * Opens a namespace of the same store and stores a handle for it in `*out_store`. A namespace has keys of its own, an
 * optional quota, and `nmc_store_remove_all` removes only its objects. `quota_bytes` limits the bytes of its pages on
 * all ranks together: a put that would exceed it evicts objects of this namespace first, and of no other. 0 means no
 * limit, `UINT64_MAX` leaves the quota as it is. Names have 1 to 64 bytes; there are at most 63 namespaces.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`,
 * `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_namespace(struct nmc_store_t *store,
                                 struct nmc_slice_t name,
                                 uint64_t quota_bytes,
                                 struct nmc_store_t **out_store);

/**
 * Destroys a handle. With the last one of a client its pins end, its open plans are given up, and it leaves the store:
 * no kernel and no thread of the program may use its views and plans any more. NULL is fine; in a forked child it does
 * nothing.
 *
 * Blocks until calls of other threads have returned: those that wait, for an object, for room or for a master that does not
 * answer, are cancelled. Not graph-safe. Thread-safe: of several callers one succeeds.
 * Statuses: `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_store_destroy(struct nmc_store_t *store);

/**
 * Stores a value of `bytes` bytes under `key`. `options` may be NULL. Device memory is copied on a stream of the
 * library, so whatever the program's streams write to it must be done before the call. A key that is only on disk
 * counts as existing; with `NMC_PUT_REPLACE` its copy on disk ends when the new value takes its place.
 *
 * Asks the master once, unless it waits for room (`wait_ms`). Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS`
 * (the old value stays), `NMC_ERR_BUSY` (everything else is pinned, retained or being written: try again,
 * `nmc_store_retry_hint` says when, or wait for room), `NMC_ERR_CANCELLED` (the wait was cancelled),
 * `NMC_ERR_NO_SPACE` (larger than a heap or the namespace's quota, or nothing of the namespace can be evicted to stay
 * within it), `NMC_ERR_LIMIT` (headers, or the slab for keys and metadata), `NMC_ERR_STALE` (it took longer than the
 * watchdog allows, or the key was removed during the call), `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST`, `NMC_ERR_NOT_FOUND` (the namespace), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_put(struct nmc_store_t *store,
                           struct nmc_slice_t key,
                           const void *data,
                           size_t bytes,
                           const struct nmc_put_options_t *options);

/** Like `nmc_store_put`, from `n` slices of host or device memory one after the other. */
nmc_status_t nmc_store_put_slices(struct nmc_store_t *store,
                                  struct nmc_slice_t key,
                                  const struct nmc_slice_t *slices,
                                  size_t n,
                                  const struct nmc_put_options_t *options);

/** Like `nmc_store_put`, from `rows` rows of `row_bytes` bytes whose beginnings are `stride` bytes apart. */
nmc_status_t nmc_store_put_strided(struct nmc_store_t *store,
                                   struct nmc_slice_t key,
                                   const void *data,
                                   size_t rows,
                                   size_t row_bytes,
                                   size_t stride,
                                   const struct nmc_put_options_t *options);

/**
 * Reads a value into `buffer` and stores its size in `*out_bytes`, if not NULL. With `capacity` 0 and `out_bytes` it
 * only stores the size. If the buffer is too small, only the size is stored. A value that is only on disk is read from
 * there by the calling process. After a failure the contents of the buffer are undefined.
 *
 * Blocks only for the disk, and does not ask the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is
 * being written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_CORRUPT` (a
 * checksum is wrong, and the buffer does not have the value, or the object's header was overwritten),
 * `NMC_ERR_PEER_LOST`, `NMC_ERR_CUDA`, `NMC_ERR_NO_MEMORY` (for a list of many buffers, or to copy device memory),
 * `NMC_ERR_IO` (the disk failed), `NMC_ERR_LIMIT` (no descriptor is left to read the disk; see `ulimit`),
 * `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
 * `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_get(struct nmc_store_t *store,
                           struct nmc_slice_t key,
                           void *buffer,
                           size_t capacity,
                           size_t *out_bytes);

/**
 * Reads a value of exactly `bytes` bytes into `dst`: another size is `NMC_ERR_INVALID_ARG`. A value that is on disk only is read
 * from there, straight into `dst` where that is aligned as the disk wants it. Otherwise like `nmc_store_get`.
 */
nmc_status_t nmc_store_get_into(struct nmc_store_t *store,
                                struct nmc_slice_t key,
                                void *dst,
                                size_t bytes);

/**
 * Reads a part of a value, from byte `offset` on, into `n` buffers of host or device memory, as many bytes as they hold.
 * Stores the size of the whole value in `*out_bytes`, if that is not NULL. A part that reaches behind the end of the value
 * is `NMC_ERR_INVALID_ARG`. Of a value that is on disk only, the 64 KiB that the part touches are read. Otherwise like
 * `nmc_store_get`.
 */
nmc_status_t nmc_store_get_slices(struct nmc_store_t *store,
                                  struct nmc_slice_t key,
                                  uint64_t offset,
                                  const struct nmc_buffer_t *buffers,
                                  size_t n,
                                  size_t *out_bytes);

/** Like `nmc_store_get_slices`, into `rows` rows of `row_bytes` bytes whose beginnings are `stride` bytes apart. */
nmc_status_t nmc_store_get_strided(struct nmc_store_t *store,
                                   struct nmc_slice_t key,
                                   uint64_t offset,
                                   void *dst,
                                   size_t rows,
                                   size_t row_bytes,
                                   size_t stride);

/**
 * Reads an object's metadata, which its writer passed as `metadata` of `nmc_put_options_t`, into `buffer`. Stores its
 * size in `*out_bytes`, if not NULL; 0 if there is none. With `capacity` 0 and `out_bytes` it only stores the size. If
 * the buffer is too small, only the size is stored. `NMC_MAX_METADATA` bytes are always enough. The metadata of an
 * object that is only on disk is read from there. Through a handle of `nmc_client_open_store`, a node is asked for the
 * metadata of an object that is nowhere in this store.
 *
 * Blocks only for the disk and for nodes, and does not ask the master. It does not count as an access or as a read.
 * Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY` (it is being written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`,
 * `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_CORRUPT` (with `NMC_STORE_CHECKSUMS`, or on disk: it is not what the
 * writer passed), `NMC_ERR_IO` (the disk failed), `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be
 * read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_get_metadata(struct nmc_store_t *store,
                                    struct nmc_slice_t key,
                                    void *buffer,
                                    size_t capacity,
                                    size_t *out_bytes);

/**
 * Stores in `*out_state` whether the object is `NMC_OBJECT_ABSENT`, `_WRITING`, `_READY`, or, if it is only on disk,
 * `_ON_DISK`. It does not pin the object, does not count as an access, and does not read the disk.
 *
 * Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
 * Statuses: `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
 * `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_exists(struct nmc_store_t *store, struct nmc_slice_t key, uint32_t *out_state);

/**
 * Removes an object at once. Readers that have pinned it keep it; its memory is free when all have unpinned. Its copy
 * on disk ends too, even if the object is only on disk: it does not come back, whatever process is killed after this
 * has returned (for a power loss, see `NMC_TIER_DURABLE_REMOVE`).
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`, `NMC_ERR_IO` (the object is gone, but the disk refused to note it: after a restart it may be
 * there again).
 */
nmc_status_t nmc_store_remove(struct nmc_store_t *store, struct nmc_slice_t key);

/**
 * Removes all objects of the namespace whose keys begin with `prefix`, in memory and on disk. Stores how many in
 * `*out_removed`, if not NULL; an object that is in both places, or is being replaced, counts once. To find those that
 * are only on disk, it reads the ends of all buckets. It takes one call of the master for every few thousand objects
 * that the store can hold. Otherwise like `nmc_store_remove`; also `NMC_ERR_BUSY` (values kept coming back into memory and
 * leaving the disk meanwhile: some may be left), `NMC_ERR_CORRUPT` (the end of a bucket is damaged, or its file is not there:
 * some are left; `nmc_tier_verify` gives up those that cannot be read), and `NMC_ERR_LIMIT` (no descriptor is left to read
 * the disk; see `ulimit`).
 */
nmc_status_t nmc_store_remove_by_prefix(struct nmc_store_t *store,
                                        struct nmc_slice_t prefix,
                                        uint64_t *out_removed);

/**
 * Removes all objects of the namespace at once, for example when the weights of a model have changed: from now on none
 * is found. Their memory becomes free gradually, and so does their space on disk. The removal is safe from a power
 * loss when this returns. Otherwise like `nmc_store_remove`.
 */
nmc_status_t nmc_store_remove_all(struct nmc_store_t *store);

/**
 * Counts as an access to the object, without reading it, for eviction policies other than FIFO. If the object is only
 * on disk, it counts as an access to its bucket.
 *
 * Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
 * Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be
 * read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_touch(struct nmc_store_t *store, struct nmc_slice_t key);

/**
 * Changes how an object is kept in memory: class, priority and time as in `nmc_put_options_t`. Returns `NMC_NOT_READY`
 * if the object is only on disk, where nothing keeps it. Otherwise like `nmc_store_remove`.
 */
nmc_status_t nmc_store_retain(struct nmc_store_t *store,
                              struct nmc_slice_t key,
                              uint32_t retain,
                              uint32_t priority,
                              uint64_t ttl_ms);

/**
 * Stores where in memory an object is, without pinning it: by the time the caller looks there, it may be gone.
 *
 * Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
 * Statuses: `NMC_NOT_READY` (it is being written, or is only on disk), `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`,
 * `NMC_ERR_PEER_LOST`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
 * `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_get_location(struct nmc_store_t *store,
                                    struct nmc_slice_t key,
                                    struct nmc_object_meta_t *out_meta);

/**
 * Opens an object of `bytes` bytes for writing. The program stores the bytes itself, where the plan says, with its own
 * kernels or memcpy, and then commits. Until then the object cannot be read, and the key counts as taken. A key that
 * is only on disk counts as existing, as for `nmc_store_put`.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses as for `nmc_store_put`.
 */
nmc_status_t nmc_store_open_for_write(struct nmc_store_t *store,
                                      struct nmc_slice_t key,
                                      uint64_t bytes,
                                      const struct nmc_put_options_t *options,
                                      struct nmc_write_plan_t *out_plan);

/**
 * Publishes an object whose bytes are all stored, by this thread or before it by others that it is ordered after. With
 * `NMC_PUT_REPLACE` the new value now takes the place of the old one, in memory and on disk. A program that publishes
 * by itself, by storing `epoch` into the publish word, also calls this soon after, since until then the library keeps
 * the plan; the call then only finds out the plan's outcome. Idempotent while the object lives.
 *
 * A plan with `NMC_PUT_REPLACE` for a key that exists is not a value of that key yet: `nmc_store_remove` removes the
 * old value and leaves the plan, whose commit then returns `NMC_OK` and stores the key anew.
 * `nmc_store_remove_by_prefix` and `nmc_store_remove_all` give up such a plan too.
 *
 * Asks the master only in these cases: to replace, to report that a plan which the master gave up is over, and if the
 * tier writes through or is new to the client (see `nmc_store_t`); it waits for the tier as for an answer.
 * Thread-safe. Graph-safe. Statuses: `NMC_ERR_STALE` (the master gave up the plan: it took longer than the watchdog
 * allows, or the key was removed), `NMC_ERR_NOT_FOUND` (no such plan, or aborted), `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` (when it replaces, or from the tier: the commit can be repeated).
 */
nmc_status_t nmc_store_commit(struct nmc_store_t *store,
                              const struct nmc_write_plan_t *plan);

/**
 * Publishes the first `pages` pages of a plan, whose bytes are stored: readers may begin with them
 * (`nmc_store_pin_partial`). Never fewer than before. Otherwise like `nmc_store_commit`.
 */
nmc_status_t nmc_store_publish_pages(struct nmc_store_t *store, const struct nmc_write_plan_t *plan, uint32_t pages);

/**
 * Gives up a plan. By calling this you declare that nothing stores to the plan any more: streams are drained, and no
 * captured graph will be launched with it again. The memory is free at once; after `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` it is free when the master hears of it. The plan is over in every case:
 * there is nothing to repeat.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_INVALID_ARG`
 * (it is committed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
 */
nmc_status_t nmc_store_abort(struct nmc_store_t *store, const struct nmc_write_plan_t *plan);

/**
 * The extents of a plan, in order: stores up to `capacity` of them and their number in `*out_n`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL` (`*out_n` is stored),
 * `NMC_ERR_PEER_LOST`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_plan_extents(struct nmc_store_t *store,
                                    const struct nmc_write_plan_t *plan,
                                    struct nmc_extent_t *out_extents,
                                    size_t capacity,
                                    size_t *out_n);

/** The extents of a pinned object, in order. Otherwise like `nmc_store_plan_extents`. */
nmc_status_t nmc_store_view_extents(struct nmc_store_t *store,
                                    const struct nmc_view_t *view,
                                    struct nmc_extent_t *out_extents,
                                    size_t capacity,
                                    size_t *out_n);

/**
 * Pins an object and stores a view of it. Its bytes stay where and what they are until `nmc_store_unpin`, even if the
 * object is removed or evicted, or the master dies. Unpin soon: pinned memory cannot be evicted.
 *
 * Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe
 * (the CPU pins before the launch). Statuses: `NMC_NOT_READY` (it is being written, or is only on disk:
 * `nmc_store_get_into` reads it from there), `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY` (no free pin slot),
 * `NMC_ERR_PEER_LOST`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
 * `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_pin(struct nmc_store_t *store, struct nmc_slice_t key, struct nmc_view_t *out_view);

/**
 * Pins an object and removes it, for exactly one consumer: of several that ask, in any process, one gets a view; for
 * the others, and for every later call, the key does not exist. The view is one of `nmc_store_pin`; the memory is free
 * when it is unpinned.
 *
 * Delivery is at most once. When the call has succeeded, the object belongs to this consumer: if it is killed before
 * it unpins, the value is gone. A consumer that is killed during the call either leaves the object in the store or
 * takes it with it. After `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` the object may be gone too:
 * the master may have removed it, and its answer did not come in time. (A call that is cancelled while the master
 * works on it waits up to 250 ms for the answer: with a master that answers, nothing is lost.) If a value must survive
 * its consumer, pin it, use it, and remove it afterwards.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is being written, with
 * `NMC_STORE_CHECKSUMS` not yet committed, or only on disk: then it stays there), `NMC_ERR_NOT_FOUND` (also if another
 * consumer was faster), `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`,
 * `NMC_ERR_PEER_LOST`, `NMC_ERR_IO` (the disk of the store's tier refuses to note that it is gone: nothing was taken,
 * unless it refused for the first time).
 */
nmc_status_t nmc_store_consume(struct nmc_store_t *store,
                               struct nmc_slice_t key,
                               struct nmc_view_t *out_view);

/**
 * Compares every page of a pinned object with its checksum, as a get does: for programs that read in place.
 *
 * Reads the whole value; does not ask the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (its checksums are
 * not stored yet), `NMC_ERR_CORRUPT` (the message names the page), `NMC_ERR_UNSUPPORTED` (the store has no checksums: those on
 * CUDA heaps never do), `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_PEER_LOST`.
 */
nmc_status_t nmc_store_verify(struct nmc_store_t *store,
                              const struct nmc_view_t *view);

/** Like `nmc_store_get_metadata`, for an object that is pinned. */
nmc_status_t nmc_store_view_metadata(struct nmc_store_t *store,
                                     const struct nmc_view_t *view,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *out_bytes);

/**
 * Like `nmc_store_pin`, but also pins an object that is still being written, if at least its first `pages` pages are
 * ready (`nmc_store_publish_pages`). `ready_pages` of the view says how many are; only those may be read. If the
 * writer gives up, these pages stay until they are unpinned.
 */
nmc_status_t nmc_store_pin_partial(struct nmc_store_t *store,
                                   struct nmc_slice_t key,
                                   uint32_t pages,
                                   struct nmc_view_t *out_view);

/**
 * Ends a pin.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (it is not pinned, or not any more).
 */
nmc_status_t nmc_store_unpin(struct nmc_store_t *store, const struct nmc_view_t *view);

/**
 * Stores in `*out_pages` how many pages of a pinned object are ready by now.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_STALE` (its writer
 * gave up: no more will come).
 */
nmc_status_t nmc_store_ready_pages(struct nmc_store_t *store, const struct nmc_view_t *view, uint32_t *out_pages);

/**
 * Waits until an object can be read from memory. `flags` is 0, or `NMC_WAIT_APPEAR` to wait also for a key that is not
 * being written yet.
 *
 * Blocks up to `timeout_ms` (-1 for 30 s). Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (at once, if it is
 * only on disk: `nmc_store_get_into` reads it from there), `NMC_ERR_TIMEOUT` (not yet), `NMC_ERR_NOT_FOUND` (it is not
 * being written, or it existed and has been removed, replaced or evicted), `NMC_ERR_STALE` (its writer gave it up, or
 * was late), `NMC_ERR_PEER_LOST` (its writer is gone, or the memory that it was written to is; or it lies in memory
 * that its rank did not have when this client attached), `NMC_ERR_CANCELLED` (`nmc_store_cancel`, destroy, or the rank
 * has aborted), `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
 * `nmc_store_t`).
 */
nmc_status_t nmc_store_wait_ready(struct nmc_store_t *store,
                                  struct nmc_slice_t key,
                                  uint32_t flags,
                                  int64_t timeout_ms);

/** Like `nmc_store_wait_ready`, until at least the first `pages` pages are ready. */
nmc_status_t nmc_store_wait_pages(struct nmc_store_t *store,
                                  struct nmc_slice_t key,
                                  uint32_t pages,
                                  uint32_t flags,
                                  int64_t timeout_ms);

/**
 * Ends every wait and every watch of this client, in all threads, with `NMC_ERR_CANCELLED`: for an object, for room,
 * and for a master that does not answer. Later ones are not affected. Does not block. Thread-safe. Graph-safe.
 * Statuses: none of its own.
 */
nmc_status_t nmc_store_cancel(struct nmc_store_t *store);

/**
 * Watches a key: when the object can be read, or never will be, a completion with `token` is queued and the descriptor
 * of `nmc_store_event_fd` becomes readable. `flags` is as in `nmc_store_wait_ready`. The library runs a thread while
 * keys are watched; 65,536 keys can be watched at a time. This concerns memory only: a copy on disk is not looked at,
 * and nothing is queued when one is made or goes.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_store_watch(struct nmc_store_t *store,
                             struct nmc_slice_t key,
                             uint32_t flags,
                             uint64_t token);

/**
 * Takes queued completions, oldest first and at most `capacity`, and stores their number in `*out_n`. At most
 * `NMC_MAX_COMPLETIONS` are kept. If they are not taken, the oldest go, and `lost` of the next one that is taken, and
 * of that one alone, says how many went.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_store_completions(struct nmc_store_t *store,
                                   struct nmc_completion_t *out_completions,
                                   size_t capacity,
                                   size_t *out_n);

/**
 * Stores a descriptor in `*out_fd` that is readable (poll, epoll) while completions are queued. It belongs to the store: do
 * not close it. Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_store_event_fd(struct nmc_store_t *store,
                                int32_t *out_fd);

/**
 * Evicts objects of `rank` until at most `permille`/1000 of its heap are used, or nothing is left that may be evicted. Those that
 * are on disk can be read from there afterwards.
 *
 * Asks the master, several times if there is much to do. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_store_evict_until_below(struct nmc_store_t *store,
                                         int32_t rank,
                                         uint32_t permille);

/**
 * Stores in `*out_hint`, after `NMC_ERR_BUSY` or `NMC_ERR_NO_SPACE`, what is free on `rank`, what is about to become
 * free, and when to try again. `*out_hint` starts from `NMC_RETRY_HINT_INIT`.
 *
 * Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_store_retry_hint(struct nmc_store_t *store, int32_t rank, struct nmc_retry_hint_t *out_hint);

/**
 * Lists the objects of the namespace that can be read, one per call, in no particular order. Start with 0 in
 * `*cursor`. Each call stores a key (up to `capacity` bytes) in `key`, its length in `*out_key_len`, and the size of
 * the value in `*out_bytes`, if not NULL, and moves the cursor; `NMC_ERR_NOT_FOUND` is the end. Objects that are only
 * on disk or in both places come first, then those that are only in memory.
 *
 * Objects that come, go or are replaced during the listing may or may not be seen; objects that stay are seen. An
 * object is seen once if it stays where it is. It may be seen twice if it comes from disk into memory, leaves memory
 * for the disk, or has a record on disk that was found damaged. (One that leaves memory, comes back and then leaves
 * the disk too, all during one listing, may be missed.)
 *
 * Blocks only for the disk, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_TOO_SMALL` (`*out_key_len` is stored), `NMC_ERR_UNAVAILABLE` (the store's tier is not open, or cannot be
 * read yet, see `nmc_store_t`), `NMC_ERR_IO` and `NMC_ERR_CORRUPT` (the disk failed, or the list of a bucket is
 * damaged or not there), `NMC_ERR_LIMIT` (no descriptor is left to read the disk; see `ulimit`), `NMC_ERR_CANCELLED`
 * (while it waited for the tier). After an error the cursor stays.
 */
nmc_status_t nmc_store_next(struct nmc_store_t *store,
                            uint64_t *cursor,
                            void *key,
                            size_t capacity,
                            size_t *out_key_len,
                            uint64_t *out_bytes);

/**
 * Stores counters of the store and of this client in `*out_stats`, which starts from `NMC_STORE_STATS_INIT`, and those
 * of each rank in `out_ranks[0..n_ranks]`, if not NULL. Each element of `out_ranks` starts from
 * `NMC_STORE_RANK_STATS_INIT`; the size in the first one is the distance from one element to the next.
 *
 * Does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_stats(struct nmc_store_t *store,
                             struct nmc_store_rank_stats_t *out_ranks,
                             size_t n_ranks,
                             struct nmc_store_stats_t *out_stats);

/**
 * Writes the counters in the text format of Prometheus, as `nmc_world_dump` writes its text. Does not ask the master.
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*out_needed` is stored), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_prometheus(struct nmc_store_t *store, char *buffer, size_t capacity, size_t *out_needed);

/**
 * Writes a picture of the heaps, and what is waiting, for people: `#` used, `.` free, `+` mixed, `width` characters
 * per rank. Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*out_needed` is stored),
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_dump(struct nmc_store_t *store,
                            uint32_t width,
                            char *buffer,
                            size_t capacity,
                            size_t *out_needed);

/**
 * Stores `n` values, `values[i]` under `keys[i]`. `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for
 * `keys[i]`. `options` apply to all and may be NULL. One that fails does not stop the others. Otherwise like
 * `nmc_store_put`.
 *
 * Asks the master once for every 256 objects. Thread-safe. Not graph-safe. Returns `NMC_OK` if all succeeded,
 * otherwise the status of the first item that failed. Statuses as for `nmc_store_put`; `NMC_ERR_NO_MEMORY` is also
 * given for all items at once, before anything is done, if there is no memory for lists of `n`.
 */
nmc_status_t nmc_store_put_batch(struct nmc_store_t *store,
                                 const struct nmc_slice_t *keys,
                                 const struct nmc_slice_t *values,
                                 size_t n,
                                 const struct nmc_put_options_t *options,
                                 nmc_status_t *out_statuses);

/**
 * Reads `n` values into `buffers`, each of exactly the value's size. Values that are only on disk are read together:
 * up to `depth` of the tier requests are under way at a time, for 64 values at most. Items that are being written give
 * `NMC_NOT_READY`. Otherwise like `nmc_store_get_into` and `nmc_store_put_batch`.
 */
nmc_status_t nmc_store_get_into_batch(struct nmc_store_t *store,
                                      const struct nmc_slice_t *keys,
                                      const struct nmc_buffer_t *buffers,
                                      size_t n,
                                      nmc_status_t *out_statuses);

/**
 * Stores in `out_states[i]` whether the object `keys[i]` is `NMC_OBJECT_ABSENT`, `_WRITING`, `_READY` or, if it is
 * only on disk, `_ON_DISK`. Otherwise like `nmc_store_exists`.
 */
nmc_status_t nmc_store_exists_batch(struct nmc_store_t *store,
                                    const struct nmc_slice_t *keys,
                                    size_t n,
                                    uint32_t *out_states);

/**
 * Stores in `*out_matched` how many of the `n` keys, from the first one on, can be read from memory or from disk. This
 * tells an engine how much of a prompt is cached. It does not read the disk.
 *
 * Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
 * Statuses: `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (one is not in memory, and the tier cannot be read yet: see
 * `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_match_prefix(struct nmc_store_t *store,
                                    const struct nmc_slice_t *keys,
                                    size_t n,
                                    size_t *out_matched);

/** Removes `n` objects, in memory and on disk. Otherwise like `nmc_store_remove` and `nmc_store_put_batch`. */
nmc_status_t nmc_store_remove_batch(struct nmc_store_t *store,
                                    const struct nmc_slice_t *keys,
                                    size_t n,
                                    nmc_status_t *out_statuses);

/**
 * Opens `n` objects of `sizes[i]` bytes for writing. Plans of items that failed are all zero. Otherwise like
 * `nmc_store_open_for_write` and `nmc_store_put_batch`.
 */
nmc_status_t nmc_store_open_batch(struct nmc_store_t *store,
                                  const struct nmc_slice_t *keys,
                                  const uint64_t *sizes,
                                  size_t n,
                                  const struct nmc_put_options_t *options,
                                  struct nmc_write_plan_t *out_plans,
                                  nmc_status_t *out_statuses);

/** Commits `n` plans. Otherwise like `nmc_store_commit` and `nmc_store_put_batch`. */
nmc_status_t nmc_store_commit_batch(struct nmc_store_t *store,
                                    const struct nmc_write_plan_t *plans,
                                    size_t n,
                                    nmc_status_t *out_statuses);

/**
 * Pins `n` objects. If `out_pinned` is not NULL, pins as many as it can and stores their number there. If it is NULL,
 * pins all or none: a failure unpins those that were pinned. Views of items that failed are all zero. Otherwise like
 * `nmc_store_pin` and `nmc_store_put_batch`.
 */
nmc_status_t nmc_store_pin_batch(struct nmc_store_t *store,
                                 const struct nmc_slice_t *keys,
                                 size_t n,
                                 struct nmc_view_t *out_views,
                                 size_t *out_pinned,
                                 nmc_status_t *out_statuses);

/** Ends `n` pins. Otherwise like `nmc_store_unpin` and `nmc_store_put_batch`. */
nmc_status_t nmc_store_unpin_batch(struct nmc_store_t *store,
                                   const struct nmc_view_t *views,
                                   size_t n,
                                   nmc_status_t *out_statuses);

/**
 * Publishes a plan when the stream gets there, after everything that this stream stored before. Order what other
 * streams store before it with events. The value is baked into a captured graph: capture `nmc_store_publish_captured`
 * instead. Call `nmc_store_commit` afterwards for the plan's outcome.
 *
 * Does not block. Thread-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_UNSUPPORTED` (no device; a plan
 * with `NMC_PUT_REPLACE` or checksums), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_commit_async(struct nmc_store_t *store, const struct nmc_write_plan_t *plan, void *stream);

/**
 * Copies `n` slices of memory that the GPU can reach into the plan's pages, from byte `offset` of the value on, when the
 * stream gets there. Follow with `nmc_store_commit_async`.
 *
 * Does not block. Thread-safe. Graph-safe (a captured copy goes to the pages of this plan each time). Statuses as for
 * `nmc_store_commit_async`; `NMC_ERR_INVALID_ARG` for memory that the GPU cannot reach; `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_push_async(struct nmc_store_t *store,
                                  const struct nmc_write_plan_t *plan,
                                  uint64_t offset,
                                  const struct nmc_slice_t *slices,
                                  size_t n,
                                  void *stream);

/**
 * Copies from a pinned object, from byte `offset` on, into `n` buffers that the GPU can reach, when the stream gets
 * there. Unpin afterwards with `nmc_store_unpin_async` on the same stream.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_UNSUPPORTED`,
 * `NMC_ERR_INVALID_ARG`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_fetch_async(struct nmc_store_t *store,
                                   const struct nmc_view_t *view,
                                   uint64_t offset,
                                   const struct nmc_buffer_t *buffers,
                                   size_t n,
                                   void *stream);

/**
 * Ends a pin when the stream gets there: everything that this stream reads of the object before is done then. The view
 * must not be used again by the caller.
 *
 * Does not block. Thread-safe. Not to be captured: reserve a slot for that. Statuses: `NMC_ERR_NOT_FOUND` (not pinned),
 * `NMC_ERR_UNSUPPORTED` (no device), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_unpin_async(struct nmc_store_t *store,
                                   const struct nmc_view_t *view,
                                   void *stream);

/**
 * Makes the stream wait until an object can be read, which is being written or there already. `*out_result`, in memory
 * that the GPU can reach, or NULL, becomes `NMC_READY_YES`, `NMC_READY_STALE` (it never will be: given up, removed or
 * lost) or `NMC_READY_TIMEOUT` (after `timeout_ms`; -1 for 30 s). One block of the GPU spins during the wait. A
 * published object can still be evicted: pin it from the host after the wait, or in a kernel with `nmc_dev_pin`.
 *
 * Does not block. Thread-safe. Graph-safe (it waits for this very object each time). Statuses: `NMC_ERR_NOT_FOUND`
 * (also if it is only on disk), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_wait_ready_async(struct nmc_store_t *store,
                                        struct nmc_slice_t key,
                                        int64_t timeout_ms,
                                        void *stream,
                                        uint32_t *out_result);

/**
 * Fills a descriptor for `nmc_store_publish_captured`: before each launch of the graph, for the plan that this launch
 * writes. `out_desc` is memory of the host that the GPU can reach (pinned).
 *
 * Does not block. Thread-safe. Graph-safe. Statuses as for `nmc_store_commit_async`.
 */
nmc_status_t nmc_store_publish_desc(struct nmc_store_t *store,
                                    const struct nmc_write_plan_t *plan,
                                    nmc_publish_desc_t *out_desc);

/**
 * Publishes what `n` descriptors hold at the time the stream gets there. A captured graph does this anew in every
 * launch. A descriptor with epoch 0 is skipped. The descriptors must stay as they are until the launch has run.
 *
 * Does not block. Thread-safe. Graph-safe: made to be captured. Statuses: `NMC_ERR_UNSUPPORTED` (no device),
 * `NMC_ERR_INVALID_ARG` (memory that the GPU cannot reach), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_publish_captured(struct nmc_store_t *store,
                                        const nmc_publish_desc_t *descs,
                                        size_t n,
                                        void *stream);

/**
 * Reserves a pin slot for a captured graph or for kernels, and stores its number in `*out_slot`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (no free slot), `NMC_ERR_UNSUPPORTED` (no device).
 */
nmc_status_t nmc_store_slot_reserve(struct nmc_store_t *store,
                                    uint32_t *out_slot);

/**
 * Gives back a reserved slot. No graph and no kernel may use it again.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
 */
nmc_status_t nmc_store_slot_release(struct nmc_store_t *store, uint32_t slot);

/**
 * Pins an object in a reserved slot, before the launch of a graph that ends the pin with a captured
 * `nmc_store_slot_unpin_async`. Returns `NMC_ERR_BUSY` while the previous launch still uses the slot. Otherwise like
 * `nmc_store_pin`, also for an object that is only on disk.
 */
nmc_status_t nmc_store_slot_pin(struct nmc_store_t *store,
                                uint32_t slot,
                                struct nmc_slice_t key,
                                struct nmc_view_t *out_view);

/**
 * Ends the pin in a reserved slot when the stream gets there; in a captured graph, with every launch.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not reserved), `NMC_ERR_UNSUPPORTED`,
 * `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_slot_unpin_async(struct nmc_store_t *store, uint32_t slot, void *stream);

/**
 * Stores in `*out_pin` what a kernel needs to pin the object by itself (`nmc_dev_pin`), with a reserved slot. The
 * object must lie in one extent.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY` (also if it is only on disk),
 * `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNSUPPORTED`, `NMC_ERR_BUSY`.
 */
nmc_status_t nmc_store_device_pin(struct nmc_store_t *store,
                                  uint32_t slot,
                                  struct nmc_slice_t key,
                                  nmc_device_pin_t *out_pin);

/** @} */

/* == Tier ========================================================================================================= */

/**
 * @defgroup tier Tier
 * An SSD below the store: what memory evicts, disk keeps, and any process reads it by itself.
 *
 * The process of the store's master calls `nmc_tier_open` with a directory, after `nmc_store_create`. From then on values are written there
 * before memory evicts them. `nmc_store_get`, `nmc_store_get_into` and the other reads find values that memory no longer has, in any process
 * and without a tier handle. To write values at once, call `nmc_tier_offload`; to make removals safe from a power loss, `nmc_tier_sync`.
 * `nmc_tier_stats` returns counters, `nmc_tier_verify` reads everything and compares checksums, `nmc_tier_scan` lists what is on disk.
 * `nmc_tier_close` ends the tier; opening the same directory again, in this process or a later one, finds everything.
 * @{
 */

/**
 * Read and write through the page cache. Without this flag, files are opened with `O_DIRECT` where the file system
 * supports it.
 */
#define NMC_TIER_NO_DIRECT 1

/** Do not use io_uring, but one `preadv` or `pwritev` after the other. */
#define NMC_TIER_NO_URING 2

/**
 * A remove, replacement or flush returns only when it is safe from a power loss. Without this flag, it is safe from
 * the death of any process when it returns, and from a power loss after the next `nmc_tier_sync`.
 */
#define NMC_TIER_DURABLE_REMOVE 4

/** Start paused: nothing is written before `nmc_tier_resume` or `nmc_tier_offload`. */
#define NMC_TIER_PAUSED 8

/**
 * If the head or the journal of the directory is damaged, delete all files of the tier in it and start empty. Without
 * this flag, opening fails with `NMC_ERR_CORRUPT` and changes nothing. Nothing is deleted but regular files, and folders of
 * the tier that are empty then. If something else has the name of a file that a new tier needs, opening fails with
 * `NMC_ERR_PERMISSION`, and deletes nothing.
 */
#define NMC_TIER_RESET_IF_DAMAGED 16

/** Delete buckets whose end is damaged. Without this flag they are renamed, so that you can look at them. */
#define NMC_TIER_DELETE_TORN 32

/** Record what is stored on disk and what is evicted from it, for `nmc_tier_events` in every process of the store. */
#define NMC_TIER_EVENTS 64

/**
 * A put or commit returns only when its value is on disk, safe from a power loss. Values that several callers wait for
 * at the same time are written and synced together. If a value cannot be written, the call returns `NMC_ERR_IO`,
 * `NMC_ERR_NO_SPACE` or `NMC_ERR_LIMIT` (see `nmc_tier_offload`), and the value is only in memory: to try again, put it with `NMC_PUT_REPLACE`, commit once more,
 * or call `nmc_tier_offload`. If it was evicted or removed before it was written, the call returns `NMC_ERR_STALE`.
 */
#define NMC_TIER_WRITE_THROUGH 128

/**
 * Open this directory although the store's tier under its former master had another one, whose disk is lost. Without
 * this flag that is `NMC_ERR_MISMATCH`: what is removed from now on would come back when the former directory is
 * opened again.
 */
#define NMC_TIER_OTHER_DIRECTORY 256

/**
 * Write the list of every bucket a second time, to `<number>.meta`, which is used if the list in the bucket cannot be
 * read. `NMC_TIER_BACKEND_BUCKET` only.
 */
#define NMC_TIER_META 512

/** Many values per file. The default, and the fastest. */
#define NMC_TIER_BACKEND_BUCKET 0

/** One file per value, in two levels of folders, for people who want to see values as files. */
#define NMC_TIER_BACKEND_FILE 1

/**
 * One file, `kv_cache.data`, of `capacity_bytes`, which must be set, up to 1 TiB. No file is created or deleted while
 * the tier runs.
 */
#define NMC_TIER_BACKEND_OFFSET 2

/** Keeps nothing: what is written is gone. For measuring what the rest costs. */
#define NMC_TIER_BACKEND_NOOP 3

/** The values are on disk, safe from a power loss. */
#define NMC_TIER_STORED 1

/**
 * The values were evicted from the disk, to make room or by `nmc_tier_evict`. Those that are in memory are still
 * there.
 */
#define NMC_TIER_EVICTED 2

/**
 * Receives the progress of a recovery: `done` of `total` buckets have been read. Called on the thread that opens the
 * tier; must not throw.
 */
typedef void (*nmc_tier_progress_fn)(void *user, uint64_t done, uint64_t total);

/**
 * Receives the progress of a verification: `done` of `total` values have been read. Returns 0 to end it. Called on the
 * calling thread; must not throw. It may call nmc functions, but not close this tier.
 */
typedef int32_t (*nmc_tier_verify_fn)(void *user, uint64_t done, uint64_t total);

/**
 * How a tier is opened. Start from `NMC_TIER_CONFIG_INIT` and set `directory`. A number that is 0 stands for the
 * default.
 *
 * Three settings that are left at their default come from the environment: `heartbeat_ms` from
 * `NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS`, `capacity_bytes` from `NMC_BUCKET_MAX_TOTAL_SIZE`, and
 * `NMC_TIER_NO_URING`, if the flag is not set, from `NMC_USE_URING`. If such a variable is unset or empty, the one
 * with `MOONCAKE_` in place of `NMC_` counts.
 */
typedef struct nmc_tier_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Path of the directory. Its last component is created if it does not exist, for this user alone. One process at a
   * time can own it.
   */
  struct nmc_slice_t directory;
  /**
   * Most values on disk; 0 for 1,048,576, or twice as many as the directory has if that is more. Each takes up to
   * 100 bytes of memory.
   */
  uint64_t max_objects;
  /** Most bytes that the files take; 0 for the environment's value, or no limit but the file system's. */
  uint64_t capacity_bytes;
  /** A bucket is complete, and gets its name, when it has this many bytes, up to 2^40; 0 for 256 MiB. */
  uint64_t bucket_bytes;
  /** A bucket is also complete when it has this many values; 0 for 500. */
  uint32_t bucket_keys;
  /**
   * Longest time between two checks for something to write, in ms; 0 for the environment's value, or 10 s. Under
   * pressure it checks at once.
   */
  uint32_t heartbeat_ms;
  /** Most disk requests in flight for one call, up to 1,024; 0 for 32. */
  uint32_t depth;
  /** 0, or `NMC_TIER_*` flags. */
  uint32_t flags;
  /**
   * What is evicted when the file system, `capacity_bytes` or `max_objects` is used up: `NMC_EVICT_NONE`,
   * `NMC_EVICT_FIFO` or `NMC_EVICT_LRU`. If `capacity_bytes` comes from the environment, `NMC_EVICT_NONE` stands for
   * FIFO.
   */
  uint32_t eviction;
  /**
   * After how many reads from disk a value comes back into memory, into the heap of the rank that read it last: 1
   * for always, up to 255; 0 for never. This happens in the background. If memory is full it evicts other values, but none that is still to
   * be written to disk.
   */
  uint32_t promote_after;
  /**
   * Write a value ahead of its eviction only if it was read from memory in at least this many different
   * milliseconds, up to 2^24 - 1; 0 for all values. The store must evict by LRU or S3-FIFO.
   */
  uint32_t admit_reads;
  /** Write a value ahead of its eviction only if it has this priority or a higher one, from 0 to 3. */
  uint32_t admit_priority;
  /**
   * How values are laid out in the directory: `NMC_TIER_BACKEND_*`. A directory keeps the backend that it was
   * created with; opening it with another one is `NMC_ERR_MISMATCH`.
   */
  uint32_t backend;
  /** Zero. */
  uint32_t reserved0;
  /**
   * Most bytes of values per second that are written ahead of eviction; 0 for no limit. Does not slow down
   * `nmc_tier_offload`.
   */
  uint64_t write_bytes_per_s;
  /** Receives the progress of the recovery, or NULL. */
  nmc_tier_progress_fn progress;
  /** Passed to `progress`. */
  void *progress_user;
  /** Zero. */
  uint64_t reserved[4];
} nmc_tier_config_t;

/** What an nmc_tier_config_t starts from. */
#define NMC_TIER_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_tier_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* directory */ {NULL, 0}, \
    /* max_objects */ 0, \
    /* capacity_bytes */ 0, \
    /* bucket_bytes */ 0, \
    /* bucket_keys */ 0, \
    /* heartbeat_ms */ 0, \
    /* depth */ 0, \
    /* flags */ 0, \
    /* eviction */ NMC_EVICT_NONE, \
    /* promote_after */ 0, \
    /* admit_reads */ 0, \
    /* admit_priority */ 0, \
    /* backend */ NMC_TIER_BACKEND_BUCKET, \
    /* reserved0 */ 0, \
    /* write_bytes_per_s */ 0, \
    /* progress */ NULL, \
    /* progress_user */ NULL, \
    /* reserved */ {0, 0, 0, 0} \
  }

/**
 * Values on disk to which the same thing happened at the same time. What it points to is valid during the callback
 * only.
 */
typedef struct nmc_tier_event_t {
  /** Size of this struct as the library knows it; there are no fields beyond that. */
  uint32_t struct_size;
  /** `NMC_TIER_STORED` or `NMC_TIER_EVICTED`. */
  uint32_t what;
  /** Number of values. */
  size_t n;
  /** Name of each value's namespace; empty for the one that a store begins with. */
  const struct nmc_slice_t *namespace_names;
  /** Key of each value. */
  const struct nmc_slice_t *keys;
  /** Size of each value. */
  const uint64_t *bytes;
  /**
   * Number of values in earlier events that were dropped because they were not taken in time. At most 1,024 events
   * with 65,536 values wait; beyond that, the oldest are dropped.
   */
  uint64_t lost;
} nmc_tier_event_t;

/** What an nmc_tier_event_t starts from. */
#define NMC_TIER_EVENT_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_tier_event_t), \
    /* what */ 0, \
    /* n */ 0, \
    /* namespace_names */ NULL, \
    /* keys */ NULL, \
    /* bytes */ NULL, \
    /* lost */ 0 \
  }

/**
 * Receives an event. Returns 0 to leave the others for later. Called on the calling thread; must not throw. It may
 * call nmc functions, but not close this tier.
 */
typedef int32_t (*nmc_tier_event_fn)(void *user, const struct nmc_tier_event_t *event);

/**
 * Counters of a tier: those of its owner since it was opened, unless a field says otherwise. Start from
 * `NMC_TIER_STATS_INIT`.
 */
typedef struct nmc_tier_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** 1 if this process owns the tier. */
  uint32_t owner;
  /**
   * Values that can be read from disk now. Those of a namespace that was emptied count until the owner has got to
   * them.
   */
  uint64_t objects;
  /** Bytes of these values. */
  uint64_t bytes;
  /** Most values that the index has room for. */
  uint64_t max_objects;
  /** Bytes that the files take now. */
  uint64_t file_bytes;
  /** Buckets that exist now. */
  uint64_t buckets;
  /** Bytes of memory that the index takes. */
  uint64_t index_bytes;
  /** Values written. */
  uint64_t written_objects;
  /** Bytes of the values written. */
  uint64_t written_bytes;
  /** Buckets written. */
  uint64_t written_buckets;
  /** Values that memory evicted when they were on disk. */
  uint64_t evicted_clean;
  /** Values that memory evicted when they were not on disk: these are lost. */
  uint64_t evicted_dirty;
  /**
   * How often something could not be kept on disk because the file system, `capacity_bytes` or `max_objects` was
   * used up.
   */
  uint64_t full;
  /** Values that were found damaged, and given up. */
  uint64_t corrupt;
  /** Writes and syncs that failed. */
  uint64_t errors;
  /** 1 if offloading is paused (`nmc_tier_pause`). */
  uint64_t paused;
  /**
   * 1 if the disk refuses to be written. Reads go on, offloading has stopped, and removals take effect in memory and
   * return `NMC_ERR_IO`.
   */
  uint64_t degraded;
  /** Values that the recovery found. */
  uint64_t recovered_objects;
  /** Buckets that the recovery read. */
  uint64_t recovered_buckets;
  /** How long the recovery took, in ns. */
  uint64_t recovery_ns;
  /** Values that the recovery found removed or damaged, or that the index had no room for. */
  uint64_t recovered_dead;
  /** Values that this process has read from disk. */
  uint64_t read_objects;
  /** Bytes of the values that this process has read from disk. */
  uint64_t read_bytes;
  /** Values that were evicted from the disk, to make room or by `nmc_tier_evict`. */
  uint64_t evicted;
  /** Values that came back into memory because they were read often (`promote_after`). */
  uint64_t promoted;
  /** Buckets whose list could not be read when the tier was opened. Their values are not found. */
  uint64_t torn;
  /** Bytes of dead values whose space becomes free only when their whole bucket is dead. */
  uint64_t dead_bytes;
} nmc_tier_stats_t;

/** What an nmc_tier_stats_t starts from. */
#define NMC_TIER_STATS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_tier_stats_t), \
    /* owner */ 0, \
    /* objects */ 0, \
    /* bytes */ 0, \
    /* max_objects */ 0, \
    /* file_bytes */ 0, \
    /* buckets */ 0, \
    /* index_bytes */ 0, \
    /* written_objects */ 0, \
    /* written_bytes */ 0, \
    /* written_buckets */ 0, \
    /* evicted_clean */ 0, \
    /* evicted_dirty */ 0, \
    /* full */ 0, \
    /* corrupt */ 0, \
    /* errors */ 0, \
    /* paused */ 0, \
    /* degraded */ 0, \
    /* recovered_objects */ 0, \
    /* recovered_buckets */ 0, \
    /* recovery_ns */ 0, \
    /* recovered_dead */ 0, \
    /* read_objects */ 0, \
    /* read_bytes */ 0, \
    /* evicted */ 0, \
    /* promoted */ 0, \
    /* torn */ 0, \
    /* dead_bytes */ 0 \
  }

/** Result of a verification. Start from `NMC_TIER_VERIFIED_INIT`. */
typedef struct nmc_tier_verified_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Values that are intact. */
  uint64_t objects;
  /** Bytes of the intact values. */
  uint64_t bytes;
  /** Values that are damaged, and were given up. */
  uint64_t corrupt;
  /** Values that could not be read for another reason. They stay. */
  uint64_t unreadable;
} nmc_tier_verified_t;

/** What an nmc_tier_verified_t starts from. */
#define NMC_TIER_VERIFIED_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_tier_verified_t), \
    /* reserved */ 0, \
    /* objects */ 0, \
    /* bytes */ 0, \
    /* corrupt */ 0, \
    /* unreadable */ 0 \
  }

/** A value on disk. */
typedef struct nmc_tier_entry_t {
  /** Size of this struct as the library knows it; there are no fields beyond that. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Name of the value's namespace; empty for the one that a store begins with. */
  struct nmc_slice_t namespace_name;
  /** Key of the value. */
  struct nmc_slice_t key;
  /** Bytes of the value. */
  uint64_t bytes;
  /** Epoch of the object; another object with the same key has another one. */
  uint64_t epoch;
  /** Number of the bucket that has the value. */
  uint64_t bucket;
  /** Where the value's record begins in the bucket, in blocks of 4 KiB. */
  uint64_t block;
} nmc_tier_entry_t;

/** What an nmc_tier_entry_t starts from. */
#define NMC_TIER_ENTRY_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_tier_entry_t), \
    /* reserved */ 0, \
    /* namespace_name */ {NULL, 0}, \
    /* key */ {NULL, 0}, \
    /* bytes */ 0, \
    /* epoch */ 0, \
    /* bucket */ 0, \
    /* block */ 0 \
  }

/**
 * Receives a value that is on disk; `entry` and what it points to are valid during the call only. Returns 0 to end the
 * scan. Called on the calling thread; must not throw. It may call nmc functions, but not close this tier.
 */
typedef int32_t (*nmc_tier_scan_fn)(void *user, const struct nmc_tier_entry_t *entry);

/**
 * The SSD tier of a store. In the process of the store's master, the handle owns the tier; in any other process it
 * refers to the tier that the store has. Reading needs no handle: `nmc_store_get` and the other reads find values on
 * disk by themselves, in every process, even while the master is away. The comment of each store function says what it
 * does with a key that is only on disk, and docs/tier.md has all of them in one table.
 *
 * All functions that take the handle may be called from any thread at the same time, even while another thread closes
 * it. It keeps the store open until it is closed, even after `nmc_store_destroy`. Statuses that every function can
 * return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`. Those that read values or keys from the disk can
 * also return `NMC_ERR_PERMISSION` (a file of the tier must not be opened, or is no regular file any more).
 */
typedef struct nmc_tier_t nmc_tier_t;

/** How long a loan of `nmc_tier_stage` lasts if its `ttl_ms` is 0, in ms. */
#define NMC_TIER_STAGE_MS 5000

/**
 * Opens the tier of a store and stores a handle in `*out_tier`. Close it with `nmc_tier_close`.
 *
 * In the process of the store's master, this process becomes the owner of the tier. It takes the directory, recovers
 * what is in it, and from then on a thread of the library writes values there before memory evicts them. When the call
 * returns, every process can read what was recovered. An embedded `store` has its master in this process. In any other
 * process, the handle refers to the tier that the store already has; `config` may be NULL there, and only its flags
 * and numbers are checked.
 *
 * A new master does not open the tier by itself. After a restart of the master, calls that change something return
 * `NMC_ERR_UNAVAILABLE` until its process has called `nmc_tier_open` again. A directory does not know what was
 * removed, replaced or flushed while it had no owner: those keys come back.
 *
 * Blocks during recovery; `progress` of the config reports how far it is. Thread-safe. Not graph-safe. Statuses:
 * `NMC_ERR_INVALID_ARG` (the config, no directory given, or an environment variable, which the message names together
 * with its text), `NMC_ERR_VERSION` (the config, or a directory of another format), `NMC_ERR_MISMATCH` (the directory
 * has another `backend`, or see `NMC_TIER_OTHER_DIRECTORY`), `NMC_ERR_EXISTS` (another process, which the message
 * names, owns the directory; or the store already has a tier), `NMC_ERR_NOT_FOUND` (a part of the path does not exist;
 * or, in another process, the store has no tier), `NMC_ERR_CORRUPT` (the head or the journal is damaged, see
 * `NMC_TIER_RESET_IF_DAMAGED`), `NMC_ERR_PERMISSION` (also if something in the directory that is no regular file stands
 * where the tier has one), `NMC_ERR_NO_SPACE`, `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE` (the master
 * is away), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_IO`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_tier_open(struct nmc_store_t *store,
                           const struct nmc_tier_config_t *config,
                           struct nmc_tier_t **out_tier);

/**
 * Closes a handle. NULL is fine; in a forked child this does nothing.
 *
 * Closing the owner's handle ends the tier. Writes that have begun are completed and made safe from a power loss, and
 * the directory is free for another owner. Keys that are only on disk are not found any more until the tier is opened
 * again; values in memory stay. Whatever is removed from now on stays in the directory, and comes back with it. In
 * another process, only the handle ends.
 *
 * Blocks until calls in other threads have returned. Calls that would take long, and calls that wait for an owner that
 * does not answer, end early with `NMC_ERR_CANCELLED`. Thread-safe: of several callers, one succeeds. Not graph-safe.
 * Statuses: `NMC_ERR_BUSY` (called inside a callback).
 */
nmc_status_t nmc_tier_close(struct nmc_tier_t *tier);

/**
 * Waits until everything so far is safe from a power loss: all removals, replacements and flushes that happened
 * before, and all values that count as written. It does not write values; `nmc_tier_offload` does.
 *
 * Blocks until the disk is done. Outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_IO` (the disk refuses, see `degraded` of `nmc_tier_stats_t`), `NMC_ERR_NO_SPACE`, `NMC_ERR_LIMIT`
 * (as for `nmc_tier_offload`), `NMC_ERR_NO_MEMORY`, `NMC_ERR_CANCELLED` (the tier is being closed),
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_tier_sync(struct nmc_tier_t *tier);

/**
 * Writes values to disk now, even while offloading is paused. The values stay in memory. `keys` are `n` keys in the
 * namespace of the store that the tier was opened with. If `keys` is NULL and `n` is 0, everything in memory is
 * written, in every namespace.
 *
 * Stores in `*out_written`, if not NULL, how many values were written; on failure nothing is stored. The following are
 * not counted, and are not errors: values that are already on disk (including those that are only on disk), values
 * that are being written, keys that do not exist, values that came after the call began, and values whose checksum in
 * memory is wrong.
 *
 * Blocks until the disk is done: what was written is safe from a power loss when the call returns. Outside of the
 * owner's process it asks the master. If the disk evicts (`eviction` of the config) and holds less than memory, the
 * call ends when the disk is full of what it has written. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NO_SPACE`
 * (the file system, `capacity_bytes` or `max_objects` is used up; what fitted is written), `NMC_ERR_IO`,
 * `NMC_ERR_NO_MEMORY`, `NMC_ERR_PEER_LOST` (the heap of a rank cannot be read at the moment; what lies in the others
 * is written), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_LIMIT`
 * (the owner's process has no descriptor left, or must not make files that long: see `ulimit`), `NMC_ERR_OS` (it may not
 * have another thread).
 */
nmc_status_t nmc_tier_offload(struct nmc_tier_t *tier,
                              const struct nmc_slice_t *keys,
                              size_t n,
                              uint64_t *out_written);

/**
 * Brings the values of `n` keys back into memory, into the heap of this process's rank. The keys are those of the
 * namespace of the store that the tier was opened with. Values that are only on disk are read 64 at a time.
 * `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for `keys[i]`: `NMC_OK` if the value is in memory,
 * whether it was there before or not, `NMC_NOT_READY` if it is being written there, `NMC_ERR_NOT_FOUND` if it is
 * nowhere.
 *
 * A value that comes back stays on disk too, so memory can evict it again without writing it. It keeps its metadata,
 * its priority and its retain class, except `NMC_RETAIN_SOFT`, which is not restored. A key that is removed or
 * replaced during the call does not come back. If you ask for more than memory holds, the last values push the first
 * ones out again.
 *
 * Blocks while this process reads the disk and the master makes room, which evicts other values as a put does; it does
 * not wait for room. Thread-safe. Not graph-safe. Returns `NMC_OK` if all values came; otherwise the status of the
 * first one that failed, or, if none failed, `NMC_NOT_READY`. Statuses other than those above: `NMC_ERR_NO_SPACE` and
 * `NMC_ERR_BUSY` (no room, or everything there is in use), `NMC_ERR_STALE` (given up in favour of another value),
 * `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the master or the tier's owner is away), `NMC_ERR_TIMEOUT`,
 * `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_tier_prefetch(struct nmc_tier_t *tier,
                               const struct nmc_slice_t *keys,
                               size_t n,
                               nmc_status_t *out_statuses);

/**
 * Reads the values of `n` keys, wherever they are, into memory of the library and lends that memory to the caller. Use
 * it if you have no buffer of your own, or to pass values on to a network. The keys are those of the namespace of the
 * store that the tier was opened with; those that are on disk are all read together.
 *
 * `out_values[i]` is where the value of `keys[i]` lies; its pointer is NULL if the value is not there. Values begin at
 * multiples of 4 KiB, and you may only read them. `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for
 * `keys[i]`: `NMC_OK`, `NMC_NOT_READY` if the value is being written, `NMC_ERR_NOT_FOUND`, or why it could not be
 * read. `*out_loan` is the number of the loan, which covers all of these values; 0 if nothing was lent.
 *
 * The loan ends with `nmc_tier_release`, when the handle is closed, or `ttl_ms` after this call has returned (0 for
 * `NMC_TIER_STAGE_MS`). After that the memory is lent to others. If you may take longer, copy the values first and
 * then call `nmc_tier_release`, which says whether you were in time. One handle lends up to 64 MiB at a time, in up to
 * 1,024 loans.
 *
 * Blocks while this process reads the disk. Thread-safe. Not graph-safe. Returns `NMC_OK` if all values came;
 * otherwise the status of the first one that failed, or, if none failed, `NMC_NOT_READY`. Statuses other than those
 * above: `NMC_ERR_BUSY` (the memory is on loan: try again when some has been released; or a value was replaced during
 * the call), `NMC_ERR_LIMIT` (more than the memory holds), `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the
 * tier cannot be read yet, see `nmc_store_t`), `NMC_ERR_CANCELLED` (ended while waiting for that, or the tier is being
 * closed), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_tier_stage(struct nmc_tier_t *tier,
                            const struct nmc_slice_t *keys,
                            size_t n,
                            uint64_t ttl_ms,
                            uint64_t *out_loan,
                            struct nmc_slice_t *out_values,
                            nmc_status_t *out_statuses);

/**
 * Ends a loan of `nmc_tier_stage`: do not read its values any more. `NMC_OK` also confirms that everything read from
 * it until now was right. `NMC_ERR_STALE` means that the loan's time was over: anything read after that may belong to
 * other values. A loan of 0 is fine.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_STALE` (the loan had already ended).
 */
nmc_status_t nmc_tier_release(struct nmc_tier_t *tier, uint64_t loan);

/**
 * Evicts values from the disk until its files take at most `keep_bytes`. Files of damaged buckets that were set aside
 * do not count here. Whole buckets go, in the order that `eviction` of the config gives (the oldest first if that is
 * `NMC_EVICT_NONE`). Stores in `*out_evicted`, if not NULL, how many values went. Values that are also in memory stay
 * there, and count as not written: they are written again ahead of their eviction like new ones, and are lost if
 * memory evicts them before that. This is not a removal: a power loss right afterwards may bring the values back.
 *
 * Blocks until the disk is done. Outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_IO` (the disk refuses), `NMC_ERR_NO_SPACE` (the journal must record that a bucket goes before it
 * goes; it is full, and the file system has no room for a new one: that bucket and those after it stay),
 * `NMC_ERR_LIMIT` (as for `nmc_tier_offload`), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_tier_evict(struct nmc_tier_t *tier, uint64_t keep_bytes, uint64_t *out_evicted);

/**
 * Calls `callback` for everything that has happened to values on disk since the last call in this process, oldest
 * first, until the callback returns 0. Each event is a batch of keys that were stored or evicted, or a part of one
 * (`nmc_tier_event_t`). The owner of the tier must have been opened with `NMC_TIER_EVENTS` (`nmc master --ssd-events`).
 * It keeps the newest events, of up to 65,536 values, for every process; what a process does not take in time is gone
 * for it, and is counted in `lost`. The first call in a process begins with the oldest event that is kept, and so does
 * the first one after the tier was opened anew. While there are events to take, the descriptor of `nmc_store_event_fd`
 * is readable, for the store that the tier was opened with; in other processes than the owner's up to 100 ms later.
 *
 * Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe: of the threads of a
 * process, each event goes to one. Not graph-safe. Statuses: `NMC_ERR_UNSUPPORTED` (another process owns the tier, and
 * keeps no events; in the owner's own process there are just none), `NMC_ERR_UNAVAILABLE` (the master or the tier does
 * not exist any more), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_tier_events(struct nmc_tier_t *tier,
                             nmc_tier_event_fn callback,
                             void *user);

/**
 * Stops offloading until `nmc_tier_resume`: what memory evicts from now on is lost, unless it is on disk already.
 * Writes that have begun are completed. Reads, removals and `nmc_tier_offload` go on.
 *
 * Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed).
 */
nmc_status_t nmc_tier_pause(struct nmc_tier_t *tier);

/** Starts offloading again. Otherwise like `nmc_tier_pause`. */
nmc_status_t nmc_tier_resume(struct nmc_tier_t *tier);

/**
 * Stores counters of the tier in `*out_stats`, which starts from `NMC_TIER_STATS_INIT`.
 *
 * Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_UNAVAILABLE` (the master or the tier does not exist any more), `NMC_ERR_TIMEOUT`,
 * `NMC_ERR_CANCELLED` (the tier is being closed).
 */
nmc_status_t nmc_tier_stats(struct nmc_tier_t *tier, struct nmc_tier_stats_t *out_stats);

/**
 * Reads every value on disk, whether or not it is also in memory, and compares it with its checksums. Damaged values
 * are given up: their keys are not found any more, unless they are in memory. Stores the result in `*out_verified`,
 * which starts from `NMC_TIER_VERIFIED_INIT`. `callback`, which may be NULL, is told the progress; if it returns 0,
 * the call ends with the result so far.
 *
 * Blocks while this process reads the whole disk. Only the owner gives up a value, after looking at it once more.
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`; outside
 * of the owner's process also `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` (the owner does not answer) and
 * `NMC_ERR_NOT_FOUND` (the tier was closed). If some values cannot be read for another reason than damage, they stay
 * and are counted as `unreadable`, all others are checked, the result is stored, and the call returns the reason:
 * `NMC_ERR_IO`, `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_tier_verify(struct nmc_tier_t *tier,
                             nmc_tier_verify_fn callback,
                             void *user,
                             struct nmc_tier_verified_t *out_verified);

/**
 * Calls `callback` for every value on disk, of all namespaces, whether or not it is also in memory, in no particular
 * order, until the callback returns 0. Values that come or go during the scan may or may not be seen.
 *
 * Blocks while this process reads the lists of all buckets. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_CANCELLED`
 * (the tier is being closed), `NMC_ERR_NO_MEMORY`; outside of the owner's process also `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT` (the owner does not answer) and `NMC_ERR_NOT_FOUND` (the tier was closed). If some lists cannot be
 * read, the call first goes through all others and then returns the reason: `NMC_ERR_IO`, `NMC_ERR_CORRUPT` (damaged, or
 * not there), `NMC_ERR_LIMIT`, `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_tier_scan(struct nmc_tier_t *tier,
                           nmc_tier_scan_fn callback,
                           void *user);

/** @} */

/* == Client ======================================================================================================= */

/**
 * @defgroup client Client
 * A cluster: objects on the nodes of many machines, found by key.
 *
 * One process runs `nanomc-master`. Every program calls `nmc_client_open` with its address. A program that gives memory calls
 * `nmc_client_mount`, or `nmc_client_attach_store` for a store that it has. Then any program on any machine calls `nmc_client_put`,
 * `nmc_client_get` and `nmc_client_remove`, for one key or many, or reads through a store handle of `nmc_client_open_store`.
 * `nmc_client_submit_put` and the like do not wait; `nmc_client_completions` returns their outcomes. `nmc_client_segments` and
 * `nmc_client_query` list what is where. `nmc_client_close` ends the client; its nodes leave the cluster.
 * @{
 */

/** Keep a copy of values that are read from another node on this client's first node, where others find it too. */
#define NMC_CLIENT_KEEP_COPIES 1

/**
 * Drive submitted calls (`nmc_client_submit_put` and the like) with a thread of the library, so that they make
 * progress while the program does something else. Without this flag, `nmc_client_completions` drives them. The thread
 * starts with the first submitted call.
 */
#define NMC_CLIENT_THREAD 2

/**
 * Remove a value, with all its copies on all nodes, `expire_ms` after this client has read it. That concerns the put
 * that was read, not one that takes its key later. Reads that have begun finish. The leader removes the value; a new
 * leader does not know of it, and then the value stays until it is read again. Values that are read through
 * `nmc_client_open_store` stay.
 */
#define NMC_CLIENT_EXPIRE 4

/**
 * Of several copies, read one on this machine first; then one in memory; then one on the node from which this client
 * waits for the least. Nodes that failed lately come last, in all three orders. A value that a node of this client has
 * is always read there.
 */
#define NMC_READ_NEAR 0

/** Read a copy in memory first; then one on this machine; then as for `NMC_READ_NEAR`. */
#define NMC_READ_MEMORY 1

/**
 * Read a copy in memory first; then one on the node from which this client waits for the least, on whatever machine.
 * So a value that many read comes from all nodes that have it.
 */
#define NMC_READ_SPREAD 2

/**
 * Most calls that a client can have submitted without having taken their completions. A batch counts as up to 256.
 */
#define NMC_CLIENT_MAX_SUBMITTED 4096

/** Do not wait until every owner has dropped the object: it is out of the directory when the call returns. */
#define NMC_REMOVE_ASYNC 1

/** Remove objects of all namespaces, not only the client's. */
#define NMC_REMOVE_EVERYWHERE 2

/** GPU memory. */
#define NMC_MEDIA_VRAM 0

/** Host memory. */
#define NMC_MEDIA_RAM 1

/** The SSD tier of a node. */
#define NMC_MEDIA_SSD 2

/** Any medium. */
#define NMC_MEDIA_ANY UINT32_MAX

/** The segment accepts values. */
#define NMC_SEGMENT_OK 0

/** The segment accepts no more values; values that are only there are being copied to other nodes. */
#define NMC_SEGMENT_DRAINING 1

/** The master has not heard from the segment's node for a while. */
#define NMC_SEGMENT_GONE 2

/** How a program takes part in a cluster. Start from `NMC_CLIENT_CONFIG_INIT` and set `master_server`. */
typedef struct nmc_client_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Name or address of this machine, by which others reach it: `host` or `host:port`. With a port, the first node of
   * the client listens there; all other nodes listen at a free port from 12300 to 14299. Empty for 127.0.0.1. Or
   * `unix:/folder`: nodes listen at sockets in that folder, which is made for this user alone if it is not there; then
   * all masters must be on this machine.
   */
  struct nmc_slice_t local_hostname;
  /**
   * The masters, separated by commas: `host`, `host:port` or `unix:/path`, with port 50051 by default. The first one
   * that answers is the leader, or says which one is.
   */
  struct nmc_slice_t master_server;
  /**
   * For programs that come from Mooncake Store: `etcd://`, `redis://` or `http://` and an address, a bare
   * `host:port`, `P2PHANDSHAKE`, or empty. Its form is checked, but it is not needed here and never contacted.
   */
  struct nmc_slice_t metadata_server;
  /**
   * `tcp` (default) or `rdma`. With `rdma`, NIXL moves the bytes of large values, by RDMA or whatever else it finds,
   * where both client and node have it; everything else goes by TCP. If NIXL is not installed, a line in the log
   * says so; docs/cluster.md says how it is found.
   */
  struct nmc_slice_t protocol;
  /**
   * With `rdma`: names of the network devices that NIXL uses, separated by commas; empty for all. With neither a
   * token nor certificates, NIXL uses only the loopback device. Not used with `tcp`.
   */
  struct nmc_slice_t device_names;
  /**
   * Secret that all masters, nodes and clients of the cluster share. Without a token and without certificates,
   * everything must be on the loopback device, or `nmc_client_open` returns `NMC_ERR_PERMISSION`. With another token
   * than the masters', every call returns `NMC_ERR_PERMISSION`. Without certificates the token is sent in the clear,
   * so the network must be trusted.
   */
  struct nmc_slice_t token;
  /**
   * Namespace of the client's keys: empty, or 1 to 64 bytes. In the nodes' stores it is the namespace of the same
   * name.
   */
  struct nmc_slice_t namespace_name;
  /** How long a call may take, in ms; -1 for 5 s. The call returns at most 2 s after that. */
  int64_t timeout_ms;
  /** Number of keys whose locations the client remembers; -1 for 65,536. */
  int32_t cache_keys;
  /** 0, or `NMC_CLIENT_*` flags. */
  uint32_t flags;
  /** With `NMC_CLIENT_EXPIRE`: how long after its first read a value is removed, in ms, up to a day; -1 for 1 s. */
  int64_t expire_ms;
  /** With `rdma`: NIXL moves values of at least this many bytes; 0 for 256 KiB. */
  uint64_t rdma_bytes;
  /** One of `NMC_READ_*`: which of several copies is read first. */
  uint32_t read_order;
  /** Zero. */
  uint32_t reserved_order;
  /**
   * Put larger values in parts of about this many bytes, at most 4,096 of them, which lie on different segments if
   * there are enough and move in parallel. 0 for never; less than 64 KiB counts as 64 KiB. Readers need no setting
   * for this. A value that loses one part is lost.
   */
  uint64_t stripe_bytes;
  /**
   * PEM file with this program's certificate and any certificates between it and the authority's. With it, all
   * connections except `unix:` ones are encrypted (TLS 1.3), and each end demands a certificate of the other that
   * one in `tls_ca` has signed, whatever name is in it; a token is then not needed to leave the loopback device. Set
   * all three files or none. What NIXL moves is not encrypted. If the files are replaced while the program runs,
   * connections that begin after that use the new ones.
   */
  struct nmc_slice_t tls_cert;
  /** PEM file with the key of `tls_cert`. */
  struct nmc_slice_t tls_key;
  /**
   * PEM file with the certificates of the authority. Any program with a certificate that it has signed may do
   * everything.
   */
  struct nmc_slice_t tls_ca;
} nmc_client_config_t;

/** What an nmc_client_config_t starts from. */
#define NMC_CLIENT_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_client_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* local_hostname */ {NULL, 0}, \
    /* master_server */ {NULL, 0}, \
    /* metadata_server */ {NULL, 0}, \
    /* protocol */ {NULL, 0}, \
    /* device_names */ {NULL, 0}, \
    /* token */ {NULL, 0}, \
    /* namespace_name */ {NULL, 0}, \
    /* timeout_ms */ -1, \
    /* cache_keys */ -1, \
    /* flags */ 0, \
    /* expire_ms */ -1, \
    /* rdma_bytes */ 0, \
    /* read_order */ NMC_READ_NEAR, \
    /* reserved_order */ 0, \
    /* stripe_bytes */ 0, \
    /* tls_cert */ {NULL, 0}, \
    /* tls_key */ {NULL, 0}, \
    /* tls_ca */ {NULL, 0} \
  }

/** Place that a copy must be in. */
typedef struct nmc_location_t {
  /** Name of a segment or of a node. */
  struct nmc_slice_t segment;
  /** `NMC_MEDIA_*`: if `segment` names a node, which of its segments; otherwise `NMC_MEDIA_ANY`. */
  uint32_t media;
  /** Zero. */
  uint32_t reserved;
} nmc_location_t;

/** How a value is put. Start from `NMC_REPLICATE_INIT`. */
typedef struct nmc_replicate_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Number of copies, 1 to 16, on as many nodes if there are enough. Fewer copies are no error if there are fewer
   * nodes.
   */
  uint32_t copies;
  /** Number of copies on each medium, by `NMC_MEDIA_*`. If their sum is more than `copies`, the sum counts. */
  uint32_t media_copies[3];
  /** One of `NMC_RETAIN_*`. */
  uint32_t retain;
  /** 0 to 3; lower ones are evicted first. */
  uint32_t priority;
  /** Places where copies must be, filled in this order; NULL for anywhere. */
  const struct nmc_location_t *locations;
  /** Number of locations. */
  size_t n_locations;
  /** Metadata of the value, up to `NMC_MAX_METADATA` bytes (256); every copy has it. */
  struct nmc_slice_t metadata;
  /** Zero. */
  uint64_t reserved[4];
} nmc_replicate_t;

/** What an nmc_replicate_t starts from. */
#define NMC_REPLICATE_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_replicate_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* copies */ 1, \
    /* media_copies */ {0, 0, 0}, \
    /* retain */ NMC_RETAIN_NONE, \
    /* priority */ 0, \
    /* locations */ NULL, \
    /* n_locations */ 0, \
    /* metadata */ {NULL, 0}, \
    /* reserved */ {0, 0, 0, 0} \
  }

/** A copy of an object, as the leader lists it. What it points to is valid during the callback only. */
typedef struct nmc_replica_t {
  /** Size of this struct as the library knows it; there are no fields beyond that. */
  uint32_t struct_size;
  /** `NMC_MEDIA_*`. */
  uint32_t media;
  /** Size of the value. */
  uint64_t bytes;
  /** Identifies the put that the copy came from; all copies of one put have the same. */
  uint64_t put_id;
  /** Address at which the copy's owner listens. */
  struct nmc_slice_t endpoint;
} nmc_replica_t;

/** What an nmc_replica_t starts from. */
#define NMC_REPLICA_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_replica_t), \
    /* media */ 0, \
    /* bytes */ 0, \
    /* put_id */ 0, \
    /* endpoint */ {NULL, 0} \
  }

/** Receives a copy. Returns 0 to end the list. Called on the calling thread; must not throw. */
typedef int32_t (*nmc_replica_fn)(void *user, const struct nmc_replica_t *replica);

/**
 * Receives a key, which is valid during the call only. Returns 0 to end the list. Called on the calling thread; must
 * not throw.
 */
typedef int32_t (*nmc_key_fn)(void *user, struct nmc_slice_t key);

/** A segment of the cluster. What it points to is valid during the callback only. */
typedef struct nmc_segment_t {
  /** Size of this struct as the library knows it; there are no fields beyond that. */
  uint32_t struct_size;
  /** `NMC_MEDIA_*`. */
  uint32_t media;
  /** `NMC_SEGMENT_*`. */
  uint32_t state;
  /**
   * For host memory, the NUMA node where it begins, as `host` numbers them; for GPU memory, the CUDA number of the
   * device in the node's process. It is as it was when the node joined. -1 for disks, if the rank of the store had
   * no holder then, or if the memory had no first page yet (memory that is not populated gets pages when values
   * come) and the machine has several NUMA nodes.
   */
  int32_t near;
  /** Size in bytes. */
  uint64_t capacity;
  /** Bytes in use, as last reported by its node. */
  uint64_t used;
  /** Name of the segment. */
  struct nmc_slice_t name;
  /** Machine that has the segment: the address by which others reach its node. */
  struct nmc_slice_t host;
  /** 1 if that is this client's machine: both have the same `local_hostname`, or names of the same address. */
  uint32_t here;
  /** Zero. */
  uint32_t reserved;
} nmc_segment_t;

/** What an nmc_segment_t starts from. */
#define NMC_SEGMENT_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_segment_t), \
    /* media */ 0, \
    /* state */ 0, \
    /* near */ 0, \
    /* capacity */ 0, \
    /* used */ 0, \
    /* name */ {NULL, 0}, \
    /* host */ {NULL, 0}, \
    /* here */ 0, \
    /* reserved */ 0 \
  }

/** Receives a segment. Returns 0 to end the list. Called on the calling thread; must not throw. */
typedef int32_t (*nmc_segment_fn)(void *user, const struct nmc_segment_t *segment);

/** Outcome of a submitted call. */
typedef struct nmc_client_completion_t {
  /** What the caller passed to the submitting call. */
  uint64_t token;
  /**
   * For a read, the size of the value, even if there was no room for it, or of the metadata if only that was read;
   * for a batch of reads, of all values together. Otherwise 0.
   */
  uint64_t bytes;
  /** What the blocking form of the call would have returned. */
  int32_t status;
  /** Zero. */
  uint32_t reserved;
} nmc_client_completion_t;

/**
 * A client of a cluster. It puts objects on nodes and reads them from there. It can also be one or more nodes itself,
 * with memory that it mounts or stores that it attaches; what its own nodes have, it reads without sending a message.
 *
 * A get returns every byte of one put of that key, or an error. After a put has returned `NMC_OK`, a get finds the
 * value until it is removed or evicted, or its owners (the nodes that have it) are lost. After a remove has returned
 * `NMC_OK`, no get that begins later returns what was there before. A key names one value until it is removed, unless
 * another one is put while its owners are away, by two programs at the same time, or into an attached store without the
 * client (docs/cluster.md).
 *
 * All functions that take it may be called from any thread at the same time; closing waits for those that are under
 * way. Every call returns at most 2 s after the `timeout_ms` of the client's config, but for `nmc_client_register` and
 * `nmc_client_unregister`, which wait for NIXL; submitted calls have the same time. Values may be in host memory or GPU
 * memory. One of the masters leads; this leader knows which node has which key. Statuses that every function can
 * return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`; and if it asks a master, `NMC_ERR_PERMISSION`
 * (the token differs, or a certificate is not from the authority), `NMC_ERR_VERSION` (masters and client speak
 * different versions) and `NMC_ERR_LIMIT` (it needs a connection, and no file descriptor is left).
 */
typedef struct nmc_client_t nmc_client_t;

/** Most copies that a value can have, and so the most segments that `nmc_placement_fn` can choose. */
#define NMC_CLIENT_MAX_COPIES 16

/** A value to be placed. What it points to is valid during the callback only. */
typedef struct nmc_placement_t {
  /** Size of this struct as the library knows it; there are no fields beyond that. */
  uint32_t struct_size;
  /** Number of copies that the put asks for. */
  uint32_t copies;
  /** Size of the value. */
  uint64_t bytes;
  /** Key of the value. */
  struct nmc_slice_t key;
  /** The segments of the cluster, as the leader listed them at most a second ago. */
  const struct nmc_segment_t *const *segments;
  /** Number of segments. */
  size_t n_segments;
} nmc_placement_t;

/** What an nmc_placement_t starts from. */
#define NMC_PLACEMENT_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_placement_t), \
    /* copies */ 0, \
    /* bytes */ 0, \
    /* key */ {NULL, 0}, \
    /* segments */ NULL, \
    /* n_segments */ 0 \
  }

/**
 * Chooses where a value goes. Stores up to `NMC_CLIENT_MAX_COPIES` (16) indexes into `put->segments` in
 * `out_segments`, each once and the best first, and returns how many. If it chooses fewer than `put->copies`, the
 * leader chooses the rest; with 0, the leader chooses all of them. A negative status ends the put with that status;
 * a negative number that is no status ends it with `NMC_ERR_INVALID_ARG`.
 * Called on the thread that puts or submits, by several threads at the same time, while no lock of the library is
 * held. Must not throw, and must not put.
 */
typedef int32_t (*nmc_placement_fn)(void *user, const struct nmc_placement_t *put, uint32_t *out_segments);

/** Called when `user` is not needed any more: once, on the thread that needed it last. Must not throw. */
typedef void (*nmc_release_fn)(void *user);

/**
 * Opens a client and stores a handle in `*out_client`. Close it with `nmc_client_close`. It contacts no master yet,
 * but resolves host names.
 *
 * Blocks while host names are resolved. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (the config; the
 * message says which field), `NMC_ERR_VERSION`, `NMC_ERR_PERMISSION` (there is neither a token nor certificates, and
 * not everything is on the loopback device), `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT` (no file descriptor is left),
 * `NMC_ERR_OS`.
 */
nmc_status_t nmc_client_open(const struct nmc_client_config_t *config, struct nmc_client_t **out_client);

/**
 * Closes a client. Its nodes leave the cluster: values that only they have are not found any more. Mounted memory is
 * freed; attached stores stay. NULL is fine; in a forked child this does nothing.
 *
 * Blocks until calls in other threads have returned; they end early with `NMC_ERR_CANCELLED`. Thread-safe: of several
 * callers, one succeeds. Not graph-safe. Statuses: `NMC_ERR_BUSY` (called inside a callback).
 */
nmc_status_t nmc_client_close(struct nmc_client_t *client);

/**
 * Gives memory of this process to the cluster: makes a node with a segment of `config->heap_bytes` bytes. The segment
 * is called `name`, or `host:port` if `name` is empty; no other segment in the cluster may have that name. `config` is
 * that of an embedded store (`nmc_store_create` without a world), except that `page_bytes` 0 means 16 KiB, because
 * each value takes whole pages. When the segment is full, the node evicts by itself, as a store does.
 *
 * With `heap_kind` `NMC_HEAP_CUDA` the segment is on a GPU, see `nmc_client_attach_store`. With `heap_import` the
 * memory is the program's own. The program may use it again after `nmc_client_unmount` or `nmc_client_close` has
 * returned, or after this call has returned an error.
 *
 * Blocks until a master has accepted the node as a member. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS`
 * (this client already has a node of that name), `NMC_ERR_UNAVAILABLE` (no master accepted the node in time, because
 * none answers or the name is taken: the message has what the master said; nothing of the node is left),
 * `NMC_ERR_LIMIT` (no port is free), `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`, and those of `nmc_store_create`.
 */
nmc_status_t nmc_client_mount(struct nmc_client_t *client,
                              struct nmc_slice_t name,
                              const struct nmc_store_config_t *config);

/**
 * Makes a node of a store that the program has. Others find every value in the store, no matter which program put it
 * there and how, and put their own values into it. The segments are the heaps of the store's ranks, called `name`, or
 * `name/rank` if there are several ranks, and its tier, called `name/ssd`. In a world, one process attaches the store.
 * A value put with `nmc_store_put` is found elsewhere a moment later (`nmc_client_sync` waits for that).
 * `nmc_store_remove` removes only this node's copy.
 *
 * What programs put into the store themselves is about this store alone: a put of a key that another node has succeeds,
 * and `NMC_PUT_REPLACE` replaces only this node's copy. Then the cluster has two values under one key, of which a get
 * returns either, until `nmc_client_remove` removes both (docs/cluster.md). Put keys that others may have through a client.
 *
 * A store that was never in a cluster, or was empty when it left, keeps all that is in it. A store that returns under
 * its name within an hour (`gone_ms`) keeps what it has, except what was removed meanwhile. Any other store is
 * emptied, because it is unknown what in it should be gone: one that returns later, comes from another cluster,
 * returns after another store had its name, or returns under another name after something was removed.
 *
 * Open the store's tier before this call. If it is opened later, values that only the tier has are dropped, unless
 * nothing was removed in the meantime. When the tier is opened or closed, the node starts anew with it by itself, and
 * for a moment others do not find values that only this node has.
 *
 * Heaps on a GPU are segments of `NMC_MEDIA_VRAM`. Values that others put there or read from there go through host
 * memory of this process, up to 256 MiB at a time in each direction (a single value may be larger). Puts and gets wait
 * for room there by themselves, until their time is over. Where `protocol` is `rdma`, NIXL moves values to and from
 * the heap directly, as far as it can.
 *
 * Blocks until a master has accepted the node as a member. The store stays open until `nmc_client_unmount` or
 * `nmc_client_close`, even after `nmc_store_destroy`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_mount`;
 * `NMC_ERR_EXISTS` also if a client has attached the store already.
 */
nmc_status_t nmc_client_attach_store(struct nmc_client_t *client,
                                     struct nmc_slice_t name,
                                     struct nmc_store_t *store);

/**
 * Takes a node of this client out of the cluster: values that only it has are not found any more. Mounted memory is
 * freed; an attached store stays as it is. To have such values copied to other nodes first, call `nmc_client_drain`.
 *
 * Blocks until the node's thread has ended. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (this client
 * has no node of that name: a segment can only be unmounted by the client that mounted it).
 */
nmc_status_t nmc_client_unmount(struct nmc_client_t *client, struct nmc_slice_t name);

/**
 * Announces that values will be put from, or read into, this memory, of the host or of a GPU. With `rdma` it is
 * registered with NIXL, which then moves bytes without a copy; values in any other memory are copied through 64 MiB of
 * the library's, or go by TCP if they do not fit there. With `tcp` it makes no difference. The memory must stay valid
 * until `nmc_client_unregister`. For GPU memory, set `UCX_MEMTYPE_CACHE=n` before the program starts.
 *
 * Blocks while NIXL registers it, up to 30 s. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (part of it is already
 * registered), `NMC_ERR_UNSUPPORTED` (NIXL does not accept it), `NMC_ERR_LIMIT` (too many pieces to announce to
 * others: register fewer, larger ones), `NMC_ERR_TIMEOUT` (NIXL does not answer), `NMC_ERR_NO_MEMORY`. After an error
 * the memory is not registered.
 */
nmc_status_t nmc_client_register(struct nmc_client_t *client,
                                 void *memory,
                                 size_t bytes);

/**
 * Undoes `nmc_client_register`; `memory` is the address that was passed there. No call may be using the memory.
 *
 * Blocks while NIXL lets go of it, up to 30 s, and as long for each other call of these two that is under way.
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (nothing is registered at that address),
 * `NMC_ERR_TIMEOUT` (NIXL does not answer: it lets go of the memory later, which must stay until the client is closed).
 */
nmc_status_t nmc_client_unregister(struct nmc_client_t *client,
                                   void *memory);

/**
 * Puts a value under `key`. The value is the bytes of the `n` slices, one after the other. `options` may be NULL: one
 * copy, wherever the leader chooses. Slices may be GPU memory. They are copied to host memory first, on a stream of
 * the library, so whatever your kernels write must be there when you call this.
 *
 * Blocks: it asks the leader for places, sends the bytes to each owner, and reports to the leader. Thread-safe. Not
 * graph-safe. Statuses: `NMC_ERR_EXISTS` (there is a value under the key, or a chosen owner has one; the old value
 * stays), `NMC_ERR_NO_SPACE` (there is no segment, or none has room), `NMC_ERR_BUSY` (try again: a node has no room at
 * the moment, another put of the key is under way, or a node that may have a copy cannot be reached), `NMC_ERR_STALE`
 * (the value was removed or evicted at once), `NMC_ERR_LIMIT` (4,096 namespaces of the cluster have values, or the
 * nodes have each had values of 63 namespaces), `NMC_ERR_UNAVAILABLE` (no master answers, or no owner that was asked
 * can be reached) and `NMC_ERR_TIMEOUT` (after either of these two the value may have been put), `NMC_ERR_CANCELLED`,
 * `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_put(struct nmc_client_t *client,
                            struct nmc_slice_t key,
                            const struct nmc_slice_t *slices,
                            size_t n,
                            const struct nmc_replicate_t *options);

/**
 * Reads a value into `n` buffers, one after the other, and stores its size in `*out_bytes`, if not NULL. If the
 * buffers are too small, this returns `NMC_ERR_TOO_SMALL`, and `*out_bytes` is the size in that case too. Buffers may
 * be GPU memory: the value is received in host memory and copied when it is complete, and the copy is done when this
 * returns.
 *
 * A value that a node of this client has costs no message. Otherwise this blocks: it asks the leader where the value
 * is, unless the client remembers that, and then asks an owner for the bytes; if that owner fails, it asks the next
 * one. After an error the contents of the buffers are undefined. Thread-safe. Not graph-safe. Statuses:
 * `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_UNAVAILABLE` (no master answers, or a new one does not know yet
 * what the nodes have), `NMC_ERR_CORRUPT` (the owners keep checksums, and every copy that was read was damaged),
 * `NMC_ERR_BUSY` (an owner had nothing free to send it with: pin slots, or room for what only its disk has),
 * `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_get(struct nmc_client_t *client,
                            struct nmc_slice_t key,
                            const struct nmc_buffer_t *buffers,
                            size_t n,
                            uint64_t *out_bytes);

/**
 * Puts `n` values. If `counts` is NULL, `slices[i]` is the value of `keys[i]`. Otherwise the first `counts[0]` slices
 * are the value of `keys[0]`, the next `counts[1]` slices that of `keys[1]`, and so on. `options` is as for
 * `nmc_client_put`, and the same for all. `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for
 * `keys[i]`. One that fails does not stop the others. The values are put at the same time: if a key appears twice,
 * both puts may succeed, and a get returns one of the two values.
 *
 * Blocks until all have ended; up to 256 are under way together. Values in GPU memory are put 64 MiB at a time.
 * Thread-safe. Not graph-safe. Returns `NMC_OK` if all succeeded, otherwise the status of the first one that did not.
 * Statuses as for `nmc_client_put`.
 */
nmc_status_t nmc_client_put_batch(struct nmc_client_t *client,
                                  const struct nmc_slice_t *keys,
                                  const struct nmc_slice_t *slices,
                                  const size_t *counts,
                                  size_t n,
                                  const struct nmc_replicate_t *options,
                                  nmc_status_t *out_statuses);

/**
 * Reads `n` values. If `counts` is NULL, the value of `keys[i]` goes into `buffers[i]`; otherwise each value goes into
 * several buffers, one after the other, counted as in `nmc_client_put_batch`. `out_bytes[i]`, if `out_bytes` is not
 * NULL, is the size of the value of `keys[i]`, and `out_statuses[i]`, if `out_statuses` is not NULL, is its outcome.
 *
 * Blocks until all have ended. It asks where up to 256 values are at once, and reads as many together; values that go
 * to GPU memory are read 64 MiB at a time. Thread-safe. Not graph-safe. Returns `NMC_OK` if all were read, otherwise
 * the status of the first one that was not. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_batch(struct nmc_client_t *client,
                                  const struct nmc_slice_t *keys,
                                  const struct nmc_buffer_t *buffers,
                                  const size_t *counts,
                                  size_t n,
                                  uint64_t *out_bytes,
                                  nmc_status_t *out_statuses);

/**
 * Checks whether there is a value under `key`. Returns `NMC_OK` or `NMC_ERR_NOT_FOUND`.
 *
 * Blocks while it asks the leader, unless a node of this client has the value. Thread-safe. Not graph-safe. Other
 * statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_exists(struct nmc_client_t *client, struct nmc_slice_t key);

/**
 * Checks whether there are values under `n` keys. `out_statuses[i]` is `NMC_OK` or `NMC_ERR_NOT_FOUND`, or why it
 * could not be found out.
 *
 * Blocks while it asks the leader, once for every 256 keys. Thread-safe. Not graph-safe. Returns `NMC_OK` if it found
 * out about all keys, whether they exist or not. Other statuses as for `nmc_client_exists`.
 */
nmc_status_t nmc_client_exists_batch(struct nmc_client_t *client,
                                     const struct nmc_slice_t *keys,
                                     size_t n,
                                     nmc_status_t *out_statuses);

/**
 * Calls `callback` for each copy of an object that the leader lists, until the callback returns 0.
 *
 * Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_query(struct nmc_client_t *client,
                              struct nmc_slice_t key,
                              nmc_replica_fn callback,
                              void *user);

/**
 * Calls `callback` for each segment of the cluster, until the callback returns 0.
 *
 * Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_segments(struct nmc_client_t *client, nmc_segment_fn callback, void *user);

/**
 * Lists the keys of the client's namespace that begin with `prefix`, one page per call: calls `callback` with each
 * key, in no particular order. `prefix` may be empty. Start with 0 in `*cursor`. Each call moves it, and it is 0 again
 * after the last page. A page may be empty although more follow. Keys that come or go meanwhile may or may not be
 * seen; keys that stay are seen once, unless another master takes the lead: then start again. If `callback` returns 0,
 * the cursor stays, and the next call begins with the same page.
 *
 * Blocks while it asks the leader, once. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_keys(struct nmc_client_t *client,
                             struct nmc_slice_t prefix,
                             uint64_t *cursor,
                             nmc_key_fn callback,
                             void *user);

/**
 * Waits until others can find everything that was stored in this client's nodes before the call, including values put
 * with `nmc_store_put`.
 *
 * Blocks until the leader has heard of it. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TIMEOUT`,
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_STALE` (a node was away for so long that it is emptied when it comes back: what was
 * stored in it before is gone).
 */
nmc_status_t nmc_client_sync(struct nmc_client_t *client);

/**
 * Reads the metadata of a value into `buffer`: what was passed as `metadata` of `nmc_replicate_t` or
 * `nmc_put_options_t` when it was put. Stores its size in `*out_bytes`, if not NULL; 0 if there is none. With
 * `capacity` 0 and `out_bytes` this only stores the size. If the buffer is too small, this stores only the size and
 * returns `NMC_ERR_TOO_SMALL`; `NMC_MAX_METADATA` bytes are always enough.
 *
 * If a node of this client has the value, this costs no message, and metadata that is only on disk is read from there.
 * Otherwise it blocks: it asks an owner, as `nmc_client_get` does, which sends no byte of the value. If that node has
 * the value only on disk, the value comes into its memory. The call does not count as a read of the value.
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_metadata(struct nmc_client_t *client,
                                     struct nmc_slice_t key,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *out_bytes);

/**
 * Reads the metadata of `n` values, that of `keys[i]` into `buffers[i]`; otherwise like `nmc_client_get_metadata`.
 * `out_bytes[i]`, if `out_bytes` is not NULL, is the size of the metadata, and `out_statuses[i]`, if `out_statuses` is
 * not NULL, is the outcome for `keys[i]`.
 *
 * Blocks until all have ended. It asks where up to 256 values are at once, and reads as many together. Thread-safe.
 * Not graph-safe. Returns `NMC_OK` if all were read, otherwise the status of the first one that was not. Statuses as
 * for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_metadata_batch(struct nmc_client_t *client,
                                           const struct nmc_slice_t *keys,
                                           const struct nmc_buffer_t *buffers,
                                           size_t n,
                                           size_t *out_bytes,
                                           nmc_status_t *out_statuses);

/**
 * Submits a read of a value's metadata, like `nmc_client_get_metadata`, and returns; see `nmc_client_submit_put`. The
 * buffer is the library's until the completion has been taken. `bytes` of the completion is the size of the metadata.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_get`.
 */
nmc_status_t nmc_client_submit_get_metadata(struct nmc_client_t *client,
                                            struct nmc_slice_t key,
                                            void *buffer,
                                            size_t capacity,
                                            uint64_t token);

/**
 * Reads a value like `nmc_client_get`, and its metadata into `metadata`; both are of the same put.
 * `*out_metadata_bytes`, if not NULL, is the size of the metadata. If `metadata` is too small for it, this returns
 * `NMC_ERR_TOO_SMALL`, as it does when the buffers are too small, and both sizes are stored if the value fits.
 *
 * Costs no more messages than `nmc_client_get`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_with_metadata(struct nmc_client_t *client,
                                          struct nmc_slice_t key,
                                          const struct nmc_buffer_t *buffers,
                                          size_t n,
                                          struct nmc_buffer_t metadata,
                                          uint64_t *out_bytes,
                                          size_t *out_metadata_bytes);

/**
 * Removes an object from all nodes. With `flags` 0 it waits until every owner has dropped the object. It returns
 * `NMC_IN_PROGRESS` if an owner is away and the master has no etcd to record the removal in: until that owner is back,
 * its own programs, and clients that remember where the value is, may still read it. With `NMC_REMOVE_ASYNC` it does
 * not wait for the owners. Reads that have begun finish.
 *
 * Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT` (the object may have been removed), `NMC_ERR_CANCELLED`. If the leader is lost during the call and
 * the next one knows nothing under the key, the status is `NMC_OK`: the object is gone, and it is unknown whether it
 * existed.
 */
nmc_status_t nmc_client_remove(struct nmc_client_t *client,
                               struct nmc_slice_t key,
                               uint32_t flags);

/**
 * Removes `n` objects, like `nmc_client_remove`, with the same `flags` for all. `out_statuses[i]`, if `out_statuses`
 * is not NULL, is the outcome for `keys[i]`: `NMC_OK`, `NMC_IN_PROGRESS`, `NMC_ERR_NOT_FOUND`, or why it failed. One
 * that fails does not stop the others. If a key appears twice, one of the two may be `NMC_ERR_NOT_FOUND`.
 *
 * Blocks as `nmc_client_remove` does; up to 256 are under way together. Thread-safe. Not graph-safe. Returns the
 * status of the first one that failed; if none failed, `NMC_IN_PROGRESS` if that is the status of any, otherwise
 * `NMC_OK`. Statuses as for `nmc_client_remove`.
 */
nmc_status_t nmc_client_remove_batch(struct nmc_client_t *client,
                                     const struct nmc_slice_t *keys,
                                     size_t n,
                                     uint32_t flags,
                                     nmc_status_t *out_statuses);

/**
 * Removes all objects of the client's namespace in one step, or of all namespaces with `NMC_REMOVE_EVERYWHERE`.
 * Otherwise like `nmc_client_remove`, except that it is no error if there are none.
 */
nmc_status_t nmc_client_remove_all(struct nmc_client_t *client, uint32_t flags);

/**
 * Sets a function that chooses where the values go that this client puts, unless their options name `locations`. A
 * NULL `placement` removes it. `release`, if not NULL, is called with `user` when `placement` will not be called with
 * it any more: after the next `nmc_client_set_placement`, or during `nmc_client_close`. If this call fails, or
 * `placement` is NULL, `release` is not called.
 *
 * The function is called on the calling thread, for each value of a put or batch before the first of them is sent, and
 * for submitted values before the submitting call returns. It sees the segments as the leader listed them at most a
 * second ago; a put that has to ask the leader for that list waits for it, even one that is submitted. An invalid
 * choice (a number that is no segment, one that appears twice, or more than there is room for) ends that put with
 * `NMC_ERR_INVALID_ARG`; a segment that is full or gone by then ends it with `NMC_ERR_NO_SPACE`. Copies on a medium
 * (`media_copies`) come on top of the chosen ones, as they do with locations.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_client_set_placement(struct nmc_client_t *client,
                                      nmc_placement_fn placement,
                                      void *user,
                                      nmc_release_fn release);

/**
 * Closes a segment, and has values that are only there copied to other nodes. From now on nothing is stored there.
 * Values of others go to other nodes. Puts of the node's own programs go to other ranks of its store; if they name
 * this rank, or there is no other, they end with `NMC_ERR_NO_SPACE`.
 *
 * Waits up to `timeout_ms` until nothing is left to copy: 0 does not wait, -1 waits as long as it takes. Returns
 * `NMC_IN_PROGRESS` if copying goes on, or if a put that had begun has not ended; `nmc_last_error_message` then says
 * what is left, and names the first objects. `*out_left`, if `out_left` is not NULL, is how many objects are left, as
 * far as that is known. Call this again until it returns `NMC_OK`, then call `nmc_client_unmount`, which opens an
 * attached store for puts again. To give up instead, call `nmc_client_undrain`. A new leader does not know about the
 * drain: the segment is open until this function is called again. A call that is waiting asks again by itself.
 *
 * Blocks while it asks the leader. A call that waits asks again if no leader answers. It returns at most 2 s after
 * `timeout_ms` or the client's own timeout, whichever is later. Thread-safe. Not graph-safe. Statuses:
 * `NMC_ERR_NOT_FOUND` (there is no such segment), `NMC_ERR_BUSY` (64 other segments are being drained),
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
 */
nmc_status_t nmc_client_drain(struct nmc_client_t *client,
                              struct nmc_slice_t segment,
                              int64_t timeout_ms,
                              uint64_t *out_left);

/**
 * Gives up a drain: the segment accepts values again, from others at once, and from its node's own programs as soon as
 * the node has heard of it, within a second or two. Copies that were made stay. If a thread is waiting in
 * `nmc_client_drain` for the same segment, it closes the segment again.
 *
 * Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (there is no such
 * segment), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_undrain(struct nmc_client_t *client,
                                struct nmc_slice_t segment);

/**
 * Submits a put like `nmc_client_put` and returns. When the put has ended, a completion with `token` is queued, and
 * `nmc_client_completions` takes it. The bytes of the value must stay as they are until the completion has been taken
 * or `nmc_client_close` has returned. Key, slices and options need to be valid only during this call. The time that
 * the put may take starts now.
 *
 * GPU memory goes through host memory. Values that are put are copied there before this returns, of a batch the first
 * 64 MiB. The rest of a batch, and values that are read, are copied by the thread that drives the client (see
 * `nmc_client_completions`).
 *
 * Does not block, except for that copy, for memory to keep track of the call, and, if a placement is set, for the list
 * of segments, which may be a second old. Thread-safe. Not graph-safe. After an error nothing has been submitted, and
 * no completion comes. Statuses: `NMC_ERR_BUSY` (`NMC_CLIENT_MAX_SUBMITTED` calls are submitted: take completions
 * first), `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`. The completion has those of `nmc_client_put`.
 */
nmc_status_t nmc_client_submit_put(struct nmc_client_t *client,
                                   struct nmc_slice_t key,
                                   const struct nmc_slice_t *slices,
                                   size_t n,
                                   const struct nmc_replicate_t *options,
                                   uint64_t token);

/**
 * Submits a read like `nmc_client_get` and returns; see `nmc_client_submit_put`. The buffers are the library's until
 * the completion has been taken. `bytes` of the completion is the size of the value. If a node of this client has the
 * value, it is in the buffers when this returns, and the completion is queued.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_get`.
 */
nmc_status_t nmc_client_submit_get(struct nmc_client_t *client,
                                   struct nmc_slice_t key,
                                   const struct nmc_buffer_t *buffers,
                                   size_t n,
                                   uint64_t token);

/**
 * Submits a remove like `nmc_client_remove` and returns; see `nmc_client_submit_put`.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of
 * `nmc_client_remove`.
 */
nmc_status_t nmc_client_submit_remove(struct nmc_client_t *client,
                                      struct nmc_slice_t key,
                                      uint32_t flags,
                                      uint64_t token);

/**
 * Submits `n` puts like `nmc_client_put_batch` and returns; see `nmc_client_submit_put`. One completion is queued when
 * all have ended. Until it has been taken, `out_statuses`, if not NULL, is the library's, and the values must stay as
 * they are. An invalid item does not stop the others; its status is in `out_statuses`.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`.
 */
nmc_status_t nmc_client_submit_put_batch(struct nmc_client_t *client,
                                         const struct nmc_slice_t *keys,
                                         const struct nmc_slice_t *slices,
                                         const size_t *counts,
                                         size_t n,
                                         const struct nmc_replicate_t *options,
                                         uint64_t token,
                                         nmc_status_t *out_statuses);

/**
 * Submits `n` reads like `nmc_client_get_batch` and returns; see `nmc_client_submit_get`. One completion is queued
 * when all have ended. Until it has been taken, the buffers are the library's, and so are `out_bytes` and
 * `out_statuses` if not NULL.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`.
 */
nmc_status_t nmc_client_submit_get_batch(struct nmc_client_t *client,
                                         const struct nmc_slice_t *keys,
                                         const struct nmc_buffer_t *buffers,
                                         const size_t *counts,
                                         size_t n,
                                         uint64_t token,
                                         uint64_t *out_bytes,
                                         nmc_status_t *out_statuses);

/**
 * Submits `n` removes like `nmc_client_remove_batch` and returns; see `nmc_client_submit_put`. One completion is
 * queued when all have ended. Until it has been taken, `out_statuses`, if not NULL, is the library's.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`.
 */
nmc_status_t nmc_client_submit_remove_batch(struct nmc_client_t *client,
                                            const struct nmc_slice_t *keys,
                                            size_t n,
                                            uint32_t flags,
                                            uint64_t token,
                                            nmc_status_t *out_statuses);

/**
 * Takes completions of submitted calls, oldest first and at most `capacity`, and stores their number in `*out_n`. None
 * is ever lost. If there are none, it waits for one as long as any call is under way, up to `timeout_ms`: 0 does not
 * wait, -1 waits without limit. If nothing is under way, it returns at once.
 *
 * This call also drives the connections. Unless the client has `NMC_CLIENT_THREAD`, submitted calls make progress only
 * while some thread is in this call, or in another call of the client that waits for an answer.
 *
 * Blocks up to `timeout_ms`. Thread-safe. Not graph-safe. If no completion comes in time, it returns `NMC_OK` with 0
 * in `*out_n`. Statuses: none of its own.
 */
nmc_status_t nmc_client_completions(struct nmc_client_t *client,
                                    struct nmc_client_completion_t *out_completions,
                                    size_t capacity,
                                    int64_t timeout_ms,
                                    size_t *out_n);

/**
 * Stores a file descriptor in `*out_fd` for poll or epoll. It is readable when you should call
 * `nmc_client_completions` with `timeout_ms` 0: a completion is queued, something has arrived, or it is time to ask
 * again. Not every such call yields a completion. The descriptor belongs to the client: do not close it, and do not
 * read from it. Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_OS`.
 */
nmc_status_t nmc_client_event_fd(struct nmc_client_t *client, int32_t *out_fd);

/**
 * Ends the calls that were submitted with `token` and are under way. When this returns, their completions are queued:
 * with `NMC_ERR_CANCELLED`, or with its own outcome if a call was just ending, or, for a batch, with the status of the
 * first item that had failed before. The library does not touch their memory any more. A put or remove may have taken
 * effect anyway. Nothing more is sent for it, except that a put is revoked.
 *
 * Does not block, except for a thread of this process that is just recording an outcome. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_NOT_FOUND` (no call with that token is under way; its completion may be waiting to be taken),
 * `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_cancel(struct nmc_client_t *client,
                               uint64_t token);

/**
 * Makes a handle of a store whose reads continue in the cluster, and stores it in `*out_store`. It is in the same
 * namespace as `store`. Values that the store has neither in memory nor on disk are read from any node that has them,
 * under the same key, in the namespace of the same name. The store need not be a node itself. `store` stays as it is,
 * and its misses cost no message. Handles that `nmc_store_namespace` makes from the new handle read from the cluster
 * too. Destroy the handle with `nmc_store_destroy`.
 *
 * These read from the cluster: `get`, `get_into`, `get_slices`, `get_strided` and `get_into_batch`, also into device
 * memory (through host memory, as are parts of a value); `get_metadata`, which asks a node; and `exists`,
 * `exists_batch` and `match_prefix`, which ask the leader for 256 keys at once and return `NMC_OBJECT_ELSEWHERE`.
 * Everything else concerns only this store: pins, locations, waits, watches, touch, retain, iteration, removes and
 * puts. An object that is being written here is `NMC_NOT_READY`, even if a node has it. With `NMC_CLIENT_KEEP_COPIES`,
 * values that were read are kept on this client's first node.
 *
 * A read that continues in the cluster takes up to `timeout_ms` (-1 for the client's `timeout_ms`) plus 2 s. It can
 * also return the statuses of `nmc_client_get`. If no master answers, that is `NMC_ERR_UNAVAILABLE` or
 * `NMC_ERR_TIMEOUT` and not `NMC_ERR_NOT_FOUND`, because it is unknown whether the value exists. `nmc_store_cancel`
 * and `nmc_store_destroy` of the handle end such reads with `NMC_ERR_CANCELLED`, and so does `nmc_client_close`; after
 * that the handle behaves like `store`. Client, handle and store may be closed in any order.
 *
 * Does not block, and asks no master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_open_store(struct nmc_client_t *client,
                                   struct nmc_store_t *store,
                                   int64_t timeout_ms,
                                   struct nmc_store_t **out_store);

/** @} */

/* == KV cache ===================================================================================================== */

/**
 * @defgroup kv_cache KV cache
 * Where the K and V of every token are: blocks, sequences, shared prefixes, block tables.
 *
 * `nmc_kv_create` creates a cache of blocks, with a group for the layers of each layout. For each request, `nmc_kv_open` reuses the
 * cached blocks of its prompt and allocates the rest, `nmc_kv_append` allocates room for generated tokens, and `nmc_kv_close` leaves
 * full blocks in the cache for others. `nmc_kv_table` and `nmc_kv_table_csr` write the block tables for attention kernels;
 * `nmc_kv_view` describes the memory. Tokens count as computed from the next call for their sequence on, or from `nmc_kv_commit`:
 * enqueue a step's work before that. With a store attached (`nmc_kv_attach_store`), `nmc_kv_offload` and `nmc_kv_onboard` copy blocks
 * to it and back in the background.
 * @{
 */

/** Keys and values, of all tokens of a sequence. */
#define NMC_KV_KIND_ATTENTION 0

/** One latent vector for each token (multi-head latent attention): one head, no V. */
#define NMC_KV_KIND_MLA 1

/** One state for each sequence, of `state_bytes` bytes a layer, that every token changes: linear attention, Mamba. */
#define NMC_KV_KIND_RECURRENT 2

/** In place of a group: all of them; where blocks are named, all that share the block numbers of the cache. */
#define NMC_KV_GROUPS_ALL UINT32_MAX

/** In place of the id of a new sequence: the cache chooses one that no open sequence has. */
#define NMC_KV_ID_AUTO UINT64_MAX

/** `[layers, blocks, heads, tokens, dim]`. */
#define NMC_KV_LAYER_MAJOR 0

/** `[heads, layers, blocks, tokens, dim]`. */
#define NMC_KV_HEAD_MAJOR 1

/** `[layers, blocks, tokens, heads, dim]`: what FlashAttention, FlashInfer ("NHD") and vLLM take. */
#define NMC_KV_LAYER_MAJOR_NHD 2

/** `[blocks, layers, heads, tokens, dim]`: a block is one piece of memory. */
#define NMC_KV_BLOCK_MAJOR 3

/** All of K and then all of V. */
#define NMC_KV_SIDES_SEPARATE 0

/** K and V right inside the layers: `[layers, 2, blocks, ...]`. */
#define NMC_KV_SIDES_PER_LAYER 1

/** K and V right inside the blocks: `[layers, blocks, 2, ...]`. */
#define NMC_KV_SIDES_PER_BLOCK 2

/** K, the latent vectors, or the state. */
#define NMC_KV_K 0

/** V. */
#define NMC_KV_V 1

/** No room: `NMC_ERR_NO_SPACE`. Idle cached blocks are evicted before, here and in all other cases. */
#define NMC_KV_WHEN_FULL_REJECT 0

/** No room: a new sequence gets fewer tokens than it asked for, which is then its limit. */
#define NMC_KV_WHEN_FULL_SHORTEN 1

/**
 * No room: the sequence that was used longest ago loses its blocks; calls for it are `NMC_ERR_STALE` until it is closed.
 */
#define NMC_KV_WHEN_FULL_EVICT_SEQUENCE 2

/**
 * No room: the sequence that was used longest ago goes to the store (`nmc_kv_attach_store`; without one this is
 * `NMC_KV_WHEN_FULL_REJECT`) and loses its blocks here; calls for it are `NMC_ERR_STALE` until it is closed. Opened again with all
 * its tokens, `nmc_kv_onboard` fetches what it had computed; with recurrent groups up to the last state that was kept. With
 * it, calls that need room may block until the copy is done, and are not graph-safe.
 */
#define NMC_KV_WHEN_FULL_MOVE_SEQUENCE 3

/** Keyed BLAKE3. The default. */
#define NMC_KV_HASH_BLAKE3 0

/** SHA-256 with a key, cut to 16 bytes. */
#define NMC_KV_HASH_SHA256 1

/**
 * XXH3, which can be made to collide; tokens and salts are kept and compared, which takes 4 bytes a token. Not with a store,
 * which has no tokens to compare.
 */
#define NMC_KV_HASH_XXH3 2

/** Flag of a config: no block is matched or published. */
#define NMC_KV_NO_PREFIX 1

/**
 * Flag of a config: virtual placement. Every sequence has contiguous addresses of its own, of `max_sequence_tokens` tokens,
 * and the pages of its blocks are mapped there as it grows: growing never moves anything, `nmc_kv_view` is always of the
 * sequence alone, and kernels need no table. The library owns the memory (`heap_kind`, `device`), and gets all of it in
 * `nmc_kv_create`.
 *
 * **What a page is.** The addresses of a sequence have the group's layout with the sequence's own blocks in place of all
 * blocks. A page is one block of it in one plane, that is `tokens_per_block` tokens of what is contiguous from block to
 * block: of one layer, K or V, with `NMC_KV_LAYER_MAJOR` and `NMC_KV_LAYER_MAJOR_NHD`; of one layer, both, with
 * `NMC_KV_SIDES_PER_BLOCK`; of one head of that with `NMC_KV_HEAD_MAJOR`; of all layers, K and V, with
 * `NMC_KV_BLOCK_MAJOR` (K or V with `NMC_KV_SIDES_SEPARATE`). It must be a multiple of the system's page (4 KiB) or of the
 * device's (2 MiB): `nmc_kv_page_tokens` finds the smallest `tokens_per_block`. A block has one page in each plane; growing
 * by a block maps them all, so layouts with few planes grow cheaper and in smaller steps. Forks and prefixes share whole
 * blocks.
 *
 * **When pages are mapped.** By `nmc_kv_open`, `nmc_kv_append`, `nmc_kv_truncate` and `nmc_kv_fork` for the blocks they add,
 * and ahead of need by `nmc_kv_reserve`, also from another thread: an append up to there maps nothing. A closed sequence
 * leaves its addresses, with the free blocks that are mapped there, to the next one. These calls may call CUDA and
 * wait for the driver then, and are not graph-safe; beside their own statuses they can return `NMC_ERR_LIMIT` (too many
 * mappings), `NMC_ERR_CUDA` and `NMC_ERR_NO_MEMORY`, and leave the tokens of the sequence as they were.
 *
 * **When pages are unmapped.** When their place is needed for another block: after the tokens there were cut off, or when a
 * later sequence has the addresses. Like freeing memory, `nmc_kv_truncate`, `nmc_kv_close` and `nmc_kv_destroy` may be
 * called when no work uses those tokens any more. Blocks are never exchanged for equal ones of another sequence.
 *
 * Not available (`NMC_ERR_UNSUPPORTED`): memory of the program's, `window`, `nmc_kv_table*`, `nmc_kv_slot_mapping`,
 * `nmc_kv_gather`, `nmc_kv_scatter`, `nmc_kv_drop_least`, `nmc_kv_resize`, `nmc_kv_attach_store`. Copies are of addresses: see
 * `nmc_kv_copy_t`.
 */
#define NMC_KV_VIRTUAL 2

/** Flag of `nmc_kv_open`: the blocks follow each other, so that views are of the sequence alone. */
#define NMC_KV_OPEN_CONTIGUOUS 1

/** Flag of `nmc_kv_open`: neither match blocks nor publish any. */
#define NMC_KV_OPEN_PRIVATE 2

/**
 * Flag of `nmc_kv_open`: the cache may have all tokens. Otherwise at least the last one is left to be computed, since
 * the engine needs its result.
 */
#define NMC_KV_OPEN_MATCH_ALL 4

/** Flag of `nmc_kv_close`: what was not committed was not computed, and is not published. */
#define NMC_KV_CLOSE_ABORT 1

/** Flag of `nmc_kv_seq_info`: look up in the store how many tokens it has. */
#define NMC_KV_SEQ_STORED 1

/** State of a sequence: in use. */
#define NMC_KV_SEQ_OPEN 0

/** State of a sequence: its blocks were taken to make room. */
#define NMC_KV_SEQ_EVICTED 1

/** Entries of a table are block numbers: vLLM, FlashAttention (`block_table`), FlashMLA. */
#define NMC_KV_TABLE_BLOCKS 0

/**
 * Two rows a sequence, of K and of V: 2 x block and 2 x block + 1, for pools whose blocks hold K and then V, as
 * TensorRT-LLM's block offsets are.
 */
#define NMC_KV_TABLE_OFFSETS 1

/**
 * Layers with one layout. Start from `NMC_KV_GROUP_INIT`; `layers`, `kv_heads` and `head_dim` must be set, or `layers` and
 * `state_bytes` for `NMC_KV_KIND_RECURRENT`.
 *
 * Groups share block numbers: one table serves all of them. A group with a `window`, or of kind `NMC_KV_KIND_RECURRENT`, does not
 * keep every token. It has `blocks` blocks with numbers of its own, which follow its sequences by themselves: blocks that leave
 * the window are free, and a prefix is matched as far as all groups have what comes next. When they run short, blocks of
 * earlier sequences that could be matched go, the one unused longest first; then it is as if the cache were full.
 */
typedef struct nmc_kv_group_t {
  /** Size of this struct as the caller knows it; in all elements of an array that of the first. */
  uint32_t struct_size;
  /** `NMC_KV_KIND_ATTENTION`, `NMC_KV_KIND_MLA` or `NMC_KV_KIND_RECURRENT`. */
  uint32_t kind;
  /**
   * One of `NMC_DTYPE_FP32`, `NMC_DTYPE_BF16`, `NMC_DTYPE_FP16`, `NMC_DTYPE_FP8`, `NMC_DTYPE_INT8`, `NMC_DTYPE_RAW`.
   */
  uint32_t dtype;
  /** Bytes of an element of `NMC_DTYPE_RAW`; else 0. */
  uint32_t element_bytes;
  /** Layers. */
  uint32_t layers;
  /** Heads of K and of V; 1 for `NMC_KV_KIND_MLA`. */
  uint32_t kv_heads;
  /** Elements of a head's vector. */
  uint32_t head_dim;
  /**
   * Order of the axes: one of `NMC_KV_LAYER_MAJOR`, `NMC_KV_HEAD_MAJOR`, `NMC_KV_LAYER_MAJOR_NHD`,
   * `NMC_KV_BLOCK_MAJOR`.
   */
  uint32_t order;
  /**
   * Where K and V are among them: one of `NMC_KV_SIDES_SEPARATE`, `NMC_KV_SIDES_PER_LAYER`, `NMC_KV_SIDES_PER_BLOCK`.
   */
  uint32_t sides;
  /**
   * Blocks of its own, with a window or a state; else 0. A sequence needs as many as the window and the tokens of its next
   * call take, and one more; of states it needs one, and a second while the first is kept for others.
   */
  uint32_t blocks;
  /**
   * `NMC_KV_KIND_RECURRENT`: the state at the end of every so many blocks is kept for later sequences, if a call ends
   * there. 0: only those for which `nmc_kv_keep_state` is called, and the last one of a sequence.
   */
  uint32_t state_every;
  /** Zero. */
  uint32_t reserved0;
  /** Sliding window of these layers in tokens; 0 for none. */
  uint64_t window;
  /**
   * `NMC_KV_KIND_RECURRENT`: bytes of the state of one layer; else 0. A block is one state of all layers, called a slot.
   */
  uint64_t state_bytes;
  /**
   * The memory, on host or device: `nmc_kv_heap_bytes` says how much. It is the program's, must stay until the cache
   * is destroyed, and is touched only by calls that copy blocks. NULL: views hold offsets instead of addresses, except with
   * `NMC_KV_VIRTUAL`, where it must be NULL.
   */
  void *memory;
  /** Bytes at `memory`. */
  uint64_t memory_bytes;
} nmc_kv_group_t;

/** What an nmc_kv_group_t starts from. */
#define NMC_KV_GROUP_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_group_t), \
    /* kind */ NMC_KV_KIND_ATTENTION, \
    /* dtype */ NMC_DTYPE_BF16, \
    /* element_bytes */ 0, \
    /* layers */ 0, \
    /* kv_heads */ 0, \
    /* head_dim */ 0, \
    /* order */ NMC_KV_LAYER_MAJOR, \
    /* sides */ NMC_KV_SIDES_SEPARATE, \
    /* blocks */ 0, \
    /* state_every */ 0, \
    /* reserved0 */ 0, \
    /* window */ 0, \
    /* state_bytes */ 0, \
    /* memory */ NULL, \
    /* memory_bytes */ 0 \
  }

/** How a KV cache is made. Start from `NMC_KV_CONFIG_INIT`; `total_blocks` or `max_total_tokens` must be set. */
typedef struct nmc_kv_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** Number of blocks, or 0 for as many as `max_total_tokens` need. */
  uint32_t total_blocks;
  /** Blocks for which there is memory, at least `total_blocks`; 0 for just as many. `nmc_kv_resize` goes up to it. */
  uint32_t capacity_blocks;
  /** Tokens of a block. Default 16. */
  uint32_t tokens_per_block;
  /**
   * Sequences that can be open at once, up to 2^24; each takes 32 bytes. 0: an eighth of the blocks, 1,024 to 65,536.
   */
  uint32_t max_sequences;
  /** Tokens of all sequences together, if `total_blocks` is 0. */
  uint64_t max_total_tokens;
  /** Layouts of the memory; NULL if the cache is to manage block numbers alone. */
  const struct nmc_kv_group_t *groups;
  /** How many. */
  size_t n_groups;
  /**
   * Sliding window in tokens, of all groups: blocks that the next token's window does not reach are freed as a sequence
   * grows. 0 for none.
   */
  uint64_t window;
  /** Which cached block goes first: `NMC_EVICT_LRU`, ... */
  uint32_t eviction;
  /** What happens when there is no room: `NMC_KV_WHEN_FULL_REJECT`, ... */
  uint32_t when_full;
  /** What names blocks by their tokens: `NMC_KV_HASH_BLAKE3`, ... */
  uint32_t hash;
  /** `NMC_KV_NO_PREFIX`, `NMC_KV_VIRTUAL`, or 0. */
  uint32_t flags;
  /**
   * Secret that goes into all hashes; caches with the same one name the same tokens alike. Empty: a fixed one, the same
   * everywhere.
   */
  struct nmc_slice_t hash_secret;
  /** How many events `nmc_kv_events` can look back; 48 bytes each. 0 for none. */
  uint32_t event_capacity;
  /** With `NMC_KV_VIRTUAL`: `NMC_HEAP_HOST` (default) or `NMC_HEAP_CUDA`. */
  uint32_t heap_kind;
  /** With `NMC_HEAP_CUDA`: the device; -1 for the calling thread's current one. */
  int32_t device;
  /** Zero. */
  uint32_t reserved0;
  /** With `NMC_KV_VIRTUAL`: tokens for which every sequence has addresses. 0 for as many as the cache has. */
  uint64_t max_sequence_tokens;
  /** In the heap of a world (see `nmc_kv_create`): where the groups begin, a multiple of 4,096. */
  uint64_t heap_offset;
} nmc_kv_config_t;

/** What an nmc_kv_config_t starts from. */
#define NMC_KV_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* total_blocks */ 0, \
    /* capacity_blocks */ 0, \
    /* tokens_per_block */ 16, \
    /* max_sequences */ 0, \
    /* max_total_tokens */ 0, \
    /* groups */ NULL, \
    /* n_groups */ 0, \
    /* window */ 0, \
    /* eviction */ NMC_EVICT_LRU, \
    /* when_full */ NMC_KV_WHEN_FULL_REJECT, \
    /* hash */ NMC_KV_HASH_BLAKE3, \
    /* flags */ 0, \
    /* hash_secret */ {NULL, 0}, \
    /* event_capacity */ 0, \
    /* heap_kind */ NMC_HEAP_HOST, \
    /* device */ -1, \
    /* reserved0 */ 0, \
    /* max_sequence_tokens */ 0, \
    /* heap_offset */ 0 \
  }

/** Name of a block of tokens and of all blocks before it. */
typedef struct nmc_kv_hash_t {
  /** The hash. */
  uint8_t bytes[16];
} nmc_kv_hash_t;

/** How a sequence is opened. Start from `NMC_KV_OPEN_INIT`. */
typedef struct nmc_kv_open_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** `NMC_KV_OPEN_*`, or 0. */
  uint32_t flags;
  /** 0 to 15: with `NMC_EVICT_PRIORITY`, its blocks stay longer than those of a lower one. */
  uint32_t priority;
  /** How long the priority lasts; 0 for ever. */
  uint64_t ttl_ms;
  /** What else must be equal for blocks to be: tenant, LoRA adapter, images. */
  struct nmc_slice_t salt;
  /** A name to find the sequence by with `nmc_kv_find`, 1 to 1,024 bytes; empty for none. */
  struct nmc_slice_t name;
  /**
   * Hashes of its full blocks, if the program computed them; NULL to let the cache do it. With `NMC_KV_HASH_XXH3`
   * the tokens are needed as well.
   */
  const struct nmc_kv_hash_t *hashes;
  /** How many: `n_tokens` / `tokens_per_block`. */
  size_t n_hashes;
  /** Zero. */
  uint64_t reserved[2];
} nmc_kv_open_t;

/** What an nmc_kv_open_t starts from. */
#define NMC_KV_OPEN_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_open_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* flags */ 0, \
    /* priority */ 0, \
    /* ttl_ms */ 0, \
    /* salt */ {NULL, 0}, \
    /* name */ {NULL, 0}, \
    /* hashes */ NULL, \
    /* n_hashes */ 0, \
    /* reserved */ {0, 0} \
  }

/** What a sequence began with. Start from `NMC_KV_OPENED_INIT`. */
typedef struct nmc_kv_opened_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved0;
  /** Its id: the program's, or the one that the cache chose for `NMC_KV_ID_AUTO`. */
  uint64_t id;
  /** Leading tokens whose blocks the cache had: they need not be computed. */
  uint64_t hit_tokens;
  /** Tokens that it has: as many as asked for, or fewer with `NMC_KV_WHEN_FULL_SHORTEN`. */
  uint64_t tokens;
} nmc_kv_opened_t;

/** What an nmc_kv_opened_t starts from. */
#define NMC_KV_OPENED_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_opened_t), \
    /* reserved0 */ 0, \
    /* id */ 0, \
    /* hit_tokens */ 0, \
    /* tokens */ 0 \
  }

/** How tokens are appended. Start from `NMC_KV_APPEND_INIT`. */
typedef struct nmc_kv_append_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * How important the tokens are, which `nmc_kv_drop_least` goes by: a finite number. A block is as important as its most
   * important token. Default 0, as without options.
   */
  float importance;
  /** Zero. */
  uint32_t flags;
} nmc_kv_append_t;

/** What an nmc_kv_append_t starts from. */
#define NMC_KV_APPEND_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_append_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* importance */ 0.0, \
    /* flags */ 0 \
  }

/** How much room there was when there was not enough, in blocks. Start from `NMC_KV_ROOM_INIT`. */
typedef struct nmc_kv_room_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Whose blocks these are: a group with blocks of its own, or `NMC_KV_GROUPS_ALL`. */
  uint32_t group;
  /** Blocks that were needed. */
  uint64_t needed;
  /** Free blocks. */
  uint64_t free;
  /** Cached blocks that no sequence or pin holds; together with the free ones they were not enough. */
  uint64_t evictable;
} nmc_kv_room_t;

/** What an nmc_kv_room_t starts from. */
#define NMC_KV_ROOM_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_room_t), \
    /* group */ 0, \
    /* needed */ 0, \
    /* free */ 0, \
    /* evictable */ 0 \
  }

/**
 * What is to be copied: a block to another one, or with `NMC_KV_VIRTUAL`, where blocks have no addresses of their own, the
 * bytes of one page. `nmc_kv_copy_blocks` takes either.
 */
typedef struct nmc_kv_copy_t {
  /** The block to read; -1 if bytes are copied. */
  int32_t from;
  /** The block to write; -1 if bytes are copied. */
  int32_t to;
  /**
   * Of a block: in which groups it is copied, `NMC_KV_GROUPS_ALL` or one with blocks of its own. Of bytes: whose they are.
   */
  uint32_t group;
  /** Zero. */
  uint32_t reserved;
  /** The address to read; NULL if a block is copied. */
  const void *from_address;
  /** The address to write; NULL if a block is copied. */
  void *to_address;
  /** How many bytes; 0 if a block is copied. */
  uint64_t bytes;
} nmc_kv_copy_t;

/** What a sequence is. Start from `NMC_KV_SEQ_INFO_INIT`. */
typedef struct nmc_kv_seq_info_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_KV_SEQ_OPEN` or `NMC_KV_SEQ_EVICTED`. */
  uint32_t state;
  /** Tokens that it has. */
  uint64_t tokens;
  /** Tokens that it may have. */
  uint64_t max_tokens;
  /** Leading tokens that are computed, as far as the calls so far tell. */
  uint64_t computed_tokens;
  /** Leading tokens that the store has, if `NMC_KV_SEQ_STORED` asks for it; else 0. */
  uint64_t stored_tokens;
  /** Place of the next token in its block: `tokens` modulo `tokens_per_block`. */
  uint32_t next_offset_in_block;
  /** Its blocks, with those that were dropped. */
  uint32_t blocks;
  /** Blocks that were dropped. */
  uint32_t dropped;
  /** Leading blocks that others may hold as well. */
  uint32_t shared;
  /** Leading blocks that the prefix index has. */
  uint32_t published;
  /** 1 if its blocks follow each other. */
  uint32_t contiguous;
  /** Blocks that wait to be copied: 0 if `nmc_kv_take_copies` has nothing. */
  uint32_t copies;
  /** Zero. */
  uint32_t reserved0;
} nmc_kv_seq_info_t;

/** What an nmc_kv_seq_info_t starts from. */
#define NMC_KV_SEQ_INFO_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_seq_info_t), \
    /* state */ 0, \
    /* tokens */ 0, \
    /* max_tokens */ 0, \
    /* computed_tokens */ 0, \
    /* stored_tokens */ 0, \
    /* next_offset_in_block */ 0, \
    /* blocks */ 0, \
    /* dropped */ 0, \
    /* shared */ 0, \
    /* published */ 0, \
    /* contiguous */ 0, \
    /* copies */ 0, \
    /* reserved0 */ 0 \
  }

/** The state of a KV cache at one moment. Start from `NMC_KV_STATS_INIT`. */
typedef struct nmc_kv_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** 1 if no block is free or could be freed by eviction. */
  uint32_t is_full;
  /** All blocks: `used` and `idle` and `free` together. */
  uint64_t total;
  /** Blocks that sequences and pins hold. */
  uint64_t used;
  /** Cached blocks that no sequence or pin holds. */
  uint64_t idle;
  /** Free blocks: neither held nor cached. */
  uint64_t free;
  /** Blocks that the prefix index has, held or idle. */
  uint64_t published;
  /** Open sequences. */
  uint64_t sequences;
  /** Tokens that sequences were opened with. */
  uint64_t asked_tokens;
  /** Those of them that the cache had. */
  uint64_t hit_tokens;
  /** Cached blocks that were evicted to make room. */
  uint64_t evicted_blocks;
  /** Sequences that were evicted to make room. */
  uint64_t evicted_sequences;
  /** Blocks that were computed twice, of which one was kept. */
  uint64_t deduplicated;
  /** Memory of the arena: bytes of all blocks in all groups. */
  uint64_t arena_bytes;
  /** Memory of the cache's own records, in bytes. */
  uint64_t metadata_bytes;
  /** 1 - the longest free run / the free blocks. */
  float fragmentation;
  /** Zero. */
  uint32_t reserved0;
  /** Those evicted sequences whose blocks went to the store first. */
  uint64_t moved_sequences;
  /** Zero. */
  uint64_t reserved;
} nmc_kv_stats_t;

/** What an nmc_kv_stats_t starts from. */
#define NMC_KV_STATS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_stats_t), \
    /* is_full */ 0, \
    /* total */ 0, \
    /* used */ 0, \
    /* idle */ 0, \
    /* free */ 0, \
    /* published */ 0, \
    /* sequences */ 0, \
    /* asked_tokens */ 0, \
    /* hit_tokens */ 0, \
    /* evicted_blocks */ 0, \
    /* evicted_sequences */ 0, \
    /* deduplicated */ 0, \
    /* arena_bytes */ 0, \
    /* metadata_bytes */ 0, \
    /* fragmentation */ 0, \
    /* reserved0 */ 0, \
    /* moved_sequences */ 0, \
    /* reserved */ 0 \
  }

/** The blocks of one group at one moment. Start from `NMC_KV_GROUP_STATS_INIT`. */
typedef struct nmc_kv_group_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** 1 if its blocks have numbers of their own; else the numbers are those of the cache. */
  uint32_t own_blocks;
  /** All blocks: `used` and `idle` and `free` together. */
  uint64_t total;
  /** Blocks that sequences and pins hold. */
  uint64_t used;
  /** Blocks that a later sequence could use, and that no sequence or pin holds. */
  uint64_t idle;
  /** Free blocks: neither held nor kept for later sequences. */
  uint64_t free;
  /** Idle blocks that were evicted to make room. */
  uint64_t evicted;
  /** Bytes of a block in this group. */
  uint64_t block_bytes;
  /** Where it begins in the heap of this rank; `UINT64_MAX` if it is not in one. */
  uint64_t heap_offset;
} nmc_kv_group_stats_t;

/** What an nmc_kv_group_stats_t starts from. */
#define NMC_KV_GROUP_STATS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_group_stats_t), \
    /* own_blocks */ 0, \
    /* total */ 0, \
    /* used */ 0, \
    /* idle */ 0, \
    /* free */ 0, \
    /* evicted */ 0, \
    /* block_bytes */ 0, \
    /* heap_offset */ 0 \
  }

/** A 4-D tensor `[blocks, heads, tokens, dim]` in the arena. Start from `NMC_KV_VIEW_INIT`. */
typedef struct nmc_kv_view_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Bytes of an element. */
  uint32_t element_bytes;
  /** Address of element `[0, 0, 0, 0]`; an offset if the group has no memory. */
  void *data;
  /** Lengths of the axes. */
  int64_t shape[4];
  /** Distances along the axes, in elements. */
  int64_t strides[4];
  /**
   * 1 if the blocks of the view are the sequence's own, in order; 0 if they are all blocks of the layer, and the
   * block table tells which are the sequence's.
   */
  uint32_t contiguous;
  /** Zero. */
  uint32_t reserved0;
} nmc_kv_view_t;

/** What an nmc_kv_view_t starts from. */
#define NMC_KV_VIEW_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_view_t), \
    /* element_bytes */ 0, \
    /* data */ NULL, \
    /* shape */ {0, 0, 0, 0}, \
    /* strides */ {0, 0, 0, 0}, \
    /* contiguous */ 0, \
    /* reserved0 */ 0 \
  }

/**
 * What a row of a dense table holds; the table's owner keeps one for each row, all zero at first, in ordinary memory.
 */
typedef struct nmc_kv_row_t {
  /** Known to the library. */
  uint64_t uid;
  /** Known to the library. */
  uint32_t rewrites;
  /** Entries that were written. */
  uint32_t blocks;
} nmc_kv_row_t;

/** Event: a block can be matched now. */
#define NMC_KV_EVENT_STORED 0

/** Event: a block is no longer there. */
#define NMC_KV_EVENT_REMOVED 1

/** Event: no block is there any more. */
#define NMC_KV_EVENT_CLEARED 2

/** What entered or left the prefix index. */
typedef struct nmc_kv_event_t {
  /** Counts up by one. */
  uint64_t number;
  /** `NMC_KV_EVENT_STORED`, `NMC_KV_EVENT_REMOVED` or `NMC_KV_EVENT_CLEARED`. */
  uint32_t kind;
  /** Zero. */
  uint32_t reserved;
  /** Name of the block; zero for `NMC_KV_EVENT_CLEARED`. */
  struct nmc_kv_hash_t hash;
  /** For `NMC_KV_EVENT_STORED` the name of the block that it continues; zero if it is a first block. */
  struct nmc_kv_hash_t parent;
} nmc_kv_event_t;

/** A transfer waits for nothing: the cache lies in host memory, and the program has written it. */
#define NMC_KV_AFTER_NOTHING 0

/** A transfer waits for what is on a stream now; `handle` is the stream. */
#define NMC_KV_AFTER_STREAM 1

/** A transfer waits for an event; `handle` is a `cudaEvent_t` that stays until the transfer is over. */
#define NMC_KV_AFTER_EVENT 2

/** Flag of `nmc_kv_onboard`: fetch all tokens. Otherwise at least the last one is left to be computed. */
#define NMC_KV_ONBOARD_ALL 1

/**
 * Flag of `nmc_kv_onboard`: a layer of all blocks after the other, so that computing can begin with the first layers
 * (`layers_done`); blocks are complete only at the end.
 */
#define NMC_KV_ONBOARD_BY_LAYER 2

/** What a transfer waits for. */
typedef struct nmc_kv_after_t {
  /** `NMC_KV_AFTER_NOTHING`, `NMC_KV_AFTER_STREAM` or `NMC_KV_AFTER_EVENT`. */
  uint32_t kind;
  /** Zero. */
  uint32_t reserved;
  /** The stream or the event. */
  void *handle;
} nmc_kv_after_t;

/** How far a transfer is. Start from `NMC_KV_PROGRESS_INIT`. */
typedef struct nmc_kv_progress_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Leading layers, counted through all groups, that have come in all blocks. */
  uint32_t layers_done;
  /** Tokens of its blocks. */
  uint64_t tokens;
  /** Those of the leading blocks that are done. */
  uint64_t tokens_done;
} nmc_kv_progress_t;

/** What an nmc_kv_progress_t starts from. */
#define NMC_KV_PROGRESS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_kv_progress_t), \
    /* layers_done */ 0, \
    /* tokens */ 0, \
    /* tokens_done */ 0 \
  }

/**
 * A block KV cache: it maps the tokens of sequences to numbered blocks of equal size. Full blocks of equal tokens are
 * found again by later sequences (prefix reuse), forks share blocks, and tables for attention kernels are written
 * straight into the program's memory. The cache touches the blocks themselves only when it is asked to copy them
 * (`nmc_kv_gather`, `nmc_kv_copy_blocks`, `nmc_kv_offload`, ...). With `NMC_KV_VIRTUAL` it also maps them, and some of
 * what follows is different; see there.
 *
 * **When blocks count as computed.** `nmc_kv_open` and `nmc_kv_append` give room for tokens that the engine computes
 * afterwards. With the next `nmc_kv_append` or `nmc_kv_close` of the same sequence, what it had before counts as
 * computed, and its full blocks can be matched by others; `nmc_kv_commit` says so earlier. The engine must have
 * enqueued that work by then, and order later work after it: on the same stream, or with an event.
 *
 * **When blocks are free.** A block that is freed or evicted may be handed out again at once. Work that still reads it
 * must be ordered before work that writes the tokens of the block's next sequence, as it is on one stream.
 *
 * All functions may be called from any thread at the same time, even while another thread destroys the cache; calls
 * for one sequence exclude each other. Threads that work on different sequences do not wait for each other, except
 * where blocks are shared. Unless a function's comment says otherwise, it does not block, does not call CUDA, and is
 * graph-safe. Statuses that every function can return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`,
 * `NMC_ERR_NO_MEMORY` (for the cache's own records; the message says how much, and nothing changed); those that take a
 * sequence also `NMC_ERR_NOT_FOUND` (no such sequence is open) and `NMC_ERR_STALE` (its blocks were taken to make
 * room: close it).
 */
typedef struct nmc_kv_t nmc_kv_t;

/**
 * Creates a cache with all blocks free and stores a handle in `*out_kv`. Destroy it with `nmc_kv_destroy`.
 *
 * With a `world`, the groups lie in the heap that this rank has there, one after the other from `heap_offset` of the
 * config on, each at the next multiple of 4,096 bytes; `nmc_kv_heap_bytes` returns how much that is. Their `memory`
 * must be NULL. Peers can then reach the blocks, with `nmc_world_ptr` and the offset of a group
 * (`nmc_kv_group_stats`). Nothing else may use that part of the heap, and the world must not be destroyed before the
 * cache. With `world` NULL, the memory is the program's, or the library's with `NMC_KV_VIRTUAL`.
 *
 * Does not block, except to get memory for `NMC_KV_VIRTUAL`. Thread-safe. Graph-safe without it. Statuses:
 * `NMC_ERR_INVALID_ARG` (a number in the config, memory that is too small), `NMC_ERR_VERSION`, `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED` (what `NMC_KV_VIRTUAL` does not have, or no CUDA), `NMC_ERR_CANCELLED` (the
 * rank has left or aborted), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_create(struct nmc_world_t *world, const struct nmc_kv_config_t *config, struct nmc_kv_t **out_kv);

/**
 * Stores in `*out_bytes` how much memory the group with this number needs, or with `NMC_KV_GROUPS_ALL` how much of a world's heap
 * all groups of a config take from `heap_offset` on, with what lies between them.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (what `nmc_kv_create` would refuse, or no such
 * group), `NMC_ERR_UNSUPPORTED` (all groups with `NMC_KV_VIRTUAL`), `NMC_ERR_VERSION`.
 */
nmc_status_t nmc_kv_heap_bytes(const struct nmc_kv_config_t *config,
                               uint32_t group,
                               uint64_t *out_bytes);

/**
 * Stores in `*out_tokens` the smallest `tokens_per_block` with which the pages of a config with `NMC_KV_VIRTUAL` are whole pages
 * of the system or of the device; its multiples are as good. What the config says about it does not matter.
 *
 * Does not block. Thread-safe. Not graph-safe with `NMC_HEAP_CUDA`. Statuses: `NMC_ERR_INVALID_ARG` (another number in the
 * config, or no `NMC_KV_VIRTUAL`), `NMC_ERR_VERSION`, `NMC_ERR_UNSUPPORTED` (no CUDA), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_page_tokens(const struct nmc_kv_config_t *config,
                                uint32_t *out_tokens);

/**
 * Destroys a cache; what its sequences held is gone with it. NULL does nothing.
 *
 * Waits for calls in other threads. Thread-safe. Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_BUSY` (inside a log callback).
 */
nmc_status_t nmc_kv_destroy(struct nmc_kv_t *kv);

/**
 * Opens sequence `id` with `n_tokens` tokens: takes the blocks that the cache has of its prefix, and gets others for
 * the rest, all or nothing. The program chooses the id, or the cache does with `NMC_KV_ID_AUTO`: one of 2^63 or above
 * that no open sequence has, and that it never chooses again; `out_opened->id` says which, or `nmc_kv_find` for a
 * sequence with a name. `tokens` may be NULL: then nothing is matched or published. `options`, `out_opened` and
 * `out_room` may be NULL; `*out_room` is stored with `NMC_ERR_NO_SPACE`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS` (the id or
 * the name), `NMC_ERR_LIMIT` (`max_sequences`, or more than 2^31 tokens), `NMC_ERR_INVALID_ARG` (also:
 * `NMC_KV_ID_AUTO` with neither `out_opened` nor a name, so that the sequence could not be found), `NMC_ERR_VERSION`.
 */
nmc_status_t nmc_kv_open(struct nmc_kv_t *kv,
                         uint64_t id,
                         const uint32_t *tokens,
                         uint64_t n_tokens,
                         const struct nmc_kv_open_t *options,
                         struct nmc_kv_opened_t *out_opened,
                         struct nmc_kv_room_t *out_room);

/**
 * Stores the id of the open sequence with this name in `*out_id`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
 */
nmc_status_t nmc_kv_find(struct nmc_kv_t *kv, struct nmc_slice_t name, uint64_t *out_id);

/**
 * Adds `n_tokens` tokens to a sequence, and blocks as they are needed, all or nothing. `tokens` may be NULL if they are
 * not known; then no further blocks of the sequence are published. What it had before counts as computed (see
 * `nmc_kv_t`). A contiguous sequence that cannot grow where it is moves: see `nmc_kv_take_copies`. `options` and `out_room` may be
 * NULL; `*out_room` is stored with `NMC_ERR_NO_SPACE`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_LIMIT` (more tokens than
 * the sequence may have), `NMC_ERR_INVALID_ARG` (the options), `NMC_ERR_VERSION`, `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_append(struct nmc_kv_t *kv,
                           uint64_t id,
                           const uint32_t *tokens,
                           uint64_t n_tokens,
                           const struct nmc_kv_append_t *options,
                           struct nmc_kv_room_t *out_room);

/**
 * Adds one token to each of `n` sequences, as a decode step does. `tokens` has one for each, or is NULL. Every sequence
 * gets a status of its own, in `out_statuses` if that is not NULL; those that fail are as they were. Returns `NMC_OK`, or the
 * status of the first that failed.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_append`.
 */
nmc_status_t nmc_kv_append_batch(struct nmc_kv_t *kv,
                                 const uint64_t *ids,
                                 const uint32_t *tokens,
                                 size_t n,
                                 nmc_status_t *out_statuses);

/**
 * Says that the first `n_tokens` tokens of a sequence are computed, so that their full blocks can be matched at once.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (more than it has), `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_commit(struct nmc_kv_t *kv, uint64_t id, uint64_t n_tokens);

/**
 * Keeps the state that a sequence has now, in all groups of kind `NMC_KV_KIND_RECURRENT`, for later sequences that
 * begin with the same tokens: they can begin here. The sequence must be at the end of a block. All its tokens count as
 * computed. Its next tokens are written to another slot (see `nmc_kv_state_slots`).
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not at the end of a block, or its tokens
 * are not known, so that the state could not be found), `NMC_ERR_UNSUPPORTED` (no such group), `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_keep_state(struct nmc_kv_t *kv,
                               uint64_t id);

/**
 * Gets blocks for `n_tokens` tokens in all, so that growing to there cannot fail. A contiguous sequence may move. Slots of
 * states are not among them: a sequence whose state is kept, or was forked, still needs one when it grows. `out_room` may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_LIMIT`,
 * `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_reserve(struct nmc_kv_t *kv,
                            uint64_t id,
                            uint64_t n_tokens,
                            struct nmc_kv_room_t *out_room);

/**
 * Cuts a sequence to its first `n_tokens` tokens, as after rejected speculation; what it had reserved is free again. What
 * is cut off was not computed, unless it was committed. If the last block stays in part and others may read it, the
 * sequence gets a copy: see `nmc_kv_take_copies`. `out_room` may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (for the copy; nothing changed),
 * `NMC_ERR_INVALID_ARG` (more than it has, or into a block that was dropped), `NMC_ERR_UNSUPPORTED` (what the next token needs
 * is gone: blocks that left a window, or the state there), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_truncate(struct nmc_kv_t *kv,
                             uint64_t id,
                             uint64_t n_tokens,
                             struct nmc_kv_room_t *out_room);

/**
 * Opens sequence `child` with the tokens of `parent`. Full blocks are shared; a last block that is not full is copied, and
 * `nmc_kv_take_copies` of the child has the copy. A child's blocks lie anywhere. `child` is the program's: not `NMC_KV_ID_AUTO`.
 * `out_room` may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS`, `NMC_ERR_INVALID_ARG`
 * (the id), `NMC_ERR_LIMIT`, `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_fork(struct nmc_kv_t *kv,
                         uint64_t parent,
                         uint64_t child,
                         struct nmc_kv_room_t *out_room);

/**
 * Closes a sequence. Full blocks that it computed stay in the cache for others; all else is free. With
 * `NMC_KV_CLOSE_ABORT`, only what was committed or counts as computed already (see `nmc_kv_t`) stays.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (it was closed before, or never opened),
 * `NMC_ERR_INVALID_ARG` (unknown flags).
 */
nmc_status_t nmc_kv_close(struct nmc_kv_t *kv, uint64_t id, uint32_t flags);

/**
 * Drops up to `count` full blocks from the middle of a sequence, the least important first (`nmc_kv_append_t`; among
 * equals the earliest). The first `keep_first` and the last `keep_recent` full blocks stay. Other tokens keep their
 * positions; tables have -1 for a dropped block. `out_dropped`, if not NULL, receives how many went.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_UNSUPPORTED` (with
 * `NMC_KV_VIRTUAL`).
 */
nmc_status_t nmc_kv_drop_least(struct nmc_kv_t *kv,
                               uint64_t id,
                               uint32_t count,
                               uint32_t keep_first,
                               uint32_t keep_recent,
                               uint32_t *out_dropped);

/**
 * Stores in `*out_hit_tokens` how many leading tokens the cache has, as cache-aware routers ask. Holds nothing: they may be
 * gone when a sequence is opened. `tokens` or `hashes` may be NULL, not both; `n_tokens` tokens have
 * `n_tokens` / `tokens_per_block` hashes.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_kv_match(struct nmc_kv_t *kv,
                          const uint32_t *tokens,
                          uint64_t n_tokens,
                          const struct nmc_kv_hash_t *hashes,
                          struct nmc_slice_t salt,
                          uint64_t *out_hit_tokens);

/**
 * Stores the hashes of the full blocks of `tokens` in `out_hashes`, which has room for `n_tokens` / `tokens_per_block`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_kv_hash(struct nmc_kv_t *kv,
                         const uint32_t *tokens,
                         uint64_t n_tokens,
                         struct nmc_slice_t salt,
                         struct nmc_kv_hash_t *out_hashes);

/**
 * Keeps the published blocks of the first `n_tokens` tokens of a sequence in the cache until `nmc_kv_unpin`, also after
 * the sequence is closed. `*out_pin` receives the pin; `out_pinned_tokens`, if not NULL, how many tokens it covers.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_pin(struct nmc_kv_t *kv,
                        uint64_t id,
                        uint64_t n_tokens,
                        uint64_t *out_pin,
                        uint64_t *out_pinned_tokens);

/**
 * Ends a pin.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (it ended before).
 */
nmc_status_t nmc_kv_unpin(struct nmc_kv_t *kv, uint64_t pin);

/**
 * Evicts every cached block that no sequence or pin holds. `out_evicted`, if not NULL, receives how many.
 *
 * Does not block; takes time in the number of cached blocks. Thread-safe. Graph-safe. Statuses: none of its own beside
 * `NMC_ERR_BAD_HANDLE`.
 */
nmc_status_t nmc_kv_clear(struct nmc_kv_t *kv,
                          uint64_t *out_evicted);

/**
 * Stores events from number `*cursor` on in `out_events`, up to `capacity` of them, how many in `*out_n`, and the number to
 * go on with in `*cursor`, which begins at 0. `out_lost`, if not NULL, receives how many were overwritten before they could be read:
 * if it is not 0, what the reader knows has a gap, and `nmc_kv_snapshot` fills it.
 *
 * Does not block. Thread-safe; every reader has its own cursor. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_kv_events(struct nmc_kv_t *kv,
                           uint64_t *cursor,
                           struct nmc_kv_event_t *out_events,
                           size_t capacity,
                           size_t *out_n,
                           uint64_t *out_lost);

/**
 * Stores every block of the prefix index as an event `NMC_KV_EVENT_STORED`, each after the one that it continues, how
 * many in `*out_n`, and in `*out_cursor` the number with which `nmc_kv_events` goes on from there.
 *
 * Does not block; takes time in the number of blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (more than
 * `capacity`; `*out_n` was stored).
 */
nmc_status_t nmc_kv_snapshot(struct nmc_kv_t *kv,
                             uint64_t *out_cursor,
                             struct nmc_kv_event_t *out_events,
                             size_t capacity,
                             size_t *out_n);

/**
 * Changes the number of blocks, up to `capacity_blocks` of the config. Sequences stay as they are: the blocks that go are
 * the ones with the highest numbers, cached ones are evicted, and if a sequence holds one nothing goes.
 *
 * Does not block; takes time in the number of blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (a block that should
 * go is held), `NMC_ERR_INVALID_ARG` (0, or more than the capacity), `NMC_ERR_UNSUPPORTED` (with `NMC_KV_VIRTUAL`).
 */
nmc_status_t nmc_kv_resize(struct nmc_kv_t *kv,
                           uint32_t total_blocks);

/**
 * Stores what a sequence is in `*out_info`. Also for one whose blocks were taken to make room. With `NMC_KV_SEQ_STORED` in
 * `flags` also how many of its tokens the store has, for which every block is looked up there; else that costs nothing.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_INVALID_ARG` (also unknown flags); with
 * `NMC_KV_SEQ_STORED` also `NMC_ERR_NO_MEMORY`, and `NMC_ERR_STALE` for a sequence whose blocks were taken: it has no names for
 * them any more.
 */
nmc_status_t nmc_kv_seq_info(struct nmc_kv_t *kv,
                             uint64_t id,
                             uint32_t flags,
                             struct nmc_kv_seq_info_t *out_info);

/**
 * Stores the ids of the sequences that were used longest ago, for a scheduler that preempts by itself: up to `capacity`
 * of them into `out_ids`, the oldest first, and how many into `*out_n`. Takes time in the number of sequences.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_kv_victims(struct nmc_kv_t *kv,
                            uint64_t *out_ids,
                            size_t capacity,
                            size_t *out_n);

/**
 * Stores the state of the cache in `*out_stats`, all numbers of one moment.
 *
 * Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_kv_stats(struct nmc_kv_t *kv, struct nmc_kv_stats_t *out_stats);

/**
 * Stores the blocks of one group in `*out_stats`. For a group without blocks of its own these are those of the cache.
 *
 * Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no such group),
 * `NMC_ERR_UNSUPPORTED` (`NMC_KV_VIRTUAL`).
 */
nmc_status_t nmc_kv_group_stats(struct nmc_kv_t *kv, uint32_t group, struct nmc_kv_group_stats_t *out_stats);

/**
 * The state as text for people: configuration, numbers that add up, and the sequences; and a picture of the blocks with `width` of
 * them in a line, `.` free, `X` held, `c` cached and idle. 0 for no picture.
 *
 * Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (cut, `*out_needed` was stored).
 */
nmc_status_t nmc_kv_dump(struct nmc_kv_t *kv,
                         uint32_t width,
                         char *buffer,
                         size_t capacity,
                         size_t *out_needed);

/**
 * Counts every block afresh, from all sequences, pins and free lists, and compares: proof that nothing is lost or owned
 * twice. For tests and for programs in doubt; takes time in the number of blocks and of what sequences hold.
 *
 * Waits for calls in other threads. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INTERNAL` (the message says what is wrong).
 */
nmc_status_t nmc_kv_audit(struct nmc_kv_t *kv);

/**
 * Stores K or V of a sequence in one layer as a 4-D tensor in `*out_view`. For a contiguous sequence these are its own blocks
 * in order; for a paged one all blocks of the layer, which a kernel indexes through the block table. Nothing is copied.
 * The view of a contiguous sequence is valid until it moves; that of a virtual one, which has all blocks that are mapped,
 * until it is closed: only its number of blocks changes.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (group, layer or side), `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_view(struct nmc_kv_t *kv,
                         uint64_t id,
                         uint32_t group,
                         uint32_t layer,
                         uint32_t side,
                         struct nmc_kv_view_t *out_view);

/**
 * Stores the address of the vector of one token, by its position in the sequence, in `*out_address`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (group, layer, side, head or token),
 * `NMC_ERR_STALE` (also: the token's block was dropped), `NMC_ERR_NOT_FOUND`.
 */
nmc_status_t nmc_kv_token_address(struct nmc_kv_t *kv,
                                  uint64_t id,
                                  uint64_t token,
                                  uint32_t group,
                                  uint32_t layer,
                                  uint32_t side,
                                  uint32_t head,
                                  void **out_address);

/**
 * Writes the rows of a dense block table, int32 `[n, width]` (`[n, 2, width]` with `NMC_KV_TABLE_OFFSETS`), for `n`
 * sequences. `group` says which group the table is for: groups with blocks of their own have their own tables, all
 * others share one. Pass 0 if there are no groups. Writes only what changed since the row was last written, as `rows`
 * remembers, one `nmc_kv_row_t` for each sequence, all zero at first. A row that is new, of another sequence, or of
 * one whose earlier blocks changed is written whole, and filled up with `pad`. A dropped block is -1. `out_table` may
 * be pinned memory; it is never read. Give every buffer its own `rows`. `out_written`, if not NULL, receives how many
 * entries were stored.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (a sequence has more than `width` blocks),
 * `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`; rows before the one at fault are written. `NMC_ERR_UNSUPPORTED` with
 * `NMC_KV_VIRTUAL`, here and in the two functions below.
 */
nmc_status_t nmc_kv_table(struct nmc_kv_t *kv,
                          uint32_t group,
                          uint32_t format,
                          const uint64_t *ids,
                          size_t n,
                          size_t width,
                          int32_t pad,
                          struct nmc_kv_row_t *rows,
                          int32_t *out_table,
                          uint64_t *out_written);

/**
 * Writes the compressed table that FlashInfer takes: `out_indptr` int32 `[n + 1]`, `out_indices` int32 with room for `capacity`
 * blocks, `out_last_page_len` int32 `[n]` (1 to `tokens_per_block`; 0 for a sequence without tokens). `*out_n` receives how many
 * blocks there are.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (more than `capacity`; `*out_n` was stored),
 * `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_table_csr(struct nmc_kv_t *kv,
                              uint32_t group,
                              const uint64_t *ids,
                              size_t n,
                              int32_t *out_indptr,
                              int32_t *out_last_page_len,
                              int32_t *out_indices,
                              size_t capacity,
                              size_t *out_n);

/**
 * Writes the slot mapping, int64: where the last `counts[i]` tokens of each sequence go, as block x `tokens_per_block` +
 * place in the block, one sequence after the other; -1 in a dropped block. `counts` NULL is the last token of each; they have 32 bits, as
 * kernels take them. `*out_n` receives how many slots there are.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (more than `capacity`; `*out_n` was stored),
 * `NMC_ERR_INVALID_ARG` (more than a sequence has), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_slot_mapping(struct nmc_kv_t *kv,
                                 uint32_t group,
                                 const uint64_t *ids,
                                 const uint32_t *counts,
                                 size_t n,
                                 int64_t *out_slots,
                                 size_t capacity,
                                 size_t *out_n);

/**
 * Stores the slots of the states of `n` sequences in a group of kind `NMC_KV_KIND_RECURRENT`, int32 `[n]` each, for the tokens that
 * the last call gave room for: `out_reads` has the slot with the state before them, or -1 if they are the first and begin with no
 * state; `out_writes` the slot for the state after them, or -1 if there are none. Where the two differ, the state that is read is
 * kept for others: a kernel that can only update in place copies it first.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not such a group), `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_STALE`.
 */
nmc_status_t nmc_kv_state_slots(struct nmc_kv_t *kv,
                                uint32_t group,
                                const uint64_t *ids,
                                size_t n,
                                int32_t *out_reads,
                                int32_t *out_writes);

/**
 * Attaches a store to a cache. Through it the cache exchanges blocks with caches of other processes: those with the
 * same kinds, types and sizes of heads and blocks, and the same hash and secret. All groups must have memory that the
 * store can reach (device memory needs a store that was joined with that device). A cache can be attached only once.
 * It keeps the store open until the cache is destroyed, even after `nmc_store_destroy`. Starts 6 to 12 threads,
 * `nmc-kv-move`, one for each core in between.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_EXISTS` (it has a store), `NMC_ERR_INVALID_ARG` (a group
 * without memory), `NMC_ERR_UNSUPPORTED` (a cache without a prefix index, with `NMC_KV_VIRTUAL`, or with
 * `NMC_KV_HASH_XXH3`, which needs tokens to compare), `NMC_ERR_OS` (no thread).
 */
nmc_status_t nmc_kv_attach_store(struct nmc_kv_t *kv,
                                 struct nmc_store_t *store);

/**
 * Sets the stream on which the program computes: moves that make room (`NMC_KV_WHEN_FULL_MOVE_SEQUENCE`) wait for what
 * is on it when they begin. Needed if the cache lies in device memory; `after` is of kind `NMC_KV_AFTER_STREAM`, or
 * `NMC_KV_AFTER_NOTHING` for host memory. The stream must stay until the cache is destroyed.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no store, an event, device memory and
 * nothing to wait for), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_move_after(struct nmc_kv_t *kv,
                               const struct nmc_kv_after_t *after);

/**
 * Begins to copy the published blocks of the first `n_tokens` tokens of a sequence to the store, which keeps them until it
 * evicts them; blocks that it has are left out. The blocks are held until it is over, whatever becomes of the sequence.
 * `after`: what the copy waits for, such as the stream that computes the blocks; needed if the cache lies in device
 * memory, else NULL for nothing. `*out_ticket` receives what `nmc_kv_transfer_poll` takes.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no store; device memory and nothing to wait
 * for), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_BUSY` (being fetched), `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED`,
 * `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_offload(struct nmc_kv_t *kv,
                            uint64_t id,
                            uint64_t n_tokens,
                            const struct nmc_kv_after_t *after,
                            uint64_t *out_ticket);

/**
 * Starts to fetch from the store, for a sequence that was just opened, the full blocks that follow those found in the
 * cache, as far as the store has them. `*out_tokens` receives how many tokens that is, and `*out_ticket` the ticket;
 * both are 0 if there are none. `after` is what must be over before the blocks are written; needed if the cache lies
 * in device memory. `flags`: `NMC_KV_ONBOARD_ALL`, `NMC_KV_ONBOARD_BY_LAYER` or 0. Fetch before you fork.
 *
 * Until `nmc_kv_transfer_poll` or `nmc_kv_transfer_wait` has reported the end of the transfer, the sequence can be
 * read and closed; everything else is `NMC_ERR_BUSY`. Then the blocks that came count as computed and can be matched,
 * and the engine computes the rest. If the sequence is closed before that, the blocks that had come stay, and nothing
 * else counts as computed. A fetch that fails or is cancelled in the middle leaves the blocks that were complete, in
 * order, and nothing of the others (see `computed_tokens` of `nmc_kv_seq_info_t`); with groups that have blocks of
 * their own it leaves nothing.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: those of `nmc_kv_offload`; `NMC_ERR_UNSUPPORTED` also for
 * `NMC_KV_ONBOARD_BY_LAYER` with groups that have blocks of their own, and for a sequence that shares with a fork what
 * would be written.
 */
nmc_status_t nmc_kv_onboard(struct nmc_kv_t *kv,
                            uint64_t id,
                            uint32_t flags,
                            const struct nmc_kv_after_t *after,
                            uint64_t *out_ticket,
                            uint64_t *out_tokens);

/**
 * Returns how a transfer is: `NMC_IN_PROGRESS`, or its outcome, and then the ticket is no longer valid. `out_progress`
 * may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_OK` (done), `NMC_IN_PROGRESS`, `NMC_ERR_CANCELLED`,
 * `NMC_ERR_STALE` (a block left the store during the transfer), `NMC_ERR_CORRUPT` (a checksum or size was wrong),
 * `NMC_ERR_NO_SPACE` (the store is full), `NMC_ERR_NOT_FOUND` (no such ticket), and what the store and CUDA return.
 */
nmc_status_t nmc_kv_transfer_poll(struct nmc_kv_t *kv,
                                  uint64_t ticket,
                                  struct nmc_kv_progress_t *out_progress);

/**
 * Waits until a transfer is over, at most `timeout_ms` (-1: 30 s); then like `nmc_kv_transfer_poll`.
 *
 * Blocks. Thread-safe. Not graph-safe. Statuses: those of `nmc_kv_transfer_poll`; `NMC_IN_PROGRESS` if the time is over first.
 */
nmc_status_t nmc_kv_transfer_wait(struct nmc_kv_t *kv,
                                  uint64_t ticket,
                                  int64_t timeout_ms,
                                  struct nmc_kv_progress_t *out_progress);

/**
 * Asks a transfer to end soon, after the blocks that are under way. `nmc_kv_transfer_poll` then returns its outcome:
 * cancelled, or done if it was quicker.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such ticket, or its outcome was already
 * returned).
 */
nmc_status_t nmc_kv_transfer_cancel(struct nmc_kv_t *kv, uint64_t ticket);

/**
 * Stores the copies that a sequence waits for, and forgets them. They must be enqueued, in this order, before the next call that
 * changes the sequence; the blocks that they read stay until then, whatever becomes of a parent. `nmc_kv_copy_blocks` makes them.
 * Paged sequences have at most one, and one more for each group with a window, from `nmc_kv_fork` or `nmc_kv_truncate`; contiguous
 * ones one a block when they move. `*out_n` receives how many there are; if `capacity` is less, that is all that happens.
 *
 * With `NMC_KV_VIRTUAL` they are of bytes: after `nmc_kv_fork` the last block of the child if it is not full, after
 * `nmc_kv_truncate` the last block if others share it; one copy for each page of it. They must also be enqueued before the next call
 * that changes the parent, and be done before either is cut or closed.
 *
 * Does not block; with `NMC_KV_VIRTUAL` it may map pages and call CUDA. Thread-safe. Graph-safe without it. Statuses:
 * `NMC_ERR_TOO_SMALL` (`*out_n` was stored), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`, `NMC_ERR_LIMIT`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_take_copies(struct nmc_kv_t *kv,
                                uint64_t id,
                                struct nmc_kv_copy_t *out_copies,
                                size_t capacity,
                                size_t *out_n);

/**
 * Copies `n` blocks of a group, or of all with `NMC_KV_GROUPS_ALL`, one after the other in this order into the `to_bytes`
 * bytes at `to`. Each is as it is in a store, whatever the order of the cache's memory: its groups one after the other, of
 * those the layers, of those K and V, of those the heads and then the tokens, or the tokens and then the heads with
 * `NMC_KV_LAYER_MAJOR_NHD`. So `nmc_kv_scatter` of another cache can take it. A block has `nmc_kv_heap_bytes` /
 * `capacity_blocks` bytes in a group. A block may be named more than once.
 *
 * If the cache lies in device memory, the copy runs when `stream`, of that device, gets there, and `to` is memory of the same
 * device or pinned host memory; `blocks` may be freed at once. A captured graph has the block numbers in it. In host memory
 * it is done when the call returns, `to` is host memory and `stream` is NULL. Copies of pieces and addresses that are
 * multiples of 16 bytes are the fastest.
 *
 * Does not block, except that the first call for device memory loads the kernels; a call with `n` = 0 does just that, before
 * a capture. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`to_bytes`; the message says how many are needed),
 * `NMC_ERR_INVALID_ARG` (no such block or group, no memory, a stream for host memory, memory that overlaps or cannot be
 * reached), `NMC_ERR_UNSUPPORTED` (groups on host and device together, another device, managed memory, or
 * `NMC_KV_VIRTUAL`), `NMC_ERR_LIMIT` (a block that is too large), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_gather(struct nmc_kv_t *kv,
                           uint32_t group,
                           const int32_t *blocks,
                           size_t n,
                           void *to,
                           uint64_t to_bytes,
                           void *stream);

/**
 * The reverse of `nmc_kv_gather`: copies the `from_bytes` bytes at `from`, as that function left them there, into `n` blocks,
 * in this order. No block may be named twice.
 *
 * Does not block, except as `nmc_kv_gather`. Thread-safe. Graph-safe. Statuses: those of `nmc_kv_gather`;
 * `NMC_ERR_INVALID_ARG` also if a block is named twice.
 */
nmc_status_t nmc_kv_scatter(struct nmc_kv_t *kv,
                            uint32_t group,
                            const int32_t *blocks,
                            size_t n,
                            const void *from,
                            uint64_t from_bytes,
                            void *stream);

/**
 * Makes the copies that `nmc_kv_take_copies` stored, of one sequence or of several, each in the groups that it names; also those
 * from slot to slot of a recurrent group, where `nmc_kv_state_slots` has two. Blocks are copied in no order: one that is written
 * must not be read or written by another copy of the same call. Those of one `nmc_kv_take_copies` never are; the copy for a fork
 * of a sequence that waits for one itself goes into a second call. With `NMC_KV_VIRTUAL` copies are of bytes, at the addresses
 * that `nmc_kv_take_copies` stored, and are made one after the other.
 *
 * In device memory the copies run when `stream` gets there, and `copies` may be freed at once; in host memory they are done
 * when the call returns, and `stream` is NULL.
 *
 * Does not block, except as `nmc_kv_gather`. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no such block, one that
 * is written twice or read and written, no memory, a stream for host memory), `NMC_ERR_UNSUPPORTED` (bytes in a paged cache,
 * blocks in a virtual one, groups on host and device together, managed memory), `NMC_ERR_LIMIT`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_copy_blocks(struct nmc_kv_t *kv,
                                const struct nmc_kv_copy_t *copies,
                                size_t n,
                                void *stream);

/** @} */

/* == Blocks ======================================================================================================= */

/**
 * @defgroup blocks Blocks
 * An allocator of block numbers without memory, for engines with their own sequences.
 *
 * `nmc_blocks_create` creates the numbers 0 to `total_blocks` - 1, all free. `nmc_blocks_allocate` takes a run of consecutive blocks,
 * `nmc_blocks_allocate_scattered` takes any blocks; both fail at once if there are not enough. To wait instead, `nmc_blocks_request`
 * queues a request and returns a ticket for `nmc_blocks_poll`. `nmc_blocks_extend` makes a run longer in place, and `nmc_blocks_free`
 * frees a run or part of one. The allocator knows which blocks are in use, but not by whom or for what.
 * @{
 */

/** How an allocator of blocks is made. Start from `NMC_BLOCKS_CONFIG_INIT`; `total_blocks` must be set. */
typedef struct nmc_blocks_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** Number of blocks, 1 to 2^31 - 1. */
  uint32_t total_blocks;
  /** Zero. */
  uint32_t reserved0;
  /** Zero. */
  uint64_t reserved[4];
} nmc_blocks_config_t;

/** What an nmc_blocks_config_t starts from. */
#define NMC_BLOCKS_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_blocks_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* total_blocks */ 0, \
    /* reserved0 */ 0, \
    /* reserved */ {0, 0, 0, 0} \
  }

/**
 * Blocks that follow each other: `first`, `first + 1`, ... A plain value, which may be copied, cut in parts and kept by
 * the program; the allocator knows blocks, not runs.
 */
typedef struct nmc_block_run_t {
  /** Number of the first block. */
  int32_t first;
  /** How many blocks. */
  int32_t count;
} nmc_block_run_t;

/** The state of an allocator of blocks at one moment. Start from `NMC_BLOCKS_STATS_INIT`. */
typedef struct nmc_blocks_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved0;
  /** All blocks. */
  uint32_t total;
  /** Blocks in use. */
  uint32_t used;
  /** Blocks that are free; `used` and `free` are together `total`. */
  uint32_t free;
  /** The longest run that `nmc_blocks_allocate` would give now. */
  uint32_t largest_run;
  /** Stretches of free blocks. */
  uint32_t free_runs;
  /**
   * 1 - `largest_run` / `free`: 0 if all that is free is one run, near 1 if it lies in many pieces; 0 if nothing is free.
   */
  float fragmentation;
  /** Requests that wait. */
  uint32_t waiting;
  /** Requests that were served, and not fetched yet with `nmc_blocks_poll`. */
  uint32_t ready;
  /** Bytes of memory that the allocator takes. */
  uint64_t bytes;
  /** Zero. */
  uint64_t reserved[2];
} nmc_blocks_stats_t;

/** What an nmc_blocks_stats_t starts from. */
#define NMC_BLOCKS_STATS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_blocks_stats_t), \
    /* reserved0 */ 0, \
    /* total */ 0, \
    /* used */ 0, \
    /* free */ 0, \
    /* largest_run */ 0, \
    /* free_runs */ 0, \
    /* fragmentation */ 0, \
    /* waiting */ 0, \
    /* ready */ 0, \
    /* bytes */ 0, \
    /* reserved */ {0, 0} \
  }

/**
 * An allocator of blocks: it knows their numbers, 0 to `total_blocks` - 1, and nothing of what lies in them. Blocks
 * are taken as runs that follow each other, or scattered. Both kinds are blocks like any others: either function can
 * free them, in any parts, and they share the same free blocks. A block that is not in use is never freed: freeing
 * something twice is an error, unless it was handed out again in between.
 *
 * All functions may be called from any thread at the same time, even while another thread destroys it; none of them
 * waits for blocks, and a mutex is held for the time of one operation. Statuses that every function can return:
 * `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG` (pointers that are NULL or not aligned).
 */
typedef struct nmc_blocks_t nmc_blocks_t;

/**
 * Makes an allocator with all blocks free and puts a handle into `*out_blocks`.
 *
 * Does not block. Thread-safe. Graph-safe. Destroyed with `nmc_blocks_destroy`. Statuses: `NMC_ERR_INVALID_ARG` (the
 * number of blocks or a reserved field), `NMC_ERR_VERSION`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`.
 */
nmc_status_t nmc_blocks_create(const struct nmc_blocks_config_t *config, struct nmc_blocks_t **out_blocks);

/**
 * Destroys an allocator, whatever is in use. NULL is fine; in a forked child it does nothing.
 *
 * Blocks until calls of other threads have returned, which is soon. Graph-safe. Thread-safe: of several callers one
 * succeeds. Statuses: `NMC_ERR_BAD_HANDLE`; `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_blocks_destroy(struct nmc_blocks_t *blocks);

/**
 * Takes a run of exactly `count` blocks and stores it in `*out_run`. It takes what is free now, past requests that wait: those
 * are served whenever blocks become free, before the call that frees them returns.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (no such run is free; the message says how many
 * blocks are free and how long the longest run is), `NMC_ERR_INVALID_ARG` (`count` is 0).
 */
nmc_status_t nmc_blocks_allocate(struct nmc_blocks_t *blocks,
                                 uint32_t count,
                                 struct nmc_block_run_t *out_run);

/**
 * Gives back the blocks of a run, which may be a part of one (such as its tail), several that lie side by side, or blocks
 * that were taken scattered. Requests that wait are served with them.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (the run has no blocks, reaches past the end, or one of its
 * blocks is not in use; nothing was freed).
 */
nmc_status_t nmc_blocks_free(struct nmc_blocks_t *blocks,
                             struct nmc_block_run_t run);

/**
 * Makes a run longer by the `more` blocks behind it, in place, and adds them to `run->count`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (not all of those are free, or the blocks end
 * there; `*run` stays what it was), `NMC_ERR_INVALID_ARG` (`more` is 0, or `*run` is not wholly in use).
 */
nmc_status_t nmc_blocks_extend(struct nmc_blocks_t *blocks, struct nmc_block_run_t *run, uint32_t more);

/**
 * Takes any `count` free blocks and stores their numbers in `out_numbers`: all, or none. With `count` 0 it does nothing. It leaves
 * long runs alone as far as it can, and takes what is free now, past requests that wait.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (fewer are free; the message says how many).
 */
nmc_status_t nmc_blocks_allocate_scattered(struct nmc_blocks_t *blocks,
                                           size_t count,
                                           int32_t *out_numbers);

/**
 * Gives back `count` blocks, in any order, however they were taken. Requests that wait are served with them.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (a number that is no block, a block that is not in use or that is
 * given twice: the message says which one, and nothing was freed).
 */
nmc_status_t nmc_blocks_free_scattered(struct nmc_blocks_t *blocks,
                                       const int32_t *numbers,
                                       size_t count);

/**
 * Asks for a run of `count` blocks when there is room, and stores a ticket in `*out_ticket`, with which `nmc_blocks_poll`
 * fetches it. Tickets are never 0 and never used again.
 *
 * Requests are served strictly in the order in which they came, whenever blocks become free: a small one behind a large
 * one waits, though it would fit, so that the large one is not passed over for ever. `nmc_blocks_allocate` and
 * `nmc_blocks_allocate_scattered` do not stand in line: a program that wants the line to hold uses requests only.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (`count` is more than all blocks),
 * `NMC_ERR_INVALID_ARG` (`count` is 0), `NMC_ERR_LIMIT` (65,536 tickets are open), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_blocks_request(struct nmc_blocks_t *blocks,
                                uint32_t count,
                                uint64_t *out_ticket);

/**
 * Fetches the run of a request into `*out_run`; with that its ticket ends.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_IN_PROGRESS` (it waits), `NMC_ERR_NOT_FOUND` (no such ticket is
 * open), `NMC_ERR_NO_SPACE` (since `nmc_blocks_resize` there are fewer blocks than it asked for; the ticket ends).
 */
nmc_status_t nmc_blocks_poll(struct nmc_blocks_t *blocks,
                             uint64_t ticket,
                             struct nmc_block_run_t *out_run);

/**
 * Gives up a request. If it was served with a run that has not been fetched, the run is free again; requests behind it
 * move up.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such ticket is open: if its run was
 * fetched, the run belongs to the program that fetched it).
 */
nmc_status_t nmc_blocks_cancel(struct nmc_blocks_t *blocks,
                               uint64_t ticket);

/**
 * Stores the state of the allocator in `*out_stats`.
 *
 * Does not block; puts single free blocks back to their neighbours first, which takes at most about a millisecond.
 * Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`.
 */
nmc_status_t nmc_blocks_stats(struct nmc_blocks_t *blocks, struct nmc_blocks_stats_t *out_stats);

/**
 * Writes the state as text for people: counts that add up, and a map with one character per block, 64 in a line: `.`
 * is free, `X` in use. As for all text, `out_needed` receives the size with the NUL, and may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (cut, `*out_needed` was stored),
 * `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_blocks_dump(struct nmc_blocks_t *blocks, char *buffer, size_t capacity, size_t *out_needed);

/**
 * Changes the number of blocks to `total_blocks`, 1 to 2^31 - 1. New blocks are free and have the next numbers; blocks that go away are
 * those with the highest numbers, and must be free. What lies in blocks is the program's business, before and after.
 *
 * Does not block; takes time in the number of blocks. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (one that should go is
 * in use; the message says which), `NMC_ERR_INVALID_ARG` (the number), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_blocks_resize(struct nmc_blocks_t *blocks,
                               uint32_t total_blocks);

/** @} */

/* == EP =========================================================================================================== */

/**
 * @defgroup ep EP
 * Expert-parallel transport: the tokens of an MoE layer to their experts, and the results back.
 *
 * All ranks of a group call `nmc_ep_create` together; `nmc_ep_bytes_needed` returns the required memory beforehand. For each layer,
 * every rank calls `nmc_ep_dispatch` and `nmc_ep_route_pack`, runs its grouped GEMMs, and calls `nmc_ep_scatter` and
 * `nmc_ep_combine`; `nmc_ep_moe_forward` does all of this in one call. `_send` and `_recv` split dispatch and combine, so that other work can run in
 * between. `nmc_ep_group_begin` and `nmc_ep_group_end` launch the calls of several ranks of one process together. The first error ends
 * the group for all ranks, and `nmc_ep_check` reports it: destroy the group and create a new one.
 * @{
 */

/** Rows travel to the experts as they are. */
#define NMC_EP_DISPATCH_SAME 0

/**
 * Rows travel as fp8 (e4m3) with an fp32 scale for every 128 elements; the library quantises them. If all 128 are smaller than
 * 1e-30, the scale is 1 and they become zeros, each with its sign.
 */
#define NMC_EP_DISPATCH_FP8 1

/** Rows travel as fp8 with scales that the caller gives. */
#define NMC_EP_DISPATCH_FP8_GIVEN 2

/** Trap in the kernel that finds an error, instead of reporting it. For debugging: the context is lost. */
#define NMC_EP_TRAP 1

/** Do not count tokens per expert. */
#define NMC_EP_NO_LOAD 2

/**
 * Give rows to return memory of their own. Without it `y` of `nmc_ep_recv_buffers_t` is its `x`: a row goes back from
 * where it came, which halves what passes through the caches. Rows that travel as fp8 always have it.
 */
#define NMC_EP_SEPARATE_Y 4

/**
 * Let kernels that are launched with programmatic stream serialization be placed early although other processes share
 * the device: from the beginning of the dispatch before them on, while a combine sums, or while a pack or a scatter
 * ends. Faster, and needs half of the room: `blocks` 16 for 8 ranks on an H200. What the program itself launches this
 * way must leave room for the dispatch of the others, which otherwise come too late and lose the group. A launch for
 * all ranks of the group that use the device places the next one early in any case.
 */
#define NMC_EP_EARLY 8

/**
 * Let ranks in several processes that share one GPU order their stores with fences of that device's scope instead of
 * the system's, which are slow while several processes use the device. PTX promises this scope only to threads of one
 * program. That it also holds between processes follows from the one L2 cache that they share, and was tested, but is
 * not guaranteed (docs/ep.md). Has no effect if ranks are on several devices. Ranks of one process on one device use
 * it in any case, if they are of a local world or were created by one `nmc_ep_create_ranks`.
 */
#define NMC_EP_DEVICE_SCOPE 16

/**
 * How a group is made. Start from `NMC_EP_CONFIG_INIT`; `hidden`, `top_k` and `experts` must be set. All ranks must
 * agree on everything but the deadline and what is counted or trapped.
 */
typedef struct nmc_ep_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** Ranks of the world that are in the group, one bit each; 0 for all. At most 32. The lowest one is number 0. */
  uint64_t members;
  /**
   * Where the transport lies in every rank's heap, a multiple of 256; `nmc_ep_bytes_needed` says how much it takes.
   */
  uint64_t heap_offset;
  /** Most tokens of a rank in a step; 0 for 256 shared by all ranks (32 with 8). */
  uint32_t t_cap;
  /** Elements of a row; rows are whole multiples of 16 bytes, with fp8 of 128 elements. */
  uint32_t hidden;
  /** Experts of a token, 1 to 32. */
  uint32_t top_k;
  /** Experts of all ranks together, a multiple of their number. Rank r has those from r * n_local on. */
  uint32_t experts;
  /** Type of rows: `NMC_DTYPE_BF16`, `NMC_DTYPE_FP16` or `NMC_DTYPE_FP32`. */
  uint32_t dtype;
  /** How rows travel to the experts: one of `NMC_EP_DISPATCH_*`. */
  uint32_t dispatch;
  /** Type of weights: `NMC_DTYPE_FP32` or `NMC_DTYPE_FP16`. */
  uint32_t weights;
  /**
   * Rows that an expert has room for in the grouped layout; 0 for world * t_cap, as many as can come
   * unless a token names an expert twice. With less,
   * rows that do not fit are counted, or go to spill groups.
   */
  uint32_t max_m;
  /**
   * Groups of `max_m` rows behind those of the experts, for rows that did not fit, filled in the order of experts.
   */
  uint32_t spill_groups;
  /**
   * Buffer sets; 0 for 1. Layer l uses set l % buffer_sets. Steps of different sets may overlap on two streams, and on more if
   * there is room for all of them (see `blocks`).
   */
  uint32_t buffer_sets;
  /**
   * Blocks of a rank's kernels on a GPU, at most 128; 0 for 32. What cannot be resident at once, with the other ranks of
   * the group on the same device, is refused; what else runs there is not known. A combine that is not launched together with
   * all ranks of the device has at most as many as the device has multiprocessors for each rank (half as many with several
   * buffer sets): it leaves room for kernels of ranks that it waits for.
   */
  uint32_t blocks;
  /**
   * 0, or `NMC_EP_TRAP`, `NMC_EP_NO_LOAD`, `NMC_EP_SEPARATE_Y`, `NMC_EP_EARLY`,
   * `NMC_EP_DEVICE_SCOPE`.
   */
  uint32_t flags;
  /** Longest wait for a peer, in ms; -1 for 10 s. Also how long making the group may take. */
  int64_t deadline_ms;
  /** Number of the first step; for tests of the wrap. 0 is fine. */
  uint32_t first_phase;
  /** Zero. */
  uint32_t reserved0;
  /** Zero. */
  uint64_t reserved[4];
} nmc_ep_config_t;

/** What an nmc_ep_config_t starts from. */
#define NMC_EP_CONFIG_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_config_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* members */ 0, \
    /* heap_offset */ 0, \
    /* t_cap */ 0, \
    /* hidden */ 0, \
    /* top_k */ 0, \
    /* experts */ 0, \
    /* dtype */ NMC_DTYPE_BF16, \
    /* dispatch */ NMC_EP_DISPATCH_SAME, \
    /* weights */ NMC_DTYPE_FP32, \
    /* max_m */ 0, \
    /* spill_groups */ 0, \
    /* buffer_sets */ 0, \
    /* blocks */ 0, \
    /* flags */ 0, \
    /* deadline_ms */ -1, \
    /* first_phase */ 0, \
    /* reserved0 */ 0, \
    /* reserved */ {0, 0, 0, 0} \
  }

/** What a group needs, in bytes. Start from `NMC_EP_BYTES_INIT`. */
typedef struct nmc_ep_bytes_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** In every rank's heap, from `heap_offset` on. */
  uint64_t transport;
  /** Grouped rows: `[groups][max_m][hidden]` of the type that travels. */
  uint64_t grouped_x;
  /** Scales of grouped rows: fp32 `[groups][hidden / 128][max_m rounded up to 4]`; 0 without fp8. */
  uint64_t grouped_scales;
  /** Grouped results: `[groups][max_m][hidden]`. */
  uint64_t grouped_y;
  /** `masked_m`, and the same for `group_expert`: int32 `[groups]`. */
  uint64_t masked_m;
  /** `row_of`: int32 `[ranks * t_cap][top_k]`. */
  uint64_t row_of;
  /** `row_index`: int32 `[groups][max_m]`. */
  uint64_t row_index;
  /** The workspace of `nmc_ep_moe_forward` for the given `inner`. */
  uint64_t workspace;
} nmc_ep_bytes_t;

/** What an nmc_ep_bytes_t starts from. */
#define NMC_EP_BYTES_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_bytes_t), \
    /* reserved */ 0, \
    /* transport */ 0, \
    /* grouped_x */ 0, \
    /* grouped_scales */ 0, \
    /* grouped_y */ 0, \
    /* masked_m */ 0, \
    /* row_of */ 0, \
    /* row_index */ 0, \
    /* workspace */ 0 \
  }

/**
 * The arguments of a dispatch. Start from `NMC_EP_DISPATCH_INIT`. Memory stays the caller's and is used until the
 * stream has run the step; on host heaps, until the call returns.
 */
typedef struct nmc_ep_dispatch_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /** Rows `[n_tokens][hidden]`, aligned to 16 bytes. */
  const void *x;
  /** Scales `[n_tokens][hidden / 128]` of rows given as fp8; NULL otherwise. */
  const float *scales;
  /** Expert numbers `[n_tokens][top_k]`, int32 or int64; -1 for none. An expert that is named twice gets two rows. */
  const void *topk_idx;
  /** Weights `[n_tokens][top_k]`. */
  const void *topk_w;
  /**
   * Where the number of tokens is; NULL for `n_tokens`. Read by the kernel, so a captured graph can be replayed with
   * other numbers.
   */
  const int32_t *n_tokens_ptr;
  /** Number of tokens, at most `t_cap`. */
  uint32_t n_tokens;
  /** Layer, 0 to 65535; all ranks must be at the same. */
  uint32_t layer;
  /** 1 if `topk_idx` is int64, 0 if it is int32. */
  uint32_t idx_is_64;
  /** Zero. */
  uint32_t reserved;
} nmc_ep_dispatch_t;

/** What an nmc_ep_dispatch_t starts from. */
#define NMC_EP_DISPATCH_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_dispatch_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* x */ NULL, \
    /* scales */ NULL, \
    /* topk_idx */ NULL, \
    /* topk_w */ NULL, \
    /* n_tokens_ptr */ NULL, \
    /* n_tokens */ 0, \
    /* layer */ 0, \
    /* idx_is_64 */ 0, \
    /* reserved */ 0 \
  }

/**
 * What a rank receives in a step: views of its heap, valid until it takes part in the next dispatch of the same buffer
 * set. Token t of rank s is in slot `s * t_cap + t`; rows of slots whose hit bit is not set are what they were. Start from
 * `NMC_EP_RECV_BUFFERS_INIT`.
 */
typedef struct nmc_ep_recv_buffers_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Bytes from one record to the next. */
  uint32_t record_stride;
  /** Rows `[ranks * t_cap][hidden]`. */
  const void *x;
  /** Scales `[ranks * t_cap][hidden / 128]`; NULL without fp8. */
  const float *scales;
  /** Local expert numbers `[ranks * t_cap][top_k]`; -1 for entries of other ranks. */
  const int16_t *local_eid;
  /** Weights `[ranks * t_cap][top_k]`; 0 for entries of other ranks. */
  const void *weights;
  /**
   * Records, one a source, `record_stride` bytes apart: uint32 number of tokens, layer, config hash, phase; then the
   * hit mask, uint32 `[(t_cap + 31) / 32]`.
   */
  const void *records;
  /**
   * Rows to return `[ranks * t_cap][hidden]`: what is put here needs no copy in `nmc_ep_combine`. The same memory as `x`
   * unless `NMC_EP_SEPARATE_Y` was given or rows travel as fp8.
   */
  void *y;
} nmc_ep_recv_buffers_t;

/** What an nmc_ep_recv_buffers_t starts from. */
#define NMC_EP_RECV_BUFFERS_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_recv_buffers_t), \
    /* record_stride */ 0, \
    /* x */ NULL, \
    /* scales */ NULL, \
    /* local_eid */ NULL, \
    /* weights */ NULL, \
    /* records */ NULL, \
    /* y */ NULL \
  }

/**
 * Where grouped rows go: memory of the caller, of the sizes that `nmc_ep_bytes_needed` says. Start from `NMC_EP_GROUPED_INIT`.
 */
typedef struct nmc_ep_grouped_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Rows `[groups][max_m][hidden]`, aligned to 16 bytes; NULL for the lists alone. Rows from `masked_m` on are left.
   */
  void *x;
  /** Scales of fp8 rows `[groups][hidden / 128][max_m rounded up to 4]`; NULL without fp8. */
  float *scales;
  /** Rows of each group. */
  int32_t *masked_m;
  /** Local expert of each group: group g < n_local has expert g, spill groups any, or -1 if they are empty. */
  int32_t *group_expert;
  /** For each slot and entry: the row (`group * max_m + row`), or -1. What `nmc_ep_scatter` goes by. */
  int32_t *row_of;
  /**
   * For each row its slot, or -1: for products that gather from `nmc_ep_recv_buffers_t.x` and need no packed rows.
   */
  int32_t *row_index;
} nmc_ep_grouped_t;

/** What an nmc_ep_grouped_t starts from. */
#define NMC_EP_GROUPED_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_grouped_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* x */ NULL, \
    /* scales */ NULL, \
    /* masked_m */ NULL, \
    /* group_expert */ NULL, \
    /* row_of */ NULL, \
    /* row_index */ NULL \
  }

/**
 * A product that `nmc_ep_moe_forward` asks the engine for: `c[g][r] = a[g][r] * b[e]^T` for `r < masked_m[g]`, where e is
 * `group_expert[g]` and b the engine's own weights.
 */
typedef struct nmc_ep_gemm_t {
  /** Size of this struct as the library knows it; there are no fields beyond that. */
  uint32_t struct_size;
  /** 0: gate and up (n = 2 * inner). 1: down (n = hidden). */
  uint32_t which;
  /** Rows `[groups][max_m][k]`. */
  const void *a;
  /** Scales of `a` if it is fp8, else NULL. */
  const float *a_scales;
  /** What was given as `w13` or `w2`. */
  const void *b;
  /** Result `[groups][max_m][n]`. */
  void *c;
  /** Rows of each group. */
  const int32_t *masked_m;
  /** Local expert of each group, or -1. */
  const int32_t *group_expert;
  /** Groups. */
  uint32_t groups;
  /** Rows of a group. */
  uint32_t max_m;
  /** Columns of the result. */
  uint32_t n;
  /** Columns of `a`. */
  uint32_t k;
  /**
   * A guess of the rows of a group, at least 1: (tokens of all ranks * top_k) / experts, for products that want one.
   */
  uint32_t expected_m;
  /** Zero. */
  uint32_t reserved;
} nmc_ep_gemm_t;

/** What an nmc_ep_gemm_t starts from. */
#define NMC_EP_GEMM_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_gemm_t), \
    /* which */ 0, \
    /* a */ NULL, \
    /* a_scales */ NULL, \
    /* b */ NULL, \
    /* c */ NULL, \
    /* masked_m */ NULL, \
    /* group_expert */ NULL, \
    /* groups */ 0, \
    /* max_m */ 0, \
    /* n */ 0, \
    /* k */ 0, \
    /* expected_m */ 0, \
    /* reserved */ 0 \
  }

/**
 * Enqueues a product on `stream`; called on the calling thread. Returns `NMC_OK`, or an error that the call passes on.
 */
typedef int32_t (*nmc_ep_gemm_fn)(void *user, const struct nmc_ep_gemm_t *gemm, void *stream);

/** A whole MoE layer. Start from `NMC_EP_MOE_INIT`. */
typedef struct nmc_ep_moe_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Gate and up matrices of the local experts `[n_local][2 * inner][hidden]`; passed on to the callback if there is one.
   */
  const void *w13;
  /** Down matrices `[n_local][hidden][inner]`. */
  const void *w2;
  /** Memory for what is between the steps, aligned to 256 bytes. */
  void *workspace;
  /** Its size. */
  uint64_t workspace_bytes;
  /** Result rows `[n_tokens][hidden]`. */
  void *out;
  /** The engine's grouped product; NULL for the built-in one (bf16 on a GPU). */
  nmc_ep_gemm_fn gemm;
  /** Passed to the callback. */
  void *gemm_user;
  /** Columns between the two products. */
  uint32_t inner;
  /** Zero. */
  uint32_t reserved;
} nmc_ep_moe_t;

/** What an nmc_ep_moe_t starts from. */
#define NMC_EP_MOE_INIT \
  { \
    /* struct_size */ (uint32_t)sizeof(nmc_ep_moe_t), \
    /* abi_version */ NMC_ABI_VERSION, \
    /* w13 */ NULL, \
    /* w2 */ NULL, \
    /* workspace */ NULL, \
    /* workspace_bytes */ 0, \
    /* out */ NULL, \
    /* gemm */ NULL, \
    /* gemm_user */ NULL, \
    /* inner */ 0, \
    /* reserved */ 0 \
  }

/**
 * One rank's part of an expert-parallel group: it sends tokens to the ranks of their experts and gets results back.
 *
 * All ranks take the same steps in the same order: dispatch and combine of a layer, in turn, in each buffer set. A
 * call out of turn (a combine without its dispatch, a second dispatch) is refused with `NMC_ERR_INVALID_ARG` and does
 * nothing, as long as the host makes all calls itself; once a call was captured, or `nmc_ep_device` was called, this
 * is not checked any more. Calls of one handle are made by one thread at a time, on one stream for each buffer set. On
 * CUDA heaps calls only enqueue, need no synchronisation, allocate nothing, and are graph-safe; on host heaps they
 * work at once and take a NULL stream. Results are the same bits in every arrangement.
 *
 * When a rank dies, does not come within the deadline, or makes a mistake that only the GPU can see, the group is over
 * for all ranks: kernels of later steps do nothing, calls return the reason, and `nmc_ep_check` returns it too. Heaps,
 * contexts and the world live on; destroy the handle and create a new group. Statuses that every function can return:
 * `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`; those with a stream also `NMC_ERR_PEER_LOST`,
 * `NMC_ERR_MISMATCH`, `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the group is over), `NMC_ERR_CUDA`, and between
 * `nmc_ep_group_begin` and `nmc_ep_group_end` `NMC_ERR_NO_MEMORY` (the call is not part of the group).
 */
typedef struct nmc_ep_t nmc_ep_t;

/**
 * Stores how much memory a group with this config needs, before it is created, in a world of `world_size` ranks: all
 * of them are in the group, or those that `config->members` names. `inner` is for `nmc_ep_moe_forward`; 0 without it.
 *
 * Contacts no other rank. Thread-safe. Statuses: `NMC_ERR_LIMIT` (too many ranks), and see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_bytes_needed(const struct nmc_ep_config_t *config,
                                 uint32_t world_size,
                                 uint32_t inner,
                                 struct nmc_ep_bytes_t *out_bytes);

/**
 * Creates a group together with all other members, which call this at the same time, and stores a handle in `*out_ep`.
 * Destroy it with `nmc_ep_destroy`.
 *
 * The transport lies in the world's heaps from `heap_offset` on; whatever else uses the heap (a store, the program)
 * must stay clear of it. The world must not be destroyed before the group.
 *
 * Blocks up to the deadline. On CUDA heaps it waits for the device's work of this process. One thread at a time for a
 * handle. Not graph-safe. Statuses: `NMC_ERR_MISMATCH` (names the field, the rank and both values; all ranks that came
 * get it, and can call this again at once), `NMC_ERR_TIMEOUT` (says which ranks are missing), `NMC_ERR_PEER_LOST`,
 * `NMC_ERR_LIMIT` (blocks that cannot be resident at once, too many ranks), `NMC_ERR_UNSUPPORTED`,
 * `NMC_ERR_NO_MEMORY`, `NMC_ERR_VERSION`, `NMC_ERR_CANCELLED`, `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_ep_create(struct nmc_world_t *world,
                           const struct nmc_ep_config_t *config,
                           struct nmc_ep_t **out_ep);

/**
 * Like `nmc_ep_create`, for `n` ranks of this process at once: `worlds[i]` gets `out_eps[i]`. On error no handle is made.
 */
nmc_status_t nmc_ep_create_ranks(struct nmc_world_t *const *worlds,
                                 size_t n,
                                 const struct nmc_ep_config_t *config,
                                 struct nmc_ep_t **out_eps);

/**
 * Leaves a group. Peers that still wait for this rank run into their deadline: finish the same steps everywhere first.
 * NULL is fine; in a forked child it does nothing.
 *
 * On CUDA heaps it waits for the device's work of this process: steps that wait for a peer end by the deadline. One
 * thread at a time for a handle. Not graph-safe: graphs that hold steps of the group must not be launched afterwards.
 * Statuses: `NMC_ERR_BUSY` when called inside a log callback.
 */
nmc_status_t nmc_ep_destroy(struct nmc_ep_t *ep);

/**
 * Ends the group. Never blocks. On all ranks, steps that wait return, and calls return `NMC_ERR_CANCELLED`, at once.
 * On CUDA heaps the word is stored by a stream of the library, and kernels of all ranks that wait see it; a peer's
 * calls return the error after the first kernel that has seen it. A group that is over already is left alone.
 *
 * Thread-safe. Graph-safe: takes effect at once, also during a capture. Statuses: `NMC_ERR_BAD_HANDLE`.
 */
nmc_status_t nmc_ep_abort(struct nmc_ep_t *ep);

/**
 * Returns whether the group works: `NMC_OK`, or the error that ended it, whichever rank found it. It also looks for
 * ranks that died; kernels that wait for them then return soon. It does not wait for streams, so errors of work that
 * is still under way do not show yet.
 *
 * Thread-safe. Graph-safe. Statuses: those that end a group, see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_check(const struct nmc_ep_t *ep);

/**
 * Begins a group of calls on this thread: calls for several ranks of this process up to `nmc_ep_group_end` go out
 * together, on a GPU in one launch a step. On host heaps this is how one thread serves several ranks.
 *
 * Graph-safe. Thread-safe: a group belongs to the thread that begins it. Statuses: `NMC_ERR_INVALID_ARG` if it has begun one.
 */
nmc_status_t nmc_ep_group_begin(void);

/**
 * Ends a group of calls: those of ranks of one expert-parallel group, on one stream and device, go out together, others one after
 * the other. Errors that calls find only when they go out are returned here; calls that could not go out before an error are
 * dropped. On the thread that began the group.
 *
 * Graph-safe. One thread: that of `nmc_ep_group_begin`. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_group_end(void);

/**
 * Sends this rank's tokens to the ranks of their experts, and waits for those that come here. A rank without tokens takes
 * part with `n_tokens` 0.
 *
 * On CUDA heaps only enqueues; graph-safe. What only the GPU can see (expert numbers out of range, too many tokens in
 * `n_tokens_ptr`, a peer at another layer) ends the group: `nmc_ep_check`. Statuses: `NMC_ERR_LIMIT` (more tokens than
 * `t_cap`; nothing was sent), and see `nmc_ep_t`.
 * One thread at a time for a handle.
 */
nmc_status_t nmc_ep_dispatch(struct nmc_ep_t *ep,
                             const struct nmc_ep_dispatch_t *args,
                             void *stream);

/**
 * The first half of a dispatch: sends, does not wait. Own work can run until `nmc_ep_dispatch_recv`.
 *
 * On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_dispatch_send(struct nmc_ep_t *ep, const struct nmc_ep_dispatch_t *args, void *stream);

/**
 * The second half of a dispatch: waits for what comes here.
 *
 * On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_dispatch_recv(struct nmc_ep_t *ep, uint32_t layer, void *stream);

/**
 * Where the rows that a dispatch of `layer` brings are. The same for all layers of a buffer set: it can be asked once,
 * before anything is sent. Thread-safe. Graph-safe.
 *
 * Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_recv_buffers(const struct nmc_ep_t *ep,
                                 uint32_t layer,
                                 struct nmc_ep_recv_buffers_t *out_buffers);

/**
 * What a kernel of the engine needs to take part in a step of `layer` (nanomc/ep.cuh). Thread-safe. Graph-safe: the
 * struct can be baked into a graph. Statuses: `NMC_ERR_UNSUPPORTED` for groups on host memory.
 */
nmc_status_t nmc_ep_device(const struct nmc_ep_t *ep, uint32_t layer, nmc_ep_rank_t *out_device);

/**
 * Groups the rows that came by expert: `grouped->x[g][r]` in ascending order of slot, then entry, as masked grouped
 * products take them. With `grouped->x` NULL writes the lists alone.
 *
 * On CUDA heaps only enqueues; graph-safe. Rows that do not fit `max_m` and the spill groups are counted
 * (`overflow_rows` of `nmc_ep_stats`) and left out of the sums of `nmc_ep_scatter`; with the default `max_m` there are none,
 * unless a token names an expert twice.
 * One thread at a time for a handle. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_route_pack(struct nmc_ep_t *ep,
                               uint32_t layer,
                               const struct nmc_ep_grouped_t *grouped,
                               void *stream);

/**
 * Sums the weighted rows of each token that came: `y[slot] = sum over entries of weight * y_grouped[row_of]`, in fp32 in
 * the order of entries, rounded once. `y_recv` NULL puts the rows where `nmc_ep_combine` needs no copy, and their owners may
 * fetch them from then on: nothing may change them any more. To change them first, give the address that `nmc_ep_recv_buffers`
 * has for `y`: the rows go to the same place, and the combine lets the owners fetch them.
 *
 * On CUDA heaps only enqueues; graph-safe.
 * One thread at a time for a handle. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_scatter(struct nmc_ep_t *ep,
                            uint32_t layer,
                            const void *y_grouped,
                            const int32_t *row_of,
                            void *y_recv,
                            void *stream);

/**
 * Returns the rows of all slots that came to their owners, and sums what comes back for own tokens into
 * `out[n_tokens][hidden]`: in fp32 in the order of ranks, rounded once. `y_recv` NULL, or `nmc_ep_recv_buffers_t.y`, means that
 * the rows are in place. Tokens that went nowhere get zeros.
 *
 * On CUDA heaps only enqueues; graph-safe. Statuses: `NMC_ERR_LIMIT` (steps of two buffer sets are on two streams, and cannot be
 * resident at once; nothing was returned), and see `nmc_ep_t`.
 * One thread at a time for a handle.
 */
nmc_status_t nmc_ep_combine(struct nmc_ep_t *ep,
                            uint32_t layer,
                            const void *y_recv,
                            void *out,
                            void *stream);

/**
 * The first half of a combine: returns rows, does not wait.
 *
 * On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_combine_send(struct nmc_ep_t *ep, uint32_t layer, const void *y_recv, void *stream);

/**
 * The second half of a combine: waits for what comes back, and sums it.
 *
 * On CUDA heaps only enqueues; graph-safe. One thread at a time for a handle. Statuses: see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_combine_recv(struct nmc_ep_t *ep, uint32_t layer, void *out, void *stream);

/**
 * A whole layer: dispatch, pack, product with `w13`, silu(gate) * up, product with `w2`, scatter, combine.
 *
 * The products are those of the callback, which enqueues them on the stream, or built in. On CUDA heaps only enqueues;
 * graph-safe if the callback is. Not between `nmc_ep_group_begin` and `_end`. What fails after the dispatch, such as the callback,
 * aborts the group (`nmc_ep_abort`), since the others already wait for this rank; arguments are checked before. Statuses:
 * `NMC_ERR_UNSUPPORTED` (built-in product on a GPU with other rows than bf16), `NMC_ERR_NO_MEMORY` (on host heaps; nothing was
 * sent), what the callback returns, and see `nmc_ep_t`.
 * One thread at a time for a handle.
 */
nmc_status_t nmc_ep_moe_forward(struct nmc_ep_t *ep,
                                const struct nmc_ep_dispatch_t *dispatch,
                                const struct nmc_ep_moe_t *moe,
                                void *stream);

/**
 * Copies what was counted since the group was created: `out_expert_load[experts]`, the tokens that this rank sent to
 * each expert; `out_waited_ns[ranks of the group]`, the time spent waiting for each rank (on a GPU without waits of a
 * few us); `*out_overflow_rows`, rows that did not fit the grouped layout. Each may be NULL. Does not wait for
 * streams: steps that are under way may be counted or not.
 *
 * Thread-safe. Not graph-safe on CUDA heaps (copies on a stream of the library). Statuses: `NMC_ERR_NO_MEMORY`, and
 * see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_stats(const struct nmc_ep_t *ep,
                          uint64_t *out_expert_load,
                          uint64_t *out_waited_ns,
                          uint64_t *out_overflow_rows);

/** @} */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NANOMC_H */
