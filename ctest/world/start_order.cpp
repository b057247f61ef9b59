// Ranks may start in any order, as processes of their own.
#include <algorithm>

#include "../support/random.hpp"
#include "../support/puppet.hpp"

namespace {

void random_orders() {
  promise("ranks_start_in_any_order_with_any_delay");
  Random random(11);
  for (int round = 0; round < 5; ++round) {
    Place place;
    std::vector<int32_t> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Process> ranks(4);
    for (int32_t rank : order) {
      Setup setup;
      setup.size = 4;
      setup.rank = rank;
      ranks[static_cast<size_t>(rank)] = rank_process(place, setup, static_cast<long>(random() % 200));
    }
    for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
    TOGETHER(all_of(ranks), "selftest 7", "NMC_OK");
    const std::string id = ranks[0].ask("world_id");
    for (Process& rank : ranks) CHECK(rank.ask("world_id") == id);
    dismiss(ranks);
    CHECK(place.leftovers().empty());
  }
}

void rank_0_last() {
  promise("rank_0_may_come_last_although_it_runs_the_master");
  Place place;
  std::vector<Process> ranks(3);
  for (int32_t rank : {2, 1, 0}) {
    Setup setup;
    setup.rank = rank;
    ranks[static_cast<size_t>(rank)] = rank_process(place, setup, rank == 0 ? 700 : 0);
  }
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  TOGETHER(all_of(ranks), "barrier 20000", "NMC_OK");
  dismiss(ranks);
}

void automatic() {
  promise("ranks_that_ask_for_no_number_get_all_numbers");
  Place place;
  std::vector<Process> ranks;
  for (int i = 0; i < 4; ++i) {
    Setup setup;
    setup.size = 4;
    ranks.push_back(rank_process(place, setup, i * 30));
  }
  std::set<std::string> numbers;
  for (Process& rank : ranks) {
    REQUIRE(SAYS(rank.reply(), "NMC_OK"));
    numbers.insert(rank.ask("rank"));
  }
  CHECK((numbers == std::set<std::string>{"0", "1", "2", "3"}));
  TOGETHER(all_of(ranks), "barrier 20000", "NMC_OK");
  dismiss(ranks);
}

void somebody_missing() {
  promise("a_join_that_gives_up_names_who_is_missing");
  Place place;
  Setup setup;
  setup.size = 4;
  setup.timeout_ms = 1500;
  setup.rank = 0;
  Process zero = rank_process(place, setup);
  setup.rank = 2;
  Process two = rank_process(place, setup);
  for (Process* rank : {&zero, &two}) {
    const std::string said = rank->reply();
    SAYS(said, "NMC_ERR_TIMEOUT");
    // Who gives up last has seen the other one go.
    CHECK(said.find("1") != std::string::npos && said.find("3") != std::string::npos);
    CHECK(rank->ends_well());
  }
  promise("without_a_master_the_message_says_that_nobody_serves");
  Process alone = rank_process(place, setup);
  const std::string said = alone.reply();
  SAYS(said, "NMC_ERR_TIMEOUT");
  CHECK(said.find("nobody serves") != std::string::npos && said.find("rank 0") != std::string::npos);
}

void killed_while_joining() {
  promise("and_who_died_while_it_joined");
  for (const long ms : {5, 20, 60}) {
    Place place;
    Setup setup;
    setup.size = 2;
    setup.timeout_ms = 2500;
    setup.heap_bytes = 192 << 20;  // takes a while
    setup.rank = 0;
    Process zero = rank_process(place, setup);
    setup.rank = 1;
    Process one = rank_process(place, setup);
    sleep_ms(ms);
    one.kill9();
    const std::string said = zero.reply();
    if (begins_with(said, "NMC_OK")) {  // both had joined by then
      zero.kill9();
      continue;
    }
    SAYS(said, "NMC_ERR_TIMEOUT");
    if (!CHECK(said.find("ranks [1] of 2") != std::string::npos)) std::printf("     %s\n", said.c_str());
    CHECK(zero.ends_well());
  }
}

}  // namespace

int main() {
  skip_without_join();
  random_orders();
  rank_0_last();
  automatic();
  somebody_missing();
  killed_while_joining();
  return finish();
}
