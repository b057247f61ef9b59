// Values whose every word says where it belongs, for the GPU programs of the store; and a heap of which every second page is free.
#ifndef NMC_CTEST_GPU_STORE_VALUE_H
#define NMC_CTEST_GPU_STORE_VALUE_H

#include "store_check.h"

static constexpr uint64_t PAGE = 64 * KIB, HEAP = 8 * MIB;

// Ends the process; what was printed is kept.
[[noreturn, maybe_unused]] static void stop() {
  std::fflush(stdout);
  std::_Exit(1);
}

[[maybe_unused]] static unsigned long long ull(uint64_t value) { return static_cast<unsigned long long>(value); }

// Word `i` of the value with number `seed`; its bytes are the value's, the last word may be cut.
[[maybe_unused]] static __host__ __device__ uint64_t word_of(uint64_t seed, uint64_t i) { return nmc_pattern_u64(seed, 3, 5, i); }

[[maybe_unused]] static std::vector<uint8_t> value_of(uint64_t seed, size_t bytes) {
  std::vector<uint8_t> value((bytes + 7) / 8 * 8);
  for (size_t i = 0; i < value.size() / 8; ++i) {
    const uint64_t word = word_of(seed, i);
    std::memcpy(value.data() + 8 * i, &word, 8);
  }
  value.resize(bytes);
  return value;
}

// Writes the value with number `seed` to `dst`, byte by byte: any alignment.
[[maybe_unused]] static __global__ void fill_value(uint8_t* dst, uint64_t bytes, uint64_t seed) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes; i += step) {
    dst[i] = static_cast<uint8_t>(word_of(seed, i / 8) >> (8 * (i % 8)));
  }
}

// Makes every second page of the heap free and the others used.
[[maybe_unused]] static void fragment(nmc_store_t* store) {
  const std::vector<uint8_t> page(PAGE, 0x33);
  for (uint64_t i = 0; i < HEAP / PAGE; ++i) {
    NMC_CHECK(nmc_store_put(store, slice("part " + std::to_string(i)), page.data(), page.size(), nullptr));
  }
  for (uint64_t i = 1; i < HEAP / PAGE; i += 2) NMC_CHECK(nmc_store_remove(store, slice("part " + std::to_string(i))));
}

#endif
