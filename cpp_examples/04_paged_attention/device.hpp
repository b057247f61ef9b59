// Where the blocks lie, and who computes attention over them. The rest of the engine, in main.cpp, is the same on a CPU and
// on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <nanomc.hpp>
#include <vector>

struct Shape {
  uint32_t layers = 2, heads = 8, kv_heads = 2, dim = 32;  // four heads of Q share one of K and V
  uint32_t block_tokens = 8, blocks = 64;
};

// The sequences of a step. Row i of `table` has the blocks of sequence i, of which the first `lengths[i]` tokens are
// attended to. Without a table the view is of one sequence whose blocks follow each other.
struct Batch {
  const int32_t* table = nullptr;
  size_t width = 0;
  std::vector<int32_t> lengths;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual void* allocate(size_t bytes) = 0;
  // Row i, [kv_heads, dim], goes to slots[i] = block * block_tokens + place in the block; `view` is of all blocks.
  virtual void store(const nmc_kv_view_t& view, const std::vector<int64_t>& slots, const std::vector<float>& rows) = 0;
  // q and out are [sequences, heads, dim].
  virtual void attend(const nmc_kv_view_t& k, const nmc_kv_view_t& v, const Batch& batch, const Shape& shape,
                      const std::vector<float>& q, std::vector<float>& out) = 0;
  // Copies one block to another within a view of all blocks.
  virtual void copy(const nmc_kv_view_t& view, nmc_kv_copy_t blocks) = 0;
};

// A GPU; throws if there is none. In gpu.cu, which takes nvcc.
std::unique_ptr<Device> gpu_device();
