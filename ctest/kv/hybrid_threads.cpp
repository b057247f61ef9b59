// Several threads run a small model of full attention, a sliding window and a recurrent state over one cache that is too small
// for them. They share prefixes; each checks that its own sequences come to the result that the model has without a cache.
//
//   kv_hybrid_threads [rounds] [seed] [inplace | early]
//
// The last argument is a control: threads overwrite states that were kept, or publish before they have written.
//
// The memory is the host's, and each thread writes and reads it by itself: what a thread has let go belongs to others at once,
// so nothing is read through a table that was asked for before the last call.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../support/random.hpp"
#include "nanomc.hpp"
#include "hybrid_model.hpp"

namespace {

using namespace kv;
constexpr uint32_t kThreads = 8;

bool in_place = false, early = false;
// Sequences that were not what they should be; controls want some.
std::atomic<uint32_t> wrong{0};

struct Case {
  const char* what;
  uint32_t blocks, window_blocks, slots, every;
  uint32_t when_full = NMC_KV_WHEN_FULL_REJECT;
  bool store = false;  // prefixes go to a store and come back
  bool bytes = true;   // sequences that others can evict have none that anyone could rely on
};

struct Shared {
  nmc_kv_t* kv = nullptr;
  std::vector<uint64_t> memory[3];
  nmc::Store store;

  explicit Shared(const Case& how)
      : store(nmc::Store::embedded(nmc::StoreConfig().heap_bytes(1 << 20).page_bytes(4096))) {
    nmc_kv_group_t groups[3] = {NMC_KV_GROUP_INIT, NMC_KV_GROUP_INIT, NMC_KV_GROUP_INIT};
    const uint64_t words[3] = {uint64_t{how.blocks} * kSize, uint64_t{how.window_blocks} * kSize, how.slots};
    for (uint32_t g = 0; g < 3; ++g) {
      groups[g].layers = 1;
      if (g != kState) {
        groups[g].kind = NMC_KV_KIND_MLA;
        groups[g].dtype = NMC_DTYPE_RAW;
        groups[g].element_bytes = 8;
        groups[g].kv_heads = groups[g].head_dim = 1;
      }
      memory[g].resize(words[g]);
      groups[g].memory = memory[g].data();
      groups[g].memory_bytes = words[g] * 8;
    }
    groups[kSliding].window = kWindow;
    groups[kSliding].blocks = how.window_blocks;
    groups[kState].kind = NMC_KV_KIND_RECURRENT;
    groups[kState].state_bytes = 8;
    groups[kState].blocks = how.slots;
    groups[kState].state_every = how.every;
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = how.blocks;
    config.tokens_per_block = kSize;
    config.when_full = how.when_full;
    config.groups = groups;
    config.n_groups = 3;
    OK(nmc_kv_create(nullptr, &config, &kv));
    REQUIRE(kv != nullptr);
    if (how.store) OK(nmc_kv_attach_store(kv, store.get()));
  }
};

class Worker {
 public:
  Worker(Shared& shared, const Case& how, uint32_t self, uint32_t seed)
      : s_(shared), how_(how), kv_(shared.kv), random_(seed * 1000 + self), next_((uint64_t{self} << 32) + 1) {}

  void work(uint32_t rounds) {
    for (uint32_t round = 0; round < rounds && good_; ++round) step();
    for (const auto& [id, tokens] : open_) good_ &= OK(nmc_kv_close(kv_, id, below(2) == 0 ? NMC_KV_CLOSE_ABORT : 0)) != 0;
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  // What the policies allow a call to say; others are failures.
  bool fine(nmc_status_t status) {
    if (status == NMC_OK || status == NMC_ERR_NO_SPACE) return true;
    if (status == NMC_ERR_STALE && how_.when_full != NMC_KV_WHEN_FULL_REJECT) return true;
    return good_ = GIVES(status, NMC_OK) != 0;
  }

  std::vector<int32_t> table(uint64_t id, uint32_t group, size_t tokens) {
    std::vector<int32_t> row((tokens + kSize - 1) / kSize + 1, -7);
    nmc_kv_row_t rows = {0, 0, 0};
    good_ &= OK(nmc_kv_table(kv_, group, NMC_KV_TABLE_BLOCKS, &id, 1, row.size(), -1, &rows, row.data(), nullptr)) != 0;
    return row;
  }

  uint64_t& at(uint32_t group, const std::vector<int32_t>& blocks, size_t token) {
    return s_.memory[group][static_cast<size_t>(blocks[token / kSize]) * kSize + token % kSize];
  }

  bool is_wrong(uint64_t id, const char* what) {
    if (wrong.fetch_add(1) == 0) std::printf("sequence %llx: %s\n", static_cast<unsigned long long>(id), what);
    return good_ = false;
  }

  // The forward pass for the tokens that are not computed yet; then all is read as the next token would.
  bool forward(uint64_t id, const Tokens& tokens, size_t computed) {
    if (!how_.bytes) return true;
    nmc_kv_copy_t copies[8];
    size_t n = 0;
    OK(nmc_kv_take_copies(kv_, id, copies, 8, &n));
    if (n > 0) OK(nmc_kv_copy_blocks(kv_, copies, n, nullptr));
    const std::vector<int32_t> full = table(id, kFull, tokens.size()), near = table(id, kSliding, tokens.size());
    int32_t read = 0, write = 0;
    OK(nmc_kv_state_slots(kv_, kState, &id, 1, &read, &write));
    if (computed < tokens.size()) {
      if ((read < 0) != (computed == 0) || write < 0) return is_wrong(id, "there is no state before its tokens");
      if (in_place && read >= 0) write = read;
      uint64_t state = read < 0 ? 0 : s_.memory[kState][static_cast<size_t>(read)];
      for (size_t i = computed; i < tokens.size(); ++i) {
        if (full[i / kSize] < 0 || near[i / kSize] < 0) return is_wrong(id, "there is no block for a token");
        state = mix(state, tokens[i]);
        at(kFull, full, i) = mix(tokens[i], i);
        at(kSliding, near, i) = mix(tokens[i], i + 1000);
      }
      s_.memory[kState][static_cast<size_t>(write)] = state;
    }
    if (write >= 0) read = write;
    uint64_t all = 0, window = 0;
    for (size_t i = 0; i < tokens.size(); ++i) all += at(kFull, full, i);
    for (size_t i = tokens.size() + 1 > kWindow ? tokens.size() + 1 - kWindow : 0; i < tokens.size(); ++i) {
      if (near[i / kSize] < 0) return is_wrong(id, "a block of its window is gone");
      window += at(kSliding, near, i);
    }
    const uint64_t state = read < 0 ? 0 : s_.memory[kState][static_cast<size_t>(read)];
    if (mix(mix(all, window), state) != reference(tokens)) return is_wrong(id, "does not come to the result of the model");
    return true;
  }

  // Gets what the store has; false if the sequence is closed.
  bool onboard(uint64_t id, size_t* computed) {
    uint64_t ticket = 0, found = 0;
    const nmc_status_t status = nmc_kv_onboard(kv_, id, 0, nullptr, &ticket, &found);
    // A block that was there when it was looked for may be gone.
    if (status != NMC_ERR_STALE && !fine(status)) return false;
    if (status == NMC_ERR_STALE && how_.when_full != NMC_KV_WHEN_FULL_REJECT) return true;
    if (status != NMC_OK || ticket == 0) return true;
    const uint32_t what = below(8);
    if (what == 0) OK(nmc_kv_close(kv_, id, NMC_KV_CLOSE_ABORT));
    if (what == 1) OK(nmc_kv_transfer_cancel(kv_, ticket));
    nmc_kv_progress_t progress = NMC_KV_PROGRESS_INIT;
    const nmc_status_t over = nmc_kv_transfer_wait(kv_, ticket, 60000, &progress);
    good_ &= CHECK(over == NMC_OK || over == NMC_ERR_CANCELLED || over == NMC_ERR_STALE);
    if (over == NMC_OK) *computed += progress.tokens_done;
    return what != 0;
  }

  void open() {
    const uint64_t id = next_++;
    Tokens tokens = numbers(10000 * below(5), 1 + below(40));
    if (below(2) == 0) tokens.push_back(static_cast<uint32_t>(random_()));
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    const nmc_status_t status = nmc_kv_open(kv_, id, tokens.data(), tokens.size(), nullptr, &opened, nullptr);
    if (!fine(status) || status != NMC_OK) return;
    size_t computed = opened.hit_tokens;
    if (early) OK(nmc_kv_commit(kv_, id, tokens.size()));
    if (early) std::this_thread::yield();
    if (how_.store && below(2) == 0 && !onboard(id, &computed)) return;
    if (how_.bytes && !early && below(16) == 0) {
      good_ &= OK(nmc_kv_close(kv_, id, NMC_KV_CLOSE_ABORT)) != 0;  // before anything was computed
      return;
    }
    open_[id] = tokens;
    forward(id, tokens, computed);
  }

  void append(uint64_t id, Tokens& tokens) {
    // Often what others have at the same place.
    const uint32_t first = below(3) == 0 ? static_cast<uint32_t>(random_()) : 10000 * below(5);
    const Tokens more = numbers(first + static_cast<uint32_t>(tokens.size()), below(2) == 0 ? 1 : 1 + below(8));
    const nmc_status_t status = more.size() == 1 ? nmc_kv_append_batch(kv_, &id, more.data(), 1, nullptr)
                                                 : nmc_kv_append(kv_, id, more.data(), more.size(), nullptr, nullptr);
    if (!fine(status)) return;
    const size_t before = tokens.size();
    if (status == NMC_OK) tokens.insert(tokens.end(), more.begin(), more.end());
    if (how_.bytes) forward(id, tokens, before);
  }

  void close(uint64_t id, uint32_t flags) {
    good_ &= OK(nmc_kv_close(kv_, id, flags)) != 0;
    open_.erase(id);
  }

  void step() {
    if (open_.empty() || (open_.size() < 4 && below(3) == 0)) return open();
    auto it = open_.begin();
    std::advance(it, below(static_cast<uint32_t>(open_.size())));
    const uint64_t id = it->first;
    Tokens& tokens = it->second;
    if (tokens.size() > 80) return close(id, 0);
    switch (below(16)) {
      case 0:
      case 1: return close(id, 0);
      case 2: return close(id, NMC_KV_CLOSE_ABORT);
      case 3:
      case 4: {
        if (tokens.size() % kSize != 0) return;
        const nmc_status_t status = nmc_kv_keep_state(kv_, id);
        // A cut can leave tokens of which the cache knows no more what they are.
        if (status != NMC_ERR_INVALID_ARG) fine(status);
        break;
      }
      case 5: {
        if (open_.size() >= 6) return;
        const uint64_t child = next_++;
        const nmc_status_t status = nmc_kv_fork(kv_, id, child, nullptr);
        if (!fine(status) || status != NMC_OK) return;
        const Tokens same = tokens;
        open_[child] = same;
        forward(child, same, same.size());
        return;
      }
      case 6: {
        const uint32_t keep = below(static_cast<uint32_t>(tokens.size()) + 1);
        const nmc_status_t status = nmc_kv_truncate(kv_, id, keep, nullptr);
        if (status != NMC_ERR_UNSUPPORTED && !fine(status)) return;
        if (status == NMC_OK) tokens.resize(keep);
        break;
      }
      case 7: {
        uint64_t pin = 0;
        const nmc_status_t status = nmc_kv_pin(kv_, id, tokens.size(), &pin, nullptr);
        if (fine(status) && status == NMC_OK) good_ &= OK(nmc_kv_unpin(kv_, pin)) != 0;
        break;
      }
      case 8: fine(nmc_kv_reserve(kv_, id, tokens.size() + below(12), nullptr)); break;
      case 9: fine(nmc_kv_commit(kv_, id, below(static_cast<uint32_t>(tokens.size()) + 1))); break;
      case 10:
        if (how_.store) {
          uint64_t ticket = 0;
          const nmc_status_t status = nmc_kv_offload(kv_, id, UINT64_MAX, nullptr, &ticket);
          if (!fine(status) || status != NMC_OK) return;
          const nmc_status_t over = nmc_kv_transfer_wait(kv_, ticket, 60000, nullptr);
          good_ &= CHECK(over == NMC_OK || over == NMC_ERR_NO_SPACE);
        }
        break;
      default: return append(id, tokens);
    }
    forward(id, tokens, tokens.size());
  }

  Shared& s_;
  const Case& how_;
  nmc_kv_t* kv_;
  Random random_;
  uint64_t next_;
  std::map<uint64_t, Tokens> open_;
  bool good_ = true;
};

void run(const Case& how, uint32_t rounds, uint32_t seed) {
  promise(how.what);
  Shared shared(how);
  std::atomic<bool> over{false};
  // At any moment the books must be right.
  std::thread witness([&] {
    while (!over.load() && OK(nmc_kv_audit(shared.kv))) std::this_thread::yield();
  });
  std::vector<std::thread> all;
  for (uint32_t self = 1; self <= kThreads; ++self) {
    all.emplace_back([&, self] { Worker(shared, how, self, seed).work(rounds); });
  }
  for (std::thread& one : all) one.join();
  over = true;
  witness.join();
  OK(nmc_kv_audit(shared.kv));
  OK(nmc_kv_clear(shared.kv, nullptr));
  nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
  OK(nmc_kv_stats(shared.kv, &stats));
  CHECK(stats.sequences == 0 && stats.free == stats.total);
  for (uint32_t group = 0; group < 3; ++group) {
    nmc_kv_group_stats_t now = NMC_KV_GROUP_STATS_INIT;
    OK(nmc_kv_group_stats(shared.kv, group, &now));
    CHECK(now.free == now.total);
    std::printf("     group %u: %llu evicted\n", group, static_cast<unsigned long long>(now.evicted));
  }
  std::printf("     %llu of %llu tokens hit, %llu sequences evicted, %llu of them moved\n",
              static_cast<unsigned long long>(stats.hit_tokens), static_cast<unsigned long long>(stats.asked_tokens),
              static_cast<unsigned long long>(stats.evicted_sequences), static_cast<unsigned long long>(stats.moved_sequences));
  OK(nmc_kv_destroy(shared.kv));
}

void forked_and_fetched() {
  promise("a state that forks wait for is not overwritten by a fetch");
  Shared shared({"", 64, 64, 8, 1, NMC_KV_WHEN_FULL_REJECT, true});
  nmc_kv_t* kv = shared.kv;
  const Tokens tokens = numbers(5, 4 * kSize);
  uint64_t ticket = 0, found = 0;
  OK(nmc_kv_open(kv, 1, tokens.data(), 2 * kSize, nullptr, nullptr, nullptr));
  OK(nmc_kv_keep_state(kv, 1));
  OK(nmc_kv_offload(kv, 1, UINT64_MAX, nullptr, &ticket));
  OK(nmc_kv_transfer_wait(kv, ticket, 60000, nullptr));
  OK(nmc_kv_close(kv, 1, 0));
  OK(nmc_kv_clear(kv, nullptr));
  OK(nmc_kv_open(kv, 2, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
  OK(nmc_kv_fork(kv, 2, 3, nullptr));
  // Sequence 3 has all tokens, and reads the slot as the state after them; the store has that after half of them.
  if (GIVES(nmc_kv_onboard(kv, 2, 0, nullptr, &ticket, &found), NMC_ERR_UNSUPPORTED)) {
    CHECK(error_mentions("fetch first, then fork"));
  }
  OK(nmc_kv_close(kv, 3, NMC_KV_CLOSE_ABORT));
  OK(nmc_kv_onboard(kv, 2, 0, nullptr, &ticket, &found));
  CHECK(found == 2 * kSize);
  if (ticket != 0) OK(nmc_kv_transfer_wait(kv, ticket, 60000, nullptr));
  OK(nmc_kv_audit(kv));
  OK(nmc_kv_destroy(kv));
}

void attached_at_once() {
  promise("of threads that attach a store one does, and sequences are moved to it");
  for (int round = 0; round < (under_tool_named("valgrind") ? 4 : 20); ++round) {  // where threads take turns, more show nothing
    Shared shared({"", 10, 100, 40, 1, NMC_KV_WHEN_FULL_MOVE_SEQUENCE, false, false});
    std::atomic<int> attached{0}, ready{0};
    std::vector<std::thread> all;
    for (int self = 0; self < 4; ++self) {
      all.emplace_back([&] {
        for (++ready; ready.load() < 4;) std::this_thread::yield();
        const nmc_status_t status = nmc_kv_attach_store(shared.kv, shared.store.get());
        CHECK(status == NMC_OK || status == NMC_ERR_EXISTS);
        attached += status == NMC_OK ? 1 : 0;
      });
    }
    for (std::thread& one : all) one.join();
    CHECK(attached.load() == 1);
    for (uint64_t id = 1; id <= 3; ++id) {
      const Tokens tokens = numbers(static_cast<uint32_t>(id) * 100, 20);
      OK(nmc_kv_open(shared.kv, id, tokens.data(), tokens.size(), nullptr, nullptr, nullptr));
      OK(nmc_kv_commit(shared.kv, id, tokens.size()));
    }
    OK(nmc_kv_destroy(shared.kv));
  }
}

void destroyed_under_way(uint32_t rounds) {
  promise("a cache can be destroyed while calls move sequences to the store");
  for (uint32_t round = 0; round < rounds; ++round) {
    Shared shared({"", 24, 100, 40, 1, NMC_KV_WHEN_FULL_MOVE_SEQUENCE, true, false});
    std::vector<std::thread> all;
    for (uint64_t self = 0; self < 4; ++self) {
      all.emplace_back([kv = shared.kv, self] {
        for (uint64_t id = self << 32;; ++id) {
          const Tokens tokens = numbers(static_cast<uint32_t>(id * 100), 24);
          const nmc_status_t status = nmc_kv_open(kv, id, tokens.data(), tokens.size(), nullptr, nullptr, nullptr);
          if (status == NMC_ERR_BAD_HANDLE) return;
          (void)nmc_kv_commit(kv, id, tokens.size());
          if (id % 4 == 0) (void)nmc_kv_close(kv, id - 2, 0);
        }
      });
    }
    sleep_ms(1 + round % 3);
    OK(nmc_kv_destroy(shared.kv));
    for (std::thread& one : all) one.join();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto rounds = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 3000);
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  const std::string fault = argc > 3 ? argv[3] : "";
  in_place = fault == "inplace";
  early = fault == "early";
  std::printf("seed %u\n", seed);
  const Case few = {"threads come to the results of the model in a cache that is too small", 120, 80, 40, 1};
  if (!fault.empty()) {
    run(few, rounds, seed);
    CHECK(wrong.load() == 0);
    return finish();
  }
  forked_and_fetched();
  attached_at_once();
  run(few, rounds, seed);
  run({"the same with few slots for states", 400, 300, 14, 2}, rounds, seed);
  run({"the same with few blocks for windows", 400, 40, 100, 0}, rounds, seed);
  run({"the same with a store", 160, 100, 40, 1, NMC_KV_WHEN_FULL_REJECT, true}, rounds / 4, seed);
  run({"threads that take each other's sequences lose nothing", 120, 60, 20, 1, NMC_KV_WHEN_FULL_EVICT_SEQUENCE, true, false},
      rounds / 4, seed);
  run({"threads that move each other's sequences lose nothing", 120, 60, 20, 1, NMC_KV_WHEN_FULL_MOVE_SEQUENCE, true, false},
      rounds / 4, seed);
  CHECK(wrong.load() == 0);
  destroyed_under_way(rounds / 100 + 1);
  return finish();
}
