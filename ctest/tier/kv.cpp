// A KV cache over a store with an SSD tier: blocks that memory has dropped come back from disk by the same calls, whole or a layer after the
// other, also after a restart. Every token of every layer has a word of its own.
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../kv/words.hpp"
#include "nanomc.hpp"

namespace {

using namespace kv;
constexpr uint32_t kSize = 16, kLayers = 6, kBlocks = 64;

struct Dir {
  std::string path;
  Dir() {
    char name[] = "/tmp/nmc-tier-kv-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Dir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

uint64_t word_of(uint32_t token, uint32_t layer) { return mix(token * 1000003ull + layer, layer + 1); }

// A store, its tier, and a cache over it.
struct Stack {
  nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(4 << 20).page_bytes(4096).checksums());
  nmc::Tier tier;
  std::vector<uint64_t> memory = std::vector<uint64_t>(kBlocks * kSize * kLayers * 64);
  nmc_kv_t* kv = nullptr;

  explicit Stack(const std::string& dir) : tier(nmc::Tier::open(store, nmc::TierConfig(dir + "/tier").paused())) {
    nmc_kv_group_t group = NMC_KV_GROUP_INIT;
    group.kind = NMC_KV_KIND_MLA;
    group.dtype = NMC_DTYPE_RAW;
    group.element_bytes = 8;
    group.layers = kLayers;
    group.kv_heads = 1;
    group.head_dim = 64;
    group.memory = memory.data();
    group.memory_bytes = memory.size() * 8;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = kBlocks;
    config.tokens_per_block = kSize;
    config.groups = &group;
    config.n_groups = 1;
    OK(nmc_kv_create(nullptr, &config, &kv));
    REQUIRE(kv != nullptr);
    OK(nmc_kv_attach_store(kv, store.get()));
  }
  ~Stack() { OK(nmc_kv_destroy(kv)); }

  uint64_t* at(uint64_t id, size_t token, uint32_t layer) {
    void* there = nullptr;
    OK(nmc_kv_token_address(kv, id, token, 0, layer, NMC_KV_K, 0, &there));
    return static_cast<uint64_t*>(there);
  }
  void compute(uint64_t id, const Tokens& tokens, size_t from) {
    for (size_t i = from; i < tokens.size(); ++i) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t word = 0; word < 64; ++word) at(id, i, layer)[word] = word_of(tokens[i], layer) + word;
      }
    }
    OK(nmc_kv_commit(kv, id, tokens.size()));
  }
  bool is_right(uint64_t id, const Tokens& tokens, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t word = 0; word < 64; ++word) {
          if (at(id, i, layer)[word] != word_of(tokens[i], layer) + word) return false;
        }
      }
    }
    return true;
  }
  // Opens a sequence of which the cache knows nothing, and fetches what the store has. Gives how many tokens came.
  uint64_t fetch(uint64_t id, const Tokens& tokens, uint32_t flags) {
    OK(nmc_kv_clear(kv, nullptr));
    OK(nmc_kv_open(kv, id, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
    uint64_t ticket = 0, found = 0;
    OK(nmc_kv_onboard(kv, id, flags, nullptr, &ticket, &found));
    if (ticket != 0) OK(nmc_kv_transfer_wait(kv, ticket, 120000, nullptr));
    CHECK(is_right(id, tokens, found));
    OK(nmc_kv_close(kv, id, 0));
    return found;
  }
};

void all() {
  Dir dir;
  const Tokens tokens = numbers(100, kSize * 20);
  {
    Stack s(dir.path);
    promise("what a cache gives to the store is on disk when memory has dropped it");
    OK(nmc_kv_open(s.kv, 1, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
    s.compute(1, tokens, 0);
    uint64_t ticket = 0;
    OK(nmc_kv_offload(s.kv, 1, tokens.size(), nullptr, &ticket));
    OK(nmc_kv_transfer_wait(s.kv, ticket, 120000, nullptr));
    OK(nmc_kv_close(s.kv, 1, 0));
    CHECK(s.tier.offload() == 20);
    s.store.evict_until_below(0, 0);

    promise("it comes back by the same call, whole and layer by layer");
    for (uint32_t flags : {NMC_KV_ONBOARD_ALL, NMC_KV_ONBOARD_ALL | NMC_KV_ONBOARD_BY_LAYER}) {
      const uint64_t before = s.tier.stats().read_objects;
      CHECK(s.fetch(2, tokens, flags) == tokens.size());
      // Each once, also by layer: who comes first to a block fetches all of it, whichever layer that is.
      CHECK(s.tier.stats().read_objects - before == 20);
    }
    s.store.evict_until_below(0, 0);
    promise("brought back before it is needed, it does not read the disk");
    std::vector<std::string> keys;
    s.tier.scan([&](const nmc::TierEntry& entry) { return keys.emplace_back(entry.key), true; });
    CHECK(s.tier.prefetch(nmc::all_keys(keys)).ok());
    const uint64_t before = s.tier.stats().read_objects;
    CHECK(s.fetch(3, tokens, NMC_KV_ONBOARD_ALL) == tokens.size());
    CHECK(s.tier.stats().read_objects == before);
    OK(nmc_kv_audit(s.kv));
  }
  promise("a new process finds it, too");
  Stack s(dir.path);
  CHECK(s.fetch(4, tokens, NMC_KV_ONBOARD_ALL) == tokens.size());
  promise("what is damaged is not taken for a block");
  for (const auto& file : std::filesystem::directory_iterator(dir.path + "/tier")) {
    if (file.path().extension() != ".bucket") continue;
    std::FILE* bucket = std::fopen(file.path().c_str(), "r+b");
    REQUIRE(bucket != nullptr);
    std::fseek(bucket, 3 * 4096 + 100, SEEK_SET);
    std::fputc(0x5a, bucket);
    std::fclose(bucket);
  }
  OK(nmc_kv_clear(s.kv, nullptr));
  OK(nmc_kv_open(s.kv, 5, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  uint64_t ticket = 0, found = 0;
  OK(nmc_kv_onboard(s.kv, 5, NMC_KV_ONBOARD_ALL, nullptr, &ticket, &found));
  REQUIRE(ticket != 0);
  CHECK(nmc_kv_transfer_wait(s.kv, ticket, 120000, nullptr) == NMC_ERR_CORRUPT);
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  OK(nmc_kv_seq_info(s.kv, 5, 0, &info));
  CHECK(info.computed_tokens < tokens.size() && s.is_right(5, tokens, info.computed_tokens));
  OK(nmc_kv_close(s.kv, 5, 0));
}

}  // namespace

int main() {
  all();
  return finish();
}
