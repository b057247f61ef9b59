// A random rank is killed while its group works. The others' calls return, their heaps are as they were, they go on as a
// smaller group in the same memory; then a new process takes the place and all four go on.
// usage: ep_kills ROUNDS [SEED] [BREAK]. BREAK "keep": the survivors keep the dead rank as a member, and get no group.
#include "ep_host.hpp"

#include "../support/puppet.hpp"

using namespace ep;

namespace {

constexpr uint32_t kRanks = 4, kSteps = 20;
constexpr uint64_t kKept = 4096;  // bytes behind the transport

bool keep = false;  // the control; ranks know it, too

int64_t deadline_ms() { return short_deadline_ms(); }
// Until others have come to make a group. In the control they never do, which takes all of it.
int64_t come_together_ms() { return (keep ? 1 : 5) * deadline_ms(); }

Case case_of(uint32_t ranks, uint64_t seed) {
  Case c;
  c.seed = seed;
  c.world = ranks;
  c.experts = 12;
  c.max_m = ranks * c.t_cap * c.top_k;
  return c;
}

uint64_t transport_bytes() { return heap_bytes(case_of(kRanks, 0)); }

// What a rank keeps in its heap for itself, behind the transport.
void kept(nmc_world_t* world, int32_t rank, bool check) {
  unsigned char* at = nullptr;
  REQUIRE(OK(nmc_world_ptr(world, rank, transport_bytes(), kKept, reinterpret_cast<void**>(&at))));
  for (uint64_t i = 0; i < kKept; ++i) {
    const auto want = static_cast<unsigned char>(i * 31 + static_cast<uint64_t>(rank) * 7 + 1);
    if (!check) at[i] = want;
    else if (at[i] != want) return static_cast<void>(CHECK(!"the heap is as it was"));
  }
}

nmc_status_t make(nmc_world_t* world, const Case& c, uint64_t members, int64_t ms, nmc_ep_t** e) {
  nmc_ep_config_t config = c.config();
  config.members = members;
  config.deadline_ms = ms;
  return nmc_ep_create(world, &config, e);
}

// A rank. The test says `work`, and it works until the group is over; or `group <members> <seed>`, and it works for a while
// with those, and looks at every result.
void as_rank(Link& test, const Place& place, int32_t rank) {
  Setup setup;
  setup.size = kRanks;
  setup.rank = rank;
  setup.heap_bytes = transport_bytes() + kKept;
  const nmc_world_config_t config = config_of(place, setup);
  nmc_world_t* world = nullptr;
  const nmc_status_t joined = nmc_world_join(&config, &world);
  test.say(outcome(joined));
  if (joined != NMC_OK) return;
  poison_heap(world);
  kept(world, rank, false);
  std::string line;
  while (test.hear(line, 1e6) && line != "quit") {
    std::istringstream words(line);
    std::string verb;
    uint64_t members = (1 << kRanks) - 1, seed = 1;
    words >> verb >> members >> seed;
    const uint32_t n = static_cast<uint32_t>(__builtin_popcountll(members));
    const uint32_t number = static_cast<uint32_t>(__builtin_popcountll(members & ((1u << rank) - 1)));
    const Case c = case_of(n, seed);
    HostRank mine(c, number);
    nmc_ep_t* e = nullptr;
    nmc_status_t status = make(world, c, members, verb == "work" ? deadline_ms() : come_together_ms(), &e);
    if (status == NMC_OK && verb == "work") test.say("works");
    double start = seconds_now();
    for (uint32_t s = 0; status == NMC_OK && (verb == "work" || s < kSteps); ++s) {
      mine.load(s);
      start = seconds_now();
      status = try_step(e, mine, s % 65536);
      if (status == NMC_OK && (verb == "group" || s % 16 == 0)) CHECK(right(mine, s));
    }
    const std::string said = outcome(status);
    if (verb == "work") CHECK(seconds_now() - start < 4e-3 * static_cast<double>(deadline_ms()));
    OK(nmc_ep_destroy(e));
    kept(world, rank, true);
    test.say(said);
  }
  OK(nmc_world_destroy(world));
}

Process start(const Place& place, uint32_t rank) {
  return Process([&place, rank](Link& test) { as_rank(test, place, static_cast<int32_t>(rank)); });
}

void round(Random& random) {
  const uint32_t victim = static_cast<uint32_t>(random() % kRanks);
  const long delay_ms = static_cast<long>(random() % 40);
  std::printf("     rank %u is killed after %ld ms\n", victim, delay_ms);
  const Place place;
  std::vector<Process> ranks;
  for (uint32_t r = 0; r < kRanks; ++r) ranks.push_back(start(place, r));
  for (Process& rank : ranks) SAYS(rank.reply(), "NMC_OK");
  for (Process& rank : ranks) rank.send("work");
  for (Process& rank : ranks) SAYS(rank.reply(), "works");
  sleep_ms(delay_ms);
  ranks[victim].kill9();
  std::vector<Process*> survivors;
  for (uint32_t r = 0; r < kRanks; ++r) {
    if (r != victim) survivors.push_back(&ranks[r]);
  }
  for (Process* rank : survivors) {
    const std::string said = rank->reply();
    SAYS(said, "NMC_ERR_PEER_LOST");
    CHECK(said.find("rank " + std::to_string(victim)) != std::string::npos);
  }
  const std::string all = std::to_string((1 << kRanks) - 1), seed = " " + std::to_string(random() % 1000);
  TOGETHER(survivors, "group " + (keep ? all : std::to_string(((1 << kRanks) - 1) & ~(1 << victim))) + seed, "NMC_OK");
  if (failed_checks != 0) return;
  const std::string again = "group " + all + seed;
  const bool early = random() % 2 != 0;  // they come to make the group before the new rank is there
  const auto tell_survivors = [&] {
    for (Process* rank : survivors) rank->send(again);
  };
  if (early) tell_survivors();
  ranks[victim] = start(place, victim);
  SAYS(ranks[victim].reply(), "NMC_OK");
  ranks[victim].send(again);
  if (!early) tell_survivors();
  for (Process& rank : ranks) SAYS(rank.reply(), "NMC_OK");
  for (Process& rank : ranks) rank.send("quit");
  for (Process& rank : ranks) CHECK(rank.ends_well());
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  promise("who is left learns of the death, keeps its heap, and goes on");
  keep = argc > 3 && std::string(argv[3]) == "keep";
  for (uint64_t i = 0; i < rounds && failed_checks == 0; ++i) round(random);
  return finish();
}
