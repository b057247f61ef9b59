// A cache for a model whose layers differ: full attention, a sliding window, and a recurrent state. A small model of that
// kind runs over the cache: whatever was reused, forked, cut or evicted, every sequence must come to the result that the model
// has without a cache.
//
//   kv_hybrid [steps] [seed] [inplace | copies]
//
// The last argument is a control: the model overwrites states that were kept, or does not make the copies it is asked for.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../support/random.hpp"
#include "nanomc.hpp"
#include "hybrid_model.hpp"

namespace {

bool in_place = false, skip_copies = false;

using namespace kv;

// The model over a cache.
class Model {
 public:
  Model(uint32_t blocks, uint32_t window_blocks, uint32_t slots, uint32_t every, uint32_t when_full = NMC_KV_WHEN_FULL_REJECT) {
    const auto group = [](uint32_t kind) {
      nmc_kv_group_t g = NMC_KV_GROUP_INIT;
      g.kind = kind;
      g.layers = 1;
      return g;
    };
    nmc_kv_group_t groups[3] = {group(NMC_KV_KIND_ATTENTION), group(NMC_KV_KIND_MLA), group(NMC_KV_KIND_RECURRENT)};
    for (int g = 0; g < 2; ++g) {
      groups[g].dtype = NMC_DTYPE_RAW;
      groups[g].element_bytes = 8;
      groups[g].kv_heads = groups[g].head_dim = 1;
    }
    groups[kSliding].window = kWindow;
    groups[kSliding].blocks = window_blocks;
    groups[kState].state_bytes = 8;
    groups[kState].blocks = slots;
    groups[kState].state_every = every;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = blocks;
    config.tokens_per_block = kSize;
    config.when_full = when_full;
    config.groups = groups;
    config.n_groups = 3;
    const uint64_t want[3] = {uint64_t{blocks} * kSize * 16, uint64_t{window_blocks} * kSize * 8, uint64_t{slots} * 8};
    for (uint32_t g = 0; g < 3; ++g) {
      uint64_t bytes = 0;
      OK(nmc_kv_heap_bytes(&config, g, &bytes));
      CHECK(bytes == want[g]);
      memory_[g].resize(bytes / 8);
      groups[g].memory = memory_[g].data();
      groups[g].memory_bytes = bytes;
    }
    OK(nmc_kv_create(nullptr, &config, &kv));
    REQUIRE(kv != nullptr);
  }
  ~Model() { OK(nmc_kv_destroy(kv)); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // The forward pass for the tokens that are not computed yet; the result is that of the last one.
  uint64_t forward(uint64_t id, const Tokens& tokens, size_t computed) {
    copy(id);
    const std::vector<int32_t> full = table(id, kFull, tokens.size()), near = table(id, kSliding, tokens.size());
    int32_t read = 0, write = 0;
    OK(nmc_kv_state_slots(kv, kState, &id, 1, &read, &write));
    if (computed == tokens.size()) {
      if (write >= 0) read = write;  // what the last call asked for was done
    } else {
      CHECK((read < 0) == (computed == 0) && write >= 0);
      if (in_place && read >= 0) write = read;
      if (read >= 0 && read != write && id % 2 == 0) {
        // As a kernel that updates in place would have it.
        const nmc_kv_copy_t state = nmc::kv_copy(read, write, kState);
        OK(nmc_kv_copy_blocks(kv, &state, 1, nullptr));
        read = write;
      }
      uint64_t state = read < 0 ? 0 : memory_[kState][static_cast<size_t>(read)];
      for (size_t i = computed; i < tokens.size(); ++i) {
        state = mix(state, tokens[i]);
        REQUIRE(full[i / kSize] >= 0 && near[i / kSize] >= 0);
        at(kFull, full, i) = mix(tokens[i], i);
        at(kSliding, near, i) = mix(tokens[i], i + 1000);
      }
      memory_[kState][static_cast<size_t>(write)] = state;
      read = write;
    }
    uint64_t all = 0, window = 0;
    for (size_t i = 0; i < tokens.size(); ++i) all += at(kFull, full, i);
    for (size_t i = tokens.size() + 1 > kWindow ? tokens.size() + 1 - kWindow : 0; i < tokens.size(); ++i) {
      REQUIRE(near[i / kSize] >= 0);
      window += at(kSliding, near, i);
    }
    return mix(mix(all, window), read < 0 ? 0 : memory_[kState][static_cast<size_t>(read)]);
  }

  uint32_t open(uint64_t id, const Tokens& tokens, nmc_status_t want = NMC_OK) {
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    GIVES(nmc_kv_open(kv, id, tokens.data(), tokens.size(), nullptr, &opened, nullptr), want);
    if (want == NMC_OK) CHECK(forward(id, tokens, opened.hit_tokens) == reference(tokens));
    return opened.hit_tokens;
  }

  void append(uint64_t id, Tokens& tokens, const Tokens& more) {
    const size_t before = tokens.size();
    OK(nmc_kv_append(kv, id, more.data(), more.size(), nullptr, nullptr));
    tokens.insert(tokens.end(), more.begin(), more.end());
    CHECK(forward(id, tokens, before) == reference(tokens));
  }

  nmc_kv_group_stats_t stats(uint32_t group) {
    nmc_kv_group_stats_t stats = NMC_KV_GROUP_STATS_INIT;
    OK(nmc_kv_group_stats(kv, group, &stats));
    CHECK(stats.used + stats.idle + stats.free == stats.total && stats.own_blocks == (group == kFull ? 0u : 1u));
    return stats;
  }

  void copy(uint64_t id) {
    nmc_kv_copy_t copies[8];
    size_t n = 0;
    OK(nmc_kv_take_copies(kv, id, copies, 8, &n));
    if (n > 0 && id % 2 == 0 && !skip_copies) {
      OK(nmc_kv_copy_blocks(kv, copies, n, nullptr));
      return;
    }
    for (size_t i = 0; i < n && !skip_copies; ++i) {
      const uint32_t group = copies[i].group == NMC_KV_GROUPS_ALL ? kFull : copies[i].group;
      const size_t sides = group == kFull ? 2 : 1;
      for (size_t side = 0; side < sides; ++side) {
        uint64_t* base = memory_[group].data() + side * memory_[group].size() / sides;
        std::memcpy(base + copies[i].to * kSize, base + copies[i].from * kSize, kSize * 8);
      }
    }
  }

  std::vector<int32_t> table(uint64_t id, uint32_t group, size_t tokens) {
    std::vector<int32_t> row((tokens + kSize - 1) / kSize + 1, -7);
    nmc_kv_row_t rows = {0, 0, 0};
    OK(nmc_kv_table(kv, group, NMC_KV_TABLE_BLOCKS, &id, 1, row.size(), -1, &rows, row.data(), nullptr));
    return row;
  }

  nmc_kv_t* kv = nullptr;

 private:
  uint64_t& at(uint32_t group, const std::vector<int32_t>& blocks, size_t token) {
    return memory_[group][static_cast<size_t>(blocks[token / kSize]) * kSize + token % kSize];
  }

  std::vector<uint64_t> memory_[3];
};

// ---- what is reused -----------------------------------------------------------------------------------------------------

void reuse() {
  promise("a prefix is reused up to where the window and a state are there");
  Model m(64, 32, 8, 0);
  Tokens a = numbers(100, 16);
  CHECK(m.open(1, a) == 0);
  // The state after 16 tokens is kept; those after 4, 8 and 12 never existed between calls.
  OK(nmc_kv_keep_state(m.kv, 1));
  m.append(1, a, numbers(500, 3));
  Tokens b = numbers(100, 16), c = numbers(100, 12);
  b.insert(b.end(), {1, 2, 3});
  c.insert(c.end(), {1, 2, 3});
  CHECK(m.open(2, b) == 16);
  CHECK(m.open(3, c) == 0);  // 12 tokens are there, but not the state after them
  uint64_t hit = 9;
  OK(nmc_kv_match(m.kv, b.data(), b.size(), nullptr, {nullptr, 0}, &hit));
  CHECK(hit == 16);
  OK(nmc_kv_match(m.kv, c.data(), c.size(), nullptr, {nullptr, 0}, &hit));
  CHECK(hit == 0);
  // The window needs blocks 2 and 3 of the prefix; two of sequence 2 are those of sequence 1.
  const std::vector<int32_t> table = m.table(2, kSliding, b.size());
  CHECK(table[0] == -1 && table[1] == -1 && table[2] >= 0 && table[2] == m.table(1, kSliding, 16)[2]);
  void* address = nullptr;
  OK(nmc_kv_token_address(m.kv, 2, 17, kSliding, 0, NMC_KV_K, 0, &address));
  FAILS(nmc_kv_token_address(m.kv, 2, 3, kSliding, 0, NMC_KV_K, 0, &address), NMC_ERR_STALE, "dropped");
  for (uint64_t id = 1; id <= 3; ++id) OK(nmc_kv_close(m.kv, id, 0));
  CHECK(m.stats(kState).used == 0 && m.stats(kSliding).used == 0);
  CHECK(m.stats(kState).idle == 1);  // 19, 19 and 15 tokens are not the end of a block
  OK(nmc_kv_audit(m.kv));
}

void ends() {
  promise("the state of a sequence that ends with a block stays for those that continue it");
  Model m(64, 32, 3, 0);
  const Tokens a = numbers(1, 12);
  m.open(1, a);
  OK(nmc_kv_close(m.kv, 1, 0));
  CHECK(m.stats(kState).idle == 1);
  Tokens b = a;
  b.push_back(77);
  CHECK(m.open(2, b) == 12);
  // Aborted: what it computed is not kept.
  m.append(2, b, numbers(5, 3));
  OK(nmc_kv_close(m.kv, 2, NMC_KV_CLOSE_ABORT));
  CHECK(m.stats(kState).idle == 1);
  promise("what is kept goes when its blocks go");
  OK(nmc_kv_clear(m.kv, nullptr));
  CHECK(m.stats(kState).free == 3 && m.stats(kSliding).free == 32);
  OK(nmc_kv_audit(m.kv));
}

void every() {
  promise("states are kept every so many blocks as tokens are generated");
  Model m(64, 64, 16, 2);
  Tokens a = numbers(1, 3);
  m.open(1, a);
  while (a.size() < 22) m.append(1, a, numbers(static_cast<uint32_t>(a.size()) + 1, 1));
  CHECK(m.stats(kState).used == 1 && m.stats(kState).idle == 2);  // its own, and those after 8 and 16 tokens
  for (const auto& [count, expected] : std::map<size_t, uint32_t>{{5, 0}, {9, 8}, {12, 8}, {17, 16}, {21, 16}}) {
    Tokens b = numbers(1, count);
    b.back() = 999;
    CHECK(m.open(2, b) == expected);
    OK(nmc_kv_close(m.kv, 2, NMC_KV_CLOSE_ABORT));
  }
  OK(nmc_kv_close(m.kv, 1, 0));
  OK(nmc_kv_audit(m.kv));
}

// ---- forks and cuts -----------------------------------------------------------------------------------------------------

void forks() {
  promise("a fork reads the state of its parent, and neither overwrites it");
  Model m(64, 64, 4, 0);
  Tokens a = numbers(1, 9), b;
  m.open(1, a);
  OK(nmc_kv_fork(m.kv, 1, 2, nullptr));
  b = a;
  m.copy(2);
  m.append(1, a, {50});
  m.append(2, b, {60});
  m.append(1, a, {51, 52});
  m.append(2, b, {61, 62});
  int32_t reads[2], writes[2];
  const uint64_t ids[2] = {1, 2};
  OK(nmc_kv_state_slots(m.kv, kState, ids, 2, reads, writes));
  CHECK(reads[0] == writes[0] && reads[1] == writes[1] && reads[0] != reads[1]);  // alone again, both update in place
  CHECK(m.stats(kState).used == 2);
  OK(nmc_kv_close(m.kv, 1, 0));
  OK(nmc_kv_close(m.kv, 2, 0));
  OK(nmc_kv_audit(m.kv));
}

void cuts() {
  promise("a sequence is cut to where a state was kept, and nowhere else");
  Model m(64, 64, 8, 0);
  Tokens a = numbers(1, 8);
  m.open(1, a);
  OK(nmc_kv_keep_state(m.kv, 1));
  m.append(1, a, numbers(20, 5));
  FAILS(nmc_kv_truncate(m.kv, 1, 12, nullptr), NMC_ERR_UNSUPPORTED, "the state there is gone");
  FAILS(nmc_kv_truncate(m.kv, 1, 7, nullptr), NMC_ERR_UNSUPPORTED, "cannot be cut to 7 tokens");
  CHECK(m.forward(1, a, a.size()) == reference(a));
  OK(nmc_kv_truncate(m.kv, 1, 8, nullptr));
  a.resize(8);
  m.append(1, a, {90, 91});
  promise("drafts are undone as long as the state before them was not overwritten");
  OK(nmc_kv_fork(m.kv, 1, 2, nullptr));
  Tokens b = a;
  m.copy(2);
  m.append(2, b, {1, 2, 3});
  OK(nmc_kv_truncate(m.kv, 2, 10, nullptr));
  b.resize(10);
  m.append(2, b, {4});
  m.append(2, b, {5, 6});
  FAILS(nmc_kv_truncate(m.kv, 2, 11, nullptr), NMC_ERR_UNSUPPORTED, "cannot be cut to 11 tokens");
  OK(nmc_kv_close(m.kv, 2, 0));
  promise("a cut to nothing begins without a state");
  OK(nmc_kv_truncate(m.kv, 1, 0, nullptr));
  a.clear();
  m.append(1, a, numbers(7, 3));
  OK(nmc_kv_close(m.kv, 1, 0));
  OK(nmc_kv_audit(m.kv));
}

// ---- too little room ----------------------------------------------------------------------------------------------------

void room() {
  promise("when blocks of a group run short, the group is named, and nothing changed");
  Model m(64, 4, 2, 0);
  Tokens a = numbers(1, 14), b = numbers(50, 5);
  m.open(1, a);
  nmc_kv_room_t room = NMC_KV_ROOM_INIT;
  FAILS(nmc_kv_open(m.kv, 2, b.data(), b.size(), nullptr, nullptr, &room), NMC_ERR_NO_SPACE, "blocks of its own");
  CHECK(room.group == kSliding && room.needed == 2 && room.free == 0 && room.evictable == 0);
  m.append(1, a, {3});  // the window moves on, and blocks are free again
  CHECK(m.stats(kSliding).used == 2);
  m.open(2, b);
  const Tokens c = {9};
  FAILS(nmc_kv_open(m.kv, 3, c.data(), 1, nullptr, nullptr, &room), NMC_ERR_NO_SPACE, "1 blocks");
  CHECK(room.group == kState || room.group == kSliding);
  OK(nmc_kv_audit(m.kv));
  OK(nmc_kv_close(m.kv, 1, 0));
  m.open(3, c);
  OK(nmc_kv_close(m.kv, 2, 0));
  OK(nmc_kv_close(m.kv, 3, 0));
  OK(nmc_kv_audit(m.kv));

  promise("the oldest sequence goes, if that is the policy");
  Model e(64, 100, 2, 0, NMC_KV_WHEN_FULL_EVICT_SEQUENCE);
  for (uint64_t id = 1; id <= 5; ++id) {
    e.open(id, numbers(static_cast<uint32_t>(id) * 100, 6));
  }
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  OK(nmc_kv_seq_info(e.kv, 3, 0, &info));
  CHECK(info.state == NMC_KV_SEQ_EVICTED);
  OK(nmc_kv_seq_info(e.kv, 4, 0, &info));
  CHECK(info.state == NMC_KV_SEQ_OPEN);
  OK(nmc_kv_audit(e.kv));
}

void pins() {
  promise("a pinned prefix keeps its window and its state");
  Model m(64, 16, 3, 0);
  Tokens a = numbers(1, 8);
  m.open(1, a);
  OK(nmc_kv_keep_state(m.kv, 1));
  uint64_t pin = 0, covered = 0;
  OK(nmc_kv_pin(m.kv, 1, 8, &pin, &covered));
  CHECK(covered == 8);
  OK(nmc_kv_close(m.kv, 1, 0));
  for (uint64_t id = 2; id < 20; ++id) {
    m.open(id, numbers(static_cast<uint32_t>(id) * 100, 12));
    OK(nmc_kv_close(m.kv, id, 0));
  }
  a.push_back(5);
  CHECK(m.open(1, a) == 8);
  OK(nmc_kv_close(m.kv, 1, 0));
  OK(nmc_kv_unpin(m.kv, pin));
  OK(nmc_kv_clear(m.kv, nullptr));
  CHECK(m.stats(kState).free == 3 && m.stats(kSliding).free == 16);
  OK(nmc_kv_audit(m.kv));
}

// ---- the store ----------------------------------------------------------------------------------------------------------

// Fetches what the store has for a sequence that was just opened, and computes the rest; returns the tokens that came.
uint64_t onboard(Model& m, uint64_t id, const Tokens& tokens, size_t hit, bool cancel = false) {
  uint64_t ticket = 0, found = 0;
  OK(nmc_kv_onboard(m.kv, id, 0, nullptr, &ticket, &found));
  if (ticket != 0) {
    if (cancel) OK(nmc_kv_transfer_cancel(m.kv, ticket));
    nmc_kv_progress_t progress = NMC_KV_PROGRESS_INIT;
    const nmc_status_t status = nmc_kv_transfer_wait(m.kv, ticket, 60000, &progress);
    CHECK(status == NMC_OK || (cancel && status == NMC_ERR_CANCELLED));
    if (status != NMC_OK) found = 0;  // all or nothing: without the state there is nothing to go on from
    CHECK(progress.tokens_done == found);
  }
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  OK(nmc_kv_seq_info(m.kv, id, 0, &info));
  CHECK(info.computed_tokens == hit + found);
  CHECK(m.forward(id, tokens, info.computed_tokens) == reference(tokens));
  return found;
}

void offload(Model& m, uint64_t id) {
  uint64_t ticket = 0;
  OK(nmc_kv_offload(m.kv, id, UINT64_MAX, nullptr, &ticket));
  OK(nmc_kv_transfer_wait(m.kv, ticket, 60000, nullptr));
}

void stored() {
  promise("windows and states go to the store and come back with their blocks");
  nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(4 << 20).page_bytes(4096).checksums());
  Model a(64, 32, 8, 0), b(48, 40, 4, 0);
  OK(nmc_kv_attach_store(a.kv, store.get()));
  OK(nmc_kv_attach_store(b.kv, store.get()));
  Tokens tokens = numbers(100, 16);
  a.open(1, tokens);
  OK(nmc_kv_keep_state(a.kv, 1));
  a.append(1, tokens, numbers(500, 7));
  OK(nmc_kv_commit(a.kv, 1, tokens.size()));
  offload(a, 1);
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  OK(nmc_kv_seq_info(a.kv, 1, NMC_KV_SEQ_STORED, &info));
  CHECK(info.computed_tokens == 23 && info.stored_tokens == 16);  // block 5 is there as well, but no state after it
  OK(nmc_kv_seq_info(a.kv, 1, 0, &info));
  CHECK(info.computed_tokens == 23 && info.stored_tokens == 0);  // not asked for
  FAILS(nmc_kv_seq_info(a.kv, 1, 2, &info), NMC_ERR_INVALID_ARG, "flags 0x2");
  CHECK(b.open(1, tokens) == 0);
  OK(nmc_kv_close(b.kv, 1, NMC_KV_CLOSE_ABORT));

  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
  OK(nmc_kv_open(b.kv, 2, tokens.data(), tokens.size(), nullptr, &opened, nullptr));
  CHECK(opened.hit_tokens == 0);
  CHECK(onboard(b, 2, tokens, 0) == 16);
  b.append(2, tokens, {7});
  promise("what came is found by later sequences, with its window and its state");
  CHECK(b.open(3, tokens) == 16);
  OK(nmc_kv_close(b.kv, 2, 0));
  OK(nmc_kv_close(b.kv, 3, 0));
  OK(nmc_kv_audit(b.kv));
  promise("a fetch that is cancelled leaves nothing, or all of it");
  for (uint64_t id = 10; id < 40; ++id) {
    OK(nmc_kv_clear(b.kv, nullptr));
    OK(nmc_kv_open(b.kv, id, tokens.data(), tokens.size(), nullptr, &opened, nullptr));
    onboard(b, id, tokens, opened.hit_tokens, true);
    OK(nmc_kv_close(b.kv, id, id % 2 == 0 ? NMC_KV_CLOSE_ABORT : 0));
    OK(nmc_kv_audit(b.kv));
  }
  promise("a fetch whose sequence is closed leaks nothing");
  for (uint64_t id = 40; id < 60; ++id) {
    OK(nmc_kv_clear(b.kv, nullptr));
    OK(nmc_kv_open(b.kv, id, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
    uint64_t ticket = 0;
    OK(nmc_kv_onboard(b.kv, id, 0, nullptr, &ticket, nullptr));
    OK(nmc_kv_close(b.kv, id, NMC_KV_CLOSE_ABORT));
    (void)nmc_kv_transfer_wait(b.kv, ticket, 60000, nullptr);
    OK(nmc_kv_audit(b.kv));
    CHECK(b.stats(kState).used == 0 && b.stats(kSliding).used == 0);
  }
  uint64_t ticket = 0;
  OK(nmc_kv_clear(b.kv, nullptr));
  OK(nmc_kv_open(b.kv, 90, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  FAILS(nmc_kv_onboard(b.kv, 90, NMC_KV_ONBOARD_BY_LAYER, nullptr, &ticket, nullptr), NMC_ERR_UNSUPPORTED, "layer by layer");
  OK(nmc_kv_close(b.kv, 90, NMC_KV_CLOSE_ABORT));
  OK(nmc_kv_close(a.kv, 1, 0));
  promise("a cache that has the first group alone finds its blocks, without what belongs to the others");
  nmc_kv_group_t other = NMC_KV_GROUP_INIT;
  other.layers = other.kv_heads = other.head_dim = 1;
  other.dtype = NMC_DTYPE_RAW;
  other.element_bytes = 8;
  std::vector<uint64_t> memory(64 * kSize * 2);
  other.memory = memory.data();
  other.memory_bytes = memory.size() * 8;
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = 64;
  config.tokens_per_block = kSize;
  config.groups = &other;
  config.n_groups = 1;
  nmc_kv_t* kv = nullptr;
  OK(nmc_kv_create(nullptr, &config, &kv));
  OK(nmc_kv_attach_store(kv, store.get()));
  OK(nmc_kv_open(kv, 1, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  uint64_t found = 9;
  OK(nmc_kv_onboard(kv, 1, 0, nullptr, &ticket, &found));
  CHECK(found > 0);  // its one group is the first of the others, and all that it needs
  if (ticket != 0) OK(nmc_kv_transfer_wait(kv, ticket, 60000, nullptr));
  OK(nmc_kv_destroy(kv));
}

// Two caches exchange all that they compute through a store, under random calls.
void stored_load(uint32_t steps, uint32_t seed) {
  promise("with a store between two caches every sequence comes to the result that it has without");
  nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(8 << 20).page_bytes(4096));
  Model caches[2] = {{40, 40, 12, 1}, {50, 30, 10, 2}};
  for (Model& m : caches) OK(nmc_kv_attach_store(m.kv, store.get()));
  Random random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  uint64_t came = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    Model& m = caches[below(2)];
    if (below(3) == 0) OK(nmc_kv_clear(m.kv, nullptr));
    Tokens tokens = numbers(below(6) * 100, 1 + below(40));
    if (below(2) == 0) tokens.back() = below(3) + 1000;
    const uint64_t id = step + 1;
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    const nmc_status_t status = nmc_kv_open(m.kv, id, tokens.data(), tokens.size(), nullptr, &opened, nullptr);
    if (status == NMC_ERR_NO_SPACE) continue;
    OK(status);
    came += onboard(m, id, tokens, opened.hit_tokens, below(4) == 0);
    for (uint32_t more = below(12); more > 0; --more) {
      const uint32_t next = static_cast<uint32_t>(tokens.size());
      if (nmc_kv_append(m.kv, id, &next, 1, nullptr, nullptr) != NMC_OK) break;
      tokens.push_back(next);
      CHECK(m.forward(id, tokens, tokens.size() - 1) == reference(tokens));
    }
    OK(nmc_kv_commit(m.kv, id, tokens.size()));
    if (below(2) == 0) offload(m, id);
    OK(nmc_kv_close(m.kv, id, 0));
    if (step % 16 == 0) OK(nmc_kv_audit(m.kv));
  }
  for (Model& m : caches) {
    OK(nmc_kv_audit(m.kv));
    CHECK(m.stats(kState).used == 0 && m.stats(kSliding).used == 0 && m.stats(kFull).used == 0);
  }
  std::printf("     %llu tokens came from the store\n", static_cast<unsigned long long>(came));
  CHECK(steps < 50 || came > 0);
}

// ---- what is refused ----------------------------------------------------------------------------------------------------

void refusals() {
  promise("configs that make no sense are refused with the reason");
  nmc_kv_group_t g = NMC_KV_GROUP_INIT;
  g.layers = g.kv_heads = g.head_dim = 1;
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = 8;
  config.groups = &g;
  config.n_groups = 1;
  nmc_kv_t* kv = nullptr;
  const auto refused = [&](nmc_status_t want, const char* text) {
    FAILS(nmc_kv_create(nullptr, &config, &kv), want, text);
    CHECK(kv == nullptr);
  };
  g.blocks = 3;
  refused(NMC_ERR_INVALID_ARG, "blocks 3 is for groups with a window");
  g.window = 8;
  g.blocks = 0;
  refused(NMC_ERR_INVALID_ARG, "blocks 0 is not in");
  g.blocks = 1u << 31;
  refused(NMC_ERR_INVALID_ARG, "blocks 2147483648 is not in");
  g.blocks = 4;
  g.state_bytes = 8;
  refused(NMC_ERR_INVALID_ARG, "are for NMC_KV_KIND_RECURRENT");
  g.kind = NMC_KV_KIND_RECURRENT;
  refused(NMC_ERR_INVALID_ARG, "a recurrent state has none");
  g.window = 0;
  g.state_bytes = 0;
  refused(NMC_ERR_INVALID_ARG, "state_bytes is 0");
  g.state_bytes = UINT64_MAX / 2;
  refused(NMC_ERR_INVALID_ARG, "limit of");
  g.state_bytes = 64;
  g.reserved0 = 1;
  refused(NMC_ERR_INVALID_ARG, "reserved");
  g.reserved0 = 0;
  config.flags = NMC_KV_VIRTUAL;
  refused(NMC_ERR_UNSUPPORTED, "NMC_KV_VIRTUAL");
  config.flags = 0;
  g.state_bytes = 0;
  g.window = 8;
  g.kind = 9;
  refused(NMC_ERR_INVALID_ARG, "kind 9");

  promise("calls that are not for a group are refused");
  Model m(16, 16, 4, 0);
  const uint64_t id = 1;
  m.open(1, numbers(1, 5));
  int32_t slots[4];
  nmc_kv_row_t row = {0, 0, 0};
  FAILS(nmc_kv_table(m.kv, kState, NMC_KV_TABLE_BLOCKS, &id, 1, 4, 0, &row, slots, nullptr), NMC_ERR_INVALID_ARG,
        "nmc_kv_state_slots");
  FAILS(nmc_kv_table(m.kv, 3, NMC_KV_TABLE_BLOCKS, &id, 1, 4, 0, &row, slots, nullptr), NMC_ERR_INVALID_ARG, "group 3");
  FAILS(nmc_kv_state_slots(m.kv, kFull, &id, 1, slots, slots + 1), NMC_ERR_INVALID_ARG, "NMC_KV_KIND_RECURRENT");
  GIVES(nmc_kv_state_slots(m.kv, kState, &id, 1, nullptr, slots), NMC_ERR_INVALID_ARG);
  FAILS(nmc_kv_keep_state(m.kv, 1), NMC_ERR_INVALID_ARG, "at the end of a block of 4");
  GIVES(nmc_kv_keep_state(m.kv, 2), NMC_ERR_NOT_FOUND);
  nmc_kv_group_stats_t stats = NMC_KV_GROUP_STATS_INIT;
  GIVES(nmc_kv_group_stats(m.kv, 3, &stats), NMC_ERR_INVALID_ARG);
  nmc_kv_open_t options = NMC_KV_OPEN_INIT;
  options.flags = NMC_KV_OPEN_CONTIGUOUS;
  GIVES(nmc_kv_open(m.kv, 2, nullptr, 5, &options, nullptr, nullptr), NMC_ERR_UNSUPPORTED);
  OK(nmc_kv_open(m.kv, 3, nullptr, 4, nullptr, nullptr, nullptr));
  FAILS(nmc_kv_keep_state(m.kv, 3), NMC_ERR_INVALID_ARG, "nobody could find");
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  OK(nmc_kv_view(m.kv, 1, kState, 0, NMC_KV_K, &view));
  CHECK(view.shape[0] == 4 && view.shape[3] == 8 && view.element_bytes == 1 && view.contiguous == 0);
  OK(nmc_kv_audit(m.kv));
}

// ---- load ---------------------------------------------------------------------------------------------------------------

void load(uint32_t steps, uint32_t seed) {
  promise("whatever is called, every sequence comes to the result that it has without a cache");
  Model m(60, 60, 20, seed % 3);
  Random random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::map<uint64_t, Tokens> open;
  uint64_t next = 1, hits = 0, refused = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    if (open.empty() || below(4) == 0) {
      Tokens tokens = numbers(below(3) * 100, 1 + below(24));
      if (below(2) == 0) tokens.back() = below(5) + 1000;
      nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
      const nmc_status_t status = nmc_kv_open(m.kv, next, tokens.data(), tokens.size(), nullptr, &opened, nullptr);
      if (status == NMC_OK) {
        hits += opened.hit_tokens;
        CHECK(m.forward(next, tokens, opened.hit_tokens) == reference(tokens));
        open[next++] = tokens;
      } else {
        CHECK(status == NMC_ERR_NO_SPACE);
        ++refused;
      }
      continue;
    }
    auto it = open.begin();
    std::advance(it, below(static_cast<uint32_t>(open.size())));
    const uint64_t id = it->first;
    Tokens& tokens = it->second;
    switch (below(12)) {
      default: {
        const Tokens more = numbers(below(2) * 1000 + static_cast<uint32_t>(tokens.size()), 1 + (below(3) == 0 ? below(6) : 0));
        // One token comes as in a decode step.
        const nmc_status_t status = more.size() == 1 ? nmc_kv_append_batch(m.kv, &id, more.data(), 1, nullptr)
                                                     : nmc_kv_append(m.kv, id, more.data(), more.size(), nullptr, nullptr);
        if (status != NMC_OK) {
          CHECK(status == NMC_ERR_NO_SPACE);
          ++refused;
          break;
        }
        const size_t before = tokens.size();
        tokens.insert(tokens.end(), more.begin(), more.end());
        CHECK(m.forward(id, tokens, before) == reference(tokens));
        break;
      }
      case 6:
        if (tokens.size() % kSize == 0 && !tokens.empty()) OK(nmc_kv_keep_state(m.kv, id));
        break;
      case 7: {
        const uint32_t keep = below(static_cast<uint32_t>(tokens.size()) + 1);
        const nmc_status_t status = nmc_kv_truncate(m.kv, id, keep, nullptr);
        CHECK(status == NMC_OK || status == NMC_ERR_UNSUPPORTED || status == NMC_ERR_NO_SPACE);
        if (status == NMC_OK) tokens.resize(keep);
        CHECK(m.forward(id, tokens, tokens.size()) == reference(tokens));
        break;
      }
      case 8:
        if (nmc_kv_fork(m.kv, id, next, nullptr) == NMC_OK) {
          const Tokens same = tokens;
          CHECK(m.forward(next, same, same.size()) == reference(same));
          open[next++] = same;
        }
        break;
      case 9:
      case 10:
      case 11:
        OK(nmc_kv_close(m.kv, id, below(3) == 0 ? NMC_KV_CLOSE_ABORT : 0));
        open.erase(it);
        break;
    }
    if (step % 64 == 0) OK(nmc_kv_audit(m.kv));
  }
  for (const auto& [id, tokens] : open) OK(nmc_kv_close(m.kv, id, 0));
  OK(nmc_kv_audit(m.kv));
  OK(nmc_kv_clear(m.kv, nullptr));
  for (uint32_t g = 0; g < 3; ++g) CHECK(m.stats(g).free == m.stats(g).total);
  std::printf("     seed %u: %llu tokens hit, %llu refused\n", seed, static_cast<unsigned long long>(hits),
              static_cast<unsigned long long>(refused));
  CHECK(steps < 500 || (hits > 0 && refused > 0));
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t steps = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 3000;
  const uint32_t seed = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 0;
  const std::string fault = argc > 3 ? argv[3] : "";
  in_place = fault == "inplace";
  skip_copies = fault == "copies";
  if (fault.empty()) {
    reuse();
    ends();
    every();
    forks();
    cuts();
    room();
    pins();
    stored();
    stored_load(steps / 10, seed + 1);
    refusals();
  }
  for (uint32_t one = seed == 0 ? 1 : seed; one <= (seed == 0 ? 4 : seed); ++one) load(steps, one);
  return finish();
}
