// Blocks of a KV cache in device memory go to a store in host memory and come back.
// They are what the stream wrote before, bit for bit, also while the stream is late; a transfer that waits for nothing is refused;
// sequences are moved when there is no room; windows and states go along.

#include "kv_move.h"

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

int main() {
  prepare_environment();
  if (!child_sees_gpu()) return 77;
  CUDA_OK(cudaSetDevice(0));
  test();
  moves();
  hybrid();
  return failed_checks == 0 ? 0 : 1;
}
