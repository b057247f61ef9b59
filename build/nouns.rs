//! The parts of `include/nanomc.h`, in order: which sources each comes from, and the words above it.

/// A noun of the API.
pub struct Noun {
    pub title: &'static str,
    /// What its functions begin with, if all do.
    pub prefix: &'static str,
    /// One line for the table of contents.
    pub about: &'static str,
    /// How its calls go together.
    pub how: &'static str,
    /// Files below `src`. Constants, types and callbacks of all of them come first, then their functions.
    pub sources: &'static [&'static str],
}

/// What holds for all of them.
pub const RULES: &str = "\
nanomc: memory that LLM serving processes share, and what moves through it.

Rules for every function, unless its comment says otherwise:
 - It returns a status: 0 is success, negative numbers are errors, positive numbers are outcomes that are not errors.
   After an error, nmc_last_error_message() on the same thread says what was wrong, with the values. Out parameters are
   written only on success, except where stated. A function that creates handles stores NULL in their place when it fails.
 - It may be called from any thread. Handles are checked: NULL, a destroyed handle, a handle of another kind or any
   other pointer gives NMC_ERR_BAD_HANDLE, even while another thread destroys the handle.
 - It throws nothing, aborts nothing, and writes nothing to stdout or stderr.
 - If a process that has created a handle, or tried to, forks, every call in the child returns NMC_ERR_FORKED, and destroy
   does nothing there. Fork before the first call, or exec in the child.
 - Memory that the caller passes stays the caller's, and is not kept after the call, except where stated.
 - A struct that begins with struct_size starts from its _INIT macro, whether the program or the library fills it. A
   program compiled against an older or newer header then keeps working.
 - The library never changes the calling thread's current CUDA context. \"Graph-safe\" means legal while a stream is
   being captured. Streams are cudaStream_t or CUstream, passed as void*.";

pub const NOUNS: &[Noun] = &[
    Noun {
        title: "Basics",
        prefix: "nmc_",
        about: "versions, statuses, error messages, types that several parts share, the log",
        how: "\
If your program loads the library at run time, first compare `nmc_abi_version` with `NMC_ABI_VERSION`. After a failed call,
`nmc_status_name` returns the name of the status, and `nmc_last_error_message` a sentence with the values; call it on the same
thread, before the next call there fails. Background events, such as the death of a rank, go to the callback that you set
with `nmc_log_set_callback`; without a callback the library writes nothing anywhere. Pass keys, names and other input bytes
as `nmc_slice_t`.",
        sources: &["ffi/basic.rs", "base/status.rs", "ffi/common.rs", "ffi/log.rs"],
    },
    Noun {
        title: "World",
        prefix: "nmc_world_",
        about: "the ranks of one machine: shared heaps, control words, liveness",
        how: "\
Every process calls `nmc_world_join` with the same name; `nmc_world_create_local` creates all ranks inside one process. Then
`nmc_world_ptr` returns the address of any byte in any rank's heap. To publish data, write it to a heap, then store to a control
word (`nmc_world_word`) with release; a rank that loads the word with acquire may read the data. `nmc_world_alive` and
`nmc_world_event_fd` report deaths; a new process can join as a dead rank and finds its heap as it was. To leave, destroy what was
created from the world, then call `nmc_world_finalize` and `nmc_world_destroy`; `nmc_world_abort` breaks off without waiting.",
        sources: &["ffi/world_types.rs", "ffi/world.rs"],
    },
    Noun {
        title: "Master",
        prefix: "nmc_master_",
        about: "the master of a world and of its store, in a process that is not a rank",
        how: "\
You need this only if ranks join with `NMC_MASTER_EXTERNAL`; otherwise rank 0 runs the master. One process calls
`nmc_master_start` with the same name and sizes as the ranks, before or after they start. Ranks need the master to join and to
write to the store. They do not need it to use heaps, to read objects, or to detect deaths. If the master's process dies, start
it again: the surviving ranks hand the world back to it. `nmc_master_destroy` ends it. `nmc master` is the same as a command.",
        sources: &["ffi/master.rs"],
    },
    Noun {
        title: "Store",
        prefix: "nmc_store_",
        about: "immutable objects by key: one process writes, all read, in place or as a copy",
        how: "\
`nmc_store_create` attaches to the store of a world, or creates a store inside this process if the world is NULL. To copy values,
use `nmc_store_put` and `nmc_store_get_into`. To work in place, `nmc_store_open_for_write` returns where to write and
`nmc_store_commit` publishes; `nmc_store_pin` returns the address of an object, whose bytes stay there until `nmc_store_unpin`. An
object never changes; it is replaced, removed or evicted as a whole. `nmc_store_wait_ready` and `nmc_store_watch` wait for an object. Calls
ending in `_batch` take many keys, calls ending in `_async` enqueue on a CUDA stream. Reads do not need the master.",
        sources: &[
            "ffi/store_types.rs",
            "ffi/store.rs",
            "ffi/store_access.rs",
            "ffi/store_service.rs",
            "ffi/store_batch.rs",
            "ffi/store_stream.rs",
        ],
    },
    Noun {
        title: "Tier",
        prefix: "nmc_tier_",
        about: "an SSD below the store: what memory evicts, disk keeps, and any process reads it by itself",
        how: "\
The process of the store's master calls `nmc_tier_open` with a directory, after `nmc_store_create`. From then on values are written there
before memory evicts them. `nmc_store_get`, `nmc_store_get_into` and the other reads find values that memory no longer has, in any process
and without a tier handle. To write values at once, call `nmc_tier_offload`; to make removals safe from a power loss, `nmc_tier_sync`.
`nmc_tier_stats` returns counters, `nmc_tier_verify` reads everything and compares checksums, `nmc_tier_scan` lists what is on disk.
`nmc_tier_close` ends the tier; opening the same directory again, in this process or a later one, finds everything.",
        sources: &["ffi/tier_types.rs", "ffi/tier.rs"],
    },
    Noun {
        title: "Client",
        prefix: "nmc_client_",
        about: "a cluster: objects on the nodes of many machines, found by key",
        how: "\
One process runs `nanomc-master`. Every program calls `nmc_client_open` with its address. A program that gives memory calls
`nmc_client_mount`, or `nmc_client_attach_store` for a store that it has. Then any program on any machine calls `nmc_client_put`,
`nmc_client_get` and `nmc_client_remove`, for one key or many, or reads through a store handle of `nmc_client_open_store`.
`nmc_client_submit_put` and the like do not wait; `nmc_client_completions` returns their outcomes. `nmc_client_segments` and
`nmc_client_query` list what is where. `nmc_client_close` ends the client; its nodes leave the cluster.",
        sources: &[
            "ffi/client_types.rs",
            "ffi/client.rs",
            "ffi/client_metadata.rs",
            "ffi/client_remove.rs",
            "ffi/client_placement.rs",
            "ffi/client_drain.rs",
            "ffi/client_submit.rs",
            "ffi/client_store.rs",
        ],
    },
    Noun {
        title: "KV cache",
        prefix: "nmc_kv_",
        about: "where the K and V of every token are: blocks, sequences, shared prefixes, block tables",
        how: "\
`nmc_kv_create` creates a cache of blocks, with a group for the layers of each layout. For each request, `nmc_kv_open` reuses the
cached blocks of its prompt and allocates the rest, `nmc_kv_append` allocates room for generated tokens, and `nmc_kv_close` leaves
full blocks in the cache for others. `nmc_kv_table` and `nmc_kv_table_csr` write the block tables for attention kernels;
`nmc_kv_view` describes the memory. Tokens count as computed from the next call for their sequence on, or from `nmc_kv_commit`:
enqueue a step's work before that. With a store attached (`nmc_kv_attach_store`), `nmc_kv_offload` and `nmc_kv_onboard` copy blocks
to it and back in the background.",
        sources: &[
            "ffi/kv_types.rs",
            "ffi/kv.rs",
            "ffi/kv_seq.rs",
            "ffi/kv_state.rs",
            "ffi/kv_tables.rs",
            "ffi/kv_move.rs",
            "ffi/kv_copy.rs",
        ],
    },
    Noun {
        title: "Blocks",
        prefix: "nmc_blocks_",
        about: "an allocator of block numbers without memory, for engines with their own sequences",
        how: "\
`nmc_blocks_create` creates the numbers 0 to `total_blocks` - 1, all free. `nmc_blocks_allocate` takes a run of consecutive blocks,
`nmc_blocks_allocate_scattered` takes any blocks; both fail at once if there are not enough. To wait instead, `nmc_blocks_request`
queues a request and returns a ticket for `nmc_blocks_poll`. `nmc_blocks_extend` makes a run longer in place, and `nmc_blocks_free`
frees a run or part of one. The allocator knows which blocks are in use, but not by whom or for what.",
        sources: &["ffi/blocks.rs"],
    },
    Noun {
        title: "EP",
        prefix: "nmc_ep_",
        about: "expert-parallel transport: the tokens of an MoE layer to their experts, and the results back",
        how: "\
All ranks of a group call `nmc_ep_create` together; `nmc_ep_bytes_needed` returns the required memory beforehand. For each layer,
every rank calls `nmc_ep_dispatch` and `nmc_ep_route_pack`, runs its grouped GEMMs, and calls `nmc_ep_scatter` and
`nmc_ep_combine`; `nmc_ep_moe_forward` does all of this in one call. `_send` and `_recv` split dispatch and combine, so that other work can run in
between. `nmc_ep_group_begin` and `nmc_ep_group_end` launch the calls of several ranks of one process together. The first error ends
the group for all ranks, and `nmc_ep_check` reports it: destroy the group and create a new one.",
        sources: &["ffi/ep_types.rs", "ffi/ep.rs"],
    },
];
