// What a process may use is little: files must not grow, or there is no descriptor left. Calls say so, nobody is killed for it, and
// everything goes on when there is more.
#include <fcntl.h>
#include <sys/resource.h>

#include "../support/tier_check.hpp"

namespace {

// A soft limit that is lower for a while.
class Lower {
 public:
  Lower(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    REQUIRE(getrlimit(resource_, &before_) == 0);
    const rlimit now{value, before_.rlim_max};
    REQUIRE(setrlimit(resource_, &now) == 0);
  }
  ~Lower() { CHECK(setrlimit(resource_, &before_) == 0); }
  Lower(const Lower&) = delete;
  Lower& operator=(const Lower&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

std::string key_of(int number) { return "key-" + std::to_string(number); }
std::string value_at(int number) { return value_of(static_cast<size_t>(number), 5000); }

void file_sizes(rlim_t longest) {
  printf("files of %lu bytes at most\n", static_cast<unsigned long>(longest));
  TierDir dir;
  Embedded store;
  promise("a_tier_that_must_not_write_is_not_opened");
  {
    const Lower limit(RLIMIT_FSIZE, longest);
    const nmc_tier_config_t config = tier_config(dir.path);
    nmc_tier_t* tier = nullptr;
    CHECK(nmc_tier_open(store, &config, &tier) == NMC_ERR_LIMIT && tier == nullptr);
    CHECK(std::string(nmc_last_error_message()).find("ulimit -f") != std::string::npos);
  }
  promise("what_is_removed_while_files_must_not_grow_is_gone_and_said_not_to_be_safe");
  {
    OpenTier tier(store, dir.path);
    for (int i = 0; i < 20; ++i) OK(put(store, key_of(i), value_at(i)));
    CHECK(offload(tier) == 20);
    evict(store);
    OK(put(store, "memory", value_at(20)));
    {
      const Lower limit(RLIMIT_FSIZE, longest);
      GIVES(nmc_store_remove(store, bytes_of(key_of(0))), NMC_ERR_IO);
      CHECK(state_of(store, key_of(0)) == NMC_OBJECT_ABSENT);
      uint64_t written = 0;
      CHECK(nmc_tier_offload(tier, nullptr, 0, &written) == NMC_ERR_LIMIT && written == 0);
      const std::string one = "memory";
      const nmc_slice_t key = bytes_of(one);
      CHECK(nmc_tier_offload(tier, &key, 1, &written) == NMC_ERR_LIMIT && written == 0);
      CHECK(nmc_tier_sync(tier) == NMC_ERR_LIMIT);
      CHECK(nmc_tier_evict(tier, 0, &written) == NMC_ERR_LIMIT);
      CHECK(tier_stats(tier).degraded == 0);
      for (int i = 1; i < 20; ++i) CHECK(get(store, key_of(i)) == value_at(i));
    }
    promise("it_goes_on_when_they_may_grow_again");
    OK(nmc_store_remove(store, bytes_of(key_of(1))));
    OK(nmc_tier_sync(tier));
    CHECK(offload(tier) == 1);
    CHECK(tier_stats(tier).objects == 19);
  }
  Embedded next;
  const OpenTier tier(next, dir.path);
  for (int i = 0; i < 20; ++i) CHECK(state_of(next, key_of(i)) == (i < 2 ? NMC_OBJECT_ABSENT : NMC_OBJECT_ON_DISK));
  CHECK(get(next, "memory") == value_at(20));
}

void puts_that_wait(rlim_t longest) {
  promise("a_put_that_waits_for_the_disk_says_that_files_must_not_grow");
  TierDir dir;
  Embedded store;
  nmc_tier_config_t config = tier_config(dir.path);
  config.flags = NMC_TIER_WRITE_THROUGH;
  const OpenTier tier(store, config);
  OK(put(store, "before", value_at(0)));
  {
    const Lower limit(RLIMIT_FSIZE, longest);
    GIVES(put(store, "meanwhile", value_at(1)), NMC_ERR_LIMIT);
  }
  OK(put(store, "later", value_at(2)));
  CHECK(get(store, "before") == value_at(0) && get(store, "later") == value_at(2));
}

void descriptors(uint32_t backend) {
  printf("backend %u\n", backend);
  constexpr int kBuckets = 24;
  promise("files_that_are_kept_open_make_way_for_others");
  TierDir dir;
  Embedded store;
  nmc_tier_config_t config = tier_config(dir.path);
  config.backend = backend;
  OpenTier tier(store, config);
  for (int i = 0; i < kBuckets; ++i) {
    OK(put(store, key_of(i), value_at(i)));
    CHECK(offload(tier) == 1);
  }
  evict(store);
  for (int i = 0; i < kBuckets / 2; ++i) CHECK(get(store, key_of(i)) == value_at(i));
  const Lower limit(RLIMIT_NOFILE, 256);
  std::vector<int> mine;
  for (int fd = 0; fd >= 0;) {
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) mine.push_back(fd);
  }
  CHECK(errno == EMFILE);
  for (int i = kBuckets - 1; i >= 0; --i) CHECK(get(store, key_of(i)) == value_at(i));
  uint64_t cursor = 0;
  char key[64];
  int found = 0;
  size_t length = 0;
  uint64_t bytes = 0;
  while (nmc_store_next(store, &cursor, key, sizeof key, &length, &bytes) == NMC_OK) ++found;
  CHECK(found == kBuckets);
  for (const int fd : mine) close(fd);
}

}  // namespace

int main() {
  for (const rlim_t longest : {0, 1}) {
    file_sizes(longest);
    puts_that_wait(longest);
  }
  for (const uint32_t backend : {NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE}) descriptors(backend);
  return finish();
}
