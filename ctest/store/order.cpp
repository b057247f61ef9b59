// A put that replaces leaves the client's list of open plans after its last store, not before. It is held just before it
// publishes (src/base/point.rs), the master dies, and the client names its open plans to the next one. A plan that is not
// named is free at once: its header would be another object's when the late store comes.
// usage: order [early]   the control: a plan that is given up first, and published afterwards

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <atomic>
#include <thread>

namespace {

constexpr uint32_t PAGE = 4096;
constexpr double PATIENCE = 60;

struct Shared {
  std::atomic<int> held, master, restarted, met, tried, released, looked, failed;
};
Shared* shared;
std::string dir;

bool await(const std::atomic<int>& flag) {
  const double deadline = now_s() + PATIENCE;
  while (flag.load() == 0 && now_s() < deadline) pause_us(1000);
  return flag.load() != 0;
}
void fail(const char* what, nmc_status_t status) {
  std::printf("FAIL %s: %s %s\n", what, nmc_status_name(status), nmc_last_error_message());
  std::fflush(stdout);
  shared->failed.store(1);
  _exit(1);
}
void must(nmc_status_t status, const char* what) {
  if (status != NMC_OK) fail(what, status);
}
void must_come(const std::atomic<int>& flag, const char* what) {
  if (!await(flag)) fail(what, NMC_ERR_TIMEOUT);
}
void arm(const char* text) {
  FILE* file = std::fopen((dir + "/arm.new").c_str(), "w");
  if (file == nullptr || std::fputs(text, file) < 0 || std::fclose(file) != 0) std::abort();
  if (std::rename((dir + "/arm.new").c_str(), (dir + "/arm").c_str()) != 0) std::abort();
}
nmc_world_config_t config_of(int32_t rank) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = nmc_slice_t{"order", 5};
  config.dir = slice(dir);
  config.rank = rank;
  config.world_size = 2;
  config.heap_bytes = 8 * PAGE;
  config.join_timeout_ms = 60000;
  config.master = NMC_MASTER_EXTERNAL;
  return config;
}

int run_master() {
  const nmc_world_config_t config = config_of(-1);
  nmc_master_t* master = nullptr;
  must(nmc_master_start(&config, &master), "nmc_master_start");
  shared->master.fetch_add(1);
  for (;;) pause_us(100000);
}

// Three headers, and nothing may be evicted: a fourth object finds room only if one of them was given up.
nmc_store_t* join(int32_t rank) {
  const nmc_world_config_t config = config_of(rank);
  nmc_world_t* world = nullptr;
  must(nmc_world_join(&config, &world), "join");
  nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
  wanted.page_bytes = PAGE;
  wanted.max_objects = 3;
  wanted.attach_timeout_ms = wanted.call_timeout_ms = 60000;
  nmc_store_t* store = nullptr;
  must(nmc_store_create(world, &wanted, &store), "create");
  must(nmc_world_barrier(world, 60000), "barrier");
  return store;
}
nmc_status_t put(nmc_store_t* store, const char* key, const char* value, uint32_t flags) {
  nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  options.retain = NMC_RETAIN_HARD;
  options.flags = flags;
  return nmc_store_put(store, slice(std::string(key)), value, std::strlen(value), &options);
}
bool holds(nmc_store_t* store, const char* key, const char* value) {
  char buffer[64] = {};
  size_t size = 0;
  return nmc_store_get(store, slice(std::string(key)), buffer, sizeof buffer, &size) == NMC_OK && size == std::strlen(value) &&
         std::memcmp(buffer, value, size) == 0;
}

// Replaces "k", and is held before the last store.
int replacer(bool early) {
  setenv("NMC_CRASH_POINT", ("@" + dir + "/arm").c_str(), 1);
  nmc_store_t* store = join(1);
  must(put(store, "k", "old", 0), "put of k");
  nmc_write_plan_t plan{};
  std::thread writer;
  nmc_status_t status = NMC_OK;
  if (early) {
    nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
    options.retain = NMC_RETAIN_HARD;
    options.flags = NMC_PUT_REPLACE;
    must(nmc_store_open_for_write(store, nmc_slice_t{"k", 1}, 3, &options, &plan), "open");
    must(nmc_store_abort(store, &plan), "abort");
  } else {
    arm("writer.before_publish:1:hold");
    writer = std::thread([&] { status = put(store, "k", "new", NMC_PUT_REPLACE); });
    const double deadline = now_s() + PATIENCE;
    while (access((dir + "/arm.held").c_str(), F_OK) != 0)
      if (now_s() > deadline) fail("the put is not held", NMC_ERR_TIMEOUT);
  }
  shared->held.store(1);
  must_come(shared->restarted, "no new master");
  // Any answer of the new master: this client has named its plans to it.
  const double deadline = now_s() + PATIENCE;
  while (nmc_store_remove(store, nmc_slice_t{"none", 4}) != NMC_ERR_NOT_FOUND)
    if (now_s() > deadline) fail("the new master does not answer", NMC_ERR_TIMEOUT);
  shared->met.store(1);
  must_come(shared->tried, "the other does not try");
  if (early) {
    __atomic_store_n(plan.publish_word, plan.epoch, __ATOMIC_RELEASE);
  } else {
    arm("");
    writer.join();
    must(status, "the put that was held");
    if (!holds(store, "k", "new")) fail("the new value is not there", NMC_ERR_NOT_FOUND);
  }
  shared->released.store(1);
  must_come(shared->looked, "the other does not look");
  return 0;
}

int other() {
  nmc_store_t* store = join(0);
  must(put(store, "filler", "x", 0), "put of filler");
  must_come(shared->met, "the replacing client does not come back");
  nmc_status_t status;
  const double deadline = now_s() + PATIENCE;
  do {
    status = put(store, "other", "mine", 0);
  } while ((status == NMC_ERR_UNAVAILABLE || status == NMC_ERR_TIMEOUT) && now_s() < deadline);
  std::printf("another put gives %s\n", nmc_status_name(status));
  shared->tried.store(1);
  must_come(shared->released, "the put is not released");
  if (status == NMC_OK && !holds(store, "other", "mine")) fail("another object is lost", NMC_ERR_NOT_FOUND);
  if (status == NMC_OK) fail("there was room for another object", status);
  shared->looked.store(1);
  return 0;
}

}  // namespace

int main(int argc, char**) {
  if (syscall(434, getpid(), 0) < 0) return 77;  // no pidfd_open: an old valgrind
  const bool early = argc > 1;
  OwnDir own;
  dir = own.path;
  arm("");
  shared = shared_between_processes<Shared>();
  std::vector<pid_t> pids = {start_member(run_master), start_member(other), start_member([&] { return replacer(early); })};
  bool fine = watch_until(pids, PATIENCE, [] { return shared->held.load() != 0 || shared->failed.load() != 0; });
  if (fine) {
    kill(pids[0], SIGKILL);
    waitpid(pids[0], nullptr, 0);
    shared->master.store(0);
    pids[0] = start_member(run_master);
    fine = watch_until(pids, PATIENCE, [] { return shared->master.load() != 0; });
    shared->restarted.store(1);
  }
  if (fine) fine = watch_until(pids, 2 * PATIENCE, [&] { return shared->failed.load() != 0 || (pids[1] < 0 && pids[2] < 0); });
  fine = fine && shared->failed.load() == 0;
  end_all(pids);
  std::printf("%s\n", fine ? "PASS" : "FAIL");
  return fine ? 0 : 1;
}
