// Virtual placement from C++: what a page is in each layout, growth that never moves anything, forks that share pages, what is
// refused, and a load of random calls in which every sequence must read its own words through its addresses.
//
//   kv_virtual [steps] [seed] [copies]
//
// The last argument is the control: the program skips the copies that it is asked to make.
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

bool skip_copies = false;

constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kTokens = 32;  // of a block; 32 x 2 heads x 16 elements x 4 bytes are one page of 4 KiB

nmc_kv_group_t group_of(uint32_t order, uint32_t sides) {
  nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  group.dtype = NMC_DTYPE_FP32;
  group.layers = kLayers;
  group.kv_heads = kHeads;
  group.head_dim = order == NMC_KV_HEAD_MAJOR ? 32 : 16;
  group.order = order;
  group.sides = sides;
  return group;
}

nmc_kv_config_t config_of(const nmc_kv_group_t* group, uint32_t blocks) {
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = blocks;
  config.tokens_per_block = kTokens;
  config.max_sequence_tokens = 10 * kTokens;
  config.flags = NMC_KV_VIRTUAL;
  config.groups = group;
  config.n_groups = 1;
  return config;
}

nmc_kv_t* make(const nmc_kv_config_t& config) {
  nmc_kv_t* kv = nullptr;
  OK(nmc_kv_create(nullptr, &config, &kv));
  REQUIRE(kv != nullptr);
  return kv;
}

nmc_kv_stats_t stats_of(nmc_kv_t* kv) {
  nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
  OK(nmc_kv_stats(kv, &stats));
  CHECK(stats.used + stats.idle + stats.free == stats.total);
  return stats;
}

nmc_kv_view_t view_of(nmc_kv_t* kv, uint64_t id, uint32_t layer, uint32_t side) {
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  OK(nmc_kv_view(kv, id, 0, layer, side, &view));
  CHECK(view.contiguous == 1);
  return view;
}

uint32_t* at(const nmc_kv_view_t& view, uint64_t token, uint32_t head) {
  const int64_t index[3] = {static_cast<int64_t>(token / kTokens), head, static_cast<int64_t>(token % kTokens)};
  auto* data = static_cast<uint32_t*>(view.data);
  return data + index[0] * view.strides[0] + index[1] * view.strides[1] + index[2] * view.strides[2];
}

void copy(nmc_kv_t* kv, uint64_t id) {
  nmc_kv_copy_t moves[64];
  size_t n = 0;
  OK(nmc_kv_take_copies(kv, id, moves, 64, &n));
  if (!skip_copies) OK(nmc_kv_copy_blocks(kv, moves, n, nullptr));
}

// ---- what a page is -----------------------------------------------------------------------------------------------------

void pages() {
  promise("a page is a block in one plane of the layout");
  struct Case {
    uint32_t order, sides, tokens, planes;
  };
  const Case cases[] = {
      {NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_SEPARATE, 32, 4}, {NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_PER_LAYER, 32, 4},
      {NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_PER_BLOCK, 16, 2}, {NMC_KV_HEAD_MAJOR, NMC_KV_SIDES_SEPARATE, 32, 8},
      {NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_SEPARATE, 16, 2},  {NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_PER_LAYER, 8, 1},
  };
  for (const Case& c : cases) {
    const nmc_kv_group_t group = group_of(c.order, c.sides);
    nmc_kv_config_t config = config_of(&group, 12);
    config.tokens_per_block = 3;
    uint32_t tokens = 0;
    OK(nmc_kv_page_tokens(&config, &tokens));
    CHECK(tokens == c.tokens);
    config.tokens_per_block = kTokens;
    uint64_t bytes = 0;
    OK(nmc_kv_heap_bytes(&config, 0, &bytes));
    nmc_kv_t* kv = make(config);
    CHECK(stats_of(kv).arena_bytes == bytes);
    // A block more has a page in every plane: what is copied for a fork tells how many there are.
    OK(nmc_kv_open(kv, 1, nullptr, 5, nullptr, nullptr, nullptr));
    OK(nmc_kv_fork(kv, 1, 2, nullptr));
    nmc_kv_copy_t moves[64];
    size_t n = 0;
    GIVES(nmc_kv_take_copies(kv, 2, moves, 0, &n), NMC_ERR_TOO_SMALL);
    CHECK(n == c.planes);
    OK(nmc_kv_take_copies(kv, 2, moves, 64, &n));
    CHECK(n == c.planes);
    for (size_t i = 0; i < n; ++i) {
      CHECK(moves[i].bytes * n * 12 == bytes && moves[i].from_address != moves[i].to_address);
      CHECK(moves[i].from == -1 && moves[i].to == -1 && moves[i].group == 0);
    }
    OK(nmc_kv_take_copies(kv, 2, moves, 64, &n));
    CHECK(n == 0);
    OK(nmc_kv_audit(kv));
    OK(nmc_kv_destroy(kv));
  }
}

// ---- growth -------------------------------------------------------------------------------------------------------------

void growth() {
  promise("growth never moves a sequence, and what was reserved is mapped already");
  const nmc_kv_group_t group = group_of(NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_SEPARATE);
  nmc_kv_t* kv = make(config_of(&group, 12));
  OK(nmc_kv_open(kv, 7, nullptr, 1, nullptr, nullptr, nullptr));
  const nmc_kv_view_t first = view_of(kv, 7, 1, NMC_KV_V);
  CHECK(first.shape[0] == 1 && first.shape[1] == kHeads && first.shape[2] == kTokens && first.shape[3] == 16);
  // Inside a plane it is one tensor [tokens, heads, dim].
  CHECK(first.strides[0] == first.strides[2] * kTokens && first.strides[2] == kHeads * 16 && first.strides[1] == 16);
  *at(first, 0, 1) = 4711;
  for (uint32_t token = 1; token < 10 * kTokens; ++token) {
    OK(nmc_kv_append(kv, 7, nullptr, 1, nullptr, nullptr));
    const nmc_kv_view_t view = view_of(kv, 7, 1, NMC_KV_V);
    CHECK(view.data == first.data && view.shape[0] == token / kTokens + 1);
    void* address = nullptr;
    OK(nmc_kv_token_address(kv, 7, token, 0, 1, NMC_KV_V, 1, &address));
    CHECK(address == at(first, token, 1));  // through the first view
    *at(first, token, 1) = token;
  }
  CHECK(*at(first, 0, 1) == 4711 && *at(first, 319, 1) == 319);
  FAILS(nmc_kv_append(kv, 7, nullptr, 1, nullptr, nullptr), NMC_ERR_LIMIT, "its limit is 320");
  CHECK(stats_of(kv).used == 10);
  nmc_kv_room_t room = NMC_KV_ROOM_INIT;
  GIVES(nmc_kv_open(kv, 8, nullptr, 3 * kTokens, nullptr, nullptr, &room), NMC_ERR_NO_SPACE);
  CHECK(room.needed == 3 && room.free == 2);
  OK(nmc_kv_truncate(kv, 7, 40, nullptr));
  CHECK(stats_of(kv).used == 2 && *at(first, 33, 1) == 33);
  OK(nmc_kv_reserve(kv, 7, 5 * kTokens, nullptr));
  CHECK(view_of(kv, 7, 0, NMC_KV_K).shape[0] == 5);
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  OK(nmc_kv_seq_info(kv, 7, 0, &info));
  CHECK(info.tokens == 40 && info.blocks == 5 && info.contiguous == 1 && info.max_tokens == 320);
  char text[4096];
  size_t needed = 0;
  OK(nmc_kv_dump(kv, 0, text, sizeof text, &needed));
  CHECK(std::strstr(text, "virtual") != nullptr && std::strstr(text, "Mapped: 40 pages") != nullptr);
  OK(nmc_kv_close(kv, 7, 0));
  OK(nmc_kv_open(kv, 9, nullptr, 10 * kTokens, nullptr, nullptr, nullptr));
  CHECK(view_of(kv, 9, 1, NMC_KV_V).data == first.data);
  OK(nmc_kv_dump(kv, 0, text, sizeof text, &needed));
  CHECK(std::strstr(text, "Mapped: 40 pages") != nullptr);  // those of the closed sequence
  OK(nmc_kv_audit(kv));
  OK(nmc_kv_destroy(kv));
}

void prefixes() {
  promise("a prefix that the cache has is mapped, not computed");
  const nmc_kv_group_t group = group_of(NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_SEPARATE);
  nmc_kv_t* kv = make(config_of(&group, 12));
  std::vector<uint32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 7);
  OK(nmc_kv_open(kv, 1, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  for (uint64_t t = 0; t < 100; ++t) *at(view_of(kv, 1, 0, NMC_KV_K), t, 0) = static_cast<uint32_t>(t + 1);
  OK(nmc_kv_commit(kv, 1, 100));
  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
  OK(nmc_kv_open(kv, 2, tokens.data(), tokens.size(), nullptr, &opened, nullptr));
  CHECK(opened.hit_tokens == 96 && stats_of(kv).used == 5);
  for (uint64_t t = 0; t < 96; ++t) CHECK(*at(view_of(kv, 2, 0, NMC_KV_K), t, 0) == t + 1);
  CHECK(view_of(kv, 2, 0, NMC_KV_K).data != view_of(kv, 1, 0, NMC_KV_K).data);
  // Cut into what is shared: the rest of that block is a copy.
  OK(nmc_kv_truncate(kv, 2, 70, nullptr));
  copy(kv, 2);
  for (uint64_t t = 0; t < 70; ++t) CHECK(*at(view_of(kv, 2, 0, NMC_KV_K), t, 0) == t + 1);
  OK(nmc_kv_append(kv, 2, nullptr, 10, nullptr, nullptr));
  *at(view_of(kv, 2, 0, NMC_KV_K), 75, 0) = 1000;
  CHECK(*at(view_of(kv, 1, 0, NMC_KV_K), 75, 0) == 76);
  OK(nmc_kv_close(kv, 1, 0));
  OK(nmc_kv_close(kv, 2, 0));
  CHECK(stats_of(kv).idle == 3);
  OK(nmc_kv_audit(kv));
  OK(nmc_kv_destroy(kv));
}

// ---- what is refused ----------------------------------------------------------------------------------------------------

void refusals() {
  promise("what virtual placement does not have is refused with the reason");
  nmc_kv_group_t group = group_of(NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_SEPARATE);
  nmc_kv_config_t config = config_of(&group, 12);
  nmc_kv_t* kv = nullptr;
  char memory[64];
  group.memory = memory;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_UNSUPPORTED, "the library owns it");
  group.memory = nullptr;
  config.tokens_per_block = 16;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_INVALID_ARG, "must be a multiple of 32");
  config.tokens_per_block = kTokens;
  config.window = 64;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_UNSUPPORTED, "window");
  config.window = 0;
  config.capacity_blocks = 13;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_UNSUPPORTED, "not resized");
  config.capacity_blocks = 0;
  config.heap_kind = 7;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_INVALID_ARG, "heap_kind 7");
  config.heap_kind = NMC_HEAP_HOST;
  config.n_groups = 0;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_INVALID_ARG, "at least one group");
  config.n_groups = 1;
  config.flags = 0;
  FAILS(nmc_kv_create(nullptr, &config, &kv), NMC_ERR_INVALID_ARG, "NMC_KV_VIRTUAL");
  CHECK(kv == nullptr);
  config.flags = NMC_KV_VIRTUAL;
  kv = make(config);
  OK(nmc_kv_open(kv, 1, nullptr, 50, nullptr, nullptr, nullptr));
  const uint64_t id = 1;
  nmc_kv_row_t row = {};
  int32_t table[16];
  int32_t last[2];
  int64_t slots[4];
  size_t n = 0;
  nmc_kv_copy_t copies[1];
  FAILS(nmc_kv_table(kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 16, -1, &row, table, nullptr), NMC_ERR_UNSUPPORTED, "no table");
  FAILS(nmc_kv_table_csr(kv, 0, &id, 1, table, last, table + 2, 14, &n), NMC_ERR_UNSUPPORTED, "no table");
  FAILS(nmc_kv_slot_mapping(kv, 0, &id, nullptr, 1, slots, 4, &n), NMC_ERR_UNSUPPORTED, "no table");
  OK(nmc_kv_take_copies(kv, 1, copies, 1, &n));
  CHECK(n == 0);
  const nmc_kv_copy_t block = nmc::kv_copy(1, 2, 0), nowhere = {-1, -1, 0, 0, nullptr, table, 8};
  FAILS(nmc_kv_copy_blocks(kv, &block, 1, nullptr), NMC_ERR_UNSUPPORTED, "blocks have no addresses");
  FAILS(nmc_kv_copy_blocks(kv, &nowhere, 1, nullptr), NMC_ERR_INVALID_ARG, "cannot be copied");
  FAILS(nmc_kv_copy_blocks(kv, nullptr, 0, &n), NMC_ERR_INVALID_ARG, "stream must be NULL");
  OK(nmc_kv_copy_blocks(kv, nullptr, 0, nullptr));
  FAILS(nmc_kv_drop_least(kv, 1, 1, 0, 0, nullptr), NMC_ERR_UNSUPPORTED, "no table");
  FAILS(nmc_kv_resize(kv, 11), NMC_ERR_UNSUPPORTED, "pages");
  FAILS(nmc_kv_open(kv, 2, nullptr, 321, nullptr, nullptr, nullptr), NMC_ERR_LIMIT, "320");
  GIVES(nmc_kv_open(kv, 1, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_EXISTS);
  GIVES(nmc_kv_append(kv, 2, nullptr, 1, nullptr, nullptr), NMC_ERR_NOT_FOUND);
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  GIVES(nmc_kv_view(kv, 2, 0, 0, NMC_KV_K, &view), NMC_ERR_NOT_FOUND);
  GIVES(nmc_kv_view(kv, 1, 1, 0, NMC_KV_K, &view), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_view(kv, 1, 0, kLayers, NMC_KV_K, &view), NMC_ERR_INVALID_ARG);
  void* address = nullptr;
  GIVES(nmc_kv_token_address(kv, 1, 50, 0, 0, NMC_KV_K, 0, &address), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_token_address(kv, 1, 49, 0, 0, NMC_KV_K, kHeads, &address), NMC_ERR_INVALID_ARG);
  OK(nmc_kv_destroy(kv));

  nmc_kv_config_t paged = NMC_KV_CONFIG_INIT;
  paged.total_blocks = 8;
  kv = make(paged);
  OK(nmc_kv_open(kv, 1, nullptr, 5, nullptr, nullptr, nullptr));
  uint32_t tokens = 0;
  FAILS(nmc_kv_page_tokens(&paged, &tokens), NMC_ERR_INVALID_ARG, "NMC_KV_VIRTUAL");
  OK(nmc_kv_destroy(kv));
}

// ---- random calls -------------------------------------------------------------------------------------------------------

struct Known {
  std::vector<uint32_t> words;  // one a token, different for every token that was ever computed
};

uint64_t wrong_words = 0;

void load(uint32_t order, uint64_t steps, uint64_t seed) {
  const nmc_kv_group_t group = group_of(order, NMC_KV_SIDES_SEPARATE);
  nmc_kv_t* kv = make(config_of(&group, 40));
  Random random(seed);
  std::map<uint64_t, Known> known;
  uint64_t next_id = 1;
  uint32_t next_word = 1;
  const auto views = [&](uint64_t id, const auto& each) {
    for (uint32_t layer = 0; layer < kLayers; ++layer)
      for (uint32_t side : {NMC_KV_K, NMC_KV_V}) {
        const nmc_kv_view_t view = view_of(kv, id, layer, side);
        for (uint32_t head = 0; head < kHeads; ++head) each(view, head, (layer * 2 + side) * kHeads + head);
      }
  };
  const auto compute = [&](uint64_t id, uint64_t more) {
    Known& seq = known[id];
    const size_t from = seq.words.size();
    for (uint64_t i = 0; i < more; ++i) seq.words.push_back(next_word++);
    views(id, [&](const nmc_kv_view_t& view, uint32_t head, uint32_t salt) {
      for (size_t t = from; t < seq.words.size(); ++t) *at(view, t, head) = seq.words[t] * 16 + salt;
    });
  };
  for (uint64_t step = 0; step < steps; ++step) {
    auto one = known.begin();
    if (!known.empty()) std::advance(one, static_cast<long>(random() % known.size()));
    const uint64_t choice = known.empty() ? 0 : random() % 10;
    const uint64_t amount = random() % 90;
    nmc_status_t status = NMC_OK;
    uint64_t id = known.empty() ? 0 : one->first;
    if (choice <= 1) {
      id = next_id++;
      status = nmc_kv_open(kv, id, nullptr, amount, nullptr, nullptr, nullptr);
      if (status == NMC_OK) compute(id, amount);
    } else if (choice <= 4) {
      status = nmc_kv_append(kv, id, nullptr, amount, nullptr, nullptr);
      if (status == NMC_OK) compute(id, amount);
    } else if (choice == 5) {
      status = nmc_kv_reserve(kv, id, amount * 3, nullptr);
    } else if (choice == 6) {
      const uint64_t keep = random() % (one->second.words.size() + 1);
      status = nmc_kv_truncate(kv, id, keep, nullptr);
      if (status == NMC_OK) {
        one->second.words.resize(keep);
        copy(kv, id);
      }
    } else if (choice == 7) {
      const uint64_t child = next_id++;
      status = nmc_kv_fork(kv, id, child, nullptr);
      if (status == NMC_OK) {
        known[child] = one->second;
        copy(kv, child);
      }
    } else {
      OK(nmc_kv_close(kv, id, 0));
      known.erase(one);
    }
    CHECK(status == NMC_OK || status == NMC_ERR_NO_SPACE || status == NMC_ERR_LIMIT);
    if (step % 8 == 0) OK(nmc_kv_audit(kv));
    for (const auto& [other, sequence] : known) {
      if (step % 8 != 0 && other != id) continue;
      views(other, [&, &seq = sequence](const nmc_kv_view_t& view, uint32_t head, uint32_t salt) {
        for (size_t t = 0; t < seq.words.size(); ++t) wrong_words += *at(view, t, head) != seq.words[t] * 16 + salt;
      });
    }
  }
  OK(nmc_kv_destroy(kv));
}

void loads(uint64_t steps, uint64_t seed) {
  promise("every sequence reads its own words");
  for (uint32_t order : {NMC_KV_LAYER_MAJOR, NMC_KV_HEAD_MAJOR, NMC_KV_LAYER_MAJOR_NHD, NMC_KV_BLOCK_MAJOR})
    load(order, steps, seed + order);
  if (!CHECK(wrong_words == 0)) {
    std::printf("%llu words of other tokens, seed %llu\n", static_cast<unsigned long long>(wrong_words),
                static_cast<unsigned long long>(seed));
  }
}

// A thread maps ahead while another appends: the appends find their pages.
void ahead() {
  promise("one thread maps ahead for another");
  const nmc_kv_group_t group = group_of(NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_SEPARATE);
  nmc_kv_t* kv = make(config_of(&group, 12));
  for (uint64_t id = 1; id <= 30; ++id) {
    OK(nmc_kv_open(kv, id, nullptr, 1, nullptr, nullptr, nullptr));
    std::thread mapper([&] {
      for (uint64_t blocks = 2; blocks <= 10; ++blocks) OK(nmc_kv_reserve(kv, id, blocks * kTokens, nullptr));
    });
    const nmc_kv_view_t view = view_of(kv, id, 0, NMC_KV_K);
    for (uint64_t t = 1; t < 10 * kTokens; ++t) {
      OK(nmc_kv_append(kv, id, nullptr, 1, nullptr, nullptr));
      *at(view, t, 0) = static_cast<uint32_t>(t);
    }
    mapper.join();
    for (uint64_t t = 1; t < 10 * kTokens; ++t) CHECK(*at(view, t, 0) == t);
    OK(nmc_kv_close(kv, id, 0));
  }
  OK(nmc_kv_audit(kv));
  OK(nmc_kv_destroy(kv));
}

size_t mappings() {
  size_t found = 0;
  char line[512];
  FILE* maps = std::fopen("/proc/self/maps", "r");
  REQUIRE(maps != nullptr);
  while (std::fgets(line, sizeof line, maps) != nullptr) found += std::strstr(line, "memfd:nmc-kv") != nullptr;
  std::fclose(maps);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 400;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  skip_copies = argc > 3 && std::string(argv[3]) == "copies";
  if (!skip_copies) {
    pages();
    growth();
    prefixes();
    refusals();
    ahead();
  }
  loads(steps, seed);
  promise("nothing stays mapped");
  CHECK(mappings() == 0);
  return finish();
}
