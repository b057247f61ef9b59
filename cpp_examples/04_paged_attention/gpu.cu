// Attention over blocks on a GPU: one kernel for both placements, a thread block for each head of each sequence. It takes
// the dense block table as attention libraries do; a sequence whose blocks follow each other needs none.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "device.hpp"

namespace {

constexpr int kThreads = 128;

void cuda_ok(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

// What a kernel needs of a view.
struct Tensor {
  float* data;
  int64_t block, head, token;  // distances in elements; those of a vector follow each other
};

Tensor tensor(const nmc_kv_view_t& view) {
  return {static_cast<float*>(view.data), view.strides[0], view.strides[1], view.strides[2]};
}

// The sum over all threads of the block; `shared` has a float for each warp.
__device__ float sum(float value, float* shared) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float all = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) all += shared[warp];
  return all;
}

// q and out are [sequences, heads, dim]. Thread d has element d of the vectors: a product and a sum a token, and softmax
// that is scaled whenever a larger score comes. Right, and easy to read; not fast.
__global__ void attend_blocks(Tensor k, Tensor v, const int32_t* table, int64_t width, const int32_t* lengths, int heads,
                              int group, int dim, int block_tokens, const float* q, float* out) {
  __shared__ float shared[kThreads / 32];
  const int sequence = blockIdx.y, head = blockIdx.x, d = threadIdx.x, kv_head = head / group;
  const bool mine = d < dim;
  const int64_t at = (int64_t{sequence} * heads + head) * dim + d;
  const float query = mine ? q[at] : 0, scale = rsqrtf(static_cast<float>(dim));
  float best = -INFINITY, total = 0, result = 0;
  for (int t = 0; t < lengths[sequence]; ++t) {
    const int64_t number = t / block_tokens, place = t % block_tokens;
    const int64_t block = table == nullptr ? number : table[sequence * width + number];
    const float key = mine ? k.data[block * k.block + kv_head * k.head + place * k.token + d] : 0;
    const float score = sum(query * key, shared) * scale;
    const float top = fmaxf(best, score), old = expf(best - top), now = expf(score - top);
    const float value = mine ? v.data[block * v.block + kv_head * v.head + place * v.token + d] : 0;
    total = total * old + now;
    result = result * old + now * value;
    best = top;
  }
  if (mine) out[at] = result / total;
}

// Row i, [heads, dim], to slots[i]: a thread block a row and head.
__global__ void store_rows(Tensor to, const int64_t* slots, int block_tokens, int dim, const float* rows) {
  const int64_t slot = slots[blockIdx.y], row = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (slot < 0) return;  // as slot mappings say that there is no place
  float* const at = to.data + slot / block_tokens * to.block + blockIdx.x * to.head + slot % block_tokens * to.token;
  for (int d = threadIdx.x; d < dim; d += blockDim.x) at[d] = rows[row * dim + d];
}

__global__ void copy_block(Tensor in, int64_t from, int64_t to, int dim) {
  const int64_t at = blockIdx.x * in.head + blockIdx.y * in.token;
  for (int d = threadIdx.x; d < dim; d += blockDim.x) in.data[to * in.block + at + d] = in.data[from * in.block + at + d];
}

// Device memory that grows as it is needed, and what is copied into it on a stream.
class Buffer {
 public:
  ~Buffer() { cudaFree(data_); }
  void* room(size_t bytes) {
    if (bytes > bytes_) {
      cuda_ok(cudaFree(data_), "cudaFree");
      data_ = nullptr;
      cuda_ok(cudaMalloc(&data_, bytes), "cudaMalloc");
      bytes_ = bytes;
    }
    return data_;
  }
  template <typename T>
  const T* put(const T* values, size_t count, cudaStream_t stream) {
    void* const to = room(count * sizeof(T));
    cuda_ok(cudaMemcpyAsync(to, values, count * sizeof(T), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    return static_cast<const T*>(to);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Gpu : public Device {
 public:
  Gpu() {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess) throw std::runtime_error(std::string("no GPU: ") + cudaGetErrorString(found));
    if (devices == 0) throw std::runtime_error("no GPU: the driver sees none");
    cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Gpu() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    cudaFree(arena_);
  }

  void* allocate(size_t bytes) override {
    cuda_ok(cudaMalloc(&arena_, bytes), "cudaMalloc");
    cuda_ok(cudaMemsetAsync(arena_, 0xff, bytes, stream_), "cudaMemsetAsync");  // NaN: what was not written shows
    return arena_;
  }
  // All on one stream, so that whoever gets a block that was freed writes it after those who read it.
  void store(const nmc_kv_view_t& view, const std::vector<int64_t>& slots, const std::vector<float>& rows) override {
    const dim3 grid(static_cast<unsigned>(view.shape[1]), static_cast<unsigned>(slots.size()));
    store_rows<<<grid, kThreads, 0, stream_>>>(tensor(view), slots_.put(slots.data(), slots.size(), stream_),
                                               static_cast<int>(view.shape[2]), static_cast<int>(view.shape[3]),
                                               rows_.put(rows.data(), rows.size(), stream_));
    cuda_ok(cudaGetLastError(), "store_rows");
  }
  void attend(const nmc_kv_view_t& k, const nmc_kv_view_t& v, const Batch& batch, const Shape& shape,
              const std::vector<float>& q, std::vector<float>& out) override {
    if (shape.dim > kThreads) throw std::runtime_error("vectors are longer than a thread block");
    const size_t n = batch.lengths.size();
    out.resize(q.size());
    const int32_t* const table = batch.table == nullptr ? nullptr : table_.put(batch.table, n * batch.width, stream_);
    float* const result = static_cast<float*>(out_.room(out.size() * sizeof(float)));
    attend_blocks<<<dim3(shape.heads, static_cast<unsigned>(n)), kThreads, 0, stream_>>>(
        tensor(k), tensor(v), table, static_cast<int64_t>(batch.width), lengths_.put(batch.lengths.data(), n, stream_),
        static_cast<int>(shape.heads), static_cast<int>(shape.heads / shape.kv_heads), static_cast<int>(shape.dim),
        static_cast<int>(shape.block_tokens), q_.put(q.data(), q.size(), stream_), result);
    cuda_ok(cudaGetLastError(), "attend_blocks");
    cuda_ok(cudaMemcpyAsync(out.data(), result, out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    cuda_ok(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // the rest of the model is computed on the CPU
  }
  void copy(const nmc_kv_view_t& view, nmc_kv_copy_t blocks) override {
    const dim3 grid(static_cast<unsigned>(view.shape[1]), static_cast<unsigned>(view.shape[2]));
    copy_block<<<grid, kThreads, 0, stream_>>>(tensor(view), blocks.from, blocks.to, static_cast<int>(view.shape[3]));
    cuda_ok(cudaGetLastError(), "copy_block");
  }

 private:
  cudaStream_t stream_ = nullptr;
  void* arena_ = nullptr;
  Buffer slots_, rows_, table_, lengths_, q_, out_;
};

}  // namespace

std::unique_ptr<Device> gpu_device() { return std::make_unique<Gpu>(); }
