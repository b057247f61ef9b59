// Random steps of expert-parallel groups in one process: against double precision, and the same bits in every
// arrangement: one thread with grouped calls, halves apart, a thread a rank. `ep_exchange CASES [FIRST] [BREAK]`.
// BREAK is for the controls: "order" sums in another order, "row" exchanges two rows.
#include "ep_check.hpp"

#include <atomic>
#include <thread>

#include "../integration/check.h"

using namespace ep;
using HostRank = Rank<HostMemory>;

namespace {

const char* broken = "";

struct Group {
  std::vector<nmc_world_t*> worlds;
  std::vector<nmc_ep_t*> eps;
  std::vector<HostRank> ranks;
  explicit Group(const Case& c) : worlds(c.world), eps(c.world) {
    const nmc_ep_config_t config = c.config();
    nmc_ep_bytes_t bytes;
    REQUIRE(OK(nmc_ep_bytes_needed(&config, c.world, 0, &bytes)));
    nmc_world_config_t world = NMC_WORLD_CONFIG_INIT;
    world.world_size = c.world;
    world.heap_bytes = bytes.transport + c.heap_offset;
    REQUIRE(OK(nmc_world_create_local(&world, worlds.data())));
    for (uint32_t r = 0; r < c.world; ++r) {
      // What was there before must not matter: NaN everywhere.
      void* heap = nullptr;
      REQUIRE(OK(nmc_world_ptr(worlds[r], static_cast<int32_t>(r), 0, world.heap_bytes, &heap)));
      std::memset(heap, 0xff, world.heap_bytes);
    }
    REQUIRE(OK(nmc_ep_create_ranks(worlds.data(), c.world, &config, eps.data())));
    for (uint32_t r = 0; r < c.world; ++r) ranks.emplace_back(c, r);
  }
  ~Group() {
    for (nmc_ep_t* e : eps) OK(nmc_ep_destroy(e));
    for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
  }
};

enum Arrangement { kGrouped, kHalves, kThreads, kArrangements };

void step(Group& g, uint32_t layer, Arrangement how) {
  const auto each = [&](auto body) {
    for (size_t r = 0; r < g.ranks.size(); ++r) body(g.eps[r], g.ranks[r]);
  };
  if (how == kThreads) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < g.ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        HostRank& rank = g.ranks[r];
        const nmc_ep_dispatch_t args = rank.dispatch(layer, true);
        const nmc_ep_grouped_t where = rank.where();
        if (!OK(nmc_ep_dispatch(g.eps[r], nullptr, &args))) return;
        OK(nmc_ep_route_pack(g.eps[r], nullptr, layer, &where));
        rank.compute();
        OK(nmc_ep_scatter(g.eps[r], nullptr, layer, rank.y.get(), where.row_of, nullptr));
        OK(nmc_ep_combine(g.eps[r], nullptr, layer, nullptr, rank.out.get()));
      });
    }
    for (std::thread& t : threads) t.join();
    return;
  }
  const bool halves = how == kHalves;
  if (!halves) OK(nmc_ep_group_begin());
  each([&](nmc_ep_t* e, HostRank& rank) {
    const nmc_ep_dispatch_t args = rank.dispatch(layer, halves);
    OK(halves ? nmc_ep_dispatch_send(e, nullptr, &args) : nmc_ep_dispatch(e, nullptr, &args));
  });
  if (halves) each([&](nmc_ep_t* e, HostRank&) { OK(nmc_ep_dispatch_recv(e, nullptr, layer)); });
  each([&](nmc_ep_t* e, HostRank& rank) {
    const nmc_ep_grouped_t where = rank.where();
    OK(nmc_ep_route_pack(e, nullptr, layer, &where));
  });
  if (!halves) OK(nmc_ep_group_end());
  each([&](nmc_ep_t*, HostRank& rank) { rank.compute(); });
  std::vector<Buffer<HostMemory>> staged;
  each([&](nmc_ep_t* e, HostRank& rank) {
    // Once through memory of the program, once in place.
    void* y = nullptr;
    if (halves) {
      staged.emplace_back(size_t{rank.c.world} * rank.c.t_cap * rank.c.y_bytes());
      y = staged.back().get();
    }
    OK(nmc_ep_scatter(e, nullptr, layer, rank.y.get(), rank.row_of.as<int32_t>(), y));
    if (halves) OK(nmc_ep_combine_send(e, nullptr, layer, y));
  });
  if (!halves) OK(nmc_ep_group_begin());
  each([&](nmc_ep_t* e, HostRank& rank) {
    OK(halves ? nmc_ep_combine_recv(e, nullptr, layer, rank.out.get())
              : nmc_ep_combine(e, nullptr, layer, nullptr, rank.out.get()));
  });
  if (!halves) OK(nmc_ep_group_end());
}

void run(uint64_t seed) {
  const Case c = random_case(seed);
  std::vector<Bytes> first;
  for (int how = 0; how < kArrangements; ++how) {
    Group g(c);
    for (uint32_t s = 0; s < 4; ++s) {
      for (HostRank& rank : g.ranks) rank.load(s);
      step(g, s, static_cast<Arrangement>(how));
      if (how == 1 && std::string(broken) == "row" && g.ranks[0].tokens.n > 1) {
        Bytes out = g.ranks[0].out.read();
        std::swap_ranges(out.begin(), out.begin() + c.y_bytes(), out.begin() + c.y_bytes());
        g.ranks[0].out.put(out);
      }
      for (HostRank& rank : g.ranks) {
        const double distance = rank.distance();
        if (distance > tolerance(c)) {
          std::printf("seed %llu step %u rank %u: the result is off by %g\n", static_cast<unsigned long long>(seed), s, rank.number, distance);
        }
        CHECK(distance <= tolerance(c));
        const Bytes digest = rank.digest();
        const size_t at = s * c.world + rank.number;
        if (how == 0) first.push_back(digest);
        else if (first[at] != digest) {
          std::printf("seed %llu step %u rank %u: arrangement %d gives other bits\n", static_cast<unsigned long long>(seed), s, rank.number, how);
          CHECK(first[at] == digest);
        }
      }
    }
    for (nmc_ep_t* e : g.eps) OK(nmc_ep_check(e));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 40;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  if (argc > 3) broken = argv[3];
  promise("every arrangement gives the same bits, close to double precision");
  for (uint64_t seed = first; seed < first + cases; ++seed) run(seed);
  return finish();
}
