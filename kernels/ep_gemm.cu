// Kernels of the experts: a masked grouped GEMM and the activation between the two GEMMs of an expert. Group g has
// max_m rows of space and masked_m[g] of them in use; nothing is read or written behind those.
// Both read activations through the coherent path, since a peer may have written them before the launch.
// Only src/ep/gpu.rs launches them, with the argument order below.
//
// Launch of nmc_k_ep_gemm:     grid (ceil(n / 64), groups, 1), block (128, 1, 1), no dynamic shared memory
//                              (48 KB static: no function attribute to set).
// Launch of nmc_k_ep_silu_mul_bf16, nmc_k_ep_silu_mul_fp16, nmc_k_ep_silu_mul_fp32:
//                              grid (x, groups, 1) with x = min(max_m, 16), block (256, 1, 1), no shared memory;
//                              any x of at least 1 is right.
// No grid dimension may be 0: with groups, max_m, n or inner 0 there is nothing to launch. groups is at most 65535.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// src/ep/gpu.rs has the same numbers.
static constexpr uint32_t NMC_EP_GEMM_THREADS = 128;
static constexpr uint32_t NMC_EP_GEMM_TILE_N = 64;
static constexpr uint32_t NMC_EP_SILU_THREADS = 256;

// Static shared memory of a GEMM block: the most that needs no attribute, and four blocks fit an SM of sm_90.
static constexpr uint32_t NMC_EP_GEMM_SHARED_BYTES = 48 * 1024;

// ---- instructions -------------------------------------------------------------------------------------------------

// 16 bytes to shared memory, of which the first `bytes` (16 or 0) come from `src` and the rest is zero. Past L1, and
// with the whole line into L2: the next step of k wants the other half when a step is shorter than a line.
static __device__ __forceinline__ void nmc_ep_copy16_async(uint32_t dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               : : "r"(dst), "l"(__cvta_generic_to_global(src)), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void nmc_ep_copy_commit() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}

// Waits for all but the last `PENDING` groups of this thread.
template <uint32_t PENDING>
static __device__ __forceinline__ void nmc_ep_copy_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
static __device__ __forceinline__ void nmc_ep_ldmatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

static __device__ __forceinline__ void nmc_ep_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- GEMM ---------------------------------------------------------------------------------------------------------

// One tile of M rows and N columns, in steps of K along k through STAGES buffers. WARPS_M of the warps lie along M.
template <uint32_t M_, uint32_t N_, uint32_t K_, uint32_t STAGES_, uint32_t WARPS_M_>
struct NmcEpTile {
  static constexpr uint32_t M = M_, N = N_, K = K_, STAGES = STAGES_, WARPS_M = WARPS_M_;
  static constexpr uint32_t WARPS_N = NMC_EP_GEMM_THREADS / 32 / WARPS_M;
  static constexpr uint32_t WARP_M = M / WARPS_M, WARP_N = N / WARPS_N;
  static constexpr uint32_t ROW_BYTES = K * 2, CHUNKS = K / 8;
  static constexpr uint32_t A_BYTES = M * ROW_BYTES, STAGE_BYTES = (M + N) * ROW_BYTES;
  // Rows that the block copies at a time, a chunk per thread.
  static constexpr uint32_t PASS = NMC_EP_GEMM_THREADS / CHUNKS;

  static_assert(K == 64 || K == 32, "the swizzle is for rows of 128 or 64 bytes");
  static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp works on 16x16");
  static_assert(M % PASS == 0 && N % PASS == 0 && PASS % 16 == 0, "whole passes, and the swizzle repeats every 8 rows");
  static_assert(STAGES >= 2 && STAGES * STAGE_BYTES <= NMC_EP_GEMM_SHARED_BYTES, "shared memory");

  // Which chunk of a row lies first, so that 8 rows of one chunk are in 8 different groups of 4 banks.
  static __device__ __forceinline__ uint32_t swizzle(uint32_t row) { return K == 64 ? row % 8 : row / 2 % 4; }
};

// Few rows: only the weights count, so a narrow tile for many blocks, each with three steps on the way.
using NmcEpTileFew = NmcEpTile<16, 64, 64, 4, 1>;
// More rows: a wide tile, since every block of the group reads the rows again (from L2).
using NmcEpTileMany = NmcEpTile<64, 128, 32, 4, 2>;

static_assert(NmcEpTileFew::N == NMC_EP_GEMM_TILE_N, "the grid counts these");
static_assert(NmcEpTileMany::N == 2 * NMC_EP_GEMM_TILE_N, "every second block does the work of two");

// c = a * b^T for `rows` <= M rows and `cols` <= N columns; a and b have rows of `k`, c has rows of `n`. By the block.
template <typename T>
static __device__ __forceinline__ void nmc_ep_gemm_tile(uint32_t shared, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                                        __nv_bfloat16* c, uint32_t rows, uint32_t cols, uint32_t n,
                                                        uint32_t k) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t warp_row = warp / T::WARPS_N * T::WARP_M, warp_col = warp % T::WARPS_N * T::WARP_N;

  // Copies: this thread takes one chunk of the rows copy_row, copy_row + PASS, ...
  const uint32_t copy_row = threadIdx.x / T::CHUNKS, chunk = threadIdx.x % T::CHUNKS;
  const uint32_t copy_to = copy_row * T::ROW_BYTES + (chunk ^ T::swizzle(copy_row)) * 16;
  const __nv_bfloat16* a_from = a + static_cast<uint64_t>(copy_row) * k;
  const __nv_bfloat16* b_from = b + static_cast<uint64_t>(copy_row) * k;
  const uint64_t pass = static_cast<uint64_t>(T::PASS) * k;

  // Rows and columns behind the end are not copied: what lies in shared memory there only gets into results that are
  // not stored. Chunks behind the end of k get into all results, so they are zero on both sides.
  const auto copy = [&](uint32_t step) {
    const uint32_t to = shared + step % T::STAGES * T::STAGE_BYTES + copy_to;
    const bool there = step * T::K + chunk * 8 < k;
    const uint32_t at = there ? step * T::K + chunk * 8 : 0; // an address inside, although nothing is read
    const uint32_t bytes = there ? 16 : 0;
#pragma unroll
    for (uint32_t i = 0; i < T::N / T::PASS; ++i) {
      if (copy_row + i * T::PASS < cols) {
        nmc_ep_copy16_async(to + T::A_BYTES + i * T::PASS * T::ROW_BYTES, b_from + i * pass + at, bytes);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < T::M / T::PASS; ++i) {
      if (copy_row + i * T::PASS < rows) {
        nmc_ep_copy16_async(to + i * T::PASS * T::ROW_BYTES, a_from + i * pass + at, bytes);
      }
    }
  };

  // Fragments: the lane's row for ldmatrix. a takes rows 0-7 and 8-15 of one chunk, then of the next; b takes one chunk
  // and the next of rows 0-7, then of 8-15.
  const uint32_t a_row = lane % 16, a_chunk = lane / 16;
  const uint32_t b_row = lane % 8 + lane / 16 * 8, b_chunk = lane / 8 % 2;
  const uint32_t a_at = (warp_row + a_row) * T::ROW_BYTES, a_swizzle = T::swizzle(a_row);
  const uint32_t b_at = T::A_BYTES + (warp_col + b_row) * T::ROW_BYTES, b_swizzle = T::swizzle(b_row);

  float sum[T::WARP_M / 16][T::WARP_N / 8][4] = {};
  const uint32_t steps = (k + T::K - 1) / T::K;
#pragma unroll
  for (uint32_t step = 0; step < T::STAGES - 1; ++step) {
    if (step < steps) copy(step);
    nmc_ep_copy_commit();
  }
  for (uint32_t step = 0; step < steps; ++step) {
    nmc_ep_copy_wait<T::STAGES - 2>();
    __syncthreads(); // this step has come for all threads, and all are done with the one before
    if (step + T::STAGES - 1 < steps) copy(step + T::STAGES - 1);
    nmc_ep_copy_commit(); // also when empty, so that the wait above counts steps

    if (warp_row < rows) {
      const uint32_t from = shared + step % T::STAGES * T::STAGE_BYTES;
#pragma unroll
      for (uint32_t kk = 0; kk < T::CHUNKS; kk += 2) {
        uint32_t af[T::WARP_M / 16][4];
#pragma unroll
        for (uint32_t i = 0; i < T::WARP_M / 16; ++i) {
          nmc_ep_ldmatrix(af[i], from + a_at + i * 16 * T::ROW_BYTES + ((kk + a_chunk) ^ a_swizzle) * 16);
        }
#pragma unroll
        for (uint32_t j = 0; j < T::WARP_N / 16; ++j) {
          uint32_t bf[4];
          nmc_ep_ldmatrix(bf, from + b_at + j * 16 * T::ROW_BYTES + ((kk + b_chunk) ^ b_swizzle) * 16);
#pragma unroll
          for (uint32_t i = 0; i < T::WARP_M / 16; ++i) {
            nmc_ep_mma(sum[i][2 * j], af[i], bf[0], bf[1]);
            nmc_ep_mma(sum[i][2 * j + 1], af[i], bf[2], bf[3]);
          }
        }
      }
    }
  }
  __syncthreads(); // the next tile of this block may fill the buffers again

  // 4 bytes at a time: the results are a few percent of the weights at most. n is even, so a pair is inside or outside.
#pragma unroll
  for (uint32_t i = 0; i < T::WARP_M / 16; ++i) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = warp_row + i * 16 + half * 8 + lane / 4;
      if (row >= rows) continue;
      __nv_bfloat16* out = c + static_cast<uint64_t>(row) * n;
#pragma unroll
      for (uint32_t j = 0; j < T::WARP_N / 8; ++j) {
        const uint32_t col = warp_col + j * 8 + lane % 4 * 2;
        if (col < cols) {
          *reinterpret_cast<__nv_bfloat162*>(out + col) =
              __floats2bfloat162_rn(sum[i][j][2 * half], sum[i][j][2 * half + 1]);
        }
      }
    }
  }
}

// The rows of group g that are in use.
static __device__ __forceinline__ uint32_t nmc_ep_rows(const int32_t* masked_m, uint32_t group, uint32_t max_m) {
  const int32_t m = masked_m[group];
  if (m <= 0) return 0;
  return static_cast<uint32_t>(m) < max_m ? static_cast<uint32_t>(m) : max_m;
}

// For each group g and each row r < min(masked_m[g], max_m): c[g][r][:] = a[g][r][:] * b[e]^T with e = group_expert[g],
// or g if `group_expert` is null; a group with e < 0 is skipped. a is [groups][max_m][k], b [experts][n][k], c
// [groups][max_m][n]; sums in fp32, rounded once. n and k are multiples of 8; a and b are 16-byte aligned, c 4-byte.
//
// Grid: x = 64 columns, y = group. The tile depends on the rows, which only the device knows: with more than 16, even
// blocks take 128 columns and odd blocks return. Up to 64 rows a weight is read once; beyond, once per 64 rows.
extern "C" __global__ void __launch_bounds__(NMC_EP_GEMM_THREADS, 4)
nmc_k_ep_gemm(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, const int32_t* masked_m,
              const int32_t* group_expert, uint32_t groups, uint32_t max_m, uint32_t n, uint32_t k) {
  __shared__ __align__(128) unsigned char buffers[NMC_EP_GEMM_SHARED_BYTES];
  const uint32_t group = blockIdx.y, col = blockIdx.x * NMC_EP_GEMM_TILE_N;
  if (group >= groups || col >= n) return;
  const uint32_t m = nmc_ep_rows(masked_m, group, max_m);
  if (m == 0) return;
  const int32_t expert = group_expert != nullptr ? group_expert[group] : static_cast<int32_t>(group);
  if (expert < 0) return;

  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(buffers));
  const uint64_t first = static_cast<uint64_t>(group) * max_m;
  a += first * k;
  b += (static_cast<uint64_t>(expert) * n + col) * k;
  c += first * n + col;
  if (m <= NmcEpTileFew::M) {
    nmc_ep_gemm_tile<NmcEpTileFew>(shared, a, b, c, m, min(n - col, NmcEpTileFew::N), n, k);
    return;
  }
  if (blockIdx.x % 2 != 0) return;
  for (uint32_t row = 0; row < m; row += NmcEpTileMany::M) {
    nmc_ep_gemm_tile<NmcEpTileMany>(shared, a + static_cast<uint64_t>(row) * k, b, c + static_cast<uint64_t>(row) * n,
                                    min(m - row, NmcEpTileMany::M), min(n - col, NmcEpTileMany::N), n, k);
  }
}

// ---- activation ---------------------------------------------------------------------------------------------------

static __device__ __forceinline__ float nmc_ep_silu_mul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

static __device__ __forceinline__ uint32_t nmc_ep_silu_mul_pair(uint32_t gate, uint32_t up) {
  // A bf16 is the upper half of a float.
  const float low = nmc_ep_silu_mul(__uint_as_float(gate << 16), __uint_as_float(up << 16));
  const float high = nmc_ep_silu_mul(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u));
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}

// out[g][r][i] = silu(gate_up[g][r][i]) * gate_up[g][r][inner + i] for each r < min(masked_m[g], max_m), in fp32,
// rounded once. gate_up is [groups][max_m][2 * inner], out [groups][max_m][inner]; 16-byte aligned, not overlapping.
// Grid: y = group; block x takes rows x, x + gridDim.x, ...
extern "C" __global__ void __launch_bounds__(NMC_EP_SILU_THREADS)
nmc_k_ep_silu_mul_bf16(const __nv_bfloat16* gate_up, __nv_bfloat16* out, const int32_t* masked_m, uint32_t groups,
                  uint32_t max_m, uint32_t inner) {
  const uint32_t group = blockIdx.y;
  if (group >= groups) return;
  const uint32_t m = nmc_ep_rows(masked_m, group, max_m);
  for (uint32_t r = blockIdx.x; r < m; r += gridDim.x) {
    const uint64_t row = static_cast<uint64_t>(group) * max_m + r;
    const __nv_bfloat16* gate = gate_up + row * 2 * inner;
    const __nv_bfloat16* up = gate + inner;
    __nv_bfloat16* to = out + row * inner;
    if (inner % 8 == 0) {
      for (uint32_t i = threadIdx.x; i < inner / 8; i += blockDim.x) {
        const uint4 x = reinterpret_cast<const uint4*>(gate)[i];
        const uint4 y = reinterpret_cast<const uint4*>(up)[i];
        reinterpret_cast<uint4*>(to)[i] = make_uint4(nmc_ep_silu_mul_pair(x.x, y.x), nmc_ep_silu_mul_pair(x.y, y.y),
                                                     nmc_ep_silu_mul_pair(x.z, y.z), nmc_ep_silu_mul_pair(x.w, y.w));
      }
    } else {
      for (uint32_t i = threadIdx.x; i < inner; i += blockDim.x) {
        to[i] = __float2bfloat16_rn(nmc_ep_silu_mul(__bfloat162float(gate[i]), __bfloat162float(up[i])));
      }
    }
  }
}

// The same for other element types: one element a thread, in fp32, rounded once.
template <typename T, typename From, typename To>
static __device__ __forceinline__ void nmc_ep_silu_mul_rows(const T* gate_up, T* out, const int32_t* masked_m, uint32_t groups,
                                                            uint32_t max_m, uint32_t inner, From from, To to) {
  const uint32_t group = blockIdx.y;
  if (group >= groups) return;
  const uint32_t m = nmc_ep_rows(masked_m, group, max_m);
  for (uint32_t r = blockIdx.x; r < m; r += gridDim.x) {
    const uint64_t row = static_cast<uint64_t>(group) * max_m + r;
    const T* gate = gate_up + row * 2 * inner;
    for (uint32_t i = threadIdx.x; i < inner; i += blockDim.x) {
      const float g = from(gate[i]), up = from(gate[inner + i]);
      out[row * inner + i] = to(g / (1.0f + expf(-g)) * up);
    }
  }
}

extern "C" __global__ void __launch_bounds__(NMC_EP_SILU_THREADS)
nmc_k_ep_silu_mul_fp16(const __half* gate_up, __half* out, const int32_t* masked_m, uint32_t groups, uint32_t max_m,
                       uint32_t inner) {
  nmc_ep_silu_mul_rows(gate_up, out, masked_m, groups, max_m, inner, [](__half v) { return __half2float(v); },
                       [](float v) { return __float2half_rn(v); });
}

extern "C" __global__ void __launch_bounds__(NMC_EP_SILU_THREADS)
nmc_k_ep_silu_mul_fp32(const float* gate_up, float* out, const int32_t* masked_m, uint32_t groups, uint32_t max_m,
                       uint32_t inner) {
  nmc_ep_silu_mul_rows(gate_up, out, masked_m, groups, max_m, inner, [](float v) { return v; }, [](float v) { return v; });
}
