// A history that must be explained. Ranks put, replace, remove (one, by prefix, all), prefetch and read the same few keys in two namespaces of a store with a tier, in
// heaps that are much too small, over a disk that is too small as well and evicts, while the owner of the tier, which is the master of the store, is killed again and again: at random
// moments, or at named points inside the library. Whoever reads a value says when; then every read is compared with everything
// that was written and taken away.
//
// A value may be lost, as in any cache. But what is read must be whole, must have been written to this key before the read ended,
// and must not have been replaced, removed or flushed by a call that began after it was written and returned before the
// read began. Nor may it be older than what somebody had read before. Some owners are killed once more while they recover.
// usage: history KILLS [SEED] [lost|all] [SECONDS]
//   The seed says which backend the tier has, and whether puts wait for the disk.
//   `all` kills every process each time, so that only the disk is left. `lost` puts an older journal back before the owner
//   begins anew, as if marks were not written before the answer: a removed value comes back, and the check must see it.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <fstream>
#include <map>

namespace {

constexpr uint32_t RANKS = 3, PAGE = 4096, HEAP_PAGES = 48;
constexpr uint32_t KEYS = 12;
constexpr size_t EVENTS = 1 << 22;  // memory is taken for those that happen
constexpr uint64_t NOTHING = 0;

const char* const POINTS[] = {"tier.created", "tier.written",       "tier.synced",        "tier.renamed",     "tier.sealed", "tier.gone", "tier.condemned",
                              "master.disk_filled", "master.disk_ended", "master.disk_stored", "evictor.killed", "master.shown"};
constexpr size_t N_POINTS = sizeof POINTS / sizeof *POINTS;
// To which an owner comes while it opens the tier.
const char* const OPENING[] = {"tier.resumed", "tier.scanned", "tier.attached"};
constexpr size_t N_OPENING = sizeof OPENING / sizeof *OPENING;

enum Op : uint32_t { WRITE, END, READ };
// What a call did, as far as its caller knows.
enum Sure : uint32_t { YES, MAYBE };

struct Event {
  double began, ended;
  Op op;
  Sure sure;
  uint32_t key;
  uint64_t stamp;  // what was written or read
};
struct Shared {
  std::atomic<uint32_t> wish;  // 1: go on, 2: leave
  std::atomic<uint32_t> up[RANKS];
  // Set where the journal lies: then records that are gone are found corrupt, and that is the truth.
  std::atomic<bool> lying;
  std::atomic<uint64_t> next_stamp, count, torn, unavailable, from_disk, opened, fetched;
  Event events[EVENTS];
  char text[400];
};
Shared* shared;

void fail(const char* what, nmc_status_t status) {
  std::snprintf(shared->text, sizeof shared->text, "%s: %s: %s", what, nmc_status_name(status), nmc_last_error_message());
}

void note(const Event& event) {
  const uint64_t at = shared->count.fetch_add(1);
  if (at < EVENTS) shared->events[at] = event;
}

std::string key_of(uint32_t key) { return "key number " + std::to_string(key); }

// The sizes go from one block to many pages.
size_t bytes_of_stamp(uint64_t stamp) {
  static const size_t sizes[] = {40, 3000, 4096, 9000, 20000, 40000};
  return sizes[stamp % 6];
}

// A key is in one of two namespaces.
uint32_t space_of(uint32_t key) { return key % 2; }
constexpr uint32_t SPACES = 2;

struct Place {
  OwnDir dir;
  std::string tier() const { return dir.path + "/tier"; }
};

bool away(nmc_status_t status) {
  return status == NMC_ERR_UNAVAILABLE || status == NMC_ERR_TIMEOUT || status == NMC_ERR_STALE || status == NMC_ERR_PROTOCOL ||
         status == NMC_ERR_PEER_LOST || status == NMC_ERR_CANCELLED;
}

void act(nmc_store_t* const* spaces, Random& random, std::vector<unsigned char>& buffer) {
  const uint32_t number = static_cast<uint32_t>(random.below(KEYS));
  nmc_store_t* const store = spaces[space_of(number)];
  const std::string name = key_of(number);
  const nmc_slice_t key = slice(name);
  Event event{now_s(), 0, READ, YES, number, NOTHING};
  const uint64_t dice = random.below(20);
  if (dice < 6) {
    const uint64_t stamp = shared->next_stamp.fetch_add(1);
    buffer.resize(bytes_of_stamp(stamp));
    std::memcpy(buffer.data(), &stamp, 8);
    make_value(stamp, 8, buffer.data() + 8, buffer.size() - 8);
    nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
    const bool replaces = dice < 3;
    if (replaces) options.flags |= NMC_PUT_REPLACE;
    const nmc_status_t status = nmc_store_put(store, key, buffer.data(), buffer.size(), &options);
    event.ended = now_s();
    event.stamp = stamp;
    if (status == NMC_OK || away(status) || status == NMC_ERR_IO || status == NMC_ERR_NO_SPACE) {
      event.op = WRITE;
      event.sure = status == NMC_OK ? YES : MAYBE;
      note(event);
    }
    if (away(status)) ++shared->unavailable;
  } else if (dice < 8) {
    // What begins with "" is all, with "key number 1" a few.
    const bool all = random.one_in(600), some = !all && random.one_in(20);
    const std::string prefix = all ? "" : name;
    const nmc_status_t status = all    ? nmc_store_remove_all(store)
                                : some ? nmc_store_remove_by_prefix(store, key, nullptr)
                                       : nmc_store_remove(store, key);
    event.ended = now_s();
    event.op = END;
    for (uint32_t other = 0; status == NMC_OK && other < KEYS; ++other) {
      const bool meant = all || some ? key_of(other).rfind(prefix, 0) == 0 && space_of(other) == space_of(number) : other == number;
      event.key = other;
      if (meant) note(event);
    }
    if (away(status)) ++shared->unavailable;
  } else {
    buffer.resize(65536);
    size_t bytes = 0;
    const nmc_status_t status = nmc_store_get(store, key, buffer.data(), buffer.size(), &bytes);
    event.ended = now_s();
    if (status == NMC_OK) {
      std::memcpy(&event.stamp, buffer.data(), 8);
      const bool whole = bytes == bytes_of_stamp(event.stamp) && is_value(event.stamp, 8, buffer.data() + 8, bytes - 8);
      if (!whole) {
        ++shared->torn;
        std::snprintf(shared->text, sizeof shared->text, "a torn value of %zu bytes of key %u", bytes, number);
      }
      note(event);
    }
  }
}

// Brings a few keys back into memory, through the rank's own handle.
void prefetch(nmc_store_t* store, nmc_tier_t* tier, Random& random) {
  nmc_tier_t* handle = tier;
  if (handle == nullptr && nmc_tier_open(store, nullptr, &handle) != NMC_OK) return;
  std::vector<std::string> names;
  for (uint64_t i = random.below(4) + 1; i-- > 0;) names.push_back(key_of(static_cast<uint32_t>(random.below(KEYS))));
  std::vector<nmc_slice_t> keys;
  for (const std::string& name : names) keys.push_back(slice(name));
  std::vector<nmc_status_t> statuses(keys.size(), 77);
  nmc_tier_prefetch(handle, keys.data(), keys.size(), statuses.data());
  for (const nmc_status_t status : statuses) {
    shared->fetched += status == NMC_OK;
    const bool known = status == NMC_OK || status == NMC_NOT_READY || status == NMC_ERR_NOT_FOUND || status == NMC_ERR_NO_SPACE ||
                       status == NMC_ERR_IO || status == NMC_ERR_BUSY || away(status) ||
                       (status == NMC_ERR_CORRUPT && shared->lying.load());
    if (!known) fail("prefetch", status), ++shared->torn;
  }
  if (random.one_in(4)) nmc_tier_offload(handle, keys.data(), keys.size(), nullptr);
  if (handle != tier) nmc_tier_close(handle);
}

// How the tier is made: the same in all lives.
struct Kind {
  uint32_t backend;
  bool through;
};

int rank_body(uint32_t rank, const std::string& dir, const std::string& tier_dir, const Kind& kind, uint64_t seed, const std::string& point) {
  if (!point.empty()) setenv("NMC_CRASH_POINT", point.c_str(), 1);
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = nmc_slice_t{"history", 7};
  config.dir = slice(dir);
  config.rank = static_cast<int32_t>(rank);
  config.world_size = RANKS;
  config.heap_bytes = HEAP_PAGES * PAGE;
  config.join_timeout_ms = 120000;
  nmc_world_t* world = nullptr;
  nmc_status_t status = nmc_world_join(&config, &world);
  if (status != NMC_OK) return fail("join", status), 1;
  nmc_store_config_t wish = NMC_STORE_CONFIG_INIT;
  wish.page_bytes = PAGE;
  wish.max_objects = 256;
  wish.attach_timeout_ms = 120000;
  wish.call_timeout_ms = 500;
  nmc_store_t* store = nullptr;
  status = nmc_store_create(world, &wish, &store);
  if (status != NMC_OK) return fail("create", status), 1;
  nmc_store_t* spaces[SPACES] = {store};
  status = nmc_store_namespace(store, nmc_slice_t{"other", 5}, 0, &spaces[1]);
  if (status != NMC_OK) return fail("namespace", status), 1;
  nmc_tier_t* tier = nullptr;
  if (rank == 0) {
    nmc_tier_config_t own = NMC_TIER_CONFIG_INIT;
    own.directory = slice(tier_dir);
    own.max_objects = 4096;
    own.bucket_keys = 6;
    own.heartbeat_ms = 5;
    own.capacity_bytes = 1 << 20;
    own.eviction = seed % 2 == 0 ? NMC_EVICT_FIFO : NMC_EVICT_LRU;
    own.promote_after = 3;
    own.backend = kind.backend;
    if (kind.through) own.flags |= NMC_TIER_WRITE_THROUGH;
    status = nmc_tier_open(store, &own, &tier);
    if (status != NMC_OK) return fail("open the tier", status), 1;
    ++shared->opened;
  }
  shared->up[rank] = 1;
  // What is stored before the tier is there is not compared with it.
  while (shared->up[0].load() == 0) pause_us(1000);
  Random random(seed * 977 + rank);
  std::vector<unsigned char> buffer;
  while (shared->wish.load() != 2) {
    act(spaces, random, buffer);
    if (random.one_in(64)) pause_us(200);
    if (rank == 0 && random.one_in(30)) nmc_tier_offload(tier, nullptr, 0, nullptr);
    if (rank == 0 && random.one_in(300)) nmc_tier_evict(tier, random.below(1 << 19), nullptr);
    if (random.one_in(20)) random.one_in(2) ? prefetch(store, tier, random) : prefetch(spaces[1], nullptr, random);
    if (rank == 0 && random.one_in(40)) nmc_store_evict_until_below(store, static_cast<int32_t>(random.below(RANKS)), 0.0);
    if (rank != 0 && random.one_in(500)) {
      nmc_tier_t* handle = nullptr;
      if (nmc_tier_open(store, nullptr, &handle) == NMC_OK) {
        nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
        if (nmc_tier_stats(handle, &stats) == NMC_OK) shared->from_disk = std::max(shared->from_disk.load(), stats.read_objects);
        nmc_tier_close(handle);
      }
    }
  }
  if (tier != nullptr) nmc_tier_close(tier);
  for (nmc_store_t* space : {spaces[1], store}) nmc_store_destroy(space);
  nmc_world_finalize(world);
  nmc_world_destroy(world);
  return 0;
}

// What is wrong with the history; empty if nothing is. `all` processes were killed each time: what somebody has read of a call that
// was never answered may be gone then.
std::string judge(bool all) {
  const size_t n = std::min<uint64_t>(shared->count.load(), EVENTS);
  std::map<uint64_t, const Event*> writes;
  std::vector<std::vector<const Event*>> by_key(KEYS);
  for (size_t i = 0; i < n; ++i) {
    const Event& event = shared->events[i];
    if (event.ended == 0) continue;  // its process died before it had noted all of it
    if (event.op == WRITE) writes[event.stamp] = &event;
    by_key[event.key].push_back(&event);
  }
  char text[400];
  for (uint32_t key = 0; key < KEYS; ++key) {
    std::vector<const Event*> ends;
    std::vector<std::pair<const Event*, const Event*>> reads;  // with what was read
    for (const Event* event : by_key[key]) {
      if (event->op == END || (event->op == WRITE && event->sure == YES)) ends.push_back(event);
      if (event->op != READ) continue;
      const auto found = writes.find(event->stamp);
      if (found == writes.end()) continue;  // its writer died in the call; nobody can say when it was written
      if (found->second->key != key) return "a value of another key";
      if (found->second->began > event->ended) return "a value from the future";
      reads.emplace_back(event, found->second);
    }
    // Of all calls that began late enough, the one that ended first.
    std::sort(ends.begin(), ends.end(), [](const Event* a, const Event* b) { return a->began < b->began; });
    std::vector<const Event*> first(ends.size());
    for (size_t i = ends.size(); i-- > 0;) {
      first[i] = i + 1 < ends.size() && first[i + 1]->ended < ends[i]->ended ? first[i + 1] : ends[i];
    }
    for (const auto& [read, write] : reads) {
      if (write->sure != YES) continue;
      const auto late = std::upper_bound(ends.begin(), ends.end(), write->ended, [](double at, const Event* end) { return at < end->began; });
      if (late == ends.end()) continue;
      const Event* end = first[static_cast<size_t>(late - ends.begin())];
      if (end->ended < read->began) {
        std::snprintf(text, sizeof text, "key %u: value %" PRIu64 " was written at %.6f, ended by %s %" PRIu64 " at %.6f..%.6f, and read at %.6f", key,
                      read->stamp, write->ended, end->op == END ? "a removal" : "value", end->stamp, end->began, end->ended, read->began);
        return text;
      }
    }
    // Of all reads that ended early enough, the one that saw what was written last.
    std::sort(reads.begin(), reads.end(), [](const auto& a, const auto& b) { return a.first->ended < b.first->ended; });
    std::vector<const Event*> newest;
    for (const auto& [read, write] : reads) {
      const bool counts = !all || write->sure == YES;
      const Event* before = newest.empty() ? nullptr : newest.back();
      newest.push_back(counts && (before == nullptr || before->began < write->began) ? write : before);
    }
    for (const auto& [read, write] : reads) {
      if (write->sure != YES) continue;
      const auto early = std::lower_bound(reads.begin(), reads.end(), read->began, [](const auto& other, double at) { return other.first->ended < at; });
      const Event* newer = early == reads.begin() ? nullptr : newest[static_cast<size_t>(early - reads.begin()) - 1];
      if (newer != nullptr && write->ended < newer->began) {
        std::snprintf(text, sizeof text, "key %u: value %" PRIu64 " was read after %" PRIu64 ", which is newer", key, read->stamp, newer->stamp);
        return text;
      }
    }
  }
  return "";
}

std::map<std::string, std::string> journals(const std::string& dir) {
  std::map<std::string, std::string> found;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(dir, ignored)) {
    const std::string name = file.path().filename();
    if (name.rfind("journal.", 0) != 0) continue;
    std::ifstream in(file.path(), std::ios::binary);
    found[name] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return found;
}

// Wherever the journal is by now, it says what it said then.
void put_back(const std::string& dir, const std::map<std::string, std::string>& former) {
  for (const auto& [name, text] : journals(dir)) {
    const auto before = former.find(name);
    if (before != former.end()) std::ofstream(dir + "/" + name, std::ios::binary) << before->second;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int kills = argc > 1 ? std::atoi(argv[1]) : 20;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string way = argc > 3 ? argv[3] : "";
  const double seconds = argc > 4 ? std::atof(argv[4]) : 600;
  const bool lost = way == "lost", all = way == "all" || lost;
  shared = shared_between_processes<Shared>();
  shared->next_stamp = 1;
  shared->wish = 1;
  shared->lying = lost;
  Place place;
  Random random(seed);
  const uint32_t backends[] = {NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET};
  const Kind kind{backends[seed % 3], seed / 3 % 3 == 2};
  std::vector<pid_t> pids(RANKS, -1);
  const std::string point_file = place.dir.path + "/point";
  const double over = now_s() + seconds;
  uint64_t lives = 0;
  const auto start = [&](uint32_t rank) {
    shared->up[rank] = 0;
    const uint64_t own = seed + ++lives * 1000;
    const std::string point = rank == 0 && !all ? "@" + point_file : "";
    pids[rank] = start_member([&, rank, own, point] { return rank_body(rank, place.dir.path, place.tier(), kind, own, point); });
  };
  const auto is_up = [&] {
    for (auto& up : shared->up)
      if (up.load() == 0) return false;
    return true;
  };
  const auto complain = [&](const std::string& what) {
    std::printf("FAIL seed %" PRIu64 ": %s %s\n", seed, what.c_str(), shared->text);
    end_all(pids);
    return 1;
  };
  for (uint32_t rank = 0; rank < RANKS; ++rank) start(rank);
  int done = 0, in_recovery = 0;
  std::string wrong;
  for (; done < kills && now_s() < over && wrong.empty(); ++done) {
    if (!watch_until(pids, 120, is_up)) return complain("ranks do not come up");
    const auto former = journals(place.tier());
    pause_us(static_cast<long>(random.below(all ? 200000 : 60000)) + 20000);
    if (!all && random.one_in(2)) {
      // At a point, if it comes there soon.
      std::ofstream(point_file) << POINTS[random.below(N_POINTS)] << ":" << 1 + random.below(3);
      for (int wait = 0; wait < 100 && waitpid(pids[0], nullptr, WNOHANG) == 0; ++wait) pause_us(2000);
      std::ofstream(point_file) << "";
    }
    for (uint32_t rank = 0; rank < (all ? RANKS : 1); ++rank) {
      kill(pids[rank], SIGKILL);
      waitpid(pids[rank], nullptr, 0);
      pids[rank] = -1;
    }
    if (lost) put_back(place.tier(), former);
    const bool twice = !lost && random.one_in(3);
    if (twice) {
      // At a point of the recovery, which it comes to once, or a moment after it began.
      if (!all) std::ofstream(point_file) << OPENING[random.below(N_OPENING)] << ":1";
      for (uint32_t rank = 0; rank < (all ? RANKS : 1); ++rank) start(rank);
      const uint64_t before = shared->opened.load();
      bool died = false;
      const double late = now_s() + (all ? static_cast<double>(random.below(60)) / 1000 : 30);
      while (!died && now_s() < late && shared->opened.load() == before) {
        died = waitpid(pids[0], nullptr, WNOHANG) != 0;
        pause_us(500);
      }
      in_recovery += shared->opened.load() == before;
      std::ofstream(point_file) << "";
      for (uint32_t rank = 0; rank < (all ? RANKS : 1); ++rank) {
        if (rank != 0 || !died) {
          kill(pids[rank], SIGKILL);
          waitpid(pids[rank], nullptr, 0);
        }
        pids[rank] = -1;
      }
    }
    for (uint32_t rank = 0; rank < (all ? RANKS : 1); ++rank) start(rank);
    if (shared->torn.load() != 0) return complain("torn");
    if (lost || done % 16 == 15) wrong = judge(all);
  }
  if (!watch_until(pids, 120, is_up)) return complain("ranks do not come up");
  shared->wish = 2;
  const bool left = watch_until(pids, 120, [&] { return std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return pid < 0; }); });
  if (!left) return complain("ranks do not leave");
  if (wrong.empty()) wrong = judge(all);
  if (lost) {
    std::printf("%s: %s\n", wrong.empty() ? "FAIL: nothing was noticed" : "PASS, noticed", wrong.c_str());
    return wrong.empty() ? 1 : 0;
  }
  if (!wrong.empty()) return complain(wrong);
  if (shared->count.load() > EVENTS) return complain("more events than can be judged: fewer kills at a time, please");
  if (kills >= 20 && in_recovery == 0) return complain("no owner was killed while it recovered");
  std::printf("backend %u%s: %d kills, %d more while the owner recovered, %" PRIu64 " events, %" PRIu64 " calls while the master was away, tier opened %" PRIu64 " times, %" PRIu64 " times found in memory after a prefetch, a rank read %" PRIu64 " values from disk\n", kind.backend,
              kind.through ? ", written through" : "", done, in_recovery,
              shared->count.load(), shared->unavailable.load(), shared->opened.load(), shared->fetched.load(), shared->from_disk.load());
  std::printf("PASS\n");
  return 0;
}
