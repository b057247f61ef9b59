// How fast blocks of a KV cache in device memory go to a store in host memory and come back, beside cudaMemcpyAsync of the same
// bytes from and to pinned memory.
// usage: kv_move_bench [--json]

#include "../../ctest/gpu/kv_move.h"

static double seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

static void report(bool json, const char* name, double ours, double baseline) {
  const char* what = "cudaMemcpyAsync of the same bytes, pinned";
  if (json) {
    std::printf("{\"name\":\"%s\",\"value\":%.4g,\"unit\":\"GB/s\",\"baseline_name\":\"%s\",\"baseline\":%.4g,\"ratio\":%.4g}\n", name, ours,
                what, baseline, ours / baseline);
  } else {
    std::printf("%-28s %8.2f GB/s  %s %8.2f  ratio %.3f\n", name, ours, what, baseline, ours / baseline);
  }
}

static void bench(bool json) {
  constexpr uint32_t blocks = 64, rounds = 9;
  const uint64_t bytes = BLOCK_BYTES * blocks;
  for (bool sums : {false, true}) {
    nmc_store_config_t config = embedded(NMC_HEAP_HOST, 4096 * MIB, 2 * MIB);
    if (sums) config.flags |= NMC_STORE_CHECKSUMS;
    nmc_store_t* store = create(config);
    Cache cache(2 * blocks, store);
    void* pinned;
    CUDA_OK(cudaMallocHost(&pinned, bytes));
    std::vector<double> out, in, plain_out, plain_in;
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint64_t id = 1 + round;
      uint64_t ticket, tokens;
      cache.open(id, blocks);
      cache.fill(id, blocks, 0);
      CUDA_OK(cudaStreamSynchronize(cache.stream));
      NMC_CHECK(nmc_kv_commit(cache.kv, id, blocks * TOKENS));
      nmc_kv_after_t after = cache.after_stream();
      auto begin = std::chrono::steady_clock::now();
      NMC_CHECK(nmc_kv_offload(cache.kv, id, blocks * TOKENS, &after, &ticket));
      NMC_CHECK(nmc_kv_transfer_wait(cache.kv, ticket, 60000, nullptr));
      out.push_back(seconds(begin));
      NMC_CHECK(nmc_kv_close(cache.kv, id, 0));
      NMC_CHECK(nmc_kv_clear(cache.kv, nullptr));
      check(cache.open(id, blocks) == 0, "it was forgotten");
      begin = std::chrono::steady_clock::now();
      NMC_CHECK(nmc_kv_onboard(cache.kv, id, NMC_KV_ONBOARD_ALL, &after, &ticket, &tokens));
      NMC_CHECK(nmc_kv_transfer_wait(cache.kv, ticket, 60000, nullptr));
      in.push_back(seconds(begin));
      check(cache.right(id, blocks), "it came back");
      NMC_CHECK(nmc_kv_close(cache.kv, id, 0));
      NMC_CHECK(nmc_kv_clear(cache.kv, nullptr));
      for (auto [kind, to] : {std::pair{cudaMemcpyDeviceToHost, &plain_out}, std::pair{cudaMemcpyHostToDevice, &plain_in}}) {
        begin = std::chrono::steady_clock::now();
        void* device = cache.arena;
        CUDA_OK(cudaMemcpyAsync(kind == cudaMemcpyDeviceToHost ? pinned : device, kind == cudaMemcpyDeviceToHost ? device : pinned,
                                   bytes, kind, cache.stream));
        CUDA_OK(cudaStreamSynchronize(cache.stream));
        to->push_back(seconds(begin));
      }
    }
    auto rate = [&](std::vector<double>& all) {
      std::sort(all.begin(), all.end());
      return static_cast<double>(bytes) / all[all.size() / 2] / 1e9;
    };
    const double base_out = rate(plain_out), base_in = rate(plain_in);
    report(json, sums ? "kv.offload.128MiB.sums" : "kv.offload.128MiB", rate(out), base_out);
    report(json, sums ? "kv.onboard.128MiB.sums" : "kv.onboard.128MiB", rate(in), base_in);
    CUDA_OK(cudaFreeHost(pinned));
    (void)nmc_store_destroy(store);
  }
}

int main(int argc, char** argv) {
  prepare_environment();
  if (!child_sees_gpu()) return 77;
  CUDA_OK(cudaSetDevice(0));
  bench(argc > 1 && std::strcmp(argv[1], "--json") == 0);
  return failed_checks == 0 ? 0 : 1;
}
