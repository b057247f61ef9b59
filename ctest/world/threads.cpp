// Several ranks in one process: join_ranks, joins from threads, device ranks, and what is refused.
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "../support/random.hpp"
#include "../support/check.h"

namespace {

constexpr uint32_t kHeap = 1 << 16;

struct Place {
  char dir[32] = "/tmp/nmc-threads-XXXXXX";
  Place() { REQUIRE(mkdtemp(dir) != nullptr); }
  ~Place() { CHECK(rmdir(dir) == 0); }  // nothing of the world is left
  nmc_world_config_t config(uint32_t size) const {
    nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
    config.name = slice_of("threads");
    config.dir = slice_of(dir);
    config.world_size = size;
    config.heap_bytes = kHeap;
    return config;
  }
};

uint64_t* heap(nmc_world_t* world, int32_t rank) {
  void* ptr = nullptr;
  OK(nmc_world_ptr(world, rank, 0, kHeap, &ptr));
  return static_cast<uint64_t*>(ptr);
}

template <class Body>
void on_all(size_t n, Body body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

void eight_ranks() {
  promise("one_process_joins_as_eight_ranks");
  Place place;
  const nmc_world_config_t config = place.config(8);
  const int32_t ranks[8] = {3, 0, 7, 1, 2, 6, 5, 4};
  nmc_world_t* worlds[8];
  REQUIRE(OK(nmc_world_join_ranks(&config, ranks, 8, worlds)));
  for (int i = 0; i < 8; ++i) {
    nmc_world_info_t info = NMC_WORLD_INFO_INIT;
    OK(nmc_world_info(worlds[i], &info));
    CHECK(info.rank == static_cast<uint32_t>(ranks[i]) && info.master_up == 1);
    for (int32_t peer = 0; peer < 8; ++peer) {
      uint32_t state = 77;
      OK(nmc_world_alive(worlds[i], peer, &state));
      CHECK(state == NMC_RANK_ALIVE);
    }
    heap(worlds[i], ranks[i])[0] = 1000 + static_cast<uint64_t>(ranks[i]);
  }
  for (nmc_world_t* world : worlds) {
    for (int32_t peer = 0; peer < 8; ++peer) CHECK(heap(world, peer)[0] == 1000 + static_cast<uint64_t>(peer));
  }
  on_all(8, [&](size_t i) {
    for (int round = 0; round < 20; ++round) OK(nmc_world_barrier(worlds[i], -1));
    OK(nmc_world_selftest(worlds[i], 99, -1));
  });
  promise("one_of_them_leaves_and_the_others_see_it");
  OK(nmc_world_destroy(worlds[2]));  // rank 7
  for (int i = 0; i < 8; ++i) {
    if (i == 2) continue;
    uint32_t state = NMC_RANK_ALIVE;
    for (int wait = 0; wait < 10000 && state == NMC_RANK_ALIVE; ++wait) {
      OK(nmc_world_alive(worlds[i], 7, &state));
      if (state == NMC_RANK_ALIVE) sleep_ms(1);
    }
    CHECK(state == NMC_RANK_LEFT);
  }
  promise("its_place_can_be_taken_again_and_holds_what_was_in_it");
  nmc_world_config_t again = config;
  again.rank = 7;
  REQUIRE(OK(nmc_world_join(&again, &worlds[2])));
  CHECK(heap(worlds[2], 7)[1] == heap(worlds[0], 7)[1]);
  nmc_rank_info_t info = NMC_RANK_INFO_INIT;
  OK(nmc_world_rank_info(worlds[2], 7, &info));
  CHECK(info.generation == 2 && info.state == NMC_RANK_ALIVE);
  for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
}

void device_ranks() {
  promise("device_ranks_can_be_any_permutation");
  Random random(3);
  for (int round = 0; round < 5; ++round) {
    Place place;
    std::vector<int32_t> device_rank(6);
    std::iota(device_rank.begin(), device_rank.end(), 0);
    if (round > 0) std::shuffle(device_rank.begin(), device_rank.end(), random);
    std::vector<nmc_world_t*> worlds(6, nullptr);
    on_all(6, [&](size_t rank) {
      nmc_world_config_t config = place.config(6);
      config.rank = static_cast<int32_t>(rank);
      config.device_rank = device_rank[rank];
      OK(nmc_world_join(&config, &worlds[rank]));
    });
    for (nmc_world_t* world : worlds) {
      for (int32_t rank = 0; rank < 6; ++rank) {
        int32_t found = -1;
        OK(nmc_world_rank_of_device_rank(world, device_rank[rank], &found));
        CHECK(found == rank);
        nmc_rank_info_t info = NMC_RANK_INFO_INIT;
        OK(nmc_world_rank_info(world, rank, &info));
        CHECK(info.device_rank == static_cast<uint32_t>(device_rank[rank]));
      }
      const uint64_t* host = nullptr;  // by rank, whatever the device ranks are
      OK(nmc_world_base_table(world, &host, nullptr, nullptr));
      for (int32_t rank = 0; rank < 6; ++rank) CHECK(host[rank] == reinterpret_cast<uint64_t>(heap(world, rank)));
    }
    on_all(6, [&](size_t rank) { OK(nmc_world_selftest(worlds[rank], 5, -1)); });
    on_all(6, [&](size_t rank) { OK(nmc_world_destroy(worlds[rank])); });
  }
}

void automatic_ranks() {
  promise("automatic_ranks_are_all_different");
  Place place;
  std::vector<nmc_world_t*> worlds(5, nullptr);
  on_all(5, [&](size_t i) {
    const nmc_world_config_t config = place.config(5);  // rank -1
    OK(nmc_world_join(&config, &worlds[i]));
  });
  std::vector<int> seen(5, 0);
  for (nmc_world_t* world : worlds) {
    nmc_world_info_t info = NMC_WORLD_INFO_INIT;
    OK(nmc_world_info(world, &info));
    ++seen.at(info.rank);
  }
  for (int count : seen) CHECK(count == 1);
  promise("when_all_ranks_are_taken_a_further_one_is_refused");
  const nmc_world_config_t config = place.config(5);
  nmc_world_t* extra = worlds[0];
  GIVES(nmc_world_join(&config, &extra), NMC_ERR_EXISTS);
  CHECK(extra == nullptr);
  for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
}

// The old handle is destroyed while its successor is in the middle of its join: the window is short, so try often.
void given_once() {
  for (auto* end : {nmc_world_finalize, nmc_world_abort}) {
    promise(end == nmc_world_abort ? "after_abort_a_rank_is_never_given_to_two"
                                   : "after_finalize_a_rank_is_never_given_to_two");
    Place place;
    nmc_world_config_t config = place.config(2);
    config.join_timeout_ms = 10000;
    const int32_t ranks[2] = {0, 1};
    nmc_world_t* worlds[2];
    REQUIRE(OK(nmc_world_join_ranks(&config, ranks, 2, worlds)));
    config.rank = 1;
    for (int round = 0; round < 400; ++round) {
      OK(end(worlds[1]));
      std::thread destroyer([&, round, old = worlds[1]] {
        const timespec pause{0, round % 100 * 5000};
        nanosleep(&pause, nullptr);
        OK(nmc_world_destroy(old));
      });
      nmc_world_t* successor = nullptr;
      const bool joined = OK(nmc_world_join(&config, &successor));
      destroyer.join();
      worlds[1] = successor;
      if (!joined) break;
      nmc_world_t* rival = nullptr;
      const nmc_status_t status = nmc_world_join(&config, &rival);
      OK(nmc_world_destroy(rival));
      if (!GIVES(status, NMC_ERR_EXISTS)) {
        printf("     in round %d two living handles held rank 1\n", round);
        break;
      }
    }
    for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
  }
}

void duplicates() {
  promise("a_rank_that_is_taken_is_refused_before_and_after_the_world_is_formed");
  {
    Place place;
    nmc_world_config_t config = place.config(2);
    config.rank = 0;
    nmc_world_t* worlds[3] = {nullptr, nullptr, nullptr};
    std::thread first([&] { OK(nmc_world_join(&config, &worlds[0])); });
    sleep_ms(100);
    std::thread twin([&] {
      nmc_world_config_t same = config;
      GIVES(nmc_world_join(&same, &worlds[2]), NMC_ERR_EXISTS);
      CHECK(error_mentions("rank 0"));
    });
    twin.join();
    nmc_world_config_t other = config;
    other.rank = 1;
    OK(nmc_world_join(&other, &worlds[1]));
    first.join();
    GIVES(nmc_world_join(&other, &worlds[2]), NMC_ERR_EXISTS);
    CHECK(error_mentions("rank 1") && worlds[2] == nullptr);
    for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
  }
  promise("two_ranks_cannot_have_one_device_rank");
  {
    Place place;
    nmc_world_config_t config = place.config(2);
    config.join_timeout_ms = 3000;
    nmc_status_t status[2] = {NMC_OK, NMC_OK};
    bool named[2] = {false, false};
    on_all(2, [&](size_t i) {
      nmc_world_config_t mine = config;
      mine.rank = static_cast<int32_t>(i);
      mine.device_rank = 1;
      nmc_world_t* world = nullptr;
      status[i] = nmc_world_join(&mine, &world);
      named[i] = error_mentions("device_rank 1");
      OK(nmc_world_destroy(world));
    });
    const int refused = (status[0] == NMC_ERR_EXISTS && named[0]) ? 0 : 1;
    CHECK(status[refused] == NMC_ERR_EXISTS && named[refused]);
    GIVES(status[1 - refused], NMC_ERR_TIMEOUT);
  }
  promise("join_ranks_refuses_a_rank_that_it_was_given_twice_at_once");
  {
    Place place;
    nmc_world_config_t config = place.config(3);
    config.join_timeout_ms = 4000;
    const int32_t ranks[3] = {0, 1, 1};
    nmc_world_t* worlds[3];
    const double before = seconds_now();
    const nmc_status_t status = nmc_world_join_ranks(&config, ranks, 3, worlds);
    CHECK(status == NMC_ERR_EXISTS || status == NMC_ERR_INVALID_ARG);
    CHECK(seconds_now() - before < 3);  // it need not wait for the deadline to see this
    for (nmc_world_t* world : worlds) CHECK(world == nullptr);
  }
  promise("a_join_that_fails_leaves_no_rank_behind");
  {
    Place place;
    nmc_world_config_t config = place.config(3);
    config.join_timeout_ms = 100;
    const int32_t ranks[2] = {0, 1};  // of 3: the third never comes
    nmc_world_t* worlds[2];
    GIVES(nmc_world_join_ranks(&config, ranks, 2, worlds), NMC_ERR_TIMEOUT);
    CHECK(error_mentions("2] of 3"));  // and 1, if it happened to give up first
    for (nmc_world_t* world : worlds) CHECK(world == nullptr);
    config.join_timeout_ms = 10000;
    const int32_t all[3] = {2, 1, 0};
    nmc_world_t* three[3];
    REQUIRE(OK(nmc_world_join_ranks(&config, all, 3, three)));
    for (nmc_world_t* world : three) OK(nmc_world_destroy(world));
  }
}

}  // namespace

int main() {
  skip_without_join();
  eight_ranks();
  device_ranks();
  automatic_ranks();
  given_once();
  duplicates();
  return finish();
}
