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
 *  - If a process that has created a handle forks, every call in the child returns NMC_ERR_FORKED, and destroy does
 *    nothing there. Fork before the first call, or exec in the child.
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
 *            nmc_client_*: set_placement open close mount attach_store unmount register unregister put get put_batch
 *              get_batch exists exists_batch query segments keys sync get_metadata get_metadata_batch
 *              submit_get_metadata get_with_metadata remove remove_batch remove_all drain undrain submit_put
 *              submit_get submit_remove submit_put_batch submit_get_batch submit_remove_batch completions event_fd
 *              cancel open_store
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

/** A limit was reached: file descriptors, handles, nesting, table entries. */
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
 * What was used longest ago: an object, the bucket on disk that nobody has read for the longest time, the cached block of the KV cache
 * that has been idle longest.
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

/** Use huge pages for a host heap if there are any; `nmc_world_info_t.heap_flags` tells whether there were. */
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

/** The master runs in the process of rank 0 (with automatic ranks: of whoever comes first). */
#define NMC_MASTER_RANK0 0

/** The master runs elsewhere: `nmc_master_start` in another process, or `nmc master`. */
#define NMC_MASTER_EXTERNAL 1

/** Nobody has taken the rank yet. */
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
 * Memory of the engine that is to be used instead of memory of the library. It stays the engine's, and must stay
 * valid until the world is destroyed in every process. It must be writable, and is lent to one heap at a time: neither is looked at where it is
 * given by address.
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
   * How many ranks must be there for a join to complete; 0 for all. If it is less than `world_size`, the others may come
   * later, or never: until then they are `NMC_RANK_ABSENT` and have no heap. Somebody must run the master: with
   * `NMC_MASTER_RANK0`, rank 0 is one of those who come first.
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
 * Joins a world as one rank and stores a handle in `*out_world`. Returns when all ranks have joined, or as many as
 * `min_ranks` says. If the world exists already and the rank is free, it takes its place: that of a former holder who is gone
 * (it then finds the heap as it was left, unless one of them lends its memory), or one that nobody has had. Processes may
 * start in any order.
 *
 * Blocks up to `join_timeout_ms`. Thread-safe: several threads of one process may join as different ranks. Not
 * graph-safe. The handle is destroyed with `nmc_world_destroy`.
 * Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_VERSION`, `NMC_ERR_TIMEOUT` (the message names the ranks that are
 * missing), `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_EXISTS` (rank or device rank is taken),
 * `NMC_ERR_PERMISSION`, `NMC_ERR_PROTOCOL`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED`,
 * `NMC_ERR_OS`, `NMC_ERR_CUDA`, `NMC_ERR_FORKED`.
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
 * Makes a world of `config->world_size` ranks inside this process, without socket, files or threads, and stores
 * all handles in `out_worlds`. `name`, `dir`, `rank`, `device_rank`, `min_ranks`, `master` and the timeouts are not looked at.
 * If `config` cannot be read `out_worlds` stays as it is, for nobody knows how long it is.
 * Takes as long as reserving the memory does. Thread-safe. Not graph-safe. Statuses as for `nmc_world_join`.
 */
nmc_status_t nmc_world_create_local(const struct nmc_world_config_t *config,
                                    struct nmc_world_t **out_worlds);

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
 * barrier is still open, and the next call continues to wait for it: also together with a process that has taken
 * the place of a dead rank. After a barrier all ranks know the same holders of all ranks.
 *
 * A rank that nobody has taken yet is not waited for. One that joins while a barrier is open takes part in it, or finds it
 * passed: its own count begins where that of the others is.
 *
 * Blocks up to `timeout_ms` (-1 for 30 s). One thread per handle at a time. Not graph-safe.
 * Statuses: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST`
 * (names the rank), `NMC_ERR_CANCELLED` (the rank has left, aborted or is being destroyed), `NMC_ERR_BUSY` (another
 * thread is in it).
 */
nmc_status_t nmc_world_barrier(const struct nmc_world_t *world,
                               int64_t timeout_ms);

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
 * Ends the master. Ranks that have joined go on without it; nobody can join. NULL is fine. In a forked child it
 * does nothing.
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
 * Keep a CRC32C of every page and check it on every read by the library. It is stored by `nmc_store_commit`: an object that
 * its program published by itself gives such reads `NMC_NOT_READY` until then.
 */
#define NMC_STORE_CHECKSUMS 1

/**
 * The store waits for its tier: while that is not open (`nmc_tier_open` in the process of the master), calls that store, remove or replace
 * something return `NMC_ERR_UNAVAILABLE`, and so do reads of what is not in memory, instead of `NMC_ERR_NOT_FOUND`. For stores that begin
 * with what a directory has: without it, other ranks may store a key that is on disk before that is known. Counts in the process of the
 * master; others ignore it.
 */
#define NMC_STORE_WAIT_FOR_TIER 2

/** Store the value in one run of pages. */
#define NMC_PUT_CONTIGUOUS 1

/** Take the place of an object with the same key; readers see the old value until the new one is complete. */
#define NMC_PUT_REPLACE 2

/**
 * If the rank that is to hold the value has no room, cannot hold anything or has no holder, another one holds it. First a
 * rank is looked for that has room without evicting anything: the preferred one, else the one with most free pages. If there is
 * none, the preferred rank evicts, and if it cannot, the others do, in the same order. `dst_rank` of the plan, or
 * `nmc_store_get_location`, tells which one it is.
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
 * The object is not in this store, but can be read from a node of the cluster: said by handles of `nmc_client_open_store` alone. It cannot
 * be pinned.
 */
#define NMC_OBJECT_ELSEWHERE 4

/** Most bytes of an object's metadata. */
#define NMC_MAX_METADATA 256

/** Also wait for a key that nobody is writing yet. */
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
   * Embedded store with one heap: memory of the program that is this heap, `heap_offset` and `heap_bytes` bytes of it; `NMC_IMPORT_NONE` for memory of the
   * library. It stays the program's, which leaves it alone until the last handle of the store is destroyed, or `nmc_client_unmount` of what was mounted has returned.
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
   * How long to wait for room if there is none, in ms; 0 for not at all, -1 for `call_timeout_ms` of the store, at most 7 days
   * (as all times to wait). Room comes
   * when readers unpin, writers commit or give up, objects are removed. `NMC_ERR_BUSY`, `NMC_ERR_LIMIT` and `NMC_ERR_NO_SPACE`
   * say then that none came in time; a value that no empty heap and no unused quota could hold is `NMC_ERR_NO_SPACE` at once.
   * Those who wait are served in no particular order.
   */
  int64_t wait_ms;
  /**
   * What the program says about the object, up to `NMC_MAX_METADATA` bytes: `nmc_store_get_metadata` reads it. It comes and
   * goes with the value, and with `NMC_STORE_CHECKSUMS` it is verified with it.
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
  /** Name of the plan; nobody can guess it. */
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
  /** Tells this pin from an earlier one of the same object in the same slot. */
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

/** What became of a key that was watched. */
typedef struct nmc_completion_t {
  /** What the caller passed to `nmc_store_watch`. */
  uint64_t token;
  /** `NMC_OK` if the object can be read; else why it will not become so. */
  int32_t status;
  /**
   * How many completions that came just before this one are gone, since more than `NMC_MAX_COMPLETIONS` waited; mostly 0.
   * If it is not, look at the keys that the program still waits for (`nmc_store_exists_batch`), or watch them again.
   */
  uint32_t lost;
} nmc_completion_t;

/** Completions of one client that wait to be taken. When there are more, the oldest go. */
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
  /** After this time, in microseconds; 0 if waiting alone will not help, since nothing waits. */
  uint64_t retry_after_us;
  /** Bytes that are free. */
  uint64_t free_bytes;
  /** Bytes of the largest free run. */
  uint64_t largest_free_bytes;
  /** Bytes that will be free when readers unpin and late writers stop. */
  uint64_t waiting_bytes;
  /** Objects that could be evicted if nobody had pinned them. */
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
 * Numbers about a store: of all ranks together, as in `nmc_store_rank_stats_t`, and of this client. Start from
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
 * time, also while another thread destroys it.
 *
 * Reads (`get`, `pin`, `exists`, `match_prefix`, ...) never ask the master and go on while it is away. What a client needs to read an SSD
 * tier that another process owns comes once for each opening of the tier, in the background: when the client attaches, and soon (0.1 s) after
 * the tier was opened. A read of a key that memory does not have waits for that if it comes before, for 500 ms at most, and does not block
 * otherwise. If the owner does not answer in that time, the read returns `NMC_ERR_UNAVAILABLE`, and so do all that come after it, which do
 * not wait any more, until the owner has answered. Keys that are in memory are not affected. Calls that do ask
 * the master return `NMC_ERR_UNAVAILABLE` then, and can be repeated; those that wait for its answer return `NMC_ERR_CANCELLED` when
 * `nmc_store_cancel`, destroy or `nmc_world_abort` ends the wait. Statuses that every function can return:
 * `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG` (keys have 1 to 1,024 bytes).
 */
typedef struct nmc_store_t nmc_store_t;

/**
 * Makes a store, or attaches to the store of a world, and puts a handle into `*out_store`.
 *
 * With `world` NULL the store is embedded: it has a heap of `config->heap_bytes` of its own, in this process alone,
 * without socket, files or threads. With a world the calling rank becomes a client of the world's one store; the process
 * of `master_rank` (or the world's external master) runs the master. The world must not be destroyed before the store.
 *
 * Blocks up to `attach_timeout_ms` for the master. Thread-safe. Not graph-safe. Destroyed with `nmc_store_destroy`.
 * Statuses: `NMC_ERR_VERSION`, `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_TIMEOUT` (says who is missing),
 * `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the rank has left), `NMC_ERR_PERMISSION`,
 * `NMC_ERR_PROTOCOL`, `NMC_ERR_OS`, `NMC_ERR_UNSUPPORTED` (among others: a rank of the world lends its memory, see
 * `nmc_world_config_t.heap_import`), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_create(struct nmc_world_t *world,
                              const struct nmc_store_config_t *config,
                              struct nmc_store_t **out_store);

/**
 * Opens a namespace of the same store: keys of its own, an optional quota, and `nmc_store_remove_all` for it alone. A
 * handle of its own goes into `*out_store`. `quota_bytes` limits the bytes of its pages on all ranks together: a put that
 * would exceed it evicts objects of this namespace first, and of no other. 0 is no limit, `UINT64_MAX` leaves what it is.
 * Names have 1 to 64 bytes; there are at most 63.
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
 * Stores a value of `bytes` bytes under `key`. `options` may be NULL. Device memory is copied on a stream of the library: what
 * the program's streams write to it must be done before the call. A key that is on disk only counts as one that exists; with
 * `NMC_PUT_REPLACE` its copy on disk ends when the new value takes its place.
 *
 * Asks the master once, unless it waits for room (`wait_ms`). Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (the old
 * value stays), `NMC_ERR_BUSY` (everything else is pinned, retained or being written: try again, `nmc_store_retry_hint` says when,
 * or wait for room), `NMC_ERR_CANCELLED` (the wait was), `NMC_ERR_NO_SPACE` (larger than a heap or the namespace's quota, or
 * nothing of the namespace can be evicted to stay within it), `NMC_ERR_LIMIT` (headers, or the slab for keys and metadata), `NMC_ERR_STALE` (took longer than the
 * watchdog, or removed meanwhile), `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST`, `NMC_ERR_NOT_FOUND`
 * (the namespace), `NMC_ERR_CUDA`.
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
 * Reads a value into `buffer` and stores its size in `*out_bytes`, if that is not NULL. With `capacity` 0 and `out_bytes` it
 * only tells the size. If the buffer is too small, only the size is stored. A value that is on disk only is read from there by
 * the calling process; after a failure nothing is known of what is in the buffer.
 *
 * Does not block, but for the disk, and does not ask the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is being
 * written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_CORRUPT` (a checksum
 * is wrong, and what is in the buffer then is not the value, or the object's header was overwritten), `NMC_ERR_PEER_LOST`,
 * `NMC_ERR_CUDA`, `NMC_ERR_NO_MEMORY` (for a list of many buffers, or to copy device memory), `NMC_ERR_IO` (the disk failed),
 * `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
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
 * Reads what the writer of an object said about it (`metadata` of `nmc_put_options_t`) into `buffer`, and stores its size
 * in `*out_bytes`, if that is not NULL: 0 if there is none. With `capacity` 0 and `out_bytes` it only tells the size. If the
 * buffer is too small, only the size is stored. `NMC_MAX_METADATA` bytes are enough for any. Of an object that is on disk only it is
 * read from there, and through a handle of `nmc_client_open_store` a node is asked for that of an object which is nowhere here.
 *
 * Does not block, but for the disk and for nodes, and does not ask the master; neither counts as an access nor as a read. Thread-safe. Graph-safe. Statuses:
 * `NMC_NOT_READY` (it is being written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_BUSY` (no free pin slot),
 * `NMC_ERR_CORRUPT` (with `NMC_STORE_CHECKSUMS`, or on disk: it is not what the writer said), `NMC_ERR_IO` (the disk failed),
 * `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_get_metadata(struct nmc_store_t *store,
                                    struct nmc_slice_t key,
                                    void *buffer,
                                    size_t capacity,
                                    size_t *out_bytes);

/**
 * Stores in `*out_state` whether the object is `NMC_OBJECT_ABSENT`, `_WRITING`, `_READY` or `_ON_DISK`, which is said of one that is on
 * disk only. It neither pins nor counts as an access, and reads no disk.
 *
 * Does not block, but for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY`,
 * `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_exists(struct nmc_store_t *store,
                              struct nmc_slice_t key,
                              uint32_t *out_state);

/**
 * Takes an object away at once. Whoever has pinned it keeps it; its memory is free when nobody does. A copy on disk ends with it,
 * also one that is on disk only: it does not come back, whoever is killed after this has returned (for a power loss see
 * `NMC_TIER_DURABLE_REMOVE`).
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`, `NMC_ERR_IO` (the object is gone, but the disk refused to note it: after a restart it may be there again).
 */
nmc_status_t nmc_store_remove(struct nmc_store_t *store,
                              struct nmc_slice_t key);

/**
 * Removes all objects of the namespace whose keys begin with `prefix`, in memory and on disk; stores how many in `*out_removed`,
 * if that is not NULL: one that is in both places, or is being replaced, counts once. For those on disk only it reads the ends of all buckets. Takes one call of the master for some thousand objects that the store can hold. Otherwise like
 * `nmc_store_remove`.
 */
nmc_status_t nmc_store_remove_by_prefix(struct nmc_store_t *store,
                                        struct nmc_slice_t prefix,
                                        uint64_t *out_removed);

/**
 * Forgets every object of the namespace at once, as when the weights of a model changed: from now on none is found. The
 * memory comes back bit by bit. So it is with what is on disk; that is safe from a power loss when this returns. Otherwise like
 * `nmc_store_remove`.
 */
nmc_status_t nmc_store_remove_all(struct nmc_store_t *store);

/**
 * Counts as an access to the object, without reading it, for policies other than FIFO; of one that is on disk only, as one to its bucket.
 *
 * Does not block, but for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`,
 * `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_touch(struct nmc_store_t *store,
                             struct nmc_slice_t key);

/**
 * Changes how an object is kept in memory: class, priority and time as in `nmc_put_options_t`. `NMC_NOT_READY` if it is on disk only:
 * nothing keeps it there. Otherwise like `nmc_store_remove`.
 */
nmc_status_t nmc_store_retain(struct nmc_store_t *store,
                              struct nmc_slice_t key,
                              uint32_t retain,
                              uint32_t priority,
                              uint64_t ttl_ms);

/**
 * Tells where in memory an object is, without pinning it: by the time the caller looks there, it may be gone.
 *
 * Does not block, but for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY` (it is being
 * written, or on disk only), `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`, `NMC_ERR_PEER_LOST`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`),
 * `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_get_location(struct nmc_store_t *store,
                                    struct nmc_slice_t key,
                                    struct nmc_object_meta_t *out_meta);

/**
 * Opens an object of `bytes` bytes for writing: the program stores the bytes itself, where the plan says, with its own
 * kernels or memcpy, and commits. Until then nobody can read it, and the key counts as taken. A key that is on disk only counts
 * as one that exists, as for `nmc_store_put`.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses as for `nmc_store_put`.
 */
nmc_status_t nmc_store_open_for_write(struct nmc_store_t *store,
                                      struct nmc_slice_t key,
                                      uint64_t bytes,
                                      const struct nmc_put_options_t *options,
                                      struct nmc_write_plan_t *out_plan);

/**
 * Publishes an object whose bytes are all stored (by this thread, or by whoever it is ordered after). If the program has
 * stored `epoch` into the publish word itself, it only looks what became of the plan. Idempotent while the object lives.
 * With `NMC_PUT_REPLACE` the new value takes the place of the old one now, in memory and on disk. A program that publishes by itself calls it too, soon
 * after: until then the library keeps the plan.
 *
 * Asks the master only to replace, to tell it that a plan which it gave up is over, and where the tier writes through or is new to the client
 * (see `nmc_store_t`), which it waits for as for an answer. Thread-safe. Graph-safe. Statuses: `NMC_ERR_STALE` (the master gave the
 * plan up: it took longer than the watchdog, or the key was removed. A plan with `NMC_PUT_REPLACE` for a key that was there is no value of that key yet: `nmc_store_remove`
 * takes the old value and leaves the plan, whose commit is `NMC_OK` and stores the key anew. `nmc_store_remove_by_prefix` and
 * `nmc_store_remove_all` give such a plan up, too), `NMC_ERR_NOT_FOUND` (no such plan, or aborted),
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` (to replace, or of the tier: the commit can be repeated).
 */
nmc_status_t nmc_store_commit(struct nmc_store_t *store,
                              const struct nmc_write_plan_t *plan);

/**
 * Tells readers that the first `pages` pages of the plan are stored: they may begin with them (`nmc_store_pin_partial`).
 * Never less than before. Otherwise like `nmc_store_commit`.
 */
nmc_status_t nmc_store_publish_pages(struct nmc_store_t *store,
                                     const struct nmc_write_plan_t *plan,
                                     uint32_t pages);

/**
 * Gives a plan up. The caller says by it that nothing stores for the plan any more: streams are drained, no captured
 * graph will be launched again with it. The memory is free at once; after `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` and
 * `NMC_ERR_CANCELLED` when the master hears of it. The plan is over in each case: there is nothing to repeat.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_INVALID_ARG` (it is
 * committed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
 */
nmc_status_t nmc_store_abort(struct nmc_store_t *store,
                             const struct nmc_write_plan_t *plan);

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
 * Pins an object and stores a view of it: its bytes stay where and what they are until `nmc_store_unpin`, also if it is
 * removed or evicted meanwhile, or the master dies. Unpin soon: pinned memory cannot be evicted.
 *
 * Does not block, but for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe (the CPU pins before the launch). Statuses:
 * `NMC_NOT_READY` (it is being written, or on disk only: `nmc_store_get_into` reads it from there), `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`
 * (no free pin slot), `NMC_ERR_PEER_LOST`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`),
 * `NMC_ERR_CANCELLED` (while it waited for the tier).
 */
nmc_status_t nmc_store_pin(struct nmc_store_t *store,
                           struct nmc_slice_t key,
                           struct nmc_view_t *out_view);

/**
 * Pins an object and removes it, for exactly one consumer: of several that ask, in any process, one gets a view, and to the
 * others, and to every later call, the key is not there. The view is one of `nmc_store_pin`; the memory is free when it is
 * unpinned.
 *
 * Delivery is at most once. When the call has succeeded the object belongs to this consumer: if it is killed before it
 * unpins, the value is gone. A consumer killed during the call leaves the object in the store, or has taken it with
 * it. After `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` the object may be gone, too: the master may have
 * removed it, and its answer did not come in time. (A call that is cancelled while the master works on it waits up to 250 ms
 * for the answer: with a master that answers, nothing is lost.) Where a value must survive its consumer, pin it, use it, and
 * remove it afterwards.
 *
 * Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is being written, with
 * `NMC_STORE_CHECKSUMS` not yet committed, or on disk only: then it stays there), `NMC_ERR_NOT_FOUND` (also if another consumer was faster), `NMC_ERR_BUSY`,
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`, `NMC_ERR_PEER_LOST`, `NMC_ERR_IO` (the disk of the store's tier
 * refuses to note that it is gone: nothing was taken, unless it refused for the first time).
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
 * Like `nmc_store_pin`, for an object that may still be being written, if at least its first `pages` pages are ready
 * (`nmc_store_publish_pages`); `ready_pages` of the view tells how many are. Only those may be read. If the writer gives
 * up, what is there stays until it is unpinned.
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
 * How many pages of a pinned object are ready by now: stores it in `*out_pages`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_STALE` (its writer gave
 * up: no more will come).
 */
nmc_status_t nmc_store_ready_pages(struct nmc_store_t *store,
                                   const struct nmc_view_t *view,
                                   uint32_t *out_pages);

/**
 * Waits until an object can be read from memory. `flags` is 0 or `NMC_WAIT_APPEAR`, to wait also for a key that nobody is writing
 * yet.
 *
 * Blocks up to `timeout_ms` (-1 for 30 s). Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is on disk only, at once:
 * `nmc_store_get_into` reads it from there), `NMC_ERR_TIMEOUT` (not yet),
 * `NMC_ERR_NOT_FOUND` (nobody is writing it, or it was there and has been removed, replaced or evicted), `NMC_ERR_STALE` (its
 * writer gave it up, or was late), `NMC_ERR_PEER_LOST` (its writer is gone, or the memory that it was written to; or it lies in
 * memory that its rank did not have when this client attached), `NMC_ERR_CANCELLED` (`nmc_store_cancel`, destroy, or the rank has aborted), `NMC_ERR_BUSY`,
 * `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see `nmc_store_t`).
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
 * Makes every wait and every watch of this client, in all threads, end with `NMC_ERR_CANCELLED`: for an object, for room,
 * and for a master that does not answer. Later ones are not affected. Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_store_cancel(struct nmc_store_t *store);

/**
 * Watches a key: when the object can be read, or will not become so, a completion with `token` is queued and the
 * descriptor of `nmc_store_event_fd` becomes readable. `flags` as in `nmc_store_wait_ready`. The library runs a thread
 * while keys are watched; 65,536 keys can be watched at a time. It is about memory: a copy on disk is not looked at, and nothing is
 * queued when one is made or goes.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_store_watch(struct nmc_store_t *store,
                             struct nmc_slice_t key,
                             uint32_t flags,
                             uint64_t token);

/**
 * Takes queued completions, the oldest first, at most `capacity`; stores their number in `*out_n`. At most
 * `NMC_MAX_COMPLETIONS` wait: when nobody takes them the oldest go, and `lost` of the next one that is taken, of that one
 * alone, tells how many did.
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
 * After `NMC_ERR_BUSY` or `NMC_ERR_NO_SPACE`: what is free on `rank`, what waits, and when to try again. Start `*out_hint`
 * from `NMC_RETRY_HINT_INIT`.
 *
 * Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_store_retry_hint(struct nmc_store_t *store,
                                  int32_t rank,
                                  struct nmc_retry_hint_t *out_hint);

/**
 * Goes through the objects of the namespace that can be read, in no particular order. `*cursor` is 0 at first; each call
 * stores a key (up to `capacity` bytes) in `key`, its length in `*out_key_len`, the size of the value in `*out_bytes`, if
 * that is not NULL, and moves the cursor; `NMC_ERR_NOT_FOUND` is the end. Objects that come or go meanwhile, or are replaced, may or
 * may not be seen; what stays is seen. It is seen once if it stays where it is; one that comes from disk into memory meanwhile, or
 * leaves memory for the disk, or whose record on disk was found to be damaged, may be seen twice. (One that leaves memory, comes back, and then leaves the disk too, all during one
 * listing, may be passed by.) What is on disk comes first, then what is in memory only.
 *
 * Does not block, but for the disk, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_TOO_SMALL` (`*out_key_len` is stored), `NMC_ERR_UNAVAILABLE` (the store's tier is not open, or cannot be read yet, see `nmc_store_t`), `NMC_ERR_IO` and
 * `NMC_ERR_CORRUPT` (the disk failed, or the list of a bucket is damaged), `NMC_ERR_CANCELLED` (while it waited for the tier). The cursor stays.
 */
nmc_status_t nmc_store_next(struct nmc_store_t *store,
                            uint64_t *cursor,
                            void *key,
                            size_t capacity,
                            size_t *out_key_len,
                            uint64_t *out_bytes);

/**
 * Stores numbers about the store and this client in `*out_stats`, which starts from `NMC_STORE_STATS_INIT`, and those of
 * each rank in `out_ranks[0..n_ranks]`, if that is not NULL. Each of `out_ranks` starts from `NMC_STORE_RANK_STATS_INIT`: the size
 * that the first one says is the distance from one to the next.
 *
 * Does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_stats(struct nmc_store_t *store,
                             struct nmc_store_rank_stats_t *out_ranks,
                             size_t n_ranks,
                             struct nmc_store_stats_t *out_stats);

/**
 * The numbers in the text format of Prometheus, as `nmc_world_dump` gives text. Does not ask the master. Thread-safe. Not
 * graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*out_needed` is stored), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_prometheus(struct nmc_store_t *store,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *out_needed);

/**
 * A picture of the heaps and what waits, for people: `#` used, `.` free, `+` mixed, `width` characters a rank. Asks the
 * master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*out_needed` is stored), `NMC_ERR_UNAVAILABLE`,
 * `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_store_dump(struct nmc_store_t *store,
                            uint32_t width,
                            char *buffer,
                            size_t capacity,
                            size_t *out_needed);

/**
 * Stores `n` values. `values[i]` goes under `keys[i]`; `out_statuses[i]`, if `out_statuses` is not NULL, tells
 * what became of it. `options` apply to all and may be NULL. A failed item does not stop the others. Otherwise like `nmc_store_put`.
 *
 * Asks the master once for up to 256 objects. Thread-safe. Not graph-safe. Returns `NMC_OK` if all went well, else the
 * status of the first item that did not. Statuses as for `nmc_store_put`; `NMC_ERR_NO_MEMORY` is also given for all items
 * at once, before anything is done, if there is no memory for lists of `n`.
 */
nmc_status_t nmc_store_put_batch(struct nmc_store_t *store,
                                 const struct nmc_slice_t *keys,
                                 const struct nmc_slice_t *values,
                                 size_t n,
                                 const struct nmc_put_options_t *options,
                                 nmc_status_t *out_statuses);

/**
 * Reads `n` values into `buffers`, each of exactly the value's size. Those that are on disk only are read together: as many
 * requests are under way at a time as `depth` of the tier says, of 64 values at most. Otherwise like `nmc_store_get_into` and `nmc_store_put_batch`; items that are being
 * written give `NMC_NOT_READY`.
 */
nmc_status_t nmc_store_get_into_batch(struct nmc_store_t *store,
                                      const struct nmc_slice_t *keys,
                                      const struct nmc_buffer_t *buffers,
                                      size_t n,
                                      nmc_status_t *out_statuses);

/**
 * Stores in `out_states[i]` whether the object `keys[i]` is `NMC_OBJECT_ABSENT`, `_WRITING`, `_READY` or, on disk only, `_ON_DISK`.
 * Otherwise like `nmc_store_exists`.
 */
nmc_status_t nmc_store_exists_batch(struct nmc_store_t *store,
                                    const struct nmc_slice_t *keys,
                                    size_t n,
                                    uint32_t *out_states);

/**
 * How many of the `n` keys, from the first on, can be read, from memory or from disk: stores it in `*out_matched`. What an engine
 * asks to know how much of a prompt is cached. It reads no disk.
 *
 * Does not block, but for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY`,
 * `NMC_ERR_UNAVAILABLE` (one is not in memory, and the tier cannot be read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
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
 * Pins `n` objects: all of them, or, if `out_pinned` is not NULL, as many as could be, whose
 * number it gets. Views of items that failed are all
 * zero. Without `out_pinned` a failure unpins what was pinned. Otherwise like `nmc_store_pin` and
 * `nmc_store_put_batch`.
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
 * Publishes a plan when the stream gets there, after everything that this stream stored before. What other streams
 * store must be ordered before by events. The value is baked into a captured graph: capture `nmc_store_publish_captured`
 * instead. `nmc_store_commit` tells afterwards what became of the plan.
 *
 * Does not block. Thread-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_UNSUPPORTED` (no device; a plan with
 * `NMC_PUT_REPLACE` or checksums), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_commit_async(struct nmc_store_t *store,
                                    const struct nmc_write_plan_t *plan,
                                    void *stream);

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
 * Makes the stream wait until the object, which is being written or there already, can be read. `*out_result`, in memory that
 * the GPU can reach, or NULL, becomes `NMC_READY_YES`, `NMC_READY_STALE` (it will not be: given up, removed or lost) or `NMC_READY_TIMEOUT`
 * (after `timeout_ms`; -1 for 30 s). One block of the GPU spins meanwhile. A published object can still be evicted: pin it
 * from the host after the wait, or in a kernel with `nmc_dev_pin`.
 *
 * Does not block. Thread-safe. Graph-safe (it waits for this very object each time). Statuses: `NMC_ERR_NOT_FOUND` (also if it is on
 * disk only), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
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
 * Publishes what `n` descriptors say at the time the stream gets there, which a captured graph does anew in every launch;
 * one with epoch 0 says nothing. The descriptors must stay as they are until the launch has run.
 *
 * Does not block. Thread-safe. Graph-safe: made to be captured. Statuses: `NMC_ERR_UNSUPPORTED` (no device),
 * `NMC_ERR_INVALID_ARG` (memory that the GPU cannot reach), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_store_publish_captured(struct nmc_store_t *store,
                                        const nmc_publish_desc_t *descs,
                                        size_t n,
                                        void *stream);

/**
 * Sets a pin slot aside for a captured graph or for kernels, and stores its number in `*out_slot`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (no free slot), `NMC_ERR_UNSUPPORTED` (no device).
 */
nmc_status_t nmc_store_slot_reserve(struct nmc_store_t *store,
                                    uint32_t *out_slot);

/**
 * Gives a reserved slot back; no graph and no kernel will use it again.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
 */
nmc_status_t nmc_store_slot_release(struct nmc_store_t *store, uint32_t slot);

/**
 * Pins an object in a reserved slot, before the launch of a graph that ends the pin with a captured
 * `nmc_store_slot_unpin_async`. `NMC_ERR_BUSY` while the launch before still uses the slot. Otherwise like
 * `nmc_store_pin`, also for an object that is on disk only.
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
 * Stores in `*out_pin` what a kernel needs to pin the object by itself (`nmc_dev_pin`), with a reserved slot. The object must
 * lie in one extent.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY` (also if it is on disk only), `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_UNSUPPORTED`, `NMC_ERR_BUSY`.
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
 * before memory evicts them, and `nmc_store_get`, `nmc_store_get_into` and the others read what memory no longer has, in any process and
 * without a handle of the tier. To write something at once, call `nmc_tier_offload`; for what must survive a power loss, `nmc_tier_sync`.
 * `nmc_tier_stats` counts, `nmc_tier_verify` reads everything and compares checksums, `nmc_tier_scan` lists what is there. `nmc_tier_close`
 * ends it; opening the same directory again, in this process or a later one, finds everything.
 * @{
 */

/**
 * Read and write through the page cache. Without it files are opened with `O_DIRECT` where the file system can do that.
 */
#define NMC_TIER_NO_DIRECT 1

/** Do not use io_uring: one `preadv` or `pwritev` after the other. */
#define NMC_TIER_NO_URING 2

/**
 * A remove, a replacement or a flush returns when it is safe from a power loss. Without it, it is safe from the death of any
 * process when it returns, and from a power loss after the next `nmc_tier_sync`.
 */
#define NMC_TIER_DURABLE_REMOVE 4

/** Begin paused: nothing is written before `nmc_tier_resume` or `nmc_tier_offload`. */
#define NMC_TIER_PAUSED 8

/**
 * If the head or the journal of the directory is damaged, delete all files of the tier in it and begin empty. Without it,
 * opening fails with `NMC_ERR_CORRUPT` and changes nothing.
 */
#define NMC_TIER_RESET_IF_DAMAGED 16

/** Delete buckets whose end is damaged. Without it they get another name, so that somebody can look at them. */
#define NMC_TIER_DELETE_TORN 32

/** Keep what is stored on disk and evicted from it, for `nmc_tier_events`. */
#define NMC_TIER_EVENTS 64

/**
 * A put or commit returns when its value is on disk, safe from a power loss. What several callers wait for at the same time is written and
 * synced together. If it cannot be written, they return `NMC_ERR_IO` or `NMC_ERR_NO_SPACE`, and the value is in memory alone: to try again,
 * put it with `NMC_PUT_REPLACE`, commit once more, or call `nmc_tier_offload`. If it was evicted or removed before it was written,
 * they return `NMC_ERR_STALE`.
 */
#define NMC_TIER_WRITE_THROUGH 128

/**
 * Open this directory, though the store's tier under its former master was another one, whose disk is lost. Without it that is
 * `NMC_ERR_MISMATCH`: what is removed from now on would come back when the former one is opened again.
 */
#define NMC_TIER_OTHER_DIRECTORY 256

/**
 * Write the list of every bucket a second time, into `<number>.meta`: it stands in for that of the bucket if that one cannot be read. For
 * `NMC_TIER_BACKEND_BUCKET` only.
 */
#define NMC_TIER_META 512

/** Many values a file. The default, and the fastest. */
#define NMC_TIER_BACKEND_BUCKET 0

/** A file for every value, in folders of two levels: for those who want to see values as files. */
#define NMC_TIER_BACKEND_FILE 1

/**
 * One file, `kv_cache.data`, of `capacity_bytes`, which must be given, up to 1 TiB: no file is made or deleted while the tier runs.
 */
#define NMC_TIER_BACKEND_OFFSET 2

/** Keeps nothing: what is written is gone. To measure what the rest costs. */
#define NMC_TIER_BACKEND_NOOP 3

/** Values are on disk, safe from a power loss. */
#define NMC_TIER_STORED 1

/** Values were taken from the disk to make room, or by `nmc_tier_evict`. Those that are in memory are still there. */
#define NMC_TIER_EVICTED 2

/**
 * Told how far a recovery is: `done` of `total` buckets are read. Called on the thread that opens the tier; must not throw.
 */
typedef void (*nmc_tier_progress_fn)(void *user, uint64_t done, uint64_t total);

/**
 * Told how far a verification is: `done` of `total` values are read. Returns 0 to end it. Called on the calling thread; must not
 * throw. It may call nmc functions, but not close this tier.
 */
typedef int32_t (*nmc_tier_verify_fn)(void *user, uint64_t done, uint64_t total);

/**
 * How a tier is opened. Start from `NMC_TIER_CONFIG_INIT` and set `directory`. In a number, 0 stands for the default.
 *
 * Three fields that are left open take their value from the environment: `heartbeat_ms` from
 * `NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS`, `capacity_bytes` from `NMC_BUCKET_MAX_TOTAL_SIZE`, and `NMC_TIER_NO_URING`, where it is
 * not set, from `NMC_USE_URING`. If such a variable is not set or empty, the one with `MOONCAKE_` in the place of `NMC_` counts.
 */
typedef struct nmc_tier_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Path of the directory. Its last part is made if it is not there, for this user alone. One process at a
   * time can own it.
   */
  struct nmc_slice_t directory;
  /**
   * Most values on disk; 0 for a million, or twice as many as are found there. Each takes up to 100 bytes of memory.
   */
  uint64_t max_objects;
  /** Most bytes that the files take; 0 for the environment, or no limit but the file system's. */
  uint64_t capacity_bytes;
  /** Bytes after which a bucket is complete and gets its name, up to 2^40; 0 for 256 MiB. */
  uint64_t bucket_bytes;
  /** Values after which it is; 0 for 500. */
  uint32_t bucket_keys;
  /**
   * Longest time between two looks for something to write, in ms; 0 for the environment, or 10 s. Under pressure it looks at once.
   */
  uint32_t heartbeat_ms;
  /** Most requests in flight for one call, up to 1,024; 0 for 32. */
  uint32_t depth;
  /** 0, or `NMC_TIER_*` flags. */
  uint32_t flags;
  /**
   * What goes when the file system, `capacity_bytes` or `max_objects` is used up: `NMC_EVICT_NONE`, `NMC_EVICT_FIFO` or `NMC_EVICT_LRU`. If `capacity_bytes` comes from
   * the environment, `NMC_EVICT_NONE` stands for FIFO.
   */
  uint32_t eviction;
  /**
   * Reads from disk after which a value comes back into memory, into the heap of the rank that read it last: 1 for always, up to
   * 255; 0 for never. It comes in the background, and evicts others if memory is full.
   */
  uint32_t promote_after;
  /**
   * Only values that were read from memory in so many different milliseconds are written ahead of their eviction, up to 2^24 - 1; 0
   * for all. The store must evict by LRU or S3-FIFO.
   */
  uint32_t admit_reads;
  /** Only values with this priority or a higher one are, from 0 to 3. */
  uint32_t admit_priority;
  /**
   * How values lie in the directory: `NMC_TIER_BACKEND_*`. A directory has the backend that it was made with; another one is
   * `NMC_ERR_MISMATCH`.
   */
  uint32_t backend;
  /** Zero. */
  uint32_t reserved0;
  /** Most bytes of values a second that are written ahead; 0 for no limit. `nmc_tier_offload` is not held back. */
  uint64_t write_bytes_per_s;
  /** Told how far the recovery is, or NULL. */
  nmc_tier_progress_fn progress;
  /** Passed to it. */
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

/** Values on disk to which the same happened at the same time. What it points to is valid during the call. */
typedef struct nmc_tier_event_t {
  /** Size of this struct as the library knows it: what lies behind it is not there. */
  uint32_t struct_size;
  /** `NMC_TIER_STORED` or `NMC_TIER_EVICTED`. */
  uint32_t what;
  /** How many values. */
  size_t n;
  /** Name of the namespace of each; empty for the one that a store begins with. */
  const struct nmc_slice_t *namespace_names;
  /** Their keys. */
  const struct nmc_slice_t *keys;
  /** Bytes of each. */
  const uint64_t *bytes;
  /** Values of earlier events that nobody took in time: the oldest of 1,024 events make way. */
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
 * Gets an event. Returns 0 to leave the others for later. Called on the calling thread; must not throw. It may call nmc functions,
 * but not close this tier.
 */
typedef int32_t (*nmc_tier_event_fn)(void *user, const struct nmc_tier_event_t *event);

/**
 * A tier in numbers: those of its owner since it was opened, unless said otherwise. Start from `NMC_TIER_STATS_INIT`.
 */
typedef struct nmc_tier_stats_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** 1 if this process owns the tier. */
  uint32_t owner;
  /**
   * Values that can be read from disk now; those of a namespace that was emptied are counted until the owner has passed them.
   */
  uint64_t objects;
  /** Their bytes. */
  uint64_t bytes;
  /** Most values that the index has room for. */
  uint64_t max_objects;
  /** Bytes that the files take now. */
  uint64_t file_bytes;
  /** Buckets there are now. */
  uint64_t buckets;
  /** Bytes of memory that the index takes. */
  uint64_t index_bytes;
  /** Values written. */
  uint64_t written_objects;
  /** Their bytes. */
  uint64_t written_bytes;
  /** Buckets written. */
  uint64_t written_buckets;
  /** Values that left memory when the disk had them. */
  uint64_t evicted_clean;
  /** Values that left memory when the disk did not have them: these are lost. */
  uint64_t evicted_dirty;
  /**
   * Times that something could not be kept on disk, because the file system, `capacity_bytes` or `max_objects` was used up.
   */
  uint64_t full;
  /** Values that could not be read, and ended. */
  uint64_t corrupt;
  /** Writes and syncs that failed. */
  uint64_t errors;
  /** 1 if offloading is paused (`nmc_tier_pause`). */
  uint64_t paused;
  /**
   * 1 if the disk refuses to be written: reads go on, offloading has stopped, and removals are done in memory and return
   * `NMC_ERR_IO`.
   */
  uint64_t degraded;
  /** Values that the recovery found. */
  uint64_t recovered_objects;
  /** Buckets that it read. */
  uint64_t recovered_buckets;
  /** How long it took, in ns. */
  uint64_t recovery_ns;
  /** Values that it found removed or damaged, or had no room for in the index. */
  uint64_t recovered_dead;
  /** Values that this process has read from disk. */
  uint64_t read_objects;
  /** Their bytes. */
  uint64_t read_bytes;
  /** Values that were taken from the disk to make room, or by `nmc_tier_evict`. */
  uint64_t evicted;
  /** Values that came back into memory because they were read often (`promote_after`). */
  uint64_t promoted;
  /** Buckets whose list could not be read when the tier was opened: their values are not found. */
  uint64_t torn;
  /** Bytes of dead values whose space comes back only when all of their bucket is dead. */
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

/** What a verification found. Start from `NMC_TIER_VERIFIED_INIT`. */
typedef struct nmc_tier_verified_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Values that are right. */
  uint64_t objects;
  /** Their bytes. */
  uint64_t bytes;
  /** Values that are not: they ended. */
  uint64_t corrupt;
  /** Values that could not be read, for another reason: they stay. */
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
  /** Size of this struct as the library knows it: what lies behind it is not there. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Name of its namespace; empty for the one that a store begins with. */
  struct nmc_slice_t namespace_name;
  /** Its key. */
  struct nmc_slice_t key;
  /** Bytes of the value. */
  uint64_t bytes;
  /** Epoch of the object: another object with the same key has another one. */
  uint64_t epoch;
  /** Number of the bucket that it lies in. */
  uint64_t bucket;
  /** Where it begins there, in blocks of 4 KiB. */
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
 * Gets a value that is on disk; `entry` and what it points to are valid during the call. Returns 0 to end the scan. Called on the
 * calling thread; must not throw. It may call nmc functions, but not close this tier.
 */
typedef int32_t (*nmc_tier_scan_fn)(void *user, const struct nmc_tier_entry_t *entry);

/**
 * The SSD tier of a store: its owner in the process of the store's master, elsewhere a handle to it. Nobody needs a handle to read:
 * `nmc_store_get` and the others find what is on disk by themselves, in every process, also while the master is away. What
 * each function of the store does with a key that is on disk only is in its comment, and in one table in docs/tier.md.
 *
 * All functions that take it may be called from any thread at the same time, also while another thread closes it. It keeps the
 * store open, also after `nmc_store_destroy`, until it is closed. Statuses that every function can return: `NMC_ERR_BAD_HANDLE`,
 * `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
 */
typedef struct nmc_tier_t nmc_tier_t;

/** How long values stay in staging memory if `nmc_tier_stage` does not say, in ms. */
#define NMC_TIER_STAGE_MS 5000

/**
 * Opens the tier of a store and puts a handle into `*out_tier`.
 *
 * In the process of the store's master it makes the owner: it takes the directory, recovers what is there, and from then on
 * writes values to it before memory evicts them, on a thread of its own. What it found can be read by every process when
 * the call returns. With `store` embedded, that is this process. In other processes it gives a handle to the tier that the
 * store has; `config` may be NULL there, and only its flags and numbers are checked. A new master does not open it by
 * itself: after a restart of the master, calls that change something return `NMC_ERR_UNAVAILABLE` until its process has called this again.
 *
 * What was removed, replaced or flushed while no owner had the directory is not known there: those keys come back.
 *
 * Blocks while it recovers, which `progress` of the config reports. Thread-safe. Not graph-safe. Closed with `nmc_tier_close`. Statuses:
 * `NMC_ERR_INVALID_ARG` (the config, no directory, or a variable of the environment: the message names it and its text),
 * `NMC_ERR_VERSION` (the config, or a directory of another format), `NMC_ERR_EXISTS` (another process owns the directory, the message
 * names it; or the store has a tier), `NMC_ERR_NOT_FOUND` (a part of the path; or, elsewhere, the store has no tier), `NMC_ERR_CORRUPT` (head or
 * journal are damaged, see `NMC_TIER_RESET_IF_DAMAGED`), `NMC_ERR_PERMISSION`, `NMC_ERR_NO_SPACE`, `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_UNAVAILABLE` (the master is away), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_IO`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_tier_open(struct nmc_store_t *store,
                           const struct nmc_tier_config_t *config,
                           struct nmc_tier_t **out_tier);

/**
 * Closes a handle. That of the owner ends the tier: what is being written is completed and made safe from a power loss, the
 * directory is free for another owner, and keys that are on disk only are not found any more until it is opened again. What
 * is in memory stays, and what is removed from now on comes back with the directory. A handle of another process ends alone. NULL
 * is fine; in a forked child it does nothing.
 *
 * Blocks until calls of other threads have returned, which end early with `NMC_ERR_CANCELLED` if they would take long, also those that wait for
 * an owner that does not answer. Not graph-safe. Thread-safe: of several callers one succeeds. Statuses: `NMC_ERR_BUSY` when called inside a callback.
 */
nmc_status_t nmc_tier_close(struct nmc_tier_t *tier);

/**
 * Everything that was removed, replaced or flushed before, and every value that counts as written, is safe from a power loss when
 * this returns. It writes no values: `nmc_tier_offload` does.
 *
 * Waits for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_IO` (the disk
 * refuses, see `degraded` of `nmc_tier_stats_t`), `NMC_ERR_NO_SPACE`, `NMC_ERR_CANCELLED` (the tier is being closed),
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_tier_sync(struct nmc_tier_t *tier);

/**
 * Writes values to disk now, also while offloading is paused: those of `n` keys in the namespace of the store that the tier was
 * opened with, or, if `keys` is NULL and `n` is 0, all that are in memory, of every namespace. Stores in `*out_written`, if that
 * is not NULL, how many were written; if it fails, nothing is stored there. Not counted are those that are on disk already, which
 * includes keys that are on disk only, that are being written or not there, that came after the call had begun, or whose checksum in
 * memory is wrong: none of them is an error. The values stay in memory.
 *
 * Waits for the disk: what was written is safe from a power loss when it returns. Outside of the owner's process it asks the master.
 * If the disk evicts (`eviction` of the config) and holds less than memory, it ends when it is full of what was written. Thread-safe.
 * Not graph-safe. Statuses: `NMC_ERR_NO_SPACE` (the file system, `capacity_bytes` or `max_objects` is used up; what fitted is written), `NMC_ERR_IO`, `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_PEER_LOST` (the heap of a rank cannot be read at the moment; what lies in others is written), `NMC_ERR_CANCELLED` (the tier is being
 * closed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_tier_offload(struct nmc_tier_t *tier,
                              const struct nmc_slice_t *keys,
                              size_t n,
                              uint64_t *out_written);

/**
 * Brings the values of `n` keys back into memory, into the heap of this process's rank, in the namespace of the store that the tier was
 * opened with: those that are on disk only are read 64 together. `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of
 * `keys[i]`: `NMC_OK` if it is in memory, whether it was there before or not, `NMC_NOT_READY` if it is being written there,
 * `NMC_ERR_NOT_FOUND` if it is nowhere. What comes back stays on disk too, so that memory can evict it without writing it again, and
 * keeps its metadata, its priority and its retain class, but for a retention for a time.
 *
 * Reads the disk in this process, and asks the master for room, which evicts others as a put does; it does not wait for room. A key that
 * is removed or replaced meanwhile does not come back. If more is asked for than memory holds, the last push the first out again. Thread-safe.
 * Not graph-safe. Returns `NMC_OK` if all came, else the status of the first that failed or, if none did, `NMC_NOT_READY`: besides
 * these `NMC_ERR_NO_SPACE` and `NMC_ERR_BUSY` (no room, or everything there is in use), `NMC_ERR_STALE` (given up for another one), `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the
 * master or the tier's owner is away), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_tier_prefetch(struct nmc_tier_t *tier,
                               const struct nmc_slice_t *keys,
                               size_t n,
                               nmc_status_t *out_statuses);

/**
 * Reads the values of `n` keys into memory of the library, wherever they are, and lends that to the caller: for who has no buffer of its
 * own, or hands them on to a network. `out_values[i]` tells where the value of `keys[i]` is, with a NULL pointer if it is not there, and
 * `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it: `NMC_OK`, `NMC_NOT_READY` if it is being written,
 * `NMC_ERR_NOT_FOUND`. `*out_loan` names the loan, which holds all of them; 0 if there is none. Keys are those of the namespace of the store
 * that the tier was opened with; all that are on disk are read together. Values begin at multiples of 4 KiB and may be read only.
 *
 * The loan ends with `nmc_tier_release`, with the handle, or after `ttl_ms` (0: `NMC_TIER_STAGE_MS`), counted from the return: after that the memory
 * is lent to others. Whoever may be slower copies first and then asks `nmc_tier_release`, which says whether it was in time. 64 MiB can be lent
 * by a handle at a time, in 1,024 loans.
 *
 * Reads the disk in this process. Thread-safe. Not graph-safe. Returns `NMC_OK` if all came, else the status of the first that failed or, if
 * none did, `NMC_NOT_READY`: besides these `NMC_ERR_BUSY` (the memory is lent: repeat it when some has come back; or a value was replaced
 * meanwhile), `NMC_ERR_LIMIT` (more than it holds), `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the tier cannot be read yet, see `nmc_store_t`),
 * `NMC_ERR_CANCELLED` (while it waited for that; or the tier is being closed), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_tier_stage(struct nmc_tier_t *tier,
                            const struct nmc_slice_t *keys,
                            size_t n,
                            uint64_t ttl_ms,
                            uint64_t *out_loan,
                            struct nmc_slice_t *out_values,
                            nmc_status_t *out_statuses);

/**
 * Ends a loan of `nmc_tier_stage`: its values must not be read any more. `NMC_OK` also says that everything that was read until now was
 * right, `NMC_ERR_STALE` that the loan's time was over: what was read after that may be other values. A loan of 0 is fine.
 *
 * Does not wait. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_STALE` (the loan has ended).
 */
nmc_status_t nmc_tier_release(struct nmc_tier_t *tier,
                              uint64_t loan);

/**
 * Takes values from the disk, whole buckets, those that `eviction` of the config says first (the oldest if it says nothing), until its
 * files take at most `keep_bytes`, besides those of damaged buckets that were set aside. Stores in `*out_evicted`, if that is not NULL, how many values went. Those that are in memory as well
 * stay there, and are written again before memory evicts them. It is no removal: a power loss right after it may bring them back.
 *
 * Outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_IO` (the disk refuses),
 * `NMC_ERR_NO_SPACE` (the journal must say first that a bucket goes; it is full, and the file system has no room for a new one: that bucket and those after it
 * stay), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_tier_evict(struct nmc_tier_t *tier,
                            uint64_t keep_bytes,
                            uint64_t *out_evicted);

/**
 * Calls `callback` for everything that happened to values on disk since the last call, the oldest first, until it returns 0: batches
 * of keys that were stored or evicted (`nmc_tier_event_t`). With `NMC_TIER_EVENTS` only. While there is something to take, the
 * descriptor of `nmc_store_event_fd` is readable, for the store that the tier was opened with.
 *
 * Does not wait. In the owner's process only. Thread-safe: each event is given to one caller. Not graph-safe. Statuses:
 * `NMC_ERR_UNSUPPORTED` (this process does not own the tier), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_tier_events(struct nmc_tier_t *tier,
                             nmc_tier_event_fn callback,
                             void *user);

/**
 * Ends offloading until `nmc_tier_resume`: what memory evicts from now on is lost, unless it is on disk already. What is being
 * written is written. Reads, removals and `nmc_tier_offload` go on.
 *
 * Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses:
 * `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed).
 */
nmc_status_t nmc_tier_pause(struct nmc_tier_t *tier);

/** Begins offloading again. Otherwise like `nmc_tier_pause`. */
nmc_status_t nmc_tier_resume(struct nmc_tier_t *tier);

/**
 * Stores numbers about the tier in `*out_stats`, which starts from `NMC_TIER_STATS_INIT`.
 *
 * Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses:
 * `NMC_ERR_UNAVAILABLE` (the master or the tier is not there any more), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed).
 */
nmc_status_t nmc_tier_stats(struct nmc_tier_t *tier,
                            struct nmc_tier_stats_t *out_stats);

/**
 * Reads every value on disk, whether it is in memory as well or not, and compares it with its checksums. Those that are wrong
 * end: their keys are not found any more, unless they are in memory. Stores what it found in `*out_verified`, which starts from
 * `NMC_TIER_VERIFIED_INIT`. `callback`, which may be NULL, is told how far it is; if it returns 0, the call ends with what was found so
 * far.
 *
 * Reads the whole disk, in this process; whether what is wrong ends is the owner's to say, who looks once more. Thread-safe. Not graph-safe.
 * Statuses: `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`; outside of the owner's process also `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`
 * (the owner does not answer) and `NMC_ERR_NOT_FOUND` (the tier was closed); if some values could not be read for another
 * reason than damage, they are counted as `unreadable` and stay, all others are looked at, and it returns why: `NMC_ERR_IO`, `NMC_ERR_LIMIT`,
 * `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
 */
nmc_status_t nmc_tier_verify(struct nmc_tier_t *tier,
                             nmc_tier_verify_fn callback,
                             void *user,
                             struct nmc_tier_verified_t *out_verified);

/**
 * Calls `callback` for every value on disk, of all namespaces, whether it is in memory as well or not, in no order that means anything,
 * until it returns 0. What comes and goes meanwhile may be among them or not.
 *
 * Reads the lists of all buckets, in this process. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_CANCELLED` (the tier is being closed),
 * `NMC_ERR_NO_MEMORY`; outside of the owner's process also `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` (the owner does not answer) and
 * `NMC_ERR_NOT_FOUND` (the tier was closed); if lists could not be read, after all
 * others: `NMC_ERR_IO`, `NMC_ERR_CORRUPT`, `NMC_ERR_LIMIT`, `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
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
 * One process starts `nanomc-master`. Everybody else calls `nmc_client_open` with its address; who has memory to give calls `nmc_client_mount`, or
 * `nmc_client_attach_store` for a store that it has. Then `nmc_client_put`, `nmc_client_get` and `nmc_client_remove`, one key or many, on any
 * machine; or the store's own reads through a handle of `nmc_client_open_store`. `nmc_client_submit_put` and its like do not wait: `nmc_client_completions`
 * tells what became of them. `nmc_client_segments` and `nmc_client_query` tell what is where. `nmc_client_close` ends it; its nodes leave the cluster.
 * @{
 */

/** What is read from another node is kept on this client's first node too, where others find it as well. */
#define NMC_CLIENT_KEEP_COPIES 1

/**
 * What is submitted (`nmc_client_submit_put` and its like) is driven by a thread of the library, so that it goes on while the program does
 * something else; without this, `nmc_client_completions` drives it. The thread begins with the first such call.
 */
#define NMC_CLIENT_THREAD 2

/**
 * A value that this client has read goes after `expire_ms`, with all its copies, wherever they are: the put that was read, not what is put under its
 * key later. Whoever reads it then finishes. The leader sees to it; one that takes the lead meanwhile does not know of it, and the value stays until it
 * is read again. Values that are read through `nmc_client_open_store` stay.
 */
#define NMC_CLIENT_EXPIRE 4

/**
 * Of several copies, one on this machine is read first; then one in memory; then one of the node from which this client waits for least. Nodes
 * that have failed lately come last, here and below. What a node of this client has is always read there.
 */
#define NMC_READ_NEAR 0

/** One in memory first; then one on this machine; then as above. */
#define NMC_READ_MEMORY 1

/**
 * One in memory first; then one of the node from which this client waits for least, on whatever machine: a value that many read comes from all that have it.
 */
#define NMC_READ_SPREAD 2

/** Calls that a client can have submitted without having taken their completions; a batch counts as up to 256. */
#define NMC_CLIENT_MAX_SUBMITTED 4096

/** Do not wait until every owner has dropped the object: it is out of the directory when the call returns. */
#define NMC_REMOVE_ASYNC 1

/** Of all namespaces, not only the client's. */
#define NMC_REMOVE_EVERYWHERE 2

/** Memory of a GPU. */
#define NMC_MEDIA_VRAM 0

/** Memory of the host. */
#define NMC_MEDIA_RAM 1

/** The SSD tier of a node. */
#define NMC_MEDIA_SSD 2

/** Whatever the segment is made of. */
#define NMC_MEDIA_ANY UINT32_MAX

/** A segment takes values. */
#define NMC_SEGMENT_OK 0

/** It takes no more: what is only there is being copied elsewhere. */
#define NMC_SEGMENT_DRAINING 1

/** Its node has not been heard of for a while. */
#define NMC_SEGMENT_GONE 2

/** How a program takes part in a cluster. Start from `NMC_CLIENT_CONFIG_INIT` and set `master_server`. */
typedef struct nmc_client_config_t {
  /** Size of this struct as the caller knows it. */
  uint32_t struct_size;
  /** `NMC_ABI_VERSION` as the caller knows it. */
  uint32_t abi_version;
  /**
   * Name or address of this machine, by which others reach it: `host` or `host:port`. With a port, the first node of the client
   * listens there; else at a free one of 12300 to 14299. Empty for 127.0.0.1.
   */
  struct nmc_slice_t local_hostname;
  /**
   * Masters, the first that answers leads or says who does: `host`, `host:port` or `unix:/path`, with commas between. Port 50051 if
   * none is said.
   */
  struct nmc_slice_t master_server;
  /**
   * For programs that come from Mooncake Store: `etcd://`, `redis://` or `http://` and an address, a bare `host:port`, `P2PHANDSHAKE`, or
   * empty. Its form is checked; it is not needed here and never contacted.
   */
  struct nmc_slice_t metadata_server;
  /**
   * `tcp`, which is the default, or `rdma`: then NIXL moves the bytes of large values, by RDMA or what else there is, where client and node
   * both have it; all else goes by tcp. Where NIXL is not installed a line in the log says so; docs/cluster.md says how it is
   * found.
   */
  struct nmc_slice_t protocol;
  /**
   * Names of network devices that NIXL uses, with commas between; empty for all. With neither a token nor certificates it uses the loopback device alone. Not used with `tcp`.
   */
  struct nmc_slice_t device_names;
  /**
   * What masters, nodes and clients of the cluster know, and nobody else does. Without it, and without certificates, everything must be on the loopback
   * device, or `nmc_client_open` returns `NMC_ERR_PERMISSION`; with another than the masters know, so does every call. Without certificates it
   * is sent as it is: the network must be trusted.
   */
  struct nmc_slice_t token;
  /**
   * Namespace of the client's keys: empty, or 1 to 64 bytes. It is the namespace of that name in the stores of the nodes.
   */
  struct nmc_slice_t namespace_name;
  /** How long a call may take, in ms; -1 for 5 s. It returns at most 2 s after that. */
  int64_t timeout_ms;
  /** Keys whose places are remembered; -1 for 65,536. */
  int32_t cache_keys;
  /** 0, or `NMC_CLIENT_*` flags. */
  uint32_t flags;
  /** With `NMC_CLIENT_EXPIRE`: how long after it was first read a value goes, in ms, up to a day; -1 for 1 s. */
  int64_t expire_ms;
  /** With `rdma`: values of so many bytes and more are moved by NIXL; 0 for 256 KiB. */
  uint64_t rdma_bytes;
  /** One of `NMC_READ_*`: which of several copies is read first. */
  uint32_t read_order;
  /** Zero. */
  uint32_t reserved_order;
  /**
   * Values of more bytes are put in parts of about as many, at most 4,096 of them, which are on different segments where there are enough and move
   * side by side; 0 for never, and not less than 64 KiB. Whoever reads needs nothing for it. A value of which one part is lost is lost.
   */
  uint64_t stripe_bytes;
  /**
   * File (PEM) with the certificate of this program, and those between it and the authority's. With it all connections but those to `unix:` are
   * encrypted (TLS 1.3), and each end wants a certificate of the other that one in `tls_ca` has signed, whatever name is in it; then no token is
   * needed to leave the loopback device. All three files or none. What NIXL moves is not encrypted. Files that are replaced while the program
   * runs are read anew, for connections that begin after that.
   */
  struct nmc_slice_t tls_cert;
  /** File (PEM) with the key of `tls_cert`. */
  struct nmc_slice_t tls_key;
  /** File (PEM) with the certificates of the authority: whoever has one that it has signed may do everything. */
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

/** Where a copy must be. */
typedef struct nmc_location_t {
  /** Name of the segment, or of a node. */
  struct nmc_slice_t segment;
  /** `NMC_MEDIA_*`: if `segment` is the name of a node, which of its segments; else `NMC_MEDIA_ANY`. */
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
  /** Copies in all, on as many nodes if there are enough; 1 to 16. Fewer are no error if there are fewer nodes. */
  uint32_t copies;
  /** Copies on a medium, by `NMC_MEDIA_*`. If they are more than `copies` together, their sum counts. */
  uint32_t media_copies[3];
  /** One of `NMC_RETAIN_*`. */
  uint32_t retain;
  /** From 0 to 3: what is lower is evicted first. */
  uint32_t priority;
  /** Where copies must be, in the order in which they are filled; NULL for anywhere. */
  const struct nmc_location_t *locations;
  /** How many. */
  size_t n_locations;
  /** What is said about the value; up to `NMC_MAX_METADATA` bytes (256) that every copy has. */
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

/** A copy of an object, as the leader lists it. What it points to is valid during the call. */
typedef struct nmc_replica_t {
  /** Size of this struct as the library knows it: what lies behind it is not there. */
  uint32_t struct_size;
  /** `NMC_MEDIA_*`. */
  uint32_t media;
  /** Bytes of the value. */
  uint64_t bytes;
  /** Names the put that it came from: copies of one put have the same. */
  uint64_t put_id;
  /** Address at which its owner listens. */
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

/** Gets a copy. Returns 0 to end the list. Called on the calling thread; must not throw. */
typedef int32_t (*nmc_replica_fn)(void *user, const struct nmc_replica_t *replica);

/**
 * Gets a key, which is valid during the call. Returns 0 to end the list. Called on the calling thread; must not throw.
 */
typedef int32_t (*nmc_key_fn)(void *user, struct nmc_slice_t key);

/** A segment of the cluster. What it points to is valid during the call. */
typedef struct nmc_segment_t {
  /** Size of this struct as the library knows it: what lies behind it is not there. */
  uint32_t struct_size;
  /** `NMC_MEDIA_*`. */
  uint32_t media;
  /** `NMC_SEGMENT_*`. */
  uint32_t state;
  /**
   * Of memory of the host the NUMA node where it begins, as `host` numbers them; of a GPU's the CUDA number of the device in the node's process. As it was when
   * its node joined: -1 if it had no first page then (memory that is not populated gets pages when values come) and the machine has several NUMA nodes,
   * if nobody had taken that rank of the store, and for disks.
   */
  int32_t near;
  /** Bytes in all. */
  uint64_t capacity;
  /** Bytes in use, as its node said last. */
  uint64_t used;
  /** Its name. */
  struct nmc_slice_t name;
  /** The machine that has it: the address by which others reach its node. */
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

/** Gets a segment. Returns 0 to end the list. Called on the calling thread; must not throw. */
typedef int32_t (*nmc_segment_fn)(void *user, const struct nmc_segment_t *segment);

/** What became of a call that was submitted. */
typedef struct nmc_client_completion_t {
  /** What the caller passed with it. */
  uint64_t token;
  /**
   * Of a get, the size of the value, also of one for which there was no room; of a batch, of all of them together. Else 0.
   */
  uint64_t bytes;
  /** What the call would have returned that waits. */
  int32_t status;
  /** Zero. */
  uint32_t reserved;
} nmc_client_completion_t;

/** Copies that a value can have, and so places that `nmc_placement_fn` can choose. */
#define NMC_CLIENT_MAX_COPIES 16

/** A value that is to be placed. What it points to is valid during the call. */
typedef struct nmc_placement_t {
  /** Size of this struct as the library knows it: what lies behind it is not there. */
  uint32_t struct_size;
  /** Copies that the put wants. */
  uint32_t copies;
  /** Bytes of the value. */
  uint64_t bytes;
  /** Its key. */
  struct nmc_slice_t key;
  /** The segments of the cluster, as the leader listed them at most a second ago. */
  const struct nmc_segment_t *const *segments;
  /** How many. */
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
 * Says where a value goes: stores the numbers of up to `NMC_CLIENT_MAX_COPIES` (16) segments, by their places in `put->segments`, in `out_segments`, each once and the best
 * first, and returns how many. If they are fewer than `put->copies` the leader chooses the others; with 0 all of them. A negative status ends the put with it. Called
 * on the thread that puts or submits, by several at the same time; holds no lock of the library. Must not throw, and must not put.
 */
typedef int32_t (*nmc_placement_fn)(void *user, const struct nmc_placement_t *put, uint32_t *out_segments);

/** Is told that `user` is not needed any more. Called once, on whichever thread needed it last; must not throw. */
typedef void (*nmc_release_fn)(void *user);

/**
 * A client of a cluster: it puts objects on nodes and reads them from there, and can itself be nodes, with memory that it mounts or stores
 * that it attaches. Whatever its nodes have it reads without a message.
 *
 * A key names one value until it is removed, or its owners are away and somebody puts another one (docs/cluster.md). A get returns every byte of one put of that key, or an error. After a put has returned
 * `NMC_OK`, a get finds it until it is removed, evicted, or its owners are lost. After a remove has returned `NMC_OK`, no get that begins
 * later returns what was there before.
 *
 * All functions that take it may be called from any thread at the same time; closing waits for those that are under way. Every call
 * returns at most 2 s after the time that the client's config gives it. What is submitted and not waited for has the same time. Values are
 * host memory, or memory of a GPU. Statuses that every function can return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, and if it asks a
 * master `NMC_ERR_PERMISSION` (the token is another, or a certificate is not of the authority) and `NMC_ERR_VERSION` (masters and client speak different versions).
 */
typedef struct nmc_client_t nmc_client_t;

/**
 * From now on `placement` says where values go that this client puts: those whose options name no `locations`. NULL takes that back. `release`, if it is not NULL, is
 * called with `user` when nobody calls `placement` with it any more: after the next `nmc_client_set_placement`, or with `nmc_client_close`. It is not called if this fails, or without
 * a `placement`.
 *
 * It is called for each value of a put or a batch before the first of them is sent, on the calling thread, and for those that are submitted before that returns. It is
 * shown the segments as the leader listed them at most a second ago; the put that asks the leader for them waits for that, also a submitted one. A choice
 * that cannot be (a number that is no segment, one that comes twice, more than there is room for) ends that put with `NMC_ERR_INVALID_ARG`; one that is full or gone by
 * then with `NMC_ERR_NO_SPACE`. Copies on a medium (`media_copies`) count on top of it as they do with locations.
 *
 * Thread-safe. Not graph-safe. Statuses: none of its own.
 */
nmc_status_t nmc_client_set_placement(struct nmc_client_t *client,
                                      nmc_placement_fn placement,
                                      void *user,
                                      nmc_release_fn release);

/**
 * Opens a client and puts a handle into `*out_client`. Nobody is contacted yet, but names of machines are looked up.
 *
 * Thread-safe. Not graph-safe. Closed with `nmc_client_close`. Statuses: `NMC_ERR_INVALID_ARG` (the config; the message names what),
 * `NMC_ERR_VERSION`, `NMC_ERR_PERMISSION` (neither token nor certificates, and not everything is on the loopback device),
 * `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT` (no descriptor is left), `NMC_ERR_OS`.
 */
nmc_status_t nmc_client_open(const struct nmc_client_config_t *config,
                             struct nmc_client_t **out_client);

/**
 * Closes a client. Its nodes leave the cluster: what only they have, nobody finds any more; memory that was mounted is freed, stores that
 * were attached stay. NULL is fine; in a forked child it does nothing.
 *
 * Blocks until calls of other threads have returned: they end early with `NMC_ERR_CANCELLED`. Not graph-safe. Thread-safe: of several
 * callers one succeeds. Statuses: `NMC_ERR_BUSY` when called inside a callback.
 */
nmc_status_t nmc_client_close(struct nmc_client_t *client);

/**
 * Gives the cluster memory of this process: a node with a segment of `config->heap_bytes` bytes, named `name`, or `host:port` if that is
 * empty. No other segment in the cluster may have the name. `config` is that of an embedded store (`nmc_store_create` without a
 * world); `page_bytes` 0 is 16 KiB here, since each value takes whole pages. The node evicts by itself what it has no room for, as a store does.
 * With `heap_kind` `NMC_HEAP_CUDA` it is a segment on a GPU, see `nmc_client_attach_store`. With `heap_import` the memory is the program's own, which may use it again when
 * `nmc_client_unmount` or `nmc_client_close` has returned, or this call with an error.
 *
 * Waits until a master has taken the node as a member. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (this client has such a
 * node), `NMC_ERR_UNAVAILABLE` (no master has taken it in time: none answers, or the name is taken; nothing is left of it), `NMC_ERR_LIMIT` (ports), `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_OS`, and those of `nmc_store_create`.
 */
nmc_status_t nmc_client_mount(struct nmc_client_t *client,
                              struct nmc_slice_t name,
                              const struct nmc_store_config_t *config);

/**
 * Makes a node of a store that the program has: what is put into it, by whomever and in which way, others find; others put to it. Its
 * segments are the heaps of its ranks, named `name`, and with more than one rank `name/rank`, and its tier, `name/ssd`. One process of a world
 * attaches its store. If the tier is opened or closed later the node begins anew with it by itself: for a moment others do not find what only it has.
 * A put with `nmc_store_put` is found elsewhere a moment later (`nmc_client_sync` waits for that), and a remove with
 * `nmc_store_remove` concerns this node's copy alone.
 *
 * A store that never was in a cluster, or was empty when it left, is taken with all that is in it. One that was, keeps what it has if it comes
 * back under its name within an hour (`gone_ms`); what was removed meanwhile goes. Otherwise, and if it comes from another cluster, after another
 * store had its name, or under another name and something was removed since, all that is in it is removed: nobody knows what of it should be
 * gone. Open its tier before this call: of a tier that is opened later, what memory does not have goes unless nothing was removed meanwhile.
 *
 * Heaps on a GPU are segments of `NMC_MEDIA_VRAM`. What others put there or read from there goes by way of host memory of this process, 256 MiB each way at a
 * time (one value may be larger): puts and gets wait for that by themselves, until their time is over. Where `protocol` is `rdma`, NIXL moves values from and to the heap itself, as far as it can.
 *
 * Waits until a master has taken the node as a member. The store stays open until the client is closed or `nmc_client_unmount` is called, also
 * after `nmc_store_destroy`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_mount`.
 */
nmc_status_t nmc_client_attach_store(struct nmc_client_t *client,
                                     struct nmc_slice_t name,
                                     struct nmc_store_t *store);

/**
 * Takes a node of this client out of the cluster: nobody finds what only it has any more. Memory that was mounted is freed, a store that was
 * attached stays as it is. `nmc_client_drain` first copies what is only there.
 *
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (this client has no node of that name: only who mounted a segment unmounts it).
 */
nmc_status_t nmc_client_unmount(struct nmc_client_t *client,
                                struct nmc_slice_t name);

/**
 * Says that values will be put from, or read into, this memory, of the host or of a GPU. With `rdma` it is registered with NIXL, which then moves bytes
 * from and to it without a copy; any other memory is copied through 64 MiB of the library's, and what does not fit there goes by tcp. With `tcp` nothing
 * depends on it. The memory stays as it is until that is taken back. For memory of a GPU set `UCX_MEMTYPE_CACHE=n` before the program starts.
 *
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (part of it is registered), `NMC_ERR_UNSUPPORTED` (NIXL does not take it),
 * `NMC_ERR_LIMIT` (others could not be told of as many pieces: register fewer, larger ones), `NMC_ERR_TIMEOUT` (NIXL does not answer),
 * `NMC_ERR_NO_MEMORY`. After an error the memory is not registered.
 */
nmc_status_t nmc_client_register(struct nmc_client_t *client,
                                 void *memory,
                                 size_t bytes);

/**
 * Takes that back, with the address that was given. No call may use the memory meanwhile.
 *
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
 */
nmc_status_t nmc_client_unregister(struct nmc_client_t *client, void *memory);

/**
 * Puts a value, which `n` slices of memory make up, under `key`. `options` may be NULL: one copy, wherever the master says. Slices may be memory of a
 * GPU: they are copied to host memory first, on a stream of the library: what your kernels write must be there when this is called.
 *
 * Asks the leader, sends the bytes to each owner, and tells the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (there is a value under the key, or an
 * owner that was chosen has one; the old value stays), `NMC_ERR_NO_SPACE` (no segment, or none has room), `NMC_ERR_BUSY`, `NMC_ERR_STALE` (it was removed or evicted
 * at once), `NMC_ERR_LIMIT` (4,096 namespaces of the cluster have something, or the nodes have had values of 63 namespaces each), `NMC_ERR_UNAVAILABLE` (no master
 * answers, or no owner that was asked can be reached), `NMC_ERR_TIMEOUT` (after both it may have been put), `NMC_ERR_CANCELLED`,
 * `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_put(struct nmc_client_t *client,
                            struct nmc_slice_t key,
                            const struct nmc_slice_t *slices,
                            size_t n,
                            const struct nmc_replicate_t *options);

/**
 * Reads a value into `n` buffers, one after the other, and stores in `*out_bytes`, if that is not NULL, how many bytes it has.
 * If the buffers have room for fewer, that is `NMC_ERR_TOO_SMALL`, and `*out_bytes` is the size all the same. Buffers may be memory of a GPU: the value comes
 * to host memory and is copied there when it is whole, and that is done when this returns.
 *
 * What a node of this client has costs no message. Else the leader is asked where it is, unless that is remembered, and an owner for the
 * bytes; if that one fails, the next. What the buffers hold after an error is not defined. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`,
 * `NMC_ERR_TOO_SMALL`, `NMC_ERR_UNAVAILABLE` (no master answers, or a new one is still being told what there is), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_get(struct nmc_client_t *client,
                            struct nmc_slice_t key,
                            const struct nmc_buffer_t *buffers,
                            size_t n,
                            uint64_t *out_bytes);

/**
 * Puts `n` values. With `counts` NULL `slices[i]` is the value of `keys[i]`; else the first `counts[0]` slices make up that of `keys[0]`, the next `counts[1]` that
 * of `keys[1]`, and so on. `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it. A failed one does not stop the others.
 * They are put at the same time: if a key is named twice, both may succeed, and a get returns one of the two values. Values in memory of a GPU are put 64 MiB
 * at a time.
 *
 * Up to 256 are under way together. Thread-safe. Not graph-safe. Returns `NMC_OK` if all went well, else the status of the first that did not.
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
 * Reads `n` values: that of `keys[i]` into `buffers[i]`, or with `counts` into as many of the buffers, one after the other, as `nmc_client_put_batch` takes slices.
 * `out_bytes[i]`, if `out_bytes` is not NULL, is how many bytes it has, and
 * `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it. Values that go to memory of a GPU are read 64 MiB at a time.
 *
 * Where they are is asked for 256 at once, and as many are read together. Thread-safe. Not graph-safe. Returns `NMC_OK` if all were read, else
 * the status of the first that was not. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_batch(struct nmc_client_t *client,
                                  const struct nmc_slice_t *keys,
                                  const struct nmc_buffer_t *buffers,
                                  const size_t *counts,
                                  size_t n,
                                  uint64_t *out_bytes,
                                  nmc_status_t *out_statuses);

/**
 * Whether there is a value under `key`: `NMC_OK` or `NMC_ERR_NOT_FOUND`.
 *
 * Asks the leader, unless a node of this client has it. Thread-safe. Not graph-safe. Statuses besides: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_exists(struct nmc_client_t *client,
                               struct nmc_slice_t key);

/**
 * The same for `n` keys: `out_statuses[i]` is `NMC_OK` or `NMC_ERR_NOT_FOUND`, or why it could not be found out.
 *
 * Asks the leader once for 256. Thread-safe. Not graph-safe. Returns `NMC_OK` if it was found out for all, whether they are there or not.
 */
nmc_status_t nmc_client_exists_batch(struct nmc_client_t *client,
                                     const struct nmc_slice_t *keys,
                                     size_t n,
                                     nmc_status_t *out_statuses);

/**
 * Calls `callback` with each copy of an object that the leader lists.
 *
 * Asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_query(struct nmc_client_t *client,
                              struct nmc_slice_t key,
                              nmc_replica_fn callback,
                              void *user);

/**
 * Calls `callback` with each segment of the cluster.
 *
 * Asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_segments(struct nmc_client_t *client, nmc_segment_fn callback, void *user);

/**
 * Calls `callback` with the keys of the client's namespace that begin with `prefix`, which may be empty, one page a call and in no particular order.
 * `*cursor` is 0 at first; each call moves it, and it is 0 again after the last page. A page may have no key although there are more. Keys that
 * come or go meanwhile may or may not be seen; what stays is seen once, unless another master takes the lead: then begin again. If `callback`
 * ends the list the cursor stays, and the next call begins with the same page.
 *
 * Asks the leader, once. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_keys(struct nmc_client_t *client,
                             struct nmc_slice_t prefix,
                             uint64_t *cursor,
                             nmc_key_fn callback,
                             void *user);

/**
 * Waits until others find everything that was stored in this client's nodes before, by `nmc_store_put` too.
 *
 * Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TIMEOUT`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_STALE` (a node was away for so long that it is emptied as it
 * comes back: what was stored in it before is gone).
 */
nmc_status_t nmc_client_sync(struct nmc_client_t *client);

/**
 * Reads what the writer of a value said about it (`metadata` of `nmc_replicate_t` or `nmc_put_options_t`) into `buffer`, and stores its size in `*out_bytes`, if that is not
 * NULL: 0 if that was nothing. With `capacity` 0 and `out_bytes` it only tells the size. If the buffer is too small, only the size is stored. `NMC_MAX_METADATA` bytes are enough for any.
 *
 * What a node of this client has costs no message. Else an owner is asked, as for `nmc_client_get`, and sends no byte of the value; what it has on disk only it reads
 * from there. It does not count as having been read; a value that another node has on disk alone comes into
 * its memory for that. Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_metadata(struct nmc_client_t *client,
                                     struct nmc_slice_t key,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *out_bytes);

/**
 * The same for `n` values: what was said about `keys[i]` goes into `buffers[i]`. `out_bytes[i]`, if `out_bytes` is not NULL, is how many bytes that is, and
 * `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it.
 *
 * Where they are is asked for 256 at once, and as many are asked together. Thread-safe. Not graph-safe. Returns `NMC_OK` if all were read, else
 * the status of the first that was not. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_metadata_batch(struct nmc_client_t *client,
                                           const struct nmc_slice_t *keys,
                                           const struct nmc_buffer_t *buffers,
                                           size_t n,
                                           size_t *out_bytes,
                                           nmc_status_t *out_statuses);

/**
 * Reads what was said about a value like `nmc_client_get_metadata` and does not wait; see `nmc_client_submit_put`. The buffer is the library's until the completion was taken,
 * whose `bytes` are the size of the metadata.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_get`.
 */
nmc_status_t nmc_client_submit_get_metadata(struct nmc_client_t *client,
                                            struct nmc_slice_t key,
                                            void *buffer,
                                            size_t capacity,
                                            uint64_t token);

/**
 * Reads a value like `nmc_client_get`, and what its writer said about it into `metadata`, both of the same put. `*out_metadata_bytes`, if it is not NULL, is the size of
 * that; if it has no room there the status is `NMC_ERR_TOO_SMALL`, as if the buffers were too small, and both sizes are stored if the value fits.
 *
 * Costs no message more than `nmc_client_get`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
 */
nmc_status_t nmc_client_get_with_metadata(struct nmc_client_t *client,
                                          struct nmc_slice_t key,
                                          const struct nmc_buffer_t *buffers,
                                          size_t n,
                                          struct nmc_buffer_t metadata,
                                          uint64_t *out_bytes,
                                          size_t *out_metadata_bytes);

/**
 * Removes an object everywhere. With 0 as `flags` it waits until every owner has dropped it; `NMC_IN_PROGRESS` if one of them is away and the
 * master has no etcd to note that in: until that one is back, its own programs and clients that remember its place may still read the value.
 * `NMC_REMOVE_ASYNC` does not wait.
 *
 * Asks the leader. Whoever reads it finishes. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` (it may have been
 * removed), `NMC_ERR_CANCELLED`. If the leader was lost in the middle and the next one knows of nothing under the key it is `NMC_OK`: it is gone, and nobody
 * can tell whether it was there.
 */
nmc_status_t nmc_client_remove(struct nmc_client_t *client,
                               struct nmc_slice_t key,
                               uint32_t flags);

/**
 * Removes `n` objects: like `nmc_client_remove`, with the same `flags` for all. `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of `keys[i]`: `NMC_OK`,
 * `NMC_IN_PROGRESS`, `NMC_ERR_NOT_FOUND`, or why it failed. A failed one does not stop the others. If a key is named twice one of the two may be `NMC_ERR_NOT_FOUND`.
 *
 * Up to 256 are under way together. Thread-safe. Not graph-safe. Returns the status of the first that failed; if none did, `NMC_IN_PROGRESS` if that is one's, else `NMC_OK`.
 * Statuses as for `nmc_client_remove`.
 */
nmc_status_t nmc_client_remove_batch(struct nmc_client_t *client,
                                     const struct nmc_slice_t *keys,
                                     size_t n,
                                     uint32_t flags,
                                     nmc_status_t *out_statuses);

/**
 * Removes all objects of the client's namespace, or with `NMC_REMOVE_EVERYWHERE` of all of them, in one step. Otherwise like
 * `nmc_client_remove`; that there was none is no error.
 */
nmc_status_t nmc_client_remove_all(struct nmc_client_t *client,
                                   uint32_t flags);

/**
 * Closes a segment and has what is only there copied to other nodes. Nobody stores there any more: values of others go to other nodes, and puts
 * of the node's own programs to other ranks of its store, or, if they name this one or there is no other, end with `NMC_ERR_NO_SPACE`. It waits up to
 * `timeout_ms` until nothing is left to copy, 0 not at all, -1 for as long as it takes. `NMC_IN_PROGRESS` means that copying goes on, or that a put which had begun has not ended;
 * `nmc_last_error_message` says then what is left, the first objects by their names. `*out_left`, if `out_left` is not NULL, is how many objects are left, as far as that
 * is known. Call it again until it returns `NMC_OK`, then unmount, which opens an attached store again; or `nmc_client_undrain`. A new leader knows of no drain: the segment is open
 * until this is called again, or asks again while it waits.
 *
 * Asks the leader; while it waits also again if none answers. Returns at most 2 s after `timeout_ms` or the client's time, whichever is later. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (there is no such segment),
 * `NMC_ERR_BUSY` (too many are being drained), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
 */
nmc_status_t nmc_client_drain(struct nmc_client_t *client,
                              struct nmc_slice_t segment,
                              int64_t timeout_ms,
                              uint64_t *out_left);

/**
 * Gives a drain up: the segment takes values again, of others at once and of its own programs when its node has heard of it, within a second or two. Copies that were made
 * stay. Whoever waits in `nmc_client_drain` for the same segment closes it again.
 *
 * Asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (there is no such segment), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
 */
nmc_status_t nmc_client_undrain(struct nmc_client_t *client,
                                struct nmc_slice_t segment);

/**
 * Puts a value like `nmc_client_put` and does not wait: when it has ended a completion with `token` is queued, which
 * `nmc_client_completions` takes. Until that was taken, or `nmc_client_close` has returned, the bytes of the value stay as they are; key, slices and
 * options need be valid for this call only. The time that the call may take begins now. Memory of a GPU goes by way of host memory: what is put
 * from there is copied before this returns, of a batch the first 64 MiB; the rest of it, and what is read, by whichever thread drives.
 *
 * Does not block, except for that copy, for the memory to note it and, where a placement is set, for the list of segments, which may be a second old. Thread-safe. Not graph-safe. An error means that nothing was submitted and there will be
 * no completion. Statuses: `NMC_ERR_BUSY` (`NMC_CLIENT_MAX_SUBMITTED` are submitted: take completions first), `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`. The completion has
 * those of `nmc_client_put`.
 */
nmc_status_t nmc_client_submit_put(struct nmc_client_t *client,
                                   struct nmc_slice_t key,
                                   const struct nmc_slice_t *slices,
                                   size_t n,
                                   const struct nmc_replicate_t *options,
                                   uint64_t token);

/**
 * Reads a value like `nmc_client_get` and does not wait; see `nmc_client_submit_put`. The buffers are the library's until the completion was taken,
 * which has the size of the value. What a node of this client has is in the buffers when this returns, and its completion is queued.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_get`.
 */
nmc_status_t nmc_client_submit_get(struct nmc_client_t *client,
                                   struct nmc_slice_t key,
                                   const struct nmc_buffer_t *buffers,
                                   size_t n,
                                   uint64_t token);

/**
 * Removes an object like `nmc_client_remove` and does not wait; see `nmc_client_submit_put`.
 *
 * Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_remove`.
 */
nmc_status_t nmc_client_submit_remove(struct nmc_client_t *client,
                                      struct nmc_slice_t key,
                                      uint32_t flags,
                                      uint64_t token);

/**
 * Puts `n` values like `nmc_client_put_batch` and does not wait; see `nmc_client_submit_put`. One completion is queued when all have ended. `out_statuses`, if it
 * is not NULL, is the library's until then, like the values; so are items that could not be one, which have their status there.
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
 * Reads `n` values like `nmc_client_get_batch` and does not wait; see `nmc_client_submit_get`. One completion is queued when all have ended. `out_bytes` and
 * `out_statuses`, if they are not NULL, are the library's until then, like the buffers.
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
 * Removes `n` objects like `nmc_client_remove_batch` and does not wait; see `nmc_client_submit_put`. One completion is queued when all have ended. `out_statuses`, if it
 * is not NULL, is the library's until then.
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
 * Takes completions of what was submitted, the oldest first, at most `capacity`; stores their number in `*out_n`. None is ever lost. If there is
 * none, it waits for one up to `timeout_ms` (0 not at all, -1 as long as anything is under way), and drives the connections
 * meanwhile: unless the client has `NMC_CLIENT_THREAD`, what is submitted goes on only while some thread is in this call, or in one that waits for an answer.
 *
 * Thread-safe. Not graph-safe. That none came in time is `NMC_OK` with 0 in `*out_n`. Statuses: none of its own.
 */
nmc_status_t nmc_client_completions(struct nmc_client_t *client,
                                    struct nmc_client_completion_t *out_completions,
                                    size_t capacity,
                                    int64_t timeout_ms,
                                    size_t *out_n);

/**
 * Stores a descriptor in `*out_fd` that is readable (poll, epoll) when `nmc_client_completions` should be called with 0 as `timeout_ms`: a completion is queued,
 * something has arrived, or it is time to ask again. A completion need not come of every such call. It belongs to the client: do not close it,
 * and do not read from it. Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_OS`.
 */
nmc_status_t nmc_client_event_fd(struct nmc_client_t *client,
                                 int32_t *out_fd);

/**
 * Ends what was submitted with this token and is under way: its completion is queued when this returns, with `NMC_ERR_CANCELLED`, or, if it was just ending, with what
 * became of it, and for a batch with the status of the first item that had failed before. Its memory is
 * not touched any more. A put or a remove may have been done all the same; nothing is sent for it after this, but that a put is revoked.
 *
 * Waits for nobody but a thread of this process that is just noting what became of it. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (nothing with that
 * token is under way; its completion may wait to be taken), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_client_cancel(struct nmc_client_t *client,
                               uint64_t token);

/**
 * Makes a handle of a store, in the same namespace, whose reads go on to the cluster, and puts it into `*out_store`: what neither memory nor
 * disk has is read from whichever node has it under the same key, in the namespace of the same name. The store need not be a node itself.
 * `store` stays as it is, and a miss of it costs no message. Handles that `nmc_store_namespace` makes of the new one go on to the cluster
 * too.
 *
 * `get`, `get_into`, `get_slices`, `get_strided` and `get_into_batch` read from there, also into device memory (by way of host memory, as
 * parts of a value do); `get_metadata` asks a node; `exists`, `exists_batch` and `match_prefix` ask the leader, for 256 keys at once, and say
 * `NMC_OBJECT_ELSEWHERE`. All else is about this store alone: pins, locations, waits, watches, touch, retain, iteration, removes and puts. An object that is being
 * written here is `NMC_NOT_READY`, whoever has it. What was read is kept on this client's first node with `NMC_CLIENT_KEEP_COPIES`.
 *
 * A read that goes on takes up to `timeout_ms` (-1 for the client's `timeout_ms`) and 2 s, and has the statuses of `nmc_client_get` besides: if no master
 * answers, `NMC_ERR_UNAVAILABLE` or `NMC_ERR_TIMEOUT` and not `NMC_ERR_NOT_FOUND`, since nobody knows. `nmc_store_cancel` and destroy of the
 * handle end it with `NMC_ERR_CANCELLED`, and so does `nmc_client_close`; after that the handle is one like `store`. They may be closed in any order.
 *
 * Asks nobody itself. Thread-safe. Not graph-safe. Destroyed with `nmc_store_destroy`. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`.
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
   * tokens are needed all the same.
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
  /** Blocks that were wanted. */
  uint64_t needed;
  /** Blocks that nobody has. */
  uint64_t free;
  /** Cached blocks that nobody holds; they were not enough together with the free ones. */
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
  /** Cached blocks that nobody holds. */
  uint64_t idle;
  /** Blocks that nobody has. */
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
  /** Memory of the books. */
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
  /** Blocks that a later sequence could use, and that nobody holds. */
  uint64_t idle;
  /** Blocks that nobody has. */
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
 * (`nmc_kv_gather`, `nmc_kv_copy_blocks`, `nmc_kv_offload`, ...). With `NMC_KV_VIRTUAL`, which see, it maps them besides,
 * and some of what follows is different.
 *
 * **When blocks count as computed.** `nmc_kv_open` and `nmc_kv_append` give room for tokens that the engine computes
 * afterwards. With the next `nmc_kv_append` or `nmc_kv_close` of the same sequence, what it had before counts as computed,
 * and its full blocks can be matched by others; `nmc_kv_commit` says so earlier. The engine must have enqueued that work
 * by then, and order later work after it: on the same stream, or with an event.
 *
 * **When blocks are free.** A block that is let go may be handed out at once. Work that still reads it must be ordered
 * before work that writes the new owner's tokens, as on one stream it is.
 *
 * All functions may be called from any thread at the same time, also while another thread destroys the cache; calls for
 * one sequence exclude each other. Threads that work on sequences of their own do not wait for each other, except where
 * blocks are shared. Where nothing else is said, nothing blocks, nothing calls CUDA, and all is graph-safe. Statuses that every function can return:
 * `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, `NMC_ERR_NO_MEMORY` (for the books; the message says how
 * much, and nothing changed); those that take a sequence also `NMC_ERR_NOT_FOUND` (no such sequence is open) and
 * `NMC_ERR_STALE` (its blocks were taken to make room: close it).
 */
typedef struct nmc_kv_t nmc_kv_t;

/**
 * Makes a cache with all blocks free and puts a handle into `*out_kv`.
 *
 * With a `world` the groups lie in the heap that this rank has there, one after the other from `heap_offset` of the config on,
 * each at the next multiple of 4,096 bytes; `nmc_kv_heap_bytes` says how much that is. Their `memory` must be NULL. So peers reach
 * the blocks, with `nmc_world_ptr` and the offset of a group (`nmc_kv_group_stats`). Nothing else may use that part of the heap,
 * and the world must not be destroyed before the cache. NULL: the memory is the program's, or the library's with
 * `NMC_KV_VIRTUAL`.
 *
 * Does not block, except to get memory for `NMC_KV_VIRTUAL`. Thread-safe. Graph-safe without it. Destroyed with
 * `nmc_kv_destroy`. Statuses: `NMC_ERR_INVALID_ARG` (a number in the config, memory that is too small), `NMC_ERR_VERSION`,
 * `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_UNSUPPORTED` (what `NMC_KV_VIRTUAL` does not have, or no CUDA),
 * `NMC_ERR_CANCELLED` (the rank has left or aborted), `NMC_ERR_CUDA`.
 */
nmc_status_t nmc_kv_create(struct nmc_world_t *world,
                           const struct nmc_kv_config_t *config,
                           struct nmc_kv_t **out_kv);

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
 * Opens sequence `id` with `n_tokens` tokens: takes the blocks that the cache has of its prefix, and gets others for the rest,
 * all or nothing. The program chooses the id, or the cache does with `NMC_KV_ID_AUTO`: one of 2^63 or above that no open
 * sequence has, and that it never chooses again; `out_opened->id` says which, or `nmc_kv_find` for a sequence with a name.
 * `tokens` may be NULL: then nothing is matched or published. `options`, `out_opened` and `out_room` may be NULL; `*out_room` is
 * stored with `NMC_ERR_NO_SPACE`.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NO_SPACE` (nothing changed), `NMC_ERR_EXISTS` (the id or the
 * name), `NMC_ERR_LIMIT` (`max_sequences`, or more than 2^31 tokens), `NMC_ERR_INVALID_ARG` (also: `NMC_KV_ID_AUTO` with neither
 * `out_opened` nor a name, so that nobody could know the sequence), `NMC_ERR_VERSION`.
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
 * Keeps the state that a sequence has now, in all groups of kind `NMC_KV_KIND_RECURRENT`, for later sequences that begin with the
 * same tokens: they can begin here. The sequence must be at the end of a block. All its tokens count as computed. Its next
 * tokens are written to another slot (see `nmc_kv_state_slots`).
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (not at the end of a block, or its tokens are not
 * known, so that nobody could find it), `NMC_ERR_UNSUPPORTED` (no such group), `NMC_ERR_NOT_FOUND`, `NMC_ERR_STALE`.
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
 * Evicts every cached block that nobody holds; `out_evicted`, if not NULL, receives how many.
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
 * sequences. `group` is one that the table is for: groups with blocks of their own have their own tables, all others have the
 * same, that of group 0 if there are none. Writes only what changed since the row was last written, as `rows` remembers, one `nmc_kv_row_t` for each sequence,
 * all zero at first. A row that is new, of another sequence, or of one whose earlier blocks changed is written whole, and
 * filled up with `pad`. A dropped block is -1. `out_table` may be pinned memory; it is never read. Give every buffer its own
 * `rows`. `out_written`, if not NULL, receives how many entries were stored.
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
 * Ties a cache to a store, through which it exchanges blocks with caches of other processes: those with the same kinds,
 * types and sizes of heads and blocks, and the same hash and secret. All groups must have memory, which the store can
 * reach (device memory needs a store that was joined with that device). Once for a cache; it keeps the store open, also
 * after `nmc_store_destroy`, until it is destroyed itself. Starts 6 to 12 threads, `nmc-kv-move`, one for each core in between.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_EXISTS` (it has a store), `NMC_ERR_INVALID_ARG` (a group without
 * memory), `NMC_ERR_UNSUPPORTED` (a cache without a prefix index, with `NMC_KV_VIRTUAL`, or with `NMC_KV_HASH_XXH3`, which
 * needs tokens to compare), `NMC_ERR_OS` (no thread).
 */
nmc_status_t nmc_kv_attach_store(struct nmc_kv_t *kv,
                                 struct nmc_store_t *store);

/**
 * Says which stream moves come after that make room (`NMC_KV_WHEN_FULL_MOVE_SEQUENCE`): the one on which the program computes. They
 * wait for what is on it when they begin. Needed if the cache lies in device memory; `after` is of kind
 * `NMC_KV_AFTER_STREAM`, or `NMC_KV_AFTER_NOTHING` for host memory. The stream must stay until the cache is destroyed.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (no store, an event, device memory and nothing
 * to wait for), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
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
 * Begins to fetch, for a sequence that was just opened, the full blocks that follow those that it found in the cache, as
 * far as the store has them. `*out_tokens` receives how many tokens that are, and `*out_ticket` the ticket; both 0 if there are
 * none. Until the program was told that it is over (`nmc_kv_transfer_poll`, `nmc_kv_transfer_wait`) the sequence can be read and
 * closed, all else is `NMC_ERR_BUSY`; then the blocks that came count as computed, can be matched, and the engine computes the
 * rest. If it is closed before, the blocks that had come stay, and nothing else counts as computed. A fetch that fails or is cancelled in the middle leaves
 * the blocks that were complete, in order, and nothing of the others (see `computed_tokens` of `nmc_kv_seq_info_t`); with groups that
 * have blocks of their own it leaves nothing. Fetch before you fork. `after`: what
 * must be over before the blocks are written; needed if the cache lies in device memory. `flags`:
 * `NMC_KV_ONBOARD_ALL`, `NMC_KV_ONBOARD_BY_LAYER` or 0.
 *
 * Does not block. Thread-safe. Not graph-safe. Statuses: those of `nmc_kv_offload`; `NMC_ERR_UNSUPPORTED` also for
 * `NMC_KV_ONBOARD_BY_LAYER` with groups that have blocks of their own, and for a sequence that shares with a fork what would be
 * written.
 */
nmc_status_t nmc_kv_onboard(struct nmc_kv_t *kv,
                            uint64_t id,
                            uint32_t flags,
                            const struct nmc_kv_after_t *after,
                            uint64_t *out_ticket,
                            uint64_t *out_tokens);

/**
 * How a transfer is: `NMC_IN_PROGRESS`, or its outcome, with which the ticket ends. `out_progress` may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_OK` (done), `NMC_IN_PROGRESS`, `NMC_ERR_CANCELLED`, `NMC_ERR_STALE`
 * (a block left the store meanwhile), `NMC_ERR_CORRUPT` (a checksum or size was wrong), `NMC_ERR_NO_SPACE` (the store is
 * full), `NMC_ERR_NOT_FOUND` (no such ticket), and what the store and CUDA return.
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
 * Asks a transfer to end soon, after the blocks that are under way. Its outcome is then told by `nmc_kv_transfer_poll`: cancelled, or done if
 * it was quicker.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such ticket, or its end was told).
 */
nmc_status_t nmc_kv_transfer_cancel(struct nmc_kv_t *kv,
                                    uint64_t ticket);

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
 * An allocator of blocks: it knows their numbers, 0 to `total_blocks` - 1, and nothing of what lies in them. Blocks are
 * taken as runs that follow each other, or scattered; both kinds are blocks like others, can be freed by either function,
 * in any parts, and share the same free blocks. What is not in use is never freed: freeing something twice is an error,
 * unless it was handed out again meanwhile.
 *
 * All functions may be called from any thread at the same time, also while another thread destroys it; none of them
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
 * Gives up a request. A run that it was served with, and that was not fetched, is free again; those behind it move up.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such ticket is open: if it was fetched, its
 * run belongs to who fetched it).
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
 * The state as text for people: counts that add up, and a map with a character a block, 64 in a line: `.` is free, `X` in
 * use. Text goes out as everywhere: `out_needed` receives the size with the NUL, and may be NULL.
 *
 * Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (cut, `*out_needed` was stored), `NMC_ERR_NO_MEMORY`.
 */
nmc_status_t nmc_blocks_dump(struct nmc_blocks_t *blocks,
                             char *buffer,
                             size_t capacity,
                             size_t *out_needed);

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
 * Let kernels that are launched with programmatic stream serialization be placed from the beginning of a dispatch before them on, while a combine
 * sums, or a pack or a scatter ends, although other processes share the device. Faster, and needs half of the room: `blocks` 16 for 8 ranks on an H200. What the program
 * itself launches so must leave room for the dispatch of the others, which otherwise come too late and lose the group.
 * A launch for all ranks of the group that use the device places the next one early in any case.
 */
#define NMC_EP_EARLY 8

/**
 * Let ranks in several processes that share one GPU order their stores with fences of that device's scope instead of the
 * system's, which are slow while several processes use the device. PTX promises this scope to threads of one program only; that it
 * holds between processes, too, follows from the one L2 cache that they share and was tested, but nobody promises it (docs/ep.md).
 * Has no effect if ranks are on several devices. Ranks of one process on one device use it in any case,
 * if they are of a local world or made by one `nmc_ep_create_ranks`.
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
  /** Size of this struct as the library knows it: what lies behind it is not there. */
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
 * All ranks take the same steps in the same order: dispatch and combine of a layer, in turn, in each buffer set. A call out of turn
 * (a combine without its dispatch, a second dispatch) is refused with `NMC_ERR_INVALID_ARG` and does nothing, as long as the host
 * makes all calls itself: not any more once one was captured, or `nmc_ep_device` was called. Calls of one handle are made
 * by one thread at a time, on one stream for each buffer set. On CUDA heaps calls only enqueue, need no synchronisation,
 * allocate nothing, and are graph-safe; on host heaps they work at once and take a NULL stream. Results are the same bits
 * in every arrangement.
 *
 * When a rank dies, does not come within the deadline, or makes a mistake that only the GPU can see, the group is over for
 * all ranks: kernels of later steps do nothing, calls return the reason, `nmc_ep_check` tells it. Heaps, contexts and the
 * world live on; destroy the handle and make a new group. Statuses that every function can return:
 * `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`; those with a stream also `NMC_ERR_PEER_LOST`,
 * `NMC_ERR_MISMATCH`, `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the group is over), `NMC_ERR_CUDA`, and between
 * `nmc_ep_group_begin` and `nmc_ep_group_end` `NMC_ERR_NO_MEMORY` (the call is not part of the group).
 */
typedef struct nmc_ep_t nmc_ep_t;

/**
 * Says how much memory a group with this config needs, before it is made, in a world of `world_size` ranks: all of them are in
 * it, or those that `config->members` names. `inner` is for `nmc_ep_moe_forward`; 0 without it.
 *
 * Thread-safe. Asks nobody. Statuses: `NMC_ERR_LIMIT` (too many ranks), and see `nmc_ep_t`.
 */
nmc_status_t nmc_ep_bytes_needed(const struct nmc_ep_config_t *config,
                                 uint32_t world_size,
                                 uint32_t inner,
                                 struct nmc_ep_bytes_t *out_bytes);

/**
 * Makes a group together with all other members, which call this at the same time, and stores a handle in `*out_ep`.
 *
 * The transport lies in the world's heaps from `heap_offset` on; what else uses the heap (a store, the program) stays
 * clear of it. On CUDA heaps this waits for the device's work of this process. Blocks up to the deadline. Not graph-safe.
 * The world must not be destroyed before the group. Destroyed with `nmc_ep_destroy`.
 * Statuses: `NMC_ERR_MISMATCH` (names the field, the rank and both values; all ranks that came are told, and can call this
 * again at once), `NMC_ERR_TIMEOUT` (says who is missing), `NMC_ERR_PEER_LOST`,
 * `NMC_ERR_LIMIT` (blocks that cannot be resident at once, too many ranks), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_NO_MEMORY`,
 * `NMC_ERR_VERSION`, `NMC_ERR_CANCELLED`, `NMC_ERR_CUDA`.
 * One thread at a time for a handle.
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
 * Leaves a group. Peers that still wait for this rank run into their deadline: finish the same steps everywhere first. NULL is fine; in a forked child it does nothing.
 *
 * On CUDA heaps waits for the device's work of this process: steps that wait for a peer end by the deadline. Not graph-safe: graphs that hold steps of the group must not
 * be launched afterwards. Statuses: `NMC_ERR_BUSY` when called inside a log callback.
 * One thread at a time for a handle.
 */
nmc_status_t nmc_ep_destroy(struct nmc_ep_t *ep);

/**
 * Ends the group. Never blocks. Steps that wait return, calls return `NMC_ERR_CANCELLED`, on all ranks at once. On CUDA heaps the
 * word is stored by a stream of the library, and kernels of all ranks that wait see it; a peer's calls return the error after
 * the first kernel that has seen it. A group that is over already is left alone.
 *
 * Thread-safe. Graph-safe: takes effect at once, also during a capture. Statuses: `NMC_ERR_BAD_HANDLE`.
 */
nmc_status_t nmc_ep_abort(struct nmc_ep_t *ep);

/**
 * Says whether the group works: the error that ended it, whichever rank found it. Looks for ranks that died, too: then
 * kernels that wait for them return soon. Does not wait for streams, so what is still under way is not told yet.
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
 * Copies what was counted since the group was made: `out_expert_load[experts]`, the tokens that this rank sent to each expert;
 * `out_waited_ns[ranks of the group]`, the time spent waiting for each rank (on a GPU without waits of a few us); `*out_overflow_rows`, rows that did not fit the
 * grouped layout. Each may be NULL. Does not wait for streams: steps that are under way may be counted or not.
 *
 * Thread-safe. Not graph-safe on CUDA heaps (copies on a stream of the library).
 * Statuses: `NMC_ERR_NO_MEMORY`, and see `nmc_ep_t`.
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
