// Blocks of a KV cache in device memory go to a store in host memory and come back.
// `kv_move test`: they are what the stream wrote before, bit for bit, also while the stream is late; a transfer that waits for
// nothing is refused; sequences are moved when there is no room; windows and states go along. `kv_move bench [--json]`: how fast, beside cudaMemcpyAsync of the same bytes from and to pinned memory.

#include "store_check.h"

#include <algorithm>
#include <chrono>
#include <cstring>

constexpr uint32_t LAYERS = 32, HEADS = 8, DIM = 128, TOKENS = 16;
constexpr uint64_t BLOCK_BYTES = uint64_t{LAYERS} * 2 * HEADS * TOKENS * DIM * 2;  // 2 MiB

__host__ __device__ inline uint32_t word_of(uint64_t seed, uint64_t at) {
  uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (at + 1) * 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(x ^ x >> 31);
}

// Waits `ns`, then fills blocks of the layout [layers, 2 sides, blocks, ...] (separate sides) with words of their own number.
__global__ void fill_blocks(uint32_t* arena, const int32_t* blocks, uint32_t total, uint64_t seed, uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
  constexpr uint64_t plane_words = BLOCK_BYTES / 4 / (2 * LAYERS);
  const uint64_t plane = blockIdx.y, number = blockIdx.x;
  uint32_t* to = arena + (plane * total + static_cast<uint64_t>(blocks[number])) * plane_words;
  for (uint64_t i = threadIdx.x; i < plane_words; i += blockDim.x) to[i] = word_of(seed, (number * 2 * LAYERS + plane) * plane_words + i);
}

__global__ void check_blocks(const uint32_t* arena, const int32_t* blocks, uint32_t total, uint64_t seed, unsigned long long* wrong) {
  constexpr uint64_t plane_words = BLOCK_BYTES / 4 / (2 * LAYERS);
  const uint64_t plane = blockIdx.y, number = blockIdx.x;
  const uint32_t* from = arena + (plane * total + static_cast<uint64_t>(blocks[number])) * plane_words;
  unsigned long long bad = 0;
  for (uint64_t i = threadIdx.x; i < plane_words; i += blockDim.x) {
    if (from[i] != word_of(seed, (number * 2 * LAYERS + plane) * plane_words + i)) ++bad;
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

struct Cache {
  uint32_t total;
  uint32_t* arena = nullptr;
  nmc_kv_t* kv = nullptr;
  cudaStream_t stream = nullptr;
  int32_t* table = nullptr;
  unsigned long long* wrong = nullptr;

  Cache(uint32_t blocks, nmc_store_t* store, uint32_t when_full = NMC_KV_WHEN_FULL_REJECT) : total(blocks) {
    CUDA_OK(cudaMalloc(&arena, BLOCK_BYTES * blocks));
    CUDA_OK(cudaMalloc(&table, sizeof(int32_t) * blocks));
    CUDA_OK(cudaMalloc(&wrong, sizeof(*wrong)));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    nmc_kv_group_t group = NMC_KV_GROUP_INIT;
    group.layers = LAYERS, group.kv_heads = HEADS, group.head_dim = DIM;
    group.memory = arena, group.memory_bytes = BLOCK_BYTES * blocks;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = blocks, config.groups = &group, config.n_groups = 1, config.when_full = when_full;
    NMC_CHECK(nmc_kv_create(nullptr, &config, &kv));
    NMC_CHECK(nmc_kv_attach_store(kv, store));
  }
  ~Cache() {
    (void)nmc_kv_destroy(kv);
    cudaFree(arena), cudaFree(table), cudaFree(wrong), cudaStreamDestroy(stream);
  }
  // Opens a sequence of whole blocks with tokens of its own; returns how many tokens were there.
  uint64_t open(uint64_t id, uint32_t blocks) {
    std::vector<uint32_t> tokens(blocks * TOKENS);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = word_of(id, i);
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.flags = NMC_KV_OPEN_MATCH_ALL;
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    NMC_CHECK(nmc_kv_open(kv, id, tokens.data(), tokens.size(), &options, &opened, nullptr));
    std::vector<int32_t> indices(blocks);
    int32_t indptr[2], last;
    size_t n;
    NMC_CHECK(nmc_kv_table_csr(kv, 0, &id, 1, indptr, &last, indices.data(), indices.size(), &n));
    CUDA_OK(cudaMemcpy(table, indices.data(), n * sizeof(int32_t), cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
    return opened.hit_tokens;
  }
  void fill(uint64_t seed, uint32_t blocks, uint64_t ns) {
    fill_blocks<<<dim3(blocks, 2 * LAYERS), 256, 0, stream>>>(arena, table, total, seed, ns);
    CUDA_OK(cudaGetLastError());
  }
  bool right(uint64_t seed, uint32_t blocks) {
    unsigned long long bad = 0;
    CUDA_OK(cudaMemsetAsync(wrong, 0, sizeof(bad), stream));
    check_blocks<<<dim3(blocks, 2 * LAYERS), 256, 0, stream>>>(arena, table, total, seed, wrong);
    CUDA_OK(cudaMemcpyAsync(&bad, wrong, sizeof(bad), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    return bad == 0;
  }
  nmc_kv_after_t after_stream() const { return {NMC_KV_AFTER_STREAM, 0, stream}; }
};

static void test() {
  nmc_store_config_t config = embedded(NMC_HEAP_HOST, 256 * MIB, 256 * KIB);
  config.flags |= NMC_STORE_CHECKSUMS;
  nmc_store_t* store = create(config);
  Cache a(64, store), b(40, store);
  uint64_t ticket, tokens;
  for (uint32_t round = 0; round < 4; ++round) {
    const uint64_t id = 100 + round;
    a.open(id, 8);
    // The kernel is late: what the transfer copies must be what it writes in the end.
    a.fill(id, 8, 30'000'000);
    nmc_kv_after_t after = a.after_stream();
    cudaEvent_t event;
    CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA_OK(cudaEventRecord(event, a.stream));
    if (round % 2 == 1) after = {NMC_KV_AFTER_EVENT, 0, event};
    NMC_CHECK(nmc_kv_commit(a.kv, id, 8 * TOKENS));
    check(nmc_kv_offload(a.kv, id, 8 * TOKENS, nullptr, &ticket) == NMC_ERR_INVALID_ARG,
          "device memory and nothing to wait for is refused");
    NMC_CHECK(nmc_kv_offload(a.kv, id, 8 * TOKENS, &after, &ticket));
    NMC_CHECK(nmc_kv_close(a.kv, id, 0));
    NMC_CHECK(nmc_kv_transfer_wait(a.kv, ticket, 30000, nullptr));
    CUDA_OK(cudaEventDestroy(event));

    CUDA_OK(cudaMemset(b.arena, 0xee, BLOCK_BYTES * b.total));
    CUDA_OK(cudaDeviceSynchronize());
    check(b.open(id, 8) == 0, "the other cache has nothing");
    after = b.after_stream();
    NMC_CHECK(nmc_kv_onboard(b.kv, id, NMC_KV_ONBOARD_ALL | (round < 2 ? NMC_KV_ONBOARD_BY_LAYER : 0), &after, &ticket, &tokens));
    check(tokens == 8 * TOKENS, "the store has all of it");
    NMC_CHECK(nmc_kv_transfer_wait(b.kv, ticket, 30000, nullptr));
    check(b.right(id, 8), "it comes back bit for bit");
    NMC_CHECK(nmc_kv_close(b.kv, id, 0));
    check(b.open(id, 8) == 8 * TOKENS && b.right(id, 8), "and is matched from then on");
    NMC_CHECK(nmc_kv_close(b.kv, id, 0));
    NMC_CHECK(nmc_kv_audit(a.kv));
    NMC_CHECK(nmc_kv_audit(b.kv));
  }
  (void)nmc_store_destroy(store);
}

// Sequences are moved to make room while the kernel that computes them is late.
static void moves() {
  nmc_store_t* store = create(embedded(NMC_HEAP_HOST, 256 * MIB, 256 * KIB));
  Cache cache(24, store, NMC_KV_WHEN_FULL_MOVE_SEQUENCE);
  const nmc_kv_after_t nothing = {NMC_KV_AFTER_NOTHING, 0, nullptr}, after = cache.after_stream();
  check(nmc_kv_move_after(cache.kv, &nothing) == NMC_ERR_INVALID_ARG, "moves of device memory come after a stream");
  for (uint64_t id = 1; id <= 3; ++id) {
    cache.open(id, 8);
    cache.fill(id, 8, 0);
    NMC_CHECK(nmc_kv_commit(cache.kv, id, 8 * TOKENS));
  }
  std::vector<uint32_t> tokens(8 * TOKENS, 77);
  check(nmc_kv_open(cache.kv, 4, tokens.data(), tokens.size(), nullptr, nullptr, nullptr) == NMC_ERR_NO_SPACE,
        "nobody is moved before it is known what to wait for");
  NMC_CHECK(nmc_kv_move_after(cache.kv, &after));
  for (uint64_t id = 4; id <= 9; ++id) {
    cache.open(id, 8);
    cache.fill(id, 8, 20'000'000);  // the next move but two is of these blocks
    NMC_CHECK(nmc_kv_commit(cache.kv, id, 8 * TOKENS));
  }
  nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
  NMC_CHECK(nmc_kv_stats(cache.kv, &stats));
  check(stats.moved_sequences == 6, "six were moved");
  for (uint64_t id = 1; id <= 6; ++id) {
    NMC_CHECK(nmc_kv_close(cache.kv, id, 0));
    NMC_CHECK(nmc_kv_clear(cache.kv, nullptr));
    check(cache.open(id, 8) == 0, "a moved sequence has nothing here");
    uint64_t ticket, found;
    NMC_CHECK(nmc_kv_onboard(cache.kv, id, NMC_KV_ONBOARD_ALL, &after, &ticket, &found));
    check(found == 8 * TOKENS, "the store has all of a moved sequence");
    NMC_CHECK(nmc_kv_transfer_wait(cache.kv, ticket, 30000, nullptr));
    check(cache.right(id, 8), "a moved sequence comes back bit for bit");
    NMC_CHECK(nmc_kv_commit(cache.kv, id, 8 * TOKENS));
  }
  NMC_CHECK(nmc_kv_audit(cache.kv));
  (void)nmc_store_destroy(store);
}

// A cache with a window group and a recurrent group, each of whose blocks is one piece of device memory.
struct Hybrid {
  static constexpr uint32_t kGroups = 3, kTotal[3] = {32, 24, 6}, kWindow = 40;
  char* memory[3] = {};
  uint64_t bytes[3] = {};
  nmc_kv_t* kv = nullptr;

  explicit Hybrid(nmc_store_t* store) {
    nmc_kv_group_t groups[kGroups] = {NMC_KV_GROUP_INIT, NMC_KV_GROUP_INIT, NMC_KV_GROUP_INIT};
    for (nmc_kv_group_t& group : groups) group.layers = 3, group.kv_heads = 1, group.head_dim = 64, group.order = NMC_KV_BLOCK_MAJOR;
    groups[0].sides = NMC_KV_SIDES_PER_LAYER;
    groups[1].kind = NMC_KV_KIND_MLA, groups[1].window = kWindow, groups[1].blocks = kTotal[1];
    groups[2].kind = NMC_KV_KIND_RECURRENT, groups[2].state_bytes = 20000, groups[2].blocks = kTotal[2];
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = kTotal[0], config.groups = groups, config.n_groups = kGroups;
    for (uint32_t g = 0; g < kGroups; ++g) {
      NMC_CHECK(nmc_kv_heap_bytes(&config, g, &groups[g].memory_bytes));
      CUDA_OK(cudaMalloc(&memory[g], groups[g].memory_bytes));
      CUDA_OK(cudaMemset(memory[g], 0xee, groups[g].memory_bytes));
      groups[g].memory = memory[g];
      bytes[g] = groups[g].memory_bytes / kTotal[g];
    }
    CUDA_OK(cudaDeviceSynchronize());
    NMC_CHECK(nmc_kv_create(nullptr, &config, &kv));
    NMC_CHECK(nmc_kv_attach_store(kv, store));
  }
  ~Hybrid() {
    (void)nmc_kv_destroy(kv);
    for (char* one : memory) cudaFree(one);
  }
  // The block at each place; for the state its one slot.
  std::vector<int32_t> blocks(uint64_t id, uint32_t group, size_t count) {
    std::vector<int32_t> all(count);
    if (group == 2) {
      int32_t read = -1, write = -1;
      NMC_CHECK(nmc_kv_state_slots(kv, 2, &id, 1, &read, &write));
      return {read >= 0 && write < 0 ? read : write};
    }
    nmc_kv_row_t row = {0, 0, 0};
    NMC_CHECK(nmc_kv_table(kv, group, NMC_KV_TABLE_BLOCKS, &id, 1, count, -1, &row, all.data(), nullptr));
    return all;
  }
  std::vector<uint32_t> expected(uint32_t group, size_t place) const {
    std::vector<uint32_t> words(bytes[group] / 4);
    for (size_t i = 0; i < words.size(); ++i) words[i] = word_of(group * 1000 + place, i);
    return words;
  }
  void write(uint64_t id, size_t count) {
    for (uint32_t g = 0; g < kGroups; ++g) {
      const std::vector<int32_t> all = blocks(id, g, count);
      for (size_t at = 0; at < all.size(); ++at) {
        if (all[at] < 0) continue;
        CUDA_OK(cudaMemcpy(memory[g] + static_cast<uint64_t>(all[at]) * bytes[g], expected(g, at).data(), bytes[g], cudaMemcpyHostToDevice));
      }
    }
  }
  // How many blocks of the first `count` places are there and right, for each group.
  size_t right(uint64_t id, uint32_t group, size_t count) {
    const std::vector<int32_t> all = blocks(id, group, count);
    size_t found = 0;
    for (size_t at = 0; at < all.size(); ++at) {
      if (all[at] < 0) continue;
      std::vector<uint32_t> words(bytes[group] / 4);
      CUDA_OK(cudaMemcpy(words.data(), memory[group] + static_cast<uint64_t>(all[at]) * bytes[group], bytes[group], cudaMemcpyDeviceToHost));
      if (words == expected(group, at)) ++found;
    }
    return found;
  }
};

static void hybrid() {
  nmc_store_config_t config = embedded(NMC_HEAP_HOST, 64 * MIB, 64 * KIB);
  config.flags |= NMC_STORE_CHECKSUMS;
  nmc_store_t* store = create(config);
  Hybrid a(store), b(store);
  const nmc_kv_after_t after = {NMC_KV_AFTER_STREAM, 0, nullptr};
  std::vector<uint32_t> tokens(10 * TOKENS);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i);
  NMC_CHECK(nmc_kv_open(a.kv, 1, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  a.write(1, 10);
  NMC_CHECK(nmc_kv_keep_state(a.kv, 1));
  uint64_t ticket, found;
  NMC_CHECK(nmc_kv_offload(a.kv, 1, tokens.size(), &after, &ticket));
  NMC_CHECK(nmc_kv_transfer_wait(a.kv, ticket, 30000, nullptr));
  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
  tokens.push_back(4711);
  NMC_CHECK(nmc_kv_open(b.kv, 2, tokens.data(), tokens.size(), nullptr, &opened, nullptr));
  check(opened.hit_tokens == 0, "the other hybrid cache has nothing");
  NMC_CHECK(nmc_kv_onboard(b.kv, 2, 0, &after, &ticket, &found));
  check(found == 10 * TOKENS, "the store has all blocks, the window and the state");
  NMC_CHECK(nmc_kv_transfer_wait(b.kv, ticket, 30000, nullptr));
  check(b.right(2, 0, 10 + 1) == 10, "all blocks came");
  check(b.right(2, 1, 10 + 1) == 3, "the window came: 40 tokens reach into three blocks");
  int32_t read, write;
  const uint64_t id = 2;
  NMC_CHECK(nmc_kv_state_slots(b.kv, 2, &id, 1, &read, &write));
  check(read >= 0 && write >= 0 && read != write, "the state is kept, and the next one goes elsewhere");
  const nmc_kv_copy_t copy = {read, write, 2, 0, nullptr, nullptr, 0};
  NMC_CHECK(nmc_kv_copy_blocks(b.kv, &copy, 1, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  check(b.right(2, 2, 1) == 1, "the state came, and can be copied from slot to slot");
  NMC_CHECK(nmc_kv_audit(a.kv));
  NMC_CHECK(nmc_kv_audit(b.kv));
  (void)nmc_store_destroy(store);
}

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
  const std::string mode = argc > 1 ? argv[1] : "test";
  prepare_environment();
  if (!child_sees_gpu()) return 77;
  CUDA_OK(cudaSetDevice(0));
  if (mode == "bench") {
    bench(argc > 2 && std::strcmp(argv[2], "--json") == 0);
  } else {
    test();
    moves();
    hybrid();
  }
  return failed_checks == 0 ? 0 : 1;
}
