// Caches for copies of blocks in device memory: for the test and the benchmark.
#ifndef NMC_CTEST_GPU_KV_COPY_H
#define NMC_CTEST_GPU_KV_COPY_H

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "../support/kv_blocks.hpp"
#include "check.h"
#include "nanomc.h"

[[maybe_unused]] static uint32_t bytes_of(const nmc_kv_group_t& g) { return g.dtype == NMC_DTYPE_FP8 ? 1 : g.dtype == NMC_DTYPE_FP32 ? 4 : 2; }

static uint64_t block_bytes(const nmc_kv_group_t& g, uint32_t tokens) {
  return uint64_t{g.layers} * (g.kind == NMC_KV_KIND_MLA ? 1 : 2) * g.kv_heads * tokens * g.head_dim * bytes_of(g);
}

static nmc_kv_copy_t block_copy(int32_t from, int32_t to) { return {from, to, NMC_KV_GROUPS_ALL, 0, nullptr, nullptr, 0}; }

static nmc_kv_t* create_kv(const std::vector<nmc_kv_group_t>& groups, uint32_t blocks, uint32_t tokens) {
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = blocks, config.tokens_per_block = tokens;
  config.groups = groups.data(), config.n_groups = static_cast<uint32_t>(groups.size());
  nmc_kv_t* kv = nullptr;
  NMC_CHECK(nmc_kv_create(nullptr, &config, &kv));
  return kv;
}

static __global__ void wait_ns(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

#endif
