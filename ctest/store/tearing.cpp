// Four processes read pinned values in a heap that is far too small, while values come, go and are replaced all the time.
// Every word of a value says which key and which epoch it belongs to. A read must never see another key (foreign) or a
// mixture (torn), and a key that is only ever replaced must never be missing.
// usage: tearing READS [SEED] [seed-protocol]
//   With `seed-protocol` the readers check READY and then count themselves in, and the evictor looks at the count, over
//   plain shared memory: the same harness must see torn or foreign reads.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <atomic>
#include <cinttypes>
#include <thread>

namespace {

constexpr uint32_t RANKS = 4;
constexpr uint64_t KEYS = 96;
constexpr uint32_t PAGE = 4096, HEAP_PAGES = 8;

struct Counts {
  std::atomic<uint64_t> reads, misses, torn, foreign, missing, writes, replaced, refused, broken, ready;
  std::atomic<bool> stop;
};
Counts* counts;

uint64_t stamp_of(uint64_t key, uint64_t epoch) { return key << 48 ^ epoch; }

// The verdict on what a reader sees in `words` words that should be of this key and epoch. The first word is the stamp.
void judge(const uint64_t* at, uint64_t words, uint64_t offset, uint64_t stamp) {
  for (uint64_t i = 0; i < words; ++i) {
    const uint64_t place = offset + i;
    const uint64_t seen = __atomic_load_n(at + i, __ATOMIC_RELAXED);
    if (seen == (place == 0 ? stamp : word_of(stamp, place))) continue;
    std::atomic<uint64_t>& verdict = place == 0 ? counts->foreign : counts->torn;
    if (verdict.fetch_add(1) == 0)
      std::fprintf(stderr, "%s: word %" PRIu64 " of key %" PRIu64 " epoch %" PRIu64 " is %016" PRIx64 "\n",
                   place == 0 ? "foreign" : "torn", place, stamp >> 48, stamp & 0xffffffffffff, seen);
    return;
  }
}
void compose(uint64_t* at, uint64_t words, uint64_t offset, uint64_t stamp) {
  for (uint64_t i = 0; i < words; ++i)
    __atomic_store_n(at + i, offset + i == 0 ? stamp : word_of(stamp, offset + i), __ATOMIC_RELAXED);
}

// ---- the store ------------------------------------------------------------------------------------------------------

[[noreturn]] void broken(const char* what, nmc_status_t status) {
  std::fprintf(stderr, "FAIL %s: %s: %s\n", what, nmc_status_name(status), nmc_last_error_message());
  counts->broken.fetch_add(1);
  _exit(1);
}

struct Worker {
  nmc_store_t* store;
  Random random;
  bool mostly_writes;

  std::string name(uint64_t key) const { return "key" + std::to_string(key); }

  void read(uint64_t key) {
    nmc_view_t view;
    const std::string text = name(key);
    const nmc_status_t status = nmc_store_pin(store, slice(text), &view);
    if (status == NMC_OK) {
      const uint64_t stamp = stamp_of(key, view.epoch);
      if (view.n_extents == 1) {
        judge(static_cast<const uint64_t*>(view.data), view.bytes / 8, 0, stamp);
      } else {
        nmc_extent_t extents[64];
        size_t n = 0;
        uint64_t offset = 0;
        if (nmc_status_t s = nmc_store_view_extents(store, &view, extents, 64, &n); s != NMC_OK) broken("extents", s);
        for (size_t i = 0; i < n; ++i) {
          judge(static_cast<const uint64_t*>(extents[i].ptr), extents[i].bytes / 8, offset, stamp);
          offset += extents[i].bytes / 8;
        }
      }
      if (nmc_status_t s = nmc_store_unpin(store, &view); s != NMC_OK) broken("unpin", s);
      counts->reads.fetch_add(1, std::memory_order_relaxed);
    } else if (status == NMC_ERR_NOT_FOUND || status == NMC_NOT_READY) {
      counts->misses.fetch_add(1, std::memory_order_relaxed);
      // Key 0 is retained and only ever replaced: there is always a value.
      if (key == 0 && counts->missing.fetch_add(1) == 0) std::fprintf(stderr, "missing: a key that is only ever replaced\n");
    } else if (status != NMC_ERR_BUSY) {
      broken("pin", status);
    }
  }

  void write(uint64_t key) {
    const std::string text = name(key);
    nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
    options.preferred_segment = static_cast<int32_t>(random.below(RANKS));
    if (key == 0) {
      options.flags = NMC_PUT_REPLACE;
      options.retain = NMC_RETAIN_HARD;
    } else if (random.one_in(3)) {
      options.flags = NMC_PUT_REPLACE;
    }
    // Most values are small: they change hands most often.
    const uint64_t bytes = 8 * (random.one_in(6) ? 1 + random.below(3 * PAGE / 8) : 8 + random.below(56));
    nmc_write_plan_t plan;
    nmc_status_t status = nmc_store_open_for_write(store, slice(text), bytes, &options, &plan);
    if (status == NMC_ERR_EXISTS) {
      status = nmc_store_remove(store, slice(text));
      if (status != NMC_OK && status != NMC_ERR_NOT_FOUND) broken("remove", status);
      return;
    }
    if (status == NMC_ERR_BUSY) {
      counts->refused.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (status != NMC_OK) broken("open", status);
    nmc_extent_t extents[64];
    size_t n = 0;
    uint64_t offset = 0;
    // Another writer may have removed the key: then the plan is stale, but still ours to fill.
    if (nmc_status_t s = nmc_store_plan_extents(store, &plan, extents, 64, &n); s != NMC_OK) broken("plan_extents", s);
    for (size_t i = 0; i < n; ++i) {
      compose(static_cast<uint64_t*>(extents[i].ptr), extents[i].bytes / 8, offset, stamp_of(key, plan.epoch));
      offset += extents[i].bytes / 8;
    }
    if (random.one_in(20)) {
      status = nmc_store_abort(store, &plan);
      if (status != NMC_OK) broken("abort", status);
      return;
    }
    status = nmc_store_commit(store, &plan);
    if (status == NMC_OK) (key == 0 ? counts->replaced : counts->writes).fetch_add(1, std::memory_order_relaxed);
    else if (status != NMC_ERR_STALE) broken("commit", status);
  }

  void work() {
    while (!counts->stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 64; ++i) {
        const uint64_t key = random.one_in(8) ? 0 : 1 + random.below(KEYS - 1);
        if (mostly_writes ? random.below(4) != 0 : random.one_in(50)) write(key);
        else read(key);
      }
      if (mostly_writes && random.one_in(40))
        nmc_store_evict_until_below(store, static_cast<int32_t>(random.below(RANKS)), static_cast<uint32_t>(random.below(600)));
    }
  }
};

int member(uint32_t rank, const std::string& dir, uint64_t seed) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = nmc_slice_t{"tearing", 7};
  config.dir = slice(dir);
  config.rank = static_cast<int32_t>(rank);
  config.world_size = RANKS;
  config.heap_bytes = HEAP_PAGES * PAGE;
  config.join_timeout_ms = 60000;
  nmc_world_t* world = nullptr;
  if (nmc_status_t s = nmc_world_join(&config, &world); s != NMC_OK) broken("join", s);
  nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
  wanted.page_bytes = PAGE;
  wanted.max_objects = 64;
  wanted.key_slab_bytes = 64 << 10;
  wanted.attach_timeout_ms = 60000;
  wanted.call_timeout_ms = 60000;
  wanted.master_rank = 0;
  nmc_store_t* store = nullptr;
  if (nmc_status_t s = nmc_store_create(world, &wanted, &store); s != NMC_OK) broken("create", s);
  Worker worker{store, Random(seed * 16 + rank), rank == 0};
  while (rank == 0 && counts->replaced.load() == 0) worker.write(0);
  counts->ready.fetch_add(1);
  while (counts->ready.load() < RANKS) pause_us(1000);
  // One process reads with two threads, which share its pin slots.
  std::thread second;
  if (rank == RANKS - 1) second = std::thread([&] { Worker{store, Random(seed * 16 + RANKS), false}.work(); });
  worker.work();
  if (second.joinable()) second.join();
  // The master goes last, so that nobody waits for it.
  counts->ready.fetch_sub(1);
  while (rank == 0 && counts->ready.load() != 0) pause_us(1000);
  if (nmc_status_t s = nmc_store_destroy(store); s != NMC_OK) broken("destroy", s);
  if (nmc_status_t s = nmc_world_destroy(world); s != NMC_OK) broken("world_destroy", s);
  return 0;
}

// ---- the seed's protocol ----------------------------------------------------------------------------------------------

struct SeedSlot {
  std::atomic<uint32_t> ready, readers;
  std::atomic<uint64_t> epoch;
  uint64_t words[64];
};
struct SeedHeap {
  SeedSlot slots[8];
};
SeedHeap* seed_heap;

int seed_member(uint32_t rank, uint64_t seed) {
  Random random(seed * 16 + rank);
  uint64_t epoch = 1;
  counts->ready.fetch_add(1);
  while (!counts->stop.load(std::memory_order_relaxed)) {
    const uint64_t key = random.below(8);
    SeedSlot& slot = seed_heap->slots[key];
    if (rank == 0) {
      if (slot.ready.load(std::memory_order_acquire) != 0 && slot.readers.load(std::memory_order_acquire) != 0) continue;
      slot.ready.store(0, std::memory_order_release);
      slot.epoch.store(++epoch, std::memory_order_relaxed);
      compose(slot.words, 64, 0, stamp_of(key, epoch));
      slot.ready.store(1, std::memory_order_release);
      continue;
    }
    if (slot.ready.load(std::memory_order_acquire) == 0) continue;
    slot.readers.fetch_add(1, std::memory_order_acq_rel);
    judge(slot.words, 64, 0, stamp_of(key, slot.epoch.load(std::memory_order_relaxed)));
    slot.readers.fetch_sub(1, std::memory_order_acq_rel);
    counts->reads.fetch_add(1, std::memory_order_relaxed);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t reads = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const bool control = argc > 3 && std::strcmp(argv[3], "seed-protocol") == 0;
  if (!control && syscall(434, getpid(), 0) < 0) return 77;  // no pidfd_open: an old valgrind
  counts = shared_between_processes<Counts>();
  seed_heap = shared_between_processes<SeedHeap>();
  OwnDir dir;
  std::vector<pid_t> pids;
  for (uint32_t rank = 0; rank < RANKS; ++rank)
    pids.push_back(start_member([&] { return control ? seed_member(rank, seed) : member(rank, dir.path, seed); }));
  const auto wrong = [] { return counts->torn.load() + counts->foreign.load() + counts->missing.load() + counts->broken.load(); };
  const double start = now_s();
  // A far limit: 20,000 reads a second on a machine that does ten times that under valgrind.
  const bool in_time = watch_until(pids, 120 + static_cast<double>(reads) / 20000, [&] { return counts->reads.load() >= reads || wrong() != 0; });
  counts->stop.store(true);
  const bool ended = watch_until(pids, 120, [&] {
    for (pid_t pid : pids)
      if (pid > 0) return false;
    return true;
  });
  end_all(pids);
  std::printf("%" PRIu64 " pinned reads (%" PRIu64 " misses) and %" PRIu64 " writes, %" PRIu64 " replacements of one key in %.1f s: %" PRIu64
              " torn, %" PRIu64 " foreign, %" PRIu64 " missing\n",
              counts->reads.load(), counts->misses.load(), counts->writes.load(), counts->replaced.load(), now_s() - start,
              counts->torn.load(), counts->foreign.load(), counts->missing.load());
  if (wrong() != 0 || !in_time || !ended) {
    std::printf("FAIL seed %" PRIu64 "%s\n", seed, wrong() != 0 ? "" : in_time ? ": a process did not end well" : ": too slow, or a process died");
    return 1;
  }
  std::printf("PASS\n");
  return 0;
}
