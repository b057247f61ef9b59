// What is left behind: nothing after an orderly end, at most a socket after a massacre, no descriptors or threads in a
// process that joins and leaves many times.
#include <utility>

#include "../support/puppet.hpp"

namespace {

void in_order() {
  promise("when_all_have_left_the_directory_is_gone");
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    Place place;
    std::vector<Process> ranks = whole_world(place, seat(-1));
    CHECK(!place.leftovers().empty());
    for (size_t rank : order) {
      SAYS(ranks[rank].ask("destroy"), "NMC_OK");
      ranks[rank].send("quit");
      CHECK(ranks[rank].ends_well());
    }
    for (const std::string& path : place.leftovers()) printf("     left: %s\n", path.c_str());
    CHECK(place.leftovers().empty());
  }
}

void massacre() {
  promise("when_all_were_killed_at_most_the_socket_and_the_locks_are_left_and_the_next_join_works");
  Place place;
  for (int round = 0; round < 3; ++round) {
    std::vector<Process> ranks = whole_world(place, seat(-1));
    TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
    SAYS(ranks[0].ask("generation 0"), "1");  // a new world each time
    for (Process& rank : ranks) kill(rank.pid(), SIGKILL);
    for (Process& rank : ranks) rank.kill9();
    for (const std::string& path : place.leftovers()) {
      const std::string world = place.dir + "/procs";
      const bool expected = path == world || path == world + "/sock" || path == world + "/ranks";
      if (!CHECK(expected)) printf("     left: %s\n", path.c_str());
    }
  }
  std::vector<Process> ranks = whole_world(place, seat(-1));
  dismiss(ranks);
  CHECK(place.leftovers().empty());
}

size_t entries(const char* directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) count += !entry.path().empty();
  return count;
}

struct Usage {
  size_t descriptors = 0, threads = 0, mappings = 0;
  static Usage now() {
    Usage usage;
    usage.descriptors = entries("/proc/self/fd");
    usage.threads = entries("/proc/self/task");
    FILE* maps = fopen("/proc/self/maps", "r");
    char line[1024];
    // Only what the library maps: the heap of the C library grows and shrinks as it likes.
    while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
      usage.mappings += strstr(line, "memfd:nanomc") != nullptr;
    }
    if (maps != nullptr) fclose(maps);
    return usage;
  }
};

void same_usage(const Usage& before, const char* what) {
  Usage after = Usage::now();
  for (int i = 0; i < 500 && after.threads > before.threads; ++i) {  // a thread that ended may linger in /proc
    sleep_ms(10);
    after = Usage::now();
  }
  printf("     %s: descriptors %zu -> %zu, threads %zu -> %zu, shared mappings %zu -> %zu\n", what, before.descriptors,
         after.descriptors, before.threads, after.threads, before.mappings, after.mappings);
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads <= before.threads);  // one may have lingered in the count before
  CHECK(after.mappings == before.mappings);
}

// Runs in a process of its own, since it makes handles.
void many_lives(const Place& place) {
  Setup setup = seat(0);
  setup.size = 1;
  const auto once = [&](nmc_status_t (*end)(nmc_world_t*)) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    REQUIRE(OK(nmc_world_join(&config, &world)));
    OK(nmc_world_barrier(world, 1000));
    if (end != nullptr) OK(end(world));
    OK(nmc_world_destroy(world));
  };
  once(nullptr);  // what stays forever (a page, a record per thread) is there after the first
  const Usage before = Usage::now();
  for (int i = 0; i < 50; ++i) once(i % 3 == 0 ? nullptr : i % 3 == 1 ? nmc_world_finalize : nmc_world_abort);
  same_usage(before, "50 joins");
  for (int i = 0; i < 20; ++i) {
    setup.size = 2;
    setup.timeout_ms = 15;
    nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    GIVES(nmc_world_join(&config, &world), NMC_ERR_TIMEOUT);
    config.rank = 1;
    GIVES(nmc_world_join(&config, &world), NMC_ERR_TIMEOUT);
  }
  same_usage(before, "40 joins that timed out");
  for (int i = 0; i < 20; ++i) {
    setup.timeout_ms = 20000;
    setup.size = 4;
    const nmc_world_config_t config = config_of(place, setup);
    const int32_t ranks[4] = {0, 1, 2, 3};
    nmc_world_t* worlds[4];
    REQUIRE(OK(nmc_world_join_ranks(&config, ranks, 4, worlds)));
    // One of them comes back.
    OK(nmc_world_destroy(worlds[2]));
    nmc_world_config_t again = config;
    again.rank = 2;
    REQUIRE(OK(nmc_world_join(&again, &worlds[2])));
    for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
  }
  same_usage(before, "20 worlds of 4 with a rejoin");
  for (int i = 0; i < 20; ++i) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* worlds[4];
    REQUIRE(OK(nmc_world_create_local(&config, worlds)));
    for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
    nmc_master_t* master = nullptr;
    REQUIRE(OK(nmc_master_start(&config, &master)));
    OK(nmc_master_destroy(master));
  }
  same_usage(before, "20 local worlds and masters");
  CHECK(place.leftovers().empty());
}

void survivor() {
  promise("a_rank_that_sees_others_come_and_go_keeps_no_descriptors_of_them");
  Place place;
  Process survivor([&place](Link& test) {
    Setup setup = seat(0);
    setup.size = 2;
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    const nmc_status_t status = nmc_world_join(&config, &world);
    test.say(outcome(status));
    if (status != NMC_OK) return;
    std::string line;
    Usage before;
    bool first = true;
    while (test.hear(line, 1e6) && line != "quit") {  // each line: a process came and went
      CHECK(await(world, [&] {
              uint32_t state = 77;
              OK(nmc_world_alive(world, 1, &state));
              return state == NMC_RANK_GONE;
            }) >= 0);
      sleep_ms(20);  // the threads of the library close what they polled
      if (std::exchange(first, false)) before = Usage::now();
      test.say("seen");
    }
    same_usage(before, "10 peers that died");
    OK(nmc_world_destroy(world));
  });
  Setup setup = seat(1);
  setup.size = 2;
  Process other = rank_process(place, setup);
  REQUIRE(SAYS(survivor.reply(), "NMC_OK"));
  REQUIRE(SAYS(other.reply(), "NMC_OK"));
  for (int i = 0; i < 10; ++i) {
    other.kill9();
    SAYS(survivor.ask("died"), "seen");
    other = rank_process(place, setup);
    REQUIRE(SAYS(other.reply(), "NMC_OK"));
  }
  other.kill9();
  SAYS(survivor.ask("died"), "seen");
  survivor.send("quit");
  CHECK(survivor.ends_well());
}

}  // namespace

int main() {
  skip_without_join();
  in_order();
  massacre();
  promise("a_process_that_joins_and_leaves_many_times_leaks_nothing");
  {
    Place place;
    Process process([&place](Link&) { many_lives(place); });
    CHECK(process.ends_well());
  }
  survivor();
  return finish();
}
