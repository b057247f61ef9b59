// Writers that are stopped (SIGSTOP) in the middle of a write until the watchdog has given them up, and then go on: others
// have taken their keys and filled every page by then. What a late writer stores must land nowhere but in its own pages,
// and its commit must say STALE.
// usage: late WRITERS [SEED] [reuse|ignore]
//   `reuse`: pages of a late writer are given to the next one when time is up, in plain shared memory.
//   `ignore`: a late writer publishes in spite of it, and counts that as a success. Both must be seen.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <atomic>
#include <cinttypes>

namespace {

constexpr uint32_t RANKS = 4, WRITERS = RANKS - 1, PAGE = 4096, HEAP_PAGES = 16;
constexpr uint64_t BYTES = 2 * PAGE;
constexpr double PATIENCE = 60;

enum Step : uint32_t { IDLE, GO, STOPPED, LATE, DONE, QUIT };
struct Writer {
  std::atomic<uint32_t> step;
  std::atomic<int32_t> status;
  std::atomic<uint64_t> number;
};
struct Shared {
  Writer writers[WRITERS];
  std::atomic<uint32_t> keeper;  // steps of rank 0
  std::atomic<uint64_t> foreign, stale, published, looked, ready, failed;
  unsigned char pages[WRITERS][BYTES];  // for `reuse`
};
Shared* shared;
bool reuse = false, ignore_stale = false;

[[noreturn]] void fail(const char* what, nmc_status_t status) {
  std::fprintf(stderr, "FAIL %s: %s: %s\n", what, nmc_status_name(status), nmc_last_error_message());
  shared->failed.fetch_add(1);
  _exit(1);
}
std::string key_of(uint64_t writer) { return "late-" + std::to_string(writer); }

struct Member {
  nmc_world_t* world = nullptr;
  nmc_store_t* store = nullptr;

  Member(uint32_t rank, const std::string& dir) {
    nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
    config.name = nmc_slice_t{"late", 4};
    config.dir = slice(dir);
    config.rank = static_cast<int32_t>(rank);
    config.world_size = RANKS;
    config.heap_bytes = HEAP_PAGES * PAGE;
    config.join_timeout_ms = 60000;
    if (nmc_status_t s = nmc_world_join(&config, &world); s != NMC_OK) fail("join", s);
    nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
    wanted.page_bytes = PAGE;
    wanted.max_objects = 128;
    wanted.watchdog_ms = 50;
    wanted.attach_timeout_ms = wanted.call_timeout_ms = 60000;
    wanted.master_rank = 0;
    if (nmc_status_t s = nmc_store_create(world, &wanted, &store); s != NMC_OK) fail("create", s);
    shared->ready.fetch_add(1);
  }
  void leave() {
    if (nmc_status_t s = nmc_store_destroy(store); s != NMC_OK) fail("destroy", s);
    if (nmc_status_t s = nmc_world_destroy(world); s != NMC_OK) fail("world_destroy", s);
  }
};

int writer(uint32_t number, const std::string& dir) {
  Member self(number + 1, dir);
  Writer& me = shared->writers[number];
  for (;;) {
    while (me.step.load() != GO && me.step.load() != QUIT) pause_us(300);
    if (me.step.load() == QUIT) break;
    const uint64_t stamp = 1000 + me.number.load() * 16 + number;
    nmc_write_plan_t plan{};
    std::vector<nmc_extent_t> extents(1);
    size_t n = 0;
    if (reuse) {
      extents[0] = nmc_extent_t{shared->pages[number], nullptr, BYTES};
      n = 1;
    } else {
      nmc_status_t s;
      // The keeper has filled everything; it makes room for this one.
      while ((s = nmc_store_open_for_write(self.store, slice(key_of(number)), BYTES, nullptr, &plan)) == NMC_ERR_BUSY) pause_us(300);
      if (s != NMC_OK) fail("open", s);
      extents.resize(plan.n_extents);
      if ((s = nmc_store_plan_extents(self.store, &plan, extents.data(), extents.size(), &n)) != NMC_OK) fail("plan_extents", s);
    }
    make_value(stamp, 0, extents[0].ptr, extents[0].bytes / 2);
    me.step.store(STOPPED);
    raise(SIGSTOP);
    // Too late: but it does not know.
    uint64_t offset = 0;
    for (size_t i = 0; i < n; ++i) {
      make_value(stamp, offset, extents[i].ptr, extents[i].bytes);
      offset += extents[i].bytes;
    }
    nmc_status_t status = reuse ? NMC_ERR_STALE : nmc_store_commit(self.store, &plan);
    if (ignore_stale && status == NMC_ERR_STALE) status = NMC_OK;
    me.status.store(status);
    me.step.store(DONE);
  }
  self.leave();
  return 0;
}

// Rank 0: takes the keys of late writers, fills every page, and looks at all of it again and again.
int keeper(const std::string& dir) {
  Member self(0, dir);
  uint64_t stamp = 1u << 30, fillers = 0;
  std::vector<unsigned char> buffer(BYTES);
  std::vector<uint64_t> stamps(WRITERS), filled;
  const auto look = [&] {
    shared->looked.fetch_add(1);
    for (uint64_t w = 0; w < WRITERS; ++w) {
      if (reuse) {
        if (!is_value(stamps[w], 0, shared->pages[w], BYTES)) shared->foreign.fetch_add(1);
        continue;
      }
      size_t size = 0;
      const nmc_status_t s = nmc_store_get(self.store, slice(key_of(w)), buffer.data(), BYTES, &size);
      if (s != NMC_OK) fail("the keeper's value", s);
      if (size != BYTES || !is_value(stamps[w], 0, buffer.data(), BYTES)) shared->foreign.fetch_add(1);
    }
    for (uint64_t i = 0; i < fillers; ++i) {
      size_t size = 0;
      const nmc_status_t s = nmc_store_get(self.store, slice("fill-" + std::to_string(i)), buffer.data(), BYTES, &size);
      if (s == NMC_OK && !is_value(filled[i], 0, buffer.data(), size)) shared->foreign.fetch_add(1);
      if (s != NMC_OK && s != NMC_ERR_NOT_FOUND) fail("a filler", s);
    }
  };
  for (;;) {
    const uint32_t step = shared->keeper.load();
    if (step == QUIT) break;
    if (step == GO) {  // the writers are stopped
      for (uint64_t w = 0; w < WRITERS; ++w) {
        stamps[w] = ++stamp;
        if (reuse) {
          make_value(stamps[w], 0, shared->pages[w], BYTES);
          continue;
        }
        uint32_t state = NMC_OBJECT_WRITING;
        for (const double deadline = now_s() + PATIENCE; state != NMC_OBJECT_ABSENT; pause_us(1000)) {
          if (nmc_status_t s = nmc_store_exists(self.store, slice(key_of(w)), &state); s != NMC_OK) fail("exists", s);
          if (now_s() > deadline) fail("the watchdog gives nobody up", NMC_ERR_TIMEOUT);
        }
        make_value(stamps[w], 0, buffer.data(), BYTES);
        nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
        options.retain = NMC_RETAIN_HARD;
        if (nmc_status_t s = nmc_store_put(self.store, slice(key_of(w)), buffer.data(), BYTES, &options); s != NMC_OK) fail("put", s);
      }
      filled.clear();
      for (fillers = 0; !reuse && fillers < 2 * HEAP_PAGES * RANKS / 3; ++fillers) {
        filled.push_back(++stamp);
        make_value(stamp, 0, buffer.data(), PAGE);
        nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
        options.flags = NMC_PUT_REPLACE;
        options.preferred_segment = static_cast<int32_t>(fillers % RANKS);
        const nmc_status_t s = nmc_store_put(self.store, slice("fill-" + std::to_string(fillers)), buffer.data(), PAGE, &options);
        if (s == NMC_ERR_BUSY) filled.back() = 0;
        else if (s != NMC_OK) fail("fill", s);
      }
      look();
      shared->keeper.store(LATE);
    } else if (step == LATE) {  // they go on
      look();
    } else if (step == STOPPED) {  // they are done
      for (int i = 0; i < 3; ++i) look();
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      for (const double deadline = now_s() + PATIENCE;; pause_us(1000)) {
        if (nmc_status_t s = nmc_store_stats(self.store, nullptr, 0, &stats); s != NMC_OK) fail("stats", s);
        if (stats.quarantined_bytes == 0 && stats.writing_count == 0) break;
        if (now_s() > deadline) fail("late writers have stopped, but their pages are not free", NMC_ERR_TIMEOUT);
      }
      for (uint64_t w = 0; w < WRITERS && !reuse; ++w)
        if (nmc_status_t s = nmc_store_remove(self.store, slice(key_of(w))); s != NMC_OK) fail("remove", s);
      shared->keeper.store(DONE);
    } else {
      pause_us(300);
    }
  }
  self.leave();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 21;
  reuse = argc > 3 && std::strcmp(argv[3], "reuse") == 0;
  ignore_stale = argc > 3 && std::strcmp(argv[3], "ignore") == 0;
  if (syscall(434, getpid(), 0) < 0) return 77;  // no pidfd_open: an old valgrind
  shared = shared_between_processes<Shared>();
  OwnDir dir;
  std::vector<pid_t> pids;
  for (uint32_t w = 0; w < WRITERS; ++w) pids.push_back(start_member([&] { return writer(w, dir.path); }));
  pids.push_back(start_member([&] { return keeper(dir.path); }));
  uint64_t late = 0;
  const auto all_are = [](uint32_t step) {
    for (const Writer& w : shared->writers)
      if (w.step.load() != step) return false;
    return true;
  };
  bool fine = watch_until(pids, PATIENCE, [] { return shared->ready.load() == RANKS; });
  for (uint64_t round = 0; fine && late < wanted && shared->foreign.load() + shared->published.load() == 0; ++round) {
    for (Writer& w : shared->writers) {
      w.number.store(round);
      w.step.store(GO);
    }
    fine = watch_until(pids, PATIENCE, [&] {
      for (uint32_t w = 0; w < WRITERS; ++w) {  // not only about to stop
        int status = 0;
        if (pids[w] > 0 && shared->writers[w].step.load() == STOPPED && waitpid(pids[w], &status, WUNTRACED | WNOHANG) == pids[w] && WIFSTOPPED(status))
          shared->writers[w].step.store(LATE);
      }
      return all_are(LATE);
    });
    shared->keeper.store(GO);
    fine = fine && watch_until(pids, 2 * PATIENCE, [] { return shared->keeper.load() == LATE; });
    for (uint32_t w = 0; w < WRITERS; ++w) kill(pids[w], SIGCONT);
    fine = fine && watch_until(pids, PATIENCE, [&] { return all_are(DONE); });
    for (Writer& w : shared->writers) (w.status.load() == NMC_ERR_STALE ? shared->stale : shared->published).fetch_add(1);
    shared->keeper.store(STOPPED);
    fine = fine && watch_until(pids, 2 * PATIENCE, [] { return shared->keeper.load() == DONE; });
    late += WRITERS;
  }
  for (Writer& w : shared->writers) w.step.store(QUIT);
  if (fine) fine = watch_until(pids, PATIENCE, [&] {
    for (uint32_t w = 0; w < WRITERS; ++w)
      if (pids[w] > 0) return false;
    return true;
  });
  shared->keeper.store(QUIT);
  if (fine) fine = watch_until(pids, PATIENCE, [&] { return pids[WRITERS] < 0; });
  for (pid_t pid : pids)
    if (pid > 0) kill(pid, SIGCONT);
  end_all(pids);
  std::printf("%" PRIu64 " late writers: %" PRIu64 " were told so, %" PRIu64 " stale publishes, %" PRIu64 " values with foreign bytes in %" PRIu64
              " looks\n",
              late, shared->stale.load(), shared->published.load(), shared->foreign.load(), shared->looked.load());
  if (!fine || shared->foreign.load() + shared->published.load() + shared->failed.load() != 0) {
    std::printf("FAIL%s\n", fine ? "" : " a process did not end well, or hangs");
    return 1;
  }
  std::printf("PASS\n");
  return 0;
}
