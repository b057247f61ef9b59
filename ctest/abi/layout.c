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

  /* Static, so that padding, were there any, is zero. */
  static const nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  init_bytes("NMC_WORLD_CONFIG_INIT", &config, sizeof config);
  return 0;
}
