// Objects that exactly one consumer gets. Two ranks store values under a few keys, again and again; two others consume them, and
// are killed now and then, wherever they are. No value is delivered twice; each is delivered, or was lost with a consumer that
// was killed, at most one with each; and in the end the store is empty and all of its pages are free. A put that says STALE may
// have been delivered, if its header was another object's again before the writer looked: nobody knows then.
// usage: consume DELIVERIES KILLS [SEED] [by-key]
//   by-key is the control: pin, and remove by the key. Who removes what came after it counts for a consumer, too.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <atomic>
#include <cinttypes>

namespace {

constexpr uint32_t RANKS = 4, PRODUCERS = 2, KEYS = 3, PAGE = 4096, HEAP_PAGES = 64;
constexpr uint64_t MOST = 1 << 20;
constexpr double PATIENCE = 120;

// What became of a value, by its stamp.
enum Fate : uint8_t { NEVER = 0, STORED = 1, DELIVERED = 2 };

struct Shared {
  std::atomic<uint64_t> next_stamp, delivered, twice, torn, stale;
  std::atomic<uint32_t> joined, stopped, drained[RANKS], empty;
  std::atomic<uint8_t> fate[MOST];
  char text[400];
};
Shared* shared;
bool by_key = false;

int fail(const char* what, nmc_status_t status) {
  if (shared->text[0] == 0)
    std::snprintf(shared->text, sizeof shared->text, "%s gives %s: %s", what, nmc_status_name(status), nmc_last_error_message());
  return 1;
}

std::string key_of(uint64_t key) { return "mail-" + std::to_string(key); }
uint64_t bytes_of(uint64_t stamp) { return 8 + stamp % 9000; }

struct Rank {
  uint32_t rank;
  nmc_world_t* world = nullptr;
  nmc_store_t* store = nullptr;
  Random random;
  std::vector<char> buffer = std::vector<char>(9008);

  Rank(uint32_t number, uint64_t seed) : rank(number), random(seed * 64 + number) {}

  nmc_status_t join(const std::string& dir) {
    nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
    config.name = nmc_slice_t{"consume", 7};
    config.dir = slice(dir);
    config.rank = static_cast<int32_t>(rank);
    config.world_size = RANKS;
    config.heap_bytes = HEAP_PAGES * PAGE;
    config.join_timeout_ms = 60000;
    if (nmc_status_t s = nmc_world_join(&config, &world); s != NMC_OK) return s;
    nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
    wanted.page_bytes = PAGE;
    wanted.high_permille = wanted.low_permille = 1000;
    wanted.flags = NMC_STORE_CHECKSUMS;
    wanted.attach_timeout_ms = 60000;
    return nmc_store_create(world, &wanted, &store);
  }

  int produce() {
    uint64_t stamp = shared->next_stamp.fetch_add(1);
    while (shared->stopped.load() == 0 && stamp < MOST) {
      const std::string key = key_of(random.below(KEYS));
      const uint64_t bytes = bytes_of(stamp);
      make_value(stamp, 0, buffer.data(), bytes);
      nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
      options.metadata = nmc_slice_t{&stamp, sizeof stamp};
      shared->fate[stamp].store(STORED);  // it may be delivered before the put returns
      const nmc_status_t status = nmc_store_put(store, slice(key), buffer.data(), bytes, &options);
      if (status == NMC_OK || status == NMC_ERR_STALE) {
        shared->stale.fetch_add(status != NMC_OK);
        stamp = shared->next_stamp.fetch_add(1);
        continue;
      }
      shared->fate[stamp].store(NEVER);
      if (status != NMC_ERR_EXISTS && status != NMC_ERR_BUSY) return fail("put", status);
      if (random.one_in(8)) pause_us(20);
    }
    shared->drained[rank].store(1);
    return 0;
  }

  nmc_status_t take(const std::string& key, nmc_view_t* view) {
    if (!by_key) return nmc_store_consume(store, slice(key), view);
    nmc_status_t status = nmc_store_pin(store, slice(key), view);
    if (status != NMC_OK) return status;
    status = nmc_store_remove(store, slice(key));
    if (status != NMC_OK) nmc_store_unpin(store, view);
    return status;
  }

  int consume() {
    uint32_t idle = 0;
    for (;;) {
      const bool last = shared->stopped.load() != 0 && shared->drained[0].load() != 0 && shared->drained[1].load() != 0;
      nmc_view_t view;
      const nmc_status_t status = take(key_of(last ? idle % KEYS : random.below(KEYS)), &view);
      if (status == NMC_ERR_NOT_FOUND || status == NMC_NOT_READY) {
        // Each key once more, when nobody stores any more.
        if (last && ++idle >= 2 * KEYS) break;
        continue;
      }
      if (status != NMC_OK) return fail("consume", status);
      idle = 0;
      uint64_t stamp = MOST;
      size_t n = 0;
      const nmc_status_t said = nmc_store_view_metadata(store, &view, &stamp, sizeof stamp, &n);
      if (said != NMC_OK || n != sizeof stamp) return fail("metadata", said);
      if (nmc_status_t s = nmc_store_verify(store, &view); s != NMC_OK) return fail("verify", s);
      if (stamp >= MOST || view.bytes != bytes_of(stamp) || !view_is(store, view, stamp, view.bytes)) {
        shared->torn.fetch_add(1);
      } else if (shared->fate[stamp].exchange(DELIVERED) == DELIVERED) {
        shared->twice.fetch_add(1);
      }
      shared->delivered.fetch_add(1);
      if (nmc_status_t s = nmc_store_unpin(store, &view); s != NMC_OK) return fail("unpin", s);
    }
    shared->drained[rank].store(1);
    return 0;
  }

  // Whether everything is free again, soon: a master looks at what the dead held when it knows that they are.
  int settle() {
    const double deadline = now_s() + PATIENCE;
    for (;;) {
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      if (nmc_status_t s = nmc_store_stats(store, nullptr, 0, &stats); s != NMC_OK) return fail("stats", s);
      if (stats.bytes_used == 0 && stats.ready_count == 0 && stats.limbo_bytes == 0) break;
      if (now_s() > deadline) {
        std::snprintf(shared->text, sizeof shared->text, "leaked: %" PRIu64 " bytes used, %" PRIu64 " wait, %" PRIu64 " objects",
                      stats.bytes_used, stats.limbo_bytes, stats.ready_count);
        return 1;
      }
      pause_us(1000);
    }
    shared->empty.store(1);
    return 0;
  }
};

int run(uint32_t rank, const std::string& dir, uint64_t seed) {
  Rank self(rank, seed);
  if (nmc_status_t s = self.join(dir); s != NMC_OK) return fail("join", s);
  shared->joined.fetch_add(1);
  if (int code = rank < PRODUCERS ? self.produce() : self.consume(); code != 0) return code;
  const auto drained = [&] {
    for (const auto& each : shared->drained)
      if (each.load() == 0) return false;
    return true;
  };
  while (!drained()) pause_us(1000);
  if (rank == 0 && self.settle() != 0) return 1;
  while (shared->empty.load() == 0) pause_us(1000);
  nmc_store_destroy(self.store);
  nmc_world_destroy(self.world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const uint64_t deliveries = std::strtoull(argv[1], nullptr, 10), kills = std::strtoull(argv[2], nullptr, 10);
  uint64_t seed = 1;
  for (int i = 3; i < argc; ++i) {
    if (std::string(argv[i]) == "by-key") by_key = true;
    else seed = std::strtoull(argv[i], nullptr, 10);
  }
  shared = shared_between_processes<Shared>();
  OwnDir dir;
  Random random(seed);
  std::vector<pid_t> pids(RANKS, -1);
  const auto start = [&](uint32_t rank) { pids[rank] = start_member([&] { return run(rank, dir.path, seed); }); };
  for (uint32_t rank = 0; rank < RANKS; ++rank) start(rank);
  bool fine = watch_until(pids, PATIENCE, [] { return shared->joined.load() == RANKS; });
  uint64_t killed = 0;
  for (uint64_t round = 1; fine && round <= kills + 1; ++round) {
    const uint64_t goal = deliveries * round / (kills + 1);
    fine = watch_until(pids, PATIENCE, [&] { return shared->delivered.load() >= goal || shared->twice.load() + shared->torn.load() > 0; });
    if (!fine || round > kills || shared->twice.load() + shared->torn.load() > 0) break;
    const uint32_t victim = PRODUCERS + static_cast<uint32_t>(random.below(RANKS - PRODUCERS));
    pause_us(static_cast<long>(random.below(300)));
    kill(pids[victim], SIGKILL);
    waitpid(pids[victim], nullptr, 0);
    ++killed;
    const uint32_t joined = shared->joined.load();
    start(victim);
    fine = watch_until(pids, PATIENCE, [&] { return shared->joined.load() > joined; });
  }
  shared->stopped.store(1);
  // A control has shown what it is for by now.
  const bool proven = by_key && shared->twice.load() > 0;
  fine = fine && (proven || watch_until(pids, 2 * PATIENCE, [&] {
    for (pid_t pid : pids)
      if (pid > 0) return false;
    return true;
  }));
  end_all(pids);
  uint64_t lost = 0, stored = 0;
  for (const auto& fate : shared->fate) {
    stored += fate.load() != NEVER;
    lost += fate.load() == STORED;
  }
  std::printf("%" PRIu64 " values stored, %" PRIu64 " delivered, %" PRIu64 " delivered twice, %" PRIu64 " torn, %" PRIu64
              " lost with %" PRIu64 " consumers that were killed, %" PRIu64 " stale\n",
              stored, shared->delivered.load(), shared->twice.load(), shared->torn.load(), lost, killed, shared->stale.load());
  if (shared->text[0] != 0) std::printf("FAIL %s\n", shared->text);
  const bool right = fine && shared->text[0] == 0 && shared->twice.load() == 0 && shared->torn.load() == 0 && lost <= killed + shared->stale.load();
  std::printf("%s\n", right ? "every value had one consumer" : "FAILED");
  return right ? 0 : 1;
}
