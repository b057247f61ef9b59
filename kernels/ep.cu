// Kernels of the expert-parallel transport: dispatch, pack, scatter, combine. docs/ep.md explains the protocol and
// src/ep/cpu does the same on the CPU, bit for bit. Only src/ep/gpu.rs launches them.
//
// A launch serves the ranks of one process that the caller grouped: blockIdx.x is the rank and blockIdx.y the block, so that
// the first blocks of all ranks are placed first. A block that waits depends on blocks of other ranks only; how many of them
// can be resident at once is checked when a group is made.
//
// A step takes microseconds, so that short code counts: kernels are made for one element type each, and nothing is
// divided by a number that is not known to the compiler.

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

// The same where `wanted`, without a branch.
static __device__ __forceinline__ void nmc_ep_st16_if(bool wanted, void* to, ulonglong2 v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.u64 [%0], {%1, %2}; }"
               : : "l"(to), "l"(v.x), "l"(v.y), "r"(static_cast<uint32_t>(wanted)) : "memory");
}

static __device__ __forceinline__ void nmc_ep_st32_if(bool wanted, void* to, uint32_t v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u32 [%0], %1; }"
               : : "l"(to), "r"(v), "r"(static_cast<uint32_t>(wanted)) : "memory");
}

// Asks the L2 cache for a line that is read soon.
static __device__ __forceinline__ void nmc_ep_prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" : : "l"(at)); }

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
  uint32_t n;              // ranks in use
  uint32_t early;          // NMC_EP_EARLY_*, NMC_EP_ALONE
  uint32_t parts;          // pieces of a row that warps work on, and (2^32 - 1) / parts
  uint32_t parts_inverse;
  uint32_t share_bits;     // pack: 2^share_bits blocks share an expert
};

// When the next kernel of the stream may be placed, before this one ends: while a dispatch waits, while a combine sums, and as soon
// as a dispatch begins and as blocks of a pack or a scatter end.
static constexpr uint32_t NMC_EP_EARLY_DISPATCH = 1;
static constexpr uint32_t NMC_EP_EARLY_COMBINE = 2;
static constexpr uint32_t NMC_EP_EARLY_SEND = 8;
// All ranks of the group are in the launch. What was done for any of them was before it on the stream, and what comes next sees all
// that it stored: nobody has to be told or waited for. The next kernel may be placed at once.
static constexpr uint32_t NMC_EP_ALONE = 4;

// A piece of a row, and the one that the same warp works on next.
struct NmcEpPiece {
  uint32_t row, part, rows_on, parts_on, parts;

  // The first one of worker `worker` of `workers`.
  template <int N>
  __device__ __forceinline__ NmcEpPiece(const NmcEpGroup<N>& g, uint32_t worker, uint32_t workers) : parts(g.parts) {
    row = nmc_dev_impl_ep_divide(worker, parts, g.parts_inverse, &part);
    rows_on = nmc_dev_impl_ep_divide(workers, parts, g.parts_inverse, &parts_on);
  }
  __device__ __forceinline__ void next() {
    row += rows_on;
    part += parts_on;
    if (part >= parts) row += 1, part -= parts;
  }
  // For who counts rows from the last one to the first.
  __device__ __forceinline__ void next_down() {
    row -= rows_on;
    part += parts_on;
    if (part >= parts) row -= 1, part -= parts;
  }
  __device__ __forceinline__ bool more_down() const { return static_cast<int32_t>(row) >= 0; }
};

// The rank that a block works for, among those of the launch.
template <int N>
static __device__ __forceinline__ uint32_t nmc_ep_which() {
  return N == 1 ? 0 : blockIdx.x;
}

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

// Reads a word of every line of an argument.
template <typename T>
static __device__ __forceinline__ void nmc_ep_touch(const T& argument) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t word = 0;
  if (64 * lane < sizeof(T)) word = reinterpret_cast<const uint32_t*>(&argument)[16 * lane];
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0x7fedcba9; @p nanosleep.u32 1; }" : : "r"(word));  // a use that does nothing
}

// The beginning of each kernel. Every launch has new arguments, which no cache has yet: a kernel that is placed long before it can
// begin asks for them before it waits. (For others that only delays the wait.)
template <int N>
static __device__ __forceinline__ void nmc_ep_begin(const NmcEpGroup<N>& g) {
  if ((g.early & NMC_EP_ALONE) != 0) {
    if (threadIdx.x < 32) {
      nmc_ep_touch(g.rank[nmc_ep_which<N>()]);
      nmc_ep_touch(g.call[nmc_ep_which<N>()]);
    }
    nmc_ep_release_dependents();
  }
  nmc_ep_wait_for_previous();
}

// Near the end of a block of a kernel that waits for nobody: all its blocks have room when the last of them comes here, so that what is
// placed now cannot keep it from ending.
template <int N>
static __device__ __forceinline__ void nmc_ep_end_early(const NmcEpGroup<N>& g) {
  if ((g.early & NMC_EP_EARLY_SEND) != 0) nmc_ep_release_dependents();
}

// Whether the group has failed; the first block tells the host. For all threads of a block, which say what they have read, and
// the same for all of them: an error that arrives just now may be seen by some and not by others.
static __device__ __forceinline__ bool nmc_ep_over(const nmc_ep_rank_t& d, bool first, bool failed) {
  if (__syncthreads_or(failed) == 0) return false;
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

// 16-byte vectors of a row that a warp moves at a time: to other ranks, and within one. src/ep/gpu.rs has these and other units.
static constexpr uint32_t NMC_EP_SEND_UNIT = 64;
static constexpr uint32_t NMC_EP_UNIT = 128;
// Tokens of a rank whose rows are still in the L2 cache when they are sent.
static constexpr uint32_t NMC_EP_FEW_TOKENS = 64;

// Calls `store` with the number of each rank in `targets`. Numbers are known to the compiler, eight at a time.
template <typename Store>
static __device__ __forceinline__ void nmc_ep_each(uint32_t targets, const Store& store) {
  for (uint32_t first = 0; targets != 0; first += 8, targets >>= 8) {
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
      if (targets >> r & 1) store(first + r);
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

// What warps do with a piece of a row: load it, and once it is known where it goes, store it.
struct NmcEpCopy {
  ulonglong2 v[NMC_EP_SEND_UNIT / 32];

  __device__ __forceinline__ void load(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t t, uint32_t part) {
    const uint32_t first = part * NMC_EP_SEND_UNIT + (threadIdx.x & 31), vectors = d.x_bytes / 16;
    const char* x = static_cast<const char*>(c.x) + static_cast<uint64_t>(t) * d.x_bytes;
#pragma unroll
    for (uint32_t i = 0; i < NMC_EP_SEND_UNIT / 32; ++i) {
      if (first + 32 * i < vectors) v[i] = nmc_ep_ld16(x + 16ull * (first + 32 * i));
    }
  }
  static __device__ __forceinline__ void prefetch(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t t, uint32_t part) {
    const uint32_t line = 8 * (threadIdx.x & 31) + part * NMC_EP_SEND_UNIT;
    if ((threadIdx.x & 31) < NMC_EP_SEND_UNIT / 8 && line < d.x_bytes / 16) {
      nmc_ep_prefetch(static_cast<const char*>(c.x) + static_cast<uint64_t>(t) * d.x_bytes + 16 * line);
    }
  }
  __device__ __forceinline__ void store(const nmc_ep_rank_t& d, uint32_t t, uint32_t part, uint32_t targets) const {
    const uint32_t first = part * NMC_EP_SEND_UNIT + (threadIdx.x & 31), vectors = d.x_bytes / 16;
    const uint64_t at = d.off_x + static_cast<uint64_t>(d.rank * d.t_cap + t) * d.x_bytes + 16ull * first;
    nmc_ep_each(targets, [&](uint32_t r) {
      char* to = nmc_dev_impl_ep_at(d, r, at);
#pragma unroll
      for (uint32_t i = 0; i < NMC_EP_SEND_UNIT / 32; ++i) {
        if (first + 32 * i < vectors) nmc_ep_st16(to + 512 * i, v[i]);
      }
    });
  }
};

// The same with rows that are fp8 already: 1 KiB has 8 scales, which lanes 0 to 7 take along.
struct NmcEpGiven {
  NmcEpCopy rows;
  uint32_t scale;

  static __device__ __forceinline__ uint32_t scale_of(uint32_t part) { return part * (NMC_EP_SEND_UNIT / 8) + (threadIdx.x & 31); }
  static __device__ __forceinline__ bool takes(const nmc_ep_rank_t& d, uint32_t part) {
    return (threadIdx.x & 31) < NMC_EP_SEND_UNIT / 8 && scale_of(part) < d.scales;
  }
  __device__ __forceinline__ void load(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t t, uint32_t part) {
    if (takes(d, part)) scale = __float_as_uint(c.scales[static_cast<uint64_t>(t) * d.scales + scale_of(part)]);
    rows.load(d, c, t, part);
  }
  // Not worth it: half as many bytes are read.
  static __device__ __forceinline__ void prefetch(const nmc_ep_rank_t&, const NmcEpCall&, uint32_t, uint32_t) {}
  __device__ __forceinline__ void store(const nmc_ep_rank_t& d, uint32_t t, uint32_t part, uint32_t targets) const {
    rows.store(d, t, part, targets);
    if (!takes(d, part)) return;
    const uint64_t at = d.off_scale + 4 * (static_cast<uint64_t>(d.rank * d.t_cap + t) * d.scales + scale_of(part));
    nmc_ep_each(targets, [&](uint32_t r) { nmc_dev_impl_ep_st32(nmc_dev_impl_ep_at(d, r, at), scale); });
  }
};

// A group of elements that are all smaller than this has scale 1 and becomes zeros, each with its sign: the inverse of a smaller
// scale is no number any more. src/ep/dtype.rs has the same.
static constexpr float NMC_EP_TINY = 1e-30f;

// The same with 512 elements that become fp8 on the way: a lane has 16 of them, and 8 lanes have those of a scale.
template <uint32_t DTYPE>
struct NmcEpQuantise {
  static constexpr uint32_t LOADS = DTYPE == 2 ? 4 : 2;
  ulonglong2 v[LOADS];

  __device__ __forceinline__ void load(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t t, uint32_t part) {
    const uint32_t sixteen = part * 32 + (threadIdx.x & 31);
    const char* x = static_cast<const char*>(c.x) + static_cast<uint64_t>(t) * d.y_bytes;
#pragma unroll
    for (uint32_t i = 0; i < LOADS; ++i) {
      v[i] = make_ulonglong2(0, 0);
      if (sixteen * 16 < d.hidden) v[i] = nmc_ep_ld16(x + 16ull * (sixteen * LOADS + i));
    }
  }
  static __device__ __forceinline__ void prefetch(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t t, uint32_t part) {
    const uint32_t at = part * 512 * (16 / NmcEpVector<DTYPE>::N) + 128 * (threadIdx.x & 31);
    if ((threadIdx.x & 31) < 4 * (16 / NmcEpVector<DTYPE>::N) && at < d.y_bytes) {
      nmc_ep_prefetch(static_cast<const char*>(c.x) + static_cast<uint64_t>(t) * d.y_bytes + at);
    }
  }
  __device__ __forceinline__ void store(const nmc_ep_rank_t& d, uint32_t t, uint32_t part, uint32_t targets) const {
    constexpr uint32_t EACH = NmcEpVector<DTYPE>::N;
    const uint32_t sixteen = part * 32 + (threadIdx.x & 31);
    float f[16];
#pragma unroll
    for (uint32_t i = 0; i < LOADS; ++i) NmcEpVector<DTYPE>::load(v[i], f + EACH * i);
    float most = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) most = fmaxf(most, fabsf(f[j]));
#pragma unroll
    for (int step = 4; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const bool some = most >= NMC_EP_TINY;
    const float scale = some ? __fdiv_rn(most, 448.0f) : 1.0f;
    const float inverse = some ? __fdiv_rn(448.0f, most) : 1.0f;
    uint64_t packed[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 pair = make_float2(__fmul_rn(f[j], inverse), __fmul_rn(f[j + 1], inverse));
      packed[j / 8] |= static_cast<uint64_t>(__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3)) << (8 * (j % 8));
    }
    if (sixteen * 16 >= d.hidden) return;
    const uint64_t slot = d.rank * d.t_cap + t, at = d.off_x + slot * d.x_bytes + 16ull * sixteen;
    const uint64_t scale_at = d.off_scale + 4 * (slot * d.scales + sixteen / 8);
    // As nmc_ep_each, but without branches: that pays where a rank has few warps. (For rows that are only copied it does not.)
    for (uint32_t first = 0, left = targets; left != 0; first += 8, left >>= 8) {
#pragma unroll
      for (uint32_t r = 0; r < 8; ++r) {
        const bool wanted = (left >> r & 1) != 0;
        nmc_ep_st16_if(wanted, nmc_dev_impl_ep_at(d, first + r, at), make_ulonglong2(packed[0], packed[1]));
        nmc_ep_st32_if(wanted && sixteen % 8 == 0, nmc_dev_impl_ep_at(d, first + r, scale_at), __float_as_uint(scale));
      }
    }
  }
};

// What lane k of a warp finds at entry k of a token; -1 where there is none.
static __device__ __forceinline__ int64_t nmc_ep_entry(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t t) {
  const uint32_t lane = threadIdx.x & 31;
  if (lane >= d.top_k) return -1;
  return nmc_dev_impl_ep_expert(c.idx, c.idx_64 != 0, static_cast<uint64_t>(t) * d.top_k + lane);
}

// One warp of a block tells what rows are for: metadata of its tokens, and records. False if that cannot be said, and the group is
// over.
static __device__ __forceinline__ bool nmc_ep_describe(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t block,
                                                       uint32_t tokens, uint32_t phase, uint64_t over) {
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t t = block; t < tokens; t += d.blocks) {
    const uint64_t entry = static_cast<uint64_t>(t) * d.top_k + lane;
    const int64_t expert = nmc_ep_entry(d, c, t);
    float weight = 0;
    if (lane < d.top_k) {
      weight = d.weight_bytes == 4 ? static_cast<const float*>(c.weight)[entry]
                                   : __half2float(static_cast<const __half*>(c.weight)[entry]);
    }
    bool bad;
    const uint32_t targets = nmc_dev_ep_targets(d, expert, &bad);
    if (__any_sync(0xffffffffu, over != 0)) return false;
    if (bad) {
      if (lane == 0) nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_EXPERT, d.rank, t);
      return false;
    }
    nmc_dev_ep_send_meta(d, t, targets, expert, weight);
    if (c.count_load != 0 && expert >= 0) {
      asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;"
                   : : "l"(nmc_dev_impl_ep_own(d, d.off_load + 8 * expert)) : "memory");
    }
  }
  if (__any_sync(0xffffffffu, over != 0)) return false;
  for (uint32_t dst = block; dst < d.world; dst += d.blocks) {
    nmc_dev_ep_send_record(d, dst, c.idx, c.idx_64 != 0, tokens, phase);
  }
  return true;
}

// The last warp of a block tells what rows are for, and in the end that they are there; the others move rows. Loads that do
// not depend on each other are begun before the first is looked at: each takes as long as a tenth of the whole copy. The word
// that says that the group has failed is one of those loads: a warp that sees it stores nothing, since the memory may belong to
// another group by now, and the block does not signal. It is the first one and no branch is before it: behind a branch that the
// compiler takes for one that may part a warp, every load and store gets its descriptor anew (an eighth of all instructions).
// A block signals for itself; the first one waits for all. With all ranks in the launch there is no signal and no wait.
template <typename Rows, int N>
static __device__ __forceinline__ void nmc_ep_dispatch(const NmcEpGroup<N>& g) {
  const nmc_ep_rank_t& d = g.rank[nmc_ep_which<N>()];
  const NmcEpCall& c = g.call[nmc_ep_which<N>()];
  const uint32_t block = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const uint32_t movers = blockDim.x / 32 - 1;
  const bool alone = (g.early & NMC_EP_ALONE) != 0;
  NmcEpPiece piece(g, block * movers + warp, d.blocks * movers);
  nmc_ep_begin(g);
  const uint64_t over = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
  if ((g.early & NMC_EP_EARLY_SEND) != 0) nmc_ep_release_dependents();
  if ((c.halves & NMC_EP_SEND) == 0) {
    const uint32_t phase = nmc_dev_ep_phase(d) + 1;
    const uint32_t tokens = nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_TOKENS));
    if (!nmc_ep_over(d, true, over != 0)) nmc_dev_ep_wait_dispatch(d, phase, tokens);
    return;
  }
  const uint32_t tokens = c.tokens_at != nullptr ? static_cast<uint32_t>(*c.tokens_at) : c.tokens;
  const bool fits = tokens <= d.t_cap;
  uint32_t phase = 0;
  bool good = fits;
  if (warp == movers) {
    phase = nmc_dev_ep_phase(d) + 1;
    if (fits) {
      // The first block may store the next phase before others look. Nobody reads the one in a record.
      good = nmc_ep_describe(d, c, block, tokens, alone ? 0 : phase, over);
    } else if (block == 0 && lane == 0 && over == 0) {
      nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_TOKENS, d.rank, tokens);
    }
  } else if (fits) {
    // Two pieces at a time: the second one is asked for before the first is stored.
    while (good && piece.row < tokens) {
      const NmcEpPiece one = piece;
      piece.next();
      const NmcEpPiece two = piece;
      piece.next();
      const bool both = two.row < tokens;
      const int64_t expert = nmc_ep_entry(d, c, one.row);
      Rows rows, more;
      rows.load(d, c, one.row, one.part);
      const int64_t next_expert = both ? nmc_ep_entry(d, c, two.row) : -1;
      if (both) more.load(d, c, two.row, two.part);
      bool bad;  // found by the last warp, too
      const uint32_t targets = nmc_dev_ep_targets(d, expert, &bad);
      good = !__any_sync(0xffffffffu, over != 0);
      if (!good) break;
      // More rows than the L2 cache keeps beside all their copies: those of the next turn are asked for while these are stored.
      if (tokens > NMC_EP_FEW_TOKENS && piece.row < tokens) {
        NmcEpPiece after = piece;
        after.next();
        Rows::prefetch(d, c, piece.row, piece.part);
        if (after.row < tokens) Rows::prefetch(d, c, after.row, after.part);
      }
      rows.store(d, one.row, one.part, targets);
      if (!both) break;
      more.store(d, two.row, two.part, nmc_dev_ep_targets(d, next_expert, &bad));
    }
  }
  if (alone) {
    if (warp != movers) return;
    if (!good) {  // no other kernel of the step would tell the hosts of the other ranks
      __syncwarp();
      if (lane < g.n) nmc_dev_impl_ep_tell(g.rank[lane]);
    } else if (block == 0 && lane == 0) {
      nmc_dev_impl_ep_st64(nmc_dev_impl_ep_own(d, d.off_set), static_cast<uint64_t>(phase) | static_cast<uint64_t>(tokens) << 32);
    }
    return;
  }
  // A mistake must not be followed by flags, nor rows that were not stored.
  if (__syncthreads_and(good) == 0) {
    if (block == 0 && threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
    return;
  }
  __shared__ uint32_t phase_shared;
  if (warp == movers) {
    nmc_dev_ep_signal_dispatch(d);
    if (lane == 0) phase_shared = phase;
  }
  if (block != 0) return;
  if ((c.halves & NMC_EP_RECV) != 0) {
    if ((g.early & NMC_EP_EARLY_DISPATCH) != 0) nmc_ep_release_dependents();
    __syncthreads();
    nmc_dev_ep_wait_dispatch(d, phase_shared, tokens);
  } else if (threadIdx.x == 0) {
    nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_TOKENS), tokens);
  }
}

// ---- combine ---------------------------------------------------------------------------------------------------------

// Vectors of a row that a warp sums at a time: one a lane, of up to eight ranks before the first is added.
static constexpr uint32_t NMC_EP_SUM_UNIT = 32;

template <uint32_t DTYPE>
static __device__ __forceinline__ void nmc_ep_sum(const nmc_ep_rank_t& d, uint64_t at, uint32_t sources, char* out) {
  constexpr int EACH = NmcEpVector<DTYPE>::N;
  float sum[EACH] = {};
  for (uint32_t first = 0; sources != 0; first += 8, sources >>= 8) {
    ulonglong2 v[8];
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
      if (sources >> r & 1) v[r] = nmc_ep_ld16(nmc_dev_impl_ep_at(d, first + r, at));
    }
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
      if (sources >> r & 1) {
        float f[EACH];
        NmcEpVector<DTYPE>::load(v[r], f);
#pragma unroll
        for (int e = 0; e < EACH; ++e) sum[e] = __fadd_rn(sum[e], f[e]);
      }
    }
  }
  nmc_ep_st16(out, NmcEpVector<DTYPE>::store(sum));
}

// Copies rows that are not in place to where peers fetch them. One warp has a part of a row.
static __device__ __forceinline__ void nmc_ep_stage(const nmc_ep_rank_t& d, const char* rows, uint32_t worker, uint32_t workers) {
  const uint32_t vectors = d.y_bytes / 16, pieces = (vectors + NMC_EP_UNIT - 1) / NMC_EP_UNIT;
  for (uint32_t i = worker; i < d.world * d.t_cap * pieces; i += workers) {
    const uint32_t slot = i / pieces, first = i % pieces * NMC_EP_UNIT;
    uint32_t t;
    const uint32_t src = nmc_dev_impl_ep_divide(slot, d.t_cap, d.t_cap_inverse, &t);
    if (!nmc_dev_ep_live(d, src, t)) continue;
    nmc_ep_copy_row(rows + static_cast<uint64_t>(slot) * d.y_bytes,
                    nmc_dev_impl_ep_own(d, d.off_y + static_cast<uint64_t>(slot) * d.y_bytes), first, vectors);
  }
}

// All threads of a block, when its rows are stored: the last block of a rank to come tells all ranks that the rows of `phase` are
// there.
static __device__ __forceinline__ bool nmc_ep_return_last(const nmc_ep_rank_t& d, uint32_t blocks, uint32_t phase, bool ok) {
  if (__syncthreads_and(ok) == 0) return false;
  if (threadIdx.x >= 32) return true;
  uint32_t before = 0;
  char* returned = nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_RETURNED);
  if (threadIdx.x == 0) {
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(returned) : "memory");
  }
  if (__shfl_sync(0xffffffffu, before, 0) != blocks - 1) return true;
  if (threadIdx.x == 0) nmc_dev_impl_ep_st32(returned, 0);
  nmc_dev_ep_signal_return(d, phase);
  return true;
}

// The last row that was dispatched comes first: of more rows than the L2 cache holds, it has the last ones.
template <uint32_t DTYPE, int N>
static __device__ __forceinline__ void nmc_ep_combine(const NmcEpGroup<N>& g) {
  const nmc_ep_rank_t& d = g.rank[nmc_ep_which<N>()];
  const NmcEpCall& c = g.call[nmc_ep_which<N>()];
  const uint32_t block = blockIdx.y, blocks = gridDim.y, lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const bool alone = (g.early & NMC_EP_ALONE) != 0;
  NmcEpPiece piece(g, block * warps + warp, blocks * warps);
  nmc_ep_begin(g);
  const uint64_t failed = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
  const uint64_t head = nmc_dev_impl_ep_ld64(nmc_dev_impl_ep_own(d, d.off_set));  // phase, tokens
  const uint32_t phase = static_cast<uint32_t>(head), tokens = static_cast<uint32_t>(head >> 32);
  const uint32_t scattered = nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_SCATTERED));
  // Most steps have as many tokens as there can be, so this is asked for before their number is known.
  uint32_t sources = piece.row < d.t_cap ? nmc_dev_ep_sent(d, d.t_cap - 1 - piece.row) : 0;
  // Threads may see it differently: the block agrees where it synchronises anyway, after the copy and in the wait.
  bool over = failed != 0;
  // The rows are in place if there is no copy: kernels before this one wrote them. A scatter has told of its own.
  const bool tells = c.x == nullptr && (c.halves & NMC_EP_SEND) != 0 && block == 0 && threadIdx.x < 32 && !alone;
  if (tells && !over && scattered != phase) nmc_dev_ep_signal_return(d, phase);
  if ((c.halves & NMC_EP_SEND) != 0 && c.x != nullptr) {
    if (!over) nmc_ep_stage(d, static_cast<const char*>(c.x), block * warps + warp, blocks * warps);
    over = !nmc_ep_return_last(d, blocks, phase, !over);
  }
  if ((c.halves & NMC_EP_RECV) == 0) {
    if (over && block == 0 && threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
    return;
  }
  piece.row = tokens - 1 - piece.row;
  if (tokens != d.t_cap && piece.more_down()) sources = nmc_dev_ep_sent(d, piece.row);
  if (!alone) {
    if (!nmc_dev_impl_ep_wait(d, NMC_EP_OFF_RETURNS, NmcEpFlag{phase}, block == 0, !over)) return;
    if ((g.early & NMC_EP_EARLY_COMBINE) != 0) nmc_ep_release_dependents();
  } else if (__any_sync(0xffffffffu, over)) {
    if (block == 0 && threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
    return;
  }
  const uint32_t vectors = d.y_bytes / 16;
  uint32_t which = nmc_ep_which<N>();
  while (piece.more_down()) {
    asm volatile("" : "+r"(which));  // keeps the addresses of all regions from being carried around in registers
    const nmc_ep_rank_t& d = g.rank[which];
    const uint32_t vector = piece.part * NMC_EP_SUM_UNIT + lane;
    const uint64_t in_row = static_cast<uint64_t>(piece.row) * d.y_bytes + 16ull * vector;
    const uint64_t at = d.off_y + static_cast<uint64_t>(d.rank * d.t_cap) * d.y_bytes + in_row;
    const uint32_t now = sources;
    piece.next_down();
    if (piece.more_down()) sources = nmc_dev_ep_sent(d, piece.row);  // asked for before the rows of this one
    if (vector < vectors) nmc_ep_sum<DTYPE>(d, at, now, static_cast<char*>(c.out) + in_row);
  }
}

// ---- which slots are in use ------------------------------------------------------------------------------------------

static __device__ __forceinline__ bool nmc_ep_slot_live(const nmc_ep_rank_t& d, uint32_t slot) {
  uint32_t t;
  const uint32_t src = nmc_dev_impl_ep_divide(slot, d.t_cap, d.t_cap_inverse, &t);
  return nmc_dev_ep_live(d, src, t);
}

// The slots that are in use, for a warp that goes through them: lane i has word i of all masks. Of more than 32 words a warp
// cannot keep track; it goes through all slots then.
struct NmcEpLive {
  uint32_t mask, base, before;  // the lane's word, the slot of its first bit, and how many are in use before it
  uint32_t total;
  bool known;
  const char* at;  // where the word is

  // Before anything is waited for.
  __device__ __forceinline__ explicit NmcEpLive(const nmc_ep_rank_t& d) : mask(0), base(0xffffffffu), before(0), at(nullptr) {
    const uint32_t lane = threadIdx.x & 31, words = (d.t_cap + 31) / 32;
    known = d.world * words <= 32;
    total = d.world * d.t_cap;
    if (known && lane < d.world * words) {
      const uint64_t record = d.off_record + static_cast<uint64_t>(lane / words) * d.record_stride;
      at = nmc_dev_impl_ep_own(d, record + NMC_EP_RECORD_HEAD + lane % words * 4);
      base = lane / words * d.t_cap + lane % words * 32;
    }
    asm volatile("" : "+l"(at));  // computed here, not where it is used
  }
  // Who needs more from memory asks for it between these two.
  __device__ __forceinline__ void ask() {
    if (at != nullptr) mask = nmc_dev_impl_ep_ld32(at);
  }
  __device__ __forceinline__ void count() {
    if (!known) return;
    const uint32_t lane = threadIdx.x & 31, mine = static_cast<uint32_t>(__popc(mask));
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    before = sum - mine;
    total = __shfl_sync(0xffffffffu, sum, 31);
  }
};

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

// Row `row` of the grouped layout: a part of slot `slot`, and with the first part its scales.
static __device__ __forceinline__ void nmc_ep_pack_scales(const nmc_ep_rank_t& d, const NmcEpCall& c, uint32_t slot, uint32_t row) {
  const uint32_t group = row / d.max_m, at = row % d.max_m, pitch = (d.max_m + 3) / 4 * 4;
  const char* scale = nmc_dev_impl_ep_own(d, d.off_scale + 4ull * slot * d.scales);
  for (uint32_t s = threadIdx.x & 31; s < d.scales; s += 32) {
    c.out_scales[(static_cast<uint64_t>(group) * d.scales + s) * pitch + at] = __uint_as_float(nmc_dev_impl_ep_ld32(scale + 4 * s));
  }
}

// All threads of a block. Groups for rows that do not fit: where those of expert `e` begin, and how many are in use.
static __device__ __forceinline__ void nmc_ep_count_spilled(const nmc_ep_rank_t& d, uint32_t e, uint32_t* counts, uint32_t* first,
                                                            uint32_t* used) {
  for (uint32_t i = threadIdx.x; i < d.n_local; i += NMC_EP_PACK_THREADS) counts[i] = 0;
  __syncthreads();
  for (uint32_t slot = threadIdx.x; slot < d.world * d.t_cap; slot += NMC_EP_PACK_THREADS) {
    if (!nmc_ep_slot_live(d, slot)) continue;
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
    if (i < e) *first += more;
    *used += more;
  }
}

// A block has one expert and a share of its rows. It looks through all slots in order, so a row's place
// follows from what came before it and needs no other block.
template <int N>
static __device__ __forceinline__ void nmc_ep_pack(const NmcEpGroup<N>& g) {
  __shared__ uint32_t scratch[NMC_EP_PACK_THREADS / 32];
  __shared__ uint32_t counts[NMC_EP_MAX_LOCAL];
  __shared__ uint32_t list_slot[NMC_EP_PACK_THREADS], list_row[NMC_EP_PACK_THREADS];
  const nmc_ep_rank_t& d = g.rank[nmc_ep_which<N>()];
  const NmcEpCall& c = g.call[nmc_ep_which<N>()];
  const uint32_t share = blockIdx.y & ((1u << g.share_bits) - 1);
  const int32_t e = static_cast<int32_t>(blockIdx.y >> g.share_bits);
  const bool writer = share == 0;
  nmc_ep_begin(g);
  const bool failed = nmc_dev_ep_failed(d);
  const uint32_t slots = d.world * d.t_cap;
  uint32_t spill_first = 0, spill_used = 0;
  const uint32_t spill_groups = d.groups - d.n_local;
  uint32_t rows = 0;
  for (uint32_t base = 0; base < slots; base += NMC_EP_PACK_THREADS) {
    const uint32_t slot = base + threadIdx.x;
    uint32_t entries = 0, none = 0;
    if (slot < slots) {
      const bool live = nmc_ep_slot_live(d, slot);
      nmc_ep_entries(d, slot, e, &entries, &none);
      if (!live) entries = 0, none = 0xffffffffu;
    }
    // None of the loads so far waits for another.
    if (base == 0) {
      if (nmc_ep_over(d, blockIdx.y == 0, failed)) return;
      if (d.groups > d.n_local) nmc_ep_count_spilled(d, static_cast<uint32_t>(e), counts, &spill_first, &spill_used);
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
      constexpr uint32_t kWarps = NMC_EP_PACK_THREADS / 32;
      const uint32_t vectors = d.x_bytes / 16;
      NmcEpPiece piece(g, share * kWarps + threadIdx.x / 32, kWarps << g.share_bits);
      for (; piece.row < n_list; piece.next()) {
        const uint32_t i = piece.row, first = piece.part * NMC_EP_UNIT;
        if (list_row[i] == 0xffffffffu) continue;
        nmc_ep_copy_row(nmc_dev_impl_ep_own(d, d.off_x + static_cast<uint64_t>(list_slot[i]) * d.x_bytes),
                        static_cast<char*>(c.out) + static_cast<uint64_t>(list_row[i]) * d.x_bytes, first, vectors);
        if (d.scales != 0 && first == 0) nmc_ep_pack_scales(d, c, list_slot[i], list_row[i]);
      }
    }
    rows += total;
  }
  nmc_ep_end_early(g);
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

// Vectors of a row that a warp sums at a time, two a lane, and rows that are loaded before the first is added.
static constexpr uint32_t NMC_EP_SCATTER_UNIT = 64;
static constexpr uint32_t NMC_EP_SCATTER_ROWS = 2;

// One warp: two vectors a lane of the sum of the rows whose bit is set in `left`. `entry` says row and weight of an entry.
template <uint32_t DTYPE, typename Entry>
static __device__ __forceinline__ void nmc_ep_scatter_part(const nmc_ep_rank_t& d, const char* grouped, uint32_t left,
                                                           const Entry& entry, char* out, uint32_t first, uint32_t vectors) {
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
        const uint32_t r = entry(k, &w[j]);
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

// Of a step that is small enough a block keeps in shared memory which slots are in use, and all rows and weights: read once and at
// the same time, not slot by slot.
struct NmcEpSums {
  static constexpr uint32_t SLOTS = 1024, ENTRIES = 2048;
  uint32_t slot[SLOTS];  // the n-th in use
  int32_t row[ENTRIES];
  float weight[ENTRIES];

  static __device__ __forceinline__ float load_weight(const nmc_ep_rank_t& d, uint64_t entry) {
    const char* at = nmc_dev_impl_ep_own(d, d.off_weight + d.weight_bytes * entry);
    if (d.weight_bytes == 4) return __uint_as_float(nmc_dev_impl_ep_ld32(at));
    uint16_t bits;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(at) : "memory");
    return __half2float(__ushort_as_half(bits));
  }
  // Rows and weights. All threads of a block, which synchronise afterwards. False if they do not fit.
  __device__ __forceinline__ bool load_entries(const nmc_ep_rank_t& d, const NmcEpCall& c) {
    const uint32_t entries = d.world * d.t_cap * d.top_k;
    if (entries > ENTRIES) return false;
    constexpr uint32_t AHEAD = 5;
    for (uint32_t base = threadIdx.x; base < entries; base += AHEAD * blockDim.x) {
      int32_t r[AHEAD];
      float w[AHEAD];
#pragma unroll
      for (uint32_t i = 0; i < AHEAD; ++i) {
        const uint32_t at = base + i * blockDim.x;
        if (at >= entries) continue;
        asm volatile("ld.global.s32 %0, [%1];" : "=r"(r[i]) : "l"(c.row_of + at) : "memory");
        w[i] = load_weight(d, at);
      }
#pragma unroll
      for (uint32_t i = 0; i < AHEAD; ++i) {
        const uint32_t at = base + i * blockDim.x;
        if (at < entries) row[at] = r[i], weight[at] = w[i];
      }
    }
    return true;
  }
  // Slots in use, when they are counted. Otherwise the same.
  __device__ __forceinline__ void list_slots(const nmc_ep_rank_t& d, const NmcEpLive& live) {
    const uint32_t lane = threadIdx.x & 31, words = (d.t_cap + 31) / 32;
    for (uint32_t word = threadIdx.x / 32; word < d.world * words; word += blockDim.x / 32) {
      const uint32_t bits = __shfl_sync(0xffffffffu, live.mask, word), first = __shfl_sync(0xffffffffu, live.base, word);
      const uint32_t n = __shfl_sync(0xffffffffu, live.before, word) + static_cast<uint32_t>(__popc(bits & ((1u << lane) - 1)));
      if (bits >> lane & 1) slot[n] = first + lane;
    }
  }
};

// What a slot is the sum of: lane k has the row and the weight of entry k.
struct NmcEpSum {
  static constexpr uint32_t NONE = 0xffffffffu;
  uint32_t slot;  // NONE if it is not in use
  int32_t row;
  float weight;
  __device__ __forceinline__ NmcEpSum(const nmc_ep_rank_t& d, const NmcEpCall& c, const NmcEpSums& sums, bool known, uint32_t total,
                                      uint32_t n)
      : slot(NONE), row(-1), weight(0) {
    if (n >= total) return;
    const uint32_t lane = threadIdx.x & 31;
    slot = known ? sums.slot[n] : n;
    const uint64_t entry = static_cast<uint64_t>(slot) * d.top_k + lane;
    if (lane < d.top_k) {
      asm volatile("ld.global.s32 %0, [%1];" : "=r"(row) : "l"(c.row_of + entry) : "memory");
      weight = NmcEpSums::load_weight(d, entry);
    }
    if (!known && !nmc_ep_slot_live(d, slot)) slot = NONE;
  }
};

// In place, the last block to end tells all ranks that their rows are there, so that the combine need not. What slots are the sums
// of is in shared memory, or of a large step asked for before the slot ahead is summed. Slots are sums of one row or of many: a
// block has pieces of many slots, and its warps take the next one when they are done with one.
template <uint32_t DTYPE, int N>
static __device__ __forceinline__ void nmc_ep_scatter(const NmcEpGroup<N>& g) {
  const nmc_ep_rank_t& d = g.rank[nmc_ep_which<N>()];
  const NmcEpCall& c = g.call[nmc_ep_which<N>()];
  const uint32_t block = blockIdx.y, blocks = gridDim.y;
  __shared__ uint32_t next_piece, phase;
  __shared__ NmcEpSums sums;
  if (threadIdx.x == 0) next_piece = block + blockDim.x / 32 * blocks;
  uint32_t part, row = nmc_dev_impl_ep_divide(block + threadIdx.x / 32 * blocks, g.parts, g.parts_inverse, &part);
  NmcEpLive live(d);
  nmc_ep_begin(g);
  // None of these loads waits for another. The first one is behind no branch, as in the dispatch.
  const bool failed = nmc_dev_ep_failed(d);
  live.ask();
  const uint32_t last = threadIdx.x == 0 ? nmc_dev_ep_phase(d) : 0;
  const bool known = live.known, fits = known && sums.load_entries(d, c);
  live.count();
  const uint32_t total = live.total;
  if (known) sums.list_slots(d, live);
  if (threadIdx.x == 0) phase = last;
  if (nmc_ep_over(d, block == 0, failed)) return;
  uint32_t which = nmc_ep_which<N>();
  while (fits && row < total) {
    asm volatile("" : "+r"(which));  // as in the combine
    const nmc_ep_rank_t& d = g.rank[which];
    const NmcEpCall& c = g.call[which];
    const uint32_t lane = threadIdx.x & 31, slot = sums.slot[row], at = slot * d.top_k;
    const uint32_t entries = __ballot_sync(0xffffffffu, lane < d.top_k && sums.row[at + lane] >= 0);
    char* rows = c.out != nullptr ? static_cast<char*>(c.out) : nmc_dev_impl_ep_own(d, d.off_y);
    const auto entry = [&](int k, float* weight) {
      *weight = sums.weight[at + k];
      return static_cast<uint32_t>(sums.row[at + k]);
    };
    nmc_ep_scatter_part<DTYPE>(d, static_cast<const char*>(c.grouped), entries, entry, rows + static_cast<uint64_t>(slot) * d.y_bytes,
                               part * NMC_EP_SCATTER_UNIT, d.y_bytes / 16);
    if (lane == 0) row = atomicAdd(&next_piece, blocks);
    row = nmc_dev_impl_ep_divide(__shfl_sync(0xffffffffu, row, 0), g.parts, g.parts_inverse, &part);
  }
  if (fits) row = total;
  NmcEpSum next(d, c, sums, known, total, row);
  while (row < total) {
    asm volatile("" : "+r"(which));  // as in the combine
    const nmc_ep_rank_t& d = g.rank[which];
    const NmcEpCall& c = g.call[which];
    const uint32_t vectors = d.y_bytes / 16;
    char* rows = c.out != nullptr ? static_cast<char*>(c.out) : nmc_dev_impl_ep_own(d, d.off_y);
    const NmcEpSum sum = next;
    char* out = rows + static_cast<uint64_t>(sum.slot) * d.y_bytes;
    const uint32_t first = part * NMC_EP_SCATTER_UNIT;
    if ((threadIdx.x & 31) == 0) row = atomicAdd(&next_piece, blocks);
    row = nmc_dev_impl_ep_divide(__shfl_sync(0xffffffffu, row, 0), g.parts, g.parts_inverse, &part);
    next = NmcEpSum(d, c, sums, known, total, row);
    if (sum.slot == NmcEpSum::NONE) continue;
    const uint32_t entries = __ballot_sync(0xffffffffu, sum.row >= 0);
    const auto entry = [&](int k, float* weight) {
      *weight = __shfl_sync(0xffffffffu, sum.weight, k);
      return static_cast<uint32_t>(__shfl_sync(0xffffffffu, sum.row, k));
    };
    nmc_ep_scatter_part<DTYPE>(d, static_cast<const char*>(c.grouped), entries, entry, out, first, vectors);
  }
  nmc_ep_end_early(g);
  if (c.out != nullptr || (g.early & NMC_EP_ALONE) != 0) return;
  if (block == 0 && threadIdx.x == 0) nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_SCATTERED), phase);
  nmc_ep_return_last(d, blocks, phase, true);
}

// ---- entries ---------------------------------------------------------------------------------------------------------
// One rank, up to 8, up to 32 ranks a launch: arguments are copied for every launch. Registers are limited so that two blocks of
// 448 threads fit a multiprocessor, or one of 896. Fewer make kernels spill, which costs a third of a step.

#define NMC_EP_ENTRY(STEP, NAME, N, REGISTERS, ...)                                \
  extern "C" __global__ void __maxnreg__(REGISTERS)                                \
      nmc_k_ep_##STEP##_##NAME##_##N(const __grid_constant__ NmcEpGroup<N> g) {    \
    nmc_ep_##STEP<__VA_ARGS__>(g);                                                 \
  }

#define NMC_EP_ENTRIES(N, COMBINE)                           \
  NMC_EP_ENTRY(dispatch, copy, N, 64, NmcEpCopy)             \
  NMC_EP_ENTRY(dispatch, given, N, 64, NmcEpGiven)           \
  NMC_EP_ENTRY(dispatch, bf16, N, 64, NmcEpQuantise<0>)      \
  NMC_EP_ENTRY(dispatch, fp16, N, 64, NmcEpQuantise<1>)      \
  NMC_EP_ENTRY(dispatch, fp32, N, 72, NmcEpQuantise<2>)      \
  NMC_EP_ENTRY(combine, bf16, N, COMBINE, 0)                 \
  NMC_EP_ENTRY(combine, fp16, N, COMBINE, 1)                 \
  NMC_EP_ENTRY(combine, fp32, N, COMBINE, 2)                 \
  NMC_EP_ENTRY(pack, rows, N, 64, N)                         \
  NMC_EP_ENTRY(scatter, bf16, N, 72, 0)                      \
  NMC_EP_ENTRY(scatter, fp16, N, 72, 1)                      \
  NMC_EP_ENTRY(scatter, fp32, N, 72, 2)

NMC_EP_ENTRIES(1, 64)
NMC_EP_ENTRIES(8, 72)
NMC_EP_ENTRIES(32, 72)
