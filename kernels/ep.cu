// Kernels of the expert-parallel transport: dispatch, pack, scatter, combine. docs/ep.md explains the protocol and
// src/ep/cpu does the same on the CPU, bit for bit. Only src/ep/gpu.rs launches them.
//
// A launch serves the ranks of one process that the caller grouped: block b works for rank b % n, so that the first
// blocks of all ranks are placed first. A block that waits depends on blocks of other ranks only; how many of them can
// be resident at once is checked when a group is made.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "../include/nanomc/ep.cuh"

// 16 bytes of global memory. In asm, so that nothing that a peer wrote is read through the read-only path.
static __device__ __forceinline__ ulonglong2 nmc_ep_ld16(const void* from) {
  ulonglong2 v;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(from) : "memory");
  return v;
}

static __device__ __forceinline__ void nmc_ep_st16(void* to, ulonglong2 v) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" : : "l"(to), "l"(v.x), "l"(v.y) : "memory");
}

// Which halves of a step a launch does.
static constexpr uint32_t NMC_EP_SEND = 1;
static constexpr uint32_t NMC_EP_RECV = 2;

// What one rank wants done; all kernels share it. src/ep/calls.rs has the same struct.
struct NmcEpCall {
  const void* x;             // dispatch: rows; combine: rows to return, or null if they are in place
  const float* scales;       // dispatch of given fp8 rows
  const void* idx;           // dispatch: int32 or int64 [tokens][top_k]
  const void* weight;        // dispatch: fp32 or fp16 [tokens][top_k]
  const int32_t* tokens_at;  // dispatch: where the number of tokens is; null: `tokens`
  void* out;                 // combine: rows; pack: grouped rows or null; scatter: rows, or null for in place
  float* out_scales;         // pack: [groups][scales][max_m rounded up to 4]
  int32_t* masked_m;         // pack: [groups]
  int32_t* group_expert;     // pack: [groups]
  int32_t* row_of;           // pack, scatter: [world * t_cap][top_k]
  int32_t* row_index;        // pack: [groups][max_m]
  const void* grouped;       // scatter: [groups][max_m] rows
  uint32_t tokens;
  uint32_t idx_64;
  uint32_t halves;
  uint32_t count_load;
};

template <int N>
struct NmcEpGroup {
  nmc_ep_rank_t rank[N];
  NmcEpCall call[N];
  uint32_t n;
  uint32_t early;  // NMC_EP_EARLY_*
};

// When the next kernel of the stream may be placed, before this one ends: while a dispatch waits, and while a combine sums.
static constexpr uint32_t NMC_EP_EARLY_DISPATCH = 1;
static constexpr uint32_t NMC_EP_EARLY_COMBINE = 2;


// Waits for the kernel before this one on the stream: blocks are placed while that one ends.
static __device__ __forceinline__ void nmc_ep_wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

// Lets the next kernel of the stream be placed; it still waits for this one to end.
static __device__ __forceinline__ void nmc_ep_release_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Whether the group has failed; the first block tells the host. For all threads of a block, and the same for all of them: an
// error that arrives just now may be seen by some and not by others.
static __device__ __forceinline__ bool nmc_ep_over(const nmc_ep_rank_t& d, bool first) {
  if (__syncthreads_or(nmc_dev_ep_failed(d)) == 0) return false;
  if (first && threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
  return true;
}

// ---- elements --------------------------------------------------------------------------------------------------------

template <uint32_t DTYPE>
struct NmcEpVector;  // 16 bytes as fp32 numbers and back; one rounding, NaN becomes the canonical one

template <>
struct NmcEpVector<0> {
  static constexpr int N = 8;
  static __device__ __forceinline__ void load(ulonglong2 v, float* f) {
    const uint32_t w[4] = {static_cast<uint32_t>(v.x), static_cast<uint32_t>(v.x >> 32), static_cast<uint32_t>(v.y),
                           static_cast<uint32_t>(v.y >> 32)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f[2 * i] = __uint_as_float(w[i] << 16);
      f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
  }
  static __device__ __forceinline__ ulonglong2 store(const float* f) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(f[2 * i + 1]), "f"(f[2 * i]));
    }
    return make_ulonglong2(w[0] | static_cast<uint64_t>(w[1]) << 32, w[2] | static_cast<uint64_t>(w[3]) << 32);
  }
};

template <>
struct NmcEpVector<1> {
  static constexpr int N = 8;
  static __device__ __forceinline__ void load(ulonglong2 v, float* f) {
    const uint64_t w[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      f[i] = __half2float(__ushort_as_half(static_cast<uint16_t>(w[i / 4] >> (i % 4 * 16))));
    }
  }
  static __device__ __forceinline__ ulonglong2 store(const float* f) {
    uint64_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i / 4] |= static_cast<uint64_t>(__half_as_ushort(__float2half_rn(f[i]))) << (i % 4 * 16);
    }
    return make_ulonglong2(w[0], w[1]);
  }
};

template <>
struct NmcEpVector<2> {
  static constexpr int N = 4;
  static __device__ __forceinline__ void load(ulonglong2 v, float* f) {
    f[0] = __uint_as_float(static_cast<uint32_t>(v.x));
    f[1] = __uint_as_float(static_cast<uint32_t>(v.x >> 32));
    f[2] = __uint_as_float(static_cast<uint32_t>(v.y));
    f[3] = __uint_as_float(static_cast<uint32_t>(v.y >> 32));
  }
  static __device__ __forceinline__ ulonglong2 store(const float* f) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = f[i] == f[i] ? __float_as_uint(f[i]) : 0x7fffffffu;
    return make_ulonglong2(w[0] | static_cast<uint64_t>(w[1]) << 32, w[2] | static_cast<uint64_t>(w[3]) << 32);
  }
};

// ---- dispatch --------------------------------------------------------------------------------------------------------

// 16-byte vectors of a row that a warp moves at a time: to other ranks, and within one.
static constexpr uint32_t NMC_EP_SEND_UNIT = 64;
static constexpr uint32_t NMC_EP_UNIT = 128;

// One warp copies a part of a row to every target: one load, many stores.
static __device__ __forceinline__ void nmc_ep_copy_part(const nmc_ep_rank_t& d, const ulonglong2* v, uint32_t t,
                                                        uint32_t targets, uint32_t first, uint32_t vectors) {
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t left = targets; left != 0; left &= left - 1) {
    char* row = nmc_dev_ep_row(d, __ffs(static_cast<int>(left)) - 1, t);
#pragma unroll
    for (uint32_t i = 0; i < NMC_EP_SEND_UNIT / 32; ++i) {
      const uint32_t at = first + lane + 32 * i;
      if (at < vectors) nmc_ep_st16(row + 16ull * at, v[i]);
    }
  }
}

// One warp copies a part of a row.
static __device__ __forceinline__ void nmc_ep_copy_row(const char* from, char* to, uint32_t first, uint32_t vectors) {
  const uint32_t lane = threadIdx.x & 31;
  ulonglong2 v[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = first + lane + 32 * i;
    if (at < vectors) v[i] = nmc_ep_ld16(from + 16ull * at);
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = first + lane + 32 * i;
    if (at < vectors) nmc_ep_st16(to + 16ull * at, v[i]);
  }
}

// 8 elements of a row, as loaded.
template <uint32_t DTYPE>
static __device__ __forceinline__ void nmc_ep_eight(ulonglong2 v, ulonglong2 more, float* f) {
  NmcEpVector<DTYPE>::load(v, f);
  if (DTYPE == 2) NmcEpVector<2>::load(more, f + 4);
}

// A group of elements that are all smaller than this has scale 1 and becomes zeros, each with its sign: the inverse of a smaller
// scale is no number any more. src/ep/dtype.rs has the same.
static constexpr float NMC_EP_TINY = 1e-30f;

// One warp quantises 512 elements of a row and stores them, and their scales, at every target. 16 lanes have a group.
template <uint32_t DTYPE>
static __device__ __forceinline__ void nmc_ep_quantise_part(const nmc_ep_rank_t& d, const ulonglong2* v, const char* x,
                                                            uint32_t t, uint32_t targets, uint32_t first) {
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t i = 0; i < NMC_EP_SEND_UNIT / 32; ++i) {
    const uint32_t eight = first + i * 32 + lane;  // of 8 elements
    const bool have = eight * 8 < d.hidden;
    float f[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (have) {
      if (DTYPE == 2) {
        nmc_ep_eight<2>(nmc_ep_ld16(x + 32ull * eight), nmc_ep_ld16(x + 32ull * eight + 16), f);
      } else {
        nmc_ep_eight<DTYPE>(v[i], v[i], f);
      }
    }
    float most = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(f[j]));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const bool some = most >= NMC_EP_TINY;
    const float scale = some ? __fdiv_rn(most, 448.0f) : 1.0f;
    const float inverse = some ? __fdiv_rn(448.0f, most) : 1.0f;
    uint64_t packed = 0;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float2 pair = make_float2(__fmul_rn(f[j], inverse), __fmul_rn(f[j + 1], inverse));
      packed |= static_cast<uint64_t>(__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3)) << (8 * j);
    }
    if (!have) continue;
    for (uint32_t left = targets; left != 0; left &= left - 1) {
      const uint32_t r = __ffs(static_cast<int>(left)) - 1;
      asm volatile("st.global.u64 [%0], %1;" : : "l"(nmc_dev_ep_row(d, r, t) + 8ull * eight), "l"(packed) : "memory");
      if (lane % 16 == 0) {
        const uint64_t at = static_cast<uint64_t>(d.rank * d.t_cap + t) * d.scales + eight / 16;
        nmc_dev_impl_ep_st32(nmc_dev_impl_ep_at(d, r, d.off_scale + 4 * at), __float_as_uint(scale));
      }
    }
  }
}

// The last warp of a block tells what rows are for: metadata of every token and records; the others move rows, 2 KiB or
// half of it at a time. Loads that do not depend on each other are begun before the first is looked at: each takes as long
// as a tenth of the whole copy. The word that says that the group has failed is one of those loads: a warp that sees it stores
// nothing, since the memory may belong to another group by now, and the block does not signal. A block signals for itself;
// the first one waits for all.
template <int N>
static __device__ __forceinline__ void nmc_ep_dispatch(const NmcEpGroup<N>& g) {
  __shared__ uint32_t bad_block, phase_shared;
  const nmc_ep_rank_t& d = g.rank[blockIdx.x % g.n];
  const NmcEpCall& c = g.call[blockIdx.x % g.n];
  const uint32_t block = blockIdx.x / g.n, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const uint32_t movers = blockDim.x / 32 - 1;
  nmc_ep_wait_for_previous();
  if ((c.halves & NMC_EP_SEND) == 0) {
    const uint32_t phase = nmc_dev_ep_phase(d) + 1;
    const uint32_t tokens = nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_TOKENS));
    if (!nmc_ep_over(d, true)) nmc_dev_ep_wait_dispatch(d, phase, tokens);
    return;
  }
  if (threadIdx.x == 0) bad_block = 0;
  const uint32_t tokens = c.tokens_at != nullptr ? static_cast<uint32_t>(*c.tokens_at) : c.tokens;
  const bool fits = tokens <= d.t_cap;
  __syncthreads();
  if (warp == movers) {
    const uint64_t over = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
    const uint32_t phase = nmc_dev_ep_phase(d) + 1;
    for (uint32_t t = block; fits && t < tokens; t += d.blocks) {
      const uint64_t entry = static_cast<uint64_t>(t) * d.top_k + lane;
      int64_t expert = -1;
      float weight = 0;
      if (lane < d.top_k) {
        expert = nmc_dev_impl_ep_expert(c.idx, c.idx_64 != 0, entry);
        weight = d.weight_bytes == 4 ? static_cast<const float*>(c.weight)[entry]
                                     : __half2float(static_cast<const __half*>(c.weight)[entry]);
      }
      bool bad;
      const uint32_t targets = nmc_dev_ep_targets(d, expert, &bad);
      if (__any_sync(0xffffffffu, over != 0)) break;
      if (bad) {
        if (lane == 0) nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_EXPERT, d.rank, t);
        if (lane == 0) bad_block = 1;
        break;
      }
      nmc_dev_ep_send_meta(d, t, targets, expert, weight);
      if (c.count_load != 0 && expert >= 0) {
        asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;"
                     : : "l"(nmc_dev_impl_ep_own(d, d.off_load + 8 * expert)) : "memory");
      }
      if (d.wire == 2) {
        for (uint32_t left = targets; left != 0; left &= left - 1) {
          const uint64_t at = static_cast<uint64_t>(d.rank * d.t_cap + t) * d.scales;
          char* to = nmc_dev_impl_ep_at(d, __ffs(static_cast<int>(left)) - 1, d.off_scale + 4 * at);
          for (uint32_t i = lane; i < d.scales; i += 32) {
            nmc_dev_impl_ep_st32(to + 4 * i, __float_as_uint(c.scales[static_cast<uint64_t>(t) * d.scales + i]));
          }
        }
      }
    }
    const bool failed = __any_sync(0xffffffffu, over != 0);
    for (uint32_t dst = block; fits && !failed && dst < d.world; dst += d.blocks) {
      nmc_dev_ep_send_record(d, dst, c.idx, c.idx_64 != 0, tokens, phase);
    }
    if (lane == 0) {
      phase_shared = phase;
      if (block == 0 && !fits && !failed) nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_TOKENS, d.rank, tokens);
      if (failed || !fits) bad_block = 1;
    }
  } else if (fits) {
    const uint32_t vectors = d.wire == 1 ? d.hidden / 8 : d.x_bytes / 16;
    const uint32_t parts = (vectors + NMC_EP_SEND_UNIT - 1) / NMC_EP_SEND_UNIT;
    const uint64_t row_bytes = d.wire == 1 ? static_cast<uint64_t>(d.y_bytes) : d.x_bytes;
    uint64_t over = 0;
    for (uint32_t unit = block * movers + warp; unit < tokens * parts; unit += d.blocks * movers) {
      const uint32_t t = unit / parts, part = unit % parts, first = part * NMC_EP_SEND_UNIT;
      const char* x = static_cast<const char*>(c.x) + t * row_bytes;
      const uint64_t entry = static_cast<uint64_t>(t) * d.top_k + lane;
      const int64_t expert = lane < d.top_k ? nmc_dev_impl_ep_expert(c.idx, c.idx_64 != 0, entry) : -1;
      // In the first turn only, and there beside the other loads: none of them waits for another.
      if (unit < d.blocks * movers) over = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
      // 8 elements of fp32 are two vectors: those are loaded later.
      ulonglong2 v[NMC_EP_SEND_UNIT / 32];
      if (d.wire != 1 || d.dtype != 2) {
#pragma unroll
        for (uint32_t i = 0; i < NMC_EP_SEND_UNIT / 32; ++i) {
          const uint32_t at = first + lane + 32 * i;
          if (at < vectors) v[i] = nmc_ep_ld16(x + 16ull * at);
        }
      }
      bool bad;  // found by the last warp, too
      const uint32_t targets = nmc_dev_ep_targets(d, expert, &bad);
      if (__any_sync(0xffffffffu, over != 0)) {
        if (lane == 0) bad_block = 1;
        break;
      }
      if (d.wire != 1) {
        nmc_ep_copy_part(d, v, t, targets, first, vectors);
      } else if (d.dtype == 0) {
        nmc_ep_quantise_part<0>(d, v, x, t, targets, first);
      } else if (d.dtype == 1) {
        nmc_ep_quantise_part<1>(d, v, x, t, targets, first);
      } else {
        nmc_ep_quantise_part<2>(d, v, x, t, targets, first);
      }
    }
  }
  __syncthreads();
  // A mistake must not be followed by flags, nor rows that were not stored.
  if (bad_block != 0) {
    if (block == 0 && threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
    return;
  }
  const uint32_t phase = phase_shared;
  if (threadIdx.x == 0) nmc_dev_ep_signal_dispatch(d, block, phase, tokens);
  if (block != 0) return;
  if ((c.halves & NMC_EP_RECV) != 0) {
    if ((g.early & NMC_EP_EARLY_DISPATCH) != 0) nmc_ep_release_dependents();
    nmc_dev_ep_wait_dispatch(d, phase, tokens);
  } else if (threadIdx.x == 0) {
    nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_TOKENS), tokens);
  }
}

// ---- combine ---------------------------------------------------------------------------------------------------------

// Vectors of a row that a warp sums at a time, two a lane, and ranks whose rows are loaded before the first is added.
static constexpr uint32_t NMC_EP_SUM_UNIT = 64;
static constexpr uint32_t NMC_EP_SUM_RANKS = 4;

template <uint32_t DTYPE>
static __device__ __forceinline__ void nmc_ep_sum_unit(const nmc_ep_rank_t& d, char* out, uint32_t t, uint32_t sources,
                                                       uint32_t first, uint32_t have) {
  constexpr int N = NmcEpVector<DTYPE>::N;
  const uint32_t lane = threadIdx.x & 31;
  float sum[2][N] = {};
  uint32_t left = sources;
  while (left != 0) {
    ulonglong2 v[NMC_EP_SUM_RANKS][2];
    uint32_t n = 0;
#pragma unroll
    for (uint32_t j = 0; j < NMC_EP_SUM_RANKS; ++j) {
      if (left != 0) {
        const char* row = nmc_dev_ep_returned(d, __ffs(static_cast<int>(left)) - 1, t) + 16ull * (first + lane);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          if (lane + 32 * i < have) v[j][i] = nmc_ep_ld16(row + 512 * i);
        }
        left &= left - 1;
        n = j + 1;
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < NMC_EP_SUM_RANKS; ++j) {
      if (j < n) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float f[N];
          NmcEpVector<DTYPE>::load(v[j][i], f);
#pragma unroll
          for (int e = 0; e < N; ++e) sum[i][e] = __fadd_rn(sum[i][e], f[e]);
        }
      }
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if (lane + 32 * i < have) nmc_ep_st16(out + 16ull * (first + lane + 32 * i), NmcEpVector<DTYPE>::store(sum[i]));
  }
}

template <int N>
static __device__ __forceinline__ void nmc_ep_combine(const NmcEpGroup<N>& g) {
  const nmc_ep_rank_t& d = g.rank[blockIdx.x % g.n];
  const NmcEpCall& c = g.call[blockIdx.x % g.n];
  const uint32_t block = blockIdx.x / g.n, blocks = gridDim.x / g.n;
  const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
  nmc_ep_wait_for_previous();
  const uint32_t vectors = d.y_bytes / 16, parts = (vectors + NMC_EP_SUM_UNIT - 1) / NMC_EP_SUM_UNIT;
  uint32_t unit = block * warps + warp;
  const uint64_t failed = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
  const uint32_t phase = nmc_dev_ep_phase(d);
  const uint32_t tokens = nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_TOKENS));
  uint32_t sources = unit / parts < d.t_cap ? nmc_dev_ep_sent(d, unit / parts) : 0;
  // The rows are in place if there is no copy: kernels before this one wrote them. The fence takes as long as the loads
  // above, which nothing has waited for yet.
  const bool signals = c.x == nullptr && (c.halves & NMC_EP_SEND) != 0 && block == 0 && threadIdx.x == 0;
  if (signals) nmc_dev_fence_release_sys();
  // Threads may see it differently: the block agrees where it synchronises anyway, after the copy and in the wait.
  bool over = failed != 0;
  if (signals && !over) nmc_dev_impl_ep_flag_return(d, phase);
  if ((c.halves & NMC_EP_SEND) != 0 && c.x != nullptr) {
    const uint32_t pieces = (vectors + NMC_EP_UNIT - 1) / NMC_EP_UNIT;
    for (uint32_t i = block * warps + warp; !over && i < d.world * d.t_cap * pieces; i += blocks * warps) {
      const uint32_t slot = i / pieces, first = i % pieces * NMC_EP_UNIT;
      if (!nmc_dev_ep_live(d, slot / d.t_cap, slot % d.t_cap)) continue;
      nmc_ep_copy_row(static_cast<const char*>(c.x) + static_cast<uint64_t>(slot) * d.y_bytes,
                      nmc_dev_impl_ep_own(d, d.off_y + static_cast<uint64_t>(slot) * d.y_bytes), first, vectors);
    }
    over = __syncthreads_or(over) != 0;
    if (threadIdx.x == 0 && !over) {
      uint32_t* returned = reinterpret_cast<uint32_t*>(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_RETURNED));
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(returned) : "memory");
      if (before == blocks - 1) {
        nmc_dev_impl_ep_st32(returned, 0);
        nmc_dev_ep_signal_return(d, phase);
      }
    }
  }
  if ((c.halves & NMC_EP_RECV) == 0) {
    if (over && block == 0 && threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
    return;
  }
  if (!nmc_dev_impl_ep_wait(d, NMC_EP_OFF_RETURNS, d.world, 1, phase, block == 0, !over)) return;
  if ((g.early & NMC_EP_EARLY_COMBINE) != 0) nmc_ep_release_dependents();
  while (unit < tokens * parts) {
    const uint32_t t = unit / parts, first = unit % parts * NMC_EP_SUM_UNIT;
    const uint32_t have = vectors - first < NMC_EP_SUM_UNIT ? vectors - first : NMC_EP_SUM_UNIT;
    char* out = static_cast<char*>(c.out) + static_cast<uint64_t>(t) * d.y_bytes;
    if (d.dtype == 0) {
      nmc_ep_sum_unit<0>(d, out, t, sources, first, have);
    } else if (d.dtype == 1) {
      nmc_ep_sum_unit<1>(d, out, t, sources, first, have);
    } else {
      nmc_ep_sum_unit<2>(d, out, t, sources, first, have);
    }
    unit += blocks * warps;
    if (unit < tokens * parts) sources = nmc_dev_ep_sent(d, unit / parts);
  }
}

// ---- pack ------------------------------------------------------------------------------------------------------------

static constexpr uint32_t NMC_EP_PACK_THREADS = 256;
static constexpr uint32_t NMC_EP_MAX_LOCAL = 1024;

// Sum over the threads before this one, and over all of them.
static __device__ __forceinline__ uint32_t nmc_ep_scan(uint32_t value, uint32_t* shared, uint32_t* total) {
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  uint32_t before = 0, all = 0;
#pragma unroll
  for (uint32_t w = 0; w < NMC_EP_PACK_THREADS / 32; ++w) {
    if (w < warp) before += shared[w];
    all += shared[w];
  }
  *total = all;
  return before + sum - value;
}

// The entries of a slot: one bit for those that name expert `e`, and for those that go nowhere here.
static __device__ __forceinline__ void nmc_ep_entries(const nmc_ep_rank_t& d, uint32_t slot, int32_t e, uint32_t* mine,
                                                      uint32_t* none) {
  const char* at = nmc_dev_impl_ep_own(d, d.off_eid + 2ull * slot * d.top_k);
  *mine = *none = 0;
  const auto look = [&](uint32_t k, uint32_t bits) {
    const int32_t expert = static_cast<int16_t>(bits);
    if (expert == e) *mine |= 1u << k;
    if (expert < 0) *none |= 1u << k;
  };
  if (d.top_k == 8) {
    const ulonglong2 v = nmc_ep_ld16(at);
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) look(k, static_cast<uint32_t>((k < 4 ? v.x : v.y) >> (k % 4 * 16)) & 0xffff);
  } else {
    for (uint32_t k = 0; k < d.top_k; ++k) {
      uint16_t bits;
      asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(at + 2 * k) : "memory");
      look(k, bits);
    }
  }
}

// A block has one expert (and one of gridDim.y parts of its rows). It looks through all slots in order, so a row's place
// follows from what came before it and needs no other block.
template <int N>
static __device__ __forceinline__ void nmc_ep_pack(const NmcEpGroup<N>& g) {
  __shared__ uint32_t scratch[NMC_EP_PACK_THREADS / 32];
  __shared__ uint32_t counts[NMC_EP_MAX_LOCAL];
  __shared__ uint32_t list_slot[NMC_EP_PACK_THREADS], list_row[NMC_EP_PACK_THREADS];
  const nmc_ep_rank_t& d = g.rank[blockIdx.x % g.n];
  const NmcEpCall& c = g.call[blockIdx.x % g.n];
  const int32_t e = static_cast<int32_t>(blockIdx.x / g.n);
  const bool writer = blockIdx.y == 0;
  nmc_ep_wait_for_previous();
  if (nmc_ep_over(d, blockIdx.x / g.n == 0)) return;
  const uint32_t slots = d.world * d.t_cap;
  // Groups for rows that do not fit: where those of this expert begin.
  uint32_t spill_first = 0, spill_used = 0;
  if (d.groups > d.n_local) {
    for (uint32_t i = threadIdx.x; i < d.n_local; i += NMC_EP_PACK_THREADS) counts[i] = 0;
    __syncthreads();
    for (uint32_t slot = threadIdx.x; slot < slots; slot += NMC_EP_PACK_THREADS) {
      if (!nmc_dev_ep_live(d, slot / d.t_cap, slot % d.t_cap)) continue;
      for (uint32_t k = 0; k < d.top_k; ++k) {
        uint16_t bits;
        asm volatile("ld.global.u16 %0, [%1];"
                     : "=h"(bits)
                     : "l"(nmc_dev_impl_ep_own(d, d.off_eid + 2 * (static_cast<uint64_t>(slot) * d.top_k + k)))
                     : "memory");
        const int32_t expert = static_cast<int16_t>(bits);
        if (expert >= 0) atomicAdd(&counts[expert], 1u);
      }
    }
    __syncthreads();
    for (uint32_t i = 0; i < d.n_local; ++i) {
      const uint32_t more = counts[i] > d.max_m ? (counts[i] - d.max_m + d.max_m - 1) / d.max_m : 0;
      if (i < static_cast<uint32_t>(e)) spill_first += more;
      spill_used += more;
    }
  }
  const uint32_t spill_groups = d.groups - d.n_local;
  uint32_t rows = 0;
  for (uint32_t base = 0; base < slots; base += NMC_EP_PACK_THREADS) {
    const uint32_t slot = base + threadIdx.x;
    uint32_t entries = 0, none = 0;
    if (slot < slots) {
      nmc_ep_entries(d, slot, e, &entries, &none);
      if (!nmc_dev_ep_live(d, slot / d.t_cap, slot % d.t_cap)) {
        entries = 0;
        none = 0xffffffffu;
      }
    }
    // Entries that go nowhere here belong to nobody else.
    if (writer && e == 0) {
      for (uint32_t k = 0; k < d.top_k; ++k) {
        if (none >> k & 1) c.row_of[static_cast<uint64_t>(slot) * d.top_k + k] = -1;
      }
    }
    uint32_t total;
    const uint32_t before = nmc_ep_scan(static_cast<uint32_t>(__popc(entries)), scratch, &total);
    // A token that names an expert twice has two rows: the list is filled in turns that fit it.
    for (uint32_t turn = 0; turn < total; turn += NMC_EP_PACK_THREADS) {
      __syncthreads();
      uint32_t place = before;
      for (uint32_t left = entries; left != 0; left &= left - 1) {
        const uint64_t at = static_cast<uint64_t>(slot) * d.top_k + __ffs(static_cast<int>(left)) - 1;
        if (place >= turn && place - turn < NMC_EP_PACK_THREADS) {
          const uint32_t n = rows + place;
          uint32_t row = 0xffffffffu;
          if (n < d.max_m) {
            row = static_cast<uint32_t>(e) * d.max_m + n;
          } else if (spill_first + (n - d.max_m) / d.max_m < spill_groups) {
            row = (d.n_local + spill_first + (n - d.max_m) / d.max_m) * d.max_m + (n - d.max_m) % d.max_m;
          }
          list_slot[place - turn] = slot;
          list_row[place - turn] = row;
          if (writer) {
            c.row_of[at] = static_cast<int32_t>(row);
            if (row != 0xffffffffu) c.row_index[row] = static_cast<int32_t>(slot);
          }
        }
        place += 1;
      }
      __syncthreads();
      if (c.out == nullptr) continue;
      const uint32_t n_list = total - turn < NMC_EP_PACK_THREADS ? total - turn : NMC_EP_PACK_THREADS;
      const uint32_t lane = threadIdx.x & 31, warps = NMC_EP_PACK_THREADS / 32 * gridDim.y;
      const uint32_t vectors = d.x_bytes / 16, parts = (vectors + NMC_EP_UNIT - 1) / NMC_EP_UNIT;
      for (uint32_t unit = blockIdx.y * (NMC_EP_PACK_THREADS / 32) + threadIdx.x / 32; unit < n_list * parts; unit += warps) {
        const uint32_t i = unit / parts, first = unit % parts * NMC_EP_UNIT;
        if (list_row[i] == 0xffffffffu) continue;
        nmc_ep_copy_row(nmc_dev_impl_ep_own(d, d.off_x + static_cast<uint64_t>(list_slot[i]) * d.x_bytes),
                        static_cast<char*>(c.out) + static_cast<uint64_t>(list_row[i]) * d.x_bytes, first, vectors);
        if (d.scales != 0 && first == 0) {
          const uint32_t group = list_row[i] / d.max_m, row = list_row[i] % d.max_m, pitch = (d.max_m + 3) / 4 * 4;
          const char* scale = nmc_dev_impl_ep_own(d, d.off_scale + 4ull * list_slot[i] * d.scales);
          for (uint32_t s = lane; s < d.scales; s += 32) {
            c.out_scales[(static_cast<uint64_t>(group) * d.scales + s) * pitch + row] =
                __uint_as_float(nmc_dev_impl_ep_ld32(scale + 4 * s));
          }
        }
      }
    }
    rows += total;
  }
  if (!writer) return;
  // What is left of this expert's groups, and of the groups that nobody uses.
  const uint32_t more = rows > d.max_m ? (rows - 1) / d.max_m : 0;
  for (uint32_t i = 0; i <= more; ++i) {
    const uint32_t group = i == 0 ? static_cast<uint32_t>(e) : d.n_local + spill_first + i - 1;
    if (group >= d.groups) break;
    const uint32_t here = rows - i * d.max_m < d.max_m ? rows - i * d.max_m : d.max_m;
    if (threadIdx.x == 0) {
      c.masked_m[group] = static_cast<int32_t>(here);
      c.group_expert[group] = e;
    }
    for (uint32_t r = here + threadIdx.x; r < d.max_m; r += NMC_EP_PACK_THREADS) {
      c.row_index[static_cast<uint64_t>(group) * d.max_m + r] = -1;
    }
  }
  if (e == static_cast<int32_t>(d.n_local) - 1) {
    for (uint32_t group = d.n_local + spill_used; group < d.groups; ++group) {
      if (threadIdx.x == 0) {
        c.masked_m[group] = 0;
        c.group_expert[group] = -1;
      }
      for (uint32_t r = threadIdx.x; r < d.max_m; r += NMC_EP_PACK_THREADS) {
        c.row_index[static_cast<uint64_t>(group) * d.max_m + r] = -1;
      }
    }
  }
  const uint32_t room = spill_first < spill_groups ? spill_groups - spill_first : 0;
  const uint64_t fits = static_cast<uint64_t>(d.max_m) * (1 + room);
  if (threadIdx.x == 0 && rows > fits) {
    // Atomic for this GPU: a pack of another buffer set may count beside it. The host only reads.
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;"
                 : : "l"(reinterpret_cast<uint64_t*>(d.status) + 8 + e), "l"(rows - fits) : "memory");
  }
}

// ---- scatter ---------------------------------------------------------------------------------------------------------

// Vectors of a row for which a warp asks once what they are the sum of.
static constexpr uint32_t NMC_EP_SCATTER_UNIT = 256;
static constexpr uint32_t NMC_EP_SCATTER_ROWS = 2;

// One warp: two vectors a lane of the sum of the rows whose bit is set in `left`; lane k has the row and weight of entry k.
template <uint32_t DTYPE>
static __device__ __forceinline__ void nmc_ep_scatter_part(const nmc_ep_rank_t& d, const char* grouped, uint32_t left,
                                                           int32_t row, float weight, char* out, uint32_t first,
                                                           uint32_t vectors) {
  constexpr int N = NmcEpVector<DTYPE>::N;
  const uint32_t lane = threadIdx.x & 31;
  float sum[2][N] = {};
  while (left != 0) {
    ulonglong2 v[NMC_EP_SCATTER_ROWS][2];
    float w[NMC_EP_SCATTER_ROWS];
    uint32_t n = 0;
#pragma unroll
    for (uint32_t j = 0; j < NMC_EP_SCATTER_ROWS; ++j) {
      if (left != 0) {
        const int k = __ffs(static_cast<int>(left)) - 1;
        const uint32_t r = static_cast<uint32_t>(__shfl_sync(0xffffffffu, row, k));
        w[j] = __shfl_sync(0xffffffffu, weight, k);
        const char* from = grouped + static_cast<uint64_t>(r) * d.y_bytes;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t at = first + lane + 32 * i;
          if (at < vectors) v[j][i] = nmc_ep_ld16(from + 16ull * at);
        }
        left &= left - 1;
        n = j + 1;
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < NMC_EP_SCATTER_ROWS; ++j) {
      if (j < n) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float f[N];
          NmcEpVector<DTYPE>::load(v[j][i], f);
#pragma unroll
          for (int e = 0; e < N; ++e) sum[i][e] = __fadd_rn(sum[i][e], __fmul_rn(w[j], f[e]));
        }
      }
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t at = first + lane + 32 * i;
    if (at < vectors) nmc_ep_st16(out + 16ull * at, NmcEpVector<DTYPE>::store(sum[i]));
  }
}

template <int N>
static __device__ __forceinline__ void nmc_ep_scatter(const NmcEpGroup<N>& g) {
  const nmc_ep_rank_t& d = g.rank[blockIdx.x % g.n];
  const NmcEpCall& c = g.call[blockIdx.x % g.n];
  const uint32_t block = blockIdx.x / g.n, blocks = gridDim.x / g.n, warps = blockDim.x / 32, lane = threadIdx.x & 31;
  nmc_ep_wait_for_previous();
  if (nmc_ep_over(d, blockIdx.x / g.n == 0)) return;
  const uint32_t vectors = d.y_bytes / 16, parts = (vectors + NMC_EP_SCATTER_UNIT - 1) / NMC_EP_SCATTER_UNIT;
  char* rows = c.out != nullptr ? static_cast<char*>(c.out) : nmc_dev_impl_ep_own(d, d.off_y);
  for (uint32_t unit = block * warps + threadIdx.x / 32; unit < d.world * d.t_cap * parts; unit += blocks * warps) {
    const uint32_t slot = unit / parts;
    const uint64_t entry = static_cast<uint64_t>(slot) * d.top_k + lane;
    int32_t row = -1;
    float weight = 0;
    if (lane < d.top_k) {
      asm volatile("ld.global.s32 %0, [%1];" : "=r"(row) : "l"(c.row_of + entry) : "memory");
      const char* at = nmc_dev_impl_ep_own(d, d.off_weight + d.weight_bytes * entry);
      if (d.weight_bytes == 4) {
        weight = __uint_as_float(nmc_dev_impl_ep_ld32(at));
      } else {
        uint16_t bits;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(at) : "memory");
        weight = __half2float(__ushort_as_half(bits));
      }
    }
    if (!nmc_dev_ep_live(d, slot / d.t_cap, slot % d.t_cap)) continue;
    const uint32_t entries = __ballot_sync(0xffffffffu, row >= 0);
    char* out = rows + static_cast<uint64_t>(slot) * d.y_bytes;
    const uint32_t begin = unit % parts * NMC_EP_SCATTER_UNIT;
    const uint32_t end = begin + NMC_EP_SCATTER_UNIT < vectors ? begin + NMC_EP_SCATTER_UNIT : vectors;
    for (uint32_t first = begin; first < end; first += 64) {
      if (d.dtype == 0) {
        nmc_ep_scatter_part<0>(d, static_cast<const char*>(c.grouped), entries, row, weight, out, first, vectors);
      } else if (d.dtype == 1) {
        nmc_ep_scatter_part<1>(d, static_cast<const char*>(c.grouped), entries, row, weight, out, first, vectors);
      } else {
        nmc_ep_scatter_part<2>(d, static_cast<const char*>(c.grouped), entries, row, weight, out, first, vectors);
      }
    }
  }
}

// ---- entries ---------------------------------------------------------------------------------------------------------
// One rank, up to 8, up to 32 ranks a launch: arguments are copied for every launch.

#define NMC_EP_ENTRIES(N)                                                                                  \
  extern "C" __global__ void __launch_bounds__(256, 4) nmc_k_ep_dispatch_##N(const __grid_constant__ NmcEpGroup<N> g) { \
    nmc_ep_dispatch(g);                                                                                    \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(448, 2) nmc_k_ep_combine_##N(const __grid_constant__ NmcEpGroup<N> g) { \
    nmc_ep_combine(g);                                                                                     \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(NMC_EP_PACK_THREADS)                                        \
      nmc_k_ep_pack_##N(const __grid_constant__ NmcEpGroup<N> g) {                                         \
    nmc_ep_pack(g);                                                                                        \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(448, 2) nmc_k_ep_scatter_##N(const __grid_constant__ NmcEpGroup<N> g) { \
    nmc_ep_scatter(g);                                                                                     \
  }

NMC_EP_ENTRIES(1)
NMC_EP_ENTRIES(8)
NMC_EP_ENTRIES(32)
