// A cache and what lies around it: arenas in the heap of a world, which peers read in place; and a store to which sequences
// are moved when there is no room. Every token has words that depend on all tokens before it, so that whatever is read
// through a table or by a peer shows whose it is.
//
//   kv_stored [steps] [seed] [late]
//
// The last argument is a control: the program says that it computed tokens before it wrote them, so that moves take others.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "nanomc.hpp"
#include "words.hpp"

namespace {

bool late = false;

using namespace kv;
constexpr uint32_t kSize = 4;

std::vector<uint64_t> words(const Tokens& tokens) {
  std::vector<uint64_t> words;
  uint64_t last = 0;
  for (uint32_t token : tokens) words.push_back(last = mix(last, token));
  return words;
}

nmc_kv_group_t group_of(uint32_t layers) {
  nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  group.kind = NMC_KV_KIND_MLA;
  group.dtype = NMC_DTYPE_RAW;
  group.element_bytes = 8;
  group.layers = layers;
  group.kv_heads = group.head_dim = 1;
  return group;
}

void put(nmc_kv_t* kv, uint64_t id, const Tokens& tokens, size_t from) {
  const std::vector<uint64_t> all = words(tokens);
  for (size_t i = from; i < all.size(); ++i) {
    void* to = nullptr;
    OK(nmc_kv_token_address(kv, id, i, 0, 0, NMC_KV_K, 0, &to));
    std::memcpy(to, &all[i], 8);
  }
}

bool is_right(nmc_kv_t* kv, uint64_t id, const Tokens& tokens, size_t count) {
  const std::vector<uint64_t> all = words(tokens);
  for (size_t i = 0; i < count; ++i) {
    void* from = nullptr;
    OK(nmc_kv_token_address(kv, id, i, 0, 0, NMC_KV_K, 0, &from));
    if (std::memcmp(from, &all[i], 8) != 0) return false;
  }
  return true;
}

// ---- in the heap of a world ---------------------------------------------------------------------------------------------

void heaps() {
  promise("peers read the blocks of a cache in the heap of its rank, where it says that they are");
  nmc::WorldConfig world_config;
  world_config.world_size(2).heap_bytes(1 << 20);
  std::vector<nmc::World> worlds = nmc::World::create_local(world_config);
  nmc_kv_group_t groups[2] = {group_of(1), group_of(3)};
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = 20;
  config.tokens_per_block = kSize;
  config.groups = groups;
  config.n_groups = 2;
  uint64_t bytes = 0;
  OK(nmc_kv_heap_bytes(&config, NMC_KV_GROUPS_ALL, &bytes));
  CHECK(bytes == 4096 + 20 * kSize * 3 * 8);  // the second begins at the next page
  OK(nmc_kv_heap_bytes(&config, 0, &bytes));
  CHECK(bytes == 20 * kSize * 8);
  OK(nmc_kv_heap_bytes(&config, 1, &bytes));
  CHECK(bytes == 20 * kSize * 3 * 8);
  FAILS(nmc_kv_heap_bytes(&config, 2, &bytes), NMC_ERR_INVALID_ARG, "group 2 does not exist; there are 2");
  config.heap_offset = 8192;
  nmc_kv_t* kv = nullptr;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_INVALID_ARG, "there is no world");
  nmc_world_t* const world = worlds[1].get();
  config.heap_offset = 100;
  FAILS(nmc_kv_create(world, &config, &kv), NMC_ERR_INVALID_ARG, "multiple of 4096");
  config.heap_offset = 1 << 20;
  FAILS(nmc_kv_create(world, &config, &kv), NMC_ERR_INVALID_ARG, "past the end of a heap");
  config.heap_offset = UINT64_MAX - 4095;
  FAILS(nmc_kv_create(world, &config, &kv), NMC_ERR_INVALID_ARG, "pass 2^64 bytes");
  config.heap_offset = 8192;
  config.flags = NMC_KV_VIRTUAL;
  GIVES(nmc_kv_create(world, &config, &kv), NMC_ERR_UNSUPPORTED);
  config.flags = 0;
  uint64_t mine[400];
  groups[1].memory = mine;
  groups[1].memory_bytes = sizeof mine;
  FAILS(nmc_kv_create(world, &config, &kv), NMC_ERR_INVALID_ARG, "group 1 has memory, and a world is given");
  groups[1].memory = nullptr;
  groups[1].memory_bytes = 0;
  OK(nmc_kv_create(world, &config, &kv));
  REQUIRE(kv != nullptr);

  const Tokens tokens = numbers(7, 11);
  OK(nmc_kv_open(kv, 1, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  put(kv, 1, tokens, 0);
  nmc_kv_group_stats_t stats = NMC_KV_GROUP_STATS_INIT;
  OK(nmc_kv_group_stats(kv, 1, &stats));
  CHECK(stats.heap_offset == 8192 + 4096 && stats.block_bytes == kSize * 3 * 8);
  OK(nmc_kv_group_stats(kv, 0, &stats));
  CHECK(stats.heap_offset == 8192);
  // What rank 0 is told: the rank, the offset and the blocks.
  int32_t indptr[2], indices[8], last = 0;
  size_t n = 0;
  const uint64_t id = 1;
  OK(nmc_kv_table_csr(kv, 0, &id, 1, indptr, &last, indices, 8, &n));
  CHECK(n == 3 && last == 3);
  const std::vector<uint64_t> all = words(tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t at = stats.heap_offset + (static_cast<uint64_t>(indices[i / kSize]) * kSize + i % kSize) * 8;
    void* there = nullptr;
    OK(nmc_world_ptr(worlds[0].get(), 1, at, 8, &there));
    CHECK(std::memcmp(there, &all[i], 8) == 0);
  }
  // The reverse: the address of a view is found in the heap.
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  OK(nmc_kv_view(kv, 1, 1, 2, NMC_KV_K, &view));
  int32_t rank = -1;
  uint64_t offset = 0;
  OK(nmc_world_locate(worlds[1].get(), view.data, &rank, &offset));
  CHECK(rank == 1 && offset == 8192 + 4096 + 2 * 20 * kSize * 8);
  OK(nmc_kv_audit(kv));
  OK(nmc_kv_destroy(kv));
  nmc_kv_group_t own = group_of(1);
  std::vector<uint64_t> memory(20 * kSize);
  own.memory = memory.data();
  own.memory_bytes = memory.size() * 8;
  config.groups = &own;
  config.n_groups = 1;
  config.heap_offset = 0;
  OK(nmc_kv_create(nullptr, &config, &kv));
  OK(nmc_kv_group_stats(kv, 0, &stats));
  CHECK(stats.heap_offset == UINT64_MAX);
  OK(nmc_kv_destroy(kv));
}

// ---- moved to make room -------------------------------------------------------------------------------------------------

struct Mover {
  nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(4 << 20).page_bytes(4096).checksums());
  std::vector<uint64_t> memory;
  nmc_kv_t* kv = nullptr;

  explicit Mover(uint32_t blocks, bool attach = true) : memory(blocks * kSize) {
    nmc_kv_group_t group = group_of(1);
    group.memory = memory.data();
    group.memory_bytes = memory.size() * 8;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = blocks;
    config.tokens_per_block = kSize;
    config.when_full = NMC_KV_WHEN_FULL_MOVE_SEQUENCE;
    config.groups = &group;
    config.n_groups = 1;
    OK(nmc_kv_create(nullptr, &config, &kv));
    REQUIRE(kv != nullptr);
    if (attach) OK(nmc_kv_attach_store(kv, store.get()));
  }
  ~Mover() { OK(nmc_kv_destroy(kv)); }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  nmc_status_t open(uint64_t id, const Tokens& tokens, uint64_t* from_store = nullptr) {
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    const nmc_status_t status = nmc_kv_open(kv, id, tokens.data(), tokens.size(), nullptr, &opened, nullptr);
    if (status != NMC_OK) return status;
    uint64_t ticket = 0, found = 0;
    OK(nmc_kv_onboard(kv, id, 0, nullptr, &ticket, &found));
    if (ticket != 0) OK(nmc_kv_transfer_wait(kv, ticket, 60000, nullptr));
    if (from_store != nullptr) *from_store += found;
    CHECK(is_right(kv, id, tokens, opened.hit_tokens + found));
    if (late) OK(nmc_kv_commit(kv, id, tokens.size()));
    put(kv, id, tokens, opened.hit_tokens + found);
    return NMC_OK;
  }

  nmc_kv_stats_t stats() {
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    OK(nmc_kv_stats(kv, &stats));
    CHECK(stats.used + stats.idle + stats.free == stats.total);
    return stats;
  }
};

void moves() {
  promise("without room the oldest sequence goes to the store, and comes back when it is opened again");
  Mover m(10);
  const Tokens a = numbers(100, 20), b = numbers(200, 18), c = numbers(300, 22);
  OK(m.open(1, a));
  OK(nmc_kv_commit(m.kv, 1, a.size()));
  OK(m.open(2, b));
  OK(nmc_kv_commit(m.kv, 2, b.size()));
  OK(m.open(3, c));
  OK(nmc_kv_commit(m.kv, 3, c.size()));
  CHECK(m.stats().moved_sequences == 2 && m.stats().evicted_sequences == 2);
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  OK(nmc_kv_seq_info(m.kv, 1, 0, &info));
  CHECK(info.state == NMC_KV_SEQ_EVICTED);
  FAILS(nmc_kv_append(m.kv, 1, nullptr, 1, nullptr, nullptr), NMC_ERR_STALE, "open it again");
  OK(nmc_kv_close(m.kv, 1, 0));
  OK(nmc_kv_clear(m.kv, nullptr));
  uint64_t from_store = 0;
  OK(m.open(1, a, &from_store));
  CHECK(from_store == 16);  // five blocks went; the last token is left to compute, and with it its block
  CHECK(is_right(m.kv, 1, a, a.size()));
  promise("nobody is moved for what could never fit");
  const Tokens huge = numbers(1000, 44);
  FAILS(nmc_kv_open(m.kv, 9, huge.data(), huge.size(), nullptr, nullptr, nullptr), NMC_ERR_NO_SPACE, "11 blocks");
  OK(nmc_kv_seq_info(m.kv, 1, 0, &info));
  CHECK(info.state == NMC_KV_SEQ_OPEN);
  OK(nmc_kv_audit(m.kv));
  for (uint64_t id = 1; id <= 3; ++id) OK(nmc_kv_close(m.kv, id, 0));
  CHECK(m.stats().used == 0);

  promise("without a store there is no room");
  Mover none(10, false);
  OK(nmc_kv_open(none.kv, 1, a.data(), a.size(), nullptr, nullptr, nullptr));
  OK(nmc_kv_open(none.kv, 2, b.data(), b.size(), nullptr, nullptr, nullptr));
  GIVES(nmc_kv_open(none.kv, 3, c.data(), c.size(), nullptr, nullptr, nullptr), NMC_ERR_NO_SPACE);
  GIVES(nmc_kv_move_after(none.kv, nullptr), NMC_ERR_INVALID_ARG);

  promise("what moves come after is a stream, or nothing on the host");
  int some_event = 0;  // is not looked at
  const nmc_kv_after_t event = {NMC_KV_AFTER_EVENT, 0, &some_event}, none_at_all = {NMC_KV_AFTER_EVENT, 0, nullptr};
  const nmc_kv_after_t nothing = {NMC_KV_AFTER_NOTHING, 0, nullptr};
  FAILS(nmc_kv_move_after(m.kv, &event), NMC_ERR_INVALID_ARG, "give a stream");
  FAILS(nmc_kv_move_after(m.kv, &none_at_all), NMC_ERR_INVALID_ARG, "NULL");
  OK(nmc_kv_move_after(m.kv, &nothing));
  FAILS(nmc_kv_attach_store(m.kv, m.store.get()), NMC_ERR_EXISTS, "already");

  promise("a store that is full moves nobody");
  Mover tiny(10, false);
  nmc::Store full = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(4096).page_bytes(4096));
  OK(nmc_kv_attach_store(tiny.kv, full.get()));
  const uint64_t pinned = 77;
  nmc_put_options_t put_options = NMC_PUT_OPTIONS_INIT;
  put_options.retain = NMC_RETAIN_HARD;
  OK(nmc_store_put(full.get(), {"x", 1}, &pinned, sizeof pinned, &put_options));
  OK(tiny.open(1, a));
  OK(nmc_kv_commit(tiny.kv, 1, a.size()));
  OK(tiny.open(2, b));
  GIVES(nmc_kv_open(tiny.kv, 3, c.data(), c.size(), nullptr, nullptr, nullptr), NMC_ERR_NO_SPACE);
  OK(nmc_kv_seq_info(tiny.kv, 1, 0, &info));
  CHECK(info.state == NMC_KV_SEQ_OPEN && is_right(tiny.kv, 1, a, a.size()));
  OK(nmc_kv_audit(tiny.kv));
}

void collisions() {
  promise("a hash that can be made to collide names no blocks in a store");
  nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(1 << 20).page_bytes(4096));
  std::vector<uint64_t> memory(10 * kSize);
  nmc_kv_group_t group = group_of(1);
  group.memory = memory.data();
  group.memory_bytes = memory.size() * 8;
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = 10;
  config.tokens_per_block = kSize;
  config.hash = NMC_KV_HASH_XXH3;
  config.groups = &group;
  config.n_groups = 1;
  nmc_kv_t* kv = nullptr;
  OK(nmc_kv_create(nullptr, &config, &kv));
  FAILS(nmc_kv_attach_store(kv, store.get()), NMC_ERR_UNSUPPORTED, "can be made to collide");
  OK(nmc_kv_destroy(kv));
}

// Requests that together need far more than there is; those that are moved come back.
void load(uint32_t steps, uint32_t seed) {
  promise("requests that need more than there is are moved to and fro, and always read their own words");
  Mover m(24);
  Random random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::map<uint64_t, Tokens> open;
  uint64_t next = 1, came = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    if (open.size() < 8) {
      const Tokens tokens = numbers(static_cast<uint32_t>(next) * 1000, 1 + below(30));
      if (OK(m.open(next, tokens, &came))) open[next] = tokens;
      ++next;
      continue;
    }
    auto it = open.begin();
    std::advance(it, below(8));
    const uint64_t id = it->first;
    Tokens& tokens = it->second;
    const uint32_t token = static_cast<uint32_t>(tokens.size());
    nmc_status_t status = nmc_kv_append(m.kv, id, &token, 1, nullptr, nullptr);
    if (status == NMC_ERR_STALE) {
      OK(nmc_kv_close(m.kv, id, 0));
      OK(m.open(id, tokens, &came));
      status = nmc_kv_append(m.kv, id, &token, 1, nullptr, nullptr);
    }
    if (!OK(status)) return;
    tokens.push_back(token);
    put(m.kv, id, tokens, tokens.size() - 1);
    CHECK(is_right(m.kv, id, tokens, tokens.size()));
    if (tokens.size() > 60 || below(40) == 0) {
      OK(nmc_kv_close(m.kv, id, 0));
      open.erase(it);
    }
    if (step % 64 == 0) OK(nmc_kv_audit(m.kv));
  }
  const nmc_kv_stats_t stats = m.stats();
  std::printf("     seed %u: %llu moved, %llu tokens came back\n", seed,
              static_cast<unsigned long long>(stats.moved_sequences), static_cast<unsigned long long>(came));
  CHECK(steps < 200 || (stats.moved_sequences > 0 && came > 0));
  for (const auto& [id, tokens] : open) OK(nmc_kv_close(m.kv, id, 0));
  OK(nmc_kv_audit(m.kv));
  CHECK(m.stats().used == 0);
}

// Several threads, each with requests of its own, in one cache that is far too small.
void threads(uint32_t steps) {
  promise("threads that move each other's sequences lose nothing");
  Mover m(40);
  std::vector<std::thread> all;
  for (uint32_t t = 0; t < 4; ++t) {
    all.emplace_back([&m, t, steps] {
      for (uint32_t step = 0; step < steps; ++step) {
        const uint64_t id = t + 1;
        const Tokens tokens = numbers((t * 7 + step % 7) * 1000, 30);
        nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
        nmc_status_t status = nmc_kv_open(m.kv, id, tokens.data(), tokens.size(), nullptr, &opened, nullptr);
        if (status == NMC_ERR_NO_SPACE) continue;  // the others are being fetched, or opened
        OK(status);
        // Blocks can be taken by another thread at any time, so that none are written here: only the books are used.
        for (uint32_t token = 0; token < 6 && status == NMC_OK; ++token) {
          status = nmc_kv_append(m.kv, id, &token, 1, nullptr, nullptr);
          CHECK(status == NMC_OK || status == NMC_ERR_STALE || status == NMC_ERR_NO_SPACE);
        }
        OK(nmc_kv_close(m.kv, id, 0));
      }
    });
  }
  for (std::thread& one : all) one.join();
  OK(nmc_kv_audit(m.kv));
  CHECK(m.stats().used == 0 && m.stats().sequences == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t steps = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 1500;
  const uint32_t seed = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 0;
  late = argc > 3 && std::string(argv[3]) == "late";
  if (late) {
    // A sequence that is moved before its tokens are written leaves others than its own in the store.
    Mover m(10);
    const Tokens a = numbers(100, 20), b = numbers(200, 40);
    OK(nmc_kv_open(m.kv, 1, a.data(), a.size(), nullptr, nullptr, nullptr));
    OK(nmc_kv_commit(m.kv, 1, a.size()));
    OK(m.open(2, b));
    OK(nmc_kv_close(m.kv, 1, 0));
    OK(nmc_kv_close(m.kv, 2, NMC_KV_CLOSE_ABORT));
    OK(nmc_kv_clear(m.kv, nullptr));
    OK(m.open(1, a));
    return finish();
  }
  heaps();
  moves();
  collisions();
  threads(steps / 10);
  for (uint32_t one = seed == 0 ? 1 : seed; one <= (seed == 0 ? 3 : seed); ++one) load(steps, one);
  return finish();
}
