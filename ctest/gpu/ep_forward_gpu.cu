// Whole layers of the expert-parallel transport on a GPU: with the built-in product, and with one of the program.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ep_group.h"

using namespace ep;

namespace {

__device__ float element(uint32_t dtype, const void* rows, uint64_t at) {
  if (dtype == NMC_DTYPE_FP32) return static_cast<const float*>(rows)[at];
  if (dtype == NMC_DTYPE_FP16) return __half2float(static_cast<const __half*>(rows)[at]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(rows)[at]);
}

// The product of an engine, plainly.
__global__ void plain_gemm(nmc_ep_gemm_t g, uint32_t dtype) {
  const uint32_t group = blockIdx.y;
  const uint32_t m = static_cast<uint32_t>(max(0, min(g.masked_m[group], static_cast<int32_t>(g.max_m))));
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < uint64_t{m} * g.n; i += gridDim.x * blockDim.x) {
    const uint64_t row = uint64_t{group} * g.max_m + i / g.n, col = i % g.n;
    const uint64_t b = (static_cast<uint64_t>(g.group_expert[group]) * g.n + col) * g.k;
    float sum = 0;
    for (uint32_t k = 0; k < g.k; ++k) sum += element(dtype, g.a, row * g.k + k) * element(dtype, g.b, b + k);
    if (dtype == NMC_DTYPE_FP32) static_cast<float*>(g.c)[row * g.n + col] = sum;
    else if (dtype == NMC_DTYPE_FP16) static_cast<__half*>(g.c)[row * g.n + col] = __float2half_rn(sum);
    else static_cast<__nv_bfloat16*>(g.c)[row * g.n + col] = __float2bfloat16_rn(sum);
  }
}

struct Callback {
  uint32_t dtype = 0;
  nmc_status_t fail = NMC_OK;
  static int32_t run(void* user, const nmc_ep_gemm_t* g, void* stream) {
    const Callback& self = *static_cast<const Callback*>(user);
    if (self.fail != NMC_OK) return self.fail;
    plain_gemm<<<dim3(32, g->groups), 128, 0, static_cast<cudaStream_t>(stream)>>>(*g, self.dtype);
    return cudaGetLastError() == cudaSuccess ? NMC_OK : NMC_ERR_CUDA;
  }
};

// `callback`: 0 built in, 1 the program's, 2 the program's, which fails on rank 1.
void forward(uint32_t dtype, int callback) {
  Case c;
  c.world = 2, c.t_cap = 16, c.hidden = 512, c.experts = 8, c.top_k = 4, c.repeated = false, c.tiny = false;
  c.dtype = dtype;
  c.deadline_ms = 20000;
  constexpr uint32_t kInner = 256;
  Group<DeviceMemory> g(c);
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  const nmc_ep_config_t config = c.config();
  NMC_CHECK(nmc_ep_bytes_needed(&config, c.world, kInner, &bytes));
  Random random(7);
  std::normal_distribution<float> normal;
  const auto matrix = [&](size_t n) {
    Bytes all(n * element_bytes(dtype));
    for (size_t i = 0; i < n; ++i) put(dtype, all.data(), i, normal(random) * 0.05f);
    return all;
  };
  std::vector<Bytes> w13, w2;  // by expert
  for (uint32_t e = 0; e < c.experts; ++e) {
    w13.push_back(matrix(2 * kInner * c.hidden));
    w2.push_back(matrix(kInner * c.hidden));
  }
  std::vector<Buffer<DeviceMemory>> matrices13, matrices2, workspaces;
  std::vector<Callback> callbacks(c.world);
  for (uint32_t r = 0; r < c.world; ++r) {
    Bytes a, b;
    for (uint32_t e = r * c.n_local(); e < (r + 1) * c.n_local(); ++e) {
      a.insert(a.end(), w13[e].begin(), w13[e].end());
      b.insert(b.end(), w2[e].begin(), w2[e].end());
    }
    matrices13.emplace_back(a.size());
    matrices13.back().put(a);
    matrices2.emplace_back(b.size());
    matrices2.back().put(b);
    workspaces.emplace_back(bytes.workspace);
    callbacks[r].dtype = dtype;
    if (callback == 2 && r == 1) callbacks[r].fail = NMC_ERR_NO_MEMORY;
  }
  cudaFuncAttributes loaded;  // now: loading it later may wait for a kernel that waits for another rank
  CUDA_OK(cudaFuncGetAttributes(&loaded, plain_gemm));
  // Ranks wait for each other: a stream each.
  std::vector<cudaStream_t> streams(c.world);
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  // Before the first step: what comes after it must not wait for the device.
  for (uint32_t r = 0; r < c.world; ++r) g.ranks[r].load(0, 13 + static_cast<int>(r));
  for (uint32_t r = 0; r < c.world; ++r) {
    const nmc_ep_dispatch_t args = g.ranks[r].dispatch(0, false);
    nmc_ep_moe_t moe = NMC_EP_MOE_INIT;
    moe.w13 = matrices13[r].get();
    moe.w2 = matrices2[r].get();
    moe.workspace = workspaces[r].get();
    moe.workspace_bytes = bytes.workspace;
    moe.out = g.ranks[r].out.get();
    moe.inner = kInner;
    moe.gemm = callback != 0 ? Callback::run : nullptr;
    moe.gemm_user = &callbacks[r];
    const nmc_status_t status = nmc_ep_moe_forward(g.eps[r], &args, &moe, streams[r]);
    if (callback == 2 && r == 1) check(status == NMC_ERR_NO_MEMORY, "what a callback returns is passed on");
    else NMC_CHECK(status);
  }
  const uint64_t began = now_ns();
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamSynchronize(s));
  if (callback == 2) {
    bool told = static_cast<double>(now_ns() - began) * 1e-9 < 5;
    for (nmc_ep_t* e : g.eps) told = nmc_ep_check(e) == NMC_ERR_CANCELLED && told;
    check(told, "a callback that fails ends the group at once");
    for (cudaStream_t& s : streams) CUDA_OK(cudaStreamDestroy(s));
    return;
  }
  double difference = 0, size = 0;
  for (auto& rank : g.ranks) {
    const Bytes out = rank.out.read();
    for (uint32_t t = 0; t < rank.tokens.n; ++t) {
      std::vector<double> want(c.hidden, 0);
      for (uint32_t k = 0; k < c.top_k; ++k) {
        const int64_t e = rank.tokens.experts[t * c.top_k + k];
        if (e < 0) continue;
        std::vector<double> act(kInner);
        for (uint32_t i = 0; i < kInner; ++i) {
          double gate = 0, up = 0;
          for (uint32_t h = 0; h < c.hidden; ++h) {
            const double x = get(c.dtype, rank.tokens.x.data(), size_t{t} * c.hidden + h);
            gate += x * get(dtype, w13[static_cast<size_t>(e)].data(), i * c.hidden + h);
            up += x * get(dtype, w13[static_cast<size_t>(e)].data(), (kInner + i) * c.hidden + h);
          }
          act[i] = gate / (1 + std::exp(-gate)) * up;
        }
        for (uint32_t h = 0; h < c.hidden; ++h) {
          double y = 0;
          for (uint32_t i = 0; i < kInner; ++i) y += act[i] * get(dtype, w2[static_cast<size_t>(e)].data(), h * kInner + i);
          want[h] += rank.tokens.weights[t * c.top_k + k] * y;
        }
      }
      for (uint32_t h = 0; h < c.hidden; ++h) {
        const double got = get(c.dtype, out.data(), size_t{t} * c.hidden + h);
        difference += (got - want[h]) * (got - want[h]);
        size += want[h] * want[h];
      }
    }
  }
  std::printf("dtype %u: a whole layer is off by %.2e\n", dtype, std::sqrt(difference / size));
  check(std::sqrt(difference / size) < (dtype == NMC_DTYPE_FP32 ? 1e-5 : 1e-2),
        callback != 0 ? "a whole layer with a callback is right" : "a whole layer with the built-in product is right");
  for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamDestroy(s));
}

}  // namespace

int main() {
  skip_without_gpu();
  forward(NMC_DTYPE_BF16, 0);
  for (const uint32_t dtype : {NMC_DTYPE_BF16, NMC_DTYPE_FP16, NMC_DTYPE_FP32}) forward(dtype, 1);
  forward(NMC_DTYPE_BF16, 2);
  return failed_checks != 0;
}
