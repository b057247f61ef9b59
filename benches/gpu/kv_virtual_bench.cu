// What mapping costs with virtual placement of the KV cache in device memory.
// usage: kv_virtual_bench

#include "../../ctest/gpu/kv_virtual.h"

static double us_since(uint64_t began) { return static_cast<double>(now_ns() - began) / 1e3; }

static void times() {
  struct Case {
    const char* name;
    uint32_t order, sides, scale;
  };
  const Case cases[] = {{"layer major, K and V apart", NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_SEPARATE, 1},
                        {"layer major, K and V in a block", NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_PER_BLOCK, 1},
                        {"block major", NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_PER_LAYER, 1},
                        {"block major, pages of 16 MiB", NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_PER_LAYER, 8}};
  std::printf("%-34s %7s %7s %12s %12s %12s %12s %12s\n", "layout", "tokens", "planes", "create us/pg", "map us/page",
              "map us/token", "append ns", "reopen us");
  for (const Case& c : cases) {
    const uint32_t blocks = 256 / c.scale;
    const uint64_t making = now_ns();
    VirtualCache bench(c.order, c.sides, blocks, blocks, c.scale);
    const double made = us_since(making);
    const uint64_t tokens = static_cast<uint64_t>(blocks) * bench.per_block;
    const double pages = static_cast<double>(blocks) * bench.planes;
    NMC_CHECK(nmc_kv_open(bench.kv, 1, nullptr, 0, nullptr, nullptr, nullptr));
    uint64_t began = now_ns();
    for (uint64_t block = 1; block <= blocks; ++block) NMC_CHECK(nmc_kv_reserve(bench.kv, 1, block * bench.per_block, nullptr));
    const double mapped = us_since(began);
    began = now_ns();
    const uint64_t appends = tokens < 100000 ? tokens : 100000;
    for (uint64_t t = 0; t < appends; ++t) NMC_CHECK(nmc_kv_append(bench.kv, 1, nullptr, 1, nullptr, nullptr));
    const double appended = us_since(began);
    NMC_CHECK(nmc_kv_close(bench.kv, 1, 0));
    began = now_ns();
    NMC_CHECK(nmc_kv_open(bench.kv, 2, nullptr, tokens, nullptr, nullptr, nullptr));
    const double reopened = us_since(began);
    std::printf("%-34s %7u %7u %12.1f %12.2f %12.3f %12.1f %12.1f\n", c.name, bench.per_block, bench.planes, made / pages,
                mapped / pages, mapped / static_cast<double>(tokens), appended * 1e3 / static_cast<double>(appends), reopened);
  }
}

int main() {
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  times();
  return failed_checks == 0 ? 0 : 1;
}
