// A process with a stray pointer: rank 2 overwrites random words of one shared slab after the other, while ranks 0 (which
// has the master) and 1 use the store. Then rank 0 is killed and comes back, so that a master takes over what was hit.
// Calls may fail and objects may be lost. No process ends by a signal, no call takes long, and with checksums nobody gets
// other bytes.
// usage: scribbled SECONDS [SEED] [no-checksums]
//   With `no-checksums` the heaps are hit and nothing is there to notice: the same harness must see wrong bytes.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cinttypes>

namespace {

constexpr uint32_t RANKS = 3, PAGE = 4096, HEAP_PAGES = 96, KEYS = 64;
constexpr double SLOW_S = 20;  // what no call takes, however busy the machine is
const char* const kSlabs[] = {"nanomc store control", "nanomc store words", "nanomc control", "nanomc words", "nanomc heap"};

struct Shared {
  std::atomic<uint64_t> calls, failed, right, wrong, slow, words;
  std::atomic<uint32_t> ready, returned;
  std::atomic<bool> stop;
};
Shared* shared;
bool checksums = true;
uint64_t seed = 1;

struct Member {
  nmc_world_t* world = nullptr;
  nmc_store_t* store = nullptr;
  // False if the world or the store cannot be had, as may be once it was hit.
  bool join(uint32_t rank, const std::string& dir, uint32_t patience_ms = 60000) {
    nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
    config.name = nmc_slice_t{"scribbled", 9};
    config.dir = slice(dir);
    config.rank = static_cast<int32_t>(rank);
    config.world_size = RANKS;
    config.heap_bytes = uint64_t{HEAP_PAGES} * PAGE;
    config.join_timeout_ms = patience_ms;
    if (nmc_world_join(&config, &world) != NMC_OK) return false;
    nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
    wanted.page_bytes = PAGE;
    wanted.max_objects = 256;
    wanted.flags = checksums ? NMC_STORE_CHECKSUMS : 0;
    wanted.attach_timeout_ms = patience_ms;
    wanted.call_timeout_ms = 4000;
    return nmc_store_create(world, &wanted, &store) == NMC_OK;
  }
};

// Counts a call, and whether it took too long.
template <class Call>
nmc_status_t timed(Call call) {
  const double start = now_s();
  const nmc_status_t status = call();
  if (now_s() - start > SLOW_S) shared->slow.fetch_add(1);
  shared->calls.fetch_add(1);
  if (status < 0) shared->failed.fetch_add(1);
  return status;
}

// A key has one value for ever, so that whatever is read can be judged.
std::string name_of(uint64_t key) { return (key % 5 == 0 ? std::string(40, 'k') : "key-") + std::to_string(key); }
uint64_t bytes_of(uint64_t key) { return 1 + mix(key) % (3 * PAGE); }

// `sums_late`: values that the program stores itself are summed when they are committed, with what hit them before.
void work(Member& self, uint32_t rank, bool sums_late) {
  Random random(seed * 31 + rank);
  std::vector<unsigned char> value(3 * PAGE), found(3 * PAGE);
  for (uint64_t round = 0; !shared->stop.load(); ++round) {
    // New ones all the time: a name that was used may be stuck.
    const uint64_t key = rank * 1000000 + round / 2 + random.below(KEYS);
    const std::string name = name_of(key);
    const nmc_slice_t text = slice(name);
    const uint64_t bytes = bytes_of(key);
    nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
    switch (random.below(12)) {
      case 0:
        timed([&] { return nmc_store_remove(self.store, text); });
        break;
      case 1: {
        nmc_view_t view{};
        if (timed([&] { return nmc_store_pin(self.store, text, &view); }) == NMC_OK) {
          std::vector<nmc_extent_t> extents(256);
          size_t n = 0;
          if (timed([&] { return nmc_store_view_extents(self.store, &view, extents.data(), extents.size(), &n); }) == NMC_OK)
            for (size_t i = 0; i < n; ++i)  // whatever is there can be read
              if (extents[i].bytes > 0) (void)static_cast<const volatile unsigned char*>(extents[i].ptr)[extents[i].bytes - 1];
          timed([&] { return nmc_store_verify(self.store, &view); });
          timed([&] { return nmc_store_view_metadata(self.store, &view, found.data(), found.size(), &n); });
          timed([&] { return nmc_store_unpin(self.store, &view); });
        }
        break;
      }
      case 2: {
        nmc_write_plan_t plan{};
        if (sums_late) break;
        if (timed([&] { return nmc_store_open_for_write(self.store, text, bytes, nullptr, &plan); }) == NMC_OK) {
          const bool filled = fill_plan(self.store, plan, key);
          const nmc_status_t done = filled ? timed([&] { return nmc_store_commit(self.store, &plan); }) : NMC_ERR_CORRUPT;
          if (done != NMC_OK) timed([&] { return nmc_store_abort(self.store, &plan); });
        }
        break;
      }
      case 3:
        make_value(key, 0, value.data(), bytes);
        options.flags = NMC_PUT_REPLACE;
        options.metadata = text;
        timed([&] { return nmc_store_put(self.store, text, value.data(), bytes, &options); });
        break;
      case 4:
        if (random.one_in(64)) timed([&] { return nmc_store_evict_until_below(self.store, static_cast<int32_t>(rank), 500); });
        break;
      case 5: {
        nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
        timed([&] { return nmc_store_stats(self.store, nullptr, 0, &stats); });
        break;
      }
      case 6:
        timed([&] { return nmc_store_wait_ready(self.store, text, 0, 2); });
        break;
      case 7:
      case 8:
      case 9:
        make_value(key, 0, value.data(), bytes);
        timed([&] { return nmc_store_put(self.store, text, value.data(), bytes, nullptr); });
        break;
      default: {
        size_t size = 0;
        if (timed([&] { return nmc_store_get(self.store, text, found.data(), found.size(), &size); }) == NMC_OK)
          (size == bytes && is_value(key, 0, found.data(), size) ? shared->right : shared->wrong).fetch_add(1);
        if (timed([&] { return nmc_store_get_metadata(self.store, text, found.data(), found.size(), &size); }) == NMC_OK && size > 0)
          (size == name.size() && std::memcmp(found.data(), name.data(), size) == 0 ? shared->right : shared->wrong).fetch_add(1);
      }
    }
  }
}

int worker(uint32_t rank, const std::string& dir, const std::string& slab, bool comes_back) {
  Member self;
  if (!self.join(rank, dir, comes_back ? 5000 : 60000)) {
    if (comes_back) shared->returned.fetch_add(1);
    return comes_back ? 0 : 4;
  }
  (comes_back ? shared->returned : shared->ready).fetch_add(1);
  while (shared->ready.load() < RANKS && !shared->stop.load()) pause_us(500);
  work(self, rank, slab == "nanomc heap");
  timed([&] { return nmc_store_destroy(self.store); });
  timed([&] { return nmc_world_destroy(self.world); });
  return 0;
}

// One of the slabs of this name that the process has open, writable.
volatile uint64_t* map_slab(const std::string& name, uint64_t which, size_t& words) {
  std::vector<int> found;
  DIR* all = opendir("/proc/self/fd");
  while (const dirent* entry = all != nullptr ? readdir(all) : nullptr) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    char target[256];
    const ssize_t length = readlink(path.c_str(), target, sizeof target);
    const std::string wanted = "/memfd:" + name + " (deleted)";
    if (length == static_cast<ssize_t>(wanted.size()) && wanted.compare(0, wanted.size(), target, wanted.size()) == 0)
      found.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
  }
  if (all != nullptr) closedir(all);
  if (found.empty()) return nullptr;
  const int fd = found[which % found.size()];
  struct stat about {};
  if (fstat(fd, &about) != 0) return nullptr;
  words = static_cast<size_t>(about.st_size) / 8;
  void* memory = mmap(nullptr, words * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<volatile uint64_t*>(memory);
}

int scribbler(const std::string& dir, const std::string& slab) {
  Member self;
  if (!self.join(2, dir)) return 4;
  Random random(seed * 97 + slab.size());
  size_t words = 0;
  volatile uint64_t* memory = map_slab(slab, seed, words);
  if (memory == nullptr) return 5;
  shared->ready.fetch_add(1);
  while (shared->ready.load() < RANKS && !shared->stop.load()) pause_us(500);
  while (!shared->stop.load()) {
    for (int i = 0; i < 8; ++i) {
      volatile uint64_t& word = memory[random.below(words)];
      switch (random.below(5)) {
        case 0: word = random.next(); break;
        case 1: word = word ^ uint64_t{1} << random.below(64); break;
        case 2: word = ~uint64_t{0}; break;
        case 3: word = 0; break;
        default: word = random.next() & 0xffff;
      }
      shared->words.fetch_add(1);
    }
    pause_us(100);
  }
  _exit(0);
}

// Reaps a member; true if it ended by itself, with a code that is no failure.
bool ended_well(pid_t pid, const char* who, double deadline) {
  int status = 0;
  pid_t got = 0;
  while ((got = waitpid(pid, &status, WNOHANG)) == 0 && now_s() < deadline) pause_us(2000);
  if (got == 0) {
    std::printf("%s hangs\n", who);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return false;
  }
  if (WIFSIGNALED(status)) std::printf("%s ended by signal %d\n", who, WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) std::printf("%s ended with code %d\n", who, WEXITSTATUS(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool run(const char* slab, double seconds) {
  OwnDir dir;
  new (shared) Shared{};
  std::vector<pid_t> members;
  for (uint32_t rank = 0; rank < 2; ++rank) members.push_back(start_member([&] { return worker(rank, dir.path, slab, false); }));
  members.push_back(start_member([&] { return scribbler(dir.path, slab); }));
  bool good = watch_until(members, 60, [] { return shared->ready.load() == RANKS; });
  if (good) good = watch_until(members, seconds * 20 + 60, [end = now_s() + seconds] { return now_s() > end; });
  if (!good) std::printf("%s: a process ended badly or never began\n", slab);
  // The master's process goes, and another comes.
  if (good) {
    kill(members[0], SIGKILL);
    waitpid(members[0], nullptr, 0);
    members[0] = start_member([&] { return worker(0, dir.path, slab, true); });
    good = watch_until(members, 90, [] { return shared->returned.load() > 0; });
    if (good) good = watch_until(members, seconds * 20 + 60, [end = now_s() + seconds / 2] { return now_s() > end; });
    if (!good) std::printf("%s: a process ended badly when another master took over\n", slab);
  }
  shared->stop.store(true);
  const double deadline = now_s() + 60;
  const char* const who[] = {"rank 0", "rank 1", "the scribbler"};
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i] > 0) good = ended_well(members[i], who[i], deadline) && good;
  std::printf("%-22s %8" PRIu64 " words hit, %8" PRIu64 " calls, %7" PRIu64 " failed, %8" PRIu64 " values right, %" PRIu64
              " wrong, %" PRIu64 " calls took long\n",
              slab, shared->words.load(), shared->calls.load(), shared->failed.load(), shared->right.load(), shared->wrong.load(),
              shared->slow.load());
  return good && shared->wrong.load() == 0 && shared->slow.load() == 0 && shared->right.load() > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  checksums = !(argc > 3 && std::string(argv[3]) == "no-checksums");
  shared = shared_between_processes<Shared>();
  bool good = true;
  for (const char* slab : kSlabs)
    if (checksums || std::string(slab) == "nanomc heap") good = run(slab, seconds) && good;
  if (!good) std::printf("FAIL seed %" PRIu64 "\n", seed);
  return good ? 0 : 1;
}
