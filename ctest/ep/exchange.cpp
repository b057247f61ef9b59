// Random steps of expert-parallel groups in one process: close to double precision, the promised sum to the bit, and the
// same bits in every arrangement: one thread with grouped calls, halves apart, a thread a rank.
// usage: ep_exchange CASES [FIRST] [RUNS] [BREAK]
// Every case is run RUNS times (3), each time in a new group and in the next arrangement. BREAK is for the controls: "row"
// exchanges two rows of a result; "order" and "fused" expect sums that are taken backwards, or rounded once.
#include "ep_host.hpp"

using namespace ep;

namespace {

enum Arrangement { kGrouped, kHalves, kThreads, kArrangements };

void halves_step(Group& g, uint32_t layer) {
  const auto each = [&](auto body) {
    for (size_t r = 0; r < g.ranks.size(); ++r) body(g.eps[r], g.ranks[r]);
  };
  each([&](nmc_ep_t* e, HostRank& rank) {
    const nmc_ep_dispatch_t args = rank.dispatch(layer, true);
    OK(nmc_ep_dispatch_send(e, &args, nullptr));
  });
  each([&](nmc_ep_t* e, HostRank&) { OK(nmc_ep_dispatch_recv(e, layer, nullptr)); });
  each([&](nmc_ep_t* e, HostRank& rank) {
    const nmc_ep_grouped_t where = rank.where();
    OK(nmc_ep_route_pack(e, layer, &where, nullptr));
    rank.compute();
    // Through memory of the program; the other arrangements return rows in place.
    const Buffer<HostMemory> y(size_t{rank.c.world} * rank.c.t_cap * rank.c.y_bytes());
    OK(nmc_ep_scatter(e, layer, rank.y.get(), rank.row_of.as<int32_t>(), y.get(), nullptr));
    OK(nmc_ep_combine_send(e, layer, y.get(), nullptr));
  });
  each([&](nmc_ep_t* e, HostRank& rank) { OK(nmc_ep_combine_recv(e, layer, rank.out.get(), nullptr)); });
}

void step(Group& g, uint32_t layer, Arrangement how) {
  if (how == kGrouped) grouped_step(g, layer);
  else if (how == kHalves) halves_step(g, layer);
  else on_threads(g.ranks.size(), [&](uint32_t r) { OK(try_step(g.eps[r], g.ranks[r], layer)); });
}

void exchange_rows(HostRank& rank) {
  Bytes out = rank.out.read();
  const auto row = out.begin() + rank.c.y_bytes();
  std::swap_ranges(out.begin(), row, row);
  rank.out.put(out);
}

void run(uint64_t seed, int runs, const std::string& broken) {
  const Case c = random_case(seed, under_tool_named("valgrind") ? 8 : 40);  // there the sums that they are compared with take longest
  const Sum sum = broken == "order" ? Sum::kBackwards : broken == "fused" ? Sum::kFused : Sum::kAsPromised;
  std::vector<Bytes> first;
  for (int n = 0; n < runs; ++n) {
    const auto how = static_cast<Arrangement>(n % kArrangements);
    Group g(c);
    for (uint32_t s = 0; s < 4; ++s) {
      g.load(s);
      step(g, s, how);
      if (n == 1 && broken == "row" && g.ranks[0].tokens.n > 1) exchange_rows(g.ranks[0]);
      for (HostRank& rank : g.ranks) {
        if (n < kArrangements) CHECK(right(rank, s, sum));
        const Bytes digest = rank.digest();
        if (n == 0) first.push_back(digest);
        const bool same = first[s * c.world + rank.number] == digest;
        if (!same) std::printf("seed %llu step %u rank %u: run %d gives other bits\n", static_cast<unsigned long long>(seed), s, rank.number, n);
        CHECK(same);
      }
    }
    for (nmc_ep_t* e : g.eps) OK(nmc_ep_check(e));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 40;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const int runs = argc > 3 ? std::atoi(argv[3]) : 3;
  promise("every arrangement gives the promised sums, the same bits each time");
  for (uint64_t seed = first; seed < first + cases; ++seed) run(seed, runs, argc > 4 ? argv[4] : "");
  return finish();
}
