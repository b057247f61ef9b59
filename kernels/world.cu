// Kernels of the world self-test: every rank writes a pattern into every peer's heap and checks what the peers wrote.
// They use nanomc/device.cuh as an engine would, so a pass shows that its functions work on this machine.
// Only src/cuda/kernels.rs launches them, with the argument order below.

#include "../include/nanomc/device.cuh"

// Writes the pattern of `my_rank` for every destination at bases[dst] + offset + my_rank * bytes, then stores
// `flag_value` into the destination's flag word for this source. Grid: one block per destination; nothing waits.
extern "C" __global__ void __launch_bounds__(1024)
nmc_k_world_pattern_write(const uint64_t* bases, uint32_t n_ranks, uint32_t my_rank, uint64_t offset, uint64_t bytes,
                          uint64_t seed, const uint64_t* flag_words, uint64_t flag_value) {
  const uint32_t dst = blockIdx.x;
  if (dst >= n_ranks) return;
  char* out = static_cast<char*>(nmc_dev_peer_ptr(bases, dst, offset + my_rank * bytes));
  for (uint64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
    nmc_dev_st16(out + i * 16, make_ulonglong2(nmc_pattern_u64(seed, my_rank, dst, 2 * i),
                                               nmc_pattern_u64(seed, my_rank, dst, 2 * i + 1)));
  }
  __syncthreads();
  if (threadIdx.x == 0) nmc_dev_publish(reinterpret_cast<uint64_t*>(flag_words[dst]), flag_value);
}

// Waits for the flag of each source (flags + src * flag_stride), then checks heap_base + offset + src * bytes.
// Grid: one block, so that a rank needs one resident block while it waits and `out` needs no atomics: it may be host
// memory. out = {wrong 8-byte words, heap offset of the lowest wrong word or UINT64_MAX, 1 + source that did not come
// or 0, 1 when finished}. Sources after one that did not come are not checked.
extern "C" __global__ void __launch_bounds__(1024)
nmc_k_world_pattern_verify(uint64_t heap_base, uint32_t n_ranks, uint32_t my_rank, uint64_t offset, uint64_t bytes,
                           uint64_t seed, uint64_t flags, uint64_t flag_stride, uint64_t expected, uint64_t timeout_ns,
                           uint64_t* out) {
  __shared__ unsigned long long wrong, first_bad;
  __shared__ uint32_t missing;
  if (threadIdx.x == 0) {
    wrong = 0;
    first_bad = UINT64_MAX;
    missing = 0;
  }
  __syncthreads();

  const uint64_t start = nmc_dev_globaltimer_ns();
  for (uint32_t src = 0; src < n_ranks; ++src) {
    if (threadIdx.x == 0) {
      const uint64_t waited = nmc_dev_globaltimer_ns() - start;
      const uint64_t left = waited < timeout_ns ? timeout_ns - waited : 0;
      const uint64_t* word = reinterpret_cast<const uint64_t*>(flags + src * flag_stride);
      if (!nmc_dev_wait_ge(word, expected, left)) missing = src + 1;
    }
    __syncthreads();
    if (missing != 0) break;

    const uint64_t at = offset + src * bytes;
    const char* in = reinterpret_cast<const char*>(heap_base + at);
    for (uint64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
      const ulonglong2 seen = nmc_dev_ld16(in + i * 16);
      const bool bad_x = seen.x != nmc_pattern_u64(seed, src, my_rank, 2 * i);
      const bool bad_y = seen.y != nmc_pattern_u64(seed, src, my_rank, 2 * i + 1);
      if (bad_x || bad_y) {
        atomicAdd(&wrong, static_cast<unsigned long long>(bad_x) + static_cast<unsigned long long>(bad_y));
        atomicMin(&first_bad, static_cast<unsigned long long>(at + i * 16 + (bad_x ? 0 : 8)));
      }
    }
    __syncthreads(); // before thread 0 may change `missing` again
  }

  __syncthreads();
  if (threadIdx.x == 0) {
    nmc_dev_st_relaxed_sys_u64(out + 0, wrong);
    nmc_dev_st_relaxed_sys_u64(out + 1, first_bad);
    nmc_dev_st_relaxed_sys_u64(out + 2, missing);
    nmc_dev_publish(out + 3, 1);
  }
}
