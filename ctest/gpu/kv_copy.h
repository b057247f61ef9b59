// Caches for copies of blocks in device memory: for the test and the benchmark.
#ifndef NMC_CTEST_GPU_KV_COPY_H
#define NMC_CTEST_GPU_KV_COPY_H

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "../support/random.hpp"
#include "check.h"
#include "nanomc.h"

[[maybe_unused]] static uint32_t bytes_of(const nmc_kv_group_t& g) { return g.dtype == NMC_DTYPE_FP8 ? 1 : g.dtype == NMC_DTYPE_FP32 ? 4 : 2; }

static uint64_t block_bytes(const nmc_kv_group_t& g, uint32_t tokens) {
  return uint64_t{g.layers} * (g.kind == NMC_KV_KIND_MLA ? 1 : 2) * g.kv_heads * tokens * g.head_dim * bytes_of(g);
}

static nmc_kv_group_t group_of(uint32_t kind, uint32_t dtype, uint32_t layers, uint32_t heads, uint32_t dim, uint32_t order,
                               uint32_t sides) {
  nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  group.kind = kind, group.dtype = dtype, group.layers = layers;
  group.kv_heads = kind == NMC_KV_KIND_MLA ? 1 : heads, group.head_dim = dim;
  group.order = order, group.sides = sides;
  return group;
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

static std::vector<int32_t> some_blocks(Random& random, uint32_t blocks, size_t n) {
  std::vector<int32_t> all(blocks);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(n);
  return all;
}

static __global__ void wait_ns(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

#endif
