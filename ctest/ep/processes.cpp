// The same steps in one process with all ranks, and in processes with one or several: the same bits.
// usage: ep_processes CASES [FIRST] [BREAK]. BREAK "seed": the process with all ranks has other tokens, which must show.
#include "ep_host.hpp"

#include <map>

#include "../support/puppet.hpp"

using namespace ep;

namespace {

constexpr uint32_t kSteps = 4;

std::string line(uint32_t step, const HostRank& rank) {
  return std::to_string(step) + " " + std::to_string(rank.number) + " " + std::to_string(rank.digest_hash());
}

void all_ranks(Link& test, const Case& c) {
  Group g(c);
  for (uint32_t s = 0; s < kSteps; ++s) {
    g.load(s);
    grouped_step(g, s);
    for (HostRank& rank : g.ranks) test.say(line(s, rank));
  }
}

// The ranks `first` to `first + n - 1`, each on a thread.
void some_ranks(Link& test, const Case& c, const Place& place, uint32_t first, uint32_t n) {
  Setup setup;
  setup.size = c.world;
  setup.heap_bytes = heap_bytes(c);
  std::vector<std::string> lines(n * kSteps);
  on_threads(n, [&](uint32_t i) {
    Setup mine = setup;
    mine.rank = static_cast<int32_t>(first + i);
    const nmc_world_config_t world_config = config_of(place, mine);
    nmc_world_t* world = nullptr;
    REQUIRE(OK(nmc_world_join(&world_config, &world)));
    poison_heap(world);
    nmc_ep_config_t config = c.config();
    config.deadline_ms = static_cast<int64_t>(kPatience * 1000);
    nmc_ep_t* e = nullptr;
    REQUIRE(OK(nmc_ep_create(world, &config, &e)));
    HostRank rank(c, first + i);
    for (uint32_t s = 0; s < kSteps; ++s) {
      rank.load(s);
      OK(try_step(e, rank, s));
      CHECK(right(rank, s));
      lines[i * kSteps + s] = line(s, rank);
    }
    OK(nmc_world_barrier(world, static_cast<int64_t>(kPatience * 1000)));
    OK(nmc_ep_destroy(e));
    OK(nmc_world_destroy(world));
  });
  for (const std::string& l : lines) test.say(l);
}

// What `processes` say about each step and rank.
std::map<std::string, std::string> heard(std::vector<Process>& processes, size_t lines_each) {
  std::map<std::string, std::string> all;
  for (Process& p : processes) {
    for (size_t i = 0; i < lines_each; ++i) {
      const std::string l = p.reply();
      all[l.substr(0, l.rfind(' '))] = l.substr(l.rfind(' '));
    }
    CHECK(p.ends_well());
  }
  return all;
}

void run(uint64_t seed, const std::string& broken) {
  const Case c = random_case(seed);
  Case alone = c;
  if (broken == "seed") ++alone.seed;
  std::vector<Process> one;
  one.emplace_back([&](Link& test) { all_ranks(test, alone); });
  const auto want = heard(one, size_t{kSteps} * c.world);
  for (const uint32_t each : {1u, 2u}) {
    if (each > 1 && (c.world % each != 0 || c.world == each)) continue;
    const Place place;
    std::vector<Process> parts;
    for (uint32_t first = 0; first < c.world; first += each) {
      parts.emplace_back([&, first](Link& test) { some_ranks(test, c, place, first, each); });
    }
    const auto got = heard(parts, size_t{kSteps} * each);
    CHECK(got.size() == size_t{kSteps} * c.world);
    if (got != want) {
      std::printf("seed %llu: %u processes give other bits than one\n", static_cast<unsigned long long>(seed), c.world / each);
      CHECK(got == want);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const uint64_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 6;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  promise("one process with all ranks and processes with some give the same bits");
  for (uint64_t seed = first; seed < first + cases; ++seed) run(seed, argc > 3 ? argv[3] : "");
  return finish();
}
