// Checks nmc_k_ep_gemm and nmc_k_ep_silu_mul_bf16 against plain fp64 kernels, then times them on decode shapes beside a kernel
// that only reads the weights. `ep_gemm`; `ep_gemm small` leaves out the large cases and the times, for compute-sanitizer.

#include "../../kernels/ep_gemm.cu"

#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"

#define CHECK(call) CUDA_OK(call)

// A NaN that no arithmetic gives, before and after every buffer, in rows that are not in use and in unused experts.
static constexpr uint16_t POISON = 0x7fa5;
static constexpr uint64_t GUARD = 4096;
static constexpr double MAX_RELATIVE_L2 = 2e-3;

static __host__ __device__ uint32_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(x >> 32);
}

// Uniform in [-scale, scale).
__global__ void fill_random(__nv_bfloat16* p, uint64_t count, uint64_t seed, float scale) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count; i += stride) {
    p[i] = __float2bfloat16_rn((static_cast<float>(mix(i + (seed << 40))) * 0x1p-31f - 1.0f) * scale);
  }
}

__global__ void fill_poison(uint16_t* p, uint64_t count) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count; i += stride) p[i] = POISON;
}

// value[g][r][j] and the sum of magnitudes behind it, a warp per result. Grid: y = group.
__global__ void reference_gemm(const __nv_bfloat16* a, const __nv_bfloat16* b, double* value, double* magnitude,
                               const int32_t* masked_m, const int32_t* group_expert, uint32_t max_m, uint32_t n,
                               uint32_t k) {
  const uint32_t g = blockIdx.y, lane = threadIdx.x % 32;
  const int64_t expert = group_expert != nullptr ? static_cast<int64_t>(group_expert[g]) : static_cast<int64_t>(g);
  const int64_t m = masked_m[g] < static_cast<int64_t>(max_m) ? static_cast<int64_t>(masked_m[g]) : static_cast<int64_t>(max_m);
  if (expert < 0) return;
  const int64_t warps = gridDim.x * blockDim.x / 32;
  for (int64_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < m * n; i += warps) {
    const int64_t r = i / n, j = i % n;
    const __nv_bfloat16* x = a + (static_cast<int64_t>(g) * max_m + r) * k;
    const __nv_bfloat16* y = b + (expert * n + j) * k;
    double sum = 0, size = 0;
    for (uint32_t l = lane; l < k; l += 32) {
      const double product = static_cast<double>(__bfloat162float(x[l])) * static_cast<double>(__bfloat162float(y[l]));
      sum += product;
      size += fabs(product);
    }
    for (int32_t d = 16; d > 0; d /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, d);
      size += __shfl_xor_sync(0xffffffffu, size, d);
    }
    if (lane == 0) {
      value[(static_cast<int64_t>(g) * max_m + r) * n + j] = sum;
      magnitude[(static_cast<int64_t>(g) * max_m + r) * n + j] = size;
    }
  }
}

// Reads everything once: what this machine gives a kernel that does nothing else.
__global__ void __launch_bounds__(512) read_all(const uint4* p, uint64_t count, uint32_t* out) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  uint32_t all = 0;
  uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (uint32_t u = 0; u < 8; ++u) v[u] = __ldcs(p + i + u * stride);
#pragma unroll
    for (uint32_t u = 0; u < 8; ++u) all ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  for (; i < count; i += stride) all ^= p[i].x ^ p[i].y ^ p[i].z ^ p[i].w;
  if (all == 0x12345678u) *out = all; // keeps the loads
}

// A device buffer of bf16 between two guards, all poison at first.
struct Buffer {
  uint16_t* base = nullptr;
  uint64_t count = 0;

  explicit Buffer(uint64_t n) : count(n) {
    CHECK(cudaMalloc(&base, (count + 2 * GUARD) * 2));
    poison();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { CHECK(cudaFree(base)); }

  void poison() {
    fill_poison<<<1024, 256>>>(base, count + 2 * GUARD);
    CHECK(cudaGetLastError());
  }
  __nv_bfloat16* at(uint64_t i = 0) const { return reinterpret_cast<__nv_bfloat16*>(base + GUARD + i); }
  void random(uint64_t first, uint64_t n, uint64_t seed, float scale) const {
    if (n == 0) return;
    fill_random<<<1024, 256>>>(at(first), n, seed, scale);
    CHECK(cudaGetLastError());
  }
  // With the guards.
  std::vector<uint16_t> host() const {
    std::vector<uint16_t> out(count + 2 * GUARD);
    CHECK(cudaMemcpy(out.data(), base, out.size() * 2, cudaMemcpyDeviceToHost));
    return out;
  }
};

template <typename T>
static T* to_device(const std::vector<T>& v) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<size_t>(v.size(), 1) * sizeof(T)));
  CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

static float as_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}

static uint32_t rows_of(int32_t m, uint32_t max_m) {
  return m <= 0 ? 0 : std::min(static_cast<uint32_t>(m), max_m);
}

static void launch_gemm(const Buffer& a, const Buffer& b, const Buffer& c, const int32_t* masked_m,
                        const int32_t* group_expert, uint32_t groups, uint32_t max_m, uint32_t n, uint32_t k) {
  const dim3 grid((n + NMC_EP_GEMM_TILE_N - 1) / NMC_EP_GEMM_TILE_N, groups);
  nmc_k_ep_gemm<<<grid, NMC_EP_GEMM_THREADS>>>(a.at(), b.at(), c.at(), masked_m, group_expert, groups, max_m, n, k);
  CHECK(cudaGetLastError());
}

static void launch_silu(const Buffer& in, const Buffer& out, const int32_t* masked_m, uint32_t groups, uint32_t max_m,
                        uint32_t inner) {
  const dim3 grid(std::min(max_m, 16u), groups);
  nmc_k_ep_silu_mul_bf16<<<grid, NMC_EP_SILU_THREADS>>>(in.at(), out.at(), masked_m, groups, max_m, inner);
  CHECK(cudaGetLastError());
}

// What a comparison found.
struct Result {
  double error2 = 0, size2 = 0;
  uint64_t wrong = 0, touched = 0, compared = 0;

  double relative() const { return size2 > 0 ? std::sqrt(error2 / size2) : 0; }
  bool ok() const { return wrong == 0 && touched == 0 && relative() <= MAX_RELATIVE_L2; }
  // NaN is wrong.
  void compare(double seen, double expected, double allowed) {
    const double error = seen - expected;
    error2 += error * error;
    size2 += expected * expected;
    compared += 1;
    wrong += !(std::fabs(error) <= allowed);
  }
  void guards(const std::vector<uint16_t>& all) {
    for (uint64_t i = 0; i < GUARD; ++i) touched += (all[i] != POISON) + (all[all.size() - 1 - i] != POISON);
  }
  bool print(const char* kernel, const char* what) const {
    std::printf("%-9s %-52s %10llu %10.2e %7llu %7llu  %s\n", kernel, what, static_cast<unsigned long long>(compared),
                relative(), static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(touched),
                ok() ? "ok" : "WRONG");
    return ok();
  }
};

static bool check_gemm(const std::vector<int32_t>& masked_m, const std::vector<int32_t>& group_expert, uint32_t experts,
                       uint32_t max_m, uint32_t n, uint32_t k, const char* why) {
  const uint32_t groups = static_cast<uint32_t>(masked_m.size());
  Buffer a(static_cast<uint64_t>(groups) * max_m * k), b(static_cast<uint64_t>(experts) * n * k);
  Buffer c(static_cast<uint64_t>(groups) * max_m * n);
  std::vector<bool> used(experts, false);
  for (uint32_t g = 0; g < groups; ++g) {
    const int32_t e = group_expert.empty() ? static_cast<int32_t>(g) : group_expert[g];
    const uint32_t rows = rows_of(masked_m[g], max_m);
    a.random(static_cast<uint64_t>(g) * max_m * k, static_cast<uint64_t>(rows) * k, 2 * g, 1.0f);
    if (e >= 0 && rows > 0) used[static_cast<uint32_t>(e)] = true;
  }
  for (uint32_t e = 0; e < experts; ++e) {
    const uint64_t size = static_cast<uint64_t>(n) * k;
    if (used[e]) b.random(e * size, size, 2 * e + 1, 1.0f);
  }
  int32_t* masked_d = to_device(masked_m);
  int32_t* expert_d = group_expert.empty() ? nullptr : to_device(group_expert);
  double *value = nullptr, *magnitude = nullptr;
  CHECK(cudaMalloc(&value, c.count * 8));
  CHECK(cudaMalloc(&magnitude, c.count * 8));
  reference_gemm<<<dim3(256, groups), 256>>>(a.at(), b.at(), value, magnitude, masked_d, expert_d, max_m, n, k);
  CHECK(cudaGetLastError());
  launch_gemm(a, b, c, masked_d, expert_d, groups, max_m, n, k);
  CHECK(cudaDeviceSynchronize());
  std::vector<double> expected(c.count), size(c.count);
  CHECK(cudaMemcpy(expected.data(), value, c.count * 8, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(size.data(), magnitude, c.count * 8, cudaMemcpyDeviceToHost));
  const std::vector<uint16_t> seen = c.host();

  Result result;
  result.guards(seen);
  for (uint32_t g = 0; g < groups; ++g) {
    const bool skipped = !group_expert.empty() && group_expert[g] < 0;
    const uint32_t rows = skipped ? 0 : rows_of(masked_m[g], max_m);
    for (uint32_t r = 0; r < max_m; ++r) {
      for (uint32_t j = 0; j < n; ++j) {
        const uint64_t i = (static_cast<uint64_t>(g) * max_m + r) * n + j;
        if (r >= rows) {
          result.touched += seen[GUARD + i] != POISON;
        } else {
          // Half a unit of bf16, and what fp32 sums may lose.
          result.compare(as_float(seen[GUARD + i]), expected[i], std::fabs(expected[i]) * 0x1.02p-8 + size[i] * 1e-5);
        }
      }
    }
  }
  CHECK(cudaFree(value));
  CHECK(cudaFree(magnitude));
  CHECK(cudaFree(masked_d));
  if (expert_d != nullptr) CHECK(cudaFree(expert_d));
  char what[128];
  std::snprintf(what, sizeof what, "%ux%u, n %u, k %u: %s", groups, max_m, n, k, why);
  return result.print("gemm", what);
}

static bool check_silu(const std::vector<int32_t>& masked_m, uint32_t max_m, uint32_t inner, float scale,
                       const char* why) {
  const uint32_t groups = static_cast<uint32_t>(masked_m.size());
  Buffer in(static_cast<uint64_t>(groups) * max_m * 2 * inner), out(static_cast<uint64_t>(groups) * max_m * inner);
  for (uint32_t g = 0; g < groups; ++g) {
    in.random(static_cast<uint64_t>(g) * max_m * 2 * inner,
              static_cast<uint64_t>(rows_of(masked_m[g], max_m)) * 2 * inner, g, scale);
  }
  int32_t* masked_d = to_device(masked_m);
  launch_silu(in, out, masked_d, groups, max_m, inner);
  CHECK(cudaDeviceSynchronize());
  const std::vector<uint16_t> x = in.host(), seen = out.host();
  Result result;
  result.guards(seen);
  for (uint32_t g = 0; g < groups; ++g) {
    for (uint32_t r = 0; r < max_m; ++r) {
      for (uint32_t i = 0; i < inner; ++i) {
        const uint64_t row = static_cast<uint64_t>(g) * max_m + r;
        const uint16_t got = seen[GUARD + row * inner + i];
        if (r >= rows_of(masked_m[g], max_m)) {
          result.touched += got != POISON;
        } else {
          const double gate = as_float(x[GUARD + row * 2 * inner + i]);
          const double up = as_float(x[GUARD + row * 2 * inner + inner + i]);
          const double expected = gate / (1 + std::exp(-gate)) * up;
          result.compare(as_float(got), expected, std::fabs(expected) * 0x1.02p-8 + 1e-30);
        }
      }
    }
  }
  CHECK(cudaFree(masked_d));
  char what[128];
  std::snprintf(what, sizeof what, "%ux%u, inner %u: %s", groups, max_m, inner, why);
  return result.print("silu_mul", what);
}

// Milliseconds of the median launch.
template <typename F>
static double median_ms(F launch, uint32_t times) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> ms;
  for (uint32_t i = 0; i < times + 3; ++i) {
    CHECK(cudaEventRecord(begin));
    launch();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float one = 0;
    CHECK(cudaEventElapsedTime(&one, begin, end));
    if (i >= 3) ms.push_back(one);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::sort(ms.begin(), ms.end());
  return static_cast<double>(ms[ms.size() / 2]);
}

// `rows` < 0: random 0..12 per group. The weights are far larger than L2, so every launch reads them from memory.
static void time_gemm(const Buffer& a, const Buffer& b, const Buffer& c, uint32_t* out, uint32_t groups, uint32_t max_m,
                      uint32_t n, uint32_t k, int32_t rows) {
  std::vector<int32_t> masked_m(groups);
  uint64_t active = 0, all_rows = 0;
  for (uint32_t g = 0; g < groups; ++g) {
    masked_m[g] = rows < 0 ? static_cast<int32_t>(mix(g + 77) % 13) : rows;
    active += masked_m[g] > 0;
    all_rows += static_cast<uint64_t>(masked_m[g]);
  }
  int32_t* masked_d = to_device(masked_m);
  const double bytes = static_cast<double>(active) * n * k * 2;
  const double ours = median_ms([&] { launch_gemm(a, b, c, masked_d, nullptr, groups, max_m, n, k); }, 15);
  const double base = median_ms([&] {
    read_all<<<132 * 4, 512>>>(reinterpret_cast<const uint4*>(b.at()), static_cast<uint64_t>(bytes) / 16, out);
    CHECK(cudaGetLastError());
  }, 15);
  char m[32];
  if (rows < 0) {
    std::snprintf(m, sizeof m, "0..12");
  } else {
    std::snprintf(m, sizeof m, "%d", rows);
  }
  std::printf("%6u %6u %7s %6llu %9.1f %9.0f %9.1f %9.0f %8.2f %9.1f\n", n, k, m,
              static_cast<unsigned long long>(active), ours * 1e3, bytes / ours * 1e-6, base * 1e3,
              bytes / base * 1e-6, base / ours, 2.0 * static_cast<double>(all_rows) * n * k / ours * 1e-9);
  CHECK(cudaFree(masked_d));
}

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::strcmp(argv[1], "small") == 0;
  skip_without_gpu();
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  cudaFuncAttributes attr;
  CHECK(cudaFuncGetAttributes(&attr, nmc_k_ep_gemm));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nmc_k_ep_gemm, NMC_EP_GEMM_THREADS, 0));
  std::printf("%s, %d SMs; gemm: %d registers, %zu bytes shared, %zu bytes local, %d blocks per SM\n\n", prop.name,
              prop.multiProcessorCount, attr.numRegs, attr.sharedSizeBytes, attr.localSizeBytes, blocks);

  std::printf("%-9s %-52s %10s %10s %7s %7s\n", "kernel", "case", "results", "rel. L2", "wrong", "touched");
  bool ok = true;
  ok &= check_gemm({16}, {}, 1, 16, 64, 64, "one tile, one step");
  ok &= check_gemm({1, 5, 0, 16}, {}, 4, 16, 128, 512, "few rows");
  ok &= check_gemm({7, 300, 0, -3}, {}, 4, 13, 64, 256, "masked_m above max_m, 0, negative");
  ok &= check_gemm({1, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}, {}, 12, 80, 256, 320, "every tail of m");
  ok &= check_gemm({16, 64, 128, 129, 250, 1000}, {}, 6, 256, 192, 128, "several tiles of m");
  ok &= check_gemm({3, 20, 70}, {}, 3, 72, 200, 136, "tails of n and k");
  ok &= check_gemm({3, 20, 70}, {}, 3, 72, 8, 8, "the least n and k");
  ok &= check_gemm({16, 17, 40}, {}, 3, 40, 72, 24, "k within one step");
  ok &= check_gemm({16, 17, 40}, {}, 3, 40, 328, 1000, "tails of n and k, long");
  ok &= check_gemm({5, 9, 33, 2, 64, 12}, {3, -1, 0, 6, -1, 3}, 7, 64, 136, 264, "experts permuted, -1, one twice");
  if (!small) {
    ok &= check_gemm({4, 12, 0, 30}, {8, 2, 5, 1}, 9, 256, 4096, 7168, "decode, first");
    ok &= check_gemm({4, 12, 0, 30}, {}, 4, 256, 7168, 2048, "decode, second");
  }
  ok &= check_silu({0, 5, 300, 16, -1}, 20, 2048, 4.0f, "decode");
  ok &= check_silu({3, 1}, 4, 77, 4.0f, "inner not of 8");
  ok &= check_silu({40, 2}, 40, 2056, 80.0f, "large values, more rows than blocks");
  ok &= check_silu({100, 70}, 100, 8, 0.01f, "small values");

  const uint32_t groups = 32, max_m = 256;
  if (!small) {
    Buffer a(static_cast<uint64_t>(groups) * max_m * 7168), c(static_cast<uint64_t>(groups) * max_m * 7168);
    Buffer b(static_cast<uint64_t>(groups) * 4096 * 7168);
    a.random(0, a.count, 1, 1.0f);
    b.random(0, b.count, 2, 1.0f);
    uint32_t* out = nullptr;
    CHECK(cudaMalloc(&out, 4));
    std::printf("\n32 groups of max_m 256; GB/s of weights in use; plain: a kernel that only reads them\n");
    std::printf("%6s %6s %7s %6s %9s %9s %9s %9s %8s %9s\n", "n", "k", "m", "active", "us", "GB/s", "plain us", "GB/s",
                "ratio", "TFLOP/s");
    const uint32_t shapes[2][2] = {{4096, 7168}, {7168, 2048}};
    for (const auto& s : shapes) {
      for (const int32_t rows : {-1, 1, 8, 16, 17, 32, 64, 128, 256}) {
        time_gemm(a, b, c, out, groups, max_m, s[0], s[1], rows);
      }
    }
    std::vector<int32_t> masked_m(groups);
    for (uint32_t g = 0; g < groups; ++g) masked_m[g] = static_cast<int32_t>(mix(g + 77) % 13);
    int32_t* masked_d = to_device(masked_m);
    const double ms = median_ms([&] { launch_silu(a, c, masked_d, groups, max_m, 2048); }, 15);
    std::printf("silu_mul, m 0..12, inner 2048: %.1f us\n", ms * 1e3);
    CHECK(cudaFree(masked_d));
    CHECK(cudaFree(out));
  }
  CHECK(cudaDeviceSynchronize());
  std::printf("\n%s\n", ok ? "PASS" : "FAIL");
  return ok ? 0 : 1;
}
