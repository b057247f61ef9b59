/*
 * Sizes, offsets and defaults of the public structs as a C compiler sees them, in the format of `nmc abi`
 * (src/ffi/abi.rs), which is what Rust sees. A struct or field that is added there is added here.
 */
#include <nanomc.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define STRUCT(name) printf(#name " size %zu align %zu\n", sizeof(name), _Alignof(name))
#define FIELD(name, field) printf(#name "." #field " %zu\n", offsetof(name, field))

static void init_bytes(const char *name, const void *value, size_t size) {
  const unsigned char *bytes = value;
  printf("%s", name);
  for (size_t i = 0; i < size; ++i) printf(" %02x", bytes[i]);
  printf("\n");
}

int main(void) {
  STRUCT(nmc_slice_t);
  FIELD(nmc_slice_t, ptr);
  FIELD(nmc_slice_t, len);

  STRUCT(nmc_memory_t);
  FIELD(nmc_memory_t, kind);
  FIELD(nmc_memory_t, fd);
  FIELD(nmc_memory_t, ptr);

  STRUCT(nmc_world_config_t);
  FIELD(nmc_world_config_t, struct_size);
  FIELD(nmc_world_config_t, abi_version);
  FIELD(nmc_world_config_t, name);
  FIELD(nmc_world_config_t, dir);
  FIELD(nmc_world_config_t, rank);
  FIELD(nmc_world_config_t, world_size);
  FIELD(nmc_world_config_t, heap_bytes);
  FIELD(nmc_world_config_t, heap_kind);
  FIELD(nmc_world_config_t, heap_flags);
  FIELD(nmc_world_config_t, heap_import);
  FIELD(nmc_world_config_t, device);
  FIELD(nmc_world_config_t, device_rank);
  FIELD(nmc_world_config_t, words_per_rank);
  FIELD(nmc_world_config_t, master);
  FIELD(nmc_world_config_t, join_timeout_ms);
  FIELD(nmc_world_config_t, drain_ms);
  FIELD(nmc_world_config_t, service_cpu);
  FIELD(nmc_world_config_t, reserved);

  STRUCT(nmc_world_info_t);
  FIELD(nmc_world_info_t, struct_size);
  FIELD(nmc_world_info_t, rank);
  FIELD(nmc_world_info_t, world_size);
  FIELD(nmc_world_info_t, heap_kind);
  FIELD(nmc_world_info_t, heap_bytes);
  FIELD(nmc_world_info_t, world_id);
  FIELD(nmc_world_info_t, heap_flags);
  FIELD(nmc_world_info_t, words_per_rank);
  FIELD(nmc_world_info_t, master_up);
  FIELD(nmc_world_info_t, reserved);

  STRUCT(nmc_rank_info_t);
  FIELD(nmc_rank_info_t, struct_size);
  FIELD(nmc_rank_info_t, state);
  FIELD(nmc_rank_info_t, generation);
  FIELD(nmc_rank_info_t, pid);
  FIELD(nmc_rank_info_t, device);
  FIELD(nmc_rank_info_t, heap_base);
  FIELD(nmc_rank_info_t, device_rank);
  FIELD(nmc_rank_info_t, reserved);

  STRUCT(nmc_store_config_t);
  FIELD(nmc_store_config_t, struct_size);
  FIELD(nmc_store_config_t, abi_version);
  FIELD(nmc_store_config_t, heap_bytes);
  FIELD(nmc_store_config_t, heap_offset);
  FIELD(nmc_store_config_t, key_slab_bytes);
  FIELD(nmc_store_config_t, page_bytes);
  FIELD(nmc_store_config_t, max_objects);
  FIELD(nmc_store_config_t, pin_slots);
  FIELD(nmc_store_config_t, eviction);
  FIELD(nmc_store_config_t, flags);
  FIELD(nmc_store_config_t, master_rank);
  FIELD(nmc_store_config_t, high_permille);
  FIELD(nmc_store_config_t, low_permille);
  FIELD(nmc_store_config_t, watchdog_ms);
  FIELD(nmc_store_config_t, world_size);
  FIELD(nmc_store_config_t, heap_kind);
  FIELD(nmc_store_config_t, device);
  FIELD(nmc_store_config_t, attach_timeout_ms);
  FIELD(nmc_store_config_t, call_timeout_ms);
  FIELD(nmc_store_config_t, reserved);

  STRUCT(nmc_put_options_t);
  FIELD(nmc_put_options_t, struct_size);
  FIELD(nmc_put_options_t, abi_version);
  FIELD(nmc_put_options_t, preferred_segment);
  FIELD(nmc_put_options_t, flags);
  FIELD(nmc_put_options_t, retain);
  FIELD(nmc_put_options_t, priority);
  FIELD(nmc_put_options_t, ttl_ms);
  FIELD(nmc_put_options_t, metadata);
  FIELD(nmc_put_options_t, metadata_each);
  FIELD(nmc_put_options_t, reserved);

  STRUCT(nmc_write_plan_t);
  FIELD(nmc_write_plan_t, key_hash);
  FIELD(nmc_write_plan_t, plan_id);
  FIELD(nmc_write_plan_t, epoch);
  FIELD(nmc_write_plan_t, bytes_total);
  FIELD(nmc_write_plan_t, payload);
  FIELD(nmc_write_plan_t, payload_device);
  FIELD(nmc_write_plan_t, header);
  FIELD(nmc_write_plan_t, publish_word);
  FIELD(nmc_write_plan_t, publish_word_device);
  FIELD(nmc_write_plan_t, dst_rank);
  FIELD(nmc_write_plan_t, page_bytes);
  FIELD(nmc_write_plan_t, n_pages);
  FIELD(nmc_write_plan_t, last_page_bytes);
  FIELD(nmc_write_plan_t, n_extents);
  FIELD(nmc_write_plan_t, index);
  FIELD(nmc_write_plan_t, reserved);

  STRUCT(nmc_object_meta_t);
  FIELD(nmc_object_meta_t, key_hash);
  FIELD(nmc_object_meta_t, epoch);
  FIELD(nmc_object_meta_t, bytes_total);
  FIELD(nmc_object_meta_t, payload);
  FIELD(nmc_object_meta_t, header);
  FIELD(nmc_object_meta_t, owner_rank);
  FIELD(nmc_object_meta_t, page_bytes);
  FIELD(nmc_object_meta_t, n_pages);
  FIELD(nmc_object_meta_t, last_page_bytes);
  FIELD(nmc_object_meta_t, n_extents);
  FIELD(nmc_object_meta_t, index);
  FIELD(nmc_object_meta_t, reserved);

  STRUCT(nmc_view_t);
  FIELD(nmc_view_t, data);
  FIELD(nmc_view_t, data_device);
  FIELD(nmc_view_t, bytes);
  FIELD(nmc_view_t, epoch);
  FIELD(nmc_view_t, ready_pages);
  FIELD(nmc_view_t, n_extents);
  FIELD(nmc_view_t, owner_rank);
  FIELD(nmc_view_t, page_bytes);
  FIELD(nmc_view_t, index);
  FIELD(nmc_view_t, slot);
  FIELD(nmc_view_t, nonce);

  STRUCT(nmc_extent_t);
  FIELD(nmc_extent_t, ptr);
  FIELD(nmc_extent_t, device_ptr);
  FIELD(nmc_extent_t, bytes);

  STRUCT(nmc_buffer_t);
  FIELD(nmc_buffer_t, ptr);
  FIELD(nmc_buffer_t, len);

  STRUCT(nmc_completion_t);
  FIELD(nmc_completion_t, token);
  FIELD(nmc_completion_t, status);
  FIELD(nmc_completion_t, lost);

  STRUCT(nmc_retry_hint_t);
  FIELD(nmc_retry_hint_t, struct_size);
  FIELD(nmc_retry_hint_t, reserved);
  FIELD(nmc_retry_hint_t, retry_after_us);
  FIELD(nmc_retry_hint_t, free_bytes);
  FIELD(nmc_retry_hint_t, largest_free_bytes);
  FIELD(nmc_retry_hint_t, waiting_bytes);
  FIELD(nmc_retry_hint_t, ready_count);

  STRUCT(nmc_store_rank_stats_t);
  FIELD(nmc_store_rank_stats_t, struct_size);
  FIELD(nmc_store_rank_stats_t, reserved);
  FIELD(nmc_store_rank_stats_t, bytes_used);
  FIELD(nmc_store_rank_stats_t, bytes_total);
  FIELD(nmc_store_rank_stats_t, ready_count);
  FIELD(nmc_store_rank_stats_t, writing_count);
  FIELD(nmc_store_rank_stats_t, evict_count);
  FIELD(nmc_store_rank_stats_t, oom_count);
  FIELD(nmc_store_rank_stats_t, evict_in_use_retry);
  FIELD(nmc_store_rank_stats_t, stuck_put_reclaimed);
  FIELD(nmc_store_rank_stats_t, quarantined_bytes);
  FIELD(nmc_store_rank_stats_t, limbo_bytes);
  FIELD(nmc_store_rank_stats_t, free_runs);
  FIELD(nmc_store_rank_stats_t, largest_free_bytes);

  STRUCT(nmc_store_stats_t);
  FIELD(nmc_store_stats_t, struct_size);
  FIELD(nmc_store_stats_t, n_ranks);
  FIELD(nmc_store_stats_t, bytes_used);
  FIELD(nmc_store_stats_t, bytes_total);
  FIELD(nmc_store_stats_t, ready_count);
  FIELD(nmc_store_stats_t, writing_count);
  FIELD(nmc_store_stats_t, evict_count);
  FIELD(nmc_store_stats_t, oom_count);
  FIELD(nmc_store_stats_t, evict_in_use_retry);
  FIELD(nmc_store_stats_t, stuck_put_reclaimed);
  FIELD(nmc_store_stats_t, quarantined_bytes);
  FIELD(nmc_store_stats_t, limbo_bytes);
  FIELD(nmc_store_stats_t, free_runs);
  FIELD(nmc_store_stats_t, largest_free_bytes);
  FIELD(nmc_store_stats_t, t_plan_us);
  FIELD(nmc_store_stats_t, bytes_tx);
  FIELD(nmc_store_stats_t, bytes_rx);
  FIELD(nmc_store_stats_t, puts);
  FIELD(nmc_store_stats_t, bytes_written);
  FIELD(nmc_store_stats_t, get_hits);
  FIELD(nmc_store_stats_t, get_misses);
  FIELD(nmc_store_stats_t, bytes_read);
  FIELD(nmc_store_stats_t, hit_permille);
  FIELD(nmc_store_stats_t, put_p50_ns);
  FIELD(nmc_store_stats_t, put_p99_ns);
  FIELD(nmc_store_stats_t, get_p50_ns);
  FIELD(nmc_store_stats_t, get_p99_ns);
  FIELD(nmc_store_stats_t, metadata_bytes);
  FIELD(nmc_store_stats_t, master_bytes);
  FIELD(nmc_store_stats_t, master_up);

  STRUCT(nmc_ep_config_t);
  FIELD(nmc_ep_config_t, struct_size);
  FIELD(nmc_ep_config_t, abi_version);
  FIELD(nmc_ep_config_t, members);
  FIELD(nmc_ep_config_t, heap_offset);
  FIELD(nmc_ep_config_t, t_cap);
  FIELD(nmc_ep_config_t, hidden);
  FIELD(nmc_ep_config_t, top_k);
  FIELD(nmc_ep_config_t, experts);
  FIELD(nmc_ep_config_t, dtype);
  FIELD(nmc_ep_config_t, dispatch);
  FIELD(nmc_ep_config_t, weights);
  FIELD(nmc_ep_config_t, max_m);
  FIELD(nmc_ep_config_t, spill_groups);
  FIELD(nmc_ep_config_t, buffer_sets);
  FIELD(nmc_ep_config_t, blocks);
  FIELD(nmc_ep_config_t, flags);
  FIELD(nmc_ep_config_t, deadline_ms);
  FIELD(nmc_ep_config_t, first_phase);
  FIELD(nmc_ep_config_t, reserved0);
  FIELD(nmc_ep_config_t, reserved);

  STRUCT(nmc_ep_bytes_t);
  FIELD(nmc_ep_bytes_t, transport);
  FIELD(nmc_ep_bytes_t, grouped_x);
  FIELD(nmc_ep_bytes_t, grouped_scales);
  FIELD(nmc_ep_bytes_t, grouped_y);
  FIELD(nmc_ep_bytes_t, masked_m);
  FIELD(nmc_ep_bytes_t, row_of);
  FIELD(nmc_ep_bytes_t, row_index);
  FIELD(nmc_ep_bytes_t, workspace);

  STRUCT(nmc_ep_dispatch_t);
  FIELD(nmc_ep_dispatch_t, struct_size);
  FIELD(nmc_ep_dispatch_t, abi_version);
  FIELD(nmc_ep_dispatch_t, x);
  FIELD(nmc_ep_dispatch_t, scales);
  FIELD(nmc_ep_dispatch_t, topk_idx);
  FIELD(nmc_ep_dispatch_t, topk_w);
  FIELD(nmc_ep_dispatch_t, n_tokens_ptr);
  FIELD(nmc_ep_dispatch_t, n_tokens);
  FIELD(nmc_ep_dispatch_t, layer);
  FIELD(nmc_ep_dispatch_t, idx_is_64);
  FIELD(nmc_ep_dispatch_t, reserved);

  STRUCT(nmc_ep_recv_t);
  FIELD(nmc_ep_recv_t, x);
  FIELD(nmc_ep_recv_t, scales);
  FIELD(nmc_ep_recv_t, local_eid);
  FIELD(nmc_ep_recv_t, weights);
  FIELD(nmc_ep_recv_t, records);
  FIELD(nmc_ep_recv_t, y);
  FIELD(nmc_ep_recv_t, record_stride);
  FIELD(nmc_ep_recv_t, reserved);

  STRUCT(nmc_ep_grouped_t);
  FIELD(nmc_ep_grouped_t, x);
  FIELD(nmc_ep_grouped_t, scales);
  FIELD(nmc_ep_grouped_t, masked_m);
  FIELD(nmc_ep_grouped_t, group_expert);
  FIELD(nmc_ep_grouped_t, row_of);
  FIELD(nmc_ep_grouped_t, row_index);

  STRUCT(nmc_ep_gemm_t);
  FIELD(nmc_ep_gemm_t, a);
  FIELD(nmc_ep_gemm_t, a_scales);
  FIELD(nmc_ep_gemm_t, b);
  FIELD(nmc_ep_gemm_t, c);
  FIELD(nmc_ep_gemm_t, masked_m);
  FIELD(nmc_ep_gemm_t, group_expert);
  FIELD(nmc_ep_gemm_t, groups);
  FIELD(nmc_ep_gemm_t, max_m);
  FIELD(nmc_ep_gemm_t, n);
  FIELD(nmc_ep_gemm_t, k);
  FIELD(nmc_ep_gemm_t, which);
  FIELD(nmc_ep_gemm_t, expected_m);

  STRUCT(nmc_ep_moe_t);
  FIELD(nmc_ep_moe_t, struct_size);
  FIELD(nmc_ep_moe_t, abi_version);
  FIELD(nmc_ep_moe_t, w13);
  FIELD(nmc_ep_moe_t, w2);
  FIELD(nmc_ep_moe_t, workspace);
  FIELD(nmc_ep_moe_t, workspace_bytes);
  FIELD(nmc_ep_moe_t, out);
  FIELD(nmc_ep_moe_t, gemm);
  FIELD(nmc_ep_moe_t, gemm_user);
  FIELD(nmc_ep_moe_t, inner);
  FIELD(nmc_ep_moe_t, reserved);

  STRUCT(nmc_blocks_config_t);
  FIELD(nmc_blocks_config_t, struct_size);
  FIELD(nmc_blocks_config_t, abi_version);
  FIELD(nmc_blocks_config_t, total_blocks);
  FIELD(nmc_blocks_config_t, strategy);
  FIELD(nmc_blocks_config_t, reserved);

  STRUCT(nmc_block_run_t);
  FIELD(nmc_block_run_t, first);
  FIELD(nmc_block_run_t, count);

  STRUCT(nmc_blocks_stats_t);
  FIELD(nmc_blocks_stats_t, struct_size);
  FIELD(nmc_blocks_stats_t, strategy);
  FIELD(nmc_blocks_stats_t, total);
  FIELD(nmc_blocks_stats_t, used);
  FIELD(nmc_blocks_stats_t, free);
  FIELD(nmc_blocks_stats_t, largest_run);
  FIELD(nmc_blocks_stats_t, free_runs);
  FIELD(nmc_blocks_stats_t, fragmentation);
  FIELD(nmc_blocks_stats_t, waiting);
  FIELD(nmc_blocks_stats_t, ready);
  FIELD(nmc_blocks_stats_t, bytes);
  FIELD(nmc_blocks_stats_t, reserved);

  STRUCT(nmc_kv_group_t);
  FIELD(nmc_kv_group_t, kind);
  FIELD(nmc_kv_group_t, dtype);
  FIELD(nmc_kv_group_t, element_bytes);
  FIELD(nmc_kv_group_t, layers);
  FIELD(nmc_kv_group_t, kv_heads);
  FIELD(nmc_kv_group_t, head_dim);
  FIELD(nmc_kv_group_t, order);
  FIELD(nmc_kv_group_t, sides);
  FIELD(nmc_kv_group_t, memory);
  FIELD(nmc_kv_group_t, memory_bytes);
  FIELD(nmc_kv_group_t, state_bytes);
  FIELD(nmc_kv_group_t, window);
  FIELD(nmc_kv_group_t, blocks);
  FIELD(nmc_kv_group_t, state_every);
  FIELD(nmc_kv_group_t, reserved0);
  FIELD(nmc_kv_group_t, reserved);

  STRUCT(nmc_kv_config_t);
  FIELD(nmc_kv_config_t, struct_size);
  FIELD(nmc_kv_config_t, abi_version);
  FIELD(nmc_kv_config_t, total_blocks);
  FIELD(nmc_kv_config_t, tokens_per_block);
  FIELD(nmc_kv_config_t, max_total_tokens);
  FIELD(nmc_kv_config_t, capacity_blocks);
  FIELD(nmc_kv_config_t, max_sequences);
  FIELD(nmc_kv_config_t, groups);
  FIELD(nmc_kv_config_t, n_groups);
  FIELD(nmc_kv_config_t, window);
  FIELD(nmc_kv_config_t, strategy);
  FIELD(nmc_kv_config_t, eviction);
  FIELD(nmc_kv_config_t, when_full);
  FIELD(nmc_kv_config_t, hash);
  FIELD(nmc_kv_config_t, flags);
  FIELD(nmc_kv_config_t, event_capacity);
  FIELD(nmc_kv_config_t, hash_secret);
  FIELD(nmc_kv_config_t, heap_kind);
  FIELD(nmc_kv_config_t, device);
  FIELD(nmc_kv_config_t, max_sequence_tokens);
  FIELD(nmc_kv_config_t, reserved1);
  FIELD(nmc_kv_config_t, world);
  FIELD(nmc_kv_config_t, heap_offset);

  STRUCT(nmc_kv_hash_t);
  FIELD(nmc_kv_hash_t, bytes);

  STRUCT(nmc_kv_open_t);
  FIELD(nmc_kv_open_t, struct_size);
  FIELD(nmc_kv_open_t, abi_version);
  FIELD(nmc_kv_open_t, flags);
  FIELD(nmc_kv_open_t, priority);
  FIELD(nmc_kv_open_t, ttl_ms);
  FIELD(nmc_kv_open_t, reserved0);
  FIELD(nmc_kv_open_t, salt);
  FIELD(nmc_kv_open_t, name);
  FIELD(nmc_kv_open_t, hashes);
  FIELD(nmc_kv_open_t, n_hashes);
  FIELD(nmc_kv_open_t, reserved);

  STRUCT(nmc_kv_opened_t);
  FIELD(nmc_kv_opened_t, hit_tokens);
  FIELD(nmc_kv_opened_t, tokens);

  STRUCT(nmc_kv_group_stats_t);
  FIELD(nmc_kv_group_stats_t, struct_size);
  FIELD(nmc_kv_group_stats_t, own_blocks);
  FIELD(nmc_kv_group_stats_t, total);
  FIELD(nmc_kv_group_stats_t, used);
  FIELD(nmc_kv_group_stats_t, idle);
  FIELD(nmc_kv_group_stats_t, free);
  FIELD(nmc_kv_group_stats_t, evicted);
  FIELD(nmc_kv_group_stats_t, block_bytes);
  FIELD(nmc_kv_group_stats_t, heap_offset);

  STRUCT(nmc_kv_room_t);
  FIELD(nmc_kv_room_t, needed);
  FIELD(nmc_kv_room_t, free);
  FIELD(nmc_kv_room_t, evictable);
  FIELD(nmc_kv_room_t, group);
  FIELD(nmc_kv_room_t, reserved);

  STRUCT(nmc_kv_copy_t);
  FIELD(nmc_kv_copy_t, from);
  FIELD(nmc_kv_copy_t, to);
  FIELD(nmc_kv_copy_t, group);

  STRUCT(nmc_kv_move_t);
  FIELD(nmc_kv_move_t, from);
  FIELD(nmc_kv_move_t, to);
  FIELD(nmc_kv_move_t, bytes);

  STRUCT(nmc_kv_seq_info_t);
  FIELD(nmc_kv_seq_info_t, struct_size);
  FIELD(nmc_kv_seq_info_t, state);
  FIELD(nmc_kv_seq_info_t, tokens);
  FIELD(nmc_kv_seq_info_t, next_offset_in_block);
  FIELD(nmc_kv_seq_info_t, max_tokens);
  FIELD(nmc_kv_seq_info_t, blocks);
  FIELD(nmc_kv_seq_info_t, dropped);
  FIELD(nmc_kv_seq_info_t, shared);
  FIELD(nmc_kv_seq_info_t, published);
  FIELD(nmc_kv_seq_info_t, contiguous);
  FIELD(nmc_kv_seq_info_t, copies);
  FIELD(nmc_kv_seq_info_t, computed);

  STRUCT(nmc_kv_stats_t);
  FIELD(nmc_kv_stats_t, struct_size);
  FIELD(nmc_kv_stats_t, is_full);
  FIELD(nmc_kv_stats_t, total);
  FIELD(nmc_kv_stats_t, used);
  FIELD(nmc_kv_stats_t, idle);
  FIELD(nmc_kv_stats_t, free);
  FIELD(nmc_kv_stats_t, published);
  FIELD(nmc_kv_stats_t, sequences);
  FIELD(nmc_kv_stats_t, asked_tokens);
  FIELD(nmc_kv_stats_t, hit_tokens);
  FIELD(nmc_kv_stats_t, evicted_blocks);
  FIELD(nmc_kv_stats_t, evicted_sequences);
  FIELD(nmc_kv_stats_t, deduplicated);
  FIELD(nmc_kv_stats_t, arena_bytes);
  FIELD(nmc_kv_stats_t, metadata_bytes);
  FIELD(nmc_kv_stats_t, fragmentation);
  FIELD(nmc_kv_stats_t, reserved0);
  FIELD(nmc_kv_stats_t, moved_sequences);
  FIELD(nmc_kv_stats_t, reserved);

  STRUCT(nmc_kv_view_t);
  FIELD(nmc_kv_view_t, data);
  FIELD(nmc_kv_view_t, shape);
  FIELD(nmc_kv_view_t, strides);
  FIELD(nmc_kv_view_t, element_bytes);
  FIELD(nmc_kv_view_t, contiguous);

  STRUCT(nmc_kv_row_t);
  FIELD(nmc_kv_row_t, uid);
  FIELD(nmc_kv_row_t, rewrites);
  FIELD(nmc_kv_row_t, blocks);

  STRUCT(nmc_kv_event_t);
  FIELD(nmc_kv_event_t, number);
  FIELD(nmc_kv_event_t, kind);
  FIELD(nmc_kv_event_t, reserved);
  FIELD(nmc_kv_event_t, hash);
  FIELD(nmc_kv_event_t, parent);

  STRUCT(nmc_kv_after_t);
  FIELD(nmc_kv_after_t, kind);
  FIELD(nmc_kv_after_t, reserved);
  FIELD(nmc_kv_after_t, handle);

  STRUCT(nmc_kv_progress_t);
  FIELD(nmc_kv_progress_t, tokens);
  FIELD(nmc_kv_progress_t, tokens_done);
  FIELD(nmc_kv_progress_t, layers_done);
  FIELD(nmc_kv_progress_t, reserved);

  /* Static, so that padding, were there any, is zero. */
  static const nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  init_bytes("NMC_WORLD_CONFIG_INIT", &config, sizeof config);
  static const nmc_store_config_t store = NMC_STORE_CONFIG_INIT;
  init_bytes("NMC_STORE_CONFIG_INIT", &store, sizeof store);
  static const nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  init_bytes("NMC_PUT_OPTIONS_INIT", &options, sizeof options);
  static const nmc_ep_config_t ep_config = NMC_EP_CONFIG_INIT;
  init_bytes("NMC_EP_CONFIG_INIT", &ep_config, sizeof ep_config);
  static const nmc_ep_dispatch_t ep_dispatch = NMC_EP_DISPATCH_INIT;
  init_bytes("NMC_EP_DISPATCH_INIT", &ep_dispatch, sizeof ep_dispatch);
  static const nmc_ep_moe_t ep_moe = NMC_EP_MOE_INIT;
  init_bytes("NMC_EP_MOE_INIT", &ep_moe, sizeof ep_moe);
  static const nmc_blocks_config_t blocks = NMC_BLOCKS_CONFIG_INIT;
  init_bytes("NMC_BLOCKS_CONFIG_INIT", &blocks, sizeof blocks);
  static const nmc_kv_config_t kv = NMC_KV_CONFIG_INIT;
  init_bytes("NMC_KV_CONFIG_INIT", &kv, sizeof kv);
  static const nmc_kv_open_t kv_open = NMC_KV_OPEN_INIT;
  init_bytes("NMC_KV_OPEN_INIT", &kv_open, sizeof kv_open);
  static const nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  static const nmc_store_rank_stats_t rank_stats = NMC_STORE_RANK_STATS_INIT;
  static const nmc_retry_hint_t hint = NMC_RETRY_HINT_INIT;
  if (rank_stats.struct_size != sizeof rank_stats || hint.struct_size != sizeof hint) return 1;
  static const nmc_blocks_stats_t blocks_stats = NMC_BLOCKS_STATS_INIT;
  return stats.struct_size == sizeof stats && blocks_stats.struct_size == sizeof blocks_stats ? 0 : 1;
}
