# Generated from include/nanomc.h by python/generate.py; do not edit.
"""The constants of nanomc.h without their NMC_ prefix, the defaults of its structs, and what calls store as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple, Union

#: Version of everything in this file. A process that attaches to memory of another version is refused.
LAYOUT_VERSION = 6
#: What one writer must not share with another, in bytes.
CACHE_LINE = 64
#: Most ranks in one world.
MAX_RANKS = 64
#: Distance from one control word to the next, in bytes.
WORD_STRIDE = 64
#: Offsets and sizes of the world self-test are multiples of this, in bytes.
PATTERN_ALIGN = 16
#: States of an object in the low 4 bits of its control word, the first word of its header; the epoch is above 8 bits.
STATE_RESERVED = 0
STATE_WRITING = 1
STATE_READY = 2
STATE_DEAD = 3
EPOCH_SHIFT = 8
#: What nmc_dev_wait_ready found: the object can be read, will not become readable, or the time is over.
READY_YES = 0
READY_STALE = 1
READY_TIMEOUT = 2
#: Most ranks of an expert-parallel group.
EP_MAX_RANKS = 32
#: Version of this header, from Cargo.toml.
VERSION_MAJOR = 0
VERSION_MINOR = 1
VERSION_PATCH = 0
VERSION_STRING = '0.1.0'
#: Version of the C ABI. It grows by one with every release that adds to the ABI; a release that would break it changes the soname instead.
ABI_VERSION = 1
#: The call succeeded.
OK = 0
#: Nothing is wrong, but what was asked for is not there yet.
NOT_READY = 1
#: The operation was started and has not finished.
IN_PROGRESS = 2
#: An argument is out of range, NULL where a value is needed, or contradicts another one.
ERR_INVALID_ARG = -1
#: The handle is NULL, stale, of another kind, already destroyed, or not a handle at all.
ERR_BAD_HANDLE = -2
#: The handle belongs to the parent of this forked process. Only destroy is allowed here, and does nothing.
ERR_FORKED = -3
#: A struct, a shared region or a peer speaks a version of the ABI or layout that this library does not.
ERR_VERSION = -4
#: This machine, driver or build cannot do it; the message says what is missing.
ERR_UNSUPPORTED = -5
#: Memory could not be reserved.
ERR_NO_MEMORY = -6
#: A limit was reached: file descriptors, sizes of files, handles, nesting, table entries.
ERR_LIMIT = -7
#: The deadline passed first.
ERR_TIMEOUT = -8
#: Ranks of one world disagree about a parameter; the message names both values.
ERR_MISMATCH = -9
#: The rank, name or key is already taken.
ERR_EXISTS = -10
#: Owner or mode of a file, or the user id of a peer, is not acceptable.
ERR_PERMISSION = -11
#: A peer sent something that is not part of the protocol.
ERR_PROTOCOL = -12
#: No master answers at the moment; the call may be repeated.
ERR_UNAVAILABLE = -13
#: A rank that this call depends on has died.
ERR_PEER_LOST = -14
#: The call was ended by finalize, destroy or abort in another thread.
ERR_CANCELLED = -15
#: An operating-system call failed; the message names it and the reason.
ERR_OS = -16
#: A CUDA driver call failed; the message names it and the reason.
ERR_CUDA = -17
#: A bug in the library was caught at the boundary. The handle involved should be destroyed.
ERR_INTERNAL = -18
#: Not possible right now because something is in use; the call may be repeated.
ERR_BUSY = -19
#: There is no such thing.
ERR_NOT_FOUND = -20
#: The caller's buffer is too small; the size that is needed was stored.
ERR_TOO_SMALL = -21
#: Bytes in shared memory are not what was written.
ERR_CORRUPT = -22
#: The object was removed, evicted or given up in the meantime.
ERR_STALE = -23
#: There is no room: the value is larger than the heap, or a quota is used up.
ERR_NO_SPACE = -24
#: The disk below the store failed, or refuses to be written; the message names the file and the reason.
ERR_IO = -25
#: Element types: 32-bit float.
DTYPE_FP32 = 0
#: 16-bit brain float.
DTYPE_BF16 = 1
#: 16-bit float.
DTYPE_FP16 = 2
#: 8-bit float of either kind.
DTYPE_FP8 = 3
#: 8-bit integer.
DTYPE_INT8 = 4
#: Elements of element_bytes bytes that the library knows nothing else about.
DTYPE_RAW = 5
#: Nothing is evicted to make room: when the disk is full, offloading pauses, which full of nmc_tier_stats_t counts. SSD tier only.
EVICT_NONE = 0
#: What was stored, written or published first goes first.
EVICT_FIFO = 1
#: What was used longest ago: an object, the bucket on disk that was last read longest ago, the cached block of the KV cache that has been idle longest.
EVICT_LRU = 2
#: S3-FIFO: what is new passes a small queue first, and stays if it is used there or returns soon after it left. A scan does not push out what is read often. Store and KV cache only.
EVICT_S3FIFO = 3
#: What was used least, in powers of two; among equals the one idle longest. KV cache only.
EVICT_LFU = 4
#: What has the lowest priority; a priority lapses after its time to live. KV cache only.
EVICT_PRIORITY = 5
#: Something failed and a user will notice.
LOG_ERROR = 1
#: Something is wrong but was dealt with.
LOG_WARN = 2
#: Rare events of normal life: a rank joined, a rank died.
LOG_INFO = 3
#: What a developer of the library wants to see.
LOG_DEBUG = 4
#: Heaps in host memory (sealed memfd).
HEAP_HOST = 1
#: Heaps in the memory of a CUDA device.
HEAP_CUDA = 2
#: Use huge pages for a host heap if there are any; nmc_world_info_t.heap_flags says whether there were.
HEAP_HUGE_PAGES = 1
#: Fault host heaps in while joining, so that the first access to a page costs what every other does: the own heap, and in this process those of all ranks that are there. It takes about a second per 4 GiB, and counts towards join_timeout_ms. Heaps that come later, lent memory and CUDA heaps are left as they are.
HEAP_POPULATE = 2
#: The library allocates the heap.
IMPORT_NONE = 0
#: ptr: host memory of this process. Only ranks of the same process can reach it.
IMPORT_HOST_PTR = 1
#: fd: a memfd that is sealed with F_SEAL_SHRINK and F_SEAL_GROW.
IMPORT_HOST_FD = 2
#: ptr: device memory from cudaMalloc, or one VMM allocation that was created as exportable.
IMPORT_CUDA_PTR = 3
#: fd: a VMM allocation exported with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
IMPORT_CUDA_FD = 4
#: The master runs in the process of rank 0 (with automatic ranks: of the first process that comes).
MASTER_RANK0 = 0
#: The master runs elsewhere: nmc_master_start in another process, or nmc master.
MASTER_EXTERNAL = 1
#: The rank has not been taken yet.
RANK_ABSENT = 0
#: A process holds the rank.
RANK_ALIVE = 1
#: The process died or broke off; something of it (a forked child, a kernel) may still write to shared memory.
RANK_DYING = 2
#: Provably nothing of the process is left. The rank can be taken again.
RANK_GONE = 3
#: The process left in order. The rank can be taken again.
RANK_LEFT = 4
#: Keep a CRC32C of every page and check it on every read by the library. The checksums are stored by nmc_store_commit: until then, such reads of an object that its program published by itself return NMC_NOT_READY.
STORE_CHECKSUMS = 1
#: The store waits for its tier. While the tier is not open (nmc_tier_open in the process of the master), calls that store, remove or replace something return NMC_ERR_UNAVAILABLE, and so do reads of what is not in memory, instead of NMC_ERR_NOT_FOUND. Use this for stores that start with the contents of a directory: without it, other ranks may store a key that is on disk before that is known. Counts in the process of the master; others ignore it.
STORE_WAIT_FOR_TIER = 2
#: Store the value in one run of pages.
PUT_CONTIGUOUS = 1
#: Replace an object with the same key; readers see the old value until the new one is complete. If the store is a node of a cluster, copies that other nodes have stay, see nmc_client_attach_store.
PUT_REPLACE = 2
#: If the rank that is to hold the value has no room, cannot hold anything or has no holder, use another rank. First the store looks for a rank that has room without evicting anything: the preferred one, otherwise the one with the most free pages. If there is none, the preferred rank evicts, and if it cannot, the others do, in the same order. dst_rank of the plan, or nmc_store_get_location, says which rank it is.
PUT_ANY_RANK = 4
#: Evicted as the config says.
RETAIN_NONE = 0
#: Evicted when nothing else is left, or when its time is over.
RETAIN_SOFT = 1
#: Never evicted, only removed.
RETAIN_HARD = 2
#: There is no such object.
OBJECT_ABSENT = 0
#: The object is being written.
OBJECT_WRITING = 1
#: The object can be read.
OBJECT_READY = 2
#: The object is not in memory, but can be read from disk. It cannot be pinned.
OBJECT_ON_DISK = 3
#: The object is not in this store, but can be read from a node of the cluster. Only handles of nmc_client_open_store return this. The object cannot be pinned.
OBJECT_ELSEWHERE = 4
#: Most bytes of an object's metadata.
MAX_METADATA = 256
#: Also wait for a key that is not being written yet.
WAIT_APPEAR = 1
#: Most completions of one client that wait to be taken. When there are more, the oldest go.
MAX_COMPLETIONS = 65536
#: Read and write through the page cache. Without this flag, files are opened with O_DIRECT where the file system supports it.
TIER_NO_DIRECT = 1
#: Do not use io_uring, but one preadv or pwritev after the other.
TIER_NO_URING = 2
#: A remove, replacement or flush returns only when it is safe from a power loss. Without this flag, it is safe from the death of any process when it returns, and from a power loss after the next nmc_tier_sync.
TIER_DURABLE_REMOVE = 4
#: Start paused: nothing is written before nmc_tier_resume or nmc_tier_offload.
TIER_PAUSED = 8
#: If the head or the journal of the directory is damaged, delete all files of the tier in it and start empty. Without this flag, opening fails with NMC_ERR_CORRUPT and changes nothing. Nothing is deleted but regular files, and folders of the tier that are empty then. If something else has the name of a file that a new tier needs, opening fails with NMC_ERR_PERMISSION, and deletes nothing.
TIER_RESET_IF_DAMAGED = 16
#: Delete buckets whose end is damaged. Without this flag they are renamed, so that you can look at them.
TIER_DELETE_TORN = 32
#: Record what is stored on disk and what is evicted from it, for nmc_tier_events in every process of the store.
TIER_EVENTS = 64
#: A put or commit returns only when its value is on disk, safe from a power loss. Values that several callers wait for at the same time are written and synced together. If a value cannot be written, the call returns NMC_ERR_IO, NMC_ERR_NO_SPACE or NMC_ERR_LIMIT (see nmc_tier_offload), and the value is only in memory: to try again, put it with NMC_PUT_REPLACE, commit once more, or call nmc_tier_offload. If it was evicted or removed before it was written, the call returns NMC_ERR_STALE.
TIER_WRITE_THROUGH = 128
#: Open this directory although the store's tier under its former master had another one, whose disk is lost. Without this flag that is NMC_ERR_MISMATCH: what is removed from now on would come back when the former directory is opened again.
TIER_OTHER_DIRECTORY = 256
#: Write the list of every bucket a second time, to <number>.meta, which is used if the list in the bucket cannot be read. NMC_TIER_BACKEND_BUCKET only.
TIER_META = 512
#: Many values per file. The default, and the fastest.
TIER_BACKEND_BUCKET = 0
#: One file per value, in two levels of folders, for people who want to see values as files.
TIER_BACKEND_FILE = 1
#: One file, kv_cache.data, of capacity_bytes, which must be set, up to 1 TiB. No file is created or deleted while the tier runs.
TIER_BACKEND_OFFSET = 2
#: Keeps nothing: what is written is gone. For measuring what the rest costs.
TIER_BACKEND_NOOP = 3
#: The values are on disk, safe from a power loss.
TIER_STORED = 1
#: The values were evicted from the disk, to make room or by nmc_tier_evict. Those that are in memory are still there.
TIER_EVICTED = 2
#: How long a loan of nmc_tier_stage lasts if its ttl_ms is 0, in ms.
TIER_STAGE_MS = 5000
#: Keep a copy of values that are read from another node on this client's first node, where others find it too.
CLIENT_KEEP_COPIES = 1
#: Drive submitted calls (nmc_client_submit_put and the like) with a thread of the library, so that they make progress while the program does something else. Without this flag, nmc_client_completions drives them. The thread starts with the first submitted call.
CLIENT_THREAD = 2
#: Remove a value, with all its copies on all nodes, expire_ms after this client has read it. That concerns the put that was read, not one that takes its key later. Reads that have begun finish. The leader removes the value; a new leader does not know of it, and then the value stays until it is read again. Values that are read through nmc_client_open_store stay.
CLIENT_EXPIRE = 4
#: Of several copies, read one on this machine first; then one in memory; then one on the node from which this client waits for the least. Nodes that failed lately come last, in all three orders. A value that a node of this client has is always read there.
READ_NEAR = 0
#: Read a copy in memory first; then one on this machine; then as for NMC_READ_NEAR.
READ_MEMORY = 1
#: Read a copy in memory first; then one on the node from which this client waits for the least, on whatever machine. So a value that many read comes from all nodes that have it.
READ_SPREAD = 2
#: Most calls that a client can have submitted without having taken their completions. A batch counts as up to 256.
CLIENT_MAX_SUBMITTED = 4096
#: Do not wait until every owner has dropped the object: it is out of the directory when the call returns.
REMOVE_ASYNC = 1
#: Remove objects of all namespaces, not only the client's.
REMOVE_EVERYWHERE = 2
#: GPU memory.
MEDIA_VRAM = 0
#: Host memory.
MEDIA_RAM = 1
#: The SSD tier of a node.
MEDIA_SSD = 2
#: Any medium.
MEDIA_ANY = 4294967295
#: The segment accepts values.
SEGMENT_OK = 0
#: The segment accepts no more values; values that are only there are being copied to other nodes.
SEGMENT_DRAINING = 1
#: The master has not heard from the segment's node for a while.
SEGMENT_GONE = 2
#: Most copies that a value can have, and so the most segments that nmc_placement_fn can choose.
CLIENT_MAX_COPIES = 16
#: Keys and values, of all tokens of a sequence.
KV_KIND_ATTENTION = 0
#: One latent vector for each token (multi-head latent attention): one head, no V.
KV_KIND_MLA = 1
#: One state for each sequence, of state_bytes bytes a layer, that every token changes: linear attention, Mamba.
KV_KIND_RECURRENT = 2
#: In place of a group: all of them; where blocks are named, all that share the block numbers of the cache.
KV_GROUPS_ALL = 4294967295
#: In place of the id of a new sequence: the cache chooses one that no open sequence has.
KV_ID_AUTO = 18446744073709551615
#: [layers, blocks, heads, tokens, dim].
KV_LAYER_MAJOR = 0
#: [heads, layers, blocks, tokens, dim].
KV_HEAD_MAJOR = 1
#: [layers, blocks, tokens, heads, dim]: what FlashAttention, FlashInfer ("NHD") and vLLM take.
KV_LAYER_MAJOR_NHD = 2
#: [blocks, layers, heads, tokens, dim]: a block is one piece of memory.
KV_BLOCK_MAJOR = 3
#: All of K and then all of V.
KV_SIDES_SEPARATE = 0
#: K and V right inside the layers: [layers, 2, blocks, ...].
KV_SIDES_PER_LAYER = 1
#: K and V right inside the blocks: [layers, blocks, 2, ...].
KV_SIDES_PER_BLOCK = 2
#: K, the latent vectors, or the state.
KV_K = 0
#: V.
KV_V = 1
#: No room: NMC_ERR_NO_SPACE. Idle cached blocks are evicted before, here and in all other cases.
KV_WHEN_FULL_REJECT = 0
#: No room: a new sequence gets fewer tokens than it asked for, which is then its limit.
KV_WHEN_FULL_SHORTEN = 1
#: No room: the sequence that was used longest ago loses its blocks; calls for it are NMC_ERR_STALE until it is closed.
KV_WHEN_FULL_EVICT_SEQUENCE = 2
#: No room: the sequence that was used longest ago goes to the store (nmc_kv_attach_store; without one this is NMC_KV_WHEN_FULL_REJECT) and loses its blocks here; calls for it are NMC_ERR_STALE until it is closed. Opened again with all its tokens, nmc_kv_onboard fetches what it had computed; with recurrent groups up to the last state that was kept. With it, calls that need room may block until the copy is done, and are not graph-safe.
KV_WHEN_FULL_MOVE_SEQUENCE = 3
#: Keyed BLAKE3. The default.
KV_HASH_BLAKE3 = 0
#: SHA-256 with a key, cut to 16 bytes.
KV_HASH_SHA256 = 1
#: XXH3, which can be made to collide; tokens and salts are kept and compared, which takes 4 bytes a token. Not with a store, which has no tokens to compare.
KV_HASH_XXH3 = 2
#: Flag of a config: no block is matched or published.
KV_NO_PREFIX = 1
#: Flag of a config: virtual placement. Every sequence has contiguous addresses of its own, of max_sequence_tokens tokens, and the pages of its blocks are mapped there as it grows: growing never moves anything, nmc_kv_view is always of the sequence alone, and kernels need no table. The library owns the memory (heap_kind, device), and gets all of it in nmc_kv_create. **What a page is.** The addresses of a sequence have the group's layout with the sequence's own blocks in place of all blocks. A page is one block of it in one plane, that is tokens_per_block tokens of what is contiguous from block to block: of one layer, K or V, with NMC_KV_LAYER_MAJOR and NMC_KV_LAYER_MAJOR_NHD; of one layer, both, with NMC_KV_SIDES_PER_BLOCK; of one head of that with NMC_KV_HEAD_MAJOR; of all layers, K and V, with NMC_KV_BLOCK_MAJOR (K or V with NMC_KV_SIDES_SEPARATE). It must be a multiple of the system's page (4 KiB) or of the device's (2 MiB): nmc_kv_page_tokens finds the smallest tokens_per_block. A block has one page in each plane; growing by a block maps them all, so layouts with few planes grow cheaper and in smaller steps. Forks and prefixes share whole blocks. **When pages are mapped.** By nmc_kv_open, nmc_kv_append, nmc_kv_truncate and nmc_kv_fork for the blocks they add, and ahead of need by nmc_kv_reserve, also from another thread: an append up to there maps nothing. A closed sequence leaves its addresses, with the free blocks that are mapped there, to the next one. These calls may call CUDA and wait for the driver then, and are not graph-safe; beside their own statuses they can return NMC_ERR_LIMIT (too many mappings), NMC_ERR_CUDA and NMC_ERR_NO_MEMORY, and leave the tokens of the sequence as they were. **When pages are unmapped.** When their place is needed for another block: after the tokens there were cut off, or when a later sequence has the addresses. Like freeing memory, nmc_kv_truncate, nmc_kv_close and nmc_kv_destroy may be called when no work uses those tokens any more. Blocks are never exchanged for equal ones of another sequence. Not available (NMC_ERR_UNSUPPORTED): memory of the program's, window, nmc_kv_table*, nmc_kv_slot_mapping, nmc_kv_gather, nmc_kv_scatter, nmc_kv_drop_least, nmc_kv_resize, nmc_kv_attach_store. Copies are of addresses: see nmc_kv_copy_t.
KV_VIRTUAL = 2
#: Flag of nmc_kv_open: the blocks follow each other, so that views are of the sequence alone.
KV_OPEN_CONTIGUOUS = 1
#: Flag of nmc_kv_open: neither match blocks nor publish any.
KV_OPEN_PRIVATE = 2
#: Flag of nmc_kv_open: the cache may have all tokens. Otherwise at least the last one is left to be computed, since the engine needs its result.
KV_OPEN_MATCH_ALL = 4
#: Flag of nmc_kv_close: what was not committed was not computed, and is not published.
KV_CLOSE_ABORT = 1
#: Flag of nmc_kv_seq_info: look up in the store how many tokens it has.
KV_SEQ_STORED = 1
#: State of a sequence: in use.
KV_SEQ_OPEN = 0
#: State of a sequence: its blocks were taken to make room.
KV_SEQ_EVICTED = 1
#: Entries of a table are block numbers: vLLM, FlashAttention (block_table), FlashMLA.
KV_TABLE_BLOCKS = 0
#: Two rows a sequence, of K and of V: 2 x block and 2 x block + 1, for pools whose blocks hold K and then V, as TensorRT-LLM's block offsets are.
KV_TABLE_OFFSETS = 1
#: Event: a block can be matched now.
KV_EVENT_STORED = 0
#: Event: a block is no longer there.
KV_EVENT_REMOVED = 1
#: Event: no block is there any more.
KV_EVENT_CLEARED = 2
#: A transfer waits for nothing: the cache lies in host memory, and the program has written it.
KV_AFTER_NOTHING = 0
#: A transfer waits for what is on a stream now; handle is the stream.
KV_AFTER_STREAM = 1
#: A transfer waits for an event; handle is a cudaEvent_t that stays until the transfer is over.
KV_AFTER_EVENT = 2
#: Flag of nmc_kv_onboard: fetch all tokens. Otherwise at least the last one is left to be computed.
KV_ONBOARD_ALL = 1
#: Flag of nmc_kv_onboard: a layer of all blocks after the other, so that computing can begin with the first layers (layers_done); blocks are complete only at the end.
KV_ONBOARD_BY_LAYER = 2
#: Rows travel to the experts as they are.
EP_DISPATCH_SAME = 0
#: Rows travel as fp8 (e4m3) with an fp32 scale for every 128 elements; the library quantises them. If all 128 are smaller than 1e-30, the scale is 1 and they become zeros, each with its sign.
EP_DISPATCH_FP8 = 1
#: Rows travel as fp8 with scales that the caller gives.
EP_DISPATCH_FP8_GIVEN = 2
#: Trap in the kernel that finds an error, instead of reporting it. For debugging: the context is lost.
EP_TRAP = 1
#: Do not count tokens per expert.
EP_NO_LOAD = 2
#: Give rows to return memory of their own. Without it y of nmc_ep_recv_buffers_t is its x: a row goes back from where it came, which halves what passes through the caches. Rows that travel as fp8 always have it.
EP_SEPARATE_Y = 4
#: Let kernels that are launched with programmatic stream serialization be placed early although other processes share the device: from the beginning of the dispatch before them on, while a combine sums, or while a pack or a scatter ends. Faster, and needs half of the room: blocks 16 for 8 ranks on an H200. What the program itself launches this way must leave room for the dispatch of the others, which otherwise come too late and lose the group. A launch for all ranks of the group that use the device places the next one early in any case.
EP_EARLY = 8
#: Let ranks in several processes that share one GPU order their stores with fences of that device's scope instead of the system's, which are slow while several processes use the device. PTX promises this scope only to threads of one program. That it also holds between processes follows from the one L2 cache that they share, and was tested, but is not guaranteed (docs/ep.md). Has no effect if ranks are on several devices. Ranks of one process on one device use it in any case, if they are of a local world or were created by one nmc_ep_create_ranks.
EP_DEVICE_SCOPE = 16

#: Names of statuses by number.
STATUS_NAMES: Dict[int, str] = {
    0: 'NMC_OK',
    1: 'NMC_NOT_READY',
    2: 'NMC_IN_PROGRESS',
    -1: 'NMC_ERR_INVALID_ARG',
    -2: 'NMC_ERR_BAD_HANDLE',
    -3: 'NMC_ERR_FORKED',
    -4: 'NMC_ERR_VERSION',
    -5: 'NMC_ERR_UNSUPPORTED',
    -6: 'NMC_ERR_NO_MEMORY',
    -7: 'NMC_ERR_LIMIT',
    -8: 'NMC_ERR_TIMEOUT',
    -9: 'NMC_ERR_MISMATCH',
    -10: 'NMC_ERR_EXISTS',
    -11: 'NMC_ERR_PERMISSION',
    -12: 'NMC_ERR_PROTOCOL',
    -13: 'NMC_ERR_UNAVAILABLE',
    -14: 'NMC_ERR_PEER_LOST',
    -15: 'NMC_ERR_CANCELLED',
    -16: 'NMC_ERR_OS',
    -17: 'NMC_ERR_CUDA',
    -18: 'NMC_ERR_INTERNAL',
    -19: 'NMC_ERR_BUSY',
    -20: 'NMC_ERR_NOT_FOUND',
    -21: 'NMC_ERR_TOO_SMALL',
    -22: 'NMC_ERR_CORRUPT',
    -23: 'NMC_ERR_STALE',
    -24: 'NMC_ERR_NO_SPACE',
    -25: 'NMC_ERR_IO',
}

#: What the _INIT macros store, where it is not zero.
DEFAULTS: Dict[str, Dict[str, Union[int, float]]] = {
    'nmc_world_config_t': {'rank': -1, 'world_size': 1, 'heap_kind': 1, 'heap_import.1': -1, 'device': -1, 'device_rank': -1, 'words_per_rank': -1, 'join_timeout_ms': -1, 'drain_ms': -1, 'service_cpu': -1},
    'nmc_world_info_t': {},
    'nmc_rank_info_t': {},
    'nmc_store_config_t': {'eviction': 1, 'high_permille': -1, 'low_permille': -1, 'watchdog_ms': -1, 'heap_kind': 1, 'device': -1, 'attach_timeout_ms': -1, 'call_timeout_ms': -1, 'heap_import.1': -1},
    'nmc_put_options_t': {'preferred_segment': -1},
    'nmc_retry_hint_t': {},
    'nmc_store_rank_stats_t': {},
    'nmc_store_stats_t': {},
    'nmc_tier_config_t': {},
    'nmc_tier_event_t': {},
    'nmc_tier_stats_t': {},
    'nmc_tier_verified_t': {},
    'nmc_tier_entry_t': {},
    'nmc_client_config_t': {'timeout_ms': -1, 'cache_keys': -1, 'expire_ms': -1},
    'nmc_replicate_t': {'copies': 1},
    'nmc_replica_t': {},
    'nmc_segment_t': {},
    'nmc_placement_t': {},
    'nmc_kv_group_t': {'dtype': 1},
    'nmc_kv_config_t': {'tokens_per_block': 16, 'eviction': 2, 'heap_kind': 1, 'device': -1},
    'nmc_kv_open_t': {},
    'nmc_kv_opened_t': {},
    'nmc_kv_append_t': {},
    'nmc_kv_room_t': {},
    'nmc_kv_seq_info_t': {},
    'nmc_kv_stats_t': {},
    'nmc_kv_group_stats_t': {},
    'nmc_kv_view_t': {},
    'nmc_kv_progress_t': {},
    'nmc_blocks_config_t': {},
    'nmc_blocks_stats_t': {},
    'nmc_ep_config_t': {'dtype': 1, 'deadline_ms': -1},
    'nmc_ep_bytes_t': {},
    'nmc_ep_dispatch_t': {},
    'nmc_ep_recv_buffers_t': {},
    'nmc_ep_grouped_t': {},
    'nmc_ep_gemm_t': {},
    'nmc_ep_moe_t': {},
}

#: Structs that begin with struct_size, and whether abi_version follows.
SIZED: Dict[str, bool] = {
    'nmc_world_config_t': True,
    'nmc_world_info_t': False,
    'nmc_rank_info_t': False,
    'nmc_store_config_t': True,
    'nmc_put_options_t': True,
    'nmc_retry_hint_t': False,
    'nmc_store_rank_stats_t': False,
    'nmc_store_stats_t': False,
    'nmc_tier_config_t': True,
    'nmc_tier_event_t': False,
    'nmc_tier_stats_t': False,
    'nmc_tier_verified_t': False,
    'nmc_tier_entry_t': False,
    'nmc_client_config_t': True,
    'nmc_replicate_t': True,
    'nmc_replica_t': False,
    'nmc_segment_t': False,
    'nmc_placement_t': False,
    'nmc_kv_group_t': False,
    'nmc_kv_config_t': True,
    'nmc_kv_open_t': True,
    'nmc_kv_opened_t': False,
    'nmc_kv_append_t': True,
    'nmc_kv_room_t': False,
    'nmc_kv_seq_info_t': False,
    'nmc_kv_stats_t': False,
    'nmc_kv_group_stats_t': False,
    'nmc_kv_view_t': False,
    'nmc_kv_progress_t': False,
    'nmc_blocks_config_t': True,
    'nmc_blocks_stats_t': False,
    'nmc_ep_config_t': True,
    'nmc_ep_bytes_t': False,
    'nmc_ep_dispatch_t': True,
    'nmc_ep_recv_buffers_t': False,
    'nmc_ep_grouped_t': True,
    'nmc_ep_gemm_t': False,
    'nmc_ep_moe_t': True,
}


@dataclass(frozen=True)
class WorldInfo:
    """Facts about a world. Set `struct_size` before the call (`NMC_WORLD_INFO_INIT`)."""

    rank: int
    world_size: int
    heap_kind: int
    heap_bytes: int
    world_id: int
    heap_flags: int
    words_per_rank: int
    master_up: int
    min_ranks: int


@dataclass(frozen=True)
class RankInfo:
    """Facts about a rank. Set `struct_size` before the call (`NMC_RANK_INFO_INIT`)."""

    state: int
    generation: int
    pid: int
    device: int
    heap_base: int
    device_rank: int


@dataclass(frozen=True)
class PlanInfo:
    """Where the program stores the bytes of an object that it writes itself. Addresses are valid in this process until the plan is committed or aborted. Pages are consecutive within an extent; `nmc_store_plan_extents` lists the extents."""

    key_hash: int
    plan_id: int
    epoch: int
    bytes_total: int
    payload: int
    payload_device: int
    header: int
    publish_word: int
    publish_word_device: int
    dst_rank: int
    page_bytes: int
    n_pages: int
    last_page_bytes: int
    n_extents: int
    index: int


@dataclass(frozen=True)
class ObjectInfo:
    """Where an object is."""

    key_hash: int
    epoch: int
    bytes_total: int
    payload: int
    header: int
    owner_rank: int
    page_bytes: int
    n_pages: int
    last_page_bytes: int
    n_extents: int
    index: int


@dataclass(frozen=True)
class ViewInfo:
    """A pinned object: its bytes stay where and what they are until `nmc_store_unpin`."""

    data: int
    data_device: int
    bytes: int
    epoch: int
    ready_pages: int
    n_extents: int
    owner_rank: int
    page_bytes: int
    index: int
    slot: int
    nonce: int


@dataclass(frozen=True)
class Completion:
    """Outcome of watching a key."""

    token: int
    status: int
    lost: int


@dataclass(frozen=True)
class RetryHint:
    """When a call that found no room may be worth repeating (`nmc_store_retry_hint`)."""

    retry_after_us: int
    free_bytes: int
    largest_free_bytes: int
    waiting_bytes: int
    ready_count: int


@dataclass(frozen=True)
class StoreRankStats:
    """Counters of one rank's heap."""

    bytes_used: int
    bytes_total: int
    ready_count: int
    writing_count: int
    evict_count: int
    oom_count: int
    evict_in_use_retry: int
    stuck_put_reclaimed: int
    quarantined_bytes: int
    limbo_bytes: int
    free_runs: int
    largest_free_bytes: int


@dataclass(frozen=True)
class StoreStats:
    """Counters of a store: of all ranks together, as in `nmc_store_rank_stats_t`, and of this client."""

    n_ranks: int
    bytes_used: int
    bytes_total: int
    ready_count: int
    writing_count: int
    evict_count: int
    oom_count: int
    evict_in_use_retry: int
    stuck_put_reclaimed: int
    quarantined_bytes: int
    limbo_bytes: int
    free_runs: int
    largest_free_bytes: int
    t_plan_us: int
    bytes_tx: int
    bytes_rx: int
    puts: int
    bytes_written: int
    get_hits: int
    get_misses: int
    bytes_read: int
    hit_permille: int
    put_p50_ns: int
    put_p99_ns: int
    get_p50_ns: int
    get_p99_ns: int
    metadata_bytes: int
    master_bytes: int
    master_up: int


@dataclass(frozen=True)
class DevicePin:
    """What a kernel needs to pin an object by itself (nmc_store_device_pin). All addresses are device addresses."""

    slot: int
    value: int
    control: int
    published: int
    epoch: int
    payload: int
    bytes: int


@dataclass(frozen=True)
class TierStats:
    """Counters of a tier: those of its owner since it was opened, unless a field says otherwise."""

    owner: int
    objects: int
    bytes: int
    max_objects: int
    file_bytes: int
    buckets: int
    index_bytes: int
    written_objects: int
    written_bytes: int
    written_buckets: int
    evicted_clean: int
    evicted_dirty: int
    full: int
    corrupt: int
    errors: int
    paused: int
    degraded: int
    recovered_objects: int
    recovered_buckets: int
    recovery_ns: int
    recovered_dead: int
    read_objects: int
    read_bytes: int
    evicted: int
    promoted: int
    torn: int
    dead_bytes: int


@dataclass(frozen=True)
class TierVerified:
    """Result of a verification."""

    objects: int
    bytes: int
    corrupt: int
    unreadable: int


@dataclass(frozen=True)
class KvOpened:
    """What a sequence began with."""

    id: int
    hit_tokens: int
    tokens: int


@dataclass(frozen=True)
class KvRoom:
    """How much room there was when there was not enough, in blocks."""

    group: int
    needed: int
    free: int
    evictable: int


@dataclass(frozen=True)
class KvCopy:
    """What is to be copied: a block to another one, or with `NMC_KV_VIRTUAL`, where blocks have no addresses of their own, the bytes of one page. `nmc_kv_copy_blocks` takes either."""

    from_: int
    to: int
    group: int
    from_address: int
    to_address: int
    bytes: int


@dataclass(frozen=True)
class KvSeqInfo:
    """What a sequence is."""

    state: int
    tokens: int
    max_tokens: int
    computed_tokens: int
    stored_tokens: int
    next_offset_in_block: int
    blocks: int
    dropped: int
    shared: int
    published: int
    contiguous: int
    copies: int


@dataclass(frozen=True)
class KvStats:
    """The state of a KV cache at one moment."""

    is_full: int
    total: int
    used: int
    idle: int
    free: int
    published: int
    sequences: int
    asked_tokens: int
    hit_tokens: int
    evicted_blocks: int
    evicted_sequences: int
    deduplicated: int
    arena_bytes: int
    metadata_bytes: int
    fragmentation: float
    moved_sequences: int


@dataclass(frozen=True)
class KvGroupStats:
    """The blocks of one group at one moment."""

    own_blocks: int
    total: int
    used: int
    idle: int
    free: int
    evicted: int
    block_bytes: int
    heap_offset: int


@dataclass(frozen=True)
class KvProgress:
    """How far a transfer is."""

    layers_done: int
    tokens: int
    tokens_done: int


@dataclass(frozen=True)
class BlockRun:
    """Blocks that follow each other: `first`, `first + 1`, ... A plain value, which may be copied, cut in parts and kept by the program; the allocator knows blocks, not runs."""

    first: int
    count: int


@dataclass(frozen=True)
class BlocksStats:
    """The state of an allocator of blocks at one moment."""

    total: int
    used: int
    free: int
    largest_run: int
    free_runs: int
    fragmentation: float
    waiting: int
    ready: int
    bytes: int


@dataclass(frozen=True)
class EpBytes:
    """What a group needs, in bytes."""

    transport: int
    grouped_x: int
    grouped_scales: int
    grouped_y: int
    masked_m: int
    row_of: int
    row_index: int
    workspace: int


#: Fields of the dataclasses that are addresses.
POINTERS: Dict[str, Tuple[str, ...]] = {
    'RankInfo': ('heap_base',),
    'PlanInfo': ('payload', 'payload_device', 'header', 'publish_word', 'publish_word_device'),
    'ObjectInfo': ('payload', 'header'),
    'ViewInfo': ('data', 'data_device'),
    'KvCopy': ('from_address', 'to_address'),
}
