//! Sizes, offsets and defaults of the C structs as Rust sees them. `nmc abi` prints this table and ctest compares it
//! with what a C compiler makes of the header.

use super::basic::nmc_slice_t;
use super::blocks::{nmc_block_run_t, nmc_blocks_config_t, nmc_blocks_stats_t};
use super::config::Config as _;
use super::ep_types::{
    nmc_ep_bytes_t, nmc_ep_config_t, nmc_ep_dispatch_t, nmc_ep_gemm_t, nmc_ep_grouped_t, nmc_ep_moe_t, nmc_ep_recv_t,
};
use super::kv_types::{
    nmc_kv_after_t, nmc_kv_config_t, nmc_kv_copy_t, nmc_kv_event_t, nmc_kv_group_stats_t, nmc_kv_group_t,
    nmc_kv_hash_t, nmc_kv_move_t, nmc_kv_open_t, nmc_kv_opened_t, nmc_kv_progress_t, nmc_kv_room_t, nmc_kv_row_t,
    nmc_kv_seq_info_t, nmc_kv_stats_t, nmc_kv_view_t,
};
use super::store_types::{
    nmc_buffer_t, nmc_completion_t, nmc_extent_t, nmc_object_meta_t, nmc_put_options_t, nmc_retry_hint_t,
    nmc_store_config_t, nmc_store_rank_stats_t, nmc_store_stats_t, nmc_view_t, nmc_write_plan_t,
};
use super::world_types::{nmc_memory_t, nmc_rank_info_t, nmc_world_config_t, nmc_world_info_t};
use std::fmt::Write as _;
use std::mem::offset_of;

macro_rules! describe {
    ($text:ident, $($name:ident { $($field:ident),* $(,)? })*) => {$(
        let _ = writeln!($text, "{} size {} align {}", stringify!($name), size_of::<$name>(), align_of::<$name>());
        $(let _ = writeln!($text, "{}.{} {}", stringify!($name), stringify!($field), offset_of!($name, $field));)*
    )*};
}

/// One line per struct and field, then the default config as bytes.
#[must_use]
pub fn table() -> String {
    let mut text = String::new();
    describe! { text,
        nmc_slice_t { ptr, len }
        nmc_memory_t { kind, fd, ptr }
        nmc_world_config_t {
            struct_size, abi_version, name, dir, rank, world_size, heap_bytes, heap_kind, heap_flags, heap_import,
            device, device_rank, words_per_rank, master, join_timeout_ms, drain_ms, service_cpu, reserved,
        }
        nmc_world_info_t {
            struct_size, rank, world_size, heap_kind, heap_bytes, world_id, heap_flags, words_per_rank, master_up,
            reserved,
        }
        nmc_rank_info_t { struct_size, state, generation, pid, device, heap_base, device_rank, reserved }
        nmc_store_config_t { struct_size, abi_version, heap_bytes, heap_offset, key_slab_bytes, page_bytes, max_objects, pin_slots, eviction, flags, master_rank, high_permille, low_permille, watchdog_ms, world_size, heap_kind, device, attach_timeout_ms, call_timeout_ms, reserved }
        nmc_put_options_t { struct_size, abi_version, preferred_segment, flags, retain, priority, ttl_ms, metadata, metadata_each, reserved }
        nmc_write_plan_t { key_hash, plan_id, epoch, bytes_total, payload, payload_device, header, publish_word, publish_word_device, dst_rank, page_bytes, n_pages, last_page_bytes, n_extents, index, reserved }
        nmc_object_meta_t { key_hash, epoch, bytes_total, payload, header, owner_rank, page_bytes, n_pages, last_page_bytes, n_extents, index, reserved }
        nmc_view_t { data, data_device, bytes, epoch, ready_pages, n_extents, owner_rank, page_bytes, index, slot, nonce }
        nmc_extent_t { ptr, device_ptr, bytes }
        nmc_buffer_t { ptr, len }
        nmc_completion_t { token, status, lost }
        nmc_retry_hint_t { struct_size, reserved, retry_after_us, free_bytes, largest_free_bytes, waiting_bytes, ready_count }
        nmc_store_rank_stats_t { struct_size, reserved, bytes_used, bytes_total, ready_count, writing_count, evict_count, oom_count, evict_in_use_retry, stuck_put_reclaimed, quarantined_bytes, limbo_bytes, free_runs, largest_free_bytes }
        nmc_store_stats_t { struct_size, n_ranks, bytes_used, bytes_total, ready_count, writing_count, evict_count, oom_count, evict_in_use_retry, stuck_put_reclaimed, quarantined_bytes, limbo_bytes, free_runs, largest_free_bytes, t_plan_us, bytes_tx, bytes_rx, puts, bytes_written, get_hits, get_misses, bytes_read, hit_permille, put_p50_ns, put_p99_ns, get_p50_ns, get_p99_ns, metadata_bytes, master_bytes, master_up }
        nmc_ep_config_t { struct_size, abi_version, members, heap_offset, t_cap, hidden, top_k, experts, dtype, dispatch, weights, max_m, spill_groups, buffer_sets, blocks, flags, deadline_ms, first_phase, reserved0, reserved }
        nmc_ep_bytes_t { transport, grouped_x, grouped_scales, grouped_y, masked_m, row_of, row_index, workspace }
        nmc_ep_dispatch_t { struct_size, abi_version, x, scales, topk_idx, topk_w, n_tokens_ptr, n_tokens, layer, idx_is_64, reserved }
        nmc_ep_recv_t { x, scales, local_eid, weights, records, y, record_stride, reserved }
        nmc_ep_grouped_t { x, scales, masked_m, group_expert, row_of, row_index }
        nmc_ep_gemm_t { a, a_scales, b, c, masked_m, group_expert, groups, max_m, n, k, which, expected_m }
        nmc_ep_moe_t { struct_size, abi_version, w13, w2, workspace, workspace_bytes, out, gemm, gemm_user, inner, reserved }
        nmc_blocks_config_t { struct_size, abi_version, total_blocks, strategy, reserved }
        nmc_block_run_t { first, count }
        nmc_blocks_stats_t { struct_size, strategy, total, used, free, largest_run, free_runs, fragmentation, waiting, ready, bytes, reserved }
        nmc_kv_group_t { kind, dtype, element_bytes, layers, kv_heads, head_dim, order, sides, memory, memory_bytes, state_bytes, window, blocks, state_every, reserved0, reserved }
        nmc_kv_config_t { struct_size, abi_version, total_blocks, tokens_per_block, max_total_tokens, capacity_blocks, max_sequences, groups, n_groups, window, strategy, eviction, when_full, hash, flags, event_capacity, hash_secret, heap_kind, device, max_sequence_tokens, reserved1, world, heap_offset }
        nmc_kv_hash_t { bytes }
        nmc_kv_open_t { struct_size, abi_version, flags, priority, ttl_ms, reserved0, salt, name, hashes, n_hashes, reserved }
        nmc_kv_opened_t { hit_tokens, tokens }
        nmc_kv_group_stats_t { struct_size, own_blocks, total, used, idle, free, evicted, block_bytes, heap_offset }
        nmc_kv_room_t { needed, free, evictable, group, reserved }
        nmc_kv_copy_t { from, to, group }
        nmc_kv_move_t { from, to, bytes }
        nmc_kv_seq_info_t { struct_size, state, tokens, next_offset_in_block, max_tokens, blocks, dropped, shared, published, contiguous, copies, computed }
        nmc_kv_stats_t { struct_size, is_full, total, used, idle, free, published, sequences, asked_tokens, hit_tokens, evicted_blocks, evicted_sequences, deduplicated, arena_bytes, metadata_bytes, fragmentation, reserved0, moved_sequences, reserved }
        nmc_kv_view_t { data, shape, strides, element_bytes, contiguous }
        nmc_kv_row_t { uid, rewrites, blocks }
        nmc_kv_event_t { number, kind, reserved, hash, parent }
        nmc_kv_after_t { kind, reserved, handle }
        nmc_kv_progress_t { tokens, tokens_done, layers_done, reserved }
    }
    initialiser(&mut text, "NMC_WORLD_CONFIG_INIT", &nmc_world_config_t::defaults());
    initialiser(&mut text, "NMC_STORE_CONFIG_INIT", &nmc_store_config_t::defaults());
    initialiser(&mut text, "NMC_PUT_OPTIONS_INIT", &nmc_put_options_t::defaults());
    initialiser(&mut text, "NMC_EP_CONFIG_INIT", &nmc_ep_config_t::defaults());
    initialiser(&mut text, "NMC_EP_DISPATCH_INIT", &nmc_ep_dispatch_t::defaults());
    initialiser(&mut text, "NMC_EP_MOE_INIT", &nmc_ep_moe_t::defaults());
    initialiser(&mut text, "NMC_BLOCKS_CONFIG_INIT", &nmc_blocks_config_t::defaults());
    initialiser(&mut text, "NMC_KV_CONFIG_INIT", &nmc_kv_config_t::defaults());
    initialiser(&mut text, "NMC_KV_OPEN_INIT", &nmc_kv_open_t::defaults());
    text
}

/// The bytes of a default config.
fn initialiser<C: super::config::Config>(text: &mut String, name: &str, config: &C) {
    // SAFETY: the config has no padding (trait contract of Config), so all of its bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(config).cast::<u8>(), size_of_val(config)) };
    text.push_str(name);
    for byte in bytes {
        let _ = write!(text, " {byte:02x}");
    }
    text.push('\n');
}
