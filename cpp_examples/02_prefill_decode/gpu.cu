// The engines' work on a GPU: kernels that store pages where a write plan says, and kernels that read pinned pages in
// place. Publishing and unpinning are steps of the stream, after the kernel.
#include <nanomc/device.cuh>
#include <stdexcept>
#include <string>

#include "engine.hpp"

namespace {

void cuda_ok(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

// A run of pages. The pages of an object are consecutive within an extent; as a rule there is one.
struct Run {
  char* at;
  uint64_t bytes, key_hash;
  uint32_t first_page, page_shift;
};

// What belongs at byte `at` of a run: the same words as on a CPU.
__device__ ulonglong2 computed(const Run& run, uint64_t at) {
  const uint32_t page = run.first_page + static_cast<uint32_t>(at >> run.page_shift);
  const uint64_t word = (at & ((uint64_t{1} << run.page_shift) - 1)) / 8;
  return {nmc_pattern_u64(run.key_hash, 0, page, word), nmc_pattern_u64(run.key_hash, 0, page, word + 1)};
}

// Byte `i` of 16, as a little-endian machine stores them.
__device__ uint8_t byte_of(ulonglong2 words, uint64_t i) {
  return static_cast<uint8_t>((i < 8 ? words.x : words.y) >> i % 8 * 8);
}

// Stands for attention: computes the run and stores it, in a heap that another process owns.
__global__ void fill_run(Run run) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x * 16;
  for (uint64_t at = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 16; at < run.bytes; at += step) {
    const ulonglong2 words = computed(run, at);
    if (at + 16 <= run.bytes) nmc_dev_st16(run.at + at, words);
    else for (uint64_t i = 0; at + i < run.bytes; ++i) run.at[at + i] = static_cast<char>(byte_of(words, i));
  }
}

// Reads the run and compares it with what belongs there.
__global__ void check_run(Run run, uint64_t* wrong) {
  bool bad = false;
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x * 16;
  for (uint64_t at = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 16; at < run.bytes; at += step) {
    const ulonglong2 words = computed(run, at);
    if (at + 16 <= run.bytes) {
      const ulonglong2 found = nmc_dev_ld16(run.at + at);
      bad |= found.x != words.x || found.y != words.y;
    } else {
      for (uint64_t i = 0; at + i < run.bytes; ++i) bad |= static_cast<uint8_t>(run.at[at + i]) != byte_of(words, i);
    }
  }
  if (bad) nmc_dev_st_relaxed_sys_u64(wrong, 1);
}

class Gpu : public Engine {
 public:
  Gpu() {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess) throw std::runtime_error(std::string("no GPU: ") + cudaGetErrorString(found));
    if (devices == 0) throw std::runtime_error("no GPU: the driver sees none");
    cuda_ok(cudaSetDevice(0), "cudaSetDevice");
    cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    void* word = nullptr;
    cuda_ok(cudaHostAlloc(&word, sizeof(*wrong_), cudaHostAllocMapped), "cudaHostAlloc");
    wrong_ = static_cast<uint64_t*>(word);
  }
  ~Gpu() override {
    cudaFreeHost(wrong_);
    cudaStreamDestroy(stream_);
  }

  Clock::duration fill(nmc::WritePlan& plan) override {
    const auto start = Clock::now();
    each_run(plan, plan.c().key_hash, [&](const Run& run, unsigned blocks) {
      fill_run<<<blocks, kThreads, 0, stream_>>>(run);
    });
    plan.commit_async(stream_);  // from here on decode may see it, without this process
    cuda_ok(cudaStreamSynchronize(stream_), "prefill");
    plan.commit();  // tells what became of it, and wakes who waits
    return Clock::now() - start;
  }

  Clock::duration check(nmc::View view, uint64_t key_hash, bool& right) override {
    const auto start = Clock::now();
    *wrong_ = 0;
    each_run(view, key_hash, [&](const Run& run, unsigned blocks) {
      check_run<<<blocks, kThreads, 0, stream_>>>(run, wrong_);
    });
    view.unpin_async(stream_);  // the stream ends the pin when the kernel has read
    cuda_ok(cudaStreamSynchronize(stream_), "decode");
    right = *wrong_ == 0;
    return Clock::now() - start;
  }

 private:
  static constexpr unsigned kThreads = 256, kMostBlocks = 1024, kBytesOfBlock = kThreads * 64;

  template <class Object, class Launch>
  void each_run(const Object& object, uint64_t key_hash, Launch launch) {
    uint32_t shift = 0, page = 0;
    while (uint32_t{1} << shift < object.page_bytes()) ++shift;
    for (const nmc_extent_t& extent : object.extents()) {
      const uint64_t blocks = (extent.bytes + kBytesOfBlock - 1) / kBytesOfBlock;
      launch(Run{static_cast<char*>(extent.device_ptr), extent.bytes, key_hash, page, shift},
             static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
      cuda_ok(cudaGetLastError(), "launch");
      page += static_cast<uint32_t>(extent.bytes >> shift);
    }
  }

  cudaStream_t stream_ = nullptr;
  uint64_t* wrong_ = nullptr;  // in pinned memory: the kernel stores, the host looks after the stream
};

}  // namespace

std::unique_ptr<Engine> gpu_engine() { return std::make_unique<Gpu>(); }
