// Handles that are not what they should be, handles that another thread destroys, handles after fork, and handles in
// the log callback: a status, never a crash, never a hang.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "../support/random.hpp"
#include "../support/check.h"

namespace {

nmc_world_config_t local_config(uint32_t ranks) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = ranks;
  config.heap_bytes = 1 << 16;
  return config;
}

std::vector<nmc_world_t*> local_world(uint32_t ranks) {
  const nmc_world_config_t config = local_config(ranks);
  std::vector<nmc_world_t*> worlds(ranks);
  REQUIRE(OK(nmc_world_create_local(&config, worlds.data())));
  return worlds;
}

// Every function that takes a world handle and does not block, by name.
struct Call {
  const char* name;
  std::function<nmc_status_t(nmc_world_t*)> run;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"info", [](nmc_world_t* w) { nmc_world_info_t i = NMC_WORLD_INFO_INIT; return nmc_world_info(w, &i); }},
      {"rank_info", [](nmc_world_t* w) {
         nmc_rank_info_t i = NMC_RANK_INFO_INIT;
         return nmc_world_rank_info(w, 0, &i);
       }},
      {"alive", [](nmc_world_t* w) { uint32_t s; return nmc_world_alive(w, 0, &s); }},
      {"event_fd", [](nmc_world_t* w) { int32_t fd; return nmc_world_event_fd(w, &fd); }},
      {"ptr", [](nmc_world_t* w) { void* p; return nmc_world_ptr(w, 0, 0, 1, &p); }},
      {"locate", [](nmc_world_t* w) {
         int32_t r = 0;
         uint64_t o = 0;
         const nmc_status_t status = nmc_world_locate(w, &r, &r, &o);
         return status == NMC_ERR_NOT_FOUND ? NMC_OK : status;
       }},
      {"base_table", [](nmc_world_t* w) { uint32_t n; return nmc_world_base_table(w, nullptr, nullptr, &n); }},
      {"rank_of_device_rank", [](nmc_world_t* w) { int32_t r; return nmc_world_rank_of_device_rank(w, 0, &r); }},
      {"word", [](nmc_world_t* w) { uint64_t* p; return nmc_world_word(w, 0, 0, &p, nullptr); }},
      {"write_word_async", [](nmc_world_t* w) {
         const nmc_status_t status = nmc_world_write_word_async(w, 0, 0, 1, nullptr);
         return status == NMC_ERR_UNSUPPORTED ? NMC_OK : status;
       }},
      {"async_error", [](nmc_world_t* w) {
         nmc_status_t s;
         return nmc_world_async_error(w, &s, nullptr, 0, nullptr);
       }},
      {"dump", [](nmc_world_t* w) { char t[512]; return nmc_world_dump(w, t, sizeof t, nullptr); }},
  };
  return all;
}

// Those that block or end something.
const std::vector<Call>& strong_calls() {
  static const std::vector<Call> all = {
      {"barrier", [](nmc_world_t* w) { return nmc_world_barrier(w, 0); }},
      {"selftest", [](nmc_world_t* w) { return nmc_world_selftest(w, 1, 0); }},
      {"finalize", [](nmc_world_t* w) { return nmc_world_finalize(w); }},
      {"abort", [](nmc_world_t* w) { return nmc_world_abort(w); }},
  };
  return all;
}

void all_give(nmc_world_t* handle, nmc_status_t want) {
  for (const auto* list : {&calls(), &strong_calls()}) {
    for (const Call& call : *list) {
      const nmc_status_t got = call.run(handle);
      if (got != want) {
        printf("handle %p: %s gives %s\n", static_cast<void*>(handle), call.name, nmc_status_name(got));
        CHECK(got == want);
      }
    }
  }
}

template <class T>
nmc_world_t* as_world(T value) {
  return reinterpret_cast<nmc_world_t*>(value);
}

void not_handles() {
  promise("what_is_no_handle_is_refused_by_every_call");
  int on_stack = 0;
  char* on_heap = static_cast<char*>(malloc(64));
  std::vector<nmc_world_t*> others = {as_world(&on_stack), as_world(on_heap), as_world(on_heap + 1),
                                      as_world(&not_handles)};
  for (uintptr_t i : {1, 2, 3, 7, 8, 4095, 4096}) others.push_back(as_world(i));
  for (uintptr_t i : {UINTPTR_MAX, UINTPTR_MAX / 2, uintptr_t{1} << 63, uintptr_t{0x4e} << 56}) {
    others.push_back(as_world(i));
  }
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    uint64_t bits = random();
    if (i % 2 == 0) bits = (bits & ((uint64_t{1} << 56) - 1)) | uint64_t{0x4e} << 56;  // looks like one
    if (i % 4 == 0) bits = (bits & ~uint64_t{0xf}) | 1;
    others.push_back(as_world(bits));
  }
  const auto worlds = local_world(1);
  for (nmc_world_t* other : others) {
    if (other == worlds[0]) continue;
    all_give(other, NMC_ERR_BAD_HANDLE);
    GIVES(nmc_world_destroy(other), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_master_destroy(reinterpret_cast<nmc_master_t*>(other)), NMC_ERR_BAD_HANDLE);
  }
  // One bit off the real one.
  for (int bit = 0; bit < 64; ++bit) {
    all_give(as_world(reinterpret_cast<uintptr_t>(worlds[0]) ^ (uintptr_t{1} << bit)), NMC_ERR_BAD_HANDLE);
  }
  // Its place, with other generations.
  for (int i = 0; i < 500; ++i) {
    all_give(as_world(reinterpret_cast<uintptr_t>(worlds[0]) ^ ((random() >> 32) | 1) << 24), NMC_ERR_BAD_HANDLE);
  }
  free(on_heap);
  OK(nmc_world_destroy(worlds[0]));
}

void stale_and_wrong_kind() {
  promise("a_destroyed_handle_stays_bad_also_when_its_place_is_taken_again");
  std::vector<nmc_world_t*> stale;
  for (int i = 0; i < 50; ++i) {
    const auto worlds = local_world(1);
    for (nmc_world_t* old : stale) CHECK(old != worlds[0]);
    OK(nmc_world_destroy(worlds[0]));
    GIVES(nmc_world_destroy(worlds[0]), NMC_ERR_BAD_HANDLE);
    stale.push_back(worlds[0]);
  }
  const auto live = local_world(1);
  for (nmc_world_t* old : stale) all_give(old, NMC_ERR_BAD_HANDLE);
  CHECK(error_mentions("destroyed"));

  promise("a_handle_of_another_kind_is_refused");
  char dir[] = "/tmp/nmc-handles-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  nmc_world_config_t config = local_config(2);
  config.name = slice_of("kinds");
  config.dir = slice_of(dir);
  nmc_master_t* master = nullptr;
  REQUIRE(OK(nmc_master_start(&config, &master)));
  all_give(reinterpret_cast<nmc_world_t*>(master), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_destroy(reinterpret_cast<nmc_world_t*>(master)), NMC_ERR_BAD_HANDLE);
  CHECK(error_mentions("another kind"));
  GIVES(nmc_master_destroy(reinterpret_cast<nmc_master_t*>(live[0])), NMC_ERR_BAD_HANDLE);
  OK(nmc_master_destroy(master));
  GIVES(nmc_master_destroy(master), NMC_ERR_BAD_HANDLE);
  OK(nmc_world_destroy(live[0]));
  CHECK(rmdir(dir) == 0);
}

void destroyed_meanwhile() {
  promise("calls_go_on_safely_while_another_thread_destroys");
  // Valgrind runs one thread at a time and starves whoever destroys.
  const int rounds = under_tool_named("valgrind") ? 3 : 200;
  for (int round = 0; round < rounds; ++round) {
    const auto worlds = local_world(2);
    std::atomic<bool> go{false};
    std::atomic<int> destroyed{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        while (!go.load()) std::this_thread::yield();
        for (size_t i = t;; ++i) {
          const Call& call = calls()[i % calls().size()];
          const nmc_status_t status = call.run(worlds[0]);
          if (status == NMC_ERR_BAD_HANDLE) return;
          if (!CHECK(status == NMC_OK)) return;
        }
      });
    }
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        while (!go.load()) std::this_thread::yield();
        const nmc_status_t status = nmc_world_destroy(worlds[0]);
        if (status == NMC_OK) destroyed.fetch_add(1);
        else GIVES(status, NMC_ERR_BAD_HANDLE);
      });
    }
    go.store(true);
    for (std::thread& thread : threads) thread.join();
    CHECK(destroyed.load() == 1);
    OK(nmc_world_destroy(worlds[1]));
  }
}

void cancelled() {
  promise("a_thread_that_waits_at_a_barrier_is_cancelled_by_destroy_and_by_abort");
  int late = 0;
  for (int round = 0; round < 20; ++round) {
    for (bool abort : {false, true}) {
      const auto worlds = local_world(2);
      std::atomic<bool> inside{false};
      std::thread waiting([&] {
        inside.store(true);
        const nmc_status_t status = nmc_world_barrier(worlds[0], 60000);
        // On a busy machine it may have come too late: then there is no handle any more.
        if (!abort && status == NMC_ERR_BAD_HANDLE) late += 1;
        else GIVES(status, NMC_ERR_CANCELLED);
      });
      while (!inside.load()) std::this_thread::yield();
      sleep_ms(5);  // most likely it is asleep by now
      const double before = seconds_now();
      if (abort) OK(nmc_world_abort(worlds[0]));
      else OK(nmc_world_destroy(worlds[0]));
      waiting.join();
      CHECK(seconds_now() - before < 20);
      if (abort) OK(nmc_world_destroy(worlds[0]));
      OK(nmc_world_destroy(worlds[1]));
    }
  }
  CHECK(late < 20);
}

void forked() {
  promise("a_forked_child_gets_forked_from_every_call_and_destroy_does_nothing");
  const auto worlds = local_world(2);
  char dir[] = "/tmp/nmc-handles-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  nmc_world_config_t config = local_config(1);
  config.name = slice_of("forked");
  config.dir = slice_of(dir);
  config.rank = 0;
  nmc_world_t* joined = worlds[0];
  if (can_join()) REQUIRE(OK(nmc_world_join(&config, &joined)));
  fflush(stdout);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    failed_checks = 0;
    for (nmc_world_t* world : {worlds[0], worlds[1], joined}) {
      all_give(world, NMC_ERR_FORKED);
      OK(nmc_world_destroy(world));
      OK(nmc_world_destroy(world));
    }
    nmc_world_t* out[2] = {nullptr, nullptr};
    nmc_master_t* master = nullptr;
    const int32_t ranks[1] = {0};
    GIVES(nmc_world_join(&config, out), NMC_ERR_FORKED);
    GIVES(nmc_world_join_ranks(&config, ranks, 1, out), NMC_ERR_FORKED);
    GIVES(nmc_world_create_local(&config, out), NMC_ERR_FORKED);
    GIVES(nmc_ep_group_begin(), NMC_ERR_FORKED);
    GIVES(nmc_ep_group_end(), NMC_ERR_FORKED);
    GIVES(nmc_master_start(&config, &master), NMC_ERR_FORKED);
    GIVES(nmc_log_set_callback(nullptr, NMC_LOG_DEBUG, nullptr), NMC_ERR_FORKED);
    OK(nmc_master_destroy(nullptr));
    CHECK(error_mentions("fork"));
    CHECK(strcmp(nmc_version(), NMC_VERSION_STRING) == 0 && nmc_abi_version() == NMC_ABI_VERSION);
    fflush(stdout);
    _exit(failed_checks != 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  promise("the_parent_goes_on_after_its_child");
  for (nmc_world_t* world : {worlds[0], worlds[1], joined}) {
    for (const Call& call : calls()) OK(call.run(world));
    uint32_t state = 77;
    OK(nmc_world_alive(world, 0, &state));
    CHECK(state == NMC_RANK_ALIVE);
  }
  if (joined != worlds[0]) {
    OK(nmc_world_barrier(joined, -1));
    OK(nmc_world_destroy(joined));
  }
  for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
  CHECK(rmdir(dir) == 0);
}

// ---- the log callback ----

struct FromCallback {
  nmc_world_t* target = nullptr;
  std::vector<nmc_status_t> statuses;
};

void destroy_in_callback(int32_t, const char*, void* user) {
  auto* from = static_cast<FromCallback*>(user);
  if (from->target != nullptr) from->statuses.push_back(nmc_world_destroy(from->target));
}

void call_all_in_callback(int32_t, const char*, void* user) {
  auto* from = static_cast<FromCallback*>(user);
  if (from->target == nullptr) return;
  for (const Call& call : calls()) from->statuses.push_back(call.run(from->target));
}

void in_callback() {
  promise("destroy_inside_the_callback_of_a_call_on_the_same_handle_is_busy");
  auto worlds = local_world(2);
  FromCallback from;
  from.target = worlds[0];
  OK(nmc_log_set_callback(destroy_in_callback, NMC_LOG_DEBUG, &from));
  OK(nmc_world_finalize(worlds[1]));
  uint32_t state = 0;
  OK(nmc_world_alive(worlds[0], 1, &state));  // notices that rank 1 left, and logs it
  CHECK(!from.statuses.empty());
  for (nmc_status_t status : from.statuses) GIVES(status, NMC_ERR_BUSY);
  promise("destroy_of_another_handle_inside_the_callback_is_busy_too");
  from = FromCallback{};
  auto second = local_world(2);
  OK(nmc_world_finalize(second[1]));
  from.target = worlds[0];
  OK(nmc_world_alive(second[0], 1, &state));
  CHECK(!from.statuses.empty());
  for (nmc_status_t status : from.statuses) GIVES(status, NMC_ERR_BUSY);
  OK(nmc_log_set_callback(nullptr, NMC_LOG_DEBUG, nullptr));
  for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
  for (nmc_world_t* world : second) OK(nmc_world_destroy(world));
}

// Runs `body(dir)` in a process of its own with an alarm: a callback that hangs must not hang the tests.
template <class Body>
void within(const char* name, unsigned seconds, Body body) {
  promise(name);
  char dir[] = "/tmp/nmc-handles-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  fflush(stdout);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    failed_checks = 0;
    alarm(seconds);
    body(dir);
    fflush(stdout);
    _exit(failed_checks != 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) {
    printf("     ended by signal %d%s\n", WTERMSIG(status), WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
  }
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::filesystem::remove_all(dir);
}

std::vector<nmc_world_t*> joined_pair(const char* dir) {
  nmc_world_config_t config = local_config(2);
  config.name = slice_of("callback");
  config.dir = slice_of(dir);
  config.join_timeout_ms = 10000;
  const int32_t ranks[2] = {0, 1};
  std::vector<nmc_world_t*> worlds(2);
  REQUIRE(OK(nmc_world_join_ranks(&config, ranks, 2, worlds.data())));
  return worlds;
}

// Logs on the calling thread, inside a call on the returned handle: it notices that its peer left.
nmc_world_t* log_once() {
  const auto worlds = local_world(2);
  OK(nmc_world_finalize(worlds[1]));
  uint32_t state = 0;
  OK(nmc_world_alive(worlds[0], 1, &state));
  OK(nmc_world_destroy(worlds[1]));
  return worlds[0];
}

void calls_in_callback() {
  within("the_callback_may_call_nmc_functions_on_the_handle_that_logs", 20, [](const char*) {
    const auto worlds = local_world(2);
    FromCallback from;
    from.target = worlds[0];
    OK(nmc_log_set_callback(call_all_in_callback, NMC_LOG_DEBUG, &from));
    OK(nmc_world_finalize(worlds[1]));
    uint32_t state = 0;
    OK(nmc_world_alive(worlds[0], 1, &state));
    CHECK(!from.statuses.empty());
    for (nmc_status_t status : from.statuses) OK(status);
  });

  if (!can_join()) return;
  // The next ones on a thread of the library, which sees rank 1 leave.
  static FromCallback from;
  static std::atomic<bool> armed{false}, called{false};
  const auto rank_1_leaves = [](const std::vector<nmc_world_t*>& worlds, nmc_log_fn callback) {
    from.target = worlds[0];
    OK(nmc_log_set_callback(callback, NMC_LOG_DEBUG, &from));
    armed = true;
    OK(nmc_world_destroy(worlds[1]));
    for (int i = 0; i < 10000 && !called; ++i) sleep_ms(1);
    if (!CHECK(called)) _exit(1);
    OK(nmc_log_set_callback(nullptr, NMC_LOG_DEBUG, nullptr));
  };
  within("the_callback_on_a_thread_of_the_library_may_call_nmc_functions", 20, [&](const char* dir) {
    const auto worlds = joined_pair(dir);
    rank_1_leaves(worlds, [](int32_t level, const char* text, void* user) {
      if (strstr(text, "is now") == nullptr || !armed.exchange(false)) return;
      call_all_in_callback(level, text, user);
      called = true;
    });
    for (nmc_status_t status : from.statuses) OK(status);
    OK(nmc_world_destroy(worlds[0]));
  });
  for (const char* line : {"is now", "master:"}) {  // on the world's thread, on the master's thread
    static const char* trigger;
    trigger = line;
    within("destroy_in_the_callback_on_a_thread_of_the_handle_works_or_is_busy", 20, [&](const char* dir) {
      const auto worlds = joined_pair(dir);
      rank_1_leaves(worlds, [](int32_t level, const char* text, void* user) {
        if (strstr(text, trigger) == nullptr || !armed.exchange(false)) return;
        destroy_in_callback(level, text, user);
        called = true;
      });
      CHECK(from.statuses[0] == NMC_OK || from.statuses[0] == NMC_ERR_BUSY);  // NMC_ERR_INTERNAL is a bug
      if (from.statuses[0] == NMC_ERR_BUSY) OK(nmc_world_destroy(worlds[0]));
    });
  }

  within("destroy_of_another_handle_in_the_callback_is_busy_and_hangs_nobody_while_a_thread_replaces_it", 20, [](const char* dir) {
    static std::vector<nmc_world_t*> pair;
    static std::atomic<bool> inside{false}, replacing{false};
    pair = joined_pair(dir);
    OK(nmc_log_set_callback(
        [](int32_t, const char*, void*) {
          if (inside.exchange(true)) return;
          while (!replacing) sleep_ms(1);
          sleep_ms(200);                          // the other thread waits for us by now
          OK(nmc_world_finalize(pair[0]));        // rank 1's thread has something to log,
          sleep_ms(500);
          GIVES(nmc_world_destroy(pair[1]), NMC_ERR_BUSY);
        },
        NMC_LOG_DEBUG, nullptr));
    std::thread logging([] { OK(nmc_world_destroy(log_once())); });
    while (!inside) sleep_ms(1);
    replacing = true;
    OK(nmc_log_set_callback(nullptr, NMC_LOG_DEBUG, nullptr));
    logging.join();
    OK(nmc_world_destroy(pair[1]));
    OK(nmc_world_destroy(pair[0]));
  });
}

}  // namespace

int main() {
  calls_in_callback();  // first: its children must be forked before the first handle is made
  not_handles();
  stale_and_wrong_kind();
  destroyed_meanwhile();
  cancelled();
  forked();
  in_callback();
  return finish();
}
