// The machine's clock is set back and forth while a tier is open and while it is closed: what is found, and what is gone, does not depend
// on it. The library asks this program for the time.
#include <atomic>
#include <ctime>
#include <string>

#include <sys/syscall.h>
#include <unistd.h>

#include "../support/tier_check.hpp"

namespace {
std::atomic<int64_t> shift_s{0}, asked{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const long done = syscall(SYS_clock_gettime, clock, time);
  if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += shift_s.load();
    asked.fetch_add(1);
  }
  return static_cast<int>(done);
}

namespace {

constexpr int64_t kDay = 86400, kYear = 366 * kDay;
constexpr unsigned kKeys = 6;

// When the directory says that it was made.
int64_t made_at(const std::string& path) {
  std::ifstream head(path + "/SUPER", std::ios::binary);
  unsigned char bytes[32] = {};
  head.read(reinterpret_cast<char*>(bytes), sizeof bytes);
  REQUIRE(head.good());
  uint64_t seconds = 0;
  for (int i = 7; i >= 0; --i) seconds = seconds << 8 | bytes[24 + i];
  return static_cast<int64_t>(seconds);
}

std::string key_of(unsigned number) { return "key " + std::to_string(number); }

// Keys that should be there, with their values, and no other one of these.
void check_all(nmc_store_t* store, const std::map<std::string, std::string>& model) {
  for (unsigned i = 0; i < kKeys; ++i) {
    const auto there = model.find(key_of(i));
    const uint32_t state = state_of(store, key_of(i));
    if (there == model.end()) CHECK(state == NMC_OBJECT_ABSENT);
    else CHECK(state != NMC_OBJECT_ABSENT && get(store, key_of(i)) == there->second);
  }
}

// One life of a store after the other, each begun at another time; in each the clock is set twice.
void lives(uint32_t backend) {
  TierDir dir;
  std::map<std::string, std::string> model;
  uint64_t seed = 0;
  const int64_t times[] = {0, -kDay, 10 * kYear, -10 * kYear, -100 * kYear, 0};
  for (const int64_t time : times) {
    shift_s = time;
    Embedded store;
    nmc_tier_config_t config = tier_config(dir.path);
    config.backend = backend;
    config.capacity_bytes = 64 << 20;
    config.eviction = NMC_EVICT_LRU;
    config.promote_after = 2;
    config.flags = 0;
    config.heartbeat_ms = 5;
    OpenTier tier(store, config);
    CHECK(tier_stats(tier).recovered_objects == model.size());
    check_all(store, model);
    for (const int64_t further : {-2 * kDay, kYear}) {
      for (unsigned i = 0; i < kKeys; ++i) {
        const std::string key = key_of(i);
        if ((seed + i) % 3 == 0) {
          if (model.erase(key) != 0) OK(nmc_store_remove(store, bytes_of(key)));
          continue;
        }
        model[key] = value_of(++seed, 3000 * (i + 1));
        nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
        options.flags = NMC_PUT_REPLACE;
        CHECK(put(store, key, model[key], &options) == NMC_OK);
        shift_s += further;
      }
      offload(tier);
      evict(store);
      check_all(store, model);
      ++seed;
    }
    OK(nmc_tier_sync(tier));
    const nmc_tier_stats_t stats = tier_stats(tier);
    CHECK(stats.corrupt == 0 && stats.degraded == 0 && stats.evicted == 0);
  }
}

}  // namespace

int main() {
  promise("control: the library takes the time from here");
  {
    TierDir dir;
    shift_s = -10 * kYear;
    Embedded store;
    OpenTier tier(store, dir.path);
    struct timespec now = {};
    REQUIRE(clock_gettime(CLOCK_REALTIME, &now) == 0);
    CHECK(made_at(dir.path) <= now.tv_sec && made_at(dir.path) > now.tv_sec - 600 && asked > 1);
  }
  promise("whenever it is, what was stored is found and what was removed is gone");
  for (const uint32_t backend : {NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET}) lives(backend);
  return finish();
}
