// How fast blocks of a KV cache in device memory are copied, beside cudaMemcpyAsync of as many bytes.
// usage: kv_copy_bench [--json]

#include "../../ctest/gpu/kv_copy.h"

static double median_ms(cudaStream_t stream, const std::vector<std::function<void()>>& sets) {
  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  std::vector<float> times;
  for (size_t round = 0; round < 3 + 15; ++round) {
    const auto& one = sets[round % sets.size()];
    wait_ns<<<1, 1, 0, stream>>>(200'000);  // all is enqueued when the time begins
    CUDA_OK(cudaEventRecord(begin, stream));
    one();
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    if (round >= 3) times.push_back(ms);
  }
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

static void report(bool json, const std::string& name, const char* what, double ours, double baseline) {
  if (json) {
    std::printf("{\"name\":\"%s\",\"value\":%.5g,\"unit\":\"GB/s\",\"baseline_name\":\"%s\",\"baseline\":%.5g,\"ratio\":%.4g}\n",
                name.c_str(), ours, what, baseline, ours / baseline);
  } else {
    std::printf("%-44s %9.1f GB/s  %s %9.1f  ratio %.3f\n", name.c_str(), ours, what, baseline, ours / baseline);
  }
  std::fflush(stdout);
}

static __global__ void scramble(uint64_t* words, uint64_t n) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    words[i] = x ^ x >> 29;
  }
}

static void bench_layout(bool json, const char* layout_name, nmc_kv_group_t group, uint32_t tokens, Random& random) {
  constexpr uint32_t total = 8192;
  const uint64_t block = block_bytes(group, tokens), arena_bytes = block * total;
  unsigned char *arena = nullptr, *packed = nullptr;
  CUDA_OK(cudaMalloc(&arena, arena_bytes));
  CUDA_OK(cudaMalloc(&packed, block * 4096));
  scramble<<<2048, 256>>>(reinterpret_cast<uint64_t*>(arena), arena_bytes / 8);
  scramble<<<2048, 256>>>(reinterpret_cast<uint64_t*>(packed), block * 4096 / 8);
  group.memory = arena, group.memory_bytes = arena_bytes;
  nmc_kv_t* kv = create_kv({group}, total, tokens);
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaDeviceSynchronize());
  for (uint32_t n : {8u, 64u, 256u, 1024u, 4096u}) {
    const uint64_t bytes = block * n;
    // Several sets of blocks and places, so that what fits the L2 does not stay there.
    const uint32_t sets = std::min(8u, 4096 / n);
    std::vector<std::vector<int32_t>> lists;
    std::vector<std::vector<nmc_kv_copy_t>> copies;
    std::vector<std::function<void()>> gather, scatter, copy, plain;
    const std::vector<int32_t> all = some_blocks(random, total, total);
    for (uint32_t s = 0; s < sets; ++s) {
      lists.emplace_back(all.begin() + s * 2 * n, all.begin() + (s * 2 + 1) * n);
      copies.emplace_back();
      for (uint32_t i = 0; i < n; ++i) copies.back().push_back(block_copy(all[s * 2 * n + i], all[(s * 2 + 1) * n + i]));
    }
    for (uint32_t s = 0; s < sets; ++s) {
      unsigned char *at = packed + s * bytes, *other = arena + s * bytes;
      gather.push_back([&, s, at] { NMC_CHECK(nmc_kv_gather(kv, 0, lists[s].data(), n, at, bytes, stream)); });
      scatter.push_back([&, s, at] { NMC_CHECK(nmc_kv_scatter(kv, 0, lists[s].data(), n, at, bytes, stream)); });
      copy.push_back([&, s] { NMC_CHECK(nmc_kv_copy_blocks(kv, copies[s].data(), n, stream)); });
      plain.push_back([&, at, other] { CUDA_OK(cudaMemcpyAsync(at, other, bytes, cudaMemcpyDeviceToDevice, stream)); });
    }
    auto rate = [&](const std::vector<std::function<void()>>& work) {
      return static_cast<double>(bytes) / median_ms(stream, work) / 1e6;
    };
    const double before = rate(plain);
    const double results[] = {rate(gather), rate(scatter), rate(copy)};
    const double baseline = (before + rate(plain)) / 2;
    const char* names[] = {"gather", "scatter", "copy_blocks"};
    for (int i = 0; i < 3; ++i) {
      const std::string name = std::string("kv.") + names[i] + "." + layout_name + "." + std::to_string(n);
      report(json, name, "cudaMemcpyAsync d2d", results[i], baseline);
    }
  }
  (void)nmc_kv_destroy(kv);
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(arena));
  CUDA_OK(cudaFree(packed));
}

// To and from pinned host memory, beside cudaMemcpyAsync of as many bytes; and what a call costs the CPU.
static void bench_pinned(bool json, Random& random) {
  nmc_kv_group_t group = group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 32, 8, 128, NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_PER_LAYER);
  constexpr uint32_t total = 512, n = 128;
  const uint64_t block = block_bytes(group, 16), bytes = block * n;
  unsigned char *arena = nullptr, *pinned = nullptr;
  CUDA_OK(cudaMalloc(&arena, block * total));
  CUDA_OK(cudaMallocHost(&pinned, bytes));
  std::memset(pinned, 0x3c, bytes);
  scramble<<<2048, 256>>>(reinterpret_cast<uint64_t*>(arena), block * total / 8);
  group.memory = arena, group.memory_bytes = block * total;
  nmc_kv_t* kv = create_kv({group}, total, 16);
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<int32_t> list = some_blocks(random, total, n);
  auto rate = [&](const std::function<void()>& work) { return static_cast<double>(bytes) / median_ms(stream, {work}) / 1e6; };
  const double out = rate([&] { NMC_CHECK(nmc_kv_gather(kv, 0, list.data(), n, pinned, bytes, stream)); });
  const double in = rate([&] { NMC_CHECK(nmc_kv_scatter(kv, 0, list.data(), n, pinned, bytes, stream)); });
  report(json, "kv.gather.nhd.pinned.128", "cudaMemcpyAsync d2h", out,
         rate([&] { CUDA_OK(cudaMemcpyAsync(pinned, arena, bytes, cudaMemcpyDeviceToHost, stream)); }));
  report(json, "kv.scatter.nhd.pinned.128", "cudaMemcpyAsync h2d", in,
         rate([&] { CUDA_OK(cudaMemcpyAsync(arena, pinned, bytes, cudaMemcpyHostToDevice, stream)); }));
  for (size_t few : {size_t{1}, size_t{16}, size_t{n}}) {
    std::vector<uint64_t> times;
    for (int round = 0; round < 200; ++round) {
      const uint64_t begin = now_ns();
      NMC_CHECK(nmc_kv_scatter(kv, 0, list.data(), few, pinned, bytes, stream));
      times.push_back(now_ns() - begin);
      CUDA_OK(cudaStreamSynchronize(stream));
    }
    std::sort(times.begin(), times.end());
    std::printf("# a call for %zu blocks takes the CPU %.2f us\n", few, static_cast<double>(times[times.size() / 2]) / 1e3);
  }
  (void)nmc_kv_destroy(kv);
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(arena));
  CUDA_OK(cudaFreeHost(pinned));
}

static void bench(bool json, Random& random) {
  const auto full = [](uint32_t order, uint32_t sides) { return group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 32, 8, 128, order, sides); };
  bench_layout(json, "nhd", full(NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_PER_LAYER), 16, random);
  bench_layout(json, "layer_major", full(NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_SEPARATE), 16, random);
  bench_layout(json, "block_major", full(NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_PER_LAYER), 16, random);
  bench_layout(json, "head_major", full(NMC_KV_HEAD_MAJOR, NMC_KV_SIDES_SEPARATE), 16, random);
  bench_layout(json, "mla", group_of(NMC_KV_KIND_MLA, NMC_DTYPE_BF16, 61, 1, 576, NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_SEPARATE), 64, random);
  bench_pinned(json, random);
}
int main(int argc, char** argv) {
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  Random random(1);
  bench(argc > 1 && std::strcmp(argv[1], "--json") == 0, random);
  return failed_checks == 0 ? 0 : 1;
}
