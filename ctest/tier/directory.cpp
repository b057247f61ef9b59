// Others in the directory of a tier: it is deleted while the owner has it open, or its files are, and things that are not the tier's lie there, under
// names of its own too: links to files outside, folders, pipes that nobody writes to, and files with anything in them. A call says clearly what it
// cannot do, a value is right or is not there, nothing hangs, and nothing outside of the directory is ever opened: inotify would tell.
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <functional>

#include "../support/crew.hpp"
#include "../support/tier_check.hpp"

namespace {

namespace fs = std::filesystem;

constexpr uint32_t kBackends[] = {NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET};
constexpr const char* kWords[] = {"bucket", "file-per-key", "offset"};
constexpr double kTime = 100;
constexpr uint64_t kValues = 30;
constexpr StoreSetup kRoom = {1024};  // pages: 4 MiB

// The bodies in processes of their own, side by side, which end well and in time.
void alone(const std::vector<std::function<void()>>& bodies) {
  std::vector<pid_t> pids;
  for (const auto& body : bodies)
    pids.push_back(start_member([&body] {
      failed_checks = 0;
      body();
      return failed_checks != 0 ? 1 : 0;
    }));
  const auto ended = [&pids] { return std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return pid < 0; }); };
  CHECK(watch_until(pids, under_tool() ? 4 * kTime : kTime, ended));
  end_all(pids);
}

// A directory of the test's own, in memory where that can be had: everything is synced, and the disk is not what is tested.
struct MemoryDir {
  std::string path;
  MemoryDir() {
    for (const char* in : {"/dev/shm", "/tmp"}) {
      path = std::string(in) + "/nmc-tier-XXXXXX";
      if (mkdtemp(path.data()) != nullptr) return;
    }
    REQUIRE(!"a directory can be made");
  }
  ~MemoryDir() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  MemoryDir(const MemoryDir&) = delete;
  MemoryDir& operator=(const MemoryDir&) = delete;
};

std::string key_of(uint64_t i) { return "key-" + std::to_string(i); }
std::string value(uint64_t i) { return value_of(i, i % 3 == 0 ? 100 : 5000 * (i % 5 + 1)); }

nmc_tier_config_t config_of(const std::string& path, uint32_t backend) {
  nmc_tier_config_t config = tier_config(path);
  config.backend = backend;
  config.bucket_keys = 5;
  config.capacity_bytes = backend == NMC_TIER_BACKEND_OFFSET ? 8 << 20 : 0;
  return config;
}

// What a read of a value on disk gives, which may be right, or one of these statuses.
nmc_status_t read_or(nmc_store_t* store, uint64_t i, std::initializer_list<nmc_status_t> allowed) {
  const std::string wanted = value(i);
  std::string found(wanted.size(), 0);
  const nmc_status_t status = nmc_store_get_into(store, bytes_of(key_of(i)), found.data(), found.size());
  if (status == NMC_OK) CHECK(found == wanted);
  else if (std::find(allowed.begin(), allowed.end(), status) == allowed.end()) OK(status);
  return status;
}

void put_on_disk(nmc_store_t* store, nmc_tier_t* tier, uint64_t from = 0, uint64_t to = kValues) {
  for (uint64_t i = from; i < to; ++i) OK(put(store, key_of(i), value(i)));
  CHECK(offload(tier) == to - from);
  evict(store);
}

// ----------------------------------------------------------------------------------------------------------- deleted --

// What becomes of a read whose file others have taken away or changed; whoever owns the tier ends what it finds damaged.
constexpr std::initializer_list<nmc_status_t> kLost = {NMC_ERR_CORRUPT, NMC_ERR_UNAVAILABLE, NMC_ERR_IO, NMC_ERR_NOT_FOUND, NMC_ERR_PERMISSION};

// How far the owner is, and the other one.
std::atomic<int>* stage;

void deleted(const std::string& path, uint32_t backend, bool made_again) {
  Embedded store(kRoom);
  OpenTier tier(store, config_of(path, backend));
  put_on_disk(store, tier);
  for (uint64_t i = 0; i < kValues / 2; ++i) read_or(store, i, {});
  fs::remove_all(path);
  promise("when_the_directory_is_deleted_what_is_read_is_right_or_cannot_be_read");
  *stage = 1;
  while (made_again && *stage == 1) pause_us(1000);
  std::map<std::string, int> said;
  for (uint64_t i = 0; i < kValues; ++i) ++said[nmc_status_name(read_or(store, i, kLost))];
  for (const auto& [word, n] : said) printf("     %d times %s\n", n, word.c_str());

  promise("the_calls_return_and_memory_goes_on");
  OK(put(store, "in memory", value(4)));
  OK(put(store, "mine", value(2)));
  const nmc_status_t offloaded = nmc_tier_offload(tier, nullptr, 0, nullptr), synced = nmc_tier_sync(tier), evicted = nmc_tier_evict(tier, 0, nullptr);
  const nmc_status_t removed = nmc_store_remove(store, bytes_of(key_of(1)));
  nmc_put_options_t replace = NMC_PUT_OPTIONS_INIT;
  replace.flags = NMC_PUT_REPLACE;
  const nmc_status_t replaced = put(store, key_of(2), "another one", &replace);
  printf("     offload: %s, sync: %s, evict: %s, remove: %s, replace: %s; degraded %d\n", nmc_status_name(offloaded), nmc_status_name(synced),
         nmc_status_name(evicted), nmc_status_name(removed), nmc_status_name(replaced), static_cast<int>(tier_stats(tier).degraded));
  for (const nmc_status_t status : {offloaded, synced, evicted, removed, replaced}) CHECK(status == NMC_OK || status == NMC_ERR_IO);
  // Where there is nothing that it could write to.
  CHECK(backend == NMC_TIER_BACKEND_OFFSET || (offloaded == NMC_ERR_IO && tier_stats(tier).degraded == 1));
  CHECK(state_of(store, key_of(1)) == NMC_OBJECT_ABSENT && get(store, key_of(2)) == "another one");
  CHECK(get(store, "in memory") == value(4));
  promise("it_closes_and_the_directory_can_be_opened_again");
  tier.close();
  OpenTier after(store, config_of(path, backend));
  CHECK(tier_stats(after).objects == (made_again ? 3 : 0));
  CHECK(state_of(store, key_of(7)) == NMC_OBJECT_ABSENT);
  for (uint64_t i = 3; i < kValues; ++i) OK(put(store, key_of(i), value(i)));
  OK(nmc_tier_offload(after, nullptr, 0, nullptr));
  evict(store);
  CHECK(get(store, key_of(7)) == value(7) && get(store, "mine") == value(2));
}

// Somebody makes a tier at the same place, while the former owner does not know yet that his is gone.
void begun_there(const std::string& path, uint32_t backend) {
  while (*stage == 0) pause_us(1000);
  {
    Embedded store(kRoom);
    OpenTier tier(store, config_of(path, backend));
    CHECK(tier_stats(tier).objects == 0);
    put_on_disk(store, tier, 100, 103);
  }
  *stage = 2;
}

void look_after_deleted(const std::string& path, uint32_t backend, bool made_again) {
  Embedded store(kRoom);
  OpenTier tier(store, config_of(path, backend));
  CHECK(get(store, key_of(7)) == value(7) && get(store, "mine") == value(2));
  for (uint64_t i = 100; i < 103 && made_again; ++i) CHECK(get(store, key_of(i)) == value(i));
  CHECK(verified(tier).corrupt == 0);
}

// ----------------------------------------------------------------------------------------------------------- planted --

// What somebody else has, and who has touched it.
class Outside {
 public:
  explicit Outside(const std::string& path) : path_(path) {
    fs::create_directory(path_);
    fs::create_directory(folder());
    std::ofstream(file()) << kText;
    std::ofstream(folder() + "/within") << kText;
    events_ = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    const uint32_t all = IN_ACCESS | IN_ATTRIB | IN_CLOSE | IN_CREATE | IN_DELETE | IN_MODIFY | IN_MOVE | IN_OPEN;
    for (const std::string& one : {path_, file(), folder(), folder() + "/within"}) REQUIRE(inotify_add_watch(events_, one.c_str(), all) >= 0);
  }
  ~Outside() { close(events_); }
  std::string file() const { return path_ + "/file"; }
  std::string folder() const { return path_ + "/folder"; }
  std::string nothing() const { return path_ + "/nothing"; }
  bool untouched() {
    char buffer[4096];
    return CHECK(read(events_, buffer, sizeof buffer) < 0 && errno == EAGAIN);
  }
  bool same() {
    std::string text;
    std::getline(std::ifstream(file()) >> std::ws, text);
    const bool is = text == kText && !fs::exists(nothing()) && std::distance(fs::directory_iterator(folder()), fs::directory_iterator()) == 1;
    char buffer[4096];
    while (read(events_, buffer, sizeof buffer) > 0) {
    }
    return CHECK(is);
  }

 private:
  static constexpr const char* kText = "what somebody else has written";
  std::string path_;
  int events_ = -1;
};

enum What { TO_FILE, TO_FOLDER, TO_NOTHING, PIPE, FOLDER, JUNK, EMPTY, WHATS };
constexpr const char* kWhats[WHATS] = {"a link to a file", "a link to a folder", "a link to nothing", "a pipe", "a folder", "a file of junk", "an empty file"};

void plant(const std::string& at, What what, const Outside* outside = nullptr) {
  fs::create_directories(fs::path(at).parent_path());
  switch (what) {
    case TO_FILE: REQUIRE(symlink(outside->file().c_str(), at.c_str()) == 0); return;
    case TO_FOLDER: REQUIRE(symlink(outside->folder().c_str(), at.c_str()) == 0); return;
    case TO_NOTHING: REQUIRE(symlink(outside->nothing().c_str(), at.c_str()) == 0); return;
    case PIPE: REQUIRE(mkfifo(at.c_str(), 0600) == 0); return;
    case FOLDER:
      fs::create_directory(at);
      std::ofstream(at + "/foreign") << "foreign";
      return;
    case JUNK: std::ofstream(at) << std::string(10000, 'j'); return;
    default: std::ofstream(at).flush();
  }
}
bool is_planted(const std::string& at, What what) {
  struct stat found;
  if (lstat(at.c_str(), &found) != 0) return false;
  switch (what) {
    case TO_FILE:
    case TO_FOLDER:
    case TO_NOTHING: return S_ISLNK(found.st_mode);
    case PIPE: return S_ISFIFO(found.st_mode);
    case FOLDER: return S_ISDIR(found.st_mode) && fs::exists(at + "/foreign");
    case JUNK: return S_ISREG(found.st_mode) && found.st_size == 10000;
    default: return S_ISREG(found.st_mode) && found.st_size == 0;
  }
}

// What has a name that no tier gives.
bool is_foreign(const std::string& name) { return name == "notes.txt" || name == "77" || name.find("damaged") != std::string::npos; }

// Files of values that somebody changes while the tier is open, before anybody has read them: each is a link to a true copy outside now, or
// something that is not the file.
void all_swapped(const std::string& folder, uint32_t backend) {
  promise("files_that_are_exchanged_while_the_tier_is_open_give_no_other_value");
  const std::string path = folder + "/swapped";
  for (const What what : {TO_FILE, TO_FOLDER, PIPE, FOLDER, JUNK, EMPTY}) {
    Embedded store(kRoom);
    OpenTier tier(store, config_of(path, backend));
    put_on_disk(store, tier);
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string name = entry.path().filename();
      if (entry.is_regular_file() && name != "LOCK" && name != "SUPER" && name.rfind("journal.", 0) != 0) files.push_back(entry.path());
    }
    CHECK(!files.empty());
    const std::string copies = folder + "/copies";
    fs::create_directory(copies);
    const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string copy = copies + "/" + std::to_string(i);
      fs::rename(files[i], copy);
      REQUIRE(inotify_add_watch(events, copy.c_str(), IN_OPEN | IN_ACCESS | IN_MODIFY) >= 0);
      if (what == TO_FILE) REQUIRE(symlink(copy.c_str(), files[i].c_str()) == 0);
      else if (what == TO_FOLDER) REQUIRE(symlink(copies.c_str(), files[i].c_str()) == 0);
      else plant(files[i], what);
    }
    std::map<std::string, int> said;
    for (uint64_t i = 0; i < kValues; ++i) ++said[nmc_status_name(read_or(store, i, kLost))];
    printf("     %s:", kWhats[what]);
    for (const auto& [word, n] : said) printf(" %d times %s", n, word.c_str());
    printf("\n");
    char buffer[4096];
    CHECK(read(events, buffer, sizeof buffer) < 0 && errno == EAGAIN);
    close(events);
    OK(put(store, "in memory", value(4)));
    const nmc_status_t offloaded = nmc_tier_offload(tier, nullptr, 0, nullptr);
    CHECK(offloaded == NMC_OK || offloaded == NMC_ERR_IO);
    CHECK(get(store, "in memory") == value(4));
    tier.close();
    fs::remove_all(path);
    fs::remove_all(copies);
  }
}

// Something that lies there before the tier is opened: `again` when it was open before, and has values.
std::string planted(const std::string& path, uint32_t backend, const std::string& name, What what, bool again, Outside& outside) {
  fs::remove_all(path);
  const std::string at = path + "/" + name;
  const nmc_tier_config_t config = config_of(path, backend);
  Embedded store(kRoom);
  if (again) {
    OpenTier tier(store, config);
    put_on_disk(store, tier, 0, 6);
  } else {
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
  }
  struct stat there;
  if (lstat(at.c_str(), &there) == 0) return "";  // it is the tier's already
  plant(at, what, &outside);
  CHECK(is_planted(at, what));
  nmc_tier_t* tier = nullptr;
  const nmc_status_t opened = nmc_tier_open(store, &config, &tier);
  std::string said = nmc_status_name(opened);
  if (opened != NMC_OK) {
    CHECK(!is_foreign(name) && is_planted(at, what));
    // NMC_ERR_EXISTS would be another owner.
    CHECK(opened == NMC_ERR_PERMISSION || opened == NMC_ERR_CORRUPT || opened == NMC_ERR_IO);
    CHECK(error_mentions(name.c_str()) || error_mentions("SUPER"));
  } else {
    if (again) CHECK(tier_stats(tier).objects == 6);
    for (uint64_t i = 10; i < 16; ++i) OK(put(store, key_of(i), value(i)));
    CHECK(offload(tier) == 6);
    evict(store);
    for (uint64_t i = 10; i < 16; ++i) CHECK(get(store, key_of(i)) == value(i));
    for (uint64_t i = 0; i < 6 && again; ++i) CHECK(get(store, key_of(i)) == value(i));
    CHECK(tier_stats(tier).degraded == 0);
    OK(nmc_store_remove(store, bytes_of(key_of(11))));
    OK(nmc_tier_sync(tier));
    OK(nmc_tier_close(tier));
    if (!is_planted(at, what)) said += ", and it is gone";
    // Only what has a name of the tier's own, and is what that is a name for, or nothing at all.
    CHECK(is_planted(at, what) || (!is_foreign(name) && (what != FOLDER || name.find(".keys") != std::string::npos)));
  }
  outside.untouched();
  // When somebody has taken it away, everything is there.
  if (is_planted(at, what) && what != FOLDER) fs::remove(at);
  if (is_planted(at, what)) {
    fs::remove(at + "/foreign");
    (void)!rmdir(at.c_str());  // one in which values are by now stays
  }
  evict(store);
  if (again || opened == NMC_OK) {
    OpenTier after(store, config);
    for (uint64_t i = 0; i < 6 && again; ++i) CHECK(get(store, key_of(i)) == value(i));
    for (uint64_t i = 10; i < 16 && opened == NMC_OK; ++i) CHECK(get(store, key_of(i)) == (i == 11 ? "<NMC_ERR_NOT_FOUND>" : value(i)));
  }
  outside.same();
  return said;
}

void all_planted(const std::string& folder, uint32_t backend) {
  std::vector<std::string> names;
  if (backend == NMC_TIER_BACKEND_BUCKET)
    for (const char* name : {"SUPER", "SUPER.tmp", "LOCK", "journal.0", "journal.0.tmp", "journal.1048576", "journal.1048576.tmp", "notes.txt",
                             "0000000000000001.bucket", "0000000000000001.bucket.tmp", "0000000000000001.meta", "0000000000000401.bucket",
                             "0000000000000401.bucket.tmp", "0000000000000009.bucket.damaged"})
      names.push_back(name);
  if (backend == NMC_TIER_BACKEND_FILE)
    for (const char* name : {"01", "01/0000000000000001.keys", "01/0000000000000001.keys.tmp", "01/0000000000000401.keys", "01/0000000000000401.keys.tmp", "77"})
      names.push_back(name);
  if (backend == NMC_TIER_BACKEND_OFFSET) names.push_back("kv_cache.data");
  Outside outside(folder + "/outside");
  std::map<std::string, std::vector<std::string>> said;
  for (const bool again : {false, true})
    for (const std::string& name : names)
      for (int what = 0; what < WHATS; ++what) {
        if (again && (what == TO_FOLDER || what == TO_NOTHING || what == EMPTY)) continue;  // they were like others
        const int failed = failed_checks;
        const std::string outcome = planted(folder + "/tier", backend, name, static_cast<What>(what), again, outside);
        if (failed != failed_checks) printf("     %s called %s, %s\n", kWhats[what], name.c_str(), again ? "in a tier" : "in a new directory");
        if (!outcome.empty()) said[outcome].push_back(name + " (" + kWhats[what] + (again ? ", again)" : ")"));
      }
  for (const auto& [outcome, cases] : said) {
    printf("     %zu times %s:", cases.size(), outcome.c_str());
    for (const std::string& one : cases) printf(" %s;", one.c_str());
    printf("\n");
  }
}

}  // namespace

int main() {
  stage = shared_between_processes<std::atomic<int>>();
  for (size_t i = 0; i < 3; ++i) {
    printf("backend %s\n", kWords[i]);
    const uint32_t backend = kBackends[i];
    for (const bool made_again : {false, true}) {
      const MemoryDir dir;
      const std::string path = dir.path + "/tier";
      *stage = 0;
      std::vector<std::function<void()>> bodies = {[&] { deleted(path, backend, made_again); }};
      if (made_again) bodies.push_back([&] { begun_there(path, backend); });
      alone(bodies);
      alone({[&] { look_after_deleted(path, backend, made_again); }});
    }
    const MemoryDir dir;
    alone({[&] { all_swapped(dir.path, backend); }});
    promise("what_lies_there_harms_nothing_and_leads_nowhere");
    alone({[&] { all_planted(dir.path, backend); }});
  }
  return finish();
}
