// Kernel of the KV cache: copies blocks, which lie in many pieces, to and from contiguous memory and to other blocks.
// Only src/kv/transfer/gpu.rs launches it, with the argument order below.

#include "../include/nanomc/device.cuh"

// Where the pieces of numbered blocks lie: the first piece of block 0, and the distances between blocks and between pieces
// along three axes, the outermost first.
struct NmcKvPlace {
  uint64_t base;
  uint64_t block;
  uint64_t step[3];
};

// A copy of equal pieces. src/kv/transfer/gpu.rs has the same struct.
struct NmcKvCopy {
  NmcKvPlace from;
  NmcKvPlace to;
  uint64_t bytes;     // of a piece
  uint32_t middle;    // pieces along the middle axis
  uint32_t inner;     // pieces along the innermost axis
  uint32_t pieces;    // of a block
  uint32_t parts;     // of a piece: what a warp copies at a time
  uint32_t n;         // blocks
  uint32_t width;     // bytes of an access: 16, 8, 4, 2 or 1, of which everything above is a multiple
};

// The block numbers come with the launch, so that nothing has to be kept for it, and a graph has them in it. With the copy
// they fill the 4 KiB that a launch can always take. src/kv/transfer/gpu.rs has the same number.
static constexpr uint32_t NMC_KV_LISTED = 488;

struct NmcKvList {
  uint32_t at[NMC_KV_LISTED][2]; // from, to
};

// Accesses of a thread that are under way at once, and so the bytes of a part: 32 * NMC_KV_DEPTH * width.
#ifndef NMC_KV_DEPTH
#define NMC_KV_DEPTH 4
#endif

template <typename V>
NMC_DEV V nmc_kv_load(const V* at) {
  return __ldcs(at);
}

template <typename V>
NMC_DEV void nmc_kv_store(V* at, V value) {
  *at = value;
}

NMC_DEV uint64_t nmc_kv_at(const NmcKvPlace& place, uint32_t block, uint32_t outer, uint32_t middle, uint32_t inner) {
  return place.base + block * place.block + outer * place.step[0] + middle * place.step[1] + inner * place.step[2];
}

// A warp takes part after part, counted over all pieces of all blocks. Warps beside each other work on bytes beside each other.
template <typename V>
NMC_DEV void nmc_kv_copy_parts(const NmcKvCopy& copy, const NmcKvList& list) {
  constexpr uint32_t depth = NMC_KV_DEPTH, row = 32;
  const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
  const uint32_t of_block = copy.pieces * copy.parts, total = copy.n * of_block;
  for (uint32_t part = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; part < total; part += warps) {
    const uint32_t i = part / of_block, rest = part - i * of_block;
    const uint32_t piece = rest / copy.parts, place = rest - piece * copy.parts;
    const uint32_t high = piece / copy.inner, inner = piece - high * copy.inner;
    const uint32_t outer = high / copy.middle, middle = high - outer * copy.middle;
    const uint64_t first = static_cast<uint64_t>(place) * (row * depth);
    const V* from = reinterpret_cast<const V*>(nmc_kv_at(copy.from, list.at[i][0], outer, middle, inner)) + first + lane;
    V* to = reinterpret_cast<V*>(nmc_kv_at(copy.to, list.at[i][1], outer, middle, inner)) + first + lane;
    const uint64_t left = copy.bytes / sizeof(V) - first;
    V value[depth];
    if (left >= row * depth) {
#pragma unroll
      for (uint32_t k = 0; k < depth; ++k) value[k] = nmc_kv_load(from + k * row);
#pragma unroll
      for (uint32_t k = 0; k < depth; ++k) nmc_kv_store(to + k * row, value[k]);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < depth; ++k) {
        if (k * row + lane < left) value[k] = nmc_kv_load(from + k * row);
      }
#pragma unroll
      for (uint32_t k = 0; k < depth; ++k) {
        if (k * row + lane < left) nmc_kv_store(to + k * row, value[k]);
      }
    }
  }
}

// Grid: any number of blocks of whole warps. n * pieces * parts, and the warps besides, must fit 32 bits.
extern "C" __global__ void __launch_bounds__(256)
nmc_k_kv_copy(const __grid_constant__ NmcKvCopy copy, const __grid_constant__ NmcKvList list) {
  switch (copy.width) {
    case 16: return nmc_kv_copy_parts<uint4>(copy, list);
    case 8: return nmc_kv_copy_parts<uint2>(copy, list);
    case 4: return nmc_kv_copy_parts<uint32_t>(copy, list);
    case 2: return nmc_kv_copy_parts<uint16_t>(copy, list);
    default: return nmc_kv_copy_parts<uint8_t>(copy, list);
  }
}
