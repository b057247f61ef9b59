// A history that must be explained. Clients put, read and remove objects of a cluster of three nodes, while nodes, clients and the
// master are killed (the master begins again on its directory) or stopped for a while. A checker knows every byte:
//   - what is read is whole, was put under this key before the read ended, and had not been removed before the read began;
//   - every call returns by its deadline and 2 s, however the others fare;
//   - before the first fault, and again at the end, what was acknowledged is found as long as one of its owners lives.
// usage: history ROUNDS [SEED] [stale|torn|unput]
//   With a word the clients are broken, and the check must see it: `stale` remembers values by key and not by put, `torn` takes half
//   of a value from what it read before, `unput` says now and then that it has put what it has not.

#include <atomic>
#include <cinttypes>
#include <map>
#include <thread>
#include <utility>

#include "../support/cluster.hpp"
#include "../support/crew.hpp"
#include "../support/value.hpp"

namespace {

constexpr uint32_t NODES = 3, WORKERS = 2, SLOTS = 32, OF_WORKER = SLOTS / WORKERS, LIVES = 4096;
constexpr uint64_t HEAP = 64 << 20, LARGEST = 300000;
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
  std::atomic<uint32_t> lives, kills, stops[WORKERS];
  std::atomic<uint64_t> puts, gets, misses, removes, doubts, violations, slowest_us;
  Slot slots[SLOTS];
  Life of[LIVES];
  char text[4][400];
};
Shared* shared;

void violation(const char* format, ...) {
  const uint64_t n = shared->violations.fetch_add(1);
  if (n >= 4) return;
  va_list words;
  va_start(words, format);
  std::vsnprintf(shared->text[n], sizeof shared->text[n], format, words);
  va_end(words);
}

// ------------------------------------------------------------------------------------------------------- values --

uint64_t stamp_of(uint32_t slot, uint32_t name, uint64_t number) { return uint64_t{slot} << 56 | uint64_t{name & 0xffff} << 40 | number; }
size_t size_of(uint64_t stamp) {
  static const size_t sizes[] = {8, 100, 5000, 40000, 120000, LARGEST};
  return sizes[mix(stamp) % 6];
}
std::string value_of(uint64_t stamp) {
  std::string value(size_of(stamp), ' ');
  std::memcpy(value.data(), &stamp, 8);
  make_value(stamp, 8, value.data() + 8, value.size() - 8);
  return value;
}
std::string key_of(uint32_t slot, uint32_t name) { return "slot-" + std::to_string(slot) + "/" + std::to_string(name); }

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

class Worker {
 public:
  Worker(uint32_t number, uint64_t seed, const std::string& master, std::string broken)
      : number_(number), random_(seed), client_(master, TIMEOUT_MS), broken_(std::move(broken)), buffer_(LARGEST, ' ') {
    for (uint32_t i = 0; i < OF_WORKER; ++i) {
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
          else if (random_.one_in(2)) remove(own);
          else read(number_ * OF_WORKER + own);
      }
      pause_us(static_cast<long>(random_.below(1500)));
    }
    return 0;
  }

 private:
  Slot& mine(uint32_t i) const { return shared->slots[number_ * OF_WORKER + i]; }

  // Nobody knows whether there is something under this name: another one.
  static void doubt(Slot& slot) {
    ++shared->doubts;
    slot.name = slot.name + 1;  // before `removed`, which readers look at first
    slot.put = slot.begun.load();
    slot.ending = slot.begun.load();
    slot.removed = slot.begun.load();
  }

  // A call that must return in time.
  template <class Call>
  nmc_status_t timed(const char* what, Call call) {
    const uint32_t stops = shared->stops[number_];
    const uint64_t lag = lag_.us;
    const double start = now_s();
    const nmc_status_t status = call();
    const double took = now_s() - start, late = static_cast<double>(lag_.us - lag) * 1e-6;
    if (stops == shared->stops[number_]) {
      const uint64_t us = static_cast<uint64_t>(took * 1e6);
      for (uint64_t most = shared->slowest_us; us > most && !shared->slowest_us.compare_exchange_weak(most, us);) {
      }
      if (took > TIMEOUT_MS * 1e-3 + 2 + 2 * late + 0.2) violation("%s took %.1f s of %.1f s (%.1f s late)", what, took, TIMEOUT_MS * 1e-3, late);
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
    const bool lie = broken_ == "unput" && random_.one_in(8);
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
    (void)timed("get_batch", [&] { return nmc_client_get_batch(client_, c.data(), to.data(), n, sizes.data(), statuses.data()); });
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
    if (broken_ == "stale") return memory_.emplace(key, value).first->second;
    if (broken_ == "torn") {
      std::string& before = memory_[key];
      const std::string former = std::exchange(before, value);
      if (former.size() >= value.size()) value.replace(value.size() / 2, std::string::npos, former.substr(value.size() / 2, value.size() - value.size() / 2));
    }
    return value;
  }

  uint32_t number_;
  Random random_;
  OpenClient client_;
  std::string broken_, buffer_;
  std::map<std::string, std::string> memory_;
  Lag lag_;
};

// -------------------------------------------------------------------------------------------------------- faults --

struct Test {
  Master master{{"--settle_ms", "1000"}};
  Random random;
  std::string broken;
  std::vector<pid_t> nodes = std::vector<pid_t>(NODES), workers = std::vector<pid_t>(WORKERS);
  std::vector<uint32_t> lives = std::vector<uint32_t>(NODES);

  Test(uint64_t seed, std::string how) : random(seed), broken(std::move(how)) {
    for (uint32_t i = 0; i < NODES; ++i) start_node(i);
    shared->calm = true;
    for (uint32_t i = 0; i < WORKERS; ++i) start_worker(i);
  }
  ~Test() {
    end_all(workers);
    end_all(nodes);
  }

  void start_node(uint32_t i) {
    const uint32_t life = shared->lives++;
    REQUIRE(life < LIVES);
    lives[i] = life;
    nodes[i] = start_member([this, life] {
      std::string endpoint;
      const OpenClient node = node_at(master.address(), "node-" + std::to_string(life), HEAP, endpoint);
      shared->of[life].port = atoi(endpoint.c_str() + endpoint.rfind(':') + 1);
      shared->of[life].up = true;
      for (;;) pause();
      return 0;
    });
    std::vector<pid_t> one = {nodes[i]};
    REQUIRE(watch_until(one, kPatience, [&] { return shared->of[life].up.load(); }));
  }
  void start_worker(uint32_t i) {
    const uint64_t seed = random.next();
    workers[i] = start_member([this, i, seed] { return Worker(i, seed, master.address(), broken).run(); });
  }
  static void kill9(pid_t pid) {
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  void wait_ms(uint64_t least, uint64_t more) { pause_us(static_cast<long>((least + random.below(more)) * 1000)); }

  void fault() {
    const uint32_t node = static_cast<uint32_t>(random.below(NODES)), worker = static_cast<uint32_t>(random.below(WORKERS));
    switch (random.below(6)) {
      case 0:
        printf("node killed\n");
        ++shared->kills;  // before: what was put since may be on it
        shared->of[lives[node]].killed = true;
        kill9(nodes[node]);
        ++shared->kills;
        wait_ms(0, 500);
        return start_node(node);
      case 1:
        printf("node stopped\n");
        ::kill(nodes[node], SIGSTOP);
        wait_ms(300, 2500);
        ::kill(nodes[node], SIGCONT);
        return;
      case 2:
        printf("master killed\n");
        master.kill9();
        wait_ms(0, 1000);
        return master.start();
      case 3:
        printf("master stopped\n");
        master.signal(SIGSTOP);
        wait_ms(300, 2500);
        return master.signal(SIGCONT);
      case 4:
        printf("client killed\n");
        kill9(workers[worker]);
        return start_worker(worker);
      default:
        printf("client stopped\n");
        ++shared->stops[worker];
        ::kill(workers[worker], SIGSTOP);
        wait_ms(300, 2500);
        ++shared->stops[worker];
        ::kill(workers[worker], SIGCONT);
    }
  }

  void finish_workers() {
    shared->over = true;
    for (pid_t& pid : workers) {
      std::vector<pid_t> one = {pid};
      const bool ended = watch_until(one, kPatience, [&] { return one[0] < 0; });
      CHECK(ended && "a client ends");
      if (!ended) kill9(pid);
      pid = -1;
    }
  }

  // Everything that was acknowledged and has a living owner is found, in a while.
  void look() {
    const pid_t pid = start_member([this] {
      const OpenClient client(master.address(), TIMEOUT_MS);
      const double start = now_s();
      uint32_t expected = 0;
      for (uint32_t at = 0; at < SLOTS; ++at) {
        const Slot& slot = shared->slots[at];
        const auto lives_still = [](uint32_t life) { return life > 0 && !shared->of[life - 1].killed; };
        const uint32_t owners = slot.owners;
        const bool owned = owners == UNKNOWN ? slot.kills == shared->kills : lives_still(owners >> 16) || lives_still(owners & 0xffff);
        if (!slot.full() || !owned) continue;
        ++expected;
        const std::string key = key_of(at, slot.name), want = value_of(stamp_of(at, slot.name, slot.put));
        std::string got(want.size(), ' ');
        const nmc_buffer_t to{got.data(), got.size()};
        nmc_status_t status = NMC_ERR_TIMEOUT;
        while (status != NMC_OK && now_s() - start < kPatience) {
          uint64_t bytes = 0;
          status = nmc_client_get(client, slice(key), &to, 1, &bytes);
          if (status == NMC_OK && (bytes != want.size() || got != want)) violation("%s: other bytes at the end", key.c_str());
          if (status != NMC_OK) pause_us(50000);
        }
        if (status != NMC_OK) violation("%s was acknowledged and is lost: %s", key.c_str(), outcome(status).c_str());
      }
      printf("%u values that must be there were read in %.1f s\n", expected, now_s() - start);
      return 0;
    });
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
};

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const int rounds = argc > 1 ? atoi(argv[1]) : 5;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
  shared = shared_between_processes<Shared>();
  promise("what_is_acknowledged_is_found_what_is_removed_stays_away_and_every_call_returns");
  printf("%d rounds, seed %" PRIu64 "\n", rounds, seed);
  {
    Test test(seed, argc > 3 ? argv[3] : "");
    test.wait_ms(1500, 1);
    shared->calm = false;
    for (int round = 0; round < rounds && shared->violations == 0; ++round) {
      test.fault();
      test.wait_ms(300, 900);
    }
    test.finish_workers();
    if (shared->violations == 0) test.look();
  }
  printf("%" PRIu64 " puts, %" PRIu64 " gets (%" PRIu64 " misses), %" PRIu64 " removes, %" PRIu64 " in doubt; slowest call %.2f s\n",
         shared->puts.load(), shared->gets.load(), shared->misses.load(), shared->removes.load(), shared->doubts.load(),
         static_cast<double>(shared->slowest_us) * 1e-6);
  for (const auto& text : shared->text)
    if (text[0] != 0) printf("FAIL %s\n", text);
  CHECK(shared->violations == 0);
  CHECK(shared->puts > 0 && shared->gets > shared->misses);
  return finish();
}
