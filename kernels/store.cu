// Kernels of the object store: copy pieces of values, publish what a descriptor says, wait for a publication.
// Only src/cuda/kernels.rs launches them, with the argument order below.

#include "../include/nanomc/device.cuh"

// One stretch of a copy.
struct NmcStretch {
  uint64_t dst;
  uint64_t src;
  uint64_t bytes;
};

// As many as fit the parameters of a launch comfortably. src/cuda/kernels.rs has the same number.
static constexpr uint32_t NMC_STRETCHES = 32;

struct NmcStretches {
  NmcStretch at[NMC_STRETCHES];
};

// Copies `n` stretches. Grid: any number of blocks; block b takes tiles b, b + gridDim.x, ... of `tile` bytes, counted
// over all stretches one after the other. `cached_globally` loads the source past L1, for bytes that are read once.
extern "C" __global__ void __launch_bounds__(512)
nmc_k_store_copy(NmcStretches stretches, uint32_t n, uint64_t tile, uint32_t cached_globally) {
  uint64_t next = blockIdx.x, first = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const NmcStretch s = stretches.at[i];
    const uint64_t tiles = (s.bytes + tile - 1) / tile;
    for (; next < first + tiles; next += gridDim.x) {
      const uint64_t at = (next - first) * tile;
      const uint64_t bytes = s.bytes - at < tile ? s.bytes - at : tile;
      void* dst = reinterpret_cast<void*>(s.dst + at);
      const void* src = reinterpret_cast<const void*>(s.src + at);
      if (cached_globally != 0) {
        nmc_dev_copy16_cg(dst, src, bytes, threadIdx.x, blockDim.x);
      } else {
        nmc_dev_copy16(dst, src, bytes, threadIdx.x, blockDim.x);
      }
    }
    first += tiles;
  }
}

// Publishes what `n` descriptors say at the time of the launch; one with epoch 0 says nothing. Grid: one block of at
// least one thread. Everything before it on the stream is done and, through the fence, visible to the system.
extern "C" __global__ void __launch_bounds__(256)
nmc_k_store_publish(const nmc_publish_desc_t* descriptors, uint32_t n) {
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    uint64_t* word = reinterpret_cast<uint64_t*>(nmc_dev_ld_relaxed_sys_u64(&descriptors[i].word));
    const uint64_t epoch = nmc_dev_ld_relaxed_sys_u64(&descriptors[i].epoch);
    if (epoch != 0) nmc_dev_publish(word, epoch);
  }
}

// Waits until an object is published in `epoch`, dead, or the time is over; stores NMC_READY_* into `*out`, if that is
// not null. Grid: one thread.
extern "C" __global__ void __launch_bounds__(32)
nmc_k_store_wait(const uint64_t* published, const uint64_t* control, uint64_t epoch, uint64_t timeout_ns, uint32_t* out) {
  if (threadIdx.x != 0) return;
  const uint32_t result = nmc_dev_wait_ready(published, control, epoch, timeout_ns);
  if (out != nullptr) {
    asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(out), "r"(result) : "memory");
  }
}
