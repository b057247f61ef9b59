// What the tests of copies of blocks share, on the host and on a GPU: groups of layers, and lists of blocks.
#ifndef NMC_CTEST_SUPPORT_KV_BLOCKS_HPP
#define NMC_CTEST_SUPPORT_KV_BLOCKS_HPP

#include <nanomc.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "random.hpp"

inline nmc_kv_group_t group_of(uint32_t kind, uint32_t dtype, uint32_t layers, uint32_t heads, uint32_t dim, uint32_t order, uint32_t sides) {
  nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  group.kind = kind, group.dtype = dtype, group.layers = layers;
  group.kv_heads = kind == NMC_KV_KIND_MLA ? 1 : heads, group.head_dim = dim;
  group.order = order, group.sides = sides;
  return group;
}

// So many different blocks, in any order.
inline std::vector<int32_t> some_blocks(Random& random, uint32_t blocks, size_t n) {
  std::vector<int32_t> all(blocks);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(n);
  return all;
}

#endif
