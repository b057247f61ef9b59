// A KV cache with virtual placement in device memory, and kernels that write and check its tokens through the views: for the test
// and the benchmark.
#ifndef NMC_CTEST_GPU_KV_VIRTUAL_H
#define NMC_CTEST_GPU_KV_VIRTUAL_H

#include <string>
#include <vector>

#include "check.h"
#include "nanomc.h"

constexpr uint32_t kLayers = 4;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kDim = 128;  // with elements of 4 bytes, 2 KiB a token of a layer's K or V: 1,024 tokens in 2 MiB

struct Tensor {
  uint32_t* data;
  int64_t block, head, token;
};

static __device__ uint32_t* vector_at(const Tensor& t, uint64_t token, uint32_t head, uint32_t per_block) {
  return t.data + static_cast<int64_t>(token / per_block) * t.block + head * t.head +
         static_cast<int64_t>(token % per_block) * t.token;
}

// A block of threads for each token: writes, or counts what is not, words[token] mixed with where it is.
static __global__ void tokens_kernel(Tensor t, uint32_t plane, uint32_t per_block, uint64_t first, const uint32_t* words, bool write,
                              unsigned long long* wrong) {
  const uint64_t token = first + blockIdx.x;
  for (uint32_t i = threadIdx.x; i < kHeads * kDim; i += blockDim.x) {
    const uint32_t head = i / kDim, dim = i % kDim;
    const uint32_t word = words[token] * 2654435761u + plane * 65599u + head * 257u + dim;
    uint32_t* at = vector_at(t, token, head, per_block) + dim;
    if (write) *at = word;
    else if (*at != word) atomicAdd(wrong, 1ull);
  }
}

struct VirtualCache {
  nmc_kv_t* kv = nullptr;
  uint32_t per_block = 0;
  uint32_t planes = 0;
  cudaStream_t stream = nullptr;
  unsigned long long* wrong = nullptr;

  VirtualCache(uint32_t order, uint32_t sides, uint32_t blocks, uint32_t sequence_blocks, uint32_t scale = 1) {
    nmc_kv_group_t group = NMC_KV_GROUP_INIT;
    group.dtype = NMC_DTYPE_RAW;
    group.element_bytes = 4;
    group.layers = kLayers;
    group.kv_heads = kHeads;
    group.head_dim = kDim;
    group.order = order;
    group.sides = sides;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = blocks;
    config.flags = NMC_KV_VIRTUAL | NMC_KV_NO_PREFIX;
    config.heap_kind = NMC_HEAP_CUDA;
    config.groups = &group;
    config.n_groups = 1;
    NMC_CHECK(nmc_kv_page_tokens(&config, &per_block));
    per_block *= scale;
    config.tokens_per_block = per_block;
    config.max_sequence_tokens = per_block * sequence_blocks;
    NMC_CHECK(nmc_kv_create(nullptr, &config, &kv));
    const uint32_t layer_planes = sides == NMC_KV_SIDES_PER_BLOCK ? kLayers : kLayers * 2;
    planes = order == NMC_KV_BLOCK_MAJOR ? (sides == NMC_KV_SIDES_SEPARATE ? 2 : 1) : layer_planes;
    if (order == NMC_KV_HEAD_MAJOR) planes *= kHeads;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaMallocManaged(&wrong, sizeof *wrong));
    *wrong = 0;
  }
  ~VirtualCache() {
    CUDA_OK(cudaStreamSynchronize(stream));
    NMC_CHECK(nmc_kv_audit(kv));
    NMC_CHECK(nmc_kv_destroy(kv));
    cudaFree(wrong);
    cudaStreamDestroy(stream);
  }
  VirtualCache(const VirtualCache&) = delete;
  VirtualCache& operator=(const VirtualCache&) = delete;

  Tensor tensor(uint64_t id, uint32_t layer, uint32_t side) const {
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    NMC_CHECK(nmc_kv_view(kv, id, 0, layer, side, &view));
    return {static_cast<uint32_t*>(view.data), view.strides[0], view.strides[1], view.strides[2]};
  }

  // Enqueues it for the tokens `first..end` in all layers.
  void tokens(uint64_t id, uint64_t first, uint64_t end, const uint32_t* words, bool write) {
    if (end <= first) return;
    for (uint32_t layer = 0; layer < kLayers; ++layer)
      for (uint32_t side : {NMC_KV_K, NMC_KV_V})
        tokens_kernel<<<static_cast<unsigned>(end - first), 128, 0, stream>>>(tensor(id, layer, side), layer * 2 + side, per_block,
                                                                             first, words, write, wrong);
    CUDA_OK(cudaGetLastError());
  }

  void copy(uint64_t id) {
    std::vector<nmc_kv_copy_t> moves(planes);
    size_t n = 0;
    NMC_CHECK(nmc_kv_take_copies(kv, id, moves.data(), moves.size(), &n));
    NMC_CHECK(nmc_kv_copy_blocks(kv, moves.data(), n, stream));
  }
};

#endif
