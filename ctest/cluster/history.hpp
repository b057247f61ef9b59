// A history that must be explained: what the clients of a cluster put, read and remove, and a checker that knows every byte. The tests
// that use it make the cluster and the faults. Checked is what docs/cluster.md promises, and no more:
//   - what is read is whole, was put under this key before the read ended, and had not been removed before the read began;
//   - every call returns by its deadline and 2 s, however the others fare;
//   - while `calm` is set, and whenever a test looks, what was acknowledged is found as long as one of its owners lives.
// A word makes the clients wrong, and the check must see it: `stale` remembers values by key and not by put, `torn` takes half of a
// value from what it read before, `unput` says now and then that it has put what it has not, `late` overstays.
#ifndef NMC_CTEST_CLUSTER_HISTORY_HPP
#define NMC_CTEST_CLUSTER_HISTORY_HPP

#include <atomic>
#include <cinttypes>
#include <map>
#include <thread>
#include <utility>

#include "../support/cluster.hpp"
#include "../support/crew.hpp"
#include "../support/value.hpp"

constexpr uint32_t WORKERS = 2, SLOTS = 32, OF_WORKER = SLOTS / WORKERS, LIVES = 4096;
constexpr uint64_t LARGEST = 300000;
constexpr int64_t TIMEOUT_MS = 1000;
constexpr uint32_t UNKNOWN = UINT32_MAX;

// Under which keys values come and go. One worker writes, all read. Values have numbers that only grow.
struct Slot {
  std::atomic<uint32_t> name;                                  // changes when nobody knows what became of a call
  std::atomic<uint64_t> begun, put, ending, removed;           // last put that began, that was acknowledged; the same of removes
  std::atomic<uint32_t> owners, kills;                         // lives of two owners and one; kills before the put
  bool full() const { return begun == put && put > removed && ending == removed; }
  bool empty() const { return begun == removed && ending == removed; }
};
struct Life {
  std::atomic<int> port;
  std::atomic<bool> up, killed;
};
struct Shared {
  std::atomic<bool> calm, over;
  std::atomic<uint32_t> lives, kills, stops[WORKERS + 1];  // stops: of the workers, and of one who only reads
  std::atomic<uint64_t> calls, puts, gets, misses, removes, doubts, violations, slowest_us;
  Slot slots[SLOTS];
  Life of[LIVES];
  char text[4][400];
};
inline Shared* shared;

[[gnu::format(printf, 1, 2)]] inline void violation(const char* format, ...) {
  const uint64_t n = shared->violations.fetch_add(1);
  if (n >= 4) return;
  va_list words;
  va_start(words, format);
  std::vsnprintf(shared->text[n], sizeof shared->text[n], format, words);
  va_end(words);
}

// ------------------------------------------------------------------------------------------------------- values --

inline uint64_t stamp_of(uint32_t slot, uint32_t name, uint64_t number) { return uint64_t{slot} << 56 | uint64_t{name & 0xffff} << 40 | number; }
inline size_t size_of(uint64_t stamp) {
  static const size_t sizes[] = {8, 100, 5000, 40000, 120000, LARGEST};
  return sizes[mix(stamp) % 6];
}
inline std::string value_of(uint64_t stamp) {
  std::string value(size_of(stamp), ' ');
  std::memcpy(value.data(), &stamp, 8);
  make_value(stamp, 8, value.data() + 8, value.size() - 8);
  return value;
}
inline std::string key_of(uint32_t slot, uint32_t name) { return "slot-" + std::to_string(slot) + "/" + std::to_string(name); }

// ------------------------------------------------------------------------------------------------------ workers --

// How much later than wished this process is run: on a busy machine that is not the library's fault.
struct Lag {
  std::atomic<uint64_t> us{0};
  std::atomic<bool> over{false};
  std::thread thread{[this] {
    while (!over) {
      const double start = now_s();
      pause_us(20000);
      const double late = now_s() - start - 0.025;
      if (late > 0) us += static_cast<uint64_t>(late * 1e6);
    }
  }};
  ~Lag() { over = true, thread.join(); }
};

// Some time without a fault; broken workers have as much as it takes until their mistake was seen.
inline void stay_calm(double seconds, const std::string& broken) {
  const double start = now_s();
  const bool shows = !broken.empty() && broken != "lost" && broken != "alone";
  while (now_s() - start < seconds || (shows && shared->violations == 0 && now_s() - start < 60)) pause_us(10000);
  shared->calm = false;
}

// Whom a worker speaks to, and how.
struct Calling {
  std::string masters, token = {}, host = {}, broken = {};
  bool keeps = false;   // every other value is kept for a long time, so that a fault finds it
  double slack_s = 0.2; // beyond what a call may take: a machine that is busy is not the library's fault
};

class Worker {
 public:
  Worker(uint32_t number, uint64_t seed, Calling how)
      : number_(number), random_(seed), how_(std::move(how)), client_(how_.masters, TIMEOUT_MS, how_.host, 0, how_.token), buffer_(LARGEST, ' ') {
    for (uint32_t i = 0; number < WORKERS && i < OF_WORKER; ++i) {
      Slot& slot = mine(i);
      if (!slot.full() && !slot.empty()) doubt(slot);  // the worker before was killed in the middle of a call
    }
  }

  int run() {
    while (!shared->over && shared->violations == 0) {
      const uint32_t any = static_cast<uint32_t>(random_.below(SLOTS));
      const uint32_t own = static_cast<uint32_t>(random_.below(OF_WORKER));
      switch (random_.below(5)) {
        case 0:
        case 1: read(any); break;
        case 2: read_some(); break;
        default:
          if (mine(own).empty()) put(own);
          else if (random_.one_in(how_.keeps && own % 2 == 1 ? 200 : 2)) remove(own);
          else read(number_ * OF_WORKER + own);
      }
      if (!litter_.empty() && random_.one_in(20)) clear_away();
      pause_us(static_cast<long>(random_.below(1500)));
    }
    return 0;
  }

  // A read of any value, for those who have none of their own.
  void read_any() { read(static_cast<uint32_t>(random_.below(SLOTS))); }

  // Everything that was acknowledged and has a living owner is found, in a while; what is removed while this looks is passed over, and
  // what was removed before is not there. How many were found.
  uint32_t look(double patience_s) {
    const double start = now_s();
    uint32_t found = 0;
    for (uint32_t at = 0; at < SLOTS && shared->violations == 0; ++at) {
      const Slot& slot = shared->slots[at];
      const uint32_t name = slot.name;
      if (!slot.full()) {
        read(at);
        continue;
      }
      const uint64_t number = slot.put;
      const uint32_t owners = slot.owners;
      const auto lives_still = [](uint32_t life) { return life > 0 && !shared->of[life - 1].killed; };
      const bool owned = owners == UNKNOWN ? slot.kills == shared->kills : lives_still(owners >> 16) || lives_still(owners & 0xffff);
      const auto same = [&] { return slot.full() && slot.name == name && slot.put == number; };
      if (!owned) continue;
      const std::string key = key_of(at, name), want = value_of(stamp_of(at, name, number));
      const nmc_buffer_t to{buffer_.data(), buffer_.size()};
      nmc_status_t status = NMC_ERR_TIMEOUT;
      for (bool first = true; status != NMC_OK && same() && (first || now_s() - start < patience_s); first = false) {
        if (!first) pause_us(50000);
        uint64_t bytes = 0;
        status = timed("get", [&] { return nmc_client_get(client_, slice(key), &to, 1, &bytes); });
        if (status == NMC_OK && buffer_.compare(0, bytes, want) != 0 && same()) violation("%s: other bytes than were put", key.c_str());
      }
      found += status == NMC_OK;
      if (status != NMC_OK && same()) violation("%s was acknowledged and is lost: %s", key.c_str(), outcome(status).c_str());
    }
    return found;
  }

  // Until a value of its own can be put, read and removed.
  bool write(const std::string& key, double patience_s) {
    const double start = now_s();
    const std::string value = value_of(mix(key.size()));
    const nmc_slice_t bytes = slice(value);
    const nmc_buffer_t to{buffer_.data(), buffer_.size()};
    while (now_s() - start < patience_s) {
      uint64_t got = 0;
      const nmc_status_t put = timed("put", [&] { return nmc_client_put(client_, slice(key), &bytes, 1, nullptr); });
      const bool stored = put == NMC_OK || put == NMC_ERR_EXISTS;  // the time before, with an answer that was lost
      if (stored && timed("get", [&] { return nmc_client_get(client_, slice(key), &to, 1, &got); }) == NMC_OK) {
        if (buffer_.compare(0, got, value) != 0) violation("%s: other bytes than were put", key.c_str());
        (void)timed("remove", [&] { return nmc_client_remove(client_, slice(key), 0); });
        return true;
      }
      pause_us(50000);
    }
    violation("%s can not be put", key.c_str());
    return false;
  }

 private:
  Slot& mine(uint32_t i) const { return shared->slots[number_ * OF_WORKER + i]; }

  // Nobody knows whether there is something under this name: another one.
  void doubt(Slot& slot) {
    litter_.push_back(key_of(static_cast<uint32_t>(&slot - shared->slots), slot.name));
    ++shared->doubts;
    slot.name = slot.name + 1;  // before `removed`, which readers look at first
    slot.put = slot.begun.load();
    slot.ending = slot.begun.load();
    slot.removed = slot.begun.load();
  }

  // What may have been left behind would fill the nodes in the end, and they would evict.
  void clear_away() {
    const std::string key = litter_.back();
    const nmc_status_t status = timed("remove", [&] { return nmc_client_remove(client_, slice(key), 0); });
    if (status == NMC_OK || status == NMC_IN_PROGRESS || status == NMC_ERR_NOT_FOUND) litter_.pop_back();
  }

  // A call that must return in time.
  template <class Call>
  nmc_status_t timed(const char* what, Call call) {
    const uint32_t stops = shared->stops[number_];
    const uint64_t lag = lag_.us;
    const double start = now_s();
    const auto late = [&] { return static_cast<double>(lag_.us - lag) * 1e-6; };
    const auto is_too_long = [&](double took) { return took > TIMEOUT_MS * 1e-3 + 2 + 2 * late() + how_.slack_s; };
    if (how_.broken == "late" && random_.one_in(64)) {
      while (!is_too_long(now_s() - start - 0.5)) pause_us(50000);
    }
    const nmc_status_t status = call();
    ++shared->calls;
    const double took = now_s() - start;
    if (stops == shared->stops[number_]) {
      const uint64_t us = static_cast<uint64_t>(took * 1e6);
      for (uint64_t most = shared->slowest_us; us > most && !shared->slowest_us.compare_exchange_weak(most, us);) {
      }
      if (is_too_long(took)) violation("%s took %.1f s of %.1f s (%.1f s late)", what, took, TIMEOUT_MS * 1e-3, late());
    }
    if (status == NMC_ERR_INVALID_ARG || status == NMC_ERR_BAD_HANDLE) violation("%s: %s", what, outcome(status).c_str());
    return status;
  }

  void put(uint32_t own) {
    Slot& slot = mine(own);
    const uint64_t number = slot.begun + 1;
    const uint32_t at = number_ * OF_WORKER + own;
    const std::string key = key_of(at, slot.name), value = value_of(stamp_of(at, slot.name, number));
    nmc_replicate_t options = NMC_REPLICATE_INIT;
    options.copies = 1 + static_cast<uint32_t>(random_.below(2));
    const uint32_t kills = shared->kills;
    slot.begun = number;
    const nmc_slice_t bytes = slice(value);
    const bool lie = how_.broken == "unput" && random_.one_in(8);
    const nmc_status_t status = lie ? NMC_OK : timed("put", [&] { return nmc_client_put(client_, slice(key), &bytes, 1, &options); });
    ++shared->puts;
    if (status != NMC_OK) return doubt(slot);
    slot.owners = lie ? UNKNOWN : owners_of(key);
    slot.kills = kills;
    slot.put = number;
  }

  // The lives of the nodes that have it, as the leader says.
  uint32_t owners_of(const std::string& key) {
    std::vector<uint32_t> found;
    const auto each = [](void* user, const nmc_replica_t* copy) -> int32_t {
      const std::string endpoint(static_cast<const char*>(copy->endpoint.ptr), copy->endpoint.len);
      const int port = atoi(endpoint.c_str() + endpoint.rfind(':') + 1);
      for (uint32_t life = shared->lives; life-- > 0;) {
        if (shared->of[life].port != port) continue;
        static_cast<std::vector<uint32_t>*>(user)->push_back(life);
        break;
      }
      return 1;
    };
    const nmc_status_t status = timed("query", [&] { return nmc_client_query(client_, slice(key), each, &found); });
    if (status != NMC_OK || found.empty() || found.size() > 2) return UNKNOWN;
    return (found[0] + 1) << 16 | (found.back() + 1);
  }

  void remove(uint32_t own) {
    Slot& slot = mine(own);
    const std::string key = key_of(number_ * OF_WORKER + own, slot.name);
    slot.ending = slot.put.load();
    const nmc_status_t status = timed("remove", [&] { return nmc_client_remove(client_, slice(key), 0); });
    ++shared->removes;
    if (status != NMC_OK) return doubt(slot);
    slot.removed = slot.ending.load();
  }

  void read(uint32_t at) {
    const Slot& slot = shared->slots[at];
    const bool calm = shared->calm;
    const uint64_t removed = slot.removed;
    const uint32_t name = slot.name;
    const uint64_t there = slot.full() ? slot.put.load() : 0;
    const std::string key = key_of(at, name);
    const nmc_buffer_t to{buffer_.data(), buffer_.size()};
    uint64_t bytes = 0;
    const nmc_status_t status = timed("get", [&] { return nmc_client_get(client_, slice(key), &to, 1, &bytes); });
    ++shared->gets;
    if (status == NMC_OK) return explain(at, name, removed, broken_copy(key, buffer_.substr(0, bytes)));
    ++shared->misses;
    if (calm && shared->calm && there != 0 && slot.name == name && slot.ending < there) {
      violation("%s was put and is not found: %s", key.c_str(), outcome(status).c_str());
    }
  }

  // Several at once.
  void read_some() {
    constexpr size_t n = 8;
    std::vector<std::string> keys, buffers(n, std::string(LARGEST, ' '));
    std::vector<uint32_t> slots, names;
    std::vector<uint64_t> removed, sizes(n);
    std::vector<nmc_slice_t> c;
    std::vector<nmc_buffer_t> to;
    for (size_t i = 0; i < n; ++i) {
      slots.push_back(static_cast<uint32_t>(random_.below(SLOTS)));
      removed.push_back(shared->slots[slots[i]].removed);
      names.push_back(shared->slots[slots[i]].name);
      keys.push_back(key_of(slots[i], names[i]));
      to.push_back({buffers[i].data(), LARGEST});
    }
    for (const std::string& key : keys) c.push_back(slice(key));
    std::vector<nmc_status_t> statuses(n);
    // Nothing came of the call as a whole, or something of each.
    (void)timed("get_batch", [&] { return nmc_client_get_batch(client_, c.data(), to.data(), nullptr, n, sizes.data(), statuses.data()); });
    for (size_t i = 0; i < n; ++i) {
      ++shared->gets;
      if (statuses[i] == NMC_OK) explain(slots[i], names[i], removed[i], buffers[i].substr(0, sizes[i]));
      else ++shared->misses;
    }
  }

  void explain(uint32_t at, uint32_t name, uint64_t removed, const std::string& value) const {
    uint64_t stamp = 0;
    if (value.size() >= 8) std::memcpy(&stamp, value.data(), 8);
    const uint64_t number = stamp & ((uint64_t{1} << 40) - 1), begun = shared->slots[at].begun;
    const std::string key = key_of(at, name);
    if (value.size() < 8 || stamp != stamp_of(at, name, number) || number > begun) {
      return violation("%s: %zu bytes that nobody has put (%016" PRIx64 ", %" PRIu64 " began)", key.c_str(), value.size(), stamp, begun);
    }
    if (value != value_of(stamp)) return violation("%s: %zu bytes are not those of put %" PRIu64, key.c_str(), value.size(), number);
    if (number <= removed) violation("%s: put %" PRIu64 " came back, which was removed (%" PRIu64 ")", key.c_str(), number, removed);
  }

  std::string broken_copy(const std::string& key, std::string value) {
    if (how_.broken == "stale") return memory_.emplace(key, value).first->second;
    if (how_.broken == "torn") {
      std::string& before = memory_[key];
      const std::string former = std::exchange(before, value);
      if (former.size() >= value.size()) value.replace(value.size() / 2, std::string::npos, former.substr(value.size() / 2, value.size() - value.size() / 2));
    }
    return value;
  }

  uint32_t number_;
  Random random_;
  Calling how_;
  OpenClient client_;
  std::string buffer_;
  std::map<std::string, std::string> memory_;
  std::vector<std::string> litter_;
  Lag lag_;
};

#endif
