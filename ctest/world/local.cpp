// A world inside one process: heaps, addresses, words, barrier, self-test, text, and leaving.
#include <thread>
#include <vector>

#include "../support/random.hpp"
#include "../support/check.h"

namespace {

constexpr uint64_t kHeap = 200000;  // not a multiple of the page size

struct Local {
  std::vector<nmc_world_t*> ranks;
  explicit Local(uint32_t n, uint64_t heap_bytes = kHeap) : ranks(n) {
    nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
    config.world_size = n;
    config.heap_bytes = heap_bytes;
    REQUIRE(OK(nmc_world_create_local(&config, ranks.data())));
  }
  ~Local() {
    for (nmc_world_t* world : ranks) OK(nmc_world_destroy(world));
  }
  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;
  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
};

char* address(nmc_world_t* world, int32_t rank, uint64_t offset, uint64_t bytes) {
  void* ptr = nullptr;
  OK(nmc_world_ptr(world, rank, offset, bytes, &ptr));
  return static_cast<char*>(ptr);
}

template <class Body>
void on_all(const Local& local, Body body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < local.size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank, local.ranks[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

void facts(const Local& local) {
  promise("every_rank_knows_itself_and_the_others");
  uint64_t world_id = 0;
  for (int32_t rank = 0; rank < local.size(); ++rank) {
    nmc_world_info_t info = NMC_WORLD_INFO_INIT;
    OK(nmc_world_info(local.ranks[rank], &info));
    CHECK(info.rank == static_cast<uint32_t>(rank) && info.world_size == local.ranks.size());
    CHECK(info.heap_kind == NMC_HEAP_HOST && info.heap_bytes == kHeap && info.words_per_rank == 64);
    CHECK(info.world_id != 0 && (rank == 0 || info.world_id == world_id) && info.min_ranks == info.world_size);
    world_id = info.world_id;
    for (int32_t peer = 0; peer < local.size(); ++peer) {
      nmc_rank_info_t about = NMC_RANK_INFO_INIT;
      OK(nmc_world_rank_info(local.ranks[rank], peer, &about));
      CHECK(about.state == NMC_RANK_ALIVE && about.generation == 1 && about.device == -1);
      CHECK(about.heap_base == address(local.ranks[rank], peer, 0, 1));
      CHECK(about.device_rank == static_cast<uint32_t>(peer) && about.pid != 0);
      int32_t found = -1;
      OK(nmc_world_rank_of_device_rank(local.ranks[rank], peer, &found));
      CHECK(found == peer);
    }
    const uint64_t something = 0;
    const uint64_t* host = nullptr;
    const uint64_t* device = &something;
    uint32_t n = 0;
    OK(nmc_world_base_table(local.ranks[rank], &host, &device, &n));
    CHECK(n == local.ranks.size() && device == nullptr);
    for (uint32_t peer = 0; peer < n; ++peer) {
      CHECK(host[peer] == reinterpret_cast<uint64_t>(address(local.ranks[rank], static_cast<int32_t>(peer), 0, 1)));
    }
  }
}

void heaps(const Local& local) {
  promise("what_one_rank_writes_every_rank_reads_and_heaps_do_not_overlap");
  for (int32_t owner = 0; owner < local.size(); ++owner) {
    memset(address(local.ranks[owner], owner, 0, kHeap), owner + 1, kHeap);
  }
  for (int32_t rank = 0; rank < local.size(); ++rank) {
    for (int32_t owner = 0; owner < local.size(); ++owner) {
      const char* heap = address(local.ranks[rank], owner, 0, kHeap);
      uint64_t same = 0;
      for (uint64_t i = 0; i < kHeap; ++i) same += heap[i] == owner + 1;
      CHECK(same == kHeap);
    }
  }
  promise("ptr_and_locate_are_inverse");
  Random random(42);
  for (int i = 0; i < 2000; ++i) {
    nmc_world_t* world = local.ranks[random() % local.ranks.size()];
    const int32_t rank = static_cast<int32_t>(random() % local.ranks.size());
    const uint64_t offset = random() % kHeap;
    const uint64_t bytes = random() % (kHeap - offset + 1);
    int32_t found_rank = -1;
    uint64_t found_offset = 0;
    if (!OK(nmc_world_locate(world, address(world, rank, offset, bytes), &found_rank, &found_offset))) break;
    if (!CHECK(found_rank == rank && found_offset == offset)) break;
  }
}

void words(const Local& local) {
  const auto value = [](int32_t rank, uint32_t index) {
    return (uint64_t{1} << 40) + static_cast<uint64_t>(rank) * 64 + index;
  };
  promise("words_are_shared_start_at_zero_and_stand_alone_on_their_cache_lines");
  for (int32_t rank = 0; rank < local.size(); ++rank) {
    for (uint32_t index = 0; index < 64; ++index) {
      uint64_t* word = nullptr;
      uint64_t* device = reinterpret_cast<uint64_t*>(8);
      OK(nmc_world_word(local.ranks[0], rank, index, &word, &device));
      CHECK(device == nullptr && reinterpret_cast<uintptr_t>(word) % NMC_CACHE_LINE == 0);
      CHECK(__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0);
      __atomic_store_n(word, value(rank, index), __ATOMIC_RELEASE);
    }
  }
  for (nmc_world_t* world : local.ranks) {
    for (int32_t rank = 0; rank < local.size(); ++rank) {
      for (uint32_t index = 0; index < 64; ++index) {
        uint64_t* word = nullptr;
        OK(nmc_world_word(world, rank, index, &word, nullptr));
        CHECK(__atomic_load_n(word, __ATOMIC_ACQUIRE) == value(rank, index));
      }
    }
  }
}

void barriers(const Local& local) {
  promise("nobody_passes_a_barrier_before_all_have_arrived");
  constexpr int kRounds = 50;
  std::vector<int> arrived(kRounds, 0);
  on_all(local, [&](int32_t, nmc_world_t* world) {
    for (int& count : arrived) {
      __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
      OK(nmc_world_barrier(world, -1));
      CHECK(__atomic_load_n(&count, __ATOMIC_SEQ_CST) == local.size());
    }
  });
  if (local.size() > 1) {
    promise("a_barrier_that_timed_out_is_still_open");
    GIVES(nmc_world_barrier(local.ranks[0], 1), NMC_ERR_TIMEOUT);
    CHECK(error_mentions("rank 1"));
    on_all(local, [&](int32_t, nmc_world_t* world) { OK(nmc_world_barrier(world, -1)); });
    promise("two_threads_cannot_wait_through_one_handle");
    std::thread first([&] {
      nmc_status_t status = NMC_ERR_BUSY;  // our own probe below may be inside
      while (status == NMC_ERR_BUSY) status = nmc_world_barrier(local.ranks[0], 30000);
      OK(status);
    });
    nmc_status_t status = NMC_ERR_TIMEOUT;
    for (int i = 0; i < 3000 && status == NMC_ERR_TIMEOUT; ++i) {
      status = nmc_world_barrier(local.ranks[0], 0);
      if (status == NMC_ERR_TIMEOUT) sleep_ms(1);
    }
    GIVES(status, NMC_ERR_BUSY);
    std::vector<std::thread> others;
    for (int32_t rank = 1; rank < local.size(); ++rank) {
      others.emplace_back([&, rank] { OK(nmc_world_barrier(local.ranks[rank], -1)); });
    }
    for (std::thread& thread : others) thread.join();
    first.join();
  }
  promise("the_self_test_passes_again_and_again");
  on_all(local, [&](int32_t, nmc_world_t* world) {
    for (uint64_t seed = 0; seed < 5; ++seed) OK(nmc_world_selftest(world, seed, -1));
  });
}

void text(const Local& local) {
  promise("text_that_does_not_fit_is_cut_and_the_size_is_told");
  nmc_world_t* world = local.ranks[0];
  size_t needed = 0;
  OK(nmc_world_dump(world, nullptr, 0, &needed));
  REQUIRE(needed > 20);
  GIVES(nmc_world_dump(world, nullptr, 0, nullptr), NMC_ERR_TOO_SMALL);
  std::vector<char> whole(needed);
  size_t again = 0;
  OK(nmc_world_dump(world, whole.data(), whole.size(), &again));
  CHECK(again == needed && strlen(whole.data()) + 1 == needed);
  CHECK(strstr(whole.data(), "rank 0") != nullptr);
  for (size_t capacity : {size_t{1}, size_t{2}, needed / 2, needed - 1}) {
    std::vector<char> part(capacity + 8, '#');
    again = 0;
    GIVES(nmc_world_dump(world, part.data(), capacity, &again), NMC_ERR_TOO_SMALL);
    CHECK(again == needed && strlen(part.data()) == capacity - 1 && part[capacity] == '#');
    CHECK(memcmp(part.data(), whole.data(), capacity - 1) == 0);
  }
  promise("nothing_went_wrong_in_the_background");
  nmc_status_t status = 77;
  char message[16] = "#";
  OK(nmc_world_async_error(world, &status, message, sizeof message, &needed));
  CHECK(status == NMC_OK && message[0] == '\0' && needed == 1);
}

void leaving() {
  promise("a_rank_that_left_is_seen_as_left_and_keeps_its_memory");
  Local local(3);
  OK(nmc_world_finalize(local.ranks[1]));
  OK(nmc_world_finalize(local.ranks[1]));  // again: nothing
  for (nmc_world_t* world : local.ranks) {
    uint32_t state = 77;
    OK(nmc_world_alive(world, 1, &state));
    CHECK(state == NMC_RANK_LEFT);
    OK(nmc_world_alive(world, 2, &state));
    CHECK(state == NMC_RANK_ALIVE);
  }
  GIVES(nmc_world_barrier(local.ranks[0], 5000), NMC_ERR_PEER_LOST);
  CHECK(error_mentions("rank 1"));
  strcpy(address(local.ranks[1], 0, 0, 16), "still here");
  CHECK(strcmp(address(local.ranks[0], 0, 0, 16), "still here") == 0);
  OK(nmc_world_destroy(local.ranks[1]));
  strcpy(address(local.ranks[0], 1, 0, 16), "still here too");  // its heap lives as long as a handle does
  CHECK(strcmp(address(local.ranks[2], 1, 0, 16), "still here too") == 0);
  local.ranks[1] = nullptr;
  promise("a_rank_that_aborted_is_not_alive_and_its_own_waiting_calls_are_cancelled");
  OK(nmc_world_abort(local.ranks[2]));
  uint32_t state = 77;
  OK(nmc_world_alive(local.ranks[0], 2, &state));
  CHECK(state == NMC_RANK_DYING || state == NMC_RANK_GONE);
  GIVES(nmc_world_barrier(local.ranks[2], 5000), NMC_ERR_CANCELLED);
}

void small_heaps() {
  promise("heaps_of_any_size_work");
  for (uint64_t bytes : {uint64_t{1}, uint64_t{15}, uint64_t{4095}, uint64_t{4097}}) {
    Local local(2, bytes);
    address(local.ranks[0], 1, 0, bytes)[bytes - 1] = 'x';
    CHECK(address(local.ranks[1], 1, 0, bytes)[bytes - 1] == 'x');
  }
  promise("the_self_test_says_what_it_needs");
  Local tiny(2, 8);
  GIVES(nmc_world_selftest(tiny.ranks[0], 1, 0), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("32"));
}

void unused_fields() {
  promise("a_local_world_does_not_look_at_name_dir_rank_master_and_timeouts");
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = 2;
  config.heap_bytes = 4096;
  config.name = slice_of("not a name!");
  config.rank = 17;
  config.join_timeout_ms = -5;
  nmc_world_t* pair[2] = {nullptr, nullptr};
  OK(nmc_world_create_local(&config, pair));
  for (nmc_world_t* world : pair) OK(nmc_world_destroy(world));
}

}  // namespace

int main() {
  for (uint32_t n = 1; n <= 8; ++n) {
    printf("world of %u\n", n);
    Local local(n);
    facts(local);
    heaps(local);
    words(local);
    barriers(local);
    text(local);
  }
  leaving();
  small_heaps();
  unused_fields();
  return finish();
}
