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

Rules that hold for every function, unless it says otherwise:
 - It returns a status: 0 is success, negative an error, positive an outcome that is no error. After an error
   nmc_last_error_message() of the same thread says what was wrong, with the values. Out parameters are written
   only on success, except where stated. A function that makes handles stores NULL in their place when it fails.
 - It may be called from any thread. Handles are checked: NULL, a destroyed handle, a handle of another kind or
   any other pointer gives NMC_ERR_BAD_HANDLE, also while another thread destroys it.
 - Nothing is thrown, aborted, or written to stdout or stderr.
 - A process that has made a handle and forks: every call in the child returns NMC_ERR_FORKED, destroy does
   nothing. Fork before the first call, or exec in the child.
 - Memory that the caller passes stays the caller's and is not kept after the call, except where stated.
 - A struct that begins with struct_size starts from its _INIT macro, whether the program or the library fills it.
   A program compiled against an older or newer header then keeps working.
 - The library never changes the calling thread's current CUDA context. \"Graph-safe\" means legal while a stream is
   being captured. Streams are cudaStream_t or CUstream, passed as void*.";

pub const NOUNS: &[Noun] = &[
    Noun {
        title: "Basics",
        prefix: "nmc_",
        about: "versions, statuses and error messages, values that several nouns share, the log",
        how: "\
A program that loads the library at run time compares `nmc_abi_version` with `NMC_ABI_VERSION` first. After a call that
failed, `nmc_status_name` gives the name of its status and `nmc_last_error_message` a sentence with the values; ask on the
thread that made the call, before its next one fails. What happens in the background, such as a rank that dies, goes to the
callback of `nmc_log_set_callback`; without one the library writes nothing anywhere. Keys, names and other bytes that a
call reads are passed as `nmc_slice_t`.",
        sources: &["ffi/basic.rs", "base/status.rs", "ffi/common.rs", "ffi/log.rs"],
    },
    Noun {
        title: "World",
        prefix: "nmc_world_",
        about: "the ranks of one machine: heaps that all of them address, control words, who is alive",
        how: "\
Every process calls `nmc_world_join` with the same name (`nmc_world_create_local` makes all ranks inside one process). Then
`nmc_world_ptr` gives the address of any byte in any rank's heap, and `nmc_world_word` a control word to publish through:
fill the heap, store to the word with release, and whoever loads it with acquire may read the heap. `nmc_world_alive` and
`nmc_world_event_fd` say who died; another process may join in its place and finds the heap as it was left. Destroy what was
made from a world, then leave with `nmc_world_finalize` and `nmc_world_destroy`; `nmc_world_abort` is the way out of trouble.",
        sources: &["ffi/world_types.rs", "ffi/world.rs"],
    },
    Noun {
        title: "Master",
        prefix: "nmc_master_",
        about: "the master of a world and of its store, in a process that is not one of the ranks",
        how: "\
Only for ranks that join with `NMC_MASTER_EXTERNAL`; otherwise rank 0 runs the master and nothing here is needed. One process
calls `nmc_master_start` with the name and the sizes that the ranks have; they may come before it or after. Ranks need a master
to join and to write to the store, not to use their heaps, to read objects, or to see who died. If its process dies, start it
again: the survivors hand the world back to it. `nmc_master_destroy` ends it, and `nmc master` is the same as a command.",
        sources: &["ffi/master.rs"],
    },
    Noun {
        title: "Store",
        prefix: "nmc_store_",
        about: "objects that one process writes and all read, in place or as a copy; reads ask nobody",
        how: "\
`nmc_store_create` attaches to the one store of a world, or makes a store inside this process if the world is NULL. By copy:
`nmc_store_put` and `nmc_store_get_into`. In place: `nmc_store_open_for_write` says where the bytes go, `nmc_store_commit`
publishes them; `nmc_store_pin` gives a reader their address, and they stay until `nmc_store_unpin`. An object never changes: it
is replaced, removed or evicted as a whole. `nmc_store_wait_ready` and `nmc_store_watch` wait for one. The calls that end in
`_batch` take many keys at once, those in `_async` go into a CUDA stream.",
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
        title: "KV cache",
        prefix: "nmc_kv_",
        about: "where the K and V of every token lie: blocks, sequences, shared prefixes, tables for kernels",
        how: "\
`nmc_kv_create` makes a cache of blocks, with a group for all layers of one layout. For each request `nmc_kv_open` takes the
blocks that the cache has of its prompt and gives room for the rest; `nmc_kv_append` gives room for what is generated, and
`nmc_kv_close` leaves the full blocks to others. `nmc_kv_table` and `nmc_kv_table_csr` write the block tables that attention
kernels take; `nmc_kv_view` describes the memory. Tokens count as computed from the next call for their sequence on
(`nmc_kv_commit` says so earlier): enqueue the work of a step first. With a store attached (`nmc_kv_attach_store`),
`nmc_kv_offload` and `nmc_kv_onboard` move blocks there and back while the engine goes on.",
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
        about: "block numbers without memory behind them, for engines that keep their own sequences",
        how: "\
`nmc_blocks_create` makes the numbers 0 to `total_blocks` - 1, all free. `nmc_blocks_allocate` takes a run of neighbours and
`nmc_blocks_allocate_scattered` any blocks; both take what is free now or fail at once. To wait, `nmc_blocks_request` stands in
line and returns a ticket for `nmc_blocks_poll`. `nmc_blocks_extend` lengthens a run in place, and `nmc_blocks_free` takes back
a run or a part of one. The allocator knows which blocks are in use, not by whom: what lies in them is the program's.",
        sources: &["ffi/blocks.rs"],
    },
    Noun {
        title: "EP",
        prefix: "nmc_ep_",
        about: "expert-parallel transport: the tokens of an MoE layer to their experts, and the results back",
        how: "\
All ranks of a group call `nmc_ep_create` together; `nmc_ep_bytes_needed` says beforehand how much of their heaps it takes. A
layer is `nmc_ep_dispatch`, `nmc_ep_route_pack`, the engine's grouped GEMMs, `nmc_ep_scatter` and `nmc_ep_combine`, by every
rank; `nmc_ep_moe_forward` does all of it in one call. The halves of dispatch and combine (`_send` and `_recv`) let other work run
in between. Ranks of one process go out together between `nmc_ep_group_begin` and `nmc_ep_group_end`. A group ends for all
ranks with its first error, which `nmc_ep_check` tells; destroy it then, and create another one.",
        sources: &["ffi/ep_types.rs", "ffi/ep.rs"],
    },
];
