//! Types of `nmc_kv_*`.

use super::basic::{NMC_ABI_VERSION, nmc_slice_t};
use super::common::{NMC_DTYPE_BF16, NMC_EVICT_LRU};
use super::config::Config as Versioned;
use super::world_types::NMC_HEAP_HOST;
use std::ffi::c_void;

/// Keys and values, of all tokens of a sequence.
pub const NMC_KV_KIND_ATTENTION: u32 = 0;
/// One latent vector for each token (multi-head latent attention): one head, no V.
pub const NMC_KV_KIND_MLA: u32 = 1;
/// One state for each sequence, of `state_bytes` bytes a layer, that every token changes: linear attention, Mamba.
pub const NMC_KV_KIND_RECURRENT: u32 = 2;

/// In place of a group: all of them; where blocks are named, all that share the block numbers of the cache.
pub const NMC_KV_GROUPS_ALL: u32 = u32::MAX;

/// In place of the id of a new sequence: the cache chooses one that no open sequence has.
pub const NMC_KV_ID_AUTO: u64 = u64::MAX;

/// `[layers, blocks, heads, tokens, dim]`.
pub const NMC_KV_LAYER_MAJOR: u32 = 0;
/// `[heads, layers, blocks, tokens, dim]`.
pub const NMC_KV_HEAD_MAJOR: u32 = 1;
/// `[layers, blocks, tokens, heads, dim]`: what FlashAttention, FlashInfer ("NHD") and vLLM take.
pub const NMC_KV_LAYER_MAJOR_NHD: u32 = 2;
/// `[blocks, layers, heads, tokens, dim]`: a block is one piece of memory.
pub const NMC_KV_BLOCK_MAJOR: u32 = 3;

/// All of K and then all of V.
pub const NMC_KV_SIDES_SEPARATE: u32 = 0;
/// K and V right inside the layers: `[layers, 2, blocks, ...]`.
pub const NMC_KV_SIDES_PER_LAYER: u32 = 1;
/// K and V right inside the blocks: `[layers, blocks, 2, ...]`.
pub const NMC_KV_SIDES_PER_BLOCK: u32 = 2;

/// K, the latent vectors, or the state.
pub const NMC_KV_K: u32 = 0;
/// V.
pub const NMC_KV_V: u32 = 1;

/// No room: `NMC_ERR_NO_SPACE`. Idle cached blocks are evicted before, here and in all other cases.
pub const NMC_KV_WHEN_FULL_REJECT: u32 = 0;
/// No room: a new sequence gets fewer tokens than it asked for, which is then its limit.
pub const NMC_KV_WHEN_FULL_SHORTEN: u32 = 1;
/// No room: the sequence that was used longest ago loses its blocks; calls for it are `NMC_ERR_STALE` until it is closed.
pub const NMC_KV_WHEN_FULL_EVICT_SEQUENCE: u32 = 2;

/// No room: the sequence that was used longest ago goes to the store (`nmc_kv_attach_store`; without one this is
/// `NMC_KV_WHEN_FULL_REJECT`) and loses its blocks here; calls for it are `NMC_ERR_STALE` until it is closed. Opened again with all
/// its tokens, `nmc_kv_onboard` fetches what it had computed; with recurrent groups up to the last state that was kept. With
/// it, calls that need room may block until the copy is done, and are not graph-safe.
pub const NMC_KV_WHEN_FULL_MOVE_SEQUENCE: u32 = 3;

/// Keyed BLAKE3. The default.
pub const NMC_KV_HASH_BLAKE3: u32 = 0;
/// SHA-256 with a key, cut to 16 bytes.
pub const NMC_KV_HASH_SHA256: u32 = 1;
/// XXH3, which can be made to collide; tokens and salts are kept and compared, which takes 4 bytes a token. Not with a store,
/// which has no tokens to compare.
pub const NMC_KV_HASH_XXH3: u32 = 2;

/// Flag of a config: no block is matched or published.
pub const NMC_KV_NO_PREFIX: u32 = 1;

/// Flag of a config: virtual placement. Every sequence has contiguous addresses of its own, of `max_sequence_tokens` tokens,
/// and the pages of its blocks are mapped there as it grows: growing never moves anything, `nmc_kv_view` is always of the
/// sequence alone, and kernels need no table. The library owns the memory (`heap_kind`, `device`), and gets all of it in
/// `nmc_kv_create`.
///
/// **What a page is.** The addresses of a sequence have the group's layout with the sequence's own blocks in place of all
/// blocks. A page is one block of it in one plane, that is `tokens_per_block` tokens of what is contiguous from block to
/// block: of one layer, K or V, with `NMC_KV_LAYER_MAJOR` and `NMC_KV_LAYER_MAJOR_NHD`; of one layer, both, with
/// `NMC_KV_SIDES_PER_BLOCK`; of one head of that with `NMC_KV_HEAD_MAJOR`; of all layers, K and V, with
/// `NMC_KV_BLOCK_MAJOR` (K or V with `NMC_KV_SIDES_SEPARATE`). It must be a multiple of the system's page (4 KiB) or of the
/// device's (2 MiB): `nmc_kv_page_tokens` finds the smallest `tokens_per_block`. A block has one page in each plane; growing
/// by a block maps them all, so layouts with few planes grow cheaper and in smaller steps. Forks and prefixes share whole
/// blocks.
///
/// **When pages are mapped.** By `nmc_kv_open`, `nmc_kv_append`, `nmc_kv_truncate` and `nmc_kv_fork` for the blocks they add,
/// and ahead of need by `nmc_kv_reserve`, also from another thread: an append up to there maps nothing. A closed sequence
/// leaves its addresses, with the free blocks that are mapped there, to the next one. These calls may call CUDA and
/// wait for the driver then, and are not graph-safe; beside their own statuses they can return `NMC_ERR_LIMIT` (too many
/// mappings), `NMC_ERR_CUDA` and `NMC_ERR_NO_MEMORY`, and leave the tokens of the sequence as they were.
///
/// **When pages are unmapped.** When their place is needed for another block: after the tokens there were cut off, or when a
/// later sequence has the addresses. Like freeing memory, `nmc_kv_truncate`, `nmc_kv_close` and `nmc_kv_destroy` may be
/// called when no work uses those tokens any more. Blocks are never exchanged for equal ones of another sequence.
///
/// Not available (`NMC_ERR_UNSUPPORTED`): memory of the program's, `window`, `nmc_kv_table*`, `nmc_kv_slot_mapping`,
/// `nmc_kv_gather`, `nmc_kv_scatter`, `nmc_kv_drop_least`, `nmc_kv_resize`, `nmc_kv_attach_store`. Copies are of addresses: see
/// `nmc_kv_copy_t`.
pub const NMC_KV_VIRTUAL: u32 = 2;

/// Flag of `nmc_kv_open`: the blocks follow each other, so that views are of the sequence alone.
pub const NMC_KV_OPEN_CONTIGUOUS: u32 = 1;
/// Flag of `nmc_kv_open`: neither match blocks nor publish any.
pub const NMC_KV_OPEN_PRIVATE: u32 = 2;
/// Flag of `nmc_kv_open`: the cache may have all tokens. Otherwise at least the last one is left to be computed, since
/// the engine needs its result.
pub const NMC_KV_OPEN_MATCH_ALL: u32 = 4;

/// Flag of `nmc_kv_close`: what was not committed was not computed, and is not published.
pub const NMC_KV_CLOSE_ABORT: u32 = 1;

/// Flag of `nmc_kv_seq_info`: look up in the store how many tokens it has.
pub const NMC_KV_SEQ_STORED: u32 = 1;

/// State of a sequence: in use.
pub const NMC_KV_SEQ_OPEN: u32 = 0;
/// State of a sequence: its blocks were taken to make room.
pub const NMC_KV_SEQ_EVICTED: u32 = 1;

/// Entries of a table are block numbers: vLLM, FlashAttention (`block_table`), FlashMLA.
pub const NMC_KV_TABLE_BLOCKS: u32 = 0;
/// Two rows a sequence, of K and of V: 2 x block and 2 x block + 1, for pools whose blocks hold K and then V, as
/// TensorRT-LLM's block offsets are.
pub const NMC_KV_TABLE_OFFSETS: u32 = 1;

/// Layers with one layout. Start from `NMC_KV_GROUP_INIT`; `layers`, `kv_heads` and `head_dim` must be set, or `layers` and
/// `state_bytes` for `NMC_KV_KIND_RECURRENT`.
///
/// Groups share block numbers: one table serves all of them. A group with a `window`, or of kind `NMC_KV_KIND_RECURRENT`, does not
/// keep every token. It has `blocks` blocks with numbers of its own, which follow its sequences by themselves: blocks that leave
/// the window are free, and a prefix is matched as far as all groups have what comes next. When they run short, blocks of
/// earlier sequences that could be matched go, the one unused longest first; then it is as if the cache were full.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_group_t {
    /// Size of this struct as the caller knows it; in all elements of an array that of the first.
    pub struct_size: u32,
    /// `NMC_KV_KIND_ATTENTION`, `NMC_KV_KIND_MLA` or `NMC_KV_KIND_RECURRENT`.
    pub kind: u32,
    /// One of `NMC_DTYPE_FP32`, `NMC_DTYPE_BF16`, `NMC_DTYPE_FP16`, `NMC_DTYPE_FP8`, `NMC_DTYPE_INT8`, `NMC_DTYPE_RAW`.
    pub dtype: u32,
    /// Bytes of an element of `NMC_DTYPE_RAW`; else 0.
    pub element_bytes: u32,
    /// Layers.
    pub layers: u32,
    /// Heads of K and of V; 1 for `NMC_KV_KIND_MLA`.
    pub kv_heads: u32,
    /// Elements of a head's vector.
    pub head_dim: u32,
    /// Order of the axes: one of `NMC_KV_LAYER_MAJOR`, `NMC_KV_HEAD_MAJOR`, `NMC_KV_LAYER_MAJOR_NHD`,
    /// `NMC_KV_BLOCK_MAJOR`.
    pub order: u32,
    /// Where K and V are among them: one of `NMC_KV_SIDES_SEPARATE`, `NMC_KV_SIDES_PER_LAYER`, `NMC_KV_SIDES_PER_BLOCK`.
    pub sides: u32,
    /// Blocks of its own, with a window or a state; else 0. A sequence needs as many as the window and the tokens of its next
    /// call take, and one more; of states it needs one, and a second while the first is kept for others.
    pub blocks: u32,
    /// `NMC_KV_KIND_RECURRENT`: the state at the end of every so many blocks is kept for later sequences, if a call ends
    /// there. 0: only those for which `nmc_kv_keep_state` is called, and the last one of a sequence.
    pub state_every: u32,
    /// Zero.
    pub reserved0: u32,
    /// Sliding window of these layers in tokens; 0 for none.
    pub window: u64,
    /// `NMC_KV_KIND_RECURRENT`: bytes of the state of one layer; else 0. A block is one state of all layers, called a slot.
    pub state_bytes: u64,
    /// The memory, on host or device: `nmc_kv_heap_bytes` says how much. It is the program's, must stay until the cache
    /// is destroyed, and is touched only by calls that copy blocks. NULL: views hold offsets instead of addresses, except with
    /// `NMC_KV_VIRTUAL`, where it must be NULL.
    pub memory: *mut c_void,
    /// Bytes at `memory`.
    pub memory_bytes: u64,
}

// SAFETY: repr(C), integers and pointers only, no padding; an element of arrays.
unsafe impl Versioned for nmc_kv_group_t {
    const NAME: &'static str = "nmc_kv_group_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            kind: NMC_KV_KIND_ATTENTION,
            dtype: NMC_DTYPE_BF16,
            element_bytes: 0,
            layers: 0,
            kv_heads: 0,
            head_dim: 0,
            order: NMC_KV_LAYER_MAJOR,
            sides: NMC_KV_SIDES_SEPARATE,
            blocks: 0,
            state_every: 0,
            reserved0: 0,
            window: 0,
            state_bytes: 0,
            memory: std::ptr::null_mut(),
            memory_bytes: 0,
        }
    }
}

/// How a KV cache is made. Start from `NMC_KV_CONFIG_INIT`; `total_blocks` or `max_total_tokens` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Number of blocks, or 0 for as many as `max_total_tokens` need.
    pub total_blocks: u32,
    /// Blocks for which there is memory, at least `total_blocks`; 0 for just as many. `nmc_kv_resize` goes up to it.
    pub capacity_blocks: u32,
    /// Tokens of a block. Default 16.
    pub tokens_per_block: u32,
    /// Sequences that can be open at once, up to 2^24; each takes 32 bytes. 0: an eighth of the blocks, 1,024 to 65,536.
    pub max_sequences: u32,
    /// Tokens of all sequences together, if `total_blocks` is 0.
    pub max_total_tokens: u64,
    /// Layouts of the memory; NULL if the cache is to manage block numbers alone.
    pub groups: *const nmc_kv_group_t,
    /// How many.
    pub n_groups: usize,
    /// Sliding window in tokens, of all groups: blocks that the next token's window does not reach are freed as a sequence
    /// grows. 0 for none.
    pub window: u64,
    /// Which cached block goes first: `NMC_EVICT_LRU`, ...
    pub eviction: u32,
    /// What happens when there is no room: `NMC_KV_WHEN_FULL_REJECT`, ...
    pub when_full: u32,
    /// What names blocks by their tokens: `NMC_KV_HASH_BLAKE3`, ...
    pub hash: u32,
    /// `NMC_KV_NO_PREFIX`, `NMC_KV_VIRTUAL`, or 0.
    pub flags: u32,
    /// Secret that goes into all hashes; caches with the same one name the same tokens alike. Empty: a fixed one, the same
    /// everywhere.
    pub hash_secret: nmc_slice_t,
    /// How many events `nmc_kv_events` can look back; 48 bytes each. 0 for none.
    pub event_capacity: u32,
    /// With `NMC_KV_VIRTUAL`: `NMC_HEAP_HOST` (default) or `NMC_HEAP_CUDA`.
    pub heap_kind: u32,
    /// With `NMC_HEAP_CUDA`: the device; -1 for the calling thread's current one.
    pub device: i32,
    /// Zero.
    pub reserved0: u32,
    /// With `NMC_KV_VIRTUAL`: tokens for which every sequence has addresses. 0 for as many as the cache has.
    pub max_sequence_tokens: u64,
    /// In the heap of a world (see `nmc_kv_create`): where the groups begin, a multiple of 4,096.
    pub heap_offset: u64,
}

// SAFETY: repr(C), integers and pointers only, no padding.
unsafe impl Versioned for nmc_kv_config_t {
    const NAME: &'static str = "nmc_kv_config_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            total_blocks: 0,
            capacity_blocks: 0,
            tokens_per_block: 16,
            max_sequences: 0,
            max_total_tokens: 0,
            groups: std::ptr::null(),
            n_groups: 0,
            window: 0,
            eviction: NMC_EVICT_LRU,
            when_full: NMC_KV_WHEN_FULL_REJECT,
            hash: NMC_KV_HASH_BLAKE3,
            flags: 0,
            hash_secret: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            event_capacity: 0,
            heap_kind: NMC_HEAP_HOST,
            device: -1,
            reserved0: 0,
            max_sequence_tokens: 0,
            heap_offset: 0,
        }
    }
}

/// Name of a block of tokens and of all blocks before it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_hash_t {
    /// The hash.
    pub bytes: [u8; 16],
}

/// How a sequence is opened. Start from `NMC_KV_OPEN_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_open_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// `NMC_KV_OPEN_*`, or 0.
    pub flags: u32,
    /// 0 to 15: with `NMC_EVICT_PRIORITY`, its blocks stay longer than those of a lower one.
    pub priority: u32,
    /// How long the priority lasts; 0 for ever.
    pub ttl_ms: u64,
    /// What else must be equal for blocks to be: tenant, LoRA adapter, images.
    pub salt: nmc_slice_t,
    /// A name to find the sequence by with `nmc_kv_find`, 1 to 1,024 bytes; empty for none.
    pub name: nmc_slice_t,
    /// Hashes of its full blocks, if the program computed them; NULL to let the cache do it. With `NMC_KV_HASH_XXH3`
    /// the tokens are needed as well.
    pub hashes: *const nmc_kv_hash_t,
    /// How many: `n_tokens` / `tokens_per_block`.
    pub n_hashes: usize,
    /// Zero.
    pub reserved: [u64; 2],
}

// SAFETY: repr(C), integers and pointers only, no padding.
unsafe impl Versioned for nmc_kv_open_t {
    const NAME: &'static str = "nmc_kv_open_t";
    fn defaults() -> Self {
        let none = nmc_slice_t { ptr: std::ptr::null(), len: 0 };
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            flags: 0,
            priority: 0,
            ttl_ms: 0,
            salt: none,
            name: none,
            hashes: std::ptr::null(),
            n_hashes: 0,
            reserved: [0; 2],
        }
    }
}

/// What a sequence began with. Start from `NMC_KV_OPENED_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_opened_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Zero.
    pub reserved0: u32,
    /// Its id: the program's, or the one that the cache chose for `NMC_KV_ID_AUTO`.
    pub id: u64,
    /// Leading tokens whose blocks the cache had: they need not be computed.
    pub hit_tokens: u64,
    /// Tokens that it has: as many as asked for, or fewer with `NMC_KV_WHEN_FULL_SHORTEN`.
    pub tokens: u64,
}

/// How tokens are appended. Start from `NMC_KV_APPEND_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_append_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// How important the tokens are, which `nmc_kv_drop_least` goes by: a finite number. A block is as important as its most
    /// important token. Default 0, as without options.
    pub importance: f32,
    /// Zero.
    pub flags: u32,
}

// SAFETY: repr(C), numbers only, no padding.
unsafe impl Versioned for nmc_kv_append_t {
    const NAME: &'static str = "nmc_kv_append_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            importance: 0.0,
            flags: 0,
        }
    }
}

/// How much room there was when there was not enough, in blocks. Start from `NMC_KV_ROOM_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_room_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Whose blocks these are: a group with blocks of its own, or `NMC_KV_GROUPS_ALL`.
    pub group: u32,
    /// Blocks that were needed.
    pub needed: u64,
    /// Free blocks.
    pub free: u64,
    /// Cached blocks that no sequence or pin holds; together with the free ones they were not enough.
    pub evictable: u64,
}

/// What is to be copied: a block to another one, or with `NMC_KV_VIRTUAL`, where blocks have no addresses of their own, the
/// bytes of one page. `nmc_kv_copy_blocks` takes either.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_copy_t {
    /// The block to read; -1 if bytes are copied.
    pub from: i32,
    /// The block to write; -1 if bytes are copied.
    pub to: i32,
    /// Of a block: in which groups it is copied, `NMC_KV_GROUPS_ALL` or one with blocks of its own. Of bytes: whose they are.
    pub group: u32,
    /// Zero.
    pub reserved: u32,
    /// The address to read; NULL if a block is copied.
    pub from_address: *const c_void,
    /// The address to write; NULL if a block is copied.
    pub to_address: *mut c_void,
    /// How many bytes; 0 if a block is copied.
    pub bytes: u64,
}

/// What a sequence is. Start from `NMC_KV_SEQ_INFO_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_seq_info_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_KV_SEQ_OPEN` or `NMC_KV_SEQ_EVICTED`.
    pub state: u32,
    /// Tokens that it has.
    pub tokens: u64,
    /// Tokens that it may have.
    pub max_tokens: u64,
    /// Leading tokens that are computed, as far as the calls so far tell.
    pub computed_tokens: u64,
    /// Leading tokens that the store has, if `NMC_KV_SEQ_STORED` asks for it; else 0.
    pub stored_tokens: u64,
    /// Place of the next token in its block: `tokens` modulo `tokens_per_block`.
    pub next_offset_in_block: u32,
    /// Its blocks, with those that were dropped.
    pub blocks: u32,
    /// Blocks that were dropped.
    pub dropped: u32,
    /// Leading blocks that others may hold as well.
    pub shared: u32,
    /// Leading blocks that the prefix index has.
    pub published: u32,
    /// 1 if its blocks follow each other.
    pub contiguous: u32,
    /// Blocks that wait to be copied: 0 if `nmc_kv_take_copies` has nothing.
    pub copies: u32,
    /// Zero.
    pub reserved0: u32,
}

/// The state of a KV cache at one moment. Start from `NMC_KV_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// 1 if no block is free or could be freed by eviction.
    pub is_full: u32,
    /// All blocks: `used` and `idle` and `free` together.
    pub total: u64,
    /// Blocks that sequences and pins hold.
    pub used: u64,
    /// Cached blocks that no sequence or pin holds.
    pub idle: u64,
    /// Free blocks: neither held nor cached.
    pub free: u64,
    /// Blocks that the prefix index has, held or idle.
    pub published: u64,
    /// Open sequences.
    pub sequences: u64,
    /// Tokens that sequences were opened with.
    pub asked_tokens: u64,
    /// Those of them that the cache had.
    pub hit_tokens: u64,
    /// Cached blocks that were evicted to make room.
    pub evicted_blocks: u64,
    /// Sequences that were evicted to make room.
    pub evicted_sequences: u64,
    /// Blocks that were computed twice, of which one was kept.
    pub deduplicated: u64,
    /// Memory of the arena: bytes of all blocks in all groups.
    pub arena_bytes: u64,
    /// Memory of the cache's own records, in bytes.
    pub metadata_bytes: u64,
    /// 1 - the longest free run / the free blocks.
    pub fragmentation: f32,
    /// Zero.
    pub reserved0: u32,
    /// Those evicted sequences whose blocks went to the store first.
    pub moved_sequences: u64,
    /// Zero.
    pub reserved: u64,
}

/// The blocks of one group at one moment. Start from `NMC_KV_GROUP_STATS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_group_stats_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// 1 if its blocks have numbers of their own; else the numbers are those of the cache.
    pub own_blocks: u32,
    /// All blocks: `used` and `idle` and `free` together.
    pub total: u64,
    /// Blocks that sequences and pins hold.
    pub used: u64,
    /// Blocks that a later sequence could use, and that no sequence or pin holds.
    pub idle: u64,
    /// Free blocks: neither held nor kept for later sequences.
    pub free: u64,
    /// Idle blocks that were evicted to make room.
    pub evicted: u64,
    /// Bytes of a block in this group.
    pub block_bytes: u64,
    /// Where it begins in the heap of this rank; `UINT64_MAX` if it is not in one.
    pub heap_offset: u64,
}

/// A 4-D tensor `[blocks, heads, tokens, dim]` in the arena. Start from `NMC_KV_VIEW_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_view_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// Address of element `[0, 0, 0, 0]`; an offset if the group has no memory.
    pub data: *mut c_void,
    /// Lengths of the axes.
    pub shape: [i64; 4],
    /// Distances along the axes, in elements.
    pub strides: [i64; 4],
    /// 1 if the blocks of the view are the sequence's own, in order; 0 if they are all blocks of the layer, and the
    /// block table tells which are the sequence's.
    pub contiguous: u32,
    /// Zero.
    pub reserved0: u32,
}

/// What a row of a dense table holds; the table's owner keeps one for each row, all zero at first, in ordinary memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_row_t {
    /// Known to the library.
    pub uid: u64,
    /// Known to the library.
    pub rewrites: u32,
    /// Entries that were written.
    pub blocks: u32,
}

/// Event: a block can be matched now.
pub const NMC_KV_EVENT_STORED: u32 = 0;
/// Event: a block is no longer there.
pub const NMC_KV_EVENT_REMOVED: u32 = 1;
/// Event: no block is there any more.
pub const NMC_KV_EVENT_CLEARED: u32 = 2;

/// What entered or left the prefix index.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_event_t {
    /// Counts up by one.
    pub number: u64,
    /// `NMC_KV_EVENT_STORED`, `NMC_KV_EVENT_REMOVED` or `NMC_KV_EVENT_CLEARED`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of the block; zero for `NMC_KV_EVENT_CLEARED`.
    pub hash: nmc_kv_hash_t,
    /// For `NMC_KV_EVENT_STORED` the name of the block that it continues; zero if it is a first block.
    pub parent: nmc_kv_hash_t,
}

/// A transfer waits for nothing: the cache lies in host memory, and the program has written it.
pub const NMC_KV_AFTER_NOTHING: u32 = 0;
/// A transfer waits for what is on a stream now; `handle` is the stream.
pub const NMC_KV_AFTER_STREAM: u32 = 1;
/// A transfer waits for an event; `handle` is a `cudaEvent_t` that stays until the transfer is over.
pub const NMC_KV_AFTER_EVENT: u32 = 2;

/// Flag of `nmc_kv_onboard`: fetch all tokens. Otherwise at least the last one is left to be computed.
pub const NMC_KV_ONBOARD_ALL: u32 = 1;
/// Flag of `nmc_kv_onboard`: a layer of all blocks after the other, so that computing can begin with the first layers
/// (`layers_done`); blocks are complete only at the end.
pub const NMC_KV_ONBOARD_BY_LAYER: u32 = 2;

/// What a transfer waits for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_after_t {
    /// `NMC_KV_AFTER_NOTHING`, `NMC_KV_AFTER_STREAM` or `NMC_KV_AFTER_EVENT`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The stream or the event.
    pub handle: *mut c_void,
}

/// How far a transfer is. Start from `NMC_KV_PROGRESS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_kv_progress_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// Leading layers, counted through all groups, that have come in all blocks.
    pub layers_done: u32,
    /// Tokens of its blocks.
    pub tokens: u64,
    /// Those of the leading blocks that are done.
    pub tokens_done: u64,
}
