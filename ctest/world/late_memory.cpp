// A rank comes later while another one gets no memory: it cannot map the new heap then. When there is memory again it can, what is stored
// there is read by all, and nothing of it is lost when only the rank that was short of memory lives on.
#include "../support/store_puppet.hpp"

namespace {

constexpr uint32_t kSize = 3;

// Asks again as long as a rank's heap cannot be reached.
std::string until_reached(Process& process, const std::string& question) {
  const double deadline = seconds_now() + 60;
  std::string said;
  do {
    said = process.ask(question);
  } while (said.find("NMC_ERR_PEER_LOST") != std::string::npos && seconds_now() < deadline);
  return said;
}

void reads(Process& rank, const std::string& key) {
  SAYS(until_reached(rank, "pin " + key), "NMC_OK");
  SAYS(rank.ask("get " + key + " 9000 3"), "right");
  SAYS(rank.ask("unpin " + key), "NMC_OK");
}

void story(int short_of_memory) {
  Place place;
  StoreWish wish;
  wish.least = 1;
  wish.pages = (16 << 20) / wish.page_bytes;
  Process ranks[kSize];
  for (int rank : {0, 1}) ranks[rank] = come(place, rank, kSize, wish);

  promise("a_rank_that_had_no_memory_for_a_heap_maps_it_when_there_is_some");
  SAYS(ranks[short_of_memory].ask("limit 1"), "limited");
  ranks[2] = come(place, 2, kSize, wish);
  SAYS(until_reached(ranks[2], "put own 9000 3 2 0 0 2"), "NMC_OK");
  // It tries a few times in vain.
  sleep_ms(600);
  SAYS(ranks[short_of_memory].ask("limit -1"), "limited");
  for (Process& rank : ranks) reads(rank, "own");
  SAYS(until_reached(ranks[short_of_memory], "put given 9000 3 2 0 0 2"), "NMC_OK");

  promise("nothing_is_lost_that_it_alone_has_mapped");
  const int other = 1 - short_of_memory;
  for (int rank : {2, other}) ranks[rank].kill9();
  for (int rank : {other, 2}) ranks[rank] = come(place, rank, kSize, wish);
  for (Process& rank : ranks) {
    for (const char* key : {"own", "given"}) reads(rank, key);
  }
  std::vector<Process> all;
  for (Process& rank : ranks) all.push_back(std::move(rank));
  dismiss_clients(all);
  CHECK(place.leftovers().empty());
}

}  // namespace

int main() {
  skip_without_join();
  story(1);
  story(0);
  return finish();
}
