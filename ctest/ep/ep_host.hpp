// Groups on host memory: a world in this process with a group on it, and steps of one rank or of all.
#ifndef NMC_CTEST_EP_HOST_HPP
#define NMC_CTEST_EP_HOST_HPP

#include "ep_check.hpp"

#include <algorithm>
#include <functional>
#include <thread>

#include "../support/check.h"

namespace ep {

using HostRank = Rank<HostMemory>;

// A deadline that runs out in a test, and is long enough for what must not run into it on a loaded machine.
inline int64_t short_deadline_ms() { return under_tool() ? 8000 : 2000; }

// Bytes that a rank's heap needs for the transport.
inline uint64_t heap_bytes(const Case& c) {
  const nmc_ep_config_t config = c.config();
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  REQUIRE(OK(nmc_ep_bytes_needed(&config, c.world, 0, &bytes)));
  return bytes.transport + c.heap_offset;
}

inline void fill_heap(nmc_world_t* world, int byte) {
  nmc_world_info_t info = NMC_WORLD_INFO_INIT;
  void* heap = nullptr;
  REQUIRE(OK(nmc_world_info(world, &info)));
  REQUIRE(OK(nmc_world_ptr(world, static_cast<int32_t>(info.rank), 0, info.heap_bytes, &heap)));
  std::memset(heap, byte, info.heap_bytes);
}

// What was in a heap before must not matter: NaN everywhere.
inline void poison_heap(nmc_world_t* world) { fill_heap(world, 0xff); }

inline std::vector<nmc_world_t*> local_world(uint32_t ranks, uint64_t bytes) {
  std::vector<nmc_world_t*> worlds(ranks);
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = ranks;
  config.heap_bytes = bytes;
  REQUIRE(OK(nmc_world_create_local(&config, worlds.data())));
  for (nmc_world_t* world : worlds) poison_heap(world);
  return worlds;
}

// All ranks of a world in this process, with a group. A rank whose group a test has destroyed has NULL here.
struct Group {
  const Case c;
  std::vector<nmc_world_t*> worlds;
  std::vector<nmc_ep_t*> eps;
  std::vector<HostRank> ranks;
  explicit Group(const Case& which) : c(which), worlds(local_world(c.world, heap_bytes(c))), eps(c.world) {
    for (uint32_t r = 0; r < c.world; ++r) ranks.emplace_back(c, r);
    create();
  }
  ~Group() {
    destroy();
    for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void create() {
    const nmc_ep_config_t config = c.config();
    REQUIRE(OK(nmc_ep_create_ranks(worlds.data(), c.world, &config, eps.data())));
  }
  void destroy(size_t rank) {
    OK(nmc_ep_destroy(eps[rank]));
    eps[rank] = nullptr;
  }
  void destroy() {
    for (size_t r = 0; r < eps.size(); ++r) destroy(r);
  }
  void load(uint32_t step, int fixed = -1) {
    for (HostRank& rank : ranks) rank.load(step, fixed);
  }
};

// One rank's part of a step, its tokens loaded; the first status that is not OK.
inline nmc_status_t try_step(nmc_ep_t* e, HostRank& rank, uint32_t layer) {
  const nmc_ep_dispatch_t args = rank.dispatch(layer, true);
  const nmc_ep_grouped_t where = rank.where();
  nmc_status_t status = nmc_ep_dispatch(e, &args, nullptr);
  if (status == NMC_OK) status = nmc_ep_route_pack(e, layer, &where, nullptr);
  if (status != NMC_OK) return status;
  rank.compute();
  status = nmc_ep_scatter(e, layer, rank.y.get(), where.row_of, nullptr, nullptr);
  return status == NMC_OK ? nmc_ep_combine(e, layer, nullptr, rank.out.get(), nullptr) : status;
}

// `body(rank)` on a thread for each of `ranks`.
inline void on_threads(uint32_t ranks, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& t : threads) t.join();
}

// A step of all ranks by one thread, with grouped calls.
inline void grouped_step(Group& g, uint32_t layer) {
  const auto each = [&](auto body) {
    for (size_t r = 0; r < g.ranks.size(); ++r) body(g.eps[r], g.ranks[r]);
  };
  OK(nmc_ep_group_begin());
  each([&](nmc_ep_t* e, HostRank& rank) {
    const nmc_ep_dispatch_t args = rank.dispatch(layer, false);
    const nmc_ep_grouped_t where = rank.where();
    OK(nmc_ep_dispatch(e, &args, nullptr));
    OK(nmc_ep_route_pack(e, layer, &where, nullptr));
  });
  OK(nmc_ep_group_end());
  each([](nmc_ep_t*, HostRank& rank) { rank.compute(); });
  OK(nmc_ep_group_begin());
  each([&](nmc_ep_t* e, HostRank& rank) {
    OK(nmc_ep_scatter(e, layer, rank.y.get(), rank.row_of.as<int32_t>(), nullptr, nullptr));
    OK(nmc_ep_combine(e, layer, nullptr, rank.out.get(), nullptr));
  });
  OK(nmc_ep_group_end());
}

// A result is close to double precision and, where the test knows the rows that arrive, exactly what the sums give.
inline bool right(const HostRank& rank, uint32_t step, Sum how = Sum::kAsPromised) {
  const double distance = rank.distance();
  const char* wrong = distance > tolerance(rank.c) ? "far from double precision" : "";
  if (rank.c.dispatch != NMC_EP_DISPATCH_FP8 && rank.exact(how) != rank.result()) wrong = "not the promised sum";
  if (*wrong != 0) {
    std::printf("seed %llu step %u rank %u: the result is %s (off by %g)\n", static_cast<unsigned long long>(rank.c.seed), step,
                rank.number, wrong, distance);
  }
  return *wrong == 0;
}

}  // namespace ep

#endif
