// Virtual placement of the KV cache in device memory: kernels write and check the tokens of sequences through their views, over
// page borders, while the sequences grow, fork, are cut and closed.
//
//   kv_virtual_gpu grow | load [steps] [seed]
#include <map>

#include "../support/random.hpp"
#include "kv_virtual.h"

namespace {

// Reads what a sequence has over and over, until it is told to stop, or for 5 seconds.
__global__ void reader_kernel(Tensor t, uint32_t per_block, uint64_t tokens, const volatile uint32_t* stop,
                              unsigned long long* sum) {
  unsigned long long mine = 0, began = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
  for (now = began; *stop == 0 && now - began < 5000000000ull;) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    for (uint64_t token = threadIdx.x; token < tokens; token += blockDim.x) mine += *vector_at(t, token, 0, per_block);
  }
  atomicAdd(sum, mine);
}

// Words of a sequence's tokens, which kernels read where they are.
struct Words {
  uint32_t* at = nullptr;
  explicit Words(size_t capacity) {
    CUDA_OK(cudaMallocHost(&at, capacity * sizeof *at));
  }
};

void grow() {
  VirtualCache bench(NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_SEPARATE, 24, 16);
  check(bench.per_block == 1024 && bench.planes == 8, "1,024 tokens of 2 KiB fill a page of 2 MiB in each of 8 planes");
  const uint64_t most = 10 * bench.per_block;
  Words words(most);
  for (uint64_t t = 0; t < most; ++t) words.at[t] = static_cast<uint32_t>(t * 7 + 1);
  NMC_CHECK(nmc_kv_open(bench.kv, 1, nullptr, 0, nullptr, nullptr, nullptr));
  const Tensor before = bench.tensor(1, kLayers - 1, NMC_KV_V);
  // Odd steps, so that some cross a border; the kernels of a step run while the next pages are mapped.
  uint64_t has = 0;
  bool moved = false;
  for (uint64_t step : {1023, 1, 1, 300, 700, 1500, 3000, 17, 2500, 1198}) {
    NMC_CHECK(nmc_kv_append(bench.kv, 1, nullptr, step, nullptr, nullptr));
    bench.tokens(1, has, has + step, words.at, true);
    has += step;
    bench.tokens(1, 0, has, words.at, false);
    moved |= bench.tensor(1, kLayers - 1, NMC_KV_V).data != before.data;
  }
  CUDA_OK(cudaStreamSynchronize(bench.stream));
  check(has == most && *bench.wrong == 0, "tokens are what was written, over all page borders");
  check(!moved, "the addresses never change");

  // A kernel that runs all the time does not see anything of what is mapped beside it.
  uint32_t* stop = nullptr;
  unsigned long long* sum = nullptr;
  CUDA_OK(cudaMallocHost(&stop, sizeof *stop));
  CUDA_OK(cudaMallocManaged(&sum, sizeof *sum));
  *stop = 0;
  *sum = 0;
  cudaStream_t other = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const Tensor tensor = bench.tensor(1, 0, NMC_KV_K);
  reader_kernel<<<1, 128, 0, other>>>(tensor, bench.per_block, most, stop, sum);
  CUDA_OK(cudaGetLastError());
  const uint64_t began = now_ns();
  NMC_CHECK(nmc_kv_reserve(bench.kv, 1, 16 * bench.per_block, nullptr));
  const uint64_t took = now_ns() - began;
  check(cudaStreamQuery(other) == cudaErrorNotReady, "pages are mapped while a kernel reads the sequence");
  *stop = 1;
  CUDA_OK(cudaStreamSynchronize(other));
  std::printf("     48 pages mapped beside a running kernel, %.1f us a page\n", static_cast<double>(took) / 48e3);
  cudaStreamDestroy(other);

  // A fork shares whole blocks and copies the rest.
  NMC_CHECK(nmc_kv_truncate(bench.kv, 1, 9 * bench.per_block + 100, nullptr));
  NMC_CHECK(nmc_kv_fork(bench.kv, 1, 2, nullptr));
  bench.copy(2);
  nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
  NMC_CHECK(nmc_kv_stats(bench.kv, &stats));
  check(stats.used == 11, "a fork takes one block");
  bench.tokens(2, 0, 9 * bench.per_block + 100, words.at, false);
  CUDA_OK(cudaStreamSynchronize(bench.stream));
  check(*bench.wrong == 0, "a fork reads what its parent wrote");
  cudaFreeHost(stop);
  cudaFree(sum);
  cudaFreeHost(words.at);
}

void load(uint64_t steps, uint64_t seed, uint32_t order) {
  VirtualCache bench(order, NMC_KV_SIDES_SEPARATE, 30, 8);
  const uint64_t most = 8ull * bench.per_block;
  Random random(seed);
  struct Known {
    Words words;
    uint64_t tokens;
  };
  std::map<uint64_t, Known> known;
  std::vector<Words> idle;
  const auto take_words = [&] {
    if (idle.empty()) return Words(most);
    const Words words = idle.back();
    idle.pop_back();
    return words;
  };
  uint64_t next_id = 1, forks = 0, refused = 0;
  uint32_t next_word = 1;
  const auto compute = [&](uint64_t id, uint64_t more) {
    Known& seq = known.at(id);
    for (uint64_t t = seq.tokens; t < seq.tokens + more; ++t) seq.words.at[t] = next_word++;
    bench.tokens(id, seq.tokens, seq.tokens + more, seq.words.at, true);
    seq.tokens += more;
  };
  for (uint64_t step = 0; step < steps; ++step) {
    auto one = known.begin();
    if (!known.empty()) std::advance(one, static_cast<long>(random() % known.size()));
    const uint64_t choice = known.empty() ? 0 : random() % 10;
    const uint64_t amount = random() % (2 * bench.per_block);
    uint64_t id = known.empty() ? 0 : one->first;
    nmc_status_t status = NMC_OK;
    if (choice <= 1) {
      id = next_id++;
      status = nmc_kv_open(bench.kv, id, nullptr, amount, nullptr, nullptr, nullptr);
      if (status == NMC_OK) {
        known.emplace(id, Known{take_words(), 0});
        compute(id, amount);
      }
    } else if (choice <= 4) {
      status = nmc_kv_append(bench.kv, id, nullptr, amount, nullptr, nullptr);
      if (status == NMC_OK) compute(id, amount);
    } else if (choice == 5) {
      status = nmc_kv_reserve(bench.kv, id, amount * 3, nullptr);
    } else if (choice == 6) {
      CUDA_OK(cudaStreamSynchronize(bench.stream));  // what is cut off may be unmapped
      const uint64_t keep = random() % (one->second.tokens + 1);
      status = nmc_kv_truncate(bench.kv, id, keep, nullptr);
      if (status == NMC_OK) {
        one->second.tokens = keep;
        bench.copy(id);
      }
    } else if (choice == 7) {
      const uint64_t child = next_id++;
      status = nmc_kv_fork(bench.kv, id, child, nullptr);
      if (status == NMC_OK) {
        ++forks;
        Known copy{take_words(), one->second.tokens};
        std::memcpy(copy.words.at, one->second.words.at, copy.tokens * sizeof(uint32_t));
        known.emplace(child, copy);
        bench.copy(child);
      }
    } else {
      CUDA_OK(cudaStreamSynchronize(bench.stream));
      NMC_CHECK(nmc_kv_close(bench.kv, id, 0));
      idle.push_back(one->second.words);
      known.erase(one);
    }
    if (status != NMC_OK && status != NMC_ERR_NO_SPACE && status != NMC_ERR_LIMIT) NMC_CHECK(status);
    refused += status != NMC_OK;
    for (const auto& [other, seq] : known)
      if (other == id || step % 10 == 0) bench.tokens(other, 0, seq.tokens, seq.words.at, false);
    // Words are reused on the host, so the kernels must be through with them.
    if (step % 10 == 0) CUDA_OK(cudaStreamSynchronize(bench.stream));
  }
  CUDA_OK(cudaStreamSynchronize(bench.stream));
  std::printf("     order %u, %llu steps, seed %llu: %llu forks, %llu refused\n", order, static_cast<unsigned long long>(steps),
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(forks),
              static_cast<unsigned long long>(refused));
  check(*bench.wrong == 0 && forks > 0, "every sequence reads its own words");
  for (auto& [id, seq] : known) idle.push_back(seq.words);
  for (Words& words : idle) cudaFreeHost(words.at);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  if (mode == "grow") {
    grow();
  } else if (mode == "load") {
    const uint64_t steps = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 300;
    const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 0) : 1;
    for (uint32_t order : {NMC_KV_LAYER_MAJOR, NMC_KV_HEAD_MAJOR, NMC_KV_LAYER_MAJOR_NHD, NMC_KV_BLOCK_MAJOR}) load(steps, seed, order);
  } else {
    std::printf("usage: kv_virtual_gpu grow | load [steps] [seed]\n");
    return 2;
  }
  if (failed_checks != 0) std::printf("%d checks FAILED\n", failed_checks);
  return failed_checks != 0;
}
