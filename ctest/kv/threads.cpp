// 16 threads on one block KV cache: sequences of their own, prompts that all share, forks, cuts, and sequences that go from
// one thread to another. Each thread writes the bytes of its tokens before the next call for that sequence, which is the
// order that the cache asks for; so whatever a sequence shares, it must read its own bytes. Meanwhile a witness counts all
// blocks again and again.
//
//   kv_threads [rounds a thread] [seed] [early|copy|late]
//
// The last argument is the control, an engine with a fault: it says that tokens are computed before it writes their bytes
// (early), does not make the copies (copy), or writes its bytes after the next call (late).
#include "kv_engine.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace {

using namespace kv;

constexpr uint32_t kThreads = 16;

enum class Fault { kNone, kEarly, kCopy, kLate };

// Sequences on their way from one thread to another.
class Mailbox {
 public:
  bool put(uint64_t id, const Seq& seq) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (all_.size() >= 16) return false;
    all_.emplace_back(id, seq);
    return true;
  }
  bool take(uint64_t* id, Seq* seq) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (all_.empty()) return false;
    *id = all_.front().first;
    *seq = std::move(all_.front().second);
    all_.erase(all_.begin());
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<uint64_t, Seq>> all_;
};

struct Case {
  uint32_t blocks = 512, when_full = NMC_KV_WHEN_FULL_REJECT, eviction = NMC_EVICT_LRU, hash = NMC_KV_HASH_BLAKE3;
  bool bytes = true;  // sequences that can be evicted by others have no bytes that anyone could rely on
  Fault fault = Fault::kNone;
};

class Worker {
 public:
  Worker(Cache& cache, const Case& how, Mailbox& mail, uint32_t self, uint32_t seed)
      : e_(cache.engine()), how_(how), mail_(mail), random_(seed * 1000 + self), next_((uint64_t{self} << 32) + 1) {
    e_.deep = false;
    e_.compute = how.bytes;
    e_.may_vanish = !how.bytes;
    e_.execute_copies = how.fault != Fault::kCopy;
  }

  void work(uint32_t rounds) {
    for (uint32_t round = 0; round < rounds && good_; ++round) step();
    while (!e_.seqs.empty()) drop(e_.seqs.begin()->first, below(2) == 0 ? NMC_KV_CLOSE_ABORT : 0);
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  // What the policies allow a call to say.
  bool fine(nmc_status_t status) {
    if (status == NMC_OK || status == NMC_ERR_NO_SPACE) return true;
    if (status == NMC_ERR_LIMIT && how_.when_full == NMC_KV_WHEN_FULL_SHORTEN) return true;
    if (status == NMC_ERR_STALE && how_.when_full == NMC_KV_WHEN_FULL_EVICT_SEQUENCE) return true;
    return good_ = GIVES(status, NMC_OK) != 0;
  }
  void drop(uint64_t id, uint32_t flags) { good_ &= OK(e_.close(id, flags)) != 0; }
  Tokens prompt() {
    Tokens tokens = numbers(10000 * below(6), 1 + below(60));
    if (below(2) == 0) tokens.push_back(static_cast<uint32_t>(random_()));
    return tokens;
  }

  void open() {
    const uint64_t id = next_++;
    const Tokens tokens = prompt();
    e_.compute = how_.bytes && how_.fault != Fault::kEarly;
    const nmc_status_t status = e_.open(id, tokens, "", below(6) == 0 ? NMC_KV_OPEN_CONTIGUOUS : 0);
    if (fine(status) && status == NMC_OK && how_.fault == Fault::kEarly) {
      OK(nmc_kv_commit(e_.kv, id, tokens.size()));
      if (e_.open(next_++, tokens) == NMC_OK) good_ &= e_.verify(next_ - 1);
      e_.write(id);
    }
    e_.compute = how_.bytes;
  }

  void append(uint64_t id) {
    Seq& seq = e_.seqs[id];
    // Often what others have at the same place.
    const uint32_t first = below(3) == 0 ? static_cast<uint32_t>(random_()) : 10000 * below(6);
    const Tokens tokens = numbers(first + static_cast<uint32_t>(seq.tokens.size()), 1 + below(8));
    if (seq.tokens.size() > 200) return drop(id, 0);
    if (how_.fault == Fault::kLate) {
      e_.compute = false;
      if (fine(e_.append(id, tokens)) && e_.append(id, {1}) == NMC_OK) {
        Tokens same = seq.tokens;
        if (e_.open(next_++, same) == NMC_OK) good_ &= e_.verify(next_ - 1);
      }
      e_.write(id);
      e_.compute = true;
      return;
    }
    fine(e_.append(id, tokens));
  }

  void step() {
    if (e_.seqs.empty() || (e_.seqs.size() < 6 && below(4) == 0)) return open();
    auto at = e_.seqs.begin();
    std::advance(at, below(static_cast<uint32_t>(e_.seqs.size())));
    const uint64_t id = at->first;
    const uint32_t size = static_cast<uint32_t>(at->second.tokens.size());
    switch (below(12)) {
      case 0: return drop(id, 0);
      case 1: return drop(id, NMC_KV_CLOSE_ABORT);
      case 2:
        if (e_.seqs.size() < 8) fine(e_.fork(id, next_++));
        break;
      case 3: fine(e_.truncate(id, below(size + 1))); break;
      case 4: fine(e_.reserve(id, size + below(20))); break;
      case 5: {
        const nmc_status_t status = nmc_kv_commit(e_.kv, id, below(size + 1));
        fine(status);
        break;
      }
      case 6: {
        const Seq seq = at->second;
        if (mail_.put(id, seq)) e_.seqs.erase(id);
        return;
      }
      case 7: {
        uint64_t got = 0;
        Seq seq;
        if (!mail_.take(&got, &seq)) return;
        e_.seqs[got] = std::move(seq);
        if (how_.bytes) good_ &= e_.verify(got);
        return;
      }
      case 8: {
        uint64_t pin = 0;
        const nmc_status_t status = nmc_kv_pin(e_.kv, id, below(size + 1), &pin, nullptr);
        if (fine(status) && status == NMC_OK) good_ &= OK(nmc_kv_unpin(e_.kv, pin)) != 0;
        break;
      }
      default: append(id); break;
    }
    if (how_.bytes && good_ && e_.seqs.count(id) != 0 && !(good_ = e_.verify(id))) {
      std::printf("thread %llu lost its bytes\n", static_cast<unsigned long long>(next_ >> 32));
    }
  }

  Engine e_;
  const Case& how_;
  Mailbox& mail_;
  Random random_;
  uint64_t next_;
  bool good_ = true;
};

// At any moment the books must be right, and what is told of them must add up.
void witness(nmc_kv_t* kv, const std::atomic<bool>& over) {
  std::vector<char> text(1 << 16);
  while (!over.load()) {
    if (!OK(nmc_kv_audit(kv))) return;
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    OK(nmc_kv_stats(kv, &stats));
    if (!CHECK(stats.total == stats.used + stats.idle + stats.free)) return;
    OK(nmc_kv_dump(kv, 64, text.data(), text.size(), nullptr));
    const std::string all = text.data(), map = all.substr(all.find("KV blocks:"));
    unsigned long total = 0, used = 0, cached = 0, free = 0;
    REQUIRE(std::sscanf(map.c_str(), "KV blocks: total %lu, used %lu, cached %lu, free %lu", &total, &used, &cached, &free) == 4);
    const std::string picture = map.substr(map.find("cached)\n") + 8);
    const auto count = [&](char c) { return static_cast<unsigned long>(std::count(picture.begin(), picture.end(), c)); };
    if (!CHECK(count('X') == used && count('c') == cached && count('.') == free)) {
      std::printf("     the map says %lu used, %lu cached, %lu free and shows %lu, %lu, %lu\n", used, cached, free, count('X'),
                  count('c'), count('.'));
      return;
    }
    std::this_thread::yield();
  }
}

void run(const Case& how, uint32_t rounds, uint32_t seed) {
  nmc_kv_config_t config = plain_config(how.blocks);
  config.when_full = how.when_full;
  config.eviction = how.eviction;
  config.hash = how.hash;
  config.max_sequences = 200;
  nmc_kv_group_t group = plain_group(1, 1, 1);
  group.kind = NMC_KV_KIND_MLA;
  group.dtype = NMC_DTYPE_RAW;
  group.element_bytes = 8;
  Cache cache(config, {group});
  Mailbox mail;
  std::atomic<bool> over{false};
  std::thread watching(witness, cache.kv, std::cref(over));
  std::vector<std::thread> all;
  for (uint32_t self = 1; self <= kThreads; ++self) {
    all.emplace_back([&, self] { Worker(cache, how, mail, self, seed).work(rounds); });
  }
  for (std::thread& thread : all) thread.join();
  over = true;
  watching.join();
  Engine rest = cache.engine();
  rest.deep = false;
  uint64_t id = 0;
  Seq seq;
  while (mail.take(&id, &seq)) {
    rest.seqs[id] = seq;
    if (how.bytes && how.fault == Fault::kNone) rest.verify(id);
    OK(rest.close(id));
  }
  rest.verify();
  CHECK(rest.stats().used == 0 && rest.stats().sequences == 0);
  OK(nmc_kv_clear(cache.kv, nullptr));
  CHECK(rest.stats().free == how.blocks);
}

// Few places for ids, so that every close moves others.
void ids_that_move(uint32_t rounds) {
  promise("a fork is found by its id while other ids come and go");
  nmc_kv_config_t config = plain_config(256);
  config.max_sequences = 30;
  nmc_kv_t* kv = nullptr;
  REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
  std::atomic<bool> over{false};
  std::vector<std::thread> all;
  for (uint64_t self = 1; self <= 3; ++self) {
    all.emplace_back([&, self] {
      std::vector<uint64_t> mine;
      for (uint64_t id = self << 32; !over.load(); ++id) {
        if (OK(nmc_kv_open(kv, id, nullptr, 1, nullptr, nullptr, nullptr))) mine.push_back(id);
        if (mine.size() < 7) continue;
        std::swap(mine[id % 7], mine.back());
        OK(nmc_kv_close(kv, mine.back(), 0));
        mine.pop_back();
      }
      for (const uint64_t id : mine) OK(nmc_kv_close(kv, id, 0));
    });
  }
  for (uint64_t self = 4; self <= 5; ++self) {
    all.emplace_back([&, self] {
      const uint64_t parent = self << 32;
      OK(nmc_kv_open(kv, parent, nullptr, 5, nullptr, nullptr, nullptr));
      for (uint64_t child = parent + 1; child <= parent + 100 * rounds; ++child) {
        if (!OK(nmc_kv_fork(kv, parent, child, nullptr)) || !OK(nmc_kv_close(kv, child, 0))) break;
      }
      OK(nmc_kv_close(kv, parent, 0));
      over = true;
    });
  }
  for (std::thread& thread : all) thread.join();
  OK(nmc_kv_audit(kv));
  nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
  OK(nmc_kv_stats(kv, &stats));
  CHECK(stats.sequences == 0 && stats.used == 0);
  OK(nmc_kv_destroy(kv));
}

void destroyed_under_way() {
  promise("a cache can be destroyed while others call it");
  for (int round = 0; round < (under_tool_named("valgrind") ? 2 : 10); ++round) {  // where threads take turns, each lasts for seconds
    nmc_kv_config_t config = plain_config(256);
    nmc_kv_t* kv = nullptr;
    REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
    std::vector<std::thread> all;
    for (uint64_t self = 0; self < 4; ++self) {
      all.emplace_back([kv, self] {
        for (uint64_t id = self << 32;; ++id) {
          const Tokens tokens = numbers(0, 20);
          const nmc_status_t status = nmc_kv_open(kv, id, tokens.data(), tokens.size(), nullptr, nullptr, nullptr);
          if (status == NMC_ERR_BAD_HANDLE) return;
          (void)nmc_kv_append(kv, id, tokens.data(), 1, nullptr, nullptr);
          (void)nmc_kv_close(kv, id, 0);
        }
      });
    }
    sleep_ms(1);
    OK(nmc_kv_destroy(kv));
    for (std::thread& thread : all) thread.join();
  }
}

}  // namespace

int main(int argc, char** argv) {
  // valgrind lets threads take turns and shows no race: enough that every call is made.
  const auto rounds = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 300) / (under_tool_named("valgrind") ? 2 : 1);
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  std::printf("seed %u\n", seed);
  if (argc > 3) {
    promise("control");
    Case how;
    const std::string fault = argv[3];
    how.fault = fault == "early" ? Fault::kEarly : fault == "copy" ? Fault::kCopy : Fault::kLate;
    run(how, rounds, seed);
    return finish();
  }
  promise("16 threads read their own bytes whatever they share, and no block is lost");
  Case few, many, shorter, xxh3;
  many.blocks = 4096;  // with spare blocks in lanes
  many.eviction = NMC_EVICT_S3FIFO;
  shorter.blocks = 200;
  shorter.when_full = NMC_KV_WHEN_FULL_SHORTEN;
  xxh3.hash = NMC_KV_HASH_XXH3;
  xxh3.eviction = NMC_EVICT_LFU;
  xxh3.blocks = 300;
  for (const Case& how : {few, many, shorter, xxh3}) run(how, rounds, seed);
  promise("16 threads that take each other's sequences lose no block");
  Case evicting;
  evicting.blocks = 200;
  evicting.when_full = NMC_KV_WHEN_FULL_EVICT_SEQUENCE;
  evicting.bytes = false;
  run(evicting, rounds, seed);
  ids_that_move(rounds);
  destroyed_under_way();
  return finish();
}
