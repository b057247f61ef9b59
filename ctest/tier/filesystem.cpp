// File systems that others use too, and that break: one that somebody fills, at the worst time as well, one that its disk makes read-only, and one
// that is gone. On a real ext4, for every backend: what each call says, what the statistics tell, what can be read all the while, and what is
// there when the trouble is over. Nothing is ever wrong, and nothing hangs.
// usage: filesystem [SECONDS]   so long does somebody fill the file system again and again, for each backend
#include <poll.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>

#include <cinttypes>
#include <functional>

#include "../support/crew.hpp"
#include "../support/ext4.hpp"
#include "../support/random.hpp"
#include "../support/tier_check.hpp"

namespace {

constexpr uint32_t kBackends[] = {NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET};
constexpr const char* kWords[] = {"bucket", "file-per-key", "offset"};
constexpr uint32_t kMib = 64;
constexpr double kTime = 100;
constexpr uint64_t kValues = 40;

// The body in a process of its own, which ends well and in time.
void alone(const std::function<void()>& body, double seconds = 0) {
  std::vector<pid_t> one = {start_member([&body] {
    failed_checks = 0;
    body();
    return failed_checks != 0 ? 1 : 0;
  })};
  CHECK(watch_until(one, seconds + (under_tool() ? 4 * kTime : kTime), [&one] { return one[0] < 0; }));
  end_all(one);
}

std::string key_of(const char* prefix, uint64_t i) { return prefix + std::to_string(i); }
// From less than a block to many.
size_t size_of(uint64_t i) { return i % 5 == 0 ? 100 : i % 5 == 1 ? 4096 : 20001 + 1000 * (i % 7); }
std::string value(uint64_t i) { return value_of(i, size_of(i)); }

void put_all(nmc_store_t* store, const char* prefix, uint64_t n = kValues) {
  for (uint64_t i = 0; i < n; ++i) OK(put(store, key_of(prefix, i), value(i)));
}
bool all_right(nmc_store_t* store, const char* prefix, uint64_t from = 0, uint64_t to = kValues) {
  for (uint64_t i = from; i < to; ++i) {
    if (!CHECK(get(store, key_of(prefix, i)) == value(i))) return false;
  }
  return true;
}

nmc_tier_config_t config_of(const std::string& path, uint32_t backend, uint32_t flags = NMC_TIER_PAUSED) {
  nmc_tier_config_t config = tier_config(path);
  config.backend = backend;
  config.bucket_keys = 8;
  config.flags = flags;
  config.capacity_bytes = backend == NMC_TIER_BACKEND_OFFSET ? 16 << 20 : 0;
  return config;
}
constexpr StoreSetup kRoom = {4096};  // pages: 16 MiB

// ------------------------------------------------------------------------------------------------------------- full --

// Somebody else's file, which leaves about so many bytes of a file system.
class Foreign {
 public:
  explicit Foreign(const std::string& folder) : path_(folder + "/somebody else's"), folder_(folder) {}
  ~Foreign() { take_away(); }
  void fill(uint64_t left) {
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    // What a file system says is free is not always to be had in one go.
    for (int i = 0; i < 8 && free_bytes() > left; ++i) {
      struct stat now;
      REQUIRE(fstat(fd, &now) == 0);
      (void)!fallocate(fd, 0, 0, now.st_size + static_cast<off_t>(free_bytes() - left));
    }
    close(fd);
  }
  void take_away() { unlink(path_.c_str()); }
  uint64_t free_bytes() const {
    struct statvfs found;
    REQUIRE(statvfs(folder_.c_str(), &found) == 0);
    return found.f_bavail * found.f_frsize;
  }

 private:
  std::string path_, folder_;
};

constexpr uint64_t kLeft = 2 << 20;

void full(const Ext4& disk, uint32_t backend) {
  const std::string path = disk.path() + "/tier";
  const bool reserved = backend == NMC_TIER_BACKEND_OFFSET;  // its space from the beginning
  Foreign foreign(disk.path());
  Embedded store(kRoom);
  OpenTier tier(store, config_of(path, backend));
  put_all(store, "before/");
  CHECK(offload(tier) == kValues);
  evict(store);
  foreign.fill(kLeft);
  printf("     %.1f MiB are left\n", static_cast<double>(foreign.free_bytes()) / (1 << 20));

  promise("a_file_system_that_somebody_has_filled_takes_no_more_and_says_so");
  put_all(store, "full/");
  uint64_t written = 77;
  const nmc_status_t said = nmc_tier_offload(tier, nullptr, 0, &written);
  if (reserved) CHECK(said == NMC_OK && written == kValues && tier_stats(tier).full == 0);
  else CHECK(said == NMC_ERR_NO_SPACE && written == 77 && tier_stats(tier).full > 0);
  CHECK(tier_stats(tier).degraded == 0 && tier_stats(tier).errors == 0);
  CHECK(tier_stats(tier).objects == (reserved ? 2 : 1) * kValues);
  const nmc_slice_t one = slice_of("full/3");
  GIVES(nmc_tier_offload(tier, &one, 1, nullptr), reserved ? NMC_OK : NMC_ERR_NO_SPACE);

  promise("what_is_there_is_read_and_removed_as_ever");
  all_right(store, "before/");
  all_right(store, "full/");
  OK(nmc_store_remove(store, slice_of("before/0")));
  nmc_put_options_t replace = NMC_PUT_OPTIONS_INIT;
  replace.flags = NMC_PUT_REPLACE;
  OK(put(store, "before/1", "another one", &replace));
  OK(nmc_tier_sync(tier));
  CHECK(get(store, "before/0") == "<NMC_ERR_NOT_FOUND>" && get(store, "before/1") == "another one");
  CHECK(verified(tier).corrupt == 0 && tier_stats(tier).degraded == 0);

  promise("when_there_is_room_again_it_goes_on_without_being_opened_anew");
  foreign.take_away();
  OK(nmc_tier_offload(tier, nullptr, 0, &written));
  CHECK(written == (reserved ? 1 : kValues + 1));
  evict(store);
  all_right(store, "before/", 2);
  all_right(store, "full/");
  CHECK(get(store, "before/1") == "another one");
  CHECK(verified(tier).objects == 2 * kValues - 1 && tier_stats(tier).degraded == 0);
}

// What was there when the last process closed.
void look_after_full(const Ext4& disk, uint32_t backend) {
  Embedded store(kRoom);
  Foreign foreign(disk.path());
  promise("where_there_is_no_room_for_a_new_journal_it_is_not_opened_and_nothing_is_changed");
  foreign.fill(kLeft);
  nmc_tier_t* none = nullptr;
  const std::string path = disk.path() + "/tier", other = disk.path() + "/other";
  nmc_tier_config_t config = config_of(path, backend);
  GIVES(nmc_tier_open(store, &config, &none), NMC_ERR_NO_SPACE);
  config = config_of(other, backend);
  GIVES(nmc_tier_open(store, &config, &none), NMC_ERR_NO_SPACE);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(other)) names.push_back(entry.path().filename());
  CHECK(names == std::vector<std::string>{"LOCK"});
  std::filesystem::remove_all(other);
  foreign.take_away();

  promise("what_was_acknowledged_is_there_when_it_is_opened_again");
  OpenTier tier(store, config_of(path, backend));
  CHECK(tier_stats(tier).objects == 2 * kValues - 1 && tier_stats(tier).torn == 0);
  all_right(store, "before/", 2);
  all_right(store, "full/");
  CHECK(get(store, "before/0") == "<NMC_ERR_NOT_FOUND>" && get(store, "before/1") == "another one");
}

// Takes all that is left of a file system, again and again, and gives it back: at any time, and when something is made in a directory, so that whoever
// has just looked how much there is runs into the end.
int fill_now_and_then(const std::string& folder, const std::string& watched) {
  Foreign foreign(folder);
  Random random(7);
  const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  for (int watch = -1;;) {
    if (watch < 0) watch = inotify_add_watch(events, watched.c_str(), IN_CREATE);
    char buffer[4096];
    while (read(events, buffer, sizeof buffer) > 0) {
    }
    pause_us(static_cast<long>(random.below(4000)));
    pollfd event{events, POLLIN, 0};
    if (random.one_in(4) == 0) (void)poll(&event, 1, 20);
    foreign.fill(random.one_in(2) ? 0 : random.below(1 << 20));
    pause_us(static_cast<long>(random.below(3000)));
    foreign.take_away();
  }
}

void filled_now_and_then(const Ext4& disk, uint32_t backend, double seconds) {
  promise("space_that_comes_and_goes_while_values_are_written_harms_none_of_them");
  const std::string path = disk.path() + "/busy";
  std::vector<pid_t> filler = {start_member([&] { return fill_now_and_then(disk.path(), path); })};
  std::map<std::string, uint64_t> safe;
  uint64_t refused = 0, halfway = 0, stamp = 0, missing = 0;
  Embedded store(kRoom);
  {
    nmc_tier_t* opened = nullptr;
    const nmc_tier_config_t config = config_of(path, backend);
    const double deadline = seconds_now() + kTime / 2;
    nmc_status_t status = NMC_ERR_NO_SPACE;
    while ((status = nmc_tier_open(store, &config, &opened)) == NMC_ERR_NO_SPACE && seconds_now() < deadline) {
    }
    REQUIRE(OK(status));
    Random random(8);
    const double end = seconds_now() + seconds;
    while (seconds_now() < end) {
      const uint64_t now = ++stamp;
      const std::string key = key_of("busy/", now % kValues);
      nmc_put_options_t replace = NMC_PUT_OPTIONS_INIT;
      replace.flags = NMC_PUT_REPLACE;
      OK(put(store, key, value(now), &replace));
      safe.erase(key);
      if (random.one_in(9)) {
        const std::string other = key_of("busy/", random.below(kValues));
        const nmc_status_t removed = nmc_store_remove(store, bytes_of(other));
        CHECK(removed == NMC_OK || removed == NMC_ERR_NOT_FOUND);
        safe.erase(other);
      }
      const nmc_slice_t one = bytes_of(key);
      const bool all = random.one_in(3);
      const nmc_status_t written = nmc_tier_offload(opened, all ? nullptr : &one, all ? 0 : 1, nullptr);
      if (written == NMC_OK && state_of(store, key) != NMC_OBJECT_ABSENT) safe[key] = now;
      else if (CHECK(written == NMC_OK || written == NMC_ERR_NO_SPACE)) ++refused, halfway += !error_mentions("are for the tier's journal");
      const nmc_status_t synced = random.one_in(8) ? nmc_tier_sync(opened) : NMC_OK;
      CHECK(synced == NMC_OK || synced == NMC_ERR_NO_SPACE);
      if (random.one_in(16)) evict(store);
      const auto known = safe.find(key_of("busy/", random.below(kValues)));
      if (known != safe.end()) CHECK(get(store, known->first) == value(known->second));
    }
    end_all(filler);
    unlink((disk.path() + "/somebody else's").c_str());
    CHECK(tier_stats(opened).degraded == 0);
    for (const auto& [key, number] : safe) missing += !CHECK(get(store, key) == value(number));
    CHECK(verified(opened).corrupt == 0);
    OK(nmc_tier_close(opened));
  }
  Embedded another(kRoom);
  OpenTier tier(another, config_of(path, backend));
  for (const auto& [key, number] : safe) missing += !CHECK(get(another, key) == value(number));
  CHECK(tier_stats(tier).torn == 0);
  printf("     %" PRIu64 " puts, %" PRIu64 " times no space, %" PRIu64 " of them halfway, %zu values that were safe at the end, %" PRIu64 " of them missing\n", stamp,
         refused, halfway, safe.size(), missing);
}

// --------------------------------------------------------------------------------------------------------- read-only --

// What a tier does whose disk refuses to be written; `reads` tells that it can still be read.
void refuses(nmc_store_t* store, nmc_tier_t* tier, bool reads) {
  nmc_store_t* space = nullptr;
  REQUIRE(OK(nmc_store_namespace(store, slice_of("space"), 0, &space)));
  const auto readable = [&](const std::string& key, const std::string& wanted) {
    std::string found(wanted.size(), 0);
    const nmc_status_t status = nmc_store_get_into(store, bytes_of(key), found.data(), found.size());
    if (reads || status != NMC_ERR_IO) CHECK(OK(status) && found == wanted);
  };
  promise("reads_go_on_and_puts_go_on_in_memory");
  for (uint64_t i = 0; i < kValues; ++i) readable(key_of("a/", i), value(i));
  OK(put(store, "in memory", value(5)));
  CHECK(get(store, "in memory") == value(5));

  promise("what_cannot_be_written_is_an_io_error_and_shows_in_the_statistics");
  GIVES(nmc_tier_offload(tier, nullptr, 0, nullptr), NMC_ERR_IO);
  CHECK(tier_stats(tier).degraded == 1 && tier_stats(tier).errors > 0);
  GIVES(nmc_tier_sync(tier), NMC_ERR_IO);
  GIVES(nmc_tier_evict(tier, 0, nullptr), NMC_ERR_IO);
  CHECK(error_mentions("/tier/"));
  const nmc_slice_t one = slice_of("in memory");
  GIVES(nmc_tier_offload(tier, &one, 1, nullptr), NMC_ERR_IO);

  promise("what_is_removed_or_replaced_is_gone_for_all_that_run_and_said_to_be_unsafe");
  GIVES(nmc_store_remove(store, slice_of("a/0")), NMC_ERR_IO);
  CHECK(get(store, "a/0") == "<NMC_ERR_NOT_FOUND>" && state_of(store, "a/0") == NMC_OBJECT_ABSENT);
  nmc_put_options_t replace = NMC_PUT_OPTIONS_INIT;
  replace.flags = NMC_PUT_REPLACE;
  GIVES(put(store, "a/1", "another one", &replace), NMC_ERR_IO);
  CHECK(get(store, "a/1") == "another one");
  GIVES(nmc_store_remove_all(space), NMC_ERR_IO);
  CHECK(get(space, "key") == "<NMC_ERR_NOT_FOUND>");
  const nmc_slice_t keys[] = {slice_of("a/2"), slice_of("none")};
  nmc_status_t items[2] = {77, 77};
  GIVES(nmc_store_remove_batch(store, keys, 2, items), NMC_ERR_IO);
  // The marks of a batch are written together, so all of it hears.
  CHECK(items[0] == NMC_ERR_IO && items[1] == NMC_ERR_IO && get(store, "a/2") == "<NMC_ERR_NOT_FOUND>");

  promise("everything_else_goes_on");
  OK(nmc_tier_resume(tier));
  OK(nmc_tier_pause(tier));
  const nmc_slice_t some[] = {slice_of("a/3"), slice_of("a/4")};
  const nmc_status_t prefetched = nmc_tier_prefetch(tier, some, 2, nullptr);
  CHECK(prefetched == NMC_OK || (!reads && prefetched == NMC_ERR_IO));
  for (uint64_t i = 3; i < kValues; ++i) readable(key_of("a/", i), value(i));
  for (uint64_t i = 0; i < 2 * kValues; ++i) OK(put(store, key_of("more/", i), value(i)));
  all_right(store, "more/");
  if (reads) CHECK(verified(tier).objects == kValues - 3 && scanned(tier).size() == kValues - 3);
  CHECK(tier_stats(tier).corrupt == 0 && tier_stats(tier).degraded == 1);
  OK(nmc_store_destroy(space));
}

void write_some(nmc_store_t* store, nmc_tier_t* tier) {
  nmc_store_t* space = nullptr;
  REQUIRE(OK(nmc_store_namespace(store, slice_of("space"), 0, &space)));
  put_all(store, "a/");
  OK(put(space, "key", "value"));
  CHECK(offload(tier) == kValues + 1);
  evict(store);
  OK(nmc_store_destroy(space));
}

void read_only(Ext4& disk, uint32_t backend) {
  const std::string path = disk.path() + "/tier";
  Embedded store(kRoom);
  OpenTier tier(store, config_of(path, backend));
  write_some(store, tier);
  promise("a_file_system_on_which_a_tier_is_open_cannot_be_made_read_only_by_hand");
  CHECK(mount(nullptr, disk.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == -1 && errno == EBUSY);
  promise("but_by_an_error_of_its_disk");
  if (!disk.fail()) {
    printf("skipped: this kernel has no trigger_fs_error\n");
    return;
  }
  refuses(store, tier, true);

  promise("it_closes_and_cannot_be_opened_there");
  tier.close();
  CHECK(get(store, "a/9") == "<NMC_ERR_NOT_FOUND>" && get(store, "more/3") == value(3));
  nmc_tier_t* none = nullptr;
  const nmc_tier_config_t config = config_of(path, backend);
  GIVES(nmc_tier_open(store, &config, &none), NMC_ERR_IO);
  CHECK(error_mentions("Read-only"));
}

void gone(Ext4& disk, uint32_t backend) {
  promise("a_disk_that_is_gone");
  Embedded store(kRoom);
  OpenTier tier(store, config_of(disk.path() + "/tier", backend));
  write_some(store, tier);
  all_right(store, "a/", 10, 20);
  disk.stop(Ext4::LOST);
  refuses(store, tier, false);
  promise("it_closes");
  tier.close();
  CHECK(get(store, "more/3") == value(3));
}

// After the disk works again.
void look_after_trouble(const Ext4& disk, uint32_t backend) {
  promise("when_the_disk_works_again_all_is_there_that_was");
  Embedded store(kRoom);
  OpenTier tier(store, config_of(disk.path() + "/tier", backend));
  CHECK(tier_stats(tier).torn == 0 && tier_stats(tier).degraded == 0);
  all_right(store, "a/", 3);
  for (uint64_t i = 0; i < 3; ++i) {
    const std::string found = get(store, key_of("a/", i));  // it was said that it may be back
    CHECK(found == value(i) || found == "<NMC_ERR_NOT_FOUND>");
  }
  for (const char* key : {"in memory", "more/1"}) CHECK(get(store, key) == "<NMC_ERR_NOT_FOUND>");
  CHECK(verified(tier).corrupt == 0);
  OK(put(store, "after it", value(8)));
  CHECK(offload(tier) == 1);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 2;
  for (size_t i = 0; i < 3; ++i) {
    printf("backend %s\n", kWords[i]);
    const uint32_t backend = kBackends[i];
    {
      const Ext4 disk(kMib);
      alone([&] { full(disk, backend); });
      alone([&] { look_after_full(disk, backend); });
      std::filesystem::remove_all(disk.path() + "/tier");
      alone([&] { filled_now_and_then(disk, backend, seconds); }, seconds);
    }
    for (const auto& trouble : {read_only, gone}) {
      Ext4 disk(kMib, "errors=remount-ro");
      alone([&] { trouble(disk, backend); });
      disk.mount_again();
      alone([&] { look_after_trouble(disk, backend); });
    }
  }
  return finish();
}
