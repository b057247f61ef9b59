// A KV cache in device memory with blocks of 2 MiB, filled and checked by kernels: for the test and the benchmark of its transfers.
#ifndef NMC_CTEST_GPU_KV_MOVE_H
#define NMC_CTEST_GPU_KV_MOVE_H

#include "store_check.h"

#include <algorithm>
#include <chrono>
#include <cstring>

constexpr uint32_t LAYERS = 32, HEADS = 8, DIM = 128, TOKENS = 16;
constexpr uint64_t BLOCK_BYTES = uint64_t{LAYERS} * 2 * HEADS * TOKENS * DIM * 2;  // 2 MiB

__host__ __device__ inline uint32_t word_of(uint64_t seed, uint64_t at) {
  uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (at + 1) * 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(x ^ x >> 31);
}

// Waits `ns`, then fills blocks of the layout [2 sides, layers, blocks, ...] (separate sides) with words of their own number.
static __global__ void fill_blocks(uint32_t* arena, const int32_t* blocks, uint32_t total, uint64_t seed, uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
  constexpr uint64_t plane_words = BLOCK_BYTES / 4 / (2 * LAYERS);
  const uint64_t plane = blockIdx.y, number = blockIdx.x;
  uint32_t* to = arena + (plane * total + static_cast<uint64_t>(blocks[number])) * plane_words;
  for (uint64_t i = threadIdx.x; i < plane_words; i += blockDim.x) to[i] = word_of(seed, (number * 2 * LAYERS + plane) * plane_words + i);
}

// Counts the words that are not those, in planes from `first` on: K of all layers comes before V of all layers.
static __global__ void check_blocks(const uint32_t* arena, const int32_t* blocks, uint32_t total, uint64_t seed, uint32_t first,
                                    unsigned long long* wrong) {
  constexpr uint64_t plane_words = BLOCK_BYTES / 4 / (2 * LAYERS);
  const uint64_t plane = first + blockIdx.y, number = blockIdx.x;
  const uint32_t* from = arena + (plane * total + static_cast<uint64_t>(blocks[number])) * plane_words;
  unsigned long long bad = 0;
  for (uint64_t i = threadIdx.x; i < plane_words; i += blockDim.x) {
    if (from[i] != word_of(seed, (number * 2 * LAYERS + plane) * plane_words + i)) ++bad;
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

struct Cache {
  uint32_t total;
  uint32_t* arena = nullptr;
  nmc_kv_t* kv = nullptr;
  cudaStream_t stream = nullptr;
  int32_t* table = nullptr;
  unsigned long long* wrong = nullptr;

  Cache(uint32_t blocks, nmc_store_t* store, uint32_t when_full = NMC_KV_WHEN_FULL_REJECT) : total(blocks) {
    CUDA_OK(cudaMalloc(&arena, BLOCK_BYTES * blocks));
    CUDA_OK(cudaMalloc(&table, sizeof(int32_t) * blocks));
    CUDA_OK(cudaMalloc(&wrong, sizeof(*wrong)));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    nmc_kv_group_t group = NMC_KV_GROUP_INIT;
    group.layers = LAYERS, group.kv_heads = HEADS, group.head_dim = DIM;
    group.memory = arena, group.memory_bytes = BLOCK_BYTES * blocks;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = blocks, config.groups = &group, config.n_groups = 1, config.when_full = when_full;
    NMC_CHECK(nmc_kv_create(nullptr, &config, &kv));
    NMC_CHECK(nmc_kv_attach_store(kv, store));
  }
  ~Cache() {
    (void)nmc_kv_destroy(kv);
    cudaFree(arena), cudaFree(table), cudaFree(wrong), cudaStreamDestroy(stream);
  }
  // Opens a sequence of whole blocks with tokens of its own; returns how many tokens were there.
  uint64_t open(uint64_t id, uint32_t blocks) {
    std::vector<uint32_t> tokens(blocks * TOKENS);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = word_of(id, i);
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.flags = NMC_KV_OPEN_MATCH_ALL;
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    NMC_CHECK(nmc_kv_open(kv, id, tokens.data(), tokens.size(), &options, &opened, nullptr));
    std::vector<int32_t> indices(blocks);
    int32_t indptr[2], last;
    size_t n;
    NMC_CHECK(nmc_kv_table_csr(kv, 0, &id, 1, indptr, &last, indices.data(), indices.size(), &n));
    CUDA_OK(cudaMemcpy(table, indices.data(), n * sizeof(int32_t), cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
    return opened.hit_tokens;
  }
  void fill(uint64_t seed, uint32_t blocks, uint64_t ns) {
    fill_blocks<<<dim3(blocks, 2 * LAYERS), 256, 0, stream>>>(arena, table, total, seed, ns);
    CUDA_OK(cudaGetLastError());
  }
  bool right(uint64_t seed, uint32_t blocks) { return wrong_words(seed, blocks, 0, 2 * LAYERS) == 0; }
  bool right_layer(uint64_t seed, uint32_t blocks, uint32_t layer) {
    return wrong_words(seed, blocks, layer, 1) + wrong_words(seed, blocks, LAYERS + layer, 1) == 0;
  }
  uint64_t wrong_words(uint64_t seed, uint32_t blocks, uint32_t first, uint32_t planes) {
    unsigned long long bad = 0;
    CUDA_OK(cudaMemsetAsync(wrong, 0, sizeof(bad), stream));
    check_blocks<<<dim3(blocks, planes), 256, 0, stream>>>(arena, table, total, seed, first, wrong);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(&bad, wrong, sizeof(bad), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    return bad;
  }
  nmc_kv_after_t after_stream() const { return {NMC_KV_AFTER_STREAM, 0, stream}; }
};

#endif
